package telemetry_test

import (
	"slices"
	"testing"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/tekil-go/tekil/behaviors/telemetry"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
)

// BenchmarkRatio compares a command that is observed with one that is not, and whose stages and handler do next to nothing, in turn:
// windows of one and the other, the order swapped each time, and the median of the rounds. The absolute figure says what it is: a
// command that does some work costs a hundred times as much.
//
//	go test -run '^$' -bench Ratio -benchtime 100x ./behaviors/telemetry
func BenchmarkRatio(b *testing.B) {
	const calls = 2000
	ctx := request(b, "a1", key1)
	bind := func(o bus.Observer) func() {
		s := steps{claim: reporting(outcome{State: requestctx.StateExecuted, OriginalRequestID: "a1"}, nil)}
		send, err := bus.Bind[place](s.bus(b, o))
		if err != nil {
			b.Fatal(err)
		}
		return func() {
			if _, err := send(ctx, place{}); err != nil {
				b.Error(err)
			}
		}
	}
	window := func(f func()) float64 {
		start := time.Now()
		for range calls {
			f()
		}
		return float64(time.Since(start).Nanoseconds()) / calls
	}
	bare := bind(nil)
	for name, cfg := range map[string]telemetry.Config{
		"off": {}, "metrics": {MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader()))},
	} {
		b.Run(name, func(b *testing.B) {
			observed := bind(newObserver(b, cfg))
			var ratios, bases, more []float64
			for round := 0; b.Loop(); round++ {
				var x, y float64
				if round%2 == 0 {
					x, y = window(bare), window(observed)
				} else {
					y, x = window(observed), window(bare)
				}
				ratios, bases, more = append(ratios, y/x), append(bases, x), append(more, y-x)
			}
			for _, s := range [][]float64{ratios, bases, more} {
				slices.Sort(s)
			}
			b.ReportMetric(ratios[len(ratios)/2], "x-without")
			b.ReportMetric(bases[len(bases)/2], "without-ns")
			b.ReportMetric(more[len(more)/2], "more-ns")
			b.ReportMetric(testing.AllocsPerRun(100, observed)-testing.AllocsPerRun(100, bare), "more-allocs")
			b.ReportMetric(0, "ns/op") // of a round, which says nothing
		})
	}
}
