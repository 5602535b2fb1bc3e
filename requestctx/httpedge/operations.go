package httpedge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
)

// Operation is the body that says how far something has come: of the answers of [Operations], and, with the first three members
// alone, of the 202 that a duplicate of long work gets.
type Operation struct {
	// RequestID is the id of this attempt, which is the one that asks.
	RequestID string `json:"request_id"`
	// OperationID is the same for every attempt of the intent (rule rec-4).
	OperationID string                     `json:"operation_id"`
	State       idempotency.OperationState `json:"state"`
	// Command is the command's name.
	Command string `json:"command,omitempty"`
	// Detail is a sentence for people, where there is more to say.
	Detail string `json:"detail,omitempty"`
	// Retry says what may be done with the request and its key, where that is a question: same-key for the state unknown and for a
	// completed one whose result is sealed, none for refused and gone.
	Retry Retry `json:"retry,omitempty"`
	// Result is there when the state is completed, as it is stored, unless it is sealed.
	Result json.RawMessage `json:"result,omitempty"`
	// Refusal is there when the state is refused.
	Refusal *Refusal `json:"refusal,omitempty"`
	// OriginalRequestID is the id of the attempt that did or does the work.
	OriginalRequestID string `json:"original_request_id,omitempty"`
	// ExternalRef is the reference that the handler has set, if any.
	ExternalRef string `json:"external_ref,omitempty"`
}

// Refusal is a final refusal in the body of an operation.
type Refusal struct {
	Code    string          `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data,omitempty"`
}

// operationTimeout bounds the reading of an operation.
const operationTimeout = 5 * time.Second

var errNoOperation = &edgeError{
	status: http.StatusNotFound, code: "OPERATION_NOT_FOUND", retry: Never,
	detail: "There is no such operation, or it is so old that nothing is known of it any more.",
}

// Operations makes the handler of a route that says how far an operation has come (rule rec-4): GET and HEAD of the operation_id
// that a duplicate of a Leased command was told. The id is the last parameter of the pattern. store is that of the commands.
//
// guards are those of the commands, registry.Config.Admit and then Permit, in their order. They are asked, once the operation is
// found and before anything of it is shown, as if its command were sent again: with an Invocation of its name, marked as
// idempotent. So nobody sees here what he would not get by sending the request again. Their errors are answered like those of a
// dispatch. No guards means that every caller sees what was done for his client and tenant.
//
// The answer is 200 with an [Operation], Cache-Control: no-store and, while the work is in progress, Retry-After. What is done
// and has no result any more is 200 as well, with the state gone: the question here is what has become of the work, and that is
// known. An operation of another client or tenant is answered as one that does not exist, with 404 and the code
// OPERATION_NOT_FOUND. Idempotency-Key is ignored.
//
// What it does not promise:
//   - The answer is how things stood when the record was read. In progress means that a lease is not over; an attempt that has
//     died is seen as that until it is.
//   - Asking does nothing. What has died is taken up by the same request with the same key and by nothing else; the state
//     unknown says so.
//   - The result is as it is stored, not as the command's route would render it ([Options].Body, Location). Sending the request
//     again with its key gives that.
//   - An operation is known as long as its record. A 404 does not mean that nothing was done.
//   - The id is made of the key and is no secret. Whoever may ask is decided by client, tenant and guards. All anonymous callers
//     are one client, so among them the outcome of a key that can be guessed can be read without knowing its payload: let their
//     keys be random, or do not serve operations to them.
func Operations(e *Edge, store idempotency.Store, pattern string, guards []bus.Guard) (http.Handler, error) {
	ep := endpoint{edge: e, kind: reading, methods: []string{http.MethodGet, http.MethodHead}}
	problems := ep.at(pattern)
	id := ep.route.parameter()
	if id < 0 {
		problems = append(problems, errors.New("the pattern has no parameter for the operation's id; give it one, such as \"GET /v1/operations/{id}\""))
	}
	if m := ep.route.method; m != "" && m != http.MethodGet {
		problems = append(problems, fmt.Errorf("an operation is read with GET, and not with %s", m))
	}
	if store == nil {
		problems = append(problems, errors.New("the store is nil; give the one that keeps the records of the commands"))
	}
	for i, g := range guards {
		if g == nil {
			problems = append(problems, fmt.Errorf("guard %d is nil", i))
		}
	}
	if err := errors.Join(problems...); err != nil {
		return nil, fmt.Errorf("httpedge: %q (operations): %w", pattern, err)
	}
	guards = slices.Clone(guards)
	name := ep.route.segments[id].name
	return ep.handler(func(w *writer, r *http.Request, req *requestctx.Request) {
		op, err := operation(r.Context(), store, r.PathValue(name), guards)
		if err != nil {
			ep.withhold(w, r, req, err)
			return
		}
		h := w.Header()
		h.Set("Cache-Control", "no-store")
		if op.State == idempotency.OperationInProgress {
			h.Set("Retry-After", seconds(e.cfg.RetryAfter))
		}
		op.RequestID = req.ID()
		ep.succeed(w, r, req, http.StatusOK, "", op)
	}), nil
}

// operation gives what may be shown to the caller.
func operation(ctx context.Context, store idempotency.Store, id string, guards []bus.Guard) (Operation, error) {
	within, cancel := context.WithTimeout(ctx, operationTimeout)
	defer cancel()
	found, err := idempotency.FindOperation(within, store, id)
	if err != nil {
		return Operation{}, err
	}
	if found == nil {
		return Operation{}, errNoOperation
	}
	for _, g := range guards {
		if err := g(ctx, bus.Invocation{Name: found.Command, Idempotent: true}); err != nil {
			return Operation{}, err
		}
	}
	op := Operation{
		OperationID: found.ID, State: found.State, Command: found.Command, Result: found.Result,
		OriginalRequestID: found.OriginalRequestID, ExternalRef: found.ExternalRef,
	}
	switch found.State {
	case idempotency.OperationCompleted:
		if found.Sealed {
			op.Retry = SameKey
			op.Detail = "It was done. Its result is stored encrypted and is not shown here; send the same request again with the same key to get it."
		} else if !json.Valid(found.Result) {
			return Operation{}, &idempotency.ResultError{Command: found.Command, Stored: true, Err: errors.New("the stored result is not JSON")}
		}
	case idempotency.OperationRefused:
		op.Retry = Never
		op.Refusal = &Refusal{found.Refusal.RefusalCode, found.Refusal.Message, found.Refusal.Data}
	case idempotency.OperationUnknown:
		op.Retry = SameKey
		op.Detail = "Nobody is working on it, and no attempt has said that it was done. Send the same request again with the same key to go on with it or to find out."
	case idempotency.OperationGone:
		op.Retry = Never
		op.Detail = "It was done, and its result is not kept. Do not send it again under another key: it would be done twice."
	}
	return op, nil
}

// withhold answers for an operation that cannot or must not be shown.
func (ep endpoint) withhold(w *writer, r *http.Request, req *requestctx.Request, err error) {
	if errors.Is(r.Context().Err(), context.Canceled) { // the caller has gone, which says nothing about the store
		ep.fail(w, req, context.Cause(r.Context()))
		return
	}
	a := ep.answer(req, err)
	if _, away := errors.AsType[*idempotency.StoreError](err); away {
		a.detail = "It cannot be found out at present how far the operation has come." // nothing is said of the work itself
	}
	ep.refuseAs(w, r, req, err, a)
}

// accept answers a duplicate of long work: look at the operation.
func (e *Edge) accept(w http.ResponseWriter, c *Codec, req *requestctx.Request, operation string) {
	if e.operations != [2]string{} {
		w.Header().Set("Location", e.operations[0]+operation+e.operations[1])
	}
	op := Operation{RequestID: req.ID(), OperationID: operation, State: idempotency.OperationInProgress}
	var v any = op
	if e.cfg.Envelope != nil {
		v = e.cfg.Envelope(req, Reply{Status: http.StatusAccepted, Operation: &op})
	}
	body, err := c.Encode(v)
	if err != nil { // an envelope or a format of the application's
		e.unencoded(req, http.StatusAccepted, err)
		j := JSON()
		c = &j
		body, _ = c.Encode(op) // three texts
	}
	send(w, http.StatusAccepted, c.MediaType, body)
}
