package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore"
	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore/pgtest"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
)

// statement of a claim that takes a record, and of a completion.
var (
	isClaim = pgtest.Contains("'in_progress', $8::text")
	isTake  = pgtest.Contains("FOR NO KEY UPDATE OF r),\nwas AS")
	isRenew = pgtest.Contains("SET lease_until = greatest")
	isDone  = pgtest.Contains("WITH done AS")
)

// The answer to the claim is lost after it was committed: who asks again finds his own record and not a rival's.
func TestBR08_AClaimWhoseAnswerIsLostIsFoundToBeOnesOwn(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	migrated(t, db.Pool())
	proxy := db.Proxy()
	pool := pgtest.NewPool(t, proxy.PoolConfig())
	store := pgstore.New(pool)
	for _, c := range []struct {
		name    string
		prepare func(c idempotency.Claim)
		match   func(string) bool
		action  pgtest.Action
		attempt int
	}{
		{"a fresh claim, committed", nil, isClaim, pgtest.DropAnswer, 1},
		{"a fresh claim, never sent", nil, isClaim, pgtest.Drop, 1},
		{"a takeover, committed", func(c idempotency.Claim) { lease(t, store, rival(c)); lapse(t, db.Pool()) }, isTake, pgtest.DropAnswer, 2},
		{"a takeover, never sent", func(c idempotency.Claim) { lease(t, store, rival(c)); lapse(t, db.Pool()) }, isTake, pgtest.Drop, 2},
	} {
		claim := lent(c.name)
		if c.prepare != nil {
			c.prepare(claim)
		}
		fault := proxy.Arm(pgtest.Fault{Match: c.match, Action: c.action})
		if l, rec, err := store.Lease(t.Context(), claim); !errors.Is(err, idempotency.ErrCommitUnknown) {
			t.Errorf("%s: got a lease %t, the record %+v and %v; want that nobody knows", c.name, l != nil, rec, err)
		}
		<-fault.Done()
		l := lease(t, store, claim)
		if g := l.Grant(); g.Attempt != c.attempt || g.Fence < 1 {
			t.Errorf("%s: the grant is %+v", c.name, g)
		}
		if rec := met(t, store, rival(claim)); rec.Attempt != claim.Attempt || rec.Fence != l.Grant().Fence {
			t.Errorf("%s: a rival meets %+v", c.name, rec)
		}
		lapse(t, db.Pool())
		if g := lease(t, store, claim).Grant(); g.Attempt != c.attempt || g.Fence != l.Grant().Fence {
			t.Errorf("%s: when its lease is over one's own claim is %+v, and was %+v", c.name, g, l.Grant())
		}
		if err := l.Complete(t.Context(), sold); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	// A claim that was not sent at all is nothing that nobody knows.
	proxy.Refuse(true)
	pool.Reset()
	if _, _, err := store.Lease(t.Context(), lent("not-sent")); err == nil || errors.Is(err, idempotency.ErrCommitUnknown) || errors.Is(err, idempotency.ErrBusy) {
		t.Errorf("with the server away: %v", err)
	}
}

func TestBR08_ALeasedCommandWhoseClaimsAnswerIsLostRunsOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	migrated(t, db.Pool())
	proxy := db.Proxy()
	pool := pgtest.NewPool(t, proxy.PoolConfig())
	entered, note := 0, noting(pool)
	b := selling(t, pgstore.New(pool), func(ctx context.Context, c sell) (string, error) {
		entered++
		return note(ctx, c)
	})
	proxy.Arm(pgtest.Fault{Match: isClaim, Action: pgtest.DropAnswer})
	for _, replayed := range []bool{false, true} {
		ctx, req := asked(t, t.Context(), "lost-claim-1")
		if got, err := bus.Send(ctx, b, sell{"x"}); err != nil || got != "sold x" || req.Outcome().Replayed != replayed {
			t.Errorf("got %q, %v, %+v; want replayed %t", got, err, req.Outcome(), replayed)
		}
	}
	if rows := count(t, db.Pool(), "notes"); rows != 1 || entered != 1 {
		t.Errorf("%d rows, the handler ran %d times", rows, entered)
	}
}

// What became of the COMMIT of a completion is never told by looking: the attempt takes the record from its own token.
func TestX06X07X08_ALeasedCommitThatWasLostIsBurntOrHasHappened(t *testing.T) {
	t.Parallel()
	for _, inTx := range []bool{true, false} {
		for _, action := range []pgtest.Action{pgtest.Drop, pgtest.DropAnswer, pgtest.Delay} {
			t.Run(fmt.Sprintf("%v, in a business transaction %t", action, inTx), func(t *testing.T) {
				t.Parallel()
				db := pgtest.Open(t)
				behind := db.Pool()
				migrated(t, behind)
				proxy := db.Proxy()
				pool := pgtest.NewPool(t, proxy.PoolConfig())
				store := pgstore.NewWithConfig(pool, pgstore.Config{LockTimeout: time.Minute})
				c := lent("lost-commit")
				l := lease(t, store, c)
				if inTx {
					if err := pgstore.InTx(l.Context(t.Context()), pool, inserting(pool, "x")); err != nil {
						t.Fatal(err)
					}
				}
				arrive := make(chan struct{})
				fault := proxy.Arm(pgtest.Fault{Match: pgtest.IsCommit, Action: action, Release: arrive})
				if err := l.Complete(t.Context(), sold); !errors.Is(err, idempotency.ErrCommitUnknown) {
					t.Fatalf("Complete says %v, want that nobody knows", err)
				}
				if err := l.Complete(t.Context(), sold); inTx && (err == nil || errors.Is(err, idempotency.ErrLost)) {
					t.Errorf("a second Complete, whose rows are not there, says %v", err)
				} else if !inTx && action == pgtest.Delay {
					// The outcome alone can be written again, and then it is the late packet that finds nothing.
					if err != nil {
						t.Errorf("a second Complete of an outcome alone says %v", err)
					}
					close(arrive)
					<-fault.Done()
				}

				released := make(chan error, 1)
				go func() { released <- l.Release(t.Context()) }()
				if inTx && action == pgtest.Delay {
					blocked(t, db, 1) // the transaction on its way holds the record: nobody decides before it is there
					close(arrive)
				}
				err := <-released
				happened := action == pgtest.DropAnswer || action == pgtest.Delay || !inTx // outside a transaction the second Complete has seen to it
				if happened && !errors.Is(err, idempotency.ErrLost) || !happened && err != nil {
					t.Errorf("Release says %v; the commit has happened: %t", err, happened)
				}
				<-fault.Done()
				want, rows := "completed", 1
				if !happened {
					want, rows = "failed", 0
				}
				if !inTx {
					rows = 0
				}
				if got, n := state(t, behind, c), count(t, behind, "notes"); got != want || n != rows {
					t.Errorf("the record is %s and there are %d rows; want %s and %d", got, n, want, rows)
				}
				if rec, err := store.Look(t.Context(), c); err != nil || happened != (rec.Attempt == c.Attempt) {
					t.Errorf("the record is of attempt %x, %v; own %t wanted", rec.Attempt, err, happened)
				}
			})
		}
	}
}

// The record is taken from its token while the completion is still under way: what arrives then must find nothing.
func TestX08_ALeasedCommitThatArrivesAfterTheReleaseIsRefused(t *testing.T) {
	t.Parallel()
	for _, inTx := range []bool{true, false} {
		db := pgtest.Open(t)
		behind := db.Pool()
		migrated(t, behind)
		proxy := db.Proxy()
		pool := pgtest.NewPool(t, proxy.PoolConfig())
		store := pgstore.New(pool)
		c := lent("late-commit")
		l := lease(t, store, c)
		if inTx {
			if err := pgstore.InTx(l.Context(t.Context()), pool, inserting(pool, "late")); err != nil {
				t.Fatal(err)
			}
		}
		arrive := make(chan struct{})
		fault := proxy.Arm(pgtest.Fault{Match: pgtest.IsCommit, Action: pgtest.Delay, Release: arrive})
		if err := l.Complete(t.Context(), sold); !errors.Is(err, idempotency.ErrCommitUnknown) {
			t.Fatalf("Complete says %v", err)
		}
		if inTx { // the server ends the session that holds the record, as idle_in_transaction_session_timeout does
			exec(t, behind, `SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = $1 AND state = 'idle in transaction'`, db.Schema())
		}
		if err := l.Release(t.Context()); err != nil {
			t.Errorf("Release says %v", err)
		}
		next := lease(t, store, rival(c))
		close(arrive)
		<-fault.Done()
		if got, n := state(t, behind, c), count(t, behind, "notes"); got != "in_progress" || n != 0 {
			t.Errorf("in a transaction %t: the record is %s and there are %d rows", inTx, got, n)
		}
		if g := next.Grant(); g.Attempt != 2 || g.TookOver {
			t.Errorf("in a transaction %t: the next grant is %+v", inTx, g)
		}
		if err := next.Complete(t.Context(), sold); err != nil {
			t.Errorf("the next owner: %v", err)
		}
	}
}

// A COMMIT without an answer that a pooler hands to another session finds another transaction than the one that was begun.
func TestX08_TheCompletionOfABusinessTransactionIsRefusedInAnyOther(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	pool := db.Pool()
	migrated(t, pool)
	c := lent("other-session")
	l, ctx := opened(t, pgstore.New(pool), pool, c)
	tx, err := pgstore.Tx(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Conn().PgConn().Exec(t.Context(), `ROLLBACK; BEGIN`).ReadAll(); err != nil {
		t.Fatal(err)
	}
	if err := l.Complete(t.Context(), sold); !errors.Is(err, idempotency.ErrTransactionEnded) {
		t.Errorf("Complete in another transaction says %v", err)
	}
	if got := state(t, pool, c); got != "in_progress" {
		t.Errorf("the record is %s", got)
	}
}

// The bus's own way through the same three.
func TestX06X07X08_ALeasedCommandWhoseCommitIsLostMakesOneRow(t *testing.T) {
	t.Parallel()
	for _, action := range []pgtest.Action{pgtest.Drop, pgtest.DropAnswer, pgtest.Delay} {
		t.Run(action.String(), func(t *testing.T) {
			t.Parallel()
			db := pgtest.Open(t)
			behind := db.Pool()
			migrated(t, behind)
			proxy := db.Proxy()
			pool := pgtest.NewPool(t, proxy.PoolConfig())
			b := selling(t, pgstore.New(pool), noting(pool))
			arrive := make(chan struct{})
			fault := proxy.Arm(pgtest.Fault{Match: isDone, Action: action, Release: arrive})
			if action == pgtest.Delay {
				go func() {
					<-fault.Fired()
					blocked(t, db, 1)
					close(arrive)
				}()
			}
			ctx, req := asked(t, t.Context(), "leased-commit")
			got, err := bus.Send(ctx, b, sell{"x"})
			<-fault.Done()
			if action == pgtest.Drop {
				var away *idempotency.StoreError
				if !errors.As(err, &away) || req.Outcome().State != requestctx.StateFreed {
					t.Errorf("got %q, %v, %+v; want that it did not happen", got, err, req.Outcome())
				}
			} else if err != nil || got != "sold x" || req.Outcome().Replayed {
				t.Errorf("got %q, %v, %+v; want the attempt's own success", got, err, req.Outcome())
			}
			ctx, req = asked(t, t.Context(), "leased-commit")
			if got, err := bus.Send(ctx, b, sell{"x"}); err != nil || got != "sold x" || req.Outcome().Replayed == (action == pgtest.Drop) {
				t.Errorf("the retry got %q, %v, %+v", got, err, req.Outcome())
			}
			if n := count(t, behind, "notes"); n != 1 {
				t.Errorf("%d rows, want 1", n)
			}
		})
	}
}

// The process is frozen, or its connection hangs, inside the business transaction; the server ends the session in the end.
func TestAFrozenOwnersTransactionIsEndedAndTheKeyTakenOver_L09_L16_X04(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	behind := db.Pool()
	migrated(t, behind)
	pool := pgtest.NewPool(t, db.PoolConfig())
	store := pgstore.NewWithConfig(pool, pgstore.Config{LockTimeout: 50 * time.Millisecond})
	for name, end := range map[string]func(l idempotency.Lease) error{
		"Complete": func(l idempotency.Lease) error { return l.Complete(t.Context(), sold) },
		"Refuse":   func(l idempotency.Lease) error { return l.Refuse(t.Context(), sold) },
		"Release":  func(l idempotency.Lease) error { return l.Release(t.Context()) },
	} {
		c := lent("frozen-" + name)
		l := lease(t, store, c)
		lapse(t, behind)
		ctx := l.Context(t.Context())
		if err := pgstore.InTx(ctx, pool, inserting(pool, "x")); err != nil {
			t.Fatal(err)
		}
		tx, err := pgstore.Tx(ctx)
		if err != nil {
			t.Fatal(err)
		}
		pid := tx.Conn().PgConn().PID()
		if _, _, err := store.Lease(t.Context(), rival(c)); !errors.Is(err, idempotency.ErrBusy) {
			t.Errorf("%s: while the owner holds its record a challenger gets %v", name, err)
		}
		exec(t, behind, `SELECT pg_terminate_backend($1, 10000)`, pid)
		next := lease(t, store, rival(c))
		if g := next.Grant(); !g.TookOver || g.Attempt != 2 {
			t.Errorf("%s: the challenger's grant is %+v", name, g)
		}
		err = end(l)
		if name == "Complete" { // its COMMIT got no answer, so it burns its token
			if errors.Is(err, idempotency.ErrCommitUnknown) || errors.Is(err, idempotency.ErrTransactionAborted) {
				err = l.Release(t.Context())
			}
		}
		if !errors.Is(err, idempotency.ErrLost) {
			t.Errorf("%s of the one that was frozen says %v, want that it has lost", name, err)
		}
		if err := next.Complete(t.Context(), sold); err != nil {
			t.Errorf("%s: the new owner: %v", name, err)
		}
	}
	if n := count(t, behind, "notes"); n != 0 {
		t.Errorf("%d rows of owners that were frozen", n)
	}
	if n := pool.Stat().AcquiredConns(); n != 0 {
		t.Errorf("%d connections were not given back", n)
	}
}

// With one connection in the pool, and that one lost, what ends the attempt needs another.
func TestWhatEndsALeaseDoesNotNeedTheConnectionThatWasLost_X12(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(ctx context.Context, l idempotency.Lease) error{
		"Release": func(ctx context.Context, l idempotency.Lease) error { return l.Release(ctx) },
		"Refuse":  func(ctx context.Context, l idempotency.Lease) error { return l.Refuse(ctx, sold) },
		"Release after Complete": func(ctx context.Context, l idempotency.Lease) error {
			if err := l.Complete(ctx, sold); err == nil || errors.Is(err, idempotency.ErrLost) {
				t.Errorf("Complete on a lost connection says %v", err)
			}
			return l.Release(ctx)
		},
	} {
		db := pgtest.Open(t)
		behind := db.Pool()
		migrated(t, behind)
		proxy := db.Proxy()
		cfg := proxy.PoolConfig()
		cfg.MaxConns = 1
		pool := pgtest.NewPool(t, cfg)
		c := lent("one-connection")
		l, _ := opened(t, pgstore.NewWithConfig(pool, pgstore.Config{LockTimeout: 20 * time.Second}), pool, c)
		proxy.CutAll()
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		if err := end(ctx, l); err != nil {
			t.Errorf("%s says %v", name, err)
		}
		want := "failed"
		if name == "Refuse" {
			want = "completed"
		}
		if got, n := state(t, behind, c), count(t, behind, "notes"); got != want || n != 0 {
			t.Errorf("%s: the record is %s and there are %d rows", name, got, n)
		}
		if n := pool.Stat().AcquiredConns(); n != 0 {
			t.Errorf("%s: %d connections were not given back", name, n)
		}
	}
}

// A connection that swallows what is sent, and a rollback that is waited for no longer than for a lock.
func TestReleaseDoesNotWaitForARollbackThatHangs_X12(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	behind := db.Pool()
	migrated(t, behind)
	proxy := db.Proxy()
	pool := pgtest.NewPool(t, proxy.PoolConfig())
	store := pgstore.NewWithConfig(pool, pgstore.Config{LockTimeout: 300 * time.Millisecond})
	c := lent("hanging-1")
	l, _ := opened(t, store, pool, c)
	never := make(chan struct{})
	proxy.Arm(pgtest.Fault{Match: pgtest.Contains("ROLLBACK"), Action: pgtest.Hold, Release: never})
	begun := time.Now()
	err := l.Release(t.Context())
	if took := time.Since(begun); took > 15*time.Second {
		t.Errorf("Release took %v", took)
	}
	// The server still holds the record for the transaction that hangs, or has noticed that its client is gone.
	if err != nil && !errors.Is(err, idempotency.ErrBusy) {
		t.Errorf("Release says %v", err)
	}
	proxy.CutAll()
	for err != nil && !errors.Is(err, idempotency.ErrLost) && t.Context().Err() == nil {
		err = l.Release(t.Context()) // again, after it has failed
	}
	if got := state(t, behind, c); err != nil || got != "failed" {
		t.Errorf("Release says %v, the record is %s", err, got)
	}
}

// The refusals of a deferred constraint come from COMMIT, behind a completion that had succeeded.
func TestADeferredConstraintThatFailsAtALeasedCommitUndoesEverything_R22(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	migrated(t, pool)
	exec(t, pool, `CREATE TABLE twins (n int, CONSTRAINT one UNIQUE (n) DEFERRABLE INITIALLY DEFERRED)`)
	c := lent("deferred-1")
	l := lease(t, pgstore.New(pool), c)
	if err := pgstore.InTx(l.Context(t.Context()), pool, func(ctx context.Context) error {
		_, err := pgstore.DB(ctx, pool).Exec(ctx, `INSERT INTO twins VALUES (1), (1)`)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if err := l.Complete(t.Context(), sold); !errors.Is(err, idempotency.ErrTransactionAborted) {
		t.Errorf("Complete says %v", err)
	}
	if rows, s := count(t, pool, "twins"), state(t, pool, c); rows != 0 || s != "in_progress" {
		t.Errorf("%d rows, the record is %s", rows, s)
	}
	if err := l.Release(t.Context()); err != nil {
		t.Errorf("Release says %v", err)
	}
}

// A renewal that hangs does not hold the handler's transaction up, and one that arrives late does it no harm.
func TestARenewalThatHangsIsGivenUpForTheBusinessTransaction_L12_E41(t *testing.T) {
	t.Parallel()
	for _, isolation := range []idempotency.Isolation{idempotency.ReadCommitted, idempotency.RepeatableRead, idempotency.Serializable} {
		for _, end := range []string{"InTx", "Complete", "Release"} {
			t.Run(fmt.Sprintf("%v, %s", isolation, end), func(t *testing.T) {
				t.Parallel()
				db := pgtest.Open(t)
				behind := db.Pool()
				migrated(t, behind)
				proxy := db.Proxy()
				pool := pgtest.NewPool(t, proxy.PoolConfig())
				c := lent("hanging-renewal")
				c.Isolation = isolation
				l := lease(t, pgstore.New(pool), c)
				arrive := make(chan struct{})
				fault := proxy.Arm(pgtest.Fault{Match: isRenew, Action: pgtest.Hold, Release: arrive})
				renewed := make(chan error, 1)
				go func() { renewed <- l.Renew(context.WithoutCancel(t.Context())) }()
				<-fault.Fired()
				ctx := l.Context(t.Context())
				switch end {
				case "InTx":
					if err := pgstore.InTx(ctx, pool, inserting(pool, "x")); err != nil {
						t.Fatal(err)
					}
				case "Complete":
					if err := l.Complete(t.Context(), sold); err != nil {
						t.Error(err)
					}
				case "Release":
					if err := l.Release(t.Context()); err != nil {
						t.Error(err)
					}
				}
				select {
				case err := <-renewed:
					if err != nil {
						t.Errorf("the renewal that was given up says %v", err)
					}
				default:
					t.Error("the renewal is still on its way")
				}
				close(arrive)
				if end == "InTx" {
					if err := l.Renew(t.Context()); err != nil {
						t.Errorf("a renewal while the transaction is open says %v", err)
					}
					if err := l.Complete(t.Context(), sold); err != nil {
						t.Error(err)
					}
				}
				<-fault.Done()
				want := map[string]string{"InTx": "completed", "Complete": "completed", "Release": "failed"}[end]
				if got := state(t, behind, c); got != want {
					t.Errorf("the record is %s, want %s", got, want)
				}
			})
		}
	}
}

// A renewal that comes between the snapshot of a stricter level and its lock is met with another try.
func TestTheBusinessTransactionIsBegunAgainWhereItsLevelRefusesTheLock_L18(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	pool := db.Pool()
	migrated(t, pool)
	store := pgstore.NewWithConfig(pool, pgstore.Config{LockTimeout: time.Minute})
	for _, isolation := range []idempotency.Isolation{idempotency.RepeatableRead, idempotency.Serializable} {
		c := lent("renewed-late-" + isolation.String())
		c.Isolation = isolation
		l := lease(t, store, c)
		late, err := pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer late.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // it is committed below
		if _, err := late.Exec(t.Context(), `UPDATE idempotency_records SET lease_until = lease_until + interval '1 second' WHERE id = $1`, [16]byte(c.ID)); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := pgstore.InTx(l.Context(t.Context()), pool, inserting(pool, "x")); err != nil {
				t.Errorf("%v: InTx says %v", isolation, err)
			}
		})
		blocked(t, db, 1)
		if err := late.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		if err := l.Complete(t.Context(), sold); err != nil {
			t.Errorf("%v: Complete says %v", isolation, err)
		}
	}
	if n := count(t, pool, "notes"); n != 2 {
		t.Errorf("%d rows, want 2", n)
	}
}

// Only the store's word that the record is somebody else's ends a handler.
func TestARenewalSaysLostOnlyWhenTheRecordIsNotItsOwn_L12_L13(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	behind := db.Pool()
	migrated(t, behind)
	proxy := db.Proxy()
	pool := pgtest.NewPool(t, proxy.PoolConfig())
	store := pgstore.New(pool)
	c := lent("beating-1")
	l := lease(t, store, c)
	for _, action := range []pgtest.Action{pgtest.Drop, pgtest.DropAnswer} {
		proxy.Arm(pgtest.Fault{Match: isRenew, Action: action})
		if err := l.Renew(t.Context()); err == nil || errors.Is(err, idempotency.ErrLeaseLost) {
			t.Errorf("%v: the renewal says %v", action, err)
		}
	}
	proxy.Refuse(true)
	proxy.CutAll()
	if err := l.Renew(t.Context()); err == nil || errors.Is(err, idempotency.ErrLeaseLost) {
		t.Errorf("with the server away the renewal says %v", err)
	}
	proxy.Refuse(false)
	if err := l.Renew(t.Context()); err != nil {
		t.Errorf("with the server back the renewal says %v", err)
	}
	lapse(t, behind)
	lease(t, store, rival(c))
	if err := l.Renew(t.Context()); !errors.Is(err, idempotency.ErrLeaseLost) {
		t.Errorf("after a takeover the renewal says %v", err)
	}
	if err := pgstore.InTx(l.Context(t.Context()), pool, inserting(pool, "late")); !errors.Is(err, idempotency.ErrLeaseLost) {
		t.Errorf("after a takeover InTx says %v", err)
	}
	if err := l.Complete(t.Context(), sold); !errors.Is(err, idempotency.ErrLost) {
		t.Errorf("after a takeover Complete says %v", err)
	}
	if n := count(t, behind, "notes"); n != 0 {
		t.Errorf("%d rows of a late owner", n)
	}
}
