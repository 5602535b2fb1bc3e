package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/memstore"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
)

// A store that fails in every way that its contract knows, leases that end while handlers run, handlers that end in every way, and
// clients that ask again and again. Whatever happens, rows and record agree, and nobody is told what is not so (semantics E60).

type restless struct{} // the policy

func (restless) policy() idempotency.Policy {
	return idempotency.Policy{Mode: idempotency.Leased, Lease: 3 * time.Second, Deadline: 8 * time.Second, Wait: 50 * time.Millisecond, MaxAttempts: -1}
}

// dice are rolled from many goroutines.
type dice struct {
	mu sync.Mutex
	r  *rand.Rand
}

func (d *dice) roll(n int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.r.IntN(n)
}

// chaos is what all processes share.
type chaos struct {
	mem *memstore.Store
	dice

	mu    sync.Mutex
	calm  bool
	runs  int
	ran   map[int]*requestctx.Request // the request whose dispatch has run the handler, by run
	given []outcome
}

// outcome is what a client was told.
type outcome struct {
	key string
	req *requestctx.Request
	res paid
	err error
}

func (c *chaos) fault(one int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.calm && c.roll(one) == 0
}

// process makes a stub that fails, and an engine on it.
func (c *chaos) process(t *testing.T) bus.Handler[charge[restless], paid] {
	s := &stub{Store: memstore.NewWithConfig(memstore.Config{Share: c.mem})}
	s.take = func(_ context.Context, _ int, take taking) (idempotency.Lease, *idempotency.Record, error) {
		time.Sleep(time.Duration(c.roll(20)) * time.Millisecond)
		switch {
		case c.fault(10):
			return nil, nil, errDown
		case c.fault(10):
			return nil, nil, fmt.Errorf("memory: %w", idempotency.ErrBusy)
		case c.fault(10):
			return nil, nil, fmt.Errorf("memory: %w", idempotency.ErrSerialization)
		case c.fault(5):
			_, _, err := take()
			return nil, nil, errors.Join(err, idempotency.ErrCommitUnknown)
		}
		return take()
	}
	s.renew = func(ctx context.Context, _ int, renew func() error) error {
		switch {
		case c.fault(2), c.fault(2): // so that leases end
			return errDown
		case c.fault(3):
			<-ctx.Done()
			return ctx.Err()
		}
		return renew()
	}
	s.complete = func(_ context.Context, _ int, complete func() error) error {
		time.Sleep(time.Duration(c.roll(20)) * time.Millisecond)
		switch {
		case c.fault(10):
			return errDown
		case c.fault(10):
			return fmt.Errorf("memory: %w", idempotency.ErrSerialization)
		case c.fault(20):
			return fmt.Errorf("memory: %w", idempotency.ErrTransactionAborted)
		case c.fault(10):
			return idempotency.ErrCommitUnknown
		case c.fault(5):
			return errors.Join(complete(), idempotency.ErrCommitUnknown)
		case c.fault(5): // the packet is still under way
			time.AfterFunc(time.Duration(c.roll(100))*time.Millisecond, func() { _ = complete() })
			return idempotency.ErrCommitUnknown
		}
		return complete()
	}
	s.release = func(_ context.Context, _ int, release func() error) error {
		switch {
		case c.fault(4):
			return errDown
		case c.fault(6):
			return errors.Join(release(), errDown)
		}
		return release()
	}
	s.look = func(ctx context.Context, claim idempotency.Claim) (*idempotency.Record, error) {
		if c.fault(6) {
			return nil, errDown
		}
		return s.Store.Look(ctx, claim)
	}
	e, err := idempotency.New(idempotency.Config{Store: s})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if s.held != 0 {
			t.Errorf("%d leases are left with what they hold", s.held)
		}
	})
	return serveOn(t, e, c.handle)
}

func (c *chaos) handle(ctx context.Context, cmd charge[restless]) (paid, error) {
	c.mu.Lock()
	c.runs++
	run := c.runs
	c.ran[run] = requestctx.From(ctx)
	c.mu.Unlock()
	if c.fault(2) {
		if _, err := idempotency.DownstreamKey(ctx, "psp"); err != nil {
			return paid{}, err
		}
	}
	if c.fault(2) { // as if the process had been frozen for longer than its lease, and with it all others
		c.mem.Age(3 * time.Second)
	}
	patience := time.NewTimer(time.Duration(c.roll(5000)) * time.Millisecond)
	defer patience.Stop()
	select {
	case <-patience.C:
	case <-ctx.Done():
		return paid{}, ctx.Err()
	}
	if err := c.mem.InTx(ctx, func(ctx context.Context) error { return c.mem.Insert(ctx, fmt.Sprint(cmd.Cart, "/", run)) }); err != nil {
		return paid{}, err
	}
	time.Sleep(time.Duration(c.roll(1000)) * time.Millisecond)
	switch {
	case c.fault(8):
		return paid{}, errPaper
	case c.fault(8):
		return paid{}, idempotency.Unknown(errPaper)
	case c.fault(30):
		return paid{}, idempotency.Final(fmt.Errorf("refused in run %d", run))
	case c.fault(20):
		panic(errPaper)
	case c.fault(10):
		return paid{}, fmt.Errorf("insert: %w", idempotency.ErrSerialization)
	}
	return paid{cmd.Cart, run}, nil
}

// ask sends a command as a client would, and keeps what it is told.
func (c *chaos) ask(t *testing.T, send bus.Handler[charge[restless], paid], key string) outcome {
	o := outcome{key: key}
	var ctx context.Context
	ctx, o.req = requestctx.New(t.Context(), keyed(t, key))
	func() {
		defer func() {
			if r := recover(); r != nil {
				o.err = fmt.Errorf("a panic: %v", r)
			}
		}()
		o.res, o.err = send(ctx, charge[restless]{Cart: key})
	}()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.given = append(c.given, o)
	return o
}

func (o *outcome) decided() bool {
	return o.err == nil || errors.As(o.err, new(*idempotency.RefusedError))
}

func TestChaosOfALeasedCommandNeverTearsRowsAndRecordApartAndNeverLies_E60_X08_L09(t *testing.T) {
	t.Parallel()
	states := map[requestctx.State]int{}
	for seed := range uint64(30) {
		synctest.Test(t, func(t *testing.T) {
			c := &chaos{mem: memstore.New(), ran: make(map[int]*requestctx.Request)}
			c.r = rand.New(rand.NewPCG(seed, 1))
			sends := []bus.Handler[charge[restless], paid]{c.process(t), c.process(t), c.process(t)}
			var wg sync.WaitGroup
			for k := range 4 {
				key := fmt.Sprint("key-0000000", k)
				for client := range 6 {
					wg.Go(func() {
						for range 8 {
							o := c.ask(t, sends[(client+c.roll(2))%3], key)
							if o.decided() && c.roll(3) > 0 {
								return
							}
							time.Sleep(time.Duration(c.roll(3000)) * time.Millisecond)
						}
					})
				}
			}
			wg.Wait()
			c.mu.Lock()
			c.calm = true
			c.mu.Unlock()
			time.Sleep(time.Minute) // late packets have arrived, leases are over
			final := map[string]outcome{}
			for k := range 4 {
				key := fmt.Sprint("key-0000000", k)
				o := c.ask(t, sends[0], key)
				if !o.decided() {
					t.Fatalf("seed %d: %s has no outcome when all is calm: %v", seed, key, o.err)
				}
				final[key] = o
			}
			rows := map[int]string{}
			for _, row := range c.mem.Rows() {
				key, number, _ := strings.Cut(row, "/")
				run := 0
				if _, err := fmt.Sscan(number, &run); err != nil {
					t.Fatal(err)
				}
				if _, twice := rows[run]; twice || final[key].err != nil || final[key].res.Run != run {
					t.Errorf("seed %d: the row %s stands, and the outcome is %+v, %v", seed, row, final[key].res, final[key].err)
				}
				rows[run] = key
			}
			for key, o := range final {
				if o.err == nil && rows[o.res.Run] != key {
					t.Errorf("seed %d: %s has the outcome %+v and no row", seed, key, o.res)
				}
			}
			for _, o := range c.given {
				if states[o.req.Outcome().State]++; o.decided() {
					if want := final[o.key]; o.res != want.res || fmt.Sprint(o.err) != fmt.Sprint(want.err) {
						t.Errorf("seed %d: a client of %s was told %+v, %v, and another %+v, %v", seed, o.key, o.res, o.err, want.res, want.err)
					}
				}
			}
			// Who has done the work was not told that it had not been done.
			for run, key := range rows {
				for _, o := range c.given {
					if o.req != c.ran[run] {
						continue
					}
					switch state := o.req.Outcome().State; state {
					case requestctx.StateExecuted, requestctx.StateUnknown:
					default:
						t.Errorf("seed %d: run %d has done the work of %s, and its caller was told %s, %v", seed, run, key, state, o.err)
					}
				}
			}
		})
	}
	for _, s := range []requestctx.State{requestctx.StateExecuted, requestctx.StateReplayed, requestctx.StateInProgress, requestctx.StateFreed, requestctx.StateUnknown, requestctx.StateLost, requestctx.StateRefused} {
		if states[s] == 0 {
			t.Errorf("no client was told %s, so the chaos is too tame: %v", s, states)
		}
	}
	t.Log(states)
}
