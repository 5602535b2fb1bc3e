package watermilledge_test

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/memstore"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/registry"
	"github.com/tekil-go/tekil/requestctx"
	"github.com/tekil-go/tekil/requestctx/msgedge"
	"github.com/tekil-go/tekil/requestctx/msgedge/watermilledge"
)

// The commands of the service that sends. One is Atomic, one is Leased, and one carries no mark.
type (
	place struct {
		Order string `json:"order"`
	}
	authorize struct {
		Order string `json:"order"`
	}
	draft struct {
		Order string `json:"order"`
	}
)

func (place) CommandName() bus.Name[bus.None]     { return "orders.place" }
func (place) Idempotent()                         {}
func (authorize) CommandName() bus.Name[bus.None] { return "orders.authorize" }
func (authorize) Idempotency() idempotency.Policy {
	return idempotency.Policy{Mode: idempotency.Leased}
}
func (draft) CommandName() bus.Name[bus.None] { return "orders.draft" }

// sender is the service that sends: it calls a function in whichever handler.
type sender struct {
	t   testing.TB
	mem *memstore.Store
	bus *bus.Bus
}

func newSender(t testing.TB, mem *memstore.Store, handle func(ctx context.Context, order string) error) *sender {
	t.Helper()
	reg := registry.New(registry.Config{Logger: zap.NewNop(), Store: mem})
	registry.Handle(reg, func(ctx context.Context, c place) (bus.None, error) { return bus.None{}, handle(ctx, c.Order) })
	registry.Handle(reg, func(ctx context.Context, c authorize) (bus.None, error) { return bus.None{}, handle(ctx, c.Order) })
	registry.Handle(reg, func(ctx context.Context, c draft) (bus.None, error) { return bus.None{}, handle(ctx, c.Order) })
	b, err := reg.Build()
	if err != nil {
		t.Fatal(err)
	}
	return &sender{t, mem, b}
}

// request is the context of a request under a key, "" for none.
func request(t testing.TB, key string) context.Context {
	t.Helper()
	v := requestctx.Values{Scope: requestctx.Scope{Client: "acme"}, Source: "POST /v1/orders"}
	if key != "" {
		var err error
		if v.Key, err = requestctx.ParseKey(key); err != nil {
			t.Fatal(err)
		}
	}
	ctx, _ := requestctx.New(t.Context(), v)
	return ctx
}

func publisher(t testing.TB, pub message.Publisher) *watermilledge.Publisher {
	t.Helper()
	p, err := watermilledge.NewPublisher(pub, watermilledge.PublisherOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func newBox() *box { return &box{arrived: make(chan *message.Message, 64)} }

// ids are those of the messages in a box.
func (b *box) ids() (ids []string) {
	for _, l := range b.kept() {
		ids = append(ids, l.m.UUID)
	}
	return ids
}

// An attempt sends a command to another service and fails. The next attempt sends it again: the same message, which is done once.
func TestACommandThatIsSentOnKeepsTheIntentThroughARetry_W02_rec11(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		send func(ctx context.Context, b *bus.Bus) error
	}{
		{"Atomic", func(ctx context.Context, b *bus.Bus) error {
			_, err := bus.Send(ctx, b, place{"o-1"})
			return err
		}},
		{"Leased", func(ctx context.Context, b *bus.Bus) error {
			_, err := bus.Send(ctx, b, authorize{"o-1"})
			return err
		}},
		{"without the mark", func(ctx context.Context, b *bus.Bus) error {
			_, err := bus.Send(ctx, b, draft{"o-1"})
			return err
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			g := newRig(t, msgedge.Config{}, nil)
			wire := broker(t, gochannel.Config{})
			run(t, wire, nil, g.handler())
			seen := newBox()
			p, attempts := publisher(t, both{seen, wire}), 0
			s := newSender(t, memstore.New(), func(ctx context.Context, order string) error {
				if attempts++; attempts > 3 {
					return nil
				}
				if err := p.Send(ctx, "orders", watermilledge.Out{Type: "order.placed", Body: invoice{order}}); err != nil {
					return err
				}
				if attempts < 3 {
					return errDown
				}
				return nil
			})
			for try := range 3 {
				if err := c.send(request(t, "order-12345"), s.bus); (err == nil) != (try == 2) {
					t.Errorf("try %d: %v", try+1, err)
				}
			}
			ids := seen.ids()
			if len(ids) != 3 || len(slices.Compact(ids)) != 1 || len(ids[0]) != 43 || strings.Contains(ids[0], "order-12345") {
				t.Errorf("the messages have the ids %v, want three times the same", seen.ids())
			}
			g.want(1, 1, 1, 0)
		})
	}
}

// both publishes to two publishers.
type both [2]message.Publisher

func (b both) Publish(topic string, messages ...*message.Message) error {
	return errors.Join(b[0].Publish(topic, messages...), b[1].Publish(topic, messages...))
}

func (both) Close() error { return nil }

// The forwarder's row is written in the handler's transaction and brought to the broker twice.
func TestN15_W13_EventsExistWithTheOutcomeAndARelayThatSendsTwiceIsNoHarm(t *testing.T) {
	t.Parallel()
	mem := memstore.New()
	outbox, err := watermilledge.NewOutbox(func(ctx context.Context, topic string, m *message.Message) error {
		return forwarder.NewPublisher(rows{ctx, mem}, forwarder.PublisherConfig{}).Publish(topic, m)
	}, watermilledge.PublisherOptions{})
	if err != nil {
		t.Fatal(err)
	}
	attempts := 0
	s := newSender(t, mem, func(ctx context.Context, order string) error {
		attempts++
		for _, label := range []string{order, order, order + "-b"} {
			if err := outbox.Send(ctx, "orders", watermilledge.Out{Type: "order.placed", Body: invoice{label}}); err != nil {
				return err
			}
		}
		if attempts == 1 {
			return errDown
		}
		return nil
	})
	ctx := request(t, "order-12345")
	if _, err := bus.Send(ctx, s.bus, place{"o-1"}); !errors.Is(err, errDown) {
		t.Error(err)
	}
	equal(t, "rows of an attempt that failed", len(mem.Rows()), 0)
	for range 2 { // the second is a replay
		if _, err := bus.Send(ctx, s.bus, place{"o-1"}); err != nil {
			t.Error(err)
		}
	}
	equal(t, "rows of the outbox", len(mem.Rows()), 3)
	equal(t, "attempts", attempts, 2)

	g := newRig(t, msgedge.Config{}, nil)
	in, out := broker(t, gochannel.Config{}), broker(t, gochannel.Config{})
	run(t, out, nil, g.handler())
	relay, err := message.NewRouter(message.RouterConfig{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := forwarder.NewForwarder(in, out, nil, forwarder.Config{Router: relay}); err != nil {
		t.Fatal(err)
	}
	start(t, relay)
	for _, row := range mem.Rows() {
		for range 2 {
			if err := in.Publish("forwarder_topic", message.NewMessage(uuid.NewString(), message.Payload(row))); err != nil {
				t.Error(err)
			}
		}
	}
	equal(t, "what the other service did", g.mem.Rows(), []string{"o-1", "o-1", "o-1-b"})
	g.want(3, 3, 3, 0)
}

// rows is an outbox: a table to which a transaction is written.
type rows struct {
	ctx context.Context
	mem *memstore.Store
}

func (r rows) Publish(_ string, messages ...*message.Message) error {
	for _, m := range messages {
		if err := r.mem.Insert(r.ctx, string(m.Payload)); err != nil {
			return err
		}
	}
	return nil
}

func (rows) Close() error { return nil }

func TestTheIdOfAMessageIsMadeOfTheIntentAndOfWhatItIs_key3(t *testing.T) {
	t.Parallel()
	sent := newBox()
	p := publisher(t, sent)
	send := func(v requestctx.Values, topic string, o watermilledge.Out) string {
		t.Helper()
		if v.Key.IsZero() {
			v.Key, _ = requestctx.ParseKey("order-12345")
		}
		ctx, _ := requestctx.New(t.Context(), v)
		if err := p.Send(ctx, topic, o); err != nil {
			t.Fatal(err)
		}
		ids := sent.ids()
		return ids[len(ids)-1]
	}
	other, err := requestctx.ParseKey("order-54321")
	if err != nil {
		t.Fatal(err)
	}
	base := requestctx.Values{Scope: requestctx.Scope{Client: "acme", Tenant: "t"}, Source: "POST /v1/orders/{id}/lines", Resource: []string{"o-1"}}
	change := func(f func(*requestctx.Values)) requestctx.Values { v := base; f(&v); return v }
	out := watermilledge.Out{Type: "order.placed", Body: 1, Label: "line-1"}
	seen := map[string]string{}
	for _, c := range []struct {
		name  string
		v     requestctx.Values
		topic string
		o     watermilledge.Out
	}{
		{"as it is", base, "orders", out},
		{"another key", change(func(v *requestctx.Values) { v.Key = other }), "orders", out},
		{"another client", change(func(v *requestctx.Values) { v.Scope.Client = "acm" }), "orders", out},
		{"another tenant", change(func(v *requestctx.Values) { v.Scope = requestctx.Scope{Client: "cme", Tenant: "ta"} }), "orders", out},
		{"another source", change(func(v *requestctx.Values) { v.Source = "" }), "orders", out},
		{"another resource", change(func(v *requestctx.Values) { v.Resource = []string{"o-", "1"} }), "orders", out},
		{"another topic", base, "returns", out},
		{"another type", base, "orders", watermilledge.Out{Type: "order.paid", Label: "line-1"}},
		{"another label", base, "orders", watermilledge.Out{Type: "order.placed", Label: "line-2"}},
		{"no label", base, "orders", watermilledge.Out{Type: "order.placed"}},
	} {
		id := send(c.v, c.topic, c.o)
		if before, taken := seen[id]; taken {
			t.Errorf("%s: the id is the one of %s", c.name, before)
		}
		seen[id] = c.name
		again := c.o
		again.Body, again.Metadata = 2, map[string]string{"trace": "t-2"}
		if send(c.v, c.topic, again) != id {
			t.Errorf("%s: sent again it has another id", c.name)
		}
		if _, err := requestctx.ParseKey(id); err != nil || len(id) != 43 {
			t.Errorf("%s: the id %q is no key of 43 characters: %v", c.name, id, err)
		}
	}
}

// One handler sends two commands of a type: their labels tell them apart in every attempt.
func TestMessagesOfOneIntentAreToldApartByTheirLabels(t *testing.T) {
	t.Parallel()
	sent := newBox()
	p, attempts := publisher(t, sent), 0
	s := newSender(t, memstore.New(), func(ctx context.Context, _ string) error {
		items := []string{"a", "b"}
		if attempts++; attempts == 2 {
			items = []string{"b", "a"}
		}
		for _, item := range items {
			if err := p.Send(ctx, "stock", watermilledge.Out{Type: "reserve", Label: item, Body: item}); err != nil {
				return err
			}
		}
		if attempts == 1 {
			return errDown
		}
		return nil
	})
	for range 2 {
		_, _ = bus.Send(request(t, "order-12345"), s.bus, place{"o-1"})
	}
	ids := sent.ids()
	if len(ids) != 4 || ids[0] != ids[3] || ids[1] != ids[2] || ids[0] == ids[1] {
		t.Errorf("the ids are %v", ids)
	}
}

func TestWithoutAKeyThePublisherMakesANewId_msg2(t *testing.T) {
	t.Parallel()
	sent := newBox()
	p := publisher(t, sent)
	refused, _ := requestctx.New(t.Context(), requestctx.Values{KeyErr: errDown}) // of an unmarked command, whose key means nothing
	for _, ctx := range []context.Context{t.Context(), request(t, ""), refused} {
		before := len(sent.kept())
		for range 2 {
			if err := p.Send(ctx, "orders", watermilledge.Out{Type: "order.placed", Body: invoice{"o-1"}}); err != nil {
				t.Fatal(err)
			}
		}
		ids := sent.ids()[before:]
		for _, id := range ids {
			if parsed, err := uuid.Parse(id); err != nil || parsed.Version() != 7 {
				t.Errorf("%q is no UUIDv7", id)
			}
		}
		if ids[0] == ids[1] {
			t.Error("two messages have one id")
		}
	}
}

func TestAMessageSaysItsTypeAndWhenItWasSentAndWhatItsSenderAdds(t *testing.T) {
	t.Parallel()
	sent := newBox()
	p, err := watermilledge.NewPublisher(sent, watermilledge.PublisherOptions{Type: "kind", SentAt: "at"})
	if err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	out := watermilledge.Out{ID: "mine-0001", Type: "order.placed", Body: invoice{"o-1"}, Metadata: map[string]string{"trace": "t-1", "kind": "forged"}}
	if err := p.Send(t.Context(), "orders", out); err != nil {
		t.Fatal(err)
	}
	l := sent.kept()[0]
	at, err := time.Parse(time.RFC3339Nano, l.m.Metadata["at"])
	if err != nil || at.Before(begun.Add(-time.Millisecond)) || at.After(time.Now()) {
		t.Errorf("it was sent at %v: %v", at, err)
	}
	delete(l.m.Metadata, "at")
	equal(t, "the topic", l.topic, "orders")
	equal(t, "the id", l.m.UUID, "mine-0001")
	equal(t, "the payload", string(l.m.Payload), `{"order":"o-1"}`)
	equal(t, "the metadata", l.m.Metadata, message.Metadata{"kind": "order.placed", "trace": "t-1"})
	equal(t, "what the sender keeps", out.Metadata, map[string]string{"trace": "t-1", "kind": "forged"})
}

type unwritable struct{}

func (unwritable) MarshalJSON() ([]byte, error) { return nil, errors.New("cannot write 4111-1111") }

func TestWhatCannotBeSentIsAnErrorWithoutValues(t *testing.T) {
	t.Parallel()
	sent := newBox()
	p := publisher(t, sent)
	for _, c := range []struct {
		name, topic string
		out         watermilledge.Out
		want        string
	}{
		{"no topic", "", watermilledge.Out{Type: "order.placed"}, "watermilledge: a message needs a topic and a type"},
		{"no type", "orders", watermilledge.Out{}, "watermilledge: a message needs a topic and a type"},
		{"no JSON", "orders", watermilledge.Out{Type: "t", Body: unwritable{}}, "watermilledge: watermilledge_test.unwritable cannot be written as JSON"},
		{"a number that JSON has not", "orders", watermilledge.Out{Type: "t", Body: math.NaN()}, "watermilledge: float64 cannot be written as JSON"},
		{"an id that is no key", "orders", watermilledge.Out{Type: "t", ID: "4111 1111"}, `watermilledge: a message of type "t" has no id: ` +
			"requestctx: the idempotency key (9 bytes) was refused: the character at position 5 is not one of A-Z a-z 0-9 . _ : -"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if err := p.Send(t.Context(), c.topic, c.out); err == nil || err.Error() != c.want {
				t.Errorf("Send gave %v\nwant %s", err, c.want)
			}
		})
	}
	var m *json.MarshalerError
	if err := p.Send(t.Context(), "orders", watermilledge.Out{Type: "t", Body: unwritable{}}); !errors.As(err, &m) {
		t.Errorf("%v hides its cause", err)
	}
	sent.fail = 1
	if err := p.Send(t.Context(), "orders", watermilledge.Out{Type: "t"}); !errors.Is(err, errAway) {
		t.Errorf("Send gave %v, want the publisher's error", err)
	}
	equal(t, "what was sent", len(sent.kept()), 0)
	if _, err := watermilledge.NewPublisher(nil, watermilledge.PublisherOptions{}); err == nil {
		t.Error("NewPublisher takes no publisher")
	}
	if _, err := watermilledge.NewOutbox(nil, watermilledge.PublisherOptions{}); err == nil {
		t.Error("NewOutbox takes no function")
	}
}

// A goroutine that a handler has left behind is no part of the intent any more.
func TestAHandlerThatHasReturnedSendsNothing(t *testing.T) {
	t.Parallel()
	sent := newBox()
	write := func(_ context.Context, topic string, m *message.Message) error { return sent.Publish(topic, m) }
	outbox, err := watermilledge.NewOutbox(write, watermilledge.PublisherOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var left context.Context
	s := newSender(t, memstore.New(), func(ctx context.Context, _ string) error { left = ctx; return nil })
	if _, err := bus.Send(request(t, "order-12345"), s.bus, place{"o-1"}); err != nil {
		t.Fatal(err)
	}
	for _, p := range []*watermilledge.Publisher{publisher(t, sent), outbox} {
		if err := p.Send(left, "orders", watermilledge.Out{Type: "t"}); !errors.Is(err, idempotency.ErrNoIntent) {
			t.Errorf("Send gave %v", err)
		}
	}
	equal(t, "what was sent", len(sent.kept()), 0)
}
