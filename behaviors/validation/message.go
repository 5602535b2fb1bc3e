package validation

import (
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/go-playground/validator/v10"
)

// kind is what a rule such as min measures in a field.
type kind int

const (
	number kind = iota
	text        // its characters
	items       // how many it holds
	moment      // its distance from now
)

func kindOf(f validator.FieldError) kind {
	if f.Type() == nil {
		return number
	}
	return kindOfType(f.Type())
}

func kindOfType(t reflect.Type) kind {
	t = indirect(t)
	switch t.Kind() {
	case reflect.String:
		return text
	case reflect.Slice, reflect.Array, reflect.Map:
		return items
	case reflect.Struct:
		if isTime(t) {
			return moment
		}
	}
	return number
}

func isTime(t reflect.Type) bool { return t.ConvertibleTo(reflect.TypeFor[time.Time]()) }

// message says what the field must be. It is made of the rule alone and has no way to the value. owner is the struct of
// the field, for the JSON names of its siblings; nil leaves names as they are.
func message(rule, param string, k kind, owner reflect.Type) string {
	if strings.Contains(rule, "|") {
		var ways []string
		for alternative := range strings.SplitSeq(rule, "|") {
			name, param, _ := strings.Cut(alternative, "=")
			way := message(name, param, k, owner)
			if rest, ok := strings.CutPrefix(way, "must be "); ok && len(ways) > 0 && strings.HasPrefix(ways[0], "must be ") {
				way = rest
			}
			if !slices.Contains(ways, way) && !slices.Contains(ways, "must be "+way) {
				ways = append(ways, way)
			}
		}
		return strings.Join(ways, " or ")
	}
	if m := fixedMessage(rule); m != "" {
		return m
	}
	if m := measureMessage(rule, param, k); m != "" {
		return m
	}
	if m := siblingMessage(rule, paramNames(rule, param, owner)); m != "" {
		return m
	}
	return fmt.Sprintf("does not satisfy rule %q", rule)
}

// fixedMessage knows the rules without a parameter.
func fixedMessage(rule string) string {
	switch rule {
	case "required":
		return "is required"
	case "isdefault":
		return "must be empty"
	case "email":
		return "must be a valid email address"
	case "e164":
		return "must be a phone number in E.164 form, such as +905551234567"
	case "url":
		return "must be a valid URL"
	case "http_url":
		return "must be a valid http or https URL"
	case "https_url":
		return "must be a valid https URL"
	case "uri":
		return "must be a valid URI"
	case "uuid", "uuid_rfc4122":
		return "must be a valid UUID"
	case "uuid3", "uuid3_rfc4122", "uuid4", "uuid4_rfc4122", "uuid5", "uuid5_rfc4122", "uuid7":
		return "must be a valid UUID of version " + rule[4:5]
	case "ulid":
		return "must be a valid ULID"
	case "iso4217":
		return "must be a valid ISO 4217 currency code"
	case "iso4217_numeric":
		return "must be a valid numeric ISO 4217 currency code"
	case "iso3166_1_alpha2":
		return "must be a valid two-letter ISO 3166-1 country code"
	case "iso3166_1_alpha3":
		return "must be a valid three-letter ISO 3166-1 country code"
	case "country_code":
		return "must be a valid ISO 3166-1 country code"
	case "eu_country_code":
		return "must be the ISO 3166-1 code of a country of the European Union"
	case "iso3166_2":
		return "must be a valid ISO 3166-2 subdivision code"
	case "bcp47_language_tag", "bcp47_strict_language_tag":
		return "must be a valid BCP 47 language tag"
	case "alpha":
		return "must hold letters a-z only"
	case "alphaspace":
		return "must hold letters a-z and blanks only"
	case "alphanum":
		return "must hold letters a-z and digits only"
	case "alphanumspace":
		return "must hold letters a-z, digits and blanks only"
	case "alphaunicode":
		return "must hold letters only"
	case "alphanumunicode":
		return "must hold letters and digits only"
	case "numeric":
		return "must be a number"
	case "number":
		return "must hold digits only"
	case "boolean":
		return "must be true or false"
	case "hexadecimal":
		return "must be hexadecimal"
	case "lowercase":
		return "must be in lower case"
	case "uppercase":
		return "must be in upper case"
	case "ascii":
		return "must hold ASCII characters only"
	case "printascii":
		return "must hold printable ASCII characters only"
	case "timezone":
		return "must be a time zone name, such as Europe/Istanbul"
	case "duration":
		return "must be a duration, such as 90s or 1h30m"
	case "ip":
		return "must be a valid IP address"
	case "ipv4":
		return "must be a valid IPv4 address"
	case "ipv6":
		return "must be a valid IPv6 address"
	case "cidr":
		return "must be a valid network in CIDR form"
	case "mac":
		return "must be a valid MAC address"
	case "hostname", "hostname_rfc1123":
		return "must be a valid host name"
	case "fqdn":
		return "must be a fully qualified domain name"
	case "hostname_port":
		return "must be a host name and port, such as example.com:443"
	case "port":
		return "must be a port from 1 to 65535"
	case "json":
		return "must be valid JSON"
	case "jwt":
		return "must be a JSON web token"
	case "base32", "base64":
		return "must be " + rule + " encoded"
	case "base64url", "base64rawurl":
		return "must be base64 encoded for URLs"
	case "sha256", "sha384", "sha512", "md5":
		return "must be a hexadecimal " + rule + " sum"
	case "credit_card":
		return "must be a valid card number"
	case "luhn_checksum":
		return "must have a valid check digit"
	case "bic", "bic_iso_9362_2014":
		return "must be a valid BIC"
	case "isbn", "isbn10", "isbn13":
		return "must be a valid ISBN"
	case "semver":
		return "must be a semantic version, such as 1.2.3"
	case "latitude":
		return "must be a latitude from -90 to 90"
	case "longitude":
		return "must be a longitude from -180 to 180"
	case "hexcolor", "rgb", "rgba", "hsl", "hsla", "cmyk", "iscolor":
		return "must be a valid color"
	case "unique":
		return "must not hold anything twice"
	}
	return ""
}

// measureMessage knows the rules that compare with their parameter.
func measureMessage(rule, param string, k kind) string {
	unit := map[kind]string{text: "character", items: "item"}[k]
	if unit != "" && param != "1" {
		unit += "s"
	}
	choose := func(ofNumber, ofSize, ofMoment string) string {
		switch {
		case k == moment:
			return ofMoment
		case unit != "":
			return fmt.Sprintf(ofSize+" %s %s", param, unit)
		}
		return ofNumber + " " + param
	}
	switch rule {
	case "gt":
		return choose("must be greater than", "must have more than", "must be in the future")
	case "gte", "min":
		return choose("must be at least", "must have at least", "must not be in the past")
	case "lt":
		return choose("must be less than", "must have fewer than", "must be in the past")
	case "lte", "max":
		return choose("must be at most", "must have at most", "must not be in the future")
	case "len":
		return choose("must be", "must have exactly", "")
	case "eq", "eq_ignore_case":
		if k == items {
			return choose("", "must have exactly", "")
		}
		if param == "" {
			return "must be empty"
		}
		return "must be " + param
	case "ne", "ne_ignore_case":
		switch {
		case k == items:
			return choose("", "must not have exactly", "")
		case param == "":
			return "must not be empty"
		}
		return "must not be " + param
	case "oneof", "oneofci":
		return "must be one of " + param
	case "noneof", "noneofci":
		return "must not be one of " + param
	case "contains":
		return fmt.Sprintf("must contain %q", param)
	case "containsany":
		return fmt.Sprintf("must contain one of the characters %q", param)
	case "containsrune":
		return fmt.Sprintf("must contain the character %q", param)
	case "excludes":
		return fmt.Sprintf("must not contain %q", param)
	case "excludesall":
		return fmt.Sprintf("must not contain any of the characters %q", param)
	case "excludesrune":
		return fmt.Sprintf("must not contain the character %q", param)
	case "startswith":
		return fmt.Sprintf("must start with %q", param)
	case "endswith":
		return fmt.Sprintf("must end with %q", param)
	case "startsnotwith":
		return fmt.Sprintf("must not start with %q", param)
	case "endsnotwith":
		return fmt.Sprintf("must not end with %q", param)
	case "datetime":
		return "must be a date or time in the form " + param
	case "postcode_iso3166_alpha2":
		return "must be a valid postal code of " + param
	}
	return ""
}

// siblingMessage knows the rules that look at other fields; param already names them in JSON names.
func siblingMessage(rule, param string) string {
	switch rule {
	case "required_if", "skip_unless":
		return "is required when " + conditions(param)
	case "required_unless":
		return "is required unless " + conditions(param)
	case "required_with":
		return "is required together with " + list(param, "or")
	case "required_with_all":
		return "is required together with " + list(param, "and")
	case "required_without":
		return "is required when there is no " + list(param, "or")
	case "required_without_all":
		return "is required when there is " + neither(param)
	case "excluded_if":
		return "must be empty when " + conditions(param)
	case "excluded_unless":
		return "must be empty unless " + conditions(param)
	case "excluded_with_all":
		return "must be empty together with " + list(param, "and")
	case "excluded_with":
		return "must be empty together with " + list(param, "or")
	case "excluded_without":
		return "must be empty when there is no " + list(param, "or")
	case "excluded_without_all":
		return "must be empty when there is " + neither(param)
	case "eqfield", "eqcsfield":
		return "must be equal to " + param
	case "nefield", "necsfield":
		return "must not be equal to " + param
	case "gtfield", "gtcsfield":
		return "must be greater than " + param
	case "gtefield", "gtecsfield":
		return "must be at least " + param
	case "ltfield", "ltcsfield":
		return "must be less than " + param
	case "ltefield", "ltecsfield":
		return "must be at most " + param
	case "fieldcontains":
		return "must contain " + param
	case "fieldexcludes":
		return "must not contain " + param
	case "postcode_iso3166_alpha2_field":
		return "must be a valid postal code of " + param
	}
	return ""
}

// conditions makes "kind is card and country is TR" of "kind card country TR".
func conditions(param string) string {
	words := words(param)
	var all []string
	for i := 0; i+1 < len(words); i += 2 {
		all = append(all, words[i]+" is "+words[i+1])
	}
	return strings.Join(all, " and ")
}

func list(param, and string) string { return strings.Join(words(param), " "+and+" ") }

func neither(param string) string {
	if len(words(param)) == 1 {
		return "no " + param
	}
	return "neither " + list(param, "nor")
}

var wordsPattern = regexp.MustCompile(`'[^']*'|\S+`)

// words splits a parameter as validator does: at blanks, but not within single quotes.
func words(param string) []string {
	all := wordsPattern.FindAllString(param, -1)
	for i := range all {
		all[i] = strings.ReplaceAll(all[i], "'", "")
	}
	return all
}

// siblings says how the parameter of rule names other fields of the same struct.
type siblings int

const (
	namesNone  siblings = iota
	namesOne            // Total
	namesMany           // Email Phone
	namesPairs          // Kind card Country TR
)

func siblingsOf(rule string) siblings {
	switch rule {
	case "eqfield", "nefield", "gtfield", "gtefield", "ltfield", "ltefield",
		"eqcsfield", "necsfield", "gtcsfield", "gtecsfield", "ltcsfield", "ltecsfield",
		"fieldcontains", "fieldexcludes", "postcode_iso3166_alpha2_field":
		return namesOne
	case "required_with", "required_with_all", "required_without", "required_without_all",
		"excluded_with", "excluded_with_all", "excluded_without", "excluded_without_all":
		return namesMany
	case "required_if", "required_unless", "skip_unless", "excluded_if", "excluded_unless":
		return namesPairs
	}
	return namesNone
}

// paramNames puts JSON names in the place of the Go names in a parameter that names other fields of the struct owner.
func paramNames(rule, param string, owner reflect.Type) string {
	each := 1
	switch siblingsOf(rule) {
	case namesNone:
		return param
	case namesPairs:
		each = 2
	}
	if owner == nil {
		return param
	}
	all := wordsPattern.FindAllString(param, -1)
	for i := 0; i < len(all); i += each {
		if name, _ := pathOf(owner, strings.Trim(all[i], "'")); name != "" {
			all[i] = name
		}
	}
	return strings.Join(all, " ")
}
