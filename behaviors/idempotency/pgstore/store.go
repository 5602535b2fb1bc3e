// Package pgstore keeps the records of idempotent commands in PostgreSQL, in the same transaction as the business rows that a
// handler writes through [DB] or [Tx] (rule rec-1). It needs PostgreSQL 14 or newer and pgx v5.
//
// # How an Atomic attempt runs
//
// The record is written once, in its final state, by the last statement before COMMIT:
//
//	turn 1   BEGIN; take the advisory lock of the key, or not; read the record
//	turns    the handler's own statements
//	last     write the record, or raise an error; COMMIT
//
// The unique index decides who owns a key (rule rec-2). The transaction-level advisory lock is a hint that lets a duplicate
// turn back before it does work in vain; where it does nothing, the loser's last statement raises an error (a unique violation,
// or a division by zero where it wanted to take over an expired record), the COMMIT behind it is not executed, its business
// rows roll back, and it replays the winner's outcome. That error matters: a COMMIT
// pipelined behind a statement that only returns no row would commit all the same.
//
// # How a Leased attempt runs
//
// The claim is committed before the handler goes to the outside world, and the record is completed by the last statement of the
// business transaction that the handler opens with [InTx]:
//
//	turn 1   insert the record, in progress, with the attempt's random token and a lease; this commits itself
//	         (only where a record is there: BEGIN; take it, if it may be taken; read it; COMMIT, in a second turn)
//	         the handler calls out; the lease is renewed every third of its length, on a connection of its own
//	turn 2   BEGIN; lock the record if it is still this attempt's (InTx)
//	turns    the handler's own statements
//	last     complete the record if it is still this attempt's, or raise an error; COMMIT
//
// Whether the record is still this attempt's is told by the token and never by the clock: an attempt whose lease is over and
// whose key nobody has taken completes as any other. One that was taken over finds no row, so its COMMIT is not executed. While
// the business transaction is open nobody can take the key over: those who try wait, no longer than Config.LockTimeout.
//
// The sequence idempotency_fence numbers the grants, for outside systems that refuse what is older than what they have seen.
//
// All times are the server's (clock_timestamp()), so the clocks of the application's machines do not matter, and what is
// decided after a wait is decided by the time after the wait. The transaction's level is always said: READ COMMITTED unless the
// command's policy asks for more.
//
// # What it costs
//
// Atomic, as many turnarounds on the wire as the bare transaction: with one business statement three. A replay of a key that this
// process has met takes one, any other two.
//
// Leased, one more, and a second wait for the disk (unless the policy's RelaxedClaim spares it): with one business statement four. A
// handler without InTx takes two. A replay takes one or two, as above.
//
// # Behind PgBouncer
//
// Session mode works with everything, and statement mode is refused at the start. In transaction mode sessions are shared, so
// statements must not be prepared in one turn and used in the next: set default_query_exec_mode to exec (or cache_describe or
// simple_protocol). pgx's default and describe_exec are refused at the start where [Store.Check] finds that sessions are shared: with
// them a statement fails, or runs as another connection's. What [Configure] sets has to be set on the server's role or database.
//
// # Keeping the table small
//
// [Store.Purge], which idempotency.Purger calls, removes what has expired. [Store.Find] says which indexes a support desk may want.
package pgstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tekil-go/tekil/behaviors/idempotency"
)

// Config is the settings of a [Store]. The zero Config is usable.
type Config struct {
	// Schema is the schema that the tables are in. Empty means that their names are not qualified and the first schema of
	// the connection's search_path that has them is used.
	Schema string
	// NoHint switches the advisory lock off. Nothing depends on the lock, so this is for databases that have none and for
	// tests that prove it. Duplicates in different processes then do their work in vain and are rolled back.
	NoHint bool
	// LockTimeout bounds how long a statement about a record waits for another transaction that is just committing the same
	// key or, in a Leased command, holds its record. Zero means 2 seconds.
	LockTimeout time.Duration
}

// Store keeps records in PostgreSQL. It is safe for concurrent use. It does not own the pool and does not close it. Make it
// with [New] or [NewWithConfig].
type Store struct {
	pool *pgxpool.Pool
	cfg  Config

	hintSQL, lookSQL, insertSQL, replaceSQL              string
	claimSQL, takeSQL                                    map[bool]string // by Claim.Relaxed
	leasedLookSQL, lockSQL, renewSQL, finishSQL, burnSQL string
	findSQL, countSQL, freeSQL, eraseSQL, purgeSQL       string
}

var _ idempotency.Store = (*Store)(nil)

// New makes a store on pool with the default settings.
func New(pool *pgxpool.Pool) *Store { return NewWithConfig(pool, Config{}) }

// NewWithConfig makes a store on pool. Settings that make no sense are reported by [Store.Check], which Build calls.
func NewWithConfig(pool *pgxpool.Pool, cfg Config) *Store {
	if cfg.LockTimeout == 0 {
		cfg.LockTimeout = 2 * time.Second
	}
	s := &Store{pool: pool, cfg: cfg}
	table := s.table()
	// The time is the transaction's start: it proves at the end that this is still the same transaction.
	// Advisory locks are the database's and not the schema's, so the table takes part in the number.
	s.hintSQL = `SELECT pg_try_advisory_xact_lock($1::bigint # ` + literal(table) + `::regclass::oid::bigint), now()`
	if cfg.NoHint {
		s.hintSQL = `SELECT $1::bigint IS NOT NULL, now()`
	}
	// Each operator costs more than a column, so all that can be told from a column is told here and not by the server.
	const look = `SELECT tenant = $2 AND client = $3 AND operation = $4 AND key = $5, request_hash, hash_version, state, after_expiry, attempt,
 outcome, result, result_type, origin_request_id, origin_trace, external_ref, draft_id, expires_at <= clock_timestamp()`
	s.lookSQL = look + ` FROM ` + table + ` WHERE id = $1`
	s.leasedLookSQL = look + leaseColumns + ` FROM ` + table + ` WHERE id = $1`
	// The values of a record. The time of the transaction's start tells whether this is still the transaction that was begun; now()
	// is stable and so not evaluated before the statement runs: the raising branch raises only when it is taken.
	const columns = ` (id, tenant, client, operation, key, request_hash, hash_version, state, after_expiry, attempt, attempts,
  outcome, result, result_type, origin_request_id, external_ref, draft_id, created_at, completed_at, expires_at, origin_trace)
 SELECT $1::uuid, $2::text, $3::text, $4::text, $5::text, $6::bytea, $7::smallint, 'completed', $8::text, $9::uuid,
  CASE WHEN $17::timestamptz IS NULL OR now() = $17 THEN 1 ELSE ('another transaction, begun at ' || now()::text)::integer END,
  $10::smallint, $11::bytea, $12::text, $13::text, nullif($14::text, ''), nullif($15::text, ''),
  clock_timestamp(), clock_timestamp(), clock_timestamp() + $16::interval, nullif($18::text, '')
 FROM `
	values := columns + s.patience()
	// Where there was no record, a plain INSERT is enough: if another attempt was quicker it raises a unique violation. It takes
	// the server a sixth less time than the other one.
	s.insertSQL = `INSERT INTO ` + table + values
	s.replaceSQL = `WITH won AS (INSERT INTO ` + table + ` AS r` + values + `
 ON CONFLICT (id) DO UPDATE SET request_hash = excluded.request_hash, hash_version = excluded.hash_version, state = excluded.state,
  after_expiry = excluded.after_expiry, attempt = excluded.attempt, attempts = 1, fence = NULL, lease_until = NULL, outcome = excluded.outcome,
  result = excluded.result, result_type = excluded.result_type, origin_request_id = excluded.origin_request_id, origin_trace = excluded.origin_trace,
  external_ref = excluded.external_ref, draft_id = excluded.draft_id, created_at = excluded.created_at, completed_at = excluded.completed_at,
  expires_at = excluded.expires_at
 WHERE r.tenant = excluded.tenant AND r.client = excluded.client AND r.operation = excluded.operation AND r.key = excluded.key
  AND (r.expires_at <= clock_timestamp() AND r.after_expiry = 'reuse' AND r.state <> 'in_progress' AND r.result_type IS DISTINCT FROM 'tombstone'
   OR r.state = 'failed' AND r.request_hash IN (excluded.request_hash, $19::bytea))
 RETURNING 1)
SELECT 1 / count(*) FROM won`
	s.leaseSQL()
	s.supportSQL()
	return s
}

// patience is a FROM item that bounds, for the rest of the transaction, how long a statement waits for a row, and gives or sets
// what else is asked. It is evaluated before the statement meets the row. (A lock_timeout of 0 would mean for ever.)
func (s *Store) patience(more ...string) string {
	wait := `set_config('lock_timeout', '` + strconv.FormatInt(max(s.cfg.LockTimeout.Milliseconds(), 1), 10) + `', true)`
	return `(SELECT ` + strings.Join(append(more, wait), `, `) + `) AS patience`
}

// literal quotes a text for SQL.
func literal(text string) string { return `'` + strings.ReplaceAll(text, `'`, `''`) + `'` }

// What the record's statement raises.
const (
	uniqueViolation = "23505" // a record stands there
	raisedLost      = "22012" // division by zero: no row was won
	raisedEnded     = "22P02" // invalid text representation: the transaction is not the one that was begun
	lockTimeout     = "55P03" // another transaction has held the row for too long
)

func (s *Store) table() string { return s.qualified("idempotency_records") }

// sequence is where the fences come from.
func (s *Store) sequence() string { return s.qualified("idempotency_fence") }

func (s *Store) qualified(name string) string {
	if s.cfg.Schema == "" {
		return name
	}
	return pgx.Identifier{s.cfg.Schema, name}.Sanitize()
}

// Describe names the store and where its records are.
func (s *Store) Describe() string { return "pgstore " + s.table() }

// Look reads the record of a claim, or gives nil: one statement, no lock, no write.
func (s *Store) Look(ctx context.Context, c idempotency.Claim) (*idempotency.Record, error) {
	sql, leased := s.lookSQL, c.Lease > 0
	if leased {
		sql = s.leasedLookSQL
	}
	rec, err := scanRecord(s.pool.QueryRow(ctx, sql, scopeArgs(&c, 0)...), &c, leased)
	if err != nil {
		return nil, fmt.Errorf("pgstore: read the record: %w", err)
	}
	return rec, nil
}

// scopeArgs are the first arguments of every statement about one record, with room for more.
func scopeArgs(c *idempotency.Claim, more int) []any {
	args := make([]any, 0, 5+more)
	return append(args, uuid(c.ID), c.Scope.Tenant, c.Scope.Client, c.Scope.Operation, c.Scope.Key)
}

// uuid is an id as every query mode of pgx knows to send it.
func uuid(id [16]byte) pgtype.UUID { return pgtype.UUID{Bytes: id, Valid: true} }

// scanRecord reads a record, or gives nil for no row. The four columns of the scope are compared by the server; where they are
// not those of the claim, the record's scope is left empty, which the engine takes for what it is: another scope. leased says
// that the row has the columns of a lease as well.
func scanRecord(row pgx.Row, c *idempotency.Claim, leased bool) (*idempotency.Record, error) {
	var same bool
	r := new(idempotency.Record)
	f := fields{r: r}
	dest := [...]any{&same, &f.hash, &r.HashVersion, (*string)(&r.State), &f.afterExpiry, (*[16]byte)(&r.Attempt),
		&f.outcome, &r.Result, &f.resultType, &r.OriginRequestID, &f.originTrace, &f.externalRef, &f.draftID, &r.Expired, &r.Attempts, &r.Fence, &r.LeaseLeft}
	n := len(dest)
	if !leased {
		n -= 3
	}
	err := row.Scan(dest[:n]...)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if same {
		r.Scope = c.Scope
	}
	f.fill()
	return r, nil
}

// fields are the columns of a record that are not its fields as they are.
type fields struct {
	r           *idempotency.Record
	hash        []byte
	afterExpiry string
	outcome     *int16

	resultType, originTrace, externalRef, draftID *string
}

func (f *fields) fill() {
	copy(f.r.Hash[:], f.hash)
	if f.afterExpiry == idempotency.Tombstone.String() {
		f.r.AfterExpiry = idempotency.Tombstone
	}
	if f.outcome != nil {
		f.r.Outcome = idempotency.OutcomeKind(*f.outcome)
	}
	for _, text := range [...]struct{ from, to *string }{
		{f.resultType, &f.r.ResultType}, {f.originTrace, &f.r.OriginTrace}, {f.externalRef, &f.r.ExternalRef}, {f.draftID, &f.r.DraftID},
	} {
		if text.from != nil {
			*text.to = *text.from
		}
	}
	if f.r.ResultType == tombstone {
		f.r.Result = nil // it may be empty in the table: see eraseSQL
	}
}

// Begin opens the transaction and reads the record in it, in one turn. It waits for a connection as long as ctx allows.
func (s *Store) Begin(ctx context.Context, c idempotency.Claim) (idempotency.Transaction, error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("pgstore: no connection: %w", err)
	}
	a := &attempt{loan: loan{conn: conn}, store: s, claim: c}
	got, err := a.begin(ctx)
	switch {
	case err != nil:
		a.Rollback(ctx)
		if transient(err) {
			return nil, fmt.Errorf("%w: %w", idempotency.ErrSerialization, err)
		}
		return nil, fmt.Errorf("pgstore: begin: %w", err)
	case !got:
		a.Rollback(ctx)
		return nil, idempotency.ErrBusy
	}
	return a, nil
}

// attempt is an Atomic attempt: a transaction that is the handler's from its first statement on.
type attempt struct {
	loan
	store  *Store
	claim  idempotency.Claim
	found  *idempotency.Record
	around holder
}

func (a *attempt) begin(ctx context.Context) (got bool, err error) {
	b := &pgx.Batch{}
	b.BeginTx(pgx.TxOptions{IsoLevel: level(a.claim.Isolation)})
	b.Queue(a.store.hintSQL, a.claim.ID.LockKey())
	b.Queue(a.store.lookSQL, scopeArgs(&a.claim, 0)...)
	br := a.conn.SendBatch(ctx, b)
	a.lend(br.Tx())
	if _, err = br.Exec(); err == nil {
		if err = br.QueryRow().Scan(&got, &a.started); err == nil {
			a.found, err = scanRecord(br.QueryRow(), &a.claim, false)
		}
	}
	if closing := br.Close(); err == nil {
		err = closing
	}
	return got, err
}

func level(i idempotency.Isolation) pgx.TxIsoLevel {
	switch i {
	case idempotency.RepeatableRead:
		return pgx.RepeatableRead
	case idempotency.Serializable:
		return pgx.Serializable
	}
	return pgx.ReadCommitted
}

// Found is the record that Begin read.
func (a *attempt) Found() *idempotency.Record { return a.found }

// Context puts the transaction into the handler's context.
func (a *attempt) Context(ctx context.Context) context.Context {
	a.around = held(ctx)
	return context.WithValue(ctx, holderKey{}, a)
}

func (a *attempt) on(pool *pgxpool.Pool) bool { return a.store.pool == pool }

func (a *attempt) outer() holder { return a.around }

func (a *attempt) handle() (*handle, error) {
	a.g.used.Store(true)
	return &a.given, nil
}

func (a *attempt) within(ctx context.Context, fn func(ctx context.Context) error) error {
	if a.g.revoked.Load() {
		return ErrRevoked
	}
	a.g.used.Store(true)
	return a.g.whole(ctx, fn)
}

// Used reports whether the handler has asked for the transaction.
func (a *attempt) Used() bool { return a.g.used.Load() }

// Ended reports whether the handler has ended the transaction, as far as the connection's state tells: one that has begun
// another is found out when the record is written.
func (a *attempt) Ended() bool { return a.takeBack() && a.ended() }

// Complete writes the record and commits, in one turn.
func (a *attempt) Complete(ctx context.Context, done idempotency.Completion) error {
	defer a.Rollback(ctx)
	if err := a.closing(); err != nil {
		return err
	}
	return a.record(ctx, &pgx.Batch{}, done, a.started)
}

// Refuse rolls the handler's rows back and writes the record of a refusal in a transaction of its own.
func (a *attempt) Refuse(ctx context.Context, done idempotency.Completion) error {
	defer a.Rollback(ctx)
	if err := a.undoing(); err != nil {
		return err
	}
	if err := a.rollback(ctx); err != nil {
		return fmt.Errorf("pgstore: roll back: %w", err)
	}
	return a.record(ctx, alone(), done, nil)
}

// record writes the record and commits. started is the time at which the transaction must have begun, or nil when b begins it.
func (a *attempt) record(ctx context.Context, b *pgx.Batch, done idempotency.Completion, started any) error {
	c := &a.claim
	args := append(scopeArgs(c, 14), c.Hash[:], c.HashVersion, c.AfterExpiry.String(), uuid(c.Attempt),
		int16(done.Outcome), stored(done.Result), done.ResultType, c.OriginRequestID, done.ExternalRef, c.DraftID, c.Retention, started, c.OriginTrace)
	sql := a.store.insertSQL
	if a.found != nil { // an expired record, or a failed one
		sql, args = a.store.replaceSQL, append(args, prior(c))
	}
	_, err := a.write(ctx, b, sql, args...)
	return err
}

// stored is a result as a completed record holds it, where it is never NULL.
func stored(result []byte) []byte {
	if result == nil {
		return []byte{}
	}
	return result
}

// prior is the other hash that a guard lets pass, or NULL, which is equal to none.
func prior(c *idempotency.Claim) []byte {
	if c.PriorHash == [32]byte{} {
		return nil
	}
	return c.PriorHash[:]
}

// verdict reads what the server said to a statement about a record or, with committing, to the COMMIT behind it. There the same
// code means something else: deferred constraints and triggers of the handler's rows run in it, and may raise anything.
func verdict(err error, committing bool) error {
	if err == nil {
		return nil
	}
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		if pgconn.SafeToRetry(err) { // nothing was sent
			return fmt.Errorf("pgstore: write the record: %w", err)
		}
		return fmt.Errorf("%w: %w", idempotency.ErrCommitUnknown, err)
	}
	class := pg.Code[:min(2, len(pg.Code))]
	switch {
	case class == "", class == "08", class == "57" && pg.Code != codeCanceled: // the server or a pooler is going away: it may have committed before
		return fmt.Errorf("%w: %w", idempotency.ErrCommitUnknown, err)
	case pg.Code == "40001", pg.Code == "40P01":
		return fmt.Errorf("%w: %w", idempotency.ErrSerialization, err)
	case pg.Code == "25P02":
		return idempotency.ErrTransactionAborted
	case committing && (class == "53" || class == "55" || class == "57" || class == "58" || class == "XX"): // want of something, or a bound
		return fmt.Errorf("pgstore: the commit was refused with SQLSTATE %s", pg.Code) // a trigger's text may quote a row
	case committing:
		return fmt.Errorf("%w: %w", idempotency.ErrTransactionAborted, err)
	case pg.Code == raisedLost, pg.Code == uniqueViolation:
		return idempotency.ErrLost
	case pg.Code == raisedEnded:
		return idempotency.ErrTransactionEnded
	case pg.Code == lockTimeout:
		return fmt.Errorf("%w: %w", idempotency.ErrBusy, err)
	}
	return fmt.Errorf("pgstore: write the record: %w", err)
}

// codeCanceled is what a statement ends with that somebody has cancelled or that took longer than statement_timeout allows.
const codeCanceled = "57014"

// transient reports whether err is a serialization failure or a deadlock.
func transient(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Code == "40001" || pg.Code == "40P01")
}

// Transient reports whether err is a serialization failure or a deadlock.
func (a *attempt) Transient(err error) bool { return transient(err) }
