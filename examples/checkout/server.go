package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"time"

	"go.uber.org/zap"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/registry"
	"github.com/tekil-go/tekil/requestctx"
	"github.com/tekil-go/tekil/requestctx/browser"
	"github.com/tekil-go/tekil/requestctx/httpedge"
)

// options are what a server does besides keeping orders. The zero options are the plain checkout.
type options struct {
	provider    payments // who authorises payments; nil for nobody
	providerURL string   // where, for people
	noKeys      bool     // every request is new
	dropAnswers bool
	demo        bool // the page's switches, and what the server holds

	console   login          // who may look at the records; nobody where it is zero
	observers []bus.Observer // of every bus
}

// newBus is the whole wiring: which function serves which command.
func newBus(kept orders, store idempotency.Store, logger *zap.Logger, o options) (*bus.Bus, registry.Description, error) {
	service := checkout{kept, o.provider}
	cfg := registry.Config{Logger: logger, Store: store, Observers: o.observers}
	if o.demo {
		cfg.Around = []registry.Around{slow}
	}
	reg := registry.New(cfg)
	switch {
	case o.provider == nil:
		registry.Handle(reg, service.place)
	case o.noKeys:
		registry.Handle(reg, service.placeAsNew)
	default:
		registry.Handle(reg, service.placeWithProvider, registry.Reconcile(service.reconcile))
	}
	if o.provider != nil {
		registry.HandleQuery(reg, service.held)
	}
	registry.HandleQuery(reg, service.find)
	registry.HandleQuery(reg, service.list)
	b, err := reg.Build()
	return b, reg.Describe(), err
}

// placedBody is the answer's body: the result, and the id of this attempt, which is not that of the first one on a replay.
type placedBody struct {
	RequestID string `json:"request_id"`
	Placed
}

const placeRoute = "POST /api/v1/checkouts"

// placing is the route of the command in the form that the bus serves.
func placing[C interface {
	Place | PlaceWithProvider | PlaceAsNew
	bus.Command[Placed]
}](edge *httpedge.Edge, b *bus.Bus, route string) (http.Handler, error) {
	return httpedge.Command(edge, b, route, httpedge.Options[C, Placed]{
		Status:   http.StatusCreated,
		Location: func(p Placed) string { return "/api/v1/orders/" + p.OrderID },
		Body:     func(req *requestctx.Request, p Placed) any { return placedBody{req.ID(), p} },
		Fill: func(r *http.Request, cmd *C) error {
			requestctx.From(r.Context()).SetDraftID(Place(*cmd).DraftOrderID) // on the log line, of a replay as well
			return nil
		},
	})
}

func newServer(kept orders, store idempotency.Store, logger *zap.Logger, o options) (http.Handler, error) {
	var trouble *demo
	if o.demo {
		trouble, logger = newDemo(kept, o.provider, logger)
	}
	b, pipeline, err := newBus(kept, store, logger, o)
	if err != nil {
		return nil, err
	}
	edge, err := httpedge.New(httpedge.Config{
		Anonymous: true, // a demonstration has no login: all callers share one space of keys
		Log:       slog.New(slog.NewJSONHandler(os.Stderr, nil)),
		Statuses: map[string]int{
			errDeclined.code: http.StatusPaymentRequired, errOtherPayment.code: http.StatusConflict,
			errProviderAway.code: http.StatusServiceUnavailable, errNoOrder.code: http.StatusNotFound,
		},
	})
	if err != nil {
		return nil, err
	}

	var place http.Handler
	switch {
	case o.provider == nil:
		place, err = placing[Place](edge, b, placeRoute)
	case o.noKeys:
		place, err = placing[PlaceAsNew](edge, b, placeRoute)
		place = untiring(place)
	default:
		place, err = placing[PlaceWithProvider](edge, b, placeRoute)
	}
	if err != nil {
		return nil, err
	}
	const findRoute, listRoute = "GET /api/v1/orders/{id}", "GET /api/v1/orders"
	find, err := httpedge.Query(edge, b, findRoute, httpedge.QueryOptions[FindOrder, Order]{
		Parse: func(r *http.Request) (FindOrder, error) { return FindOrder{OrderID: r.PathValue("id")}, nil },
	})
	if err != nil {
		return nil, err
	}
	list, err := httpedge.Query(edge, b, listRoute, httpedge.QueryOptions[ListOrders, Page]{Parse: parseList})
	if err != nil {
		return nil, err
	}

	mux := http.NewServeMux()
	mux.Handle(placeRoute, place)
	mux.Handle(findRoute, find)
	mux.Handle(listRoute, list)
	if o.provider != nil {
		const heldRoute = "GET /provider/authorizations"
		held, err := httpedge.Query(edge, b, heldRoute, httpedge.QueryOptions[ListAuthorizations, Held]{})
		if err != nil {
			return nil, err
		}
		mux.Handle(heldRoute, held)
	}
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
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		page, err := bus.Ask(r.Context(), b, ListOrders{Limit: 50})
		if err != nil {
			http.Error(w, "The orders cannot be read just now.", http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Content-Security-Policy", pagePolicy)
		w.Header().Set("X-Content-Type-Options", "nosniff")
		_ = indexPage.Execute(w, index{page, o.providerURL, o.noKeys, o.demo})
	})
	mux.Handle("GET /page.mjs", asset("text/javascript; charset=utf-8", pageModule))
	mux.Handle("GET /page.css", asset("text/css; charset=utf-8", pageStyle))
	mux.Handle("/tekil/", http.StripPrefix("/tekil/", browser.Handler())) // the module that makes the form's key
	if o.demo {
		if err := trouble.routes(mux, edge, store, logger, o.observers); err != nil {
			return nil, err
		}
		return withConsole(trouble.around(mux), store, logger, pipeline, o.console)
	}
	if o.dropAnswers {
		return withConsole(dropping(mux), store, logger, pipeline, o.console)
	}
	return withConsole(mux, store, logger, pipeline, o.console)
}

// pagePolicy allows the page what it needs, which is all its own: its module and style, and requests to this server.
const pagePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

func asset(contentType string, content []byte) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Cache-Control", "no-cache")
		_, _ = w.Write(content)
	})
}

func nextPage(limit int, before string) string {
	return "/api/v1/orders?" + url.Values{"limit": {strconv.Itoa(limit)}, "before": {before}}.Encode()
}

func parseList(r *http.Request) (ListOrders, error) {
	q := ListOrders{Limit: 20, Before: r.URL.Query().Get("before")}
	if s := r.URL.Query().Get("limit"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			n = -1 // the validation says what is allowed
		}
		q.Limit = n
	}
	return q, nil
}

// untiring goes on when the client hangs up. The bus does so for a command that is protected; a service without idempotency most often
// does it because it never asks.
func untiring(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r.WithContext(context.WithoutCancel(r.Context())))
	})
}

// dropping does the work of a request with the header X-Demo-Drop: 1 and then closes the connection without an answer: what a
// client sees of a lost answer.
func dropping(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Demo-Drop") != "1" {
			next.ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(discard{http.Header{}}, r)
		panic(http.ErrAbortHandler)
	})
}

// discard is an answer that nobody gets.
type discard struct{ h http.Header }

func (d discard) Header() http.Header         { return d.h }
func (d discard) Write(p []byte) (int, error) { return len(p), nil }
func (d discard) WriteHeader(int)             {}

// index is what the page shows.
type index struct {
	Page
	Provider     string
	NoKeys, Demo bool
}

var (
	//go:embed index.html
	indexHTML string
	//go:embed page.mjs
	pageModule []byte
	//go:embed page.css
	pageStyle []byte
)

var indexPage = template.Must(template.New("index").Funcs(template.FuncMap{"money": money}).Parse(indexHTML))

// money is an amount for people.
func money(minor int64, currency string) string {
	if currency != "TRY" { // the page makes orders in this one only; others have other decimals
		return fmt.Sprintf("%d minor units of %s", minor, currency)
	}
	return fmt.Sprintf("%d.%02d %s", minor/100, minor%100, currency)
}
