package memstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/tekil-go/tekil/behaviors/idempotency"
)

// tombstone is the result type of a record whose outcome was taken away.
const tombstone = "tombstone"

// Find gives the records that a search asks for.
func (s *Store) Find(ctx context.Context, q idempotency.Search, limit int) ([]idempotency.Stored, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("memstore: %w", err)
	}
	if q.IsZero() {
		return nil, errors.New("memstore: a search asks for nothing")
	}
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	now := time.Now()
	var found []idempotency.Stored
	for id, r := range s.db.records {
		if rec := r.read(now); wanted(&q, id, rec) {
			found = append(found, idempotency.Stored{
				ID: id, Record: *rec,
				CreatedAt: r.created, CompletedAt: r.completed, ExpiresAt: r.expires, LeaseUntil: r.lease,
			})
		}
	}
	slices.SortFunc(found, func(a, b idempotency.Stored) int {
		if c := b.CreatedAt.Compare(a.CreatedAt); c != 0 {
			return c
		}
		return bytes.Compare(a.ID[:], b.ID[:])
	})
	return found[:min(len(found), limit)], nil
}

func wanted(q *idempotency.Search, id idempotency.ID, rec *idempotency.Record) bool {
	part := func(want *string, got string) bool { return want == nil || *want == got }
	return (q.ID == idempotency.ID{} || q.ID == id) &&
		(q.Key == "" || q.Key == rec.Scope.Key) &&
		(q.ExternalRef == "" || q.ExternalRef == rec.ExternalRef) &&
		(q.DraftID == "" || q.DraftID == rec.DraftID) &&
		(q.RequestID == "" || q.RequestID == rec.OriginRequestID) &&
		(!q.Stuck || rec.State == idempotency.InProgress && rec.LeaseLeft == 0 || rec.State == idempotency.Failed) &&
		part(q.Tenant, rec.Scope.Tenant) && part(q.Client, rec.Scope.Client) && part(q.Operation, rec.Scope.Operation)
}

// Count counts all records.
func (s *Store) Count(ctx context.Context) ([]idempotency.Count, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("memstore: %w", err)
	}
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	now := time.Now()
	records := map[idempotency.Count]int64{}
	for _, r := range s.db.records {
		rec := r.read(now)
		stuck := rec.State == idempotency.InProgress && rec.LeaseLeft == 0
		records[idempotency.Count{Operation: rec.Scope.Operation, State: rec.State, Stuck: stuck, Expired: rec.Expired}]++
	}
	var counts []idempotency.Count
	for c, n := range records {
		c.Records = n
		counts = append(counts, c)
	}
	return counts, nil
}

// Free makes a record in progress or failed free for its payload. It gives an error that wraps [idempotency.ErrBusy] while a
// business transaction holds the record.
func (s *Store) Free(ctx context.Context, id idempotency.ID, seen idempotency.AttemptID) (bool, error) {
	return s.change(ctx, id, seen, func(r *row) bool {
		if r.record.State == idempotency.Completed {
			return false
		}
		r.fail()
		r.record.Attempts = 1
		return true
	})
}

// Erase takes the outcome out of a completed or failed record.
func (s *Store) Erase(ctx context.Context, id idempotency.ID, seen idempotency.AttemptID) (bool, error) {
	return s.change(ctx, id, seen, func(r *row) bool {
		if r.record.State == idempotency.InProgress {
			return false
		}
		r.erase()
		return true
	})
}

// change changes a record that nobody holds and whose attempt is the one that was seen.
func (s *Store) change(ctx context.Context, id idempotency.ID, seen idempotency.AttemptID, change func(r *row) bool) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, fmt.Errorf("memstore: %w", err)
	}
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	r, ok := s.db.records[id]
	if !ok || r.record.Attempt != seen {
		return false, nil
	}
	if s.db.locked[id] != nil {
		return false, fmt.Errorf("memstore: %w", idempotency.ErrBusy)
	}
	if !change(&r) {
		return false, nil
	}
	s.db.records[id] = r
	return true, nil
}

// erase leaves the key and its hash.
func (r *row) erase() {
	r.record.Result, r.record.ExternalRef, r.record.DraftID = nil, "", ""
	if r.record.State == idempotency.Completed {
		r.record.ResultType = tombstone
	}
}

// Purge makes one step of a purge. Records whose command keeps tombstones are removed only as such.
func (s *Store) Purge(ctx context.Context, b idempotency.PurgeBatch) (done idempotency.Purged, err error) {
	if err := ctx.Err(); err != nil {
		return done, fmt.Errorf("memstore: %w", err)
	}
	if b.Limit < 1 {
		return done, errors.New("memstore: the limit of a purge must be at least 1")
	}
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	over := time.Now().Add(-b.Grace)
	for _, id := range s.db.oldest(over, b.Limit, func(r row) bool {
		return r.record.State == idempotency.Completed && r.record.AfterExpiry == idempotency.Tombstone && r.record.ResultType != tombstone
	}) {
		r := s.db.records[id]
		r.erase()
		r.expires = r.expires.Add(b.Remember)
		s.db.records[id] = r
		done.Buried++
	}
	for _, id := range s.db.oldest(over, b.Limit, func(r row) bool {
		return (r.record.AfterExpiry == idempotency.Reuse || r.record.ResultType == tombstone) &&
			(r.record.State != idempotency.InProgress || !r.lease.After(over))
	}) {
		delete(s.db.records, id)
		done.Removed++
	}
	return done, nil
}

// oldest gives the records that have expired by a time, that nobody holds and that are wanted, in the order of their expiry.
func (db *database) oldest(over time.Time, limit int, want func(r row) bool) []idempotency.ID {
	ids := slices.Collect(maps.Keys(db.records))
	ids = slices.DeleteFunc(ids, func(id idempotency.ID) bool {
		r := db.records[id]
		return r.expires.After(over) || db.locked[id] != nil || !want(r)
	})
	slices.SortFunc(ids, func(a, b idempotency.ID) int { return db.records[a].expires.Compare(db.records[b].expires) })
	return ids[:min(len(ids), limit)]
}
