package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
)

// provider is the outside world: it does everything that it is asked for once for each key.
type provider struct {
	mu    sync.Mutex
	calls int
	keys  []string // of what was done
}

// charge charges under a key, and reports whether that was new.
func (p *provider) charge(key string) (isNew bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls++
	if slices.Contains(p.keys, key) {
		return false
	}
	p.keys = append(p.keys, key)
	return true
}

// want compares how often the provider was called and what it has done.
func (p *provider) want(t *testing.T, calls, charges int) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.calls != calls || len(p.keys) != charges {
		t.Errorf("the provider was called %d times and has charged %d times, want %d and %d", p.calls, len(p.keys), calls, charges)
	}
}

// pays is a first part that charges under the downstream key.
func (p *provider) pays(ctx context.Context, _ int) error {
	key, err := idempotency.DownstreamKey(ctx, "charge")
	if err == nil {
		p.charge(key)
	}
	return err
}

// takeoverCases are those of keys whose attempt has died, or whose lease is over.
func takeoverCases() []specCase {
	return []specCase{
		{"DeadKeyIsTakenOverByItsPayloadWhenTheLeaseIsOver_L06_L07_BR05",
			"A process that died blocks its key for minutes and not for days; then the same order goes on, and no other.",
			func(t *testing.T, f Fixture) {
				var grants []idempotency.Grant
				p := new(provider)
				s := &till{f: f, outside: func(ctx context.Context, run int) error {
					g, _ := idempotency.Attempt(ctx)
					grants = append(grants, g)
					return p.pays(ctx, run)
				}, within: func(_ context.Context, run int) error {
					if run == 1 {
						return idempotency.Unknown(errPaper)
					}
					return nil
				}}
				here, elsewhere := charges[hurried](t, f.Store, s), charges[hurried](t, f.Store, s)
				v, cmd := request(t, "dead-key-1"), charge[hurried]{Note: "order", Amount: 1}
				failed[*idempotency.OutcomeUnknownError](t, call(within(t), here, v, cmd), requestctx.StateUnknown)
				f.Age(t, length-slack)
				for _, send := range []bus.Handler[charge[hurried], placed]{here, elsewhere} {
					failed[*idempotency.InProgressError](t, call(within(t), send, v, cmd), requestctx.StateInProgress)
				}
				f.Age(t, 2*slack)
				before := kept(t, f, v)
				for _, send := range append(processes[hurried](t, 2, f.Store, s), here, elsewhere) { // some have not met the record, so their claim is what meets it
					failed[*idempotency.ConflictError](t, call(within(t), send, v, charge[hurried]{Note: "order", Amount: 2}), requestctx.StateConflict)
				}
				if d := change(before, kept(t, f, v)); d != "" {
					t.Errorf("another payload has changed the record of a dead attempt: %s", d)
				}
				second := call(within(t), elsewhere, v, cmd)
				wantAttempt(t, second, 2, true)
				if len(grants) != 2 || grants[1].Attempt != 2 || !grants[1].TookOver || grants[1].Reused || grants[1].Fence <= grants[0].Fence {
					t.Errorf("the grants are %+v", grants)
				}
				replayed(t, call(within(t), here, v, cmd), second)
				replayed(t, call(within(t), elsewhere, v, cmd), second)
				p.want(t, 2, 1)
				wantKept(t, f, v, idempotency.Completed, 2)
				wantDatabase(t, f, 1, "order")
			}},
		{"SixteenTakeAFreeKeyOnce_L08_BR45",
			"Sixteen processes come back to a key whose attempt has died, or has failed. One of them calls the outside world, and the others are told so.",
			func(t *testing.T, f Fixture) {
				for name, end := range map[string]func(t *testing.T, f Fixture, v requestctx.Values, cmd charge[hurried]) reply[placed]{
					"died": dies[hurried], "failed": fails[hurried],
				} {
					v := request(t, "sixteen-"+name)
					cmd := charge[hurried]{Note: v.Key.String()}
					end(t, f, v, cmd)
					f.Age(t, overdue)
					g := newGate(t)
					s := &till{f: f, outside: func(context.Context, int) error { g.pass(); return nil }}
					ctx := within(t)
					answers := make(chan reply[placed], 16)
					for _, send := range processes[hurried](t, 16, f.Store, s) {
						go func() { answers <- call(ctx, send, v, cmd) }()
					}
					await(t, g.entered, "the start of one of sixteen")
					var replies []reply[placed]
					for range 15 { // the sixteenth is at the gate
						replies = append(replies, await(t, answers, "an answer beside the one at work"))
					}
					if got, want := count(t, replies), (census{inProgress: 15}); got != want {
						t.Errorf("%s: %+v beside the one at work, want %+v", name, got, want)
					}
					g.open()
					wantAttempt(t, await(t, answers, "the end of the one at work"), 2, name == "died")
					s.wantRuns(t, 1)
					wantKept(t, f, v, idempotency.Completed, 2)
					if n := notes(t, f, cmd.Note); n != 1 {
						t.Errorf("%s: %d business rows", name, n)
					}
				}
			}},
		{"SlowOwnerWhomNobodyReplacedIsAnsweredWithItsOwnWork_L10",
			"The provider took longer than the lease and nobody came meanwhile: the order is made, and not thrown away.",
			func(t *testing.T, f Fixture) {
				for name, s := range map[string]*till{"with rows": {f: f}, "alone": {f: f, alone: true}, "refused": {f: f, alone: true}, "failed": {f: f, alone: true}} {
					s.outside = func(context.Context, int) error {
						f.Age(t, overdue)
						return map[string]error{"refused": idempotency.Final(errPaper), "failed": errPaper}[name]
					}
					v := request(t, "slow-owner-"+strings.ReplaceAll(name, " ", "-"))
					cmd := charge[hurried]{Note: name}
					r := call(within(t), charges[hurried](t, f.Store, s), v, cmd)
					want, state := requestctx.StateExecuted, idempotency.Completed
					if name == "failed" {
						want, state = requestctx.StateFreed, idempotency.Failed
					}
					if r.out.State != want || r.out.Attempt != 1 {
						t.Errorf("%s: the answer is %v with %+v", name, r.err, r.out)
					}
					wantKept(t, f, v, state, 1)
					if state == idempotency.Completed {
						replayed(t, call(within(t), charges[hurried](t, f.Store, s), v, cmd), r)
					}
				}
				wantDatabase(t, f, 4, "with rows")
			}},
		{"ChallengerOfAnOwnerInItsTransactionWaitsAndReplays_L11_BR07",
			"The database made the owner wait, and its lease ended over that. Whoever comes now gets its order and makes no second one.",
			func(t *testing.T, f Fixture) {
				if f.NoHint == nil {
					return // there is one writer at a time: the lease cannot end while the owner writes
				}
				g := newGate(t)
				s := &till{f: f, outside: func(context.Context, int) error { f.Age(t, overdue); return nil }, within: g.first}
				v, cmd := request(t, "challenged-1"), charge[waiting]{Note: "order"}
				ctx := within(t)
				first := background(ctx, charges[waiting](t, f.Store, s), v, cmd)
				await(t, g.entered, "the owner's business transaction")
				asked := make(chan struct{}, 100)
				elsewhere := tap{Store: f.Store, lease: func(_ context.Context, c idempotency.Claim, take taking) (idempotency.Lease, *idempotency.Record, error) {
					l, rec, err := take(c)
					asked <- struct{}{}
					return l, rec, err
				}}
				second := background(ctx, charges[waiting](t, elsewhere, s), v, cmd)
				await(t, asked, "the challenger's claim")
				failed[*idempotency.InProgressError](t, call(within(t), charges[hurried](t, f.Store, s), v, charge[hurried]{Note: "order"}), requestctx.StateInProgress)
				g.open()
				answer := await(t, first, "the owner's answer")
				wantAttempt(t, answer, 1, false)
				replayed(t, await(t, second, "the challenger's answer"), answer)
				s.wantRuns(t, 1)
				wantKept(t, f, v, idempotency.Completed, 1)
				wantDatabase(t, f, 1, "order")
			}},
		{"TwoOwnersAskTheOutsideWorldForOneThing_L20_BR47",
			"The old owner and the new one both call the provider. Under the key that they pass on he charges once, and one order is made.",
			func(t *testing.T, f Fixture) {
				p, g := new(provider), newGate(t)
				s := &till{f: f, outside: func(ctx context.Context, run int) error {
					if run == 1 {
						g.pass()
					}
					return p.pays(ctx, run)
				}}
				v, cmd := request(t, "two-owners-1"), charge[hurried]{Note: "order"}
				first := background(within(t), charges[hurried](t, f.Store, s), v, cmd)
				await(t, g.entered, "the first owner's start")
				f.Age(t, overdue)
				second := call(within(t), charges[hurried](t, f.Store, s), v, cmd)
				wantAttempt(t, second, 2, true)
				g.open()
				replayed(t, await(t, first, "the first owner's answer"), second)
				p.want(t, 2, 1)
				s.wantRuns(t, 2)
				wantDatabase(t, f, 1, "order")
			}},
		{"DownstreamKeyIsThatOfTheIntentInEveryAttemptAndAfterTheRecord_rec11",
			"Whatever became of the attempt and of its record: the outside world is asked under the same key for the same intent, and under another for another.",
			func(t *testing.T, f Fixture) {
				keyOf := func(v requestctx.Values, label string, end error) (key string) {
					t.Helper()
					s := &till{f: f, outside: func(ctx context.Context, _ int) (err error) {
						key, err = idempotency.DownstreamKey(ctx, label)
						return err
					}, within: func(context.Context, int) error { return end }}
					r := call(within(t), charges[hurried](t, f.Store, s), v, charge[hurried]{Note: "order"})
					if !errors.Is(r.err, end) || len(key) != 43 {
						t.Fatalf("the answer is %v with %+v and the key %q", r.err, r.out, key)
					}
					return key
				}
				v, other := request(t, "downstream-1"), request(t, "downstream-2")
				key := keyOf(v, "charge", errPaper)
				for _, again := range []struct {
					name   string
					before func()
					end    error
				}{
					{"after a failure", func() {}, idempotency.Unknown(errPaper)},
					{"after a takeover", func() { f.Age(t, overdue) }, nil},
					{"in another life", func() { f.Age(t, older) }, nil},
					{"after the record was lost", func() { purge(t, f, older) }, nil},
				} {
					again.before()
					if got := keyOf(v, "charge", again.end); got != key {
						t.Errorf("%s the key is %s, and was %s", again.name, got, key)
					}
				}
				if keyOf(other, "charge", nil) == key {
					t.Error("another intent has the same downstream key")
				}
				f.Age(t, older)
				if keyOf(v, "refund", nil) == key {
					t.Error("another label has the same downstream key")
				}
			}},
	}
}

// purge makes all records older and removes what has expired then.
func purge(t *testing.T, f Fixture, age time.Duration) {
	t.Helper()
	f.Age(t, age)
	p, err := idempotency.NewPurger(idempotency.PurgerConfig{Store: f.Store, Grace: -1})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Once(within(t)); err != nil {
		t.Fatalf("purge: %v", err)
	}
}

// lateOwnerCases are those of owners that were replaced while they were outside.
func lateOwnerCases() []specCase {
	ends := map[string]struct {
		alone bool
		err   error
	}{
		"succeeds with rows": {},
		"succeeds alone":     {alone: true},
		"refuses":            {alone: true, err: idempotency.Final(errPaper)},
		"fails":              {alone: true, err: errPaper},
		"does not know":      {alone: true, err: idempotency.Unknown(errPaper)},
	}
	return []specCase{
		{"LateOwnersCallerGetsWhatTheRecordSays_L09_BR06",
			"An owner that was replaced commits nothing and frees nothing. Its caller is told what the record says, and never what it did itself.",
			func(t *testing.T, f Fixture) {
				for name, end := range ends {
					for _, done := range []bool{true, false} {
						t.Run(fmt.Sprintf("it %s, its successor is done %v", name, done), func(t *testing.T) {
							v := request(t, fmt.Sprintf("late-%s-%v", strings.ReplaceAll(name, " ", "-"), done))
							cmd := charge[hurried]{Note: v.Key.String()}
							stale, fresh := newGate(t), newGate(t)
							s := &till{f: f, alone: end.alone, outside: func(context.Context, int) error { stale.pass(); return end.err }}
							first := background(within(t), charges[hurried](t, f.Store, s), v, cmd)
							await(t, stale.entered, "the first owner's start")
							f.Age(t, overdue)
							successor := &till{f: f, outside: fresh.first}
							second := background(within(t), charges[hurried](t, f.Store, successor), v, cmd)
							await(t, fresh.entered, "the second owner's start")
							third := charges[hurried](t, f.Store, successor)
							var winner reply[placed]
							if done {
								fresh.open()
								winner = await(t, second, "the second owner's answer")
								wantAttempt(t, winner, 2, true)
							}
							before := kept(t, f, v)
							stale.open()
							late := await(t, first, "the late owner's answer")
							if d := change(before, kept(t, f, v)); d != "" {
								t.Errorf("the late owner has changed the record: %s", d)
							}
							if done {
								if got := replayed(t, late, winner); got != winner.res {
									t.Errorf("the late owner's caller gets %+v, want %+v", got, winner.res)
								}
							} else {
								failed[*idempotency.InProgressError](t, late, requestctx.StateInProgress)
								failed[*idempotency.InProgressError](t, call(within(t), third, v, cmd), requestctx.StateInProgress)
								fresh.open()
								winner = await(t, second, "the second owner's answer")
								wantAttempt(t, winner, 2, true)
							}
							replayed(t, call(within(t), third, v, cmd), winner)
							s.wantRuns(t, 1)
							successor.wantRuns(t, 1)
							if n := notes(t, f, cmd.Note); n != 1 {
								t.Errorf("%d business rows, want the second owner's", n)
							}
						})
					}
				}
			}},
		{"LostLeaseEndsTheHandlersContext_L12_L13",
			"A renewal that fails says nothing and stops nobody; one that finds the key gone stops the handler, before it does more that counts for nothing.",
			func(t *testing.T, f Fixture) {
				g, renewed := newGate(t), make(chan struct{}, 1000)
				var heard atomic.Bool
				var cause, inTx error
				deaf := tap{Store: f.Store, renew: func(_ context.Context, renew func() error) error {
					defer func() { renewed <- struct{}{} }()
					if !heard.Load() {
						return errPaper
					}
					return renew()
				}}
				s := &till{f: f, outside: func(ctx context.Context, run int) error {
					if run > 1 {
						return nil
					}
					g.pass()
					if ctx.Err() != nil {
						t.Errorf("the handler was stopped before its lease was lost: %v", context.Cause(ctx))
					}
					heard.Store(true)
					<-ctx.Done()
					cause = context.Cause(ctx)
					inTx = f.InTx(ctx, func(context.Context) error { t.Error("the business transaction of a lost lease runs"); return nil })
					return ctx.Err()
				}}
				v, cmd := request(t, "lost-lease-1"), charge[pulsing]{Note: "order"}
				first := background(within(t), charges[pulsing](t, deaf, s), v, cmd)
				await(t, g.entered, "the first owner's start")
				for range 3 {
					await(t, renewed, "a renewal that fails")
				}
				f.Age(t, overdue)
				second := call(within(t), charges[hurried](t, f.Store, s), v, charge[hurried]{Note: "order"})
				wantAttempt(t, second, 2, true)
				g.open()
				replayed(t, await(t, first, "the first owner's answer"), second)
				if cause != idempotency.ErrLeaseLost {
					t.Errorf("the handler's context has ended with the cause %v, want ErrLeaseLost", cause)
				}
				if inTx == nil {
					t.Error("InTx succeeds after the lease was lost")
				}
				s.wantRuns(t, 2)
				wantDatabase(t, f, 1, "order")
			}},
		{"RenewedLeaseIsNotTakenOver_L13",
			"A handler that takes longer than its lease stays the only one for as long as its process lives.",
			func(t *testing.T, f Fixture) {
				g, renewed := newGate(t), make(chan struct{}, 1000)
				// The store gives an hour where the engine believes in less than a second, so that renewals come often and a slow
				// machine loses no lease.
				watched := tap{Store: f.Store, lease: func(_ context.Context, c idempotency.Claim, take taking) (idempotency.Lease, *idempotency.Record, error) {
					c.Lease = time.Hour
					return take(c)
				}, renew: func(_ context.Context, renew func() error) error {
					err := renew()
					if err == nil {
						renewed <- struct{}{}
					}
					return err
				}}
				s := &till{f: f, outside: g.first}
				v, cmd := request(t, "renewed-lease-1"), charge[pulsing]{Note: "order"}
				first := background(within(t), charges[pulsing](t, watched, s), v, cmd)
				await(t, g.entered, "the owner's start")
				f.Age(t, 2*time.Hour)
				for len(renewed) > 0 {
					<-renewed
				}
				for range 2 { // the second one has begun after the lease was over
					await(t, renewed, "a renewal")
				}
				failed[*idempotency.InProgressError](t, call(within(t), charges[hurried](t, f.Store, s), v, charge[hurried]{Note: "order"}), requestctx.StateInProgress)
				if left := wantKept(t, f, v, idempotency.InProgress, 1).LeaseLeft; left < time.Hour-slack {
					t.Errorf("%v are left of a lease of an hour that is renewed all the time", left)
				}
				g.open()
				wantAttempt(t, await(t, first, "the owner's answer"), 1, false)
				s.wantRuns(t, 1)
				wantKept(t, f, v, idempotency.Completed, 1)
				wantDatabase(t, f, 1, "order")
			}},
	}
}
