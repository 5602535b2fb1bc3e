package telemetry_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/tekil-go/tekil/behaviors/logging"
	"github.com/tekil-go/tekil/behaviors/telemetry"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
)

func TestASpanSaysWhatBecameOfTheDispatch(t *testing.T) {
	t.Parallel()
	type texts = map[string]string
	for name, c := range map[string]struct {
		outcome outcome
		err     error
		status  codes.Code
		events  string
		want    texts // besides what all have
	}{
		"executed": {
			outcome{State: requestctx.StateExecuted, OriginalRequestID: "a1"}, nil, codes.Unset, "tekil.idempotency",
			texts{"outcome": "OK", "state": "executed", "replayed": "false", "original_request_id": "a1"},
		},
		"a replayed fault": {
			outcome{State: requestctx.StateReplayed, Replayed: true, OriginalRequestID: "a0"}, errAway, codes.Unset, "tekil.idempotency",
			texts{"outcome": "INTERNAL", "state": "replayed", "replayed": "true", "original_request_id": "a0"},
		},
		"a takeover with everything": {
			outcome{State: requestctx.StateExecuted, Attempt: 2, TookOver: true, Detached: true, ReusedExpired: true}, nil,
			codes.Unset, "tekil.idempotency",
			texts{
				"outcome": "OK", "state": "executed", "replayed": "false", "attempt": "2", "took_over": "true",
				"detached": "true", "reused_expired": "true",
			},
		},
		"unknown": {
			outcome{State: requestctx.StateUnknown}, &codedError{"TIMEOUT"}, codes.Error, "tekil.idempotency",
			texts{"outcome": "TIMEOUT", "state": "unknown", "replayed": "false"},
		},
		"invalid": {
			outcome{}, &codedError{"VALIDATION_FAILED"}, codes.Unset, "tekil.validation",
			texts{"outcome": "VALIDATION_FAILED", "state": "none", "replayed": "false"},
		},
		"a long id": {
			outcome{State: requestctx.StateReplayed, Replayed: true, OriginalRequestID: "x" + strings.Repeat("ç", 300)}, nil,
			codes.Unset, "tekil.idempotency",
			texts{"outcome": "OK", "state": "replayed", "replayed": "true", "original_request_id": "x" + strings.Repeat("ç", 127) + "…"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, telemetry.Config{})
			send(request(t, "a1", key1), steps{claim: reporting(c.outcome, c.err)}.bus(t, r))
			s := r.span(t)
			want := texts{"tekil.command": "checkout.place", "tekil.kind": "command", "tekil.request_id": "a1"}
			for name, value := range c.want {
				want["tekil."+name] = value
			}
			if c.status == codes.Error {
				want["error.type"] = c.want["outcome"]
			}
			if got := attributes(s.Attributes()); !maps.Equal(got, want) {
				t.Errorf("attributes = %v, want %v", got, want)
			}
			if s.Name() != "checkout.place" || s.SpanKind() != trace.SpanKindInternal || s.Status().Code != c.status {
				t.Errorf("%s, %s, %v", s.Name(), s.SpanKind(), s.Status())
			}
			var events []string
			for _, e := range s.Events() {
				events = append(events, e.Name)
			}
			if strings.Join(events, " ") != c.events {
				t.Errorf("events = %v, want %v", events, c.events)
			}
		})
	}
}

// allCodes are the codes of tekil's stages, some of applications', and those of the errors that have none.
func allCodes() []string {
	return []string{
		"INTERNAL", "CANCELED", "DEADLINE_EXCEEDED", "UNHANDLED", "AROUND_FAULT", "VALIDATION_FAILED", "VALIDATION_PANIC", "VALIDATION_TYPE",
		"IDEMPOTENCY_KEY_MISSING", "IDEMPOTENCY_KEY_INVALID", "IDEMPOTENCY_KEY_CONFLICT", "IDEMPOTENCY_KEY_EXPIRED",
		"IDEMPOTENCY_REQUEST_IN_PROGRESS", "IDEMPOTENCY_SCOPE_MISSING", "IDEMPOTENCY_FINGERPRINT_FAILED", "IDEMPOTENCY_STORE_UNAVAILABLE",
		"IDEMPOTENCY_RETRIES_EXHAUSTED", "IDEMPOTENCY_OUTCOME_UNKNOWN", "IDEMPOTENCY_HANDLER_FAULT", "IDEMPOTENCY_RECORD_MISMATCH",
		"IDEMPOTENCY_RESULT_UNDECODABLE", "IDEMPOTENCY_RESULT_UNENCODABLE", "IDEMPOTENCY_LEASE_LOST", "IDEMPOTENCY_ATTEMPTS_EXHAUSTED",
		"IDEMPOTENCY_RESULT_UNAVAILABLE", "PAYMENT_DECLINED", "REFUSED",
	}
}

// A code of tekil's that is new has to find its place among the faults or the other codes.
func TestTheCodesOfTheStagesAreAllKnownHere(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../*/*.go")
	if err != nil {
		t.Fatal(err)
	}
	known := append(allCodes(), "IDEMPOTENCY_ADMIN_REFUSED") // that one is of no dispatch
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		code, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range regexp.MustCompile(`"((?:IDEMPOTENCY|VALIDATION)_[A-Z_]*[A-Z])"`).FindAllStringSubmatch(string(code), -1) {
			if !slices.Contains(known, found[1]) {
				t.Errorf("%s knows %s", file, found[1])
			}
		}
	}
}

func TestAnErrorOnASpanIsAnErrorInTheLog(t *testing.T) {
	t.Parallel()
	states := []requestctx.State{
		requestctx.StateNone, requestctx.StateExecuted, requestctx.StateReplayed, requestctx.StateInProgress, requestctx.StateConflict,
		requestctx.StateExpired, requestctx.StateFreed, requestctx.StateUnknown, requestctx.StateRefused, requestctx.StateUnprotected,
		requestctx.StateLost, requestctx.StateNested,
	}
	for _, code := range append(allCodes(), "OK", "PANIC") {
		for _, state := range states {
			core, logs := observer.New(zapcore.DebugLevel)
			log, err := logging.New(logging.Config{Logger: zap.New(core)})
			if err != nil {
				t.Fatal(err)
			}
			r := newRig(t, telemetry.Config{})
			end := func(ctx context.Context, _ place, _ bus.Handler[place, placed]) (placed, error) {
				requestctx.From(ctx).Report(outcome{State: state, Replayed: state == requestctx.StateReplayed})
				switch code {
				case "OK":
					return placed{}, nil
				case "PANIC":
					panic(code)
				}
				return placed{}, &codedError{code}
			}
			if code == "PANIC" && state == requestctx.StateReplayed {
				continue // nothing runs on a replay
			}
			send(request(t, "a1", key1), steps{claim: end}.bus(t, r))
			send(request(t, "a1", key1), steps{claim: end}.bus(t, log))
			inLog, onSpan := logs.All()[0].Level == zapcore.ErrorLevel, r.span(t).Status().Code == codes.Error
			if inLog != onSpan {
				t.Errorf("%s, %s: an error in the log: %t, on the span: %t", code, state, inLog, onSpan)
			}
			if got := attributes(r.span(t).Attributes())["error.type"]; onSpan && got != code || !onSpan && got != "" {
				t.Errorf("%s, %s: error.type = %q", code, state, got)
			}
		}
	}
}

func TestNothingOfAPanicOrAnErrorOrTheKeyIsOnASpan(t *testing.T) {
	t.Parallel()
	for name, handle := range map[string]bus.Handler[place, placed]{
		"panic": func(context.Context, place) (placed, error) { panic(card) },
		"error": func(context.Context, place) (placed, error) { return placed{}, errAway },
	} {
		r := newRig(t, telemetry.Config{})
		send(request(t, "a1", key1), steps{handle: handle}.bus(t, r))
		s := r.span(t)
		if s.Status().Code != codes.Error || s.EndTime().IsZero() {
			t.Errorf("%s: %v", name, s.Status())
		}
		text := fmt.Sprint(s.Attributes(), s.Events(), s.Status())
		for _, secret := range []string{card, key1, "acme"} {
			if strings.Contains(text, secret) {
				t.Errorf("%s: %s", name, text)
			}
		}
	}
}

func TestSpansOfNestedDispatchesAreNested(t *testing.T) {
	t.Parallel()
	r := newRig(t, telemetry.Config{})
	s := newShop(t, r)
	s.place = func(ctx context.Context, _ place) (placed, error) { return bus.Send(ctx, s.Bus, voucher{}) }
	if _, err := bus.Send(request(t, "a1", key1), s.Bus, place{}); err != nil {
		t.Fatal(err)
	}
	spans := r.spans.Ended()
	if len(spans) != 2 {
		t.Fatalf("%d spans", len(spans))
	}
	inner, outer := spans[0], spans[1]
	if inner.Name() != "checkout.voucher" || inner.Parent().SpanID() != outer.SpanContext().SpanID() || outer.Parent().IsValid() {
		t.Errorf("%s is in %v, %s is in %v", inner.Name(), inner.Parent(), outer.Name(), outer.Parent())
	}
	if got := attributes(inner.Attributes())["tekil.state"]; got != "nested" {
		t.Errorf("state = %s", got)
	}
	if got := attributes(outer.Attributes())["tekil.state"]; got != "executed" {
		t.Errorf("state = %s", got)
	}
}

func TestAHandlerSeesTheSpanAndASecondEffectIsAnEventOfIt(t *testing.T) {
	t.Parallel()
	r := newRig(t, telemetry.Config{})
	b := steps{handle: func(ctx context.Context, _ place) (placed, error) {
		if !trace.SpanFromContext(ctx).IsRecording() {
			t.Error("the handler's context has no span")
		}
		telemetry.SecondEffect(ctx, "mail")
		return placed{}, nil
	}}.bus(t, r)
	send(request(t, "a1", key1), b)
	events := r.span(t).Events()
	if len(events) != 1 || events[0].Name != "tekil.second_effect" || attributes(events[0].Attributes)["tekil.effect"] != "mail" {
		t.Errorf("events = %v", events)
	}
}

func TestBR40_AReplayIsLinkedToTheTraceOfTheWork(t *testing.T) {
	t.Parallel()
	r := newRig(t, telemetry.Config{})
	s := newShop(t, r)
	for _, id := range []string{"a1", "a2", "a3"} {
		if _, err := bus.Send(request(t, id, key1), s.Bus, place{}); err != nil {
			t.Fatal(err)
		}
	}
	spans := r.spans.Ended()
	first := spans[0].SpanContext()
	if len(spans[0].Links()) != 0 {
		t.Errorf("the work itself has links: %v", spans[0].Links())
	}
	for _, again := range spans[1:] {
		links := again.Links()
		if !linkedTo(links, first) || again.SpanContext().TraceID() == first.TraceID() {
			t.Errorf("links = %v", links)
		}
		if got := attributes(again.Attributes()); got["tekil.replayed"] != "true" || got["tekil.original_request_id"] != "a1" {
			t.Errorf("attributes = %v", got)
		}
	}

	// Another process knows of the work by its record alone.
	other := newRig(t, telemetry.Config{})
	again := newShop(t, other)
	for _, rec := range s.store.Records() {
		again.store.Put(rec.Scope.ID(), rec)
	}
	if _, err := bus.Send(request(t, "b1", key1), again.Bus, place{}); err != nil {
		t.Fatal(err)
	}
	span := other.span(t)
	got := attributes(span.Attributes())
	if !linkedTo(span.Links(), first) || got["tekil.replayed"] != "true" || got["tekil.original_request_id"] != "a1" {
		t.Errorf("in another process: links %v, attributes %v", span.Links(), got)
	}
}

// linkedTo reports whether there is one link, and that to a span. What comes from a record is remote.
func linkedTo(links []sdktrace.Link, to trace.SpanContext) bool {
	return len(links) == 1 && links[0].SpanContext.Equal(to.WithRemote(true))
}

// What stands in a record may have been written by anything.
func TestATraceThatIsNoneIsNotLinkedTo(t *testing.T) {
	t.Parallel()
	r := newRig(t, telemetry.Config{})
	o := outcome{State: requestctx.StateReplayed, Replayed: true, OriginalRequestID: "a"}
	b := steps{claim: func(ctx context.Context, _ place, _ bus.Handler[place, placed]) (placed, error) {
		requestctx.From(ctx).Report(o)
		return placed{}, nil
	}}.bus(t, r)
	const good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	texts := []string{good, "", "x", "00-00000000000000000000000000000000-b7ad6b7169203331-01", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0g", good[1:], strings.Repeat("0", 55)}
	for _, o.OriginalTrace = range texts {
		send(request(t, "a", key1), b)
	}
	for i, span := range r.spans.Ended() {
		if got, want := len(span.Links()), map[bool]int{true: 1}[i == 0]; got != want {
			t.Errorf("%q: %d links, want %d", texts[i], got, want)
		}
	}
}

// One request sends two commands: each has a trace of its own to link to.
func TestTwoCommandsOfOneRequestAreNotMixedUp(t *testing.T) {
	t.Parallel()
	r := newRig(t, telemetry.Config{})
	s := newShop(t, r)
	for _, id := range []string{"a1", "a2"} {
		ctx := request(t, id, key1)
		_, _ = bus.Send(ctx, s.Bus, place{})
		_, _ = bus.Send(ctx, s.Bus, voucher{})
	}
	spans := r.spans.Ended()
	for i := range 2 {
		if links := spans[i+2].Links(); !linkedTo(links, spans[i].SpanContext()) {
			t.Errorf("%s has the links %v", spans[i+2].Name(), links)
		}
	}
}

func TestASpanThatIsNotSampledIsNotLinkedTo(t *testing.T) {
	t.Parallel()
	r := newRig(t, telemetry.Config{TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample()))})
	s := newShop(t, r)
	for range 2 {
		if _, err := bus.Send(request(t, "", key1), s.Bus, place{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, rec := range s.store.Records() {
		if rec.OriginTrace != "" {
			t.Errorf("the record names the trace %s", rec.OriginTrace)
		}
	}
	quiet := newRig(t, telemetry.Config{TracerProvider: noop.NewTracerProvider()})
	if f := send(request(t, "", key1), steps{}.bus(t, quiet)); f.err != nil || f.got.Order != "o1" {
		t.Errorf("%+v", f)
	}
}
