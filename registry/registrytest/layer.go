package registrytest

import (
	"context"
	"fmt"
	"runtime"
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
	commitFails // where nothing dies: the database refuses the commit, and the process lives on
)

// layer is what stands between a process and its store: it listens, and plays the death of the process. A process that dies does
// nothing any more, so the goroutine ends (runtime.Goexit) and what its deferred functions still say to the store does not arrive. What it
// had open the database rolls back, as it does when a connection is gone.
//
// Only the claims of the command that is proved are played with. Those of a command that its handler sends are let through, with a word in their
// context that what happens there is theirs.
type layer struct {
	idempotency.Store
	command string       // the one that is proved
	dies    atomic.Int32 // where the next attempt dies
	freed   atomic.Bool  // an attempt has made its key free
}

// die lets the next attempt that comes to a point die there.
func (l *layer) die(at point) { l.dies.Store(int32(at)) }

func (l *layer) here(at point) bool { return l.dies.CompareAndSwap(int32(at), int32(nowhere)) }

// madeFree reports whether an attempt has said that it has done nothing.
func (l *layer) madeFree() bool { return l.freed.Load() }

// proved reports whether a claim is that of a request of the kit, and not that of a command which a handler sends, even if it is of the
// same type.
func (l *layer) proved(ctx context.Context, c idempotency.Claim) bool {
	_, nested := ctx.Value(callsKey{}).(caller)
	return !nested && c.Scope.Command() == l.command
}

// attemptKey is where a handler's context says whose attempt it belongs to.
type attemptKey struct{}

// attempt is the innermost one with a record of its own.
type attempt struct {
	open  func() bool // whether its transaction is open
	other bool        // it is not the one that is proved
}

func (l *layer) Begin(ctx context.Context, c idempotency.Claim) (idempotency.Transaction, error) {
	proved := l.proved(ctx, c)
	tx, err := l.Store.Begin(ctx, c)
	if err != nil {
		return nil, err
	}
	if proved && l.here(afterClaim) {
		tx.Rollback(context.WithoutCancel(ctx))
		runtime.Goexit()
	}
	return transaction{tx, l, proved}, nil
}

func (l *layer) Lease(ctx context.Context, c idempotency.Claim) (idempotency.Lease, *idempotency.Record, error) {
	proved := l.proved(ctx, c)
	given, rec, err := l.Store.Lease(ctx, c)
	if err != nil || given == nil {
		return nil, rec, err
	}
	if proved && l.here(afterClaim) {
		given.Rollback(context.WithoutCancel(ctx))
		runtime.Goexit()
	}
	return &lease{Lease: given, l: l, proved: proved}, nil, nil
}

type transaction struct {
	idempotency.Transaction
	l      *layer
	proved bool
}

func (tx transaction) Context(ctx context.Context) context.Context {
	return context.WithValue(tx.Transaction.Context(ctx), attemptKey{}, attempt{func() bool { return true }, !tx.proved})
}

func (tx transaction) Complete(ctx context.Context, done idempotency.Completion) error {
	if !tx.proved {
		return tx.Transaction.Complete(ctx, done)
	}
	if tx.l.here(beforeCommit) {
		tx.Rollback(context.WithoutCancel(ctx))
		runtime.Goexit()
	}
	if tx.l.here(commitFails) {
		tx.Rollback(context.WithoutCancel(ctx))
		return errCommitFails
	}
	err := tx.Transaction.Complete(ctx, done)
	if err == nil && tx.l.here(afterCommit) {
		runtime.Goexit()
	}
	return err
}

// errCommitFails is the database's word that it has not committed.
var errCommitFails = fmt.Errorf("registrytest: the commit fails, as the kit plays it: %w", idempotency.ErrTransactionAborted)

type lease struct {
	idempotency.Lease
	l      *layer
	proved bool
	dead   atomic.Bool
}

func (l *lease) Context(ctx context.Context) context.Context {
	return context.WithValue(l.Lease.Context(ctx), attemptKey{}, attempt{l.Open, !l.proved})
}

func (l *lease) Complete(ctx context.Context, done idempotency.Completion) error {
	if !l.proved {
		return l.Lease.Complete(ctx, done)
	}
	if l.l.here(beforeCommit) {
		l.Lease.Rollback(context.WithoutCancel(ctx))
		l.dead.Store(true)
		runtime.Goexit()
	}
	if l.l.here(commitFails) {
		return errCommitFails // and the engine releases the lease, which rolls back
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
	if l.proved {
		l.l.freed.Store(true)
	}
	return l.Lease.Release(ctx)
}

func (l *lease) Rollback(ctx context.Context) {
	if !l.dead.Load() {
		l.Lease.Rollback(ctx)
	}
}
