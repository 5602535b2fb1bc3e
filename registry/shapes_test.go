package registry_test

import (
	"context"
	"sync/atomic"
	"testing"

	"go.uber.org/zap"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/memstore"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/registry"
)

// Commands of many shapes, all of them protected.
type (
	cancel    struct{ Order string } // without a result
	empty     struct{}               // without a payload
	withRules struct{ A string }     // marked by its policy alone
	twoMarks  struct{ A string }     // marked by both
	Protected struct{}               // a mark to embed, and no command itself
	mixed     struct {               // marked by what it embeds
		Protected
		A string
	}
	aliased = cancel
)

func (cancel) CommandName() bus.Name[bus.None]    { return "shop.cancel" }
func (cancel) Idempotent()                        {}
func (empty) CommandName() bus.Name[bus.None]     { return "shop.empty" }
func (empty) Idempotent()                         {}
func (withRules) CommandName() bus.Name[*placed]  { return "shop.with_rules" }
func (withRules) Idempotency() idempotency.Policy { return idempotency.Policy{Version: 2} }
func (twoMarks) CommandName() bus.Name[[]string]  { return "shop.two_marks" }
func (twoMarks) Idempotent()                      {}
func (twoMarks) Idempotency() idempotency.Policy  { return idempotency.Policy{} }
func (Protected) Idempotent()                     {}
func (mixed) CommandName() bus.Name[int]          { return "shop.mixed" }

// MediatR #843: there, commands without a result passed behaviours by. Here each shape is protected in the same way.
func TestBR27_EveryShapeOfCommandIsProtected(t *testing.T) {
	t.Parallel()
	t.Run("with a result", func(t *testing.T) { t.Parallel(); twice(t, inner{A: "x"}) })
	t.Run("without a result", func(t *testing.T) { t.Parallel(); twice(t, cancel{"o1"}) })
	t.Run("without a payload", func(t *testing.T) { t.Parallel(); twice(t, empty{}) })
	t.Run("generic", func(t *testing.T) { t.Parallel(); twice(t, resulting[map[string]int]{"x"}) })
	t.Run("under an alias", func(t *testing.T) { t.Parallel(); twice(t, aliased{"o1"}) })
	t.Run("marked by its policy", func(t *testing.T) { t.Parallel(); twice(t, withRules{"x"}) })
	t.Run("marked twice", func(t *testing.T) { t.Parallel(); twice(t, twoMarks{"x"}) })
	t.Run("marked by an embedded mark", func(t *testing.T) { t.Parallel(); twice(t, mixed{A: "x"}) })
}

// twice sends the command two times under one key and once under another one.
func twice[C bus.Command[R], R any](t *testing.T, cmd C) {
	t.Helper()
	var ran atomic.Int64
	store := memstore.New()
	reg := registry.New(registry.Config{Logger: zap.NewNop(), Store: store})
	registry.Handle(reg, func(ctx context.Context, _ C) (res R, err error) {
		ran.Add(1)
		return res, store.Insert(ctx, "row")
	})
	b := build(t, reg)
	if d := reg.Describe(); len(d.Commands) != 1 || d.Commands[0].Idempotency == nil {
		t.Errorf("described as %v", d)
	}
	for i, key := range []string{theKey, theKey, "intent-0002"} {
		ctx, req := request(t.Context(), t, "attempt", key)
		if _, err := bus.Send(ctx, b, cmd); err != nil {
			t.Fatal(err)
		}
		if got := req.Outcome().Replayed; got != (i == 1) {
			t.Errorf("send %d: replayed is %t", i, got)
		}
	}
	if n := ran.Load(); n != 2 {
		t.Errorf("the handler ran %d times, want once for each key", n)
	}
	holds(t, store, 2, "row", "row")
}

// A pointer to a command, a nil one and an interface compile and are other types: nothing serves them, so nothing runs
// without its protection.
func TestBR27_APointerOrAnInterfaceIsNotServed(t *testing.T) {
	t.Parallel()
	s := open(t, memstore.New())
	cmd := s.pay()
	ctx, _ := request(t.Context(), t, "attempt-1", theKey)
	_, err := bus.Send(ctx, s.Bus, &cmd)
	wantCode(t, err, "UNHANDLED")
	_, err = bus.Send(ctx, s.Bus, (*place)(nil))
	wantCode(t, err, "UNHANDLED")
	_, err = bus.Send(ctx, s.Bus, bus.Command[placed](cmd))
	wantCode(t, err, "UNHANDLED")
	_, err = bus.Bind[*place](s.Bus)
	wantCode(t, err, "UNHANDLED")
	if n := s.orders.Load(); n != 0 {
		t.Errorf("the handler ran %d times", n)
	}
}
