package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"time"

	_ "modernc.org/sqlite" // the driver

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/sqlitestore"
)

const sqliteSchema = `
CREATE TABLE IF NOT EXISTS orders (
	order_id TEXT PRIMARY KEY, cart_id TEXT NOT NULL, amount INTEGER NOT NULL, currency TEXT NOT NULL,
	status TEXT NOT NULL, email TEXT NOT NULL, draft_order_id TEXT NOT NULL, created_at INTEGER NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS authorizations (
	auth_id TEXT PRIMARY KEY, order_id TEXT NOT NULL UNIQUE REFERENCES orders, amount INTEGER NOT NULL, currency TEXT NOT NULL,
	created_at INTEGER NOT NULL) STRICT;`

// sqlite keeps orders in an SQLite file.
type sqlite struct{ db *sql.DB }

// defaultFile is a file in a folder of this program's under the user's cache directory. flag is what names another one.
func defaultFile(name, flag string) (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("there is no cache directory for the default database (%w); name a file with %s PATH", err, flag)
	}
	return filepath.Join(dir, "tekil-checkout", name), nil
}

// openFile opens or makes an SQLite file.
func openFile(path string) (*sql.DB, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	dsn := url.URL{Scheme: "file", Opaque: (&url.URL{Path: path}).EscapedPath(), RawQuery: url.Values{
		"_pragma": {"busy_timeout(5000)", "journal_mode(WAL)", "synchronous(FULL)", "foreign_keys(1)"},
	}.Encode()}
	return sql.Open("sqlite", dsn.String())
}

// openSQLite opens or makes the file and its tables and gives the store of records in the same file.
func openSQLite(ctx context.Context, path string) (orders, idempotency.Store, func(), error) {
	fail := func(err error) (orders, idempotency.Store, func(), error) {
		return nil, nil, nil, fmt.Errorf("-sqlite %s: %w", path, err)
	}
	db, err := openFile(path)
	if err != nil {
		return fail(err)
	}
	if err := sqlitestore.Migrate(ctx, db); err != nil {
		db.Close()
		return fail(err)
	}
	if _, err := db.ExecContext(ctx, sqliteSchema); err != nil {
		db.Close()
		return fail(err)
	}
	if _, err := (sqlite{db}).list(ctx, 0, ""); err != nil { // a table of that name may be another program's
		db.Close()
		return fail(err)
	}
	return sqlite{db}, sqlitestore.New(db), func() { db.Close() }, nil
}

func (s sqlite) inTx(ctx context.Context, fn func(ctx context.Context) error) error {
	return sqlitestore.InTx(ctx, s.db, fn)
}

func (s sqlite) insert(ctx context.Context, o Order, email string) error {
	db := sqlitestore.DB(ctx, s.db)
	if _, err := db.ExecContext(ctx, `INSERT INTO orders (order_id, cart_id, amount, currency, status, email, draft_order_id, created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)`,
		o.OrderID, o.CartID, o.Amount, o.Currency, o.Status, email, o.DraftOrderID, o.CreatedAt.UnixMilli()); err != nil {
		return err
	}
	done, err := db.ExecContext(ctx, `INSERT INTO authorizations (auth_id, order_id, amount, currency, created_at) VALUES (?, ?, ?, ?, ?) ON CONFLICT (auth_id) DO NOTHING`,
		o.AuthID, o.OrderID, o.Amount, o.Currency, o.CreatedAt.UnixMilli())
	if err != nil {
		return err
	}
	if rows, err := done.RowsAffected(); err != nil || rows > 0 {
		return err
	}
	return errOtherPayment
}

const sqliteOrder = `SELECT o.order_id, o.cart_id, o.amount, o.currency, a.auth_id, o.status, o.draft_order_id, o.created_at
	FROM orders o JOIN authorizations a USING (order_id) `

func scanSQLiteOrder(row interface{ Scan(...any) error }) (o Order, err error) {
	var created int64
	err = row.Scan(&o.OrderID, &o.CartID, &o.Amount, &o.Currency, &o.AuthID, &o.Status, &o.DraftOrderID, &created)
	o.CreatedAt = time.UnixMilli(created).UTC()
	return o, err
}

func (s sqlite) find(ctx context.Context, id string) (Order, error) {
	o, err := scanSQLiteOrder(sqlitestore.DB(ctx, s.db).QueryRowContext(ctx, sqliteOrder+`WHERE o.order_id = ?`, id))
	if errors.Is(err, sql.ErrNoRows) {
		return o, errNoOrder
	}
	return o, err
}

func (s sqlite) list(ctx context.Context, limit int, before string) ([]Order, error) {
	rows, err := sqlitestore.DB(ctx, s.db).QueryContext(ctx, sqliteOrder+`WHERE ?1 = '' OR o.order_id < ?1 ORDER BY o.order_id DESC LIMIT ?2`, before, limit)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var found []Order
	for rows.Next() {
		o, err := scanSQLiteOrder(rows)
		if err != nil {
			return nil, err
		}
		found = append(found, o)
	}
	return found, rows.Err()
}

func (s sqlite) holds(ctx context.Context, cart string, n int) (h holdings, err error) {
	err = s.db.QueryRowContext(ctx, `SELECT count(*), count(*) FILTER (WHERE cart_id = ?), (SELECT count(*) FROM authorizations) FROM orders`, cart).
		Scan(&h.orders, &h.ofCart, &h.authorizations)
	if err != nil {
		return h, err
	}
	rows, err := s.db.QueryContext(ctx, `SELECT operation, key, state, attempts, created_at, expires_at, coalesce(external_ref, '')
		FROM idempotency_records ORDER BY created_at DESC LIMIT ?`, n)
	if err != nil {
		return h, err
	}
	defer rows.Close()
	for rows.Next() {
		var r demoRecord
		var created, expires int64
		if err := rows.Scan(&r.Command, &r.Key, &r.State, &r.Attempts, &created, &expires, &r.ExternalRef); err != nil {
			return h, err
		}
		r.CreatedAt, r.ExpiresAt = time.UnixMilli(created).UTC(), time.UnixMilli(expires).UTC()
		h.records = append(h.records, r)
	}
	return h, rows.Err()
}

func (s sqlite) ping(ctx context.Context) error { return s.db.PingContext(ctx) }
