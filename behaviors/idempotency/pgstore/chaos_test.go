package pgstore_test

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/internal/chaos"
	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore"
	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore/pgtest"
)

func init() { chaos.Child(openChaos) }

// openChaos is what a process of a chaos run does with the database.
func openChaos(address string) (*chaos.Door, error) {
	cfg, err := pgxpool.ParseConfig(address)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = 30
	// A pool that pings a connection before it lends it out would find most of the dead ones, and a client is to meet them.
	cfg.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		return nil, err
	}
	return &chaos.Door{
		Store: pgstore.New(pool),
		InTx: func(ctx context.Context, fn func(context.Context) error) error {
			return pgstore.InTx(ctx, pool, fn)
		},
		Insert: func(ctx context.Context, o chaos.Order, record idempotency.ID) error {
			_, err := pgstore.DB(ctx, pool).Exec(ctx, `INSERT INTO chaos_orders (id, grp, key, payload, life)
				VALUES ($1, $2, $3, $4, coalesce((SELECT created_at::text FROM idempotency_records WHERE id = $5), ''))`,
				o.ID, o.Group, o.Key, o.Payload, [16]byte(record))
			return err
		},
		Unguarded: unguarded{pool},
		Hold:      10 * time.Millisecond,
		Close:     pool.Close,
	}, nil
}

// unguarded is a lease by hand, whose completion does not ask whose the key is.
type unguarded struct{ pool *pgxpool.Pool }

func (u unguarded) Claim(ctx context.Context, key string, payload int, lease time.Duration) (found chaos.Claimed, err error) {
	tag, err := u.pool.Exec(ctx, `INSERT INTO chaos_unguarded AS u (key, payload, state, lease_until, created_at)
		VALUES ($1, $2, 'in_progress', clock_timestamp() + $3::interval, clock_timestamp())
		ON CONFLICT (key) DO UPDATE SET lease_until = clock_timestamp() + $3::interval
		WHERE u.payload = $2 AND u.state = 'in_progress' AND u.lease_until <= clock_timestamp()`, key, payload, lease)
	if found.Mine = tag.RowsAffected() == 1; err != nil || found.Mine {
		return found, err
	}
	err = u.pool.QueryRow(ctx, `SELECT payload, coalesce(made, '') FROM chaos_unguarded WHERE key = $1`, key).Scan(&found.Payload, &found.Order)
	return found, err
}

func (u unguarded) Finish(ctx context.Context, o chaos.Order) error {
	return pgx.BeginFunc(ctx, u.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `INSERT INTO chaos_orders (id, grp, key, payload, life)
			VALUES ($1, $2, $3, $4, (SELECT created_at::text FROM chaos_unguarded WHERE key = $3))`, o.ID, o.Group, o.Key, o.Payload); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `UPDATE chaos_unguarded SET state = 'completed', made = $2 WHERE key = $1`, o.Key, o.ID)
		return err
	})
}

// chaosSite is the site of a run whose clients reach the database by address, in sessions of that application_name. beside is the
// test's own way to it, under another name.
func chaosSite(t *testing.T, beside *pgxpool.Pool, address, sessions string) chaos.Site {
	t.Helper()
	if err := pgstore.Migrate(t.Context(), beside); err != nil {
		t.Fatal(err)
	}
	exec(t, beside, `CREATE TABLE chaos_orders (id text PRIMARY KEY, grp text NOT NULL, key text NOT NULL, payload integer NOT NULL, life text NOT NULL)`)
	exec(t, beside, `CREATE TABLE chaos_unguarded (key text PRIMARY KEY, payload integer NOT NULL, state text NOT NULL, lease_until timestamptz NOT NULL,
		made text, created_at timestamptz NOT NULL)`)
	kill := func(ctx context.Context, most int) (int, error) {
		tag, err := beside.Exec(context.WithoutCancel(ctx), `SELECT pg_terminate_backend(pid, 10000) FROM
			(SELECT pid FROM pg_stat_activity WHERE application_name = $1 ORDER BY random() LIMIT $2) AS victims`, sessions, most)
		return int(tag.RowsAffected()), err
	}
	update := func(ctx context.Context, sql string) (int, error) {
		tag, err := beside.Exec(context.WithoutCancel(ctx), sql)
		return int(tag.RowsAffected()), err
	}
	return chaos.Site{
		Open: openChaos, Address: address,
		Orders: func(ctx context.Context) ([]chaos.Order, error) {
			rows, _ := beside.Query(ctx, `SELECT id, grp, key, payload, life FROM chaos_orders`)
			return pgx.CollectRows(rows, pgx.RowToStructByPos[chaos.Order])
		},
		Records: func(ctx context.Context) ([]chaos.Record, error) {
			rows, _ := beside.Query(ctx, `SELECT operation, key, created_at::text, state = 'completed', coalesce(outcome, 0) = 1, result FROM idempotency_records
				UNION ALL SELECT $1, key, created_at::text, state = 'completed', false, convert_to(json_build_object('order', made)::text, 'UTF8') FROM chaos_unguarded`,
				chaos.UnguardedName)
			return pgx.CollectRows(rows, pgx.RowToStructByPos[chaos.Record])
		},
		Stuck: func(ctx context.Context) (id idempotency.ID, err error) {
			err = beside.QueryRow(ctx, `SELECT id FROM idempotency_records WHERE state <> 'completed' ORDER BY random() LIMIT 1`).Scan((*[16]byte)(&id))
			return id, err
		},
		Faults: []chaos.Fault{
			{Name: "sessions killed", Every: 20, Do: func(ctx context.Context) (int, error) { return kill(ctx, 1) }},
			{Name: "leases moved in time", Every: 4, Do: func(ctx context.Context) (int, error) {
				return update(ctx, `UPDATE idempotency_records SET lease_until = lease_until + (random() * 0.8 - 0.5) * interval '1 s' WHERE id =
					(SELECT id FROM idempotency_records WHERE state = 'in_progress' ORDER BY random() LIMIT 1 FOR UPDATE SKIP LOCKED)`)
			}},
			{Name: "expiries moved in time", Every: 12, Do: func(ctx context.Context) (int, error) {
				return update(ctx, `UPDATE idempotency_records SET expires_at = expires_at + (random() * 0.4 - 0.2) * interval '1 s' WHERE id IN
					(SELECT id FROM idempotency_records ORDER BY random() LIMIT 3 FOR UPDATE SKIP LOCKED)`)
			}},
		},
		Settle: func(ctx context.Context) error { // packets that are still on their way will meet a session that is gone
			for {
				if n, err := kill(ctx, 1000); err != nil || n == 0 {
					return err
				}
			}
		},
	}
}

// TestChaos_NoIntentIsDoneTwiceWhateverHappens is experiment E60 of the specification: clients of several processes, leases of some
// tens of milliseconds, slow handlers, sessions and processes that are killed and that hang, packets that are lost or late, records
// that are purged, released and moved in time; with a control beside it that must fail.
func TestChaos_NoIntentIsDoneTwiceWhateverHappens(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	proxy := db.Proxy()
	cfg := db.PoolConfig()
	cfg.ConnConfig.RuntimeParams["application_name"] = "beside-the-chaos"
	site := chaosSite(t, pgtest.NewPool(t, cfg), proxy.URL(), db.Schema())
	site.Faults = append(site.Faults,
		chaos.Fault{Name: "all connections cut", Every: 300, Do: func(context.Context) (int, error) {
			proxy.CutAll()
			return 1, nil
		}},
		chaos.Fault{Name: "commits lost or late", Every: 10, Do: func(ctx context.Context) (int, error) {
			release := make(chan struct{})
			defer close(release)
			fault := pgtest.Fault{Match: pgtest.IsCommit, Action: pgtest.Action(1 + rand.IntN(int(pgtest.Delay))), Release: release}
			armed := proxy.Arm(fault)
			select {
			case <-armed.Fired():
			case <-ctx.Done():
				return 0, ctx.Err()
			}
			pauseAtMost(ctx, 100*time.Millisecond)
			return 1, nil
		}},
	)
	chaos.Run(t, site)
}

func pauseAtMost(ctx context.Context, d time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, rand.N(d))
	defer cancel()
	<-ctx.Done()
}
