package telemetry

import (
	"context"
	"errors"
	"fmt"

	"go.opentelemetry.io/otel/metric"

	"github.com/tekil-go/tekil/requestctx"
)

// Metric describes one metric.
type Metric struct {
	// Name is what a Prometheus exporter writes. A leading * stands for a name that depends on the command.
	Name string
	// Instrument is the name in OpenTelemetry, without the unit and the suffix that Prometheus wants.
	Instrument string
	// Unit is in UCUM, such as "s"; in braces it says what is counted.
	Unit string
	// Labels are the attributes of its series.
	Labels []string
	// Help is its description.
	Help string
}

// Metrics is a table of all metrics. What to do when one rises stands in the documentation of the package.
func Metrics() []Metric {
	var all []Metric
	for _, c := range counters() {
		all = append(all, c.Metric)
	}
	return append(all, created(), secondEffect(), duration(), inFlight())
}

// counter is a metric that counts ends of marked commands.
type counter struct {
	Metric
	counts func(requestctx.Outcome) bool
}

func counters() []counter {
	in := func(s requestctx.State) func(requestctx.Outcome) bool {
		return func(o requestctx.Outcome) bool { return o.State == s }
	}
	replayed := func(o requestctx.Outcome) bool { return o.Replayed }
	tookOver := func(o requestctx.Outcome) bool { return o.TookOver }
	reused := func(o requestctx.Outcome) bool { return o.ReusedExpired }
	detached := func(o requestctx.Outcome) bool { return o.Detached }
	c := func(name, help string, counts func(requestctx.Outcome) bool) counter {
		name = "idempotency_" + name
		return counter{Metric{name + "_total", name, "{dispatch}", []string{"command"}, help}, counts}
	}
	return []counter{
		c("replay", "Dispatches that were given the stored outcome of an earlier attempt.", replayed),
		c("conflict", "Dispatches refused because their key belongs to another payload.", in(requestctx.StateConflict)),
		c("in_progress", "Dispatches that found another attempt of their key running.", in(requestctx.StateInProgress)),
		c("takeover", "Attempts that took the key over from one that had died or hung.", tookOver),
		c("lost", "Attempts whose key was taken from them while they ran.", superseded),
		c("expired_reuse", "Keys that came again after their record had expired and were new work.", reused),
		c("unprotected", "Marked commands that ran without a key.", in(requestctx.StateUnprotected)),
		c("detached", "Atomic handlers that succeeded without using their transaction.", detached),
		c("unknown", "Dispatches of which nobody can say yet whether the work was done.", in(requestctx.StateUnknown)),
	}
}

// superseded is whether the dispatch made an attempt and was answered with what another one has left.
func superseded(o requestctx.Outcome) bool {
	return o.State == requestctx.StateLost || o.Attempt > 0 && (o.Replayed || o.State == requestctx.StateInProgress)
}

func created() Metric {
	return Metric{"*_created_total", "*_created", "{dispatch}", []string{"command"}, "Commands whose work was done; no replays."}
}

func secondEffect() Metric {
	return Metric{"idempotency_second_effect_total", "idempotency_second_effect", "{effect}", []string{"command", "effect"},
		"Effects outside the database that went out another time and are accepted."}
}

func duration() Metric {
	return Metric{"tekil_dispatch_duration_seconds", "tekil_dispatch_duration", "s",
		[]string{"command", "kind", "outcome", "state"}, "How long dispatches took."}
}

func inFlight() Metric {
	return Metric{"tekil_dispatch_in_flight", "tekil_dispatch_in_flight", "{dispatch}",
		[]string{"command", "kind"}, "Dispatches that are running now."}
}

// buckets are in seconds: from a cached answer to a far side that hangs.
func buckets() []float64 {
	return []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60}
}

// instruments are the metrics as the provider's meter made them. Their methods swallow its panics, one by one, so that a broken
// instrument costs only what it would have shown.
type instruments struct {
	meter        metric.Meter
	counters     []metric.Int64Counter
	counts       []func(requestctx.Outcome) bool
	secondEffect metric.Int64Counter
	duration     metric.Float64Histogram
	inFlight     metric.Int64UpDownCounter
}

func newInstruments(p metric.MeterProvider) (i *instruments, err error) {
	defer func() {
		if recover() != nil {
			i, err = nil, errors.New("telemetry: Config.MeterProvider panicked; is it a nil pointer?")
		}
	}()
	i = &instruments{meter: p.Meter(scope)}
	var errs []error
	note := func(m Metric, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("telemetry: the instrument %s: %w", m.Instrument, err))
		}
	}
	for _, c := range counters() {
		counter, err := i.newCounter(c.Metric)
		note(c.Metric, err)
		i.counters, i.counts = append(i.counters, counter), append(i.counts, c.counts)
	}
	i.secondEffect, err = i.newCounter(secondEffect())
	note(secondEffect(), err)
	m := duration()
	i.duration, err = i.meter.Float64Histogram(m.Instrument, metric.WithUnit(m.Unit), metric.WithDescription(m.Help),
		metric.WithExplicitBucketBoundaries(buckets()...))
	note(m, err)
	m = inFlight()
	i.inFlight, err = i.meter.Int64UpDownCounter(m.Instrument, metric.WithUnit(m.Unit), metric.WithDescription(m.Help))
	note(m, err)
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return i, nil
}

func (i *instruments) newCounter(m Metric) (metric.Int64Counter, error) {
	return i.meter.Int64Counter(m.Instrument, metric.WithUnit(m.Unit), metric.WithDescription(m.Help))
}

// newCreated gives nil where the provider refuses the name; then the command is not counted.
func (i *instruments) newCreated(name string) (c metric.Int64Counter) {
	defer swallow()
	m := created()
	m.Instrument = name
	made, err := i.newCounter(m)
	if err != nil {
		return nil
	}
	return made
}

func add(ctx context.Context, c metric.Int64Counter, n int64, with []metric.AddOption) {
	defer swallow()
	c.Add(ctx, n, with...)
}

// enter reports whether the dispatch was added and has to be taken away again.
func (i *instruments) enter(ctx context.Context, n int64, with []metric.AddOption) (added bool) {
	defer swallow()
	i.inFlight.Add(ctx, n, with...)
	return true
}

func (i *instruments) record(ctx context.Context, seconds float64, with []metric.RecordOption) {
	defer swallow()
	i.duration.Record(ctx, seconds, with...)
}

// swallow is deferred where a provider or an exporter works.
func swallow() { _ = recover() }
