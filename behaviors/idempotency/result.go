package idempotency

import (
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
)

var (
	jsonUnmarshaler = reflect.TypeFor[json.Unmarshaler]()
	textUnmarshaler = reflect.TypeFor[encoding.TextUnmarshaler]()
	jsonMarshaler   = reflect.TypeFor[json.Marshaler]()
	textMarshaler   = reflect.TypeFor[encoding.TextMarshaler]()
)

// checkResult refuses a result type that would not come back from the record as it went in. It reports all problems, joined.
func checkResult(t reflect.Type) error {
	c := resultCheck{seen: make(map[visit]bool)}
	c.walk(t, "the result "+t.String(), true)
	return errors.Join(c.problems...)
}

type resultCheck struct {
	seen     map[visit]bool
	problems []error
}

// visit is a type and whether its value can be addressed where it stands: only then does encoding/json call a marshaller that
// the pointer has.
type visit struct {
	t           reflect.Type
	addressable bool
}

func (c *resultCheck) bad(where, format string, args ...any) {
	c.problems = append(c.problems, fmt.Errorf("%s %s", where, fmt.Sprintf(format, args...)))
}

func (c *resultCheck) walk(t reflect.Type, where string, addressable bool) {
	if c.seen[visit{t, addressable}] {
		return
	}
	c.seen[visit{t, addressable}] = true
	p := reflect.PointerTo(t)
	marshals, unmarshals := p.Implements(jsonMarshaler) || p.Implements(textMarshaler), p.Implements(jsonUnmarshaler) || p.Implements(textUnmarshaler)
	switch {
	case marshals && !addressable && !t.Implements(jsonMarshaler) && !t.Implements(textMarshaler):
		c.bad(where, "is the value of a map and has its marshaller on the pointer, so encoding/json does not call it there; give it a value receiver, or map to pointers")
		return
	case marshals && unmarshals:
		return
	case marshals && t.Kind() != reflect.Interface:
		c.bad(where, "has a marshaller and no unmarshaller, so a stored result could not be read back")
		return
	}
	switch t.Kind() {
	case reflect.Chan, reflect.Func, reflect.UnsafePointer, reflect.Complex64, reflect.Complex128, reflect.Uintptr:
		c.bad(where, "is a %s, which cannot be stored", t.Kind())
	case reflect.Interface:
		c.bad(where, "is an interface, whose concrete type is lost when it is stored; use a concrete type")
	case reflect.Pointer, reflect.Slice:
		c.walk(t.Elem(), where, true)
	case reflect.Array:
		c.walk(t.Elem(), where, addressable)
	case reflect.Map:
		if k := t.Key(); k.Kind() != reflect.String && (k.Kind() < reflect.Int || k.Kind() > reflect.Uintptr) && !(k.Implements(textMarshaler) && reflect.PointerTo(k).Implements(textUnmarshaler)) {
			c.bad(where, "has keys of type %s, which cannot be stored", k)
		}
		c.walk(t.Elem(), where, false)
	case reflect.Struct:
		exported := 0
		for i := range t.NumField() {
			f := t.Field(i)
			if !f.IsExported() && !f.Anonymous {
				continue
			}
			exported++
			if f.Tag.Get("json") == "-" {
				continue
			}
			if f.Anonymous && !f.IsExported() && f.Type.Kind() == reflect.Pointer {
				c.bad(where+"."+f.Name, "is an embedded pointer to an unexported type, which encoding/json writes and cannot read back; embed the type itself")
				continue
			}
			c.walk(f.Type, where+"."+f.Name, addressable)
		}
		if t.NumField() > 0 && exported == 0 {
			c.bad(where, "has only unexported fields and no marshaller, so it would be stored empty")
		}
	}
}
