package telemetry_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/tekil-go/tekil/behaviors/telemetry"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
)

// Providers that work until the dispatch comes, and then panic in one place.
type (
	brokenMeters struct {
		metricnoop.MeterProvider
		at   string
		good metric.MeterProvider
	}
	brokenMeter struct {
		metric.Meter
		at string
	}
	brokenCounter   struct{ metric.Int64Counter }
	brokenUpDown    struct{ metric.Int64UpDownCounter }
	brokenHistogram struct{ metric.Float64Histogram }
	brokenTracers   struct {
		tracenoop.TracerProvider
		at   string
		good trace.TracerProvider
	}
	brokenTracer struct {
		trace.Tracer
		at string
	}
	brokenSpan struct {
		trace.Span
		at string
	}
)

func (p brokenMeters) Meter(name string, o ...metric.MeterOption) metric.Meter {
	if p.at == "Meter" {
		panic(card)
	}
	return brokenMeter{p.good.Meter(name, o...), p.at}
}

func (m brokenMeter) Int64Counter(name string, o ...metric.Int64CounterOption) (metric.Int64Counter, error) {
	switch {
	case m.at == "making "+name:
		panic(card)
	case m.at == "an error of "+name:
		return nil, errors.New("no room")
	}
	c, err := m.Meter.Int64Counter(name, o...)
	if m.at == name {
		return brokenCounter{c}, err
	}
	return c, err
}

func (m brokenMeter) Int64UpDownCounter(name string, o ...metric.Int64UpDownCounterOption) (metric.Int64UpDownCounter, error) {
	c, err := m.Meter.Int64UpDownCounter(name, o...)
	if m.at == name {
		return brokenUpDown{c}, err
	}
	return c, err
}

func (m brokenMeter) Float64Histogram(name string, o ...metric.Float64HistogramOption) (metric.Float64Histogram, error) {
	h, err := m.Meter.Float64Histogram(name, o...)
	if m.at == name {
		return brokenHistogram{h}, err
	}
	return h, err
}

func (brokenCounter) Add(context.Context, int64, ...metric.AddOption)           { panic(card) }
func (brokenUpDown) Add(context.Context, int64, ...metric.AddOption)            { panic(card) }
func (brokenHistogram) Record(context.Context, float64, ...metric.RecordOption) { panic(card) }

func (p brokenTracers) Tracer(name string, o ...trace.TracerOption) trace.Tracer {
	switch p.at {
	case "Tracer":
		panic(card)
	case "a nil tracer":
		return nil
	}
	return brokenTracer{p.good.Tracer(name, o...), p.at}
}

func (t brokenTracer) Start(ctx context.Context, name string, o ...trace.SpanStartOption) (context.Context, trace.Span) {
	switch t.at {
	case "Start":
		panic(card)
	case "nothing":
		return nil, nil //nolint:staticcheck // that is the fault
	}
	ctx, span := t.Tracer.Start(ctx, name, o...)
	return ctx, brokenSpan{span, t.at}
}

func (s brokenSpan) End(o ...trace.SpanEndOption) {
	if s.at == "End" {
		panic(card)
	}
	s.Span.End(o...)
}

func (s brokenSpan) AddEvent(name string, o ...trace.EventOption) {
	if s.at == "AddEvent" {
		panic(card)
	}
	s.Span.AddEvent(name, o...)
}

// ends are the ends that telemetry must not change.
func ends() map[string]struct {
	steps steps
	want  fate
} {
	declined, boom := &codedError{"PAYMENT_DECLINED"}, errors.New("boom")
	work := func(err error, panicked bool) steps {
		return steps{claim: func(ctx context.Context, c place, next bus.Handler[place, placed]) (placed, error) {
			requestctx.From(ctx).Report(outcome{State: requestctx.StateExecuted})
			return next(ctx, c)
		}, handle: func(ctx context.Context, _ place) (placed, error) {
			telemetry.SecondEffect(ctx, "mail")
			if panicked {
				panic(err)
			}
			return placed{Order: "o1"}, err
		}}
	}
	return map[string]struct {
		steps steps
		want  fate
	}{
		"success": {work(nil, false), fate{got: placed{Order: "o1"}}},
		"refusal": {work(declined, false), fate{got: placed{Order: "o1"}, err: declined}},
		"panic":   {work(boom, true), fate{panicked: boom}},
	}
}

func TestAProviderThatPanicsChangesNoDispatchAndCostsOnlyWhatItWouldHaveShown(t *testing.T) {
	t.Parallel()
	for _, at := range []string{
		"tekil_dispatch_in_flight", "tekil_dispatch_duration", "checkout_created", "making checkout_created", "an error of checkout_created",
		"idempotency_replay", "idempotency_second_effect", "Start", "nothing", "End", "AddEvent", "Created",
	} {
		for end, c := range ends() {
			t.Run(at+"/"+end, func(t *testing.T) {
				t.Parallel()
				r := newRig(t, telemetry.Config{})
				cfg := telemetry.Config{
					MeterProvider:  brokenMeters{at: at, good: r.meters},
					TracerProvider: brokenTracers{at: at, good: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(r.spans))},
				}
				if at == "Created" {
					cfg.Created = func(string) string { panic(card) }
				}
				obs := newObserver(t, cfg)
				if got := send(request(t, "a1", key1), c.steps.bus(t, obs)); got != c.want {
					t.Fatalf("the caller got %+v, want %+v", got, c.want)
				}
				code := map[string]string{"success": "OK", "refusal": "PAYMENT_DECLINED", "panic": "PANIC"}[end]
				want := map[string]int64{
					"tekil_dispatch_duration{command=checkout.place,kind=command,outcome=" + code + ",state=executed}": 1,
					"idempotency_second_effect{command=checkout.place,effect=mail}":                                    1,
				}
				if end == "success" && at != "Created" && !strings.Contains(at, "checkout_created") {
					want["checkout_created{command=checkout.place}"] = 1
				}
				for name := range want {
					if strings.HasPrefix(name, at+"{") {
						delete(want, name)
					}
				}
				equal(t, "metrics", r.metrics(t), want)
				spans := 1
				if at == "Start" || at == "nothing" || at == "End" {
					spans = 0
				}
				if got := len(r.spans.Ended()); got != spans {
					t.Errorf("%d spans, want %d", got, spans)
				}
			})
		}
	}
}

// Other observers may stand behind this one, so it does not leave its provider's panics to the bus.
func TestAProvidersPanicDoesNotLeaveTheObserver(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"Start", "End", "AddEvent", "tekil_dispatch_in_flight", "tekil_dispatch_duration", "idempotency_conflict"} {
		r := newRig(t, telemetry.Config{})
		o := newObserver(t, telemetry.Config{
			MeterProvider:  brokenMeters{at: at, good: r.meters},
			TracerProvider: brokenTracers{at: at, good: sdktrace.NewTracerProvider()},
		})
		inv := bus.Invocation{Name: "checkout.place", Idempotent: true}
		ctx := o.Started(request(t, "a1", key1), inv)
		requestctx.From(ctx).Report(outcome{State: requestctx.StateConflict})
		o.Ended(ctx, inv, &codedError{"IDEMPOTENCY_KEY_CONFLICT"}, false)
	}
}

// badExporter is a processor of spans that panics.
type badExporter struct{ sdktrace.SpanProcessor }

func (badExporter) OnStart(context.Context, sdktrace.ReadWriteSpan) { panic(card) }
func (badExporter) OnEnd(sdktrace.ReadOnlySpan)                     { panic(card) }
func (badExporter) Shutdown(context.Context) error                  { return nil }
func (badExporter) ForceFlush(context.Context) error                { return nil }

func TestAnExporterThatPanicsChangesNoDispatch(t *testing.T) {
	t.Parallel()
	for end, c := range ends() {
		r := newRig(t, telemetry.Config{TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(badExporter{}))})
		if got := send(request(t, "a1", key1), c.steps.bus(t, r)); got != c.want {
			t.Errorf("%s: the caller got %+v, want %+v", end, got, c.want)
		}
		if len(r.counts(t, "tekil_dispatch_duration")) != 1 {
			t.Errorf("%s: the metrics are lost", end)
		}
	}
}

// A span that could not be started must not end the one around it.
func TestADispatchInsideAnotherEndsItsOwnSpanOnly(t *testing.T) {
	t.Parallel()
	r := newRig(t, telemetry.Config{})
	broken := newObserver(t, telemetry.Config{TracerProvider: brokenTracers{at: "Start", good: tracenoop.NewTracerProvider()}})
	inner := steps{}.bus(t, broken)
	b := steps{handle: func(ctx context.Context, c place) (placed, error) {
		got, err := bus.Send(ctx, inner, c)
		if len(r.spans.Ended()) != 0 {
			t.Error("the outer span has ended")
		}
		return got, err
	}}.bus(t, r)
	if f := send(request(t, "a1", key1), b); f.err != nil || f.panicked != nil {
		t.Fatalf("%+v", f)
	}
	r.span(t)
}

func TestNewSaysWhatAProviderRefuses(t *testing.T) {
	t.Parallel()
	for at, want := range map[string]string{
		"Meter":                                 "telemetry: Config.MeterProvider panicked; is it a nil pointer?",
		"making idempotency_replay":             "telemetry: Config.MeterProvider panicked; is it a nil pointer?",
		"an error of idempotency_replay":        "telemetry: the instrument idempotency_replay: no room",
		"an error of idempotency_conflict":      "telemetry: the instrument idempotency_conflict: no room",
		"an error of idempotency_second_effect": "telemetry: the instrument idempotency_second_effect: no room",
		"Tracer":                                "telemetry: Config.TracerProvider gives no tracer; is it a nil pointer?",
		"a nil tracer":                          "telemetry: Config.TracerProvider gives no tracer; is it a nil pointer?",
	} {
		o, err := telemetry.New(telemetry.Config{
			MeterProvider:  brokenMeters{at: at, good: metricnoop.NewMeterProvider()},
			TracerProvider: brokenTracers{at: at, good: tracenoop.NewTracerProvider()},
		})
		if err == nil || err.Error() != want || o != nil {
			t.Errorf("%s: %v, %v", at, o, err)
		}
	}
	for name, cfg := range map[string]telemetry.Config{
		"meters":  {MeterProvider: (*sdkmetric.MeterProvider)(nil)},
		"tracers": {TracerProvider: (*sdktrace.TracerProvider)(nil)},
	} {
		if _, err := telemetry.New(cfg); err == nil || !strings.Contains(err.Error(), "nil pointer") {
			t.Errorf("a nil provider of %s: %v", name, err)
		}
	}
}
