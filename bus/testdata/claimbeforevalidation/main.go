// Command claimbeforevalidation puts the claim round validation.
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
	validated := bus.Validate(bus.Claim(handle, nil), inv, nil, validate)
	_ = bus.Claim(validated, stage) // want `type bus.Validated[place, placed] of validated does not match inferred type bus.Handler[place, placed]`
}
