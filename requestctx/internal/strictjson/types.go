package strictjson

import (
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"unicode"
)

// kind is what a place in the target takes.
type kind uint8

const (
	noKind     kind = iota // nothing: a channel, an interface with methods
	anyKind                // anything, by encoding/json's own rules
	rawKind                // anything, inside a value of ownKind
	ownKind                // anything, by the type's own UnmarshalJSON
	textKind               // a string, by the type's own UnmarshalText
	numberKind             // a json.Number
	bytesKind              // a string in base64
	boolKind
	intKind
	uintKind
	floatKind
	stringKind
	sliceKind
	arrayKind
	mapKind
	structKind
	pointerKind
)

func (k kind) free() bool        { return k == anyKind || k == rawKind || k == ownKind }
func (k kind) own() bool         { return k == ownKind || k == textKind }
func (k kind) takesObject() bool { return k == mapKind || k.free() }
func (k kind) takesArray() bool  { return k == sliceKind || k == arrayKind || k.free() }

// want completes the sentence "it must be …".
func (k kind) want() string {
	switch k {
	case boolKind:
		return "true or false"
	case intKind, uintKind:
		return "a whole number"
	case floatKind, numberKind:
		return "a number"
	case stringKind, textKind:
		return "a string"
	case bytesKind:
		return "a string in base64"
	case sliceKind, arrayKind:
		return "an array"
	case mapKind, structKind:
		return "an object"
	}
	return "left out"
}

// node describes a type as far as the scanner needs to know it. A finished node does not change.
type node struct {
	kind   kind
	t      reflect.Type
	bits   int   // of a number
	length int   // of an array
	key    *node // of a map
	elem   *node // of a pointer, slice, array or map; for what is taken as it comes, what its parts are
	fields []field
	byName map[string]int
}

type field struct {
	name   string
	node   *node
	quoted bool   // the tag option "string"
	item   string // what an item of a list is called in XML
	index  []int  // for [reflect.Value.FieldByIndex]
}

// nodes holds the finished nodes: reflect.Type to *node.
var nodes sync.Map

func nodeOf(t reflect.Type) (*node, error) {
	if n, ok := nodes.Load(t); ok {
		return n.(*node), nil
	}
	b := builder{made: map[reflect.Type]*node{}, raw: &node{kind: rawKind}}
	b.raw.elem = b.raw
	n, err := b.node(t)
	if err != nil {
		return nil, err
	}
	nodes.Store(t, n)
	return n, nil
}

// builder makes the node of a type and of all types in it. They may form rings.
type builder struct {
	made map[reflect.Type]*node
	raw  *node
	// shallow stops at the fields of the first struct, and what is wrong with a field makes it a field less.
	shallow bool
}

func (b builder) node(t reflect.Type) (*node, error) {
	if n := b.made[t]; n != nil || b.shallow {
		return n, nil
	}
	n := &node{t: t}
	b.made[t] = n
	return n, b.fill(n)
}

func (b builder) fill(n *node) (err error) {
	t := n.t
	if k := methods(t); k != noKind {
		if t.Name() == "" {
			// encoding/json looks for methods here or does not, depending on what is around the type.
			return fmt.Errorf("%w: %s decodes itself by a method of an embedded type; give it a name", ErrTarget, t)
		}
		n.kind, n.elem = k, b.raw
		return nil
	}
	switch t.Kind() {
	case reflect.Interface:
		if t.NumMethod() == 0 {
			n.kind, n.elem, n.bits = anyKind, n, 64
		}
	case reflect.Pointer:
		for p, k := t, 0; p.Kind() == reflect.Pointer; p, k = p.Elem(), k+1 {
			if k > maxDepth {
				return fmt.Errorf("%w: %s points at pointers without an end", ErrTarget, t)
			}
		}
		n.kind = pointerKind
		n.elem, err = b.node(t.Elem())
	case reflect.Slice:
		n.kind = sliceKind
		if t.Elem().Kind() == reflect.Uint8 && methods(t.Elem()) == noKind {
			n.kind = bytesKind
			return nil
		}
		n.elem, err = b.node(t.Elem())
	case reflect.Array:
		n.kind, n.length = arrayKind, t.Len()
		n.elem, err = b.node(t.Elem())
	case reflect.Map:
		if n.key = keyNode(t.Key()); n.key == nil {
			return nil
		}
		n.kind = mapKind
		n.elem, err = b.node(t.Elem())
	case reflect.Struct:
		n.kind = structKind
		err = b.fields(n)
	default:
		basic(n)
	}
	return err
}

// keyNode describes a map's key; nil stands for a type that encoding/json does not take as a key. Of the types that decode
// themselves only those with an UnmarshalText do so as a key.
func keyNode(t reflect.Type) *node {
	n := &node{t: t}
	if reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) {
		n.kind = textKind
		return n
	}
	basic(n)
	switch n.kind {
	case stringKind, intKind, uintKind, numberKind:
		return n
	}
	return nil
}

// basic fills in n for a type without parts, by its kind alone.
func basic(n *node) {
	switch n.t.Kind() {
	case reflect.Bool:
		n.kind = boolKind
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		n.kind, n.bits = intKind, n.t.Bits()
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		n.kind, n.bits = uintKind, n.t.Bits()
	case reflect.Float32, reflect.Float64:
		n.kind, n.bits = floatKind, n.t.Bits()
	case reflect.String:
		n.kind = stringKind
		if n.t == reflect.TypeFor[json.Number]() {
			n.kind = numberKind
		}
	}
}

// methods is ownKind or textKind for a type that decodes itself, otherwise noKind.
func methods(t reflect.Type) kind {
	p := reflect.PointerTo(t)
	if t == reflect.TypeFor[json.Number]() { // it has methods under GOEXPERIMENT=jsonv2 only
		return noKind
	}
	if p.Implements(reflect.TypeFor[json.Unmarshaler]()) {
		return ownKind
	}
	// Under GOEXPERIMENT=jsonv2, and only there, this method counts as well.
	if m, ok := p.MethodByName("UnmarshalJSONFrom"); ok && m.Type.NumIn() == 2 && m.Type.In(1).String() == "*jsontext.Decoder" {
		return ownKind
	}
	if p.Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) {
		return textKind
	}
	return noKind
}

// candidate is a field before it is known whether another one of the same name hides it.
type candidate struct {
	field
	depth     int // of embedding
	tagged    bool
	ambiguous bool
}

// fields finds the fields of the struct n by the rules of encoding/json: embedded structs are looked through, level by
// level; of fields with one name the least deep counts, among equals the one whose tag gives the name, and if that leaves
// two, none.
func (b builder) fields(n *node) error {
	var found []candidate
	byName := map[string]int{}
	visited := map[reflect.Type]bool{}
	type place struct {
		t     reflect.Type
		index []int
	}
	level, count := []place{{t: n.t}}, map[reflect.Type]int{}
	for depth := 0; len(level) > 0; depth++ {
		var deeper []place
		deeperCount := map[reflect.Type]int{}
		for _, at := range level {
			t := at.t
			if visited[t] {
				continue
			}
			visited[t] = true
			for i := range t.NumField() {
				index := append(slices.Clone(at.index), i)
				c, embedded, err := b.field(t, t.Field(i))
				switch {
				case err != nil:
					return err
				case embedded != nil:
					if deeperCount[embedded]++; deeperCount[embedded] == 1 {
						deeper = append(deeper, place{embedded, index})
					}
					continue
				case c == nil:
					continue
				}
				c.index, c.depth, c.ambiguous = index, depth, count[t] > 1
				k, ok := byName[c.name]
				switch {
				case !ok:
					byName[c.name] = len(found)
					found = append(found, *c)
				case found[k].depth < c.depth || found[k].tagged && !c.tagged:
				case found[k].tagged == c.tagged:
					found[k].ambiguous = true
				default:
					found[k] = *c
				}
			}
		}
		level, count = deeper, deeperCount
	}
	n.byName = make(map[string]int, len(found))
	for _, c := range found {
		if !c.ambiguous {
			n.byName[c.name] = len(n.fields)
			n.fields = append(n.fields, c.field)
		}
	}
	return nil
}

// field gives what the struct field f of t is: a member, an embedded struct to look through, or neither.
func (b builder) field(t reflect.Type, f reflect.StructField) (*candidate, reflect.Type, error) {
	bad := func(reason string) (*candidate, reflect.Type, error) {
		if b.shallow {
			return nil, nil, nil
		}
		return nil, nil, fmt.Errorf("%w: the field %s of %s %s", ErrTarget, f.Name, t, reason)
	}
	tag := f.Tag.Get("json")
	direct := f.Type
	if direct.Kind() == reflect.Pointer && direct.Name() == "" {
		direct = direct.Elem()
	}
	if tag == "-" || !f.IsExported() && !(f.Anonymous && direct.Kind() == reflect.Struct) {
		return nil, nil, nil
	}
	name, options, _ := strings.Cut(tag, ",")
	if name != "" && !validName(name) {
		return bad("has a name in its json tag that is not usable")
	}
	through := f.Anonymous && name == "" && direct.Kind() == reflect.Struct
	if !f.IsExported() && (!through || direct != f.Type) {
		return bad("embeds an unexported struct by pointer or under a name, which cannot be set")
	}
	quoted := false
	for option := range strings.SplitSeq(options, ",") {
		word, _, _ := strings.Cut(option, ":")
		switch {
		case word == "string":
			quoted = true
		case word == "inline" && through:
		case word == "inline", word == "unknown", word == "case", word == "format", strings.HasPrefix(word, "'"):
			return bad("has an option in its json tag that encoding/json knows under GOEXPERIMENT=jsonv2 only")
		}
	}
	if through {
		return nil, direct, nil
	}

	c := &candidate{tagged: name != ""}
	if c.name = name; name == "" {
		c.name = f.Name
	}
	if c.item, _, _ = strings.Cut(f.Tag.Get("xml"), ","); c.item == "" {
		c.item = itemName
	}
	var err error
	if c.node, err = b.node(f.Type); err != nil {
		return nil, nil, err
	}
	if quoted {
		// Where it means nothing, encoding/json ignores it.
		plain := &node{t: direct}
		basic(plain)
		if c.quoted = plain.kind != noKind; c.quoted && methods(direct) != noKind {
			return bad(`has the option "string" in its json tag and a type that decodes itself`)
		}
	}
	return c, nil, nil
}

// validName reports whether both forms of encoding/json take s as the name in a tag.
func validName(s string) bool {
	for _, c := range s {
		if !strings.ContainsRune("!#$%&()*+-./:;<=>?@[]^_{|}~ ", c) && !unicode.IsLetter(c) && !unicode.IsDigit(c) {
			return false
		}
	}
	return true
}
