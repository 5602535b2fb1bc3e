package msgedge

import (
	"errors"
	"time"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/validation"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
	"github.com/tekil-go/tekil/requestctx/internal/strictjson"
)

// Action is what is to be done with a message. The zero Action is none of them, so that nothing is confirmed by a forgotten field.
type Action int

const (
	// Ack: it is dealt with; confirm it.
	Ack Action = iota + 1
	// Retry: put it back, to be delivered again.
	Retry
	// DeadLetter: set it aside for a person. Nothing that the broker can do by itself makes it succeed.
	DeadLetter
)

func (a Action) String() string {
	switch a {
	case Ack:
		return "ack"
	case Retry:
		return "retry"
	case DeadLetter:
		return "dead-letter"
	}
	return "unknown"
}

// Verdict is what is to be done with a message, and why.
type Verdict struct {
	Action Action
	// Delay is after which time a message that is put back should come again; zero leaves that to the broker.
	Delay time.Duration
	// Reason is the outcome code: OK, REPLAYED for a duplicate of what is done, or that of the error. It holds nothing of the message
	// and may be logged and sent along.
	Reason string
	// Err is the error of the dispatch, or nil. Its text may hold what must not be logged.
	Err error
}

// The codes of what is found out here, and not by a stage of the pipeline.
const (
	codeOK        = "OK"
	codeReplayed  = "REPLAYED"
	codeNoID      = "MESSAGE_ID_MISSING"
	codeNoSource  = "MESSAGE_SOURCE_MISSING"
	codeType      = "MESSAGE_TYPE_UNKNOWN"
	codeTooOld    = "MESSAGE_TOO_OLD"
	codeMalformed = "MALFORMED_MESSAGE"
	codeTenant    = "TENANT_UNRESOLVED"
	codeWorn      = "DELIVERIES_EXHAUSTED"
	codePanic     = "PANIC"
	codeNotMade   = "CONSUMER_NOT_MADE"
)

// messageError is what keeps a message from being a command.
type messageError struct {
	code   string
	passes bool  // it may be gone at the next delivery
	err    error // what the application said, or nil; its text may hold anything
}

func (e *messageError) Error() string {
	if is[*strictjson.Error](e.err) || is[*requestctx.KeyError](e.err) { // they say what is wrong, and hold nothing of the message
		return "msgedge: " + e.code + ": " + e.err.Error()
	}
	return "msgedge: " + e.code
}

// Code is the outcome code.
func (e *messageError) Code() string { return e.code }

func (e *messageError) Unwrap() error { return e.err }

// Judge says what is to be done with a message after a dispatch that ended with err, by what the pipeline has reported about it.
// It is the one place where that is decided. [Consumer].Receive adds what its configuration says about refusals, delays and the
// number of deliveries.
//
//	the outcome                                              action
//	success, or the replay of one                            ack
//	*idempotency.RefusedError                                ack: the refusal is the outcome (rule rec-7)
//	*idempotency.ExpiredError                                ack: it was done, and a late message does not reopen it (rule msg-3)
//	*idempotency.ResultUnavailableError,
//	*idempotency.ResultError of a stored result              ack: it was done, and nobody here needs the result
//	  any of these, of a command that the handler has sent   dead-letter: this one was not done, and a try will not better it
//	*idempotency.InProgressError                             retry after its time, and never ack: the one at work may die
//	*idempotency.OutcomeUnknownError                         retry after its time; dead-letter with Review: a person decides
//	no id or a wrong one, an unknown type, a payload that
//	cannot be decoded, *validation.Error, FieldError         dead-letter: it will not get better; nothing is recorded, so a
//	                                                         mended message with the same id runs (rule pipe-3)
//	*idempotency.ConflictError                               dead-letter: two works under one id
//	*idempotency.AttemptsError                               dead-letter: a poison message
//	*idempotency.ScopeError, *idempotency.RecordError,
//	*idempotency.FingerprintError, *bus.UnhandledError       dead-letter: a fault that a deploy mends
//	*idempotency.HandlerError that leaves it unknown what
//	was done                                                 dead-letter: a try could do it twice
//	any other error, a panic, a context that has ended       retry: nothing was done, or it is found out
//
// o is the report of this very command, and the zero Outcome for a command without the mark, whose request may hold the report of
// one that its handler has sent. Errors are found wherever they stand in the tree of err.
func Judge(err error, o requestctx.Outcome) Verdict {
	v := Verdict{Action: Retry, Reason: bus.CodeOf(err), Err: err}
	if err == nil {
		v.Action, v.Reason = Ack, codeOK
		if o.Replayed {
			v.Reason = codeReplayed
		}
		return v
	}
	// These three before what they wrap.
	if e, ok := errors.AsType[*messageError](err); ok {
		if !e.passes {
			v.Action = DeadLetter
		}
		return v
	}
	if e, ok := errors.AsType[*idempotency.OutcomeUnknownError](err); ok {
		if e.Review {
			v.Action = DeadLetter
		} else {
			v.Delay = e.RetryAfter
		}
		return v
	}
	if e, ok := errors.AsType[*idempotency.InProgressError](err); ok {
		v.Delay = e.RetryAfter
		return v
	}
	switch {
	case is[*idempotency.RefusedError](err):
		v.Action = Ack
		if undone(o) {
			v.Action = DeadLetter
		}
	case is[*idempotency.ExpiredError](err), is[*idempotency.ResultUnavailableError](err), unreadable(err):
		v.Action = DeadLetter
		if settled(o) {
			v.Action = Ack
		}
	case is[*requestctx.KeyError](err), is[*idempotency.KeyMissingError](err), is[*idempotency.KeyInvalidError](err),
		is[*strictjson.Error](err), is[*validation.Error](err), is[validation.FieldError](err), is[*validation.FieldError](err),
		is[*idempotency.ConflictError](err), is[*idempotency.AttemptsError](err),
		is[*idempotency.ScopeError](err), is[*idempotency.RecordError](err), is[*idempotency.FingerprintError](err),
		is[*bus.UnhandledError](err),
		is[*idempotency.HandlerError](err) && o.State == requestctx.StateUnknown:
		v.Action = DeadLetter
	}
	return v
}

func is[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

// unreadable reports whether err is about a result that is stored.
func unreadable(err error) bool {
	e, ok := errors.AsType[*idempotency.ResultError](err)
	return ok && e.Stored
}

// settled reports whether the command's own record was found or made, so that what err says of a record it says of that one.
func settled(o requestctx.Outcome) bool {
	switch o.State {
	case requestctx.StateExecuted, requestctx.StateReplayed, requestctx.StateExpired, requestctx.StateRefused:
		return true
	}
	return false
}

// undone reports whether the command's own attempt failed, so that a refusal in its error is that of another command.
func undone(o requestctx.Outcome) bool {
	switch o.State {
	case requestctx.StateFreed, requestctx.StateUnknown, requestctx.StateLost:
		return true
	}
	return false
}
