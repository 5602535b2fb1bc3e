package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
)

// policies make one command type for each policy, because a command's policy belongs to its type.
type policies interface{ policy() idempotency.Policy }

type (
	defaults     struct{} // the zero policy
	patient      struct{} // waits as long as a command may
	impatient    struct{} // does not wait
	tombstone    struct{}
	strict       struct{}
	repeatable   struct{}
	serializable struct{}
)

func (defaults) policy() idempotency.Policy { return idempotency.Policy{} }
func (patient) policy() idempotency.Policy {
	return idempotency.Policy{Wait: idempotency.MaxWait}
}
func (impatient) policy() idempotency.Policy { return idempotency.Policy{Wait: -1} }
func (tombstone) policy() idempotency.Policy {
	return idempotency.Policy{AfterExpiry: idempotency.Tombstone}
}
func (strict) policy() idempotency.Policy { return idempotency.Policy{Strict: true} }
func (repeatable) policy() idempotency.Policy {
	return idempotency.Policy{Isolation: idempotency.RepeatableRead}
}
func (serializable) policy() idempotency.Policy {
	return idempotency.Policy{Isolation: idempotency.Serializable}
}

// order is the command of most cases: its handler writes one business row, whose note is Note.
type order[P policies] struct {
	Note   string `json:"note"`
	Amount int    `json:"amount"`
}

func (order[P]) CommandName() bus.Name[placed] { return "storetest.order" }
func (order[P]) Idempotency() idempotency.Policy {
	var p P
	return p.policy()
}

// placed is the result of an order. Run is the number of the handler's run that made it, so that two executions differ.
type placed struct {
	Note string `json:"note"`
	Run  int    `json:"run"`
}

// gift is another command with the fields of an order.
type gift struct {
	Note   string `json:"note"`
	Amount int    `json:"amount"`
}

func (gift) CommandName() bus.Name[placed] { return "storetest.gift" }
func (gift) Idempotent()                   {}

// give is a command whose result is an R.
type give[R any] struct {
	Case string `json:"case"`
}

func (give[R]) CommandName() bus.Name[R] { return "storetest.give" }
func (give[R]) Idempotent()              {}

// serve builds the way of one command over an engine of its own, as a process of its own would, and gives its entrance.
func serve[C bus.Command[R], R any](t testing.TB, store idempotency.Store, handle bus.Handler[C, R]) bus.Handler[C, R] {
	t.Helper()
	engine, err := idempotency.New(idempotency.Config{Store: store})
	if err != nil {
		t.Fatal(err)
	}
	return serveOn(t, engine, handle)
}

func serveOn[C bus.Command[R], R any](t testing.TB, engine *idempotency.Engine, handle bus.Handler[C, R]) bus.Handler[C, R] {
	t.Helper()
	claimed, plan, err := idempotency.Stage(engine, handle)
	if err != nil {
		t.Fatal(err)
	}
	if !plan.Marked {
		t.Fatal("the command is not marked")
	}
	return enter(t, claimed, true)
}

// enter gives the entrance to a bus of one command.
func enter[C bus.Command[R], R any](t testing.TB, claimed bus.Claimed[C, R], marked bool) bus.Handler[C, R] {
	t.Helper()
	var c C
	inv := bus.Invocation{Name: string(c.CommandName()), Idempotent: marked}
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

// shop is the handler of orders. It writes the business row and then does what the case asks for.
type shop struct {
	f    Fixture
	runs atomic.Int64
	// then is called after the row is written, with the number of the run; nil means success.
	then func(ctx context.Context, run int) error
}

func (s *shop) place(ctx context.Context, note string) (placed, error) {
	run := int(s.runs.Add(1))
	if err := s.f.Insert(ctx, note); err != nil {
		return placed{}, fmt.Errorf("insert a business row: %w", err)
	}
	if s.then != nil {
		if err := s.then(ctx, run); err != nil {
			return placed{Note: "a value beside an error", Run: -1}, err
		}
	}
	return placed{Note: note, Run: run}, nil
}

// open serves orders of a policy on a store, over an engine of its own.
func open[P policies](t testing.TB, store idempotency.Store, s *shop) bus.Handler[order[P], placed] {
	t.Helper()
	return serve(t, store, func(ctx context.Context, o order[P]) (placed, error) { return s.place(ctx, o.Note) })
}

// wantRuns compares how often the handler has run.
func (s *shop) wantRuns(t *testing.T, want int) {
	t.Helper()
	if got := int(s.runs.Load()); got != want {
		t.Errorf("the handler ran %d times, want %d", got, want)
	}
}

// reply is what a caller gets.
type reply[R any] struct {
	res R
	err error
	out requestctx.Outcome
	id  string
}

// request is what an edge knows.
func request(t testing.TB, key string) requestctx.Values {
	t.Helper()
	k, err := requestctx.ParseKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return requestctx.Values{Key: k, Scope: requestctx.Scope{Tenant: "tenant-1", Client: "client-1"}, Source: "POST /v1/orders"}
}

// call sends a command as a request of its own.
func call[C, R any](ctx context.Context, send bus.Handler[C, R], v requestctx.Values, cmd C) reply[R] {
	ctx, req := requestctx.New(ctx, v)
	res, err := send(ctx, cmd)
	return reply[R]{res: res, err: err, out: req.Outcome(), id: req.ID()}
}

// executed demands that the caller's own attempt did the work.
func executed[R any](t *testing.T, r reply[R]) R {
	t.Helper()
	if r.err != nil {
		t.Fatalf("the command failed: %v", r.err)
	}
	if r.out.State != requestctx.StateExecuted || r.out.Replayed || r.out.OriginalRequestID != r.id {
		t.Fatalf("the outcome is %+v, want executed by this attempt, %s", r.out, r.id)
	}
	return r.res
}

// replayed demands that the caller got the outcome of the attempt first.
func replayed[R any](t *testing.T, r, first reply[R]) R {
	t.Helper()
	if (r.err == nil) != (first.err == nil) {
		t.Fatalf("the replay's error is %v and the first attempt's %v", r.err, first.err)
	}
	if r.out.State != requestctx.StateReplayed || !r.out.Replayed || r.out.OriginalRequestID != first.id || r.id == first.id {
		t.Fatalf("the outcome is %+v, want a replay of attempt %s", r.out, first.id)
	}
	return r.res
}

// failed demands an error of the type E.
func failed[E error, R any](t *testing.T, r reply[R], state requestctx.State) E {
	t.Helper()
	var want E
	if !errors.As(r.err, &want) {
		t.Fatalf("the answer is (%+v, %v), want a %T", r.res, r.err, want)
	}
	if r.out.State != state || r.out.Replayed {
		t.Fatalf("the outcome is %+v, want %s", r.out, state)
	}
	return want
}

// together makes n calls at once and gives their replies.
func together[R any](n int, call func(i int) reply[R]) []reply[R] {
	replies := make([]reply[R], n)
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			<-start
			replies[i] = call(i)
		})
	}
	close(start)
	wg.Wait()
	return replies
}

// census counts replies by what became of them, and demands that all successes are one and the same outcome.
type census struct{ executed, replayed, inProgress, other int }

func count(t *testing.T, replies []reply[placed]) (c census) {
	t.Helper()
	var owner string
	for _, r := range replies {
		if r.out.State == requestctx.StateExecuted {
			owner = r.id
		}
	}
	var result *placed
	for _, r := range replies {
		var busy *idempotency.InProgressError
		switch {
		case r.err == nil && r.out.State == requestctx.StateExecuted:
			c.executed++
		case r.err == nil && r.out.State == requestctx.StateReplayed:
			c.replayed++
			if owner != "" && r.out.OriginalRequestID != owner {
				t.Errorf("a replay names the attempt %s and the owner is %s", r.out.OriginalRequestID, owner)
			}
		case errors.As(r.err, &busy):
			c.inProgress++
			continue
		default:
			c.other++
			t.Logf("a caller got (%+v, %v)", r.out, r.err)
			continue
		}
		if result == nil {
			result = &r.res
		}
		if r.res != *result {
			t.Errorf("two callers of one key got %+v and %+v", r.res, *result)
		}
	}
	return c
}

// spy is a store that remembers the last claim, by which a case finds the record of a command.
type spy struct {
	idempotency.Store
	mu   sync.Mutex
	last idempotency.Claim
}

func (s *spy) Begin(ctx context.Context, c idempotency.Claim) (idempotency.Transaction, error) {
	s.mu.Lock()
	s.last = c
	s.mu.Unlock()
	return s.Store.Begin(ctx, c)
}

func (s *spy) claim() idempotency.Claim {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

// errPaper is a handler's own error, of no class.
var errPaper = errors.New("the printer is out of paper")

// declined is a business refusal with a code of its own.
type declined struct{ reason string }

func (d declined) Error() string    { return "declined: " + d.reason }
func (declined) Code() string       { return "PAYMENT_DECLINED" }
func (d declined) RefusalData() any { return map[string]string{"reason": d.reason} }

// older is longer than the default retention and the grace of any clock.
const older = idempotency.DefaultRetention + time.Hour
