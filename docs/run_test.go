package docs_test

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	_ "modernc.org/sqlite"

	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore"
	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore/pgtest"
	"github.com/tekil-go/tekil/behaviors/idempotency/sqlitestore"
	"github.com/tekil-go/tekil/requestctx"
)

// statements cuts a text of SQL at the semicolons that stand at the end of a line, without its comments.
func statements(text string) (all []string) {
	text = regexp.MustCompile(`(?m)--.*$`).ReplaceAllString(text, "")
	for _, s := range regexp.MustCompile(`(?m);[ \t]*$`).Split(text, -1) {
		if s = strings.TrimSpace(s); s != "" {
			all = append(all, s)
		}
	}
	return all
}

// engine runs one statement and says how many rows it has found or changed.
type engine func(ctx context.Context, statement string) (rows int64, err error)

func onPostgres(t *testing.T) engine {
	t.Helper()
	pool := pgtest.Pool(t)
	if err := pgstore.Migrate(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	return func(ctx context.Context, statement string) (int64, error) { return postgresRows(ctx, pool, statement) }
}

func postgresRows(ctx context.Context, pool *pgxpool.Pool, statement string) (int64, error) {
	rows, err := pool.Query(ctx, statement)
	if err != nil {
		return 0, err
	}
	for rows.Next() {
	}
	return rows.CommandTag().RowsAffected(), rows.Err()
}

func onSQLite(t *testing.T) engine {
	t.Helper()
	db, err := sql.Open("sqlite", filepath.Join(t.TempDir(), "records.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	if err := sqlitestore.Migrate(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	return func(ctx context.Context, statement string) (n int64, err error) {
		if !reads(statement) {
			res, err := db.ExecContext(ctx, statement)
			if err != nil {
				return 0, err
			}
			return res.RowsAffected()
		}
		rows, err := db.QueryContext(ctx, statement)
		if err != nil {
			return 0, err
		}
		defer rows.Close()
		for rows.Next() {
			n++
		}
		return n, rows.Err()
	}
}

func reads(statement string) bool {
	word := strings.ToUpper(strings.Fields(statement)[0])
	return word == "SELECT" || word == "WITH" || word == "PRAGMA"
}

// counts reports whether a statement is about rows, and so has to meet one.
func counts(statement string) bool {
	return slices.Contains([]string{"SELECT", "WITH", "INSERT", "UPDATE", "DELETE"}, strings.ToUpper(strings.Fields(statement)[0]))
}

// runSQL runs a block and says what is wrong with it.
func runSQL(ctx context.Context, run engine, text string) error {
	for _, s := range statements(text) {
		switch n, err := run(ctx, s); {
		case err != nil:
			return fmt.Errorf("%s: %w", s, err)
		case n == 0 && counts(s):
			return fmt.Errorf("%s: it meets no row", s)
		}
	}
	return nil
}

func onSQLiteFile(b block) bool { return strings.HasPrefix(b.text, "-- SQLite") }

func TestEverySQLBlockRuns(t *testing.T) {
	t.Parallel()
	type place struct {
		page   string
		group  int
		sqlite bool
	}
	engines := map[place]engine{}
	for _, b := range blocks(t, "sql") {
		at, ending, open := place{b.page, b.group, onSQLiteFile(b)}, ".sql", onPostgres
		if at.sqlite {
			ending, open = ".sqlite.sql", onSQLite
		}
		if engines[at] == nil {
			engines[at] = open(t)
			for _, s := range statements(read(t, b.prelude, ending)) {
				if _, err := engines[at](t.Context(), s); err != nil {
					t.Fatalf("the prelude %s%s: %s: %v", b.prelude, ending, s, err)
				}
			}
		}
		if err := runSQL(t.Context(), engines[at], b.text); err != nil {
			t.Errorf("%s: %v", b.at(), err)
		}
	}
}

func TestAnSQLBlockThatMeetsNothingIsFound(t *testing.T) {
	t.Parallel()
	for name, run := range map[string]engine{"PostgreSQL": onPostgres(t), "SQLite": onSQLite(t)} {
		for text, want := range map[string]string{
			"SELECT count(*) FROM idempotency_records; -- all\nCREATE INDEX ON_KEY ON idempotency_records (key);\n": "",
			"SELECT key FROM idempotency_records;":                            "meets no row",
			"SELECT 1;\nDELETE FROM idempotency_records\n WHERE key = 'x';\n": "meets no row",
			"SELECT kay FROM idempotency_records;":                            "kay",
		} {
			err := runSQL(t.Context(), run, text)
			if got := fmt.Sprint(err); (want == "") != (err == nil) || !strings.Contains(got, want) {
				t.Errorf("%s: %q: %v, want %q", name, text, err, want)
			}
		}
	}
}

// shell runs the sh blocks of one document.
type shell struct {
	dir    string // of its own
	env    []string
	client []string          // pairs for a strings.Replacer: what the document calls a server, and where it is
	stop   func()            // stops the servers
	built  map[string]string // programs
	limit  time.Duration     // how long a script, or a program that does not listen, may take
}

// defaultLimit is as long as somebody who reads a document may be expected to wait. What takes longer is marked text.
const defaultLimit = 3 * time.Minute

// defaultAddresses are where the servers of the examples listen unless they are told otherwise.
var defaultAddresses = map[string]string{"checkout": "http://127.0.0.1:8080", "workorders": "http://127.0.0.1:8090"}

func newShell(t *testing.T, api string) *shell {
	t.Helper()
	dir := t.TempDir()
	// The go command's own folders stay where they are; what a program keeps goes into the shell's.
	env := append(os.Environ(), "XDG_CACHE_HOME="+filepath.Join(dir, "cache"), "api="+api, "GOFLAGS=-buildvcs=false")
	for _, name := range []string{"GOCACHE", "GOMODCACHE", "GOPATH"} {
		value, err := exec.Command("go", "env", name).Output()
		if err != nil {
			t.Fatal(err)
		}
		env = append(env, name+"="+strings.TrimSpace(string(value)))
	}
	return &shell{dir: dir, env: env, stop: func() {}, built: map[string]string{}, limit: defaultLimit}
}

var (
	exampleLine = regexp.MustCompile(`^go run \./examples/([a-z]+)(.*)$`)
	prints      = regexp.MustCompile(`# prints (.+)$`)
)

// run runs a block and gives what is wrong with it.
func (s *shell) run(ctx context.Context, text string) error {
	var script strings.Builder
	flush := func() error {
		text := strings.NewReplacer(s.client...).Replace(script.String())
		script.Reset()
		if strings.TrimSpace(text) == "" {
			return nil
		}
		limited, cancel := context.WithTimeout(ctx, s.limit)
		defer cancel()
		cmd := exec.CommandContext(limited, "bash", "-eu", "-o", "pipefail", "-c", text)
		cmd.Dir, cmd.Env, cmd.WaitDelay = s.dir, s.env, time.Second
		out, err := cmd.CombinedOutput()
		if limited.Err() != nil {
			return fmt.Errorf("it takes longer than %v; what cannot be waited for is marked text", s.limit)
		}
		if err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		rest := string(out)
		for _, m := range regexp.MustCompile(`(?m)`+prints.String()).FindAllStringSubmatch(text, -1) {
			_, after, ok := strings.Cut(rest, m[1])
			if !ok {
				return fmt.Errorf("it does not print %q in its place\n%s", m[1], out)
			}
			rest = after
		}
		return nil
	}
	for line := range strings.Lines(text) {
		m := exampleLine.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil {
			script.WriteString(line)
			continue
		}
		if err := flush(); err != nil {
			return err
		}
		if err := s.example(ctx, m[1], strings.Fields(strings.Split(m[2], "#")[0])); err != nil {
			return err
		}
	}
	return flush()
}

// example builds and runs a program of the examples. One that listens goes on.
func (s *shell) example(ctx context.Context, name string, args []string) error {
	if s.built[name] == "" {
		s.built[name] = filepath.Join(s.dir, name)
		if out, err := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-o", s.built[name], "../examples/"+name).CombinedOutput(); err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
	}
	if defaultAddresses[name] != "" {
		args = append(args, "-addr", "127.0.0.1:0")
	}
	cmd := exec.CommandContext(ctx, s.built[name], args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	var said bytes.Buffer
	cmd.Dir, cmd.Env, cmd.Stderr = s.dir, s.env, &said
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	limit := time.AfterFunc(s.limit, func() { _ = cmd.Process.Kill() })
	defer limit.Stop()
	lines := bufio.NewReader(stdout)
	for {
		line, err := lines.ReadString('\n')
		if url, ok := strings.CutPrefix(strings.TrimSpace(line), name+": listening on "); ok {
			s.client = append(s.client, defaultAddresses[name], url)
			before := s.stop
			s.stop = func() {
				_ = cmd.Process.Signal(syscall.SIGTERM)
				_, _ = io.Copy(io.Discard, lines)
				_ = cmd.Wait()
				before()
			}
			return nil
		}
		if err != nil { // it has ended
			if err := cmd.Wait(); !limit.Stop() {
				return fmt.Errorf("%s %v takes longer than %v; what cannot be waited for is marked text", name, args, s.limit)
			} else if err != nil {
				return fmt.Errorf("%s %v: %w\n%s", name, args, err, said.String())
			}
			return nil
		}
	}
}

// payouts is the API of somebody else that the guides send to. It keeps the keys that it was sent.
type payouts struct {
	mu   sync.Mutex
	keys []string
}

func (p *payouts) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key, err := requestctx.ParseKey(r.Header.Get("Idempotency-Key"))
	if body, _ := io.ReadAll(r.Body); err != nil || !json.Valid(body) || r.Method != http.MethodPost || r.URL.Path != "/v1/payouts" {
		http.Error(w, "no", http.StatusBadRequest)
		return
	}
	p.mu.Lock()
	p.keys = append(p.keys, key.String())
	p.mu.Unlock()
	w.WriteHeader(http.StatusCreated)
}

func TestEveryCommandLineRuns(t *testing.T) {
	t.Parallel()
	api := &payouts{}
	server := httptest.NewServer(api)
	defer server.Close()
	shells := map[string]*shell{}
	for _, b := range blocks(t, "sh") {
		analyzer := strings.Contains(b.text, "./registry/vet/")
		if analyzer && !vettool {
			continue
		}
		s := shells[b.page]
		if s == nil {
			s = newShell(t, server.URL)
			shells[b.page] = s
			defer func() { s.stop() }()
			if err := os.WriteFile(filepath.Join(s.dir, "payout.json"), []byte(`{"payout":"2026-0117","amount":4990}`), 0o600); err != nil {
				t.Fatal(err)
			}
			if analyzer {
				s.limit = 8 * time.Minute
				clone(t, s.dir)
			}
		}
		if err := s.run(t.Context(), b.text); err != nil {
			t.Errorf("%s: %v", b.at(), err)
		}
	}
	api.mu.Lock()
	defer api.mu.Unlock()
	if len(api.keys) != 1 {
		t.Fatalf("the guides have sent the keys %q, want one", api.keys)
	}
	if log, err := os.ReadFile(filepath.Join(shells["docs/guides/internal-tools.md"].dir, "payouts.log")); err != nil || string(log) != api.keys[0]+"\n" {
		t.Errorf("the key that was sent is not the one that was written down: %q, %v", log, err)
	}
}

// clone puts a part of the module into a folder, which is enough of it for the commands of docs/vet.md.
func clone(t *testing.T, dir string) {
	t.Helper()
	for _, name := range []string{"bus", "registry/vet"} {
		if err := os.CopyFS(filepath.Join(dir, name), os.DirFS(filepath.Join("..", name))); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"go.mod", "go.sum"} {
		text, err := os.ReadFile(filepath.Join("..", name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestACommandLineThatFailsIsFound(t *testing.T) {
	t.Parallel()
	s := newShell(t, "http://127.0.0.1:1")
	defer func() { s.stop() }()
	hasty := newShell(t, "http://127.0.0.1:1")
	hasty.limit = time.Millisecond
	for _, text := range []string{"sleep 60\n", "go run ./examples/client -payments 1000\n"} {
		if err := hasty.run(t.Context(), text); err == nil || !strings.Contains(err.Error(), "longer than 1ms") {
			t.Errorf("%q: %v, want that it takes too long", text, err)
		}
	}
	for text, want := range map[string]string{
		"echo one # prints one\necho two # prints two\n":       "",
		"echo two; echo one # prints one\ntrue # prints two\n": "it does not print",
		"false\ntrue\n":                       "exit status 1",
		"echo $nothing\n":                     "unbound variable",
		"false | cat\n":                       "exit status 1",
		"go run ./examples/client -payment 5": "flag provided but not defined",
		"go run ./examples/nothing":           "directory not found",
	} {
		err := s.run(t.Context(), text)
		if got := fmt.Sprint(err); (want == "") != (err == nil) || want != "" && !strings.Contains(got, want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}
