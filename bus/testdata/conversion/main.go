// Command conversion makes a rung of a struct that looks like one.
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
	_ = inv
	lookalike := struct {
		send  bus.Handler[place, placed]
		check bus.Handler[place, bus.None]
	}{handle, nil}
	_ = bus.Logged[place, placed](lookalike) // want `cannot convert lookalike`
}
