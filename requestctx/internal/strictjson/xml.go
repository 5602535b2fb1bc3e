package strictjson

import (
	"bytes"
	"encoding"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"unicode/utf16"
	"unicode/utf8"
)

const (
	itemName  = "item" // of an item whose list has no name for it
	entryName = "entry"
	keyName   = "key"

	xmlSpace = " \t\r\n"
	xmlURL   = "http://www.w3.org/XML/1998/namespace"
	xmlnsURL = "http://www.w3.org/2000/xmlns/"
	xsiURL   = "http://www.w3.org/2001/XMLSchema-instance"
)

const (
	reasonXML   = "is not valid XML"
	reasonSpace = "has an element in another namespace than the root element"
	reasonMixed = "has text between its elements"
)

// DecodeXML decodes data, the whole body of a request, into v by writing it as the JSON text that the package comment
// describes and giving that to [Decode]. All that is said there holds here: the strictness, the zero value after an error,
// the concurrency. The root element must have the name root.
//
// A UTF-8 byte order mark, an XML declaration of version 1.0 and UTF-8, comments, CDATA sections, the five predefined
// entities and character references are accepted, and on the root element xsi:schemaLocation and
// xsi:noNamespaceSchemaLocation, which are not read. These are errors:
//
//   - a document type declaration, and so any other entity, and a processing instruction;
//   - an element that the type does not have, or has in another letter case, and one that is there twice;
//   - an element of another namespace than the root's, and any attribute but namespaces and the key of a map's entry;
//   - text between elements, and elements within text;
//   - an element without text where a number, true or false must stand;
//   - a tab or a line break in a key that is not written as a character reference: XML takes it for a space;
//   - an object or array more than 100 deep; an element with text alone does not count, as in JSON;
//   - what is not well-formed.
//
// Comments and CDATA sections do not divide a text: 1<!-- -->2 is 12.
//
// A type with an UnmarshalText gets its text, trimmed of XML space, as a JSON string. Where it has an UnmarshalJSON as
// well, encoding/json calls that one, and it must take a string; [math/big.Int], for one, does not.
//
// The error is a [*Error] for everything that is wrong with the body; its offset is the one of the tag or text in data.
// It wraps [ErrTarget] where [CheckXML] finds a fault in the type. The work grows with the length of data and no faster,
// and the JSON text is at most twice as long.
func DecodeXML(data []byte, root string, v any) error {
	rv, err := targetOf(v)
	if err != nil {
		return err
	}
	n, err := xmlNodeOf(rv.Type().Elem())
	if err != nil {
		return err
	}
	rv.Elem().SetZero()
	x := translator{sought: -1}
	if e := x.document(data, root, n); e != nil {
		return e
	}
	err = Decode(x.out, v)
	if e, ok := errors.AsType[*Error](err); ok {
		// A second translation finds what the fault in the first one was made of.
		again := translator{sought: int(e.Offset)}
		_ = again.document(data, root, n) // it had no error the first time
		e.Offset = int64(again.base + again.found)
	}
	return err
}

// CheckXML reports all that keeps [DecodeXML] from decoding into a *T for the type t, each wrapping [ErrTarget]: what
// [Check] reports; types without a form in XML, which are interfaces, channels, types that read themselves from JSON and not
// from text, such as [encoding/json.RawMessage], and maps whose keys cannot be texts; and members and items with a name
// that no XML element can have, or with a colon in it.
func CheckXML(t reflect.Type) error {
	_, err := xmlNodeOf(t)
	return err
}

// xmlNodes holds what xmlNodeOf found: reflect.Type to xmlTarget.
var xmlNodes sync.Map

type xmlTarget struct {
	node *node
	err  error
}

func xmlNodeOf(t reflect.Type) (*node, error) {
	if known, ok := xmlNodes.Load(t); ok {
		return known.(xmlTarget).node, known.(xmlTarget).err
	}
	n, err := nodeOf(t)
	if err == nil {
		c := xmlChecker{t: t, seen: map[*node]bool{}}
		c.check(n, "")
		err = errors.Join(c.faults...)
	}
	xmlNodes.Store(t, xmlTarget{n, err})
	return n, err
}

// xmlChecker looks for what has no form in XML.
type xmlChecker struct {
	t      reflect.Type
	seen   map[*node]bool
	faults []error
}

func (c *xmlChecker) fault(path, reason string) {
	place := c.t.String()
	if path != "" {
		place = "the member " + strings.TrimPrefix(path, ".") + " of " + place
	}
	c.faults = append(c.faults, fmt.Errorf("%w: %s %s", ErrTarget, place, reason))
}

func (c *xmlChecker) check(n *node, path string) {
	n = n.target()
	switch n.kind {
	case sliceKind, arrayKind, mapKind, structKind: // they may form rings
		if c.seen[n] {
			return
		}
		c.seen[n] = true
	}
	switch n.kind {
	case noKind, anyKind, rawKind:
		c.fault(path, "has no form in XML")
	case ownKind:
		if !reflect.PointerTo(n.t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) {
			c.fault(path, "has no form in XML: it reads itself from JSON and not from text")
		}
	case sliceKind, arrayKind, mapKind:
		c.check(n.elem, path+"[*]")
	case structKind:
		for _, f := range n.fields {
			at := path + "." + f.name
			if !xmlName(f.name) {
				c.fault(at, "has a name that no XML element can have")
			}
			if k := f.node.target().kind; (k == sliceKind || k == arrayKind) && !xmlName(f.item) {
				c.fault(at, "has an xml tag with a name that no XML element can have")
			}
			c.check(f.node, at)
		}
	}
}

// target is what n points at, or n itself.
func (n *node) target() *node {
	for n.kind == pointerKind {
		n = n.elem
	}
	return n
}

// xmlName reports whether s can be the name of an element, without a colon.
func xmlName(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case c >= utf8.RuneSelf:
			t, _ := xml.NewDecoder(strings.NewReader("<" + s + "/>")).RawToken()
			e, ok := t.(xml.StartElement)
			return ok && e.Name == xml.Name{Local: s} && !strings.Contains(s, ":")
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', c == '_':
		case i > 0 && ('0' <= c && c <= '9' || c == '-' || c == '.'):
		default:
			return false
		}
	}
	return s != ""
}

// xmlChar reports whether XML 1.0 has the character r.
func xmlChar(r rune) bool {
	return r >= ' ' && r != 0xfffe && r != 0xffff || r == '\t' || r == '\n' || r == '\r'
}

// declaration is an XML declaration that says what the body must be.
var declaration = regexp.MustCompile(`^<\?xml\s+version\s*=\s*("1\.0"|'1\.0')(\s+encoding\s*=\s*("(?i:utf-8)"|'(?i:utf-8)'))?` +
	`(\s+standalone\s*=\s*("(yes|no)"|'(yes|no)'))?\s*\?>$`)

// translator writes an XML document as JSON, guided by the nodes of the target. Of the scanner in it, data and base leave
// out the byte order mark and the declaration, and i is where the latest token begins.
type translator struct {
	scanner
	d      *xml.Decoder
	raw    []byte // the latest token, as it is written
	valid  int    // how much of data is UTF-8
	out    []byte // the JSON text so far
	spaces map[string]string
	space  string // of the root element
	// found is where in data that element begins of which the byte sought of out is made.
	sought, found int
}

// element is one whose end has not been read yet.
type element struct {
	xml.StartElement
	at       int
	raw      []byte
	root     bool
	children int
	outer    []binding // what the namespaces it declares meant around it
}

// binding is what a prefix stands for; known is false for nothing.
type binding struct {
	prefix, space string
	known         bool
}

// document writes the whole text as a value of n.
func (x *translator) document(data []byte, root string, n *node) *Error {
	x.data = data
	if rest, ok := bytes.CutPrefix(data, []byte("\xef\xbb\xbf")); ok {
		x.data, x.base = rest, 3
	}
	if len(bytes.Trim(x.data, xmlSpace)) == 0 {
		return x.fail(0, reasonEmpty)
	}
	if rest, ok := bytes.CutPrefix(x.data, []byte("<?xml")); ok && len(rest) > 0 && strings.IndexByte(xmlSpace+"?", rest[0]) >= 0 {
		end := bytes.Index(x.data, []byte("?>")) + 2
		if end < 2 {
			return x.fail(len(x.data), reasonEnd)
		}
		if !declaration.Match(x.data[:end]) {
			return x.fail(0, "must have an XML declaration of version 1 and UTF-8, or none")
		}
		x.data, x.base = x.data[end:], x.base+end
	}
	for x.valid < len(x.data) {
		r, size := utf8.DecodeRune(x.data[x.valid:])
		if r == utf8.RuneError && size == 1 {
			break
		}
		x.valid += size
	}
	x.d = xml.NewDecoder(bytes.NewReader(x.data))
	x.d.CharsetReader = func(string, io.Reader) (io.Reader, error) { return nil, errors.New("not UTF-8") }
	x.spaces = map[string]string{"xml": xmlURL}

	for {
		t, err := x.token()
		if err != nil {
			return err
		}
		switch t := t.(type) {
		case nil:
			return x.fail(len(x.data), reasonEnd)
		case xml.StartElement:
			e, err := x.open(t, true)
			if err != nil {
				return err
			}
			if t.Name.Local != root {
				return x.fail(e.at, "must have the root element "+root)
			}
			x.found = e.at
			if _, err := x.attributes(e, false); err != nil {
				return err
			}
			if err := x.element(field{node: n, item: itemName}, e, 0); err != nil {
				return err
			}
			return x.rest()
		default:
			if !x.blank() {
				return x.fail(x.i, reasonXML)
			}
		}
	}
}

// rest reads what follows the root element.
func (x *translator) rest() *Error {
	for {
		switch t, err := x.token(); {
		case err != nil:
			return err
		case t == nil:
			return nil
		case !x.blank():
			return x.fail(x.i+len(x.raw)-len(bytes.TrimLeft(x.raw, xmlSpace)), reasonMore)
		}
	}
}

// token reads the next start tag, end tag or text; at the end it is nil. Text is good until the next call. Comments are
// passed over.
func (x *translator) token() (xml.Token, *Error) {
	for {
		x.i = int(x.d.InputOffset())
		t, err := x.d.RawToken()
		end := int(x.d.InputOffset())
		x.raw = x.data[x.i:end]
		if x.valid < end {
			return nil, x.fail(x.valid, reasonUTF8)
		}
		if errors.Is(err, io.EOF) {
			return nil, nil
		}
		if err != nil { // its text quotes the document
			if e, ok := errors.AsType[*xml.SyntaxError](err); ok && strings.HasPrefix(e.Msg, "unexpected EOF") {
				return nil, x.fail(len(x.data), reasonEnd)
			}
			return nil, x.fail(x.i, reasonXML)
		}
		switch t := t.(type) {
		case xml.ProcInst:
			return nil, x.fail(x.i, "must not have a processing instruction")
		case xml.Directive:
			return nil, x.fail(x.i, "must not have a document type declaration")
		case xml.Comment:
			if bytes.ContainsFunc(t, func(r rune) bool { return !xmlChar(r) }) {
				return nil, x.fail(x.i, reasonXML)
			}
			continue
		case xml.StartElement, xml.CharData:
			if err := x.halves(); err != nil {
				return nil, err
			}
		}
		return t, nil
	}
}

// blank reports whether the latest token is nothing but XML space.
func (x *translator) blank() bool { return len(x.raw) > 0 && len(bytes.Trim(x.raw, xmlSpace)) == 0 }

// halves refuses character references to half of a surrogate pair in the latest token. The tokenizer takes them for U+FFFD.
func (x *translator) halves() *Error {
	if bytes.HasPrefix(x.raw, []byte("<![")) {
		return nil
	}
	for rest := x.raw; ; {
		at := bytes.Index(rest, []byte("&#"))
		if at < 0 {
			return nil
		}
		rest = rest[at+2:]
		digits, _, _ := bytes.Cut(rest, []byte(";"))
		number, hex := strings.CutPrefix(string(digits), "x")
		base := 10
		if hex {
			base = 16
		}
		if r, err := strconv.ParseUint(number, base, 31); err == nil && utf16.IsSurrogate(rune(r)) {
			return x.fail(x.i+len(x.raw)-len(rest)-2, reasonHalf)
		}
	}
}

// open begins an element with the latest token: it brings the namespaces into scope that the tag declares, and refuses an
// element that is in another one than the root.
func (x *translator) open(t xml.StartElement, root bool) (*element, *Error) {
	e := &element{StartElement: t, at: x.i, raw: x.raw, root: root}
	var seen map[xml.Name]bool
	if len(t.Attr) > 1 {
		seen = make(map[xml.Name]bool, len(t.Attr))
	}
	for _, a := range t.Attr {
		if seen[a.Name] {
			return nil, x.fail(e.at, reasonXML)
		}
		if seen != nil {
			seen[a.Name] = true
		}
		prefix, ok := declares(a)
		if !ok {
			continue
		}
		if prefix == "xmlns" || a.Value == xmlnsURL || (prefix == "xml") != (a.Value == xmlURL) || prefix != "" && a.Value == "" ||
			strings.ContainsAny(a.Value, "\t\r\n") {
			return nil, x.fail(e.at, reasonXML)
		}
		space, known := x.spaces[prefix]
		e.outer = append(e.outer, binding{prefix, space, known})
		x.spaces[prefix] = a.Value
	}
	space, known := x.spaces[t.Name.Space]
	if !known && t.Name.Space != "" {
		return nil, x.fail(e.at, reasonXML)
	}
	if root {
		x.space = space
	}
	if space != x.space {
		return nil, x.fail(e.at, reasonSpace)
	}
	return e, nil
}

// declares gives the prefix that a declares a namespace for, "" for the namespace of names without one.
func declares(a xml.Attr) (prefix string, ok bool) {
	switch {
	case a.Name.Space == "xmlns":
		return a.Name.Local, true
	case a.Name.Space == "" && a.Name.Local == "xmlns":
		return "", true
	}
	return "", false
}

// close ends e with the end tag t.
func (x *translator) close(e *element, t xml.EndElement) *Error {
	if t.Name != e.Name {
		return x.fail(x.i, reasonXML)
	}
	for _, b := range e.outer {
		if b.known {
			x.spaces[b.prefix] = b.space
		} else {
			delete(x.spaces, b.prefix)
		}
	}
	return nil
}

// attributes refuses all attributes but those that may be there, and gives the key of an entry.
func (x *translator) attributes(e *element, entry bool) (string, *Error) {
	key, found := "", false
	rest := e.raw[len("<"):]
	for i, a := range e.Attr {
		// The tokenizer does without a space between two attributes, and with a line break in a value. Neither has a quote
		// in its name.
		begin := bytes.IndexAny(rest, `"'`)
		written := rest[begin+1:]
		written = written[:bytes.IndexByte(written, rest[begin])]
		if i > 0 && strings.IndexByte(xmlSpace, rest[0]) < 0 {
			return "", x.fail(e.at, reasonXML)
		}
		rest = rest[begin+len(written)+2:]

		_, namespace := declares(a)
		switch {
		case namespace:
		case entry && a.Name == xml.Name{Local: keyName}:
			if bytes.ContainsAny(written, "\t\r\n") {
				return "", x.fail(e.at, "must have a key whose tabs and line breaks are character references")
			}
			key, found = a.Value, true
		case e.root && x.spaces[a.Name.Space] == xsiURL && (a.Name.Local == "schemaLocation" || a.Name.Local == "noNamespaceSchemaLocation"):
		default:
			return "", x.fail(e.at, "has an unknown attribute")
		}
	}
	if entry && !found {
		return "", x.fail(e.at, "must have the attribute "+keyName)
	}
	return key, nil
}

// element writes the value of e, which stands for f; depth is the number of objects and arrays around it.
func (x *translator) element(f field, e *element, depth int) *Error {
	n := f.node.target()
	switch n.kind {
	case structKind:
		return x.members(n, e, depth+1)
	case sliceKind, arrayKind:
		return x.items(n, f.item, e, depth+1)
	case mapKind:
		return x.entries(n, e, depth+1)
	}
	text, err := x.content(n, e)
	if err != nil {
		return err
	}
	if n.kind != stringKind || f.quoted {
		text = bytes.Trim(text, xmlSpace)
	}
	switch n.kind {
	case boolKind, intKind, uintKind, floatKind, numberKind:
		if f.quoted {
			break
		}
		if len(text) == 0 {
			return x.fail(e.at, "must be "+n.kind.want()+", not empty")
		}
		if strings.IndexByte(`"[{`, text[0]) < 0 && plain(&node{kind: rawKind}, text) {
			x.out = append(x.out, text...)
			return nil
		}
		// As a string it is refused for the right reason.
	}
	x.out = appendString(x.out, text)
	return nil
}

// content gives the text of e, up to its end.
func (x *translator) content(n *node, e *element) ([]byte, *Error) {
	var text []byte
	for {
		t, err := x.token()
		if err != nil {
			return nil, err
		}
		switch t := t.(type) {
		case nil:
			return nil, x.fail(len(x.data), reasonEnd)
		case xml.CharData:
			text = append(text, t...)
		case xml.StartElement:
			k := n.kind
			if k == ownKind {
				k = textKind
			}
			return nil, x.fail(x.i, "must be "+k.want()+", not an object")
		case xml.EndElement:
			return text, x.close(e, t)
		}
	}
}

// child reads up to the next element in e, which stands for n; at the end of e it is nil.
func (x *translator) child(n *node, e *element) (*element, *Error) {
	for {
		t, err := x.token()
		if err != nil {
			return nil, err
		}
		switch t := t.(type) {
		case nil:
			return nil, x.fail(len(x.data), reasonEnd)
		case xml.CharData:
			switch {
			case x.blank():
			case e.children == 0:
				return nil, x.mismatch(n, "a string")
			default:
				return nil, x.fail(x.i, reasonMixed)
			}
		case xml.StartElement:
			if e.children++; e.children > 1 {
				x.out = append(x.out, ',')
			}
			return x.open(t, false)
		case xml.EndElement:
			return nil, x.close(e, t)
		}
	}
}

// enter begins the object or array that e stands for.
func (x *translator) enter(e *element, bracket byte, depth int) *Error {
	if depth > maxDepth {
		x.i = e.at
		return x.tooDeep()
	}
	x.out = append(x.out, bracket)
	return nil
}

// mark notes that what out gets next is made of e.
func (x *translator) mark(e *element) {
	if len(x.out) <= x.sought {
		x.found = e.at
	}
}

func (x *translator) members(n *node, e *element, depth int) *Error {
	if err := x.enter(e, '{', depth); err != nil {
		return err
	}
	for {
		c, err := x.child(n, e)
		if err != nil {
			return err
		}
		if c == nil {
			x.out = append(x.out, '}')
			return nil
		}
		k, ok := n.byName[c.Name.Local]
		if !ok {
			return x.unknown(n, c.at, []byte(c.Name.Local))
		}
		f := n.fields[k]
		x.mark(c)
		x.out = append(appendString(x.out, []byte(f.name)), ':')
		if _, err = x.attributes(c, false); err == nil {
			err = x.element(f, c, depth)
		}
		if err != nil {
			return err.within(f.name)
		}
	}
}

func (x *translator) items(n *node, name string, e *element, depth int) *Error {
	if err := x.enter(e, '[', depth); err != nil {
		return err
	}
	for i := 0; ; i++ {
		c, err := x.child(n, e)
		if err != nil {
			return err
		}
		if c == nil {
			x.out = append(x.out, ']')
			return nil
		}
		if c.Name.Local != name {
			return x.fail(c.at, reasonOther)
		}
		x.mark(c)
		if _, err = x.attributes(c, false); err == nil {
			err = x.element(field{node: n.elem, item: itemName}, c, depth)
		}
		if err != nil {
			return err.within("[" + strconv.Itoa(i) + "]")
		}
	}
}

func (x *translator) entries(n *node, e *element, depth int) *Error {
	if err := x.enter(e, '{', depth); err != nil {
		return err
	}
	for {
		c, err := x.child(n, e)
		if err != nil {
			return err
		}
		if c == nil {
			x.out = append(x.out, '}')
			return nil
		}
		if c.Name.Local != entryName {
			return x.fail(c.at, reasonOther)
		}
		x.mark(c)
		key, err := x.attributes(c, true)
		if err == nil {
			x.out = append(appendString(x.out, []byte(key)), ':')
			err = x.element(field{node: n.elem, item: itemName}, c, depth)
		}
		if err != nil {
			return err.within("[*]")
		}
	}
}

// appendString writes text, which has only characters that XML has, as a JSON string.
func appendString(out, text []byte) []byte {
	out = append(out, '"')
	for _, c := range text {
		switch c {
		case '"', '\\':
			out = append(out, '\\', c)
		case '\n':
			out = append(out, '\\', 'n')
		case '\r':
			out = append(out, '\\', 'r')
		case '\t':
			out = append(out, '\\', 't')
		default:
			out = append(out, c)
		}
	}
	return append(out, '"')
}
