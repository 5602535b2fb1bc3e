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

// newBus is the whole wiring: which function serves which command.
func newBus(kept orders, store idempotency.Store, logger *zap.Logger) (*bus.Bus, error) {
	service := checkout{kept}
	reg := registry.New(registry.Config{Logger: logger, Store: store})
	registry.Handle(reg, service.place)
	registry.HandleQuery(reg, service.find)
	registry.HandleQuery(reg, service.list)
	return reg.Build()
}

// placedBody is the answer's body: the result, and the id of this attempt, which is not that of the first one on a replay.
type placedBody struct {
	RequestID string `json:"request_id"`
	Placed
}

func newServer(kept orders, store idempotency.Store, logger *zap.Logger, dropAnswers bool) (http.Handler, error) {
	b, err := newBus(kept, store, logger)
	if err != nil {
		return nil, err
	}
	edge, err := httpedge.New(httpedge.Config{
		Anonymous: true, // a demonstration has no login: all callers share one space of keys
		Log:       slog.New(slog.NewJSONHandler(os.Stderr, nil)),
		Statuses:  map[string]int{errDeclined.code: http.StatusPaymentRequired, errNoOrder.code: http.StatusNotFound},
	})
	if err != nil {
		return nil, err
	}

	const placeRoute = "POST /api/v1/checkouts"
	place, err := httpedge.Command(edge, b, placeRoute, httpedge.Options[Place, Placed]{
		Status:   http.StatusCreated,
		Location: func(p Placed) string { return "/api/v1/orders/" + p.OrderID },
		Body:     func(req *requestctx.Request, p Placed) any { return placedBody{req.ID(), p} },
		Fill: func(r *http.Request, cmd *Place) error {
			requestctx.From(r.Context()).Add("draft_order_id", cmd.DraftOrderID) // on the log line, of a replay as well
			return nil
		},
	})
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
		_ = indexPage.Execute(w, page)
	})
	if dropAnswers {
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

//go:embed index.html
var indexHTML string

var indexPage = template.Must(template.New("index").Parse(indexHTML))
