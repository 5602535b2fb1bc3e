package main

import (
	"context"
	"encoding/json"
	"log/slog"
	"mime"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
	"github.com/tekil-go/tekil/requestctx/httpedge"
)

// bodyLimit is how long a body may be: 20 000 lines have room in it.
const bodyLimit = 16 << 20

// envelope is the body of every answer.
type envelope struct {
	RequestID string       `json:"request_id"` // of this attempt, on a replay as well (rule http-2)
	Success   bool         `json:"success"`
	Code      string       `json:"code"`
	Message   string       `json:"message"`
	Data      any          `json:"data"`
	Errors    []fieldError `json:"errors" xml:"error"`
}

// fieldError says what is wrong with a field of the request.
type fieldError struct {
	Field   string `json:"field"`
	Code    string `json:"code"`
	Message string `json:"message"`
}

// failure is the data of an answer that is no success.
type failure struct {
	// Retry says what may be done with the request and its key: same-key, new-key or none.
	Retry httpedge.Retry `json:"retry"`
	// OperationID names what is in progress.
	OperationID string `json:"operation_id,omitempty"`
	// Projects says why none was processed.
	Projects []ProjectOutcome `json:"projects,omitempty" xml:"project"`
}

// enclose makes the body of an answer.
func enclose(req *requestctx.Request, r httpedge.Reply) any {
	e := envelope{RequestID: req.ID(), Errors: []fieldError{}}
	if p := r.Problem; p != nil {
		data := failure{Retry: p.Retry, OperationID: p.OperationID}
		if len(p.Data) > 0 {
			_ = json.Unmarshal(p.Data, &data) // of a refusal that this program has stored
		}
		e.Code, e.Message, e.Data = p.Code, p.Detail, data
		if e.Message == "" {
			e.Message = p.Title
		}
		for _, f := range p.Errors {
			e.Errors = append(e.Errors, fieldError{f.Path, f.Rule, f.Message})
		}
		return e
	}
	e.Success, e.Data = true, r.Result
	switch result := r.Result.(type) {
	case Imported:
		e.Code, e.Message = "WORK_ORDERS_PROCESSED", "All projects were processed."
		if result.partly() {
			e.Code, e.Message = "WORK_ORDERS_PARTLY_PROCESSED", "Some projects were refused, and the others were processed."
		}
	case httpedge.Verdict:
		preview, _ := result.Preview.(Imported)
		e.Data = preview
		switch {
		case preview.Created+preview.Existing == 0:
			e.Success, e.Code, e.Message = false, "NO_PROJECT_WOULD_BE_PROCESSED", "The request is valid, and no project of it would be processed."
		case preview.partly():
			e.Code, e.Message = "WORK_ORDERS_WOULD_BE_PARTLY_PROCESSED", "The request is valid. Some projects would be refused, and the others processed."
		default:
			e.Code, e.Message = "WORK_ORDERS_WOULD_BE_PROCESSED", "The request is valid, and all projects would be processed."
		}
	default:
		e.Code, e.Message = "OK", "OK"
	}
	return e
}

// partly reports whether a project was refused.
func (i Imported) partly() bool {
	for _, p := range i.Projects {
		if p.Status == refused {
			return true
		}
	}
	return false
}

// The routes.
const (
	importRoute = "POST " + importPath
	testRoute   = "POST " + testPath
	listRoute   = "GET /api/v1/work-orders"
)

// importing is the route of the command in the form that the bus serves.
func importing[C interface {
	Import | ImportAsNew
	bus.Command[Imported]
}](edge *httpedge.Edge, b *bus.Bus, o httpedge.Options[C, Imported]) (http.Handler, error) {
	return httpedge.Command(edge, b, importRoute, o)
}

// reading says how a request of an import is read. The tenant is whom its codes name.
func reading[C Import | ImportAsNew](kept store) httpedge.Options[C, Imported] {
	return httpedge.Options[C, Imported]{
		Fill: func(r *http.Request, _ *C) error {
			requestctx.From(r.Context()).Add(formatAttribute, formatOf(r.Header)) // for the archive and the log line
			return nil
		},
		Tenant: func(r *http.Request, cmd C) (string, error) {
			tenant, _, err := kept.resolve(r.Context(), Import(cmd).CompanyCode, Import(cmd).OrganizationCode)
			return tenant, err
		},
	}
}

// formatOf is what a body comes as, which has been read by then.
func formatOf(h http.Header) string {
	if mediaType, _, _ := mime.ParseMediaType(h.Get("Content-Type")); strings.HasSuffix(mediaType, "xml") {
		return "xml"
	}
	return "json"
}

// newServer makes the service's routes.
func newServer(kept store, records idempotency.Store, logger *zap.Logger, s settings, observers ...bus.Observer) (http.Handler, error) {
	b, err := newBus(kept, records, logger, s, observers...)
	if err != nil {
		return nil, err
	}
	cfg := httpedge.Config{
		Anonymous:      s.clients == nil,
		BodyLimit:      bodyLimit,
		Codecs:         []httpedge.Codec{httpedge.JSON(), httpedge.XML()},
		Envelope:       enclose,
		HashBodies:     true,
		TrustedProxies: s.proxies,
		DescribedBy:    "/",
		Statuses:       map[string]int{noProjectProcessed{}.Code(): http.StatusConflict},
		Log:            slog.New(slog.NewJSONHandler(os.Stderr, nil)),
	}
	cfg.Statuses[errMethod.code], cfg.Statuses[errRoute.code] = http.StatusMethodNotAllowed, http.StatusNotFound
	open := cfg // the route that only says what would happen is for everybody
	open.Anonymous, open.HashBodies = true, false
	if s.clients != nil {
		cfg.Principal = s.clients.authenticate
	}
	edge, err := httpedge.New(cfg)
	if err != nil {
		return nil, err
	}
	public, err := httpedge.New(open)
	if err != nil {
		return nil, err
	}

	var live, test http.Handler
	if service := (inbound{kept: kept}); s.enabled {
		o := reading[Import](kept)
		if live, err = importing(edge, b, o); err != nil {
			return nil, err
		}
		o.Preview = func(ctx context.Context, cmd Import) (any, error) { return service.preview(ctx, cmd) }
		test, err = httpedge.Check(public, b, testRoute, o)
	} else {
		o := reading[ImportAsNew](kept)
		if live, err = importing(edge, b, o); err != nil {
			return nil, err
		}
		o.Preview = func(ctx context.Context, cmd ImportAsNew) (any, error) { return service.preview(ctx, Import(cmd)) }
		test, err = httpedge.Check(public, b, testRoute, o)
	}
	if err != nil {
		return nil, err
	}
	list, err := httpedge.Query(edge, b, listRoute, httpedge.QueryOptions[ListWorkOrders, WorkOrderPage]{Parse: parseList})
	if err != nil {
		return nil, err
	}

	mux := http.NewServeMux()
	mux.Handle(importRoute, live)
	mux.Handle(testRoute, test)
	mux.Handle(listRoute, list)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		status := "ok"
		ctx, cancel := context.WithTimeout(r.Context(), 2*time.Second)
		defer cancel()
		if err := kept.ping(ctx); err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			status = "the database does not answer"
		}
		_ = json.NewEncoder(w).Encode(map[string]string{"status": status})
	})
	mux.Handle("GET /openapi.yaml", document("application/yaml", openAPI))
	mux.Handle("GET /{$}", document("text/html; charset=utf-8", contractPage))
	return enclosing(mux, public, cfg.Log), nil
}

// What a path of the API that is no route, or a method that it does not have, is answered with.
var (
	errMethod = &codeError{code: "METHOD_NOT_ALLOWED"}
	errRoute  = &codeError{code: "ROUTE_NOT_FOUND"}
)

// enclosing answers in the envelope where the router would answer a request to the API with a text.
func enclosing(mux *http.ServeMux, edge *httpedge.Edge, log *slog.Logger) http.Handler {
	refuse := func(err *codeError) http.Handler {
		return edge.Middleware("")(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			log.Info("workorders: no such route", "request_id", requestctx.From(r.Context()).ID(), "code", err.code)
			edge.WriteProblem(w, r, err)
		}))
	}
	method, route := refuse(errMethod), refuse(errRoute)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		router, pattern := mux.Handler(r)
		if pattern != "" || !strings.HasPrefix(r.URL.Path, "/api/") {
			mux.ServeHTTP(w, r)
			return
		}
		said := &refusal{header: http.Header{}}
		router.ServeHTTP(said, r)
		if allow := said.header.Get("Allow"); allow != "" {
			w.Header().Set("Allow", allow)
			method.ServeHTTP(w, r)
			return
		}
		route.ServeHTTP(w, r)
	})
}

// refusal is an answer of the router that nobody gets.
type refusal struct{ header http.Header }

func (r *refusal) Header() http.Header         { return r.header }
func (r *refusal) Write(p []byte) (int, error) { return len(p), nil }
func (r *refusal) WriteHeader(int)             {}

func parseList(r *http.Request) (ListWorkOrders, error) {
	values := r.URL.Query()
	number := func(name string, other int64) int64 {
		if !values.Has(name) {
			return other
		}
		n, err := strconv.ParseInt(values.Get(name), 10, 64)
		if err != nil {
			return -1 // the validation says what is allowed
		}
		return n
	}
	return ListWorkOrders{
		CompanyCode: values.Get("company_code"), OrganizationCode: values.Get("organization_code"),
		Limit: int(number("limit", 20)), Before: number("before", 0),
	}, nil
}
