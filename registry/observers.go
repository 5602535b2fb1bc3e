package registry

import (
	"context"

	"github.com/tekil-go/tekil/bus"
)

// observers are several that see what one sees. Each is told although another one panics.
type observers []bus.Observer

// observing puts the application's observers beside the one that logs. That one is told last, with a context in which the others have
// put what they have, such as a span.
func observing(log bus.Observer, others []bus.Observer) bus.Observer {
	if len(others) == 0 {
		return log
	}
	return append(append(observers{}, others...), log)
}

// Started gives each of them the context of the one before.
func (all observers) Started(ctx context.Context, inv bus.Invocation) context.Context {
	for _, o := range all {
		ctx = started(o, ctx, inv)
	}
	return ctx
}

// Ended tells all of them in the same order, with the context that the pipeline ran on.
func (all observers) Ended(ctx context.Context, inv bus.Invocation, err error, panicked bool) {
	for _, o := range all {
		ended(o, ctx, inv, err, panicked)
	}
}

func started(o bus.Observer, ctx context.Context, inv bus.Invocation) (out context.Context) {
	defer func() {
		if out == nil {
			_ = recover()
			out = ctx
		}
	}()
	return o.Started(ctx, inv)
}

func ended(o bus.Observer, ctx context.Context, inv bus.Invocation, err error, panicked bool) {
	defer func() { _ = recover() }()
	o.Ended(ctx, inv, err, panicked)
}
