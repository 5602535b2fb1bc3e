package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tekil-go/tekil/bus"
)

// demoSite is a site with the switches.
func demoSite(t *testing.T, d *database, o options) *site {
	t.Helper()
	kept, store := d.open(t)
	o.demo = true
	return serveWith(t, kept, store, o, nil)
}

// holding asks what the server holds.
func holding(t *testing.T, base, query string) (state demoState, a answer) {
	t.Helper()
	a = get(t, base+"/demo/state"+query)
	if err := json.Unmarshal(a.body, &state); err != nil || a.status != http.StatusOK ||
		a.header.Get("Cache-Control") != "no-store" || a.header.Get("Content-Type") != "application/json" {
		t.Fatalf("%v %v", err, a)
	}
	return state, a
}

func TestDemoStateShowsWhatIsHeldWithoutKeysAndPayloads(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		s := demoSite(t, d, options{})
		if _, a := holding(t, s.base, ""); string(a.body) != `{"orders":{"total":0,"newest":[]},"cart_orders":0,"authorizations":{"total":0,"newest":[]},"records":[],"log":[]}`+"\n" {
			t.Errorf("before the first payment: %v", a)
		}
		key := d.key("secret-key")
		order := post(t, s.base, key, payment("cart-1", 4990)).placed(t)
		post(t, s.base, key, payment("cart-1", 4990)).placed(t)
		state, a := holding(t, s.base, "?cart=cart-1")
		if state.Orders.Total != 1 || len(state.Orders.Newest) != 1 || state.Orders.Newest[0].OrderID != order.OrderID || state.CartOrders != 1 {
			t.Errorf("orders: %s", a.body)
		}
		want := demoAuthorization{order.AuthID, "", Charge{"cart-1", 4990, "TRY"}}
		if state.Authorizations.Total != 1 || len(state.Authorizations.Newest) != 1 || state.Authorizations.Newest[0] != want {
			t.Errorf("authorisations: %s", a.body)
		}
		if len(state.Records) != 1 {
			t.Fatalf("records: %s", a.body)
		}
		r := state.Records[0]
		if r.Command != "checkout.place" || r.Key != "secr…" || r.State != "completed" || r.Attempts != 1 || r.ExternalRef != order.AuthID ||
			time.Since(r.CreatedAt) > time.Minute || !r.ExpiresAt.After(time.Now()) {
			t.Errorf("the record: %+v", r)
		}
		if len(state.Log) != 2 || state.Log[0]["replayed"] != true || state.Log[1]["replayed"] != false || state.Log[0]["key"] != "secr…" || state.Log[0]["command"] != "checkout.place" {
			t.Errorf("the log: %s", a.body)
		}
		for _, secret := range []string{key, "ada@"} {
			if strings.Contains(string(a.body), secret) {
				t.Errorf("it holds %q: %s", secret, a.body)
			}
		}
		for i := range state.Log {
			for _, payload := range []string{"ada@", "cart-1", "4990", "draft-1"} {
				if line, _ := json.Marshal(state.Log[i]); strings.Contains(string(line), payload) {
					t.Errorf("a line holds %q: %s", payload, line)
				}
			}
		}
		for range 25 {
			post(t, s.base, d.key("more-keys"), payment("cart-2", 0)).is(t, http.StatusBadRequest, "VALIDATION_FAILED")
		}
		if state, _ := holding(t, s.base, "?cart=cart-2"); len(state.Log) != demoLines || state.CartOrders != 0 {
			t.Errorf("%d lines, %d orders", len(state.Log), state.CartOrders)
		}
	})
}

func TestDemoStateShowsTheNewestTen(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		s := demoSite(t, d, options{})
		var last placedBody
		for i := range 12 {
			last = post(t, s.base, d.key("one-of-many-"+string(rune('a'+i))), payment("cart-1", 1)).placed(t)
		}
		state, _ := holding(t, s.base, "?cart=cart-1")
		if state.Orders.Total != 12 || state.Authorizations.Total != 12 || state.CartOrders != 12 {
			t.Errorf("%+v", state)
		}
		if len(state.Orders.Newest) != 10 || len(state.Authorizations.Newest) != 10 || len(state.Records) != 10 || state.Orders.Newest[0].OrderID != last.OrderID {
			t.Errorf("%+v", state)
		}
	})
}

func TestDemoStateMasksTheKeysOfTheProvider(t *testing.T) {
	t.Parallel()
	f := provide(t, nil)
	s := demoSite(t, sqliteDatabase(t), f.options(t))
	order := post(t, s.base, "a-key-and-a-provider", payment("cart-1", 4990)).placed(t)
	asNew(t, s.base, payment("cart-1", 4990)).placed(t)
	state, a := holding(t, s.base, "?cart=cart-1")
	whole := f.all(t)
	if state.Authorizations.Total != 2 || len(state.Authorizations.Newest) != 2 || state.CartOrders != 2 || len(whole) != 2 {
		t.Fatalf("%s", a.body)
	}
	if got := state.Authorizations.Newest[1]; got.ID != order.AuthID || got.Key != masked(whole[1].Key) || len(got.Key) > 8 || got.Key == "" {
		t.Errorf("%+v", got)
	}
	if got := state.Authorizations.Newest[0]; got.Key != "" {
		t.Errorf("without a key: %+v", got)
	}
	if strings.Contains(string(a.body), whole[1].Key) || strings.Contains(string(a.body), "a-key-and") {
		t.Errorf("it holds a key: %s", a.body)
	}
	f.db.Close()
	if state, a := holding(t, s.base, ""); state.Authorizations != nil || state.Orders.Total != 2 {
		t.Errorf("with a provider that is ill: %s", a.body)
	}
}

// asNew pays without a key.
func asNew(t *testing.T, base, body string, more ...string) answer {
	t.Helper()
	a, err := exchange(within(t), http.MethodPost, base+"/demo/checkouts", body, headers("", more...))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestDemoCheckoutsAreNewEachTime(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		s := demoSite(t, d, options{})
		ids := map[string]bool{}
		for _, key := range []string{"the-same-key", "the-same-key", "!"} {
			a := asNew(t, s.base, payment("cart-1", 4990), "Idempotency-Key", key)
			p := a.placed(t)
			ids[p.OrderID] = true
			if a.replayed() != "" || a.header.Get("Location") != "/api/v1/orders/"+p.OrderID || p.Amount != 4990 || !strings.HasPrefix(p.AuthID, "auth_") {
				t.Errorf("%v", a)
			}
		}
		asNew(t, s.base, payment("cart-1", 0)).is(t, http.StatusBadRequest, "VALIDATION_FAILED")
		asNew(t, s.base, payment("cart-1-declined", 4990)).is(t, http.StatusPaymentRequired, "PAYMENT_DECLINED")
		if _, err := exchange(within(t), http.MethodPost, s.base+"/demo/checkouts", payment("cart-1", 1), headers("", "X-Demo-Drop", "1")); err == nil {
			t.Error("a lost answer has come")
		}
		if len(ids) != 3 {
			t.Errorf("%d orders were answered", len(ids))
		}
		d.holds(t, 4, 0)
	})
}

func TestDemoDropLosesTheAnswerAndNotTheWork(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		s := demoSite(t, d, options{})
		key := d.key("dropped-by-the-demo")
		if a, err := send(within(t), s.base, key, payment("cart-1", 4990), "X-Demo-Drop", "1"); err == nil {
			t.Fatalf("a lost answer has come: %v", a)
		}
		if a := post(t, s.base, key, payment("cart-1", 4990)); a.replayed() != "true" {
			t.Errorf("%v", a)
		}
		d.settles(t, 1)
	})
}

func TestDemoDelaySlowsTheHandlerAndNothingElse(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		s := demoSite(t, d, options{})
		key := d.key("slow-by-the-demo")
		took := func(work func()) time.Duration {
			start := time.Now()
			work()
			return time.Since(start)
		}
		const delay = 300 * time.Millisecond
		for _, pay := range []func(){
			func() { post(t, s.base, key, payment("cart-1", 4990), "X-Demo-Delay", "300ms").placed(t) },
			func() { asNew(t, s.base, payment("cart-1", 4990), "X-Demo-Delay", "300ms").placed(t) },
		} {
			if d := took(pay); d < delay {
				t.Errorf("it took %v", d)
			}
		}
		// On a replay the handler does not run.
		if a := post(t, s.base, key, payment("cart-1", 4990), "X-Demo-Delay", "10s"); a.replayed() != "true" {
			t.Errorf("%v", a)
		}
		for _, bad := range []string{"soon", "3", "-1s", "10.1s", "1h"} {
			a := post(t, s.base, key, payment("cart-1", 4990), "X-Demo-Delay", bad)
			if a.status != http.StatusBadRequest || strings.Contains(string(a.body), bad+"\n") {
				t.Errorf("%s: %v", bad, a)
			}
		}
		d.holds(t, 2, 1)
	})
}

func TestDemoDelayEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(context.WithValue(context.Background(), delayKey{}, maxDemoDelay))
	cancel()
	err := slow(ctx, bus.Invocation{}, func(context.Context) error {
		t.Error("the handler runs")
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("its error is %v", err)
	}
}

func TestWithoutDemoThereIsTheFormAndTheList(t *testing.T) {
	t.Parallel()
	p := start(t, append(sqliteDatabase(t).flags(), "-demo=false")...)
	for _, path := range []string{"/demo/state", "/demo/checkouts", "/demo/"} {
		if a := get(t, p.base+path); a.status != http.StatusNotFound {
			t.Errorf("%s: %v", path, a)
		}
	}
	if a := asNew(t, p.base, payment("cart-1", 4990)); a.status != http.StatusNotFound {
		t.Errorf("%v", a)
	}
	// The headers mean nothing.
	post(t, p.base, "without-the-demo", payment("cart-1", 4990), "X-Demo-Drop", "1", "X-Demo-Delay", "soon").placed(t)
	page := string(get(t, p.base+"/").body)
	if !strings.Contains(page, `id="checkout"`) || strings.Contains(page, "Make trouble") || strings.Contains(page, `id="live"`) {
		t.Errorf("the page:\n%s", page)
	}
	if page := string(get(t, start(t, sqliteDatabase(t).flags()...).base+"/").body); !strings.Contains(page, "Make trouble") {
		t.Errorf("the page by default:\n%s", page)
	}
}

// A browser sends a request again by itself on a connection that has served before and breaks. Requests are counted here, so no
// connection serves it twice. Other clients keep theirs.
func TestDemoKeepsNoConnectionOfABrowser(t *testing.T) {
	t.Parallel()
	client := http.Client{Transport: &http.Transport{}}
	t.Cleanup(client.CloseIdleConnections)
	for _, demo := range []bool{true, false} {
		kept, store := sqliteDatabase(t).open(t)
		s := serveWith(t, kept, store, options{demo: demo}, nil)
		for _, path := range []string{"/", "/page.mjs", "/api/v1/orders", "/nonsense"} {
			for _, browser := range []bool{true, false} {
				req, err := http.NewRequest(http.MethodGet, s.base+path, nil)
				if err != nil {
					t.Fatal(err)
				}
				if browser {
					req.Header.Set("Sec-Fetch-Mode", "cors")
				}
				res, err := client.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				_ = res.Body.Close()
				if res.Close != (demo && browser) {
					t.Errorf("%s, demo %v, browser %v: the connection ends: %v", path, demo, browser, res.Close)
				}
			}
		}
	}
}

func TestPageAssets(t *testing.T) {
	t.Parallel()
	s := serve(t, sqliteDatabase(t), nil)
	for path, kind := range map[string]string{
		"/page.mjs": "text/javascript; charset=utf-8", "/page.css": "text/css; charset=utf-8", "/tekil/tekil.mjs": "text/javascript; charset=utf-8",
	} {
		if a := get(t, s.base+path); a.status != http.StatusOK || a.header.Get("Content-Type") != kind || a.header.Get("X-Content-Type-Options") != "nosniff" || len(a.body) == 0 {
			t.Errorf("%s: %d %v", path, a.status, a.header)
		}
	}
	page := string(get(t, s.base+"/").body)
	for _, inline := range []string{"<style", " style=", "onclick", "<script>"} {
		if strings.Contains(page, inline) {
			t.Errorf("the page holds %q", inline)
		}
	}
	if !strings.Contains(page, "<noscript>") {
		t.Error("the page does not say what is missing without JavaScript")
	}
}
