package logging_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/tekil-go/tekil/behaviors/logging"
	"github.com/tekil-go/tekil/bus"
)

// Marshallers and the like that an application could hand over. All of them panic with a card number in hand.
type (
	panickingObject   struct{}
	panickingArray    struct{}
	panickingStringer struct{}
	panickingJSON     struct{}
	valueObject       struct{ Name string }
	valueStringer     struct{ Name string }
	halfway           struct{}
	moody             struct{ calls int }
	failing           struct{}
)

func (panickingObject) MarshalLogObject(zapcore.ObjectEncoder) error { panic(card) }
func (panickingArray) MarshalLogArray(zapcore.ArrayEncoder) error    { panic(card) }
func (panickingStringer) String() string                             { panic(card) }
func (panickingJSON) MarshalJSON() ([]byte, error)                   { panic(card) }
func (v valueStringer) String() string                               { return v.Name }
func (v valueObject) MarshalLogObject(enc zapcore.ObjectEncoder) error {
	enc.AddString("name", v.Name)
	return nil
}

// halfway panics inside an object inside an object, when zap has already opened both.
func (halfway) MarshalLogObject(enc zapcore.ObjectEncoder) error {
	enc.AddString("before", "x")
	return enc.AddObject("inner", panickingObject{})
}

// moody works the first time.
func (m *moody) MarshalLogObject(zapcore.ObjectEncoder) error {
	if m.calls++; m.calls > 1 {
		panic(card)
	}
	return nil
}

func (failing) MarshalLogObject(zapcore.ObjectEncoder) error { return errors.New("not today") }

// outcomes are the ends that logging must not change.
func outcomes() map[string]struct {
	steps steps
	want  fate
} {
	declined, boom := &codedError{"PAYMENT_DECLINED", "declined"}, errors.New("boom")
	return map[string]struct {
		steps steps
		want  fate
	}{
		"success": {steps{}, fate{got: placed{Order: "o1"}}},
		"refusal": {steps{handle: func(context.Context, place) (placed, error) { return placed{}, declined }}, fate{err: declined}},
		"panic":   {steps{handle: func(context.Context, place) (placed, error) { panic(boom) }}, fate{panicked: boom}},
	}
}

func TestBR58_AFieldThatCannotBeWrittenIsLeftOutAndSaidSo(t *testing.T) {
	t.Parallel()
	for name, field := range map[string]func() zap.Field{
		"a panicking object":                     func() zap.Field { return zap.Object("bad", panickingObject{}) },
		"a panicking array":                      func() zap.Field { return zap.Array("bad", panickingArray{}) },
		"a panicking inline object":              func() zap.Field { return zap.Inline(panickingObject{}) },
		"a panic in an object in an object":      func() zap.Field { return zap.Object("bad", halfway{}) },
		"a panicking Stringer":                   func() zap.Field { return zap.Stringer("bad", panickingStringer{}) },
		"a panicking error":                      func() zap.Field { return zap.NamedError("bad", brokenError{}) },
		"a panicking MarshalJSON":                func() zap.Field { return zap.Reflect("bad", panickingJSON{}) },
		"a panicking MarshalJSON inside a slice": func() zap.Field { return zap.Any("bad", []any{panickingJSON{}}) },
		"nil with an object's value receiver":    func() zap.Field { return zap.Object("bad", (*valueObject)(nil)) },
		"nil with a Stringer's value receiver":   func() zap.Field { return zap.Stringer("bad", (*valueStringer)(nil)) },
		"an object field that holds nothing":     func() zap.Field { return zap.Field{Key: "bad", Type: zapcore.ObjectMarshalerType} },
		"a nil Stringer":                         func() zap.Field { return zap.Stringer("bad", nil) },
		"a nil array":                            func() zap.Field { return zap.Array("bad", nil) },
		"the zero field":                         func() zap.Field { return zap.Field{} },
		"a field of no known type":               func() zap.Field { return zap.Field{Key: "bad", Type: 250, String: card} },
		"a field that holds the wrong thing":     func() zap.Field { return zap.Field{Key: "bad", Type: zapcore.BinaryType, Interface: 7} },
		"an object that panics the second time":  func() zap.Field { return zap.Object("bad", &moody{}) },
	} {
		for end, o := range outcomes() {
			t.Run(name+"/"+end, func(t *testing.T) {
				t.Parallel()
				var s sink
				obs := newObserver(t, logging.Config{Logger: s.logger(), Fields: func(context.Context) []zap.Field {
					return []zap.Field{field(), zap.String("region", "eu"), field()}
				}})
				ctx, _ := request(t)
				if got := send(ctx, o.steps.bus(t, obs)); got != o.want {
					t.Fatalf("the caller got %+v, want %+v", got, o.want)
				}
				line := s.line(t)
				if line["command"] != "checkout.place" || line["key"] == nil || line["duration"] == nil {
					t.Errorf("the line lost fields of its own: %v", line)
				}
				if line["log_error"] != "a field panicked" || line["bad"] != nil {
					t.Errorf("log_error = %v, bad = %v", line["log_error"], line["bad"])
				}
				if line["region"] != "eu" && !strings.Contains(name, "second time") {
					t.Errorf("the good field is lost: %v", line)
				}
				if strings.Contains(s.text(), card) {
					t.Errorf("what a field panicked with is in the log:\n%s", s.text())
				}
			})
		}
	}
}

func TestBR58_AFunctionThatPanicsIsSaidSo(t *testing.T) {
	t.Parallel()
	good := func(context.Context) []zap.Field { return []zap.Field{zap.String("region", "eu")} }
	for name, c := range map[string]struct {
		cfg  logging.Config
		want string
	}{
		"Fields":    {logging.Config{Fields: func(context.Context) []zap.Field { panic(card) }}, "Config.Fields panicked"},
		"ErrorText": {logging.Config{Fields: good, ErrorText: func(error) string { panic(card) }}, "Config.ErrorText panicked"},
	} {
		for end, o := range outcomes() {
			t.Run(name+"/"+end, func(t *testing.T) {
				t.Parallel()
				var s sink
				cfg := c.cfg
				cfg.Logger = s.logger()
				ctx, _ := request(t)
				if got := send(ctx, o.steps.bus(t, newObserver(t, cfg))); got != o.want {
					t.Fatalf("the caller got %+v, want %+v", got, o.want)
				}
				line := s.line(t)
				want := any(c.want)
				if name == "ErrorText" && end != "refusal" {
					want = nil // nobody asked
				}
				if line["log_error"] != want || line["command"] == nil || strings.Contains(s.text(), card) {
					t.Errorf("line = %v", line)
				}
				if name == "ErrorText" && line["region"] != "eu" {
					t.Errorf("the good field is lost: %v", line)
				}
			})
		}
	}
}

// brokenCore is a core that panics or fails in one place.
type brokenCore struct {
	zapcore.Core
	at string
}

func (c brokenCore) Enabled(l zapcore.Level) bool {
	if c.at == "Enabled" {
		panic(card)
	}
	return c.Core.Enabled(l)
}

func (c brokenCore) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.at == "Check" {
		panic(card)
	}
	return ce.AddCore(e, c)
}

func (c brokenCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	switch c.at {
	case "Write":
		panic(card)
	case "an error":
		return errors.New("disk full")
	}
	return c.Core.Write(e, fields)
}

func TestBR58_ACoreThatPanicsOrFailsChangesNothing(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"Enabled", "Check", "Write", "an error"} {
		for end, o := range outcomes() {
			t.Run(at+"/"+end, func(t *testing.T) {
				t.Parallel()
				var s sink
				logger := zap.New(brokenCore{s.logger().Core(), at}, zap.ErrorOutput(zapcore.AddSync(io.Discard)))
				obs := newObserver(t, logging.Config{Logger: logger})
				ctx, _ := request(t)
				if got := send(ctx, o.steps.bus(t, obs)); got != o.want {
					t.Fatalf("the caller got %+v, want %+v", got, o.want)
				}
				if s.text() != "" {
					t.Errorf("a broken core wrote %s", s.text())
				}
			})
		}
	}
}

func TestBR58_AHookThatPanicsDoesNotDoubleTheLine(t *testing.T) {
	t.Parallel()
	var s sink
	logger := s.logger().WithOptions(zap.Hooks(func(zapcore.Entry) error { panic(card) }))
	b := steps{}.bus(t, newObserver(t, logging.Config{Logger: logger, Fields: func(context.Context) []zap.Field {
		return []zap.Field{zap.String("region", "eu"), zap.Stringer("s", valueStringer{"x"})}
	}}))
	ctx, _ := request(t)
	if got := send(ctx, b); got != (fate{got: placed{Order: "o1"}}) {
		t.Fatalf("the caller got %+v", got)
	}
	s.line(t)
}

func TestGoodFieldsOfTheApplicationStandOnTheLine(t *testing.T) {
	t.Parallel()
	var s sink
	type regionKey struct{}
	b := steps{}.bus(t, newObserver(t, logging.Config{Logger: s.logger(), Fields: func(ctx context.Context) []zap.Field {
		return []zap.Field{
			zap.String("region", fmt.Sprint(ctx.Value(regionKey{}))), zap.Int("shard", 7), zap.Bool("canary", true), zap.Float64("load", 0.5),
			zap.Duration("age", time.Second), zap.Time("since", time.Unix(0, 0)), zap.Stringer("who", valueStringer{"ada"}),
			zap.Object("host", valueObject{"h1"}), zap.Strings("tags", []string{"a", "b"}), zap.NamedError("cause", io.EOF), zap.Error(nil),
			zap.Skip(), zap.Reflect("any", map[string]int{"n": 1}), zap.Object("odd", failing{}), zap.Binary("raw", []byte("hi")),
			zap.Namespace("deep"), zap.String("below", "x"),
		}
	}}))
	ctx, _ := request(t)
	if _, err := bus.Send(context.WithValue(ctx, regionKey{}, "eu"), b, thePlace); err != nil {
		t.Fatal(err)
	}
	line := s.line(t)
	for key, want := range map[string]string{
		"region": "eu", "shard": "7", "canary": "true", "load": "0.5", "age": "1", "since": "0", "who": "ada", "host": "map[name:h1]", "tags": "[a b]",
		"cause": "EOF", "any": "map[n:1]", "oddError": "not today", "raw": "aGk=", "deep": "map[below:x]",
	} {
		if got := fmt.Sprint(line[key]); !strings.HasPrefix(got, strings.TrimSuffix(want, "]")) {
			t.Errorf("%s = %s, want %s", key, got, want)
		}
	}
	if line["log_error"] != nil || line["error"] != nil {
		t.Errorf("line = %v", line)
	}
}

func TestTheApplicationsFieldsAreBounded(t *testing.T) {
	t.Parallel()
	var s sink
	b := steps{}.bus(t, newObserver(t, logging.Config{Logger: s.logger(), Fields: func(context.Context) []zap.Field {
		fields := []zap.Field{zap.Namespace("own")}
		for i := range 100 {
			fields = append(fields, zap.Int(fmt.Sprintf("f%d", i), i))
		}
		return fields
	}}))
	if _, err := bus.Send(t.Context(), b, thePlace); err != nil {
		t.Fatal(err)
	}
	line := s.line(t)
	own, _ := line["own"].(map[string]any)
	if line["log_error"] != "Config.Fields gave too many fields" || own["f30"] != float64(30) || own["f31"] != nil {
		t.Errorf("line = %v", line)
	}
}
