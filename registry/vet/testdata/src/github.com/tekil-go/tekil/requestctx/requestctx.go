package requestctx

import "context"

type (
	Key     struct{}
	Values  struct{ Key Key }
	Request struct{}
)

func NewID() string                                                 { return "" }
func ParseKey(s string) (Key, error)                                { return Key{}, nil }
func New(ctx context.Context, v Values) (context.Context, *Request) { return ctx, nil }
