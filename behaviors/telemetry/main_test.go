package telemetry_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.uber.org/goleak"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/memstore"
	"github.com/tekil-go/tekil/behaviors/telemetry"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const card = "4111111111111111"

type (
	place    struct{ Cart string }
	voucher  struct{ Cart string } // shares the first part of its name with place
	loose    struct{ Cart string } // needs no key
	note     struct{ Text string } // has no mark
	find     struct{ Order string }
	placed   struct{ Order string }
	policied = idempotency.Policy
)

func (place) CommandName() bus.Name[placed]   { return "checkout.place" }
func (place) Idempotent()                     {}
func (voucher) CommandName() bus.Name[placed] { return "checkout.voucher" }
func (voucher) Idempotent()                   {}
func (loose) CommandName() bus.Name[placed]   { return "loose" }
func (loose) Idempotency() policied           { return policied{KeyOptional: true} }
func (note) CommandName() bus.Name[placed]    { return "shop.note" }
func (find) QueryName() bus.Name[placed]      { return "checkout.find" }

// codedError is an error of an application or of another stage.
type codedError struct{ code string }

func (e *codedError) Error() string { return "card " + card }
func (e *codedError) Code() string  { return e.code }

// rig is an observer and what it has shown.
type rig struct {
	*telemetry.Observer
	reader *sdkmetric.ManualReader
	meters *sdkmetric.MeterProvider
	spans  *tracetest.SpanRecorder
}

func newRig(tb testing.TB, cfg telemetry.Config) *rig {
	tb.Helper()
	r := &rig{reader: sdkmetric.NewManualReader(), spans: tracetest.NewSpanRecorder()}
	r.meters = sdkmetric.NewMeterProvider(sdkmetric.WithReader(r.reader))
	if cfg.MeterProvider == nil {
		cfg.MeterProvider = r.meters
	}
	if cfg.TracerProvider == nil {
		cfg.TracerProvider = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(r.spans))
	}
	r.Observer = newObserver(tb, cfg)
	return r
}

func newObserver(tb testing.TB, cfg telemetry.Config) *telemetry.Observer {
	tb.Helper()
	o, err := telemetry.New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	return o
}

// metrics gives every series but those at 0, as "name{label=value,…}", with its sum or, of a histogram, its count.
func (r *rig) metrics(tb testing.TB) map[string]int64 {
	tb.Helper()
	got := r.all(tb)
	maps.DeleteFunc(got, func(_ string, n int64) bool { return n == 0 })
	return got
}

func (r *rig) all(tb testing.TB) map[string]int64 {
	tb.Helper()
	var data metricdata.ResourceMetrics
	if err := r.reader.Collect(tb.Context(), &data); err != nil {
		tb.Fatal(err)
	}
	got := map[string]int64{}
	for _, s := range data.ScopeMetrics {
		for _, m := range s.Metrics {
			switch d := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range d.DataPoints {
					got[m.Name+labels(p.Attributes)] = p.Value
				}
			case metricdata.Histogram[float64]:
				for _, p := range d.DataPoints {
					got[m.Name+labels(p.Attributes)] = int64(p.Count)
				}
			default:
				tb.Fatalf("%s is a %T", m.Name, m.Data)
			}
		}
	}
	return got
}

// seconds is the sum of the durations.
func (r *rig) seconds(tb testing.TB) (sum float64) {
	tb.Helper()
	var data metricdata.ResourceMetrics
	if err := r.reader.Collect(tb.Context(), &data); err != nil {
		tb.Fatal(err)
	}
	for _, s := range data.ScopeMetrics {
		for _, m := range s.Metrics {
			if d, ok := m.Data.(metricdata.Histogram[float64]); ok && m.Unit == "s" {
				for _, p := range d.DataPoints {
					sum += p.Sum
				}
			}
		}
	}
	return sum
}

func labels(s attribute.Set) string {
	var all []string
	for _, kv := range s.ToSlice() {
		all = append(all, string(kv.Key)+"="+kv.Value.String())
	}
	slices.Sort(all)
	return "{" + strings.Join(all, ",") + "}"
}

// counts gives the series whose name begins with prefix.
func (r *rig) counts(tb testing.TB, prefix string) map[string]int64 {
	tb.Helper()
	got := r.metrics(tb)
	maps.DeleteFunc(got, func(name string, _ int64) bool { return !strings.HasPrefix(name, prefix) })
	return got
}

func equal(tb testing.TB, what string, got, want map[string]int64) {
	tb.Helper()
	if !maps.Equal(got, want) {
		tb.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// span gives the only span that has ended.
func (r *rig) span(tb testing.TB) sdktrace.ReadOnlySpan {
	tb.Helper()
	ended := r.spans.Ended()
	if len(ended) != 1 {
		tb.Fatalf("%d spans have ended, want 1", len(ended))
	}
	return ended[0]
}

func attributes(kvs []attribute.KeyValue) map[string]string {
	got := map[string]string{}
	for _, kv := range kvs {
		got[string(kv.Key)] = kv.Value.String()
	}
	return got
}

// steps are what the pipeline behind the observer does; nil steps let everything through.
type steps struct {
	permit   bus.Guard
	validate func(context.Context, place) (place, error)
	claim    func(context.Context, place, bus.Handler[place, placed]) (placed, error)
	handle   bus.Handler[place, placed]
}

func (s steps) bus(tb testing.TB, obs bus.Observer) *bus.Bus {
	tb.Helper()
	if s.handle == nil {
		s.handle = func(context.Context, place) (placed, error) { return placed{Order: "o1"}, nil }
	}
	var permit []bus.Guard
	if s.permit != nil {
		permit = append(permit, s.permit)
	}
	inv := bus.Invocation{Name: "checkout.place", Idempotent: true}
	q := bus.Invocation{Name: "checkout.find", Query: true}
	answer := func(_ context.Context, q find) (placed, error) {
		if q.Order == "" {
			return placed{}, &codedError{"ORDER_NOT_FOUND"}
		}
		return placed(q), nil
	}
	b, err := bus.New(
		bus.Serve[place](bus.Log(bus.Validate(bus.Claim(s.handle, s.claim), inv, permit, s.validate), inv, nil, obs)),
		bus.Answer[find](bus.Log(bus.Validate(bus.Claim(answer, nil), q, nil, nil), q, nil, obs)))
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// reporting is a claim that reports o and gives err.
func reporting(o requestctx.Outcome, err error) func(context.Context, place, bus.Handler[place, placed]) (placed, error) {
	return func(ctx context.Context, _ place, _ bus.Handler[place, placed]) (placed, error) {
		requestctx.From(ctx).Report(o)
		return placed{Order: "o1"}, err
	}
}

// shop is a bus with the real idempotency stage and a store in memory.
type shop struct {
	*bus.Bus
	store   *memstore.Store
	place   func(context.Context, place) (placed, error)
	voucher func(context.Context, voucher) (placed, error)
	note    func(context.Context, note) (placed, error)
	idle    bool // handlers write no row
}

func newShop(tb testing.TB, obs bus.Observer) *shop {
	tb.Helper()
	s := &shop{store: memstore.New()}
	engine, err := idempotency.New(idempotency.Config{Store: s.store})
	if err != nil {
		tb.Fatal(err)
	}
	ok := func(context.Context) (placed, error) { return placed{Order: "o1"}, nil }
	s.place = func(ctx context.Context, _ place) (placed, error) { return ok(ctx) }
	s.voucher = func(ctx context.Context, _ voucher) (placed, error) { return ok(ctx) }
	s.note = func(ctx context.Context, _ note) (placed, error) { return ok(ctx) }
	s.Bus, err = bus.New(
		serve(tb, s, engine, obs, func(ctx context.Context, c place) (placed, error) { return s.place(ctx, c) }),
		serve(tb, s, engine, obs, func(ctx context.Context, c voucher) (placed, error) { return s.voucher(ctx, c) }),
		serve(tb, s, engine, obs, func(ctx context.Context, c note) (placed, error) { return s.note(ctx, c) }),
		serve(tb, s, engine, obs, func(ctx context.Context, c loose) (placed, error) { return ok(ctx) }))
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

// serve serves h, which writes a row when it succeeds.
func serve[C bus.Command[placed]](tb testing.TB, s *shop, e *idempotency.Engine, obs bus.Observer, h bus.Handler[C, placed]) bus.Entry {
	tb.Helper()
	rung, plan, err := idempotency.Stage(e, func(ctx context.Context, cmd C) (placed, error) {
		got, err := h(ctx, cmd)
		if err != nil || s.idle {
			return got, err
		}
		return got, s.store.InTx(ctx, func(ctx context.Context) error { return s.store.Insert(ctx, got.Order) })
	})
	if err != nil {
		tb.Fatal(err)
	}
	var zero C
	inv := bus.Invocation{Name: string(zero.CommandName()), Idempotent: plan.Marked}
	return bus.Serve[C](bus.Log(bus.Validate(rung, inv, nil, nil), inv, nil, obs))
}

// request is a new attempt with the key; "" is none.
func request(tb testing.TB, id, key string) context.Context {
	tb.Helper()
	v := requestctx.Values{ID: id, Scope: requestctx.Scope{Client: "acme-erp", Tenant: "acme/1"}, Source: "POST /v1/checkouts"}
	if key != "" {
		k, err := requestctx.ParseKey(key)
		if err != nil {
			tb.Fatal(err)
		}
		v.Key = k
	}
	ctx, _ := requestctx.New(tb.Context(), v)
	return ctx
}

const (
	key1 = "8e03978e-40d5-43e8-bc93-6894a57f9324"
	key2 = "1b671a64-40d5-469e-9f0e-9c1f3ab8f3a1"
)

// fate is what a caller gets.
type fate struct {
	got      placed
	err      error
	panicked any
}

func send(ctx context.Context, b *bus.Bus) (f fate) {
	defer func() { f.panicked = recover() }()
	f.got, f.err = bus.Send(ctx, b, place{Cart: "c1"})
	return f
}

var errAway = errors.New("away " + card)
