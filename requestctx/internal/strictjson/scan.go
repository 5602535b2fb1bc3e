package strictjson

import (
	"bytes"
	"encoding"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"
	"unicode/utf8"
)

const (
	// maxDepth is how many objects and arrays may stand inside each other.
	maxDepth = 100
	// fewNames is up to which number the names of an object are compared one by one.
	fewNames = 16
	// safeDigits is how long a number without an exponent may be and cannot overflow even a float32.
	safeDigits = 38
)

const (
	reasonSyntax = "is not valid JSON"
	reasonEnd    = "ends too early"
	reasonTwice  = "appears twice"
	reasonUTF8   = "is not valid UTF-8"
	reasonHalf   = "has half of a surrogate pair"
	reasonOther  = "has an unknown member"
	reasonEmpty  = "is empty"
	reasonMore   = "has more data after its end"
)

// scanner walks once over a JSON text. Its methods expect i at the first byte of what they read and leave it behind the
// last one.
type scanner struct {
	data []byte
	i    int
	// base is added to the offsets in errors.
	base int
	// probe makes the walk hand each value of a type with its own decoding to that type.
	probe bool
	// names is a stack of the names read so far in the objects that are open and whose names are free.
	names [][]byte
}

func (s *scanner) fail(at int, reason string) *Error {
	return &Error{Offset: int64(s.base + at), Reason: reason}
}

// syntax is the error for a byte that cannot stand where i is.
func (s *scanner) syntax() *Error {
	if s.i >= len(s.data) {
		return s.fail(len(s.data), reasonEnd)
	}
	return s.fail(s.i, reasonSyntax)
}

func (s *scanner) mismatch(n *node, got string) *Error {
	return s.fail(s.i, "must be "+n.kind.want()+", not "+got)
}

// peek is the byte at i, and 0, which no JSON text has outside of strings, at the end.
func (s *scanner) peek() byte {
	if s.i < len(s.data) {
		return s.data[s.i]
	}
	return 0
}

func (s *scanner) space() {
	for s.i < len(s.data) {
		switch s.data[s.i] {
		case ' ', '\t', '\n', '\r':
			s.i++
		default:
			return
		}
	}
}

// body checks the whole text against n.
func (s *scanner) body(n *node) *Error {
	s.space()
	if s.i == len(s.data) {
		return s.fail(0, reasonEmpty)
	}
	start := s.i
	if err := s.value(n, 0); err != nil {
		return err
	}
	if s.data[start] == 'n' {
		return s.fail(start, "must not be null")
	}
	s.space()
	if s.i < len(s.data) {
		return s.fail(s.i, reasonMore)
	}
	return nil
}

// value checks one value against n; depth is the number of objects and arrays around it.
func (s *scanner) value(n *node, depth int) *Error {
	pointer := false
	for n.kind == pointerKind {
		n, pointer = n.elem, true
	}
	start := s.i
	c := s.peek()
	var err *Error
	switch {
	case c == '"':
		err = s.text(n)
	case c == '-' || '0' <= c && c <= '9':
		err = s.number(n)
	case c == '{' && n.kind == structKind:
		err = s.object(n, depth+1)
	case c == '{' && n.kind.takesObject():
		err = s.freeObject(n, depth+1)
	case c == '{':
		err = s.mismatch(n, "an object")
	case c == '[' && n.kind.takesArray():
		err = s.array(n, depth+1)
	case c == '[':
		err = s.mismatch(n, "an array")
	case s.literal("true"), s.literal("false"):
		if n.kind != boolKind && !n.kind.free() {
			s.i = start
			err = s.mismatch(n, "true or false")
		}
	case s.literal("null"):
		if n.kind == noKind && !pointer {
			s.i = start
			err = s.mismatch(n, "null")
		}
	default:
		err = s.syntax()
	}
	if err == nil && s.probe && n.kind.own() && !(pointer && c == 'n') && json.Unmarshal(s.data[start:s.i], reflect.New(n.t).Interface()) != nil {
		err = s.refused(n, start)
	}
	return err
}

// refused is the error for a value that its type's own decoding did not take.
func (s *scanner) refused(n *node, at int) *Error {
	if n.t == reflect.TypeFor[time.Time]() {
		return s.fail(at, "must be a time like 2006-01-02T15:04:05Z")
	}
	return s.fail(at, "is not a value that its type accepts")
}

func (s *scanner) literal(word string) bool {
	if len(s.data)-s.i < len(word) || string(s.data[s.i:s.i+len(word)]) != word {
		return false
	}
	s.i += len(word)
	return true
}

// text checks a string.
func (s *scanner) text(n *node) *Error {
	start := s.i
	switch n.kind {
	case stringKind, textKind, bytesKind, anyKind, rawKind, ownKind:
	default:
		return s.mismatch(n, "a string")
	}
	b, err := s.str()
	if err != nil {
		return err
	}
	if n.kind == bytesKind {
		// The decoder would skip line breaks.
		if _, err := base64.StdEncoding.Strict().AppendDecode(nil, b); err != nil || bytes.ContainsAny(b, "\r\n") {
			return s.fail(start, "must be "+n.kind.want())
		}
	}
	return nil
}

// number checks a number.
func (s *scanner) number(n *node) *Error {
	start := s.i
	switch n.kind {
	case intKind, uintKind, floatKind, numberKind, anyKind, rawKind, ownKind:
	default:
		return s.mismatch(n, "a number")
	}
	whole, exponent := true, false
	if s.peek() == '-' {
		s.i++
	}
	if s.peek() == '0' {
		s.i++
	} else if err := s.digits(); err != nil {
		return err
	}
	if s.peek() == '.' {
		s.i++
		whole = false
		if err := s.digits(); err != nil {
			return err
		}
	}
	if c := s.peek(); c == 'e' || c == 'E' {
		s.i++
		whole, exponent = false, true
		if c := s.peek(); c == '+' || c == '-' {
			s.i++
		}
		if err := s.digits(); err != nil {
			return err
		}
	}

	literal := s.data[start:s.i]
	var err error
	switch n.kind {
	case intKind, uintKind:
		if !whole {
			return s.fail(start, "must be "+n.kind.want()+", written without a fraction or an exponent")
		}
		if n.kind == intKind {
			_, err = strconv.ParseInt(string(literal), 10, n.bits)
		} else if literal[0] == '-' {
			return s.fail(start, "must not be negative")
		} else {
			_, err = strconv.ParseUint(string(literal), 10, n.bits)
		}
	case floatKind, anyKind:
		if exponent || len(literal) > safeDigits {
			_, err = strconv.ParseFloat(string(literal), n.bits)
		}
	}
	if err != nil {
		return s.fail(start, "is too large or too small")
	}
	return nil
}

func (s *scanner) digits() *Error {
	start := s.i
	for s.i < len(s.data) && '0' <= s.data[s.i] && s.data[s.i] <= '9' {
		s.i++
	}
	if s.i == start {
		return s.syntax()
	}
	return nil
}

// array checks an array whose elements are n.elem.
func (s *scanner) array(n *node, depth int) *Error {
	start := s.i
	if depth > maxDepth {
		return s.tooDeep()
	}
	s.i++
	s.space()
	count := 0
	if s.peek() == ']' {
		s.i++
	} else {
		for more := true; more; count++ {
			if err := s.value(n.elem, depth); err != nil {
				return err.within("[" + strconv.Itoa(count) + "]")
			}
			var err *Error
			if more, err = s.next(']'); err != nil {
				return err
			}
		}
	}
	if n.kind == arrayKind && count != n.length {
		return s.fail(start, fmt.Sprintf("must be an array of length %d", n.length))
	}
	return nil
}

func (s *scanner) tooDeep() *Error {
	return s.fail(s.i, fmt.Sprintf("is nested more than %d levels deep", maxDepth))
}

// next reads what follows an element or a member, and reports whether it was a comma, so that another must come.
func (s *scanner) next(end byte) (bool, *Error) {
	s.space()
	switch s.peek() {
	case ',':
		s.i++
		s.space()
		return true, nil
	case end:
		s.i++
		return false, nil
	}
	return false, s.syntax()
}

// object checks an object whose members are the fields of n.
func (s *scanner) object(n *node, depth int) *Error {
	if depth > maxDepth {
		return s.tooDeep()
	}
	s.i++
	s.space()
	if s.peek() == '}' {
		s.i++
		return nil
	}
	var few [2]uint64
	seen := few[:] // one bit for each field
	if len(n.fields) > 64*len(few) {
		seen = make([]uint64, len(n.fields)/64+1)
	}
	for more := true; more; {
		start := s.i
		name, err := s.name()
		if err != nil {
			return err
		}
		k, ok := n.byName[string(name)]
		if !ok {
			return s.unknown(n, start, name)
		}
		f := &n.fields[k]
		if seen[k/64]&(1<<(k%64)) != 0 {
			return s.fail(start, reasonTwice).within(f.name)
		}
		seen[k/64] |= 1 << (k % 64)
		if f.quoted {
			err = s.quoted(f.node)
		} else {
			err = s.value(f.node, depth)
		}
		if err != nil {
			return err.within(f.name)
		}
		if more, err = s.next('}'); err != nil {
			return err
		}
	}
	return nil
}

// unknown is the error for a member that n does not have. The name comes from outside and stays there.
func (s *scanner) unknown(n *node, at int, name []byte) *Error {
	for i := range n.fields {
		if f := &n.fields[i]; strings.EqualFold(f.name, string(name)) {
			return s.fail(at, "must have its name in exactly these letters, upper and lower case counted").within(f.name)
		}
	}
	return s.fail(at, reasonOther)
}

// freeObject checks an object whose names are not those of fields and whose values are n.elem.
func (s *scanner) freeObject(n *node, depth int) *Error {
	if depth > maxDepth {
		return s.tooDeep()
	}
	s.i++
	s.space()
	if s.peek() == '}' {
		s.i++
		return nil
	}
	base := len(s.names)
	var many map[string]bool // all names, once they are more than fewNames
	var keys map[any]bool    // what the names decode to, where they are more than text
	for more := true; more; {
		start := s.i
		name, err := s.name()
		if err != nil {
			return err
		}
		if many == nil && len(s.names)-base == fewNames {
			many = make(map[string]bool, 2*fewNames)
			for _, have := range s.names[base:] {
				many[string(have)] = true
			}
		}
		if many != nil {
			if many[string(name)] {
				return s.fail(start, reasonTwice).within("[*]")
			}
			many[string(name)] = true
		} else {
			for _, have := range s.names[base:] {
				if bytes.Equal(have, name) {
					return s.fail(start, reasonTwice).within("[*]")
				}
			}
			s.names = append(s.names, name)
		}
		if n.key != nil {
			if err := s.key(n.key, start, name, &keys); err != nil {
				return err.within("[*]")
			}
		}
		if err := s.value(n.elem, depth); err != nil {
			return err.within("[*]")
		}
		if more, err = s.next('}'); err != nil {
			return err
		}
	}
	s.names = s.names[:base]
	return nil
}

// name reads a member's name and goes on to its value.
func (s *scanner) name() ([]byte, *Error) {
	if s.peek() != '"' {
		return nil, s.syntax()
	}
	name, err := s.str()
	if err != nil {
		return nil, err
	}
	s.space()
	if s.peek() != ':' {
		return nil, s.syntax()
	}
	s.i++
	s.space()
	return name, nil
}

// key checks a map's key that is not just text. Two names that decode to one key are one name written twice; keys holds
// those that were there before.
func (s *scanner) key(n *node, at int, name []byte, keys *map[any]bool) *Error {
	switch n.kind {
	case stringKind:
	case textKind:
		v := reflect.New(n.t)
		if v.Interface().(encoding.TextUnmarshaler).UnmarshalText(name) != nil {
			return s.refused(n, at)
		}
		k := v.Elem().Interface()
		if (*keys)[k] {
			return s.fail(at, reasonTwice)
		}
		if *keys == nil {
			*keys = map[any]bool{}
		}
		(*keys)[k] = true
	default:
		if !plain(n, name) || string(name) == "-0" {
			return s.fail(at, "must have a name that is "+n.kind.want())
		}
	}
	return nil
}

// quoted checks the value of a field with the tag option "string": a string that holds one value.
func (s *scanner) quoted(n *node) *Error {
	start := s.i
	if s.literal("null") {
		return nil
	}
	for n.kind == pointerKind {
		n = n.elem
	}
	reason := "must be " + n.kind.want() + ", in quotes"
	if s.peek() != '"' {
		return s.fail(start, reason)
	}
	b, err := s.str()
	if err != nil {
		return err
	}
	if !plain(n, b) {
		return s.fail(start, reason)
	}
	return nil
}

// plain reports whether b is one value of a type without parts, and nothing around it.
func plain(n *node, b []byte) bool {
	in := scanner{data: b}
	return in.peek() != 'n' && in.value(n, 0) == nil && in.i == len(b)
}

// str reads a string and gives what stands in it. The bytes are part of the text where it has no escapes.
func (s *scanner) str() ([]byte, *Error) {
	var out []byte
	from := s.i + 1 // where the part begins that is not in out
	for i := from; i < len(s.data); {
		switch c := s.data[i]; {
		case c == '"':
			s.i = i + 1
			if out == nil {
				return s.data[from:i], nil
			}
			return append(out, s.data[from:i]...), nil
		case c == '\\':
			r, size, err := s.escape(i)
			if err != nil {
				return nil, err
			}
			out = utf8.AppendRune(append(out, s.data[from:i]...), r)
			i += size
			from = i
		case c < ' ':
			return nil, s.fail(i, reasonSyntax)
		case c < utf8.RuneSelf:
			i++
		default:
			r, size := utf8.DecodeRune(s.data[i:])
			if r == utf8.RuneError && size == 1 {
				return nil, s.fail(i, reasonUTF8)
			}
			i += size
		}
	}
	return nil, s.fail(len(s.data), reasonEnd)
}

// escape reads the escape at i.
func (s *scanner) escape(i int) (rune, int, *Error) {
	if i+1 == len(s.data) {
		return 0, 0, s.fail(len(s.data), reasonEnd)
	}
	switch c := s.data[i+1]; c {
	case '"', '\\', '/':
		return rune(c), 2, nil
	case 'b':
		return '\b', 2, nil
	case 'f':
		return '\f', 2, nil
	case 'n':
		return '\n', 2, nil
	case 'r':
		return '\r', 2, nil
	case 't':
		return '\t', 2, nil
	}
	r, ok := hex(s.data[i:])
	if !ok {
		return 0, 0, s.fail(i, reasonSyntax)
	}
	if !utf16.IsSurrogate(r) {
		return r, 6, nil
	}
	if low, ok := hex(s.data[i+6:]); ok {
		if pair := utf16.DecodeRune(r, low); pair != utf8.RuneError {
			return pair, 12, nil
		}
	}
	return 0, 0, s.fail(i, reasonHalf)
}

// hex reads an escape of the form \u00e9 from the start of b.
func hex(b []byte) (rune, bool) {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return 0, false
	}
	var r rune
	for _, c := range b[2:6] {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}
