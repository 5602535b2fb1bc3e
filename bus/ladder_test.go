package bus_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/tekil-go/tekil/bus"
)

var (
	errAdmit    = errors.New("not you")
	errInvalid  = errors.New("invalid")
	errPermit   = errors.New("not this")
	errHandler  = errors.New("declined")
	errConflict = errors.New("conflict")
)

// pipeline is place's way with everything that can stand on it. Each step writes its name to trace.
type pipeline struct {
	trace []string
	ended []ending // what the observer was told, in order

	admit, permit                      []error
	invalid                            error
	claim                              func(context.Context, place, bus.Handler[place, placed]) (placed, error)
	handle                             func() (placed, error)
	startedPanics, endedPanics, nilCtx bool
	withObserver                       bool
}

// failer is what *testing.T and *rapid.T have in common here.
type failer interface {
	Helper()
	Fatalf(string, ...any)
}

type ending struct {
	inv      bus.Invocation
	err      error
	panicked bool
	ctx      context.Context
}

// markedBy is the key under which the observer marks its context.
type markedBy struct{}

func (p *pipeline) say(format string, args ...any) {
	p.trace = append(p.trace, fmt.Sprintf(format, args...))
}

func (p *pipeline) Started(ctx context.Context, inv bus.Invocation) context.Context {
	p.say("started")
	if p.startedPanics {
		panic("observer")
	}
	if p.nilCtx {
		return nil
	}
	return context.WithValue(ctx, markedBy{}, inv.Name)
}

func (p *pipeline) Ended(ctx context.Context, inv bus.Invocation, err error, panicked bool) {
	p.say("ended")
	p.ended = append(p.ended, ending{inv, err, panicked, ctx})
	if p.endedPanics {
		panic("observer")
	}
}

func (p *pipeline) guards(name string, refusals []error) []bus.Guard {
	var guards []bus.Guard
	for i, err := range refusals {
		guards = append(guards, func(_ context.Context, inv bus.Invocation) error {
			p.say("%s%d check=%t", name, i, inv.Check)
			return err
		})
	}
	return guards
}

// theInvocation is what everything that asks about place must be given.
var theInvocation = bus.Invocation{Name: "checkout.place", Idempotent: true}

func (p *pipeline) bus(t failer) *bus.Bus {
	t.Helper()
	handle := func(_ context.Context, c place) (placed, error) {
		p.say("handler %d", c.Amount)
		if p.handle != nil {
			return p.handle()
		}
		return placed{Order: c.Cart}, nil
	}
	stage := func(ctx context.Context, c place, next bus.Handler[place, placed]) (placed, error) {
		p.say("claim %d", c.Amount)
		if p.claim != nil {
			return p.claim(ctx, c, next)
		}
		return next(ctx, c)
	}
	validate := func(_ context.Context, c place) (place, error) {
		p.say("validate %d", c.Amount)
		c.Amount *= 100 // normalised
		return c, p.invalid
	}
	var obs bus.Observer
	if p.withObserver {
		obs = p
	}
	b, err := bus.New(bus.Serve(bus.Log(
		bus.Validate(bus.Claim(handle, stage), theInvocation, p.guards("permit", p.permit), validate),
		theInvocation, p.guards("admit", p.admit), obs)))
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	return b
}

func (p *pipeline) expect(t failer, want ...string) {
	t.Helper()
	if !slices.Equal(p.trace, want) {
		t.Fatalf("the order was\n  %s\nwant\n  %s", strings.Join(p.trace, ", "), strings.Join(want, ", "))
	}
}

func TestTheOrderIsLoggingValidationClaimHandler(t *testing.T) {
	t.Parallel()
	p := &pipeline{withObserver: true, admit: []error{nil, nil}, permit: []error{nil}}
	got, err := bus.Send(t.Context(), p.bus(t), place{Cart: "c1", Amount: 5})
	if err != nil || got.Order != "c1" {
		t.Fatalf("Send = %+v, %v", got, err)
	}
	p.expect(t, "started", "admit0 check=false", "admit1 check=false", "validate 5", "permit0 check=false", "claim 500", "handler 500", "ended")
	if e := p.ended[0]; e.inv != theInvocation || e.err != nil || e.panicked {
		t.Errorf("the observer was told %+v", e)
	}
}

func TestCheckStopsBeforeTheClaimAndSaysSo(t *testing.T) {
	t.Parallel()
	p := &pipeline{withObserver: true, admit: []error{nil}, permit: []error{nil}}
	if err := bus.Check(t.Context(), p.bus(t), place{Amount: 5}); err != nil {
		t.Fatal(err)
	}
	p.expect(t, "started", "admit0 check=true", "validate 5", "permit0 check=true", "ended")
	want := theInvocation
	want.Check = true
	if e := p.ended[0]; e.inv != want || e.err != nil || e.panicked {
		t.Errorf("the observer was told %+v", e)
	}
}

func TestCheckGivesTheRefusal(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		p    pipeline
		want error
	}{
		{"by an admit guard", pipeline{admit: []error{errAdmit}}, errAdmit},
		{"by validation", pipeline{invalid: errInvalid}, errInvalid},
		{"by a permit guard", pipeline{permit: []error{errPermit}}, errPermit},
	} {
		for _, observed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, observer %t", c.name, observed), func(t *testing.T) {
				t.Parallel()
				p := c.p
				p.withObserver = observed
				if err := bus.Check(t.Context(), p.bus(t), place{}); !errors.Is(err, c.want) {
					t.Fatalf("Check = %v", err)
				}
				if observed && !errors.Is(p.ended[0].err, c.want) {
					t.Errorf("the observer was told %v", p.ended[0].err)
				}
			})
		}
	}
}

func TestPipe3_AnInvalidCommandDoesNotReachTheClaimAndTheObserverSeesIt(t *testing.T) {
	t.Parallel()
	p := &pipeline{withObserver: true, permit: []error{nil}, invalid: errInvalid}
	got, err := bus.Send(t.Context(), p.bus(t), place{Cart: "c1", Amount: 5})
	if err != errInvalid || got != (placed{}) { //nolint:errorlint // the same value
		t.Fatalf("Send = %+v, %v", got, err)
	}
	p.expect(t, "started", "validate 5", "ended")
	if e := p.ended[0]; !errors.Is(e.err, errInvalid) || e.panicked {
		t.Errorf("the observer was told %+v", e)
	}
}

func TestTheFirstGuardThatRefusesIsTheLastThatIsAsked(t *testing.T) {
	t.Parallel()
	p := &pipeline{withObserver: true, admit: []error{nil, errAdmit, nil}}
	if _, err := bus.Send(t.Context(), p.bus(t), place{}); !errors.Is(err, errAdmit) {
		t.Fatalf("err = %v", err)
	}
	p.expect(t, "started", "admit0 check=false", "admit1 check=false", "ended")

	p = &pipeline{withObserver: true, permit: []error{nil, errPermit, nil}}
	if _, err := bus.Send(t.Context(), p.bus(t), place{}); !errors.Is(err, errPermit) {
		t.Fatalf("err = %v", err)
	}
	p.expect(t, "started", "validate 0", "permit0 check=false", "permit1 check=false", "ended")
}

func TestAGuardAddedToTheCallersSliceLaterIsNotAsked(t *testing.T) {
	t.Parallel()
	guards := []bus.Guard{func(context.Context, bus.Invocation) error { return nil }}
	b := newBus(t, bus.Serve(bus.Log(
		bus.Validate(bus.Claim(placeOrder, nil), theInvocation, guards, nil), theInvocation, guards, nil)))
	guards[0] = func(context.Context, bus.Invocation) error { return errAdmit }
	if _, err := bus.Send(t.Context(), b, place{}); err != nil {
		t.Fatal(err)
	}
}

func TestTheRestRunsOnTheObserversContext(t *testing.T) {
	t.Parallel()
	see := func(ctx context.Context) {
		if ctx.Value(markedBy{}) != "checkout.place" {
			t.Error("a step ran on another context")
		}
	}
	p := &pipeline{}
	guard := func(ctx context.Context, _ bus.Invocation) error { see(ctx); return nil }
	b := newBus(t, bus.Serve(bus.Log(bus.Validate(bus.Claim(
		func(ctx context.Context, _ place) (placed, error) { see(ctx); return placed{}, nil },
		func(ctx context.Context, c place, next bus.Handler[place, placed]) (placed, error) {
			see(ctx)
			return next(ctx, c)
		}),
		theInvocation, []bus.Guard{guard}, func(ctx context.Context, c place) (place, error) { see(ctx); return c, nil }),
		theInvocation, []bus.Guard{guard}, p)))
	if _, err := bus.Send(t.Context(), b, place{}); err != nil {
		t.Fatal(err)
	}
	see(p.ended[0].ctx)
}

func TestANilContextOfTheObserverMeansTheCallers(t *testing.T) {
	t.Parallel()
	p := &pipeline{withObserver: true, nilCtx: true}
	ctx := context.WithValue(t.Context(), markedBy{}, "caller's")
	if _, err := bus.Send(ctx, p.bus(t), place{}); err != nil {
		t.Fatal(err)
	}
	if p.ended[0].ctx != ctx {
		t.Error("Ended got another context")
	}
}

func TestAPanickingObserverChangesNothing(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name          string
		started, ends bool
	}{{"in Started", true, false}, {"in Ended", false, true}, {"in both", true, true}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := &pipeline{withObserver: true, startedPanics: c.started, endedPanics: c.ends}
			b := p.bus(t)
			if got, err := bus.Send(t.Context(), b, place{Cart: "c1"}); err != nil || got.Order != "c1" {
				t.Errorf("Send = %+v, %v", got, err)
			}
			p.handle = func() (placed, error) { return placed{}, errHandler }
			if _, err := bus.Send(t.Context(), b, place{}); err != errHandler { //nolint:errorlint // the same value
				t.Errorf("Send = %v, want the handler's error", err)
			}
			if err := bus.Check(t.Context(), b, place{}); err != nil {
				t.Errorf("Check = %v", err)
			}
			if len(p.ended) != 3 {
				t.Errorf("the observer saw %d ends, want 3", len(p.ended))
			}
			p.handle = func() (placed, error) { panic(errHandler) }
			if got := panicOf(func() { _, _ = bus.Send(t.Context(), b, place{}) }); got != errHandler {
				t.Errorf("the handler's panic became %v", got)
			}
		})
	}
}

func TestAPanicPassesThroughAndTheObserverSeesIt(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	for name, p := range map[string]*pipeline{
		"of the handler":   {withObserver: true, handle: func() (placed, error) { panic(boom) }},
		"of the claim":     {withObserver: true, claim: func(context.Context, place, bus.Handler[place, placed]) (placed, error) { panic(boom) }},
		"without observer": {handle: func() (placed, error) { panic(boom) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := p.bus(t)
			if got := panicOf(func() { _, _ = bus.Send(t.Context(), b, place{}) }); got != boom {
				t.Fatalf("panic = %v", got)
			}
			if p.withObserver && (len(p.ended) != 1 || !p.ended[0].panicked || p.ended[0].err != nil) {
				t.Errorf("the observer was told %+v", p.ended)
			}
		})
	}
}

func TestAPanicOfAGuardPassesThroughAndTheObserverSeesIt(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	p := &pipeline{}
	guard := func(context.Context, bus.Invocation) error { panic(boom) }
	b := newBus(t, bus.Serve(bus.Log(bus.Validate(bus.Claim(placeOrder, nil), theInvocation, nil, nil), theInvocation, []bus.Guard{guard}, p)))
	if got := panicOf(func() { _, _ = bus.Send(t.Context(), b, place{}) }); got != boom {
		t.Errorf("panic of Send = %v", got)
	}
	if got := panicOf(func() { _ = bus.Check(t.Context(), b, place{}) }); got != boom {
		t.Errorf("panic of Check = %v", got)
	}
	if len(p.ended) != 2 || !p.ended[0].panicked || !p.ended[1].panicked || !p.ended[1].inv.Check {
		t.Errorf("the observer was told %+v", p.ended)
	}
}

func panicOf(f func()) (v any) {
	defer func() { v = recover() }()
	f()
	return nil
}

func TestBR14_GoexitPassesThroughAndTheObserverSeesIt(t *testing.T) {
	t.Parallel()
	for _, endedPanics := range []bool{false, true} {
		p := &pipeline{withObserver: true, endedPanics: endedPanics, handle: func() (placed, error) {
			runtime.Goexit()
			return placed{}, nil
		}}
		b := p.bus(t)
		returned, done := false, make(chan struct{})
		go func() {
			defer close(done)
			_, _ = bus.Send(t.Context(), b, place{})
			returned = true
		}()
		<-done
		if returned {
			t.Error("Send returned from a goroutine that had ended")
		}
		if len(p.ended) != 1 || !p.ended[0].panicked || p.ended[0].err != nil {
			t.Errorf("the observer was told %+v", p.ended)
		}
	}
}

func TestTheClaimDecidesWhetherTheHandlerRuns(t *testing.T) {
	t.Parallel()
	p := &pipeline{withObserver: true, claim: func(context.Context, place, bus.Handler[place, placed]) (placed, error) {
		return placed{Order: "recorded"}, nil
	}}
	if got, err := bus.Send(t.Context(), p.bus(t), place{}); err != nil || got.Order != "recorded" {
		t.Fatalf("Send = %+v, %v", got, err)
	}
	p.expect(t, "started", "validate 0", "claim 0", "ended")
}

// The property: whatever the parts do, what runs and what the caller gets are those of the one order.
func TestPipe1_NoMixOfPartsChangesTheOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		refusals := func(label string, err error) []error {
			return rapid.SliceOfN(rapid.SampledFrom([]error{nil, nil, nil, err}), 0, 4).Draw(t, label)
		}
		p := &pipeline{
			withObserver:  rapid.Bool().Draw(t, "observer"),
			startedPanics: rapid.Bool().Draw(t, "started panics"),
			endedPanics:   rapid.Bool().Draw(t, "ended panics"),
			nilCtx:        rapid.Bool().Draw(t, "nil context"),
			admit:         refusals("admit", errAdmit),
			permit:        refusals("permit", errPermit),
			invalid:       rapid.SampledFrom([]error{nil, nil, errInvalid}).Draw(t, "validation"),
		}
		claim := rapid.SampledFrom([]string{"pass", "replay", "conflict"}).Draw(t, "claim")
		switch claim {
		case "replay":
			p.claim = func(context.Context, place, bus.Handler[place, placed]) (placed, error) {
				return placed{Order: "recorded"}, nil
			}
		case "conflict":
			p.claim = func(context.Context, place, bus.Handler[place, placed]) (placed, error) { return placed{}, errConflict }
		}
		handler := rapid.SampledFrom([]string{"result", "error", "panic"}).Draw(t, "handler")
		switch handler {
		case "error":
			p.handle = func() (placed, error) { return placed{}, errHandler }
		case "panic":
			p.handle = func() (placed, error) { panic(errHandler) }
		}
		check := rapid.Bool().Draw(t, "check")

		// The model, written down once more as plain steps.
		var (
			want     []string
			wantErr  error
			wantGot  placed
			panicked bool
		)
		ask := func(name string, refusals []error) {
			for i, err := range refusals {
				if wantErr == nil {
					want, wantErr = append(want, fmt.Sprintf("%s%d check=%t", name, i, check)), err
				}
			}
		}
		if p.withObserver {
			want = append(want, "started")
		}
		ask("admit", p.admit)
		if wantErr == nil {
			want, wantErr = append(want, "validate 7"), p.invalid
			ask("permit", p.permit)
		}
		if wantErr == nil && !check {
			want = append(want, "claim 700")
			switch claim {
			case "replay":
				wantGot.Order = "recorded"
			case "conflict":
				wantErr = errConflict
			case "pass":
				want = append(want, "handler 700")
				switch handler {
				case "result":
					wantGot.Order = "c1"
				case "error":
					wantErr = errHandler
				case "panic":
					panicked = true
				}
			}
		}
		if p.withObserver {
			want = append(want, "ended")
		}

		var (
			got placed
			err error
		)
		b := p.bus(t)
		v := panicOf(func() {
			if check {
				err = bus.Check(context.Background(), b, place{Cart: "c1", Amount: 7})
			} else {
				got, err = bus.Send(context.Background(), b, place{Cart: "c1", Amount: 7})
			}
		})
		p.expect(t, want...)
		if (v != nil) != panicked || (panicked && v != errHandler) {
			t.Fatalf("panic = %v, want %t", v, panicked)
		}
		if err != wantErr || got != wantGot { //nolint:errorlint // the same value
			t.Fatalf("outcome = %+v, %v; want %+v, %v", got, err, wantGot, wantErr)
		}
		if p.withObserver {
			if e := p.ended[0]; len(p.ended) != 1 || e.err != wantErr || e.panicked != panicked || e.inv.Check != check { //nolint:errorlint // the same value
				t.Fatalf("the observer was told %+v", p.ended)
			}
		}
	})
}
