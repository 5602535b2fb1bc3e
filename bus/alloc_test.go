package bus_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/tekil-go/tekil/bus"
)

// testing.AllocsPerRun looks at the whole process, so these tests are not parallel.

func TestDispatchAllocatesNothing(t *testing.T) { //nolint:paralleltest // see above
	ctx, cmd := t.Context(), charge{Customer: "cus_1044", Amount: 4200}
	guards := []bus.Guard{func(context.Context, bus.Invocation) error { return nil }}
	inv := bus.Invocation{Name: "bench.charge"}
	guarded := newBus(t, bus.Serve(bus.Log(bus.Validate(bus.Claim(takeCharge, noClaim), inv, guards, noValidation), inv, guards, noObserver{})))
	for name, b := range map[string]*bus.Bus{
		"empty rungs":                 chargeBus(t, false, false),
		"stages":                      chargeBus(t, true, false),
		"observer":                    chargeBus(t, false, true),
		"stages and observer":         chargeBus(t, true, true),
		"stages, observer and guards": guarded,
	} {
		send, err := bus.Bind[charge](b)
		if err != nil {
			t.Fatal(err)
		}
		for how, f := range map[string]func() error{
			"Send":  func() error { _, err := bus.Send(ctx, b, cmd); return err },
			"Bind":  func() error { _, err := send(ctx, cmd); return err },
			"Check": func() error { return bus.Check(ctx, b, cmd) },
		} {
			if n := testing.AllocsPerRun(100, func() { err = f() }); n != 0 || err != nil {
				t.Errorf("%s, %s: %v allocations, %v", name, how, n, err)
			}
		}
	}
}

func TestAskAllocatesNothing(t *testing.T) { //nolint:paralleltest // see above
	b := newBus(t, bus.Answer(plain(func(_ context.Context, q find) (placed, error) { return placed(q), nil })))
	ctx, q := t.Context(), find{Order: "o1"}
	var err error
	if n := testing.AllocsPerRun(100, func() { _, err = bus.Ask(ctx, b, q) }); n != 0 || err != nil {
		t.Errorf("%v allocations, %v", n, err)
	}
}

func TestCodeOfAllocatesNothing(t *testing.T) { //nolint:paralleltest // see above
	err := fmt.Errorf("paying: %w", &bus.UnhandledError{})
	code := ""
	if n := testing.AllocsPerRun(100, func() { code = bus.CodeOf(err) }); n != 0 || code != "UNHANDLED" {
		t.Errorf("%v allocations for %s", n, code)
	}
}

// The race detector is what this test is for.
func TestABusIsUsedFromManyGoroutinesAtOnce(t *testing.T) {
	t.Parallel()
	b := chargeBus(t, true, true)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 200 {
				want := int64(1000*i + j)
				if got, err := bus.Send(t.Context(), b, charge{Amount: want}); err != nil || got.ID != want {
					t.Errorf("Send = %+v, %v; want %d", got, err, want)
					return
				}
			}
		})
	}
	wg.Wait()
}
