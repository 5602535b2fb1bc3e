package poolinatomic

import (
	"context"
	"database/sql"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore"
	"github.com/tekil-go/tekil/behaviors/idempotency/sqlitestore"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/registry"
)

type service struct {
	pool, catalog *pgxpool.Pool
	db            *sql.DB
	queries       func(pgstore.DBTX) queries
}

type queries struct{ db pgstore.DBTX }

func (q queries) insert(ctx context.Context) error { _, err := q.db.Exec(ctx, "INSERT"); return err }

func newQueries(db pgstore.DBTX) queries { return queries{db} }

func (s service) place(ctx context.Context, cmd Place) (Placed, error) {
	s.pool.Exec(ctx, "INSERT INTO orders VALUES ($1)", cmd.CartID) // want `Exec on the pool is not in the transaction`
	if err := s.write(ctx, cmd); err != nil {
		return Placed{}, err
	}
	return s.right(ctx, cmd)
}

// write is reached from a handler.
func (s service) write(ctx context.Context, cmd Place) error {
	if err := s.pool.Ping(ctx); err != nil {
		return err
	}
	return deeper(ctx, s.db)
}

func deeper(ctx context.Context, db *sql.DB) error {
	_, err := db.ExecContext(ctx, "INSERT") // want `ExecContext on the pool`
	tooDeep(ctx, db)
	return err
}

func tooDeep(ctx context.Context, db *sql.DB) { db.ExecContext(ctx, "INSERT") }

type table interface {
	insert(ctx context.Context) error
}

type plain struct{ pool *pgxpool.Pool }

func (p *plain) insert(ctx context.Context) error {
	_, err := p.pool.Exec(ctx, "INSERT") // want `Exec on the pool`
	return err
}

func placeIn(t table) func(context.Context, Place) (Placed, error) {
	return func(ctx context.Context, cmd Place) (Placed, error) { return Placed{}, t.insert(ctx) }
}

func (s service) right(ctx context.Context, cmd Place) (p Placed, err error) {
	err = pgstore.DB(ctx, s.pool).QueryRow(ctx, "INSERT").Scan(&p.OrderID)
	_, err = sqlitestore.DB(ctx, s.db).ExecContext(ctx, "INSERT")
	err = newQueries(pgstore.DB(ctx, s.pool)).insert(ctx)
	err = pgstore.InTx(ctx, s.pool, func(ctx context.Context) error { return s.queries(pgstore.DB(ctx, s.pool)).insert(ctx) })
	var price int
	err = s.catalog.QueryRow(ctx, "SELECT price FROM items").Scan(&price) // of another database
	return p, err
}

func wire(r *registry.Registry, s service) {
	registry.Handle(r, s.place)
	registry.Handle(r, func(ctx context.Context, cmd Place) (p Placed, err error) {
		err = s.pool.QueryRow(ctx, "SELECT id FROM orders").Scan(&p.OrderID)       // want `QueryRow on the pool`
		err = s.catalog.QueryRow(ctx, "INSERT INTO items VALUES (1)").Scan(&price) // want `QueryRow on the pool`
		err = newQueries(s.pool).insert(ctx)                                       // want `the pool is handed on`
		_, err = s.pool.Begin(ctx)                                                 // want `Begin on the pool`
		err = pgx.BeginFunc(ctx, s.pool, func(pgx.Tx) error { return nil })        // want `BeginFunc on the pool`
		go s.db.Query("SELECT 1")                                                  // want `Query on the pool`
		return p, err
	})
	registry.Handle(r, maker(s.pool))
	h := func(ctx context.Context, cmd Place) (p Placed, err error) {
		_, err = s.pool.Exec(ctx, "DELETE") // want `Exec on the pool`
		return p, err
	}
	registry.Handle(r, h)
	registry.Handle(r, generic[Place, Placed](s))
	registry.Handle(r, placeIn(&plain{s.pool}))
	registry.Handle(r, s.pay)
	registry.Handle(r, s.note)
	registry.Handle(r, s.later)
}

var price int

func maker(pool *pgxpool.Pool) func(context.Context, Place) (Placed, error) {
	pool.Exec(context.Background(), "CREATE TABLE orders ()") // before any command
	return func(ctx context.Context, cmd Place) (Placed, error) {
		_, err := pool.Exec(ctx, "INSERT") // want `Exec on the pool`
		return Placed{}, err
	}
}

func generic[C, R any](s service) func(context.Context, C) (R, error) {
	return func(ctx context.Context, _ C) (r R, err error) {
		_, err = s.pool.Exec(ctx, "INSERT") // want `Exec on the pool`
		return r, err
	}
}

// A Leased handler may read and write before its transaction.
func (s service) pay(ctx context.Context, cmd Pay) (Placed, error) {
	_, err := s.pool.Exec(ctx, "INSERT")
	return Placed{}, err
}

func (s service) note(ctx context.Context, cmd Note) (bus.None, error) {
	_, err := s.pool.Exec(ctx, "INSERT")
	return bus.None{}, err
}

func (s service) later(ctx context.Context, cmd Later) (Placed, error) {
	_, err := s.pool.Exec(ctx, "INSERT")
	return Placed{}, err
}

// Nobody registers this one.
func (s service) unused(ctx context.Context, cmd Place) (Placed, error) {
	_, err := s.pool.Exec(ctx, "INSERT")
	return Placed{}, err
}
