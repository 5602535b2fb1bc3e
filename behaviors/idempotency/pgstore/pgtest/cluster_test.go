//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package pgtest_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore/pgtest"
)

// testProcess is a child as its parent sees it.
type testProcess struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	url   string
}

// startTestProcess starts a child whose directory for temporary files is temp, so that it has a server that no other test uses.
func startTestProcess(t *testing.T, temp string, environ ...string) *testProcess {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, "TEKIL_") && !strings.HasPrefix(entry, "TMPDIR=") {
			cmd.Env = append(cmd.Env, entry)
		}
	}
	cmd.Env = append(append(cmd.Env, envChild+"=1", "TMPDIR="+temp), environ...)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &testProcess{cmd: cmd, stdin: stdin}
	t.Cleanup(func() { p.kill() })
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatalf("the child did not open a database: %v", err)
	}
	p.url = strings.TrimSpace(line)
	return p
}

// end lets the child finish its test.
func (p *testProcess) end(t *testing.T) {
	t.Helper()
	if err := p.stdin.Close(); err != nil {
		t.Error(err)
	}
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("the child: %v", err)
	}
}

// kill ends the child as kill -9 does.
func (p *testProcess) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// host is the address of the child's server.
func (p *testProcess) host(t *testing.T) string {
	t.Helper()
	u, err := url.Parse(p.url)
	if err != nil {
		t.Fatal(err)
	}
	return u.Host
}

// connect opens a session on the child's server that does not go with the child's schema.
func (p *testProcess) connect(t *testing.T) *pgx.Conn {
	t.Helper()
	config, err := pgx.ParseConfig(p.url)
	if err != nil {
		t.Fatal(err)
	}
	config.RuntimeParams["application_name"] = "watch"
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// waitForEnd returns when the server has ended the session.
func waitForEnd(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	if _, err := conn.WaitForNotification(t.Context()); !conn.IsClosed() {
		t.Errorf("the session goes on: %v", err)
	}
}

// tempDir is short, and every account may pass through it, as the usual directory for temporary files.
func tempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "pgtest-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func clusters(t *testing.T, temp string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(temp, "tekil-pgtest-*-????????"))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// keeper is the keeper of the only server below temp: its process id, and a function that waits for its end.
func keeper(t *testing.T, temp string) (pid int, ended func()) {
	t.Helper()
	found := clusters(t, temp)
	if len(found) != 1 {
		t.Fatalf("there are %d clusters, want 1: %q", len(found), found)
	}
	text, err := os.ReadFile(filepath.Join(found[0], "state"))
	if err != nil {
		t.Fatal(err)
	}
	var state struct{ Keeper int }
	if err := json.Unmarshal(text, &state); err != nil {
		t.Fatal(err)
	}
	lock, err := os.Open(filepath.Join(found[0], "keeper"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lock.Close() })
	return state.Keeper, func() {
		if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_SH); err != nil {
			t.Fatal(err)
		}
		// Whoever comes next takes this lock for a living keeper's.
		if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_UN); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTestProcessesShareOneServerThatEndsAfterTheLast(t *testing.T) {
	t.Parallel()
	temp := tempDir(t)
	processes := make([]*testProcess, 3)
	var starts sync.WaitGroup
	for i := range processes {
		starts.Go(func() { processes[i] = startTestProcess(t, temp) })
	}
	starts.Wait()
	if t.Failed() {
		return
	}
	for _, p := range processes[1:] {
		if p.host(t) != processes[0].host(t) {
			t.Errorf("servers at %s and %s", p.host(t), processes[0].host(t))
		}
		if p.url == processes[0].url {
			t.Error("two processes have one schema")
		}
	}
	watch := processes[0].connect(t)
	_, ended := keeper(t, temp)

	processes[0].end(t)
	processes[1].kill()
	if err := watch.Ping(t.Context()); err != nil {
		t.Fatalf("the server is gone while it is used: %v", err)
	}
	processes[2].kill()
	waitForEnd(t, watch)
	ended()
	if left := clusters(t, temp); len(left) != 0 {
		t.Errorf("there is something left: %q", left)
	}
}

func TestAKilledKeepersServerIsReplaced(t *testing.T) {
	t.Parallel()
	temp := tempDir(t)
	first := startTestProcess(t, temp)
	watch := first.connect(t)
	pid, ended := keeper(t, temp)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	ended()
	if err := watch.Ping(t.Context()); err != nil {
		t.Fatalf("the server went with its keeper, so this test shows nothing: %v", err)
	}
	second := startTestProcess(t, temp)
	waitForEnd(t, watch)
	if second.host(t) == first.host(t) {
		t.Error("the old server is still there")
	}
	_, ended = keeper(t, temp)
	first.kill()
	second.end(t)
	ended()
	if left := clusters(t, temp); len(left) != 0 {
		t.Errorf("there is something left: %q", left)
	}
}

func TestAKeeperThatIsAskedToEndStopsItsServer(t *testing.T) {
	t.Parallel()
	temp := tempDir(t)
	p := startTestProcess(t, temp)
	watch := p.connect(t)
	pid, ended := keeper(t, temp)
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	waitForEnd(t, watch)
	ended()
	p.kill()
}

func TestAServerThatTheEnvironmentNamesIsUsed(t *testing.T) {
	t.Parallel()
	temp := tempDir(t)
	d := pgtest.Open(t)
	config := d.PoolConfig().ConnConfig
	for name, address := range map[string]string{
		"URL": d.URL(),
		"keyword/value": fmt.Sprintf("host=%s port=%d user=%s password='%s' dbname=%s sslmode=disable", config.Host, config.Port,
			config.User, config.Password, config.Database),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// What a failed test left more than a day ago goes, what one left just now stays.
			suffix := strings.ToLower(name[:3]) + "_" + d.Schema()[len("tekil_test_01234567_"):]
			old, recent := "tekil_test_00000001_"+suffix, "tekil_test_ffffffff_"+suffix
			if _, err := d.Pool().Exec(t.Context(), "CREATE SCHEMA "+old+"; CREATE SCHEMA "+recent); err != nil {
				t.Fatal(err)
			}
			p := startTestProcess(t, temp, "TEKIL_TEST_POSTGRES="+address)
			conn := p.connect(t)
			if host := fmt.Sprintf("%s:%d", conn.Config().Host, conn.Config().Port); host != fmt.Sprintf("%s:%d", config.Host, config.Port) {
				t.Errorf("the child uses %s", host)
			}
			schema := one[string](t, conn, "SELECT current_schema()")
			if !strings.HasPrefix(schema, "tekil_test_") || schema == d.Schema() {
				t.Errorf("the child's schema is %s", schema)
			}
			p.end(t)
			for name, want := range map[string]int{old: 0, recent: 1, schema: 0} {
				if got := one[int](t, d.Pool(), schemas, name); got != want {
					t.Errorf("%d schemas %s, want %d", got, name, want)
				}
			}
			if _, err := d.Pool().Exec(t.Context(), "DROP SCHEMA "+recent); err != nil {
				t.Error(err)
			}
			if made := clusters(t, temp); len(made) != 0 {
				t.Errorf("a private server was started all the same: %q", made)
			}
		})
	}
}

func TestAClusterThatCannotStartSaysWhatInitdbSaid(t *testing.T) {
	t.Parallel()
	temp := tempDir(t)
	bin := filepath.Join(temp, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, script := range map[string]string{
		"initdb":   "#!/bin/sh\necho the disk is full >&2\nexit 3\n",
		"postgres": "#!/bin/sh\n",
	} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = []string{envChild + "=1", "TMPDIR=" + temp, "PATH=" + bin + ":/usr/bin:/bin"}
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Error("the child did not fail")
	}
	for _, want := range []string{"the disk is full", "apt-get install postgresql", "TEKIL_TEST_POSTGRES"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the message does not say %q:\n%s", want, out)
		}
	}
}
