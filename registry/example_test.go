package registry_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/memstore"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/registry"
	"github.com/tekil-go/tekil/requestctx"
)

// Checkout is the command to pay for a cart.
type Checkout struct {
	Cart   string `json:"cart"   validate:"required"`
	Amount int64  `json:"amount" validate:"gt=0"` // in minor units
}

// CommandName is the command's stable name, and ties it to its result.
func (Checkout) CommandName() bus.Name[Order] { return "checkout.place" }

// Idempotent marks the command.
func (Checkout) Idempotent() {}

var _ idempotency.Marker = Checkout{} // the compiler checks the spelling

// Order is the result of [Checkout] and of [FindOrder].
type Order struct {
	Number string `json:"number"`
	Amount int64  `json:"amount"`
}

// FindOrder is a query.
type FindOrder struct {
	Number string `json:"number" validate:"required"`
}

// QueryName is the query's stable name.
func (FindOrder) QueryName() bus.Name[Order] { return "checkout.find" }

// A whole program: the same payment sent twice makes one order, and a refused form, corrected and sent with the same key,
// makes an order.
func ExampleHandle() {
	store := memstore.New() // pgstore or sqlitestore in a program
	orders := 0

	reg := registry.New(registry.Config{Logger: zap.NewNop(), Store: store})
	registry.Handle(reg, func(ctx context.Context, cmd Checkout) (Order, error) {
		orders++
		if err := store.Insert(ctx, cmd.Cart); err != nil { // in the transaction that also holds the record
			return Order{}, err
		}
		return Order{Number: fmt.Sprintf("order-%d", orders), Amount: cmd.Amount}, nil
	})
	b, err := reg.Build()
	if err != nil {
		fmt.Println(err)
		return
	}

	// An edge does this for each request; here the key comes from the one who starts the intent.
	send := func(key string, cmd Checkout) {
		parsed, err := requestctx.ParseKey(key)
		if err != nil {
			fmt.Println(err)
			return
		}
		ctx, req := requestctx.New(context.Background(), requestctx.Values{Key: parsed, Scope: requestctx.Scope{Client: "acme-erp"}})
		order, err := bus.Send(ctx, b, cmd)
		fmt.Printf("order %q, replayed %t, code %q\n", order.Number, req.Outcome().Replayed, bus.CodeOf(err))
	}
	send("payment-1", Checkout{Cart: "cart-1", Amount: 4990})
	send("payment-1", Checkout{Cart: "cart-1", Amount: 4990}) // the answer was lost
	send("payment-1", Checkout{Cart: "cart-1", Amount: 5990}) // another payload under the same key
	send("payment-2", Checkout{Cart: "cart-2"})               // a field was forgotten
	send("payment-2", Checkout{Cart: "cart-2", Amount: 1990}) // and filled in
	fmt.Println(store.Rows())
	// Output:
	// order "order-1", replayed false, code ""
	// order "order-1", replayed true, code ""
	// order "", replayed false, code "IDEMPOTENCY_KEY_CONFLICT"
	// order "", replayed false, code "VALIDATION_FAILED"
	// order "order-2", replayed false, code ""
	// [cart-1 cart-2]
}

func ExampleHandleQuery() {
	reg := registry.New(registry.Config{Logger: zap.NewNop()})
	registry.HandleQuery(reg, func(_ context.Context, q FindOrder) (Order, error) {
		return Order{Number: q.Number, Amount: 4990}, nil
	})
	b, err := reg.Build()
	if err != nil {
		fmt.Println(err)
		return
	}
	order, err := bus.Ask(context.Background(), b, FindOrder{Number: "order-1"})
	fmt.Println(order, err)
	// Output: {order-1 4990} <nil>
}

// What differs from deployment to deployment is not part of the command's type.
func ExampleTune() {
	retention, _ := time.ParseDuration("168h") // from the environment, say
	reg := registry.New(registry.Config{Logger: zap.NewNop(), Store: memstore.New()})
	registry.Handle(reg, func(context.Context, Checkout) (Order, error) { return Order{}, nil },
		registry.Tune[Checkout, Order](func(p *idempotency.Policy) { p.Retention = retention }))
	if _, err := reg.Build(); err != nil {
		fmt.Println(err)
		return
	}
	i := reg.Describe().Commands[0].Idempotency
	fmt.Println(i.Retention, i.Tuned)
	// Output: 168h0m0s [Retention]
}

// A part of the program that only sends a command says so, and a program that was put together without its handler does not
// start.
func ExampleRequire() {
	reg := registry.New(registry.Config{Logger: zap.NewNop()})
	registry.Require[Checkout](reg)

	_, err := reg.Build()
	if refused, ok := errors.AsType[*registry.BuildError](err); ok {
		for _, p := range refused.Problems {
			fmt.Println(p.Command, "|", p.What) // p.Where is the file and line of the call of Require
		}
	}
	// Output: checkout.place | registry_test.Checkout is required here and has no handler; register one with registry.Handle
}

// Everything that is wrong is listed at once, each with the place of its registration.
func ExampleRegistry_Build() {
	reg := registry.New(registry.Config{}) // neither a logger nor a store
	registry.Handle(reg, func(context.Context, Checkout) (Order, error) { return Order{}, nil })

	_, err := reg.Build()
	if refused, ok := errors.AsType[*registry.BuildError](err); ok {
		for _, p := range refused.Problems {
			fmt.Println(p.What)
		}
	}
	// Output:
	// logging: Config.Logger is nil; give it a logger, or zap.NewNop() to log nothing
	// it is marked idempotent and no store is set
}

// Keep the text or the JSON in a file beside the code: then a review sees that a command has lost its protection.
func ExampleRegistry_Describe() {
	reg := registry.New(registry.Config{Logger: zap.NewNop(), Store: memstore.New()})
	registry.Handle(reg, func(context.Context, Checkout) (Order, error) { return Order{}, nil })
	registry.HandleQuery(reg, func(context.Context, FindOrder) (Order, error) { return Order{}, nil })
	if _, err := reg.Build(); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Print(reg.Describe())
	// Output:
	// store: memory (for tests only)
	// query checkout.find (registry_test.FindOrder -> registry_test.Order)
	//   stages: logging -> validation -> handler
	// command checkout.place (registry_test.Checkout -> registry_test.Order)
	//   stages: logging -> validation -> idempotency -> handler
	//   idempotent: atomic, key required, scope client, tenant (may be empty), source, command, key
	//   retention 72h0m0s then reuse; duplicate waits 250ms, then in progress; deadline 1m0s; read committed; version 0; strict false; results kept up to 262144 bytes
}

// A wrapper gives every handler a deadline of its own. It cannot see the payload, skip a replay or turn a failure into a success.
func ExampleAround() {
	deadline := func(ctx context.Context, inv bus.Invocation, next func(context.Context) error) error {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		fmt.Println("before", inv.Name)
		defer fmt.Println("after", inv.Name)
		return next(ctx)
	}
	reg := registry.New(registry.Config{Logger: zap.NewNop(), Around: []registry.Around{deadline}})
	registry.HandleQuery(reg, func(ctx context.Context, q FindOrder) (Order, error) {
		_, bounded := ctx.Deadline()
		fmt.Println("bounded:", bounded)
		return Order{Number: q.Number}, nil
	})
	b, err := reg.Build()
	if err != nil {
		fmt.Println(err)
		return
	}
	order, err := bus.Ask(context.Background(), b, FindOrder{Number: "order-1"})
	fmt.Println(order.Number, err)
	// Output:
	// before checkout.find
	// bounded: true
	// after checkout.find
	// order-1 <nil>
}

// Tenants in several databases: one bus for each database, chosen by the tenant before anything is looked up. The handler and the record
// are then in the tenant's own database, and one key of two tenants is two intents there as everywhere.
func ExampleRegistry_Build_shards() {
	shard := func() (*bus.Bus, *memstore.Store, error) {
		store := memstore.New() // pgstore.New of the shard's pool in a program
		reg := registry.New(registry.Config{Logger: zap.NewNop(), Store: store})
		registry.Handle(reg, func(ctx context.Context, cmd Checkout) (Order, error) {
			return Order{Number: "order-of-" + cmd.Cart}, store.Insert(ctx, cmd.Cart)
		})
		b, err := reg.Build()
		return b, store, err
	}
	north, northRows, err1 := shard()
	south, southRows, err2 := shard()
	if err := errors.Join(err1, err2); err != nil {
		fmt.Println(err)
		return
	}
	of := map[string]*bus.Bus{"acme": north, "globex": south} // from a table of the program's own

	for _, tenant := range []string{"acme", "globex", "acme"} {
		key, err := requestctx.ParseKey("payment-1")
		if err != nil {
			fmt.Println(err)
			return
		}
		scope := requestctx.Scope{Tenant: tenant, Client: "erp"}
		ctx, req := requestctx.New(context.Background(), requestctx.Values{Key: key, Scope: scope})
		order, err := bus.Send(ctx, of[tenant], Checkout{Cart: "cart-" + tenant, Amount: 4990})
		fmt.Println(tenant, order.Number, req.Outcome().Replayed, err)
	}
	fmt.Println(northRows.Rows(), southRows.Rows())
	// Output:
	// acme order-of-cart-acme false <nil>
	// globex order-of-cart-globex false <nil>
	// acme order-of-cart-acme true <nil>
	// [cart-acme] [cart-globex]
}
