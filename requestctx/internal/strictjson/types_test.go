package strictjson_test

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tekil-go/tekil/requestctx/internal/strictjson"
)

type (
	ring *ring
	// Exported embedded types, and how they hide each other.
	Left struct {
		Both    string `json:"both"`
		OneTag  string `json:"one"`
		OnlyL   string `json:"only_l"`
		TagR    string
		TagL    string `json:"TagL"`
		Shallow string `json:"shallow"`
		Deep
	}
	Right struct {
		Both string `json:"both"`
		One  string
		ONE  string `json:"ONE"`
		R    string `json:"TagR"`
		TagL string
		Deep
	}
	Deep struct {
		Shallow string `json:"shallow"`
		Twice   string `json:"twice"`
		Named   string
	}
	hiding struct {
		Left
		*Right
		Named string `json:",omitempty"`
	}
	// Itself embeds itself.
	Itself struct {
		*Itself
		Name string `json:"name"`
	}
	tagged struct {
		Deep `json:"deep"`
		Kind `json:",inline"`
		Word
	}
	Kind struct {
		K string `json:"k"`
	}
	Word string
)

func TestDecode_FindsFieldsAsEncodingJSONDoes(t *testing.T) {
	t.Parallel()
	targets := []struct {
		fresh  func() any
		member []string // each is tried with a string
		known  []string
	}{
		{func() any { return new(hiding) }, []string{"both", "one", "One", "ONE", "only_l", "shallow", "twice", "Named", "named", "Left", "Right", "Deep", "NAMED", "TagL", "TagR", "R"},
			[]string{"one", "One", "ONE", "only_l", "shallow", "Named", "TagL", "TagR"}},
		{func() any { return new(Itself) }, []string{"name", "Itself", "Name"}, []string{"name"}},
		{func() any { return new(tagged) }, []string{"k", "Kind", "Word", "word", "shallow"}, []string{"k", "Word"}},
	}
	for _, target := range targets {
		for _, member := range target.member {
			body := `{"` + member + `":"x"}`
			got := target.fresh()
			err := strictjson.Decode([]byte(body), got)
			known := false
			for _, k := range target.known {
				known = known || k == member
			}
			if known != (err == nil) {
				t.Errorf("%T %s: got the error %v", got, body, err)
			}
			if err != nil {
				continue
			}
			want := target.fresh()
			if err := json.Unmarshal([]byte(body), want); err != nil || reflect.ValueOf(want).Elem().IsZero() {
				t.Errorf("%T %s: encoding/json gives %v, %+v", want, body, err, want)
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%T %s: got %+v, want %+v", got, body, got, want)
			}
		}
	}
}

func TestDecode_NoticesDuplicatesAmongManyFields(t *testing.T) {
	t.Parallel()
	const count = 300
	fields := make([]reflect.StructField, count)
	for i := range fields {
		fields[i] = reflect.StructField{Name: "F" + strings.Repeat("x", i), Type: reflect.TypeFor[int]()}
	}
	wide := reflect.StructOf(fields)
	body := "{"
	for i, f := range fields {
		if i > 0 {
			body += ","
		}
		body += `"` + f.Name + `":1`
	}
	if err := strictjson.Decode([]byte(body+"}"), reflect.New(wide).Interface()); err != nil {
		t.Error(err)
	}
	for _, f := range fields {
		var e *strictjson.Error
		if err := strictjson.Decode([]byte(body+`,"`+f.Name+`":1}`), reflect.New(wide).Interface()); !errors.As(err, &e) || e.Path != f.Name || e.Reason != "appears twice" {
			t.Fatalf("%d letters: %v", len(f.Name), err)
		}
	}
}

func TestDecode_ATargetThatCannotBeIsNoFaultOfTheBody(t *testing.T) {
	t.Parallel()
	var ringed ring
	targets := map[string]any{
		"nil":                nil,
		"no pointer":         order{},
		"a nil pointer":      (*order)(nil),
		"a ring of pointers": &ringed,
		"the option inline on a field": new(struct {
			A Kind `json:"a,inline"`
		}),
		"the option unknown": new(struct {
			A map[string]any `json:",unknown"`
		}),
		"the option case": new(struct {
			A int `json:"a,omitempty,case:ignore"`
		}),
		"the option format": new(struct {
			A time.Time `json:"a,format:RFC3339"`
		}),
		"a quoted option": new(struct {
			//lint:ignore SA5008 the tag is wrong on purpose
			A int `json:"a,'string'"`
		}),
		"a quoted name": new(struct {
			A int `json:"'a'"`
		}),
		"a name with a sign": new(struct {
			A int `json:"€"`
		}),
		"a name that is not UTF-8": new(struct {
			A int "json:\"a\xff\""
		}),
		"the option string and own decoding": new(struct {
			A level `json:"a,string"`
		}),
		"an unexported embedded pointer": new(struct{ *trail }),
		"an unexported embedded name": new(struct {
			trail `json:"trail"`
		}),
		"an unnamed type that decodes": new(struct{ A struct{ time.Time } }),
		"one of them far below":        new(map[string][]*struct{ A [1]struct{ *trail } }),
	}
	for name, target := range targets {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for range 2 {
				err := strictjson.Decode([]byte(`{"a":1}`), target)
				var e *strictjson.Error
				if !errors.Is(err, strictjson.ErrTarget) || errors.As(err, &e) {
					t.Errorf("got %v", err)
				}
			}
			if v := reflect.ValueOf(target); v.Kind() == reflect.Pointer && !v.IsNil() {
				if err := strictjson.Check(v.Type().Elem()); !errors.Is(err, strictjson.ErrTarget) {
					t.Errorf("Check gives %v", err)
				}
			}
		})
	}
	if err := strictjson.Check(reflect.TypeFor[order]()); err != nil {
		t.Error(err)
	}
}

func TestDecode_IsSafeForManyAtOnce(t *testing.T) {
	t.Parallel()
	type own struct { // a type that no other test has made known
		Next  *own  `json:"next"`
		Lines []own `json:"lines"`
		N     int   `json:"n"`
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			var v own
			if err := strictjson.Decode([]byte(`{"next":{"lines":[{"n":1},{"n":2}]},"n":3}`), &v); err != nil || v.Next.Lines[1].N != 2 {
				t.Errorf("got %v, %+v", err, v)
			}
		})
	}
	wg.Wait()
}
