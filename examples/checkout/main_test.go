package main

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore/pgtest"
	"github.com/tekil-go/tekil/requestctx/browser/browsertest"
	"github.com/tekil-go/tekil/requestctx/httpedge"
)

// childEnv makes the test binary a server: the program itself where it is "checkout", and otherwise the program with the
// fault of that name (see faulty).
const childEnv = "TEKIL_CHECKOUT_CHILD"

// orphaned is the exit code of a child whose test has ended without it.
const orphaned = 97

func TestMain(m *testing.M) {
	mode, child := os.LookupEnv(childEnv)
	if !child {
		slog.SetDefault(slog.New(slog.DiscardHandler)) // the edge's own lines
		goleak.VerifyTestMain(browsertest.M{M: m})
		return
	}
	go func() { // a test that is killed takes its children along: the kernel closes its end of their standard input
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(orphaned)
	}()
	if mode == "checkout" {
		main()
		os.Exit(0)
	}
	fmt.Fprintln(os.Stderr, faulty(mode, os.Args[1:]))
	os.Exit(1)
}

// patience bounds what a test waits for. It is reached only where something is wrong.
const patience = 60 * time.Second

// within gives a context for what must not take longer than patience.
func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// await waits until c is closed or gives something.
func await[T any](t *testing.T, c <-chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(patience):
		t.Fatalf("waited %v in vain: %s", patience, what)
	}
	return v
}

// database is a fresh one for a test, of either kind.
type database struct {
	path     string           // of the SQLite file
	postgres *pgtest.Database // nil for SQLite
}

// both runs a test on both kinds.
func both(t *testing.T, f func(*testing.T, *database)) {
	t.Helper()
	t.Run("SQLite", func(t *testing.T) {
		t.Parallel()
		f(t, sqliteDatabase(t))
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		t.Parallel()
		f(t, postgresDatabase(t))
	})
}

func sqliteDatabase(t *testing.T) *database {
	return &database{path: filepath.Join(t.TempDir(), "checkout.db")}
}

func postgresDatabase(t *testing.T) *database { return &database{postgres: pgtest.Open(t)} }

// flags are those by which the program uses the database.
func (d *database) flags() []string {
	if d.postgres == nil {
		return []string{"-sqlite", d.path}
	}
	return []string{"-postgres", d.postgres.URL()}
}

// sqlite opens the file for a moment: a connection that stayed open would spare a server that starts after a crash some of
// its work.
func (d *database) sqlite(t *testing.T, work func(*sql.DB) error) {
	t.Helper()
	db, err := sql.Open("sqlite", (&url.URL{Scheme: "file", Path: d.path, RawQuery: "_pragma=busy_timeout(20000)"}).String())
	if err == nil {
		err = errors.Join(work(db), db.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// key is a key of this database's own, for tests that run beside others of their kind: advisory locks belong to the whole
// database of a PostgreSQL, whatever the schema.
func (d *database) key(name string) string {
	if d.postgres == nil {
		return name
	}
	return name + "." + d.postgres.Schema()
}

// count gives the one number that query asks for.
func (d *database) count(t *testing.T, query string) (n int) {
	t.Helper()
	if d.postgres == nil {
		d.sqlite(t, func(db *sql.DB) error { return db.QueryRowContext(within(t), query).Scan(&n) })
		return n
	}
	if err := d.postgres.Pool().QueryRow(within(t), query).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// exec runs a statement.
func (d *database) exec(t *testing.T, statement string) {
	t.Helper()
	if d.postgres == nil {
		d.sqlite(t, func(db *sql.DB) error {
			_, err := db.ExecContext(within(t), statement)
			return err
		})
		return
	}
	if _, err := d.postgres.Pool().Exec(within(t), statement); err != nil {
		t.Fatal(err)
	}
}

// holds demands that there are so many orders, each with its authorisation, and so many records.
func (d *database) holds(t *testing.T, orders, records int) {
	t.Helper()
	if n := d.count(t, `SELECT count(*) FROM orders`); n != orders {
		t.Errorf("there are %d orders, want %d", n, orders)
	}
	if n := d.count(t, `SELECT count(*) FROM authorizations a JOIN orders o USING (order_id) WHERE a.amount = o.amount AND a.currency = o.currency`); n != orders {
		t.Errorf("there are %d orders with their authorisation, want %d", n, orders)
	}
	if n := d.count(t, `SELECT count(*) FROM authorizations`); n != orders {
		t.Errorf("there are %d authorisations, want %d", n, orders)
	}
	if n := d.count(t, `SELECT count(*) FROM idempotency_records`); n != records {
		t.Errorf("there are %d records, want %d", n, records)
	}
}

// settles demands that there are so many orders, each with its authorisation and its record, and that no record is left open.
func (d *database) settles(t *testing.T, orders int) {
	t.Helper()
	d.holds(t, orders, orders)
	if n := d.count(t, `SELECT count(*) FROM idempotency_records WHERE state = 'completed'`); n != orders {
		t.Errorf("there are %d completed records, want %d", n, orders)
	}
}

// expireLeases moves the end of all leases into the past, as time would.
func (d *database) expireLeases(t *testing.T) {
	t.Helper()
	past := `clock_timestamp() - interval '1 second'`
	if d.postgres == nil {
		past = `1`
	}
	d.exec(t, `UPDATE idempotency_records SET lease_until = `+past+` WHERE state = 'in_progress'`)
}

// expireRecords does so with their retention.
func (d *database) expireRecords(t *testing.T) {
	t.Helper()
	past := `clock_timestamp() - interval '1 second'`
	if d.postgres == nil {
		past = `1`
	}
	d.exec(t, `UPDATE idempotency_records SET expires_at = `+past)
}

// ordersOf counts the orders of a cart, or of all carts whose ids begin so, where a % says that.
func (d *database) ordersOf(t *testing.T, cart string) int {
	t.Helper()
	return d.count(t, `SELECT count(*) FROM orders WHERE cart_id LIKE '`+cart+`'`)
}

// process is a server in a process of its own.
type process struct {
	cmd      *exec.Cmd
	base     string        // its address, once it listens
	draining chan struct{} // closed when it says so
	exited   chan struct{} // closed when it has ended
	stdout   buffer
	stderr   buffer
}

// buffer is a bytes.Buffer for several goroutines.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func (*buffer) Sync() error { return nil }

var errExited = errors.New("the server has ended before it listened")

// launch starts a server and waits until it listens. Where it ends before, the error is errExited and the process has ended.
func launch(mode string, env []string, flags ...string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.Command(self, flags...), draining: make(chan struct{}), exited: make(chan struct{})}
	p.cmd.Env = append(append(os.Environ(), childEnv+"="+mode), env...)
	p.cmd.Stderr = &p.stderr
	if _, err := p.cmd.StdinPipe(); err != nil { // open as long as this process lives
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	listening := make(chan string, 1)
	go func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			line := lines.Text()
			_, _ = fmt.Fprintln(&p.stdout, line)
			if base, ok := strings.CutPrefix(line, "checkout: listening on "); ok {
				listening <- base
			}
			if line == "checkout: draining" {
				close(p.draining)
			}
		}
		_ = p.cmd.Wait()
		close(p.exited)
	}()
	select {
	case p.base = <-listening:
		return p, nil
	case <-p.exited:
		return p, errExited
	case <-time.After(patience):
		p.kill()
		return p, fmt.Errorf("the server did not listen in %v", patience)
	}
}

// kill ends it by SIGKILL and waits.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended already
	<-p.exited
}

func (p *process) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// code is its exit code, or -1 where a signal has ended it.
func (p *process) code() int { return p.cmd.ProcessState.ExitCode() }

// clean demands that nothing on standard error speaks of a broken server.
func (p *process) clean(t *testing.T) {
	t.Helper()
	for _, sign := range [...]string{"DATA RACE", "panic:", "fatal error:"} {
		if strings.Contains(p.stderr.String(), sign) {
			t.Errorf("the server says %q:\n%s", sign, p.stderr.String())
			return
		}
	}
}

// start starts the program on a free port and kills it at the end of the test.
func start(t *testing.T, flags ...string) *process {
	t.Helper()
	return startAs(t, "checkout", flags...)
}

func startAs(t *testing.T, mode string, flags ...string) *process {
	t.Helper()
	p, err := launch(mode, nil, append([]string{"-addr", "127.0.0.1:0"}, flags...)...)
	if p != nil {
		t.Cleanup(func() {
			p.kill()
			p.clean(t)
			if t.Failed() {
				t.Logf("the server at %s has said:\n%s", p.base, p.stderr.String())
			}
		})
	}
	if err != nil {
		t.Fatalf("%v", err)
	}
	return p
}

// site is the service in this process, on a database, with a spy in it.
type site struct {
	http.Handler
	*spy
	base string
	log  *buffer
}

// spy stands between the handler and the database. It counts the runs of the handler that came as far as writing.
type spy struct {
	orders
	runs atomic.Int64
	// then is called after the rows are written, with the number of the run; nil does nothing. Its error is the handler's.
	then func(ctx context.Context, run int64) error
}

func (s *spy) insert(ctx context.Context, o Order, email string) error {
	run := s.runs.Add(1)
	if err := s.orders.insert(ctx, o, email); err != nil || s.then == nil {
		return err
	}
	return s.then(ctx, run)
}

// open opens the database as the program does, until the end of the test.
func (d *database) open(t *testing.T) (orders, idempotency.Store) {
	t.Helper()
	if d.postgres != nil {
		return openAt(t, d.postgres.URL())
	}
	kept, store, closeStore, err := openSQLite(within(t), d.path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(closeStore)
	return kept, store
}

// openAt is open for the PostgreSQL at address.
func openAt(t *testing.T, address string) (orders, idempotency.Store) {
	t.Helper()
	kept, store, closeStore, err := openPostgres(within(t), address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(closeStore)
	return kept, store
}

// with is address, which is a URL, with a setting.
func with(t *testing.T, address, name, value string) string {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal("the address is not a URL")
	}
	q := u.Query()
	q.Set(name, strings.TrimSpace(q.Get(name)+" "+value))
	u.RawQuery = strings.ReplaceAll(q.Encode(), "+", "%20") // a plus is a plus here
	return u.String()
}

// serve runs the service on d until the end of the test.
func serve(t *testing.T, d *database, then func(ctx context.Context, run int64) error) *site {
	t.Helper()
	kept, store := d.open(t)
	return serveOn(t, kept, store, then)
}

// serveOn is serve on a database that is open.
func serveOn(t *testing.T, kept orders, store idempotency.Store, then func(ctx context.Context, run int64) error) *site {
	t.Helper()
	return serveWith(t, kept, store, options{}, then)
}

// serveWith is serveOn with options.
func serveWith(t *testing.T, kept orders, store idempotency.Store, o options, then func(ctx context.Context, run int64) error) *site {
	t.Helper()
	s := &site{spy: &spy{orders: kept, then: then}, log: new(buffer)}
	var err error
	if s.Handler, err = newServer(s.spy, store, s.logger(), o); err != nil {
		t.Fatal(err)
	}
	s.base = listen(t, s.Handler)
	return s
}

func (s *site) logger() *zap.Logger {
	return zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), s.log, zap.InfoLevel))
}

// listen serves h until the end of the test, and lets net/http say nothing about its panics.
func listen(t *testing.T, h http.Handler) string {
	t.Helper()
	server := httptest.NewUnstartedServer(h)
	server.Config.ErrorLog = quiet()
	server.Start()
	t.Cleanup(server.Close)
	return server.URL
}

func quiet() *log.Logger { return zap.NewStdLog(zap.NewNop()) }

// freeAddress is one where nobody listens.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// payment is the body of a request.
func payment(cart string, amount int64) string {
	body, _ := json.Marshal(Place{CartID: cart, Amount: amount, Currency: "TRY", Email: "ada@example.com", DraftOrderID: "draft-1"})
	return string(body)
}

// answer is what came back.
type answer struct {
	status int
	header http.Header
	body   []byte
}

func (a answer) String() string { return fmt.Sprintf("%d %v %s", a.status, a.header, a.body) }

func (a answer) replayed() string { return a.header.Get("Idempotency-Replayed") }

func (a answer) requestID() string { return a.header.Get("X-Request-ID") }

// order is the body of a 201. Anything else is an error.
func (a answer) order() (p placedBody, err error) {
	if err := json.Unmarshal(a.body, &p); err != nil || a.status != http.StatusCreated || p.OrderID == "" {
		return p, fmt.Errorf("want a 201 with an order: %v", a)
	}
	return p, nil
}

// placed is an order that has to be there.
func (a answer) placed(t *testing.T) placedBody {
	t.Helper()
	p, err := a.order()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// problem is the body of an error.
func (a answer) problem(t *testing.T) httpedge.Problem {
	t.Helper()
	var p httpedge.Problem
	if err := json.Unmarshal(a.body, &p); err != nil || a.header.Get("Content-Type") != "application/problem+json" || p.Status != a.status {
		t.Fatalf("want a problem: %v", a)
	}
	return p
}

// is demands a status and a code.
func (a answer) is(t *testing.T, status int, code string) {
	t.Helper()
	if p := a.problem(t); a.status != status || p.Code != code {
		t.Fatalf("want %d %s: %v", status, code, a)
	}
}

// busy reports whether it is "in progress", with all that belongs to it.
func (a answer) busy() bool {
	var p httpedge.Problem
	return a.status == http.StatusConflict && json.Unmarshal(a.body, &p) == nil && p.Code == "IDEMPOTENCY_REQUEST_IN_PROGRESS" &&
		p.Retry == httpedge.SameKey && a.header.Get("Retry-After") == "2"
}

// exchange sends a request on a connection of its own: on one that has served before, net/http would send a request with an
// Idempotency-Key a second time by itself when the answer is lost.
func exchange(ctx context.Context, method, address, body string, header http.Header) (answer, error) {
	r, err := http.NewRequestWithContext(ctx, method, address, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	for name, values := range header {
		r.Header[name] = values
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(r)
	if err != nil {
		return answer{}, err
	}
	defer res.Body.Close()
	got, err := io.ReadAll(res.Body)
	return answer{res.StatusCode, res.Header, got}, err
}

// headers are those of a post with a key, or without one where it is empty, and others, as name and value by turns.
func headers(key string, more ...string) http.Header {
	h := http.Header{"Content-Type": {"application/json"}}
	if key != "" {
		h.Set("Idempotency-Key", key)
	}
	for i := 0; i+1 < len(more); i += 2 {
		h.Add(more[i], more[i+1])
	}
	return h
}

// send posts a payment.
func send(ctx context.Context, base, key, body string, more ...string) (answer, error) {
	return exchange(ctx, http.MethodPost, base+"/api/v1/checkouts", body, headers(key, more...))
}

// post is send that has to be answered.
func post(t *testing.T, base, key, body string, more ...string) answer {
	t.Helper()
	a, err := send(within(t), base, key, body, more...)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// get asks a page that has to be answered.
func get(t *testing.T, address string) answer {
	t.Helper()
	a, err := exchange(within(t), http.MethodGet, address, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// settle posts a payment, as a client does that knows what to do, until the answer is not "ask again": each of these takes
// the server's own wait.
func settle(ctx context.Context, base, key, body string) (answer, error) {
	for {
		a, err := send(ctx, base, key, body)
		if err != nil || !a.busy() && a.status != http.StatusServiceUnavailable {
			return a, err
		}
	}
}

// settled is settle that has to end with an order.
func settled(t *testing.T, base, key, body string) (answer, placedBody) {
	t.Helper()
	a, err := settle(within(t), base, key, body)
	if err != nil {
		t.Fatal(err)
	}
	return a, a.placed(t)
}

// inParallel makes n calls at once and gives what came of them.
func inParallel(t *testing.T, n int, call func(ctx context.Context, i int) (answer, error)) []answer {
	t.Helper()
	ctx := within(t)
	answers, errs := make([]answer, n), make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { answers[i], errs[i] = call(ctx, i) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return answers
}
