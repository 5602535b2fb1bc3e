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

// errInUse is what a second goroutine gets.
var errInUse = errors.New("pgstore: another statement of the command's transaction is running; it is for one goroutine at a time")

type attemptKey struct{}

// DB gives what a handler reads and writes through. In the handler of an idempotent command, and in commands nested in it,
// that is the transaction which also holds the record (rule rec-1), provided that the command's store uses the same pool;
// everywhere else it is pool itself. So one function serves commands, queries and tests.
//
// The handle is good until the handler returns, and like every transaction for one goroutine at a time. A goroutine that is
// still in a statement when the handler returns makes the command fail, with everything rolled back.
//
// What a handler sets in the transaction is in force for the record's statement as well: where handlers change the
// search_path, Config.Schema must be set, and a role that they change to needs the store's rights.
func DB(ctx context.Context, pool *pgxpool.Pool) DBTX {
	for a, _ := ctx.Value(attemptKey{}).(*attempt); a != nil; a = a.outer {
		if a.store.pool == pool {
			return a.handle()
		}
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

// guard is shared by a handle and the savepoints made from it. A statement keeps it busy from before it is sent until it is
// answered, so that none is sent on a connection that has been given back to the pool.
type guard struct {
	busy, revoked, ended, used atomic.Bool
}

// enter is called before a statement, and leave after it unless enter gave an error. It does not wait: a statement that was
// begun inside another one would wait for itself.
func (g *guard) enter() error {
	if !g.busy.CompareAndSwap(false, true) {
		if g.revoked.Load() {
			return ErrRevoked
		}
		return errInUse
	}
	switch {
	case g.revoked.Load():
		g.leave()
		return ErrRevoked
	case g.ended.Load():
		g.leave()
		return ErrEndedByText
	}
	return nil
}

func (g *guard) leave() { g.busy.Store(false) }

// revoke lets no further statement in. It reports false when one is running.
func (g *guard) revoke() bool {
	g.revoked.Store(true)
	return !g.busy.Load()
}

// handle is a pgx.Tx that the handler cannot end.
type handle struct {
	tx        pgx.Tx
	g         *guard
	savepoint bool
}

func (h *handle) Begin(ctx context.Context) (pgx.Tx, error) {
	if err := h.g.enter(); err != nil {
		return nil, err
	}
	defer h.g.leave()
	tx, err := h.tx.Begin(ctx)
	if err != nil {
		return nil, err
	}
	return &handle{tx: tx, g: h.g, savepoint: true}, nil
}

func (h *handle) Commit(ctx context.Context) error {
	if err := h.g.enter(); err != nil {
		return err
	}
	defer h.g.leave()
	if !h.savepoint {
		return ErrNotYours
	}
	return h.tx.Commit(ctx)
}

func (h *handle) Rollback(ctx context.Context) error {
	if err := h.g.enter(); err != nil {
		return err
	}
	defer h.g.leave()
	if !h.savepoint {
		return ErrNotYours
	}
	return h.tx.Rollback(ctx)
}

// Exec catches a text that ended the transaction by the command tag that the server answers. Other ways to send one are found
// out when the record is written.
func (h *handle) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if err := h.g.enter(); err != nil {
		return pgconn.CommandTag{}, err
	}
	defer h.g.leave()
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
	if err := h.g.enter(); err != nil {
		return nil, err
	}
	defer h.g.leave()
	return h.tx.Query(ctx, sql, args...)
}

func (h *handle) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if err := h.g.enter(); err != nil {
		return failedRow{err}
	}
	defer h.g.leave()
	return h.tx.QueryRow(ctx, sql, args...)
}

type failedRow struct{ err error }

func (r failedRow) Scan(...any) error { return r.err }

func (h *handle) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if err := h.g.enter(); err != nil {
		return pgx.FailedBatchResults(b, err)
	}
	defer h.g.leave()
	return h.tx.SendBatch(ctx, b)
}

func (h *handle) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, src pgx.CopyFromSource) (int64, error) {
	if err := h.g.enter(); err != nil {
		return 0, err
	}
	defer h.g.leave()
	return h.tx.CopyFrom(ctx, table, columns, src)
}

func (h *handle) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	if err := h.g.enter(); err != nil {
		return nil, err
	}
	defer h.g.leave()
	return h.tx.Prepare(ctx, name, sql)
}

func (h *handle) LargeObjects() pgx.LargeObjects { return h.tx.LargeObjects() }

func (h *handle) Conn() *pgx.Conn { return h.tx.Conn() }
