package registry_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-playground/validator/v10"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/memstore"
	"github.com/tekil-go/tekil/behaviors/validation"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/registry"
	"github.com/tekil-go/tekil/requestctx"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// failer is what of testing.TB the helpers need; rapid's T has it as well.
type failer interface {
	Helper()
	Errorf(format string, args ...any)
	Fatal(args ...any)
}

// trace notes the steps of dispatches in the order in which they happen. A nil trace notes nothing.
type trace struct {
	mu    sync.Mutex
	steps []string
	open  bool // a dispatch has begun and its line is not written
}

func (tr *trace) add(step string) {
	if tr == nil {
		return
	}
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.steps = append(tr.steps, step)
}

// take gives the steps and forgets them.
func (tr *trace) take() []string {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	steps := tr.steps
	tr.steps = nil
	return steps
}

// spyCore puts the logger's part into the trace: it is asked for its level when a dispatch begins, and written to at the end.
type spyCore struct {
	zapcore.Core
	tr *trace
}

func (c spyCore) Enabled(l zapcore.Level) bool {
	c.tr.mu.Lock()
	if !c.tr.open {
		c.tr.open = true
		c.tr.steps = append(c.tr.steps, "logging")
	}
	c.tr.mu.Unlock()
	return c.Core.Enabled(l)
}

func (c spyCore) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	return ce.AddCore(e, c)
}

func (c spyCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	c.tr.mu.Lock()
	c.tr.open = false
	c.tr.steps = append(c.tr.steps, "log: "+e.Message)
	c.tr.mu.Unlock()
	return c.Core.Write(e, fields)
}

// spyStore puts every call of a store and of its attempts into the trace.
type spyStore struct {
	idempotency.Store
	tr *trace
}

func (s spyStore) Check(ctx context.Context) ([]string, error) {
	s.tr.add("store: check")
	return s.Store.Check(ctx)
}

func (s spyStore) Look(ctx context.Context, c idempotency.Claim) (*idempotency.Record, error) {
	s.tr.add("store: look")
	return s.Store.Look(ctx, c)
}

func (s spyStore) Begin(ctx context.Context, c idempotency.Claim) (idempotency.Transaction, error) {
	s.tr.add("store: begin")
	a, err := s.Store.Begin(ctx, c)
	if err != nil {
		return nil, err
	}
	return spyAttempt{a, s.tr}, nil
}

type spyAttempt struct {
	idempotency.Transaction
	tr *trace
}

func (a spyAttempt) Complete(ctx context.Context, done idempotency.Completion) error {
	a.tr.add("store: complete")
	return a.Transaction.Complete(ctx, done)
}

func (a spyAttempt) Refuse(ctx context.Context, done idempotency.Completion) error {
	a.tr.add("store: refuse")
	return a.Transaction.Refuse(ctx, done)
}

func (a spyAttempt) Rollback(ctx context.Context) {
	a.tr.add("store: rollback")
	a.Transaction.Rollback(ctx)
}

// place is the marked command of most tests. Its own methods are in the trace, where it carries one.
type place struct {
	Cart   string `json:"cart"   validate:"required"`
	Amount int64  `json:"amount" validate:"spied,gt=0"`
	Trace  *trace `json:"-"      validate:"-"          idempotency:"-"`
}

func (place) CommandName() bus.Name[placed] { return "shop.place" }
func (place) Idempotent()                   {}

var _ idempotency.Marker = place{}

func (p place) Normalize() place {
	p.Trace.add("normalize")
	p.Cart = strings.TrimSpace(p.Cart)
	return p
}

func (p place) Validate() error {
	p.Trace.add("validate")
	switch p.Cart {
	case "closed":
		return validation.Field("cart", "open", "must be open")
	case "broken":
		panic("the validator panics")
	}
	return nil
}

type placed struct {
	Order  string `json:"order"`
	Cart   string `json:"cart"`
	Amount int64  `json:"amount"`
}

// note is the command without the mark.
type note struct {
	Text  string `json:"text" validate:"spied,required"`
	Trace *trace `json:"-"    validate:"-"`
}

func (note) CommandName() bus.Name[bus.None] { return "shop.note" }

func (n note) Validate() error {
	n.Trace.add("validate")
	return nil
}

// find is the query.
type find struct {
	Order string `json:"order" validate:"spied,required"`
	Trace *trace `json:"-"     validate:"-"`
}

func (find) QueryName() bus.Name[placed] { return "shop.find" }

func (f find) Validate() error {
	f.Trace.add("validate")
	return nil
}

// The errors of guards and handlers in these tests.
var (
	errStranger  = &codedError{"UNAUTHENTICATED", "who are you?"}
	errForbidden = &codedError{"FORBIDDEN", "you may not"}
	errDeclined  = &codedError{"PAYMENT_DECLINED", "the payment was declined"}
	errBoom      = errors.New("boom")
)

type codedError struct{ code, text string }

func (e *codedError) Error() string { return e.text }
func (e *codedError) Code() string  { return e.code }

// shop is one process: a bus with spies in every position, over a store that other processes may share. Its func fields are
// set before the bus is used.
type shop struct {
	*bus.Bus
	reg    *registry.Registry
	tr     *trace
	store  *memstore.Store
	logs   *observer.ObservedLogs
	orders atomic.Int64 // times the handler of place was entered

	admit, permit func(context.Context, bus.Invocation) error
	around        registry.Around
	handle        func(context.Context, place) error
}

// open makes a shop. Changes of its configuration are made before Build.
func open(t *testing.T, store *memstore.Store, change ...func(*registry.Config)) *shop {
	t.Helper()
	s := &shop{tr: new(trace), store: store}
	core, logs := observer.New(zapcore.DebugLevel)
	s.logs = logs
	cfg := registry.Config{
		Logger:   zap.New(spyCore{core, s.tr}),
		Validate: rules(t, s.tr),
		Store:    spyStore{store, s.tr},
		Admit:    []bus.Guard{s.guard("admit", &s.admit)},
		Permit:   []bus.Guard{s.guard("permit", &s.permit)},
		Around: []registry.Around{func(ctx context.Context, inv bus.Invocation, next func(context.Context) error) error {
			s.tr.add("around")
			defer s.tr.add("around ends")
			if s.around != nil {
				return s.around(ctx, inv, next)
			}
			return next(ctx)
		}},
	}
	for _, c := range change {
		c(&cfg)
	}
	s.reg = registry.New(cfg)
	registry.Handle(s.reg, s.place)
	registry.Handle(s.reg, func(ctx context.Context, _ note) (bus.None, error) {
		s.tr.add("handler")
		return bus.None{}, s.store.Insert(ctx, "note")
	})
	registry.Handle(s.reg, func(ctx context.Context, _ unkeyed) (placed, error) {
		if err := s.store.Insert(ctx, "unkeyed"); err != nil || s.handle == nil {
			return placed{}, err
		}
		return placed{}, s.handle(ctx, place{})
	})
	registry.HandleQuery(s.reg, func(context.Context, find) (placed, error) {
		s.tr.add("handler")
		return placed{Order: "order-1"}, nil
	})
	s.Bus = build(t, s.reg)
	s.tr.take()
	s.tr.open = false
	return s
}

// place writes one row and gives the order a number of its own.
func (s *shop) place(ctx context.Context, cmd place) (placed, error) {
	s.tr.add("handler")
	n := s.orders.Add(1)
	if err := s.store.Insert(ctx, fmt.Sprintf("%s %d", cmd.Cart, cmd.Amount)); err != nil {
		return placed{}, err
	}
	if s.handle != nil {
		if err := s.handle(ctx, cmd); err != nil {
			return placed{}, err
		}
	}
	return placed{Order: fmt.Sprintf("order-%d", n), Cart: cmd.Cart, Amount: cmd.Amount}, nil
}

func (s *shop) guard(name string, decide *func(context.Context, bus.Invocation) error) bus.Guard {
	return func(ctx context.Context, inv bus.Invocation) error {
		s.tr.add(name)
		if *decide != nil {
			return (*decide)(ctx, inv)
		}
		return nil
	}
}

// rules is a validator with the rule "spied", which is in the trace and lets everything pass.
func rules(t failer, tr *trace) *validator.Validate {
	t.Helper()
	v := validator.New(validator.WithRequiredStructEnabled())
	if err := v.RegisterValidation("spied", func(validator.FieldLevel) bool {
		tr.add("tags")
		return true
	}, true); err != nil {
		t.Fatal(err)
	}
	return v
}

func build(t failer, reg *registry.Registry) *bus.Bus {
	t.Helper()
	b, err := reg.Build()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// pay is a valid payment.
func (s *shop) pay() place { return place{Cart: "cart-1", Amount: 4990, Trace: s.tr} }

// request is one attempt of the client, under a key where it is not "".
func request(ctx context.Context, t failer, id, key string) (context.Context, *requestctx.Request) {
	t.Helper()
	v := requestctx.Values{ID: id, Scope: requestctx.Scope{Client: "acme-erp", Tenant: "acme"}, Source: "POST /v1/orders"}
	if key != "" {
		k, err := requestctx.ParseKey(key)
		if err != nil {
			t.Fatal(err)
		}
		v.Key = k
	}
	return requestctx.New(ctx, v)
}

const theKey = "intent-0001"

// send sends under the key, or without one where it is "".
func (s *shop) send(t testing.TB, id, key string, cmd place) (placed, requestctx.Outcome, error) {
	t.Helper()
	ctx, req := request(t.Context(), t, id, key)
	res, err := bus.Send(ctx, s.Bus, cmd)
	return res, req.Outcome(), err
}

// must sends and expects a success.
func (s *shop) must(t testing.TB, id, key string, cmd place) (placed, requestctx.Outcome) {
	t.Helper()
	res, out, err := s.send(t, id, key, cmd)
	if err != nil {
		t.Fatalf("%s under %q: %v", id, key, err)
	}
	return res, out
}

// touched are the calls of the store in a trace.
func touched(steps []string) []string {
	return slices.DeleteFunc(slices.Clone(steps), func(s string) bool { return !strings.HasPrefix(s, "store: ") })
}

func equal(t failer, what string, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s:\n got %q\nwant %q", what, got, want)
	}
}

// wantCode checks an error by its outcome code; "" is for no error.
func wantCode(t failer, err error, code string) {
	t.Helper()
	if got := bus.CodeOf(err); got != code {
		t.Errorf("the error is %v with the code %q, want the code %q", err, got, code)
	}
}

// holds checks what is committed.
func holds(t failer, store *memstore.Store, records int, rows ...string) {
	t.Helper()
	if n := len(store.Records()); n != records {
		t.Errorf("%d records, want %d", n, records)
	}
	equal(t, "rows", store.Rows(), rows)
}

// above is the place n lines above the line that calls it, as Build writes places.
func above(n int) string {
	_, _, line, _ := runtime.Caller(1)
	return fmt.Sprintf("registry/build_test.go:%d", line-n)
}
