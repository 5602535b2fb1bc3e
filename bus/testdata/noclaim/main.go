// Command noclaim leaves the rung of the claim out.
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
	_ = bus.Validate(handle, inv, nil, validate) // want `of handle does not match bus.Claimed[C, R]`
}
