package msgedge_test

import (
	"context"
	"strconv"
	"testing"

	"go.uber.org/zap"

	"github.com/tekil-go/tekil/behaviors/idempotency/memstore"
	"github.com/tekil-go/tekil/registry"
	"github.com/tekil-go/tekil/requestctx/msgedge"
)

// BenchmarkReceive shows a message through the whole pipeline, and one that has been seen, beside the bare handler, their baseline.
func BenchmarkReceive(b *testing.B) {
	handler := func(store *memstore.Store) func(context.Context, invoice) (invoiced, error) {
		return func(ctx context.Context, c invoice) (invoiced, error) {
			return invoiced{c.OrderID}, store.Insert(ctx, c.OrderID)
		}
	}
	consumer := func(b *testing.B) *msgedge.Consumer {
		b.Helper()
		store := memstore.New()
		reg := registry.New(registry.Config{Logger: zap.NewNop(), Store: store})
		registry.Handle(reg, handler(store))
		served, err := reg.Build()
		if err != nil {
			b.Fatal(err)
		}
		c, err := msgedge.New(msgedge.Config{Bus: served, Consumer: "billing", Source: "orders"})
		if err != nil {
			b.Fatal(err)
		}
		if err := msgedge.Handle[invoice](c, "order.placed"); err != nil {
			b.Fatal(err)
		}
		return c
	}
	b.Run("baseline=handler", func(b *testing.B) {
		h := handler(memstore.New())
		b.ReportAllocs()
		for b.Loop() {
			if _, err := h(b.Context(), invoice{"o-1", 4990}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("first delivery", func(b *testing.B) {
		c, m, n := consumer(b), placed(), 0
		b.ReportAllocs()
		for b.Loop() {
			n++
			m.ID = "m-" + strconv.Itoa(10_000_000+n)
			if v := c.Receive(b.Context(), m); v.Reason != "OK" {
				b.Fatal(v)
			}
		}
	})
	b.Run("redelivery", func(b *testing.B) {
		c, m := consumer(b), placed()
		c.Receive(b.Context(), m)
		b.ReportAllocs()
		for b.Loop() {
			if v := c.Receive(b.Context(), m); v.Reason != "REPLAYED" {
				b.Fatal(v)
			}
		}
	})
}
