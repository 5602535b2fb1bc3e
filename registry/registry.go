// Package registry is where an application says which function serves which command, and where the pipeline is built.
//
//	reg := registry.New(registry.Config{Logger: logger, Store: pgstore.New(pool)})
//	registry.Handle(reg, checkout.PlaceOrder)
//	registry.HandleQuery(reg, checkout.FindOrder)
//	b, err := reg.Build() // every problem at once, each with file and line
//
// The order of the stages stands in pipeline.go and cannot be changed from outside: there is no priority, no list for one
// command and no place to put a stage (rule pipe-1). What an application may add (rule pipe-12) are guards, which only
// refuse, and wrappers round the handler.
package registry

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/go-playground/validator/v10"
	"go.uber.org/zap"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/logging"
	"github.com/tekil-go/tekil/behaviors/validation"
	"github.com/tekil-go/tekil/bus"
)

// Config is what all commands of a bus share.
type Config struct {
	// Logger gets one line for each dispatch. It must be set; zap.NewNop() logs nothing.
	Logger *zap.Logger
	// LogFields adds fields of the application's to that line, from the context alone. Nil adds none.
	LogFields func(context.Context) []zap.Field
	// LogErrorText says what of an error's text may be logged. Nil logs the error's code and Go type only, because a text
	// can hold what must not be in a log.
	LogErrorText func(error) string
	// Observers are told of every dispatch beside the log, such as a telemetry.Observer. Each is told, in this order and before the line is
	// written, although another one panics; the context of LogFields holds what they have put into it. Nil is none, which costs nothing.
	Observers []bus.Observer
	// Validate is the validator with the application's own rules, all of them registered before Build. Nil is a new one.
	Validate *validator.Validate
	// Store keeps the records. It must be set when a command is marked idempotent, and is checked at Build.
	Store idempotency.Store
	// Secrets are the keys of the HMAC for fields tagged idempotency:"secret", the current one first; nil where there are no such
	// fields. See idempotency.Secret for changing the key.
	Secrets []idempotency.Secret
	// Sealer encrypts stored results. It must be set where a command's policy says SealResult; see idempotency.NewSealer.
	Sealer idempotency.Sealer
	// RequireTenant refuses marked commands whose request context names no tenant.
	RequireTenant bool
	// RetryAfter is what a duplicate is told while the first attempt runs. Zero means 2 seconds.
	RetryAfter time.Duration
	// Admit are guards that say who may come in. They run before validation, in this order.
	Admit []bus.Guard
	// Permit are guards that say whether this caller may do this. They run after validation and before the claim, so that no
	// stored outcome is given to somebody who may not have it.
	Permit []bus.Guard
	// Around are wrappers round the handlers, the first one outermost.
	Around []Around
}

// Registry collects handlers until [Registry.Build] makes a bus of them. It is safe for concurrent use.
type Registry struct {
	cfg Config

	mu       sync.Mutex
	items    []item
	required []item
	built    string // where Build succeeded
	desc     Description
}

// item is one registration.
type item struct {
	where  string
	goType reflect.Type
	name   string
	result reflect.Type
	query  bool
	nilFn  bool
	marked bool // it carries the idempotency mark
	build  func(*parts, bus.Invocation) bus.Entry
}

// New makes an empty registry. Nothing is checked before Build.
func New(cfg Config) *Registry { return &Registry{cfg: cfg} }

// Handle says that h serves the command C. h is called from many goroutines at once. Problems are reported by Build, with the
// file and line of this call. A registration after Build is not served and is logged as an error. The options are [Reconcile]
// and [Tune].
func Handle[C bus.Command[R], R any](r *Registry, h func(context.Context, C) (R, error), options ...Option[C, R]) {
	var o handling[C, R]
	for _, option := range options {
		option(&o)
	}
	r.add(item{
		where: caller(), goType: reflect.TypeFor[C](), result: reflect.TypeFor[R](), nilFn: h == nil,
		name:   nameOf(func(c C) string { return string(c.CommandName()) }),
		marked: idempotency.IsMarked[C](),
		build: func(p *parts, inv bus.Invocation) bus.Entry {
			return bus.Serve[C](command(p, inv, h, o.settings(p)))
		},
	})
}

// Option is a setting of one registration.
type Option[C bus.Command[R], R any] func(*handling[C, R])

type handling[C bus.Command[R], R any] struct {
	reconcile func(context.Context, C) (R, bool, error)
	tune      []func(*idempotency.Policy)
}

// settings are the options as the stage takes them.
func (h *handling[C, R]) settings(p *parts) idempotency.Settings[C, R] {
	set := idempotency.Settings[C, R]{Reconcile: h.reconcile}
	for _, adjust := range h.tune {
		if adjust == nil {
			p.problem(errors.New("the function given to registry.Tune is nil"))
			return set
		}
	}
	if len(h.tune) > 0 {
		set.Adjust = func(policy *idempotency.Policy) {
			defer func() {
				if said := recover(); said != nil {
					p.problem(fmt.Errorf("the function given to registry.Tune panicked (%v)", said))
				}
			}()
			for _, adjust := range h.tune {
				adjust(policy)
			}
		}
	}
	return set
}

// Reconcile gives a Leased command whose policy says Takeover Reconcile its reconciler: a function that is asked before the handler in
// every attempt of a key but the first. It looks for what an earlier attempt may have done and not recorded, by the downstream
// key at the other side or by a natural key in a table, and gives the result if it finds it; then the handler does not run. It
// may open the business transaction and write what is missing. Where it finds nothing (found is false) the handler runs, and an
// error of its own is read like one of the handler's. Wrappers set in Config.Around do not stand around it.
func Reconcile[C bus.Command[R], R any](f func(ctx context.Context, cmd C) (res R, found bool, err error)) Option[C, R] {
	return func(h *handling[C, R]) { h.reconcile = f }
}

// Tune changes the policy of one command for this deployment, such as its retention or its lease by an environment variable, without
// touching its type. adjust is called once, at Build, with a copy of the policy as the type gives it, in which zero still means the
// default. It may change Retention, ShortRetention, Wait, Deadline, KeyOptional, Lease, MaxAttempts, RelaxedClaim and ResultLimit, within
// the bounds that hold for the type's own. A change of anything else is a problem, because instances that run side by side would
// read each other's records wrongly. So are a nil adjust and a command without the mark. Of several, each sees what the one before
// has left. [Registry.Describe] names what was changed.
func Tune[C bus.Command[R], R any](adjust func(*idempotency.Policy)) Option[C, R] {
	return func(h *handling[C, R]) { h.tune = append(h.tune, adjust) }
}

// HandleQuery says that h serves the query Q, as [Handle] does for commands. A query that carries the idempotency mark is
// refused by Build (rule pipe-10).
func HandleQuery[Q bus.Query[R], R any](r *Registry, h func(context.Context, Q) (R, error)) {
	r.add(item{
		where: caller(), goType: reflect.TypeFor[Q](), result: reflect.TypeFor[R](), nilFn: h == nil, query: true,
		name:   nameOf(func(q Q) string { return string(q.QueryName()) }),
		marked: idempotency.IsMarked[Q](),
		build: func(p *parts, inv bus.Invocation) bus.Entry {
			return bus.Answer[Q](query[Q, R](p, inv, h))
		},
	})
}

// Require says that this part of the program sends the command C and that somebody has to handle it. Build refuses when nobody
// does, with the file and line of this call. After Build, a command that nobody handles is logged as an error.
func Require[C bus.Command[R], R any](r *Registry) {
	r.require(item{
		where: caller(), goType: reflect.TypeFor[C](),
		name: nameOf(func(c C) string { return string(c.CommandName()) }),
	})
}

// nameOf reads the name from the zero value. A name that needs more than that panics, and is then found out as empty.
func nameOf[C any](name func(C) string) (s string) {
	defer func() {
		if recover() != nil {
			s = ""
		}
	}()
	var zero C
	return name(zero)
}

func (r *Registry) add(it item) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.built != "" {
		r.cfg.Logger.Error("registry: registered after Build and therefore not served",
			zap.String("command", it.name), zap.String("registered_at", it.where), zap.String("built_at", r.built))
		return
	}
	r.items = append(r.items, it)
}

func (r *Registry) require(it item) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.built == "" {
		r.required = append(r.required, it)
		return
	}
	if !slices.ContainsFunc(r.items, func(served item) bool { return served.goType == it.goType }) {
		r.cfg.Logger.Error("registry: required after Build and not served",
			zap.String("command", it.name), zap.String("required_at", it.where), zap.String("built_at", r.built))
	}
}

// caller is the file and line of whoever called the function that called caller, with the folder for company.
func caller() string {
	_, file, line, ok := runtime.Caller(2)
	if !ok {
		return "unknown place"
	}
	return fmt.Sprintf("%s/%s:%d", filepath.Base(filepath.Dir(file)), filepath.Base(file), line)
}

// parts are what the pipelines of one bus are built of.
type parts struct {
	cfg       Config
	observer  bus.Observer
	validator *validation.Validator
	engine    *idempotency.Engine

	// of the command that is being built
	errs []error
	plan idempotency.Plan
}

func (p *parts) problem(err error) {
	if err != nil {
		p.errs = append(p.errs, err)
	}
}

// entry builds the pipeline of one registration. A method of the command's own that panics is a problem like any other.
func (p *parts) entry(it item) bus.Entry {
	defer func() {
		if said := recover(); said != nil {
			p.problem(fmt.Errorf("building its pipeline panicked (%v); its method Idempotency is called on the zero value and must return a constant", said))
		}
	}()
	return it.build(p, bus.Invocation{Name: it.name, Query: it.query, Idempotent: !it.query && it.marked})
}

// isNilPointer reports whether v is a pointer to nothing, which an interface does not show.
func isNilPointer(v any) bool {
	r := reflect.ValueOf(v)
	return r.Kind() == reflect.Pointer && r.IsNil()
}

// newParts makes what the pipelines share. Where it reports a problem the parts are still good enough to find those of the
// commands.
func newParts(cfg Config) (p *parts, problems []error) {
	p = &parts{cfg: cfg}
	note := func(err error) { problems = append(problems, split(err)...) }
	if isNilPointer(cfg.Store) {
		note(fmt.Errorf("registry: Config.Store is a nil %T", cfg.Store))
		p.cfg.Store = nil
	}
	observer, err := logging.New(logging.Config{Logger: cfg.Logger, Fields: cfg.LogFields, ErrorText: cfg.LogErrorText})
	note(err)
	p.observer = observing(observer, cfg.Observers)
	p.validator, err = validation.New(validation.Config{Validate: cfg.Validate})
	note(err)
	p.engine, err = idempotency.New(idempotency.Config{
		Store: cfg.Store, Secrets: cfg.Secrets, Sealer: cfg.Sealer, RequireTenant: cfg.RequireTenant, RetryAfter: cfg.RetryAfter,
	})
	if err != nil {
		note(err)
		p.engine, _ = idempotency.New(idempotency.Config{Store: cfg.Store, Secrets: []idempotency.Secret{{Key: make([]byte, 32)}}, Sealer: cfg.Sealer})
	}
	for i, o := range cfg.Observers {
		if o == nil || isNilPointer(o) {
			note(fmt.Errorf("registry: Config.Observers[%d] is nil", i))
		}
	}
	for i, g := range cfg.Admit {
		if g == nil {
			note(fmt.Errorf("registry: Config.Admit[%d] is nil", i))
		}
	}
	for i, g := range cfg.Permit {
		if g == nil {
			note(fmt.Errorf("registry: Config.Permit[%d] is nil", i))
		}
	}
	for i, w := range cfg.Around {
		if w == nil {
			note(fmt.Errorf("registry: Config.Around[%d] is nil", i))
		}
	}
	return p, problems
}
