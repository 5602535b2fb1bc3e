package httpedge_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/logging"
	"github.com/tekil-go/tekil/behaviors/validation"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
	"github.com/tekil-go/tekil/requestctx/httpedge"
	"github.com/tekil-go/tekil/requestctx/internal/errortable"
	"github.com/tekil-go/tekil/requestctx/internal/strictjson"
)

// statusRow is what an error is answered with.
type statusRow struct {
	name   string // of the exported type or variable, with its folder
	err    error
	status int
	retry  httpedge.Retry // when the same request may be sent again
	unsafe httpedge.Retry // when it may not; "" means the same
	other  int            // the status then; 0 means the same
}

func statusTable() []statusRow {
	const (
		same  = httpedge.SameKey
		fresh = httpedge.NewKey
		none  = httpedge.Never
	)
	odd := errors.New("odd")
	return []statusRow{
		{name: "idempotency.KeyMissingError", err: &idempotency.KeyMissingError{}, status: 400, retry: fresh},
		{name: "idempotency.KeyInvalidError", err: &idempotency.KeyInvalidError{Err: odd}, status: 400, retry: fresh},
		{name: "idempotency.ConflictError", err: &idempotency.ConflictError{}, status: 409, retry: none},
		{name: "idempotency.InProgressError", err: &idempotency.InProgressError{RetryAfter: time.Second}, status: 409, retry: same},
		{name: "idempotency.ExpiredError", err: &idempotency.ExpiredError{}, status: 410, retry: fresh},
		{name: "idempotency.RefusedError", err: &idempotency.RefusedError{RefusalCode: "DECLINED"}, status: 422, retry: none},
		{name: "idempotency.StoreError", err: &idempotency.StoreError{Err: context.DeadlineExceeded}, status: 503, retry: same},
		{name: "idempotency.RetriesError", err: &idempotency.RetriesError{Err: odd}, status: 503, retry: same},
		{name: "idempotency.OutcomeUnknownError", err: &idempotency.OutcomeUnknownError{Err: context.Canceled}, status: 503, retry: same},
		{name: "idempotency.OutcomeUnknownError", err: &idempotency.OutcomeUnknownError{Review: true}, status: 409, retry: none},
		{name: "idempotency.InProgressError", err: &idempotency.InProgressError{OperationID: "x", Accepted: true}, status: 202, retry: same},
		{name: "idempotency.LeaseLostError", err: &idempotency.LeaseLostError{}, status: 503, retry: same},
		{name: "idempotency.AttemptsError", err: &idempotency.AttemptsError{}, status: 500, retry: none},
		{name: "idempotency.ResultUnavailableError", err: &idempotency.ResultUnavailableError{Err: &idempotency.ResultError{}}, status: 410, retry: none},
		{name: "idempotency.ResultUnavailableError", err: &idempotency.ResultUnavailableError{}, status: 410, retry: none},
		{name: "idempotency.ResultError", err: &idempotency.ResultError{Err: odd}, status: 500, retry: same},
		{name: "idempotency.ResultError", err: &idempotency.ResultError{Err: odd, Stored: true}, status: 500, retry: same},
		{name: "idempotency.HandlerError", err: &idempotency.HandlerError{}, status: 500, retry: same, unsafe: none},
		{name: "idempotency.RecordError", err: &idempotency.RecordError{}, status: 500, retry: none},
		{name: "idempotency.FingerprintError", err: &idempotency.FingerprintError{}, status: 500, retry: none},
		{name: "idempotency.ScopeError", err: &idempotency.ScopeError{}, status: 500, retry: none},

		// What a store says never reaches a caller by itself.
		{name: "idempotency.ErrBusy", err: idempotency.ErrBusy, status: 500, retry: same, unsafe: none},
		{name: "idempotency.ErrLost", err: idempotency.ErrLost, status: 500, retry: same, unsafe: none},
		{name: "idempotency.ErrSerialization", err: idempotency.ErrSerialization, status: 500, retry: same, unsafe: none},
		{name: "idempotency.ErrCommitUnknown", err: idempotency.ErrCommitUnknown, status: 500, retry: same, unsafe: none},
		{name: "idempotency.ErrTransactionEnded", err: idempotency.ErrTransactionEnded, status: 500, retry: same, unsafe: none},
		{name: "idempotency.ErrTransactionAborted", err: idempotency.ErrTransactionAborted, status: 500, retry: same, unsafe: none},

		// What a handler meets, and may return.
		{name: "idempotency.ErrLeaseLost", err: idempotency.ErrLeaseLost, status: 500, retry: same, unsafe: none},
		{name: "idempotency.ErrLeasedInsideAtomic", err: idempotency.ErrLeasedInsideAtomic, status: 500, retry: same, unsafe: none},
		{name: "idempotency.ErrChildLabelRequired", err: idempotency.ErrChildLabelRequired, status: 500, retry: same, unsafe: none},
		{name: "idempotency.ErrNoIntent", err: idempotency.ErrNoIntent, status: 500, retry: same, unsafe: none},
		// What a person meets, who is behind no route of ours. Statuses may give its code another status.
		{name: "idempotency.AdminError", err: &idempotency.AdminError{}, status: 500, retry: same, unsafe: none},

		{name: "validation.Error", err: &validation.Error{}, status: 400, retry: same},
		{name: "validation.FieldError", err: validation.FieldError{}, status: 400, retry: same},
		{name: "validation.FieldError", err: &validation.FieldError{}, status: 400, retry: same},
		{name: "validation.PanicError", err: &validation.PanicError{}, status: 500, retry: same, unsafe: none},

		{name: "requestctx.KeyError", err: &requestctx.KeyError{}, status: 400, retry: fresh},
		{name: "strictjson.Error", err: &strictjson.Error{}, status: 400, retry: same},
		{name: "strictjson.ErrTarget", err: strictjson.ErrTarget, status: 500, retry: same, unsafe: none},
		{name: "bus.UnhandledError", err: &bus.UnhandledError{}, status: 500, retry: none},

		// What is reported when the program starts, should it ever come here.
		{name: "bus.DuplicateError", err: &bus.DuplicateError{}, status: 500, retry: same, unsafe: none},
		{name: "bus.WayError", err: &bus.WayError{}, status: 500, retry: same, unsafe: none},
		{name: "validation.TypeError", err: &validation.TypeError{}, status: 500, retry: same, unsafe: none},
		{name: "validation.ErrTagName", err: validation.ErrTagName, status: 500, retry: same, unsafe: none},

		{name: "logging.ErrNoLogger", err: logging.ErrNoLogger, status: 500, retry: same, unsafe: none},

		{name: "context.Canceled", err: context.Canceled, status: 503, retry: same, unsafe: none, other: 500},
		{name: "context.DeadlineExceeded", err: context.DeadlineExceeded, status: 503, retry: same, unsafe: none, other: 500},
		{name: "an application's", err: odd, status: 500, retry: same, unsafe: none},
		{name: "an application's with a code", err: coded{code: "OUT_OF_STOCK"}, status: 500, retry: same, unsafe: none},
	}
}

func TestStatusOfEveryError(t *testing.T) {
	t.Parallel()
	for _, tt := range statusTable() {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if tt.unsafe == "" {
				tt.unsafe = tt.retry
			}
			if tt.other == 0 {
				tt.other = tt.status
			}
			for _, err := range []error{tt.err, fmt.Errorf("wrapped: %w", tt.err), errors.Join(errors.New("first"), tt.err)} {
				if status, retry := httpedge.Status(err, true); status != tt.status || retry != tt.retry {
					t.Errorf("%T: %d and %s, want %d and %s", err, status, retry, tt.status, tt.retry)
				}
				if status, retry := httpedge.Status(err, false); status != tt.other || retry != tt.unsafe {
					t.Errorf("%T, if it may not be sent again: %d and %s, want %d and %s", err, status, retry, tt.other, tt.unsafe)
				}
			}
		})
	}
	if status, retry := httpedge.Status(nil, false); status != 200 || retry != httpedge.SameKey {
		t.Errorf("nil: %d and %s", status, retry)
	}
}

func TestTheTableOfStatusesHoldsEveryExportedError(t *testing.T) {
	t.Parallel()
	have := make(map[string]bool)
	for _, row := range statusTable() {
		have[row.name] = true
	}
	errortable.Complete(t, have)
}
