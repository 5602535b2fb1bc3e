package strictjson

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"unicode/utf8"
)

// EncodeXML writes v as an XML document with the root element root in the given namespace, or in none for "". What it says
// is what json.Marshal(v) says, which decides about names, omitted members, marshalers and their errors, written by the
// mapping that the package comment describes; numbers keep their digits. It is safe for concurrent use as json.Marshal is.
//
// The JSON text does not say what the items of an array are called. EncodeXML takes that from the tags of v and of what is
// in it, also in interfaces; where they say nothing, as for a [json.RawMessage], an item is called "item", and so is one
// whose tag has a name that no XML element can have. A member with such a name is written as an entry of a map.
//
// A member that is null is left out, and an item that is null is an empty element. A character that XML does not have, such as
// U+0000, is written as U+FFFD; all others survive. The error wraps the one of json.Marshal, which may quote a value.
func EncodeXML(root, namespace string, v any) ([]byte, error) {
	if !xmlName(root) {
		return nil, errors.New("strictjson: no XML element can have the name that the root element is given")
	}
	data, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("strictjson: writing the JSON text of a %T: %w", v, err)
	}
	w := xmlWriter{data: data, out: make([]byte, 0, 2*len(data)+100)}
	w.out = append(w.out, `<?xml version="1.0" encoding="UTF-8"?>`...)
	attribute := ""
	if namespace != "" {
		attribute = "xmlns"
	}
	w.element(root, attribute, namespace, reflect.ValueOf(v), itemName)
	return append(w.out, '\n'), nil
}

// xmlWriter walks once over a JSON text that json.Marshal has made, so it is valid and has no blanks, and writes it as XML.
type xmlWriter struct {
	data []byte
	i    int // the first byte of data that is not written yet
	out  []byte
}

// element writes the value at i as an element, with one attribute unless its name is "". What is known of the value's Go
// form is v, which may be nothing and may also not fit, since a MarshalJSON can write what it likes; item is the name of
// an item in it.
func (w *xmlWriter) element(name, attribute, text string, v reflect.Value, item string) {
	w.out = append(append(w.out, '<'), name...)
	if attribute != "" {
		w.out = append(append(append(w.out, ' '), attribute...), `="`...)
		w.text(text, true)
		w.out = append(w.out, '"')
	}
	w.out = append(w.out, '>')
	empty := len(w.out)
	w.value(v, item)
	if len(w.out) == empty {
		w.out = append(w.out[:empty-1], `/>`...)
		return
	}
	w.out = append(append(append(w.out, `</`...), name...), '>')
}

// value writes the value at i.
func (w *xmlWriter) value(v reflect.Value, item string) {
	for range maxDepth { // there are pointers that point at themselves
		if v.Kind() != reflect.Pointer && v.Kind() != reflect.Interface {
			break
		}
		v = v.Elem()
	}
	switch w.data[w.i] {
	case '{':
		for w.i++; w.data[w.i] != '}'; w.comma() {
			name := w.str()
			w.i++ // the colon
			if w.data[w.i] == 'n' {
				w.i += len("null")
				continue
			}
			w.member(name, v)
		}
		w.i++
	case '[':
		w.i++
		for k := 0; w.data[w.i] != ']'; k++ {
			w.element(item, "", "", itemOf(v, k), itemName)
			w.comma()
		}
		w.i++
	case '"':
		w.text(w.str(), false)
	default:
		start := w.i
		for w.i < len(w.data) && w.data[w.i] != ',' && w.data[w.i] != ']' && w.data[w.i] != '}' {
			w.i++
		}
		if w.data[start] != 'n' {
			w.out = append(w.out, w.data[start:w.i]...)
		}
	}
}

// comma passes over one, if it is there.
func (w *xmlWriter) comma() {
	if w.data[w.i] == ',' {
		w.i++
	}
}

// member writes the value at i as the member of that name in what v is.
func (w *xmlWriter) member(name string, v reflect.Value) {
	item, entry := itemName, false
	switch v.Kind() {
	case reflect.Struct:
		f, ok := xmlFields(v.Type())[name]
		if !ok {
			v = reflect.Value{}
			break
		}
		item = f.item
		v, _ = v.FieldByIndexErr(f.index) // nothing where an embedded pointer is nil
	case reflect.Map:
		entry = true
		v = entryOf(v, name)
	default:
		v = reflect.Value{}
	}
	if entry || !xmlName(name) {
		w.element(entryName, keyName, name, v, item)
		return
	}
	w.element(name, "", "", v, item)
}

// entryOf is the value in the map v under the key that json.Marshal writes as name.
func entryOf(v reflect.Value, name string) reflect.Value {
	if t := v.Type(); t.Key().Kind() == reflect.String {
		if e := v.MapIndex(reflect.ValueOf(name).Convert(t.Key())); e.IsValid() {
			return e
		}
	}
	return anyOf(v.Type().Elem())
}

// itemOf is item k of v.
func itemOf(v reflect.Value, k int) reflect.Value {
	switch v.Kind() {
	case reflect.Slice, reflect.Array:
		if k < v.Len() {
			return v.Index(k)
		}
		return anyOf(v.Type().Elem())
	}
	return reflect.Value{}
}

// anyOf is a value of the type t, or of what t points at, for what the type says.
func anyOf(t reflect.Type) reflect.Value {
	for range maxDepth {
		if t.Kind() != reflect.Pointer {
			break
		}
		t = t.Elem()
	}
	return reflect.Zero(t)
}

// xmlFieldsOf holds what xmlFields gave: reflect.Type to map[string]field.
var xmlFieldsOf sync.Map

// xmlFields gives the fields of the struct t by the names of its members. Their nodes are not set.
func xmlFields(t reflect.Type) map[string]field {
	if known, ok := xmlFieldsOf.Load(t); ok {
		return known.(map[string]field)
	}
	n := &node{t: t}
	_ = builder{shallow: true}.fields(n) // which has no errors
	fields := make(map[string]field, len(n.fields))
	for _, f := range n.fields {
		if !xmlName(f.item) {
			f.item = itemName
		}
		fields[f.name] = f
	}
	xmlFieldsOf.Store(t, fields)
	return fields
}

// str reads a string.
func (w *xmlWriter) str() string {
	start, escaped := w.i, false
	for w.i++; w.data[w.i] != '"'; w.i++ {
		if w.data[w.i] == '\\' {
			escaped = true
			w.i++
		}
	}
	w.i++
	if !escaped {
		return string(w.data[start+1 : w.i-1])
	}
	var s string
	_ = json.Unmarshal(w.data[start:w.i], &s) // it is valid
	return s
}

// text writes the text of an element or an attribute.
func (w *xmlWriter) text(s string, attribute bool) {
	for _, r := range s { // U+FFFD for what is not UTF-8
		switch {
		case r == '&':
			w.out = append(w.out, "&amp;"...)
		case r == '<':
			w.out = append(w.out, "&lt;"...)
		case r == '>':
			w.out = append(w.out, "&gt;"...)
		case r == '"' && attribute:
			w.out = append(w.out, "&quot;"...)
		case r == '\r':
			w.out = append(w.out, "&#13;"...)
		case r == '\n' && attribute:
			w.out = append(w.out, "&#10;"...)
		case r == '\t' && attribute:
			w.out = append(w.out, "&#9;"...)
		case !xmlChar(r):
			w.out = utf8.AppendRune(w.out, utf8.RuneError)
		default:
			w.out = utf8.AppendRune(w.out, r)
		}
	}
}
