package main

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	wmsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore"
)

// Nothing but the shipments has a natural key, so that a message which is handled twice can be seen. The outbox is Watermill's.
const postgresSchema = `
CREATE TABLE IF NOT EXISTS orders (
	order_id text PRIMARY KEY, item text NOT NULL, amount bigint NOT NULL, email text NOT NULL, collected boolean NOT NULL);
CREATE TABLE IF NOT EXISTS mails (
	mail_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, order_id text NOT NULL, email text NOT NULL);
CREATE INDEX IF NOT EXISTS mails_by_order ON mails (order_id);
CREATE TABLE IF NOT EXISTS shipments (
	order_id text PRIMARY KEY, item text, state text NOT NULL CHECK (state IN ('open', 'closed')));
CREATE TABLE IF NOT EXISTS invoices (
	invoice_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, order_id text NOT NULL, amount bigint NOT NULL);
CREATE INDEX IF NOT EXISTS invoices_by_order ON invoices (order_id);`

// postgresConns is the size of the pool: for each worker of a consumer, the forwarder and who places orders.
const postgresConns = 16

// postgres keeps everything in PostgreSQL.
type postgres struct{ pool *pgxpool.Pool }

// openPostgres connects and makes the tables.
func openPostgres(ctx context.Context, url string) (_ postgres, err error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return postgres{}, err
	}
	pgstore.Configure(cfg)
	cfg.MaxConns = max(cfg.MaxConns, postgresConns)
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return postgres{}, err
	}
	p := postgres{pool}
	defer func() {
		if err != nil {
			pool.Close()
		}
	}()
	if err = pgstore.Migrate(ctx, pool); err != nil {
		return p, err
	}
	// Two programs may start at once, and CREATE TABLE IF NOT EXISTS does not wait for the other: a lock does.
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended('consumer schema', 0))`); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, postgresSchema)
		return err
	})
	if err != nil {
		return p, err
	}
	sub, err := p.subscriber(nil)
	if err != nil {
		return p, err
	}
	if err = sub.SubscribeInitialize(outboxTopic); err != nil {
		return p, err
	}
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return p, err
	}
	defer conn.Release()
	_, err = conn.Conn().Prepare(ctx, "", postgresCount) // a table of that name may be another program's
	return p, err
}

func (p postgres) exec(ctx context.Context, query string, args ...any) error {
	_, err := pgstore.DB(ctx, p.pool).Exec(ctx, query, args...)
	return err
}

func (p postgres) insertOrder(ctx context.Context, o Order, collected bool) error {
	return p.exec(ctx, `INSERT INTO orders (order_id, item, amount, email, collected) VALUES ($1, $2, $3, $4, $5)`,
		o.OrderID, o.Item, o.Amount, o.Email, collected)
}

func (p postgres) insertMail(ctx context.Context, orderID, email string) error {
	return p.exec(ctx, `INSERT INTO mails (order_id, email) VALUES ($1, $2)`, orderID, email)
}

func (p postgres) ship(ctx context.Context, orderID, item string) error {
	return p.exec(ctx, `INSERT INTO shipments (order_id, item, state) VALUES ($1, $2, 'open') ON CONFLICT (order_id) DO NOTHING`, orderID, item)
}

func (p postgres) closeShipment(ctx context.Context, orderID string) error {
	return p.exec(ctx, `INSERT INTO shipments (order_id, state) VALUES ($1, 'closed') ON CONFLICT (order_id) DO UPDATE SET state = 'closed'`, orderID)
}

func (p postgres) insertInvoice(ctx context.Context, orderID string, amount int64) error {
	return p.exec(ctx, `INSERT INTO invoices (order_id, amount) VALUES ($1, $2)`, orderID, amount)
}

// postgresUnsent is how many rows stand behind the one that the forwarder has sent last.
const postgresUnsent = `(SELECT count(*) FROM watermill_outbox m WHERE NOT EXISTS (SELECT 1 FROM watermill_offsets_outbox o
	WHERE (o.last_processed_transaction_id, o.offset_acked) >= (m.transaction_id, m."offset")))`

const postgresCount = `SELECT
	(SELECT count(*) FROM orders), (SELECT count(*) FROM orders WHERE collected),
	(SELECT count(*) FROM watermill_outbox), ` + postgresUnsent + `,
	(SELECT count(*) FROM mails), (SELECT count(*) FROM shipments), (SELECT count(*) FROM shipments WHERE state = 'closed'),
	(SELECT count(*) FROM invoices),
	(SELECT count(*) FROM orders o WHERE (SELECT count(*) FROM mails WHERE order_id = o.order_id) <> 1
		OR (SELECT count(*) FROM invoices WHERE order_id = o.order_id) <> 1
		OR NOT EXISTS (SELECT 1 FROM shipments WHERE order_id = o.order_id AND (state = 'closed') = o.collected))`

func (p postgres) count(ctx context.Context) (n rows, err error) {
	err = p.pool.QueryRow(ctx, postgresCount).Scan(&n.orders, &n.collected, &n.events, &n.unsent, &n.mails, &n.shipments, &n.closed, &n.invoices, &n.wrong)
	return n, err
}

func (p postgres) unsent(ctx context.Context) (n int, err error) {
	err = p.pool.QueryRow(ctx, `SELECT `+postgresUnsent).Scan(&n)
	return n, err
}

// postgresRows is the outbox. Its ids are those of the envelopes; the events' own, which are longer, are inside.
var postgresRows = wmsql.DefaultPostgreSQLSchema{SubscribeBatchSize: outboxBatch}

func (p postgres) write(ctx context.Context, topic string, m *message.Message) error {
	pub, err := wmsql.NewPublisher(pgHandle{pgstore.DB(ctx, p.pool)}, wmsql.PublisherConfig{SchemaAdapter: postgresRows}, nil)
	if err != nil {
		return err
	}
	return forwarder.NewPublisher(pub, forwarder.PublisherConfig{ForwarderTopic: outboxTopic}).Publish(topic, m)
}

func (p postgres) subscriber(logger watermill.LoggerAdapter) (*wmsql.Subscriber, error) {
	sub, err := wmsql.NewSubscriber(wmsql.BeginnerFromPgx(p.pool), wmsql.SubscriberConfig{
		SchemaAdapter: postgresRows, OffsetsAdapter: wmsql.DefaultPostgreSQLOffsetsAdapter{},
		PollInterval: pollTime, RetryInterval: retryTime, ResendInterval: retryTime,
	}, logger)
	if err != nil {
		return nil, fmt.Errorf("outbox: %w", err)
	}
	return sub, nil
}

// outbox gives the rows in their order, shuffled or not: the copies alone are sent in any.
func (p postgres) outbox(_ bool, logger watermill.LoggerAdapter) (message.Subscriber, error) {
	return p.subscriber(logger)
}

func (p postgres) store() idempotency.Store { return pgstore.New(p.pool) }

func (p postgres) close() { p.pool.Close() }

// pgHandle is what Watermill writes through.
type pgHandle struct{ pgstore.DBTX }

func (h pgHandle) ExecContext(ctx context.Context, query string, args ...any) (wmsql.Result, error) {
	done, err := h.Exec(ctx, query, args...)
	return wmsql.PgxResult{CommandTag: done}, err
}

func (h pgHandle) QueryContext(ctx context.Context, query string, args ...any) (wmsql.Rows, error) {
	found, err := h.Query(ctx, query, args...)
	return wmsql.PgxRows{Rows: found}, err
}
