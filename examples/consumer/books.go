package main

import (
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.uber.org/zap/zapcore"

	"github.com/tekil-go/tekil/requestctx/msgedge/watermilledge"
)

// books is what the program counts of itself. What became of a command it learns from the log of the bus, as a monitoring would.
type books struct {
	zapcore.LevelEnabler
	mu sync.Mutex
	counts
}

// counts are the numbers in books.
type counts struct {
	// By the command's name.
	Done, Replayed map[string]int
	// By the consumer's name.
	Delivered, PutBack, Dead map[string]int
}

func newBooks() *books {
	return &books{LevelEnabler: zapcore.DebugLevel, counts: counts{map[string]int{}, map[string]int{}, map[string]int{}, map[string]int{}, map[string]int{}}}
}

func (b *books) add(to map[string]int, name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	to[name]++
}

// all is how many deliveries there were.
func (b *books) all() (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, d := range b.Delivered {
		n += d
	}
	return n
}

// addAll adds what another process has counted.
func (b *books) addAll(c counts) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range []struct{ to, from map[string]int }{
		{b.Done, c.Done}, {b.Replayed, c.Replayed}, {b.Delivered, c.Delivered}, {b.PutBack, c.PutBack}, {b.Dead, c.Dead},
	} {
		for name, n := range m.from {
			m.to[name] += n
		}
	}
}

// tell writes the counts as one line.
func (b *books) tell(w io.Writer) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return json.NewEncoder(w).Encode(b.counts)
}

// watch is a middleware of the router that counts the deliveries of a consumer. It says nack itself, because a router logs each
// message that is put back as an error. A dead letter that could not be published is one.
func (b *books) watch(name string, log *slog.Logger) message.HandlerMiddleware {
	return func(next message.HandlerFunc) message.HandlerFunc {
		return func(m *message.Message) ([]*message.Message, error) {
			b.add(b.Delivered, name)
			out, err := next(m)
			if err == nil {
				return out, nil
			}
			if errors.Unwrap(err) != nil && m.Context().Err() == nil {
				log.Error("put back", "consumer", name, "error", err)
			}
			b.add(b.PutBack, name)
			m.Nack()
			return nil, nil
		}
	}
}

// deadLetters counts what is set aside.
type deadLetters struct {
	message.Publisher
	books *books
}

func (d deadLetters) Publish(topic string, messages ...*message.Message) error {
	if err := d.Publisher.Publish(topic, messages...); err != nil {
		return err
	}
	for _, m := range messages {
		d.books.add(d.books.Dead, m.Metadata.Get(watermilledge.DeadLetterConsumer))
	}
	return nil
}

// With and the methods below make books the core of a logger.
func (b *books) With([]zapcore.Field) zapcore.Core { return b }

func (b *books) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	return ce.AddCore(e, b)
}

func (b *books) Write(_ zapcore.Entry, fields []zapcore.Field) error {
	command, ok, replayed := "", false, false
	for _, f := range fields {
		switch f.Key {
		case "command":
			command = f.String
		case "outcome":
			ok = f.String == "OK"
		case "replayed":
			replayed = f.Integer == 1
		}
	}
	switch {
	case replayed:
		b.add(b.Replayed, command)
	case ok:
		b.add(b.Done, command)
	}
	return nil
}

func (b *books) Sync() error { return nil }
