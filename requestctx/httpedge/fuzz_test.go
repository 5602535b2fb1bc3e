package httpedge_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/tekil-go/tekil/requestctx"
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
