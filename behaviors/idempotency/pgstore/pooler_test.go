//go:build pgbouncer && unix

package pgstore_test

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	osexec "os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore"
	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore/pgtest"
	"github.com/tekil-go/tekil/behaviors/idempotency/storetest"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
)

// These tests put a PgBouncer of their own between the store and the server. They run with
//
//	go test -tags pgbouncer ./behaviors/idempotency/pgstore
//
// and are not there without the tag, so that "go test ./..." needs no PgBouncer and skips nothing.

// errNoPooler is the sentence that helps.
var errNoPooler = errors.New("these tests need PgBouncer and never do without: install it (on Debian: apt-get install pgbouncer), " +
	"or leave the build tag pgbouncer out")

// poolerPrograms is where PgBouncer is looked for: Debian's /usr/sbin is not in everybody's PATH.
var poolerPrograms = []string{"pgbouncer", "/usr/sbin/pgbouncer", "/usr/local/sbin/pgbouncer", "/usr/local/bin/pgbouncer", "/opt/homebrew/bin/pgbouncer"}

// findPooler gives the first of the programs that can be run.
func findPooler(programs []string) (string, error) {
	for _, name := range programs {
		if path, err := osexec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%w (looked for %s)", errNoPooler, strings.Join(programs, ", "))
}

// pooling is how a PgBouncer is set.
type pooling struct {
	mode   string // of pooling: transaction, session, statement
	size   int    // sessions of the server at most
	server string // host:port of the server, if not the database's own
	ignore string // ignore_startup_parameters
}

// pooler is a running PgBouncer in front of a test's database. Its clients log in with a role that has the schema as its
// search_path, because a pooler does not take a search_path from each client.
type pooler struct {
	db             *pgtest.Database
	schema         string
	dir            string // of its socket
	role, password string

	mu   sync.Mutex
	said []string
}

// poolerPort is a part of the socket's name. The socket is in a directory of its own, so the port need not be free.
const poolerPort = 6432

// start starts a PgBouncer in front of a schema, db's own or another one on the same server. It ends with the test.
func (how pooling) start(t testing.TB, db *pgtest.Database, schema string) *pooler {
	t.Helper()
	program, err := findPooler(poolerPrograms)
	if err != nil {
		t.Fatal(err)
	}
	p := &pooler{db: db, schema: schema, role: "pooled" + strings.TrimPrefix(schema, "tekil_test"), password: rand.Text()}
	exec(t, db.Pool(), `CREATE ROLE `+p.role+` LOGIN PASSWORD '`+p.password+`'`)
	t.Cleanup(func() {
		exec(t, db.Pool(), `DROP OWNED BY `+p.role)
		exec(t, db.Pool(), `DROP ROLE `+p.role)
	})
	p.set(t, "search_path", schema)
	p.grant(t)
	p.run(t, program, how)
	return p
}

// set makes a setting of the role's, in force in sessions that begin later.
func (p *pooler) set(t testing.TB, name, value string) {
	t.Helper()
	exec(t, p.db.Pool(), `ALTER ROLE `+p.role+` SET `+name+` = '`+value+`'`)
}

// grant lets the role do all with what is in the schema now.
func (p *pooler) grant(t testing.TB) {
	t.Helper()
	for _, what := range []string{"SCHEMA ", "ALL TABLES IN SCHEMA ", "ALL SEQUENCES IN SCHEMA "} {
		exec(t, p.db.Pool(), `GRANT ALL ON `+what+p.schema+` TO `+p.role)
	}
}

// supervised runs the pooler, and kills it as soon as this process closes its end of the standard input or is gone.
const supervised = `exec 3<&0; (read -r line <&3; kill -9 $$) >/dev/null 2>&1 & exec "$0" "$1" </dev/null 3<&-`

func (p *pooler) run(t testing.TB, program string, how pooling) {
	t.Helper()
	var err error
	if p.dir, err = os.MkdirTemp("", "tekil-pgbouncer-"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(p.dir) })
	server := p.db.PoolConfig().ConnConfig
	host, port := server.Host, strconv.Itoa(int(server.Port))
	if how.server != "" {
		if host, port, err = net.SplitHostPort(how.server); err != nil {
			t.Fatal(err)
		}
	}
	ini, users := filepath.Join(p.dir, "pgbouncer.ini"), filepath.Join(p.dir, "users.txt")
	files := map[string]string{
		users: fmt.Sprintf("%q %q\n", p.role, p.password), // for both logins, that to the pooler and that of the pooler to the server
		ini: fmt.Sprintf(`[databases]
main = host=%s port=%s dbname=%s
[pgbouncer]
unix_socket_dir = %s
listen_addr =
listen_port = %d
auth_type = plain
auth_file = %s
pool_mode = %s
default_pool_size = %d
max_client_conn = 500
ignore_startup_parameters = %s
`, host, port, server.Database, p.dir, poolerPort, users, how.mode, how.size, how.ignore),
	}
	for file, text := range files {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := osexec.Command("/bin/sh", "-c", supervised, program, ini)
	cmd.Dir = "/"
	if os.Geteuid() == 0 { // PgBouncer refuses to run as root, as PostgreSQL does
		who := poolerAccount(t)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: who}
		for _, file := range []string{p.dir, ini, users} {
			if err := os.Chown(file, int(who.Uid), int(who.Gid)); err != nil {
				t.Fatal(err)
			}
		}
	}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	up, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		p.listen(stderr, up)
	}()
	t.Cleanup(func() {
		_ = stdin.Close()
		<-ended
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("PgBouncer has said:\n%s", strings.Join(p.log(), "\n"))
		}
	})
	select {
	case <-up:
	case <-ended:
		t.Fatal("PgBouncer has not started")
	}
}

// listen keeps what the pooler says until it ends, and closes up when it says that it is.
func (p *pooler) listen(stderr io.Reader, up chan<- struct{}) {
	for lines := bufio.NewScanner(stderr); lines.Scan(); {
		p.mu.Lock()
		p.said = append(p.said, lines.Text())
		p.mu.Unlock()
		if strings.Contains(lines.Text(), "process up: ") {
			close(up)
		}
	}
}

func (p *pooler) log() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.said)
}

// poolerAccount is the account that root runs the pooler under.
func poolerAccount(t testing.TB) *syscall.Credential {
	t.Helper()
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, errUID := strconv.ParseUint(u.Uid, 10, 32)
		gid, errGID := strconv.ParseUint(u.Gid, 10, 32)
		if errUID == nil && errGID == nil {
			return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		}
	}
	t.Fatal("root must run PgBouncer under another account, and there is neither postgres nor nobody")
	return nil
}

// url is a connection string by way of the pooler.
func (p *pooler) url() string {
	q := url.Values{"host": {p.dir}, "port": {strconv.Itoa(poolerPort)}, "sslmode": {"disable"}, "application_name": {p.schema}, "default_query_exec_mode": {"exec"}}
	return (&url.URL{Scheme: "postgres", User: url.UserPassword(p.role, p.password), Path: "/main", RawQuery: q.Encode()}).String()
}

// config is a pool's configuration by way of the pooler, in a query mode.
func (p *pooler) config(t testing.TB, mode pgx.QueryExecMode) *pgxpool.Config {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(p.url())
	if err != nil {
		t.Fatal(err)
	}
	cfg.ConnConfig.DefaultQueryExecMode = mode
	return cfg
}

// pool is a pool by way of the pooler, in a query mode.
func (p *pooler) pool(t testing.TB, mode pgx.QueryExecMode) *pgxpool.Pool {
	t.Helper()
	return pgtest.NewPool(t, p.config(t, mode))
}

// The query modes of pgx: those that need nothing of a session, and the others.
var (
	sessionless = []pgx.QueryExecMode{pgx.QueryExecModeExec, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeSimpleProtocol}
	sessionful  = []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeDescribeExec}
)

func TestAMissingPgBouncerIsSaidWithWhatToDo(t *testing.T) {
	t.Parallel()
	if _, err := findPooler([]string{"no-such-pooler", "/no/such/pooler"}); !errors.Is(err, errNoPooler) || !strings.Contains(err.Error(), "apt-get install pgbouncer") {
		t.Errorf("it says %v", err)
	}
}

// The whole specification, with all that goes through the store going through a pooler in transaction mode.
func TestPgBouncerInTransactionModeKeepsTheSpecification_D01(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Fixture {
		f := fixture(t)
		var schema string
		if err := f.InTx(t.Context(), func(ctx context.Context) error {
			tx, err := pgstore.Tx(ctx)
			if err != nil {
				return err
			}
			return tx.QueryRow(ctx, `SELECT current_schema()`).Scan(&schema)
		}); err != nil {
			t.Fatal(err)
		}
		p := pooling{mode: "transaction", size: 30}.start(t, pgtest.Open(t), schema)
		cfg := p.config(t, pgx.QueryExecModeExec)
		cfg.MaxConns = 24
		pool := pgtest.NewPool(t, cfg)
		f.Store, f.NoHint = pgstore.New(pool), pgstore.NewWithConfig(pool, pgstore.Config{NoHint: true})
		f.Insert = func(ctx context.Context, note string) error { return inserting(pool, note)(ctx) }
		f.InTx = func(ctx context.Context, fn func(ctx context.Context) error) error {
			return pgstore.InTx(ctx, pool, fn)
		}
		return f
	})
}

// Everything that a store can be asked for, Migrate and Check included, over fewer sessions than there are connections.
func TestPgBouncerInTransactionModeServesEveryCallInEveryModeWithoutASession_D01(t *testing.T) {
	t.Parallel()
	for _, mode := range sessionless {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			db := pgtest.Open(t)
			p := pooling{mode: "transaction", size: 3}.start(t, db, db.Schema())
			everything(t, p.pool(t, mode), db.Pool())
		})
	}
}

func TestPgBouncerInSessionModeServesEveryCallInEveryMode(t *testing.T) {
	t.Parallel()
	for _, mode := range slices.Concat(sessionless, sessionful) {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			db := pgtest.Open(t)
			p := pooling{mode: "session", size: 20}.start(t, db, db.Schema())
			everything(t, p.pool(t, mode), db.Pool())
		})
	}
}

// sqlState is the server's or the pooler's code behind an error.
func sqlState(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}

// What would become of pgx's default, which prepares statements by name, if it were not refused at the start. A name is known in one
// session, and the connection's next turn may come to another one, or another connection with the same name to this one. So
// most commands fail; none is done wrongly.
func TestPgBouncerInTransactionModeBreaksNamedStatements_E33(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	p := pooling{mode: "transaction", size: 2}.start(t, db, db.Schema())
	migrated(t, p.pool(t, pgx.QueryExecModeExec))
	cfg := p.config(t, pgx.QueryExecModeCacheStatement)
	cfg.MaxConns = 1
	one, other := pgtest.NewPool(t, cfg), pgtest.NewPool(t, cfg)
	send := func(pool *pgxpool.Pool, key string, leased bool) error {
		ctx, _ := asked(t, t.Context(), key)
		var err error
		if leased {
			_, err = bus.Send(ctx, selling(t, pgstore.New(pool), noting(pool)), sell{"x"})
		} else {
			_, err = bus.Send(ctx, serve(t, pgstore.New(pool), writing(pool)), note{"x"})
		}
		return err
	}
	for i, leased := range []bool{false, true} {
		if err := send(one, fmt.Sprint("first-key-", i), leased); err != nil {
			t.Errorf("leased %t: the first connection, which has the session for itself: %v", leased, err)
		}
		err := send(other, fmt.Sprint("second-key-", i), leased)
		var away *idempotency.StoreError
		if sqlState(err) != "42P05" || !errors.As(err, &away) {
			t.Errorf("leased %t: another connection in the same session: %v; want that the statement exists already", leased, err)
		}
	}
	held, err := db.Pool().Begin(t.Context()) // makes the next one wait in the first session
	if err != nil {
		t.Fatal(err)
	}
	defer held.Rollback(t.Context()) //nolint:errcheck // there is nothing to undo
	if _, err := held.Exec(t.Context(), `LOCK TABLE notes`); err != nil {
		t.Fatal(err)
	}
	waiting := make(chan error, 1)
	busy := p.pool(t, pgx.QueryExecModeExec)
	go func() {
		_, err := busy.Exec(context.WithoutCancel(t.Context()), `INSERT INTO notes VALUES ('busy')`)
		waiting <- err
	}()
	blocked(t, db, 1)
	for i, leased := range []bool{false, true} {
		if err := send(one, fmt.Sprint("third-key-", i), leased); sqlState(err) != "26000" {
			t.Errorf("leased %t: the first connection in another session: %v; want that the statement does not exist", leased, err)
		}
	}
	if err := errors.Join(held.Rollback(t.Context()), <-waiting); err != nil {
		t.Error(err)
	}
	if rows, records := count(t, db.Pool(), "notes"), count(t, db.Pool(), "idempotency_records"); rows != 3 || records != 2 {
		t.Errorf("there are %d business rows and %d records; want the two of the first connection, and the busy one's row", rows, records)
	}
}

// between is a connection that does something before it sends the parameters of a statement.
type between struct {
	net.Conn
	do func()
}

func (c between) Write(b []byte) (int, error) {
	if len(b) > 0 && b[0] == 'B' {
		c.do()
	}
	return c.Conn.Write(b)
}

// What pgx warns of: with describe_exec a statement and its parameters are sent in two turns, and in between another connection may
// put its own statement in the same place of the session. That one is executed with these parameters, and nobody is told.
func TestPgBouncerInTransactionModeExecutesSomebodyElsesStatementWithDescribeExec(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	p := pooling{mode: "transaction", size: 1}.start(t, db, db.Schema())
	other := p.pool(t, pgx.QueryExecModeExec)
	migrated(t, other)
	exec(t, other, `INSERT INTO notes VALUES ('paid')`)
	cfg := p.config(t, pgx.QueryExecModeDescribeExec)
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		return between{conn, func() { exec(t, other, `DELETE FROM notes WHERE note = $1`, "something else") }}, err
	}
	tag, err := pgtest.NewPool(t, cfg).Exec(t.Context(), `UPDATE notes SET note = note WHERE note = $1`, "paid")
	if err != nil || tag.String() != "DELETE 1" {
		t.Errorf("an UPDATE was answered with %q, %v; if it is one now, Check need not refuse this mode", tag, err)
	}
}

func TestCheckRefusesAQueryModeThatNeedsASessionBehindPgBouncerInTransactionMode_D01(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	p := pooling{mode: "transaction", size: 4}.start(t, db, db.Schema())
	migrated(t, p.pool(t, pgx.QueryExecModeExec))
	for range 2 { // two processes that start one after the other
		for _, mode := range sessionful {
			_, err := pgstore.New(p.pool(t, mode)).Check(t.Context())
			if err == nil || !strings.Contains(err.Error(), "set default_query_exec_mode=exec in the connection string") {
				t.Errorf("%v: the check says %v", mode, err)
			}
		}
	}
	for _, mode := range sessionless {
		if _, err := pgstore.New(p.pool(t, mode)).Check(t.Context()); err != nil {
			t.Errorf("%v: the check says %v", mode, err)
		}
	}
	if n := count(t, db.Pool(), "idempotency_records"); n != 0 {
		t.Errorf("the check has left %d records", n)
	}
}

func TestPgBouncerInStatementModeIsRefusedAtTheStart_D02(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	migrated(t, db.Pool())
	p := pooling{mode: "statement", size: 4}.start(t, db, db.Schema())
	for _, mode := range slices.Concat(sessionless, sessionful) {
		pool := p.pool(t, mode)
		_, err := pgstore.New(pool).Check(t.Context())
		if err == nil || !strings.Contains(err.Error(), "a pooler in statement mode cannot be used; transaction mode can") {
			t.Errorf("%v: the check says %v", mode, err)
		}
		if err := pgstore.Migrate(t.Context(), pool); err == nil || !strings.Contains(err.Error(), "statement pooling mode") {
			t.Errorf("%v: Migrate says %v", mode, err)
		}
		// And without the check nothing would be done.
		ctx, _ := asked(t, t.Context(), "statement-mode")
		if got, err := bus.Send(ctx, serve(t, pgstore.New(pool), writing(pool)), note{"x"}); err == nil {
			t.Errorf("%v: an Atomic command gave %q", mode, got)
		}
		ctx, _ = asked(t, t.Context(), "statement-mode-leased")
		if got, err := bus.Send(ctx, selling(t, pgstore.New(pool), noting(pool)), sell{"x"}); err == nil {
			t.Errorf("%v: a Leased command gave %q", mode, got)
		}
	}
	if n := count(t, db.Pool(), "notes"); n != 0 {
		t.Errorf("%d business rows were written", n)
	}
}

func TestBehindPgBouncerWhatConfigureSetsIsIgnoredOrRefusedAndHasToBeSetOnTheServer(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	migrated(t, db.Pool())
	check := func(p *pooler) ([]string, error) {
		cfg := p.config(t, pgx.QueryExecModeExec)
		pgstore.Configure(cfg)
		return pgstore.New(pgtest.NewPool(t, cfg)).Check(t.Context())
	}
	t.Run("refused", func(t *testing.T) {
		p := pooling{mode: "transaction", size: 2}.start(t, db, db.Schema())
		_, err := check(p)
		if sqlState(err) != "08P01" || !strings.Contains(err.Error(), "ignore_startup_parameters") {
			t.Errorf("the check says %v", err)
		}
	})
	t.Run("ignored", func(t *testing.T) {
		p := pooling{mode: "transaction", size: 2, ignore: "idle_in_transaction_session_timeout, client_connection_check_interval"}.start(t, db, db.Schema())
		p.set(t, "idle_in_transaction_session_timeout", "0")
		p.set(t, "client_connection_check_interval", "0")
		warnings, err := check(p)
		if err != nil || len(warnings) != 2 || !strings.Contains(warnings[0]+warnings[1], "ALTER ROLE") || strings.Contains(warnings[0]+warnings[1], "pgstore.Configure") {
			t.Errorf("not set on the server: %q, %v; want two warnings that say where to set it", warnings, err)
		}
	})
	t.Run("set on the server", func(t *testing.T) {
		p := pooling{mode: "transaction", size: 2, ignore: "idle_in_transaction_session_timeout, client_connection_check_interval"}.start(t, db, db.Schema())
		p.set(t, "idle_in_transaction_session_timeout", "60s")
		p.set(t, "client_connection_check_interval", "2s")
		if warnings, err := check(p); err != nil || len(warnings) != 0 {
			t.Errorf("set on the server: %q, %v; want none", warnings, err)
		}
	})
}

// crowd sends each of some keys from fifty goroutines at once, over ten processes that share a handful of sessions.
func crowd[C bus.Command[string]](t *testing.T, defaultLevel string, cfg pgstore.Config, command func(key string) C) {
	t.Helper()
	t.Parallel()
	const rounds, processes, callers, sessions = 6, 10, 50, 4
	db := pgtest.Open(t)
	p := pooling{mode: "transaction", size: sessions}.start(t, db, db.Schema())
	p.set(t, "default_transaction_isolation", defaultLevel)
	migrated(t, p.pool(t, pgx.QueryExecModeExec))
	exec(t, p.pool(t, pgx.QueryExecModeExec), `CREATE TABLE carts (cart text)`) // which takes a second order if there is one
	var send [processes]func(ctx context.Context, key string) (string, error)
	for i := range send {
		pool := p.pool(t, sessionless[i%len(sessionless)])
		engine, err := idempotency.New(idempotency.Config{Store: pgstore.NewWithConfig(pool, cfg)})
		if err != nil {
			t.Fatal(err)
		}
		send[i] = func(ctx context.Context, key string) (string, error) {
			return sendOver(ctx, engine, command(key), func(ctx context.Context, _ C) (string, error) {
				return key, pgstore.InTx(ctx, pool, func(ctx context.Context) error {
					_, err := pgstore.DB(ctx, pool).Exec(ctx, `INSERT INTO carts SELECT $1::text FROM pg_sleep(0.02)`, key) // so that the others come in between
					return err
				})
			})
		}
	}
	for round := range rounds {
		key := fmt.Sprintf("crowd-key-%d", round)
		var executed, replayed, inProgress, again atomic.Int64
		together(callers, func(i int) {
			ctx, req := asked(t, t.Context(), key)
			got, err := send[i%processes](ctx, key)
			var busy *idempotency.InProgressError
			var retries *idempotency.RetriesError
			switch {
			case err == nil && got == key && req.Outcome().Replayed:
				replayed.Add(1)
			case err == nil && got == key:
				executed.Add(1)
			case errors.As(err, &busy):
				inProgress.Add(1)
			case errors.As(err, &retries):
				again.Add(1)
			default:
				t.Errorf("%s: caller %d got %q, %v", key, i, got, err)
			}
		})
		t.Logf("%s: %d executed, %d replayed, %d in progress, %d told to come again", key, executed.Load(), replayed.Load(), inProgress.Load(), again.Load())
		if executed.Load() != 1 {
			t.Errorf("%s: want one executed", key)
		}
	}
	if carts, records := count(t, db.Pool(), "carts"), count(t, db.Pool(), "idempotency_records"); carts != rounds || records != rounds {
		t.Errorf("%d carts and %d records, want %d of each", carts, records, rounds)
	}
	var used int
	if err := db.Pool().QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE usename = $1`, p.role).Scan(&used); err != nil || used == 0 || used > sessions {
		t.Errorf("%d sessions were used, %v; want at most %d", used, err, sessions)
	}
}

func TestManyDuplicatesThroughAFewSessionsOfPgBouncerMakeOneOrder_BR09_D01_L08_L17(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]pgstore.Config{"Atomic": {}, "Atomic without the hint": {NoHint: true}} {
		t.Run(name+", read committed", func(t *testing.T) {
			crowd(t, "read committed", cfg, func(key string) cart[committed] { return cart[committed]{key} })
		})
		t.Run(name+", repeatable read", func(t *testing.T) {
			crowd(t, "read committed", cfg, func(key string) cart[repeatable] { return cart[repeatable]{key} })
		})
		t.Run(name+", serializable", func(t *testing.T) {
			crowd(t, "read committed", cfg, func(key string) cart[serializable] { return cart[serializable]{key} })
		})
	}
	for _, level := range []string{"read committed", "serializable"} {
		t.Run("Leased where the sessions are "+level, func(t *testing.T) {
			crowd(t, level, pgstore.Config{}, func(key string) sell { return sell{key} })
		})
	}
	t.Run("Atomic where the sessions are serializable", func(t *testing.T) {
		crowd(t, "serializable", pgstore.Config{}, func(key string) cart[committed] { return cart[committed]{key} })
	})
}

func TestACommitThatIsLostBehindPgBouncerMakesOneOrder_X06_X07_X08(t *testing.T) {
	t.Parallel()
	for _, leased := range []bool{false, true} {
		for _, action := range []pgtest.Action{pgtest.Drop, pgtest.DropAnswer, pgtest.Delay} {
			t.Run(fmt.Sprintf("%v, leased %t", action, leased), func(t *testing.T) {
				t.Parallel()
				db := pgtest.Open(t)
				migrated(t, db.Pool())
				proxy := db.Proxy()
				pool := pooling{mode: "transaction", size: 4, server: proxy.Addr()}.start(t, db, db.Schema()).pool(t, pgx.QueryExecModeExec)
				send := func() (o requestctx.Outcome, err error) {
					ctx, req := asked(t, t.Context(), "lost-commit")
					if leased {
						_, err = bus.Send(ctx, selling(t, pgstore.New(pool), noting(pool)), sell{"x"})
					} else {
						_, err = bus.Send(ctx, serve(t, pgstore.New(pool), writing(pool)), note{"x"})
					}
					return req.Outcome(), err
				}
				arrive := make(chan struct{})
				fault := proxy.Arm(pgtest.Fault{Match: pgtest.IsCommit, Action: action, Release: arrive})
				// The COMMIT that is delayed arrives when whoever has lost it has met what its transaction holds: a Leased attempt the
				// record, whose token it wants to burn, and an Atomic one the lock of the key.
				met := func() (has bool) {
					if !leased {
						return slices.ContainsFunc(proxy.Statements(), pgtest.Contains("pg_try_advisory_xact_lock"))
					}
					err := db.Pool().QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = $1 AND wait_event_type = 'Lock')`, db.Schema()).Scan(&has)
					return has || err != nil
				}
				answered := make(chan struct{})
				go func() {
					defer close(arrive)
					<-fault.Fired()
					proxy.Reset()
					for action == pgtest.Delay && !met() {
						select {
						case <-answered:
							return
						case <-time.After(time.Millisecond): // asks for a fact again; no time is assumed
						}
					}
				}()
				o, err := send()
				close(answered)
				<-fault.Done()
				if leased && action == pgtest.Drop {
					var away *idempotency.StoreError
					if !errors.As(err, &away) || o.State != requestctx.StateFreed {
						t.Errorf("got %v, %+v; want that it did not happen", err, o)
					}
				} else if err != nil || o.State != requestctx.StateExecuted {
					t.Errorf("got %v, %+v; want the attempt's own success", err, o)
				}
				if o, err := send(); err != nil || o.Replayed == (leased && action == pgtest.Drop) {
					t.Errorf("the retry got %v, %+v", err, o)
				}
				if rows, records := count(t, db.Pool(), "notes"), count(t, db.Pool(), "idempotency_records"); rows != 1 || records != 1 {
					t.Errorf("%d rows and %d records, want 1 and 1", rows, records)
				}
			})
		}
	}
}

// What one connection has set, locked or prepared would be there for the next one that is lent the session. There is one session here,
// and between any two steps somebody else looks at it.
func TestNothingOfACommandStaysInASessionOfPgBouncer_E07_E33(t *testing.T) {
	t.Parallel()
	for _, mode := range sessionless {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			db := pgtest.Open(t)
			p := pooling{mode: "transaction", size: 1}.start(t, db, db.Schema())
			p.set(t, "lock_timeout", "7s")
			pool, other := p.pool(t, mode), p.pool(t, mode)
			const (
				effective = `current_setting('lock_timeout'), current_setting('synchronous_commit'), current_setting('transaction_isolation'),
					(SELECT string_agg(mode, ', ') FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory')`
				left = effective + `, pg_backend_pid(), current_schemas(true)::text, (SELECT string_agg(name, ', ') FROM pg_prepared_statements),
					(SELECT string_agg(name || ' = ' || setting, ', ' ORDER BY name) FROM pg_settings WHERE source = 'session')`
			)
			look := func(db pgstore.DBTX, what string) (s string) {
				t.Helper()
				if err := db.QueryRow(t.Context(), `SELECT concat_ws('; ', `+what+`)`).Scan(&s); err != nil {
					t.Fatal(err)
				}
				return s
			}
			before := look(other, left)
			clean := func(step string) {
				t.Helper()
				if after := look(other, left); after != before {
					t.Fatalf("%s has left something behind:\n%s\n%s", step, before, after)
				}
			}
			const own = "7s; on; read committed" // what a handler finds
			everything(t, pool, db.Pool())
			clean("one of all the calls")
			store := pgstore.New(pool)
			for i, relaxed := range []bool{true, false} {
				c := lent(fmt.Sprint("leaves-nothing-", i))
				c.Relaxed = relaxed
				l := lease(t, store, c)
				clean("a claim")
				if err := l.Renew(t.Context()); err != nil {
					t.Fatal(err)
				}
				clean("a renewal")
				met(t, store, rival(c))
				clean("a claim that was refused")
				lapse(t, db.Pool())
				late, c := l, rival(c)
				l = lease(t, store, c)
				clean("a takeover")
				if err := pgstore.InTx(late.Context(t.Context()), pool, func(context.Context) error { return nil }); !errors.Is(err, idempotency.ErrLeaseLost) {
					t.Fatal(err)
				}
				clean("a business transaction that was not opened")
				if err := pgstore.InTx(l.Context(t.Context()), pool, func(ctx context.Context) error {
					if inside := look(pgstore.DB(ctx, pool), effective); inside != own {
						t.Errorf("a Leased handler finds %q, want %q", inside, own)
					}
					return errors.New("once more")
				}); err == nil {
					t.Fatal("the error was swallowed")
				}
				clean("a business transaction that was undone")
				if err := pgstore.InTx(l.Context(t.Context()), pool, inserting(pool, "x")); err != nil {
					t.Fatal(err)
				}
				if err := l.Complete(t.Context(), sold); err != nil {
					t.Fatal(err)
				}
				clean("a completion")
				if err := late.Complete(t.Context(), sold); !errors.Is(err, idempotency.ErrLost) {
					t.Fatal(err)
				}
				clean("a completion that was refused")
			}
			at, err := store.Begin(t.Context(), lent("leaves-nothing-atomic"))
			if err != nil {
				t.Fatal(err)
			}
			if inside := look(pgstore.DB(at.Context(t.Context()), pool), effective); inside != own+"; ExclusiveLock" {
				t.Errorf("an Atomic handler finds %q, want %q and the lock of its key", inside, own)
			}
			at.Rollback(t.Context())
			clean("an Atomic attempt that was undone")
		})
	}
}

// The settings of a claim are those of the transaction that makes it, and not of the next one in the session.
func TestARelaxedClaimThroughPgBouncerRelaxesNoOtherCommit_E21(t *testing.T) {
	t.Parallel()
	for _, mode := range sessionless {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			db := pgtest.Open(t)
			p := pooling{mode: "transaction", size: 1}.start(t, db, db.Schema())
			pool, other := p.pool(t, mode), p.pool(t, mode)
			migrated(t, other)
			exec(t, other, `CREATE TABLE seen (n serial, what text)`)
			exec(t, other, `CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS
				$$ BEGIN INSERT INTO seen (what) VALUES (TG_TABLE_NAME || ' ' || current_setting('synchronous_commit')); RETURN NULL; END $$`)
			for _, table := range []string{"idempotency_records", "notes"} { // deferred to the COMMIT, because that is what the setting is for
				exec(t, other, `CREATE CONSTRAINT TRIGGER looks AFTER INSERT OR UPDATE ON `+table+` DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION look()`)
			}
			c := lent("relaxed-1")
			c.Relaxed = true
			l := lease(t, pgstore.New(pool), c)
			exec(t, other, `INSERT INTO notes VALUES ('of somebody else')`)
			if err := pgstore.InTx(l.Context(t.Context()), pool, inserting(pool, "x")); err != nil {
				t.Fatal(err)
			}
			if err := l.Complete(t.Context(), sold); err != nil {
				t.Fatal(err)
			}
			rows, _ := other.Query(t.Context(), `SELECT what FROM seen ORDER BY n`)
			seen, err := pgx.CollectRows(rows, pgx.RowTo[string])
			want := []string{"idempotency_records off", "notes on", "notes on", "idempotency_records on"}
			if err != nil || !slices.Equal(seen, want) {
				t.Errorf("the commits were made with %q, %v; want %q", seen, err, want)
			}
		})
	}
}

// The server ends the transaction of a process that does not move any more; what the pooler makes of that must not be taken for a
// word about the key.
func TestAProcessFrozenBehindPgBouncerIsToldWhatTheRecordSays_L09_L16(t *testing.T) {
	t.Parallel()
	for _, c := range []freezing{
		{Mode: inLeased, Moment: beforeTheWork}, {Mode: inLeased, Moment: amidTheWork}, {Mode: inLeased, Moment: afterTheWork},
		{Mode: inAtomic, Moment: amidTheWork}, {Mode: inAtomic, Moment: afterTheWork},
	} {
		t.Run(fmt.Sprint(c.Mode, ", frozen ", c.Moment), func(t *testing.T) {
			t.Parallel()
			db := pgtest.Open(t)
			migrated(t, db.Pool())
			p := pooling{mode: "transaction", size: 4, ignore: "idle_in_transaction_session_timeout, client_connection_check_interval"}.start(t, db, db.Schema())
			p.set(t, "idle_in_transaction_session_timeout", strconv.FormatInt(frozenIdle.Milliseconds(), 10))
			c.URL = p.url()
			child := c.start(t, db)
			child.stopped(t)
			child.holds(t)
			if c.Mode == inLeased {
				child.lapses(t)
			}
			other := child.overtaken(t)
			child.wake(t).told(t, other)
			child.leaves(t, 1, "by the other one")
		})
	}
}
