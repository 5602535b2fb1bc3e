package bus_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/tekil-go/tekil/bus"
)

type coded string

func (c coded) Error() string { return "coded" }
func (c coded) Code() string  { return string(c) }

type brokenError struct{ code *string }

func (e *brokenError) Error() string { return *e.code }
func (e *brokenError) Code() string  { return *e.code }

type brokenTree struct{}

func (brokenTree) Error() string   { return "broken" }
func (brokenTree) Unwrap() []error { panic("no tree") }

type selfish struct{}

func (selfish) Error() string { return "selfish" }
func (selfish) Is(error) bool { panic("no answer") }

func TestCodeOfHasAnAnswerForEveryError(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		err  error
		want string
	}{
		{"nil", nil, ""},
		{"plain", io.EOF, "INTERNAL"},
		{"coded", coded("PAYMENT_DECLINED"), "PAYMENT_DECLINED"},
		{"wrapped", fmt.Errorf("paying: %w", coded("PAYMENT_DECLINED")), "PAYMENT_DECLINED"},
		{"joined: the first code wins", errors.Join(io.EOF, coded("FIRST"), coded("SECOND")), "FIRST"},
		{"the outer code wins", &outer{coded("INNER")}, "OUTER"},
		{"an empty code is none", coded(""), "INTERNAL"},
		{"an empty code round a context error", fmt.Errorf("%w: %w", coded(""), context.Canceled), "CANCELED"},
		{"canceled", context.Canceled, "CANCELED"},
		{"deadline", fmt.Errorf("reading: %w", context.DeadlineExceeded), "DEADLINE_EXCEEDED"},
		{"a code beats the context error under it", fmt.Errorf("%w: %w", coded("STORE_AWAY"), context.DeadlineExceeded), "STORE_AWAY"},
		{"a code method that panics", &brokenError{}, "INTERNAL"},
		{"a nil pointer", (*brokenError)(nil), "INTERNAL"},
		{"a nil pointer of ours", (*bus.UnhandledError)(nil), "UNHANDLED"},
		{"an Unwrap that panics", brokenTree{}, "INTERNAL"},
		{"an Is that panics", selfish{}, "INTERNAL"},
		{"unhandled", &bus.UnhandledError{}, "UNHANDLED"},
		{"duplicate", &bus.DuplicateError{}, "DUPLICATE_HANDLER"},
		{"way", &bus.WayError{}, "UNSERVABLE"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if got := bus.CodeOf(c.err); got != c.want {
				t.Errorf("CodeOf = %q, want %q", got, c.want)
			}
		})
	}
}

type outer struct{ err error }

func (*outer) Error() string   { return "outer" }
func (o *outer) Unwrap() error { return o.err }
func (*outer) Code() string    { return "OUTER" }
