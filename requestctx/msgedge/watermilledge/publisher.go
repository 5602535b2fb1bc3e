package watermilledge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/requestctx"
	"github.com/tekil-go/tekil/requestctx/internal/derive"
)

// Out is a message that is to be published.
type Out struct {
	// Type says which command or event the body is. It must be set.
	Type string
	// Body is encoded as JSON.
	Body any
	// Label tells apart the messages of one type that one intent sends to one topic: the id of the item that each is about, and not
	// its index. Without labels they have one id, and whoever receives them takes the first and refuses or drops the others. In an
	// outbox inside a marked handler it means nothing, because events are numbered there.
	Label string
	// ID is the message's id where whoever sends it has one of its own. It is a key by the grammar of rule http-1. Empty means that
	// the publisher makes it.
	ID string
	// Metadata is sent along. The names of the type and the time of sending are set by the publisher.
	Metadata map[string]string
}

// PublisherOptions names the metadata that a [Publisher] sets. The zero value is what a [Handler] reads by default.
type PublisherOptions struct {
	// Type is the metadata for the message type. Empty means [TypeMetadata].
	Type string
	// SentAt is the metadata for the time of sending. Empty means [SentAtMetadata].
	SentAt string
}

// Publisher sends messages whose ids keep the intent, so that what a retry sends again is the same message and is done once by who
// receives it (rule msg-2). It is safe for concurrent use if what it sends with is.
type Publisher struct {
	write func(ctx context.Context, topic string, m *message.Message) error
	newID func(ctx context.Context, label string) (string, error) // in the handler of a marked command
	PublisherOptions
}

// NewPublisher makes a Publisher that hands its messages to a broker at once. The broker's publisher stays the caller's to close.
//
// Inside the handler of a marked command the id of a message is the [idempotency.DownstreamKey] of topic, type and label. It is the
// same in every attempt, because no transaction takes back what a broker has: an attempt that fails after Send has sent its
// message, and the next one sends it again. That is right for a command to another service that must be asked before the outcome is
// known. An event that says what has happened belongs into an outbox ([NewOutbox]).
func NewPublisher(pub message.Publisher, o PublisherOptions) (*Publisher, error) {
	if pub == nil {
		return nil, errors.New("watermilledge: NewPublisher was given no publisher")
	}
	write := func(_ context.Context, topic string, m *message.Message) error { return pub.Publish(topic, m) }
	return newPublisher(write, idempotency.DownstreamKey, o), nil
}

// NewOutbox makes a Publisher that writes its messages with write, which must use the transaction of the handler that ctx belongs
// to (the DB of a store gives it), so that a message exists exactly when the outcome is recorded. Somebody else then brings the rows
// to the broker, and may do so more than once. Watermill's forwarder does it: write makes a publisher of its SQL component over
// the transaction, wraps it with forwarder.NewPublisher, and publishes with that.
//
// Inside the handler of a marked command the id of a message is the next [idempotency.EventID]. An attempt whose transaction is
// undone leaves no message, a replay writes none, and the label plays no part. Two of one handler never share an id. Send the events of
// a handler from one goroutine.
func NewOutbox(write func(ctx context.Context, topic string, m *message.Message) error, o PublisherOptions) (*Publisher, error) {
	if write == nil {
		return nil, errors.New("watermilledge: NewOutbox was given no function")
	}
	next := func(ctx context.Context, _ string) (string, error) { return idempotency.EventID(ctx) }
	return newPublisher(write, next, o), nil
}

func newPublisher(
	write func(context.Context, string, *message.Message) error, newID func(context.Context, string) (string, error), o PublisherOptions,
) *Publisher {
	if o.Type == "" {
		o.Type = TypeMetadata
	}
	if o.SentAt == "" {
		o.SentAt = SentAtMetadata
	}
	return &Publisher{write, newID, o}
}

// Send publishes a message. Its id, if [Out] has none, is
//
//	in the handler of a marked command    as [NewPublisher] and [NewOutbox] say
//	elsewhere in a request with a key     derived from the key, its scope, source and resource, and topic, type and label (rule
//	                                      key-3), so that a request that is sent again sends the same message
//	without a key                         a new UUIDv7, made here because here it is published; each call is a new message
//
// Derived ids have 43 characters of A-Z a-z 0-9 _ - and do not reveal the key. Under one key the body is no part of the id: the same
// message with another body is a conflict for who receives it, and that is meant.
//
// In a handler that has returned the error wraps [idempotency.ErrNoIntent] and nothing is sent. After any other error of what it
// sends with, the message may have been sent; with a key, sending it again is safe. The message's context is ctx.
func (p *Publisher) Send(ctx context.Context, topic string, out Out) error {
	if topic == "" || out.Type == "" {
		return errors.New("watermilledge: a message needs a topic and a type")
	}
	payload, err := json.Marshal(out.Body)
	if err != nil {
		return &encodeError{fmt.Sprintf("watermilledge: %T cannot be written as JSON", out.Body), err}
	}
	id, err := p.id(ctx, topic, out)
	if err != nil {
		return fmt.Errorf("watermilledge: a message of type %q has no id: %w", out.Type, err)
	}
	m := message.NewMessage(id, payload)
	m.SetContext(ctx)
	for name, value := range out.Metadata {
		m.Metadata.Set(name, value)
	}
	m.Metadata.Set(p.Type, out.Type)
	m.Metadata.Set(p.SentAt, time.Now().UTC().Format(time.RFC3339Nano))
	if err := p.write(ctx, topic, m); err != nil {
		return fmt.Errorf("watermilledge: a message of type %q could not be sent: %w", out.Type, err)
	}
	return nil
}

func (p *Publisher) id(ctx context.Context, topic string, out Out) (string, error) {
	if out.ID != "" {
		key, err := requestctx.ParseKey(out.ID)
		return key.String(), err
	}
	if _, inside := idempotency.Attempt(ctx); inside {
		return p.newID(ctx, derive.Key(topic, out.Type, out.Label))
	}
	req := requestctx.From(ctx)
	if key := req.Key(); !key.IsZero() {
		scope := req.Scope()
		parts := append([]string{"message/1", scope.Tenant, scope.Client, req.Source(), key.String(), topic, out.Type, out.Label}, req.Resource()...)
		return derive.Key(parts...), nil
	}
	if id := requestctx.NewID(); id != "" {
		return id, nil
	}
	return "", errors.New("the system has no randomness")
}

// encodeError says which type could not be encoded. The text of its cause may hold values and is not told.
type encodeError struct {
	text  string
	cause error
}

func (e *encodeError) Error() string { return e.text }

func (e *encodeError) Unwrap() error { return e.cause }
