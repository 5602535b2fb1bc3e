package bus

import "context"

type (
	Name[R any]    string
	None           struct{}
	Bus            struct{}
	Command[R any] interface{ CommandName() Name[R] }
)

func Send[C Command[R], R any](ctx context.Context, b *Bus, cmd C) (r R, err error) { return }
