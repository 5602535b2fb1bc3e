package httpedge_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"
	"github.com/labstack/echo/v4"
	"go.uber.org/zap"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/memstore"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
	"github.com/tekil-go/tekil/requestctx/httpedge"
)

// The Leased commands of these tests. None of them waits for a running attempt.

// ship is long work: its duplicates are accepted.
type ship struct {
	CartID string `json:"cart_id"`
}

func (ship) CommandName() bus.Name[parcel] { return "orders.ship" }
func (ship) Idempotency() idempotency.Policy {
	return idempotency.Policy{Mode: idempotency.Leased, Duplicate: idempotency.AnswerAccepted, Wait: -1, MaxAttempts: 2}
}

// charge is told "in progress".
type charge struct {
	CartID string `json:"cart_id"`
}

func (charge) CommandName() bus.Name[parcel] { return "orders.charge" }
func (charge) Idempotency() idempotency.Policy {
	return idempotency.Policy{Mode: idempotency.Leased, Wait: -1}
}

// transfer is not made a second time by itself.
type transfer struct {
	CartID string `json:"cart_id"`
}

func (transfer) CommandName() bus.Name[parcel] { return "orders.transfer" }
func (transfer) Idempotency() idempotency.Policy {
	return idempotency.Policy{Mode: idempotency.Leased, Wait: -1, Takeover: idempotency.Refuse}
}

// parcel is a result that may refuse to be stored.
type parcel struct {
	ID   string `json:"id"`
	Torn torn   `json:"torn"`
}

type torn bool

func (b torn) MarshalJSON() ([]byte, error) {
	if b {
		return nil, coded{"SECRET", "card 4111111111111111"}
	}
	return []byte("false"), nil
}

func (b *torn) UnmarshalJSON([]byte) error { return nil }

// long is a rig of Leased commands, all of them served by one handler, and of the route of their operations.
type long struct {
	*rig
	handle func(ctx context.Context, cart string) (parcel, error) // nil makes a parcel; set it between requests
}

const operationsRoute = "GET /v1/operations/{id}"

func newLong(t testing.TB, config httpedge.Config, store idempotency.Store, guards ...bus.Guard) *long {
	t.Helper()
	if config.Operations == "" {
		config.Operations = operationsRoute
	}
	l := &long{rig: newRig(t, setup{config: config, store: store})}
	handle := func(ctx context.Context, cart string) (parcel, error) {
		if l.handle != nil {
			return l.handle(ctx, cart)
		}
		return parcel{ID: "p-" + cart}, nil
	}
	var err error
	l.bus, err = bus.New(
		command(l.rig, nil, func(ctx context.Context, c ship) (parcel, error) { return handle(ctx, c.CartID) }),
		command(l.rig, nil, func(ctx context.Context, c charge) (parcel, error) { return handle(ctx, c.CartID) }),
		command(l.rig, nil, func(ctx context.Context, c transfer) (parcel, error) { return handle(ctx, c.CartID) }),
	)
	if err != nil {
		t.Fatal(err)
	}
	route(l.rig, "POST /v1/ship", httpedge.Options[ship, parcel]{Status: http.StatusCreated})
	route(l.rig, "POST /v1/charge", httpedge.Options[charge, parcel]{Status: http.StatusCreated})
	route(l.rig, "POST /v1/transfer", httpedge.Options[transfer, parcel]{Status: http.StatusCreated})
	ops, err := httpedge.Operations(l.edge, l.store, operationsRoute, guards)
	if err != nil {
		t.Fatal(err)
	}
	l.mux.Handle("/v1/operations/{id}", ops)
	return l
}

const cart = `{"cart_id":"c-1"}`

// gate makes the handler stop until it is opened, and tells that it has been entered.
type gate struct{ entered, opened chan struct{} }

func newGate() gate { return gate{make(chan struct{}), make(chan struct{})} }

func (g gate) handle(_ context.Context, cart string) (parcel, error) {
	close(g.entered)
	<-g.opened
	return parcel{ID: "p-" + cart}, nil
}

// running starts a request and returns when its handler has been entered. finish lets it end and gives its reply.
func (l *long) running(path string, headers ...string) (finish func() *reply) {
	l.t.Helper()
	g := newGate()
	l.handle = g.handle
	var first *reply
	var wg sync.WaitGroup
	wg.Go(func() { first = l.do("POST", path, cart, headers...) })
	<-g.entered
	l.handle = nil
	return func() *reply {
		close(g.opened)
		wg.Wait()
		return first
	}
}

// operation decodes an answer that shows an operation, and checks what all of them have in common.
func (r *reply) operation(status int) httpedge.Operation {
	r.t.Helper()
	if ct := r.header.Get("Content-Type"); r.status != status || ct != "application/json" {
		r.t.Fatalf("status %d, content type %q, want %d and JSON: %s", r.status, ct, status, r.body)
	}
	var op httpedge.Operation
	dec := json.NewDecoder(strings.NewReader(r.body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&op); err != nil {
		r.t.Fatal(err)
	}
	same(r.t, "request_id", op.RequestID, r.id())
	same(r.t, "Cache-Control", r.header.Values("Cache-Control"), []string{"no-store"})
	return op
}

// look asks for an operation.
func (l *long) look(id string, headers ...string) *reply {
	l.t.Helper()
	return l.do("GET", "/v1/operations/"+id, "", headers...)
}

// theOperation is the id of the only record.
func (l *long) theOperation(mem *memstore.Store) string {
	l.t.Helper()
	all := mem.Records()
	if len(all) != 1 {
		l.t.Fatalf("%d records, want 1", len(all))
	}
	return all[0].Scope.ID().Operation()
}

func TestL03_ADuplicateOfLongWorkIsAcceptedUnderOneOperation_rec4(t *testing.T) {
	t.Parallel()
	mem := memstore.New()
	one, two := newLong(t, httpedge.Config{}, mem), newLong(t, httpedge.Config{}, mem) // two replicas
	finish := one.running("/v1/ship", k1)
	origin := mem.Records()[0].OriginRequestID

	var ids []string
	for _, l := range []*long{one, two, one, two} {
		res := l.do("POST", "/v1/ship", cart, k1).ok(202, "false")
		op := res.operation(202)
		ids = append(ids, op.OperationID)
		same(t, "body", res.body, `{"request_id":"`+res.id()+`","operation_id":"`+op.OperationID+`","state":"in_progress"}`+"\n")
		same(t, "Retry-After", res.header.Get("Retry-After"), "2")
		same(t, "Location", res.header.Values("Location"), []string{"/v1/operations/" + op.OperationID})
		same(t, "echo", res.header.Get("Idempotency-Key"), key)
		same(t, "original", res.header.Get("Idempotency-Original-Request-ID"), origin)
	}
	same(t, "ids", ids, []string{ids[0], ids[0], ids[0], ids[0]})
	at := "/v1/operations/" + ids[0]

	res := two.do("GET", at, "")
	op := res.operation(200)
	same(t, "state", op.State, idempotency.OperationInProgress)
	same(t, "Retry-After", res.header.Get("Retry-After"), "2")
	same(t, "original", op.OriginalRequestID, origin)
	same(t, "result", string(op.Result), "")

	first := finish().ok(201, "false")
	same(t, "the attempt that did the work", first.id(), origin)
	for _, l := range []*long{one, two} {
		res := l.do("GET", at, "")
		same(t, "body", res.body, `{"request_id":"`+res.id()+`","operation_id":"`+ids[0]+`","state":"completed","command":"orders.ship",`+
			`"result":{"id":"p-c-1","torn":false},"original_request_id":"`+origin+`"}`+"\n")
		res.operation(200)
		res.without("Retry-After", "Location", "Idempotency-Key", "Idempotency-Replayed", "Idempotency-Original-Request-ID")
		again := l.do("POST", "/v1/ship", cart, k1).ok(201, "true")
		same(t, "the replay", again.body, first.body)
	}
	same(t, "H", one.handled.Load()+two.handled.Load(), 1)
}

func TestL03_ADuplicateOfALeasedCommandIsToldItsOperation(t *testing.T) {
	t.Parallel()
	mem := memstore.New()
	l := newLong(t, httpedge.Config{}, mem)
	finish := l.running("/v1/charge", k1)
	res := l.do("POST", "/v1/charge", cart, k1).ok(409, "false")
	p := res.fails(409, "IDEMPOTENCY_REQUEST_IN_PROGRESS", httpedge.SameKey)
	same(t, "operation", p.OperationID, l.theOperation(mem))
	same(t, "Retry-After", res.header.Get("Retry-After"), "2")
	same(t, "original", res.header.Get("Idempotency-Original-Request-ID"), mem.Records()[0].OriginRequestID)
	res.without("Location")
	same(t, "state", l.look(p.OperationID).operation(200).State, idempotency.OperationInProgress)
	l.do("POST", "/v1/charge", `{"cart_id":"c-2"}`, k1).fails(409, conflict, httpedge.Never) // L04: the hash before the state
	finish().ok(201, "false")
	same(t, "state", l.look(p.OperationID).operation(200).State, idempotency.OperationCompleted)
}

func TestL03_AnAtomicDuplicateIsToldNoOperation(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		entered, opened := make(chan struct{}), make(chan struct{})
		g := newRig(t, setup{place: func(context.Context, place) (placed, error) {
			close(entered)
			<-opened
			return placed{}, nil
		}}).orders()
		var wg sync.WaitGroup
		wg.Go(func() { g.post(k1) })
		<-entered
		res := g.post(k1)
		res.fails(409, "IDEMPOTENCY_REQUEST_IN_PROGRESS", httpedge.SameKey)
		if strings.Contains(res.body, "operation") {
			t.Errorf("nobody can see it before it is done: %s", res.body)
		}
		close(opened)
		wg.Wait()
	})
}

func TestTheAcceptedAnswerHasALocationOnlyWhereOperationsAreServed(t *testing.T) {
	t.Parallel()
	accepted := &idempotency.InProgressError{Command: "x", OperationID: "11111111-2222-3333-4444-555555555555", Accepted: true, RetryAfter: 1500 * time.Millisecond}
	for pattern, want := range map[string]string{
		"":                               "",
		"/api/v1/operations/{id}":        "/api/v1/operations/" + accepted.OperationID,
		"GET /api/v1/operations/{id}":    "/api/v1/operations/" + accepted.OperationID,
		"/operations/{id}/state":         "/operations/" + accepted.OperationID + "/state",
		"/operations/:operation":         "/operations/" + accepted.OperationID,
		"/operations/{id:[0-9a-f-]{36}}": "/operations/" + accepted.OperationID,
		"/işlemler/{id}":                 "/i%C5%9Flemler/" + accepted.OperationID,
		"/{id}":                          "/" + accepted.OperationID,
	} {
		g := newRig(t, setup{config: httpedge.Config{Operations: pattern, Statuses: map[string]int{"IDEMPOTENCY_REQUEST_IN_PROGRESS": 423}}})
		h := g.edge.Middleware("POST /x")(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", "/never")
			requestctx.From(r.Context()).Report(requestctx.Outcome{State: requestctx.StateInProgress})
			g.edge.WriteProblem(w, r, fmt.Errorf("a handler of the application's own: %w", accepted))
		}))
		res := do(t, h, "POST", "/x", "", k1).ok(202, "false") // and Statuses is for problems
		same(t, "state", res.operation(202).State, idempotency.OperationInProgress)
		same(t, pattern, res.header.Get("Location"), want)
		same(t, "Retry-After", res.header.Get("Retry-After"), "2")
		same(t, "echo", res.header.Get("Idempotency-Key"), key)
		if accepted.Accepted = false; want == "" {
			do(t, h, "POST", "/x", "", k1).fails(423, "IDEMPOTENCY_REQUEST_IN_PROGRESS", httpedge.SameKey)
		}
		accepted.Accepted = true
	}
	for _, pattern := range []string{
		"operations/{id}", "https://api.example/operations/{id}", "//api.example/{id}", "/operations", "/{tenant}/operations/{id}",
		"/operations/{id...}", "/operations/{id}/", "/operations/*", "POST /operations/{id}", "/operations/op-{id}", "GET", " ",
	} {
		if _, err := httpedge.New(httpedge.Config{Anonymous: true, Operations: pattern}); err == nil || !strings.Contains(err.Error(), "Config.Operations is ") {
			t.Errorf("%q: %v", pattern, err)
		}
	}
}

// What is in progress is then a part of the work, and the caller who takes 202 for "it goes its way" would never send the rest.
func TestWhatAHandlerHasSentBeingInProgressIsNotTheCallersOperation(t *testing.T) {
	t.Parallel()
	mem := memstore.New()
	l := newLong(t, httpedge.Config{}, mem)
	g := newGate()
	var wg sync.WaitGroup
	var b *bus.Bus
	first := true
	b, err := bus.New(
		command(l.rig, nil, func(ctx context.Context, c charge) (parcel, error) { // the parent
			if first {
				first = false
				wg.Go(func() { _, _ = bus.Send(ctx, b, ship(c)) })
				<-g.entered
				return parcel{}, errors.New("the parent fails while its child is at work")
			}
			p, err := bus.Send(ctx, b, ship(c))
			if err != nil {
				return parcel{}, fmt.Errorf("shipping: %w", err)
			}
			return p, nil
		}),
		command(l.rig, nil, func(ctx context.Context, c ship) (parcel, error) { return g.handle(ctx, c.CartID) }),
		command(l.rig, nil, func(ctx context.Context, c touch) (placed, error) { // an unmarked parent: the child has the key of the request
			_, err := bus.Send(ctx, b, ship(c))
			return placed{}, err
		}),
	)
	if err != nil {
		t.Fatal(err)
	}
	l.bus = b
	mux := http.NewServeMux()
	l.mux = mux
	route(l.rig, "POST /v1/charge", httpedge.Options[charge, parcel]{})
	route(l.rig, "POST /v1/touch", httpedge.Options[touch, placed]{})
	l.do("POST", "/v1/charge", cart, k1).fails(500, "INTERNAL", httpedge.SameKey)
	inProgress := func(path string) {
		t.Helper()
		res := l.do("POST", path, cart, k1)
		p := res.fails(409, "IDEMPOTENCY_REQUEST_IN_PROGRESS", httpedge.SameKey)
		same(t, "Retry-After", res.header.Get("Retry-After"), "2")
		res.without("Location")
		same(t, "operation", p.OperationID, "")
	}
	inProgress("/v1/charge")
	close(g.opened)
	wg.Wait()
	l.do("POST", "/v1/charge", cart, k1).ok(200, "false")
	same(t, "H", l.handled.Load(), 3+1) // three times the parent, once the child

	g = newGate()
	wg.Go(func() { l.do("POST", "/v1/touch", cart, k1) })
	<-g.entered
	inProgress("/v1/touch")
	close(g.opened)
	wg.Wait()
}

func TestR03_TheOperationOfARefusalSaysWhy(t *testing.T) {
	t.Parallel()
	mem := memstore.New()
	l := newLong(t, httpedge.Config{Statuses: map[string]int{"DECLINED": 402}}, mem)
	l.handle = func(ctx context.Context, _ string) (parcel, error) {
		requestctx.From(ctx).SetExternalRef("auth-77")
		return parcel{}, idempotency.Final(refusal{coded{"DECLINED", "The card was declined."}, map[string]int{"tries": 3}})
	}
	first := l.do("POST", "/v1/ship", cart, k1).ok(402, "false")
	id := l.theOperation(mem)
	res := l.look(id)
	res.operation(200)
	same(t, "body", res.body, `{"request_id":"`+res.id()+`","operation_id":"`+id+`","state":"refused","command":"orders.ship","retry":"none",`+
		`"refusal":{"code":"DECLINED","message":"The card was declined.","data":{"tries":3}},"original_request_id":"`+first.id()+`","external_ref":"auth-77"}`+"\n")
}

func TestR08_WhatNobodyKnowsIsAnsweredWithTheRestOfTheLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New()
		l := newLong(t, httpedge.Config{}, mem)
		l.handle = func(ctx context.Context, _ string) (parcel, error) {
			time.Sleep(40500 * time.Millisecond) // of the bubble's clock, and before the first renewal
			return parcel{}, idempotency.Unknown(fmt.Errorf("dial tcp 10.0.0.7: %w", context.DeadlineExceeded))
		}
		res := l.do("POST", "/v1/ship", cart, k1).ok(503, "false")
		p := res.fails(503, "IDEMPOTENCY_OUTCOME_UNKNOWN", httpedge.SameKey)
		same(t, "Retry-After", res.header.Get("Retry-After"), "260") // 259.5 seconds are left of 300
		if strings.Contains(res.body, "10.0.0.7") || !strings.Contains(p.Detail, "same key") {
			t.Errorf("detail: %s", res.body)
		}
		id := l.theOperation(mem)
		same(t, "while the lease lasts", l.look(id).operation(200).State, idempotency.OperationInProgress)
		l.do("POST", "/v1/ship", cart, k1).ok(202, "false")

		time.Sleep(260 * time.Second)
		op := l.look(id).operation(200)
		same(t, "after it", op.State, idempotency.OperationUnknown)
		same(t, "retry", op.Retry, httpedge.SameKey)
		if !strings.Contains(op.Detail, "same request again with the same key") {
			t.Errorf("detail: %s", op.Detail)
		}
		l.handle = nil
		l.do("POST", "/v1/ship", cart, k1).ok(201, "false")
		same(t, "at last", l.look(id).operation(200).State, idempotency.OperationCompleted)
	})
}

func TestWhatIsLeftToAPersonIsAConflictThatNoRetryMends(t *testing.T) {
	t.Parallel()
	mem := memstore.New()
	l := newLong(t, httpedge.Config{}, mem)
	l.handle = func(context.Context, string) (parcel, error) {
		return parcel{}, idempotency.Unknown(errors.New("cut off"))
	}
	first := l.do("POST", "/v1/transfer", cart, k1)
	first.fails(503, "IDEMPOTENCY_OUTCOME_UNKNOWN", httpedge.SameKey)
	mem.Age(idempotency.DefaultLease)
	res := l.do("POST", "/v1/transfer", cart, k1).ok(409, "false")
	p := res.fails(409, "IDEMPOTENCY_OUTCOME_UNKNOWN", httpedge.Never)
	if !strings.Contains(p.Detail, "A person has to find out") {
		t.Errorf("detail: %s", p.Detail)
	}
	same(t, "original", res.header.Get("Idempotency-Original-Request-ID"), first.id())
	res.without("Retry-After")
	same(t, "H", l.handled.Load(), 1)
	same(t, "state", l.look(l.theOperation(mem)).operation(200).State, idempotency.OperationUnknown)
}

func TestTheErrorThatAnUnknownOutcomeWrapsDoesNotSpeakForIt(t *testing.T) {
	t.Parallel()
	for _, inner := range []error{
		&idempotency.RefusedError{RefusalCode: "DECLINED", Message: "of another command"}, &idempotency.ConflictError{}, &requestctx.KeyError{},
		&idempotency.StoreError{Err: errors.New("x")}, &idempotency.HandlerError{},
	} {
		l := newLong(t, httpedge.Config{}, memstore.New())
		l.handle = func(ctx context.Context, _ string) (parcel, error) {
			return parcel{}, idempotency.Unknown(fmt.Errorf("something that the handler has called: %w", inner))
		}
		l.do("POST", "/v1/ship", cart, k1).fails(503, "IDEMPOTENCY_OUTCOME_UNKNOWN", httpedge.SameKey)
		if status, retry := httpedge.Status(&idempotency.ResultUnavailableError{Err: inner}, true); status != 410 || retry != httpedge.Never {
			t.Errorf("%T: %d %s", inner, status, retry)
		}
	}
}

func TestR14_WorkWhoseResultIsNotKeptIsGoneAndItsReferenceIsNotLost(t *testing.T) {
	t.Parallel()
	for _, ref := range []string{"", "auth-77"} {
		mem := memstore.New()
		l := newLong(t, httpedge.Config{}, mem)
		l.handle = func(ctx context.Context, _ string) (parcel, error) {
			requestctx.From(ctx).SetExternalRef(ref)
			_, err := idempotency.DownstreamKey(ctx, "ship")
			return parcel{Torn: true}, err
		}
		want := ""
		if ref != "" {
			want = `{"external_ref":"auth-77"}`
		}
		var first string
		for i, replayed := range []string{"false", "true", "true"} {
			res := l.do("POST", "/v1/ship", cart, k1).ok(410, replayed)
			p := res.fails(410, "IDEMPOTENCY_RESULT_UNAVAILABLE", httpedge.Never)
			same(t, "data", string(p.Data), want)
			if i == 0 {
				first = res.id()
			}
			same(t, "original", res.header.Get("Idempotency-Original-Request-ID"), first)
			res.without("Retry-After")
			if strings.Contains(res.body, "41111111") || strings.Contains(res.body, "SECRET") {
				t.Errorf("the encoder's error is in the answer: %s", res.body)
			}
		}
		same(t, "H", l.handled.Load(), 1)
		op := l.look(l.theOperation(mem)).operation(200)
		same(t, "state", op.State, idempotency.OperationGone)
		same(t, "retry", op.Retry, httpedge.Never)
		same(t, "reference", op.ExternalRef, ref)
		same(t, "original", op.OriginalRequestID, first)
		if op.Result != nil || op.Refusal != nil || op.Detail == "" {
			t.Errorf("operation %+v", op)
		}
	}
}

// admin is for the people who mend what no retry can.
func admin(t testing.TB, store idempotency.Store) *idempotency.Admin {
	t.Helper()
	a, err := idempotency.NewAdmin(idempotency.AdminConfig{Store: store, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestT15_AnErasedOperationIsGone(t *testing.T) {
	t.Parallel()
	mem := memstore.New()
	l := newLong(t, httpedge.Config{}, mem)
	l.handle = func(ctx context.Context, _ string) (parcel, error) {
		requestctx.From(ctx).SetExternalRef("auth-77")
		return parcel{ID: "of a person"}, nil
	}
	l.do("POST", "/v1/ship", cart, k1).ok(201, "false")
	id := l.theOperation(mem)
	if body := l.look(id).body; !strings.Contains(body, "of a person") || !strings.Contains(body, "auth-77") {
		t.Fatalf("before: %s", body)
	}
	if err := admin(t, mem).Erase(t.Context(), mem.Records()[0].Scope.ID(), idempotency.Intervention{By: "ada", Reason: "asked for"}); err != nil {
		t.Fatal(err)
	}
	res := l.look(id)
	same(t, "state", res.operation(200).State, idempotency.OperationGone)
	if strings.Contains(res.body, "of a person") || strings.Contains(res.body, "auth-77") {
		t.Errorf("after: %s", res.body)
	}
}

func TestAnAttemptThatWasReleasedWhileItRanIsToldSoAndMayBeSentAgain(t *testing.T) {
	t.Parallel()
	mem := memstore.New()
	l := newLong(t, httpedge.Config{}, mem)
	finish := l.running("/v1/charge", k1)
	by := idempotency.Intervention{By: "ada", Reason: "it hangs", LiveLease: true}
	if err := admin(t, mem).Release(t.Context(), mem.Records()[0].Scope.ID(), by); err != nil {
		t.Fatal(err)
	}
	same(t, "state", l.look(l.theOperation(mem)).operation(200).State, idempotency.OperationUnknown)
	late := finish().ok(503, "false")
	late.fails(503, "IDEMPOTENCY_LEASE_LOST", httpedge.SameKey)
	same(t, "Retry-After", late.header.Get("Retry-After"), "2")
	same(t, "echo", late.header.Get("Idempotency-Key"), key)
	late.without("Idempotency-Original-Request-ID")
	same(t, "what the pipeline saw", l.seen.all()[0].request.Outcome().State, requestctx.StateLost)
	l.do("POST", "/v1/charge", cart, k1).ok(201, "false")
}

func TestL09_ALateOwnerIsAnsweredWithWhatTheRecordSays(t *testing.T) {
	t.Parallel()
	mem := memstore.New()
	one, two := newLong(t, httpedge.Config{}, mem), newLong(t, httpedge.Config{}, mem)
	finish := one.running("/v1/ship", k1)
	mem.Age(idempotency.DefaultLease)
	second := two.running("/v1/ship", k1)
	late := finish().ok(202, "false") // the work is the second one's now
	same(t, "operation", late.operation(202).OperationID, two.theOperation(mem))
	second().ok(201, "false")
	one.do("POST", "/v1/ship", cart, k1).ok(201, "true")
}

func TestL19_AKeyThatHasFailedTooOftenWaitsForAPerson(t *testing.T) {
	t.Parallel()
	mem := memstore.New()
	l := newLong(t, httpedge.Config{}, mem)
	l.handle = func(context.Context, string) (parcel, error) { return parcel{}, errors.New("it never works") }
	for range 2 {
		l.do("POST", "/v1/ship", cart, k1).ok(500, "false").fails(500, "INTERNAL", httpedge.SameKey)
	}
	for range 2 {
		res := l.do("POST", "/v1/ship", cart, k1)
		res.fails(500, "IDEMPOTENCY_ATTEMPTS_EXHAUSTED", httpedge.Never)
		res.without("Retry-After")
	}
	same(t, "H", l.handled.Load(), 2)
	same(t, "state", l.look(l.theOperation(mem)).operation(200).State, idempotency.OperationUnknown)
}

func TestR06_APanicOfALeasedAttemptLeavesARecordSoTheSameKeyMayBeSent(t *testing.T) {
	t.Parallel()
	for name, outside := range map[string]bool{"before it went outside": false, "after": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLong(t, httpedge.Config{}, memstore.New())
			l.handle = func(ctx context.Context, _ string) (parcel, error) {
				if outside {
					_, _ = idempotency.DownstreamKey(ctx, "ship")
				}
				panic("boom")
			}
			l.do("POST", "/v1/ship", cart, k1).ok(500, "false").fails(500, "INTERNAL", httpedge.SameKey)
			l.handle = nil
			res := l.do("POST", "/v1/ship", cart, k1)
			if outside {
				res.ok(202, "false") // until the lease is over
				return
			}
			res.ok(201, "false")
		})
	}
	// A handler that has ended its transaction by itself may have left work that no record covers.
	g := newRig(t, setup{})
	for _, err := range []error{&idempotency.HandlerError{}, errors.New("odd"), context.DeadlineExceeded} {
		h := g.edge.Middleware("POST /x")(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			requestctx.From(r.Context()).Report(requestctx.Outcome{State: requestctx.StateUnknown, Attempt: 1})
			g.edge.WriteProblem(w, r, err)
		}))
		want := httpedge.SameKey
		if errors.As(err, new(*idempotency.HandlerError)) {
			want = httpedge.Never
		}
		same(t, err.Error(), do(t, h, "POST", "/x", "", k1).problem().Retry, want)
	}
}

// secret is what nobody but the owner may read.
const secret = "of-ayse"

// shipped makes one parcel for ayse of the tenant north.
func shipped(t testing.TB, guards ...bus.Guard) (l *long, mem *memstore.Store, id string) {
	t.Helper()
	mem = memstore.New()
	l = newLong(t, authenticated(), mem, guards...)
	l.handle = func(ctx context.Context, _ string) (parcel, error) {
		requestctx.From(ctx).SetExternalRef("auth-77")
		return parcel{ID: secret}, nil
	}
	l.do("POST", "/v1/ship", cart, as("ayse.1", "north")...).ok(201, "false")
	return l, mem, l.theOperation(mem)
}

func TestAnOperationOfSomebodyElseIsAsGoodAsNone_rec8(t *testing.T) {
	t.Parallel()
	asked := 0
	l, mem, id := shipped(t, func(context.Context, bus.Invocation) error { asked++; return nil })
	mine := l.look(id, as("ayse.2", "north")...) // another token
	same(t, "result", string(mine.operation(200).Result), `{"id":"`+secret+`","torn":false}`)
	same(t, "guards asked", asked, 1)

	other := "00000000-0000-0000-0000-000000000000"
	if other == id {
		t.Fatal("the id of the parcel cannot be all zero")
	}
	record := mem.Records()[0].Scope.ID()
	none := map[string]*reply{
		"no such":            l.look(other, as("ayse.1", "north")...),
		"another client":     l.look(id, as("mehmet.1", "north")...),
		"another tenant":     l.look(id, as("ayse.1", "south")...),
		"the id in capitals": l.look(strings.ToUpper(id), as("ayse.1", "north")...),
		"the record's id":    l.look(uuid.UUID(record).String(), as("ayse.1", "north")...),
	}
	for name, malformed := range map[string]string{
		"short": id[:35], "long": id + "0", "no dashes": strings.ReplaceAll(id, "-", ""), "a key": key, "not hex": "g" + id[1:], "escaped": id[:8] + "%00" + id[11:],
		"dashes elsewhere": id[:7] + "-" + id[8:], "braces": "{" + id + "}", "NUL": "%00", "bytes": "%ff%fe", "dots": "..%2f..%2fadmin", "very long": strings.Repeat("a", 10_000),
	} {
		none[name] = l.look(malformed, as("ayse.1", "north")...)
	}
	plain := func(res *reply) (body string, header http.Header) { // without the id of the attempt
		header = res.header.Clone()
		header.Del("X-Request-Id")
		return strings.ReplaceAll(res.body, res.id(), ""), header
	}
	wantBody, wantHeader := plain(none["no such"])
	for name, res := range none {
		res.fails(404, "OPERATION_NOT_FOUND", httpedge.Never)
		body, header := plain(res)
		same(t, name, body, wantBody)
		same(t, name, header, wantHeader)
		same(t, name, header.Get("Cache-Control"), "no-store")
	}
	same(t, "guards asked", asked, 1) // of what is not there, nobody is asked, so that no guard tells the difference
	l.look(id, k1, "X-Tenant: north").fails(401, "UNAUTHENTICATED", httpedge.SameKey)
	l.look(id, k1, "Authorization: Bearer ayse.1").fails(403, "TENANT_UNRESOLVED", httpedge.SameKey)

	mem.Age(idempotency.DefaultRetention)
	l.look(id, as("ayse.1", "north")...).fails(404, "OPERATION_NOT_FOUND", httpedge.Never)
}

func TestS03_AnonymousCallersShareTheirOperationsAndNobodyElseDoes(t *testing.T) {
	t.Parallel()
	mem := memstore.New()
	l := newLong(t, httpedge.Config{Principal: bearer, Anonymous: true}, mem)
	l.do("POST", "/v1/ship", cart, k1).ok(201, "false")
	id := l.theOperation(mem)
	same(t, "state", l.look(id).operation(200).State, idempotency.OperationCompleted)
	l.look(id, "Authorization: Bearer ayse.1").fails(404, "OPERATION_NOT_FOUND", httpedge.Never)
	l.do("POST", "/v1/ship", cart, k1, "Authorization: Bearer ayse.1").ok(201, "false")
	for _, rec := range mem.Records() {
		if rec.Scope.Client == "ayse" {
			l.look(rec.Scope.ID().Operation()).fails(404, "OPERATION_NOT_FOUND", httpedge.Never)
		}
	}
	same(t, "records", len(mem.Records()), 2)
}

func TestS10_GuardsStandBeforeTheOutcomeOfAnOperation(t *testing.T) {
	t.Parallel()
	var asked []string
	allowed := true
	guard := func(name string, refuses bool) bus.Guard {
		return func(ctx context.Context, inv bus.Invocation) error {
			asked = append(asked, name)
			same(t, "invocation", inv, bus.Invocation{Name: "orders.ship", Idempotent: true})
			same(t, "client", requestctx.From(ctx).Scope(), requestctx.Scope{Client: "ayse", Tenant: "north"})
			if refuses && !allowed {
				return errForbidden
			}
			return nil
		}
	}
	guards := []bus.Guard{guard("admit", false), guard("permit", true), guard("last", false)}
	l, _, id := shipped(t, guards...)
	guards[1] = nil // the caller's slice is the caller's
	l.look(id, as("ayse.1", "north")...).operation(200)
	same(t, "asked", asked, []string{"admit", "permit", "last"})

	asked, allowed = nil, false
	res := l.look(id, as("ayse.1", "north")...)
	p := res.fails(403, "FORBIDDEN", httpedge.SameKey)
	same(t, "asked", asked, []string{"admit", "permit"})
	same(t, "detail", p.Detail, "")
	for _, shown := range []string{secret, "auth-77", "completed", "orders.ship", id} {
		if strings.Contains(res.body, shown) {
			t.Errorf("the refusal shows %q: %s", shown, res.body)
		}
	}
	if log := l.log.String(); !strings.Contains(log, `"code":"FORBIDDEN"`) || strings.Contains(log, secret) {
		t.Errorf("log: %s", log)
	}
}

func TestAGuardThatPanicsShowsNothing(t *testing.T) {
	t.Parallel()
	l, _, id := shipped(t, func(context.Context, bus.Invocation) error { panic(secret) })
	res := l.look(id, as("ayse.1", "north")...)
	res.fails(500, "INTERNAL", httpedge.SameKey)
	if strings.Contains(res.body+l.log.String(), secret) {
		t.Errorf("answer %s, log %s", res.body, l.log)
	}
}

func TestAnOperationIsOnlyReadAndNeedsNoKey(t *testing.T) {
	t.Parallel()
	mem := memstore.New()
	l := newLong(t, httpedge.Config{}, mem)
	l.do("POST", "/v1/ship", cart, k1).ok(201, "false")
	id := l.theOperation(mem)
	plain := l.look(id)
	for _, header := range []string{k1, "Idempotency-Key: short", "Idempotency-Key:"} {
		res := l.look(id, header)
		res.operation(200)
		same(t, header, strings.ReplaceAll(res.body, res.id(), ""), strings.ReplaceAll(plain.body, plain.id(), ""))
		res.without("Idempotency-Key", "Idempotency-Replayed", "Idempotency-Original-Request-ID")
	}
	for _, method := range []string{"POST", "PUT", "DELETE", "PATCH"} {
		res := l.do(method, "/v1/operations/"+id, "{}", k1)
		res.fails(405, "METHOD_NOT_ALLOWED", httpedge.SameKey)
		same(t, method, res.header.Get("Allow"), "GET, HEAD")
	}
	s := server(t, l.mux)
	get := raw(t, s, "GET", "/v1/operations/"+id, "", "")
	head := raw(t, s, "HEAD", "/v1/operations/"+id, "", "")
	same(t, "HEAD", []string{strconv.Itoa(head.status), head.body, head.header.Get("Cache-Control"), head.header.Get("Content-Type")}, []string{"200", "", "no-store", "application/json"})
	same(t, "length", head.header.Get("Content-Length"), get.header.Get("Content-Length"))
	same(t, "HEAD of nothing", raw(t, s, "HEAD", "/v1/operations/x", "", "").status, 404)
	same(t, "H", l.handled.Load(), 1)
	same(t, "records", len(mem.Records()), 1)
}

func TestR15_ADamagedOutcomeOfAnOperationIsAnErrorAndNeverAnEmptySuccess(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*idempotency.Record){
		"a result that is no JSON": func(r *idempotency.Record) { r.Result = []byte(`{"id":"` + secret) },
		"two results":              func(r *idempotency.Record) { r.Result = []byte(`{}{}`) },
		"no result":                func(r *idempotency.Record) { r.Result = nil },
		"a refusal that is no JSON": func(r *idempotency.Record) {
			r.Outcome, r.ResultType, r.Result = idempotency.Refusal, "refusal/1", []byte(secret)
		},
		"no refusal": func(r *idempotency.Record) { r.Outcome, r.ResultType, r.Result = idempotency.Refusal, "refusal/1", nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, mem, id := shipped(t)
			rec := mem.Records()[0]
			change(&rec)
			mem.Put(rec.Scope.ID(), rec)
			res := l.look(id, as("ayse.1", "north")...)
			res.fails(500, "IDEMPOTENCY_RESULT_UNDECODABLE", httpedge.SameKey)
			if strings.Contains(res.body+l.log.String(), secret) || !strings.Contains(l.log.String(), "IDEMPOTENCY_RESULT_UNDECODABLE") {
				t.Errorf("answer %s, log %s", res.body, l.log)
			}
		})
	}
}

func TestR10_R11_AResultThatIsNothingIsShownAsItWas(t *testing.T) {
	t.Parallel()
	for _, result := range []string{"null", "0", "false", `""`, "[]", "{}", `"a<b"`, "9007199254740993"} {
		l, mem, id := shipped(t)
		rec := mem.Records()[0]
		rec.Result = []byte(result)
		mem.Put(rec.Scope.ID(), rec)
		res := l.look(id, as("ayse.1", "north")...)
		res.operation(200)
		var members map[string]json.RawMessage
		if err := json.Unmarshal([]byte(res.body), &members); err != nil {
			t.Fatal(err)
		}
		same(t, "result", strings.ReplaceAll(string(members["result"]), `\u003c`, "<"), result)
	}
}

// A record under the id of another scope is a damaged table, and shows nothing.
func TestARecordThatBelongsElsewhereIsNotShown(t *testing.T) {
	t.Parallel()
	l, mem, _ := shipped(t)
	rec := mem.Records()[0]
	elsewhere := rec.Scope
	elsewhere.Key = "another-key"
	mem.Put(elsewhere.ID(), rec)
	l.look(elsewhere.ID().Operation(), as("ayse.1", "north")...).fails(404, "OPERATION_NOT_FOUND", httpedge.Never)
}

// unreadable is a store whose Find does what it is told.
type unreadable struct {
	idempotency.Store
	find func(context.Context) error
}

func (u unreadable) Find(ctx context.Context, _ idempotency.Search, _ int) ([]idempotency.Stored, error) {
	return nil, u.find(ctx)
}

func TestAnOperationThatCannotBeReadIsNotAnOperationThatDoesNotExist(t *testing.T) {
	t.Parallel()
	const id = "11111111-2222-3333-4444-555555555555"
	l := newLong(t, httpedge.Config{}, unreadable{memstore.New(), func(context.Context) error { return errNoTable }})
	res := l.look(id)
	p := res.fails(503, "IDEMPOTENCY_STORE_UNAVAILABLE", httpedge.SameKey)
	same(t, "Retry-After", res.header.Get("Retry-After"), "2")
	same(t, "detail", p.Detail, "It cannot be found out at present how far the operation has come.")
	if strings.Contains(res.body, "SQLSTATE") || !strings.Contains(l.log.String(), `"error_type":"*idempotency.StoreError"`) {
		t.Errorf("answer %s, log %s", res.body, l.log)
	}
	l.look("x").fails(404, "OPERATION_NOT_FOUND", httpedge.Never) // of what cannot be an id nobody is asked
}

// cutOff is a store that is away from the moment at which a handler has begun.
type cutOff struct {
	idempotency.Store
	away *bool
	end  error // of a Complete then
}

func (c cutOff) Lease(ctx context.Context, claim idempotency.Claim) (idempotency.Lease, *idempotency.Record, error) {
	l, rec, err := c.Store.Lease(ctx, claim)
	if l != nil {
		l = cutLease{l, c}
	}
	return l, rec, err
}

func (c cutOff) Look(ctx context.Context, claim idempotency.Claim) (*idempotency.Record, error) {
	if *c.away {
		return nil, errNoTable
	}
	return c.Store.Look(ctx, claim)
}

type cutLease struct {
	idempotency.Lease
	cutOff
}

func (l cutLease) Complete(ctx context.Context, done idempotency.Completion) error {
	if *l.away {
		return l.end
	}
	return l.Lease.Complete(ctx, done)
}

func (l cutLease) Release(ctx context.Context) error {
	if *l.away {
		return errNoTable
	}
	return l.Lease.Release(ctx)
}

// What the handler did outside stands, so no answer may say that nothing was done.
func TestX12_NoAnswerSaysThatNothingWasDoneWhenTheStoreGoesAwayUnderALeasedAttempt(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		end  error
		code string
	}{{errNoTable, "IDEMPOTENCY_OUTCOME_UNKNOWN"}, {idempotency.ErrLost, "IDEMPOTENCY_STORE_UNAVAILABLE"}} {
		synctest.Test(t, func(t *testing.T) { goesAway(t, tt.end, tt.code) })
	}
}

func goesAway(t *testing.T, end error, code string) {
	away := false
	l := newLong(t, httpedge.Config{}, cutOff{memstore.New(), &away, end})
	l.handle = func(ctx context.Context, _ string) (parcel, error) {
		away = true
		_, err := idempotency.DownstreamKey(ctx, "ship")
		return parcel{ID: "p-1"}, err
	}
	res := l.do("POST", "/v1/ship", cart, k1)
	p := res.fails(503, code, httpedge.SameKey)
	if strings.Contains(p.Detail, "not processed") || strings.Contains(res.body, "SQLSTATE") {
		t.Errorf("answer: %s", res.body)
	}
	if res.header.Get("Retry-After") == "" {
		t.Error("there is no Retry-After")
	}
	away, l.handle = false, nil
	l.do("POST", "/v1/ship", cart, k1).ok(202, "false") // the lease runs out
	time.Sleep(idempotency.DefaultLease)
	l.do("POST", "/v1/ship", cart, k1).ok(201, "false")
	same(t, "H", l.handled.Load(), 2)
}

func TestAnOperationIsNotWaitedForWithoutEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLong(t, httpedge.Config{}, unreadable{memstore.New(), func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }})
		start := time.Now()
		l.look("11111111-2222-3333-4444-555555555555").fails(503, "IDEMPOTENCY_STORE_UNAVAILABLE", httpedge.SameKey)
		same(t, "waited", time.Since(start), 5*time.Second)
	})
}

func TestACallerWhoHasGoneIsNoFaultOfTheStore(t *testing.T) {
	t.Parallel()
	ctx, hangUp := context.WithCancel(t.Context())
	l := newLong(t, httpedge.Config{}, unreadable{memstore.New(), func(ctx context.Context) error { hangUp(); <-ctx.Done(); return ctx.Err() }})
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { l.mux.ServeHTTP(w, r.WithContext(ctx)) })
	do(t, h, "GET", "/v1/operations/11111111-2222-3333-4444-555555555555", "").fails(503, "CANCELED", httpedge.SameKey)
	same(t, "log", l.log.String(), "")
}

func TestARouteOfOperationsThatCannotWorkIsRefusedAtStartUp(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{})
	ok := func(context.Context, bus.Invocation) error { return nil }
	for name, tt := range map[string]struct {
		edge    *httpedge.Edge
		store   idempotency.Store
		pattern string
		guards  []bus.Guard
		want    string
	}{
		"no edge":      {nil, g.mem, operationsRoute, nil, "the edge is nil"},
		"no store":     {g.edge, nil, operationsRoute, nil, "the store is nil"},
		"no path":      {g.edge, g.mem, "", nil, "has no path"},
		"no parameter": {g.edge, g.mem, "GET /v1/operations", nil, "no parameter"},
		"the rest":     {g.edge, g.mem, "GET /v1/operations/{id...}", nil, "no parameter"},
		"POST":         {g.edge, g.mem, "POST /v1/operations/{id}", nil, "read with GET, and not with POST"},
		"a nil guard":  {g.edge, g.mem, operationsRoute, []bus.Guard{ok, nil}, "guard 1 is nil"},
	} {
		h, err := httpedge.Operations(tt.edge, tt.store, tt.pattern, tt.guards)
		if h != nil || err == nil || !strings.Contains(err.Error(), tt.want) || !strings.HasPrefix(err.Error(), "httpedge: ") {
			t.Errorf("%s: %v, %v", name, h, err)
		}
	}
	_, err := httpedge.Operations(nil, nil, "POST /x", []bus.Guard{nil})
	for _, want := range []string{"edge is nil", "store is nil", "no parameter", "with GET", "guard 0"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in %v", want, err)
		}
	}
	// The tenant of a path stands before the id.
	if _, err := httpedge.Operations(g.edge, g.mem, "GET /{tenant}/operations/{id}", nil); err != nil {
		t.Error(err)
	}
}

func TestADoneCommandIsNotAnsweredLikeOneThatIsAtWork(t *testing.T) {
	t.Parallel()
	l := newLong(t, httpedge.Config{}, memstore.New())
	if _, err := httpedge.Command(l.edge, l.bus, "POST /x", httpedge.Options[ship, parcel]{Status: 202}); err == nil || !strings.Contains(err.Error(), "Status is 202") {
		t.Errorf("got %v", err)
	}
	if _, err := httpedge.Command(l.edge, l.bus, "POST /x", httpedge.Options[charge, parcel]{Status: 202}); err != nil {
		t.Error(err) // its duplicates get 409
	}
}

func TestOperationsFitEveryRouter(t *testing.T) {
	t.Parallel()
	for name, mount := range map[string]func(at func(pattern string) http.Handler) http.Handler{
		"net/http": func(at func(string) http.Handler) http.Handler {
			mux := http.NewServeMux()
			mux.Handle("GET /{tenant}/operations/{id}", at("GET /{tenant}/operations/{id}"))
			return mux
		},
		"chi": func(at func(string) http.Handler) http.Handler {
			mux := chi.NewRouter()
			mux.Method("GET", "/{tenant}/operations/{id:[0-9a-f-]{36}}", at("/{tenant}/operations/{id:[0-9a-f-]{36}}"))
			return mux
		},
		"echo": func(at func(string) http.Handler) http.Handler {
			mux := echo.New()
			mux.GET("/:tenant/operations/:id", echo.WrapHandler(at("/:tenant/operations/:id")))
			return mux
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mem := memstore.New()
			l := newLong(t, httpedge.Config{}, mem)
			l.do("POST", "/v1/ship", cart, k1).ok(201, "false")
			s := server(t, mount(func(pattern string) http.Handler {
				h, err := httpedge.Operations(l.edge, mem, pattern, nil)
				if err != nil {
					t.Fatal(err)
				}
				return h
			}))
			res := raw(t, s, "GET", "/north/operations/"+l.theOperation(mem), "", "")
			same(t, "state", res.operation(200).State, idempotency.OperationCompleted)
		})
	}
}

// keysOfEveryKind gives keys that begin with a time, and others. They are the same in every run.
func keysOfEveryKind() map[string]string {
	src := rand.New(rand.NewPCG(1, 2))
	keys := map[string]string{"plain": "order-12345", "hex": "deadbeefcafe0123456789abcdef"}
	const ulid = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
	for i := range 40 {
		var b [16]byte
		for j := range b {
			b[j] = byte(src.Uint32())
		}
		b[0], b[1], b[2] = 0x01, 0x99, 0x12 // the time of one day
		b[6], b[8] = b[6]&0x0f|0x70, b[8]&0x3f|0x80
		keys[fmt.Sprint("UUIDv7 ", i)] = uuid.UUID(b).String()
		keys[fmt.Sprint("UUIDv7 in capitals ", i)] = strings.ToUpper(uuid.UUID(b).String())
		u := []byte("01J8")
		for range 22 {
			u = append(u, ulid[src.IntN(len(ulid))])
		}
		keys[fmt.Sprint("ULID ", i)] = string(u)
	}
	return keys
}

// shared is the longest run of hex digits that both have.
func shared(a, b string) (longest string) {
	plain := func(s string) string { return strings.ToLower(strings.ReplaceAll(s, "-", "")) }
	a, b = plain(a), plain(b)
	for i := range a {
		for j := i + len(longest) + 1; j <= len(a); j++ {
			if run := a[i:j]; strings.Contains(b, run) && strings.Trim(run, "0123456789abcdef") == "" {
				longest = run
			}
		}
	}
	return longest
}

func TestD3_TheIdOfAnOperationDoesNotShowTheKey_see1(t *testing.T) {
	t.Parallel()
	if got := shared("0199-12ab-xyz", "7-0199-12AB-0"); got != "019912ab" {
		t.Fatalf("the test's own eyes are bad: %q", got)
	}
	ids := make(map[string]string)
	for name, k := range keysOfEveryKind() {
		mem := memstore.New()
		l := newLong(t, httpedge.Config{}, mem)
		finish := l.running("/v1/ship", "Idempotency-Key: "+k)
		res := l.do("POST", "/v1/ship", cart, "Idempotency-Key: "+k).ok(202, "false")
		id := res.operation(202).OperationID
		finish().ok(201, "false")
		if run := shared(id, k); len(run) >= 6 {
			t.Errorf("%s: the id %s of the key %s has %q in common with it", name, id, k, run)
		}
		if strings.Contains(res.body, k) || strings.Contains(res.header.Get("Location"), k) {
			t.Errorf("%s: the key is in the answer: %s", name, res.body)
		}
		raw, err := hex.DecodeString(strings.ReplaceAll(id, "-", ""))
		if record := mem.Records()[0].Scope.ID(); err != nil || bytes.Equal(raw[:6], record[:6]) {
			t.Errorf("%s: the id %s begins like the record's, which has the key's time", name, id)
		}
		if other, twice := ids[id[:8]]; twice {
			t.Errorf("%s and %s begin alike, as their keys do", name, other)
		}
		ids[id[:8]] = name
	}
	same(t, "keys", len(ids), 122)
}
