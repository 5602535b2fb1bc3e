package watermilledge

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/requestctx/msgedge"
)

// The metadata of a message, where [Options] and [PublisherOptions] do not say otherwise.
const (
	// TypeMetadata says which command the payload is.
	TypeMetadata = "type"
	// SentAtMetadata says when the message was published, in the form of RFC 3339.
	SentAtMetadata = "sent_at"
)

// The metadata that a dead letter has besides its own. Should a dead letter be sent to its topic again and be set aside once more,
// they are those of the last time.
const (
	// DeadLetterReason is the outcome code, such as MESSAGE_TYPE_UNKNOWN. It is never the text of an error.
	DeadLetterReason = "dead_letter_reason"
	// DeadLetterConsumer is the name of the router's handler that set the message aside; it is left out outside a router.
	DeadLetterConsumer = "dead_letter_consumer"
	// DeadLetterTopic is where the message came from: [Options].Topic.
	DeadLetterTopic = "dead_letter_topic"
)

// DefaultMaxHold is how long a message that failed is held back before it is put back, if [Options] says nothing: 30 seconds.
const DefaultMaxHold = 30 * time.Second

// Options is what a [Handler] goes by.
type Options struct {
	// Topic is where the messages come from. It is the client that their keys belong to, so it must stay as it is, even should the
	// broker's topic be renamed. It goes before the Source of the consumer. It must be set.
	Topic string
	// Type is the metadata that holds the message type. Empty means [TypeMetadata].
	Type string
	// SentAt is the metadata that holds when the message was published, as RFC 3339. Empty means [SentAtMetadata]. A message without
	// it, or with something else in it, does not say.
	SentAt string
	// Deliveries says how often a message has been delivered, this time counted in, or 0 if that is not known. Brokers say it in
	// different ways and some subscribers do not pass it on. Nil means that nobody knows; then each delay is that of a first delivery
	// and MaxDeliveries of the consumer has no effect.
	Deliveries func(*message.Message) int
	// DeadLetters publishes what is set aside, to DeadLetterTopic, which must be another topic. Both must be set: what nobody
	// keeps would be lost. Its Publish must return when the broker has the message and not before; an asynchronous one can lose it.
	DeadLetters     message.Publisher
	DeadLetterTopic string
	// MaxHold bounds how long a message that failed is held before it is put back, whatever the consumer's delay says. Zero is
	// [DefaultMaxHold]. It should be well below the time that the broker allows for an acknowledgement, or the broker delivers the
	// message once more meanwhile, which does no harm. A negative one holds nothing back, for brokers that wait by themselves.
	MaxHold time.Duration
}

// Handler makes the handler of a Watermill router for a consumer. The error holds all problems of the options, joined.
//
// A message is acknowledged when its work is committed, or known to be done or refused, and its dead letter when that has been
// published. All else is an error, which the router answers with a nack; its text is the outcome code and nothing of the message.
// Nothing is acknowledged because it has been seen before: a duplicate of work that is under way is put back.
//
// A message that is put back is held first, for the delay of the verdict up to MaxHold. Its context ends the holding, and it ends
// when the router closes, if the subscriber keeps to Watermill's contract. Most subscribers deliver nothing further from the same
// partition or queue while a message is held.
//
// A dead letter is the same message, UUID, metadata and payload, with [DeadLetterReason], [DeadLetterConsumer] and
// [DeadLetterTopic] besides. If it cannot be published the message is put back. If the acknowledgement is lost after that, there are two
// dead letters with the same UUID.
//
// The handler is safe for concurrent use.
func Handler(c *msgedge.Consumer, o Options) (message.NoPublishHandlerFunc, error) {
	var problems []error
	bad := func(broken bool, text string) {
		if broken {
			problems = append(problems, errors.New("watermilledge: "+text))
		}
	}
	bad(c == nil, "the consumer is nil; make one with msgedge.New")
	bad(o.Topic == "" || !utf8.ValidString(o.Topic) || strings.ContainsRune(o.Topic, 0),
		"Options.Topic is empty or not UTF-8 without NUL; it is what the keys of the messages belong to")
	bad(o.DeadLetters == nil || o.DeadLetterTopic == "",
		"Options.DeadLetters and DeadLetterTopic must both be set; a dead letter without a place would be lost")
	bad(o.DeadLetterTopic != "" && o.DeadLetterTopic == o.Topic, "Options.DeadLetterTopic is the topic itself; a dead letter would come back at once")
	if len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	if o.Type == "" {
		o.Type = TypeMetadata
	}
	if o.SentAt == "" {
		o.SentAt = SentAtMetadata
	}
	if o.MaxHold == 0 {
		o.MaxHold = DefaultMaxHold
	}
	return (&handler{c, o}).handle, nil
}

type handler struct {
	consumer *msgedge.Consumer
	Options
}

// codeContext is the code of a message that came with the context of a handler.
const codeContext = "MESSAGE_CONTEXT_OF_A_HANDLER"

// deadLetterPause is how long a message is held whose dead letter could not be published.
const deadLetterPause = time.Second

func (h *handler) handle(m *message.Message) error {
	returned := false
	defer func() {
		if !returned { // a panic that Receive does not catch, or runtime.Goexit, after which the router says nothing
			m.Nack()
		}
	}()
	err := h.receive(m)
	returned = true
	return err
}

func (h *handler) receive(m *message.Message) error {
	ctx := m.Context()
	if _, inside := idempotency.Attempt(ctx); inside {
		return h.putBack(ctx, codeContext, h.MaxHold, nil)
	}
	in := msgedge.Message{ID: m.UUID, Type: m.Metadata.Get(h.Type), Payload: m.Payload, Headers: m.Metadata, Source: h.Topic}
	if at, err := time.Parse(time.RFC3339, m.Metadata.Get(h.SentAt)); err == nil {
		in.SentAt = at
	}
	if h.Deliveries != nil {
		in.Deliveries = max(h.Deliveries(m), 0)
	}
	switch v := h.consumer.Receive(ctx, in); v.Action {
	case msgedge.Ack:
		return nil
	case msgedge.DeadLetter:
		if err := h.setAside(m, v.Reason); err != nil {
			return h.putBack(ctx, v.Reason, deadLetterPause, err)
		}
		return nil
	default:
		return h.putBack(ctx, v.Reason, v.Delay, nil)
	}
}

// setAside publishes the dead letter. The router's message stays as it is.
func (h *handler) setAside(m *message.Message, reason string) error {
	dead := m.Copy()
	dead.SetContext(m.Context())
	dead.Metadata.Set(DeadLetterReason, reason)
	dead.Metadata.Set(DeadLetterTopic, h.Topic)
	delete(dead.Metadata, DeadLetterConsumer)
	if name := message.HandlerNameFromCtx(m.Context()); name != "" {
		dead.Metadata.Set(DeadLetterConsumer, name)
	}
	return h.DeadLetters.Publish(h.DeadLetterTopic, dead)
}

// putBack holds a message and gives the error that puts it back.
func (h *handler) putBack(ctx context.Context, reason string, delay time.Duration, cause error) error {
	if delay = min(delay, h.MaxHold); delay > 0 {
		held := time.NewTimer(delay)
		defer held.Stop()
		select {
		case <-held.C:
		case <-ctx.Done():
		}
	}
	if cause == nil {
		cause = ctx.Err() // a router does not log what ended with its closing
	}
	return &backError{reason, cause}
}

// backError is why a message is put back. Of its cause it tells the text only where that is a publisher's.
type backError struct {
	reason string
	cause  error // of the publisher of the dead letters, or the end of the message's context, or nil
}

func (e *backError) Error() string {
	if e.cause == nil || errors.Is(e.cause, context.Canceled) || errors.Is(e.cause, context.DeadlineExceeded) {
		return "watermilledge: put back: " + e.reason
	}
	return fmt.Sprintf("watermilledge: put back: %s, and the dead letter could not be published: %v", e.reason, e.cause)
}

// Code is the outcome code.
func (e *backError) Code() string { return e.reason }

func (e *backError) Unwrap() error { return e.cause }
