package storetest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
)

// The policies of Leased commands. The lease of most is the default one, which is as long as length.
type (
	waiting    struct{} // duplicates wait as long as they may
	hurried    struct{} // they do not wait, and neither do those of the rest
	accepted   struct{} // they are told "accepted"
	hasty      struct{} // the handler has hardly any time
	pulsing    struct{} // the lease is renewed five times a second
	twice      struct{} // two attempts
	reconciled struct{}
	deferred   struct{} // to a person, when an attempt has died
	remembered struct{} // tombstones
)

func (waiting) policy() idempotency.Policy {
	return idempotency.Policy{Mode: idempotency.Leased, Wait: idempotency.MaxWait}
}
func (hurried) policy() idempotency.Policy {
	return idempotency.Policy{Mode: idempotency.Leased, Wait: -1}
}
func (accepted) policy() idempotency.Policy {
	return idempotency.Policy{Mode: idempotency.Leased, Wait: -1, Duplicate: idempotency.AnswerAccepted}
}
func (hasty) policy() idempotency.Policy {
	return idempotency.Policy{Mode: idempotency.Leased, Wait: -1, Deadline: 20 * time.Millisecond}
}
func (pulsing) policy() idempotency.Policy {
	return idempotency.Policy{Mode: idempotency.Leased, Wait: -1, Lease: 600 * time.Millisecond}
}
func (twice) policy() idempotency.Policy {
	return idempotency.Policy{Mode: idempotency.Leased, Wait: -1, MaxAttempts: 2}
}
func (reconciled) policy() idempotency.Policy {
	return idempotency.Policy{Mode: idempotency.Leased, Wait: -1, Takeover: idempotency.Reconcile}
}
func (deferred) policy() idempotency.Policy {
	return idempotency.Policy{Mode: idempotency.Leased, Wait: -1, Takeover: idempotency.Refuse}
}
func (remembered) policy() idempotency.Policy {
	return idempotency.Policy{Mode: idempotency.Leased, Wait: -1, AfterExpiry: idempotency.Tombstone}
}

// charge is the Leased command of most cases: its handler may go outside, and then writes one business row, whose note is Note. The
// policy is no part of the payload, so charges of two policies are the same intent.
type charge[P policies] struct {
	Note   string `json:"note"`
	Amount int    `json:"amount"`
}

func (charge[P]) CommandName() bus.Name[placed] { return "storetest.charge" }
func (charge[P]) Idempotency() idempotency.Policy {
	var p P
	return p.policy()
}

// till is the handler of charges.
type till struct {
	f    Fixture
	runs atomic.Int64
	// outside is called first, before there is a business transaction; nil means that it is not gone to.
	outside func(ctx context.Context, run int) error
	// within is called in InTx when the row is written; nil means success.
	within func(ctx context.Context, run int) error
	// after is called when InTx has returned nil, so that the business transaction is still open; nil means success.
	after func(ctx context.Context, run int) error
	// alone leaves row and business transaction out.
	alone bool
}

func (s *till) charge(ctx context.Context, note string) (placed, error) {
	run := int(s.runs.Add(1))
	if s.outside != nil {
		if err := s.outside(ctx, run); err != nil {
			return placed{Note: "a value beside an error", Run: -1}, err
		}
	}
	if !s.alone {
		err := s.f.InTx(ctx, func(ctx context.Context) error {
			if err := s.f.Insert(ctx, note); err != nil {
				return fmt.Errorf("insert a business row: %w", err)
			}
			if s.within != nil {
				return s.within(ctx, run)
			}
			return nil
		})
		if err != nil {
			return placed{Note: "a value beside an error", Run: -1}, err
		}
	}
	if s.after != nil {
		if err := s.after(ctx, run); err != nil {
			return placed{Note: "a value beside an error", Run: -1}, err
		}
	}
	return placed{Note: note, Run: run}, nil
}

// everywhere gives handlers that do the same in each of the places in which a case may come in.
func everywhere(f Fixture, do func(ctx context.Context, run int) error) map[string]*till {
	return map[string]*till{"outside": {f: f, outside: do}, "within": {f: f, within: do}, "after": {f: f, after: do}}
}

// wantRuns compares how often the handler has run.
func (s *till) wantRuns(t *testing.T, want int) {
	t.Helper()
	if got := int(s.runs.Load()); got != want {
		t.Errorf("the handler ran %d times, want %d", got, want)
	}
}

// charges serves charges of a policy on a store, over an engine of its own, as a process of its own would.
func charges[P policies](t testing.TB, store idempotency.Store, s *till) bus.Handler[charge[P], placed] {
	t.Helper()
	return serve(t, store, func(ctx context.Context, c charge[P]) (placed, error) { return s.charge(ctx, c.Note) })
}

// processes serves charges in n processes.
func processes[P policies](t testing.TB, n int, store idempotency.Store, s *till) (sends []bus.Handler[charge[P], placed]) {
	t.Helper()
	for range n {
		sends = append(sends, charges[P](t, store, s))
	}
	return sends
}

// atOnceTo sends a command n times at once, in turn to each of the processes.
func atOnceTo[P policies](t *testing.T, n int, sends []bus.Handler[charge[P], placed], v requestctx.Values, cmd charge[P]) []reply[placed] {
	t.Helper()
	ctx := within(t)
	return together(n, func(i int) reply[placed] { return call(ctx, sends[i%len(sends)], v, cmd) })
}

// background sends a command and gives where its answer will be.
func background[C, R any](ctx context.Context, send bus.Handler[C, R], v requestctx.Values, cmd C) <-chan reply[R] {
	done := make(chan reply[R], 1)
	go func() { done <- call(ctx, send, v, cmd) }()
	return done
}

// gate holds handlers back until it is opened, at the latest when the case ends.
type gate struct {
	opened  chan struct{}
	open    func()
	entered chan struct{} // has a value for each that came
}

func newGate(t testing.TB) gate {
	g := gate{opened: make(chan struct{}), entered: make(chan struct{}, 100)}
	g.open = sync.OnceFunc(func() { close(g.opened) })
	t.Cleanup(g.open)
	return g
}

// pass waits for the gate and not for the end of a context: what stands behind it is deaf.
func (g gate) pass() {
	g.entered <- struct{}{}
	<-g.opened
}

// first lets the handler's first run wait at the gate, and the others pass.
func (g gate) first(_ context.Context, run int) error {
	if run == 1 {
		g.pass()
	}
	return nil
}

// asksOutside is a first part that asks for a downstream key, as one does before the outside world is called.
func asksOutside(ctx context.Context, _ int) error {
	_, err := idempotency.DownstreamKey(ctx, "provider")
	return err
}

// dies makes an attempt that is never heard of again, as that of a process that died outside: the record stays in progress.
func dies[P policies](t *testing.T, f Fixture, v requestctx.Values, cmd charge[P]) reply[placed] {
	t.Helper()
	s := &till{f: f, outside: asksOutside, after: func(context.Context, int) error { return idempotency.Unknown(errPaper) }}
	r := call(within(t), charges[P](t, f.Store, s), v, cmd)
	failed[*idempotency.OutcomeUnknownError](t, r, requestctx.StateUnknown)
	return r
}

// fails makes an attempt that fails and has done nothing.
func fails[P policies](t *testing.T, f Fixture, v requestctx.Values, cmd charge[P]) reply[placed] {
	t.Helper()
	s := &till{f: f, after: func(context.Context, int) error { return errPaper }}
	r := call(within(t), charges[P](t, f.Store, s), v, cmd)
	if r.err != errPaper || r.out.State != requestctx.StateFreed {
		t.Fatalf("the answer is %v with %+v, want the handler's own error", r.err, r.out)
	}
	return r
}

// scopeOf is where the record of a command is kept.
func scopeOf(v requestctx.Values, command string) idempotency.Scope {
	return idempotency.Scope{Tenant: v.Scope.Tenant, Client: v.Scope.Client, Operation: v.Source + " " + command, Key: v.Key.String()}
}

// kept gives the record of a charge, and demands that there is one.
func kept(t *testing.T, f Fixture, v requestctx.Values) *idempotency.Stored {
	t.Helper()
	return standing(t, f, idempotency.Claim{ID: scopeOf(v, "storetest.charge").ID()})
}

// wantKept compares the record of a charge with a state and a number of attempts, and gives it.
func wantKept(t *testing.T, f Fixture, v requestctx.Values, state idempotency.RecordState, attempts int) *idempotency.Stored {
	t.Helper()
	rec := kept(t, f, v)
	if rec.State != state || rec.Attempts != attempts {
		t.Errorf("the record is %s, want %s after %d attempts", show(&rec.Record), state, attempts)
	}
	return rec
}

// wantAttempt demands an attempt with this number that did the work.
func wantAttempt(t *testing.T, r reply[placed], attempt int, tookOver bool) placed {
	t.Helper()
	res := executed(t, r)
	if r.out.Attempt != attempt || r.out.TookOver != tookOver {
		t.Errorf("the outcome is %+v, want attempt %d, took over %v", r.out, attempt, tookOver)
	}
	return res
}

func leasedCases() []specCase {
	return slices.Concat(leasedEndCases(), leasedDuplicateCases(), takeoverCases(), lateOwnerCases(), policyCases(), lifeCases(), personCases(), childCases(), wireCases())
}

// leasedEndCases are those of the ways in which a Leased handler ends.
func leasedEndCases() []specCase {
	return []specCase{
		{"LeasedCommandRunsOnceAndIsReplayed_R01_R02_pipe9",
			"The card is charged once, and whoever asks again gets that charge, from whichever process he reaches.",
			func(t *testing.T, f Fixture) {
				var grant idempotency.Grant
				s := &till{f: f, outside: func(ctx context.Context, _ int) error {
					grant, _ = idempotency.Attempt(ctx)
					return nil
				}}
				here, elsewhere := charges[hurried](t, f.Store, s), charges[hurried](t, f.Store, s)
				v, cmd := request(t, "leased-key-1"), charge[hurried]{Note: "order", Amount: 4990}
				first := call(within(t), here, v, cmd)
				if got := wantAttempt(t, first, 1, false); got != (placed{"order", 1}) {
					t.Errorf("the first answer is %+v", got)
				}
				if grant.Attempt != 1 || grant.Fence < 1 || grant.TookOver || grant.Reused || first.out.ReusedExpired || first.out.Detached {
					t.Errorf("the first attempt of a key has the grant %+v and the outcome %+v", grant, first.out)
				}
				for _, send := range []bus.Handler[charge[hurried], placed]{here, elsewhere, elsewhere, here} {
					r := call(within(t), send, v, cmd)
					if got := replayed(t, r, first); got != first.res || r.out.Attempt != 0 {
						t.Errorf("the replay is %+v with %+v, want %+v", got, r.out, first.res)
					}
					failed[*idempotency.ConflictError](t, call(within(t), send, v, charge[hurried]{Note: "order", Amount: 4991}), requestctx.StateConflict)
					other := v
					other.Resource = []string{"42"}
					failed[*idempotency.ConflictError](t, call(within(t), send, other, cmd), requestctx.StateConflict)
				}
				s.wantRuns(t, 1)
				wantDatabase(t, f, 1, "order")
				if rec := wantKept(t, f, v, idempotency.Completed, 1); rec.Fence != grant.Fence || rec.OriginRequestID != first.id {
					t.Errorf("the record has the fence %d and the origin %s, want %d and %s", rec.Fence, rec.OriginRequestID, grant.Fence, first.id)
				}
			}},
		{"LeasedRefusalIsReplayedAndItsRowsAreUndone_R03",
			"The provider has declined: that is the outcome, and every retry gets it without calling him again.",
			func(t *testing.T, f Fixture) {
				decline := func(context.Context, int) error { return fmt.Errorf("pay: %w", idempotency.Final(declined{"limit"})) }
				for name, s := range everywhere(f, decline) {
					here, elsewhere := charges[hurried](t, f.Store, s), charges[hurried](t, f.Store, s)
					v, cmd := request(t, "leased-refusal-"+name), charge[hurried]{Note: "undone", Amount: 1}
					first := call(within(t), here, v, cmd)
					var refused *idempotency.RefusedError
					if !errors.As(first.err, &refused) || first.out.State != requestctx.StateExecuted || first.res != (placed{}) {
						t.Fatalf("%s: the answer is (%+v, %v) with %+v, want a refusal by this attempt", name, first.res, first.err, first.out)
					}
					for _, send := range []bus.Handler[charge[hurried], placed]{here, elsewhere} {
						r := call(within(t), send, v, cmd)
						replayed(t, r, first)
						var again *idempotency.RefusedError
						if !errors.As(r.err, &again) || again.Code() != "PAYMENT_DECLINED" || again.Message != refused.Message || string(again.Data) != `{"reason":"limit"}` {
							t.Errorf("%s: the replayed refusal is %v, want %+v", name, r.err, *refused)
						}
						failed[*idempotency.ConflictError](t, call(within(t), send, v, charge[hurried]{Note: "undone", Amount: 2}), requestctx.StateConflict)
					}
					s.wantRuns(t, 1)
					wantKept(t, f, v, idempotency.Completed, 1)
				}
				wantDatabase(t, f, 3)
			}},
		{"LeasedFailureFreesTheKeyForItsPayloadAlone_R04_R05_R09_R21_BR22",
			"What is known to have done nothing may be sent again at once, and only that: a corrected form needs a new key.",
			func(t *testing.T, f Fixture) {
				var notes []string
				for name, err := range map[string]error{"plain": errPaper, "canceled": context.Canceled, "deadline": context.DeadlineExceeded, "coded": declined{"not marked"}} {
					for where, s := range everywhere(f, func(_ context.Context, run int) error {
						if run <= 2 {
							return err
						}
						return nil
					}) {
						here, elsewhere := charges[hurried](t, f.Store, s), charges[hurried](t, f.Store, s)
						v := request(t, "leased-failure-"+name+"-"+where)
						note := v.Key.String()
						for attempt := 1; attempt <= 2; attempt++ {
							r := call(within(t), here, v, charge[hurried]{Note: note, Amount: 1})
							if r.err != err || r.res != (placed{}) || r.out.State != requestctx.StateFreed || r.out.Attempt != attempt {
								t.Errorf("%s, %s: the answer is (%+v, %v) with %+v, want the handler's own error", name, where, r.res, r.err, r.out)
							}
							wantKept(t, f, v, idempotency.Failed, attempt)
							for _, send := range []bus.Handler[charge[hurried], placed]{here, elsewhere} {
								failed[*idempotency.ConflictError](t, call(within(t), send, v, charge[hurried]{Note: note, Amount: 2}), requestctx.StateConflict)
							}
						}
						last := call(within(t), elsewhere, v, charge[hurried]{Note: note, Amount: 1})
						wantAttempt(t, last, 3, false)
						replayed(t, call(within(t), here, v, charge[hurried]{Note: note, Amount: 1}), last)
						notes = append(notes, note)
					}
				}
				wantDatabase(t, f, 12, notes...)
			}},
		{"LeasedHandlerThatDoesNotReturnFreesItsKeyOrLeavesItToItsLease_R06_BR14",
			"A crash before the outside world was called has done nothing; after that nobody knows, and the record must not say that it has failed.",
			func(t *testing.T, f Fixture) {
				var notes []string
				for name, leave := range map[string]func(){"panic": func() { panic(errPaper) }, "goexit": runtime.Goexit} {
					leaves := everywhere(f, func(_ context.Context, run int) error {
						if run == 1 {
							leave()
						}
						return nil
					})
					leaves["when it has been outside"] = &till{f: f, outside: asksOutside, after: leaves["after"].after}
					for where, s := range leaves {
						outside := where == "when it has been outside"
						here, elsewhere := charges[hurried](t, f.Store, s), charges[hurried](t, f.Store, s)
						v := request(t, "leaves-"+name+"-"+strings.ReplaceAll(where, " ", "-"))
						cmd := charge[hurried]{Note: v.Key.String()}
						ctx, req := requestctx.New(within(t), v)
						var recovered any
						returned := false
						var wg sync.WaitGroup
						wg.Go(func() {
							defer func() { recovered = recover() }()
							_, _ = here(ctx, cmd)
							returned = true
						})
						wg.Wait()
						if returned || name == "panic" && recovered != errPaper {
							t.Errorf("%s did not go on through the stage: returned %v, recovered %v", name, returned, recovered)
						}
						want := requestctx.StateFreed
						if outside {
							want = requestctx.StateUnknown
							wantKept(t, f, v, idempotency.InProgress, 1)
							failed[*idempotency.InProgressError](t, call(within(t), elsewhere, v, cmd), requestctx.StateInProgress)
							f.Age(t, overdue)
						} else {
							wantKept(t, f, v, idempotency.Failed, 1)
						}
						if state := req.Outcome().State; state != want {
							t.Errorf("%s %s: the outcome is %q, want %q", name, where, state, want)
						}
						wantAttempt(t, call(within(t), elsewhere, v, cmd), 2, outside)
						notes = append(notes, cmd.Note)
					}
				}
				wantDatabase(t, f, 8, notes...)
			}},
		{"UnknownOutcomeKeepsTheKeyUntilItsLeaseIsOver_R08",
			"The provider did not answer. Whether the card was charged is not known, so nobody may charge it before the lease is over.",
			func(t *testing.T, f Fixture) {
				s := &till{f: f, outside: asksOutside, after: func(_ context.Context, run int) error {
					if run == 1 {
						return fmt.Errorf("charge the card: %w", idempotency.Unknown(errPaper))
					}
					return nil
				}}
				here, elsewhere := charges[hurried](t, f.Store, s), charges[hurried](t, f.Store, s)
				v, cmd := request(t, "unknown-outcome-1"), charge[hurried]{Note: "order", Amount: 1}
				r := call(within(t), here, v, cmd)
				e := failed[*idempotency.OutcomeUnknownError](t, r, requestctx.StateUnknown)
				if e.Review || !errors.Is(e, errPaper) || e.RetryAfter > length || e.RetryAfter < length-slack {
					t.Errorf("the caller is told %+v, want to come again when the lease is over, in about %v", *e, length)
				}
				wantDatabase(t, f, 1)
				wantKept(t, f, v, idempotency.InProgress, 1)
				for _, send := range []bus.Handler[charge[hurried], placed]{here, elsewhere} {
					failed[*idempotency.InProgressError](t, call(within(t), send, v, cmd), requestctx.StateInProgress)
					failed[*idempotency.ConflictError](t, call(within(t), send, v, charge[hurried]{Note: "order", Amount: 2}), requestctx.StateConflict)
				}
				s.wantRuns(t, 1)
				f.Age(t, overdue)
				second := call(within(t), here, v, cmd)
				wantAttempt(t, second, 2, true)
				replayed(t, call(within(t), elsewhere, v, cmd), second)
				wantDatabase(t, f, 1, "order")
			}},
		{"LeasedHandlerIsStoppedAtItsDeadline_BR03",
			"A handler that hangs does not hold its key for ever: before it went outside the key is free, and after that it is left to the lease.",
			func(t *testing.T, f Fixture) {
				v := request(t, "deadline-inside-1")
				hangs := func(ctx context.Context, _ int) error { <-ctx.Done(); return ctx.Err() }
				r := call(within(t), charges[hasty](t, f.Store, &till{f: f, outside: hangs}), v, charge[hasty]{Note: "inside"})
				if !errors.Is(r.err, context.DeadlineExceeded) || r.out.State != requestctx.StateFreed {
					t.Errorf("the answer is %v with %+v, want the deadline, and freed", r.err, r.out)
				}
				wantKept(t, f, v, idempotency.Failed, 1)
				wantAttempt(t, call(within(t), charges[hurried](t, f.Store, &till{f: f}), v, charge[hurried]{Note: "inside"}), 2, false)

				v = request(t, "deadline-outside-1")
				s := &till{f: f, outside: func(ctx context.Context, run int) error { return errors.Join(asksOutside(ctx, run), hangs(ctx, run)) }}
				r = call(within(t), charges[hasty](t, f.Store, s), v, charge[hasty]{Note: "outside"})
				failed[*idempotency.OutcomeUnknownError](t, r, requestctx.StateUnknown)
				wantKept(t, f, v, idempotency.InProgress, 1)
				f.Age(t, overdue)
				wantAttempt(t, call(within(t), charges[hurried](t, f.Store, &till{f: f}), v, charge[hurried]{Note: "outside"}), 2, true)
				wantDatabase(t, f, 2, "inside", "outside")
			}},
		{"LeasedResultThatCannotBeStoredDoesNotUndoWhatWasDoneOutside_R14",
			"The card was charged and the answer does not encode: charging it again would be worse than an answer without its details.",
			func(t *testing.T, f Fixture) {
				sell := func(outside bool, runs *int) bus.Handler[sale, float64] {
					return serve(t, f.Store, func(ctx context.Context, s sale) (float64, error) {
						*runs++
						if outside {
							if err := asksOutside(ctx, 1); err != nil {
								return 0, err
							}
							requestctx.From(ctx).SetExternalRef("auth-4711")
						}
						err := f.InTx(ctx, func(ctx context.Context) error { return f.Insert(ctx, s.Note) })
						if *runs > 1 {
							return 1.5, err
						}
						return math.NaN(), err
					})
				}
				runs := 0
				send, v := sell(true, &runs), request(t, "unencodable-outside-1")
				for i := range 3 {
					r := call(within(t), send, v, sale{"outside"})
					want := requestctx.StateExecuted
					var e *idempotency.ResultUnavailableError
					if i > 0 {
						want = requestctx.StateReplayed
					}
					if !errors.As(r.err, &e) || e.ExternalRef != "auth-4711" || r.out.State != want {
						t.Errorf("request %d gets %v with %+v, want that the result is not there, and the reference", i, r.err, r.out)
					}
				}
				if runs != 1 {
					t.Errorf("the handler ran %d times, want once", runs)
				}
				wantDatabase(t, f, 1, "outside")

				runs = 0
				send, v = sell(false, &runs), request(t, "unencodable-inside-1")
				if e := failed[*idempotency.ResultError](t, call(within(t), send, v, sale{"inside"}), requestctx.StateFreed); e.Stored {
					t.Error("the error says that the result is stored")
				}
				wantDatabase(t, f, 2, "outside")
				executed(t, call(within(t), send, v, sale{"inside"}))
				wantDatabase(t, f, 2, "outside", "inside")
			}},
		{"HangUpOfTheClientDoesNotStopLeasedWork_L21_BR03_E50",
			"The client's patience is shorter than the provider's. It comes again, is told to wait, and then gets its one order.",
			func(t *testing.T, f Fixture) {
				ctx, hangUp := context.WithCancel(within(t))
				g := newGate(t)
				s := &till{f: f, outside: func(ctx context.Context, run int) error { return errors.Join(g.first(ctx, run), ctx.Err()) }}
				here, elsewhere := charges[hurried](t, f.Store, s), charges[hurried](t, f.Store, s)
				v, cmd := request(t, "leased-hang-up-1"), charge[hurried]{Note: "order"}
				answer := background(ctx, here, v, cmd)
				await(t, g.entered, "the handler's start")
				hangUp()
				for _, send := range []bus.Handler[charge[hurried], placed]{here, elsewhere} {
					failed[*idempotency.InProgressError](t, call(within(t), send, v, cmd), requestctx.StateInProgress)
				}
				g.open()
				first := await(t, answer, "the end of the handler")
				wantAttempt(t, first, 1, false)
				replayed(t, call(within(t), here, v, cmd), first)
				replayed(t, call(within(t), elsewhere, v, cmd), first)
				s.wantRuns(t, 1)
				wantDatabase(t, f, 1, "order")
			}},
	}
}

// sale is a Leased command whose result is a number.
type sale struct {
	Note string `json:"note"`
}

func (sale) CommandName() bus.Name[float64]  { return "storetest.sale" }
func (sale) Idempotency() idempotency.Policy { return hurried{}.policy() }

// leasedDuplicateCases are those of requests that come while another one has the key.
func leasedDuplicateCases() []specCase {
	return []specCase{
		{"LeasedDuplicatesAtOnceRunOnce_BR15_see3",
			"The double click on two machines: one charge, and everybody gets it.",
			func(t *testing.T, f Fixture) {
				for _, n := range []int{2, 12, 16} {
					s := &till{f: f, outside: asksOutside}
					v := request(t, fmt.Sprint("leased-at-once-", n))
					cmd := charge[waiting]{Note: v.Key.String()}
					replies := atOnceTo(t, n, processes[waiting](t, 2, f.Store, s), v, cmd)
					if got, want := count(t, replies), (census{executed: 1, replayed: n - 1}); got != want {
						t.Errorf("%d at once: %+v, want %+v", n, got, want)
					}
					s.wantRuns(t, 1)
					if got := notes(t, f, cmd.Note); got != 1 {
						t.Errorf("%d at once: %d business rows", n, got)
					}
				}
			}},
		{"LeasedKeysUnderFireHaveOneOrderEach_BR09_BR46",
			"As many orders as keys, however many processes are asked, and no error of the database reaches a caller.",
			func(t *testing.T, f Fixture) {
				s := &till{f: f}
				sends := processes[waiting](t, 4, f.Store, s)
				const keys, side = 8, 12
				replies := make([][]reply[placed], keys)
				ctx := within(t)
				var wg sync.WaitGroup
				for key := range keys {
					v := request(t, fmt.Sprint("leased-fire-", key))
					wg.Go(func() {
						replies[key] = together(side, func(i int) reply[placed] {
							return call(ctx, sends[(key+i)%len(sends)], v, charge[waiting]{Note: v.Key.String()})
						})
					})
				}
				wg.Wait()
				for key, all := range replies {
					if got, want := count(t, all), (census{executed: 1, replayed: side - 1}); got != want {
						t.Errorf("key %d: %+v, want %+v", key, got, want)
					}
					if n := notes(t, f, fmt.Sprint("leased-fire-", key)); n != 1 {
						t.Errorf("key %d has %d business rows", key, n)
					}
				}
				s.wantRuns(t, keys)
			}},
		{"LeasedDuplicateDuringTheWorkIsToldAtOnce_L03_L04_BR39_rec4",
			"A second request is told that the first is at work, or that its payload is another one, by every process, and under one id that does not show the key.",
			func(t *testing.T, f Fixture) {
				outside, inside := newGate(t), newGate(t)
				s := &till{f: f, outside: outside.first, within: inside.first}
				owner := charges[hurried](t, f.Store, s)
				v := request(t, "leased-during-1")
				mine, other := charge[hurried]{Note: "order", Amount: 1}, charge[hurried]{Note: "order", Amount: 2}
				answer := background(within(t), owner, v, mine)
				await(t, outside.entered, "the handler's start")
				before := wantKept(t, f, v, idempotency.InProgress, 1)
				told := func(when string) {
					t.Helper()
					elsewhere := charges[hurried](t, f.Store, s)
					for name, send := range map[string]bus.Handler[charge[hurried], placed]{"here": owner, "elsewhere": elsewhere, "elsewhere again": elsewhere} {
						r := call(within(t), send, v, mine)
						e := failed[*idempotency.InProgressError](t, r, requestctx.StateInProgress)
						if e.RetryAfter != 2*time.Second || e.Accepted || e.OperationID != scopeOf(v, "storetest.charge").ID().Operation() {
							t.Errorf("%s, %s: a duplicate is told %+v", when, name, *e)
						}
						failed[*idempotency.ConflictError](t, call(within(t), send, v, other), requestctx.StateConflict)
					}
					r := call(within(t), charges[accepted](t, f.Store, s), v, charge[accepted]{Note: "order", Amount: 1})
					if e := failed[*idempotency.InProgressError](t, r, requestctx.StateInProgress); !e.Accepted || e.OperationID != scopeOf(v, "storetest.charge").ID().Operation() {
						t.Errorf("%s: a duplicate of long work is told %+v", when, *e)
					}
				}
				told("outside")
				if d := change(before, kept(t, f, v)); d != "" {
					t.Errorf("duplicates have changed the record: %s", d)
				}
				outside.open()
				await(t, inside.entered, "the business transaction")
				if f.NoHint != nil { // where one can write beside another
					told("in the business transaction")
				}
				inside.open()
				first := await(t, answer, "the first answer")
				wantAttempt(t, first, 1, false)
				replayed(t, call(within(t), charges[hurried](t, f.Store, s), v, mine), first)
				s.wantRuns(t, 1)
				wantDatabase(t, f, 1, "order")
			}},
		{"WhenTheFirstFailsOneOfSevenThatWaitRuns_L05",
			"One of those who have waited does the work: not all of them, and not none.",
			func(t *testing.T, f Fixture) {
				g, met := newGate(t), make(chan struct{}, 100)
				s := &till{f: f, outside: func(ctx context.Context, run int) error {
					if run == 1 {
						g.pass()
						return errPaper
					}
					return nil
				}}
				here := charges[waiting](t, f.Store, s)
				elsewhere := charges[waiting](t, tap{Store: f.Store, lease: func(_ context.Context, c idempotency.Claim, take taking) (idempotency.Lease, *idempotency.Record, error) {
					defer func() { met <- struct{}{} }()
					return take(c)
				}}, s)
				v, cmd := request(t, "seven-wait-1"), charge[waiting]{Note: "order"}
				ctx := within(t)
				first := background(ctx, here, v, cmd)
				await(t, g.entered, "the first handler's start")
				var waiters []<-chan reply[placed]
				for i := range 7 {
					send := here
					if i%2 == 0 {
						send = elsewhere
					}
					waiters = append(waiters, background(ctx, send, v, cmd))
				}
				await(t, met, "the other process's claim")
				g.open()
				if r := await(t, first, "the first answer"); r.err != errPaper || r.out.State != requestctx.StateFreed {
					t.Errorf("the first caller gets %v with %+v, want the handler's own error", r.err, r.out)
				}
				var replies []reply[placed]
				for _, w := range waiters {
					replies = append(replies, await(t, w, "the answer of one that waited"))
				}
				if got, want := count(t, replies), (census{executed: 1, replayed: 6}); got != want {
					t.Errorf("those that waited: %+v, want %+v", got, want)
				}
				s.wantRuns(t, 2)
				wantKept(t, f, v, idempotency.Completed, 2)
				wantDatabase(t, f, 1, "order")
			}},
		{"TwentyDuplicatesOfSlowWorkHoldNobodyUp_L17_BR29",
			"Neither the one that is outside nor those that wait for it hold a connection, so everybody else is served.",
			func(t *testing.T, f Fixture) {
				g := newGate(t)
				s := &till{f: f, outside: g.first}
				looked := make(chan struct{}, 10_000)
				sends := []bus.Handler[charge[waiting], placed]{
					charges[waiting](t, f.Store, s),
					charges[waiting](t, tap{Store: f.Store, looked: func() { looked <- struct{}{} }}, s),
				}
				v, cmd := request(t, "twenty-wait-1"), charge[waiting]{Note: "order"}
				ctx := within(t)
				first := background(ctx, sends[0], v, cmd)
				await(t, g.entered, "the first handler's start")
				var waiters []<-chan reply[placed]
				for i := range 20 {
					waiters = append(waiters, background(ctx, sends[i%2], v, cmd))
				}
				for range 10 + 3 { // those that wait there look once at most, and one of them again and again
					await(t, looked, "a look of the other process")
				}
				strangers := &till{f: f}
				for i, send := range processes[waiting](t, 2, f.Store, strangers) {
					for j := range 5 {
						promptly(t, "the command of a stranger", g.open, func(ctx context.Context) {
							v := request(t, fmt.Sprintf("stranger-%d-%d", i, j))
							if r := call(ctx, send, v, charge[waiting]{Note: "stranger"}); r.err != nil || r.out.State != requestctx.StateExecuted {
								t.Errorf("a stranger gets %v with %+v", r.err, r.out)
							}
						})
					}
				}
				for _, w := range waiters {
					select {
					case r := <-w:
						t.Errorf("a duplicate did not wait for the first one: %v with %+v", r.err, r.out)
					default:
					}
				}
				g.open()
				answer := await(t, first, "the first answer")
				wantAttempt(t, answer, 1, false)
				for _, w := range waiters {
					replayed(t, await(t, w, "the answer of one that waited"), answer)
				}
				s.wantRuns(t, 1)
				if got := notes(t, f, "order"); got != 1 {
					t.Errorf("%d business rows", got)
				}
			}},
	}
}
