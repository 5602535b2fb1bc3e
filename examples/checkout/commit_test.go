package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"

	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore/pgtest"
)

// COMMIT and its answer are lost, held and delayed on the wire between the service and PostgreSQL, by a proxy that reads the
// frames. Whatever happens there, there is one order.

// wires are what can happen to a COMMIT. A release lets go of what is held.
var wires = []struct {
	name   string
	action pgtest.Action
}{
	{"X06 COMMIT never reaches the server", pgtest.Drop},
	{"X07 COMMIT is executed and its answer is lost", pgtest.DropAnswer},
	{"X07 COMMIT is executed and its answer is held", pgtest.HoldAnswer},
	{"X08 COMMIT is held on its way", pgtest.Hold},
	{"X08 COMMIT is delivered after its connection is cut", pgtest.Delay},
}

// happens waits for the fault, which comes before the answer.
func happens(t *testing.T, fault *pgtest.Armed, first <-chan sent) {
	t.Helper()
	select {
	case <-fault.Fired():
	case got := <-first:
		t.Fatalf("answered without the fault: %v %v", got.err, got.answer)
	}
}

// The caller waits. What it gets is never an error that it could not send again, and is the truth.
func TestX06X07X08_TheCallerThatWaitsGetsTheOrder(t *testing.T) {
	t.Parallel()
	for _, wire := range wires {
		t.Run(wire.name, func(t *testing.T) {
			t.Parallel()
			d := postgresDatabase(t)
			proxy := d.postgres.Proxy()
			kept, store := openAt(t, proxy.URL())
			s := serveOn(t, kept, store, nil)
			release := make(chan struct{})
			lost := proxy.Arm(pgtest.Fault{Match: pgtest.IsCommit, Action: wire.action, Release: release})
			body := payment("cart-1", 4990)
			first := sendAside(within(t), s.base, d.key("lost-commit"), body)
			happens(t, lost, first)
			close(release)
			got := await(t, first, "the answer")
			if got.err != nil {
				t.Fatal(got.err)
			}
			order := got.placed(t)
			if got.replayed() != "false" || got.header.Get("Idempotency-Original-Request-ID") != got.requestID() {
				t.Errorf("its own work is given as a replay: %v", got.answer)
			}
			d.holds(t, 1, 1)
			runs := int64(1)
			if wire.action == pgtest.Drop { // nothing was committed, so the attempt is made again
				runs = 2
			}
			if n := s.runs.Load(); n != runs {
				t.Errorf("the handler ran %d times, want %d", n, runs)
			}
			if retry, again := settled(t, s.base, d.key("lost-commit"), body); again.Placed != order.Placed || retry.replayed() != "true" {
				t.Errorf("the retry: %v", retry)
			}
			d.holds(t, 1, 1)
		})
	}
}

// BR-02: the caller gives up while the COMMIT is on its way, and asks again.
func TestBR02_TheCallerThatGaveUpFindsItsOrder(t *testing.T) {
	t.Parallel()
	for _, wire := range wires {
		t.Run(wire.name, func(t *testing.T) {
			t.Parallel()
			d := postgresDatabase(t)
			proxy := d.postgres.Proxy()
			kept, store := openAt(t, proxy.URL())
			s := serveOn(t, kept, store, nil)
			release := make(chan struct{})
			lost := proxy.Arm(pgtest.Fault{Match: pgtest.IsCommit, Action: wire.action, Release: release})
			body := payment("cart-1", 4990)
			ctx, giveUp := context.WithCancel(within(t))
			first := sendAside(ctx, s.base, d.key("caller-gave-up"), body)
			happens(t, lost, first)
			giveUp()
			if got := await(t, first, "the caller's end"); !errors.Is(got.err, context.Canceled) && got.err != nil {
				t.Fatal(got.err)
			}
			during := post(t, s.base, d.key("caller-gave-up"), body) // the fault may be over for a COMMIT that nothing holds
			if !during.busy() {
				during.placed(t)
			}
			close(release)
			retry, order := settled(t, s.base, d.key("caller-gave-up"), body)
			if wire.action != pgtest.Drop && retry.replayed() != "true" { // what never reached the server is not there to replay
				t.Errorf("the retry: %v", retry)
			}
			if !during.busy() && during.placed(t).Placed != order.Placed {
				t.Errorf("two orders were answered: %v and %v", during, retry)
			}
			if n := s.runs.Load(); n > 1 && wire.action != pgtest.Drop {
				t.Errorf("the handler ran %d times", n)
			}
			d.holds(t, 1, 1)
		})
	}
}

// The request is doubled: while the COMMIT of the first one is in trouble, the same request reaches another server, whose wire
// is sound.
func TestX06X07X08_ADoubledRequestMakesOneOrder(t *testing.T) {
	t.Parallel()
	for _, wire := range wires {
		for _, body := range []string{payment("cart-1", 4990), payment("cart-1-declined", 4990)} {
			name, orders := wire.name, 1
			if body != payment("cart-1", 4990) {
				name, orders = wire.name+", of a refusal", 0
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				d := postgresDatabase(t)
				proxy := d.postgres.Proxy()
				kept, store := openAt(t, proxy.URL())
				r1, r2 := serveOn(t, kept, store, nil), serve(t, d, nil)
				release := make(chan struct{})
				lost := proxy.Arm(pgtest.Fault{Match: pgtest.IsCommit, Action: wire.action, Release: release})
				first := sendAside(within(t), r1.base, d.key("doubled-request"), body)
				happens(t, lost, first)
				second := post(t, r2.base, d.key("doubled-request"), body)
				close(release)
				got := await(t, first, "the first answer")
				if got.err != nil {
					t.Fatal(got.err)
				}
				third, err := settle(within(t), r1.base, d.key("doubled-request"), body)
				if err != nil {
					t.Fatal(err)
				}
				fourth, err := settle(within(t), r2.base, d.key("doubled-request"), body)
				if err != nil {
					t.Fatal(err)
				}
				want := http.StatusCreated
				if orders == 0 {
					want = http.StatusPaymentRequired
				}
				fresh := 0
				for i, a := range []answer{got.answer, second, third, fourth} {
					if a.busy() && i < 2 {
						continue
					}
					if a.status != want || a.header.Get("Location") != third.header.Get("Location") {
						t.Errorf("answer %d: %v", i+1, a)
					}
					if a.replayed() == "false" {
						fresh++
					}
				}
				if fresh > 1 || third.header.Get("Idempotency-Original-Request-ID") != fourth.header.Get("Idempotency-Original-Request-ID") {
					t.Errorf("%d answers claim to have done the work:\n%v\n%v\n%v\n%v", fresh, got.answer, second, third, fourth)
				}
				d.holds(t, orders, 1)
			})
		}
	}
}

// BR-02(3): the fault is at the claim.
func TestBR02_ALostClaimRunsNothing(t *testing.T) {
	t.Parallel()
	for _, action := range []pgtest.Action{pgtest.Drop, pgtest.DropAnswer} {
		t.Run(action.String(), func(t *testing.T) {
			t.Parallel()
			d := postgresDatabase(t)
			proxy := d.postgres.Proxy()
			kept, store := openAt(t, proxy.URL())
			s := serveOn(t, kept, store, nil)
			proxy.Arm(pgtest.Fault{Match: pgtest.Contains("pg_try_advisory_xact_lock"), Action: action})
			body := payment("cart-1", 4990)
			failed := post(t, s.base, d.key("lost-claim"), body)
			failed.is(t, http.StatusServiceUnavailable, "IDEMPOTENCY_STORE_UNAVAILABLE")
			discreet(t, failed)
			if n := s.runs.Load(); n != 0 {
				t.Errorf("the handler ran %d times", n)
			}
			d.holds(t, 0, 0)
			if retry, _ := settled(t, s.base, d.key("lost-claim"), body); retry.replayed() != "false" {
				t.Errorf("the retry: %v", retry)
			}
			d.holds(t, 1, 1)
		})
	}
}

// X09: the answer to COMMIT is lost, and the database with it. Nobody knows, the answer says so, and the key tells later.
func TestX09_AnUnknownOutcomeIsFoundOutLater(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		action   pgtest.Action
		replayed bool
	}{{pgtest.DropAnswer, true}, {pgtest.Drop, false}} {
		t.Run(c.action.String(), func(t *testing.T) {
			t.Parallel()
			d := postgresDatabase(t)
			proxy := d.postgres.Proxy()
			kept, store := openAt(t, with(t, proxy.URL(), "pool_max_conns", "1"))
			s := serveOn(t, kept, store, nil)
			if a := get(t, s.base+"/healthz"); a.status != http.StatusOK { // the pool's one connection is made
				t.Fatal(a)
			}
			proxy.Arm(pgtest.Fault{Match: pgtest.IsCommit, Action: c.action})
			proxy.Refuse(true)
			body := payment("cart-1", 4990)
			unknown := post(t, s.base, d.key("unknown-outcome"), body)
			unknown.is(t, http.StatusServiceUnavailable, "IDEMPOTENCY_OUTCOME_UNKNOWN")
			discreet(t, unknown)
			if p := unknown.problem(t); p.Retry != "same-key" || unknown.header.Get("Retry-After") != "2" {
				t.Errorf("%v", unknown)
			}
			proxy.Refuse(false)
			if retry, _ := settled(t, s.base, d.key("unknown-outcome"), body); retry.replayed() != fmt.Sprint(c.replayed) {
				t.Errorf("the retry: %v", retry)
			}
			d.holds(t, 1, 1)
		})
	}
}

// A payment that calls the provider commits twice: its claim, before the call, with the statement that makes it, and the order, after the
// call. Whatever becomes of either, there is one order and one authorisation.
func TestX06X07X08_Leased_ALostCommitIsOneOrderAndOneAuthorisation_BR02_BR08(t *testing.T) {
	t.Parallel()
	for _, wire := range wires {
		for _, ofClaim := range []bool{true, false} {
			name, match := wire.name+", of the order", pgtest.IsCommit
			if ofClaim {
				name, match = wire.name+", of the claim", pgtest.Contains("ON CONFLICT (id) DO NOTHING")
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				d := postgresDatabase(t)
				proxy := d.postgres.Proxy()
				release := make(chan struct{})
				fault := pgtest.Fault{Match: match, Action: wire.action, Release: release}
				g := newGate(t)
				f := provide(t, func(int64) bool { g.pass(); return true })
				kept, store := openAt(t, proxy.URL())
				s := serveWith(t, kept, store, f.options(t), nil)
				key, body := d.key("lost-leased-commit"), payment("cart-1", 4990)
				var lost *pgtest.Armed
				var first <-chan sent
				if ofClaim {
					g.release()
					lost = proxy.Arm(fault)
					first = sendAside(within(t), s.base, key, body)
				} else {
					first = sendAside(within(t), s.base, key, body)
					await(t, g.come, "the provider")
					lost = proxy.Arm(fault)
					g.release()
				}
				happens(t, lost, first)
				close(release)
				got := await(t, first, "the answer")
				if got.err != nil {
					t.Fatal(got.err)
				}
				switch {
				case got.status == http.StatusCreated:
					if got.placed(t); got.replayed() != "false" {
						t.Errorf("its own work is given as a replay: %v", got.answer)
					}
				case ofClaim || wire.action == pgtest.DropAnswer || wire.action == pgtest.HoldAnswer: // it has happened
					t.Errorf("%v", got.answer)
				default: // what the late COMMIT would have done was made impossible, and the key freed
					got.is(t, http.StatusServiceUnavailable, "IDEMPOTENCY_STORE_UNAVAILABLE")
					if discreet(t, got.answer); got.problem(t).Retry != "same-key" {
						t.Errorf("%v", got.answer)
					}
				}
				retry, order := settled(t, s.base, key, body)
				if got.status == http.StatusCreated && (retry.replayed() != "true" || got.placed(t).Placed != order.Placed) {
					t.Errorf("two orders were answered: %v and %v", got.answer, retry)
				}
				if auth := f.keeps(t, 1)[0]; auth.ID != order.AuthID {
					t.Errorf("%+v of %+v", order, auth)
				}
				if n := f.posts.Load(); n != 1 {
					t.Errorf("the provider was asked %d times to authorise", n)
				}
				d.settles(t, 1)
				t.Logf("the first answer was %d, and the retry replayed: %s", got.status, retry.replayed())
			})
		}
	}
}
