package main

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"time"
)

// restartTime is how long a process that has ended by itself is not started again, so that one that cannot run does not fill the log.
const restartTime = 500 * time.Millisecond

// others are the processes of -replicas.
type others struct {
	p       *program
	ctx     context.Context // ends when no process is to be started any more
	mu      sync.Mutex
	running map[*exec.Cmd]io.Closer // with its standard input
}

// startOthers starts the processes that receive, and starts another for each that ends. The function that it returns ends them all.
func (p *program) startOthers() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	o := &others{p: p, ctx: ctx, running: map[*exec.Cmd]io.Closer{}}
	var all sync.WaitGroup
	for range p.replicas {
		all.Go(func() {
			for ctx.Err() == nil {
				if err := o.run(); err != nil && ctx.Err() == nil {
					p.log.Error("a process ended", "error", err)
					select {
					case <-time.After(restartTime):
					case <-ctx.Done():
					}
				}
			}
		})
	}
	if p.kill > 0 {
		all.Go(o.kill)
	}
	return func() {
		cancel()
		o.mu.Lock()
		for _, in := range o.running {
			in.Close()
		}
		o.mu.Unlock()
		all.Wait()
	}
}

// run runs a process to its end, and enters what it has counted. That it was killed is no error.
func (o *others) run() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	s := o.p.settings
	args := []string{"-consume", "-counts", "-fail-rate", strconv.FormatFloat(s.failRate, 'g', -1, 64)}
	for flag, value := range map[string]string{"-postgres": s.postgres, "-sqlite": s.sqlite, "-nats": s.nats, "-rabbitmq": s.rabbitmq} {
		if value != "" {
			args = append(args, flag, value)
		}
	}
	if s.metrics != "" {
		host, _, _ := net.SplitHostPort(s.metrics)                   // which parse has seen
		args = append(args, "-metrics", net.JoinHostPort(host, "0")) // it says its port on standard error
	}
	c := exec.Command(self, args...)
	c.Stderr = o.p.stderr
	in, err := c.StdinPipe()
	if err != nil {
		return err
	}
	out, err := c.StdoutPipe()
	if err != nil {
		return err
	}
	o.mu.Lock()
	if err = o.ctx.Err(); err == nil {
		if err = c.Start(); err == nil {
			o.running[c] = in
		}
	}
	o.mu.Unlock()
	if err != nil {
		return err
	}
	var last counts
	for lines := json.NewDecoder(out); ; {
		var c counts
		if lines.Decode(&c) != nil { // the end, or a line that was cut by it
			break
		}
		last = c
	}
	err = c.Wait()
	o.p.books.addAll(last)
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, still := o.running[c]; !still {
		return nil // killed
	}
	delete(o.running, c)
	return err
}

// kill kills one of the processes now and then.
func (o *others) kill() {
	tick := time.NewTicker(o.p.settings.kill)
	defer tick.Stop()
	for {
		select {
		case <-o.ctx.Done():
			return
		case <-tick.C:
		}
		o.mu.Lock()
		for c := range o.running { // in no order, so this is any of them
			if c.Process.Kill() == nil {
				delete(o.running, c)
				o.p.killed++
			}
			break
		}
		o.mu.Unlock()
	}
}
