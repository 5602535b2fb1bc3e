package client_test

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"

	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore/pgtest"
	"github.com/tekil-go/tekil/requestctx"
	"github.com/tekil-go/tekil/requestctx/client"
)

func TestN10_DerivedKeysAreTheOnesOfTheSharedVectors(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("testdata/derive.json")
	if err != nil {
		t.Fatal(err)
	}
	var rows []struct {
		Parts []string
		Key   string
	}
	if err := json.Unmarshal(data, &rows); err != nil || len(rows) < 8 {
		t.Fatal(err, len(rows))
	}
	for _, r := range rows {
		if got := client.Derive(r.Parts...); got != r.Key {
			t.Errorf("%q: %s, want %s", r.Parts, got, r.Key)
		}
		if _, err := requestctx.ParseKey(r.Key); err != nil {
			t.Error(err)
		}
	}
}

func TestTheKeyOfADraftNeedsNoStorage(t *testing.T) {
	t.Parallel()
	draft := func(o client.Options) string {
		i, err := client.New("checkout", o)
		if err != nil {
			t.Fatal(err)
		}
		return i.Key().String()
	}
	first := draft(client.Options{DraftID: "cart-77"})
	if first != client.Derive("draft/1", "checkout", "cart-77", "1") || first != draft(client.Options{DraftID: "cart-77", Generation: 1, ProducedBy: "x"}) {
		t.Error("the same draft has another key")
	}
	for _, o := range []client.Options{{}, {DraftID: "cart-78"}, {DraftID: "cart-77", Generation: 2}} {
		if draft(o) == first {
			t.Errorf("%+v has the same key", o)
		}
	}
	if one, other := draft(client.Options{}), draft(client.Options{}); one == other {
		t.Error("two intents without a draft have one key")
	}
}

func TestThePathOfACallIsTheOneOnTheWire(t *testing.T) {
	t.Parallel()
	i := intent(t)
	for given, wire := range map[string]string{
		"": "/", "/": "/", "/orders": "/orders", "/orders?x=1#y": "/orders", "https://shop.example/orders?x=1": "/orders", "https://shop.example": "/",
		"/café": "/caf%C3%A9", "/caf%C3%A9": "/caf%C3%A9", "/a%2Fb": "/a%2Fb", "/a b": "/a%20b", "//x/y": "//x/y", "/%zz": "/%zz",
	} {
		if want := client.Derive("call/1", i.Key().String(), "POST", wire, "l"); i.For("post", given, "l").Key().String() != want {
			t.Errorf("%q is not taken as %q", given, wire)
		}
	}
	if !(client.Intent{}).For("POST", "/", "").Key().IsZero() {
		t.Error("the zero Intent has a call with a key")
	}
}

func TestAnIntentThatMakesNoSenseIsRefused(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]client.Options{"": {}, "a": {Generation: 1}, "b": {DraftID: "d", Generation: -1}, "c": {TTLHours: -1}} {
		if _, err := client.New(name, o); err == nil || !strings.HasPrefix(err.Error(), "client: ") {
			t.Errorf("%q %+v: %v", name, o, err)
		}
		if _, err := client.Begin(t.Context(), &memory{}, name, o); err == nil {
			t.Errorf("%q %+v: no error", name, o)
		}
	}
}

// stores gives two handles of each kind of store, as two processes have them.
func stores(t *testing.T) map[string][2]client.Store {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "intents")
	var files [2]client.Store
	for n := range files {
		f, err := client.NewFiles(dir)
		if err != nil {
			t.Fatal(err)
		}
		files[n] = f
	}
	tables := func(driver, url string) (dbs [2]client.Store) {
		for n := range dbs {
			db, err := sql.Open(driver, url)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = db.Close() })
			if _, err := db.ExecContext(t.Context(), client.SQLTable); err != nil {
				t.Fatal(err)
			}
			dbs[n] = client.NewSQL(db)
		}
		return dbs
	}
	m := &memory{}
	return map[string][2]client.Store{
		"files":      files,
		"SQLite":     tables("sqlite", "file:"+filepath.Join(filepath.Dir(dir), "intents.db")+"?_pragma=busy_timeout(20000)&_txlock=immediate"),
		"PostgreSQL": tables("pgx", pgtest.Open(t).URL()),
		"memory":     {m, m},
	}
}

func TestAStoredIntentIsResumedWithItsKeyAndFields(t *testing.T) {
	t.Parallel()
	for name, s := range stores(t) {
		for _, o := range []client.Options{{ProducedBy: "importer@7", TTLHours: 5}, {DraftID: "cart/../77 ü", ProducedBy: "x", TTLHours: 7}} {
			first, err := client.Begin(t.Context(), s[0], "night import", o)
			if err != nil || first.Resumed() {
				t.Fatal(name, err)
			}
			again, err := client.Begin(t.Context(), s[1], "night import", client.Options{DraftID: o.DraftID, ProducedBy: "another", TTLHours: 1})
			if err != nil {
				t.Fatal(name, err)
			}
			if r := again.Record(); r != first.Record() || r.ProducedBy != o.ProducedBy || r.TTLHours != o.TTLHours || r.DraftID != o.DraftID || !again.Resumed() {
				t.Errorf("%s: %+v is not what was stored, %+v", name, r, first.Record())
			}
			if !again.Expires().Equal(first.Record().CreatedAt.Add(time.Duration(o.TTLHours) * time.Hour)) {
				t.Errorf("%s: it expires at %v", name, again.Expires())
			}
			if err := again.Done(t.Context()); err != nil {
				t.Fatal(name, err)
			}
			if err := first.Done(t.Context()); err != nil { // there is none any more
				t.Fatal(name, err)
			}
			fresh, err := client.Begin(t.Context(), s[0], "night import", o)
			if err != nil || fresh.Resumed() || (fresh.Key() == first.Key()) != (o.DraftID != "") {
				t.Errorf("%s: after the end, %v, %v", name, fresh, err)
			}
			if o.DraftID == "" { // the old one's end is not the new one's
				_ = first.Done(t.Context())
				if kept, err := client.Begin(t.Context(), s[0], "night import", o); err != nil || kept.Key() != fresh.Key() {
					t.Errorf("%s: %v, %v", name, kept, err)
				}
			}
		}
	}
}

func TestTwoProcessesAtOnceAgreeOnOneKey(t *testing.T) {
	t.Parallel()
	for name, s := range stores(t) {
		for round := range 20 {
			var got sync.WaitGroup
			keys := make([]requestctx.Key, 8)
			begin := make(chan struct{})
			for n := range keys {
				got.Go(func() {
					<-begin
					i, err := client.Begin(t.Context(), s[n%2], fmt.Sprint("import ", round), client.Options{})
					if err != nil {
						t.Error(name, err)
					}
					keys[n] = i.Key()
				})
			}
			close(begin)
			got.Wait()
			for _, k := range keys {
				if k != keys[0] || k.IsZero() {
					t.Fatalf("%s: two keys", name)
				}
			}
		}
	}
}

func TestAnIntentWhoseTimeIsOverIsNeitherResumedNorSent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &memory{}
		for _, o := range []client.Options{{}, {DraftID: "cart-77"}} {
			old, err := client.Begin(t.Context(), s, "checkout", o)
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(client.DefaultTTLHours*time.Hour - time.Second)
			if again, err := client.Begin(t.Context(), s, "checkout", o); err != nil || again.Key() != old.Key() {
				t.Errorf("before its time is over: %v, %v", again, err)
			}
			time.Sleep(time.Second)
			_, err = client.Begin(t.Context(), s, "checkout", o)
			if e := as[*client.ExpiredError](t, err); e.Intent.Key() != old.Key() || !e.At.Equal(old.Expires()) {
				t.Errorf("%+v", e)
			}
			c := &client.Client{Transport: fake(func(*http.Request) (*http.Response, error) { panic("something was sent") })}
			_, err = client.Do[placed](t.Context(), c, old, client.Call{URL: "http://shop.example", Command: order{}})
			as[*client.ExpiredError](t, err)
			_, err = send(t, c, client.With(t.Context(), old), "POST", "http://shop.example", strings.NewReader("x"))
			as[*client.ExpiredError](t, err)

			if o.DraftID != "" { // it would be the old key
				if _, err := client.Renew(t.Context(), s, "checkout", o); err == nil {
					t.Error("renewed with the same generation")
				}
				o.Generation = 2
			}
			fresh, err := client.Renew(t.Context(), s, "checkout", o)
			if err != nil || fresh.Key() == old.Key() || fresh.Expired() {
				t.Fatalf("renewed: %v, %v", fresh, err)
			}
			if again, err := client.Begin(t.Context(), s, "checkout", o); err != nil || again.Key() != fresh.Key() {
				t.Errorf("after it was renewed: %v, %v", again, err)
			}
			if err := fresh.Done(t.Context()); err != nil || s.count() != 0 {
				t.Errorf("%v, %d records", err, s.count())
			}
		}
	})
}

func TestTheFilesAreTheOwnersAlone(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "intents")
	s, err := client.NewFiles(dir)
	if err != nil {
		t.Fatal(err)
	}
	i, err := client.Begin(t.Context(), s, "checkout", client.Options{DraftID: "cart-77"})
	if err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 1 {
		t.Fatal(err, files)
	}
	info, err := files[0].Info()
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if d, err := os.Stat(dir); err != nil || d.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", d.Mode(), err)
	}
	if n := files[0].Name(); strings.Contains(n, "cart") || strings.Contains(n, i.Key().String()) {
		t.Errorf("the name is %s", n)
	}
	// A file that is damaged is an error and not a new key.
	if err := os.WriteFile(filepath.Join(dir, files[0].Name()), []byte(`{"intent":"checkout"`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Begin(t.Context(), s, "checkout", client.Options{DraftID: "cart-77"}); err == nil {
		t.Error("a damaged file was passed over")
	}
	// What killed processes have left goes.
	left := filepath.Join(dir, "new-123")
	if err := os.WriteFile(left, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(left, time.Time{}, time.Now().Add(-2*time.Hour)); err != nil {
		t.Fatal(err)
	}
	if _, err := client.NewFiles(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
		t.Error("it is still there")
	}
}

const killedDir = "CLIENT_TEST_KILLED_WRITER"

// killedWriter is the child of the test below: it stores one intent after the other and says so.
func killedWriter() bool {
	dir := os.Getenv(killedDir)
	if dir == "" {
		return false
	}
	s, err := client.NewFiles(dir)
	if err != nil {
		panic(err)
	}
	for n := 0; ; n++ {
		i, err := client.Begin(context.Background(), s, fmt.Sprint("import ", n), client.Options{})
		if err != nil {
			panic(err)
		}
		fmt.Println(i.Record().Intent + "=" + i.Key().String())
	}
}

func TestAKilledProgramResumesWithTheSameKey(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	stored := map[string]string{}
	for range 3 {
		child := exec.Command(os.Args[0], "-test.run=^$")
		child.Env = append(os.Environ(), killedDir+"="+dir)
		out, err := child.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		for n := 0; lines.Scan(); n++ {
			name, key, whole := strings.Cut(lines.Text(), "=")
			if before := stored[name]; before != "" && before != key && whole {
				t.Errorf("%s was resumed with another key", name)
			}
			if len(key) == 36 {
				stored[name] = key
			}
			if n == 10+len(stored)/2 {
				_ = child.Process.Kill() // in the midst of the next ones
			}
		}
		_ = child.Wait()
	}
	s, err := client.NewFiles(dir)
	if err != nil || len(stored) < 10 {
		t.Fatal(err, len(stored))
	}
	for name, key := range stored {
		if i, err := client.Begin(t.Context(), s, name, client.Options{}); err != nil || i.Key().String() != key || !i.Resumed() {
			t.Errorf("%s: %v, %v", name, i, err)
		}
	}
}

func TestNothingThatIsPrintedOrLoggedShowsTheKey(t *testing.T) {
	t.Parallel()
	i := intent(t)
	key := i.Key().String()
	hidden := struct{ i client.Intent }{i}
	unknown := &client.UnknownError{Intent: i, Stop: client.StopTries, Sent: true}
	var out bytes.Buffer
	for _, v := range []any{
		i, &i, hidden, &hidden, i.Record(), new(i.Record()), unknown, client.UnknownError{Intent: i}, &client.ExpiredError{Intent: i},
		[]client.Intent{i}, map[string]client.Intent{"a": i},
	} {
		fmt.Fprintf(&out, "%v %+v %#v %s %q %x %d\n", v, v, v, v, v, v, v)
		slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "v", v)
		slog.New(slog.NewTextHandler(&out, nil)).Info("x", "v", v)
	}
	text := strings.ReplaceAll(out.String(), `\"key\"`, "")
	if at := strings.Index(text, key); at >= 0 {
		t.Errorf("the key is shown: %s", text[max(0, at-300):at+len(key)])
	}
	if !strings.Contains(i.String(), key[:4]+"…") || (client.Intent{}).String() != "no intent" {
		t.Errorf("it is %v and %v", i, client.Intent{})
	}
}
