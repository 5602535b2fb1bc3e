package browser_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"go.uber.org/zap"

	"github.com/tekil-go/tekil/behaviors/idempotency/memstore"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/registry"
	"github.com/tekil-go/tekil/requestctx/browser"
	"github.com/tekil-go/tekil/requestctx/browser/browsertest"
	"github.com/tekil-go/tekil/requestctx/httpedge"
)

// place is the command behind the form.
type place struct {
	Cart   string `json:"cart"   validate:"required"`
	Amount int64  `json:"amount" validate:"gt=0"`
}

type placed struct {
	OrderID string `json:"order_id"`
}

func (place) CommandName() bus.Name[placed] { return "orders.place" }
func (place) Idempotent()                   {}

// shop is a page, its API, and what can go wrong between them.
type shop struct {
	*httptest.Server
	api   *httptest.Server // the same API on another origin, with CORS
	bare  *httptest.Server // and without
	store *memstore.Store

	mu     sync.Mutex
	keys   []string      // of each request that came to the API
	lose   bool          // the next answer is lost, after the work is done
	status int           // the next request is answered with it, before the work
	hold   chan struct{} // requests wait for it, if it is there

	redirect string // the next request is answered with a 307 to it
}

func newShop(t *testing.T) *shop {
	t.Helper()
	s := &shop{store: memstore.New()}
	reg := registry.New(registry.Config{Logger: zap.NewNop(), Store: s.store})
	registry.Handle(reg, func(ctx context.Context, c place) (placed, error) {
		err := s.store.Insert(ctx, c.Cart)
		return placed{OrderID: fmt.Sprintf("o-%d", len(s.store.Rows())+1)}, err
	})
	b, err := reg.Build()
	if err != nil {
		t.Fatal(err)
	}
	edge, err := httpedge.New(httpedge.Config{Anonymous: true, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	order, err := httpedge.Command(edge, b, "POST /orders", httpedge.Options[place, placed]{Status: http.StatusCreated})
	if err != nil {
		t.Fatal(err)
	}
	api := s.faults(order)

	mux := http.NewServeMux()
	mux.Handle("POST /orders", api)
	mux.Handle("POST /orders/elsewhere", api)
	mux.Handle("/assets/tekil/", http.StripPrefix("/assets/tekil/", browser.Handler()))
	mux.HandleFunc("GET /page.mjs", func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, "testdata/page.mjs") })
	mux.HandleFunc("GET /thanks", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(w, "<!doctype html><title>Thanks</title><p>Thank you.")
	})
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Security-Policy", fmt.Sprintf("default-src 'none'; script-src 'self'; connect-src 'self' %s %s; img-src data:", s.api.URL, s.bare.URL))
		http.ServeFile(w, r, "testdata/page.html")
	})
	s.Server = serve(t, mux)

	orders := http.NewServeMux()
	orders.Handle("POST /orders", api)
	cors, err := httpedge.CORS(httpedge.CORSConfig{Origins: []string{s.URL}})
	if err != nil {
		t.Fatal(err)
	}
	s.api, s.bare = serve(t, cors(orders)), serve(t, orders)
	return s
}

// serve closes each connection after its answer, because Chromium itself sends a POST again whose connection was used before and
// breaks. See TestChromiumRepeatsAPostByItself.
func serve(t *testing.T, h http.Handler) *httptest.Server {
	server := httptest.NewServer(h)
	server.Config.SetKeepAlivesEnabled(false)
	t.Cleanup(server.Close)
	return server
}

func (s *shop) faults(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.keys = append(s.keys, r.Header.Get("Idempotency-Key"))
		lose, status, hold, redirect := s.lose, s.status, s.hold, s.redirect
		s.lose, s.status, s.redirect = false, 0, ""
		s.mu.Unlock()
		if hold != nil {
			<-hold
		}
		switch {
		case redirect != "":
			http.Redirect(w, r, redirect, http.StatusTemporaryRedirect)
		case status != 0:
			w.Header().Set("Retry-After", "1") // a bare 409 would be a conflict
			w.WriteHeader(status)
		case lose:
			next.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// next says what becomes of the next request.
func (s *shop) next(set func(*shop)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	set(s)
}

// expect compares how many requests, keys and orders there have been.
func (s *shop) expect(t *testing.T, requests, keys, orders int) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	distinct := slices.Compact(slices.Sorted(slices.Values(s.keys)))
	if len(s.keys) != requests || len(distinct) != keys || len(s.store.Rows()) != orders || slices.Contains(distinct, "") {
		t.Fatalf("%d requests with %d keys have made %d orders; want %d, %d and %d", len(s.keys), len(distinct), len(s.store.Rows()), requests, keys, orders)
	}
}

func TestMain(m *testing.M) { os.Exit(browsertest.M{M: m}.Run()) }

// tab is a tab of the browser that belongs to a shop.
type tab struct {
	*browsertest.Tab
	t    *testing.T
	shop *shop
}

func (s *shop) newTab(t *testing.T) *tab {
	t.Helper()
	return &tab{browsertest.Open(t), t, s}
}

// open goes to the form.
func (p *tab) open(query ...string) {
	p.t.Helper()
	values := url.Values{}
	for i := 0; i+1 < len(query); i += 2 {
		values.Set(query[i], query[i+1])
	}
	p.Run(chromedp.Navigate(p.shop.URL + "/?" + values.Encode()))
	p.Wait("window.ready")
}

func (p *tab) reload() {
	p.t.Helper()
	p.Run(chromedp.Reload())
	p.Wait("window.ready")
}

// listen keeps the developer's error of the last outcome in window.error.
func (p *tab) listen() {
	p.t.Helper()
	p.Run(chromedp.Evaluate(`document.querySelector("#checkout").addEventListener("tekil:state", (e) => (window.error = e.detail.outcome?.error?.message))`, nil))
}

// click presses the button, as a person does, and waits for what the page is told.
func (p *tab) click(state string) {
	p.t.Helper()
	p.Run(chromedp.Evaluate("window.told.length = 0", nil), chromedp.Click("#order"))
	p.is(state)
}

// press is click for a page from the back/forward cache, whose nodes the driver does not find.
func (p *tab) press(state string) {
	p.t.Helper()
	p.Run(chromedp.Evaluate(`window.told.length = 0; document.querySelector("#order").click()`, nil))
	p.is(state)
}

// is waits until the page was told a state last.
func (p *tab) is(state string) {
	p.t.Helper()
	p.Wait(fmt.Sprintf("window.told.at(-1) === %q && !window.checkout.form.busy", state))
}

func (p *tab) fill(name, value string) {
	p.t.Helper()
	p.Run(chromedp.Evaluate(fmt.Sprintf(`{
		const input = document.querySelector("[name=%s]");
		input.value = %q;
		input.dispatchEvent(new Event("input", { bubbles: true }));
	}`, name, value), nil))
}

// secret asserts that no key is anywhere but in storage and in the header.
func (p *tab) secret() {
	p.t.Helper()
	seen := p.Eval(`document.documentElement.outerHTML + location.href + JSON.stringify(history.state) + document.cookie +
		JSON.stringify(window.told) + [...document.querySelectorAll("input")].map((i) => i.value) + JSON.stringify(window.checkout ?? "")`)
	seen += p.Console()
	keys := []string{}
	if err := json.Unmarshal([]byte(p.Eval(`(() => { try { return JSON.stringify(Object.values(sessionStorage).map((r) => JSON.parse(r).key ?? "")) } catch { return "[]" } })()`)), &keys); err != nil {
		p.t.Fatal(err)
	}
	p.shop.mu.Lock()
	keys = append(keys, p.shop.keys...)
	p.shop.mu.Unlock()
	if len(keys) == 0 {
		p.t.Error("there was no key to look for")
	}
	for _, key := range keys {
		if key != "" && strings.Contains(seen, key) {
			p.t.Errorf("the page shows the key %s…: %s", key[:4], seen)
		}
	}
}

func TestBR17_LostAnswerThenReloadAndRetryIsOneOrder(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	p := s.newTab(t)
	p.open()
	s.next(func(s *shop) { s.lose = true })
	p.click("unknown")
	s.expect(t, 1, 1, 1)
	p.reload()
	if notice := p.Eval(`document.querySelector("#status").textContent`); !strings.Contains(notice, "We do not know") {
		t.Errorf("after the reload the person is told %q", notice)
	}
	p.secret()
	p.click("done")
	s.expect(t, 2, 1, 1)
	if notice := p.Eval(`document.querySelector("#status").textContent`); notice != "Done. Your number is o-1." {
		t.Errorf("the person is told %q", notice)
	}
	if n := p.Eval("sessionStorage.length"); n != "0" {
		t.Errorf("%s records are kept after the success", n)
	}
	p.secret()
}

func TestChromiumRepeatsAPostByItself(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.Config.SetKeepAlivesEnabled(true)
	p := s.newTab(t)
	p.open()
	s.next(func(s *shop) { s.lose = true })
	p.Run(chromedp.Click("#order"))
	p.Wait(`["done", "unknown"].includes(window.told.at(-1)) && !window.checkout.form.busy`)
	if p.Eval("window.told.at(-1)") == "unknown" { // it need not
		p.click("done")
	}
	s.expect(t, 2, 1, 1)
	p.secret()
}

func TestDoubleClickIsOneRequest(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	hold := make(chan struct{})
	s.next(func(s *shop) { s.hold = hold })
	release := sync.OnceFunc(func() { close(hold) })
	t.Cleanup(release)
	p := s.newTab(t)
	p.open()
	p.Run(chromedp.Evaluate(`{ const f = document.querySelector("#checkout"); f.requestSubmit(); f.requestSubmit(); document.querySelector("#order").focus(); }`, nil))
	p.Wait(`window.told.at(-1) === "sending"`)
	p.Run(chromedp.Click("#order"), chromedp.Click("#order"))
	if got := p.Eval(`[document.querySelector("#checkout").ariaBusy, document.querySelector("#order").ariaDisabled, document.activeElement.id, document.querySelector("#status").role]`); got != "true,true,order,status" {
		t.Errorf("while sending, the form is %s", got)
	}
	release()
	p.is("done")
	p.Run(chromedp.Click("#order")) // a slow double click
	p.Wait(`document.querySelector("#status").textContent.includes("already")`)
	if got := p.Eval(`[document.querySelector("#checkout").ariaBusy, document.querySelector("#order").ariaDisabled]`); got != "false,false" {
		t.Errorf("afterwards, the form is %s", got)
	}
	s.expect(t, 1, 1, 1)
	p.secret()
}

func TestBR63_CorrectedFormKeepsItsKeyAndTheNextOrderHasANewOne(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	p := s.newTab(t)
	p.open()
	p.fill("amount", "0")
	p.click("refused")
	s.expect(t, 1, 1, 0)
	for i, status := range []int{503, 429, 408, 409} {
		s.next(func(s *shop) { s.status = status })
		p.click(map[int]string{503: "unknown", 429: "busy", 408: "unknown", 409: "in-progress"}[status])
		s.expect(t, i+2, 1, 0)
	}
	p.fill("amount", "7")
	p.click("done")
	s.expect(t, 6, 1, 1)
	p.fill("amount", "8")
	p.click("done")
	s.expect(t, 7, 2, 2)
	p.secret()
}

func TestEditedAfterALostAnswerIsAConflictUntilThePersonStartsOver(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	p := s.newTab(t)
	p.open()
	s.next(func(s *shop) { s.lose = true })
	p.click("unknown")
	p.fill("amount", "6")
	p.click("conflict")
	if told := p.Eval("window.told"); told != "edited,conflict" {
		t.Errorf("the person was told %s", told)
	}
	s.expect(t, 2, 1, 1)
	p.reload()
	p.fill("amount", "6")
	p.click("conflict")
	s.expect(t, 3, 1, 1)
	p.Run(chromedp.Click("#over", chromedp.NodeVisible))
	p.click("done")
	s.expect(t, 4, 2, 2)
	p.secret()
}

func TestTwoTabsAreTwoOrdersAndADuplicatedTabIsOne(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	a, b, c := s.newTab(t), s.newTab(t), s.newTab(t)
	a.open()
	b.open()
	c.Run(chromedp.Navigate(s.URL + "/thanks"))
	storage := a.Eval("JSON.stringify(Object.entries(sessionStorage))")
	c.Run(chromedp.Evaluate("for (const [k, v] of "+storage+") sessionStorage.setItem(k, v)", nil)) // as a browser does that duplicates a tab
	c.open()
	a.click("done")
	b.click("done")
	s.expect(t, 2, 2, 2)
	c.click("done")
	s.expect(t, 3, 2, 2)
	for _, p := range []*tab{a, b, c} {
		p.secret()
	}
}

func TestBR17_TabsOfOneDraftAreOneOrder(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	a, b := s.newTab(t), s.newTab(t)
	a.open("draft", "cart-77")
	s.next(func(s *shop) { s.lose = true })
	a.click("unknown")
	b.open("draft", "cart-77")
	b.click("done")
	a.click("done")
	s.expect(t, 3, 1, 1)
	b.open("draft", "cart-78")
	b.click("done")
	s.expect(t, 4, 2, 2)
	a.secret()
	b.secret()
}

func TestBR63_BackButtonAfterSuccessIsANewOrder(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	p := s.newTab(t)
	p.open()
	p.click("done")
	p.Run(chromedp.Navigate(s.URL + "/thanks"))
	p.Run(chromedp.Evaluate("history.back()", nil))
	p.Wait(`window.ready && location.pathname === "/" && window.checkout.form.state === "open"`)
	if got := p.Eval("window.shown"); got != "1" {
		t.Errorf("the page came %s times from the back/forward cache", got)
	}
	p.press("done")
	s.expect(t, 2, 2, 2)

	// A page in the cache whose work another page of the tab has finished.
	p.fill("amount", "9")
	p.Run(chromedp.Evaluate(`sessionStorage.clear(); dispatchEvent(new PageTransitionEvent("pageshow", { persisted: true }))`, nil))
	p.press("done")
	s.expect(t, 3, 3, 3)
	p.secret()
}

func TestBackToAPageInTheCacheKnowsWhatAnotherPageHasSent(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, clock, state string
		requests           int
	}{
		{"soon", "0", "unknown", 2},
		{"past the time to live", "25 * 3600e3", "expired", 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := newShop(t)
			p := s.newTab(t)
			p.open()
			p.Run(chromedp.Evaluate("{ const now = Date.now; window.later = 0; Date.now = () => now() + window.later; }", nil))
			p.open("x", "1")
			s.next(func(s *shop) { s.lose = true })
			p.click("unknown")
			p.Run(chromedp.Evaluate("history.back()", nil))
			p.Wait(`window.ready && !location.search.includes("x=") && window.shown === 1`)
			p.Run(chromedp.Evaluate("window.later = "+tc.clock, nil))
			if got := p.Eval("window.checkout.form.state"); got != tc.state {
				t.Errorf("after going back the form is %s", got)
			}
			p.fill("amount", "9")
			if tc.state == "expired" {
				p.press("expired")
			} else {
				p.press("conflict")
				if told := p.Eval("window.told"); told != "edited,conflict" {
					t.Errorf("the person was told %s", told)
				}
			}
			s.expect(t, tc.requests, 1, 1)
			p.secret()
		})
	}
}

func TestRedirectIsNotFollowedWithTheKey(t *testing.T) {
	t.Parallel()
	for _, elsewhere := range []string{"the same origin", "another origin"} {
		t.Run(elsewhere, func(t *testing.T) {
			t.Parallel()
			s := newShop(t)
			s.next(func(s *shop) { s.redirect = "/orders/elsewhere" })
			if elsewhere == "another origin" {
				s.next(func(s *shop) { s.redirect = s.api.URL + "/orders" })
			}
			p := s.newTab(t)
			p.open()
			p.listen()
			p.click("unknown")
			if got := p.Eval("window.error"); !strings.Contains(got, "not followed to another resource") {
				t.Errorf("the error is %q", got)
			}
			s.expect(t, 1, 1, 0)
			p.click("done")
			s.expect(t, 2, 1, 1)
			p.secret()
		})
	}
}

func TestBR17_OfflineThenOnlineIsOneOrder(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	p := s.newTab(t)
	p.open()
	p.Run(network.EmulateNetworkConditions(true, 0, -1, -1))
	p.click("unknown")
	p.click("unknown")
	s.expect(t, 0, 0, 0)
	key := p.Eval("Object.values(sessionStorage)[0].slice(0, 60)")
	p.Run(network.EmulateNetworkConditions(false, 0, -1, -1))
	s.next(func(s *shop) { s.lose = true })
	p.click("unknown")
	if now := p.Eval("Object.values(sessionStorage)[0].slice(0, 60)"); now != key {
		t.Error("the key has changed on the way")
	}
	p.click("done")
	s.expect(t, 2, 1, 1)
	p.secret()
}

func TestBR62_AnotherOriginNeedsCORS(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	p := s.newTab(t)
	p.open("api", s.bare.URL+"/orders")
	p.listen()
	p.click("blocked")
	if got := p.Eval("window.error"); !strings.Contains(got, "CORS/preflight") {
		t.Errorf("the error is %q", got)
	}
	s.expect(t, 0, 0, 0)
	p.secret()
	key := p.Eval("JSON.parse(Object.values(sessionStorage)[0]).key")

	p.open("api", s.api.URL+"/orders") // the server is mended
	s.next(func(s *shop) { s.lose = true })
	p.Run(chromedp.Evaluate("window.checkout.startOver()", nil)) // its own intent: the first one has gone to another origin
	if p.Eval("JSON.parse(Object.values(sessionStorage)[0]).key") == key {
		t.Error("starting over kept the key")
	}
	p.click("blocked") // the answer is lost, which a script cannot tell from the other
	p.Run(chromedp.Evaluate(`document.querySelector("#checkout").addEventListener("tekil:state", (e) => (window.outcome = e.detail.outcome))`, nil))
	p.click("done")
	if got := p.Eval("[window.outcome.replayed, window.outcome.requestId !== undefined]"); got != "true,true" {
		t.Errorf("of the replay the script reads %s", got)
	}
	p.fill("amount", "0")
	p.click("refused")
	if got := p.Eval("Object.keys(window.outcome.errors)"); got != "amount" {
		t.Errorf("the errors are about %q", got)
	}
	s.expect(t, 3, 2, 1)
	p.secret()
}

func TestBR17_DisabledStorageIsAnErrorWithoutADraft(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	p := s.newTab(t)
	p.Run(chromedp.ActionFunc(func(ctx context.Context) error {
		_, err := page.AddScriptToEvaluateOnNewDocument(`Object.defineProperty(window, "sessionStorage", { get() { throw new DOMException("denied", "SecurityError") } })`).Do(ctx)
		return err
	}))
	p.open()
	if got := p.Eval("window.refused"); !strings.Contains(got, "sessionStorage is forbidden or full") {
		t.Errorf("opening the form says %q", got)
	}
	p.open("draft", "cart-77")
	s.next(func(s *shop) { s.lose = true })
	p.click("unknown")
	p.reload()
	p.click("done")
	s.expect(t, 2, 1, 1)
	p.secret()
}

func TestPageThatIsNotSecureIsAnError(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	p := s.newTab(t)
	_, port, _ := strings.Cut(strings.TrimPrefix(s.URL, "http://"), ":")
	p.Run(chromedp.Navigate("http://shop.test:" + port + "/"))
	p.Wait("window.ready")
	if got := p.Eval("window.refused"); !strings.Contains(got, "HTTPS or from localhost") {
		t.Errorf("opening the form says %q", got)
	}
}
