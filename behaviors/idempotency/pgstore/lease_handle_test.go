package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore"
	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore/pgtest"
	"github.com/tekil-go/tekil/bus"
)

func TestInALeasedHandlerDBAndTxAreTheBusinessTransactionWhileItIsOpen(t *testing.T) {
	t.Parallel()
	pool, other := pgtest.Pool(t), pgtest.Pool(t)
	migrated(t, pool)
	migrated(t, other)
	l := lease(t, pgstore.New(pool), lent("handles-1"))
	ctx := l.Context(t.Context())
	outside := func(when string) {
		t.Helper()
		if pgstore.DB(ctx, pool) != pgstore.DBTX(pool) {
			t.Errorf("%s DB is not the pool", when)
		}
		if _, err := pgstore.Tx(ctx); !errors.Is(err, pgstore.ErrNoTransaction) {
			t.Errorf("%s Tx gives %v", when, err)
		}
	}
	revoked := func(when string, db pgstore.DBTX) {
		t.Helper()
		if _, err := db.Exec(t.Context(), `INSERT INTO notes VALUES ('revoked')`); !errors.Is(err, pgstore.ErrRevoked) {
			t.Errorf("%s a statement gives %v", when, err)
		}
	}
	outside("before InTx")
	var kept pgstore.DBTX
	failed := errors.New("after all")
	if err := pgstore.InTx(ctx, pool, func(ctx context.Context) error {
		kept = pgstore.DB(ctx, pool)
		if pgstore.DB(ctx, other) != pgstore.DBTX(other) {
			t.Error("for another pool DB is not that pool")
		}
		return failed
	}); !errors.Is(err, failed) {
		t.Fatal(err)
	}
	outside("after an InTx that failed")
	revoked("after an InTx that failed", kept)

	if err := pgstore.InTx(ctx, pool, inserting(pool, "in it")); err != nil {
		t.Fatal(err)
	}
	kept = pgstore.DB(ctx, pool)
	if _, err := kept.Exec(ctx, `INSERT INTO notes VALUES ('after it')`); err != nil {
		t.Fatal(err)
	}
	tx, err := pgstore.Tx(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(ctx); !errors.Is(err, pgstore.ErrNotYours) {
		t.Errorf("Commit gives %v", err)
	}
	if err := tx.Rollback(ctx); !errors.Is(err, pgstore.ErrNotYours) {
		t.Errorf("Rollback gives %v", err)
	}
	if err := pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO notes VALUES ('in a savepoint')`)
		return err
	}); err != nil {
		t.Error(err)
	}
	// A pool of another database is none of this lease's business.
	if err := pgstore.InTx(ctx, other, inserting(other, "elsewhere")); err != nil {
		t.Error(err)
	}
	if n := count(t, other, "notes"); n != 1 {
		t.Errorf("%d rows in the other database before the completion, want 1", n)
	}
	if n := count(t, pool, "notes"); n != 0 {
		t.Errorf("another connection sees %d rows before the commit", n)
	}
	if err := l.Complete(t.Context(), sold); err != nil {
		t.Fatal(err)
	}
	revoked("after the handler", kept)
	revoked("after the handler, by DB,", pgstore.DB(ctx, pool))
	if _, err := pgstore.Tx(ctx); !errors.Is(err, pgstore.ErrRevoked) {
		t.Errorf("after the handler Tx gives %v", err)
	}
	if err := tx.QueryRow(t.Context(), `SELECT 1`).Scan(new(int)); !errors.Is(err, pgstore.ErrRevoked) {
		t.Errorf("after the handler a query gives %v", err)
	}
	if err := pgstore.InTx(ctx, pool, inserting(pool, "late")); !errors.Is(err, pgstore.ErrRevoked) {
		t.Errorf("after the handler InTx gives %v", err)
	}
	if n := count(t, pool, "notes"); n != 3 {
		t.Errorf("%d rows, want 3", n)
	}
	if n := pool.Stat().AcquiredConns(); n != 0 {
		t.Errorf("%d connections were not given back", n)
	}
}

// The ways to end a transaction that is not one's own, in a Leased handler.
func TestR23_ALeasedHandlerThatEndsTheTransactionIsCaughtHoweverItDoesIt(t *testing.T) {
	t.Parallel()
	final, failed := idempotency.Final(errors.New("sold out")), errors.New("out of paper")
	for name, end := range map[string]struct {
		it func(context.Context, *pgxpool.Pool) error
		// It has begun another transaction, out of sight, which is found out when the record is written in it.
		hidden bool
	}{
		"COMMIT as text":                    {it: text("COMMIT")},
		"ROLLBACK as text":                  {it: text("ROLLBACK")},
		"BEGIN as text":                     {it: text("BEGIN")},
		"COMMIT AND CHAIN as text":          {it: text("COMMIT AND CHAIN")},
		"COMMIT by Query":                   {it: query("COMMIT")},
		"COMMIT in a batch":                 {it: batch("COMMIT")},
		"COMMIT and BEGIN in a batch":       {batch("COMMIT", "BEGIN"), true},
		"COMMIT and BEGIN in one text":      {simple("COMMIT; BEGIN"), true},
		"COMMIT on the bare connection":     {it: bare("COMMIT")},
		"COMMIT inside a savepoint's Query": {nested("COMMIT AND CHAIN"), true},
	} {
		for returned, inside := range map[error]bool{nil: true, failed: true, final: false} {
			if end.hidden && returned != nil {
				continue
			}
			t.Run(fmt.Sprintf("%s, InTx returns its error %t, then %v", name, inside, returned), func(t *testing.T) {
				t.Parallel()
				pool := pgtest.Pool(t)
				migrated(t, pool)
				b := selling(t, pgstore.New(pool), func(ctx context.Context, c sell) (string, error) {
					err := pgstore.InTx(ctx, pool, func(ctx context.Context) error {
						if err := inserting(pool, "x")(ctx); err != nil {
							return err
						}
						if err := end.it(ctx, pool); err != nil && !errors.Is(err, pgstore.ErrEndedByText) {
							t.Errorf("ending the transaction gives %v", err)
						}
						if inside {
							return returned
						}
						return nil
					})
					if inside && !errors.Is(err, returned) {
						t.Errorf("InTx gives %v", err)
					}
					return "", returned
				})
				ctx, _ := asked(t, t.Context(), "ended-it")
				_, err := bus.Send(ctx, b, sell{"x"})
				var fault *idempotency.HandlerError
				if !errors.As(err, &fault) || !strings.Contains(err.Error(), "committed or rolled back") {
					t.Errorf("the command gives %v; want a fault of the handler", err)
				}
				if n := count(t, pool, `idempotency_records WHERE state = 'completed'`); n != 0 {
					t.Errorf("%d records are completed", n)
				}
				if n := pool.Stat().AcquiredConns(); n != 0 {
					t.Errorf("%d connections were not given back", n)
				}
			})
		}
	}
}

// What a handler overlooks in its transaction undoes everything, and the key is free again.
func TestR22_ASwallowedErrorOrOpenRowsInALeasedHandlerUndoEverything(t *testing.T) {
	t.Parallel()
	for name, slip := range map[string]func(ctx context.Context, pool *pgxpool.Pool){
		"a failed statement": func(ctx context.Context, pool *pgxpool.Pool) {
			_, _ = pgstore.DB(ctx, pool).Exec(ctx, `INSERT INTO no_such_table VALUES (1)`)
		},
		"rows left open": func(ctx context.Context, pool *pgxpool.Pool) {
			_, _ = pgstore.DB(ctx, pool).Query(ctx, `SELECT generate_series(1, 100000)`)
		},
		"an InTx inside that failed": func(ctx context.Context, pool *pgxpool.Pool) {
			_ = pgstore.InTx(ctx, pool, func(context.Context) error { return errors.New("half done") })
		},
		"a later InTx that failed": nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t)
			migrated(t, pool)
			faulty := true
			b := selling(t, pgstore.New(pool), func(ctx context.Context, c sell) (string, error) {
				_ = pgstore.InTx(ctx, pool, func(ctx context.Context) error {
					if err := inserting(pool, c.Text)(ctx); err != nil {
						return err
					}
					if faulty && slip != nil {
						slip(ctx, pool)
					}
					return nil
				})
				if faulty && slip == nil {
					_ = pgstore.InTx(ctx, pool, func(context.Context) error { return errors.New("half done") })
				}
				return "sold " + c.Text, nil
			})
			ctx, _ := asked(t, t.Context(), "slipped-1")
			_, err := bus.Send(ctx, b, sell{"x"})
			var fault *idempotency.HandlerError
			if swallowed := name == "an InTx inside that failed"; !swallowed && !errors.As(err, &fault) || swallowed && err != nil {
				// The last one is rolled back by the outer InTx, which says so to a handler that does not listen and says it is done.
				t.Errorf("the command gives %v", err)
			}
			if n := count(t, pool, "notes"); n != 0 {
				t.Errorf("%d rows are left", n)
			}
			faulty = false
			ctx, _ = asked(t, t.Context(), "slipped-1")
			if got, err := bus.Send(ctx, b, sell{"x"}); err != nil || got != "sold x" {
				t.Errorf("the retry gives %q, %v", got, err)
			}
		})
	}
}

// A goroutine that is left in a statement of the business transaction.
func TestBR14_AGoroutineThatIsStillWritingWhenALeasedHandlerReturnsUndoesTheCommand(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	pool, behind := pgtest.NewPool(t, db.PoolConfig()), db.Pool()
	migrated(t, behind)
	holder, err := behind.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // nothing was written
	if _, err := holder.Exec(t.Context(), `CREATE TABLE held (n int)`); err != nil {
		t.Fatal(err)
	}
	if _, err := holder.Exec(t.Context(), `LOCK TABLE notes IN SHARE MODE`); err != nil {
		t.Fatal(err)
	}
	store := pgstore.New(pool)
	for name, end := range map[string]func(l idempotency.Lease) error{
		"Complete": func(l idempotency.Lease) error { return l.Complete(t.Context(), sold) },
		"Refuse":   func(l idempotency.Lease) error { return l.Refuse(t.Context(), sold) },
		"Rollback": func(l idempotency.Lease) error {
			if l.Ended() {
				t.Error("Ended is true")
			}
			l.Rollback(t.Context())
			return idempotency.ErrTransactionAborted
		},
	} {
		c := lent("left-behind-" + name)
		l := lease(t, store, c)
		ctx := l.Context(t.Context())
		if err := pgstore.InTx(ctx, pool, func(context.Context) error { return nil }); err != nil {
			t.Fatal(err)
		}
		left := make(chan error, 1)
		tx := pgstore.DB(ctx, pool)
		go func() {
			_, err := tx.Exec(context.WithoutCancel(ctx), `INSERT INTO notes VALUES ('left behind')`)
			left <- err
		}()
		blocked(t, db, 1)
		if err := end(l); !errors.Is(err, idempotency.ErrTransactionAborted) {
			t.Errorf("%s: %v", name, err)
		}
		if err := <-left; err == nil {
			t.Errorf("%s: the goroutine's statement succeeded", name)
		}
		exec(t, behind, `SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = $1 AND wait_event_type = 'Lock'`, db.Schema())
		if got := state(t, behind, c); got != "in_progress" {
			t.Errorf("%s: the record is %s", name, got)
		}
		if n := pool.Stat().AcquiredConns(); n != 0 {
			t.Errorf("%s: %d connections were not given back", name, n)
		}
	}
	if err := holder.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := count(t, behind, "notes"); n != 0 {
		t.Errorf("%d rows are left", n)
	}
}

// A function that was left behind in a transaction that was rolled back does not count for the next one.
func TestAFunctionLeftBehindInARolledBackTransactionDoesNotKeepTheNextOne_BR14(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	migrated(t, pool)
	c := lent("left-in-the-first")
	l := lease(t, pgstore.New(pool), c)
	ctx := l.Context(t.Context())
	inside, goOn, left := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	failed := errors.New("after all")
	fail := func(note string) error {
		return pgstore.InTx(ctx, pool, func(ctx context.Context) error {
			if err := inserting(pool, note)(ctx); err != nil {
				return err
			}
			if note == "first" {
				go func() {
					left <- pgstore.InTx(ctx, pool, func(ctx context.Context) error {
						close(inside)
						<-goOn
						if err := pgstore.InTx(ctx, pool, inserting(pool, "left behind")); !errors.Is(err, pgstore.ErrRevoked) {
							t.Errorf("InTx in a transaction that was rolled back says %v", err)
						}
						return inserting(pool, "left behind")(ctx)
					})
				}()
				<-inside
			}
			return failed
		})
	}
	for _, note := range []string{"first", "second"} {
		if err := fail(note); !errors.Is(err, failed) || l.Open() {
			t.Errorf("the %s InTx gives %v, the transaction is open %t", note, err, l.Open())
		}
	}
	if err := pgstore.InTx(ctx, pool, inserting(pool, "third")); err != nil {
		t.Fatal(err)
	}
	if err := fail("fourth"); !errors.Is(err, failed) {
		t.Fatal(err)
	}
	close(goOn)
	if err := <-left; !errors.Is(err, pgstore.ErrRevoked) {
		t.Errorf("the function that was left behind says %v", err)
	}
	if err := l.Complete(t.Context(), sold); !errors.Is(err, idempotency.ErrTransactionAborted) {
		t.Errorf("Complete of a success whose rows are gone says %v", err)
	}
	if n := count(t, pool, "notes"); n != 0 {
		t.Errorf("%d rows, one of them written beside every transaction", n)
	}
}

// The race detector is what this test is for: everything that may be called from everywhere, at once.
func TestALeaseIsSafeForItsHeartbeatItsHandlerAndWhoWasLeftBehind_BR14(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	migrated(t, pool)
	store := pgstore.New(pool)
	done := 0
	for i := range 10 {
		c := lent(fmt.Sprintf("everybody-%d", i))
		l := lease(t, store, c)
		ctx := l.Context(context.WithoutCancel(t.Context()))
		stop := make(chan struct{})
		var beating, left sync.WaitGroup
		beating.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					if err := l.Renew(ctx); err != nil {
						t.Errorf("Renew: %v", err)
						return
					}
					l.Open()
				}
			}
		})
		left.Go(func() {
			for err := error(nil); !errors.Is(err, pgstore.ErrRevoked); {
				err = pgstore.InTx(ctx, pool, func(ctx context.Context) error {
					_, err := pgstore.DB(ctx, pool).Exec(ctx, `SELECT 1`)
					return err
				})
			}
		})
		err := pgstore.InTx(ctx, pool, inserting(pool, c.Scope.Key))
		close(stop)
		beating.Wait()
		if completing := l.Complete(t.Context(), sold); err == nil && completing == nil {
			done++
		} else if completing != nil {
			if err := l.Release(t.Context()); err != nil {
				t.Errorf("Release: %v", err)
			}
		}
		left.Wait()
		if n, s := count(t, pool, "notes"), state(t, pool, c); n > done+i || s == "in_progress" {
			t.Errorf("%d rows after %d successes, the record is %s", n, done, s)
		}
	}
	if n := pool.Stat().AcquiredConns(); n != 0 {
		t.Errorf("%d connections were not given back", n)
	}
}

func TestInTxOutsideACommandIsWholeOrNothing(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	cfg := db.PoolConfig()
	cfg.ConnConfig.RuntimeParams["default_transaction_isolation"] = "repeatable read"
	pool, behind := pgtest.NewPool(t, cfg), db.Pool()
	migrated(t, behind)
	run := func(fn func(ctx context.Context) error) error { return pgstore.InTx(t.Context(), pool, fn) }
	var kept pgx.Tx
	if err := run(func(ctx context.Context) error {
		tx, err := pgstore.Tx(ctx)
		if err != nil {
			return err
		}
		kept = tx
		var level string
		if err := tx.QueryRow(ctx, `SHOW transaction_isolation`).Scan(&level); err != nil || level != "repeatable read" {
			t.Errorf("the level is %q, %v; want the session's own", level, err)
		}
		if err := tx.Commit(ctx); !errors.Is(err, pgstore.ErrNotYours) {
			t.Errorf("Commit gives %v", err)
		}
		return pgstore.InTx(ctx, pool, inserting(pool, "one"))
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := kept.Exec(t.Context(), `SELECT 1`); !errors.Is(err, pgstore.ErrRevoked) {
		t.Errorf("after InTx its handle gives %v", err)
	}
	half := errors.New("half done")
	for name, c := range map[string]struct {
		fn   func(ctx context.Context) error
		want error
	}{
		"an error":          {func(context.Context) error { return half }, half},
		"COMMIT as text":    {func(ctx context.Context) error { _ = text("COMMIT")(ctx, pool); return nil }, idempotency.ErrTransactionEnded},
		"ROLLBACK as text":  {func(ctx context.Context) error { _ = text("ROLLBACK")(ctx, pool); return nil }, idempotency.ErrTransactionEnded},
		"a swallowed error": {func(ctx context.Context) error { _ = text("nonsense")(ctx, pool); return nil }, idempotency.ErrTransactionAborted},
		"rows left open":    {func(ctx context.Context) error { _, _ = pgstore.DB(ctx, pool).Query(ctx, `SELECT 1`); return nil }, idempotency.ErrTransactionAborted},
		"one inside, failed": {func(ctx context.Context) error {
			_ = pgstore.InTx(ctx, pool, func(context.Context) error { return half })
			return nil
		}, idempotency.ErrTransactionAborted},
	} {
		err := run(func(ctx context.Context) error {
			if err := inserting(pool, name)(ctx); err != nil {
				return err
			}
			return c.fn(ctx)
		})
		if !errors.Is(err, c.want) {
			t.Errorf("%s: InTx gives %v, want %v", name, err, c.want)
		}
	}
	func() {
		defer func() {
			if p := recover(); p != "out of paper" {
				t.Errorf("the panic came out as %v", p)
			}
		}()
		_ = run(func(ctx context.Context) error { _ = inserting(pool, "a panic")(ctx); panic("out of paper") })
	}()
	if n := count(t, behind, `notes WHERE note NOT IN ('one', 'COMMIT as text')`); n != 0 {
		t.Errorf("%d rows of what failed", n)
	}
	if n := pool.Stat().AcquiredConns(); n != 0 {
		t.Errorf("%d connections were not given back", n)
	}
}

// One function that uses InTx serves a handler of either mode and a job.
func TestInTxIsTheTransactionOfWhoeverHasOne(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	migrated(t, pool)
	xid := func(ctx context.Context) (id string) {
		if err := pgstore.DB(ctx, pool).QueryRow(ctx, `SELECT pg_current_xact_id()::text`).Scan(&id); err != nil {
			t.Error(err)
		}
		return id
	}
	save := func(ctx context.Context) (ids []string, err error) {
		err = pgstore.InTx(ctx, pool, func(ctx context.Context) error {
			ids = append(ids, xid(ctx))
			return pgstore.InTx(ctx, pool, func(ctx context.Context) error {
				ids = append(ids, xid(ctx))
				return nil
			})
		})
		return append(ids, xid(ctx)), err
	}
	same := func(where string, ids []string, err error, after bool) {
		t.Helper()
		if err != nil || ids[0] != ids[1] || (ids[2] == ids[0]) != after {
			t.Errorf("%s: the transactions are %q, %v", where, ids, err)
		}
	}
	ids, err := save(t.Context())
	same("outside", ids, err, false)
	_, sendErr := once(t, pool, func(ctx context.Context, c note) (string, error) {
		before := xid(ctx)
		ids, err := save(ctx)
		same("in an Atomic handler", ids, err, true)
		if before != ids[0] {
			t.Error("in an Atomic handler InTx is not in the command's transaction")
		}
		return "", nil
	})
	if sendErr != nil {
		t.Error(sendErr)
	}
	b := selling(t, pgstore.New(pool), func(ctx context.Context, c sell) (string, error) {
		first, err := save(ctx)
		same("in a Leased handler", first, err, true)
		second, err := save(ctx)
		same("in a Leased handler again", second, err, true)
		if first[0] != second[0] {
			t.Error("in a Leased handler the second InTx has another transaction")
		}
		return "", nil
	})
	ctx, _ := asked(t, t.Context(), "whoever-1")
	if _, err := bus.Send(ctx, b, sell{"x"}); err != nil {
		t.Error(err)
	}
}

// The statements of a Leased attempt name the level wherever one matters.
func TestTheStatementsOfALeaseSayTheirLevel_E32(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	proxy := db.Proxy()
	pool := pgtest.NewPool(t, proxy.PoolConfig())
	migrated(t, pool)
	store := pgstore.New(pool)
	c := lent("levels-1")
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"a takeover", func() error {
			lease(t, store, rival(c))
			lapse(t, db.Pool())
			proxy.Reset()
			lease(t, store, c)
			return nil
		}},
		{"a renewal", func() error { return lease(t, store, c).Renew(t.Context()) }},
		{"a release", func() error { return lease(t, store, c).Release(t.Context()) }},
		{"an outcome alone", func() error { return lease(t, store, rival(c)).Complete(t.Context(), sold) }},
		{"Free", func() error { _, err := store.Free(t.Context(), c.ID, c.Attempt); return err }},
		{"Erase", func() error { _, err := store.Erase(t.Context(), c.ID, c.Attempt); return err }},
		{"Purge", func() error { _, err := store.Purge(t.Context(), idempotency.PurgeBatch{Limit: 1}); return err }},
	} {
		proxy.Reset()
		if err := step.do(); err != nil {
			t.Errorf("%s: %v", step.name, err)
		}
		statements := proxy.Statements()
		for i, s := range statements {
			if (strings.HasPrefix(s, "UPDATE") || strings.HasPrefix(s, "DELETE") || strings.HasPrefix(s, "WITH")) &&
				!slices.ContainsFunc(statements[:i], func(s string) bool { return strings.EqualFold(s, "begin isolation level read committed") }) {
				t.Errorf("%s: its level is not said:\n%s", step.name, strings.Join(statements, "\n"))
			}
		}
	}
}
