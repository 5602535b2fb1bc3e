package registry

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/bus"
)

// Problem is one reason why Build refuses.
type Problem struct {
	// Where is the folder, file and line of the registration; empty where the problem is not one command's.
	Where string
	// Command is the command's or query's name, or its Go type where it has no name.
	Command string
	// What says what is wrong and what to do.
	What string
}

func (p Problem) String() string {
	switch {
	case p.Where == "":
		return p.What
	case p.Command == "":
		return p.Where + ": " + p.What
	}
	return p.Where + ": " + p.Command + ": " + p.What
}

// BuildError lists every problem that Build found.
type BuildError struct{ Problems []Problem }

func (e *BuildError) Error() string {
	var s strings.Builder
	fmt.Fprintf(&s, "registry: Build found %d problem(s):", len(e.Problems))
	for _, p := range e.Problems {
		s.WriteString("\n  - " + strings.ReplaceAll(p.String(), "\n", "\n    "))
	}
	return s.String()
}

// Code is the outcome code of the error.
func (*BuildError) Code() string { return "BUILD_REFUSED" }

// checkTimeout bounds the store's check.
const checkTimeout = 20 * time.Second

// Build checks everything that was registered and the store, and makes the bus. It reports all problems at once, in a
// [*BuildError]; a bus that was built is complete and does not change. What is only doubtful is logged as a warning and
// shown by [Registry.Describe]. Build succeeds once.
func (r *Registry) Build() (*bus.Bus, error) {
	at := caller()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.built != "" {
		return nil, &BuildError{[]Problem{{Where: at, What: "the bus has already been built at " + r.built + "; make a new registry for a second one"}}}
	}
	var problems []Problem
	p, general := newParts(r.cfg)
	for _, err := range general {
		problems = append(problems, Problem{What: err.Error()})
	}
	desc := Description{Commands: []CommandDescription{}}
	if r.cfg.Store != nil && p.cfg.Store != nil {
		desc.Store = r.cfg.Store.Describe()
		ctx, cancel := context.WithTimeout(context.Background(), checkTimeout)
		warnings, err := r.cfg.Store.Check(ctx)
		cancel()
		for _, err := range split(err) {
			problems = append(problems, Problem{What: err.Error()})
		}
		desc.Warnings = append(desc.Warnings, warnings...)
	}
	var entries []bus.Entry
	for _, it := range r.names(&problems) {
		if p.validator == nil {
			break // nothing can be said of their rules
		}
		p.errs, p.plan = nil, idempotency.Plan{}
		entry := p.entry(it)
		for _, err := range p.errs {
			for _, err := range split(err) {
				problems = append(problems, Problem{it.where, it.name, err.Error()})
			}
		}
		entries = append(entries, entry)
		desc.Commands = append(desc.Commands, describe(it, p))
	}
	if len(problems) > 0 {
		return nil, &BuildError{problems}
	}
	b, err := bus.New(entries...)
	if err != nil {
		return nil, &BuildError{[]Problem{{What: err.Error()}}}
	}
	for _, w := range desc.Warnings {
		r.cfg.Logger.Warn("registry: " + w)
	}
	for _, c := range desc.Commands {
		for _, w := range c.Warnings {
			r.cfg.Logger.Warn("registry: "+c.Name+": "+w, zap.String("command", c.Name))
		}
	}
	desc.sort()
	r.built, r.desc = at, desc
	return b, nil
}

// names checks what does not need the pipeline and gives the registrations that can be built, so that the problems which only
// the stages find are reported in the same breath.
func (r *Registry) names(problems *[]Problem) []item {
	byType, byName := make(map[reflect.Type]item), make(map[string]item)
	var buildable []item
	for _, it := range r.items {
		name, kind, function := it.name, "command", "Handle"
		if name == "" {
			name = it.goType.String()
		}
		if it.query {
			kind, function = "query", "HandleQuery"
		}
		bad := func(format string, args ...any) {
			*problems = append(*problems, Problem{it.where, name, fmt.Sprintf(format, args...)})
		}
		first, twice := byType[it.goType]
		if !twice {
			byType[it.goType] = it
		}
		if it.nilFn {
			bad("the handler given to registry.%s is nil", function)
		}
		if it.goType.Kind() != reflect.Struct {
			bad("%s is of the kind %s; a %s is a plain struct, registered and sent by value", it.goType, it.goType.Kind(), kind)
			continue
		}
		if it.query && it.marked {
			bad("a query carries the idempotency mark; a query changes nothing and is never recorded (rule pipe-10): remove the mark or make it a command")
		}
		named, shared := byName[it.name]
		switch embedded := embedded(it.goType); {
		case embedded != nil:
			bad("%s embeds %s, which is a command or query itself, and so takes over its name and its mark; make it a named field", it.goType, embedded)
			continue
		case !goodName(it.name):
			bad("its name is %q; a name has 1 to 100 of the characters A-Z a-z 0-9 . _ : / -, such as \"orders.place\", and does not depend on the value", it.name)
			continue
		case twice:
			bad("%s has two handlers; the first one is registered at %s", it.goType, first.where)
			continue
		case shared:
			bad("the types %s (registered at %s) and %s have one name; give each its own", named.goType, named.where, it.goType)
		default:
			byName[it.name] = it
		}
		buildable = append(buildable, it)
	}
	for _, it := range r.required {
		if _, ok := byType[it.goType]; !ok {
			*problems = append(*problems, Problem{it.where, it.name, fmt.Sprintf("%s is required here and has no handler; register one with registry.Handle", it.goType)})
		}
	}
	return buildable
}

func goodName(s string) bool {
	if len(s) == 0 || len(s) > 100 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("._:/-", c) >= 0) {
			return false
		}
	}
	return true
}

// embedded finds a command or query that t embeds: Go promotes its name and its mark, so the outer type would be dispatched,
// recorded and replayed as the inner one, or be protected without having said so.
func embedded(t reflect.Type) reflect.Type {
	for i := range t.NumField() {
		f := t.Field(i)
		if !f.Anonymous {
			continue
		}
		for _, method := range [...]string{"CommandName", "QueryName"} {
			if _, ok := f.Type.MethodByName(method); ok {
				return f.Type
			}
		}
	}
	return nil
}

// split gives the errors that were joined into err, one by one.
func split(err error) []error {
	if err == nil {
		return nil
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var all []error
		for _, e := range joined.Unwrap() {
			all = append(all, split(e)...)
		}
		return all
	}
	return []error{err}
}
