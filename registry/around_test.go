package registry_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/tekil-go/tekil/behaviors/idempotency/memstore"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/registry"
)

// step is a wrapper that does what it should.
func step(tr *trace, name string) registry.Around {
	return func(ctx context.Context, _ bus.Invocation, next func(context.Context) error) error {
		tr.add(name)
		defer tr.add(name + " ends")
		return next(ctx)
	}
}

// Wrappers that break the contract, and what they are told.
func TestPipe12_AWrapperThatSwallowsRepeatsOrInventsIsAnErrorAndAllIsUndone(t *testing.T) {
	t.Parallel()
	type next = func(context.Context) error
	for name, c := range map[string]struct {
		around registry.Around
		handle func(context.Context, place) error
		want   string
		ran    int64 // how often the handler was entered
	}{
		"invents a success": {
			around: func(context.Context, bus.Invocation, next) error { return nil },
			want:   "registry: shop.place: a wrapper set in Config.Around returned nil without calling next, which would invent a success",
		},
		"swallows a failure": {
			around: func(ctx context.Context, _ bus.Invocation, next next) error { _ = next(ctx); return nil },
			handle: fail(errBoom), ran: 1,
			want: "registry: shop.place: a wrapper set in Config.Around returned nil although next failed, which would turn a failure into a success",
		},
		"swallows a panic": {
			around: func(ctx context.Context, _ bus.Invocation, next next) error {
				defer func() { _ = recover() }()
				return next(ctx)
			},
			handle: func(context.Context, place) error { panic(errBoom) }, ran: 1,
			want: "registry: shop.place: a wrapper set in Config.Around returned nil although next did not return, which would turn a panic into a success",
		},
		"repeats": {
			around: func(ctx context.Context, _ bus.Invocation, next next) error { return errors.Join(next(ctx), next(ctx)) },
			ran:    1,
			want:   "registry: shop.place: a wrapper set in Config.Around called next more than once",
		},
		"retries a failure": {
			around: func(ctx context.Context, _ bus.Invocation, next next) error {
				if next(ctx) == nil {
					return nil
				}
				return next(ctx)
			},
			handle: fail(errBoom), ran: 1,
			want: "registry: shop.place: a wrapper set in Config.Around called next more than once",
		},
		"repeats and keeps it to itself": {
			around: func(ctx context.Context, _ bus.Invocation, next next) error {
				err := next(ctx)
				_ = next(ctx)
				return err
			},
			ran:  1,
			want: "registry: shop.place: a wrapper set in Config.Around called next more than once",
		},
		"repeats from goroutines": {
			around: func(ctx context.Context, _ bus.Invocation, next next) error {
				both := make(chan error, 2)
				for range 2 {
					go func() { both <- next(ctx) }()
				}
				return errors.Join(<-both, <-both)
			},
			ran:  1,
			want: "registry: shop.place: a wrapper set in Config.Around called next more than once",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t, memstore.New())
			s.around, s.handle = c.around, c.handle
			_, out, err := s.send(t, "attempt-1", theKey, s.pay())
			if fault, ok := errors.AsType[*registry.AroundError](err); !ok || fault.Command != "shop.place" || err.Error() != c.want {
				t.Errorf("the error is %v", err)
			}
			wantCode(t, err, "AROUND_FAULT")
			if out.State != "freed" || s.orders.Load() != c.ran {
				t.Errorf("state %q, the handler ran %d times", out.State, s.orders.Load())
			}
			holds(t, s.store, 0)

			// The key is free: a mended wrapper, and the same key runs.
			s.around, s.handle = nil, nil
			if _, out := s.must(t, "attempt-2", theKey, s.pay()); out.Replayed {
				t.Errorf("after the repair: %+v", out)
			}
			holds(t, s.store, 1, "cart-1 4990")
		})
	}
}

func TestPipe12_AWrapperThatBreaksItsContractIsAnErrorWithoutTheMarkToo(t *testing.T) {
	t.Parallel()
	s := open(t, memstore.New())
	s.around = func(context.Context, bus.Invocation, func(context.Context) error) error { return nil }
	wantCode(t, s.note(t, "", note{Text: "x"}), "AROUND_FAULT")
	wantCode(t, s.ask(t, find{Order: "1"}), "AROUND_FAULT")
}

// An inner fault is not healed by an outer wrapper, which would be swallowing.
func TestPipe12_AnOuterWrapperCannotSwallowTheFaultOfAnInnerOne(t *testing.T) {
	t.Parallel()
	s := open(t, memstore.New(), func(cfg *registry.Config) {
		cfg.Around = []registry.Around{
			func(ctx context.Context, _ bus.Invocation, next func(context.Context) error) error {
				_ = next(ctx)
				return nil
			},
			func(context.Context, bus.Invocation, func(context.Context) error) error { return nil },
		}
	})
	wantCode(t, s.attempt(t, "attempt-1", theKey, s.pay()), "AROUND_FAULT")
	holds(t, s.store, 0)
}

// What a wrapper may do.
func TestPipe12_AWrapperMayRefuseAndMayGiveAnErrorOfItsOwn(t *testing.T) {
	t.Parallel()
	type next = func(context.Context) error
	for name, c := range map[string]struct {
		around registry.Around
		handle func(context.Context, place) error
		ran    int64
	}{
		"before the handler": {around: func(context.Context, bus.Invocation, next) error { return errForbidden }},
		"after its success":  {around: func(ctx context.Context, _ bus.Invocation, next next) error { _ = next(ctx); return errForbidden }, ran: 1},
		"in place of the handler's own": {
			around: func(ctx context.Context, _ bus.Invocation, next next) error { _ = next(ctx); return errForbidden },
			handle: fail(errBoom), ran: 1,
		},
		"in place of a panic": {
			around: func(ctx context.Context, _ bus.Invocation, next next) (err error) {
				defer func() { _ = recover(); err = errForbidden }()
				return next(ctx)
			},
			handle: func(context.Context, place) error { panic(errBoom) }, ran: 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t, memstore.New())
			s.around, s.handle = c.around, c.handle
			_, out, err := s.send(t, "attempt-1", theKey, s.pay())
			if !errors.Is(err, errForbidden) || out.State != "freed" || s.orders.Load() != c.ran {
				t.Errorf("error %v, state %q, the handler ran %d times", err, out.State, s.orders.Load())
			}
			holds(t, s.store, 0)
		})
	}
}

func TestPipe12_WrappersRunInTheirOrderSeeNoPayloadAndCanChangeTheContext(t *testing.T) {
	t.Parallel()
	type mark struct{}
	tr := new(trace)
	var seen bus.Invocation
	s := open(t, memstore.New(), func(cfg *registry.Config) {
		cfg.Around = []registry.Around{step(tr, "one"), step(tr, "two"), func(ctx context.Context, inv bus.Invocation, next func(context.Context) error) error {
			seen = inv
			return next(context.WithValue(ctx, mark{}, "set"))
		}}
	})
	s.handle = func(ctx context.Context, _ place) error {
		tr.add("handler")
		if ctx.Value(mark{}) != "set" {
			t.Error("the handler does not run on the wrapper's context")
		}
		return nil
	}
	s.must(t, "attempt-1", theKey, s.pay())
	equal(t, "order", tr.take(), []string{"one", "two", "handler", "two ends", "one ends"})
	if want := (bus.Invocation{Name: "shop.place", Idempotent: true}); seen != want {
		t.Errorf("a wrapper saw %+v, want %+v", seen, want)
	}

	// Not on a replay, not on a check, not on a refusal.
	if _, out := s.must(t, "attempt-2", theKey, s.pay()); !out.Replayed {
		t.Errorf("outcome %+v", out)
	}
	if err := s.check(t, "", s.pay()); err != nil {
		t.Error(err)
	}
	wantCode(t, s.attempt(t, "attempt-3", "intent-0002", place{}), "VALIDATION_FAILED")
	equal(t, "wrappers where the handler does not run", tr.take(), nil)
}

// A wrapper that goes away, as home-made timeouts do, does not leave the handler behind with a transaction that has ended.
func TestPipe12_AWrapperThatReturnsTooEarlyIsWaitedFor(t *testing.T) {
	t.Parallel()
	s := open(t, memstore.New())
	entered, leave := make(chan struct{}), make(chan struct{})
	inner := make(chan error, 1)
	s.around = func(ctx context.Context, _ bus.Invocation, next func(context.Context) error) error {
		go func() { inner <- next(ctx) }()
		<-entered
		time.AfterFunc(time.Millisecond, func() { close(leave) })
		return context.DeadlineExceeded
	}
	s.handle = func(ctx context.Context, _ place) error {
		close(entered)
		<-leave
		return s.store.Insert(ctx, "written late")
	}
	_, out, err := s.send(t, "attempt-1", theKey, s.pay())
	if !errors.Is(err, context.DeadlineExceeded) || out.State != "freed" {
		t.Errorf("error %v, state %q", err, out.State)
	}
	if err := <-inner; err != nil {
		t.Errorf("the handler ran into %v, so its transaction had ended", err)
	}
	holds(t, s.store, 0)
}

// A next that is kept and called when all is over runs nothing.
func TestPipe12_NextDoesNothingAfterItsWrapperHasReturned(t *testing.T) {
	t.Parallel()
	s := open(t, memstore.New())
	var kept func(context.Context) error
	s.around = func(_ context.Context, _ bus.Invocation, next func(context.Context) error) error {
		kept = next
		return errForbidden
	}
	if err := s.attempt(t, "attempt-1", theKey, s.pay()); !errors.Is(err, errForbidden) {
		t.Errorf("the error is %v", err)
	}
	const want = "registry: shop.place: a wrapper set in Config.Around called next after it had returned"
	if err := kept(t.Context()); err == nil || err.Error() != want {
		t.Errorf("a late next gives %v", err)
	}
	if n := s.orders.Load(); n != 0 {
		t.Errorf("the handler ran %d times", n)
	}
	holds(t, s.store, 0)
}

func TestABusThatIsBuiltDoesNotChangeWithTheSlicesOfItsConfig(t *testing.T) {
	t.Parallel()
	arounds := []registry.Around{func(ctx context.Context, _ bus.Invocation, next func(context.Context) error) error { return next(ctx) }}
	admits := []bus.Guard{func(context.Context, bus.Invocation) error { return nil }}
	permits := slices.Clone(admits)
	s := open(t, memstore.New(), func(cfg *registry.Config) { cfg.Around, cfg.Admit, cfg.Permit = arounds, admits, permits })
	arounds[0] = func(context.Context, bus.Invocation, func(context.Context) error) error { return errForbidden }
	admits[0], permits[0] = refuse(errStranger), refuse(errStranger)
	s.must(t, "attempt-1", theKey, s.pay())
}
