// Command claimlast puts the claim before validation.
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
	logged := bus.Log(bus.Claim(bus.Validate(handle, inv, nil, validate), stage), inv, nil, nil) // want `of handle does not match bus.Claimed[C, R]`
	_ = logged
}
