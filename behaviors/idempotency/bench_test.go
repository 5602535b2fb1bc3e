package idempotency_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/memstore"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
)

// What the engine costs beside the handler, over a store that costs next to nothing. The baseline of the same run is bare: the
// handler with a request context, through the same bus, without the mark.
//
//	go test -run '^$' -bench Engine -benchtime 200ms ./behaviors/idempotency

type bare struct {
	Cart   string  `json:"cart"`
	Amount float64 `json:"amount"`
}

func (bare) CommandName() bus.Name[paid] { return "test.bare" }

// keys are made before the clock runs.
func keys(b *testing.B, n int) []requestctx.Values {
	b.Helper()
	values := make([]requestctx.Values, n)
	for i := range values {
		values[i] = keyed(b, fmt.Sprintf("key-%08d", i))
		values[i].ID = "request-1"
	}
	return values
}

func BenchmarkEngine(b *testing.B) {
	ctx := context.Background()
	newStore := func() *memstore.Store { return memstore.New() }
	b.Run("bare", func(b *testing.B) {
		store := newStore()
		send := serve(b, idempotency.Config{}, func(ctx context.Context, c bare) (paid, error) { return paid{c.Cart, 1}, store.Insert(ctx, c.Cart) })
		v := keys(b, 1)
		b.ReportAllocs()
		for b.Loop() {
			ctx, _ := requestctx.New(ctx, v[0])
			if _, err := send(ctx, bare{Cart: "a", Amount: 1}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("first", func(b *testing.B) {
		store := newStore()
		send := serve(b, idempotency.Config{Store: store}, func(ctx context.Context, c pay) (paid, error) { return paid{c.Cart, 1}, store.Insert(ctx, c.Cart) })
		v := keys(b, b.N)
		b.ReportAllocs()
		b.ResetTimer()
		for i := range b.N {
			ctx, _ := requestctx.New(ctx, v[i])
			if _, err := send(ctx, pay{Cart: "a", Amount: 1}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("replay", func(b *testing.B) {
		store := newStore()
		send := serve(b, idempotency.Config{Store: store}, func(ctx context.Context, c pay) (paid, error) { return paid{c.Cart, 1}, store.Insert(ctx, c.Cart) })
		v := keys(b, 1)
		b.ReportAllocs()
		for b.Loop() {
			ctx, _ := requestctx.New(ctx, v[0])
			if _, err := send(ctx, pay{Cart: "a", Amount: 1}); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkScopeID(b *testing.B) {
	s := idempotency.Scope{Tenant: "acme", Client: "erp", Operation: "POST /v1/orders orders.place", Key: "017f22e2-79b0-7cc3-98c4-dc0c0c07398f"}
	b.ReportAllocs()
	for b.Loop() {
		_ = s.ID()
	}
}
