package bus_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tekil-go/tekil/bus"
)

// The goals are ratios to closures-3 of the same run, three hand-written closures that only pass on: bind/empty at most 1.2
// times as long (D1), send/empty at most 2.5 times, serial and parallel (D2), and 0 allocs/op for all. Compare bind/stages and
// bind/stages-and-observer with by-hand, which calls the same stages. BenchmarkRatio measures each and the closures in turn and
// reports the median of the rounds; BenchmarkDispatch gives the times:
//
//	go test -run '^$' -bench Ratio -benchtime 100x ./bus
//	go test -run '^$' -bench Dispatch -benchtime 80ms -count 5 ./bus

type charge struct {
	Customer string
	SKU      string
	Quantity int
	Amount   int64
	Currency string
}

type receipt struct{ ID int64 }

func (charge) CommandName() bus.Name[receipt] { return "bench.charge" }

// The neighbours fill the map, so that the look-up has something to look through.
type (
	neighbourA struct{}
	neighbourB struct{}
	neighbourC struct{}
)

func (neighbourA) CommandName() bus.Name[bus.None] { return "bench.a" }
func (neighbourB) CommandName() bus.Name[bus.None] { return "bench.b" }
func (neighbourC) CommandName() bus.Name[bus.None] { return "bench.c" }

type chargeFunc = func(context.Context, charge) (receipt, error)

//go:noinline
func takeCharge(_ context.Context, c charge) (receipt, error) { return receipt{ID: c.Amount}, nil }

//go:noinline
func passOn(next chargeFunc) chargeFunc {
	return func(ctx context.Context, c charge) (receipt, error) { return next(ctx, c) }
}

//go:noinline
func noClaim(ctx context.Context, c charge, next bus.Handler[charge, receipt]) (receipt, error) {
	return next(ctx, c)
}

//go:noinline
func noValidation(_ context.Context, c charge) (charge, error) { return c, nil }

type noObserver struct{}

func (noObserver) Started(ctx context.Context, _ bus.Invocation) context.Context     { return ctx }
func (noObserver) Ended(_ context.Context, _ bus.Invocation, _ error, panicked bool) {}

// chargeBus has the three rungs over takeCharge: empty ones, with stages that do nothing, and with an observer that does
// nothing as well.
func chargeBus(tb testing.TB, stages, observer bool, others ...bus.Entry) *bus.Bus {
	tb.Helper()
	var (
		claim    func(context.Context, charge, bus.Handler[charge, receipt]) (receipt, error)
		validate func(context.Context, charge) (charge, error)
		obs      bus.Observer
	)
	if stages {
		claim, validate = noClaim, noValidation
	}
	if observer {
		obs = noObserver{}
	}
	inv := bus.Invocation{Name: "bench.charge"}
	return newBus(tb, append(others,
		bus.Serve(bus.Log(bus.Validate(bus.Claim(takeCharge, claim), inv, nil, validate), inv, nil, obs)),
		bus.Serve(nothing[neighbourA]()), bus.Serve(nothing[neighbourB]()), bus.Serve(nothing[neighbourC]()))...)
}

// byHand is what the rungs do with stages and observer that do nothing, written as three nested closures and without the
// guards against a panic of the observer.
//
//go:noinline
func byHand(obs bus.Observer) chargeFunc {
	inv := bus.Invocation{Name: "bench.charge"}
	claimed := func(ctx context.Context, c charge) (receipt, error) { return noClaim(ctx, c, takeCharge) }
	validated := func(ctx context.Context, c charge) (receipt, error) {
		c, err := noValidation(ctx, c)
		if err != nil {
			return receipt{}, err
		}
		return claimed(ctx, c)
	}
	return func(ctx context.Context, c charge) (receipt, error) {
		ctx = obs.Started(ctx, inv)
		r, err := validated(ctx, c)
		obs.Ended(ctx, inv, err, false)
		return r, err
	}
}

func nothing[C bus.Command[bus.None]]() bus.Logged[C, bus.None] {
	return plain(func(context.Context, C) (bus.None, error) { return bus.None{}, nil })
}

func BenchmarkDispatch(b *testing.B) {
	var direct chargeFunc = takeCharge
	b.Run("direct", func(b *testing.B) { serialAndParallel(b, direct) })
	b.Run("closures-3", func(b *testing.B) { serialAndParallel(b, passOn(passOn(passOn(takeCharge)))) })
	b.Run("by-hand", func(b *testing.B) { serialAndParallel(b, byHand(noObserver{})) })
	for _, v := range []struct {
		name             string
		stages, observer bool
	}{
		{"empty", false, false},
		{"stages", true, false},
		{"observer", false, true},
		{"stages-and-observer", true, true},
	} {
		bb := chargeBus(b, v.stages, v.observer)
		bound, err := bus.Bind[charge](bb)
		if err != nil {
			b.Fatal(err)
		}
		b.Run("bind/"+v.name, func(b *testing.B) { serialAndParallel(b, bound) })
		b.Run("send/"+v.name, func(b *testing.B) { sendSerialAndParallel(b, bb) })
	}
	// The look-up must not depend on how many commands there are.
	var m many
	m.fill()
	b.Run("send/among-260", func(b *testing.B) { sendSerialAndParallel(b, chargeBus(b, false, false, m.entries...)) })
}

// BenchmarkRatio has one round of windows in each iteration: so many calls of one and the other in turn, the order swapped each time.
func BenchmarkRatio(b *testing.B) {
	closures := passOn(passOn(passOn(takeCharge)))
	base := func(ctx context.Context) error { _, err := closures(ctx, theCharge); return err }
	byHand := byHand(noObserver{})
	b.Run("by-hand", func(b *testing.B) {
		ratio(b, base, func(ctx context.Context) error { _, err := byHand(ctx, theCharge); return err })
	})
	for name, full := range map[string]bool{"empty": false, "stages-and-observer": true} {
		bb := chargeBus(b, full, full)
		bound, err := bus.Bind[charge](bb)
		if err != nil {
			b.Fatal(err)
		}
		b.Run("bind/"+name, func(b *testing.B) {
			ratio(b, base, func(ctx context.Context) error { _, err := bound(ctx, theCharge); return err })
		})
		b.Run("send/"+name, func(b *testing.B) {
			ratio(b, base, func(ctx context.Context) error { _, err := bus.Send(ctx, bb, theCharge); return err })
		})
	}
}

// ratio compares other with base, on one processor and on all, and counts what a call of other allocates.
func ratio(b *testing.B, base, other func(context.Context) error) {
	b.Helper()
	const calls = 20_000
	for _, how := range []struct {
		name    string
		workers int
	}{{"serial", 1}, {"parallel", runtime.GOMAXPROCS(0)}} {
		b.Run(how.name, func(b *testing.B) {
			ctx := context.Background()
			window := func(f func(context.Context) error) time.Duration {
				var wg sync.WaitGroup
				start := time.Now()
				for range how.workers {
					wg.Go(func() {
						for range calls {
							if err := f(ctx); err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				wg.Wait()
				return time.Since(start)
			}
			window(base)
			window(other)
			var ratios, bases []float64
			for round := 0; b.Loop(); round++ {
				var x, y time.Duration
				if round%2 == 0 {
					x, y = window(base), window(other)
				} else {
					y, x = window(other), window(base)
				}
				ratios, bases = append(ratios, float64(y)/float64(x)), append(bases, float64(x.Nanoseconds())/calls)
			}
			slices.Sort(ratios)
			slices.Sort(bases)
			b.ReportMetric(ratios[len(ratios)/2], "x-closures")
			b.ReportMetric(bases[len(bases)/2], "closures-ns")
			b.ReportMetric(testing.AllocsPerRun(100, func() { _ = other(ctx) }), "allocs/call")
			b.ReportMetric(0, "ns/op") // of a round, which says nothing
		})
	}
}

var (
	theCharge = charge{Customer: "cus_1044", SKU: "SKU-1", Quantity: 2, Amount: 4200, Currency: "TRY"}
	errBench  = errors.New("wrong result")
)

func serialAndParallel(b *testing.B, f chargeFunc) {
	b.Helper()
	b.Run("serial", func(b *testing.B) {
		cmd := theCharge
		b.ReportAllocs()
		for b.Loop() {
			if r, err := f(context.Background(), cmd); err != nil || r.ID != 4200 {
				b.Fatal(errBench, err)
			}
		}
	})
	b.Run("parallel", func(b *testing.B) {
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			cmd := theCharge
			for pb.Next() {
				if r, err := f(context.Background(), cmd); err != nil || r.ID != 4200 {
					b.Error(errBench, err)
					return
				}
			}
		})
	})
}

// sendSerialAndParallel is serialAndParallel without the one more call that a closure round Send would cost.
func sendSerialAndParallel(b *testing.B, bb *bus.Bus) {
	b.Helper()
	b.Run("serial", func(b *testing.B) {
		cmd := theCharge
		b.ReportAllocs()
		for b.Loop() {
			if r, err := bus.Send(context.Background(), bb, cmd); err != nil || r.ID != 4200 {
				b.Fatal(errBench, err)
			}
		}
	})
	b.Run("parallel", func(b *testing.B) {
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			cmd := theCharge
			for pb.Next() {
				if r, err := bus.Send(context.Background(), bb, cmd); err != nil || r.ID != 4200 {
					b.Error(errBench, err)
					return
				}
			}
		})
	})
}
