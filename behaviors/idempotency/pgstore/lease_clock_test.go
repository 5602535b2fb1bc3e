package pgstore_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore"
	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore/pgtest"
)

// A statement that takes a record waits for somebody who holds it. What it finds, and what time it is, is judged when it has the
// row and not when it began to wait.
func TestATakeoverIsJudgedWhenTheRowIsGotAndNotWhenItsWaitBegan_BR49_E09_E37(t *testing.T) {
	t.Parallel()
	const past = `UPDATE idempotency_records SET lease_until = clock_timestamp() - interval '1 second', expires_at = clock_timestamp() + `
	for _, c := range []struct {
		name string
		set  string // before anybody waits: the lease is over
		// What the holder does while the challenger waits, and until when it holds the row.
		meanwhile, until string
		taken            bool
		want             idempotency.Grant
	}{
		{name: "the lease is renewed meanwhile", set: past + `interval '1 hour'`,
			meanwhile: `UPDATE idempotency_records SET lease_until = clock_timestamp() + interval '1 hour'`, until: `SELECT true`},
		{name: "it is renewed, and that is over as well", set: past + `interval '1 hour'`,
			meanwhile: `UPDATE idempotency_records SET lease_until = clock_timestamp() + interval '300 milliseconds'`,
			until:     `SELECT lease_until <= clock_timestamp() FROM idempotency_records`, taken: true, want: idempotency.Grant{Attempt: 2, TookOver: true}},
		{name: "it is completed meanwhile", set: past + `interval '1 hour'`,
			meanwhile: `UPDATE idempotency_records SET state = 'completed', outcome = 0, completed_at = clock_timestamp()`, until: `SELECT true`},
		{name: "it is released meanwhile, and is no takeover", set: past + `interval '1 hour'`,
			meanwhile: `UPDATE idempotency_records SET state = 'failed', attempt = gen_random_uuid()`, until: `SELECT true`, taken: true, want: idempotency.Grant{Attempt: 2}},
		{name: "it is given another payload meanwhile", set: past + `interval '1 hour'`,
			meanwhile: `UPDATE idempotency_records SET state = 'failed', request_hash = '\x00'`, until: `SELECT true`},
		{name: "its attempts are used up meanwhile", set: past + `interval '1 hour'`,
			meanwhile: `UPDATE idempotency_records SET attempts = 11`, until: `SELECT true`},
		{name: "it is removed meanwhile", set: past + `interval '1 hour'`,
			meanwhile: `DELETE FROM idempotency_records`, until: `SELECT true`, taken: true, want: idempotency.Grant{Attempt: 1}},
		{name: "it expires meanwhile, and nobody has touched it", set: past + `interval '3 seconds'`,
			meanwhile: `SELECT`, until: `SELECT expires_at <= clock_timestamp() FROM idempotency_records`, taken: true, want: idempotency.Grant{Attempt: 1, TookOver: true, Reused: true}},
		{name: "what had expired is kept longer meanwhile", set: past + `interval '-1 second', state = 'completed', outcome = 0`,
			meanwhile: `UPDATE idempotency_records SET expires_at = clock_timestamp() + interval '1 hour'`, until: `SELECT true`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.Open(t)
			pool := db.Pool()
			migrated(t, pool)
			store := pgstore.NewWithConfig(pool, pgstore.Config{LockTimeout: time.Minute})
			first := lent("waited-for")
			fence := lease(t, store, first).Grant().Fence
			exec(t, pool, c.set)
			holder, err := pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer holder.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // it is committed below
			if _, err := holder.Exec(t.Context(), `SELECT FROM idempotency_records FOR UPDATE`); err != nil {
				t.Fatal(err)
			}
			second := rival(first)
			var l idempotency.Lease
			var rec *idempotency.Record
			var claimErr error
			var wg sync.WaitGroup
			wg.Go(func() { l, rec, claimErr = store.Lease(t.Context(), second) })
			blocked(t, db, 1)
			if _, err := holder.Exec(t.Context(), c.meanwhile); err != nil {
				t.Fatal(err)
			}
			for over := false; !over; {
				if err := holder.QueryRow(t.Context(), c.until).Scan(&over); err != nil {
					t.Fatal(err)
				}
			}
			var let time.Time
			if err := holder.QueryRow(t.Context(), `SELECT clock_timestamp()`).Scan(&let); err != nil {
				t.Fatal(err)
			}
			if err := holder.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			wg.Wait()
			if claimErr != nil || (l != nil) != c.taken || (rec != nil) == c.taken {
				t.Fatalf("got a lease %t, the record %+v and %v; want it taken %t", l != nil, rec, claimErr, c.taken)
			}
			if !c.taken {
				return
			}
			c.want.Fence = l.Grant().Fence
			if l.Grant() != c.want || c.want.Fence <= fence {
				t.Errorf("the grant is %+v after the fence %d, want %+v", l.Grant(), fence, c.want)
			}
			var until, expires time.Time
			if err := pool.QueryRow(t.Context(), `SELECT lease_until, expires_at FROM idempotency_records WHERE attempt = $1`, [16]byte(second.Attempt)).Scan(&until, &expires); err != nil {
				t.Fatal(err)
			}
			if until.Before(let.Add(second.Lease)) || expires.Before(let.Add(second.Retention)) {
				t.Errorf("the row was let go at %v, and the lease counts until %v and the retention until %v: they count from before", let, until, expires)
			}
		})
	}
}

// now() is the start of a transaction. What is written late in a long one bears the time at which it is written.
func TestALongBusinessTransactionIsCompletedAtItsEndAndDoesNotAgeTheLease_BR49(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	migrated(t, pool)
	c := lent("long-1")
	l := lease(t, pgstore.New(pool), c)
	var started, ended time.Time
	if err := pgstore.InTx(l.Context(t.Context()), pool, func(ctx context.Context) error {
		for !ended.After(started) {
			if err := pgstore.DB(ctx, pool).QueryRow(ctx, `SELECT now(), clock_timestamp()`).Scan(&started, &ended); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := l.Complete(t.Context(), sold); err != nil {
		t.Fatal(err)
	}
	var completed time.Time
	if err := pool.QueryRow(t.Context(), `SELECT completed_at FROM idempotency_records`).Scan(&completed); err != nil {
		t.Fatal(err)
	}
	if completed.Before(ended) {
		t.Errorf("begun at %v, still working at %v; the record was completed at %v", started, ended, completed)
	}
}

// The server's clock is set by the test, in a function that stands before the real one. The process's own clock counts for nothing.
func TestOnlyTheServersClockSaysWhenALeaseIsOver_BR48_L14_L15(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	migrated(t, db.Pool())
	exec(t, db.Pool(), `CREATE TABLE skew (by interval NOT NULL); INSERT INTO skew VALUES ('0')`)
	exec(t, db.Pool(), `CREATE FUNCTION clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT pg_catalog.clock_timestamp() + by FROM skew'`)
	cfg := db.PoolConfig()
	cfg.ConnConfig.RuntimeParams["search_path"] = db.Schema() + ", pg_catalog"
	delete(cfg.ConnConfig.RuntimeParams, "options")
	pool := pgtest.NewPool(t, cfg)
	store := pgstore.New(pool)
	c := lent("skewed-lease")
	l := lease(t, store, c)
	for _, at := range []struct {
		skew  string
		taken bool
	}{{"0", false}, {"-1 hour", false}, {"4 minutes", false}, {"6 minutes", true}, {"10 minutes", false}, {"12 minutes", true}, {"-1 hour", false}} {
		exec(t, pool, `UPDATE skew SET by = $1::text::interval`, at.skew)
		next, rec, err := store.Lease(t.Context(), rival(c))
		if err != nil || (next != nil) != at.taken || (rec != nil) == at.taken {
			t.Errorf("with the server's clock off by %s: taken %t, %+v, %v; want %t", at.skew, next != nil, rec, err, at.taken)
		}
		if next != nil {
			l = next
		}
	}
	// A clock that went back has not made two owners: the last one is the only one.
	if err := l.Complete(t.Context(), sold); err != nil {
		t.Errorf("the last owner: %v", err)
	}
}
