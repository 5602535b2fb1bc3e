package sqlitestore_test

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"modernc.org/sqlite"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/sqlitestore"
)

// Attempts to make two owners of one key disagree: two orders for one intent, an answer that is not the record's, an outcome
// without its rows or rows without their outcome.

// impatient is a store of another process that does not wait.
func (b *bundle) impatient(t testing.TB) *sqlitestore.Store {
	t.Helper()
	return sqlitestore.NewWithConfig(openFile(t, b.path, ""), sqlitestore.Config{BusyTimeout: time.Millisecond})
}

// moments are what a test does in the middle of another statement, by the argument of the SQL function moment.
var moments sync.Map

// registerMoments comes before all connections: the driver reads its functions, without a lock, when it opens one.
func registerMoments() {
	sqlite.MustRegisterScalarFunction("moment", 1, func(_ *sqlite.FunctionContext, args []driver.Value) (driver.Value, error) {
		if do, ok := moments.Load(args[0]); ok {
			do.(func())()
		}
		return nil, nil
	})
}

// Another process tries everything in the very middle of the completion: after the handler's savepoint was released and while the
// outcome is being written, before it is committed.
func TestNobodyComesBetweenTheOutcomeAndItsCommit(t *testing.T) {
	t.Parallel()
	b := setup(t)
	other := b.impatient(t)
	c := leasedOf("between-key-1", "one")
	c.Retention = time.Millisecond // so that everybody has a right to the key
	rival := leasedOf("between-key-1", "two")
	tries := 0
	moments.Store(b.path, func() {
		tries++
		if l, rec, err := other.Lease(t.Context(), rival); err == nil || l != nil {
			t.Errorf("a takeover gets a lease %t, %+v", l != nil, rec)
		}
		if done, err := other.Free(t.Context(), c.ID, c.Attempt); err == nil {
			t.Errorf("a release by a person gives %t", done)
		}
		if done, err := other.Purge(t.Context(), idempotency.PurgeBatch{Limit: 1}); err == nil {
			t.Errorf("a purge gives %+v", done)
		}
		if rec, err := other.Look(t.Context(), rival); err != nil || rec.State != idempotency.InProgress {
			t.Errorf("a look gives %+v, %v", rec, err)
		}
	})
	defer moments.Delete(b.path)
	mustExec(t, b.beside, `CREATE TRIGGER tries AFTER UPDATE ON idempotency_records WHEN NEW.state = 'completed' BEGIN SELECT moment('`+b.path+`'); END`)
	l := b.lease(t, c)
	b.leaseOver(t)
	if err := b.insertInTx(t, l, "first"); err != nil {
		t.Fatal(err)
	}
	if err := l.Complete(t.Context(), success); err != nil || tries != 1 {
		t.Errorf("Complete gives %v after %d tries of others", err, tries)
	}
	b.want(t, 1, 1)
	b.wantState(t, "between-key-1", idempotency.Completed, "one")
}

// The write-ahead log is emptied into the file under an open business transaction, and again before its record is read.
func TestCheckpointsUnderABusinessTransactionMakeNoSecondOwner(t *testing.T) {
	t.Parallel()
	b := setup(t)
	l := b.lease(t, leasedOf("checkpoint-key-1", "one"))
	b.leaseOver(t)
	impatient := openFile(t, b.path, "?_pragma=busy_timeout(0)")
	checkpoint := func() { _, _ = impatient.ExecContext(t.Context(), `PRAGMA wal_checkpoint(TRUNCATE)`) } // it may be told that the file is busy
	if err := sqlitestore.InTx(l.Context(t.Context()), b.db, func(ctx context.Context) error {
		checkpoint()
		defer checkpoint()
		return b.insert(ctx, "first")
	}); err != nil {
		t.Fatal(err)
	}
	if l, rec, err := b.impatient(t).Lease(t.Context(), leasedOf("checkpoint-key-1", "two")); err == nil {
		t.Errorf("another process gets a lease %t, %+v", l != nil, rec)
	}
	if err := l.Complete(t.Context(), success); err != nil {
		t.Error(err)
	}
	checkpoint()
	second := b.second(t)
	if l, rec, err := second.store.Lease(t.Context(), leasedOf("checkpoint-key-1", "two")); err != nil || l != nil || rec.State != idempotency.Completed {
		t.Errorf("afterwards another process gets a lease %t, %+v, %v", l != nil, rec, err)
	}
	b.want(t, 1, 1)
}

// Everything that somebody else may do to a key waits for the business transaction of its owner, and then finds it completed.
func TestWhoeverLaysHandsOnAKeyInItsOwnersTransactionComesTooLate(t *testing.T) {
	t.Parallel()
	for name, hand := range map[string]func(s *sqlitestore.Store, c idempotency.Claim) error{
		"takes it over": func(s *sqlitestore.Store, c idempotency.Claim) error {
			l, rec, err := s.Lease(t.Context(), leasedOf(c.Scope.Key, "two"))
			if err == nil && (l != nil || rec.State != idempotency.Completed) {
				err = fmt.Errorf("got a lease %t, %+v", l != nil, rec)
			}
			return err
		},
		"releases it": func(s *sqlitestore.Store, c idempotency.Claim) error {
			done, err := s.Free(t.Context(), c.ID, c.Attempt)
			if done {
				err = errors.New("it was released")
			}
			return err
		},
	} {
		b := setup(t)
		c := leasedOf("late-hand-1", "one")
		l := b.lease(t, c)
		b.leaseOver(t)
		if err := b.insertInTx(t, l, "first"); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		other := b.second(t)
		go func() { ended <- hand(other.store, c) }()
		select {
		case err := <-ended:
			t.Errorf("who %s does not wait: %v", name, err)
			ended <- nil
		case <-time.After(20 * time.Millisecond): // enough for the fault, and without one there is nothing to see
		}
		if err := l.Complete(t.Context(), success); err != nil {
			t.Errorf("who %s: Complete gives %v", name, err)
		}
		if err := <-ended; err != nil {
			t.Errorf("who %s: %v", name, err)
		}
		b.want(t, 1, 1)
		b.wantState(t, "late-hand-1", idempotency.Completed, "one")
	}
}

// Whatever a handler sends in its transaction: the outcome is completed exactly where the rows are there and where that is said.
func TestWhateverAHandlerSendsInItsTransactionTheAnswerTheRecordAndTheRowsAgree(t *testing.T) {
	t.Parallel()
	for _, query := range []string{
		`DELETE FROM idempotency_records`,
		`UPDATE idempotency_records SET state = 'failed'`,
		`UPDATE idempotency_records SET attempt = x'00000000000000000000000000000000'`,
		`UPDATE idempotency_records SET key = 'another-key'`,
		`UPDATE idempotency_sequence SET value = 0`,
		`DROP TABLE idempotency_records`,
		`ALTER TABLE idempotency_records RENAME TO gone`,
		`CREATE TEMP TABLE idempotency_records AS SELECT * FROM main.idempotency_records`,
		`CREATE TEMP TRIGGER swallows BEFORE UPDATE ON main.idempotency_records BEGIN SELECT RAISE(IGNORE); END`,
		`CREATE TEMP TRIGGER undoes BEFORE UPDATE ON main.idempotency_records BEGIN SELECT RAISE(ROLLBACK, 'no'); END`,
		`RELEASE tekil_attempt`,
		`ROLLBACK TO tekil_attempt`,
		`SAVEPOINT left_open`,
		`SELECT 1; COMMIT; BEGIN IMMEDIATE; SAVEPOINT other`,
		`PRAGMA query_only = ON`,
		`PRAGMA synchronous = OFF`,
		`PRAGMA journal_mode = DELETE`,
		`PRAGMA locking_mode = EXCLUSIVE`,
		`PRAGMA busy_timeout = 0`,
		`PRAGMA wal_checkpoint(TRUNCATE)`,
		`PRAGMA defer_foreign_keys = ON`,
		`PRAGMA read_uncommitted = ON`,
		`VACUUM`,
		`ATTACH ':memory:' AS elsewhere`,
	} {
		for name, refuses := range map[string]bool{"succeeds": false, "refuses": true} {
			t.Run(query+" and "+name, func(t *testing.T) {
				t.Parallel()
				b := setup(t)
				b.db.SetMaxOpenConns(1)
				l := b.lease(t, leasedOf("whatever-key-1", "one"))
				var err error
				_ = sqlitestore.InTx(l.Context(t.Context()), b.db, func(ctx context.Context) error { // its error goes unheard
					if err := b.insert(ctx, "first"); err != nil {
						return err
					}
					_, _ = sqlitestore.DB(ctx, b.db).ExecContext(ctx, query)
					return nil
				})
				wantOrders := 0
				if refuses {
					err = l.Refuse(t.Context(), refused)
				} else if err = l.Complete(t.Context(), success); err == nil {
					wantOrders = 1
				}
				if query == `ROLLBACK TO tekil_attempt` {
					wantOrders = 0 // the handler has undone its own work
				}
				l.Rollback(t.Context())
				// Read by another process: what counts is what is in the file.
				if n := b.orders(t); n != wantOrders && !(committedByHand(query) && n <= 1) {
					t.Errorf("the end was %v, and there are %d orders, want %d", err, n, wantOrders)
				}
				if rec := b.record(t, "whatever-key-1"); (rec.State == idempotency.Completed) != (err == nil) {
					t.Errorf("the end was %v, and the record is %s", err, rec.State)
				}
				b.leaseOver(t)
				if l, rec, next := b.second(t).store.Lease(t.Context(), leasedOf("whatever-key-1", "two")); next != nil || (l == nil) != (err == nil) {
					t.Errorf("the end was %v; the next one gets a lease %t, %+v, %v", err, l != nil, rec, next)
				}
				// The connection that was changed may be of no more use. It must not be a second truth.
				if l, rec, err := b.store.Lease(t.Context(), leasedOf("whatever-key-1", "three")); err == nil && l != nil {
					t.Errorf("one more gets a lease on the connection that was changed, beside %+v", rec)
				}
			})
		}
	}
}

// committedByHand is the handler's fault that nothing can undo.
func committedByHand(query string) bool {
	return query == `SELECT 1; COMMIT; BEGIN IMMEDIATE; SAVEPOINT other`
}

// A function that was given to InTx runs on in a goroutine that nobody waits for, beside another one that has returned. Half of
// its rows must not be committed, because it has not said that they are whole.
func TestHalfOfAnInTxThatRunsOnBesideAnotherOneIsNotCommitted_BR14(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]bool{"it has begun before the other one": true, "it has begun within the other one": false} {
		b := setup(t)
		l := b.lease(t, leasedOf("half-key-1", "one"))
		ctx := l.Context(t.Context())
		half, handlerReturned, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		leaveBehind := func() {
			go func() {
				ended <- sqlitestore.InTx(ctx, b.db, func(ctx context.Context) error {
					if err := b.insert(ctx, "half"); err != nil {
						t.Error(err)
					}
					close(half)
					<-handlerReturned
					return b.insert(ctx, "the other half")
				})
			}()
			<-half
		}
		if before {
			leaveBehind()
		}
		if err := sqlitestore.InTx(ctx, b.db, func(ctx context.Context) error {
			if !before {
				leaveBehind()
			}
			return b.insert(ctx, "whole")
		}); err != nil {
			t.Error(name, err)
		}
		err := l.Complete(t.Context(), success)
		close(handlerReturned)
		if late := <-ended; late == nil {
			t.Errorf("%s: the function that ran on believes that it is done", name)
		}
		if !errors.Is(err, idempotency.ErrTransactionAborted) {
			t.Errorf("%s: Complete gives %v", name, err)
		}
		b.want(t, 0, 1)
	}
}

// The file that holds the records is replaced by a copy from before the claim, as a careless restore does.
func TestClaimOfAFileThatWasRestoredUnderItsOwnerIsLost(t *testing.T) {
	t.Parallel()
	b := setup(t)
	l := b.lease(t, leasedOf("restored-key-1", "one"))
	// The contents are replaced, as the backup API does it: through the database.
	mustExec(t, b.beside, `DELETE FROM idempotency_records`)
	mustExec(t, b.beside, `UPDATE idempotency_sequence SET value = 0`)
	second := b.second(t)
	next := second.lease(t, leasedOf("restored-key-1", "two"))
	if next.Grant().Fence != l.Grant().Fence { // the fence says nothing any more, so the token has to
		t.Errorf("the fences are %d and %d", l.Grant().Fence, next.Grant().Fence)
	}
	if err := b.insertInTx(t, l, "first"); !errors.Is(err, idempotency.ErrLeaseLost) {
		t.Errorf("the old owner's InTx gives %v", err)
	}
	if err := l.Complete(t.Context(), success); !errors.Is(err, idempotency.ErrLost) {
		t.Errorf("the old owner's Complete gives %v", err)
	}
	if err := second.insertInTx(t, next, "second"); err != nil {
		t.Error(err)
	}
	if err := next.Complete(t.Context(), success); err != nil {
		t.Error(err)
	}
	b.want(t, 1, 1)
}

// The clock of the process steps back under a claim: everything in the record lies in the future.
func TestClaimFromTheFutureHasOneOwner(t *testing.T) {
	t.Parallel()
	b := setup(t)
	l := b.lease(t, leasedOf("future-key-1", "one"))
	const ahead = int64(time.Hour / time.Millisecond)
	mustExec(t, b.beside, `UPDATE idempotency_records SET created_at = created_at + ?1, lease_until = lease_until + ?1, expires_at = created_at`, ahead)
	if l, rec, err := b.store.Lease(t.Context(), leasedOf("future-key-1", "two")); err != nil || l != nil || rec.LeaseLeft < time.Hour {
		t.Errorf("another one gets a lease %t, %+v, %v", l != nil, rec, err)
	}
	if done, err := b.store.Purge(t.Context(), idempotency.PurgeBatch{Limit: 1}); err != nil || done.Removed != 0 {
		t.Errorf("the purge has done %+v, %v", done, err)
	}
	if err := l.Renew(t.Context()); err != nil {
		t.Error(err)
	}
	if err := b.insertInTx(t, l, "first"); err != nil {
		t.Error(err)
	}
	if err := l.Complete(t.Context(), success); err != nil {
		t.Error(err)
	}
	b.want(t, 1, 1)
	b.wantState(t, "future-key-1", idempotency.Completed, "one")
}
