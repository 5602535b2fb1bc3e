// Package sqlitestore keeps the records of idempotent commands in an SQLite database, in the same transaction as the business
// rows that a handler writes through [DB] (rule rec-1). It works on a *sql.DB and brings no driver: the application imports
// the one it likes. It needs SQLite 3.37 or newer and is tested with modernc.org/sqlite.
//
// # How an attempt runs
//
//	Begin      waits for its turn in this process; takes one connection; BEGIN and the write lock; reads the record
//	           the handler's own statements, on the same connection
//	Complete   writes the record in its final state; COMMIT
//
// The primary key decides who owns a key (rule rec-2); as there is one writer at a time, whoever comes later reads the
// winner's record. A command takes one connection and never asks for a second, so a pool of one works.
//
// # One writer at a time
//
// SQLite has a single write lock for the whole database, and an attempt holds it from Begin to COMMIT, with its handler in
// between. Every other write waits meanwhile, in this process and in others, with a key of its own or without one; readers do
// not. So keep handlers short, and make no calls to the outside world in them. Where that is not enough, use pgstore.
//
// Attempts of one [Store] queue in the order in which they came, and wait without a connection, as long as their context
// allows. Make one Store for each database in a process. Between processes, and against writes that do not come through the
// store, SQLite's busy timeout decides ([Config].BusyTimeout); when it runs out the store counts as not available, and the
// caller may send the same key again.
//
// A handler that writes through the *sql.DB instead of [DB] waits for its own transaction until the busy timeout runs out.
//
// # Durability
//
// The journal mode must be WAL, so that readers do not stop a commit. An attempt's connection runs with synchronous=FULL:
// with NORMAL, a loss of power may take the last commits back after they have been acknowledged, and for a key that means a
// second execution. FULL and the busy timeout are set on the connection each time, whatever the data source name says and
// whatever was done to the connection before, and stay set when it goes back to the pool. How a driver begins its
// transactions (_txlock and the like) does not matter. foreign_keys is left alone.
//
// Databases in memory are refused by [Store.Check], because their records end with the process. Databases on network file
// systems are not supported: their locks cannot be relied on. Rows that a handler writes to an attached database do not share
// the record's commit, because in WAL mode SQLite commits each file for itself.
//
// Times are those of the process's clock. Processes on one database run on one machine and so share it.
package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tekil-go/tekil/behaviors/idempotency"
)

// defaultBusyTimeout is the zero Config's BusyTimeout.
const defaultBusyTimeout = 5 * time.Second

// Config is the settings of a [Store]. The zero Config is usable.
type Config struct {
	// BusyTimeout bounds how long an attempt waits for the write lock while another process, or a write of this one that
	// does not come through the store, holds it. It is set on each connection that the store uses, in milliseconds. Zero
	// means 5 seconds.
	BusyTimeout time.Duration
}

// Store keeps records in an SQLite database. It is safe for concurrent use. It does not own the *sql.DB and does not close
// it. Make it with [New] or [NewWithConfig], once for each database.
type Store struct {
	db  *sql.DB
	cfg Config

	turn  chan struct{} // holds a token while an attempt is open; waiters are served in their order
	stmts atomic.Pointer[statements]
	file  atomic.Pointer[string] // found by Check

	mu   sync.Mutex
	open map[idempotency.ID]struct{} // the keys of attempts that are open or wait for their turn
}

var _ idempotency.Store = (*Store)(nil)

// New makes a store on db with the default settings.
func New(db *sql.DB) *Store { return NewWithConfig(db, Config{}) }

// NewWithConfig makes a store on db. Settings that make no sense are reported by [Store.Check], which Build calls.
func NewWithConfig(db *sql.DB, cfg Config) *Store {
	if cfg.BusyTimeout == 0 {
		cfg.BusyTimeout = defaultBusyTimeout
	}
	return &Store{db: db, cfg: cfg, turn: make(chan struct{}, 1), open: make(map[idempotency.ID]struct{})}
}

// Describe names the store and, once [Store.Check] has run, the file that its records are in.
func (s *Store) Describe() string {
	if file := s.file.Load(); file != nil {
		return "sqlitestore idempotency_records in " + *file
	}
	return "sqlitestore idempotency_records"
}

const (
	// lockSQL changes nothing and, being a write, takes the write lock: with it first, a transaction is an immediate one
	// however the driver began it, waits for the lock as long as the busy timeout says, and never holds an old snapshot.
	lockSQL = `UPDATE idempotency_records SET attempts = attempts WHERE 0`

	readSQL = `SELECT tenant, client, operation, key, request_hash, hash_version, state, after_expiry, attempt, coalesce(outcome, 0),
 result, coalesce(result_type, ''), origin_request_id, coalesce(external_ref, ''), expires_at FROM idempotency_records WHERE id = ?`

	// writeSQL takes the key from a record that is absent, expired and may be used again, or failed with the same hash. It
	// changes no row where another record stands. ?15 is now.
	writeSQL = `INSERT INTO idempotency_records AS r (id, tenant, client, operation, key, request_hash, hash_version, state, after_expiry, attempt,
  attempts, outcome, result, result_type, origin_request_id, external_ref, created_at, completed_at, expires_at)
 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 'completed', ?8, ?9, 1, ?10, ?11, ?12, ?13, nullif(?14, ''), ?15, ?15, ?16)
 ON CONFLICT (id) DO UPDATE SET request_hash = excluded.request_hash, hash_version = excluded.hash_version, state = excluded.state,
  after_expiry = excluded.after_expiry, attempt = excluded.attempt, attempts = 1, fence = NULL, lease_until = NULL, outcome = excluded.outcome,
  result = excluded.result, result_type = excluded.result_type, origin_request_id = excluded.origin_request_id,
  external_ref = excluded.external_ref, created_at = excluded.created_at, completed_at = excluded.completed_at, expires_at = excluded.expires_at
 WHERE r.tenant = excluded.tenant AND r.client = excluded.client AND r.operation = excluded.operation AND r.key = excluded.key
  AND (r.expires_at <= ?15 AND r.after_expiry = 'reuse' AND r.state <> 'in_progress' AND r.result_type IS NOT 'tombstone'
   OR r.state = 'failed' AND r.request_hash = excluded.request_hash)`

	// A savepoint stands around the handler's statements. It is gone if the handler ended the transaction, even if it began
	// another, and it is what a refusal goes back to.
	markSQL     = `SAVEPOINT tekil_attempt`
	releaseSQL  = `RELEASE tekil_attempt`
	rollBackSQL = `ROLLBACK TO tekil_attempt`
)

// statements are prepared once on the pool, which keeps them on each of its connections.
type statements struct{ lock, read, mark, release, write *sql.Stmt }

// prepared gives the statements and prepares them when they are first needed. It must not be called by one who holds a
// connection.
func (s *Store) prepared(ctx context.Context) (*statements, error) {
	if st := s.stmts.Load(); st != nil {
		return st, nil
	}
	st := new(statements)
	texts := [...]string{lockSQL, readSQL, markSQL, releaseSQL, writeSQL}
	slots := [...]**sql.Stmt{&st.lock, &st.read, &st.mark, &st.release, &st.write}
	for i := range slots {
		stmt, err := s.db.PrepareContext(ctx, texts[i])
		if err != nil {
			st.close()
			return nil, err
		}
		*slots[i] = stmt
	}
	if !s.stmts.CompareAndSwap(nil, st) { // somebody else was quicker
		st.close()
	}
	return s.stmts.Load(), nil
}

func (st *statements) close() {
	for _, stmt := range [...]*sql.Stmt{st.lock, st.read, st.mark, st.release, st.write} {
		if stmt != nil {
			_ = stmt.Close()
		}
	}
}

// Look reads the record of a claim, or gives nil. It takes a connection of the pool and no lock.
func (s *Store) Look(ctx context.Context, c idempotency.Claim) (*idempotency.Record, error) {
	rec, err := s.look(ctx, &c)
	if err != nil && ctx.Err() == nil {
		// A reader has to wait where another process is just closing or recovering the file, and a connection of the pool
		// may have no patience for it.
		if err = s.settle(ctx); err == nil {
			rec, err = s.look(ctx, &c)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("sqlitestore: read the record: %w", err)
	}
	return rec, nil
}

func (s *Store) look(ctx context.Context, c *idempotency.Claim) (*idempotency.Record, error) {
	st, err := s.prepared(ctx)
	if err != nil {
		return nil, err
	}
	return scanRecord(st.read.QueryRowContext(ctx, c.ID[:]))
}

// settle waits, as long as the busy timeout says, until the table can be read.
func (s *Store) settle(ctx context.Context) error {
	conn, err := s.conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = conn.ExecContext(ctx, `SELECT 1 FROM idempotency_records LIMIT 0`)
	return err
}

// conn takes a connection that waits for locks and whose commits are durable.
func (s *Store) conn(ctx context.Context) (*sql.Conn, error) {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	if err := arm(context.WithoutCancel(ctx), conn, s.cfg.BusyTimeout); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

// arm sets what an attempt needs of its connection. A pragma acts when it is parsed, so these cannot be prepared.
func arm(ctx context.Context, conn *sql.Conn, busy time.Duration) error {
	if _, err := conn.ExecContext(ctx, fmt.Sprintf(`PRAGMA busy_timeout = %d`, max(busy.Milliseconds(), 1))); err != nil {
		return fmt.Errorf("set busy_timeout: %w", err)
	}
	if _, err := conn.ExecContext(ctx, `PRAGMA synchronous = FULL`); err != nil {
		return fmt.Errorf("set synchronous: %w", err)
	}
	return nil
}

// scanRecord reads a record, or gives nil for no row.
func scanRecord(row *sql.Row) (*idempotency.Record, error) {
	r := new(idempotency.Record)
	var hash, attempt []byte
	var afterExpiry string
	var expires int64
	err := row.Scan(&r.Scope.Tenant, &r.Scope.Client, &r.Scope.Operation, &r.Scope.Key, &hash, &r.HashVersion, (*string)(&r.State), &afterExpiry,
		&attempt, (*int16)(&r.Outcome), &r.Result, &r.ResultType, &r.OriginRequestID, &r.ExternalRef, &expires)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	copy(r.Hash[:], hash)
	copy(r.Attempt[:], attempt)
	if afterExpiry == tombstone {
		r.AfterExpiry = idempotency.Tombstone
	}
	r.Expired = expires <= time.Now().UnixMilli()
	return r, nil
}

// The values of the column after_expiry.
const reuse, tombstone = "reuse", "tombstone"
