package client_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tekil-go/tekil/requestctx/client"
)

func TestMain(m *testing.M) {
	if killedWriter() {
		return
	}
	goleak.VerifyTestMain(m)
}

// memory is a Store of an application's own.
type memory struct {
	mu      sync.Mutex
	records map[[2]string]client.Record
}

func (m *memory) Keep(_ context.Context, r client.Record) (client.Record, bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	place := [2]string{r.Intent, r.DraftID}
	if found, ok := m.records[place]; ok {
		return found, true, nil
	}
	if m.records == nil {
		m.records = map[[2]string]client.Record{}
	}
	m.records[place] = r
	return r, false, nil
}

func (m *memory) Remove(_ context.Context, r client.Record) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if place := [2]string{r.Intent, r.DraftID}; m.records[place].Key == r.Key {
		delete(m.records, place)
	}
	return nil
}

func (m *memory) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.records)
}

// arrival is a request that came to the stub.
type arrival struct {
	method, path, key string
	lines             int
	body              [sha256.Size]byte
	size              int
	header            http.Header
}

// stub is a server that notes what arrives, reads it and then does what it is told.
type stub struct {
	*httptest.Server
	mu       sync.Mutex
	arrivals []arrival
	gone     chan struct{} // closed at the end, for handlers that hang
}

// newStub makes a server that answers the n-th arrival, counted from 0, by serve.
func newStub(t testing.TB, serve func(n int, w http.ResponseWriter, r *http.Request)) *stub {
	t.Helper()
	s := &stub{gone: make(chan struct{})}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/warm" {
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		lines := r.Header.Values("Idempotency-Key")
		a := arrival{r.Method, r.URL.EscapedPath(), "", len(lines), sha256.Sum256(body), len(body), r.Header}
		if len(lines) > 0 {
			a.key = lines[0]
		}
		s.mu.Lock()
		s.arrivals = append(s.arrivals, a)
		n := len(s.arrivals) - 1
		s.mu.Unlock()
		serve(n, w, r)
	}))
	t.Cleanup(func() {
		close(s.gone)
		s.Close()
	})
	return s
}

func (s *stub) came() []arrival {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]arrival(nil), s.arrivals...)
}

// cut closes the connection without an answer.
func cut(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err)
	}
	_ = conn.Close()
}

// transport is one of the test's own, so that no connection of it outlives the test.
func transport(t testing.TB) *http.Transport {
	t.Helper()
	tr := &http.Transport{}
	t.Cleanup(tr.CloseIdleConnections)
	return tr
}

// fast is a client that hardly waits.
func fast(t testing.TB) *client.Client {
	t.Helper()
	return &client.Client{Transport: transport(t), Backoff: time.Millisecond, MaxBackoff: time.Millisecond}
}

// warm leaves n idle connections in the transport.
func warm(t testing.TB, rt http.RoundTripper, base string, n int) {
	t.Helper()
	var got sync.WaitGroup
	var open []*http.Response
	var mu sync.Mutex
	for range n {
		got.Go(func() {
			req, err := http.NewRequestWithContext(t.Context(), "GET", base+"/warm", nil)
			if err != nil {
				t.Error(err)
				return
			}
			resp, err := rt.RoundTrip(req)
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			open = append(open, resp)
			mu.Unlock()
		})
	}
	got.Wait()
	for _, resp := range open {
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
}

// tries notes what an observer is told.
type tries struct {
	mu   sync.Mutex
	list []client.Try
}

func (t *tries) add(one client.Try) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.list = append(t.list, one)
}

func (t *tries) all() []client.Try {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]client.Try(nil), t.list...)
}

// fake is a transport without a network.
type fake func(*http.Request) (*http.Response, error)

func (f fake) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		_, _ = io.Copy(io.Discard, r.Body)
		_ = r.Body.Close()
	}
	return f(r)
}

// reply is an answer of a fake.
func reply(r *http.Request, status int, body string, headers ...string) *http.Response {
	resp := &http.Response{
		StatusCode: status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{}, Request: r,
		Body: io.NopCloser(bytes.NewReader([]byte(body))), ContentLength: int64(len(body)),
	}
	if body != "" {
		resp.Header.Set("Content-Type", "application/problem+json")
	}
	for i := 0; i+1 < len(headers); i += 2 {
		resp.Header.Set(headers[i], headers[i+1])
	}
	return resp
}

// hang is a try that nobody answers.
func hang(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, context.Cause(r.Context())
}

func intent(t testing.TB) client.Intent {
	t.Helper()
	i, err := client.New("checkout", client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func problemJSON(code, retry string) string {
	return fmt.Sprintf(`{"code":%q,"retry":%q}`, code, retry)
}

var errDial = &net.OpError{Op: "dial", Net: "tcp", Err: io.ErrUnexpectedEOF}

func quiet() *log.Logger { return log.New(io.Discard, "", 0) }

// as gives the E in err's tree, and ends the test if there is none.
func as[E error](t testing.TB, err error) E {
	t.Helper()
	e, ok := errors.AsType[E](err)
	if !ok {
		t.Fatalf("the error is %T (%v), want %T", err, err, e)
	}
	return e
}

type order struct {
	Cart   string `json:"cart_id"`
	Amount int    `json:"amount"`
}

type placed struct {
	OrderID string `json:"order_id"`
}
