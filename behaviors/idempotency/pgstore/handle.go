package pgstore

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// DBTX is what a handler writes through: a pool or a transaction, without Commit and Rollback. Code that sqlc generates for
// pgx/v5 accepts it.
type DBTX interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
	CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, src pgx.CopyFromSource) (int64, error)
}

// Errors of the handle that a handler is given.
var (
	// ErrNotYours is returned by Commit and Rollback of the transaction that [Tx] gives: the bus ends it, together with the
	// record. Return an error from the handler to undo what it did.
	ErrNotYours = errors.New("pgstore: the transaction belongs to the command's record and is ended by the bus; return an error from the handler to undo it")
	// ErrRevoked is returned by a handle that is used after its handler has returned.
	ErrRevoked = errors.New("pgstore: the handler has returned and its transaction has been taken back")
	// ErrEndedByText is returned by a handle through which COMMIT, ROLLBACK or BEGIN was sent as text. The command fails.
	ErrEndedByText = errors.New("pgstore: a COMMIT, ROLLBACK or BEGIN was sent as text through the command's transaction, which belongs to the bus")
	// ErrNoTransaction is returned by [Tx] outside an idempotent command.
	ErrNoTransaction = errors.New("pgstore: there is no transaction here: the context is not that of an idempotent command's handler")
)

type attemptKey struct{}

// DB gives what a handler reads and writes through. In the handler of an idempotent command, and in commands nested in it,
// that is the transaction which also holds the record (rule rec-1), provided that the command's store uses the same pool;
// everywhere else it is pool itself. So one function serves commands, queries and tests.
//
// The handle is good until the handler returns, and like every transaction for one goroutine at a time.
func DB(ctx context.Context, pool *pgxpool.Pool) DBTX {
	if a, ok := ctx.Value(attemptKey{}).(*attempt); ok && a.store.pool == pool {
		return a.handle()
	}
	return pool
}

// Tx gives the transaction of the idempotent command whose handler ctx belongs to, for libraries that want a pgx.Tx, such as
// a job queue or an outbox. Its Commit and Rollback refuse with [ErrNotYours]; Begin gives a savepoint, which the handler may
// commit and roll back. Outside an idempotent command the error is [ErrNoTransaction].
//
// Conn gives the connection itself, which nothing can guard: ending the transaction there is found out when the record is
// written, and fails the command.
func Tx(ctx context.Context) (pgx.Tx, error) {
	a, ok := ctx.Value(attemptKey{}).(*attempt)
	if !ok {
		return nil, ErrNoTransaction
	}
	return a.handle(), nil
}

// guard is shared by a handle and the savepoints made from it.
type guard struct {
	revoked, ended atomic.Bool
}

func (g *guard) err() error {
	switch {
	case g.revoked.Load():
		return ErrRevoked
	case g.ended.Load():
		return ErrEndedByText
	}
	return nil
}

// handle is a pgx.Tx that the handler cannot end.
type handle struct {
	tx        pgx.Tx
	g         *guard
	savepoint bool
}

func (h *handle) Begin(ctx context.Context) (pgx.Tx, error) {
	if err := h.g.err(); err != nil {
		return nil, err
	}
	tx, err := h.tx.Begin(ctx)
	if err != nil {
		return nil, err
	}
	return &handle{tx: tx, g: h.g, savepoint: true}, nil
}

func (h *handle) Commit(ctx context.Context) error {
	if err := h.g.err(); err != nil {
		return err
	}
	if !h.savepoint {
		return ErrNotYours
	}
	return h.tx.Commit(ctx)
}

func (h *handle) Rollback(ctx context.Context) error {
	if err := h.g.err(); err != nil {
		return err
	}
	if !h.savepoint {
		return ErrNotYours
	}
	return h.tx.Rollback(ctx)
}

// Exec catches a text that ended the transaction by the command tag that the server answers. Other ways to send one are found
// out when the record is written.
func (h *handle) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if err := h.g.err(); err != nil {
		return pgconn.CommandTag{}, err
	}
	tag, err := h.tx.Exec(ctx, sql, args...)
	switch s := tag.String(); {
	case err != nil:
	case s == "COMMIT", s == "BEGIN", s == "START TRANSACTION", s == "PREPARE TRANSACTION",
		s == "ROLLBACK" && h.tx.Conn().PgConn().TxStatus() == 'I': // ROLLBACK TO SAVEPOINT has this tag as well, and stays inside
		h.g.ended.Store(true)
		return tag, ErrEndedByText
	}
	return tag, err
}

func (h *handle) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := h.g.err(); err != nil {
		return nil, err
	}
	return h.tx.Query(ctx, sql, args...)
}

func (h *handle) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if err := h.g.err(); err != nil {
		return failedRow{err}
	}
	return h.tx.QueryRow(ctx, sql, args...)
}

type failedRow struct{ err error }

func (r failedRow) Scan(...any) error { return r.err }

func (h *handle) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if err := h.g.err(); err != nil {
		return pgx.FailedBatchResults(b, err)
	}
	return h.tx.SendBatch(ctx, b)
}

func (h *handle) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, src pgx.CopyFromSource) (int64, error) {
	if err := h.g.err(); err != nil {
		return 0, err
	}
	return h.tx.CopyFrom(ctx, table, columns, src)
}

func (h *handle) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	if err := h.g.err(); err != nil {
		return nil, err
	}
	return h.tx.Prepare(ctx, name, sql)
}

func (h *handle) LargeObjects() pgx.LargeObjects { return h.tx.LargeObjects() }

func (h *handle) Conn() *pgx.Conn { return h.tx.Conn() }
