package httpedge_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/requestctx/httpedge"
)

const shop = "https://shop.example.com"

// behindCORS puts the middleware round the router of a rig.
func behindCORS(t testing.TB, h http.Handler, cfg httpedge.CORSConfig) http.Handler {
	t.Helper()
	mw, err := httpedge.CORS(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return mw(h)
}

// preflight asks as a browser does.
func preflight(t testing.TB, h http.Handler, origin, method, headers string) *reply {
	t.Helper()
	return do(t, h, "OPTIONS", "/v1/orders", "", "Content-Type:", "Origin: "+origin, "Access-Control-Request-Method: "+method, "Access-Control-Request-Headers: "+headers)
}

// lists are the elements of a header, in small letters.
func (r *reply) lists(name string) (elements []string) {
	for _, e := range strings.Split(strings.Join(r.header.Values(name), ","), ",") {
		if e = strings.ToLower(strings.TrimSpace(e)); e != "" {
			elements = append(elements, e)
		}
	}
	return elements
}

func TestBR62_AScriptOfAnAllowedOriginSendsAKeyAndReadsWhatBecameOfIt(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{config: httpedge.Config{Codecs: formats()}}).orders() // a ServeMux with "POST /v1/orders" alone
	same(t, "status without it", preflight(t, g.mux, shop, "POST", "idempotency-key").status, 405)
	h := behindCORS(t, g.mux, httpedge.CORSConfig{Origins: []string{"http://localhost:3000", shop}})

	pre := preflight(t, h, shop, "POST", "authorization,content-type,idempotency-key")
	same(t, "status of the preflight", pre.status, 204)
	same(t, "origin", pre.header.Values("Access-Control-Allow-Origin"), []string{shop})
	same(t, "method", pre.lists("Access-Control-Allow-Methods"), []string{"post"})
	same(t, "headers", pre.lists("Access-Control-Allow-Headers"), []string{"authorization", "content-type", "idempotency-key"})
	same(t, "age", pre.header.Get("Access-Control-Max-Age"), "600")
	same(t, "that the answer differs by origin", slices.Contains(pre.lists("Vary"), "origin"), true)
	pre.without("Access-Control-Allow-Credentials", "X-Request-ID")
	g.want(0, 0, 0)

	for i := range 2 {
		res := do(t, h, "POST", "/v1/orders", usual, k1, "Origin: "+shop).ok(201, fmt.Sprint(i > 0))
		same(t, "origin", res.header.Values("Access-Control-Allow-Origin"), []string{shop})
		same(t, "Vary", res.lists("Vary"), []string{"origin", "accept"})
		exposed := res.lists("Access-Control-Expose-Headers")
		for _, name := range []string{
			"X-Request-ID", "Idempotency-Key", "Idempotency-Replayed", "Idempotency-Original-Request-ID", "Location", "Retry-After", "Link",
		} {
			if !slices.Contains(exposed, strings.ToLower(name)) {
				t.Errorf("%s cannot be read by the script: %v", name, exposed)
			}
			if name != "Retry-After" && name != "Link" && res.header.Get(name) == "" {
				t.Errorf("%s is not on the answer", name)
			}
		}
		res.without("Access-Control-Allow-Credentials")
	}
	conflicting := do(t, h, "POST", "/v1/orders", `{"cart_id":"c-2","amount":1}`, k1, "Origin: "+shop)
	conflicting.fails(409, conflict, httpedge.Never)
	same(t, "that a script may read the conflict", conflicting.header.Get("Access-Control-Allow-Origin"), shop)
	g.want(1, 1, 1)
}

func TestBR62_AnotherOriginGetsNothing(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{}).orders()
	h := behindCORS(t, g.mux, httpedge.CORSConfig{Origins: []string{shop}, Credentials: true})
	for _, origin := range []string{
		"https://evil.example", "http://shop.example.com", "https://shop.example.com:8443", "https://shop.example.com.evil.example", "https://a.shop.example.com",
		"https://evilshop.example.com", "null", "*", "", shop + "/", shop + "," + shop,
	} {
		for _, res := range []*reply{
			preflight(t, h, origin, "POST", "content-type,idempotency-key"),
			do(t, h, "POST", "/v1/orders", usual, k1, "Origin: "+origin),
		} {
			for name := range res.header {
				if strings.HasPrefix(name, "Access-Control-") {
					t.Errorf("%q gets %s: %q", origin, name, res.header[name])
				}
			}
			same(t, "that the answer differs by origin", slices.Contains(res.lists("Vary"), "origin"), true)
		}
	}
	for name, pre := range map[string]*reply{
		"a method that nobody may use": preflight(t, h, shop, "TRACE", "idempotency-key"),
		"a header that nobody named":   preflight(t, h, shop, "POST", "idempotency-key,x-tenant"),
	} {
		if got := pre.header.Get("Access-Control-Allow-Origin"); got != "" {
			t.Errorf("%s: %q may", name, got)
		}
	}
	same(t, "an allowed one with credentials", preflight(t, h, shop, "POST", "idempotency-key").header.Get("Access-Control-Allow-Credentials"), "true")
	plain := do(t, h, "POST", "/v1/orders", usual, k1).ok(201, "true") // no browser, or a page of the same origin
	plain.without("Access-Control-Allow-Origin")
}

func TestBR62_WhatACORSConfigSays(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{}).orders()
	for name, tt := range map[string]struct {
		cfg     httpedge.CORSConfig
		headers string
		origin  string
		age     string
	}{
		"every origin":       {httpedge.CORSConfig{Origins: []string{"*"}}, "idempotency-key", "*", "600"},
		"a header":           {httpedge.CORSConfig{Origins: []string{shop}, Headers: []string{"X-Tenant"}}, "idempotency-key,x-tenant", shop, "600"},
		"one twice":          {httpedge.CORSConfig{Origins: []string{shop}, Headers: []string{"content-type", "Idempotency-Key"}}, "content-type,idempotency-key", shop, "600"},
		"an age":             {httpedge.CORSConfig{Origins: []string{shop}, MaxAge: time.Hour}, "idempotency-key", shop, "3600"},
		"no age":             {httpedge.CORSConfig{Origins: []string{shop}, MaxAge: -1}, "idempotency-key", shop, "0"},
		"less than a second": {httpedge.CORSConfig{Origins: []string{shop}, MaxAge: time.Millisecond}, "idempotency-key", shop, "0"},
		"letters":            {httpedge.CORSConfig{Origins: []string{"https://Shop.Example.com"}}, "idempotency-key", shop, "600"},
		"IPv6":               {httpedge.CORSConfig{Origins: []string{"http://[::1]:3000", shop}}, "idempotency-key", shop, "600"},
	} {
		pre := preflight(t, behindCORS(t, g.mux, tt.cfg), shop, "POST", tt.headers)
		same(t, name+": origin", pre.header.Get("Access-Control-Allow-Origin"), tt.origin)
		same(t, name+": headers", strings.Join(pre.lists("Access-Control-Allow-Headers"), ","), tt.headers)
		same(t, name+": age", pre.header.Get("Access-Control-Max-Age"), tt.age)
	}
}

func TestBR62_ACORSConfigThatCannotBeMeantIsRefused(t *testing.T) {
	t.Parallel()
	const no = "is no origin as browsers write it"
	for name, tt := range map[string]struct {
		cfg  httpedge.CORSConfig
		want string
	}{
		"nobody":                    {httpedge.CORSConfig{}, "Origins is empty"},
		"everybody with cookies":    {httpedge.CORSConfig{Origins: []string{shop, "*"}, Credentials: true}, "every origin call with credentials"},
		"a pattern":                 {httpedge.CORSConfig{Origins: []string{"https://*.example.com"}}, no},
		"a pattern within":          {httpedge.CORSConfig{Origins: []string{"https://shop*"}}, no},
		"a path":                    {httpedge.CORSConfig{Origins: []string{shop + "/"}}, no},
		"a query":                   {httpedge.CORSConfig{Origins: []string{shop + "?x"}}, no},
		"a fragment":                {httpedge.CORSConfig{Origins: []string{shop + "#x"}}, no},
		"no scheme":                 {httpedge.CORSConfig{Origins: []string{"shop.example.com"}}, no},
		"another scheme":            {httpedge.CORSConfig{Origins: []string{"file://shop"}}, no},
		"what a sandboxed page has": {httpedge.CORSConfig{Origins: []string{"null"}}, no},
		"nothing":                   {httpedge.CORSConfig{Origins: []string{""}}, no},
		"no host":                   {httpedge.CORSConfig{Origins: []string{"https://"}}, no},
		"a port alone":              {httpedge.CORSConfig{Origins: []string{"https://:8080"}}, no},
		"a user":                    {httpedge.CORSConfig{Origins: []string{"https://me@shop.example.com"}}, no},
		"two":                       {httpedge.CORSConfig{Origins: []string{shop + " " + shop}}, no},
		"two lines":                 {httpedge.CORSConfig{Origins: []string{shop + "\r\nX-Evil: 1"}}, no},
		"the scheme's own port":     {httpedge.CORSConfig{Origins: []string{shop + ":443"}}, no},
		"http's own port":           {httpedge.CORSConfig{Origins: []string{"http://shop.example.com:80"}}, no},
		"an empty port":             {httpedge.CORSConfig{Origins: []string{shop + ":"}}, no},
		"letters outside ASCII":     {httpedge.CORSConfig{Origins: []string{"https://dükkan.example"}}, no},
		"every header":              {httpedge.CORSConfig{Origins: []string{shop}, Headers: []string{"*"}}, `Headers: "*" is no name of a header`},
		"no header":                 {httpedge.CORSConfig{Origins: []string{shop}, Headers: []string{""}}, `Headers: "" is no name of a header`},
		"two headers in one":        {httpedge.CORSConfig{Origins: []string{shop}, Headers: []string{"X-A, X-B"}}, "is no name of a header"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mw, err := httpedge.CORS(tt.cfg)
			if mw != nil || err == nil || !strings.HasPrefix(err.Error(), "httpedge: CORSConfig") || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
	_, err := httpedge.CORS(httpedge.CORSConfig{Origins: []string{"a", "*", "b"}, Credentials: true, Headers: []string{"*"}})
	same(t, "problems that are told at once", len(strings.Split(fmt.Sprint(err), "\n")), 4)
}

// A form of another site needs no preflight. Whatever it sends, it does not come to a command, with or without a mark.
func TestBR62_APlainFormOfAnotherSiteCannotReachACommand(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{config: httpedge.Config{Codecs: formats()}}).orders()
	route(g, "POST /v1/touch", httpedge.Options[touch, placed]{})
	route(g, "POST /v1/optional", httpedge.Options[optional, placed]{})
	h := behindCORS(t, g.mux, httpedge.CORSConfig{Origins: []string{shop}})
	s := server(t, h)
	for _, path := range []string{"/v1/orders", "/v1/touch", "/v1/optional"} {
		for _, contentType := range []string{
			"", "text/plain", "text/plain;charset=utf-8", "application/x-www-form-urlencoded", "multipart/form-data; boundary=application/json", "text/plain; application/json",
			"text/plain, application/json", "application/x-www-form-urlencoded; a=+json", "TEXT/PLAIN", "application/x-www-form-urlencoded+json; ;",
		} {
			for _, body := range []string{usual, kvBody, `{"cart_id":"c-1`, "cart_id=c-1"} {
				res := do(t, h, "POST", path, body, "Content-Type: "+contentType, "Origin: https://evil.example", "Accept: */*")
				if res.status != 415 {
					t.Errorf("%s of the type %q: %d %s", path, contentType, res.status, res.body)
				}
				res.without("Access-Control-Allow-Origin")
			}
		}
		req, err := http.NewRequest("POST", s.URL+path, strings.NewReader("cart_id=c-1&amount=1"))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		res, body := exchange(t, s.Client(), req)
		same(t, "status through a server", res.StatusCode, 415)
		same(t, "that the answer says what is wrong", strings.Contains(body, "UNSUPPORTED_MEDIA_TYPE"), true)
	}
	g.want(0, 0, 0)
}

func TestBR62_RetryAfterOfADuplicateMayBeReadByAScript(t *testing.T) {
	t.Parallel()
	res := answered(t, httpedge.Config{}, &idempotency.InProgressError{RetryAfter: 2 * time.Second})
	same(t, "Retry-After", res.header.Get("Retry-After"), "2")
	h := behindCORS(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Retry-After", "2") }), httpedge.CORSConfig{Origins: []string{shop}})
	got := do(t, h, "GET", "/", "", "Origin: "+shop)
	same(t, "that it may be read", slices.Contains(got.lists("Access-Control-Expose-Headers"), "retry-after"), true)
}
