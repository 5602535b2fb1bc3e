package telemetry

import (
	"context"
	"strings"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
)

// maxText is where a text on a span is cut, in bytes.
const maxText = 256

func spanOptions(inv bus.Invocation) []trace.SpanStartOption {
	return []trace.SpanStartOption{
		trace.WithSpanKind(trace.SpanKindInternal),
		trace.WithAttributes(attribute.String("tekil.command", inv.Name), attribute.String("tekil.kind", kindOf(inv))),
	}
}

// startSpan gives ctx and no span where the tracer panics or gives nothing.
func (o *Observer) startSpan(ctx context.Context, c *command) (out context.Context, span trace.Span) {
	out = ctx
	defer swallow()
	if in, s := o.tracer.Start(ctx, c.inv.Name, c.span...); in != nil && s != nil {
		out, span = in, s
	}
	return out, span
}

// endSpan writes what became of the dispatch and ends its span.
func (o *Observer) endSpan(d *dispatch, e *ending, req *requestctx.Request) {
	defer swallow()
	defer d.span.End()
	if !d.span.IsRecording() {
		return
	}
	attrs := []attribute.KeyValue{attribute.String("tekil.outcome", e.outcome)}
	attrs = text(attrs, "tekil.request_id", req.ID())
	if e.reports {
		attrs = append(attrs, attribute.String("tekil.state", e.state), attribute.Bool("tekil.replayed", e.Replayed))
		attrs = text(attrs, "tekil.original_request_id", e.OriginalRequestID)
		if e.Attempt > 0 {
			attrs = append(attrs, attribute.Int("tekil.attempt", e.Attempt))
		}
		attrs = flag(attrs, "tekil.took_over", e.TookOver)
		attrs = flag(attrs, "tekil.reused_expired", e.ReusedExpired)
		attrs = flag(attrs, "tekil.detached", e.Detached)
	}
	if e.isFault() {
		attrs = append(attrs, attribute.String("error.type", e.outcome))
		d.span.SetStatus(codes.Error, e.outcome)
	}
	d.span.SetAttributes(attrs...)

	if strings.HasPrefix(e.outcome, "VALIDATION_") {
		d.span.AddEvent("tekil.validation", trace.WithAttributes(attribute.String("tekil.outcome", e.outcome)))
	}
	if e.reports && e.State != requestctx.StateNone {
		d.span.AddEvent("tekil.idempotency", trace.WithAttributes(attribute.String("tekil.state", e.state)))
	}
	if e.reports && e.OriginalRequestID != "" {
		o.link(d, e)
	}
}

// link links a replay to the span that did the work, and keeps the span of work done for replays to come.
func (o *Observer) link(d *dispatch, e *ending) {
	id := original{e.OriginalRequestID, d.command.inv.Name}
	switch {
	case e.Replayed:
		if to, ok := o.originals.find(id); ok {
			d.span.AddLink(trace.Link{SpanContext: to})
		}
	case e.State == requestctx.StateExecuted && len(id.request) <= maxText:
		if own := d.span.SpanContext(); own.IsSampled() {
			o.originals.keep(id, own)
		}
	}
}

func text(to []attribute.KeyValue, key, value string) []attribute.KeyValue {
	if value == "" {
		return to
	}
	if len(value) > maxText {
		value = strings.ToValidUTF8(value[:maxText], "") + "…"
	}
	return append(to, attribute.String(key, value))
}

func flag(to []attribute.KeyValue, key string, value bool) []attribute.KeyValue {
	if !value {
		return to
	}
	return append(to, attribute.Bool(key, true))
}

// maxOriginals bounds what replays can be linked to. It is about 2 MB.
const maxOriginals = 10_000

// original names the work of a request: one request can send several commands.
type original struct{ request, command string }

// originals are the spans of the last maxOriginals of work done.
type originals struct {
	mu    sync.Mutex
	spans map[original]trace.SpanContext
	ring  []original // in the order of keeping
	next  int        // the oldest, once the ring is full
}

func (r *originals) find(id original) (trace.SpanContext, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	span, ok := r.spans[id]
	return span, ok
}

func (r *originals) keep(id original, span trace.SpanContext) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, known := r.spans[id]
	if r.spans == nil {
		r.spans = map[original]trace.SpanContext{}
	}
	r.spans[id] = span
	switch {
	case known:
	case len(r.ring) < maxOriginals:
		r.ring = append(r.ring, id)
	default:
		delete(r.spans, r.ring[r.next])
		r.ring[r.next] = id
		r.next = (r.next + 1) % maxOriginals
	}
}
