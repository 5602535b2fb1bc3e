// Command wronghandler serves a handler whose result is not the command's.
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
	other := func(context.Context, place) (string, error) { return "", nil }
	_ = bus.Serve(bus.Log(bus.Validate(bus.Claim(other, nil), inv, nil, validate), inv, nil, nil)) // want `(type place) does not satisfy bus.Command[R]`
}
