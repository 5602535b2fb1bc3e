package console_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"

	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/console"
	"github.com/tekil-go/tekil/behaviors/idempotency/memstore"
	"github.com/tekil-go/tekil/requestctx/browser/browsertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(browsertest.M{M: m}) }

// faulty is a store that is away or slow where a test says so.
type faulty struct {
	*memstore.Store
	find  func(ctx context.Context, q idempotency.Search) error
	count func(ctx context.Context) error
	free  error
}

func (f *faulty) Find(ctx context.Context, q idempotency.Search, limit int) ([]idempotency.Stored, error) {
	if f.find != nil {
		if err := f.find(ctx, q); err != nil {
			return nil, err
		}
	}
	return f.Store.Find(ctx, q, limit)
}

func (f *faulty) Count(ctx context.Context) ([]idempotency.Count, error) {
	if f.count != nil {
		if err := f.count(ctx); err != nil {
			return nil, err
		}
	}
	return f.Store.Count(ctx)
}

func (f *faulty) Free(ctx context.Context, id idempotency.ID, seen idempotency.AttemptID) (bool, error) {
	if f.free != nil {
		return false, f.free
	}
	return f.Store.Free(ctx, id, seen)
}

// errDriver is what a driver says, with what is nobody's business.
var errDriver = errors.New(`failed to connect to "user=shop database=payments": hostname resolving error (10.0.0.7)`)

func away(context.Context, idempotency.Search) error { return errDriver }

// slow is a store that does not answer in time.
func slow(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }

// desk is a console in a test: its store, and what was logged.
type desk struct {
	http.Handler
	store *faulty
	logs  *observer.ObservedLogs
	own   *bytes.Buffer // the console's own log
	admin *idempotency.Admin
}

// ayse is who uses the console. Without her cookie nobody does.
func ayse(r *http.Request) (string, error) {
	if c, err := r.Cookie("session"); err != nil || c.Value != "ayse" {
		return "mallory", errors.New("the session store says: unknown session 4711")
	}
	return "ayse", nil
}

// pipeline stands in for the registry's description.
type pipeline struct {
	Commands []string `json:"commands"`
}

func (p pipeline) String() string {
	return "command " + strings.Join(p.Commands, ", ") + "\n  stages: logging -> <validation>"
}

// newDesk makes a console. A config may be changed before.
func newDesk(t *testing.T, change ...func(*console.Config)) *desk {
	t.Helper()
	core, logs := observer.New(zapcore.DebugLevel)
	d := &desk{store: &faulty{Store: memstore.New()}, logs: logs, own: &bytes.Buffer{}}
	var err error
	d.admin, err = idempotency.NewAdmin(idempotency.AdminConfig{Store: d.store, Logger: zap.New(core)})
	if err != nil {
		t.Fatal(err)
	}
	cfg := console.Config{Admin: d.admin, Who: ayse, Pipeline: pipeline{[]string{"orders.place"}}, Log: slog.New(slog.NewTextHandler(d.own, nil))}
	for _, c := range change {
		c(&cfg)
	}
	if d.Handler, err = console.New(cfg); err != nil {
		t.Fatal(err)
	}
	return d
}

// kept is a record of a test, with all that support looks for.
func kept(key string, change ...func(*idempotency.Record)) idempotency.Record {
	r := idempotency.Record{
		Scope: idempotency.Scope{Tenant: "acme", Client: "shop-7", Operation: "POST /v1/orders orders.place", Key: key},
		Hash:  [32]byte{0xab, 0xcd}, State: idempotency.Completed, Attempt: idempotency.AttemptID{7}, Attempts: 1,
		Result: []byte(`{"order_id":"o-1","card":"4111111111111111"}`), ResultType: "result/1",
		OriginRequestID: "req-" + key, ExternalRef: "auth-" + key, DraftID: "draft-" + key,
	}
	for _, c := range change {
		c(&r)
	}
	if r.State != idempotency.Completed { // what is there from completion on
		r.Result, r.ResultType, r.ExternalRef = nil, "", ""
	}
	return r
}

func inProgress(left time.Duration) func(*idempotency.Record) {
	return func(r *idempotency.Record) { r.State, r.LeaseLeft = idempotency.InProgress, left }
}

func failed(r *idempotency.Record) { r.State = idempotency.Failed }

// put stores a record.
func (d *desk) put(r idempotency.Record) idempotency.ID {
	id := r.Scope.ID()
	d.store.Put(id, r)
	return id
}

// ask makes a request. Options: "json" asks for JSON, "nobody" leaves the log-in out; "Name: value" is a header.
func (d *desk) ask(t *testing.T, method, path, body string, options ...string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.AddCookie(&http.Cookie{Name: "session", Value: "ayse"})
	r.Header.Set("Accept", "text/html,application/xhtml+xml,*/*;q=0.8")
	if method == "POST" {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Sec-Fetch-Site", "same-origin")
	}
	for _, o := range options {
		switch name, value, isHeader := strings.Cut(o, ": "); {
		case isHeader:
			r.Header.Set(name, value)
		case o == "json":
			r.Header.Set("Accept", "application/json")
		case o == "nobody":
			r.Header.Del("Cookie")
		}
	}
	w := httptest.NewRecorder()
	d.ServeHTTP(w, r)
	return w
}

// follow goes where an answer to a request of a path leads.
func (d *desk) follow(t *testing.T, w *httptest.ResponseRecorder, path string) *httptest.ResponseRecorder {
	t.Helper()
	at := httptest.NewRequest("GET", path, nil).URL
	to, err := at.Parse(w.Header().Get("Location"))
	if err != nil || w.Code != http.StatusSeeOther {
		t.Fatalf("the answer is %d %v %s", w.Code, w.Header(), w.Body)
	}
	return d.ask(t, "GET", to.RequestURI(), "")
}

// form is a body.
func form(pairs ...string) string {
	v := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		v.Set(pairs[i], pairs[i+1])
	}
	return v.Encode()
}

// record is an answer to a script.
type record struct {
	ID          string   `json:"id"`
	OperationID string   `json:"operation_id"`
	Verdict     string   `json:"verdict"`
	Tenant      string   `json:"tenant"`
	Command     string   `json:"command"`
	KeyMasked   string   `json:"key_masked"`
	State       string   `json:"state"`
	Stuck       bool     `json:"stuck"`
	AttemptID   string   `json:"attempt_id"`
	RequestID   string   `json:"request_id"`
	FoundBy     []string `json:"found_by"`
}

type found struct {
	Summary     string   `json:"summary"`
	Records     []record `json:"records"`
	Truncated   bool     `json:"truncated"`
	NotSearched []string `json:"not_searched"`
}

type problem struct{ Error, Code string }

func decode[T any](t *testing.T, w *httptest.ResponseRecorder, status int) (v T) {
	t.Helper()
	if got := w.Header().Get("Content-Type"); w.Code != status || got != "application/json" {
		t.Fatalf("the answer is %d %s %s, want %d", w.Code, got, w.Body, status)
	}
	if err := json.Unmarshal(w.Body.Bytes(), &v); err != nil {
		t.Fatalf("%v: %s", err, w.Body)
	}
	return v
}

// search searches as a script does.
func (d *desk) search(t *testing.T, pairs ...string) found {
	t.Helper()
	return decode[found](t, d.ask(t, "POST", "/search", form(pairs...), "json"), 200)
}

func seen(r idempotency.Record) string { return hex.EncodeToString(r.Attempt[:]) }

func recordPath(id idempotency.ID) string { return "/records/" + id.Operation() }

func wantProblem(t *testing.T, w *httptest.ResponseRecorder, status int, code string) {
	t.Helper()
	if p := decode[problem](t, w, status); p.Code != code || p.Error == "" {
		t.Errorf("the problem is %+v, want %s", p, code)
	}
}

// wantPage demands a page that says some things.
func wantPage(t *testing.T, w *httptest.ResponseRecorder, status int, says ...string) {
	t.Helper()
	if got := w.Header().Get("Content-Type"); w.Code != status || got != "text/html; charset=utf-8" {
		t.Errorf("the answer is %d %s, want the page %d: %.300s", w.Code, got, status, w.Body)
	}
	for _, s := range says {
		if !strings.Contains(w.Body.String(), s) {
			t.Errorf("the page does not say %q: %s", s, w.Body)
		}
	}
}

func uuid(id idempotency.ID) string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
}
