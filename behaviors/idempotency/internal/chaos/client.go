package chaos

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
)

// kind is what a caller was told.
type kind int

const (
	toldUnknown  kind = iota // that nobody knows; or nothing at all, because it was killed
	toldOrder                // an order
	toldRefusal              // a refusal for good
	toldConflict             // that the key belongs to another payload
	toldExpired              // that the outcome is not kept any more
	toldNothing              // that this dispatch has left nothing behind
)

// outcome reports whether it says that the key has an outcome.
func (k kind) outcome() bool { return k == toldOrder || k == toldRefusal || k == toldExpired }

// dispatch is one call of a client and what it knows about it: an element of the history. Times are nanoseconds of the machine's
// clock, because that is what the processes of a run have in common.
type dispatch struct {
	ID           int64
	Group, Key   string
	Payload      int
	Call, Return int64 // Return is 0 while it has not returned
	Kind         kind
	Outcome      string // the id in the order or refusal that it was told
	Replayed     bool
	Said         string  // the error, for people
	Stuck        bool    // the error asks for a person
	Claimed      bool    // it has held the key
	Doubtful     bool    // a claim of it failed, and may have been committed all the same
	Unsure       bool    // the answer to a COMMIT of it was lost
	Fences       []int64 // of its grants, without those of relaxed claims
	TookOver     int     // how often it took the key over
	Stale        int     // how often it was told that the key is another one's, when it wanted to write
	Runs         int     // of its handler
}

// outcomeID names what a run of a dispatch's handler makes.
func (d *dispatch) outcomeID() string {
	d.Runs++
	return fmt.Sprintf("%d.%d", d.ID, d.Runs)
}

// maker is the dispatch that has made an outcome.
func maker(outcome string) int64 {
	number, _, _ := strings.Cut(outcome, ".")
	id, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		return -1
	}
	return id
}

type dispatchKey struct{}

// send sends a group's command with a payload, on the context of a request.
type send func(ctx context.Context, payload int) (Placed, error)

// node is the clients' side of a process.
type node struct {
	door    *Door
	numbers int64 // its dispatches are numbered from here
	count   atomic.Int64
	calm    atomic.Bool
	keep    func(dispatch) // called at the beginning and at the end of each dispatch
	progress

	outside string // the provider's URL
	http    *http.Client
	sends   [engines]map[*group]send
}

// nodeSize is how many dispatches a node can number.
const nodeSize = 1_000_000

func newNode(door *Door, number int64, reached map[string]int, outside string, keep func(dispatch)) (*node, error) {
	n := &node{door: door, numbers: number * nodeSize, keep: keep, outside: outside, http: &http.Client{Transport: &http.Transport{}},
		progress: progress{first: reached, answers: make(map[string]int)}}
	for i := range n.sends {
		e, err := idempotency.New(idempotency.Config{Store: &watched{Store: door.Store}})
		if err != nil {
			return nil, err
		}
		n.sends[i] = make(map[*group]send)
		for _, g := range groups {
			if n.sends[i][g], err = g.bind(n, e, g); err != nil {
				return nil, fmt.Errorf("%s: %w", g.name, err)
			}
		}
	}
	return n, nil
}

func (n *node) close() { n.http.CloseIdleConnections() }

// bind puts the stage of idempotency before a group's handler, as a registry does.
func bind[R rules](n *node, e *idempotency.Engine, g *group) (send, error) {
	return bindWith(e, func(ctx context.Context, c command[R]) (Placed, error) { return n.handle(ctx, g, c.Payload) }, nil)
}

func bindReconciled(n *node, e *idempotency.Engine, g *group) (send, error) {
	return bindWith(e, func(ctx context.Context, c command[reconciled]) (Placed, error) { return n.handle(ctx, g, c.Payload) },
		func(ctx context.Context, c command[reconciled]) (Placed, bool, error) {
			return n.reconcile(ctx, g, c.Payload)
		})
}

func bindWith[R rules](e *idempotency.Engine, handle bus.Handler[command[R], Placed],
	reconcile func(context.Context, command[R]) (Placed, bool, error)) (send, error) {
	claimed, _, err := idempotency.StageWith(e, handle, idempotency.Settings[command[R], Placed]{Reconcile: reconcile})
	if err != nil {
		return nil, err
	}
	inv := bus.Invocation{Name: string(command[R]{}.CommandName()), Idempotent: true}
	b, err := bus.New(bus.Serve(bus.Log(bus.Validate(claimed, inv, nil, nil), inv, nil, nil)))
	if err != nil {
		return nil, err
	}
	deliver, err := bus.Bind[command[R]](b)
	return func(ctx context.Context, payload int) (Placed, error) { return deliver(ctx, command[R]{payload}) }, err
}

const client = "chaos"

func scopeOf(g *group, key string) idempotency.Scope {
	return idempotency.Scope{Client: client, Operation: g.name, Key: key}
}

// The keys: some at a time, and other ones when those have outcomes, so that there are always some without one.
const (
	keysAtOnce = 3
	keysEnough = 2 // answers that a node needs of a key before it goes on
	fewKeys    = 4 // those of which each has many lives
)

// progress is how far a node has come with the keys of its groups.
type progress struct {
	mu      sync.Mutex
	first   map[string]int // the first key of a group that is not done with
	answers map[string]int // by group and key
}

func keyOf(number int) string { return fmt.Sprintf("key-%06d", number) }

func (p *progress) key(g *group) string {
	if g.forgets {
		return keyOf(rand.IntN(fewKeys))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	first := p.first[g.name]
	if roll(15) {
		return keyOf(rand.IntN(first + 1)) // one that is done with, to see it replayed
	}
	return keyOf(first + rand.IntN(keysAtOnce))
}

func (p *progress) note(d *dispatch) {
	if !d.Kind.outcome() {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.answers[d.Group+d.Key]++; p.answers[d.Group+keyOf(p.first[d.Group])] >= keysEnough; p.first[d.Group]++ {
	}
}

// reached is what a node that begins now has to know.
func (p *progress) reached() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.first)
}

// turn is how long most clients, in all processes, are busy with the same group, so that they meet.
const turn = 200 * ms

// client sends commands of some groups through one of the node's engines until ctx ends, each a few times as long as there is no
// answer. The last one it lets finish.
func (n *node) client(ctx context.Context, engine int, of []*group) {
	for ctx.Err() == nil {
		g := of[rand.IntN(len(of))]
		if roll(70) {
			g = of[time.Now().UnixNano()/int64(turn)%int64(len(of))]
		}
		key, payload := n.progress.key(g), 0
		if roll(25) {
			payload = 1
		}
		for range 4 {
			within, cancel := context.Background(), func() {}
			if roll(5) { // a caller without patience
				within, cancel = context.WithTimeout(within, between(2*ms, 20*ms))
			}
			d := n.place(within, engine, g, key, payload)
			cancel()
			if !pause(ctx, between(0, 5*ms)) || d.Kind.outcome() || d.Kind == toldConflict {
				break
			}
		}
	}
}

// place sends a command and keeps what is said about it.
func (n *node) place(ctx context.Context, engine int, g *group, key string, payload int) (d dispatch) {
	d = dispatch{ID: n.numbers + n.count.Add(1), Group: g.name, Key: key, Payload: payload, Call: time.Now().UnixNano()}
	n.keep(d)
	k, err := requestctx.ParseKey(key)
	if err != nil {
		panic(err)
	}
	ctx, req := requestctx.New(context.WithValue(ctx, dispatchKey{}, &d), requestctx.Values{Key: k, Scope: requestctx.Scope{Client: client}})
	defer func() {
		if v := recover(); v != nil {
			if _, planned := v.(planned); !planned {
				panic(v)
			}
			d.Kind, d.Said = toldNothing, "a panic"
		}
		d.Replayed = d.Replayed || req.Outcome().Replayed
		d.Return = time.Now().UnixNano()
		n.keep(d)
		n.note(&d)
	}()
	placed, err := n.sends[engine][g](ctx, payload)
	d.told(placed, err)
	return d
}

// told reads the answer.
func (d *dispatch) told(placed Placed, err error) {
	d.Kind = toldNothing
	if err == nil {
		d.Kind, d.Outcome = toldOrder, placed.Order
		return
	}
	d.Said = err.Error()
	var (
		refused  *idempotency.RefusedError
		conflict *idempotency.ConflictError
		expired  *idempotency.ExpiredError
		unknown  *idempotency.OutcomeUnknownError
		attempts *idempotency.AttemptsError
		gone     *idempotency.ResultUnavailableError
	)
	switch {
	case errors.As(err, &refused):
		d.Kind, d.Outcome = toldRefusal, refused.Message
	case errors.As(err, &conflict):
		d.Kind = toldConflict
	case errors.As(err, &expired), errors.As(err, &gone):
		d.Kind = toldExpired
	case errors.As(err, &unknown) && unknown.Review:
		d.Stuck = true
	case errors.As(err, &unknown), errors.Is(err, errUnguardedUnknown):
		d.Kind = toldUnknown
	case errors.As(err, &attempts):
		d.Stuck = true
	}
}

// planned is what a handler panics with.
type planned struct{}

var (
	errPlanned = errors.New("chaos: the handler has failed")
	errOutside = errors.New("chaos: the outside world has not answered")
)

// handle is the handler of all guarded commands.
func (n *node) handle(ctx context.Context, g *group, payload int) (Placed, error) {
	d := ctx.Value(dispatchKey{}).(*dispatch)
	o := Order{ID: d.outcomeID(), Group: g.name, Key: d.Key, Payload: payload}
	if n.calm.Load() && g.rowless {
		return Placed{o.ID}, nil
	}
	if n.calm.Load() {
		return n.write(ctx, g, o)
	}
	if g.outside && roll(70) {
		if err := n.charge(ctx, d, http.MethodPost); err != nil {
			return Placed{}, idempotency.Unknown(err)
		}
	}
	if !g.atomic {
		n.work(ctx, 50*ms)
	}
	if err := misfortune(g, o); err != nil || g.rowless {
		return Placed{o.ID}, err
	}
	if g.atomic && roll(50) { // without InTx, which it does not need
		if err := n.insert(ctx, g, o); err != nil {
			return Placed{}, err
		}
		n.work(ctx, n.door.Hold)
		return Placed{o.ID}, misfortune(g, o)
	}
	placed, err := n.write(ctx, g, o)
	if err != nil && !g.atomic && roll(30) {
		placed, err = n.write(ctx, g, o)
	}
	if err != nil {
		return Placed{}, err
	}
	return placed, misfortune(g, o)
}

// misfortune is how a handler fails now and then.
func misfortune(g *group, o Order) error {
	switch rand.IntN(30) {
	case 0:
		return errPlanned
	case 1, 4:
		return idempotency.Final(errors.New(o.ID)) // the refusal bears the id
	case 2:
		if !g.atomic {
			return idempotency.Unknown(errOutside)
		}
	case 3:
		panic(planned{})
	}
	return nil
}

// work takes time. Half of the handlers do not look at their context meanwhile.
func (n *node) work(ctx context.Context, most time.Duration) {
	if n.calm.Load() {
		return
	}
	if roll(50) {
		ctx = context.Background()
	}
	pause(ctx, between(0, most))
}

// write writes the order in the business transaction.
func (n *node) write(ctx context.Context, g *group, o Order) (Placed, error) {
	err := n.door.InTx(ctx, func(ctx context.Context) error {
		if err := n.insert(ctx, g, o); err != nil {
			return err
		}
		n.work(ctx, n.door.Hold)
		if !n.calm.Load() && roll(5) {
			return errPlanned
		}
		return nil
	})
	if errors.Is(err, idempotency.ErrLeaseLost) {
		ctx.Value(dispatchKey{}).(*dispatch).Stale++
	}
	return Placed{o.ID}, err
}

func (n *node) insert(ctx context.Context, g *group, o Order) error {
	return n.door.Insert(ctx, o, scopeOf(g, o.Key).ID())
}

// reconcile looks for what an earlier attempt has done outside, and does what is left to do.
func (n *node) reconcile(ctx context.Context, g *group, payload int) (Placed, bool, error) {
	d := ctx.Value(dispatchKey{}).(*dispatch)
	switch err := n.charge(ctx, d, http.MethodGet); {
	case errors.Is(err, errNoCharge):
		return Placed{}, false, nil
	case err != nil:
		return Placed{}, false, err
	}
	placed, err := n.write(ctx, g, Order{ID: d.outcomeID(), Group: g.name, Key: d.Key, Payload: payload})
	return placed, err == nil, err
}

// watched is a store that notes in the dispatch what it was told, and most of whose leases are never renewed: to the others, such an
// attempt is a process that hangs. (With leases this short, a renewal is under way nearly always, and giving it up costs pgstore a
// connection.)
type watched struct{ idempotency.Store }

func (s *watched) Lease(ctx context.Context, c idempotency.Claim) (idempotency.Lease, *idempotency.Record, error) {
	l, rec, err := s.Store.Lease(ctx, c)
	d := ctx.Value(dispatchKey{}).(*dispatch)
	switch {
	case err != nil:
		d.Doubtful = true
	case l != nil:
		d.Claimed = true
		if g := l.Grant(); !c.Relaxed {
			d.Fences = append(d.Fences, g.Fence)
		}
		if l.Grant().TookOver {
			d.TookOver++
		}
		l = &watchedLease{l, d, roll(90)}
	}
	return l, rec, err
}

type watchedLease struct {
	idempotency.Lease
	d     *dispatch
	hangs bool
}

func (l *watchedLease) Renew(ctx context.Context) error {
	if l.hangs {
		return nil
	}
	return l.Lease.Renew(ctx)
}

func (l *watchedLease) Complete(ctx context.Context, done idempotency.Completion) error {
	return l.ended(l.Lease.Complete(ctx, done))
}

func (l *watchedLease) Refuse(ctx context.Context, done idempotency.Completion) error {
	return l.ended(l.Lease.Refuse(ctx, done))
}

func (l *watchedLease) ended(err error) error {
	switch {
	case errors.Is(err, idempotency.ErrLost):
		l.d.Stale++
	case errors.Is(err, idempotency.ErrCommitUnknown):
		l.d.Unsure = true
	}
	return err
}

// The control: a lease as it is often written by hand. It claims, works, and completes the key without asking whose it is.

const unguardedLease = 15 * ms

var errUnguardedUnknown = errors.New("chaos: the control does not know")

func bindUnguarded(n *node, _ *idempotency.Engine, g *group) (send, error) {
	return func(ctx context.Context, payload int) (Placed, error) {
		d := ctx.Value(dispatchKey{}).(*dispatch)
		found, err := n.door.Unguarded.Claim(ctx, d.Key, payload, unguardedLease)
		switch {
		case err != nil:
			d.Doubtful = true
			return Placed{}, err
		case !found.Mine && found.Payload != payload:
			return Placed{}, &idempotency.ConflictError{Command: g.name}
		case !found.Mine && found.Order != "":
			d.Replayed = true
			return Placed{found.Order}, nil
		case !found.Mine:
			return Placed{}, &idempotency.InProgressError{Command: g.name}
		}
		d.Claimed = true
		o := Order{ID: d.outcomeID(), Group: g.name, Key: d.Key, Payload: payload}
		pause(context.Background(), between(unguardedLease, 50*ms))
		if err := n.door.Unguarded.Finish(context.WithoutCancel(ctx), o); err != nil {
			return Placed{}, fmt.Errorf("%w: %w", errUnguardedUnknown, err)
		}
		return Placed{o.ID}, nil
	}, nil
}
