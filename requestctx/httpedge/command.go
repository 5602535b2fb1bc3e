package httpedge

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/validation"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
	"github.com/tekil-go/tekil/requestctx/internal/strictjson"
)

// Options says how a command's route reads its requests and renders its results. The zero Options reads the command from the
// body and answers 200 with the result.
type Options[C, R any] struct {
	// Status is the status of a success, 200 to 299. Zero means 200, or 204 where the result is bus.None, Body is nil and the edge
	// has no Envelope. With 204 and 205 no body is sent. 202 is refused for a command whose duplicates are answered with it while the first
	// attempt runs (idempotency.AnswerAccepted), because a caller could not tell work that is done from work that is not.
	Status int
	// Location gives the Location header from the result, on the first answer and on replays alike. Nil and "" mean none.
	Location func(R) string
	// Body gives what is rendered, such as the result with the id of this attempt beside it. Nil renders the result.
	Body func(*requestctx.Request, R) any
	// Fill puts into the command what does not stand in the body, such as path values, after decoding. An error of
	// validation.Field, or several of them joined, is answered with 400 as a validation error, before the pipeline.
	Fill func(*http.Request, *C) error
	// Tenant says whose data it is where that stands in the command, such as the codes of a company and an organisation in its
	// body (rule rec-8). It is asked after Fill, with the command in its normal form, in the place of [Config].Tenant, which then
	// is not asked. "" is answered with 403 and the code TENANT_UNRESOLVED; an error with 400 where it is made of errors of
	// validation.Field, by Statuses where its code stands there, and else with 500, as when the database is away. But a command
	// that is not valid is answered with all that is wrong with it. It must not change anything.
	Tenant func(*http.Request, C) (string, error)
	// File puts a file that came with the request into the command: under which name of a form's field, and what it is. With File
	// the route takes multipart/form-data as well. The first part of the form is called "command" and holds the command, in a
	// format of the edge and as JSON where it does not say; all others, at most 16, are files and have a filename. File is called
	// for each when it has arrived and before Fill. An error of validation.Field, or several joined, is answered with 400 as a
	// validation error, and one whose code stands in Statuses by that; any other is a 400 too, so that a name which is not known
	// only has to be an error. A name may come more than once: where there is room for one file, give an error for the second.
	//
	// Of a file its size and SHA-256 are in the fingerprint, and not its name and type, see [requestctx.File]. Both are taken
	// while the file streams in: up to 1 MiB of each is kept in memory, and a longer one in a temporary file that is gone when the
	// request ends. The form's boundary and the headers of its parts mean nothing (case F17). [Config].BodyLimit is for the
	// command's part, and [Config].HashBodies hashes that part alone, because the rest of a form is never the same twice.
	//
	// A plain form of another site could send this type with the visitor's cookies. So a form without an Idempotency-Key header,
	// which only a script that passed a preflight can set, must also pass [http.CrossOriginProtection.Check], or is answered with
	// 403 and the code CROSS_ORIGIN.
	File func(cmd *C, field string, f requestctx.File) error
	// FileLimit is how many bytes the files of a request may have together; more is answered with 413 and the code FILE_TOO_LARGE.
	// Zero means [DefaultFileLimit].
	FileLimit int64
	// EmptyBody says that the request has no body: the command is what Fill makes of it, and a body is refused.
	EmptyBody bool
	// Preview is for [Check] alone: it says what would happen, as far as that can be known now, and is asked about commands
	// that are valid. It must not change anything. Its errors are answered like those of a dispatch.
	Preview func(context.Context, C) (any, error)
}

// QueryOptions says how a query's route reads its requests and renders its answers.
type QueryOptions[Q, R any] struct {
	// Parse makes the query from the request. Nil means the zero Q. Its errors are those of [Options].Fill.
	Parse func(*http.Request) (Q, error)
	// Body gives what is rendered. Nil renders the result.
	Body func(*requestctx.Request, R) any
}

// Command makes the handler of a route that sends the command C. pattern is the route's, as its router knows it; its method
// must not be GET or HEAD, and without one the route answers POST, PUT, PATCH and DELETE. The request context that
// [Edge.Middleware] would make is included.
//
// A duplicate of a command that is still at work is answered with 409, or with 202 where the command's policy says
// AnswerAccepted: see the package's documentation.
//
// The body must come in one of the edge's formats, which without [Config].Codecs is application/json or another type that ends in
// +json (415 otherwise, also when there is no Content-Type, so that a plain HTML form of another site cannot send it), no longer
// than the edge's limit (413), and is decoded strictly: unknown and repeated members are refused. The result is encoded before
// anything is written.
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
	if o.Preview != nil {
		problems = append(problems, errors.New("the option Preview is for a route made by Check"))
	}
	problems = append(problems, readable(e, o)...)
	if err := errors.Join(problems...); err != nil {
		return nil, routeError[C](pattern, err)
	}
	ep.tenanted = o.Tenant != nil
	return ep.handler(func(w *writer, r *http.Request, req *requestctx.Request) {
		var files uploads
		defer files.end() // the dispatch waits for the handler, also where the client has gone
		cmd, ok := read(ep, b, w, r, req, o, &files)
		if !ok {
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

// Verdict is the body of a route made by [Check].
type Verdict struct {
	// RequestID is the id of this attempt.
	RequestID string `json:"request_id"`
	// Valid is true: what is not valid is answered with a problem.
	Valid bool `json:"valid"`
	// Preview is what [Options].Preview says.
	Preview any `json:"preview,omitempty"`
}

// Check makes the handler of a route that only says whether the command C would be let through to its claim (rule pipe-11), and,
// with [Options].Preview, what would then happen: 200 and a [Verdict], or the problem that [Command] would answer with. Of the
// options only Fill, Tenant, File, FileLimit, EmptyBody and Preview count. No key is read, and no idempotency header is sent.
func Check[C bus.Command[R], R any](e *Edge, b *bus.Bus, pattern string, o Options[C, R]) (http.Handler, error) {
	_, err := bus.Bind[C](b)
	ep := endpoint{edge: e, kind: reading, methods: []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}}
	problems := append(ep.at(pattern), err)
	problems = append(problems, readable(e, o)...)
	if err := errors.Join(problems...); err != nil {
		return nil, routeError[C](pattern, err)
	}
	ep.tenanted = o.Tenant != nil
	return ep.handler(func(w *writer, r *http.Request, req *requestctx.Request) {
		var files uploads
		defer files.end() // the dispatch waits for the handler, also where the client has gone
		cmd, ok := read(ep, b, w, r, req, o, &files)
		if !ok {
			return
		}
		err := bus.Check[C](r.Context(), b, cmd)
		if err != nil {
			ep.fail(w, req, err)
			return
		}
		v := Verdict{RequestID: req.ID(), Valid: true}
		if o.Preview != nil {
			if v.Preview, err = o.Preview(r.Context(), normal(cmd)); err != nil {
				ep.refuse(w, r, req, err) // the pipeline has not seen it
				return
			}
		}
		w.Header().Set("Cache-Control", "no-store")
		ep.succeed(w, r, req, 0, "", v)
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
	if empty {
		v = nil
	}
	empty = empty && ep.edge.cfg.Envelope == nil
	switch {
	case status == 0 && empty:
		status = http.StatusNoContent
	case status == 0:
		status = http.StatusOK
	}
	bodiless := empty || status == http.StatusNoContent || status == http.StatusResetContent
	var body []byte
	if !bodiless {
		var err error
		if ep.edge.cfg.Envelope != nil {
			v = ep.edge.cfg.Envelope(req, Reply{Status: status, Result: v})
		}
		if body, err = w.codec.Encode(v); err != nil {
			ep.refuse(w, r, req, err)
			return
		}
	}
	h := w.Header()
	switch ep.kind {
	case marked:
		outcomeHeaders(h, req)
	case unmarked: // what has changed something is not to be had from a cache
		h.Set("Cache-Control", "no-store")
	}
	if location != "" {
		h.Set("Location", location)
	}
	if bodiless {
		w.WriteHeader(status)
		return
	}
	send(w, status, w.codec.MediaType, body)
}

// readable reports why the command cannot be read as the options have it.
func readable[C bus.Command[R], R any](e *Edge, o Options[C, R]) (problems []error) {
	if o.FileLimit < 0 {
		problems = append(problems, fmt.Errorf("FileLimit is %d; it must not be negative", o.FileLimit))
	}
	if o.EmptyBody && o.File != nil {
		problems = append(problems, errors.New("files come in a body, so File and EmptyBody exclude each other"))
	}
	if e == nil || o.EmptyBody {
		return problems
	}
	for _, c := range e.cfg.Codecs {
		if c.Check != nil {
			problems = append(problems, c.Check(reflect.TypeFor[C]()))
		}
	}
	return problems
}

// normal is the command in its normal form, as validation makes it.
func normal[C any](cmd C) C {
	if n, ok := any(&cmd).(interface{ Normalize() C }); ok {
		return n.Normalize()
	}
	return cmd
}

// read makes the command from a request. Where it cannot, it answers and reports ok = false.
func read[C bus.Command[R], R any](ep endpoint, b *bus.Bus, w *writer, r *http.Request, req *requestctx.Request, o Options[C, R], files *uploads) (cmd C, ok bool) {
	take := func(codec *Codec, body []byte) error {
		if ep.edge.cfg.HashBodies {
			sum := sha256.Sum256(body)
			req.SetBodySHA256(hex.EncodeToString(sum[:]))
		}
		if o.EmptyBody {
			return nil
		}
		return decode(codec, body, &cmd)
	}
	var err error
	if o.File != nil && isForm(r.Header) {
		put := func(field string, f requestctx.File) error { return o.File(&cmd, field, f) }
		f := form{edge: ep.edge, w: w, limit: cmp.Or(o.FileLimit, DefaultFileLimit), files: files, take: take, put: put}
		err = f.read(r)
	} else {
		var body []byte
		var codec *Codec
		if body, codec, err = bodyOf(ep.edge, w, r, o.EmptyBody); err == nil {
			err = take(codec, body)
		}
	}
	if err == nil && o.Fill != nil {
		err = o.Fill(r, &cmd)
	}
	if err != nil {
		ep.refuse(w, r, req, err)
		return cmd, false
	}
	if o.Tenant == nil {
		return cmd, true
	}
	tenant, err := o.Tenant(r, normal(cmd))
	if err == nil && storable(tenant) {
		req.SetTenant(tenant)
		return cmd, true
	}
	// All that is wrong with the command says more than that its owner is not known, and that may be the reason for it.
	invalid := bus.Check[C](r.Context(), b, cmd)
	// A guard that asks for the tenant would answer for the error that there is none.
	if _, told := errors.AsType[*validation.Error](invalid); invalid != nil && (told || err == nil) {
		ep.fail(w, req, invalid)
		return cmd, false
	}
	if err == nil {
		err = errTenant
	}
	ep.refuse(w, r, req, err)
	return cmd, false
}

// decode reads a body. What is wrong with it is told where the format has an error that is meant for that.
func decode(c *Codec, body []byte, v any) error {
	err := c.Decode(body, v)
	if _, told := errors.AsType[*strictjson.Error](err); err == nil || told || len(fieldErrors(err, nil)) > 0 {
		return err
	}
	return &edgeError{status: http.StatusBadRequest, code: codeMalformed, detail: "The body cannot be read as " + c.MediaType + "."}
}

// bodyOf reads the body of a request, which has none where empty is true.
func bodyOf(e *Edge, w http.ResponseWriter, r *http.Request, empty bool) (body []byte, codec *Codec, err error) {
	limit := e.cfg.BodyLimit
	if empty {
		limit = 0
	} else if codec, err = e.reader(r.Header); err != nil {
		return nil, nil, err
	}
	body, err = io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	if _, tooLong := errors.AsType[*http.MaxBytesError](err); tooLong && empty {
		return nil, nil, &edgeError{status: http.StatusBadRequest, code: codeMalformed, detail: "This route takes no body."}
	}
	return body, codec, unread(err, errBody)
}
