package pgstore_test

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore"
	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore/pgtest"
	"github.com/tekil-go/tekil/bus"
)

// lent is a Leased claim of a new attempt on a key.
func lent(key string) idempotency.Claim {
	scope := idempotency.Scope{Client: "tester", Operation: "test.note", Key: key}
	c := idempotency.Claim{
		ID: scope.ID(), Scope: scope, Hash: sha256.Sum256([]byte("a payload")), HashVersion: 1001, OriginRequestID: "request-1",
		Retention: 72 * time.Hour, Lease: 5 * time.Minute, MaxAttempts: 10,
	}
	return rival(c)
}

// rival is the same claim of another attempt.
func rival(c idempotency.Claim) idempotency.Claim {
	_, _ = rand.Read(c.Attempt[:])
	return c
}

// lease takes a key that must be free.
func lease(t testing.TB, s idempotency.Store, c idempotency.Claim) idempotency.Lease {
	t.Helper()
	l, rec, err := s.Lease(t.Context(), c)
	if err != nil || l == nil {
		t.Fatalf("the key was not given: %+v, %v", rec, err)
	}
	return l
}

// met claims a key that must not be free, and gives the record in the way.
func met(t testing.TB, s idempotency.Store, c idempotency.Claim) *idempotency.Record {
	t.Helper()
	l, rec, err := s.Lease(t.Context(), c)
	if err != nil || l != nil || rec == nil {
		t.Fatalf("got a lease %t, the record %+v and %v; want the record in the way", l != nil, rec, err)
	}
	return rec
}

// inserting is a function for InTx that writes a note.
func inserting(pool *pgxpool.Pool, note string) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := pgstore.DB(ctx, pool).Exec(ctx, `INSERT INTO notes VALUES ($1)`, note)
		return err
	}
}

// opened takes a key and writes a note in its business transaction, which stays open. It gives the handler's context.
func opened(t testing.TB, s idempotency.Store, pool *pgxpool.Pool, c idempotency.Claim) (idempotency.Lease, context.Context) {
	t.Helper()
	l := lease(t, s, c)
	ctx := l.Context(t.Context())
	if err := pgstore.InTx(ctx, pool, inserting(pool, c.Scope.Key)); err != nil {
		t.Fatal(err)
	}
	return l, ctx
}

var sold = idempotency.Completion{Result: []byte(`"sold"`), ResultType: "result/1", ExternalRef: "auth-1"}

// lapse lets all leases end.
func lapse(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	exec(t, pool, `UPDATE idempotency_records SET lease_until = clock_timestamp() - interval '1 second'`)
}

// state is what a record says of itself.
func state(t testing.TB, pool *pgxpool.Pool, c idempotency.Claim) (s string) {
	t.Helper()
	err := pool.QueryRow(t.Context(), `SELECT state FROM idempotency_records WHERE id = $1`, [16]byte(c.ID)).Scan(&s)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		t.Fatal(err)
	}
	return s
}

// blocked waits until n sessions of the test wait for a lock.
func blocked(t testing.TB, db *pgtest.Database, n int) {
	t.Helper()
	within, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for waiting := 0; waiting < n; {
		if err := db.Pool().QueryRow(within, `SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND wait_event_type = 'Lock'`, db.Schema()).Scan(&waiting); err != nil {
			t.Fatalf("%d sessions wait for a lock, want %d: %v", waiting, n, err)
		}
	}
}

// sell is a command whose handler goes outside.
type sell struct {
	Text string `json:"text"`
}

func (sell) CommandName() bus.Name[string] { return "test.sell" }
func (sell) Idempotency() idempotency.Policy {
	return idempotency.Policy{Mode: idempotency.Leased}
}

// selling puts handler behind the idempotency stage of a Leased command.
func selling(t testing.TB, store idempotency.Store, handler bus.Handler[sell, string]) *bus.Bus {
	t.Helper()
	engine, err := idempotency.New(idempotency.Config{Store: store})
	if err != nil {
		t.Fatal(err)
	}
	claimed, _, err := idempotency.Stage(engine, handler)
	if err != nil {
		t.Fatal(err)
	}
	inv := bus.Invocation{Name: "test.sell", Idempotent: true}
	b, err := bus.New(bus.Serve[sell](bus.Log(bus.Validate(claimed, inv, nil, nil), inv, nil, nil)))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// noting is a Leased handler that writes its note in the business transaction.
func noting(pool *pgxpool.Pool) bus.Handler[sell, string] {
	return func(ctx context.Context, c sell) (string, error) {
		return "sold " + c.Text, pgstore.InTx(ctx, pool, inserting(pool, c.Text))
	}
}

func TestLeasedTakesFourTurnaroundsAndAReplayOneOrTwo(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	proxy := db.Proxy()
	cfg := proxy.PoolConfig()
	cfg.MaxConns = 1
	pool := pgtest.NewPool(t, cfg)
	migrated(t, pool)
	b, other := selling(t, pgstore.New(pool), noting(pool)), selling(t, pgstore.New(pool), noting(pool))
	outside := selling(t, pgstore.New(pool), func(context.Context, sell) (string, error) { return "", nil })
	send := func(b *bus.Bus, key string) []string {
		t.Helper()
		ctx, _ := asked(t, t.Context(), key)
		proxy.Reset()
		if _, err := bus.Send(ctx, b, sell{"x"}); err != nil {
			t.Fatal(err)
		}
		return append(proxy.Statements(), fmt.Sprint(proxy.Turnarounds()))
	}
	want := func(what string, turns int, got []string) {
		t.Helper()
		if got[len(got)-1] != fmt.Sprint(turns) {
			t.Errorf("%s took %s turnarounds, want %d:\n%s", what, got[len(got)-1], turns, strings.Join(got, "\n"))
		}
	}
	for _, warm := range []*bus.Bus{b, outside} {
		send(warm, "warm-up-"+fmt.Sprintf("%p", warm))
		send(other, "warm-up-"+fmt.Sprintf("%p", warm))
		send(other, "warm-up-"+fmt.Sprintf("%p", warm))
	}
	fresh := send(b, "fresh-key")
	want("a fresh Leased command", 4, fresh)
	if n := len(fresh) - 1; n != 6 || !strings.HasPrefix(fresh[0], "INSERT INTO idempotency_records") || !strings.EqualFold(fresh[1], "begin isolation level read committed") ||
		!pgtest.IsCommit(fresh[5]) {
		t.Errorf("the claim is not one statement that commits itself, or the level is not said: %d statements\n%s", n, strings.Join(fresh, "\n"))
	}
	want("a Leased command without InTx", 2, send(outside, "nothing-written"))
	want("the replay of a key that this process has met", 1, send(b, "fresh-key"))
	replay := send(other, "fresh-key")
	want("the replay of a key that this process has not met", 2, replay)
	want("the second replay", 1, send(other, "fresh-key"))
}

// What is said about waiting and about the disk is said for one transaction and for its statements alone.
func TestSettingsOfTheSessionAreThoseOfTheHandlerAndOnlyARelaxedClaimDoesNotWaitForTheDisk_L2(t *testing.T) {
	t.Parallel()
	for _, relaxed := range []bool{false, true} {
		db := pgtest.Open(t)
		cfg := db.PoolConfig()
		cfg.MaxConns = 1
		cfg.ConnConfig.RuntimeParams["lock_timeout"] = "7s"
		pool := pgtest.NewPool(t, cfg)
		migrated(t, pool)
		// Deferred to the COMMIT, because that is what the settings are for.
		exec(t, pool, `CREATE TABLE seen (n serial, state text, fsync text)`)
		exec(t, pool, `CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS
			$$ BEGIN INSERT INTO seen (state, fsync) VALUES (TG_OP || ' ' || NEW.state, current_setting('synchronous_commit')); RETURN NULL; END $$`)
		exec(t, pool, `CREATE CONSTRAINT TRIGGER looks AFTER INSERT OR UPDATE ON idempotency_records DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION look()`)
		exec(t, pool, `SET lock_timeout = '9s'`) // a session's own setting, which RESET would not bring back
		setting := func(ctx context.Context, name string) (s string) {
			if err := pgstore.DB(ctx, pool).QueryRow(ctx, `SELECT current_setting($1)`, name).Scan(&s); err != nil {
				t.Error(err)
			}
			return s
		}
		untouched := func(ctx context.Context, when string) {
			t.Helper()
			if lock, fsync := setting(ctx, "lock_timeout"), setting(ctx, "synchronous_commit"); lock != "9s" || fsync != "on" {
				t.Errorf("relaxed %t, %s: lock_timeout is %s and synchronous_commit %s", relaxed, when, lock, fsync)
			}
		}
		store := pgstore.New(pool)
		c := lent("settings-1")
		c.Relaxed = relaxed
		l := lease(t, store, c)
		untouched(t.Context(), "after the claim")
		if err := l.Renew(t.Context()); err != nil {
			t.Fatal(err)
		}
		untouched(t.Context(), "after a renewal")
		lapse(t, pool)
		c = rival(c)
		l = lease(t, store, c)
		untouched(t.Context(), "after a takeover")
		if err := pgstore.InTx(l.Context(t.Context()), pool, func(ctx context.Context) error {
			untouched(ctx, "in the business transaction")
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if err := l.Complete(t.Context(), sold); err != nil {
			t.Fatal(err)
		}
		untouched(t.Context(), "after the completion")
		rows, _ := pool.Query(t.Context(), `SELECT state || ' ' || fsync FROM seen ORDER BY n`)
		seen, err := pgx.CollectRows(rows, pgx.RowTo[string])
		claim := map[bool]string{false: " on", true: " off"}[relaxed]
		want := []string{"INSERT in_progress" + claim, "UPDATE in_progress on", "UPDATE in_progress on", "UPDATE in_progress" + claim, "UPDATE completed on"}
		if err != nil || !slices.Equal(seen, want) {
			t.Errorf("relaxed %t: the commits were made with %q, %v; want %q", relaxed, seen, err, want)
		}
	}
}

func TestTheBusinessTransactionHasTheLevelOfThePolicy(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	migrated(t, pool)
	for isolation, want := range map[idempotency.Isolation]string{
		idempotency.ReadCommitted: "read committed", idempotency.RepeatableRead: "repeatable read", idempotency.Serializable: "serializable",
	} {
		c := lent("level-" + want)
		c.Isolation = isolation
		l := lease(t, pgstore.New(pool), c)
		var got string
		if err := pgstore.InTx(l.Context(t.Context()), pool, func(ctx context.Context) error {
			if err := pgstore.DB(ctx, pool).QueryRow(ctx, `SHOW transaction_isolation`).Scan(&got); err != nil {
				return err
			}
			return inserting(pool, want)(ctx)
		}); err != nil || got != want {
			t.Errorf("%v: the level is %s, %v", isolation, got, err)
		}
		if err := l.Complete(t.Context(), sold); err != nil {
			t.Errorf("%s: %v", want, err)
		}
	}
	if n := count(t, pool, "notes"); n != 3 {
		t.Errorf("%d rows, want 3", n)
	}
}

// forms are the states of a record from which one of many attempts may take it.
var forms = map[string]string{
	"absent":              "",
	"failed":              `state = 'failed'`,
	"dead lease":          `lease_until = clock_timestamp() - interval '1 second'`,
	"expired, completed":  `state = 'completed', outcome = 0, expires_at = clock_timestamp() - interval '1 second'`,
	"expired, dead lease": `expires_at = clock_timestamp() - interval '1 second', lease_until = clock_timestamp() - interval '1 second'`,
}

func TestFiftyAttemptsAtOnceTakeAFreeRecordOnce_L08_T06_BR09_BR45_E32(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"", "repeatable read", "serializable"} {
		t.Run("sessions "+level, func(t *testing.T) {
			t.Parallel()
			db, pools := twoPools(t, level)
			stores := [2]*pgstore.Store{pgstore.New(pools[0]), pgstore.New(pools[1])}
			for name, set := range forms {
				for round := range 3 {
					key := fmt.Sprintf("%s-%d", name, round)
					first := lent(key)
					if set != "" {
						lease(t, stores[0], first)
						exec(t, db.Pool(), `UPDATE idempotency_records SET `+set+` WHERE id = $1`, [16]byte(first.ID))
					}
					claims := make([]idempotency.Claim, 50)
					leases := make([]idempotency.Lease, len(claims))
					for i := range claims {
						claims[i] = rival(first)
					}
					var given, told atomic.Int64
					together(len(claims), func(i int) {
						l, rec, err := stores[i%2].Lease(t.Context(), claims[i])
						switch {
						case err != nil:
							t.Errorf("%s: attempt %d got %v", key, i, err)
						case l != nil:
							leases[i] = l
							given.Add(1)
						case rec.State == idempotency.InProgress && rec.LeaseLeft > 0:
							told.Add(1)
						default:
							t.Errorf("%s: attempt %d was told %+v", key, i, rec)
						}
					})
					if given.Load() != 1 || told.Load() != int64(len(claims)-1) {
						t.Errorf("%s: %d attempts got the key and %d were told that it is in progress", key, given.Load(), told.Load())
					}
					for i, l := range leases {
						if l == nil {
							continue
						}
						again := l.Grant().Attempt > 1
						if want := name == "failed" || name == "dead lease"; again != want || l.Grant().Reused != strings.HasPrefix(name, "expired") || l.Grant().TookOver != strings.HasSuffix(name, "dead lease") {
							t.Errorf("%s: the grant is %+v", key, l.Grant())
						}
						if err := pgstore.InTx(l.Context(t.Context()), pools[i%2], inserting(pools[i%2], key)); err != nil {
							t.Errorf("%s: %v", key, err)
						}
						if err := l.Complete(t.Context(), sold); err != nil {
							t.Errorf("%s: %v", key, err)
						}
					}
				}
			}
			if rows, records := count(t, db.Pool(), "notes"), count(t, db.Pool(), "idempotency_records"); rows != 3*len(forms) || records != rows {
				t.Errorf("%d rows and %d records, want %d of each", rows, records, 3*len(forms))
			}
		})
	}
}

// Sessions that are serializable by default have a whole command under a lease, and its duplicates.
func TestADefaultOfSerializableLeaksNoDatabaseErrorFromALeasedCommand_BR46(t *testing.T) {
	t.Parallel()
	db, pools := twoPools(t, "serializable")
	buses := [2]*bus.Bus{selling(t, pgstore.New(pools[0]), noting(pools[0])), selling(t, pgstore.New(pools[1]), noting(pools[1]))}
	const rounds = 5
	for round := range rounds {
		key := fmt.Sprintf("leased-round-%d", round)
		var executed atomic.Int64
		together(20, func(i int) {
			for {
				ctx, req := asked(t, t.Context(), key)
				got, err := bus.Send(ctx, buses[i%2], sell{key})
				var busy *idempotency.InProgressError
				if errors.As(err, &busy) { // told to come again, which is what it does
					continue
				}
				if err != nil || got != "sold "+key {
					t.Errorf("%s: caller %d got %q, %v", key, i, got, err)
				}
				if !req.Outcome().Replayed {
					executed.Add(1)
				}
				return
			}
		})
		if executed.Load() != 1 {
			t.Errorf("%s: executed %d times", key, executed.Load())
		}
	}
	if rows := count(t, db.Pool(), "notes"); rows != rounds {
		t.Errorf("%d rows, want %d", rows, rounds)
	}
}

// A takeover waits for the one who has locked the record to commit, and answers with what it finds then.
func TestAChallengerWaitsForAnOwnerInItsTransactionAndReplays_L10_L11(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	pool := db.Pool()
	migrated(t, pool)
	store := pgstore.NewWithConfig(pool, pgstore.Config{LockTimeout: time.Minute})
	c := lent("slow-owner")
	l := lease(t, store, c)
	lapse(t, pool)
	if err := pgstore.InTx(l.Context(t.Context()), pool, inserting(pool, "x")); err != nil {
		t.Fatal(err)
	}
	var rec *idempotency.Record
	var wg sync.WaitGroup
	wg.Go(func() { rec = met(t, store, rival(c)) })
	blocked(t, db, 1)
	if err := l.Complete(t.Context(), sold); err != nil {
		t.Errorf("the owner, whom nobody has replaced: %v", err)
	}
	wg.Wait()
	if rec == nil || rec.State != idempotency.Completed || rec.Attempt != c.Attempt || string(rec.Result) != `"sold"` {
		t.Errorf("the challenger got %+v", rec)
	}

	// And where the owner gives up, the challenger is next.
	c = lent("slow-owner-2")
	l = lease(t, store, c)
	lapse(t, pool)
	if err := pgstore.InTx(l.Context(t.Context()), pool, inserting(pool, "undone")); err != nil {
		t.Fatal(err)
	}
	var next idempotency.Lease
	wg.Go(func() { next = lease(t, store, rival(c)) })
	blocked(t, db, 1)
	l.Rollback(t.Context())
	wg.Wait()
	if g := next.Grant(); !g.TookOver || g.Attempt != 2 {
		t.Errorf("the challenger got %+v", g)
	}
	if n := count(t, pool, "notes"); n != 1 {
		t.Errorf("%d rows, want 1", n)
	}
}

func TestNothingWaitsForARecordLongerThanLockTimeout_L11_X14(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	migrated(t, pool)
	store := pgstore.NewWithConfig(pool, pgstore.Config{LockTimeout: 50 * time.Millisecond})
	c := lent("held-by-another")
	l := lease(t, store, c)
	lapse(t, pool)
	other, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Rollback(t.Context()) //nolint:errcheck // nothing was written
	if _, err := other.Exec(t.Context(), `SELECT FROM idempotency_records FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	fresh := lent("absent-and-held")
	if _, err := other.Exec(t.Context(), `INSERT INTO idempotency_records (id, tenant, client, operation, key, request_hash, hash_version, state,
		after_expiry, attempt, outcome, origin_request_id, created_at, expires_at)
		VALUES ($1, '', '', '', '', '', 1, 'completed', 'reuse', gen_random_uuid(), 0, '', now(), now())`, [16]byte(fresh.ID)); err != nil {
		t.Fatal(err)
	}
	claim := func(c idempotency.Claim) func() error {
		return func() error {
			l, rec, err := store.Lease(t.Context(), c)
			if l != nil || rec != nil {
				t.Errorf("got a lease %t, the record %+v", l != nil, rec)
			}
			return err
		}
	}
	for _, at := range []struct {
		name string
		wait func() error
	}{
		{"a takeover", claim(rival(c))},
		{"a fresh claim", claim(fresh)},
		{"the owner's InTx", func() error { return pgstore.InTx(l.Context(t.Context()), pool, inserting(pool, "undone")) }},
		{"a renewal", func() error { return l.Renew(t.Context()) }},
		{"a person's release", func() error { _, err := store.Free(t.Context(), c.ID, c.Attempt); return err }},
		{"an outcome alone", func() error { return l.Complete(t.Context(), sold) }},
		{"a refusal alone", func() error { return l.Refuse(t.Context(), sold) }},
		{"the attempt's own release", func() error { return lease(t, store, c).Release(t.Context()) }},
	} {
		begun := time.Now()
		err := at.wait()
		if took := time.Since(begun); !errors.Is(err, idempotency.ErrBusy) || took < 50*time.Millisecond || took > 10*time.Second {
			t.Errorf("%s: after %v it gave %v; want busy", at.name, took, err)
		}
		if errors.Is(err, idempotency.ErrLeaseLost) || errors.Is(err, idempotency.ErrLost) {
			t.Errorf("%s: a wait was read as a loss: %v", at.name, err)
		}
	}
	if n := pool.Stat().AcquiredConns(); n != 1 {
		t.Errorf("%d connections are held, want the other transaction's alone", n)
	}
	if err := other.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := l.Complete(t.Context(), sold); err != nil {
		t.Errorf("when the record was let go: %v", err)
	}
}

// A record that is removed between the two turns of a claim is absent, and the key is taken.
func TestARecordThatIsPurgedWhileItsKeyIsClaimedIsTakenAnew_T07_T08_E53(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	behind := db.Pool()
	migrated(t, behind)
	proxy := db.Proxy()
	pool := pgtest.NewPool(t, proxy.PoolConfig())
	store := pgstore.NewWithConfig(pool, pgstore.Config{LockTimeout: time.Minute})

	t.Run("T07 between the turns", func(t *testing.T) {
		c := lent("vanishing-1")
		lease(t, store, c)
		release := make(chan struct{})
		fault := proxy.Arm(pgtest.Fault{Match: pgtest.Contains("FOR NO KEY UPDATE"), Action: pgtest.Hold, Release: release})
		go func() {
			<-fault.Fired()
			exec(t, behind, `DELETE FROM idempotency_records`)
			close(release)
		}()
		if g := lease(t, store, rival(c)).Grant(); g.Attempt != 1 || g.Reused || g.TookOver {
			t.Errorf("the grant is %+v, want that of a fresh key", g)
		}
	})
	t.Run("T08 by a purge that has not committed yet", func(t *testing.T) {
		for _, commits := range []bool{true, false} {
			c := lent(fmt.Sprintf("vanishing-2-%t", commits))
			lease(t, store, c)
			purge, err := behind.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer purge.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // it is ended below
			if _, err := purge.Exec(t.Context(), `DELETE FROM idempotency_records WHERE id = $1`, [16]byte(c.ID)); err != nil {
				t.Fatal(err)
			}
			var l idempotency.Lease
			var rec *idempotency.Record
			var wg sync.WaitGroup
			wg.Go(func() { l, rec, err = store.Lease(t.Context(), rival(c)) })
			blocked(t, db, 1)
			end := purge.Rollback
			if commits {
				end = purge.Commit
			}
			if err := end(t.Context()); err != nil {
				t.Fatal(err)
			}
			wg.Wait()
			if err != nil || (l != nil) != commits || (rec != nil) == commits {
				t.Errorf("purge committed %t: got a lease %t, the record %+v and %v", commits, l != nil, rec, err)
			}
		}
	})
	t.Run("over and over", func(t *testing.T) {
		exec(t, behind, `CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$`)
		exec(t, behind, `CREATE TRIGGER swallows BEFORE INSERT ON idempotency_records FOR EACH ROW EXECUTE FUNCTION swallow()`)
		proxy.Reset()
		if _, _, err := store.Lease(t.Context(), lent("never-there")); !errors.Is(err, idempotency.ErrBusy) {
			t.Errorf("a key that vanishes over and over gives %v", err)
		}
		inserts := 0
		for _, s := range proxy.Statements() {
			if strings.HasPrefix(s, "INSERT INTO idempotency_records") {
				inserts++
			}
		}
		if inserts != 5 {
			t.Errorf("the claim was made %d times, want 5", inserts)
		}
	})
}

// All query modes of pgx, and a schema and names that have to be quoted.
func TestLeasedWorksInEveryQueryModeAndInAnySchema(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			db := pgtest.Open(t)
			cfg := db.PoolConfig()
			cfg.ConnConfig.DefaultQueryExecMode = mode
			pool := pgtest.NewPool(t, cfg)
			schema := db.Schema() + ` it's "odd"`
			own := pgstore.Config{Schema: schema}
			if err := pgstore.MigrateWithConfig(t.Context(), pool, own); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { exec(t, pool, `DROP SCHEMA `+pgx.Identifier{schema}.Sanitize()+` CASCADE`) })
			exec(t, pool, `CREATE TABLE notes (note text NOT NULL)`)
			store := pgstore.NewWithConfig(pool, own)
			if _, err := store.Check(t.Context()); err != nil {
				t.Fatal(err)
			}
			c := lent("any-mode-1")
			c.PriorHash = sha256.Sum256([]byte("an older one"))
			if err := lease(t, store, c).Release(t.Context()); err != nil {
				t.Fatal(err)
			}
			c = rival(c)
			c.AfterExpiry, c.Relaxed = idempotency.Tombstone, true
			l := lease(t, store, c)
			if err := l.Renew(t.Context()); err != nil {
				t.Fatal(err)
			}
			if rec := met(t, store, rival(c)); rec.LeaseLeft < 4*time.Minute || rec.LeaseLeft > 5*time.Minute || rec.Attempts != 2 || rec.Fence != l.Grant().Fence {
				t.Errorf("the record in the way is %+v", rec)
			}
			if err := pgstore.InTx(l.Context(t.Context()), pool, inserting(pool, "x")); err != nil {
				t.Fatal(err)
			}
			if err := l.Complete(t.Context(), sold); err != nil {
				t.Fatal(err)
			}
			exec(t, pool, `UPDATE `+pgx.Identifier{schema, "idempotency_records"}.Sanitize()+` SET expires_at = clock_timestamp() - interval '1 day'`)
			for _, want := range []idempotency.Purged{{Buried: 1}, {}} {
				if got, err := store.Purge(t.Context(), idempotency.PurgeBatch{Limit: 10, Grace: time.Hour, Remember: 1<<63 - 1}); err != nil || got != want {
					t.Errorf("Purge: %+v, %v; want %+v", got, err, want)
				}
			}
			found, err := store.Find(t.Context(), idempotency.Search{Key: "any-mode-1", Client: &c.Scope.Client}, 10)
			if err != nil || len(found) != 1 || found[0].ID != c.ID || found[0].Scope != c.Scope || found[0].ExpiresAt.Year() < time.Now().Year()+290 || found[0].Expired {
				t.Errorf("Find: %+v, %v", found, err)
			}
			if ok, err := store.Erase(t.Context(), c.ID, c.Attempt); err != nil || !ok {
				t.Errorf("Erase: %t, %v", ok, err)
			}
			if n := count(t, pool, "notes"); n != 1 {
				t.Errorf("%d rows, want 1", n)
			}
		})
	}
}
