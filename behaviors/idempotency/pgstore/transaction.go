package pgstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tekil-go/tekil/behaviors/idempotency"
)

// loan is an open transaction on a connection of its own, lent to a handler, which writes through it and does not end it.
type loan struct {
	conn    *pgxpool.Conn // nil when the loan has ended
	started time.Time     // when the server began the transaction
	taken   bool          // the handler has no access any more
	g       guard
	given   handle // what the handler gets
}

func (l *loan) lend(tx pgx.Tx) { l.given = handle{tx: tx, g: &l.g} }

func (l *loan) ended() bool {
	if l.g.ended.Load() {
		return true
	}
	pc := l.conn.Conn().PgConn()
	return !pc.IsClosed() && !pc.IsBusy() && pc.TxStatus() == 'I'
}

// takeBack takes the transaction back from the handler. It reports false when a goroutine that the handler has left behind is
// in the middle of a statement: the connection is then that goroutine's, and all that can be done is to break it.
func (l *loan) takeBack() bool {
	if l.taken {
		return l.conn != nil
	}
	l.taken = true
	if l.g.revoke() {
		return true
	}
	if l.conn != nil {
		_ = l.conn.Hijack().PgConn().Conn().Close()
		l.conn = nil
	}
	return false
}

// closing takes the transaction back and reports what forbids to commit it.
func (l *loan) closing() error {
	if !l.takeBack() {
		return errStillRunning
	}
	if l.ended() {
		return idempotency.ErrTransactionEnded
	}
	switch pc := l.conn.Conn().PgConn(); {
	case pc.IsClosed():
		return fmt.Errorf("%w: its connection is closed", idempotency.ErrTransactionAborted)
	case pc.IsBusy():
		return errOpenRows
	case pc.TxStatus() == 'E':
		return idempotency.ErrTransactionAborted
	case l.g.spoiled.Load():
		return errSpoiled
	}
	return nil
}

// undoing takes the transaction back and reports what forbids to write an outcome without its rows.
func (l *loan) undoing() error {
	switch {
	case !l.takeBack():
		return errStillRunning
	case l.ended():
		return idempotency.ErrTransactionEnded
	case l.conn.Conn().PgConn().IsBusy():
		return errOpenRows
	}
	return nil
}

var (
	errStillRunning = fmt.Errorf("%w: a goroutine that the handler started and did not wait for was still writing", idempotency.ErrTransactionAborted)
	errOpenRows     = fmt.Errorf("%w: rows were left open", idempotency.ErrTransactionAborted)
	errSpoiled      = fmt.Errorf("%w: a function that was given to InTx had failed in it", idempotency.ErrTransactionAborted)
)

// write sends what b holds, a statement about the record and COMMIT in one turn, and says what became of them. It gives the
// number of rows that the statement has changed or given.
func (l *loan) write(ctx context.Context, b *pgx.Batch, sql string, args ...any) (rows int64, err error) {
	return l.read(ctx, b, nil, sql, args...)
}

// read is write for a statement that gives a row.
func (l *loan) read(ctx context.Context, b *pgx.Batch, into []any, sql string, args ...any) (rows int64, err error) {
	b.Queue(sql, args...)
	b.Queue(`COMMIT`)
	br := l.conn.SendBatch(ctx, b)
	var tag pgconn.CommandTag
	answered := 0
	for ; answered < b.Len() && err == nil; answered++ {
		if into != nil && answered == b.Len()-2 {
			rows, err = 1, br.QueryRow().Scan(into...)
			continue
		}
		if tag, err = br.Exec(); answered == b.Len()-2 {
			rows = tag.RowsAffected()
		}
	}
	if closing := br.Close(); err == nil {
		err = closing
	}
	if err == nil && tag.String() != "COMMIT" { // a failed transaction answers COMMIT with ROLLBACK and without an error
		return 0, idempotency.ErrTransactionAborted
	}
	return rows, verdict(err, answered >= b.Len())
}

// Rollback undoes what is open and gives the connection back.
func (l *loan) Rollback(ctx context.Context) {
	if !l.takeBack() {
		return
	}
	_ = l.rollback(ctx) // a connection that cannot be rolled back is closed, and the server rolls back by itself
	l.conn.Release()
	l.conn = nil
}

func (l *loan) rollback(ctx context.Context) error {
	conn := l.conn.Conn()
	pc := conn.PgConn()
	if pc.IsClosed() {
		return errors.New("the connection is closed")
	}
	if pc.IsBusy() {
		return conn.Close(ctx)
	}
	if pc.TxStatus() == 'I' {
		return nil
	}
	_, err := conn.Exec(ctx, `ROLLBACK`)
	if err != nil {
		_ = conn.Close(ctx)
	}
	return err
}

// single sends one statement about a record in a transaction of its own, in one turn. The level is said, because under a
// stricter default of the sessions it would fail where it has to look at the row again.
func (s *Store) single(ctx context.Context, sql string, args ...any) (rows int64, err error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return 0, fmt.Errorf("pgstore: no connection: %w", err)
	}
	l := &loan{conn: conn}
	defer l.Rollback(ctx)
	return l.write(ctx, alone(), sql, args...)
}

// alone is a batch that begins a transaction for one statement.
func alone() *pgx.Batch {
	b := &pgx.Batch{}
	b.BeginTx(pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	return b
}
