package idempotency_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/memstore"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
)

// counting counts what the engine asks of a store.
type counting struct {
	idempotency.Store
	begins, looks atomic.Int64
}

func (c *counting) Begin(ctx context.Context, claim idempotency.Claim) (idempotency.Transaction, error) {
	c.begins.Add(1)
	return c.Store.Begin(ctx, claim)
}

func (c *counting) Look(ctx context.Context, claim idempotency.Claim) (*idempotency.Record, error) {
	c.looks.Add(1)
	return c.Store.Look(ctx, claim)
}

func TestS1_WaitingDuplicatesReadTheOutcomeOfTheFirstWithoutAskingTheStore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &counting{Store: memstore.New()}
		engine, err := idempotency.New(idempotency.Config{Store: store})
		if err != nil {
			t.Fatal(err)
		}
		release := make(chan struct{})
		claimed, _, err := idempotency.Stage(engine, func(context.Context, plainCommand) (string, error) {
			<-release
			return "done", nil
		})
		if err != nil {
			t.Fatal(err)
		}
		b, err := bus.New(bus.Serve[plainCommand](bus.Log(bus.Validate(claimed, bus.Invocation{}, nil, nil), bus.Invocation{}, nil, nil)))
		if err != nil {
			t.Fatal(err)
		}
		key, err := requestctx.ParseKey("stormed-1")
		if err != nil {
			t.Fatal(err)
		}
		var executed, replayed atomic.Int64
		var wg sync.WaitGroup
		for range 64 {
			wg.Go(func() {
				ctx, req := requestctx.New(t.Context(), requestctx.Values{Key: key, Scope: requestctx.Scope{Client: "tester"}})
				got, err := bus.Send(ctx, b, plainCommand{})
				if err != nil || got != "done" {
					t.Errorf("got %q, %v", got, err)
				}
				switch o := req.Outcome(); o.State {
				case requestctx.StateExecuted:
					executed.Add(1)
				case requestctx.StateReplayed:
					replayed.Add(1)
				default:
					t.Errorf("reported as %+v", o)
				}
			})
		}
		synctest.Wait() // 63 wait for the one
		close(release)
		wg.Wait()
		if executed.Load() != 1 || replayed.Load() != 63 {
			t.Errorf("%d executed and %d replayed, want 1 and 63", executed.Load(), replayed.Load())
		}
		if store.begins.Load() != 1 || store.looks.Load() != 0 {
			t.Errorf("the store was asked to begin %d times and to look %d times, want 1 and 0", store.begins.Load(), store.looks.Load())
		}
	})
}
