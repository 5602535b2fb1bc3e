package registry

import (
	"context"
	"fmt"

	"github.com/tekil-go/tekil/bus"
)

// Around wraps the handlers of all commands and queries, innermost, without seeing their payload: a place for a deadline, a
// semaphore or a measurement. It must call next once, and return next's error or one of its own (rule pipe-12). It runs
// inside the claim and so not on a replay.
//
// One that calls next twice, that returns nil without having called it, or that returns nil although next failed, makes the
// dispatch fail with an [*AroundError]; what the handler did is rolled back. Not calling next and returning an error refuses.
type Around func(ctx context.Context, inv bus.Invocation, next func(context.Context) error) error

// AroundError is returned when a wrapper broke its contract. It is a bug to be mended.
type AroundError struct {
	// Command is the command's or query's name.
	Command string
	// Reason says what the wrapper did.
	Reason string
}

func (e *AroundError) Error() string {
	return fmt.Sprintf("registry: %s: a wrapper set in Config.Around %s", e.Command, e.Reason)
}

// Code is the outcome code of the error.
func (*AroundError) Code() string { return "AROUND_FAULT" }

// around puts the wrappers round h, the first one outermost. Without any it is h itself.
func around[C, R any](wrappers []Around, inv bus.Invocation, h bus.Handler[C, R]) bus.Handler[C, R] {
	if len(wrappers) == 0 || h == nil {
		return h
	}
	return func(ctx context.Context, cmd C) (res R, err error) {
		run := func(ctx context.Context) (err error) {
			res, err = h(ctx, cmd)
			return err
		}
		for i := len(wrappers) - 1; i >= 0; i-- {
			run = watched(wrappers[i], inv, run)
		}
		err = run(ctx)
		return res, err
	}
}

// watched holds one wrapper to its contract.
func watched(w Around, inv bus.Invocation, next func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		calls := 0
		var inner error
		err := w(ctx, inv, func(ctx context.Context) error {
			if calls++; calls > 1 {
				return &AroundError{Command: inv.Name, Reason: "called next more than once"}
			}
			inner = next(ctx)
			return inner
		})
		switch {
		case calls > 1:
			return &AroundError{Command: inv.Name, Reason: "called next more than once"}
		case err == nil && calls == 0:
			return &AroundError{Command: inv.Name, Reason: "returned nil without calling next, which would invent a success"}
		case err == nil && inner != nil:
			return &AroundError{Command: inv.Name, Reason: "returned nil although next failed, which would turn a failure into a success"}
		}
		return err
	}
}
