package client

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tekil-go/tekil/requestctx"
)

// The defaults of [Client].
const (
	DefaultMaxTries   = 8
	DefaultPerTry     = 10 * time.Second
	DefaultTotal      = 2 * time.Minute
	DefaultBackoff    = 200 * time.Millisecond
	DefaultMaxBackoff = 20 * time.Second
)

const (
	keyHeader    = "Idempotency-Key"
	problemLimit = 64 << 10
)

// Client sends requests and sends them again where that is safe. It is an [http.RoundTripper], and [Do] sends commands with it. The
// zero Client has the defaults. It is safe for concurrent use once its fields are set. Negative values count as 0.
type Client struct {
	// Transport makes each try; nil is [http.DefaultTransport]. Headers that change between tries, such as an access token, are for
	// a RoundTripper here.
	Transport http.RoundTripper
	// MaxTries is how often a request is sent at most; 0 is [DefaultMaxTries].
	MaxTries int
	// PerTry is the limit of one try, up to the headers of the answer; 0 is [DefaultPerTry]. The body of the answer is not cut by it.
	PerTry time.Duration
	// Total is the limit of all tries and waits together; 0 is [DefaultTotal]. A deadline of the context shortens it. A time limit
	// of an http.Client round this one covers all tries and the body as well, so it has to be longer.
	Total time.Duration
	// Backoff and MaxBackoff bound the wait after a try that has no Retry-After: a random time up to Backoff, doubled with each
	// try, and never more than MaxBackoff. 0 is [DefaultBackoff] and [DefaultMaxBackoff].
	Backoff, MaxBackoff time.Duration
	// Observe, if set, is called after each try, in the goroutine that sends. It must be safe for concurrent use.
	Observe func(Try)
}

var _ http.RoundTripper = (*Client)(nil)

// Try is one try for an observer. It does not show the key.
type Try struct {
	// Intent is the intent's name and Key its key, masked.
	Intent, Key string
	Method      string
	// Number counts the tries of the call from 1.
	Number int
	Event  Event
	// Status is 0 and Err is set where there was no answer.
	Status int
	Err    error
	// Wait is how long it is waited until the next try; Stop is why there is none.
	Wait time.Duration
	Stop Stop
}

// RoundTrip sends the request under the intent that its context holds ([With]), with a key that is derived from the method and the
// path ([Intent.For]). Without one, a write that has a key header is sent with that key, and one that has none is sent once.
//
// The key header is one line. One that is there already is kept if it is the key, and otherwise, or if there are several, the error
// is a [*HeaderError] and nothing is sent. A read carries no key; its header is taken out. A write that an http.Client repeats at
// another address after a redirect is refused with a [*RedirectError].
//
// The last answer is returned whatever its status is. Without an answer the error is an [*UnknownError], a [*BodyError], an
// [*UnkeyedError] or, for a read, what the transport says. An intent is not ended by a success: that is for [Intent.Done].
//
// The body is never kept in memory: its size is not known before it has been read, and a body that is made while it is sent would
// come to nothing. A request has a second try only with a GetBody, which http.NewRequest sets for bytes and strings.
func (c *Client) RoundTrip(req *http.Request) (*http.Response, error) {
	b, _ := req.Context().Value(contextKey{}).(bound)
	out, r, err := c.prepare(req, b.intent, b.intent.call(cmp.Or(req.Method, http.MethodGet), req.URL.EscapedPath(), b.label).Key())
	if err != nil {
		if req.Body != nil {
			_ = req.Body.Close()
		}
		return nil, err
	}
	e := r.send(out)
	if e.resp != nil {
		e.resp.Request = req
		return e.resp, nil
	}
	return nil, r.failure(e)
}

// CloseIdleConnections is for the method of that name of an http.Client. It reaches [Client].Transport, if that has it.
func (c *Client) CloseIdleConnections() {
	transport := c.Transport
	if transport == nil {
		transport = http.DefaultTransport
	}
	if t, ok := transport.(interface{ CloseIdleConnections() }); ok {
		t.CloseIdleConnections()
	}
}

// prepare makes the request that is sent, with its one key header.
func (c *Client) prepare(req *http.Request, i Intent, key requestctx.Key) (*http.Request, *run, error) {
	var lines []string
	out := clone(req, req.Context())
	for name, values := range out.Header { // however it is spelled
		if http.CanonicalHeaderKey(name) == keyHeader {
			lines = append(lines, values...)
			delete(out.Header, name)
		}
	}
	r := &run{c: c, total: time.Now().Add(positive(c.Total, DefaultTotal)), method: cmp.Or(req.Method, http.MethodGet)}
	r.deadline = r.total
	if at, ok := req.Context().Deadline(); ok && at.Before(r.deadline) {
		r.deadline = at
	}
	if r.kind = KindOf(req.Method, !key.IsZero() || len(lines) > 0); r.kind != Keyed {
		return out, r, nil
	}
	switch {
	case req.Response != nil:
		return nil, nil, &RedirectError{Intent: i, Status: req.Response.StatusCode, Location: req.URL.String()}
	case i.Expired():
		return nil, nil, i.expired()
	case len(lines) > 1:
		return nil, nil, &HeaderError{Lines: len(lines)}
	case len(lines) == 1 && key.IsZero():
		var err error
		if key, err = requestctx.ParseKey(lines[0]); err != nil {
			return nil, nil, &HeaderError{Lines: 1, Err: err}
		}
	case len(lines) == 1 && lines[0] != key.String():
		return nil, nil, &HeaderError{Lines: 1}
	}
	if out.Header == nil {
		out.Header = http.Header{}
	}
	out.Header.Set(keyHeader, key.String())
	r.intent, r.key = i, key
	return out, r, nil
}

// clone is a copy with the same trailers, whose values are there when the body has been read.
func clone(req *http.Request, ctx context.Context) *http.Request {
	out := req.Clone(ctx)
	out.Trailer = req.Trailer
	return out
}

func positive[T int | time.Duration](v, otherwise T) T {
	if v > 0 {
		return v
	}
	return otherwise
}

// run is the sending of one request with all its tries. [Do] may send it again after waiting for an operation.
type run struct {
	c        *Client
	intent   Intent
	kind     Kind
	method   string
	key      requestctx.Key // none where there is none, or where it is a read
	total    time.Time      // when the total time is over
	deadline time.Time      // the same, or that of the context if it is earlier
	tries    int            // those of the transport included
	sent     bool           // a try has come to a connection
	unsure   bool           // a try may have been carried out and had no clear answer
	status   int            // of the last answer
	problem  problem
}

// end is the last try.
type end struct {
	attempt
	stop  Stop
	asked time.Duration
}

// attempt is what became of one try. Either resp or err is set.
type attempt struct {
	event   Event
	resp    *http.Response
	err     error
	problem problem
	conns   int
}

// send makes the tries. On a way out with resp set its body is the caller's to close.
//
// A request with a key is given a body without GetBody: that is the documented condition under which http.Transport, which takes the
// key, or a header X-Idempotency-Key, for a licence to send again over another connection, does not. So the tries are the ones that are
// counted here. A read is left as it is, and what the transport sends again is counted.
func (r *run) send(req *http.Request) end {
	ctx, getBody := req.Context(), req.GetBody
	empty := req.Body == nil || req.Body == http.NoBody
	licensed := r.kind == Keyed || r.kind != Read && len(req.Header.Values("X-Idempotency-Key")) > 0
	for n := 0; ; n++ {
		out := clone(req, ctx) // whatever the transport does to it does not add up
		if licensed {
			out.GetBody = nil
			if empty {
				out.Body = io.NopCloser(strings.NewReader(""))
			}
		}
		if n > 0 && !empty {
			body, err := getBody()
			if err != nil {
				return end{attempt: attempt{err: err}, stop: StopBody}
			}
			out.Body = body
		}
		a := r.try(out)
		r.tries += max(a.conns, 1)
		r.sent = r.sent || a.event != DialFailed && a.event != TLSRefused
		if a.resp != nil {
			r.status, r.problem = a.resp.StatusCode, a.problem
		}
		e := end{attempt: a}
		if a.resp != nil {
			e.asked = RetryAfter(a.resp.Header, time.Now())
		}
		wait := e.asked
		if wait <= 0 {
			wait = r.c.backoff(n)
		}
		left := time.Until(r.deadline)
		switch {
		case a.err != nil && ctx.Err() != nil:
			e.stop, e.err = StopCanceled, gaveUp(ctx)
		case !again(a.event, r.kind) && again(a.event, Keyed) && r.kind == Unkeyed:
			e.stop = StopUnkeyed
		case !again(a.event, r.kind):
			e.stop = StopFinal
		case a.problem.Retry == "none" || a.problem.Retry == "new-key":
			e.stop = StopServer
		case !empty && getBody == nil:
			e.stop = StopBody
		case r.tries >= positive(r.c.MaxTries, DefaultMaxTries):
			e.stop = StopTries
		case wait >= left && e.asked > 0:
			e.stop = StopRetryAfter
		case wait >= left:
			e.stop = StopTotal
		}
		r.unsure = r.unsure || e.stop == "" && unclear(a.event)
		r.observe(e, wait)
		if e.stop != "" {
			return e
		}
		if a.resp != nil {
			_ = a.resp.Body.Close()
		}
		if err := sleep(ctx, wait); err != nil {
			return end{attempt: attempt{event: a.event, err: err}, stop: StopCanceled}
		}
	}
}

// unclear reports whether a try may have been carried out.
func unclear(e Event) bool {
	switch e {
	case DialFailed, TLSRefused, TooEarly, TooMany, InProgress:
		return false
	}
	return true
}

func (r *run) observe(e end, wait time.Duration) {
	if r.c.Observe == nil {
		return
	}
	t := Try{Intent: r.intent.Record().Intent, Key: r.key.Masked(), Method: r.method, Number: r.tries, Event: e.event, Err: e.err, Stop: e.stop}
	if e.resp != nil {
		t.Status = e.resp.StatusCode
	}
	if e.stop == "" {
		t.Wait = wait
	}
	r.c.Observe(t)
}

// try sends the request once. Its own limit ends with the answer's headers, or with a problem's body where that decides.
func (r *run) try(req *http.Request) (a attempt) {
	var conns atomic.Int32
	var wrote atomic.Bool
	ctx, cancel := context.WithCancelCause(req.Context())
	timer := time.AfterFunc(min(positive(r.c.PerTry, DefaultPerTry), time.Until(r.total)), func() { cancel(errTryTimeout) })
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn:      func(httptrace.GotConnInfo) { conns.Add(1) },
		WroteRequest: func(i httptrace.WroteRequestInfo) { wrote.Store(wrote.Load() || i.Err == nil) },
	})
	transport := r.c.Transport
	if transport == nil {
		transport = http.DefaultTransport
	}
	resp, err := transport.RoundTrip(req.WithContext(traced))
	if err == nil {
		if resp.Request == nil {
			resp.Request = req
		}
		if resp.Body == nil {
			resp.Body = http.NoBody
		}
		a.event = eventOf(resp.StatusCode)
		if again(a.event, r.kind) || a.event == Conflict && r.kind == Keyed {
			a.problem, err = readProblem(resp)
		}
		if a.event == Conflict && r.kind == Keyed && a.problem.inProgress(resp.Header) {
			a.event = InProgress
		}
		if !timer.Stop() || err != nil {
			err = cmp.Or(err, errTryTimeout)
			_ = resp.Body.Close()
		}
	}
	a.conns = int(conns.Load())
	if err == nil {
		body := &answerBody{resp.Body, cancel}
		if w, ok := resp.Body.(io.Writer); ok { // of a connection that has been upgraded
			resp.Body = struct {
				*answerBody
				io.Writer
			}{body, w}
		} else {
			resp.Body = body
		}
		a.resp = resp
		return a
	}
	timer.Stop()
	if key := r.key.String(); key != "" && strings.Contains(err.Error(), key) { // of an answer that gives back what was sent
		err = &maskedError{err, strings.ReplaceAll(err.Error(), key, r.key.Masked())}
	}
	a.err, a.problem = err, problem{}
	dial, isOp := errors.AsType[*net.OpError](err)
	_, untrusted := errors.AsType[*tls.CertificateVerificationError](err)
	switch {
	case errors.Is(context.Cause(ctx), errTryTimeout):
		a.event, a.err = TryTimeout, errTryTimeout
	case untrusted:
		a.event = TLSRefused
	case isOp && dial.Op == "dial":
		a.event = DialFailed
	case wrote.Load():
		a.event = CutAfter
	default:
		a.event = CutSending
	}
	cancel(nil)
	return a
}

// maskedError is an error whose text held the key.
type maskedError struct {
	error
	text string
}

func (e *maskedError) Error() string { return e.text }

func (e *maskedError) Unwrap() error { return e.error }

// answerBody frees what a try holds when the body has been closed.
type answerBody struct {
	io.ReadCloser
	cancel context.CancelCauseFunc
}

func (b *answerBody) Close() error {
	err := b.ReadCloser.Close()
	b.cancel(nil)
	return err
}

// backoff is exponential with full jitter.
func (c *Client) backoff(n int) time.Duration {
	limit, most := positive(c.Backoff, DefaultBackoff), positive(c.MaxBackoff, DefaultMaxBackoff)
	for ; n > 0 && limit <= most/2; n-- {
		limit *= 2
	}
	if n > 0 {
		limit = most
	}
	return rand.N(min(limit, most)) + 1
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return gaveUp(ctx)
	case <-t.C:
		return nil
	}
}

// gaveUp is the context's error, with the caller's reason if there is one.
func gaveUp(ctx context.Context) error {
	if cause := context.Cause(ctx); cause != ctx.Err() {
		return fmt.Errorf("%w: %w", ctx.Err(), cause)
	}
	return ctx.Err()
}

// failure is the error of a request that ended without an answer.
func (r *run) failure(e end) error {
	switch {
	case r.kind == Read:
		return fmt.Errorf("client: %s failed (%s): %w", r.method, count(r.tries), e.err)
	case r.kind == Unkeyed:
		return &UnkeyedError{Method: r.method, Err: e.err}
	case e.stop == StopBody:
		return &BodyError{Intent: r.intent, Tries: r.tries, Err: e.err}
	}
	return &UnknownError{
		Intent: r.intent, Stop: e.stop, Status: r.status, Code: r.problem.Code, RequestID: r.problem.RequestID, RetryAfter: e.asked,
		Tries: r.tries, Sent: r.sent, Err: e.err,
	}
}

// problem is what is read of a body of application/problem+json.
type problem struct {
	Code        string          `json:"code"`
	Retry       string          `json:"retry"`
	Detail      string          `json:"detail"`
	RequestID   string          `json:"request_id"`
	OperationID string          `json:"operation_id"`
	State       string          `json:"state"`
	Errors      []FieldError    `json:"errors"`
	Data        json.RawMessage `json:"data"`
}

// inProgress reports whether a 409 means that the work is being done. Where there is no problem to be read, as in an envelope of an
// application's own, it does if it says when to come again.
func (p problem) inProgress(h http.Header) bool {
	return p.Code == "IDEMPOTENCY_REQUEST_IN_PROGRESS" || p.Retry == "same-key" || p.Code == "" && p.Retry == "" && h.Get("Retry-After") != ""
}

// readProblem reads the start of the body, where that is JSON, and puts it back.
func readProblem(resp *http.Response) (p problem, err error) {
	head, err := io.ReadAll(io.LimitReader(resp.Body, problemLimit))
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(head), resp.Body), resp.Body}
	if strings.Contains(resp.Header.Get("Content-Type"), "json") && json.Unmarshal(head, &p) != nil {
		p = problem{} // some other JSON, or cut
	}
	return p, err
}
