package httpedge_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/validation"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
	"github.com/tekil-go/tekil/requestctx/httpedge"
)

func TestNewRefusesAConfigurationThatCannotBeMeant(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		cfg  httpedge.Config
		want []string
	}{
		"nobody is named":        {httpedge.Config{}, []string{"Principal is nil", "Anonymous"}},
		"negative limit":         {httpedge.Config{Anonymous: true, BodyLimit: -1}, []string{"BodyLimit is -1"}},
		"a refusal with 200":     {httpedge.Config{Anonymous: true, Statuses: map[string]int{"DECLINED": 200}}, []string{"DECLINED has the status 200"}},
		"a status out of HTTP":   {httpedge.Config{Anonymous: true, Statuses: map[string]int{"DECLINED": 600}}, []string{"DECLINED has the status 600"}},
		"a code without name":    {httpedge.Config{Anonymous: true, Statuses: map[string]int{"": 402}}, []string{`the code ""`}},
		"the code of no code":    {httpedge.Config{Anonymous: true, Statuses: map[string]int{"INTERNAL": 503}}, []string{`the code "INTERNAL"`}},
		"no URL":                 {httpedge.Config{Anonymous: true, DescribedBy: "https://x.example/>; rel=next"}, []string{"DescribedBy is not a URL"}},
		"a URL without page":     {httpedge.Config{Anonymous: true, DescribedBy: "#keys"}, []string{"DescribedBy names no page"}},
		"a header within header": {httpedge.Config{Anonymous: true, Challenge: "Bearer\r\nX-Evil: 1"}, []string{"Challenge holds characters"}},
		"everything at once":     {httpedge.Config{BodyLimit: -5, DescribedBy: "::"}, []string{"Principal is nil", "BodyLimit is -5", "DescribedBy"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, err := httpedge.New(tt.cfg)
			if e != nil || err == nil {
				t.Fatalf("got %v, %v", e, err)
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "httpedge: Config.") {
					t.Errorf("the error %q does not hold %q", err, want)
				}
			}
		})
	}
}

func TestTheConfigurationIsCopied(t *testing.T) {
	t.Parallel()
	statuses := map[string]int{"ORDER_NOT_FOUND": 404}
	g := newRig(t, setup{config: httpedge.Config{Statuses: statuses}})
	statuses["ORDER_NOT_FOUND"] = 200
	mountFind(g)
	g.do("GET", "/v1/orders/gone", "").fails(404, "ORDER_NOT_FOUND", httpedge.SameKey)
}

func mountFind(g *rig) {
	g.t.Helper()
	h, err := httpedge.Query(g.edge, g.bus, "GET /v1/orders/{id}", httpedge.QueryOptions[find, placed]{
		Parse: func(r *http.Request) (find, error) {
			if id := r.PathValue("id"); len(id) < 10 {
				return find{id}, nil
			}
			return find{}, errors.Join(validation.Field("id", "max", "must be shorter"), validation.Field("", "limit", "has too much of it"))
		},
		Body: func(req *requestctx.Request, p placed) any {
			return map[string]string{"order_id": p.OrderID, "request_id": req.ID()}
		},
	})
	if err != nil {
		g.t.Fatal(err)
	}
	g.mux.Handle("GET /v1/orders/{id}", h)
}

func TestAQueryAnswersAndItsErrorsAreProblems(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{config: httpedge.Config{Statuses: map[string]int{"ORDER_NOT_FOUND": 404}}})
	mountFind(g)
	res := g.do("GET", "/v1/orders/7", "", k1).ok(200, "")
	same(t, "body", res.body, `{"order_id":"7","request_id":"`+res.id()+`"}`+"\n")
	res.without("Idempotency-Key", "Cache-Control")

	res = g.do("GET", "/v1/orders/gone", "")
	p := res.fails(404, "ORDER_NOT_FOUND", httpedge.SameKey)
	same(t, "detail", p.Detail, "")
	same(t, "Cache-Control", res.header.Get("Cache-Control"), "no-store")

	p = g.do("GET", "/v1/orders/0123456789", "").fails(400, "VALIDATION_FAILED", httpedge.SameKey)
	same(t, "errors", p.Errors, []validation.FieldError{
		{Path: "id", Rule: "max", Message: "must be shorter"}, {Rule: "limit", Message: "has too much of it"},
	})
}

func TestFillsErrorsAreProblemsBeforeThePipeline(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{config: httpedge.Config{Statuses: map[string]int{"FORBIDDEN": 403}}})
	opt := created
	opt.Fill = func(r *http.Request, c *place) error {
		switch r.URL.Query().Get("cart") {
		case "":
			return validation.Field("cart", "required", "is required")
		case "theirs":
			return errForbidden
		case "broken":
			return errors.New("card 4111111111111111")
		}
		c.CartID = r.URL.Query().Get("cart")
		return nil
	}
	route(g, "POST /v1/orders", opt)
	p := g.post(k1).fails(400, "VALIDATION_FAILED", httpedge.SameKey)
	same(t, "errors", p.Errors, []validation.FieldError{{Path: "cart", Rule: "required", Message: "is required"}})
	g.do("POST", "/v1/orders?cart=theirs", usual, k1).fails(403, "FORBIDDEN", httpedge.SameKey)
	res := g.do("POST", "/v1/orders?cart=broken", usual, k1)
	res.fails(500, "INTERNAL", httpedge.SameKey)
	if strings.Contains(res.body+g.log.String(), "41111111") || !strings.Contains(g.log.String(), `"level":"ERROR"`) {
		t.Errorf("answer %s, log %s", res.body, g.log)
	}
	g.want(0, 0, 0)
	g.do("POST", "/v1/orders?cart=c-9", usual, k1).ok(201, "false")
	g.do("POST", "/v1/orders?cart=c-8", usual, k1).fails(409, conflict, httpedge.Never) // what Fill takes is part of the payload
	same(t, "rows", g.mem.Rows(), []string{"c-9"})
}

func TestARouteThatCannotWorkIsRefusedAtStartUp(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{})
	refused := func(name, want string, err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "httpedge: ") {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	_, err := httpedge.Command(g.edge, g.bus, "POST /x", httpedge.Options[shaky, bus.None]{})
	var unhandled *bus.UnhandledError
	if !errors.As(err, &unhandled) {
		t.Errorf("an unhandled command: %v", err)
	}
	refused("unhandled", "shaky", err)
	_, err = httpedge.Check(g.edge, g.bus, "POST /x", httpedge.Options[shaky, bus.None]{})
	refused("unhandled check", "shaky", err)
	_, err = httpedge.Query(g.edge, &bus.Bus{}, "GET /x", httpedge.QueryOptions[find, placed]{})
	refused("unhandled query", "find", err)
	_, err = httpedge.Command(nil, g.bus, "POST /x", created)
	refused("no edge", "the edge is nil", err)
	_, err = httpedge.Command(g.edge, nil, "POST /x", created)
	refused("no bus", "no handler", err)
	_, err = httpedge.Command(g.edge, g.bus, "", created)
	refused("no pattern", "has no path", err)
	_, err = httpedge.Command(g.edge, g.bus, "POST orders", created)
	refused("only a method", "has no path", err)
	for _, method := range []string{"GET", "HEAD"} {
		_, err = httpedge.Command(g.edge, g.bus, method+" /v1/orders", created)
		refused(method, "cannot be served under GET or HEAD", err)
	}
	for _, status := range []int{100, 302, 400} {
		_, err = httpedge.Command(g.edge, g.bus, "POST /v1/orders", httpedge.Options[place, placed]{Status: status})
		refused("status", "a success is between 200 and 299", err)
	}
	_, err = httpedge.Command(g.edge, nil, "GET orders", httpedge.Options[place, placed]{Status: 1})
	for _, want := range []string{"no handler", "has no path", "GET or HEAD", "Status is 1"} {
		refused("all at once", want, err)
	}
}

func TestARouteAnswersItsMethodsOnly(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{})
	h := route(g, "/v1/orders", created)
	for _, method := range []string{"POST", "PUT", "PATCH", "DELETE"} {
		do(t, h, method, "/v1/orders", usual, k1).ok(201, "false")
	}
	for _, method := range []string{"GET", "HEAD", "TRACE", "PURGE"} {
		res := do(t, h, method, "/v1/orders", usual, k1)
		same(t, method, res.status, 405)
		same(t, method, res.header.Get("Allow"), "POST, PUT, PATCH, DELETE")
	}
	query, err := httpedge.Query(g.edge, g.bus, "POST /v1/search", httpedge.QueryOptions[find, placed]{})
	if err != nil {
		t.Fatal(err)
	}
	do(t, query, "POST", "/v1/search", "", k1).ok(200, "")
	same(t, "Allow", do(t, query, "GET", "/v1/search", "").header.Get("Allow"), "POST")
}

func TestTheMiddlewareServesHandlersOfTheApplicationsOwn(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{})
	send, err := bus.Bind[place](g.bus)
	if err != nil {
		t.Fatal(err)
	}
	h := g.edge.Middleware("POST /v1/carts/{cart}/orders")(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		res, err := send(r.Context(), place{CartID: r.PathValue("cart"), Amount: int64(len(r.URL.RawQuery))})
		if err != nil {
			g.edge.WriteProblem(w, r, err)
			return
		}
		g.edge.SetHeaders(w, r)
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte(res.OrderID))
	}))
	post := func(path string, headers ...string) *reply { return do(t, h, "POST", path, "", headers...) }
	first := post("/v1/carts/c-1/orders?4", k1).ok(201, "false")
	second := post("/v1/carts/c-1/orders?4", k1).ok(201, "true")
	same(t, "body", second.body, "o-c-1")
	same(t, "original", second.header.Get("Idempotency-Original-Request-ID"), first.id())
	same(t, "echo", second.header.Get("Idempotency-Key"), key)
	same(t, "Cache-Control", second.header.Get("Cache-Control"), "no-store")
	post("/v1/carts/c-2/orders?4", k1).ok(409, "false").fails(409, conflict, httpedge.Never)
	res := post("/v1/carts/c-1/orders", k1)
	res.fails(400, "VALIDATION_FAILED", httpedge.SameKey)
	res.without("Idempotency-Replayed")
	post("/v1/carts/c-1/orders?4").fails(400, missing, httpedge.NewKey)
	same(t, "source", g.mem.Records()[0].Scope.Operation, "POST /v1/carts/{cart}/orders orders.place")
	g.want(1, 1, 1)
}

func TestABusWithoutTheHandlerAnswersAProblem(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{})
	h := g.edge.Middleware("POST /x")(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, err := bus.Send(r.Context(), g.bus, shaky{})
		g.edge.WriteProblem(w, r, err)
	}))
	do(t, h, "POST", "/x", "", k1).fails(500, "UNHANDLED", httpedge.Never)
}

func TestAnErrorWithACodeOfTheApplicationsHasItsStatusWhereverItArises(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{
		config: httpedge.Config{Statuses: map[string]int{"GATEWAY_AWAY": 503, conflict: 422, "VALIDATION_FAILED": 422}},
		place: func(context.Context, place) (placed, error) {
			return placed{}, errors.Join(coded{"GATEWAY_AWAY", "10.0.0.7 is away"}, context.DeadlineExceeded)
		},
	}).orders()
	res := g.post(k1)
	p := res.fails(503, "GATEWAY_AWAY", httpedge.SameKey)
	same(t, "detail", p.Detail, "")
	same(t, "Retry-After", res.header.Get("Retry-After"), "2")
	g.do("POST", "/v1/orders", `{"cart_id":"","amount":1}`, k1).fails(422, "VALIDATION_FAILED", httpedge.SameKey)
}

// broken is a body whose reading fails.
type broken struct{ err error }

func (b broken) Read([]byte) (int, error) { return 0, b.err }

func TestABodyThatDoesNotArriveWholeIsNotTheClientsLastWord(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{}).orders()
	for _, tt := range []struct {
		err    error
		status int
		code   string
	}{
		{os.ErrDeadlineExceeded, 408, "REQUEST_TIMEOUT"},
		{io.ErrUnexpectedEOF, 400, "MALFORMED_REQUEST"},
	} {
		r := httptest.NewRequest("POST", "/v1/orders", broken{tt.err})
		r.Header = request("POST", "/", "", k1).Header
		w := httptest.NewRecorder()
		g.mux.ServeHTTP(w, r)
		(&reply{t, w.Code, w.Header(), w.Body.String()}).fails(tt.status, tt.code, httpedge.SameKey)
	}
	g.want(0, 0, 0)
}

func TestTheBodyLimitHoldsForChunkedBodiesAndCountsEveryByte(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{config: httpedge.Config{BodyLimit: int64(len(usual))}}).orders()
	s := server(t, g.mux)
	p := raw(t, s, "POST", "/v1/orders", k1+"\r\n", usual+" ").fails(413, "BODY_TOO_LARGE", httpedge.SameKey)
	same(t, "detail", p.Detail, "The body is longer than 31 bytes.")
	g.want(0, 0, 0)
	raw(t, s, "POST", "/v1/orders", k1+"\r\n", usual).ok(201, "false")

	g = newRig(t, setup{}).orders()
	g.do("POST", "/v1/orders", usual+strings.Repeat(" ", httpedge.DefaultBodyLimit), k1).fails(413, "BODY_TOO_LARGE", httpedge.SameKey)
	g.do("POST", "/v1/orders", usual+strings.Repeat(" ", httpedge.DefaultBodyLimit-len(usual)), k1).ok(201, "false")
}

func TestWhereNobodyKnowsWhatWasDoneTheAnswerDoesNotInviteARetry(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{})
	for state, want := range map[requestctx.State]httpedge.Retry{
		requestctx.StateNone: httpedge.Never, requestctx.StateUnknown: httpedge.Never, requestctx.StateUnprotected: httpedge.Never,
		requestctx.StateNested: httpedge.Never, requestctx.StateFreed: httpedge.SameKey, requestctx.StateExecuted: httpedge.SameKey,
		requestctx.StateReplayed: httpedge.SameKey, requestctx.StateRefused: httpedge.SameKey,
	} {
		for _, err := range []error{&idempotency.HandlerError{Command: "x"}, errors.New("odd"), context.DeadlineExceeded} {
			h := g.edge.Middleware("POST /x")(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				requestctx.From(r.Context()).Report(requestctx.Outcome{State: state})
				g.edge.WriteProblem(w, r, err)
			}))
			res := do(t, h, "POST", "/x", "", k1)
			same(t, string(state), res.problem().Retry, want)
			if want == httpedge.Never && (res.status != 500 || res.header.Get("Retry-After") != "") {
				t.Errorf("%s: status %d, Retry-After %q", state, res.status, res.header.Get("Retry-After"))
			}
		}
	}
}

func TestARefusalWhoseDataIsDamagedIsStillAProblem(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{})
	h := g.edge.Middleware("POST /x")(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Location", "/never")
		w.Header().Set("ETag", `"1"`)
		g.edge.WriteProblem(w, r, &idempotency.RefusedError{RefusalCode: "DECLINED", Message: "No.", Data: []byte("{")})
	}))
	res := do(t, h, "POST", "/x", "")
	same(t, "data", string(res.fails(422, "DECLINED", httpedge.Never).Data), "")
	res.without("Location", "ETag")
}

func TestRetryAfterIsRoundedUpToWholeSeconds(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{})
	for d, want := range map[time.Duration]string{time.Millisecond: "1", 2 * time.Second: "2", 2500 * time.Millisecond: "3", time.Minute: "60"} {
		h := g.edge.Middleware("POST /x")(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			g.edge.WriteProblem(w, r, &idempotency.InProgressError{RetryAfter: d})
		}))
		same(t, d.String(), do(t, h, "POST", "/x", "").header.Get("Retry-After"), want)
	}
}

func TestTheServersWriterStaysWithinReach(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{})
	h := g.edge.Middleware("GET /x")(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if err := http.NewResponseController(w).SetWriteDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Errorf("the deadline cannot be set: %v", err)
		}
		w.WriteHeader(http.StatusEarlyHints)
		panic("nothing has been written yet")
	}))
	raw(t, server(t, h), "GET", "/x", "", "")
	if !strings.Contains(g.log.String(), "httpedge: panic") {
		t.Errorf("log: %s", g.log)
	}
}

func TestH20_WhatAnInnerCommandReportsIsNotTheUnmarkedRoutesAnswer(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{})
	fail := true
	b, err := bus.New(command(g, nil, func(ctx context.Context, c touch) (placed, error) {
		// Marked, under the key of the request; this one's own work is not protected by it.
		res, err := bus.Send(ctx, g.bus, place{CartID: c.CartID, Amount: 1})
		if err == nil && fail {
			err = errors.New("after the inner command")
		}
		return res, err
	}))
	if err != nil {
		t.Fatal(err)
	}
	h, err := httpedge.Command(g.edge, b, "POST /v1/touch", httpedge.Options[touch, placed]{})
	if err != nil {
		t.Fatal(err)
	}
	post := func(headers ...string) *reply { return do(t, h, "POST", "/v1/touch", `{"cart_id":"c-1"}`, headers...) }
	res := post(k1)
	res.fails(500, "INTERNAL", httpedge.Never)
	res.without("Retry-After", "Idempotency-Key", "Idempotency-Replayed", "Idempotency-Original-Request-ID")
	fail = false
	post(k1).ok(200, "")
	post().fails(400, missing, httpedge.NewKey) // the inner command asks for the key all the same
	same(t, "rows", g.rows(), 1)
}
