//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package pgtest

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// The directory of a cluster holds three locks, which are empty files, and the server:
//
//	users     shared: a test that uses the server; exclusive: the keeper, when it ends the server
//	door      exclusive: whoever starts the server; one at a time
//	keeper    exclusive: the living keeper
//	state     where the server is: there while it can be used
//	data-…    the server's data
//	log       the server's log
//
// The locks are of the kind flock, which belongs to an open file and goes when its last descriptor is closed, by the
// kernel where a process is killed.
const (
	usersLock  = "users"
	doorLock   = "door"
	keeperLock = "keeper"
	stateFile  = "state"
	logFile    = "log"
)

const (
	// envKeeper makes a test binary a keeper. Its value is the cluster in JSON.
	envKeeper = "TEKIL_PGTEST_KEEPER"
	// linger is how long the server waits for another test when the last one has ended: the tests of one package, and
	// the packages of one run, do not follow each other without a gap.
	linger = 2 * time.Second
	// startTimeout is how long the server may take to answer.
	startTimeout = time.Minute
	// stopTimeout is how long the server may take to end.
	stopTimeout = 10 * time.Second
)

// state is what a test has to know about a running server.
type state struct {
	Port     int
	Password string
	Data     string // the data directory
	Keeper   int    // process id
}

func (s state) url() string {
	return fmt.Sprintf("postgres://postgres:%s@127.0.0.1:%d/postgres?sslmode=disable", s.Password, s.Port)
}

func (c cluster) path(name string) string { return filepath.Join(c.Dir, name) }

// join returns the address of the running server, which it starts where there is none, and holds it until release.
func (c cluster) join() (address string, release func(), err error) {
	users, err := c.enter()
	if err != nil {
		return "", nil, err
	}
	s, err := c.server()
	if err != nil {
		_ = users.Close()
		return "", nil, err
	}
	return s.url(), func() { _ = users.Close() }, nil
}

// enter makes the directory and takes the shared lock of a user. It waits while a keeper ends the server. That keeper
// removes the directory too, so a lock that is then got on a file that is no more is worth nothing.
func (c cluster) enter() (*os.File, error) {
	for {
		if err := os.Mkdir(c.Dir, 0o711); err != nil && !errors.Is(err, os.ErrExist) {
			return nil, err
		}
		if err := ownDirectory(c.Dir); errors.Is(err, os.ErrNotExist) {
			continue
		} else if err != nil {
			return nil, err
		}
		users, err := lock(c.path(usersLock), syscall.LOCK_SH)
		if errors.Is(err, os.ErrNotExist) {
			continue
		} else if err != nil {
			return nil, err
		}
		if sameFile(users, c.path(usersLock)) {
			return users, nil
		}
		_ = users.Close()
	}
}

// server finds the server or has a keeper start it. The caller holds the users' lock, so it cannot be ended meanwhile.
func (c cluster) server() (state, error) {
	door, err := lock(c.path(doorLock), syscall.LOCK_EX)
	if err != nil {
		return state{}, err
	}
	defer door.Close()
	s, err := c.running()
	if err == nil || !errors.Is(err, os.ErrNotExist) {
		return s, err
	}
	report, err := c.startKeeper(door)
	if err != nil {
		return state{}, err
	}
	s, err = c.running()
	if errors.Is(err, os.ErrNotExist) {
		return state{}, fmt.Errorf("the server did not start: %s", report)
	}
	return s, err
}

// running reads the state that a living keeper vouches for. It is os.ErrNotExist where there is none.
func (c cluster) running() (state, error) {
	text, err := os.ReadFile(c.path(stateFile))
	if err != nil {
		return state{}, err
	}
	// A lock that can be had is one that no keeper holds: it was killed, and what it left is for the next one to clear.
	keeper, err := lock(c.path(keeperLock), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		_ = keeper.Close()
		return state{}, os.ErrNotExist
	}
	if !errors.Is(err, syscall.EWOULDBLOCK) {
		return state{}, err
	}
	var s state
	return s, json.Unmarshal(text, &s)
}

// startKeeper starts the keeper and waits until the server can be used. It returns what the keeper has to say, which
// is nothing where all is well. The keeper gets the door's lock too: should this process be killed now, nobody else
// comes in before the server is up.
func (c cluster) startKeeper(door *os.File) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	spec, err := json.Marshal(c)
	if err != nil {
		return "", err
	}
	out, in, err := os.Pipe()
	if err != nil {
		return "", err
	}
	defer out.Close()
	// Nothing of this process's output may be inherited: "go test" waits for its end.
	keeper := exec.Command(self)
	keeper.Args = []string{"tekil-pgtest-keeper", c.Dir}
	keeper.Env = append(serverEnviron(), envKeeper+"="+string(spec))
	keeper.Dir = "/"
	keeper.ExtraFiles = []*os.File{door, in}
	keeper.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // an interrupt at the terminal is for the tests
	err = keeper.Start()
	_ = in.Close()
	if err != nil {
		return "", err
	}
	if err := keeper.Process.Release(); err != nil {
		return "", err
	}
	report, err := io.ReadAll(out)
	return string(report), err
}

// init is where a test binary that was started as keeper becomes one, before any test.
func init() {
	spec, ok := os.LookupEnv(envKeeper)
	if !ok {
		return
	}
	var c cluster
	if err := json.Unmarshal([]byte(spec), &c); err != nil {
		os.Exit(2)
	}
	const door, report = 3, 4
	syscall.CloseOnExec(door) // or the server would hold them as long as it lives
	syscall.CloseOnExec(report)
	os.Exit(c.keep(os.NewFile(door, doorLock), os.NewFile(report, "report")))
}

// keep is the keeper's life: clear what a killed one left, start the server, wait until nobody uses it, end it.
func (c cluster) keep(door, report *os.File) int {
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	alive, err := lock(c.path(keeperLock), syscall.LOCK_EX)
	if err != nil {
		_, _ = fmt.Fprint(report, err)
		return 1
	}
	defer alive.Close()
	c.clear()
	server, err := c.start()
	if err != nil {
		_, _ = fmt.Fprint(report, err)
		return 1
	}
	_ = report.Close()
	_ = door.Close()

	unused := make(chan *os.File)
	go func() { unused <- c.unused() }()
	select {
	case <-server.ended:
		// It should not have. Its log is left for whoever wants to know why; the next test starts another server.
		_ = os.Remove(c.path(stateFile))
		return 1
	case <-asked:
		_ = os.Remove(c.path(stateFile))
		server.stop()
		return 1
	case users := <-unused:
		defer users.Close()
		_ = os.Remove(c.path(stateFile))
		server.stop()
		c.remove()
		return 0
	}
}

// remove removes the directory. It gives it another name first: whoever comes in meanwhile makes a new one, and what is put into that
// one is not taken for what was left in the old.
func (c cluster) remove() {
	gone := c.Dir + "-" + rand.Text()
	if os.Rename(c.Dir, gone) == nil {
		_ = os.RemoveAll(gone)
	}
}

// unused returns when the server has been unused for the time linger. It returns the users' lock, so that nobody can come
// in. Where locks cannot be had any more it returns nil: then nobody can count, and the server ends too.
func (c cluster) unused() *os.File {
	for {
		users, err := lock(c.path(usersLock), syscall.LOCK_EX)
		if err != nil {
			return nil
		}
		_ = users.Close()
		<-time.After(linger)
		users, err = lock(c.path(usersLock), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return users
		}
	}
}

// clear removes what a killed keeper left. A server that answers to the old password is certainly the old one and is
// stopped; one that does not answer may be anybody's by now, and ends by itself when it finds its data gone.
func (c cluster) clear() {
	var old state
	if text, err := os.ReadFile(c.path(stateFile)); err == nil && json.Unmarshal(text, &old) == nil {
		ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
		defer cancel()
		if conn, err := pgx.Connect(ctx, old.url()); err == nil {
			if pid, err := postmaster(old.Data); err == nil {
				_ = syscall.Kill(pid, syscall.SIGQUIT)
			}
			_ = conn.PgConn().Conn().SetReadDeadline(time.Now().Add(stopTimeout))
			_, _ = io.Copy(io.Discard, conn.PgConn().Conn()) // until the server is gone
		}
	}
	left, _ := filepath.Glob(c.path("data-*"))
	for _, path := range append(left, c.path(stateFile), c.path(logFile)) {
		_ = os.RemoveAll(path)
	}
}

// postmaster is the process id of the server of that data directory.
func postmaster(data string) (int, error) {
	text, err := os.ReadFile(filepath.Join(data, "postmaster.pid"))
	if err != nil {
		return 0, err
	}
	first, _, _ := strings.Cut(string(text), "\n")
	return strconv.Atoi(first)
}

// process is a running server.
type process struct {
	*os.Process
	ended chan struct{}
}

// stop ends the server without a farewell to its data, and waits.
func (p process) stop() {
	_ = p.Signal(syscall.SIGQUIT)
	select {
	case <-p.ended:
	case <-time.After(stopTimeout):
		_ = p.Kill()
		<-p.ended
	}
}

// start makes the data directory, starts the server in it and writes the state.
func (c cluster) start() (process, error) {
	who, err := c.account()
	if err != nil {
		return process{}, err
	}
	s := state{Password: rand.Text(), Keeper: os.Getpid()}
	if s.Data, err = c.initdb(who, s.Password); err != nil {
		return process{}, err
	}
	// The port is free when it is chosen. Should somebody take it before the server does, another one is tried.
	var server process
	for range 3 {
		if s.Port, err = freePort(); err != nil {
			return process{}, err
		}
		if server, err = c.postgres(who, s); err == nil {
			break
		}
	}
	if err != nil {
		return process{}, err
	}
	text, err := json.Marshal(s)
	if err == nil {
		err = os.WriteFile(c.path(stateFile)+".new", text, 0o600)
	}
	if err == nil {
		err = os.Rename(c.path(stateFile)+".new", c.path(stateFile))
	}
	if err != nil {
		server.stop()
		return process{}, err
	}
	return server, nil
}

func (c cluster) initdb(who account, password string) (string, error) {
	data, err := os.MkdirTemp(c.Dir, "data-")
	if err != nil {
		return "", err
	}
	secret, err := os.CreateTemp(c.Dir, "password-")
	if err != nil {
		return "", err
	}
	defer os.Remove(secret.Name())
	_, err = secret.WriteString(password + "\n")
	if err := errors.Join(err, secret.Close(), who.give(data), who.give(secret.Name())); err != nil {
		return "", err
	}
	// The password travels over the loopback only, so it need not be hidden from the wire, and plain is the fastest.
	out, err := who.command(filepath.Join(c.Binaries, "initdb"), "--pgdata="+data, "--username=postgres", "--auth=password",
		"--pwfile="+secret.Name(), "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("initdb%s: %w\n%s", who, err, bytes.TrimSpace(out))
	}
	return data, nil
}

// postgres starts the server and waits until it can be used.
func (c cluster) postgres(who account, s state) (process, error) {
	log, err := os.OpenFile(c.path(logFile), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return process{}, err
	}
	defer log.Close()
	durable := "off"
	if c.Fsync {
		durable = "on"
	}
	server := who.command(filepath.Join(c.Binaries, "postgres"), "-D", s.Data,
		"-c", "listen_addresses=127.0.0.1",
		"-c", "port="+strconv.Itoa(s.Port),
		"-c", "unix_socket_directories=",
		"-c", "max_connections=300",
		"-c", "max_prepared_transactions=0",
		"-c", "client_connection_check_interval=2s",
		"-c", "synchronous_commit=on",
		"-c", "fsync="+durable,
		"-c", "full_page_writes="+durable,
	)
	server.Stdout, server.Stderr = log, log
	if err := server.Start(); err != nil {
		return process{}, fmt.Errorf("postgres%s: %w", who, err)
	}
	p := process{Process: server.Process, ended: make(chan struct{})}
	go func() {
		_ = server.Wait()
		close(p.ended)
	}()
	if err := p.ready(s.url()); err != nil {
		p.stop()
		said, _ := os.ReadFile(c.path(logFile))
		return process{}, fmt.Errorf("postgres%s: %w\n%s", who, err, bytes.TrimSpace(said))
	}
	return p, nil
}

// ready returns when the server answers.
func (p process) ready(address string) error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for {
		conn, err := pgx.Connect(ctx, address)
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-again.C:
		case <-p.ended:
			return errors.New("the server ended at once")
		case <-ctx.Done():
			return fmt.Errorf("the server does not answer: %w", err)
		}
	}
}

// account is whom the server runs as. The zero account is the caller.
type account struct {
	name       string
	credential *syscall.Credential
}

// account is the caller, or, because PostgreSQL refuses to run as root, the first account that root can run it under.
func (c cluster) account() (account, error) {
	if os.Geteuid() != 0 {
		return account{}, nil
	}
	failed := errors.New("root must run PostgreSQL under another account, and neither postgres nor nobody will do")
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		uid, errUID := strconv.ParseInt(u.Uid, 10, 64)
		gid, errGID := strconv.ParseInt(u.Gid, 10, 64)
		if err := errors.Join(errUID, errGID); err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		// Some containers forbid setgroups, and there root's own groups must be kept.
		for _, noSetGroups := range []bool{false, true} {
			who := account{name, &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid), NoSetGroups: noSetGroups}}
			if err = who.command(filepath.Join(c.Binaries, "postgres"), "--version").Run(); err == nil {
				return who, nil
			}
		}
		failed = errors.Join(failed, fmt.Errorf("%s: %w", name, err))
	}
	return account{}, failed
}

// String is what a message adds to the name of a program.
func (a account) String() string {
	if a.credential == nil {
		return ""
	}
	return " as " + a.name
}

// give makes the account the owner of a file.
func (a account) give(path string) error {
	if a.credential == nil {
		return nil
	}
	return os.Chown(path, int(a.credential.Uid), int(a.credential.Gid))
}

// command is the command to run a program of PostgreSQL under the account.
func (a account) command(path string, args ...string) *exec.Cmd {
	cmd := exec.Command(path, args...)
	cmd.Env = serverEnviron()
	cmd.Dir = "/" // a directory that every account may be in
	if a.credential != nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: a.credential}
	}
	return cmd
}

// serverEnviron is the environment without what would make PostgreSQL's programs look elsewhere, speak another language,
// or be a keeper again.
func serverEnviron() []string {
	var kept []string
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, "PG") && !strings.HasPrefix(entry, "LC_") && !strings.HasPrefix(entry, envKeeper) {
			kept = append(kept, entry)
		}
	}
	return append(kept, "LC_ALL=C")
}

// freePort is a port of 127.0.0.1 that nobody uses now.
func freePort() (int, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	return listener.Addr().(*net.TCPAddr).Port, listener.Close()
}

// ownDirectory makes sure that path is a directory of the caller's own: the directory for temporary files is everybody's,
// and another user could have put something of that name there. The account of the server must be able to pass through it.
func ownDirectory(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || !ok || int(owner.Uid) != os.Getuid() {
		return fmt.Errorf("%s is not a directory of this user", path)
	}
	if info.Mode().Perm()&0o711 != 0o711 {
		return os.Chmod(path, info.Mode().Perm()|0o711)
	}
	return nil
}

// lock opens the file and takes the lock. It waits unless how says LOCK_NB.
func lock(path string, how int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err = syscall.Flock(int(f.Fd()), how)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// sameFile reports whether path is still the file that f is.
func sameFile(f *os.File, path string) bool {
	a, err := f.Stat()
	if err != nil {
		return false
	}
	b, err := os.Stat(path)
	return err == nil && os.SameFile(a, b)
}
