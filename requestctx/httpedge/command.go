package httpedge

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"reflect"
	"strings"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
	"github.com/tekil-go/tekil/requestctx/internal/strictjson"
)

// Options says how a command's route reads its requests and renders its results. The zero Options reads the command from a
// JSON body and answers 200 with the result as JSON.
type Options[C, R any] struct {
	// Status is the status of a success, 200 to 299. Zero means 200, or 204 where the result is bus.None and Body is nil.
	// With 204 and 205 no body is sent. 202 is refused for a command whose duplicates are answered with it while the first
	// attempt runs (idempotency.AnswerAccepted), because a caller could not tell work that is done from work that is not.
	Status int
	// Location gives the Location header from the result, on the first answer and on replays alike. Nil and "" mean none.
	Location func(R) string
	// Body gives what is rendered as JSON, such as the result with the id of this attempt beside it. Nil renders the result.
	Body func(*requestctx.Request, R) any
	// Fill puts into the command what does not stand in the body, such as path values, after decoding. An error of
	// validation.Field, or several of them joined, is answered with 400 as a validation error, before the pipeline.
	Fill func(*http.Request, *C) error
	// EmptyBody says that the request has no body: the command is what Fill makes of it, and a body is refused.
	EmptyBody bool
}

// QueryOptions says how a query's route reads its requests and renders its answers.
type QueryOptions[Q, R any] struct {
	// Parse makes the query from the request. Nil means the zero Q. Its errors are those of [Options].Fill.
	Parse func(*http.Request) (Q, error)
	// Body gives what is rendered as JSON. Nil renders the result.
	Body func(*requestctx.Request, R) any
}

// Command makes the handler of a route that sends the command C. pattern is the route's, as its router knows it; its method
// must not be GET or HEAD, and without one the route answers POST, PUT, PATCH and DELETE. The request context that
// [Edge.Middleware] would make is included.
//
// A duplicate of a command that is still at work is answered with 409, or with 202 where the command's policy says
// AnswerAccepted: see the package's documentation.
//
// The body must come as application/json or another type that ends in +json (415 otherwise, also when there is no
// Content-Type, so that a plain HTML form of another site cannot send it), no longer than the edge's limit (413), and is
// decoded strictly: unknown and repeated members are refused. The result is encoded before anything is written.
//
// The error joins what is wrong with the route. A command without a handler is a [*bus.UnhandledError] here, at start-up.
func Command[C bus.Command[R], R any](e *Edge, b *bus.Bus, pattern string, o Options[C, R]) (http.Handler, error) {
	send, err := bus.Bind[C](b)
	ep := endpoint{edge: e, kind: unmarked, methods: []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}}
	if idempotency.IsMarked[C]() {
		ep.kind = marked
	}
	problems := append(ep.at(pattern), err)
	if m := ep.route.method; m == http.MethodGet || m == http.MethodHead {
		problems = append(problems, errors.New("a command changes something and cannot be served under GET or HEAD, where keys are ignored; use POST"))
	}
	if o.Status != 0 && (o.Status < 200 || o.Status > 299) {
		problems = append(problems, fmt.Errorf("Status is %d; a success is between 200 and 299", o.Status))
	}
	if err == nil && o.Status == http.StatusAccepted && answersAccepted[C]() {
		problems = append(problems, errors.New("Status is 202, which is also the answer while the first attempt runs (its policy says AnswerAccepted); give what is done another, such as 200 or 201"))
	}
	if !o.EmptyBody {
		problems = append(problems, strictjson.Check(reflect.TypeFor[C]()))
	}
	if err := errors.Join(problems...); err != nil {
		return nil, routeError[C](pattern, err)
	}
	return ep.handler(func(w *writer, r *http.Request, req *requestctx.Request) {
		cmd, err := read(e, w, r, o)
		if err != nil {
			ep.refuse(w, r, req, err)
			return
		}
		res, err := send(r.Context(), cmd)
		if err != nil {
			ep.fail(w, req, err)
			return
		}
		location := ""
		if o.Location != nil {
			location = o.Location(res)
		}
		ep.succeed(w, r, req, o.Status, location, content(o.Body, req, res))
	}), nil
}

// Check makes the handler of a route that only says whether the command C would be let through to its claim (rule pipe-11):
// 200 and {"request_id": …, "valid": true}, or the problem that [Command] would answer with. Of the options only Fill and
// EmptyBody count. No key is read, and no idempotency header is sent.
func Check[C bus.Command[R], R any](e *Edge, b *bus.Bus, pattern string, o Options[C, R]) (http.Handler, error) {
	_, err := bus.Bind[C](b)
	ep := endpoint{edge: e, kind: reading, methods: []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}}
	problems := append(ep.at(pattern), err)
	if !o.EmptyBody {
		problems = append(problems, strictjson.Check(reflect.TypeFor[C]()))
	}
	if err := errors.Join(problems...); err != nil {
		return nil, routeError[C](pattern, err)
	}
	type verdict struct {
		RequestID string `json:"request_id"`
		Valid     bool   `json:"valid"`
	}
	return ep.handler(func(w *writer, r *http.Request, req *requestctx.Request) {
		cmd, err := read(e, w, r, o)
		if err != nil {
			ep.refuse(w, r, req, err)
			return
		}
		if err := bus.Check[C](r.Context(), b, cmd); err != nil {
			ep.fail(w, req, err)
			return
		}
		w.Header().Set("Cache-Control", "no-store")
		ep.succeed(w, r, req, 0, "", verdict{req.ID(), true})
	}), nil
}

// Query makes the handler of a route that asks the query Q and answers 200. A pattern without a method answers GET and HEAD.
// Idempotency-Key is ignored (rule pipe-10). A query without a handler is a [*bus.UnhandledError] here, at start-up.
func Query[Q bus.Query[R], R any](e *Edge, b *bus.Bus, pattern string, o QueryOptions[Q, R]) (http.Handler, error) {
	ask, err := bus.BindQuery[Q](b)
	ep := endpoint{edge: e, kind: reading, methods: []string{http.MethodGet, http.MethodHead}}
	if err := errors.Join(append(ep.at(pattern), err)...); err != nil {
		return nil, routeError[Q](pattern, err)
	}
	return ep.handler(func(w *writer, r *http.Request, req *requestctx.Request) {
		var q Q
		if o.Parse != nil {
			var err error
			if q, err = o.Parse(r); err != nil {
				ep.refuse(w, r, req, err)
				return
			}
		}
		res, err := ask(r.Context(), q)
		if err != nil {
			ep.fail(w, req, err)
			return
		}
		ep.succeed(w, r, req, 0, "", content(o.Body, req, res))
	}), nil
}

// answersAccepted reports whether duplicates of the command are answered with 202.
func answersAccepted[C any]() bool {
	var zero C
	c, ok := any(zero).(idempotency.WithPolicy)
	return ok && c.Idempotency().Duplicate == idempotency.AnswerAccepted
}

// at puts the endpoint at a pattern, and gives what is wrong with that.
func (ep *endpoint) at(pattern string) (problems []error) {
	if ep.edge == nil {
		problems = append(problems, errors.New("the edge is nil; make it with httpedge.New"))
	}
	ep.route = parseRoute(pattern)
	if len(ep.route.segments) == 0 {
		problems = append(problems, errors.New("the pattern has no path; give it as the router knows it, such as \"POST /v1/orders/{id}\""))
	}
	switch m := ep.route.method; m {
	case "":
	case http.MethodGet:
		ep.methods = []string{http.MethodGet, http.MethodHead}
	default:
		ep.methods = []string{m}
	}
	return problems
}

func routeError[C any](pattern string, err error) error {
	return fmt.Errorf("httpedge: %q (%v): %w", pattern, reflect.TypeFor[C](), err)
}

// nothing is what a success without a body renders.
type nothing struct{}

// content is what a success renders.
func content[R any](body func(*requestctx.Request, R) any, req *requestctx.Request, res R) any {
	if body != nil {
		return body(req, res)
	}
	if _, none := any(res).(bus.None); none {
		return nothing{}
	}
	return res
}

// succeed answers with a result. It is encoded before any byte is written, so that what cannot be encoded is a problem and
// not half an answer; the outcome stands in the record all the same.
func (ep endpoint) succeed(w *writer, r *http.Request, req *requestctx.Request, status int, location string, v any) {
	_, empty := v.(nothing)
	switch {
	case status == 0 && empty:
		status = http.StatusNoContent
	case status == 0:
		status = http.StatusOK
	}
	var body []byte
	if !empty && status != http.StatusNoContent && status != http.StatusResetContent {
		var err error
		if body, err = json.Marshal(v); err != nil {
			ep.refuse(w, r, req, err)
			return
		}
		body = append(body, '\n')
	}
	h := w.Header()
	if ep.kind == marked {
		outcomeHeaders(h, req)
	}
	if location != "" {
		h.Set("Location", location)
	}
	if body == nil {
		w.WriteHeader(status)
		return
	}
	send(w, status, "application/json", body)
}

// read makes the command from a request.
func read[C, R any](e *Edge, w http.ResponseWriter, r *http.Request, o Options[C, R]) (cmd C, err error) {
	body, err := bodyOf(e, w, r, o.EmptyBody)
	if err != nil {
		return cmd, err
	}
	if !o.EmptyBody {
		if err := strictjson.Decode(body, &cmd); err != nil {
			return cmd, err
		}
	}
	if o.Fill != nil {
		err = o.Fill(r, &cmd)
	}
	return cmd, err
}

// bodyOf reads the body of a request, which has none where empty is true.
func bodyOf(e *Edge, w http.ResponseWriter, r *http.Request, empty bool) ([]byte, error) {
	limit := e.cfg.BodyLimit
	if empty {
		limit = 0
	} else if err := checkType(r.Header); err != nil {
		return nil, err
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	if err == nil {
		return body, nil
	}
	var timeout net.Error
	switch _, tooLong := errors.AsType[*http.MaxBytesError](err); {
	case tooLong && empty:
		return nil, &edgeError{status: http.StatusBadRequest, code: "MALFORMED_REQUEST", detail: "This route takes no body."}
	case tooLong:
		return nil, &edgeError{status: http.StatusRequestEntityTooLarge, code: "BODY_TOO_LARGE", detail: fmt.Sprintf("The body is longer than %d bytes.", limit)}
	case errors.As(err, &timeout) && timeout.Timeout():
		return nil, &edgeError{status: http.StatusRequestTimeout, code: "REQUEST_TIMEOUT", detail: "The body did not arrive in time."}
	}
	return nil, &edgeError{status: http.StatusBadRequest, code: "MALFORMED_REQUEST", detail: "The body did not arrive whole."}
}

// checkType refuses what is not JSON in UTF-8 as it stands.
func checkType(h http.Header) error {
	mediaType, params, err := mime.ParseMediaType(h.Get("Content-Type"))
	charset := strings.ToLower(params["charset"])
	encoding := strings.ToLower(h.Get("Content-Encoding"))
	switch {
	case err != nil, mediaType != "application/json" && !(strings.HasPrefix(mediaType, "application/") && strings.HasSuffix(mediaType, "+json")):
		return &edgeError{status: http.StatusUnsupportedMediaType, code: "UNSUPPORTED_MEDIA_TYPE", detail: "The body must be sent as application/json."}
	case charset != "" && charset != "utf-8", encoding != "" && encoding != "identity":
		return &edgeError{status: http.StatusUnsupportedMediaType, code: "UNSUPPORTED_MEDIA_TYPE", detail: "The body must be JSON in UTF-8 without a content encoding."}
	}
	return nil
}
