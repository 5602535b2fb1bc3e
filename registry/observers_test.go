package registry_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/tekil-go/tekil/behaviors/idempotency/memstore"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/registry"
)

type watchKey struct{ name string }

// watcher notes what it is told, and may panic.
type watcher struct {
	name   string
	panics bool
	mu     sync.Mutex
	told   []string
}

func (w *watcher) note(what string) {
	w.mu.Lock()
	w.told = append(w.told, what)
	w.mu.Unlock()
	if w.panics {
		panic("the observer " + w.name)
	}
}

func (w *watcher) Started(ctx context.Context, inv bus.Invocation) context.Context {
	w.note("started " + inv.Name)
	return context.WithValue(ctx, watchKey{w.name}, w.name)
}

func (w *watcher) Ended(ctx context.Context, inv bus.Invocation, err error, panicked bool) {
	what := "ended " + bus.CodeOf(err)
	for _, name := range []string{"first", "second"} {
		if seen, _ := ctx.Value(watchKey{name}).(string); seen != "" {
			what += " " + seen
		}
	}
	w.note(what)
}

// Observers stand beside the log: they see refusals, and one that panics harms neither the dispatch nor the others nor the line.
func TestObserversSeeWhatIsLoggedAndHarmNothing(t *testing.T) {
	t.Parallel()
	first, broken, second := &watcher{name: "first"}, &watcher{name: "broken", panics: true}, &watcher{name: "second"}
	core, lines := observer.New(zap.InfoLevel)
	spans := make(chan string, 2)
	reg := registry.New(registry.Config{
		Logger: zap.New(core), Store: memstore.New(), Observers: []bus.Observer{first, broken, second},
		LogFields: func(ctx context.Context) []zap.Field {
			seen, _ := ctx.Value(watchKey{"second"}).(string)
			spans <- seen
			return nil
		},
	})
	registry.Handle(reg, func(context.Context, Checkout) (Order, error) { return Order{Number: "order-1"}, nil })
	b, err := reg.Build()
	if err != nil {
		t.Fatal(err)
	}
	keyed := func(key string) context.Context {
		ctx, _ := request(t.Context(), t, "", key)
		return ctx
	}
	if _, err := bus.Send(keyed("payment-1"), b, Checkout{Cart: "cart-1", Amount: 1}); err != nil {
		t.Error(err)
	}
	if _, err := bus.Send(keyed("payment-2"), b, Checkout{}); bus.CodeOf(err) != "VALIDATION_FAILED" {
		t.Error(err)
	}
	want := []string{"started checkout.place", "ended  first second", "started checkout.place", "ended VALIDATION_FAILED first second"}
	for _, w := range []*watcher{first, broken, second} {
		if !slices.Equal(w.told, want) {
			t.Errorf("%s was told %q, want %q", w.name, w.told, want)
		}
	}
	if lines.Len() != 2 || <-spans != "second" || <-spans != "second" {
		t.Errorf("%d lines", lines.Len())
	}
}

func TestANilObserverIsFoundAtBuild(t *testing.T) {
	t.Parallel()
	reg := registry.New(registry.Config{Logger: zap.NewNop(), Store: memstore.New(), Observers: []bus.Observer{&watcher{}, nil, (*watcher)(nil)}})
	registry.Handle(reg, func(context.Context, Checkout) (Order, error) { return Order{}, nil })
	_, err := reg.Build()
	for _, want := range []string{"registry: Config.Observers[1] is nil", "registry: Config.Observers[2] is nil"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
