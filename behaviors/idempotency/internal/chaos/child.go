package chaos

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"sync/atomic"
)

// childEnv makes a test binary a child of a run. Its value is what the child has to know, in JSON.
const childEnv = "TEKIL_CHAOS_CHILD"

type task struct {
	Address, Outside string
	Number           int64
	Reached          map[string]int // see progress
}

// Child must be called in an init function of every test package that calls [Run]. Where the process is a child of a run, it
// does not return.
func Child(open func(address string) (*Door, error)) {
	text, ok := os.LookupEnv(childEnv)
	if !ok {
		return
	}
	fmt.Fprintln(os.Stderr, "chaos: the child has ended:", serveChild([]byte(text), open))
	os.Exit(1)
}

func serveChild(text []byte, open func(address string) (*Door, error)) error {
	var t task
	if err := json.Unmarshal(text, &t); err != nil {
		return err
	}
	door, err := open(t.Address)
	if err != nil {
		return err
	}
	// One write for each line, so that a line is there whole or not at all when the process is killed; and what a client begins
	// is written before it begins.
	say := func(v any) {
		line, err := json.Marshal(v)
		if err == nil {
			_, err = os.Stdout.Write(append(line, '\n'))
		}
		if err != nil { // the parent is gone
			os.Exit(1)
		}
	}
	n, err := newNode(door, t.Number, t.Reached, t.Outside, func(d dispatch) { say(d) })
	if err != nil {
		return err
	}
	say(dispatch{}) // ready
	for range clientsOfChild {
		go n.client(context.Background(), 0, groups)
	}
	select {} // until it is killed
}

// child has a child process at work until ctx ends: it is stopped for a while, as a process is that hangs, and killed, and another
// one begins.
func (r *run) child(ctx context.Context) {
	for ctx.Err() == nil {
		if err := r.oneChild(ctx); err != nil {
			r.t.Errorf("a child process: %v", err)
			return
		}
	}
}

func (r *run) oneChild(ctx context.Context) error {
	t := task{Address: r.site.Address, Outside: r.provider.url, Number: r.next.Add(1), Reached: r.node.reached()}
	text, err := json.Marshal(t)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	var stderr bytes.Buffer
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), childEnv+"="+string(text))
	cmd.Stderr = &stderr
	apart(cmd)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	ready, ended := make(chan struct{}), make(chan error, 1)
	var returned atomic.Int64
	go func() { ended <- r.listen(bufio.NewReader(out), ready, &returned) }()
	select {
	case <-ready:
		r.torment(ctx, cmd.Process, &returned)
	case <-ctx.Done():
	}
	_ = cmd.Process.Kill()
	err = <-ended // Wait closes the pipe, so what was said is read first
	_ = cmd.Wait()
	r.hit("processes killed", 1)
	if stderr.Len() > 0 { // a report of the race detector, a panic
		return fmt.Errorf("it said:\n%s", stderr.Bytes())
	}
	return err
}

// torment returns when it is time to kill.
func (r *run) torment(ctx context.Context, p *os.Process, returned *atomic.Int64) {
	if !wait(ctx, returned, 30) || roll(30) {
		return
	}
	if stop(p) == nil {
		r.hit("processes stopped for a while", 1)
	}
	pause(ctx, between(20*ms, 150*ms))
	_ = resume(p)
	wait(ctx, returned, 30)
}

// listen keeps what a child says until there is no more.
func (r *run) listen(lines *bufio.Reader, ready chan<- struct{}, returned *atomic.Int64) error {
	for first := true; ; first = false {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			if len(line) > 0 {
				return fmt.Errorf("half a line: %q", line)
			}
			return nil
		}
		var d dispatch
		if err := json.Unmarshal(line, &d); err != nil {
			return fmt.Errorf("%q: %w", line, err)
		}
		if first {
			close(ready)
			continue
		}
		r.keep(d)
		if d.Return != 0 {
			returned.Add(1)
		}
	}
}
