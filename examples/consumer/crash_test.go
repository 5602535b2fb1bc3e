package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats-server/v2/server"

	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore/pgtest"
)

// How much a run with crashes does. go test ./examples/consumer -run Crash -crash-messages 10000 -crash-kill 2s is the long one.
var (
	crashMessages = flag.Int("crash-messages", 200, "orders of a run with crashes")
	crashKill     = flag.Duration("crash-kill", 500*time.Millisecond, "time between two kills of a receiving process")
	crashTime     = flag.Duration("crash-time", 3*time.Minute, "what such a run may take")
)

// A broker that a test has started as a process of its own, to kill it.
type process struct {
	url   string
	start func(t *testing.T) *exec.Cmd // returns when it takes connections
	end   func(*exec.Cmd) error        // kills it
	cmd   *exec.Cmd
}

// kill ends it without a word, and start brings it back with what it has on its disk.
func (b *process) kill(t *testing.T) {
	t.Helper()
	if err := b.end(b.cmd); err != nil {
		t.Fatal(err)
	}
	_ = b.cmd.Wait()
}

// natsProcess starts a NATS server.
func natsProcess(t *testing.T) *process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	port, folder := freePort(t), t.TempDir()
	b := &process{url: fmt.Sprintf("nats://127.0.0.1:%d", port)}
	b.start = func(t *testing.T) *exec.Cmd {
		c := exec.Command(self)
		c.Env = append(os.Environ(), fmt.Sprintf("%s=%d %s", roleVariable, port, folder))
		c.Stderr = t.Output()
		startedAt(t, c, port)
		return c
	}
	b.end = func(c *exec.Cmd) error { return c.Process.Kill() }
	b.begin(t)
	return b
}

// begin starts it, until the test is over.
func (b *process) begin(t *testing.T) {
	t.Helper()
	b.cmd = b.start(t)
	t.Cleanup(func() { b.kill(t) })
}

// serveNATS is the process of natsProcess.
func serveNATS(role string) {
	port, folder, _ := strings.Cut(role, " ")
	n, _ := strconv.Atoi(port)
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: n, JetStream: true, StoreDir: folder, NoLog: true})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	s.Start()
	s.WaitForShutdown()
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// startedAt starts a process and waits until it takes connections.
func startedAt(t *testing.T, c *exec.Cmd, port int) {
	t.Helper()
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(patience); ; {
		conn, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", port), time.Second)
		if err == nil {
			conn.Close()
			return
		}
		if time.Now().After(deadline) {
			_ = c.Process.Kill()
			t.Fatalf("%s does not start: %v", filepath.Base(c.Path), err)
		}
		time.Sleep(pollTime)
	}
}

// Four processes receive, one is killed now and then, and the broker is killed once: nothing is lost, nothing is done twice and
// nothing is set aside. What there is, is counted in the database.
func TestBR16_W02_W05_W08_W13_W15_CrashesOfReceiversAndOfNATSLoseNothingAndDoNothingTwice(t *testing.T) {
	t.Parallel()
	crash(t, natsProcess(t), "-nats")
}

func crash(t *testing.T, b *process, flag string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), *crashTime)
	defer cancel()
	url := pgtest.Open(t).URL()
	var out bytes.Buffer
	ended := make(chan error, 1)
	begun := time.Now()
	go func() {
		ended <- run(ctx, []string{"-messages", strconv.Itoa(*crashMessages), "-duplicate", "3", "-shuffle", "-replicas", "4",
			"-kill", crashKill.String(), "-postgres", url, flag, b.url}, &out, io.Discard)
	}()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	count := func(query string) (n int) {
		t.Helper()
		if err := conn.QueryRow(ctx, query).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	// The tables are there when the program has made them, and a third of the work is done when the broker goes.
	for count(`SELECT count(to_regclass('mails'))`) == 0 || count(`SELECT count(*) FROM mails`) < *crashMessages/3 {
		select {
		case err := <-ended:
			t.Fatalf("it has ended before the broker was killed: %v\n%s", err, out.String())
		case <-time.After(pollTime):
		}
	}
	b.kill(t)
	b.cmd = b.start(t)
	if err := <-ended; err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	t.Logf("%v\n%s", time.Since(begun).Round(time.Second), out.String())
	for what, query := range map[string]string{
		"orders":                              `SELECT count(*) FROM orders`,
		"orders with a mail":                  `SELECT count(DISTINCT order_id) FROM mails`,
		"mails":                               `SELECT count(*) FROM mails`,
		"orders with an invoice":              `SELECT count(DISTINCT order_id) FROM invoices`,
		"invoices":                            `SELECT count(*) FROM invoices`,
		"shipments":                           `SELECT count(*) FROM shipments`,
		"shipments in the state of the order": `SELECT count(*) FROM shipments s JOIN orders o USING (order_id) WHERE (s.state = 'closed') = o.collected`,
	} {
		equal(t, what, count(query), *crashMessages)
	}
	printed := table(out.String())
	for name, c := range printed {
		equal(t, name+", dead letters", c[4], 0)
	}
	if c := printed["mailer"]; c[0] <= *crashMessages {
		t.Errorf("the mailer was not sent the events three times:\n%s", out.String())
	}
	if !strings.Contains(out.String(), "\nkilled") || strings.Contains(out.String(), "\nkilled          0\n") {
		t.Errorf("no process was killed:\n%s", out.String())
	}
}
