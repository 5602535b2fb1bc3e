package httpedge_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/memstore"
	"github.com/tekil-go/tekil/behaviors/validation"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
	"github.com/tekil-go/tekil/requestctx/httpedge"
)

// The commands of these tests.

type placed struct {
	OrderID string `json:"order_id"`
	CartID  string `json:"cart_id"`
	Amount  int64  `json:"amount"`
}

// place is marked.
type place struct {
	CartID string `json:"cart_id" validate:"required"`
	Amount int64  `json:"amount" validate:"gt=0"`
	Card   string `json:"card,omitempty"`
}

func (place) CommandName() bus.Name[placed] { return "orders.place" }
func (place) Idempotent()                   {}

// pay is another marked command with the same body.
type pay struct {
	CartID string `json:"cart_id" validate:"required"`
	Amount int64  `json:"amount" validate:"gt=0"`
}

func (pay) CommandName() bus.Name[placed] { return "orders.pay" }
func (pay) Idempotent()                   {}

// optional is marked and runs without a key as well.
type optional struct {
	CartID string `json:"cart_id"`
}

func (optional) CommandName() bus.Name[placed] { return "orders.optional" }
func (optional) Idempotency() idempotency.Policy {
	return idempotency.Policy{KeyOptional: true}
}

// touch is not marked.
type touch struct {
	CartID string `json:"cart_id" validate:"required"`
}

func (touch) CommandName() bus.Name[placed] { return "orders.touch" }

// cancel is marked, takes its order from the path and has no result.
type cancel struct {
	OrderID string `json:"-" idempotency:"-"`
}

func (cancel) CommandName() bus.Name[bus.None] { return "orders.cancel" }
func (cancel) Idempotent()                     {}

// find is a query.
type find struct{ OrderID string }

func (find) QueryName() bus.Name[placed] { return "orders.find" }

// coded is an application's error.
type coded struct{ code, text string }

func (e coded) Error() string { return e.text }
func (e coded) Code() string  { return e.code }

var errForbidden = coded{"FORBIDDEN", "not for you"}

// spy counts what reaches the store of records.
type spy struct {
	idempotency.Store
	reads atomic.Int64
}

func (s *spy) Look(ctx context.Context, c idempotency.Claim) (*idempotency.Record, error) {
	s.reads.Add(1)
	return s.Store.Look(ctx, c)
}

func (s *spy) Begin(ctx context.Context, c idempotency.Claim) (idempotency.Transaction, error) {
	s.reads.Add(1)
	return s.Store.Begin(ctx, c)
}

func (s *spy) Lease(ctx context.Context, c idempotency.Claim) (idempotency.Lease, *idempotency.Record, error) {
	s.reads.Add(1)
	return s.Store.Lease(ctx, c)
}

func (s *spy) Find(ctx context.Context, q idempotency.Search, limit int) ([]idempotency.Stored, error) {
	s.reads.Add(1)
	return s.Store.Find(ctx, q, limit)
}

// rig is a bus with everything in it, and an edge before it.
type rig struct {
	t       testing.TB
	mem     *memstore.Store
	store   *spy
	engine  *idempotency.Engine
	bus     *bus.Bus
	edge    *httpedge.Edge
	mux     *http.ServeMux
	handled atomic.Int64 // times that a handler was entered
	log     *lines       // what the edge logs
	seen    *observed    // what the pipeline's observer saw
}

type setup struct {
	config httpedge.Config
	place  func(context.Context, place) (placed, error) // nil makes an order
	permit []bus.Guard
	store  idempotency.Store
}

func newRig(t testing.TB, s setup) *rig {
	t.Helper()
	g := &rig{t: t, mem: memstore.New(), mux: http.NewServeMux(), log: &lines{}, seen: &observed{}}
	if s.store == nil {
		s.store = g.mem
	}
	g.store = &spy{Store: s.store}
	var err error
	if g.engine, err = idempotency.New(idempotency.Config{Store: g.store}); err != nil {
		t.Fatal(err)
	}
	order := func(ctx context.Context, cart string, amount int64) (placed, error) {
		if err := g.mem.Insert(ctx, cart); err != nil {
			return placed{}, err
		}
		return placed{OrderID: "o-" + cart, CartID: cart, Amount: amount}, nil
	}
	if s.place == nil {
		s.place = func(ctx context.Context, c place) (placed, error) { return order(ctx, c.CartID, c.Amount) }
	}
	g.bus, err = bus.New(
		command(g, s.permit, s.place),
		command(g, nil, func(ctx context.Context, c pay) (placed, error) { return order(ctx, c.CartID, c.Amount) }),
		command(g, nil, func(ctx context.Context, c optional) (placed, error) { return order(ctx, c.CartID, 0) }),
		command(g, nil, func(ctx context.Context, c touch) (placed, error) { return order(ctx, c.CartID, 0) }),
		command(g, nil, func(ctx context.Context, c cancel) (bus.None, error) { return bus.None{}, g.mem.Insert(ctx, c.OrderID) }),
		bus.Answer[find](bus.Log(bus.Validate(bus.Claim(func(_ context.Context, q find) (placed, error) {
			if q.OrderID == "gone" {
				return placed{}, coded{"ORDER_NOT_FOUND", "secret reason"}
			}
			return placed{OrderID: q.OrderID}, nil
		}, nil), bus.Invocation{Name: "orders.find", Query: true}, nil, nil), bus.Invocation{Name: "orders.find", Query: true}, nil, g.seen)),
	)
	if err != nil {
		t.Fatal(err)
	}
	if s.config.Principal == nil {
		s.config.Anonymous = true
	}
	if s.config.Log == nil {
		s.config.Log = slog.New(slog.NewJSONHandler(g.log, nil))
	}
	if g.edge, err = httpedge.New(s.config); err != nil {
		t.Fatal(err)
	}
	return g
}

// command makes the entry of a command the way package registry does.
func command[C bus.Command[R], R any](g *rig, permit []bus.Guard, h bus.Handler[C, R]) bus.Entry {
	g.t.Helper()
	counted := func(ctx context.Context, c C) (R, error) {
		g.handled.Add(1)
		return h(ctx, c)
	}
	claimed, plan, err := idempotency.Stage(g.engine, counted)
	if err != nil {
		g.t.Fatal(err)
	}
	var zero C
	inv := bus.Invocation{Name: string(zero.CommandName()), Idempotent: plan.Marked}
	validated, err := validation.Stage(nil, claimed, inv, permit)
	if err != nil {
		g.t.Fatal(err)
	}
	return bus.Serve[C](bus.Log(validated, inv, nil, g.seen))
}

// route mounts the command C.
func route[C bus.Command[R], R any](g *rig, pattern string, o httpedge.Options[C, R]) http.Handler {
	g.t.Helper()
	h, err := httpedge.Command(g.edge, g.bus, pattern, o)
	if err != nil {
		g.t.Fatal(err)
	}
	g.mux.Handle(pattern, h)
	return h
}

var created = httpedge.Options[place, placed]{
	Status:   http.StatusCreated,
	Location: func(p placed) string { return "/v1/orders/" + p.OrderID },
}

// orders mounts what most tests need.
func (g *rig) orders() *rig {
	g.t.Helper()
	route(g, "POST /v1/orders", created)
	return g
}

// rows is how many orders there are.
func (g *rig) rows() int { return len(g.mem.Rows()) }

// records is how many keys there are.
func (g *rig) records() int { return len(g.mem.Records()) }

// want fails the test unless handlers were entered, rows written and records kept this often.
func (g *rig) want(handled int64, rows, records int) {
	g.t.Helper()
	if h := g.handled.Load(); h != handled || g.rows() != rows || g.records() != records {
		g.t.Errorf("H=%d S=%d K=%d, want H=%d S=%d K=%d", h, g.rows(), g.records(), handled, rows, records)
	}
}

// do serves one request without a network.
func (g *rig) do(method, path, body string, headers ...string) *reply {
	g.t.Helper()
	return do(g.t, g.mux, method, path, body, headers...)
}

// post sends the usual body.
func (g *rig) post(headers ...string) *reply {
	g.t.Helper()
	return g.do("POST", "/v1/orders", usual, headers...)
}

const (
	usual = `{"cart_id":"c-1","amount":4990}`
	key   = "order-12345"
	k1    = "Idempotency-Key: " + key
)

type reply struct {
	t      testing.TB
	status int
	header http.Header
	body   string
}

// do serves one request. Headers are "Name: value"; without a Content-Type it is application/json, and an empty one is none.
func do(t testing.TB, h http.Handler, method, path, body string, headers ...string) *reply {
	t.Helper()
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, request(method, path, body, headers...))
	return &reply{t, rec.Code, rec.Header(), rec.Body.String()}
}

func request(method, path, body string, headers ...string) *http.Request {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ":")
		if strings.EqualFold(name, "Content-Type") {
			r.Header.Del(name)
			if strings.TrimSpace(value) == "" {
				continue
			}
		}
		r.Header.Add(name, strings.TrimSpace(value))
	}
	return r
}

func (r *reply) problem() httpedge.Problem {
	r.t.Helper()
	if ct := r.header.Get("Content-Type"); ct != "application/problem+json" {
		r.t.Fatalf("status %d, content type %q, body %s: want a problem", r.status, ct, r.body)
	}
	var p httpedge.Problem
	if err := json.Unmarshal([]byte(r.body), &p); err != nil {
		r.t.Fatal(err)
	}
	if p.Status != r.status || p.Title != http.StatusText(r.status) || p.Type != "about:blank" || p.RequestID != r.header.Get("X-Request-ID") {
		r.t.Errorf("the problem %s does not fit status %d and request id %q", r.body, r.status, r.header.Get("X-Request-ID"))
	}
	return p
}

// ok fails the test unless the reply is a success that is or isn't a replay.
func (r *reply) ok(status int, replayed string) *reply {
	r.t.Helper()
	if r.status != status {
		r.t.Fatalf("status %d, want %d: %s", r.status, status, r.body)
	}
	if got := r.header.Get("Idempotency-Replayed"); got != replayed {
		r.t.Fatalf("Idempotency-Replayed is %q, want %q", got, replayed)
	}
	return r
}

// fails fails the test unless the reply is this problem.
func (r *reply) fails(status int, code string, retry httpedge.Retry) httpedge.Problem {
	r.t.Helper()
	p := r.problem()
	if r.status != status || p.Code != code || p.Retry != retry {
		r.t.Fatalf("status %d, code %s, retry %s: want %d, %s, %s: %s", r.status, p.Code, p.Retry, status, code, retry, r.body)
	}
	return p
}

// without fails the test if one of the headers is there.
func (r *reply) without(names ...string) {
	r.t.Helper()
	for _, name := range names {
		if v, ok := r.header[http.CanonicalHeaderKey(name)]; ok {
			r.t.Errorf("there is a header %s: %q", name, v)
		}
	}
}

func (r *reply) id() string { return r.header.Get("X-Request-ID") }

// server starts a server of its own for a handler.
func server(t testing.TB, h http.Handler) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	s.Start()
	t.Cleanup(s.Close)
	return s
}

// raw sends bytes to a server and reads one answer.
func raw(t testing.TB, s *httptest.Server, method, path, headers, body string) *reply {
	t.Helper()
	conn, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	text := method + " " + path + " HTTP/1.1\r\nHost: shop.example\r\nContent-Type: application/json\r\nConnection: close\r\n" +
		"Transfer-Encoding: chunked\r\n" + headers + "\r\n"
	text += chunked(body)
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(conn)
	res, err := http.ReadResponse(in, &http.Request{Method: method})
	for err == nil && res.StatusCode < 200 { // an answer may be announced
		res, err = http.ReadResponse(in, &http.Request{Method: method})
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	got, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return &reply{t, res.StatusCode, res.Header, string(got)}
}

func chunked(body string) string {
	var s strings.Builder
	w := httpChunks{&s}
	w.write(body)
	return s.String()
}

type httpChunks struct{ s *strings.Builder }

func (c httpChunks) write(body string) {
	const digits = "0123456789abcdef"
	for len(body) > 0 {
		n := min(len(body), 15)
		c.s.WriteByte(digits[n])
		c.s.WriteString("\r\n" + body[:n] + "\r\n")
		body = body[n:]
	}
	c.s.WriteString("0\r\n\r\n")
}

// lines collects what is logged.
type lines struct {
	mu  sync.Mutex
	buf strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// observed is an observer that keeps what the log line would be made of.
type observed struct {
	mu   sync.Mutex
	ends []ended
}

type ended struct {
	command  string
	request  *requestctx.Request
	code     string
	panicked bool
}

func (o *observed) Started(ctx context.Context, _ bus.Invocation) context.Context { return ctx }

func (o *observed) Ended(ctx context.Context, inv bus.Invocation, err error, panicked bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ends = append(o.ends, ended{inv.Name, requestctx.From(ctx), bus.CodeOf(err), panicked})
}

func (o *observed) all() []ended {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]ended(nil), o.ends...)
}

// bearer gives the principal that a token of the form "user.serial" belongs to.
func bearer(r *http.Request) (string, error) {
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	user, _, _ := strings.Cut(token, ".")
	switch {
	case !ok:
		return "", nil
	case user == "broken":
		return "", errors.New("the token with the secret s3cret is broken")
	case user == "locked":
		return "", errForbidden
	}
	return user, nil
}

func same[T any](t testing.TB, what string, got, want T) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func jsonInto(w *httptest.ResponseRecorder, v any) error { return json.Unmarshal(w.Body.Bytes(), v) }
