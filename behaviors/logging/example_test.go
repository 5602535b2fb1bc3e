package logging_test

import (
	"context"
	"fmt"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/tekil-go/tekil/behaviors/logging"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
)

// Package registry does this for an application; what it needs from there is the logger alone.
func ExampleNew() {
	core, logs := observer.New(zapcore.InfoLevel) // zap.NewProduction() in a program
	obs, err := logging.New(logging.Config{Logger: zap.New(core)})
	if err != nil {
		fmt.Println(err)
		return
	}

	findOrder := func(ctx context.Context, _ find) (placed, error) {
		requestctx.From(ctx).Add("draft_order_id", "d-12")
		return placed{}, nil
	}
	inv := bus.Invocation{Name: "checkout.find", Query: true}
	b, err := bus.New(bus.Answer(bus.Log(bus.Validate(bus.Claim(findOrder, nil), inv, nil, nil), inv, nil, obs)))
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, _ := requestctx.New(context.Background(), requestctx.Values{ID: "attempt-1", Scope: requestctx.Scope{Client: "acme-erp"}})
	if _, err := bus.Ask(ctx, b, find{Order: "o1"}); err != nil {
		fmt.Println(err)
	}

	line := logs.All()[0]
	fields := line.ContextMap()
	fmt.Println(line.Level, line.Message)
	for _, name := range []string{"command", "outcome", "client", "request_id", "attributes"} {
		fmt.Println(name, fields[name])
	}
	// Output:
	// info query succeeded
	// command checkout.find
	// outcome OK
	// client acme-erp
	// request_id attempt-1
	// attributes map[draft_order_id:d-12]
}

func ExampleNew_withoutALogger() {
	_, err := logging.New(logging.Config{})
	fmt.Println(err)
	// Output: logging: Config.Logger is nil; give it a logger, or zap.NewNop() to log nothing
}
