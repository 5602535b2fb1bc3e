package registrytest

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/tekil-go/tekil/behaviors/idempotency"
)

// point is where a process dies.
type point int32

const (
	nowhere point = iota
	afterClaim
	beforeCommit
	afterCommit
)

// layer is what stands between a process and its store: it listens, and plays the death of the process. A process that dies does
// nothing any more, so the goroutine ends (runtime.Goexit) and what its deferred functions still say to the store does not arrive. What it
// had open the database rolls back, as it does when a connection is gone.
type layer struct {
	idempotency.Store
	dies atomic.Int32 // where the next attempt dies

	mu       sync.Mutex
	held     func() bool // whether the transaction of the attempt that runs is open
	released bool        // an attempt has made its key free
}

// die lets the next attempt that comes to a point die there.
func (l *layer) die(at point) { l.dies.Store(int32(at)) }

func (l *layer) here(at point) bool { return l.dies.CompareAndSwap(int32(at), int32(nowhere)) }

// open reports whether the handler that was begun last is in a transaction.
func (l *layer) open() bool {
	l.mu.Lock()
	held := l.held
	l.mu.Unlock()
	return held != nil && held()
}

func (l *layer) holds(open func() bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held = open
}

// madeFree reports whether an attempt has said that it has done nothing.
func (l *layer) madeFree() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.released
}

func (l *layer) Begin(ctx context.Context, c idempotency.Claim) (idempotency.Transaction, error) {
	tx, err := l.Store.Begin(ctx, c)
	if err != nil {
		return nil, err
	}
	if l.here(afterClaim) {
		tx.Rollback(context.WithoutCancel(ctx))
		runtime.Goexit()
	}
	l.holds(func() bool { return true })
	return transaction{tx, l}, nil
}

func (l *layer) Lease(ctx context.Context, c idempotency.Claim) (idempotency.Lease, *idempotency.Record, error) {
	given, rec, err := l.Store.Lease(ctx, c)
	if err != nil || given == nil {
		return nil, rec, err
	}
	if l.here(afterClaim) {
		given.Rollback(context.WithoutCancel(ctx))
		runtime.Goexit()
	}
	l.holds(given.Open)
	return &lease{Lease: given, l: l}, nil, nil
}

type transaction struct {
	idempotency.Transaction
	l *layer
}

func (tx transaction) Complete(ctx context.Context, done idempotency.Completion) error {
	if tx.l.here(beforeCommit) {
		tx.Transaction.Rollback(context.WithoutCancel(ctx))
		runtime.Goexit()
	}
	err := tx.Transaction.Complete(ctx, done)
	if err == nil && tx.l.here(afterCommit) {
		runtime.Goexit()
	}
	return err
}

type lease struct {
	idempotency.Lease
	l    *layer
	dead atomic.Bool
}

func (l *lease) Complete(ctx context.Context, done idempotency.Completion) error {
	if l.l.here(beforeCommit) {
		l.Lease.Rollback(context.WithoutCancel(ctx))
		l.dead.Store(true)
		runtime.Goexit()
	}
	err := l.Lease.Complete(ctx, done)
	if err == nil && l.l.here(afterCommit) {
		l.dead.Store(true)
		runtime.Goexit()
	}
	return err
}

func (l *lease) Release(ctx context.Context) error {
	if l.dead.Load() {
		return nil
	}
	l.l.mu.Lock()
	l.l.released = true
	l.l.mu.Unlock()
	return l.Lease.Release(ctx)
}

func (l *lease) Rollback(ctx context.Context) {
	if !l.dead.Load() {
		l.Lease.Rollback(ctx)
	}
}
