package client_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tekil-go/tekil/requestctx/client"
)

// rough is a transport of a test's own.
type rough func(*http.Request) (*http.Response, error)

func (f rough) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func answer(status int, header http.Header) *http.Response {
	return &http.Response{StatusCode: status, Header: header, Body: io.NopCloser(strings.NewReader(`{"operation_id":"o","state":"in_progress"}`))}
}

// The transport takes X-Idempotency-Key for a licence as well.
func TestBR59_AHeaderThatIsNotOursIsNoLicenceToSendAgain(t *testing.T) {
	t.Parallel()
	var arrived sync.WaitGroup
	var mu sync.Mutex
	n := 0
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	arrived.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			arrived.Go(func() {
				defer conn.Close()
				r := bufio.NewReader(conn)
				for first := true; ; first = false {
					req, err := http.ReadRequest(r)
					if err != nil {
						return
					}
					_, _ = io.Copy(io.Discard, req.Body)
					if req.Method == http.MethodPost {
						mu.Lock()
						n++
						mu.Unlock()
						if !first {
							return // the work is done, and the connection closed
						}
					}
					fmt.Fprint(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
				}
			})
		}
	})
	transport := &http.Transport{}
	defer arrived.Wait()
	defer l.Close()
	defer transport.CloseIdleConnections()
	c := &client.Client{Transport: transport, MaxTries: 1}
	get, err := http.NewRequest(http.MethodGet, "http://"+l.Addr().String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.RoundTrip(get) // so that there is a connection that has been used
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	post, err := http.NewRequest(http.MethodPost, "http://"+l.Addr().String(), strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	post.Header.Set("X-Idempotency-Key", "another-kind")
	_, err = c.RoundTrip(post)
	if unkeyed := new(client.UnkeyedError); !errors.As(err, &unkeyed) {
		t.Error(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if n != 1 {
		t.Errorf("%d requests arrived", n)
	}
}

func TestBackoffHasNoLimitThatItCannotHold(t *testing.T) {
	t.Parallel()
	n := 0
	c := &client.Client{
		Transport: rough(func(*http.Request) (*http.Response, error) { n++; return nil, errors.New("cut") }),
		Backoff:   math.MaxInt64/2 + 1, MaxBackoff: math.MaxInt64, Total: math.MaxInt64 / 4, MaxTries: 50,
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	i, err := client.New("checkout", client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err = client.Do[struct{}](ctx, c, i, client.Call{URL: "http://127.0.0.1/"}); err == nil || n == 0 {
		t.Error(n, err)
	}
}

// A transport of somebody's own may leave out what net/http fills in.
func TestAnAnswerWithoutRequestAndBodyIsTaken(t *testing.T) {
	t.Parallel()
	i, err := client.New("checkout", client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	c := &client.Client{MaxTries: 2, Transport: rough(func(r *http.Request) (*http.Response, error) {
		if r.Method == http.MethodPost {
			return answer(http.StatusAccepted, http.Header{"Location": {"/operations/o"}, "Retry-After": {"1"}}), nil
		}
		return answer(http.StatusOK, http.Header{}), nil
	})}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = client.Do[struct{}](ctx, c, i, client.Call{URL: "http://127.0.0.1/orders", Follow: true})
	if progress := new(client.InProgressError); !errors.As(err, &progress) {
		t.Error(err)
	}
	c = &client.Client{Transport: rough(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusNoContent}, nil
	})}
	if _, err = client.Do[struct{}](t.Context(), c, i, client.Call{URL: "http://127.0.0.1/orders"}); err != nil {
		t.Error(err)
	}
}

func TestKey4_AnAnswerThatGivesTheKeyBackDoesNotBringItIntoAnError(t *testing.T) {
	t.Parallel()
	i, err := client.New("checkout", client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var seen []string
	c := &client.Client{
		MaxTries: 1, Observe: func(try client.Try) { seen = append(seen, fmt.Sprint(try.Err)) },
		Transport: rough(func(r *http.Request) (*http.Response, error) {
			return nil, fmt.Errorf("malformed HTTP response %q: %w", "Idempotency-Key: "+r.Header.Get("Idempotency-Key"), io.ErrUnexpectedEOF)
		}),
	}
	_, err = client.Do[struct{}](t.Context(), c, i, client.Call{URL: "http://127.0.0.1/orders"})
	if said := fmt.Sprint(err, seen); strings.Contains(said, i.Key().String()) || !strings.Contains(said, i.Key().Masked()) || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Error(said)
	}
}

func TestTrailersAreSent(t *testing.T) {
	t.Parallel()
	got := make(chan string, 1)
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		got <- r.Trailer.Get("Checksum")
	}))
	defer s.Close()
	req, err := http.NewRequest(http.MethodPost, s.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.ContentLength, req.Trailer = -1, http.Header{"Checksum": nil}
	req.Body = io.NopCloser(io.MultiReader(strings.NewReader("body"), end(func() { req.Trailer.Set("Checksum", "abc") })))
	c := &client.Client{Transport: s.Client().Transport}
	resp, err := c.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if sum := <-got; sum != "abc" {
		t.Errorf("the trailer is %q", sum)
	}
}

// end is a reader that calls a function at the end.
type end func()

func (f end) Read([]byte) (int, error) { f(); return 0, io.EOF }

func TestWhatNoStoreKeepsIsRefusedWhenTheIntentIsMade(t *testing.T) {
	t.Parallel()
	for _, o := range []client.Options{{DraftID: "\xff"}, {DraftID: "a\x00b"}, {ProducedBy: "\xff"}, {TTLHours: client.MaxTTLHours + 1}} {
		if _, err := client.New("checkout", o); err == nil {
			t.Errorf("%+v is taken", o)
		}
	}
	i, err := client.New("checkout", client.Options{TTLHours: client.MaxTTLHours})
	if err != nil || i.Expired() {
		t.Error(err)
	}
}

// Whoever decides that a draft is new work keeps the generation with the draft. Another one than the stored one is not taken for it.
func TestKey6_TheGenerationOfADraftIsNotGuessed(t *testing.T) {
	t.Parallel()
	for name, s := range stores(t) {
		first, err := client.Begin(t.Context(), s[0], "checkout", client.Options{DraftID: "cart-77"})
		if err != nil {
			t.Fatal(name, err)
		}
		if _, err := client.Begin(t.Context(), s[0], "checkout", client.Options{DraftID: "cart-77", Generation: 2}); err == nil || !strings.Contains(err.Error(), "another generation") {
			t.Errorf("%s: %v", name, err)
		}
		second, err := client.Renew(t.Context(), s[0], "checkout", client.Options{DraftID: "cart-77", Generation: 2})
		if err != nil || second.Key() == first.Key() {
			t.Fatal(name, err)
		}
		if err := second.Done(t.Context()); err != nil {
			t.Fatal(name, err)
		}
		again, err := client.Begin(t.Context(), s[1], "checkout", client.Options{DraftID: "cart-77", Generation: 2})
		if err != nil || again.Key() != second.Key() {
			t.Errorf("%s: %v, %v", name, again, err)
		}
	}
}

// The end of one intent and the beginning of the next, many at once, in one process: no record is removed but one's own.
func TestFilesRemoveNothingButTheirOwn(t *testing.T) {
	t.Parallel()
	s, err := client.NewFiles(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for range 200 {
		old, err := client.Begin(t.Context(), s, "job", client.Options{})
		if err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() {
				if err := old.Done(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		var next client.Intent
		for next = old; next.Key() == old.Key(); {
			if next, err = client.Begin(t.Context(), s, "job", client.Options{}); err != nil {
				t.Fatal(err)
			}
		}
		all.Wait()
		stands, err := client.Begin(t.Context(), s, "job", client.Options{})
		if err != nil || stands.Key() != next.Key() {
			t.Fatal("the next intent was removed by the end of the one before", err)
		}
		if err := stands.Done(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func TestADamagedFileIsNamed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, err := client.NewFiles(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Begin(t.Context(), s, "job", client.Options{}); err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	file := dir + string(os.PathSeparator) + files[0].Name()
	if err := os.WriteFile(file, bytes.Repeat([]byte{0}, 20), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Begin(t.Context(), s, "job", client.Options{}); err == nil || !strings.Contains(err.Error(), file) {
		t.Error(err)
	}
}
