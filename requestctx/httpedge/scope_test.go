package httpedge_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
	"github.com/tekil-go/tekil/requestctx/httpedge"
)

const conflict = "IDEMPOTENCY_KEY_CONFLICT"

// authenticated is an edge whose callers have names and tenants.
func authenticated() httpedge.Config {
	return httpedge.Config{
		Principal: bearer,
		Tenant: func(r *http.Request) (string, error) {
			switch tenant := r.Header.Get("X-Tenant"); tenant {
			case "broken":
				return "", errors.New("no such tenant in database 10.0.0.7")
			default:
				return tenant, nil
			}
		},
		Statuses: map[string]int{"FORBIDDEN": http.StatusForbidden},
	}
}

func as(user, tenant string) []string {
	return []string{k1, "Authorization: Bearer " + user, "X-Tenant: " + tenant}
}

func TestS01_TheSameKeyOfAnotherTenantIsIndependent(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{config: authenticated()}).orders()
	g.post(as("ayse.1", "north")...).ok(201, "false")
	g.post(as("ayse.1", "south")...).ok(201, "false")
	g.post(as("ayse.1", "north")...).ok(201, "true")
	g.want(2, 2, 2)
}

func TestS02_TheSameKeyOfAnotherClientIsIndependent(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{config: authenticated()}).orders()
	g.post(as("ayse.1", "north")...).ok(201, "false")
	g.post(as("mehmet.1", "north")...).ok(201, "false")
	g.want(2, 2, 2)
}

func TestS03_AnonymousCallersShareOneSpaceAndOnlyWhereTheApplicationSaysSo(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{}).orders()
	g.post(k1).ok(201, "false")
	g.post(k1, "Authorization: Bearer ayse.1").ok(201, "true")
	same(t, "client", g.mem.Records()[0].Scope.Client, requestctx.Anonymous)
	g.want(1, 1, 1)

	mixed := newRig(t, setup{config: httpedge.Config{Principal: bearer, Anonymous: true}}).orders()
	mixed.post(k1).ok(201, "false")
	mixed.post(k1, "Authorization: Bearer ayse.1").ok(201, "false")
	mixed.want(2, 2, 2)

	strict := newRig(t, setup{config: httpedge.Config{Principal: bearer}}).orders()
	for _, token := range []string{"", "anonymous.1", ".1", "a\x00b.1", "\xff\xfe.1"} {
		headers := []string{k1}
		if token != "" {
			headers = append(headers, "Authorization: Bearer "+token)
		}
		res := strict.post(headers...)
		res.fails(401, "UNAUTHENTICATED", httpedge.SameKey)
		same(t, "challenge", res.header.Get("WWW-Authenticate"), "Bearer")
	}
	strict.want(0, 0, 0)
}

func TestS04_ARequestWhoseTenantIsNotKnownDoesNotReachThePipeline(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{config: authenticated()}).orders()
	for _, tenant := range []string{"", "broken", "a\x00b"} {
		res := g.post(as("ayse.1", tenant)...)
		res.fails(403, "TENANT_UNRESOLVED", httpedge.SameKey)
		if strings.Contains(res.body+g.log.String(), "10.0.0.7") {
			t.Errorf("the answer or the log holds the text of an unknown error: %s %s", res.body, g.log)
		}
	}
	g.want(0, 0, 0)
	same(t, "dispatches", len(g.seen.all()), 0)
	same(t, "reads of the store", g.store.reads.Load(), 0)
}

func TestS05_TheSameKeyForAnotherCommandIsIndependent(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{}).orders()
	route(g, "POST /v1/payments", httpedge.Options[pay, placed]{Status: 201})
	g.post(k1).ok(201, "false")
	g.do("POST", "/v1/payments", usual, k1).ok(201, "false")
	g.want(2, 2, 2)
}

func TestS06_OneCommandThroughTwoRoutesIsTwoOperations(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{}).orders()
	route(g, "POST /v2/orders", created)
	g.post(k1).ok(201, "false")
	g.do("POST", "/v2/orders", usual, k1).ok(201, "false")
	g.want(2, 2, 2)
	for _, rec := range g.mem.Records() {
		if op := rec.Scope.Operation; op != "POST /v1/orders orders.place" && op != "POST /v2/orders orders.place" {
			t.Errorf("operation %q", op)
		}
	}
}

// cancelled takes the order from the path. It is no part of the command's fingerprint, so that only the resource tells two
// orders apart.
var cancelled = httpedge.Options[cancel, bus.None]{
	EmptyBody: true,
	Fill:      func(r *http.Request, c *cancel) error { c.OrderID = r.PathValue("id"); return nil },
}

func TestS07_OneKeyForTwoResourcesOfARouteIsAConflict(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{})
	route(g, "POST /v1/orders/{id}/cancel", cancelled)
	g.do("POST", "/v1/orders/1/cancel", "", k1).ok(204, "false")
	p := g.do("POST", "/v1/orders/2/cancel", "", k1).fails(409, conflict, httpedge.Never)
	same(t, "detail", p.Detail, "The Idempotency-Key has already been used with a different request payload.")
	g.do("POST", "/v1/orders/1/cancel", "", k1).ok(204, "true")
	same(t, "rows", g.mem.Rows(), []string{"1"})
	g.want(1, 1, 1)
}

func TestS08_AnotherMethodOnTheSamePathIsIndependent(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{})
	route(g, "/v1/orders", created)
	g.post(k1).ok(201, "false")
	g.do("PUT", "/v1/orders", usual, k1).ok(201, "false")
	g.do("PUT", "/v1/orders", usual, k1).ok(201, "true")
	g.want(2, 2, 2)
}

func TestS09_ARenewedTokenOfTheSamePrincipalReplays(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{config: authenticated()}).orders()
	g.post(as("ayse.1", "north")...).ok(201, "false")
	g.post(as("ayse.2", "north")...).ok(201, "true")
	g.want(1, 1, 1)
}

func TestS10_APermissionThatIsWithdrawnEndsReplays(t *testing.T) {
	t.Parallel()
	allowed := true
	guard := func(context.Context, bus.Invocation) error {
		if allowed {
			return nil
		}
		return errForbidden
	}
	g := newRig(t, setup{config: authenticated(), permit: []bus.Guard{guard}}).orders()
	g.post(as("ayse.1", "north")...).ok(201, "false")
	allowed = false
	res := g.post(as("ayse.1", "north")...)
	p := res.fails(403, "FORBIDDEN", httpedge.SameKey)
	same(t, "detail", p.Detail, "")
	res.without("Idempotency-Replayed", "Idempotency-Original-Request-ID")
	for user, want := range map[string]int{"broken.1": 401, "locked.1": 403} {
		res := g.post(as(user, "north")...)
		same(t, user, res.status, want)
		res.problem()
		res.without("Idempotency-Replayed", "Idempotency-Original-Request-ID")
		same(t, "the echo", res.header.Get("Idempotency-Key"), key)
		if strings.Contains(res.body+g.log.String(), "s3cret") {
			t.Errorf("the answer or the log holds the text of an unknown error: %s %s", res.body, g.log)
		}
	}
	allowed = true
	g.post(as("ayse.1", "north")...).ok(201, "true")
	g.want(1, 1, 1)
}

func TestS11_SeparatorsInATenantDoNotCollide(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{config: authenticated()}).orders()
	pairs := [][2]string{{"a", "b/c"}, {"a/b", "c"}, {"a:b", "c"}, {"a", "b:c"}, {"a b", "c"}, {"a", "b c"}}
	for _, p := range pairs {
		g.post(as(p[0], p[1])...).ok(201, "false")
	}
	g.want(int64(len(pairs)), len(pairs), len(pairs))
}

func TestS12_TheApplicationDecidesWhoseKeyItIsWhenSupportActsForSomebody(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{config: httpedge.Config{Principal: func(r *http.Request) (string, error) { return r.Header.Get("X-Acting"), nil }}}).orders()
	g.post(k1, "X-Acting: support-7", "X-On-Behalf-Of: ayse").ok(201, "false")
	g.post(k1, "X-Acting: support-7", "X-On-Behalf-Of: mehmet").ok(201, "true")
	g.post(k1, "X-Acting: ayse").ok(201, "false")
	g.want(2, 2, 2)
}

func TestBR20_AnotherRouteResourceOrMethodIsNeverAnsweredWithTheFirstOutcome(t *testing.T) {
	t.Parallel()
	// A lax router, which gives every path to the handler.
	g := newRig(t, setup{})
	h := route(g, "POST /v1/orders/{id}/cancel", cancelled)
	lax := func(path string) *reply { return do(t, h, "POST", path, "", k1) }
	lax("/v1/orders/1/cancel").ok(204, "false")
	lax("/v1/orders/1/cancel").ok(204, "true")
	lax("/v1/orders/1/cancel?reason=other").ok(204, "true") // the query string is no part of the resource
	lax("/v1/orders/%31/cancel").ok(204, "true")            // another spelling of the same path
	for name, path := range map[string]string{
		"another id":            "/v1/orders/2/cancel",
		"upper case":            "/V1/Orders/1/Cancel",
		"trailing slash":        "/v1/orders/1/cancel/",
		"double slash":          "/v1//orders/1/cancel",
		"an escaped slash":      "/v1/orders/1%2Fcancel",
		"an id with a slash":    "/v1/orders/1%2F2/cancel",
		"an id in another case": "/v1/orders/A/cancel",
		"an empty id":           "/v1/orders//cancel",
	} {
		if p := lax(path).problem(); p.Code != conflict {
			t.Errorf("%s: %s", name, p.Code)
		}
	}
	do(t, h, "PUT", "/v1/orders/1/cancel", "", k1).fails(405, "METHOD_NOT_ALLOWED", httpedge.SameKey)
	g.want(1, 1, 1)
}
