package sqlitestore

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/tekil-go/tekil/behaviors/idempotency"
)

// Begin starts an attempt when its turn has come, takes the write lock and reads the record. It gives
// [idempotency.ErrBusy] at once while an attempt of the same key is open in this process. The wait for the turn and for a
// connection ends with ctx, and the wait for the lock with the busy timeout or, where the driver heeds it, with ctx. Whatever
// it was that was waited for in vain, the store counts as not available: that says nothing about the key.
func (s *Store) Begin(ctx context.Context, c idempotency.Claim) (_ idempotency.Transaction, err error) {
	if !s.enter(c.ID) {
		return nil, idempotency.ErrBusy
	}
	a := &attempt{store: s, claim: c}
	begun := false
	defer func() {
		if !begun { // an error, or a driver that panicked
			a.Rollback(ctx)
		}
	}()
	if err = a.open(ctx, s); err != nil {
		return nil, err
	}
	quick := context.WithoutCancel(ctx)
	if err = a.mark(quick); err != nil {
		return nil, err
	}
	if a.found, err = recordOf(a.stmt(quick, a.st.read).QueryRowContext(quick, a.claim.ID[:]), false); err != nil {
		return nil, fmt.Errorf("sqlitestore: read the record: %w", err)
	}
	begun = true
	return a, nil
}

// enter notes that an attempt of the key is open, or reports that one is.
func (s *Store) enter(id idempotency.ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.open[id]; ok {
		return false
	}
	s.open[id] = struct{}{}
	return true
}

func (s *Store) leave(id idempotency.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, id)
}

// attempt is an Atomic attempt: one transaction from its beginning to its end.
type attempt struct {
	session
	store *Store
	claim idempotency.Claim
	found *idempotency.Record
	used  atomic.Bool
}

// Found is the record that Begin read.
func (a *attempt) Found() *idempotency.Record { return a.found }

// Context puts the transaction into the handler's context.
func (a *attempt) Context(ctx context.Context) context.Context {
	return context.WithValue(ctx, attemptKey{a.store.db}, a)
}

// Used reports whether the handler has asked for the transaction.
func (a *attempt) Used() bool { return a.used.Load() }

// inTx runs fn in the attempt's own transaction.
func (a *attempt) inTx(ctx context.Context, fn func(context.Context) error) error {
	a.used.Store(true)
	return a.session.inTx(ctx, fn)
}

// current gives the transaction to the handler.
func (a *attempt) current() *session {
	a.used.Store(true)
	return &a.session
}

// Ended reports whether the handler has sent a text that would have ended the transaction.
func (a *attempt) Ended() bool { return errors.Is(a.revoke(), idempotency.ErrTransactionEnded) }

// Complete writes the record and commits.
func (a *attempt) Complete(ctx context.Context, done idempotency.Completion) error {
	_ = a.revoke()
	defer a.Rollback(ctx)
	if a.closed {
		return errEnded
	}
	return a.keep(ctx, a, done)
}

// Refuse rolls the handler's rows back and writes the record of a refusal. The write lock is not let go in between.
func (a *attempt) Refuse(ctx context.Context, done idempotency.Completion) error {
	_ = a.revoke()
	defer a.Rollback(ctx)
	if a.closed {
		return errEnded
	}
	return a.drop(ctx, a, done)
}

// errEnded is a broken promise of the caller's.
var errEnded = errors.New("sqlitestore: the attempt has already ended")

// put writes the record in its final state.
func (a *attempt) put(ctx context.Context, in *session, done idempotency.Completion) error {
	c, now := &a.claim, time.Now()
	n, err := changed(in.stmt(ctx, in.st.write).ExecContext(ctx, c.ID[:], c.Scope.Tenant, c.Scope.Client, c.Scope.Operation, c.Scope.Key, c.Hash[:], c.HashVersion,
		afterExpiry(c), c.Attempt[:], int64(done.Outcome), done.Result, done.ResultType, c.OriginRequestID, done.ExternalRef, c.DraftID, now.UnixMilli(), now.Add(c.Retention).UnixMilli(),
		c.OriginTrace, priorHash(c)))
	if err == nil && n == 0 {
		err = idempotency.ErrLost
	}
	return err
}

// Rollback undoes what is open and gives everything back, in whatever state it is.
func (a *attempt) Rollback(context.Context) {
	if a.closed {
		return
	}
	defer a.store.leave(a.claim.ID)
	a.close()
}

// Transient is false: the attempt has the write lock from its beginning, so there is nothing that trying again would change.
func (a *attempt) Transient(error) bool { return false }
