package storetest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tekil-go/tekil/behaviors/idempotency"
)

const (
	// length is the lease of most cases, and overdue what makes it end.
	length, overdue = 5 * time.Minute, 6 * time.Minute
	// slack is what a case's own steps may take on a slow machine, where it compares times.
	slack = time.Minute
	// atOnce is what counts as not having waited. It is shorter than the patience, so that a wait is seen as one.
	atOnce = 10 * time.Second
	// tombstoneType is the result type of a record whose outcome was taken away.
	tombstoneType = "tombstone"
)

// leased is a Leased claim on a key, with a payload of its own.
func leased(key string) idempotency.Claim {
	c := claim(key)
	c.Lease, c.MaxAttempts = length, 10
	return c
}

// take leases a key and demands that it is given. What is left of the lease is rolled back when the case ends.
func take(t *testing.T, s idempotency.Store, c idempotency.Claim) idempotency.Lease {
	t.Helper()
	l, rec, err := s.Lease(within(t), c)
	switch {
	case err != nil:
		t.Fatalf("Lease: %v", err)
	case l == nil:
		t.Fatalf("Lease of a key that is free gives no lease but the record %s", show(rec))
	case rec != nil:
		t.Fatalf("Lease gives a lease and the record %s", show(rec))
	}
	t.Cleanup(func() { l.Rollback(context.WithoutCancel(t.Context())) })
	return l
}

// refused demands that a key is not given, and gives the record that stands in the way.
func refused(t *testing.T, s idempotency.Store, c idempotency.Claim) *idempotency.Record {
	t.Helper()
	l, rec, err := s.Lease(within(t), c)
	if l != nil {
		l.Rollback(within(t))
		t.Fatalf("Lease gives the key away: %+v", l.Grant())
	}
	if err != nil {
		t.Fatalf("Lease: %v", err)
	}
	if rec == nil {
		t.Fatal("Lease gives neither a lease nor a record nor an error")
	}
	return rec
}

// over leases a key and lets the lease end.
func over(t *testing.T, f Fixture, c idempotency.Claim) idempotency.Lease {
	t.Helper()
	l := take(t, f.Store, c)
	f.Age(t, overdue)
	return l
}

// writes writes business rows in the business transaction of a lease, as a handler does.
func writes(t *testing.T, f Fixture, l idempotency.Lease, notes ...string) error {
	t.Helper()
	return f.InTx(l.Context(within(t)), func(ctx context.Context) error {
		for _, note := range notes {
			if err := f.Insert(ctx, note); err != nil {
				return err
			}
		}
		return nil
	})
}

// wrote is writes, and demands that it succeeds and leaves the transaction open.
func wrote(t *testing.T, f Fixture, l idempotency.Lease, notes ...string) {
	t.Helper()
	if err := writes(t, f, l, notes...); err != nil {
		t.Fatalf("InTx: %v", err)
	}
	if !l.Open() {
		t.Fatal("Open is false after InTx has returned nil")
	}
}

// completed ends a lease with success and demands that it is taken.
func completed(t *testing.T, l idempotency.Lease) {
	t.Helper()
	if err := l.Complete(within(t), success); err != nil {
		t.Fatalf("Complete: %v", err)
	}
}

// inProgress is the record that a lease leaves.
func inProgress(c idempotency.Claim, g idempotency.Grant) idempotency.Record {
	return idempotency.Record{
		Scope: c.Scope, Hash: c.Hash, HashVersion: c.HashVersion, State: idempotency.InProgress, AfterExpiry: c.AfterExpiry,
		Attempt: c.Attempt, Attempts: g.Attempt, Fence: g.Fence, OriginRequestID: c.OriginRequestID, OriginTrace: c.OriginTrace, DraftID: c.DraftID,
	}
}

// finished is the record that the completion of a lease leaves.
func finished(c idempotency.Claim, g idempotency.Grant, done idempotency.Completion) idempotency.Record {
	rec := recorded(c, done)
	rec.Attempts, rec.Fence = g.Attempt, g.Fence
	return rec
}

// wantLeased compares what is stored for a Leased claim with a record, its counters included.
func wantLeased(t *testing.T, s idempotency.Store, c idempotency.Claim, want idempotency.Record) {
	t.Helper()
	rec := met(t, s, c)
	if d := leasedDifference(*rec, want); d != "" {
		t.Fatalf("the record differs from what it should be: %s", d)
	}
}

// leasedDifference is difference with the counters.
func leasedDifference(got, want idempotency.Record) string {
	if d := difference(got, want); d != "" {
		return d
	}
	if got.Attempts != want.Attempts {
		return fmt.Sprintf("Attempts is %d, want %d", got.Attempts, want.Attempts)
	}
	if got.Fence != want.Fence {
		return fmt.Sprintf("Fence is %d, want %d", got.Fence, want.Fence)
	}
	return ""
}

// wantLeaseLeft demands that what is left of the lease is want, give or take what the case has taken.
func wantLeaseLeft(t *testing.T, s idempotency.Store, c idempotency.Claim, want time.Duration) {
	t.Helper()
	rec := met(t, s, c)
	if rec.State != idempotency.InProgress {
		t.Fatalf("the record is %s, want one in progress", show(rec))
	}
	if rec.LeaseLeft > want || rec.LeaseLeft < want-slack {
		t.Errorf("%v of the lease are left, want about %v", rec.LeaseLeft, want)
	}
}

// stored reads the whole record of a claim's id, or gives nil.
func stored(t *testing.T, f Fixture, c idempotency.Claim) *idempotency.Stored {
	t.Helper()
	found, err := f.Store.Find(within(t), idempotency.Search{ID: c.ID}, 10)
	if err != nil {
		t.Fatalf("Find: %v", err)
	}
	switch len(found) {
	case 0:
		return nil
	case 1:
		return &found[0]
	}
	t.Fatalf("Find gives %d records for one id", len(found))
	return nil
}

// standing is stored, and demands that there is a record.
func standing(t *testing.T, f Fixture, c idempotency.Claim) *idempotency.Stored {
	t.Helper()
	s := stored(t, f, c)
	if s == nil {
		t.Fatal("no record; want one")
	}
	return s
}

// met is look, and demands that there is a record.
func met(t *testing.T, s idempotency.Store, c idempotency.Claim) *idempotency.Record {
	t.Helper()
	rec := look(t, s, c)
	if rec == nil {
		t.Fatal("no record; want one")
	}
	return rec
}

// change names the first thing in which two states of one key differ.
func change(before, after *idempotency.Stored) string {
	switch {
	case before == nil && after == nil:
		return ""
	case before == nil:
		return "there is a record now: " + show(&after.Record)
	case after == nil:
		return "the record is gone"
	}
	if d := leasedDifference(after.Record, before.Record); d != "" {
		return d
	}
	for _, f := range []struct {
		name          string
		after, before time.Time
	}{
		{"CreatedAt", after.CreatedAt, before.CreatedAt},
		{"CompletedAt", after.CompletedAt, before.CompletedAt},
		{"ExpiresAt", after.ExpiresAt, before.ExpiresAt},
		{"LeaseUntil", after.LeaseUntil, before.LeaseUntil},
	} {
		if !f.after.Equal(f.before) {
			return fmt.Sprintf("%s is %v and was %v", f.name, f.after, f.before)
		}
	}
	return ""
}

// show is a record for a message: none of its hashes.
func show(rec *idempotency.Record) string {
	if rec == nil {
		return "(none)"
	}
	return fmt.Sprintf("{%s, attempt %x, attempts %d, fence %d, lease left %v, expired %v, result type %q}",
		rec.State, rec.Attempt[:4], rec.Attempts, rec.Fence, rec.LeaseLeft, rec.Expired, rec.ResultType)
}

// promptly calls fn and demands that it returns at once. If it does not, it ends fn's context and calls free, so that the case
// ends all the same.
func promptly(t *testing.T, what string, free func(), fn func(ctx context.Context)) {
	t.Helper()
	ctx, cancel := context.WithCancel(within(t))
	defer cancel()
	returned := make(chan struct{})
	go func() {
		defer close(returned)
		fn(ctx)
	}()
	timer := time.NewTimer(atOnce)
	defer timer.Stop()
	select {
	case <-returned:
	case <-timer.C:
		t.Errorf("%s has not returned in %v", what, atOnce)
		cancel()
		free()
		await(t, returned, what+", whose context has ended,")
	}
}

// errChanged is a handler's own reason to undo its rows.
var errChanged = errors.New("the handler has changed its mind")

var refusal = idempotency.Completion{Outcome: idempotency.Refusal, Result: []byte(`{"code":"OUT_OF_STOCK"}`), ResultType: "refusal/1"}

func leaseCases() []specCase {
	return slices.Concat(claimCases(), ownerCases(), inTxCases(), adminCases(), purgeCases())
}

// claimCases are those of Store.Lease.
func claimCases() []specCase {
	return []specCase{
		{"Store_LeaseIsSeenByEverybodyAtOnce_L03_L04",
			"The outside world is called under a claim that every other process can see; a duplicate is told whose it is and with which payload, before anything happens twice.",
			func(t *testing.T, f Fixture) {
				c := leased("seen-1")
				l := take(t, f.Store, c)
				g := l.Grant()
				if g.Fence < 1 || g.Attempt != 1 || g.TookOver || g.Reused {
					t.Errorf("the first grant of a new key is %+v", g)
				}
				if l.Open() {
					t.Error("the business transaction is open before the handler has asked for it")
				}
				wantLeased(t, f.Store, again(c), inProgress(c, g))
				wantLeaseLeft(t, f.Store, again(c), length)
				wantDatabase(t, f, 1)
				before := stored(t, f, c)
				for name, other := range map[string]idempotency.Claim{"same payload": again(c), "other payload": corrected(c)} {
					rec := refused(t, f.Store, other)
					if d := leasedDifference(*rec, inProgress(c, g)); d != "" {
						t.Errorf("a duplicate with the %s gets a record that differs from the owner's: %s", name, d)
					}
					if rec.LeaseLeft > length || rec.LeaseLeft < length-slack {
						t.Errorf("a duplicate with the %s is told that %v of the lease are left", name, rec.LeaseLeft)
					}
				}
				if d := change(before, stored(t, f, c)); d != "" {
					t.Errorf("duplicates have changed the record: %s", d)
				}
			}},
		{"Store_LeaseIsKeptForItsRetentionFromTheClaim_T01",
			"The key of a Leased command is protected for as long as its command asked for, and its completion does not move that.",
			func(t *testing.T, f Fixture) {
				c := leased("kept-1")
				c.Retention, c.Lease = 30*time.Hour, time.Hour
				l := take(t, f.Store, c)
				s := standing(t, f, c)
				if d := s.ExpiresAt.Sub(s.CreatedAt); d > c.Retention+slack || d < c.Retention-slack {
					t.Errorf("the record is kept for %v, want %v", d, c.Retention)
				}
				if d := s.LeaseUntil.Sub(s.CreatedAt); d > c.Lease+slack || d < c.Lease-slack {
					t.Errorf("the lease is of %v, want %v", d, c.Lease)
				}
				if !s.CompletedAt.IsZero() {
					t.Errorf("a record in progress was completed at %v", s.CompletedAt)
				}
				f.Age(t, 29*time.Hour)
				completed(t, l)
				done := standing(t, f, c)
				if want := s.ExpiresAt.Add(-29 * time.Hour); !done.ExpiresAt.Equal(want) {
					t.Errorf("the completion has moved the expiry to %v, want %v", done.ExpiresAt, want)
				}
				if d := done.CompletedAt.Sub(done.CreatedAt); d < 29*time.Hour || d > 29*time.Hour+slack {
					t.Errorf("the record was completed %v after its creation, want 29 hours", d)
				}
				if met(t, f.Store, c).Expired {
					t.Error("the record has expired after 29 of 30 hours")
				}
				f.Age(t, 2*time.Hour)
				if !met(t, f.Store, c).Expired {
					t.Error("the record has not expired after 31 of 30 hours")
				}
			}},
		{"Store_DuplicateIsToldAtOnceWhileALeasedAttemptWorks_rec4",
			"The second request is told \"in progress\" and goes; one that waits for the first holds a connection for as long as the outside world takes.",
			func(t *testing.T, f Fixture) {
				c := leased("told-1")
				l := take(t, f.Store, c)
				told := func(when string) {
					promptly(t, "Lease of a duplicate "+when, func() { l.Rollback(context.WithoutCancel(t.Context())) }, func(ctx context.Context) {
						dup, rec, err := f.Store.Lease(ctx, again(c))
						if dup != nil {
							dup.Rollback(ctx)
						}
						if err != nil || dup != nil || rec == nil || rec.Attempt != c.Attempt {
							t.Errorf("Lease of a duplicate %s gives (%v, %s, %v), want the owner's record", when, dup != nil, show(rec), err)
						}
					})
				}
				told("while the handler runs")
				if f.NoHint != nil && !t.Failed() { // where one can write beside another
					wrote(t, f, l, "order")
					told("while the business transaction is open")
					completed(t, l)
					wantDatabase(t, f, 1, "order")
				}
			}},
		{"Store_SixteenClaimsAtOnceGiveOneLease_L08_T06_BR45",
			"Sixteen processes find the key free in the same moment. One calls the outside world.",
			func(t *testing.T, f Fixture) {
				for name, plant := range map[string]*idempotency.Record{
					"absent":               nil,
					"failed":               {State: idempotency.Failed},
					"dead lease":           {State: idempotency.InProgress},
					"expired":              {State: idempotency.Completed, Result: []byte(`1`), Expired: true},
					"expired, dead lease":  {State: idempotency.InProgress, Expired: true},
					"expired, was refused": {State: idempotency.Completed, Outcome: idempotency.Refusal, Result: []byte(`1`), Expired: true},
				} {
					for round := range 3 {
						c := leased(fmt.Sprint("at once ", name, round))
						if plant != nil {
							rec := *plant
							rec.Scope, rec.Hash, rec.HashVersion, rec.Attempt = c.Scope, c.Hash, c.HashVersion, again(c).Attempt
							f.Plant(t, c.ID, rec)
						}
						oneOfSixteen(t, f, c, plant != nil && plant.Expired, name)
					}
				}
			}},
		transitionCase(),
		{"Store_TakeoverGoesOnWithTheLifeOfTheKey_L06",
			"How often a key was tried and since when is what a person and the attempts' bound go by; the expiry moves, or the record would end under the second owner.",
			func(t *testing.T, f Fixture) {
				first := leased("life-1")
				l := take(t, f.Store, first)
				f.Age(t, 71*time.Hour)
				before := standing(t, f, first)
				second := again(first)
				second.HashVersion++
				m := take(t, f.Store, second)
				if g := m.Grant(); g.Attempt != 2 || !g.TookOver || g.Reused || g.Fence <= l.Grant().Fence {
					t.Errorf("the grant of a takeover is %+v after %+v", g, l.Grant())
				}
				wantLeased(t, f.Store, first, inProgress(second, m.Grant()))
				after := standing(t, f, first)
				if !after.CreatedAt.Equal(before.CreatedAt) {
					t.Errorf("the takeover has moved the creation from %v to %v", before.CreatedAt, after.CreatedAt)
				}
				if d := after.ExpiresAt.Sub(before.ExpiresAt); d < 71*time.Hour-slack || d > 71*time.Hour+slack {
					t.Errorf("the takeover has moved the expiry by %v, want 71 hours", d)
				}
				wantLeaseLeft(t, f.Store, first, length)
				completed(t, m)
				wantLeased(t, f.Store, first, finished(second, m.Grant(), success))
			}},
		{"Store_NewLifeOfAnExpiredKeyUnderALeaseForgetsTheOldOne_T02_T05",
			"An expired key is new work on purpose: nothing in its record is the old life's, not the reference of what was done then either.",
			func(t *testing.T, f Fixture) {
				for name, old := range map[string]func(c idempotency.Claim){
					"of an Atomic command": func(c idempotency.Claim) { complete(t, f, c, "of an Atomic command") },
					"completed": func(c idempotency.Claim) {
						l := take(t, f.Store, c)
						completed(t, l)
					},
					"died":   func(c idempotency.Claim) { take(t, f.Store, c) },
					"failed": func(c idempotency.Claim) { _ = take(t, f.Store, c).Release(within(t)) },
				} {
					first := leased("new life, " + name)
					old(first)
					f.Age(t, 73*time.Hour)
					before := standing(t, f, first)
					second := corrected(first)
					second.HashVersion, second.AfterExpiry = 1008, idempotency.Tombstone
					second.MaxAttempts, second.NoTakeover = 0, true // they bind in the old life only
					l := take(t, f.Store, second)
					if g := l.Grant(); g.Attempt != 1 || !g.Reused || g.TookOver != (name == "died") || g.Fence <= before.Fence {
						t.Errorf("%s: the grant of a new life is %+v", name, g)
					}
					wantLeased(t, f.Store, first, inProgress(second, l.Grant()))
					after := standing(t, f, first)
					if d := after.CreatedAt.Sub(before.CreatedAt); d < 73*time.Hour-slack {
						t.Errorf("%s: the new life was created %v after the old one, want 73 hours", name, d)
					}
					if !after.CompletedAt.IsZero() {
						t.Errorf("%s: the new life has the completion of the old one", name)
					}
					if err := l.Complete(within(t), idempotency.Completion{Result: []byte(`2`), ResultType: "result/8"}); err != nil {
						t.Fatalf("%s: Complete: %v", name, err)
					}
					wantLeased(t, f.Store, first, finished(second, l.Grant(), idempotency.Completion{Result: []byte(`2`), ResultType: "result/8"}))
				}
			}},
		{"Store_OwnClaimIsRecognised_BR08",
			"The claim was committed and its answer was lost: the one who asks again must not be told that somebody else is at work.",
			func(t *testing.T, f Fixture) {
				c := leased("own-1")
				l := take(t, f.Store, c)
				before := standing(t, f, c)
				twin := take(t, f.Store, c)
				if twin.Grant().Fence != l.Grant().Fence || twin.Grant().Attempt != 1 {
					t.Errorf("the same claim got %+v and then %+v", l.Grant(), twin.Grant())
				}
				after := standing(t, f, c)
				if d := leasedDifference(after.Record, before.Record); d != "" {
					t.Errorf("recognising a claim has changed its record: %s", d)
				}
				refused(t, f.Store, again(c))
				f.Age(t, overdue) // what is over is still its own
				for _, noTakeover := range []bool{false, true} {
					c.NoTakeover, c.MaxAttempts = noTakeover, 0
					twin = take(t, f.Store, c)
					if g := twin.Grant(); g.Fence != l.Grant().Fence || g.Attempt != 1 {
						t.Errorf("the same claim got %+v and, when its lease was over, %+v", l.Grant(), g)
					}
					twin.Rollback(within(t)) // as before another try of the same attempt
				}
				twin = take(t, f.Store, c)
				wrote(t, f, twin, "order")
				completed(t, twin)
				wantDatabase(t, f, 1, "order")
				if rec := refused(t, f.Store, c); rec.State != idempotency.Completed || rec.Attempt != c.Attempt {
					t.Errorf("the claim of an attempt that has completed its key gives %s", show(rec))
				}

				lost := leased("own-2")
				over(t, f, lost)
				other := again(lost)
				take(t, f.Store, other)
				if rec := refused(t, f.Store, lost); rec.Attempt != other.Attempt {
					t.Errorf("the claim of an attempt that was replaced gives %s", show(rec))
				}
			}},
		{"Store_OlderContractsPayloadIsTheSamePayload_rec9",
			"A deploy changes how a payload is hashed; the retry of what failed before it must run, and nothing else may pass for it.",
			func(t *testing.T, f Fixture) {
				plant := func(key string, state idempotency.RecordState) (c idempotency.Claim, prior [32]byte) {
					c = leased(key)
					prior = sha256.Sum256([]byte("as the older contract hashes it"))
					f.Plant(t, c.ID, idempotency.Record{Scope: c.Scope, Hash: prior, HashVersion: 1006, State: state, Attempt: again(c).Attempt})
					return c, prior
				}
				for _, state := range []idempotency.RecordState{idempotency.Failed, idempotency.InProgress} {
					c, prior := plant("prior-"+string(state), state)
					refused(t, f.Store, c)
					other := c
					other.PriorHash = sha256.Sum256([]byte("something else"))
					refused(t, f.Store, other)
					c.PriorHash = prior
					l := take(t, f.Store, c)
					if l.Grant().Attempt != 2 {
						t.Errorf("the grant over a record of the older contract is %+v", l.Grant())
					}
					wantLeased(t, f.Store, c, inProgress(c, l.Grant()))
				}
				c, prior := plant("prior-atomic", idempotency.Failed)
				c.Lease, c.MaxAttempts = 0, 0
				a := begin(t, f.Store, c)
				insert(t, f, a, "lost")
				if err := a.Complete(within(t), success); !errors.Is(err, idempotency.ErrLost) {
					t.Errorf("Complete of an Atomic attempt over a failed record of another payload says %v, want ErrLost", err)
				}
				c.PriorHash = prior
				complete(t, f, c, "order")
				wantRecord(t, f.Store, c, recorded(c, success))

				zero := leased("prior-none") // a zero PriorHash means none, even where it would fit
				f.Plant(t, zero.ID, idempotency.Record{Scope: zero.Scope, State: idempotency.Failed, Attempt: again(zero).Attempt})
				refused(t, f.Store, zero)
				zero.Lease, zero.MaxAttempts = 0, 0
				b := begin(t, f.Store, zero)
				if err := b.Complete(within(t), success); !errors.Is(err, idempotency.ErrLost) {
					t.Errorf("Complete of an Atomic attempt without a PriorHash over a failed record with a zero hash says %v, want ErrLost", err)
				}
				wantDatabase(t, f, 4, "order")
			}},
		{"Store_LeaseNeverTakesTheRowOfAnotherScope",
			"Equal ids with different scopes mean a damaged table: the row is shown, and is neither taken nor written over.",
			func(t *testing.T, f Fixture) {
				for i, rec := range []idempotency.Record{
					{State: idempotency.Failed},
					{State: idempotency.InProgress},
					{State: idempotency.InProgress, LeaseLeft: time.Hour},
					{State: idempotency.Completed, Result: []byte(`1`), Expired: true},
				} {
					c := leased(fmt.Sprint("own-scope-", i))
					rec.Scope, rec.Hash, rec.Attempt = c.Scope, c.Hash, c.Attempt
					rec.Scope.Tenant = "tenant-2"
					f.Plant(t, c.ID, rec)
					before := stored(t, f, c)
					if got := refused(t, f.Store, c); got.Scope == c.Scope {
						t.Errorf("Lease gives the row of another scope as %+v", got.Scope)
					}
					if d := change(before, stored(t, f, c)); d != "" {
						t.Errorf("the row of another scope was changed: %s", d)
					}
				}
			}},
		{"Store_FencesRise_E08",
			"An outside system that refuses a smaller number than it has seen must not refuse the present owner, nor take two owners for one.",
			func(t *testing.T, f Fixture) {
				var last int64
				for i := range 5 {
					fence := take(t, f.Store, leased(fmt.Sprint("fence-", i))).Grant().Fence
					if fence <= last {
						t.Errorf("the fence %d was given after %d", fence, last)
					}
					last = fence
				}
				c := leased("fence-ahead") // as after a failover to a replica whose sequence was behind
				f.Plant(t, c.ID, idempotency.Record{Scope: c.Scope, Hash: c.Hash, State: idempotency.InProgress, Attempt: again(c).Attempt, Fence: 1_000_000})
				if fence := take(t, f.Store, c).Grant().Fence; fence <= 1_000_000 {
					t.Errorf("a takeover got the fence %d, and its record had 1000000", fence)
				}
				fences := make([]int64, 16)
				var wg sync.WaitGroup
				for i := range fences {
					wg.Go(func() {
						l, _, err := f.Store.Lease(context.WithoutCancel(t.Context()), leased(fmt.Sprint("fence-beside-", i)))
						if err != nil || l == nil {
							t.Errorf("Lease of a free key: %v", err)
							return
						}
						fences[i] = l.Grant().Fence
						l.Rollback(context.WithoutCancel(t.Context()))
					})
				}
				wg.Wait()
				slices.Sort(fences)
				if len(slices.Compact(fences)) != 16 {
					t.Errorf("sixteen grants got the fences %v", fences)
				}
			}},
		{"Store_LeaseOutlivesTheContextOfItsClaim_BR03_X13",
			"A client that hangs up leaves an attempt that goes on. A claim that was given up before it was sent is none.",
			func(t *testing.T, f Fixture) {
				ctx, hangUp := context.WithCancel(within(t))
				c := leased("claim-hang-up-1")
				l, _, err := f.Store.Lease(ctx, c)
				if err != nil || l == nil {
					t.Fatalf("Lease: %v", err)
				}
				hangUp()
				wrote(t, f, l, "order")
				completed(t, l)
				wantDatabase(t, f, 1, "order")

				given := leased("claim-given-up-1")
				if l, _, err := f.Store.Lease(ctx, given); err == nil {
					t.Errorf("Lease on an ended context gives (%v, nil)", l != nil)
				} else if errors.Is(err, idempotency.ErrBusy) || errors.Is(err, idempotency.ErrSerialization) {
					t.Errorf("Lease on an ended context says %v", err)
				}
				if g := take(t, f.Store, again(given)).Grant(); g.Attempt != 1 {
					t.Errorf("the claim that was given up has left something: %+v", g)
				}
			}},
	}
}

// oneOfSixteen lets sixteen claims loose on a free key and completes the one that wins.
func oneOfSixteen(t *testing.T, f Fixture, c idempotency.Claim, anyPayload bool, name string) {
	t.Helper()
	const side = 16
	claims := make([]idempotency.Claim, side)
	leases := make([]idempotency.Lease, side)
	records := make([]*idempotency.Record, side)
	errs := make([]error, side)
	start := make(chan struct{})
	ctx := within(t)
	var wg sync.WaitGroup
	for i := range side {
		claims[i] = again(c)
		if anyPayload {
			claims[i].Hash[0] ^= byte(i)
		}
		wg.Go(func() {
			<-start
			leases[i], records[i], errs[i] = f.Store.Lease(ctx, claims[i])
		})
	}
	close(start)
	wg.Wait()
	winner := -1
	for i, l := range leases {
		if l == nil {
			continue
		}
		t.Cleanup(func() { l.Rollback(context.WithoutCancel(t.Context())) })
		if winner >= 0 {
			t.Errorf("%s: two of sixteen claims were given the key", name)
		}
		winner = i
	}
	if winner < 0 {
		t.Fatalf("%s: none of sixteen claims was given the key: %v", name, errs)
	}
	for i, rec := range records {
		if i != winner && (errs[i] != nil || rec == nil || rec.State != idempotency.InProgress || rec.Attempt != claims[winner].Attempt) {
			t.Errorf("%s: a claim that came too late gets %s and %v, want the winner's record", name, show(rec), errs[i])
		}
	}
	note := c.Scope.Key
	wrote(t, f, leases[winner], note)
	completed(t, leases[winner])
	if !slices.Contains(f.Rows(t), note) {
		t.Errorf("%s: the winner's row is not there", name)
	}
	wantLeased(t, f.Store, c, finished(claims[winner], leases[winner].Grant(), success))
}
