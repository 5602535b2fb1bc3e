package bus_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/tekil-go/tekil/bus"
)

// Greet is a command; it says Greeting is what comes back.
type Greet struct{ Name string }

type Greeting struct{ Text string }

func (Greet) CommandName() bus.Name[Greeting] { return "hall.greet" }

// Guests is a query.
type Guests struct{}

func (Guests) QueryName() bus.Name[[]string] { return "hall.guests" }

// hall builds a bus by hand, as a test of one's own may; an application uses package registry.
func hall() (*bus.Bus, error) {
	greet := func(_ context.Context, c Greet) (Greeting, error) {
		return Greeting{Text: "Hello, " + c.Name + "."}, nil
	}
	guests := func(context.Context, Guests) ([]string, error) { return []string{"Ada", "Barbara"}, nil }
	named := func(_ context.Context, c Greet) (Greet, error) {
		if c.Name == "" {
			return c, errors.New("a guest needs a name")
		}
		return c, nil
	}
	inv, query := bus.Invocation{Name: "hall.greet"}, bus.Invocation{Name: "hall.guests", Query: true}
	return bus.New(
		bus.Serve(bus.Log(bus.Validate(bus.Claim(greet, nil), inv, nil, named), inv, nil, nil)),
		bus.Answer(bus.Log(bus.Validate(bus.Claim(guests, nil), query, nil, nil), query, nil, nil)),
	)
}

func ExampleSend() {
	b, err := hall()
	if err != nil {
		fmt.Println(err)
		return
	}
	greeting, err := bus.Send(context.Background(), b, Greet{Name: "Ada"}) // greeting is a Greeting
	fmt.Println(greeting.Text, err)
	// Output: Hello, Ada. <nil>
}

func ExampleAsk() {
	b, err := hall()
	if err != nil {
		fmt.Println(err)
		return
	}
	guests, err := bus.Ask(context.Background(), b, Guests{})
	fmt.Println(guests, err)
	// Output: [Ada Barbara] <nil>
}

func ExampleCheck() {
	b, err := hall()
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(bus.Check(context.Background(), b, Greet{Name: "Ada"}))
	fmt.Println(bus.Check(context.Background(), b, Greet{}))
	// Output:
	// <nil>
	// a guest needs a name
}

func ExampleBind() {
	b, err := hall()
	if err != nil {
		fmt.Println(err)
		return
	}
	greet, err := bus.Bind[Greet](b) // once, at start-up
	if err != nil {
		fmt.Println(err)
		return
	}
	greeting, err := greet(context.Background(), Greet{Name: "Barbara"})
	fmt.Println(greeting.Text, err)
	// Output: Hello, Barbara. <nil>
}

func ExampleBindQuery() {
	b, err := hall()
	if err != nil {
		fmt.Println(err)
		return
	}
	guests, err := bus.BindQuery[Guests](b)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(guests(context.Background(), Guests{}))
	// Output: [Ada Barbara] <nil>
}

// Package registry calls New with what it has built; this is what New says about a mistake.
func ExampleNew() {
	greet := func(context.Context, Greet) (Greeting, error) { return Greeting{}, nil }
	way := bus.Log(bus.Validate(bus.Claim(greet, nil), bus.Invocation{}, nil, nil), bus.Invocation{}, nil, nil)
	_, err := bus.New(bus.Serve(way), bus.Serve(way))
	fmt.Println(err)
	// Output: bus: hall.greet: two handlers for bus_test.Greet; a command has one
}

func ExampleCodeOf() {
	_, err := bus.Send(context.Background(), nil, Greet{})
	fmt.Println(bus.CodeOf(err))
	// Output: UNHANDLED
}
