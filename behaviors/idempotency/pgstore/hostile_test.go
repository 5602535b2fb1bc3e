package pgstore_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore"
	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore/pgtest"
	"github.com/tekil-go/tekil/bus"
)

// Attempts to make two owners of one key disagree: two orders for one intent, an answer that is not the record's, an outcome
// without its rows or rows without their outcome, or an owner that gets through after its key was given to somebody else.

// meant is why the key of a live owner is released.
var meant = idempotency.Intervention{By: "a hostile reviewer", Reason: "to see who gets through", LiveLease: true}

func desk(t testing.TB, s idempotency.Store) *idempotency.Admin {
	t.Helper()
	a, err := idempotency.NewAdmin(idempotency.AdminConfig{Store: s, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// otherPayload is the claim of an attempt that wants something else under the same key.
func otherPayload(c idempotency.Claim) idempotency.Claim {
	c.Hash = sha256.Sum256([]byte("another payload"))
	return rival(c)
}

// whole is a record with all its columns, or "" for none.
func whole(t testing.TB, pool *pgxpool.Pool, c idempotency.Claim) (row string) {
	t.Helper()
	err := pool.QueryRow(context.Background(), `SELECT r::text FROM idempotency_records AS r WHERE id = $1`, [16]byte(c.ID)).Scan(&row)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		t.Fatal(err)
	}
	return row
}

// delivers is the owner who is to win: it writes its row and completes.
func delivers(t testing.TB, l idempotency.Lease, pool *pgxpool.Pool, note string) {
	t.Helper()
	if err := pgstore.InTx(l.Context(t.Context()), pool, inserting(pool, note)); err != nil {
		t.Fatalf("the owner's InTx: %v", err)
	}
	if err := l.Complete(t.Context(), sold); err != nil {
		t.Fatalf("the owner's Complete: %v", err)
	}
}

// wantRows demands that these rows are there, and nothing of anybody else.
func wantRows(t testing.TB, pool *pgxpool.Pool, when string, want ...string) {
	t.Helper()
	rows, _ := pool.Query(context.Background(), `SELECT note FROM notes ORDER BY note`)
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s: the rows are %q, %v; want %q", when, got, err, want)
	}
}

// ways are all that an attempt can do with a key.
var ways = map[string]func(ctx context.Context, l idempotency.Lease, pool *pgxpool.Pool) error{
	"InTx": func(ctx context.Context, l idempotency.Lease, pool *pgxpool.Pool) error {
		return pgstore.InTx(l.Context(ctx), pool, inserting(pool, "of the old owner"))
	},
	"Renew":    func(ctx context.Context, l idempotency.Lease, _ *pgxpool.Pool) error { return l.Renew(ctx) },
	"Complete": func(ctx context.Context, l idempotency.Lease, _ *pgxpool.Pool) error { return l.Complete(ctx, sold) },
	"Refuse": func(ctx context.Context, l idempotency.Lease, _ *pgxpool.Pool) error {
		return l.Refuse(ctx, idempotency.Completion{Outcome: idempotency.Refusal, Result: []byte(`{}`), ResultType: "refusal/1"})
	},
	"Release": func(ctx context.Context, l idempotency.Lease, _ *pgxpool.Pool) error { return l.Release(ctx) },
}

// isLost reports whether the old owner was told that the key is not its own.
func isLost(err error) bool {
	return errors.Is(err, idempotency.ErrLost) || errors.Is(err, idempotency.ErrLeaseLost)
}

func TestAPersonWhoReleasesAKeyBetweenTheLockAndTheCompletionOfItsOwnerComesTooLate(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	pool := db.Pool()
	migrated(t, pool)
	store := pgstore.NewWithConfig(pool, pgstore.Config{LockTimeout: time.Minute})
	c := lent("released-late")
	l, _ := opened(t, store, pool, c)
	released := make(chan error, 1)
	go func() { released <- desk(t, store).Release(t.Context(), c.ID, meant) }()
	blocked(t, db, 1)
	if err := l.Complete(t.Context(), sold); err != nil {
		t.Errorf("the owner's Complete: %v", err)
	}
	var refused *idempotency.AdminError
	if err := <-released; !errors.As(err, &refused) {
		t.Errorf("the person is told %v", err)
	}
	if rec := met(t, store, rival(c)); rec.State != idempotency.Completed || rec.Attempt != c.Attempt {
		t.Errorf("the next one meets %+v", rec)
	}
	wantRows(t, pool, "after both", "released-late")
}

// Whoever has the key is replaced in each way there is, and then tries each way there is to get through.
func TestAnOwnerThatWasReplacedGetsThroughInNoWay(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	pool := db.Pool()
	migrated(t, pool)
	store := pgstore.New(pool)
	n := 0
	for how, replaced := range map[string]func(c idempotency.Claim) idempotency.Lease{
		"released by a person, and taken": func(c idempotency.Claim) idempotency.Lease {
			if err := desk(t, store).Release(t.Context(), c.ID, meant); err != nil {
				t.Fatal(err)
			}
			return lease(t, store, rival(c))
		},
		"released, taken and failed again": func(c idempotency.Claim) idempotency.Lease {
			if err := desk(t, store).Release(t.Context(), c.ID, meant); err != nil {
				t.Fatal(err)
			}
			if err := lease(t, store, rival(c)).Release(t.Context()); err != nil {
				t.Fatal(err)
			}
			return nil
		},
		"purged, and taken for another payload": func(c idempotency.Claim) idempotency.Lease {
			exec(t, pool, `UPDATE idempotency_records SET expires_at = clock_timestamp() - interval '1 hour', lease_until = clock_timestamp() - interval '1 hour' WHERE id = $1`, [16]byte(c.ID))
			if done, err := store.Purge(t.Context(), idempotency.PurgeBatch{Limit: 10}); err != nil || done.Removed != 1 {
				t.Fatal(done, err)
			}
			return lease(t, store, otherPayload(c))
		},
		"released, erased as a failed record, and taken": func(c idempotency.Claim) idempotency.Lease {
			if err := desk(t, store).Release(t.Context(), c.ID, meant); err != nil {
				t.Fatal(err)
			}
			if err := desk(t, store).Erase(t.Context(), c.ID, meant); err != nil {
				t.Fatal(err)
			}
			return lease(t, store, rival(c))
		},
	} {
		for way, tries := range ways {
			what := how + ": " + way
			n++
			c := lent(fmt.Sprint("replaced-", n))
			old := lease(t, store, c)
			next := replaced(c)
			before := whole(t, pool, c)
			if err := tries(t.Context(), old, pool); !isLost(err) {
				t.Errorf("%s gives %v", what, err)
			}
			if after := whole(t, pool, c); after != before {
				t.Errorf("%s has changed the record from\n%s to\n%s", what, before, after)
			}
			if next == nil {
				next = lease(t, store, rival(c))
			}
			delivers(t, next, pool, what)
			old.Rollback(t.Context())
			wantRows(t, pool, what, what)
			exec(t, pool, `DELETE FROM notes`)
		}
	}
}

func TestAPurgeInTheMiddleOfABusinessTransactionTakesNothingFromItsOwner(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	migrated(t, pool)
	store := pgstore.NewWithConfig(pool, pgstore.Config{LockTimeout: 20 * time.Millisecond})
	c := lent("purged-in-the-middle")
	l := lease(t, store, c)
	// Retention and lease are over long before the handler is: everybody else has a right to the key.
	exec(t, pool, `UPDATE idempotency_records SET expires_at = clock_timestamp() - interval '1 hour', lease_until = clock_timestamp() - interval '1 hour'`)
	if err := pgstore.InTx(l.Context(t.Context()), pool, inserting(pool, "first")); err != nil {
		t.Fatal(err)
	}
	within, cancel := context.WithTimeout(t.Context(), 10*time.Second) // a purge that waits for its owner would wait for good
	defer cancel()
	if done, err := store.Purge(within, idempotency.PurgeBatch{Limit: 10}); err != nil || done.Removed != 0 {
		t.Errorf("the purge has done %+v, %v", done, err)
	}
	if l, rec, err := store.Lease(t.Context(), otherPayload(c)); !errors.Is(err, idempotency.ErrBusy) {
		t.Errorf("another payload got a lease %t, %+v, %v", l != nil, rec, err)
	}
	if err := l.Complete(t.Context(), sold); err != nil {
		t.Errorf("the owner's Complete: %v", err)
	}
	wantRows(t, pool, "at the end", "first")
	if s := state(t, pool, c); s != "completed" {
		t.Errorf("the record is %q", s)
	}
}

// What an old owner has sent arrives when the key is somebody else's.
func TestAPacketOfAnOldOwnerThatArrivesInTheNextOnesTimeDoesNothing(t *testing.T) {
	t.Parallel()
	var (
		isBurn = pgtest.Contains("SET state = 'failed', attempt = $7")
		isLock = pgtest.Contains("set_config('lock_timeout', before, true) FROM held")
	)
	for _, packet := range []struct {
		name  string
		match func(string) bool
		send  func(ctx context.Context, l idempotency.Lease, pool *pgxpool.Pool) error
	}{
		{"renewal", isRenew, ways["Renew"]},
		{"release", isBurn, ways["Release"]},
		{"lock", isLock, ways["InTx"]},
		{"completion", isDone, ways["Complete"]},
	} {
		for _, meanwhile := range []struct {
			name string
			next func(store idempotency.Store, pool *pgxpool.Pool, c idempotency.Claim) idempotency.Lease
		}{
			{"a takeover", func(store idempotency.Store, pool *pgxpool.Pool, c idempotency.Claim) idempotency.Lease {
				lapse(t, pool)
				return lease(t, store, rival(c))
			}},
			{"a new life for another payload", func(store idempotency.Store, pool *pgxpool.Pool, c idempotency.Claim) idempotency.Lease {
				exec(t, pool, `UPDATE idempotency_records SET expires_at = clock_timestamp() - interval '1 hour', lease_until = clock_timestamp() - interval '1 hour'`)
				return lease(t, store, otherPayload(c))
			}},
			{"a takeover that has completed", func(store idempotency.Store, pool *pgxpool.Pool, c idempotency.Claim) idempotency.Lease {
				lapse(t, pool)
				l := lease(t, store, rival(c))
				if err := l.Complete(t.Context(), sold); err != nil {
					t.Error(err)
				}
				return nil
			}},
			{"a takeover that has failed", func(store idempotency.Store, pool *pgxpool.Pool, c idempotency.Claim) idempotency.Lease {
				lapse(t, pool)
				if err := lease(t, store, rival(c)).Release(t.Context()); err != nil {
					t.Error(err)
				}
				return nil
			}},
		} {
			t.Run(packet.name+" after "+meanwhile.name, func(t *testing.T) {
				t.Parallel()
				db := pgtest.Open(t)
				behind := db.Pool()
				migrated(t, behind)
				proxy := db.Proxy()
				pool := pgtest.NewPool(t, proxy.PoolConfig())
				c := lent("late-packet")
				old := lease(t, pgstore.New(pool), c)
				arrive := make(chan struct{})
				fault := proxy.Arm(pgtest.Fault{Match: packet.match, Action: pgtest.Delay, Release: arrive})
				if err := packet.send(t.Context(), old, pool); err == nil || isLost(err) {
					t.Fatalf("the old owner is told %v", err)
				}
				next := meanwhile.next(pgstore.New(behind), behind, c)
				before := whole(t, behind, c)
				close(arrive)
				<-fault.Done()
				if after := whole(t, behind, c); after != before {
					t.Errorf("the packet has changed the record from\n%s to\n%s", before, after)
				}
				want := []string(nil)
				if next != nil {
					delivers(t, next, behind, "next")
					want = []string{"next"}
				}
				wantRows(t, behind, "at the end", want...)
				old.Rollback(t.Context())
			})
		}
	}
}

// A claim carries the token of its attempt, so one that was lost, was made again and arrives late can bring a token back that was
// burnt meanwhile. The record is then in progress for an attempt that is over, until its lease is; nothing is done twice.
func TestALostTakeoverThatArrivesAfterItsAttemptHasEndedMakesNoSecondOrder(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(store idempotency.Store, l idempotency.Lease, c idempotency.Claim) error{
		"failed": func(_ idempotency.Store, l idempotency.Lease, _ idempotency.Claim) error {
			return l.Release(t.Context())
		},
		"released by a person": func(s idempotency.Store, _ idempotency.Lease, c idempotency.Claim) error {
			return desk(t, s).Release(t.Context(), c.ID, meant)
		},
	} {
		for _, taken := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, and taken by the next one %t", name, taken), func(t *testing.T) {
				t.Parallel()
				db := pgtest.Open(t)
				behind := db.Pool()
				migrated(t, behind)
				proxy := db.Proxy()
				pool := pgtest.NewPool(t, proxy.PoolConfig())
				store, beside := pgstore.New(pool), pgstore.New(behind)
				c := lent("late-takeover")
				lease(t, beside, rival(c))
				lapse(t, behind)
				arrive := make(chan struct{})
				fault := proxy.Arm(pgtest.Fault{Match: isTake, Action: pgtest.Delay, Release: arrive})
				if _, _, err := store.Lease(t.Context(), c); !errors.Is(err, idempotency.ErrCommitUnknown) {
					t.Fatalf("the first try gives %v", err)
				}
				l := lease(t, store, c)
				if err := end(beside, l, c); err != nil {
					t.Fatal(err)
				}
				var next idempotency.Lease
				if taken {
					next = lease(t, beside, rival(c))
				}
				close(arrive)
				<-fault.Done()
				// Whatever the old owner gets through, it and the record agree, and the next one does not come to another order.
				err := pgstore.InTx(l.Context(t.Context()), pool, inserting(pool, "old"))
				if err == nil {
					err = l.Complete(t.Context(), sold)
				}
				switch through := err == nil; {
				case through && (taken || name == "failed"):
					t.Error("the old owner got through")
				case through:
					if rec := met(t, beside, rival(c)); rec.State != idempotency.Completed || rec.Attempt != c.Attempt {
						t.Errorf("the next one meets %+v", rec)
					}
					wantRows(t, behind, "at the end", "old")
					return
				case !taken:
					lapse(t, behind)
					next = lease(t, beside, rival(c))
				}
				delivers(t, next, behind, "next")
				l.Rollback(t.Context())
				wantRows(t, behind, "at the end", "next")
			})
		}
	}
}

// Through its own transaction a handler reaches its own record as well.
func TestAHandlerThatLaysHandsOnItsOwnRecordCommitsNothing(t *testing.T) {
	t.Parallel()
	for name, sql := range map[string]string{
		"removes it":                `DELETE FROM idempotency_records`,
		"completes it by hand":      `UPDATE idempotency_records SET state = 'completed', outcome = 0, result = '"made up"', result_type = 'result/1'`,
		"fails it by hand":          `UPDATE idempotency_records SET state = 'failed'`,
		"gives it to somebody else": `UPDATE idempotency_records SET attempt = gen_random_uuid()`,
		"moves it to another key":   `UPDATE idempotency_records SET key = 'another-key'`,
		"moves it to another id":    `UPDATE idempotency_records SET id = gen_random_uuid()`,
	} {
		pool := pgtest.Pool(t)
		migrated(t, pool)
		once, before := true, ""
		b := selling(t, pgstore.New(pool), func(ctx context.Context, c sell) (string, error) {
			if once {
				before = whole(t, pool, storedClaim(t, pool))
			}
			return "sold", pgstore.InTx(ctx, pool, func(ctx context.Context) error {
				if err := inserting(pool, c.Text)(ctx); err != nil || !once {
					return err
				}
				_, err := pgstore.DB(ctx, pool).Exec(ctx, sql)
				return err
			})
		})
		ctx, _ := asked(t, t.Context(), "hands-on-it")
		if got, err := bus.Send(ctx, b, sell{"x"}); err == nil {
			t.Errorf("%s: the command succeeds with %q", name, got)
		}
		wantRows(t, pool, name)
		if after := whole(t, pool, storedClaim(t, pool)); after != before {
			t.Errorf("%s: the record was\n%s and is\n%s", name, before, after)
		}
		once = false
		lapse(t, pool)
		ctx, req := asked(t, t.Context(), "hands-on-it")
		if got, err := bus.Send(ctx, b, sell{"x"}); err != nil || got != "sold" || !req.Outcome().TookOver {
			t.Errorf("%s: the next one gets %q, %v, %+v", name, got, err, req.Outcome())
		}
		wantRows(t, pool, name, "x")
	}
}

// storedClaim is a claim that names the only record.
func storedClaim(t testing.TB, pool *pgxpool.Pool) (c idempotency.Claim) {
	t.Helper()
	if err := pool.QueryRow(context.Background(), `SELECT id FROM idempotency_records`).Scan((*[16]byte)(&c.ID)); err != nil {
		t.Fatal(err)
	}
	return c
}

// Whatever a handler sets or sends in its transaction: success is said exactly where rows and outcome are there, and in the end
// there is one order, on the very connection that the handler has changed.
func TestWhateverAHandlerSetsInItsTransactionTheAnswerTheRecordAndTheRowsAgree(t *testing.T) {
	t.Parallel()
	for sql, succeeds := range map[string]bool{
		`SET LOCAL lock_timeout = 0`:                                 true,
		`SET SESSION lock_timeout = 0`:                               true,
		`SET LOCAL search_path = pg_catalog`:                         false,
		`SET LOCAL TimeZone = 'Asia/Kolkata'`:                        true,
		`SET LOCAL DateStyle = 'German'`:                             true,
		`SET LOCAL IntervalStyle = 'iso_8601'`:                       true,
		`SET SESSION TimeZone = 'Asia/Kolkata'`:                      true,
		`SET TRANSACTION READ ONLY`:                                  false,
		`SET LOCAL ROLE pg_monitor`:                                  false,
		`SET LOCAL default_transaction_isolation = 'serializable'`:   true,
		`SET SESSION default_transaction_isolation = 'serializable'`: true,
		`SET LOCAL session_replication_role = 'replica'`:             true,
		`SET CONSTRAINTS ALL DEFERRED`:                               true,
		`SET LOCAL row_security = off`:                               true,
		`DEALLOCATE ALL`:                                             false,
		`DISCARD PLANS`:                                              true,
		`DISCARD ALL`:                                                false,
		`LISTEN nobody`:                                              true,
		`SAVEPOINT left_open`:                                        true,
		`PREPARE TRANSACTION 'for later'`:                            false,
		`LOCK TABLE idempotency_records IN ACCESS EXCLUSIVE MODE`:    true,
		`ROLLBACK AND CHAIN`:                                         false,
		`SELECT pg_terminate_backend(pg_backend_pid())`:              false,
		`SELECT pg_cancel_backend(pg_backend_pid())`:                 false,
		`DO 'BEGIN COMMIT; END'`:                                     false,
		`CREATE TEMP TABLE idempotency_records (LIKE idempotency_records INCLUDING ALL)`: false,
	} {
		t.Run(sql, func(t *testing.T) {
			t.Parallel()
			db := pgtest.Open(t)
			cfg := db.PoolConfig()
			cfg.MaxConns = 1
			pool := pgtest.NewPool(t, cfg)
			behind := db.Pool()
			migrated(t, behind)
			hostile := false
			b := selling(t, pgstore.New(pool), func(ctx context.Context, c sell) (string, error) {
				return "sold", pgstore.InTx(ctx, pool, func(ctx context.Context) error {
					err := inserting(pool, c.Text)(ctx)
					if err == nil && hostile {
						_, _ = pgstore.DB(ctx, pool).Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol) // and does not care
					}
					return err
				})
			})
			// The connection has prepared all its statements before.
			ctx, _ := asked(t, t.Context(), "warm-up-1")
			if _, err := bus.Send(ctx, b, sell{"warm"}); err != nil {
				t.Fatal(err)
			}
			exec(t, behind, `DELETE FROM idempotency_records`)
			exec(t, behind, `DELETE FROM notes`)
			hostile = true
			ctx, _ = asked(t, t.Context(), "whatever-is-set")
			got, err := bus.Send(ctx, b, sell{"x"})
			completed, rows := state(t, behind, storedClaim(t, behind)) == "completed", count(t, behind, "notes")
			if success := err == nil && got == "sold"; success != succeeds || completed != success || rows != map[bool]int{true: 1}[success] {
				t.Errorf("the caller is told %q, %v; the record is completed: %t; %d rows; want success %t", got, err, completed, rows, succeeds)
			}
			hostile = false
			// A connection whose prepared statements have gone refuses each of them once, and is whole again then.
			done := 0
			for tries := 0; done < 2 && tries < 12; tries++ {
				lapse(t, behind)
				ctx, _ = asked(t, t.Context(), "whatever-is-set")
				got, err := bus.Send(ctx, b, sell{"x"})
				if err == nil && got == "sold" {
					done++
				}
				if completed, rows := state(t, behind, storedClaim(t, behind)) == "completed", count(t, behind, "notes"); completed != (rows == 1) || err == nil && !completed {
					t.Errorf("afterwards the caller is told %q, %v; the record is completed: %t; %d rows", got, err, completed, rows)
				}
			}
			if done < 2 {
				t.Error("the command does not get through any more")
			}
			wantRows(t, behind, "at the end", "x")
		})
	}
}

// A handler gives the lock up by a way that leaves it in a transaction, and is taken over in the gap.
func TestAnOwnerThatLetsGoOfItsLockAndIsTakenOverInTheGapCommitsNothing(t *testing.T) {
	t.Parallel()
	for name, fails := range map[string]bool{"and succeeds": false, "and fails": true} {
		db := pgtest.Open(t)
		pool := db.Pool()
		migrated(t, pool)
		store := pgstore.New(pool)
		note := noting(pool)
		other := selling(t, store, note)
		b := selling(t, store, func(ctx context.Context, c sell) (string, error) {
			lapse(t, pool)
			return "sold by the first", pgstore.InTx(ctx, pool, func(ctx context.Context) error {
				if _, err := pgstore.DB(ctx, pool).Exec(ctx, `ROLLBACK AND CHAIN`); err != nil {
					return err
				}
				second, _ := asked(t, t.Context(), "in-the-gap")
				if got, err := bus.Send(second, other, c); err != nil || got != "sold x" {
					t.Errorf("the second one gets %q, %v", got, err)
				}
				if _, err := pgstore.DB(ctx, pool).Exec(ctx, `INSERT INTO notes VALUES ('of the first')`); err != nil {
					return err
				}
				if fails {
					return errors.New("no more paper")
				}
				return nil
			})
		})
		ctx, _ := asked(t, t.Context(), "in-the-gap")
		if got, err := bus.Send(ctx, b, sell{"x"}); err == nil && got != "sold x" {
			t.Errorf("%s: the first one gets %q", name, got)
		}
		wantRows(t, pool, name, "x")
	}
}

// A trigger of somebody's swallows the change that the guard is to find.
func TestATriggerThatSwallowsTheCompletionLetsNoRowsThrough(t *testing.T) {
	t.Parallel()
	for _, gives := range []string{"NULL", "OLD"} {
		pool := pgtest.Pool(t)
		migrated(t, pool)
		store := pgstore.New(pool)
		c := lent("swallowed-1")
		l, _ := opened(t, store, pool, c)
		exec(t, pool, `CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN `+gives+`; END $$`)
		if _, err := pgstore.DB(l.Context(t.Context()), pool).Exec(t.Context(), `CREATE TRIGGER swallows BEFORE UPDATE ON idempotency_records FOR EACH ROW
			WHEN (NEW.state = 'completed') EXECUTE FUNCTION swallow()`); err != nil {
			t.Fatal(err)
		}
		if err := l.Complete(t.Context(), sold); !errors.Is(err, idempotency.ErrLost) {
			t.Errorf("a trigger that gives %s: Complete says %v, and the record is %s", gives, err, state(t, pool, c))
		}
		wantRows(t, pool, "a trigger that gives "+gives)
	}
}

// persistent is sell with three attempts and no patience.
type persistent struct {
	Text string `json:"text"`
}

func (persistent) CommandName() bus.Name[string] { return "test.persistent" }
func (persistent) Idempotency() idempotency.Policy {
	return idempotency.Policy{Mode: idempotency.Leased, MaxAttempts: 3, Wait: -1}
}

func TestSixteenWhoMeetTheLastAttemptOfAKeyAtOnceMakeOneAndNotOneMore(t *testing.T) {
	t.Parallel()
	db, pools := twoPools(t, "")
	var runs atomic.Int64
	var sends [2]bus.Handler[persistent, string]
	for i := range sends {
		engine, err := idempotency.New(idempotency.Config{Store: pgstore.New(pools[i])})
		if err != nil {
			t.Fatal(err)
		}
		claimed, _, err := idempotency.Stage(engine, func(context.Context, persistent) (string, error) {
			runs.Add(1)
			return "", errors.New("no more paper")
		})
		if err != nil {
			t.Fatal(err)
		}
		inv := bus.Invocation{Name: "test.persistent", Idempotent: true}
		b, err := bus.New(bus.Serve[persistent](bus.Log(bus.Validate(claimed, inv, nil, nil), inv, nil, nil)))
		if err != nil {
			t.Fatal(err)
		}
		sends[i] = func(ctx context.Context, c persistent) (string, error) { return bus.Send(ctx, b, c) }
	}
	for made, want := range map[int]int64{2: 1, 3: 0, 4: 0} { // attempts that were made before: the third one is the last
		for _, died := range []bool{false, true} {
			key := fmt.Sprintf("last-attempt-%d-%t", made, died)
			ctx, _ := asked(t, t.Context(), key)
			if _, err := sends[0](ctx, persistent{"x"}); err == nil {
				t.Fatal("the first attempt has not failed")
			}
			exec(t, db.Pool(), `UPDATE idempotency_records SET attempts = $2, lease_until = clock_timestamp() - interval '1 second',
				state = CASE WHEN $3 THEN 'in_progress' ELSE state END WHERE key = $1`, key, made, died)
			runs.Store(0)
			together(16, func(i int) {
				ctx, _ := asked(t, t.Context(), key)
				if _, err := sends[i%2](ctx, persistent{"x"}); err == nil {
					t.Error("an attempt has succeeded")
				}
			})
			if got := runs.Load(); got != want {
				t.Errorf("%s: %d attempts were made, want %d", key, got, want)
			}
			var exhausted *idempotency.AttemptsError
			ctx, _ = asked(t, t.Context(), key)
			if _, err := sends[1](ctx, persistent{"x"}); !errors.As(err, &exhausted) || exhausted.Attempts != 3 {
				t.Errorf("%s: the next one is told %v", key, err)
			}
		}
	}
}

// lateFree is a store in which something happens between a person's look and the change.
type lateFree struct {
	idempotency.Store
	before func()
}

func (s lateFree) Free(ctx context.Context, id idempotency.ID, seen idempotency.AttemptID) (bool, error) {
	s.before()
	return s.Store.Free(ctx, id, seen)
}

// A person sees a dead lease. Before the key is freed its owner has renewed it, or somebody else has it.
func TestAKeyThatComesBackToLifeUnderAPersonsHandsHasOneOwner(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	migrated(t, pool)
	store := pgstore.New(pool)
	dead := idempotency.Intervention{By: meant.By, Reason: meant.Reason}

	c := lent("revived-1")
	old := lease(t, store, c)
	lapse(t, pool)
	err := desk(t, lateFree{store, func() {
		if err := old.Renew(t.Context()); err != nil {
			t.Error(err)
		}
	}}).Release(t.Context(), c.ID, dead)
	if err == nil { // it was released all the same, so its owner must not get through
		if err := pgstore.InTx(old.Context(t.Context()), pool, inserting(pool, "old")); !isLost(err) {
			t.Errorf("the released owner's InTx gives %v", err)
		}
		delivers(t, lease(t, store, rival(c)), pool, "next")
		wantRows(t, pool, "revived", "next")
	} else {
		delivers(t, old, pool, "next")
	}

	c = lent("revived-2")
	lease(t, store, c)
	lapse(t, pool)
	var next idempotency.Lease
	var refused *idempotency.AdminError
	if err := desk(t, lateFree{store, func() { next = lease(t, store, rival(c)) }}).Release(t.Context(), c.ID, dead); !errors.As(err, &refused) {
		t.Errorf("a person who frees what another owner has taken is told %v", err)
	}
	delivers(t, next, pool, "owner")
	wantRows(t, pool, "taken", "next", "owner")
}

// The record of the winner has been erased when the loser comes to read it.
func TestALateOwnerWhoseWinnersOutcomeWasErasedIsToldThatTheKeyIsUsedUp(t *testing.T) {
	t.Parallel()
	for _, inTx := range []bool{true, false} {
		pool := pgtest.Pool(t)
		migrated(t, pool)
		store := pgstore.New(pool)
		other := selling(t, store, noting(pool))
		b := selling(t, store, func(ctx context.Context, c sell) (string, error) {
			lapse(t, pool)
			second, _ := asked(t, t.Context(), "erased-winner")
			if _, err := bus.Send(second, other, c); err != nil {
				t.Error(err)
			}
			if err := desk(t, store).Erase(t.Context(), storedClaim(t, pool).ID, meant); err != nil {
				t.Error(err)
			}
			if !inTx {
				return "mine", nil
			}
			return "mine", pgstore.InTx(ctx, pool, inserting(pool, "mine"))
		})
		var expired *idempotency.ExpiredError
		for range 2 {
			ctx, _ := asked(t, t.Context(), "erased-winner")
			if got, err := bus.Send(ctx, b, sell{"x"}); !errors.As(err, &expired) {
				t.Errorf("in a transaction %t: got %q, %v", inTx, got, err)
			}
		}
		wantRows(t, pool, "at the end", "x")
	}
}

type modes interface{ mode() idempotency.Mode }
type (
	asLeased struct{}
	asAtomic struct{}
)

func (asLeased) mode() idempotency.Mode { return idempotency.Leased }
func (asAtomic) mode() idempotency.Mode { return idempotency.Atomic }

// deployed is a command whose mode changes with a deploy.
type deployed[M modes] struct {
	Text string `json:"text"`
}

func (deployed[M]) CommandName() bus.Name[string] { return "test.deployed" }
func (deployed[M]) Idempotency() idempotency.Policy {
	var m M
	return idempotency.Policy{Mode: m.mode()}
}

func deploy[M modes](t testing.TB, store idempotency.Store, handler bus.Handler[deployed[M], string]) func(key string) (string, error) {
	t.Helper()
	engine, err := idempotency.New(idempotency.Config{Store: store})
	if err != nil {
		t.Fatal(err)
	}
	claimed, _, err := idempotency.Stage(engine, handler)
	if err != nil {
		t.Fatal(err)
	}
	inv := bus.Invocation{Name: "test.deployed", Idempotent: true}
	b, err := bus.New(bus.Serve[deployed[M]](bus.Log(bus.Validate(claimed, inv, nil, nil), inv, nil, nil)))
	if err != nil {
		t.Fatal(err)
	}
	return func(key string) (string, error) {
		ctx, _ := asked(t, t.Context(), key)
		return bus.Send(ctx, b, deployed[M]{"x"})
	}
}

// Half of the processes have the new release, in which the command is in the other mode.
func TestAnIntentThatIsLeasedHereAndAtomicThereIsDoneOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	pool := db.Pool()
	migrated(t, pool)
	here, there := pgstore.New(pool), pgstore.NewWithConfig(pool, pgstore.Config{NoHint: true})
	quick := deploy(t, here, func(ctx context.Context, c deployed[asLeased]) (string, error) {
		return "leased", pgstore.InTx(ctx, pool, inserting(pool, "leased"))
	})
	atomically := func(ctx context.Context, c deployed[asAtomic]) (string, error) {
		return "atomic", inserting(pool, "atomic")(ctx)
	}
	// The Leased owner is in its transaction, with its lease and its retention over, when the Atomic one comes.
	var busy *idempotency.InProgressError
	late := deploy(t, there, atomically)
	slow := deploy(t, here, func(ctx context.Context, c deployed[asLeased]) (string, error) {
		lapse(t, pool)
		return "leased", pgstore.InTx(ctx, pool, func(ctx context.Context) error {
			if got, err := late("leased-first"); !errors.As(err, &busy) {
				t.Errorf("an Atomic dispatch beside the owner's transaction gets %q, %v", got, err)
			}
			return inserting(pool, "leased")(ctx)
		})
	})
	for _, send := range []func(string) (string, error){slow, late, quick} {
		if got, err := send("leased-first"); err != nil || got != "leased" {
			t.Errorf("got %q, %v", got, err)
		}
	}
	wantRows(t, pool, "Leased first", "leased")
	exec(t, pool, `DELETE FROM notes`)
	// The Atomic one has begun when there was no record, and the Leased one claims, works and completes beside it.
	raced := deploy(t, there, func(ctx context.Context, c deployed[asAtomic]) (string, error) {
		if got, err := quick("atomic-first"); err != nil || got != "leased" {
			t.Errorf("the Leased one gets %q, %v", got, err)
		}
		return atomically(ctx, c)
	})
	for _, send := range []func(string) (string, error){raced, late, quick} {
		if got, err := send("atomic-first"); err != nil || got != "leased" {
			t.Errorf("got %q, %v", got, err)
		}
	}
	wantRows(t, pool, "Atomic first", "leased")
}

func TestAnOwnerThatIsTakenOverWhileItWaitsForTheOnlyConnectionIsLost(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	behind := db.Pool()
	migrated(t, behind)
	cfg := db.PoolConfig()
	cfg.MaxConns = 1
	pool := pgtest.NewPool(t, cfg)
	store := pgstore.New(pool)
	c := lent("no-connection")
	l := lease(t, store, c)
	only, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- pgstore.InTx(l.Context(t.Context()), pool, inserting(pool, "old")) }()
	lapse(t, behind)
	next := lease(t, pgstore.New(behind), rival(c))
	only.Release()
	if err := <-ended; !errors.Is(err, idempotency.ErrLeaseLost) {
		t.Errorf("InTx gives %v", err)
	}
	delivers(t, next, behind, "next")
	wantRows(t, behind, "at the end", "next")
}

// The takeover is not committed yet when the old owner asks for the record's lock.
func TestAnOwnerWhoseLockWaitsForATakeoverUnderWayIsLostAtEveryLevel(t *testing.T) {
	t.Parallel()
	for _, level := range []idempotency.Isolation{idempotency.ReadCommitted, idempotency.RepeatableRead, idempotency.Serializable} {
		for _, commits := range []bool{true, false} {
			db := pgtest.Open(t)
			pool := db.Pool()
			migrated(t, pool)
			store := pgstore.NewWithConfig(pool, pgstore.Config{LockTimeout: time.Minute})
			c := lent("under-way-1")
			c.Isolation = level
			l := lease(t, store, c)
			tx, err := pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Exec(t.Context(), `UPDATE idempotency_records SET attempt = gen_random_uuid(), attempts = attempts + 1, fence = fence + 1`); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- pgstore.InTx(l.Context(t.Context()), pool, inserting(pool, "old")) }()
			blocked(t, db, 1)
			if commits {
				err = tx.Commit(t.Context())
			} else {
				err = tx.Rollback(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := <-ended; commits != errors.Is(err, idempotency.ErrLeaseLost) || !commits && err != nil {
				t.Errorf("%v: the takeover was committed: %t; InTx gives %v", level, commits, err)
			}
			if !commits {
				if err := l.Complete(t.Context(), sold); err != nil {
					t.Error(err)
				}
				wantRows(t, pool, "the takeover was rolled back", "old")
				continue
			}
			l.Rollback(t.Context())
			wantRows(t, pool, "the takeover was committed")
		}
	}
}

// What a first try has left behind is still at work when the same dispatch makes its second one.
func TestAGoroutineOfATryThatWasMadeAgainReachesNothingOfTheNextTry(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	migrated(t, pool)
	var left context.Context
	var handle pgstore.DBTX
	b := selling(t, pgstore.New(pool), func(ctx context.Context, c sell) (string, error) {
		err := pgstore.InTx(ctx, pool, func(ctx context.Context) error {
			if left == nil {
				handle = pgstore.DB(ctx, pool)
				return inserting(pool, "first try")(ctx)
			}
			if err := pgstore.InTx(left, pool, inserting(pool, "left behind")); !errors.Is(err, pgstore.ErrRevoked) {
				t.Errorf("InTx of the first try gives %v", err)
			}
			for _, db := range []pgstore.DBTX{handle, pgstore.DB(left, pool)} {
				if _, err := db.Exec(ctx, `INSERT INTO notes VALUES ('left behind')`); !errors.Is(err, pgstore.ErrRevoked) {
					t.Errorf("a statement of the first try gives %v", err)
				}
			}
			if key, err := idempotency.DownstreamKey(left, "charge"); err == nil {
				t.Errorf("the first try still gets the key %s", key)
			}
			return inserting(pool, "second try")(ctx)
		})
		if left == nil {
			left = ctx
			return "", &pgconn.PgError{Code: "40001"}
		}
		return "sold", err
	})
	ctx, _ := asked(t, t.Context(), "two-tries-1")
	if got, err := bus.Send(ctx, b, sell{"x"}); err != nil || got != "sold" {
		t.Errorf("got %q, %v", got, err)
	}
	wantRows(t, pool, "at the end", "second try")
}

func TestAHandlerThatPanicsInADeferredFunctionAfterItsInTxHasDoneNothing(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	migrated(t, pool)
	panics := true
	b := selling(t, pgstore.New(pool), func(ctx context.Context, c sell) (string, error) {
		defer func() {
			if panics {
				panic("while it cleans up")
			}
		}()
		return "sold", pgstore.InTx(ctx, pool, inserting(pool, c.Text))
	})
	send := func() (got string, err error) {
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("panic: %v", p)
			}
		}()
		ctx, _ := asked(t, t.Context(), "late-panic")
		return bus.Send(ctx, b, sell{"x"})
	}
	if got, err := send(); err == nil {
		t.Errorf("got %q", got)
	}
	wantRows(t, pool, "after the panic")
	if s := state(t, pool, storedClaim(t, pool)); s != "failed" {
		t.Errorf("the record is %s", s)
	}
	panics = false
	if got, err := send(); err != nil || got != "sold" {
		t.Errorf("got %q, %v", got, err)
	}
	wantRows(t, pool, "at the end", "x")
}

// Somebody's session has a table of the same name in front of ours. Where Config.Schema says which one is meant, that does
// nothing; the control shows what it does otherwise.
func TestATableThatHidesTheRecordsOfASessionMakesNoSecondOwnerWhereTheSchemaIsSaid(t *testing.T) {
	t.Parallel()
	for _, said := range []bool{true, false} {
		db := pgtest.Open(t)
		behind := db.Pool()
		migrated(t, behind)
		cfg := db.PoolConfig()
		cfg.MaxConns = 1
		pool := pgtest.NewPool(t, cfg)
		var settings pgstore.Config
		if said {
			settings.Schema = db.Schema()
		}
		store := pgstore.NewWithConfig(pool, settings)
		c := lent("hidden-1")
		l, _ := opened(t, store, pool, c)
		// The copy has the owner's token, so that the guard finds what it looks for.
		if _, err := pgstore.DB(l.Context(t.Context()), pool).Exec(t.Context(), `CREATE TEMP TABLE idempotency_records (LIKE idempotency_records INCLUDING ALL)`); err != nil {
			t.Fatal(err)
		}
		if _, err := pgstore.DB(l.Context(t.Context()), pool).Exec(t.Context(), `INSERT INTO pg_temp.idempotency_records SELECT * FROM `+pgx.Identifier{db.Schema(), "idempotency_records"}.Sanitize()); err != nil {
			t.Fatal(err)
		}
		if err := l.Complete(t.Context(), sold); err != nil {
			t.Errorf("the schema is said: %t; Complete gives %v", said, err)
		}
		if completed := state(t, behind, c) == "completed"; completed != said {
			t.Errorf("the schema is said: %t; the record is completed: %t", said, completed)
		}
		exec(t, pool, `DELETE FROM pg_temp.idempotency_records`)
		other, _, err := store.Lease(t.Context(), rival(c)) // on the session that was changed
		if err != nil || (other == nil) != said {
			t.Errorf("the schema is said: %t; another one gets a lease: %t, %v", said, other != nil, err)
		}
	}
}
