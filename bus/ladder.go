package bus

import (
	"context"
	"slices"
)

// Invocation says what is being dispatched, without its payload. Guards, observers and wrappers get this and can't
// get more, so that none of them can log a body or decide by it.
type Invocation struct {
	// Name is the command's or query's stable name.
	Name string
	// Query is true for a query.
	Query bool
	// Idempotent is true for a command that carries the mark.
	Idempotent bool
	// Check is true when the dispatch only validates ([Check]).
	Check bool
}

// Guard refuses a dispatch by returning an error, which the caller gets unchanged, or lets it pass with nil. It has
// no next to call: a guard can neither skip nor repeat what follows, so it cannot stand round the claim (rule pipe-12).
// It is called from many goroutines at once.
type Guard func(context.Context, Invocation) error

// Observer sees every dispatch begin and end, refusals and panics included, and never the payload. It cannot skip,
// repeat or change what it sees. Its methods are called from many goroutines at once; a panic in either is
// swallowed, because looking at a command must not change what becomes of it.
type Observer interface {
	// Started is called first. The context it returns is the one that the rest of the pipeline runs on; nil means ctx.
	Started(ctx context.Context, inv Invocation) context.Context
	// Ended is called last, with the context that Started returned and the error that the caller gets. panicked is
	// true when the dispatch ended in a panic or runtime.Goexit, which goes on afterwards; err is then nil.
	Ended(ctx context.Context, inv Invocation, err error, panicked bool)
}

// The rungs differ in their fields, and must: a conversion turns one struct type into another whose fields are the same, even
// where another package cannot name them.

// Claimed is the first rung: a handler behind the decision whether it runs. It is made by [Claim].
type Claimed[C, R any] struct {
	handle Handler[C, R]
	stage  func(ctx context.Context, cmd C, next Handler[C, R]) (R, error)
}

// Validated is the second rung: what only valid commands get through. It is made by [Validate].
type Validated[C, R any] struct {
	claimed  Claimed[C, R]
	inv      Invocation
	permit   []Guard
	validate func(context.Context, C) (C, error)
}

// Logged is the last rung and the only one that a [Bus] serves. It is made by [Log].
type Logged[C, R any] struct {
	send  Handler[C, R]
	check Handler[C, None]
}

// Claim puts stage before the handler. stage gets the handler as next and decides whether it runs: at most once for a
// recorded intent. A nil stage lets every dispatch through, as it is right for a query or a command without the mark.
func Claim[C, R any](h Handler[C, R], stage func(ctx context.Context, cmd C, next Handler[C, R]) (R, error)) Claimed[C, R] {
	return Claimed[C, R]{handle: h, stage: stage}
}

// Validate puts validation before the claim, so that a key is not spent by an invalid command (rule pipe-3).
// validate gives back the command that is to be handled, which is cmd itself or its normalised form. A nil validate
// lets everything through. permit guards stand behind validation and before the claim.
func Validate[C, R any](next Claimed[C, R], inv Invocation, permit []Guard, validate func(context.Context, C) (C, error)) Validated[C, R] {
	return Validated[C, R]{claimed: next, inv: inv, permit: permit, validate: validate}
}

// Log puts the observer first, so that it sees refusals too (rule pipe-2), and the admit guards behind it. A nil
// observer sees nothing.
func Log[C, R any](next Validated[C, R], inv Invocation, admit []Guard, obs Observer) Logged[C, R] {
	if next.claimed.handle == nil {
		return Logged[C, R]{}
	}
	send, check := next.send(gateOf(admit, inv)), next.check(gateOf(admit, checked(inv)))
	if obs != nil {
		send, check = observed(send, inv, obs), observed(check, checked(inv), obs)
	}
	return Logged[C, R]{send: send, check: check}
}

// observed tells obs of every dispatch through next, and swallows the panics of obs alone. A dispatch that returns costs two
// frames for that, the one of started and this; one that breaks pays for a third.
func observed[C, R any](next Handler[C, R], inv Invocation, obs Observer) Handler[C, R] {
	w := &watch{obs, inv}
	return func(ctx context.Context, cmd C) (res R, err error) {
		ctx, at := w.started(ctx), running
		defer func() {
			switch at {
			case running:
				w.broken(ctx)
			case returned:
				_ = recover() // only a panic of Ended can have come here
			}
		}()
		res, err = next(ctx, cmd)
		at = returned
		w.obs.Ended(ctx, w.inv, err, false)
		at = told
		return res, err
	}
}

// send is everything behind the observer. It is one function where it can be, because each call costs a copy of the command.
func (v Validated[C, R]) send(admit *gate) Handler[C, R] {
	handle, stage, validate, permit := v.claimed.handle, v.claimed.stage, v.validate, gateOf(v.permit, v.inv)
	if validate == nil {
		if admit == nil && permit == nil && stage == nil {
			return handle
		}
		validate = func(_ context.Context, cmd C) (C, error) { return cmd, nil }
	}
	return func(ctx context.Context, cmd C) (R, error) {
		if admit != nil {
			if err := admit.ask(ctx); err != nil {
				var none R
				return none, err
			}
		}
		valid, err := validate(ctx, cmd)
		if err != nil {
			var none R
			return none, err
		}
		if permit != nil {
			if err := permit.ask(ctx); err != nil {
				var none R
				return none, err
			}
		}
		if stage == nil {
			return handle(ctx, valid)
		}
		return stage(ctx, valid, handle)
	}
}

// check is send without the claim and the handler.
func (v Validated[C, R]) check(admit *gate) Handler[C, None] {
	stop := Claim(func(context.Context, C) (None, error) { return None{}, nil }, nil)
	return Validate(stop, checked(v.inv), v.permit, v.validate).send(admit)
}

func checked(inv Invocation) Invocation {
	inv.Check = true
	return inv
}

// gate is a row of guards and what they are asked about.
type gate struct {
	guards []Guard
	inv    Invocation
}

func gateOf(guards []Guard, inv Invocation) *gate {
	if len(guards) == 0 {
		return nil
	}
	return &gate{slices.Clone(guards), inv}
}

func (g *gate) ask(ctx context.Context) error {
	for _, guard := range g.guards {
		if err := guard(ctx, g.inv); err != nil {
			return err
		}
	}
	return nil
}

// How far an observed dispatch has come.
const (
	running = iota
	returned
	told
)

// watch is an observer and what it sees.
type watch struct {
	obs Observer
	inv Invocation
}

// started survives a panic of the observer.
func (w *watch) started(ctx context.Context) (out context.Context) {
	defer func() {
		if out == nil {
			_ = recover()
			out = ctx
		}
	}()
	return w.obs.Started(ctx, w.inv)
}

// broken tells the observer of a dispatch that is ending in a panic or runtime.Goexit. Its recover stops only a panic of the
// observer's own; the dispatch's belongs to the frames above and goes on.
func (w *watch) broken(ctx context.Context) {
	defer func() { _ = recover() }()
	w.obs.Ended(ctx, w.inv, nil, true)
}
