// Command validationbeforelogging puts validation round logging.
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
	logged := bus.Log(bus.Validate(bus.Claim(handle, stage), inv, nil, validate), inv, nil, nil)
	_ = bus.Validate(logged, inv, nil, validate) // want `type bus.Logged[place, placed] of logged does not match inferred type bus.Claimed[place, placed]`
}
