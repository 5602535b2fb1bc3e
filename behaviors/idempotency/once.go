package idempotency

import (
	"context"
	"errors"
	"reflect"
	"sync"
	"time"

	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
)

// InboxRetention is how long [Once] remembers a message: 7 days, which is meant to be longer than a broker delivers again and a
// dead-letter queue is looked through.
const InboxRetention = 7 * 24 * time.Hour

// received is the command that Once makes of a message. It has no payload, because Once is not shown one.
type received struct{}

func (received) CommandName() bus.Name[bus.None] { return "inbox" }

// receivedEncoder is what its fingerprint is made with.
var receivedEncoder = sync.OnceValues(func() (*encoder, error) { return compileEncoder(reflect.TypeFor[received]()) })

// Once does the work of a message once, where its handler is not a command: an inbox (rule msg-1). It claims the id and calls fn in
// one transaction of the store, on a context that its handle knows (the store's DB), and commits both, or nothing. For a message
// that has been done it returns nil without calling fn.
//
// consumer is the name of who receives. Several consumers of one message are independent (rule msg-4); the name is kept with the
// record, so it must not change. messageID is the publisher's: an empty one is a [*KeyMissingError] and one outside the grammar
// of keys a [*KeyInvalidError] (rule msg-2). Client and tenant are those of the request context, if ctx has one: give each topic
// a client of its own where the ids of two may collide.
//
// An error of fn undoes the work and leaves the message deliverable. [Final] makes it an outcome: its rows are undone, and every
// further delivery gets the same [*RefusedError]. While another delivery is at work the error is an [*InProgressError] after a
// moment; such a message must be put back and not acknowledged. A store that is away is a [*StoreError], and fn is not called.
//
// It is as an Atomic command: fn runs on a context that does not end with ctx but after [DefaultDeadline], and may be called again
// after a serialization failure. What fn does outside the database, such as a mail, happens again when the process dies before the
// commit. The record is kept for [InboxRetention]; a message that comes back later is new work. Two messages of one id are not
// compared, because there is no payload here to compare: make it a command where that matters.
//
// Inside the handler of a marked command the error is a [*HandlerError]: that command's record covers what it does.
func Once(ctx context.Context, store Store, consumer, messageID string, fn func(ctx context.Context) error) error {
	if store == nil {
		return &StoreError{Command: "inbox", Err: errors.New("no store is given")}
	}
	outer := requestctx.From(ctx)
	if parent, ok := ctx.Value(currentKey{}).(*active); ok && !parent.returned.Load() {
		return &HandlerError{Command: consumer, Reason: "Once was called inside the handler of " + parent.name + ", whose record covers what it does; call what is to be done directly, or receive the message outside"}
	}
	v := requestctx.Values{ID: outer.ID(), Scope: outer.Scope(), Source: "consumer:" + consumer}
	if v.Scope.Client == "" {
		v.Scope.Client = inboxClient
	}
	if messageID != "" {
		v.Key, v.KeyErr = requestctx.ParseKey(messageID)
	}
	if consumer == "" {
		return &ScopeError{Command: "inbox", Missing: "consumer"}
	}
	enc, err := receivedEncoder()
	if err != nil {
		return err
	}
	engine, err := New(Config{Store: store})
	if err != nil {
		return err
	}
	policy := Policy{Retention: InboxRetention}.withDefaults()
	s := &stage[received, bus.None]{engine: engine, name: "inbox", policy: policy, enc: enc, resultType: resultForm + "/0"}
	inner, req := requestctx.New(ctx, v)
	defer func() { outer.Report(req.Outcome()) }()
	_, err = s.run(inner, received{}, func(ctx context.Context, _ received) (bus.None, error) { return bus.None{}, fn(ctx) })
	return err
}

// inboxClient is the client of messages that nobody has given one.
const inboxClient = "inbox"
