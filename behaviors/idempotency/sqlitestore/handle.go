package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/tekil-go/tekil/behaviors/idempotency"
)

// DBTX is what a handler writes through: a *sql.DB or a transaction, without Commit and Rollback. Code that sqlc generates
// for database/sql accepts it.
type DBTX interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	PrepareContext(ctx context.Context, query string) (*sql.Stmt, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Errors of the handle that a handler is given.
var (
	// ErrRevoked is returned by a handle that is used after its handler has returned.
	ErrRevoked = errors.New("sqlitestore: the handler has returned and its transaction has been taken back")
	// ErrEndedByText is returned by a handle through which BEGIN, COMMIT, END or ROLLBACK is sent as text, and by every
	// later use of it. The statement is not executed, and the command fails.
	ErrEndedByText = errors.New("sqlitestore: a BEGIN, COMMIT, END or ROLLBACK was sent as text through the command's transaction, which belongs to the bus")
)

// attemptKey is a key of contexts. It names the database, so that a command may nest one of another database.
type attemptKey struct{ db *sql.DB }

// DB gives what a handler reads and writes through. In the handler of an idempotent command, and in commands nested in it,
// that is the transaction which also holds the record (rule rec-1), provided that the command's store is on the same *sql.DB;
// everywhere else it is db itself. So one function serves commands, queries and tests.
//
// The handle is good until the handler returns; later it gives [ErrRevoked], and a statement prepared with it is
// closed, like rows that are still open. It may be used by several goroutines, whose statements run one after another.
//
// A text that begins with BEGIN, COMMIT, END or ROLLBACK is refused with [ErrEndedByText]. SAVEPOINT, RELEASE and ROLLBACK TO
// are the handler's to use. A transaction that is ended in another way, such as in the middle of a text of several
// statements, is found when the handler returns, and fails the command; what was done by then cannot be undone. Where SQLite
// itself rolls back because a statement failed (a write that its context interrupted, INSERT OR ROLLBACK, a full disk), later
// statements are refused with [idempotency.ErrTransactionAborted], because they would stand outside the transaction.
//
// A refused QueryRowContext gives its error through the row's Err and Scan.
func DB(ctx context.Context, db *sql.DB) DBTX {
	if a, ok := ctx.Value(attemptKey{db}).(*attempt); ok {
		a.used.Store(true)
		return handle{a}
	}
	return db
}

// handle is an attempt as its handler sees it.
type handle struct{ a *attempt }

func (h handle) ExecContext(ctx context.Context, query string, args ...any) (res sql.Result, err error) {
	err = h.a.do(ctx, query, func() error {
		res, err = h.a.tx.ExecContext(ctx, query, args...)
		return err
	})
	return res, err
}

func (h handle) PrepareContext(ctx context.Context, query string) (stmt *sql.Stmt, err error) {
	err = h.a.do(ctx, query, func() error {
		stmt, err = h.a.tx.PrepareContext(ctx, query)
		return err
	})
	return stmt, err
}

func (h handle) QueryContext(ctx context.Context, query string, args ...any) (rows *sql.Rows, err error) {
	err = h.a.do(ctx, query, func() error {
		rows, err = h.a.tx.QueryContext(ctx, query, args...)
		return err
	})
	return rows, err
}

func (h handle) QueryRowContext(ctx context.Context, query string, args ...any) (row *sql.Row) {
	err := h.a.do(ctx, query, func() error {
		row = h.a.tx.QueryRowContext(ctx, query, args...)
		return row.Err()
	})
	if row == nil {
		// A row can only be made by a query. This one ends before it takes a connection, with the error of its context.
		row = h.a.store.db.QueryRowContext(failedContext{context.WithoutCancel(ctx), err}, "")
	}
	return row
}

// failedContext is a context that has ended with an error.
type failedContext struct {
	context.Context
	err error
}

func (c failedContext) Err() error { return c.err }

func (failedContext) Done() <-chan struct{} {
	done := make(chan struct{})
	close(done)
	return done
}

// do runs one statement of the handler, unless it must not run.
func (a *attempt) do(ctx context.Context, query string, run func() error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.revoked:
		return ErrRevoked
	case a.fault != nil:
		return a.fault
	case endsTransaction(query):
		a.fault = fmt.Errorf("%w: %w", idempotency.ErrTransactionEnded, ErrEndedByText)
		return a.fault
	}
	err := run()
	if err != nil && a.rolledBack(ctx) {
		a.fault = fmt.Errorf("%w: SQLite rolled it back when a statement failed: %w", idempotency.ErrTransactionAborted, err)
	}
	return err
}

// rolledBack finds out whether the transaction is gone: in an open one, BEGIN is an error and changes nothing.
func (a *attempt) rolledBack(ctx context.Context) bool {
	ctx = context.WithoutCancel(ctx)
	if _, err := a.tx.ExecContext(ctx, `BEGIN`); err != nil {
		return false
	}
	_, _ = a.tx.ExecContext(ctx, `ROLLBACK`)
	return true
}

// revoke takes the handle back, when no statement is running through it, and gives the handler's fault, if any.
func (a *attempt) revoke() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.revoked = true
	return a.fault
}

// endsTransaction reports whether the first statement of a text would end the transaction or begin one.
func endsTransaction(query string) bool {
	word, rest := firstWord(query)
	switch strings.ToUpper(word) {
	case "BEGIN", "COMMIT", "END":
		return true
	case "ROLLBACK":
		word, rest = firstWord(rest)
		if strings.EqualFold(word, "TRANSACTION") {
			word, _ = firstWord(rest)
		}
		return !strings.EqualFold(word, "TO")
	}
	return false
}

// firstWord gives the letters at the beginning of a text, behind white space, empty statements and comments, and what
// follows them.
func firstWord(s string) (word, rest string) {
	for {
		s = strings.TrimLeft(s, " \t\n\f\r;\ufeff")
		switch {
		case strings.HasPrefix(s, "--"):
			_, s, _ = strings.Cut(s, "\n")
			continue
		case strings.HasPrefix(s, "/*"):
			_, s, _ = strings.Cut(s[2:], "*/")
			continue
		}
		n := strings.IndexFunc(s, func(r rune) bool { return (r|0x20) < 'a' || (r|0x20) > 'z' })
		if n < 0 {
			n = len(s)
		}
		return s[:n], s[n:]
	}
}
