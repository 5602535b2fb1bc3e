package pgtest_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore/pgtest"
)

const envChild = "TEKIL_TEST_CHILD"

// child is another test process: it opens a Database, says where, and keeps it until its standard input ends.
func child() {
	tb := pgtest.NewExample("child")
	defer tb.End()
	fmt.Println(pgtest.Open(tb).URL())
	_, _ = io.Copy(io.Discard, os.Stdin)
}

func TestMain(m *testing.M) {
	if os.Getenv(envChild) != "" {
		child()
		return
	}
	goleak.VerifyTestMain(m)
}

// failedTest is a test that has failed.
type failedTest struct {
	*pgtest.Example
	said []string
}

func (f *failedTest) Failed() bool { return true }

func (f *failedTest) Logf(format string, args ...any) {
	f.said = append(f.said, fmt.Sprintf(format, args...))
}

func one[T any](t *testing.T, db interface {
	QueryRow(context.Context, string, ...any) pgx.Row
}, sql string, args ...any) T {
	t.Helper()
	var v T
	if err := db.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

const schemas = "SELECT count(*) FROM pg_namespace WHERE nspname = $1"

func TestEachDatabaseIsASchemaOfItsOwn(t *testing.T) {
	t.Parallel()
	a, b := pgtest.Open(t), pgtest.Open(t)
	for _, d := range []*pgtest.Database{a, b} {
		if _, err := d.Pool().Exec(t.Context(), "CREATE TABLE orders (id int PRIMARY KEY)"); err != nil {
			t.Fatal(err)
		}
		if got := one[string](t, d.Pool(), "SELECT array_to_string(current_schemas(false), ',')"); got != d.Schema() {
			t.Errorf("search_path is %q, want %q alone", got, d.Schema())
		}
		if n := one[int](t, d.Pool(), "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1", d.Schema()); n == 0 {
			t.Error("the sessions do not carry the schema's name")
		}
	}
	if first, again := a.Pool(), a.Pool(); first != again {
		t.Error("Pool made a second pool")
	}
}

func TestTheURLOpensTheSameSchema(t *testing.T) {
	t.Parallel()
	d := pgtest.Open(t)
	for name, address := range map[string]string{"direct": d.URL(), "through a proxy": d.Proxy().URL()} {
		conn, err := pgx.Connect(t.Context(), address)
		if err != nil {
			t.Fatal(err)
		}
		if got := one[string](t, conn, "SELECT current_schema()"); got != d.Schema() {
			t.Errorf("%s: the schema is %q, want %q", name, got, d.Schema())
		}
		if err := conn.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func TestATestMayChangeItsPoolsConfig(t *testing.T) {
	t.Parallel()
	config := pgtest.Open(t).PoolConfig()
	config.MaxConns = 1
	config.ConnConfig.RuntimeParams["default_transaction_isolation"] = "serializable"
	pool := pgtest.NewPool(t, config)
	if got := one[string](t, pool, "SHOW transaction_isolation"); got != "serializable" {
		t.Errorf("isolation is %s", got)
	}
	if got := pool.Stat().MaxConns(); got != 1 {
		t.Errorf("MaxConns is %d", got)
	}
}

func TestTheServerIsSetAsTheDocumentationSays(t *testing.T) {
	t.Parallel()
	if os.Getenv("TEKIL_TEST_POSTGRES") != "" {
		t.Log("the server is not this package's own")
		return
	}
	durable := "off"
	if os.Getenv("TEKIL_TEST_POSTGRES_FSYNC") == "on" {
		durable = "on"
	}
	pool := pgtest.Pool(t)
	for name, want := range map[string]string{
		"fsync": durable, "full_page_writes": durable, "synchronous_commit": "on", "max_connections": "300",
		"max_prepared_transactions": "0", "client_connection_check_interval": "2s", "listen_addresses": "127.0.0.1",
		"server_encoding": "UTF8",
	} {
		if got := one[string](t, pool, "SELECT current_setting($1)", name); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
}

func TestTheEndOfATestDropsItsSchemaAndItsSessions(t *testing.T) {
	t.Parallel()
	watch := pgtest.Pool(t)
	tb := pgtest.NewExample("left open")
	d := pgtest.Open(tb)
	conn, err := pgx.Connect(t.Context(), d.URL()) // as a child process would, and then be killed
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	if _, err := conn.Exec(t.Context(), "BEGIN; CREATE TABLE orders (id int)"); err != nil {
		t.Fatal(err)
	}
	tb.End()
	if n := one[int](t, watch, schemas, d.Schema()); n != 0 {
		t.Error("the schema is still there")
	}
	if err := conn.Ping(t.Context()); err == nil {
		t.Error("the session is still there")
	}
}

func TestTheSchemaOfAFailedTestIsKept(t *testing.T) {
	t.Parallel()
	watch := pgtest.Pool(t)
	tb := &failedTest{Example: pgtest.NewExample("failed")}
	d := pgtest.Open(tb)
	tb.End()
	if n := one[int](t, watch, schemas, d.Schema()); n != 1 {
		t.Fatal("the schema is gone")
	}
	if _, err := watch.Exec(t.Context(), "DROP SCHEMA "+d.Schema()); err != nil {
		t.Error(err)
	}
	if external := os.Getenv("TEKIL_TEST_POSTGRES") != ""; external != (len(tb.said) == 1) {
		t.Errorf("the test's log says %q", tb.said)
	}
}

func TestAnExampleFailsByPanic(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(pgtest.TB){
		"Errorf": func(tb pgtest.TB) { tb.Errorf("no %s", "server") },
		"Fatalf": func(tb pgtest.TB) { tb.Fatalf("no %s", "server") },
	} {
		func() {
			defer func() {
				if got := recover(); got != "no server" {
					t.Errorf("%s: recovered %v", name, got)
				}
			}()
			fail(pgtest.NewExample(name))
		}()
	}
}
