package telemetry

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
)

// scope is the instrumentation scope of the metrics and spans.
const scope = "github.com/tekil-go/tekil/behaviors/telemetry"

// Config says where metrics and spans go. A nil provider turns its half off; the global ones of OpenTelemetry are not used unless
// they are given here.
type Config struct {
	// MeterProvider makes the metrics.
	MeterProvider metric.MeterProvider
	// TracerProvider makes a span for each dispatch.
	TracerProvider trace.TracerProvider
	// Created names the instrument that counts the work which a command has done, such as "orders_created" for "checkout.place";
	// Prometheus appends _total. "" does not count the command. Nil takes the first part of the command's name: "checkout_created".
	// It is called once for each command, at its first dispatch. Commands with the same name share the counter and differ in the
	// label. Characters that a name may not have become _. Where it panics the command is not counted.
	Created func(command string) string
}

// Observer counts and traces every dispatch (rules pipe-2, see-2). Make it with [New]; it is safe for concurrent use. A nil
// Observer does nothing. Nothing that goes wrong in a provider or an exporter changes what becomes of a dispatch.
type Observer struct {
	metrics  *instruments // nil for none
	tracer   trace.Tracer // nil for none
	created  func(string) string
	outcomes values
	effects  values

	mu       sync.RWMutex
	commands map[bus.Invocation]*command
}

var _ bus.Observer = (*Observer)(nil)

// New makes an Observer. An error says what a provider refused to make.
func New(cfg Config) (*Observer, error) {
	o := &Observer{created: cfg.Created, commands: map[bus.Invocation]*command{}}
	if o.created == nil {
		o.created = firstPart
	}
	if cfg.MeterProvider != nil {
		i, err := newInstruments(cfg.MeterProvider)
		if err != nil {
			return nil, err
		}
		o.metrics = i
	}
	if cfg.TracerProvider != nil {
		if o.tracer = tracerOf(cfg.TracerProvider); o.tracer == nil {
			return nil, errors.New("telemetry: Config.TracerProvider gives no tracer; is it a nil pointer?")
		}
	}
	return o, nil
}

func tracerOf(p trace.TracerProvider) trace.Tracer {
	defer swallow()
	return p.Tracer(scope)
}

// Enabled is whether the Observer has a provider. Without one it does nothing and can be left out.
func (o *Observer) Enabled() bool { return o != nil && (o.metrics != nil || o.tracer != nil) }

// command is what is prepared for all dispatches of a command, a query or a check.
type command struct {
	inv      bus.Invocation
	span     []trace.SpanStartOption
	named    []metric.AddOption
	inFlight []metric.AddOption
	created  metric.Int64Counter // nil where it is not counted

	mu     sync.RWMutex
	series map[series][]metric.RecordOption
}

// series is what the durations of a command are told apart by.
type series struct{ outcome, state string }

func (o *Observer) command(ctx context.Context, inv bus.Invocation) *command {
	o.mu.RLock()
	c := o.commands[inv]
	o.mu.RUnlock()
	if c != nil {
		return c
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if c := o.commands[inv]; c != nil {
		return c
	}
	c = &command{inv: inv, span: spanOptions(inv), series: map[series][]metric.RecordOption{}}
	if o.metrics != nil {
		c.named = with(attribute.String("command", inv.Name))
		c.inFlight = with(attribute.String("command", inv.Name), attribute.String("kind", kindOf(inv)))
		if !inv.Query && !inv.Check {
			if name := o.createdName(inv.Name); name != "" {
				c.created = o.metrics.newCreated(name)
			}
		}
		o.atZero(ctx, c)
	}
	o.commands[inv] = c
	return c
}

func with(attrs ...attribute.KeyValue) []metric.AddOption {
	return []metric.AddOption{metric.WithAttributeSet(attribute.NewSet(attrs...))}
}

// atZero makes the series of a command's counters, because a rate can't be taken of one that is not there yet.
func (o *Observer) atZero(ctx context.Context, c *command) {
	if c.created != nil {
		add(ctx, c.created, 0, c.named)
	}
	if !reports(c.inv) {
		return
	}
	for _, counter := range o.metrics.counters {
		add(ctx, counter, 0, c.named)
	}
}

func (o *Observer) createdName(command string) (name string) {
	defer swallow()
	return instrumentName(o.created(command))
}

func firstPart(command string) string {
	first, _, _ := strings.Cut(command, ".")
	return first + "_created"
}

// instrumentName makes of s what OpenTelemetry takes for a name: at most 255 letters, digits and _ . - /, a letter first.
func instrumentName(s string) string {
	if s == "" {
		return ""
	}
	s = strings.Map(func(r rune) rune {
		if isLetter(r) || r >= '0' && r <= '9' || strings.ContainsRune("_.-/", r) {
			return r
		}
		return '_'
	}, s)
	if !isLetter(rune(s[0])) {
		s = "x" + s
	}
	return s[:min(len(s), 255)]
}

func isLetter(r rune) bool { return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' }

// as gives the attributes of a duration.
func (c *command) as(s series) []metric.RecordOption {
	c.mu.RLock()
	found := c.series[s]
	c.mu.RUnlock()
	if found != nil {
		return found
	}
	made := []metric.RecordOption{metric.WithAttributeSet(attribute.NewSet(
		attribute.String("command", c.inv.Name), attribute.String("kind", kindOf(c.inv)),
		attribute.String("outcome", s.outcome), attribute.String("state", s.state)))}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.series[s] = made
	return made
}

func kindOf(inv bus.Invocation) string {
	switch {
	case inv.Check:
		return "check"
	case inv.Query:
		return "query"
	}
	return "command"
}

// reports is whether the idempotency stage has a word in this. Where it has not, the request context may still hold what it
// said of an earlier dispatch.
func reports(inv bus.Invocation) bool { return inv.Idempotent && !inv.Query && !inv.Check }

// dispatch is the context of a dispatch that is observed.
type dispatch struct {
	context.Context
	observer *Observer
	command  *command
	parent   *dispatch // nil for none
	start    time.Time
	span     trace.Span // nil for none
	inFlight bool

	mu   sync.Mutex
	made []made // inside this one; what it is worth is known when this one ends
}

// made is work that commands inside another one have done.
type made struct {
	command *command
	n       int64
}

type dispatchKey struct{}

// Value makes the dispatch known to those that run inside it.
func (d *dispatch) Value(key any) any {
	if key == (dispatchKey{}) {
		return d
	}
	return d.Context.Value(key)
}

func dispatchOf(ctx context.Context) *dispatch {
	d, _ := ctx.Value(dispatchKey{}).(*dispatch)
	return d
}

// Started notes the time and starts the span.
func (o *Observer) Started(ctx context.Context, inv bus.Invocation) context.Context {
	if !o.Enabled() {
		return ctx
	}
	if reports(inv) {
		requestctx.From(ctx).Report(requestctx.Outcome{}) // what an earlier dispatch on this context came to is not this one's
	}
	d := &dispatch{Context: ctx, observer: o, command: o.command(ctx, inv), parent: dispatchOf(ctx), start: time.Now()}
	if o.tracer != nil {
		d.Context, d.span = o.startSpan(ctx, d.command)
		if d.span != nil && reports(inv) {
			traced(requestctx.From(ctx), d.span)
		}
	}
	if o.metrics != nil {
		d.inFlight = o.metrics.enter(d, 1, d.command.inFlight)
	}
	return d
}

// ending is what became of a dispatch.
type ending struct {
	requestctx.Outcome // the zero one where the idempotency stage has no word in it
	reports            bool
	outcome, state     string // as labels
	succeeded          bool
}

// isFault is whether the server is to blame. What was replayed is the outcome of another attempt.
func (e *ending) isFault() bool {
	return !e.Replayed && !e.succeeded && (e.State == requestctx.StateUnknown || isFault(e.outcome))
}

// isWork is whether the command's work has been done, and by this dispatch.
func (e *ending) isWork() bool {
	if !e.succeeded {
		return false
	}
	switch e.State {
	case requestctx.StateExecuted, requestctx.StateUnprotected, requestctx.StateNested:
		return true
	case requestctx.StateNone:
		return !e.reports
	}
	return false
}

// Ended counts the dispatch and ends its span.
func (o *Observer) Ended(ctx context.Context, inv bus.Invocation, err error, panicked bool) {
	if !o.Enabled() {
		return
	}
	d := dispatchOf(ctx)
	for d != nil && d.observer != o { // another Observer stands between
		d = d.parent
	}
	if d == nil {
		return
	}
	req := requestctx.From(ctx)
	e := ending{reports: reports(inv), outcome: o.outcomeOf(err, panicked), state: none, succeeded: err == nil && !panicked}
	if e.reports {
		e.Outcome = req.Outcome()
		e.state = stateLabel(e.State)
	}
	if o.metrics != nil {
		o.count(d, &e)
	}
	if d.span != nil {
		o.endSpan(d, &e, req)
	}
}

// outcomeOf gives the code as a label.
func (o *Observer) outcomeOf(err error, panicked bool) string {
	code := "OK"
	switch {
	case panicked:
		code = "PANIC"
	case err != nil:
		code = bus.CodeOf(err)
	}
	if isOurs(code) {
		return code
	}
	return o.outcomes.take(code)
}

func (o *Observer) count(d *dispatch, e *ending) {
	c := d.command
	if d.inFlight {
		o.metrics.enter(d, -1, c.inFlight)
	}
	o.metrics.record(d, time.Since(d.start).Seconds(), c.as(series{e.outcome, e.state}))
	if e.reports {
		for i, counts := range o.metrics.counts {
			if counts(e.Outcome) {
				add(d, o.metrics.counters[i], 1, c.named)
			}
		}
	}
	if !e.isWork() {
		return // and what was made inside has been rolled back with it, or nobody knows
	}
	d.mu.Lock()
	inside := d.made
	d.mu.Unlock()
	o.countWork(d, e, made{c, 1})
	for _, m := range inside {
		o.countWork(d, e, m)
	}
}

// countWork counts work that is committed, and leaves the rest to the dispatch around this one.
func (o *Observer) countWork(d *dispatch, e *ending, m made) {
	if m.command.created == nil {
		return
	}
	if e.State == requestctx.StateNested {
		if outer := d.outer(); outer != nil {
			outer.hold(m)
			return
		}
	}
	add(d, m.command.created, m.n, m.command.named)
}

// outer is the nearest marked command that this dispatch runs in, or nil.
func (d *dispatch) outer() *dispatch {
	for p := d.parent; p != nil; p = p.parent {
		if p.observer == d.observer && reports(p.command.inv) {
			return p
		}
	}
	return nil
}

func (d *dispatch) hold(m made) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range d.made {
		if d.made[i].command == m.command {
			d.made[i].n += m.n
			return
		}
	}
	d.made = append(d.made, m)
}

// SecondEffect counts an effect outside of the database that has gone out another time, where that is accepted: a second
// mail, not a second payment (case W14). A handler calls it when it knows, such as by its own table of mails, by the other
// side's answer, or by the number of the attempt that idempotency.Attempt gives; nothing is counted by itself. The name is of
// a small set, such as "order_mail". ctx is the handler's. Outside of a dispatch that an [Observer] with a provider sees it does
// nothing.
func SecondEffect(ctx context.Context, name string) {
	d := dispatchOf(ctx)
	if d == nil {
		return
	}
	o := d.observer
	name = o.effects.take(name)
	if o.metrics != nil {
		add(ctx, o.metrics.secondEffect, 1, with(attribute.String("command", d.command.inv.Name), attribute.String("effect", name)))
	}
	if d.span != nil {
		d.secondEffect(name)
	}
}

func (d *dispatch) secondEffect(name string) {
	defer swallow()
	d.span.AddEvent("tekil.second_effect", trace.WithAttributes(attribute.String("tekil.effect", name)))
}
