package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
)

// What a store can do to a Leased attempt: at its claim, at its completion and at its release.

var errDown = errors.New("connection refused")

// The claim.

func TestX11_StoreThatIsDownBeforeALeasedClaimFailsClosed(t *testing.T) {
	t.Parallel()
	b := newBench()
	send, v := charges[leased](t, b), keyed(t, "key-00000001")
	b.stub.take = func(context.Context, int, taking) (idempotency.Lease, *idempotency.Record, error) {
		return nil, nil, errDown
	}
	_, out, err := call(t.Context(), send, v, charge[leased]{Cart: "a"})
	if wantError[*idempotency.StoreError](t, err, out, requestctx.StateRefused); !errors.Is(err, errDown) {
		t.Error(err)
	}
	b.wantCalls(t, "lease")
	b.want(t, 0, 0, 0)
	b.stub.take = nil
	if _, out, err := call(t.Context(), send, v, charge[leased]{Cart: "a"}); err != nil {
		t.Error(out, err)
	}
	b.stub.look = func(context.Context, idempotency.Claim) (*idempotency.Record, error) { return nil, errDown }
	_, out, err = call(t.Context(), send, v, charge[leased]{Cart: "a"})
	wantError[*idempotency.StoreError](t, err, out, requestctx.StateRefused)
	b.want(t, 1, 1, 1)
}

func TestX13_LeasedClaimThatTakesTooLongGivesUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		b.stub.take = func(ctx context.Context, _ int, _ taking) (idempotency.Lease, *idempotency.Record, error) {
			<-ctx.Done()
			return nil, nil, ctx.Err()
		}
		start := time.Now()
		_, out, err := call(t.Context(), charges[leased](t, b), keyed(t, "key-00000001"), charge[leased]{Cart: "a"})
		wantError[*idempotency.StoreError](t, err, out, requestctx.StateRefused)
		if d := time.Since(start); d > idempotency.FinishTimeout {
			t.Errorf("the claim was given up after %v", d)
		}
		b.want(t, 0, 0, 0)
	})
}

func TestBR08_ClaimWhoseAnswerIsLostIsRecognisedAndRunsOnce(t *testing.T) {
	t.Parallel()
	// The claim is committed, and its answer does not come. What follows it fails in other ways before it gets through.
	for name, after := range map[string][]error{
		"and the next one is answered":       nil,
		"over and over":                      {idempotency.ErrCommitUnknown, idempotency.ErrCommitUnknown, idempotency.ErrCommitUnknown},
		"and the store is away for a moment": {errDown, errDown, errDown, errDown},
		"and the record is held":             {idempotency.ErrBusy, idempotency.ErrSerialization},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBench()
				b.stub.take = func(_ context.Context, n int, take taking) (idempotency.Lease, *idempotency.Record, error) {
					switch {
					case n == 1:
						_, _, err := take()
						return nil, nil, errors.Join(err, idempotency.ErrCommitUnknown)
					case n-2 < len(after):
						return nil, nil, fmt.Errorf("claim %d: %w", n, after[n-2])
					}
					return take()
				}
				send, v := charges[leased](t, b), keyed(t, "key-00000001")
				res, out, err := call(t.Context(), send, v, charge[leased]{Cart: "a"})
				if err != nil || res != (paid{"a", 1}) || out.Attempt != 1 || out.TookOver {
					t.Fatalf("%+v, %+v, %v", res, out, err)
				}
				wantState(t, out, requestctx.StateExecuted)
				b.want(t, 1, 1, 1)
				b.wantRecord(t, idempotency.Completed, 1)
			})
		})
	}
}

func TestBR08_ClaimThatWasLostAndCannotBeFoundAgainFailsClosedAfterABound_X14(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		b.stub.take = func(_ context.Context, n int, take taking) (idempotency.Lease, *idempotency.Record, error) {
			if n == 1 {
				_, _, _ = take()
				return nil, nil, idempotency.ErrCommitUnknown
			}
			return nil, nil, errDown
		}
		send, v := charges[hurried](t, b), keyed(t, "key-00000001")
		start := time.Now()
		_, out, err := call(t.Context(), send, v, charge[hurried]{Cart: "a"})
		wantError[*idempotency.StoreError](t, err, out, requestctx.StateRefused)
		if d := time.Since(start); d > idempotency.FinishTimeout {
			t.Errorf("it was given up after %v", d)
		}
		b.want(t, 0, 0, 1)
		b.stub.take = nil
		_, out, err = call(t.Context(), send, v, charge[hurried]{Cart: "a"})
		wantError[*idempotency.InProgressError](t, err, out, requestctx.StateInProgress)
		time.Sleep(idempotency.DefaultLease)
		if _, out, err = call(t.Context(), send, v, charge[hurried]{Cart: "a"}); err != nil || !out.TookOver {
			t.Errorf("after the lease: %+v, %v", out, err)
		}
		b.want(t, 1, 1, 1)
	})
}

func TestLeasedClaimThatMeetsAnUncommittedTransactionWaitsItsBudget(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		busy := 5
		b.stub.take = func(_ context.Context, n int, take taking) (idempotency.Lease, *idempotency.Record, error) {
			if n <= busy {
				return nil, nil, fmt.Errorf("memory: %w", idempotency.ErrBusy)
			}
			return take()
		}
		if _, out, err := call(t.Context(), charges[leased](t, b), keyed(t, "key-00000001"), charge[leased]{Cart: "a"}); err != nil || out.State != requestctx.StateExecuted {
			t.Error(out, err)
		}
		busy = 1000
		start := time.Now()
		_, out, err := call(t.Context(), charges[leased](t, b), keyed(t, "key-00000002"), charge[leased]{Cart: "a"})
		wantError[*idempotency.InProgressError](t, err, out, requestctx.StateInProgress)
		if d := time.Since(start); d != idempotency.DefaultWait {
			t.Errorf("in progress after %v", d)
		}
		b.want(t, 1, 1, 1)
	})
}

func TestL18_LeasedClaimThatCannotBeSerializedIsTriedThreeTimes(t *testing.T) {
	t.Parallel()
	for fails := 1; fails <= idempotency.MaxTries; fails++ {
		b := newBench()
		b.stub.take = func(_ context.Context, n int, take taking) (idempotency.Lease, *idempotency.Record, error) {
			if n <= fails {
				return nil, nil, fmt.Errorf("memory: %w", idempotency.ErrSerialization)
			}
			return take()
		}
		_, out, err := call(t.Context(), charges[leased](t, b), keyed(t, "key-00000001"), charge[leased]{Cart: "a"})
		if fails < idempotency.MaxTries {
			if err != nil || out.State != requestctx.StateExecuted {
				t.Errorf("%d times: %+v, %v", fails, out, err)
			}
			b.want(t, 1, 1, 1)
			continue
		}
		if e := wantError[*idempotency.RetriesError](t, err, out, requestctx.StateFreed); e.Tries != idempotency.MaxTries || !errors.Is(e, idempotency.ErrSerialization) {
			t.Error(e)
		}
		b.wantCalls(t, "lease lease lease")
		b.want(t, 0, 0, 0)
	}
}

func TestT07_LeasedRecordThatVanishesAgainAndAgainIsInProgressAfterABound(t *testing.T) {
	t.Parallel()
	for vanish := 1; vanish <= idempotency.MaxVanished; vanish++ {
		b := newBench()
		b.stub.take = func(_ context.Context, n int, take taking) (idempotency.Lease, *idempotency.Record, error) {
			if n <= vanish {
				return nil, nil, nil // it stood in the way, and was gone when it was to be read
			}
			return take()
		}
		_, out, err := call(t.Context(), charges[leased](t, b), keyed(t, "key-00000001"), charge[leased]{Cart: "a"})
		if vanish < idempotency.MaxVanished {
			if err != nil {
				t.Errorf("%d times: %v", vanish, err)
			}
			b.want(t, 1, 1, 1)
			continue
		}
		wantError[*idempotency.InProgressError](t, err, out, requestctx.StateInProgress)
		b.want(t, 0, 0, 0)
	}
}

// The completion.

func TestX07_LeasedCommitWhoseAnswerIsLostIsASuccessOfThisAttempt_BR02(t *testing.T) {
	t.Parallel()
	for name, refuse := range map[string]bool{"success": false, "refusal": true} {
		b := newBench()
		if refuse {
			b.then = func(context.Context, int) error { return idempotency.Final(errPaper) }
		}
		b.stub.complete = func(_ context.Context, n int, complete func() error) error {
			if n > 1 {
				return complete()
			}
			return errors.Join(complete(), idempotency.ErrCommitUnknown)
		}
		send, v := charges[leased](t, b), keyed(t, "key-00000001")
		res, out, err := call(t.Context(), send, v, charge[leased]{Cart: "a"})
		wantState(t, out, requestctx.StateExecuted)
		if refuse {
			wantError[*idempotency.RefusedError](t, err, out, requestctx.StateExecuted)
			b.want(t, 1, 0, 1)
			b.wantCalls(t, "lease run refuse refuse rollback look") // a refusal stands alone and is sent again
		} else {
			if err != nil || res != (paid{"a", 1}) {
				t.Error(name, res, err)
			}
			b.want(t, 1, 1, 1)
			b.wantCalls(t, "lease run complete release rollback look")
		}
		b.wantRecord(t, idempotency.Completed, 1)
		if _, out, _ := call(t.Context(), send, v, charge[leased]{Cart: "a"}); !out.Replayed {
			t.Errorf("%s: %+v", name, out)
		}
	}
}

func TestX06_LeasedCommitThatNeverArrivedIsBurntAndTheKeyIsFree_BR02(t *testing.T) {
	t.Parallel()
	b := newBench()
	b.stub.complete = func(_ context.Context, n int, complete func() error) error {
		if n == 1 {
			return fmt.Errorf("%w: unexpected EOF", idempotency.ErrCommitUnknown)
		}
		return complete()
	}
	send, v := charges[leased](t, b), keyed(t, "key-00000001")
	_, out, err := call(t.Context(), send, v, charge[leased]{Cart: "a"})
	if wantError[*idempotency.StoreError](t, err, out, requestctx.StateFreed); !errors.Is(err, idempotency.ErrCommitUnknown) {
		t.Error(err)
	}
	b.wantCalls(t, "lease run complete release")
	b.want(t, 1, 0, 1)
	if _, out, err := call(t.Context(), send, v, charge[leased]{Cart: "a"}); err != nil || out.State != requestctx.StateExecuted || out.Attempt != 2 || out.TookOver {
		t.Error(out, err)
	}
	b.want(t, 2, 1, 1)
}

func TestX08_LeasedCommitThatArrivesLateFailsItsGuard(t *testing.T) {
	t.Parallel()
	b := newBench()
	var late func() error
	b.stub.complete = func(_ context.Context, n int, complete func() error) error {
		if n == 1 {
			late = complete
			return idempotency.ErrCommitUnknown
		}
		return complete()
	}
	send, v := charges[leased](t, b), keyed(t, "key-00000001")
	b.then = func(_ context.Context, run int) error {
		if run == 2 {
			if err := late(); err == nil {
				t.Error("the late COMMIT of the first attempt went through")
			}
		}
		return nil
	}
	_, out, err := call(t.Context(), send, v, charge[leased]{Cart: "a"})
	wantError[*idempotency.StoreError](t, err, out, requestctx.StateFreed)
	if res, out, err := call(t.Context(), send, v, charge[leased]{Cart: "a"}); err != nil || out.State != requestctx.StateExecuted || res.Run != 2 {
		t.Error(res, out, err)
	}
	b.want(t, 2, 1, 1)
}

func TestX08_LeasedCommitThatArrivesBeforeItIsBurntIsTheOutcome_X10(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		var late func() error
		b.stub.complete = func(_ context.Context, _ int, complete func() error) error {
			late = complete
			return idempotency.ErrCommitUnknown
		}
		b.stub.release = func(ctx context.Context, n int, release func() error) error {
			switch n {
			case 1: // the row is held by the COMMIT that is under way
				return fmt.Errorf("memory: %w", idempotency.ErrBusy)
			case 2:
				return errors.Join(late(), errDown)
			}
			return release()
		}
		res, out, err := call(t.Context(), charges[leased](t, b), keyed(t, "key-00000001"), charge[leased]{Cart: "a"})
		if err != nil || res != (paid{"a", 1}) {
			t.Error(res, err)
		}
		wantState(t, out, requestctx.StateExecuted)
		b.want(t, 1, 1, 1)
	})
}

func TestX09_LeasedOutcomeThatCannotBeFoundOutIsUnknownAfterABound(t *testing.T) {
	t.Parallel()
	for name, arrived := range map[string]bool{"and the commit arrived": true, "and it did not": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBench()
				gone := fmt.Errorf("%w: unexpected EOF", idempotency.ErrCommitUnknown)
				b.stub.complete = func(_ context.Context, _ int, complete func() error) error {
					if arrived {
						return errors.Join(complete(), gone)
					}
					return gone
				}
				b.stub.release = func(ctx context.Context, n int, _ func() error) error {
					if n == 3 { // a connection that hangs
						<-ctx.Done()
					}
					return errDown
				}
				send, v := charges[hurried](t, b), keyed(t, "key-00000001")
				start := time.Now()
				_, out, err := call(t.Context(), send, v, charge[hurried]{Cart: "a"})
				e := wantError[*idempotency.OutcomeUnknownError](t, err, out, requestctx.StateUnknown)
				if d := time.Since(start); d != idempotency.ResolveTimeout || e.Review || !errors.Is(e, idempotency.ErrCommitUnknown) {
					t.Errorf("after %v: %+v", d, e)
				}
				b.stub.complete, b.stub.release = nil, nil
				res, out, err := call(t.Context(), send, v, charge[hurried]{Cart: "a"})
				if arrived {
					if err != nil || !out.Replayed || res.Run != 1 {
						t.Error(res, out, err)
					}
					b.want(t, 1, 1, 1)
					return
				}
				wantError[*idempotency.InProgressError](t, err, out, requestctx.StateInProgress)
				time.Sleep(idempotency.DefaultLease)
				if _, out, err = call(t.Context(), send, v, charge[hurried]{Cart: "a"}); err != nil || !out.TookOver {
					t.Error(out, err)
				}
				b.want(t, 2, 1, 1)
			})
		})
	}
}

func TestX12_OutcomeThatStandsAloneIsWrittenAgainWhenTheStoreIsBack(t *testing.T) {
	t.Parallel()
	for _, fault := range []error{errDown, idempotency.ErrBusy, idempotency.ErrSerialization, idempotency.ErrCommitUnknown} {
		for name, refuse := range map[string]bool{"success": false, "refusal": true} {
			t.Run(name+" "+fault.Error(), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					b := newBench()
					b.alone = !refuse // a refusal stands alone even after a business transaction
					b.first = goesOutside
					if refuse {
						b.then = func(context.Context, int) error { return idempotency.Final(errPaper) }
					}
					start := time.Now()
					b.stub.complete = func(_ context.Context, _ int, complete func() error) error {
						if time.Since(start) < 3*time.Second {
							return fmt.Errorf("memory: %w", fault)
						}
						return complete()
					}
					send, v := charges[leased](t, b), keyed(t, "key-00000001")
					_, out, err := call(t.Context(), send, v, charge[leased]{Cart: "a"})
					if wantState(t, out, requestctx.StateExecuted); (err != nil) != refuse {
						t.Error(err)
					}
					b.want(t, 1, 0, 1)
					b.wantRecord(t, idempotency.Completed, 1)
					if b.stub.releases != 0 {
						t.Error("the key was made free meanwhile")
					}
				})
			})
		}
	}
}

func TestX12_SuccessThatCannotBeRecordedInTimeIsNotMadeFreeToBeDoneAgain(t *testing.T) {
	t.Parallel()
	for _, fault := range []error{errDown, idempotency.ErrBusy, idempotency.ErrSerialization, idempotency.ErrCommitUnknown} {
		t.Run(fault.Error(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBench()
				b.alone = true
				b.first = goesOutside
				b.stub.complete = func(context.Context, int, func() error) error { return fmt.Errorf("memory: %w", fault) }
				send, v := charges[hurried](t, b), keyed(t, "key-00000001")
				start := time.Now()
				_, out, err := call(t.Context(), send, v, charge[hurried]{Cart: "a"})
				e := wantError[*idempotency.OutcomeUnknownError](t, err, out, requestctx.StateUnknown)
				if d := time.Since(start); d != idempotency.ResolveTimeout || !errors.Is(e, fault) || e.RetryAfter != idempotency.DefaultLease-d {
					t.Errorf("after %v: %+v", d, e)
				}
				b.wantRecord(t, idempotency.InProgress, 1)
				_, out, err = call(t.Context(), send, v, charge[hurried]{Cart: "a"})
				wantError[*idempotency.InProgressError](t, err, out, requestctx.StateInProgress)
				b.want(t, 1, 0, 1)
			})
		})
	}
}

func TestX12_SuccessWhoseLastAnswerIsLostIsFoundWhenItIsReadOnceMore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		b.alone = true
		b.stub.complete = func(_ context.Context, _ int, complete func() error) error {
			_ = complete() // it is written by one of them, and no answer comes
			return idempotency.ErrCommitUnknown
		}
		res, out, err := call(t.Context(), charges[leased](t, b), keyed(t, "key-00000001"), charge[leased]{Cart: "a"})
		if err != nil || res.Run != 1 {
			t.Error(res, err)
		}
		wantState(t, out, requestctx.StateExecuted)
	})
}

func TestX12_BusinessRowsThatWereNotCommittedAreNotRecordedWithoutThem(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		b.stub.complete = func(_ context.Context, n int, complete func() error) error {
			if n == 1 {
				return errDown // before COMMIT was sent
			}
			return complete()
		}
		send, v := charges[leased](t, b), keyed(t, "key-00000001")
		_, out, err := call(t.Context(), send, v, charge[leased]{Cart: "a"})
		if wantError[*idempotency.StoreError](t, err, out, requestctx.StateFreed); !errors.Is(err, errDown) {
			t.Error(err)
		}
		b.wantCalls(t, "lease run complete release")
		b.want(t, 1, 0, 1)
		if _, _, err := call(t.Context(), send, v, charge[leased]{Cart: "a"}); err != nil {
			t.Error(err)
		}
		b.want(t, 2, 1, 1)
	})
}

func TestX12_StoreThatComesBackInTimeToFreeTheKeyFreesIt_R04(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		b.then = func(_ context.Context, run int) error {
			if run == 1 {
				return errPaper
			}
			return nil
		}
		start := time.Now()
		b.stub.release = func(_ context.Context, _ int, release func() error) error {
			if time.Since(start) < 3*time.Second {
				return errDown
			}
			return release()
		}
		send, v := charges[leased](t, b), keyed(t, "key-00000001")
		if _, out, err := call(t.Context(), send, v, charge[leased]{Cart: "a"}); err != errPaper || out.State != requestctx.StateFreed {
			t.Error(out, err)
		}
		b.wantRecord(t, idempotency.Failed, 1)
		if _, _, err := call(t.Context(), send, v, charge[leased]{Cart: "a"}); err != nil {
			t.Error(err)
		}
	})
}

func TestX19_ReleaseThatCannotBeWrittenLeavesTheKeyToItsLease(t *testing.T) {
	t.Parallel()
	for name, panics := range map[string]bool{"error": false, "panic": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBench()
				b.then = func(_ context.Context, run int) error {
					if run == 1 && panics {
						panic(errPaper)
					}
					if run == 1 {
						return errPaper
					}
					return nil
				}
				b.stub.release = func(context.Context, int, func() error) error { return errDown }
				send, v := charges[hurried](t, b), keyed(t, "key-00000001")
				ctx, req := requestctx.New(t.Context(), v)
				start := time.Now()
				func() {
					defer func() {
						if r := recover(); (r != nil) != panics {
							t.Errorf("recovered %v", r)
						}
					}()
					if _, err := send(ctx, charge[hurried]{Cart: "a"}); err != errPaper {
						t.Error(err)
					}
				}()
				wantState(t, req.Outcome(), requestctx.StateUnknown)
				if d := time.Since(start); d != idempotency.ResolveTimeout {
					t.Errorf("it was given up after %v", d)
				}
				b.wantRecord(t, idempotency.InProgress, 1)
				b.want(t, 1, 0, 1)
				b.stub.release = nil
				_, out, err := call(t.Context(), send, v, charge[hurried]{Cart: "a"})
				wantError[*idempotency.InProgressError](t, err, out, requestctx.StateInProgress)
				time.Sleep(idempotency.DefaultLease)
				if _, out, err := call(t.Context(), send, v, charge[hurried]{Cart: "a"}); err != nil || !out.TookOver {
					t.Error(out, err)
				}
				b.want(t, 2, 1, 1)
			})
		})
	}
}

func TestReleaseWhoseAnswerIsLostIsAReleaseAndNoLostLease_X19(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		then func(context.Context, int) error
		ends func(context.Context, int, func() error) error
		err  error
	}{
		"after a failure":         {then: func(context.Context, int) error { return errPaper }, err: errPaper},
		"after an unknown commit": {ends: func(context.Context, int, func() error) error { return idempotency.ErrCommitUnknown }, err: idempotency.ErrCommitUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench()
			b.then, b.stub.complete = tc.then, tc.ends
			b.stub.release = func(_ context.Context, n int, release func() error) error {
				if n == 1 {
					return errors.Join(release(), errDown)
				}
				return release()
			}
			_, out, err := call(t.Context(), charges[leased](t, b), keyed(t, "key-00000001"), charge[leased]{Cart: "a"})
			if !errors.Is(err, tc.err) {
				t.Error(err)
			}
			wantState(t, out, requestctx.StateFreed)
			b.wantRecord(t, idempotency.Failed, 1)
		})
	}
}

// Refused because of a concurrent transaction.

func TestL18_LeasedAttemptThatCouldNotBeSerializedIsMadeAgainUnderTheSameClaim(t *testing.T) {
	t.Parallel()
	refused := fmt.Errorf("%w: SQLSTATE 40001", idempotency.ErrSerialization)
	for name, tc := range map[string]struct {
		plant func(b *bench, fails int)
		log   string // of a try that fails
	}{
		"at the completion": {func(b *bench, fails int) {
			b.stub.complete = func(_ context.Context, n int, complete func() error) error {
				if n <= fails {
					return refused
				}
				return complete()
			}
		}, "lease run complete "},
		"in the handler": {func(b *bench, fails int) {
			b.then = func(_ context.Context, run int) error {
				if run <= fails {
					return fmt.Errorf("insert order lines: %w", refused)
				}
				return nil
			}
		}, "lease run "},
	} {
		for _, seen := range []bool{false, true} {
			for fails := 1; fails <= idempotency.MaxTries; fails++ {
				t.Run(fmt.Sprint(name, " ", fails, " seen ", seen), func(t *testing.T) {
					t.Parallel()
					b := newBench()
					tc.plant(b, fails)
					send, v := charges[leased](t, b), keyed(t, "key-00000001")
					attempt, first := 1, ""
					if seen { // a key that has been in this process before begins with a look
						hold := b.stub.complete
						b.stub.complete = nil
						then := b.then
						b.then = func(context.Context, int) error { return idempotency.Unknown(errPaper) }
						_, _, _ = call(t.Context(), send, v, charge[leased]{Cart: "a"})
						_, out, err := call(t.Context(), send, v, charge[leased]{Cart: "a"})
						wantError[*idempotency.InProgressError](t, err, out, requestctx.StateInProgress)
						b.mem.Age(idempotency.DefaultLease)
						b.runs, b.stub.ends = 0, 0
						b.then, b.stub.complete = then, hold
						b.stub.calls()
						attempt, first = 2, "look "
					}
					var attempts []int
					b.first = func(ctx context.Context, _ int) error {
						g, _ := idempotency.Attempt(ctx)
						attempts = append(attempts, g.Attempt)
						return nil
					}
					res, out, err := call(t.Context(), send, v, charge[leased]{Cart: "a"})
					log := ""
					for i := range fails {
						log += first + tc.log
						if i < idempotency.MaxTries-1 {
							log += "rollback "
						}
					}
					for _, n := range attempts {
						if n != attempt {
							t.Errorf("the tries are attempts %v, want %d each", attempts, attempt)
						}
					}
					if fails < idempotency.MaxTries {
						if err != nil || res.Run != fails+1 {
							t.Errorf("%+v, %v", res, err)
						}
						wantState(t, out, requestctx.StateExecuted)
						b.want(t, fails+1, 1, 1)
						b.wantRecord(t, idempotency.Completed, attempt)
						b.wantCalls(t, log+first+"lease run complete")
						return
					}
					e := wantError[*idempotency.RetriesError](t, err, out, requestctx.StateFreed)
					if e.Tries != idempotency.MaxTries || !errors.Is(e, idempotency.ErrSerialization) {
						t.Error(e)
					}
					b.want(t, fails, 0, 1)
					b.wantRecord(t, idempotency.Failed, attempt)
					b.wantCalls(t, log+"release")
				})
			}
		}
	}
}

func TestL18_LeasedAttemptThatWasReplacedBetweenItsTriesDoesNotRunAgain_E10(t *testing.T) {
	t.Parallel()
	b := newBench()
	elsewhere := charges[leased](t, b)
	v := keyed(t, "key-00000001")
	b.then = func(ctx context.Context, run int) error {
		if run > 1 {
			return nil
		}
		return fmt.Errorf("insert: %w", idempotency.ErrSerialization)
	}
	b.stub.take = func(_ context.Context, n int, take taking) (idempotency.Lease, *idempotency.Record, error) {
		if n == 2 { // the first one's second try: its lease is over, and somebody comes first
			b.mem.Age(idempotency.DefaultLease)
			if _, _, err := call(context.Background(), elsewhere, v, charge[leased]{Cart: "a"}); err != nil {
				t.Error(err)
			}
		}
		return take()
	}
	res, out, err := call(t.Context(), charges[leased](t, b), v, charge[leased]{Cart: "a"})
	if err != nil || res.Run != 2 {
		t.Error(res, err)
	}
	wantState(t, out, requestctx.StateReplayed)
	b.want(t, 2, 1, 1)
}

func TestL18_StoreThatGoesAwayBetweenTwoTriesLeavesTheDoubtToTheLease(t *testing.T) {
	t.Parallel()
	b := newBench()
	b.stub.take = func(_ context.Context, n int, take taking) (idempotency.Lease, *idempotency.Record, error) {
		if n > 1 {
			return nil, nil, errDown
		}
		return take()
	}
	b.then = func(context.Context, int) error { return fmt.Errorf("insert: %w", idempotency.ErrSerialization) }
	_, out, err := call(t.Context(), charges[leased](t, b), keyed(t, "key-00000001"), charge[leased]{Cart: "a"})
	if wantError[*idempotency.StoreError](t, err, out, requestctx.StateUnknown); !errors.Is(err, errDown) {
		t.Error(err)
	}
	b.wantRecord(t, idempotency.InProgress, 1)
}

func TestL18_ClaimThatCannotBeTakenAgainLeavesTheDoubtToTheLease(t *testing.T) {
	t.Parallel()
	b := newBench()
	b.stub.take = func(_ context.Context, n int, take taking) (idempotency.Lease, *idempotency.Record, error) {
		if n > 1 {
			return nil, nil, fmt.Errorf("memory: %w", idempotency.ErrSerialization)
		}
		return take()
	}
	b.then = func(context.Context, int) error { return fmt.Errorf("insert: %w", idempotency.ErrSerialization) }
	_, out, err := call(t.Context(), charges[leased](t, b), keyed(t, "key-00000001"), charge[leased]{Cart: "a"})
	if e := wantError[*idempotency.RetriesError](t, err, out, requestctx.StateUnknown); e.Tries != idempotency.MaxTries {
		t.Error(e)
	}
	b.want(t, 1, 0, 1)
	b.wantRecord(t, idempotency.InProgress, 1)
}

func TestX07_OutcomeThatWasErasedBeforeItsOwnAttemptHasReadItIsDoneAndGone_T15(t *testing.T) {
	t.Parallel()
	b := newBench()
	b.stub.complete = func(_ context.Context, _ int, complete func() error) error {
		err := complete()
		erase(t, b)
		return errors.Join(err, idempotency.ErrCommitUnknown)
	}
	_, out, err := call(t.Context(), charges[leased](t, b), keyed(t, "key-00000001"), charge[leased]{Cart: "a"})
	wantError[*idempotency.ResultUnavailableError](t, err, out, requestctx.StateExecuted)
	b.want(t, 1, 1, 1)
}

// crate is a Leased command with something in it that a handler can change.
type crate struct {
	Items []int `json:"items"`
}

func (crate) CommandName() bus.Name[int] { return "test.crate" }
func (crate) Idempotency() idempotency.Policy {
	return idempotency.Policy{Mode: idempotency.Leased, Wait: -1}
}

func TestLeasedHandlerThatChangesItsCommandIsNotRunAgainOnAnotherPayload_L18(t *testing.T) {
	t.Parallel()
	b := newBench()
	runs := 0
	send := serveOn(t, newEngine(t, b), func(_ context.Context, c crate) (int, error) {
		runs++
		c.Items[0]++
		return 0, fmt.Errorf("insert: %w", idempotency.ErrSerialization)
	})
	v := keyed(t, "key-00000001")
	_, out, err := call(t.Context(), send, v, crate{[]int{1}})
	if wantError[*idempotency.HandlerError](t, err, out, requestctx.StateFreed); runs != 1 {
		t.Errorf("%d runs", runs)
	}
	b.wantRecord(t, idempotency.Failed, 1)
	_, out, err = call(t.Context(), send, v, crate{[]int{2}}) // what it had become
	wantError[*idempotency.ConflictError](t, err, out, requestctx.StateConflict)
}

func TestL09_LeasedCompletionThatIsLostAnswersWithTheRecord(t *testing.T) {
	t.Parallel()
	b := newBench()
	elsewhere := charges[leased](t, b)
	v := keyed(t, "key-00000001")
	b.first = func(_ context.Context, run int) error {
		if run == 1 {
			b.mem.Age(idempotency.DefaultLease)
			if _, out, err := call(context.Background(), elsewhere, v, charge[leased]{Cart: "a"}); err != nil || !out.TookOver {
				t.Error(out, err)
			}
		}
		return nil
	}
	b.alone = true
	res, out, err := call(t.Context(), charges[leased](t, b), v, charge[leased]{Cart: "a"})
	if err != nil || res.Run != 2 { // never its own
		t.Error(res, err)
	}
	wantState(t, out, requestctx.StateReplayed)
	b.wantRecord(t, idempotency.Completed, 2)
}

func TestL09_LostAttemptThatCannotReadTheRecordIsAStoreError(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		b.stub.complete = func(context.Context, int, func() error) error { return fmt.Errorf("memory: %w", idempotency.ErrLost) }
		b.stub.look = func(context.Context, idempotency.Claim) (*idempotency.Record, error) { return nil, errDown }
		start := time.Now()
		_, out, err := call(t.Context(), charges[leased](t, b), keyed(t, "key-00000001"), charge[leased]{Cart: "a"})
		if wantError[*idempotency.StoreError](t, err, out, requestctx.StateLost); !errors.Is(err, errDown) || time.Since(start) != idempotency.ResolveTimeout {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
	})
}

func TestX07_CommitThatMayHaveHappenedIsNotReportedAsLostWhenTheRecordCannotBeRead(t *testing.T) {
	t.Parallel()
	for name, alone := range map[string]bool{"with business rows": false, "alone": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBench()
				b.alone = alone
				away := true
				b.stub.complete = func(_ context.Context, n int, complete func() error) error {
					if n == 1 {
						return errors.Join(complete(), idempotency.ErrCommitUnknown)
					}
					return complete()
				}
				b.stub.look = func(ctx context.Context, c idempotency.Claim) (*idempotency.Record, error) {
					if away {
						return nil, errDown
					}
					return b.mem.Look(ctx, c)
				}
				send, v := charges[leased](t, b), keyed(t, "key-00000001")
				_, out, err := call(t.Context(), send, v, charge[leased]{Cart: "a"})
				if wantError[*idempotency.OutcomeUnknownError](t, err, out, requestctx.StateUnknown); !errors.Is(err, errDown) {
					t.Error(err)
				}
				away = false
				if res, out, err := call(t.Context(), send, v, charge[leased]{Cart: "a"}); err != nil || !out.Replayed || res.Run != 1 {
					t.Error(res, out, err)
				}
			})
		})
	}
}

func TestX07_RecordThatCanBeReadAMomentLaterIsRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		b.stub.complete = func(_ context.Context, _ int, complete func() error) error {
			return errors.Join(complete(), idempotency.ErrCommitUnknown)
		}
		looks := 0
		b.stub.look = func(ctx context.Context, c idempotency.Claim) (*idempotency.Record, error) {
			if looks++; looks < 5 {
				return nil, errDown
			}
			return b.mem.Look(ctx, c)
		}
		res, out, err := call(t.Context(), charges[leased](t, b), keyed(t, "key-00000001"), charge[leased]{Cart: "a"})
		if err != nil || res.Run != 1 {
			t.Error(res, err)
		}
		wantState(t, out, requestctx.StateExecuted)
	})
}

func TestL09_AttemptThatLostItsRecordToAPurgeIsLost_T09(t *testing.T) {
	t.Parallel()
	b := newBench()
	send, v := charges[leased](t, b), keyed(t, "key-00000001")
	b.first = func(_ context.Context, run int) error {
		if run == 1 {
			b.mem.Age(1000 * time.Hour)
			if done, err := b.mem.Purge(context.Background(), idempotency.PurgeBatch{Limit: 10}); err != nil || done.Removed != 1 {
				t.Error(done, err)
			}
		}
		return nil
	}
	b.alone = true
	_, out, err := call(t.Context(), send, v, charge[leased]{Cart: "a"})
	e := wantError[*idempotency.LeaseLostError](t, err, out, requestctx.StateLost)
	if e.Code() != "IDEMPOTENCY_LEASE_LOST" || len(b.mem.Records()) != 0 {
		t.Error(e, b.mem.Records())
	}
	if _, out, err := call(t.Context(), send, v, charge[leased]{Cart: "a"}); err != nil || out.Attempt != 1 {
		t.Error(out, err)
	}
}

func TestTwoLeasedProcessesOnOneStoreRunEachKeyOnce_BR09_L08(t *testing.T) {
	t.Parallel()
	for range 50 {
		synctest.Test(t, func(t *testing.T) { // the time to wait is the bubble's
			b := newBench()
			here, elsewhere := charges[leased](t, b), charges[leased](t, b)
			v := keyed(t, "key-00000001")
			var all []<-chan answered
			start := make(chan struct{})
			b.first = func(context.Context, int) error { <-start; return nil }
			for range 8 {
				all = append(all, background(t.Context(), here, v, charge[leased]{Cart: "a"}), background(t.Context(), elsewhere, v, charge[leased]{Cart: "a"}))
			}
			close(start)
			executed := 0
			for _, done := range all {
				a := <-done
				if a.err != nil || a.res != (paid{"a", 1}) {
					t.Error(a)
				}
				if a.out.State == requestctx.StateExecuted {
					executed++
				}
			}
			if executed != 1 {
				t.Errorf("%d executed", executed)
			}
			b.want(t, 1, 1, 1)
		})
	}
}
