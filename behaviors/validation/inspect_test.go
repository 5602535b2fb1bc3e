package validation_test

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/go-playground/validator/v10"

	"github.com/tekil-go/tekil/behaviors/validation"
	"github.com/tekil-go/tekil/bus"
)

// build builds the stage of a command of any type round a handler that is never called.
func build[C any](v *validation.Validator) error {
	next := bus.Claim(func(context.Context, C) (bus.None, error) { return bus.None{}, nil }, nil)
	_, err := validation.Stage(v, next, bus.Invocation{Name: "test.command"}, nil)
	return err
}

// problems gives the parts of a joined error.
func problems(t *testing.T, err error) []*validation.TypeError {
	t.Helper()
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		t.Fatalf("not a joined error: %v", err)
	}
	var all []*validation.TypeError
	for _, e := range joined.Unwrap() {
		var typed *validation.TypeError
		if !errors.As(e, &typed) {
			t.Fatalf("not a *TypeError: %v", e)
		}
		all = append(all, typed)
	}
	return all
}

type line struct {
	SKU string `json:"sku" validate:"required"`
	Qty int    `json:"qty" validate:"gt=0"`
}

type plainLine struct{ SKU string }

type shape interface{ Area() float64 }

type base struct {
	ID string `json:"id" validate:"required"`
}

type node struct {
	Name     string           `json:"name" validate:"required"`
	Next     *node            `json:"next"`
	Children []node           `json:"children" validate:"dive"`
	ByName   map[string]*node `json:"by_name" validate:"dive"`
}

type money struct{ Minor int64 }

// ValidatorValue makes validator look at the number and not at the struct.
func (m money) ValidatorValue() any { return m.Minor }

type text struct{ s string }

func (t text) String() string { return t.s }

func (text) Check() bool       { return true }
func (text) CheckWith(int) any { return nil }
func (*text) CheckByPtr() error {
	return nil
}

func TestBR53_ListsOfStructsWithRulesNeedDive(t *testing.T) {
	t.Parallel()
	type deep struct {
		Lines []line `validate:"dive"`
	}
	for name, test := range map[string]struct {
		err   error
		field string
	}{
		"slice with another rule": {build[struct {
			Lines []line `validate:"required"`
		}](nil), "Lines"},
		"slice without any rule": {build[struct{ Lines []line }](nil), "Lines"},
		"slice of pointers":      {build[struct{ Lines []*line }](nil), "Lines"},
		"pointer to a slice":     {build[struct{ Lines *[]line }](nil), "Lines"},
		"array":                  {build[struct{ Lines [2]line }](nil), "Lines"},
		"map":                    {build[struct{ Lines map[string]line }](nil), "Lines"},
		"slice of slices":        {build[struct{ Lines [][]line }](nil), "Lines"},
		"slice of slices, one dive": {build[struct {
			Lines [][]line `validate:"dive"`
		}](nil), "Lines[]"},
		"rules further down":     {build[struct{ Orders []deep }](nil), "Orders"},
		"inside a nested struct": {build[struct{ Order struct{ Lines []line } }](nil), "Order.Lines"},
		"behind a pointer":       {build[struct{ Order *struct{ Lines []line } }](nil), "Order.Lines"},
		"inside another list's items": {build[struct {
			O []struct{ Lines []line } `validate:"dive"`
		}](nil), "O[].Lines"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found := problems(t, test.err)
			if len(found) != 1 || found[0].Field != test.field || !strings.Contains(found[0].Reason, "dive") {
				t.Errorf("got %v, want one problem that names %s and dive", test.err, test.field)
			}
		})
	}
}

func TestBR53_WhatNeedsNoDiveIsNotRefused(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{
		"with dive": build[struct {
			L []line `validate:"required,dive"`
		}](nil),
		"map with dive and keys": build[struct {
			L map[string]line `validate:"dive,keys,omitempty,max=8,endkeys,required"`
		}](nil),
		"nested dive": build[struct {
			L [][]line `validate:"dive,dive"`
		}](nil),
		"left out on purpose": build[struct {
			L []line `validate:"-"`
		}](nil),
		"elements without rules": build[struct {
			L []plainLine `validate:"required"`
		}](nil),
		"numbers": build[struct {
			L []int `validate:"max=3"`
		}](nil),
		"pointer to a struct": build[struct{ L *line }](nil),
		"interface": build[struct {
			S shape `validate:"required"`
		}](nil),
		"recursive type": build[node](nil),
		"times": build[struct {
			T []time.Time `validate:"required"`
		}](nil),
		"embedded":         build[struct{ base }](nil),
		"embedded pointer": build[struct{ *base }](nil),
		"structonly keeps it outside": build[struct {
			O struct{ L []line } `validate:"structonly"`
		}](nil),
		"unexported without rules":   build[struct{ lines []line }](nil),
		"generic":                    build[generic[line]](nil),
		"cross-field rules that fit": build[crossed](nil),
		"rules that look at a Valuer": build[struct {
			M money `validate:"gt=0"`
		}](nil),
		"uuid on a Stringer": build[struct {
			T text `validate:"uuid"`
		}](nil),
		"numeric on a number": build[struct {
			N int `validate:"numeric"`
		}](nil),
		"boolean on a bool": build[struct {
			B bool `validate:"boolean"`
		}](nil),
		"alternatives": build[struct {
			C string `validate:"rgb|rgba|oneof=red blue"`
		}](nil),
		"alias": build[struct {
			C string `validate:"iscolor"`
		}](nil),
		"escaped comma": build[struct {
			C string `validate:"excludesall=0x2C0x7C"`
		}](nil),
		"time in the future": build[struct {
			T time.Time `validate:"gt"`
		}](nil),
		"duration": build[struct {
			D time.Duration `validate:"gt=1s"`
		}](nil),
		"validateFn": build[struct {
			T text `validate:"validateFn=Check"`
		}](nil),
		"validateFn by pointer": build[struct {
			T text `validate:"validateFn=CheckByPtr"`
		}](nil),
		"omitempty before a rule": build[struct {
			E string `validate:"omitempty,email"`
		}](nil),
		"nil pointers": build[struct {
			E *string `validate:"omitnil,email"`
		}](nil),
		"fields of no JSON": build[struct{ F func() }](nil),
		"keys of interface": build[struct{ M map[any]int }](nil),
		"unique list": build[struct {
			L []line `validate:"unique=SKU,dive"`
		}](nil),
		"unique against a sibling": build[struct {
			A, B string `validate:"unique=A"`
		}](nil),
		"required on a struct": build[struct {
			L line `validate:"required"`
		}](nil),
		"required on an empty struct": build[struct {
			L struct{} `validate:"required"`
		}](nil),
		"nothing at all": build[struct{}](nil),
		"rule over a map's text values": build[struct {
			M map[string]string `validate:"max=3,dive,max=10"`
		}](nil),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err != nil {
				t.Errorf("refused: %v", err)
			}
		})
	}
}

type generic[T any] struct {
	Item T `json:"item"`
}

type crossed struct {
	Kind    string  `json:"kind" validate:"oneof=card cash"`
	Card    string  `json:"card" validate:"required_if=Kind card"`
	From    int     `json:"from"`
	To      int     `json:"to" validate:"gtfield=From"`
	Again   *int    `json:"again" validate:"omitempty,eqfield=To"`
	Phone   string  `json:"phone" validate:"required_without=Email"`
	Email   string  `json:"email"`
	Country string  `json:"country"`
	Post    string  `json:"post" validate:"omitempty,postcode_iso3166_alpha2_field=Country"`
	Inner   base    `json:"inner"`
	Ref     string  `json:"ref" validate:"omitempty,nefield=Inner.ID"`
	Lines   []line  `json:"lines" validate:"dive"`
	First   string  `json:"first" validate:"omitempty,eqfield=Lines[0].SKU"`
	Any     any     `json:"any"`
	Same    string  `json:"same" validate:"omitempty,eqfield=Any"`
	Done    bool    `json:"done"`
	Why     string  `json:"why" validate:"excluded_if=Done true"`
	Rate    float64 `json:"rate" validate:"required_unless=Done false From 3"`
	Count   uint    `json:"count" validate:"excluded_unless=Rate 1.5 Lines nil"`
	Pair    [2]int  `json:"pair" validate:"skip_unless=Count 0x10 Lines 2"`
	Odd     string  `json:"odd" validate:"required_if=Pair 2 Any x,eqfield=Any.X,nefield=Ext.Name"`
	Ext     struct {
		Name any `json:"name"`
	} `json:"ext"`
}

func TestBR54_RulesThatCannotWorkAreFoundAtBuild(t *testing.T) {
	t.Parallel()
	type embedsPointer struct {
		*base
		Other string `validate:"eqfield=ID"`
	}
	for name, test := range map[string]struct {
		err                error
		field, tag, reason string
	}{
		"mistyped": {build[struct {
			A string `validate:"requird"`
		}](nil), "A", "requird", `did you mean "required"?`},
		"mistyped behind others": {build[struct {
			A string `validate:"omitempty,emial"`
		}](nil), "A", "emial", `did you mean "email"?`},
		"unregistered": {build[struct {
			A string `validate:"skuformat"`
		}](nil), "A", "skuformat", "register it on Config.Validate"},
		"blank": {build[struct {
			A string `validate:"required, email"`
		}](nil), "A", " email", "remove the blank"},
		"double comma": {build[struct {
			A string `validate:"required,,email"`
		}](nil), "A", "", "a comma or a bar too many"},
		"mistyped alternative": {build[struct {
			A string `validate:"rgb|rgbaa"`
		}](nil), "A", "rgbaa", "no such rule"},
		"omitempty as alternative": {build[struct {
			A string `validate:"omitempty|email"`
		}](nil), "A", "omitempty", "can't be an alternative"},
		"dive with parameter": {build[struct {
			A []string `validate:"dive=1"`
		}](nil), "A", "dive=1", "takes no parameter"},
		"in a nested struct": {build[struct {
			O struct {
				A string `validate:"requird"`
			}
		}](nil), "O.A", "requird", "required"},
		"in elements": {build[struct {
			O []*struct {
				A string `validate:"requird"`
			} `validate:"dive"`
		}](nil), "O[].A", "requird", "required"},
		"behind dive": {build[struct {
			O []string `validate:"dive,requird"`
		}](nil), "O[]", "requird", "required"},
		"on keys": {build[struct {
			O map[string]int `validate:"dive,keys,requird,endkeys"`
		}](nil), "O[key]", "requird", "required"},
		"url on a number": {build[struct {
			A int `validate:"url"`
		}](nil), "A", "url", "does not fit the type int"},
		"url on a struct": {build[struct {
			A plainLine `validate:"url"`
		}](nil), "A", "url", "does not fit"},
		"url on a pointer": {build[struct {
			A *int `validate:"omitempty,url"`
		}](nil), "A", "url", "does not fit"},
		"email on a number": {build[struct {
			A int `validate:"email"`
		}](nil), "A", "email", "always refuse"},
		"email on a struct": {build[struct {
			A plainLine `validate:"email"`
		}](nil), "A", "email", "always refuse"},
		"email on bytes": {build[struct {
			A []byte `validate:"email"`
		}](nil), "A", "email", "always refuse"},
		"email on a list": {build[struct {
			A []string `validate:"email"`
		}](nil), "A", "email", "always refuse"},
		"uuid on bytes": {build[struct {
			A [16]byte `validate:"uuid"`
		}](nil), "A", "uuid", "always refuse"},
		"gt on a struct": {build[struct {
			A plainLine `validate:"gt=0"`
		}](nil), "A", "gt=0", "does not fit"},
		"gt on a Valuer's text": {build[struct {
			A money `validate:"email"`
		}](nil), "A", "email", "int64"},
		"gt=abc": {build[struct {
			A int `validate:"gt=abc"`
		}](nil), "A", "gt=abc", "can't be read"},
		"gt behind what fails": {build[struct {
			A string `validate:"email,gt=abc"`
		}](nil), "A", "gt=abc", "can't be read"},
		"gt of nothing": {build[struct {
			A int `validate:"gt"`
		}](nil), "A", "gt", "can't be read"},
		"negative on uint": {build[struct {
			A uint `validate:"gt=-1"`
		}](nil), "A", "gt=-1", "can't be read"},
		"time with parameter": {build[struct {
			A time.Time `validate:"gt=2020-01-01"`
		}](nil), "A", "gt=2020-01-01", "compares with now"},
		"eq on a time": {build[struct {
			A time.Time `validate:"eq=1"`
		}](nil), "A", "eq=1", "does not fit"},
		"oneof of nothing": {build[struct {
			A string `validate:"oneof"`
		}](nil), "A", "oneof", "needs a parameter"},
		"oneof on a float": {build[struct {
			A float64 `validate:"oneof=1 2"`
		}](nil), "A", "oneof=1 2", "does not fit"},
		"unique of a wrong field": {build[struct {
			A []line `validate:"unique=Nope,dive"`
		}](nil), "A", "unique=Nope", "Nope"},
		"unique of uncomparable": {build[struct {
			A [][]byte `validate:"unique"`
		}](nil), "A", "unique", "unhashable"},
		"unique of interfaces": {build[struct {
			A []any `validate:"unique"`
		}](nil), "A", "unique", "interfaces"},
		"gt on an interface": {build[struct {
			A any `validate:"gt=0"`
		}](nil), "A", "gt=0", "interface"},
		"dive on an interface": {build[struct {
			A any `validate:"dive"`
		}](nil), "A", "dive", "slice, an array or a map"},
		"dive on a struct": {build[struct {
			A line `validate:"dive"`
		}](nil), "A", "dive", "slice, an array or a map"},
		"dive on a text": {build[struct {
			A string `validate:"required,dive"`
		}](nil), "A", "required,dive", "slice, an array or a map"},
		"keys without dive": {build[struct {
			A map[string]int `validate:"keys,max=3,endkeys"`
		}](nil), "A", "keys,max=3,endkeys", "directly behind dive"},
		"keys on a slice": {build[struct {
			A []int `validate:"dive,keys,max=3,endkeys"`
		}](nil), "A", "dive,keys,max=3,endkeys", "needs a map"},
		"keys without endkeys": {build[struct {
			A map[string]int `validate:"dive,keys,max=3"`
		}](nil), "A", "dive,keys,max=3", "an endkeys"},
		"structonly on a text": {build[struct {
			A string `validate:"structonly"`
		}](nil), "A", "structonly", "for structs"},
		"rules behind structonly": {build[struct {
			A line `validate:"structonly,required"`
		}](nil), "A", "structonly,required", "put it last"},
		"no such sibling": {build[struct {
			A string `validate:"eqfield=Nope"`
		}](nil), "A", "eqfield=Nope", "no field Nope"},
		"sibling by JSON name": {build[struct {
			A string `json:"a"`
			B string `validate:"eqfield=a"`
		}](nil), "B", "eqfield=a", "Go name A"},
		"no sibling": {build[struct {
			A string `validate:"eqfield"`
		}](nil), "A", "eqfield", "needs the name"},
		"sibling of another kind": {build[struct {
			A int
			B int64 `validate:"gtfield=A"`
		}](nil), "B", "gtfield=A", "different kinds"},
		"text against a number": {build[struct {
			A int
			B string `validate:"fieldcontains=A"`
		}](nil), "B", "fieldcontains=A", "compares texts"},
		"sibling in a nil embed": {build[embedsPointer](nil), "Other", "eqfield=ID", "embedded pointer"},
		"nested sibling": {build[struct {
			A base
			B string `validate:"eqfield=A.Nope"`
		}](nil), "B", "eqfield=A.Nope", "no field Nope"},
		"sibling through a text": {build[struct {
			A string
			B string `validate:"eqfield=A.B"`
		}](nil), "B", "eqfield=A.B", "no field B"},
		"index into no list": {build[struct {
			A string
			B string `validate:"eqfield=A[0]"`
		}](nil), "B", "eqfield=A[0]", "leads nowhere"},
		"required_with nobody": {build[struct {
			A string `validate:"required_with"`
		}](nil), "A", "required_with", "needs the name"},
		"required_with unknown": {build[struct {
			A string
			C string `validate:"required_with=A Nope"`
		}](nil), "C", "required_with=A Nope", "no field Nope"},
		"required_if odd": {build[struct {
			A string
			C string `validate:"required_if=A"`
		}](nil), "C", "required_if=A", "pairs"},
		"required_if twice": {build[struct {
			A string
			C string `validate:"required_if=A x A y"`
		}](nil), "C", "required_if=A x A y", "twice"},
		"required_if bad value": {build[struct {
			A int
			C string `validate:"required_if=A x"`
		}](nil), "C", "required_if=A x", `"x" can't be`},
		"required_if bad bool": {build[struct {
			A bool
			C string `validate:"required_if=A yes"`
		}](nil), "C", "required_if=A yes", `"yes" can't be`},
		"required_if unknown": {build[struct {
			A string `validate:"required_if=Nope 1"`
		}](nil), "A", "required_if=Nope 1", "no field Nope"},
		"unique unknown sibling": {build[struct {
			A string `validate:"unique=Nope"`
		}](nil), "A", "unique=Nope", "no field Nope"},
		"validateFn without it": {build[struct {
			A string `validate:"validateFn"`
		}](nil), "A", "validateFn", "no method Validate"},
		"validateFn with param": {build[struct {
			A text `validate:"validateFn=CheckWith"`
		}](nil), "A", "validateFn=CheckWith", "no parameter"},
		"unexported field": {build[struct {
			a string `validate:"required"`
		}](nil), "a", "required", "unexported"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found := problems(t, test.err)
			if len(found) == 0 {
				t.Fatal("not refused")
			}
			first := found[0]
			if len(found) != 1 || first.Field != test.field || !strings.Contains(first.Reason, test.reason) {
				t.Errorf("got %v\nwant field %s and %q", test.err, test.field, test.reason)
			}
			if first.Tag != test.tag {
				t.Errorf("tag %q, want %q", first.Tag, test.tag)
			}
			if !strings.HasPrefix(first.Error(), "validation: test.command (") || bus.CodeOf(test.err) != "VALIDATION_TYPE" {
				t.Errorf("text %q, code %q", first, bus.CodeOf(test.err))
			}
		})
	}
}

func TestBR54_AllProblemsOfATypeAreReportedTogether(t *testing.T) {
	t.Parallel()
	type bad struct {
		A string `validate:"requird"`
		B int    `validate:"url,gt=abc"`
		C []line
		D struct {
			E string `validate:"eqfield=Nope"`
		}
	}
	var fields []string
	for _, p := range problems(t, build[bad](nil)) {
		fields = append(fields, p.Field+" "+p.Tag)
		if p.Type != "validation_test.bad" || p.Command != "test.command" {
			t.Errorf("does not name the type and the command: %v", p)
		}
	}
	if want := []string{"A requird", "B url", "B gt=abc", "C ", "D.E eqfield=Nope"}; !reflect.DeepEqual(fields, want) {
		t.Errorf("got %q, want %q", fields, want)
	}
}

func TestBR54_ACustomRuleMustBeThereBeforeBuild(t *testing.T) {
	t.Parallel()
	type cmd struct {
		SKU string `validate:"sku"`
	}
	rules := validator.New(validator.WithRequiredStructEnabled())
	v, err := validation.New(validation.Config{Validate: rules})
	if err != nil {
		t.Fatal(err)
	}
	if found := problems(t, build[cmd](v)); len(found) != 1 || !strings.Contains(found[0].Reason, "before the pipeline is built") {
		t.Fatalf("got %v", found)
	}
	if err := rules.RegisterValidation("sku", func(validator.FieldLevel) bool { return true }); err != nil {
		t.Fatal(err)
	}
	if err := build[cmd](v); err != nil {
		t.Errorf("refused although it is registered: %v", err)
	}
}

func TestBR54_ACustomRuleThatPanicsIsFoundAtBuild(t *testing.T) {
	t.Parallel()
	type cmd struct {
		SKU string `validate:"sku"`
	}
	rules := validator.New()
	_ = rules.RegisterValidation("sku", func(fl validator.FieldLevel) bool { return fl.Field().String()[0] == 'a' })
	v, err := validation.New(validation.Config{Validate: rules})
	if err != nil {
		t.Fatal(err)
	}
	found := problems(t, build[cmd](v))
	if len(found) != 1 || !strings.Contains(found[0].Reason, "index out of range") || !strings.Contains(found[0].Reason, "must not panic") {
		t.Errorf("got %v, want the panic on the zero value", found)
	}
}

func TestBR55_CommandsThatAreNotStructsAreRefused(t *testing.T) {
	t.Parallel()
	type orderID string
	type items []line
	type byName map[string]line
	type instant time.Time
	for name, err := range map[string]error{
		"slice":                build[[]line](nil),
		"named slice":          build[items](nil),
		"map":                  build[byName](nil),
		"string":               build[orderID](nil),
		"number":               build[int](nil),
		"pointer":              build[*line](nil),
		"interface":            build[shape](nil),
		"any":                  build[any](nil),
		"function":             build[func()](nil),
		"time":                 build[time.Time](nil),
		"type made of a time":  build[instant](nil),
		"pointer to a pointer": build[**line](nil),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found := problems(t, err)
			if len(found) != 1 || !strings.Contains(found[0].Reason, "commands are plain struct values") || found[0].Type == "" {
				t.Errorf("got %v", err)
			}
		})
	}
}

type validatesWrongly struct{ A string }

func (validatesWrongly) Validate() bool { return true }

type validatesConcretely struct{ A string }

func (validatesConcretely) Validate() *validation.Error { return nil }

type normalizesInPlace struct{ A string }

func (*normalizesInPlace) Normalize() {}

type normalizable struct{ A string }

func (n normalizable) Normalize() normalizable { return n }

type promotesNormalize struct {
	normalizable
	B string
}

func TestMethodsThatOnlyLookLikeOursAreRefused(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		err    error
		method string
	}{
		"Validate of a bool":          {build[validatesWrongly](nil), "Validate"},
		"Validate of a concrete type": {build[validatesConcretely](nil), "Validate"},
		"Normalize in place":          {build[normalizesInPlace](nil), "Normalize"},
		"Normalize of an embedded":    {build[promotesNormalize](nil), "Normalize"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found := problems(t, test.err)
			if len(found) != 1 || !strings.Contains(found[0].Reason, "method "+test.method) || !strings.Contains(found[0].Reason, "would not be called") {
				t.Errorf("got %v", test.err)
			}
		})
	}
}

func TestV07_RulesThatAskFilesOrTheNetworkAreRefused(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{
		"file": build[struct {
			A string `validate:"file"`
		}](nil),
		"dir": build[struct {
			A string `validate:"omitempty,dir"`
		}](nil),
		"tcp_addr": build[struct {
			A string `validate:"tcp_addr"`
		}](nil),
		"image": build[struct {
			A []string `validate:"dive,image"`
		}](nil),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if found := problems(t, err); len(found) != 1 || !strings.Contains(found[0].Reason, "pure and cheap") {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestTheApplicationsInstanceIsTakenAsItIs(t *testing.T) {
	t.Parallel()

	t.Run("another tag name is refused", func(t *testing.T) {
		t.Parallel()
		rules := validator.New()
		rules.SetTagName("binding")
		if _, err := validation.New(validation.Config{Validate: rules}); !errors.Is(err, validation.ErrTagName) {
			t.Errorf("got %v", err)
		}
	})

	t.Run("required on a struct needs the option", func(t *testing.T) {
		t.Parallel()
		type cmd struct {
			Line line `validate:"required"`
		}
		v, err := validation.New(validation.Config{Validate: validator.New()})
		if err != nil {
			t.Fatal(err)
		}
		if found := problems(t, build[cmd](v)); len(found) != 1 || !strings.Contains(found[0].Reason, "WithRequiredStructEnabled") {
			t.Errorf("got %v", found)
		}
	})

	t.Run("unexported fields are inspected where it looks at them", func(t *testing.T) {
		t.Parallel()
		type good struct {
			a string `validate:"required"`
		}
		type bad struct {
			a string `validate:"requird"`
		}
		v, err := validation.New(validation.Config{Validate: validator.New(validator.WithPrivateFieldValidation())})
		if err != nil {
			t.Fatal(err)
		}
		if err := build[good](v); err != nil {
			t.Errorf("refused: %v", err)
		}
		if found := problems(t, build[bad](v)); len(found) != 1 || !strings.Contains(found[0].Reason, "no such rule") {
			t.Errorf("got %v", found)
		}
		_, _ = good{a: ""}, bad{a: ""}
	})

	t.Run("an alias of a rule that does not exist is refused", func(t *testing.T) {
		t.Parallel()
		type cmd struct {
			A string `validate:"code"`
		}
		rules := validator.New()
		rules.RegisterAlias("code", "required,nope")
		v, err := validation.New(validation.Config{Validate: rules})
		if err != nil {
			t.Fatal(err)
		}
		if found := problems(t, build[cmd](v)); len(found) != 1 || found[0].Tag != "code" || !strings.Contains(found[0].Reason, "'nope'") {
			t.Errorf("got %v", found)
		}
	})

	t.Run("a custom type is seen as what it becomes", func(t *testing.T) {
		t.Parallel()
		type wrapped struct{ V string }
		type good struct {
			A wrapped `validate:"email"`
		}
		type bad struct {
			A wrapped `validate:"url=1,port"`
		}
		rules := validator.New()
		rules.RegisterCustomTypeFunc(func(v reflect.Value) any { return v.Interface().(wrapped).V }, wrapped{})
		v, err := validation.New(validation.Config{Validate: rules})
		if err != nil {
			t.Fatal(err)
		}
		if err := build[good](v); err != nil {
			t.Errorf("refused: %v", err)
		}
		if found := problems(t, build[bad](v)); len(found) != 1 || found[0].Tag != "port" {
			t.Errorf("got %v", found)
		}
	})
}
