package bus

import "context"

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

// Claimed is the first rung: a handler behind the decision whether it runs. It is made by [Claim].
type Claimed[C, R any] struct{ send Handler[C, R] }

// Validated is the second rung: what only valid commands get through. It is made by [Validate].
type Validated[C, R any] struct {
	send  Handler[C, R]
	check func(context.Context, C) error
}

// Logged is the last rung and the only one that a [Bus] serves. It is made by [Log].
type Logged[C, R any] struct {
	send  Handler[C, R]
	check func(context.Context, C) error
}

// Claim puts stage before the handler. stage gets the handler as next and decides whether it runs: at most once for a
// recorded intent. A nil stage lets every dispatch through, as it is right for a query or a command without the mark.
func Claim[C, R any](h Handler[C, R], stage func(ctx context.Context, cmd C, next Handler[C, R]) (R, error)) Claimed[C, R] {
	if h == nil {
		return Claimed[C, R]{}
	}
	if stage == nil {
		return Claimed[C, R]{send: h}
	}
	return Claimed[C, R]{send: func(ctx context.Context, cmd C) (R, error) { return stage(ctx, cmd, h) }}
}

// Validate puts validation before the claim, so that a key is not spent by an invalid command (rule pipe-3).
// validate gives back the command that is to be handled, which is cmd itself or its normalised form. A nil validate
// lets everything through. permit guards stand behind validation and before the claim.
func Validate[C, R any](next Claimed[C, R], inv Invocation, permit []Guard, validate func(context.Context, C) (C, error)) Validated[C, R] {
	if next.send == nil {
		return Validated[C, R]{}
	}
	pass := func(ctx context.Context, cmd C, inv Invocation) (C, error) {
		if validate != nil {
			var err error
			if cmd, err = validate(ctx, cmd); err != nil {
				return cmd, err
			}
		}
		return cmd, ask(ctx, permit, inv)
	}
	checking := inv
	checking.Check = true
	return Validated[C, R]{
		send: func(ctx context.Context, cmd C) (R, error) {
			cmd, err := pass(ctx, cmd, inv)
			if err != nil {
				var none R
				return none, err
			}
			return next.send(ctx, cmd)
		},
		check: func(ctx context.Context, cmd C) error {
			_, err := pass(ctx, cmd, checking)
			return err
		},
	}
}

// Log puts the observer first, so that it sees refusals too (rule pipe-2), and the admit guards behind it. A nil
// observer sees nothing.
func Log[C, R any](next Validated[C, R], inv Invocation, admit []Guard, obs Observer) Logged[C, R] {
	if next.send == nil {
		return Logged[C, R]{}
	}
	checking := inv
	checking.Check = true
	return Logged[C, R]{
		send: func(ctx context.Context, cmd C) (res R, err error) {
			ctx, done := started(ctx, inv, obs), false
			defer func() { ended(ctx, inv, obs, err, !done) }()
			if err = ask(ctx, admit, inv); err == nil {
				res, err = next.send(ctx, cmd)
			}
			done = true
			return res, err
		},
		check: func(ctx context.Context, cmd C) (err error) {
			ctx, done := started(ctx, checking, obs), false
			defer func() { ended(ctx, checking, obs, err, !done) }()
			if err = ask(ctx, admit, checking); err == nil {
				err = next.check(ctx, cmd)
			}
			done = true
			return err
		},
	}
}

func ask(ctx context.Context, guards []Guard, inv Invocation) error {
	for _, g := range guards {
		if err := g(ctx, inv); err != nil {
			return err
		}
	}
	return nil
}

func started(ctx context.Context, inv Invocation, obs Observer) (out context.Context) {
	if obs == nil {
		return ctx
	}
	defer func() {
		if recover() != nil || out == nil {
			out = ctx
		}
	}()
	return obs.Started(ctx, inv)
}

func ended(ctx context.Context, inv Invocation, obs Observer, err error, panicked bool) {
	if obs == nil {
		return
	}
	// recover here stops only a panic of the observer's own; the dispatch's panic, if there is one, belongs to the
	// frames above and goes on.
	defer func() { _ = recover() }()
	obs.Ended(ctx, inv, err, panicked)
}
