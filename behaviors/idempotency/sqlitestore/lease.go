package sqlitestore

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tekil-go/tekil/behaviors/idempotency"
)

const (
	leaseColumns = `, attempts, coalesce(fence, 0), lease_until`

	leasedReadSQL = recordColumns + leaseColumns + ` FROM main.idempotency_records WHERE id = ?`

	fenceSQL = `UPDATE main.idempotency_sequence SET value = max(value, ?) + 1 WHERE id = 1 RETURNING value`

	claimSQL = `INSERT INTO main.idempotency_records (id, tenant, client, operation, key, request_hash, hash_version, state, after_expiry, attempt,
  attempts, fence, lease_until, origin_request_id, draft_id, created_at, expires_at, origin_trace)
 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 'in_progress', ?8, ?9, 1, ?10, ?11, ?12, nullif(?13, ''), ?14, ?15, nullif(?16, ''))`

	// takeSQL takes the key from a record that has just been read in the same transaction. ?9 says that a new life begins.
	takeSQL = `UPDATE main.idempotency_records SET request_hash = ?2, hash_version = ?3, state = 'in_progress', after_expiry = ?4, attempt = ?5,
  attempts = ?6, fence = ?7, lease_until = ?8, outcome = NULL, result = NULL, result_type = NULL, completed_at = NULL,
  external_ref = CASE WHEN ?9 THEN NULL ELSE external_ref END, origin_request_id = ?10, origin_trace = nullif(?14, ''),
  draft_id = coalesce(nullif(?11, ''), CASE WHEN ?9 THEN NULL ELSE draft_id END),
  created_at = CASE WHEN ?9 THEN ?12 ELSE created_at END, expires_at = ?13
 WHERE id = ?1`

	// mineSQL is the guard of whatever a lease writes: the token and the state, never the clock.
	mineSQL = ` WHERE id = ?1 AND tenant = ?2 AND client = ?3 AND operation = ?4 AND key = ?5 AND attempt = ?6 AND state = 'in_progress'`

	holdSQL = `SELECT 1 FROM main.idempotency_records` + mineSQL

	completeSQL = `UPDATE main.idempotency_records SET state = 'completed', outcome = ?7, result = ?8, result_type = ?9,
  external_ref = coalesce(nullif(?10, ''), external_ref), completed_at = ?11` + mineSQL

	renewSQL = `UPDATE main.idempotency_records SET lease_until = max(lease_until, ?7)` + mineSQL

	failSQL = `UPDATE main.idempotency_records SET state = 'failed', attempt = ?7, lease_until = ?8` + mineSQL
)

// leaseStatements are the statements of a claim, of the beginning of a business transaction and of its end.
type leaseStatements struct{ read, fence, claim, take, hold, complete *sql.Stmt }

func (st *leaseStatements) slots() []slot {
	return []slot{
		{&st.read, leasedReadSQL}, {&st.fence, fenceSQL}, {&st.claim, claimSQL}, {&st.take, takeSQL}, {&st.hold, holdSQL}, {&st.complete, completeSQL},
	}
}

// Lease takes the key of a Leased attempt, in a write transaction of its own that is committed before Lease returns. It waits for
// its turn and for the write lock as [Store.Begin] does, and like there, waiting in vain means that the store is not available;
// [idempotency.ErrBusy] is never given. Claim.Relaxed is ignored: the commit always waits for the disk.
func (s *Store) Lease(ctx context.Context, c idempotency.Claim) (idempotency.Lease, *idempotency.Record, error) {
	st, err := patiently(ctx, s, s.leasing)
	if err != nil {
		return nil, nil, fmt.Errorf("sqlitestore: prepare the statements: %w", err)
	}
	in := new(session)
	defer in.close()
	if err := in.open(ctx, s); err != nil {
		return nil, nil, err
	}
	l := &lease{store: s, st: st, claim: c}
	rec, err := l.take(context.WithoutCancel(ctx), in)
	if err != nil {
		return nil, nil, fmt.Errorf("sqlitestore: claim the key: %w", err)
	}
	if rec != nil {
		return nil, rec, nil
	}
	if err := in.commit(); err != nil {
		return nil, nil, err
	}
	return l, nil, nil
}

// lease is a committed claim and, while it is open, a business transaction.
type lease struct {
	store *Store
	st    *leaseStatements
	claim idempotency.Claim
	grant idempotency.Grant

	opening sync.Mutex // held while the business transaction is being opened

	mu      sync.Mutex
	work    *session // the business transaction, nil while none is open
	running int      // functions given to InTx that have not returned
	waiting int      // for a business transaction to be open or closed
	kept    bool     // an InTx has succeeded in the business transaction
	undone  bool     // what an InTx had kept was undone by a later one, and none has succeeded since
	ended   bool     // the handler's part is over
	closed  bool     // no outcome can be written any more
	fault   error    // the handler has ended a business transaction itself
	stop    context.Context
	halt    context.CancelFunc // ends stop, and with it the renewals that are under way; nil while there is none
}

// take writes the claim, or gives the record that stands in its way. With the write lock held, what is read stays as it is until the
// commit.
func (l *lease) take(ctx context.Context, in *session) (*idempotency.Record, error) {
	c, now := &l.claim, time.Now()
	rec, err := recordOf(in.stmt(ctx, l.st.read).QueryRowContext(ctx, c.ID[:]), true)
	switch {
	case err != nil:
		return nil, err
	case rec != nil && owns(rec, c): // a claim whose answer was lost
		l.grant = idempotency.Grant{Fence: rec.Fence, Attempt: rec.Attempts}
		return nil, nil
	case rec != nil && !takes(rec, c):
		return rec, nil
	}
	l.grant.Attempt = 1
	var last int64 // of a record that was brought here from elsewhere it may be larger than the sequence
	if rec != nil {
		last = rec.Fence
		l.grant.TookOver = rec.State == idempotency.InProgress
		l.grant.Reused = rec.Expired
		if !rec.Expired {
			l.grant.Attempt = rec.Attempts + 1
		}
	}
	if err := in.stmt(ctx, l.st.fence).QueryRowContext(ctx, last).Scan(&l.grant.Fence); err != nil {
		return nil, fmt.Errorf("the next fence: %w", err)
	}
	until, expires := now.Add(c.Lease).UnixMilli(), now.Add(c.Retention).UnixMilli()
	if rec == nil {
		_, err = in.stmt(ctx, l.st.claim).ExecContext(ctx, c.ID[:], c.Scope.Tenant, c.Scope.Client, c.Scope.Operation, c.Scope.Key, c.Hash[:], c.HashVersion,
			afterExpiry(c), c.Attempt[:], l.grant.Fence, until, c.OriginRequestID, c.DraftID, now.UnixMilli(), expires, c.OriginTrace)
	} else {
		_, err = in.stmt(ctx, l.st.take).ExecContext(ctx, c.ID[:], c.Hash[:], c.HashVersion, afterExpiry(c), c.Attempt[:], l.grant.Attempt, l.grant.Fence, until,
			rec.Expired, c.OriginRequestID, c.DraftID, now.UnixMilli(), expires, c.OriginTrace)
	}
	return nil, err
}

// owns reports whether a record is in progress and the claim's own.
func owns(rec *idempotency.Record, c *idempotency.Claim) bool {
	return rec.Scope == c.Scope && rec.State == idempotency.InProgress && rec.Attempt == c.Attempt
}

// takes reports whether a claim may take the key from a record that is not its own.
func takes(rec *idempotency.Record, c *idempotency.Claim) bool {
	inProgress := rec.State == idempotency.InProgress
	switch {
	case rec.Scope != c.Scope, rec.ResultType == tombstone, inProgress && rec.LeaseLeft > 0:
		return false
	case rec.Expired && rec.AfterExpiry == idempotency.Reuse:
		return true
	case rec.State == idempotency.Completed, inProgress && c.NoTakeover, rec.Attempts > c.MaxAttempts:
		return false
	}
	return rec.Hash == c.Hash || c.PriorHash != [32]byte{} && rec.Hash == c.PriorHash
}

// guard gives the parameters of mineSQL and those for more.
func (l *lease) guard(more ...any) []any {
	c := &l.claim
	return append([]any{c.ID[:], c.Scope.Tenant, c.Scope.Client, c.Scope.Operation, c.Scope.Key, c.Attempt[:]}, more...)
}

// Grant says what was given.
func (l *lease) Grant() idempotency.Grant { return l.grant }

// Context puts the lease into the handler's context.
func (l *lease) Context(ctx context.Context) context.Context {
	return context.WithValue(ctx, attemptKey{l.store.db}, l)
}

// Open reports whether the business transaction is open.
func (l *lease) Open() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.work != nil
}

// Ended reports whether the handler has ended a business transaction, or tried to, as far as can be told: one that has begun
// another is found out when the outcome is written.
func (l *lease) Ended() bool {
	l.mu.Lock()
	work, fault := l.work, l.fault
	l.mu.Unlock()
	if work == nil || fault != nil {
		return fault != nil
	}
	fault = work.revoke()
	return errors.Is(fault, idempotency.ErrTransactionEnded) || fault == nil && work.rolledBack(context.Background())
}

// Renew makes the lease last its full length from now. It waits for its turn behind the commands of this process, and for other
// processes, as long as ctx allows.
func (l *lease) Renew(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop, err := l.renewal()
	if stop == nil {
		return err
	}
	defer context.AfterFunc(stop, cancel)()
	err = l.store.short(ctx, "renew the lease", func(ctx context.Context, in *session) error {
		if stop.Err() != nil { // InTx or the end of the attempt is waiting for its turn behind this one
			return nil
		}
		n, err := changed(in.tx.ExecContext(ctx, renewSQL, l.guard(time.Now().Add(l.claim.Lease).UnixMilli())...))
		if err == nil && n == 0 {
			err = idempotency.ErrLeaseLost
		}
		return err
	})
	if stop.Err() != nil && !errors.Is(err, idempotency.ErrLeaseLost) {
		return nil
	}
	return err
}

// renewal gives the context in which a renewal may go on, or nil where there is to be none.
func (l *lease) renewal() (stop context.Context, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.work != nil, l.waiting > 0:
		return nil, nil
	case l.ended:
		return nil, errEnded
	case l.halt == nil:
		l.stop, l.halt = context.WithCancel(context.Background())
	}
	return l.stop, nil
}

// haltRenewals ends the renewals that are under way, so that nobody waits behind one that hangs. It is called with mu held.
func (l *lease) haltRenewals() {
	if l.halt != nil {
		l.halt()
		l.halt = nil
	}
}

// current gives the open business transaction, or nil.
func (l *lease) current() *session {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.work == nil && l.ended {
		return &session{db: l.store.db, revoked: true}
	}
	return l.work
}

// inTx runs fn in the business transaction, which is opened for it if it is not open, and stays open.
func (l *lease) inTx(ctx context.Context, fn func(context.Context) error) error {
	work, within, err := l.enter(ctx)
	if err != nil {
		return err
	}
	ctx = context.WithValue(ctx, attemptKey{l.store.db}, work)
	if within {
		defer l.left(work)
		return work.inTx(ctx, fn)
	}
	ok := false
	defer func() { l.leave(work, ok) }()
	if err = fn(ctx); err == nil {
		err = work.sound()
	}
	ok = err == nil
	return err
}

// enter gives the business transaction, and whether a function is running in it already.
func (l *lease) enter(ctx context.Context) (work *session, within bool, err error) {
	l.opening.Lock()
	defer l.opening.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ended && l.fault == nil && l.work == nil {
		if work, err = l.openLocked(ctx); err != nil {
			return nil, false, err
		}
		if l.ended || l.fault != nil {
			work.close()
		} else {
			l.work = work
		}
	}
	switch {
	case l.ended:
		return nil, false, ErrRevoked
	case l.fault != nil:
		return nil, false, l.fault
	}
	within = l.running > 0
	l.running++
	return l.work, within, nil
}

// openLocked lets mu go while it opens the business transaction.
func (l *lease) openLocked(ctx context.Context) (*session, error) {
	l.waiting++
	l.haltRenewals()
	l.mu.Unlock()
	work, opened := new(session), false
	defer func() {
		if !opened {
			work.close()
		}
		l.mu.Lock()
		l.waiting--
	}()
	err := l.begin(ctx, work)
	if err != nil && errors.Is(context.Cause(ctx), idempotency.ErrLeaseLost) { // a renewal has found out
		err = fmt.Errorf("sqlitestore: %w", idempotency.ErrLeaseLost)
	}
	opened = err == nil
	return work, err
}

// begin opens the business transaction and makes sure that the record is still this attempt's. With the write lock held, it stays so.
func (l *lease) begin(ctx context.Context, work *session) error {
	if err := work.open(ctx, l.store); err != nil {
		return err
	}
	quick := context.WithoutCancel(ctx)
	switch err := work.stmt(quick, l.st.hold).QueryRowContext(quick, l.guard()...).Scan(new(int)); {
	case errors.Is(err, sql.ErrNoRows):
		return fmt.Errorf("sqlitestore: %w", idempotency.ErrLeaseLost)
	case err != nil:
		return fmt.Errorf("sqlitestore: read the record: %w", err)
	}
	return work.mark(quick)
}

// left is called when a function has ended that was running within the business transaction of another.
func (l *lease) left(work *session) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.work == work {
		l.running--
	}
}

// leave is called when fn has ended. Where it has failed, its business transaction is rolled back and the lease goes on.
func (l *lease) leave(work *session, ok bool) {
	l.mu.Lock()
	mine := l.work == work
	if mine {
		l.running--
		l.kept, l.undone = ok, !ok && (l.kept || l.undone)
	}
	if ok || !mine { // the end of the attempt has taken it
		l.mu.Unlock()
		return
	}
	l.work, l.running = nil, 0 // what still runs within it reaches nothing any more
	l.waiting++
	l.mu.Unlock()
	fault := work.undo()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting--
	if fault != nil && l.fault == nil {
		l.fault = fault
	}
}

// end closes the lease to the handler and gives the business transaction, if one is open.
func (l *lease) end() (work *session, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	l.haltRenewals()
	work, l.work = l.work, nil
	switch {
	case l.closed:
		err = errEnded
	case l.fault != nil:
		err = l.fault
	}
	if work != nil && l.running > 0 {
		work.spoil(errRunning)
	}
	return work, err
}

var errRunning = fmt.Errorf("%w: InTx was still running in a goroutine that the handler started and did not wait for", idempotency.ErrTransactionAborted)

var errUndone = fmt.Errorf("%w: an InTx that failed has undone what an earlier one had written", idempotency.ErrTransactionAborted)

// Complete writes the outcome and commits it, together with the business rows if there is a business transaction.
func (l *lease) Complete(ctx context.Context, done idempotency.Completion) error {
	work, err := l.end()
	if err == nil && l.undone { // the handler's part is over, so nobody writes this any more
		err = errUndone
	}
	if work == nil {
		return l.alone(ctx, done, err)
	}
	defer work.close()
	_ = work.revoke()
	l.close() // the rows are gone if this fails, and their outcome must not be written without them
	if err != nil {
		return err
	}
	return work.keep(ctx, l, done)
}

// Refuse rolls the business rows back and writes the outcome alone. The write lock is not let go in between.
func (l *lease) Refuse(ctx context.Context, done idempotency.Completion) error {
	work, err := l.end()
	if work == nil {
		return l.alone(ctx, done, err)
	}
	defer work.close()
	_ = work.revoke()
	if err == nil {
		err = work.drop(ctx, l, done)
	}
	if err == nil || errors.Is(err, idempotency.ErrTransactionEnded) {
		l.close()
	}
	return err
}

// alone writes the outcome in a transaction of its own.
func (l *lease) alone(ctx context.Context, done idempotency.Completion, err error) error {
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("sqlitestore: write the record: %w", err)
	}
	err = l.store.short(ctx, "write the record", func(ctx context.Context, in *session) error { return l.put(ctx, in, done) })
	if err == nil {
		l.close()
	}
	return err
}

// put writes the outcome under the guard.
func (l *lease) put(ctx context.Context, in *session, done idempotency.Completion) error {
	n, err := changed(in.stmt(ctx, l.st.complete).ExecContext(ctx,
		l.guard(int64(done.Outcome), done.Result, done.ResultType, done.ExternalRef, time.Now().UnixMilli())...))
	if err == nil && n == 0 {
		err = idempotency.ErrLost
	}
	return err
}

// close lets no outcome be written any more.
func (l *lease) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
}

// Release rolls the business rows back and frees the key for its payload.
func (l *lease) Release(ctx context.Context) error {
	l.Rollback(ctx)
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("sqlitestore: release the key: %w", err)
	}
	return l.store.short(ctx, "release the key", func(ctx context.Context, in *session) error {
		n, err := changed(in.tx.ExecContext(ctx, failSQL, l.guard(newToken(), time.Now().UnixMilli())...))
		if err == nil && n == 0 {
			err = idempotency.ErrLost
		}
		return err
	})
}

// newToken is an attempt that nobody has.
func newToken() []byte {
	token := make([]byte, len(idempotency.AttemptID{}))
	_, _ = rand.Read(token) // never fails: crypto/rand ends the program instead
	return token
}

// Rollback rolls the business rows back and leaves the record as it is.
func (l *lease) Rollback(context.Context) {
	work, _ := l.end()
	l.close()
	if work != nil {
		work.close()
	}
}

// Transient is false: the business transaction has the write lock from its beginning, so there is nothing that trying again would
// change.
func (l *lease) Transient(error) bool { return false }
