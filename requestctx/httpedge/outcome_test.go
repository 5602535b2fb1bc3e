package httpedge_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/memstore"
	"github.com/tekil-go/tekil/behaviors/validation"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
	"github.com/tekil-go/tekil/requestctx/httpedge"
)

func httpTwo(t testing.TB, h http.Handler) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	if tr, ok := s.Client().Transport.(*http.Transport); !ok || tr.TLSClientConfig == nil || tr.TLSClientConfig.MinVersion > tls.VersionTLS13 {
		t.Fatal("the test server's client is another one than expected")
	}
	return s
}

func exchange(t testing.TB, c *http.Client, req *http.Request) (*http.Response, string) {
	t.Helper()
	res, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, string(body)
}

func TestV01_ABodyThatCannotBeDecodedIsRefusedAndLoggedAtTheEdge(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ body, path string }{
		"no JSON":          {`{"cart_id":`, "cart_id"},
		"empty":            {"", ""},
		"null":             {"null", ""},
		"wrong type":       {`{"cart_id":"c-1","amount":"4111111111111111"}`, "amount"},
		"unknown member":   {`{"cart_id":"c-1","amount":1,"4111111111111111":1}`, ""},
		"repeated member":  {`{"cart_id":"c-1","amount":1,"amount":2}`, "amount"},
		"another case":     {`{"Cart_ID":"c-1","amount":1}`, "cart_id"},
		"two values":       {`{"cart_id":"c-1","amount":1}{}`, ""},
		"not UTF-8":        {"{\"cart_id\":\"\xff4111111111111111\",\"amount\":1}", "cart_id"},
		"the key inside":   {`{"cart_id":"c-1","amount":1,"idempotency_key":"order-67890"}`, ""}, // BR-34: the header is the only source
		"a list":           {`[]`, ""},
		"a fraction":       {`{"cart_id":"c-1","amount":1.5}`, "amount"},
		"a number too big": {`{"cart_id":"c-1","amount":4111111111111111111111}`, "amount"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newRig(t, setup{}).orders()
			res := g.do("POST", "/v1/orders", tt.body, k1)
			p := res.fails(400, "MALFORMED_REQUEST", httpedge.SameKey)
			if len(p.Errors) != 1 || p.Errors[0].Path != tt.path || p.Errors[0].Rule != "malformed" || p.Errors[0].Message == "" {
				t.Errorf("errors %+v, want one at %q", p.Errors, tt.path)
			}
			same(t, "the echo", res.header.Get("Idempotency-Key"), key)
			res.without("Idempotency-Replayed", "Idempotency-Original-Request-ID")
			if all := res.body + g.log.String(); strings.Contains(all, "41111111") || strings.Contains(all, "order-67890") {
				t.Errorf("what was sent is in the answer or the log: %s", all)
			}
			for _, want := range []string{`"key":"order-12345"`, `"code":"MALFORMED_REQUEST"`, res.id()} {
				if log := g.log.String(); !strings.Contains(log, want) {
					t.Errorf("%s is missing in the log: %s", want, log)
				}
			}
			g.want(0, 0, 0)
			same(t, "reads of the store", g.store.reads.Load(), 0)
			g.post(k1).ok(201, "false") // V03: corrected, the same key
		})
	}
}

func TestTheCorrectedFormRunsUnderTheSameKey(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{}).orders()
	p := g.do("POST", "/v1/orders", `{"cart_id":"c-1","amount":0}`, k1).fails(400, "VALIDATION_FAILED", httpedge.SameKey)
	same(t, "errors", p.Errors, []validation.FieldError{{Path: "amount", Rule: "gt", Param: "0", Message: p.Errors[0].Message}})
	g.want(0, 0, 0)
	g.post(k1).ok(201, "false")
	g.post(k1).ok(201, "true")
	g.want(1, 1, 1)
}

func TestV05_AnInvalidBodyUnderASpentKeyIsAValidationError(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{}).orders()
	g.post(k1).ok(201, "false")
	res := g.do("POST", "/v1/orders", `{"cart_id":"","amount":4990}`, k1)
	res.fails(400, "VALIDATION_FAILED", httpedge.SameKey)
	res.without("Idempotency-Replayed", "Idempotency-Original-Request-ID")
	g.post(k1).ok(201, "true")
	g.want(1, 1, 1)
}

func TestV09_RefusalsBeforeThePipelineLeaveTheKeyUnspent(t *testing.T) {
	t.Parallel()
	config := authenticated()
	config.BodyLimit = 100
	config.Statuses["TOO_MANY"] = http.StatusTooManyRequests
	config.Principal = func(r *http.Request) (string, error) {
		if r.Header.Get("X-Flood") != "" {
			return "", coded{"TOO_MANY", "slow down"}
		}
		return bearer(r)
	}
	g := newRig(t, setup{config: config}).orders()
	ok := as("ayse.1", "north")
	long := `{"cart_id":"` + strings.Repeat("x", 100) + `","amount":1}`
	g.do("POST", "/v1/orders", usual, k1).fails(401, "UNAUTHENTICATED", httpedge.SameKey)
	g.do("POST", "/v1/orders", usual, as("locked.1", "north")...).fails(403, "FORBIDDEN", httpedge.SameKey)
	g.do("POST", "/v1/orders", usual, append(ok, "X-Flood: 1")...).fails(429, "TOO_MANY", httpedge.SameKey)
	g.do("POST", "/v1/orders", long, ok...).fails(413, "BODY_TOO_LARGE", httpedge.SameKey)
	for _, contentType := range []string{
		"", "text/plain", "application/xml", "application/json; charset=iso-8859-9", "application/x-www-form-urlencoded",
		"text/json", "application/jsonx", ";;", "+json",
	} {
		g.do("POST", "/v1/orders", usual, append(ok, "Content-Type: "+contentType)...).fails(415, "UNSUPPORTED_MEDIA_TYPE", httpedge.SameKey)
	}
	g.do("POST", "/v1/orders", usual, append(ok, "Content-Encoding: gzip")...).fails(415, "UNSUPPORTED_MEDIA_TYPE", httpedge.SameKey)
	g.want(0, 0, 0)
	same(t, "reads of the store", g.store.reads.Load(), 0)
	same(t, "lines in the log", strings.Count(g.log.String(), "\n"), 14)
	replayed := "false"
	for _, contentType := range []string{"application/json", "application/vnd.shop+json", "Application/JSON; Charset=UTF-8", "application/json; v=1"} {
		g.do("POST", "/v1/orders", usual, append(ok, "Content-Type: "+contentType, "Content-Encoding: identity")...).ok(201, replayed)
		replayed = "true"
	}
	g.want(1, 1, 1)
}

func TestV10_AnInvalidBodyWithoutAKeyIsAValidationErrorFirst(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{}).orders()
	g.do("POST", "/v1/orders", `{"cart_id":"c-1","amount":0}`).fails(400, "VALIDATION_FAILED", httpedge.SameKey)
	g.do("POST", "/v1/orders", `{"cart_id":"c-1","amount":0}`, "Idempotency-Key: short").fails(400, "VALIDATION_FAILED", httpedge.SameKey)
	g.post().fails(400, missing, httpedge.NewKey)
	g.want(0, 0, 0)
}

func TestR02_ARetryGetsTheSameResultUnderItsOwnRequestID(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{})
	opt := created
	opt.Body = func(req *requestctx.Request, p placed) any {
		return struct {
			RequestID string `json:"request_id"`
			placed
		}{req.ID(), p}
	}
	route(g, "POST /v1/orders", opt)
	first := g.post(k1).ok(201, "false")
	second := g.post(k1, "Accept: text/html", "User-Agent: other").ok(201, "true")
	if first.id() == second.id() || first.id() == "" {
		t.Errorf("request ids %q and %q", first.id(), second.id())
	}
	for _, res := range []*reply{first, second} {
		same(t, "original", res.header.Get("Idempotency-Original-Request-ID"), first.id())
		same(t, "echo", res.header.Get("Idempotency-Key"), key)
		same(t, "location", res.header.Get("Location"), "/v1/orders/o-c-1")
		same(t, "body", res.body, `{"request_id":"`+res.id()+`","order_id":"o-c-1","cart_id":"c-1","amount":4990}`+"\n")
	}
	g.want(1, 1, 1)
}

// refusal is an application's final error with details.
type refusal struct {
	coded
	data any
}

func (r refusal) RefusalData() any { return r.data }

func TestR03_AFinalRefusalHasItsStatusAndIsReplayed(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		code   string
		status int
	}{{"OUT_OF_STOCK", 409}, {"PAYMENT_DECLINED", 402}, {"SOMETHING_ELSE", 422}} {
		g := newRig(t, setup{
			config: httpedge.Config{Statuses: map[string]int{"OUT_OF_STOCK": 409, "PAYMENT_DECLINED": 402}},
			place: func(context.Context, place) (placed, error) {
				return placed{}, idempotency.Final(refusal{coded{tt.code, "There is nothing left."}, map[string]int{"left": 0}})
			},
		}).orders()
		first := g.post(k1).ok(tt.status, "false")
		second := g.post(k1).ok(tt.status, "true")
		for _, res := range []*reply{first, second} {
			p := res.fails(tt.status, tt.code, httpedge.Never)
			same(t, "detail", p.Detail, "There is nothing left.")
			same(t, "data", string(p.Data), `{"left":0}`)
			same(t, "original", res.header.Get("Idempotency-Original-Request-ID"), first.id())
			res.without("Location", "Retry-After")
		}
		g.want(1, 0, 1)
	}
}

// Commands whose results are easily taken for nothing.
type (
	nilCommand   struct{}
	zeroCommand  struct{}
	falseCommand struct{}
	blankCommand struct{}
	sliceCommand struct{}
	emptyResult  struct{}
	emptyCommand struct{}
)

func (nilCommand) CommandName() bus.Name[*placed]       { return "zero.nil" }
func (nilCommand) Idempotent()                          {}
func (zeroCommand) CommandName() bus.Name[int]          { return "zero.int" }
func (zeroCommand) Idempotent()                         {}
func (falseCommand) CommandName() bus.Name[bool]        { return "zero.bool" }
func (falseCommand) Idempotent()                        {}
func (blankCommand) CommandName() bus.Name[string]      { return "zero.string" }
func (blankCommand) Idempotent()                        {}
func (sliceCommand) CommandName() bus.Name[[]placed]    { return "zero.slice" }
func (sliceCommand) Idempotent()                        {}
func (emptyCommand) CommandName() bus.Name[emptyResult] { return "zero.struct" }
func (emptyCommand) Idempotent()                        {}

func TestR10_R11_AResultThatIsNothingIsReplayedAsItWas(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{})
	b, err := bus.New(
		command(g, nil, func(context.Context, nilCommand) (*placed, error) { return nil, nil }),
		command(g, nil, func(context.Context, zeroCommand) (int, error) { return 0, nil }),
		command(g, nil, func(context.Context, falseCommand) (bool, error) { return false, nil }),
		command(g, nil, func(context.Context, blankCommand) (string, error) { return "", nil }),
		command(g, nil, func(context.Context, sliceCommand) ([]placed, error) { return []placed{}, nil }),
		command(g, nil, func(context.Context, emptyCommand) (emptyResult, error) { return emptyResult{}, nil }),
	)
	if err != nil {
		t.Fatal(err)
	}
	g.bus = b
	route(g, "POST /nil", httpedge.Options[nilCommand, *placed]{})
	route(g, "POST /zero", httpedge.Options[zeroCommand, int]{})
	route(g, "POST /false", httpedge.Options[falseCommand, bool]{})
	route(g, "POST /blank", httpedge.Options[blankCommand, string]{})
	route(g, "POST /slice", httpedge.Options[sliceCommand, []placed]{})
	route(g, "POST /empty", httpedge.Options[emptyCommand, emptyResult]{})
	for path, want := range map[string]string{"/nil": "null", "/zero": "0", "/false": "false", "/blank": `""`, "/slice": "[]", "/empty": "{}"} {
		for _, replayed := range []string{"false", "true"} {
			res := g.do("POST", path, "{}", k1).ok(200, replayed)
			same(t, path, res.body, want+"\n")
		}
	}
	g.want(6, 0, 6)
}

func TestACommandWithoutAResultAnswers204AndIsReplayed(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{})
	route(g, "POST /v1/orders/{id}/cancel", cancelled)
	opt := cancelled
	opt.Status = http.StatusAccepted
	route(g, "POST /v2/orders/{id}/cancel", opt)
	opt.Body = func(req *requestctx.Request, _ bus.None) any { return map[string]string{"request_id": req.ID()} }
	route(g, "POST /v3/orders/{id}/cancel", opt)
	for _, replayed := range []string{"false", "true"} {
		res := g.do("POST", "/v1/orders/7/cancel", "", k1, "Content-Type:").ok(204, replayed)
		same(t, "body", res.body, "")
		res.without("Content-Type", "Content-Length")
		same(t, "body", g.do("POST", "/v2/orders/7/cancel", "", k1).ok(202, replayed).body, "")
		res = g.do("POST", "/v3/orders/7/cancel", "", k1).ok(202, replayed)
		same(t, "body", res.body, `{"request_id":"`+res.id()+`"}`+"\n")
	}
	g.do("POST", "/v1/orders/7/cancel", "{}", k1).fails(400, "MALFORMED_REQUEST", httpedge.SameKey)
	g.want(3, 3, 3)
}

func TestR17_AReplayIsRenderedByTodaysMapping(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{}).orders()
	first := g.post(k1).ok(201, "false")
	g.mux = http.NewServeMux() // the next deploy
	route(g, "POST /v1/orders", httpedge.Options[place, placed]{
		Status:   http.StatusAccepted,
		Location: func(p placed) string { return "/v2/orders/" + p.OrderID },
	})
	second := g.post(k1).ok(202, "true")
	same(t, "location", second.header.Get("Location"), "/v2/orders/o-c-1")
	same(t, "body", second.body, first.body)
	g.want(1, 1, 1)
}

func TestR19_BR38_OnlyDeclaredHeadersComeBackOnAReplay(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{}).orders()
	var sessions atomic.Int64
	outer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if sessions.Add(1) == 1 { // only the first answer has them
			w.Header().Set("Set-Cookie", "session=s3cret")
			w.Header().Set("WWW-Authenticate", "Basic")
			w.Header().Set("Authorization", "Bearer t0ken")
		}
		g.mux.ServeHTTP(w, r)
	})
	first := do(t, outer, "POST", "/v1/orders", usual, k1).ok(201, "false")
	second := do(t, outer, "POST", "/v1/orders", usual, k1).ok(201, "true")
	second.without("Set-Cookie", "WWW-Authenticate", "Authorization")
	same(t, "location", second.header.Get("Location"), first.header.Get("Location"))
	for _, rec := range g.mem.Records() {
		if strings.Contains(string(rec.Result), "s3cret") || strings.Contains(string(rec.Result), "t0ken") {
			t.Errorf("stored: %s", rec.Result)
		}
	}
}

// brokenPipe is a client that has gone: headers are taken and no byte of a body.
type brokenPipe struct{ *httptest.ResponseRecorder }

func (brokenPipe) Write([]byte) (int, error) { return 0, errors.New("write: broken pipe") }

func TestR26_TheLostAnswerIsFoundByTheRetry(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{}).orders()
	g.mux.ServeHTTP(brokenPipe{httptest.NewRecorder()}, request("POST", "/v1/orders", usual, k1))
	g.want(1, 1, 1)
	res := g.post(k1).ok(201, "true")
	same(t, "body", res.body, `{"order_id":"o-c-1","cart_id":"c-1","amount":4990}`+"\n")
	g.want(1, 1, 1)
}

func TestR05_AnUnclassifiedErrorSaysThatTheSameKeyMayBeSentAndNothingElse(t *testing.T) {
	t.Parallel()
	fail := true
	g := newRig(t, setup{place: func(_ context.Context, c place) (placed, error) {
		if fail {
			return placed{}, errors.New("dial tcp 10.0.0.7:5432: card " + c.Card)
		}
		return placed{OrderID: "o-1"}, nil
	}}).orders()
	body := `{"cart_id":"c-1","amount":1,"card":"4111111111111111"}`
	res := g.do("POST", "/v1/orders", body, k1).ok(500, "false")
	res.fails(500, "INTERNAL", httpedge.SameKey)
	same(t, "Retry-After", res.header.Get("Retry-After"), "2")
	if strings.Contains(res.body, "10.0.0.7") || strings.Contains(res.body, "41111111") {
		t.Errorf("the answer holds the error's text: %s", res.body)
	}
	g.want(1, 0, 0)
	fail = false
	g.do("POST", "/v1/orders", body, k1).ok(201, "false")
	g.want(2, 0, 1)
}

func TestR06_APanicIsA500ThatFreesTheKey(t *testing.T) {
	t.Parallel()
	fail := true
	g := newRig(t, setup{place: func(_ context.Context, c place) (placed, error) {
		if fail {
			panic(c) // with the card in it
		}
		return placed{OrderID: "o-1"}, nil
	}}).orders()
	body := `{"cart_id":"c-1","amount":1,"card":"4111111111111111"}`
	res := g.do("POST", "/v1/orders", body, k1).ok(500, "false")
	res.fails(500, "INTERNAL", httpedge.SameKey)
	log := g.log.String()
	if strings.Contains(res.body+log, "41111111") {
		t.Errorf("the value of the panic got out: %s %s", res.body, log)
	}
	if !strings.Contains(log, "httpedge_test.place") || !strings.Contains(log, "outcome_test.go:") || !strings.Contains(log, res.id()) {
		t.Errorf("the log does not say where the panic was: %s", log)
	}
	same(t, "panicked", g.seen.all()[0].panicked, true)
	fail = false
	g.do("POST", "/v1/orders", body, k1).ok(201, "false")
}

// shaky has a validator that panics.
type shaky struct {
	Card string `json:"card"`
}

func (shaky) CommandName() bus.Name[bus.None] { return "orders.shaky" }
func (shaky) Idempotent()                     {}
func (s shaky) Validate() error               { panic(s) }

func TestV08_AValidatorThatPanicsIsA500AndSpendsNothing(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{})
	b, err := bus.New(command(g, nil, func(context.Context, shaky) (bus.None, error) { return bus.None{}, nil }))
	if err != nil {
		t.Fatal(err)
	}
	g.bus = b
	route(g, "POST /v1/shaky", httpedge.Options[shaky, bus.None]{})
	res := g.do("POST", "/v1/shaky", `{"card":"4111111111111111"}`, k1)
	res.fails(500, "VALIDATION_PANIC", httpedge.SameKey)
	res.without("Idempotency-Replayed", "Retry-After")
	if strings.Contains(res.body, "41111111") {
		t.Errorf("the answer holds the command: %s", res.body)
	}
	g.want(0, 0, 0)
	same(t, "reads of the store", g.store.reads.Load(), 0)
}

func TestAPanicOnAnUnmarkedRouteDoesNotInviteARetry(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{})
	route(g, "POST /v1/touch", httpedge.Options[touch, placed]{Body: func(*requestctx.Request, placed) any { panic("late") }})
	res := g.do("POST", "/v1/touch", `{"cart_id":"c-1"}`, k1)
	res.fails(500, "INTERNAL", httpedge.Never)
	res.without("Retry-After", "Idempotency-Key", "Idempotency-Replayed")
}

func TestAnAbortedHandlerStaysAborted(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{place: func(context.Context, place) (placed, error) { panic(http.ErrAbortHandler) }}).orders()
	defer func() {
		if p := recover(); p != http.ErrAbortHandler {
			t.Errorf("recovered %v", p)
		}
		same(t, "log", g.log.String(), "")
	}()
	g.post(k1)
}

func TestAPanicAfterTheFirstByteCutsTheConnection(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{})
	h := g.edge.Middleware("GET /stream")(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "half")
		w.(http.Flusher).Flush()
		panic("late")
	}))
	s := server(t, h)
	res, err := s.Client().Get(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	if body, err := io.ReadAll(res.Body); err == nil {
		t.Errorf("the client takes %q for the whole answer", body)
	}
	if !strings.Contains(g.log.String(), "httpedge: panic") {
		t.Errorf("log: %s", g.log)
	}
}

func TestAPanicInTheApplicationsOwnFunctionsIsAProblem(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{config: httpedge.Config{Principal: func(*http.Request) (string, error) { panic("secret") }}}).orders()
	res := g.post(k1)
	res.fails(500, "INTERNAL", httpedge.SameKey)
	if strings.Contains(res.body+g.log.String(), `"secret"`) {
		t.Errorf("the value of the panic got out: %s %s", res.body, g.log)
	}
	g.want(0, 0, 0)
}

func TestAResultThatCannotBeRenderedIsAProblemAndItsOutcomeStands(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{})
	broken := true
	opt := created
	opt.Body = func(_ *requestctx.Request, p placed) any {
		if broken {
			return map[string]any{"order": p, "stream": make(chan int)}
		}
		return p
	}
	route(g, "POST /v1/orders", opt)
	res := g.post(k1).ok(500, "false")
	res.fails(500, "INTERNAL", httpedge.SameKey)
	res.without("Location")
	if !strings.Contains(g.log.String(), "UnsupportedTypeError") {
		t.Errorf("log: %s", g.log)
	}
	broken = false
	g.post(k1).ok(201, "true")
	g.want(1, 1, 1)
}

func TestD12_NoAnswerOfAMarkedRouteMayBeCached(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{config: authenticated()}).orders()
	ok := as("ayse.1", "north")
	replies := map[string]*reply{
		"fresh":     g.post(ok...).ok(201, "false"),
		"replay":    g.post(ok...).ok(201, "true"),
		"conflict":  g.do("POST", "/v1/orders", `{"cart_id":"c-2","amount":1}`, ok...).ok(409, "false"),
		"invalid":   g.do("POST", "/v1/orders", `{"cart_id":"","amount":1}`, ok...),
		"malformed": g.do("POST", "/v1/orders", `{`, ok...),
		"no key":    g.post(ok[1:]...),
		"stranger":  g.post(k1),
	}
	for name, res := range replies {
		same(t, name, res.header.Values("Cache-Control"), []string{"no-store"})
		same(t, name, len(res.header.Values("X-Request-ID")), 1)
	}
}

func TestL02_ADuplicateOfARunningRequestIsToldWhenToComeAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		running, release := make(chan struct{}), make(chan struct{})
		g := newRig(t, setup{place: func(_ context.Context, c place) (placed, error) {
			close(running)
			<-release
			return placed{OrderID: "o-1"}, nil
		}}).orders()
		var first *reply
		var wg sync.WaitGroup
		wg.Go(func() { first = g.post(k1) })
		<-running
		res := g.post(k1).ok(409, "false")
		res.fails(409, "IDEMPOTENCY_REQUEST_IN_PROGRESS", httpedge.SameKey)
		same(t, "Retry-After", res.header.Get("Retry-After"), "2")
		res.without("Idempotency-Original-Request-ID")
		close(release)
		wg.Wait()
		first.ok(201, "false")
		g.post(k1).ok(201, "true")
		g.want(1, 0, 1)
	})
}

func TestBR04_AReplayIsTheFirstAnswerByteForByte(t *testing.T) {
	t.Parallel()
	mem := memstore.New()
	replica := func() *rig {
		g := newRig(t, setup{store: mem})
		return g.orders()
	}
	first := replica().post(k1).ok(201, "false")
	second := replica().post(k1).ok(201, "true")
	same(t, "body", second.body, first.body)
	for _, name := range []string{"X-Request-Id", "Idempotency-Replayed"} {
		first.header.Del(name)
		second.header.Del(name)
	}
	same(t, "headers", second.header, first.header)
	same(t, "records", len(mem.Records()), 1)
}

func TestBR04_AClientThatHangsUpDoesNotUndoTheWork(t *testing.T) {
	t.Parallel()
	running, release := make(chan struct{}), make(chan struct{})
	var g *rig
	g = newRig(t, setup{place: func(ctx context.Context, c place) (placed, error) {
		if err := g.mem.Insert(ctx, "first"); err != nil {
			return placed{}, err
		}
		close(running)
		<-release
		if err := ctx.Err(); err != nil {
			return placed{}, err
		}
		return placed{OrderID: "o-1"}, nil
	}}).orders()
	ended := make(chan struct{})
	s := server(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(ended)
		g.mux.ServeHTTP(w, r)
	}))
	ctx, hangUp := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, "POST", s.URL+"/v1/orders", strings.NewReader(usual))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = request("POST", "/", "", k1).Header
	done := make(chan error)
	go func() {
		res, err := s.Client().Do(req)
		if err == nil {
			_ = res.Body.Close()
		}
		done <- err
	}()
	<-running
	hangUp()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Fatalf("the client got %v", err)
	}
	close(release)
	<-ended
	g.post(k1).ok(201, "true")
	same(t, "H", g.handled.Load(), 1)
}

// brokenReads is a store whose reads fail.
type brokenReads struct{ idempotency.Store }

var errNoTable = errors.New(`relation "idempotency_recordz" does not exist (SQLSTATE 42P01)`)

func (brokenReads) Look(context.Context, idempotency.Claim) (*idempotency.Record, error) {
	return nil, errNoTable
}

func (brokenReads) Begin(context.Context, idempotency.Claim) (idempotency.Transaction, error) {
	return nil, errNoTable
}

func TestBR04_AStoreThatCannotBeReadFailsLoudlyAndRunsNothing(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{store: brokenReads{memstore.New()}}).orders()
	res := g.post(k1)
	res.fails(503, "IDEMPOTENCY_STORE_UNAVAILABLE", httpedge.SameKey)
	same(t, "Retry-After", res.header.Get("Retry-After"), "2")
	res.without("Idempotency-Replayed", "Idempotency-Original-Request-ID")
	if strings.Contains(res.body, "SQLSTATE") || strings.Contains(res.body, "recordz") {
		t.Errorf("driver text in the answer: %s", res.body)
	}
	g.want(0, 0, 0)
}

func TestBR11_WhatBecomesOfTheAnswerDoesNotChangeTheOutcome(t *testing.T) {
	t.Parallel()
	break1 := map[string]func(inner http.Handler) http.Handler{
		"another layer replaces the status": func(inner http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				inner.ServeHTTP(httptest.NewRecorder(), r)
				http.Error(w, "bad gateway", http.StatusBadGateway)
			})
		},
		"writing the body fails": func(inner http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				inner.ServeHTTP(brokenPipe{httptest.NewRecorder()}, r)
			})
		},
		"another layer panics while writing": func(inner http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				defer func() { _ = recover() }()
				inner.ServeHTTP(panickingWriter{httptest.NewRecorder()}, r)
			})
		},
	}
	for name, around := range break1 {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newRig(t, setup{}).orders()
			do(t, around(g.mux), "POST", "/v1/orders", usual, k1)
			g.post(k1).ok(201, "true")
			g.want(1, 1, 1)
		})
	}
	t.Run("rendering panics", func(t *testing.T) {
		t.Parallel()
		g := newRig(t, setup{})
		first := true
		opt := created
		opt.Body = func(_ *requestctx.Request, p placed) any {
			if first {
				first = false
				panic(p)
			}
			return p
		}
		route(g, "POST /v1/orders", opt)
		g.post(k1).ok(500, "false").fails(500, "INTERNAL", httpedge.SameKey)
		g.post(k1).ok(201, "true")
		g.want(1, 1, 1)
	})
}

type panickingWriter struct{ *httptest.ResponseRecorder }

func (panickingWriter) Write([]byte) (int, error) { panic("gzip: the writer is closed") }

func TestBR13_AnEmptyAndAMissingKeyAreBothRefusedAndNoneIsMadeUp(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{}).orders()
	for range 2 {
		g.post().fails(400, missing, httpedge.NewKey)
		g.post("Idempotency-Key:").fails(400, invalid, httpedge.NewKey)
	}
	g.want(0, 0, 0)
	same(t, "reads of the store", g.store.reads.Load(), 0)
}

func TestBR15_AProxyThatSendsAgainMakesOneOrder(t *testing.T) {
	t.Parallel()
	mem := memstore.New()
	replica := func() *rig {
		g := newRig(t, setup{store: mem, place: func(ctx context.Context, c place) (placed, error) {
			return placed{OrderID: "o-1"}, mem.Insert(ctx, c.CartID)
		}})
		return g.orders()
	}
	one, two := replica(), replica()
	one.mux.ServeHTTP(brokenPipe{httptest.NewRecorder()}, request("POST", "/v1/orders", usual, k1))
	two.post(k1).ok(201, "true")
	one.post().fails(400, missing, httpedge.NewKey)
	two.post().fails(400, missing, httpedge.NewKey)

	var wg sync.WaitGroup
	replies := make([]*reply, 60)
	for i := range replies {
		wg.Go(func() {
			replies[i] = []*rig{one, two}[i%2].post("Idempotency-Key: parallel-1")
		})
	}
	wg.Wait()
	for _, res := range replies {
		if res.status == 409 {
			res.fails(409, "IDEMPOTENCY_REQUEST_IN_PROGRESS", httpedge.SameKey)
		} else if res.status != 201 {
			t.Errorf("status %d: %s", res.status, res.body)
		}
	}
	same(t, "rows", len(mem.Rows()), 2)
}

func TestBR18_TwoAtOnceNeverEndInAServerError(t *testing.T) {
	t.Parallel()
	for _, bodies := range [][2]string{{usual, usual}, {usual, `{"cart_id":"c-1","amount":1}`}} {
		g := newRig(t, setup{store: memstore.NewWithConfig(memstore.Config{NoHint: true})}).orders()
		for range 2 {
			g.post().fails(400, missing, httpedge.NewKey)
		}
		var wg sync.WaitGroup
		var replies [2]*reply
		for i := range replies {
			wg.Go(func() { replies[i] = g.do("POST", "/v1/orders", bodies[i], k1) })
		}
		wg.Wait()
		fresh := 0
		for _, res := range replies {
			switch {
			case res.status == 201 && res.header.Get("Idempotency-Replayed") == "false":
				fresh++
			case res.status == 201 && bodies[0] == bodies[1]:
			case res.status == 409:
				if p := res.problem(); bodies[0] != bodies[1] && p.Code != conflict && p.Code != "IDEMPOTENCY_REQUEST_IN_PROGRESS" {
					t.Errorf("code %s", p.Code)
				}
			default:
				t.Errorf("status %d: %s", res.status, res.body)
			}
		}
		same(t, "fresh answers", fresh, 1)
	}
}

func TestBR34_TransportAndDiagnosticsAreNoPartOfThePayload(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{}).orders()
	s := server(t, g.mux)
	g.post(k1).ok(201, "false")
	g.post(k1, "X-Request-ID: 17", "Traceparent: 00-aa-bb-01", "User-Agent: other", "Accept: application/xml", "Sent-At: now").ok(201, "true")
	g.do("POST", "/v1/orders", "\xef\xbb\xbf{ \"amount\" : 4990,\n \"cart_id\":\"c\\u002d1\" }", k1).ok(201, "true")
	raw(t, s, "POST", "/v1/orders", k1+"\r\n", usual).ok(201, "true") // chunked
	g.do("POST", "/v1/orders", `{"cart_id":"c-1","amount":4990,"idempotency_key":"order-67890"}`, k1).fails(400, "MALFORMED_REQUEST", httpedge.SameKey)
	g.want(1, 1, 1)
}

func TestBR37_TheLinesOfADeclaredHeaderAreTheSameOnAReplay(t *testing.T) {
	t.Parallel()
	for _, location := range []string{"/v1/orders/a,b;c=d, e", "/v1/sipariş/ç", "", "/x?next=%2Fy&z=\"q\""} {
		g := newRig(t, setup{})
		opt := created
		opt.Location = func(placed) string { return location }
		route(g, "POST /v1/orders", opt)
		s := server(t, g.mux)
		first := raw(t, s, "POST", "/v1/orders", k1+"\r\n", usual).ok(201, "false")
		second := raw(t, s, "POST", "/v1/orders", k1+"\r\n", usual).ok(201, "true")
		var want []string
		if location != "" {
			want = []string{location}
		}
		same(t, "the first answer", first.header.Values("Location"), want)
		same(t, "the replay", second.header.Values("Location"), want)
	}
}

func TestBR38_AnAnswerThatIsLargeIsReplayedAndNotRunAgain(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("x", 200_000)
	g := newRig(t, setup{place: func(context.Context, place) (placed, error) { return placed{OrderID: large}, nil }})
	route(g, "POST /v1/orders", httpedge.Options[place, placed]{})
	first := g.post(k1).ok(200, "false")
	second := g.post(k1).ok(200, "true")
	same(t, "the same body", second.body == first.body && len(first.body) > len(large), true)
	same(t, "H", g.handled.Load(), 1)
}

func TestR12_BR38_AnAnswerThatIsTooLargeToKeepIsGivenOnceAndNotRunAgain(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("x", idempotency.DefaultResultLimit+1)
	g := newRig(t, setup{place: func(ctx context.Context, c place) (placed, error) {
		requestctx.From(ctx).SetExternalRef("auth-7")
		return placed{OrderID: large}, nil
	}})
	route(g, "POST /v1/orders", httpedge.Options[place, placed]{})
	first := g.post(k1).ok(200, "false")
	same(t, "the first answer is whole", len(first.body) > len(large), true)
	for range 2 {
		gone := g.post(k1).fails(410, "IDEMPOTENCY_RESULT_UNAVAILABLE", httpedge.Never)
		same(t, "reference", string(gone.Data), `{"external_ref":"auth-7"}`)
	}
	same(t, "H", g.handled.Load(), 1)
}

func TestBR56_NoAnswerAndNoLineOfTheEdgeHoldsWhatWasSent(t *testing.T) {
	t.Parallel()
	var fail func(c place) error
	g := newRig(t, setup{place: func(ctx context.Context, c place) (placed, error) {
		return placed{OrderID: "o-1"}, fail(c)
	}}).orders()
	const card = "4111111111111111"
	body := func(cart string) string { return `{"cart_id":"` + cart + `","amount":1,"card":"` + card + `"}` }
	outcomes := map[string]func(place) error{
		"success":       func(place) error { return nil },
		"wrapped error": func(c place) error { return errors.Join(errors.New("cannot place"), coded{"DB", "row " + c.Card}) },
		"unknown":       func(c place) error { return idempotency.Unknown(errors.New(c.Card)) },
		"panic":         func(c place) error { panic(c) },
	}
	for name, f := range outcomes {
		fail = f
		for range 2 {
			res := g.do("POST", "/v1/orders", body("c-1"), "Idempotency-Key: order-"+strings.ReplaceAll(name, " ", "-"))
			if strings.Contains(res.body, "41111111") {
				t.Errorf("%s: %s", name, res.body)
			}
		}
	}
	fail = outcomes["success"]
	replies := []*reply{
		g.do("POST", "/v1/orders", body("other"), "Idempotency-Key: order-success"), // conflict
		g.do("POST", "/v1/orders", body(""), k1),                                    // invalid
		g.do("POST", "/v1/orders", body("c-1")+card, k1),                            // malformed
		g.do("POST", "/v1/orders", body("c-1"), "Idempotency-Key: "+card+"/"+card),  // invalid key
		g.do("POST", "/v1/orders", body("c-1"), k1, "Content-Type: "+card),
	}
	for _, res := range replies {
		if p := res.problem(); strings.Contains(res.body, "41111111") {
			t.Errorf("%s: %s", p.Code, res.body)
		}
		for name, values := range res.header {
			if strings.Contains(strings.Join(values, ","), "41111111") {
				t.Errorf("%s: %s", name, values)
			}
		}
	}
	if log := g.log.String(); strings.Contains(log, "41111111") || !strings.Contains(log, "httpedge: panic") {
		t.Errorf("log: %s", log)
	}
}

func TestBR66_OurOwnHeadersMeanNothingOnTheWayIn(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{config: authenticated()}).orders()
	forged := append(as("ayse.1", "north"), "Idempotency-Replayed: true", "Idempotency-Original-Request-ID: x", "X-Request-ID: forged",
		"X-Client: mehmet", "X-Principal: mehmet", "Traceparent: 00-aa-bb-01")
	first := g.post(forged...).ok(201, "false")
	same(t, "original", first.header.Values("Idempotency-Original-Request-ID"), []string{first.id()})
	if first.id() == "forged" {
		t.Error("the request id was taken from the request")
	}
	g.want(1, 1, 1)
	same(t, "client", g.mem.Records()[0].Scope.Client, "ayse")
	g.post(as("mehmet.1", "north")...).ok(201, "false") // a guessed key gets nothing
	g.want(2, 2, 2)
}

func TestBR67_BehindATimeoutHandlerTheRetryGetsTheHandlersOutcome(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, setup{place: func(ctx context.Context, c place) (placed, error) {
			time.Sleep(time.Second) // of the bubble's clock
			return placed{OrderID: "o-1"}, nil
		}}).orders()
		route(g, "POST /v1/touch", httpedge.Options[touch, placed]{})
		h := http.TimeoutHandler(g.mux, 500*time.Millisecond, "too slow")
		post := func() *reply { return do(t, h, "POST", "/v1/orders", usual, k1) }
		start := time.Now()

		res := post()
		same(t, "at 0", res.status, 503)
		same(t, "body", res.body, "too slow")
		other := do(t, h, "POST", "/v1/touch", `{"cart_id":"c-7"}`)
		same(t, "an unrelated request", other.body, `{"order_id":"o-c-7","cart_id":"c-7","amount":0}`+"\n")

		time.Sleep(700*time.Millisecond - time.Since(start))
		res = post()
		res.fails(409, "IDEMPOTENCY_REQUEST_IN_PROGRESS", httpedge.SameKey)

		time.Sleep(2*time.Second - time.Since(start))
		res = post().ok(201, "true")
		same(t, "body", res.body, `{"order_id":"o-1","cart_id":"","amount":0}`+"\n")
		same(t, "H", g.handled.Load(), 2)
		for _, rec := range g.mem.Records() {
			if !json.Valid(rec.Result) || strings.Contains(string(rec.Result), "slow") {
				t.Errorf("stored: %s", rec.Result)
			}
		}
	})
}
