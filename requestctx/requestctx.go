// Package requestctx says who asks, under which key, and what became of it.
//
// An edge (HTTP, a message consumer, or code that calls the bus itself) puts a [Request] into the context once; every
// stage reads it there (rule pipe-6) and the pipeline reports its outcome back into it. There is one context value,
// held by pointer, for all of it.
//
//	ctx, req := requestctx.New(ctx, requestctx.Values{Key: key, Scope: requestctx.Scope{Client: "acme-erp"}})
//	placed, err := bus.Send(ctx, b, checkout.Place{…})
//	req.Outcome().Replayed // was this the answer of an earlier attempt?
//
// Nothing in this package makes up a key (rule pipe-7). State never travels in headers of the incoming request, only in
// typed context values, so a caller cannot forge it.
package requestctx

import (
	"context"
	"sync"

	"github.com/google/uuid"
)

// Anonymous is the client of requests whose caller is not authenticated, where an edge has been told that this is meant
// (rule rec-8). All anonymous callers share one space of keys.
const Anonymous = "anonymous"

// Scope is whose key it is: the same key under another client or tenant is independent (rule rec-8). The command, and
// over HTTP its method and route, complete the scope; they come from the dispatch and from [Values.Source].
type Scope struct {
	// Client is the authenticated principal, or [Anonymous]. A marked command refuses an empty one: scope is never
	// optional by accident.
	Client string
	// Tenant is whose data it is, such as a company and organisation; empty where there is only one.
	Tenant string
}

// Values is what an edge knows about a request.
type Values struct {
	// ID is the id of this attempt. Empty means that New makes a UUIDv7. It is never a key.
	ID string
	// Key is the idempotency key; the zero Key is none.
	Key Key
	// KeyErr is why the carrier's key was refused. It is kept and not returned, because only a marked command has to
	// raise it; for others the header means nothing. When it is set, Key is ignored.
	KeyErr error
	// Scope is whose key it is.
	Scope Scope
	// Source is where the request came in, as far as it separates keys: "POST /v1/orders" over HTTP (method and route
	// pattern), "consumer:billing" in a consumer, empty for an internal call.
	Source string
	// Resource holds the concrete values of the route's parameters. They are part of the fingerprint: one key for two
	// resources is a conflict, not a replay.
	Resource []string
	// ExternalRef is a reference that support searches by, such as an authorisation id (rule see-1). A handler may set
	// it later with [Request.SetExternalRef].
	ExternalRef string
	// DraftID is the draft that the request is about, such as an order that is not placed yet: the other name by which support
	// finds an intent (rule see-1). An edge that learns it from the command sets it with [Request.SetDraftID].
	DraftID string
}

// State is what the idempotency stage made of a dispatch.
type State string

// The states. They are label values for logs and metrics, so the set is small and fixed.
const (
	// StateNone: the stage was not reached or the command carries no mark.
	StateNone State = ""
	// StateExecuted: this attempt ran the handler and its outcome is recorded.
	StateExecuted State = "executed"
	// StateReplayed: the outcome of an earlier attempt was given.
	StateReplayed State = "replayed"
	// StateInProgress: another attempt of the same key is running.
	StateInProgress State = "in_progress"
	// StateConflict: the key belongs to another payload.
	StateConflict State = "conflict"
	// StateExpired: the key has been used and is too old to be replayed or reused.
	StateExpired State = "expired"
	// StateFreed: this attempt failed and left nothing behind; the same key may be sent again.
	StateFreed State = "freed"
	// StateUnknown: nobody can say yet whether the work was done; the same key may be sent again.
	StateUnknown State = "unknown"
	// StateRefused: the stage turned the request away before the record was looked at, for want of a key or a scope, or
	// because the store was away.
	StateRefused State = "refused"
	// StateUnprotected: a marked command that allows it ran without a key.
	StateUnprotected State = "unprotected"
	// StateLost: another attempt took the key over while this one ran; nothing of this one was committed, and the same key may be
	// sent again.
	StateLost State = "lost"
	// StateNested: the command ran inside another one and under its record.
	StateNested State = "nested"
)

// Outcome is what the pipeline reports back to the edge.
type Outcome struct {
	// State is what the idempotency stage made of the dispatch.
	State State
	// Replayed is true when the outcome is that of an earlier attempt (header Idempotency-Replayed, rule http-2).
	Replayed bool
	// OriginalRequestID is the id of the attempt that did the work: this one's own or, on a replay, the first one's. Empty
	// when no outcome of the key is known.
	OriginalRequestID string
	// ReusedExpired is true when the key had a record that has expired, so that this is new work (rule rec-10).
	ReusedExpired bool
	// Detached is true when an Atomic handler succeeded without using the transaction it was given, so that its work and
	// its record do not share a commit. It is a fault of the handler that logs and metrics show.
	Detached bool
	// Attempt is the number of the attempt that this dispatch made of a Leased command, from 1; 0 when it made none.
	Attempt int
	// TookOver is true when this attempt took the key over from one that had died or hung.
	TookOver bool
	// OriginalTrace is, on a replay, the traceparent of the attempt that did the work, if it was traced; see [Request.SetTrace].
	OriginalTrace string
}

// Attribute is a name and a value for the log line.
type Attribute struct{ Name, Value string }

// maxAttributes bounds what one request may add to its log line.
const maxAttributes = 16

// Request is one attempt: what its edge said about it, and what became of it. Make it with [New]. Its methods are
// safe for concurrent use, and all of them work on a nil Request, which knows nothing and keeps nothing.
type Request struct {
	v Values

	mu          sync.Mutex
	tenant      string
	bodySHA256  string
	outcome     Outcome
	externalRef string
	draftID     string
	trace       string
	attrs       []Attribute
}

type contextKey struct{}

// New puts a Request with the values v into a context made from ctx, and returns both. A Request that ctx already holds is
// hidden, not changed. An empty [Values.ID] becomes a new UUIDv7.
func New(ctx context.Context, v Values) (context.Context, *Request) {
	if v.ID == "" {
		v.ID = NewID()
	}
	if v.KeyErr != nil {
		v.Key = Key{}
	}
	r := &Request{v: v, tenant: v.Scope.Tenant, externalRef: v.ExternalRef, draftID: v.DraftID}
	return context.WithValue(ctx, contextKey{}, r), r
}

// NewID makes the id of an attempt: a UUIDv7. It is for tracing and is never a key. Should the system have no randomness,
// the id is empty, which says less than a wrong one.
func NewID() string {
	id, err := uuid.NewV7()
	if err != nil {
		return ""
	}
	return id.String()
}

// From gives the Request that ctx holds, or nil.
func From(ctx context.Context) *Request {
	r, _ := ctx.Value(contextKey{}).(*Request)
	return r
}

// ID is the id of this attempt.
func (r *Request) ID() string {
	if r == nil {
		return ""
	}
	return r.v.ID
}

// Key is the key of the intent; the zero Key is none.
func (r *Request) Key() Key {
	if r == nil {
		return Key{}
	}
	return r.v.Key
}

// KeyErr is why the carrier's key was refused, or nil. Only a marked command raises it.
func (r *Request) KeyErr() error {
	if r == nil {
		return nil
	}
	return r.v.KeyErr
}

// Scope is whose key it is.
func (r *Request) Scope() Scope {
	if r == nil {
		return Scope{}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return Scope{Client: r.v.Scope.Client, Tenant: r.tenant}
}

// SetTenant says whose data it is, for an edge that learns it from the command: after decoding and before the dispatch. During a
// dispatch it comes too late, and the key's scope is what it was.
func (r *Request) SetTenant(tenant string) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tenant = tenant
}

// BodySHA256 is the SHA-256 of the request's body as it came, in hexadecimal; empty where the edge has not taken it. It is for an
// archive and is no part of the fingerprint (rule rec-9).
func (r *Request) BodySHA256() string {
	if r == nil {
		return ""
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.bodySHA256
}

// SetBodySHA256 is how an edge says what the body's SHA-256 is. It is put on the log line as raw_body_sha256 as well.
func (r *Request) SetBodySHA256(sum string) {
	if r == nil {
		return
	}
	r.mu.Lock()
	r.bodySHA256 = sum
	r.mu.Unlock()
	r.Add("raw_body_sha256", sum)
}

// Source is where the request came in, as far as it separates keys.
func (r *Request) Source() string {
	if r == nil {
		return ""
	}
	return r.v.Source
}

// Resource holds the concrete values of the route's parameters. The caller must not change the slice.
func (r *Request) Resource() []string {
	if r == nil {
		return nil
	}
	return r.v.Resource
}

// Outcome is what the pipeline reported last. It is complete when the dispatch has returned.
func (r *Request) Outcome() Outcome {
	if r == nil {
		return Outcome{}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.outcome
}

// Report is how the idempotency stage reports an outcome. Applications have no need to call it.
func (r *Request) Report(o Outcome) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.outcome = o
}

// ExternalRef is the reference that support searches by.
func (r *Request) ExternalRef() string {
	if r == nil {
		return ""
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.externalRef
}

// SetExternalRef sets the reference that support searches by, such as the authorisation id that a handler received. It
// goes to the log line and into the record.
func (r *Request) SetExternalRef(ref string) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.externalRef = ref
}

// DraftID is the draft that the request is about.
func (r *Request) DraftID() string {
	if r == nil {
		return ""
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.draftID
}

// SetDraftID says which draft the request is about, for an edge that learns it from the command: after decoding and before the
// dispatch. It goes to the log line and into the record, where support finds it even while the work is going on or was not done; during
// a dispatch it comes too late for the record. It must be an id and no personal data. It is no part of scope or fingerprint.
func (r *Request) SetDraftID(id string) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.draftID = id
}

// Trace is the traceparent of this attempt.
func (r *Request) Trace() string {
	if r == nil {
		return ""
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.trace
}

// SetTrace says in which trace and span this attempt is, as a traceparent of W3C Trace Context, so that replays can be linked to it, from
// other processes as well: it goes into the record. Package telemetry calls it for spans that are sampled; applications have no need to.
func (r *Request) SetTrace(traceparent string) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.trace = traceparent
}

// Add puts a name and a value on the log line, such as "basket_id"; the same name again replaces the value. At most
// sixteen names are kept, further ones are dropped. Only add what may be read in a log for years: ids, never personal
// data, never a secret (rule see-1).
func (r *Request) Add(name, value string) {
	if r == nil || name == "" {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.attrs {
		if r.attrs[i].Name == name {
			r.attrs[i].Value = value
			return
		}
	}
	if len(r.attrs) < maxAttributes {
		r.attrs = append(r.attrs, Attribute{name, value})
	}
}

// Attributes is a copy of what was added with [Request.Add], in the order of first adding.
func (r *Request) Attributes() []Attribute {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.attrs) == 0 {
		return nil
	}
	return append([]Attribute(nil), r.attrs...)
}
