// Package memstore is an idempotency store in memory, for tests only.
//
// It keeps its records in one process: a second replica knows nothing of them, and a restart forgets them, so a retry that
// meets either runs the work again (rules rec-1, rec-2). Outside tests its [Store.Check] therefore refuses to start. Within
// tests it behaves as the database stores do, passes the same conformance suite, and goes by time.Now, so that
// testing/synctest moves its clock.
package memstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tekil-go/tekil/behaviors/idempotency"
)

// Config changes what a [Store] does. The zero Config is right for nearly all tests.
type Config struct {
	// NoHint switches off the hint that another attempt of the key is open: Begin lets every attempt in, and those that
	// come too late are found when they complete. The outcome must be the same, only dearer.
	NoHint bool
	// Share is a store whose records and rows the new one works on, as two processes work on one database. Nil means a
	// store of its own.
	Share *Store
	// AllowOutsideTests lets Check pass in a program that is not a test, with a warning.
	AllowOutsideTests bool
}

// Store is an [idempotency.Store] in memory, with rows of business data beside its records. It is safe for concurrent use.
// Make it with [New] or [NewWithConfig].
type Store struct {
	cfg Config
	db  *database
}

// database is what stores that share have in common.
type database struct {
	mu      sync.Mutex
	records map[idempotency.ID]row
	rows    []string
	open    map[idempotency.ID]bool         // the keys of open attempts that were begun with the hint
	locked  map[idempotency.ID]*transaction // the records that open business transactions hold
	fence   int64                           // that of the last grant
}

// row is a record as it is kept. Expired and LeaseLeft are judged on reading.
type row struct {
	record                             idempotency.Record
	created, completed, expires, lease time.Time // completed and lease may be zero
}

// New makes an empty store.
func New() *Store { return NewWithConfig(Config{}) }

// NewWithConfig makes a store by a [Config].
func NewWithConfig(cfg Config) *Store {
	if cfg.Share != nil {
		return &Store{cfg: cfg, db: cfg.Share.db}
	}
	return &Store{cfg: cfg, db: &database{
		records: make(map[idempotency.ID]row),
		open:    make(map[idempotency.ID]bool),
		locked:  make(map[idempotency.ID]*transaction),
	}}
}

// Check refuses a program that is not a test, unless [Config.AllowOutsideTests] is set; then it warns.
func (s *Store) Check(context.Context) (warnings []string, err error) {
	return s.check(testing.Testing())
}

func (s *Store) check(inTest bool) (warnings []string, err error) {
	switch {
	case inTest:
		return nil, nil
	case s.cfg.AllowOutsideTests:
		return []string{"memstore keeps its records in this process only: a restart or a second replica runs the work again"}, nil
	}
	return nil, errors.New("memstore: this store is for tests: a restart or a second replica would run the work again; use pgstore or sqlitestore")
}

// Describe names the store.
func (s *Store) Describe() string { return "memory (for tests only)" }

// Look reads the record of a claim.
func (s *Store) Look(ctx context.Context, c idempotency.Claim) (*idempotency.Record, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("memstore: %w", err)
	}
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	return s.db.read(c.ID), nil
}

// Begin starts an attempt. It gives [idempotency.ErrBusy] while another one of the key is open, unless [Config.NoHint] is set.
func (s *Store) Begin(ctx context.Context, c idempotency.Claim) (idempotency.Transaction, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("memstore: %w", err)
	}
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	if !s.cfg.NoHint {
		if s.db.open[c.ID] {
			return nil, fmt.Errorf("memstore: %w", idempotency.ErrBusy)
		}
		s.db.open[c.ID] = true
	}
	return &attempt{db: s.db, claim: c, hinted: !s.cfg.NoHint, found: s.db.read(c.ID)}, nil
}

// Insert writes one row of business data: in the transaction that ctx holds, where it becomes visible when that is committed and
// not before, or at once where ctx holds none. A lease holds one while its business transaction is open ([Store.InTx]). Within an
// attempt, a lease or a transaction that has ended it is an error.
func (s *Store) Insert(ctx context.Context, note string) error {
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	var tx *transaction
	switch held := ctx.Value(heldKey{s.db}).(type) {
	case *attempt:
		tx = &held.tx
		held.used = held.used || !tx.over
	case *lease:
		if held.ended {
			return errEnded
		}
		tx = held.tx
	case *transaction:
		tx = held
	}
	if tx == nil {
		s.db.rows = append(s.db.rows, note)
		return nil
	}
	if tx.over {
		return errEnded
	}
	tx.rows = append(tx.rows, note)
	return nil
}

// Rows gives the rows of business data that are committed, in the order of their commits.
func (s *Store) Rows() []string {
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	return slices.Clone(s.db.rows)
}

// Records gives all records, in no order.
func (s *Store) Records() []idempotency.Record {
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	var records []idempotency.Record
	for id := range maps.Keys(s.db.records) {
		records = append(records, *s.db.read(id))
	}
	return records
}

// Put writes a record as it is, over one that has the same id. It ends an hour ago if rec.Expired is true, and otherwise
// after the default retention. If it is in progress, its lease ends after rec.LeaseLeft, or a minute ago where that is 0. Zero
// Attempts and Fence are written as 1.
func (s *Store) Put(id idempotency.ID, rec idempotency.Record) {
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	now := time.Now()
	r := row{record: rec, created: now, expires: now.Add(idempotency.DefaultRetention)}
	r.record.Result = bytes.Clone(rec.Result)
	r.record.Attempts, r.record.Fence = max(rec.Attempts, 1), max(rec.Fence, 1)
	if rec.Expired {
		r.expires = now.Add(-time.Hour)
	}
	switch {
	case rec.State == idempotency.Completed:
		r.completed = now
	case rec.State == idempotency.InProgress && rec.LeaseLeft > 0:
		r.lease = now.Add(rec.LeaseLeft)
	case rec.State == idempotency.InProgress:
		r.lease = now.Add(-time.Minute)
	}
	s.db.records[id] = r
}

// Age makes all records older by d: their creation, completion and expiry and the ends of their leases.
func (s *Store) Age(d time.Duration) {
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	for id, r := range s.db.records {
		for _, t := range []*time.Time{&r.created, &r.completed, &r.expires, &r.lease} {
			if !t.IsZero() {
				*t = t.Add(-d)
			}
		}
		s.db.records[id] = r
	}
}

// read gives a copy of a record, or nil.
func (db *database) read(id idempotency.ID) *idempotency.Record {
	r, ok := db.records[id]
	if !ok {
		return nil
	}
	return r.read(time.Now())
}

func (r row) read(now time.Time) *idempotency.Record {
	rec := r.record
	rec.Result = bytes.Clone(rec.Result)
	rec.Expired = !now.Before(r.expires)
	rec.LeaseLeft = 0
	if rec.State == idempotency.InProgress {
		rec.LeaseLeft = max(r.lease.Sub(now), 0)
	}
	return &rec
}

// heldKey is where a context holds an *attempt, a *lease or a *transaction.
type heldKey struct{ db *database }

var errEnded = errors.New("memstore: the attempt has ended")

type attempt struct {
	db     *database
	claim  idempotency.Claim
	found  *idempotency.Record
	hinted bool
	// The rest is guarded by db.mu.
	tx   transaction
	used bool
}

func (a *attempt) Found() *idempotency.Record { return a.found }

func (a *attempt) Context(ctx context.Context) context.Context {
	return context.WithValue(ctx, heldKey{a.db}, a)
}

func (a *attempt) Used() bool {
	a.db.mu.Lock()
	defer a.db.mu.Unlock()
	return a.used
}

// Ended is false: there is no way for a handler to end an attempt.
func (a *attempt) Ended() bool { return false }

func (a *attempt) Complete(ctx context.Context, done idempotency.Completion) error {
	return a.record(ctx, done, true)
}

func (a *attempt) Refuse(ctx context.Context, done idempotency.Completion) error {
	return a.record(ctx, done, false)
}

func (a *attempt) Rollback(context.Context) {
	a.db.mu.Lock()
	defer a.db.mu.Unlock()
	a.end()
}

func (a *attempt) Transient(err error) bool { return errors.Is(err, idempotency.ErrSerialization) }

// record ends the attempt with a record, and with its rows if they are to be kept.
func (a *attempt) record(ctx context.Context, done idempotency.Completion, keepRows bool) error {
	a.db.mu.Lock()
	defer a.db.mu.Unlock()
	if a.tx.over {
		return errEnded
	}
	a.end()
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("memstore: %w", err)
	}
	if keepRows && a.tx.spoiled {
		return fmt.Errorf("memstore: %w", idempotency.ErrTransactionAborted)
	}
	if !a.takes(a.db.read(a.claim.ID)) {
		return fmt.Errorf("memstore: %w", idempotency.ErrLost)
	}
	now := time.Now()
	r := claimed(&a.claim, now)
	r.record.Attempts = 1
	r.complete(done, now)
	a.db.records[a.claim.ID] = r
	if keepRows {
		a.db.rows = append(a.db.rows, a.tx.rows...)
	}
	return nil
}

// takes reports whether the attempt may write its record over the one that stands there.
func (a *attempt) takes(rec *idempotency.Record) bool {
	switch {
	case rec == nil:
		return true
	case rec.Scope != a.claim.Scope:
		return false
	case rec.State == idempotency.Failed && samePayload(rec, &a.claim):
		return true
	}
	return reusable(rec) && rec.State != idempotency.InProgress
}

func (a *attempt) end() {
	if a.tx.over {
		return
	}
	a.tx.over = true
	if a.hinted {
		delete(a.db.open, a.claim.ID)
	}
}

// claimed is the beginning of a record's life.
func claimed(c *idempotency.Claim, now time.Time) row {
	return row{
		record: idempotency.Record{
			Scope: c.Scope, Hash: c.Hash, HashVersion: c.HashVersion, AfterExpiry: c.AfterExpiry,
			Attempt: c.Attempt, OriginRequestID: c.OriginRequestID, OriginTrace: c.OriginTrace, DraftID: c.DraftID,
		},
		created: now, expires: now.Add(c.Retention),
	}
}

// complete makes r a completed record.
func (r *row) complete(done idempotency.Completion, now time.Time) {
	r.completed = now
	r.record.State = idempotency.Completed
	r.record.Outcome, r.record.Result, r.record.ResultType = done.Outcome, bytes.Clone(done.Result), done.ResultType
	r.record.ExternalRef = done.ExternalRef
}

// reusable reports whether the key of a record is new work.
func reusable(rec *idempotency.Record) bool {
	return rec.Expired && rec.AfterExpiry == idempotency.Reuse && rec.ResultType != tombstone
}

// samePayload compares the hashes, that of an older version of the contract included.
func samePayload(rec *idempotency.Record, c *idempotency.Claim) bool {
	return rec.Hash == c.Hash || c.PriorHash != [32]byte{} && rec.Hash == c.PriorHash
}
