package sqlitestore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tekil-go/tekil/behaviors/idempotency"
)

// Begin starts an attempt when its turn has come, takes the write lock and reads the record. It gives
// [idempotency.ErrBusy] at once while an attempt of the same key is open in this process. The wait for the turn and for a
// connection ends with ctx, and the wait for the lock with the busy timeout or, where the driver heeds it, with ctx. Whatever
// it was that was waited for in vain, the store counts as not available: that says nothing about the key.
func (s *Store) Begin(ctx context.Context, c idempotency.Claim) (_ idempotency.Attempt, err error) {
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
	select {
	case s.turn <- struct{}{}:
		a.turn = true
	case <-ctx.Done():
		return nil, fmt.Errorf("sqlitestore: other commands were writing all the time: %w", ctx.Err())
	}
	if a.st, err = s.prepared(ctx); err != nil && ctx.Err() == nil {
		if err = s.settle(ctx); err == nil {
			a.st, err = s.prepared(ctx)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("sqlitestore: prepare the statements: %w", err)
	}
	if a.conn, err = s.conn(ctx); err != nil {
		return nil, fmt.Errorf("sqlitestore: no connection: %w", err)
	}
	if err = a.begin(ctx); err != nil {
		return nil, fmt.Errorf("sqlitestore: begin: %w", err)
	}
	if a.found, err = a.read(ctx); err != nil {
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

// attempt is one transaction on one connection.
type attempt struct {
	store *Store
	claim idempotency.Claim
	st    *statements
	found *idempotency.Record
	used  atomic.Bool

	// What is given back at the end.
	turn  bool
	conn  *sql.Conn // nil before it was taken
	tx    *sql.Tx   // nil before it is begun and after it is committed
	ended bool

	mu      sync.Mutex // held by each statement of the handler
	revoked bool
	fault   error // what the handler did that it must not; no statement runs after it
}

// begin opens the transaction. It is a sql.Tx, which closes the rows that a handler has left open and does not run anything
// after its end. It outlives ctx.
func (a *attempt) begin(ctx context.Context) (err error) {
	// Only the lock is waited for. For a context that can end, drivers set up a watch with each statement; the others are
	// spared that.
	quick := context.WithoutCancel(ctx)
	if a.tx, err = a.conn.BeginTx(quick, nil); err != nil {
		return err
	}
	if _, err = a.stmt(ctx, a.st.lock).ExecContext(ctx); err != nil {
		return err
	}
	_, err = a.stmt(quick, a.st.mark).ExecContext(quick)
	return err
}

func (a *attempt) read(ctx context.Context) (*idempotency.Record, error) {
	ctx = context.WithoutCancel(ctx)
	return scanRecord(a.stmt(ctx, a.st.read).QueryRowContext(ctx, a.claim.ID[:]))
}

// stmt gives a prepared statement in the transaction, which closes it.
func (a *attempt) stmt(ctx context.Context, s *sql.Stmt) *sql.Stmt { return a.tx.StmtContext(ctx, s) }

// Found is the record that Begin read.
func (a *attempt) Found() *idempotency.Record { return a.found }

// Context puts the transaction into the handler's context.
func (a *attempt) Context(ctx context.Context) context.Context {
	return context.WithValue(ctx, attemptKey{a.store.db}, a)
}

// Used reports whether the handler has asked for the transaction.
func (a *attempt) Used() bool { return a.used.Load() }

// Ended reports whether the handler has sent a text that would have ended the transaction.
func (a *attempt) Ended() bool { return errors.Is(a.revoke(), idempotency.ErrTransactionEnded) }

// Complete writes the record and commits.
func (a *attempt) Complete(ctx context.Context, done idempotency.Completion) error {
	fault := a.revoke()
	defer a.Rollback(ctx)
	if a.ended {
		return errEnded
	}
	if fault != nil {
		return fault
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("sqlitestore: write the record: %w", err)
	}
	// From here on nothing waits for anybody, and nothing must be cut off half way.
	ctx = context.WithoutCancel(ctx)
	// Where a statement with RETURNING has been left open, SQLite finds the savepoint and does not release it; COMMIT does.
	if _, err := a.stmt(ctx, a.st.release).ExecContext(ctx); err != nil && !strings.Contains(err.Error(), "SQL statements in progress") {
		return fmt.Errorf("%w: %w", idempotency.ErrTransactionEnded, err)
	}
	return a.write(ctx, done)
}

// Refuse rolls the handler's rows back and writes the record of a refusal. The write lock is not let go in between.
func (a *attempt) Refuse(ctx context.Context, done idempotency.Completion) error {
	fault := a.revoke()
	defer a.Rollback(ctx)
	if a.ended {
		return errEnded
	}
	if errors.Is(fault, idempotency.ErrTransactionEnded) {
		return fault
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("sqlitestore: write the record: %w", err)
	}
	ctx = context.WithoutCancel(ctx)
	if fault != nil { // SQLite has rolled back already, and the lock has gone with it
		_ = a.tx.Rollback()
		if err := a.begin(ctx); err != nil {
			return fmt.Errorf("sqlitestore: begin: %w", err)
		}
	} else if _, err := a.tx.ExecContext(ctx, rollBackSQL); err != nil {
		return fmt.Errorf("%w: %w", idempotency.ErrTransactionEnded, err)
	}
	return a.write(ctx, done)
}

// errEnded is a broken promise of the caller's.
var errEnded = errors.New("sqlitestore: the attempt has already ended")

// write puts the record down and commits.
func (a *attempt) write(ctx context.Context, done idempotency.Completion) error {
	if err := a.put(ctx, done); err != nil {
		return err
	}
	err := a.tx.Commit()
	if err == nil {
		a.tx = nil
		return nil
	}
	switch {
	case errors.Is(err, driver.ErrBadConn):
		return fmt.Errorf("%w: %w", idempotency.ErrCommitUnknown, err)
	case strings.Contains(err.Error(), "constraint failed"): // a deferred foreign key of the handler's rows
		return fmt.Errorf("%w: %w", idempotency.ErrTransactionAborted, err)
	}
	// A COMMIT that SQLite refuses has not happened: the transaction is still open, or ended by the driver.
	return fmt.Errorf("sqlitestore: commit: %w", err)
}

// put writes the record in its final state.
func (a *attempt) put(ctx context.Context, done idempotency.Completion) error {
	c, now := &a.claim, time.Now()
	afterExpiry := reuse
	if c.AfterExpiry == idempotency.Tombstone {
		afterExpiry = tombstone
	}
	res, err := a.stmt(ctx, a.st.write).ExecContext(ctx, c.ID[:], c.Scope.Tenant, c.Scope.Client, c.Scope.Operation, c.Scope.Key, c.Hash[:], c.HashVersion,
		afterExpiry, c.Attempt[:], int64(done.Outcome), done.Result, done.ResultType, c.OriginRequestID, done.ExternalRef, now.UnixMilli(), now.Add(c.Retention).UnixMilli())
	if err != nil {
		return fmt.Errorf("sqlitestore: write the record: %w", err)
	}
	n, err := res.RowsAffected()
	if err != nil {
		return fmt.Errorf("sqlitestore: write the record: %w", err)
	}
	if n == 0 {
		return idempotency.ErrLost
	}
	return nil
}

// Rollback undoes what is open and gives everything back, in whatever state it is.
func (a *attempt) Rollback(context.Context) {
	_ = a.revoke()
	if a.ended {
		return
	}
	a.ended = true
	// Even if a driver panics, the next attempt gets its turn.
	defer a.store.leave(a.claim.ID)
	if a.turn {
		defer func() { <-a.store.turn }()
	}
	if a.conn == nil {
		return
	}
	if a.tx != nil && a.tx.Rollback() != nil {
		// The state of the connection is not known; closing it undoes whatever may be open.
		_ = a.conn.Raw(func(any) error { return driver.ErrBadConn })
	}
	_ = a.conn.Close()
}

// Transient is false: the attempt has the write lock from its beginning, so there is nothing that trying again would change.
func (a *attempt) Transient(error) bool { return false }
