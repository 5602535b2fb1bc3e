// Package strictjson decodes a request body into a typed command and refuses whatever two readers could understand
// differently.
//
// encoding/json is friendly: of two members with one name it takes the last, it matches names in any letter case, it
// ignores what it does not know and it mends broken text. Behind an idempotency key that is too friendly. Two bodies that
// decode alike are one payload, so a correction that the decoder dropped would be answered with the outcome of the first
// attempt, and nobody would notice. What is refused here never reaches the key (rule pipe-3).
//
// The package makes one pass of its own over the bytes, with the target's type beside it, and then hands them to
// encoding/json. It behaves alike with and without GOEXPERIMENT=jsonv2.
//
// # XML
//
// XML is another writing of the same JSON document. [DecodeXML] writes the XML document as the JSON text that says the same
// and hands that to [Decode], so a command is the same one in both formats, and so are its fingerprint and the reasons why
// it is refused. [EncodeXML] writes as XML what json.Marshal gives. Both use one mapping:
//
//	object with the members of a struct   an element for each member, by the member's JSON name
//	array                                 an element for each item, called as the tag xml:"name" of the struct's field
//	                                      says; without a tag, and in an array within an array, "item"
//	object with the keys of a map         <entry key="...">value</entry> for each key
//	string                                its text, as it stands
//	number, true, false                   its text; XML space around it does not count
//	null                                  nothing: the element is left out
//
// A []byte is text in base64, and a type that reads itself from text, such as [time.Time], is that text; XML space around
// either does not count. All elements are in the namespace of the root element, which may be none or any.
package strictjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
)

// ErrTarget is wrapped by the error of [Decode] when the fault is the program's and not the body's: v is no pointer, it is
// nil, or its type is one that the two forms of encoding/json read differently. It has no code of its own, so an edge
// answers it like any internal error.
var ErrTarget = errors.New("strictjson: this target cannot be decoded into")

// Error says where and why a body was refused. It holds nothing of what the body says: no value, no name that the
// target's type does not have.
type Error struct {
	// Path is where in the body, in the JSON names of the target: "lines[0].qty", "" for the body as a whole. A key of
	// a map, and a member of a value that the target takes as it comes, is written [*]. An unknown member has the path
	// of the object it stands in.
	Path string
	// Offset is the position in the body, in bytes from 0, a byte order mark included.
	Offset int64
	// Reason completes the sentence "this place in the body …", such as "must be a whole number, not a string".
	Reason string
}

func (e *Error) Error() string {
	path := e.Path
	if path == "" {
		path = "the body"
	}
	return fmt.Sprintf("strictjson: %s (byte %d): %s", path, e.Offset, e.Reason)
}

// Code is the outcome code of the error, for logs and edges.
func (*Error) Code() string { return "MALFORMED_REQUEST" }

// within puts the name of the place that e was found in before its path.
func (e *Error) within(segment string) *Error {
	switch {
	case e.Path == "":
		e.Path = segment
	case e.Path[0] == '[':
		e.Path = segment + e.Path
	default:
		e.Path = segment + "." + e.Path
	}
	return e
}

// Decode decodes data, the whole body of a request, into v, which must be a pointer and not nil. What v pointed at before
// does not count: the result comes from the body alone, and after an error it is the zero value (after [ErrTarget] it is
// untouched). Decode is safe for concurrent use with different targets and keeps no part of data.
//
// A UTF-8 byte order mark at the start is skipped. Beyond what encoding/json refuses, these are errors:
//
//   - text that is not UTF-8, and half of a surrogate pair written as an escape;
//   - two members of one object with one name, also where the type does not look inside;
//   - a member that the type does not have, or has in another letter case;
//   - null as the whole body (elsewhere null is the same as a member that is not there);
//   - an array of another length than the Go array it goes into;
//   - a list of numbers for a []byte, and base64 with line breaks or stray bits;
//   - a string for a [json.Number], and null, blanks or anything but one plain value inside the quotes of a field with
//     the option "string";
//   - a map's number key that is not in its plain form, such as "01", and two names that a map's key type takes for one;
//   - more than 100 objects and arrays inside each other.
//
// A number goes into an integer only when it is written as one: 1.0 and 1e0 are refused, as is what overflows its type.
// A float takes the nearest value, as always.
//
// The error is a [*Error] for everything that is wrong with the body. A type with an UnmarshalJSON or UnmarshalText of its
// own decides for itself what it takes, and how strictly; its value is checked for duplicates, nesting and text like
// all others, and its error is not passed on, because such errors quote what they were given.
//
// Field tags are read as encoding/json reads them. The tag options that only GOEXPERIMENT=jsonv2 knows are not
// supported: case, format, unknown, and inline except on an embedded struct.
func Decode(data []byte, v any) error {
	rv, err := targetOf(v)
	if err != nil {
		return err
	}
	n, err := nodeOf(rv.Type().Elem())
	if err != nil {
		return err
	}
	rv.Elem().SetZero()

	s := scanner{data: data}
	if bytes.HasPrefix(data, []byte("\xef\xbb\xbf")) {
		s.data, s.base = data[3:], 3
	}
	probe := s
	if e := s.body(n); e != nil {
		return e
	}
	if json.Unmarshal(s.data, v) == nil {
		return nil
	}
	rv.Elem().SetZero()

	// The pass above knows all the types that have no methods, so this was one with methods. Which one, encoding/json does
	// not say, or says it with the value; a second pass asks each of them.
	probe.probe = true
	if e := probe.body(n); e != nil {
		return e
	}
	return &Error{Offset: int64(s.base), Reason: "holds a value that its type does not accept"}
}

func targetOf(v any) (reflect.Value, error) {
	rv := reflect.ValueOf(v)
	if rv.Kind() != reflect.Pointer || rv.IsNil() {
		return rv, fmt.Errorf("%w: it must be a pointer that is not nil", ErrTarget)
	}
	return rv, nil
}

// Check reports, wrapping [ErrTarget], whether [Decode] could not decode into a *T for the type t, so that an edge can say so
// when it is built and not at the first request.
func Check(t reflect.Type) error {
	_, err := nodeOf(t)
	return err
}
