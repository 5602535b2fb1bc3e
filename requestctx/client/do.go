package client

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const (
	answerLimit = 16 << 20
	// pollEvery is how often an operation is looked at that does not say when to come again.
	pollEvery   = 2 * time.Second
	doneTimeout = 5 * time.Second
)

// Call is a command's way to the server.
type Call struct {
	// Method is POST if empty. A read is refused.
	Method string
	URL    string
	// Command is encoded as JSON once, and the same bytes are sent by every try. nil sends no body.
	Command any
	// Header is sent with every try, and with looks at an operation.
	Header http.Header
	// Follow says what is done about an answer of 202, which means that another attempt of the intent is at work: look at its
	// Location, as often as Retry-After says and within the client's total time, and at the end send the command again, which gets
	// the answer. Without it, the answer of 202 is an [*InProgressError].
	Follow bool
}

// Answer is a success.
type Answer[R any] struct {
	Result R
	Status int
	// Replayed is true when the work was done by an earlier attempt.
	Replayed bool
	// RequestID is the id of this attempt, and OriginalRequestID the id of the one that did the work.
	RequestID, OriginalRequestID string
	// Location is the header of that name.
	Location string
	Tries    int
	// DoneErr is why the intent could not be removed from its store, or nil. Sent again, it gets this answer again.
	DoneErr error
}

// Do sends a command under an intent, with the intent's own key, and gives its result. For one of several calls under one intent
// give it [Intent.For]. On a success the intent is removed from the store that it came from; after every error it stays there.
//
// The errors are [ErrNoIntent], [*ExpiredError], [*HeaderError] and [*CommandError], with which nothing was sent; [*RefusedError],
// [*ConflictError] and [*RedirectError], with which the answer was no; [*InProgressError], [*UnknownError] and [*ResultError], after
// which the intent may be sent again.
//
// Do may be called from many goroutines, with one intent too: the server lets one of them do the work.
func Do[R any](ctx context.Context, c *Client, i Intent, call Call) (Answer[R], error) {
	d, err := c.do(ctx, i, call)
	if err != nil {
		return Answer[R]{}, err
	}
	h := d.resp.Header
	a := Answer[R]{
		Status: d.resp.StatusCode, Replayed: h.Get("Idempotency-Replayed") == "true", RequestID: h.Get("X-Request-ID"),
		OriginalRequestID: h.Get("Idempotency-Original-Request-ID"), Location: h.Get("Location"), Tries: d.run.tries,
	}
	if len(bytes.TrimSpace(d.body)) > 0 {
		if err := json.Unmarshal(d.body, &a.Result); err != nil {
			return Answer[R]{}, d.unread(err)
		}
	}
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), doneTimeout) // the work is done, whether or not the caller waits
	defer cancel()
	a.DoneErr = i.Done(within)
	return a, nil
}

// done is an answer whose body has been read.
type done struct {
	run  *run
	resp *http.Response
	body []byte
}

func (d done) unread(err error) error {
	return &ResultError{Intent: d.run.intent, Status: d.resp.StatusCode, RequestID: d.resp.Header.Get("X-Request-ID"), Tries: d.run.tries, Err: err}
}

func (c *Client) do(ctx context.Context, i Intent, call Call) (done, error) {
	if i.p == nil {
		return done{}, ErrNoIntent
	}
	method := cmp.Or(call.Method, http.MethodPost)
	if KindOf(method, true) != Keyed {
		return done{}, errors.New("client: a command is not sent with " + method)
	}
	req, err := newRequest(ctx, method, call)
	if err != nil {
		return done{}, err
	}
	out, r, err := c.prepare(req, i, i.Key())
	if err != nil {
		return done{}, err
	}
	for {
		e := r.send(out)
		if e.resp == nil {
			return done{}, r.failure(e)
		}
		d := done{run: r, resp: e.resp}
		d.body, err = r.body(e.resp)
		var p problem
		if e.event != Success {
			_ = json.Unmarshal(d.body, &p) // what cannot be read says nothing
		}
		if e.event == Accepted && call.Follow {
			if err := r.follow(ctx, call, e, p); err != nil {
				return done{}, err
			}
			if out.GetBody != nil {
				out.Body, _ = out.GetBody() // the same bytes, and no error with them
			}
			continue
		}
		if e.event == Success && err != nil {
			return done{}, d.unread(err)
		}
		return d, r.verdict(e, p)
	}
}

func newRequest(ctx context.Context, method string, call Call) (*http.Request, error) {
	var body io.Reader
	if call.Command != nil {
		data, err := json.Marshal(call.Command)
		if err != nil {
			return nil, &CommandError{err}
		}
		body = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, call.URL, body)
	if err != nil {
		return nil, fmt.Errorf("client: the method or the URL is wrong: %w", err)
	}
	if req.URL.Scheme != "http" && req.URL.Scheme != "https" || req.URL.Host == "" {
		return nil, errors.New("client: the URL has to start with http:// or https:// and a host")
	}
	if call.Header != nil {
		req.Header = call.Header.Clone()
	}
	if body != nil && req.Header.Get("Content-Type") == "" {
		req.Header.Set("Content-Type", "application/json")
	}
	return req, nil
}

// body reads the whole body within what is left of the total time, and at least the time of one try.
func (r *run) body(resp *http.Response) ([]byte, error) {
	b, ok := resp.Body.(*answerBody)
	if !ok { // an upgraded connection
		_ = resp.Body.Close()
		return nil, errors.New("client: the answer is no answer to a command")
	}
	timer := time.AfterFunc(max(time.Until(r.deadline), positive(r.c.PerTry, DefaultPerTry)), func() { b.cancel(errTotal) })
	defer timer.Stop()
	defer func() { _ = b.Close() }()
	data, err := io.ReadAll(io.LimitReader(b, answerLimit+1))
	if err == nil && len(data) > answerLimit {
		err = fmt.Errorf("client: the answer is longer than %d bytes", answerLimit)
	}
	return data, err
}

// verdict is the error that an answer means, or nil.
func (r *run) verdict(e end, p problem) error {
	status, id := e.resp.StatusCode, e.resp.Header.Get("X-Request-ID")
	switch {
	case e.event == Success:
		return nil
	case e.event == Redirect:
		return &RedirectError{Intent: r.intent, Status: status, Location: e.resp.Header.Get("Location")}
	case e.event == Accepted || e.event == InProgress:
		return r.inProgress(e, p, e.stop, nil)
	case e.event == Conflict || p.Code == "IDEMPOTENCY_KEY_CONFLICT":
		return &ConflictError{Intent: r.intent, Status: status, Code: p.Code, Detail: p.Detail, RequestID: id, Tries: r.tries}
	case status < 500 && (e.stop == StopFinal || e.stop == StopServer):
		return &RefusedError{
			Intent: r.intent, Status: status, Code: p.Code, Retry: p.Retry, Detail: p.Detail, Fields: p.Errors, Data: p.Data,
			RequestID: id, Tries: r.tries, Unsure: r.unsure,
		}
	}
	return &UnknownError{
		Intent: r.intent, Stop: e.stop, Status: status, Code: p.Code, RequestID: id, RetryAfter: e.asked, Tries: r.tries, Sent: true,
	}
}

func (r *run) inProgress(e end, p problem, stop Stop, err error) error {
	return &InProgressError{
		Intent: r.intent, Status: e.resp.StatusCode, OperationID: p.OperationID, Location: e.resp.Header.Get("Location"),
		RetryAfter: e.asked, Tries: r.tries, Stop: stop, Err: err,
	}
}

// follow waits until the operation is not in progress any more, or cannot be looked at: then the command itself gets the answer.
// The looks have limits of tries of their own, and the total time is that of the command.
func (r *run) follow(ctx context.Context, call Call, accepted end, p problem) error {
	location, err := accepted.resp.Location()
	switch {
	case err != nil:
		location = nil // so the command itself is sent again, as if this were a 409
	case !sameOrigin(accepted.resp.Request.URL, location):
		return r.inProgress(accepted, p, StopFinal, errOtherOrigin)
	}
	for asked := accepted.asked; ; {
		wait := positive(asked, pollEvery)
		switch {
		case r.tries >= positive(r.c.MaxTries, DefaultMaxTries):
			return r.inProgress(accepted, p, StopTries, nil)
		case wait >= time.Until(r.deadline):
			return r.inProgress(accepted, p, StopTotal, nil)
		}
		if err := sleep(ctx, wait); err != nil {
			return r.inProgress(accepted, p, StopCanceled, err)
		}
		if location == nil {
			return nil
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, location.String(), nil)
		if err != nil {
			return r.inProgress(accepted, p, StopFinal, err)
		}
		if call.Header != nil {
			req.Header = call.Header.Clone()
			req.Header.Del(keyHeader)
		}
		look := &run{c: r.c, intent: r.intent, method: http.MethodGet, total: r.total, deadline: r.deadline}
		e := look.send(req)
		if e.resp == nil {
			return r.inProgress(accepted, p, e.stop, e.err)
		}
		body, err := look.body(e.resp)
		var op problem
		if err != nil || e.event != Success || json.Unmarshal(body, &op) != nil || op.State != "in_progress" {
			return nil
		}
		asked = e.asked
	}
}

func sameOrigin(a, b *url.URL) bool {
	port := func(u *url.URL) string {
		return cmp.Or(u.Port(), map[string]string{"http": "80", "https": "443"}[u.Scheme])
	}
	return a.Scheme == b.Scheme && strings.EqualFold(a.Hostname(), b.Hostname()) && port(a) == port(b)
}
