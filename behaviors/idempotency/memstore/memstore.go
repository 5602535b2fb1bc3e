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
	open    map[idempotency.ID]bool // the keys of open attempts that were begun with the hint
}

type row struct {
	record  idempotency.Record // its Expired is not kept but judged on reading
	expires time.Time
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
func (s *Store) Begin(ctx context.Context, c idempotency.Claim) (idempotency.Attempt, error) {
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

// Insert writes one row of business data: in the attempt that ctx holds, where it becomes visible with the record and not
// before, or at once where ctx holds none. Within an attempt that has ended it is an error.
func (s *Store) Insert(ctx context.Context, note string) error {
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	a, ok := ctx.Value(attemptKey{s.db}).(*attempt)
	if !ok {
		s.db.rows = append(s.db.rows, note)
		return nil
	}
	if a.ended {
		return errEnded
	}
	a.used = true
	a.rows = append(a.rows, note)
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
// after the default retention.
func (s *Store) Put(id idempotency.ID, rec idempotency.Record) {
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	expires := time.Now().Add(idempotency.DefaultRetention)
	if rec.Expired {
		expires = time.Now().Add(-time.Hour)
	}
	rec.Result = bytes.Clone(rec.Result)
	s.db.records[id] = row{rec, expires}
}

// Age makes all records older by d.
func (s *Store) Age(d time.Duration) {
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	for id, r := range s.db.records {
		r.expires = r.expires.Add(-d)
		s.db.records[id] = r
	}
}

// read gives a copy of a record, or nil.
func (db *database) read(id idempotency.ID) *idempotency.Record {
	r, ok := db.records[id]
	if !ok {
		return nil
	}
	rec := r.record
	rec.Result = bytes.Clone(rec.Result)
	rec.Expired = !time.Now().Before(r.expires)
	return &rec
}

type attemptKey struct{ db *database }

var errEnded = errors.New("memstore: the attempt has ended")

type attempt struct {
	db     *database
	claim  idempotency.Claim
	found  *idempotency.Record
	hinted bool
	// The rest is guarded by db.mu, because a handler may write from several goroutines.
	rows        []string
	used, ended bool
}

func (a *attempt) Found() *idempotency.Record { return a.found }

func (a *attempt) Context(ctx context.Context) context.Context {
	return context.WithValue(ctx, attemptKey{a.db}, a)
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
	if a.ended {
		return errEnded
	}
	a.end()
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("memstore: %w", err)
	}
	if !a.takes(a.db.read(a.claim.ID)) {
		return fmt.Errorf("memstore: %w", idempotency.ErrLost)
	}
	c := &a.claim
	a.db.records[c.ID] = row{
		record: idempotency.Record{
			Scope: c.Scope, Hash: c.Hash, HashVersion: c.HashVersion,
			State: idempotency.Completed, AfterExpiry: c.AfterExpiry, Attempt: c.Attempt,
			Outcome: done.Outcome, Result: bytes.Clone(done.Result), ResultType: done.ResultType,
			OriginRequestID: c.OriginRequestID, ExternalRef: done.ExternalRef,
		},
		expires: time.Now().Add(c.Retention),
	}
	if keepRows {
		a.db.rows = append(a.db.rows, a.rows...)
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
	case rec.State == idempotency.Failed && rec.Hash == a.claim.Hash:
		return true
	}
	return rec.Expired && rec.AfterExpiry == idempotency.Reuse && rec.State != idempotency.InProgress
}

func (a *attempt) end() {
	if a.ended {
		return
	}
	a.ended = true
	if a.hinted {
		delete(a.db.open, a.claim.ID)
	}
}
