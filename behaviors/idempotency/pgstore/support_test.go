package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore"
	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore/pgtest"
)

// plant writes n records of keys prefix-1 to prefix-n, all alike but for what set says.
func plant(t testing.TB, db *pgtest.Database, prefix string, n int, set string) {
	t.Helper()
	exec(t, db.Pool(), `INSERT INTO idempotency_records (id, tenant, client, operation, key, request_hash, hash_version, state, after_expiry, attempt,
		outcome, result, result_type, origin_request_id, created_at, completed_at, expires_at)
		SELECT gen_random_uuid(), '', 'tester', 'test.note', $1 || '-' || i, '', 1, 'completed', 'reuse', gen_random_uuid(),
		0, '\x01', 'result/1', '', now(), now(), now() - i * interval '1 minute' FROM generate_series(1, $2) AS i`, prefix, n)
	if set != "" {
		exec(t, db.Pool(), `UPDATE idempotency_records SET `+set+` WHERE key LIKE $1 || '-%'`, prefix)
	}
}

func TestAPurgeTakesTheOldestAndLeavesWhatLivesAndWhatIsLocked_T10_BR50(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	pool := db.Pool()
	migrated(t, pool)
	plant(t, db, "expired", 10, "")
	plant(t, db, "living", 10, `expires_at = now() + interval '1 hour'`)
	plant(t, db, "leased", 10, `state = 'in_progress', outcome = NULL, fence = 1, lease_until = now() + interval '1 hour'`)
	plant(t, db, "dead", 10, `state = 'in_progress', outcome = NULL, fence = 1, lease_until = now() - interval '1 hour', expires_at = expires_at + interval '30 seconds'`)
	plant(t, db, "justdead", 10, `state = 'in_progress', outcome = NULL, fence = 1, lease_until = now() - interval '10 seconds'`)
	keys := func(prefix string) int { return count(t, pool, `idempotency_records WHERE key LIKE '`+prefix+`-%'`) }
	store := pgstore.New(pool)
	locker, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer locker.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // nothing was written
	if _, err := locker.Exec(t.Context(), `SELECT FROM idempotency_records WHERE key IN ('expired-10', 'dead-10') FOR KEY SHARE`); err != nil {
		t.Fatal(err)
	}
	if _, err := locker.Exec(t.Context(), `UPDATE idempotency_records SET result = NULL WHERE key = 'expired-9'`); err != nil {
		t.Fatal(err)
	}
	purge := func(limit int, grace time.Duration, want idempotency.Purged) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // it waits for nobody
		defer cancel()
		if got, err := store.Purge(ctx, idempotency.PurgeBatch{Limit: limit, Grace: grace}); err != nil || got != want {
			t.Errorf("it has done %+v, %v; want %+v", got, err, want)
		}
	}
	// expired-10 and -9 and dead-10 are older than all that is taken, and are held.
	purge(4, 150*time.Second, idempotency.Purged{Removed: 4})
	if n := keys("expired"); n != 8 {
		t.Errorf("%d of what had expired are left, want 8", n)
	}
	if n := keys("dead"); n != 8 {
		t.Errorf("%d of the dead leases are left, want 8", n)
	}
	if n := count(t, pool, `idempotency_records WHERE key IN ('dead-9', 'expired-8', 'dead-8', 'expired-7')`); n != 0 {
		t.Errorf("%d of the oldest are left", n)
	}
	// The grace keeps what has expired for less than two and a half minutes, 1 and 2 of each, and those whose lease was over for less.
	purge(1000, 150*time.Second, idempotency.Purged{Removed: 9})
	purge(1000, 150*time.Second, idempotency.Purged{})
	if err := locker.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	purge(1000, 150*time.Second, idempotency.Purged{Removed: 3})
	purge(1000, 0, idempotency.Purged{Removed: 14})
	if living, leased, all := keys("living"), keys("leased"), count(t, pool, "idempotency_records"); living != 10 || leased != 10 || all != 20 {
		t.Errorf("%d living and %d leased of %d records are left, want 10, 10 and 20", living, leased, all)
	}
	if _, err := store.Purge(t.Context(), idempotency.PurgeBatch{}); err == nil {
		t.Error("a batch without a limit was taken")
	}
}

// Who purges until a step finds less than its limit must not stop where the two kinds have shared the limit.
func TestAPurgeThatFindsBothKindsReachesTheLimitOfOneOfThem(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	pool := db.Pool()
	migrated(t, pool)
	plant(t, db, "gone", 20, "")
	plant(t, db, "stone", 12, `after_expiry = 'tombstone'`)
	// What is failed or has died, of a command that keeps tombstones, is neither: it stands in front and is passed over.
	plant(t, db, "failed", 5, `after_expiry = 'tombstone', state = 'failed', outcome = NULL, expires_at = now() - interval '1 day'`)
	plant(t, db, "died", 5, `after_expiry = 'tombstone', state = 'in_progress', outcome = NULL, fence = 1, lease_until = now() - interval '1 day', expires_at = now() - interval '1 day'`)
	store := pgstore.New(pool)
	var total idempotency.Purged
	for more := true; more; {
		got, err := store.Purge(t.Context(), idempotency.PurgeBatch{Limit: 8, Remember: time.Hour})
		if err != nil || got.Removed > 8 || got.Buried > 8 {
			t.Fatalf("a step of at most 8 has done %+v, %v", got, err)
		}
		total.Removed += got.Removed
		total.Buried += got.Buried
		more = got.Removed == 8 || got.Buried == 8
	}
	if total != (idempotency.Purged{Removed: 20, Buried: 12}) {
		t.Errorf("the steps have done %+v before one did less than its limit of both", total)
	}
	if n := count(t, pool, "idempotency_records"); n != 22 {
		t.Errorf("%d records are left, want 22", n)
	}
}

// A purge that is under way when its context ends, or its connection, is a purge that was not made.
func TestAPurgeIsMadeWholeOrNotAtAll(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	migrated(t, db.Pool())
	plant(t, db, "expired", 10, "")
	proxy := db.Proxy()
	store := pgstore.New(pgtest.NewPool(t, proxy.PoolConfig()))
	fault := proxy.Arm(pgtest.Fault{Match: pgtest.Contains("DELETE FROM"), Action: pgtest.Drop})
	if _, err := store.Purge(t.Context(), idempotency.PurgeBatch{Limit: 5}); err == nil {
		t.Error("a purge that was lost says nothing")
	}
	<-fault.Done()
	if n := count(t, db.Pool(), "idempotency_records"); n != 10 {
		t.Errorf("%d records, want 10", n)
	}
	if got, err := store.Purge(t.Context(), idempotency.PurgeBatch{Limit: 5}); err != nil || got.Removed != 5 {
		t.Errorf("the next one: %+v, %v", got, err)
	}
}

// Purges beside claims of keys that expire at once: every execution is granted once, nobody waits for ever, and nothing fails.
func TestPurgesBesideClaimsOfKeysThatExpireAtOnce_T06_T07_T08_E19(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"", "serializable"} {
		t.Run("sessions "+level, func(t *testing.T) {
			t.Parallel()
			db := pgtest.Open(t)
			migrated(t, db.Pool())
			exec(t, db.Pool(), `CREATE TABLE effects (fence bigint PRIMARY KEY, key text NOT NULL)`)
			cfg := db.PoolConfig()
			cfg.MaxConns = 12
			if level != "" {
				cfg.ConnConfig.RuntimeParams["default_transaction_isolation"] = level
			}
			pool := pgtest.NewPool(t, cfg)
			store := pgstore.New(pool)
			ctx, stop := context.WithCancel(t.Context())
			var purgers, clients sync.WaitGroup
			var removed, granted, completed, lost atomic.Int64
			for range 3 {
				purgers.Go(func() {
					for ctx.Err() == nil {
						done, err := store.Purge(ctx, idempotency.PurgeBatch{Limit: 5})
						if err != nil && ctx.Err() == nil {
							t.Errorf("purge: %v", err)
							return
						}
						removed.Add(int64(done.Removed))
					}
				})
			}
			for i := range 8 {
				clients.Go(func() {
					for n := range 60 {
						c := lent(fmt.Sprintf("short-%d", (i+n)%6))
						c.Retention, c.Lease = time.Millisecond, 5*time.Millisecond
						l, _, err := store.Lease(t.Context(), c)
						switch {
						case err != nil:
							t.Errorf("claim: %v", err)
							return
						case l == nil:
							continue
						}
						granted.Add(1)
						err = pgstore.InTx(l.Context(t.Context()), pool, func(ctx context.Context) error {
							_, err := pgstore.DB(ctx, pool).Exec(ctx, `INSERT INTO effects VALUES ($1, $2)`, l.Grant().Fence, c.Scope.Key)
							return err
						})
						if err == nil {
							err = l.Complete(t.Context(), sold)
						}
						switch {
						case err == nil:
							completed.Add(1)
						case errors.Is(err, idempotency.ErrLeaseLost), errors.Is(err, idempotency.ErrLost):
							lost.Add(1)
							l.Rollback(t.Context())
						default:
							t.Errorf("completion: %v", err)
							l.Rollback(t.Context())
						}
					}
				})
			}
			clients.Wait()
			stop()
			purgers.Wait()
			if effects := count(t, db.Pool(), "effects"); int64(effects) != completed.Load() || granted.Load() != completed.Load()+lost.Load() {
				t.Errorf("%d grants, %d completed, %d lost, %d effects", granted.Load(), completed.Load(), lost.Load(), effects)
			}
			if removed.Load() == 0 || completed.Load() < 50 {
				t.Errorf("%d records were removed and %d completed: this shows nothing", removed.Load(), completed.Load())
			}
			t.Logf("%d grants, %d completed, %d lost, %d records removed", granted.Load(), completed.Load(), lost.Load(), removed.Load())
		})
	}
}

// What was erased is forgotten no sooner than what was not: a command that keeps tombstones keeps those of its erased records.
func TestAnErasedRecordOfACommandThatKeepsTombstonesIsKeptAsOne_T03_T15(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	migrated(t, pool)
	store := pgstore.New(pool)
	age := func(by time.Duration) {
		exec(t, pool, `UPDATE idempotency_records SET expires_at = expires_at - $1::interval`, by)
	}
	step := func(want idempotency.Purged) {
		t.Helper()
		if got, err := store.Purge(t.Context(), idempotency.PurgeBatch{Limit: 10, Remember: 1000 * time.Hour}); err != nil || got != want {
			t.Errorf("the purge has done %+v, %v; want %+v", got, err, want)
		}
	}
	erase := func(c idempotency.Claim) {
		t.Helper()
		if ok, err := store.Erase(t.Context(), c.ID, c.Attempt); err != nil || !ok {
			t.Errorf("Erase: %t, %v", ok, err)
		}
	}
	stone, reuse := lent("erased-stone"), lent("erased-reuse")
	stone.AfterExpiry = idempotency.Tombstone
	for _, c := range []idempotency.Claim{stone, reuse} {
		if err := lease(t, store, c).Complete(t.Context(), sold); err != nil {
			t.Fatal(err)
		}
		erase(c)
		erase(c) // once more changes nothing
		rec := met(t, store, rival(c))
		if rec.ResultType != "tombstone" || rec.Result != nil || rec.ExternalRef != "" || rec.Hash != c.Hash || rec.Expired {
			t.Errorf("what was erased is %+v", rec)
		}
		if found, err := store.Find(t.Context(), idempotency.Search{ID: c.ID}, 1); err != nil || len(found) != 1 || found[0].Result != nil || found[0].AfterExpiry != c.AfterExpiry {
			t.Errorf("Find gives %+v, %v", found, err)
		}
	}
	if n := count(t, pool, `idempotency_records WHERE length(result) > 0 OR external_ref IS NOT NULL`); n != 0 {
		t.Errorf("%d records still hold something", n)
	}
	step(idempotency.Purged{})
	age(73 * time.Hour)
	step(idempotency.Purged{Removed: 1, Buried: 1})
	erase(stone) // a tombstone that is buried is not kept longer for that
	step(idempotency.Purged{})
	if rec := met(t, store, rival(stone)); rec.ResultType != "tombstone" || rec.Expired {
		t.Errorf("what was erased and buried is %+v", rec)
	}
	age(1000 * time.Hour)
	step(idempotency.Purged{Removed: 1})
	lease(t, store, rival(stone))
}

func TestFindReadsWhatIsKeptForGoodAndUsesTheKeysIndexForAWholeScope(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	pool := db.Pool()
	migrated(t, pool)
	proxy := db.Proxy()
	store := pgstore.New(pgtest.NewPool(t, proxy.PoolConfig()))
	c := lent("kept-for-good")
	c.AfterExpiry = idempotency.Tombstone
	l := lease(t, store, c)
	if err := l.Complete(t.Context(), sold); err != nil {
		t.Fatal(err)
	}
	exec(t, pool, `UPDATE idempotency_records SET expires_at = clock_timestamp() - interval '1 hour'`)
	if got, err := store.Purge(t.Context(), idempotency.PurgeBatch{Limit: 1, Remember: 1<<63 - 1}); err != nil || got.Buried != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	exec(t, pool, `UPDATE idempotency_records SET expires_at = expires_at + interval '1000 years'`) // longer than a time.Duration
	plant(t, db, "other", 2000, "")
	exec(t, pool, `ANALYZE idempotency_records`)
	tenant, none := "", "nobody"
	for name, q := range map[string]idempotency.Search{
		"id":          {ID: c.ID},
		"key":         {Key: c.Scope.Key},
		"whole scope": {Key: c.Scope.Key, Tenant: &tenant, Client: &c.Scope.Client, Operation: &c.Scope.Operation},
	} {
		found, err := store.Find(t.Context(), q, 5)
		if err != nil || len(found) != 1 {
			t.Fatalf("%s: %+v, %v", name, found, err)
		}
		r := found[0]
		if r.ID != c.ID || r.Scope != c.Scope || r.Attempts != 1 || r.Fence != l.Grant().Fence || r.Expired || r.ResultType != "tombstone" || r.ExpiresAt.Year() < time.Now().Year()+1290 ||
			r.CompletedAt.IsZero() || r.LeaseUntil.IsZero() || r.LeaseLeft != 0 {
			t.Errorf("%s: %+v", name, r)
		}
	}
	if found, err := store.Find(t.Context(), idempotency.Search{ID: c.ID, Client: &none}, 5); err != nil || len(found) != 0 {
		t.Errorf("an id of another client: %+v, %v", found, err)
	}
	if _, err := store.Find(t.Context(), idempotency.Search{Client: &none}, 5); err == nil {
		t.Error("a search for everything was made")
	}
	// The statement as it was sent, with the arguments of the whole scope.
	proxy.Reset()
	if _, err := store.Find(t.Context(), idempotency.Search{Key: "other-1", Tenant: &tenant, Client: &c.Scope.Client, Operation: &c.Scope.Operation}, 5); err != nil {
		t.Fatal(err)
	}
	sent := proxy.Statements()
	if len(sent) != 1 || !strings.Contains(sent[0], "key = $1 AND id = $2") {
		t.Errorf("sent %q", sent)
	}
}

// The plans of everything that commands and purges send, as the server keeps them for prepared statements.
func TestNoStatementButASearchReadsTheWholeTable(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	pool := db.Pool()
	migrated(t, pool)
	plant(t, db, "many", 20_000, "")
	exec(t, pool, `ANALYZE idempotency_records`)
	proxy := db.Proxy()
	through := pgtest.NewPool(t, proxy.PoolConfig())
	store := pgstore.New(through)
	planner, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer planner.Release()
	if _, err := planner.Exec(t.Context(), `SET plan_cache_mode = force_generic_plan`); err != nil {
		t.Fatal(err)
	}
	explained := map[string]bool{}
	reads := func(sql string) bool {
		t.Helper()
		name := fmt.Sprintf("explained_%d", len(explained))
		explained[sql] = true
		d, err := planner.Conn().Prepare(t.Context(), name, sql)
		if err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
		execute := name
		if n := len(d.ParamOIDs); n > 0 {
			execute += "(" + strings.Repeat("NULL, ", n-1) + "NULL)"
		}
		rows, _ := planner.Query(t.Context(), `EXPLAIN EXECUTE `+execute, pgx.QueryExecModeSimpleProtocol)
		plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil || len(plan) == 0 {
			t.Fatalf("%s: %v", sql, err)
		}
		text := strings.Join(plan, "\n")
		if strings.Contains(sql, "SKIP LOCKED") && !strings.Contains(text, "Index Cond: (expires_at <= ") {
			t.Errorf("the purge reads more of the index of expiry than what has expired:\n%s", text)
		}
		return strings.Contains(text, "Seq Scan on idempotency_records")
	}
	c := lent("one-of-many")
	l := lease(t, store, c)
	met(t, store, rival(c))
	if err := l.Renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := pgstore.InTx(l.Context(t.Context()), through, func(context.Context) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if err := l.Complete(t.Context(), sold); err != nil {
		t.Fatal(err)
	}
	if err := lease(t, store, lent("another-of-many")).Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Look(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Free(t.Context(), c.ID, c.Attempt); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Erase(t.Context(), c.ID, c.Attempt); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Purge(t.Context(), idempotency.PurgeBatch{Limit: 2000, Remember: time.Hour}); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Find(t.Context(), idempotency.Search{ID: c.ID}, 1); err != nil {
		t.Fatal(err)
	}
	for _, sql := range proxy.Statements() {
		if strings.Contains(sql, "idempotency_records") && !explained[sql] && reads(sql) {
			t.Errorf("it reads the whole table:\n%s", sql)
		}
	}
	if len(explained) != 11 {
		t.Errorf("%d statements were looked at, want 11", len(explained))
	}
	proxy.Reset()
	if _, err := store.Find(t.Context(), idempotency.Search{Key: "many-1"}, 1); err != nil {
		t.Fatal(err)
	}
	if sent := proxy.Statements(); !reads(sent[0]) {
		t.Errorf("a search by key without an index for it does not read the whole table, so this shows nothing: %q", sent)
	}
}
