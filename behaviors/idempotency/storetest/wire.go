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

// tap is a store that a case listens to, and between which and its engine it can come. What is nil does nothing besides.
type tap struct {
	idempotency.Store
	lease    func(ctx context.Context, c idempotency.Claim, take taking) (idempotency.Lease, *idempotency.Record, error)
	looked   func() // after Look
	renew    func(ctx context.Context, renew func() error) error
	complete func(ctx context.Context, complete func(ctx context.Context) error) error // and Refuse
	release  func(ctx context.Context, c idempotency.Claim, release func() error) error
}

// taking is a call of Lease that is still to be made.
type taking func(c idempotency.Claim) (idempotency.Lease, *idempotency.Record, error)

func (s tap) Lease(ctx context.Context, c idempotency.Claim) (idempotency.Lease, *idempotency.Record, error) {
	take := func(c idempotency.Claim) (idempotency.Lease, *idempotency.Record, error) {
		return s.Store.Lease(ctx, c)
	}
	var l idempotency.Lease
	var rec *idempotency.Record
	var err error
	if s.lease != nil {
		l, rec, err = s.lease(ctx, c, take)
	} else {
		l, rec, err = take(c)
	}
	if l == nil || err != nil {
		return nil, rec, err
	}
	return tappedLease{l, s, c}, rec, nil
}

func (s tap) Look(ctx context.Context, c idempotency.Claim) (*idempotency.Record, error) {
	if s.looked != nil {
		defer s.looked()
	}
	return s.Store.Look(ctx, c)
}

type tappedLease struct {
	idempotency.Lease
	s     tap
	claim idempotency.Claim
}

func (l tappedLease) Renew(ctx context.Context) error {
	if l.s.renew == nil {
		return l.Lease.Renew(ctx)
	}
	return l.s.renew(ctx, func() error { return l.Lease.Renew(ctx) })
}

func (l tappedLease) Complete(ctx context.Context, done idempotency.Completion) error {
	return l.end(ctx, func(ctx context.Context) error { return l.Lease.Complete(ctx, done) })
}

func (l tappedLease) Refuse(ctx context.Context, done idempotency.Completion) error {
	return l.end(ctx, func(ctx context.Context) error { return l.Lease.Refuse(ctx, done) })
}

func (l tappedLease) end(ctx context.Context, end func(ctx context.Context) error) error {
	if l.s.complete == nil {
		return end(ctx)
	}
	return l.s.complete(ctx, end)
}

func (l tappedLease) Release(ctx context.Context) error {
	if l.s.release == nil {
		return l.Lease.Release(ctx)
	}
	return l.s.release(ctx, l.claim, func() error { return l.Lease.Release(ctx) })
}

// errWire is what a store says that cannot be reached.
var errWire = errors.New("the wire is cut")

// unsent is a context on which a store can send nothing any more.
func unsent() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// wireCases are those in which what is between the engine and its store breaks. A broken wire is played by a tap; what a real server
// makes of one is for the store's own tests.
func wireCases() []specCase {
	return []specCase{
		{"ClaimThatDoesNotReachTheStoreRunsNothing_X11",
			"Without its record the outside world must not be called: a command that runs unguarded when the store is away is the one that runs twice.",
			func(t *testing.T, f Fixture) {
				s := &till{f: f}
				away := tap{Store: f.Store, lease: func(context.Context, idempotency.Claim, taking) (idempotency.Lease, *idempotency.Record, error) {
					return nil, nil, errWire
				}}
				v, cmd := request(t, "away-claim-1"), charge[hurried]{Note: "order"}
				if e := failed[*idempotency.StoreError](t, call(within(t), charges[hurried](t, away, s), v, cmd), requestctx.StateRefused); !errors.Is(e, errWire) {
					t.Errorf("the error %v does not lead to its cause", e)
				}
				s.wantRuns(t, 0)
				wantDatabase(t, f, 0)
				wantAttempt(t, call(within(t), charges[hurried](t, f.Store, s), v, cmd), 1, false)
				wantDatabase(t, f, 1, "order")
			}},
		{"ClaimOfNobodyHoldsTheKeyUntilItsLeaseIsOver_X14",
			"The claim was committed and the process that sent it is gone: the key is not free at once, and not lost for good.",
			func(t *testing.T, f Fixture) {
				s := &till{f: f}
				ghost := tap{Store: f.Store, lease: func(_ context.Context, c idempotency.Claim, take taking) (idempotency.Lease, *idempotency.Record, error) {
					l, rec, err := take(c)
					if l != nil {
						t.Cleanup(func() { l.Rollback(context.WithoutCancel(t.Context())) })
					}
					return nil, nil, errors.Join(err, errWire, recordError(rec))
				}}
				v, cmd := request(t, "ghost-claim-1"), charge[hurried]{Note: "order", Amount: 1}
				failed[*idempotency.StoreError](t, call(within(t), charges[hurried](t, ghost, s), v, cmd), requestctx.StateRefused)
				s.wantRuns(t, 0)
				wantKept(t, f, v, idempotency.InProgress, 1)
				send := charges[hurried](t, f.Store, s)
				failed[*idempotency.InProgressError](t, call(within(t), send, v, cmd), requestctx.StateInProgress)
				failed[*idempotency.ConflictError](t, call(within(t), send, v, charge[hurried]{Note: "order", Amount: 2}), requestctx.StateConflict)
				f.Age(t, overdue)
				wantAttempt(t, call(within(t), send, v, cmd), 2, true)
				s.wantRuns(t, 1)
				wantDatabase(t, f, 1, "order")
			}},
		{"ClaimWhoseAnswerIsLostIsRecognised_BR08",
			"The claim was committed and its answer got lost. The one who sent it must not be told that somebody else is at work.",
			func(t *testing.T, f Fixture) {
				s := &till{f: f}
				var tries atomic.Int64
				deaf := tap{Store: f.Store, lease: func(_ context.Context, c idempotency.Claim, take taking) (idempotency.Lease, *idempotency.Record, error) {
					l, rec, err := take(c)
					if tries.Add(1) > 1 || err != nil {
						return l, rec, err
					}
					t.Cleanup(func() { l.Rollback(context.WithoutCancel(t.Context())) })
					return nil, nil, fmt.Errorf("claim: %w", idempotency.ErrCommitUnknown)
				}}
				v, cmd := request(t, "lost-claim-1"), charge[hurried]{Note: "order"}
				first := call(within(t), charges[hurried](t, deaf, s), v, cmd)
				wantAttempt(t, first, 1, false)
				replayed(t, call(within(t), charges[hurried](t, f.Store, s), v, cmd), first)
				s.wantRuns(t, 1)
				wantKept(t, f, v, idempotency.Completed, 1)
				wantDatabase(t, f, 1, "order")
			}},
		{"LostAnswerOfALeasedCommitIsFoundOut_X06_X07_X10_BR02",
			"COMMIT was sent and nothing came back. Either all of it has happened, and the caller has his order, or nothing has, and he may ask again.",
			func(t *testing.T, f Fixture) {
				lost := func(arrives bool, s *till, hangUp func()) bus.Handler[charge[hurried], placed] {
					return charges[hurried](t, tap{
						Store: f.Store,
						complete: func(ctx context.Context, complete func(ctx context.Context) error) error {
							hangUp()
							if !arrives {
								ctx = unsent()
							}
							if err := complete(ctx); (err == nil) != arrives {
								t.Errorf("the completion says %v", err)
							}
							return fmt.Errorf("commit: %w", idempotency.ErrCommitUnknown)
						},
						release: func(ctx context.Context, c idempotency.Claim, release func() error) error {
							if !arrives {
								return release()
							}
							// The store believes that this attempt has had its answer, so the record is asked instead.
							l, rec, err := f.Store.Lease(ctx, c)
							if l != nil || err != nil || rec == nil || rec.State != idempotency.Completed {
								t.Errorf("after the COMMIT the attempt's own claim finds (%v, %s, %v)", l != nil, show(rec), err)
							}
							return idempotency.ErrLost
						},
					}, s)
				}
				s := &till{f: f, outside: asksOutside}
				v, cmd := request(t, "commit-arrives-1"), charge[hurried]{Note: "arrives"}
				ctx, hangUp := context.WithCancel(within(t))
				first := call(ctx, lost(true, s, hangUp), v, cmd)
				wantAttempt(t, first, 1, false)
				replayed(t, call(within(t), charges[hurried](t, f.Store, s), v, cmd), first)
				s.wantRuns(t, 1)
				wantDatabase(t, f, 1, "arrives")

				s = &till{f: f, outside: asksOutside}
				v, cmd = request(t, "commit-never-arrives-1"), charge[hurried]{Note: "never"}
				r := call(within(t), lost(false, s, func() {}), v, cmd)
				if e := failed[*idempotency.StoreError](t, r, requestctx.StateFreed); !errors.Is(e, idempotency.ErrCommitUnknown) {
					t.Errorf("the error %v does not lead to its cause", e)
				}
				wantKept(t, f, v, idempotency.Failed, 1)
				wantDatabase(t, f, 2, "arrives")
				second := call(within(t), charges[hurried](t, f.Store, s), v, cmd)
				wantAttempt(t, second, 2, false)
				s.wantRuns(t, 2)
				wantDatabase(t, f, 2, "arrives", "never")
			}},
		{"OutcomeIsWrittenWhenTheStoreIsBack_X12",
			"The database was away for a moment when the handler came back from outside. What was done there is recorded, and rows that were lost are not recorded as done.",
			func(t *testing.T, f Fixture) {
				var tries atomic.Int64
				stutters := tap{Store: f.Store, complete: func(ctx context.Context, complete func(ctx context.Context) error) error {
					if tries.Add(1) <= 2 {
						return errors.Join(errWire, complete(unsent()))
					}
					return complete(ctx)
				}}
				for i, end := range []error{nil, idempotency.Final(errPaper)} {
					tries.Store(0)
					s := &till{f: f, alone: true, outside: func(context.Context, int) error { return end }}
					v, cmd := request(t, fmt.Sprint("written-later-", i)), charge[hurried]{Note: "none"}
					first := call(within(t), charges[hurried](t, stutters, s), v, cmd)
					if (first.err == nil) != (end == nil) || first.out.State != requestctx.StateExecuted {
						t.Errorf("the answer is %v with %+v, want the outcome", first.err, first.out)
					}
					replayed(t, call(within(t), charges[hurried](t, f.Store, s), v, cmd), first)
					s.wantRuns(t, 1)
					if got := tries.Load(); got != 3 {
						t.Errorf("the outcome was sent %d times, want three", got)
					}
				}
				tries.Store(0)
				s := &till{f: f, outside: asksOutside}
				v, cmd := request(t, "rows-lost-1"), charge[hurried]{Note: "order"}
				failed[*idempotency.StoreError](t, call(within(t), charges[hurried](t, stutters, s), v, cmd), requestctx.StateFreed)
				wantKept(t, f, v, idempotency.Failed, 1)
				wantDatabase(t, f, 3)
				wantAttempt(t, call(within(t), charges[hurried](t, f.Store, s), v, cmd), 2, false)
				wantDatabase(t, f, 3, "order")
			}},
		{"StoreThatStaysAwayLeavesTheKeyToItsLease_X09_X12_X19",
			"The store was there for the claim and is away at the end. Whatever was done outside, the key is neither free at once nor blocked for days, and no caller is told that nothing was done when it was.",
			func(t *testing.T, f Fixture) {
				gone := func(cause error) idempotency.Store {
					return tap{Store: f.Store,
						complete: func(_ context.Context, complete func(ctx context.Context) error) error {
							return errors.Join(cause, complete(unsent()))
						},
						release: func(context.Context, idempotency.Claim, func() error) error { return errWire },
					}
				}
				type row struct {
					name  string
					cause error
					s     *till
					then  func(t *testing.T, r reply[placed])
				}
				unknown := func(t *testing.T, r reply[placed]) {
					failed[*idempotency.OutcomeUnknownError](t, r, requestctx.StateUnknown)
				}
				rows := []row{
					{"release", errWire, &till{f: f, after: func(context.Context, int) error { return errPaper }}, func(t *testing.T, r reply[placed]) {
						if r.err != errPaper || r.out.State != requestctx.StateUnknown {
							t.Errorf("the answer is %v with %+v, want the handler's own error", r.err, r.out)
						}
					}},
					{"outcome", errWire, &till{f: f, alone: true, outside: asksOutside}, unknown},
					{"commit", idempotency.ErrCommitUnknown, &till{f: f, outside: asksOutside}, unknown},
				}
				ctx := context.WithoutCancel(within(t)) // each of them tries for as long as it may
				answers := make([]<-chan reply[placed], len(rows))
				for i, row := range rows {
					answers[i] = background(ctx, charges[hurried](t, gone(row.cause), row.s), request(t, "gone-at-the-end-"+row.name), charge[hurried]{Note: row.name})
				}
				for i, row := range rows {
					row.then(t, await(t, answers[i], "the answer to "+row.name))
				}
				wantDatabase(t, f, 3)
				again := func(row row) reply[placed] {
					return call(within(t), charges[hurried](t, f.Store, &till{f: f}), request(t, "gone-at-the-end-"+row.name), charge[hurried]{Note: row.name})
				}
				for _, row := range rows {
					wantKept(t, f, request(t, "gone-at-the-end-"+row.name), idempotency.InProgress, 1)
					failed[*idempotency.InProgressError](t, again(row), requestctx.StateInProgress)
				}
				f.Age(t, overdue)
				for _, row := range rows {
					wantAttempt(t, again(row), 2, true)
				}
				wantDatabase(t, f, 3, "release", "outcome", "commit")
			}},
		{"PanicAfterALeasedCommitIsReplayed_X18",
			"The process broke down between COMMIT and the answer. The order is there, and the next request gets it.",
			func(t *testing.T, f Fixture) {
				breaks := tap{Store: f.Store, complete: func(ctx context.Context, complete func(ctx context.Context) error) error {
					if err := complete(ctx); err != nil {
						t.Errorf("Complete: %v", err)
					}
					panic(errPaper)
				}}
				s := &till{f: f, outside: asksOutside}
				v, cmd := request(t, "panic-after-1"), charge[hurried]{Note: "order"}
				ctx, req := requestctx.New(within(t), v)
				func() {
					defer func() {
						if p := recover(); p != errPaper {
							t.Errorf("the panic came out as %v", p)
						}
					}()
					_, _ = charges[hurried](t, breaks, s)(ctx, cmd)
				}()
				r := call(within(t), charges[hurried](t, f.Store, s), v, cmd)
				if got := replayed(t, r, reply[placed]{id: req.ID()}); got != (placed{"order", 1}) {
					t.Errorf("the replay is %+v", got)
				}
				s.wantRuns(t, 1)
				wantDatabase(t, f, 1, "order")
			}},
	}
}

// recordError is an error where a claim met a record and none was expected.
func recordError(rec *idempotency.Record) error {
	if rec == nil {
		return nil
	}
	return fmt.Errorf("the claim met the record %s", show(rec))
}
