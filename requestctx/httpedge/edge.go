package httpedge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
	"github.com/tekil-go/tekil/requestctx/internal/panics"
)

// DefaultBodyLimit is how long a request's body may be: 1 MiB.
const DefaultBodyLimit = 1 << 20

// The headers of rule http-2. The last two are never read from a request, and X-Request-ID only from that of a proxy which is trusted.
const (
	requestIDHeader = "X-Request-Id" // in the form that http.Header keeps
	keyHeader       = "Idempotency-Key"
	replayedHeader  = "Idempotency-Replayed"
	originalHeader  = "Idempotency-Original-Request-Id"
)

// Config is what all routes of an [Edge] share. The zero Config is refused, because nobody has then said who the callers are.
type Config struct {
	// Principal says who is calling, from what the application's authentication has put into the request. It is the client
	// that a key belongs to (rule rec-8), so it must stay the same when a token is renewed; for a request made on behalf of
	// somebody, the application decides once which of the two it is. An error, and "" without Anonymous, is answered with
	// 401 and the code UNAUTHENTICATED, before the pipeline; an error whose code stands in Statuses, by that.
	Principal func(*http.Request) (string, error)
	// Anonymous lets callers in whom Principal does not name, and allows Principal to be nil. They are
	// [requestctx.Anonymous] and share one space of keys, so their keys should be random.
	Anonymous bool
	// Tenant says whose data it is. Nil means that there is only one tenant. An error or "" is answered with 403 and the
	// code TENANT_UNRESOLVED, before the pipeline; an error whose code stands in Statuses, by that.
	Tenant func(*http.Request) (string, error)
	// BodyLimit is how many bytes a request's body may have. Zero means [DefaultBodyLimit].
	BodyLimit int64
	// Codecs are the formats of bodies. The Content-Type of a request says which one it comes in, and Accept which one is
	// answered with; an Accept that excludes all of them is answered with 406 and the code NOT_ACCEPTABLE, before the pipeline.
	// Where Accept prefers none, the answer comes in the request's own, and that of a request without a body in the first. A
	// replay is no exception (rule rec-9): it is written in the format that the retry asks for. Nil means [JSON] alone, and with
	// one format Accept is not read.
	Codecs []Codec
	// Envelope makes the body of every answer that has one, from what it says. It must only read, and put nothing into the
	// answer that the reply does not hold but the id of this attempt, or replays would differ from first answers. Nil means none:
	// results are sent as they are and errors as problem details.
	Envelope func(*requestctx.Request, Reply) any
	// HashBodies takes the SHA-256 of each body as it came: for [requestctx.Request.BodySHA256], and as raw_body_sha256 on the
	// log line. It is for an archive, and shows where two requests of one key were not written alike. Of a form it is that of the
	// command's part. The fingerprint does not know it (rule rec-9).
	HashBodies bool
	// TrustedProxies are the addresses whose X-Request-ID is believed: it becomes the id of the attempt, if it is one header of 1
	// to 128 characters A-Z a-z 0-9 . _ : -. Otherwise, and for all other senders, the id is made here. The sender is who has opened
	// the connection; no header is asked for that. It must be the proxy that makes the id, or it must drop what callers send.
	TrustedProxies []netip.Prefix
	// Statuses gives codes their HTTP status, 400 to 599. They are the codes of the application's own errors: final
	// refusals, which without an entry are answered with 422, and all others, which without an entry are answered with 500
	// and the code INTERNAL. A code of this module may be given another status as well, such as IDEMPOTENCY_KEY_CONFLICT
	// the 422 of the IETF draft. The 202 of a command whose duplicates are Accepted stays what it is.
	//
	// A final refusal is an answer for good. A status by which clients ask again (408, 425, 429 and those from 500) does not
	// fit it.
	Statuses map[string]int
	// DescribedBy is the URL of a page that says how to use the key, for the Link header of the answer to a request that has
	// none. Empty means no such header.
	DescribedBy string
	// Preset says by which statuses keys are refused. Zero is [House].
	Preset Preset
	// RetryAfter is the Retry-After of answers after which the same request may be sent again, if they are 503 or have the code
	// INTERNAL, and of operations in progress. Zero means 2 seconds. That of a duplicate is registry.Config.RetryAfter.
	RetryAfter time.Duration
	// Operations is where callers find what is done for them: the pattern of the route that [Operations] serves, such as
	// "/api/v1/operations/{id}", with the id as its only parameter. It goes, with the id in place, into the Location header of
	// 202 answers. Empty means no such header.
	Operations string
	// Challenge is the WWW-Authenticate header of 401 answers. Empty means "Bearer".
	Challenge string
	// Log gets what no stage of the pipeline can see: requests that are refused before it, as Info, and panics and answers
	// that cannot be encoded, as Error. It is never given a body, nor the value of a panic. Nil means slog.Default().
	Log *slog.Logger
}

// Edge serves commands and queries over HTTP. It is immutable and safe for concurrent use. Make it with [New].
type Edge struct {
	cfg        Config
	operations [2]string // what stands before and behind the id in the path of an operation; empty for none
}

// New makes an Edge. It reports all problems of the configuration, joined.
func New(cfg Config) (*Edge, error) {
	var problems []error
	bad := func(format string, args ...any) {
		problems = append(problems, fmt.Errorf("httpedge: Config."+format, args...))
	}
	if cfg.Principal == nil && !cfg.Anonymous {
		bad("Principal is nil, so no caller would have a name and no key a scope; set it, or set Anonymous if all callers are meant to be anonymous")
	}
	if cfg.BodyLimit < 0 {
		bad("BodyLimit is %d; it must not be negative", cfg.BodyLimit)
	}
	if cfg.BodyLimit == 0 {
		cfg.BodyLimit = DefaultBodyLimit
	}
	if cfg.RetryAfter < 0 {
		bad("RetryAfter is %v; it must not be negative", cfg.RetryAfter)
	}
	if cfg.RetryAfter == 0 {
		cfg.RetryAfter = defaultRetryAfter
	}
	if cfg.Preset != House && cfg.Preset != IETFDraft {
		bad("Preset %d does not exist; use House or IETFDraft", cfg.Preset)
	}
	if cfg.Codecs = slices.Clone(cfg.Codecs); len(cfg.Codecs) == 0 {
		cfg.Codecs = []Codec{JSON()}
	}
	for i, c := range cfg.Codecs {
		if err := c.problem(); err != nil {
			bad("Codecs[%d]: %w", i, err)
		}
		if slices.ContainsFunc(cfg.Codecs[:i], func(o Codec) bool { return o.MediaType == c.MediaType }) {
			bad("Codecs[%d]: another one before it is called %q as well", i, c.MediaType)
		}
	}
	cfg.TrustedProxies = slices.Clone(cfg.TrustedProxies)
	for i, p := range cfg.TrustedProxies {
		if !p.IsValid() {
			bad("TrustedProxies[%d] is not valid; make it with netip.ParsePrefix, such as 10.0.0.0/8", i)
		}
		if p.Addr().Is4In6() { // senders are compared in the form of IPv4, and it would match none
			bad("TrustedProxies[%d] is an IPv4 address written as IPv6; write it as IPv4, such as 10.0.0.0/8", i)
		}
	}
	statuses := make(map[string]int, len(cfg.Statuses))
	for code, status := range cfg.Statuses {
		if code == "" || code == codeInternal {
			bad("Statuses: the code %q has no status of its own", code)
		}
		if status < 400 || status > 599 {
			bad("Statuses: %s has the status %d; an error's status is between 400 and 599", code, status)
		}
		statuses[code] = status
	}
	cfg.Statuses = statuses
	if u, err := url.Parse(cfg.DescribedBy); err != nil || strings.ContainsAny(cfg.DescribedBy, "<>\" ") {
		bad("DescribedBy is not a URL")
	} else if cfg.DescribedBy != "" && u.Path == "" && u.Host == "" {
		bad("DescribedBy names no page")
	}
	if cfg.Challenge == "" {
		cfg.Challenge = "Bearer"
	}
	if strings.ContainsFunc(cfg.Challenge, func(r rune) bool { return r < ' ' || r > '~' }) {
		bad("Challenge holds characters that a header cannot carry")
	}
	e := &Edge{cfg: cfg}
	if cfg.Operations != "" {
		var ok bool
		if e.operations, ok = operationsAt(cfg.Operations); !ok {
			bad("Operations is %q; it must be a path with the operation's id as its only parameter, such as \"/api/v1/operations/{id}\"", cfg.Operations)
		}
	}
	if len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	return e, nil
}

// Middleware puts the request context of a request into its [context.Context], for handlers of the application's own behind
// it; those made by [Command], [Query], [Check] and [Operations] bring it along. pattern is the route's, such as "POST /v1/orders/{id}"; a
// pattern without a path makes the whole path the resource.
//
// X-Request-ID is set on the answer at once. Path values that the pattern names and the router did not set are set, so that
// [http.Request.PathValue] works behind every router. A request without a principal or tenant does not get through. A panic
// is logged and answered with a problem if nothing has been written, and otherwise cuts the connection;
// [http.ErrAbortHandler] goes on.
//
// The handler behind it dispatches with the request's context and answers with [Edge.WriteProblem] or, after
// [Edge.SetHeaders], by itself.
func (e *Edge) Middleware(pattern string) func(http.Handler) http.Handler {
	ep := endpoint{edge: e, route: parseRoute(pattern)}
	return func(next http.Handler) http.Handler {
		return ep.handler(func(w *writer, r *http.Request, _ *requestctx.Request) { next.ServeHTTP(w, r) })
	}
}

// scope says whose key it is, without the tenant where that stands in the command.
func (e *Edge) scope(r *http.Request, tenant bool) (requestctx.Scope, error) {
	var s requestctx.Scope
	var err error
	if e.cfg.Principal != nil {
		if s.Client, err = e.cfg.Principal(r); err != nil {
			return requestctx.Scope{}, e.own(err, errUnauthenticated)
		}
	}
	switch {
	case s.Client == "" && e.cfg.Anonymous:
		s.Client = requestctx.Anonymous
	case s.Client == requestctx.Anonymous && !e.cfg.Anonymous, !storable(s.Client):
		return requestctx.Scope{}, errUnauthenticated
	}
	if e.cfg.Tenant != nil && tenant {
		if s.Tenant, err = e.cfg.Tenant(r); err != nil {
			return requestctx.Scope{Client: s.Client}, e.own(err, errTenant)
		}
		if !storable(s.Tenant) {
			return requestctx.Scope{Client: s.Client}, errTenant
		}
	}
	return s, nil
}

// requestID is the id of the attempt: that of a proxy which is trusted, or a new one.
func (e *Edge) requestID(r *http.Request) string {
	if len(e.cfg.TrustedProxies) > 0 {
		sender, err := netip.ParseAddrPort(r.RemoteAddr)
		trusted := func(p netip.Prefix) bool { return p.Contains(sender.Addr().Unmap().WithZone("")) }
		if ids := r.Header.Values(requestIDHeader); err == nil && len(ids) == 1 && goodID(ids[0]) && slices.ContainsFunc(e.cfg.TrustedProxies, trusted) {
			return ids[0]
		}
	}
	return requestctx.NewID()
}

// goodID reports whether s can be an attempt's id: what a key may be, and shorter too.
func goodID(s string) bool {
	return len(s) >= 1 && len(s) <= 128 && !strings.ContainsFunc(s, func(c rune) bool {
		return !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.ContainsRune("._:-", c))
	})
}

// own keeps an error that the application has given a status, and replaces any other.
func (e *Edge) own(err error, other error) error {
	if _, ok := e.cfg.Statuses[bus.CodeOf(err)]; ok {
		return err
	}
	return other
}

// storable reports whether s can stand in a column of a record.
func storable(s string) bool { return s != "" && utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 }

// kind is what an endpoint serves, as far as its answers differ by that.
type kind int

const (
	foreign  kind = iota // a handler of the application's behind the middleware
	marked               // a command with the mark: its answers carry the idempotency headers
	unmarked             // a command without it
	reading              // a query or a check, which change nothing
)

// endpoint is one route of an edge.
type endpoint struct {
	edge     *Edge
	route    route
	kind     kind
	methods  []string // the methods it answers; none means all
	tenanted bool     // whose data it is stands in the command
}

// handler makes a request context for each request and does not let a panic out.
func (ep endpoint) handler(next func(*writer, *http.Request, *requestctx.Request)) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		codec, acceptable := ep.edge.writerOf(r.Header)
		w := &writer{ResponseWriter: rw, codec: codec}
		if len(ep.edge.cfg.Codecs) > 1 {
			w.Header().Add("Vary", "Accept")
		}
		values := ep.route.match(r.URL)
		v := requestctx.Values{ID: ep.edge.requestID(r), Source: ep.route.source(r.Method), Resource: ep.route.resource(r.URL, values)}
		if ep.kind != reading && r.Method != http.MethodGet && r.Method != http.MethodHead {
			v.Key, v.KeyErr = keyOf(r.Header)
		}
		w.Header().Set(requestIDHeader, v.ID)
		var req *requestctx.Request
		defer func() {
			if p := recover(); p != nil {
				if req == nil {
					_, req = requestctx.New(r.Context(), v)
				}
				ep.panicked(w, r, req, p)
			}
		}()
		scope, err := ep.edge.scope(r, !ep.tenanted)
		v.Scope = scope
		ctx, made := requestctx.New(r.Context(), v)
		req, r = made, r.WithContext(ctx)
		switch {
		case err != nil:
			ep.refuse(w, r, req, err)
		case !ep.allows(r.Method):
			w.Header().Set("Allow", strings.Join(ep.methods, ", "))
			ep.refuse(w, r, req, &edgeError{status: http.StatusMethodNotAllowed, code: "METHOD_NOT_ALLOWED", detail: "This route does not have that method."})
		case !acceptable && ep.kind != foreign:
			ep.refuse(w, r, req, &edgeError{status: http.StatusNotAcceptable, code: "NOT_ACCEPTABLE", detail: "The answer can be had as " + ep.edge.formats() + "; the Accept header excludes that."})
		default:
			ep.route.setPathValues(r, values)
			next(w, r, req)
		}
	})
}

func (ep endpoint) allows(method string) bool {
	for _, m := range ep.methods {
		if m == method {
			return true
		}
	}
	return len(ep.methods) == 0
}

// refuse answers with an error that the pipeline has not seen.
func (ep endpoint) refuse(w *writer, r *http.Request, req *requestctx.Request, err error) {
	ep.refuseAs(w, r, req, err, ep.answer(req, err))
}

func (ep endpoint) refuseAs(w *writer, r *http.Request, req *requestctx.Request, err error, a answer) {
	level, message := slog.LevelInfo, "httpedge: refused before the pipeline"
	if a.status >= 500 {
		level, message = slog.LevelError, "httpedge: the request could not be answered"
	}
	ep.edge.log(r.Context(), req, level, message,
		slog.Int("status", a.status), slog.String("code", bus.CodeOf(err)), slog.String("error_type", fmt.Sprintf("%T", err)))
	ep.write(w, req, a)
}

// fail answers with an error of a dispatch, which the pipeline has logged.
func (ep endpoint) fail(w *writer, req *requestctx.Request, err error) {
	ep.write(w, req, ep.answer(req, err))
}

func (ep endpoint) write(w *writer, req *requestctx.Request, a answer) {
	if ep.kind == marked {
		outcomeHeaders(w.Header(), req)
	}
	ep.edge.write(w, w.codec, req, a)
}

// panicked ends a request that panicked. The value of the panic may be a command, so only its type and place are logged.
func (ep endpoint) panicked(w *writer, r *http.Request, req *requestctx.Request, value any) {
	if err, ok := value.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		panic(value)
	}
	ep.edge.log(r.Context(), req, slog.LevelError, "httpedge: panic", slog.String("panic_type", fmt.Sprintf("%T", value)), slog.String("at", panics.At()))
	if w.wrote {
		panic(http.ErrAbortHandler) // the client must not take what it has for the whole
	}
	ep.fail(w, req, errPanic)
}

func (e *Edge) log(ctx context.Context, req *requestctx.Request, level slog.Level, message string, attrs ...slog.Attr) {
	l := e.cfg.Log
	if l == nil {
		l = slog.Default()
	}
	all := append([]slog.Attr{
		slog.String("source", req.Source()), slog.String("request_id", req.ID()), slog.String("key", req.Key().String()),
		slog.String("client", req.Scope().Client), slog.String("tenant", req.Scope().Tenant),
	}, attrs...)
	l.LogAttrs(ctx, level, message, all...)
}

// again reports whether the same request may be sent again as it is after err, as far as the pipeline's report tells.
func (ep endpoint) again(req *requestctx.Request, err error) bool {
	switch {
	case ep.kind == reading:
		return true
	case ep.kind == unmarked: // a report would be that of a command which the handler has sent
		return false
	}
	switch o := req.Outcome(); o.State {
	case requestctx.StateNone:
		return ep.kind == marked // it did not come to the handler
	case requestctx.StateUnknown:
		// The record of a Leased attempt stands and decides what the next one may do. Only a handler that has ended its
		// transaction by itself may have gone past it.
		_, broken := errors.AsType[*idempotency.HandlerError](err)
		return o.Attempt > 0 && !broken
	case requestctx.StateUnprotected, requestctx.StateNested:
		return false
	}
	return true
}
