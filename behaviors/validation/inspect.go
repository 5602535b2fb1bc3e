package validation

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/go-playground/validator/v10"
)

// inspect finds what is wrong with the declaration of the command type t.
func inspect(v *Validator, command string, t reflect.Type) error {
	in := &inspection{v: v, command: command, root: t, seen: map[reflect.Type]bool{}}
	if t.Kind() != reflect.Struct || isTime(t) {
		reason := "commands are plain struct values; declare a struct and put this into a field"
		if t.Kind() == reflect.Pointer {
			reason = "commands are plain struct values; handle and send the struct, not a pointer to it"
		}
		in.report("", "", reason)
		return errors.Join(in.problems...)
	}
	in.methods()
	in.structure(t, "")
	if len(in.problems) == 0 {
		in.try(reflect.New(t))
		in.try(sampleOf(reflect.PointerTo(t)))
	}
	return errors.Join(in.problems...)
}

// inspection walks through a command's type, each struct in it once.
type inspection struct {
	v        *Validator
	command  string
	root     reflect.Type
	seen     map[reflect.Type]bool
	problems []error
}

func (in *inspection) report(field, tag, reason string) {
	in.problems = append(in.problems, &TypeError{Command: in.command, Type: in.root.String(), Field: field, Tag: tag, Reason: reason})
}

// methods refuses a Normalize or Validate that looks like ours and would silently not be called.
func (in *inspection) methods() {
	pointer := reflect.PointerTo(in.root)
	if m, ok := pointer.MethodByName("Normalize"); ok {
		if f := m.Type; f.NumIn() != 1 || f.NumOut() != 1 || f.Out(0) != in.root {
			in.report("", "", fmt.Sprintf("its method Normalize does not return the command and would not be called; make it func (c %s) Normalize() %[1]s, "+
				"or rename it", in.root.Name()))
		}
	}
	ours := pointer.Implements(reflect.TypeFor[checker]()) || pointer.Implements(reflect.TypeFor[contextChecker]())
	if _, ok := pointer.MethodByName("Validate"); ok && !ours {
		in.report("", "", "its method Validate has another signature and would not be called; make it Validate() error or "+
			"Validate(context.Context) error, or rename it")
	}
}

// structure inspects the fields of the struct t, which stands at path at.
func (in *inspection) structure(t reflect.Type, at string) {
	if in.seen[t] {
		return
	}
	in.seen[t] = true
	if at != "" {
		at += "."
	}
	for i := range t.NumField() {
		f := t.Field(i)
		tag, ok := f.Tag.Lookup("validate")
		name := at + f.Name
		switch {
		case !ok && strings.Contains(string(f.Tag), "validate:"):
			in.report(name, "", "its struct tag is malformed and Go does not see its rules; write `key:\"value\"` pairs without a blank after the colon")
		case tag == "-":
		case !in.v.looksAt(f):
			if tag != "" {
				in.report(name, tag, "validator does not look at unexported fields; export the field or check it in the command's Validate")
			}
		default:
			in.field(t, f.Type, tag, name)
		}
	}
	in.v.warm(t)
}

// field inspects the tag of a field of the struct owner, whose type is t and whose path is at, level by level where it dives.
func (in *inspection) field(owner, t reflect.Type, tag, at string) {
	var rules []string
	if tag != "" {
		rules = strings.Split(tag, ",")
	}
	for i := 0; i < len(rules); i++ {
		switch rule := rules[i]; rule {
		case "omitempty", "omitnil", "omitzero":
		case "dive":
			list := in.v.effective(t)
			if !isList(list) {
				in.report(at, tag, fmt.Sprintf("dive goes into the elements of a slice, an array or a map, and this is %s; remove it "+
					"(a struct, or what a pointer points to, is looked at without it)", list))
				return
			}
			if i+1 < len(rules) && rules[i+1] == "keys" {
				end := i + 2
				for end < len(rules) && rules[end] != "endkeys" {
					end++
				}
				if list.Kind() != reflect.Map || end == len(rules) {
					in.report(at, tag, "keys needs a map and an endkeys behind the rules for its keys: dive,keys,…,endkeys")
					return
				}
				for _, rule := range rules[i+2 : end] {
					if !strings.HasPrefix(rule, "omit") {
						in.rule(owner, list.Key(), rule, at+"[key]")
					}
				}
				i = end
			}
			t, at = list.Elem(), at+"[]"
		case "keys", "endkeys":
			in.report(at, tag, "keys and endkeys stand round the rules for a map's keys, directly behind dive: dive,keys,…,endkeys")
			return
		case "structonly", "nostructlevel":
			if e := in.v.effective(t); !isPlainStruct(e) {
				in.report(at, rule, fmt.Sprintf("it is for structs, and this is %s; remove it", e))
			}
			if i+1 < len(rules) {
				in.report(at, tag, "rules behind "+rule+" are never looked at; put it last")
			}
			return
		default:
			in.rule(owner, t, rule, at)
		}
	}
	in.inside(t, tag, at)
}

// inside inspects what a value of the type t contains, where the rules of its own are done.
func (in *inspection) inside(t reflect.Type, tag, at string) {
	t = in.v.effective(t)
	if isList(t) && in.v.carries(t.Elem()) {
		in.report(at, tag, fmt.Sprintf("the elements of its %s have rules, and validator does not look at them without dive; "+
			"add it, as in `validate:\"max=100,dive\"`, or write `validate:\"-\"` to leave them out on purpose", t))
		for isList(t) {
			t, at = indirect(t.Elem()), at+"[]"
		}
	}
	if isPlainStruct(t) {
		in.structure(t, at)
	}
}

// rule inspects one rule, or one set of alternatives, for a value of the type t in the struct owner.
func (in *inspection) rule(owner, t reflect.Type, rule, at string) {
	alternatives := strings.Split(rule, "|")
	for _, alternative := range alternatives {
		name, param, _ := strings.Cut(alternative, "=")
		param = strings.NewReplacer("0x2C", ",", "0x7C", "|").Replace(param)
		if reason := in.judge(owner, t, name, param, alternative); reason != "" {
			in.report(at, alternative, reason)
		}
	}
}

// judge says what is wrong with a rule on a value of the type t, "" for nothing.
func (in *inspection) judge(owner, t reflect.Type, name, param, rule string) string {
	switch name {
	case "":
		return "a rule without a name: there is a comma or a bar too many"
	case "dive", "keys", "endkeys", "omitempty", "omitnil", "omitzero", "structonly", "nostructlevel":
		return "it takes no parameter and can't be an alternative"
	}
	if said := undefined(in.v.rules, name); strings.Contains(said, "'"+name+"'") {
		return unknown(in.v.rules, name)
	} else if said != "" {
		return "it is an alias that validator can't read: " + said
	}
	if undefined(in.v.builtin, name) != "" {
		return "" // A rule of the application's. It knows what it fits; whether it panics, try finds out.
	}
	t = indirect(t)
	if t.Kind() != reflect.Interface {
		t = in.v.effective(t)
	}
	switch {
	case impure(name):
		return "it looks at the server's files or asks the network, and validation must be pure and cheap; check it in the handler"
	case needsParam(name) && param == "":
		return "it needs a parameter: " + name + "=…"
	case siblingsOf(name) != namesNone:
		return in.siblings(owner, t, name, param)
	case name == "unique" && param != "" && !isList(t):
		return in.siblings(owner, t, name, param)
	case name == "validateFn":
		return method(t, param)
	case name == "required" && isPlainStruct(t) && !in.v.structs:
		return "this validator ignores required on a struct; make it with validator.WithRequiredStructEnabled()"
	case t.Kind() == reflect.Interface:
		if name != "required" && name != "isdefault" {
			return fmt.Sprintf("%s is an interface and may hold what the rule can't be asked about, and then it panics; give the field a concrete type", t)
		}
	case name == "unique" && isList(t) && t.Elem().Kind() == reflect.Interface:
		return "its elements are interfaces and may hold what can't be compared, and then it panics; give them a concrete type"
	case isTime(t) && param != "" && slices.Contains([]string{"gt", "gte", "min", "lt", "lte", "max"}, name):
		return "on a time it compares with now and ignores its parameter; remove the parameter, or compare in the command's Validate"
	case !fits(name, t):
		return fmt.Sprintf("it does not fit the type %s and would always refuse it; choose another rule or type", t)
	}
	if said := in.v.probe(t, rule); said != "" {
		return fmt.Sprintf("it does not fit the type %s, or its parameter can't be read (%s); choose another rule, parameter or type", t, said)
	}
	return ""
}

// siblings says what is wrong with a rule that names other fields of the struct owner.
func (in *inspection) siblings(owner, t reflect.Type, name, param string) string {
	named := []string{param}
	switch siblingsOf(name) {
	case namesMany:
		named = words(param)
	case namesPairs:
		pairs := words(param)
		if len(pairs) == 0 || len(pairs)%2 != 0 {
			return "it needs pairs of a field and a value: " + name + "=Field value"
		}
		named = nil
		for i := 0; i < len(pairs); i += 2 {
			if slices.Contains(named, pairs[i]) {
				return fmt.Sprintf("it names the field %s twice; a field has one value", pairs[i])
			}
			named = append(named, pairs[i])
		}
		for i := 0; i < len(pairs); i += 2 {
			other, reason := in.resolve(owner, pairs[i])
			if reason != "" {
				return reason
			}
			if other != nil && !readable(other, pairs[i+1]) {
				return fmt.Sprintf("%q can't be a value of the field %s, whose type is %s", pairs[i+1], pairs[i], other)
			}
		}
		return ""
	}
	if len(named) == 0 || named[0] == "" {
		return "it needs the name of another field: " + name + "=Field"
	}
	for _, n := range named {
		other, reason := in.resolve(owner, n)
		switch {
		case reason != "":
			return reason
		case other == nil || siblingsOf(name) == namesMany:
		case name == "fieldcontains" || name == "fieldexcludes" || name == "postcode_iso3166_alpha2_field":
			if other.Kind() != reflect.String || t.Kind() != reflect.String {
				return fmt.Sprintf("it compares texts, and these are %s and %s", t, other)
			}
		case t.Kind() != other.Kind() && t.Kind() != reflect.Interface:
			return fmt.Sprintf("it compares %s with %s, and different kinds never compare; give both fields one type", t, other)
		}
	}
	return ""
}

// resolve follows the name of a field, as a rule gives it, from the struct owner on. The type is nil where it depends on the
// value.
func (in *inspection) resolve(owner reflect.Type, name string) (t reflect.Type, reason string) {
	t = owner
	for rest := name; rest != ""; {
		if t = in.v.effective(t); t.Kind() == reflect.Interface {
			return nil, ""
		}
		if strings.HasPrefix(rest, "[") {
			_, after, ok := strings.Cut(rest, "]")
			if !ok || !isList(t) {
				return nil, fmt.Sprintf("%s leads nowhere in %s", name, owner)
			}
			t, rest = t.Elem(), strings.TrimPrefix(after, ".")
			continue
		}
		var head string
		head, rest = cutName(rest)
		f, ok := fieldOf(t, head)
		switch {
		case !ok || !isPlainStruct(t):
			return nil, fmt.Sprintf("there is no field %s in %s; name a Go field of the same struct", head, t)
		case f.Name != head:
			return nil, fmt.Sprintf("there is no field %s in %s; write its Go name %s", head, t, f.Name)
		}
		for i := 1; i < len(f.Index); i++ {
			if t.FieldByIndex(f.Index[:i]).Type.Kind() == reflect.Pointer {
				return nil, fmt.Sprintf("the field %s belongs to an embedded pointer, and it panics where that is nil; embed the struct itself", head)
			}
		}
		t = f.Type
	}
	if t = in.v.effective(t); t.Kind() == reflect.Interface {
		return nil, ""
	}
	return t, ""
}

// try validates a value of the command itself, as a request will, and reports a panic. What it says about the value does not
// matter.
func (in *inspection) try(command reflect.Value) {
	if said := silence(func() { _ = in.v.rules.StructCtx(context.Background(), command.Interface()) }); said != "" {
		in.report("", "", fmt.Sprintf("validating a sample of it panicked (%s); a rule must not panic, whatever the value, "+
			"and not need anything in its context", said))
	}
}

// readable reports whether a rule such as required_if can compare a field of the type t with the text s.
func readable(t reflect.Type, s string) bool {
	var err error
	switch t.Kind() {
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		_, err = strconv.ParseInt(s, 0, 64)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		_, err = strconv.ParseUint(s, 0, 64)
	case reflect.Float32, reflect.Float64:
		_, err = strconv.ParseFloat(s, 64)
	case reflect.Slice, reflect.Map:
		if s != "nil" {
			_, err = strconv.ParseInt(s, 0, 64)
		}
	case reflect.Array:
		_, err = strconv.ParseInt(s, 0, 64)
	case reflect.Bool:
		return s == "true" || s == "false"
	}
	return err == nil
}

// method says what is wrong with validateFn on a value of the type t.
func method(t reflect.Type, name string) string {
	if name == "" {
		name = "Validate"
	}
	m, ok := reflect.PointerTo(t).MethodByName(name)
	if !ok {
		return fmt.Sprintf("%s has no method %s, and without it the rule refuses everything", t, name)
	}
	if f := m.Type; f.NumIn() == 1 && f.NumOut() > 0 && (f.Out(0).Kind() == reflect.Bool || f.Out(0) == reflect.TypeFor[error]()) {
		return ""
	}
	return fmt.Sprintf("the method %s of %s must have no parameter and return an error or a bool", name, t)
}

// unknown says that there is no rule of this name, and which was meant.
func unknown(v *validator.Validate, name string) string {
	if trimmed := strings.TrimSpace(name); trimmed != name && undefined(v, trimmed) == "" {
		return "there is no such rule; remove the blank round it"
	}
	known := []string{"required", "required_if", "required_with", "required_without", "omitempty", "dive", "min", "max", "len", "gt", "gte", "lt", "lte",
		"eq", "ne", "oneof", "email", "url", "uuid", "uuid4", "ulid", "iso4217", "iso3166_1_alpha2", "alpha", "alphanum", "numeric", "number", "boolean",
		"lowercase", "uppercase", "contains", "excludes", "startswith", "endswith", "datetime", "unique", "eqfield", "nefield", "gtfield", "gtefield",
		"ltfield", "ltefield", "e164", "hostname", "credit_card", "structonly"}
	best, least := "", 3
	for _, k := range known {
		if d := distance(strings.ToLower(name), k); d < least && d < len(k) {
			best, least = k, d
		}
	}
	if best != "" {
		best = fmt.Sprintf(" (did you mean %q?)", best)
	}
	return "there is no such rule" + best + "; correct it, or register it on Config.Validate before the pipeline is built"
}

// distance is how many letters have to be put in, taken out or changed to make b of a.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// looksAt reports whether validator looks at the field at all.
func (v *Validator) looksAt(f reflect.StructField) bool {
	return f.IsExported() || f.Anonymous || v.private
}

// carries reports whether a value of the type t has rules in it somewhere.
func (v *Validator) carries(t reflect.Type) bool {
	seen := map[reflect.Type]bool{}
	var carries func(reflect.Type) bool
	carries = func(t reflect.Type) bool {
		switch t.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
			return carries(t.Elem())
		case reflect.Struct:
			if seen[t] || isTime(t) {
				return false
			}
			seen[t] = true
			for i := range t.NumField() {
				f := t.Field(i)
				tag := f.Tag.Get("validate")
				if tag != "-" && v.looksAt(f) && (tag != "" || carries(f.Type)) {
					return true
				}
			}
		}
		return false
	}
	return carries(t)
}

// effective is the type that validator sees in a field of the type t: what pointers lead to, and what a Valuer or a custom
// type function gives. For an interface it is the interface.
func (v *Validator) effective(t reflect.Type) reflect.Type {
	t = indirect(t)
	if t.Kind() == reflect.Interface {
		return t
	}
	var found validator.ValidationErrors
	silence(func() {
		// isdefault can't be replaced and refuses what is not zero, so its error tells the type.
		errors.As(v.rules.VarWithKey("sample", sampleOf(t).Interface(), "isdefault,nostructlevel"), &found)
	})
	if len(found) == 1 && found[0].Type() != nil {
		return indirect(found[0].Type())
	}
	return t
}

// probe asks a rule about a sample of the type t and gives what it panics with.
func (v *Validator) probe(t reflect.Type, rule string) string {
	return silence(func() { _ = v.rules.VarWithKey("sample", sampleOf(t).Interface(), rule+",nostructlevel") })
}

// warm makes validator read and keep the tags of the struct t, so that the first request does not have to.
func (v *Validator) warm(t reflect.Type) {
	silence(func() { _ = v.rules.StructFiltered(reflect.New(t).Interface(), func([]byte) bool { return true }) })
}

// undefined makes validator read a rule without asking it, and gives what it panics with; "" for a rule that exists.
func undefined(v *validator.Validate, name string) string {
	return silence(func() { _ = v.Var("", "omitempty,"+name) })
}

// silence runs f and gives what it panics with, "" if it does not. It is for build, where no value of a customer's exists.
func silence(f func()) (said string) {
	defer func() {
		if p := recover(); p != nil {
			said = fmt.Sprint(p)
		}
	}()
	f()
	return ""
}

func isList(t reflect.Type) bool {
	return t.Kind() == reflect.Slice || t.Kind() == reflect.Array || t.Kind() == reflect.Map
}

func isPlainStruct(t reflect.Type) bool { return t.Kind() == reflect.Struct && !isTime(t) }

// impure names the built-in rules that look at files or resolve names.
func impure(rule string) bool {
	switch rule {
	case "file", "filepath", "dir", "dirpath", "image", "mimetype", "uds_exists",
		"tcp_addr", "tcp4_addr", "tcp6_addr", "udp_addr", "udp4_addr", "udp6_addr", "ip_addr", "ip4_addr", "ip6_addr":
		return true
	}
	return false
}

// needsParam names the built-in rules that mean nothing without a parameter and don't say so themselves.
func needsParam(rule string) bool {
	switch rule {
	case "oneof", "oneofci", "noneof", "noneofci", "contains", "containsany", "containsrune", "excludes", "excludesall", "excludesrune",
		"startswith", "endswith", "startsnotwith", "endsnotwith", "datetime", "postcode_iso3166_alpha2":
		return true
	}
	return false
}

// fits is false for a built-in rule that reads texts only and takes anything else for a wrong text. Most rules panic on a type
// they don't fit; these don't.
func fits(rule string, t reflect.Type) bool {
	switch rule {
	case "uuid", "uuid3", "uuid4", "uuid5", "uuid7", "uuid_rfc4122", "uuid3_rfc4122", "uuid4_rfc4122", "uuid5_rfc4122", "ulid":
		return t.Kind() == reflect.String || t.Implements(reflect.TypeFor[fmt.Stringer]())
	case "boolean":
		return t.Kind() == reflect.String || t.Kind() == reflect.Bool
	case "numeric", "number":
		return t.Kind() == reflect.String || t.Kind() >= reflect.Int && t.Kind() <= reflect.Float64
	case "alpha", "alphaspace", "alphanum", "alphanumspace", "alphaunicode", "alphanumunicode", "hexadecimal",
		"hexcolor", "rgb", "rgba", "hsl", "hsla", "cmyk", "iscolor", "e164", "email",
		"base32", "base64", "base64url", "base64rawurl", "contains", "containsany", "containsrune", "excludes", "excludesall", "excludesrune",
		"startswith", "endswith", "startsnotwith", "endsnotwith", "isbn", "isbn10", "isbn13", "issn",
		"eth_addr", "eth_addr_checksum", "btc_addr", "btc_addr_bech32",
		"md4", "md5", "sha256", "sha384", "sha512", "ripemd128", "ripemd160", "tiger128", "tiger160", "tiger192",
		"ascii", "printascii", "multibyte", "datauri", "ssn", "ein", "ip", "ipv4", "ipv6", "cidr", "cidrv4", "cidrv6", "unix_addr", "mac",
		"hostname", "hostname_rfc1123", "hostname_label", "hostname_port", "fqdn", "html", "html_encoded", "url_encoded", "jwt",
		"iso3166_1_alpha2", "iso3166_1_alpha2_eu", "iso3166_1_alpha3", "iso3166_1_alpha3_eu", "iso3166_2", "iso4217",
		"postcode_iso3166_alpha2", "bic", "bic_iso_9362_2014", "semver", "dns_rfc1035_label", "credit_card", "cve",
		"mongodb", "mongodb_connection_string", "cron", "spicedb", "duration":
		return t.Kind() == reflect.String
	}
	return true
}
