package httpedge_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tekil-go/tekil/behaviors/validation"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
	"github.com/tekil-go/tekil/requestctx/httpedge"
)

// invoice says in its body whose it is, in whatever letters.
type invoice struct {
	Company string `json:"company" validate:"required"`
	Unit    string `json:"unit"    validate:"required"`
	Number  string `json:"number"  validate:"required"`
	Amount  int64  `json:"amount"  validate:"gt=0"`
}

func (invoice) CommandName() bus.Name[placed] { return "invoices.enter" }
func (invoice) Idempotent()                   {}
func (i invoice) Normalize() invoice {
	i.Company, i.Unit = strings.ToUpper(strings.TrimSpace(i.Company)), strings.ToUpper(strings.TrimSpace(i.Unit))
	return i
}

// note is the same without the mark, and its Normalize has a pointer.
type note struct {
	Company string `json:"company"`
}

func (note) CommandName() bus.Name[placed] { return "notes.enter" }
func (n *note) Normalize() note            { n.Company = strings.ToUpper(n.Company); return *n }

// tenants knows which codes belong together.
type tenants struct {
	*rig
	asked atomic.Int64
	seen  []invoice // what it was asked with
	err   error
}

func (s *tenants) of(_ *http.Request, i invoice) (string, error) {
	s.asked.Add(1)
	s.seen = append(s.seen, i)
	switch {
	case s.err != nil:
		return "", s.err
	case i.Company == "NORTH" || i.Company == "SOUTH":
		return i.Company + "/" + i.Unit, nil
	case i.Company == "DAMAGED":
		return "a\x00b", nil
	}
	return "", nil
}

// newTenants mounts the command with its tenant in the body, and the check of it.
func newTenants(t testing.TB, config httpedge.Config, permit ...bus.Guard) *tenants {
	t.Helper()
	s := &tenants{rig: newRig(t, setup{config: config})}
	var err error
	s.bus, err = bus.New(
		command(s.rig, permit, func(ctx context.Context, c invoice) (placed, error) {
			scope := requestctx.From(ctx).Scope()
			return placed{OrderID: scope.Tenant + " " + c.Number}, s.mem.Insert(ctx, scope.Tenant+" "+c.Number)
		}),
		command(s.rig, nil, func(ctx context.Context, c note) (placed, error) {
			return placed{OrderID: requestctx.From(ctx).Scope().Tenant + " " + c.Company}, nil
		}),
	)
	if err != nil {
		t.Fatal(err)
	}
	o := httpedge.Options[invoice, placed]{Status: 201, Tenant: s.of}
	route(s.rig, "POST /v1/invoices", o)
	check, err := httpedge.Check(s.edge, s.bus, "POST /v1/invoices/test", o)
	if err != nil {
		t.Fatal(err)
	}
	s.mux.Handle("POST /v1/invoices/test", check)
	return s
}

func (s *tenants) enter(company, unit string, headers ...string) *reply {
	s.t.Helper()
	return s.do("POST", "/v1/invoices", fmt.Sprintf(`{"company":%q,"unit":%q,"number":"7","amount":5}`, company, unit), append(headers, k1)...)
}

func TestS01_TheTenantThatStandsInTheCommandSeparatesKeys(t *testing.T) {
	t.Parallel()
	s := newTenants(t, httpedge.Config{Codecs: formats()})
	s.enter("NORTH", "A").ok(201, "false")
	s.enter("SOUTH", "A").ok(201, "false")
	s.enter("NORTH", "B").ok(201, "false")
	res := s.enter("NORTH", "A").ok(201, "true")
	same(t, "the result", res.logical()["order_id"], any("NORTH/A 7"))
	s.want(3, 3, 3)
	scopes := map[string]bool{}
	for _, rec := range s.mem.Records() {
		scopes[rec.Scope.Tenant] = true
		same(t, "client", rec.Scope.Client, requestctx.Anonymous)
	}
	same(t, "tenants", scopes, map[string]bool{"NORTH/A": true, "SOUTH/A": true, "NORTH/B": true})
	// The same codes in another format are the same tenant.
	s.do("POST", "/v1/invoices", "company=SOUTH\nunit=A\nnumber=\"7\"\namount=5", k1, asKV).ok(201, "true")
	s.do("POST", "/v1/invoices", `{"company":"SOUTH","unit":"A","number":"7","amount":6}`, k1).fails(409, conflict, httpedge.Never)
	s.want(3, 3, 3)
}

func TestS01_TheTenantIsAskedWithTheCommandInItsNormalForm(t *testing.T) {
	t.Parallel()
	s := newTenants(t, httpedge.Config{})
	s.enter("north", " a ").ok(201, "false")
	s.enter("NORTH", "A").ok(201, "true")
	same(t, "asked with", s.seen[0], invoice{Company: "NORTH", Unit: "A", Number: "7", Amount: 5})
	same(t, "times asked", s.asked.Load(), 2)
	s.want(1, 1, 1)
}

func TestS01_TheTenantIsAskedWithTheNormalFormAlsoWhereItsMethodHasAPointer(t *testing.T) {
	t.Parallel()
	s := newTenants(t, httpedge.Config{})
	route(s.rig, "POST /v1/notes", httpedge.Options[note, placed]{
		Tenant: func(_ *http.Request, n note) (string, error) { return n.Company, nil },
		Body:   func(_ *requestctx.Request, p placed) any { return p.OrderID },
	})
	same(t, "tenant and company", s.do("POST", "/v1/notes", `{"company":"north"}`).body, "\"NORTH NORTH\"\n")
}

func TestS01_TheTenantIsAskedAfterFill(t *testing.T) {
	t.Parallel()
	s := newTenants(t, httpedge.Config{})
	route(s.rig, "POST /v1/companies/{company}/invoices", httpedge.Options[invoice, placed]{
		Fill: func(r *http.Request, i *invoice) error {
			if i.Company = r.PathValue("company"); i.Company == "bad" {
				return validation.Field("company", "path", "is bad")
			}
			return nil
		},
		Tenant: s.of,
	})
	body := `{"unit":"A","number":"7","amount":5}`
	s.do("POST", "/v1/companies/south/invoices", body, k1).ok(200, "false")
	same(t, "tenant", s.mem.Records()[0].Scope.Tenant, "SOUTH/A")
	s.do("POST", "/v1/companies/bad/invoices", body, k1).fails(400, "VALIDATION_FAILED", httpedge.SameKey)
	s.do("POST", "/v1/companies/south/invoices", "{", k1).fails(400, "MALFORMED_REQUEST", httpedge.SameKey)
	same(t, "times asked", s.asked.Load(), 1)
}

func TestS04_ATenantThatTheCommandDoesNotGiveSpendsNothing(t *testing.T) {
	t.Parallel()
	gone := errors.New("dial tcp 10.0.0.7:5432: connection refused")
	for name, tt := range map[string]struct {
		err     error
		company string
		status  int
		code    string
		after   string // Retry-After
	}{
		"no such company":             {nil, "WEST", 403, "TENANT_UNRESOLVED", ""},
		"a tenant that no record has": {nil, "DAMAGED", 403, "TENANT_UNRESOLVED", ""},
		"an error of a field":         {validation.Field("company", "known", "is not known"), "NORTH", 400, "VALIDATION_FAILED", ""},
		"errors of fields":            {errors.Join(validation.Field("company", "known", "is not known"), validation.Field("unit", "known", "is not known")), "NORTH", 400, "VALIDATION_FAILED", ""},
		"an error with a status":      {fmt.Errorf("tenant: %w", errForbidden), "NORTH", 403, "FORBIDDEN", ""},
		"an error with another":       {coded{"LOCKED", "company 10.0.0.7"}, "NORTH", 500, "INTERNAL", "2"},
		"the database is away":        {gone, "NORTH", 500, "INTERNAL", "2"},
		"the database is slow":        {fmt.Errorf("10.0.0.7: %w", context.DeadlineExceeded), "NORTH", 503, "DEADLINE_EXCEEDED", "2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newTenants(t, httpedge.Config{Statuses: map[string]int{"FORBIDDEN": 403}})
			s.err = tt.err
			for _, path := range []string{"/v1/invoices", "/v1/invoices/test"} {
				res := s.do("POST", path, `{"company":"`+tt.company+`","unit":"A","number":"7","amount":5}`, k1)
				p := res.fails(tt.status, tt.code, httpedge.SameKey)
				same(t, "Retry-After", res.header.Get("Retry-After"), tt.after)
				res.without("Idempotency-Replayed", "Idempotency-Original-Request-ID")
				if strings.Contains(res.body+s.log.String(), "10.0.0.7") {
					t.Errorf("the answer or the log holds the text of an unknown error: %s %s", res.body, s.log)
				}
				if tt.status == 400 && (len(p.Errors) == 0 || p.Errors[0].Path != "company") {
					t.Errorf("errors %v", p.Errors)
				}
			}
			same(t, "that the log says so", strings.Count(s.log.String(), "\n"), 2)
			same(t, "reads of the store", s.store.reads.Load(), 0)
			s.want(0, 0, 0)
			s.err = nil
			s.enter("NORTH", "A").ok(201, "false")
		})
	}
}

func TestS04_V10_AnInvalidCommandIsToldAllThatIsWrongWithIt(t *testing.T) {
	t.Parallel()
	s := newTenants(t, httpedge.Config{})
	for _, err := range []error{nil, errors.New("no such code"), validation.Field("company", "known", "is not known")} {
		s.err = err
		p := s.do("POST", "/v1/invoices", `{"company":" ","unit":"","number":"","amount":-1}`, k1).fails(400, "VALIDATION_FAILED", httpedge.SameKey)
		var fields []string
		for _, f := range p.Errors {
			fields = append(fields, f.Path+" "+f.Rule)
		}
		same(t, "fields", fields, []string{"company required", "unit required", "number required", "amount gt"})
	}
	s.err = nil
	s.do("POST", "/v1/invoices", `{"company":"NORTH","unit":"","number":"7","amount":5}`, k1).fails(400, "VALIDATION_FAILED", httpedge.SameKey) // and its tenant is known
	same(t, "reads of the store", s.store.reads.Load(), 0)
	s.want(0, 0, 0)
	for _, end := range s.rig.seen.all() { // every rejected attempt is in the pipeline's log
		same(t, "command and code", end.command+" "+end.code, "invoices.enter VALIDATION_FAILED")
	}
	same(t, "dispatches", len(s.rig.seen.all()), 4)
	s.enter("NORTH", "A").ok(201, "false")
}

func TestS04_TheTenantOfTheRequestIsNotAskedWhereThatOfTheCommandIs(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	config := authenticated()
	config.Tenant = func(*http.Request) (string, error) { asked.Add(1); return "of the request", nil }
	s := newTenants(t, config)
	s.enter("NORTH", "A").fails(401, "UNAUTHENTICATED", httpedge.SameKey) // who asks comes first
	same(t, "times the command's was asked", s.asked.Load(), 0)
	token := "Authorization: Bearer ayse.1"
	s.enter("NORTH", "A", token).ok(201, "false")
	same(t, "status of the check", s.do("POST", "/v1/invoices/test", `{"company":"north","unit":"A","number":"7","amount":5}`, token).status, 200)
	same(t, "times the request's was asked", asked.Load(), 0)
	same(t, "scope", fmt.Sprint(s.mem.Records()[0].Scope.Client, " ", s.mem.Records()[0].Scope.Tenant), "ayse NORTH/A")
	same(t, "tenant of the check", s.rig.seen.all()[1].request.Scope().Tenant, "NORTH/A")

	route(s.rig, "POST /v2/invoices", httpedge.Options[invoice, placed]{}) // a route without it asks the request's
	s.do("POST", "/v2/invoices", `{"company":"WEST","unit":"A","number":"7","amount":5}`, k1, token).ok(200, "false")
	same(t, "times the request's was asked", asked.Load(), 1)
}

// What a guard says of a request whose owner is not known yet is no answer to a fault of the database.
func TestS04_APermitThatAsksForTheTenantKnowsIt(t *testing.T) {
	t.Parallel()
	var seen []string
	s := newTenants(t, httpedge.Config{Statuses: map[string]int{"FORBIDDEN": 403}}, func(ctx context.Context, _ bus.Invocation) error {
		tenant := requestctx.From(ctx).Scope().Tenant
		seen = append(seen, tenant)
		if tenant != "NORTH/A" {
			return errForbidden
		}
		return nil
	})
	s.enter("NORTH", "A").ok(201, "false")
	s.enter("SOUTH", "A").fails(403, "FORBIDDEN", httpedge.SameKey)
	same(t, "tenants", seen, []string{"NORTH/A", "SOUTH/A"})
	s.err = errors.New("the database is away")
	s.enter("NORTH", "A").fails(500, "INTERNAL", httpedge.SameKey)
}

func TestAPanicOverATenantIsAProblemThatSpendsNothing(t *testing.T) {
	t.Parallel()
	s := newTenants(t, httpedge.Config{})
	route(s.rig, "POST /v3/invoices", httpedge.Options[invoice, placed]{Tenant: func(*http.Request, invoice) (string, error) { panic("company 4111") }})
	s.do("POST", "/v3/invoices", `{"company":"NORTH","unit":"A","number":"7","amount":5}`, k1).fails(500, "INTERNAL", httpedge.SameKey)
	s.want(0, 0, 0)
	same(t, "that the log holds no value", strings.Contains(s.log.String(), "4111"), false)
}

func TestSetTenantWorksOnNothing(t *testing.T) {
	t.Parallel()
	var none *requestctx.Request
	none.SetTenant("x")
	none.SetBodySHA256("x")
	same(t, "nothing", fmt.Sprint(none.Scope(), none.BodySHA256()), "{ }")
	_, req := requestctx.New(t.Context(), requestctx.Values{Scope: requestctx.Scope{Client: "c", Tenant: "first"}})
	req.SetTenant("second")
	same(t, "scope", req.Scope(), requestctx.Scope{Client: "c", Tenant: "second"})
}
