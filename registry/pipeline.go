package registry

import (
	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/validation"
	"github.com/tekil-go/tekil/bus"
)

// command is THE ORDER (rule pipe-1). It is written here and nowhere else, top to bottom as it runs, and the types of package
// bus refuse every other one. docs/ordering.md tells what breaks when two lines are swapped.
func command[C bus.Command[R], R any](p *parts, inv bus.Invocation, h bus.Handler[C, R], set idempotency.Settings[C, R]) bus.Logged[C, R] {
	return logged(p, inv, // 1. logging: first, so that refusals and panics are seen as well; it never sees the payload
		p.cfg.Admit, // 2. admit: who may come in; before anything is spent on a stranger
		validated(p, inv, // 3. validation: cheap and without effects, so an invalid command costs nothing and keeps its key
			p.cfg.Permit, // 4. permit: may this caller do this; before a stored outcome could be handed to somebody who may not have it
			claimed(p, set, // 5. idempotency: last before the work, so that only what is valid and permitted spends a key
				around(p.cfg.Around, inv, // 6. around: the application's wrappers, inside the claim, so they do not run on a replay
					h)))) // 7. the handler, once for a recorded intent, as far as our database reaches
}

// query is the same order without line 5: a query is not recorded (rule pipe-10).
func query[Q bus.Query[R], R any](p *parts, inv bus.Invocation, h bus.Handler[Q, R]) bus.Logged[Q, R] {
	return logged(p, inv,
		p.cfg.Admit,
		validated(p, inv,
			p.cfg.Permit,
			bus.Claim(
				around(p.cfg.Around, inv, h), nil)))
}

func logged[C, R any](p *parts, inv bus.Invocation, admit []bus.Guard, next bus.Validated[C, R]) bus.Logged[C, R] {
	return bus.Log(next, inv, admit, p.observer)
}

func validated[C, R any](p *parts, inv bus.Invocation, permit []bus.Guard, next bus.Claimed[C, R]) bus.Validated[C, R] {
	rung, err := validation.Stage(p.validator, next, inv, permit)
	p.problem(err)
	return rung
}

func claimed[C bus.Command[R], R any](p *parts, set idempotency.Settings[C, R], next bus.Handler[C, R]) bus.Claimed[C, R] {
	rung, plan, err := idempotency.StageWith(p.engine, next, set)
	p.problem(err)
	p.problem(plan.Policy.CheckLease())
	p.plan = plan
	return rung
}
