package httpedge_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tekil-go/tekil/requestctx"
	"github.com/tekil-go/tekil/requestctx/httpedge"
)

func FuzzKeyHeader(f *testing.F) {
	for _, s := range []string{
		"", "order-12345", `"order-12345"`, `"order-12345";v=1`, "order-12345\norder-12345", " order-12345", `""`, `"`, "a\x00b",
		"order-12345, order-67890", strings.Repeat("k", 129),
	} {
		f.Add(s)
	}
	g := newRig(f, setup{})
	f.Fuzz(func(t *testing.T, values string) {
		lines := strings.Split(values, "\n")
		var req *requestctx.Request
		h := g.edge.Middleware("POST /x")(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { req = requestctx.From(r.Context()) }))
		r := httptest.NewRequest("POST", "/x", nil)
		r.Header["Idempotency-Key"] = lines
		h.ServeHTTP(httptest.NewRecorder(), r)
		if key := req.Key(); !key.IsZero() {
			if len(lines) != 1 || values != key.String() && values != `"`+key.String()+`"` {
				t.Errorf("%q became the key %q", values, key)
			}
			if again, err := requestctx.ParseKey(key.String()); err != nil || again != key {
				t.Errorf("the key %q is not one: %v", key, err)
			}
			return
		}
		var refused *requestctx.KeyError
		if !errors.As(req.KeyErr(), &refused) {
			t.Fatalf("%q is neither a key nor refused: %v", values, req.KeyErr())
		}
		if _, err := requestctx.ParseKey(values); err == nil {
			t.Errorf("the key %q was refused: %v", values, refused)
		}
		if len(values) >= 20 && strings.Contains(refused.Error(), values) {
			t.Errorf("the error holds the key: %v", refused)
		}
	})
}

func FuzzAccept(f *testing.F) {
	for _, s := range []string{
		"", "*/*", "application/json", "application/x-kv;q=0.5, */*;q=0.1", "application/*;q=0\n*/*", "text/html;level=1;q=0.3", ";;", "a/b;q=\"1\"", `a/b;c="x,y"`,
		`"`, `\`, "application/json;q=NaN", "application/json;q=1e-3", "application/json;q*0=1;q*1=2", "*/*;q=0", "*", "+json", strings.Repeat("a/b,", 100) + "application/json",
	} {
		f.Add(s, "application/json")
		f.Add(s, kvType)
	}
	e, err := httpedge.New(httpedge.Config{Anonymous: true, Codecs: formats()})
	if err != nil {
		f.Fatal(err)
	}
	h := e.Middleware("POST /x")(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { e.WriteProblem(w, r, errForbidden) }))
	g := newRig(f, setup{config: httpedge.Config{Codecs: formats()}})
	mountFind(g)
	// serve gives the format that a request is answered in, and whether it could be accepted.
	serve := func(h http.Handler, method, path, contentType string, accept ...string) (string, bool) {
		r := httptest.NewRequest(method, path, nil)
		r.Header["Content-Type"], r.Header["Accept"] = []string{contentType}, accept
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Header().Get("Content-Type"), w.Code != http.StatusNotAcceptable
	}
	f.Fuzz(func(t *testing.T, accept, contentType string) {
		lines := strings.Split(accept, "\n")
		problem, _ := serve(h, "POST", "/x", contentType, lines...)
		if !slices.Contains([]string{"application/problem+json", "application/problem+kv", taggedType}, problem) {
			t.Errorf("Accept %q, Content-Type %q: a problem of the type %q", accept, contentType, problem)
		}
		format, acceptable := serve(g.mux, "GET", "/v1/orders/1", contentType, lines...)
		if acceptable && !slices.Contains([]string{"application/json", kvType, taggedType}, format) || !acceptable && format != problem {
			t.Errorf("Accept %q, Content-Type %q: %v in the format %q", accept, contentType, acceptable, format)
		}
		if format, ok := serve(g.mux, "GET", "/v1/orders/1", contentType, append([]string{kvType}, lines...)...); !ok {
			t.Errorf("Accept %q with a format of ours before it is refused in %s", accept, format)
		}
	})
}

func FuzzRequestID(f *testing.F) {
	for _, s := range []string{"", "7", "trace-0001", "trace 1", "a\nb", "iz-ç", "x\x00", "\xff", `"a"`, "a,b", strings.Repeat("x", 128), strings.Repeat("x", 129)} {
		f.Add(s, "10.0.0.1:80")
		f.Add(s, "203.0.113.5:80")
	}
	f.Add("trace-0001", "[::ffff:10.0.0.1]:80")
	f.Add("trace-0001", "10.0.0.1")
	e, err := httpedge.New(httpedge.Config{Anonymous: true, TrustedProxies: prefixes("10.0.0.0/8")})
	if err != nil {
		f.Fatal(err)
	}
	good := regexp.MustCompile(`\A[A-Za-z0-9._:-]{1,128}\z`)
	trusted := regexp.MustCompile(`\A(\[::ffff:)?10\.`) // whatever else is an address of the net is not tried here
	h := e.Middleware("POST /x")(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	f.Fuzz(func(t *testing.T, values, remote string) {
		r := httptest.NewRequest("POST", "/x", nil)
		r.Header["X-Request-Id"], r.RemoteAddr = strings.Split(values, "\n"), remote
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		ids := w.Header()["X-Request-Id"]
		if len(ids) != 1 || !good.MatchString(ids[0]) {
			t.Fatalf("%q from %q became the ids %q", values, remote, ids)
		}
		taken := ids[0] == values
		if taken && !trusted.MatchString(remote) && !strings.HasPrefix(strings.ToLower(remote), "[") {
			t.Errorf("the id %q of %q was taken", values, remote)
		}
		if !taken && good.MatchString(values) && remote == "10.0.0.1:80" {
			t.Errorf("the id %q was not taken", values)
		}
	})
}
