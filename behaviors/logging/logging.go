package logging

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
)

// ErrNoLogger is returned by [New] for a [Config] without a logger.
var ErrNoLogger = errors.New("logging: Config.Logger is nil; give it a logger, or zap.NewNop() to log nothing")

// Config says where the lines go, and what stands on them besides the pipeline's own fields.
type Config struct {
	// Logger gets one line for each dispatch. It must be set; zap.NewNop() logs nothing.
	Logger *zap.Logger
	// Fields adds fields of the application's, from the context alone; nil adds none. It is called from many goroutines at
	// once, and only for lines that are written. At most 32 fields are taken. One that panics when it is encoded is left out,
	// and the line says so in log_error. Keys should differ from the ones that [Observer] writes.
	Fields func(context.Context) []zap.Field
	// ErrorText gives what of an error may be logged; "" is nothing. Nil logs no error's text, only its outcome code and the
	// Go type of its innermost error, because a text may quote the payload: a handler's error may be made with %+v of the
	// command. A function that knows the application's own errors can let their texts through.
	ErrorText func(error) string
}

// Observer writes one line for every dispatch, at its end (rules pipe-2, see-1). Make it with [New]; it is safe for concurrent
// use. A nil Observer writes nothing.
//
// A line has these fields, each where there is something to say: command (the name, for queries as well), kind (command, query
// or check), outcome (OK, PANIC or the code that [bus.CodeOf] gives), state and replayed (of marked commands), key,
// key_error and key_length (of a key that was refused), client, tenant, source, request_id, original_request_id, external_ref, draft_id,
// reused_expired, detached, attempt (of a Leased command, from the second on), took_over, attributes, duration, error_type, error
// and log_error. A first attempt is written as well where its key was taken from it while it ran: state and replayed are then
// those of what it was answered with. The key stands there whole, because support
// searches by it; a page that shows a line has to mask it (rule key-4). Texts are cut at 256 bytes.
//
// The level is Info for successes, replays, and refusals that are the caller's to mend. It is Warn for what somebody should
// look at one day: a key used for two payloads or after its expiry, a marked command without a key, a handler that left its
// transaction unused, a key that was taken over from an attempt that had died, an attempt whose key was taken from it, a failure
// that freed the key, a caller that went away. It is Error for faults: panics, errors without a code of their own, a store that is
// away, an outcome that nobody knows, work that was refused because its lease was lost, a key that was tried too often, a result
// that could not be stored, a handler that broke its contract.
//
// Nothing that goes wrong in logging changes what becomes of a dispatch. A panic's value and a refused key are never written.
type Observer struct {
	logger    *zap.Logger
	fields    func(context.Context) []zap.Field
	errorText func(error) string
}

var _ bus.Observer = (*Observer)(nil)

// New makes an Observer. The only error is [ErrNoLogger].
func New(cfg Config) (*Observer, error) {
	if cfg.Logger == nil {
		return nil, ErrNoLogger
	}
	return &Observer{logger: cfg.Logger, fields: cfg.Fields, errorText: cfg.ErrorText}, nil
}

// timed is the context of a dispatch that will be logged: one allocation, where a context value would be two.
type timed struct {
	context.Context
	start time.Time
	attrs attributes
	room  [usualFields]zap.Field // of the line: one allocation for both
}

// Started notes the time, unless the logger takes no lines at all.
func (o *Observer) Started(ctx context.Context, inv bus.Invocation) context.Context {
	if inv.Idempotent {
		requestctx.From(ctx).Report(requestctx.Outcome{}) // what an earlier dispatch on this context came to is not this one's
	}
	if o == nil || !o.logger.Core().Enabled(zapcore.ErrorLevel) {
		return ctx
	}
	return &timed{Context: ctx, start: time.Now()}
}

// Ended writes the line.
func (o *Observer) Ended(ctx context.Context, inv bus.Invocation, err error, panicked bool) {
	if o == nil {
		return
	}
	req := requestctx.From(ctx)
	l := line{inv: inv, err: err, panicked: panicked, outcome: outcomeOf(err, panicked)}
	if l.reports() {
		l.Outcome = req.Outcome()
	}
	level, verb := l.judge()
	entry := o.logger.Check(level, message(l.kind(), verb))
	if entry == nil {
		return
	}
	t, ok := ctx.(*timed)
	if !ok {
		t = &timed{} // the level was lowered in between
	}
	own := l.appendTo(t.room[:0])
	own = t.appendTo(own, req)

	x := o.application(ctx, err)
	if write(entry, x.appendTo(own)) || !x.lazy {
		return
	}
	// A field that could be encoded a moment ago could not be now. All that is left of the application's is a note.
	if entry = o.logger.Check(level, message(l.kind(), verb)); entry != nil {
		write(entry, extra{problem: "a field panicked"}.appendTo(own))
	}
}

// write reports whether the line went to zap without a panic.
func write(entry *zapcore.CheckedEntry, fields []zap.Field) bool {
	return guarded(func() { entry.Write(fields...) })
}
