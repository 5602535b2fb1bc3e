package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore"
)

const postgresSchema = `
CREATE TABLE IF NOT EXISTS orders (
	order_id text COLLATE "C" PRIMARY KEY, cart_id text NOT NULL, amount bigint NOT NULL, currency text NOT NULL,
	status text NOT NULL, email text NOT NULL, draft_order_id text NOT NULL, created_at timestamptz NOT NULL);
CREATE TABLE IF NOT EXISTS authorizations (
	auth_id text PRIMARY KEY, order_id text COLLATE "C" NOT NULL UNIQUE REFERENCES orders, amount bigint NOT NULL, currency text NOT NULL,
	created_at timestamptz NOT NULL);`

// postgres keeps orders in PostgreSQL.
type postgres struct{ pool *pgxpool.Pool }

// openPostgres connects, makes the tables and gives the store of records on the same pool.
func openPostgres(ctx context.Context, url string) (orders, idempotency.Store, func(), error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("-postgres: %w", err)
	}
	pgstore.Configure(cfg)
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("-postgres: %w", err)
	}
	if err := pgstore.Migrate(ctx, pool); err != nil {
		pool.Close()
		return nil, nil, nil, fmt.Errorf("-postgres: %w", err)
	}
	// Two servers may start at once, and CREATE TABLE IF NOT EXISTS does not wait for the other: a lock does.
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended('checkout schema', 0))`); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, postgresSchema)
		return err
	})
	if err == nil {
		_, err = postgres{pool}.list(ctx, 0, "") // a table of that name may be another program's
	}
	if err != nil {
		pool.Close()
		return nil, nil, nil, fmt.Errorf("-postgres: %w", err)
	}
	return postgres{pool}, pgstore.New(pool), pool.Close, nil
}

func (p postgres) inTx(ctx context.Context, fn func(ctx context.Context) error) error {
	return pgstore.InTx(ctx, p.pool, fn)
}

func (p postgres) insert(ctx context.Context, o Order, email string) error {
	b := &pgx.Batch{}
	b.Queue(`INSERT INTO orders (order_id, cart_id, amount, currency, status, email, draft_order_id, created_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)`,
		o.OrderID, o.CartID, o.Amount, o.Currency, o.Status, email, o.DraftOrderID, o.CreatedAt)
	b.Queue(`INSERT INTO authorizations (auth_id, order_id, amount, currency, created_at) VALUES ($1, $2, $3, $4, $5) ON CONFLICT (auth_id) DO NOTHING`,
		o.AuthID, o.OrderID, o.Amount, o.Currency, o.CreatedAt).Exec(func(done pgconn.CommandTag) error {
		if done.RowsAffected() == 0 {
			return errOtherPayment
		}
		return nil
	})
	return pgstore.DB(ctx, p.pool).SendBatch(ctx, b).Close()
}

const postgresOrder = `SELECT o.order_id, o.cart_id, o.amount, o.currency, a.auth_id, o.status, o.draft_order_id, o.created_at
	FROM orders o JOIN authorizations a USING (order_id) `

func scanOrder(row interface{ Scan(...any) error }) (o Order, err error) {
	err = row.Scan(&o.OrderID, &o.CartID, &o.Amount, &o.Currency, &o.AuthID, &o.Status, &o.DraftOrderID, &o.CreatedAt)
	o.CreatedAt = o.CreatedAt.UTC()
	return o, err
}

func (p postgres) find(ctx context.Context, id string) (Order, error) {
	o, err := scanOrder(pgstore.DB(ctx, p.pool).QueryRow(ctx, postgresOrder+`WHERE o.order_id = $1`, id))
	if errors.Is(err, pgx.ErrNoRows) {
		return o, errNoOrder
	}
	return o, err
}

func (p postgres) list(ctx context.Context, limit int, before string) ([]Order, error) {
	rows, err := pgstore.DB(ctx, p.pool).Query(ctx, postgresOrder+`WHERE $1 = '' OR o.order_id < $1 ORDER BY o.order_id DESC LIMIT $2`, before, limit)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (Order, error) { return scanOrder(row) })
}

func (p postgres) holds(ctx context.Context, cart string, n int) (h holdings, err error) {
	err = p.pool.QueryRow(ctx, `SELECT count(*), count(*) FILTER (WHERE cart_id = $1), (SELECT count(*) FROM authorizations) FROM orders`, cart).
		Scan(&h.orders, &h.ofCart, &h.authorizations)
	if err != nil {
		return h, err
	}
	rows, err := p.pool.Query(ctx, `SELECT operation, key, state, attempts, created_at, expires_at, coalesce(external_ref, '')
		FROM idempotency_records ORDER BY created_at DESC LIMIT $1`, n)
	if err != nil {
		return h, err
	}
	h.records, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (r demoRecord, err error) {
		err = row.Scan(&r.Command, &r.Key, &r.State, &r.Attempts, &r.CreatedAt, &r.ExpiresAt, &r.ExternalRef)
		r.CreatedAt, r.ExpiresAt = r.CreatedAt.UTC(), r.ExpiresAt.UTC()
		return r, err
	})
	return h, err
}

func (p postgres) ping(ctx context.Context) error { return p.pool.Ping(ctx) }
