package pgstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tekil-go/tekil/behaviors/idempotency"
)

// tombstone is the result type of a record whose outcome was taken away.
const tombstone = "tombstone"

// supportSQL makes the statements that no command waits for.
func (s *Store) supportSQL() {
	table, patience := s.table(), s.patience()
	s.findSQL = `SELECT id, tenant, client, operation, key, request_hash, hash_version, state, after_expiry, attempt,
 outcome, result, result_type, origin_request_id, origin_trace, external_ref, draft_id, expires_at <= clock_timestamp()` + leaseColumns + `,
 created_at, completed_at, expires_at, lease_until FROM ` + table + ` WHERE `
	// The time is that of the statement's start, as the rows are, so that it is the same for all of them.
	s.countSQL = `SELECT operation, state, state = 'in_progress' AND lease_until <= now() AS stuck, expires_at <= now() AS expired, count(*)
 FROM ` + table + ` GROUP BY operation, state, stuck, expired`
	s.freeSQL = `UPDATE ` + table + ` AS r SET state = 'failed', attempt = $3::uuid, attempts = 1, lease_until = clock_timestamp()
 FROM ` + patience + ` WHERE r.id = $1::uuid AND r.attempt = $2::uuid AND r.state IN ('in_progress', 'failed')`
	// A record whose command keeps tombstones has an empty result until it is buried, and NULL from then on: so the purge knows that
	// an erased one has still to be kept beyond its expiry.
	s.eraseSQL = `UPDATE ` + table + ` AS r SET result = CASE WHEN r.after_expiry = 'tombstone' AND r.result IS NOT NULL THEN ''::bytea END,
  external_ref = NULL, draft_id = NULL, result_type = CASE WHEN r.state = 'completed' THEN '` + tombstone + `' ELSE r.result_type END
 FROM ` + patience + ` WHERE r.id = $1::uuid AND r.attempt = $2::uuid AND r.state IN ('completed', 'failed')`
	// One scan of the oldest finds both what is removed and what is buried: a scan for tombstones alone would read all of a backlog that
	// holds none, batch after batch. The time is that of the transaction's start, because the server uses an index only for a
	// time that stands still; nothing is waited for here, so it is the time of the statement. What was found is locked, so its place in
	// the table is good, and the way to it is short.
	const place = ` WHERE ctid = ANY (ARRAY(SELECT at FROM due WHERE `
	s.purgeSQL = `WITH due AS (
 SELECT ctid AS at, after_expiry = 'tombstone' AND (result_type IS DISTINCT FROM '` + tombstone + `' OR result IS NOT NULL) AS stone
 FROM ` + table + ` WHERE expires_at <= now() - $1::interval
  AND (after_expiry = 'reuse' AND (state <> 'in_progress' OR lease_until <= now() - $1::interval) OR state = 'completed')
 ORDER BY expires_at LIMIT $2::bigint FOR UPDATE SKIP LOCKED),
buried AS (UPDATE ` + table + ` SET result = NULL, result_type = '` + tombstone + `', external_ref = NULL, draft_id = NULL,
  expires_at = expires_at + $3::interval` + place + `stone)) RETURNING 1),
removed AS (DELETE FROM ` + table + place + `NOT stone)) RETURNING 1)
SELECT (SELECT count(*) FROM removed), (SELECT count(*) FROM buried)`
}

// Find gives the records that a search asks for, the youngest first. A search by key alone, by external reference, by draft or by request
// id reads the whole table, unless there is an index for it. None is made by [Migrate], because each costs every command something, and
// the second one makes the completion of a Leased command that sets a reference write to all indexes:
//
//	CREATE INDEX CONCURRENTLY ON idempotency_records (key);
//	CREATE INDEX CONCURRENTLY ON idempotency_records (external_ref) WHERE external_ref IS NOT NULL;
//	CREATE INDEX CONCURRENTLY ON idempotency_records (draft_id) WHERE draft_id IS NOT NULL;
//	CREATE INDEX CONCURRENTLY ON idempotency_records (origin_request_id);
//
// A search for what is stuck alone always reads the whole table: an index that mentions state or lease_until would make every
// completion of a Leased command write to all indexes.
func (s *Store) Find(ctx context.Context, q idempotency.Search, limit int) ([]idempotency.Stored, error) {
	if q.IsZero() {
		return nil, errors.New("pgstore: a search needs an id, a key, an external reference, a draft, a request id, or what is stuck")
	}
	var conditions []string
	var args []any
	where := func(column string, value any) {
		args = append(args, value)
		conditions = append(conditions, column+` = $`+strconv.Itoa(len(args)))
	}
	if q.ID != (idempotency.ID{}) {
		where(`id`, uuid(q.ID))
	}
	if q.Key != "" {
		where(`key`, q.Key)
		if q.Tenant != nil && q.Client != nil && q.Operation != nil { // the whole scope, which the key's index knows
			where(`id`, uuid(idempotency.Scope{Tenant: *q.Tenant, Client: *q.Client, Operation: *q.Operation, Key: q.Key}.ID()))
		}
	}
	if q.ExternalRef != "" {
		where(`external_ref`, q.ExternalRef)
	}
	if q.DraftID != "" {
		where(`draft_id`, q.DraftID)
	}
	if q.RequestID != "" {
		where(`origin_request_id`, q.RequestID)
	}
	if q.Stuck {
		conditions = append(conditions, `(state = 'in_progress' AND lease_until <= now() OR state = 'failed')`)
	}
	for column, part := range map[string]*string{`tenant`: q.Tenant, `client`: q.Client, `operation`: q.Operation} {
		if part != nil {
			where(column, *part)
		}
	}
	args = append(args, max(limit, 0))
	sql := s.findSQL + strings.Join(conditions, ` AND `) + ` ORDER BY created_at DESC, id LIMIT $` + strconv.Itoa(len(args))
	rows, _ := s.pool.Query(ctx, sql, args...)
	found, err := pgx.CollectRows(rows, scanStored)
	if err != nil {
		return nil, fmt.Errorf("pgstore: find records: %w", err)
	}
	return found, nil
}

func scanStored(row pgx.CollectableRow) (idempotency.Stored, error) {
	var s idempotency.Stored
	var completed, lease *time.Time
	r := &s.Record
	f := fields{r: r}
	err := row.Scan((*[16]byte)(&s.ID), &r.Scope.Tenant, &r.Scope.Client, &r.Scope.Operation, &r.Scope.Key,
		&f.hash, &r.HashVersion, (*string)(&r.State), &f.afterExpiry, (*[16]byte)(&r.Attempt),
		&f.outcome, &r.Result, &f.resultType, &r.OriginRequestID, &f.originTrace, &f.externalRef, &f.draftID, &r.Expired, &r.Attempts, &r.Fence, &r.LeaseLeft,
		&s.CreatedAt, &completed, &s.ExpiresAt, &lease)
	if completed != nil {
		s.CompletedAt = *completed
	}
	if lease != nil {
		s.LeaseUntil = *lease
	}
	f.fill()
	return s, err
}

// Count counts all records, in one statement. It reads the whole table, for as long as ctx allows.
func (s *Store) Count(ctx context.Context) ([]idempotency.Count, error) {
	rows, _ := s.pool.Query(ctx, s.countSQL)
	counts, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (c idempotency.Count, err error) {
		err = row.Scan(&c.Operation, (*string)(&c.State), &c.Stuck, &c.Expired, &c.Records)
		return c, err
	})
	if err != nil {
		return nil, fmt.Errorf("pgstore: count records: %w", err)
	}
	return counts, nil
}

// Free makes a record that is in progress or failed free for its payload. It gives an error that wraps [idempotency.ErrBusy] while
// a transaction holds the record, such as the business transaction of its attempt.
func (s *Store) Free(ctx context.Context, id idempotency.ID, seen idempotency.AttemptID) (bool, error) {
	var token [16]byte
	_, _ = rand.Read(token[:])
	rows, err := s.single(ctx, s.freeSQL, uuid(id), uuid(seen), uuid(token))
	return rows > 0, err
}

// Erase takes result, external reference and draft out of a completed or failed record. The server keeps the old version of the row
// until it is vacuumed, and its log and backups as long as they are kept.
func (s *Store) Erase(ctx context.Context, id idempotency.ID, seen idempotency.AttemptID) (bool, error) {
	rows, err := s.single(ctx, s.eraseSQL, uuid(id), uuid(seen))
	return rows > 0, err
}

// Purge makes one step of a purge, in one turn, or in a few where it finds what is to be removed beside what is to be buried: so it
// reaches the limit of one of the two, or finds nothing more. Each turn is a transaction. It waits for no row, and makes nobody
// wait but those who claim just the keys that it removes.
func (s *Store) Purge(ctx context.Context, b idempotency.PurgeBatch) (done idempotency.Purged, err error) {
	if b.Limit < 1 {
		return done, errors.New("pgstore: the limit of a purge must be at least 1")
	}
	for left := b.Limit; left > 0; left = b.Limit - max(done.Removed, done.Buried) {
		step, err := s.purge(ctx, b.Grace, left, b.Remember)
		if err != nil {
			return done, err
		}
		done.Removed += step.Removed
		done.Buried += step.Buried
		if step.Removed+step.Buried < left {
			break
		}
	}
	return done, nil
}

func (s *Store) purge(ctx context.Context, grace time.Duration, limit int, remember time.Duration) (done idempotency.Purged, err error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return done, fmt.Errorf("pgstore: no connection: %w", err)
	}
	l := &loan{conn: conn}
	defer l.Rollback(ctx)
	_, err = l.read(ctx, alone(), []any{&done.Removed, &done.Buried}, s.purgeSQL, grace, limit, remember)
	return done, err
}
