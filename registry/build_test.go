package registry_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-playground/validator/v10"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/memstore"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/registry"
)

// serve is a handler of any command or query.
func serve[C, R any](context.Context, C) (res R, err error) { return res, nil }

// Types that Build refuses.
type (
	inner    struct{ A string }                          // a command that others embed
	outer    struct{ inner }                             // takes its name
	outerPtr struct{ *inner }                            // takes its name, and panics when asked
	outerAny struct{ bus.Command[placed] }               // the same through an interface
	deep     struct{ outer }                             // at the second level
	wider    struct{ find }                              // takes the name of a query
	renamed  struct{ inner }                             // has a name of its own, and the other's mark all the same
	samename struct{ B string }                          // has the name of place
	pointed  struct{ A string }                          // is registered as a pointer
	text     string                                      // is not a struct
	list     []string                                    // is not a struct
	anything interface{ CommandName() bus.Name[placed] } // is an interface
	pointer  struct{ A string }                          // has its mark on the pointer
	pointer2 struct{ A string }                          // has its policy on the pointer
	yesno    struct{ A string }                          // has a mark with a result
	stringly struct{ A string }                          // has a policy of another type
	typo     struct{ A string }                          // has a mark with a typing error
	hidden   struct{ _ int }                             // is a result with nothing to store
	opaque   struct{ A any }                             // has no safe fingerprint
	moody    struct{ kind *string }                      // has a name that depends on the value
	marked   struct{ A string }                          // is a query with the mark
	marked2  struct{ A string }                          // is a query with the mark on the pointer
	brief    struct{ A string }                          // forgets too early
	absurd   struct{ A string }                          // has a policy with nothing right in it
	panicky  struct{ policy *idempotency.Policy }        // has a policy that depends on the value
)

// More of them, by their tags.
type (
	mistake struct { // has an unknown rule
		Amount int64 `validate:"requird"`
	}
	misfit struct { // has a rule for another type
		Amount int64 `validate:"url"`
	}
	undived struct { // has rules that would not be looked at
		Lines []line `validate:"required"`
	}
	line struct {
		Qty int64 `json:"qty" validate:"gt=0"`
	}
	secret struct { // needs a secret
		Card string `idempotency:"secret"`
	}
)

// named has the name that N gives.
type named[N interface{ name() string }] struct{ A string }

func (inner) CommandName() bus.Name[placed]           { return "shop.inner" }
func (inner) Idempotent()                             {}
func (renamed) CommandName() bus.Name[placed]         { return "shop.renamed" }
func (samename) CommandName() bus.Name[placed]        { return "shop.place" }
func (*pointed) CommandName() bus.Name[placed]        { return "shop.pointed" }
func (text) CommandName() bus.Name[placed]            { return "shop.text" }
func (list) QueryName() bus.Name[placed]              { return "shop.list" }
func (pointer) CommandName() bus.Name[placed]         { return "shop.pointer" }
func (*pointer) Idempotent()                          {}
func (pointer2) CommandName() bus.Name[placed]        { return "shop.pointer2" }
func (*pointer2) Idempotency() (p idempotency.Policy) { return p }
func (yesno) CommandName() bus.Name[placed]           { return "shop.yesno" }
func (yesno) Idempotent() bool                        { return true }
func (stringly) CommandName() bus.Name[placed]        { return "shop.stringly" }
func (stringly) Idempotency() string                  { return "atomic" }
func (typo) CommandName() bus.Name[placed]            { return "shop.typo" }
func (typo) Idempotant()                              {}
func (mistake) CommandName() bus.Name[placed]         { return "shop.mistake" }
func (misfit) CommandName() bus.Name[placed]          { return "shop.misfit" }
func (undived) CommandName() bus.Name[placed]         { return "shop.undived" }
func (opaque) CommandName() bus.Name[placed]          { return "shop.opaque" }
func (opaque) Idempotent()                            {}
func (secret) CommandName() bus.Name[placed]          { return "shop.secret" }
func (secret) Idempotent()                            {}
func (m moody) CommandName() bus.Name[placed]         { return bus.Name[placed]("shop." + *m.kind) }
func (marked) QueryName() bus.Name[placed]            { return "shop.marked" }
func (marked) Idempotent()                            {}
func (marked2) QueryName() bus.Name[placed]           { return "shop.marked2" }
func (*marked2) Idempotency() (p idempotency.Policy)  { return p }
func (brief) CommandName() bus.Name[placed]           { return "shop.brief" }
func (brief) Idempotency() idempotency.Policy         { return idempotency.Policy{Retention: time.Hour} }
func (absurd) CommandName() bus.Name[placed]          { return "shop.absurd" }
func (absurd) Idempotency() idempotency.Policy {
	return idempotency.Policy{Mode: 7, Retention: -time.Hour, AfterExpiry: 7, Wait: time.Minute, Deadline: 2 * time.Hour, Version: 1000, Isolation: 7}
}
func (panicky) CommandName() bus.Name[placed]     { return "shop.panicky" }
func (p panicky) Idempotency() idempotency.Policy { return *p.policy }

// resulting is a marked command whose result is R.
type resulting[R any] struct{ A string }

func (resulting[R]) CommandName() bus.Name[R] { return "shop.resulting" }
func (resulting[R]) Idempotent()              {}

type (
	noName   struct{}
	badName  struct{}
	longName struct{}
)

func (noName) name() string   { return "" }
func (badName) name() string  { return "place order!" }
func (longName) name() string { return strings.Repeat("x", 101) }

func (named[N]) CommandName() bus.Name[placed] {
	var n N
	return bus.Name[placed](n.name())
}

// brokenStore is a store that must not be started with.
type brokenStore struct{ idempotency.Store }

func (brokenStore) Check(context.Context) ([]string, error) {
	return nil, errors.Join(errors.New("store: the schema is of version 1, and this program needs 2"), errors.New("store: fsync is off"))
}

// The messages are designed: each names the place of the registration, the command, what is wrong and what to do. {1} is the
// place that registers first, {2} the second one.
// hurried and lasting have leases out of their bounds.
type hurried struct{ Amount int64 }

func (hurried) CommandName() bus.Name[placed] { return "shop.hurried" }
func (hurried) Idempotency() idempotency.Policy {
	return idempotency.Policy{Mode: idempotency.Leased, Lease: 29 * time.Second}
}

type lasting struct{ Amount int64 }

func (lasting) CommandName() bus.Name[placed] { return "shop.lasting" }
func (lasting) Idempotency() idempotency.Policy {
	return idempotency.Policy{Mode: idempotency.Leased, Lease: time.Hour + time.Second}
}

func TestBuildRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		cfg      func(*registry.Config)
		register func(*registry.Registry) (places []string)
		want     []string
	}{
		"a required command without a handler": {
			register: func(r *registry.Registry) []string {
				registry.Require[inner](r)
				return []string{above(1)}
			},
			want: []string{"{1}: shop.inner: registry_test.inner is required here and has no handler; register one with registry.Handle"},
		},
		"two handlers": {
			register: func(r *registry.Registry) []string {
				registry.Handle(r, serve[note, bus.None])
				one := above(1)
				registry.Handle(r, serve[note, bus.None])
				return []string{one, above(1)}
			},
			want: []string{"{2}: shop.note: registry_test.note has two handlers; the first one is registered at {1}"},
		},
		"T11 a lease out of its bounds": {
			register: func(r *registry.Registry) []string {
				registry.Handle(r, serve[hurried, placed])
				registry.Handle(r, serve[lasting, placed])
				return []string{above(2), above(1)}
			},
			want: []string{
				"{1}: shop.hurried: Lease is 29s; it must be between 30s and 1h0m0s",
				"{2}: shop.lasting: Lease is 1h0m1s; it must be between 30s and 1h0m0s",
			},
		},
		"a reconciler that is missing, and one that would never be asked": {
			register: func(r *registry.Registry) []string {
				registry.Handle(r, serve[remit, placed])
				registry.Handle(r, serve[place, placed], registry.Reconcile(func(context.Context, place) (placed, bool, error) { return placed{}, false, nil }))
				registry.Handle(r, serve[note, bus.None], registry.Reconcile(func(context.Context, note) (bus.None, bool, error) { return bus.None{}, false, nil }))
				return []string{above(3), above(2), above(1)}
			},
			want: []string{
				"{1}: bank.remit: its policy says Takeover Reconcile and no reconciler is registered; add registry.Reconcile to its registration",
				"{2}: shop.place: it has a reconciler and its policy does not say Mode Leased and Takeover Reconcile, so it would never be asked",
				"{3}: shop.note: it has a reconciler and is not marked idempotent",
			},
		},
		"two types under one name": {
			register: func(r *registry.Registry) []string {
				registry.Handle(r, serve[place, placed])
				one := above(1)
				registry.Handle(r, serve[samename, placed])
				return []string{one, above(1)}
			},
			want: []string{"{2}: shop.place: the types registry_test.place (registered at {1}) and registry_test.samename have one name; give each its own"},
		},
		"BR-27 an embedded command": {
			register: func(r *registry.Registry) []string {
				registry.Handle(r, serve[inner, placed])
				registry.Handle(r, serve[outer, placed])
				return []string{above(1)}
			},
			want: []string{"{1}: shop.inner: registry_test.outer embeds registry_test.inner, which is a command or query itself, and so takes over its name and its mark; make it a named field"},
		},
		"BR-27 an embedded command, registered before the inner one": {
			register: func(r *registry.Registry) []string {
				registry.Handle(r, serve[outer, placed])
				one := above(1)
				registry.Handle(r, serve[inner, placed])
				return []string{one}
			},
			want: []string{"{1}: shop.inner: registry_test.outer embeds registry_test.inner, which is a command or query itself, and so takes over its name and its mark; make it a named field"},
		},
		"BR-27 an embedded pointer to a command": {
			register: func(r *registry.Registry) []string {
				registry.Handle(r, serve[outerPtr, placed])
				return []string{above(1)}
			},
			want: []string{"{1}: registry_test.outerPtr: registry_test.outerPtr embeds *registry_test.inner, which is a command or query itself, and so takes over its name and its mark; make it a named field"},
		},
		"BR-27 an embedded interface": {
			register: func(r *registry.Registry) []string {
				registry.Handle(r, serve[outerAny, placed])
				return []string{above(1)}
			},
			want: []string{"{1}: registry_test.outerAny: registry_test.outerAny embeds bus.Command[github.com/tekil-go/tekil/registry_test.placed], which is a command or query itself, and so takes over its name and its mark; make it a named field"},
		},
		"BR-27 a command embedded at the second level": {
			register: func(r *registry.Registry) []string {
				registry.Handle(r, serve[deep, placed])
				return []string{above(1)}
			},
			want: []string{"{1}: shop.inner: registry_test.deep embeds registry_test.outer, which is a command or query itself, and so takes over its name and its mark; make it a named field"},
		},
		"BR-27 an embedded command that lends its mark only": {
			register: func(r *registry.Registry) []string {
				registry.Handle(r, serve[renamed, placed])
				return []string{above(1)}
			},
			want: []string{"{1}: shop.renamed: registry_test.renamed embeds registry_test.inner, which is a command or query itself, and so takes over its name and its mark; make it a named field"},
		},
		"BR-27 an embedded query": {
			register: func(r *registry.Registry) []string {
				registry.HandleQuery(r, serve[wider, placed])
				return []string{above(1)}
			},
			want: []string{"{1}: shop.find: registry_test.wider embeds registry_test.find, which is a command or query itself, and so takes over its name and its mark; make it a named field"},
		},
		"BR-27 a pointer": {
			register: func(r *registry.Registry) []string {
				registry.Handle(r, serve[*place, placed])
				one := above(1)
				registry.Handle(r, serve[*pointed, placed])
				return []string{one, above(1)}
			},
			want: []string{
				"{1}: *registry_test.place: *registry_test.place is of the kind ptr; a command is a plain struct, registered and sent by value",
				"{2}: shop.pointed: *registry_test.pointed is of the kind ptr; a command is a plain struct, registered and sent by value",
			},
		},
		"BR-55 what is not a struct": {
			register: func(r *registry.Registry) []string {
				registry.Handle(r, serve[text, placed])
				one := above(1)
				registry.HandleQuery(r, serve[list, placed])
				two := above(1)
				registry.Handle(r, serve[anything, placed])
				return []string{one, two, above(1)}
			},
			want: []string{
				"{1}: shop.text: registry_test.text is of the kind string; a command is a plain struct, registered and sent by value",
				"{2}: shop.list: registry_test.list is of the kind slice; a query is a plain struct, registered and sent by value",
				"{3}: registry_test.anything: registry_test.anything is of the kind interface; a command is a plain struct, registered and sent by value",
			},
		},
		"BR-27 a mark that only the pointer has": {
			register: func(r *registry.Registry) []string {
				registry.Handle(r, serve[pointer, placed])
				one := above(1)
				registry.Handle(r, serve[pointer2, placed])
				return []string{one, above(1)}
			},
			want: []string{
				"{1}: shop.pointer: its method Idempotent has a pointer receiver, so a command sent by value would not be protected; give it a value receiver",
				"{2}: shop.pointer2: its method Idempotency has a pointer receiver, so a command sent by value would not be protected; give it a value receiver",
			},
		},
		"BR-27 a mark of another signature": {
			register: func(r *registry.Registry) []string {
				registry.Handle(r, serve[yesno, placed])
				one := above(1)
				registry.Handle(r, serve[stringly, placed])
				return []string{one, above(1)}
			},
			want: []string{
				"{1}: shop.yesno: its method Idempotent has another signature than the mark (Idempotent() or Idempotency() idempotency.Policy), so it would not be protected",
				"{2}: shop.stringly: its method Idempotency has another signature than the mark (Idempotent() or Idempotency() idempotency.Policy), so it would not be protected",
			},
		},
		"BR-26 a marked command without a store": {
			cfg: func(cfg *registry.Config) { cfg.Store = nil },
			register: func(r *registry.Registry) []string {
				registry.Handle(r, serve[inner, placed])
				return []string{above(1)}
			},
			want: []string{"{1}: shop.inner: it is marked idempotent and no store is set"},
		},
		"a store that is a nil pointer": {
			cfg: func(cfg *registry.Config) { cfg.Store = (*memstore.Store)(nil) },
			register: func(r *registry.Registry) []string {
				registry.Handle(r, serve[inner, placed])
				return nil
			},
			want: []string{"registry: Config.Store is a nil *memstore.Store"},
		},
		"a store whose check fails": {
			cfg:  func(cfg *registry.Config) { cfg.Store = brokenStore{memstore.New()} },
			want: []string{"store: the schema is of version 1, and this program needs 2", "store: fsync is off"},
		},
		"BR-54 a rule that does not exist": {
			register: func(r *registry.Registry) []string {
				registry.Handle(r, serve[mistake, placed])
				return []string{above(1)}
			},
			want: []string{`{1}: shop.mistake: validation: shop.mistake (registry_test.mistake): field Amount: rule "requird": there is no such rule (did you mean "required"?); correct it, or register it on Config.Validate before the pipeline is built`},
		},
		"BR-54 a rule that does not fit its field": {
			register: func(r *registry.Registry) []string {
				registry.Handle(r, serve[misfit, placed])
				return []string{above(1)}
			},
			want: []string{`{1}: shop.misfit: validation: shop.misfit (registry_test.misfit): field Amount: rule "url": it does not fit the type int64, or its parameter can't be read (Bad field type int64); choose another rule, parameter or type`},
		},
		"BR-53 a list of structs without dive": {
			register: func(r *registry.Registry) []string {
				registry.Handle(r, serve[undived, placed])
				return []string{above(1)}
			},
			want: []string{"{1}: shop.undived: validation: shop.undived (registry_test.undived): field Lines: rule \"required\": the elements of its []registry_test.line have rules, and validator does not look at them without dive; add it, as in `validate:\"max=100,dive\"`, or write `validate:\"-\"` to leave them out on purpose"},
		},
		"a result that is a channel": {
			register: func(r *registry.Registry) []string {
				registry.Handle(r, serve[resulting[chan int], chan int])
				return []string{above(1)}
			},
			want: []string{"{1}: shop.resulting: the result chan int is a chan, which cannot be stored"},
		},
		"a result that is a function": {
			register: func(r *registry.Registry) []string {
				registry.Handle(r, serve[resulting[struct{ F func() }], struct{ F func() }])
				return []string{above(1)}
			},
			want: []string{"{1}: shop.resulting: the result struct { F func() }.F is a func, which cannot be stored"},
		},
		"a result that is an interface": {
			register: func(r *registry.Registry) []string {
				registry.Handle(r, serve[resulting[[]fmt.Stringer], []fmt.Stringer])
				return []string{above(1)}
			},
			want: []string{"{1}: shop.resulting: the result []fmt.Stringer is an interface, whose concrete type is lost when it is stored; use a concrete type"},
		},
		"a result with unexported fields only": {
			register: func(r *registry.Registry) []string {
				registry.Handle(r, serve[resulting[hidden], hidden])
				return []string{above(1)}
			},
			want: []string{"{1}: shop.resulting: the result registry_test.hidden has only unexported fields and no marshaller, so it would be stored empty"},
		},
		"a payload without a safe fingerprint": {
			register: func(r *registry.Registry) []string {
				registry.Handle(r, serve[opaque, placed])
				return []string{above(1)}
			},
			want: []string{"{1}: shop.opaque: idempotency: registry_test.opaque: no fingerprint at A: the type interface {} has no canonical form; an interface can hold anything, so use a concrete type, or json.RawMessage for JSON of any form, or leave the field out with the tag idempotency:\"-\""},
		},
		"pipe-10 a query with the mark": {
			register: func(r *registry.Registry) []string {
				registry.HandleQuery(r, serve[marked, placed])
				one := above(1)
				registry.HandleQuery(r, serve[marked2, placed])
				return []string{one, above(1)}
			},
			want: []string{
				"{1}: shop.marked: a query carries the idempotency mark; a query changes nothing and is never recorded (rule pipe-10): remove the mark or make it a command",
				"{2}: shop.marked2: a query carries the idempotency mark; a query changes nothing and is never recorded (rule pipe-10): remove the mark or make it a command",
			},
		},
		"a retention that is too short": {
			register: func(r *registry.Registry) []string {
				registry.Handle(r, serve[brief, placed])
				return []string{above(1)}
			},
			want: []string{"{1}: shop.brief: Retention is 1h0m0s; less than 24h0m0s forgets the key before a client has stopped retrying; set ShortRetention if that is meant"},
		},
		"a policy out of every bound": {
			register: func(r *registry.Registry) []string {
				registry.Handle(r, serve[absurd, placed])
				return []string{above(1)}
			},
			want: []string{
				"{1}: shop.absurd: the mode mode(7) does not exist; use idempotency.Atomic or idempotency.Leased",
				"{1}: shop.absurd: AfterExpiry afterexpiry(7) does not exist; use Reuse or Tombstone",
				"{1}: shop.absurd: Isolation isolation(7) does not exist; use ReadCommitted, RepeatableRead or Serializable",
				"{1}: shop.absurd: Retention (-1h0m0s) and Deadline (2h0m0s) must not be negative",
				"{1}: shop.absurd: Wait is 1m0s; at most 30s",
				"{1}: shop.absurd: Deadline is 2h0m0s; at most 1h0m0s",
				"{1}: shop.absurd: Version is 1000; it must be between 0 and 999",
				"{1}: shop.absurd: Retention (-1h0m0s) is shorter than Deadline (2h0m0s): the record could expire while its handler runs",
			},
		},
		"a policy that depends on the value": {
			register: func(r *registry.Registry) []string {
				registry.Handle(r, serve[panicky, placed])
				return []string{above(1)}
			},
			want: []string{"{1}: shop.panicky: building its pipeline panicked (runtime error: invalid memory address or nil pointer dereference); its method Idempotency is called on the zero value and must return a constant"},
		},
		"a deployment that changes what belongs to the type": {
			register: func(r *registry.Registry) []string {
				registry.Handle(r, serve[inner, placed], registry.Tune[inner, placed](func(p *idempotency.Policy) {
					*p = idempotency.Policy{
						Mode: idempotency.Leased, Retention: 48 * time.Hour, AfterExpiry: idempotency.Tombstone, Wait: time.Second, Deadline: time.Second,
						Version: 1, Isolation: idempotency.Serializable, KeyOptional: true, Results: idempotency.OmitResult, Strict: true, Takeover: idempotency.Refuse, Duplicate: idempotency.AnswerAccepted,
					}
				}))
				return []string{above(6)}
			},
			want: tuneProblems("{1}: shop.inner: ", "Mode", "atomic", "leased", "AfterExpiry", "reuse", "tombstone", "Version", "0", "1",
				"Isolation", "read committed", "serializable", "Results", "kept", "omitted", "Strict", "false", "true", "Takeover", "run again", "refuse", "Duplicate", "in progress", "accepted"),
		},
		"a deployment that goes out of bounds": {
			register: func(r *registry.Registry) []string {
				registry.Handle(r, serve[inner, placed], registry.Tune[inner, placed](func(p *idempotency.Policy) { p.Retention = time.Hour }))
				one := above(1)
				registry.Handle(r, serve[remit, placed], registry.Reconcile(remitted), registry.Tune[remit, placed](func(p *idempotency.Policy) { p.Lease = time.Second }))
				return []string{one, above(1)}
			},
			want: []string{
				"{1}: shop.inner: Retention is 1h0m0s; less than 24h0m0s forgets the key before a client has stopped retrying; set ShortRetention if that is meant",
				"{2}: bank.remit: Lease is 1s; it must be between 30s and 1h0m0s",
			},
		},
		"a deployment that says nothing, panics, or tunes what has no policy": {
			register: func(r *registry.Registry) []string {
				registry.Handle(r, serve[inner, placed], registry.Tune[inner, placed](nil))
				one := above(1)
				registry.Handle(r, serve[remit, placed], registry.Reconcile(remitted), registry.Tune[remit, placed](func(*idempotency.Policy) { panic("no such variable") }))
				two := above(1)
				registry.Handle(r, serve[note, bus.None], registry.Tune[note, bus.None](func(*idempotency.Policy) {}))
				return []string{one, two, above(1)}
			},
			want: []string{
				"{1}: shop.inner: the function given to registry.Tune is nil",
				"{2}: bank.remit: the function given to registry.Tune panicked (no such variable)",
				"{3}: shop.note: its policy is adjusted for this deployment and it is not marked idempotent, so it has none",
			},
		},
		"a nil handler": {
			register: func(r *registry.Registry) []string {
				registry.Handle[note, bus.None](r, nil)
				one := above(1)
				registry.HandleQuery[find, placed](r, nil)
				return []string{one, above(1)}
			},
			want: []string{
				"{1}: shop.note: the handler given to registry.Handle is nil",
				"{2}: shop.find: the handler given to registry.HandleQuery is nil",
			},
		},
		"a nil logger": {
			cfg:  func(cfg *registry.Config) { cfg.Logger = nil },
			want: []string{"logging: Config.Logger is nil; give it a logger, or zap.NewNop() to log nothing"},
		},
		"a nil guard": {
			cfg:  func(cfg *registry.Config) { cfg.Admit, cfg.Permit = []bus.Guard{refuse(nil), nil}, []bus.Guard{nil} },
			want: []string{"registry: Config.Admit[1] is nil", "registry: Config.Permit[0] is nil"},
		},
		"a nil wrapper": {
			cfg:  func(cfg *registry.Config) { cfg.Around = []registry.Around{nil} },
			want: []string{"registry: Config.Around[0] is nil"},
		},
		"a short secret": {
			cfg:  func(cfg *registry.Config) { cfg.Secrets = []idempotency.Secret{{Key: []byte("too short")}} },
			want: []string{"idempotency: the key of Config.Secrets[0] is shorter than 32 bytes"},
		},
		"secrets whose versions are wrong": {
			cfg: func(cfg *registry.Config) {
				key := make([]byte, 32)
				cfg.Secrets = []idempotency.Secret{{Version: 31, Key: key}, {Version: -1, Key: key}, {Version: 7, Key: key}, {Version: 7, Key: key}}
			},
			want: []string{
				"idempotency: Config.Secrets[0] has the version 31; it must be between 0 and 30",
				"idempotency: Config.Secrets[1] has the version -1; it must be between 0 and 30",
				"idempotency: Config.Secrets has two keys of the version 7; give the new one the next version",
			},
		},
		"a negative RetryAfter": {
			cfg:  func(cfg *registry.Config) { cfg.RetryAfter = -time.Second },
			want: []string{"idempotency: Config.RetryAfter is negative"},
		},
		"a validator that obeys another tag": {
			cfg: func(cfg *registry.Config) {
				cfg.Validate = validator.New()
				cfg.Validate.SetTagName("check")
			},
			register: func(r *registry.Registry) []string {
				registry.Handle(r, serve[mistake, placed])
				return nil
			},
			want: []string{"validation: Config.Validate does not obey the struct tag `validate`; leave its tag name as it is"},
		},
		"a secret field without a secret": {
			register: func(r *registry.Registry) []string {
				registry.Handle(r, serve[secret, placed])
				return []string{above(1)}
			},
			want: []string{`{1}: shop.secret: it has fields tagged idempotency:"secret" and no secret is set (Config.Secrets, at least 32 bytes)`},
		},
		"a result to be sealed without a sealer": {
			register: func(r *registry.Registry) []string {
				registry.Handle(r, serve[transfer, bus.None])
				return []string{above(1)}
			},
			want: []string{"{1}: bank.transfer: its policy says SealResult and no sealer is set (Config.Sealer, such as idempotency.NewSealer makes)"},
		},
		"names that are none": {
			register: func(r *registry.Registry) []string {
				registry.Handle(r, serve[named[noName], placed])
				one := above(1)
				registry.Handle(r, serve[named[badName], placed])
				two := above(1)
				registry.Handle(r, serve[named[longName], placed])
				return []string{one, two, above(1)}
			},
			want: []string{
				`{1}: registry_test.named[github.com/tekil-go/tekil/registry_test.noName]: its name is ""; a name has 1 to 100 of the characters A-Z a-z 0-9 . _ : / -, such as "orders.place", and does not depend on the value`,
				`{2}: place order!: its name is "place order!"; a name has 1 to 100 of the characters A-Z a-z 0-9 . _ : / -, such as "orders.place", and does not depend on the value`,
				`{3}: ` + strings.Repeat("x", 101) + `: its name is "` + strings.Repeat("x", 101) + `"; a name has 1 to 100 of the characters A-Z a-z 0-9 . _ : / -, such as "orders.place", and does not depend on the value`,
			},
		},
		"a name that depends on the value": {
			register: func(r *registry.Registry) []string {
				registry.Handle(r, serve[moody, placed])
				return []string{above(1)}
			},
			want: []string{`{1}: registry_test.moody: its name is ""; a name has 1 to 100 of the characters A-Z a-z 0-9 . _ : / -, such as "orders.place", and does not depend on the value`},
		},
		"everything at once": {
			cfg: func(cfg *registry.Config) {
				cfg.Logger, cfg.Admit, cfg.Store, cfg.Secrets = nil, []bus.Guard{nil}, brokenStore{memstore.New()}, []idempotency.Secret{{Key: []byte("short")}}
			},
			register: func(r *registry.Registry) []string {
				registry.Handle[mistake, placed](r, nil)
				one := above(1)
				registry.Handle(r, serve[brief, placed])
				two := above(1)
				registry.HandleQuery(r, serve[marked, placed])
				three := above(1)
				registry.Require[typo](r)
				return []string{one, two, three, above(1)}
			},
			want: []string{
				"logging: Config.Logger is nil; give it a logger, or zap.NewNop() to log nothing",
				"idempotency: the key of Config.Secrets[0] is shorter than 32 bytes",
				"registry: Config.Admit[0] is nil",
				"store: the schema is of version 1, and this program needs 2",
				"store: fsync is off",
				"{1}: shop.mistake: the handler given to registry.Handle is nil",
				"{3}: shop.marked: a query carries the idempotency mark; a query changes nothing and is never recorded (rule pipe-10): remove the mark or make it a command",
				"{4}: shop.typo: registry_test.typo is required here and has no handler; register one with registry.Handle",
				`{1}: shop.mistake: validation: shop.mistake (registry_test.mistake): field Amount: rule "requird": there is no such rule (did you mean "required"?); correct it, or register it on Config.Validate before the pipeline is built`,
				"{2}: shop.brief: Retention is 1h0m0s; less than 24h0m0s forgets the key before a client has stopped retrying; set ShortRetention if that is meant",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := registry.Config{Logger: zap.NewNop(), Store: memstore.New(), Validate: rules(t, nil)}
			if c.cfg != nil {
				c.cfg(&cfg)
			}
			reg := registry.New(cfg)
			var places []string
			if c.register != nil {
				places = c.register(reg)
			}
			b, err := reg.Build()
			if b != nil || err == nil {
				t.Fatalf("Build gives a bus: %t, and the error %v", b != nil, err)
			}
			wantCode(t, err, "BUILD_REFUSED")
			refusal, ok := errors.AsType[*registry.BuildError](err)
			if !ok {
				t.Fatalf("the error is %T", err)
			}
			var got []string
			for _, p := range refusal.Problems {
				line := p.String()
				for i, place := range places {
					line = strings.ReplaceAll(line, place, fmt.Sprintf("{%d}", i+1))
				}
				got = append(got, line)
			}
			equal(t, "problems", got, c.want)
			if want := fmt.Sprintf("registry: Build found %d problem(s):\n  - ", len(got)); !strings.HasPrefix(err.Error(), want) || strings.Count(err.Error(), "\n  - ") != len(got) {
				t.Errorf("the error's text is\n%v", err)
			}
			if d := reg.Describe(); len(d.Commands) != 0 {
				t.Errorf("a refused Build is described: %v", d)
			}
		})
	}
}

// tuneProblems are the problems of fields that a deployment must not change: name, old value, new value, and so on.
func tuneProblems(before string, fields ...string) (problems []string) {
	for f := range slices.Chunk(fields, 3) {
		problems = append(problems, before+f[0]+" is changed for this deployment from "+f[1]+" to "+f[2]+", and belongs to the command's type: "+
			"records and answers would mean other things here than elsewhere; change it in the type's method Idempotency")
	}
	return problems
}

// The whole text as it stands on a terminal.
func TestTheTextOfARefusal(t *testing.T) {
	t.Parallel()
	reg := registry.New(registry.Config{Logger: zap.NewNop()})
	registry.Handle(reg, serve[inner, placed])
	one := above(1)
	registry.Require[typo](reg)
	two := above(1)
	_, err := reg.Build()
	want := "registry: Build found 2 problem(s):\n" +
		"  - " + two + ": shop.typo: registry_test.typo is required here and has no handler; register one with registry.Handle\n" +
		"  - " + one + ": shop.inner: it is marked idempotent and no store is set"
	if err == nil || err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
}

func TestBuildCanBeTriedAgainUntilItSucceedsAndThenNoMore(t *testing.T) {
	t.Parallel()
	reg := registry.New(registry.Config{Logger: zap.NewNop(), Store: memstore.New()})
	registry.Require[inner](reg)
	if b, err := reg.Build(); b != nil || err == nil {
		t.Fatal("a required command without a handler was let pass")
	}
	registry.Handle(reg, serve[inner, placed])
	if _, err := reg.Build(); err != nil {
		t.Fatal(err)
	}
	built := above(3)
	b, err := reg.Build()
	want := "registry: Build found 1 problem(s):\n  - " + above(1) + ": the bus has already been built at " + built + "; make a new registry for a second one"
	if b != nil || err == nil || err.Error() != want {
		t.Errorf("the second Build gives %v\nwant %s", err, want)
	}
}

func TestBR28_ARegistrationAfterBuildIsLoggedWithBothPlacesAndNotServed(t *testing.T) {
	t.Parallel()
	core, logs := observer.New(zapcore.DebugLevel)
	reg := registry.New(registry.Config{Logger: zap.New(core), Store: memstore.New(), Validate: rules(t, nil)})
	registry.Handle(reg, serve[inner, placed])
	b := build(t, reg)
	registry.Handle(reg, serve[note, bus.None])
	handled := above(1)
	registry.HandleQuery(reg, serve[find, placed])
	queried := above(1)
	registry.Require[inner](reg) // is served, so there is nothing to say
	registry.Require[typo](reg)
	required := above(1)

	lines := logs.TakeAll()
	if len(lines) != 3 {
		t.Fatalf("%d lines: %v", len(lines), lines)
	}
	for i, want := range []struct{ message, command, field, place string }{
		{"registry: registered after Build and therefore not served", "shop.note", "registered_at", handled},
		{"registry: registered after Build and therefore not served", "shop.find", "registered_at", queried},
		{"registry: required after Build and not served", "shop.typo", "required_at", required},
	} {
		fields := lines[i].ContextMap()
		built, _ := fields["built_at"].(string)
		if lines[i].Level != zapcore.ErrorLevel || lines[i].Message != want.message || fields["command"] != want.command || fields[want.field] != want.place ||
			!strings.HasPrefix(built, "registry/main_test.go:") {
			t.Errorf("line %d: %s %s %v, want %+v", i, lines[i].Level, lines[i].Message, fields, want)
		}
	}
	_, err := bus.Send(t.Context(), b, note{Text: "x"})
	wantCode(t, err, "UNHANDLED")
	if d := reg.Describe(); len(d.Commands) != 1 {
		t.Errorf("the description has changed: %v", d)
	}
}

// generic is a command of many types, each with a name of its own.
type generic[T any] struct{ V T }

func (generic[T]) CommandName() bus.Name[bus.None] {
	return bus.Name[bus.None]("shop.generic." + reflect.TypeFor[T]().String())
}

func TestBR28_RegistrationIsSafeFromManyGoroutines(t *testing.T) {
	t.Parallel()
	core, logs := observer.New(zapcore.ErrorLevel)
	reg := registry.New(registry.Config{Logger: zap.New(core), Validate: rules(t, nil)})
	registrations := []func(){
		func() { registry.Handle(reg, serve[generic[int], bus.None]) },
		func() { registry.Handle(reg, serve[generic[int8], bus.None]) },
		func() { registry.Handle(reg, serve[generic[string], bus.None]) },
		func() { registry.Handle(reg, serve[generic[bool], bus.None]) },
		func() { registry.HandleQuery(reg, serve[find, placed]) },
		func() { registry.Require[generic[int]](reg) },
		func() { _ = reg.Describe() },
	}
	var wg sync.WaitGroup
	for _, register := range registrations {
		wg.Go(register)
	}
	wg.Wait()
	// And one Build among them that wins, while others register too late.
	var mu sync.Mutex
	var built []*bus.Bus
	for range 4 {
		wg.Go(func() {
			if b, err := reg.Build(); err == nil {
				mu.Lock()
				defer mu.Unlock()
				built = append(built, b)
			}
		})
		wg.Go(func() { _ = reg.Describe() })
	}
	wg.Wait()
	if len(built) != 1 || logs.Len() != 0 {
		t.Fatalf("%d buses, %d error lines", len(built), logs.Len())
	}
	for range 4 {
		wg.Go(func() { registry.Handle(reg, serve[note, bus.None]) })
		wg.Go(func() {
			if _, err := bus.Send(t.Context(), built[0], generic[int]{1}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if logs.Len() != 4 || len(reg.Describe().Commands) != 5 {
		t.Errorf("%d error lines, %d commands", logs.Len(), len(reg.Describe().Commands))
	}
}

// A typing error in the marker's name is not refused, because a method may be called as it likes, but it is not passed over.
func TestAMistypedMarkerIsAWarning(t *testing.T) {
	t.Parallel()
	core, logs := observer.New(zapcore.DebugLevel)
	reg := registry.New(registry.Config{Logger: zap.New(core)})
	registry.Handle(reg, serve[typo, placed])
	build(t, reg)
	const want = "its method Idempotant looks like the mark Idempotent and is not: the command is not protected; write var _ idempotency.Marker = typo{} beside it"
	lines := logs.All()
	if len(lines) != 1 || lines[0].Level != zapcore.WarnLevel || lines[0].Message != "registry: shop.typo: "+want || lines[0].ContextMap()["command"] != "shop.typo" {
		t.Errorf("lines: %v", lines)
	}
	d := reg.Describe()
	if len(d.Commands) != 1 || d.Commands[0].Idempotency != nil || len(d.Commands[0].Warnings) != 1 || d.Commands[0].Warnings[0] != want {
		t.Errorf("described as %+v", d)
	}
}

func TestWarningsOfPolicyAndStoreAreLoggedAndDescribed(t *testing.T) {
	t.Parallel()
	core, logs := observer.New(zapcore.DebugLevel)
	reg := registry.New(registry.Config{Logger: zap.New(core), Store: wary{memstore.New()}})
	registry.Handle(reg, serve[keeper, placed])
	build(t, reg)
	var got []string
	for _, line := range logs.All() {
		got = append(got, line.Level.String()+" "+line.Message)
	}
	equal(t, "lines", got, []string{
		"warn registry: synchronous_commit is off",
		"warn registry: shop.keeper: Retention is 2160h0m0s; above 720h0m0s the table of records grows large",
	})
	d := reg.Describe()
	equal(t, "the store's warnings", d.Warnings, []string{"synchronous_commit is off"})
	equal(t, "the command's warnings", d.Commands[0].Warnings, []string{"Retention is 2160h0m0s; above 720h0m0s the table of records grows large"})
}

// wary is a store that can be started with and had better not.
type wary struct{ idempotency.Store }

func (wary) Check(context.Context) ([]string, error) {
	return []string{"synchronous_commit is off"}, nil
}
func (wary) Describe() string { return "a wary store" }

// keeper keeps its records for a quarter.
type keeper struct{ A string }

func (keeper) CommandName() bus.Name[placed] { return "shop.keeper" }
func (keeper) Idempotency() idempotency.Policy {
	return idempotency.Policy{Retention: 90 * 24 * time.Hour}
}
