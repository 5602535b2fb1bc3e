package sqlitestore_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/sqlitestore"
	"github.com/tekil-go/tekil/requestctx"
)

var refused = idempotency.Completion{Outcome: idempotency.Refusal, Result: []byte(`{"code":"NO"}`), ResultType: "refusal/1"}

// ends are the two ways of an attempt that leave a record.
var ends = map[string]func(ctx context.Context, a idempotency.Transaction) error{
	"complete": func(ctx context.Context, a idempotency.Transaction) error { return a.Complete(ctx, success) },
	"refuse":   func(ctx context.Context, a idempotency.Transaction) error { return a.Refuse(ctx, refused) },
}

func TestDB_TextThatEndsTheTransactionIsRefused(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"COMMIT", "commit", " \t\r\n\fCommit;", ";; COMMIT", "\ufeffCOMMIT", "COMMIT TRANSACTION", "END", "END TRANSACTION", "BEGIN", "begin immediate",
		"BEGIN; INSERT INTO orders (note) VALUES ('x'); COMMIT", "ROLLBACK", "ROLLBACK;", "ROLLBACK TRANSACTION", "-- a comment\nCOMMIT", "/* a comment */COMMIT",
		"/**/ -- x\n /* COMMIT */ ; ROLLBACK -- TO a", "COMMIT-- done", "COMMIT/**/",
	} {
		t.Run(fmt.Sprintf("%q", text), func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			i := 0
			for name, end := range ends {
				i++
				a := b.begin(t, fmt.Sprintf("text-key-%d", i))
				ctx := a.Context(t.Context())
				db := sqlitestore.DB(ctx, b.db)
				if err := b.insert(ctx, "before"); err != nil {
					t.Fatal(err)
				}
				var err error
				switch len(text) % 4 { // each way in for some of the texts
				case 0:
					_, err = db.ExecContext(ctx, text)
				case 1:
					_, err = db.QueryContext(ctx, text)
				case 2:
					err = db.QueryRowContext(ctx, text).Scan(new(int))
				case 3:
					_, err = db.PrepareContext(ctx, text)
				}
				if !errors.Is(err, sqlitestore.ErrEndedByText) || !errors.Is(err, idempotency.ErrTransactionEnded) {
					t.Errorf("%s: the handle gave %v, want ErrEndedByText", name, err)
				}
				if err := b.insert(ctx, "after"); !errors.Is(err, sqlitestore.ErrEndedByText) {
					t.Errorf("%s: a statement after it gave %v, want the same error", name, err)
				}
				if err := end(t.Context(), a); !errors.Is(err, idempotency.ErrTransactionEnded) {
					t.Errorf("%s gave %v, want ErrTransactionEnded", name, err)
				}
			}
			b.want(t, 0, 0)
			b.wantUsable(t)
		})
	}
}

func TestDB_SavepointsAreTheHandlers(t *testing.T) {
	t.Parallel()
	for _, back := range []string{"ROLLBACK TO mine", "rollback to savepoint mine", "ROLLBACK TRANSACTION TO mine", "/* x */ ROLLBACK -- x\n TO mine"} {
		b := setup(t)
		a := b.begin(t, "savepoint-key-1")
		ctx := a.Context(t.Context())
		for _, text := range []string{
			"INSERT INTO orders (note) VALUES ('kept')", "SAVEPOINT mine", "INSERT INTO orders (note) VALUES ('undone')", back, "RELEASE mine",
			"SAVEPOINT left_open", "-- committed by nobody\nINSERT INTO orders (note) VALUES ('COMMIT')",
		} {
			if _, err := sqlitestore.DB(ctx, b.db).ExecContext(ctx, text); err != nil {
				t.Fatalf("%s: %v", text, err)
			}
		}
		if err := a.Complete(t.Context(), success); err != nil {
			t.Errorf("Complete after %q: %v", back, err)
		}
		b.want(t, 2, 1)
	}
}

func TestDB_TransactionThatIsEndedAmongOtherStatementsIsFound(t *testing.T) {
	t.Parallel()
	const insert = "INSERT INTO orders (note) VALUES ('x'); "
	for text, orders := range map[string]int{
		insert + "COMMIT":                               1,
		insert + "COMMIT; BEGIN":                        1,
		insert + "COMMIT; BEGIN; " + insert:             1,
		insert + "ROLLBACK":                             0,
		insert + "ROLLBACK; BEGIN IMMEDIATE; " + insert: 0,
		insert + "END; " + insert:                       2,
		insert + "RELEASE tekil_attempt":                0,
	} {
		for name, end := range ends {
			t.Run(name+" after "+text, func(t *testing.T) {
				t.Parallel()
				b := setup(t)
				a := b.begin(t, "hidden-key-1")
				ctx := a.Context(t.Context())
				if _, err := sqlitestore.DB(ctx, b.db).ExecContext(ctx, text); err != nil {
					t.Fatal(err)
				}
				if err := end(t.Context(), a); !errors.Is(err, idempotency.ErrTransactionEnded) {
					t.Errorf("%s gave %v, want ErrTransactionEnded", name, err)
				}
				b.want(t, orders, 0)
				b.wantUsable(t)
			})
		}
	}
}

func TestDB_CommandWhoseHandlerEndsTheTransactionFails(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for i, text := range []string{"COMMIT", "SELECT 1; COMMIT"} {
		handle, err := serve(b.store, func(ctx context.Context, cmd pay) (paid, error) {
			_, _ = sqlitestore.DB(ctx, b.db).ExecContext(ctx, text)
			return paid{}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		var fault *idempotency.HandlerError
		_, outcome, err := send(t.Context(), handle, fmt.Sprintf("ending-key-%d", i), pay{Note: "x"})
		if !errors.As(err, &fault) || outcome.State != requestctx.StateUnknown {
			t.Errorf("%q: the command gave (%v, %v), want a HandlerError", text, outcome.State, err)
		}
	}
	b.want(t, 0, 0)
}

// exclusive makes a table in which a note can stand only once.
func (b *bundle) exclusive(t *testing.T) {
	mustExec(t, b.beside, `CREATE TABLE singles (note TEXT PRIMARY KEY)`)
	mustExec(t, b.beside, `INSERT INTO singles VALUES ('taken')`)
}

func TestDB_FailedStatementLeavesTheTransactionOpen(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exclusive(t)
	a := b.begin(t, "failed-statement-1")
	ctx := a.Context(t.Context())
	if err := b.insert(ctx, "kept"); err != nil {
		t.Fatal(err)
	}
	if _, err := sqlitestore.DB(ctx, b.db).ExecContext(ctx, `INSERT INTO singles VALUES ('taken')`); err == nil {
		t.Fatal("the constraint was not kept")
	}
	if err := b.insert(ctx, "kept as well"); err != nil {
		t.Fatal(err)
	}
	if err := a.Complete(t.Context(), success); err != nil {
		t.Errorf("Complete: %v", err)
	}
	b.want(t, 2, 1)
}

func TestDB_NothingRunsAfterSQLiteHasRolledBack(t *testing.T) {
	t.Parallel()
	statements := map[string]func(ctx context.Context, db sqlitestore.DBTX) error{
		"a conflict": func(ctx context.Context, db sqlitestore.DBTX) error {
			_, err := db.ExecContext(ctx, `INSERT OR ROLLBACK INTO singles VALUES ('taken')`)
			return err
		},
		"a conflict in a row": func(ctx context.Context, db sqlitestore.DBTX) error {
			return db.QueryRowContext(ctx, `INSERT OR ROLLBACK INTO singles VALUES ('taken') RETURNING 1`).Scan(new(int))
		},
		"a write that its context interrupts": func(ctx context.Context, db sqlitestore.DBTX) error {
			ctx, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
			defer cancel()
			_, err := db.ExecContext(ctx, `INSERT INTO orders (note) WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT 'endless' FROM c`)
			return err
		},
	}
	for name, statement := range statements {
		for end, finish := range ends {
			t.Run(name+", then "+end, func(t *testing.T) {
				t.Parallel()
				b := setup(t)
				b.exclusive(t)
				a := b.begin(t, "rolled-back-1")
				ctx := a.Context(t.Context())
				if err := b.insert(ctx, "before"); err != nil {
					t.Fatal(err)
				}
				if err := statement(ctx, sqlitestore.DB(ctx, b.db)); err == nil || errors.Is(err, idempotency.ErrTransactionAborted) {
					t.Errorf("the statement gave %v, want its own error", err)
				}
				if err := b.insert(ctx, "outside"); !errors.Is(err, idempotency.ErrTransactionAborted) {
					t.Errorf("a later statement gave %v, want ErrTransactionAborted", err)
				}
				err := finish(t.Context(), a)
				if end == "complete" {
					if !errors.Is(err, idempotency.ErrTransactionAborted) {
						t.Errorf("Complete gave %v, want ErrTransactionAborted", err)
					}
					b.want(t, 0, 0)
				} else {
					if err != nil { // a refusal undoes the rows anyway
						t.Errorf("Refuse: %v", err)
					}
					b.want(t, 0, 1)
				}
				b.wantUsable(t)
			})
		}
	}
}

func TestDB_RollbackThatAPreparedStatementCausesIsFound(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exclusive(t)
	a := b.begin(t, "prepared-key-1")
	ctx := a.Context(t.Context())
	stmt, err := sqlitestore.DB(ctx, b.db).PrepareContext(ctx, `INSERT OR ROLLBACK INTO singles VALUES (?)`)
	if err != nil {
		t.Fatal(err)
	}
	defer stmt.Close()
	if _, err := stmt.ExecContext(ctx, "taken"); err == nil {
		t.Fatal("the constraint was not kept")
	}
	if err := a.Complete(t.Context(), success); !errors.Is(err, idempotency.ErrTransactionEnded) {
		t.Errorf("Complete gave %v, want ErrTransactionEnded", err)
	}
	b.want(t, 0, 0)
	b.wantUsable(t)
}

func TestDB_ReadThatItsContextInterruptsLeavesTheTransactionOpen(t *testing.T) {
	t.Parallel()
	b := setup(t)
	a := b.begin(t, "interrupted-read-1")
	ctx := a.Context(t.Context())
	if err := b.insert(ctx, "kept"); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	err := sqlitestore.DB(ctx, b.db).QueryRowContext(short, `WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT count(*) FROM c`).Scan(new(int))
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the endless read gave %v, want that its deadline has passed", err)
	}
	if err := a.Complete(t.Context(), success); err != nil {
		t.Errorf("Complete: %v", err)
	}
	b.want(t, 1, 1)
	b.wantUsable(t)
}

func TestDB_DeadlineInTheMiddleOfAStatementFreesTheKey(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.db.SetMaxOpenConns(1)
	endless := true
	handle, err := serve(b.store, func(ctx context.Context, cmd hasty) (paid, error) {
		query := `INSERT INTO orders (note) VALUES ('x')`
		if endless {
			query = `INSERT INTO orders (note) WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT 'endless' FROM c`
		}
		_, err := sqlitestore.DB(ctx, b.db).ExecContext(ctx, query)
		return paid{}, err
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, outcome, err := send(t.Context(), handle, "deadline-key-1", hasty{Note: "x"}); !errors.Is(err, context.DeadlineExceeded) || outcome.State != requestctx.StateFreed {
		t.Errorf("the command gave (%v, %v), want that the deadline has passed", outcome.State, err)
	}
	b.want(t, 0, 0)
	endless = false
	if _, _, err := send(t.Context(), handle, "deadline-key-1", hasty{Note: "x"}); err != nil {
		t.Errorf("the same key again: %v", err)
	}
	b.want(t, 1, 1)
}

func TestDB_HandleIsTakenBackWhenTheHandlerHasReturned(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(a idempotency.Transaction){
		"complete": func(a idempotency.Transaction) { _ = a.Complete(t.Context(), success) },
		"refuse":   func(a idempotency.Transaction) { _ = a.Refuse(t.Context(), refused) },
		"rollback": func(a idempotency.Transaction) { a.Rollback(t.Context()) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			a := b.begin(t, "revoked-key-1")
			ctx := a.Context(t.Context())
			db := sqlitestore.DB(ctx, b.db)
			stmt, err := db.PrepareContext(ctx, `INSERT INTO orders (note) VALUES ('late')`)
			if err != nil {
				t.Fatal(err)
			}
			defer stmt.Close()
			end(a)
			_, execErr := db.ExecContext(ctx, `INSERT INTO orders (note) VALUES ('late')`)
			_, queryErr := db.QueryContext(ctx, `SELECT 1`)
			_, prepareErr := db.PrepareContext(ctx, `SELECT 1`)
			for what, err := range map[string]error{
				"Exec": execErr, "Query": queryErr, "Prepare": prepareErr,
				"QueryRow": db.QueryRowContext(ctx, `SELECT 1`).Scan(new(int)), "QueryRow's Err": db.QueryRowContext(ctx, `SELECT 1`).Err(),
				"a new handle": b.insert(ctx, "late"),
			} {
				if !errors.Is(err, sqlitestore.ErrRevoked) {
					t.Errorf("%s gave %v, want ErrRevoked", what, err)
				}
			}
			if _, err := stmt.ExecContext(ctx); err == nil {
				t.Error("a prepared statement still runs")
			}
			if n := b.orders(t); n != 0 {
				t.Errorf("there are %d orders, want none", n)
			}
		})
	}
}

func TestDB_RowsLeftOpenAreClosedAndTheCommandSucceeds(t *testing.T) {
	t.Parallel()
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			a := b.begin(t, "open-rows-1")
			ctx := a.Context(t.Context())
			db := sqlitestore.DB(ctx, b.db)
			if err := b.insert(ctx, "one"); err != nil {
				t.Fatal(err)
			}
			rows, err := db.QueryContext(ctx, `INSERT INTO orders (note) VALUES ('two'), ('three') RETURNING id`)
			if err != nil {
				t.Fatal(err)
			}
			defer rows.Close()
			_ = db.QueryRowContext(ctx, `SELECT id FROM orders`) // never scanned
			stmt, err := db.PrepareContext(ctx, `SELECT id FROM orders`)
			if err != nil {
				t.Fatal(err)
			}
			defer stmt.Close()
			prepared, err := stmt.QueryContext(ctx)
			if err != nil {
				t.Fatal(err)
			}
			defer prepared.Close()
			if err := end(t.Context(), a); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if prepared.Next() || rows.Next() {
				t.Error("rows can be read after the end")
			}
			want := 3
			if name == "refuse" {
				want = 0
			}
			b.want(t, want, 1)
			if n := b.db.Stats().InUse; n != 0 {
				t.Errorf("%d connections are in use, want none", n)
			}
			b.wantUsable(t)
		})
	}
}

func TestDB_DeferredConstraintThatFailsAtCommitIsTheHandlersFault(t *testing.T) {
	t.Parallel()
	b := setupWith(t, "?_pragma=foreign_keys(1)", sqlitestore.Config{})
	mustExec(t, b.beside, `CREATE TABLE lines (order_id INTEGER NOT NULL REFERENCES orders DEFERRABLE INITIALLY DEFERRED)`)
	a := b.begin(t, "deferred-key-1")
	ctx := a.Context(t.Context())
	if _, err := sqlitestore.DB(ctx, b.db).ExecContext(ctx, `INSERT INTO lines VALUES (4711)`); err != nil {
		t.Fatal(err)
	}
	if err := a.Complete(t.Context(), success); !errors.Is(err, idempotency.ErrTransactionAborted) {
		t.Errorf("Complete gave %v, want ErrTransactionAborted", err)
	}
	b.want(t, 0, 0)
	b.wantUsable(t)
}

func TestStore_FullDiskUndoesTheAttempt(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.db.SetMaxOpenConns(1)
	a := b.begin(t, "full-disk-1")
	ctx := a.Context(t.Context())
	if err := b.insert(ctx, "x"); err != nil {
		t.Fatal(err)
	}
	if _, err := sqlitestore.DB(ctx, b.db).ExecContext(ctx, `PRAGMA max_page_count = 1`); err != nil { // no page more than there are
		t.Fatal(err)
	}
	err := a.Complete(t.Context(), idempotency.Completion{Result: make([]byte, 1<<20), ResultType: "result/0"})
	for _, known := range []error{idempotency.ErrLost, idempotency.ErrBusy, idempotency.ErrCommitUnknown, idempotency.ErrTransactionEnded, idempotency.ErrSerialization} {
		if err == nil || errors.Is(err, known) {
			t.Errorf("Complete gave %v, want a plain error", err)
		}
	}
	mustExec(t, b.db, `PRAGMA max_page_count = 1073741823`)
	b.want(t, 0, 0)
	b.wantUsable(t)
}

func TestStore_CompletionWhoseContextHasEndedUndoesTheAttempt(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for name, end := range ends {
		a := b.begin(t, "ended-context-"+name)
		if err := b.insert(a.Context(t.Context()), "x"); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := end(ctx, a); !errors.Is(err, context.Canceled) {
			t.Errorf("%s gave %v, want the context's error", name, err)
		}
		if err := end(t.Context(), a); err == nil {
			t.Errorf("%s succeeded on an attempt that has ended", name)
		}
	}
	b.want(t, 0, 0)
	b.wantUsable(t)
}

func TestDB_IsTheDatabaseItselfElsewhere(t *testing.T) {
	t.Parallel()
	here, there := setup(t), setup(t)
	if got := sqlitestore.DB(t.Context(), here.db); got != here.db {
		t.Errorf("outside a command DB gave %T", got)
	}
	a := here.begin(t, "here-key-1")
	ctx := a.Context(t.Context())
	if got := sqlitestore.DB(ctx, there.db); got != there.db {
		t.Errorf("for another database DB gave %T", got)
	}
	if a.Used() {
		t.Error("the transaction counts as used and nobody has asked for it")
	}

	nested, err := there.store.Begin(ctx, claimOf("there-key-1"))
	if err != nil {
		t.Fatal(err)
	}
	inner := nested.Context(ctx)
	for _, b := range []*bundle{here, there} {
		if err := b.insert(inner, "x"); err != nil {
			t.Fatal(err)
		}
	}
	if !a.Used() || !nested.Used() {
		t.Error("a transaction was asked for and does not count as used")
	}
	if err := nested.Complete(t.Context(), success); err != nil {
		t.Fatal(err)
	}
	a.Rollback(t.Context())
	here.want(t, 0, 0)
	there.want(t, 1, 1)
}

func TestDB_ServesSeveralGoroutinesOfOneHandler(t *testing.T) {
	t.Parallel()
	b := setup(t)
	a := b.begin(t, "parallel-key-1")
	ctx := a.Context(t.Context())
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 10 {
				if err := b.insert(ctx, "x"); err != nil {
					t.Error(err)
				}
				if err := sqlitestore.DB(ctx, b.db).QueryRowContext(ctx, `SELECT count(*) FROM orders`).Scan(new(int)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if err := a.Complete(t.Context(), success); err != nil {
		t.Fatal(err)
	}
	b.want(t, 80, 1)
}

func TestDB_GoroutineThatAHandlerLeftBehindWritesNothingBesideTheRecord(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for i := range 20 {
		a := b.begin(t, fmt.Sprintf("left-behind-%d", i))
		ctx := a.Context(t.Context())
		before := b.orders(t)
		written := make(chan int)
		started := make(chan struct{})
		go func() {
			n := 0
			for ; b.insert(ctx, "x") == nil; n++ {
				if n == 0 {
					close(started)
				}
			}
			written <- n
		}()
		<-started
		if i%2 == 0 {
			if err := a.Complete(t.Context(), success); err != nil {
				t.Fatal(err)
			}
			before += <-written // what was written was written within the transaction
		} else {
			a.Rollback(t.Context())
			<-written
		}
		if n := b.orders(t); n != before {
			t.Fatalf("there are %d orders, want %d", n, before)
		}
	}
}
