package main

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore/pgtest"
	"github.com/tekil-go/tekil/registry"
	"github.com/tekil-go/tekil/registry/registrytest"
)

// kept is a database of the checkout's as the kit wants it.
type kept struct {
	orders orders
	system registrytest.System
}

// onBoth runs a proof on both kinds of database.
func onBoth(t *testing.T, prove func(t *testing.T, open func(t *testing.T) kept)) {
	for name, open := range map[string]func(t *testing.T) kept{"SQLite": keptInSQLite, "PostgreSQL": keptInPostgres} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			prove(t, open)
		})
	}
}

func keptInSQLite(t *testing.T) kept {
	found, store, stop, err := openSQLite(t.Context(), filepath.Join(t.TempDir(), "checkout.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return keptIn(t, found, store, registrytest.AgeSQLite(t, found.(sqlite).db))
}

func keptInPostgres(t *testing.T) kept {
	found, store, stop, err := openPostgres(t.Context(), pgtest.Open(t).URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return keptIn(t, found, store, pgtest.Age(t, found.(postgres).pool))
}

func keptIn(t *testing.T, found orders, store idempotency.Store, age func(time.Duration)) kept {
	return kept{found, registrytest.System{
		Config: registry.Config{Store: store},
		Rows: func() int {
			h, err := found.holds(context.Background(), "", 1)
			if err != nil {
				t.Fatal(err)
			}
			if h.authorizations != h.orders {
				t.Errorf("there are %d authorisations for %d orders", h.authorizations, h.orders)
			}
			return h.orders
		},
		Age: age,
	}}
}

func payment4990() Place {
	return Place{CartID: "cart-77", Amount: 4990, Currency: "TRY", Email: "ada@example.com", DraftOrderID: "draft-1"}
}

func payment5990() Place {
	cmd := payment4990()
	cmd.Amount = 5990
	return cmd
}

func paymentOfNothing() Place {
	cmd := payment4990()
	cmd.Amount = 0
	return cmd
}

func TestKit_Place(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, open func(t *testing.T) kept) {
		registrytest.Prove(t, registrytest.Case[Place, Placed]{
			Open: func(t *testing.T) registrytest.System {
				k := open(t)
				k.system.Register = func(reg *registry.Registry) { registry.Handle(reg, checkout{k.orders, nil}.place) }
				return k.system
			},
			Valid: payment4990, Edited: payment5990, Invalid: paymentOfNothing,
		})
	})
}

func TestKit_PlaceWithProvider(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, open func(t *testing.T) kept) {
		registrytest.Prove(t, registrytest.Case[PlaceWithProvider, Placed]{
			Open: func(t *testing.T) registrytest.System {
				far, err := openEmbedded(t.Context(), filepath.Join(t.TempDir(), "provider.db"), 0, 0)
				if err != nil {
					t.Fatal(err)
				}
				base, stop, err := far.serve()
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(stop)
				p := newProvider(base, providerTimeout)
				t.Cleanup(p.close)
				k := open(t)
				k.system.Register = func(reg *registry.Registry) {
					service := checkout{k.orders, p}
					registry.Handle(reg, service.placeWithProvider, registry.Reconcile(service.reconcile))
				}
				k.system.Outside = func() int {
					held, err := p.list(context.Background())
					if err != nil {
						t.Fatal(err)
					}
					return held.Total
				}
				return k.system
			},
			Valid:   func() PlaceWithProvider { return PlaceWithProvider(payment4990()) },
			Edited:  func() PlaceWithProvider { return PlaceWithProvider(payment5990()) },
			Invalid: func() PlaceWithProvider { return PlaceWithProvider(paymentOfNothing()) },
		})
	})
}
