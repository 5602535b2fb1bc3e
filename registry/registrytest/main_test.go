package registrytest_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"
	_ "modernc.org/sqlite"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/memstore"
	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore"
	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore/pgtest"
	"github.com/tekil-go/tekil/behaviors/idempotency/sqlitestore"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/registry"
	"github.com/tekil-go/tekil/registry/registrytest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// place is an Atomic command, and charge a Leased one.
type place struct {
	Cart   string `json:"cart" validate:"required"`
	Amount int64  `json:"amount" validate:"gt=0"`
}

func (place) CommandName() bus.Name[placed] { return "orders.place" }
func (place) Idempotent()                   {}

type placed struct {
	OrderID string `json:"order_id"`
}

type charge struct {
	Cart   string `json:"cart" validate:"required"`
	Amount int64  `json:"amount" validate:"gt=0"`
}

func (charge) CommandName() bus.Name[placed] { return "orders.charge" }
func (charge) Idempotency() idempotency.Policy {
	return idempotency.Policy{Mode: idempotency.Leased}
}

// database is an application's, whichever it is.
type database struct {
	store  idempotency.Store
	insert func(ctx context.Context, id string) error                          // as a handler should
	beside func(ctx context.Context, id string) error                          // as it should not
	inTx   func(ctx context.Context, fn func(ctx context.Context) error) error // the store's
	ownTx  func(ctx context.Context, id string) error                          // begun and committed by the handler
	text   func(ctx context.Context, statement string) error                   // sent through the handler's transaction
	rows   func() int
	age    func(d time.Duration)
}

func onPostgres(t *testing.T) database { return onPostgresOf(t, pgtest.Pool(t)) }

func onPostgresOf(t *testing.T, pool *pgxpool.Pool) database {
	exec := func(ctx context.Context, db interface {
		Exec(context.Context, string, ...any) (pgconn.CommandTag, error)
	}, sql string, args ...any) error {
		_, err := db.Exec(ctx, sql, args...)
		return err
	}
	const insert = `INSERT INTO orders (id) VALUES ($1)`
	if err := pgstore.Migrate(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	if err := exec(t.Context(), pool, `CREATE TABLE orders (id text PRIMARY KEY)`); err != nil {
		t.Fatal(err)
	}
	return database{
		store:  pgstore.New(pool),
		insert: func(ctx context.Context, id string) error { return exec(ctx, pgstore.DB(ctx, pool), insert, id) },
		beside: func(ctx context.Context, id string) error { return exec(ctx, pool, insert, id) },
		inTx: func(ctx context.Context, fn func(ctx context.Context) error) error {
			return pgstore.InTx(ctx, pool, fn)
		},
		ownTx: func(ctx context.Context, id string) error {
			tx, err := pool.Begin(ctx)
			if err != nil {
				return err
			}
			defer func() { _ = tx.Rollback(ctx) }()
			if err := exec(ctx, tx, insert, id); err != nil {
				return err
			}
			return tx.Commit(ctx)
		},
		text: func(ctx context.Context, statement string) error { return exec(ctx, pgstore.DB(ctx, pool), statement) },
		rows: func() int { return countRows(t, pool) },
		age:  pgtest.Age(t, pool),
	}
}

func countRows(t *testing.T, pool *pgxpool.Pool) (n int) {
	if err := pool.QueryRow(context.Background(), `SELECT count(*) FROM orders`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func openSQLite(t *testing.T) *sql.DB {
	db, err := sql.Open("sqlite", "file:"+filepath.ToSlash(filepath.Join(t.TempDir(), "shop.db"))+"?_pragma=busy_timeout(500)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	if err := sqlitestore.Migrate(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	if _, err := db.ExecContext(t.Context(), `CREATE TABLE orders (id TEXT PRIMARY KEY)`); err != nil {
		t.Fatal(err)
	}
	return db
}

func onSQLite(t *testing.T) database { return onSQLiteOf(t, openSQLite(t)) }

func onSQLiteOf(t *testing.T, db *sql.DB) database {
	const insert = `INSERT INTO orders (id) VALUES (?)`
	return database{
		store: sqlitestore.New(db),
		insert: func(ctx context.Context, id string) error {
			_, err := sqlitestore.DB(ctx, db).ExecContext(ctx, insert, id)
			return err
		},
		beside: func(ctx context.Context, id string) error {
			_, err := db.ExecContext(ctx, insert, id)
			return err
		},
		inTx: func(ctx context.Context, fn func(ctx context.Context) error) error {
			return sqlitestore.InTx(ctx, db, fn)
		},
		rows: func() (n int) {
			if err := db.QueryRowContext(context.Background(), `SELECT count(*) FROM orders`).Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n
		},
		age: registrytest.AgeSQLite(t, db),
	}
}

func inMemory(*testing.T) database {
	s := memstore.New()
	return database{
		store: s, insert: s.Insert, beside: func(_ context.Context, id string) error { return s.Insert(context.Background(), id) },
		inTx: s.InTx, rows: func() int { return len(s.Rows()) }, age: s.Age,
	}
}

// system is the database with handlers on it.
func (d database) system(register func(reg *registry.Registry)) registrytest.System {
	return registrytest.System{Config: registry.Config{Store: d.store}, Register: register, Rows: d.rows, Age: d.age}
}

// sending is the database with handlers on it that send commands: b gives the bus of their process.
func (d database) sending(register func(reg *registry.Registry, b func() *bus.Bus)) registrytest.System {
	var last **bus.Bus
	s := d.system(func(reg *registry.Registry) {
		own := new(*bus.Bus)
		last = own
		register(reg, func() *bus.Bus { return *own })
	})
	s.Built = func(b *bus.Bus) { *last = b }
	return s
}

func (d database) counted() int { return d.rows() }

// provider is a fake of the outside that honours keys.
type provider struct {
	mu   sync.Mutex
	held map[string]bool
	all  int
}

// authorize does its work, under the key where there is one, and answers, if it can.
func (p *provider) authorize(ctx context.Context, key string) error {
	p.mu.Lock()
	if p.held == nil {
		p.held = make(map[string]bool)
	}
	if key == "" || !p.held[key] {
		p.held[key] = true
		p.all++
	}
	p.mu.Unlock()
	return registrytest.CalledOut(ctx)
}

func (p *provider) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.all
}

func validPlace() place   { return place{"cart-1", 4990} }
func validCharge() charge { return charge{"cart-1", 4990} }

func caseOfPlace(open func(t *testing.T) registrytest.System) registrytest.Case[place, placed] {
	return registrytest.Case[place, placed]{
		Open: open, Valid: validPlace,
		Edited:  func() place { return place{"cart-1", 5990} },
		Invalid: func() place { return place{"cart-1", 0} },
	}
}

func caseOfCharge(open func(t *testing.T) registrytest.System) registrytest.Case[charge, placed] {
	return registrytest.Case[charge, placed]{
		Open: open, Valid: validCharge,
		Edited:  func() charge { return charge{"cart-1", 5990} },
		Invalid: func() charge { return charge{"", 4990} },
	}
}

// each runs f on each kind of database.
func each(t *testing.T, f func(t *testing.T, open func(t *testing.T) database)) {
	for name, open := range map[string]func(t *testing.T) database{"PostgreSQL": onPostgres, "SQLite": onSQLite, "memory": inMemory} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, open)
		})
	}
}

// newOrder is an order that nobody has.
func newOrder() placed { return placed{rand.Text()} }

func (p *provider) knows(key string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.held[key]
}
