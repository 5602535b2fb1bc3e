package validation

import (
	"reflect"
	"strings"

	"github.com/go-playground/validator/v10"
)

// ofTag makes our error of one of validator's on a command of the type t.
func ofTag(t reflect.Type, f validator.FieldError) FieldError {
	// StructNamespace is in Go names whatever tag name function the instance has.
	at, owner := pathOf(t, f.StructNamespace())
	e := FieldError{Path: at, Rule: f.Tag(), Message: message(f.ActualTag(), f.Param(), kindOf(f), owner)}
	if f.Tag() != f.ActualTag() {
		// An alias: a message of its own, if we have one, says more than that of the alternatives behind it.
		if m := fixedMessage(f.Tag()); m != "" {
			e.Message = m
		}
	} else if !strings.Contains(f.Tag(), "|") {
		e.Param = paramNames(f.Tag(), f.Param(), owner)
	}
	return e
}

// pathOf translates the Go name of a field in a command of the type t, as validator reports it ("Place.Lines[0].Qty"), into
// JSON names ("lines[0].qty"). It also gives the struct that the last field belongs to.
//
// Keys of maps stand in the Go name as they came from outside and may hold dots and brackets, so the name can't be parsed
// with certainty behind one. Therefore only what is known from the type is ever printed behind a key: names of fields, and
// [*] for each index. A key made up to look like a path can lead to the wrong one of these names and nowhere else.
func pathOf(t reflect.Type, namespace string) (_ string, owner reflect.Type) {
	rest := namespace
	if t.Name() != "" {
		rest = strings.TrimPrefix(rest, t.Name()+".")
	}
	var b strings.Builder
	owner = t
	masked := false
	for rest != "" {
		name, tail := cutName(rest)
		f, ok := fieldOf(t, name)
		if !ok {
			break
		}
		owner = indirect(t)
		if name, shown := jsonName(f); shown {
			if b.Len() > 0 {
				b.WriteByte('.')
			}
			b.WriteString(name)
		}
		t, rest = f.Type, tail
		for strings.HasPrefix(rest, "[") {
			list, end := indirect(t), -1
			switch list.Kind() {
			case reflect.Slice, reflect.Array:
				end = strings.IndexByte(rest, ']')
			case reflect.Map:
				masked = true
				end = keyEnd(rest, list.Elem())
			default:
				return b.String(), owner
			}
			if end < 0 {
				b.WriteString("[*]")
				return b.String(), owner
			}
			if masked || strings.Trim(rest[1:end], "0123456789") != "" {
				b.WriteString("[*]")
			} else {
				b.WriteString(rest[:end+1])
			}
			t, rest = list.Elem(), rest[end+1:]
		}
		rest = strings.TrimPrefix(rest, ".")
	}
	return b.String(), owner
}

// keyEnd finds the bracket that ends the key at the beginning of s: the first that is followed by what can follow a value
// of the type elem.
func keyEnd(s string, elem reflect.Type) int {
	for i := 0; i < len(s); i++ {
		if s[i] != ']' {
			continue
		}
		switch after := s[i+1:]; {
		case after == "":
			return i
		case after[0] == '.':
			name, _ := cutName(after[1:])
			if _, ok := fieldOf(elem, name); ok {
				return i
			}
		case after[0] == '[':
			switch indirect(elem).Kind() {
			case reflect.Slice, reflect.Array, reflect.Map:
				return i
			}
		}
	}
	return -1
}

func cutName(s string) (name, rest string) {
	if i := strings.IndexAny(s, ".["); i >= 0 {
		return s[:i], strings.TrimPrefix(s[i:], ".")
	}
	return s, ""
}

// fieldOf finds a field of the struct t, or of what the pointer t points to, by its Go name or, since a struct level rule may
// report one so, by its JSON name.
func fieldOf(t reflect.Type, name string) (f reflect.StructField, ok bool) {
	t = indirect(t)
	if t.Kind() != reflect.Struct || name == "" {
		return f, false
	}
	if f, ok = t.FieldByName(name); ok {
		return f, true
	}
	for i := range t.NumField() {
		if f = t.Field(i); f.IsExported() {
			if n, shown := jsonName(f); shown && n == name {
				return f, true
			}
		}
	}
	return f, false
}

// jsonName is the name of f in JSON. shown is false for an embedded struct whose fields stand among those of the struct
// round it.
func jsonName(f reflect.StructField) (name string, shown bool) {
	tag := f.Tag.Get("json")
	if tag == "-" {
		return f.Name, true
	}
	name, _, _ = strings.Cut(tag, ",")
	if name == "" {
		return f.Name, !f.Anonymous || indirect(f.Type).Kind() != reflect.Struct
	}
	return name, true
}

func indirect(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t
}
