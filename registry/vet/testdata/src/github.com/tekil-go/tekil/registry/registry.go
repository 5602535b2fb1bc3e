package registry

import (
	"context"

	"github.com/tekil-go/tekil/bus"
)

type (
	Registry                        struct{}
	Option[C bus.Command[R], R any] func()
)

func Handle[C bus.Command[R], R any](r *Registry, h func(context.Context, C) (R, error), options ...Option[C, R]) {
}
