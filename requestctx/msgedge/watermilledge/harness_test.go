package watermilledge_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/memstore"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/registry"
	"github.com/tekil-go/tekil/requestctx/msgedge"
	"github.com/tekil-go/tekil/requestctx/msgedge/watermilledge"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 20 * time.Second // until something that must happen is taken for lost

// invoice is marked and does not wait for a duplicate of itself.
type invoice struct {
	Order string `json:"order" validate:"required"`
}

func (invoice) CommandName() bus.Name[bus.None] { return "billing.invoice" }
func (invoice) Idempotency() idempotency.Policy { return idempotency.Policy{Wait: -1} }

// note carries no mark.
type note struct {
	Order string `json:"order"`
}

func (note) CommandName() bus.Name[bus.None] { return "billing.note" }

// rig is a service that receives: a bus over a store, and a consumer before it.
type rig struct {
	t        testing.TB
	mem      *memstore.Store
	bus      *bus.Bus
	consumer *msgedge.Consumer
	dead     *box
	handled  atomic.Int64
	options  watermilledge.Options
}

// newRig makes a service whose handlers call then, with the number of the call, before they write their row.
func newRig(t testing.TB, cfg msgedge.Config, then func(ctx context.Context, call int64) error) *rig {
	t.Helper()
	g := &rig{t: t, mem: memstore.New(), dead: &box{arrived: make(chan *message.Message, 64)}}
	work := func(ctx context.Context, order string) error {
		if call := g.handled.Add(1); then != nil {
			if err := then(ctx, call); err != nil {
				return err
			}
		}
		return g.mem.Insert(ctx, order)
	}
	reg := registry.New(registry.Config{Logger: zap.NewNop(), Store: g.mem})
	registry.Handle(reg, func(ctx context.Context, c invoice) (bus.None, error) { return bus.None{}, work(ctx, c.Order) })
	registry.Handle(reg, func(ctx context.Context, c note) (bus.None, error) { return bus.None{}, work(ctx, c.Order) })
	var err error
	if g.bus, err = reg.Build(); err != nil {
		t.Fatal(err)
	}
	if cfg.Consumer == "" {
		cfg.Consumer = "billing"
	}
	g.consumer = g.another(cfg)
	g.options = watermilledge.Options{Topic: "orders", DeadLetters: g.dead, DeadLetterTopic: "orders.dead", MaxHold: time.Millisecond}
	return g
}

// another makes a consumer of the same service.
func (g *rig) another(cfg msgedge.Config) *msgedge.Consumer {
	g.t.Helper()
	cfg.Bus, cfg.Log = g.bus, slog.New(slog.NewTextHandler(io.Discard, nil))
	c, err := msgedge.New(cfg)
	if err := errors.Join(err, msgedge.Handle[invoice](c, "order.placed"), msgedge.Handle[note](c, "order.noted")); err != nil {
		g.t.Fatal(err)
	}
	return c
}

// handler makes a handler of the rig's consumer.
func (g *rig) handler() message.NoPublishHandlerFunc {
	g.t.Helper()
	return handlerOf(g.t, g.consumer, g.options)
}

func handlerOf(t testing.TB, c *msgedge.Consumer, o watermilledge.Options) message.NoPublishHandlerFunc {
	t.Helper()
	h, err := watermilledge.Handler(c, o)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// want fails the test unless handlers were entered and rows and records are there this often, and so many letters are dead.
func (g *rig) want(handled int64, rows, records, dead int) {
	g.t.Helper()
	h, s, k, d := g.handled.Load(), len(g.mem.Rows()), len(g.mem.Records()), len(g.dead.kept())
	if h != handled || s != rows || k != records || d != dead {
		g.t.Errorf("handlers ran %d times, %d rows, %d records, %d dead letters; want %d, %d, %d and %d", h, s, k, d, handled, rows, records, dead)
	}
}

// box is a publisher that keeps what it is given, after it has failed as often as it is told to.
type box struct {
	mu      sync.Mutex
	fail    int
	letters []letter
	arrived chan *message.Message
}

type letter struct {
	topic string
	m     *message.Message
}

var errAway = errors.New("the broker is away")

func (b *box) Publish(topic string, messages ...*message.Message) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fail > 0 {
		b.fail--
		return errAway
	}
	for _, m := range messages {
		b.letters = append(b.letters, letter{topic, m.Copy()})
		b.arrived <- m.Copy()
	}
	return nil
}

func (*box) Close() error { return nil }

func (b *box) kept() []letter {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]letter(nil), b.letters...)
}

// broker is Watermill's in-memory one, whose Publish returns when all subscribers have acknowledged.
func broker(t testing.TB, cfg gochannel.Config) *gochannel.GoChannel {
	t.Helper()
	cfg.BlockPublishUntilSubscriberAck = true
	g := gochannel.NewGoChannel(cfg, nil)
	t.Cleanup(func() { _ = g.Close() })
	return g
}

// run runs a router with these handlers, each subscribed to the topic "orders", until the test ends.
func run(t testing.TB, sub message.Subscriber, log watermill.LoggerAdapter, handlers ...message.NoPublishHandlerFunc) *message.Router {
	t.Helper()
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: patience}, log)
	if err != nil {
		t.Fatal(err)
	}
	for i, h := range handlers {
		router.AddConsumerHandler([]string{"billing", "shipping", "mailing"}[i], "orders", sub, h)
	}
	start(t, router)
	return router
}

// start runs a router until the test ends.
func start(t testing.TB, router *message.Router) {
	t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.WithoutCancel(t.Context())) }()
	select {
	case <-router.Running():
	case err := <-ended:
		t.Fatal("the router does not run: ", err)
	}
	t.Cleanup(func() {
		if err := errors.Join(router.Close(), <-ended); err != nil {
			t.Error("the router ended with ", err)
		}
	})
}

// placed is a message that asks for an invoice.
func placed(id, order string) *message.Message {
	m := message.NewMessage(id, message.Payload(`{"order":"`+order+`"}`))
	m.Metadata.Set("type", "order.placed")
	return m
}

// publish sends messages and fails the test if they are not acknowledged.
func publish(t testing.TB, pub message.Publisher, messages ...*message.Message) {
	t.Helper()
	select {
	case err := <-publishing(pub, messages...):
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(patience):
		t.Fatal("the messages have not been acknowledged")
	}
}

// publishing sends messages; what it gives receives when all have been acknowledged.
func publishing(pub message.Publisher, messages ...*message.Message) <-chan error {
	done := make(chan error, 1)
	go func() { done <- pub.Publish("orders", messages...) }()
	return done
}

// receive waits for something.
func receive[T any](t testing.TB, what string, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(patience):
		t.Fatal("this did not come: " + what)
	}
	panic("unreachable")
}

func equal[T any](t testing.TB, what string, got, want T) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s:\n got %v\nwant %v", what, got, want)
	}
}

// outcomes wraps a handler so that each of its answers can be seen.
func outcomes(h message.NoPublishHandlerFunc) (message.NoPublishHandlerFunc, <-chan error) {
	seen := make(chan error, 1024)
	return func(m *message.Message) error {
		err := h(m)
		select {
		case seen <- err:
		default:
		}
		return err
	}, seen
}
