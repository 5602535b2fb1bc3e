package main

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/registry"
	"github.com/tekil-go/tekil/requestctx"
	"github.com/tekil-go/tekil/requestctx/httpedge"
)

// maxDemoDelay is the most that the header X-Demo-Delay may ask for.
const maxDemoDelay = 10 * time.Second

// demo is what the page's switches need, and a look at what the server holds.
type demo struct {
	orders   orders
	provider payments // nil where none is called
	log      *recentLines
}

const asNewRoute = "POST /demo/checkouts"

// newDemo also gives the logger that the bus is to write to.
func newDemo(kept orders, provider payments, logger *zap.Logger) (*demo, *zap.Logger) {
	d := &demo{kept, provider, &recentLines{}}
	logger = logger.WithOptions(zap.WrapCore(func(c zapcore.Core) zapcore.Core {
		return zapcore.NewTee(c, recentCore{c, d.log, nil})
	}))
	return d, logger
}

// routes adds the demonstration's own ones. The payment without a key has a bus of its own, because it has the same name as the one
// with a key.
func (d *demo) routes(mux *http.ServeMux, edge *httpedge.Edge, store idempotency.Store, logger *zap.Logger, observers []bus.Observer) error {
	reg := registry.New(registry.Config{Logger: logger, Store: store, Observers: observers, Around: []registry.Around{slow}})
	registry.Handle(reg, checkout{d.orders, d.provider}.placeAsNew)
	b, err := reg.Build()
	if err != nil {
		return err
	}
	asNew, err := placing[PlaceAsNew](edge, b, asNewRoute)
	if err != nil {
		return err
	}
	mux.Handle(asNewRoute, untiring(asNew))
	mux.HandleFunc("GET /demo/state", d.state)
	return nil
}

// around makes the switches work on every route.
func (d *demo) around(next http.Handler) http.Handler {
	next = dropping(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Sec-Fetch-Mode") != "" {
			// A browser sends a POST again by itself if a connection that has served before breaks. Here requests are counted.
			w.Header().Set("Connection", "close")
		}
		if s := r.Header.Get("X-Demo-Delay"); s != "" {
			delay, err := time.ParseDuration(s)
			if err != nil || delay < 0 || delay > maxDemoDelay {
				http.Error(w, "X-Demo-Delay is a duration from 0s to 10s, such as 2s.", http.StatusBadRequest)
				return
			}
			r = r.WithContext(context.WithValue(r.Context(), delayKey{}, delay))
		}
		next.ServeHTTP(w, r)
	})
}

type delayKey struct{}

// slow makes the handler as slow as X-Demo-Delay asks for. The context of a marked command outlives its request and keeps the values.
func slow(ctx context.Context, _ bus.Invocation, next func(context.Context) error) error {
	if delay, ok := ctx.Value(delayKey{}).(time.Duration); ok {
		timer := time.NewTimer(delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return next(ctx)
}

// demoNewest is how many rows of each kind the page shows, and demoLines how many lines of the log.
const demoNewest, demoLines = 10, 20

// newest is a list that shows its newest items only.
type newest[T any] struct {
	Total  int `json:"total"`
	Newest []T `json:"newest"`
}

// demoAuthorization is an authorisation as the page shows it.
type demoAuthorization struct {
	ID  string `json:"id"`
	Key string `json:"key,omitempty"` // masked; only a provider is sent one
	Charge
}

// demoRecord is a record of the store as the page shows it.
type demoRecord struct {
	Command     string    `json:"command"`
	Key         string    `json:"key"` // masked
	State       string    `json:"state"`
	Attempts    int       `json:"attempts"`
	CreatedAt   time.Time `json:"created_at"`
	ExpiresAt   time.Time `json:"expires_at"`
	ExternalRef string    `json:"external_ref,omitempty"`
}

// holdings is what the database holds.
type holdings struct {
	orders, ofCart, authorizations int
	records                        []demoRecord // the newest; their keys are not masked yet
}

// demoState is what the server holds. It has no payload and no whole key.
type demoState struct {
	Orders         newest[Order]              `json:"orders"`
	CartOrders     int                        `json:"cart_orders"`    // of the cart in the query
	Authorizations *newest[demoAuthorization] `json:"authorizations"` // null where the provider does not answer
	Records        []demoRecord               `json:"records"`
	Log            []map[string]any           `json:"log"`
}

func (d *demo) state(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	state, err := d.read(r.Context(), r.URL.Query().Get("cart"))
	if err != nil {
		http.Error(w, "What the server holds cannot be read just now.", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(state)
}

func (d *demo) read(ctx context.Context, cart string) (state demoState, err error) {
	h, err := d.orders.holds(ctx, cart, demoNewest)
	if err != nil {
		return state, err
	}
	list, err := d.orders.list(ctx, demoNewest, "")
	if err != nil {
		return state, err
	}
	state = demoState{
		Orders:         newest[Order]{h.orders, append([]Order{}, list...)},
		CartOrders:     h.ofCart,
		Authorizations: &newest[demoAuthorization]{h.authorizations, []demoAuthorization{}},
		Records:        append([]demoRecord{}, h.records...),
		Log:            d.log.newestFirst(),
	}
	for i := range state.Records {
		r := &state.Records[i]
		r.Key = masked(r.Key)
		r.Command = r.Command[strings.LastIndex(r.Command, " ")+1:] // before it stands the route
	}
	if d.provider == nil { // each order has the one that was made up for it
		for _, o := range list {
			a := demoAuthorization{o.AuthID, "", Charge{o.CartID, o.Amount, o.Currency}}
			state.Authorizations.Newest = append(state.Authorizations.Newest, a)
		}
		return state, nil
	}
	held, err := d.provider.list(ctx)
	if err != nil {
		state.Authorizations = nil
		return state, nil
	}
	state.Authorizations.Total = held.Total
	for _, a := range held.Authorizations[:min(demoNewest, len(held.Authorizations))] {
		state.Authorizations.Newest = append(state.Authorizations.Newest, demoAuthorization{a.ID, masked(a.Key), a.Charge})
	}
	return state, nil
}

// masked is a key as it may be shown.
func masked(key string) string {
	if key == "" {
		return ""
	}
	k, err := requestctx.ParseKey(key)
	if err != nil {
		return "…"
	}
	return k.Masked()
}

// shownFields are the fields of a line that are shown besides its key. What else there may be is not kept: it may be anything.
var shownFields = []string{
	"command", "kind", "outcome", "state", "replayed", "attempt", "took_over", "duration", "request_id", "original_request_id", "external_ref",
}

// recentLines are the last lines of the log. It may be used concurrently.
type recentLines struct {
	mu    sync.Mutex
	lines []map[string]any // the newest last
}

func (r *recentLines) add(line map[string]any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.lines) == demoLines {
		r.lines = slices.Delete(r.lines, 0, 1)
	}
	r.lines = append(r.lines, line)
}

func (r *recentLines) newestFirst() []map[string]any {
	r.mu.Lock()
	defer r.mu.Unlock()
	lines := append([]map[string]any{}, r.lines...) // a line does not change any more
	slices.Reverse(lines)
	return lines
}

// recentCore keeps what is logged in recentLines, with the key masked.
type recentCore struct {
	zapcore.LevelEnabler
	lines  *recentLines
	fields []zapcore.Field
}

func (c recentCore) With(fields []zapcore.Field) zapcore.Core {
	c.fields = slices.Concat(c.fields, fields)
	return c
}

func (c recentCore) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return ce.AddCore(e, c)
	}
	return ce
}

func (c recentCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	line := map[string]any{"level": e.Level.String(), "time": e.Time.UTC(), "message": e.Message}
	enc := zapcore.NewMapObjectEncoder()
	for _, f := range slices.Concat(c.fields, fields) {
		switch {
		case f.Key == "key" && f.Type == zapcore.StringType:
			line["key"] = masked(f.String)
		case slices.Contains(shownFields, f.Key):
			f.AddTo(enc)
		}
	}
	for name, value := range enc.Fields {
		if d, ok := value.(time.Duration); ok {
			value = d.String()
		}
		line[name] = value
	}
	c.lines.add(line)
	return nil
}

func (recentCore) Sync() error { return nil }
