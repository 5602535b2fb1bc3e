package sqlitestore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/tekil-go/tekil/behaviors/idempotency"
)

// session is one transaction on one connection, in its store's turn. An Atomic attempt has one from its beginning to its end, a
// lease while its business transaction is open, and every write of the store's own for as long as that takes.
type session struct {
	db *sql.DB
	st *statements

	// What is given back at the end.
	turn   chan struct{} // nil where no turn was taken
	conn   *sql.Conn     // nil before it was taken
	tx     *sql.Tx       // nil before it is begun and after it is committed
	closed bool

	mu      sync.Mutex // held by each statement of the handler
	revoked bool
	fault   error // what the handler did that it must not; no statement runs after it
	flaw    error // why the transaction cannot be committed although statements run in it
}

// open waits for the turn, takes a connection and begins a transaction with the write lock. The caller closes the session, also
// after an error.
func (s *session) open(ctx context.Context, store *Store) (err error) {
	s.db = store.db
	select {
	case store.turn <- struct{}{}:
		s.turn = store.turn
	case <-ctx.Done():
		return fmt.Errorf("sqlitestore: other commands were writing all the time: %w", ctx.Err())
	}
	if s.st, err = patiently(ctx, store, store.prepared); err != nil {
		return fmt.Errorf("sqlitestore: prepare the statements: %w", err)
	}
	if s.conn, err = store.conn(ctx); err != nil {
		return fmt.Errorf("sqlitestore: no connection: %w", err)
	}
	if err = s.begin(ctx); err != nil {
		return fmt.Errorf("sqlitestore: begin: %w", err)
	}
	return nil
}

// begin opens the transaction. It is a sql.Tx, which closes the rows that a handler has left open and does not run anything
// after its end. It outlives ctx.
func (s *session) begin(ctx context.Context) (err error) {
	// Only the lock is waited for. For a context that can end, drivers set up a watch with each statement; the others are
	// spared that.
	if s.tx, err = s.conn.BeginTx(context.WithoutCancel(ctx), nil); err != nil {
		return err
	}
	_, err = s.stmt(ctx, s.st.lock).ExecContext(ctx)
	return err
}

// mark sets the savepoint at which the handler's statements begin.
func (s *session) mark(ctx context.Context) error {
	if _, err := s.stmt(ctx, s.st.mark).ExecContext(ctx); err != nil {
		return fmt.Errorf("sqlitestore: begin: %w", err)
	}
	return nil
}

// stmt gives a prepared statement in the transaction, which closes it.
func (s *session) stmt(ctx context.Context, st *sql.Stmt) *sql.Stmt { return s.tx.StmtContext(ctx, st) }

// recorder writes an outcome into its record.
type recorder interface {
	put(ctx context.Context, in *session, done idempotency.Completion) error
}

// keep commits the outcome together with the handler's rows. The handle has been taken back.
func (s *session) keep(ctx context.Context, r recorder, done idempotency.Completion) error {
	if s.fault != nil {
		return s.fault
	}
	if flaw := s.flawed(); flaw != nil {
		return flaw
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("sqlitestore: write the record: %w", err)
	}
	// From here on nothing waits for anybody, and nothing must be cut off half way.
	ctx = context.WithoutCancel(ctx)
	// Where a statement with RETURNING has been left open, SQLite finds the savepoint and does not release it; COMMIT does.
	if _, err := s.stmt(ctx, s.st.release).ExecContext(ctx); err != nil && !strings.Contains(err.Error(), "SQL statements in progress") {
		return fmt.Errorf("%w: %w", idempotency.ErrTransactionEnded, err)
	}
	return s.write(ctx, r, done)
}

// drop rolls the handler's rows back and commits the outcome alone. The write lock is not let go in between. The handle has been
// taken back.
func (s *session) drop(ctx context.Context, r recorder, done idempotency.Completion) error {
	if errors.Is(s.fault, idempotency.ErrTransactionEnded) {
		return s.fault
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("sqlitestore: write the record: %w", err)
	}
	ctx = context.WithoutCancel(ctx)
	if s.fault != nil { // SQLite has rolled back already, and the lock has gone with it
		_ = s.tx.Rollback()
		if err := s.begin(ctx); err != nil {
			return fmt.Errorf("sqlitestore: begin: %w", err)
		}
	} else if _, err := s.tx.ExecContext(ctx, rollBackSQL); err != nil {
		return fmt.Errorf("%w: %w", idempotency.ErrTransactionEnded, err)
	}
	return s.write(ctx, r, done)
}

func (s *session) write(ctx context.Context, r recorder, done idempotency.Completion) error {
	if err := r.put(ctx, s, done); err != nil {
		return fmt.Errorf("sqlitestore: write the record: %w", err)
	}
	return s.commit()
}

func (s *session) commit() error {
	err := s.tx.Commit()
	if err == nil {
		s.tx = nil
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

// changed counts the rows that a statement changed.
func changed(res sql.Result, err error) (int, error) {
	if err != nil {
		return 0, err
	}
	n, err := res.RowsAffected()
	return int(n), err
}

// close undoes what is open and gives everything back, in whatever state it is. After the first time it does nothing.
func (s *session) close() {
	_ = s.revoke()
	if s.closed {
		return
	}
	s.closed = true
	// Even if a driver panics, the next one gets its turn.
	if s.turn != nil {
		defer func() { <-s.turn }()
	}
	if s.conn == nil {
		return
	}
	if s.tx != nil && s.tx.Rollback() != nil {
		// The state of the connection is not known; closing it undoes whatever may be open.
		_ = s.conn.Raw(func(any) error { return driver.ErrBadConn })
	}
	_ = s.conn.Close()
}

// undo closes a session that is not to be committed. It reports that the handler has ended the transaction itself, if it has.
func (s *session) undo() error {
	defer s.close()
	if fault := s.revoke(); fault != nil {
		if errors.Is(fault, idempotency.ErrTransactionEnded) {
			return fault
		}
		return nil
	}
	if _, err := s.tx.ExecContext(context.Background(), rollBackSQL); err != nil && !errors.Is(err, driver.ErrBadConn) {
		return fmt.Errorf("%w: %w", idempotency.ErrTransactionEnded, err)
	}
	return nil
}

// short makes a write of the store's own: in its turn, with the write lock, and committed.
func (s *Store) short(ctx context.Context, what string, write func(ctx context.Context, in *session) error) error {
	in := new(session)
	defer in.close()
	if err := in.open(ctx, s); err != nil {
		return err
	}
	if err := write(context.WithoutCancel(ctx), in); err != nil {
		return fmt.Errorf("sqlitestore: %s: %w", what, err)
	}
	return in.commit()
}

// do runs one statement of the handler, unless it must not run.
func (s *session) do(ctx context.Context, query string, run func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.revoked:
		return ErrRevoked
	case s.fault != nil:
		return s.fault
	case endsTransaction(query):
		s.fault = fmt.Errorf("%w: %w", idempotency.ErrTransactionEnded, ErrEndedByText)
		return s.fault
	}
	err := run()
	if err != nil && s.rolledBack(ctx) {
		s.fault = fmt.Errorf("%w: SQLite rolled it back when a statement failed: %w", idempotency.ErrTransactionAborted, err)
	}
	return err
}

// rolledBack finds out whether the transaction is gone: in an open one, BEGIN is an error and changes nothing.
func (s *session) rolledBack(ctx context.Context) bool {
	ctx = context.WithoutCancel(ctx)
	if _, err := s.tx.ExecContext(ctx, `BEGIN`); err != nil {
		return false
	}
	_, _ = s.tx.ExecContext(ctx, `ROLLBACK`)
	return true
}

// revoke takes the handle back, when no statement is running through it, and gives the handler's fault, if any.
func (s *session) revoke() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.revoked = true
	return s.fault
}

// sound gives what stands in the way of going on in the transaction.
func (s *session) sound() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.revoked:
		return ErrRevoked
	case s.fault != nil:
		return s.fault
	}
	return s.flaw
}

// spoil lets the transaction not be committed any more. Its statements go on.
func (s *session) spoil(flaw error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.flaw == nil {
		s.flaw = flaw
	}
}

func (s *session) flawed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.flaw
}

// current makes a session a [holder], within its own InTx.
func (s *session) current() *session { return s }

// inTx runs fn in a transaction that is open already. Where fn fails, nobody can tell its rows from the others, so none of them
// may be committed.
func (s *session) inTx(ctx context.Context, fn func(context.Context) error) error {
	if err := s.sound(); err != nil {
		return err
	}
	ok := false
	defer func() {
		if !ok {
			s.spoil(errSpoiled)
		}
	}()
	err := fn(ctx)
	if err == nil {
		err = s.sound()
	}
	ok = err == nil
	return err
}

var errSpoiled = fmt.Errorf("%w: the function of an InTx in it has failed", idempotency.ErrTransactionAborted)
