package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/memstore"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/registry"
	"github.com/tekil-go/tekil/requestctx/client"
	"github.com/tekil-go/tekil/requestctx/httpedge"
)

// place is the command on the server's side.
type place struct {
	Cart   string `json:"cart_id" validate:"required"`
	Amount int    `json:"amount" validate:"gt=0"`
}

func (place) CommandName() bus.Name[placed] { return "orders.place" }
func (place) Idempotent()                   {}

// ship is long work.
type ship struct {
	Order string `json:"order" validate:"required"`
}

func (ship) CommandName() bus.Name[placed] { return "orders.ship" }
func (ship) Idempotency() idempotency.Policy {
	return idempotency.Policy{Mode: idempotency.Leased, Duplicate: idempotency.AnswerAccepted, Wait: -1}
}

// cancel has neither a body nor a result.
type cancel struct {
	Order string `json:"-"`
}

func (cancel) CommandName() bus.Name[bus.None] { return "orders.cancel" }
func (cancel) Idempotent()                     {}

type refusal struct{}

func (refusal) Error() string { return "the cart is sold" }
func (refusal) Code() string  { return "CART_SOLD" }

// shop is a real server with its store.
type shop struct {
	*httptest.Server
	mem     *memstore.Store
	handled atomic.Int64
	// lose is how many of the next answers are lost after the work.
	lose atomic.Int64
	came atomic.Int64
	ship func()
}

func newShop(t testing.TB) *shop {
	t.Helper()
	s := &shop{mem: memstore.New(), ship: func() {}}
	reg := registry.New(registry.Config{Logger: zap.NewNop(), Store: s.mem})
	registry.Handle(reg, func(ctx context.Context, c place) (placed, error) {
		s.handled.Add(1)
		if c.Cart == "sold" {
			return placed{}, idempotency.Final(refusal{})
		}
		return placed{"o-" + c.Cart}, s.mem.Insert(ctx, c.Cart)
	})
	registry.Handle(reg, func(_ context.Context, c ship) (placed, error) {
		s.handled.Add(1)
		s.ship()
		return placed{c.Order}, nil
	})
	registry.Handle(reg, func(ctx context.Context, c cancel) (bus.None, error) {
		s.handled.Add(1)
		return bus.None{}, s.mem.Insert(ctx, c.Order)
	})
	b, err := reg.Build()
	if err != nil {
		t.Fatal(err)
	}
	const operations = "GET /operations/{id}"
	e, err := httpedge.New(httpedge.Config{Anonymous: true, Operations: operations, RetryAfter: time.Second, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mount := func(pattern string, h http.Handler, err error) {
		if err != nil {
			t.Fatal(err)
		}
		mux.Handle(pattern, h)
	}
	h, err := httpedge.Command(e, b, "POST /orders", httpedge.Options[place, placed]{
		Status: http.StatusCreated, Location: func(p placed) string { return "/orders/" + p.OrderID },
	})
	mount("POST /orders", h, err)
	h, err = httpedge.Command(e, b, "POST /shipments", httpedge.Options[ship, placed]{})
	mount("POST /shipments", h, err)
	for _, pattern := range []string{"POST /orders/{id}/cancel", "DELETE /orders/{id}"} {
		h, err = httpedge.Command(e, b, pattern, httpedge.Options[cancel, bus.None]{
			EmptyBody: true, Fill: func(r *http.Request, c *cancel) error { c.Order = r.PathValue("id"); return nil },
		})
		mount(pattern, h, err)
	}
	h, err = httpedge.Operations(e, s.mem, operations, nil)
	mount(operations, h, err)
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.came.Add(1)
		if s.lose.Add(-1) >= 0 {
			rec := httptest.NewRecorder()
			mux.ServeHTTP(rec, r)
			cut(w)
			return
		}
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *shop) want(t testing.TB, came, handled int64, rows, records int) {
	t.Helper()
	if c, h, r, k := s.came.Load(), s.handled.Load(), len(s.mem.Rows()), len(s.mem.Records()); c != came || h != handled || r != rows || k != records {
		t.Errorf("%d came, H=%d S=%d K=%d, want %d, H=%d S=%d K=%d", c, h, r, k, came, handled, rows, records)
	}
}

func TestAnAnswerThatIsLostAfterTheCommitMakesOneOrder(t *testing.T) {
	t.Parallel()
	s, store, c := newShop(t), &memory{}, fast(t)
	s.lose.Store(2)
	i, err := client.Begin(t.Context(), store, "checkout", client.Options{DraftID: "cart-77"})
	if err != nil {
		t.Fatal(err)
	}
	call := client.Call{URL: s.URL + "/orders", Command: order{"c-1", 5}}
	got, err := client.Do[placed](t.Context(), c, i, call)
	if err != nil || got.Result.OrderID != "o-c-1" || !got.Replayed || got.Tries != 3 || got.Status != 201 || got.Location != "/orders/o-c-1" {
		t.Errorf("got %+v, %v", got, err)
	}
	if got.RequestID == "" || got.OriginalRequestID == "" || got.RequestID == got.OriginalRequestID || got.DoneErr != nil {
		t.Errorf("got %+v", got)
	}
	s.want(t, 3, 1, 1, 1)
	if store.count() != 0 {
		t.Error("the intent is still stored")
	}
	again, err := client.Do[placed](t.Context(), c, i, call)
	if err != nil || again.Result != got.Result || again.Tries != 1 {
		t.Errorf("got %+v, %v", again, err)
	}
}

// The program is killed after its only try has been lost. The next one resumes; a payload that was changed meanwhile is a conflict,
// and only a renewed intent is new work.
func TestBR17_ARestartedProgramSendsTheSameKey(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]client.Options{"with a draft": {DraftID: "cart-77"}, "without a draft": {}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, dir, ctx := newShop(t), t.TempDir(), t.Context()
			begin := func() client.Intent {
				files, err := client.NewFiles(dir) // a new process
				if err != nil {
					t.Fatal(err)
				}
				i, err := client.Begin(ctx, files, "checkout", o)
				if err != nil {
					t.Fatal(err)
				}
				return i
			}
			once := fast(t)
			once.MaxTries = 1
			call := client.Call{URL: s.URL + "/orders", Command: order{"c-1", 5}}
			s.lose.Store(1)
			_, err := client.Do[placed](ctx, once, begin(), call)
			as[*client.UnknownError](t, err)

			changed := call
			changed.Command = order{"c-1", 6}
			_, err = client.Do[placed](ctx, once, begin(), changed)
			if e := as[*client.ConflictError](t, err); e.Code != "IDEMPOTENCY_KEY_CONFLICT" || e.Status != 409 || e.Tries != 1 || e.RequestID == "" {
				t.Errorf("%+v", e)
			}
			got, err := client.Do[placed](ctx, once, begin(), call)
			if err != nil || !got.Replayed {
				t.Errorf("got %+v, %v", got, err)
			}
			s.want(t, 3, 1, 1, 1)

			files, err := client.NewFiles(dir)
			if err != nil {
				t.Fatal(err)
			}
			if o.DraftID != "" {
				o.Generation = 2
			}
			fresh, err := client.Renew(ctx, files, "checkout", o)
			if err != nil {
				t.Fatal(err)
			}
			if got, err = client.Do[placed](ctx, once, fresh, changed); err != nil || got.Replayed {
				t.Errorf("got %+v, %v", got, err)
			}
			s.want(t, 4, 2, 2, 2)
		})
	}
}

func TestBR17_NothingIsSentWithoutAnIntent(t *testing.T) {
	t.Parallel()
	c := &client.Client{Transport: fake(func(*http.Request) (*http.Response, error) { panic("something was sent") })}
	_, err := client.Do[placed](t.Context(), c, client.Intent{}, client.Call{URL: "http://shop.example", Command: order{}})
	if !errors.Is(err, client.ErrNoIntent) {
		t.Error(err)
	}
	for _, call := range []client.Call{
		{URL: "http://shop.example", Method: "GET"}, {URL: "shop.example/x"}, {URL: "ftp://shop.example"}, {URL: "http://shop.example", Method: "P T"}, {URL: "%"},
		{URL: "http://shop.example", Command: math.NaN()},
		{URL: "http://shop.example", Header: http.Header{"Idempotency-Key": {"order-12345"}}},
	} {
		if _, err := client.Do[placed](t.Context(), c, intent(t), call); err == nil || !strings.HasPrefix(err.Error(), "client: ") {
			t.Errorf("%+v: %v", call, err)
		}
	}
}

func TestARefusalIsGivenWithItsFieldsAndCode(t *testing.T) {
	t.Parallel()
	s, store, c := newShop(t), &memory{}, fast(t)
	i, err := client.Begin(t.Context(), store, "checkout", client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.Do[placed](t.Context(), c, i, client.Call{URL: s.URL + "/orders", Command: order{"c-1", -5}})
	e := as[*client.RefusedError](t, err)
	if e.Status != 400 || e.Code != "VALIDATION_FAILED" || e.Retry != "same-key" || len(e.Fields) != 1 || e.Fields[0].Path != "amount" || e.Tries != 1 || e.Unsure || e.RequestID == "" {
		t.Errorf("%+v", e)
	}
	if got := e.Error(); got != "client: the command was refused: status 400 VALIDATION_FAILED, 1 wrong fields" {
		t.Error(got)
	}
	s.lose.Store(1)
	_, err = client.Do[placed](t.Context(), c, i, client.Call{URL: s.URL + "/orders", Command: order{"sold", 5}})
	if e = as[*client.RefusedError](t, err); e.Status != 422 || e.Code != "CART_SOLD" || e.Retry != "none" || e.Tries != 2 || !e.Unsure || e.Detail != "the cart is sold" {
		t.Errorf("%+v", e)
	}
	if store.count() != 1 {
		t.Error("a refusal has ended the intent")
	}
}

func TestACommandWithoutABodyAndAResultIsSent(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.lose.Store(1)
	for _, c := range []client.Call{{URL: s.URL + "/orders/o-1/cancel"}, {Method: "DELETE", URL: s.URL + "/orders/o-2"}} {
		got, err := client.Do[struct{}](t.Context(), fast(t), intent(t), c)
		if err != nil || got.Status/100 != 2 {
			t.Errorf("%s: %+v, %v", c.Method, got, err)
		}
	}
	s.want(t, 3, 2, 2, 2)
}

func TestInProgressIsWaitedForAndThenSaid(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &client.Client{Transport: fake(inProgress), Total: 5 * time.Second}
		store := &memory{}
		i, err := client.Begin(t.Context(), store, "checkout", client.Options{})
		if err != nil {
			t.Fatal(err)
		}
		_, err = client.Do[placed](t.Context(), c, i, client.Call{URL: "http://shop.example", Command: order{}})
		e := as[*client.InProgressError](t, err)
		if e.Tries != 3 || e.RetryAfter != 2*time.Second || e.Status != 409 || e.Stop != client.StopRetryAfter || store.count() != 1 {
			t.Errorf("%+v, %d stored", e, store.count())
		}
	})
}

func TestLongWorkIsFollowedToItsEnd(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	begun, ready := make(chan struct{}), make(chan struct{})
	s.ship = func() {
		close(begun)
		<-ready
	}
	i, call := intent(t), client.Call{URL: s.URL + "/shipments", Command: ship{"o-1"}}
	var first sync.WaitGroup
	first.Go(func() {
		if got, err := client.Do[placed](t.Context(), fast(t), i, call); err != nil || got.Replayed {
			t.Errorf("got %+v, %v", got, err)
		}
	})
	<-begun
	_, err := client.Do[placed](t.Context(), fast(t), i, call)
	e := as[*client.InProgressError](t, err)
	if e.Status != 202 || e.OperationID == "" || !strings.HasPrefix(e.Location, "/operations/") || e.Tries != 1 || e.RetryAfter <= 0 {
		t.Errorf("%+v", e)
	}
	call.Follow = true
	c, looks := fast(t), 0
	c.Observe = func(tr client.Try) {
		if tr.Method == "GET" {
			if looks++; looks == 1 {
				close(ready)
				first.Wait()
			}
		}
	}
	got, err := client.Do[placed](t.Context(), c, i, call)
	if err != nil || got.Result.OrderID != "o-1" || !got.Replayed || got.Tries != 2 || looks != 2 {
		t.Errorf("got %+v, %v after %d looks", got, err, looks)
	}
	if s.handled.Load() != 1 {
		t.Error("it was done twice")
	}
}

// What a server may answer with 202, and how long it is followed.
func TestFollowingKeepsToTheOriginAndTheLimits(t *testing.T) {
	t.Parallel()
	accepted := func(location string) func(*http.Request) (*http.Response, error) {
		return func(r *http.Request) (*http.Response, error) {
			if r.Method == "GET" {
				if r.Header.Get("Idempotency-Key") != "" || r.Header.Get("Authorization") != "Bearer x" {
					return nil, fmt.Errorf("the look has the headers %v", r.Header)
				}
				return reply(r, 200, `{"state":"in_progress"}`, "Retry-After", "10"), nil
			}
			h := []string{"Retry-After", "5"}
			if location != "" {
				h = append(h, "Location", location)
			}
			return reply(r, 202, `{"operation_id":"op-1","state":"in_progress"}`, h...), nil
		}
	}
	for _, c := range []struct {
		name, location string
		follow         bool
		tries, looks   int
		took           time.Duration
		stop           client.Stop
		err            bool
	}{
		{"not asked for", "/operations/1", false, 1, 0, 0, client.StopFinal, false},
		{"asked for", "/operations/1", true, 1, 3, 25 * time.Second, client.StopTotal, false}, // at 5, 15 and 25
		{"the same origin in full", "http://SHOP.example:80/operations/1", true, 1, 3, 25 * time.Second, client.StopTotal, false},
		{"another host", "http://evil.example/operations/1", true, 1, 0, 0, client.StopFinal, true},
		{"another port", "http://shop.example:81/operations/1", true, 1, 0, 0, client.StopFinal, true},
		{"another scheme", "https://shop.example/operations/1", true, 1, 0, 0, client.StopFinal, true},
		{"another host without a scheme", "//evil.example/operations/1", true, 1, 0, 0, client.StopFinal, true},
		{"no location", "", true, 3, 0, 10 * time.Second, client.StopTries, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				seen := &tries{}
				cl := &client.Client{Transport: fake(accepted(c.location)), Total: 26 * time.Second, MaxTries: 3, Observe: seen.add}
				start := time.Now()
				_, err := client.Do[placed](t.Context(), cl, intent(t), client.Call{
					URL: "http://shop.example/shipments", Command: ship{"o-1"}, Follow: c.follow,
					Header: http.Header{"Authorization": {"Bearer x"}},
				})
				e := as[*client.InProgressError](t, err)
				looks := 0
				for _, one := range seen.all() {
					if one.Method == "GET" {
						looks++
					}
				}
				if e.Tries != c.tries || looks != c.looks || e.Stop != c.stop || (e.Err != nil) != c.err || e.OperationID != "op-1" {
					t.Errorf("%d looks, %+v", looks, e)
				}
				if took := time.Since(start); took != c.took {
					t.Errorf("it took %v", took)
				}
			})
		})
	}
}

func TestAResultThatCannotBeReadLeavesTheIntent(t *testing.T) {
	t.Parallel()
	s := newStub(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		switch n {
		case 0:
			_, _ = io.WriteString(w, `{"order_id":4711}`)
		case 1:
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, `{"order_id":`)
		default:
			_, _ = io.WriteString(w, `{"order_id":"o-1","new":"field"}`)
		}
	})
	store := &memory{}
	for n := range 3 {
		i, err := client.Begin(t.Context(), store, "checkout", client.Options{})
		if err != nil {
			t.Fatal(err)
		}
		got, err := client.Do[placed](t.Context(), fast(t), i, client.Call{URL: s.URL, Command: order{}})
		if n == 2 {
			if err != nil || got.Result.OrderID != "o-1" || store.count() != 0 {
				t.Errorf("got %+v, %v", got, err)
			}
			break
		}
		e := as[*client.ResultError](t, err)
		if e.Status != 200 || e.Err == nil || strings.Contains(e.Error(), "4711") || store.count() != 1 {
			t.Errorf("%+v", e)
		}
		if n == 0 {
			as[*json.UnmarshalTypeError](t, err)
		} else if !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Error(err)
		}
	}
	for _, a := range s.came() {
		if a.key != s.came()[0].key {
			t.Error("another key")
		}
	}
}

type broken struct{ memory }

func (*broken) Remove(context.Context, client.Record) error { return errors.New("the disk is full") }

func TestASuccessStaysOneWhenTheIntentCannotBeRemoved(t *testing.T) {
	t.Parallel()
	store := &broken{}
	i, err := client.Begin(t.Context(), store, "checkout", client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	got, err := client.Do[placed](t.Context(), &client.Client{Transport: fake(created)}, i, client.Call{URL: "http://shop.example", Command: order{}})
	if err != nil || got.Result.OrderID != "o-1" || got.DoneErr == nil {
		t.Errorf("got %+v, %v", got, err)
	}
}

// What the errors of Do say, by what the tries come to.
func TestTheErrorSaysWhatIsKnown(t *testing.T) {
	t.Parallel()
	dial := func(*http.Request) (*http.Response, error) { return nil, errDial }
	answer := func(status int, body string) func(*http.Request) (*http.Response, error) {
		return func(r *http.Request) (*http.Response, error) { return reply(r, status, body), nil }
	}
	for _, c := range []struct {
		answers []func(*http.Request) (*http.Response, error)
		text    string
	}{
		{
			[]func(*http.Request) (*http.Response, error){dial, dial},
			"client: the request could not be sent (2 tries): the tries are used up; the last error was: dial tcp: unexpected EOF",
		},
		{
			[]func(*http.Request) (*http.Response, error){answer(503, problemJSON("STORE_AWAY", "same-key")), dial},
			"client: it is not known whether the request was carried out (2 tries): the tries are used up; the last answer was status 503 STORE_AWAY; " +
				"the last error was: dial tcp: unexpected EOF",
		},
		{
			[]func(*http.Request) (*http.Response, error){answer(500, problemJSON("<b>my card 4111</b>", "none"))},
			"client: it is not known whether the request was carried out (1 try): the server says that sending it again does not help; the last answer was status 500",
		},
		{
			[]func(*http.Request) (*http.Response, error){answer(500, ""), answer(401, problemJSON("UNAUTHENTICATED", "same-key"))},
			"client: the command was refused: status 401 UNAUTHENTICATED; an earlier try may have been carried out",
		},
		{
			[]func(*http.Request) (*http.Response, error){dial, answer(401, problemJSON("UNAUTHENTICATED", "same-key"))},
			"client: the command was refused: status 401 UNAUTHENTICATED",
		},
		{
			[]func(*http.Request) (*http.Response, error){answer(422, problemJSON("IDEMPOTENCY_KEY_CONFLICT", "none"))}, // the status of the draft
			"client: conflict: status 422 IDEMPOTENCY_KEY_CONFLICT",
		},
		{
			[]func(*http.Request) (*http.Response, error){inProgress, inProgress},
			"client: the command is still in progress (status 409, 2 tries)",
		},
		{
			[]func(*http.Request) (*http.Response, error){answer(429, problemJSON("SLOW_DOWN", "none"))},
			"client: the command was refused: status 429 SLOW_DOWN",
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			n := 0
			cl := &client.Client{MaxTries: 2, Transport: fake(func(r *http.Request) (*http.Response, error) {
				n++
				return c.answers[n-1](r)
			})}
			_, err := client.Do[placed](t.Context(), cl, intent(t), client.Call{URL: "http://shop.example", Command: order{}})
			if got := errorText(err); got != c.text {
				t.Errorf("the error is\n%s\nwant\n%s", got, c.text)
			}
		})
	}
}

// Ten goroutines with one intent: the server lets one do the work.
func TestOneIntentSentByManyAtOnceIsDoneOnce(t *testing.T) {
	t.Parallel()
	s, i, c := newShop(t), intent(t), fast(t)
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			if got, err := client.Do[placed](t.Context(), c, i, client.Call{URL: s.URL + "/orders", Command: order{"c-1", 5}}); err != nil || got.Result.OrderID != "o-c-1" {
				t.Errorf("got %+v, %v", got, err)
			}
		})
	}
	all.Wait()
	if len(s.mem.Rows()) != 1 {
		t.Errorf("%d rows", len(s.mem.Rows()))
	}
}
