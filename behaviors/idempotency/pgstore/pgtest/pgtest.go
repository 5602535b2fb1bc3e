package pgtest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// TB is what this package needs of a test. A [testing.TB] is one; [Example] is one for Example functions.
type TB interface {
	Helper()
	Name() string
	Failed() bool
	Logf(format string, args ...any)
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Cleanup(func())
}

// schemaPrefix begins the name of every schema made here. After it comes the second it was made in, in hexadecimal,
// so that names sort by age.
const schemaPrefix = "tekil_test_"

const (
	// keepSchema is how long the schema of a failed test is kept on a server that outlives the tests.
	keepSchema = 24 * time.Hour
	// adminTimeout bounds making and dropping a schema, waiting for locks included.
	adminTimeout = 30 * time.Second
	// closeTimeout is how long a pool may take to get its connections back at the end of a test.
	closeTimeout = 20 * time.Second // pgx gives a connection that it cuts 15 s to say farewell
)

// Database is one test's own schema on the shared server. Make it with [Open]. Its methods are safe for concurrent use;
// those that make something end it with the test that the Database was opened for.
type Database struct {
	tb     TB
	schema string
	url    string
	pool   func() *pgxpool.Pool
}

// Open makes an empty schema for the test tb and drops it at the end, with everything in it, unless the test failed.
// Connections made from the Database have it as their whole search_path, and its name as their application_name, so
// that a test can find its own sessions in pg_stat_activity; those that are still there at the end are terminated.
//
// A schema that a failed test has left is there for a look on a server named by TEKIL_TEST_POSTGRES, until an Open
// that comes a day later drops it. The private server goes away after the last test, and the schema with it.
//
// Open calls tb.Fatalf where there is no server or the schema cannot be made. It never skips.
func Open(tb TB) *Database {
	tb.Helper()
	base, private := serverURL(tb)
	schema := schemaName(tb.Name(), time.Now())
	address, err := withSchema(base, schema)
	if err != nil {
		tb.Fatalf("pgtest: the server's address: %v", err)
	}
	d := &Database{tb: tb, schema: schema, url: address}
	d.pool = sync.OnceValue(func() *pgxpool.Pool { return NewPool(tb, d.PoolConfig()) })

	if err := admin(base, func(ctx context.Context, conn *pgx.Conn) error {
		if !private {
			dropOld(ctx, conn)
		}
		_, err := conn.Exec(ctx, "CREATE SCHEMA "+schema)
		return err
	}); err != nil {
		tb.Fatalf("pgtest: make a schema for %s: %v", tb.Name(), err)
	}
	tb.Cleanup(func() {
		tb.Helper()
		if tb.Failed() {
			if !private {
				tb.Logf("pgtest: the test failed, so its schema %s is kept for a day", schema)
			}
			return
		}
		if err := admin(base, func(ctx context.Context, conn *pgx.Conn) error { return drop(ctx, conn, schema) }); err != nil {
			tb.Errorf("pgtest: drop the schema %s: %v", schema, err)
		}
	})
	return d
}

// Pool is Open(tb).Pool(): a pool on a schema of the test's own, for tests that need nothing else.
func Pool(tb TB) *pgxpool.Pool {
	tb.Helper()
	return Open(tb).Pool()
}

// NewPool makes a pool from a config of [Database.PoolConfig] or [Proxy.PoolConfig] that the test has changed, and closes
// it at the end of the test. Like [pgxpool.NewWithConfig] it does not wait for a first connection. A connection that
// the test has not given back at its end is an error of the test, not a hang.
func NewPool(tb TB, config *pgxpool.Config) *pgxpool.Pool {
	tb.Helper()
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		tb.Fatalf("pgtest: make a pool: %v", err)
	}
	tb.Cleanup(func() {
		tb.Helper()
		if !closeWithin(pool, closeTimeout) {
			tb.Errorf("pgtest: %d connections of the pool were not given back by the end of the test: a transaction without "+
				"Rollback or rows without Close", pool.Stat().AcquiredConns())
		}
	})
	return pool
}

// closeWithin closes the pool and reports whether it was done in time.
func closeWithin(pool *pgxpool.Pool, limit time.Duration) bool {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		pool.Close()
	}()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-closed:
		return true
	case <-timer.C:
		return false
	}
}

// Pool is a pool on the schema with pgx's defaults, closed at the end of the test. It is the same one at every call.
func (d *Database) Pool() *pgxpool.Pool {
	d.tb.Helper()
	return d.pool()
}

// PoolConfig is a new config for [NewPool], for the test to change: MaxConns, RuntimeParams, the query mode.
func (d *Database) PoolConfig() *pgxpool.Config {
	d.tb.Helper()
	config, err := pgxpool.ParseConfig(d.url)
	if err != nil {
		d.tb.Fatalf("pgtest: the server's address: %v", err)
	}
	return config
}

// URL is the connection string of the schema, for a child process: it gives pgx, and any client built on libpq, the
// schema as search_path. It is a URL unless TEKIL_TEST_POSTGRES is a keyword/value string. It holds the server's
// password.
func (d *Database) URL() string { return d.url }

// Schema is the name of the schema: lower-case letters, digits and underscores, so it needs no quoting.
func (d *Database) Schema() string { return d.schema }

// admin runs work on a connection of its own that has no search_path of a test.
func admin(address string, work func(context.Context, *pgx.Conn) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, address)
	if err != nil {
		return err
	}
	return errors.Join(work(ctx, conn), conn.Close(ctx))
}

// drop ends the sessions that still use the schema, because they would hold locks on what is in it, and drops it. A
// session's locks are gone only when its process is, so the wait of 10 s is for that.
func drop(ctx context.Context, conn *pgx.Conn, schema string) error {
	if _, err := conn.Exec(ctx, "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = $1",
		schema); err != nil {
		return err
	}
	_, err := conn.Exec(ctx, "DROP SCHEMA IF EXISTS "+pgx.Identifier{schema}.Sanitize()+" CASCADE")
	return err
}

// dropOld drops what failed or killed tests left more than a day ago. Another process may be doing the same, and that a
// stranger's schema cannot be dropped is no fault of this test, so errors are nobody's business here.
func dropOld(ctx context.Context, conn *pgx.Conn) {
	rows, _ := conn.Query(ctx, "SELECT nspname FROM pg_namespace WHERE starts_with(nspname, $1) AND nspname < $2",
		schemaPrefix, schemaPrefix+seconds(time.Now().Add(-keepSchema)))
	old, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return
	}
	for _, schema := range old {
		_ = drop(ctx, conn, schema)
	}
}

var notWord = regexp.MustCompile(`[^a-z0-9]+`)

// schemaName is unique, says which test it belongs to, and stays below PostgreSQL's 63 bytes.
func schemaName(test string, now time.Time) string {
	words := strings.Trim(notWord.ReplaceAllString(strings.ToLower(test), "_"), "_")
	if len(words) > 30 {
		words = words[:30]
	}
	return schemaPrefix + seconds(now) + "_" + strings.ToLower(rand.Text()[:8]) + "_" + words
}

func seconds(t time.Time) string { return fmt.Sprintf("%08x", t.Unix()) }

// withSchema makes address one that opens schema. The setting travels in options, which pgx and libpq both know.
func withSchema(address, schema string) (string, error) {
	set := "-csearch_path=" + schema
	if !strings.HasPrefix(address, "postgres://") && !strings.HasPrefix(address, "postgresql://") {
		return address + " application_name=" + schema + " options=" + set, nil
	}
	u, err := url.Parse(address)
	if err != nil {
		return "", errors.New("TEKIL_TEST_POSTGRES is not a URL") // url.Error would print the password
	}
	q := u.Query()
	q.Set("application_name", schema)
	q.Set("options", strings.TrimSpace(q.Get("options")+" "+set))
	u.RawQuery = encode(q)
	return u.String(), nil
}

// encode is q.Encode for libpq too, which takes a plus for a plus.
func encode(q url.Values) string { return strings.ReplaceAll(q.Encode(), "+", "%20") }

// through is the address of config's database by way of the plain TCP address hostPort.
func through(config *pgconn.Config, hostPort string) string {
	q := url.Values{"sslmode": {"disable"}}
	for name, value := range config.RuntimeParams {
		q.Set(name, value)
	}
	u := url.URL{Scheme: "postgres", User: url.UserPassword(config.User, config.Password), Host: hostPort,
		Path: "/" + config.Database, RawQuery: encode(q)}
	return u.String()
}

// Example stands in for a test inside an Example function, which is given none.
//
//	func ExampleStore() {
//		tb := pgtest.NewExample("ExampleStore")
//		defer tb.End()
//		store := pgstore.New(pgtest.Pool(tb))
//		…
//	}
//
// A failure panics, because an Example has no other way to fail. It is safe for concurrent use.
type Example struct {
	name string

	mu       sync.Mutex
	cleanups []func()
}

// NewExample makes the stand-in for the Example function of that name.
func NewExample(name string) *Example { return &Example{name: name} }

// End runs what was given to Cleanup, last first. It must be deferred.
func (e *Example) End() {
	for {
		e.mu.Lock()
		n := len(e.cleanups)
		if n == 0 {
			e.mu.Unlock()
			return
		}
		last := e.cleanups[n-1]
		e.cleanups = e.cleanups[:n-1]
		e.mu.Unlock()
		last()
	}
}

// Helper does nothing.
func (e *Example) Helper() {}

// Name is the name given to [NewExample].
func (e *Example) Name() string { return e.name }

// Failed is always false: an Example that failed has panicked.
func (e *Example) Failed() bool { return false }

// Logf does nothing: what an Example prints is its result.
func (e *Example) Logf(string, ...any) {}

// Errorf panics with the message.
func (e *Example) Errorf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

// Fatalf panics with the message.
func (e *Example) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

// Cleanup keeps f for [Example.End].
func (e *Example) Cleanup(f func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.cleanups = append(e.cleanups, f)
}
