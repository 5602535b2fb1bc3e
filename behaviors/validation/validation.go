package validation

import (
	"context"
	"errors"
	"reflect"

	"github.com/go-playground/validator/v10"

	"github.com/tekil-go/tekil/bus"
)

// ErrTagName is returned by [New] for an instance of validator whose SetTagName chose another tag than `validate`. The
// build checks read the tags themselves, and they would look at one tag while validator obeys the other.
var ErrTagName = errors.New("validation: Config.Validate does not obey the struct tag `validate`; leave its tag name as it is")

// Config says how commands are validated. The zero Config is the one to start with.
type Config struct {
	// Validate is the instance of validator that holds rules of your own. Register them before the pipeline is built and
	// none afterwards: a rule that is not there at build is an error, and registering is not safe for concurrent use.
	// At build each rule is tried on a zero command and on a sample, without a request's context; one that panics is refused.
	// The instance is used as it is and never changed. Its tag name function makes no difference, because the paths in
	// errors come from the JSON tags. A command without any tag is shown to it too, since rules can be registered for
	// a type; of those the build checks see nothing but panics.
	// A rule of your own needs a name of its own: under the name of a built-in one it is held to that one's types.
	// Defaults to validator.New(validator.WithRequiredStructEnabled()).
	Validate *validator.Validate
}

// Validator holds the rules that all commands of a bus are validated with. It is safe for concurrent use. The nil and the
// zero Validator validate with the defaults of [Config], but each [Stage] then makes an instance for itself, so give all
// commands one that [New] has made.
type Validator struct {
	rules   *validator.Validate // validates
	builtin *validator.Validate // tells built-in rules from registered ones
	own     bool                // rules is the application's
	private bool                // rules looks at unexported fields
	structs bool                // rules looks at required on a struct
}

// New makes a Validator. The only error is [ErrTagName].
func New(cfg Config) (*Validator, error) {
	if cfg.Validate == nil {
		return defaults(), nil
	}
	v := &Validator{rules: cfg.Validate, builtin: validator.New(), own: true}
	type text struct {
		Text string `validate:"required"`
	}
	if v.rules.Struct(text{}) == nil {
		return nil, ErrTagName
	}
	v.private = v.rules.Struct(struct {
		text string `validate:"required"`
	}{text: ""}) != nil
	v.structs = v.rules.Struct(struct {
		Inner struct{ Text string } `validate:"required"`
	}{}) != nil
	return v, nil
}

func defaults() *Validator {
	return &Validator{rules: validator.New(validator.WithRequiredStructEnabled()), builtin: validator.New(), structs: true}
}

type normalizer[C any] interface{ Normalize() C }

type checker interface{ Validate() error }

type contextChecker interface{ Validate(context.Context) error }

// Stage puts the validation of the command C before next (rules pipe-2, pipe-3); the permit guards stand behind it, as
// [bus.Validate] says. It is called once for each command, when the pipeline is built, and it reports everything that is
// wrong with C's declaration, joined, each as a [*TypeError].
//
// The stage's errors are [*Error] for a command that is not valid and [*PanicError] for a validator that panics. Where
// the command's Validate gives up because ctx has ended, the caller gets ctx.Err(): there is no verdict. The stage costs
// nothing for a command that has neither tags nor Normalize nor Validate, and otherwise one allocation beside those of
// validator and the command's own methods.
func Stage[C, R any](v *Validator, next bus.Claimed[C, R], inv bus.Invocation, permit []bus.Guard) (bus.Validated[C, R], error) {
	validate, err := compile[C](v, inv.Name)
	if err != nil {
		return bus.Validated[C, R]{}, err
	}
	return bus.Validate(next, inv, permit, validate), nil
}

// compile makes the function that validates commands of the type C, nil where there is nothing to do.
func compile[C any](v *Validator, name string) (func(context.Context, C) (C, error), error) {
	if v == nil || v.rules == nil {
		v = defaults()
	}
	typ := reflect.TypeFor[C]()
	if err := inspect(v, name, typ); err != nil {
		return nil, err
	}
	// The method set of *C holds C's methods too, and asking the pointer saves boxing the command for each call.
	var c any = (*C)(nil)
	_, normalizes := c.(normalizer[C])
	_, checks := c.(checker)
	_, checksContext := c.(contextChecker)
	tagged := v.own || v.carries(typ)
	if !normalizes && !tagged && !checks && !checksContext {
		return nil, nil
	}
	rules := v.rules
	return func(ctx context.Context, cmd C) (_ C, err error) {
		stage := "normalize"
		defer func() {
			if recover() != nil {
				err = &PanicError{Command: name, Stage: stage, At: panickedAt()}
			}
		}()
		if normalizes {
			cmd = any(&cmd).(normalizer[C]).Normalize()
		}
		if tagged {
			stage = "tags"
			if err := rules.StructCtx(ctx, &cmd); err != nil {
				return cmd, refusedByTags(name, typ, err)
			}
		}
		stage = "validate"
		switch {
		case checks:
			err = any(&cmd).(checker).Validate()
		case checksContext:
			err = any(&cmd).(contextChecker).Validate(ctx)
		}
		return cmd, refusedByCommand(ctx, name, err)
	}, nil
}

// refusedByTags makes our error of validator's, leaving the values behind.
func refusedByTags(name string, typ reflect.Type, err error) error {
	var found validator.ValidationErrors
	if !errors.As(err, &found) {
		return &Error{Command: name, Fields: []FieldError{undisclosed()}}
	}
	e := &Error{Command: name, Omitted: max(0, len(found)-MaxFields)}
	found = found[:len(found)-e.Omitted]
	e.Fields = make([]FieldError, len(found))
	for i, f := range found {
		e.Fields[i] = ofTag(typ, f)
	}
	return e
}

// refusedByCommand makes our error of what the command's own Validate returned.
func refusedByCommand(ctx context.Context, name string, err error) error {
	if isNil(err) {
		return nil
	}
	if ended := ctx.Err(); ended != nil && errors.Is(err, ended) {
		return ended
	}
	fields := collect(nil, err)
	if len(fields) == 0 {
		return nil
	}
	e := &Error{Command: name, Omitted: max(0, len(fields)-MaxFields), cause: &cause{err}}
	e.Fields = fields[:len(fields)-e.Omitted]
	return e
}

// collect appends the field errors in err's tree; anything else in it becomes one entry that says nothing of its text.
func collect(fields []FieldError, err error) []FieldError {
	if isNil(err) {
		return fields
	}
	switch e := err.(type) {
	case FieldError:
		return append(fields, e)
	case *FieldError:
		return append(fields, *e)
	case *Error:
		if len(e.Fields) > 0 {
			return append(fields, e.Fields...)
		}
	case interface{ Unwrap() []error }:
		if children := e.Unwrap(); len(children) > 0 {
			for _, child := range children {
				fields = collect(fields, child)
			}
			return fields
		}
	case interface{ Unwrap() error }:
		if more := collect(fields, e.Unwrap()); len(more) > len(fields) {
			return more
		}
	}
	for _, f := range fields {
		if f == undisclosed() {
			return fields
		}
	}
	return append(fields, undisclosed())
}

// isNil reports whether err is nil or a typed nil, such as the (*Error)(nil) of a Validate that declares its result with
// var err *Error. Both mean that there is no error.
func isNil(err error) bool {
	if err == nil {
		return true
	}
	switch v := reflect.ValueOf(err); v.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map, reflect.Func, reflect.Chan:
		return v.IsNil()
	}
	return false
}
