package pgstore

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

type DBTX interface {
	Exec(ctx context.Context, sql string, args ...any) (int, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

type Store struct{}

func New(pool *pgxpool.Pool) *Store                   { return nil }
func DB(ctx context.Context, pool *pgxpool.Pool) DBTX { return pool }
func Tx(ctx context.Context) (pgx.Tx, error)          { return nil, nil }
func InTx(ctx context.Context, pool *pgxpool.Pool, fn func(ctx context.Context) error) error {
	return fn(ctx)
}
