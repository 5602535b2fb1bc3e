package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
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
	// ErrRevoked is returned by a handle that is used after its handler has returned or its transaction was rolled back.
	ErrRevoked = errors.New("sqlitestore: the handler has returned, or its InTx has failed, and the transaction has been taken back")
	// ErrEndedByText is returned by a handle through which BEGIN, COMMIT, END or ROLLBACK is sent as text, and by every
	// later use of it. The statement is not executed, and the command fails.
	ErrEndedByText = errors.New("sqlitestore: a BEGIN, COMMIT, END or ROLLBACK was sent as text through the command's transaction, which belongs to the bus")
)

// attemptKey is a key of contexts. It names the database, so that a command may nest one of another database. Its value is a
// [holder].
type attemptKey struct{ db *sql.DB }

// holder is what a context holds for a database: an Atomic attempt, a lease or, within InTx, a transaction.
type holder interface {
	// current gives what the handler reads and writes through, or nil where that is the database itself.
	current() *session
	inTx(ctx context.Context, fn func(context.Context) error) error
}

// DB gives what a handler reads and writes through, so that one function serves commands, queries and tests:
//
//	in the handler of an Atomic command    the transaction which also holds the record (rule rec-1)
//	in the handler of a Leased command     the business transaction while it is open ([InTx]); before that, db itself
//	within InTx                            its transaction
//	everywhere else                        db itself
//
// Commands nested in a handler get what the handler gets. The command's store must be on the same *sql.DB.
//
// The handle is good until the handler returns, or until its InTx has rolled back; later it gives [ErrRevoked], and a statement
// prepared with it is closed, like rows that are still open. It may be used by several goroutines, whose statements run one
// after another.
//
// A text that begins with BEGIN, COMMIT, END or ROLLBACK is refused with [ErrEndedByText]. SAVEPOINT, RELEASE and ROLLBACK TO
// are the handler's to use. A transaction that is ended in another way, such as in the middle of a text of several
// statements, is found when the handler returns, and fails the command; what was done by then cannot be undone. Where SQLite
// itself rolls back because a statement failed (a write that its context interrupted, INSERT OR ROLLBACK, a full disk), later
// statements are refused with [idempotency.ErrTransactionAborted], because they would stand outside the transaction.
//
// A refused QueryRowContext gives its error through the row's Err and Scan.
func DB(ctx context.Context, db *sql.DB) DBTX {
	if h, ok := ctx.Value(attemptKey{db}).(holder); ok {
		if s := h.current(); s != nil {
			return handle{s}
		}
	}
	return db
}

// InTx runs fn in a business transaction on db, which [DB] then gives on the context that fn gets. What fn writes is undone when it
// returns an error or panics, and its error is returned.
//
// In the handler of a Leased command InTx opens the business transaction, in its turn and with the write lock, and makes sure that
// the key is still this attempt's; if it is not, it gives [idempotency.ErrLeaseLost] without calling fn. The transaction then
// stays open until the handler returns, and is committed together with the record. So call the outside world before InTx and
// return soon after it: nobody else can write meanwhile. It takes a connection of the pool, so with a pool of one, rows that were
// read through db must be closed by then. When fn fails, its transaction is rolled back, the lease goes on, and
// InTx may be called again. After an InTx that has succeeded, another one goes on in the same transaction, and its failure undoes
// both: unless one succeeds after that, the command cannot succeed any more.
//
// In the handler of an Atomic command, and within another InTx, fn runs in the transaction that is open already. If it fails
// there, nobody can tell its rows from the others, so that transaction cannot be committed any more
// ([idempotency.ErrTransactionAborted]), even if the error is dropped.
//
// Everywhere else InTx begins a transaction of its own and commits it when fn has returned nil and ctx has not ended. Like those of
// commands it takes the write lock first where the store's table is in db, so that fn may read before it writes, waits for it up
// to 5 seconds, and is durable. It does not take part in a store's queue.
//
// InTx is used by one goroutine of a handler at a time. After the handler has returned it gives [ErrRevoked].
func InTx(ctx context.Context, db *sql.DB, fn func(ctx context.Context) error) error {
	if h, ok := ctx.Value(attemptKey{db}).(holder); ok {
		return h.inTx(ctx, fn)
	}
	s := &session{db: db}
	defer s.close()
	if err := s.openBare(ctx); err != nil {
		return fmt.Errorf("sqlitestore: begin: %w", err)
	}
	if err := fn(context.WithValue(ctx, attemptKey{db}, s)); err != nil {
		return err
	}
	if err := s.sound(); err != nil {
		return err
	}
	_ = s.revoke()
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("sqlitestore: commit: %w", err)
	}
	if err := s.tx.Commit(); err != nil {
		return fmt.Errorf("sqlitestore: commit: %w", err)
	}
	s.tx = nil
	return nil
}

// openBare begins a transaction without a store.
func (s *session) openBare(ctx context.Context) (err error) {
	if s.conn, err = connect(ctx, s.db, defaultBusyTimeout); err != nil {
		return err
	}
	if s.tx, err = s.conn.BeginTx(context.WithoutCancel(ctx), nil); err != nil {
		return err
	}
	if _, err = s.tx.ExecContext(ctx, lockSQL); err != nil && strings.Contains(err.Error(), "no such table") {
		err = nil // a database without records
	}
	return err
}

// handle is a transaction as the handler sees it.
type handle struct{ s *session }

func (h handle) ExecContext(ctx context.Context, query string, args ...any) (res sql.Result, err error) {
	err = h.s.do(ctx, query, func() error {
		res, err = h.s.tx.ExecContext(ctx, query, args...)
		return err
	})
	return res, err
}

func (h handle) PrepareContext(ctx context.Context, query string) (stmt *sql.Stmt, err error) {
	err = h.s.do(ctx, query, func() error {
		stmt, err = h.s.tx.PrepareContext(ctx, query)
		return err
	})
	return stmt, err
}

func (h handle) QueryContext(ctx context.Context, query string, args ...any) (rows *sql.Rows, err error) {
	err = h.s.do(ctx, query, func() error {
		rows, err = h.s.tx.QueryContext(ctx, query, args...)
		return err
	})
	return rows, err
}

func (h handle) QueryRowContext(ctx context.Context, query string, args ...any) (row *sql.Row) {
	err := h.s.do(ctx, query, func() error {
		row = h.s.tx.QueryRowContext(ctx, query, args...)
		return row.Err()
	})
	if row == nil {
		// A row can only be made by a query. This one ends before it takes a connection, with the error of its context.
		row = h.s.db.QueryRowContext(failedContext{context.WithoutCancel(ctx), err}, "")
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
