//go:build unix

package pgstore_test

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	osexec "os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tekil-go/tekil/behaviors/idempotency/internal/chaos"
	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore/pgtest"
)

// TestChaos_ACrashOfTheServerLosesNothingThatWasAcknowledged is the chaos on a server of its own, with fsync on, that crashes in the
// middle and recovers. The other tests' server is not for that.
func TestChaos_ACrashOfTheServerLosesNothingThatWasAcknowledged(t *testing.T) {
	t.Parallel()
	server := newServer(t)
	cfg, err := pgxpool.ParseConfig(server.url + "&application_name=beside-the-chaos")
	if err != nil {
		t.Fatal(err)
	}
	const sessions = "chaos"
	site := chaosSite(t, pgtest.NewPool(t, cfg), server.url+"&application_name="+sessions, sessions)
	site.Crash = server.crash
	chaos.Run(t, site)
}

// server is a PostgreSQL that may crash. A child process of the test's, which is this program again, starts it and ends it when the
// test, or its process, ends.
type server struct {
	url string
	in  io.Writer
	out *bufio.Reader
}

// newServer starts one.
func newServer(t *testing.T) *server {
	t.Helper()
	binaries := findBinaries(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := osexec.Command(self)
	cmd.Env = append(os.Environ(), serverEnv+"="+binaries)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // an interrupt at the terminal is for the test, whose end it notices
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the server's keeper: %v", err)
		}
	})
	s := &server{in: in, out: bufio.NewReader(out)}
	if s.url, err = s.listen(); err != nil {
		t.Fatalf("a server of its own: %v", err)
	}
	return s
}

// findBinaries gives where initdb and postgres are: the server of the other tests knows its own, if it is here and lets itself be asked.
func findBinaries(t *testing.T) string {
	t.Helper()
	var bindir string
	err := pgtest.Pool(t).QueryRow(t.Context(), `SELECT setting FROM pg_config WHERE name = 'BINDIR'`).Scan(&bindir)
	candidates := []string{filepath.Join(bindir, "initdb")}
	if path, lookErr := osexec.LookPath("initdb"); lookErr == nil {
		candidates = append(candidates, path)
	}
	packaged, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	for _, candidate := range append(candidates, packaged...) {
		if path, err := filepath.EvalSymlinks(candidate); err == nil { // initdb looks for its neighbours where it really is
			return filepath.Dir(path)
		}
	}
	t.Fatalf("this test crashes a PostgreSQL of its own, and there are no binaries for one: install PostgreSQL 14 or newer (%v)", err)
	return ""
}

// listen gives the next line of the keeper.
func (s *server) listen() (string, error) {
	line, err := s.out.ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("the keeper has ended: %w", err)
	}
	return strings.TrimSuffix(line, "\n"), nil
}

// crash does what pg_ctl restart -m immediate does: the server ends at once, without a word to its clients or its data, and another
// one recovers what is in the log.
func (s *server) crash() error {
	if _, err := io.WriteString(s.in, "crash\n"); err != nil {
		return err
	}
	_, err := s.listen()
	return err
}

// serverEnv makes a test binary the keeper of a server. Its value is where the binaries are.
const serverEnv = "TEKIL_CHAOS_SERVER"

func init() {
	binaries, ok := os.LookupEnv(serverEnv)
	if !ok {
		return
	}
	if err := keepServer(binaries); err != nil {
		fmt.Fprintln(os.Stderr, "chaos: a server of its own:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// keepServer says the server's URL, crashes it at every line that it is given, and ends it at the end of them.
func keepServer(binaries string) (err error) {
	dir, err := os.MkdirTemp("", "tekil-chaos-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	as, err := unprivileged()
	if err != nil {
		return err
	}
	password, port, data := rand.Text(), "", filepath.Join(dir, "data")
	run := func(name string, args ...string) *osexec.Cmd {
		cmd := osexec.Command(filepath.Join(binaries, name), args...)
		cmd.Dir, cmd.SysProcAttr = "/", &syscall.SysProcAttr{Credential: as}
		cmd.Env = []string{"TZ=UTC"}         // initdb would look for the machine's, which takes its time
		for _, entry := range os.Environ() { // nothing that would have them look elsewhere, or be a keeper
			if !strings.HasPrefix(entry, "PG") && !strings.HasPrefix(entry, "TZ=") && !strings.HasPrefix(entry, serverEnv) {
				cmd.Env = append(cmd.Env, entry)
			}
		}
		return cmd
	}
	secret := filepath.Join(dir, "password")
	if err := os.WriteFile(secret, []byte(password+"\n"), 0o600); err != nil {
		return err
	}
	if as != nil {
		if err := errors.Join(os.Chown(dir, int(as.Uid), int(as.Gid)), os.Chown(secret, int(as.Uid), int(as.Gid))); err != nil {
			return err
		}
	}
	initdb := run("initdb", "--pgdata="+data, "--username=postgres", "--auth=password", "--pwfile="+secret, "--encoding=UTF8", "--locale=C", "--no-sync")
	if said, err := initdb.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, said)
	}
	if port, err = freePort(); err != nil {
		return err
	}
	url := "postgres://postgres:" + password + "@127.0.0.1:" + port + "/postgres?sslmode=disable"
	settings := []string{"-D", data, "-p", port, "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=",
		"-c", "fsync=on", "-c", "full_page_writes=on", "-c", "synchronous_commit=on", "-c", "log_min_messages=panic"}
	if runtime.GOOS == "linux" {
		settings = append(settings, "-c", "recovery_init_sync_method=syncfs") // and not each file by itself, which takes seconds
	}
	start := func() (*osexec.Cmd, error) {
		postgres := run("postgres", settings...)
		if err := postgres.Start(); err != nil {
			return nil, err
		}
		return postgres, answers(url)
	}
	end := func(postgres *osexec.Cmd) {
		if postgres != nil {
			_ = postgres.Process.Signal(syscall.SIGQUIT) // immediate
			_ = postgres.Wait()
		}
	}
	postgres, err := start()
	defer func() { end(postgres) }()
	if err != nil {
		return err
	}
	fmt.Println(url)
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		end(postgres)
		if postgres, err = start(); err != nil {
			return err
		}
		fmt.Println("up")
	}
	return nil
}

// unprivileged is whom the server runs as, because PostgreSQL refuses to run as root: nil for the caller.
func unprivileged() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		u, err = user.Lookup("nobody")
	}
	if err != nil {
		return nil, err
	}
	uid, errUID := strconv.ParseUint(u.Uid, 10, 32)
	gid, errGID := strconv.ParseUint(u.Gid, 10, 32)
	if err := errors.Join(errUID, errGID); err != nil {
		return nil, err
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}

func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, err
}

// answers returns when the server can be used.
func answers(url string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for {
		conn, err := pgx.Connect(ctx, url)
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("the server does not answer: %w", err)
		}
	}
}
