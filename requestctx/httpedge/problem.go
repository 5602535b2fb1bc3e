package httpedge

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/validation"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
	"github.com/tekil-go/tekil/requestctx/internal/panics"
	"github.com/tekil-go/tekil/requestctx/internal/strictjson"
)

// Retry tells a client what may be done with the key after an error.
type Retry string

const (
	// SameKey: the key is not spent, or its outcome is still to be had. The request may be sent again under the same key,
	// mended where the problem says what is wrong with it, and otherwise as it is.
	SameKey Retry = "same-key"
	// NewKey: this key will not do. Nothing was done under it by this request, and the request may be sent with another one.
	NewKey Retry = "new-key"
	// Never: sending the request again by itself is either useless or could do the work twice. A person has to look.
	Never Retry = "none"
)

// Problem is the body of every error answer: problem details by RFC 9457 in the form application/problem+json.
type Problem struct {
	// Type is "about:blank", as Code says what the problem is; see [IETFDraft] for the exception.
	Type string `json:"type"`
	// Title is the phrase of the status.
	Title  string `json:"title"`
	Status int    `json:"status"`
	// Detail is a sentence for people, where there is more to say.
	Detail string `json:"detail,omitempty"`
	// Code is the outcome code, for programs.
	Code string `json:"code"`
	// Retry says what may be done with the key.
	Retry Retry `json:"retry"`
	// RequestID is the id of this attempt.
	RequestID string `json:"request_id"`
	// OperationID is the operation that is in progress, where it can be asked for ([Operations]).
	OperationID string `json:"operation_id,omitempty"`
	// Errors says which fields are wrong.
	Errors []validation.FieldError `json:"errors,omitempty" xml:"error"`
	// Data holds the details of a final refusal; and with the code IDEMPOTENCY_RESULT_UNAVAILABLE an object with the member
	// external_ref, where the record holds a reference to what was done.
	Data json.RawMessage `json:"data,omitempty"`
}

// conflictMessage is the text of http-4, which callers compare.
const conflictMessage = "The Idempotency-Key has already been used with a different request payload."

const (
	codeInternal  = "INTERNAL"
	codeMalformed = "MALFORMED_REQUEST"
	// defaultRetryAfter is when to come again after a failure that passes.
	defaultRetryAfter = 2 * time.Second
)

// Preset is by which statuses keys are refused. [Config].Statuses has the last word.
type Preset int

const (
	// House is the default: a key with another payload is 409, as [Status] has it.
	House Preset = iota
	// IETFDraft is as the draft of the Idempotency-Key header has it: a key with another payload is 422, and a missing key and one
	// whose request is being processed stay 400 and 409. The type of these problems is [Config].DescribedBy, where that is set.
	IETFDraft
)

// Reply is what an answer says, for [Config].Envelope. One of Problem and Operation is set, or neither; a success may have no
// result.
type Reply struct {
	// Status is the answer's status.
	Status int
	// Result is what a success says: the command's or query's result or what Options.Body makes of it, the [Verdict] of a
	// [Check], the [Operation] of a route made by [Operations]. It is nil where there is none.
	Result any
	// Problem is what an error says.
	Problem *Problem
	// Operation is what a duplicate of long work is told with 202: neither a success nor an error.
	Operation *Operation
}

// edgeError is an error that arises before the pipeline. Its detail is for the caller. The zero retry is SameKey.
type edgeError struct {
	status       int
	code, detail string
	retry        Retry
}

func (e *edgeError) Error() string { return "httpedge: " + e.code }

// Code is the outcome code of the error, for logs.
func (e *edgeError) Code() string { return e.code }

var (
	errUnauthenticated = &edgeError{status: http.StatusUnauthorized, code: "UNAUTHENTICATED", detail: "The caller is not known."}
	errTenant          = &edgeError{status: http.StatusForbidden, code: "TENANT_UNRESOLVED", detail: "It is not known whose data this request is about."}
	errPanic           = errors.New("httpedge: panic")
)

// answer is how an error is answered.
type answer struct {
	status     int
	code       string
	retry      Retry
	detail     string
	errors     []validation.FieldError
	data       json.RawMessage
	retryAfter time.Duration
	operation  string // what is in progress
	accepted   bool   // it is no problem: the caller is to look at the operation
	keyless    bool   // for want of a key
	about      bool   // it is one of the three errors that the IETF's draft describes
	draft      int    // the status of the draft, where it is another
	general    bool   // nothing is known about the error; a code of the application's says more
}

// Status says by which HTTP status an error is answered, and what its answer tells about the key. It is the one place where
// that is decided; [Config].Statuses has the last word on the status alone. again is whether the same request may be sent
// again as it is without harm, as far as the caller of Status knows: nothing was done, or all was rolled back, or a record
// holds the outcome. A nil error is 200.
//
//	the error                                               status  retry
//	*validation.Error, *validation.FieldError               400     same-key: the corrected request (rule pipe-3)
//	a body that is malformed                                400     same-key
//	*idempotency.KeyMissingError, *idempotency.KeyInvalidError,
//	*requestctx.KeyError                                    400     new-key
//	*idempotency.RefusedError                               422     none: the answer is final
//	*idempotency.ConflictError                              409     none: another key would do the work twice if the first
//	                                                                attempt was meant; that is for a person (rule key-6)
//	*idempotency.InProgressError                            409     same-key; 202 where it is Accepted, see below
//	*idempotency.ExpiredError                               410     new-key
//	*idempotency.ResultUnavailableError                     410     none: the work is done, and would be done twice
//	*idempotency.StoreError, *idempotency.RetriesError,
//	*idempotency.LeaseLostError                             503     same-key
//	*idempotency.OutcomeUnknownError                        503     same-key; 409 and none with Review: a person decides
//	*idempotency.ResultError                                500     same-key
//	*idempotency.AttemptsError                              500     none, until a person has released the key
//	*idempotency.RecordError, *idempotency.ScopeError,
//	*idempotency.FingerprintError, *bus.UnhandledError      500     none
//	*idempotency.HandlerError, *validation.PanicError       500     same-key if again, else none
//	context.Canceled, context.DeadlineExceeded              503     same-key if again, else 500 and none
//	any other                                               500     same-key if again, else none
//
// Errors are found wherever they stand in the tree of err. A context error counts only where none of the others is there: a
// *idempotency.StoreError with one in it is a StoreError. Before all the others count the two that say that work has been done
// or may have been, because the error that they wrap may be any of the others.
//
// An InProgressError that is Accepted is 202 only in the answer of the very command that is in progress. Where a handler has
// sent that command and failed over its error, what the caller has asked for is not in progress, and the answer is the 409.
func Status(err error, again bool) (status int, retry Retry) {
	if err == nil {
		return http.StatusOK, SameKey
	}
	a := classify(err, again)
	if a.accepted {
		return http.StatusAccepted, a.retry
	}
	return a.status, a.retry
}

// fault is the text for what callers can do nothing about.
const fault = "The request could not be processed because of a fault in the service."

func classify(err error, again bool) answer {
	repeat := Never
	if again {
		repeat = SameKey
	}
	if e, ok := errors.AsType[*idempotency.OutcomeUnknownError](err); ok {
		if e.Review {
			return answer{
				status: 409, code: e.Code(), retry: Never,
				detail: "An earlier attempt ended without saying whether the request was processed. A person has to find out; sending it again does not help.",
			}
		}
		return answer{
			status: 503, code: e.Code(), retry: SameKey, retryAfter: e.RetryAfter,
			detail: "It is not known yet whether the request was processed. Send it again with the same key to find out.",
		}
	}
	if e, ok := errors.AsType[*idempotency.ResultUnavailableError](err); ok {
		a := answer{
			status: 410, code: e.Code(), retry: Never,
			detail: "The request was processed, and its result is not kept. Do not send it again under another key: it would be processed twice.",
		}
		if e.ExternalRef != "" {
			a.data, _ = json.Marshal(map[string]string{"external_ref": e.ExternalRef}) // a text can always be encoded
		}
		return a
	}
	if e, ok := errors.AsType[*idempotency.RefusedError](err); ok {
		return answer{status: 422, code: e.Code(), retry: Never, detail: e.Message, data: e.Data}
	}
	if e, ok := errors.AsType[*edgeError](err); ok {
		return answer{status: e.status, code: e.code, retry: cmp.Or(e.retry, SameKey), detail: e.detail}
	}
	if e, ok := errors.AsType[*strictjson.Error](err); ok {
		where := "The body"
		if e.Path != "" {
			where = "In the body, " + e.Path
		}
		return answer{
			status: 400, code: e.Code(), retry: SameKey, detail: fmt.Sprintf("%s %s (at byte %d).", where, e.Reason, e.Offset),
			errors: []validation.FieldError{{Path: e.Path, Rule: "malformed", Message: e.Reason}},
		}
	}
	if e, ok := errors.AsType[*validation.Error](err); ok {
		a := answer{status: 400, code: e.Code(), retry: SameKey, detail: "The request is not valid.", errors: e.Fields}
		if e.Omitted > 0 {
			a.detail = fmt.Sprintf("The request is not valid; %d more errors are not listed.", e.Omitted)
		}
		return a
	}
	if fields := fieldErrors(err, nil); len(fields) > 0 {
		return answer{status: 400, code: fields[0].Code(), retry: SameKey, detail: "The request is not valid.", errors: fields}
	}
	if e, ok := errors.AsType[*idempotency.KeyMissingError](err); ok {
		return answer{
			status: 400, code: e.Code(), retry: NewKey, keyless: true, about: true,
			detail: "This request needs an Idempotency-Key header: a key made once for what is intended, and sent with every try.",
		}
	}
	if e, ok := errors.AsType[*requestctx.KeyError](err); ok { // within *idempotency.KeyInvalidError
		return answer{status: 400, code: e.Code(), retry: NewKey, detail: "The Idempotency-Key header was refused: " + e.Reason + "."}
	}
	if e, ok := errors.AsType[*idempotency.KeyInvalidError](err); ok {
		return answer{status: 400, code: e.Code(), retry: NewKey, detail: "The Idempotency-Key header was refused."}
	}
	if e, ok := errors.AsType[*idempotency.ConflictError](err); ok {
		return answer{status: 409, code: e.Code(), retry: Never, detail: conflictMessage, about: true, draft: http.StatusUnprocessableEntity}
	}
	if e, ok := errors.AsType[*idempotency.InProgressError](err); ok {
		return answer{
			status: 409, code: e.Code(), retry: SameKey, retryAfter: e.RetryAfter, operation: e.OperationID, accepted: e.Accepted, about: true,
			detail: "A request with this Idempotency-Key is being processed. Ask again with the same key.",
		}
	}
	if e, ok := errors.AsType[*idempotency.ExpiredError](err); ok {
		return answer{
			status: 410, code: e.Code(), retry: NewKey,
			detail: "The Idempotency-Key was used and has expired. New work needs a new key.",
		}
	}
	if e, ok := errors.AsType[*idempotency.StoreError](err); ok {
		return answer{
			status: 503, code: e.Code(), retry: SameKey,
			detail: "The outcome of the request could not be looked up or recorded. Send it again with the same key.",
		}
	}
	if e, ok := errors.AsType[*idempotency.RetriesError](err); ok {
		return answer{
			status: 503, code: e.Code(), retry: SameKey,
			detail: "The request got in the way of others, and what it wrote was undone. Send it again with the same key.",
		}
	}
	if e, ok := errors.AsType[*idempotency.LeaseLostError](err); ok {
		return answer{
			status: 503, code: e.Code(), retry: SameKey,
			detail: "The request took so long that its key was given away, and what it wrote was undone. Send it again with the same key.",
		}
	}
	if e, ok := errors.AsType[*idempotency.AttemptsError](err); ok {
		return answer{
			status: 500, code: e.Code(), retry: Never,
			detail: "The request has failed too often and is not tried again before a person has looked at it.",
		}
	}
	if e, ok := errors.AsType[*idempotency.ResultError](err); ok {
		if e.Stored {
			return answer{
				status: 500, code: e.Code(), retry: SameKey,
				detail: "The request has been processed, but its outcome cannot be read at present.",
			}
		}
		return answer{status: 500, code: e.Code(), retry: SameKey, detail: fault}
	}
	if e, ok := errors.AsType[*idempotency.RecordError](err); ok {
		return answer{status: 500, code: e.Code(), retry: Never, detail: fault}
	}
	if e, ok := errors.AsType[*idempotency.ScopeError](err); ok {
		return answer{status: 500, code: e.Code(), retry: Never, detail: fault}
	}
	if e, ok := errors.AsType[*idempotency.FingerprintError](err); ok {
		return answer{status: 500, code: e.Code(), retry: Never, detail: fault}
	}
	if e, ok := errors.AsType[*bus.UnhandledError](err); ok {
		return answer{status: 500, code: e.Code(), retry: Never, detail: fault}
	}
	if e, ok := errors.AsType[*idempotency.HandlerError](err); ok {
		return answer{status: 500, code: e.Code(), retry: repeat, detail: fault}
	}
	if e, ok := errors.AsType[*validation.PanicError](err); ok {
		return answer{status: 500, code: e.Code(), retry: repeat, detail: fault}
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		a := answer{status: 500, code: "CANCELED", retry: repeat, general: true, detail: "The request ended before it was processed."}
		if errors.Is(err, context.DeadlineExceeded) {
			a.code = "DEADLINE_EXCEEDED"
		}
		if again { // where it could do harm, no proxy may be tempted to send it again
			a.status = 503
		}
		return a
	}
	return answer{status: 500, code: codeInternal, retry: repeat, general: true, detail: fault}
}

// fieldErrors collects what a Fill or a Parse has put together with errors.Join.
func fieldErrors(err error, found []validation.FieldError) []validation.FieldError {
	switch e := err.(type) {
	case validation.FieldError:
		found = append(found, e)
	case *validation.FieldError:
		found = append(found, *e)
	case interface{ Unwrap() error }:
		return fieldErrors(e.Unwrap(), found)
	case interface{ Unwrap() []error }:
		for _, err := range e.Unwrap() {
			found = fieldErrors(err, found)
		}
	}
	return found
}

// answerTo is classify with what the application says about codes.
func (e *Edge) answerTo(err error, again bool) answer {
	a := classify(err, again)
	if a.general {
		if code := bus.CodeOf(err); code != a.code && e.cfg.Statuses[code] != 0 {
			a.code, a.detail = code, ""
		}
	}
	if a.about && e.cfg.Preset == IETFDraft {
		if a.draft != 0 {
			a.status = a.draft
		}
	} else {
		a.about = false
	}
	if status := e.cfg.Statuses[a.code]; status != 0 {
		a.status = status
	}
	if a.retryAfter == 0 && a.retry == SameKey && (a.status == http.StatusServiceUnavailable || a.code == codeInternal) {
		a.retryAfter = e.cfg.RetryAfter
	}
	return a
}

// answer is how an error is answered here.
func (ep endpoint) answer(req *requestctx.Request, err error) answer {
	a := ep.edge.answerTo(err, ep.again(req, err))
	if ep.kind == unmarked || req.Outcome().State != requestctx.StateInProgress {
		a.operation, a.accepted = "", false // of a command that the handler has sent, and not of what the caller has asked for
	}
	return a
}

// write sends the answer to an error in the format c. Nothing may have been written before.
func (e *Edge) write(w http.ResponseWriter, c *Codec, req *requestctx.Request, a answer) {
	h := w.Header()
	for _, name := range [...]string{"Location", "Etag", "Last-Modified", "Content-Encoding"} { // of an answer that was not to be
		h.Del(name)
	}
	h.Set("Cache-Control", "no-store")
	if a.retryAfter > 0 {
		h.Set("Retry-After", seconds(a.retryAfter))
	}
	if a.keyless && e.cfg.DescribedBy != "" {
		h.Add("Link", "<"+e.cfg.DescribedBy+`>; rel="describedby"`)
	}
	if a.status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", e.cfg.Challenge)
	}
	if a.accepted {
		e.accept(w, c, req, a.operation)
		return
	}
	p := Problem{
		Type: "about:blank", Title: http.StatusText(a.status), Status: a.status, Detail: a.detail, Code: a.code, Retry: a.retry,
		RequestID: req.ID(), OperationID: a.operation, Errors: a.errors, Data: a.data,
	}
	if a.about && e.cfg.DescribedBy != "" {
		p.Type = e.cfg.DescribedBy
	}
	body, contentType, err := e.problem(c, req, p)
	if err != nil {
		p.Data = nil // of a damaged record
		body, contentType, err = e.problem(c, req, p)
	}
	if err != nil { // an envelope or a format of the application's
		body, contentType, _ = JSON().encodeProblem(p)
	}
	send(w, a.status, contentType, body)
}

// problem writes a problem in the format c, in the envelope if there is one. That it cannot is logged, because the answer that is
// sent instead does not show it.
func (e *Edge) problem(c *Codec, req *requestctx.Request, p Problem) (body []byte, contentType string, err error) {
	defer func() {
		if v := recover(); v != nil { // it may be what has brought the problem about
			err = errPanic
			e.log(context.Background(), req, slog.LevelError, "httpedge: panic", slog.String("panic_type", fmt.Sprintf("%T", v)), slog.String("at", panics.At()))
		} else if err != nil {
			e.unencoded(req, p.Status, err)
		}
	}()
	if e.cfg.Envelope == nil {
		return c.encodeProblem(p)
	}
	body, err = c.Encode(e.cfg.Envelope(req, Reply{Status: p.Status, Problem: &p}))
	return body, c.MediaType, err
}

// unencoded logs that an answer could not be encoded, where another one is sent in its place.
func (e *Edge) unencoded(req *requestctx.Request, status int, err error) {
	e.log(context.Background(), req, slog.LevelError, "httpedge: the answer could not be encoded",
		slog.Int("status", status), slog.String("error_type", fmt.Sprintf("%T", err)))
}

// seconds is a header's form of a time to wait, which is whole.
func seconds(d time.Duration) string { return strconv.Itoa(int(math.Ceil(d.Seconds()))) }

// WriteProblem answers a request behind [Edge.Middleware] with the problem that err is, and with the headers that
// [Edge.SetHeaders] sets. Nothing may have been written before. What is in progress and Accepted is answered with 202, as by
// [Command], and is no problem.
func (e *Edge) WriteProblem(w http.ResponseWriter, r *http.Request, err error) {
	req := requestctx.From(r.Context())
	e.SetHeaders(w, r)
	codec, _ := e.writerOf(r.Header)
	e.write(w, codec, req, endpoint{edge: e}.answer(req, err))
}

// SetHeaders sets the headers of rule http-2 on an answer, as far as the dispatch has come to the idempotency stage: after
// a dispatch of a marked command behind [Edge.Middleware] and before the answer is written. Otherwise it does nothing.
func (e *Edge) SetHeaders(w http.ResponseWriter, r *http.Request) {
	if req := requestctx.From(r.Context()); req.Outcome().State != requestctx.StateNone {
		outcomeHeaders(w.Header(), req)
	}
}

// outcomeHeaders sets the headers of a marked command's answer.
func outcomeHeaders(h http.Header, req *requestctx.Request) {
	h.Set("Cache-Control", "no-store")
	if key := req.Key(); !key.IsZero() {
		h.Set(keyHeader, key.String())
	}
	o := req.Outcome()
	switch o.State {
	case requestctx.StateNone, requestctx.StateRefused, requestctx.StateUnprotected, requestctx.StateNested:
		return // no record was looked at
	}
	h.Set(replayedHeader, strconv.FormatBool(o.Replayed))
	if o.OriginalRequestID != "" {
		h.Set(originalHeader, o.OriginalRequestID)
	}
}
