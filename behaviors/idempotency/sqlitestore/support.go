package sqlitestore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tekil-go/tekil/behaviors/idempotency"
)

const (
	freeSQL = `UPDATE main.idempotency_records SET state = 'failed', attempt = ?3, attempts = 1, lease_until = ?4
 WHERE id = ?1 AND attempt = ?2 AND state IN ('in_progress', 'failed')`

	// A record whose command keeps tombstones has an empty result until it is buried, and NULL from then on: so the purge knows that
	// an erased one has still to be kept beyond its expiry.
	eraseSQL = `UPDATE main.idempotency_records SET external_ref = NULL, draft_id = NULL,
  result = CASE WHEN state = 'completed' AND after_expiry = 'tombstone' AND (result_type IS NOT 'tombstone' OR result IS NOT NULL) THEN x'' END,
  result_type = CASE WHEN state = 'completed' THEN 'tombstone' ELSE result_type END
 WHERE id = ?1 AND attempt = ?2 AND state IN ('completed', 'failed')`

	// countSQL counts all records. ?1 is the time.
	countSQL = `SELECT operation, state, state = 'in_progress' AND lease_until <= ?1 AS stuck, expires_at <= ?1 AS expired, count(*)
 FROM main.idempotency_records GROUP BY operation, state, stuck, expired`

	// dueSQL gives the oldest of what is to be buried (stone) or removed, by the index on expires_at. It looks for both at once: a scan
	// for tombstones alone would read all of a backlog that holds none, batch after batch. ?1 is the time, ?2 the limit.
	dueSQL = `(SELECT rowid, after_expiry = 'tombstone' AND (result_type IS NOT 'tombstone' OR result IS NOT NULL) AS stone FROM main.idempotency_records
  WHERE expires_at <= ?1 AND (after_expiry = 'reuse' AND (state <> 'in_progress' OR lease_until <= ?1) OR state = 'completed')
  ORDER BY expires_at LIMIT ?2)`

	burySQL = `UPDATE main.idempotency_records SET result = NULL, external_ref = NULL, draft_id = NULL, result_type = 'tombstone', expires_at = expires_at + ?3
 WHERE rowid IN (SELECT rowid FROM ` + dueSQL + ` WHERE stone)`

	removeSQL = `DELETE FROM main.idempotency_records WHERE rowid IN (SELECT rowid FROM ` + dueSQL + ` WHERE NOT stone)`
)

// Find gives the records that a search asks for. It takes a connection of the pool and no lock. A search by id or
// by a whole scope uses the primary key; one by key alone, by external reference, by draft or by request id reads the whole table, unless
// there is an index for it. None is made by [Migrate], because each costs every command something:
//
//	CREATE INDEX idempotency_records_key ON idempotency_records (key);
//	CREATE INDEX idempotency_records_ref ON idempotency_records (external_ref) WHERE external_ref IS NOT NULL;
//	CREATE INDEX idempotency_records_draft ON idempotency_records (draft_id) WHERE draft_id IS NOT NULL;
//	CREATE INDEX idempotency_records_origin ON idempotency_records (origin_request_id);
//
// A search for what is stuck alone always reads the whole table.
func (s *Store) Find(ctx context.Context, q idempotency.Search, limit int) ([]idempotency.Stored, error) {
	if q.IsZero() {
		return nil, errors.New("sqlitestore: a search needs an id, a key, an external reference, a draft, a request id, or what is stuck")
	}
	var where []string
	var args []any
	compare := func(column string, value any) {
		where = append(where, column+" = ?")
		args = append(args, value)
	}
	if q.ID != (idempotency.ID{}) {
		compare("id", q.ID[:])
	}
	if q.Key != "" {
		compare("key", q.Key)
		if q.Tenant != nil && q.Client != nil && q.Operation != nil { // the whole scope, which the primary key knows
			id := idempotency.Scope{Tenant: *q.Tenant, Client: *q.Client, Operation: *q.Operation, Key: q.Key}.ID()
			compare("id", id[:])
		}
	}
	if q.ExternalRef != "" {
		compare("external_ref", q.ExternalRef)
	}
	if q.DraftID != "" {
		compare("draft_id", q.DraftID)
	}
	if q.RequestID != "" {
		compare("origin_request_id", q.RequestID)
	}
	if q.Stuck {
		where = append(where, "(state = 'in_progress' AND lease_until <= ? OR state = 'failed')")
		args = append(args, time.Now().UnixMilli())
	}
	for _, p := range [...]struct {
		column string
		value  *string
	}{{"tenant", q.Tenant}, {"client", q.Client}, {"operation", q.Operation}} {
		if p.value != nil {
			compare(p.column, *p.value)
		}
	}
	query := recordColumns + leaseColumns + `, id, created_at, coalesce(completed_at, 0) FROM main.idempotency_records WHERE ` +
		strings.Join(where, " AND ") + ` ORDER BY created_at DESC, rowid DESC LIMIT ?`
	args = append(args, max(limit, 0))

	found, err := patiently(ctx, s, func(ctx context.Context) ([]idempotency.Stored, error) { return s.find(ctx, query, args) })
	if err != nil {
		return nil, fmt.Errorf("sqlitestore: search: %w", err)
	}
	return found, nil
}

func (s *Store) find(ctx context.Context, query string, args []any) (found []idempotency.Stored, err error) {
	rows, err := s.db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var id []byte
		var created, completed int64
		rec, at, err := scanRecord(rows, true, &id, &created, &completed)
		if err != nil {
			return nil, err
		}
		f := idempotency.Stored{Record: *rec, CreatedAt: time.UnixMilli(created), ExpiresAt: time.UnixMilli(at.expires)}
		copy(f.ID[:], id)
		if rec.State == idempotency.Completed {
			f.CompletedAt = time.UnixMilli(completed)
		}
		if at.lease.Valid {
			f.LeaseUntil = time.UnixMilli(at.lease.Int64)
		}
		found = append(found, f)
	}
	return found, rows.Err()
}

// Count counts all records. It takes a connection of the pool and no lock, and reads the whole table for as long as ctx allows.
func (s *Store) Count(ctx context.Context) ([]idempotency.Count, error) {
	counts, err := patiently(ctx, s, s.count)
	if err != nil {
		return nil, fmt.Errorf("sqlitestore: count records: %w", err)
	}
	return counts, nil
}

func (s *Store) count(ctx context.Context) (counts []idempotency.Count, err error) {
	rows, err := s.db.QueryContext(ctx, countSQL, time.Now().UnixMilli())
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var c idempotency.Count
		if err := rows.Scan(&c.Operation, (*string)(&c.State), &c.Stuck, &c.Expired, &c.Records); err != nil {
			return nil, err
		}
		counts = append(counts, c)
	}
	return counts, rows.Err()
}

// Free makes a record in progress or failed free for its payload.
func (s *Store) Free(ctx context.Context, id idempotency.ID, seen idempotency.AttemptID) (bool, error) {
	return s.changeRecord(ctx, "free the key", freeSQL, id[:], seen[:], newToken(), time.Now().UnixMilli())
}

// Erase takes the outcome out of a completed or failed record. SQLite may keep the bytes in free pages of the file until they are
// used again, unless PRAGMA secure_delete is on, and in the write-ahead log until a checkpoint.
func (s *Store) Erase(ctx context.Context, id idempotency.ID, seen idempotency.AttemptID) (bool, error) {
	return s.changeRecord(ctx, "erase the outcome", eraseSQL, id[:], seen[:])
}

// Purge makes one step of a purge: one short write transaction in its turn, or a few where it finds what is to be removed beside what
// is to be buried, so that it reaches the limit of one of the two or finds nothing more. There is one writer at a time, so nothing
// is ever locked by somebody else. What was done before an error is told.
func (s *Store) Purge(ctx context.Context, b idempotency.PurgeBatch) (done idempotency.Purged, err error) {
	if b.Limit < 1 {
		return done, errors.New("sqlitestore: the limit of a purge must be at least 1")
	}
	for left := b.Limit; left > 0; left = b.Limit - max(done.Removed, done.Buried) {
		var buried, removed int
		err := s.short(ctx, "purge", func(ctx context.Context, in *session) (err error) {
			over := time.Now().Add(-b.Grace).UnixMilli()
			if buried, err = changed(in.tx.ExecContext(ctx, burySQL, over, left, b.Remember.Milliseconds())); err != nil {
				return err
			}
			removed, err = changed(in.tx.ExecContext(ctx, removeSQL, over, left))
			return err
		})
		if err != nil {
			return done, err
		}
		done.Buried += buried
		done.Removed += removed
		if buried+removed < left {
			break
		}
	}
	return done, nil
}

// changeRecord makes one statement in a transaction of its own and reports whether it changed a record.
func (s *Store) changeRecord(ctx context.Context, what, query string, args ...any) (bool, error) {
	n := 0
	err := s.short(ctx, what, func(ctx context.Context, in *session) (err error) {
		n, err = changed(in.tx.ExecContext(ctx, query, args...))
		return err
	})
	return err == nil && n > 0, err
}
