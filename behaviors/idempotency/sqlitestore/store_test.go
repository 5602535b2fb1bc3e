package sqlitestore_test

import (
	"context"
	"database/sql"
	"path/filepath"
	"testing"
	"time"

	_ "modernc.org/sqlite"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/sqlitestore"
	"github.com/tekil-go/tekil/behaviors/idempotency/storetest"
)

// openFile opens a database file with a plain data source name and the given query.
func openFile(t testing.TB, path, query string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.ToSlash(path)+query)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

// patiently is the query of connections that tests use beside the store: they wait for locks.
const patiently = "?_pragma=busy_timeout(30000)"

func mustExec(t testing.TB, db interface {
	ExecContext(context.Context, string, ...any) (sql.Result, error)
}, query string, args ...any) {
	t.Helper()
	if _, err := db.ExecContext(context.WithoutCancel(t.Context()), query, args...); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

func number(t testing.TB, db *sql.DB, query string, args ...any) (n int) {
	t.Helper()
	if err := db.QueryRowContext(context.WithoutCancel(t.Context()), query, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

// bundle is a migrated database with a table of business rows.
type bundle struct {
	path string
	// db has a plain data source name and is the store's.
	db *sql.DB
	// beside is for the test's own reads and writes.
	beside *sql.DB
	store  *sqlitestore.Store
}

func setup(t testing.TB) *bundle {
	t.Helper()
	return setupWith(t, "", sqlitestore.Config{})
}

func setupWith(t testing.TB, query string, cfg sqlitestore.Config) *bundle {
	t.Helper()
	b := &bundle{path: filepath.Join(t.TempDir(), "test.db")}
	b.beside = openFile(t, b.path, patiently)
	b.db = openFile(t, b.path, query)
	if err := sqlitestore.Migrate(t.Context(), b.beside); err != nil {
		t.Fatal(err)
	}
	mustExec(t, b.beside, `CREATE TABLE orders (id INTEGER PRIMARY KEY, note TEXT NOT NULL)`)
	b.store = sqlitestore.NewWithConfig(b.db, cfg)
	return b
}

// insert writes a business row as a handler does.
func (b *bundle) insert(ctx context.Context, note string) error {
	_, err := sqlitestore.DB(ctx, b.db).ExecContext(ctx, `INSERT INTO orders (note) VALUES (?)`, note)
	return err
}

func (b *bundle) orders(t testing.TB) int { return number(t, b.beside, `SELECT count(*) FROM orders`) }

func (b *bundle) records(t testing.TB) int {
	return number(t, b.beside, `SELECT count(*) FROM idempotency_records`)
}

// want compares the numbers of committed business rows and records.
func (b *bundle) want(t testing.TB, orders, records int) {
	t.Helper()
	if o, r := b.orders(t), b.records(t); o != orders || r != records {
		t.Errorf("there are %d orders and %d records, want %d and %d", o, r, orders, records)
	}
}

// claimOf is a claim on a key.
func claimOf(key string) idempotency.Claim {
	scope := idempotency.Scope{Client: "client-1", Operation: "test.order", Key: key}
	c := idempotency.Claim{ID: scope.ID(), Scope: scope, HashVersion: 1000, OriginRequestID: "request-1", Retention: time.Hour}
	copy(c.Attempt[:], key)
	return c
}

var success = idempotency.Completion{Result: []byte(`1`), ResultType: "result/0"}

func (b *bundle) begin(t testing.TB, key string) idempotency.Transaction {
	t.Helper()
	a, err := b.store.Begin(t.Context(), claimOf(key))
	if err != nil {
		t.Fatalf("Begin: %v", err)
	}
	t.Cleanup(func() { a.Rollback(context.Background()) })
	return a
}

// wantUsable makes a whole attempt, to see that the one before it has given everything back.
func (b *bundle) wantUsable(t testing.TB) {
	t.Helper()
	a := b.begin(t, "usable-"+t.Name())
	if err := b.insert(a.Context(t.Context()), "usable"); err != nil {
		t.Fatalf("the next attempt: %v", err)
	}
	if err := a.Complete(t.Context(), success); err != nil {
		t.Fatalf("the next attempt: %v", err)
	}
}

func TestStore_KeepsTheSpecification(t *testing.T) {
	t.Parallel()
	for name, query := range map[string]string{
		"plain":          "",
		"other settings": "?_txlock=immediate&_pragma=synchronous(0)&_pragma=busy_timeout(1)",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			storetest.Run(t, func(t *testing.T) storetest.Fixture { return setupWith(t, query, sqlitestore.Config{}).fixture() })
		})
	}
}

func TestStore_KeepsTheSpecificationOnAPoolOfOneConnection_BR29(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T) storetest.Fixture {
		b := setup(t)
		b.db.SetMaxOpenConns(1)
		f := b.fixture()
		f.Store = lookBeside{b.store, sqlitestore.New(b.beside)}
		return f
	})
}

// lookBeside reads on another pool, as the suite reads while a transaction holds the only connection.
type lookBeside struct {
	*sqlitestore.Store
	beside *sqlitestore.Store
}

func (s lookBeside) Look(ctx context.Context, c idempotency.Claim) (*idempotency.Record, error) {
	return s.beside.Look(ctx, c)
}

func (s lookBeside) Find(ctx context.Context, q idempotency.Search, limit int) ([]idempotency.Stored, error) {
	return s.beside.Find(ctx, q, limit)
}

func (b *bundle) fixture() storetest.Fixture {
	return storetest.Fixture{
		Store:  b.store,
		Insert: b.insert,
		Rows: func(t testing.TB) (notes []string) {
			rows, err := b.beside.QueryContext(context.WithoutCancel(t.Context()), `SELECT note FROM orders`)
			if err != nil {
				t.Fatal(err)
			}
			defer rows.Close()
			for rows.Next() {
				var note string
				if err := rows.Scan(&note); err != nil {
					t.Fatal(err)
				}
				notes = append(notes, note)
			}
			if err := rows.Err(); err != nil {
				t.Fatal(err)
			}
			return notes
		},
		InTx: func(ctx context.Context, fn func(context.Context) error) error {
			return sqlitestore.InTx(ctx, b.db, fn)
		},
		Records: b.records,
		Age: func(t testing.TB, d time.Duration) {
			mustExec(t, b.beside, `UPDATE idempotency_records SET created_at = created_at - ?1, completed_at = completed_at - ?1,
				lease_until = lease_until - ?1, expires_at = expires_at - ?1`, d.Milliseconds())
		},
		Plant: func(t testing.TB, id idempotency.ID, rec idempotency.Record) { b.plant(t, id, rec) },
	}
}

func (b *bundle) plant(t testing.TB, id idempotency.ID, rec idempotency.Record) {
	t.Helper()
	now := time.Now()
	expires, afterExpiry := now.Add(time.Hour), "reuse"
	if rec.Expired {
		expires = now.Add(-time.Hour)
	}
	if rec.AfterExpiry == idempotency.Tombstone {
		afterExpiry = "tombstone"
	}
	var outcome, lease any
	switch rec.State {
	case idempotency.Completed:
		outcome = int(rec.Outcome)
	case idempotency.InProgress:
		lease = now.Add(-time.Minute).UnixMilli()
		if rec.LeaseLeft > 0 {
			lease = now.Add(rec.LeaseLeft).UnixMilli()
		}
	}
	mustExec(t, b.beside, `INSERT INTO idempotency_records (id, tenant, client, operation, key, request_hash, hash_version, state, after_expiry, attempt,
		attempts, fence, lease_until, outcome, result, result_type, origin_request_id, external_ref, draft_id, created_at, expires_at, origin_trace)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, nullif(?, ''), ?, nullif(?, ''), nullif(?, ''), ?, ?, nullif(?, ''))`,
		id[:], rec.Scope.Tenant, rec.Scope.Client, rec.Scope.Operation, rec.Scope.Key, rec.Hash[:], rec.HashVersion, string(rec.State), afterExpiry,
		rec.Attempt[:], max(rec.Attempts, 1), max(rec.Fence, 1), lease, outcome, rec.Result, rec.ResultType, rec.OriginRequestID, rec.ExternalRef, rec.DraftID, now.UnixMilli(), expires.UnixMilli(), rec.OriginTrace)
}
