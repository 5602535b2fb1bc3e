package swallowederror

import (
	. "commands"

	"context"
	"database/sql"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore"
	"github.com/tekil-go/tekil/behaviors/idempotency/sqlitestore"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/registry"
)

func wire(r *registry.Registry, pool *pgxpool.Pool, db *sql.DB) {
	registry.Handle(r, func(ctx context.Context, cmd Place) (p Placed, err error) {
		h := pgstore.DB(ctx, pool)
		h.Exec(ctx, "INSERT")                              // want `the error of Exec is dropped`
		_, _ = h.Exec(ctx, "INSERT")                       // want `the error of Exec is dropped`
		n, _ := h.Exec(ctx, "INSERT")                      // want `the error of Exec is dropped`
		h.QueryRow(ctx, "INSERT").Scan(&n)                 // want `the error of Scan is dropped`
		_ = h.QueryRow(ctx, "INSERT").Scan(&n)             // want `the error of Scan is dropped`
		sqlitestore.DB(ctx, db).ExecContext(ctx, "INSERT") // want `the error of ExecContext is dropped`
		tx, err := pgstore.Tx(ctx)
		tx.Exec(ctx, "INSERT") // want `the error of Exec is dropped`
		savepoint, err := tx.Begin(ctx)
		savepoint.Exec(ctx, "INSERT")
		defer savepoint.Rollback(ctx)
		helper(ctx, h)
		if _, err := h.Exec(ctx, "INSERT"); err != nil {
			return p, err
		}
		_, err = h.Exec(ctx, "INSERT")
		return p, err
	})
	registry.Handle(r, func(ctx context.Context, cmd Pay) (Placed, error) { // outside of a transaction until InTx
		pgstore.DB(ctx, pool).Exec(ctx, "UPDATE seen SET n = n + 1")
		return Placed{}, nil
	})
	registry.Handle(r, func(ctx context.Context, cmd Note) (bus.None, error) {
		pgstore.DB(ctx, pool).Exec(ctx, "INSERT")
		return bus.None{}, nil
	})
}

func helper(ctx context.Context, h pgstore.DBTX) {
	_, _ = h.Exec(ctx, "INSERT") // want `the error of Exec is dropped`
}
