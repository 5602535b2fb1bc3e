package idempotency_test

import (
	"errors"
	"testing"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/bus"
)

type codedError struct{}

func (codedError) Error() string { return "out of stock" }
func (codedError) Code() string  { return "OUT_OF_STOCK" }

func TestAFinalErrorThatNoRecordHasGoneBetweenReadsAsTheRefusalItIs(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err           error
		code, message string
	}{
		{codedError{}, "OUT_OF_STOCK", "out of stock"},
		{errors.New("no project to process"), "REFUSED", "no project to process"},
	} {
		final := idempotency.Final(c.err)
		var refused *idempotency.RefusedError
		if !errors.As(final, &refused) || refused.RefusalCode != c.code || refused.Message != c.message {
			t.Errorf("%v reads as %+v", c.err, refused)
		}
		if got := bus.CodeOf(final); got != c.code {
			t.Errorf("the code of %v is %s, want %s", c.err, got, c.code)
		}
		if !errors.Is(final, c.err) {
			t.Errorf("%v is hidden", c.err)
		}
	}
	if idempotency.Final(nil) != nil || idempotency.Unknown(nil) != nil {
		t.Error("no error became one")
	}
}
