package idempotency

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"strconv"
	"sync"
	"sync/atomic"
)

// active is a marked command whose handler is running.
type active struct {
	engine *Engine
	name   string
	scope  Scope
	run    AttemptID
	lease  Lease // nil in Atomic
	grant  Grant

	returned atomic.Bool // the handler has returned
	outside  atomic.Bool // it has asked for a downstream key, and so may have been to the outside world
	events   atomic.Int64

	mu   sync.Mutex
	sent map[string]bool // the commands that it has sent without a label
}

// activeKey and currentKey are keys of contexts: the running command of an engine, and the innermost of any.
type (
	activeKey  struct{ *Engine }
	currentKey struct{}
	labelKey   struct{}
)

// handlerContext is the context of a handler that runs under a record. A label that was meant for this command is not one for the
// commands that it sends.
type handlerContext struct {
	context.Context
	active *active
}

func (c *handlerContext) Value(key any) any {
	switch k := key.(type) {
	case activeKey:
		if k.Engine == c.active.engine {
			return c.active
		}
	case currentKey:
		return c.active
	case labelKey:
		return nil
	}
	return c.Context.Value(key)
}

// transaction reports whether the command holds an open transaction: an Atomic one always does, a Leased one from InTx on.
func (a *active) transaction() bool { return a.lease == nil || a.lease.Open() }

// child gives the key of a marked command that a Leased handler sends: derived from the parent's, so that it is the same when
// the parent runs again (rule key-3).
func (a *active) child(command, label string) (string, error) {
	if label == "" {
		a.mu.Lock()
		again := a.sent[command]
		if a.sent == nil {
			a.sent = make(map[string]bool)
		}
		a.sent[command] = true
		a.mu.Unlock()
		if again {
			return "", &HandlerError{Command: command, Err: ErrChildLabelRequired,
				Reason: "it was sent a second time inside the Leased command " + a.name + ", without a label that tells the two apart; send each with idempotency.WithLabel"}
		}
	}
	s := a.scope
	return derived("child/1", s.Tenant, s.Client, s.Operation, s.Key, command, label), nil
}

// derived makes a key of a list of parts: 43 characters, all of them legal in a key.
func derived(parts ...string) string {
	buf := make([]byte, 0, 256)
	for _, part := range parts {
		buf = appendPart(buf, part)
	}
	sum := sha256.Sum256(buf)
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// Attempt tells a handler which attempt it is. Outside the handler of a marked command that runs under a key, ok is false. An
// Atomic handler is always the first attempt, because an Atomic attempt that failed has left nothing to count, and has no fence.
func Attempt(ctx context.Context) (g Grant, ok bool) {
	a, ok := ctx.Value(currentKey{}).(*active)
	if !ok {
		return Grant{}, false
	}
	return a.grant, true
}

// DownstreamKey gives the key under which a handler calls the outside world, so that the other side's own idempotency closes the
// gap that no transaction of ours can (rule rec-11). It is made of the intent's scope, its key and the label alone: it is the
// same in every attempt, after every takeover, and when the record has been lost. It has 43 characters of A-Z a-z 0-9 _ - and
// does not reveal the intent's key. Use one label for each call that is meant to happen once, such as "authorize".
//
// Asking for a key tells the stage that the handler goes outside: a Leased handler that panics or runs into its deadline after
// that stays in progress until its lease is over, because nobody knows what it has done.
//
// What it does not do: it cannot help with an other side that does not honour it, nor when the other side remembers longer than
// our record lives and the key is used again after that. Then the other side may answer with the object of the key's former
// life, so compare amount and reference with what was asked for.
//
// In a command that runs in another one's transaction it is the key of that one's intent. Outside the handler of a marked command
// that runs under a key, and after it has returned, the error is [ErrNoIntent].
func DownstreamKey(ctx context.Context, label string) (string, error) {
	a, ok := ctx.Value(currentKey{}).(*active)
	if !ok || a.returned.Load() {
		return "", ErrNoIntent
	}
	a.outside.Store(true)
	s := a.scope
	return derived("downstream/1", s.Tenant, s.Client, s.Operation, s.Key, label), nil
}

// EventID gives the id of the next event that a handler emits: one that is written to an outbox in the handler's transaction, so
// that it exists exactly when the outcome is recorded. It is made of the record and of the number of the event in its handler's run,
// has 43 characters of A-Z a-z 0-9 _ - and does not reveal the key. A replay does not run the handler and emits nothing.
//
// It differs between two attempts of which only one can commit, and between two lives of a key that expired and was used again:
// the events of the second are new work for whoever receives them. Handlers that emit from several goroutines give each event
// another id, and which one gets which is then chance.
//
// In a command that runs in another one's transaction the events are numbered with that one's. Outside the handler of a marked
// command that runs under a key, and after it has returned, the error is [ErrNoIntent].
func EventID(ctx context.Context) (string, error) {
	a, ok := ctx.Value(currentKey{}).(*active)
	if !ok || a.returned.Load() {
		return "", ErrNoIntent
	}
	s := a.scope
	return derived("event/1", s.Tenant, s.Client, s.Operation, s.Key, string(a.run[:]), strconv.FormatInt(a.events.Add(1), 10)), nil
}

// WithLabel gives a context on which a marked command is sent with a key of its own, derived from the key of the command or
// request that sends it, the command's name and the label. Use it where one intent sends the same command more than once: the
// items of a batch by their ids, not by their index, because an index changes when an item is taken out. The label is for
// the next marked command alone and not for those that this one sends. Inside an open transaction of another command it means
// nothing, because what is sent there runs under that command's record. An empty label is none.
func WithLabel(ctx context.Context, label string) context.Context {
	return context.WithValue(ctx, labelKey{}, label)
}
