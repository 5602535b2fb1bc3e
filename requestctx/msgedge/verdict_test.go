package msgedge_test

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
	"github.com/tekil-go/tekil/requestctx/internal/errortable"
	"github.com/tekil-go/tekil/requestctx/internal/strictjson"
	"github.com/tekil-go/tekil/requestctx/msgedge"
)

// verdictRow is what is done with a message after an error.
type verdictRow struct {
	name   string // of the exported type or variable, with its folder
	err    error
	state  requestctx.State
	action msgedge.Action
	delay  time.Duration
}

func verdictTable() []verdictRow {
	const (
		ack   = msgedge.Ack
		retry = msgedge.Retry
		dead  = msgedge.DeadLetter

		none     = requestctx.StateNone
		executed = requestctx.StateExecuted
		replayed = requestctx.StateReplayed
		expired  = requestctx.StateExpired
		refused  = requestctx.StateRefused
		freed    = requestctx.StateFreed
		unknown  = requestctx.StateUnknown
		lost     = requestctx.StateLost
	)
	odd := errors.New("odd")
	busy := &idempotency.InProgressError{RetryAfter: 7 * time.Second}
	return []verdictRow{
		// The outcome is there.
		{name: "idempotency.RefusedError", err: &idempotency.RefusedError{}, state: executed, action: ack},
		{name: "idempotency.RefusedError", err: &idempotency.RefusedError{}, state: replayed, action: ack},
		{name: "idempotency.RefusedError", err: idempotency.Final(odd), state: none, action: ack}, // of a command without the mark
		{name: "idempotency.RefusedError", err: idempotency.Final(validation.Field("a", "b", "c")), state: none, action: ack},
		{name: "idempotency.ExpiredError", err: &idempotency.ExpiredError{}, state: expired, action: ack},
		{name: "idempotency.ResultUnavailableError", err: &idempotency.ResultUnavailableError{Err: &idempotency.ResultError{}}, state: executed, action: ack},
		{name: "idempotency.ResultUnavailableError", err: &idempotency.ResultUnavailableError{}, state: replayed, action: ack},
		{name: "idempotency.ResultError", err: &idempotency.ResultError{Err: odd, Stored: true}, state: refused, action: ack},

		// It is that of a command which the handler has sent.
		{name: "idempotency.RefusedError", err: &idempotency.RefusedError{}, state: freed, action: dead},
		{name: "idempotency.RefusedError", err: &idempotency.RefusedError{}, state: unknown, action: dead},
		{name: "idempotency.RefusedError", err: &idempotency.RefusedError{}, state: lost, action: dead},
		{name: "idempotency.ExpiredError", err: &idempotency.ExpiredError{}, state: freed, action: dead},
		{name: "idempotency.ExpiredError", err: &idempotency.ExpiredError{}, state: none, action: dead},
		{name: "idempotency.ResultUnavailableError", err: &idempotency.ResultUnavailableError{}, state: freed, action: dead},
		{name: "idempotency.ResultUnavailableError", err: &idempotency.ResultUnavailableError{}, state: none, action: dead},
		{name: "idempotency.ResultError", err: &idempotency.ResultError{Err: odd, Stored: true}, state: unknown, action: dead},

		// It passes.
		{name: "idempotency.InProgressError", err: busy, state: requestctx.StateInProgress, action: retry, delay: 7 * time.Second},
		{name: "idempotency.InProgressError", err: &idempotency.InProgressError{Accepted: true}, state: requestctx.StateInProgress, action: retry},
		{name: "idempotency.InProgressError", err: busy, state: freed, action: retry, delay: 7 * time.Second},
		{name: "idempotency.OutcomeUnknownError", err: &idempotency.OutcomeUnknownError{Err: context.Canceled, RetryAfter: time.Minute}, state: unknown, action: retry, delay: time.Minute},
		{name: "idempotency.OutcomeUnknownError", err: &idempotency.OutcomeUnknownError{Err: &idempotency.RefusedError{}}, state: unknown, action: retry},
		{name: "idempotency.StoreError", err: &idempotency.StoreError{Err: odd}, state: refused, action: retry},
		{name: "idempotency.RetriesError", err: &idempotency.RetriesError{Err: odd}, state: freed, action: retry},
		{name: "idempotency.LeaseLostError", err: &idempotency.LeaseLostError{}, state: lost, action: retry},
		{name: "idempotency.ResultError", err: &idempotency.ResultError{Err: odd}, state: freed, action: retry},
		{name: "idempotency.HandlerError", err: &idempotency.HandlerError{}, state: freed, action: retry},
		{name: "validation.PanicError", err: &validation.PanicError{}, state: none, action: retry},
		{name: "context.Canceled", err: context.Canceled, state: none, action: retry},
		{name: "context.DeadlineExceeded", err: context.DeadlineExceeded, state: freed, action: retry},
		{name: "an application's", err: odd, state: freed, action: retry},
		{name: "an application's with a code", err: coded{code: "OUT_OF_STOCK"}, state: none, action: retry},

		// It will not get better by itself.
		{name: "idempotency.OutcomeUnknownError", err: &idempotency.OutcomeUnknownError{Review: true, RetryAfter: time.Minute}, state: unknown, action: dead},
		{name: "idempotency.KeyMissingError", err: &idempotency.KeyMissingError{}, state: refused, action: dead},
		{name: "idempotency.KeyInvalidError", err: &idempotency.KeyInvalidError{Err: odd}, state: refused, action: dead},
		{name: "idempotency.ConflictError", err: &idempotency.ConflictError{}, state: requestctx.StateConflict, action: dead},
		{name: "idempotency.AttemptsError", err: &idempotency.AttemptsError{}, state: refused, action: dead},
		{name: "idempotency.RecordError", err: &idempotency.RecordError{}, state: refused, action: dead},
		{name: "idempotency.FingerprintError", err: &idempotency.FingerprintError{}, state: refused, action: dead},
		{name: "idempotency.ScopeError", err: &idempotency.ScopeError{}, state: refused, action: dead},
		{name: "idempotency.HandlerError", err: &idempotency.HandlerError{}, state: unknown, action: dead},
		{name: "validation.Error", err: &validation.Error{}, state: none, action: dead},
		{name: "validation.FieldError", err: validation.FieldError{}, state: none, action: dead},
		{name: "validation.FieldError", err: &validation.FieldError{}, state: freed, action: dead},
		{name: "requestctx.KeyError", err: &requestctx.KeyError{}, state: none, action: dead},
		{name: "strictjson.Error", err: &strictjson.Error{}, state: none, action: dead},
		{name: "bus.UnhandledError", err: &bus.UnhandledError{}, state: none, action: dead},

		// What a store says never comes here by itself, and what a handler meets it may return.
		{name: "idempotency.ErrBusy", err: idempotency.ErrBusy, state: freed, action: retry},
		{name: "idempotency.ErrLost", err: idempotency.ErrLost, state: freed, action: retry},
		{name: "idempotency.ErrSerialization", err: idempotency.ErrSerialization, state: freed, action: retry},
		{name: "idempotency.ErrCommitUnknown", err: idempotency.ErrCommitUnknown, state: freed, action: retry},
		{name: "idempotency.ErrTransactionEnded", err: idempotency.ErrTransactionEnded, state: freed, action: retry},
		{name: "idempotency.ErrTransactionAborted", err: idempotency.ErrTransactionAborted, state: freed, action: retry},
		{name: "idempotency.ErrLeaseLost", err: idempotency.ErrLeaseLost, state: freed, action: retry},
		{name: "idempotency.ErrLeasedInsideAtomic", err: idempotency.ErrLeasedInsideAtomic, state: freed, action: retry},
		{name: "idempotency.ErrChildLabelRequired", err: idempotency.ErrChildLabelRequired, state: freed, action: retry},
		{name: "idempotency.ErrNoIntent", err: idempotency.ErrNoIntent, state: freed, action: retry},

		// What a person meets, and what is reported when the program starts, should it ever come here.
		{name: "idempotency.AdminError", err: &idempotency.AdminError{}, state: none, action: retry},
		{name: "strictjson.ErrTarget", err: strictjson.ErrTarget, state: none, action: retry},
		{name: "bus.DuplicateError", err: &bus.DuplicateError{}, state: none, action: retry},
		{name: "bus.WayError", err: &bus.WayError{}, state: none, action: retry},
		{name: "validation.TypeError", err: &validation.TypeError{}, state: none, action: retry},
		{name: "validation.ErrTagName", err: validation.ErrTagName, state: none, action: retry},
		{name: "logging.ErrNoLogger", err: logging.ErrNoLogger, state: none, action: retry},
	}
}

func TestJudgeOfEveryError(t *testing.T) {
	t.Parallel()
	for _, tt := range verdictTable() {
		t.Run(fmt.Sprintf("%s,%s", tt.name, tt.state), func(t *testing.T) {
			t.Parallel()
			for _, err := range []error{tt.err, fmt.Errorf("wrapped: %w", tt.err), errors.Join(errors.New("first"), tt.err)} {
				got := msgedge.Judge(err, requestctx.Outcome{State: tt.state})
				if want := (msgedge.Verdict{Action: tt.action, Delay: tt.delay, Reason: bus.CodeOf(tt.err), Err: err}); got != want {
					t.Errorf("%T: %+v, want %+v", err, got, want)
				}
			}
		})
	}
}

func TestJudgeOfSuccess(t *testing.T) {
	t.Parallel()
	same(t, "executed", msgedge.Judge(nil, requestctx.Outcome{State: requestctx.StateExecuted}), msgedge.Verdict{Action: msgedge.Ack, Reason: "OK"})
	same(t, "replayed", msgedge.Judge(nil, requestctx.Outcome{State: requestctx.StateReplayed, Replayed: true}), msgedge.Verdict{Action: msgedge.Ack, Reason: "REPLAYED"})
}

func TestActionsHaveNamesAndTheZeroActionConfirmsNothing(t *testing.T) {
	t.Parallel()
	for action, want := range map[msgedge.Action]string{msgedge.Ack: "ack", msgedge.Retry: "retry", msgedge.DeadLetter: "dead-letter", 0: "unknown", 9: "unknown"} {
		same(t, "name", action.String(), want)
	}
	if (msgedge.Verdict{}).Action == msgedge.Ack {
		t.Error("the zero Verdict acknowledges")
	}
}

func TestTheTableOfVerdictsHoldsEveryExportedError(t *testing.T) {
	t.Parallel()
	have := make(map[string]bool)
	for _, row := range verdictTable() {
		have[row.name] = true
	}
	errortable.Complete(t, have)
}
