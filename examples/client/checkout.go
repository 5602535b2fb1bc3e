package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

const (
	checkoutPackage = "github.com/tekil-go/tekil/examples/checkout"

	// startTime is how long a checkout may take until it answers.
	startTime = 30 * time.Second

	buildHelp = "start a checkout yourself, for example by go run ./examples/checkout in the folder of the module, and name it by -url http://127.0.0.1:8080"
)

// checkout is the server as a process that is started here.
type checkout struct {
	base    string
	command func() *exec.Cmd
	log     string // file of its standard error
	kills   int    // for reading after watch has ended
	running *exec.Cmd
	ended   chan struct{} // closed when running has ended
}

// startCheckout builds the checkout into folder, unless it is there as program, and starts it with the flags of a database.
func startCheckout(ctx context.Context, folder, program string, database []string) (*checkout, error) {
	if program == "" {
		program = filepath.Join(folder, "checkout.exe") // the ending is needed on Windows alone
		if out, err := exec.CommandContext(ctx, "go", "build", "-o", program, checkoutPackage).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("the checkout cannot be built: %w\n%s%s", err, out, buildHelp)
		}
	}
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	c := &checkout{base: "http://" + address, log: filepath.Join(folder, "checkout.log")}
	c.command = func() *exec.Cmd {
		cmd := exec.Command(program, append([]string{"-addr", address}, database...)...)
		cmd.SysProcAttr = childAttributes()
		return cmd
	}
	if err := c.start(ctx); err != nil {
		c.stop()
		return nil, err
	}
	return c, nil
}

// freeAddress gives an address that stays the checkout's while it is dead. Its port is below those that systems give to outgoing
// connections, or one of ours could take it meanwhile.
func freeAddress() (string, error) {
	var err error
	for range 100 {
		address := fmt.Sprintf("127.0.0.1:%d", 20000+rand.IntN(12000))
		var l net.Listener
		if l, err = net.Listen("tcp", address); err == nil {
			return address, l.Close()
		}
	}
	return "", fmt.Errorf("no port is free for the checkout: %w", err)
}

// start starts the process and waits until it answers.
func (c *checkout) start(ctx context.Context) error {
	file, err := os.OpenFile(c.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	cmd := c.command()
	cmd.Stderr = file
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("the checkout cannot be started: %w\n%s", err, buildHelp)
	}
	ended := make(chan struct{})
	c.running, c.ended = cmd, ended
	go func() {
		defer close(ended)
		_ = cmd.Wait()
	}()
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	for healthy(ctx, c.base) != nil {
		select {
		case <-ended:
			return fmt.Errorf("the checkout ended at its start: %v\n%s", cmd.ProcessState, c.lastWords())
		case <-ctx.Done():
			return fmt.Errorf("the checkout does not answer: %w\n%s", ctx.Err(), c.lastWords())
		case <-time.After(10 * time.Millisecond):
		}
	}
	return nil
}

// lastWords are the last lines of its log.
func (c *checkout) lastWords() string {
	data, _ := os.ReadFile(c.log)
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	return strings.Join(lines[max(0, len(lines)-4):], "\n")
}

// stop kills the process. It has nothing to finish: what it keeps survives that, which is what this program shows.
func (c *checkout) stop() {
	if c.running == nil {
		return
	}
	_ = c.running.Process.Kill()
	<-c.ended
}

// watch kills the process each time it has run for d, and starts it again, until the function that it returns is called; then the
// process runs. With 0 it kills nothing. It gives fail the reason where the process ends by itself or does not come back.
func (c *checkout) watch(ctx context.Context, d time.Duration, fail context.CancelCauseFunc) (end func()) {
	enough, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			var due <-chan time.Time
			if d > 0 {
				due = time.After(d)
			}
			select {
			case <-ctx.Done():
				return
			case <-enough:
				return
			case <-c.ended:
				fail(errors.New("the checkout has ended by itself\n" + c.lastWords()))
				return
			case <-due:
			}
			c.stop()
			c.kills++
			if err := c.start(ctx); err != nil {
				fail(err)
				return
			}
		}
	}()
	return func() {
		close(enough)
		<-ended
	}
}

// healthy asks the checkout whether it is well.
func healthy(ctx context.Context, base string) error {
	ctx, cancel := context.WithTimeout(ctx, perTry)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/healthz", nil)
	if err != nil {
		return err
	}
	transport := &http.Transport{DisableKeepAlives: true}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("GET /healthz has the status %d", resp.StatusCode)
	}
	return nil
}
