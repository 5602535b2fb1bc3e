package registry_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-playground/validator/v10"
	"go.uber.org/zap"
	"pgregory.net/rapid"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/memstore"
	"github.com/tekil-go/tekil/behaviors/validation"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/registry"
	"github.com/tekil-go/tekil/requestctx"
)

// Pieces of the traces.
const (
	before   = "logging, admit, normalize, tags, validate, permit" // everything before the claim
	executed = before + ", store: begin, around, handler, around ends, store: complete, log: command succeeded"
	invalid  = "logging, admit, normalize, tags" // what a command with a wrong field gets to
	refused  = ", log: command refused"
)

func steps(trace string) []string { return strings.Split(trace, ", ") }

// The order of pipe-1 with a spy in every position, for each fate of a dispatch.
func TestPipe1_TheOrderIsLoggingAdmitValidationPermitIdempotencyAroundHandler(t *testing.T) {
	t.Parallel()
	pay := func(s *shop) error { return s.attempt(t, "attempt-2", theKey, s.pay()) }
	first := func(t *testing.T, s *shop) { s.must(t, "attempt-1", theKey, s.pay()) }
	for name, c := range map[string]struct {
		prepare func(*testing.T, *shop)
		send    func(*shop) error
		want    string
		code    string
	}{
		"success": {send: pay, want: executed},
		"pipe-2 admit": {
			prepare: func(_ *testing.T, s *shop) { s.admit = refuse(errStranger) },
			send:    pay, want: "logging, admit" + refused, code: "UNAUTHENTICATED",
		},
		"pipe-3 permit": {
			prepare: func(_ *testing.T, s *shop) { s.permit = refuse(errForbidden) },
			send:    pay, want: before + refused, code: "FORBIDDEN",
		},
		"V02 invalid by its tags": {
			send: func(s *shop) error { return s.attempt(t, "a", theKey, place{Cart: "c", Trace: s.tr}) },
			want: invalid + refused, code: "VALIDATION_FAILED",
		},
		"V02 invalid by its own Validate": {
			send: func(s *shop) error {
				return s.attempt(t, "a", theKey, place{Cart: "closed", Amount: 1, Trace: s.tr})
			},
			want: "logging, admit, normalize, tags, validate" + refused, code: "VALIDATION_FAILED",
		},
		"V08 a validator that panics": {
			send: func(s *shop) error {
				return s.attempt(t, "a", theKey, place{Cart: "broken", Amount: 1, Trace: s.tr})
			},
			want: "logging, admit, normalize, tags, validate, log: command failed", code: "VALIDATION_PANIC",
		},
		"V10 invalid and without a key": {
			send: func(s *shop) error { return s.attempt(t, "a", "", place{Trace: s.tr}) },
			want: invalid + refused, code: "VALIDATION_FAILED",
		},
		"pipe-7 without a key": {
			send: func(s *shop) error { return s.attempt(t, "a", "", s.pay()) },
			want: before + refused, code: "IDEMPOTENCY_KEY_MISSING",
		},
		"pipe-9 replay": {prepare: first, send: pay, want: before + ", store: look, log: command replayed"},
		"pipe-9 replay in another process": {
			prepare: func(t *testing.T, s *shop) { open(t, s.store).must(t, "attempt-1", theKey, s.pay()) },
			send:    pay, want: before + ", store: begin, store: rollback, log: command replayed",
		},
		"pipe-9 conflict": {
			prepare: first,
			send:    func(s *shop) error { return s.attempt(t, "a", theKey, place{Cart: "other", Amount: 1, Trace: s.tr}) },
			want:    before + ", store: look" + refused, code: "IDEMPOTENCY_KEY_CONFLICT",
		},
		"V05 invalid under a completed key": {
			prepare: first,
			send:    func(s *shop) error { return s.attempt(t, "a", theKey, place{Cart: "c", Trace: s.tr}) },
			want:    invalid + refused, code: "VALIDATION_FAILED",
		},
		"S10 permission withdrawn before the retry": {
			prepare: func(t *testing.T, s *shop) { first(t, s); s.permit = refuse(errForbidden) },
			send:    pay, want: before + refused, code: "FORBIDDEN",
		},
		"S10 thrown out before the retry": {
			prepare: func(t *testing.T, s *shop) { first(t, s); s.admit = refuse(errStranger) },
			send:    pay, want: "logging, admit" + refused, code: "UNAUTHENTICATED",
		},
		"rec-7 a final refusal": {
			prepare: func(_ *testing.T, s *shop) { s.handle = fail(idempotency.Final(errDeclined)) },
			send:    pay, want: before + ", store: begin, around, handler, around ends, store: refuse" + refused, code: "PAYMENT_DECLINED",
		},
		"rec-6 a failure": {
			prepare: func(_ *testing.T, s *shop) { s.handle = fail(errBoom) },
			send:    pay, want: before + ", store: begin, around, handler, around ends, store: rollback, store: look, log: command failed", code: "INTERNAL",
		},
		"a handler that panics": {
			prepare: func(_ *testing.T, s *shop) { s.handle = func(context.Context, place) error { panic(errBoom) } },
			send:    func(s *shop) error { return recovered(func() error { return pay(s) }) },
			want:    before + ", store: begin, around, handler, around ends, store: rollback, log: command panicked", code: "INTERNAL",
		},
		"a wrapper that refuses": {
			prepare: func(_ *testing.T, s *shop) {
				s.around = func(context.Context, bus.Invocation, func(context.Context) error) error { return errForbidden }
			},
			send: pay, want: before + ", store: begin, around, around ends, store: rollback, store: look, log: command failed", code: "FORBIDDEN",
		},
		"pipe-4 an unmarked command": {
			send: func(s *shop) error { return s.note(t, "", note{Text: "x", Trace: s.tr}) },
			want: "logging, admit, tags, validate, permit, around, handler, around ends, log: command succeeded",
		},
		"H20 an unmarked command with a key": {
			send: func(s *shop) error { return s.note(t, theKey, note{Text: "x", Trace: s.tr}) },
			want: "logging, admit, tags, validate, permit, around, handler, around ends, log: command succeeded",
		},
		"an invalid unmarked command": {
			send: func(s *shop) error { return s.note(t, "", note{Trace: s.tr}) },
			want: "logging, admit, tags" + refused, code: "VALIDATION_FAILED",
		},
		"pipe-10 a query": {
			send: func(s *shop) error { return s.ask(t, find{Order: "1", Trace: s.tr}) },
			want: "logging, admit, tags, validate, permit, around, handler, around ends, log: query succeeded",
		},
		"an invalid query": {
			send: func(s *shop) error { return s.ask(t, find{Trace: s.tr}) },
			want: "logging, admit, tags, log: query refused", code: "VALIDATION_FAILED",
		},
		"a query that is not permitted": {
			prepare: func(_ *testing.T, s *shop) { s.permit = refuse(errForbidden) },
			send:    func(s *shop) error { return s.ask(t, find{Order: "1", Trace: s.tr}) },
			want:    "logging, admit, tags, validate, permit, log: query refused", code: "FORBIDDEN",
		},
		"pipe-11 check": {send: func(s *shop) error { return s.check(t, "", s.pay()) }, want: before + ", log: check succeeded"},
		"pipe-11 check under a completed key": {
			prepare: first,
			send:    func(s *shop) error { return s.check(t, theKey, s.pay()) },
			want:    before + ", log: check succeeded",
		},
		"pipe-11 check of an invalid command": {
			send: func(s *shop) error { return s.check(t, "", place{Trace: s.tr}) },
			want: invalid + ", log: check refused", code: "VALIDATION_FAILED",
		},
		"pipe-11 check that is not permitted": {
			prepare: func(_ *testing.T, s *shop) { s.permit = refuse(errForbidden) },
			send:    func(s *shop) error { return s.check(t, "", s.pay()) },
			want:    before + ", log: check refused", code: "FORBIDDEN",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t, memstore.New())
			if c.prepare != nil {
				c.prepare(t, s)
			}
			records, rows := len(s.store.Records()), len(s.store.Rows())
			s.tr.take()
			s.logs.TakeAll()
			err := c.send(s)
			wantCode(t, err, c.code)
			got := s.tr.take()
			equal(t, "trace", got, steps(c.want))
			if n := s.logs.Len(); n != 1 { // V11: every attempt, refused ones too
				t.Errorf("%d log lines, want 1", n)
			}
			if len(touched(got)) == 0 && len(s.store.Records()) != records {
				t.Error("the records changed without the store being asked")
			}
			if err != nil && len(s.store.Rows()) != rows {
				t.Errorf("a dispatch that failed left the rows %q", s.store.Rows())
			}
		})
	}
}

func (s *shop) attempt(t *testing.T, id, key string, cmd place) error {
	_, _, err := s.send(t, id, key, cmd)
	return err
}

func (s *shop) note(t *testing.T, key string, cmd note) error {
	ctx, _ := request(t.Context(), t, "attempt-n", key)
	_, err := bus.Send(ctx, s.Bus, cmd)
	return err
}

func (s *shop) ask(t *testing.T, q find) error {
	ctx, _ := request(t.Context(), t, "attempt-q", theKey)
	_, err := bus.Ask(ctx, s.Bus, q)
	return err
}

func (s *shop) check(t *testing.T, key string, cmd place) error {
	ctx, _ := request(t.Context(), t, "attempt-c", key)
	return bus.Check(ctx, s.Bus, cmd)
}

func refuse(err error) func(context.Context, bus.Invocation) error {
	return func(context.Context, bus.Invocation) error { return err }
}

func fail(err error) func(context.Context, place) error {
	return func(context.Context, place) error { return err }
}

// recovered gives what f panics with, if that is an error.
func recovered(f func() error) (err error) {
	defer func() {
		if p, ok := recover().(error); ok {
			err = p
		}
	}()
	return f()
}

func TestPipe12_GuardsSeeWhatIsDispatchedAndRunInTheirOrder(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var seen []string
	guard := func(name string) bus.Guard {
		return func(_ context.Context, inv bus.Invocation) error {
			mu.Lock()
			defer mu.Unlock()
			flags := ""
			for flag, on := range map[string]bool{"query ": inv.Query, "idempotent ": inv.Idempotent, "check ": inv.Check} {
				if on {
					flags += flag
				}
			}
			words := strings.Fields(flags)
			slices.Sort(words)
			seen = append(seen, strings.Join(append([]string{name, inv.Name}, words...), " "))
			return nil
		}
	}
	s := open(t, memstore.New(), func(cfg *registry.Config) {
		cfg.Admit = []bus.Guard{guard("admit1"), guard("admit2")}
		cfg.Permit = []bus.Guard{guard("permit1"), guard("permit2")}
	})
	four := func(what string) []string {
		return []string{"admit1 " + what, "admit2 " + what, "permit1 " + what, "permit2 " + what}
	}
	for _, c := range []struct {
		send func() error
		want string
	}{
		{func() error { return s.attempt(t, "a", theKey, s.pay()) }, "shop.place idempotent"},
		{func() error { return s.check(t, "", s.pay()) }, "shop.place check idempotent"},
		{func() error { return s.note(t, "", note{Text: "x"}) }, "shop.note"},
		{func() error { return s.ask(t, find{Order: "1"}) }, "shop.find query"},
	} {
		seen = nil
		if err := c.send(); err != nil {
			t.Error(err)
		}
		equal(t, c.want, seen, four(c.want))
	}
}

// What the configuration says to the idempotency stage reaches it.
func TestRequireTenantAndRetryAfterAreInForce(t *testing.T) {
	t.Parallel()
	s := open(t, memstore.New(), func(cfg *registry.Config) { cfg.RequireTenant, cfg.RetryAfter = true, 7*time.Second })
	key, err := requestctx.ParseKey(theKey)
	if err != nil {
		t.Fatal(err)
	}
	ctx, _ := requestctx.New(t.Context(), requestctx.Values{Key: key, Scope: requestctx.Scope{Client: "acme-erp"}})
	_, err = bus.Send(ctx, s.Bus, s.pay())
	wantCode(t, err, "IDEMPOTENCY_SCOPE_MISSING")
	equal(t, "store", touched(s.tr.take()), nil)

	// The handler sends its own command again, as a second request would while the first one runs.
	s.handle = func(context.Context, place) error {
		_, _, err := s.send(t, "attempt-2", theKey, s.pay())
		if busy, ok := errors.AsType[*idempotency.InProgressError](err); !ok || busy.RetryAfter != 7*time.Second {
			t.Errorf("the second request got %v", err)
		}
		return nil
	}
	s.must(t, "attempt-1", theKey, s.pay())
}

// A check may be let in where a send is not: the public test route of an inbound interface.
func TestPipe11_AGuardMayDecideByCheck(t *testing.T) {
	t.Parallel()
	s := open(t, memstore.New())
	s.permit = func(_ context.Context, inv bus.Invocation) error {
		if inv.Check {
			return nil
		}
		return errForbidden
	}
	if err := s.check(t, "", s.pay()); err != nil {
		t.Error(err)
	}
	wantCode(t, s.attempt(t, "a", theKey, s.pay()), "FORBIDDEN")
	holds(t, s.store, 0)
}

// Nothing of a check stays: afterwards the same key is as good as new.
func TestPipe11_ACheckClaimsNothingAndReportsNothing(t *testing.T) {
	t.Parallel()
	s := open(t, memstore.New())
	ctx, req := request(t.Context(), t, "attempt-1", theKey)
	for range 3 {
		if err := bus.Check(ctx, s.Bus, s.pay()); err != nil {
			t.Fatal(err)
		}
	}
	if out := req.Outcome(); out != (requestctx.Outcome{}) {
		t.Errorf("a check reported %+v", out)
	}
	holds(t, s.store, 0)
	if _, out := s.must(t, "attempt-2", theKey, s.pay()); out.Replayed || s.orders.Load() != 1 {
		t.Errorf("the send after the checks: %+v, %d orders", out, s.orders.Load())
	}
}

func TestPipe5_HandlersGetTheNormalisedCommandOfItsRealType(t *testing.T) {
	t.Parallel()
	s := open(t, memstore.New())
	var got place
	s.handle = func(_ context.Context, cmd place) error { got = cmd; return nil }
	cmd := s.pay()
	cmd.Cart = "  cart-1 "
	s.must(t, "attempt-1", theKey, cmd)
	if got.Cart != "cart-1" || got.Amount != 4990 {
		t.Errorf("the handler got %+v", got)
	}
	// The fingerprint is made of it as well, so this is the same payload.
	if _, out := s.must(t, "attempt-2", theKey, s.pay()); !out.Replayed {
		t.Errorf("the normalised command under the same key: %+v", out)
	}
}

// A stricter rule is deployed between the attempt and its retry: the first gate wins, and the record is as it was.
func TestV06_AKeyThatIsCompletedAndACommandThatIsNoLongerValid(t *testing.T) {
	t.Parallel()
	store := memstore.New()
	old := open(t, store)
	first, _ := old.must(t, "attempt-1", theKey, old.pay())

	strict := validator.New(validator.WithRequiredStructEnabled())
	if err := strict.RegisterValidation("spied", func(fl validator.FieldLevel) bool { return fl.Field().Int() < 100 }); err != nil {
		t.Fatal(err)
	}
	// The other commands of the shop use the rule on texts, so this registry serves place alone.
	tr := new(trace)
	reg := registry.New(registry.Config{Logger: zap.NewNop(), Validate: strict, Store: spyStore{store, tr}})
	registry.Handle(reg, old.place)
	b := build(t, reg)
	tr.take()
	ctx, req := request(t.Context(), t, "attempt-2", theKey)
	_, err := bus.Send(ctx, b, old.pay())
	wantCode(t, err, "VALIDATION_FAILED")
	if _, ok := errors.AsType[*validation.Error](err); !ok {
		t.Errorf("the error is %T", err)
	}
	equal(t, "store", tr.take(), nil)
	if out := req.Outcome(); out != (requestctx.Outcome{}) {
		t.Errorf("outcome %+v", out)
	}
	// Where the rule is taken back, the outcome is still there.
	again, out := old.must(t, "attempt-3", theKey, old.pay())
	if !out.Replayed || again != first {
		t.Errorf("got %+v, %+v; want the replay of %+v", again, out, first)
	}
	holds(t, store, 1, "cart-1 4990")
}

// MediatR #716: there, the order of registration decided. Here neither it nor the goroutine that registers makes a difference.
func TestBR28_TheOrderOfRegistrationChangesNothing(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		tr := new(trace)
		step := func(name string) registry.Around {
			return func(ctx context.Context, _ bus.Invocation, next func(context.Context) error) error {
				tr.add(name)
				return next(ctx)
			}
		}
		guard := func(name string) bus.Guard {
			return func(context.Context, bus.Invocation) error { tr.add(name); return nil }
		}
		reg := registry.New(registry.Config{
			Logger: zap.NewNop(), Validate: rules(rt, tr), Store: spyStore{memstore.New(), tr},
			Admit: []bus.Guard{guard("admit1"), guard("admit2")}, Permit: []bus.Guard{guard("permit1"), guard("permit2")},
			Around: []registry.Around{step("around1"), step("around2")},
		})
		registrations := rapid.Permutation([]func(){
			func() {
				registry.Handle(reg, func(context.Context, place) (placed, error) { tr.add("handler of place"); return placed{}, nil })
			},
			func() {
				registry.Handle(reg, func(context.Context, note) (bus.None, error) { tr.add("handler of note"); return bus.None{}, nil })
			},
			func() {
				registry.HandleQuery(reg, func(context.Context, find) (placed, error) { tr.add("handler of find"); return placed{}, nil })
			},
			func() {
				registry.Handle(reg, func(context.Context, generic[int]) (bus.None, error) { return bus.None{}, nil })
			},
			func() { registry.Require[place](reg) },
		}).Draw(rt, "order")
		if rapid.Bool().Draw(rt, "from goroutines") {
			var wg sync.WaitGroup
			for _, register := range registrations {
				wg.Go(register)
			}
			wg.Wait()
		} else {
			for _, register := range registrations {
				register()
			}
		}
		b, err := reg.Build()
		if err != nil {
			rt.Fatal(err)
		}
		tr.take()
		const outside = "admit1, admit2, tags, permit1, permit2, "
		ctx, _ := request(t.Context(), rt, "attempt-1", theKey)
		if _, err := bus.Send(ctx, b, place{Cart: "c", Amount: 1}); err != nil {
			rt.Fatal(err)
		}
		equal(rt, "place", tr.take(), steps(outside+"store: begin, around1, around2, handler of place, store: complete"))
		if _, err := bus.Send(ctx, b, note{Text: "x"}); err != nil {
			rt.Fatal(err)
		}
		equal(rt, "note", tr.take(), steps(outside+"around1, around2, handler of note"))
		if _, err := bus.Ask(ctx, b, find{Order: "1"}); err != nil {
			rt.Fatal(err)
		}
		equal(rt, "find", tr.take(), steps(outside+"around1, around2, handler of find"))
	})
}

func TestBR28_DispatchesFromManyGoroutinesKeepTheOrder(t *testing.T) {
	t.Parallel()
	s := open(t, memstore.New())
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			key := "intent-" + string(rune('a'+i)) + "-0001"
			for range 4 {
				if err := s.attempt(t, "attempt", key, place{Cart: "c", Amount: 1}); err != nil {
					t.Error(err)
				}
				if err := s.note(t, "", note{Text: "x"}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n := s.orders.Load(); n != 16 || len(s.store.Records()) != 16 {
		t.Errorf("%d orders and %d records for 16 keys", n, len(s.store.Records()))
	}
}
