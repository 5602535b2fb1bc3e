package bus_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/tekil-go/tekil/bus"
)

type place struct {
	Cart   string
	Amount int
}

type placed struct{ Order string }

func (place) CommandName() bus.Name[placed] { return "checkout.place" }

type cancel struct{ Order string }

func (cancel) CommandName() bus.Name[bus.None] { return "checkout.cancel" }

type find struct{ Order string }

func (find) QueryName() bus.Name[placed] { return "checkout.find" }

// plain is the way of a handler with nothing round it.
func plain[C, R any](h bus.Handler[C, R]) bus.Logged[C, R] {
	return bus.Log(bus.Validate(bus.Claim(h, nil), bus.Invocation{}, nil, nil), bus.Invocation{}, nil, nil)
}

func placeOrder(_ context.Context, c place) (placed, error) {
	return placed{Order: "order-of-" + c.Cart}, nil
}

func newBus(tb testing.TB, entries ...bus.Entry) *bus.Bus {
	tb.Helper()
	b, err := bus.New(entries...)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

func TestSendGivesTheHandlersResult(t *testing.T) {
	t.Parallel()
	b := newBus(t, bus.Serve(plain(placeOrder)))
	got, err := bus.Send(t.Context(), b, place{Cart: "c1"})
	if err != nil || got != (placed{Order: "order-of-c1"}) {
		t.Fatalf("Send = %+v, %v", got, err)
	}
}

func TestSendGivesTheHandlersErrorUnchanged(t *testing.T) {
	t.Parallel()
	refused := errors.New("declined")
	b := newBus(t, bus.Serve(plain(func(context.Context, place) (placed, error) { return placed{Order: "half"}, refused })))
	got, err := bus.Send(t.Context(), b, place{})
	if err != refused { //nolint:errorlint // it must be the same value
		t.Fatalf("err = %v, want the very error of the handler", err)
	}
	if got.Order != "half" {
		t.Fatalf("the handler's result was dropped: %+v", got)
	}
}

func TestACommandWithoutAResultIsHandled(t *testing.T) {
	t.Parallel()
	var cancelled string
	b := newBus(t, bus.Serve(plain(func(_ context.Context, c cancel) (bus.None, error) {
		cancelled = c.Order
		return bus.None{}, nil
	})))
	if _, err := bus.Send(t.Context(), b, cancel{Order: "o1"}); err != nil {
		t.Fatal(err)
	}
	if cancelled != "o1" {
		t.Fatalf("the handler saw %q", cancelled)
	}
}

func TestAskGivesTheAnswer(t *testing.T) {
	t.Parallel()
	b := newBus(t, bus.Answer(plain(func(_ context.Context, q find) (placed, error) { return placed(q), nil })))
	got, err := bus.Ask(t.Context(), b, find{Order: "o1"})
	if err != nil || got.Order != "o1" {
		t.Fatalf("Ask = %+v, %v", got, err)
	}
}

func TestBoundFunctionsDoWhatSendAndAskDo(t *testing.T) {
	t.Parallel()
	b := newBus(t, bus.Serve(plain(placeOrder)),
		bus.Answer(plain(func(_ context.Context, q find) (placed, error) { return placed(q), nil })))
	send, err := bus.Bind[place](b)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := send(t.Context(), place{Cart: "c1"}); err != nil || got.Order != "order-of-c1" {
		t.Errorf("bound command = %+v, %v", got, err)
	}
	ask, err := bus.BindQuery[find](b)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := ask(t.Context(), find{Order: "o1"}); err != nil || got.Order != "o1" {
		t.Errorf("bound query = %+v, %v", got, err)
	}
}

func TestWhatNobodyHandlesIsAnUnhandledError(t *testing.T) {
	t.Parallel()
	other := newBus(t, bus.Serve(plain(func(context.Context, cancel) (bus.None, error) { return bus.None{}, nil })))
	buses := map[string]*bus.Bus{"nil bus": nil, "zero bus": {}, "empty bus": newBus(t), "bus without it": other}
	dispatches := []struct {
		name, kind, goType string
		run                func(context.Context, *bus.Bus) error
	}{
		{"Send", "command", "bus_test.place", func(ctx context.Context, b *bus.Bus) error {
			got, err := bus.Send(ctx, b, place{Cart: "4111111111111111"})
			if got != (placed{}) {
				t.Errorf("an unhandled Send gave %+v", got)
			}
			return err
		}},
		{"Ask", "query", "bus_test.find", func(ctx context.Context, b *bus.Bus) error {
			_, err := bus.Ask(ctx, b, find{Order: "4111111111111111"})
			return err
		}},
		{"Check", "command", "bus_test.place", func(ctx context.Context, b *bus.Bus) error {
			return bus.Check(ctx, b, place{Cart: "4111111111111111"})
		}},
		{"Bind", "command", "bus_test.place", func(_ context.Context, b *bus.Bus) error {
			_, err := bus.Bind[place](b)
			return err
		}},
		{"BindQuery", "query", "bus_test.find", func(_ context.Context, b *bus.Bus) error {
			_, err := bus.BindQuery[find](b)
			return err
		}},
	}
	for name, b := range buses {
		for _, d := range dispatches {
			t.Run(name+"/"+d.name, func(t *testing.T) {
				t.Parallel()
				err := d.run(t.Context(), b)
				var unhandled *bus.UnhandledError
				if !errors.As(err, &unhandled) {
					t.Fatalf("err = %v, want an UnhandledError", err)
				}
				if unhandled.Kind != d.kind || unhandled.Type != d.goType || bus.CodeOf(err) != "UNHANDLED" {
					t.Errorf("err = %+v with code %s", unhandled, bus.CodeOf(err))
				}
				if !strings.Contains(err.Error(), d.goType) || strings.Contains(err.Error(), "4111") {
					t.Errorf("message = %q", err)
				}
			})
		}
	}
}

func TestBR27_APointerToAServedValueIsUnhandledAndNilIsNoPanic(t *testing.T) {
	t.Parallel()
	b := newBus(t, bus.Serve(plain(placeOrder)), bus.Answer(plain(func(_ context.Context, q find) (placed, error) { return placed(q), nil })))
	var unhandled *bus.UnhandledError
	for _, cmd := range []*place{{Cart: "c1"}, nil} {
		if _, err := bus.Send(t.Context(), b, cmd); !errors.As(err, &unhandled) || unhandled.Type != "*bus_test.place" {
			t.Errorf("Send(%p) = %v", cmd, err)
		}
		if err := bus.Check(t.Context(), b, cmd); !errors.As(err, &unhandled) {
			t.Errorf("Check(%p) = %v", cmd, err)
		}
	}
	if _, err := bus.Ask(t.Context(), b, (*find)(nil)); !errors.As(err, &unhandled) || unhandled.Type != "*bus_test.find" {
		t.Errorf("Ask(nil) = %v", err)
	}
	if _, err := bus.Send[bus.Command[placed]](t.Context(), b, place{}); !errors.As(err, &unhandled) {
		t.Errorf("Send of an interface variable = %v", err)
	}
	if _, err := bus.Send[bus.Command[placed]](t.Context(), b, nil); !errors.As(err, &unhandled) {
		t.Errorf("Send of a nil interface = %v", err)
	}
}

// An alias is the type itself.
type placeAlias = place

func TestBR27_AnAliasIsServedLikeItsType(t *testing.T) {
	t.Parallel()
	b := newBus(t, bus.Serve(plain(placeOrder)))
	if _, err := bus.Send(t.Context(), b, placeAlias{Cart: "c1"}); err != nil {
		t.Fatal(err)
	}
}

type generic[T any] struct{ V T }

func (generic[T]) CommandName() bus.Name[T] {
	var zero T
	switch any(zero).(type) {
	case int:
		return "generic.int"
	default:
		return "generic.string"
	}
}

func TestBR27_GenericCommandsAreServedPerInstance(t *testing.T) {
	t.Parallel()
	b := newBus(t,
		bus.Serve(plain(func(_ context.Context, c generic[int]) (int, error) { return c.V + 1, nil })),
		bus.Serve(plain(func(_ context.Context, c generic[string]) (string, error) { return c.V + "!", nil })))
	n, err := bus.Send(t.Context(), b, generic[int]{1})
	if err != nil || n != 2 {
		t.Errorf("generic[int] = %d, %v", n, err)
	}
	s, err := bus.Send(t.Context(), b, generic[string]{"a"})
	if err != nil || s != "a!" {
		t.Errorf("generic[string] = %q, %v", s, err)
	}
}

// The types below are served wrongly, each in its own way.
type (
	promotes       struct{ place }
	sameName       struct{}
	nameless       struct{}
	onPointer      struct{}
	embedsPointer  struct{ *place }
	embedsAnything struct{ bus.Command[placed] }
	queryOnPointer struct{}
	both           struct{}
)

func (sameName) CommandName() bus.Name[placed]      { return "checkout.place" }
func (nameless) CommandName() bus.Name[placed]      { return "" }
func (*onPointer) CommandName() bus.Name[placed]    { return "pointer.place" }
func (*queryOnPointer) QueryName() bus.Name[placed] { return "pointer.find" }
func (both) CommandName() bus.Name[placed]          { return "both.command" }
func (both) QueryName() bus.Name[placed]            { return "both.query" }

func ok[C any](context.Context, C) (placed, error) { return placed{}, nil }
func serve[C bus.Command[placed]]() bus.Entry      { return bus.Serve(plain(ok[C])) }
func answer[Q bus.Query[placed]]() bus.Entry       { return bus.Answer(plain(ok[Q])) }
func zeroWay[C bus.Command[placed]]() bus.Entry    { return bus.Serve(bus.Logged[C, placed]{}) }

func TestNewRefusesWhatCannotBeServed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		entries []bus.Entry
		want    []string
	}{
		{"one type twice", []bus.Entry{serve[place](), serve[place]()},
			[]string{"bus: checkout.place: two handlers for bus_test.place; a command has one"}},
		{"one name for two types", []bus.Entry{serve[place](), serve[sameName]()},
			[]string{"bus: checkout.place: the types bus_test.place and bus_test.sameName share this name; give each its own"}},
		{"a name promoted by embedding", []bus.Entry{serve[place](), serve[promotes]()},
			[]string{"bus_test.place and bus_test.promotes", "embedding a command promotes its name"}},
		{"a command and a query under one name", []bus.Entry{serve[place](), answer[sameQuery]()},
			[]string{"bus_test.place and bus_test.sameQuery"}},
		{"one type as command and as query", []bus.Entry{serve[both](), answer[both]()},
			[]string{"two handlers for bus_test.both"}},
		{"the zero Logged", []bus.Entry{zeroWay[place]()},
			[]string{"bus: checkout.place (bus_test.place): its way is the zero Logged: build it with bus.Log"}},
		{"a nil handler", []bus.Entry{bus.Serve(plain[place, placed](nil))}, []string{"bus_test.place", "zero Logged"}},
		{"the zero Entry", []bus.Entry{{}}, []string{"bus: it is the zero Entry: make entries with bus.Serve or bus.Answer"}},
		{"no name", []bus.Entry{serve[nameless]()}, []string{"bus: bus_test.nameless: its zero value gives no name"}},
		{"BR-27: a pointer", []bus.Entry{serve[*onPointer]()}, []string{"bus: *bus_test.onPointer: it must be a value: serve the struct type"}},
		{"BR-27: a pointer to a value command", []bus.Entry{serve[*place]()}, []string{"bus: *bus_test.place: it must be a value"}},
		{"a pointer query", []bus.Entry{answer[*queryOnPointer](), answer[*find]()},
			[]string{"bus: *bus_test.queryOnPointer: it must be a value", "bus: *bus_test.find: it must be a value"}},
		{"an interface", []bus.Entry{serve[bus.Command[placed]]()}, []string{"it must be a value"}},
		{"a name behind an embedded pointer", []bus.Entry{serve[embedsPointer]()},
			[]string{"bus: bus_test.embedsPointer: its zero value gives no name"}},
		{"a name behind an embedded interface", []bus.Entry{serve[embedsAnything]()},
			[]string{"bus: bus_test.embedsAnything: its zero value gives no name"}},
		{"everything at once", []bus.Entry{{}, serve[place](), serve[place](), serve[sameName](), serve[nameless]()},
			[]string{"zero Entry", "two handlers for bus_test.place", "bus_test.sameName", "bus_test.nameless"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b, err := bus.New(c.entries...)
			if err == nil || b != nil {
				t.Fatalf("New = %v, %v; want a refusal", b, err)
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("message does not say %q:\n%v", want, err)
				}
			}
		})
	}
}

type sameQuery struct{}

func (sameQuery) QueryName() bus.Name[placed] { return "checkout.place" }

func TestNewsErrorsCanBeAskedFor(t *testing.T) {
	t.Parallel()
	_, err := bus.New(serve[place](), serve[sameName](), zeroWay[both]())
	var duplicate *bus.DuplicateError
	if !errors.As(err, &duplicate) || *duplicate != (bus.DuplicateError{Name: "checkout.place", First: "bus_test.place", Second: "bus_test.sameName"}) {
		t.Errorf("duplicate = %+v", duplicate)
	}
	var way *bus.WayError
	if !errors.As(err, &way) || way.Name != "both.command" || way.Type != "bus_test.both" {
		t.Errorf("way = %+v", way)
	}
}

func TestEachOfManyCommandsReachesItsOwnHandlerFromManyGoroutines(t *testing.T) {
	t.Parallel()
	var m many
	m.fill()
	b := newBus(t, m.entries...)
	if len(m.calls) != 256 {
		t.Fatalf("%d commands", len(m.calls))
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i, call := range m.calls {
				got, err := call(t.Context(), b)
				if err != nil || got != i {
					t.Errorf("command %d reached the handler of %d, %v", i, got, err)
				}
			}
		})
	}
	wg.Wait()
}

// many is 256 commands, made of four digits to the base four.
type many struct {
	entries []bus.Entry
	calls   []func(context.Context, *bus.Bus) (int, error)
}

type (
	digit                      interface{ value() int }
	d0                         struct{}
	d1                         struct{}
	d2                         struct{}
	d3                         struct{}
	numbered[A, B, C, D digit] struct{}
)

func (d0) value() int { return 0 }
func (d1) value() int { return 1 }
func (d2) value() int { return 2 }
func (d3) value() int { return 3 }

func (numbered[A, B, C, D]) number() int {
	var (
		a A
		b B
		c C
		d D
	)
	return 64*a.value() + 16*b.value() + 4*c.value() + d.value()
}

func (n numbered[A, B, C, D]) CommandName() bus.Name[int] {
	return bus.Name[int]("many." + strconv.Itoa(n.number()))
}

func (m *many) fill()        { many1[d0](m); many1[d1](m); many1[d2](m); many1[d3](m) }
func many1[A digit](m *many) { many2[A, d0](m); many2[A, d1](m); many2[A, d2](m); many2[A, d3](m) }
func many2[A, B digit](m *many) {
	many3[A, B, d0](m)
	many3[A, B, d1](m)
	many3[A, B, d2](m)
	many3[A, B, d3](m)
}
func many3[A, B, C digit](m *many) {
	many4[A, B, C, d0](m)
	many4[A, B, C, d1](m)
	many4[A, B, C, d2](m)
	many4[A, B, C, d3](m)
}

func many4[A, B, C, D digit](m *many) {
	m.entries = append(m.entries, bus.Serve(plain(func(_ context.Context, c numbered[A, B, C, D]) (int, error) { return c.number(), nil })))
	m.calls = append(m.calls, func(ctx context.Context, b *bus.Bus) (int, error) { return bus.Send(ctx, b, numbered[A, B, C, D]{}) })
}
