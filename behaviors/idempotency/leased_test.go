package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
)

// leasing is the part of the stub that concerns Leased attempts.
type leasing struct {
	take      func(ctx context.Context, n int, take taking) (idempotency.Lease, *idempotency.Record, error)
	renew     func(ctx context.Context, n int, renew func() error) error
	release   func(ctx context.Context, n int, release func() error) error
	leaseEnds bool // the handler has ended the business transaction itself, as far as the store can tell

	takes, renews, releases int
	held                    int // leases that were given and neither ended nor rolled back
}

// taking is a call of Lease that is still to be made.
type taking func() (idempotency.Lease, *idempotency.Record, error)

func (s *stub) Lease(ctx context.Context, c idempotency.Claim) (idempotency.Lease, *idempotency.Record, error) {
	n := s.count("lease", &s.takes)
	take := func() (idempotency.Lease, *idempotency.Record, error) { return s.Store.Lease(ctx, c) }
	if s.take != nil {
		plain := take
		take = func() (idempotency.Lease, *idempotency.Record, error) { return s.take(ctx, n, plain) }
	}
	l, rec, err := take()
	if l == nil || err != nil {
		return nil, rec, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held++
	return &stubLease{Lease: l, s: s, closed: sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.held--
	})}, rec, nil
}

// count notes a call and says how many there were of its kind.
func (s *stub) count(what string, n *int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log = append(s.log, what)
	*n++
	return *n
}

type stubLease struct {
	idempotency.Lease
	s      *stub
	closed func()

	writing sync.Mutex
	wrote   bool // an outcome, whatever the answer was
}

func (l *stubLease) Renew(ctx context.Context) error {
	n := l.s.count("renew", &l.s.renews)
	if l.s.renew != nil {
		return l.s.renew(ctx, n, func() error { return l.Lease.Renew(ctx) })
	}
	return l.Lease.Renew(ctx)
}

func (l *stubLease) Ended() bool { return l.s.leaseEnds || l.Lease.Ended() }

func (l *stubLease) Complete(ctx context.Context, d idempotency.Completion) error {
	return l.end(ctx, l.s.count("complete", &l.s.ends), l.s.complete, l.writes(func() error { return l.Lease.Complete(context.WithoutCancel(ctx), d) }))
}

func (l *stubLease) Refuse(ctx context.Context, d idempotency.Completion) error {
	return l.end(ctx, l.s.count("refuse", &l.s.ends), l.s.complete, l.writes(func() error { return l.Lease.Refuse(context.WithoutCancel(ctx), d) }))
}

// writes meets the guard of the record when the outcome is there already. The store itself cannot, because it has not seen its
// answer getting lost.
func (l *stubLease) writes(write func() error) func() error {
	return func() error {
		l.writing.Lock()
		defer l.writing.Unlock()
		if l.wrote {
			return fmt.Errorf("memory: %w", idempotency.ErrLost)
		}
		err := write()
		l.wrote = err == nil
		return err
	}
}

func (l *stubLease) Release(ctx context.Context) error {
	return l.end(ctx, l.s.count("release", &l.s.releases), l.s.release, func() error { return l.Lease.Release(context.WithoutCancel(ctx)) })
}

func (l *stubLease) end(ctx context.Context, n int, instead func(context.Context, int, func() error) error, end func() error) (err error) {
	if instead != nil {
		err = instead(ctx, n, end)
	} else {
		err = end()
	}
	if err == nil {
		l.closed()
	}
	return err
}

func (l *stubLease) Rollback(ctx context.Context) {
	l.s.note("rollback")
	l.Lease.Rollback(ctx)
	l.closed()
}

type hasPolicy interface{ policy() idempotency.Policy }

// charge is the Leased command of most tests; P is its policy.
type charge[P hasPolicy] struct {
	Cart   string `json:"cart"`
	Amount int    `json:"amount"`
}

func (charge[P]) CommandName() bus.Name[paid] { return "test.charge" }
func (charge[P]) Idempotency() idempotency.Policy {
	var p P
	return p.policy()
}

type (
	leased     struct{} // the defaults
	hurried    struct{} // duplicates do not wait, and the handler has three seconds
	accepted   struct{}
	reconcile  struct{}
	refuse     struct{}
	twice      struct{} // two attempts
	endless    struct{} // any number of them
	lasting    struct{} // a handler that may take longer than its lease
	version2   struct{} // of the contract
	atomic2    struct{} // the same, in Atomic
	atomically struct{}
	buried     struct{} // tombstones
)

func (leased) policy() idempotency.Policy { return idempotency.Policy{Mode: idempotency.Leased} }
func (hurried) policy() idempotency.Policy {
	return idempotency.Policy{Mode: idempotency.Leased, Wait: -1, Deadline: 3 * time.Second}
}

func (accepted) policy() idempotency.Policy {
	return idempotency.Policy{Mode: idempotency.Leased, Wait: -1, Duplicate: idempotency.AnswerAccepted}
}

func (reconcile) policy() idempotency.Policy {
	return idempotency.Policy{Mode: idempotency.Leased, Wait: -1, Deadline: 3 * time.Second, Takeover: idempotency.Reconcile}
}

func (refuse) policy() idempotency.Policy {
	return idempotency.Policy{Mode: idempotency.Leased, Wait: -1, Deadline: 3 * time.Second, Takeover: idempotency.Refuse}
}

func (twice) policy() idempotency.Policy {
	return idempotency.Policy{Mode: idempotency.Leased, Wait: -1, MaxAttempts: 2}
}

func (endless) policy() idempotency.Policy {
	return idempotency.Policy{Mode: idempotency.Leased, Wait: -1, MaxAttempts: -1}
}

func (lasting) policy() idempotency.Policy {
	return idempotency.Policy{Mode: idempotency.Leased, Deadline: 30 * time.Minute}
}

func (version2) policy() idempotency.Policy {
	return idempotency.Policy{Mode: idempotency.Leased, Version: 2}
}
func (atomic2) policy() idempotency.Policy    { return idempotency.Policy{Version: 2} }
func (atomically) policy() idempotency.Policy { return idempotency.Policy{} }
func (buried) policy() idempotency.Policy {
	return idempotency.Policy{Mode: idempotency.Leased, Wait: -1, AfterExpiry: idempotency.Tombstone}
}

// charge is a handler: it goes outside (b.first), writes its row in the business transaction, unless b.alone, and ends as b.then says.
func (b *bench) charge(ctx context.Context, cart string) (paid, error) {
	b.mu.Lock()
	b.runs++
	run := b.runs
	b.mu.Unlock()
	b.stub.note("run")
	if b.first != nil {
		if err := b.first(ctx, run); err != nil {
			return paid{}, err
		}
	}
	if !b.alone {
		if err := b.mem.InTx(ctx, func(ctx context.Context) error { return b.mem.Insert(ctx, cart) }); err != nil {
			return paid{}, err
		}
	}
	if b.then != nil {
		if err := b.then(ctx, run); err != nil {
			return paid{}, err
		}
	}
	return paid{cart, run}, nil
}

// charges serves charge over an engine of its own, as a process of its own would.
func charges[P hasPolicy](t testing.TB, b *bench) bus.Handler[charge[P], paid] {
	t.Helper()
	return chargesOn[P](t, b, newEngine(t, b))
}

func chargesOn[P hasPolicy](t testing.TB, b *bench, e *idempotency.Engine) bus.Handler[charge[P], paid] {
	t.Helper()
	return serveOn(t, e, func(ctx context.Context, c charge[P]) (paid, error) { return b.charge(ctx, c.Cart) })
}

// newEngine makes an engine on the bench's store. When the test ends, no lease may be left that nobody has ended.
func newEngine(t testing.TB, b *bench) *idempotency.Engine {
	t.Helper()
	e, err := idempotency.New(idempotency.Config{Store: b.stub})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		b.stub.mu.Lock()
		defer b.stub.mu.Unlock()
		if b.stub.held != 0 {
			t.Errorf("%d leases are left with what they hold", b.stub.held)
		}
	})
	return e
}

// only gives the bench's one record.
func (b *bench) only(t testing.TB) idempotency.Stored {
	t.Helper()
	records := b.mem.Records()
	if len(records) != 1 {
		t.Fatalf("%d records, want 1", len(records))
	}
	found, err := b.mem.Find(t.Context(), idempotency.Search{ID: records[0].Scope.ID()}, 1)
	if err != nil || len(found) != 1 {
		t.Fatal(found, err)
	}
	return found[0]
}

func (b *bench) wantRecord(t testing.TB, state idempotency.RecordState, attempts int) {
	t.Helper()
	if rec := b.only(t); rec.State != state || rec.Attempts != attempts {
		t.Errorf("the record is %s after %d attempts, want %s after %d", rec.State, rec.Attempts, state, attempts)
	}
}

func (b *bench) wantCalls(t testing.TB, want string) {
	t.Helper()
	if got := b.stub.calls(); got != want {
		t.Errorf("the store was asked: %s, want: %s", got, want)
	}
}

// operationID is what callers of a key are told.
func operationID(v requestctx.Values) string {
	return idempotency.Scope{Tenant: v.Scope.Tenant, Client: v.Scope.Client, Operation: v.Source + " test.charge", Key: v.Key.String()}.ID().Operation()
}

// goesOutside is a first part that asks for a downstream key.
func goesOutside(ctx context.Context, _ int) error {
	_, err := idempotency.DownstreamKey(ctx, "psp")
	return err
}

// answered is what a call in the background came to.
type answered struct {
	res paid
	out requestctx.Outcome
	err error
}

// background makes a call and gives where its answer will be.
func background[C any](ctx context.Context, send bus.Handler[C, paid], v requestctx.Values, cmd C) <-chan answered {
	done := make(chan answered, 1)
	go func() {
		res, out, err := call(ctx, send, v, cmd)
		done <- answered{res, out, err}
	}()
	return done
}

// The calls to the store are the turnarounds on the wire, so they are counted.

func TestLeasedAttemptIsLeaseAndCompleteAndNothingElse(t *testing.T) {
	t.Parallel()
	for name, alone := range map[string]bool{"with a business transaction": false, "without one": true} {
		b := newBench()
		b.alone = alone
		res, out, err := call(t.Context(), charges[leased](t, b), keyed(t, "key-00000001"), charge[leased]{Cart: "a"})
		if err != nil || res != (paid{"a", 1}) {
			t.Fatal(name, res, err)
		}
		wantState(t, out, requestctx.StateExecuted)
		if out.Attempt != 1 || out.TookOver || out.ReusedExpired || out.Detached || out.OriginalRequestID == "" {
			t.Errorf("%s: %+v", name, out)
		}
		b.wantCalls(t, "lease run complete")
		rows := 1
		if alone {
			rows = 0
		}
		b.want(t, 1, rows, 1)
		b.wantRecord(t, idempotency.Completed, 1)
	}
}

func TestReplayOfALeasedCommandIsOneRead_R02(t *testing.T) {
	t.Parallel()
	b := newBench()
	here, elsewhere, third := charges[leased](t, b), charges[leased](t, b), charges[leased](t, b)
	v := keyed(t, "key-00000001")
	first := ""
	for _, step := range []struct {
		name string
		send bus.Handler[charge[leased], paid]
		want string
	}{
		{"the first attempt", here, "lease run complete"},
		{"a replay where it ran", here, "look"},
		{"a replay elsewhere", elsewhere, "lease"},
		{"another replay elsewhere", elsewhere, "look"},
	} {
		res, out, err := call(t.Context(), step.send, v, charge[leased]{Cart: "a"})
		if err != nil || res != (paid{"a", 1}) {
			t.Fatal(step.name, res, err)
		}
		if first == "" {
			first = out.OriginalRequestID
		} else if wantState(t, out, requestctx.StateReplayed); out.OriginalRequestID != first || out.Attempt != 0 {
			t.Errorf("%s: %+v, the first attempt was %s", step.name, out, first)
		}
		b.wantCalls(t, step.want)
	}
	for _, step := range []struct {
		send bus.Handler[charge[leased], paid]
		want string
	}{{here, "look"}, {third, "lease"}} {
		_, out, err := call(t.Context(), step.send, v, charge[leased]{Cart: "b"})
		wantError[*idempotency.ConflictError](t, err, out, requestctx.StateConflict)
		b.wantCalls(t, step.want)
	}
	b.want(t, 1, 1, 1)
}

func TestKeyThatWasSeenAndFailedRunsAgain_L05(t *testing.T) {
	t.Parallel()
	b := newBench()
	send, v := charges[leased](t, b), keyed(t, "key-00000001")
	b.then = func(_ context.Context, run int) error {
		if run == 1 {
			return errPaper
		}
		return nil
	}
	if _, out, err := call(t.Context(), send, v, charge[leased]{Cart: "a"}); err != errPaper || out.State != requestctx.StateFreed {
		t.Fatal(out, err)
	}
	b.wantCalls(t, "lease run release")
	b.wantRecord(t, idempotency.Failed, 1)
	if _, out, err := call(t.Context(), send, v, charge[leased]{Cart: "a"}); err != nil || out.State != requestctx.StateExecuted || out.Attempt != 2 || out.TookOver {
		t.Fatal(out, err)
	}
	b.wantCalls(t, "lease run complete")
	b.wantRecord(t, idempotency.Completed, 2)
	b.want(t, 2, 1, 1)
}

// Duplicates.

func TestL03_DuplicateInAnotherProcessLooksUntilItsBudgetIsSpent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		here, elsewhere := charges[leased](t, b), charges[leased](t, b)
		v := keyed(t, "key-00000001")
		hold := make(chan struct{})
		b.first = func(context.Context, int) error { <-hold; return nil }
		owner := background(t.Context(), here, v, charge[leased]{Cart: "a"})
		synctest.Wait()
		b.wantCalls(t, "lease run")
		for i, name := range []string{"the first duplicate", "the second"} {
			start := time.Now()
			_, out, err := call(t.Context(), elsewhere, v, charge[leased]{Cart: "a"})
			e := wantError[*idempotency.InProgressError](t, err, out, requestctx.StateInProgress)
			if d := time.Since(start); d != idempotency.DefaultWait || e.RetryAfter != 2*time.Second || e.Accepted || e.OperationID != operationID(v) {
				t.Errorf("%s is told after %v: %+v", name, d, e)
			}
			if out.OriginalRequestID == "" || out.Attempt != 0 {
				t.Errorf("%s: %+v", name, out)
			}
			log := b.stub.calls()
			leases, looks := strings.Count(log, "lease"), strings.Count(log, "look")
			if leases != 1-i || leases+looks != len(strings.Fields(log)) || looks < 3 || looks > 4+int(idempotency.DefaultWait/idempotency.LongestPause) {
				t.Errorf("%s asks the store: %s", name, log)
			}
		}
		close(hold)
		if a := <-owner; a.err != nil {
			t.Error(a.err)
		}
		b.want(t, 1, 1, 1)
	})
}

func TestL03_DuplicateInAnotherProcessReplaysAsSoonAsThereIsAnOutcome(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		here, elsewhere := charges[leased](t, b), charges[leased](t, b)
		v := keyed(t, "key-00000001")
		b.first = func(context.Context, int) error { time.Sleep(100 * time.Millisecond); return nil } // the bubble's time
		owner := background(t.Context(), here, v, charge[leased]{Cart: "a"})
		synctest.Wait()
		start := time.Now()
		if res, out, err := call(t.Context(), elsewhere, v, charge[leased]{Cart: "a"}); err != nil || !out.Replayed || res.Run != 1 {
			t.Error(res, out, err)
		}
		if d := time.Since(start); d > 100*time.Millisecond+idempotency.LongestPause {
			t.Errorf("the replay came after %v", d)
		}
		<-owner
		b.want(t, 1, 1, 1)
	})
}

func TestL04_OtherPayloadIsAConflictAtOnceAndInTheSameProcessWithoutTheStore_BR39(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		here, elsewhere := charges[leased](t, b), charges[leased](t, b)
		v := keyed(t, "key-00000001")
		hold := make(chan struct{})
		b.first = func(context.Context, int) error { <-hold; return nil }
		owner := background(t.Context(), here, v, charge[leased]{Cart: "a"})
		synctest.Wait()
		b.stub.calls()
		start := time.Now()
		for _, step := range []struct {
			send bus.Handler[charge[leased], paid]
			want string
		}{{here, ""}, {here, ""}, {elsewhere, "lease"}} {
			_, out, err := call(t.Context(), step.send, v, charge[leased]{Cart: "b"})
			wantError[*idempotency.ConflictError](t, err, out, requestctx.StateConflict)
			b.wantCalls(t, step.want)
		}
		if d := time.Since(start); d != 0 {
			t.Errorf("the conflicts took %v", d)
		}
		close(hold)
		if a := <-owner; a.err != nil {
			t.Error(a.err)
		}
		b.want(t, 1, 1, 1)
	})
}

func TestL04_OtherPayloadThatCameBeforeTheClaimWasAnsweredIsAConflictWhenItsWaitIsOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		send, v := charges[leased](t, b), keyed(t, "key-00000001")
		b.stub.take = func(_ context.Context, _ int, take taking) (idempotency.Lease, *idempotency.Record, error) {
			time.Sleep(time.Second / 10)
			return take()
		}
		b.first = func(context.Context, int) error { time.Sleep(time.Second); return nil }
		owner := background(t.Context(), send, v, charge[leased]{Cart: "a"})
		synctest.Wait() // its claim is under way, so nobody here knows yet whose payload will have the key
		_, out, err := call(t.Context(), send, v, charge[leased]{Cart: "b"})
		wantError[*idempotency.ConflictError](t, err, out, requestctx.StateConflict)
		if a := <-owner; a.err != nil {
			t.Error(a.err)
		}
		b.want(t, 1, 1, 1)
	})
}

func TestS1_SixtyFourEqualLeasedKeysRunOnceAndAskTheStoreOnce_L17(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		send, v := charges[leased](t, b), keyed(t, "key-00000001")
		hold := make(chan struct{})
		b.first = func(context.Context, int) error { <-hold; return nil }
		var all []<-chan answered
		for range 64 {
			all = append(all, background(t.Context(), send, v, charge[leased]{Cart: "a"}))
			synctest.Wait() // one after the other: each finds more that is known
		}
		b.wantCalls(t, "lease run")
		close(hold)
		count := map[requestctx.State]int{}
		for _, done := range all {
			a := <-done
			if a.err != nil || a.res != (paid{"a", 1}) {
				t.Error(a)
			}
			count[a.out.State]++
		}
		if count[requestctx.StateExecuted] != 1 || count[requestctx.StateReplayed] != 63 {
			t.Errorf("the outcomes are %v", count)
		}
		b.wantCalls(t, "complete")
		b.want(t, 1, 1, 1)
	})
}

func TestL02_LeasedDuplicateInTheSameProcessWaitsItsBudgetAndIsThenInProgress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		send, v := charges[leased](t, b), keyed(t, "key-00000001")
		hold := make(chan struct{})
		b.first = func(context.Context, int) error { <-hold; return nil }
		owner := background(t.Context(), send, v, charge[leased]{Cart: "a"})
		synctest.Wait()
		b.stub.calls()
		for range 2 {
			start := time.Now()
			_, out, err := call(t.Context(), send, v, charge[leased]{Cart: "a"})
			e := wantError[*idempotency.InProgressError](t, err, out, requestctx.StateInProgress)
			if d := time.Since(start); d != idempotency.DefaultWait || e.OperationID != operationID(v) || out.OriginalRequestID == "" {
				t.Errorf("after %v: %+v, %+v", d, e, out)
			}
		}
		ctx, hangUp := context.WithTimeoutCause(t.Context(), 20*time.Millisecond, errPaper)
		defer hangUp()
		if _, _, err := call(ctx, send, v, charge[leased]{Cart: "a"}); err != errPaper {
			t.Errorf("one that hangs up while it waits gets %v", err)
		}
		b.wantCalls(t, "")
		close(hold)
		<-owner
	})
}

func TestL05_WhenTheFirstFailsExactlyOneOfThoseThatWaitRuns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		send, v := charges[leased](t, b), keyed(t, "key-00000001")
		hold := make(chan struct{})
		b.first = func(_ context.Context, run int) error {
			if run == 1 {
				<-hold
				return errPaper
			}
			return nil
		}
		var all []<-chan answered
		for range 8 {
			all = append(all, background(t.Context(), send, v, charge[leased]{Cart: "a"}))
		}
		synctest.Wait()
		close(hold)
		count := map[requestctx.State]int{}
		for _, done := range all {
			count[(<-done).out.State]++
		}
		if count[requestctx.StateFreed] != 1 || count[requestctx.StateExecuted] != 1 || count[requestctx.StateReplayed] != 6 {
			t.Errorf("the outcomes are %v", count)
		}
		b.want(t, 2, 1, 1)
		b.wantRecord(t, idempotency.Completed, 2)
	})
}

func TestAnswerAcceptedNamesTheSameOperationToEveryRetryAndHidesTheKey_rec4_see1(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		here, elsewhere := charges[accepted](t, b), charges[accepted](t, b)
		v := keyed(t, "0190c0de-0000-7000-8000-00000000abcd")
		hold := make(chan struct{})
		b.first = func(context.Context, int) error { <-hold; return nil }
		ids := map[string]int{}
		ask := func() {
			for _, send := range []bus.Handler[charge[accepted], paid]{here, elsewhere} {
				_, out, err := call(t.Context(), send, v, charge[accepted]{Cart: "a"})
				e := wantError[*idempotency.InProgressError](t, err, out, requestctx.StateInProgress)
				if !e.Accepted {
					t.Error("the duplicate is not told that its request was accepted")
				}
				ids[e.OperationID]++
			}
		}
		b.then = func(_ context.Context, run int) error {
			if run == 1 {
				return errPaper
			}
			return nil
		}
		for range 2 { // the second attempt of the intent is the same operation
			owner := background(t.Context(), here, v, charge[accepted]{Cart: "a"})
			synctest.Wait()
			ask()
			hold <- struct{}{}
			<-owner
		}
		if ids[operationID(v)] != 4 || len(ids) != 1 {
			t.Errorf("the operations are %v", ids)
		}
		for part := range strings.SplitSeq(v.Key.String(), "-") {
			if len(part) > 4 && strings.Contains(operationID(v), part) {
				t.Errorf("the operation %s shows %s of the key", operationID(v), part)
			}
		}
		b.want(t, 2, 1, 1)
	})
}

// How an attempt ends (semantics 1.6).

// ending is one way in which a handler ends and what comes of it.
type ending struct {
	name  string
	first func(ctx context.Context, run int) error
	then  func(ctx context.Context, run int) error
	// what the first attempt gives
	err   error // errors.Is; nil for a panic
	state requestctx.State
	log   string
	rows  int
	rec   idempotency.RecordState
	// whether the same payload runs at once, and what another payload is told
	again bool
}

func TestHowALeasedAttemptEnds_R01_R03_R04_R05_R06_R07_R08_R09_BR05_BR14(t *testing.T) {
	t.Parallel()
	fails := func(err error) func(context.Context, int) error {
		return func(_ context.Context, run int) error {
			if run == 1 {
				return err
			}
			return nil
		}
	}
	panics := func(_ context.Context, run int) error {
		if run == 1 {
			panic(errPaper)
		}
		return nil
	}
	exits := func(_ context.Context, run int) error {
		if run == 1 {
			runtime.Goexit()
		}
		return nil
	}
	late := func(give func(ctx context.Context) error) func(context.Context, int) error {
		return func(ctx context.Context, run int) error {
			if run > 1 {
				return nil
			}
			<-ctx.Done()
			return give(ctx)
		}
	}
	deadline := func(ctx context.Context) error { return ctx.Err() }
	then := func(fs ...func(context.Context, int) error) func(context.Context, int) error {
		return func(ctx context.Context, run int) error {
			for _, f := range fs {
				if err := f(ctx, run); err != nil {
					return err
				}
			}
			return nil
		}
	}
	unclear := errors.New("rpc error: code = DeadlineExceeded") // what a client says that wraps nothing
	for _, e := range []ending{
		{name: "a value", state: requestctx.StateExecuted, log: "lease run complete", rows: 1, rec: idempotency.Completed},
		{name: "a value after it was outside", first: goesOutside, state: requestctx.StateExecuted, log: "lease run complete", rows: 1, rec: idempotency.Completed},
		{name: "final", then: fails(idempotency.Final(errPaper)), err: errPaper, state: requestctx.StateExecuted, log: "lease run refuse", rec: idempotency.Completed},
		{name: "final before the business transaction", first: fails(idempotency.Final(errPaper)), err: errPaper, state: requestctx.StateExecuted, log: "lease run refuse", rec: idempotency.Completed},
		{name: "final after it was outside", first: goesOutside, then: fails(idempotency.Final(errPaper)), err: errPaper, state: requestctx.StateExecuted, log: "lease run refuse", rec: idempotency.Completed},
		{name: "final when the deadline has passed", first: then(goesOutside, late(func(context.Context) error { return idempotency.Final(errPaper) })), err: errPaper, state: requestctx.StateExecuted, log: "lease run refuse", rec: idempotency.Completed},
		{name: "unclassified", then: fails(errPaper), err: errPaper, state: requestctx.StateFreed, log: "lease run release", rec: idempotency.Failed, again: true},
		{name: "unclassified before the business transaction", first: fails(errPaper), err: errPaper, state: requestctx.StateFreed, log: "lease run release", rec: idempotency.Failed, again: true},
		{name: "unclassified after it was outside", first: then(goesOutside, fails(errPaper)), err: errPaper, state: requestctx.StateFreed, log: "lease run release", rec: idempotency.Failed, again: true},
		{name: "unknown", first: then(goesOutside, fails(idempotency.Unknown(errPaper))), err: errPaper, state: requestctx.StateUnknown, log: "lease run rollback look", rec: idempotency.InProgress},
		{name: "unknown without a downstream key", first: fails(idempotency.Unknown(errPaper)), err: errPaper, state: requestctx.StateUnknown, log: "lease run rollback look", rec: idempotency.InProgress},
		{name: "unknown in the business transaction", then: fails(idempotency.Unknown(errPaper)), err: errPaper, state: requestctx.StateUnknown, log: "lease run rollback look", rec: idempotency.InProgress},
		{name: "final and unknown", then: fails(idempotency.Final(idempotency.Unknown(errPaper))), err: errPaper, state: requestctx.StateUnknown, log: "lease run rollback look", rec: idempotency.InProgress},
		{name: "panic", then: panics, state: requestctx.StateFreed, log: "lease run release", rec: idempotency.Failed, again: true},
		{name: "panic after it was outside", first: then(goesOutside, panics), state: requestctx.StateUnknown, log: "lease run rollback", rec: idempotency.InProgress},
		{name: "panic in the business transaction after it was outside", first: goesOutside, then: panics, state: requestctx.StateUnknown, log: "lease run rollback", rec: idempotency.InProgress},
		{name: "exit", first: exits, state: requestctx.StateFreed, log: "lease run release", rec: idempotency.Failed, again: true},
		{name: "exit after it was outside", first: then(goesOutside, exits), state: requestctx.StateUnknown, log: "lease run rollback", rec: idempotency.InProgress},
		{name: "deadline", first: late(deadline), err: context.DeadlineExceeded, state: requestctx.StateFreed, log: "lease run release", rec: idempotency.Failed, again: true},
		{name: "deadline in the business transaction", then: late(deadline), err: context.DeadlineExceeded, state: requestctx.StateFreed, log: "lease run release", rec: idempotency.Failed, again: true},
		{name: "deadline after it was outside", first: then(goesOutside, late(deadline)), err: context.DeadlineExceeded, state: requestctx.StateUnknown, log: "lease run rollback look", rec: idempotency.InProgress},
		{name: "deadline in the business transaction after it was outside", first: goesOutside, then: late(deadline), err: context.DeadlineExceeded, state: requestctx.StateUnknown, log: "lease run rollback look", rec: idempotency.InProgress},
		{name: "the deadline's cause after it was outside", first: then(goesOutside, late(func(ctx context.Context) error { return context.Cause(ctx) })), state: requestctx.StateUnknown, log: "lease run rollback look", rec: idempotency.InProgress},
		{name: "a client's own words for the deadline after it was outside", first: then(goesOutside, late(func(context.Context) error { return unclear })), err: unclear, state: requestctx.StateUnknown, log: "lease run rollback look", rec: idempotency.InProgress},
		{name: "a value when the deadline has passed", first: then(goesOutside, late(func(context.Context) error { return nil })), state: requestctx.StateExecuted, log: "lease run complete", rec: idempotency.Completed, rows: 1},
	} {
		t.Run(e.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { endingOf(t, e) })
		})
	}
}

func endingOf(t *testing.T, e ending) {
	b := newBench()
	b.first, b.then = e.first, e.then
	if strings.Contains(e.name, "value when the deadline") {
		b.alone = true // memstore opens no transaction on a context that has ended
		e.rows = 0
	}
	send, v := charges[hurried](t, b), keyed(t, "key-00000001")
	ctx, req := requestctx.New(t.Context(), v)
	var err error
	returned, recovered := false, any(nil)
	var wg sync.WaitGroup
	wg.Go(func() {
		defer func() { recovered = recover() }()
		_, err = send(ctx, charge[hurried]{Cart: "a"})
		returned = true
	})
	wg.Wait()
	out := req.Outcome()
	wantState(t, out, e.state)
	b.wantCalls(t, e.log)
	b.want(t, 1, e.rows, 1)
	b.wantRecord(t, e.rec, 1)
	if strings.HasPrefix(e.name, "panic") && recovered != errPaper || strings.HasPrefix(e.name, "exit") && returned {
		t.Errorf("recovered %v, returned %v", recovered, returned)
	}
	if e.err != nil && e.state != requestctx.StateExecuted && !errors.Is(err, e.err) {
		t.Errorf("the error is %v, want one that wraps %v", err, e.err)
	}
	if e.state == requestctx.StateFreed && e.err != nil && err != e.err {
		t.Errorf("the error is %#v, want the handler's own", err)
	}
	if e.state == requestctx.StateExecuted && e.err != nil {
		wantError[*idempotency.RefusedError](t, err, out, requestctx.StateExecuted)
	}
	if e.state == requestctx.StateUnknown && returned {
		u := wantError[*idempotency.OutcomeUnknownError](t, err, out, requestctx.StateUnknown)
		if left := b.only(t).LeaseLeft; u.RetryAfter != left || left <= 0 || left > idempotency.DefaultLease || u.Review {
			t.Errorf("%+v, and %v of the lease are left", u, left)
		}
	}
	// What the next one meets. Another payload is refused in each of these states.
	_, out, err = call(t.Context(), send, v, charge[hurried]{Cart: "b"})
	wantError[*idempotency.ConflictError](t, err, out, requestctx.StateConflict)
	_, out, err = call(t.Context(), send, v, charge[hurried]{Cart: "a"})
	switch {
	case e.again:
		if err != nil || out.State != requestctx.StateExecuted || out.Attempt != 2 {
			t.Errorf("the same payload: %+v, %v", out, err)
		}
		b.want(t, 2, 1, 1)
	case e.rec == idempotency.InProgress:
		wantError[*idempotency.InProgressError](t, err, out, requestctx.StateInProgress)
		time.Sleep(idempotency.DefaultLease) // then it may be taken over
		if _, out, err = call(t.Context(), send, v, charge[hurried]{Cart: "a"}); err != nil || out.State != requestctx.StateExecuted || out.Attempt != 2 || !out.TookOver {
			t.Errorf("after the lease: %+v, %v", out, err)
		}
		b.want(t, 2, 1, 1)
	default:
		wantState(t, out, requestctx.StateReplayed)
		b.want(t, 1, e.rows, 1)
	}
}

// figure is a Leased command with any result.
type figure[R any] struct{}

func (figure[R]) CommandName() bus.Name[R] { return "test.figure" }
func (figure[R]) Idempotency() idempotency.Policy {
	return idempotency.Policy{Mode: idempotency.Leased, Wait: -1}
}

func leasedReplaysAs[R any](t *testing.T, value R) (first, second R) {
	t.Helper()
	b := newBench()
	send := serveOn(t, newEngine(t, b), func(context.Context, figure[R]) (R, error) { return value, nil })
	v := keyed(t, "key-00000001")
	first, out, err := call(t.Context(), send, v, figure[R]{})
	if err != nil || out.State != requestctx.StateExecuted {
		t.Errorf("%T: %+v, %v", value, out, err)
	}
	if second, out, err = call(t.Context(), send, v, figure[R]{}); err != nil || !out.Replayed {
		t.Errorf("%T: %+v, %v", value, out, err)
	}
	if rec := b.only(t); rec.Result == nil || rec.ResultType != "result/0" {
		t.Errorf("%T is stored as %q of type %s", value, rec.Result, rec.ResultType)
	}
	return first, second
}

func TestLeasedResultsThatAreNothingAreReplayedAsThat_R10_R11(t *testing.T) {
	t.Parallel()
	if a, b := leasedReplaysAs(t, (*paid)(nil)); a != nil || b != nil {
		t.Error(a, b)
	}
	if a, b := leasedReplaysAs(t, 0); a != 0 || b != 0 {
		t.Error(a, b)
	}
	if a, b := leasedReplaysAs(t, false); a || b {
		t.Error(a, b)
	}
	if a, b := leasedReplaysAs(t, ""); a != "" || b != "" {
		t.Error(a, b)
	}
	if a, b := leasedReplaysAs(t, []int(nil)); a != nil || b != nil {
		t.Error(a, b)
	}
	if a, b := leasedReplaysAs(t, bus.None{}); a != b {
		t.Error(a, b)
	}
}

func TestR14_ResultThatDoesNotEncodeUndoesTheWorkOnlyWhereNothingWasDoneOutside(t *testing.T) {
	t.Parallel()
	for _, out := range []bool{false, true} {
		b := newBench()
		runs := 0
		send := serveOn(t, newEngine(t, b), func(ctx context.Context, _ figure[float64]) (float64, error) {
			runs++
			requestctx.From(ctx).SetExternalRef("auth-1")
			if out {
				if err := goesOutside(ctx, 1); err != nil {
					return 0, err
				}
			}
			return math.Inf(1), b.mem.InTx(ctx, func(ctx context.Context) error { return b.mem.Insert(ctx, "row") })
		})
		v := keyed(t, "key-00000001")
		_, o, err := call(t.Context(), send, v, figure[float64]{})
		if !out {
			if e := wantError[*idempotency.ResultError](t, err, o, requestctx.StateFreed); e.Stored || len(b.mem.Rows()) != 0 {
				t.Error(e, b.mem.Rows())
			}
			b.wantRecord(t, idempotency.Failed, 1)
			continue
		}
		e := wantError[*idempotency.ResultUnavailableError](t, err, o, requestctx.StateExecuted)
		if e.Err == nil || e.ExternalRef != "auth-1" || e.Code() != "IDEMPOTENCY_RESULT_UNAVAILABLE" {
			t.Errorf("%+v", e)
		}
		for range 2 {
			_, o, err = call(t.Context(), send, v, figure[float64]{})
			if e := wantError[*idempotency.ResultUnavailableError](t, err, o, requestctx.StateReplayed); e.Err != nil || e.ExternalRef != "auth-1" {
				t.Errorf("%+v", e)
			}
		}
		if rec := b.only(t); rec.State != idempotency.Completed || rec.ResultType != "omitted" || rec.Result != nil || runs != 1 || len(b.mem.Rows()) != 1 {
			t.Errorf("%+v, %d runs, %v", rec, runs, b.mem.Rows())
		}
	}
}

func TestR14_RefusalThatCannotBeStoredFreesTheKey(t *testing.T) {
	t.Parallel()
	b := newBench()
	b.then = func(_ context.Context, run int) error {
		if run == 1 {
			return idempotency.Final(grumpy{"its JSON"})
		}
		return nil
	}
	send, v := charges[leased](t, b), keyed(t, "key-00000001")
	_, out, err := call(t.Context(), send, v, charge[leased]{Cart: "a"})
	if e := wantError[*idempotency.ResultError](t, err, out, requestctx.StateFreed); e.Stored {
		t.Error(e)
	}
	b.wantRecord(t, idempotency.Failed, 1)
	if _, _, err := call(t.Context(), send, v, charge[leased]{Cart: "a"}); err != nil {
		t.Error(err)
	}
	b.want(t, 2, 1, 1)
}

func TestErrorOfALeasedHandlerWhosePanicComesLaterEndsTheAttemptToo_BR14(t *testing.T) {
	t.Parallel()
	for _, in := range []string{"Error", "Code", "RefusalData", "As"} {
		for _, outside := range []bool{false, true} {
			b := newBench()
			send, v := charges[hurried](t, b), keyed(t, "key-00000001")
			if outside {
				b.first = goesOutside
			}
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
				_, _ = send(ctx, charge[hurried]{Cart: "a"})
			}()
			if outside {
				wantState(t, req.Outcome(), requestctx.StateUnknown)
				b.wantRecord(t, idempotency.InProgress, 1)
				b.mem.Age(idempotency.DefaultLease)
			} else {
				wantState(t, req.Outcome(), requestctx.StateFreed)
				b.wantRecord(t, idempotency.Failed, 1)
			}
			if _, _, err := call(t.Context(), send, v, charge[hurried]{Cart: "a"}); err != nil {
				t.Errorf("%s: the key is not free: %v", in, err)
			}
			b.want(t, 2, 1, 1)
		}
	}
}

func TestErrorOfALeasedHandlerThatClaimsToBeEveryOtherIsItsOwn(t *testing.T) {
	t.Parallel()
	b := newBench()
	b.stub.Store = blind{b.mem}
	b.then = func(_ context.Context, run int) error {
		if run == 1 {
			return sloppy{}
		}
		return nil
	}
	send, v := charges[hurried](t, b), keyed(t, "key-00000001")
	if _, out, err := call(t.Context(), send, v, charge[hurried]{Cart: "a"}); err != (sloppy{}) || out.State != requestctx.StateFreed {
		t.Errorf("%+v, %v", out, err)
	}
	b.wantRecord(t, idempotency.Failed, 1)
	if _, _, err := call(t.Context(), send, v, charge[hurried]{Cart: "a"}); err != nil {
		t.Error(err)
	}
}

func (b blind) Lease(ctx context.Context, c idempotency.Claim) (idempotency.Lease, *idempotency.Record, error) {
	l, rec, err := b.Store.Lease(ctx, c)
	if l == nil {
		return nil, rec, err
	}
	return blindLease{l}, rec, err
}

type blindLease struct{ idempotency.Lease }

func (blindLease) Transient(error) bool { return false }

func TestR23_LeasedHandlerThatEndedItsTransactionIsAFaultWhateverItReturns(t *testing.T) {
	t.Parallel()
	for _, err := range []error{nil, errPaper, idempotency.Final(errPaper), idempotency.Unknown(errPaper), idempotency.ErrSerialization} {
		b := newBench()
		b.stub.leaseEnds = true
		b.then = func(context.Context, int) error { return err }
		b.stub.complete = func(context.Context, int, func() error) error {
			return fmt.Errorf("memory: %w", idempotency.ErrTransactionEnded)
		}
		_, out, got := call(t.Context(), charges[leased](t, b), keyed(t, "key-00000001"), charge[leased]{Cart: "a"})
		wantError[*idempotency.HandlerError](t, got, out, requestctx.StateUnknown)
		if err != nil && !errors.Is(got, err) {
			t.Errorf("%v: %v", err, got)
		}
		// What it committed itself may stand, so the key is not given away before its lease is over.
		b.wantRecord(t, idempotency.InProgress, 1)
		b.want(t, 1, 0, 1)
	}
}

func TestR23_PanicDoesNotHideThatTheHandlerEndedItsTransaction(t *testing.T) {
	t.Parallel()
	b := newBench()
	b.stub.leaseEnds = true
	b.then = func(context.Context, int) error { panic(errPaper) }
	ctx, req := requestctx.New(t.Context(), keyed(t, "key-00000001"))
	func() {
		defer func() { _ = recover() }()
		_, _ = charges[leased](t, b)(ctx, charge[leased]{Cart: "a"})
	}()
	wantState(t, req.Outcome(), requestctx.StateUnknown)
	b.wantRecord(t, idempotency.InProgress, 1)
}

func TestR23_ResultThatDoesNotEncodeDoesNotHideThatTheHandlerEndedItsTransaction(t *testing.T) {
	t.Parallel()
	b := newBench()
	b.stub.leaseEnds = true
	send := serveOn(t, newEngine(t, b), func(context.Context, figure[float64]) (float64, error) { return math.NaN(), nil })
	_, out, err := call(t.Context(), send, keyed(t, "key-00000001"), figure[float64]{})
	wantError[*idempotency.HandlerError](t, err, out, requestctx.StateUnknown)
	b.wantRecord(t, idempotency.InProgress, 1)
}

func TestR22_LeasedTransactionThatCannotBeCommittedIsAFaultAndFreesTheKey(t *testing.T) {
	t.Parallel()
	b := newBench()
	b.stub.complete = func(_ context.Context, n int, complete func() error) error {
		if n == 1 {
			return fmt.Errorf("memory: %w", idempotency.ErrTransactionAborted)
		}
		return complete()
	}
	send, v := charges[leased](t, b), keyed(t, "key-00000001")
	_, out, err := call(t.Context(), send, v, charge[leased]{Cart: "a"})
	wantError[*idempotency.HandlerError](t, err, out, requestctx.StateFreed)
	if !errors.Is(err, idempotency.ErrTransactionAborted) {
		t.Error(err)
	}
	b.wantCalls(t, "lease run complete release")
	b.want(t, 1, 0, 1)
	if _, _, err := call(t.Context(), send, v, charge[leased]{Cart: "a"}); err != nil {
		t.Error(err)
	}
	b.want(t, 2, 1, 1)
}

// The context of the handler.

func TestLeasedHandlerRunsOnAContextDetachedFromTheRequest_BR03_E50_L21(t *testing.T) {
	t.Parallel()
	type valueKey struct{}
	b := newBench()
	ctx, hangUp := context.WithCancel(context.WithValue(t.Context(), valueKey{}, "kept"))
	var kept context.Context
	b.first = func(ctx context.Context, _ int) error {
		hangUp()
		kept = ctx
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
	b.stub.complete = func(ctx context.Context, _ int, complete func() error) error {
		deadline, ok := ctx.Deadline()
		if left := time.Until(deadline); ctx.Err() != nil || !ok || left > idempotency.FinishTimeout || left < idempotency.FinishTimeout/2 { // X10
			t.Errorf("the completion's context: error %v, deadline in %v", ctx.Err(), left)
		}
		return complete()
	}
	send, v := charges[leased](t, b), keyed(t, "key-00000001")
	if _, out, err := call(ctx, send, v, charge[leased]{Cart: "a"}); err != nil || out.State != requestctx.StateExecuted {
		t.Error(out, err)
	}
	if kept.Err() == nil {
		t.Error("what the handler left behind is not told to stop")
	}
	if _, out, err := call(t.Context(), send, v, charge[leased]{Cart: "a"}); err != nil || !out.Replayed {
		t.Error(out, err)
	}
	b.want(t, 1, 1, 1)
}

func TestBR03_CallerWhoHasGoneBeforeTheClaimClaimsNothing(t *testing.T) {
	t.Parallel()
	b := newBench()
	ctx, hangUp := context.WithCancelCause(t.Context())
	hangUp(errPaper)
	if _, out, err := call(ctx, charges[leased](t, b), keyed(t, "key-00000001"), charge[leased]{Cart: "a"}); err != errPaper || out.State != requestctx.StateRefused {
		t.Errorf("%+v, %v", out, err)
	}
	b.wantCalls(t, "")
	b.want(t, 0, 0, 0)
}

func TestBR03_CallerWhoGoesDuringTheClaimDoesNotCutItOff(t *testing.T) {
	t.Parallel()
	b := newBench()
	ctx, hangUp := context.WithCancelCause(t.Context())
	b.stub.take = func(ctx context.Context, _ int, take taking) (idempotency.Lease, *idempotency.Record, error) {
		hangUp(errPaper)
		deadline, ok := ctx.Deadline()
		if left := time.Until(deadline); ctx.Err() != nil || !ok || left > idempotency.FinishTimeout || left < idempotency.FinishTimeout/2 {
			t.Errorf("the claim's context: error %v, deadline in %v", ctx.Err(), left)
		}
		return take()
	}
	if _, out, err := call(ctx, charges[leased](t, b), keyed(t, "key-00000001"), charge[leased]{Cart: "a"}); err != nil || out.State != requestctx.StateExecuted {
		t.Errorf("%+v, %v", out, err)
	}
	b.want(t, 1, 1, 1)
}

// The heartbeat.

func TestLeaseIsRenewedEachThirdOfItAndNotAfterTheHandlerHasReturned_T8(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		var beats []time.Duration
		start := time.Now()
		b.stub.renew = func(_ context.Context, _ int, renew func() error) error {
			beats = append(beats, time.Since(start))
			return renew()
		}
		send, v := charges[lasting](t, b), keyed(t, "key-00000001")
		b.alone = true
		b.first = func(context.Context, int) error {
			time.Sleep(2*idempotency.DefaultLease + time.Second)
			if left := b.only(t).LeaseLeft; left != idempotency.DefaultLease-time.Second {
				t.Errorf("%v of the lease are left", left)
			}
			return nil
		}
		if _, out, err := call(t.Context(), send, v, charge[lasting]{Cart: "a"}); err != nil || out.State != requestctx.StateExecuted {
			t.Fatal(out, err)
		}
		time.Sleep(2 * idempotency.DefaultLease)
		if len(beats) != 6 {
			t.Errorf("the lease was renewed after %v", beats)
		}
		for i, d := range beats {
			if d != time.Duration(i+1)*idempotency.DefaultLease/3 {
				t.Errorf("beat %d came after %v", i+1, d)
			}
		}
		b.wantCalls(t, "lease run renew renew renew renew renew renew complete")
	})
}

func TestL12_RenewalThatFailsDoesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		b.stub.renew = func(ctx context.Context, n int, renew func() error) error {
			switch n {
			case 1:
				return errors.New("connection refused")
			case 2: // the store is slow
				<-ctx.Done()
				return ctx.Err()
			case 3:
				return idempotency.ErrLost // no word about the lease
			}
			return renew()
		}
		send, v := charges[lasting](t, b), keyed(t, "key-00000001")
		b.first = func(ctx context.Context, _ int) error {
			time.Sleep(2 * idempotency.DefaultLease)
			if left := b.only(t).LeaseLeft; context.Cause(ctx) == idempotency.ErrLeaseLost || left == 0 {
				t.Errorf("the context ended with %v, and %v of the lease are left", context.Cause(ctx), left)
			}
			return nil
		}
		if _, out, err := call(t.Context(), send, v, charge[lasting]{Cart: "a"}); err != nil || out.State != requestctx.StateExecuted {
			t.Error(out, err)
		}
		if b.stub.renews < 5 {
			t.Errorf("%d renewals, so they ended with a failure", b.stub.renews)
		}
		b.want(t, 1, 1, 1)
	})
}

func TestRenewalThatHangsDoesNotHoldTheEndUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for name, end := range map[string]func(context.Context, int) error{
			"value": nil,
			"error": func(context.Context, int) error { return errPaper },
			"panic": func(context.Context, int) error { panic(errPaper) },
		} {
			b := newBench()
			ended := false
			b.stub.renew = func(ctx context.Context, _ int, _ func() error) error {
				<-ctx.Done()
				ended = true
				return ctx.Err()
			}
			b.first = func(context.Context, int) error {
				time.Sleep(idempotency.DefaultLease/3 + time.Second) // a second into the renewal
				return nil
			}
			b.then = end
			b.alone = true
			start := time.Now()
			func() {
				defer func() { _ = recover() }()
				_, _, _ = call(t.Context(), charges[lasting](t, b), keyed(t, "key-00000001"), charge[lasting]{Cart: "a"})
			}()
			if d := time.Since(start); d != idempotency.DefaultLease/3+time.Second || !ended || b.stub.renews != 1 {
				t.Errorf("%s: the end came after %v, the renewal ended: %v", name, d, ended)
			}
		}
	})
}

func TestL13_OwnerThatIsToldOfTheLossStopsAndItsCallerGetsTheRecordsWord_L09(t *testing.T) {
	t.Parallel()
	blocks := func(context.Context) error { return nil } // until busy is closed
	for name, tc := range map[string]struct {
		// give is what the handler returns when its context has ended.
		give func(ctx context.Context) error
		// second is what the second attempt does, and its caller gets.
		second func(ctx context.Context) error
		// what the first one's caller gets
		state requestctx.State
		err   error
	}{
		"it returns the context's error":          {func(ctx context.Context) error { return ctx.Err() }, nil, requestctx.StateReplayed, nil},
		"it returns the cause":                    {func(ctx context.Context) error { return context.Cause(ctx) }, nil, requestctx.StateReplayed, nil},
		"it returns an error of its own":          {func(context.Context) error { return errPaper }, nil, requestctx.StateReplayed, nil},
		"it says that it does not know":           {func(context.Context) error { return idempotency.Unknown(errPaper) }, nil, requestctx.StateReplayed, nil},
		"it refuses":                              {func(context.Context) error { return idempotency.Final(errPaper) }, nil, requestctx.StateReplayed, nil},
		"it goes on and succeeds":                 {func(context.Context) error { return nil }, nil, requestctx.StateReplayed, nil},
		"it returns, and the other is at work":    {func(ctx context.Context) error { return ctx.Err() }, blocks, requestctx.StateInProgress, &idempotency.InProgressError{}},
		"it succeeds, and the other is at work":   {func(context.Context) error { return nil }, blocks, requestctx.StateInProgress, &idempotency.InProgressError{}},
		"it returns, and the other has failed":    {func(ctx context.Context) error { return ctx.Err() }, func(context.Context) error { return errPaper }, requestctx.StateLost, &idempotency.LeaseLostError{}},
		"it succeeds, and the other has failed":   {func(context.Context) error { return nil }, func(context.Context) error { return errPaper }, requestctx.StateLost, &idempotency.LeaseLostError{}},
		"it does not know, and the other is gone": {func(context.Context) error { return idempotency.Unknown(errPaper) }, func(context.Context) error { return errPaper }, requestctx.StateLost, &idempotency.LeaseLostError{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBench()
				b.alone = true
				here, elsewhere := charges[lasting](t, b), charges[lasting](t, b)
				v := keyed(t, "key-00000001")
				busy := make(chan struct{})
				b.first = func(ctx context.Context, run int) error {
					if run == 1 {
						start := time.Now()
						<-ctx.Done()
						if context.Cause(ctx) != idempotency.ErrLeaseLost || ctx.Err() != context.Canceled || time.Since(start) > idempotency.DefaultLease/3 {
							t.Errorf("after %v: %v, %v", time.Since(start), ctx.Err(), context.Cause(ctx))
						}
						return tc.give(ctx)
					}
					if tc.second == nil {
						return nil
					}
					if tc.state == requestctx.StateInProgress {
						<-busy
						return nil
					}
					return tc.second(ctx)
				}
				first := background(t.Context(), here, v, charge[lasting]{Cart: "a"})
				synctest.Wait()
				b.mem.Age(idempotency.DefaultLease)
				second := background(t.Context(), elsewhere, v, charge[lasting]{Cart: "a"})
				synctest.Wait()
				a := <-first
				close(busy)
				o := <-second
				wantState(t, a.out, tc.state)
				if a.out.Attempt != 1 || a.out.TookOver || o.out.Attempt != 2 || !o.out.TookOver {
					t.Errorf("the first is %+v, the second %+v", a.out, o.out)
				}
				if tc.err == nil {
					if a.err != nil || a.res != (paid{"a", 2}) {
						t.Errorf("the first one's caller gets %v, %v", a.res, a.err)
					}
				} else if bus.CodeOf(a.err) != bus.CodeOf(tc.err) {
					t.Errorf("the first one's caller gets %v", a.err)
				}
				b.want(t, 2, 0, 1)
			})
		})
	}
}
