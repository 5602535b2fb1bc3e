package telemetry

import (
	"context"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
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
	if e.reports && e.OriginalTrace != "" {
		link(d.span, e.OriginalTrace)
	}
}

// onTheWire is how a span is named to other processes.
var onTheWire propagation.TraceContext

// traced notes the span of an attempt for the record, if it is sampled: nobody finds another one.
func traced(req *requestctx.Request, span trace.Span) {
	defer swallow()
	parent := ""
	if span.SpanContext().IsSampled() {
		carrier := propagation.MapCarrier{}
		onTheWire.Inject(trace.ContextWithSpan(context.Background(), span), carrier)
		parent = carrier["traceparent"]
	}
	req.SetTrace(parent)
}

// link links a replay to the span that did the work, in whatever process.
func link(span trace.Span, traceparent string) {
	ctx := onTheWire.Extract(context.Background(), propagation.MapCarrier{"traceparent": traceparent})
	if to := trace.SpanContextFromContext(ctx); to.IsValid() {
		span.AddLink(trace.Link{SpanContext: to})
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
