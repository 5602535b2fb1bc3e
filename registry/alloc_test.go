package registry_test

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/go-playground/validator/v10"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/registry"
	"github.com/tekil-go/tekil/requestctx"
)

// order is a command without the mark, of the size that commands have.
type order struct {
	CartID   string `json:"cart_id"  validate:"required"`
	Amount   int64  `json:"amount"   validate:"gt=0"`
	Currency string `json:"currency" validate:"iso4217"`
}

func (order) CommandName() bus.Name[ordered] { return "bench.order" }

type ordered struct{ Amount int64 }

//go:noinline
func takeOrder(_ context.Context, cmd order) (ordered, error) { return ordered{cmd.Amount}, nil }

// alone are the parts of the pipeline that nobody can leave out, each called as an application would by hand.
type alone struct {
	ctx    context.Context
	cmd    order
	rules  *validator.Validate
	logger *zap.Logger
	req    *requestctx.Request
}

func newAlone(tb testing.TB) *alone {
	tb.Helper()
	key, err := requestctx.ParseKey("8e03978e-40d5-43e8-bc93-6894a57f9324")
	if err != nil {
		tb.Fatal(err)
	}
	p := &alone{
		cmd: order{"cart-1", 4990, "TRY"}, rules: validator.New(validator.WithRequiredStructEnabled()),
		logger: zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), zapcore.AddSync(io.Discard), zapcore.InfoLevel)),
	}
	p.ctx, p.req = requestctx.New(context.Background(), requestctx.Values{
		ID: "0199d0a1-7c2b-7b51-8f3a-5d9d1f6a2c11", Key: key, Source: "POST /v1/orders", Scope: requestctx.Scope{Client: "acme-erp", Tenant: "acme/1"},
	})
	return p
}

//go:noinline
func (p *alone) validate() error { return p.rules.StructCtx(p.ctx, &p.cmd) }

// line writes the same fields as the pipeline does.
//
//go:noinline
func (p *alone) line(start time.Time) {
	p.logger.Info("command succeeded",
		zap.String("command", "bench.order"), zap.String("kind", "command"), zap.String("outcome", "OK"), zap.Duration("duration", time.Since(start)),
		zap.String("key", p.req.Key().String()), zap.String("client", p.req.Scope().Client), zap.String("tenant", p.req.Scope().Tenant),
		zap.String("source", p.req.Source()), zap.String("request_id", p.req.ID()))
}

func (p *alone) bus(tb testing.TB) *bus.Bus {
	tb.Helper()
	reg := registry.New(registry.Config{Logger: p.logger})
	registry.Handle(reg, takeOrder)
	return build(tb, reg)
}

// testing.AllocsPerRun looks at the whole process, so this test is not parallel.
func TestPipe4_AnUnmarkedCommandAllocatesAtMostTwiceBesideValidatorAndZap(t *testing.T) { //nolint:paralleltest // see above
	p := newAlone(t)
	b := p.bus(t)
	send, err := bus.Bind[order](b)
	if err != nil {
		t.Fatal(err)
	}
	ofValidator := testing.AllocsPerRun(1000, func() { _ = p.validate() })
	ofLine := testing.AllocsPerRun(1000, func() { p.line(time.Time{}) })
	for name, dispatch := range map[string]func(){
		"Send": func() { _, _ = bus.Send(p.ctx, b, p.cmd) },
		"Bind": func() { _, _ = send(p.ctx, p.cmd) },
	} {
		got := testing.AllocsPerRun(1000, dispatch)
		t.Logf("%s: %v allocations; validator alone has %v and the line alone %v", name, got, ofValidator, ofLine)
		if got > ofValidator+ofLine+2+raceNoise {
			t.Errorf("%s: %v allocations, want at most validator's %v, zap's %v and two", name, got, ofValidator, ofLine)
		}
	}
}
