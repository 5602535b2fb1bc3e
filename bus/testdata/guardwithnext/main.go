// Command guardwithnext gives a guard something to call, so that it could stand round the claim.
package main

import (
	"context"

	"github.com/tekil-go/tekil/bus"
)

type place struct{}

type placed struct{}

func (place) CommandName() bus.Name[placed] { return "checkout.place" }

func handle(context.Context, place) (placed, error) { return placed{}, nil }

func stage(ctx context.Context, c place, next bus.Handler[place, placed]) (placed, error) {
	return next(ctx, c)
}

func validate(_ context.Context, c place) (place, error) { return c, nil }

func main() {
	inv := bus.Invocation{Name: "checkout.place"}
	guard := func(_ context.Context, _ bus.Invocation, next func() error) error { return next() }
	_ = bus.Validate(bus.Claim(handle, stage), inv, []bus.Guard{guard}, validate) // want `cannot use guard`
}
