package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/ThreeDotsLabs/watermill"
	wmsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	_ "modernc.org/sqlite" // the driver

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/sqlitestore"
)

// Nothing but the shipments has a natural key, so that a message which is handled twice can be seen.
const sqliteSchema = `
CREATE TABLE IF NOT EXISTS orders (
	order_id TEXT PRIMARY KEY, item TEXT NOT NULL, amount INTEGER NOT NULL, email TEXT NOT NULL, collected INTEGER NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS outbox (
	id INTEGER PRIMARY KEY AUTOINCREMENT, uuid TEXT NOT NULL, payload BLOB NOT NULL, metadata BLOB NOT NULL,
	sent INTEGER NOT NULL DEFAULT 0) STRICT;
CREATE INDEX IF NOT EXISTS outbox_unsent ON outbox (id) WHERE sent = 0;
CREATE TABLE IF NOT EXISTS mails (
	mail_id INTEGER PRIMARY KEY, order_id TEXT NOT NULL, email TEXT NOT NULL) STRICT;
CREATE INDEX IF NOT EXISTS mails_by_order ON mails (order_id);
CREATE TABLE IF NOT EXISTS shipments (
	order_id TEXT PRIMARY KEY, item TEXT, state TEXT NOT NULL CHECK (state IN ('open', 'closed'))) STRICT;
CREATE TABLE IF NOT EXISTS invoices (
	invoice_id INTEGER PRIMARY KEY, order_id TEXT NOT NULL, amount INTEGER NOT NULL) STRICT;
CREATE INDEX IF NOT EXISTS invoices_by_order ON invoices (order_id);`

// sqlite keeps everything in an SQLite file.
type sqlite struct{ db *sql.DB }

// openSQLite opens or makes the file and its tables.
func openSQLite(ctx context.Context, path string) (_ sqlite, err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return sqlite{}, err
	}
	dsn := url.URL{Scheme: "file", Opaque: (&url.URL{Path: path}).EscapedPath(), RawQuery: url.Values{
		"_pragma": {"busy_timeout(10000)", "journal_mode(WAL)", "synchronous(FULL)"},
	}.Encode()}
	db, err := sql.Open("sqlite", dsn.String())
	if err != nil {
		return sqlite{}, err
	}
	if err = sqlitestore.Migrate(ctx, db); err == nil {
		_, err = db.ExecContext(ctx, sqliteSchema)
	}
	if err == nil {
		_, err = sqlite{db}.count(ctx) // a table of that name may be another program's
	}
	if err != nil {
		db.Close()
		return sqlite{}, err
	}
	return sqlite{db}, nil
}

func (s sqlite) exec(ctx context.Context, query string, args ...any) error {
	_, err := sqlitestore.DB(ctx, s.db).ExecContext(ctx, query, args...)
	return err
}

func (s sqlite) insertOrder(ctx context.Context, o Order, collected bool) error {
	return s.exec(ctx, `INSERT INTO orders (order_id, item, amount, email, collected) VALUES (?, ?, ?, ?, ?)`,
		o.OrderID, o.Item, o.Amount, o.Email, collected)
}

func (s sqlite) insertMail(ctx context.Context, orderID, email string) error {
	return s.exec(ctx, `INSERT INTO mails (order_id, email) VALUES (?, ?)`, orderID, email)
}

func (s sqlite) ship(ctx context.Context, orderID, item string) error {
	return s.exec(ctx, `INSERT INTO shipments (order_id, item, state) VALUES (?, ?, 'open') ON CONFLICT (order_id) DO NOTHING`, orderID, item)
}

func (s sqlite) closeShipment(ctx context.Context, orderID string) error {
	return s.exec(ctx, `INSERT INTO shipments (order_id, state) VALUES (?, 'closed') ON CONFLICT (order_id) DO UPDATE SET state = 'closed'`, orderID)
}

func (s sqlite) insertInvoice(ctx context.Context, orderID string, amount int64) error {
	return s.exec(ctx, `INSERT INTO invoices (order_id, amount) VALUES (?, ?)`, orderID, amount)
}

func (s sqlite) count(ctx context.Context) (n rows, err error) {
	err = s.db.QueryRowContext(ctx, `SELECT
		(SELECT count(*) FROM orders), (SELECT count(*) FROM orders WHERE collected),
		(SELECT count(*) FROM outbox), (SELECT count(*) FROM outbox WHERE sent = 0),
		(SELECT count(*) FROM mails), (SELECT count(*) FROM shipments), (SELECT count(*) FROM shipments WHERE state = 'closed'),
		(SELECT count(*) FROM invoices),
		(SELECT count(*) FROM orders o WHERE (SELECT count(*) FROM mails WHERE order_id = o.order_id) <> 1
			OR (SELECT count(*) FROM invoices WHERE order_id = o.order_id) <> 1
			OR NOT EXISTS (SELECT 1 FROM shipments WHERE order_id = o.order_id AND (state = 'closed') = o.collected))`,
	).Scan(&n.orders, &n.collected, &n.events, &n.unsent, &n.mails, &n.shipments, &n.closed, &n.invoices, &n.wrong)
	return n, err
}

func (s sqlite) unsent(ctx context.Context) (n int, err error) {
	err = s.db.QueryRowContext(ctx, `SELECT count(*) FROM outbox WHERE sent = 0`).Scan(&n)
	return n, err
}

func (s sqlite) write(ctx context.Context, topic string, m *message.Message) error {
	pub, err := wmsql.NewPublisher(handle{sqlitestore.DB(ctx, s.db)}, wmsql.PublisherConfig{SchemaAdapter: outboxRows{}}, nil)
	if err != nil {
		return err
	}
	return forwarder.NewPublisher(pub, forwarder.PublisherConfig{ForwarderTopic: outboxTopic}).Publish(topic, m)
}

// outbox gives the rows that have not been sent.
func (s sqlite) outbox(shuffled bool, logger watermill.LoggerAdapter) (message.Subscriber, error) {
	return wmsql.NewSubscriber(reader{handle{s.db}}, wmsql.SubscriberConfig{
		SchemaAdapter: outboxRows{shuffled}, OffsetsAdapter: outboxMarks{},
		PollInterval: pollTime, RetryInterval: retryTime, ResendInterval: retryTime,
	}, logger)
}

func (s sqlite) store() idempotency.Store { return sqlitestore.New(s.db) }

func (s sqlite) close() { s.db.Close() }

// handle is what Watermill writes through.
type handle struct{ sqlitestore.DBTX }

func (h handle) ExecContext(ctx context.Context, query string, args ...any) (wmsql.Result, error) {
	return h.DBTX.ExecContext(ctx, query, args...)
}

func (h handle) QueryContext(ctx context.Context, query string, args ...any) (wmsql.Rows, error) {
	return h.DBTX.QueryContext(ctx, query, args...)
}

// reader is what the forwarder reads the outbox through. It has no transaction round reading, sending and marking, as Watermill's
// subscriber would have: it would hold SQLite's only write lock while the broker is asked. Two forwarders on one outbox would both
// send a row, which costs time and does no harm.
type reader struct{ handle }

func (r reader) BeginTx(context.Context, *sql.TxOptions) (wmsql.Tx, error) { return r, nil }

// ExecContext marks rows also at the end of the program, so that what has been sent is not sent again.
func (r reader) ExecContext(ctx context.Context, query string, args ...any) (wmsql.Result, error) {
	return r.handle.ExecContext(context.WithoutCancel(ctx), query, args...)
}

func (reader) Commit() error { return nil }

func (reader) Rollback() error { return nil }

// outboxRows tells Watermill's SQL component the SQL of the outbox.
type outboxRows struct{ shuffled bool }

func (outboxRows) InsertQuery(p wmsql.InsertQueryParams) (q wmsql.Query, err error) {
	for _, m := range p.Msgs {
		metadata, err := json.Marshal(m.Metadata)
		if err != nil {
			return q, err
		}
		q.Args = append(q.Args, m.UUID, []byte(m.Payload), metadata)
	}
	q.Query = `INSERT INTO outbox (uuid, payload, metadata) VALUES ` + strings.TrimSuffix(strings.Repeat("(?, ?, ?), ", len(p.Msgs)), ", ")
	return q, nil
}

func (o outboxRows) SelectQuery(wmsql.SelectQueryParams) (wmsql.Query, error) {
	order := "id"
	if o.shuffled {
		order = "random()"
	}
	return wmsql.Query{Query: fmt.Sprintf(`SELECT id, uuid, payload, metadata FROM outbox WHERE sent = 0 ORDER BY %s LIMIT %d`, order, outboxBatch)}, nil
}

func (outboxRows) UnmarshalMessage(p wmsql.UnmarshalMessageParams) (r wmsql.Row, err error) {
	if err := p.Row.Scan(&r.Offset, &r.UUID, &r.Payload, &r.Metadata); err != nil {
		return r, err
	}
	r.Msg = message.NewMessage(string(r.UUID), r.Payload)
	return r, json.Unmarshal(r.Metadata, &r.Msg.Metadata)
}

func (outboxRows) SchemaInitializingQueries(wmsql.SchemaInitializingQueriesParams) ([]wmsql.Query, error) {
	return nil, nil // openSQLite makes the table
}

func (outboxRows) SubscribeIsolationLevel() sql.IsolationLevel { return sql.LevelDefault }

// outboxMarks marks the rows that the broker has.
type outboxMarks struct{}

func (outboxMarks) AckMessageQuery(p wmsql.AckMessageQueryParams) (q wmsql.Query, err error) {
	for _, r := range p.Rows { // those behind LastRow have not been sent
		q.Args = append(q.Args, r.Offset)
		if r.Offset == p.LastRow.Offset {
			break
		}
	}
	q.Query = `UPDATE outbox SET sent = 1 WHERE id IN (` + strings.TrimSuffix(strings.Repeat("?, ", len(q.Args)), ", ") + `)`
	return q, nil
}

func (outboxMarks) ConsumedMessageQuery(wmsql.ConsumedMessageQueryParams) (wmsql.Query, error) {
	return wmsql.Query{}, nil
}

func (outboxMarks) NextOffsetQuery(wmsql.NextOffsetQueryParams) (wmsql.Query, error) {
	return wmsql.Query{}, nil // a row is marked, and not passed
}

func (outboxMarks) SchemaInitializingQueries(wmsql.OffsetsSchemaInitializingQueriesParams) ([]wmsql.Query, error) {
	return nil, nil
}

func (outboxMarks) BeforeSubscribingQueries(wmsql.BeforeSubscribingQueriesParams) ([]wmsql.Query, error) {
	return nil, nil
}
