package logging_test

import (
	"context"
	"errors"
	"io"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/tekil-go/tekil/behaviors/logging"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
)

// plainLine is what an application would write by hand: the same fields, one call.
func plainLine(logger *zap.Logger) {
	logger.Info("command succeeded",
		zap.String("command", "checkout.place"), zap.String("kind", "command"), zap.String("outcome", "OK"), zap.String("state", "executed"),
		zap.Bool("replayed", false), zap.String("original_request_id", "attempt-2"), zap.Duration("duration", 1234567),
		zap.String("key", "8e03978e-40d5-43e8-bc93-6894a57f9324"), zap.String("client", "acme-erp"), zap.String("tenant", "acme/1"),
		zap.String("source", "POST /v1/checkouts"), zap.String("request_id", "attempt-2"))
}

func discard(level zapcore.Level) *zap.Logger {
	return zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), zapcore.AddSync(io.Discard), level))
}

// executed is a request whose command has run.
func executed(tb testing.TB) context.Context {
	tb.Helper()
	ctx, req := request(tb)
	req.Report(requestctx.Outcome{State: requestctx.StateExecuted, OriginalRequestID: "attempt-2"})
	return ctx
}

// testing.AllocsPerRun looks at the whole process, so this test is not parallel.
func TestLoggingAllocatesOnceBesidesWhatZapDoes(t *testing.T) { //nolint:paralleltest // see above
	ctx := executed(t)
	handles := func(err error) steps {
		return steps{handle: func(context.Context, place) (placed, error) { return placed{}, err }}
	}
	declined := &codedError{"PAYMENT_DECLINED", "declined"}
	info := discard(zapcore.InfoLevel)
	plain := testing.AllocsPerRun(200, func() { plainLine(info) })
	for name, c := range map[string]struct {
		logger *zap.Logger
		steps  steps
		ctx    context.Context
		want   float64
	}{
		"success":                    {info, handles(nil), ctx, plain + 1},
		"refusal":                    {info, handles(declined), ctx, plain + 1},
		"fault":                      {info, handles(errors.New("boom")), ctx, plain + 1},
		"without a request context":  {info, handles(nil), context.Background(), plain + 1},
		"a level that is not wanted": {discard(zapcore.ErrorLevel), handles(nil), ctx, 1},
		"no logging at all":          {zap.NewNop(), handles(nil), ctx, 0},
	} {
		send, err := bus.Bind[place](c.steps.bus(t, newObserver(t, logging.Config{Logger: c.logger})))
		if err != nil {
			t.Fatal(err)
		}
		if n := testing.AllocsPerRun(200, func() { _, _ = send(c.ctx, thePlace) }); n > c.want {
			t.Errorf("%s: %v allocations, want at most %v (a plain line of zap's has %v)", name, n, c.want, plain)
		}
	}
}

// The goal is one allocation more than plain-zap.
func BenchmarkLogging(b *testing.B) {
	logger := discard(zapcore.InfoLevel)
	b.Run("plain-zap", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			plainLine(logger)
		}
	})
	for name, l := range map[string]*zap.Logger{"observer": logger, "observer-level-off": discard(zapcore.ErrorLevel), "observer-nop": zap.NewNop()} {
		b.Run(name, func(b *testing.B) {
			send, err := bus.Bind[place](steps{}.bus(b, newObserver(b, logging.Config{Logger: l})))
			if err != nil {
				b.Fatal(err)
			}
			ctx := executed(b)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := send(ctx, thePlace); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
