package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
)

// serveReconciled is serve for a command with a reconciler.
func serveReconciled[C bus.Command[R], R any](t testing.TB, store idempotency.Store, handle bus.Handler[C, R], reconcile func(context.Context, C) (R, bool, error)) bus.Handler[C, R] {
	t.Helper()
	engine, err := idempotency.New(idempotency.Config{Store: store})
	if err != nil {
		t.Fatal(err)
	}
	claimed, _, err := idempotency.StageWith(engine, handle, idempotency.Settings[C, R]{Reconcile: reconcile})
	if err != nil {
		t.Fatal(err)
	}
	return enter(t, claimed, true)
}

// free does what a person does who frees a key: looks at its record, and frees what was seen.
func free(t *testing.T, f Fixture, v requestctx.Values) {
	t.Helper()
	rec := kept(t, f, v)
	if freed, err := f.Store.Free(within(t), rec.ID, rec.Attempt); err != nil || !freed {
		t.Fatalf("Free of %s gives (%v, %v), want true", show(&rec.Record), freed, err)
	}
}

// policyCases are those of what a policy says about attempts that have failed or died.
func policyCases() []specCase {
	return []specCase{
		{"KeyThatFailedTooOftenIsNotTriedUntilAPersonFreesIt_L19_L22_W09",
			"A payload that kills its process would kill one after the other. After so many attempts it is left alone until somebody has looked.",
			func(t *testing.T, f Fixture) {
				for name, end := range map[string]func(t *testing.T, f Fixture, v requestctx.Values, cmd charge[twice]) reply[placed]{"fails": fails[twice], "dies": dies[twice]} {
					v := request(t, "too-often-"+name)
					cmd := charge[twice]{Note: v.Key.String(), Amount: 1}
					for attempt := 1; attempt <= 2; attempt++ {
						if r := end(t, f, v, cmd); r.out.Attempt != attempt {
							t.Errorf("%s: the outcome is %+v, want attempt %d", name, r.out, attempt)
						}
						f.Age(t, overdue)
					}
					s := &till{f: f}
					here, elsewhere := charges[twice](t, f.Store, s), charges[twice](t, f.Store, s)
					for _, send := range []bus.Handler[charge[twice], placed]{here, elsewhere, here} {
						e := failed[*idempotency.AttemptsError](t, call(within(t), send, v, cmd), requestctx.StateRefused)
						if e.Attempts != 2 {
							t.Errorf("%s: the caller is told of %d attempts, want 2", name, e.Attempts)
						}
						failed[*idempotency.ConflictError](t, call(within(t), send, v, charge[twice]{Note: v.Key.String(), Amount: 2}), requestctx.StateConflict)
						f.Age(t, overdue)
					}
					s.wantRuns(t, 0)
					if rec := kept(t, f, v); rec.State != idempotency.Failed {
						t.Errorf("%s: the record is %s, want failed", name, show(&rec.Record))
					}
					free(t, f, v)
					failed[*idempotency.ConflictError](t, call(within(t), here, v, charge[twice]{Note: v.Key.String(), Amount: 2}), requestctx.StateConflict)
					last := call(within(t), elsewhere, v, cmd)
					executed(t, last)
					replayed(t, call(within(t), here, v, cmd), last)
					s.wantRuns(t, 1)
					if n := notes(t, f, cmd.Note); n != 1 {
						t.Errorf("%s: %d business rows", name, n)
					}
				}
			}},
		{"AttemptThatTheDatabaseRefusedIsMadeAgain_L18",
			"A deadlock or a serialization failure is nobody's fault: the attempt is made again under its own claim, and what it had written is undone. That is bounded.",
			func(t *testing.T, f Fixture) {
				var claims, ends atomic.Int64
				var badClaims, badEnds int64
				tapped := tap{
					Store: f.Store,
					lease: func(_ context.Context, c idempotency.Claim, take taking) (idempotency.Lease, *idempotency.Record, error) {
						if claims.Add(1) <= badClaims {
							return nil, nil, fmt.Errorf("claim: %w", idempotency.ErrSerialization)
						}
						return take(c)
					},
					complete: func(ctx context.Context, complete func(ctx context.Context) error) error {
						if ends.Add(1) <= badEnds {
							return errors.Join(idempotency.ErrSerialization, complete(unsent()))
						}
						return complete(ctx)
					},
				}
				for i, row := range []struct {
					claims, ends int64 // refused
					runs         int
					good         bool
				}{{0, 1, 2, true}, {1, 1, 2, true}, {0, 2, 3, true}, {2, 0, 1, true}, {3, 0, 0, false}, {0, 3, 3, false}} {
					claims.Store(0)
					ends.Store(0)
					badClaims, badEnds = row.claims, row.ends
					s := &till{f: f}
					v := request(t, fmt.Sprint("made-again-", i))
					cmd := charge[hurried]{Note: v.Key.String()}
					r := call(within(t), charges[hurried](t, tapped, s), v, cmd)
					if row.good {
						wantAttempt(t, r, 1, false)
						wantKept(t, f, v, idempotency.Completed, 1)
						replayed(t, call(within(t), charges[hurried](t, f.Store, s), v, cmd), r)
					} else {
						if e := failed[*idempotency.RetriesError](t, r, requestctx.StateFreed); e.Tries != 3 {
							t.Errorf("row %d: %d tries, want 3", i, e.Tries)
						}
						if n := notes(t, f, cmd.Note); n != 0 {
							t.Errorf("row %d: %d business rows of attempts that were refused", i, n)
						}
						executed(t, call(within(t), charges[hurried](t, f.Store, &till{f: f}), v, cmd))
					}
					s.wantRuns(t, row.runs)
					if n := notes(t, f, cmd.Note); n != 1 {
						t.Errorf("row %d: %d business rows", i, n)
					}
				}
			}},
		{"ReconcilerIsAskedBeforeAHandlerRunsAgain_BR47_D20",
			"The process died between the provider's success and the order. The retry finds the charge and makes its order, and charges nobody again.",
			func(t *testing.T, f Fixture) {
				for name, found := range map[string]bool{"found": true, "nothing": false} {
					p := new(provider)
					s := &till{f: f, outside: p.pays, within: func(_ context.Context, run int) error {
						if run == 1 {
							return idempotency.Unknown(errPaper)
						}
						return nil
					}}
					if !found { // it died on the way out
						s.outside = func(ctx context.Context, run int) error {
							if run == 1 {
								return errors.Join(asksOutside(ctx, run), idempotency.Unknown(errPaper))
							}
							return p.pays(ctx, run)
						}
					}
					var asked []int
					send := serveReconciled(t, f.Store, func(ctx context.Context, c charge[reconciled]) (placed, error) { return s.charge(ctx, c.Note) },
						func(ctx context.Context, c charge[reconciled]) (placed, bool, error) {
							g, _ := idempotency.Attempt(ctx)
							asked = append(asked, g.Attempt)
							if len(p.keys) == 0 {
								return placed{}, false, nil
							}
							return placed{"was charged", 7}, true, f.InTx(ctx, func(ctx context.Context) error { return f.Insert(ctx, c.Note) })
						})
					v := request(t, "reconciled-"+name)
					cmd := charge[reconciled]{Note: v.Key.String()}
					failed[*idempotency.OutcomeUnknownError](t, call(within(t), send, v, cmd), requestctx.StateUnknown)
					if len(asked) != 0 {
						t.Errorf("%s: the reconciler was asked in the first attempt", name)
					}
					f.Age(t, overdue)
					second := call(within(t), send, v, cmd)
					want, runs := placed{"was charged", 7}, 1
					if !found {
						want, runs = placed{cmd.Note, 2}, 2
					}
					if got := wantAttempt(t, second, 2, true); got != want {
						t.Errorf("%s: the answer is %+v, want %+v", name, got, want)
					}
					if len(asked) != 1 || asked[0] != 2 {
						t.Errorf("%s: the reconciler was asked in the attempts %v, want in the second", name, asked)
					}
					replayed(t, call(within(t), send, v, cmd), second)
					s.wantRuns(t, runs)
					p.want(t, 1, 1)
					if n := notes(t, f, cmd.Note); n != 1 {
						t.Errorf("%s: %d business rows", name, n)
					}
				}
			}},
		{"KeyOfADeadAttemptIsLeftToAPerson_BR32_D20",
			"For a withdrawal a second time is worse than none: when its process has died, nobody runs it again before somebody has looked.",
			func(t *testing.T, f Fixture) {
				v, cmd := request(t, "left-to-a-person-1"), charge[deferred]{Note: "order", Amount: 1}
				dies(t, f, v, cmd)
				s := &till{f: f}
				here, elsewhere := charges[deferred](t, f.Store, s), charges[deferred](t, f.Store, s)
				failed[*idempotency.InProgressError](t, call(within(t), here, v, cmd), requestctx.StateInProgress)
				f.Age(t, overdue)
				before := kept(t, f, v)
				for _, send := range []bus.Handler[charge[deferred], placed]{here, elsewhere, here} {
					var e *idempotency.OutcomeUnknownError
					if r := call(within(t), send, v, cmd); !errors.As(r.err, &e) || !e.Review || r.out.State != requestctx.StateUnknown {
						t.Errorf("the answer is %v with %+v, want one that leaves it to a person", r.err, r.out)
					}
					failed[*idempotency.ConflictError](t, call(within(t), send, v, charge[deferred]{Note: "order", Amount: 2}), requestctx.StateConflict)
				}
				if d := change(before, kept(t, f, v)); d != "" {
					t.Errorf("requests have changed the record: %s", d)
				}
				s.wantRuns(t, 0)
				free(t, f, v)
				first := call(within(t), here, v, cmd)
				executed(t, first)
				replayed(t, call(within(t), elsewhere, v, cmd), first)
				s.wantRuns(t, 1)

				v = request(t, "left-to-a-person-2")
				fails(t, f, v, charge[deferred]{Note: "order"}) // what says itself that it has done nothing needs no person
				executed(t, call(within(t), here, v, charge[deferred]{Note: "order"}))
				wantDatabase(t, f, 2, "order", "order")
			}},
	}
}
