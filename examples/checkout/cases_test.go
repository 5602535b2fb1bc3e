package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/tekil-go/tekil/requestctx"
	"github.com/tekil-go/tekil/requestctx/httpedge"
)

// Cases from the field, against the service in this process.

// sent is what became of a request that was sent in another goroutine.
type sent struct {
	answer
	err error
}

func sendAside(ctx context.Context, base, key, body string) <-chan sent {
	c := make(chan sent, 1)
	go func() {
		a, err := send(ctx, base, key, body)
		c <- sent{a, err}
	}()
	return c
}

func TestBR03_ClientHangsUp(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		entered, release := make(chan struct{}), make(chan struct{})
		s := serve(t, d, func(context.Context, int64) error {
			close(entered) // a second run would panic here
			<-release
			return nil
		})
		body := payment("cart-1", 4990)
		ctx, hangUp := context.WithCancel(within(t))
		first := sendAside(ctx, s.base, "client-hangs-up", body)
		await(t, entered, "the handler")
		hangUp()
		if got := await(t, first, "the hang-up"); !errors.Is(got.err, context.Canceled) {
			t.Fatalf("the client did not hang up: %v %v", got.err, got.answer)
		}
		if busy := post(t, s.base, "client-hangs-up", body); !busy.busy() {
			t.Errorf("while the handler runs: %v", busy)
		}
		d.holds(t, 0, 0)
		close(release)
		if retry, _ := settled(t, s.base, "client-hangs-up", body); retry.replayed() != "true" {
			t.Errorf("the retry: %v", retry)
		}
		if n := s.runs.Load(); n != 1 {
			t.Errorf("the handler ran %d times", n)
		}
		d.holds(t, 1, 1)
	})
}

func TestBR04_AQueryAfterTheHangUpStillRuns(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		entered, gone := make(chan struct{}), make(chan struct{})
		var s *site
		s = serve(t, d, func(ctx context.Context, _ int64) error {
			close(entered)
			<-gone
			found, err := s.list(ctx, 1, "") // it sees the order that was just written, in its own transaction
			if err == nil && len(found) != 1 {
				err = fmt.Errorf("%d orders in the transaction", len(found))
			}
			return errors.Join(err, ctx.Err())
		})
		body := payment("cart-1", 4990)
		ctx, hangUp := context.WithCancel(within(t))
		first := sendAside(ctx, s.base, "query-after-hang-up", body)
		await(t, entered, "the handler")
		hangUp()
		await(t, first, "the hang-up")
		close(gone)
		if retry, _ := settled(t, s.base, "query-after-hang-up", body); retry.replayed() != "true" {
			t.Errorf("the retry: %v", retry)
		}
		d.holds(t, 1, 1)
	})
}

func TestBR04_ABrokenReadPathIsLoud(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		s := serve(t, d, nil)
		body := payment("cart-1", 4990)
		post(t, s.base, "before-the-fault", body).placed(t)
		d.exec(t, `ALTER TABLE idempotency_records RENAME TO mislaid`)
		for _, key := range []string{"before-the-fault", "during-the-fault"} {
			a := post(t, s.base, key, body)
			a.is(t, http.StatusServiceUnavailable, "IDEMPOTENCY_STORE_UNAVAILABLE")
			discreet(t, a)
			if a.problem(t).Retry != httpedge.SameKey || a.header.Get("Retry-After") == "" {
				t.Errorf("%v", a)
			}
		}
		if n := s.runs.Load(); n != 1 {
			t.Errorf("the handler ran %d times", n)
		}
		d.exec(t, `ALTER TABLE mislaid RENAME TO idempotency_records`)
		if a := post(t, s.base, "before-the-fault", body); a.replayed() != "true" {
			t.Errorf("after the fault: %v", a)
		}
		if a := post(t, s.base, "during-the-fault", body); a.replayed() != "false" {
			t.Errorf("after the fault: %v", a)
		}
		d.holds(t, 2, 2)
	})
}

// BR-05(2) and (4): the handler writes and then fails.
func TestBR05_AFailureAfterTheWriteLeavesNothing(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		fail   func() error
		status int
		code   string
	}{
		{"an error", func() error { return errors.New("the receipt could not be printed for ada@example.com") }, http.StatusInternalServerError, "INTERNAL"},
		{"a temporary error", func() error { return &coded{"PROVIDER_BUSY", "The provider is busy."} }, http.StatusInternalServerError, "INTERNAL"},
		{"a deadline", func() error { return fmt.Errorf("ask for stock: %w", context.DeadlineExceeded) }, http.StatusServiceUnavailable, "DEADLINE_EXCEEDED"},
		{"a panic", func() error { panic("ada@example.com") }, http.StatusInternalServerError, "INTERNAL"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			both(t, func(t *testing.T, d *database) {
				s := serve(t, d, func(_ context.Context, run int64) error {
					if run <= 2 {
						return c.fail()
					}
					return nil
				})
				body := payment("cart-1", 4990)
				for range 2 { // the failure is not replayed: it happens again
					a := post(t, s.base, d.key("fails-after-write"), body)
					a.is(t, c.status, c.code)
					discreet(t, a)
					if p := a.problem(t); p.Retry != httpedge.SameKey || a.replayed() != "false" || a.header.Get("Retry-After") != "2" {
						t.Errorf("%v", a)
					}
					if strings.Contains(string(a.body), "ada@") || strings.Contains(s.log.String(), "ada@") {
						t.Errorf("the error's text is told: %s\n%s", a.body, s.log)
					}
					d.holds(t, 0, 0)
				}
				if a := post(t, s.base, d.key("fails-after-write"), body); a.placed(t).CartID != "cart-1" || a.replayed() != "false" {
					t.Errorf("the retry: %v", a)
				}
				if n := s.runs.Load(); n != 3 {
					t.Errorf("the handler ran %d times", n)
				}
				d.holds(t, 1, 1)
			})
		})
	}
}

// broken is a writer that fails in the middle of the answer.
type broken struct{ http.ResponseWriter }

func (broken) Write(p []byte) (int, error) { return len(p) / 2, errors.New("the wire is cut") }

// panicking is a writer that does not survive the first byte.
type panicking struct{ http.ResponseWriter }

func (panicking) WriteHeader(int) { panic("the encoder of the answer is broken") }

// zipped is a writer that compresses.
type zipped struct {
	http.ResponseWriter
	zip *gzip.Writer
}

func (z zipped) Write(p []byte) (int, error) { return z.zip.Write(p) }

func TestBR11_WhatBecomesOfTheAnswerDoesNotCount(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		middle func(http.Handler) http.HandlerFunc
		status int // of the first answer; 0 where there is none
	}{
		{"a middleware replaces the status", func(next http.Handler) http.HandlerFunc {
			return func(w http.ResponseWriter, r *http.Request) {
				next.ServeHTTP(httptest.NewRecorder(), r)
				w.WriteHeader(http.StatusBadGateway)
			}
		}, http.StatusBadGateway},
		{"writing the body fails", func(next http.Handler) http.HandlerFunc {
			return func(w http.ResponseWriter, r *http.Request) {
				next.ServeHTTP(broken{w}, r)
				panic(http.ErrAbortHandler)
			}
		}, 0},
		{"a middleware panics after the handler", func(next http.Handler) http.HandlerFunc {
			return func(w http.ResponseWriter, r *http.Request) {
				next.ServeHTTP(httptest.NewRecorder(), r)
				panic("a middleware of somebody's")
			}
		}, 0},
		{"X18 a panic after COMMIT, before the first byte", func(next http.Handler) http.HandlerFunc {
			return func(w http.ResponseWriter, r *http.Request) { next.ServeHTTP(panicking{w}, r) }
		}, 0},
		{"the gzip writer fails", func(next http.Handler) http.HandlerFunc {
			return func(w http.ResponseWriter, r *http.Request) {
				zip := gzip.NewWriter(broken{w})
				next.ServeHTTP(zipped{w, zip}, r)
				if zip.Close() == nil {
					panic("the gzip writer has not failed")
				}
				panic(http.ErrAbortHandler)
			}
		}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			both(t, func(t *testing.T, d *database) {
				s := serve(t, d, nil)
				behind := listen(t, c.middle(s))
				for key, cart := range map[string]string{d.key("paid-and-broken"): "cart-1", d.key("refused-and-broken"): "cart-1-declined"} {
					a, err := send(within(t), behind, key, payment(cart, 4990))
					if (err != nil) != (c.status == 0) || err == nil && a.status != c.status {
						t.Fatalf("the first answer: %v %v", err, a)
					}
				}
				if retry := post(t, s.base, d.key("paid-and-broken"), payment("cart-1", 4990)); retry.placed(t).CartID != "cart-1" || retry.replayed() != "true" {
					t.Errorf("the retry: %v", retry)
				}
				retry := post(t, s.base, d.key("refused-and-broken"), payment("cart-1-declined", 4990))
				if retry.is(t, http.StatusPaymentRequired, "PAYMENT_DECLINED"); retry.replayed() != "true" {
					t.Errorf("the retry: %v", retry)
				}
				if n := s.runs.Load(); n != 1 {
					t.Errorf("the handler ran %d times", n)
				}
				d.holds(t, 1, 2)
			})
		})
	}
}

func TestBR20_AKeyOnAnotherRouteIsAnotherIntent(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		kept, store := d.open(t)
		b, _, err := newBus(kept, store, zap.NewNop(), options{})
		if err != nil {
			t.Fatal(err)
		}
		edge, err := httpedge.New(httpedge.Config{Anonymous: true})
		if err != nil {
			t.Fatal(err)
		}
		mux := http.NewServeMux()
		for pattern, fill := range map[string]func(*http.Request, *Place) error{
			"POST /orders":            nil,
			"PUT /orders":             nil,
			"POST /payments":          nil,
			"POST /carts/{cart}/paid": func(r *http.Request, c *Place) error { c.CartID = r.PathValue("cart"); return nil },
		} {
			h, err := httpedge.Command(edge, b, pattern, httpedge.Options[Place, Placed]{
				Status: http.StatusCreated, Fill: fill, Body: func(req *requestctx.Request, p Placed) any { return placedBody{req.ID(), p} },
			})
			if err != nil {
				t.Fatal(err)
			}
			mux.Handle(pattern, h)
		}
		base := listen(t, mux)
		body := payment("cart-1", 4990)
		ids := map[string]bool{}
		for _, route := range []string{"POST /orders", "POST /payments", "PUT /orders", "POST /carts/one/paid"} {
			method, path, _ := strings.Cut(route, " ")
			for i, want := range []string{"false", "true"} {
				a, err := exchange(within(t), method, base+path, body, headers("one-key-everywhere"))
				if err != nil {
					t.Fatal(err)
				}
				if ids[a.placed(t).OrderID] != (i == 1) || a.replayed() != want {
					t.Errorf("%s, time %d: %v", route, i+1, a)
				}
				ids[a.placed(t).OrderID] = true
			}
		}
		// The same route for another resource is a conflict (semantics.md 2.2), and a query string is no resource.
		other, err := exchange(within(t), http.MethodPost, base+"/carts/two/paid", body, headers("one-key-everywhere"))
		if err != nil {
			t.Fatal(err)
		}
		other.is(t, http.StatusConflict, "IDEMPOTENCY_KEY_CONFLICT")
		asked, err := exchange(within(t), http.MethodPost, base+"/orders?trace=1", body, headers("one-key-everywhere"))
		if err != nil || asked.replayed() != "true" {
			t.Errorf("with a query string: %v %v", err, asked)
		}
		d.holds(t, 4, 4)
	})
}

func TestBR20_PathsThatAreNotTheRouteAreNotFound(t *testing.T) {
	t.Parallel()
	d := sqliteDatabase(t)
	s := serve(t, d, nil)
	for path, status := range map[string]int{
		"/API/V1/CHECKOUTS": http.StatusNotFound, "/api/v1/checkouts/": http.StatusNotFound, "/api/v1/checkout": http.StatusNotFound,
		"/api/v1/orders": http.StatusMethodNotAllowed,
	} {
		a, err := exchange(within(t), http.MethodPost, s.base+path, payment("cart-1", 4990), headers("not-the-route"))
		if err != nil || a.status != status {
			t.Errorf("%s: %v %v", path, err, a)
		}
	}
	d.holds(t, 0, 0)
}

// BR-24, the server's part.
func TestBR24_SeveralKeysAreRefused(t *testing.T) {
	t.Parallel()
	d := sqliteDatabase(t)
	s := serve(t, d, nil)
	secure := httptest.NewUnstartedServer(s)
	secure.EnableHTTP2 = true
	secure.StartTLS()
	t.Cleanup(secure.Close)

	for _, c := range []struct {
		name    string
		headers http.Header
	}{
		{"two lines", http.Header{"Idempotency-Key": {"first-key-1", "second-key-2"}}},
		{"two equal lines", http.Header{"Idempotency-Key": {"first-key-1", "first-key-1"}}},
		{"two lines in different letter case", http.Header{"Idempotency-Key": {"first-key-1"}, "idempotency-key": {"second-key-2"}}},
		{"a list in one line", http.Header{"Idempotency-Key": {"first-key-1, second-key-2"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h := c.headers.Clone()
			h["Content-Type"] = []string{"application/json"}
			one, err := exchange(within(t), http.MethodPost, s.base+"/api/v1/checkouts", payment("cart-1", 4990), h)
			if err != nil {
				t.Fatal(err)
			}
			one.is(t, http.StatusBadRequest, "IDEMPOTENCY_KEY_INVALID")

			r, err := http.NewRequestWithContext(within(t), http.MethodPost, secure.URL+"/api/v1/checkouts", strings.NewReader(payment("cart-1", 4990)))
			if err != nil {
				t.Fatal(err)
			}
			r.Header = h
			res, err := secure.Client().Do(r)
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(res.Body)
			if err := errors.Join(err, res.Body.Close()); err != nil || res.ProtoMajor != 2 {
				t.Fatalf("HTTP/2: %s %v", res.Proto, err)
			}
			answer{res.StatusCode, res.Header, text}.is(t, http.StatusBadRequest, "IDEMPOTENCY_KEY_INVALID")
		})
	}
	t.Cleanup(func() { d.holds(t, 0, 0) })
}

func TestBR24_TheHeadersNameIsCaseInsensitiveAndTheKeyIsNot(t *testing.T) {
	t.Parallel()
	d := sqliteDatabase(t)
	s := serve(t, d, nil)
	body := payment("cart-1", 4990)
	first := post(t, s.base, "Key-In-Case", body).placed(t)
	again, err := exchange(within(t), http.MethodPost, s.base+"/api/v1/checkouts", body,
		http.Header{"Content-Type": {"application/json"}, "iDEMPOTENCY-kEY": {"Key-In-Case"}, "X-Idempotency-Key": {"another-key"}})
	if err != nil {
		t.Fatal(err)
	}
	if again.placed(t).Placed != first.Placed || again.replayed() != "true" {
		t.Errorf("the same key under a header in another case: %v", again)
	}
	if other := post(t, s.base, "key-in-case", body); other.placed(t).OrderID == first.OrderID || other.replayed() != "false" {
		t.Errorf("the key in another case: %v", other)
	}
	post(t, s.base, "", body, "X-Idempotency-Key", "Key-In-Case").is(t, http.StatusBadRequest, "IDEMPOTENCY_KEY_MISSING")
	d.holds(t, 2, 2)
}

func TestBR29_AsManyCommandsAsConnectionsAllFinish(t *testing.T) {
	t.Parallel()
	check := func(t *testing.T, d *database, s *site) {
		for _, n := range []int{4, 8, 50} {
			for i, a := range inParallel(t, n, func(ctx context.Context, i int) (answer, error) {
				cart := fmt.Sprintf("of-%d-number-%d", n, i)
				return send(ctx, s.base, cart, payment(cart, 4990))
			}) {
				if a.placed(t).CartID != fmt.Sprintf("of-%d-number-%d", n, i) || a.replayed() != "false" {
					t.Errorf("%v", a)
				}
			}
			key := fmt.Sprintf("one-key-of-%d", n)
			for _, a := range inParallel(t, n, func(ctx context.Context, _ int) (answer, error) { return send(ctx, s.base, key, payment(key, 4990)) }) {
				if !a.busy() {
					a.placed(t)
				}
			}
			if got := d.ordersOf(t, key); got != 1 {
				t.Errorf("%d at once with one key make %d orders", n, got)
			}
		}
		d.holds(t, 4+8+50+3, 4+8+50+3)
		if n := s.runs.Load(); n != 4+8+50+3 {
			t.Errorf("the handler ran %d times", n)
		}
	}
	for _, most := range []int{1, 4} {
		t.Run(fmt.Sprintf("PostgreSQL, %d connections", most), func(t *testing.T) {
			t.Parallel()
			d := postgresDatabase(t)
			kept, store := openAt(t, with(t, d.postgres.Proxy().URL(), "pool_max_conns", fmt.Sprint(most)))
			check(t, d, serveOn(t, kept, store, nil))
		})
		t.Run(fmt.Sprintf("SQLite, %d connections", most), func(t *testing.T) {
			t.Parallel()
			d := sqliteDatabase(t)
			kept, store := d.open(t)
			kept.(sqlite).db.SetMaxOpenConns(most)
			check(t, d, serveOn(t, kept, store, nil))
		})
	}
}

func TestBR36_OddTextIsKeptToTheByteOrRefused(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		s := serve(t, d, nil)
		kept := []string{ // what is allowed, as JSON and as it is
			`<script>alert(1)</script>`, `a\"b\\c`, `100%_'; DROP TABLE orders; --`, `\u003cb\u003e&amp;`, `{}[]null`, ` ~ `, strings.Repeat("x", 64),
		}
		for i, text := range kept {
			body := fmt.Sprintf(`{"cart_id":"%s","amount":9223372036854775807,"currency":"TRY","email":"ada@example.com","draft_order_id":"%[1]s"}`, text)
			var want string
			if err := json.Unmarshal([]byte(`"`+text+`"`), &want); err != nil {
				t.Fatal(err)
			}
			key := fmt.Sprintf("odd-but-allowed-%d", i)
			first, second := post(t, s.base, key, body), post(t, s.base, key, body)
			if p := first.placed(t); p.CartID != want || p.Amount != 9223372036854775807 {
				t.Errorf("%s became %q, %d", text, p.CartID, p.Amount)
			}
			if !bytes.Equal(anonymous(first), anonymous(second)) || second.replayed() != "true" {
				t.Errorf("%s: %v\n%v", text, first, second)
			}
			var o Order
			if err := json.Unmarshal(get(t, s.base+first.header.Get("Location")).body, &o); err != nil || o.CartID != want || o.DraftOrderID != want {
				t.Errorf("%s is stored as %+v (%v)", text, o, err)
			}
		}
		d.holds(t, len(kept), len(kept))

		for name, body := range map[string]string{
			"emoji":                     `{"cart_id":"cart-🛒","amount":4990,"currency":"TRY"}`,
			"escaped emoji":             `{"cart_id":"cart-\ud83d\uded2","amount":4990,"currency":"TRY"}`,
			"U+0000":                    `{"cart_id":"x\u0000y","amount":4990,"currency":"TRY"}`,
			"U+0000 in the draft":       `{"cart_id":"x","amount":4990,"currency":"TRY","draft_order_id":"x\u0000y"}`,
			"U+0000 in the address":     `{"cart_id":"x","amount":4990,"currency":"TRY","email":"a\u0000da@example.com"}`,
			"a raw zero byte":           "{\"cart_id\":\"x\x00y\",\"amount\":4990,\"currency\":\"TRY\"}",
			"a lone surrogate":          `{"cart_id":"x\ud800y","amount":4990,"currency":"TRY"}`,
			"invalid UTF-8":             "{\"cart_id\":\"x\xffy\",\"amount\":4990,\"currency\":\"TRY\"}",
			"a newline":                 `{"cart_id":"x\ny","amount":4990,"currency":"TRY"}`,
			"nothing":                   `{"cart_id":"","amount":4990,"currency":"TRY"}`,
			"65 characters":             `{"cart_id":"` + strings.Repeat("x", 65) + `","amount":4990,"currency":"TRY"}`,
			"1e400":                     `{"cart_id":"x","amount":1e400,"currency":"TRY"}`,
			"a number of 20 digits":     `{"cart_id":"x","amount":12345678901234567890,"currency":"TRY"}`,
			"a fraction":                `{"cart_id":"x","amount":49.90,"currency":"TRY"}`,
			"an amount as text":         `{"cart_id":"x","amount":"4990","currency":"TRY"}`,
			"two amounts":               `{"cart_id":"x","amount":4990,"amount":1,"currency":"TRY"}`,
			"two amounts in other case": `{"cart_id":"x","amount":4990,"Amount":1,"currency":"TRY"}`,
			"an unknown member":         `{"cart_id":"x","amount":4990,"currency":"TRY","price":1}`,
			"two documents":             `{"cart_id":"x","amount":4990,"currency":"TRY"}{}`,
			"no such currency":          `{"cart_id":"x","amount":4990,"currency":"XYZ"}`,
			"no address":                `{"cart_id":"x","amount":4990,"currency":"TRY","email":"ada"}`,
			"a list":                    `[]`,
			"null":                      `null`,
			"no body":                   ``,
		} {
			a := post(t, s.base, "odd-and-refused", body)
			if p := a.problem(t); a.status != http.StatusBadRequest || len(p.Errors) == 0 || p.Retry != httpedge.SameKey {
				t.Errorf("%s: %v", name, a)
			}
		}
		d.holds(t, len(kept), len(kept)) // none of it has spent the key
		post(t, s.base, "odd-and-refused", payment("cart-1", 4990)).placed(t)
	})
}

func TestBR40_EveryReplayIsVisiblyAReplay(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		s := serve(t, d, nil)
		body := payment("cart-40-declined", 4990)
		var first string
		for i := range 4 {
			a := post(t, s.base, "declined-four-times", body)
			a.is(t, http.StatusPaymentRequired, "PAYMENT_DECLINED")
			if i == 0 {
				first = a.requestID()
			}
			if a.replayed() != fmt.Sprint(i > 0) || a.header.Get("Idempotency-Original-Request-ID") != first || (a.requestID() == first) != (i == 0) {
				t.Errorf("time %d: %v", i+1, a)
			}
		}
		type line struct {
			Message  string `json:"msg"`
			Replayed bool   `json:"replayed"`
			Outcome  string `json:"outcome"`
			Original string `json:"original_request_id"`
		}
		replayed := 0
		lines := strings.Split(strings.TrimSpace(s.log.String()), "\n")
		for _, text := range lines {
			var l line
			if err := json.Unmarshal([]byte(text), &l); err != nil {
				t.Fatal(err)
			}
			if l.Outcome != "PAYMENT_DECLINED" {
				t.Errorf("the log's line %s", text)
			}
			if l.Replayed {
				replayed++
				if l.Original != first {
					t.Errorf("the line of a replay does not name the first attempt: %s", text)
				}
			}
			for _, secret := range []string{"cart-40", "ada@", "4990"} {
				if strings.Contains(text, secret) {
					t.Errorf("the log holds %q: %s", secret, text)
				}
			}
		}
		if replayed != 3 || len(lines) != 4 {
			t.Errorf("the log has %d lines, %d of them of replays:\n%s", len(lines), replayed, s.log)
		}
		d.holds(t, 0, 1)
	})
}

func TestBR67_ATimeLimitRoundTheServiceHarmsNothing(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		entered, release, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
		s := serve(t, d, func(context.Context, int64) error {
			close(entered)
			<-release
			return nil
		})
		var once sync.Once
		limited := http.TimeoutHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer once.Do(func() { close(done) })
			s.ServeHTTP(w, r)
		}), 20*time.Millisecond, "too slow")
		base := listen(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("X-Limited") != "" {
				limited.ServeHTTP(w, r)
				return
			}
			s.ServeHTTP(w, r)
		}))

		// One connection for all of it, so that one answer could spoil another.
		transport := &http.Transport{MaxConnsPerHost: 1}
		t.Cleanup(transport.CloseIdleConnections)
		client := http.Client{Transport: transport}
		connections := 0
		do := func(method, path, body string, h http.Header) answer {
			t.Helper()
			ctx := httptrace.WithClientTrace(within(t), &httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) {
				if !c.Reused {
					connections++
				}
			}})
			r, err := http.NewRequestWithContext(ctx, method, base+path, strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			r.Header = h
			res, err := client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			text, err := io.ReadAll(res.Body)
			if err != nil {
				t.Fatal(err)
			}
			return answer{res.StatusCode, res.Header, text}
		}

		body := payment("cart-1", 4990)
		slow := do(http.MethodPost, "/api/v1/checkouts", body, headers(d.key("slow-payment"), "X-Limited", "1"))
		if slow.status != http.StatusServiceUnavailable || string(slow.body) != "too slow" || slow.replayed() != "" {
			t.Errorf("the time limit's answer: %v", slow)
		}
		await(t, entered, "the handler")
		unrelated := func() {
			t.Helper()
			if a := do(http.MethodGet, "/healthz", "", http.Header{}); string(a.body) != `{"status":"ok"}`+"\n" {
				t.Errorf("an unrelated answer: %v", a)
			}
			if a := do(http.MethodGet, "/api/v1/orders", "", http.Header{}); a.status != http.StatusOK || !bytes.HasPrefix(a.body, []byte(`{"orders":[`)) {
				t.Errorf("an unrelated answer: %v", a)
			}
		}
		unrelated()
		if busy := do(http.MethodPost, "/api/v1/checkouts", body, headers(d.key("slow-payment"))); !busy.busy() {
			t.Errorf("while the handler runs: %v", busy)
		}
		close(release)
		await(t, done, "the handler's end")
		unrelated()
		retry := do(http.MethodPost, "/api/v1/checkouts", body, headers(d.key("slow-payment")))
		if retry.placed(t); retry.replayed() != "true" {
			t.Errorf("the retry: %v", retry)
		}
		if n := s.runs.Load(); n != 1 || connections != 1 {
			t.Errorf("the handler ran %d times, over %d connections", n, connections)
		}
		d.holds(t, 1, 1)
	})
}
