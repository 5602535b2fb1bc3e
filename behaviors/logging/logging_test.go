package logging_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/tekil-go/tekil/behaviors/logging"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
)

const (
	card     = "4111111111111111"
	password = "p@ss-phrase"
)

type place struct {
	Cart     string
	Card     string
	Password string
}

type placed struct{ Order string }

func (place) CommandName() bus.Name[placed] { return "checkout.place" }

type find struct{ Order string }

func (find) QueryName() bus.Name[placed] { return "checkout.find" }

var thePlace = place{Cart: "c1", Card: card, Password: password}

// codedError is an error of an application or of another stage.
type codedError struct{ code, text string }

func (e *codedError) Error() string { return e.text }
func (e *codedError) Code() string  { return e.code }

// sink is a logger into memory, as JSON at every level, with callers and stack traces.
type sink struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (s *sink) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.Write(p)
}

func (s *sink) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.String()
}

func (s *sink) logger() *zap.Logger {
	core := zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), zapcore.AddSync(s), zapcore.DebugLevel)
	return zap.New(core, zap.AddCaller(), zap.AddStacktrace(zapcore.DebugLevel), zap.ErrorOutput(zapcore.AddSync(io.Discard)))
}

// lines gives the lines, each of which must be a whole JSON object.
func (s *sink) lines(t *testing.T) []map[string]any {
	t.Helper()
	var lines []map[string]any
	for raw := range strings.Lines(s.text()) {
		var line map[string]any
		if err := json.Unmarshal([]byte(raw), &line); err != nil {
			t.Fatalf("the line is no JSON: %v\n%s", err, raw)
		}
		lines = append(lines, line)
	}
	return lines
}

func (s *sink) line(t *testing.T) map[string]any {
	t.Helper()
	lines := s.lines(t)
	if len(lines) != 1 {
		t.Fatalf("%d lines, want 1:\n%s", len(lines), s.text())
	}
	return lines[0]
}

func newObserver(tb testing.TB, cfg logging.Config) *logging.Observer {
	tb.Helper()
	o, err := logging.New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	return o
}

// steps are what the pipeline behind the observer does; nil steps let everything through.
type steps struct {
	admit, permit bus.Guard
	validate      func(context.Context, place) (place, error)
	claim         func(context.Context, place, bus.Handler[place, placed]) (placed, error)
	handle        bus.Handler[place, placed]
}

func guards(g bus.Guard) []bus.Guard {
	if g == nil {
		return nil
	}
	return []bus.Guard{g}
}

func (s steps) bus(tb testing.TB, obs bus.Observer) *bus.Bus {
	tb.Helper()
	if s.handle == nil {
		s.handle = func(context.Context, place) (placed, error) { return placed{Order: "o1"}, nil }
	}
	inv := bus.Invocation{Name: "checkout.place", Idempotent: true}
	q := bus.Invocation{Name: "checkout.find", Query: true}
	answer := func(_ context.Context, q find) (placed, error) {
		if q.Order == "" {
			return placed{}, &codedError{"ORDER_NOT_FOUND", "no order"}
		}
		return placed(q), nil
	}
	b, err := bus.New(
		bus.Serve(bus.Log(bus.Validate(bus.Claim(s.handle, s.claim), inv, guards(s.permit), s.validate), inv, guards(s.admit), obs)),
		bus.Answer(bus.Log(bus.Validate(bus.Claim(answer, nil), q, nil, nil), q, nil, obs)))
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// reporting is a claim that reports o and ends with err, or runs the handler where run is true.
func reporting(o requestctx.Outcome, run bool, err error) func(context.Context, place, bus.Handler[place, placed]) (placed, error) {
	return func(ctx context.Context, c place, next bus.Handler[place, placed]) (placed, error) {
		requestctx.From(ctx).Report(o)
		if run {
			return next(ctx, c)
		}
		return placed{Order: "recorded"}, err
	}
}

func request(tb testing.TB) (context.Context, *requestctx.Request) {
	tb.Helper()
	key, err := requestctx.ParseKey("8e03978e-40d5-43e8-bc93-6894a57f9324")
	if err != nil {
		tb.Fatal(err)
	}
	return requestctx.New(tb.Context(), requestctx.Values{
		ID: "attempt-2", Key: key, Scope: requestctx.Scope{Client: "acme-erp", Tenant: "acme/1"}, Source: "POST /v1/checkouts",
	})
}

// fate is what a caller gets.
type fate struct {
	got      placed
	err      error
	panicked any
}

func send(ctx context.Context, b *bus.Bus) (f fate) {
	defer func() { f.panicked = recover() }()
	f.got, f.err = bus.Send(ctx, b, thePlace)
	return f
}

func TestNewWithoutALoggerSaysWhatToDo(t *testing.T) {
	t.Parallel()
	o, err := logging.New(logging.Config{})
	if !errors.Is(err, logging.ErrNoLogger) || o != nil {
		t.Fatalf("New = %v, %v", o, err)
	}
	if !strings.Contains(err.Error(), "zap.NewNop()") {
		t.Errorf("message = %q", err)
	}
}

func TestANilObserverWritesNothingAndLetsEverythingThrough(t *testing.T) {
	t.Parallel()
	var o *logging.Observer
	if got, err := bus.Send(t.Context(), steps{}.bus(t, o), thePlace); err != nil || got.Order != "o1" {
		t.Errorf("Send = %+v, %v", got, err)
	}
}

func TestSee1_TheWholeStoryStandsOnOneLine(t *testing.T) {
	t.Parallel()
	var s sink
	b := steps{
		claim: reporting(requestctx.Outcome{State: requestctx.StateExecuted, OriginalRequestID: "attempt-2"}, true, nil),
		handle: func(ctx context.Context, _ place) (placed, error) {
			req := requestctx.From(ctx)
			req.SetExternalRef("auth-77")
			req.SetDraftID("d-12")
			req.Add("basket_id", "b-9")
			req.Add("operation_id", "op-3")
			return placed{Order: "o1"}, nil
		},
	}.bus(t, newObserver(t, logging.Config{Logger: s.logger()}))
	ctx, _ := request(t)
	if _, err := bus.Send(ctx, b, thePlace); err != nil {
		t.Fatal(err)
	}
	line := s.line(t)
	for key, want := range map[string]any{
		"level": "info", "msg": "command succeeded", "command": "checkout.place", "kind": "command", "outcome": "OK",
		"state": "executed", "replayed": false, "key": "8e03978e-40d5-43e8-bc93-6894a57f9324", "client": "acme-erp", "tenant": "acme/1",
		"source": "POST /v1/checkouts", "request_id": "attempt-2", "original_request_id": "attempt-2", "external_ref": "auth-77", "draft_id": "d-12",
	} {
		if line[key] != want {
			t.Errorf("%s = %v, want %v", key, line[key], want)
		}
	}
	if got := fmt.Sprint(line["attributes"]); got != "map[basket_id:b-9 operation_id:op-3]" {
		t.Errorf("attributes = %s", got)
	}
	if took, ok := line["duration"].(float64); !ok || took < 0 || took > 600 {
		t.Errorf("duration = %v", line["duration"])
	}
	for _, key := range []string{"error_type", "error", "log_error", "key_error", "key_length", "reused_expired", "detached", "attempt", "took_over"} {
		if v, ok := line[key]; ok {
			t.Errorf("%s = %v stands there without a reason", key, v)
		}
	}
}

// The idempotency stage tells what the record holds of a replay; who asks again need not name it again.
func TestSee1_TheDraftStandsOnTheLineWhoeverNamedIt(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		named, recorded, want string
	}{
		"by the edge":                         {"d-12", "", "d-12"},
		"by the record that a replay reads":   {"", "d-12", "d-12"},
		"by nobody":                           {"", "", ""},
		"by both, and the record comes later": {"d-1", "d-12", "d-12"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var s sink
			replay := reporting(requestctx.Outcome{State: requestctx.StateReplayed, Replayed: true, OriginalRequestID: "attempt-1"}, false, nil)
			b := steps{claim: func(ctx context.Context, c2 place, next bus.Handler[place, placed]) (placed, error) {
				if c.recorded != "" {
					requestctx.From(ctx).SetDraftID(c.recorded)
				}
				return replay(ctx, c2, next)
			}}.bus(t, newObserver(t, logging.Config{Logger: s.logger()}))
			ctx, req := request(t)
			req.SetDraftID(c.named)
			if _, err := bus.Send(ctx, b, thePlace); err != nil {
				t.Fatal(err)
			}
			line := s.line(t)
			if draft, stands := line["draft_id"]; stands != (c.want != "") || stands && draft != c.want || line["replayed"] != true {
				t.Errorf("line = %v", line)
			}
		})
	}
}

func TestH24_KeyStateReferenceAndDraftOnOneLineAndNoCardDigits(t *testing.T) {
	t.Parallel()
	var s sink
	b := steps{
		claim: reporting(requestctx.Outcome{State: requestctx.StateFreed}, true, nil),
		handle: func(ctx context.Context, c place) (placed, error) {
			requestctx.From(ctx).SetExternalRef("auth-77")
			requestctx.From(ctx).SetDraftID("d-12")
			return placed{}, fmt.Errorf("provider refused %+v", c)
		},
	}.bus(t, newObserver(t, logging.Config{Logger: s.logger()}))
	ctx, _ := request(t)
	_, _ = bus.Send(ctx, b, thePlace)
	line := s.line(t)
	if line["key"] != "8e03978e-40d5-43e8-bc93-6894a57f9324" || line["state"] != "freed" || line["external_ref"] != "auth-77" || line["draft_id"] != "d-12" {
		t.Errorf("line = %v", line)
	}
	if strings.Contains(s.text(), card[:6]) {
		t.Errorf("card digits in the log:\n%s", s.text())
	}
}

// leaky are the ways on which a command with a card and a password can end badly.
func leaky() map[string]steps {
	fails := func(err func(place) error) steps {
		return steps{
			claim:  reporting(requestctx.Outcome{State: requestctx.StateFreed}, true, nil),
			handle: func(_ context.Context, c place) (placed, error) { return placed{}, err(c) },
		}
	}
	panics := func(v func(place) any) steps {
		return steps{handle: func(_ context.Context, c place) (placed, error) { panic(v(c)) }}
	}
	return map[string]steps{
		"success": {claim: reporting(requestctx.Outcome{State: requestctx.StateExecuted}, true, nil)},
		"replay":  {claim: reporting(requestctx.Outcome{State: requestctx.StateReplayed, Replayed: true}, false, nil)},
		"conflict": {claim: reporting(requestctx.Outcome{State: requestctx.StateConflict}, false,
			&codedError{"IDEMPOTENCY_KEY_CONFLICT", "other payload: " + fmt.Sprint(thePlace)})},
		"validation failure": {validate: func(_ context.Context, c place) (place, error) {
			return c, &codedError{"VALIDATION_FAILED", fmt.Sprintf("%+v is not valid", c)}
		}},
		"a guard's refusal that quotes": {permit: func(context.Context, bus.Invocation) error {
			return &codedError{"FORBIDDEN", card + password}
		}},
		"error with %+v of the command": fails(func(c place) error { return fmt.Errorf("placing %+v", c) }),
		"wrapped error":                 fails(func(c place) error { return fmt.Errorf("placing: %w", &codedError{"DECLINED", fmt.Sprint(c)}) }),
		"joined errors":                 fails(func(c place) error { return errors.Join(errors.New(c.Card), errors.New(c.Password)) }),
		"panic with the command":        panics(func(c place) any { return c }),
		"panic with its address":        panics(func(c place) any { return &c }),
		"panic with an error":           panics(func(c place) any { return fmt.Errorf("%+v", c) }),
		"panic with a text":             panics(func(c place) any { return c.Card + c.Password }),
	}
}

func TestBR56_NoCardAndNoPasswordInAnyLine(t *testing.T) {
	t.Parallel()
	for name, s := range leaky() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out sink
			ctx, _ := request(t)
			_ = send(ctx, s.bus(t, newObserver(t, logging.Config{Logger: out.logger()})))
			line := out.line(t)
			for _, secret := range []string{card, card[:6], password} {
				if strings.Contains(out.text(), secret) {
					t.Errorf("the log holds %q:\n%s", secret, out.text())
				}
			}
			for _, key := range []string{"command", "key", "client", "tenant", "request_id", "outcome", "duration"} {
				if line[key] == nil || line[key] == "" {
					t.Errorf("the line has no %s", key)
				}
			}
		})
	}
}

// The way out that an application opens by its own hand does leak; so the test above is known to bite.
func TestBR56_OnlyErrorTextCanLetAnErrorsTextThrough(t *testing.T) {
	t.Parallel()
	var out sink
	ctx, _ := request(t)
	o := newObserver(t, logging.Config{Logger: out.logger(), ErrorText: func(err error) string { return err.Error() }})
	_ = send(ctx, leaky()["error with %+v of the command"].bus(t, o))
	if !strings.Contains(out.text(), card) || !strings.Contains(fmt.Sprint(out.line(t)["error"]), password) {
		t.Errorf("ErrorText was not asked:\n%s", out.text())
	}
}

func TestErrorTextLetsTheApplicationsOwnTextsThrough(t *testing.T) {
	t.Parallel()
	var out sink
	own := func(err error) string {
		if coded, ok := errors.AsType[*codedError](err); ok {
			return coded.text
		}
		return ""
	}
	b := steps{handle: func(_ context.Context, c place) (placed, error) {
		if c.Cart == "c1" {
			return placed{}, &codedError{"DECLINED", "the limit is reached"}
		}
		return placed{}, fmt.Errorf("%+v", c)
	}}.bus(t, newObserver(t, logging.Config{Logger: out.logger(), ErrorText: own}))
	_, _ = bus.Send(t.Context(), b, thePlace)
	_, _ = bus.Send(t.Context(), b, place{Card: card})
	lines := out.lines(t)
	if len(lines) != 2 || lines[0]["error"] != "the limit is reached" || lines[1]["error"] != nil {
		t.Errorf("lines = %v", lines)
	}
}

func TestTheLevelAndTheMessageSayHowItEnded(t *testing.T) {
	t.Parallel()
	type outcome = requestctx.Outcome
	refusal := func(code string) error { return &codedError{code, "no"} }
	for _, c := range []struct {
		name           string
		outcome        outcome
		err            error
		level, message string
		code           string
	}{
		{"executed", outcome{State: requestctx.StateExecuted}, nil, "info", "succeeded", "OK"},
		{"replayed", outcome{State: requestctx.StateReplayed, Replayed: true}, nil, "info", "replayed", "OK"},
		{"a replayed refusal", outcome{State: requestctx.StateReplayed, Replayed: true}, refusal("PAYMENT_DECLINED"), "info", "replayed", "PAYMENT_DECLINED"},
		{"a final refusal", outcome{State: requestctx.StateExecuted}, refusal("PAYMENT_DECLINED"), "info", "refused", "PAYMENT_DECLINED"},
		{"in progress", outcome{State: requestctx.StateInProgress}, refusal("IDEMPOTENCY_REQUEST_IN_PROGRESS"), "info", "refused", "IDEMPOTENCY_REQUEST_IN_PROGRESS"},
		{"no key", outcome{State: requestctx.StateRefused}, refusal("IDEMPOTENCY_KEY_MISSING"), "info", "refused", "IDEMPOTENCY_KEY_MISSING"},
		{"validation", outcome{}, refusal("VALIDATION_FAILED"), "info", "refused", "VALIDATION_FAILED"},
		{"nested", outcome{State: requestctx.StateNested}, nil, "info", "succeeded", "OK"},
		{"conflict", outcome{State: requestctx.StateConflict}, refusal("IDEMPOTENCY_KEY_CONFLICT"), "warn", "refused", "IDEMPOTENCY_KEY_CONFLICT"},
		{"expired", outcome{State: requestctx.StateExpired}, refusal("IDEMPOTENCY_KEY_EXPIRED"), "warn", "refused", "IDEMPOTENCY_KEY_EXPIRED"},
		{"T02: a reused expired key", outcome{State: requestctx.StateExecuted, ReusedExpired: true}, nil, "warn", "succeeded", "OK"},
		{"H02: unprotected", outcome{State: requestctx.StateUnprotected}, nil, "warn", "succeeded", "OK"},
		{"unprotected and refused", outcome{State: requestctx.StateUnprotected}, refusal("PAYMENT_DECLINED"), "warn", "refused", "PAYMENT_DECLINED"},
		{"detached", outcome{State: requestctx.StateExecuted, Detached: true}, nil, "warn", "succeeded", "OK"},
		{"freed", outcome{State: requestctx.StateFreed}, refusal("PROVIDER_AWAY"), "warn", "failed", "PROVIDER_AWAY"},
		{"the caller went away", outcome{}, fmt.Errorf("reading: %w", context.Canceled), "warn", "failed", "CANCELED"},
		{"too late", outcome{}, context.DeadlineExceeded, "error", "failed", "DEADLINE_EXCEEDED"},
		{"unknown", outcome{State: requestctx.StateUnknown}, refusal("ANYTHING"), "error", "failed", "ANYTHING"},
		{"no code", outcome{State: requestctx.StateFreed}, errors.New("boom"), "error", "failed", "INTERNAL"},
		{"a rule that panicked", outcome{}, refusal("VALIDATION_PANIC"), "error", "failed", "VALIDATION_PANIC"},
		{"the store is away", outcome{State: requestctx.StateRefused}, refusal("IDEMPOTENCY_STORE_UNAVAILABLE"), "error", "failed", "IDEMPOTENCY_STORE_UNAVAILABLE"},
		{"no scope", outcome{State: requestctx.StateRefused}, refusal("IDEMPOTENCY_SCOPE_MISSING"), "error", "failed", "IDEMPOTENCY_SCOPE_MISSING"},
		{"a handler's fault", outcome{State: requestctx.StateFreed}, refusal("IDEMPOTENCY_HANDLER_FAULT"), "error", "failed", "IDEMPOTENCY_HANDLER_FAULT"},
		{"taken over", outcome{State: requestctx.StateExecuted, Attempt: 2, TookOver: true}, nil, "warn", "succeeded", "OK"},
		{"taken over and refused", outcome{State: requestctx.StateExecuted, Attempt: 2, TookOver: true}, refusal("PAYMENT_DECLINED"), "warn", "refused", "PAYMENT_DECLINED"},
		{"a later attempt", outcome{State: requestctx.StateExecuted, Attempt: 3}, nil, "info", "succeeded", "OK"},
		{"a first attempt", outcome{State: requestctx.StateExecuted, Attempt: 1}, nil, "info", "succeeded", "OK"},
		{"L09: lost, and nothing known", outcome{State: requestctx.StateLost, Attempt: 1}, refusal("IDEMPOTENCY_LEASE_LOST"), "error", "failed", "IDEMPOTENCY_LEASE_LOST"},
		{"L09: lost to one that has done it", outcome{State: requestctx.StateReplayed, Replayed: true, Attempt: 1}, nil, "warn", "replayed", "OK"},
		{"L09: lost to one that is at work", outcome{State: requestctx.StateInProgress, Attempt: 2, TookOver: true}, refusal("IDEMPOTENCY_REQUEST_IN_PROGRESS"), "warn", "refused", "IDEMPOTENCY_REQUEST_IN_PROGRESS"},
		{"L19: tried too often", outcome{State: requestctx.StateRefused, Attempt: 11}, refusal("IDEMPOTENCY_ATTEMPTS_EXHAUSTED"), "error", "failed", "IDEMPOTENCY_ATTEMPTS_EXHAUSTED"},
		{"R14: done, and its result not kept", outcome{State: requestctx.StateExecuted, Attempt: 1}, refusal("IDEMPOTENCY_RESULT_UNAVAILABLE"), "error", "failed", "IDEMPOTENCY_RESULT_UNAVAILABLE"},
		{"R14: its replay", outcome{State: requestctx.StateReplayed, Replayed: true}, refusal("IDEMPOTENCY_RESULT_UNAVAILABLE"), "info", "replayed", "IDEMPOTENCY_RESULT_UNAVAILABLE"},
		{"R08: nobody knows", outcome{State: requestctx.StateUnknown, Attempt: 1}, refusal("IDEMPOTENCY_OUTCOME_UNKNOWN"), "error", "failed", "IDEMPOTENCY_OUTCOME_UNKNOWN"},
		{"a wrapper's fault", outcome{State: requestctx.StateFreed}, refusal("AROUND_FAULT"), "error", "failed", "AROUND_FAULT"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var s sink
			b := steps{claim: reporting(c.outcome, false, c.err)}.bus(t, newObserver(t, logging.Config{Logger: s.logger()}))
			ctx, _ := request(t)
			if _, err := bus.Send(ctx, b, thePlace); !errors.Is(err, c.err) {
				t.Fatalf("err = %v", err)
			}
			line := s.line(t)
			if line["level"] != c.level || line["msg"] != "command "+c.message || line["outcome"] != c.code {
				t.Errorf("%v %v %v, want %s command %s %s", line["level"], line["msg"], line["outcome"], c.level, c.message, c.code)
			}
			if got, _ := line["state"].(string); got != string(c.outcome.State) {
				t.Errorf("state = %q", got)
			}
			for key, want := range map[string]bool{
				"replayed": c.outcome.Replayed, "reused_expired": c.outcome.ReusedExpired, "detached": c.outcome.Detached, "took_over": c.outcome.TookOver,
			} {
				if got, _ := line[key].(bool); got != want {
					t.Errorf("%s = %v", key, line[key])
				}
			}
		})
	}
}

func TestTheLineCountsAttemptsWhereThereIsSomethingToSay(t *testing.T) {
	t.Parallel()
	type outcome = requestctx.Outcome
	for _, c := range []struct {
		name    string
		outcome outcome
		want    any
	}{
		{"Atomic", outcome{State: requestctx.StateExecuted}, nil},
		{"the first attempt", outcome{State: requestctx.StateExecuted, Attempt: 1}, nil},
		{"the first attempt, which failed", outcome{State: requestctx.StateFreed, Attempt: 1}, nil},
		{"the second", outcome{State: requestctx.StateFreed, Attempt: 2}, 2.0},
		{"the second, after a takeover", outcome{State: requestctx.StateExecuted, Attempt: 2, TookOver: true}, 2.0},
		{"a replay", outcome{State: requestctx.StateReplayed, Replayed: true}, nil},
		{"a duplicate", outcome{State: requestctx.StateInProgress}, nil},
		{"L09: the first, which has lost its key", outcome{State: requestctx.StateLost, Attempt: 1}, 1.0},
		{"L09: and is answered with the other's outcome", outcome{State: requestctx.StateReplayed, Replayed: true, Attempt: 1}, 1.0},
		{"L09: or told that the other is at work", outcome{State: requestctx.StateInProgress, Attempt: 1}, 1.0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var s sink
			b := steps{claim: reporting(c.outcome, false, nil)}.bus(t, newObserver(t, logging.Config{Logger: s.logger()}))
			ctx, _ := request(t)
			if _, err := bus.Send(ctx, b, thePlace); err != nil {
				t.Fatal(err)
			}
			line := s.line(t)
			if line["attempt"] != c.want {
				t.Errorf("attempt = %v, want %v", line["attempt"], c.want)
			}
			if _, there := line["took_over"]; there != c.outcome.TookOver {
				t.Errorf("took_over = %v", line["took_over"])
			}
		})
	}
}

func TestAPanicIsOneLineAtErrorLevelAndGoesOn(t *testing.T) {
	t.Parallel()
	var s sink
	boom := errors.New("boom")
	b := steps{handle: func(context.Context, place) (placed, error) { panic(boom) }}.bus(t, newObserver(t, logging.Config{Logger: s.logger()}))
	ctx, _ := request(t)
	if f := send(ctx, b); f.panicked != boom {
		t.Fatalf("panic = %v", f.panicked)
	}
	line := s.line(t)
	if line["level"] != "error" || line["msg"] != "command panicked" || line["outcome"] != "PANIC" || strings.Contains(s.text(), "boom") {
		t.Errorf("line = %v", line)
	}
}

func TestV11_EveryRefusedAttemptIsALine(t *testing.T) {
	t.Parallel()
	refuse := func(code string) bus.Guard {
		return func(context.Context, bus.Invocation) error { return &codedError{code, "no"} }
	}
	for code, s := range map[string]steps{
		"NOT_YOU":                  {admit: refuse("NOT_YOU")},
		"NOT_THIS":                 {permit: refuse("NOT_THIS")},
		"VALIDATION_FAILED":        {validate: func(_ context.Context, c place) (place, error) { return c, &codedError{"VALIDATION_FAILED", "no"} }},
		"IDEMPOTENCY_KEY_CONFLICT": {claim: reporting(requestctx.Outcome{State: requestctx.StateConflict}, false, &codedError{"IDEMPOTENCY_KEY_CONFLICT", "no"})},
		"IDEMPOTENCY_REQUEST_IN_PROGRESS": {claim: reporting(requestctx.Outcome{State: requestctx.StateInProgress}, false,
			&codedError{"IDEMPOTENCY_REQUEST_IN_PROGRESS", "no"})},
		"PAYMENT_DECLINED": {handle: func(context.Context, place) (placed, error) { return placed{}, &codedError{"PAYMENT_DECLINED", "no"} }},
	} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			var out sink
			b := s.bus(t, newObserver(t, logging.Config{Logger: out.logger()}))
			for range 3 {
				ctx, _ := request(t)
				if _, err := bus.Send(ctx, b, thePlace); bus.CodeOf(err) != code {
					t.Fatalf("err = %v", err)
				}
			}
			lines := out.lines(t)
			if len(lines) != 3 {
				t.Fatalf("%d lines for 3 attempts", len(lines))
			}
			for _, line := range lines {
				if line["outcome"] != code || line["error_type"] != "*logging_test.codedError" || line["key"] == nil {
					t.Errorf("line = %v", line)
				}
			}
		})
	}
}

func TestBR40_EachReplayIsVisiblyAReplay(t *testing.T) {
	t.Parallel()
	var s sink
	first := true
	declined := &codedError{"PAYMENT_DECLINED", "card " + card}
	b := steps{claim: func(ctx context.Context, _ place, _ bus.Handler[place, placed]) (placed, error) {
		o := requestctx.Outcome{State: requestctx.StateExecuted, OriginalRequestID: "attempt-1"}
		if !first {
			o = requestctx.Outcome{State: requestctx.StateReplayed, Replayed: true, OriginalRequestID: "attempt-1"}
		}
		first = false
		requestctx.From(ctx).Report(o)
		return placed{}, declined
	}}.bus(t, newObserver(t, logging.Config{Logger: s.logger()}))
	for range 4 {
		ctx, _ := request(t)
		_, _ = bus.Send(ctx, b, thePlace)
	}
	lines := s.lines(t)
	if len(lines) != 4 {
		t.Fatalf("%d lines", len(lines))
	}
	for i, line := range lines {
		message, state, again := "command replayed", "replayed", true
		if i == 0 {
			message, state, again = "command refused", "executed", false
		}
		if line["msg"] != message || line["state"] != state || line["replayed"] != again || line["original_request_id"] != "attempt-1" ||
			line["outcome"] != "PAYMENT_DECLINED" {
			t.Errorf("line %d = %v", i, line)
		}
	}
	if strings.Contains(s.text(), card) {
		t.Error("a line holds the body")
	}
}

func TestQueriesAndChecksHaveNoStateOfTheirOwn(t *testing.T) {
	t.Parallel()
	var s sink
	b := steps{}.bus(t, newObserver(t, logging.Config{Logger: s.logger()}))
	ctx, req := request(t)
	req.Report(requestctx.Outcome{State: requestctx.StateReplayed, Replayed: true, OriginalRequestID: "attempt-1"}) // of a command before
	if _, err := bus.Ask(ctx, b, find{Order: "o1"}); err != nil {
		t.Fatal(err)
	}
	_, _ = bus.Ask(ctx, b, find{})
	if err := bus.Check(ctx, b, thePlace); err != nil {
		t.Fatal(err)
	}
	lines := s.lines(t)
	if len(lines) != 3 {
		t.Fatalf("%d lines", len(lines))
	}
	for i, want := range []struct{ message, command, kind, outcome string }{
		{"query succeeded", "checkout.find", "query", "OK"},
		{"query refused", "checkout.find", "query", "ORDER_NOT_FOUND"},
		{"check succeeded", "checkout.place", "check", "OK"},
	} {
		line := lines[i]
		if line["msg"] != want.message || line["command"] != want.command || line["kind"] != want.kind || line["outcome"] != want.outcome {
			t.Errorf("line %d = %v", i, line)
		}
		for _, key := range []string{"state", "replayed", "original_request_id"} {
			if v, ok := line[key]; ok {
				t.Errorf("line %d has %s = %v", i, key, v)
			}
		}
	}
}

func TestH10_ARefusedKeyIsNotWritten(t *testing.T) {
	t.Parallel()
	_, keyErr := requestctx.ParseKey("secret of 21 letters!")
	for name, c := range map[string]struct {
		err    error
		reason string
		length float64
	}{
		"of the parser":         {keyErr, "the character at position 7 is not one of A-Z a-z 0-9 . _ : -", 21},
		"wrapped":               {fmt.Errorf("secret of 21 letters!: %w", keyErr), "the character at position 7 is not one of A-Z a-z 0-9 . _ : -", 21},
		"of somebody else's":    {errors.New("secret of 21 letters!"), "refused", 0},
		"a nil pointer":         {(*requestctx.KeyError)(nil), "refused", 0},
		"one that panics":       {brokenError{}, "refused", 0},
		"several header lines":  {&requestctx.KeyError{Reason: "there is more than one"}, "there is more than one", 0},
		"a reason without end":  {&requestctx.KeyError{Reason: strings.Repeat("x", 300)}, strings.Repeat("x", 256) + "…", 0},
		"an empty reason is no": {&requestctx.KeyError{Length: 3}, "", 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var s sink
			b := steps{}.bus(t, newObserver(t, logging.Config{Logger: s.logger()}))
			ctx, _ := requestctx.New(t.Context(), requestctx.Values{KeyErr: c.err})
			if _, err := bus.Send(ctx, b, thePlace); err != nil {
				t.Fatal(err)
			}
			line := s.line(t)
			if reason, _ := line["key_error"].(string); reason != c.reason || line["key_length"] != c.length || line["key"] != nil {
				t.Errorf("line = %v", line)
			}
			if strings.Contains(s.text(), "secret") {
				t.Errorf("the refused key is in the log:\n%s", s.text())
			}
		})
	}
}

func TestADispatchWithoutARequestContextIsALineAsWell(t *testing.T) {
	t.Parallel()
	var s sink
	b := steps{}.bus(t, newObserver(t, logging.Config{Logger: s.logger()}))
	if _, err := bus.Send(t.Context(), b, thePlace); err != nil {
		t.Fatal(err)
	}
	line := s.line(t)
	if line["msg"] != "command succeeded" || line["duration"] == nil {
		t.Errorf("line = %v", line)
	}
	for _, key := range []string{"key", "client", "tenant", "source", "request_id", "external_ref", "draft_id", "attributes"} {
		if v, ok := line[key]; ok {
			t.Errorf("%s = %v came from nowhere", key, v)
		}
	}
}

func TestTheErrorTypeIsThatOfTheInnermostError(t *testing.T) {
	t.Parallel()
	inner := &codedError{"X", "x"}
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"plain":                      {inner, "*logging_test.codedError"},
		"wrapped twice":              {fmt.Errorf("a: %w", fmt.Errorf("b: %w", inner)), "*logging_test.codedError"},
		"joined: the first":          {errors.Join(inner, io.EOF), "*logging_test.codedError"},
		"a tree without branches":    {branchless{}, "logging_test.branchless"},
		"an Unwrap that gives nil":   {fmt.Errorf("a: %w", nilUnwrap{}), "logging_test.nilUnwrap"},
		"an Unwrap that panics":      {fmt.Errorf("a: %w", brokenError{}), "logging_test.brokenError"},
		"an error that wraps itself": {selfWrapping{}, "logging_test.selfWrapping"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var s sink
			b := steps{permit: func(context.Context, bus.Invocation) error { return c.err }}.bus(t, newObserver(t, logging.Config{Logger: s.logger()}))
			_, _ = bus.Send(t.Context(), b, thePlace)
			if got := s.line(t)["error_type"]; got != c.want {
				t.Errorf("error_type = %v", got)
			}
		})
	}
}

type (
	branchless   struct{}
	nilUnwrap    struct{}
	brokenError  struct{}
	selfWrapping struct{}
)

func (branchless) Error() string     { return "" }
func (branchless) Unwrap() []error   { return nil }
func (nilUnwrap) Error() string      { return "" }
func (nilUnwrap) Unwrap() error      { return nil }
func (brokenError) Error() string    { panic(card) }
func (brokenError) Unwrap() error    { panic(card) }
func (selfWrapping) Error() string   { return "" }
func (e selfWrapping) Unwrap() error { return e }
func (e selfWrapping) Code() string  { return "SELF" }

func TestTextsAreCut(t *testing.T) {
	t.Parallel()
	var s sink
	o := newObserver(t, logging.Config{Logger: s.logger(), ErrorText: func(error) string { return strings.Repeat("e", math.MaxUint16) }})
	b := steps{handle: func(ctx context.Context, _ place) (placed, error) {
		requestctx.From(ctx).SetExternalRef(strings.Repeat("ç", 300))
		requestctx.From(ctx).SetDraftID(strings.Repeat("d", 300))
		requestctx.From(ctx).Add(strings.Repeat("n", 300), strings.Repeat("v", 100_000))
		return placed{}, &codedError{code: strings.Repeat("C", 300)}
	}}.bus(t, o)
	ctx, _ := requestctx.New(t.Context(), requestctx.Values{ID: strings.Repeat("i", 300), Source: strings.Repeat("s", 256)})
	_, _ = bus.Send(ctx, b, thePlace)
	line := s.line(t)
	for key, want := range map[string]string{
		"request_id": strings.Repeat("i", 256) + "…", "source": strings.Repeat("s", 256), "external_ref": strings.Repeat("ç", 128) + "…",
		"draft_id": strings.Repeat("d", 256) + "…",
		"outcome":  strings.Repeat("C", 256) + "…", "error": strings.Repeat("e", 256) + "…",
	} {
		if line[key] != want {
			t.Errorf("%s = %v", key, line[key])
		}
	}
	if attrs, _ := line["attributes"].(map[string]any); attrs[strings.Repeat("n", 256)+"…"] != strings.Repeat("v", 256)+"…" {
		t.Errorf("attributes = %v", attrs)
	}
	if !utf8.ValidString(s.text()) {
		t.Error("a text was cut inside a character")
	}
}

func TestADisabledLevelAsksNothing(t *testing.T) {
	t.Parallel()
	core, logs := observer.New(zapcore.ErrorLevel)
	asked := 0
	o := newObserver(t, logging.Config{Logger: zap.New(core), Fields: func(context.Context) []zap.Field { asked++; return nil }})
	b := steps{}.bus(t, o)
	if _, err := bus.Send(t.Context(), b, thePlace); err != nil {
		t.Fatal(err)
	}
	if asked != 0 || logs.Len() != 0 {
		t.Errorf("asked %d times, %d lines", asked, logs.Len())
	}
	failing := steps{handle: func(context.Context, place) (placed, error) { return placed{}, io.EOF }}.bus(t, o)
	_, _ = bus.Send(t.Context(), failing, thePlace)
	if asked != 1 || logs.Len() != 1 {
		t.Errorf("after a fault: asked %d times, %d lines", asked, logs.Len())
	}
}

func TestALevelThatIsLoweredDuringADispatchGivesALineWithoutADuration(t *testing.T) {
	t.Parallel()
	level := zap.NewAtomicLevelAt(zapcore.FatalLevel)
	var s sink
	logger := zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), zapcore.AddSync(&s), level))
	b := steps{handle: func(ctx context.Context, _ place) (placed, error) {
		level.SetLevel(zapcore.InfoLevel)
		requestctx.From(ctx).Add("draft_order_id", "d-12")
		return placed{}, nil
	}}.bus(t, newObserver(t, logging.Config{Logger: logger}))
	ctx, _ := request(t)
	if _, err := bus.Send(ctx, b, thePlace); err != nil {
		t.Fatal(err)
	}
	line := s.line(t)
	if _, ok := line["duration"]; ok || line["key"] == nil || fmt.Sprint(line["attributes"]) != "map[draft_order_id:d-12]" {
		t.Errorf("line = %v", line)
	}
}

func TestTheRestOfThePipelineSeesTheCallersContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	b := steps{handle: func(ctx context.Context, _ place) (placed, error) {
		if requestctx.From(ctx) == nil {
			t.Error("the request is lost")
		}
		child, stop := context.WithCancel(ctx)
		defer stop()
		cancel()
		<-child.Done()
		return placed{}, ctx.Err()
	}}.bus(t, newObserver(t, logging.Config{Logger: zap.NewNop()}))
	withRequest, _ := requestctx.New(ctx, requestctx.Values{})
	if _, err := bus.Send(withRequest, b, thePlace); !errors.Is(err, context.Canceled) {
		t.Errorf("err = %v", err)
	}
}

// The race detector is what this test is for.
func TestOneObserverServesManyGoroutines(t *testing.T) {
	t.Parallel()
	var s sink
	o := newObserver(t, logging.Config{Logger: s.logger(), Fields: func(context.Context) []zap.Field { return []zap.Field{zap.Bool("own", true)} }})
	b := steps{handle: func(ctx context.Context, _ place) (placed, error) {
		requestctx.From(ctx).Add("draft_order_id", "d-12")
		return placed{}, nil
	}}.bus(t, o)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				ctx, _ := requestctx.New(t.Context(), requestctx.Values{})
				if _, err := bus.Send(ctx, b, thePlace); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	ids := map[any]bool{}
	for _, line := range s.lines(t) {
		ids[line["request_id"]] = true
	}
	if len(ids) != 400 {
		t.Errorf("%d different requests in the log, want 400", len(ids))
	}
}
