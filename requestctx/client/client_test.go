package client_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tekil-go/tekil/requestctx/client"
)

// send makes a request under an intent and gives the error; the answer's body is closed.
func send(t testing.TB, rt http.RoundTripper, ctx context.Context, method, url string, body io.Reader, headers ...string) (*http.Response, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header[headers[i]] = append(req.Header[headers[i]], headers[i+1])
	}
	resp, err := rt.RoundTrip(req)
	if err == nil {
		_ = resp.Body.Close()
	}
	return resp, err
}

// http.Transport by itself sends a request with a key again when a kept-alive connection breaks. The server here does the work and
// closes the connection, while other idle connections are there for the transport to go on with.
func TestBR59_NoMoreRequestsArriveThanTheLimitSays(t *testing.T) {
	t.Parallel()
	large := bytes.Repeat([]byte("0123456789abcdef"), 5<<20/16)
	file := filepath.Join(t.TempDir(), "large")
	if err := os.WriteFile(file, large, 0o600); err != nil {
		t.Fatal(err)
	}
	open := func() io.Reader {
		f, err := os.Open(file)
		if err != nil {
			t.Error(err)
		}
		return f // closed by the transport
	}
	for _, c := range []struct {
		name, method string
		body         func() io.Reader
		size         int
		rewinds      bool
	}{
		{"bytes", "POST", func() io.Reader { return strings.NewReader("small") }, 5, true},
		{"5 MB of bytes", "POST", func() io.Reader { return bytes.NewReader(large) }, len(large), true},
		{"a reader", "POST", func() io.Reader { return io.MultiReader(strings.NewReader("small")) }, 5, false},
		{"a file of 5 MB", "POST", open, len(large), false},
		{"no body", "POST", func() io.Reader { return nil }, 0, true},
		{"no body", "DELETE", func() io.Reader { return nil }, 0, true},
	} {
		for _, limit := range []int{1, 3} {
			t.Run(c.method+" "+c.name, func(t *testing.T) {
				t.Parallel()
				s := newStub(t, func(_ int, w http.ResponseWriter, _ *http.Request) { cut(w) })
				cl := fast(t)
				cl.MaxTries = limit
				cl.Transport.(*http.Transport).MaxIdleConnsPerHost = 5
				warm(t, cl.Transport, s.URL, 5)
				_, err := send(t, cl, client.With(t.Context(), intent(t)), c.method, s.URL+"/orders", c.body())
				want := limit
				if !c.rewinds {
					want = 1
					if e := as[*client.BodyError](t, err); e.Tries != 1 || e.Err == nil {
						t.Errorf("the error is %+v", e)
					}
				} else if e := as[*client.UnknownError](t, err); e.Tries != limit || e.Stop != client.StopTries || !e.Sent || e.Status != 0 || e.Err == nil {
					t.Errorf("the error is %+v", e)
				}
				came := s.came()
				if len(came) != want {
					t.Fatalf("%d requests arrived, want %d", len(came), want)
				}
				for _, a := range came {
					if a.key != came[0].key || a.key == "" || a.body != came[0].body || a.size != c.size {
						t.Errorf("another key, or a body of %d bytes", a.size)
					}
				}
			})
		}
	}
}

// A read is left to the transport, and what that sends again counts.
func TestBR59_WhatTheTransportSendsAgainOfAReadIsCounted(t *testing.T) {
	t.Parallel()
	for _, limit := range []int{1, 3, 8} {
		s := newStub(t, func(_ int, w http.ResponseWriter, _ *http.Request) { cut(w) })
		cl, seen := fast(t), &tries{}
		cl.MaxTries, cl.Observe = limit, seen.add
		const idle = 2 // as many connections as the transport keeps; it sends again for each that breaks, also in the last try
		warm(t, cl.Transport, s.URL, idle)
		if _, err := send(t, cl, t.Context(), "GET", s.URL+"/orders", nil); err == nil {
			t.Error("no error")
		}
		told := seen.all()
		came, counted := len(s.came()), told[len(told)-1].Number
		if came > counted || came > limit+idle || counted < limit {
			t.Errorf("limit %d: %d requests arrived and %d were counted", limit, came, counted)
		}
	}
}

func TestBR61_EachTryHasItsOwnLimitAndTheBodyIsNotCutByIt(t *testing.T) {
	t.Parallel()
	const perTry = 500 * time.Millisecond
	var s *stub
	s = newStub(t, func(n int, w http.ResponseWriter, r *http.Request) {
		if n < 2 {
			select {
			case <-r.Context().Done():
			case <-s.gone:
			}
			return
		}
		w.WriteHeader(http.StatusCreated)
		body := `{"order_id":"o-1"}`
		for i := range body { // three times as long as a try may take
			_, _ = io.WriteString(w, body[i:i+1])
			_ = http.NewResponseController(w).Flush()
			select {
			case <-time.After(3 * perTry / time.Duration(len(body))):
			case <-s.gone:
			}
		}
	})
	c := fast(t)
	c.PerTry, c.Total = perTry, 30*time.Second
	got, err := client.Do[placed](t.Context(), c, intent(t), client.Call{URL: s.URL + "/orders", Command: order{"c-1", 1}})
	if err != nil || got.Result.OrderID != "o-1" || got.Tries != 3 || got.Status != 201 {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestBR61_TheTimesBetweenTriesAreAsDocumented(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		client  client.Client
		answers []func(*http.Request) (*http.Response, error) // the last one goes on
		timeout time.Duration                                 // of the caller
		least   time.Duration
		most    time.Duration
		stop    client.Stop
		tries   int
		status  int
		is      error
	}{
		{
			name: "Retry-After in seconds", least: 2 * time.Second, most: 2 * time.Second, tries: 2,
			answers: []func(*http.Request) (*http.Response, error){unavailable("Retry-After", "2"), created},
		},
		{
			name: "Retry-After as a date", least: 3 * time.Second, most: 3 * time.Second, tries: 2,
			answers: []func(*http.Request) (*http.Response, error){unavailable("Retry-After", "Sat, 01 Jan 2000 00:00:03 GMT"), created},
		},
		{
			name: "in progress is waited for as told", least: 4 * time.Second, most: 4 * time.Second, tries: 3,
			answers: []func(*http.Request) (*http.Response, error){inProgress, inProgress, created},
		},
		{
			name: "Retry-After beyond the total time", stop: client.StopRetryAfter, tries: 1, status: 503,
			answers: []func(*http.Request) (*http.Response, error){unavailable("Retry-After", "9999")},
		},
		{
			name: "Retry-After beyond the caller's deadline", stop: client.StopRetryAfter, tries: 1, status: 503, timeout: 5 * time.Second,
			answers: []func(*http.Request) (*http.Response, error){unavailable("Retry-After", "6")},
		},
		{
			name: "each try hangs", client: client.Client{PerTry: time.Second, MaxTries: 3, Backoff: 1, MaxBackoff: 1},
			least: 3 * time.Second, most: 3*time.Second + time.Millisecond, stop: client.StopTries, tries: 3,
			answers: []func(*http.Request) (*http.Response, error){hang},
		},
		{
			name: "the first try uses up its own time alone", client: client.Client{PerTry: 20 * time.Second},
			least: 20 * time.Second, most: 20*time.Second + 200*time.Millisecond, tries: 2,
			answers: []func(*http.Request) (*http.Response, error){hang, created},
		},
		{
			name: "the total time cuts a try", client: client.Client{PerTry: time.Hour, Total: time.Minute},
			least: time.Minute, most: time.Minute, stop: client.StopTotal, tries: 1,
			answers: []func(*http.Request) (*http.Response, error){hang},
		},
		{
			name: "the defaults", least: DefaultTimes(7) / 100, most: DefaultTimes(7), stop: client.StopTries, tries: 8, status: 503,
			answers: []func(*http.Request) (*http.Response, error){unavailable()},
		},
		{
			name: "the caller's deadline in a try", timeout: 3 * time.Second, least: 3 * time.Second, most: 3 * time.Second,
			stop: client.StopCanceled, tries: 1, is: context.DeadlineExceeded,
			answers: []func(*http.Request) (*http.Response, error){hang},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				n := 0
				cl := c.client
				cl.Transport = fake(func(r *http.Request) (*http.Response, error) {
					answer := c.answers[min(n, len(c.answers)-1)]
					n++
					return answer(r)
				})
				ctx := t.Context()
				if c.timeout > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, c.timeout)
					defer cancel()
				}
				start := time.Now()
				got, err := client.Do[placed](ctx, &cl, intent(t), client.Call{URL: "http://shop.example/orders", Command: order{}})
				if took := time.Since(start); took < c.least || took > c.most {
					t.Errorf("it took %v, want %v to %v", took, c.least, c.most)
				}
				if n != c.tries {
					t.Errorf("%d tries, want %d", n, c.tries)
				}
				if c.stop == "" {
					if err != nil || got.Tries != c.tries {
						t.Errorf("got %+v, %v", got, err)
					}
					return
				}
				if e := as[*client.UnknownError](t, err); e.Stop != c.stop || e.Tries != c.tries || e.Status != c.status || e.Intent.Key().IsZero() {
					t.Errorf("the error is %v (%+v)", e, e.Stop)
				}
				if c.is != nil && !errors.Is(err, c.is) {
					t.Errorf("the error is %v, want %v in it", err, c.is)
				}
			})
		})
	}
}

// DefaultTimes is the longest time that n waits take by the defaults.
func DefaultTimes(n int) (sum time.Duration) {
	wait := client.DefaultBackoff
	for range n {
		sum += min(wait, client.DefaultMaxBackoff)
		wait *= 2
	}
	return sum + time.Millisecond
}

func created(r *http.Request) (*http.Response, error) {
	return reply(r, 201, `{"order_id":"o-1"}`), nil
}

func inProgress(r *http.Request) (*http.Response, error) {
	return reply(r, 409, problemJSON("IDEMPOTENCY_REQUEST_IN_PROGRESS", "same-key"), "Retry-After", "2"), nil
}

func unavailable(headers ...string) func(*http.Request) (*http.Response, error) {
	return func(r *http.Request) (*http.Response, error) { return reply(r, 503, "", headers...), nil }
}

func TestBR61_CancelingDuringAWaitReturnsAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		reason := errors.New("the user closed the window")
		time.AfterFunc(7*time.Second, func() { cancel(reason) })
		cl := client.Client{Transport: fake(unavailable("Retry-After", "60"))}
		start := time.Now()
		_, err := client.Do[placed](ctx, &cl, intent(t), client.Call{URL: "http://shop.example/orders", Command: order{}})
		if took := time.Since(start); took != 7*time.Second {
			t.Errorf("it took %v", took)
		}
		e := as[*client.UnknownError](t, err)
		if !errors.Is(err, context.Canceled) || !errors.Is(err, reason) || e.Status != 503 || e.Stop != client.StopCanceled {
			t.Errorf("the error is %v", err)
		}
	})
}

// The body of an error answer that does not end is a try that does not end.
func TestAProblemThatDoesNotEndIsATryWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	var s *stub
	s = newStub(t, func(n int, w http.ResponseWriter, r *http.Request) {
		if n > 0 {
			return
		}
		w.WriteHeader(http.StatusServiceUnavailable)
		_ = http.NewResponseController(w).Flush()
		select {
		case <-r.Context().Done():
		case <-s.gone:
		}
	})
	c, seen := fast(t), &tries{}
	c.PerTry, c.Observe = time.Second, seen.add
	if _, err := send(t, c, client.With(t.Context(), intent(t)), "POST", s.URL, strings.NewReader("x")); err != nil {
		t.Fatal(err)
	}
	if told := seen.all(); len(told) != 2 || told[0].Event != client.TryTimeout {
		t.Errorf("told %+v", told)
	}
}

func TestBR24_TheKeyIsOneHeaderLineInEachTry(t *testing.T) {
	t.Parallel()
	s := newStub(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		if n < 3 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	i := intent(t)
	mine := i.For("POST", "/orders", "").Key().String()
	for _, c := range []struct {
		name    string
		headers []string
		refused bool
	}{
		{"none", nil, false},
		{"the same key", []string{"Idempotency-Key", mine}, false},
		{"the same key spelled in small letters", []string{"idempotency-key", mine}, false},
		{"the intent's own key, which is not this call's", []string{"Idempotency-Key", i.Key().String()}, true},
		{"two lines", []string{"Idempotency-Key", mine, "Idempotency-Key", mine}, true},
		{"two lines in two spellings", []string{"Idempotency-Key", mine, "idempotency-key", mine}, true},
		{"an empty line", []string{"Idempotency-Key", ""}, true},
	} {
		before := len(s.came())
		cl := fast(t)
		cl.Transport = adds{cl.Transport}
		_, err := send(t, cl, client.With(t.Context(), i), "POST", s.URL+"/orders", strings.NewReader("x"), c.headers...)
		came := s.came()[before:]
		if c.refused {
			as[*client.HeaderError](t, err)
			if len(came) != 0 {
				t.Errorf("%s: something was sent", c.name)
			}
			continue
		}
		if err != nil || len(came) == 0 {
			t.Errorf("%s: %v", c.name, err)
		}
		for _, a := range came {
			if a.lines != 1 || a.key != mine || len(a.header["X-Token"]) != 1 {
				t.Errorf("%s: %d lines, header %v", c.name, a.lines, a.header["X-Token"])
			}
		}
	}
	// Without an intent the header is the key, if it is one.
	for _, c := range []struct {
		headers []string
		refused bool
	}{
		{[]string{"Idempotency-Key", "order-12345"}, false},
		{[]string{"Idempotency-Key", "short"}, true},
		{[]string{"Idempotency-Key", "order-12345", "Idempotency-Key", "order-12345"}, true},
	} {
		_, err := send(t, fast(t), t.Context(), "POST", s.URL+"/orders", strings.NewReader("x"), c.headers...)
		if _, refused := errors.AsType[*client.HeaderError](err); refused != c.refused || strings.Contains(errorText(err), "order-12345") {
			t.Errorf("%v: %v", c.headers, err)
		}
	}
	// A read needs none.
	before := len(s.came())
	_, err := send(t, fast(t), client.With(t.Context(), i), "GET", s.URL+"/orders", nil, "Idempotency-Key", "order-12345")
	if came := s.came()[before:]; err != nil || len(came) != 1 || came[0].lines != 0 {
		t.Errorf("%v, %+v", err, came)
	}
}

// adds is a transport that breaks the rules: it changes the request.
type adds struct{ http.RoundTripper }

func (a adds) RoundTrip(r *http.Request) (*http.Response, error) {
	r.Header.Add("X-Token", "t")
	return a.RoundTripper.RoundTrip(r)
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestN09_EachCallUnderAnIntentHasAKeyOfItsOwn(t *testing.T) {
	t.Parallel()
	s := newStub(t, func(int, http.ResponseWriter, *http.Request) {})
	i, c := intent(t), fast(t)
	keys := map[string]bool{}
	for _, call := range []struct{ method, path, label string }{
		{"POST", "/orders", ""}, {"POST", "/orders", "second"}, {"PUT", "/orders", ""}, {"POST", "/orders/a%2Fb", ""}, {"POST", "", ""},
	} {
		for range 2 { // the same call, the same key
			if _, err := send(t, c, client.WithLabel(t.Context(), i, call.label), call.method, s.URL+call.path+"?q=1", strings.NewReader("x")); err != nil {
				t.Fatal(err)
			}
			came := s.came()
			key := came[len(came)-1].key
			keys[key] = true
			if want := i.For(strings.ToLower(call.method), call.path+"?other=2", call.label).Key().String(); key != want {
				t.Errorf("%v: the key sent is not the one that For gives", call)
			}
		}
	}
	if len(keys) != 5 {
		t.Errorf("%d keys, want 5", len(keys))
	}
}

func TestAKeyedWriteIsNotFollowedToAnotherResource(t *testing.T) {
	t.Parallel()
	for _, status := range []int{301, 302, 303, 307, 308} {
		s := newStub(t, func(_ int, w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/orders" {
				w.Header().Set("Location", "/elsewhere")
				w.WriteHeader(status)
			}
		})
		hc := &http.Client{Transport: fast(t)}
		for _, headers := range [][]string{nil, {"Idempotency-Key", "order-12345"}} {
			ctx := t.Context()
			if headers == nil {
				ctx = client.With(ctx, intent(t))
			}
			req, err := http.NewRequestWithContext(ctx, "POST", s.URL+"/orders", strings.NewReader("x"))
			if err != nil {
				t.Fatal(err)
			}
			if headers != nil {
				req.Header.Set(headers[0], headers[1])
			}
			before := len(s.came())
			resp, err := hc.Do(req)
			came := s.came()[before:]
			if status >= 307 {
				e := as[*client.RedirectError](t, err)
				if e.Status != status || len(came) != 1 {
					t.Errorf("%d: %v, %d requests", status, err, len(came))
				}
				continue
			}
			if err != nil { // a read of another page
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			if len(came) != 2 || came[1].method != "GET" || came[1].lines != 0 || came[1].size != 0 {
				t.Errorf("%d: %+v", status, came)
			}
		}
		before := len(s.came())
		_, err := client.Do[placed](t.Context(), fast(t), intent(t), client.Call{URL: s.URL + "/orders", Command: order{}})
		if e := as[*client.RedirectError](t, err); e.Status != status || e.Location != "/elsewhere" || len(s.came())-before != 1 {
			t.Errorf("%d: %+v", status, e)
		}
	}
}

func TestBR60_AWriteWithoutAKeyIsSentOnceAndTheErrorSaysWhy(t *testing.T) {
	t.Parallel()
	s := newStub(t, func(_ int, w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/503" {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		cut(w)
	})
	c, seen := fast(t), &tries{}
	c.Observe = seen.add
	_, err := send(t, c, t.Context(), "POST", s.URL+"/cut", strings.NewReader("x"))
	if e := as[*client.UnkeyedError](t, err); e.Method != "POST" || !errors.Is(err, io.EOF) || !strings.Contains(err.Error(), "without an Idempotency-Key") {
		t.Errorf("the error is %v", err)
	}
	resp, err := send(t, c, t.Context(), "POST", s.URL+"/503", strings.NewReader("x"))
	if err != nil || resp.StatusCode != 503 {
		t.Errorf("got %v, %v", resp, err)
	}
	for _, told := range seen.all() {
		if told.Stop != client.StopUnkeyed || told.Number != 1 {
			t.Errorf("told %+v", told)
		}
	}
	if n := len(s.came()); n != 2 {
		t.Errorf("%d requests", n)
	}
}

func TestABodyThatCannotBeMadeAgainIsNotSentAgain(t *testing.T) {
	t.Parallel()
	s := newStub(t, func(_ int, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
	req, err := http.NewRequestWithContext(client.With(t.Context(), intent(t)), "POST", s.URL, strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	moved := errors.New("the file has been moved")
	req.GetBody = func() (io.ReadCloser, error) { return nil, moved }
	_, err = fast(t).RoundTrip(req) //nolint:bodyclose // there is none
	as[*client.BodyError](t, err)
	if !errors.Is(err, moved) || len(s.came()) != 1 {
		t.Errorf("the error is %v, %d requests", err, len(s.came()))
	}
	// The answer of a try that could have been made again is given as it is.
	resp, err := send(t, fast(t), client.With(t.Context(), intent(t)), "POST", s.URL, io.MultiReader(strings.NewReader("x")))
	if err != nil || resp.StatusCode != 503 || len(s.came()) != 2 {
		t.Errorf("got %v, %v, %d requests", resp, err, len(s.came()))
	}
}

type closing struct {
	io.Reader
	closed bool
}

func (c *closing) Close() error {
	c.closed = true
	return nil
}

func TestTheBodyIsClosedWhereNothingIsSent(t *testing.T) {
	t.Parallel()
	body := &closing{Reader: strings.NewReader("x")}
	req, err := http.NewRequestWithContext(t.Context(), "POST", "http://shop.example", body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Idempotency-Key", "short")
	if _, err := new(client.Client).RoundTrip(req); err == nil || !body.closed { //nolint:bodyclose // there is none
		t.Errorf("%v, closed %v", err, body.closed)
	}
	if req.Header.Get("Idempotency-Key") != "short" {
		t.Error("the caller's request was changed")
	}
}
