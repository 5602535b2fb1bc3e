package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tekil-go/tekil/behaviors/idempotency"
)

// far is the provider of the example in this process, beside a server that may be killed.
type far struct {
	*embedded
	base string
	// posts counts the requests to authorise something.
	posts atomic.Int64
	// then is called when such a request is done and before it is answered, with its number; nil does nothing. Where it
	// gives false the connection is cut instead.
	then func(post int64) bool
}

// provide serves a provider until the end of the test.
func provide(t *testing.T, then func(post int64) bool) *far {
	t.Helper()
	p, err := openEmbedded(within(t), filepath.Join(t.TempDir(), "provider.db"), 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.db.Close() })
	f := &far{embedded: p, then: then}
	inner := p.handler()
	f.base = listen(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			inner.ServeHTTP(w, r)
			return
		}
		post := f.posts.Add(1)
		done := httptest.NewRecorder()
		inner.ServeHTTP(done, r)
		if f.then != nil && !f.then(post) {
			panic(http.ErrAbortHandler)
		}
		for name, values := range done.Header() {
			w.Header()[name] = values
		}
		w.WriteHeader(done.Code)
		_, _ = w.Write(done.Body.Bytes())
	}))
	t.Cleanup(func() { close(p.ending) }) // before the server is closed, which waits for all who sleep
	return f
}

// client calls it, until the end of the test.
func (f *far) client(t *testing.T, timeout time.Duration) *provider {
	t.Helper()
	return clientOf(t, f.base, timeout)
}

func clientOf(t *testing.T, base string, timeout time.Duration) *provider {
	t.Helper()
	p := newProvider(base, timeout)
	t.Cleanup(p.close)
	return p
}

// options are those of a checkout that calls it.
func (f *far) options(t *testing.T) options {
	t.Helper()
	return options{provider: f.client(t, patience), providerURL: f.base}
}

// all is what it holds.
func (f *far) all(t *testing.T) []Authorization {
	t.Helper()
	held, err := f.held(within(t), "")
	if err != nil || held.Total != len(held.Authorizations) {
		t.Fatalf("%d authorisations are listed: %+v %v", len(held.Authorizations), held, err)
	}
	return held.Authorizations
}

// keeps demands that it holds so many authorisations, each under a key of its own.
func (f *far) keeps(t *testing.T, n int) []Authorization {
	t.Helper()
	all := f.all(t)
	if len(all) != n {
		t.Errorf("the provider holds %d authorisations, want %d: %+v", len(all), n, all)
	}
	for _, a := range all {
		if len(a.Key) != 43 {
			t.Errorf("an authorisation without a downstream key: %+v", a)
		}
	}
	return all
}

// ask sends the provider a request of its own language.
func (f *far) ask(t *testing.T, method, path, key, body string) answer {
	t.Helper()
	a, err := exchange(within(t), method, f.base+path, body, headers(key))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

const aCharge = `{"cart_id":"cart-1","amount":4990,"currency":"TRY"}`

// authorized is the body of a 200 or 201.
func (a answer) authorized(t *testing.T, status int) (auth Authorization) {
	t.Helper()
	if err := json.Unmarshal(a.body, &auth); err != nil || a.status != status || !strings.HasPrefix(auth.ID, "auth_") {
		t.Fatalf("want a %d with an authorisation: %v", status, a)
	}
	return auth
}

// says demands a status and a code in the provider's form.
func (a answer) says(t *testing.T, status int, code string) {
	t.Helper()
	if want := `{"code":"` + code + `"}` + "\n"; a.status != status || string(a.body) != want {
		t.Errorf("want %d %s: %v", status, code, a)
	}
}

func TestProvider_OneKeyIsOneAuthorisationAndNoKeyIsNone(t *testing.T) {
	t.Parallel()
	f := provide(t, nil)
	first := f.ask(t, "POST", "/authorizations", "key-1", aCharge).authorized(t, http.StatusCreated)
	if first.Key != "key-1" || first.Charge != (Charge{"cart-1", 4990, "TRY"}) || time.Since(first.CreatedAt) > time.Hour {
		t.Errorf("%+v", first)
	}
	if again := f.ask(t, "POST", "/authorizations", "key-1", aCharge).authorized(t, http.StatusOK); again != first {
		t.Errorf("the same again is %+v, and was %+v", again, first)
	}
	for _, other := range []string{
		`{"cart_id":"cart-2","amount":4990,"currency":"TRY"}`, `{"cart_id":"cart-1","amount":4991,"currency":"TRY"}`, `{"cart_id":"cart-1","amount":4990,"currency":"EUR"}`,
	} {
		f.ask(t, "POST", "/authorizations", "key-1", other).says(t, http.StatusConflict, "KEY_REUSED")
	}
	second := f.ask(t, "POST", "/authorizations", "key-2", aCharge).authorized(t, http.StatusCreated)
	third := f.ask(t, "POST", "/authorizations", "", aCharge).authorized(t, http.StatusCreated)
	fourth := f.ask(t, "POST", "/authorizations", "", aCharge).authorized(t, http.StatusCreated)

	var held Held
	if a := f.ask(t, "GET", "/authorizations", "", ""); json.Unmarshal(a.body, &held) != nil || a.status != http.StatusOK || a.header.Get("Content-Type") != "application/json" {
		t.Fatalf("%v", a)
	}
	want := []Authorization{fourth, third, second, first}
	if held.Total != 4 || len(held.Authorizations) != 4 {
		t.Fatalf("%+v", held)
	}
	for i := range want {
		if held.Authorizations[i] != want[i] {
			t.Errorf("number %d is %+v, want %+v", i, held.Authorizations[i], want[i])
		}
	}
	for key, want := range map[string]string{
		"key-2": `{"total":1,"authorizations":[{"id":"` + second.ID + `"`, "key-3": `{"total":0,"authorizations":[]}`, "%25": `{"total":0,"authorizations":[]}`,
	} {
		if a := f.ask(t, "GET", "/authorizations?key="+key, "", ""); !strings.HasPrefix(string(a.body), want) {
			t.Errorf("%s: %v", key, a)
		}
	}
}

func TestProvider_WhatMakesNoSenseIsRefusedAndDeclinedIsNotHeld(t *testing.T) {
	t.Parallel()
	f := provide(t, nil)
	for _, body := range []string{
		``, `null`, `[]`, `{}`, `{"cart_id":"","amount":1,"currency":"TRY"}`, `{"cart_id":"c","amount":0,"currency":"TRY"}`, `{"cart_id":"c","amount":-1,"currency":"TRY"}`,
		`{"cart_id":"c","amount":1,"currency":""}`, `{"cart_id":"c","amount":1.5,"currency":"TRY"}`, `{"cart_id":"` + strings.Repeat("x", 1<<16) + `","amount":1,"currency":"TRY"}`,
	} {
		f.ask(t, "POST", "/authorizations", "key-1", body).says(t, http.StatusBadRequest, "INVALID")
	}
	f.ask(t, "POST", "/authorizations", strings.Repeat("k", 256), aCharge).says(t, http.StatusBadRequest, "INVALID")
	for range 2 {
		f.ask(t, "POST", "/authorizations", "key-1", `{"cart_id":"cart-1-declined","amount":1,"currency":"TRY"}`).says(t, http.StatusPaymentRequired, "DECLINED")
	}
	f.ask(t, "POST", "/authorizations", strings.Repeat("k", 255), aCharge).authorized(t, http.StatusCreated)
	if all := f.all(t); len(all) != 1 {
		t.Errorf("it holds %+v", all)
	}
}

// The sleep comes after the record, a caller that hangs up stops neither, and who asks again meanwhile is not made to wait.
func TestProvider_ItRecordsFirstAndAHangUpStopsNothing(t *testing.T) {
	t.Parallel()
	answered := make(chan struct{}, 2)
	f := provide(t, func(int64) bool {
		answered <- struct{}{}
		return true
	})
	f.delay = time.Hour // longer than the test
	ctx, hangUp := context.WithCancel(within(t))
	gone := make(chan error, 1)
	go func() {
		_, err := exchange(ctx, http.MethodPost, f.base+"/authorizations", aCharge, headers("key-1"))
		gone <- err
	}()
	for len(f.all(t)) == 0 {
		if ctx.Err() != nil {
			t.Fatal("nothing is recorded")
		}
	}
	select {
	case <-answered:
		t.Fatal("it was answered without sleeping")
	default:
	}
	hangUp()
	if err := await(t, gone, "the hang-up"); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	again := f.ask(t, "POST", "/authorizations", "key-1", aCharge).authorized(t, http.StatusOK)
	await(t, answered, "the second answer")
	if all := f.all(t); len(all) != 1 || all[0] != again {
		t.Errorf("it holds %+v", all)
	}
	if len(answered) != 0 {
		t.Error("the hang-up has ended the sleep")
	}
}

func TestProvider_SoManyFailBeforeTheRecordAndAsManyAfterIt(t *testing.T) {
	t.Parallel()
	f := provide(t, nil)
	f.failRate = 0.5
	for _, c := range []struct {
		luck   float64
		status int
		held   int
	}{
		{0, http.StatusServiceUnavailable, 0}, {0.249, http.StatusServiceUnavailable, 0}, // not done, and it says so
		{0.25, http.StatusInternalServerError, 1}, {0.499, http.StatusInternalServerError, 1}, // done, and it does not say so
		{0.5, http.StatusCreated, 1}, {0.999, http.StatusCreated, 1},
	} {
		f.random = func() float64 { return c.luck }
		before := len(f.all(t))
		a := f.ask(t, "POST", "/authorizations", "", aCharge)
		switch c.status {
		case http.StatusCreated:
			a.authorized(t, c.status)
		case http.StatusServiceUnavailable:
			a.says(t, c.status, "NOT_DONE")
		default:
			a.says(t, c.status, "INTERNAL")
		}
		if n := len(f.all(t)) - before; n != c.held {
			t.Errorf("at %v it has recorded %d", c.luck, n)
		}
	}
	for rate, status := range map[float64]int{0: http.StatusCreated, 1: http.StatusInternalServerError} { // never, and always
		f.failRate, f.random = rate, func() float64 { return 0.9999999 }
		if a := f.ask(t, "POST", "/authorizations", "", aCharge); a.status != status {
			t.Errorf("at the rate %v: %v", rate, a)
		}
	}
}

// What it holds outlives it, and two of them may share a file: two servers that each bring one have one provider.
func TestProvider_ItsFileOutlivesItAndMayBeShared(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a folder", "provider.db")
	ask := func(base string) Authorization {
		t.Helper()
		a, err := clientOf(t, base, patience).authorize(within(t), "one-key", Charge{"cart-1", 4990, "TRY"})
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	var first Authorization
	for range 2 {
		var bases []string
		var stops []func()
		for range 2 {
			p, err := openEmbedded(within(t), path, time.Millisecond, 0)
			if err != nil {
				t.Fatal(err)
			}
			base, stop, err := p.serve()
			if err != nil {
				t.Fatal(err)
			}
			bases, stops = append(bases, base), append(stops, stop)
		}
		for _, base := range bases {
			if a := ask(base); first == (Authorization{}) {
				first = a
			} else if a != first {
				t.Errorf("%+v, and before %+v", a, first)
			}
		}
		for _, stop := range stops {
			stop()
		}
		for _, base := range bases {
			if conn, err := net.Dial("tcp", strings.TrimPrefix(base, "http://")); err == nil {
				_ = conn.Close()
				t.Error("it still listens")
			}
		}
	}
}

// How the client classifies what it meets: where it is wrong, money is taken twice or an order is lost.
func TestProvider_TheClientKnowsWhatItDoesNotKnow_R07_R08(t *testing.T) {
	t.Parallel()
	respond := func(status int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if status >= 300 && status < 400 {
				w.Header().Set("Location", "/elsewhere")
			}
			w.WriteHeader(status)
			_, _ = w.Write([]byte(body))
		}
	}
	silent := func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	cut := func(w http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) }
	half := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "1000")
		_, _ = w.Write([]byte(`{"id":"auth_1"`))
		panic(http.ErrAbortHandler)
	}
	const final, unknown, nothing, fine = "final", "unknown", "nothing", "fine"
	for _, c := range []struct {
		name    string
		handler http.HandlerFunc
		class   string
		is      error
	}{
		{"201", respond(201, `{"id":"auth_1","cart_id":"cart-1","amount":4990,"currency":"TRY"}`), fine, nil},
		{"200", respond(200, `{"id":"auth_1","amount":1}`), fine, nil}, // the handler compares
		{"200 without an id", respond(200, `{}`), unknown, nil},
		{"200 and no JSON", respond(200, `<html>`), unknown, nil},
		{"402", respond(402, `{"code":"DECLINED"}`), final, errDeclined},
		{"409 for another charge", respond(409, `{"code":"KEY_REUSED"}`), final, errOtherPayment},
		{"409 for anything else", respond(409, `{"code":"KEY_IN_USE"}`), unknown, nil},
		{"429", respond(429, `slow down`), nothing, errProviderAway},
		{"503 that says not done", respond(503, `{"code":"NOT_DONE"}`), nothing, errProviderAway},
		{"503 that says nothing", respond(503, `upstream connect error`), unknown, nil},
		{"500", respond(500, `{"code":"INTERNAL"}`), unknown, nil},
		{"502", respond(502, ``), unknown, nil},
		{"504", respond(504, ``), unknown, nil},
		{"408", respond(408, ``), unknown, nil},
		{"400", respond(400, `{"code":"INVALID"}`), nothing, nil},
		{"401", respond(401, ``), nothing, nil},
		{"404", respond(404, `404 page not found`), nothing, nil},
		{"307", respond(307, ``), nothing, nil},
		{"303", respond(303, ``), nothing, nil},
		{"no answer in time", silent, unknown, context.DeadlineExceeded},
		{"the connection breaks", cut, unknown, nil},
		{"the answer breaks off", half, unknown, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Int64
			base := listen(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				asked.Add(1)
				if r.URL.Path != "/v1/authorizations" || r.Method != http.MethodPost || r.Header.Get("Idempotency-Key") != "key-1" || r.Header.Get("Content-Type") != "application/json" {
					t.Errorf("the provider was asked %s %s %v", r.Method, r.URL, r.Header)
				}
				_, _ = io.Copy(io.Discard, r.Body) // before that net/http does not see a hang-up
				c.handler(w, r)
			}))
			timeout := patience
			if c.is == context.DeadlineExceeded {
				timeout = 50 * time.Millisecond
			}
			a, err := clientOf(t, base+"/v1", timeout).authorize(within(t), "key-1", Charge{"cart-1", 4990, "TRY"})
			if got := classOf(err); got != c.class {
				t.Errorf("it is %s, want %s: %v", got, c.class, err)
			}
			if c.is != nil && !errors.Is(err, c.is) {
				t.Errorf("%v is not %v", err, c.is)
			}
			if c.class == fine && a.ID != "auth_1" {
				t.Errorf("%+v", a)
			}
			if asked.Load() != 1 {
				t.Errorf("the provider was asked %d times", asked.Load())
			}
		})
	}

	t.Run("nobody listens", func(t *testing.T) {
		t.Parallel()
		p := clientOf(t, "http://"+freeAddress(t), patience)
		_, err := p.authorize(within(t), "key-1", Charge{"cart-1", 4990, "TRY"})
		if classOf(err) != nothing || !errors.Is(err, errProviderAway) {
			t.Errorf("%v", err)
		}
		if _, _, err := p.find(within(t), "key-1"); !errors.Is(err, errProviderAway) {
			t.Errorf("%v", err)
		}
	})
	t.Run("no such host", func(t *testing.T) {
		t.Parallel()
		_, err := clientOf(t, "http://provider.invalid", patience).authorize(within(t), "key-1", Charge{"cart-1", 4990, "TRY"})
		if classOf(err) != nothing || !errors.Is(err, errProviderAway) {
			t.Errorf("%v", err)
		}
	})
	t.Run("somebody else's TLS", func(t *testing.T) {
		t.Parallel()
		s := httptest.NewUnstartedServer(http.NotFoundHandler())
		s.Config.ErrorLog = quiet()
		s.StartTLS()
		t.Cleanup(s.Close)
		_, err := clientOf(t, s.URL, patience).authorize(within(t), "key-1", Charge{"cart-1", 4990, "TRY"})
		if classOf(err) != nothing || !errors.Is(err, errProviderAway) { // the handshake has failed, so nothing was asked
			t.Errorf("%v", err)
		}
	})
}

// classOf says how a handler's error is marked. The marks are types of the engine's own.
func classOf(err error) string {
	switch {
	case err == nil:
		return "fine"
	case reflect.TypeOf(err) == reflect.TypeOf(idempotency.Final(errDeclined)):
		return "final"
	case reflect.TypeOf(err) == reflect.TypeOf(idempotency.Unknown(errDeclined)):
		return "unknown"
	}
	return "nothing"
}

// Where the provider is asked what it holds, an answer that is no list is not taken for an empty one.
func TestProvider_NoListIsNotAnEmptyList(t *testing.T) {
	t.Parallel()
	for _, body := range []string{``, `null`, `{}`, `[]`, `{"authorizations":null}`, `<html>`} {
		base := listen(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(body)) }))
		if _, found, err := clientOf(t, base, patience).find(within(t), "key-1"); found || !errors.Is(err, errProviderAway) {
			t.Errorf("%s: %v %v", body, found, err)
		}
	}
	for _, status := range []int{404, 500, 302} {
		base := listen(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			_, _ = w.Write([]byte(`{"total":0,"authorizations":[]}`))
		}))
		if _, found, err := clientOf(t, base, patience).find(within(t), "key-1"); found || !errors.Is(err, errProviderAway) {
			t.Errorf("%d: %v %v", status, found, err)
		}
	}
	f := provide(t, nil)
	if _, found, err := f.client(t, patience).find(within(t), "key-1"); found || err != nil {
		t.Errorf("an empty list: %v %v", found, err)
	}
	asked, err := f.client(t, patience).authorize(within(t), "key&=?/ü", Charge{"cart-1", 4990, "TRY"})
	if err != nil {
		t.Fatal(err)
	}
	if got, found, err := f.client(t, patience).find(within(t), "key&=?/ü"); !found || err != nil || got != asked {
		t.Errorf("%+v %v %v", got, found, err)
	}
}

func TestProvider_ItsListIsShownAtTheCheckout(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		f := provide(t, nil)
		kept, store := d.open(t)
		s := serveWith(t, kept, store, f.options(t), nil)
		if a := get(t, s.base+"/provider/authorizations"); a.status != http.StatusOK || string(a.body) != `{"total":0,"authorizations":[]}`+"\n" {
			t.Errorf("%v", a)
		}
		order := post(t, s.base, d.key("shown-at-the-checkout"), payment("cart-1", 4990)).placed(t)
		var held Held
		a := get(t, s.base+"/provider/authorizations")
		if err := json.Unmarshal(a.body, &held); err != nil || held.Total != 1 || len(held.Authorizations) != 1 {
			t.Fatalf("%v", a)
		}
		if got := held.Authorizations[0]; got != f.keeps(t, 1)[0] || got.ID != order.AuthID {
			t.Errorf("it shows %+v", got)
		}
		for _, secret := range []string{"shown-at-the-checkout", "ada@"} { // the key of the intent stays between the two who know it
			if bytes.Contains(a.body, []byte(secret)) {
				t.Errorf("it shows %q: %s", secret, a.body)
			}
		}
		page := string(get(t, s.base+"/").body)
		if !strings.Contains(page, "the provider at <code>"+f.base+"</code>") || !strings.Contains(page, `<a href="/provider/authorizations">`) || strings.Contains(page, "Every request is new") {
			t.Errorf("the page does not say who authorises:\n%s", page)
		}

		f.db.Close()
		ill := get(t, s.base+"/provider/authorizations")
		ill.is(t, http.StatusServiceUnavailable, "PROVIDER_UNAVAILABLE")
		discreet(t, ill)
	})
	t.Run("without a provider there is none", func(t *testing.T) {
		t.Parallel()
		s := serve(t, sqliteDatabase(t), nil)
		if a := get(t, s.base+"/provider/authorizations"); a.status != http.StatusNotFound {
			t.Errorf("%v", a)
		}
		if page := string(get(t, s.base+"/").body); strings.Contains(page, "provider") {
			t.Errorf("%s", page)
		}
	})
}
