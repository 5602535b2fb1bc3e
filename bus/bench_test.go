package bus_test

import (
	"context"
	"errors"
	"testing"

	"github.com/tekil-go/tekil/bus"
)

// The goals are ratios to the baseline closures-3 of the same run: the bound function at most 1.2 times as long (D1), Send
// at most 2.5 times, serial and parallel (D2), and 0 allocs/op for all. Compare medians of a few rounds:
//
//	go test -run '^$' -bench . -benchtime 80ms -count 5 ./bus

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
func chargeBus(tb testing.TB, stages, observer bool) *bus.Bus {
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
	b, err := bus.New(
		bus.Serve(bus.Log(bus.Validate(bus.Claim(takeCharge, claim), inv, nil, validate), inv, nil, obs)),
		bus.Serve(nothing[neighbourA]()), bus.Serve(nothing[neighbourB]()), bus.Serve(nothing[neighbourC]()),
	)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

func nothing[C bus.Command[bus.None]]() bus.Logged[C, bus.None] {
	h := func(context.Context, C) (bus.None, error) { return bus.None{}, nil }
	return bus.Log(bus.Validate(bus.Claim(h, nil), bus.Invocation{}, nil, nil), bus.Invocation{}, nil, nil)
}

func BenchmarkDispatch(b *testing.B) {
	var direct chargeFunc = takeCharge
	b.Run("direct", func(b *testing.B) { serialAndParallel(b, direct) })
	b.Run("closures-3", func(b *testing.B) { serialAndParallel(b, passOn(passOn(passOn(takeCharge)))) })
	for _, v := range []struct {
		name             string
		stages, observer bool
	}{
		{"empty", false, false},
		{"stages", true, false},
		{"stages-and-observer", true, true},
	} {
		bb := chargeBus(b, v.stages, v.observer)
		bound, err := bus.Bind[charge](bb)
		if err != nil {
			b.Fatal(err)
		}
		b.Run("bind/"+v.name, func(b *testing.B) { serialAndParallel(b, bound) })
		b.Run("send/"+v.name, func(b *testing.B) {
			serialAndParallel(b, func(ctx context.Context, c charge) (receipt, error) { return bus.Send(ctx, bb, c) })
		})
	}
}

var errBench = errors.New("wrong result")

func serialAndParallel(b *testing.B, f chargeFunc) {
	b.Helper()
	cmd := charge{Customer: "cus_1044", SKU: "SKU-1", Quantity: 2, Amount: 4200, Currency: "TRY"}
	once := func() error {
		r, err := f(context.Background(), cmd)
		if err == nil && r.ID != 4200 {
			err = errBench
		}
		return err
	}
	b.Run("serial", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := once(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("parallel", func(b *testing.B) {
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if err := once(); err != nil {
					b.Error(err)
					return
				}
			}
		})
	})
}
