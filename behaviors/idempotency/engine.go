package idempotency

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tekil-go/tekil/requestctx"
)

// Config is what an [Engine] needs.
type Config struct {
	// Store keeps the records. It must be set where any command is marked.
	Store Store
	// Secrets are the keys of the HMAC through which fields tagged idempotency:"secret" enter the fingerprint. The first one makes
	// the fingerprints of new records, and the others are for comparing with records that were made under them. There must be one
	// where a command has such a field. See [Secret] for changing it.
	Secrets []Secret
	// Sealer encrypts and decrypts stored results. It must be set where a command's policy says [SealResult], and as long as there
	// are records of such a command.
	Sealer Sealer
	// RequireTenant refuses marked commands whose request context names no tenant.
	RequireTenant bool
	// RetryAfter is what a duplicate is told while the first attempt runs. Zero means 2 seconds (rule http-3).
	RetryAfter time.Duration
}

// Secret is a key of the HMAC for fields tagged idempotency:"secret", under a version that its records hold.
//
// To change the key of a program that is deployed instance by instance, first give every instance the new one as the second entry,
// then as the first one, and take the old one away when the longest retention has passed since. An instance that meets a record of
// a secret that it does not have answers an honest retry with a [*ConflictError] with VersionChanged set: nothing is done twice.
type Secret struct {
	// Version is 0 to 30 and names the key for good: another key under a version that was in use makes conflicts of retries. Records
	// from before there were versions are of version 0.
	Version int
	// Key is at least 32 random bytes.
	Key []byte
}

// String names the version and not the key.
func (s Secret) String() string { return fmt.Sprintf("secret(version %d)", s.Version) }

// GoString is String.
func (s Secret) GoString() string { return s.String() }

// maxSecretVersion is the highest version that a record's hash version can hold.
const maxSecretVersion = 30

func checkSecrets(secrets []Secret) error {
	var errs []error
	seen := make(map[int]bool)
	for i, s := range secrets {
		if s.Version < 0 || s.Version > maxSecretVersion {
			errs = append(errs, fmt.Errorf("idempotency: Config.Secrets[%d] has the version %d; it must be between 0 and %d", i, s.Version, maxSecretVersion))
		}
		if len(s.Key) < 32 {
			errs = append(errs, fmt.Errorf("idempotency: the key of Config.Secrets[%d] is shorter than 32 bytes", i))
		}
		if seen[s.Version] {
			errs = append(errs, fmt.Errorf("idempotency: Config.Secrets has two keys of the version %d; give the new one the next version", s.Version))
		}
		seen[s.Version] = true
	}
	return errors.Join(errs...)
}

// Engine runs the idempotency stage of all commands of one bus. It is safe for concurrent use. Make it with [New].
type Engine struct {
	cfg     Config
	flights flights
	seen    seen
	brief   brief
}

// New makes an engine. It reports every secret that is too short or whose version is out of bounds or taken.
func New(cfg Config) (*Engine, error) {
	err := checkSecrets(cfg.Secrets)
	if cfg.RetryAfter < 0 {
		err = errors.Join(err, errors.New("idempotency: Config.RetryAfter is negative"))
	}
	if err != nil {
		return nil, err
	}
	cfg.Secrets = slices.Clone(cfg.Secrets)
	if cfg.RetryAfter == 0 {
		cfg.RetryAfter = 2 * time.Second
	}
	return &Engine{
		cfg:     cfg,
		flights: flights{m: make(map[ID]*flight)},
		seen:    seen{now: make(map[ID]struct{})},
	}, nil
}

// Bounds of the engine's patience.
const (
	// beginTimeout bounds the claim, waiting for a connection included: after it the store counts as not available.
	beginTimeout = 5 * time.Second
	// briefTime and its double bound a look, completion, refusal and rollback, which do not end with the request.
	briefTime = 5 * time.Second
	// resolveTimeout bounds finding out what became of a commit whose answer was lost.
	resolveTimeout = 5 * time.Second
	// maxTries bounds how often an attempt is made that the database refuses because of a concurrent one.
	maxTries = 3
	// maxVanished bounds how often a record may be gone that has just been met, before the caller is told to come again.
	maxVanished = 5
	// The pauses between two looks at a key that another process holds.
	firstPause, longestPause = 5 * time.Millisecond, 50 * time.Millisecond
)

// work is a handler's result in the form of the record.
type work func(ctx context.Context) (result []byte, err error)

// answer is what a dispatch is answered with: a completed record.
type answer struct {
	rec *Record
	own bool // it is of the last run of this very dispatch
}

// dispatch is one dispatch of a marked command on its way through the engine.
type dispatch struct {
	*Engine
	name       string
	policy     Policy
	claim      Claim
	resultType string        // how the result of the last run is stored
	refused    *RefusedError // what the first caller gets, when the last run ended with a final refusal
	req        *requestctx.Request
	rehash     func(version int16) ([32]byte, bool) // the fingerprint under another version, if this program has that
	reconcile  reconciler                           // nil where the policy does not ask for it
	flight     *flight                              // this dispatch's own, when it is the one that is let past
	reused     bool                                 // the key had a record that has expired
	detached   bool                                 // the handler succeeded and did not use its transaction
	runs       int                                  // how often the handler has been called
	completed  *Record                              // the completed record that was met or made
	busy       *Record                              // the record in progress that was met last
	tries      int                                  // attempts that the database refused because of a concurrent one
	grant      Grant                                // of the attempt that was made last, in Leased
	doubt      bool                                 // its outcome may have been committed, in Leased
	// unencodable is why the handler's result cannot be stored, in Leased, where that does not always undo the work.
	unencodable error
}

func (d *dispatch) report(state requestctx.State, original string) {
	trace := ""
	if state == requestctx.StateReplayed {
		trace = d.completed.OriginTrace
	}
	d.req.Report(requestctx.Outcome{
		State: state, Replayed: state == requestctx.StateReplayed, OriginalRequestID: original, OriginalTrace: trace,
		ReusedExpired: d.reused && state == requestctx.StateExecuted, Detached: d.detached && state == requestctx.StateExecuted,
		Attempt: d.grant.Attempt, TookOver: d.grant.TookOver,
	})
}

// run finds the outcome of the key or makes it.
func (d *dispatch) run(ctx context.Context, w work) (answer, error) {
	until := time.Now().Add(d.policy.Wait) // one budget for all the waiting that this dispatch does
	defer func() {
		if d.flight != nil {
			d.flights.leave(d.claim.ID, d.flight, d.completed)
		}
	}()
	pause, vanished := firstPause, 0
	for {
		// A replay does not queue: those that have waited for the first attempt would otherwise be served one by one, and the
		// last of them be told that it is in progress when its record stands there.
		held := false
		if d.looksFirst() {
			rec, err := d.look(ctx)
			if err != nil {
				return d.unavailable(ctx, err, d.before())
			}
			a, err, decided := d.read(rec)
			if decided && err != errBusy {
				return a, err
			}
			held = decided
		}
		if d.flight == nil {
			own, other := d.flights.enter(d.claim.ID)
			if other != nil {
				if a, err, decided := d.queue(ctx, until, other); decided {
					return a, err
				}
				continue
			}
			d.flight = own
		}
		if held { // it looks on behalf of all that wait in this process
			if !sleep(ctx, until, pause) {
				return d.inProgress(ctx)
			}
			pause = min(2*pause, longestPause)
			continue
		}
		a, err := d.attempt(ctx, w)
		again, isAgain := err.(*againError) // compared and not searched for: a handler's error may claim to be anything
		switch {
		case err == nil:
			return a, nil
		case err == errBusy:
			if !sleep(ctx, until, pause) {
				return d.inProgress(ctx)
			}
			pause = min(2*pause, longestPause)
		case isAgain:
			if d.tries++; d.tries >= maxTries {
				if errors.Is(again.cause, ErrCommitUnknown) { // by now it is known: it did not happen
					return d.unavailable(ctx, again.cause, requestctx.StateFreed)
				}
				state := requestctx.StateFreed
				if d.policy.Mode == Leased && d.runs > 0 { // its claim stands
					state = requestctx.StateUnknown
				}
				d.report(state, "")
				return answer{}, &RetriesError{Command: d.name, Tries: d.tries, Err: again.cause}
			}
			sleep(ctx, never, time.Duration(rand.Int64N(int64(d.tries)*int64(10*time.Millisecond))))
			ctx = context.WithoutCancel(ctx) // as for the handler: a caller who has gone will ask for this work again
		case err == errVanished:
			if vanished++; vanished >= maxVanished {
				return d.inProgress(ctx)
			}
		default:
			return a, err
		}
	}
}

// looksFirst reports whether to begin with a plain read: the key is known to have a record, and this process is not the one that
// owns it. What it owns, its other dispatches know without asking.
func (d *dispatch) looksFirst() bool {
	return d.seen.has(d.claim.ID) && (d.policy.Mode != Leased || d.flight != nil || !d.flights.owned(d.claim.ID))
}

// before is the state of a dispatch that the store fails before its next attempt.
func (d *dispatch) before() requestctx.State {
	if d.policy.Mode == Leased && d.runs > 0 { // its claim stands, and what it did outside does as well
		return requestctx.StateUnknown
	}
	return requestctx.StateRefused
}

// queue waits for the dispatch of the same key that this process is busy with, and reads what has become of it.
func (d *dispatch) queue(ctx context.Context, until time.Time, other *flight) (a answer, err error, decided bool) {
	owner := other.owner.Load() // a Leased one that owns the key tells whose payload it is running
	if a, err, decided = d.read(owner); decided && err != errBusy {
		return a, err, true
	}
	if wait(ctx, until, other.landed) {
		a, err, decided = d.read(other.rec)
		return a, err, decided && err != errBusy
	}
	if owner == nil {
		if a, err, decided = d.read(other.owner.Load()); decided && err != errBusy {
			return a, err, true
		}
	}
	a, err = d.inProgress(ctx)
	return a, err, true
}

// What attempt tells run to do next. They never leave the engine.
var (
	errBusy     = errors.New("idempotency: busy")
	errVanished = errors.New("idempotency: vanished")
)

// againError says that the attempt was rolled back because of a concurrent one and may be made again.
type againError struct{ cause error }

func (e *againError) Error() string { return "idempotency: again: " + e.cause.Error() }

// attempt makes one attempt, in the policy's mode.
func (d *dispatch) attempt(ctx context.Context, w work) (answer, error) {
	if d.policy.Mode == Leased {
		return d.leased(ctx, w)
	}
	return d.atomic(ctx, w)
}

// atomic makes one attempt of an Atomic command: claim, work, completion.
func (d *dispatch) atomic(ctx context.Context, w work) (a answer, err error) {
	beginCtx, cancel := context.WithTimeout(ctx, beginTimeout)
	at, err := d.cfg.Store.Begin(beginCtx, d.claim)
	cancel()
	switch {
	case errors.Is(err, ErrBusy):
		return a, errBusy
	case errors.Is(err, ErrSerialization):
		return a, &againError{err}
	case err != nil:
		return d.unavailable(ctx, err, requestctx.StateRefused)
	}
	// What follows must end on its own: the handler, so that a client with a short timeout does not undo the work that it
	// will ask for again, and the completion, so that it is not cut off between the handler and the record.
	detached := context.WithoutCancel(ctx)
	finished := false
	undo := func() {
		finished = true
		d.rollback(detached, at)
	}
	defer func() {
		if !finished { // a panic or runtime.Goexit in the handler, or in a method of its error
			undo()
			d.report(requestctx.StateFreed, "")
		}
	}()
	if rec := at.Found(); rec != nil {
		if a, err, decided := d.read(rec); decided {
			undo()
			return a, err
		}
		if rec.State == Failed && d.acceptPrior(rec) { // the transaction was begun without knowing the older hash
			undo()
			return a, errVanished
		}
	}

	if d.runs > 0 && d.changed() {
		undo()
		d.report(requestctx.StateFreed, "")
		return a, d.changedError()
	}
	d.runs++
	run := &active{engine: d.Engine, name: d.name, scope: d.claim.Scope, run: d.claim.Attempt, grant: Grant{Attempt: 1, Reused: d.reused}}
	defer run.returned.Store(true)
	workCtx, cancel := context.WithTimeoutCause(detached, d.policy.Deadline, errDeadline)
	defer cancel()
	result, workErr := w(&handlerContext{at.Context(workCtx), run})
	run.returned.Store(true)
	cancel()
	d.detached = workErr == nil && !at.Used()

	var final *finalError
	var unknown *unknownError
	done := Completion{Result: result, ResultType: d.resultType, ExternalRef: storable(d.req.ExternalRef())}
	switch {
	case workErr == nil && d.detached && d.policy.Strict:
		undo()
		d.report(requestctx.StateFreed, "")
		return a, &HandlerError{Command: d.name, Reason: "the handler succeeded without using the transaction it was given, so its work and its record would not share a commit; write through the store's DB (policy Strict)"}
	case workErr == nil:
	case at.Ended():
		undo()
		return a, d.ended(workErr)
	case errors.As(workErr, &unknown):
		undo()
		d.report(requestctx.StateFreed, "")
		return a, &HandlerError{Command: d.name, Reason: "an Atomic handler returned an unknown outcome; calls to the outside world do not belong into its transaction", Err: workErr}
	case errors.As(workErr, &final):
		if done.Result, err = d.refuse(final); err != nil {
			undo()
			d.report(requestctx.StateFreed, "")
			return a, &ResultError{Command: d.name, Err: err}
		}
		done.Outcome, done.ResultType = Refusal, refusalType
	default:
		transient := at.Transient(workErr)
		undo()
		if transient {
			return a, &againError{workErr}
		}
		return d.failed(detached, workErr)
	}
	finished = true
	return d.finish(detached, at, done)
}

func (d *dispatch) changedError() error {
	return &HandlerError{Command: d.name, Reason: "the handler had to be run again because of a concurrent transaction, and its first run has changed what the command points to (a slice, a map, a pointer), so it would have done other work than it was asked for; copy before changing"}
}

func (d *dispatch) abortedError(cause error) error {
	return &HandlerError{Command: d.name, Reason: "the handler's transaction could not be committed, because a statement in it had failed or was still running, or because a deferred constraint or trigger refused its rows; everything was rolled back", Err: cause}
}

// changed reports whether the command is no longer what its fingerprint was made of.
func (d *dispatch) changed() bool {
	hash, ok := d.rehash(d.claim.HashVersion)
	return !ok || hash != d.claim.Hash
}

// ended answers for a handler that has ended its transaction.
func (d *dispatch) ended(cause error) error {
	d.report(requestctx.StateUnknown, "")
	return &HandlerError{Command: d.name, Reason: "the handler committed or rolled back the transaction it was given; work may have been done without a record", Err: cause}
}

// errDeadline is the cause of a handler's context that ended by the policy.
var errDeadline = errors.New("idempotency: the policy's deadline for the handler has passed")

// finish writes the record and reads the store's word on it.
func (d *dispatch) finish(ctx context.Context, at Transaction, done Completion) (a answer, err error) {
	finishCtx := d.brief.context(ctx)
	if done.Outcome == Refusal {
		err = at.Refuse(finishCtx, done)
	} else {
		err = at.Complete(finishCtx, done)
	}
	switch {
	case err == nil:
		return d.recorded(done)
	case errors.Is(err, ErrLost):
		rec, err := d.look(ctx)
		if err != nil {
			return d.unavailable(ctx, err, requestctx.StateFreed)
		}
		if a, err, decided := d.read(rec); decided {
			return a, err
		}
		return a, errVanished
	case errors.Is(err, ErrBusy):
		return a, errBusy
	case errors.Is(err, ErrSerialization):
		return a, &againError{err}
	case errors.Is(err, ErrCommitUnknown):
		return d.resolve(ctx, err)
	case errors.Is(err, ErrTransactionEnded):
		return a, d.ended(err)
	case errors.Is(err, ErrTransactionAborted):
		d.report(requestctx.StateFreed, "")
		return a, d.abortedError(err)
	}
	// Nothing of it is there. If the server has ended the transaction because this process stood still, somebody else may have done
	// the work since, and then that is the answer.
	if a, readErr, decided := d.lookAgain(ctx); decided && readErr != errBusy {
		return a, readErr
	}
	return d.unavailable(ctx, err, requestctx.StateFreed)
}

// lookAgain decides by the record after something failed. A store that cannot be asked decides nothing.
func (d *dispatch) lookAgain(ctx context.Context) (a answer, err error, decided bool) {
	rec, err := d.look(ctx)
	if err != nil {
		return a, nil, false
	}
	return d.read(rec)
}

// recorded answers for an outcome that has just been committed.
func (d *dispatch) recorded(done Completion) (answer, error) {
	d.seen.add(d.claim.ID)
	d.completed = &Record{
		Scope: d.claim.Scope, Hash: d.claim.Hash, HashVersion: d.claim.HashVersion, State: Completed, AfterExpiry: d.claim.AfterExpiry,
		Attempt: d.claim.Attempt, Outcome: done.Outcome, Result: done.Result, ResultType: done.ResultType,
		OriginRequestID: d.claim.OriginRequestID, OriginTrace: d.claim.OriginTrace, ExternalRef: done.ExternalRef, DraftID: d.claim.DraftID,
	}
	d.report(requestctx.StateExecuted, d.claim.OriginRequestID)
	return d.answerOf(d.completed, true)
}

// answerOf gives the outcome of a completed record. Where its result was left out on purpose, its own dispatch still has it.
func (d *dispatch) answerOf(rec *Record, own bool) (answer, error) {
	erased := rec.ResultType == tombstoneType // before its own attempt has read it
	if erased || rec.ResultType == omittedType && (!own || d.unencodable != nil) {
		return answer{}, &ResultUnavailableError{Command: d.name, ExternalRef: rec.ExternalRef, Err: d.unencodable}
	}
	return answer{rec, own}, nil
}

// failed answers a handler's error. What the handler ran into may have been the winner's work, seen before its record (where
// no hint kept the two apart), so the record is looked at once before the error is believed.
func (d *dispatch) failed(ctx context.Context, workErr error) (answer, error) {
	if a, err, decided := d.lookAgain(ctx); decided {
		return a, err
	}
	d.report(requestctx.StateFreed, "")
	return answer{}, workErr
}

// resolve finds out what became of a commit whose answer was lost. It never decides by a plain read, which cannot see a
// commit that is still under way: a claim of its own has to be let in first. "No row" then means that it did not happen; a
// packet that arrives later still meets either the end of its transaction or the unique index.
func (d *dispatch) resolve(ctx context.Context, cause error) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		at, err := d.cfg.Store.Begin(ctx, d.claim)
		if err == nil {
			rec := at.Found()
			d.rollback(context.WithoutCancel(ctx), at)
			if a, err, decided := d.read(rec); decided {
				return a, err
			}
			return answer{}, &againError{cause}
		}
		if !sleep(ctx, never, pause) {
			d.report(requestctx.StateUnknown, "")
			return answer{}, &OutcomeUnknownError{Command: d.name, Err: cause}
		}
	}
}

// read decides by a record, in this order: is it mine, is it expired, is it the same payload, and only then its state.
// It reports decided = false when the key is free, and the error errBusy when it is in progress.
func (d *dispatch) read(rec *Record) (a answer, err error, decided bool) {
	if rec == nil {
		return a, nil, false
	}
	if err := checkScope(d.name, rec, &d.claim); err != nil {
		d.report(requestctx.StateRefused, "")
		return a, err, true
	}
	// A lease that is over gives others the right to take the key over; an Atomic command leaves that to those that have leases.
	held := rec.State == InProgress && (d.policy.Mode != Leased || rec.LeaseLeft > 0)
	over := rec.Expired && !held
	switch {
	case rec.State == Completed && rec.Attempt == d.claim.Attempt:
		// This very dispatch, whose answer from the database was lost. Expired or not, what it was to do has been done.
		d.seen.add(d.claim.ID)
		d.report(requestctx.StateExecuted, d.claim.OriginRequestID)
		a, err = d.answerOf(rec, d.runs == 1) // after two, it may be of a COMMIT of the first that came late
		return a, err, true
	case rec.ResultType == tombstoneType, over && rec.AfterExpiry == Tombstone && (rec.State == Completed || !d.sameHash(rec)):
		d.report(requestctx.StateExpired, "")
		return a, &ExpiredError{Command: d.name}, true
	case over && rec.AfterExpiry == Reuse:
		d.reused = true
		return a, nil, false
	}
	if !d.sameHash(rec) {
		d.report(requestctx.StateConflict, "")
		return a, &ConflictError{Command: d.name, VersionChanged: rec.HashVersion != d.claim.HashVersion}, true
	}
	switch {
	case rec.State == InProgress && rec.Attempt == d.claim.Attempt:
		return a, nil, false // its own, to be made again
	case rec.State == Completed:
		d.seen.add(d.claim.ID)
		d.completed = rec
		if rec.ExternalRef != "" && d.req.ExternalRef() == "" {
			d.req.SetExternalRef(rec.ExternalRef) // for the log line of the replay (rule see-1)
		}
		if rec.DraftID != "" && d.req.DraftID() == "" {
			d.req.SetDraftID(rec.DraftID)
		}
		d.report(requestctx.StateReplayed, rec.OriginRequestID)
		a, err = d.answerOf(rec, false)
		return a, err, true
	case held:
		d.seen.add(d.claim.ID)
		d.busy = rec
		return a, errBusy, true
	case d.policy.Mode == Leased && rec.State == InProgress && d.policy.Takeover == Refuse:
		d.report(requestctx.StateUnknown, rec.OriginRequestID)
		return a, &OutcomeUnknownError{Command: d.name, Review: true}, true
	case d.policy.Mode == Leased && rec.Attempts > d.policy.MaxAttempts:
		d.report(requestctx.StateRefused, "")
		return a, &AttemptsError{Command: d.name, Attempts: rec.Attempts - 1}, true
	}
	return a, nil, false // failed, or its attempt has died, and with the same payload
}

// sameHash compares the payload with the record's. A record made under another version of the contract is compared by that
// version, so that a deploy does not turn an honest retry into a conflict.
func (d *dispatch) sameHash(rec *Record) bool {
	if rec.HashVersion == d.claim.HashVersion {
		return rec.Hash == d.claim.Hash
	}
	hash, ok := d.rehash(rec.HashVersion)
	return ok && rec.Hash == hash
}

func (d *dispatch) look(ctx context.Context) (*Record, error) {
	return d.cfg.Store.Look(d.brief.context(ctx), d.claim)
}

func (d *dispatch) rollback(ctx context.Context, at Transaction) {
	at.Rollback(d.brief.context(ctx))
}

func (d *dispatch) inProgress(ctx context.Context) (answer, error) {
	origin := ""
	if d.busy != nil {
		origin = d.busy.OriginRequestID
	}
	d.report(requestctx.StateInProgress, origin)
	if err := ctx.Err(); err != nil { // the caller has gone: its own error says more
		return answer{}, context.Cause(ctx)
	}
	e := &InProgressError{Command: d.name, RetryAfter: d.cfg.RetryAfter}
	if d.policy.Mode == Leased {
		e.OperationID, e.Accepted = d.claim.ID.Operation(), d.policy.Duplicate == AnswerAccepted
	}
	return answer{}, e
}

// unavailable fails closed: the handler has not run, or what it did has been rolled back.
func (d *dispatch) unavailable(ctx context.Context, err error, state requestctx.State) (answer, error) {
	d.report(state, "")
	if errors.Is(ctx.Err(), context.Canceled) { // the caller has gone, which says nothing about the store
		return answer{}, context.Cause(ctx)
	}
	return answer{}, &StoreError{Command: d.name, Err: err}
}

// never is the end of a wait that only its context ends.
var never time.Time

// wait waits for a channel to be closed. It reports false when the time has come or ctx has ended first.
func wait(ctx context.Context, until time.Time, closed <-chan struct{}) bool {
	left := time.Until(until)
	if left <= 0 {
		return false
	}
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-closed:
		return true
	case <-timer.C:
		return false
	case <-ctx.Done():
		return false
	}
}

// sleep pauses for a while. It reports false when the time has come or ctx has ended before that.
func sleep(ctx context.Context, until time.Time, d time.Duration) bool {
	whole := true
	if until != never {
		if left := time.Until(until); left < d {
			d, whole = left, false
		}
		if d <= 0 {
			return false
		}
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return whole
	case <-ctx.Done():
		return false
	}
}
