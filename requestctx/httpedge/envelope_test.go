package httpedge_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
	"github.com/tekil-go/tekil/requestctx/httpedge"
)

// enveloped is an application's body of every answer.
type enveloped struct {
	Success   bool   `json:"success"`
	RequestID string `json:"request_id"`
	Status    int    `json:"status"`
	Data      any    `json:"data"`
	Error     any    `json:"error,omitempty"`
	Operation any    `json:"operation,omitempty"`
}

func envelope(req *requestctx.Request, r httpedge.Reply) any {
	e := enveloped{Success: r.Problem == nil && r.Operation == nil, RequestID: req.ID(), Status: r.Status, Data: r.Result}
	if r.Problem != nil {
		e.Error = r.Problem
	}
	if r.Operation != nil {
		e.Operation = r.Operation
	}
	return e
}

// within reads the envelope of a reply, and fails the test where it does not fit the reply.
func (r *reply) within(status int) map[string]any {
	r.t.Helper()
	if ct := r.header.Get("Content-Type"); ct != "application/json" || r.status != status {
		r.t.Fatalf("status %d, content type %q, want %d in an envelope: %s", r.status, ct, status, r.body)
	}
	var body map[string]any
	if err := json.Unmarshal([]byte(r.body), &body); err != nil {
		r.t.Fatal(err)
	}
	same(r.t, "request id in the envelope", body["request_id"], any(r.id()))
	same(r.t, "status in the envelope", body["status"], any(float64(status)))
	if p, ok := body["error"].(map[string]any); ok {
		same(r.t, "status and request id of the problem", fmt.Sprint(p["status"], " ", p["request_id"]), fmt.Sprint(status, " ", r.id()))
	}
	return body
}

// refused is the code of the problem in the envelope.
func (r *reply) refused(status int) string {
	r.t.Helper()
	body := r.within(status)
	p, _ := body["error"].(map[string]any)
	if body["success"] != false || body["data"] != nil || p == nil {
		r.t.Fatalf("no error in the envelope: %s", r.body)
	}
	return fmt.Sprint(p["code"])
}

func TestR02_TheEnvelopeOfAReplayHasTheRequestIDOfThisAttempt(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{config: httpedge.Config{Envelope: envelope}}).orders()
	first := g.post(k1).ok(201, "false")
	second := g.post(k1).ok(201, "true")
	same(t, "that the ids differ", first.id() != second.id(), true)
	one, two := first.within(201), second.within(201)
	same(t, "data", two["data"], one["data"])
	same(t, "data", one["data"], any(map[string]any{"order_id": "o-c-1", "cart_id": "c-1", "amount": 4990.0}))
	same(t, "success", fmt.Sprint(one["success"], two["success"]), "true true")
	same(t, "the original's id", second.header.Get("Idempotency-Original-Request-ID"), first.id())
	same(t, "Location", second.header.Get("Location"), "/v1/orders/o-c-1")
	// The record does not hold the envelope: it is made anew, and only the id differs.
	same(t, "bodies", strings.ReplaceAll(second.body, second.id(), first.id()), first.body)
	if stored := string(g.mem.Records()[0].Result); strings.Contains(stored, "request_id") {
		t.Errorf("the record holds the envelope: %s", stored)
	}
	g.want(1, 1, 1)
}

func TestF02_TheEnvelopeComesInTheFormatThatIsAskedFor(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{config: httpedge.Config{Envelope: envelope, Codecs: formats()}}).orders()
	first := g.post(k1).ok(201, "false").logical()
	res := g.post(k1, "Accept: "+taggedType).ok(201, "true")
	second := res.logical()
	same(t, "format", res.header.Get("Content-Type"), taggedType)
	same(t, "data", second["data"], first["data"])
	same(t, "request id", second["request_id"], any(res.id()))
	bad := g.do("POST", "/v1/orders", "amount=x", k1, asKV) // a problem in an envelope is no problem details
	same(t, "status and format", fmt.Sprint(bad.status, " ", bad.header.Get("Content-Type")), "400 "+kvType)
}

func TestTheEnvelopeOfACommandWithoutAResult(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{config: httpedge.Config{Envelope: envelope}})
	route(g, "POST /v1/orders/{id}/cancel", cancelled)
	silent := cancelled
	silent.Status = http.StatusNoContent
	route(g, "POST /v2/orders/{id}/cancel", silent)
	for i := range 2 {
		body := g.do("POST", "/v1/orders/1/cancel", "", k1).ok(200, fmt.Sprint(i > 0)).within(200)
		same(t, "success and data", fmt.Sprint(body["success"], body["data"]), "true <nil>")
		same(t, "that data is there", strings.Contains(fmt.Sprint(body), "data:"), true)
		res := g.do("POST", "/v2/orders/2/cancel", "", k1).ok(204, fmt.Sprint(i > 0))
		same(t, "body of a 204", res.body, "")
		res.without("Content-Type", "Content-Length")
	}
}

func TestTheEnvelopeHoldsEveryKindOfError(t *testing.T) {
	t.Parallel()
	config := authenticated()
	config.Envelope, config.Codecs, config.BodyLimit = envelope, formats(), 200
	config.DescribedBy = "https://docs.example/keys"
	g := newRig(t, setup{config: config, place: func(_ context.Context, c place) (placed, error) {
		switch c.CartID {
		case "final":
			return placed{}, idempotency.Final(coded{"OUT_OF_STOCK", "no more of it"})
		case "panic":
			panic("card 4111111111111111")
		case "plain":
			return placed{}, errors.New("card 4111111111111111")
		}
		return placed{OrderID: "o"}, nil
	}}).orders()
	mountFind(g)
	route(g, "/v1/any", httpedge.Options[touch, placed]{}) // all methods reach the edge
	ok := as("ayse.1", "north")
	of := func(cart string) string { return `{"cart_id":"` + cart + `","amount":1}` }
	keyed := func(key string) []string { return append([]string{"Idempotency-Key: " + key}, ok[1:]...) }
	g.do("POST", "/v1/orders", of("first"), ok...).ok(201, "false").within(201)
	for _, tt := range []struct {
		res    *reply
		status int
		code   string
	}{
		{g.post(k1), 401, "UNAUTHENTICATED"},
		{g.post(as("locked.1", "north")...), 403, "FORBIDDEN"},
		{g.post(as("ayse.1", "")...), 403, "TENANT_UNRESOLVED"},
		{g.do("GET", "/v1/any", "", ok...), 405, "METHOD_NOT_ALLOWED"},
		{g.post(append(ok, "Accept: text/html")...), 406, "NOT_ACCEPTABLE"},
		{g.post(append(ok, "Content-Type: text/plain")...), 415, "UNSUPPORTED_MEDIA_TYPE"},
		{g.do("POST", "/v1/orders", of(strings.Repeat("x", 200)), ok...), 413, "BODY_TOO_LARGE"},
		{g.do("POST", "/v1/orders", "{", ok...), 400, "MALFORMED_REQUEST"},
		{g.do("POST", "/v1/orders", of(""), ok...), 400, "VALIDATION_FAILED"},
		{g.do("POST", "/v1/orders", usual, ok[1:]...), 400, missing},
		{g.do("POST", "/v1/orders", usual, keyed("short")...), 400, invalid},
		{g.do("POST", "/v1/orders", of("second"), ok...), 409, conflict},
		{g.do("POST", "/v1/orders", of("final"), keyed("order-final")...), 422, "OUT_OF_STOCK"},
		{g.do("POST", "/v1/orders", of("final"), keyed("order-final")...), 422, "OUT_OF_STOCK"},
		{g.do("POST", "/v1/orders", of("plain"), keyed("order-plain")...), 500, "INTERNAL"},
		{g.do("POST", "/v1/orders", of("panic"), keyed("order-panic")...), 500, "INTERNAL"},
		{g.do("GET", "/v1/orders/gone", "", ok...), 500, "INTERNAL"},
	} {
		same(t, "code", tt.res.refused(tt.status), tt.code)
		if strings.Contains(tt.res.body, "41111111") {
			t.Errorf("%s: %s", tt.code, tt.res.body)
		}
		if tt.code == missing {
			same(t, "Link", tt.res.header.Get("Link"), `<https://docs.example/keys>; rel="describedby"`)
		}
	}
	same(t, "a replayed refusal", g.do("POST", "/v1/orders", of("final"), keyed("order-final")...).header.Get("Idempotency-Replayed"), "true")
}

func TestL03_TheEnvelopeOf202HoldsTheOperation(t *testing.T) {
	t.Parallel()
	l := newLong(t, httpedge.Config{Envelope: envelope}, nil)
	begun, ready := make(chan struct{}), make(chan struct{})
	l.handle = func(context.Context, string) (parcel, error) {
		close(begun)
		<-ready
		return parcel{ID: "p"}, nil
	}
	done := make(chan *reply)
	go func() { done <- l.do("POST", "/v1/ship", cart, k1) }()
	<-begun
	res := l.do("POST", "/v1/ship", cart, k1)
	body := res.within(202)
	op, _ := body["operation"].(map[string]any)
	same(t, "success", fmt.Sprint(body["success"], body["error"], body["data"]), "false <nil> <nil>")
	same(t, "state and request id", fmt.Sprint(op["state"], " ", op["request_id"]), "in_progress "+res.id())
	look := l.do("GET", res.header.Get("Location"), "")
	running, _ := look.within(200)["data"].(map[string]any)
	same(t, "the same operation", running["operation_id"], op["operation_id"])
	same(t, "Retry-After", look.header.Get("Retry-After"), "2")
	close(ready)
	(<-done).ok(201, "false").within(201)
	finished, _ := l.do("GET", res.header.Get("Location"), "").within(200)["data"].(map[string]any)
	same(t, "state", finished["state"], any("completed"))
	same(t, "code", l.do("GET", "/v1/operations/none", "").refused(404), "OPERATION_NOT_FOUND")
}

// An envelope that breaks, where it does it, and what is then answered.
func TestAnEnvelopeThatBreaksLosesNoOutcome(t *testing.T) {
	t.Parallel()
	const secret = "card 4111111111111111"
	always := func(*requestctx.Request, httpedge.Reply) any { panic(secret) }
	for name, tt := range map[string]struct {
		envelope func(*requestctx.Request, httpedge.Reply) any
		content  string
	}{
		"a panic over results": {func(req *requestctx.Request, r httpedge.Reply) any {
			if r.Problem == nil {
				panic(secret)
			}
			return envelope(req, r)
		}, "application/json"},
		"a panic over everything":         {always, "application/problem+json"},
		"nothing of it can be encoded":    {func(*requestctx.Request, httpedge.Reply) any { return make(chan int) }, "application/problem+json"},
		"a panic while it is encoded":     {func(*requestctx.Request, httpedge.Reply) any { return explosive{} }, "application/problem+json"},
		"a panic with an error over it":   {func(*requestctx.Request, httpedge.Reply) any { panic(errForbidden) }, "application/problem+json"},
		"a panic with an ended request's": {func(*requestctx.Request, httpedge.Reply) any { panic(context.Canceled) }, "application/problem+json"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newRig(t, setup{config: httpedge.Config{Envelope: tt.envelope, Statuses: map[string]int{"FORBIDDEN": 403}}}).orders()
			for i := range 2 {
				res := g.post(k1)
				same(t, "status and format", fmt.Sprint(res.status, " ", res.header.Get("Content-Type")), "500 "+tt.content)
				same(t, "replayed", res.header.Get("Idempotency-Replayed"), fmt.Sprint(i > 0))
				if !strings.Contains(res.body, `"retry":"same-key"`) || !strings.Contains(res.body, res.id()) || strings.Contains(res.body, secret) {
					t.Errorf("body %s", res.body)
				}
				res.without("Location")
			}
			g.want(1, 1, 1)
			bad := g.do("POST", "/v1/orders", "{", k1)
			same(t, "status of a problem", bad.status, 400)
			if log := g.log.String(); strings.Contains(log, "4111") || !strings.Contains(log, `"level":"ERROR"`) {
				t.Errorf("log %s", log)
			}
		})
	}
}

type explosive struct{}

func (explosive) MarshalJSON() ([]byte, error) { panic("card 4111111111111111") }

// The answer is right but for its envelope, so nothing but the log says that it is broken.
func TestAnEnvelopeThatBreaksOverProblemsAloneIsInTheLog(t *testing.T) {
	t.Parallel()
	for name, broken := range map[string]func() any{
		"panic":   func() any { panic("card 4111111111111111") },
		"channel": func() any { return make(chan int) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLong(t, httpedge.Config{Envelope: func(req *requestctx.Request, r httpedge.Reply) any {
				if r.Problem != nil || r.Operation != nil {
					return broken()
				}
				return envelope(req, r)
			}}, nil)
			l.do("POST", "/v1/ship", cart).fails(400, missing, httpedge.NewKey)
			log := l.log.String()
			if !strings.Contains(log, `"level":"ERROR"`) || strings.Contains(log, "4111") {
				t.Errorf("log %q", log)
			}
			begun, ready := make(chan struct{}), make(chan struct{})
			l.handle = func(context.Context, string) (parcel, error) { close(begun); <-ready; return parcel{}, nil }
			done := make(chan *reply)
			go func() { done <- l.do("POST", "/v1/ship", cart, k1) }()
			<-begun
			res := l.do("POST", "/v1/ship", cart, k1)
			close(ready)
			(<-done).ok(201, "false")
			if name == "panic" {
				res.fails(500, "INTERNAL", httpedge.SameKey)
			} else {
				var op httpedge.Operation
				if err := json.Unmarshal([]byte(res.body), &op); err != nil || res.status != 202 || op.RequestID != res.id() || op.State != idempotency.OperationInProgress {
					t.Errorf("%d %s", res.status, res.body)
				}
			}
			same(t, "that the log has grown", len(l.log.String()) > len(log), true)
		})
	}
}

func TestWriteProblemUsesTheEnvelopeAndTheFormat(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{config: httpedge.Config{Envelope: envelope, Codecs: formats()}})
	g.mux.Handle("POST /own", g.edge.Middleware("POST /own")(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, err := bus.Send(r.Context(), g.bus, place{CartID: r.URL.Query().Get("cart"), Amount: 1})
		if err != nil {
			g.edge.WriteProblem(w, r, err)
			return
		}
		g.edge.SetHeaders(w, r)
	})))
	g.do("POST", "/own?cart=a", "", k1).ok(200, "false")
	res := g.do("POST", "/own?cart=b", "", k1)
	same(t, "code", res.refused(409), conflict)
	same(t, "replayed", res.header.Get("Idempotency-Replayed"), "false")
	other := g.do("POST", "/own?cart=b", "", k1, wantKV)
	same(t, "status and format", fmt.Sprint(other.status, " ", other.header.Get("Content-Type")), "409 "+kvType)
	same(t, "the request id", other.logical()["request_id"], any(other.id()))
	// What a handler of the application's own can write is its own matter; a problem comes in the first format.
	same(t, "code", g.do("POST", "/own?cart=b", "", k1, "Accept: text/html").refused(409), conflict)

	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { g.edge.WriteProblem(w, r, errForbidden) }) // not behind the middleware
	same(t, "id where there is none", do(t, h, "POST", "/", "").within(500)["request_id"], any(""))
}

// Presets.

// answered serves one error behind the middleware.
func answered(t *testing.T, config httpedge.Config, err error) *reply {
	t.Helper()
	g := newRig(t, setup{config: config})
	return do(t, g.edge.Middleware("POST /")(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.edge.WriteProblem(w, r, err)
	})), "POST", "/", "")
}

func TestPresetsSayByWhichStatusAKeyIsRefused(t *testing.T) {
	t.Parallel()
	const page = "https://docs.example/keys"
	other := map[string]int{conflict: 418, missing: 428}
	kept := &idempotency.ConflictError{Command: "x"}
	none := &idempotency.KeyMissingError{Command: "x"}
	running := &idempotency.InProgressError{Command: "x", RetryAfter: 3 * time.Second}
	final := &idempotency.RefusedError{RefusalCode: "OUT_OF_STOCK", Message: "no more of it"}
	for _, tt := range []struct {
		name   string
		config httpedge.Config
		err    error
		status int
		about  string
		code   string
	}{
		{"House, another payload", httpedge.Config{DescribedBy: page}, kept, 409, "about:blank", conflict},
		{"House, no key", httpedge.Config{DescribedBy: page}, none, 400, "about:blank", missing},
		{"House, in progress", httpedge.Config{DescribedBy: page}, running, 409, "about:blank", "IDEMPOTENCY_REQUEST_IN_PROGRESS"},
		{"draft, another payload", httpedge.Config{Preset: httpedge.IETFDraft, DescribedBy: page}, kept, 422, page, conflict},
		{"draft, no key", httpedge.Config{Preset: httpedge.IETFDraft, DescribedBy: page}, none, 400, page, missing},
		{"draft, in progress", httpedge.Config{Preset: httpedge.IETFDraft, DescribedBy: page}, running, 409, page, "IDEMPOTENCY_REQUEST_IN_PROGRESS"},
		{"draft, a bad key", httpedge.Config{Preset: httpedge.IETFDraft, DescribedBy: page}, &requestctx.KeyError{Reason: "it is short"}, 400, "about:blank", invalid},
		{"draft, a refusal", httpedge.Config{Preset: httpedge.IETFDraft, DescribedBy: page}, final, 422, "about:blank", "OUT_OF_STOCK"},
		{"draft, expired", httpedge.Config{Preset: httpedge.IETFDraft, DescribedBy: page}, &idempotency.ExpiredError{Command: "x"}, 410, "about:blank", "IDEMPOTENCY_KEY_EXPIRED"},
		{"draft without a page", httpedge.Config{Preset: httpedge.IETFDraft}, kept, 422, "about:blank", conflict},
		{"draft, Statuses, another payload", httpedge.Config{Preset: httpedge.IETFDraft, DescribedBy: page, Statuses: other}, kept, 418, page, conflict},
		{"draft, Statuses, no key", httpedge.Config{Preset: httpedge.IETFDraft, DescribedBy: page, Statuses: other}, none, 428, page, missing},
		{"House, Statuses, another payload", httpedge.Config{Statuses: other}, kept, 418, "about:blank", conflict},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			res := answered(t, tt.config, tt.err)
			var p httpedge.Problem
			if err := json.Unmarshal([]byte(res.body), &p); err != nil {
				t.Fatal(err)
			}
			same(t, "status", fmt.Sprint(res.status, p.Status, p.Title), fmt.Sprint(tt.status, tt.status, http.StatusText(tt.status)))
			same(t, "type and code", p.Type+" "+p.Code, tt.about+" "+tt.code)
			status, retry := httpedge.Status(tt.err, false)
			same(t, "retry", p.Retry, retry) // a preset changes statuses and nothing of what may be done
			if tt.config.Preset == httpedge.House && tt.config.Statuses == nil {
				same(t, "Status", res.status, status)
			}
			if tt.err == error(kept) {
				same(t, "detail", p.Detail, "The Idempotency-Key has already been used with a different request payload.")
			}
			if tt.err == error(running) {
				same(t, "Retry-After", res.header.Get("Retry-After"), "3")
			}
		})
	}
}

func TestTheDraftsPresetHoldsForACommandsRoute(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{config: httpedge.Config{Preset: httpedge.IETFDraft, Codecs: formats()}}).orders()
	g.post(k1).ok(201, "false")
	res := g.do("POST", "/v1/orders", `{"cart_id":"c-2","amount":1}`, k1)
	res.fails(422, conflict, httpedge.Never)
	same(t, "status in the other format", g.do("POST", "/v1/orders", "cart_id=c-2\namount=1", k1, asKV).logical()["status"], any(422.0))
	g.do("POST", "/v1/orders", usual).fails(400, missing, httpedge.NewKey)
	g.want(1, 1, 1)
}

func TestRetryAfterIsConfigured(t *testing.T) {
	t.Parallel()
	away := &idempotency.StoreError{Err: errors.New("away")}
	for _, tt := range []struct {
		after time.Duration
		err   error
		want  string
	}{
		{0, away, "2"},
		{7 * time.Second, away, "7"},
		{time.Nanosecond, away, "1"},
		{1500 * time.Millisecond, away, "2"},
		{7 * time.Second, &idempotency.InProgressError{RetryAfter: 3 * time.Second}, "3"}, // that of a duplicate is the registry's
		{7 * time.Second, &idempotency.ConflictError{}, ""},
		{7 * time.Second, errors.New("may have been done"), ""}, // not to be sent again
	} {
		same(t, fmt.Sprint("Retry-After of ", tt.after, " ", tt.err), answered(t, httpedge.Config{RetryAfter: tt.after}, tt.err).header.Get("Retry-After"), tt.want)
	}
	g := newRig(t, setup{
		config: httpedge.Config{RetryAfter: 9 * time.Second},
		place:  func(context.Context, place) (placed, error) { return placed{}, errors.New("away") },
	}).orders()
	res := g.post(k1)
	res.fails(500, "INTERNAL", httpedge.SameKey)
	same(t, "Retry-After of a 500 that left nothing behind", res.header.Get("Retry-After"), "9")

	for name, config := range map[string]httpedge.Config{
		"httpedge: Config.RetryAfter is -1s":       {Anonymous: true, RetryAfter: -time.Second},
		"httpedge: Config.Preset 7 does not exist": {Anonymous: true, Preset: 7},
	} {
		if _, err := httpedge.New(config); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("got %v, want %s", err, name)
		}
	}
}
