package sqlitestore_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/sqlitestore"
)

func TestDB_InALeasedHandlerIsTheBusinessTransactionWhileItIsOpen(t *testing.T) {
	t.Parallel()
	b := setup(t)
	l := b.lease(t, leasedOf("db-key-1", "one"))
	ctx := l.Context(t.Context())
	wantPool := func(when string) {
		t.Helper()
		if got := sqlitestore.DB(ctx, b.db); got != b.db || l.Open() {
			t.Errorf("%s DB gave %T and Open is %v", when, got, l.Open())
		}
	}
	wantPool("before InTx")
	if err := b.insert(ctx, "by itself"); err != nil {
		t.Fatal(err)
	}
	b.want(t, 1, 1)
	err := sqlitestore.InTx(ctx, b.db, func(inner context.Context) error {
		for _, ctx := range []context.Context{ctx, inner} {
			if err := b.insert(ctx, "undone"); err != nil {
				t.Error(err)
			}
		}
		return errDisk
	})
	if err != errDisk {
		t.Errorf("InTx gave %v, want the function's error", err)
	}
	wantPool("after an InTx that failed")
	if err := b.insertInTx(t, l, "with the outcome"); err != nil {
		t.Fatal(err)
	}
	if err := b.insert(ctx, "with the outcome as well"); err != nil {
		t.Fatal(err)
	}
	if err := b.insertInTx(t, l, "in a second InTx"); err != nil {
		t.Fatal(err)
	}
	if !l.Open() {
		t.Error("Open is false after InTx")
	}
	b.want(t, 1, 1)
	if err := l.Complete(t.Context(), success); err != nil {
		t.Fatal(err)
	}
	b.want(t, 4, 1)
}

func TestDB_HandleOfABusinessTransactionIsTakenBack(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(b *bundle, l idempotency.Lease) error{
		"complete": func(_ *bundle, l idempotency.Lease) error { return l.Complete(t.Context(), success) },
		"refuse":   func(_ *bundle, l idempotency.Lease) error { return l.Refuse(t.Context(), refused) },
		"release":  func(_ *bundle, l idempotency.Lease) error { return l.Release(t.Context()) },
		"rollback": func(_ *bundle, l idempotency.Lease) error { l.Rollback(t.Context()); return nil },
		"an InTx that failed": func(b *bundle, l idempotency.Lease) error {
			if err := sqlitestore.InTx(l.Context(t.Context()), b.db, func(context.Context) error { return errDisk }); err != errDisk {
				return err
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			l := b.lease(t, leasedOf("revoked-key-1", "one"))
			ctx := l.Context(t.Context())
			var inner context.Context
			if err := sqlitestore.InTx(ctx, b.db, func(ctx context.Context) error { inner = ctx; return nil }); err != nil {
				t.Fatal(err)
			}
			db := sqlitestore.DB(ctx, b.db)
			stmt, err := db.PrepareContext(ctx, `INSERT INTO orders (note) VALUES ('late')`)
			if err != nil {
				t.Fatal(err)
			}
			defer stmt.Close()
			if err := end(b, l); err != nil {
				t.Fatal(err)
			}
			_, execErr := db.ExecContext(ctx, `INSERT INTO orders (note) VALUES ('late')`)
			_, queryErr := db.QueryContext(ctx, `SELECT 1`)
			refusals := map[string]error{
				"Exec": execErr, "Query": queryErr, "QueryRow": db.QueryRowContext(ctx, `SELECT 1`).Scan(new(int)),
				"a new handle of InTx's context": b.insert(inner, "late"),
				"InTx on InTx's context":         sqlitestore.InTx(inner, b.db, func(context.Context) error { t.Error("it ran"); return nil }),
			}
			if name != "an InTx that failed" {
				refusals["a new handle"] = b.insert(ctx, "late")
				refusals["InTx"] = sqlitestore.InTx(ctx, b.db, func(context.Context) error { t.Error("it ran"); return nil })
			}
			for what, err := range refusals {
				if !errors.Is(err, sqlitestore.ErrRevoked) {
					t.Errorf("%s gave %v, want ErrRevoked", what, err)
				}
			}
			if _, err := stmt.ExecContext(ctx); err == nil {
				t.Error("a prepared statement still runs")
			}
			b.want(t, 0, 1)
		})
	}
}

func TestInTx_FailureUndoesWhatEarlierOnesWroteAndLeavesTheLease(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(){
		"an error": func() {},
		"a panic":  func() { panic("out of paper") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			l := b.lease(t, leasedOf("failing-key-1", "one"))
			if err := b.insertInTx(t, l, "first"); err != nil {
				t.Fatal(err)
			}
			func() {
				defer func() { _ = recover() }()
				err := sqlitestore.InTx(l.Context(t.Context()), b.db, func(ctx context.Context) error {
					if err := b.insert(ctx, "second"); err != nil {
						t.Error(err)
					}
					fail()
					return errDisk
				})
				if err != errDisk {
					t.Errorf("InTx gave %v, want the function's error", err)
				}
			}()
			if l.Ended() {
				t.Error("Ended is true and the handler has ended nothing")
			}
			b.wantIdle(t)
			b.wantState(t, "failing-key-1", idempotency.InProgress, "one")
			if err := b.insertInTx(t, l, "third"); err != nil {
				t.Fatal(err)
			}
			if err := l.Complete(t.Context(), success); err != nil {
				t.Fatal(err)
			}
			b.want(t, 1, 1)
		})
	}
}

// A handler that uses its own context in the function instead of the function's must not wait for itself.
func TestInTx_WithinInTxRunsInTheSameTransaction(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for name, inner := range map[string]func(outer, inner context.Context) context.Context{
		"on the function's context": func(_, inner context.Context) context.Context { return inner },
		"on the handler's context":  func(outer, _ context.Context) context.Context { return outer },
	} {
		l := b.lease(t, leasedOf("nested "+name, "one"))
		outer := l.Context(t.Context())
		before := b.orders(t)
		nested := func(fail error) error {
			return sqlitestore.InTx(outer, b.db, func(ctx context.Context) error {
				_ = sqlitestore.InTx(inner(outer, ctx), b.db, func(ctx context.Context) error {
					if err := b.insert(ctx, "inner"); err != nil {
						t.Error(err)
					}
					return fail
				})
				return b.insert(ctx, "outer") // which drops the error
			})
		}
		if err := nested(errDisk); !errors.Is(err, idempotency.ErrTransactionAborted) {
			t.Errorf("%s: InTx gave %v after the failure of an inner one, want ErrTransactionAborted", name, err)
		}
		if err := nested(nil); err != nil {
			t.Errorf("%s: InTx: %v", name, err)
		}
		if err := l.Complete(t.Context(), success); err != nil {
			t.Fatal(err)
		}
		if n := b.orders(t) - before; n != 2 {
			t.Errorf("%s: there are %d orders more, want 2", name, n)
		}
	}
}

func TestInTx_TextThatEndsTheTransactionFailsTheCommand_R23(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, dropped := range []bool{false, true} {
		key := "ending-key-1"
		if dropped {
			key = "ending-key-2"
		}
		l := b.lease(t, leasedOf(key, "one"))
		err := sqlitestore.InTx(l.Context(t.Context()), b.db, func(ctx context.Context) error {
			if err := b.insert(ctx, "undone"); err != nil {
				t.Error(err)
			}
			_, err := sqlitestore.DB(ctx, b.db).ExecContext(ctx, `COMMIT`)
			if dropped {
				return nil
			}
			return err
		})
		if !errors.Is(err, sqlitestore.ErrEndedByText) || !l.Ended() {
			t.Errorf("InTx gave %v and Ended %v, want ErrEndedByText", err, l.Ended())
		}
		if err := b.insertInTx(t, l, "x"); !errors.Is(err, idempotency.ErrTransactionEnded) {
			t.Errorf("another InTx gave %v, want ErrTransactionEnded", err)
		}
		if err := l.Complete(t.Context(), success); !errors.Is(err, idempotency.ErrTransactionEnded) {
			t.Errorf("Complete gave %v, want ErrTransactionEnded", err)
		}
		b.wantState(t, key, idempotency.InProgress, "one")
	}
	b.want(t, 0, 2)
	b.wantIdle(t)
}

func TestInTx_TransactionThatIsEndedAmongOtherStatementsIsFound_R23(t *testing.T) {
	t.Parallel()
	const insert = "INSERT INTO orders (note) VALUES ('x'); "
	for text, orders := range map[string]int{
		insert + "COMMIT":                    1,
		insert + "COMMIT; BEGIN; " + insert:  1,
		insert + "ROLLBACK":                  0,
		insert + "RELEASE tekil_attempt":     0,
		insert + "END; BEGIN IMMEDIATE":      1,
		insert + "ROLLBACK; BEGIN IMMEDIATE": 0,
	} {
		for _, how := range []string{"complete", "refuse", "the function fails"} {
			t.Run(how+" after "+text, func(t *testing.T) {
				t.Parallel()
				b := setup(t)
				l := b.lease(t, leasedOf("hidden-key-1", "one"))
				fail := how == "the function fails"
				err := sqlitestore.InTx(l.Context(t.Context()), b.db, func(ctx context.Context) error {
					_, err := sqlitestore.DB(ctx, b.db).ExecContext(ctx, text)
					if fail {
						return errDisk
					}
					return err
				})
				if fail != (err == errDisk) {
					t.Errorf("InTx gave %v", err)
				}
				var end error
				switch how {
				case "refuse":
					end = l.Refuse(t.Context(), refused)
				case "the function fails":
					if !l.Ended() {
						t.Error("Ended is false")
					}
					fallthrough
				default:
					end = l.Complete(t.Context(), success)
				}
				if !errors.Is(end, idempotency.ErrTransactionEnded) {
					t.Errorf("the end gave %v, want ErrTransactionEnded", end)
				}
				b.want(t, orders, 1)
				b.wantState(t, "hidden-key-1", idempotency.InProgress, "one")
				b.wantUsable(t)
			})
		}
	}
}

func TestInTx_EndedFindsACommitThatIsHiddenInATextWhenTheHandlerFails_R23(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for key, text := range map[string]string{"ended-key-1": "SELECT 1; COMMIT", "ended-key-2": "SELECT 1"} {
		l := b.lease(t, leasedOf(key, "one"))
		err := sqlitestore.InTx(l.Context(t.Context()), b.db, func(ctx context.Context) error {
			_, err := sqlitestore.DB(ctx, b.db).ExecContext(ctx, text)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		if l.Ended() != strings.Contains(text, "COMMIT") {
			t.Errorf("after %q Ended is %v", text, l.Ended())
		}
		l.Rollback(t.Context())
		b.wantIdle(t)
	}
}

func TestInTx_NothingGoesOnAfterSQLiteHasRolledBack(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exclusive(t)
	l := b.lease(t, leasedOf("rolled-back-1", "one"))
	if err := b.insertInTx(t, l, "first"); err != nil {
		t.Fatal(err)
	}
	err := sqlitestore.InTx(l.Context(t.Context()), b.db, func(ctx context.Context) error {
		_, _ = sqlitestore.DB(ctx, b.db).ExecContext(ctx, `INSERT OR ROLLBACK INTO singles VALUES ('taken')`) // the error is dropped
		return nil
	})
	if !errors.Is(err, idempotency.ErrTransactionAborted) || l.Open() {
		t.Errorf("InTx gave %v and Open %v, want ErrTransactionAborted", err, l.Open())
	}
	if err := b.insertInTx(t, l, "second"); err != nil {
		t.Fatal(err)
	}
	if err := l.Complete(t.Context(), success); err != nil {
		t.Fatal(err)
	}
	b.want(t, 1, 1)
}

// Between two calls of InTx the handler writes through DB, where nobody looks at the error but the end of the attempt.
func TestInTx_RollbackOfSQLiteThatNobodyNoticedFailsTheSuccessAndNotTheRefusal(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]error{"complete": idempotency.ErrTransactionAborted, "refuse": nil} {
		b := setup(t)
		b.exclusive(t)
		l := b.lease(t, leasedOf("unnoticed-key-1", "one"))
		if err := b.insertInTx(t, l, "first"); err != nil {
			t.Fatal(err)
		}
		ctx := l.Context(t.Context())
		if _, err := sqlitestore.DB(ctx, b.db).ExecContext(ctx, `INSERT OR ROLLBACK INTO singles VALUES ('taken')`); err == nil {
			t.Fatal("the constraint was not kept")
		}
		end := l.Complete
		done := success
		if name == "refuse" {
			end, done = l.Refuse, refused
		}
		if err := end(t.Context(), done); !errors.Is(err, want) {
			t.Errorf("%s gave %v, want %v", name, err, want)
		}
		b.want(t, 0, 1)
		b.wantIdle(t)
	}
}

func TestInTx_DeferredConstraintThatFailsAtCommitIsTheHandlersFault(t *testing.T) {
	t.Parallel()
	b := setupWith(t, "?_pragma=foreign_keys(1)", sqlitestore.Config{})
	mustExec(t, b.beside, `CREATE TABLE lines (order_id INTEGER NOT NULL REFERENCES orders DEFERRABLE INITIALLY DEFERRED)`)
	l := b.lease(t, leasedOf("deferred-key-1", "one"))
	ctx := l.Context(t.Context())
	err := sqlitestore.InTx(ctx, b.db, func(ctx context.Context) error {
		_, err := sqlitestore.DB(ctx, b.db).ExecContext(ctx, `INSERT INTO lines VALUES (4711)`)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Complete(t.Context(), success); !errors.Is(err, idempotency.ErrTransactionAborted) {
		t.Errorf("Complete gave %v, want ErrTransactionAborted", err)
	}
	b.want(t, 0, 1)
	if err := l.Release(t.Context()); err != nil {
		t.Errorf("Release: %v", err)
	}
	b.wantState(t, "deferred-key-1", idempotency.Failed, "")
}

func TestInTx_ThatIsStillRunningWhenTheHandlerReturnsIsNotCommitted(t *testing.T) {
	t.Parallel()
	b := setup(t)
	l := b.lease(t, leasedOf("left-behind-1", "one"))
	half, goOn, done := make(chan struct{}), make(chan struct{}), make(chan error)
	go func() {
		done <- sqlitestore.InTx(l.Context(t.Context()), b.db, func(ctx context.Context) error {
			if err := b.insert(ctx, "the first half"); err != nil {
				t.Error(err)
			}
			close(half)
			<-goOn
			_ = b.insert(ctx, "the second half")
			return nil
		})
	}()
	<-half
	if err := l.Complete(t.Context(), success); !errors.Is(err, idempotency.ErrTransactionAborted) {
		t.Errorf("Complete gave %v, want ErrTransactionAborted", err)
	}
	close(goOn)
	if err := <-done; !errors.Is(err, sqlitestore.ErrRevoked) {
		t.Errorf("the InTx that was left behind gave %v, want ErrRevoked", err)
	}
	b.want(t, 0, 1)
	b.wantIdle(t)
}

func TestInTx_ThatStillWaitsWhenTheHandlerReturnsGivesEverythingBack(t *testing.T) {
	t.Parallel()
	b := setup(t)
	l := b.lease(t, leasedOf("left-waiting-1", "one"))
	open := b.begin(t, "open-key-1")
	done := make(chan error)
	go func() {
		done <- sqlitestore.InTx(l.Context(t.Context()), b.db, func(context.Context) error {
			t.Error("it ran after the end")
			return nil
		})
	}()
	for { // a renewal waits for its turn as well, until InTx does
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		err := l.Renew(ctx)
		cancel()
		if err == nil {
			break
		}
	}
	l.Rollback(t.Context())
	open.Rollback(t.Context())
	if err := <-done; !errors.Is(err, sqlitestore.ErrRevoked) {
		t.Errorf("InTx gave %v, want ErrRevoked", err)
	}
	b.wantIdle(t)
	b.wantUsable(t)
}

func TestInTx_WaitForTheTurnEndsWithItsContext_L13(t *testing.T) {
	t.Parallel()
	b := setup(t)
	l := b.lease(t, leasedOf("waiting-key-1", "one"))
	open := b.begin(t, "open-key-1")
	for _, cause := range []error{context.Canceled, idempotency.ErrLeaseLost} {
		ctx, cancel := context.WithCancelCause(l.Context(t.Context()))
		done := make(chan error)
		go func() {
			done <- sqlitestore.InTx(ctx, b.db, func(context.Context) error { t.Error("it ran"); return nil })
		}()
		cancel(cause)
		if err := <-done; !errors.Is(err, cause) {
			t.Errorf("InTx gave %v, want %v", err, cause)
		}
	}
	open.Rollback(t.Context())
	if err := b.insertInTx(t, l, "x"); err != nil { // the lease goes on
		t.Error(err)
	}
	if err := l.Complete(t.Context(), success); err != nil {
		t.Error(err)
	}
}

func TestInTx_BusinessTransactionsOfOneStoreTakeTheirTurn_BR30(t *testing.T) {
	t.Parallel()
	for _, conns := range []int{1, 0} {
		b := setupWith(t, "", sqlitestore.Config{BusyTimeout: time.Millisecond}) // so nobody can lean on it
		b.db.SetMaxOpenConns(conns)
		const n = 20
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				key := "turn-key-" + string(rune('a'+i))
				l, rec, err := b.store.Lease(t.Context(), leasedOf(key, "one"))
				if err != nil || rec != nil {
					t.Errorf("Lease gave %+v and %v", rec, err)
					return
				}
				err = sqlitestore.InTx(l.Context(t.Context()), b.db, func(ctx context.Context) error {
					var orders int // read before write, which fails at once in a deferred transaction when somebody else has written
					if err := sqlitestore.DB(ctx, b.db).QueryRowContext(ctx, `SELECT count(*) FROM orders`).Scan(&orders); err != nil {
						return err
					}
					return b.insert(ctx, key)
				})
				if err != nil {
					t.Errorf("InTx: %v", err)
				}
				if err := l.Complete(t.Context(), success); err != nil {
					t.Errorf("Complete: %v", err)
				}
			})
		}
		wg.Wait()
		b.want(t, n, n)
	}
}

func TestInTx_OfAnAtomicCommandWaitsForNoTurn(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.db.SetMaxOpenConns(1)
	a := b.begin(t, "atomic-key-1")
	ctx := a.Context(t.Context())
	if err := sqlitestore.InTx(ctx, b.db, func(ctx context.Context) error { return b.insert(ctx, "x") }); err != nil {
		t.Fatal(err)
	}
	b.want(t, 0, 0)
	if !a.Used() {
		t.Error("the transaction does not count as used")
	}
	if err := a.Complete(t.Context(), success); err != nil {
		t.Fatal(err)
	}
	b.want(t, 1, 1)
	if err := sqlitestore.InTx(ctx, b.db, func(context.Context) error { t.Error("it ran"); return nil }); !errors.Is(err, sqlitestore.ErrRevoked) {
		t.Errorf("InTx after the end gave %v, want ErrRevoked", err)
	}
}

func TestInTx_ThatFailedInAnAtomicCommandLetsTheHandlerReadOnAndBeRefused(t *testing.T) {
	t.Parallel()
	for name, end := range ends {
		b := setup(t)
		a := b.begin(t, "spoiled-key-1")
		ctx := a.Context(t.Context())
		func() {
			defer func() { _ = recover() }()
			_ = sqlitestore.InTx(ctx, b.db, func(ctx context.Context) error {
				if err := b.insert(ctx, "half"); err != nil {
					t.Error(err)
				}
				panic("out of paper") // which the handler keeps quiet about
			})
		}()
		var n int
		if err := sqlitestore.DB(ctx, b.db).QueryRowContext(ctx, `SELECT count(*) FROM orders`).Scan(&n); err != nil || n != 1 {
			t.Errorf("the handler reads %d orders and gets %v", n, err)
		}
		err := end(t.Context(), a)
		if (name == "complete") != errors.Is(err, idempotency.ErrTransactionAborted) {
			t.Errorf("%s gave %v", name, err)
		}
		b.want(t, 0, map[string]int{"complete": 0, "refuse": 1}[name])
	}
}

func TestInTx_OutsideACommandIsATransactionOfItsOwn(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.db.SetMaxOpenConns(1)
	ctx := t.Context()
	inTx := func(ctx context.Context, fn func(ctx context.Context) error) error {
		return sqlitestore.InTx(ctx, b.db, fn)
	}
	impatient := openFile(t, b.path, "?_pragma=busy_timeout(0)")

	var inner context.Context
	err := inTx(ctx, func(ctx context.Context) error {
		inner = ctx
		if _, err := impatient.ExecContext(ctx, `INSERT INTO orders (note) VALUES ('beside')`); err == nil {
			t.Error("somebody else writes before the function has, so that it could not write after it has read")
		}
		return inTx(ctx, func(ctx context.Context) error { return b.insert(ctx, "kept") })
	})
	if err != nil {
		t.Fatalf("InTx: %v", err)
	}
	b.want(t, 1, 0)
	if err := b.insert(inner, "late"); !errors.Is(err, sqlitestore.ErrRevoked) {
		t.Errorf("a handle after the end gave %v, want ErrRevoked", err)
	}

	undone := map[string]func(ctx context.Context) error{
		"an error": func(ctx context.Context) error { return errDisk },
		"a COMMIT in words": func(ctx context.Context) error {
			_, _ = sqlitestore.DB(ctx, b.db).ExecContext(ctx, `COMMIT`)
			return nil
		},
		"an inner failure": func(ctx context.Context) error {
			_ = inTx(ctx, func(context.Context) error { return errDisk })
			return nil
		},
	}
	for name, fail := range undone {
		err := inTx(ctx, func(ctx context.Context) error { return errors.Join(b.insert(ctx, "undone"), fail(ctx)) })
		if err == nil {
			t.Errorf("InTx succeeded after %s", name)
		}
	}
	func() {
		defer func() {
			if recover() != "out of paper" {
				t.Error("the panic did not come out")
			}
		}()
		_ = inTx(ctx, func(ctx context.Context) error { _ = b.insert(ctx, "undone"); panic("out of paper") })
	}()
	ended, cancel := context.WithCancel(ctx)
	err = inTx(ended, func(ctx context.Context) error { defer cancel(); return b.insert(ctx, "undone") })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("InTx whose context has ended gave %v", err)
	}
	b.want(t, 1, 0)
	b.wantIdle(t)
}

func TestInTx_WorksOnADatabaseWithoutRecords(t *testing.T) {
	t.Parallel()
	db := openFile(t, filepath.Join(t.TempDir(), "plain.db"), "")
	err := sqlitestore.InTx(t.Context(), db, func(ctx context.Context) error {
		_, err := sqlitestore.DB(ctx, db).ExecContext(ctx, `CREATE TABLE orders (note TEXT)`)
		return err
	})
	if err != nil || number(t, db, `SELECT count(*) FROM orders`) != 0 {
		t.Errorf("InTx: %v", err)
	}
}

func TestInTx_OfAnotherDatabaseIsItsOwn(t *testing.T) {
	t.Parallel()
	here, there := setup(t), setup(t)
	l := here.lease(t, leasedOf("here-key-1", "one"))
	err := sqlitestore.InTx(l.Context(t.Context()), here.db, func(ctx context.Context) error {
		return errors.Join(here.insert(ctx, "here"), sqlitestore.InTx(ctx, there.db, func(ctx context.Context) error {
			return errors.Join(here.insert(ctx, "here"), there.insert(ctx, "there"))
		}))
	})
	if err != nil {
		t.Fatal(err)
	}
	l.Rollback(t.Context())
	here.want(t, 0, 1)
	there.want(t, 1, 0)
}
