// Package chaos runs many clients against a store of records while everything goes wrong that can be made to go wrong, and checks
// what came of it: no intent was done twice, the records and the business rows say the same, and what the callers were told is
// true. It is for the tests of the stores alone.
//
// Together with the store's commands a completion by hand that does not ask whose the key is runs under the same misfortunes (the
// group "unguarded"). The checks must find it guilty in the same run, or they would prove nothing about the others.
//
// A run is a storm and a calm. In the storm, clients of this process and of child processes send commands whose handlers are slow,
// fail, panic or do not know; leases last some tens of milliseconds and some of them are never renewed; processes are killed and
// stopped; records are purged, released and moved in time; and whatever else the store's test brings (killed sessions, lost
// packets, a crash of the server). In the calm, every key is sent until it is answered.
//
// The storm is short, so that it runs in every test run. A long one is had by a flag of the test binaries:
//
//	go test -race -run Chaos -v ./behaviors/idempotency/pgstore -chaos 60s
//
// The clock of a database cannot be moved by a test. What is moved instead is what it is compared with, the times in the records,
// which is the same thing to a guard that compares the two.
package chaos

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/tekil-go/tekil/behaviors/idempotency"
)

var storm = flag.Duration("chaos", 3*time.Second, "how long the storm of each chaos test lasts")

// Order is a business row.
type Order struct {
	// ID names the dispatch that made it and the run of its handler.
	ID string
	// Group is the command's name.
	Group   string
	Key     string
	Payload int
	// Life is when the life of the key began in which it was made, as the record says; empty where there is no record.
	Life string
}

// Record is a stored record, of the store's or of the unguarded kind.
type Record struct {
	Group, Key string
	Life       string // as in an Order
	Completed  bool
	Refused    bool
	// Result is the stored result, nil where it is not kept.
	Result []byte
}

func (r Record) String() string {
	return fmt.Sprintf("{%s %s %s completed %t refused %t %s}", r.Group, r.Key, r.Life, r.Completed, r.Refused, r.Result)
}

// Door is what one process does with the database.
type Door struct {
	Store idempotency.Store
	InTx  func(ctx context.Context, fn func(context.Context) error) error
	// Insert writes a business row through the command's transaction. The row's life is that of the record with the id, or empty.
	Insert    func(ctx context.Context, o Order, record idempotency.ID) error
	Unguarded Unguarded
	// Hold is how long handlers hold their transaction open at most, because that is what the others wait for.
	Hold  time.Duration
	Close func()
}

// Unguarded is a lease as it is often written by hand.
type Unguarded interface {
	// Claim takes a key that is new, or whose lease is over, and commits that. Otherwise it says what stands there.
	Claim(ctx context.Context, key string, payload int, lease time.Duration) (Claimed, error)
	// Finish writes the business row and marks the key as completed, whoever has it by now, in one transaction.
	Finish(ctx context.Context, o Order) error
}

// Claimed is what an unguarded claim has met.
type Claimed struct {
	Mine    bool
	Payload int
	Order   string // of a completed one
}

// UnguardedName is the group of the unguarded kind, and what its rows and records bear.
const UnguardedName = "chaos.unguarded"

// Site is a database under attack.
type Site struct {
	// Open opens the database of that address, in this process and in children, which call [Child] for it. It does not connect yet.
	Open    func(address string) (*Door, error)
	Address string
	// Orders and Records give all there are.
	Orders  func(ctx context.Context) ([]Order, error)
	Records func(ctx context.Context) ([]Record, error)
	// Stuck gives any record that is not completed.
	Stuck func(ctx context.Context) (idempotency.ID, error)
	// Faults are what else goes wrong.
	Faults []Fault
	// Crash crashes the server, in the middle of the storm, and starts it again. Nil where there is none.
	Crash func() error
	// Settle is called after the storm. When it returns, nothing of what the storm has left is on its way any more.
	Settle func(ctx context.Context) error
}

// Fault is one kind of misfortune.
type Fault struct {
	Name string
	// Every is the mean number of dispatches between two of them: on a busy machine fewer things go wrong in the same time.
	Every int
	// Do makes one and counts what it hit. The end of ctx is that of the storm: it ends waiting, and should break no statement off.
	// Errors are part of the chaos, unless there is nothing else.
	Do func(ctx context.Context) (hits int, err error)
}

// The clients of a run: some engines in this process, each of which is a process of its own as far as the store can tell, and some
// child processes.
const (
	engines         = 3
	clientsOfEngine = 2
	children        = 2
	clientsOfChild  = 3
)

// run is one run.
type run struct {
	t        *testing.T
	site     Site
	began    time.Time
	node     *node
	provider *provider
	admin    *idempotency.Admin
	next     atomic.Int64 // the number of the next child

	returned atomic.Int64 // how many dispatches have returned

	mu      sync.Mutex
	history []dispatch
	at      map[int64]int // where in it the dispatch of that number is
	hits    map[string]int
}

// Run storms the site, and reports every broken promise of the guarded commands, and an unguarded one that keeps its promises.
func Run(t *testing.T, site Site) {
	r := &run{t: t, site: site, began: time.Now(), at: make(map[int64]int), hits: make(map[string]int)}
	r.provider = newProvider(t)
	door, err := site.Open(site.Address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(door.Close)
	if r.node, err = newNode(door, 0, make(map[string]int), r.provider.url, r.keep); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.node.close)
	if r.admin, err = idempotency.NewAdmin(idempotency.AdminConfig{Store: door.Store, Logger: zap.NewNop()}); err != nil {
		t.Fatal(err)
	}
	r.storm(*storm, children, groups, site.Crash)
	for range 10 { // on a busy machine little may have happened
		r.settle()
		missing := r.missing()
		if len(missing) == 0 {
			break
		}
		r.storm(*storm/3, 0, missing, nil)
	}
	r.calm()
	r.report()
}

// keep adds to the history what a client says at the beginning and again at the end of a dispatch.
func (r *run) keep(d dispatch) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if i, ok := r.at[d.ID]; ok {
		r.history[i] = d
		r.returned.Add(1)
		return
	}
	r.at[d.ID] = len(r.history)
	r.history = append(r.history, d)
}

func (r *run) hit(name string, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hits[name] += n
}

// missing gives the groups that have not yet shown what the storm is for: the control has to be found at fault, and among the
// others there have to be takeovers, and attempts that came too late.
func (r *run) missing() []*group {
	if !r.verdict(unguarded).guilty() {
		return []*group{unguarded}
	}
	takeovers, stale := 0, 0
	for i := range r.history {
		takeovers += r.history[i].TookOver
		stale += r.history[i].Stale
	}
	if takeovers == 0 || stale == 0 {
		return groups
	}
	return nil
}

// storm lets the clients, which use some of the groups, and the faults loose for a time.
func (r *run) storm(length time.Duration, children int, of []*group, crash func() error) {
	ctx, cancel := context.WithTimeout(context.Background(), length)
	defer cancel()
	var wg sync.WaitGroup
	for e := range engines {
		for range clientsOfEngine {
			wg.Go(func() { r.node.client(ctx, e, of) })
		}
	}
	for range children {
		wg.Go(func() { r.child(ctx) })
	}
	purger, err := idempotency.NewPurger(idempotency.PurgerConfig{Store: r.node.door.Store, Batch: 7, Pause: -1, Grace: -1})
	if err != nil {
		r.t.Fatal(err)
	}
	faults := append([]Fault{
		{"records released", 6, r.release},
		{"records purged", 6, func(ctx context.Context) (int, error) {
			done, err := purger.Once(context.WithoutCancel(ctx))
			return done.Removed + done.Buried, err
		}},
	}, r.site.Faults...)
	var down atomic.Bool // the server, so that a fault that needs it says nothing of itself
	for _, f := range faults {
		wg.Go(func() {
			worked, failed, last := false, 0, error(nil)
			for wait(ctx, &r.returned, f.Every) {
				away := down.Load()
				n, err := f.Do(ctx)
				switch {
				case err == nil:
					worked = true
					r.hit(f.Name, n)
				case ctx.Err() == nil && !away && !down.Load():
					failed++
					last = err
				}
			}
			if !worked && failed > 10 {
				r.t.Errorf("%s: never, %v", f.Name, last)
			}
		})
	}
	if crash != nil {
		wg.Go(func() {
			if !pause(ctx, length/2) {
				return
			}
			down.Store(true)
			err := crash()
			down.Store(false)
			if err != nil {
				r.t.Errorf("crash and restart: %v", err)
			}
			r.hit("crashes of the server", 1)
		})
	}
	wg.Wait()
}

func (r *run) release(ctx context.Context) (int, error) {
	ctx = context.WithoutCancel(ctx)
	id, err := r.site.Stuck(ctx)
	if errors.Is(err, sql.ErrNoRows) { // nothing is stuck just now
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	err = r.admin.Release(ctx, id, idempotency.Intervention{By: "chaos", Reason: "for the sake of it", LiveLease: true})
	if _, changed := errors.AsType[*idempotency.AdminError](err); changed { // it is not stuck any more
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return 1, nil
}

// patience bounds each thing that is done after the storm.
const patience = 30 * time.Second

// sample is how many keys that have an outcome are asked for once more.
const sample = 100

func (r *run) settle() {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := r.site.Settle(ctx); err != nil {
		r.t.Fatalf("after the storm: %v", err)
	}
}

// calm sends keys of the guarded groups until they are answered, now that nothing goes wrong any more: however they were left, they
// must not be stuck. It sends those without an outcome, and some of the others.
func (r *run) calm() {
	r.node.calm.Store(true)
	type place struct{ group, key string }
	answered := make(map[place]bool)
	for _, d := range r.history {
		if p := (place{d.Group, d.Key}); d.Group != unguarded.name {
			answered[p] = answered[p] || d.Kind.outcome()
		}
	}
	var places []place
	some := sample
	for p, done := range answered { // in no order
		if done {
			some--
		}
		if !done || some >= 0 {
			places = append(places, p)
		}
	}
	until := time.Now().Add(patience)
	var wg sync.WaitGroup
	for e := range engines {
		wg.Go(func() {
			for i := e; i < len(places); i += engines {
				p, outcomes := places[i], 0
				for payload := range payloads {
					switch d := r.ask(e, groupOf(p.group), p.key, payload, until); {
					case d.Kind.outcome():
						outcomes++
					case d.Kind != toldConflict:
						r.t.Errorf("%s %s, payload %d: it is stuck: %s", p.group, p.key, payload, d.Said)
					}
				}
				if outcomes == 0 {
					r.t.Errorf("%s %s: neither payload has an outcome", p.group, p.key)
				}
			}
		})
	}
	wg.Wait()
}

// ask sends a key until it is answered, and does what a person would do where the answer asks for one.
func (r *run) ask(engine int, g *group, key string, payload int, until time.Time) (d dispatch) {
	ctx := context.Background()
	for {
		d = r.node.place(ctx, engine, g, key, payload)
		if d.Kind.outcome() || d.Kind == toldConflict || time.Now().After(until) {
			return d
		}
		if d.Stuck {
			_ = r.admin.Release(ctx, scopeOf(g, key).ID(), idempotency.Intervention{By: "chaos", Reason: "it asked for a person", LiveLease: true})
		}
		pause(ctx, 5*time.Millisecond)
	}
}

// report says what the checks have found.
func (r *run) report() {
	r.t.Helper()
	r.settle()
	if v := r.verdict(unguarded); r.missing() != nil {
		r.t.Errorf("the unguarded control did nothing wrong, or there were no takeovers or none that was too late, so this run shows nothing: %v", v)
	} else {
		r.t.Logf("%v: as it should be, for example:\n\t%s", v, strings.Join(v.examples(2), "\n\t"))
	}
	for _, g := range groups {
		if g == unguarded {
			continue
		}
		v := r.verdict(g)
		r.t.Logf("%v", v)
		if wrong := v.examples(12); len(wrong) > 0 {
			r.t.Errorf("%v:\n\t%s", v, strings.Join(wrong, "\n\t"))
		}
	}
	for _, wrong := range append(r.fences(), r.provider.wrong()...) {
		r.t.Error(wrong)
	}
	r.t.Logf("after %v: %v", time.Since(r.began).Round(time.Millisecond), r.hits)
}

// pause waits. It reports false when ctx has ended.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// wait waits until a counter has gone on by about so much. It reports false when ctx has ended.
func wait(ctx context.Context, counter *atomic.Int64, mean int) bool {
	for goal := counter.Load() + 1 + rand.Int64N(2*int64(mean)); ; {
		switch {
		case !pause(ctx, 2*ms):
			return false
		case counter.Load() >= goal:
			return true
		}
	}
}

func between(least, most time.Duration) time.Duration {
	return least + time.Duration(rand.Int64N(int64(most-least)+1))
}

// roll is true in so many of a hundred cases.
func roll(percent int) bool { return rand.IntN(100) < percent }
