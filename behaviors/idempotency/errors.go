package idempotency

import (
	"errors"
	"fmt"
	"time"
)

// What a [Store] says about an attempt. Callers of a command never see these.
var (
	// ErrBusy: another attempt of the key is running or just committing.
	ErrBusy = errors.New("idempotency: another attempt holds the key")
	// ErrLost: another attempt's record stands under the key, and nothing of this one was committed.
	ErrLost = errors.New("idempotency: another attempt has completed the key")
	// ErrSerialization: the database refused the transaction because of a concurrent one; it may be made again.
	ErrSerialization = errors.New("idempotency: the transaction could not be serialized")
	// ErrCommitUnknown: COMMIT was sent and its answer did not come.
	ErrCommitUnknown = errors.New("idempotency: the outcome of the commit is unknown")
	// ErrTransactionEnded: the handler ended the transaction that it was given.
	ErrTransactionEnded = errors.New("idempotency: the handler ended its transaction")
	// ErrTransactionAborted: a statement had failed in the transaction, or was still running, when the handler returned success,
	// or a deferred constraint or trigger refused the handler's rows at COMMIT.
	ErrTransactionAborted = errors.New("idempotency: the handler's transaction is aborted")
)

// What a handler can meet.
var (
	// ErrLeaseLost is the cause (context.Cause) with which the context of a Leased handler ends when another attempt has taken its
	// key over or a person has released it, and what a store's InTx returns then. Nothing of this attempt can be committed any
	// more; the handler should stop.
	ErrLeaseLost = errors.New("idempotency: the lease was lost: another attempt has taken the key over")
	// ErrLeasedInsideAtomic is behind the [*HandlerError] of a Leased command that is sent inside an open transaction of another
	// command: its claim would be committed beside that transaction and outlive its rollback.
	ErrLeasedInsideAtomic = errors.New("idempotency: a Leased command inside the transaction of another command")
	// ErrChildLabelRequired is behind the [*HandlerError] of a marked command that a Leased handler sends for the second time
	// without [WithLabel]: the second one would be taken for a repetition of the first.
	ErrChildLabelRequired = errors.New("idempotency: the same command was sent twice inside a Leased command, without labels that tell the two apart")
	// ErrNoIntent is returned by [DownstreamKey] and [EventID] where no marked command with a key is being handled: there is nothing that a
	// key could be derived from, and none is made up (rule pipe-7).
	ErrNoIntent = errors.New("idempotency: there is no recorded intent here to derive a key from")
)

// KeyMissingError is returned for a marked command that came without a key (rule pipe-7). Nothing was read or recorded.
type KeyMissingError struct{ Command string }

func (e *KeyMissingError) Error() string {
	return "idempotency: " + e.Command + ": this command needs an idempotency key and none was sent; send one that names the intent"
}

// Code is the outcome code of the error.
func (*KeyMissingError) Code() string { return "IDEMPOTENCY_KEY_MISSING" }

// KeyInvalidError is returned for a marked command whose key does not follow the grammar (rule http-1). Nothing was read or
// recorded.
type KeyInvalidError struct {
	Command string
	// Err is the [*requestctx.KeyError].
	Err error
}

func (e *KeyInvalidError) Error() string { return "idempotency: " + e.Command + ": " + e.Err.Error() }

// Unwrap gives the reason.
func (e *KeyInvalidError) Unwrap() error { return e.Err }

// Code is the outcome code of the error.
func (*KeyInvalidError) Code() string { return "IDEMPOTENCY_KEY_INVALID" }

// ScopeError is returned for a marked command whose client or tenant is not known (rule rec-8). It is a fault of the edge's
// configuration. Nothing was read or recorded.
type ScopeError struct {
	Command string
	// Missing is "client" or "tenant", or says that one of them, or the source, is there and cannot be stored.
	Missing string
}

func (e *ScopeError) Error() string {
	return fmt.Sprintf("idempotency: %s: the request context names no %s, so the key has no scope; the edge must set it (requestctx.Anonymous where callers are meant to be anonymous)", e.Command, e.Missing)
}

// Code is the outcome code of the error.
func (*ScopeError) Code() string { return "IDEMPOTENCY_SCOPE_MISSING" }

// ConflictError is returned when the key belongs to another payload (rule http-4). The record is not changed.
type ConflictError struct {
	Command string
	// VersionChanged is true when the record was made under another version of the contract or of the secret ([Secret]), which may be
	// the cause.
	VersionChanged bool
}

func (e *ConflictError) Error() string {
	s := "idempotency: " + e.Command + ": the key has already been used with a different payload"
	if e.VersionChanged {
		s += " (it was recorded under another version of the contract or of the secret)"
	}
	return s
}

// Code is the outcome code of the error.
func (*ConflictError) Code() string { return "IDEMPOTENCY_KEY_CONFLICT" }

// InProgressError is returned while another attempt of the key is running (rule rec-4).
type InProgressError struct {
	Command string
	// RetryAfter is when to ask again.
	RetryAfter time.Duration
	// OperationID names what is running, for [FindOperation]; empty for an Atomic command, which nobody can see before it is done.
	// It is the same for every attempt of the intent and does not reveal the key.
	OperationID string
	// Accepted is true when the command's policy asks for "accepted, look at the operation" instead of "in progress, ask again"
	// ([AnswerAccepted]).
	Accepted bool
}

func (e *InProgressError) Error() string {
	return fmt.Sprintf("idempotency: %s: another attempt with this key is in progress; ask again in %v", e.Command, e.RetryAfter)
}

// Code is the outcome code of the error.
func (*InProgressError) Code() string { return "IDEMPOTENCY_REQUEST_IN_PROGRESS" }

// ExpiredError is returned for a key whose record has passed its retention and whose command does not take it again
// ([Tombstone]).
type ExpiredError struct{ Command string }

func (e *ExpiredError) Error() string {
	return "idempotency: " + e.Command + ": the key was used and has expired; new work needs a new key"
}

// Code is the outcome code of the error.
func (*ExpiredError) Code() string { return "IDEMPOTENCY_KEY_EXPIRED" }

// StoreError is returned when the store could not be used. The stage fails closed: the handler has not run, or what it did
// was rolled back. The same key may be sent again.
type StoreError struct {
	Command string
	// Err is the store's error.
	Err error
}

func (e *StoreError) Error() string {
	return "idempotency: " + e.Command + ": the store of records is not available: " + e.Err.Error()
}

// Unwrap gives the store's error.
func (e *StoreError) Unwrap() error { return e.Err }

// Code is the outcome code of the error.
func (*StoreError) Code() string { return "IDEMPOTENCY_STORE_UNAVAILABLE" }

// RetriesError is returned when the database refused the transaction over and over because of concurrent ones. All of it was
// rolled back; the same key may be sent again.
type RetriesError struct {
	Command string
	// Tries is how often the attempt was made.
	Tries int
	// Err is the last refusal.
	Err error
}

func (e *RetriesError) Error() string {
	return fmt.Sprintf("idempotency: %s: the transaction could not be serialized in %d tries", e.Command, e.Tries)
}

// Unwrap gives the last refusal.
func (e *RetriesError) Unwrap() error { return e.Err }

// Code is the outcome code of the error.
func (*RetriesError) Code() string { return "IDEMPOTENCY_RETRIES_EXHAUSTED" }

// OutcomeUnknownError is returned when the work may or may not have been done and that could not be found out in time: the
// answer to a COMMIT was lost, a Leased handler returned [Unknown] or ran into its deadline outside, the store was away when a
// Leased handler's success was to be recorded, or an earlier attempt has died and the command's policy leaves that to a person
// ([Refuse]). Unless Review is true the same key may be sent again, and will then replay the outcome or run.
type OutcomeUnknownError struct {
	Command string
	// RetryAfter is when to ask again; 0 for no better time than another.
	RetryAfter time.Duration
	// Review is true when a person has to decide; see [Admin].
	Review bool
	// Err is what broke the commit or what the handler said; nil with Review.
	Err error
}

func (e *OutcomeUnknownError) Error() string {
	if e.Review {
		return "idempotency: " + e.Command + ": an earlier attempt ended without saying whether the work was done; its policy leaves the key to a person (idempotency.Admin)"
	}
	return "idempotency: " + e.Command + ": it is not known whether the work was committed; send the same key again"
}

// Unwrap gives what broke the commit, or what the handler said.
func (e *OutcomeUnknownError) Unwrap() error { return e.Err }

// Code is the outcome code of the error.
func (*OutcomeUnknownError) Code() string { return "IDEMPOTENCY_OUTCOME_UNKNOWN" }

// ResultError is returned when a result cannot be stored or a stored one cannot be read. In the first case everything was
// rolled back. In the second the handler did not run, and the same key works once a version that reads the result is deployed, or
// the key that opens a sealed one.
type ResultError struct {
	Command string
	// Stored is true when the result is in the record and cannot be read.
	Stored bool
	// Err is the encoder's or decoder's error. It may quote the result and is not part of the message.
	Err error
}

func (e *ResultError) Error() string {
	if e.Stored {
		return "idempotency: " + e.Command + ": the stored result cannot be read by this version"
	}
	return "idempotency: " + e.Command + ": the handler's result cannot be stored; all was rolled back"
}

// Unwrap gives the encoder's or decoder's error.
func (e *ResultError) Unwrap() error { return e.Err }

// Code is the outcome code of the error.
func (e *ResultError) Code() string {
	if e.Stored {
		return "IDEMPOTENCY_RESULT_UNDECODABLE"
	}
	return "IDEMPOTENCY_RESULT_UNENCODABLE"
}

// HandlerError is returned when a handler broke its part of the contract. It is a bug to be mended, and is logged as an error.
type HandlerError struct {
	Command string
	// Reason says what the handler did.
	Reason string
	// Err is the error behind it, or nil. It is not part of the message.
	Err error
}

func (e *HandlerError) Error() string { return "idempotency: " + e.Command + ": " + e.Reason }

// Unwrap gives the error behind it.
func (e *HandlerError) Unwrap() error { return e.Err }

// Code is the outcome code of the error.
func (*HandlerError) Code() string { return "IDEMPOTENCY_HANDLER_FAULT" }

// RecordError is returned when a record is found whose scope is not the one that was asked for. It means a damaged table (or
// a collision of SHA-256) and needs a person.
type RecordError struct{ Command string }

func (e *RecordError) Error() string {
	return "idempotency: " + e.Command + ": the record found under this id belongs to another scope; the table of records is damaged"
}

// Code is the outcome code of the error.
func (*RecordError) Code() string { return "IDEMPOTENCY_RECORD_MISMATCH" }

// LeaseLostError is returned to the caller of a Leased attempt that was taken over or released while it ran, when the record
// has no outcome that could be given instead. Nothing that this attempt did in its business transaction was committed. The
// same key may be sent again.
type LeaseLostError struct{ Command string }

func (e *LeaseLostError) Error() string {
	return "idempotency: " + e.Command + ": the lease was lost while the handler ran, and its work was refused; send the same key again"
}

// Code is the outcome code of the error.
func (*LeaseLostError) Code() string { return "IDEMPOTENCY_LEASE_LOST" }

// AttemptsError is returned for a key whose attempts have failed or died more often than the policy's MaxAttempts allows. The
// handler is not run again until a person has released the key ([Admin.Release]) or it has expired.
type AttemptsError struct {
	Command string
	// Attempts is how many have been made.
	Attempts int
}

func (e *AttemptsError) Error() string {
	return fmt.Sprintf("idempotency: %s: %d attempts of this key have failed; it is not tried again until a person has released it (idempotency.Admin)", e.Command, e.Attempts)
}

// Code is the outcome code of the error.
func (*AttemptsError) Code() string { return "IDEMPOTENCY_ATTEMPTS_EXHAUSTED" }

// ResultUnavailableError is returned when the work was done and its result is not in the record: because it was larger than the
// policy's ResultLimit, because the policy keeps none ([OmitResult]), because it could not be stored after the handler had been to
// the outside world, or because it was erased. The work is not done again. In the first two cases the first caller has got the whole
// result, and only replays get this.
type ResultUnavailableError struct {
	Command string
	// ExternalRef is the reference that the record holds, if any.
	ExternalRef string
	// Err is the encoder's error, for the first caller alone. It may quote the result and is not part of the message.
	Err error
}

func (e *ResultUnavailableError) Error() string {
	return "idempotency: " + e.Command + ": the work was done and its result was not stored"
}

// Unwrap gives the encoder's error.
func (e *ResultUnavailableError) Unwrap() error { return e.Err }

// Code is the outcome code of the error.
func (*ResultUnavailableError) Code() string { return "IDEMPOTENCY_RESULT_UNAVAILABLE" }
