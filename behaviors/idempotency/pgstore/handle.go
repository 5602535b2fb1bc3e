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
	// ErrNoTransaction is returned by [Tx] where no transaction is open.
	ErrNoTransaction = errors.New("pgstore: there is no transaction here: the context is neither an Atomic handler's nor that of a function given to InTx")
)

// errInUse is what a second goroutine gets.
var errInUse = errors.New("pgstore: another statement of the command's transaction is running; it is for one goroutine at a time")

// holder is what a handler's context holds: an Atomic attempt, a lease, or a transaction of [InTx] outside any command.
type holder interface {
	// on reports whether it is in the database of that pool.
	on(pool *pgxpool.Pool) bool
	// outer is what the context held around it, of another store or another bus.
	outer() holder
	// handle gives the open transaction, ErrNoTransaction where none is open, or ErrRevoked where the handler has returned.
	handle() (*handle, error)
	// within runs fn in the transaction.
	within(ctx context.Context, fn func(ctx context.Context) error) error
}

type holderKey struct{}

func held(ctx context.Context) holder {
	h, _ := ctx.Value(holderKey{}).(holder)
	return h
}

// heldOn gives the innermost holder in the database of pool, or nil.
func heldOn(ctx context.Context, pool *pgxpool.Pool) holder {
	h := held(ctx)
	for h != nil && !h.on(pool) {
		h = h.outer()
	}
	return h
}

// DB gives what a handler reads and writes through. In the handler of an idempotent command, and in commands nested in it,
// that is the transaction which also holds the record (rule rec-1), provided that the command's store uses the same pool; in
// a Leased handler only while its business transaction is open, so from [InTx] on. Inside an InTx it is the transaction of that, and
// everywhere else pool itself. So one function serves commands, queries and tests.
//
// The handle is good until the handler returns, and like every transaction for one goroutine at a time. A goroutine that is
// still in a statement when the handler returns makes the command fail, with everything rolled back.
//
// What a handler sets in the transaction is in force for the record's statement as well: where handlers change the
// search_path, Config.Schema must be set, and a role that they change to needs the store's rights.
func DB(ctx context.Context, pool *pgxpool.Pool) DBTX {
	h := heldOn(ctx, pool)
	if h == nil {
		return pool
	}
	switch t, err := h.handle(); err {
	case nil:
		return t
	case ErrRevoked:
		return revoked
	}
	return pool
}

// revoked is what a handler has after it has returned, if it has never had a transaction.
var revoked = func() *handle {
	g := &guard{}
	g.revoke()
	return &handle{g: g}
}()

// Tx gives the transaction of the idempotent command whose handler ctx belongs to, or of the [InTx] around it, for libraries
// that want a pgx.Tx, such as a job queue or an outbox. Its Commit and Rollback refuse with [ErrNotYours]; Begin gives a savepoint,
// which the handler may commit and roll back. Where no transaction is open the error is [ErrNoTransaction]: outside of the two, and
// in a Leased handler before its InTx.
//
// Conn gives the connection itself, which nothing can guard: ending the transaction there is found out when the record is
// written, and fails the command.
func Tx(ctx context.Context) (pgx.Tx, error) {
	h := held(ctx)
	if h == nil {
		return nil, ErrNoTransaction
	}
	t, err := h.handle()
	if err != nil {
		return nil, err
	}
	return t, nil
}

// guard is shared by a handle and the savepoints made from it. A statement keeps it busy from before it is sent until it is
// answered, so that none is sent on a connection that has been given back to the pool.
type guard struct {
	busy, revoked, ended, used atomic.Bool
	spoiled                    atomic.Bool // a part of what was to be written whole may be missing
}

// whole runs fn, and spoils the transaction if fn fails or does not return.
func (g *guard) whole(ctx context.Context, fn func(ctx context.Context) error) error {
	failed := true
	defer func() {
		if failed {
			g.spoiled.Store(true)
		}
	}()
	err := fn(ctx)
	failed = err != nil
	return err
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
