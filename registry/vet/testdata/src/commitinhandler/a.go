package commitinhandler

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
	registry.Handle(r, func(ctx context.Context, cmd Place) (Placed, error) {
		tx, err := pgstore.Tx(ctx)
		if err != nil {
			return Placed{}, err
		}
		defer tx.Rollback(ctx) // want `Rollback in a handler: the bus ends the transaction`
		savepoint, err := tx.Begin(ctx)
		if err != nil {
			return Placed{}, err
		}
		if _, err := savepoint.Exec(ctx, "INSERT"); err != nil {
			return Placed{}, savepoint.Rollback(ctx)
		}
		if err := savepoint.Commit(ctx); err != nil {
			return Placed{}, err
		}
		sqlitestore.DB(ctx, db).ExecContext(ctx, "SAVEPOINT a")
		sqlitestore.DB(ctx, db).ExecContext(ctx, "ROLLBACK TO a")
		sqlitestore.DB(ctx, db).ExecContext(ctx, "commit")                 // want `sends BEGIN, COMMIT or ROLLBACK as text`
		pgstore.DB(ctx, pool).Exec(ctx, "BEGIN; INSERT INTO a VALUES (1)") // want `as text`
		pgstore.DB(ctx, pool).Exec(ctx, "INSERT INTO a VALUES ('x')", "COMMIT")
		return Placed{}, tx.Commit(ctx) // want `Commit in a handler: the bus ends`
	})
	registry.Handle(r, func(ctx context.Context, cmd Pay) (Placed, error) {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return Placed{}, err
		}
		defer tx.Rollback()
		return Placed{}, tx.Commit() // want `Commit in a handler: the rows are there`
	})
	registry.Handle(r, func(ctx context.Context, cmd Pay) (Placed, error) {
		tx, err := pool.Begin(ctx) // numbers that are taken before the call, whatever becomes of it
		if err != nil {
			return Placed{}, err
		}
		if err := tx.Commit(ctx); err != nil {
			return Placed{}, err
		}
		return Placed{}, pgstore.InTx(ctx, pool, func(ctx context.Context) error { return nil })
	})
	registry.Handle(r, func(ctx context.Context, cmd Note) (bus.None, error) {
		tx, err := pool.Begin(ctx)
		if err != nil {
			return bus.None{}, err
		}
		return bus.None{}, tx.Commit(ctx)
	})
}
