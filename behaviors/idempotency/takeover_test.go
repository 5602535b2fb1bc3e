package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
)

// What becomes of a key whose attempt has died or hangs.

// dies makes a first attempt that is never heard of again: its handler is outside and has asked for a downstream key.
func dies[P hasPolicy](t *testing.T, b *bench, v requestctx.Values) {
	t.Helper()
	first, then := b.first, b.then
	b.first, b.then = goesOutside, func(context.Context, int) error { return idempotency.Unknown(errPaper) }
	_, out, err := call(t.Context(), charges[P](t, b), v, charge[P]{Cart: "a"})
	wantError[*idempotency.OutcomeUnknownError](t, err, out, requestctx.StateUnknown)
	b.first, b.then = first, then
	b.stub.calls()
}

func TestL06_DeadKeyIsTakenOverByTheSamePayloadWhenItsLeaseIsOver_BR05(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		v := keyed(t, "key-00000001")
		var grants []idempotency.Grant
		var keys []string
		b.then = func(ctx context.Context, run int) error {
			g, ok := idempotency.Attempt(ctx)
			key, err := idempotency.DownstreamKey(ctx, "psp")
			if !ok || err != nil {
				t.Error(ok, err)
			}
			grants, keys = append(grants, g), append(keys, key)
			if run == 1 {
				return idempotency.Unknown(errPaper)
			}
			return nil
		}
		here, elsewhere := charges[hurried](t, b), charges[hurried](t, b)
		_, first, err := call(t.Context(), here, v, charge[hurried]{Cart: "a"})
		wantError[*idempotency.OutcomeUnknownError](t, err, first, requestctx.StateUnknown)
		time.Sleep(idempotency.DefaultLease - time.Nanosecond)
		_, out, err := call(t.Context(), elsewhere, v, charge[hurried]{Cart: "a"})
		wantError[*idempotency.InProgressError](t, err, out, requestctx.StateInProgress)
		time.Sleep(time.Nanosecond)
		_, out, err = call(t.Context(), elsewhere, v, charge[hurried]{Cart: "b"}) // L07
		wantError[*idempotency.ConflictError](t, err, out, requestctx.StateConflict)
		res, out, err := call(t.Context(), elsewhere, v, charge[hurried]{Cart: "a"})
		if err != nil || res.Run != 2 || out.Attempt != 2 || !out.TookOver || out.ReusedExpired {
			t.Errorf("%+v, %+v, %v", res, out, err)
		}
		wantState(t, out, requestctx.StateExecuted)
		if len(grants) != 2 || grants[0].Attempt != 1 || grants[0].TookOver || grants[1].Attempt != 2 || !grants[1].TookOver || grants[1].Fence <= grants[0].Fence {
			t.Errorf("the grants are %+v", grants)
		}
		if keys[0] != keys[1] {
			t.Errorf("the downstream keys are %v", keys)
		}
		_, out, err = call(t.Context(), here, v, charge[hurried]{Cart: "a"})
		if err != nil || !out.Replayed {
			t.Error(out, err)
		}
		b.want(t, 2, 1, 1)
	})
}

func TestL08_SixteenAtOnceTakeADeadKeyOverOnce_BR45(t *testing.T) {
	t.Parallel()
	for name, state := range map[string]idempotency.RecordState{"a lease that is over": idempotency.InProgress, "failed": idempotency.Failed} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for range 20 {
				synctest.Test(t, func(t *testing.T) { // the time to wait is the bubble's
					b := newBench()
					v := keyed(t, "key-00000001")
					if dies[leased](t, b, v); state == idempotency.Failed {
						free(t, b)
					} else {
						b.mem.Age(idempotency.DefaultLease)
					}
					b.runs = 0
					begin, hold := make(chan struct{}), make(chan struct{})
					b.first = func(context.Context, int) error { <-hold; return nil }
					sends := []bus.Handler[charge[leased], paid]{charges[leased](t, b), charges[leased](t, b)}
					outs := make([]answered, 16)
					var wg sync.WaitGroup
					for i := range outs {
						wg.Go(func() {
							<-begin
							outs[i].res, outs[i].out, outs[i].err = call(t.Context(), sends[i%2], v, charge[leased]{Cart: "a"})
						})
					}
					close(begin)
					close(hold)
					wg.Wait()
					count := map[requestctx.State]int{}
					for _, a := range outs {
						count[a.out.State]++
					}
					if count[requestctx.StateExecuted] != 1 || count[requestctx.StateReplayed] != 15 {
						t.Fatalf("the outcomes are %v", count)
					}
					b.want(t, 1, 1, 1)
					b.wantRecord(t, idempotency.Completed, 2)
				})
			}
		})
	}
}

// free releases the bench's one record as a person would.
func free(t *testing.T, b *bench) {
	t.Helper()
	admin, err := idempotency.NewAdmin(idempotency.AdminConfig{Store: b.stub, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	if err := admin.Release(t.Context(), b.only(t).ID, idempotency.Intervention{By: "ayse", Reason: "stuck", LiveLease: true}); err != nil {
		t.Fatal(err)
	}
}

func TestBR06_OwnerThatFailsAfterATakeoverTouchesNothing_L09(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		give  error
		panic bool
	}{
		"it fails":     {give: errPaper},
		"it refuses":   {give: idempotency.Final(errPaper)},
		"it panics":    {panic: true},
		"it succeeds":  {},
		"serializable": {give: fmt.Errorf("insert: %w", idempotency.ErrSerialization)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBench()
				here, elsewhere, third := charges[hurried](t, b), charges[hurried](t, b), charges[hurried](t, b)
				v := keyed(t, "key-00000001")
				stale, fresh := make(chan struct{}), make(chan struct{})
				b.alone = true
				b.first = func(_ context.Context, run int) error {
					if run > 1 {
						<-fresh
						return nil
					}
					<-stale
					if tc.panic {
						panic(errPaper)
					}
					return tc.give
				}
				a := make(chan requestctx.Outcome, 1)
				go func() {
					ctx, req := requestctx.New(t.Context(), v)
					defer func() { _ = recover(); a <- req.Outcome() }()
					_, _ = here(ctx, charge[hurried]{Cart: "a"})
				}()
				synctest.Wait()
				b.mem.Age(idempotency.DefaultLease)
				second := background(t.Context(), elsewhere, v, charge[hurried]{Cart: "a"})
				synctest.Wait()
				close(stale)
				want := requestctx.StateInProgress
				if tc.panic {
					want = requestctx.StateLost
				}
				if out := <-a; out.State != want || out.Attempt != 1 {
					t.Errorf("the stale owner is told %+v, want %s", out, want)
				}
				_, out, err := call(t.Context(), third, v, charge[hurried]{Cart: "a"})
				wantError[*idempotency.InProgressError](t, err, out, requestctx.StateInProgress)
				b.wantRecord(t, idempotency.InProgress, 2)
				close(fresh)
				if s := <-second; s.err != nil || s.res.Run != 2 || !s.out.TookOver {
					t.Error(s)
				}
				if res, out, err := call(t.Context(), third, v, charge[hurried]{Cart: "a"}); err != nil || !out.Replayed || res.Run != 2 {
					t.Error(res, out, err)
				}
				b.want(t, 2, 0, 1)
			})
		})
	}
}

func TestBR06_RowsOfALateOwnerAreNotCommitted_L09_L13(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		here, elsewhere := charges[hurried](t, b), charges[hurried](t, b)
		v := keyed(t, "key-00000001")
		hold := make(chan struct{})
		var inTx error
		b.first = func(ctx context.Context, run int) error {
			if run == 1 {
				<-hold
				inTx = b.mem.InTx(ctx, func(context.Context) error { t.Error("the late owner's transaction runs"); return nil })
				return inTx
			}
			return nil
		}
		first := background(t.Context(), here, v, charge[hurried]{Cart: "a"})
		synctest.Wait()
		b.mem.Age(idempotency.DefaultLease)
		if _, _, err := call(t.Context(), elsewhere, v, charge[hurried]{Cart: "a"}); err != nil {
			t.Error(err)
		}
		close(hold)
		a := <-first
		if a.err != nil || a.res.Run != 2 || !errors.Is(inTx, idempotency.ErrLeaseLost) {
			t.Error(a, inTx)
		}
		wantState(t, a.out, requestctx.StateReplayed)
		b.want(t, 2, 1, 1)
	})
}

func TestL10_SlowOwnerWhomNobodyHasReplacedCompletes(t *testing.T) {
	t.Parallel()
	b := newBench()
	b.first = func(context.Context, int) error { b.mem.Age(idempotency.DefaultLease + time.Hour); return nil }
	if _, out, err := call(t.Context(), charges[hurried](t, b), keyed(t, "key-00000001"), charge[hurried]{Cart: "a"}); err != nil || out.State != requestctx.StateExecuted {
		t.Error(out, err)
	}
	b.want(t, 1, 1, 1)
}

func TestL11_ChallengerOfAnOwnerInItsBusinessTransactionWaitsAndReplays_BR07(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		here, elsewhere := charges[leased](t, b), charges[leased](t, b)
		v := keyed(t, "key-00000001")
		b.then = func(context.Context, int) error { // in the transaction, whose lease is over by now
			b.mem.Age(idempotency.DefaultLease)
			time.Sleep(100 * time.Millisecond)
			return nil
		}
		first := background(t.Context(), here, v, charge[leased]{Cart: "a"})
		synctest.Wait()
		res, out, err := call(t.Context(), elsewhere, v, charge[leased]{Cart: "a"})
		if err != nil || !out.Replayed || res.Run != 1 {
			t.Error(res, out, err)
		}
		if a := <-first; a.err != nil || a.out.State != requestctx.StateExecuted {
			t.Error(a)
		}
		b.want(t, 1, 1, 1)
	})
}

func TestDuplicatesOfAnOwnerThatHasLostItsKeyAreNotHeldUpByIt_L22(t *testing.T) {
	t.Parallel()
	for name, completed := range map[string]bool{"the key was released": false, "the key was taken over and completed": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBench()
				here, elsewhere := charges[lasting](t, b), charges[lasting](t, b)
				v := keyed(t, "key-00000001")
				hold := make(chan struct{})
				b.alone = true
				b.first = func(_ context.Context, run int) error {
					if run == 1 {
						<-hold // deaf to its context
					}
					return nil
				}
				first := background(t.Context(), here, v, charge[lasting]{Cart: "a"})
				synctest.Wait()
				if completed {
					b.mem.Age(idempotency.DefaultLease)
					if _, _, err := call(t.Context(), elsewhere, v, charge[lasting]{Cart: "a"}); err != nil {
						t.Error(err)
					}
				} else {
					free(t, b)
				}
				time.Sleep(idempotency.DefaultLease/3 - 100*time.Millisecond)
				start := time.Now()
				_, out, err := call(t.Context(), here, v, charge[lasting]{Cart: "a"}) // it waits, and the heartbeat comes meanwhile
				if want := requestctx.StateExecuted; err != nil || time.Since(start) != 100*time.Millisecond || !completed && out.State != want || completed && !out.Replayed {
					t.Errorf("after %v: %+v, %v", time.Since(start), out, err)
				}
				if _, out, err := call(t.Context(), here, v, charge[lasting]{Cart: "a"}); err != nil || !out.Replayed {
					t.Error(out, err)
				}
				close(hold)
				if a := <-first; a.err != nil || a.res.Run != 2 || !a.out.Replayed {
					t.Error(a)
				}
				b.want(t, 2, 0, 1)
			})
		})
	}
}

// psp is a payment provider that remembers keys, as they do.
type psp struct {
	charges []string
	byKey   map[string]int
}

func (p *psp) charge(key, what string) int {
	if n, ok := p.byKey[key]; ok && key != "" {
		return n
	}
	p.charges = append(p.charges, what)
	if p.byKey == nil {
		p.byKey = make(map[string]int)
	}
	p.byKey[key] = len(p.charges)
	return len(p.charges)
}

func TestBR47_SecondTryFindsTheFirstChargeIfTheKeyWasPassedOn_L20_X04(t *testing.T) {
	t.Parallel()
	for name, forgets := range map[string]bool{"the handler passes the key on": false, "the handler forgets it": true} {
		b := newBench()
		v := keyed(t, "key-00000001")
		var provider psp
		b.first = func(ctx context.Context, run int) error {
			key, err := idempotency.DownstreamKey(ctx, "charge")
			if err != nil {
				return err
			}
			if forgets {
				key = ""
			}
			provider.charge(key, "cart a")
			if run == 1 {
				panic("killed between the charge and the order")
			}
			return nil
		}
		func() {
			defer func() { _ = recover() }()
			_, _, _ = call(t.Context(), charges[hurried](t, b), v, charge[hurried]{Cart: "a"})
		}()
		b.mem.Age(idempotency.DefaultLease)
		if _, out, err := call(t.Context(), charges[hurried](t, b), v, charge[hurried]{Cart: "a"}); err != nil || !out.TookOver {
			t.Error(name, out, err)
		}
		want := 1
		if forgets {
			want = 2 // the documented limit
		}
		if len(provider.charges) != want {
			t.Errorf("%s: %d charges, want %d", name, len(provider.charges), want)
		}
		b.want(t, 2, 1, 1)
	}
}

// Reconcile.

func serveReconciled[C bus.Command[R], R any](t testing.TB, e *idempotency.Engine, h bus.Handler[C, R], find func(context.Context, C) (R, bool, error)) bus.Handler[C, R] {
	t.Helper()
	claimed, plan, err := idempotency.StageWith(e, h, idempotency.Settings[C, R]{Reconcile: find})
	if err != nil {
		t.Fatal(err)
	}
	var c C
	inv := bus.Invocation{Name: string(c.CommandName()), Idempotent: plan.Marked}
	on, err := bus.New(bus.Serve(bus.Log(bus.Validate(claimed, inv, nil, nil), inv, nil, nil)))
	if err != nil {
		t.Fatal(err)
	}
	send, err := bus.Bind[C](on)
	if err != nil {
		t.Fatal(err)
	}
	return send
}

// finder is a reconciler that counts how often it is asked.
type finder struct {
	asked []int // the attempts in which it was
	find  func(ctx context.Context) (paid, bool, error)
}

func (f *finder) serve(t testing.TB, b *bench) bus.Handler[charge[reconcile], paid] {
	t.Helper()
	return serveReconciled(t, newEngine(t, b), func(ctx context.Context, c charge[reconcile]) (paid, error) { return b.charge(ctx, c.Cart) },
		func(ctx context.Context, c charge[reconcile]) (paid, bool, error) {
			g, _ := idempotency.Attempt(ctx)
			f.asked = append(f.asked, g.Attempt)
			if c.Cart != "a" || requestctx.From(ctx) == nil {
				t.Errorf("the reconciler is asked about %+v", c)
			}
			return f.find(ctx)
		})
}

func TestReconcilerIsAskedInEveryAttemptButTheFirst_D20(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		find  func(ctx context.Context) (paid, bool, error)
		runs  int // of the handler, the first attempt's included
		rows  int
		state requestctx.State
		check func(t *testing.T, res paid, err error)
		rec   idempotency.RecordState
	}{
		"it finds the work": {
			find: func(context.Context) (paid, bool, error) { return paid{"found", 7}, true, nil }, runs: 1, state: requestctx.StateExecuted, rec: idempotency.Completed,
			check: func(t *testing.T, res paid, err error) {
				if err != nil || res != (paid{"found", 7}) {
					t.Error(res, err)
				}
			},
		},
		"it finds nothing": {
			find: func(context.Context) (paid, bool, error) { return paid{}, false, nil }, runs: 2, rows: 1, state: requestctx.StateExecuted, rec: idempotency.Completed,
			check: func(t *testing.T, res paid, err error) {
				if err != nil || res != (paid{"a", 2}) {
					t.Error(res, err)
				}
			},
		},
		"it fails": {
			find: func(context.Context) (paid, bool, error) { return paid{}, true, errPaper }, runs: 1, state: requestctx.StateFreed, rec: idempotency.Failed,
			check: func(t *testing.T, _ paid, err error) {
				if err != errPaper {
					t.Error(err)
				}
			},
		},
		"it does not know": {
			find: func(context.Context) (paid, bool, error) { return paid{}, false, idempotency.Unknown(errPaper) }, runs: 1, state: requestctx.StateUnknown, rec: idempotency.InProgress,
			check: func(t *testing.T, _ paid, err error) {
				if u := (*idempotency.OutcomeUnknownError)(nil); !errors.As(err, &u) || u.RetryAfter != idempotency.DefaultLease {
					t.Error(err)
				}
			},
		},
		"it finds a refusal": {
			find: func(context.Context) (paid, bool, error) { return paid{}, false, idempotency.Final(errPaper) }, runs: 1, state: requestctx.StateExecuted, rec: idempotency.Completed,
			check: func(t *testing.T, _ paid, err error) {
				if r := (*idempotency.RefusedError)(nil); !errors.As(err, &r) {
					t.Error(err)
				}
			},
		},
		"it takes too long": {
			find: func(ctx context.Context) (paid, bool, error) { <-ctx.Done(); return paid{}, false, ctx.Err() }, runs: 1, state: requestctx.StateFreed, rec: idempotency.Failed,
			check: func(t *testing.T, _ paid, err error) {
				if err != context.DeadlineExceeded {
					t.Error(err)
				}
			},
		},
		"it takes too long, outside": {
			find: func(ctx context.Context) (paid, bool, error) {
				_ = goesOutside(ctx, 0)
				<-ctx.Done()
				return paid{}, false, ctx.Err()
			}, runs: 1, state: requestctx.StateUnknown, rec: idempotency.InProgress,
			check: func(t *testing.T, _ paid, err error) {
				if u := (*idempotency.OutcomeUnknownError)(nil); !errors.As(err, &u) {
					t.Error(err)
				}
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBench()
				f := &finder{find: tc.find}
				send, v := f.serve(t, b), keyed(t, "key-00000001")
				first := func(ctx context.Context, run int) error {
					if run == 1 {
						return errors.Join(goesOutside(ctx, run), idempotency.Unknown(errPaper))
					}
					return nil
				}
				b.first = first
				_, out, err := call(t.Context(), send, v, charge[reconcile]{Cart: "a"})
				wantError[*idempotency.OutcomeUnknownError](t, err, out, requestctx.StateUnknown)
				if len(f.asked) != 0 {
					t.Error("the reconciler is asked in the first attempt")
				}
				time.Sleep(idempotency.DefaultLease)
				res, out, err := call(t.Context(), send, v, charge[reconcile]{Cart: "a"})
				wantState(t, out, tc.state)
				tc.check(t, res, err)
				if !slices.Equal(f.asked, []int{2}) || out.Attempt != 2 || !out.TookOver {
					t.Errorf("asked in %v, %+v", f.asked, out)
				}
				b.want(t, tc.runs, tc.rows, 1)
				b.wantRecord(t, tc.rec, 2)
				if tc.rec == idempotency.Completed {
					if again, out, _ := call(t.Context(), send, v, charge[reconcile]{Cart: "a"}); !out.Replayed || again != res || len(f.asked) != 1 {
						t.Error(again, out, f.asked)
					}
				}
			})
		})
	}
}

func TestReconcilerIsAskedAfterAnAttemptThatFailedToo(t *testing.T) {
	t.Parallel()
	b := newBench()
	f := &finder{find: func(context.Context) (paid, bool, error) { return paid{}, false, errPaper }}
	send, v := f.serve(t, b), keyed(t, "key-00000001")
	b.first = func(context.Context, int) error { return errPaper }
	for range 3 {
		if _, out, err := call(t.Context(), send, v, charge[reconcile]{Cart: "a"}); err != errPaper {
			t.Error(out, err)
		}
	}
	if !slices.Equal(f.asked, []int{2, 3}) {
		t.Errorf("asked in %v", f.asked)
	}
	b.want(t, 1, 0, 1)
	// A person's release begins the count anew and is no first attempt all the same.
	free(t, b)
	b.first, f.find = nil, func(context.Context) (paid, bool, error) { return paid{"found", 9}, true, nil }
	if res, _, err := call(t.Context(), send, v, charge[reconcile]{Cart: "a"}); err != nil || res.Run != 9 {
		t.Error(res, err)
	}
	if !slices.Equal(f.asked, []int{2, 3, 2}) {
		t.Errorf("asked in %v", f.asked)
	}
}

func TestReconcilerIsNotAskedInANewLifeOfAKey_T02_T05(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]error{"completed": nil, "failed": errPaper, "dead": idempotency.Unknown(errPaper)} {
		b := newBench()
		f := &finder{find: func(context.Context) (paid, bool, error) { return paid{}, false, errPaper }}
		send, v := f.serve(t, b), keyed(t, "key-00000001")
		b.first = func(_ context.Context, run int) error {
			if run == 1 {
				return end
			}
			return nil
		}
		_, _, _ = call(t.Context(), send, v, charge[reconcile]{Cart: "a"})
		b.mem.Age(idempotency.DefaultRetention)
		if _, out, err := call(t.Context(), send, v, charge[reconcile]{Cart: "a"}); err != nil || !out.ReusedExpired || out.Attempt != 1 {
			t.Errorf("%s: %+v, %v", name, out, err)
		}
		if len(f.asked) != 0 {
			t.Errorf("%s: asked in %v", name, f.asked)
		}
	}
}

func TestReconcilerIsAskedWhenTheFirstAttemptIsMadeAgain_L18(t *testing.T) {
	t.Parallel()
	b := newBench()
	var provider psp
	f := &finder{find: func(context.Context) (paid, bool, error) {
		if len(provider.charges) == 0 {
			return paid{}, false, nil
		}
		return paid{"found", 7}, true, nil
	}}
	b.first = func(ctx context.Context, _ int) error {
		provider.charge("", "cart a") // a provider without keys: that is what a reconciler is for
		return goesOutside(ctx, 0)
	}
	b.stub.complete = func(_ context.Context, n int, complete func() error) error {
		if n == 1 {
			return fmt.Errorf("memory: %w", idempotency.ErrSerialization)
		}
		return complete()
	}
	res, out, err := call(t.Context(), f.serve(t, b), keyed(t, "key-00000001"), charge[reconcile]{Cart: "a"})
	if err != nil || res.Run != 7 || out.Attempt != 1 {
		t.Error(res, out, err)
	}
	if len(provider.charges) != 1 || !slices.Equal(f.asked, []int{1}) {
		t.Errorf("%d charges, asked in %v", len(provider.charges), f.asked)
	}
}

func TestReconcilerThatPanicsLeavesTheKeyAsAHandlerWould_BR14(t *testing.T) {
	t.Parallel()
	for name, outside := range map[string]bool{"inside": false, "outside": true} {
		b := newBench()
		v := keyed(t, "key-00000001")
		f := &finder{find: func(ctx context.Context) (paid, bool, error) {
			if outside {
				_ = goesOutside(ctx, 0)
			}
			panic(errPaper)
		}}
		send := f.serve(t, b)
		b.first = func(context.Context, int) error { return errPaper }
		_, _, _ = call(t.Context(), send, v, charge[reconcile]{Cart: "a"})
		ctx, req := requestctx.New(t.Context(), v)
		func() {
			defer func() {
				if recover() != errPaper {
					t.Error("the panic is not passed on")
				}
			}()
			_, _ = send(ctx, charge[reconcile]{Cart: "a"})
		}()
		state, rec := requestctx.StateFreed, idempotency.Failed
		if outside {
			state, rec = requestctx.StateUnknown, idempotency.InProgress
		}
		wantState(t, req.Outcome(), state)
		b.wantRecord(t, rec, 2)
		b.want(t, 1, 0, 1)
		if t.Failed() {
			t.Log(name)
		}
	}
}

func TestReconcilerMayWriteInTheBusinessTransaction(t *testing.T) {
	t.Parallel()
	b := newBench()
	v := keyed(t, "key-00000001")
	f := &finder{find: func(ctx context.Context) (paid, bool, error) {
		return paid{"found", 7}, true, b.mem.InTx(ctx, func(ctx context.Context) error { return b.mem.Insert(ctx, "order of the charge that was found") })
	}}
	send := f.serve(t, b)
	b.first = func(context.Context, int) error { return errPaper }
	_, _, _ = call(t.Context(), send, v, charge[reconcile]{Cart: "a"})
	if _, out, err := call(t.Context(), send, v, charge[reconcile]{Cart: "a"}); err != nil || out.State != requestctx.StateExecuted {
		t.Error(out, err)
	}
	b.want(t, 1, 1, 1)
}

// guess is a command with a reconciler, whose result does not encode.
type guess struct{}

func (guess) CommandName() bus.Name[float64]  { return "test.guess" }
func (guess) Idempotency() idempotency.Policy { return reconcile{}.policy() }

func TestR14_WorkThatWasFoundAndDoesNotEncodeIsRecordedWithoutItsResult(t *testing.T) {
	t.Parallel()
	b := newBench()
	v := keyed(t, "key-00000001")
	send := serveReconciled(t, newEngine(t, b), func(context.Context, guess) (float64, error) { return 0, errPaper },
		func(context.Context, guess) (float64, bool, error) { return math.NaN(), true, nil })
	_, _, _ = call(t.Context(), send, v, guess{})
	_, out, err := call(t.Context(), send, v, guess{})
	wantError[*idempotency.ResultUnavailableError](t, err, out, requestctx.StateExecuted)
	_, out, err = call(t.Context(), send, v, guess{})
	wantError[*idempotency.ResultUnavailableError](t, err, out, requestctx.StateReplayed)
}

// Refuse.

func wantReview(t *testing.T, err error, out requestctx.Outcome) {
	t.Helper()
	e := wantError[*idempotency.OutcomeUnknownError](t, err, out, requestctx.StateUnknown)
	if !strings.Contains(e.Error(), "leaves the key to a person") {
		t.Errorf("it says %q", e)
	}
	if !e.Review || e.Err != nil || e.RetryAfter != 0 || e.Code() != "IDEMPOTENCY_OUTCOME_UNKNOWN" || out.OriginalRequestID == "" || out.Attempt != 0 {
		t.Errorf("%+v, %+v", e, out)
	}
}

func TestBR32_PolicyThatRefusesLeavesADeadKeyToAPerson_D20(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		v := keyed(t, "key-00000001")
		dies[refuse](t, b, v)
		send := charges[refuse](t, b)
		_, out, err := call(t.Context(), send, v, charge[refuse]{Cart: "a"})
		wantError[*idempotency.InProgressError](t, err, out, requestctx.StateInProgress)
		time.Sleep(idempotency.DefaultLease)
		b.stub.calls()
		for _, send := range []bus.Handler[charge[refuse], paid]{send, send, charges[refuse](t, b)} {
			_, out, err = call(t.Context(), send, v, charge[refuse]{Cart: "a"})
			wantReview(t, err, out)
		}
		b.wantCalls(t, "look look lease")
		_, out, err = call(t.Context(), send, v, charge[refuse]{Cart: "b"})
		wantError[*idempotency.ConflictError](t, err, out, requestctx.StateConflict)
		b.want(t, 1, 0, 1)
		free(t, b)
		if _, out, err := call(t.Context(), send, v, charge[refuse]{Cart: "a"}); err != nil || out.State != requestctx.StateExecuted || out.Attempt != 2 || out.TookOver {
			t.Error(out, err)
		}
		b.want(t, 2, 1, 1)
	})
}

func TestBR32_KeyThatIsLeftToAPersonRunsWhenItHasExpired_T05(t *testing.T) {
	t.Parallel()
	b := newBench()
	v := keyed(t, "key-00000001")
	dies[refuse](t, b, v)
	b.mem.Age(idempotency.DefaultRetention)
	if _, out, err := call(t.Context(), charges[refuse](t, b), v, charge[refuse]{Cart: "b"}); err != nil || !out.ReusedExpired || out.Attempt != 1 {
		t.Error(out, err)
	}
	b.want(t, 2, 1, 1)
}

func TestBR32_PolicyThatRefusesStillRunsWhatIsKnownToHaveDoneNothing_R04(t *testing.T) {
	t.Parallel()
	b := newBench()
	b.then = func(_ context.Context, run int) error {
		if run == 1 {
			return errPaper
		}
		return nil
	}
	send, v := charges[refuse](t, b), keyed(t, "key-00000001")
	if _, _, err := call(t.Context(), send, v, charge[refuse]{Cart: "a"}); err != errPaper {
		t.Error(err)
	}
	if _, out, err := call(t.Context(), send, v, charge[refuse]{Cart: "a"}); err != nil || out.Attempt != 2 {
		t.Error(out, err)
	}
	b.want(t, 2, 1, 1)
}

func TestBR32_PolicyThatRefusesDoesNotRunAHandlerAgainThatHasBeenOutside(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		fault   error
		at      string
		outside bool
		runs    int // in the end
	}{
		"the database refuses the rows":           {idempotency.ErrSerialization, "completion", true, 1},
		"the database refuses a statement":        {idempotency.ErrSerialization, "handler", true, 1},
		"a constraint refuses the rows":           {idempotency.ErrTransactionAborted, "completion", true, 1},
		"the connection breaks":                   {errDown, "completion", true, 1},
		"the answer is lost":                      {idempotency.ErrCommitUnknown, "completion", true, 1},
		"it was not outside and may run again":    {idempotency.ErrSerialization, "completion", false, 2},
		"it was not outside and may be sent":      {errDown, "completion", false, 2},
		"it was not outside and lost its answer":  {idempotency.ErrCommitUnknown, "completion", false, 2},
		"it was not outside and the rows are bad": {idempotency.ErrTransactionAborted, "completion", false, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBench()
				if tc.outside {
					b.first = goesOutside
				}
				fault := fmt.Errorf("memory: %w", tc.fault)
				if tc.at == "handler" {
					b.then = func(context.Context, int) error { return fault }
				}
				b.stub.complete = func(_ context.Context, n int, complete func() error) error {
					if n == 1 {
						return fault
					}
					return complete()
				}
				send, v := charges[refuse](t, b), keyed(t, "key-00000001")
				_, out, err := call(t.Context(), send, v, charge[refuse]{Cart: "a"})
				if !tc.outside {
					_, _, _ = call(t.Context(), send, v, charge[refuse]{Cart: "a"})
					b.want(t, tc.runs, 1, 1)
					b.wantRecord(t, idempotency.Completed, b.only(t).Attempts)
					return
				}
				if wantState(t, out, requestctx.StateUnknown); !errors.Is(err, tc.fault) {
					t.Error(err)
				}
				b.wantRecord(t, idempotency.InProgress, 1)
				time.Sleep(idempotency.DefaultLease)
				_, out, err = call(t.Context(), send, v, charge[refuse]{Cart: "a"})
				wantReview(t, err, out)
				b.want(t, tc.runs, 0, 1)
			})
		})
	}
}

func TestBR32_CommitThatArrivedAllTheSameNeedsNoPerson_X07(t *testing.T) {
	t.Parallel()
	b := newBench()
	b.first = goesOutside
	b.stub.complete = func(_ context.Context, _ int, complete func() error) error {
		return errors.Join(complete(), idempotency.ErrCommitUnknown)
	}
	res, out, err := call(t.Context(), charges[refuse](t, b), keyed(t, "key-00000001"), charge[refuse]{Cart: "a"})
	if err != nil || res.Run != 1 {
		t.Error(res, err)
	}
	wantState(t, out, requestctx.StateExecuted)
	b.want(t, 1, 1, 1)
}

// MaxAttempts.

func TestL19_KeyThatHasFailedTooOftenIsNotTriedUntilItIsReleased_W09(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]error{"failed": errPaper, "dead": idempotency.Unknown(errPaper)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench()
			fail := true
			b.then = func(context.Context, int) error {
				if fail {
					return end
				}
				return nil
			}
			send, elsewhere, v := charges[twice](t, b), charges[twice](t, b), keyed(t, "key-00000001")
			for n := 1; n <= 2; n++ {
				if _, out, err := call(t.Context(), send, v, charge[twice]{Cart: "a"}); !errors.Is(err, errPaper) || out.Attempt != n {
					t.Error(out, err)
				}
				b.mem.Age(idempotency.DefaultLease)
			}
			b.stub.calls()
			for i, send := range []bus.Handler[charge[twice], paid]{send, elsewhere, send, elsewhere} {
				_, out, err := call(t.Context(), send, v, charge[twice]{Cart: "a"})
				e := wantError[*idempotency.AttemptsError](t, err, out, requestctx.StateRefused)
				if e.Attempts != 2 || e.Code() != "IDEMPOTENCY_ATTEMPTS_EXHAUSTED" || out.Attempt != 0 {
					t.Errorf("%d: %+v, %+v", i, e, out)
				}
				b.wantRecord(t, idempotency.Failed, 3) // one write more, and no further one
				if got := b.stub.calls(); i == 0 && got != "lease release" && got != "look lease release" || i > 0 && got != "lease" && got != "look" {
					t.Errorf("%d: the store was asked: %s", i, got)
				}
			}
			_, out, err := call(t.Context(), send, v, charge[twice]{Cart: "b"})
			wantError[*idempotency.ConflictError](t, err, out, requestctx.StateConflict)
			b.want(t, 2, 0, 1)
			fail = false
			free(t, b)
			b.wantRecord(t, idempotency.Failed, 1)
			if _, out, err := call(t.Context(), elsewhere, v, charge[twice]{Cart: "a"}); err != nil || out.Attempt != 2 {
				t.Error(out, err)
			}
			b.want(t, 3, 1, 1)
		})
	}
}

func TestL19_KeyThatHasFailedTooOftenRunsWhenItHasExpired(t *testing.T) {
	t.Parallel()
	b := newBench()
	b.then = func(_ context.Context, run int) error {
		if run <= 2 {
			return errPaper
		}
		return nil
	}
	send, v := charges[twice](t, b), keyed(t, "key-00000001")
	for range 3 {
		_, _, _ = call(t.Context(), send, v, charge[twice]{Cart: "a"})
	}
	b.mem.Age(idempotency.DefaultRetention)
	if _, out, err := call(t.Context(), send, v, charge[twice]{Cart: "a"}); err != nil || !out.ReusedExpired || out.Attempt != 1 {
		t.Error(out, err)
	}
}

func TestL19_NegativeMaxAttemptsIsNoBound(t *testing.T) {
	t.Parallel()
	b := newBench()
	b.then = func(context.Context, int) error { return errPaper }
	send, v := charges[endless](t, b), keyed(t, "key-00000001")
	for n := 1; n <= 3*idempotency.DefaultMaxAttempts; n++ {
		if _, out, err := call(t.Context(), send, v, charge[endless]{Cart: "a"}); err != errPaper || out.Attempt != n {
			t.Fatal(out, err)
		}
	}
}

func TestL19_ReleaseOfAnExhaustedKeyThatCannotBeWrittenIsMadeUpForLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		b.then = func(context.Context, int) error { return errPaper }
		send, v := charges[twice](t, b), keyed(t, "key-00000001")
		for range 2 {
			_, _, _ = call(t.Context(), send, v, charge[twice]{Cart: "a"})
		}
		b.stub.release = func(context.Context, int, func() error) error { return errDown }
		_, out, err := call(t.Context(), send, v, charge[twice]{Cart: "a"})
		wantError[*idempotency.AttemptsError](t, err, out, requestctx.StateRefused)
		b.stub.release = nil
		time.Sleep(idempotency.DefaultLease)
		_, out, err = call(t.Context(), send, v, charge[twice]{Cart: "a"})
		wantError[*idempotency.AttemptsError](t, err, out, requestctx.StateRefused)
		b.want(t, 2, 0, 1)
	})
}

func TestL19_ExhaustedKeyThatIsReleasedMeanwhileIsNotExhausted_L22(t *testing.T) {
	t.Parallel()
	b := newBench()
	b.then = func(_ context.Context, run int) error {
		if run <= 2 {
			return errPaper
		}
		return nil
	}
	send, v := charges[twice](t, b), keyed(t, "key-00000001")
	for range 2 {
		_, _, _ = call(t.Context(), send, v, charge[twice]{Cart: "a"})
	}
	b.stub.release = func(_ context.Context, _ int, release func() error) error {
		free(t, b)
		return release()
	}
	_, out, err := call(t.Context(), send, v, charge[twice]{Cart: "a"})
	wantError[*idempotency.LeaseLostError](t, err, out, requestctx.StateLost)
	if _, out, err := call(t.Context(), send, v, charge[twice]{Cart: "a"}); err != nil || out.State != requestctx.StateExecuted {
		t.Error(out, err)
	}
}

// What Stage refuses.

type stray[P hasPolicy] struct{}

func (stray[P]) CommandName() bus.Name[bus.None] { return "test.stray" }
func (stray[P]) Idempotency() idempotency.Policy {
	var p P
	return p.policy()
}

type (
	strictly    struct{}
	leaseless   struct{}
	shortKept   struct{}
	nonsense    struct{}
	unreachable struct{} // Takeover Reconcile in Atomic
)

func (strictly) policy() idempotency.Policy {
	return idempotency.Policy{Mode: idempotency.Leased, Strict: true}
}

func (leaseless) policy() idempotency.Policy {
	return idempotency.Policy{Lease: time.Minute, MaxAttempts: 3, Duplicate: idempotency.AnswerAccepted, RelaxedClaim: true}
}

func (shortKept) policy() idempotency.Policy {
	return idempotency.Policy{Mode: idempotency.Leased, Retention: 2 * time.Minute, ShortRetention: true}
}

func (nonsense) policy() idempotency.Policy {
	return idempotency.Policy{Mode: idempotency.Leased, Lease: -1, Takeover: 7, Duplicate: -1, MaxAttempts: math.MaxInt32}
}

func (unreachable) policy() idempotency.Policy {
	return idempotency.Policy{Takeover: idempotency.Reconcile}
}

func staged[P hasPolicy](t *testing.T, find func(context.Context, stray[P]) (bus.None, bool, error)) error {
	t.Helper()
	_, _, err := idempotency.StageWith(newEngine(t, newBench()), func(context.Context, stray[P]) (bus.None, error) { return bus.None{}, nil },
		idempotency.Settings[stray[P], bus.None]{Reconcile: find})
	return err
}

func finds[P hasPolicy](context.Context, stray[P]) (bus.None, bool, error) {
	return bus.None{}, false, nil
}

type unmarkedStray struct{}

func (unmarkedStray) CommandName() bus.Name[bus.None] { return "test.stray" }

func TestStageRefusesALeasedPolicyThatMakesNoSense_T11(t *testing.T) {
	t.Parallel()
	wantProblem(t, staged[reconcile](t, nil), "no reconciler is registered")
	wantProblem(t, staged(t, finds[leased]), "it would never be asked")
	wantProblem(t, staged(t, finds[refuse]), "it would never be asked")
	wantProblem(t, staged(t, finds[atomically]), "it would never be asked")
	wantProblem(t, staged(t, finds[unreachable]), "it would never be asked", "for Mode Leased")
	wantProblem(t, staged[strictly](t, nil), "Strict is for Mode Atomic")
	wantProblem(t, staged[leaseless](t, nil), "for Mode Leased")
	wantProblem(t, staged[shortKept](t, nil), "shorter than Lease")
	wantProblem(t, staged[nonsense](t, nil), "Lease is -1ns", "takeover(7) does not exist", "duplicate(-1) does not exist", "MaxAttempts is 2147483647")
	for name, err := range map[string]error{
		"reconcile": staged(t, finds[reconcile]), "leased": staged[leased](t, nil), "refuse": staged[refuse](t, nil), "endless": staged[endless](t, nil),
	} {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, _, err := idempotency.StageWith(newEngine(t, newBench()), func(context.Context, unmarkedStray) (bus.None, error) { return bus.None{}, nil },
		idempotency.Settings[unmarkedStray, bus.None]{
			Reconcile: func(context.Context, unmarkedStray) (bus.None, bool, error) { return bus.None{}, false, nil },
			Adjust:    func(*idempotency.Policy) { t.Error("a policy that nobody has is adjusted") },
		})
	wantProblem(t, err, "has a reconciler and is not marked idempotent", "adjusted for this deployment and it is not marked idempotent")
}
