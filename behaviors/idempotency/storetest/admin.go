package storetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tekil-go/tekil/behaviors/idempotency"
)

// adminCases are those of Find, Free and Erase beyond the table of transitions.
func adminCases() []specCase {
	return []specCase{
		{"Store_FindGivesWhatASearchAsksFor",
			"A person has a key, a reference or an operation id, and must see all of what it names, and nothing of another tenant when he asks for one.",
			func(t *testing.T, f Fixture) {
				scopes := []idempotency.Scope{
					{Tenant: "a", Client: "x", Operation: "op", Key: "key-0001"},
					{Tenant: "b", Client: "x", Operation: "op", Key: "key-0001"},
					{Tenant: "", Client: "y", Operation: "op", Key: "key-0001"},
					{Tenant: "a", Client: "y", Operation: "op2", Key: "key-0001"},
					{Tenant: "a", Client: "x", Operation: "op", Key: "KEY-0001"},
					{Tenant: "a", Client: "x", Operation: "op", Key: "key-0002"},
				}
				claims := make([]idempotency.Claim, len(scopes))
				want := make([]idempotency.Record, len(scopes))
				for i, s := range scopes {
					claims[i] = at(leased("found"), s)
					claims[i].DraftID, claims[i].OriginRequestID = "draft-"+s.Client, "request-"+s.Tenant
					l := take(t, f.Store, claims[i])
					if want[i] = inProgress(claims[i], l.Grant()); i%2 == 0 {
						done := idempotency.Completion{Result: []byte(`1`), ResultType: "result/1", ExternalRef: "ref-" + s.Tenant}
						if err := l.Complete(within(t), done); err != nil {
							t.Fatalf("Complete: %v", err)
						}
						want[i] = finished(claims[i], l.Grant(), done)
					}
					f.Age(t, time.Minute)
				}
				a, none, x, op2 := "a", "", "x", "op2"
				for _, s := range []struct {
					name   string
					search idempotency.Search
					limit  int
					want   []int
				}{
					{"id", idempotency.Search{ID: claims[3].ID}, 10, []int{3}},
					{"id that is not there", idempotency.Search{ID: leased("nowhere").ID}, 10, nil},
					{"key", idempotency.Search{Key: "key-0001"}, 10, []int{3, 2, 1, 0}},
					{"key, limit", idempotency.Search{Key: "key-0001"}, 2, []int{3, 2}},
					{"key in another case", idempotency.Search{Key: "KEY-0001"}, 10, []int{4}},
					{"key that is not there", idempotency.Search{Key: "key-000"}, 10, nil},
					{"key with a wildcard", idempotency.Search{Key: "key-%"}, 10, nil},
					{"key and tenant", idempotency.Search{Key: "key-0001", Tenant: &a}, 10, []int{3, 0}},
					{"key and no tenant", idempotency.Search{Key: "key-0001", Tenant: &none}, 10, []int{2}},
					{"key and client", idempotency.Search{Key: "key-0001", Client: &x}, 10, []int{1, 0}},
					{"key and operation", idempotency.Search{Key: "key-0001", Operation: &op2}, 10, []int{3}},
					{"key and all", idempotency.Search{Key: "key-0001", Tenant: &a, Client: &x, Operation: &op2}, 10, nil},
					{"reference", idempotency.Search{ExternalRef: "ref-a"}, 10, []int{4, 0}},
					{"reference and client", idempotency.Search{ExternalRef: "ref-a", Client: &none}, 10, nil},
					{"reference and key", idempotency.Search{ExternalRef: "ref-a", Key: "KEY-0001"}, 10, []int{4}},
					{"reference that is not there", idempotency.Search{ExternalRef: "ref"}, 10, nil},
					{"draft", idempotency.Search{DraftID: "draft-y"}, 10, []int{3, 2}},
					{"draft, limit", idempotency.Search{DraftID: "draft-y"}, 1, []int{3}},
					{"draft and tenant", idempotency.Search{DraftID: "draft-x", Tenant: &a}, 10, []int{5, 4, 0}},
					{"draft and key", idempotency.Search{DraftID: "draft-x", Key: "KEY-0001"}, 10, []int{4}},
					{"draft in another case", idempotency.Search{DraftID: "DRAFT-y"}, 10, nil},
					{"draft that is not there", idempotency.Search{DraftID: "draft"}, 10, nil},
					{"request id", idempotency.Search{RequestID: "request-b"}, 10, []int{1}},
					{"request id and draft", idempotency.Search{RequestID: "request-a", DraftID: "draft-y"}, 10, []int{3}},
					{"request id and client", idempotency.Search{RequestID: "request-a", Client: &x}, 10, []int{5, 4, 0}},
					{"request id that is not there", idempotency.Search{RequestID: "request"}, 10, nil},
					{"all at once", idempotency.Search{ID: claims[0].ID, Key: "key-0001", ExternalRef: "ref-a", DraftID: "draft-x", RequestID: "request-a", Tenant: &a}, 10, []int{0}},
				} {
					found, err := f.Store.Find(within(t), s.search, s.limit)
					if err != nil {
						t.Errorf("%s: Find: %v", s.name, err)
						continue
					}
					var got []int
					for _, r := range found {
						i := slices.Index(scopes, r.Scope)
						got = append(got, i)
						if r.ID != r.Scope.ID() {
							t.Errorf("%s: the record of %+v has the id %x", s.name, r.Scope, r.ID)
						} else if d := leasedDifference(r.Record, want[i]); d != "" {
							t.Errorf("%s: the record of %+v differs from what was written: %s", s.name, r.Scope, d)
						}
					}
					if !slices.Equal(got, s.want) {
						t.Errorf("%s: Find gives the records %v, want %v", s.name, got, s.want)
					}
				}
				if found, err := f.Store.Find(within(t), idempotency.Search{Tenant: &a}, 10); err == nil {
					t.Errorf("a search for nothing gives %d records", len(found))
				}
				wantDatabase(t, f, len(scopes))
			}},
		{"Store_DraftIsKeptFromTheClaimOn_see1",
			"A customer names his draft when he asks what became of his order: while it is being made, when it was made, and when nobody knows.",
			func(t *testing.T, f Fixture) {
				c := claim("draft-atomic")
				complete(t, f, c, "order")
				wantRecord(t, f.Store, c, recorded(c, success))
				d := claim("draft-refused")
				if err := begin(t, f.Store, d).Refuse(within(t), success); err != nil {
					t.Fatalf("Refuse: %v", err)
				}
				wantRecord(t, f.Store, d, recorded(d, success))
				f.Age(t, 73*time.Hour)
				c = again(c)
				c.DraftID = ""
				complete(t, f, c, "second life")
				wantRecord(t, f.Store, c, recorded(c, success))
				c = again(c)
				f.Age(t, 73*time.Hour)
				c.DraftID = "draft-third"
				complete(t, f, c, "third life")
				wantRecord(t, f.Store, c, recorded(c, success))

				e := leased("draft-leased")
				first := e.DraftID
				l := over(t, f, e)
				wantLeased(t, f.Store, e, inProgress(e, l.Grant()))
				wantDraft := func(when, draft string) {
					t.Helper()
					if rec := met(t, f.Store, e); rec.DraftID != draft {
						t.Errorf("%s the draft is %q, want %q", when, rec.DraftID, draft)
					}
				}
				e = again(e)
				e.DraftID = ""
				l = take(t, f.Store, e)
				wantDraft("after a takeover that names none,", first)
				if err := l.Release(within(t)); err != nil {
					t.Fatalf("Release: %v", err)
				}
				wantDraft("after a failure", first)
				e = again(e)
				e.DraftID = "draft-other"
				l = take(t, f.Store, e)
				wantDraft("after a retry that names another,", "draft-other")
				wrote(t, f, l, "leased")
				completed(t, l)
				wantDraft("when completed", "draft-other")
				f.Age(t, 73*time.Hour)
				e = again(e)
				e.DraftID = ""
				take(t, f.Store, e)
				wantDraft("in a new life that names none,", "")
				wantDatabase(t, f, 3, "order", "second life", "third life", "leased")
			}},
		{"Store_StuckIsFoundAndOnlyThat",
			"Support asks what hangs or has failed. What somebody is at work on or what is done would hide it, and nothing that waits for a person may be missing.",
			func(t *testing.T, f Fixture) {
				completed(t, over(t, f, leased("completed")))
				if err := over(t, f, leased("released")).Release(within(t)); err != nil {
					t.Fatalf("Release: %v", err)
				}
				freed := leased("freed")
				over(t, f, freed)
				if ok, err := f.Store.Free(within(t), freed.ID, freed.Attempt); err != nil || !ok {
					t.Fatalf("Free gives (%v, %v), want true", ok, err)
				}
				complete(t, f, claim("atomic"), "order")
				const operation = "storetest.charge"
				plant := func(key string, state idempotency.RecordState, expired bool, left time.Duration) idempotency.Claim {
					c := leased(key)
					c.Scope.Operation = operation
					c = at(c, c.Scope)
					rec := inProgress(c, idempotency.Grant{Attempt: 1, Fence: 1})
					rec.State, rec.Expired, rec.LeaseLeft = state, expired, left
					f.Plant(t, c.ID, rec)
					f.Age(t, time.Second)
					return c
				}
				plant("live", idempotency.InProgress, false, time.Hour)
				plant("live and expired", idempotency.InProgress, true, time.Hour)
				plant("failed and expired", idempotency.Failed, true, 0)
				plant("dead and expired", idempotency.InProgress, true, 0)
				taken := plant("dead, then taken over", idempotency.InProgress, false, 0)
				over(t, f, leased("dead, of another operation"))
				l := over(t, f, leased("dead, then renewed"))
				want := func(when string, q idempotency.Search, limit int, keys ...string) {
					t.Helper()
					q.Stuck = true
					found, err := f.Store.Find(within(t), q, limit)
					var got []string
					for _, r := range found {
						got = append(got, r.Scope.Key)
						if r.State != idempotency.Failed && (r.State != idempotency.InProgress || r.LeaseLeft != 0 || r.LeaseUntil.IsZero()) {
							t.Errorf("%s: %s is said to be stuck", when, show(&r.Record))
						}
					}
					if err != nil || !slices.Equal(got, keys) {
						t.Errorf("%s: stuck are %q (%v), want %q", when, got, err, keys)
					}
				}
				of := operation
				rest := []string{"dead and expired", "failed and expired", "freed", "released"}
				want("all", idempotency.Search{}, 10, append([]string{"dead, then renewed", "dead, of another operation", "dead, then taken over"}, rest...)...)
				want("the youngest two", idempotency.Search{}, 2, "dead, then renewed", "dead, of another operation")
				want("of an operation", idempotency.Search{Operation: &of}, 10, "dead, then taken over", "dead and expired", "failed and expired")
				want("of a draft", idempotency.Search{DraftID: taken.DraftID}, 10, taken.Scope.Key)
				want("of a key that has failed", idempotency.Search{Key: "released"}, 10, "released")
				want("of a key that is done", idempotency.Search{Key: "completed"}, 10)
				want("of a key that somebody is at work on", idempotency.Search{Key: "live"}, 10)
				take(t, f.Store, again(taken))
				if err := l.Renew(within(t)); err != nil {
					t.Fatalf("Renew: %v", err)
				}
				want("after a takeover and a renewal", idempotency.Search{}, 10, append([]string{"dead, of another operation"}, rest...)...)
				f.Age(t, overdue)
				want("when their leases are over as well", idempotency.Search{}, 10, append([]string{"dead, then renewed", "dead, of another operation", taken.Scope.Key}, rest...)...)
			}},
		{"Store_CountCountsByOperationStateAndWhatIsOver",
			"Whoever watches the records sees what hangs and what no purge has removed yet, and no number is made up.",
			func(t *testing.T, f Fixture) {
				want := map[idempotency.Count]int64{}
				wantCounts := func(when string) {
					t.Helper()
					counts, err := f.Store.Count(within(t))
					if err != nil {
						t.Fatalf("%s: Count: %v", when, err)
					}
					got := make(map[idempotency.Count]int64, len(counts))
					for _, c := range counts {
						n := c.Records
						c.Records = 0
						if got[c] != 0 || n < 1 {
							t.Errorf("%s: Count gives %+v with %d records, after %d of the same", when, c, n, got[c])
						}
						got[c] = n
					}
					if !maps.Equal(got, want) {
						t.Errorf("%s: Count gives %+v,\nwant %+v", when, got, want)
					}
				}
				wantCounts("without records")
				const order, charge = "POST /v1/orders storetest.order", "storetest.charge"
				for i, r := range []struct {
					operation string
					state     idempotency.RecordState
					expired   bool
					left      time.Duration
					n         int64
				}{
					{order, idempotency.InProgress, false, length, 2},
					{order, idempotency.InProgress, true, length, 1},
					{order, idempotency.InProgress, false, 0, 3},
					{order, idempotency.InProgress, true, 0, 1},
					{order, idempotency.Completed, false, 0, 4},
					{order, idempotency.Completed, true, 0, 2},
					{order, idempotency.Failed, false, 0, 1},
					{order, idempotency.Failed, true, 0, 2},
					{charge, idempotency.InProgress, false, 0, 2},
					{charge, idempotency.Completed, false, 0, 1},
				} {
					for n := range r.n {
						c := leased(fmt.Sprint("count-", i, "-", n))
						c.Scope.Operation = r.operation
						c = at(c, c.Scope)
						rec := inProgress(c, idempotency.Grant{Attempt: 1, Fence: 1})
						rec.State, rec.Expired, rec.LeaseLeft = r.state, r.expired, r.left
						f.Plant(t, c.ID, rec)
					}
					want[idempotency.Count{Operation: r.operation, State: r.state, Stuck: r.state == idempotency.InProgress && r.left == 0, Expired: r.expired}] = r.n
				}
				completed(t, take(t, f.Store, leased("count-completed"))) // these two have had a lease that will be over
				want[idempotency.Count{Operation: order, State: idempotency.Completed}]++
				if err := take(t, f.Store, leased("count-released")).Release(within(t)); err != nil {
					t.Fatalf("Release: %v", err)
				}
				want[idempotency.Count{Operation: order, State: idempotency.Failed}]++
				wantCounts("with leases that live and such as are over")
				f.Age(t, overdue)
				for c, n := range maps.Clone(want) {
					if c.State == idempotency.InProgress && !c.Stuck {
						delete(want, c)
						c.Stuck = true
						want[c] += n
					}
				}
				wantCounts("when all leases are over")
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				if counts, err := f.Store.Count(ctx); !errors.Is(err, context.Canceled) {
					t.Errorf("Count under a context that has ended gives %d counts and %v", len(counts), err)
				}
			}},
		{"Store_FindShowsWhatHappenedWhen",
			"Whether to release a key is decided by when it was claimed, how long its lease still runs and when it ends.",
			func(t *testing.T, f Fixture) {
				c := claim("when-1")
				complete(t, f, c, "order")
				s := standing(t, f, c)
				if !s.LeaseUntil.IsZero() {
					t.Errorf("the record of an Atomic command has had a lease until %v", s.LeaseUntil)
				}
				if d := s.ExpiresAt.Sub(s.CreatedAt); d < c.Retention-slack || d > c.Retention+slack || s.CompletedAt.Before(s.CreatedAt) {
					t.Errorf("a record was created at %v, completed at %v and expires at %v", s.CreatedAt, s.CompletedAt, s.ExpiresAt)
				}
				if s.Attempts != 1 {
					t.Errorf("the record of an Atomic command counts %d attempts", s.Attempts)
				}
				f.Age(t, time.Hour)
				later := standing(t, f, c)
				for name, d := range map[string]time.Duration{
					"creation": s.CreatedAt.Sub(later.CreatedAt), "completion": s.CompletedAt.Sub(later.CompletedAt), "expiry": s.ExpiresAt.Sub(later.ExpiresAt),
				} {
					if d != time.Hour {
						t.Errorf("an hour later the %s has moved by %v", name, d)
					}
				}
			}},
		{"Store_FreeLetsThePayloadRunAtOnce_L22",
			"A person who unblocks a key lets the same payload run, and only that; whoever held the key is out, even if he is alive.",
			func(t *testing.T, f Fixture) {
				c := leased("free-1")
				c.MaxAttempts = 2
				l := take(t, f.Store, c)
				for range 2 { // the last one is one more than is allowed
					f.Age(t, overdue)
					c = again(c)
					l = take(t, f.Store, c)
				}
				f.Age(t, overdue)
				refused(t, f.Store, again(c)) // used up
				if freed, err := f.Store.Free(within(t), c.ID, c.Attempt); err != nil || !freed {
					t.Fatalf("Free: %v, %v", freed, err)
				}
				rec := look(t, f.Store, c)
				if rec == nil || rec.State != idempotency.Failed || rec.Attempts != 1 || rec.Attempt == c.Attempt || rec.Hash != c.Hash || rec.Fence != l.Grant().Fence {
					t.Errorf("the record that was freed is %s", show(rec))
				}
				if freed, err := f.Store.Free(within(t), c.ID, c.Attempt); err != nil || freed {
					t.Errorf("Free of what was seen before it was freed gives (%v, %v), want false", freed, err)
				}
				if err := l.Renew(within(t)); !errors.Is(err, idempotency.ErrLeaseLost) {
					t.Errorf("Renew of the one who was put out says %v, want ErrLeaseLost", err)
				}
				refused(t, f.Store, corrected(c))
				next := again(c)
				m := take(t, f.Store, next)
				if g := m.Grant(); g.Attempt != 2 || g.TookOver || g.Reused {
					t.Errorf("the grant after Free is %+v", g)
				}
				if err := l.Complete(within(t), success); !errors.Is(err, idempotency.ErrLost) {
					t.Errorf("Complete of the one who was put out says %v, want ErrLost", err)
				}
				wrote(t, f, m, "order")
				completed(t, m)
				wantDatabase(t, f, 1, "order")
				if freed, err := f.Store.Free(within(t), c.ID, next.Attempt); err != nil || freed {
					t.Errorf("Free of a completed record gives (%v, %v), want false", freed, err)
				}
			}},
		{"Store_EraseTakesTheOutcomeAndKeepsTheKey_T15",
			"Personal data goes when a person asks for it; the key keeps its protection, or the retry of what was erased would be new work.",
			func(t *testing.T, f Fixture) {
				c := leased("erase-1")
				l := take(t, f.Store, c)
				if changed, err := f.Store.Erase(within(t), c.ID, c.Attempt); err != nil || changed {
					t.Errorf("Erase of a record in progress gives (%v, %v), want false", changed, err)
				}
				completed(t, l)
				if found, err := f.Store.Find(within(t), idempotency.Search{ExternalRef: success.ExternalRef}, 10); err != nil || len(found) != 1 {
					t.Errorf("Find by the reference gives %d records and %v", len(found), err)
				}
				if changed, err := f.Store.Erase(within(t), c.ID, c.Attempt); err != nil || !changed {
					t.Fatalf("Erase: %v, %v", changed, err)
				}
				want := finished(c, l.Grant(), idempotency.Completion{ResultType: tombstoneType})
				want.DraftID = ""
				wantLeased(t, f.Store, c, want)
				for by, q := range map[string]idempotency.Search{"reference": {ExternalRef: success.ExternalRef}, "draft": {DraftID: c.DraftID}} {
					if found, err := f.Store.Find(within(t), q, 10); err != nil || len(found) != 0 {
						t.Errorf("after Erase, Find by the %s gives %d records and %v", by, len(found), err)
					}
				}
				refused(t, f.Store, again(c))
				refused(t, f.Store, corrected(c))
				atomic := again(c)
				atomic.Lease = 0
				a := begin(t, f.Store, atomic)
				if a.Found() == nil || a.Found().ResultType != tombstoneType {
					t.Errorf("an Atomic attempt finds %s", show(a.Found()))
				}
				if err := a.Complete(within(t), success); !errors.Is(err, idempotency.ErrLost) {
					t.Errorf("Complete of an Atomic attempt over what was erased says %v, want ErrLost", err)
				}
				wantLeased(t, f.Store, c, want)

				d := claim("erase-2") // of an Atomic command
				complete(t, f, d, "order")
				if changed, err := f.Store.Erase(within(t), d.ID, d.Attempt); err != nil || !changed {
					t.Fatalf("Erase: %v, %v", changed, err)
				}
				want = recorded(d, idempotency.Completion{ResultType: tombstoneType})
				want.DraftID = ""
				wantRecord(t, f.Store, d, want)

				e := leased("erase-3") // of one that has failed
				if err := take(t, f.Store, e).Release(within(t)); err != nil {
					t.Fatalf("Release: %v", err)
				}
				if changed, err := f.Store.Erase(within(t), e.ID, met(t, f.Store, e).Attempt); err != nil || !changed {
					t.Fatalf("Erase: %v, %v", changed, err)
				}
				if rec := met(t, f.Store, e); rec.State != idempotency.Failed || rec.DraftID != "" {
					t.Errorf("what is left of a failed one is %s with the draft %q", show(rec), rec.DraftID)
				}
				wantDatabase(t, f, 3, "order")
			}},
	}
}

// purgeCases are those of Purge beyond the table of transitions.
func purgeCases() []specCase {
	// remain are the keys of the claims that have a record.
	remain := func(t *testing.T, f Fixture, claims []idempotency.Claim) (keys []string) {
		t.Helper()
		for _, c := range claims {
			if look(t, f.Store, c) != nil {
				keys = append(keys, c.Scope.Key)
			}
		}
		return keys
	}
	purge := func(t *testing.T, f Fixture, b idempotency.PurgeBatch, want idempotency.Purged) {
		t.Helper()
		if got, err := f.Store.Purge(within(t), b); err != nil || got != want {
			t.Errorf("Purge of %+v has done %+v with %v, want %+v", b, got, err, want)
		}
	}
	return []specCase{
		{"Store_PurgeRemovesWhatHasExpiredOldestFirstAndNothingElse_T04",
			"The table does not grow for ever, and no key loses its protection a minute early: neither what is kept nor what is at work.",
			func(t *testing.T, f Fixture) {
				var claims []idempotency.Claim
				for _, hours := range []time.Duration{5, 2, 4, 1, 3, 200} {
					c := claim(fmt.Sprint("hours-", int(hours)))
					c.Retention = hours * time.Hour
					complete(t, f, c, c.Scope.Key)
					claims = append(claims, c)
				}
				for key, lease := range map[string]time.Duration{"live-lease": 200 * time.Hour, "dead-lease": time.Hour} {
					c := leased(key)
					c.Retention, c.Lease = 6*time.Hour, lease
					take(t, f.Store, c)
					claims = append(claims, c)
				}
				slices.SortFunc(claims, func(a, b idempotency.Claim) int { return strings.Compare(a.Scope.Key, b.Scope.Key) })
				step := func(removed int, keys ...string) {
					t.Helper()
					purge(t, f, idempotency.PurgeBatch{Limit: 2}, idempotency.Purged{Removed: removed})
					if got := remain(t, f, claims); !slices.Equal(got, keys) {
						t.Errorf("after the purge there are the records of %v, want %v", got, keys)
					}
				}
				step(0, "dead-lease", "hours-1", "hours-2", "hours-200", "hours-3", "hours-4", "hours-5", "live-lease")
				f.Age(t, 90*time.Minute)
				step(1, "dead-lease", "hours-2", "hours-200", "hours-3", "hours-4", "hours-5", "live-lease")
				f.Age(t, 100*time.Hour)
				step(2, "dead-lease", "hours-200", "hours-4", "hours-5", "live-lease")
				step(2, "dead-lease", "hours-200", "live-lease")
				step(1, "hours-200", "live-lease")
				step(0, "hours-200", "live-lease")
				f.Age(t, 100*time.Hour)
				step(2)
				if n := len(f.Rows(t)); n != 6 {
					t.Errorf("there are %d business rows, want 6", n)
				}
			}},
		{"Store_PurgeKeepsRecordsForItsGrace",
			"A clock that steps back brings expired keys to life again; they must still be there.",
			func(t *testing.T, f Fixture) {
				c := claim("grace-1")
				c.Retention = 24 * time.Hour
				complete(t, f, c, "order")
				f.Age(t, 26*time.Hour)
				purge(t, f, idempotency.PurgeBatch{Limit: 10, Grace: 3 * time.Hour}, idempotency.Purged{})
				wantDatabase(t, f, 1, "order")
				f.Age(t, 2*time.Hour)
				purge(t, f, idempotency.PurgeBatch{Limit: 10, Grace: 3 * time.Hour}, idempotency.Purged{Removed: 1})
				wantDatabase(t, f, 0, "order")
			}},
		{"Store_PurgeBuriesTombstonesAndRemembersThem_T03",
			"Where a second execution is worse than none, the key outlives its outcome; what it held of the outcome does not.",
			func(t *testing.T, f Fixture) {
				var claims []idempotency.Claim
				for i := range 3 {
					c := leased(fmt.Sprint("stone-", i))
					c.Retention, c.AfterExpiry = time.Duration(24+i)*time.Hour, idempotency.Tombstone
					l := take(t, f.Store, c)
					completed(t, l)
					claims = append(claims, c)
				}
				const remember = 1000 * time.Hour
				batch := idempotency.PurgeBatch{Limit: 2, Remember: remember}
				purge(t, f, batch, idempotency.Purged{})
				f.Age(t, 48*time.Hour)
				before := standing(t, f, claims[0])
				purge(t, f, batch, idempotency.Purged{Buried: 2})
				for i, c := range claims {
					if isStone := met(t, f.Store, c).ResultType == tombstoneType; isStone != (i < 2) {
						t.Errorf("record %d of three is a tombstone: %v", i, isStone)
					}
				}
				wantBecame(t, "the first", before, stored(t, f, claims[0]), buried, remember)
				purge(t, f, batch, idempotency.Purged{Buried: 1})
				purge(t, f, batch, idempotency.Purged{})
				for _, c := range claims {
					if rec := refused(t, f.Store, again(c)); rec.ResultType != tombstoneType || len(rec.Result) != 0 || rec.ExternalRef != "" || rec.DraftID != "" || rec.Hash != c.Hash {
						t.Errorf("a retry of %s meets %s", c.Scope.Key, show(rec))
					}
				}
				f.Age(t, 900*time.Hour)
				purge(t, f, batch, idempotency.Purged{})
				wantDatabase(t, f, 3)
				f.Age(t, 200*time.Hour)
				purge(t, f, batch, idempotency.Purged{Removed: 2})
				purge(t, f, batch, idempotency.Purged{Removed: 1})
				wantDatabase(t, f, 0)
			}},
		{"Store_PurgeLeavesAnOwnerAtWorkAlone_T10",
			"An attempt that outlived its lease and its retention and is about to commit keeps its record, and a purge does not wait for it.",
			func(t *testing.T, f Fixture) {
				if f.NoHint == nil {
					return // there is one writer at a time: a purge waits for it
				}
				c, idle := leased("purge-at-work-1"), leased("purge-idle-1")
				l := take(t, f.Store, c)
				take(t, f.Store, idle)
				f.Age(t, 73*time.Hour)
				wrote(t, f, l, "order")
				promptly(t, "Purge beside a business transaction", func() { l.Rollback(context.WithoutCancel(t.Context())) }, func(ctx context.Context) {
					if got, err := f.Store.Purge(ctx, idempotency.PurgeBatch{Limit: 10}); err != nil || got.Removed != 1 {
						t.Errorf("Purge beside a business transaction has done %+v with %v, want one removal", got, err)
					}
				})
				completed(t, l)
				wantDatabase(t, f, 1, "order")
			}},
		{"Store_SeveralPurgesShareTheWork_T10",
			"Every replica purges. Together they remove each record once, and no live one.",
			func(t *testing.T, f Fixture) {
				const dead, live = 40, 5
				for i := range dead + live {
					c := leased(fmt.Sprint("several-", i))
					rec := inProgress(again(c), idempotency.Grant{Attempt: 1, Fence: 1})
					rec.Expired = true
					if i >= dead {
						rec.LeaseLeft = time.Hour
					}
					f.Plant(t, c.ID, rec)
				}
				ctx := within(t)
				removed := make([]int, 4)
				var wg sync.WaitGroup
				for i := range removed {
					wg.Go(func() {
						for range dead { // a bound: each step that finds something removes at least one
							done, err := f.Store.Purge(ctx, idempotency.PurgeBatch{Limit: 3})
							if err != nil {
								t.Errorf("Purge: %v", err)
								return
							}
							if done.Removed > 3 {
								t.Errorf("a step of at most 3 has removed %d", done.Removed)
							}
							removed[i] += done.Removed
							if done.Removed == 0 {
								return
							}
						}
					})
				}
				wg.Wait()
				total := 0
				for _, n := range removed {
					total += n
				}
				for range dead { // what was locked when the others looked
					done, err := f.Store.Purge(ctx, idempotency.PurgeBatch{Limit: 3})
					if err != nil {
						t.Fatalf("Purge: %v", err)
					}
					if done.Removed == 0 {
						break
					}
					total += done.Removed
				}
				if total != dead {
					t.Errorf("the purges say that they have removed %d records of %d", total, dead)
				}
				wantDatabase(t, f, live)
			}},
	}
}
