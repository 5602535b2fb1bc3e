package registry

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/tekil-go/tekil/bus"
)

// Around wraps the handlers of all commands and queries, innermost, without seeing their payload: a place for a deadline, a
// semaphore or a measurement. It must call next once, and return next's error or one of its own (rule pipe-12). It runs
// inside the claim and so not on a replay.
//
// One that calls next twice, that returns nil without having called it, or that returns nil although next failed or panicked,
// makes the dispatch fail with an [*AroundError]; what a marked command's handler did is rolled back. Not calling next and
// returning an error refuses. A wrapper that returns while next still runs in a goroutine of its own does not end the dispatch:
// it is waited for, because the handler is writing through a transaction that ends with the dispatch.
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
	wrappers = slices.Clone(wrappers) // the application's slice may change
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
		var (
			calls    atomic.Int32
			mu       sync.Mutex // held while next runs, and guards the rest
			over     bool       // the wrapper has returned
			returned bool       // next has, with inner
			inner    error
		)
		fault := func(reason string) error { return &AroundError{Command: inv.Name, Reason: reason} }
		const twice = "called next more than once"
		once := func(ctx context.Context) error {
			if calls.Add(1) > 1 {
				return fault(twice)
			}
			mu.Lock()
			defer mu.Unlock()
			if over {
				return fault("called next after it had returned")
			}
			inner = next(ctx)
			returned = true
			return inner
		}
		err := func() error {
			defer func() {
				mu.Lock()
				over = true
				mu.Unlock()
			}()
			return w(ctx, inv, once)
		}()
		switch {
		case calls.Load() > 1:
			return fault(twice)
		case err != nil:
			return err
		case calls.Load() == 0:
			return fault("returned nil without calling next, which would invent a success")
		case !returned:
			return fault("returned nil although next did not return, which would turn a panic into a success")
		case inner != nil:
			return fault("returned nil although next failed, which would turn a failure into a success")
		}
		return nil
	}
}
