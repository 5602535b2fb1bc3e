// Command right climbs the ladder as it must be climbed, so it compiles.
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
	b, err := bus.New(bus.Serve(bus.Log(bus.Validate(bus.Claim(handle, stage), inv, nil, validate), inv, nil, nil)))
	if err != nil {
		panic(err)
	}
	var result placed
	result, err = bus.Send(context.Background(), b, place{})
	_, _ = result, err
}
