package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/registry"
	"github.com/tekil-go/tekil/requestctx/httpedge"
)

// Cases about a payment that calls a provider: the command is Leased, and the provider stands beside the service in this process.

// leased serves a checkout that calls f, on d, until the end of the test.
func leased(t *testing.T, d *database, f *far, then func(ctx context.Context, run int64) error) *site {
	t.Helper()
	return leasedBy(t, d, f.client(t, patience), then)
}

// leasedBy is leased for a checkout that calls p.
func leasedBy(t *testing.T, d *database, p payments, then func(ctx context.Context, run int64) error) *site {
	t.Helper()
	kept, store := d.open(t)
	return serveWith(t, kept, store, options{provider: p}, then)
}

// gate holds whoever comes until it is opened, or until the test ends.
type gate struct {
	come, open chan struct{}
	over       context.Context
}

func newGate(t *testing.T) *gate {
	return &gate{make(chan struct{}, 100), make(chan struct{}), t.Context()}
}

func (g *gate) pass() {
	g.come <- struct{}{}
	select {
	case <-g.open:
	case <-g.over.Done():
	}
}

func (g *gate) release() { close(g.open) }

// unknown demands "nobody knows", with a time to come again that is not after the end of the lease.
func (a answer) unknown(t *testing.T) {
	t.Helper()
	a.is(t, http.StatusServiceUnavailable, "IDEMPOTENCY_OUTCOME_UNKNOWN")
	discreet(t, a)
	if after, err := strconv.Atoi(a.header.Get("Retry-After")); err != nil || after < 1 || after > 30 || a.problem(t).Retry != httpedge.SameKey {
		t.Errorf("when to come again: %v", a)
	}
}

func TestLeased_OneKeyIsOneOrderAndOneAuthorisation(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		f := provide(t, nil)
		s := leased(t, d, f, nil)
		key := d.key("with-a-provider")
		// A form that is refused costs no key and no call.
		post(t, s.base, key, payment("cart-1", 0)).is(t, http.StatusBadRequest, "VALIDATION_FAILED")
		post(t, s.base, "", payment("cart-1", 4990)).is(t, http.StatusBadRequest, "IDEMPOTENCY_KEY_MISSING")
		if n := f.posts.Load(); n != 0 {
			t.Errorf("the provider was called %d times", n)
		}
		d.holds(t, 0, 0)

		first, second := post(t, s.base, key, payment("cart-1", 4990)), post(t, s.base, key, payment("cart-1", 4990))
		if first.placed(t).Placed != second.placed(t).Placed || first.replayed() != "false" || second.replayed() != "true" {
			t.Errorf("%v\n%v", first, second)
		}
		if auth := f.keeps(t, 1)[0]; auth.ID != first.placed(t).AuthID || auth.Charge != (Charge{"cart-1", 4990, "TRY"}) {
			t.Errorf("the provider holds %+v", auth)
		}
		post(t, s.base, key, payment("cart-1", 5990)).is(t, http.StatusConflict, "IDEMPOTENCY_KEY_CONFLICT")
		post(t, s.base, d.key("another-intent"), payment("cart-1", 4990)).placed(t)
		f.keeps(t, 2)
		d.settles(t, 2)
		if n := d.count(t, `SELECT count(*) FROM idempotency_records r JOIN authorizations a ON a.auth_id = r.external_ref`); n != 2 {
			t.Errorf("%d records name their authorisation", n)
		}
	})
}

// R03: what the provider declines is an outcome, and it is asked once.
func TestLeased_ADeclinedPaymentIsDeclinedAgain_R03(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		f := provide(t, nil)
		s := leased(t, d, f, nil)
		for _, replayed := range []string{"false", "true"} {
			a := post(t, s.base, d.key("declined-there"), payment("cart-1-declined", 4990))
			a.is(t, http.StatusPaymentRequired, "PAYMENT_DECLINED")
			if a.replayed() != replayed || a.problem(t).Retry != httpedge.Never {
				t.Errorf("%v", a)
			}
		}
		if n := f.posts.Load(); n != 1 {
			t.Errorf("the provider was asked %d times", n)
		}
		f.keeps(t, 0)
		d.holds(t, 0, 1)
	})
}

// L03, L04: what others are told while the provider takes its time, by this server and by another one.
func TestBR03_Leased_ClientHangsUp_L03_L04(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		g := newGate(t)
		f := provide(t, func(int64) bool { g.pass(); return true })
		s, other := leased(t, d, f, nil), leased(t, d, f, nil)
		key, body := d.key("client-hangs-up"), payment("cart-1", 4990)
		ctx, hangUp := context.WithCancel(within(t))
		first := sendAside(ctx, s.base, key, body)
		await(t, g.come, "the provider")
		hangUp()
		if got := await(t, first, "the hang-up"); !errors.Is(got.err, context.Canceled) {
			t.Fatalf("the client did not hang up: %v %v", got.err, got.answer)
		}
		for _, base := range []string{s.base, other.base} {
			if busy := post(t, base, key, body); !busy.busy() {
				t.Errorf("while the provider works: %v", busy)
			}
			post(t, base, key, payment("cart-1", 5990)).is(t, http.StatusConflict, "IDEMPOTENCY_KEY_CONFLICT")
		}
		d.holds(t, 0, 1) // the claim is committed, and nothing else
		g.release()
		for _, base := range []string{s.base, other.base} {
			if retry, _ := settled(t, base, key, body); retry.replayed() != "true" {
				t.Errorf("the retry: %v", retry)
			}
		}
		if n := f.posts.Load(); n != 1 {
			t.Errorf("the provider was asked %d times", n)
		}
		f.keeps(t, 1)
		d.settles(t, 1)
	})
}

// BR-03(5): SIGTERM comes while the provider works. The payment is finished and nothing waits for a lease.
func TestBR03_Leased_SIGTERMDrains(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		g := newGate(t)
		f := provide(t, func(int64) bool { g.pass(); return true })
		server := start(t, append(d.flags(), "-provider", f.base)...)
		first := sendAside(within(t), server.base, d.key("slow-provider"), payment("cart-1", 4990))
		await(t, g.come, "the provider")
		server.signal(t, syscall.SIGTERM)
		await(t, server.draining, "draining")
		refused(t, server)
		g.release()
		got := await(t, first, "the answer")
		if got.err != nil {
			t.Fatal(got.err)
		}
		order := got.placed(t)
		await(t, server.exited, "the server's end")
		if server.code() != 0 {
			t.Errorf("the exit code is %d: %s", server.code(), server.stderr.String())
		}
		if auth := f.keeps(t, 1)[0]; auth.ID != order.AuthID {
			t.Errorf("%+v of %+v", order, auth)
		}
		d.settles(t, 1)
	})
}

// BR-05(3), BR-41: the provider has authorised, and then the handler fails in a way that says nothing of an unknown outcome. The
// same payload may run at once, finds the authorisation and takes no second one.
func TestBR05_Leased_AFailureAfterTheCallIsMadeGoodByTheRetry_BR41(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		f := provide(t, nil)
		s := leased(t, d, f, func(_ context.Context, run int64) error {
			if run <= 2 {
				return errors.New("the receipt could not be printed for ada@example.com")
			}
			return nil
		})
		key, body := d.key("fails-after-call"), payment("cart-1", 4990)
		for range 2 { // the second time it is the reconciler that has failed
			a := post(t, s.base, key, body)
			a.is(t, http.StatusInternalServerError, "INTERNAL")
			discreet(t, a)
			if a.problem(t).Retry != httpedge.SameKey || a.replayed() != "false" || strings.Contains(string(a.body)+s.log.String(), "ada@") {
				t.Errorf("%v", a)
			}
			d.holds(t, 0, 1)
			f.keeps(t, 1)
		}
		if n := d.count(t, `SELECT count(*) FROM idempotency_records WHERE state = 'failed' AND attempts = 2`); n != 1 {
			t.Errorf("%d failed records of two attempts", n)
		}
		post(t, s.base, key, payment("cart-1", 5990)).is(t, http.StatusConflict, "IDEMPOTENCY_KEY_CONFLICT") // R09
		retry := post(t, s.base, key, body)
		if auth := f.keeps(t, 1)[0]; retry.placed(t).AuthID != auth.ID || retry.replayed() != "false" {
			t.Errorf("the retry: %v", retry)
		}
		if n := f.posts.Load(); n != 1 {
			t.Errorf("the provider was asked %d times to authorise", n)
		}
		d.settles(t, 1)
	})
}

// BR-06: A's lease is over, B has taken the key over, and then A ends, in either way. What it does changes nothing.
func TestBR06_Leased_ALateOwnerChangesNothing_L09(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		late error // of A's call to the provider
	}{{"A has succeeded", nil}, {"A has failed", errors.New("the provider's answer was lost on its way")}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			both(t, func(t *testing.T, d *database) {
				f := provide(t, nil)
				late, slow := newGate(t), newGate(t)
				client := f.client(t, patience)
				a := leasedBy(t, d, callsOut{client, func(ctx context.Context, key string, charge Charge) (Authorization, error) {
					auth, err := client.authorize(ctx, key, charge)
					late.pass()
					return auth, errors.Join(err, c.late)
				}}, nil)
				b := leasedBy(t, d, finds{client, slow}, nil)
				third := leased(t, d, f, nil)

				key, body := d.key("late-owner"), payment("cart-1", 4990)
				first := sendAside(within(t), a.base, key, body)
				await(t, late.come, "A at the provider")
				d.expireLeases(t)
				second := sendAside(within(t), b.base, key, body)
				await(t, slow.come, "B, who has taken over")
				late.release()
				got := await(t, first, "A's answer")
				if got.err != nil {
					t.Fatal(got.err)
				}
				if !got.busy() { // what the record says: it is B's, and in progress
					t.Errorf("A is told %v", got.answer)
				}
				if c := post(t, third.base, key, body); !c.busy() {
					t.Errorf("C while B works: %v", c)
				}
				d.holds(t, 0, 1)
				slow.release()
				if got = await(t, second, "B's answer"); got.err != nil {
					t.Fatal(got.err)
				}
				order := got.placed(t)
				if got.replayed() != "false" {
					t.Errorf("B: %v", got.answer)
				}
				for _, base := range []string{a.base, b.base, third.base} {
					if again, p := settled(t, base, key, body); p.Placed != order.Placed || again.replayed() != "true" {
						t.Errorf("afterwards: %v", again)
					}
				}
				if auth := f.keeps(t, 1)[0]; auth.ID != order.AuthID {
					t.Errorf("%+v of %+v", order, auth)
				}
				if !strings.Contains(a.log.String(), `"state":"in_progress"`) && !strings.Contains(a.log.String(), `"state":"lost"`) {
					t.Errorf("A's log does not say what has happened: %s", a.log)
				}
				d.settles(t, 1)
			})
		})
	}
}

// L20: A is still on its way to the provider when B, which found nothing there, has been there and back. Both call, under one key.
func TestLeased_TwoOwnersBothCallTheProviderAndPayOnce_L20(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		f := provide(t, nil)
		late := newGate(t)
		client := f.client(t, patience)
		a := leasedBy(t, d, callsOut{client, func(ctx context.Context, key string, charge Charge) (Authorization, error) {
			late.pass()
			return client.authorize(ctx, key, charge)
		}}, nil)
		b := leased(t, d, f, nil)
		key, body := d.key("two-owners"), payment("cart-1", 4990)
		first := sendAside(within(t), a.base, key, body)
		await(t, late.come, "A on its way")
		d.expireLeases(t)
		order := post(t, b.base, key, body)
		if order.placed(t); order.replayed() != "false" {
			t.Errorf("B: %v", order)
		}
		late.release()
		got := await(t, first, "A's answer")
		if got.err != nil {
			t.Fatal(got.err)
		}
		if got.placed(t).Placed != order.placed(t).Placed || got.replayed() != "true" { // never its own work
			t.Errorf("A is told %v", got.answer)
		}
		if n := f.posts.Load(); n != 2 {
			t.Errorf("the provider was called %d times", n)
		}
		f.keeps(t, 1)
		d.settles(t, 1)
	})
}

// BR-29: while the provider works nobody holds a connection, nor the write lock of SQLite. One connection is enough for all.
func TestBR29_Leased_NoConnectionIsHeldWhileTheProviderWorks(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		const payments = 8
		g := newGate(t)
		f := provide(t, func(int64) bool { g.pass(); return true })
		var kept orders
		var store idempotency.Store
		if d.postgres != nil {
			kept, store = openAt(t, with(t, d.postgres.Proxy().URL(), "pool_max_conns", "1"))
		} else {
			kept, store = d.open(t)
			kept.(sqlite).db.SetMaxOpenConns(1)
		}
		s := serveWith(t, kept, store, f.options(t), nil)
		var all []<-chan sent
		for i := range payments {
			all = append(all, sendAside(within(t), s.base, d.key(fmt.Sprintf("one-connection-%d", i)), payment("cart-1", int64(100+i))))
		}
		for range payments {
			await(t, g.come, "all at the provider at once")
		}
		if a := get(t, s.base+"/api/v1/orders"); string(a.body) != `{"orders":[]}`+"\n" {
			t.Errorf("meanwhile: %v", a)
		}
		g.release()
		for _, c := range all {
			got := await(t, c, "an answer")
			if got.err != nil {
				t.Fatal(got.err)
			}
			got.placed(t)
		}
		agree(t, s.base, f.keeps(t, payments))
		d.settles(t, payments)
	})
}

// callsOut is a provider whose call to authorise is another one.
type callsOut struct {
	payments
	call func(ctx context.Context, key string, c Charge) (Authorization, error)
}

func (p callsOut) authorize(ctx context.Context, key string, c Charge) (Authorization, error) {
	return p.call(ctx, key, c)
}

// finds is a provider that is slow to say what it knows.
type finds struct {
	payments
	gate *gate
}

func (p finds) find(ctx context.Context, key string) (Authorization, bool, error) {
	a, found, err := p.payments.find(ctx, key)
	p.gate.pass()
	return a, found, err
}

// L10: an owner whose lease is over and whom nobody has replaced completes.
func TestLeased_ALateOwnerWhomNobodyReplacedCompletes_L10(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		g := newGate(t)
		f := provide(t, func(int64) bool { g.pass(); return true })
		s := leased(t, d, f, nil)
		first := sendAside(within(t), s.base, d.key("late-but-alone"), payment("cart-1", 4990))
		await(t, g.come, "the provider")
		d.expireLeases(t)
		g.release()
		got := await(t, first, "the answer")
		if got.err != nil {
			t.Fatal(got.err)
		}
		got.placed(t)
		f.keeps(t, 1)
		d.settles(t, 1)
	})
}

// L08: the lease is over and sixteen come at once, over two servers.
func TestLeased_OneOfSixteenTakesOver_L08(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		f := provide(t, func(post int64) bool { return post > 1 }) // the first answer is lost
		s := []*site{leased(t, d, f, nil), leased(t, d, f, nil)}
		key, body := d.key("sixteen-at-once"), payment("cart-1", 4990)
		post(t, s[0].base, key, body).unknown(t)
		d.expireLeases(t)
		fresh := 0
		for _, a := range inParallel(t, 16, func(ctx context.Context, i int) (answer, error) { return send(ctx, s[i%2].base, key, body) }) {
			if a.busy() {
				continue
			}
			if a.placed(t); a.replayed() == "false" {
				fresh++
			}
		}
		if fresh != 1 {
			t.Errorf("%d have taken over", fresh)
		}
		if n := d.count(t, `SELECT count(*) FROM idempotency_records WHERE attempts = 2`); n != 1 {
			t.Errorf("%d records of two attempts", n)
		}
		f.keeps(t, 1)
		d.settles(t, 1)
	})
}

// BR-14, R06: the handler does not return.
func TestBR14_Leased_AHandlerThatDoesNotReturn_R06(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		end  func()
		gone bool // without an answer
	}{{"panic", func() { panic("ada@example.com") }, false}, {"Goexit", runtime.Goexit, true}} {
		t.Run(c.name+" before the call", func(t *testing.T) {
			t.Parallel()
			both(t, func(t *testing.T, d *database) {
				f := provide(t, nil)
				kept, store := d.open(t)
				var runs atomic.Int64
				service := checkout{kept, f.client(t, patience)}
				base := serveHandler(t, store, func(ctx context.Context, cmd PlaceWithProvider) (Placed, error) {
					if runs.Add(1) == 1 {
						c.end()
					}
					return service.placeWithProvider(ctx, cmd)
				}, registry.Reconcile(service.reconcile))
				key, body := d.key("ends-before-call"), payment("cart-1", 4990)
				ended(t, base, key, body, c.gone)
				if n := d.count(t, `SELECT count(*) FROM idempotency_records WHERE state = 'failed'`); n != 1 {
					t.Errorf("%d failed records", n)
				}
				if retry := post(t, base, key, body); retry.placed(t).CartID != "cart-1" || retry.replayed() != "false" { // at once
					t.Errorf("the retry: %v", retry)
				}
				f.keeps(t, 1)
				d.settles(t, 1)
			})
		})
		t.Run(c.name+" after the call", func(t *testing.T) {
			t.Parallel()
			both(t, func(t *testing.T, d *database) {
				f := provide(t, nil)
				s := leased(t, d, f, func(_ context.Context, run int64) error {
					if run == 1 {
						c.end()
					}
					return nil
				})
				key, body := d.key("ends-after-call"), payment("cart-1", 4990)
				ended(t, s.base, key, body, c.gone)
				if strings.Contains(s.log.String(), "ada@") {
					t.Errorf("the value of the panic is told: %s", s.log)
				}
				d.holds(t, 0, 1)
				if busy := post(t, s.base, key, body); !busy.busy() { // nobody knows what it has done, so the lease runs
					t.Errorf("at once: %v", busy)
				}
				d.expireLeases(t)
				retry := post(t, s.base, key, body)
				if auth := f.keeps(t, 1)[0]; retry.placed(t).AuthID != auth.ID || retry.replayed() != "false" {
					t.Errorf("after the lease: %v", retry)
				}
				d.settles(t, 1)
			})
		})
	}
}

// ended posts a payment whose handler does not return: the answer is an error or none, and never tells the value of a panic.
func ended(t *testing.T, base, key, body string, gone bool) {
	t.Helper()
	a, err := send(within(t), base, key, body)
	if (err != nil) != gone {
		t.Fatalf("%v %v", err, a)
	}
	if gone { // after Goexit nobody is there who could answer
		return
	}
	a.is(t, http.StatusInternalServerError, "INTERNAL")
	if a.problem(t).Retry != httpedge.SameKey || bytes.Contains(a.body, []byte("ada@")) {
		t.Errorf("%v", a)
	}
}

// serveHandler serves one command at the route of payments, until the end of the test.
func serveHandler[C bus.Command[Placed]](t *testing.T, store idempotency.Store, h func(context.Context, C) (Placed, error), o ...registry.Option[C, Placed]) string {
	t.Helper()
	reg := registry.New(registry.Config{Logger: zap.NewNop(), Store: store})
	registry.Handle(reg, h, o...)
	b, err := reg.Build()
	if err != nil {
		t.Fatal(err)
	}
	edge, err := httpedge.New(httpedge.Config{Anonymous: true})
	if err != nil {
		t.Fatal(err)
	}
	route, err := httpedge.Command(edge, b, placeRoute, httpedge.Options[C, Placed]{Status: http.StatusCreated})
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle(placeRoute, route)
	return listen(t, mux)
}

// PlaceOnce is a payment that is not made a second time by itself: a person decides.
type PlaceOnce Place

func (PlaceOnce) CommandName() bus.Name[Placed] { return placeName }

func (PlaceOnce) Idempotency() idempotency.Policy {
	return idempotency.Policy{Mode: idempotency.Leased, Lease: time.Hour, Takeover: idempotency.Refuse}
}

// PlaceAgain is one that is.
type PlaceAgain Place

func (PlaceAgain) CommandName() bus.Name[Placed] { return placeName }

func (PlaceAgain) Idempotency() idempotency.Policy {
	return idempotency.Policy{Mode: idempotency.Leased, Lease: idempotency.MinLease, Takeover: idempotency.RunAgain}
}

// BR-32: after a lease that is over, each command has its own way: a person decides, or it runs again, and then the downstream key is
// what keeps the second call from being a second payment.
func TestBR32_WhatComesAfterADeadAttemptIsTheCommandsChoice(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		var lost atomic.Bool // the provider's answers are
		f := provide(t, func(int64) bool { return !lost.Load() })
		kept, store := d.open(t)
		service := checkout{kept, f.client(t, patience)}
		var runs atomic.Int64
		handler := func(ctx context.Context, cmd PlaceWithProvider) (Placed, error) {
			runs.Add(1)
			return service.placeWithProvider(ctx, cmd)
		}
		once := serveHandler(t, store, func(ctx context.Context, cmd PlaceOnce) (Placed, error) { return handler(ctx, PlaceWithProvider(cmd)) })
		again := serveHandler(t, store, func(ctx context.Context, cmd PlaceAgain) (Placed, error) { return handler(ctx, PlaceWithProvider(cmd)) })

		key, body := d.key("refuse-to-repeat"), payment("cart-1", 4990)
		lost.Store(true)
		first := post(t, once, key, body)
		lost.Store(false)
		first.is(t, http.StatusServiceUnavailable, "IDEMPOTENCY_OUTCOME_UNKNOWN")
		if after, err := strconv.Atoi(first.header.Get("Retry-After")); err != nil || after <= 3000 || after > 3600 { // its own lease
			t.Errorf("when to come again: %v", first)
		}
		if busy := post(t, once, key, body); !busy.busy() {
			t.Errorf("during the lease: %v", busy)
		}
		d.expireLeases(t)
		for range 2 {
			review := post(t, once, key, body)
			review.is(t, http.StatusConflict, "IDEMPOTENCY_OUTCOME_UNKNOWN")
			if p := review.problem(t); p.Retry != httpedge.Never || review.header.Get("Retry-After") != "" {
				t.Errorf("after the lease: %v", review)
			}
		}
		if n := runs.Load(); n != 1 {
			t.Errorf("the handler ran %d times", n)
		}
		// The person looks, sees the key, and decides that it may run: the provider knows it by its key.
		log := new(buffer)
		admin, err := idempotency.NewAdmin(idempotency.AdminConfig{Store: store, Logger: (&site{log: log}).logger()})
		if err != nil {
			t.Fatal(err)
		}
		found, err := admin.Find(within(t), idempotency.Search{Key: key})
		if err != nil || len(found) != 1 || found[0].State != idempotency.InProgress || found[0].LeaseLeft != 0 {
			t.Fatalf("%+v %v", found, err)
		}
		if err := admin.Release(within(t), found[0].ID, idempotency.Intervention{By: "ayse", Reason: "the provider holds it"}); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(log.String(), `"by":"ayse"`) {
			t.Errorf("the intervention is not on record: %s", log)
		}
		if a := post(t, once, key, body); a.placed(t).AuthID != f.keeps(t, 1)[0].ID || runs.Load() != 2 {
			t.Errorf("after the release: %v, run %d times", a, runs.Load())
		}

		key = d.key("run-it-again")
		lost.Store(true)
		post(t, again, key, body).unknown(t)
		lost.Store(false)
		d.expireLeases(t)
		if a := post(t, again, key, body); a.placed(t).AuthID != f.keeps(t, 2)[0].ID || runs.Load() != 4 {
			t.Errorf("run again: %v, run %d times", a, runs.Load())
		}
		d.settles(t, 2)
	})
}

// R08: the provider has authorised and nobody hears of it. The caller is told so and when to come again; until the lease is over the
// key is in progress, and after it there is one order for the one authorisation.
func TestR08_AnUnknownOutcomeIsFoundOutAfterTheLease(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		timeout time.Duration
		answer  func(http.ResponseWriter) // instead of the provider's own, once
	}{
		{"the provider times out", 100 * time.Millisecond, nil},
		{"the connection breaks", patience, func(http.ResponseWriter) { panic(http.ErrAbortHandler) }},
		{"an error without a word", patience, func(w http.ResponseWriter) { w.WriteHeader(http.StatusBadGateway) }},
		{"an answer that is none", patience, func(w http.ResponseWriter) { _, _ = io.WriteString(w, `<html>`) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			both(t, func(t *testing.T, d *database) {
				g := newGate(t)
				f := provide(t, nil)
				inner := f.handler()
				var asked atomic.Int64
				base := listen(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.Method == http.MethodGet || asked.Add(1) > 1 {
						inner.ServeHTTP(w, r)
						return
					}
					inner.ServeHTTP(discard{http.Header{}}, r)
					if c.answer == nil {
						g.pass()
						return
					}
					c.answer(w)
				}))
				s := leasedBy(t, d, clientOf(t, base, c.timeout), nil)
				key, body := d.key("unknown-outcome"), payment("cart-1", 4990)
				first := post(t, s.base, key, body)
				first.unknown(t)
				if n, _ := strconv.Atoi(first.header.Get("Retry-After")); n < 20 {
					t.Errorf("to come again before the end of the lease is in vain: %v", first)
				}
				g.release()
				d.holds(t, 0, 1)
				f.keeps(t, 1)
				if busy := post(t, s.base, key, body); !busy.busy() {
					t.Errorf("during the lease: %v", busy)
				}
				post(t, s.base, key, payment("cart-1", 5990)).is(t, http.StatusConflict, "IDEMPOTENCY_KEY_CONFLICT")
				d.expireLeases(t)
				post(t, s.base, key, payment("cart-1", 5990)).is(t, http.StatusConflict, "IDEMPOTENCY_KEY_CONFLICT") // L07
				retry := post(t, s.base, key, body)
				if auth := f.keeps(t, 1)[0]; retry.placed(t).AuthID != auth.ID || retry.replayed() != "false" {
					t.Errorf("after the lease: %v", retry)
				}
				if again := post(t, s.base, key, body); again.replayed() != "true" {
					t.Errorf("once more: %v", again)
				}
				if n := asked.Load(); n != 1 {
					t.Errorf("the provider was asked %d times to authorise", n)
				}
				d.settles(t, 1)
			})
		})
	}
}

// R07: where it is certain that nothing was done, nobody has to wait.
func TestR07_AProviderThatDidNothingFreesTheKeyAtOnce(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		status int // 0: nobody listens
		code   string
	}{
		{"nobody listens", 0, "PROVIDER_UNAVAILABLE"},
		{"it says not done", http.StatusServiceUnavailable, "PROVIDER_UNAVAILABLE"},
		{"it is busy", http.StatusTooManyRequests, "PROVIDER_UNAVAILABLE"},
		{"it does not take the request", http.StatusUnauthorized, "INTERNAL"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			both(t, func(t *testing.T, d *database) {
				f := provide(t, nil)
				real := f.client(t, patience)
				down := clientOf(t, "http://"+freeAddress(t), patience)
				if c.status != 0 {
					down = clientOf(t, listen(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						w.WriteHeader(c.status)
						if c.status == http.StatusServiceUnavailable {
							_, _ = io.WriteString(w, `{"code":"NOT_DONE"}`)
						}
					})), patience)
				}
				var calls atomic.Int64
				s := leasedBy(t, d, callsOut{real, func(ctx context.Context, key string, charge Charge) (Authorization, error) {
					if calls.Add(1) <= 2 {
						return down.authorize(ctx, key, charge)
					}
					return real.authorize(ctx, key, charge)
				}}, nil)
				key, body := d.key("nothing-done"), payment("cart-1", 4990)
				for range 2 {
					a := post(t, s.base, key, body)
					status := http.StatusServiceUnavailable
					if c.code == "INTERNAL" {
						status = http.StatusInternalServerError
					}
					a.is(t, status, c.code)
					discreet(t, a)
					if a.problem(t).Retry != httpedge.SameKey || a.header.Get("Retry-After") != "2" {
						t.Errorf("%v", a)
					}
					if n := d.count(t, `SELECT count(*) FROM idempotency_records WHERE state = 'failed'`); n != 1 {
						t.Errorf("%d failed records", n)
					}
				}
				f.keeps(t, 0)
				if a := post(t, s.base, key, body); a.placed(t).AuthID != f.keeps(t, 1)[0].ID || a.replayed() != "false" {
					t.Errorf("the retry: %v", a)
				}
				d.settles(t, 1)
			})
		})
	}
}

// A reconciler that cannot ask leaves the outcome as unknown as it was.
func TestLeased_AReconcilerThatCannotAskLeavesTheKeyInProgress(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		f := provide(t, func(int64) bool { return false })
		real := f.client(t, patience)
		down := clientOf(t, "http://"+freeAddress(t), patience)
		away := leasedBy(t, d, callsOut{down, real.authorize}, nil)
		key, body := d.key("cannot-ask"), payment("cart-1", 4990)
		for range 2 {
			post(t, away.base, key, body).unknown(t)
			if n := d.count(t, `SELECT count(*) FROM idempotency_records WHERE state = 'in_progress'`); n != 1 {
				t.Errorf("%d records in progress", n)
			}
			d.expireLeases(t)
		}
		back := leased(t, d, f, nil)
		if a := post(t, back.base, key, body); a.placed(t).AuthID != f.keeps(t, 1)[0].ID {
			t.Errorf("%v", a)
		}
		d.settles(t, 1)
	})
}

// T14: our record has expired and the provider remembers longer. It answers with what it did before, and that is not taken for new work.
func TestT14_WhatTheProviderRemembersIsNotTakenForNewWork(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		f := provide(t, nil)
		s := leased(t, d, f, nil)
		key := d.key("reused-key-there")
		first := post(t, s.base, key, payment("cart-1", 4990)).placed(t)
		d.expireRecords(t)
		for _, body := range []string{
			payment("cart-1", 5990), // the provider says that the key is another charge's
			payment("cart-1", 4990), // it gives the same authorisation, and that is the first order's
		} {
			for _, replayed := range []string{"false", "true"} {
				a := post(t, s.base, key, body)
				a.is(t, http.StatusConflict, "PAYMENT_MISMATCH")
				if a.problem(t).Retry != httpedge.Never || a.replayed() != replayed {
					t.Errorf("%v", a)
				}
			}
			d.expireRecords(t)
		}
		f.keeps(t, 1)
		d.holds(t, 1, 1)

		// One that answers with its old object, whatever it is asked for.
		old := clientOf(t, listen(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			say(w, http.StatusOK, Authorization{ID: "auth_old", Charge: Charge{"cart-1", 100, "TRY"}})
		})), patience)
		other := leasedBy(t, d, old, nil)
		for i, body := range []string{payment("cart-1", 101), payment("cart-2", 100), strings.Replace(payment("cart-1", 100), "TRY", "EUR", 1)} {
			post(t, other.base, d.key(fmt.Sprintf("old-object-%d", i)), body).is(t, http.StatusConflict, "PAYMENT_MISMATCH")
		}
		if p := post(t, other.base, d.key("its-own-object"), payment("cart-1", 100)).placed(t); p.AuthID != "auth_old" || p.OrderID == first.OrderID {
			t.Errorf("%+v", p)
		}
		d.holds(t, 2, 5)
	})
}

// The rate of failures is half, of either kind by turns. Whoever comes back until he has an answer has one order for one authorisation.
func TestLeased_RetriesAgainstAFailingProviderEndWithAsManyOrdersAsAuthorisations(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		const payments = 24
		f := provide(t, nil)
		f.failRate = 0.5
		var turn atomic.Int64
		f.random = func() float64 { return []float64{0.1, 0.3, 0.7, 0.3, 0.1, 0.9, 0.8}[turn.Add(1)%7] }
		s := leased(t, d, f, nil)
		orders := map[string]bool{}
		notDone, unknown, rounds := 0, 0, 0
		open := make([]int, payments)
		for i := range open {
			open[i] = i
		}
		for ; len(open) > 0; rounds++ {
			if rounds > 8 {
				t.Fatalf("%d payments come to no end", len(open))
			}
			answers := inParallel(t, len(open), func(ctx context.Context, i int) (answer, error) {
				return send(ctx, s.base, d.key(fmt.Sprintf("failing-%d", open[i])), payment(fmt.Sprintf("cart-%d", open[i]), int64(100+open[i])))
			})
			var still []int
			for i, a := range answers {
				var p httpedge.Problem
				_ = json.Unmarshal(a.body, &p)
				switch {
				case a.status == http.StatusCreated:
					orders[a.placed(t).OrderID] = true
					continue
				case p.Code == "PROVIDER_UNAVAILABLE":
					notDone++
				case p.Code == "IDEMPOTENCY_OUTCOME_UNKNOWN":
					unknown++
				default:
					t.Fatalf("payment %d: %v", open[i], a)
				}
				still = append(still, open[i])
			}
			open = still
			d.expireLeases(t)
		}
		t.Logf("%d payments in %d rounds: %d times not done, %d times unknown, %d calls", payments, rounds, notDone, unknown, f.posts.Load()+turn.Load())
		if notDone == 0 || unknown == 0 || len(orders) != payments {
			t.Errorf("%d times not done, %d times unknown, %d orders", notDone, unknown, len(orders))
		}
		agree(t, s.base, f.keeps(t, payments))
		d.settles(t, payments)
	})
}

// agree demands that the orders of a server have just the authorisations that the provider holds.
func agree(t *testing.T, base string, held []Authorization) {
	t.Helper()
	var page Page
	if a := get(t, base+"/api/v1/orders?limit=100"); json.Unmarshal(a.body, &page) != nil || page.Next != "" {
		t.Fatalf("%v", a)
	}
	charges := map[string]Charge{}
	for _, o := range page.Orders {
		charges[o.AuthID] = Charge{o.CartID, o.Amount, o.Currency}
	}
	for _, a := range held {
		if charges[a.ID] != a.Charge {
			t.Errorf("%+v has the order %+v", a, charges[a.ID])
		}
	}
	if len(charges) != len(held) || len(page.Orders) != len(held) {
		t.Errorf("%d orders of %d authorisations; the provider holds %d", len(page.Orders), len(charges), len(held))
	}
}

// D-08: the provider is switched on, or off, by a deploy. The command's name stays, so what was paid before is replayed.
func TestD08_SwitchingTheProviderOnAndOffReplaysWhatWasPaidBefore(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		f := provide(t, nil)
		plain, calling := serve(t, d, nil), leased(t, d, f, nil)
		for i, s := range []struct{ before, after string }{{plain.base, calling.base}, {calling.base, plain.base}} {
			key, body := d.key(fmt.Sprintf("before-the-deploy-%d", i)), payment("cart-1", 4990)
			order := post(t, s.before, key, body).placed(t)
			if a := post(t, s.after, key, body); a.placed(t).Placed != order.Placed || a.replayed() != "true" {
				t.Errorf("%v", a)
			}
			post(t, s.after, key, payment("cart-1", 5990)).is(t, http.StatusConflict, "IDEMPOTENCY_KEY_CONFLICT")
		}
		f.keeps(t, 1)
		d.settles(t, 2)

		// What is unknown when the provider is switched off stays in progress, whatever the clock says, until it is back.
		lost := leasedBy(t, d, callsOut{f.client(t, patience), func(context.Context, string, Charge) (Authorization, error) {
			return Authorization{}, idempotency.Unknown(errProviderAway)
		}}, nil)
		key, body := d.key("during-the-deploy"), payment("cart-1", 4990)
		post(t, lost.base, key, body).unknown(t)
		d.expireLeases(t)
		if a := post(t, plain.base, key, body); !a.busy() {
			t.Errorf("without the provider: %v", a)
		}
		if a := post(t, calling.base, key, body); a.placed(t).AuthID != f.keeps(t, 2)[0].ID {
			t.Errorf("with it again: %v", a)
		}
		d.settles(t, 3)
	})
}

// Without keys every request is a payment, and nothing says that one was meant.
func TestNoKeys_EveryRequestIsAPayment(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		f := provide(t, nil)
		o := f.options(t)
		o.noKeys = true
		kept, store := d.open(t)
		s := serveWith(t, kept, store, o, nil)
		ids := map[string]bool{}
		for _, key := range []string{"the-same-key", "the-same-key", "", "!"} {
			a := post(t, s.base, key, payment("cart-1", 4990))
			ids[a.placed(t).OrderID] = true
			for _, name := range []string{"Idempotency-Key", "Idempotency-Replayed", "Idempotency-Original-Request-ID"} {
				if v := a.header.Get(name); v != "" {
					t.Errorf("%s is %q", name, v)
				}
			}
		}
		post(t, s.base, "the-same-key", payment("cart-1", 0)).is(t, http.StatusBadRequest, "VALIDATION_FAILED")
		post(t, s.base, "the-same-key", payment("cart-1-declined", 4990)).is(t, http.StatusPaymentRequired, "PAYMENT_DECLINED")
		if len(ids) != 4 {
			t.Errorf("%d orders were answered", len(ids))
		}
		for _, a := range f.all(t) {
			if a.Key != "" {
				t.Errorf("a key was sent: %+v", a)
			}
		}
		agree(t, s.base, f.all(t))
		d.holds(t, 4, 0)
		if page := string(get(t, s.base+"/").body); !strings.Contains(page, "Every request is new") {
			t.Errorf("the page does not say so:\n%s", page)
		}
	})
}
