package idempotency_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"reflect"
	"testing"
	"time"
	"unsafe"

	"github.com/google/uuid"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/memstore"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
)

// give is a command whose result is an R.
type give[R any] struct {
	Case string `json:"case"`
}

func (give[R]) CommandName() bus.Name[R] { return "test.give" }
func (give[R]) Idempotent()              {}

func resultProblem[R any](t *testing.T) error {
	t.Helper()
	_, err := stage[give[R]](t, idempotency.Config{Store: memstore.New()})
	return err
}

type (
	tree struct {
		Value int             `json:"value"`
		Next  []*tree         `json:"next"`
		Named map[string]tree `json:"named"`
	}
	halfHidden struct {
		Shown int
		_     int
	}
	hidden struct {
		_ int
	}
	outer struct {
		Inner hidden
	}
	skipped struct {
		ID     int
		Logger func(string) `json:"-"`
	}
	embedsHidden struct{ halfHidden }
	writesOnly   struct{}
	readsToo     struct{ value int }
	textual      struct{ value int }
)

func (writesOnly) MarshalJSON() ([]byte, error)     { return []byte(`1`), nil }
func (readsToo) MarshalJSON() ([]byte, error)       { return []byte(`1`), nil }
func (r *readsToo) UnmarshalJSON(data []byte) error { r.value = len(data); return nil }
func (textual) MarshalText() ([]byte, error)        { return []byte(`t`), nil }
func (x *textual) UnmarshalText(data []byte) error  { x.value = len(data); return nil }

func TestResultTypeThatSurvivesEncodingIsAccepted(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{
		"None":               resultProblem[bus.None](t),
		"string":             resultProblem[string](t),
		"pointer":            resultProblem[*int](t),
		"bytes":              resultProblem[[]byte](t),
		"array":              resultProblem[[3]float32](t),
		"time":               resultProblem[time.Time](t),
		"UUID":               resultProblem[uuid.UUID](t),
		"address":            resultProblem[map[netip.Addr]bool](t),
		"raw JSON":           resultProblem[json.RawMessage](t),
		"numbers as keys":    resultProblem[map[int64]string](t),
		"recursive":          resultProblem[tree](t),
		"partly exported":    resultProblem[halfHidden](t),
		"embedded":           resultProblem[embedsHidden](t),
		"a field left out":   resultProblem[skipped](t),
		"JSON both ways":     resultProblem[readsToo](t),
		"text both ways":     resultProblem[textual](t),
		"text, and as a key": resultProblem[map[textual]textual](t),
		"empty struct":       resultProblem[struct{}](t),
	} {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestResultTypeThatDoesNotSurviveEncodingIsRefused_F23_R14(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		err   error
		words []string
	}{
		{"channel", resultProblem[chan int](t), []string{"chan"}},
		{"function", resultProblem[func()](t), []string{"func"}},
		{"complex", resultProblem[complex128](t), []string{"complex128"}},
		{"unsafe pointer", resultProblem[unsafe.Pointer](t), []string{"unsafe.Pointer"}},
		{"any", resultProblem[any](t), []string{"interface", "concrete type"}},
		{"error", resultProblem[error](t), []string{"interface"}},
		{"any inside", resultProblem[map[string]any](t), []string{"interface"}},
		{"channel inside", resultProblem[struct{ A []*struct{ B chan int } }](t), []string{".A", ".B", "chan"}},
		{"only unexported fields", resultProblem[hidden](t), []string{"only unexported fields"}},
		{"such a struct inside", resultProblem[outer](t), []string{".Inner", "only unexported fields"}},
		{"marshaller without unmarshaller", resultProblem[writesOnly](t), []string{"no unmarshaller"}},
		{"keys that cannot be stored", resultProblem[map[struct{ A int }]int](t), []string{"keys of type"}},
		{"two problems", resultProblem[struct {
			A chan int
			B func()
		}](t), []string{".A", "chan", ".B", "func"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			wantProblem(t, tc.err, tc.words...)
		})
	}
}

// moody is a result whose methods fail as its value says.
type moody struct{ mood string }

func (m moody) MarshalJSON() ([]byte, error) {
	switch m.mood {
	case "refuses":
		return nil, errors.New("I do not want to")
	case "panics":
		panic("marshal")
	case "writes rubbish":
		return []byte(`{`), nil
	}
	return json.Marshal(m.mood)
}

func (m *moody) UnmarshalJSON(data []byte) error {
	if err := json.Unmarshal(data, &m.mood); err != nil {
		return err
	}
	switch m.mood {
	case "cannot be read":
		return errors.New("what does that mean")
	case "panics when read":
		panic("unmarshal")
	}
	return nil
}

func TestR14_ResultIsReadBackBeforeAnythingIsCommitted_BR57(t *testing.T) {
	t.Parallel()
	for _, mood := range []string{"refuses", "panics", "writes rubbish", "cannot be read", "panics when read"} {
		b := newBench()
		runs := 0
		send := serve(t, idempotency.Config{Store: b.stub}, func(ctx context.Context, _ give[moody]) (moody, error) {
			if runs++; runs > 1 {
				mood = "fine"
			}
			return moody{mood}, b.mem.Insert(ctx, mood)
		})
		v := keyed(t, "key-00000001")
		_, out, err := call(t.Context(), send, v, give[moody]{})
		if e := wantError[*idempotency.ResultError](t, err, out, requestctx.StateFreed); e.Stored || e.Unwrap() == nil {
			t.Errorf("%s: %+v", mood, e)
		}
		if rows, records := b.mem.Rows(), b.mem.Records(); len(rows) != 0 || len(records) != 0 {
			t.Errorf("%s: %v, %v", mood, rows, records)
		}
		if res, _, err := call(t.Context(), send, v, give[moody]{}); err != nil || res.mood != "fine" {
			t.Errorf("the key is not free: %+v, %v", res, err)
		}
	}
}

func TestR15_StoredResultThatCannotBeReadIsAnErrorWithoutAReplay(t *testing.T) {
	t.Parallel()
	b := newBench()
	old := serve(t, idempotency.Config{Store: b.stub}, func(_ context.Context, c give[string]) (string, error) { return c.Case, nil })
	deployed := serve(t, idempotency.Config{Store: b.stub}, func(context.Context, give[moody]) (moody, error) {
		t.Error("the handler ran")
		return moody{}, nil
	})
	for i, mood := range []string{"cannot be read", "panics when read"} {
		v := keyed(t, "key-0000000"+string(rune('1'+i)))
		if _, _, err := call(t.Context(), old, v, give[string]{mood}); err != nil {
			t.Fatal(err)
		}
		_, out, err := call(t.Context(), deployed, v, give[moody]{mood})
		if e := wantError[*idempotency.ResultError](t, err, out, requestctx.StateRefused); !e.Stored || e.Code() != "IDEMPOTENCY_RESULT_UNDECODABLE" || out.OriginalRequestID == "" {
			t.Errorf("%s: %+v, %+v", mood, e, out)
		}
	}
	// A refusal that is damaged.
	for _, r := range b.mem.Records() {
		r.Outcome, r.Result = idempotency.Refusal, []byte(`rubbish`)
		b.mem.Put(r.Scope.ID(), r)
	}
	_, out, err := call(t.Context(), old, keyed(t, "key-00000001"), give[string]{"cannot be read"})
	wantError[*idempotency.ResultError](t, err, out, requestctx.StateRefused)
}

func TestFirstCallerGetsWhatEveryReplayGets(t *testing.T) {
	t.Parallel()
	type answer struct {
		At     time.Time
		Lines  []string `json:",omitempty"`
		hidden int
		Left   string `json:"-"`
	}
	b := newBench()
	send := serve(t, idempotency.Config{Store: b.stub}, func(context.Context, give[answer]) (answer, error) {
		return answer{At: time.Now().In(time.FixedZone("", 3*60*60)), Lines: []string{}, hidden: 7, Left: "out"}, nil
	})
	v := keyed(t, "key-00000001")
	first, _, err := call(t.Context(), send, v, give[answer]{})
	if err != nil {
		t.Fatal(err)
	}
	again, out, err := call(t.Context(), send, v, give[answer]{})
	if err != nil || !out.Replayed || !reflect.DeepEqual(first, again) {
		t.Errorf("the first caller got %#v and the second one %#v", first, again)
	}
	if first.Lines != nil || first.hidden != 0 || first.Left != "" {
		t.Errorf("the first caller got what the record does not hold: %#v", first)
	}
}
