package msgedge_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/memstore"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/registry"
	"github.com/tekil-go/tekil/requestctx"
	"github.com/tekil-go/tekil/requestctx/msgedge"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The commands of these tests.

type invoiced struct {
	Number string `json:"number"`
}

// invoice is marked and Atomic.
type invoice struct {
	OrderID string `json:"order_id" validate:"required"`
	Amount  int64  `json:"amount"   validate:"gt=0"`
}

func (invoice) CommandName() bus.Name[invoiced] { return "billing.invoice" }
func (invoice) Idempotent()                     {}

// charge is Leased and tried seven times.
type charge struct {
	OrderID string `json:"order_id" validate:"required"`
	Amount  int64  `json:"amount"   validate:"gt=0"`
}

func (charge) CommandName() bus.Name[invoiced] { return "billing.charge" }
func (charge) Idempotency() idempotency.Policy {
	return idempotency.Policy{Mode: idempotency.Leased, MaxAttempts: 7}
}

// closing is never to be done a second time, however late.
type closing struct {
	OrderID string `json:"order_id"`
}

func (closing) CommandName() bus.Name[bus.None] { return "billing.close" }
func (closing) Idempotency() idempotency.Policy {
	return idempotency.Policy{AfterExpiry: idempotency.Tombstone}
}

// ticket has a result that is given once.
type ticket struct {
	OrderID string `json:"order_id"`
}

func (ticket) CommandName() bus.Name[invoiced] { return "billing.ticket" }
func (ticket) Idempotency() idempotency.Policy {
	return idempotency.Policy{Results: idempotency.OmitResult}
}

// relay is Leased, and sends a ticket and then fails.
type relay struct {
	OrderID string `json:"order_id"`
}

func (relay) CommandName() bus.Name[bus.None] { return "billing.relay" }
func (relay) Idempotency() idempotency.Policy {
	return idempotency.Policy{Mode: idempotency.Leased}
}

// stock is not marked. Its data has an identity of its own.
type stock struct {
	Item    string `json:"item"    validate:"required"`
	Level   int    `json:"level"`
	Version int    `json:"version"`
}

func (stock) CommandName() bus.Name[bus.None] { return "warehouse.stock" }

// wrap is not marked, and sends an invoice that is.
type wrap struct {
	OrderID string `json:"order_id"`
}

func (wrap) CommandName() bus.Name[bus.None] { return "billing.wrap" }

// submit is what a request asks for: it only writes the message into the outbox, under the request's own key.
type submit struct {
	OrderID string `json:"order_id"`
}

func (submit) CommandName() bus.Name[bus.None] { return "orders.submit" }
func (submit) Idempotent()                     {}

// coded is an application's error.
type coded struct{ code, text string }

func (e coded) Error() string { return e.text }
func (e coded) Code() string  { return e.code }

var errAway = errors.New("the tax office is away")

// spy is a store that can be made to be away, and counts who asks it.
type spy struct {
	idempotency.Store
	away  atomic.Bool
	asked atomic.Int64
}

func (s *spy) Look(ctx context.Context, c idempotency.Claim) (*idempotency.Record, error) {
	s.asked.Add(1)
	if s.away.Load() {
		return nil, errAway
	}
	return s.Store.Look(ctx, c)
}

func (s *spy) Begin(ctx context.Context, c idempotency.Claim) (idempotency.Transaction, error) {
	s.asked.Add(1)
	if s.away.Load() {
		return nil, errAway
	}
	return s.Store.Begin(ctx, c)
}

func (s *spy) Lease(ctx context.Context, c idempotency.Claim) (idempotency.Lease, *idempotency.Record, error) {
	s.asked.Add(1)
	if s.away.Load() {
		return nil, nil, errAway
	}
	return s.Store.Lease(ctx, c)
}

// setup says how a rig differs from the usual one.
type setup struct {
	config msgedge.Config
	mem    *memstore.Store // nil means a new one
	// work is what an invoice, a charge or a stock does after its row; n counts the runs from 1.
	work func(ctx context.Context, n int64, order string) error
	// take is the handler of stock.
	take func(stock)
}

// rig is a worker without any HTTP part: a registry's bus over a store, and a consumer before it.
type rig struct {
	*msgedge.Consumer
	t       testing.TB
	mem     *memstore.Store
	store   *spy
	reg     *registry.Registry
	bus     *bus.Bus
	handled atomic.Int64           // times that a handler was entered
	log     *lines                 // what the consumer logs
	lines   *observer.ObservedLogs // what the pipeline logs
}

func newRig(t testing.TB, s setup) *rig {
	t.Helper()
	if s.mem == nil {
		s.mem = memstore.New()
	}
	core, logged := observer.New(zapcore.DebugLevel)
	g := &rig{t: t, mem: s.mem, store: &spy{Store: s.mem}, log: &lines{}, lines: logged}
	g.reg = registry.New(registry.Config{Logger: zap.New(core), Store: g.store})
	do := func(ctx context.Context, order string) error {
		n := g.handled.Add(1)
		if err := g.mem.Insert(ctx, order); err != nil || s.work == nil {
			return err
		}
		return s.work(ctx, n, order)
	}
	registry.Handle(g.reg, func(ctx context.Context, c invoice) (invoiced, error) {
		return invoiced{"i-" + c.OrderID}, do(ctx, c.OrderID)
	})
	registry.Handle(g.reg, func(ctx context.Context, c charge) (invoiced, error) {
		return invoiced{"c-" + c.OrderID}, g.mem.InTx(ctx, func(ctx context.Context) error { return do(ctx, c.OrderID) })
	})
	registry.Handle(g.reg, func(ctx context.Context, c closing) (bus.None, error) { return bus.None{}, do(ctx, c.OrderID) })
	registry.Handle(g.reg, func(ctx context.Context, c ticket) (invoiced, error) { return invoiced{"secret"}, do(ctx, c.OrderID) })
	registry.Handle(g.reg, func(ctx context.Context, c relay) (bus.None, error) {
		if _, err := bus.Send(ctx, g.bus, ticket(c)); err != nil {
			return bus.None{}, fmt.Errorf("no ticket: %w", err)
		}
		return bus.None{}, errAway
	})
	registry.Handle(g.reg, func(ctx context.Context, c stock) (bus.None, error) {
		n := g.handled.Add(1)
		if s.take != nil {
			s.take(c)
		}
		if s.work != nil {
			return bus.None{}, s.work(ctx, n, c.Item)
		}
		return bus.None{}, nil
	})
	registry.Handle(g.reg, func(ctx context.Context, c wrap) (bus.None, error) {
		_, err := bus.Send(ctx, g.bus, closing(c))
		return bus.None{}, err
	})
	registry.Handle(g.reg, func(ctx context.Context, c submit) (bus.None, error) {
		return bus.None{}, g.mem.Insert(ctx, "outbox "+requestctx.From(ctx).Key().String())
	})
	var err error
	if g.bus, err = g.reg.Build(); err != nil {
		t.Fatal(err)
	}
	g.Consumer = g.consumer(s.config)
	return g
}

// consumer makes another consumer in the same program.
func (g *rig) consumer(cfg msgedge.Config) *msgedge.Consumer {
	g.t.Helper()
	cfg.Bus = g.bus
	if cfg.Consumer == "" {
		cfg.Consumer = "billing"
	}
	if cfg.Source == "" {
		cfg.Source = "orders"
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.NewJSONHandler(g.log, nil))
	}
	c, err := msgedge.New(cfg)
	if err != nil {
		g.t.Fatal(err)
	}
	for _, err := range []error{
		msgedge.Handle[invoice](c, "order.placed"), msgedge.Handle[charge](c, "order.charge"), msgedge.Handle[closing](c, "order.closed"),
		msgedge.Handle[ticket](c, "order.ticket"), msgedge.Handle[relay](c, "order.relay"), msgedge.Handle[stock](c, "stock.moved"),
		msgedge.Handle[wrap](c, "order.wrap"),
	} {
		if err != nil {
			g.t.Fatal(err)
		}
	}
	return c
}

const (
	id      = "m-0000001"
	payload = `{"order_id":"o-1","amount":4990}`
)

// placed is the usual message.
func placed(change ...func(*msgedge.Message)) msgedge.Message {
	m := msgedge.Message{ID: id, Type: "order.placed", Payload: []byte(payload), Deliveries: 1}
	for _, c := range change {
		c(&m)
	}
	return m
}

func withID(id string) func(*msgedge.Message)    { return func(m *msgedge.Message) { m.ID = id } }
func withType(typ string) func(*msgedge.Message) { return func(m *msgedge.Message) { m.Type = typ } }
func withBody(body string) func(*msgedge.Message) {
	return func(m *msgedge.Message) { m.Payload = []byte(body) }
}
func delivered(n int) func(*msgedge.Message) { return func(m *msgedge.Message) { m.Deliveries = n } }
func from(source string) func(*msgedge.Message) {
	return func(m *msgedge.Message) { m.Source = source }
}
func sentAt(at time.Time) func(*msgedge.Message) { return func(m *msgedge.Message) { m.SentAt = at } }
func keyed(name, key string) func(*msgedge.Message) {
	return func(m *msgedge.Message) {
		h := map[string]string{name: key}
		for n, v := range m.Headers {
			h[n] = v
		}
		m.Headers = h
	}
}

// is fails the test unless the verdict is this one.
func (g *rig) is(v msgedge.Verdict, action msgedge.Action, reason string) {
	g.t.Helper()
	if v.Action != action || v.Reason != reason {
		g.t.Fatalf("%v, %s (%v): want %v, %s", v.Action, v.Reason, v.Err, action, reason)
	}
	if v.Action != msgedge.Retry && v.Delay != 0 {
		g.t.Errorf("%v after %v: only what is put back has a delay", v.Action, v.Delay)
	}
	if (v.Err == nil) != (v.Reason == "OK" || v.Reason == "REPLAYED") {
		g.t.Errorf("%s with the error %v", v.Reason, v.Err)
	}
}

// receives delivers a message and fails the test unless the verdict is this one.
func (g *rig) receives(m msgedge.Message, action msgedge.Action, reason string) msgedge.Verdict {
	g.t.Helper()
	v := g.Receive(g.t.Context(), m)
	g.is(v, action, reason)
	return v
}

// want fails the test unless handlers were entered, rows written and records kept this often.
func (g *rig) want(handled int64, rows, records int) {
	g.t.Helper()
	if h, s, k := g.handled.Load(), len(g.mem.Rows()), len(g.mem.Records()); h != handled || s != rows || k != records {
		g.t.Errorf("H=%d S=%d K=%d, want H=%d S=%d K=%d", h, s, k, handled, rows, records)
	}
}

// purge is the job that cleans up.
func (g *rig) purge() {
	g.t.Helper()
	if _, err := g.mem.Purge(g.t.Context(), idempotency.PurgeBatch{Limit: 100, Remember: 1000 * time.Hour}); err != nil {
		g.t.Fatal(err)
	}
}

// lines collects what is logged.
type lines struct {
	mu  sync.Mutex
	buf strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// last is the last line.
func (l *lines) last() string {
	all := strings.Split(strings.TrimSpace(l.String()), "\n")
	return all[len(all)-1]
}

func contains(t testing.TB, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%q is not in: %s", part, text)
		}
	}
}

func same[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}
