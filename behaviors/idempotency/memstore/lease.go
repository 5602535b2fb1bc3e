package memstore

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/tekil-go/tekil/behaviors/idempotency"
)

// Lease takes the key of a Leased attempt. It does not wait: where a business transaction holds a record whose lease is over, it
// gives [idempotency.ErrBusy].
func (s *Store) Lease(ctx context.Context, c idempotency.Claim) (idempotency.Lease, *idempotency.Record, error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, fmt.Errorf("memstore: %w", err)
	}
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	now := time.Now()
	old, met := s.db.records[c.ID]
	rec := old.read(now)
	l := &lease{db: s.db, claim: c}
	switch {
	case met && l.owns(rec): // a claim whose answer was lost
		l.grant = idempotency.Grant{Fence: rec.Fence, Attempt: rec.Attempts}
		return l, nil, nil
	case met && !l.takes(rec):
		return nil, rec, nil
	case s.db.locked[c.ID] != nil:
		return nil, nil, fmt.Errorf("memstore: %w", idempotency.ErrBusy)
	}
	l.grant = idempotency.Grant{Fence: max(s.db.fence, rec.Fence) + 1, Attempt: 1}
	r := claimed(&c, now)
	if met {
		l.grant.TookOver = rec.State == idempotency.InProgress
		l.grant.Reused = rec.Expired
		if !rec.Expired {
			l.grant.Attempt = rec.Attempts + 1
			r.created = old.created
			r.record.DraftID = cmp.Or(r.record.DraftID, rec.DraftID)
		}
	}
	s.db.fence = l.grant.Fence
	r.record.State, r.record.Fence, r.record.Attempts = idempotency.InProgress, l.grant.Fence, l.grant.Attempt
	r.lease = now.Add(c.Lease)
	s.db.records[c.ID] = r
	return l, nil, nil
}

// lease is a claim that is committed.
type lease struct {
	db    *database
	claim idempotency.Claim
	grant idempotency.Grant
	// The rest is guarded by db.mu.
	tx      *transaction // the business transaction; nil while none is open
	running bool         // a function that was given to InTx
	kept    bool         // such a function has returned nil, so its rows are believed to be in tx
	undone  bool         // rows that were believed to be kept have been rolled back
	ended   bool         // the handler's part is over
	closed  bool         // no outcome can be written any more
}

func (l *lease) Grant() idempotency.Grant { return l.grant }

func (l *lease) Context(ctx context.Context) context.Context {
	return context.WithValue(ctx, heldKey{l.db}, l)
}

func (l *lease) Renew(ctx context.Context) error {
	l.db.mu.Lock()
	defer l.db.mu.Unlock()
	switch {
	case l.tx != nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("memstore: %w", ctx.Err())
	case !l.holds():
		return fmt.Errorf("memstore: %w", idempotency.ErrLeaseLost)
	case l.db.locked[l.claim.ID] != nil:
		return fmt.Errorf("memstore: %w", idempotency.ErrBusy)
	case l.ended:
		return errEnded
	}
	r := l.db.records[l.claim.ID]
	if until := time.Now().Add(l.claim.Lease); until.After(r.lease) {
		r.lease = until
	}
	l.db.records[l.claim.ID] = r
	return nil
}

func (l *lease) Open() bool {
	l.db.mu.Lock()
	defer l.db.mu.Unlock()
	return l.tx != nil
}

// Ended is false: there is no way for a handler to end the business transaction.
func (l *lease) Ended() bool { return false }

func (l *lease) Complete(ctx context.Context, done idempotency.Completion) error {
	l.db.mu.Lock()
	defer l.db.mu.Unlock()
	// Rows that were not committed are gone, and their outcome must not be written without them. One that stands alone may be
	// tried again.
	alone, spoiled := l.tx == nil, l.undone || l.running
	rows := l.end()
	if spoiled {
		l.closed = true
		return fmt.Errorf("memstore: %w", idempotency.ErrTransactionAborted)
	}
	err := l.record(ctx, done, rows)
	l.closed = l.closed || !alone
	return err
}

func (l *lease) Refuse(ctx context.Context, done idempotency.Completion) error {
	l.db.mu.Lock()
	defer l.db.mu.Unlock()
	l.end()
	return l.record(ctx, done, nil)
}

// record writes the outcome, and rows with it, under the guard.
func (l *lease) record(ctx context.Context, done idempotency.Completion, rows []string) error {
	if l.closed {
		return errEnded
	}
	r, err := l.guarded(ctx)
	if err != nil {
		return err
	}
	r.complete(done, time.Now())
	l.db.records[l.claim.ID] = r
	l.db.rows = append(l.db.rows, rows...)
	l.closed = true
	return nil
}

func (l *lease) Release(ctx context.Context) error {
	l.db.mu.Lock()
	defer l.db.mu.Unlock()
	l.end()
	l.closed = true
	r, err := l.guarded(ctx)
	if err != nil {
		return err
	}
	r.fail()
	l.db.records[l.claim.ID] = r
	return nil
}

func (l *lease) Rollback(context.Context) {
	l.db.mu.Lock()
	defer l.db.mu.Unlock()
	l.end()
	l.closed = true
}

func (l *lease) Transient(err error) bool { return errors.Is(err, idempotency.ErrSerialization) }

// guarded gives the record if this attempt may write it.
func (l *lease) guarded(ctx context.Context) (r row, err error) {
	switch {
	case ctx.Err() != nil:
		return r, fmt.Errorf("memstore: %w", ctx.Err())
	case !l.holds():
		return r, fmt.Errorf("memstore: %w", idempotency.ErrLost)
	case l.db.locked[l.claim.ID] != nil:
		return r, fmt.Errorf("memstore: %w", idempotency.ErrBusy)
	}
	return l.db.records[l.claim.ID], nil
}

// holds reports whether the record is in progress and this attempt's, by its token and never by the clock.
func (l *lease) holds() bool {
	r, ok := l.db.records[l.claim.ID]
	return ok && l.owns(&r.record)
}

func (l *lease) owns(rec *idempotency.Record) bool {
	return rec.Scope == l.claim.Scope && rec.State == idempotency.InProgress && rec.Attempt == l.claim.Attempt
}

// takes reports whether the claim may take the key from a record that is not its own.
func (l *lease) takes(rec *idempotency.Record) bool {
	c := &l.claim
	inProgress := rec.State == idempotency.InProgress
	switch {
	case rec.Scope != c.Scope, inProgress && rec.LeaseLeft > 0:
		return false
	case reusable(rec):
		return true
	case rec.State == idempotency.Completed, inProgress && c.NoTakeover:
		return false
	}
	return samePayload(rec, c) && rec.Attempts <= c.MaxAttempts
}

// begin opens the business transaction, if none is open: it locks the record and makes sure that it is this attempt's.
func (l *lease) begin() (*transaction, error) {
	switch {
	case l.ended:
		return nil, errEnded
	case l.tx != nil:
		return l.tx, nil
	case !l.holds():
		return nil, fmt.Errorf("memstore: %w", idempotency.ErrLeaseLost)
	case l.db.locked[l.claim.ID] != nil:
		return nil, fmt.Errorf("memstore: %w", idempotency.ErrBusy)
	}
	l.tx = new(transaction)
	l.db.locked[l.claim.ID] = l.tx
	return l.tx, nil
}

// close closes the business transaction and gives its rows.
func (l *lease) close() (rows []string) {
	if l.tx == nil {
		return nil
	}
	rows = l.tx.rows
	l.tx.over = true
	l.tx = nil
	delete(l.db.locked, l.claim.ID)
	return rows
}

// end closes the lease to the handler.
func (l *lease) end() (rows []string) {
	l.ended = true
	return l.close()
}

// leave ends the part of a function that was given to InTx.
func (l *lease) leave(ok bool) {
	l.running = false
	if ok {
		l.kept, l.undone = true, false
		return
	}
	l.undone = l.undone || l.kept
	l.kept = false
	l.close()
}

// fail makes r a failed record that its owner cannot complete.
func (r *row) fail() {
	r.record.State = idempotency.Failed
	_, _ = rand.Read(r.record.Attempt[:])
	r.lease = time.Now()
}
