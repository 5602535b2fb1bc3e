package watermilledge_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"go.uber.org/zap"

	"github.com/tekil-go/tekil/behaviors/idempotency/memstore"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/registry"
	"github.com/tekil-go/tekil/requestctx"
	"github.com/tekil-go/tekil/requestctx/msgedge"
	"github.com/tekil-go/tekil/requestctx/msgedge/watermilledge"
)

// Bill is a command of the billing service.
type Bill struct {
	Order string `json:"order" validate:"required"`
}

// CommandName is the command's stable name.
func (Bill) CommandName() bus.Name[bus.None] { return "bill" }

// Idempotent marks the command.
func (Bill) Idempotent() {}

// A message is delivered three times, as a broker may do, and one of a type that nobody knows comes as well.
func ExampleHandler() {
	reg := registry.New(registry.Config{Logger: zap.NewNop(), Store: memstore.New()}) // pgstore or sqlitestore in a program
	registry.Handle(reg, func(_ context.Context, cmd Bill) (bus.None, error) {
		fmt.Println("billing", cmd.Order)
		return bus.None{}, nil
	})
	b, err := reg.Build()
	if err != nil {
		log.Fatal(err)
	}
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	consumer, err := msgedge.New(msgedge.Config{Bus: b, Consumer: "billing", Log: quiet})
	if err != nil {
		log.Fatal(err)
	}
	if err := msgedge.Handle[Bill](consumer, "order.placed"); err != nil {
		log.Fatal(err)
	}

	broker := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, nil) // a real broker in a program
	h, err := watermilledge.Handler(consumer, watermilledge.Options{Topic: "orders", DeadLetters: broker, DeadLetterTopic: "orders.dead"})
	if err != nil {
		log.Fatal(err)
	}
	router := message.NewDefaultRouter(nil)
	router.AddConsumerHandler("billing", "orders", broker, h)
	router.AddConsumerHandler("watching", "orders.dead", broker, func(m *message.Message) error {
		fmt.Println("dead:", m.UUID, m.Metadata[watermilledge.DeadLetterReason], "in", m.Metadata[watermilledge.DeadLetterConsumer])
		return nil
	})
	ended := make(chan error)
	go func() { ended <- router.Run(context.Background()) }()
	<-router.Running()

	for range 3 {
		m := message.NewMessage("order-17-placed", message.Payload(`{"order":"17"}`))
		m.Metadata.Set("type", "order.placed")
		fmt.Println("acknowledged, error:", broker.Publish("orders", m))
	}
	m := message.NewMessage("order-17-burnt", message.Payload(`{"order":"17"}`))
	m.Metadata.Set("type", "order.burnt")
	fmt.Println("acknowledged, error:", broker.Publish("orders", m))
	if err := errors.Join(router.Close(), <-ended); err != nil {
		log.Fatal(err)
	}
	// Output:
	// billing 17
	// acknowledged, error: <nil>
	// acknowledged, error: <nil>
	// acknowledged, error: <nil>
	// dead: order-17-burnt MESSAGE_TYPE_UNKNOWN in billing
	// acknowledged, error: <nil>
}

// PlaceOrder is a command of the shop.
type PlaceOrder struct {
	Cart string `json:"cart"`
}

// CommandName is the command's stable name.
func (PlaceOrder) CommandName() bus.Name[bus.None] { return "place" }

// Idempotent marks the command.
func (PlaceOrder) Idempotent() {}

// shop gives a function that sends the order of a cart under its key.
func shop(store *memstore.Store, place func(ctx context.Context, cmd PlaceOrder) error) func() error {
	reg := registry.New(registry.Config{Logger: zap.NewNop(), Store: store})
	registry.Handle(reg, func(ctx context.Context, cmd PlaceOrder) (bus.None, error) { return bus.None{}, place(ctx, cmd) })
	b, err := reg.Build()
	if err != nil {
		log.Fatal(err)
	}
	key, err := requestctx.ParseKey("cart-17-0001")
	if err != nil {
		log.Fatal(err)
	}
	return func() error {
		ctx, _ := requestctx.New(context.Background(), requestctx.Values{Key: key, Scope: requestctx.Scope{Client: "shop"}})
		_, err := bus.Send(ctx, b, PlaceOrder{Cart: "17"})
		return err
	}
}

// printer is a broker that shows what it is given.
type printer struct{ message.Publisher }

func (printer) Publish(topic string, messages ...*message.Message) error {
	for _, m := range messages {
		fmt.Println(topic, m.UUID, m.Metadata["type"], string(m.Payload))
	}
	return nil
}

// The first attempt dies behind the message that it has sent. The second attempt sends the same message, by its id.
func ExampleNewPublisher() {
	pub, err := watermilledge.NewPublisher(printer{}, watermilledge.PublisherOptions{})
	if err != nil {
		log.Fatal(err)
	}
	attempts := 0
	send := shop(memstore.New(), func(ctx context.Context, cmd PlaceOrder) error {
		if err := pub.Send(ctx, "stock", watermilledge.Out{Type: "reserve", Body: cmd}); err != nil {
			return err
		}
		if attempts++; attempts == 1 {
			return errors.New("the database is away")
		}
		return nil
	})
	fmt.Println("error:", send())
	fmt.Println("error:", send())
	fmt.Println("error:", send())
	// Output:
	// stock 3xM1HiECg9VKs7l3Un_2c69p16lqMi2Fhqcgh4e1jk4 reserve {"cart":"17"}
	// error: the database is away
	// stock 3xM1HiECg9VKs7l3Un_2c69p16lqMi2Fhqcgh4e1jk4 reserve {"cart":"17"}
	// error: <nil>
	// error: <nil>
}

// The event is a row in the transaction of the handler: there is none of the attempt that failed, and none of the replay.
func ExampleNewOutbox() {
	store := memstore.New()
	outbox, err := watermilledge.NewOutbox(func(ctx context.Context, topic string, m *message.Message) error {
		return store.Insert(ctx, topic+" "+m.Metadata["type"]+" "+string(m.Payload)) // an INSERT in a program
	}, watermilledge.PublisherOptions{})
	if err != nil {
		log.Fatal(err)
	}
	attempts := 0
	send := shop(store, func(ctx context.Context, cmd PlaceOrder) error {
		if err := outbox.Send(ctx, "orders", watermilledge.Out{Type: "order.placed", Body: cmd}); err != nil {
			return err
		}
		if attempts++; attempts == 1 {
			return errors.New("the address is unknown")
		}
		return nil
	})
	fmt.Println(send(), store.Rows())
	fmt.Println(send(), store.Rows())
	fmt.Println(send(), store.Rows())
	// Output:
	// the address is unknown []
	// <nil> [orders order.placed {"cart":"17"}]
	// <nil> [orders order.placed {"cart":"17"}]
}

// Outside the handler of a marked command the key of the request gives the id, and without one each call is a new message.
func ExamplePublisher_Send() {
	pub, err := watermilledge.NewPublisher(printer{}, watermilledge.PublisherOptions{})
	if err != nil {
		log.Fatal(err)
	}
	key, err := requestctx.ParseKey("import-2025-11-30")
	if err != nil {
		log.Fatal(err)
	}
	for range 2 {
		ctx, _ := requestctx.New(context.Background(), requestctx.Values{Key: key, Scope: requestctx.Scope{Client: "nightly"}})
		if err := pub.Send(ctx, "stock", watermilledge.Out{Type: "count", Label: "shelf-4", Body: 12}); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// stock CaBs5wh61oj6Ae3Yfjyq434uec6X7xjf8l-IJFgai6Q count 12
	// stock CaBs5wh61oj6Ae3Yfjyq434uec6X7xjf8l-IJFgai6Q count 12
}
