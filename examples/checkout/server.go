package main

import (
	"context"
	_ "embed"
	"encoding/json"
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
	"github.com/tekil-go/tekil/requestctx/httpedge"
)

// options are what a server does besides keeping orders. The zero options are the plain checkout.
type options struct {
	provider    payments // who authorises payments; nil for nobody
	providerURL string   // where, for people
	noKeys      bool     // every request is new
	dropAnswers bool
}

// newBus is the whole wiring: which function serves which command.
func newBus(kept orders, store idempotency.Store, logger *zap.Logger, o options) (*bus.Bus, error) {
	service := checkout{kept, o.provider}
	reg := registry.New(registry.Config{Logger: logger, Store: store})
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
	return reg.Build()
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
}](edge *httpedge.Edge, b *bus.Bus) (http.Handler, error) {
	return httpedge.Command(edge, b, placeRoute, httpedge.Options[C, Placed]{
		Status:   http.StatusCreated,
		Location: func(p Placed) string { return "/api/v1/orders/" + p.OrderID },
		Body:     func(req *requestctx.Request, p Placed) any { return placedBody{req.ID(), p} },
		Fill: func(r *http.Request, cmd *C) error {
			requestctx.From(r.Context()).Add("draft_order_id", Place(*cmd).DraftOrderID) // on the log line, of a replay as well
			return nil
		},
	})
}

func newServer(kept orders, store idempotency.Store, logger *zap.Logger, o options) (http.Handler, error) {
	b, err := newBus(kept, store, logger, o)
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
		place, err = placing[Place](edge, b)
	case o.noKeys:
		place, err = placing[PlaceAsNew](edge, b)
		place = untiring(place)
	default:
		place, err = placing[PlaceWithProvider](edge, b)
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
		w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
		_ = indexPage.Execute(w, index{page, o.providerURL, o.noKeys})
	})
	if o.dropAnswers {
		return dropping(mux), nil
	}
	return mux, nil
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
	Provider string
	NoKeys   bool
}

//go:embed index.html
var indexHTML string

var indexPage = template.Must(template.New("index").Parse(indexHTML))
