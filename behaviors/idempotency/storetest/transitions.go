package storetest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/tekil-go/tekil/behaviors/idempotency"
)

// What an operation makes of a record.
const (
	unchanged = "unchanged"
	fresh     = "the first life"           // T1
	retried   = "the next attempt"         // T2, T3
	renewed   = "the first of a new life"  // T4
	freed     = "failed, of nobody"        // T6, by a person
	erased    = "erased"                   // T10, by a person
	gone      = "gone"                     // T11
	buried    = "a tombstone"              // T10
	unjudged  = "left to the store's will" // the contract leaves it open
)

// transitionCase lets everybody but the owner loose on every record that can be.
func transitionCase() specCase {
	const (
		absent, progress, done, failed = "", idempotency.InProgress, idempotency.Completed, idempotency.Failed
		reuse, stone                   = idempotency.Reuse, idempotency.Tombstone
		live                           = time.Hour
	)
	rows := []struct {
		name    string
		state   idempotency.RecordState
		after   idempotency.AfterExpiry
		expired bool
		left    time.Duration
		isStone bool
		// What becomes of it by a claim with the same payload, with another one, with the same where takeovers are refused and
		// where the attempts are used up; by Free, Erase and Purge.
		same, other, noTakeover, usedUp, free, erase, purge string
	}{
		{"absent", absent, reuse, false, 0, false, fresh, fresh, fresh, fresh, unchanged, unchanged, unchanged},
		{"failed", failed, reuse, false, 0, false, retried, unchanged, retried, unchanged, freed, erased, unchanged},
		{"failed, expired", failed, reuse, true, 0, false, renewed, renewed, renewed, renewed, freed, erased, gone},
		{"failed, to be a tombstone", failed, stone, false, 0, false, retried, unchanged, retried, unchanged, freed, erased, unchanged},
		{"failed, expired, to be a tombstone", failed, stone, true, 0, false, renewed, unchanged, renewed, unjudged, freed, erased, unjudged},
		{"live lease", progress, reuse, false, live, false, unchanged, unchanged, unchanged, unchanged, freed, unchanged, unchanged},
		{"live lease, expired", progress, reuse, true, live, false, unchanged, unchanged, unchanged, unchanged, freed, unchanged, unchanged},
		{"live lease, expired, to be a tombstone", progress, stone, true, live, false, unchanged, unchanged, unchanged, unchanged, freed, unchanged, unchanged},
		{"dead lease", progress, reuse, false, 0, false, retried, unchanged, unchanged, unchanged, freed, unchanged, unchanged},
		{"dead lease, expired", progress, reuse, true, 0, false, renewed, renewed, renewed, renewed, freed, unchanged, gone},
		{"dead lease, to be a tombstone", progress, stone, false, 0, false, retried, unchanged, unchanged, unchanged, freed, unchanged, unchanged},
		{"dead lease, expired, to be a tombstone", progress, stone, true, 0, false, renewed, unchanged, unchanged, unjudged, freed, unchanged, unjudged},
		{"completed", done, reuse, false, 0, false, unchanged, unchanged, unchanged, unchanged, unchanged, erased, unchanged},
		{"completed, expired", done, reuse, true, 0, false, renewed, renewed, renewed, renewed, unchanged, erased, gone},
		{"completed, to be a tombstone", done, stone, false, 0, false, unchanged, unchanged, unchanged, unchanged, unchanged, erased, unchanged},
		{"completed, expired, to be a tombstone", done, stone, true, 0, false, unchanged, unchanged, unchanged, unchanged, unchanged, erased, buried},
		{"tombstone", done, stone, false, 0, true, unchanged, unchanged, unchanged, unchanged, unchanged, unjudged, unchanged},
		{"tombstone, expired", done, stone, true, 0, true, unchanged, unchanged, unchanged, unchanged, unchanged, unjudged, gone},
		{"erased", done, reuse, false, 0, true, unchanged, unchanged, unchanged, unchanged, unchanged, unjudged, unchanged},
		{"erased, expired", done, reuse, true, 0, true, unchanged, unchanged, unchanged, unchanged, unchanged, unjudged, gone},
	}
	return specCase{"Store_RecordsChangeInTheDeclaredWaysOnly_L06_L07_T02_T03_T04_T05_BR45",
		"Who may take a key, and from what, is the whole of the protection. A transition that nobody declared is a second execution or a key that is lost.",
		func(t *testing.T, f Fixture) {
			const remember = 1000 * time.Hour
			plant := func(row int, op string) (c idempotency.Claim, old idempotency.AttemptID) {
				r := rows[row]
				c = leased(fmt.Sprint(op, " ", r.name))
				c.MaxAttempts = 3
				old = again(c).Attempt
				if r.state == absent {
					return c, old
				}
				rec := idempotency.Record{
					Scope: c.Scope, Hash: c.Hash, HashVersion: c.HashVersion, State: r.state, AfterExpiry: r.after, Expired: r.expired, LeaseLeft: r.left,
					Attempt: old, Attempts: 3, Fence: 7, OriginRequestID: "request-old", OriginTrace: "trace-old", DraftID: "draft-old",
				}
				if r.state == done {
					rec.Result, rec.ResultType, rec.ExternalRef = []byte(`"old"`), "result/1", "reference-old"
				}
				if r.isStone {
					rec.Result, rec.ResultType, rec.ExternalRef, rec.DraftID = nil, tombstoneType, "", ""
				}
				f.Plant(t, c.ID, rec)
				return c, old
			}
			claims := func(op string, column func(row int) string, claim func(c idempotency.Claim) idempotency.Claim) {
				for i, r := range rows {
					c, _ := plant(i, op)
					claimOne(t, f, r.name+", "+op, claim(c), column(i))
				}
			}
			claims("same payload", func(i int) string { return rows[i].same }, func(c idempotency.Claim) idempotency.Claim { return c })
			claims("same payload, no draft", func(i int) string { return rows[i].same }, func(c idempotency.Claim) idempotency.Claim { c.DraftID = ""; return c })
			claims("other payload", func(i int) string { return rows[i].other }, corrected)
			claims("no takeover", func(i int) string { return rows[i].noTakeover }, func(c idempotency.Claim) idempotency.Claim { c.NoTakeover = true; return c })
			claims("used up", func(i int) string { return rows[i].usedUp }, func(c idempotency.Claim) idempotency.Claim { c.MaxAttempts = 2; return c })
			for i, r := range rows {
				c, old := plant(i, "free")
				changeOne(t, f, r.name+", free", f.Store.Free, c, old, r.free)
				c, old = plant(i, "erase")
				changeOne(t, f, r.name+", erase", f.Store.Erase, c, old, r.erase)
			}

			purged := make([]idempotency.Claim, len(rows))
			before := make([]*idempotency.Stored, len(rows))
			for i := range rows {
				purged[i], _ = plant(i, "purge")
				before[i] = stored(t, f, purged[i])
			}
			for range 2 { // the second time there is nothing left to be done
				if _, err := f.Store.Purge(within(t), idempotency.PurgeBatch{Limit: 1000, Remember: remember}); err != nil {
					t.Fatalf("Purge: %v", err)
				}
			}
			for i, r := range rows {
				if r.purge != unjudged {
					wantBecame(t, r.name+", purge", before[i], stored(t, f, purged[i]), r.purge, remember)
				}
			}
		}}
}

// claimOne claims a key and looks at what has become of it.
func claimOne(t *testing.T, f Fixture, name string, c idempotency.Claim, want string) {
	t.Helper()
	if want == unjudged {
		return
	}
	before := stored(t, f, c)
	l, rec, err := f.Store.Lease(within(t), c)
	if l != nil {
		defer l.Rollback(within(t))
	}
	after := stored(t, f, c)
	switch {
	case err != nil:
		t.Errorf("%s: Lease: %v", name, err)
		return
	case want == unchanged:
		if l != nil || rec == nil {
			t.Errorf("%s: Lease gives (%v, %s), want the record that stands there", name, l != nil, show(rec))
		} else if d := leasedDifference(*rec, before.Record); d != "" {
			t.Errorf("%s: Lease gives another record than stands there: %s", name, d)
		}
		wantBecame(t, name, before, after, want, 0)
		return
	case l == nil:
		t.Errorf("%s: Lease does not give the key but the record %s, want %s", name, show(rec), want)
		return
	case after == nil:
		t.Errorf("%s: Lease gives the key and there is no record", name)
		return
	}
	g := idempotency.Grant{Fence: l.Grant().Fence, Attempt: 1}
	if before != nil {
		g.TookOver = before.State == idempotency.InProgress
		g.Reused = before.Expired
		if want == retried {
			g.Attempt = before.Attempts + 1
		}
		if g.Fence <= before.Fence {
			t.Errorf("%s: the fence is %d and was %d", name, g.Fence, before.Fence)
		}
	}
	if l.Grant() != g {
		t.Errorf("%s: the grant is %+v, want %+v", name, l.Grant(), g)
	}
	expected := inProgress(c, g)
	if want == retried && c.DraftID == "" {
		expected.DraftID = before.DraftID
	}
	if d := leasedDifference(after.Record, expected); d != "" {
		t.Errorf("%s: the record differs from that of %s: %s", name, want, d)
	}
	wantLeaseLeft(t, f.Store, c, c.Lease)
}

// changeOne changes a record as a person does, at first with an attempt that is not the record's.
func changeOne(t *testing.T, f Fixture, name string, by func(ctx context.Context, id idempotency.ID, seen idempotency.AttemptID) (bool, error),
	c idempotency.Claim, seen idempotency.AttemptID, want string) {
	t.Helper()
	if want == unjudged {
		return
	}
	before := stored(t, f, c)
	changed, err := by(within(t), c.ID, c.Attempt)
	if err != nil || changed {
		t.Errorf("%s: with another attempt than the record's it gives (%v, %v), want false", name, changed, err)
	}
	wantBecame(t, name+", with another attempt than the record's", before, stored(t, f, c), unchanged, 0)
	changed, err = by(within(t), c.ID, seen)
	if err != nil || changed != (want != unchanged) {
		t.Errorf("%s: it gives (%v, %v), want %v", name, changed, err, want != unchanged)
	}
	wantBecame(t, name, before, stored(t, f, c), want, 0)
}

// wantBecame compares what has become of a record with what was to become of it.
func wantBecame(t *testing.T, name string, before, after *idempotency.Stored, want string, remember time.Duration) {
	t.Helper()
	if want == gone {
		if after != nil {
			t.Errorf("%s: the record is still there: %s", name, show(&after.Record))
		}
		return
	}
	if before == nil || after == nil {
		if d := change(before, after); d != "" {
			t.Errorf("%s: %s", name, d)
		}
		return
	}
	expected := *before
	switch want {
	case freed:
		if after.Attempt == before.Attempt || after.Attempt == (idempotency.AttemptID{}) {
			t.Errorf("%s: the record is free under the attempt %x, want a new one", name, after.Attempt)
		}
		expected.State, expected.Attempts, expected.Attempt = idempotency.Failed, 1, after.Attempt
		expected.LeaseUntil = after.LeaseUntil // it is over, as the next claim finds
	case erased, buried:
		expected.Result, expected.ExternalRef, expected.DraftID = nil, "", ""
		if before.State == idempotency.Completed {
			expected.ResultType = tombstoneType
		}
		if want == buried {
			expected.ExpiresAt = before.ExpiresAt.Add(remember)
			expected.Expired = false
		}
	}
	if d := change(&expected, after); d != "" {
		t.Errorf("%s: what became of it is not what was to be (%s): %s", name, want, d)
	}
}
