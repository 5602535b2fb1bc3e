package msgedge_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"go.uber.org/zap"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/memstore"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/registry"
	"github.com/tekil-go/tekil/requestctx"
	"github.com/tekil-go/tekil/requestctx/msgedge"
)

// Ship is an application's command.
type Ship struct {
	Order string `json:"order" validate:"required"`
}

func (Ship) CommandName() bus.Name[bus.None] { return "shipping.ship" }
func (Ship) Idempotent()                     {}

var _ idempotency.Marker = Ship{}

// depot builds a bus that ships orders. The first parcel falls off the belt, and order o-9 is never shipped.
func depot() (*bus.Bus, *memstore.Store, error) {
	store, fallen := memstore.New(), false // pgstore or sqlitestore in a program
	reg := registry.New(registry.Config{Logger: zap.NewNop(), Store: store})
	registry.Handle(reg, func(ctx context.Context, c Ship) (bus.None, error) {
		if err := store.Insert(ctx, c.Order); err != nil {
			return bus.None{}, err
		}
		if c.Order == "o-9" {
			return bus.None{}, idempotency.Final(coded{"ORDER_CANCELED", "The order is canceled."})
		}
		if !fallen {
			fallen = true
			return bus.None{}, errors.New("it fell off the belt")
		}
		return bus.None{}, nil
	})
	b, err := reg.Build()
	return b, store, err
}

func ExampleNew() {
	b, _, err := depot()
	if err != nil {
		panic(err)
	}
	_, err = msgedge.New(msgedge.Config{Bus: b, Source: "orders", Refusals: msgedge.Retry})
	fmt.Println(err)

	c, err := msgedge.New(msgedge.Config{
		Bus: b, Consumer: "shipping", Source: "orders",
		MaxDeliveries: 5,                  // then a message that fails is set aside
		Redelivery:    2 * 24 * time.Hour, // what the broker keeps
	})
	fmt.Println(c != nil, err)
	// Output:
	// msgedge: Config.Consumer is empty, has blanks in it or is not UTF-8 without NUL; give the consumer a name of its own, because it is part of every key's scope
	// msgedge: Config.Refusals is retry; use Ack or DeadLetter
	// true <nil>
}

func ExampleHandle() {
	b, _, err := depot()
	if err != nil {
		panic(err)
	}
	c, err := msgedge.New(msgedge.Config{Bus: b, Consumer: "shipping", Source: "orders", Redelivery: 7 * 24 * time.Hour})
	if err != nil {
		panic(err)
	}
	fmt.Println(msgedge.Handle[Ship](c, "order.paid"))
	// Output:
	// msgedge: consumer shipping: "order.paid" (msgedge_test.Ship): its outcome is kept for 72h0m0s and a message may come again for 168h0m0s (Config.Redelivery), and would then run as new; give its policy a longer Retention, or AfterExpiry Tombstone
}

func ExampleConsumer_Receive() {
	b, store, err := depot()
	if err != nil {
		panic(err)
	}
	c, err := msgedge.New(msgedge.Config{
		Bus: b, Consumer: "shipping", Source: "orders",
		Delay: func(deliveries int) time.Duration { return time.Duration(deliveries) * 10 * time.Second },
		Log:   slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		panic(err)
	}
	if err := msgedge.Handle[Ship](c, "order.paid"); err != nil {
		panic(err)
	}

	for _, m := range []msgedge.Message{ // from a broker
		{ID: "m-0000001", Type: "order.paid", Payload: []byte(`{"order":"o-1"}`), Deliveries: 1},
		{ID: "m-0000001", Type: "order.paid", Payload: []byte(`{"order":"o-1"}`), Deliveries: 2},
		{ID: "m-0000001", Type: "order.paid", Payload: []byte(`{"order":"o-1"}`), Deliveries: 3}, // the acknowledgement was lost
		{ID: "m-0000002", Type: "order.paid", Payload: []byte(`{"order":"o-9"}`), Deliveries: 1},
		{ID: "m-0000003", Type: "order.paid", Payload: []byte(`{"ordr":"o-3"}`), Deliveries: 1},
		{ID: "", Type: "order.paid", Payload: []byte(`{"order":"o-4"}`), Deliveries: 1},
	} {
		switch v := c.Receive(context.Background(), m); v.Action {
		case msgedge.Ack:
			fmt.Println("confirm:", v.Reason)
		case msgedge.Retry:
			fmt.Println("put back:", v.Reason, v.Delay)
		case msgedge.DeadLetter:
			fmt.Println("set aside:", v.Reason)
		}
	}
	fmt.Println(store.Rows())
	// Output:
	// put back: INTERNAL 10s
	// confirm: OK
	// confirm: REPLAYED
	// confirm: ORDER_CANCELED
	// set aside: MALFORMED_MESSAGE
	// set aside: MESSAGE_ID_MISSING
	// [o-1]
}

// A consumer of the application's own can have the verdict alone.
func ExampleJudge() {
	b, _, err := depot()
	if err != nil {
		panic(err)
	}
	key, err := requestctx.ParseKey("m-0000001") // the message's id
	if err != nil {
		panic(err)
	}
	for range 3 {
		ctx, req := requestctx.New(context.Background(), requestctx.Values{
			Key: key, Scope: requestctx.Scope{Client: "orders"}, Source: "consumer:shipping",
		})
		_, err := bus.Send(ctx, b, Ship{Order: "o-1"})
		v := msgedge.Judge(err, req.Outcome())
		fmt.Println(v.Action, v.Reason)
	}
	fmt.Println(msgedge.Judge(&idempotency.InProgressError{RetryAfter: 2 * time.Second}, requestctx.Outcome{}).Action)
	// Output:
	// retry INTERNAL
	// ack OK
	// ack REPLAYED
	// retry
}
