package msgedge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
	"github.com/tekil-go/tekil/requestctx/internal/panics"
	"github.com/tekil-go/tekil/requestctx/internal/strictjson"
)

// Message is what a broker delivers, whichever it is.
type Message struct {
	// ID is the publisher's id of the message, the same in every delivery and whenever it is sent again. Nothing is trimmed.
	ID string
	// Type says which command the payload is.
	Type string
	// Payload is the command, as JSON or as [Config].Decode reads it.
	Payload []byte
	// Headers are what the message carries besides. They are no part of the key or of the fingerprint, but for the header that
	// Config.KeyHeader names. Values of a name that came more than once are to be joined by commas; such a key is refused.
	Headers map[string]string
	// Source is where it was published first, such as its topic, also when it comes back from a dead-letter queue: under another
	// source it is another message. Empty means [Config].Source.
	Source string
	// Deliveries is how often it has been delivered, this time counted in. Zero means that the broker does not say.
	Deliveries int
	// SentAt is when it was published. The zero time means that nobody says.
	SentAt time.Time
}

// Config is what a [Consumer] goes by. The zero Config is refused. Its functions are called from many goroutines at once.
type Config struct {
	// Bus dispatches the commands. It must be set.
	Bus *bus.Bus
	// Consumer is the name of this consumer, such as "billing", without blanks. It is part of the scope of every key, so it must stay
	// as it is when the program is renamed or deployed. It must be set.
	Consumer string
	// Source is where messages come from that do not say it themselves: a topic, a stream, a queue. It is the client that a key
	// belongs to. A message that has none either is set aside.
	Source string
	// Tenant says whose data a message is about. Nil means that there is only one tenant. An error, whichever, puts the message
	// back, and "" sets it aside.
	Tenant func(context.Context, Message) (string, error)
	// KeyHeader names a header that holds the key of the intent, where one intent can come in several messages. A message that has
	// it, in whichever letter case, is known by it and not by its id; one that has it twice or empty is set aside. Empty means that
	// the id is the key of every message.
	KeyHeader string
	// Decode reads a payload, of which it must not change or keep anything, into the zero command that command points to. Nil is
	// strict JSON: unknown, repeated and differently spelled members are refused. Its errors and panics set the message aside, so it
	// must not ask anybody who may be away.
	Decode func(payload []byte, command any) error
	// Refusals is what is done with a message that is refused for good: [Ack], which zero means, or [DeadLetter].
	Refusals Action
	// Delay says after which time a message that has failed should come again; deliveries is Message.Deliveries, at least 1. Nil is
	// 1 second, doubled with each delivery up to 5 minutes, less a random part of up to a half. It is never less than what the
	// pipeline asks for. A consumer whose context is canceled puts messages back without delay.
	Delay func(deliveries int) time.Duration
	// MaxDeliveries is after how many deliveries a message that fails is set aside, as DELIVERIES_EXHAUSTED. Zero leaves that to the
	// broker. A delivery that only met another one at work, found the store of records away, or was cut off by the end of the
	// consumer does not end it, as the message is not to blame, though it is counted. The MaxAttempts of a Leased command is better
	// the larger number: a key whose attempts are used up runs again only when a person has released it (idempotency.Admin).
	MaxDeliveries int
	// MaxAge sets aside messages that were published longer ago by the clock of this machine, which protects against one that comes
	// back when its record has expired. Zero means no bound. Messages that do not say when they were published pass.
	MaxAge time.Duration
	// Redelivery is how long after its first delivery a message may come again by any way: redelivery, a dead-letter queue that is
	// sent once more, a replay by hand. [Handle] refuses a command whose outcome is not kept that long by the policy of its type;
	// what a deployment has tuned (registry.Tune) cannot be seen here. Zero means that nobody says.
	Redelivery time.Duration
	// Log gets what no stage of the pipeline can see: messages that are not dispatched and those that have failed too often, as Warn,
	// and panics, as Error. It is never given a payload, a header or a key that was refused. Nil means slog.Default().
	Log *slog.Logger
}

// Consumer receives messages. It is safe for concurrent use. Register its commands with [Handle] before the first message comes:
// a message of a type that is not known yet is set aside.
type Consumer struct {
	cfg Config

	mu   sync.RWMutex
	ways map[string]way // by message type
}

// way is how messages of a type become what they are.
type way struct {
	send   func(context.Context, *Consumer, []byte) error
	marked bool
}

// New makes a Consumer. It reports all problems of the configuration, joined.
func New(cfg Config) (*Consumer, error) {
	var problems []error
	bad := func(format string, args ...any) {
		problems = append(problems, fmt.Errorf("msgedge: Config."+format, args...))
	}
	if cfg.Bus == nil {
		bad("Bus is nil; give the bus that registry.Build made")
	}
	if !storable(cfg.Consumer) || strings.ContainsFunc(cfg.Consumer, unicode.IsSpace) {
		bad("Consumer is empty, has blanks in it or is not UTF-8 without NUL; " +
			"give the consumer a name of its own, because it is part of every key's scope")
	}
	if cfg.Source != "" && !storable(cfg.Source) {
		bad("Source is not UTF-8 without NUL")
	}
	if strings.TrimSpace(cfg.KeyHeader) != cfg.KeyHeader {
		bad("KeyHeader has blanks around it, and no header is called that")
	}
	if cfg.Refusals = cmp.Or(cfg.Refusals, Ack); cfg.Refusals != Ack && cfg.Refusals != DeadLetter {
		bad("Refusals is %v; use Ack or DeadLetter", cfg.Refusals)
	}
	if cfg.MaxDeliveries < 0 || cfg.MaxAge < 0 || cfg.Redelivery < 0 {
		bad("MaxDeliveries (%d), MaxAge (%v) and Redelivery (%v) must not be negative", cfg.MaxDeliveries, cfg.MaxAge, cfg.Redelivery)
	}
	if len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	return &Consumer{cfg: cfg, ways: make(map[string]way)}, nil
}

// Handle says that messages of a type are the command C. A command may have several types, such as an old name and a new one. The
// error says what speaks against it: a type that is taken, a command without a handler, one that cannot be decoded, or one whose
// outcome is forgotten while its message may still come again ([Config].Redelivery).
//
// A command without the mark is dispatched for each delivery. That is enough where the data has an identity of its own and the
// handler is an upsert by it (rule msg-3). Its messages need an id all the same (rule msg-2).
func Handle[C bus.Command[R], R any](c *Consumer, messageType string) error {
	if c == nil || c.cfg.Bus == nil {
		return fmt.Errorf("msgedge: %q (%v): the consumer is nil or zero; make it with msgedge.New", messageType, reflect.TypeFor[C]())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	send, err := bus.Bind[C](c.cfg.Bus)
	problems := []error{err}
	if messageType == "" {
		problems = append(problems, errors.New("the type is empty"))
	}
	if _, taken := c.ways[messageType]; taken {
		problems = append(problems, errors.New("messages of that type are another command already"))
	}
	if c.cfg.Decode == nil {
		problems = append(problems, strictjson.Check(reflect.TypeFor[C]()))
	}
	if err == nil { // what has no handler may be no value, and not say how long it is kept
		problems = append(problems, keptFor[C](c.cfg.Redelivery))
	}
	if err := errors.Join(problems...); err != nil {
		return fmt.Errorf("msgedge: consumer %s: %q (%v): %w", c.cfg.Consumer, messageType, reflect.TypeFor[C](), err)
	}
	c.ways[messageType] = way{
		marked: idempotency.IsMarked[C](),
		send: func(ctx context.Context, c *Consumer, payload []byte) error {
			var cmd C
			if err := c.decode(ctx, payload, &cmd); err != nil {
				return err
			}
			_, err := send(ctx, cmd)
			return err
		},
	}
	return nil
}

// keptFor reports that the outcome of a command is kept for less than d, by its type. What is not recorded is not kept at all, on
// purpose, and what becomes a tombstone never runs again.
func keptFor[C any](d time.Duration) error {
	var policy idempotency.Policy
	var zero C
	if p, ok := any(zero).(idempotency.WithPolicy); ok {
		policy = p.Idempotency()
	}
	kept := cmp.Or(policy.Retention, idempotency.DefaultRetention)
	if !idempotency.IsMarked[C]() || policy.AfterExpiry == idempotency.Tombstone || kept >= d {
		return nil
	}
	return fmt.Errorf("its outcome is kept for %v and a message may come again for %v (Config.Redelivery), and would then run as new; "+
		"give its policy a longer Retention, or AfterExpiry Tombstone", kept, d)
}

// Receive dispatches a message and says what is to be done with it. It returns when that is known: the work is committed, or
// nothing of it is there. Panics, of the handler and of the functions of [Config], are logged and not passed on.
//
// ctx ends waiting and what has not begun; the handler of a marked command goes on under the deadline of its policy. Cancel it when
// the consumer ends. A deadline for one message is set on it as on any context, and counts as a failure of the message.
//
// A batch is a loop: each message has a record and a verdict of its own, and none undoes another.
func (c *Consumer) Receive(ctx context.Context, m Message) Verdict {
	if c == nil || c.cfg.Bus == nil {
		v := Judge(&messageError{code: codeNotMade, passes: true}, requestctx.Outcome{})
		v.Delay = longestDelay // without a consumer nothing is known about the message, and nothing may become of it
		return v
	}
	values, w, err := c.read(m)
	ctx, req := requestctx.New(ctx, values)
	if c.cfg.KeyHeader != "" && loggable(m.ID) {
		req.Add("message_id", m.ID)
	}
	if m.Deliveries > 0 {
		req.Add("delivery", strconv.Itoa(m.Deliveries))
	}
	if !m.SentAt.IsZero() {
		req.Add("sent_at", m.SentAt.UTC().Format(time.RFC3339))
	}
	v := c.attempt(ctx, req, m, w, err)
	switch {
	case v.Action == Ack && is[*idempotency.RefusedError](v.Err):
		v.Action = c.cfg.Refusals
	case v.Action != Retry:
	case errors.Is(ctx.Err(), context.Canceled): // a consumer that is ending does not hold its messages back
		v.Delay = 0
	case c.cfg.MaxDeliveries > 0 && m.Deliveries >= c.cfg.MaxDeliveries && !blameless(v.Err):
		v.Action, v.Delay, v.Reason = DeadLetter, 0, codeWorn
	default:
		v.Delay = max(v.Delay, c.delay(ctx, req, max(m.Deliveries, 1)))
	}
	if v.Reason == codeWorn || is[*messageError](v.Err) && v.Reason != codePanic {
		c.log(ctx, req, slog.LevelWarn, "msgedge: "+v.Action.String(), slog.String("code", v.Reason),
			slog.String("error_code", bus.CodeOf(v.Err)), slog.String("type", safe(m.Type)), slog.Int("delivery", m.Deliveries))
	}
	return v
}

// read takes key and scope from the envelope of a message; they need nothing of its payload.
func (c *Consumer) read(m Message) (v requestctx.Values, w way, err error) {
	v = requestctx.Values{Source: "consumer:" + c.cfg.Consumer, Scope: requestctx.Scope{Client: cmp.Or(m.Source, c.cfg.Source)}}
	c.mu.RLock()
	w, known := c.ways[m.Type]
	c.mu.RUnlock()
	key, keyErr := c.keyOf(m)
	v.Key = key
	switch {
	case !storable(v.Scope.Client):
		v.Scope.Client = ""
		err = &messageError{code: codeNoSource}
	case keyErr != nil:
		err = keyErr
	case !known:
		err = &messageError{code: codeType}
	case c.cfg.MaxAge > 0 && !m.SentAt.IsZero() && time.Since(m.SentAt) > c.cfg.MaxAge:
		err = &messageError{code: codeTooOld}
	}
	return v, w, err
}

// keyOf gives the key of a message.
func (c *Consumer) keyOf(m Message) (requestctx.Key, error) {
	text, came := m.ID, 0
	if c.cfg.KeyHeader != "" {
		for name, value := range m.Headers {
			if strings.EqualFold(name, c.cfg.KeyHeader) {
				text, came = value, came+1
			}
		}
	}
	if came == 0 && strings.TrimSpace(text) == "" {
		return requestctx.Key{}, &messageError{code: codeNoID}
	}
	key, err := requestctx.ParseKey(text)
	if came > 1 {
		key, err = requestctx.Key{}, &requestctx.KeyError{Reason: "the header came " + strconv.Itoa(came) + " times; send it once"}
	}
	if err != nil {
		return key, &messageError{code: bus.CodeOf(err), err: err}
	}
	return key, nil
}

// attempt makes the dispatch, unless err is there already, and survives a panic, of which only type and place may be told.
func (c *Consumer) attempt(ctx context.Context, req *requestctx.Request, m Message, w way, err error) (v Verdict) {
	defer func() {
		if p := recover(); p != nil {
			c.panicked(ctx, req, p)
			v = Judge(&messageError{code: codePanic, passes: true}, requestctx.Outcome{})
		}
	}()
	if err == nil && c.cfg.Tenant != nil {
		var tenant string
		if tenant, err = c.cfg.Tenant(ctx, m); err != nil || !storable(tenant) {
			err = &messageError{code: codeTenant, passes: err != nil, err: err}
		} else {
			req.SetTenant(tenant)
		}
	}
	if err == nil {
		err = w.send(ctx, c, m.Payload)
	}
	if !w.marked { // a report would be that of a command which the handler has sent
		return Judge(err, requestctx.Outcome{})
	}
	return Judge(err, req.Outcome())
}

// decode reads a payload. A decoder that panics over it will do so again.
func (c *Consumer) decode(ctx context.Context, payload []byte, command any) (err error) {
	defer func() {
		if p := recover(); p != nil {
			c.panicked(ctx, requestctx.From(ctx), p)
			err = &messageError{code: codeMalformed}
		}
	}()
	read := c.cfg.Decode
	if read == nil {
		read = strictjson.Decode
	}
	if err := read(payload, command); err != nil {
		return &messageError{code: codeMalformed, err: err}
	}
	return nil
}

// blameless reports whether a failure says nothing about the message.
func blameless(err error) bool {
	return is[*idempotency.InProgressError](err) || is[*idempotency.StoreError](err)
}

// The delays of a message that has failed.
const (
	firstDelay   = time.Second
	longestDelay = 5 * time.Minute
)

// delay is how long a message that has failed is put back for.
func (c *Consumer) delay(ctx context.Context, req *requestctx.Request, deliveries int) (d time.Duration) {
	defer func() {
		if p := recover(); p != nil {
			c.panicked(ctx, req, p)
			d = longestDelay
		}
	}()
	if c.cfg.Delay != nil {
		return c.cfg.Delay(deliveries)
	}
	d = longestDelay
	if deliveries <= 9 { // beyond it is longer, and in the end overflows
		d = min(firstDelay<<(deliveries-1), longestDelay)
	}
	return d - rand.N(d/2+1)
}

func (c *Consumer) panicked(ctx context.Context, req *requestctx.Request, value any) {
	c.log(ctx, req, slog.LevelError, "msgedge: panic",
		slog.String("panic_type", fmt.Sprintf("%T", value)), slog.String("at", panics.At()))
}

func (c *Consumer) log(ctx context.Context, req *requestctx.Request, level slog.Level, message string, attrs ...slog.Attr) {
	l := c.cfg.Log
	if l == nil {
		l = slog.Default()
	}
	all := append([]slog.Attr{
		slog.String("source", req.Source()), slog.String("request_id", req.ID()), slog.String("key", req.Key().String()),
		slog.String("client", req.Scope().Client), slog.String("tenant", req.Scope().Tenant),
	}, attrs...)
	l.LogAttrs(ctx, level, message, all...)
}

// storable reports whether s can stand in a column of a record.
func storable(s string) bool {
	return s != "" && utf8.ValidString(s) && strings.IndexByte(s, 0) < 0
}

// loggable reports whether an id may be logged: it is what a key may be.
func loggable(id string) bool {
	_, err := requestctx.ParseKey(id)
	return err == nil
}

// safe is the type of a message as it may be logged. Anything can stand there, so only what looks like a name is told.
func safe(messageType string) string {
	if loggable("12345678" + messageType) {
		return messageType
	}
	return ""
}
