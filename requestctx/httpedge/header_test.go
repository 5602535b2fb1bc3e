package httpedge_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/tekil-go/tekil/behaviors/idempotency/memstore"
	"github.com/tekil-go/tekil/registry"
	"github.com/tekil-go/tekil/requestctx"
	"github.com/tekil-go/tekil/requestctx/httpedge"
)

const (
	missing = "IDEMPOTENCY_KEY_MISSING"
	invalid = "IDEMPOTENCY_KEY_INVALID"
)

// headerRig has a route of each kind.
func headerRig(t testing.TB) *rig {
	t.Helper()
	g := newRig(t, setup{config: httpedge.Config{DescribedBy: "https://docs.example/keys"}}).orders()
	route(g, "POST /v1/optional", httpedge.Options[optional, placed]{Status: http.StatusCreated})
	route(g, "POST /v1/touch", httpedge.Options[touch, placed]{Status: http.StatusCreated})
	check, err := httpedge.Check(g.edge, g.bus, "POST /v1/orders/test", created)
	if err != nil {
		t.Fatal(err)
	}
	g.mux.Handle("POST /v1/orders/test", check)
	query, err := httpedge.Query(g.edge, g.bus, "GET /v1/orders/{id}", httpedge.QueryOptions[find, placed]{
		Parse: func(r *http.Request) (find, error) { return find{r.PathValue("id")}, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	g.mux.Handle("GET /v1/orders/{id}", query)
	return g
}

func TestHeaderTableThroughARawSocket(t *testing.T) {
	t.Parallel()
	line := func(value string) string { return "Idempotency-Key: " + value + "\r\n" }
	longest := strings.Repeat("k", 128)
	tests := []struct {
		name    string
		headers string
		key     string // as it is taken; "" means that the request is refused
		code    string
	}{
		{"H01 no header", "", "", missing},
		{"H03 empty", "Idempotency-Key:\r\n", "", invalid},
		{"H03 empty after a space", line(""), "", invalid},
		{"H04 only spaces and tabs", line(" \t  \t"), "", invalid},
		{"H05 spaces around the key", line("  \t order-12345 \t "), "order-12345", ""},
		{"H05 no space before the key", "Idempotency-Key:order-12345\r\n", "order-12345", ""},
		{"H06 padding within quotes", line(`" abcdefgh "`), "", invalid},
		{"H07 seven characters", line("abcdefg"), "", invalid},
		{"H08 eight characters", line("abcdefgh"), "abcdefgh", ""},
		{"H09 128 characters", line(longest), longest, ""},
		{"H10 129 characters", line(longest + "k"), "", invalid},
		{"H10 70 kB", line(strings.Repeat("k", 70_000)), "", invalid},
		{"H11 slash", line("order/12345"), "", invalid},
		{"H11 semicolon", line("order;12345"), "", invalid},
		{"H11 per cent", line("order%2012345"), "", invalid},
		{"H11 brace", line("order{12345}"), "", invalid},
		{"H11 letter outside ASCII", line("siparişç-12345"), "", invalid},
		{"H11 inner space", line("order 12345"), "", invalid},
		{"H11 inner tab", line("order\t12345"), "", invalid},
		{"BR-13 zero-width space", line("order-12345\u200b"), "", invalid},
		{"BR-13 only a zero-width space", line("\u200b"), "", invalid},
		{"H12 two equal lines", line("order-12345") + line("order-12345"), "", invalid},
		{"H12 two different lines", line("order-12345") + line("order-67890"), "", invalid},
		{"H12 two lines in different case", line("order-12345") + "idempotency-key: order-12345\r\n", "", invalid},
		{"H12 a valid and an empty line", line("order-12345") + line(""), "", invalid},
		{"H13 joined by a proxy", line("order-12345, order-12345"), "", invalid},
		{"H14 quoted", line(`"8e03978e-40d5-43dd-bc93-6894a57f9324"`), "8e03978e-40d5-43dd-bc93-6894a57f9324", ""},
		{"H15 quoted with a parameter", line(`"order-12345";v=1`), "", invalid},
		{"H15 quoted with a quoted parameter", line(`"order-12345";v="1"`), "", invalid},
		{"H15 escape", line(`"order-\"12345"`), "", invalid},
		{"H15 escaped letter", line(`"order\-12345"`), "", invalid},
		{"H15 no closing quote", line(`"order-12345`), "", invalid},
		{"H15 no opening quote", line(`order-12345"`), "", invalid},
		{"H15 a single quote", line(`"`), "", invalid},
		{"H15 empty quotes", line(`""`), "", invalid},
		{"H15 quotes within quotes", line(`""order-12345""`), "", invalid},
		{"H15 other quotes", line(`'order-12345'`), "", invalid},
		{"H16 lower-case name", "idempotency-key: order-12345\r\n", "order-12345", ""},
		{"H16 upper-case name", "IDEMPOTENCY-KEY: order-12345\r\n", "order-12345", ""},
		{"H16 mixed name", "iDeMpOtEnCy-kEy: order-12345\r\n", "order-12345", ""},
		{"H18 folded line", "Idempotency-Key: order\r\n -12345\r\n", "", invalid},
		{"H23 low entropy", line("aaaaaaaa"), "aaaaaaaa", ""},
		{"BR-24 another header beside it", "X-Idempotency-Key: order-67890\r\n", "", missing},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			g := headerRig(t)
			res := raw(t, server(t, g.mux), "POST", "/v1/orders", tt.headers, usual)
			if tt.key != "" {
				res.ok(http.StatusCreated, "false")
				same(t, "the echo", res.header.Values("Idempotency-Key"), []string{tt.key})
				same(t, "the stored key", g.mem.Records()[0].Scope.Key, tt.key)
				same(t, "the attempt that did the work", res.header.Get("Idempotency-Original-Request-ID"), res.id())
				g.want(1, 1, 1)
				return
			}
			p := res.fails(http.StatusBadRequest, tt.code, httpedge.NewKey)
			res.without("Idempotency-Key", "Idempotency-Replayed", "Idempotency-Original-Request-ID", "Retry-After")
			if res.id() == "" || res.header.Get("Cache-Control") != "no-store" {
				t.Errorf("the answer lacks X-Request-ID or Cache-Control: %v", res.header)
			}
			if strings.Contains(res.body, "order-") || len(p.Detail) > 200 {
				t.Errorf("the answer holds what was sent: %s", res.body)
			}
			link := res.header.Get("Link")
			if tt.code == missing && link != `<https://docs.example/keys>; rel="describedby"` || tt.code == invalid && link != "" {
				t.Errorf("%s: Link is %q", tt.code, link)
			}
			g.want(0, 0, 0)
			if n := g.store.reads.Load(); n != 0 {
				t.Errorf("the store was read %d times", n)
			}
		})
	}
}

func TestH02_WithoutAKeyAnOptionalCommandRunsUnprotectedAndGetsNoneMadeUp(t *testing.T) {
	t.Parallel()
	g := headerRig(t)
	s := server(t, g.mux)
	for range 2 {
		res := raw(t, s, "POST", "/v1/optional", "", `{"cart_id":"c-1"}`).ok(http.StatusCreated, "")
		res.without("Idempotency-Key", "Idempotency-Replayed", "Idempotency-Original-Request-ID")
	}
	g.want(2, 2, 0)
	raw(t, s, "POST", "/v1/optional", "Idempotency-Key: short\r\n", `{"cart_id":"c-1"}`).fails(400, invalid, httpedge.NewKey)
	raw(t, s, "POST", "/v1/optional", k1+"\r\n", `{"cart_id":"c-1"}`).ok(http.StatusCreated, "false")
	raw(t, s, "POST", "/v1/optional", k1+"\r\n", `{"cart_id":"c-1"}`).ok(http.StatusCreated, "true")
	g.want(3, 3, 1)
}

func TestH14_TheQuotedAndTheBareFormAreOneKey(t *testing.T) {
	t.Parallel()
	g := headerRig(t)
	s := server(t, g.mux)
	first := raw(t, s, "POST", "/v1/orders", `Idempotency-Key: "order-12345"`+"\r\n", usual).ok(201, "false")
	second := raw(t, s, "POST", "/v1/orders", k1+"\r\n", usual).ok(201, "true")
	same(t, "the original request", second.header.Get("Idempotency-Original-Request-ID"), first.id())
	g.want(1, 1, 1)
}

func TestH17_TheCaseOfAKeyCounts(t *testing.T) {
	t.Parallel()
	g := headerRig(t)
	s := server(t, g.mux)
	raw(t, s, "POST", "/v1/orders", "Idempotency-Key: Order-ABCDEF\r\n", usual).ok(201, "false")
	raw(t, s, "POST", "/v1/orders", "Idempotency-Key: order-abcdef\r\n", usual).ok(201, "false")
	g.want(2, 2, 2)
}

func TestH19_WhatIsNoHeaderIsAnsweredByTheServerItself(t *testing.T) {
	t.Parallel()
	for _, headers := range []string{"Idempotency-Key: order\x0012345\r\n", "Idempotency-Key : order-12345\r\n"} {
		g := headerRig(t)
		res := raw(t, server(t, g.mux), "POST", "/v1/orders", headers, usual)
		same(t, "status", res.status, http.StatusBadRequest)
		g.want(0, 0, 0)
	}
}

func TestH20_AnUnmarkedCommandIgnoresTheKey(t *testing.T) {
	t.Parallel()
	for _, headers := range []string{"", k1 + "\r\n", "Idempotency-Key: ;;\r\n", k1 + "\r\n" + k1 + "\r\n"} {
		g := headerRig(t)
		s := server(t, g.mux)
		for range 2 {
			res := raw(t, s, "POST", "/v1/touch", headers, `{"cart_id":"c-1"}`).ok(201, "")
			res.without("Idempotency-Key", "Idempotency-Replayed", "Idempotency-Original-Request-ID")
			if res.id() == "" {
				t.Error("there is no X-Request-ID")
			}
		}
		g.want(2, 2, 0)
	}
}

func TestH21_GetAndHeadIgnoreTheKey(t *testing.T) {
	t.Parallel()
	g := headerRig(t)
	s := server(t, g.mux)
	for _, headers := range []string{k1 + "\r\n", "Idempotency-Key: ;;\r\n", k1 + "\r\n" + k1 + "\r\n"} {
		raw(t, s, "GET", "/v1/orders/o-1", headers, "").ok(200, "").without("Idempotency-Key", "Idempotency-Original-Request-ID")
		res := raw(t, s, "HEAD", "/v1/orders/o-1", headers, "").ok(200, "")
		if res.body != "" || res.header.Get("Content-Length") == "" {
			t.Errorf("HEAD: body %q, headers %v", res.body, res.header)
		}
	}
	same(t, "reads of the store", g.store.reads.Load(), 0)
}

func TestH22_TheCheckRouteReadsNoKey(t *testing.T) {
	t.Parallel()
	g := headerRig(t)
	s := server(t, g.mux)
	for _, headers := range []string{"", k1 + "\r\n", "Idempotency-Key: ;;\r\n"} {
		res := raw(t, s, "POST", "/v1/orders/test", headers, usual).ok(200, "")
		res.without("Idempotency-Key", "Idempotency-Replayed", "Idempotency-Original-Request-ID")
		same(t, "body", res.body, `{"request_id":"`+res.id()+`","valid":true}`+"\n")
		p := raw(t, s, "POST", "/v1/orders/test", headers, `{"cart_id":"c-1","amount":0}`).fails(400, "VALIDATION_FAILED", httpedge.SameKey)
		same(t, "the field", p.Errors[0].Path, "amount")
		raw(t, s, "POST", "/v1/orders/test", headers, `{"cart_id":}`).fails(400, "MALFORMED_REQUEST", httpedge.SameKey)
	}
	g.want(0, 0, 0)
	same(t, "reads of the store", g.store.reads.Load(), 0)
}

func TestH24_KeyStateReferenceAndDraftStandOnOneLineWithoutTheBody(t *testing.T) {
	t.Parallel()
	var log lines
	mem := memstore.New()
	reg := registry.New(registry.Config{
		Logger: zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), zapcore.AddSync(&log), zap.DebugLevel)),
		Store:  mem,
	})
	registry.Handle(reg, func(ctx context.Context, c place) (placed, error) {
		req := requestctx.From(ctx)
		req.SetExternalRef("auth-77")
		req.Add("draft_order_id", "d-9")
		return placed{OrderID: "o-1"}, mem.Insert(ctx, c.CartID)
	})
	b, err := reg.Build()
	if err != nil {
		t.Fatal(err)
	}
	g := newRig(t, setup{})
	g.bus = b
	g.orders()
	const body = `{"cart_id":"c-1","amount":4990,"card":"4111111111111111"}`
	first := g.do("POST", "/v1/orders", body, k1).ok(201, "false")
	second := g.do("POST", "/v1/orders", body, k1).ok(201, "true")
	third := g.do("POST", "/v1/orders", `{"cart_id":"","amount":4990,"card":"4111111111111111"}`, k1)
	third.fails(400, "VALIDATION_FAILED", httpedge.SameKey)
	all := strings.Split(strings.TrimSpace(log.String()), "\n")
	same(t, "lines", len(all), 3)
	for i, want := range [][]string{
		{key, "executed", "auth-77", "d-9", first.id()},
		{key, "replayed", "auth-77", first.id(), second.id()},
		{key, "VALIDATION_FAILED", third.id()},
	} {
		for _, w := range want {
			if !strings.Contains(all[i], `"`+w+`"`) {
				t.Errorf("%q is missing in the line %s", w, all[i])
			}
		}
	}
	if strings.Contains(log.String()+first.body+second.body+third.body, "41111111") {
		t.Errorf("the card is in the log or an answer: %s", &log)
	}
}

func TestBR24_TwoLinesAreRefusedOverHTTP2AsWell(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{}).orders()
	s := httpTwo(t, g.mux)
	for _, second := range []string{key, "order-67890"} {
		req, err := http.NewRequest("POST", s.URL+"/v1/orders", strings.NewReader(usual))
		if err != nil {
			t.Fatal(err)
		}
		req.Header = http.Header{"Content-Type": {"application/json"}, "Idempotency-Key": {key, second}}
		res, body := exchange(t, s.Client(), req)
		same(t, "protocol", res.ProtoMajor, 2)
		(&reply{t, res.StatusCode, res.Header, body}).fails(400, invalid, httpedge.NewKey)
	}
	g.want(0, 0, 0)
	req, err := http.NewRequest("POST", s.URL+"/v1/orders", strings.NewReader(usual))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = http.Header{"Content-Type": {"application/json"}, "Idempotency-Key": {key}, "X-Idempotency-Key": {"order-67890"}}
	res, body := exchange(t, s.Client(), req)
	(&reply{t, res.StatusCode, res.Header, body}).ok(201, "false")
	same(t, "the stored key", g.mem.Records()[0].Scope.Key, key)
}

func TestH21_H22_TheRequestContextOfAReadingRouteHoldsNoKey(t *testing.T) {
	t.Parallel()
	g := headerRig(t)
	var req *requestctx.Request
	h := g.edge.Middleware("/x")(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { req = requestctx.From(r.Context()) }))
	for method, want := range map[string]bool{"GET": false, "HEAD": false, "POST": true, "PUT": true, "PATCH": true, "DELETE": true} {
		do(t, h, method, "/x", "", k1)
		same(t, method+": it has the key", !req.Key().IsZero(), want)
		do(t, h, method, "/x", "", "Idempotency-Key: ;;")
		same(t, method+": it has the error", req.KeyErr() != nil, want)
	}
	g.do("POST", "/v1/orders/test", usual, k1).ok(200, "")
	g.do("POST", "/v1/orders/test", usual, "Idempotency-Key: ;;").ok(200, "")
	for _, end := range g.seen.all() {
		if !end.request.Key().IsZero() || end.request.KeyErr() != nil {
			t.Errorf("the check route has read a key: %q, %v", end.request.Key(), end.request.KeyErr())
		}
	}
}
