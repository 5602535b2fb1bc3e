package logging

import (
	"errors"
	"reflect"
	"time"
	"unicode/utf8"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/tekil-go/tekil/behaviors/internal/fault"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
)

const (
	// usualFields is room for the fields of most lines. It lies in the context of the dispatch, so that the two are one
	// allocation; a line with more fields takes one more.
	usualFields = 10
	// maxText is where a text is cut, in bytes.
	maxText = 256
)

// line is what became of a dispatch.
type line struct {
	inv      bus.Invocation
	err      error
	panicked bool
	outcome  string
	requestctx.Outcome
}

func outcomeOf(err error, panicked bool) string {
	switch {
	case panicked:
		return "PANIC"
	case err == nil:
		return "OK"
	}
	return bus.CodeOf(err)
}

// reports is whether the idempotency stage had a word in this. Where it had not, the request context may still hold what it
// said of an earlier dispatch.
func (l *line) reports() bool { return l.inv.Idempotent && !l.inv.Query && !l.inv.Check }

type kind int

const (
	command kind = iota
	query
	check
)

func (k kind) String() string { return [...]string{"command", "query", "check"}[k] }

func (l *line) kind() kind {
	switch {
	case l.inv.Check:
		return check
	case l.inv.Query:
		return query
	}
	return command
}

type verb int

const (
	succeeded verb = iota
	replayed
	refused
	failed
	panicked
)

func message(k kind, v verb) string {
	return [...][5]string{
		{"command succeeded", "command replayed", "command refused", "command failed", "command panicked"},
		{"query succeeded", "query replayed", "query refused", "query failed", "query panicked"},
		{"check succeeded", "check replayed", "check refused", "check failed", "check panicked"},
	}[k][v]
}

// judge says how the dispatch ended and who should read of it.
func (l *line) judge() (zapcore.Level, verb) {
	notable := zapcore.InfoLevel
	if l.ReusedExpired || l.Detached || l.TookOver || l.superseded() || l.State == requestctx.StateUnprotected {
		notable = zapcore.WarnLevel
	}
	switch {
	case l.panicked:
		return zapcore.ErrorLevel, panicked
	case l.Replayed:
		return notable, replayed
	case l.err == nil:
		return notable, succeeded
	case l.State == requestctx.StateUnknown || fault.Is(l.outcome):
		return zapcore.ErrorLevel, failed
	case l.State == requestctx.StateFreed || l.outcome == "CANCELED":
		return zapcore.WarnLevel, failed
	case l.State == requestctx.StateConflict || l.State == requestctx.StateExpired:
		return zapcore.WarnLevel, refused
	}
	return notable, refused
}

// superseded is whether the dispatch made an attempt and was answered with what another one has left: its key was taken over or
// released while it ran.
func (l *line) superseded() bool {
	return l.Attempt > 0 && (l.Replayed || l.State == requestctx.StateInProgress || l.State == requestctx.StateLost)
}

// appendTo writes what the dispatch itself says.
func (l *line) appendTo(to []zap.Field) []zap.Field {
	to = append(to, zap.String("command", short(l.inv.Name)), zap.String("kind", l.kind().String()), zap.String("outcome", short(l.outcome)))
	if l.reports() {
		to = text(to, "state", string(l.State))
		to = append(to, zap.Bool("replayed", l.Replayed))
		to = text(to, "original_request_id", l.OriginalRequestID)
		to = flag(to, "reused_expired", l.ReusedExpired)
		to = flag(to, "detached", l.Detached)
		if l.Attempt > 1 || l.superseded() {
			to = append(to, zap.Int("attempt", l.Attempt))
		}
		to = flag(to, "took_over", l.TookOver)
	}
	if l.err != nil {
		to = text(to, "error_type", innermostType(l.err))
	}
	return to
}

// appendTo writes the duration and what the request context says.
func (t *timed) appendTo(to []zap.Field, req *requestctx.Request) []zap.Field {
	if !t.start.IsZero() {
		to = append(to, zap.Duration("duration", time.Since(t.start)))
	}
	if err := req.KeyErr(); err != nil {
		reason, length := keyError(err)
		to = append(text(to, "key_error", reason), zap.Int("key_length", length))
	}
	scope := req.Scope()
	to = text(to, "key", req.Key().String())
	to = text(to, "client", scope.Client)
	to = text(to, "tenant", scope.Tenant)
	to = text(to, "source", req.Source())
	to = text(to, "request_id", req.ID())
	to = text(to, "external_ref", req.ExternalRef())
	to = text(to, "draft_id", req.DraftID())
	if t.attrs = req.Attributes(); len(t.attrs) > 0 {
		to = append(to, zap.Object("attributes", &t.attrs))
	}
	return to
}

func text(to []zap.Field, key, value string) []zap.Field {
	if value == "" {
		return to
	}
	return append(to, zap.String(key, short(value)))
}

func flag(to []zap.Field, key string, value bool) []zap.Field {
	if !value {
		return to
	}
	return append(to, zap.Bool(key, true))
}

// short cuts s at a character's end.
func short(s string) string {
	if len(s) <= maxText {
		return s
	}
	end := maxText
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + "…"
}

// attributes is what the request's handler added.
type attributes []requestctx.Attribute

func (a *attributes) MarshalLogObject(enc zapcore.ObjectEncoder) error {
	for _, attr := range *a {
		enc.AddString(short(attr.Name), short(attr.Value))
	}
	return nil
}

// keyError says of a refused key what may be said.
func keyError(err error) (reason string, length int) {
	reason = "refused"
	guarded(func() {
		if refused, ok := errors.AsType[*requestctx.KeyError](err); ok {
			reason, length = refused.Reason, refused.Length
		}
	})
	return reason, length
}

// maxDepth bounds the walk down an error that wraps itself.
const maxDepth = 64

// innermostType is the Go type at the bottom of err, by the first branch where it is a tree.
func innermostType(err error) string {
	guarded(func() {
		for range maxDepth {
			var next error
			switch e := err.(type) {
			case interface{ Unwrap() error }:
				next = e.Unwrap()
			case interface{ Unwrap() []error }:
				if branches := e.Unwrap(); len(branches) > 0 {
					next = branches[0]
				}
			}
			if next == nil {
				return
			}
			err = next
		}
	})
	return reflect.TypeOf(err).String()
}
