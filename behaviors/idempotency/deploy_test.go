package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
)

// Records that another version of the program has left, and records whose time is over.

// calling makes a call whatever the policy of its command.
type calling func(t *testing.T, b *bench, v requestctx.Values, cart string) (requestctx.Outcome, error)

func callOf[P hasPolicy](t *testing.T, b *bench, v requestctx.Values, cart string) (requestctx.Outcome, error) {
	t.Helper()
	_, out, err := call(t.Context(), charges[P](t, b), v, charge[P]{Cart: cart})
	return out, err
}

func TestF21_WhatAnOlderVersionLeftBehindIsTakenByTheSamePayload_D08_BR52(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name     string
		old, now calling
		version  bool // of the contract changes
		taken    bool // a record in progress whose lease is over
	}{
		{"Leased, another version of the contract", callOf[hurried], callOf[version2], true, true},
		{"Leased, the version is rolled back", callOf[version2], callOf[hurried], true, true},
		{"Leased to Atomic", callOf[hurried], callOf[atomically], false, false},
		{"Leased to Atomic, another version of the contract", callOf[hurried], callOf[atomic2], true, false},
		{"Leased with another policy", callOf[hurried], callOf[reviewless], false, true},
	} {
		for _, state := range []idempotency.RecordState{idempotency.Failed, idempotency.InProgress, idempotency.Completed} {
			t.Run(fmt.Sprint(tc.name, ", ", state), func(t *testing.T) {
				t.Parallel()
				b := newBench()
				v := keyed(t, "key-00000001")
				b.then = func(_ context.Context, run int) error {
					switch {
					case run > 1 || state == idempotency.Completed:
						return nil
					case state == idempotency.Failed:
						return errPaper
					}
					return idempotency.Unknown(errPaper)
				}
				_, _ = tc.old(t, b, v, "a")
				b.wantRecord(t, state, 1)
				b.mem.Age(idempotency.DefaultLease)
				out, err := tc.now(t, b, v, "b")
				if e := wantError[*idempotency.ConflictError](t, err, out, requestctx.StateConflict); e.VersionChanged != tc.version {
					t.Errorf("the conflict is %+v", e)
				}
				out, err = tc.now(t, b, v, "a")
				switch {
				case state == idempotency.Completed:
					if err != nil || !out.Replayed {
						t.Error(out, err)
					}
					b.want(t, 1, 1, 1)
				case state == idempotency.InProgress && !tc.taken: // an Atomic command leaves that to those that have leases
					wantError[*idempotency.InProgressError](t, err, out, requestctx.StateInProgress)
					b.want(t, 1, 0, 1)
				default:
					if err != nil || out.State != requestctx.StateExecuted || out.TookOver != (state == idempotency.InProgress) {
						t.Error(out, err)
					}
					b.want(t, 2, 1, 1)
					// The record is the new version's from now on, and both replay it.
					for _, again := range []calling{tc.now, tc.old} {
						if out, err := again(t, b, v, "a"); err != nil || !out.Replayed {
							t.Error(out, err)
						}
					}
				}
			})
		}
	}
}

type reviewless struct{} // the policy of hurried with another lease

func (reviewless) policy() idempotency.Policy {
	return idempotency.Policy{Mode: idempotency.Leased, Wait: -1, Lease: time.Hour, MaxAttempts: 3, RelaxedClaim: true}
}

func TestF21_RecordOfAnUnknownHashIsAConflictAndNotTaken(t *testing.T) {
	t.Parallel()
	for _, now := range []calling{callOf[hurried], callOf[atomically]} {
		b := newBench()
		v := keyed(t, "key-00000001")
		b.then = func(context.Context, int) error { return errPaper }
		_, _ = callOf[hurried](t, b, v, "a")
		rec := b.only(t)
		rec.Record.HashVersion, rec.Record.Hash = 2000, [32]byte{1} // of an algorithm that this program does not have
		b.mem.Put(rec.ID, rec.Record)
		out, err := now(t, b, v, "a")
		if e := wantError[*idempotency.ConflictError](t, err, out, requestctx.StateConflict); !e.VersionChanged {
			t.Error(e)
		}
		b.want(t, 1, 0, 1)
	}
}

func TestAtomicRecordIsReplayedByALeasedCommand_D08(t *testing.T) {
	t.Parallel()
	b := newBench()
	v := keyed(t, "key-00000001")
	if _, err := callOf[atomically](t, b, v, "a"); err != nil {
		t.Fatal(err)
	}
	for _, now := range []calling{callOf[hurried], callOf[version2]} {
		if out, err := now(t, b, v, "a"); err != nil || !out.Replayed {
			t.Error(out, err)
		}
		out, err := now(t, b, v, "b")
		wantError[*idempotency.ConflictError](t, err, out, requestctx.StateConflict)
	}
	b.want(t, 1, 1, 1)
}

func TestDamagedRecordIsNeitherReplayNorConflictNorTaken(t *testing.T) {
	t.Parallel()
	for _, state := range []idempotency.RecordState{idempotency.InProgress, idempotency.Completed, idempotency.Failed} {
		b := newBench()
		send, v := charges[hurried](t, b), keyed(t, "key-00000001")
		_, _, _ = call(t.Context(), send, v, charge[hurried]{Cart: "a"})
		rec := b.only(t)
		rec.Record.Scope.Client, rec.Record.State = "somebody else", state
		b.mem.Put(rec.ID, rec.Record)
		for range 2 {
			_, out, err := call(t.Context(), send, v, charge[hurried]{Cart: "a"})
			wantError[*idempotency.RecordError](t, err, out, requestctx.StateRefused)
		}
		b.want(t, 1, 1, 1)
	}
}

// Retention.

// ended makes a first attempt that leaves a record of a state. A record in progress is live if live is true.
func ended[P hasPolicy](t *testing.T, b *bench, v requestctx.Values, state idempotency.RecordState) {
	t.Helper()
	then := b.then
	b.then = func(context.Context, int) error {
		return map[idempotency.RecordState]error{idempotency.Failed: errPaper, idempotency.InProgress: idempotency.Unknown(errPaper)}[state]
	}
	_, _ = callOf[P](t, b, v, "a")
	b.wantRecord(t, state, 1)
	b.then = then
}

func TestT02_T05_ExpiredLeasedKeyIsNewWorkForAnyPayload(t *testing.T) {
	t.Parallel()
	for _, state := range []idempotency.RecordState{idempotency.Completed, idempotency.Failed, idempotency.InProgress} {
		for _, cart := range []string{"a", "b"} {
			for name, met := range map[string]bool{"in the process that has met it": true, "elsewhere": false} {
				b := newBench()
				v := keyed(t, "key-00000001")
				ended[hurried](t, b, v, state)
				first := b.only(t)
				send := charges[hurried](t, b)
				if met {
					_, _, _ = call(t.Context(), send, v, charge[hurried]{Cart: "c"}) // a conflict, or in progress
				}
				b.mem.Age(idempotency.DefaultRetention)
				_, out, err := call(t.Context(), send, v, charge[hurried]{Cart: cart})
				if err != nil || out.State != requestctx.StateExecuted || !out.ReusedExpired || out.Attempt != 1 || out.TookOver != (state == idempotency.InProgress) {
					t.Errorf("%s, %s, %s: %+v, %v", state, cart, name, out, err)
				}
				rec := b.only(t)
				if rec.OriginRequestID == first.OriginRequestID || rec.Attempts != 1 || !rec.CreatedAt.After(first.CreatedAt) || rec.Fence <= first.Fence {
					t.Errorf("%s, %s, %s: the new life is %+v", state, cart, name, rec)
				}
				if _, out, err = call(t.Context(), send, v, charge[hurried]{Cart: cart}); err != nil || !out.Replayed || out.ReusedExpired { // T01
					t.Errorf("%s, %s, %s: %+v, %v", state, cart, name, out, err)
				}
			}
		}
	}
}

func TestT03_ExpiredLeasedKeyWithATombstoneIsGone(t *testing.T) {
	t.Parallel()
	b := newBench()
	v := keyed(t, "key-00000001")
	ended[buried](t, b, v, idempotency.Completed)
	send := charges[buried](t, b)
	b.mem.Age(idempotency.DefaultRetention)
	wantGone := func() {
		t.Helper()
		for _, cart := range []string{"a", "b"} {
			_, out, err := call(t.Context(), send, v, charge[buried]{Cart: cart})
			wantError[*idempotency.ExpiredError](t, err, out, requestctx.StateExpired)
		}
	}
	wantGone()
	if done, err := b.mem.Purge(t.Context(), idempotency.PurgeBatch{Limit: 1, Remember: 1000 * time.Hour}); err != nil || done.Buried != 1 || done.Removed != 0 {
		t.Error(done, err)
	}
	wantGone()
	b.want(t, 1, 1, 1)
}

func TestT03_ExpiredTombstoneKeyThatHasNotCompletedRunsWithItsPayloadAndNoOther(t *testing.T) {
	t.Parallel()
	for _, state := range []idempotency.RecordState{idempotency.Failed, idempotency.InProgress} {
		b := newBench()
		v := keyed(t, "key-00000001")
		ended[buried](t, b, v, state)
		b.mem.Age(idempotency.DefaultRetention)
		out, err := callOf[buried](t, b, v, "b")
		wantError[*idempotency.ExpiredError](t, err, out, requestctx.StateExpired)
		if out, err = callOf[buried](t, b, v, "a"); err != nil || out.State != requestctx.StateExecuted {
			t.Errorf("%s: %+v, %v", state, out, err)
		}
	}
}

func TestT04_KeyWhoseRetentionEndsUnderALiveLeaseIsInProgress(t *testing.T) {
	t.Parallel()
	b := newBench()
	v := keyed(t, "key-00000001")
	ended[hurried](t, b, v, idempotency.InProgress)
	rec := b.only(t)
	rec.Record.Expired, rec.Record.LeaseLeft = true, time.Minute
	b.mem.Put(rec.ID, rec.Record)
	for range 2 {
		out, err := callOf[hurried](t, b, v, "a")
		wantError[*idempotency.InProgressError](t, err, out, requestctx.StateInProgress)
	}
	out, err := callOf[hurried](t, b, v, "b")
	wantError[*idempotency.ConflictError](t, err, out, requestctx.StateConflict)
	if done, err := b.mem.Purge(t.Context(), idempotency.PurgeBatch{Limit: 1}); err != nil || done.Removed != 0 {
		t.Error(done, err)
	}
	b.want(t, 1, 0, 1)
}

func TestT06_SixteenReusesOfAnExpiredLeasedKeyRunOnce(t *testing.T) {
	t.Parallel()
	for range 20 {
		synctest.Test(t, func(t *testing.T) { // the time to wait is the bubble's
			b := newBench()
			v := keyed(t, "key-00000001")
			ended[leased](t, b, v, idempotency.Completed)
			b.mem.Age(idempotency.DefaultRetention)
			sends := []bus.Handler[charge[leased], paid]{charges[leased](t, b), charges[leased](t, b)}
			begin := make(chan struct{})
			var mu sync.Mutex
			count := map[requestctx.State]int{}
			reused := 0
			var wg sync.WaitGroup
			for i := range 16 {
				wg.Go(func() {
					<-begin
					_, out, err := call(t.Context(), sends[i%2], v, charge[leased]{Cart: "a"})
					mu.Lock()
					defer mu.Unlock()
					if count[out.State]++; err != nil {
						t.Error(err)
					}
					if out.ReusedExpired {
						reused++
					}
				})
			}
			close(begin)
			wg.Wait()
			if count[requestctx.StateExecuted] != 1 || count[requestctx.StateReplayed] != 15 || reused != 1 {
				t.Fatalf("%v, %d reused", count, reused)
			}
			b.want(t, 2, 2, 1)
		})
	}
}

func TestReuseIsReportedByTheAttemptThatBeginsTheNewLifeAndNoOther_T02(t *testing.T) {
	t.Parallel()
	b := newBench()
	v := keyed(t, "key-00000001")
	ended[hurried](t, b, v, idempotency.Completed)
	here, elsewhere := charges[hurried](t, b), charges[hurried](t, b)
	if _, out, err := call(t.Context(), here, v, charge[hurried]{Cart: "a"}); err != nil || !out.Replayed {
		t.Fatal(out, err)
	}
	b.mem.Age(idempotency.DefaultRetention)
	b.then = func(_ context.Context, run int) error {
		if run == 2 {
			return errPaper
		}
		return nil
	}
	b.stub.take = func(_ context.Context, n int, take taking) (idempotency.Lease, *idempotency.Record, error) {
		if n == 3 { // it has looked and found the key expired; then another one comes first, and fails
			if _, out, err := call(context.Background(), elsewhere, v, charge[hurried]{Cart: "a"}); !errors.Is(err, errPaper) || out.ReusedExpired {
				t.Error(out, err)
			}
		}
		return take()
	}
	if _, out, err := call(t.Context(), here, v, charge[hurried]{Cart: "a"}); err != nil || out.Attempt != 2 || out.ReusedExpired {
		t.Error(out, err)
	}
	b.want(t, 3, 2, 1)
}

func TestT09_LateOwnerOfAKeyThatHasANewLifeCompletesNothing_E11(t *testing.T) {
	t.Parallel()
	for name, purged := range map[string]bool{"expired": false, "expired and purged": true} {
		b := newBench()
		v := keyed(t, "key-00000001")
		here, elsewhere := charges[hurried](t, b), charges[hurried](t, b)
		b.alone = true
		b.first = func(_ context.Context, run int) error {
			if run > 1 {
				return nil
			}
			b.mem.Age(1000 * time.Hour)
			if purged {
				if _, err := b.mem.Purge(context.Background(), idempotency.PurgeBatch{Limit: 1}); err != nil {
					t.Error(err)
				}
			}
			if _, out, err := call(context.Background(), elsewhere, v, charge[hurried]{Cart: "new life"}); err != nil || out.ReusedExpired == purged {
				t.Error(out, err)
			}
			return nil
		}
		_, out, err := call(t.Context(), here, v, charge[hurried]{Cart: "a"})
		if wantError[*idempotency.ConflictError](t, err, out, requestctx.StateConflict); string(b.only(t).Result) != `{"cart":"new life","run":2}` {
			t.Errorf("%s: the record holds %s", name, b.only(t).Result)
		}
	}
}
