package idempotency_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/memstore"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pay is the command of most tests.
type pay struct {
	Cart   string  `json:"cart"`
	Amount float64 `json:"amount"`
}

type paid struct {
	Cart string `json:"cart"`
	Run  int    `json:"run"`
}

func (pay) CommandName() bus.Name[paid] { return "test.pay" }
func (pay) Idempotent()                 {}

// hasty is a command whose duplicates do not wait.
type hasty struct {
	Cart string `json:"cart"`
}

func (hasty) CommandName() bus.Name[paid] { return "test.hasty" }
func (hasty) Idempotency() idempotency.Policy {
	return idempotency.Policy{Wait: -1, Deadline: 3 * time.Second}
}

var errPaper = errors.New("the printer is out of paper")

// stub is a store whose answers a test can change, and which keeps a log of what it was asked.
type stub struct {
	idempotency.Store
	look     func(ctx context.Context, c idempotency.Claim) (*idempotency.Record, error)
	begin    func(ctx context.Context, n int) error // nil: go on
	complete func(ctx context.Context, n int, complete func() error) error
	leasing  // the same for Leased attempts, in leased_test.go

	mu     sync.Mutex
	log    []string
	begins int
	ends   int
	open   map[idempotency.ID]int
	most   int
}

func (s *stub) note(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log = append(s.log, what)
}

// calls takes the log.
func (s *stub) calls() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	log := strings.Join(s.log, " ")
	s.log = nil
	return log
}

func (s *stub) Look(ctx context.Context, c idempotency.Claim) (*idempotency.Record, error) {
	s.note("look")
	if s.look != nil {
		return s.look(ctx, c)
	}
	return s.Store.Look(ctx, c)
}

func (s *stub) Begin(ctx context.Context, c idempotency.Claim) (idempotency.Transaction, error) {
	s.mu.Lock()
	s.log = append(s.log, "begin")
	s.begins++
	n := s.begins
	if s.open == nil {
		s.open = make(map[idempotency.ID]int)
	}
	s.open[c.ID]++
	s.most = max(s.most, s.open[c.ID])
	s.mu.Unlock()
	closed := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.open[c.ID]--
	}
	if s.begin != nil {
		if err := s.begin(ctx, n); err != nil {
			closed()
			return nil, err
		}
	}
	a, err := s.Store.Begin(ctx, c)
	if err != nil {
		closed()
		return nil, err
	}
	return &stubAttempt{Transaction: a, s: s, closed: sync.OnceFunc(closed)}, nil
}

type stubAttempt struct {
	idempotency.Transaction
	s      *stub
	closed func()
}

func (a *stubAttempt) Complete(ctx context.Context, d idempotency.Completion) error {
	defer a.closed()
	return a.end(ctx, "complete", func() error { return a.Transaction.Complete(context.WithoutCancel(ctx), d) })
}

func (a *stubAttempt) Refuse(ctx context.Context, d idempotency.Completion) error {
	defer a.closed()
	return a.end(ctx, "refuse", func() error { return a.Transaction.Refuse(context.WithoutCancel(ctx), d) })
}

func (a *stubAttempt) end(ctx context.Context, how string, end func() error) error {
	a.s.mu.Lock()
	a.s.log = append(a.s.log, how)
	a.s.ends++
	n := a.s.ends
	a.s.mu.Unlock()
	if a.s.complete != nil {
		return a.s.complete(ctx, n, end)
	}
	return end()
}

func (a *stubAttempt) Rollback(ctx context.Context) {
	defer a.closed()
	a.s.note("rollback")
	a.Transaction.Rollback(ctx)
}

// bench is a memstore under a stub, and the handler that counts its runs.
type bench struct {
	mem  *memstore.Store
	stub *stub
	mu   sync.Mutex
	runs int
	// then is what a run does after its row is written.
	then func(ctx context.Context, run int) error
	// first is what a run of a Leased command does before its business transaction, and alone is true where it opens none.
	first func(ctx context.Context, run int) error
	alone bool
}

func newBench() *bench {
	mem := memstore.New()
	return &bench{mem: mem, stub: &stub{Store: mem}}
}

func (b *bench) handle(ctx context.Context, cart string) (paid, error) {
	b.mu.Lock()
	b.runs++
	run := b.runs
	b.mu.Unlock()
	b.stub.note("run")
	if err := b.mem.Insert(ctx, cart); err != nil {
		return paid{}, err
	}
	if b.then != nil {
		if err := b.then(ctx, run); err != nil {
			return paid{}, err
		}
	}
	return paid{cart, run}, nil
}

func (b *bench) want(t *testing.T, runs, rows, records int) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if r, n := len(b.mem.Rows()), len(b.mem.Records()); b.runs != runs || r != rows || n != records {
		t.Errorf("%d runs, %d rows, %d records; want %d, %d, %d", b.runs, r, n, runs, rows, records)
	}
}

// pays serves pay on the bench's store, over an engine of its own as a process of its own would.
func (b *bench) pays(t testing.TB) bus.Handler[pay, paid] {
	t.Helper()
	return serve(t, idempotency.Config{Store: b.stub}, func(ctx context.Context, c pay) (paid, error) { return b.handle(ctx, c.Cart) })
}

func (b *bench) hasties(t testing.TB) bus.Handler[hasty, paid] {
	t.Helper()
	return serve(t, idempotency.Config{Store: b.stub}, func(ctx context.Context, c hasty) (paid, error) { return b.handle(ctx, c.Cart) })
}

func serve[C bus.Command[R], R any](t testing.TB, cfg idempotency.Config, h bus.Handler[C, R]) bus.Handler[C, R] {
	t.Helper()
	engine, err := idempotency.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return serveOn(t, engine, h)
}

func serveOn[C bus.Command[R], R any](t testing.TB, engine *idempotency.Engine, h bus.Handler[C, R]) bus.Handler[C, R] {
	t.Helper()
	claimed, plan, err := idempotency.Stage(engine, h)
	if err != nil {
		t.Fatal(err)
	}
	var c C
	inv := bus.Invocation{Name: string(c.CommandName()), Idempotent: plan.Marked}
	b, err := bus.New(bus.Serve(bus.Log(bus.Validate(claimed, inv, nil, nil), inv, nil, nil)))
	if err != nil {
		t.Fatal(err)
	}
	send, err := bus.Bind[C](b)
	if err != nil {
		t.Fatal(err)
	}
	return send
}

func keyed(t testing.TB, key string) requestctx.Values {
	t.Helper()
	k, err := requestctx.ParseKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return requestctx.Values{Key: k, Scope: requestctx.Scope{Tenant: "t", Client: "c"}, Source: "POST /pay"}
}

// call sends a command as a request of its own.
func call[C, R any](ctx context.Context, send bus.Handler[C, R], v requestctx.Values, cmd C) (R, requestctx.Outcome, error) {
	ctx, req := requestctx.New(ctx, v)
	res, err := send(ctx, cmd)
	return res, req.Outcome(), err
}

func wantState(t *testing.T, out requestctx.Outcome, state requestctx.State) {
	t.Helper()
	if out.State != state || out.Replayed != (state == requestctx.StateReplayed) {
		t.Errorf("the outcome is %+v, want %s", out, state)
	}
}

// wantError demands an error of the type E and a state.
func wantError[E error](t *testing.T, err error, out requestctx.Outcome, state requestctx.State) (e E) {
	t.Helper()
	if !errors.As(err, &e) {
		t.Fatalf("the error is %v, want a %T", err, e)
	}
	wantState(t, out, state)
	return e
}

// The calls to the store are the turnarounds on the wire, so they are counted.

func TestFirstAttemptIsBeginAndCompleteAndNothingElse(t *testing.T) {
	t.Parallel()
	b := newBench()
	if _, out, err := call(t.Context(), b.pays(t), keyed(t, "key-00000001"), pay{Cart: "a"}); err != nil || out.State != requestctx.StateExecuted {
		t.Fatal(out, err)
	}
	if got := b.stub.calls(); got != "begin run complete" {
		t.Errorf("the store was asked: %s", got)
	}
}

func TestReplayOfAKeyThatThisProcessHasMetIsOneRead(t *testing.T) {
	t.Parallel()
	b := newBench()
	here, elsewhere := b.pays(t), b.pays(t)
	v := keyed(t, "key-00000001")
	for _, step := range []struct {
		name string
		send bus.Handler[pay, paid]
		want string
	}{
		{"the first attempt", here, "begin run complete"},
		{"a replay where it ran", here, "look"},
		{"a replay elsewhere", elsewhere, "begin rollback"},
		{"another replay elsewhere", elsewhere, "look"},
	} {
		if _, _, err := call(t.Context(), step.send, v, pay{Cart: "a"}); err != nil {
			t.Fatal(err)
		}
		if got := b.stub.calls(); got != step.want {
			t.Errorf("%s asks the store: %s, want %s", step.name, got, step.want)
		}
	}
	if _, out, err := call(t.Context(), here, v, pay{Cart: "b"}); true {
		wantError[*idempotency.ConflictError](t, err, out, requestctx.StateConflict)
	}
	if got := b.stub.calls(); got != "look" {
		t.Errorf("a conflict asks the store: %s", got)
	}
	b.want(t, 1, 1, 1)
}

func TestKeyThatWasMetAndWhoseRecordHasGoneRuns_T07(t *testing.T) {
	t.Parallel()
	b := newBench()
	send, v := b.pays(t), keyed(t, "key-00000001")
	if _, _, err := call(t.Context(), send, v, pay{Cart: "a"}); err != nil {
		t.Fatal(err)
	}
	b.stub.calls()
	b.mem = memstore.New() // as if the reaper had been there
	b.stub.Store = b.mem
	if _, out, err := call(t.Context(), send, v, pay{Cart: "a"}); err != nil || out.State != requestctx.StateExecuted || out.ReusedExpired {
		t.Fatal(out, err)
	}
	if got := b.stub.calls(); got != "look begin run complete" {
		t.Errorf("the store was asked: %s", got)
	}
}

func TestSetOfKeysMetIsBounded(t *testing.T) {
	t.Parallel()
	s := idempotency.NewSeen()
	id := func(n int) (id idempotency.ID) {
		id[0], id[1], id[2] = byte(n), byte(n>>8), byte(n>>16)
		return id
	}
	const n = 3*idempotency.SeenSize + 10
	for i := range n {
		s.Add(id(i))
		s.Add(id(i))
	}
	if s.Size() > 2*idempotency.SeenSize {
		t.Errorf("%d keys are kept, want at most %d", s.Size(), 2*idempotency.SeenSize)
	}
	if !s.Has(id(n-1)) || !s.Has(id(n-idempotency.SeenSize)) || s.Has(id(0)) {
		t.Error("the latest keys must be known and the oldest forgotten")
	}
}

// The store is away.

func TestX11_StoreThatIsDownBeforeTheClaimFailsClosed(t *testing.T) {
	t.Parallel()
	b := newBench()
	send, v := b.pays(t), keyed(t, "key-00000001")
	down := errors.New("connection refused")
	b.stub.begin = func(context.Context, int) error { return down }
	_, out, err := call(t.Context(), send, v, pay{Cart: "a"})
	e := wantError[*idempotency.StoreError](t, err, out, requestctx.StateRefused)
	if !errors.Is(err, down) || e.Code() != "IDEMPOTENCY_STORE_UNAVAILABLE" || !strings.Contains(e.Error(), "test.pay") {
		t.Errorf("the error is %v", err)
	}
	b.want(t, 0, 0, 0)
	b.stub.begin = nil
	if _, out, err := call(t.Context(), send, v, pay{Cart: "a"}); err != nil {
		t.Errorf("after the store has come back: %v, %v", out, err)
	}
	b.stub.look = func(context.Context, idempotency.Claim) (*idempotency.Record, error) { return nil, down }
	_, out, err = call(t.Context(), send, v, pay{Cart: "a"})
	wantError[*idempotency.StoreError](t, err, out, requestctx.StateRefused)
	b.want(t, 1, 1, 1)
}

func TestX12_StoreThatGoesAwayBeforeTheCompletionLeavesNothing(t *testing.T) {
	t.Parallel()
	b := newBench()
	send, v := b.pays(t), keyed(t, "key-00000001")
	b.stub.complete = func(ctx context.Context, n int, complete func() error) error {
		if n == 1 {
			return errors.New("broken pipe")
		}
		return complete()
	}
	_, out, err := call(t.Context(), send, v, pay{Cart: "a"})
	wantError[*idempotency.StoreError](t, err, out, requestctx.StateFreed)
	b.want(t, 1, 0, 0)
}

func TestX13_ClaimThatTakesTooLongGivesUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		send := b.pays(t)
		b.stub.begin = func(ctx context.Context, _ int) error { <-ctx.Done(); return ctx.Err() }
		start := time.Now()
		_, out, err := call(t.Context(), send, keyed(t, "key-00000001"), pay{Cart: "a"})
		wantError[*idempotency.StoreError](t, err, out, requestctx.StateRefused)
		if d := time.Since(start); d != idempotency.BeginTimeout {
			t.Errorf("the claim was given up after %v, want %v", d, idempotency.BeginTimeout)
		}
		b.want(t, 0, 0, 0)
	})
}

func TestCallerThatHangsUpWhileItWaitsForAConnectionSaysNothingAboutTheStore(t *testing.T) {
	t.Parallel()
	b := newBench()
	send, v := b.pays(t), keyed(t, "key-00000001")
	ctx, hangUp := context.WithCancelCause(t.Context())
	b.stub.begin = func(ctx context.Context, _ int) error {
		hangUp(errPaper)
		<-ctx.Done()
		return ctx.Err()
	}
	if _, out, err := call(ctx, send, v, pay{Cart: "a"}); err != errPaper || out.State != requestctx.StateRefused {
		t.Errorf("%+v, %v", out, err)
	}
	b.want(t, 0, 0, 0)
}

func TestBoundsOfThePatienceAreThoseThatTheDocumentsName(t *testing.T) {
	t.Parallel()
	if idempotency.BeginTimeout != 5*time.Second || idempotency.FinishTimeout != 10*time.Second || idempotency.ResolveTimeout != 5*time.Second ||
		idempotency.MaxTries != 3 || idempotency.MaxVanished != 5 || idempotency.LongestPause != 50*time.Millisecond {
		t.Error("a bound has changed")
	}
}

// The commit's answer is lost.

func TestX07_CommitWhoseAnswerIsLostIsASuccessOfThisAttempt(t *testing.T) {
	t.Parallel()
	b := newBench()
	send, v := b.pays(t), keyed(t, "key-00000001")
	b.stub.complete = func(_ context.Context, _ int, complete func() error) error {
		return errors.Join(complete(), idempotency.ErrCommitUnknown)
	}
	res, out, err := call(t.Context(), send, v, pay{Cart: "a"})
	if err != nil || res != (paid{"a", 1}) {
		t.Fatal(res, err)
	}
	wantState(t, out, requestctx.StateExecuted)
	b.want(t, 1, 1, 1)
	if got := b.stub.calls(); got != "begin run complete begin rollback" {
		t.Errorf("the store was asked: %s", got)
	}
	if _, out, err := call(t.Context(), send, v, pay{Cart: "a"}); err != nil || !out.Replayed {
		t.Error(out, err)
	}
}

func TestX07_RefusalWhoseCommitIsAnsweredLateIsTheSameRefusal(t *testing.T) {
	t.Parallel()
	b := newBench()
	send, v := b.pays(t), keyed(t, "key-00000001")
	b.then = func(context.Context, int) error { return idempotency.Final(errPaper) }
	b.stub.complete = func(_ context.Context, _ int, refuse func() error) error {
		return errors.Join(refuse(), idempotency.ErrCommitUnknown)
	}
	_, out, err := call(t.Context(), send, v, pay{Cart: "a"})
	wantError[*idempotency.RefusedError](t, err, out, requestctx.StateExecuted)
	b.want(t, 1, 0, 1)
}

func TestX06_CommitThatNeverArrivedIsMadeAgain(t *testing.T) {
	t.Parallel()
	b := newBench()
	send, v := b.pays(t), keyed(t, "key-00000001")
	b.stub.complete = func(_ context.Context, n int, complete func() error) error {
		if n == 1 {
			return idempotency.ErrCommitUnknown
		}
		return complete()
	}
	// An attempt that the server has dropped holds nothing.
	b.stub.Store = memstore.NewWithConfig(memstore.Config{NoHint: true, Share: b.mem})
	res, out, err := call(t.Context(), send, v, pay{Cart: "a"})
	if err != nil || res != (paid{"a", 2}) {
		t.Fatal(res, err)
	}
	wantState(t, out, requestctx.StateExecuted)
	b.want(t, 2, 1, 1)
}

func TestX08_CommitThatArrivesLateIsWaitedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		send, v := b.pays(t), keyed(t, "key-00000001")
		b.stub.complete = func(_ context.Context, n int, complete func() error) error {
			time.AfterFunc(800*time.Millisecond, func() { _ = complete() }) // the packet is still under way, and the key is held
			return idempotency.ErrCommitUnknown
		}
		res, out, err := call(t.Context(), send, v, pay{Cart: "a"})
		if err != nil || res != (paid{"a", 1}) {
			t.Fatal(res, err)
		}
		wantState(t, out, requestctx.StateExecuted)
		b.want(t, 1, 1, 1)
	})
}

func TestX08_CommitThatArrivesLateWithoutTheHintWinsOnce(t *testing.T) {
	t.Parallel()
	b := newBench()
	b.stub.Store = memstore.NewWithConfig(memstore.Config{NoHint: true, Share: b.mem})
	send, v := b.pays(t), keyed(t, "key-00000001")
	var late func() error
	b.stub.complete = func(_ context.Context, n int, complete func() error) error {
		if n == 1 {
			late = complete
			return idempotency.ErrCommitUnknown
		}
		if err := late(); err != nil { // it arrives while the second try is at work
			t.Error(err)
		}
		return complete()
	}
	res, out, err := call(t.Context(), send, v, pay{Cart: "a"})
	if err != nil || res != (paid{"a", 1}) {
		t.Fatal(res, err)
	}
	wantState(t, out, requestctx.StateExecuted)
	b.want(t, 2, 1, 1)
}

func TestX09_OutcomeThatCannotBeFoundOutIsUnknownAfterABound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		send, v := b.pays(t), keyed(t, "key-00000001")
		gone := fmt.Errorf("%w: unexpected EOF", idempotency.ErrCommitUnknown)
		b.stub.complete = func(_ context.Context, _ int, complete func() error) error { return errors.Join(complete(), gone) }
		b.stub.begin = func(_ context.Context, n int) error {
			if n > 1 {
				return errors.New("connection refused")
			}
			return nil
		}
		start := time.Now()
		_, out, err := call(t.Context(), send, v, pay{Cart: "a"})
		e := wantError[*idempotency.OutcomeUnknownError](t, err, out, requestctx.StateUnknown)
		if d := time.Since(start); d != idempotency.ResolveTimeout {
			t.Errorf("the outcome was given up after %v, want %v", d, idempotency.ResolveTimeout)
		}
		if !errors.Is(err, idempotency.ErrCommitUnknown) || e.Code() != "IDEMPOTENCY_OUTCOME_UNKNOWN" {
			t.Error(err)
		}
		b.stub.begin, b.stub.complete = nil, nil
		if _, out, err := call(t.Context(), send, v, pay{Cart: "a"}); err != nil || !out.Replayed {
			t.Errorf("the same key later: %+v, %v", out, err)
		}
		b.want(t, 1, 1, 1)
	})
}

func TestX09_AnotherAttemptThatHoldsTheKeyDoesNotHideTheDoubt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		send := b.pays(t)
		b.stub.complete = func(context.Context, int, func() error) error { return idempotency.ErrCommitUnknown } // and the key stays held
		_, out, err := call(t.Context(), send, keyed(t, "key-00000001"), pay{Cart: "a"})
		wantError[*idempotency.OutcomeUnknownError](t, err, out, requestctx.StateUnknown)
		b.want(t, 1, 0, 0)
	})
}

func TestX10_CompletionRunsOnAContextOfItsOwn(t *testing.T) {
	t.Parallel()
	b := newBench()
	send := b.pays(t)
	ctx, hangUp := context.WithCancel(t.Context())
	b.then = func(context.Context, int) error { hangUp(); return nil }
	b.stub.complete = func(ctx context.Context, _ int, complete func() error) error {
		deadline, ok := ctx.Deadline()
		if left := time.Until(deadline); ctx.Err() != nil || !ok || left > idempotency.FinishTimeout || left < idempotency.FinishTimeout/2 {
			t.Errorf("the completion's context: error %v, deadline in %v", ctx.Err(), left)
		}
		return complete()
	}
	if _, out, err := call(ctx, send, keyed(t, "key-00000001"), pay{Cart: "a"}); err != nil {
		t.Errorf("%+v, %v", out, err)
	}
	b.want(t, 1, 1, 1)
}

func TestX18_PanicAfterTheCommitIsReplayed(t *testing.T) {
	t.Parallel()
	b := newBench()
	send, v := b.pays(t), keyed(t, "key-00000001")
	func() {
		defer func() { _ = recover() }()
		_, _, _ = call(t.Context(), send, v, pay{Cart: "a"})
		panic("before the response was written")
	}()
	if _, out, err := call(t.Context(), send, v, pay{Cart: "a"}); err != nil || !out.Replayed {
		t.Error(out, err)
	}
	b.want(t, 1, 1, 1)
}

// The database refuses because of a concurrent transaction.

func TestL18_WhatCouldNotBeSerializedIsTriedAgainAfterARollback(t *testing.T) {
	t.Parallel()
	refused := fmt.Errorf("%w: SQLSTATE 40001", idempotency.ErrSerialization)
	for name, tc := range map[string]struct {
		plant func(b *bench, fails int)
		runs  func(fails int) int
		log   string // of one failed try
	}{
		"at the completion": {
			plant: func(b *bench, fails int) {
				b.stub.complete = func(_ context.Context, n int, complete func() error) error {
					if n <= fails {
						return refused
					}
					return complete()
				}
				b.stub.Store = memstore.NewWithConfig(memstore.Config{NoHint: true, Share: b.mem})
			},
			runs: func(fails int) int { return fails },
			log:  "begin run complete",
		},
		"at the claim": {
			plant: func(b *bench, fails int) {
				b.stub.begin = func(_ context.Context, n int) error {
					if n <= fails {
						return refused
					}
					return nil
				}
			},
			runs: func(int) int { return 0 },
			log:  "begin",
		},
		"in the handler": {
			plant: func(b *bench, fails int) {
				b.then = func(_ context.Context, run int) error {
					if run <= fails {
						return fmt.Errorf("insert order lines: %w", refused)
					}
					return nil
				}
			},
			runs: func(fails int) int { return fails },
			log:  "begin run rollback",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for fails := 1; fails <= idempotency.MaxTries; fails++ {
				b := newBench()
				tc.plant(b, fails)
				send, v := b.pays(t), keyed(t, "key-00000001")
				res, out, err := call(t.Context(), send, v, pay{Cart: "a"})
				want := strings.TrimSuffix(strings.Repeat(tc.log+" ", fails), " ")
				if fails < idempotency.MaxTries {
					want += " begin run complete"
					if err != nil || res.Run != tc.runs(fails)+1 {
						t.Errorf("%d refusals: %+v, %v", fails, res, err)
					}
					wantState(t, out, requestctx.StateExecuted)
					b.want(t, tc.runs(fails)+1, 1, 1)
				} else {
					e := wantError[*idempotency.RetriesError](t, err, out, requestctx.StateFreed)
					if e.Tries != idempotency.MaxTries || !errors.Is(e, idempotency.ErrSerialization) || strings.Contains(e.Error(), "40001") {
						t.Errorf("the error is %v of %d tries", e, e.Tries)
					}
					b.want(t, tc.runs(fails), 0, 0)
				}
				if got := b.stub.calls(); got != want {
					t.Errorf("%d refusals: the store was asked: %s, want %s", fails, got, want)
				}
			}
		})
	}
}

func TestL18_RetriesThatRanOutInsideAHandlerAreItsErrorAndNotARetry(t *testing.T) {
	t.Parallel()
	inner := newBench()
	inner.stub.begin = func(context.Context, int) error { return idempotency.ErrSerialization }
	outer := newBench()
	other := inner.hasties(t)
	outer.then = func(ctx context.Context, _ int) error {
		_, err := other(ctx, hasty{Cart: "inner"})
		var retries *idempotency.RetriesError
		if !errors.As(err, &retries) {
			t.Errorf("the inner error is %v", err)
		}
		return errPaper
	}
	if _, _, err := call(t.Context(), outer.pays(t), keyed(t, "key-00000001"), pay{Cart: "a"}); err != errPaper {
		t.Errorf("the error is %v", err)
	}
	outer.want(t, 1, 0, 0)
}

// sloppy is an error that claims to be every other one.
type sloppy struct{}

func (sloppy) Error() string   { return "sloppy" }
func (sloppy) Is(error) bool   { return true }
func (sloppy) Timeout() bool   { return true }
func (sloppy) Temporary() bool { return true }

func TestErrorThatClaimsToBeEveryOtherIsTheHandlersOwn(t *testing.T) {
	t.Parallel()
	b := newBench()
	b.stub.Store = blind{b.mem}
	b.then = func(context.Context, int) error { return sloppy{} }
	if _, out, err := call(t.Context(), b.pays(t), keyed(t, "key-00000001"), pay{Cart: "a"}); err != (sloppy{}) || out.State != requestctx.StateFreed {
		t.Errorf("%+v, %v", out, err)
	}
	b.want(t, 1, 0, 0)
}

// blind is a store that takes no error for transient.
type blind struct{ idempotency.Store }

func (b blind) Begin(ctx context.Context, c idempotency.Claim) (idempotency.Transaction, error) {
	a, err := b.Store.Begin(ctx, c)
	return blindAttempt{a}, err
}

type blindAttempt struct{ idempotency.Transaction }

func (blindAttempt) Transient(error) bool { return false }

// Waiting.

func TestS1_SixtyFourEqualKeysRunOnceOnOneConnection_L17(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		send, v := b.pays(t), keyed(t, "key-00000001")
		release := make(chan struct{})
		b.then = func(_ context.Context, run int) error {
			if run == 1 {
				<-release
			}
			return nil
		}
		var wg sync.WaitGroup
		outs := make([]requestctx.Outcome, 64)
		for i := range outs {
			wg.Go(func() {
				var err error
				if _, outs[i], err = call(t.Context(), send, v, pay{Cart: "slow"}); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait() // one handler is at work and 63 wait
		if got := b.stub.calls(); got != "begin run" {
			t.Errorf("while one works the store is asked: %s", got)
		}
		// Other keys are not held up.
		for i := range 8 {
			if _, out, err := call(t.Context(), send, keyed(t, fmt.Sprint("another-key-", i)), pay{Cart: "other"}); err != nil {
				t.Error(out, err)
			}
		}
		close(release)
		wg.Wait()
		count := map[requestctx.State]int{}
		for _, out := range outs {
			count[out.State]++
		}
		if count[requestctx.StateExecuted] != 1 || count[requestctx.StateReplayed] != 63 {
			t.Errorf("the outcomes are %v", count)
		}
		if b.stub.most != 1 {
			t.Errorf("%d attempts of one key were open at once", b.stub.most)
		}
		b.want(t, 9, 9, 9)
	})
}

func TestL02_DuplicateWaitsItsBudgetAndIsThenInProgress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		here, elsewhere := b.pays(t), b.pays(t)
		v := keyed(t, "key-00000001")
		release := make(chan struct{})
		b.then = func(context.Context, int) error { <-release; return nil }
		done := make(chan error)
		go func() {
			_, _, err := call(t.Context(), here, v, pay{Cart: "a"})
			done <- err
		}()
		synctest.Wait()
		b.stub.calls()
		var wg sync.WaitGroup
		for name, send := range map[string]bus.Handler[pay, paid]{"in this process": here, "in another process": elsewhere} {
			for range 3 { // in another process one polls and the others wait for it
				wg.Go(func() {
					start := time.Now()
					_, out, err := call(t.Context(), send, v, pay{Cart: "a"})
					e := wantError[*idempotency.InProgressError](t, err, out, requestctx.StateInProgress)
					if d := time.Since(start); d != idempotency.DefaultWait || e.RetryAfter != 2*time.Second {
						t.Errorf("%s: in progress after %v, retry after %v", name, d, e.RetryAfter)
					}
				})
			}
		}
		wg.Wait()
		polls := strings.Count(b.stub.calls(), "begin")
		if most := 3 + 3 + int(idempotency.DefaultWait/idempotency.LongestPause); polls < 3 || polls > most {
			t.Errorf("%d polls in %v, want a few and at most %d", polls, idempotency.DefaultWait, most)
		}
		if b.stub.most > 2 { // the owner's, and the one poll at a time of the other process
			t.Errorf("%d attempts of one key were open at once in two processes", b.stub.most)
		}
		close(release)
		if err := <-done; err != nil {
			t.Error(err)
		}
		b.want(t, 1, 1, 1)
	})
}

func TestL02_CommandThatDoesNotWaitIsToldAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		here, elsewhere := b.hasties(t), b.hasties(t)
		v := keyed(t, "key-00000001")
		release := make(chan struct{})
		b.then = func(context.Context, int) error { <-release; return nil }
		done := make(chan error)
		go func() {
			_, _, err := call(t.Context(), here, v, hasty{Cart: "a"})
			done <- err
		}()
		synctest.Wait()
		start := time.Now()
		for _, send := range []bus.Handler[hasty, paid]{here, elsewhere} {
			_, out, err := call(t.Context(), send, v, hasty{Cart: "a"})
			wantError[*idempotency.InProgressError](t, err, out, requestctx.StateInProgress)
		}
		if d := time.Since(start); d != 0 {
			t.Errorf("the answer took %v", d)
		}
		close(release)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestL01_DuplicateOfAnotherProcessReplaysAsSoonAsThereIsARecord(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		here, elsewhere := b.pays(t), b.pays(t)
		v := keyed(t, "key-00000001")
		b.then = func(context.Context, int) error { time.Sleep(100 * time.Millisecond); return nil } // the bubble's time
		done := make(chan error)
		go func() {
			_, _, err := call(t.Context(), here, v, pay{Cart: "a"})
			done <- err
		}()
		synctest.Wait()
		start := time.Now()
		_, out, err := call(t.Context(), elsewhere, v, pay{Cart: "a"})
		if err != nil || !out.Replayed {
			t.Error(out, err)
		}
		if d := time.Since(start); d > 100*time.Millisecond+idempotency.LongestPause {
			t.Errorf("the replay came after %v", d)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		b.want(t, 1, 1, 1)
	})
}

func TestDuplicateThatHangsUpWhileItWaitsGetsItsOwnError(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		here, elsewhere := b.pays(t), b.pays(t)
		v := keyed(t, "key-00000001")
		release := make(chan struct{})
		b.then = func(context.Context, int) error { <-release; return nil }
		done := make(chan error)
		go func() {
			_, _, err := call(t.Context(), here, v, pay{Cart: "a"})
			done <- err
		}()
		synctest.Wait()
		for _, send := range []bus.Handler[pay, paid]{here, elsewhere} {
			ctx, cancel := context.WithTimeoutCause(t.Context(), 20*time.Millisecond, errPaper)
			start := time.Now()
			_, out, err := call(ctx, send, v, pay{Cart: "a"})
			cancel()
			if err != errPaper || time.Since(start) != 20*time.Millisecond {
				t.Errorf("after %v: %v", time.Since(start), err)
			}
			wantState(t, out, requestctx.StateInProgress)
		}
		close(release)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestCompletionThatMeetsAnotherJustCommittingWaitsAndReplays(t *testing.T) {
	t.Parallel()
	b := newBench()
	b.stub.Store = memstore.NewWithConfig(memstore.Config{NoHint: true, Share: b.mem})
	send, v := b.pays(t), keyed(t, "key-00000001")
	winner := b.pays(t)
	b.stub.complete = func(_ context.Context, n int, complete func() error) error {
		if n == 1 { // its statement waited for the winner's and gave up
			if _, _, err := call(context.Background(), winner, v, pay{Cart: "a"}); err != nil {
				t.Error(err)
			}
			return idempotency.ErrBusy
		}
		return complete()
	}
	res, out, err := call(t.Context(), send, v, pay{Cart: "a"})
	if err != nil || res.Run != 2 {
		t.Error(res, err)
	}
	wantState(t, out, requestctx.StateReplayed)
	b.want(t, 2, 1, 1)
}

func TestT07_RecordThatVanishesAgainAndAgainIsInProgressAfterABound(t *testing.T) {
	t.Parallel()
	for vanish := 1; vanish <= idempotency.MaxVanished; vanish++ {
		b := newBench()
		b.stub.Store = memstore.NewWithConfig(memstore.Config{NoHint: true, Share: b.mem})
		b.stub.complete = func(_ context.Context, n int, complete func() error) error {
			if n <= vanish {
				return idempotency.ErrLost // and the record that it lost to has been purged
			}
			return complete()
		}
		_, out, err := call(t.Context(), b.pays(t), keyed(t, "key-00000001"), pay{Cart: "a"})
		if vanish < idempotency.MaxVanished {
			if err != nil {
				t.Errorf("%d times: %v", vanish, err)
			}
			b.want(t, vanish+1, 1, 1)
			continue
		}
		wantError[*idempotency.InProgressError](t, err, out, requestctx.StateInProgress)
		b.want(t, vanish, 0, 0)
	}
}

func TestLostCompletionThatCannotReadTheWinnersRecordIsAStoreError(t *testing.T) {
	t.Parallel()
	b := newBench()
	b.stub.complete = func(context.Context, int, func() error) error { return idempotency.ErrLost }
	b.stub.look = func(context.Context, idempotency.Claim) (*idempotency.Record, error) {
		return nil, errors.New("connection refused")
	}
	_, out, err := call(t.Context(), b.pays(t), keyed(t, "key-00000001"), pay{Cart: "a"})
	wantError[*idempotency.StoreError](t, err, out, requestctx.StateFreed)
}

// The handler.

func TestHandlerRunsOnAContextDetachedFromTheRequest_BR03_E50(t *testing.T) {
	t.Parallel()
	type valueKey struct{}
	b := newBench()
	ctx, hangUp := context.WithTimeout(context.WithValue(t.Context(), valueKey{}, "kept"), time.Minute/2)
	b.then = func(ctx context.Context, _ int) error {
		hangUp()
		deadline, ok := ctx.Deadline()
		left := time.Until(deadline)
		if ctx.Err() != nil || !ok || left > idempotency.DefaultDeadline || left < idempotency.DefaultDeadline-10*time.Second {
			t.Errorf("the handler's context: error %v, deadline in %v", ctx.Err(), left)
		}
		if ctx.Value(valueKey{}) != "kept" || requestctx.From(ctx) == nil {
			t.Error("the handler's context has lost its values")
		}
		return nil
	}
	if _, _, err := call(ctx, b.pays(t), keyed(t, "key-00000001"), pay{Cart: "a"}); err != nil {
		t.Error(err)
	}
	b.want(t, 1, 1, 1)
}

func TestBR03_HandlerStopsAtThePolicysDeadlineAndLeavesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		send, v := b.hasties(t), keyed(t, "key-00000001")
		b.then = func(ctx context.Context, run int) error {
			if run > 1 {
				return nil
			}
			<-ctx.Done()
			if cause := context.Cause(ctx); !errors.Is(ctx.Err(), context.DeadlineExceeded) || !strings.Contains(cause.Error(), "policy's deadline") {
				t.Errorf("the context ended with %v, because %v", ctx.Err(), cause)
			}
			return ctx.Err()
		}
		start := time.Now()
		_, out, err := call(t.Context(), send, v, hasty{Cart: "a"})
		if err != context.DeadlineExceeded || time.Since(start) != 3*time.Second {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		wantState(t, out, requestctx.StateFreed)
		b.want(t, 1, 0, 0)
		if _, _, err := call(t.Context(), send, v, hasty{Cart: "a"}); err != nil {
			t.Error(err)
		}
	})
}

func TestContextOfAHandlerEndsWithIt(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"success", "error", "panic", "goexit"} {
		b := newBench()
		var kept context.Context
		b.then = func(ctx context.Context, _ int) error {
			kept = ctx
			switch how {
			case "error":
				return errPaper
			case "panic":
				panic(errPaper)
			case "goexit":
				runtime.Goexit()
			}
			return nil
		}
		send := b.pays(t)
		var wg sync.WaitGroup
		wg.Go(func() {
			defer func() { _ = recover() }()
			_, _, _ = call(t.Context(), send, keyed(t, "key-00000001"), pay{Cart: "a"})
		})
		wg.Wait()
		if kept.Err() == nil {
			t.Errorf("%s: what the handler left behind is not told to stop", how)
		}
		if got := strings.Count(b.stub.calls(), "rollback"); (how != "success") != (got == 1) {
			t.Errorf("%s: %d rollbacks", how, got)
		}
	}
}

// grumpy is an error whose methods panic.
type grumpy struct{ in string }

func (g grumpy) Error() string {
	if g.in == "Error" {
		panic(g.in)
	}
	return "grumpy"
}

func (g grumpy) Code() string {
	if g.in == "Code" {
		panic(g.in)
	}
	return "GRUMPY"
}

func (g grumpy) RefusalData() any {
	switch g.in {
	case "RefusalData":
		panic(g.in)
	case "its JSON":
		return math.Inf(1)
	}
	return nil
}

func (g grumpy) As(any) bool {
	if g.in == "As" {
		panic(g.in)
	}
	return false
}

func TestErrorWhosePanicComesAfterTheHandlerIsRolledBackToo_BR14(t *testing.T) {
	t.Parallel()
	for _, in := range []string{"Error", "Code", "RefusalData", "As"} {
		b := newBench()
		send, v := b.pays(t), keyed(t, "key-00000001")
		b.then = func(_ context.Context, run int) error {
			if run == 1 {
				return idempotency.Final(grumpy{in})
			}
			return nil
		}
		ctx, req := requestctx.New(t.Context(), v)
		func() {
			defer func() {
				if r := recover(); r != in {
					t.Errorf("%s: recovered %v", in, r)
				}
			}()
			_, _ = send(ctx, pay{Cart: "a"})
		}()
		wantState(t, req.Outcome(), requestctx.StateFreed)
		b.want(t, 1, 0, 0)
		if _, _, err := call(t.Context(), send, v, pay{Cart: "a"}); err != nil {
			t.Errorf("%s: the key is not free: %v", in, err)
		}
	}
}

func TestR14_RefusalThatCannotBeStoredLeavesNothing(t *testing.T) {
	t.Parallel()
	b := newBench()
	b.then = func(context.Context, int) error { return idempotency.Final(grumpy{"its JSON"}) }
	_, out, err := call(t.Context(), b.pays(t), keyed(t, "key-00000001"), pay{Cart: "a"})
	if e := wantError[*idempotency.ResultError](t, err, out, requestctx.StateFreed); e.Stored {
		t.Error(e)
	}
	b.want(t, 1, 0, 0)
}

func TestR23_HandlerThatEndedItsTransactionIsAFault(t *testing.T) {
	t.Parallel()
	for sentinel, state := range map[error]requestctx.State{
		idempotency.ErrTransactionEnded:   requestctx.StateUnknown,
		idempotency.ErrTransactionAborted: requestctx.StateFreed, // R22
	} {
		b := newBench()
		b.stub.complete = func(context.Context, int, func() error) error { return fmt.Errorf("memory: %w", sentinel) }
		_, out, err := call(t.Context(), b.pays(t), keyed(t, "key-00000001"), pay{Cart: "a"})
		wantError[*idempotency.HandlerError](t, err, out, state)
		if !errors.Is(err, sentinel) {
			t.Errorf("%v does not lead to %v", err, sentinel)
		}
	}
}

func TestN01_NestedCommandRunsUnderTheParentsRecord(t *testing.T) {
	t.Parallel()
	b := newBench()
	engine, err := idempotency.New(idempotency.Config{Store: b.stub})
	if err != nil {
		t.Fatal(err)
	}
	inner := serveOn(t, engine, func(ctx context.Context, c hasty) (paid, error) { return b.handle(ctx, c.Cart) })
	outer := serveOn(t, engine, func(ctx context.Context, c pay) (paid, error) {
		// Its own request, another key, no key: it is inside all the same.
		for _, v := range []requestctx.Values{keyed(t, "another-key-1"), {}} {
			_, out, err := call(ctx, inner, v, hasty{Cart: "inner"})
			if err != nil {
				return paid{}, err
			}
			wantState(t, out, requestctx.StateNested)
		}
		if _, err := inner(ctx, hasty{Cart: "inner"}); err != nil {
			return paid{}, err
		}
		return b.handle(ctx, c.Cart)
	})
	_, out, err := call(t.Context(), outer, keyed(t, "key-00000001"), pay{Cart: "outer"})
	if err != nil {
		t.Fatal(err)
	}
	wantState(t, out, requestctx.StateExecuted)
	if got := b.stub.calls(); got != "begin run run run run complete" {
		t.Errorf("the store was asked: %s", got)
	}
	b.want(t, 4, 4, 1)
}

func TestN05_CommandOfAnotherBusHasItsOwnRecordAndTheWayBackIsNested(t *testing.T) {
	t.Parallel()
	a, b := newBench(), newBench()
	engine, err := idempotency.New(idempotency.Config{Store: a.stub})
	if err != nil {
		t.Fatal(err)
	}
	back := serveOn(t, engine, func(ctx context.Context, c pay) (paid, error) { return a.handle(ctx, c.Cart) })
	b.then = func(ctx context.Context, _ int) error {
		_, err := back(ctx, pay{Cart: "back"})
		return err
	}
	there := b.hasties(t)
	outer := serveOn(t, engine, func(ctx context.Context, c pay) (paid, error) {
		if _, err := there(ctx, hasty{Cart: "there"}); err != nil {
			return paid{}, err
		}
		return a.handle(ctx, c.Cart)
	})
	if _, _, err := call(t.Context(), outer, keyed(t, "key-00000001"), pay{Cart: "outer"}); err != nil {
		t.Fatal(err)
	}
	a.want(t, 2, 2, 1)
	b.want(t, 1, 1, 1)
}

func TestR24_StrictPolicyAndDetachedWorkAreReported(t *testing.T) {
	t.Parallel()
	b := newBench()
	send := serve(t, idempotency.Config{Store: b.stub}, func(context.Context, pay) (paid, error) { return paid{}, nil })
	_, out, err := call(t.Context(), send, keyed(t, "key-00000001"), pay{})
	if err != nil || !out.Detached {
		t.Error(out, err)
	}
}

// The request context.

func TestH01_MarkedCommandWithoutAKeyIsRefusedAndTheStoreUntouched(t *testing.T) {
	t.Parallel()
	b := newBench()
	send := b.pays(t)
	v := keyed(t, "key-00000001")
	v.Key = requestctx.Key{}
	_, out, err := call(t.Context(), send, v, pay{Cart: "a"})
	e := wantError[*idempotency.KeyMissingError](t, err, out, requestctx.StateRefused)
	if e.Code() != "IDEMPOTENCY_KEY_MISSING" || e.Command != "test.pay" {
		t.Error(e)
	}
	// Without any request context as well.
	if _, err := send(t.Context(), pay{Cart: "a"}); bus.CodeOf(err) != "IDEMPOTENCY_KEY_MISSING" {
		t.Error(err)
	}
	if got := b.stub.calls(); got != "" {
		t.Errorf("the store was asked: %s", got)
	}
}

func TestH03_KeyThatWasRefusedIsRaisedByAMarkedCommand(t *testing.T) {
	t.Parallel()
	b := newBench()
	v := keyed(t, "key-00000001")
	_, v.KeyErr = requestctx.ParseKey("secret!")
	_, out, err := call(t.Context(), b.pays(t), v, pay{Cart: "a"})
	wantError[*idempotency.KeyInvalidError](t, err, out, requestctx.StateRefused)
	var reason *requestctx.KeyError
	if !errors.As(err, &reason) || bus.CodeOf(err) != "IDEMPOTENCY_KEY_INVALID" || strings.Contains(err.Error(), "secret!") {
		t.Error(err)
	}
	if got := b.stub.calls(); got != "" {
		t.Errorf("the store was asked: %s", got)
	}
}

// stroll is a command without the mark.
type stroll struct{ Any any }

func (stroll) CommandName() bus.Name[bus.None] { return "test.stroll" }

func TestH20_CommandWithoutTheMarkIsNotTouched_pipe4(t *testing.T) {
	t.Parallel()
	engine, err := idempotency.New(idempotency.Config{}) // not even a store is needed
	if err != nil {
		t.Fatal(err)
	}
	runs := 0
	send := serveOn(t, engine, func(context.Context, stroll) (bus.None, error) { runs++; return bus.None{}, nil })
	v := keyed(t, "key-00000001")
	_, bad := requestctx.ParseKey("bad")
	for _, v := range []requestctx.Values{v, v, {KeyErr: bad}, {}} {
		if _, out, err := call(t.Context(), send, v, stroll{Any: func() {}}); err != nil || out != (requestctx.Outcome{}) {
			t.Errorf("%+v, %v", out, err)
		}
	}
	if runs != 4 {
		t.Errorf("the handler ran %d times", runs)
	}
}

// tip is a command that may come without a key.
type tip struct {
	Cart string `json:"cart"`
}

func (tip) CommandName() bus.Name[paid]     { return "test.tip" }
func (tip) Idempotency() idempotency.Policy { return idempotency.Policy{KeyOptional: true} }

func TestH02_OptionalKeyLetsEveryKeylessRequestRun_BR31(t *testing.T) {
	t.Parallel()
	b := newBench()
	send := serve(t, idempotency.Config{Store: b.stub}, func(ctx context.Context, c tip) (paid, error) { return b.handle(ctx, c.Cart) })
	v := keyed(t, "key-00000001")
	v.Key = requestctx.Key{}
	for i := range 3 {
		cart := fmt.Sprint("cart ", i)
		res, out, err := call(t.Context(), send, v, tip{cart})
		if err != nil || res != (paid{cart, i + 1}) {
			t.Errorf("%+v, %v", res, err)
		}
		wantState(t, out, requestctx.StateUnprotected)
	}
	if got := b.stub.calls(); got != "run run run" {
		t.Errorf("the store was asked: %s", got)
	}
	b.want(t, 3, 3, 0)
	// With a key it is protected, and a bad key is not the same as none.
	v = keyed(t, "key-00000001")
	if _, out, err := call(t.Context(), send, v, tip{"a"}); err != nil || out.State != requestctx.StateExecuted {
		t.Error(out, err)
	}
	if _, out, err := call(t.Context(), send, v, tip{"a"}); err != nil || !out.Replayed {
		t.Error(out, err)
	}
	_, v.KeyErr = requestctx.ParseKey("bad")
	_, out, err := call(t.Context(), send, v, tip{"a"})
	wantError[*idempotency.KeyInvalidError](t, err, out, requestctx.StateRefused)
}

func TestS03_AnonymousCallersShareOneSpace(t *testing.T) {
	t.Parallel()
	b := newBench()
	send, v := b.pays(t), keyed(t, "key-00000001")
	v.Scope = requestctx.Scope{Client: requestctx.Anonymous}
	if _, _, err := call(t.Context(), send, v, pay{Cart: "a"}); err != nil {
		t.Fatal(err)
	}
	if _, out, err := call(t.Context(), send, v, pay{Cart: "a"}); err != nil || !out.Replayed {
		t.Error(out, err)
	}
	if s := b.mem.Records()[0].Scope; s != (idempotency.Scope{Client: "anonymous", Operation: "POST /pay test.pay", Key: "key-00000001"}) {
		t.Errorf("the scope is %+v", s)
	}
}

func TestS04_ScopeThatIsNotKnownIsRefusedAndTheStoreUntouched_BR31(t *testing.T) {
	t.Parallel()
	b := newBench()
	handle := func(ctx context.Context, c pay) (paid, error) { return b.handle(ctx, c.Cart) }
	for name, tc := range map[string]struct {
		cfg     idempotency.Config
		scope   requestctx.Scope
		missing string
	}{
		"no client":              {idempotency.Config{Store: b.stub}, requestctx.Scope{Tenant: "t"}, "client"},
		"no tenant where needed": {idempotency.Config{Store: b.stub, RequireTenant: true}, requestctx.Scope{Client: "c"}, "tenant"},
		"neither":                {idempotency.Config{Store: b.stub, RequireTenant: true}, requestctx.Scope{}, "client"},
	} {
		v := keyed(t, "key-00000001")
		v.Scope = tc.scope
		_, out, err := call(t.Context(), serve(t, tc.cfg, handle), v, pay{Cart: "a"})
		if e := wantError[*idempotency.ScopeError](t, err, out, requestctx.StateRefused); e.Missing != tc.missing || !strings.Contains(e.Error(), tc.missing) {
			t.Errorf("%s: %v", name, e)
		}
	}
	if got := b.stub.calls(); got != "" {
		t.Errorf("the store was asked: %s", got)
	}
	v := keyed(t, "key-00000001")
	if _, _, err := call(t.Context(), serve(t, idempotency.Config{Store: b.stub, RequireTenant: true}, handle), v, pay{Cart: "a"}); err != nil {
		t.Error(err)
	}
}

func TestS05_S06_S08_OperationIsMadeOfSourceAndName(t *testing.T) {
	t.Parallel()
	b := newBench()
	send := b.pays(t)
	sources := []string{"POST /v1/orders", "POST /v2/orders", "PUT /v1/orders", "consumer:billing", ""}
	for _, source := range sources {
		v := keyed(t, "key-00000001")
		v.Source = source
		if _, out, err := call(t.Context(), send, v, pay{Cart: "a"}); err != nil || out.State != requestctx.StateExecuted {
			t.Errorf("%q: %+v, %v", source, out, err)
		}
	}
	var operations []string
	for _, r := range b.mem.Records() {
		operations = append(operations, r.Scope.Operation)
	}
	slices.Sort(operations)
	if want := []string{"POST /v1/orders test.pay", "POST /v2/orders test.pay", "PUT /v1/orders test.pay", "consumer:billing test.pay", "test.pay"}; !slices.Equal(operations, want) {
		t.Errorf("the operations are %q", operations)
	}
}

func TestS07_SameKeyForAnotherResourceIsAConflict_BR20(t *testing.T) {
	t.Parallel()
	b := newBench()
	send, v := b.pays(t), keyed(t, "key-00000001")
	v.Resource = []string{"42", "7"}
	if _, _, err := call(t.Context(), send, v, pay{Cart: "a"}); err != nil {
		t.Fatal(err)
	}
	if _, out, err := call(t.Context(), send, v, pay{Cart: "a"}); err != nil || !out.Replayed {
		t.Error(out, err)
	}
	for _, other := range [][]string{{"42"}, {"42", "8"}, {"427"}, {"4", "27"}, {"7", "42"}, nil} {
		v.Resource = other
		_, out, err := call(t.Context(), send, v, pay{Cart: "a"})
		wantError[*idempotency.ConflictError](t, err, out, requestctx.StateConflict)
	}
	b.want(t, 1, 1, 1)
}

func TestS09_WhatChangesFromTryToTryIsNotCompared_F03_BR34(t *testing.T) {
	t.Parallel()
	b := newBench()
	send, v := b.pays(t), keyed(t, "key-00000001")
	if _, _, err := call(t.Context(), send, v, pay{Cart: "a"}); err != nil {
		t.Fatal(err)
	}
	v.ID, v.ExternalRef = "another-request-id", "another-reference"
	if _, out, err := call(t.Context(), send, v, pay{Cart: "a"}); err != nil || !out.Replayed {
		t.Error(out, err)
	}
}

// The payload.

func TestPayloadWithoutAFingerprintIsRefusedAndTheStoreUntouched(t *testing.T) {
	t.Parallel()
	b := newBench()
	_, out, err := call(t.Context(), b.pays(t), keyed(t, "key-00000001"), pay{Cart: "a", Amount: math.NaN()})
	if e := wantError[*idempotency.FingerprintError](t, err, out, requestctx.StateRefused); e.Path != "amount" {
		t.Error(e)
	}
	if got := b.stub.calls(); got != "" {
		t.Errorf("the store was asked: %s", got)
	}
}

// versions of the contract of one command, as two deployments have them.
type (
	payV1 struct {
		Cart string `json:"cart"`
	}
	payV2 struct {
		Cart    string `json:"cart"`
		Voucher string `json:"voucher"`
	}
)

func (payV1) CommandName() bus.Name[paid]     { return "test.pay" }
func (payV1) Idempotency() idempotency.Policy { return idempotency.Policy{Version: 1} }
func (payV2) CommandName() bus.Name[paid]     { return "test.pay" }
func (payV2) Idempotency() idempotency.Policy { return idempotency.Policy{Version: 2} }

func TestF21_RetryThatMeetsARecordOfAnotherVersionIsComparedByThatVersion_F20_D08_BR52(t *testing.T) {
	t.Parallel()
	b := newBench()
	old := serve(t, idempotency.Config{Store: b.stub}, func(ctx context.Context, c payV1) (paid, error) { return b.handle(ctx, c.Cart) })
	deployed := serve(t, idempotency.Config{Store: b.stub}, func(ctx context.Context, c payV2) (paid, error) { return b.handle(ctx, c.Cart) })
	v := keyed(t, "key-00000001")
	if _, _, err := call(t.Context(), old, v, payV1{"a"}); err != nil {
		t.Fatal(err)
	}
	if res, out, err := call(t.Context(), deployed, v, payV2{Cart: "a"}); err != nil || !out.Replayed || res.Run != 1 {
		t.Errorf("an honest retry after the deploy: %+v, %+v, %v", res, out, err)
	}
	for _, cmd := range []payV2{{Cart: "b"}, {Cart: "a", Voucher: "x"}} {
		_, out, err := call(t.Context(), deployed, v, cmd)
		if e := wantError[*idempotency.ConflictError](t, err, out, requestctx.StateConflict); !e.VersionChanged || !strings.Contains(e.Error(), "version") {
			t.Errorf("the conflict does not name the version: %v", e)
		}
	}
	// The other way round, while the deploy is rolling.
	v = keyed(t, "key-00000002")
	if _, _, err := call(t.Context(), deployed, v, payV2{Cart: "a"}); err != nil {
		t.Fatal(err)
	}
	if _, out, err := call(t.Context(), old, v, payV1{"a"}); err != nil || !out.Replayed {
		t.Error(out, err)
	}
	// A fingerprint of an algorithm that this program does not have is not compared blindly.
	r := b.mem.Records()[0]
	r.HashVersion = 2001
	b.mem.Put(r.Scope.ID(), r)
	v = keyed(t, r.Scope.Key)
	_, out, err := call(t.Context(), deployed, v, payV2{Cart: "a"})
	if e := wantError[*idempotency.ConflictError](t, err, out, requestctx.StateConflict); !e.VersionChanged {
		t.Error(e)
	}
}

// What users read.

func TestFinalAndUnknownOfNothingAreNothing(t *testing.T) {
	t.Parallel()
	if err := idempotency.Final(nil); err != nil {
		t.Error(err)
	}
	if err := idempotency.Unknown(nil); err != nil {
		t.Error(err)
	}
	for _, err := range []error{idempotency.Final(errPaper), idempotency.Unknown(errPaper)} {
		if !errors.Is(err, errPaper) || err.Error() != errPaper.Error() {
			t.Errorf("%v hides its cause", err)
		}
	}
}

func TestRefusalHasACodeAMessageAndData_R03(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		err  error
		want idempotency.RefusedError
	}{
		"plain":                  {idempotency.Final(errPaper), idempotency.RefusedError{RefusalCode: "REFUSED", Message: "the printer is out of paper"}},
		"coded":                  {idempotency.Final(grumpy{}), idempotency.RefusedError{RefusalCode: "GRUMPY", Message: "grumpy", Data: []byte(`null`)}},
		"coded inside":           {idempotency.Final(fmt.Errorf("pay: %w", grumpy{})), idempotency.RefusedError{RefusalCode: "GRUMPY", Message: "pay: grumpy", Data: []byte(`null`)}},
		"marked inside":          {fmt.Errorf("outer: %w", idempotency.Final(errPaper)), idempotency.RefusedError{RefusalCode: "REFUSED", Message: "the printer is out of paper"}},
		"a refusal passed on":    {idempotency.Final(&idempotency.RefusedError{Command: "x", RefusalCode: "A", Message: "b"}), idempotency.RefusedError{RefusalCode: "A", Message: "idempotency: x: refused: b"}},
		"joined with no class":   {errors.Join(errPaper, idempotency.Final(grumpy{})), idempotency.RefusedError{RefusalCode: "GRUMPY", Message: "grumpy", Data: []byte(`null`)}},
		"final twice is final":   {idempotency.Final(idempotency.Final(errPaper)), idempotency.RefusedError{RefusalCode: "REFUSED", Message: "the printer is out of paper"}},
		"a code that says blank": {idempotency.Final(codeless{}), idempotency.RefusedError{RefusalCode: "REFUSED", Message: "codeless"}},
	} {
		b := newBench()
		b.then = func(context.Context, int) error { return tc.err }
		send, v := b.pays(t), keyed(t, "key-00000001")
		for range 2 {
			_, _, err := call(t.Context(), send, v, pay{Cart: "a"})
			var got *idempotency.RefusedError
			if !errors.As(err, &got) || got.Command != "test.pay" || got.Code() != tc.want.RefusalCode || got.Message != tc.want.Message || string(got.Data) != string(tc.want.Data) {
				t.Errorf("%s: the refusal is %+v, want %+v", name, err, tc.want)
			}
			if tc.want.RefusalCode == "GRUMPY" && (!errors.Is(err, grumpy{}) || errors.Is(err, codeless{})) {
				t.Errorf("%s: %v is not the application's own coded error", name, err)
			}
		}
		b.want(t, 1, 0, 1)
	}
}

type codeless struct{}

func (codeless) Error() string { return "codeless" }
func (codeless) Code() string  { return "" }

func TestUnknownWinsOverFinal(t *testing.T) {
	t.Parallel()
	b := newBench()
	b.then = func(context.Context, int) error { return idempotency.Final(idempotency.Unknown(errPaper)) }
	_, out, err := call(t.Context(), b.pays(t), keyed(t, "key-00000001"), pay{Cart: "a"})
	wantError[*idempotency.HandlerError](t, err, out, requestctx.StateFreed)
	b.want(t, 1, 0, 0)
}

func TestEveryErrorNamesItsCommandAndHasACodeAndShowsNoValue_see1_BR56(t *testing.T) {
	t.Parallel()
	const card = "4111111111111111"
	hidden := errors.New(card)
	_, keyErr := requestctx.ParseKey(card + "!")
	for want, err := range map[string]error{
		"IDEMPOTENCY_KEY_MISSING":         &idempotency.KeyMissingError{Command: "test.pay"},
		"IDEMPOTENCY_KEY_INVALID":         &idempotency.KeyInvalidError{Command: "test.pay", Err: keyErr},
		"IDEMPOTENCY_SCOPE_MISSING":       &idempotency.ScopeError{Command: "test.pay", Missing: "client"},
		"IDEMPOTENCY_KEY_CONFLICT":        &idempotency.ConflictError{Command: "test.pay"},
		"IDEMPOTENCY_REQUEST_IN_PROGRESS": &idempotency.InProgressError{Command: "test.pay"},
		"IDEMPOTENCY_KEY_EXPIRED":         &idempotency.ExpiredError{Command: "test.pay"},
		"IDEMPOTENCY_STORE_UNAVAILABLE":   &idempotency.StoreError{Command: "test.pay", Err: errPaper},
		"IDEMPOTENCY_RETRIES_EXHAUSTED":   &idempotency.RetriesError{Command: "test.pay", Err: hidden},
		"IDEMPOTENCY_OUTCOME_UNKNOWN":     &idempotency.OutcomeUnknownError{Command: "test.pay", Err: hidden},
		"IDEMPOTENCY_RESULT_UNENCODABLE":  &idempotency.ResultError{Command: "test.pay", Err: hidden},
		"IDEMPOTENCY_RESULT_UNDECODABLE":  &idempotency.ResultError{Command: "test.pay", Err: hidden, Stored: true},
		"IDEMPOTENCY_HANDLER_FAULT":       &idempotency.HandlerError{Command: "test.pay", Reason: "it did", Err: hidden},
		"IDEMPOTENCY_RECORD_MISMATCH":     &idempotency.RecordError{Command: "test.pay"},
		"IDEMPOTENCY_LEASE_LOST":          &idempotency.LeaseLostError{Command: "test.pay"},
		"IDEMPOTENCY_ATTEMPTS_EXHAUSTED":  &idempotency.AttemptsError{Command: "test.pay", Attempts: 3},
		"IDEMPOTENCY_RESULT_UNAVAILABLE":  &idempotency.ResultUnavailableError{Command: "test.pay", Err: hidden},
		"IDEMPOTENCY_FINGERPRINT_FAILED":  &idempotency.FingerprintError{Command: "test.pay", Reason: "it has none"},
	} {
		if got := bus.CodeOf(err); got != want {
			t.Errorf("%T has the code %s, want %s", err, got, want)
		}
		if s := err.Error(); !strings.HasPrefix(s, "idempotency: test.pay: ") || strings.Contains(s, card) {
			t.Errorf("%T says %q", err, s)
		}
	}
}

func TestNewRefusesSettingsThatMakeNoSense(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]idempotency.Config{
		"a short secret":         {Secrets: []idempotency.Secret{{Key: make([]byte, 31)}}},
		"a negative retry-after": {RetryAfter: -time.Second},
	} {
		if e, err := idempotency.New(cfg); err == nil || e != nil {
			t.Errorf("%s is accepted", name)
		}
	}
	b := newBench()
	b.then = func(context.Context, int) error { return nil }
	b.stub.begin = func(context.Context, int) error { return idempotency.ErrBusy }
	send := serve(t, idempotency.Config{Store: b.stub, RetryAfter: 7 * time.Second, Secrets: []idempotency.Secret{{Key: make([]byte, 32)}}}, func(ctx context.Context, c hasty) (paid, error) { return b.handle(ctx, c.Cart) })
	_, out, err := call(t.Context(), send, keyed(t, "key-00000001"), hasty{})
	if e := wantError[*idempotency.InProgressError](t, err, out, requestctx.StateInProgress); e.RetryAfter != 7*time.Second {
		t.Error(e)
	}
}

// A command opts in by one method.
type place struct {
	Cart string `json:"cart"`
}

func (place) CommandName() bus.Name[string] { return "checkout.place" }
func (place) Idempotent()                   {}

var _ idempotency.Marker = place{} // the compiler checks the spelling

func ExampleStage() {
	store := memstore.New()
	engine, err := idempotency.New(idempotency.Config{Store: store})
	if err != nil {
		panic(err)
	}
	runs := 0
	claimed, plan, err := idempotency.Stage(engine, func(ctx context.Context, p place) (string, error) {
		runs++
		return fmt.Sprintf("order %d for %s", runs, p.Cart), store.Insert(ctx, p.Cart)
	})
	if err != nil {
		panic(err)
	}
	fmt.Println(plan.Marked, plan.Policy.Mode, plan.Policy.Retention)

	// Package registry does the following for an application.
	inv := bus.Invocation{Name: "checkout.place", Idempotent: true}
	b, err := bus.New(bus.Serve(bus.Log(bus.Validate(claimed, inv, nil, nil), inv, nil, nil)))
	if err != nil {
		panic(err)
	}
	key, err := requestctx.ParseKey("draft-4711-pay")
	if err != nil {
		panic(err)
	}
	for _, cart := range []string{"cart-1", "cart-1", "cart-2"} {
		ctx, req := requestctx.New(context.Background(), requestctx.Values{Key: key, Scope: requestctx.Scope{Client: "shop"}})
		placed, err := bus.Send(ctx, b, place{Cart: cart})
		fmt.Printf("%q replayed=%v %s\n", placed, req.Outcome().Replayed, cmp.Or(bus.CodeOf(err), "OK"))
	}
	// Output:
	// true atomic 72h0m0s
	// "order 1 for cart-1" replayed=false OK
	// "order 1 for cart-1" replayed=true OK
	// "" replayed=false IDEMPOTENCY_KEY_CONFLICT
}

func ExampleFinal() {
	store := memstore.New()
	engine, err := idempotency.New(idempotency.Config{Store: store})
	if err != nil {
		panic(err)
	}
	claimed, _, err := idempotency.Stage(engine, func(ctx context.Context, p place) (string, error) {
		if err := store.Insert(ctx, p.Cart); err != nil {
			return "", err // passing: the same key may be sent again
		}
		return "", idempotency.Final(errors.New("the cart is empty")) // an outcome: stored and replayed
	})
	if err != nil {
		panic(err)
	}
	inv := bus.Invocation{Name: "checkout.place", Idempotent: true}
	b, err := bus.New(bus.Serve(bus.Log(bus.Validate(claimed, inv, nil, nil), inv, nil, nil)))
	if err != nil {
		panic(err)
	}
	key, err := requestctx.ParseKey("draft-4711-pay")
	if err != nil {
		panic(err)
	}
	for range 2 {
		ctx, req := requestctx.New(context.Background(), requestctx.Values{Key: key, Scope: requestctx.Scope{Client: "shop"}})
		_, err := bus.Send(ctx, b, place{Cart: "cart-1"})
		fmt.Println(err, req.Outcome().Replayed, len(store.Rows()))
	}
	// Output:
	// idempotency: checkout.place: refused: the cart is empty false 0
	// idempotency: checkout.place: refused: the cart is empty true 0
}

func ExampleUnknown() {
	err := idempotency.Unknown(context.DeadlineExceeded) // a call to the outside world that was not answered
	fmt.Println(errors.Is(err, context.DeadlineExceeded))
	// Output: true
}
