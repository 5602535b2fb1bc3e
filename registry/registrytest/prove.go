package registrytest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http/httptrace"
	"reflect"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/registry"
	"github.com/tekil-go/tekil/requestctx"
)

// System is an application on an empty database of its own, as one check uses it. The functions are called one at a time,
// but for Context.
type System struct {
	// Config is what the application gives to registry.New. Store must be set, to the real store; a nil Logger logs nothing. The kit puts
	// a layer round the Store and wrappers of its own round those of Around and behind them.
	Config registry.Config
	// Register registers the command's handler, and those of the commands that it sends, as the application does. It must be set, and is
	// called once for each process that the kit plays.
	Register func(reg *registry.Registry)
	// Built gets the bus of each process, right after its Register has been called and before anything is sent: it is how a handler that sends
	// commands comes by its bus. Give each process its own, so put it where that Register has put its handler. Nil is right for a
	// handler that sends nothing.
	Built func(b *bus.Bus)
	// Rows counts the effects of the command that are committed, on a connection of its own: one for each intent that was carried
	// out, such as SELECT count(*) FROM orders. It must be set. What is there at the start does not count.
	Rows func() int
	// Age makes every record older by d: creation, completion, expiry and the end of the lease. It must be set: memstore.Store.Age,
	// pgtest.Age for PostgreSQL, or [AgeSQLite].
	Age func(d time.Duration)
	// Outside counts what was done outside of the database, by a fake that honours keys as the real other side does: two calls under one
	// key are one effect. What the first success adds is taken for what one intent does, two for one that reserves and captures; from then
	// on it must be that. Nil is right where nothing is called, or where the other side honours no key; then nothing is said of how
	// often it acts, because nothing could be promised.
	Outside func() int
	// Values are what the edge knows of a request: scope, source, resource. The kit sets the key. An empty client, or an empty tenant
	// where Config.RequireTenant is set, becomes "registrytest".
	Values requestctx.Values
	// Context puts what an authentication would put into the context of each request; nil puts nothing. It is called from several
	// goroutines at once.
	Context func(ctx context.Context) context.Context
}

// Case says what a command is and how one sees what it does. Open, Valid and Edited must be set, and of Invalid and NothingInvalid
// exactly one. Its functions are called from several goroutines at once.
type Case[C bus.Command[R], R any] struct {
	// Open makes a system on an empty database. It is called for each check, by several at once; what it opens it closes by t.Cleanup.
	Open func(t *testing.T) System
	// Valid makes a command that is carried out. It is called anew for each try and must build the command as the edge does from one
	// and the same body: what differs between two calls differs between a request and its retry.
	Valid func() C
	// Edited is Valid after its sender has changed his mind: valid as well, and another intent.
	Edited func() C
	// Invalid is a command that validation refuses, by tags or by its method Validate.
	Invalid func() C
	// NothingInvalid says that there is no invalid value of the command. The check of pipe-3 is then left out, and says so.
	NothingInvalid bool
	// NothingOutside says that a Leased command calls nothing outside, such as one that only takes long. Without it a Leased command
	// of which no call is seen fails. A call that is seen all the same fails as well. It means nothing for an Atomic command, which must
	// never call out.
	NothingOutside bool
	// NaturalKey says that the business itself refuses a second intent by idempotency.Final, such as a second order of one cart, so that Valid
	// or Edited is not carried out after Valid under a key of its own. The control that Rows counts each intent is then weaker, and says so. Without
	// it such a refusal fails, and with it a command of which nothing is refused does. It is better to let Open make what can bear all
	// three: Valid, Edited, and Valid again.
	NaturalKey bool
}

// Prove runs the checks of the package's documentation against one command, in parallel subtests, each on a system of its own. Which
// ones depends on the mode that the command's type has. It fails for a command without the mark, because nothing is promised of it.
//
// The first subtest is not parallel: it sends the command twice. Where that already goes wrong, the others are not run, as all of them
// would fail for that one reason. The parallel ones run after the function that has called Prove has returned, so what they share (a server, a
// pool) has to be closed by t.Cleanup and not by defer.
//
// What it does not promise: a green run says nothing of an effect that Rows and Outside do not count, nor of a call to the outside that is neither HTTP
// with the handler's context nor reported by [CalledOut], nor of two different intents that run at once; the package's documentation has the list. Deaths are played inside this process by a layer round the store (rule rec-1 holds
// them at the store's transaction); that the store itself survives a killed process is what its own tests show.
func Prove[C bus.Command[R], R any](t *testing.T, c Case[C, R]) {
	t.Helper()
	if !c.complete(t) {
		return
	}
	unit := 0
	if !t.Run("the same request sent twice is one intent (see-3)", func(t *testing.T) { unit = c.sameTwice(open(t, c)) }) {
		t.Log("registrytest: the other checks were not run: all of them would fail for the reason above")
		return
	}
	for _, ch := range c.checks(t) {
		t.Run(ch.name, func(t *testing.T) {
			t.Parallel()
			s := open(t, c)
			s.unit = unit
			ch.run(s)
		})
	}
}

// check is one thing that is proved.
type check[C bus.Command[R], R any] struct {
	name string
	run  func(s *trial[C, R])
}

func (c Case[C, R]) complete(t *testing.T) bool {
	t.Helper()
	name := reflect.TypeFor[C]().String()
	ok := true
	demand := func(holds bool, sentence string) {
		t.Helper()
		if !holds {
			ok = false
			t.Errorf("registrytest: %s: %s", name, sentence)
		}
	}
	demand(idempotency.IsMarked[C](), "it carries no idempotency mark, so nothing is promised of it and every retry is new work: give it func ("+
		reflect.TypeFor[C]().Name()+") Idempotent() {}, or do not prove it")
	demand(c.Open != nil, "Case.Open is nil; it makes the system on an empty database")
	demand(c.Valid != nil && c.Edited != nil, "Case.Valid and Case.Edited must both be set: without the second nobody sees whether another payload is told from a retry")
	demand(c.Invalid != nil || c.NothingInvalid, "Case.Invalid is nil: give a command that validation refuses, or say NothingInvalid: true if there is none (rule pipe-3)")
	demand(c.Invalid == nil || !c.NothingInvalid, "Case.Invalid is set and NothingInvalid says that there is none; remove one of them")
	if ok {
		demand(!reflect.DeepEqual(c.Valid(), c.Edited()), "Case.Edited gives the same command as Case.Valid; change a field that matters")
	}
	return ok
}

// patience is how long a check waits for what must happen, before it fails. A policy may let a duplicate wait for half of it.
const patience = 60 * time.Second

// trial is one check at work on its own system.
type trial[C bus.Command[R], R any] struct {
	*testing.T
	c                     Case[C, R]
	sys                   System
	name                  string
	rowsBefore, outBefore int
	unit                  int // what one intent does outside
	held                  []*hold
	earlier               *C // a Valid that is older than those which are made now
	policy                policy
}

// policy is what of the command's policy decides what a check has to expect, as it is in force.
type policy struct {
	leased, keyOptional, tombstone, refuses, omits bool
	retention, deadline, lease                     time.Duration
}

func open[C bus.Command[R], R any](t *testing.T, c Case[C, R]) *trial[C, R] {
	t.Helper()
	var zero C
	s := &trial[C, R]{T: t, c: c, sys: c.Open(t), name: string(zero.CommandName())}
	for _, must := range []struct {
		set  bool
		what string
	}{
		{s.sys.Config.Store != nil, "Config.Store: the store that the application uses"},
		{s.sys.Register != nil, "Register: it registers the handler"},
		{s.sys.Rows != nil, "Rows: it counts the effects, and a promise that nobody counts is not proved"},
		{s.sys.Age != nil, "Age: it makes records older (memstore.Store.Age, pgtest.Age, registrytest.AgeSQLite)"},
	} {
		if !must.set {
			t.Fatalf("registrytest: %s: Open has left System.%s", s.name, must.what)
		}
	}
	if s.sys.Values.Scope.Client == "" {
		s.sys.Values.Scope.Client = "registrytest"
	}
	if s.sys.Values.Scope.Tenant == "" && s.sys.Config.RequireTenant {
		s.sys.Values.Scope.Tenant = "registrytest"
	}
	if s.sys.Config.Logger == nil {
		s.sys.Config.Logger = zap.NewNop()
	}
	s.rowsBefore, s.outBefore = s.rows(), s.outside()
	s.process() // for the policy, and so that Build has refused what it refuses
	return s
}

// fault fails the check with all that somebody needs who has not read the documentation.
func (s *trial[C, R]) fault(wrong, why, do string) {
	s.Helper()
	s.Errorf("registrytest: %s: %s\n\twhy it matters: %s\n\twhat to do: %s", s.name, wrong, why, do)
}

func (s *trial[C, R]) rows() int { return s.count("Rows", s.sys.Rows) - s.rowsBefore }

// outside is what was done outside, 0 where nobody counts.
func (s *trial[C, R]) outside() int {
	if s.sys.Outside == nil {
		return 0
	}
	return s.count("Outside", s.sys.Outside) - s.outBefore
}

// countPatience bounds a count: one that waits for a connection that an attempt holds would wait for the kit, which waits for it.
const countPatience = 15 * time.Second

// count calls a function of the application that counts, and fails the check if it does not answer.
func (s *trial[C, R]) count(what string, counts func() int) int {
	s.Helper()
	var n int
	answered := make(chan bool, 1)
	go func() {
		counted := false
		defer func() { answered <- counted }() // it may end by t.Fatal
		n, counted = counts(), true
	}()
	timer := time.NewTimer(countPatience)
	defer timer.Stop()
	select {
	case counted := <-answered:
		if !counted {
			s.FailNow()
		}
		return n
	case <-timer.C:
	}
	s.fault(fmt.Sprintf("%s has not answered for %v", what, countPatience),
		"it is called while attempts hold their transactions, so one that needs a connection of theirs waits for ever",
		"let it count on a connection of its own: a second pool, or a pool of more than one connection")
	for _, h := range s.held {
		h.let() // so that it ends before the test does
	}
	wait(s.T, answered, "the end of "+what)
	s.FailNow()
	panic("unreachable")
}

// key is a key that nobody has used: fakes of the outside may be shared between checks.
func (s *trial[C, R]) key() requestctx.Key {
	s.Helper()
	key, err := requestctx.ParseKey("registrytest-" + rand.Text())
	if err != nil {
		s.Fatal(err)
	}
	return key
}

// process is one process of the application. Several of them share the database and nothing else.
type process[C bus.Command[R], R any] struct {
	s     *trial[C, R]
	bus   *bus.Bus
	layer *layer
	name  string
	holds atomic.Pointer[hold]
	runs  atomic.Int64
	seen  calls
}

func (s *trial[C, R]) process() *process[C, R] {
	s.Helper()
	p := &process[C, R]{s: s, layer: &layer{Store: s.sys.Config.Store, command: s.name}, name: s.name}
	cfg := s.sys.Config
	cfg.Store = p.layer
	cfg.Around = slices.Concat([]registry.Around{p.watch}, cfg.Around, []registry.Around{p.halt}) // what those of the application do is the command's as well
	reg := registry.New(cfg)
	s.sys.Register(reg)
	var err error
	if p.bus, err = reg.Build(); err != nil {
		s.Fatalf("registrytest: the application does not build: %v", err)
	}
	if s.sys.Built != nil {
		s.sys.Built(p.bus)
	}
	found := false
	for _, d := range reg.Describe().Commands {
		if d.Name == s.name && d.Idempotency != nil {
			found = true
			if s.policy, err = policyOf[C](d.Idempotency); err != nil {
				s.Fatalf("registrytest: %s: the policy in force cannot be read: %v", s.name, err)
			}
		}
	}
	if !found {
		s.Fatalf("registrytest: %s: Register has registered no handler for it; add registry.Handle(reg, …)", s.name)
	}
	return p
}

// policyOf is the type's own policy with what was tuned for this deployment.
func policyOf[C any](d *registry.IdempotencyDescription) (policy, error) {
	var zero C
	var own idempotency.Policy
	if p, ok := any(zero).(idempotency.WithPolicy); ok {
		own = p.Idempotency()
	}
	p := policy{
		leased: own.Mode == idempotency.Leased, tombstone: own.AfterExpiry == idempotency.Tombstone, refuses: own.Takeover == idempotency.Refuse,
		omits: own.Results == idempotency.OmitResult, keyOptional: own.KeyOptional != slices.Contains(d.Tuned, "KeyOptional"),
	}
	var errs [3]error
	p.retention, errs[0] = time.ParseDuration(d.Retention)
	p.deadline, errs[1] = time.ParseDuration(d.Deadline)
	if p.leased {
		p.lease, errs[2] = time.ParseDuration(d.Lease)
	}
	return p, errors.Join(errs[:]...)
}

// hold keeps an attempt before its handler.
type hold struct {
	entered, release chan struct{}
	once             sync.Once
}

func (h *hold) let() { h.once.Do(func() { close(h.release) }) }

// hold keeps the next run of the handler until it is let go, at the latest at the end of the check.
func (p *process[C, R]) hold() *hold {
	h := &hold{entered: make(chan struct{}), release: make(chan struct{})}
	p.holds.Store(h)
	p.s.held = append(p.s.held, h)
	p.s.Cleanup(h.let)
	return h
}

// entered waits for an attempt to come to its handler.
func (s *trial[C, R]) entered(h *hold, answered <-chan reply[R]) {
	s.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-h.entered:
	case r := <-answered:
		s.Fatalf("registrytest: %s: Valid did not come to its handler, but got %v", s.name, r)
	case <-timer.C:
		s.Fatalf("registrytest: %s: waited %v in vain for the handler", s.name, patience)
	}
}

// watch is outermost: it sees what the handler calls, and what the application's own wrappers do. A command that the handler sends and that has a record
// of its own answers for its calls by its own keys.
func (p *process[C, R]) watch(ctx context.Context, inv bus.Invocation, next func(context.Context) error) error {
	of, _ := ctx.Value(attemptKey{}).(attempt)
	if _, nested := ctx.Value(callsKey{}).(caller); nested || inv.Name != p.name {
		if nested && of.other {
			defer p.seen.byAnother()()
		}
		return next(ctx)
	}
	ctx, cancel := context.WithCancel(ctx)
	returned := make(chan struct{})
	defer close(returned)
	defer cancel()
	err := next(p.seen.watch(ctx, of.open, cancel, returned))
	if p.seen.dies() {
		runtime.Goexit()
	}
	return err
}

// halt is innermost, and keeps the attempt that is to be held.
func (p *process[C, R]) halt(ctx context.Context, inv bus.Invocation, next func(context.Context) error) error {
	if inv.Name != p.name {
		return next(ctx)
	}
	p.runs.Add(1)
	if h := p.holds.Swap(nil); h != nil {
		close(h.entered)
		<-h.release
	}
	return next(ctx)
}

// reply is what became of a request.
type reply[R any] struct {
	res  R
	err  error
	out  requestctx.Outcome
	id   string
	died bool // the process that it was sent to has died, as the layer plays it
}

func (r reply[R]) String() string {
	state := string(r.out.State)
	if state == "" {
		state = "not claimed"
	}
	switch {
	case r.died:
		return "no answer, because the process died"
	case r.err != nil:
		return fmt.Sprintf("the error %q (%s)", r.err, state)
	}
	return "a result (" + state + ")"
}

// late reports that the time that [process.impatient] gives was over before the store had answered. It says something about the machine
// and nothing about the command.
func (r reply[R]) late() bool {
	return is[*idempotency.StoreError](r.err) && errors.Is(r.err, context.DeadlineExceeded)
}

// sent sends a request in a goroutine of its own, as each request has one; the reply comes when it is there.
func (p *process[C, R]) sent(ctx context.Context, key requestctx.Key, cmd C) <-chan reply[R] {
	v := p.s.sys.Values
	v.ID, v.Key = "", key
	if p.s.sys.Context != nil {
		ctx = p.s.sys.Context(ctx)
	}
	ctx, req := requestctx.New(ctx, v)
	answered := make(chan reply[R], 1)
	go func() {
		r := reply[R]{died: true, id: req.ID()}
		defer func() {
			if said := recover(); said != nil {
				r.died, r.err = false, fmt.Errorf("a panic: %v", said)
			}
			r.out = req.Outcome()
			answered <- r
		}()
		r.res, r.err = bus.Send(ctx, p.bus, cmd)
		r.died = false
	}()
	return answered
}

// send sends a request and waits for its reply.
func (p *process[C, R]) send(key requestctx.Key, cmd C) reply[R] {
	p.s.Helper()
	return wait(p.s.T, p.sent(p.s.within(), key, cmd), "an answer to the command")
}

// impatient is how a duplicate is sent while a handler is held: all of its waiting must leave the handler the better part of its deadline.
func (p *process[C, R]) impatient(key requestctx.Key, cmd C) <-chan reply[R] {
	ctx, cancel := context.WithTimeout(p.s.within(), p.s.policy.deadline/2)
	p.s.Cleanup(cancel)
	return p.sent(ctx, key, cmd)
}

func (s *trial[C, R]) within() context.Context {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.Context()), patience)
	s.Cleanup(cancel)
	return ctx
}

func wait[T any](t testing.TB, ch <-chan T, what string) T {
	t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case v := <-ch:
		return v
	case <-timer.C:
		t.Fatalf("registrytest: waited %v in vain for %s", patience, what)
		panic("unreachable")
	}
}

// is reports whether err is of the type E.
func is[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

// calls is what a handler was seen doing outside.
type calls struct {
	mu      sync.Mutex
	n       int
	own     int  // of them those that no command with a record of its own has made
	inside  int  // of all while the transaction of the command that is proved was open
	another int  // commands with a record of their own that are running
	lose    bool // the next answer is lost
	lost    bool // an answer of a call of its own was lost
	after   int  // the answers that came after the lost one
	die     bool // the process dies in its first call
	dead    bool // it has
}

// errAnswerLost is what [CalledOut] gives when the kit plays that.
var errAnswerLost = errors.New("registrytest: the answer of the outside is lost")

type callsKey struct{}

// caller is a handler's run.
type caller struct {
	*calls
	open     func() bool // whether its transaction is open; nil where it has none
	cancel   func()
	returned <-chan struct{}
}

// watched is the context of a handler that is watched. A process that is dead asks for nothing any more, so what it asks of the engine
// after that is not answered.
type watched struct {
	context.Context
	by caller
}

// engine is the package in which the keys of the engine's values are.
var engine = reflect.TypeFor[idempotency.Policy]().PkgPath()

func (w watched) Value(key any) any {
	if _, is := key.(callsKey); is {
		return w.by
	}
	if t := reflect.TypeOf(key); t != nil && t.PkgPath() == engine && w.by.isDead() {
		return nil
	}
	return w.Context.Value(key)
}

// watch gives a context on which HTTP requests are seen. It sets no hooks of the network, which a driver of a database would call as well.
func (c *calls) watch(ctx context.Context, open func() bool, cancel func(), returned <-chan struct{}) context.Context {
	by := caller{c, open, cancel, returned}
	return httptrace.WithClientTrace(watched{ctx, by}, &httptrace.ClientTrace{
		GetConn: func(string) { by.calling() },
		GotFirstResponseByte: func() {
			if by.answered() == nil {
				return
			}
			by.cancel()
			// net/http prefers an answer that is there to a context that has ended, so the answer is kept back in the connection until the
			// handler has gone on without it.
			timer := time.NewTimer(keepBack)
			defer timer.Stop()
			select {
			case <-returned:
			case <-timer.C:
			}
		},
	})
}

// keepBack bounds how long an answer that is to be lost is kept from a handler that does not return.
const keepBack = 5 * time.Second

func (c caller) calling() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
	if c.open != nil && c.open() {
		c.inside++
	}
	if c.another > 0 {
		return
	}
	c.own++
	if c.die && !c.dead {
		c.dead = true
		c.cancel()
	}
}

// answered loses the answer where the kit wants that.
func (c caller) answered() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.dead:
	case !c.lose:
		c.after++
		return nil
	default:
		c.lose, c.lost, c.after = false, c.another == 0, 0
	}
	return errAnswerLost
}

// byAnother says that a command with a record of its own runs, until the function is called that it gives.
func (c *calls) byAnother() (over func()) {
	add := func(n int) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.another += n
	}
	add(1)
	return func() { add(-1) }
}

func (c *calls) count() (n, own, inside int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n, c.own, c.inside
}

func (c *calls) loseNext() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lose = true
}

// loss tells whether the answer is lost that was to be lost, and whether that is all that the handler knows of its calls.
func (c *calls) loss() (lost, all bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.lose, c.lost && c.after == 0
}

// dieInCall lets the process die in its first call: that one has no answer, and what the handler does afterwards is not done.
func (c *calls) dieInCall() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.die = true
}

func (c *calls) dies() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.die
}

func (c *calls) isDead() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dead
}

// CalledOut is for a fake of the outside that is not called over HTTP, such as a struct behind an interface: called with the handler's
// context when the fake has done its work, it lets [Prove] see the call. The fake must return its error in place of an answer: that
// is how an answer is lost. Outside of Prove it is nil and does nothing. HTTP requests that are made with the handler's context
// are seen without it. It is safe for concurrent use.
func CalledOut(ctx context.Context) error {
	by, ok := ctx.Value(callsKey{}).(caller)
	if !ok {
		return nil
	}
	by.calling()
	return by.answered()
}
