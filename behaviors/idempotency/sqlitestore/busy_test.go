package sqlitestore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/sqlitestore"
	"github.com/tekil-go/tekil/requestctx"
)

func TestBR30_OverlappingCommandsAreServedByWaiting(t *testing.T) {
	t.Parallel()
	for _, n := range []int{2, 10, 50} {
		for _, keys := range []string{"distinct keys", "one key"} {
			t.Run(fmt.Sprintf("%d with %s", n, keys), func(t *testing.T) {
				t.Parallel()
				b := setup(t)
				handle, err := serve(b.store, readThenWrite(b.db))
				if err != nil {
					t.Fatal(err)
				}
				states := make([]requestctx.State, n)
				results := make([]paid, n)
				var wg sync.WaitGroup
				for i := range n {
					wg.Go(func() {
						key := "the-one-key"
						if keys != "one key" {
							key = fmt.Sprintf("distinct-key-%d", i)
						}
						res, outcome, err := send(t.Context(), handle, key, pay{Note: key})
						if err != nil {
							t.Errorf("command %d: %v", i, err)
						}
						states[i], results[i] = outcome.State, res
					})
				}
				wg.Wait()
				slices.Sort(states)
				slices.SortFunc(results, func(a, b paid) int { return int(a.OrderID - b.OrderID) })
				executed := slices.DeleteFunc(slices.Clone(states), func(s requestctx.State) bool { return s != requestctx.StateExecuted })
				want := n
				if keys == "one key" {
					want = 1
				}
				if len(executed) != want || len(slices.Compact(results)) != want {
					t.Errorf("%d commands were executed and there are %d results, want %d of each; the states are %v", len(executed), len(slices.Compact(results)), want, states)
				}
				b.want(t, want, want)
			})
		}
	}
}

func TestBR30_ProcessesOnOneFileAreServedByWaiting(t *testing.T) {
	t.Parallel()
	b := setup(t)
	waits := []func(){startChild(t, "second", b.path), startChild(t, "third", b.path)}
	if err := payAll(t.Context(), b.db, "first"); err != nil {
		t.Error(err)
	}
	for _, wait := range waits {
		wait()
	}
	b.want(t, 3*ownKeys+sharedKeys, 3*ownKeys+sharedKeys)
}

func TestBR30_WritesBesideTheStoreAreWaitedFor(t *testing.T) {
	t.Parallel()
	b := setup(t)
	handle, err := serve(b.store, readThenWrite(b.db))
	if err != nil {
		t.Fatal(err)
	}
	second := sqlitestore.New(b.db) // has a queue of its own
	var wg sync.WaitGroup
	for i := range 10 {
		wg.Go(func() {
			if _, err := b.beside.ExecContext(t.Context(), `INSERT INTO orders (note) VALUES ('beside')`); err != nil {
				t.Errorf("a write beside the store: %v", err)
			}
		})
		wg.Go(func() {
			if _, _, err := send(t.Context(), handle, fmt.Sprintf("waiting-key-%d", i), pay{Note: "x"}); err != nil {
				t.Errorf("a command: %v", err)
			}
		})
		wg.Go(func() {
			a, err := second.Begin(t.Context(), claimOf(fmt.Sprintf("second-store-%d", i)))
			if err != nil {
				t.Errorf("an attempt of another store: %v", err)
				return
			}
			if err := a.Complete(t.Context(), success); err != nil {
				t.Errorf("an attempt of another store: %v", err)
			}
		})
	}
	wg.Wait()
	b.want(t, 20, 20)
}

func TestStore_LockThatIsHeldTooLongIsNotAnAnswerAboutTheKey(t *testing.T) {
	t.Parallel()
	b := setupWith(t, "", sqlitestore.Config{BusyTimeout: 20 * time.Millisecond})
	handle, err := serve(b.store, readThenWrite(b.db))
	if err != nil {
		t.Fatal(err)
	}
	other := connection(t, b.beside)
	mustExec(t, other, `BEGIN IMMEDIATE`)

	_, err = b.store.Begin(t.Context(), claimOf("locked-key-1"))
	if err == nil || errors.Is(err, idempotency.ErrBusy) || errors.Is(err, idempotency.ErrSerialization) {
		t.Errorf("Begin gave %v, want a plain error", err)
	}
	var store *idempotency.StoreError
	_, outcome, err := send(t.Context(), handle, "locked-key-2", pay{Note: "x"})
	if !errors.As(err, &store) || outcome.State != requestctx.StateRefused {
		t.Errorf("the command gave (%v, %v), want a StoreError", outcome.State, err)
	}
	mustExec(t, other, `ROLLBACK`)
	if _, _, err := send(t.Context(), handle, "locked-key-2", pay{Note: "x"}); err != nil {
		t.Errorf("the same key, later: %v", err)
	}
	b.want(t, 1, 1)
}

// connection is one connection of a pool, for a transaction in words.
func connection(t testing.TB, db *sql.DB) *sql.Conn {
	t.Helper()
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func TestStore_BeginWaitsForALockThatIsLetGo(t *testing.T) {
	t.Parallel()
	b := setup(t)
	other := connection(t, b.beside)
	mustExec(t, other, `BEGIN IMMEDIATE`)
	begun := make(chan error)
	go func() {
		a, err := b.store.Begin(t.Context(), claimOf("patient-key-1"))
		if err == nil {
			a.Rollback(t.Context())
		}
		begun <- err
	}()
	mustExec(t, other, `COMMIT`)
	if err := <-begun; err != nil {
		t.Errorf("Begin: %v", err)
	}
}

func TestStore_WaitForTheTurnEndsWithItsContextAndHoldsNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first := b.begin(t, "first-key-1")
	ctx, cancel := context.WithCancel(t.Context())
	begun := make(chan error)
	go func() {
		_, err := b.store.Begin(ctx, claimOf("second-key-1"))
		begun <- err
	}()
	cancel()
	if err := <-begun; !errors.Is(err, context.Canceled) || errors.Is(err, idempotency.ErrBusy) {
		t.Errorf("Begin gave %v, want the context's error", err)
	}
	if n := b.db.Stats().InUse; n != 1 {
		t.Errorf("%d connections are in use, want the first attempt's", n)
	}
	first.Rollback(t.Context())
	b.wantUsable(t)
}

func TestStore_WaitForTheLockEndsWithItsContextAndHoldsNothing(t *testing.T) {
	t.Parallel()
	for _, query := range []string{"", "?_txlock=immediate"} {
		t.Run("query "+query, func(t *testing.T) {
			t.Parallel()
			b := setupWith(t, query, sqlitestore.Config{BusyTimeout: 2 * time.Second})
			other := connection(t, b.beside)
			mustExec(t, other, `BEGIN IMMEDIATE`)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			if _, err := b.store.Begin(ctx, claimOf("waiting-key-1")); err == nil {
				t.Error("Begin went past a lock that is held")
			}
			if n := b.db.Stats().InUse; n != 0 {
				t.Errorf("%d connections are in use, want none", n)
			}
			mustExec(t, other, `ROLLBACK`)
			b.wantUsable(t)
		})
	}
}

func TestStore_KeyThatIsOpenInThisProcessIsBusyAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	a := b.begin(t, "open-key-1")
	if _, err := b.store.Begin(t.Context(), claimOf("open-key-1")); !errors.Is(err, idempotency.ErrBusy) {
		t.Errorf("Begin gave %v, want ErrBusy", err)
	}
	a.Rollback(t.Context())
	b.begin(t, "open-key-1")
}

func TestStore_AttemptHasTheWriteLockFromTheBeginning(t *testing.T) {
	t.Parallel()
	for _, query := range []string{"", "?_txlock=deferred", "?_txlock=immediate", "?_txlock=exclusive"} {
		t.Run("query "+query, func(t *testing.T) {
			t.Parallel()
			b := setupWith(t, query, sqlitestore.Config{})
			impatient := openFile(t, b.path, "?_pragma=busy_timeout(0)")
			a := b.begin(t, "lock-key-1")
			if _, err := impatient.ExecContext(t.Context(), `INSERT INTO orders (note) VALUES ('x')`); err == nil || !strings.Contains(err.Error(), "locked") {
				t.Errorf("a write beside an open attempt gave %v, want that the database is locked", err)
			}
			if n := number(t, impatient, `SELECT count(*) FROM orders`); n != 0 { // readers do not wait
				t.Errorf("there are %d orders, want none", n)
			}
			a.Rollback(t.Context())
			mustExec(t, impatient, `INSERT INTO orders (note) VALUES ('x')`)
		})
	}
}

func TestBR29_PoolOfOneConnectionServesManyCommands(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.db.SetMaxOpenConns(1)
	if err := payAll(t.Context(), b.db, "first"); err != nil {
		t.Error(err)
	}
	b.want(t, ownKeys+sharedKeys, ownKeys+sharedKeys)
	if _, err := b.store.Check(t.Context()); err != nil {
		t.Errorf("Check: %v", err)
	}
}

func TestBR29_HandlerThatAsksThePoolFailsWithItsDeadline(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.db.SetMaxOpenConns(1)
	handle, err := serve(b.store, func(ctx context.Context, cmd hasty) (paid, error) {
		_, err := b.db.ExecContext(ctx, `INSERT INTO orders (note) VALUES (?)`, cmd.Note) // not through DB
		return paid{}, err
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := send(t.Context(), handle, "wrong-pool-1", hasty{Note: "x"}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the command gave %v, want that the deadline has passed", err)
	}
	b.want(t, 0, 0)
	b.wantUsable(t)
}

func TestStore_GivesEveryConnectionBack(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for i := range 30 {
		a := b.begin(t, fmt.Sprintf("returned-key-%d", i))
		ctx := a.Context(t.Context())
		if err := b.insert(ctx, "x"); err != nil {
			t.Fatal(err)
		}
		var err error
		switch i % 5 {
		case 0:
			err = a.Complete(t.Context(), success)
		case 1:
			err = a.Refuse(t.Context(), idempotency.Completion{Outcome: idempotency.Refusal, Result: []byte(`{}`), ResultType: "refusal/1"})
		case 2:
			_, _ = sqlitestore.DB(ctx, b.db).ExecContext(ctx, `COMMIT`)
			if err = a.Complete(t.Context(), success); errors.Is(err, idempotency.ErrTransactionEnded) {
				err = nil
			}
		case 3:
			_, _ = sqlitestore.DB(ctx, b.db).ExecContext(ctx, `SELECT 1; COMMIT`)
			if err = a.Complete(t.Context(), success); errors.Is(err, idempotency.ErrTransactionEnded) {
				err = nil
			}
		case 4:
			a.Rollback(t.Context())
		}
		if err != nil {
			t.Errorf("attempt %d: %v", i, err)
		}
		if n := b.db.Stats().InUse; n != 0 {
			t.Fatalf("after attempt %d %d connections are in use, want none", i, n)
		}
	}
}
