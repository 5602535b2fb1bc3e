package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// ErrNoIntent is the error of [Do] with the zero Intent. Nothing was sent: no key is ever made up on the way out.
var ErrNoIntent = errors.New("client: a command is sent under an intent, and there is none")

// errTryTimeout is what ends a try; errOtherOrigin and errTotal say why [Do] gave up on an operation or a body.
var (
	errTryTimeout  error = timeout("client: no answer within the limit of one try")
	errTotal       error = timeout("client: the answer's body did not end within the total time")
	errOtherOrigin       = errors.New("client: the operation is said to be on another origin, and no header goes there")
)

type timeout string

func (t timeout) Error() string { return string(t) }
func (timeout) Timeout() bool   { return true }

// ExpiredError says that the intent's time is over. Nothing was sent. What is to be done after that is new work, for which [Renew]
// makes a new intent; whether the old one was carried out has to be looked up.
type ExpiredError struct {
	Intent Intent
	At     time.Time
}

func (e *ExpiredError) Error() string {
	return fmt.Sprintf("client: the time of the intent %v was over at %s", e.Intent, e.At.Format(time.RFC3339))
}

// HeaderError says that a request came with a key header that must not be sent: several lines, a value that is no key or another
// key than the intent's. Nothing was sent.
type HeaderError struct {
	// Lines is how many key headers there were.
	Lines int
	// Err is why the only one was refused as a key, or nil.
	Err error
}

func (e *HeaderError) Error() string {
	switch {
	case e.Lines > 1:
		return fmt.Sprintf("client: the request has %d Idempotency-Key headers", e.Lines)
	case e.Err != nil:
		return "client: the request's Idempotency-Key header is not a key: " + e.Err.Error()
	}
	return "client: the request has an Idempotency-Key header with another key than the intent's"
}

func (e *HeaderError) Unwrap() error { return e.Err }

// FieldError says what is wrong with a field.
type FieldError struct {
	Path    string `json:"path"`
	Rule    string `json:"rule"`
	Param   string `json:"param,omitempty"`
	Message string `json:"message"`
}

// RefusedError says that the server refused the command: a status of 4xx that is neither a conflict nor worth another try.
type RefusedError struct {
	Intent Intent
	// Status is the answer's status. The next six are what its problem says; all are empty if there is none.
	Status int
	Code   string
	// Retry is "same-key", "new-key" or "none": what may be done with the key.
	Retry  string
	Detail string
	Fields []FieldError
	Data   json.RawMessage
	// RequestID is the id of the attempt that was refused.
	RequestID string
	Tries     int
	// Unsure is true when an earlier try of this call had no clear answer: it may have been carried out although this one was
	// refused.
	Unsure bool
}

func (e *RefusedError) Error() string {
	s := "client: the command was refused: " + said(e.Status, e.Code)
	if n := len(e.Fields); n > 0 {
		s += fmt.Sprintf(", %d wrong fields", n)
	}
	if e.Unsure {
		s += "; an earlier try may have been carried out"
	}
	return s
}

// ConflictError says that the key has been used with another payload, or that the server cannot go on with it without a person.
// Sending it again, or under another key, could do the work twice (rule key-5).
type ConflictError struct {
	Intent    Intent
	Status    int
	Code      string
	Detail    string
	RequestID string
	Tries     int
}

func (e *ConflictError) Error() string { return "client: conflict: " + said(e.Status, e.Code) }

// InProgressError says that another attempt of the same intent is still at work. The intent stays stored; ask again later.
type InProgressError struct {
	Intent Intent
	// Status is 409, or 202 for an operation that can be looked at.
	Status      int
	OperationID string
	// Location is where the operation can be looked at, if the server says so.
	Location string
	// RetryAfter is when to ask again; 0 if the server does not say.
	RetryAfter time.Duration
	Tries      int
	// Stop is why it was not waited for any longer, and Err what went wrong then, if anything.
	Stop Stop
	Err  error
}

func (e *InProgressError) Error() string {
	return fmt.Sprintf("client: the command is still in progress (status %d, %s)", e.Status, count(e.Tries))
}

func (e *InProgressError) Unwrap() error { return e.Err }

// UnknownError says that nobody here knows whether the write was carried out: there was no clear answer within the limits. The
// intent stays stored. Send it again later under the same intent.
type UnknownError struct {
	// Intent is the zero Intent for a request that came with its own key or needs none.
	Intent Intent
	// Stop is why there was no further try.
	Stop Stop
	// Status, Code and RequestID are those of the last answer; Status is 0 if no try had one.
	Status    int
	Code      string
	RequestID string
	// RetryAfter is the wait that the last answer asked for.
	RetryAfter time.Duration
	Tries      int
	// Sent is false when it is known that no try came to a connection, so that nothing was done. A try whose connection was not made within
	// its limit counts as sent.
	Sent bool
	// Err is the last failure without an answer, if any.
	Err error
}

func (e *UnknownError) Error() string {
	s := "client: it is not known whether the request was carried out"
	if !e.Sent {
		s = "client: the request could not be sent"
	}
	s += fmt.Sprintf(" (%s): %s", count(e.Tries), e.Stop)
	if e.Status != 0 {
		s += "; the last answer was " + said(e.Status, e.Code)
	}
	if e.Err != nil {
		s += "; the last error was: " + e.Err.Error()
	}
	return s
}

func (e *UnknownError) Unwrap() error { return e.Err }

// UnkeyedError says that a write without a key failed without an answer. It was sent once, because a second time could do the work
// twice; with a key it would have been sent again (rule key-5).
type UnkeyedError struct {
	Method string
	Err    error
}

func (e *UnkeyedError) Error() string {
	return "client: " + e.Method + " without an Idempotency-Key was sent once and is not sent again: " + e.Err.Error()
}

func (e *UnkeyedError) Unwrap() error { return e.Err }

// BodyError says that a try failed and that there is no further one because the body cannot be read a second time: the request has
// no GetBody. Whether the write was carried out is not known.
type BodyError struct {
	Intent Intent
	Tries  int
	Err    error
}

func (e *BodyError) Error() string {
	return fmt.Sprintf("client: the request's body cannot be read a second time (GetBody is not set), so it is not sent again (%s): %v", count(e.Tries), e.Err)
}

func (e *BodyError) Unwrap() error { return e.Err }

// RedirectError says that a write was redirected. It is not followed: the key belongs to one resource.
type RedirectError struct {
	Intent Intent
	Status int
	// Location is where the answer pointed to.
	Location string
}

func (e *RedirectError) Error() string {
	return fmt.Sprintf("client: the write was redirected (status %d) and is not followed with its key and body", e.Status)
}

// ResultError says that the command was carried out and that its result could not be read. The intent stays stored: sent again, it
// gets the result.
type ResultError struct {
	Intent    Intent
	Status    int
	RequestID string
	Tries     int
	// Err is what went wrong. Its text may show parts of the answer and is not in the text of this error.
	Err error
}

func (e *ResultError) Error() string {
	return fmt.Sprintf("client: the command was carried out (status %d), but its result could not be read", e.Status)
}

func (e *ResultError) Unwrap() error { return e.Err }

// CommandError says that the command cannot be encoded. Nothing was sent.
type CommandError struct {
	// Err is what went wrong. Its text may show parts of the command and is not in the text of this error.
	Err error
}

func (e *CommandError) Error() string { return "client: the command cannot be encoded as JSON" }

func (e *CommandError) Unwrap() error { return e.Err }

func count(tries int) string {
	if tries == 1 {
		return "1 try"
	}
	return fmt.Sprintf("%d tries", tries)
}

// said is a status and a code, if that looks like one.
func said(status int, code string) string {
	s := fmt.Sprintf("status %d", status)
	if code == "" || len(code) > 64 {
		return s
	}
	for _, c := range code {
		if (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '_' {
			return s
		}
	}
	return s + " " + code
}
