// Package sqlitestore keeps the records of idempotent commands in an SQLite database, in the same transaction as the business
// rows that a handler writes through [DB] (rule rec-1). It works on a *sql.DB and brings no driver: the application imports
// the one it likes. It needs SQLite 3.37 or newer and is tested with modernc.org/sqlite.
//
// # How an attempt runs
//
// An Atomic attempt is one transaction:
//
//	Begin      waits for its turn in this process; takes one connection; BEGIN and the write lock; reads the record
//	           the handler's own statements, on the same connection
//	Complete   writes the record in its final state; COMMIT
//
// A Leased one is two, and its handler may call the outside world between them:
//
//	Lease      in its turn: BEGIN and the write lock; claims the key under a lease; COMMIT
//	           the handler calls the outside world, while Renew keeps the lease alive by short writes
//	InTx       waits for its turn; takes one connection; BEGIN and the write lock; makes sure that the lease is still its own
//	           the handler's own statements, on the same connection
//	Complete   completes the record if it is still its own; COMMIT
//
// The primary key decides who owns a key (rule rec-2); as there is one writer at a time, whoever comes later reads the
// winner's record. A command takes one connection at a time and never asks for a second, so a pool of one works.
//
// # One writer at a time
//
// SQLite has a single write lock for the whole database. An Atomic attempt holds it from Begin to COMMIT, with its handler in
// between; a Leased one holds it while it claims the key, and from InTx to COMMIT. Every other write waits meanwhile, in this
// process and in others, with a key of its own or without one; readers do not. So on SQLite make a command Leased
// ([idempotency.Leased]) unless its handler is short, and let its handler do what takes time before it calls [InTx]. That costs a
// second commit to the disk. Calls to the outside world never belong between Begin or InTx and the end of the handler. Where that
// is not enough, use pgstore.
//
// Transactions of one [Store] queue in the order in which they came, and wait without a connection, as long as their context
// allows. Make one Store for each database in a process. Between processes, and against writes that do not come through the
// store, SQLite's busy timeout decides ([Config].BusyTimeout); when it runs out the store counts as not available, and the
// caller may send the same key again.
//
// A handler that writes through the *sql.DB while its own transaction is open waits for that until the busy timeout runs out. What
// a Leased handler writes before InTx is committed at once and by itself, without the store's queue and patience.
//
// # Durability
//
// The journal mode must be WAL, so that readers do not stop a commit. An attempt's connection runs with synchronous=FULL:
// with NORMAL, a loss of power may take the last commits back after they have been acknowledged, and for a key that means a
// second execution. That goes for claims as well: a
// policy's RelaxedClaim is ignored. FULL and the busy timeout are set on the connection each time, whatever the data source name says and
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

	turn   chan struct{} // holds a token while a transaction is open; waiters are served in their order
	stmts  atomic.Pointer[statements]
	leases atomic.Pointer[leaseStatements]
	file   atomic.Pointer[string] // found by Check

	mu   sync.Mutex
	open map[idempotency.ID]struct{} // the keys of Atomic attempts that are open or wait for their turn
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

// The statements name the schema, because a temporary table of the same name, which a connection keeps, would stand in front of ours.
const (
	// lockSQL changes nothing and, being a write, takes the write lock: with it first, a transaction is an immediate one
	// however the driver began it, waits for the lock as long as the busy timeout says, and never holds an old snapshot.
	lockSQL = `UPDATE main.idempotency_records SET attempts = attempts WHERE 0`

	recordColumns = `SELECT tenant, client, operation, key, request_hash, hash_version, state, after_expiry, attempt, coalesce(outcome, 0),
 result, coalesce(result_type, ''), origin_request_id, coalesce(origin_trace, ''), coalesce(external_ref, ''), coalesce(draft_id, ''), expires_at`

	readSQL = recordColumns + ` FROM main.idempotency_records WHERE id = ?`

	// writeSQL takes the key from a record that is absent, expired and may be used again, or failed with the same hash. It
	// changes no row where another record stands. ?16 is now, ?19 a hash that counts as the same, or null.
	writeSQL = `INSERT INTO main.idempotency_records AS r (id, tenant, client, operation, key, request_hash, hash_version, state, after_expiry, attempt,
  attempts, outcome, result, result_type, origin_request_id, external_ref, draft_id, created_at, completed_at, expires_at, origin_trace)
 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 'completed', ?8, ?9, 1, ?10, ?11, ?12, ?13, nullif(?14, ''), nullif(?15, ''), ?16, ?16, ?17, nullif(?18, ''))
 ON CONFLICT (id) DO UPDATE SET request_hash = excluded.request_hash, hash_version = excluded.hash_version, state = excluded.state,
  after_expiry = excluded.after_expiry, attempt = excluded.attempt, attempts = 1, fence = NULL, lease_until = NULL, outcome = excluded.outcome,
  result = excluded.result, result_type = excluded.result_type, origin_request_id = excluded.origin_request_id, origin_trace = excluded.origin_trace,
  external_ref = excluded.external_ref, draft_id = excluded.draft_id, created_at = excluded.created_at, completed_at = excluded.completed_at,
  expires_at = excluded.expires_at
 WHERE r.tenant = excluded.tenant AND r.client = excluded.client AND r.operation = excluded.operation AND r.key = excluded.key
  AND (r.expires_at <= ?16 AND r.after_expiry = 'reuse' AND r.state <> 'in_progress' AND r.result_type IS NOT 'tombstone'
   OR r.state = 'failed' AND (r.request_hash = excluded.request_hash OR r.request_hash = ?19))`

	// A savepoint stands around the handler's statements. It is gone if the handler ended the transaction, even if it began
	// another, and it is what a refusal goes back to.
	markSQL     = `SAVEPOINT tekil_attempt`
	releaseSQL  = `RELEASE tekil_attempt`
	rollBackSQL = `ROLLBACK TO tekil_attempt`
)

// statements are prepared once on the pool, which keeps them on each of its connections.
type statements struct{ lock, read, mark, release, write *sql.Stmt }

func (st *statements) slots() []slot {
	return []slot{{&st.lock, lockSQL}, {&st.read, readSQL}, {&st.mark, markSQL}, {&st.release, releaseSQL}, {&st.write, writeSQL}}
}

// slot is where a prepared statement goes.
type slot struct {
	stmt **sql.Stmt
	text string
}

// prepared gives the statements and prepares them when they are first needed. It must not be called by one who holds a
// connection.
func (s *Store) prepared(ctx context.Context) (*statements, error) {
	return prepare(ctx, s.db, &s.stmts)
}

func (s *Store) leasing(ctx context.Context) (*leaseStatements, error) {
	return prepare(ctx, s.db, &s.leases)
}

func prepare[T any, P interface {
	*T
	slots() []slot
}](ctx context.Context, db *sql.DB, at *atomic.Pointer[T]) (*T, error) {
	if st := at.Load(); st != nil {
		return st, nil
	}
	st := new(T)
	slots := P(st).slots()
	for i, sl := range slots {
		stmt, err := db.PrepareContext(ctx, sl.text)
		if err != nil {
			closeAll(slots[:i])
			return nil, err
		}
		*sl.stmt = stmt
	}
	if !at.CompareAndSwap(nil, st) { // somebody else was quicker
		closeAll(slots)
	}
	return at.Load(), nil
}

func closeAll(slots []slot) {
	for _, sl := range slots {
		_ = (*sl.stmt).Close()
	}
}

// Look reads the record of a claim, or gives nil. It takes a connection of the pool and no lock.
func (s *Store) Look(ctx context.Context, c idempotency.Claim) (*idempotency.Record, error) {
	rec, err := patiently(ctx, s, func(ctx context.Context) (*idempotency.Record, error) {
		if c.Lease > 0 {
			st, err := s.leasing(ctx)
			if err != nil {
				return nil, err
			}
			return recordOf(st.read.QueryRowContext(ctx, c.ID[:]), true)
		}
		st, err := s.prepared(ctx)
		if err != nil {
			return nil, err
		}
		return recordOf(st.read.QueryRowContext(ctx, c.ID[:]), false)
	})
	if err != nil {
		return nil, fmt.Errorf("sqlitestore: read the record: %w", err)
	}
	return rec, nil
}

// patiently reads on a connection of the pool, and does so a second time if the first one fails: a reader has to wait where
// another process is just closing or recovering the file, and a connection of the pool may have no patience for it.
func patiently[T any](ctx context.Context, s *Store, read func(context.Context) (T, error)) (T, error) {
	v, err := read(ctx)
	if err != nil && ctx.Err() == nil {
		if err = s.settle(ctx); err == nil {
			v, err = read(ctx)
		}
	}
	return v, err
}

// settle waits, as long as the busy timeout says, until the table can be read.
func (s *Store) settle(ctx context.Context) error {
	conn, err := s.conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = conn.ExecContext(ctx, `SELECT 1 FROM main.idempotency_records LIMIT 0`)
	return err
}

// conn takes a connection that waits for locks and whose commits are durable.
func (s *Store) conn(ctx context.Context) (*sql.Conn, error) {
	return connect(ctx, s.db, s.cfg.BusyTimeout)
}

func connect(ctx context.Context, db *sql.DB, busy time.Duration) (*sql.Conn, error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	if err := arm(context.WithoutCancel(ctx), conn, busy); err != nil {
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

// recordOf reads a record, or gives nil for no row.
func recordOf(row *sql.Row, leased bool) (*idempotency.Record, error) {
	r, _, err := scanRecord(row, leased)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	return r, err
}

// times are what a record does not show of itself.
type times struct {
	expires int64
	lease   sql.NullInt64
}

// scanRecord reads the columns of a record and, after them, those of a lease, which Atomic commands are spared, and those for more.
func scanRecord(row interface{ Scan(dest ...any) error }, leased bool, more ...any) (*idempotency.Record, times, error) {
	r := new(idempotency.Record)
	var at times
	var hash, attempt []byte
	var afterExpiry string
	dest := []any{&r.Scope.Tenant, &r.Scope.Client, &r.Scope.Operation, &r.Scope.Key, &hash, &r.HashVersion, (*string)(&r.State), &afterExpiry,
		&attempt, (*int16)(&r.Outcome), &r.Result, &r.ResultType, &r.OriginRequestID, &r.OriginTrace, &r.ExternalRef, &r.DraftID, &at.expires}
	if leased {
		dest = append(append(dest, &r.Attempts, &r.Fence, &at.lease), more...)
	}
	if err := row.Scan(dest...); err != nil {
		return nil, at, err
	}
	copy(r.Hash[:], hash)
	copy(r.Attempt[:], attempt)
	if afterExpiry == tombstone {
		r.AfterExpiry = idempotency.Tombstone
	}
	if r.ResultType == tombstone {
		r.Result = nil // an empty one says that it has not been buried yet
	}
	now := time.Now().UnixMilli()
	r.Expired = at.expires <= now
	if leased && r.State == idempotency.InProgress {
		r.LeaseLeft = time.Duration(max(at.lease.Int64-now, 0)) * time.Millisecond
	}
	return r, at, nil
}

// The values of the column after_expiry. The second one is also the result type of a record without its outcome.
const reuse, tombstone = "reuse", "tombstone"

func afterExpiry(c *idempotency.Claim) string {
	if c.AfterExpiry == idempotency.Tombstone {
		return tombstone
	}
	return reuse
}

// priorHash is a hash that counts as that of the claim, or nil.
func priorHash(c *idempotency.Claim) any {
	if c.PriorHash == [32]byte{} {
		return nil
	}
	return c.PriorHash[:]
}
