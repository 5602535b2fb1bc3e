package httpedge

import (
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"testing"
)

func TestResourceOfAPath(t *testing.T) {
	t.Parallel()
	whole := func(path string) []string { return []string{path} }
	tests := []struct {
		pattern, path string
		want          []string
	}{
		{"POST /v1/orders", "/v1/orders", nil},
		{"POST /v1/orders", "/v1/orders/", whole("/v1/orders/")},
		{"POST /v1/orders", "/V1/orders", whole("/V1/orders")},
		{"POST /v1/orders", "/", whole("/")},
		{"POST /v1/orders", "", whole("")},
		{"/v1/orders/{id}", "/v1/orders/7", []string{"7"}},
		{"/v1/orders/{id}", "/v1/orders/", []string{""}},
		{"/v1/orders/{id}", "/v1/orders", whole("/v1/orders")},
		{"/v1/orders/{id}", "/v1/orders/7/", whole("/v1/orders/7/")},
		{"/v1/orders/{id}", "/v1/orders/a%2Fb", []string{"a/b"}},
		{"/v1/orders/{id}", "/v1/orders/%C3%A7", []string{"ç"}},
		{"/v1/orders/{id}", "/v1/Orders/7", whole("/v1/Orders/7")},
		{"POST shop.example/v1/{tenant}/orders/{id}", "/v1/north/orders/7", []string{"north", "7"}},
		{"POST  /v1/{a}/{b}", "/v1/x/y", []string{"x", "y"}},
		{"/files/{path...}", "/files/a/b%20c", []string{"a/b c"}},
		{"/files/{path...}", "/files/", []string{""}},
		{"/files/", "/files/a/b", []string{"a/b"}},
		{"/files/", "/files/", []string{""}},
		{"/", "/anything/at/all", []string{"anything/at/all"}},
		{"/files/{$}", "/files/", nil},
		{"/files/{$}", "/files/a", whole("/files/a")},
		{"/v1/orders/{id:[0-9/]{1,3}}/lines", "/v1/orders/12/lines", []string{"12"}},
		{"/v1/{from}-{to}", "/v1/2026-2027", []string{"2026-2027"}},
		{"/v1/orders/:id/lines/:line", "/v1/orders/7/lines/2", []string{"7", "2"}},
		{"/files/*", "/files/a/b", []string{"a/b"}},
		{"/files/*", "/files", whole("/files")},
		{"/v1/*/x", "/v1/a/x", []string{"a"}},
		{"/v1/orders:batch", "/v1/orders:batch", []string{"orders:batch"}}, // may be a parameter of echo's
		{"/caf%C3%A9", "/caf%c3%a9", nil},
		{"", "/v1/orders", whole("/v1/orders")},
		{"orders", "/v1/orders", whole("/v1/orders")},
	}
	for _, tt := range tests {
		t.Run(tt.pattern+" "+tt.path, func(t *testing.T) {
			t.Parallel()
			u, err := url.Parse(tt.path)
			if err != nil {
				t.Fatal(err)
			}
			rt := parseRoute(tt.pattern)
			if got := rt.resource(u, rt.match(u)); !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestPathValuesThatTheRouterDidNotSet(t *testing.T) {
	t.Parallel()
	for pattern, want := range map[string]map[string]string{
		"/v1/{kind}/{id}":       {"kind": "orders", "id": "7"},
		"/v1/:kind/:id":         {"kind": "orders", "id": "7"},
		"/v1/{kind:[a-z]+}/*":   {"kind": "orders", "*": "7"},
		"/v1/{path...}":         {"path": "orders/7"},
		"/v1/{a}{b}/{c}-{d}":    {"a": "", "b": "", "c": "", "d": ""},
		"/v2/{kind}/{id}":       {"kind": "", "id": ""},
		"POST /v1/orders/{set}": {"set": "by the router"},
	} {
		r, err := http.NewRequest("POST", "/v1/orders/7", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.SetPathValue("set", "by the router")
		rt := parseRoute(pattern)
		rt.setPathValues(r, rt.match(r.URL))
		for name, value := range want {
			if got := r.PathValue(name); got != value {
				t.Errorf("%s: %s is %q, want %q", pattern, name, got, value)
			}
		}
	}
}

func TestSourceOfARoute(t *testing.T) {
	t.Parallel()
	for pattern, want := range map[string]string{
		"POST /v1/orders/{id}":      "PUT /v1/orders/{id}", // the request's method counts
		"/v1/orders":                "PUT /v1/orders",
		"POST shop.example/orders":  "PUT shop.example/orders",
		"POST\u0020\u0020 /v1/a b/": "PUT /v1/a b/",
		"":                          "PUT",
	} {
		if got := parseRoute(pattern).source("PUT"); got != want {
			t.Errorf("%q: got %q, want %q", pattern, got, want)
		}
	}
}

func FuzzRoute(f *testing.F) {
	f.Add("POST /v1/orders/{id}", "/v1/orders/7")
	f.Add("/{a:{}/*/", "//%2F/")
	f.Fuzz(func(t *testing.T, pattern, path string) {
		u := &url.URL{Path: path}
		rt := parseRoute(pattern)
		values := rt.match(u)
		if len(values) > len(rt.segments) {
			t.Errorf("%d values for %d segments", len(values), len(rt.segments))
		}
		rt.setPathValues(&http.Request{URL: u}, values)
		if got := rt.resource(u, values); values == nil && (len(got) != 1 || got[0] != u.EscapedPath()) {
			t.Errorf("a path that is another one has the resource %q", got)
		}
		if !strings.HasPrefix(rt.source("POST"), "POST") {
			t.Errorf("source %q", rt.source("POST"))
		}
	})
}
