package client_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tekil-go/tekil/requestctx/client"
)

// Each row of the policy, made by a real server, for each kind of request. The fault comes twice and then the request succeeds.
func TestBR60_EachRowOfThePolicyIsKeptForEachKindOfRequest(t *testing.T) {
	t.Parallel()
	type request struct {
		method string
		key    bool
	}
	requests := []request{
		{"GET", false}, {"HEAD", false}, {"POST", true}, {"POST", false}, {"PATCH", true}, {"PATCH", false},
		{"PUT", true}, {"PUT", false}, {"DELETE", true}, {"DELETE", false},
	}
	const (
		yes, no = true, false
	)
	answer := func(status int, body string) func(*stub, http.ResponseWriter, *http.Request) {
		return func(_ *stub, w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(status)
			_, _ = w.Write([]byte(body))
		}
	}
	for _, fault := range []struct {
		name  string
		event client.Event
		serve func(*stub, http.ResponseWriter, *http.Request)
		again [4]bool // a read; a write with a key; PUT and DELETE without; another write without
	}{
		{"dial", client.DialFailed, nil, [4]bool{yes, yes, yes, no}},
		{"cut after the work", client.CutAfter, func(_ *stub, w http.ResponseWriter, _ *http.Request) { cut(w) }, [4]bool{yes, yes, yes, no}},
		{"hang", client.TryTimeout, func(s *stub, _ http.ResponseWriter, r *http.Request) {
			select {
			case <-r.Context().Done():
			case <-s.gone:
			}
		}, [4]bool{yes, yes, yes, no}},
		{"200", client.Success, answer(200, "{}"), [4]bool{}},
		{"201", client.Success, answer(201, "{}"), [4]bool{}},
		{"202", client.Accepted, answer(202, "{}"), [4]bool{}},
		{"204", client.Success, func(_ *stub, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) }, [4]bool{}},
		{"302", client.Redirect, answer(302, ""), [4]bool{}},
		{"307", client.Redirect, answer(307, ""), [4]bool{}},
		{"400", client.BadRequest, answer(400, problemJSON("VALIDATION_FAILED", "same-key")), [4]bool{}},
		{"401", client.ClientFault, answer(401, ""), [4]bool{}},
		{"404", client.ClientFault, answer(404, ""), [4]bool{}},
		{"408", client.Timeout, answer(408, ""), [4]bool{yes, yes, yes, no}},
		{"409 in progress", client.InProgress, answer(409, problemJSON("IDEMPOTENCY_REQUEST_IN_PROGRESS", "same-key")), [4]bool{no, yes, no, no}},
		{"409 conflict", client.Conflict, answer(409, problemJSON("IDEMPOTENCY_KEY_CONFLICT", "none")), [4]bool{}},
		{"409 without a problem", client.Conflict, answer(409, ""), [4]bool{}},
		{"410", client.ClientFault, answer(410, problemJSON("IDEMPOTENCY_KEY_EXPIRED", "new-key")), [4]bool{}},
		{"422", client.Invalid, answer(422, problemJSON("ROOM_TAKEN", "none")), [4]bool{}},
		{"425", client.TooEarly, answer(425, ""), [4]bool{yes, yes, yes, no}},
		{"429", client.TooMany, answer(429, ""), [4]bool{yes, yes, yes, no}},
		{"500", client.ServerFault, answer(500, ""), [4]bool{yes, yes, no, no}},
		{"502", client.BadGateway, answer(502, ""), [4]bool{yes, yes, yes, no}},
		{"503", client.Unavailable, answer(503, problemJSON("STORE", "same-key")), [4]bool{yes, yes, yes, no}},
		{"504", client.GatewayAfter, answer(504, ""), [4]bool{yes, yes, yes, no}},
		{"507", client.ServerFault, answer(507, ""), [4]bool{yes, yes, no, no}},
		{"500 that a person has to look at", client.ServerFault, answer(500, problemJSON("INTERNAL", "none")), [4]bool{}},
		{"503 for another key", client.Unavailable, answer(503, problemJSON("X", "new-key")), [4]bool{}},
	} {
		for _, q := range requests {
			kind := map[bool]map[string]int{
				true:  {"POST": 1, "PATCH": 1, "PUT": 1, "DELETE": 1},
				false: {"GET": 0, "HEAD": 0, "PUT": 2, "DELETE": 2, "POST": 3, "PATCH": 3},
			}[q.key][q.method]
			if q.method == "HEAD" && strings.Contains(fault.name, " ") && fault.serve != nil && fault.name[0] != 'c' {
				continue // the answer to HEAD has no problem in it
			}
			t.Run(fmt.Sprintf("%s/%s key %v", fault.name, q.method, q.key), func(t *testing.T) {
				t.Parallel()
				var s *stub
				s = newStub(t, func(n int, w http.ResponseWriter, r *http.Request) {
					if n < 2 && fault.serve != nil {
						fault.serve(s, w, r)
						return
					}
					w.WriteHeader(http.StatusCreated)
				})
				c, seen := fast(t), &tries{}
				c.Observe = seen.add
				if fault.event == client.TryTimeout {
					c.PerTry = 500 * time.Millisecond
				}
				if fault.event == client.DialFailed {
					var dials atomic.Int64
					c.Transport.(*http.Transport).DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
						if dials.Add(1) <= 2 {
							return nil, errDial
						}
						return (&net.Dialer{}).DialContext(ctx, network, address)
					}
				}
				ctx := t.Context()
				if q.key {
					ctx = client.With(ctx, intent(t))
				}
				req, err := http.NewRequestWithContext(ctx, q.method, s.URL+"/orders", strings.NewReader("the body"))
				if err != nil {
					t.Fatal(err)
				}
				resp, err := c.RoundTrip(req)
				if err == nil {
					_ = resp.Body.Close()
				}
				wantTries, wantArrivals := 1, 1
				if fault.again[kind] {
					wantTries, wantArrivals = 3, 3
				}
				if fault.event == client.DialFailed {
					wantArrivals = wantTries - 2
					wantArrivals = max(wantArrivals, 0)
				}
				came, told := s.came(), seen.all()
				if len(came) != wantArrivals || len(told) != wantTries {
					t.Fatalf("%d requests came and %d tries were made, want %d and %d (error: %v)", len(came), len(told), wantArrivals, wantTries, err)
				}
				for _, a := range came {
					if a.key != came[0].key || a.body != came[0].body || a.size != len("the body") || a.lines > 1 || (a.key != "") != q.key {
						t.Errorf("the tries differ: %+v and %+v", a, came[0])
					}
				}
				event := fault.event
				if event == client.InProgress && !q.key { // no key, so it is not that key's work
					event = client.Conflict
				}
				if told[0].Event != event || told[0].Number != 1 {
					t.Errorf("the first try was %q, number %d, want %q", told[0].Event, told[0].Number, event)
				}
				if fault.again[kind] && (err != nil || resp.StatusCode != 201) {
					t.Errorf("the third try succeeds, and the answer is %v, %v", resp, err)
				}
			})
		}
	}
}

// A server that closes the connection on what it has not read, so that sending is what fails.
func TestBR60_AWriteWithAKeyIsSentAgainWhenSendingItFails(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	accepted := make(chan int, 1)
	go func() {
		n := 0
		for ; ; n++ {
			conn, err := listener.Accept()
			if err != nil {
				accepted <- n
				return
			}
			_ = conn.(*net.TCPConn).SetLinger(0)
			_ = conn.Close()
		}
	}()
	for _, keyed := range []bool{true, false} {
		c, seen := fast(t), &tries{}
		c.MaxTries, c.Observe = 3, seen.add
		ctx, want := t.Context(), 1
		if keyed {
			ctx, want = client.With(ctx, intent(t)), 3
		}
		req, err := http.NewRequestWithContext(ctx, "POST", "http://"+listener.Addr().String(), strings.NewReader(strings.Repeat("x", 5<<20)))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.RoundTrip(req); err == nil || len(seen.all()) != want { //nolint:bodyclose // there is none
			t.Errorf("key %v: %d tries, want %d: %v", keyed, len(seen.all()), want, err)
		}
	}
	_ = listener.Close()
	if n := <-accepted; n != 4 {
		t.Errorf("%d connections, want 4", n)
	}
}

func TestACertificateThatIsNotTrustedIsNotTriedAgain(t *testing.T) {
	t.Parallel()
	s := httptest.NewUnstartedServer(http.NotFoundHandler())
	s.Config.ErrorLog = quiet()
	s.StartTLS()
	t.Cleanup(s.Close)
	c, seen := fast(t), &tries{}
	c.Observe = seen.add
	_, err := client.Do[placed](t.Context(), c, intent(t), client.Call{URL: s.URL, Command: order{}})
	unknown := as[*client.UnknownError](t, err)
	as[*tls.CertificateVerificationError](t, err)
	if told := seen.all(); len(told) != 1 || told[0].Event != client.TLSRefused || unknown.Sent {
		t.Errorf("told %+v, sent %v", told, unknown.Sent)
	}
}

// The documentation shows the table that the code follows.
func TestThePolicyInTheDocumentationIsTheOneInTheCode(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	if table := render(); !strings.Contains(string(doc), table) {
		t.Errorf("doc.go must have this table:\n%s", table)
	}
}

func render() string {
	var b strings.Builder
	line := func(event string, columns ...string) {
		fmt.Fprintf(&b, "//\t%-20s  %-5s  %-14s  %-15s  %s\n", event, columns[0], columns[1], columns[2], columns[3])
	}
	line("what happened", "read", "write with key", "PUT, DELETE (*)", "other write without key")
	word := map[bool]string{true: "again", false: "stop"}
	for _, r := range client.Policy() {
		line(string(r.Event), word[r.Again[0]], word[r.Again[1]], word[r.Again[2]], word[r.Again[3]])
	}
	return b.String()
}

func TestPolicyGivesACopy(t *testing.T) {
	t.Parallel()
	rows := client.Policy()
	rows[0].Again[client.Unkeyed] = true
	if client.Policy()[0].Again[client.Unkeyed] {
		t.Error("the policy was changed from outside")
	}
}

func TestRetryAfterIsReadAsSecondsOrADate(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	for _, c := range []struct {
		value, date string
		want        time.Duration
	}{
		{"2", "", 2 * time.Second},
		{" 120 ", "", 2 * time.Minute},
		{"0", "", 0},
		{"", "", 0},
		{"-5", "", 0},
		{"1.5", "", 0},
		{"soon", "", 0},
		{"9999", "", 9999 * time.Second},
		{"99999999999999999999", "", 1<<63 - 1},
		{"9999999999999", "", 1<<63 - 1},
		{"Wed, 04 Mar 2026 05:06:17 GMT", "", 10 * time.Second},
		{"Wed, 04 Mar 2026 05:06:17 GMT", "Wed, 04 Mar 2026 05:06:15 GMT", 2 * time.Second}, // the server's clock
		{"Wed, 04 Mar 2026 05:06:17 GMT", "Yesterday", 10 * time.Second},
		{"Wed, 04 Mar 2020 05:06:17 GMT", "", 0},
	} {
		h := http.Header{"Retry-After": {c.value}, "Date": {c.date}}
		if got := client.RetryAfter(h, now); got != c.want {
			t.Errorf("Retry-After %q, Date %q: %v, want %v", c.value, c.date, got, c.want)
		}
	}
}

func FuzzRetryAfter(f *testing.F) {
	for _, v := range []string{"2", "0", "-1", "99999999999999999999", "Wed, 04 Mar 2026 05:06:17 GMT", "Wednesday, 04-Mar-26 05:06:17 GMT", " 7\t", "٣"} {
		f.Add(v, v)
	}
	now := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	f.Fuzz(func(t *testing.T, value, date string) {
		got := client.RetryAfter(http.Header{"Retry-After": {value}, "Date": {date}}, now)
		if got < 0 {
			t.Errorf("%q is %v", value, got)
		}
		if n, err := strconv.ParseUint(value, 10, 31); err == nil && got != time.Duration(n)*time.Second {
			t.Errorf("%q is %v", value, got)
		}
	})
}
