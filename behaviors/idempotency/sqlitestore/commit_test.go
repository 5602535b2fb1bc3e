package sqlitestore_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/sqlitestore"
	"github.com/tekil-go/tekil/requestctx"
)

// sqliteConn is what the driver's connections can do.
type sqliteConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.SessionResetter
	driver.Validator
}

// faulty opens connections whose transactions end in another way than they should.
type faulty struct {
	under            driver.Driver
	name             string
	commit, rollback atomic.Pointer[func(driver.Tx) error]
}

func (f *faulty) Connect(context.Context) (driver.Conn, error) {
	conn, err := f.under.Open(f.name)
	if err != nil {
		return nil, err
	}
	return faultyConn{conn.(sqliteConn), f}, nil
}

func (f *faulty) Driver() driver.Driver { return f.under }

type faultyConn struct {
	sqliteConn
	f *faulty
}

func (c faultyConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	tx, err := c.sqliteConn.BeginTx(ctx, opts)
	return faultyTx{tx, c.f}, err
}

type faultyTx struct {
	driver.Tx
	f *faulty
}

func (t faultyTx) Commit() error {
	if fault := t.f.commit.Swap(nil); fault != nil {
		return (*fault)(t.Tx)
	}
	return t.Tx.Commit()
}

func (t faultyTx) Rollback() error {
	if fault := t.f.rollback.Swap(nil); fault != nil {
		return (*fault)(t.Tx)
	}
	return t.Tx.Rollback()
}

// setupFaulty is a bundle whose store works through a faulty driver.
func setupFaulty(t *testing.T) (*bundle, *faulty) {
	t.Helper()
	b := setup(t)
	f := &faulty{under: b.db.Driver(), name: "file:" + b.path}
	b.db = sql.OpenDB(f)
	t.Cleanup(func() { _ = b.db.Close() })
	b.store = sqlitestore.New(b.db)
	return b, f
}

var errDisk = errors.New("disk I/O error")

func notDone(driver.Tx) error { return errDisk }

func TestStore_CommitThatIsRefusedUndoesTheAttemptAndLetsTheLockGo(t *testing.T) {
	t.Parallel()
	for name, end := range ends {
		b, f := setupFaulty(t)
		a := b.begin(t, "refused-commit-1")
		if err := b.insert(a.Context(t.Context()), "x"); err != nil {
			t.Fatal(err)
		}
		fault := notDone
		f.commit.Store(&fault)
		if err := end(t.Context(), a); !errors.Is(err, errDisk) || errors.Is(err, idempotency.ErrCommitUnknown) {
			t.Errorf("%s gave %v, want the error of the commit", name, err)
		}
		mustExec(t, b.beside, `INSERT INTO orders (note) VALUES ('the lock is free')`)
		b.want(t, 1, 0)
		b.wantUsable(t)
	}
}

func TestStore_RollbackThatFailsClosesTheConnection(t *testing.T) {
	t.Parallel()
	b, f := setupFaulty(t)
	a := b.begin(t, "failed-rollback-1")
	if err := b.insert(a.Context(t.Context()), "x"); err != nil {
		t.Fatal(err)
	}
	fault := notDone
	f.rollback.Store(&fault)
	a.Rollback(t.Context())
	mustExec(t, b.beside, `INSERT INTO orders (note) VALUES ('the lock is free')`)
	b.want(t, 1, 0)
	b.wantUsable(t)
}

func TestX06_CommitWhoseAnswerIsLostIsFoundOut(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fault func(driver.Tx) error
		runs  int
	}{
		"it was done":     {func(tx driver.Tx) error { return errors.Join(driver.ErrBadConn, tx.Commit()) }, 1},
		"it was not done": {func(driver.Tx) error { return driver.ErrBadConn }, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, f := setupFaulty(t)
			a := b.begin(t, "lost-answer-1")
			f.commit.Store(&c.fault)
			if err := a.Complete(t.Context(), success); !errors.Is(err, idempotency.ErrCommitUnknown) {
				t.Errorf("Complete gave %v, want ErrCommitUnknown", err)
			}
			if n := b.records(t); n != 2-c.runs {
				t.Errorf("there are %d records, want %d", n, 2-c.runs)
			}

			runs := 0
			handle, err := serve(b.store, func(ctx context.Context, cmd pay) (paid, error) {
				runs++
				return readThenWrite(b.db)(ctx, cmd)
			})
			if err != nil {
				t.Fatal(err)
			}
			f.commit.Store(&c.fault)
			res, outcome, err := send(t.Context(), handle, "lost-answer-2", pay{Note: "x"})
			if err != nil || res.OrderID != 1 || outcome.State != requestctx.StateExecuted {
				t.Errorf("the command gave (%+v, %+v, %v), want that it was executed", res, outcome, err)
			}
			if runs != c.runs || b.orders(t) != 1 {
				t.Errorf("the handler ran %d times and there are %d orders, want %d and one", runs, b.orders(t), c.runs)
			}
		})
	}
}
