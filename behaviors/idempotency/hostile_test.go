package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/requestctx"
)

// Attempts to make an answer and the record disagree. Those on a real database are in pgstore and sqlitestore.

// bury removes all records, as a purge does a long time later.
func bury(t *testing.T, b *bench) {
	t.Helper()
	b.mem.Age(1000 * time.Hour)
	if done, err := b.mem.Purge(context.Background(), idempotency.PurgeBatch{Limit: 10}); err != nil || done.Removed != 1 {
		t.Error(done, err)
	}
}

// A COMMIT has happened and its answer is lost. Before that can be found out, the record has gone or has another life: nobody can
// say any more that the work was refused, because it was not.
func TestWorkThatWasCommittedIsNotReportedAsRefusedWhenItsRecordHasGone(t *testing.T) {
	t.Parallel()
	for name, meanwhile := range map[string]func(t *testing.T, b *bench){
		"purged":  func(t *testing.T, b *bench) { bury(t, b) },
		"expired": func(_ *testing.T, b *bench) { b.mem.Age(1000 * time.Hour) },
		"in a new life for another payload": func(t *testing.T, b *bench) {
			b.mem.Age(1000 * time.Hour)
			if res, _, err := call(t.Context(), charges[leased](t, b), keyed(t, "key-00000001"), charge[leased]{Cart: "b"}); err != nil || res.Cart != "b" {
				t.Error(res, err)
			}
		},
		"purged and in a new life for another payload": func(t *testing.T, b *bench) {
			bury(t, b)
			if res, _, err := call(t.Context(), charges[leased](t, b), keyed(t, "key-00000001"), charge[leased]{Cart: "b"}); err != nil || res.Cart != "b" {
				t.Error(res, err)
			}
		},
	} {
		for _, alone := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, alone %t", name, alone), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					b := newBench()
					b.alone = alone
					b.stub.complete = func(_ context.Context, n int, complete func() error) error {
						err := complete()
						if n == 1 {
							if err != nil {
								t.Error(err)
							}
							meanwhile(t, b)
							return idempotency.ErrCommitUnknown
						}
						return err
					}
					_, out, err := call(t.Context(), charges[leased](t, b), keyed(t, "key-00000001"), charge[leased]{Cart: "a"})
					if name == "expired" { // it is still there and says whose it is
						if wantState(t, out, requestctx.StateExecuted); err != nil {
							t.Error(err)
						}
						return
					}
					wantError[*idempotency.OutcomeUnknownError](t, err, out, requestctx.StateUnknown)
				})
			})
		}
	}
}

// An attempt that is certain of its loss says so, whatever the record has become: this is what the doubt above must not change.
func TestWorkThatWasRefusedIsReportedAsRefusedWhenItsRecordHasGone(t *testing.T) {
	t.Parallel()
	b := newBench()
	b.stub.complete = func(_ context.Context, n int, complete func() error) error {
		if n == 1 {
			bury(t, b)
		}
		return complete()
	}
	b.alone = true
	_, out, err := call(t.Context(), charges[leased](t, b), keyed(t, "key-00000001"), charge[leased]{Cart: "a"})
	wantError[*idempotency.LeaseLostError](t, err, out, requestctx.StateLost)
}

// The outcome is erased between its COMMIT, whose answer is lost, and the look that finds out about it.
func TestOutcomeThatIsErasedBeforeItsAttemptFindsItIsUnavailableAndNotUnreadable_T15(t *testing.T) {
	t.Parallel()
	for name, final := range map[string]bool{"success": false, "refusal": true} {
		b := newBench()
		if final {
			b.then = func(context.Context, int) error { return idempotency.Final(errPaper) }
		}
		b.stub.complete = func(_ context.Context, n int, complete func() error) error {
			err := complete()
			if n == 1 {
				erase(t, b)
				return errors.Join(err, idempotency.ErrCommitUnknown)
			}
			return err
		}
		send, v := charges[leased](t, b), keyed(t, "key-00000001")
		_, out, err := call(t.Context(), send, v, charge[leased]{Cart: "a"})
		t.Log(name)
		wantError[*idempotency.ResultUnavailableError](t, err, out, requestctx.StateExecuted)
		_, out, err = call(t.Context(), send, v, charge[leased]{Cart: "a"})
		wantError[*idempotency.ExpiredError](t, err, out, requestctx.StateExpired)
		if b.runs != 1 {
			t.Errorf("%s: %d runs", name, b.runs)
		}
	}
}

type tenantKey struct{}

// A pool may choose the tenant's schema by what the context carries. A renewal that carries nothing looks into another schema,
// finds no record there and takes the key for lost.
func TestRenewalsCarryWhatTheRequestsContextCarries(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		renewed := 0
		b.stub.renew = func(ctx context.Context, _ int, renew func() error) error {
			if ctx.Value(tenantKey{}) != "tenant-a" {
				return fmt.Errorf("memory: %w", idempotency.ErrLeaseLost)
			}
			renewed++
			return renew()
		}
		b.first = func(ctx context.Context, _ int) error {
			time.Sleep(2 * idempotency.DefaultLease)
			return context.Cause(ctx)
		}
		ctx, hangUp := context.WithCancel(context.WithValue(t.Context(), tenantKey{}, "tenant-a"))
		time.AfterFunc(idempotency.DefaultLease/2, hangUp) // and not when it ends
		defer hangUp()
		_, out, err := call(ctx, charges[lasting](t, b), keyed(t, "key-00000001"), charge[lasting]{Cart: "a"})
		if wantState(t, out, requestctx.StateExecuted); err != nil || renewed < 5 {
			t.Errorf("%d renewals, %v", renewed, err)
		}
	})
}

// The attempt is made again under its claim, and the claim cannot be looked at: it stands, so the key is not free.
func TestKeyWhoseClaimStandsIsNotReportedAsFree_L18(t *testing.T) {
	t.Parallel()
	b := newBench()
	b.stub.complete = func(_ context.Context, n int, complete func() error) error {
		return fmt.Errorf("memory: %w", idempotency.ErrSerialization)
	}
	b.stub.take = func(_ context.Context, n int, take taking) (idempotency.Lease, *idempotency.Record, error) {
		if n > 1 {
			return nil, nil, fmt.Errorf("memory: %w", idempotency.ErrSerialization)
		}
		return take()
	}
	_, out, err := call(t.Context(), charges[leased](t, b), keyed(t, "key-00000001"), charge[leased]{Cart: "a"})
	wantError[*idempotency.RetriesError](t, err, out, requestctx.StateUnknown)
	b.wantRecord(t, idempotency.InProgress, 1)
	b.want(t, 1, 0, 1)
}

// A claim is lost and found again after everything that can happen to a key has happened to it.
func TestClaimThatIsLostAndFoundAgainIsWhatTheRecordSaysByThen_BR08(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		meanwhile func(t *testing.T, b *bench)
		runs      int
		answer    paid
	}{
		"taken over and completed": {func(t *testing.T, b *bench) {
			b.mem.Age(idempotency.DefaultLease)
			if _, out, err := call(t.Context(), charges[leased](t, b), keyed(t, "key-00000001"), charge[leased]{Cart: "a"}); err != nil || !out.TookOver {
				t.Error(out, err)
			}
		}, 1, paid{"a", 1}},
		"released by a person, taken and completed": {func(t *testing.T, b *bench) {
			live := byAyse
			live.LiveLease = true
			if err := newDesk(t, b.stub).Release(t.Context(), b.only(t).ID, live); err != nil {
				t.Error(err)
			}
			if _, out, err := call(t.Context(), charges[leased](t, b), keyed(t, "key-00000001"), charge[leased]{Cart: "a"}); err != nil || out.TookOver {
				t.Error(out, err)
			}
		}, 1, paid{"a", 1}},
		"purged": {bury, 1, paid{"a", 1}},
		"purged, and completed in a new life": {func(t *testing.T, b *bench) {
			bury(t, b)
			if _, _, err := call(t.Context(), charges[leased](t, b), keyed(t, "key-00000001"), charge[leased]{Cart: "a"}); err != nil {
				t.Error(err)
			}
		}, 1, paid{"a", 1}},
		"released by a person": {func(t *testing.T, b *bench) {
			live := byAyse
			live.LiveLease = true
			if err := newDesk(t, b.stub).Release(t.Context(), b.only(t).ID, live); err != nil {
				t.Error(err)
			}
		}, 1, paid{"a", 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBench()
				b.stub.take = func(_ context.Context, n int, take taking) (idempotency.Lease, *idempotency.Record, error) {
					if n == 1 {
						_, _, err := take()
						tc.meanwhile(t, b)
						return nil, nil, errors.Join(err, idempotency.ErrCommitUnknown)
					}
					return take()
				}
				res, _, err := call(t.Context(), charges[leased](t, b), keyed(t, "key-00000001"), charge[leased]{Cart: "a"})
				if err != nil || res != tc.answer {
					t.Errorf("got %+v, %v", res, err)
				}
				b.want(t, tc.runs, 1, 1)
				if rec := b.only(t); rec.State != idempotency.Completed {
					t.Errorf("the record is %s", rec.State)
				}
			})
		})
	}
}
