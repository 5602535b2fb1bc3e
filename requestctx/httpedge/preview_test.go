package httpedge_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/validation"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
	"github.com/tekil-go/tekil/requestctx/httpedge"
)

// verdict is what a check of the usual order answers.
type verdict struct {
	RequestID string         `json:"request_id"`
	Valid     bool           `json:"valid"`
	Preview   map[string]any `json:"preview"`
}

// into reads the body of a reply.
func (r *reply) into(v any) {
	r.t.Helper()
	if err := json.Unmarshal([]byte(r.body), v); err != nil {
		r.t.Fatalf("%v: %s", err, r.body)
	}
}

// previewed is a rig with a check that has a preview.
func previewed(t testing.TB, config httpedge.Config, preview func(context.Context, place) (any, error), permit ...bus.Guard) *rig {
	t.Helper()
	g := newRig(t, setup{config: config, permit: permit}).orders()
	h, err := httpedge.Check(g.edge, g.bus, "POST /v1/orders/test", httpedge.Options[place, placed]{Preview: preview})
	if err != nil {
		t.Fatal(err)
	}
	g.mux.Handle("POST /v1/orders/test", h)
	return g
}

// untouched fails the test if anything was claimed, read or recorded.
func (g *rig) untouched() {
	g.t.Helper()
	g.want(0, 0, 0)
	same(g.t, "reads of the store", g.store.reads.Load(), 0)
}

func TestH22_APreviewSaysWhatWouldHappenAndClaimsNothing(t *testing.T) {
	t.Parallel()
	var ids []string
	g := previewed(t, httpedge.Config{}, func(ctx context.Context, c place) (any, error) {
		req := requestctx.From(ctx)
		ids = append(ids, req.ID())
		if !req.Key().IsZero() {
			return nil, errors.New("the key is read")
		}
		return map[string]any{"total": c.Amount, "cart": c.CartID}, nil
	})
	for range 2 {
		res := g.do("POST", "/v1/orders/test", usual, k1)
		var v verdict
		same(t, "status", res.status, 200)
		res.into(&v)
		same(t, "verdict", v, verdict{RequestID: res.id(), Valid: true, Preview: map[string]any{"total": 4990.0, "cart": "c-1"}})
		same(t, "the preview's request", ids[len(ids)-1], res.id())
		same(t, "Cache-Control", res.header.Get("Cache-Control"), "no-store")
		res.without("Idempotency-Key", "Idempotency-Replayed", "Idempotency-Original-Request-ID", "Location")
	}
	g.untouched()
	g.post(k1).ok(201, "false") // the key is not spent
	reads := g.store.reads.Load()
	same(t, "status when the key is spent", g.do("POST", "/v1/orders/test", usual, k1).status, 200)
	same(t, "reads of the store by that", g.store.reads.Load()-reads, 0)
	g.want(1, 1, 1)
}

func TestH22_ACommandThatIsNotLetThroughIsNeverPreviewed(t *testing.T) {
	t.Parallel()
	asked := 0
	g := previewed(t, authenticated(), func(context.Context, place) (any, error) { asked++; return nil, nil },
		func(ctx context.Context, _ bus.Invocation) error {
			if requestctx.From(ctx).Scope().Client == "guest" {
				return errForbidden
			}
			return nil
		})
	ok := as("ayse.1", "north")
	g.do("POST", "/v1/orders/test", `{"cart_id":"","amount":0}`, ok...).fails(400, "VALIDATION_FAILED", httpedge.SameKey)
	g.do("POST", "/v1/orders/test", "{", ok...).fails(400, "MALFORMED_REQUEST", httpedge.SameKey)
	g.do("POST", "/v1/orders/test", usual, as("guest.1", "north")...).fails(403, "FORBIDDEN", httpedge.SameKey)
	g.do("POST", "/v1/orders/test", usual, as("ayse.1", "")...).fails(403, "TENANT_UNRESOLVED", httpedge.SameKey)
	g.do("POST", "/v1/orders/test", usual, k1).fails(401, "UNAUTHENTICATED", httpedge.SameKey)
	g.do("POST", "/v1/orders/test", usual, append(ok, "Content-Type: text/plain")...).fails(415, "UNSUPPORTED_MEDIA_TYPE", httpedge.SameKey)
	same(t, "times asked", asked, 0)
	res := g.do("POST", "/v1/orders/test", usual, ok...)
	same(t, "status", res.status, 200)
	same(t, "times asked", asked, 1)
	same(t, "that nothing is said of nothing", strings.Contains(res.body, "preview"), false)
	g.untouched()
}

func TestAPreviewThatFailsIsAProblem(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		preview func() (any, error)
		status  int
		code    string
		retry   httpedge.Retry
		level   string
	}{
		"a final refusal":    {func() (any, error) { return nil, idempotency.Final(coded{"OUT_OF_STOCK", "no more of it"}) }, 422, "OUT_OF_STOCK", httpedge.Never, "INFO"},
		"one with a status":  {func() (any, error) { return nil, idempotency.Final(coded{"SOLD", "no more of it"}) }, 409, "SOLD", httpedge.Never, "INFO"},
		"a code":             {func() (any, error) { return nil, errForbidden }, 403, "FORBIDDEN", httpedge.SameKey, "INFO"},
		"a field":            {func() (any, error) { return nil, validation.Field("cart_id", "open", "is closed") }, 400, "VALIDATION_FAILED", httpedge.SameKey, "INFO"},
		"an unknown error":   {func() (any, error) { return nil, errors.New("card 4111111111111111") }, 500, "INTERNAL", httpedge.SameKey, "ERROR"},
		"the end of time":    {func() (any, error) { return nil, context.DeadlineExceeded }, 503, "DEADLINE_EXCEEDED", httpedge.SameKey, "ERROR"},
		"a panic":            {func() (any, error) { panic("card 4111111111111111") }, 500, "INTERNAL", httpedge.SameKey, "ERROR"},
		"nothing to encode":  {func() (any, error) { return make(chan int), nil }, 500, "INTERNAL", httpedge.SameKey, "ERROR"},
		"an error and words": {func() (any, error) { return "card 4111111111111111", errForbidden }, 403, "FORBIDDEN", httpedge.SameKey, "INFO"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := previewed(t, httpedge.Config{Statuses: map[string]int{"FORBIDDEN": 403, "SOLD": 409}}, func(context.Context, place) (any, error) { return tt.preview() })
			res := g.do("POST", "/v1/orders/test", usual, k1)
			res.fails(tt.status, tt.code, tt.retry)
			res.without("Idempotency-Key", "Idempotency-Replayed", "Idempotency-Original-Request-ID")
			log := g.log.String()
			if strings.Contains(res.body+log, "41111111") || strings.Count(log, "\n") != 1 || !strings.Contains(log, `"level":"`+tt.level+`"`) {
				t.Errorf("body %s, log %s", res.body, log)
			}
			g.untouched()
			g.post(k1).ok(201, "false")
		})
	}
}

func TestAPreviewSeesTheNormalFormAndTheTenantOfTheCommand(t *testing.T) {
	t.Parallel()
	s := newTenants(t, httpedge.Config{Envelope: envelope, Codecs: formats()})
	h, err := httpedge.Check(s.edge, s.bus, "POST /v4/invoices/test", httpedge.Options[invoice, placed]{
		Tenant: s.of,
		Preview: func(ctx context.Context, i invoice) (any, error) {
			return requestctx.From(ctx).Scope().Tenant + " " + i.Company, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	s.mux.Handle("POST /v4/invoices/test", h)
	res := s.do("POST", "/v4/invoices/test", `{"company":" north","unit":"a","number":"7","amount":5}`, k1)
	data, _ := res.within(200)["data"].(map[string]any)
	same(t, "data", data, map[string]any{"request_id": res.id(), "valid": true, "preview": "NORTH/A NORTH"})
	other := s.do("POST", "/v4/invoices/test", "company=north\nunit=a\nnumber=\"7\"\namount=5", asKV, "Accept: "+taggedType)
	same(t, "in another format", fmt.Sprint(other.logical()["data"]), fmt.Sprintf("map[preview:NORTH/A NORTH request_id:%s valid:true]", other.id()))
	same(t, "reads of the store", s.store.reads.Load(), 0)
	s.want(0, 0, 0)
}

func TestAPreviewSeesTheNormalFormAlsoWhereItsMethodHasAPointer(t *testing.T) {
	t.Parallel()
	s := newTenants(t, httpedge.Config{})
	h, err := httpedge.Check(s.edge, s.bus, "POST /v1/notes/test", httpedge.Options[note, placed]{
		Preview: func(_ context.Context, n note) (any, error) { return map[string]any{"company": n.Company}, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	s.mux.Handle("POST /v1/notes/test", h)
	var v verdict
	s.do("POST", "/v1/notes/test", `{"company":"north"}`).into(&v)
	same(t, "preview", v.Preview, map[string]any{"company": "NORTH"})
}

func TestAPreviewIsForChecksAlone(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{})
	h, err := httpedge.Command(g.edge, g.bus, "POST /v1/orders", httpedge.Options[place, placed]{
		Preview: func(context.Context, place) (any, error) { return nil, nil },
	})
	if h != nil || err == nil || !strings.Contains(err.Error(), "Preview is for a route made by Check") {
		t.Errorf("got %v, %v", h, err)
	}
	check, err := httpedge.Check(g.edge, g.bus, "POST /v1/orders/{id}/cancel/test", cancelled)
	if err != nil {
		t.Fatal(err)
	}
	g.mux.Handle("POST /v1/orders/{id}/cancel/test", check)
	var v verdict
	g.do("POST", "/v1/orders/1/cancel/test", "", "Content-Type:").into(&v)
	same(t, "verdict without a body", v.Valid, true)
	g.do("POST", "/v1/orders/1/cancel/test", usual).fails(400, "MALFORMED_REQUEST", httpedge.SameKey)
	same(t, "status of GET", g.do("GET", "/v1/orders/1/cancel/test", "").status, http.StatusMethodNotAllowed)
	g.untouched()
}
