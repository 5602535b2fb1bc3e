package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
)

// redraw is how often the bar of a terminal is drawn.
const redraw = 100 * time.Millisecond

// progress shows how far the payments are: a bar on a terminal, and a line for each tenth elsewhere.
type progress struct {
	out   io.Writer
	bar   bool
	total int
	tally *tally
	start time.Time

	mu   sync.Mutex
	done int
	next time.Time // of the bar
}

func newProgress(out io.Writer, total int, t *tally) *progress {
	p := &progress{out: out, total: total, tally: t, start: time.Now()}
	if f, ok := out.(*os.File); ok {
		info, err := f.Stat()
		p.bar = err == nil && info.Mode()&os.ModeCharDevice != 0
	}
	return p
}

// step counts one payment that is done.
func (p *progress) step() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done++
	tenth := p.done*10/p.total > (p.done-1)*10/p.total
	switch now := time.Now(); {
	case p.bar && (now.After(p.next) || p.done == p.total):
		p.next = now.Add(redraw)
		const width = 30
		full := width * p.done / p.total
		fmt.Fprintf(p.out, "\r[%s%s] %s ", strings.Repeat("#", full), strings.Repeat(".", width-full), p.text())
	case !p.bar && tenth:
		fmt.Fprintf(p.out, "%3d %%  %s\n", p.done*100/p.total, p.text())
	}
}

func (p *progress) text() string {
	rate := float64(p.done) / max(time.Since(p.start).Seconds(), 0.001)
	return fmt.Sprintf("%d/%d payments, %d tries, %.0f/s", p.done, p.total, p.tally.tries.Load(), rate)
}

// end leaves the bar's line.
func (p *progress) end() {
	if p.bar {
		fmt.Fprintln(p.out)
	}
}
