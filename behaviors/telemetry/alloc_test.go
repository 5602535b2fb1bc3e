package telemetry_test

import (
	"context"
	"testing"

	metricnoop "go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/tekil-go/tekil/behaviors/telemetry"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
)

// testing.AllocsPerRun looks at the whole process, so this test is not parallel.
func TestTelemetryAllocatesNothingWhenOffAndOnceForMetrics(t *testing.T) { //nolint:paralleltest // see above
	ctx := request(t, "a1", key1)
	handles := func(err error) steps {
		return steps{claim: func(ctx context.Context, c place, next bus.Handler[place, placed]) (placed, error) {
			requestctx.From(ctx).Report(outcome{State: requestctx.StateExecuted, OriginalRequestID: "a1"})
			return next(ctx, c)
		}, handle: func(context.Context, place) (placed, error) { return placed{}, err }}
	}
	declined := &codedError{"PAYMENT_DECLINED"}
	sdk := telemetry.Config{MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader()))}
	for name, c := range map[string]struct {
		cfg  telemetry.Config
		err  error
		want float64
	}{
		"off":                       {telemetry.Config{}, nil, 0},
		"metrics, a success":        {sdk, nil, 1},
		"metrics, a refusal":        {sdk, declined, 1},
		"metrics that nobody reads": {telemetry.Config{MeterProvider: metricnoop.NewMeterProvider()}, nil, 1},
		"spans that nobody reads":   {telemetry.Config{TracerProvider: tracenoop.NewTracerProvider()}, nil, 3},
	} {
		send, err := bus.Bind[place](handles(c.err).bus(t, newObserver(t, c.cfg)))
		if err != nil {
			t.Fatal(err)
		}
		if n := testing.AllocsPerRun(200, func() { _, _ = send(ctx, place{}) }); n > c.want {
			t.Errorf("%s: %v allocations, want at most %v", name, n, c.want)
		}
	}
}

func TestANilObserverAndOneWithoutProvidersAreOff(t *testing.T) {
	t.Parallel()
	var none *telemetry.Observer
	for name, o := range map[string]*telemetry.Observer{"nil": none, "without providers": newObserver(t, telemetry.Config{})} {
		if o.Enabled() {
			t.Errorf("%s: it is on", name)
		}
		ctx := request(t, "a1", key1)
		if got := o.Started(ctx, bus.Invocation{Name: "checkout.place", Idempotent: true}); got != ctx {
			t.Errorf("%s: the context is another one", name)
		}
		if f := send(ctx, steps{}.bus(t, o)); f.err != nil || f.got.Order != "o1" {
			t.Errorf("%s: %+v", name, f)
		}
	}
	if !newRig(t, telemetry.Config{}).Enabled() {
		t.Error("one with providers is off")
	}
}

func BenchmarkTelemetry(b *testing.B) {
	spans := sdktrace.NewTracerProvider()
	meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader()))
	for name, cfg := range map[string]telemetry.Config{
		"off": {}, "metrics": {MeterProvider: meters}, "spans": {TracerProvider: spans}, "both": {MeterProvider: meters, TracerProvider: spans},
	} {
		b.Run(name, func(b *testing.B) {
			s := steps{claim: reporting(outcome{State: requestctx.StateExecuted, OriginalRequestID: "a1"}, nil)}
			send, err := bus.Bind[place](s.bus(b, newObserver(b, cfg)))
			if err != nil {
				b.Fatal(err)
			}
			ctx := request(b, "a1", key1)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := send(ctx, place{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
