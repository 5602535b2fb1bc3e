package idempotency

import "context"

type Mode int

const (
	Atomic Mode = iota
	Leased
)

type Policy struct{ Mode Mode }

func DownstreamKey(ctx context.Context, label string) (string, error) { return "", nil }
