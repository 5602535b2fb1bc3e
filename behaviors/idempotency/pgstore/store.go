// Package pgstore keeps the records of idempotent commands in PostgreSQL, in the same transaction as the business rows that a
// handler writes through [DB] or [Tx] (rule rec-1). It needs PostgreSQL 14 or newer and pgx v5.
//
// # How an attempt runs
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
// All times are the server's (clock_timestamp()), so the clocks of the application's machines do not matter. The
// transaction's level is always said: READ COMMITTED unless the command's policy asks for more.
//
// # What it costs
//
// As many turnarounds on the wire as the bare transaction: with one business statement three. A replay of a key that this
// process has met takes one, any other two.
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
	// LockTimeout bounds how long the record's statement waits for another transaction that is just committing the same
	// key. Zero means 2 seconds.
	LockTimeout time.Duration
}

// Store keeps records in PostgreSQL. It is safe for concurrent use. It does not own the pool and does not close it. Make it
// with [New] or [NewWithConfig].
type Store struct {
	pool *pgxpool.Pool
	cfg  Config

	hintSQL, lookSQL, insertSQL, replaceSQL string
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
	s.hintSQL = `SELECT pg_try_advisory_xact_lock($1::bigint # '` + strings.ReplaceAll(table, "'", "''") + `'::regclass::oid::bigint), now()`
	if cfg.NoHint {
		s.hintSQL = `SELECT $1::bigint IS NOT NULL, now()`
	}
	// Each operator costs more than a column, so all that can be told from a column is told here and not by the server.
	s.lookSQL = `SELECT tenant = $2 AND client = $3 AND operation = $4 AND key = $5, request_hash, hash_version, state, after_expiry, attempt,
 outcome, result, result_type, origin_request_id, external_ref, expires_at <= clock_timestamp() FROM ` + table + ` WHERE id = $1`
	// The values of a record. lock_timeout is set by the statement itself, before it meets the key (0 would mean for ever). The
	// time of the transaction's start tells whether this is still the transaction that was begun; now() is stable and so not
	// evaluated before the statement runs: the raising branch raises only when it is taken.
	const columns = ` (id, tenant, client, operation, key, request_hash, hash_version, state, after_expiry, attempt, attempts,
  outcome, result, result_type, origin_request_id, external_ref, created_at, completed_at, expires_at)
 SELECT $1::uuid, $2::text, $3::text, $4::text, $5::text, $6::bytea, $7::smallint, 'completed', $8::text, $9::uuid,
  CASE WHEN $16::timestamptz IS NULL OR now() = $16 THEN 1 ELSE ('another transaction, begun at ' || now()::text)::integer END,
  $10::smallint, $11::bytea, $12::text, $13::text, nullif($14::text, ''), clock_timestamp(), clock_timestamp(), clock_timestamp() + $15::interval
 FROM (SELECT set_config('lock_timeout', '`
	values := columns + strconv.FormatInt(max(cfg.LockTimeout.Milliseconds(), 1), 10) + `', true)) AS patience`
	// Where there was no record, a plain INSERT is enough: if another attempt was quicker it raises a unique violation. It takes
	// the server a sixth less time than the other one.
	s.insertSQL = `INSERT INTO ` + table + values
	s.replaceSQL = `WITH won AS (INSERT INTO ` + table + ` AS r` + values + `
 ON CONFLICT (id) DO UPDATE SET request_hash = excluded.request_hash, hash_version = excluded.hash_version, state = excluded.state,
  after_expiry = excluded.after_expiry, attempt = excluded.attempt, attempts = 1, fence = NULL, lease_until = NULL, outcome = excluded.outcome,
  result = excluded.result, result_type = excluded.result_type, origin_request_id = excluded.origin_request_id,
  external_ref = excluded.external_ref, created_at = excluded.created_at, completed_at = excluded.completed_at, expires_at = excluded.expires_at
 WHERE r.tenant = excluded.tenant AND r.client = excluded.client AND r.operation = excluded.operation AND r.key = excluded.key
  AND (r.expires_at <= clock_timestamp() AND r.after_expiry = 'reuse' AND r.state <> 'in_progress' AND r.result_type IS DISTINCT FROM 'tombstone'
   OR r.state = 'failed' AND r.request_hash = excluded.request_hash)
 RETURNING 1)
SELECT 1 / count(*) FROM won`
	return s
}

// What the record's statement raises.
const (
	uniqueViolation = "23505" // a record stands there
	raisedLost      = "22012" // division by zero: no row was won
	raisedEnded     = "22P02" // invalid text representation: the transaction is not the one that was begun
)

func (s *Store) table() string {
	if s.cfg.Schema == "" {
		return "idempotency_records"
	}
	return pgx.Identifier{s.cfg.Schema, "idempotency_records"}.Sanitize()
}

// Describe names the store and where its records are.
func (s *Store) Describe() string { return "pgstore " + s.table() }

// Look reads the record of a claim, or gives nil: one statement, no lock, no write.
func (s *Store) Look(ctx context.Context, c idempotency.Claim) (*idempotency.Record, error) {
	rec, err := scanRecord(s.pool.QueryRow(ctx, s.lookSQL, s.lookArgs(&c)...), &c)
	if err != nil {
		return nil, fmt.Errorf("pgstore: read the record: %w", err)
	}
	return rec, nil
}

func (s *Store) lookArgs(c *idempotency.Claim) []any {
	return []any{uuid(c.ID), c.Scope.Tenant, c.Scope.Client, c.Scope.Operation, c.Scope.Key}
}

// uuid is an id as every query mode of pgx knows to send it.
func uuid(id [16]byte) pgtype.UUID { return pgtype.UUID{Bytes: id, Valid: true} }

// scanRecord reads a record, or gives nil for no row. The four columns of the scope are compared by the server; where they are
// not those of the claim, the record's scope is left empty, which the engine takes for what it is: another scope.
func scanRecord(row pgx.Row, c *idempotency.Claim) (*idempotency.Record, error) {
	var same bool
	var hash []byte
	var afterExpiry string
	var outcome *int16
	var resultType, externalRef *string
	r := new(idempotency.Record)
	err := row.Scan(&same, &hash, &r.HashVersion, (*string)(&r.State), &afterExpiry, (*[16]byte)(&r.Attempt),
		&outcome, &r.Result, &resultType, &r.OriginRequestID, &externalRef, &r.Expired)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	copy(r.Hash[:], hash)
	if same {
		r.Scope = c.Scope
	}
	if afterExpiry == idempotency.Tombstone.String() {
		r.AfterExpiry = idempotency.Tombstone
	}
	if outcome != nil {
		r.Outcome = idempotency.OutcomeKind(*outcome)
	}
	if resultType != nil {
		r.ResultType = *resultType
	}
	if externalRef != nil {
		r.ExternalRef = *externalRef
	}
	return r, nil
}

// Begin opens the transaction and reads the record in it, in one turn. It waits for a connection as long as ctx allows.
func (s *Store) Begin(ctx context.Context, c idempotency.Claim) (idempotency.Attempt, error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("pgstore: no connection: %w", err)
	}
	a := &attempt{store: s, conn: conn, claim: c}
	got, err := a.begin(ctx)
	switch {
	case err != nil:
		a.Rollback(ctx)
		if a.Transient(err) {
			return nil, fmt.Errorf("%w: %w", idempotency.ErrSerialization, err)
		}
		return nil, fmt.Errorf("pgstore: begin: %w", err)
	case !got:
		a.Rollback(ctx)
		return nil, idempotency.ErrBusy
	}
	return a, nil
}

// attempt is one transaction on one connection.
type attempt struct {
	store   *Store
	conn    *pgxpool.Conn // nil when the attempt has ended
	claim   idempotency.Claim
	found   *idempotency.Record
	started time.Time
	taken   bool // the handler has no access any more
	g       guard
	given   handle   // what the handler gets
	outer   *attempt // the attempt whose handler this one was begun in, of another store or another bus
}

func (a *attempt) begin(ctx context.Context) (got bool, err error) {
	b := &pgx.Batch{}
	b.BeginTx(pgx.TxOptions{IsoLevel: level(a.claim.Isolation)})
	b.Queue(a.store.hintSQL, a.claim.ID.LockKey())
	b.Queue(a.store.lookSQL, a.store.lookArgs(&a.claim)...)
	br := a.conn.SendBatch(ctx, b)
	a.given = handle{tx: br.Tx(), g: &a.g}
	if _, err = br.Exec(); err == nil {
		if err = br.QueryRow().Scan(&got, &a.started); err == nil {
			a.found, err = scanRecord(br.QueryRow(), &a.claim)
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
	a.outer, _ = ctx.Value(attemptKey{}).(*attempt)
	return context.WithValue(ctx, attemptKey{}, a)
}

func (a *attempt) handle() *handle {
	a.g.used.Store(true)
	return &a.given
}

// Used reports whether the handler has asked for the transaction.
func (a *attempt) Used() bool { return a.g.used.Load() }

// Ended reports whether the handler has ended the transaction, as far as the connection's state tells: one that has begun
// another is found out when the record is written.
func (a *attempt) Ended() bool { return a.takeBack() && a.ended() }

func (a *attempt) ended() bool {
	if a.g.ended.Load() {
		return true
	}
	pc := a.conn.Conn().PgConn()
	return !pc.IsClosed() && !pc.IsBusy() && pc.TxStatus() == 'I'
}

// takeBack takes the transaction back from the handler. It reports false when a goroutine that the handler has left behind is
// in the middle of a statement: the connection is then that goroutine's, and all that can be done is to break it.
func (a *attempt) takeBack() bool {
	if a.taken {
		return a.conn != nil
	}
	a.taken = true
	if a.g.revoke() {
		return true
	}
	if a.conn != nil {
		_ = a.conn.Hijack().PgConn().Conn().Close()
		a.conn = nil
	}
	return false
}

// Complete writes the record and commits, in one turn.
func (a *attempt) Complete(ctx context.Context, done idempotency.Completion) error {
	defer a.Rollback(ctx)
	if !a.takeBack() {
		return errStillRunning
	}
	if a.ended() {
		return idempotency.ErrTransactionEnded
	}
	switch pc := a.conn.Conn().PgConn(); {
	case pc.IsClosed():
		return fmt.Errorf("%w: its connection is closed", idempotency.ErrTransactionAborted)
	case pc.IsBusy():
		return errOpenRows
	case pc.TxStatus() == 'E':
		return idempotency.ErrTransactionAborted
	}
	return a.write(ctx, &pgx.Batch{}, done, a.started)
}

var (
	errStillRunning = fmt.Errorf("%w: a goroutine that the handler started and did not wait for was still writing", idempotency.ErrTransactionAborted)
	errOpenRows     = fmt.Errorf("%w: rows were left open", idempotency.ErrTransactionAborted)
)

// Refuse rolls the handler's rows back and writes the record of a refusal in a transaction of its own.
func (a *attempt) Refuse(ctx context.Context, done idempotency.Completion) error {
	defer a.Rollback(ctx)
	if !a.takeBack() {
		return errStillRunning
	}
	if a.ended() {
		return idempotency.ErrTransactionEnded
	}
	if a.conn.Conn().PgConn().IsBusy() {
		return errOpenRows
	}
	if err := a.rollback(ctx); err != nil {
		return fmt.Errorf("pgstore: roll back: %w", err)
	}
	b := &pgx.Batch{}
	b.BeginTx(pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	return a.write(ctx, b, done, nil)
}

// write sends what b holds, the record's statement and COMMIT in one turn, and says what became of them. started is the time
// at which the transaction must have begun, or nil when b begins it.
func (a *attempt) write(ctx context.Context, b *pgx.Batch, done idempotency.Completion, started any) error {
	c := &a.claim
	result := done.Result
	if result == nil {
		result = []byte{}
	}
	sql := a.store.insertSQL
	if a.found != nil { // an expired record, or a failed one
		sql = a.store.replaceSQL
	}
	b.Queue(sql, uuid(c.ID), c.Scope.Tenant, c.Scope.Client, c.Scope.Operation, c.Scope.Key, c.Hash[:], c.HashVersion,
		c.AfterExpiry.String(), uuid(c.Attempt), int16(done.Outcome), result, done.ResultType, c.OriginRequestID, done.ExternalRef, c.Retention, started)
	b.Queue(`COMMIT`)
	br := a.conn.SendBatch(ctx, b)
	var tag pgconn.CommandTag
	var err error
	answered := 0
	for ; answered < b.Len(); answered++ {
		if tag, err = br.Exec(); err != nil {
			break
		}
	}
	if closing := br.Close(); err == nil {
		err = closing
	}
	if err == nil && tag.String() != "COMMIT" { // a failed transaction answers COMMIT with ROLLBACK and without an error
		return idempotency.ErrTransactionAborted
	}
	return verdict(err, answered >= b.Len()-1)
}

// verdict reads what the server said to the record's statement or, with committing, to the COMMIT behind it. There the same
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
	case pg.Code == "55P03": // lock_timeout
		return fmt.Errorf("%w: %w", idempotency.ErrBusy, err)
	}
	return fmt.Errorf("pgstore: write the record: %w", err)
}

// codeCanceled is what a statement ends with that somebody has cancelled or that took longer than statement_timeout allows.
const codeCanceled = "57014"

// Rollback undoes what is open and gives the connection back.
func (a *attempt) Rollback(ctx context.Context) {
	if !a.takeBack() {
		return
	}
	_ = a.rollback(ctx) // a connection that cannot be rolled back is closed, and the server rolls back by itself
	a.conn.Release()
	a.conn = nil
}

func (a *attempt) rollback(ctx context.Context) error {
	conn := a.conn.Conn()
	pc := conn.PgConn()
	if pc.IsClosed() {
		return errors.New("the connection is closed")
	}
	if pc.IsBusy() {
		return conn.Close(ctx)
	}
	if pc.TxStatus() == 'I' {
		return nil
	}
	_, err := conn.Exec(ctx, `ROLLBACK`)
	if err != nil {
		_ = conn.Close(ctx)
	}
	return err
}

// Transient reports whether err is a serialization failure or a deadlock.
func (a *attempt) Transient(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Code == "40001" || pg.Code == "40P01")
}
