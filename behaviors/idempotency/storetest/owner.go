package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tekil-go/tekil/behaviors/idempotency"
)

// ownerCases are those of what an owner does with its lease.
func ownerCases() []specCase {
	return []specCase{
		{"Store_BusinessRowsAndOutcomeAreOneCommit_rec1",
			"Whoever sees the order sees its outcome as well; before that, both are to come.",
			func(t *testing.T, f Fixture) {
				c := leased("one-commit-1")
				l := take(t, f.Store, c)
				ctx, returned := context.WithCancel(l.Context(within(t)))
				err := f.InTx(ctx, func(ctx context.Context) error { return f.Insert(ctx, "in the function") })
				if err != nil {
					t.Fatalf("InTx: %v", err)
				}
				if err := f.Insert(ctx, "after the function"); err != nil {
					t.Fatalf("Insert while the business transaction is open: %v", err)
				}
				if !l.Open() {
					t.Error("Open is false after InTx has returned nil")
				}
				wantDatabase(t, f, 1)
				wantLeased(t, f.Store, c, inProgress(c, l.Grant()))
				returned() // the handler's context has ended before its attempt is completed
				completed(t, l)
				wantDatabase(t, f, 1, "in the function", "after the function")
				wantLeased(t, f.Store, c, finished(c, l.Grant(), success))
				if rec := refused(t, f.Store, again(c)); leasedDifference(*rec, finished(c, l.Grant(), success)) != "" {
					t.Errorf("a duplicate after the completion gets %s", show(rec))
				}
			}},
		{"Store_LeasedAttemptNeedsNoTransaction",
			"A handler whose whole effect lies outside has nothing to write; its outcome is recorded all the same.",
			func(t *testing.T, f Fixture) {
				c := leased("no-transaction-1")
				l := take(t, f.Store, c)
				completed(t, l)
				wantDatabase(t, f, 1)
				wantLeased(t, f.Store, c, finished(c, l.Grant(), success))

				d := leased("no-transaction-2") // what is written before InTx is written at once, and by itself
				m := take(t, f.Store, d)
				if err := f.Insert(m.Context(within(t)), "at once"); err != nil {
					t.Fatalf("Insert before InTx: %v", err)
				}
				wantDatabase(t, f, 2, "at once")
				if err := m.Refuse(within(t), refusal); err != nil {
					t.Fatalf("Refuse: %v", err)
				}
				wantDatabase(t, f, 2, "at once")
				wantLeased(t, f.Store, d, finished(d, m.Grant(), refusal))
			}},
		{"Store_LeasedOutcomesComeBackByteForByte_BR36",
			"A store that normalises results loses them when the outside world has been called already.",
			func(t *testing.T, f Fixture) {
				for i, result := range [][]byte{[]byte(`null`), []byte(`""`), []byte(`{"b":1,"a":2,"a":3}`), []byte("x\x00y\xff"), []byte(strings.Repeat("0123456789", 30_000))} {
					c := leased(fmt.Sprint("leased-bytes-", i))
					l := take(t, f.Store, c)
					done := idempotency.Completion{Result: result, ResultType: "result/1", ExternalRef: "auth-ß"}
					if err := l.Complete(within(t), done); err != nil {
						t.Errorf("Complete with the result %.40q: %v", result, err)
						continue
					}
					wantLeased(t, f.Store, c, finished(c, l.Grant(), done))
				}
			}},
		{"Store_LeasedRefusalUndoesTheRowsAndKeepsTheOutcome_R03",
			"A final refusal is an outcome (rule rec-7), and what the handler wrote before it refused is not part of it.",
			func(t *testing.T, f Fixture) {
				c := leased("leased-refuse-1")
				l := take(t, f.Store, c)
				wrote(t, f, l, "undone")
				if err := l.Refuse(within(t), refusal); err != nil {
					t.Fatalf("Refuse: %v", err)
				}
				wantDatabase(t, f, 1)
				wantLeased(t, f.Store, c, finished(c, l.Grant(), refusal))
			}},
		{"Store_ReleaseUndoesTheRowsAndFreesTheKeyForItsPayload_R09",
			"An attempt that is known to have left nothing behind lets its payload run at once (rule rec-6); another payload under the same key stays a conflict.",
			func(t *testing.T, f Fixture) {
				for name, open := range map[string]bool{"with rows": true, "without a transaction": false} {
					c := leased("release " + name)
					l := take(t, f.Store, c)
					if open {
						wrote(t, f, l, "undone")
					}
					if err := l.Release(within(t)); err != nil {
						t.Fatalf("Release %s: %v", name, err)
					}
					if rows := f.Rows(t); len(rows) != 0 {
						t.Errorf("Release has left the rows %q", rows)
					}
					rec := met(t, f.Store, c)
					want := inProgress(c, l.Grant())
					want.State, want.Attempt = idempotency.Failed, rec.Attempt
					if d := leasedDifference(*rec, want); d != "" {
						t.Errorf("%s: the released record differs: %s", name, d)
					}
					if rec.Attempt == c.Attempt || rec.Attempt == (idempotency.AttemptID{}) {
						t.Errorf("%s: the released record has the attempt %x, want a new one", name, rec.Attempt)
					}
					if rec := refused(t, f.Store, corrected(c)); rec.State != idempotency.Failed {
						t.Errorf("%s: another payload meets %s", name, show(rec))
					}
					next := again(c)
					m := take(t, f.Store, next)
					if g := m.Grant(); g.Attempt != 2 || g.TookOver || g.Reused || g.Fence <= l.Grant().Fence {
						t.Errorf("%s: the grant after a release is %+v", name, g)
					}
					wantLeased(t, f.Store, c, inProgress(next, m.Grant()))
				}
			}},
		{"Store_RollbackKeepsTheKeyUntilTheLeaseIsOver_R08",
			"Whether the outside world has done its part is not known, so nobody may run before the lease is over, and the record may not say failed (rule rec-3).",
			func(t *testing.T, f Fixture) {
				c := leased("keep-1")
				l := take(t, f.Store, c)
				wrote(t, f, l, "undone")
				before := stored(t, f, c)
				l.Rollback(within(t))
				wantDatabase(t, f, 1)
				if d := change(before, stored(t, f, c)); d != "" {
					t.Errorf("Rollback has changed the record: %s", d)
				}
				refused(t, f.Store, again(c))
				f.Age(t, overdue)
				refused(t, f.Store, corrected(c))
				m := take(t, f.Store, again(c))
				if g := m.Grant(); g.Attempt != 2 || !g.TookOver {
					t.Errorf("the grant after an attempt of unknown end is %+v", g)
				}
			}},
		{"Store_LeaseThatEndedIsClosed",
			"A goroutine that a handler left behind must not write into what was decided already, nor open a transaction of its own beside it.",
			func(t *testing.T, f Fixture) {
				for name, end := range map[string]func(l idempotency.Lease) error{
					"Complete": func(l idempotency.Lease) error { return l.Complete(within(t), success) },
					"Refuse":   func(l idempotency.Lease) error { return l.Refuse(within(t), refusal) },
					"Release":  func(l idempotency.Lease) error { return l.Release(within(t)) },
					"Rollback": func(l idempotency.Lease) error { l.Rollback(within(t)); return nil },
				} {
					c := leased("leased-closed-" + name)
					l := take(t, f.Store, c)
					ctx := l.Context(within(t))
					var inner context.Context
					if err := f.InTx(ctx, func(ctx context.Context) error { inner = ctx; return f.Insert(ctx, "before "+name) }); err != nil {
						t.Fatalf("InTx: %v", err)
					}
					if err := end(l); err != nil {
						t.Fatalf("%s: %v", name, err)
					}
					if l.Open() {
						t.Errorf("Open is true after %s", name)
					}
					before := stored(t, f, c)
					for which, ctx := range map[string]context.Context{"the handler": ctx, "its transaction": inner} {
						if err := f.Insert(ctx, "late after "+name); err == nil {
							t.Errorf("a row was written through the context of %s after %s", which, name)
						}
						ran := false
						if err := f.InTx(ctx, func(context.Context) error { ran = true; return nil }); err == nil || ran {
							t.Errorf("InTx on the context of %s after %s gives %v and ran its function: %v", which, name, err, ran)
						}
					}
					l.Rollback(within(t)) // does nothing
					if d := change(before, stored(t, f, c)); d != "" {
						t.Errorf("what came after %s has changed the record: %s", name, d)
					}
				}
				wantDatabase(t, f, 4, "before Complete")
			}},
		{"Store_RenewExtendsTheLease_L13",
			"A handler that takes longer than its lease stays the only one for as long as it gives signs of life.",
			func(t *testing.T, f Fixture) {
				c := leased("renew-1")
				l := take(t, f.Store, c)
				f.Age(t, 4*time.Minute)
				wantLeaseLeft(t, f.Store, c, time.Minute)
				before := standing(t, f, c)
				renew := func() {
					t.Helper()
					if err := l.Renew(within(t)); err != nil {
						t.Errorf("Renew: %v", err)
					}
				}
				renew()
				wantLeaseLeft(t, f.Store, c, length)
				after := standing(t, f, c)
				before.LeaseUntil = after.LeaseUntil
				if d := change(before, after); d != "" {
					t.Errorf("Renew has changed more than the lease: %s", d)
				}
				f.Age(t, overdue)
				renew() // nobody has taken it over
				wantLeaseLeft(t, f.Store, c, length)
				refused(t, f.Store, again(c))

				long := leased("renew-2") // what is longer stays as it is
				f.Plant(t, long.ID, idempotency.Record{
					Scope: long.Scope, Hash: long.Hash, State: idempotency.InProgress, Attempt: long.Attempt, LeaseLeft: time.Hour,
				})
				l = take(t, f.Store, long)
				renew()
				wantLeaseLeft(t, f.Store, long, time.Hour)

				ended, cancel := context.WithCancel(within(t))
				cancel()
				if err := l.Renew(ended); err == nil || errors.Is(err, idempotency.ErrLeaseLost) {
					t.Errorf("Renew on an ended context says %v, want an error that says nothing about the lease", err)
				}
			}},
		{"Store_RenewDoesNotWaitForTheAttemptsOwnTransaction_E41",
			"The business transaction holds the record; a renewal that waited behind it would hold the handler's own connection, or be taken for a lost lease.",
			func(t *testing.T, f Fixture) {
				c := leased("renew-open-1")
				l := take(t, f.Store, c)
				wrote(t, f, l, "order")
				promptly(t, "Renew while the business transaction is open", func() { l.Rollback(context.WithoutCancel(t.Context())) }, func(ctx context.Context) {
					if err := l.Renew(ctx); err != nil {
						t.Errorf("Renew while the business transaction is open: %v", err)
					}
				})
				completed(t, l)
				wantDatabase(t, f, 1, "order")
			}},
		lateOwnerCase(),
		{"Store_SlowOwnerWhomNobodyReplacedCompletes_L10",
			"A lease that is over gives others a right and takes nothing from its owner: work that was done outside is not thrown away because it took long.",
			func(t *testing.T, f Fixture) {
				for name, age := range map[string]time.Duration{"lease over": overdue, "expired": 73 * time.Hour} {
					c := leased("slow, " + name)
					l := take(t, f.Store, c)
					f.Age(t, age)
					wrote(t, f, l, name)
					completed(t, l)
					want := finished(c, l.Grant(), success)
					want.Expired = age > c.Retention
					wantLeased(t, f.Store, c, want)

					c = leased("slow without a transaction, " + name)
					l = take(t, f.Store, c)
					f.Age(t, age)
					completed(t, l)

					c = leased("slow and refused, " + name)
					l = take(t, f.Store, c)
					f.Age(t, age)
					if err := l.Refuse(within(t), refusal); err != nil {
						t.Errorf("%s: Refuse: %v", name, err)
					}

					c = leased("slow and released, " + name)
					l = take(t, f.Store, c)
					f.Age(t, age)
					if err := l.Release(within(t)); err != nil {
						t.Errorf("%s: Release: %v", name, err)
					}
					if rec := look(t, f.Store, c); rec == nil || rec.State != idempotency.Failed {
						t.Errorf("%s: the released record is %s", name, show(rec))
					}
				}
				wantDatabase(t, f, 8, "lease over", "expired")
			}},
		{"Store_OneOwnerCommitsOnce_E38",
			"One claim that two goroutines or two late packets complete is one piece of work.",
			func(t *testing.T, f Fixture) {
				c := leased("twice-1")
				l, twin := take(t, f.Store, c), take(t, f.Store, c)
				wrote(t, f, l, "first")
				completed(t, l)
				if err := writes(t, f, twin, "second"); !errors.Is(err, idempotency.ErrLeaseLost) {
					t.Errorf("InTx of an attempt that has been completed says %v, want ErrLeaseLost", err)
				}
				if err := twin.Complete(within(t), idempotency.Completion{Result: []byte(`"second"`), ResultType: "result/1"}); !errors.Is(err, idempotency.ErrLost) {
					t.Errorf("Complete of an attempt that has been completed says %v, want ErrLost", err)
				}
				wantLeased(t, f.Store, c, finished(c, l.Grant(), success))

				const side = 4
				for round := range 5 {
					c := leased(fmt.Sprint("twice at once ", round))
					twins := make([]idempotency.Lease, side)
					for i := range twins {
						twins[i] = take(t, f.Store, c)
					}
					won := make([]bool, side)
					ctx := within(t)
					start := make(chan struct{})
					var wg sync.WaitGroup
					for i, l := range twins {
						wg.Go(func() {
							<-start
							note := fmt.Sprintf("%d by %d", round, i)
							if err := f.InTx(l.Context(ctx), func(ctx context.Context) error { return f.Insert(ctx, note) }); err == nil {
								won[i] = l.Complete(ctx, success) == nil
							}
						})
					}
					close(start)
					wg.Wait()
					var notes []string
					for i, w := range won {
						if w {
							notes = append(notes, fmt.Sprintf("%d by %d", round, i))
						}
					}
					rows := slices.DeleteFunc(f.Rows(t), func(note string) bool { return !strings.HasPrefix(note, fmt.Sprint(round, " by ")) })
					if len(notes) != 1 || !slices.Equal(rows, notes) {
						t.Errorf("round %d: the rows of %q were reported as committed, and there are %q", round, notes, rows)
					}
				}
			}},
		{"Store_OwnerInItsTransactionIsNotReplaced_L11",
			"From the first statement of the business transaction on, the work is as good as done; a takeover then would make it void for nothing.",
			func(t *testing.T, f Fixture) {
				if f.NoHint == nil {
					return // there is one writer at a time: whoever comes waits for it
				}
				c := leased("at-work-1")
				l := over(t, f, c)
				wrote(t, f, l, "order")
				other, rec, err := f.Store.Lease(within(t), again(c))
				if other != nil {
					other.Rollback(within(t))
				}
				if other != nil || !errors.Is(err, idempotency.ErrBusy) {
					t.Errorf("a takeover while the owner is in its transaction gives (%v, %s, %v), want ErrBusy", other != nil, show(rec), err)
				}
				completed(t, l)
				if rec := refused(t, f.Store, again(c)); rec.State != idempotency.Completed || rec.Attempt != c.Attempt {
					t.Errorf("after the owner's commit the challenger gets %s", show(rec))
				}
				wantDatabase(t, f, 1, "order")
			}},
		{"Store_ReleaseBurnsTheToken_X08",
			"The answer to COMMIT was lost and the attempt is given up: a COMMIT that arrives after that must find that the key is not its own.",
			func(t *testing.T, f Fixture) {
				c := leased("burnt-1")
				l, late := take(t, f.Store, c), take(t, f.Store, c)
				if err := l.Release(within(t)); err != nil {
					t.Fatalf("Release: %v", err)
				}
				before := stored(t, f, c)
				if err := writes(t, f, late, "late"); !errors.Is(err, idempotency.ErrLeaseLost) {
					t.Errorf("InTx under a token that was burnt says %v, want ErrLeaseLost", err)
				}
				if err := late.Complete(within(t), success); !errors.Is(err, idempotency.ErrLost) {
					t.Errorf("Complete under a token that was burnt says %v, want ErrLost", err)
				}
				if d := change(before, stored(t, f, c)); d != "" {
					t.Errorf("a late owner has changed the record: %s", d)
				}

				d := leased("burnt-2") // and where the COMMIT has arrived, there is nothing left to give up
				l, late = take(t, f.Store, d), take(t, f.Store, d)
				completed(t, l)
				if err := late.Release(within(t)); !errors.Is(err, idempotency.ErrLost) {
					t.Errorf("Release of what has been completed says %v, want ErrLost", err)
				}
				wantLeased(t, f.Store, d, finished(d, l.Grant(), success))
				wantDatabase(t, f, 2)
			}},
		{"Store_OutcomeThatCouldNotBeSentIsSentAgain_X12",
			"The database was away when the handler came back from the outside world. Its outcome can be written later; rows that were rolled back cannot, and no outcome is written without them.",
			func(t *testing.T, f Fixture) {
				ended, cancel := context.WithCancel(within(t))
				cancel()
				c := leased("sent-again-1")
				l := take(t, f.Store, c)
				if err := l.Complete(ended, success); err == nil || errors.Is(err, idempotency.ErrLost) {
					t.Errorf("Complete on an ended context says %v", err)
				}
				completed(t, l)
				wantLeased(t, f.Store, c, finished(c, l.Grant(), success))

				d := leased("sent-again-2")
				l = take(t, f.Store, d)
				wrote(t, f, l, "undone")
				if err := l.Complete(ended, success); err == nil || errors.Is(err, idempotency.ErrLost) {
					t.Errorf("Complete of rows on an ended context says %v", err)
				}
				if err := l.Complete(within(t), success); err == nil {
					t.Error("an outcome was written whose rows had been rolled back")
				}
				if err := l.Release(within(t)); err != nil {
					t.Fatalf("Release after a completion that could not be sent: %v", err)
				}
				take(t, f.Store, again(d))
				wantDatabase(t, f, 2)
			}},
		{"Store_LeaseKnowsItsOwnErrorsOnly",
			"Only what the database refused because of a concurrent transaction is tried again, and only a handler that ended its transaction has.",
			func(t *testing.T, f Fixture) {
				l := take(t, f.Store, leased("leased-transient-1"))
				ended := func() {
					t.Helper()
					if l.Ended() {
						t.Error("Ended is true and nobody has ended the business transaction")
					}
				}
				ended()
				wrote(t, f, l, "order")
				ended()
				for _, err := range []error{nil, errors.New("out of paper"), context.DeadlineExceeded, context.Canceled, idempotency.ErrLeaseLost} {
					if l.Transient(err) {
						t.Errorf("Transient(%v) is true", err)
					}
				}
			}},
	}
}

// lateOwnerCase lets an owner that was replaced end its attempt in every way, and looks at what that changes.
func lateOwnerCase() specCase {
	// What has become of the key. Each gives the claim under which the record is now.
	situations := []struct {
		name    string
		replace func(t *testing.T, f Fixture, c idempotency.Claim)
	}{
		{"taken over", func(t *testing.T, f Fixture, c idempotency.Claim) {
			f.Age(t, overdue)
			take(t, f.Store, again(c))
		}},
		{"taken over, that lease is over as well", func(t *testing.T, f Fixture, c idempotency.Claim) {
			f.Age(t, overdue)
			take(t, f.Store, again(c))
			f.Age(t, overdue)
		}},
		{"taken over and completed", func(t *testing.T, f Fixture, c idempotency.Claim) {
			f.Age(t, overdue)
			completed(t, take(t, f.Store, again(c)))
		}},
		{"taken over and failed", func(t *testing.T, f Fixture, c idempotency.Claim) {
			f.Age(t, overdue)
			if err := take(t, f.Store, again(c)).Release(within(t)); err != nil {
				t.Fatalf("Release: %v", err)
			}
		}},
		{"released by a person", func(t *testing.T, f Fixture, c idempotency.Claim) {
			if freed, err := f.Store.Free(within(t), c.ID, c.Attempt); err != nil || !freed {
				t.Fatalf("Free: %v, %v", freed, err)
			}
		}},
		{"expired and reused", func(t *testing.T, f Fixture, c idempotency.Claim) {
			f.Age(t, 73*time.Hour)
			take(t, f.Store, corrected(c))
		}},
		{"purged", func(t *testing.T, f Fixture, c idempotency.Claim) { purgeAll(t, f, c) }},
		{"purged and reused", func(t *testing.T, f Fixture, c idempotency.Claim) {
			purgeAll(t, f, c)
			take(t, f.Store, again(c))
		}},
		{"purged, reused and completed by an Atomic command", func(t *testing.T, f Fixture, c idempotency.Claim) {
			purgeAll(t, f, c)
			next := corrected(c)
			next.Lease, next.MaxAttempts = 0, 0
			if err := begin(t, f.Store, next).Complete(within(t), success); err != nil {
				t.Fatalf("Complete: %v", err)
			}
		}},
	}
	ends := []struct {
		name string
		end  func(t *testing.T, f Fixture, l idempotency.Lease) error
		want error
	}{
		{"Complete", func(t *testing.T, f Fixture, l idempotency.Lease) error {
			return l.Complete(within(t), idempotency.Completion{Result: []byte(`"late"`), ResultType: "result/1"})
		}, idempotency.ErrLost},
		{"Complete with rows", func(t *testing.T, f Fixture, l idempotency.Lease) error {
			ran := false
			err := f.InTx(l.Context(within(t)), func(ctx context.Context) error {
				ran = true
				return f.Insert(ctx, "late")
			})
			if !errors.Is(err, idempotency.ErrLeaseLost) || ran {
				t.Errorf("InTx says %v and ran its function: %v; want ErrLeaseLost and no run", err, ran)
			}
			if l.Open() {
				t.Error("Open is true after an InTx that found the lease lost")
			}
			return l.Complete(within(t), success)
		}, idempotency.ErrLost},
		{"Refuse", func(t *testing.T, f Fixture, l idempotency.Lease) error { return l.Refuse(within(t), refusal) }, idempotency.ErrLost},
		{"Release", func(t *testing.T, f Fixture, l idempotency.Lease) error { return l.Release(within(t)) }, idempotency.ErrLost},
		{"Renew", func(t *testing.T, f Fixture, l idempotency.Lease) error { return l.Renew(within(t)) }, idempotency.ErrLeaseLost},
		{"Rollback", func(t *testing.T, f Fixture, l idempotency.Lease) error { l.Rollback(within(t)); return nil }, nil},
	}
	return specCase{"Store_LateOwnerChangesNothing_L09_T09_BR06",
		"An owner that was slow and was replaced must not commit its work, nor clean up what is not its own any more: the third request would run beside the second.",
		func(t *testing.T, f Fixture) {
			for _, s := range situations {
				for _, e := range ends {
					c := leased(s.name + ", " + e.name)
					l := take(t, f.Store, c)
					s.replace(t, f, c)
					before, records := stored(t, f, c), f.Records(t)
					if before != nil && before.Attempt == c.Attempt {
						t.Fatalf("%s: the record is still the first owner's", s.name)
					}
					if err := e.end(t, f, l); !errors.Is(err, e.want) {
						t.Errorf("%s: %s of the late owner says %v, want %v", s.name, e.name, err, e.want)
					}
					if d := change(before, stored(t, f, c)); d != "" {
						t.Errorf("%s: %s of the late owner has changed the record: %s", s.name, e.name, d)
					}
					if n := f.Records(t); n != records {
						t.Errorf("%s: %s of the late owner has made %d records of %d", s.name, e.name, n, records)
					}
				}
			}
			if rows := f.Rows(t); len(rows) != 0 {
				t.Errorf("late owners have committed the rows %q", rows)
			}
		}}
}

// purgeAll lets the key of a claim expire and purges it.
func purgeAll(t *testing.T, f Fixture, c idempotency.Claim) {
	t.Helper()
	f.Age(t, 73*time.Hour)
	if _, err := f.Store.Purge(within(t), idempotency.PurgeBatch{Limit: 1000}); err != nil {
		t.Fatalf("Purge: %v", err)
	}
	if rec := look(t, f.Store, c); rec != nil {
		t.Fatalf("the record has not been purged: %s", show(rec))
	}
}
