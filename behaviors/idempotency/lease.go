package idempotency

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/tekil-go/tekil/requestctx"
)

// reconciler looks for what an earlier attempt has done.
type reconciler func(ctx context.Context) (result []byte, found bool, err error)

// leased makes one attempt of a Leased command: claim, work under a lease that is renewed, guarded completion.
func (d *dispatch) leased(ctx context.Context, w work) (a answer, err error) {
	if err := ctx.Err(); err != nil { // after the claim nobody asks any more whether the caller is still there
		return d.unavailable(ctx, err, requestctx.StateRefused)
	}
	lease, rec, err := d.take(ctx)
	switch {
	case errors.Is(err, ErrBusy):
		return a, errBusy
	case errors.Is(err, ErrSerialization):
		return a, &againError{err}
	case err != nil:
		return d.unavailable(ctx, err, d.before())
	case lease == nil:
		if a, err, decided := d.read(rec); decided {
			return a, err
		}
		d.acceptPrior(rec)
		return a, errVanished // it has become free in between, or is free for the payload as an older version of the contract hashes it
	}
	d.grant = lease.Grant()
	d.reused = d.grant.Attempt == 1 && (d.reused || d.grant.Reused)
	d.flight.owner.Store(&Record{
		Scope: d.claim.Scope, Hash: d.claim.Hash, HashVersion: d.claim.HashVersion, State: InProgress, AfterExpiry: d.claim.AfterExpiry,
		Attempt: d.claim.Attempt, OriginRequestID: d.claim.OriginRequestID, OriginTrace: d.claim.OriginTrace, DraftID: d.claim.DraftID, LeaseLeft: d.claim.Lease,
	})
	defer d.flight.owner.Store(nil)

	ctx = context.WithoutCancel(ctx)
	run := &active{engine: d.Engine, name: d.name, scope: d.claim.Scope, run: d.claim.Attempt, lease: lease, grant: d.grant}
	finished := false
	defer func() {
		if !finished { // a panic or runtime.Goexit in the handler, or in a method of its error
			d.interrupted(ctx, lease, run)
		}
	}()
	if d.grant.Attempt > d.policy.MaxAttempts {
		finished = true
		return d.exhausted(ctx, lease)
	}
	if d.runs > 0 && d.changed() {
		finished = true
		return d.freed(ctx, lease, d.changedError())
	}
	end := d.work(ctx, lease, run, w)
	a, err = d.ending(ctx, lease, run, end)
	finished = true
	return a, err
}

// take sends the claim. When its answer was lost it is sent until there is one, because the record tells whose it is, and a claim
// that nobody knows of would hold the key until its lease is over. So would one that was committed for a caller who has just gone;
// therefore it does not end with the caller.
func (d *dispatch) take(ctx context.Context) (lease Lease, rec *Record, err error) {
	claimCtx, doubt := d.brief.context(context.WithoutCancel(ctx)), false
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		lease, rec, err = d.cfg.Store.Lease(claimCtx, d.claim)
		doubt = doubt || errors.Is(err, ErrCommitUnknown)
		if err == nil || !doubt || !sleep(claimCtx, never, pause) {
			return lease, rec, err
		}
	}
}

// acceptPrior lets the claim pass as what an older version of the contract has made of the same payload.
func (d *dispatch) acceptPrior(rec *Record) (accepted bool) {
	if rec == nil || rec.HashVersion == d.claim.HashVersion || rec.Hash == d.claim.PriorHash {
		return false
	}
	hash, ok := d.rehash(rec.HashVersion)
	if !ok || hash != rec.Hash {
		return false
	}
	d.claim.PriorHash = hash
	return true
}

// end is how a handler has ended.
type end struct {
	result []byte
	err    error
	late   bool // it was told that its time is over
}

// work runs the handler, or the reconciler before it, while the lease is renewed.
func (d *dispatch) work(ctx context.Context, lease Lease, run *active, w work) (e end) {
	d.runs++
	ctx, stop := context.WithTimeoutCause(ctx, d.policy.Deadline, errDeadline)
	defer stop()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	pulse := startPulse(context.WithoutCancel(ctx), lease, d.claim.Lease/3, func() {
		cancel(ErrLeaseLost)
		d.flights.leave(d.claim.ID, d.flight, nil) // it stands in nobody's way any more
	})
	defer pulse.stop()
	defer run.returned.Store(true)
	ctx = &handlerContext{lease.Context(ctx), run}
	found := false
	if d.reconcile != nil && (d.grant.Attempt > 1 || d.runs > 1) {
		if e.result, found, e.err = d.reconcile(ctx); found {
			run.outside.Store(true) // if not this attempt, an earlier one
		}
	}
	if e.err == nil && !found {
		e.result, e.err = w(ctx)
	}
	e.late = context.Cause(ctx) == errDeadline
	return e
}

// ending reads the handler's end. It need not be told that the lease is lost: whatever it then tries to write, the store says so.
func (d *dispatch) ending(ctx context.Context, lease Lease, run *active, e end) (a answer, err error) {
	var final *finalError
	var unknown *unknownError
	done := Completion{Result: e.result, ResultType: d.resultType, ExternalRef: storable(d.req.ExternalRef())}
	outside := run.outside.Load()
	if e.err == nil && d.unencodable != nil {
		// What was done outside stays done, so the outcome is recorded without the result: doing it again would be worse.
		if !outside {
			e.err = d.unencodable
		}
	}
	switch {
	case e.err == nil:
	case lease.Ended():
		d.rollbackLease(ctx, lease)
		return a, d.ended(e.err)
	case errors.As(e.err, &unknown):
		return d.unknown(ctx, lease, e.err)
	case errors.As(e.err, &final):
		if done.Result, err = d.refuse(final); err != nil {
			return d.freed(ctx, lease, &ResultError{Command: d.name, Err: err})
		}
		done.Outcome, done.ResultType = Refusal, refusalType
	case e.late && outside:
		// Whatever error it is: a client of the outside world says in its own words that its context has ended.
		return d.unknown(ctx, lease, e.err)
	case lease.Transient(e.err):
		return d.transient(ctx, lease, run, e.err)
	default:
		return d.freed(ctx, lease, e.err)
	}
	return d.settle(ctx, lease, run, done)
}

// settle writes the outcome and reads the store's word on it.
func (d *dispatch) settle(ctx context.Context, lease Lease, run *active, done Completion) (a answer, err error) {
	alone := !lease.Open()
	end := lease.Complete
	if done.Outcome == Refusal {
		end, alone = lease.Refuse, true // its rows are to be undone
	}
	err = end(d.brief.context(ctx), done)
	d.doubt = errors.Is(err, ErrCommitUnknown)
	if alone {
		// The outcome stands alone and nothing is lost with a try, so it is tried for a while: what was done outside should not be
		// left without a record because the database was away for a moment.
		within, cancel := context.WithTimeout(ctx, resolveTimeout)
		defer cancel()
		for pause := firstPause; mayPass(err) && sleep(within, never, pause); pause = min(2*pause, longestPause) {
			err = end(d.brief.context(ctx), done)
			d.doubt = d.doubt || errors.Is(err, ErrCommitUnknown)
		}
	}
	// A success whose work stands although it could not be recorded is not made free to be done again.
	stands := done.Outcome == Success && (alone || d.onlyOnce(run))
	switch {
	case err == nil:
		return d.recorded(done)
	case errors.Is(err, ErrLost):
		d.rollbackLease(ctx, lease)
		return d.lost(ctx)
	case errors.Is(err, ErrTransactionEnded):
		d.rollbackLease(ctx, lease)
		return a, d.ended(err)
	case errors.Is(err, ErrTransactionAborted):
		err = d.abortedError(err)
		if d.onlyOnce(run) {
			d.rollbackLease(ctx, lease)
			d.report(requestctx.StateUnknown, "")
			return a, err
		}
		return d.freed(ctx, lease, err)
	case stands:
		return d.unknown(ctx, lease, err)
	case errors.Is(err, ErrSerialization):
		return d.transient(ctx, lease, run, err)
	case errors.Is(err, ErrCommitUnknown):
		return d.burn(ctx, lease, err)
	}
	return d.freed(ctx, lease, &StoreError{Command: d.name, Err: err})
}

// mayPass reports whether an outcome that stands alone can be sent again.
func mayPass(err error) bool {
	return err != nil && !errors.Is(err, ErrLost) && !errors.Is(err, ErrTransactionEnded) && !errors.Is(err, ErrTransactionAborted)
}

// onlyOnce reports whether the handler must not run again unless it says itself that it may: it has been outside, and the policy
// would rather have a person decide.
func (d *dispatch) onlyOnce(run *active) bool {
	return d.policy.Takeover == Refuse && run.outside.Load()
}

// burn finds out what became of a COMMIT whose answer was lost. It does not look, because a look cannot see a COMMIT that is still
// on its way: it takes the record from its own token, so that such a COMMIT fails its guard. If that is too late, the COMMIT has
// happened, or somebody else has the key.
func (d *dispatch) burn(ctx context.Context, lease Lease, cause error) (a answer, err error) {
	switch err := d.release(ctx, lease); {
	case err == nil:
		d.report(requestctx.StateFreed, "")
		return a, &StoreError{Command: d.name, Err: cause}
	case errors.Is(err, ErrLost):
		return d.lost(ctx)
	}
	d.report(requestctx.StateUnknown, "")
	return a, &OutcomeUnknownError{Command: d.name, Err: cause}
}

// lost answers for an attempt whose record is not its own any more: with what the record says.
func (d *dispatch) lost(ctx context.Context) (answer, error) {
	within, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		rec, err := d.look(ctx)
		switch {
		case err == nil:
			return d.lostTo(ctx, rec)
		case sleep(within, never, pause):
		case d.doubt: // it may have been lost to this attempt's own success
			d.report(requestctx.StateUnknown, "")
			return answer{}, &OutcomeUnknownError{Command: d.name, Err: err}
		default:
			return d.unavailable(ctx, err, requestctx.StateLost)
		}
	}
}

func (d *dispatch) lostTo(ctx context.Context, rec *Record) (answer, error) {
	a, err, decided := d.read(rec)
	var conflict *ConflictError
	switch {
	case d.doubt && (!decided || errors.As(err, &conflict)):
		// The record has gone, or has another life: what it said of this attempt, which may have been its success, nobody knows.
		d.report(requestctx.StateUnknown, "")
		return answer{}, &OutcomeUnknownError{Command: d.name, Err: ErrCommitUnknown}
	case decided && err == errBusy:
		return d.inProgress(ctx)
	case decided:
		return a, err
	}
	d.report(requestctx.StateLost, "")
	return a, &LeaseLostError{Command: d.name}
}

// freed answers with cause, for an attempt that is known to have done nothing that counts, and releases the record. If that
// cannot be written, the key is free when the lease is over.
func (d *dispatch) freed(ctx context.Context, lease Lease, cause error) (answer, error) {
	switch err := d.release(ctx, lease); {
	case err == nil:
		d.report(requestctx.StateFreed, "")
	case errors.Is(err, ErrLost):
		return d.lost(ctx)
	default:
		d.report(requestctx.StateUnknown, "")
	}
	return answer{}, cause
}

// release makes the record free for its payload. It tries that for a while.
func (d *dispatch) release(ctx context.Context, lease Lease) (err error) {
	within, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	doubt := false
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		err = lease.Release(within)
		if err == nil || errors.Is(err, ErrLost) || !sleep(within, never, pause) {
			break
		}
		doubt = true
	}
	if err == nil {
		return nil
	}
	d.rollbackLease(ctx, lease)
	if doubt && errors.Is(err, ErrLost) { // to an earlier try, whose answer did not come
		if rec, lookErr := d.look(ctx); lookErr == nil && rec != nil && rec.State == Failed {
			return nil
		}
	}
	return err
}

// interrupted ends an attempt whose handler did not return.
func (d *dispatch) interrupted(ctx context.Context, lease Lease, run *active) {
	state := requestctx.StateUnknown
	if run.outside.Load() || lease.Ended() {
		d.rollbackLease(ctx, lease)
	} else {
		switch err := d.release(ctx, lease); {
		case err == nil:
			state = requestctx.StateFreed
		case errors.Is(err, ErrLost):
			state = requestctx.StateLost
		}
	}
	d.report(state, "")
}

// unknown leaves the record in progress until its lease is over: what the handler did outside may have happened (rule rec-3).
func (d *dispatch) unknown(ctx context.Context, lease Lease, cause error) (answer, error) {
	d.rollbackLease(ctx, lease)
	e := &OutcomeUnknownError{Command: d.name, Err: cause, RetryAfter: d.claim.Lease}
	if rec, err := d.look(ctx); err == nil {
		if rec == nil || rec.State != InProgress || rec.Attempt != d.claim.Attempt {
			return d.lostTo(ctx, rec)
		}
		e.RetryAfter = rec.LeaseLeft
	}
	d.report(requestctx.StateUnknown, "")
	return answer{}, e
}

// transient lets the attempt be made again under the same claim, after the database refused it because of a concurrent one.
func (d *dispatch) transient(ctx context.Context, lease Lease, run *active, cause error) (answer, error) {
	switch {
	case d.onlyOnce(run):
		return d.unknown(ctx, lease, cause)
	case d.tries+1 < maxTries:
		d.rollbackLease(ctx, lease)
		return answer{}, &againError{cause}
	}
	return d.freed(ctx, lease, &RetriesError{Command: d.name, Tries: maxTries, Err: cause})
}

// exhausted gives a key back that has been tried too often. The record stays failed, with one attempt more than allowed, so that
// the store does not give it again.
func (d *dispatch) exhausted(ctx context.Context, lease Lease) (answer, error) {
	e := &AttemptsError{Command: d.name, Attempts: d.grant.Attempt - 1}
	d.grant = Grant{} // no attempt was made
	if err := d.release(ctx, lease); errors.Is(err, ErrLost) {
		return d.lost(ctx)
	}
	d.report(requestctx.StateRefused, "")
	return answer{}, e
}

func (d *dispatch) rollbackLease(ctx context.Context, lease Lease) {
	lease.Rollback(d.brief.context(ctx))
}

// pulse renews a lease until it is stopped. It has a timer and no goroutine: most handlers end before the first beat.
type pulse struct {
	ctx   context.Context // carries what the request's does, such as whose schema is meant
	lease Lease
	every time.Duration
	lost  func()

	mu      sync.Mutex
	timer   *time.Timer
	stopped bool
	cancel  context.CancelFunc // ends the renewal that is under way
	beating sync.WaitGroup
}

func startPulse(ctx context.Context, lease Lease, every time.Duration, lost func()) *pulse {
	p := &pulse{ctx: ctx, lease: lease, every: max(every, time.Millisecond), lost: lost}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.timer = time.AfterFunc(p.every, p.beat)
	return p
}

// beat renews once. Only the store's word that the record is somebody else's ends the handler: a store that is slow or away says
// nothing about the lease.
func (p *pulse) beat() {
	p.mu.Lock()
	if p.stopped {
		p.mu.Unlock()
		return
	}
	ctx, cancel := context.WithTimeout(p.ctx, min(p.every, briefTime))
	p.cancel = cancel
	p.beating.Add(1)
	p.mu.Unlock()
	err := p.lease.Renew(ctx)
	cancel()
	p.beating.Done()
	if errors.Is(err, ErrLeaseLost) {
		p.lost()
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.stopped {
		p.timer.Reset(p.every)
	}
}

// stop ends the renewals, the one that is under way included.
func (p *pulse) stop() {
	p.mu.Lock()
	p.stopped = true
	p.timer.Stop()
	if p.cancel != nil {
		p.cancel()
	}
	p.mu.Unlock()
	p.beating.Wait()
}
