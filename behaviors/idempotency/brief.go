package idempotency

import (
	"context"
	"sync"
	"time"
)

// brief gives contexts for work that has to end soon on its own, whatever becomes of the request. A timer for each of them
// would cost a replay a tenth of its throughput, because a new timer wakes the runtime's poller. So all that are given within
// briefTime share one, and each lives between briefTime and twice that.
type brief struct {
	mu     sync.Mutex
	shared context.Context
	cancel context.CancelFunc // never called: shared belongs to all who got it and ends by its timer
	until  time.Time          // when shared is too old to be given
}

// context gives a context with the values of ctx and an end of its own.
func (b *brief) context(ctx context.Context) context.Context {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now := time.Now(); b.shared == nil || !now.Before(b.until) {
		b.shared, b.cancel = context.WithTimeout(context.Background(), 2*briefTime)
		b.until = now.Add(briefTime)
	}
	return &briefly{Context: b.shared, values: ctx}
}

// briefly is a context that ends with one and has the values of another.
type briefly struct {
	context.Context
	values context.Context
}

func (c *briefly) Value(key any) any { return c.values.Value(key) }

// AfterFunc is how package context watches a context that is not its own without a goroutine.
func (c *briefly) AfterFunc(f func()) (stop func() bool) { return context.AfterFunc(c.Context, f) }
