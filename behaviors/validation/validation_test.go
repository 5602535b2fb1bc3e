package validation_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-playground/validator/v10"

	"github.com/tekil-go/tekil/behaviors/validation"
	"github.com/tekil-go/tekil/bus"
)

// pipeline is a bus of one command whose claim stage notes which commands reach it, and whose observer notes every error.
type pipeline[C bus.Command[R], R any] struct {
	bus *bus.Bus

	mu      sync.Mutex
	claimed []C
	seen    []string
}

func newPipeline[C bus.Command[R], R any](t testing.TB, v *validation.Validator) *pipeline[C, R] {
	t.Helper()
	var cmd C
	inv := bus.Invocation{Name: string(cmd.CommandName())}
	p := &pipeline[C, R]{}
	handler := func(context.Context, C) (r R, err error) { return r, nil }
	claim := func(ctx context.Context, cmd C, next bus.Handler[C, R]) (R, error) {
		p.mu.Lock()
		p.claimed = append(p.claimed, cmd)
		p.mu.Unlock()
		return next(ctx, cmd)
	}
	validated, err := validation.Stage(v, bus.Claim(handler, claim), inv, nil)
	if err != nil {
		t.Fatal(err)
	}
	if p.bus, err = bus.New(bus.Serve(bus.Log(validated, inv, nil, p))); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *pipeline[C, R]) Started(ctx context.Context, _ bus.Invocation) context.Context { return ctx }

func (p *pipeline[C, R]) Ended(_ context.Context, _ bus.Invocation, err error, panicked bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen = append(p.seen, fmt.Sprintf("%s %t", bus.CodeOf(err), panicked))
}

// send sends cmd and gives the fields that were refused.
func (p *pipeline[C, R]) send(t testing.TB, cmd C) []validation.FieldError {
	t.Helper()
	_, err := bus.Send[C, R](t.Context(), p.bus, cmd)
	if err == nil {
		return nil
	}
	var invalid *validation.Error
	if !errors.As(err, &invalid) {
		t.Fatalf("got %v (%T), want a *validation.Error", err, err)
	}
	return invalid.Fields
}

func paths(fields []validation.FieldError) []string {
	var all []string
	for _, f := range fields {
		all = append(all, f.Path+" "+f.Rule)
	}
	return all
}

type place struct {
	CartID   string          `json:"cart_id" validate:"required"`
	Amount   int64           `json:"amount" validate:"gt=0"`
	Currency string          `json:"currency" validate:"oneof=TRY USD"`
	Lines    []line          `json:"lines,omitempty" validate:"dive"`
	Meta     map[string]meta `json:"meta" validate:"dive"`
	Ship     *address        `json:"ship"`
	Bill     any             `json:"bill"`
	base
}

type meta struct {
	Value string `json:"value" validate:"max=3"`
	Lines []line `json:"lines" validate:"dive"`
}

type address struct {
	City string `json:"city" validate:"required"`
	Zip  string `validate:"required_with=City"`
}

func (place) CommandName() bus.Name[bus.None] { return "checkout.place" }

func valid() place { return place{CartID: "c1", Amount: 1, Currency: "TRY", base: base{ID: "1"}} }

func TestV02_AnInvalidCommandDoesNotReachItsClaim(t *testing.T) {
	t.Parallel()
	p := newPipeline[place](t, nil)
	cmd := valid()
	cmd.Amount, cmd.Currency = 0, "EUR"
	got := p.send(t, cmd)
	want := []validation.FieldError{
		{Path: "amount", Rule: "gt", Param: "0", Message: "must be greater than 0"},
		{Path: "currency", Rule: "oneof", Param: "TRY USD", Message: "must be one of TRY USD"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if len(p.claimed) != 0 {
		t.Errorf("%d claims", len(p.claimed))
	}
}

func TestBR01_V03_ACorrectedCommandRuns(t *testing.T) {
	t.Parallel()
	p := newPipeline[place](t, nil)
	cmd := valid()
	cmd.Amount = -5
	if got := paths(p.send(t, cmd)); !slices.Equal(got, []string{"amount gt"}) {
		t.Fatalf("got %q", got)
	}
	cmd.Amount = 50
	if got := p.send(t, cmd); got != nil {
		t.Fatalf("the corrected command was refused: %v", got)
	}
	if len(p.claimed) != 1 || p.claimed[0].Amount != 50 {
		t.Errorf("claimed %+v, want the corrected command alone", p.claimed)
	}
}

func TestV04_TwiceInvalidInDifferentWaysAndThenValidRuns(t *testing.T) {
	t.Parallel()
	p := newPipeline[place](t, nil)
	cmd := valid()
	cmd.Amount = 0
	p.send(t, cmd)
	cmd.Amount, cmd.CartID = 1, ""
	p.send(t, cmd)
	p.send(t, valid())
	if len(p.claimed) != 1 {
		t.Errorf("%d claims, want 1", len(p.claimed))
	}
}

func TestBR01_InvalidAndValidAtTheSameMoment(t *testing.T) {
	t.Parallel()
	p := newPipeline[place](t, nil)
	invalid := valid()
	invalid.Amount = -5
	for range 200 {
		var both sync.WaitGroup
		both.Go(func() {
			if got := p.send(t, invalid); len(got) != 1 {
				t.Errorf("the invalid one got %v", got)
			}
		})
		both.Go(func() {
			if got := p.send(t, valid()); got != nil {
				t.Errorf("the valid one got %v", got)
			}
		})
		both.Wait()
	}
	if len(p.claimed) != 200 {
		t.Errorf("%d claims, want the 200 valid ones", len(p.claimed))
	}
}

func TestV05_V10_ValidationAnswersBeforeTheClaimIsAsked(t *testing.T) {
	t.Parallel()
	p := newPipeline[place](t, nil)
	p.send(t, valid())
	cmd := valid()
	cmd.Amount = 0
	if got := p.send(t, cmd); len(got) != 1 {
		t.Errorf("got %v, want the validation error", got)
	}
	if len(p.claimed) != 1 {
		t.Errorf("the claim was asked %d times, want once for the valid command", len(p.claimed))
	}
}

func TestV11_EveryRefusedAttemptIsSeen(t *testing.T) {
	t.Parallel()
	p := newPipeline[place](t, nil)
	cmd := valid()
	cmd.Amount = 0
	p.send(t, cmd)
	p.send(t, cmd)
	p.send(t, valid())
	if want := []string{"VALIDATION_FAILED false", "VALIDATION_FAILED false", " false"}; !slices.Equal(p.seen, want) {
		t.Errorf("seen %q, want %q", p.seen, want)
	}
}

func TestBR53_PathsAreInJSONNames(t *testing.T) {
	t.Parallel()
	p := newPipeline[place](t, nil)
	for name, test := range map[string]struct {
		spoil func(*place)
		want  []string
	}{
		"element":                     {func(c *place) { c.Lines = []line{{"a", 1}, {"", 0}} }, []string{"lines[1].sku required", "lines[1].qty gt"}},
		"embedded":                    {func(c *place) { c.ID = "" }, []string{"id required"}},
		"pointer":                     {func(c *place) { c.Ship = &address{} }, []string{"ship.city required"}},
		"nil pointer":                 {func(c *place) { c.Ship = nil }, nil},
		"no JSON name":                {func(c *place) { c.Ship = &address{City: "x"} }, []string{"ship.Zip required_with"}},
		"map":                         {func(c *place) { c.Meta = map[string]meta{"k": {Value: "long"}} }, []string{"meta[*].value max"}},
		"list in a map":               {func(c *place) { c.Meta = map[string]meta{"k": {Lines: []line{{"", 1}}}} }, []string{"meta[*].lines[*].sku required"}},
		"key that looks like a path":  {func(c *place) { c.Meta = map[string]meta{"a].lines[4111": {Value: "long"}} }, []string{"meta[*].lines[*] max"}},
		"key with dots and brackets":  {func(c *place) { c.Meta = map[string]meta{"]].[x].": {Value: "long"}} }, []string{"meta[*].value max"}},
		"struct behind an interface":  {func(c *place) { c.Bill = address{} }, []string{"bill required"}},
		"pointer behind an interface": {func(c *place) { c.Bill = &address{City: "x"} }, []string{"bill required_with"}},
		"text behind an interface":    {func(c *place) { c.Bill = "text" }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := valid()
			test.spoil(&cmd)
			if got := paths(p.send(t, cmd)); !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

type secretive struct {
	Card     string            `json:"card" validate:"credit_card"`
	Password string            `json:"password" validate:"max=3"`
	Kind     string            `json:"kind" validate:"oneof=a b|email"`
	Pin      int64             `json:"pin" validate:"lt=10"`
	Codes    []string          `json:"codes" validate:"unique,dive,len=1"`
	Meta     map[string]string `json:"meta" validate:"dive,keys,max=1,endkeys,max=1"`
	ByNumber map[int64]line    `json:"by_number" validate:"dive"`
	Nested   []struct {
		Card  string  `json:"card" validate:"alpha"`
		Again *string `json:"again" validate:"eqfield=Card"`
	} `json:"nested" validate:"dive"`
}

func (secretive) CommandName() bus.Name[bus.None] { return "test.secretive" }

const (
	card     = "4111111111111112"
	password = "correct horse battery"
)

// texts is every way in which an error may find its way into a log.
func texts(t testing.TB, err error) string {
	t.Helper()
	marshalled, jsonErr := json.Marshal(err)
	if jsonErr != nil {
		t.Fatal(jsonErr)
	}
	all := []string{string(marshalled), err.Error()}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x"} {
		all = append(all, fmt.Sprintf(verb, err))
		if e, ok := err.(*validation.Error); ok {
			all = append(all, fmt.Sprintf(verb, *e))
			for _, f := range e.Fields {
				all = append(all, fmt.Sprintf(verb, f))
			}
		}
	}
	return strings.Join(all, "\n")
}

func TestBR56_RefusedValuesAreInNoErrorText(t *testing.T) {
	t.Parallel()
	p := newPipeline[secretive](t, nil)
	secret := password
	cmd := secretive{
		Card: card, Password: password, Kind: card, Pin: 4111111111111112, Codes: []string{card, card},
		Meta:     map[string]string{card: password, password + "].x[" + card: card},
		ByNumber: map[int64]line{4111111111111112: {}},
	}
	cmd.Nested = append(cmd.Nested, struct {
		Card  string  `json:"card" validate:"alpha"`
		Again *string `json:"again" validate:"eqfield=Card"`
	}{card, &secret})
	_, err := bus.Send(t.Context(), p.bus, cmd)
	if got := p.send(t, cmd); len(got) != 13 {
		t.Fatalf("%d fields refused: %q", len(got), paths(got))
	}
	for _, s := range []string{card, password, "4111", "horse", fmt.Sprintf("%x", card), fmt.Sprintf("%x", int64(4111111111111112))} {
		if strings.Contains(texts(t, err), s) {
			t.Errorf("%q is in an error text:\n%s", s, texts(t, err))
		}
	}
	if !strings.Contains(err.Error(), "test.secretive") || !strings.Contains(err.Error(), "nested[0].again (eqfield)") {
		t.Errorf("the text does not name the command and the paths: %v", err)
	}
}

// own is a command whose Validate returns what the test wants.
type own struct {
	A     string `json:"a" validate:"required"`
	check func(context.Context) error
}

func (own) CommandName() bus.Name[bus.None] { return "test.own" }

func (o own) Validate(ctx context.Context) error { return o.check(ctx) }

type byPointer struct{ A string }

func (byPointer) CommandName() bus.Name[bus.None] { return "test.by_pointer" }

func (b *byPointer) Validate() error {
	if b.A == "" {
		return validation.Field("a", "present", "has to be there")
	}
	return nil
}

type leaks string

func (l leaks) Error() string { return string(l) }

type multi []error

func (multi) Error() string     { return card }
func (m multi) Unwrap() []error { return m }

func TestTheCommandsOwnValidateIsAsked(t *testing.T) {
	t.Parallel()
	p := newPipeline[own](t, nil)
	general := validation.FieldError{Rule: "validate", Message: "is not valid"}
	a := validation.FieldError{Path: "a", Rule: "r", Message: "must be nice"}
	b := validation.FieldError{Path: "b", Rule: "r", Message: "must be nicer"}
	for name, test := range map[string]struct {
		err  error
		want []validation.FieldError
	}{
		"no error":              {nil, nil},
		"BR55 typed nil error":  {(*validation.Error)(nil), nil},
		"BR55 typed nil slice":  {validator.ValidationErrors(nil), nil},
		"typed nils joined":     {errors.Join((*validation.Error)(nil), (*validation.FieldError)(nil)), nil},
		"a field":               {validation.Field("a", "r", "must be nice"), []validation.FieldError{a}},
		"a field by value":      {a, []validation.FieldError{a}},
		"a field by pointer":    {&a, []validation.FieldError{a}},
		"fields joined":         {errors.Join(a, nil, b), []validation.FieldError{a, b}},
		"joins of joins":        {errors.Join(errors.Join(a), fmt.Errorf("more: %w", errors.Join(b))), []validation.FieldError{a, b}},
		"an Error":              {&validation.Error{Command: "other", Fields: []validation.FieldError{a, b}}, []validation.FieldError{a, b}},
		"a wrapped field":       {fmt.Errorf("lines: %w", a), []validation.FieldError{a}},
		"any error":             {errors.New(card), []validation.FieldError{general}},
		"any errors joined":     {errors.Join(errors.New(card), a, leaks(password)), []validation.FieldError{general, a}},
		"any wrapped error":     {fmt.Errorf("%s: %w", card, fs.ErrNotExist), []validation.FieldError{general}},
		"wrapped typed nil":     {fmt.Errorf("%s: %w", card, (*validation.Error)(nil)), []validation.FieldError{general}},
		"an error of children":  {multi{a}, []validation.FieldError{a}},
		"an error without them": {multi{}, []validation.FieldError{general}},
		"an empty Error":        {&validation.Error{}, []validation.FieldError{general}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := own{A: "x", check: func(context.Context) error { return test.err }}
			if got := p.send(t, cmd); !reflect.DeepEqual(got, test.want) {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
			_, err := bus.Send(t.Context(), p.bus, cmd)
			if err == nil {
				return
			}
			if errors.Is(err, fs.ErrExist) {
				t.Error("the error is what it is not")
			}
			if bus.CodeOf(err) != "VALIDATION_FAILED" || !errors.Is(err, test.err) && reflect.TypeOf(test.err).Comparable() {
				t.Errorf("%v: code %q, and the original is not in it", err, bus.CodeOf(err))
			}
			if all := texts(t, err); strings.Contains(all, card) || strings.Contains(all, password) {
				t.Errorf("the text of Validate's error is in ours:\n%s", all)
			}
		})
	}

	t.Run("by a pointer receiver", func(t *testing.T) {
		t.Parallel()
		p := newPipeline[byPointer](t, nil)
		if got := paths(p.send(t, byPointer{})); !slices.Equal(got, []string{"a present"}) {
			t.Errorf("got %q", got)
		}
		if got := p.send(t, byPointer{A: "x"}); got != nil {
			t.Errorf("got %v", got)
		}
	})

	t.Run("only when the tags passed", func(t *testing.T) {
		t.Parallel()
		cmd := own{check: func(context.Context) error { t.Error("asked"); return nil }}
		if got := paths(p.send(t, cmd)); !slices.Equal(got, []string{"a required"}) {
			t.Errorf("got %q", got)
		}
	})

	t.Run("an ended context is no verdict", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		cmd := own{A: "x", check: func(ctx context.Context) error {
			cancel()
			return fmt.Errorf("%s: %w", card, ctx.Err())
		}}
		if _, err := bus.Send(ctx, p.bus, cmd); err != context.Canceled {
			t.Errorf("got %v", err)
		}
		cmd.check = func(context.Context) error { return context.DeadlineExceeded }
		if got := p.send(t, cmd); len(got) != 1 {
			t.Errorf("a made-up deadline gave %v", got)
		}
	})
}

type normalized struct {
	Email string `json:"email" validate:"email"`
	Note  string `json:"note"`
}

func (normalized) CommandName() bus.Name[bus.None] { return "test.normalized" }

func (n normalized) Normalize() normalized {
	n.Email = strings.ToLower(strings.TrimSpace(n.Email))
	return n
}

func (n normalized) Validate() error {
	if n.Email != strings.ToLower(n.Email) {
		return errors.New("not the normalised form")
	}
	return nil
}

func TestTheNormalizedCommandIsValidatedAndHandled(t *testing.T) {
	t.Parallel()
	p := newPipeline[normalized](t, nil)
	if got := p.send(t, normalized{Email: "  Ada@Example.COM ", Note: " x "}); got != nil {
		t.Fatalf("refused: %v", got)
	}
	if want := (normalized{Email: "ada@example.com", Note: " x "}); p.claimed[0] != want {
		t.Errorf("claimed %+v, want %+v", p.claimed[0], want)
	}
	if got := paths(p.send(t, normalized{Email: " x "})); !slices.Equal(got, []string{"email email"}) {
		t.Errorf("got %q", got)
	}
}

type panics struct {
	At     string `json:"at" validate:"explosive"`
	counts map[string]int
}

func (panics) CommandName() bus.Name[bus.None] { return "test.panics" }

func (p panics) Normalize() panics {
	if p.At == "normalize" {
		panic(card)
	}
	return p
}

func (p panics) Validate() error {
	switch p.At {
	case "validate":
		panic(fmt.Errorf("%s", password))
	case "nil map":
		p.counts[card]++
	case "nil":
		panic(nil)
	}
	return nil
}

func TestV08_APanicInAValidatorIsAnErrorWithoutItsValue(t *testing.T) {
	t.Parallel()
	rules := validator.New()
	_ = rules.RegisterValidation("explosive", func(fl validator.FieldLevel) bool {
		if fl.Field().String() == "tags" {
			panic(card)
		}
		return true
	})
	v, err := validation.New(validation.Config{Validate: rules})
	if err != nil {
		t.Fatal(err)
	}
	p := newPipeline[panics](t, v)
	for at, test := range map[string]struct{ stage, where string }{
		"normalize": {"normalize", "validation_test.panics.Normalize (validation_test.go:"},
		"tags":      {"tags", "validation_test.TestV08_APanicInAValidatorIsAnErrorWithoutItsValue.func1 (validation_test.go:"},
		"validate":  {"validate", "validation_test.panics.Validate (validation_test.go:"},
		"nil map":   {"validate", "validation_test.panics.Validate (validation_test.go:"},
		"nil":       {"validate", "validation_test.panics.Validate (validation_test.go:"},
	} {
		_, err := bus.Send(t.Context(), p.bus, panics{At: at})
		var panicked *validation.PanicError
		if !errors.As(err, &panicked) {
			t.Fatalf("%s: got %v", at, err)
		}
		if panicked.Command != "test.panics" || panicked.Stage != test.stage || !strings.HasPrefix(panicked.At, test.where) {
			t.Errorf("%s: got %+v", at, panicked)
		}
		if bus.CodeOf(err) != "VALIDATION_PANIC" {
			t.Errorf("%s: code %q", at, bus.CodeOf(err))
		}
		if all := texts(t, err); strings.Contains(all, card) || strings.Contains(all, password) {
			t.Errorf("%s: the panic's value is in the text:\n%s", at, all)
		}
	}
	if len(p.claimed) != 0 {
		t.Errorf("%d claims", len(p.claimed))
	}
	if got := p.send(t, panics{At: "no"}); got != nil {
		t.Errorf("afterwards a valid command is refused: %v", got)
	}
	if slices.ContainsFunc(p.seen, func(s string) bool { return strings.HasSuffix(s, "true") }) {
		t.Errorf("the observer saw a panic: %q", p.seen)
	}
}

func TestBR54_ManyGoroutinesMayUseATypeForTheFirstTime(t *testing.T) {
	t.Parallel()
	for range 20 {
		v, err := validation.New(validation.Config{})
		if err != nil {
			t.Fatal(err)
		}
		p := newPipeline[place](t, v)
		var all sync.WaitGroup
		var refused atomic.Int32
		for i := range 16 {
			all.Go(func() {
				cmd := valid()
				cmd.Lines = []line{{"a", i}}
				cmd.Meta = map[string]meta{"k": {Value: "v"}}
				cmd.Bill = address{City: "x", Zip: "y"} // behind an interface: read for the first time here
				if p.send(t, cmd) != nil {
					refused.Add(1)
				}
			})
		}
		all.Wait()
		if refused.Load() != 1 {
			t.Errorf("%d refused, want the one with qty 0", refused.Load())
		}
	}
}

type ruled struct{ A, B string }

func (ruled) CommandName() bus.Name[bus.None] { return "test.ruled" }

func TestRulesOfTheApplicationsInstanceHold(t *testing.T) {
	t.Parallel()
	rules := validator.New()
	rules.RegisterTagNameFunc(func(reflect.StructField) string { return "<" + card + ">" })
	rules.RegisterAlias("cents", "gte=1,lte=99")
	rules.RegisterStructValidation(func(sl validator.StructLevel) {
		if c := sl.Current().Interface().(ruled); c.A == c.B {
			sl.ReportError(c.B, "B", "B", "differ", "")
			sl.ReportError(c, "", "", "equal", "")
		}
	}, ruled{})
	v, err := validation.New(validation.Config{Validate: rules})
	if err != nil {
		t.Fatal(err)
	}

	t.Run("on a type without tags", func(t *testing.T) {
		t.Parallel()
		got := newPipeline[ruled](t, v).send(t, ruled{A: "x", B: "x"})
		want := []validation.FieldError{
			{Path: "B", Rule: "differ", Message: `does not satisfy rule "differ"`},
			{Path: "", Rule: "equal", Message: `does not satisfy rule "equal"`},
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, want %+v", got, want)
		}
	})

	t.Run("under an alias, and paths do not use its names", func(t *testing.T) {
		t.Parallel()
		got := newPipeline[aliased](t, v).send(t, aliased{Coins: 100})
		want := []validation.FieldError{{Path: "coins", Rule: "cents", Message: "must be at most 99"}}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, want %+v", got, want)
		}
	})
}

type aliased struct {
	Coins int `json:"coins" validate:"cents"`
}

func (aliased) CommandName() bus.Name[bus.None] { return "test.aliased" }

func TestAnErrorListsAHundredFieldsAndCountsTheRest(t *testing.T) {
	t.Parallel()
	p := newPipeline[place](t, nil)
	cmd := valid()
	cmd.Lines = make([]line, 100)
	_, err := bus.Send(t.Context(), p.bus, cmd)
	var invalid *validation.Error
	if !errors.As(err, &invalid) || len(invalid.Fields) != validation.MaxFields || invalid.Omitted != 100 {
		t.Fatalf("got %d fields and %d omitted", len(invalid.Fields), invalid.Omitted)
	}
	if !strings.HasSuffix(err.Error(), "lines[49].qty (gt) and 100 more") {
		t.Errorf("got %v", err)
	}
}

func TestAClaimedWithoutAHandlerStaysEmpty(t *testing.T) {
	t.Parallel()
	validated, err := validation.Stage(nil, bus.Claimed[place, bus.None]{}, bus.Invocation{Name: "checkout.place"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bus.New(bus.Serve(bus.Log(validated, bus.Invocation{}, nil, nil))); err == nil {
		t.Error("a way without a handler is served")
	}
}

func TestACheckValidatesToo(t *testing.T) {
	t.Parallel()
	p := newPipeline[place](t, &validation.Validator{})
	cmd := valid()
	if err := bus.Check(t.Context(), p.bus, cmd); err != nil {
		t.Error(err)
	}
	cmd.Amount = 0
	if err := bus.Check(t.Context(), p.bus, cmd); bus.CodeOf(err) != "VALIDATION_FAILED" {
		t.Errorf("got %v", err)
	}
	if len(p.claimed) != 0 {
		t.Errorf("%d claims", len(p.claimed))
	}
}

func FuzzAPathHoldsNothingOfAKey(f *testing.F) {
	for _, key := range []string{
		"", "k", "]", "].", "].lines[4111", "].lines[0].sku", "a].value", "x][y", "].lines].lines[", "].lines.0", "\x00\xff", "a.b",
	} {
		f.Add(key)
	}
	p := newPipeline[place](f, nil)
	known := regexp.MustCompile(`^meta\[\*\](\.(value|lines(\[\*\](\.(sku|qty))?)?))?$`)
	f.Fuzz(func(t *testing.T, key string) {
		cmd := valid()
		cmd.Meta = map[string]meta{key: {Value: "long", Lines: []line{{}}}}
		got := p.send(t, cmd)
		if len(got) != 3 {
			t.Fatalf("got %q", paths(got))
		}
		for _, field := range got {
			if !known.MatchString(field.Path) {
				t.Errorf("key %q gave the path %q", key, field.Path)
			}
		}
	})
}
