package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/tekil-go/tekil/requestctx/httpedge"
)

// The stories that the README tells, by HTTP, against the program in a process of its own.

func TestTheSamePaymentTwiceMakesOneOrder(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		server := start(t, d.flags()...)
		body := payment("cart-77", 4990)
		first, second := post(t, server.base, "my-first-payment", body), post(t, server.base, "my-first-payment", body)

		one, two := first.placed(t), second.placed(t)
		if one.CartID != "cart-77" || one.Amount != 4990 || one.Currency != "TRY" || one.Status != "placed" || !strings.HasPrefix(one.AuthID, "auth_") {
			t.Errorf("the order is %+v", one)
		}
		if one.Placed != two.Placed {
			t.Errorf("the replay holds %+v, the first answer %+v", two.Placed, one.Placed)
		}
		if first.replayed() != "false" || second.replayed() != "true" {
			t.Errorf("Idempotency-Replayed is %q and then %q", first.replayed(), second.replayed())
		}
		if first.requestID() == "" || first.requestID() == second.requestID() {
			t.Errorf("X-Request-ID is %q and then %q", first.requestID(), second.requestID())
		}
		for i, a := range []answer{first, second} {
			if id := a.placed(t).RequestID; id != a.requestID() {
				t.Errorf("answer %d: request_id is %q, X-Request-ID is %q", i+1, id, a.requestID())
			}
			for name, want := range map[string]string{
				"Idempotency-Original-Request-ID": first.requestID(),
				"Idempotency-Key":                 "my-first-payment",
				"Location":                        "/api/v1/orders/" + one.OrderID,
				"Cache-Control":                   "no-store",
				"Content-Type":                    "application/json",
			} {
				if got := a.header.Get(name); got != want {
					t.Errorf("answer %d: %s is %q, want %q", i+1, name, got, want)
				}
			}
		}
		if !bytes.Equal(anonymous(first), anonymous(second)) {
			t.Errorf("the bodies differ by more than the request's id:\n%s%s", first.body, second.body)
		}
		if got := get(t, server.base+first.header.Get("Location")); got.status != http.StatusOK || !bytes.Contains(got.body, []byte(one.OrderID)) {
			t.Errorf("the order's own address: %v", got)
		}
		d.holds(t, 1, 1)
	})
}

// anonymous is a body without the request's id.
func anonymous(a answer) []byte {
	return bytes.ReplaceAll(a.body, []byte(a.requestID()), nil)
}

func TestBR01_ACorrectedFormRunsUnderItsKey(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		server := start(t, d.flags()...)
		for _, wrong := range []int64{0, -5} {
			refused := post(t, server.base, "corrected-form", payment("cart-1", wrong))
			refused.is(t, http.StatusBadRequest, "VALIDATION_FAILED")
			p := refused.problem(t)
			if len(p.Errors) != 1 || p.Errors[0].Path != "amount" || p.Errors[0].Rule != "gt" || p.Retry != httpedge.SameKey {
				t.Errorf("the field is not named: %s", refused.body)
			}
			d.holds(t, 0, 0)
		}
		ran := post(t, server.base, "corrected-form", payment("cart-1", 4990))
		if order := ran.placed(t); ran.replayed() != "false" || order.Amount != 4990 {
			t.Errorf("the corrected form: %v", ran)
		}
		d.holds(t, 1, 1)
		again := post(t, server.base, "corrected-form", payment("cart-1", 4990))
		if again.placed(t).Placed != ran.placed(t).Placed || again.replayed() != "true" {
			t.Errorf("sent again: %v", again)
		}
		d.holds(t, 1, 1)
	})
}

func TestAnotherAmountUnderTheSameKeyIsAConflict(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		server := start(t, d.flags()...)
		post(t, server.base, "one-intent", payment("cart-1", 4990)).placed(t)
		other := post(t, server.base, "one-intent", payment("cart-1", 5990))
		other.is(t, http.StatusConflict, "IDEMPOTENCY_KEY_CONFLICT")
		if detail := other.problem(t).Detail; detail != "The Idempotency-Key has already been used with a different request payload." {
			t.Errorf("the sentence of http-4 is %q", detail)
		}
		if other.replayed() != "false" || other.header.Get("Location") != "" || other.header.Get("Retry-After") != "" {
			t.Errorf("the conflict's headers: %v", other.header)
		}
		d.holds(t, 1, 1)
		if first := post(t, server.base, "one-intent", payment("cart-1", 4990)); first.placed(t).Amount != 4990 || first.replayed() != "true" {
			t.Errorf("the first payload afterwards: %v", first)
		}
	})
}

func TestBR18_APaymentWithoutAKeyIsRefusedEveryTime(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		server := start(t, d.flags()...)
		for range 2 { // BR-01(4): no key is ever made up
			refused := post(t, server.base, "", payment("cart-1", 4990))
			refused.is(t, http.StatusBadRequest, "IDEMPOTENCY_KEY_MISSING")
			if refused.problem(t).Retry != httpedge.NewKey || refused.header.Get("Idempotency-Key") != "" || refused.replayed() != "" {
				t.Errorf("the refusal: %v", refused)
			}
			d.holds(t, 0, 0)
		}
	})
}

func TestR26_ADroppedAnswerSentAgainMakesOneOrder(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		server := start(t, append(d.flags(), "-drop-answers")...)
		body := payment("cart-1", 4990)
		for range 2 {
			if a, err := send(within(t), server.base, "dropped-answer", body, "X-Demo-Drop", "1"); err == nil {
				t.Fatalf("the answer was not dropped: %v", a)
			}
			d.holds(t, 1, 1)
		}
		again := post(t, server.base, "dropped-answer", body)
		if again.placed(t); again.replayed() != "true" || again.header.Get("Idempotency-Original-Request-ID") == again.requestID() {
			t.Errorf("sent again: %v", again)
		}
		d.holds(t, 1, 1)
		// Any other value, and no value, is no wish.
		post(t, server.base, "answer-not-dropped", body, "X-Demo-Drop", "0").placed(t)
	})
}

func TestADropIsOnlyADemonstration(t *testing.T) {
	t.Parallel()
	d := sqliteDatabase(t)
	server := start(t, append(d.flags(), "-demo=false")...)
	post(t, server.base, "answer-not-dropped", payment("cart-1", 4990), "X-Demo-Drop", "1").placed(t)
}

func TestADeclinedPaymentIsDeclinedAgain(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		server := start(t, d.flags()...)
		body := payment("cart-1-declined", 4990)
		first, second := post(t, server.base, "declined-payment", body), post(t, server.base, "declined-payment", body)
		for i, a := range []answer{first, second} {
			a.is(t, http.StatusPaymentRequired, "PAYMENT_DECLINED")
			p := a.problem(t)
			if p.Detail != "The payment was declined." || p.Retry != httpedge.Never || p.RequestID != a.requestID() {
				t.Errorf("answer %d: %s", i+1, a.body)
			}
			if want := []string{"false", "true"}[i]; a.replayed() != want || a.header.Get("Idempotency-Original-Request-ID") != first.requestID() {
				t.Errorf("answer %d: %v", i+1, a.header)
			}
		}
		if !bytes.Equal(anonymous(first), anonymous(second)) {
			t.Errorf("the bodies differ by more than the request's id:\n%s%s", first.body, second.body)
		}
		d.holds(t, 0, 1)
		post(t, server.base, "declined-payment", payment("cart-1-declined", 1)).is(t, http.StatusConflict, "IDEMPOTENCY_KEY_CONFLICT")
	})
}

// Two servers on one PostgreSQL. The parts share them, each with carts of its own.
func TestTwoServersOnOneDatabase(t *testing.T) {
	t.Parallel()
	d := postgresDatabase(t)
	r := []*process{start(t, d.flags()...), start(t, d.flags()...)}
	base := func(i int) string { return r[i%2].base }

	t.Run("50 posts of one key at once make one order", func(t *testing.T) {
		t.Parallel()
		body := payment("fifty-of-one", 4990)
		answers := inParallel(t, 50, func(ctx context.Context, i int) (answer, error) { return send(ctx, base(i), "fifty-of-one", body) })
		ids := map[string]bool{}
		created, busy, fresh := 0, 0, 0
		for _, a := range answers {
			switch {
			case a.status == http.StatusCreated:
				created++
				ids[a.placed(t).OrderID] = true
				if a.replayed() == "false" {
					fresh++
				}
			case a.busy():
				busy++
			default:
				t.Errorf("neither 201 nor in progress: %v", a)
			}
		}
		t.Logf("50 posts of one key: %d times 201, %d of them not replayed; %d times in progress", created, fresh, busy)
		for i := range 50 {
			_, order := settled(t, base(i), "fifty-of-one", body)
			ids[order.OrderID] = true
		}
		if len(ids) != 1 || fresh > 1 {
			t.Errorf("%d orders were answered, %d times as the first", len(ids), fresh)
		}
		if n := d.ordersOf(t, "fifty-of-one"); n != 1 {
			t.Errorf("there are %d orders", n)
		}
	})

	t.Run("50 keys at once make 50 orders", func(t *testing.T) {
		t.Parallel()
		answers := inParallel(t, 50, func(ctx context.Context, i int) (answer, error) {
			return send(ctx, base(i), fmt.Sprintf("fifty-keys-%d", i), payment(fmt.Sprintf("fifty-keys-%d", i), 4990))
		})
		for i, a := range answers {
			if p := a.placed(t); p.CartID != fmt.Sprintf("fifty-keys-%d", i) || a.replayed() != "false" {
				t.Errorf("post %d: %v", i, a)
			}
		}
		if n := d.ordersOf(t, "fifty-keys-%"); n != 50 {
			t.Errorf("there are %d orders", n)
		}
	})

	t.Run("BR-01 an invalid twin never spoils the valid one", func(t *testing.T) {
		t.Parallel()
		const rounds = 200
		// Both posts of a round leave at the same moment, the invalid one to either server.
		answers := inParallel(t, 4, func(ctx context.Context, worker int) (answer, error) {
			for round := worker; round < rounds; round += 4 {
				key := fmt.Sprintf("invalid-twin-%d", round)
				invalid := make(chan error, 1)
				go func() {
					a, err := send(ctx, base(round/4), key, payment(key, -5))
					if err == nil && a.status != http.StatusBadRequest {
						err = fmt.Errorf("the invalid twin of %s: %v", key, a)
					}
					invalid <- err
				}()
				a, err := send(ctx, base(round/4+1), key, payment(key, 50))
				if err == nil && (a.status != http.StatusCreated || a.replayed() != "false") {
					err = fmt.Errorf("the valid twin of %s: %v", key, a)
				}
				if other := <-invalid; err == nil {
					err = other
				}
				if err != nil {
					return answer{}, err
				}
			}
			return answer{}, nil
		})
		if n := d.ordersOf(t, "invalid-twin-%"); n != rounds || len(answers) != 4 {
			t.Errorf("there are %d orders", n)
		}
	})

	t.Run("BR-18 two at once with one body", func(t *testing.T) {
		t.Parallel()
		for round := range 10 {
			key := fmt.Sprintf("same-body-%d", round)
			body := payment(key, 4990)
			created := 0
			for _, a := range inParallel(t, 2, func(ctx context.Context, i int) (answer, error) { return send(ctx, base(i), key, body) }) {
				discreet(t, a)
				if a.status == http.StatusCreated {
					created++
				} else if !a.busy() {
					t.Errorf("%v", a)
				}
			}
			if n := d.ordersOf(t, key); created == 0 || n != 1 {
				t.Errorf("%d times 201, %d orders", created, n)
			}
		}
	})

	t.Run("BR-18 two at once with different bodies", func(t *testing.T) {
		t.Parallel()
		for round := range 10 {
			key := fmt.Sprintf("other-body-%d", round)
			created := 0
			for _, a := range inParallel(t, 2, func(ctx context.Context, i int) (answer, error) {
				return send(ctx, base(i), key, payment(key, int64(1000+i)))
			}) {
				discreet(t, a)
				if a.status == http.StatusCreated {
					created++
				} else if !a.busy() { // before the first one's commit nobody can see its payload
					a.is(t, http.StatusConflict, "IDEMPOTENCY_KEY_CONFLICT")
				}
			}
			if n := d.ordersOf(t, key); created != 1 || n != 1 {
				t.Errorf("%d times 201, %d orders", created, n)
			}
		}
	})

	t.Run("BR-04 the replay of another replica is the same to the byte", func(t *testing.T) {
		t.Parallel()
		body := payment("other-replica", 4990)
		first, second := post(t, base(0), "other-replica", body), post(t, base(1), "other-replica", body)
		if second.replayed() != "true" || !bytes.Equal(anonymous(first), anonymous(second)) || first.status != second.status {
			t.Errorf("%v\n%v", first, second)
		}
		for _, name := range []string{"Location", "Content-Type", "Cache-Control", "Idempotency-Key", "Idempotency-Original-Request-ID"} {
			if first.header.Get(name) != second.header.Get(name) {
				t.Errorf("%s is %q and then %q", name, first.header.Get(name), second.header.Get(name))
			}
		}
	})
}

// discreet demands that an answer holds nothing of the database's own words.
func discreet(t *testing.T, a answer) {
	t.Helper()
	for _, word := range []string{"23505", "SQLSTATE", "duplicate", "constraint", "pgx", "pgstore", "sqlite", "INSERT"} {
		if bytes.Contains(bytes.ToLower(a.body), bytes.ToLower([]byte(word))) {
			t.Errorf("the answer holds %q: %s", word, a.body)
		}
	}
}

func TestBR19_OneIdFromTwoServers(t *testing.T) {
	t.Parallel()
	d := postgresDatabase(t)
	r := []*process{start(t, d.flags()...), start(t, d.flags()...)}
	check := func(t *testing.T, cart string, answers []answer) {
		t.Helper()
		ids, fresh := map[string]bool{}, 0
		for _, a := range answers {
			if a.busy() {
				continue
			}
			ids[a.placed(t).OrderID] = true
			if a.replayed() == "false" {
				fresh++
			}
		}
		if len(ids) != 1 || fresh != 1 {
			t.Errorf("%d ids, %d answers without the mark of a replay", len(ids), fresh)
		}
		if n := d.ordersOf(t, cart); n != 1 {
			t.Errorf("there are %d orders", n)
		}
	}

	var inTurn []answer
	for i := range 10 {
		if i == 5 { // the first server is killed in the middle, and another one takes its place
			r[0].kill()
			r[0] = start(t, d.flags()...)
		}
		inTurn = append(inTurn, post(t, r[i%2].base, "ten-in-turn", payment("ten-in-turn", 4990)))
	}
	check(t, "ten-in-turn", inTurn)

	atOnce := inParallel(t, 10, func(ctx context.Context, i int) (answer, error) {
		return send(ctx, r[i%2].base, "ten-at-once", payment("ten-at-once", 4990))
	})
	check(t, "ten-at-once", atOnce)
}

// A proxy that sends the same post again to another replica: R1 does the work and loses its answers, R2 gets the copy.
func TestBR15_AProxySendsThePostAgain(t *testing.T) {
	t.Parallel()
	d := postgresDatabase(t)
	r1, r2 := start(t, append(d.flags(), "-drop-answers")...), start(t, append(d.flags(), "-demo=false")...)
	again := listen(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		forward(w, r, func(try func(base string) (answer, error)) (answer, error) {
			if a, err := try(r1.base); err == nil {
				return a, nil
			}
			return try(r2.base)
		})
	}))
	hedging := listen(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		forward(w, r, func(try func(base string) (answer, error)) (answer, error) {
			first := make(chan error, 1)
			go func() {
				_, err := try(r1.base)
				first <- err
			}()
			a, err := try(r2.base)
			if lost := <-first; lost == nil {
				return a, fmt.Errorf("R1's answer was not lost")
			}
			return a, err
		})
	}))

	t.Run("after the answer is lost", func(t *testing.T) {
		t.Parallel()
		const n = 100
		answers := inParallel(t, n, func(ctx context.Context, i int) (answer, error) {
			key := fmt.Sprintf("resent-%d", i)
			return send(ctx, again, key, payment(key, 4990), "X-Demo-Drop", "1")
		})
		for _, a := range answers {
			if a.placed(t); a.replayed() != "true" {
				t.Errorf("R2 did the work again: %v", a)
			}
		}
		if got := d.ordersOf(t, "resent-%"); got != n {
			t.Errorf("there are %d orders, want %d", got, n)
		}
	})
	t.Run("while the first is running", func(t *testing.T) {
		t.Parallel()
		const n = 50
		answers := inParallel(t, n, func(ctx context.Context, i int) (answer, error) {
			key := fmt.Sprintf("hedged-%d", i)
			return send(ctx, hedging, key, payment(key, 4990), "X-Demo-Drop", "1")
		})
		for _, a := range answers {
			if !a.busy() {
				a.placed(t)
			}
		}
		if got := d.ordersOf(t, "hedged-%"); got != n {
			t.Errorf("there are %d orders, want %d", got, n)
		}
	})
	t.Run("without a key", func(t *testing.T) {
		t.Parallel()
		for _, proxy := range []string{again, hedging} {
			post(t, proxy, "", payment("no-key", 4990), "X-Demo-Drop", "1").is(t, http.StatusBadRequest, "IDEMPOTENCY_KEY_MISSING")
		}
		if got := d.ordersOf(t, "no-key"); got != 0 {
			t.Errorf("there are %d orders", got)
		}
	})
}

// forward hands a request on as it is, as often as choose tries.
func forward(w http.ResponseWriter, r *http.Request, choose func(try func(base string) (answer, error)) (answer, error)) {
	var body bytes.Buffer
	if _, err := body.ReadFrom(r.Body); err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	a, err := choose(func(base string) (answer, error) {
		return exchange(r.Context(), r.Method, base+r.URL.Path, body.String(), r.Header.Clone())
	})
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	for name, values := range a.header {
		w.Header()[name] = values
	}
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body)
}
