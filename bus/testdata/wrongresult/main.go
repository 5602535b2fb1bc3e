// Command wrongresult expects a result that is not the command's.
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
	var result string
	result, _ = bus.Send(context.Background(), nil, place{}) // want `(value of struct type placed) as string value in assignment`
	_ = result
	_, _ = bus.Send[place, string](context.Background(), nil, place{}) // want `place does not satisfy bus.Command[string]`
}
