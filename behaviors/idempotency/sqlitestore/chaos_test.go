package sqlitestore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/internal/chaos"
	"github.com/tekil-go/tekil/behaviors/idempotency/sqlitestore"
)

func init() { chaos.Child(openChaos) }

// openChaos is what a process of a chaos run does with the file. The address is its path.
func openChaos(path string) (*chaos.Door, error) {
	db, err := sql.Open("sqlite", "file:"+filepath.ToSlash(path))
	if err != nil {
		return nil, err
	}
	byHand, err := sql.Open("sqlite", "file:"+filepath.ToSlash(path)+patiently+"&_pragma=synchronous(full)&_txlock=immediate")
	if err != nil {
		return nil, err
	}
	byHand.SetMaxOpenConns(1)
	return &chaos.Door{
		Store: sqlitestore.New(db),
		InTx: func(ctx context.Context, fn func(context.Context) error) error {
			return sqlitestore.InTx(ctx, db, fn)
		},
		Insert: func(ctx context.Context, o chaos.Order, record idempotency.ID) error {
			_, err := sqlitestore.DB(ctx, db).ExecContext(ctx, `INSERT INTO chaos_orders (id, grp, key, payload, life)
				VALUES (?, ?, ?, ?, coalesce((SELECT created_at FROM idempotency_records WHERE id = ?), ''))`, o.ID, o.Group, o.Key, o.Payload, record[:])
			return err
		},
		Unguarded: unguarded{byHand},
		Hold:      2 * time.Millisecond, // nobody else can write meanwhile
		Close: func() {
			_ = byHand.Close()
			_ = db.Close()
		},
	}, nil
}

// unguarded is a lease by hand, whose completion does not ask whose the key is.
type unguarded struct{ db *sql.DB }

func (u unguarded) Claim(ctx context.Context, key string, payload int, lease time.Duration) (found chaos.Claimed, err error) {
	tx, err := u.db.BeginTx(ctx, nil)
	if err != nil {
		return found, err
	}
	defer func() { _ = tx.Rollback() }()
	now := time.Now()
	res, err := tx.ExecContext(ctx, `INSERT INTO chaos_unguarded (key, payload, state, lease_until, created_at) VALUES (?1, ?2, 'in_progress', ?3, ?4)
		ON CONFLICT (key) DO UPDATE SET lease_until = excluded.lease_until WHERE payload = excluded.payload AND state = 'in_progress' AND lease_until <= ?4`,
		key, payload, now.Add(lease).UnixMilli(), now.UnixMilli())
	if err != nil {
		return found, err
	}
	if n, err := res.RowsAffected(); err != nil || n == 1 {
		found.Mine = true
		return found, errors.Join(err, tx.Commit())
	}
	err = tx.QueryRowContext(ctx, `SELECT payload, coalesce(made, '') FROM chaos_unguarded WHERE key = ?`, key).Scan(&found.Payload, &found.Order)
	return found, err
}

func (u unguarded) Finish(ctx context.Context, o chaos.Order) error {
	tx, err := u.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.ExecContext(ctx, `INSERT INTO chaos_orders (id, grp, key, payload, life)
		VALUES (?, ?, ?, ?, (SELECT created_at FROM chaos_unguarded WHERE key = ?3))`, o.ID, o.Group, o.Key, o.Payload); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, `UPDATE chaos_unguarded SET state = 'completed', made = ? WHERE key = ?`, o.ID, o.Key); err != nil {
		return err
	}
	return tx.Commit()
}

// TestChaos_NoIntentIsDoneTwiceWhateverHappens is experiment E60 of the specification on one file: clients of several processes,
// leases of some tens of milliseconds, slow handlers, processes that are killed and that hang, records that are purged, released and
// moved in time; with a control beside it that must fail.
func TestChaos_NoIntentIsDoneTwiceWhateverHappens(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "chaos.db")
	beside := openFile(t, path, patiently)
	if err := sqlitestore.Migrate(t.Context(), beside); err != nil {
		t.Fatal(err)
	}
	mustExec(t, beside, `CREATE TABLE chaos_orders (id TEXT PRIMARY KEY, grp TEXT NOT NULL, key TEXT NOT NULL, payload INTEGER NOT NULL, life TEXT NOT NULL) STRICT`)
	mustExec(t, beside, `CREATE TABLE chaos_unguarded (key TEXT PRIMARY KEY, payload INTEGER NOT NULL, state TEXT NOT NULL, lease_until INTEGER NOT NULL,
		made TEXT, created_at INTEGER NOT NULL) STRICT`)
	chaos.Run(t, chaos.Site{
		Open: openChaos, Address: path,
		Orders: func(ctx context.Context) ([]chaos.Order, error) {
			return all(ctx, beside, `SELECT id, grp, key, payload, life FROM chaos_orders`, func(o *chaos.Order) []any {
				return []any{&o.ID, &o.Group, &o.Key, &o.Payload, &o.Life}
			})
		},
		Records: func(ctx context.Context) ([]chaos.Record, error) {
			return all(ctx, beside, `SELECT operation, key, created_at, state = 'completed', coalesce(outcome, 0) = 1, result FROM idempotency_records
				UNION ALL SELECT '`+chaos.UnguardedName+`', key, created_at, state = 'completed', false, CAST(json_object('order', made) AS BLOB) FROM chaos_unguarded`,
				func(r *chaos.Record) []any {
					return []any{&r.Group, &r.Key, &r.Life, &r.Completed, &r.Refused, &r.Result}
				})
		},
		Stuck: func(ctx context.Context) (id idempotency.ID, err error) {
			var raw []byte
			err = beside.QueryRowContext(ctx, `SELECT id FROM idempotency_records WHERE state <> 'completed' ORDER BY random() LIMIT 1`).Scan(&raw)
			copy(id[:], raw)
			return id, err
		},
		Faults: []chaos.Fault{
			{Name: "leases moved in time", Every: 4, Do: func(ctx context.Context) (int, error) {
				return hits(beside.ExecContext(context.WithoutCancel(ctx), `UPDATE idempotency_records SET lease_until = lease_until + abs(random() % 800) - 500
					WHERE id = (SELECT id FROM idempotency_records WHERE state = 'in_progress' ORDER BY random() LIMIT 1)`))
			}},
			{Name: "expiries moved in time", Every: 12, Do: func(ctx context.Context) (int, error) {
				return hits(beside.ExecContext(context.WithoutCancel(ctx), `UPDATE idempotency_records SET expires_at = expires_at + abs(random() % 400) - 200
					WHERE id IN (SELECT id FROM idempotency_records ORDER BY random() LIMIT 3)`))
			}},
		},
		Settle: func(ctx context.Context) error { return beside.PingContext(ctx) }, // what a killed process has not committed is gone
	})
}

func hits(res sql.Result, err error) (int, error) {
	if err != nil {
		return 0, err
	}
	n, err := res.RowsAffected()
	return int(n), err
}

func all[T any](ctx context.Context, db *sql.DB, query string, fields func(*T) []any) (found []T, err error) {
	rows, err := db.QueryContext(ctx, query)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var v T
		if err := rows.Scan(fields(&v)...); err != nil {
			return nil, fmt.Errorf("%s: %w", query, err)
		}
		found = append(found, v)
	}
	return found, rows.Err()
}
