package registrytest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"go.uber.org/zap"

	"github.com/tekil-go/tekil/behaviors/idempotency/memstore"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/registry"
	"github.com/tekil-go/tekil/registry/registrytest"
	"github.com/tekil-go/tekil/requestctx"
	"github.com/tekil-go/tekil/requestctx/httpedge"
	"github.com/tekil-go/tekil/requestctx/msgedge"
)

// shop is a bus with the handler of place on it, and who looks on.
func shop(handler func(context.Context, place) (placed, error), o ...bus.Observer) (*bus.Bus, error) {
	reg := registry.New(registry.Config{Logger: zap.NewNop(), Store: memstore.New(), Observers: o})
	registry.Handle(reg, handler)
	registry.HandleQuery(reg, func(context.Context, find) (placed, error) { return placed{}, nil })
	return reg.Build()
}

type find struct{}

func (find) QueryName() bus.Name[placed] { return "orders.find" }

func one(context.Context, place) (placed, error) { return placed{"o-1"}, nil }

func TestASpyNotesWhatBecameOfADispatchAndNothingOfItsPayload(t *testing.T) {
	t.Parallel()
	var spy registrytest.Spy
	b, err := shop(func(_ context.Context, cmd place) (placed, error) {
		switch cmd.Cart {
		case "fails":
			return placed{}, errors.New("cart-secret")
		case "panics":
			panic("cart-secret")
		}
		return placed{"o-1"}, nil
	}, &spy)
	if err != nil {
		t.Fatal(err)
	}
	key, err := requestctx.ParseKey("spied-upon-1")
	if err != nil {
		t.Fatal(err)
	}
	keyed := func() context.Context {
		ctx, _ := requestctx.New(t.Context(), requestctx.Values{Key: key, Scope: requestctx.Scope{Client: "c"}})
		return ctx
	}
	for _, cmd := range []place{{"cart-1", 1}, {"cart-1", 1}, {"cart-1", 2}, {"", 0}} {
		_, _ = bus.Send(keyed(), b, cmd)
	}
	key, _ = requestctx.ParseKey("spied-upon-2")
	_, _ = bus.Send(keyed(), b, place{"fails", 1})
	func() {
		defer func() { _ = recover() }()
		_, _ = bus.Send(keyed(), b, place{"panics", 1})
	}()
	keyless, _ := requestctx.New(t.Context(), requestctx.Values{Scope: requestctx.Scope{Client: "c"}})
	_, _ = bus.Send(keyless, b, place{"cart-1", 1})
	_, _ = bus.Ask(t.Context(), b, find{}) // not even a request
	_ = bus.Check(keyed(), b, place{"cart-1", 1})
	_, _ = bus.Ask(keyed(), b, find{})
	want := []registrytest.Dispatch{
		{Name: "orders.place", Keyed: true, State: requestctx.StateExecuted},
		{Name: "orders.place", Keyed: true, State: requestctx.StateReplayed},
		{Name: "orders.place", Keyed: true, State: requestctx.StateConflict, Code: "IDEMPOTENCY_KEY_CONFLICT"},
		{Name: "orders.place", Keyed: true, Code: "VALIDATION_FAILED"},
		{Name: "orders.place", Keyed: true, State: requestctx.StateFreed, Code: "ERROR"},
		{Name: "orders.place", Keyed: true, State: requestctx.StateFreed, Panicked: true},
		{Name: "orders.place", Code: "IDEMPOTENCY_KEY_MISSING", State: requestctx.StateRefused},
		{Name: "orders.find", Query: true},
		{Name: "orders.place", Keyed: true, Check: true},
		{Name: "orders.find", Keyed: true, Query: true},
	}
	got := spy.Dispatches()
	if !slices.Equal(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if all := fmt.Sprintf("%+v", got); strings.Contains(all, "cart") || strings.Contains(all, "spied") {
		t.Errorf("the payload or the key is in %s", all)
	}
	if again := spy.Dispatches(); len(again) != 0 {
		t.Errorf("it has not forgotten %+v", again)
	}
}

func TestTwiceHTTPServesTheBodyTwiceAndGivesTheSecondAnswer(t *testing.T) {
	t.Parallel()
	var bodies []string
	h := registrytest.TwiceHTTP(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		bodies = append(bodies, string(body)+r.Header.Get("Idempotency-Key"))
		w.Header().Set("Number", fmt.Sprint(len(bodies)))
		w.WriteHeader(200 + len(bodies))
		_, _ = io.WriteString(w, fmt.Sprint("answer ", len(bodies)))
	}))
	r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader("body "))
	r.Header.Set("Idempotency-Key", "key-1")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if w.Code != 202 || w.Body.String() != "answer 2" || w.Header().Get("Number") != "2" || !slices.Equal(bodies, []string{"body key-1", "body key-1"}) {
		t.Errorf("%d %q %v, served %q", w.Code, w.Body, w.Header(), bodies)
	}
	w = httptest.NewRecorder()
	h.ServeHTTP(w, &http.Request{Method: http.MethodGet, URL: r.URL, Header: http.Header{}}) // with no body at all
	if w.Code != 204 || len(bodies) != 4 {
		t.Errorf("without a body: %d, served %q", w.Code, bodies)
	}
	w = httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/", iotest.ErrReader(errors.New("cut"))))
	if w.Code != http.StatusBadRequest || len(bodies) != 4 {
		t.Errorf("a body that cannot be read: %d, served %q", w.Code, bodies)
	}
}

func TestCalledOutDoesNothingOutsideOfProve(t *testing.T) {
	t.Parallel()
	if err := registrytest.CalledOut(t.Context()); err != nil {
		t.Error(err)
	}
}

// recorder is a testing.TB that keeps the first failure and ends the goroutine, as Fatalf does.
type recorder struct {
	testing.TB
	said string
}

func (*recorder) Helper() {}
func (r *recorder) Fatalf(format string, args ...any) {
	r.said = fmt.Sprintf(format, args...)
	panic(r)
}

func TestAgeSQLiteMovesAllTimesOfARecord(t *testing.T) {
	t.Parallel()
	db := openSQLite(t)
	const insert = `INSERT INTO idempotency_records (id, tenant, client, operation, key, request_hash, hash_version, state, after_expiry, attempt,
		fence, lease_until, outcome, origin_request_id, created_at, completed_at, expires_at)
		VALUES (?1, '', 'c', 'o', ?1, ?1, 0, ?2, 'reuse', ?1, 1, ?3, ?4, '', 100000, ?5, 300000)`
	for _, args := range [][]any{{[]byte("1"), "completed", nil, 0, 200000}, {[]byte("2"), "in_progress", 250000, nil, nil}} {
		if _, err := db.ExecContext(t.Context(), strings.Replace(insert, "'o', ?1", "'o', hex(?1)", 1), args...); err != nil {
			t.Fatal(err)
		}
	}
	registrytest.AgeSQLite(t, db)(90 * 1e9)
	var got string
	if err := db.QueryRowContext(t.Context(), `SELECT group_concat(created_at || ' ' || coalesce(completed_at, '-') || ' ' || expires_at || ' ' ||
		coalesce(lease_until, '-'), ', ' ORDER BY id) FROM idempotency_records`).Scan(&got); err != nil {
		t.Fatal(err)
	}
	if want := "10000 110000 210000 -, 10000 - 210000 160000"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	_ = db.Close()
	r := &recorder{TB: t}
	func() {
		defer func() { _ = recover() }()
		registrytest.AgeSQLite(r, db)(1)
	}()
	if !strings.HasPrefix(r.said, "registrytest: make the records older: ") {
		t.Errorf("on a closed database it said %q", r.said)
	}
}

// A test of an edge says how often a command was sent, and what became of it.
func ExampleSpy() {
	var spy registrytest.Spy
	b, err := shop(one, &spy)
	if err != nil {
		log.Fatal(err)
	}
	edge, err := httpedge.New(httpedge.Config{Anonymous: true})
	if err != nil {
		log.Fatal(err)
	}
	handler, err := httpedge.Command(edge, b, "POST /orders", httpedge.Options[place, placed]{})
	if err != nil {
		log.Fatal(err)
	}
	r := httptest.NewRequest(http.MethodPost, "/orders", strings.NewReader(`{"cart":"cart-1","amount":4990}`))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Idempotency-Key", "order-2041")
	handler.ServeHTTP(httptest.NewRecorder(), r)

	for _, d := range spy.Dispatches() {
		fmt.Println(d.Name, "keyed:", d.Keyed, d.State)
	}
	// Output: orders.place keyed: true executed
}

// The client has not got the first answer and sends again.
func ExampleTwiceHTTP() {
	b, err := shop(one)
	if err != nil {
		log.Fatal(err)
	}
	edge, err := httpedge.New(httpedge.Config{Anonymous: true})
	if err != nil {
		log.Fatal(err)
	}
	handler, err := httpedge.Command(edge, b, "POST /orders", httpedge.Options[place, placed]{})
	if err != nil {
		log.Fatal(err)
	}
	r := httptest.NewRequest(http.MethodPost, "/orders", strings.NewReader(`{"cart":"cart-1","amount":4990}`))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Idempotency-Key", "order-2041")
	w := httptest.NewRecorder()
	registrytest.TwiceHTTP(handler).ServeHTTP(w, r)

	fmt.Println(w.Code, w.Header().Get("Idempotency-Replayed"), strings.TrimSpace(w.Body.String()))
	// Output: 200 true {"order_id":"o-1"}
}

// The broker has lost an acknowledgement and delivers again.
func ExampleTwice() {
	runs := 0
	b, err := shop(func(context.Context, place) (placed, error) {
		runs++
		return placed{"o-1"}, nil
	})
	if err != nil {
		log.Fatal(err)
	}
	consumer, err := msgedge.New(msgedge.Config{Bus: b, Consumer: "orders"})
	if err != nil {
		log.Fatal(err)
	}
	if err := msgedge.Handle[place](consumer, "order.placed"); err != nil {
		log.Fatal(err)
	}
	receive := registrytest.Twice(consumer.Receive)
	verdict := receive(context.Background(), msgedge.Message{ID: "message-1", Type: "order.placed", Source: "orders", Payload: []byte(`{"cart":"cart-1","amount":4990}`)})
	fmt.Println(verdict.Action, "after", runs, "run")
	// Output: ack after 1 run
}

// A fake of a payment provider tells the kit that it was called, and gives the kit's error in place of its answer.
func ExampleCalledOut() {
	held := map[string]bool{}
	authorize := func(ctx context.Context, key string) (id string, err error) {
		held[key] = true // the work is done, whatever becomes of the answer
		if err := registrytest.CalledOut(ctx); err != nil {
			return "", err
		}
		return "auth-" + key, nil
	}
	fmt.Println(authorize(context.Background(), "k1"))
	// Output: auth-k1 <nil>
}
