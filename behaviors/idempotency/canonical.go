package idempotency

import (
	"bytes"
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// The canonical form, version 1.
//
// It is made of the typed command and not of the bytes that came in: what the handler cannot see does not count, and
// what it can see does. It reads like JSON and is not JSON: kinds that could be taken for one another carry a letter
// before them. The type is known on both sides of a comparison, so the form has to tell apart the values of one type only.
//
//	struct            {"name":form,...} sorted by name as RFC 8785 sorts (by UTF-16 code units)
//	slice, array      [form,...]                   nil slice: null
//	map               {"key":form,...} sorted      nil map: null
//	pointer           the form of what it points to; in [ ] when that could itself be null     nil: null
//	string            "text", escaped as RFC 8785 does
//	bool, integer     true, -12
//	float             the shortest text that reads back to it, as ECMAScript and RFC 8785 write it; -0 is 0
//	[]byte, [n]byte   x"hex"                       nil: null
//	time.Time         t"2006-01-02T15:04:05.999Z", the instant in UTC
//	json.Number       n"1.0", its text: 1 and 1.0 differ
//	json.Marshaler    j and its JSON, members sorted, white space dropped, numbers as they are written
//	TextMarshaler     t"text"
//	secret            h"hex", HMAC-SHA-256 of the form of the value, under the secret that the record's hash version names
//
// Members have the names that encoding/json gives them. A struct that is embedded by value gives its members to the outer
// one; one that is embedded through a pointer, or that has a marshaller, stands as a member of its own, so that nil and
// zero differ. An exported field tagged json:"-" is in under its Go name. Nothing that a handler could read is left out
// in silence: unexported fields, and fields that share a name and hide each other, are refused when the type is compiled.
//
// A member is left out when it holds its type's zero value: false, 0 and -0, "", nil, a time that IsZero, a struct whose
// members are all left out, an array of such values, and for a type with a marshaller the zero value of its Go type. So a
// field that is added later does not change the form of a command that does not use it. An empty slice or map that is not
// nil, and a pointer to a zero value, are in. Elements of slices, arrays and maps are always in.
//
// A type with a marshaller is read through it, with MarshalJSON before MarshalText as encoding/json chooses; with the
// exception of these. Types whose kind is string are their own text. A struct that embeds a type with a marshaller is
// read by its fields, because its own marshaller may be the embedded one, which knows nothing of the other fields.
// Below a secret, numbers and booleans are their own value, because a marshaller there is most often made to hide it.
//
// Changing any of this changes fingerprints that are stored: it needs a new version, and the golden vectors say so.

const (
	// fingerprintDomain is hashed first, so that a fingerprint is never a hash that means something else.
	fingerprintDomain = "tekil/fingerprint/1"
	// maxDepth bounds how deep pointers, slices and maps may nest in a value. Deeper ones hold themselves.
	maxDepth = 1000
	// maxPooled is the largest buffer that is kept for the next fingerprint, in bytes.
	maxPooled = 64 << 10
	// maxPath is the longest path that an error shows, in bytes.
	maxPath = 200
)

// tagLike finds a key in a field's tags that may be meant as idempotency.
var tagLike = regexp.MustCompile(`(?i)(^| )idempot\w*\s*:`)

// FingerprintError is returned for a command of which no safe fingerprint can be made. Build reports types that can never
// have one (with an interface, a function or an unexported field); a dispatch is refused for a value: a float that is not a
// number, text that is not valid UTF-8, a value that holds itself, a marshaller that failed. Nothing was read or recorded.
// It holds no value of the command.
type FingerprintError struct {
	// Command is the command's name, or at Build its Go type.
	Command string
	// Path is the way to the value in member names, "" for the command itself. The keys of maps are masked.
	Path string
	// Reason says what is wrong and what to do.
	Reason string
}

func (e *FingerprintError) Error() string {
	where := ""
	if e.Path != "" {
		where = " at " + e.Path
	}
	return "idempotency: " + e.Command + ": no fingerprint" + where + ": " + e.Reason
}

// Code is the outcome code of the error.
func (*FingerprintError) Code() string { return "IDEMPOTENCY_FINGERPRINT_FAILED" }

func fault(format string, args ...any) *FingerprintError {
	return &FingerprintError{Reason: fmt.Sprintf(format, args...)}
}

// under puts a step before the path, on the way out of a value.
func (e *FingerprintError) under(step string) *FingerprintError {
	e.Path = joinPath(step, e.Path)
	if len(e.Path) > maxPath {
		e.Path = strings.ToValidUTF8(e.Path[:maxPath], "") + "…"
	}
	return e
}

func joinPath(head, tail string) string {
	if head == "" || tail == "" || tail[0] == '[' {
		return head + tail
	}
	return head + "." + tail
}

// fingerprintInput are the parts of a fingerprint besides the command. Resource holds the concrete values of the path,
// because the record's scope knows the route only as a template.
type fingerprintInput struct {
	Tenant, Command string
	ContractVersion int
	Resource        []string
}

// appendTo appends the parts, each with its length, so that no two inputs run into the same bytes.
func (in fingerprintInput) appendTo(dst []byte) []byte {
	dst = append(dst, fingerprintDomain...)
	dst = appendSized(dst, in.Tenant)
	dst = appendSized(dst, in.Command)
	dst = binary.BigEndian.AppendUint64(dst, uint64(in.ContractVersion))
	dst = binary.BigEndian.AppendUint64(dst, uint64(len(in.Resource)))
	for _, r := range in.Resource {
		dst = appendSized(dst, r)
	}
	return dst
}

func appendSized(dst []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint64(dst, uint64(len(s))), s...)
}

// encoder makes the canonical form of the values of one type. It is made once, by compileEncoder, and is safe for
// concurrent use.
type encoder struct {
	goType  string
	root    *node
	secrets bool
	writers sync.Pool // of *writer
}

// node encodes the values of one type.
type node struct {
	encode func(w *writer, v reflect.Value) *FingerprintError
	zero   func(v reflect.Value) bool // whether a member with this value is left out
}

// writer is the state of one pass over a value.
type writer struct {
	buf    []byte
	secret []byte
	depth  int
}

// hasSecrets reports whether a field anywhere in the type is tagged idempotency:"secret".
func (e *encoder) hasSecrets() bool { return e.secrets }

// appendTo appends the canonical form of v to dst. secret is the key of the HMAC and is not used where the type has no
// secrets. On an error dst comes back as it was.
func (e *encoder) appendTo(dst []byte, v reflect.Value, secret []byte) ([]byte, error) {
	w := &writer{buf: dst, secret: secret}
	if err := e.write(w, v); err != nil {
		err.Command = e.goType
		return dst, err
	}
	return w.buf, nil
}

// fingerprint is SHA-256 over the domain, the parts of in, and the canonical form of v.
func (e *encoder) fingerprint(in fingerprintInput, v reflect.Value, secret []byte) ([32]byte, error) {
	w, _ := e.writers.Get().(*writer)
	if w == nil {
		w = new(writer)
	}
	defer e.release(w)
	w.buf, w.secret, w.depth = in.appendTo(w.buf[:0]), secret, 0
	if err := e.write(w, v); err != nil {
		err.Command = in.Command
		return [32]byte{}, err
	}
	return sha256.Sum256(w.buf), nil
}

// fingerprintOf is fingerprint for a command that the caller holds.
func fingerprintOf[C any](e *encoder, in fingerprintInput, cmd *C, secret []byte) ([32]byte, error) {
	return e.fingerprint(in, reflect.ValueOf(cmd).Elem(), secret)
}

func (e *encoder) write(w *writer, v reflect.Value) *FingerprintError {
	if e.secrets && len(w.secret) == 0 {
		return fault("the command has secret fields and there is no key for them; configure one")
	}
	return e.root.encode(w, v)
}

// release gives w back, without the payload in it.
func (e *encoder) release(w *writer) {
	if cap(w.buf) > maxPooled {
		return
	}
	clear(w.buf)
	w.secret = nil
	e.writers.Put(w)
}

func (w *writer) enter() *FingerprintError {
	if w.depth == maxDepth {
		return fault("the value nests more than %d levels deep, which mostly means that it holds itself", maxDepth)
	}
	w.depth++
	return nil
}

func (w *writer) leave() { w.depth-- }

// string writes a string whose text counts.
func (w *writer) string(s string) *FingerprintError {
	if !utf8.ValidString(s) {
		return fault("the text is not valid UTF-8; refuse it when decoding, or use []byte")
	}
	w.buf = appendString(w.buf, s)
	return nil
}

// marked is string with a letter before it.
func (w *writer) marked(mark byte, s string) *FingerprintError {
	w.buf = append(w.buf, mark)
	return w.string(s)
}

// A compiler walks one type.
type compiler struct {
	goType   string
	nodes    map[nodeKey]*node // named types only: without a name a type cannot hold itself
	problems []error
	secrets  bool
}

type nodeKey struct {
	t      reflect.Type
	secret bool // below a secret field
}

// compileEncoder walks t once and gives its encoder, or every reason why there can be none, joined: each a
// *FingerprintError that names t, the path and what to do.
//
// Types with a marshaller are tried out on a few values that they decode: one that gives the same for all of them (it
// hides what it holds), or another text each time, is a problem too.
func compileEncoder(t reflect.Type) (*encoder, error) {
	c := &compiler{goType: t.String(), nodes: make(map[nodeKey]*node)}
	root := c.node(t, "", false)
	if len(c.problems) > 0 {
		return nil, errors.Join(c.problems...)
	}
	return &encoder{goType: c.goType, root: root, secrets: c.secrets}, nil
}

func (c *compiler) problem(path, format string, args ...any) {
	c.problems = append(c.problems, &FingerprintError{Command: c.goType, Path: path, Reason: fmt.Sprintf(format, args...)})
}

// node gives the node of t. It is not nil even where t is refused.
func (c *compiler) node(t reflect.Type, path string, secret bool) *node {
	key := nodeKey{t, secret}
	if n, ok := c.nodes[key]; ok {
		return n
	}
	n := new(node)
	if t.Name() != "" && !refused(t.Kind()) {
		c.nodes[key] = n
	}
	switch m, hasMarshaller := marshallerOf(t); {
	case refused(t.Kind()):
		c.problem(path, "the type %v has no canonical form; %s, or leave the field out with the tag idempotency:\"-\"", t, instead(t.Kind()))
	case t == reflect.TypeFor[time.Time]():
		*n = node{encode: encodeTime, zero: func(v reflect.Value) bool { return asTime(v).IsZero() }}
	case t == reflect.TypeFor[json.Number]():
		*n = node{encode: encodeNumber, zero: reflect.Value.IsZero}
	case t.Kind() == reflect.String:
		*n = node{encode: encodeString, zero: reflect.Value.IsZero}
	case hasMarshaller && !(secret && basic(t.Kind())):
		c.checkMarshaller(m, path, secret)
		*n = node{encode: m.encode, zero: reflect.Value.IsZero}
	default:
		c.byKind(n, t, path, secret)
	}
	return n
}

func (c *compiler) byKind(n *node, t reflect.Type, path string, secret bool) {
	n.zero = reflect.Value.IsZero
	switch t.Kind() {
	case reflect.Bool:
		n.encode = encodeBool
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		n.encode = encodeInt
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		n.encode = encodeUint
	case reflect.Float32, reflect.Float64:
		bits := t.Bits()
		n.encode = func(w *writer, v reflect.Value) *FingerprintError { return encodeFloat(w, v, bits) }
		n.zero = func(v reflect.Value) bool { return v.Float() == 0 } // -0 too, whatever reflect's IsZero says of it
	case reflect.Pointer:
		n.encode = encodePointer(c.node(t.Elem(), path, secret), t.Elem())
	case reflect.Slice, reflect.Array:
		if _, own := marshallerOf(t.Elem()); t.Elem().Kind() == reflect.Uint8 && !own {
			n.encode = encodeBytes
			return
		}
		elem := c.node(t.Elem(), path+"[*]", secret)
		n.encode = encodeList(elem)
		if t.Kind() == reflect.Array {
			n.zero = func(v reflect.Value) bool {
				for i := range v.Len() {
					if !elem.zero(v.Index(i)) {
						return false
					}
				}
				return true
			}
		}
	case reflect.Map:
		key := c.mapKey(t.Key(), path)
		n.encode = encodeMap(key, c.node(t.Elem(), path+"[*]", secret))
	case reflect.Struct:
		members := c.members(t, path, secret)
		n.encode = encodeStruct(members)
		n.zero = func(v reflect.Value) bool {
			for i := range members {
				if !members[i].node.zero(members[i].of(v)) {
					return false
				}
			}
			return true
		}
	}
}

// refused reports the kinds that have no canonical form, whatever methods their types have.
func refused(k reflect.Kind) bool {
	switch k {
	case reflect.Interface, reflect.Func, reflect.Chan, reflect.Complex64, reflect.Complex128, reflect.Uintptr,
		reflect.UnsafePointer, reflect.Invalid:
		return true
	}
	return false
}

func instead(k reflect.Kind) string {
	if k == reflect.Interface {
		return "an interface can hold anything, so use a concrete type, or json.RawMessage for JSON of any form"
	}
	return "use a type that holds plain data"
}

// basic reports the kinds whose value is one number or truth value.
func basic(k reflect.Kind) bool { return k >= reflect.Bool && k <= reflect.Float64 }

// member is a field that is in the canonical form of a struct.
type member struct {
	name   string
	prefix []byte // the name as it is written, with the colon
	index  []int
	goName string
	node   *node
	secret bool
}

// of gives the member's value in the struct v. The path goes through structs only and never meets a nil pointer.
func (m *member) of(v reflect.Value) reflect.Value {
	for _, i := range m.index {
		v = v.Field(i)
	}
	return v
}

// members gives the members of the struct t, sorted by name.
func (c *compiler) members(t reflect.Type, path string, secret bool) []member {
	members := c.fields(nil, t, nil, path, secret)
	slices.SortStableFunc(members, func(a, b member) int { return compareUTF16(a.name, b.name) })
	for i := 1; i < len(members); i++ {
		if a, b := members[i-1], members[i]; a.name == b.name {
			c.problem(joinPath(path, b.name), "the fields %s and %s of %v share this name, so JSON does not carry both; give one of them another name or leave it out with the tag idempotency:\"-\"", a.goName, b.goName, t)
		}
	}
	return members
}

// fields appends the fields of t, and those of the structs that it embeds by value.
func (c *compiler) fields(members []member, t reflect.Type, index []int, path string, secret bool) []member {
	for i := range t.NumField() {
		f := t.Field(i)
		goName := t.String() + "." + f.Name
		mark := c.tag(f, joinPath(path, f.Name), goName)
		if mark == "-" || f.Name == "_" || !f.IsExported() && f.Type.Size() == 0 {
			continue // a blank field, or one without size, holds nothing
		}
		if !f.IsExported() && !embedsPlainStruct(f) {
			c.problem(joinPath(path, f.Name), "the field %s of %v is unexported, so JSON does not carry it and it may change the meaning all the same; export it, give its type a MarshalJSON or MarshalText, or leave it out with the tag idempotency:\"-\" (on this field, or on the one that holds a %v)", f.Name, t, t)
			continue
		}
		name, tagged := jsonName(f)
		at := append(slices.Clone(index), i)
		if f.Anonymous && !tagged && mark == "" && f.Type.Kind() == reflect.Struct && embedsPlainStruct(f) {
			members = c.fields(members, f.Type, at, path, secret)
			continue
		}
		members = append(members, member{
			name:   name,
			prefix: append(appendString(nil, name), ':'),
			index:  at,
			goName: goName,
			node:   c.node(f.Type, joinPath(path, name), secret || mark == "secret"),
			secret: mark == "secret",
		})
	}
	return members
}

// tag reads the field's idempotency tag, which is "", "-" or "secret".
func (c *compiler) tag(f reflect.StructField, path, goName string) string {
	mark, ok := f.Tag.Lookup("idempotency")
	switch {
	case mark == "-", !ok && !tagLike.MatchString(string(f.Tag)):
		return mark
	case mark == "secret":
		c.secrets = true
		return mark
	case !ok:
		c.problem(path, "the tags of %s hold one that looks like an idempotency tag and is none; write idempotency:\"-\" or idempotency:\"secret\", and check the quotes of the tags before it", goName)
	default:
		c.problem(path, "the tag of %s is idempotency:%q; it can be \"-\" or \"secret\"", goName, mark)
	}
	return ""
}

// embedsPlainStruct reports an embedded struct, or pointer to one, that is read by its fields. Such a field may be
// unexported: encoding/json carries its fields, and reflection reads them.
func embedsPlainStruct(f reflect.StructField) bool {
	t := f.Type
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if !f.Anonymous || t.Kind() != reflect.Struct {
		return false
	}
	_, own := marshallerOf(t)
	return !own
}

// jsonName gives the name that encoding/json would give the field, and whether a tag says so. A field tagged json:"-" has
// its Go name.
func jsonName(f reflect.StructField) (name string, tagged bool) {
	tag := f.Tag.Get("json")
	if tag == "-" {
		return f.Name, true
	}
	name, _, _ = strings.Cut(tag, ",")
	valid := name != "" && !strings.ContainsFunc(name, func(r rune) bool {
		return !strings.ContainsRune("!#$%&()*+-./:;<=>?@[]^_{|}~ ", r) && !unicode.IsLetter(r) && !unicode.IsDigit(r)
	})
	if !valid {
		return f.Name, false
	}
	return name, true
}

// compareUTF16 orders valid UTF-8 by UTF-16 code units, as RFC 8785 does. The order of the bytes is that of the code
// points, and differs only between a code point above U+FFFF (a surrogate pair, D800 to DFFF) and one from U+E000 to U+FFFF.
func compareUTF16(a, b string) int {
	for i := range min(len(a), len(b)) {
		x, y := a[i], b[i]
		switch {
		case x == y:
		case x >= 0xF0 && (y == 0xEE || y == 0xEF):
			return -1
		case y >= 0xF0 && (x == 0xEE || x == 0xEF):
			return 1
		default:
			return cmp.Compare(x, y)
		}
	}
	return cmp.Compare(len(a), len(b))
}

func encodeBool(w *writer, v reflect.Value) *FingerprintError {
	w.buf = strconv.AppendBool(w.buf, v.Bool())
	return nil
}

func encodeInt(w *writer, v reflect.Value) *FingerprintError {
	w.buf = strconv.AppendInt(w.buf, v.Int(), 10)
	return nil
}

func encodeUint(w *writer, v reflect.Value) *FingerprintError {
	w.buf = strconv.AppendUint(w.buf, v.Uint(), 10)
	return nil
}

func encodeFloat(w *writer, v reflect.Value, bits int) *FingerprintError {
	f := v.Float()
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return fault("the number is NaN or infinite; refuse it in validation")
	}
	w.buf = appendFloat(w.buf, f, bits)
	return nil
}

// appendFloat writes the shortest text that reads back to f, in the form of ECMAScript's Number::toString.
func appendFloat(dst []byte, f float64, bits int) []byte {
	abs := math.Abs(f)
	switch {
	case abs == 0:
		return append(dst, '0')
	case abs >= 1e-6 && abs < 1e21:
		return strconv.AppendFloat(dst, f, 'f', -1, bits)
	}
	start := len(dst)
	dst = strconv.AppendFloat(dst, f, 'e', -1, bits)
	// Go writes at least two digits of exponent, ECMAScript only those that it needs.
	if exp := start + bytes.IndexByte(dst[start:], 'e') + 2; dst[exp] == '0' {
		dst = append(dst[:exp], dst[exp+1:]...)
	}
	return dst
}

func encodeString(w *writer, v reflect.Value) *FingerprintError { return w.string(v.String()) }

func encodeNumber(w *writer, v reflect.Value) *FingerprintError { return w.marked('n', v.String()) }

// appendString writes valid UTF-8 as RFC 8785 does: only what must be escaped is, and in one way.
func appendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	done := 0
	for i := range len(s) {
		b := s[i]
		if b >= 0x20 && b != '"' && b != '\\' {
			continue
		}
		dst = append(append(dst, s[done:i]...), '\\')
		done = i + 1
		switch b {
		case '"', '\\':
			dst = append(dst, b)
		case '\b':
			dst = append(dst, 'b')
		case '\t':
			dst = append(dst, 't')
		case '\n':
			dst = append(dst, 'n')
		case '\f':
			dst = append(dst, 'f')
		case '\r':
			dst = append(dst, 'r')
		default:
			dst = append(dst, 'u', '0', '0', '0'+b>>4, "0123456789abcdef"[b&15])
		}
	}
	return append(append(dst, s[done:]...), '"')
}

func encodeBytes(w *writer, v reflect.Value) *FingerprintError {
	if v.Kind() == reflect.Slice && v.IsNil() {
		w.buf = append(w.buf, "null"...)
		return nil
	}
	w.buf = append(w.buf, 'x', '"')
	if v.Kind() == reflect.Slice || v.CanAddr() {
		w.buf = hex.AppendEncode(w.buf, v.Bytes())
	} else {
		for i := range v.Len() {
			w.buf = hex.AppendEncode(w.buf, []byte{byte(v.Index(i).Uint())})
		}
	}
	w.buf = append(w.buf, '"')
	return nil
}

func asTime(v reflect.Value) time.Time {
	if v.CanAddr() {
		return *v.Addr().Interface().(*time.Time) // does not allocate, as v.Interface() would
	}
	return v.Interface().(time.Time)
}

func encodeTime(w *writer, v reflect.Value) *FingerprintError {
	w.buf = append(w.buf, 't', '"')
	w.buf = asTime(v).UTC().AppendFormat(w.buf, time.RFC3339Nano)
	w.buf = append(w.buf, '"')
	return nil
}

func encodePointer(elem *node, t reflect.Type) func(*writer, reflect.Value) *FingerprintError {
	canBeNull := t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Map
	return func(w *writer, v reflect.Value) *FingerprintError {
		if v.IsNil() {
			w.buf = append(w.buf, "null"...)
			return nil
		}
		if err := w.enter(); err != nil {
			return err
		}
		defer w.leave()
		if !canBeNull {
			return elem.encode(w, v.Elem())
		}
		w.buf = append(w.buf, '[')
		err := elem.encode(w, v.Elem())
		w.buf = append(w.buf, ']')
		return err
	}
}

func encodeList(elem *node) func(*writer, reflect.Value) *FingerprintError {
	return func(w *writer, v reflect.Value) *FingerprintError {
		if v.Kind() == reflect.Slice && v.IsNil() {
			w.buf = append(w.buf, "null"...)
			return nil
		}
		if err := w.enter(); err != nil {
			return err
		}
		defer w.leave()
		w.buf = append(w.buf, '[')
		for i := range v.Len() {
			if i > 0 {
				w.buf = append(w.buf, ',')
			}
			if err := elem.encode(w, v.Index(i)); err != nil {
				return err.under("[" + strconv.Itoa(i) + "]")
			}
		}
		w.buf = append(w.buf, ']')
		return nil
	}
}

func encodeStruct(members []member) func(*writer, reflect.Value) *FingerprintError {
	return func(w *writer, v reflect.Value) *FingerprintError {
		w.buf = append(w.buf, '{')
		first := true
		for i := range members {
			m := &members[i]
			f := m.of(v)
			if m.node.zero(f) {
				continue
			}
			if !first {
				w.buf = append(w.buf, ',')
			}
			first = false
			w.buf = append(w.buf, m.prefix...)
			start := len(w.buf)
			if err := m.node.encode(w, f); err != nil {
				return err.under(m.name)
			}
			if m.secret {
				w.seal(start)
			}
		}
		w.buf = append(w.buf, '}')
		return nil
	}
}

// seal replaces what was written since start by its HMAC.
func (w *writer) seal(start int) {
	mac := hmac.New(sha256.New, w.secret)
	mac.Write(w.buf[start:])
	clear(w.buf[start:])
	w.buf = append(w.buf[:start], 'h', '"')
	w.buf = hex.AppendEncode(w.buf, mac.Sum(nil))
	w.buf = append(w.buf, '"')
}

// mapKey gives the function that makes the text of a key of type t.
func (c *compiler) mapKey(t reflect.Type, path string) func(reflect.Value) (string, *FingerprintError) {
	m, isText := textMarshallerOf(t)
	switch k := t.Kind(); {
	case k == reflect.String:
		return func(v reflect.Value) (string, *FingerprintError) { return v.String(), nil }
	case t == reflect.TypeFor[time.Time]():
		return func(v reflect.Value) (string, *FingerprintError) {
			return asTime(v).UTC().Format(time.RFC3339Nano), nil
		}
	case isText && !refused(k) && k != reflect.Pointer:
		return func(v reflect.Value) (string, *FingerprintError) {
			text, err := m.call(v)
			return string(text), err
		}
	case k >= reflect.Int && k <= reflect.Int64:
		return func(v reflect.Value) (string, *FingerprintError) { return strconv.FormatInt(v.Int(), 10), nil }
	case k >= reflect.Uint && k <= reflect.Uint64:
		return func(v reflect.Value) (string, *FingerprintError) { return strconv.FormatUint(v.Uint(), 10), nil }
	}
	c.problem(path, "maps with keys of type %v have no canonical form; use strings, integers or a type with MarshalText as keys", t)
	return nil
}

func encodeMap(key func(reflect.Value) (string, *FingerprintError), elem *node) func(*writer, reflect.Value) *FingerprintError {
	type entry struct {
		key   string
		value reflect.Value
	}
	return func(w *writer, v reflect.Value) *FingerprintError {
		if v.IsNil() {
			w.buf = append(w.buf, "null"...)
			return nil
		}
		if err := w.enter(); err != nil {
			return err
		}
		defer w.leave()
		entries := make([]entry, 0, v.Len())
		for it := v.MapRange(); it.Next(); {
			k, err := key(it.Key())
			if err != nil {
				return err.under("[*]")
			}
			entries = append(entries, entry{k, it.Value()})
		}
		slices.SortFunc(entries, func(a, b entry) int { return compareUTF16(a.key, b.key) })
		w.buf = append(w.buf, '{')
		for i, e := range entries {
			if i > 0 {
				if e.key == entries[i-1].key {
					return fault("two keys of the map have the same text").under("[*]")
				}
				w.buf = append(w.buf, ',')
			}
			if err := w.string(e.key); err != nil {
				return err.under("[*]")
			}
			w.buf = append(w.buf, ':')
			if err := elem.encode(w, e.value); err != nil {
				return err.under("[*]")
			}
		}
		w.buf = append(w.buf, '}')
		return nil
	}
}

// marshaller is how the values of a type with a marshaller are read.
type marshaller struct {
	t       reflect.Type
	json    bool // MarshalJSON, and not MarshalText
	pointer bool // only the pointer has it
}

// marshallerOf gives the marshaller through which t is read, if there is one.
func marshallerOf(t reflect.Type) (marshaller, bool) {
	if t.Kind() == reflect.Struct {
		for i := range t.NumField() {
			if f := t.Field(i); f.Anonymous && hasMarshaller(f.Type) {
				return marshaller{}, false
			}
		}
	}
	if value, pointer := implements[json.Marshaler](t); value || pointer {
		return marshaller{t: t, json: true, pointer: !value}, true
	}
	return textMarshallerOf(t)
}

func textMarshallerOf(t reflect.Type) (marshaller, bool) {
	value, pointer := implements[encoding.TextMarshaler](t)
	return marshaller{t: t, pointer: !value}, value || pointer
}

func hasMarshaller(t reflect.Type) bool {
	jv, jp := implements[json.Marshaler](t)
	tv, tp := implements[encoding.TextMarshaler](t)
	return jv || jp || tv || tp
}

// implements reports whether values of t, or only pointers to them, have the methods of I. A pointer has no marshaller of
// its own: it is nil, or what it points to has one.
func implements[I any](t reflect.Type) (value, pointer bool) {
	if t.Kind() == reflect.Pointer && t.Name() == "" {
		return false, false
	}
	i := reflect.TypeFor[I]()
	return t.Implements(i), reflect.PointerTo(t).Implements(i)
}

func (m marshaller) String() string {
	if m.json {
		return "MarshalJSON of " + m.t.String()
	}
	return "MarshalText of " + m.t.String()
}

// call asks the marshaller. Neither its error nor its panic is passed on, because they may quote the value.
func (m marshaller) call(v reflect.Value) (out []byte, err *FingerprintError) {
	defer func() {
		if recover() != nil {
			out, err = nil, fault("%v panicked", m)
		}
	}()
	var x any
	switch {
	case v.CanAddr():
		x = v.Addr().Interface() // has the methods of the value too, and does not allocate
	case m.pointer:
		p := reflect.New(m.t)
		p.Elem().Set(v)
		x = p.Interface()
	default:
		x = v.Interface()
	}
	var failed error
	if m.json {
		out, failed = x.(json.Marshaler).MarshalJSON()
	} else {
		out, failed = x.(encoding.TextMarshaler).MarshalText()
	}
	if failed != nil {
		return nil, fault("%v returned an error", m)
	}
	return out, nil
}

func (m marshaller) encode(w *writer, v reflect.Value) *FingerprintError {
	if k := m.t.Kind(); (k == reflect.Slice || k == reflect.Map) && v.IsNil() {
		w.buf = append(w.buf, "null"...)
		return nil
	}
	out, err := m.call(v)
	if err != nil {
		return err
	}
	if !m.json {
		return w.marked('t', string(out))
	}
	form, reason := appendJSON(append(w.buf, 'j'), out)
	if reason != "" {
		return fault("what %v gave %s", m, reason)
	}
	w.buf = form
	return nil
}

// checkMarshaller tries the marshaller of a type out on the zero value and on what the type decodes from a few texts.
func (c *compiler) checkMarshaller(m marshaller, path string, secret bool) {
	values := map[string]reflect.Value{} // by form: the first that has it
	hidden := false                      // two values have one form
	unsteady := false
	try := func(v reflect.Value) (form string, ok bool) {
		var first, second writer
		if m.encode(&first, v) != nil || m.encode(&second, v) != nil {
			return "", false
		}
		unsteady = unsteady || !bytes.Equal(first.buf, second.buf)
		return string(first.buf), true
	}
	try(reflect.New(m.t).Elem())
	for _, sample := range samples() {
		p := reflect.New(m.t)
		if !decodes(sample, p) {
			continue
		}
		form, ok := try(p.Elem())
		if !ok {
			continue
		}
		if other, seen := values[form]; !seen {
			values[form] = p.Elem()
		} else if !reflect.DeepEqual(other.Interface(), p.Elem().Interface()) {
			hidden = true
		}
	}
	switch {
	case unsteady:
		c.problem(path, "%v gives one value two forms; make it depend on the value alone, or leave the field out with the tag idempotency:\"-\"", m)
	case hidden && len(values) == 1 && !basic(m.t.Kind()):
		c.problem(path, "%v gives different values one form, as if it hid them, so a changed value would go unseen; hold the value in a string or []byte type, or leave the field out with the tag idempotency:\"-\"", m)
	case secret && len(values) < 2:
		c.problem(path, "%v stands below a secret and may hide what it holds; hold the secret in a string or []byte type", m)
	}
}

// samples are JSON texts that types of many sorts decode.
func samples() []string {
	return []string{
		`1`, `2`, `true`, `false`, `"1"`, `"2"`, `"a"`, `"b"`, `"true"`, `"false"`, `"YQ=="`, `"Yg=="`, `[1]`, `[2]`, `{"a":1}`, `{"a":2}`,
		`"2001-02-03"`, `"2001-02-04"`, `"2001-02-03T04:05:06Z"`, `"2001-02-03T04:05:07Z"`, `"10.0.0.1"`, `"10.0.0.2"`,
		`"00000000-0000-4000-8000-000000000001"`, `"00000000-0000-4000-8000-000000000002"`,
	}
}

func decodes(sample string, p reflect.Value) (ok bool) {
	defer func() {
		if recover() != nil {
			ok = false
		}
	}()
	return json.Unmarshal([]byte(sample), p.Interface()) == nil
}

// appendJSON appends the canonical form of a JSON text, or gives the reason why it has none, which reads on after "it".
func appendJSON(dst, in []byte) ([]byte, string) {
	if !json.Valid(in) {
		return dst, "is not valid JSON"
	}
	r := &jsonReader{in: in}
	return r.value(dst, 0)
}

// jsonReader reads JSON that is known to be well formed.
type jsonReader struct {
	in  []byte
	pos int
}

// next skips white space, and the comma or colon that may stand there, and gives the byte behind it.
func (r *jsonReader) next() byte {
	for strings.IndexByte(" \t\r\n,:", r.in[r.pos]) >= 0 {
		r.pos++
	}
	return r.in[r.pos]
}

func (r *jsonReader) value(dst []byte, depth int) ([]byte, string) {
	if depth > maxDepth {
		return dst, "nests too deep"
	}
	switch r.next() {
	case '"':
		s, reason := r.string()
		return appendString(dst, s), reason
	case '[':
		return r.array(dst, depth)
	case '{':
		return r.object(dst, depth)
	}
	start := r.pos // a number or a literal: as it is written
	for r.pos < len(r.in) && strings.IndexByte(" \t\r\n,:]}", r.in[r.pos]) < 0 {
		r.pos++
	}
	return append(dst, r.in[start:r.pos]...), ""
}

func (r *jsonReader) array(dst []byte, depth int) ([]byte, string) {
	r.pos++
	dst = append(dst, '[')
	for first := true; r.next() != ']'; first = false {
		if !first {
			dst = append(dst, ',')
		}
		var reason string
		if dst, reason = r.value(dst, depth+1); reason != "" {
			return dst, reason
		}
	}
	r.pos++
	return append(dst, ']'), ""
}

func (r *jsonReader) object(dst []byte, depth int) ([]byte, string) {
	type jsonMember struct {
		name string
		form []byte
	}
	r.pos++
	var members []jsonMember
	for r.next() != '}' {
		name, reason := r.string()
		if reason != "" {
			return dst, reason
		}
		form, reason := r.value(nil, depth+1)
		if reason != "" {
			return dst, reason
		}
		members = append(members, jsonMember{name, form})
	}
	r.pos++
	slices.SortFunc(members, func(a, b jsonMember) int { return compareUTF16(a.name, b.name) })
	dst = append(dst, '{')
	for i, m := range members {
		if i > 0 {
			if m.name == members[i-1].name {
				return dst, "has a member twice"
			}
			dst = append(dst, ',')
		}
		dst = append(append(appendString(dst, m.name), ':'), m.form...)
	}
	return append(dst, '}'), ""
}

// string reads a string and refuses what is not Unicode: bytes that are not UTF-8, and half a surrogate pair.
func (r *jsonReader) string() (string, string) {
	const notUnicode = "holds text that is not valid Unicode"
	var text []byte
	for r.pos++; r.in[r.pos] != '"'; r.pos++ {
		if r.in[r.pos] != '\\' {
			text = append(text, r.in[r.pos])
			continue
		}
		r.pos++
		switch b := r.in[r.pos]; b {
		case 'b':
			text = append(text, '\b')
		case 't':
			text = append(text, '\t')
		case 'n':
			text = append(text, '\n')
		case 'f':
			text = append(text, '\f')
		case 'r':
			text = append(text, '\r')
		case 'u':
			c := r.hex(r.pos + 1)
			r.pos += 4
			if utf16.IsSurrogate(c) {
				if r.in[r.pos+1] != '\\' || r.in[r.pos+2] != 'u' {
					return "", notUnicode
				}
				if c = utf16.DecodeRune(c, r.hex(r.pos+3)); c == unicode.ReplacementChar {
					return "", notUnicode
				}
				r.pos += 6
			}
			text = utf8.AppendRune(text, c)
		default: // a quote, a backslash or a slash
			text = append(text, b)
		}
	}
	r.pos++
	if !utf8.Valid(text) {
		return "", notUnicode
	}
	return string(text), ""
}

// hex reads the four hexadecimal digits at pos.
func (r *jsonReader) hex(pos int) rune {
	var c [2]byte
	_, _ = hex.Decode(c[:], r.in[pos:pos+4])
	return rune(binary.BigEndian.Uint16(c[:]))
}
