package orders

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore"
)

type Service struct{ Pool *pgxpool.Pool }

func (s Service) Place(ctx context.Context, cmd Place) (Placed, error) {
	_, err := s.Pool.Exec(ctx, "INSERT")
	return Placed{}, err
}

func (s Service) Right(ctx context.Context, cmd Place) (Placed, error) {
	_, err := pgstore.DB(ctx, s.Pool).Exec(ctx, "INSERT")
	return Placed{}, err
}

func (s Service) Pay(ctx context.Context, cmd Pay) (Placed, error) {
	_, err := s.Pool.Exec(ctx, "INSERT")
	return Placed{}, err
}

func NewPlace(pool *pgxpool.Pool) func(context.Context, Place) (Placed, error) {
	return func(ctx context.Context, cmd Place) (Placed, error) {
		_, err := pool.Exec(ctx, "INSERT")
		return Placed{}, err
	}
}
