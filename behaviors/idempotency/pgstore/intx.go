package pgstore

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tekil-go/tekil/behaviors/idempotency"
)

// InTx runs fn in one transaction of pool's database. Inside fn, [DB] and [Tx] give that transaction for the context that fn is
// given. Which transaction it is depends on where ctx comes from, so one function serves all of these:
//
//   - In the handler of a Leased command it is the business transaction, which also completes the record. It is begun by the first
//     InTx, at the level of the command's policy, and its first statement locks the record and makes sure that it is still this
//     attempt's. If it is not, the error wraps [idempotency.ErrLeaseLost] and fn does not run. After fn has returned nil the
//     transaction stays open: it is committed with the record when the handler has returned without an error. A further InTx goes on
//     in it. If fn fails, all that was written in it is rolled back, what earlier calls wrote included, and the handler
//     may call InTx again to do it all anew in a new transaction. A handler that does not, although an earlier call had succeeded,
//     cannot succeed any more.
//   - In the handler of an Atomic command it is the command's own. If fn fails there, the command cannot succeed any more.
//   - Inside another InTx it is the transaction of that, which cannot be committed any more if fn fails.
//   - Elsewhere it is a transaction of its own, at the default level of the session, which is committed when fn has returned nil.
//
// Where a command cannot succeed any more its success is answered as a fault of the handler, with everything rolled back
// ([idempotency.ErrTransactionAborted]).
//
// The error of fn is returned as it is. A panic of fn counts as a failure and goes on. Keep outside calls out of fn: it holds a
// connection and, in a Leased handler, the record.
//
// It holds for commands whose store uses pool itself: for another pool, ctx is that of no command.
func InTx(ctx context.Context, pool *pgxpool.Pool, fn func(ctx context.Context) error) error {
	if h := heldOn(ctx, pool); h != nil {
		return h.within(ctx, fn)
	}
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("pgstore: no connection: %w", err)
	}
	o := &ordinary{loan: loan{conn: conn}, pool: pool, around: held(ctx)}
	defer o.undo(ctx)
	tx, err := conn.Begin(ctx)
	if err != nil {
		return fmt.Errorf("pgstore: begin: %w", err)
	}
	o.lend(tx)
	if err := o.g.whole(context.WithValue(ctx, holderKey{}, o), fn); err != nil {
		return err
	}
	if err := o.closing(); err != nil {
		return err
	}
	tag, err := conn.Exec(ctx, `COMMIT`)
	if err != nil {
		return fmt.Errorf("pgstore: commit: %w", err)
	}
	if tag.String() != "COMMIT" {
		return idempotency.ErrTransactionAborted
	}
	return nil
}

// ordinary is a transaction outside any command.
type ordinary struct {
	loan
	pool   *pgxpool.Pool
	around holder
}

func (o *ordinary) on(pool *pgxpool.Pool) bool { return o.pool == pool }

func (o *ordinary) outer() holder { return o.around }

func (o *ordinary) handle() (*handle, error) { return &o.given, nil }

func (o *ordinary) within(ctx context.Context, fn func(ctx context.Context) error) error {
	if o.g.revoked.Load() {
		return ErrRevoked
	}
	return o.g.whole(ctx, fn)
}

// undoTime bounds a rollback, which does not end with the context of what is rolled back.
const undoTime = 5 * time.Second

// undo rolls back on a context of its own.
func (l *loan) undo(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	l.Rollback(ctx)
}
