package pgstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tekil-go/tekil/behaviors/idempotency"
)

// leaseColumns are what a Leased claim reads of a record beside the columns of lookSQL.
const leaseColumns = `, attempts, coalesce(fence, 0),
 CASE WHEN state = 'in_progress' THEN greatest(lease_until - clock_timestamp(), interval '0') ELSE interval '0' END`

// leaseSQL makes the statements of a lease.
func (s *Store) leaseSQL() {
	table, fence := s.table(), `nextval(`+literal(s.sequence())+`)`
	const (
		scope = `r.id = $1::uuid AND r.tenant = $2::text AND r.client = $3::text AND r.operation = $4::text AND r.key = $5::text`
		mine  = scope + ` AND r.attempt = $6::uuid AND r.state = 'in_progress'`
		over  = `r.expires_at <= clock_timestamp()`
		dead  = `r.lease_until <= clock_timestamp()`
	)
	s.claimSQL, s.takeSQL = make(map[bool]string), make(map[bool]string)
	for relaxed, patience := range map[bool]string{false: s.patience(), true: s.patience(`set_config('synchronous_commit', 'off', true)`)} {
		s.claimSQL[relaxed] = `INSERT INTO ` + table + ` (id, tenant, client, operation, key, request_hash, hash_version, state, after_expiry,
  attempt, attempts, fence, lease_until, origin_request_id, draft_id, created_at, expires_at, origin_trace)
 SELECT $1::uuid, $2::text, $3::text, $4::text, $5::text, $6::bytea, $7::smallint, 'in_progress', $8::text, $9::uuid, 1, ` + fence + `,
  clock_timestamp() + $10::interval, $11::text, nullif($12::text, ''), clock_timestamp(), clock_timestamp() + $13::interval, nullif($14::text, '')
 FROM ` + patience + `
 ON CONFLICT (id) DO NOTHING
 RETURNING fence`
		// The row is locked first and changed then. Only so does the statement know what it takes: when it has waited, the server
		// judges the newest version of the row and the time anew, and both are what the UPDATE goes by. clock_timestamp() is asked
		// again in was, because a wait for somebody who has changed nothing makes the server judge nothing anew.
		s.takeSQL[relaxed] = `WITH held AS (
 SELECT r.id, r.state, r.expires_at FROM ` + patience + `, ` + table + ` AS r
 WHERE ` + scope + ` AND r.attempt <> $9::uuid
  AND (r.attempts <= $15::integer AND r.request_hash IN ($6::bytea, $16::bytea)
    AND (r.state = 'failed' OR r.state = 'in_progress' AND ` + dead + ` AND NOT $17::boolean)
   OR ` + over + ` AND r.after_expiry = 'reuse' AND r.result_type IS DISTINCT FROM 'tombstone'
    AND (r.state <> 'in_progress' OR ` + dead + `))
 FOR NO KEY UPDATE OF r),
was AS (SELECT r.id, r.state, ` + over + ` AS over FROM held AS r)
UPDATE ` + table + ` AS r SET request_hash = $6, hash_version = $7::smallint, state = 'in_progress', after_expiry = $8::text, attempt = $9,
  attempts = CASE WHEN was.over THEN 1 ELSE r.attempts + 1 END, fence = greatest(` + fence + `, r.fence + 1),
  lease_until = clock_timestamp() + $10::interval, outcome = NULL, result = NULL, result_type = NULL, origin_request_id = $11::text, origin_trace = nullif($14::text, ''),
  external_ref = CASE WHEN was.over THEN NULL ELSE r.external_ref END,
  draft_id = coalesce(nullif($12::text, ''), CASE WHEN was.over THEN NULL ELSE r.draft_id END),
  created_at = CASE WHEN was.over THEN clock_timestamp() ELSE r.created_at END, completed_at = NULL,
  expires_at = clock_timestamp() + $13::interval
 FROM was WHERE r.id = was.id
 RETURNING r.fence, r.attempts, was.state = 'in_progress', was.over`
	}
	// lock_timeout is put back when the row is held: what the handler sends waits as long as its session lets it.
	s.lockSQL = `WITH held AS (
 SELECT patience.before FROM ` + s.patience(`current_setting('lock_timeout') AS before`) + `, ` + table + ` AS r
 WHERE ` + mine + ` FOR NO KEY UPDATE OF r)
SELECT now(), set_config('lock_timeout', before, true) FROM held`
	s.renewSQL = `UPDATE ` + table + ` AS r SET lease_until = greatest(r.lease_until, clock_timestamp() + $7::interval)
 FROM ` + s.patience() + ` WHERE ` + mine
	// No row raises a division by zero, and another transaction than the one that was begun raises a text that is no number, so
	// that the COMMIT behind it is not executed. A row that a trigger has left as it was is no row.
	s.finishSQL = `WITH done AS (UPDATE ` + table + ` AS r SET state = 'completed', outcome = $7::smallint, result = $8::bytea,
  result_type = $9::text, external_ref = coalesce(nullif($10::text, ''), r.external_ref), completed_at = clock_timestamp()
 FROM ` + s.patience() + ` WHERE ` + mine + `
 RETURNING nullif(r.state, 'in_progress') AS state)
SELECT CASE WHEN $11::timestamptz IS NULL OR now() = $11 THEN 1 / count(state)
 ELSE ('another transaction, begun at ' || now()::text)::bigint END FROM done`
	s.burnSQL = `UPDATE ` + table + ` AS r SET state = 'failed', attempt = $7::uuid, lease_until = clock_timestamp()
 FROM ` + s.patience() + ` WHERE ` + mine
}

// maxVanished bounds how often a claim is made again because the record that stood in its way is gone when it is read.
const maxVanished = 5

// Lease takes the key of a Leased attempt: a fresh key in one turn, with one statement that commits itself, and any other in
// two. It waits for a connection as long as ctx allows.
func (s *Store) Lease(ctx context.Context, c idempotency.Claim) (idempotency.Lease, *idempotency.Record, error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("pgstore: no connection: %w", err)
	}
	cl := &claiming{loan: loan{conn: conn}, store: s, c: &c}
	defer cl.Rollback(ctx)
	grant, rec, err := cl.claim(ctx)
	if err != nil || rec != nil {
		return nil, rec, err
	}
	return &lease{store: s, claim: c, grant: grant}, nil, nil
}

// claiming is a claim on its way.
type claiming struct {
	loan
	store *Store
	c     *idempotency.Claim
}

func (cl *claiming) claim(ctx context.Context) (g idempotency.Grant, met *idempotency.Record, err error) {
	c := cl.c
	claimSQL, takeSQL := cl.store.claimSQL[c.Relaxed], cl.store.takeSQL[c.Relaxed]
	args := append(scopeArgs(c, 12), c.Hash[:], c.HashVersion, c.AfterExpiry.String(), uuid(c.Attempt), c.Lease, c.OriginRequestID, c.DraftID, c.Retention, c.OriginTrace)
	err = cl.conn.QueryRow(ctx, claimSQL, args...).Scan(&g.Fence)
	switch {
	case err == nil:
		g.Attempt = 1
		return g, nil, nil
	case errors.Is(err, pgx.ErrNoRows):
	case !transient(err):
		return g, nil, verdict(err, false)
	}
	// A record is there, or was a moment ago; or the sessions have a stricter level than this needs, which is said from here on.
	fresh := transient(err)
	for range maxVanished {
		b := alone()
		if fresh {
			b.Queue(claimSQL, args...)
		}
		b.Queue(takeSQL, append(args, c.MaxAttempts, prior(c), c.NoTakeover)...)
		b.Queue(cl.store.leasedLookSQL, scopeArgs(c, 0)...)
		b.Queue(`COMMIT`)
		g, met, err = cl.second(ctx, b, fresh)
		if err != nil || met != nil || g.Attempt > 0 {
			return g, met, err
		}
		fresh = true // it was removed in between
	}
	return g, nil, fmt.Errorf("%w: its record was removed over and over", idempotency.ErrBusy)
}

// second sends a batch of the claim's second turn and reads what came of it: a grant, a record in the way, or neither.
func (cl *claiming) second(ctx context.Context, b *pgx.Batch, fresh bool) (g idempotency.Grant, met *idempotency.Record, err error) {
	br := cl.conn.SendBatch(ctx, b)
	committing := false
	err = func() error {
		if _, err := br.Exec(); err != nil {
			return err
		}
		if fresh {
			switch err := br.QueryRow().Scan(&g.Fence); {
			case err == nil:
				g.Attempt = 1
			case !errors.Is(err, pgx.ErrNoRows):
				return err
			}
		}
		if err := br.QueryRow().Scan(&g.Fence, &g.Attempt, &g.TookOver, &g.Reused); err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		if met, err = scanRecord(br.QueryRow(), cl.c, true); err != nil {
			return err
		}
		committing = true
		_, err := br.Exec()
		return err
	}()
	if closing := br.Close(); err == nil {
		err = closing
	}
	switch {
	case err != nil:
		return idempotency.Grant{}, nil, verdict(err, committing)
	case g.Attempt > 0:
		return g, nil, nil
	case met != nil && met.Scope == cl.c.Scope && met.State == idempotency.InProgress && met.Attempt == cl.c.Attempt:
		// This very claim, whose answer was lost. What it had taken over or taken anew is not known any more.
		return idempotency.Grant{Fence: met.Fence, Attempt: met.Attempts}, nil, nil
	}
	return g, met, nil
}

// lease is a claim that is committed, and the business transaction while the handler has one.
type lease struct {
	store  *Store
	claim  idempotency.Claim
	grant  idempotency.Grant
	around holder

	mu      sync.Mutex
	tx      *business // nil while none is open
	moving  bool      // it is being opened or rolled back
	running int       // functions given to InTx that have not returned
	undone  bool      // work that was believed to be kept has been rolled back
	broken  bool      // the handler has ended a business transaction itself
	ended   bool      // the handler's part is over
	closed  bool      // no outcome can be written any more
	lost    bool      // the record is not this attempt's any more

	beat     context.Context // the renewals that are under way; nil while there are none
	hush     context.CancelFunc
	renewals sync.WaitGroup
}

// business is a business transaction. What is not the loan's is guarded by the lease's mu.
type business struct {
	loan
	running int  // functions given to InTx that are running in it
	kept    bool // one has returned nil, so its work is believed to be there
}

var errEnded = errors.New("pgstore: the attempt has ended")

// errUndone is what a success is answered with whose rows are not there.
var errUndone = fmt.Errorf("%w: a later InTx has failed and has undone what an earlier one had written", idempotency.ErrTransactionAborted)

// Grant says what was given.
func (l *lease) Grant() idempotency.Grant { return l.grant }

// Context puts the lease into the handler's context.
func (l *lease) Context(ctx context.Context) context.Context {
	l.around = held(ctx)
	return context.WithValue(ctx, holderKey{}, l)
}

func (l *lease) on(pool *pgxpool.Pool) bool { return l.store.pool == pool }

func (l *lease) outer() holder { return l.around }

func (l *lease) handle() (*handle, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.tx != nil:
		return &l.tx.given, nil
	case l.ended:
		return nil, ErrRevoked
	}
	return nil, ErrNoTransaction
}

// args are the arguments of a statement that is guarded by this attempt's token.
func (l *lease) args(more ...any) []any {
	return append(append(scopeArgs(&l.claim, 1+len(more)), uuid(l.claim.Attempt)), more...)
}

// Open reports whether the business transaction is open.
func (l *lease) Open() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.tx != nil
}

// Transient reports whether err is a serialization failure or a deadlock.
func (l *lease) Transient(err error) bool { return transient(err) }

// Renew makes the lease last its full length from now, on a connection of its own.
func (l *lease) Renew(ctx context.Context) error {
	l.mu.Lock()
	switch {
	case l.lost:
		l.mu.Unlock()
		return fmt.Errorf("pgstore: %w", idempotency.ErrLeaseLost)
	case l.ended:
		l.mu.Unlock()
		return errEnded
	case l.tx != nil || l.moving:
		l.mu.Unlock()
		return nil
	}
	if l.beat == nil {
		l.beat, l.hush = context.WithCancel(context.Background())
	}
	beat := l.beat
	l.renewals.Add(1)
	l.mu.Unlock()
	defer l.renewals.Done()

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(beat, cancel)()
	rows, err := l.store.single(ctx, l.store.renewSQL, l.args(l.claim.Lease)...)
	switch {
	case err == nil && rows == 0:
		return fmt.Errorf("pgstore: %w", idempotency.ErrLeaseLost)
	case err != nil && beat.Err() != nil: // given up for the business transaction, which holds the record from then on
		return nil
	}
	return err
}

// still ends the renewals that are under way. The caller holds mu and has seen to it that none begins any more; it waits
// for l.renewals after it has let mu go.
func (l *lease) still() {
	if l.hush != nil {
		l.hush()
		l.beat, l.hush = nil, nil
	}
}

func (l *lease) within(ctx context.Context, fn func(ctx context.Context) error) error {
	return l.run(ctx, nil, fn)
}

// inside is what the context of a function given to InTx holds: that transaction, and never a later one.
type inside struct {
	*lease
	tx *business
}

func (i inside) handle() (*handle, error) { return &i.tx.given, nil }

func (i inside) within(ctx context.Context, fn func(ctx context.Context) error) error {
	return i.run(ctx, i.tx, fn)
}

// run runs fn in the business transaction, which must be the given one unless that is nil.
func (l *lease) run(ctx context.Context, in *business, fn func(ctx context.Context) error) error {
	tx, outermost, err := l.enter(ctx, in)
	if err != nil {
		return err
	}
	returned := false
	defer func() {
		if !returned { // a panic or runtime.Goexit
			_ = l.leave(ctx, tx, outermost, false)
		}
	}()
	err = fn(context.WithValue(ctx, holderKey{}, inside{l, tx}))
	returned = true
	if leaving := l.leave(ctx, tx, outermost, err == nil); err == nil {
		err = leaving
	}
	return err
}

// enter gives the business transaction, which it opens where there is none, and says whether no function is running in it.
func (l *lease) enter(ctx context.Context, in *business) (tx *business, outermost bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.ended, in != nil && in != l.tx:
		return nil, false, ErrRevoked
	case l.broken:
		return nil, false, idempotency.ErrTransactionEnded
	case l.moving:
		return nil, false, errInUse
	case l.tx == nil:
		l.moving = true
		l.still()
		l.mu.Unlock()
		l.renewals.Wait()
		tx, err := l.open(ctx)
		l.mu.Lock()
		l.moving = false
		if err != nil {
			return nil, false, err
		}
		if l.ended { // the handler has returned meanwhile
			l.mu.Unlock()
			tx.undo(ctx)
			l.mu.Lock()
			return nil, false, ErrRevoked
		}
		l.tx = tx
	}
	l.running++
	l.tx.running++
	return l.tx, l.tx.running == 1, nil
}

// openTries bounds how often the business transaction is begun because its level does not let it lock a record that has just
// been changed: by a renewal that was given up and has come all the same.
const openTries = 3

// open begins the business transaction and locks the record in it, in one turn.
func (l *lease) open(ctx context.Context) (*business, error) {
	conn, err := l.store.pool.Acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("pgstore: no connection: %w", err)
	}
	for try := 1; ; try++ {
		tx := &business{loan: loan{conn: conn}}
		b := &pgx.Batch{}
		b.BeginTx(pgx.TxOptions{IsoLevel: level(l.claim.Isolation)})
		b.Queue(l.store.lockSQL, l.args()...)
		br := conn.SendBatch(ctx, b)
		tx.lend(br.Tx())
		if _, err = br.Exec(); err == nil {
			err = br.QueryRow().Scan(&tx.started, nil)
		}
		if closing := br.Close(); err == nil {
			err = closing
		}
		switch {
		case err == nil:
			return tx, nil
		case transient(err) && try < openTries && tx.rollback(ctx) == nil:
			continue
		}
		tx.undo(ctx)
		return nil, lockVerdict(err)
	}
}

// lockVerdict reads what the server said when the business transaction was to be opened. Nothing has been written in it.
func lockVerdict(err error) error {
	var pg *pgconn.PgError
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return fmt.Errorf("pgstore: %w", idempotency.ErrLeaseLost)
	case transient(err):
		return fmt.Errorf("%w: %w", idempotency.ErrSerialization, err)
	case errors.As(err, &pg) && pg.Code == lockTimeout:
		return fmt.Errorf("%w: %w", idempotency.ErrBusy, err)
	}
	return fmt.Errorf("pgstore: open the business transaction: %w", err)
}

// leave ends the part of a function that was given to InTx. It gives an error where the function succeeded and the transaction
// can all the same not go on.
func (l *lease) leave(ctx context.Context, tx *business, outermost, ok bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running--
	tx.running--
	switch {
	case l.tx != tx: // it was ended meanwhile
		return ErrRevoked
	case !ok:
		tx.g.spoiled.Store(true)
	}
	switch {
	case !outermost:
		return nil
	case !tx.g.spoiled.Load():
		tx.kept, l.undone = true, false
		return nil
	}
	l.undone = l.undone || tx.kept
	l.tx, l.moving = nil, true
	l.broken = tx.takeBack() && tx.ended()
	l.mu.Unlock()
	tx.undo(ctx)
	l.mu.Lock()
	l.moving = false
	return errSpoiled
}

// end closes the lease to the handler and takes the business transaction out of it, if one is open. It reports whether a function
// that was given to InTx is still running.
func (l *lease) end() (tx *business, running bool) {
	l.mu.Lock()
	l.ended = true
	l.still()
	tx, l.tx = l.tx, nil
	running = l.running > 0 || l.moving
	l.mu.Unlock()
	l.renewals.Wait()
	return tx, running
}

// Ended reports whether the handler has ended the business transaction, as far as the connection's state tells.
func (l *lease) Ended() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.tx != nil && l.tx.takeBack() && l.tx.ended() {
		l.broken = true
	}
	return l.broken
}

// Complete writes the outcome and commits, in one turn.
func (l *lease) Complete(ctx context.Context, done idempotency.Completion) error {
	if l.closed {
		return errEnded
	}
	tx, running := l.end()
	switch {
	case tx != nil:
	case l.broken:
		return idempotency.ErrTransactionEnded
	case running:
		return errStillRunning
	case l.undone:
		return errUndone
	default:
		return l.finish(ctx, nil, done)
	}
	l.closed = true // its rows are committed now, or their outcome must not be written without them
	defer tx.Rollback(ctx)
	if err := tx.closing(); err != nil {
		return err
	}
	if running {
		return errStillRunning
	}
	return l.settled(tx.write(ctx, &pgx.Batch{}, l.store.finishSQL, l.finishArgs(done, tx.started)...))
}

// Refuse rolls the business rows back and writes the outcome in a transaction of its own.
func (l *lease) Refuse(ctx context.Context, done idempotency.Completion) error {
	if l.closed {
		return errEnded
	}
	tx, running := l.end()
	switch {
	case tx != nil:
	case l.broken:
		return idempotency.ErrTransactionEnded
	case running:
		return errStillRunning
	default:
		return l.finish(ctx, nil, done)
	}
	err := tx.undoing()
	if err == nil && running {
		err = errStillRunning
	}
	if err != nil {
		l.closed = true
		tx.Rollback(ctx)
		return err
	}
	if l.rollback(ctx, tx) != nil { // its connection is lost, and with it the rows
		tx.Rollback(ctx)
		return l.finish(ctx, nil, done)
	}
	defer tx.Rollback(ctx)
	return l.finish(ctx, tx, done)
}

// rollback rolls back what can be rolled back in time: a lost connection must not use up the time for what comes after it.
func (l *lease) rollback(ctx context.Context, tx *business) error {
	ctx, cancel := context.WithTimeout(ctx, l.store.cfg.LockTimeout)
	defer cancel()
	return tx.rollback(ctx)
}

// finish writes the outcome alone, on the connection of tx or, where that is nil, on a fresh one.
func (l *lease) finish(ctx context.Context, tx *business, done idempotency.Completion) error {
	args := l.finishArgs(done, nil)
	var err error
	if tx != nil {
		err = l.settled(tx.write(ctx, alone(), l.store.finishSQL, args...))
	} else {
		err = l.settled(l.store.single(ctx, l.store.finishSQL, args...))
	}
	l.closed = l.closed || err == nil
	return err
}

func (l *lease) finishArgs(done idempotency.Completion, started any) []any {
	return l.args(int16(done.Outcome), stored(done.Result), done.ResultType, done.ExternalRef, started)
}

// settled notes that the record is not in this attempt's hands any more, where an outcome says so.
func (l *lease) settled(_ int64, err error) error {
	if err == nil || errors.Is(err, idempotency.ErrLost) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.lost = true
	}
	return err
}

// Release rolls the business rows back and makes the record failed, under another token than this attempt's. That is sent on a
// fresh connection, because that of the business transaction may be the one that was lost.
func (l *lease) Release(ctx context.Context) error {
	tx, _ := l.end()
	l.closed = true
	if tx != nil {
		if tx.takeBack() {
			_ = l.rollback(ctx, tx)
		}
		tx.Rollback(ctx)
	}
	var token [16]byte
	_, _ = rand.Read(token[:])
	rows, err := l.store.single(ctx, l.store.burnSQL, l.args(uuid(token))...)
	if err == nil && rows == 0 {
		err = idempotency.ErrLost
	}
	return l.settled(rows, err)
}

// Rollback rolls the business rows back and leaves the record as it is.
func (l *lease) Rollback(ctx context.Context) {
	tx, _ := l.end()
	l.closed = true
	if tx != nil {
		tx.Rollback(ctx)
	}
}
