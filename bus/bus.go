package bus

import (
	"context"
	"errors"
	"reflect"
)

// Name is the stable name of a command or query whose result is R. It is what records, logs and metrics know a
// command by, so it outlives the Go type's name: rename the type freely, but keep the name, because stored
// outcomes are found under it. By convention it is package and verb: "checkout.place".
type Name[R any] string

// Command is implemented by what [Send] accepts: a struct value that asks for a change and names its result.
type Command[R any] interface{ CommandName() Name[R] }

// Query is implemented by what [Ask] accepts: a struct value that asks for an answer and changes nothing. A query
// passes logging and validation, never idempotency (rule pipe-10).
type Query[R any] interface{ QueryName() Name[R] }

// None is the result of a command that has none: func (Cancel) CommandName() bus.Name[bus.None]. It is stored
// and replayed like any other result.
type None struct{}

// Handler does the work of one command or query. It is a function and nothing else; a method value fits.
// A handler is called from many goroutines at once.
type Handler[C, R any] func(context.Context, C) (R, error)

// Bus finds the handler of a command. It is immutable once [New] has made it and safe for concurrent use; the
// nil and the zero Bus serve nothing and answer every dispatch with an [*UnhandledError].
type Bus struct {
	entries map[uintptr]any // keyOf[C] -> *Logged[C, R]
}

// Entry is one command or query with its finished way to the handler, made by [Serve] or [Answer]. The zero Entry
// is refused by [New].
type Entry struct {
	key     uintptr
	way     any
	name    string
	goType  string
	problem error
}

// Serve makes the entry of the command C.
func Serve[C Command[R], R any](way Logged[C, R]) Entry {
	return entry(way, func(c C) string { return string(c.CommandName()) })
}

// Answer makes the entry of the query Q.
func Answer[Q Query[R], R any](way Logged[Q, R]) Entry {
	return entry(way, func(q Q) string { return string(q.QueryName()) })
}

func entry[C, R any](way Logged[C, R], name func(C) string) Entry {
	t := reflect.TypeFor[C]()
	value := t.Kind() != reflect.Pointer && t.Kind() != reflect.Interface
	e := Entry{key: keyOf[C](), way: &way, goType: t.String()}
	if value {
		e.name = zeroName(name)
	}
	switch {
	case !value:
		e.problem = &WayError{Type: e.goType, Reason: "it must be a value: serve the struct type, not a pointer to it and not an interface"}
	case way.send == nil:
		e.problem = &WayError{Name: e.name, Type: e.goType, Reason: "its way is the zero Logged: build it with bus.Log"}
	case e.name == "":
		e.problem = &WayError{Type: e.goType, Reason: "its zero value gives no name: return a constant such as \"orders.place\""}
	}
	return e
}

// zeroName reads a name off the zero value, because the name does not depend on the value. It is "" where that panics, as it
// does when the method comes from an embedded pointer or interface.
func zeroName[C any](name func(C) string) (s string) {
	defer func() { _ = recover() }()
	var zero C
	return name(zero)
}

// New makes a Bus of the entries. It reports every problem it finds, joined: entries that are zero or have no
// name ([*WayError]) and commands that are served twice, by type or by name ([*DuplicateError]).
func New(entries ...Entry) (*Bus, error) {
	b := &Bus{entries: make(map[uintptr]any, len(entries))}
	types := make(map[string]string, len(entries))
	var problems []error
	for _, e := range entries {
		if e.key == 0 {
			problems = append(problems, &WayError{Reason: "it is the zero Entry: make entries with bus.Serve or bus.Answer"})
			continue
		}
		if e.problem != nil {
			problems = append(problems, e.problem)
			continue
		}
		if first, ok := types[e.name]; ok {
			problems = append(problems, &DuplicateError{Name: e.name, First: first, Second: e.goType})
			continue
		}
		if _, ok := b.entries[e.key]; ok {
			problems = append(problems, &DuplicateError{Name: e.name, First: e.goType, Second: e.goType})
			continue
		}
		types[e.name] = e.goType
		b.entries[e.key] = e.way
	}
	if len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	return b, nil
}

func way[C, R any](b *Bus) (*Logged[C, R], bool) {
	if b == nil {
		return nil, false
	}
	w, ok := b.entries[keyOf[C]()].(*Logged[C, R])
	return w, ok
}

// keyOf is the address of the descriptor that the compiler has laid out for the type *C; it never moves, and nothing is looked
// at through it. An any with a nil *C in it would tell types apart as well, but a map hashes what it holds and not its type, so
// that all commands would share one hash; and an interface such as reflect.Type takes a map longer to hash than a number.
func keyOf[C any]() uintptr { return reflect.ValueOf(reflect.TypeFor[*C]()).Pointer() }

// Send carries cmd through the pipeline to its handler and gives back what became of it. What of the outcome is
// not in the result (was it a replay, and of which attempt?) stands in the request context.
//
// The errors are those of the stages and the handler, unchanged; a command without a handler is an
// [*UnhandledError]. Send itself allocates nothing and takes no lock.
func Send[C Command[R], R any](ctx context.Context, b *Bus, cmd C) (R, error) {
	if w, ok := way[C, R](b); ok {
		return w.send(ctx, cmd)
	}
	var none R
	return none, unhandled[C]("command")
}

// Ask carries q through logging and validation to its handler. Nothing is claimed, replayed or recorded
// (rule pipe-10). A query without a handler is an [*UnhandledError].
func Ask[Q Query[R], R any](ctx context.Context, b *Bus, q Q) (R, error) {
	if w, ok := way[Q, R](b); ok {
		return w.send(ctx, q)
	}
	var none R
	return none, unhandled[Q]("query")
}

// Check answers whether cmd would be let through to its claim: logging, guards and validation run, and then it stops.
// It needs no key, and nothing is claimed, replayed or recorded (rule pipe-11); nil does not promise that a later
// [Send] succeeds, because the handler has not been asked. Guards see [Invocation].Check and may decide by it.
func Check[C Command[R], R any](ctx context.Context, b *Bus, cmd C) error {
	if w, ok := way[C, R](b); ok {
		_, err := w.check(ctx, cmd)
		return err
	}
	return unhandled[C]("command")
}

// Bind looks the way of the command C up once and gives it as a plain function, for edges and hot loops: the
// function does what [Send] does, without the look-up. A command without a handler is an [*UnhandledError] here,
// at start-up, and not at the first request.
func Bind[C Command[R], R any](b *Bus) (Handler[C, R], error) {
	w, ok := way[C, R](b)
	if !ok {
		return nil, unhandled[C]("command")
	}
	return w.send, nil
}

// BindQuery is [Bind] for queries.
func BindQuery[Q Query[R], R any](b *Bus) (Handler[Q, R], error) {
	w, ok := way[Q, R](b)
	if !ok {
		return nil, unhandled[Q]("query")
	}
	return w.send, nil
}
