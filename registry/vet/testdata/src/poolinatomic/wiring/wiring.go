package wiring

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tekil-go/tekil/registry"
	"poolinatomic/orders"
)

func wire(r *registry.Registry, s orders.Service, pool *pgxpool.Pool) {
	registry.Handle(r, s.Place)               // want `handler Place: orders.go:14: Exec on the pool`
	registry.Handle(r, orders.NewPlace(pool)) // want `handler NewPlace: orders.go:30: Exec on the pool`
	registry.Handle(r, s.Right)
	registry.Handle(r, s.Pay)
	registry.Handle(r, func(ctx context.Context, cmd orders.Pay) (orders.Placed, error) {
		_, err := pool.Exec(ctx, "INSERT")
		return orders.Placed{}, err
	})
	registry.Handle[orders.Place, orders.Placed](r, func(ctx context.Context, cmd orders.Place) (orders.Placed, error) {
		_, err := pool.Exec(ctx, "INSERT") // want `Exec on the pool`
		return orders.Placed{}, err
	})
}
