//go:build rabbitmq

package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore/pgtest"
)

// rabbitProcess starts a RabbitMQ of the test's own, in its folder and on its ports.
func rabbitProcess(t *testing.T) *process {
	t.Helper()
	server, err := exec.LookPath("/usr/lib/rabbitmq/bin/rabbitmq-server")
	if err != nil {
		t.Fatal("these tests need RabbitMQ; on Debian: apt-get install rabbitmq-server")
	}
	folder, port, mapper := t.TempDir(), freePort(t), freePort(t)
	b := &process{url: fmt.Sprintf("amqp://guest:guest@127.0.0.1:%d/", port)}
	env := append(os.Environ(), "HOME="+folder, fmt.Sprintf("RABBITMQ_NODENAME=tekil%d@localhost", port),
		"RABBITMQ_NODE_IP_ADDRESS=127.0.0.1", fmt.Sprintf("RABBITMQ_NODE_PORT=%d", port), fmt.Sprintf("RABBITMQ_DIST_PORT=%d", freePort(t)),
		"RABBITMQ_MNESIA_BASE="+filepath.Join(folder, "data"), "RABBITMQ_LOG_BASE="+filepath.Join(folder, "log"),
		"RABBITMQ_ENABLED_PLUGINS_FILE="+filepath.Join(folder, "plugins"), "RABBITMQ_CONF_ENV_FILE="+filepath.Join(folder, "none"),
		fmt.Sprintf("ERL_EPMD_PORT=%d", mapper), "ERL_EPMD_ADDRESS=127.0.0.1", "ERL_CRASH_DUMP_SECONDS=0",
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=+S 1:1 +sbwt none +sbwtdcpu none +sbwtdio none") // no spinning beside others
	b.start = func(t *testing.T) *exec.Cmd {
		c := exec.Command(server) // a script, and the server below it
		c.Dir, c.Env, c.SysProcAttr = folder, env, &syscall.SysProcAttr{Setpgid: true}
		startedAt(t, c, port)
		return c
	}
	b.end = func(c *exec.Cmd) error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	t.Cleanup(func() { // the port mapper goes on by itself otherwise; it ends when it has seen that its node is gone
		var out []byte
		for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(pollTime) {
			if out, err = exec.Command("epmd", "-port", fmt.Sprint(mapper), "-kill").CombinedOutput(); err == nil {
				return
			}
		}
		t.Errorf("epmd goes on: %v %s", err, out)
	})
	b.begin(t)
	return b
}

// The same as on NATS.
func TestW02_W05_W08_W13_TheSameOnRabbitMQ(t *testing.T) {
	t.Parallel()
	servers := []string{"-postgres", pgtest.Open(t).URL(), "-rabbitmq", rabbitProcess(t).url}
	for i, flags := range []string{"-messages 30 -duplicate 3 -shuffle -fail-rate 0.2", "-messages 5"} {
		var out bytes.Buffer
		if err := run(within(t), append(strings.Fields(flags), servers...), &out, io.Discard); err != nil {
			t.Fatalf("%v\n%s", err, out.String())
		}
		for name, c := range table(out.String()) {
			if name != "shipping-collected" {
				equal(t, name+", done, dead letters and rows", []int{c[1], c[4], c[5]}, []int{[]int{30, 5}[i], 0, []int{30, 35}[i]})
			}
		}
	}
}

func TestBR16_W02_W05_W08_W13_W15_CrashesOfReceiversAndOfRabbitMQLoseNothingAndDoNothingTwice(t *testing.T) {
	t.Parallel()
	crash(t, rabbitProcess(t), "-rabbitmq")
}
