package validation

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/go-playground/validator/v10"
)

// ask puts value under the tag into a struct with siblings and gives the errors, made ours.
func ask(t *testing.T, v *validator.Validate, value any, tag string) []FieldError {
	t.Helper()
	typ := reflect.StructOf([]reflect.StructField{
		{Name: "Field", Type: reflect.TypeOf(value), Tag: reflect.StructTag(`json:"field" validate:"` + tag + `"`)},
		{Name: "Kind", Type: reflect.TypeFor[string](), Tag: `json:"kind"`},
		{Name: "Total", Type: reflect.TypeFor[int](), Tag: `json:"total_amount"`},
		{Name: "Email", Type: reflect.TypeFor[string](), Tag: `json:"e_mail"`},
		{Name: "Phone", Type: reflect.TypeFor[string](), Tag: `json:"phone"`},
	})
	s := reflect.New(typ)
	s.Elem().Field(0).Set(reflect.ValueOf(value))
	s.Elem().Field(1).SetString("card")
	s.Elem().Field(2).SetInt(7)
	s.Elem().Field(3).SetString("TR")
	var found validator.ValidationErrors
	if !errors.As(v.Struct(s.Interface()), &found) {
		return nil
	}
	var ours []FieldError
	for _, f := range found {
		ours = append(ours, ofTag(typ, f))
	}
	return ours
}

func TestMessagesSayWhatTheFieldMustBe(t *testing.T) {
	t.Parallel()
	v := validator.New(validator.WithRequiredStructEnabled())
	v.RegisterAlias("cents", "gte=1")
	v.RegisterAlias("colour", "rgb|hexcolor")
	if err := v.RegisterValidation("sku", func(validator.FieldLevel) bool { return false }); err != nil {
		t.Fatal(err)
	}
	past, future := time.Unix(1, 0), time.Now().Add(time.Hour)
	var none *int
	for _, test := range []struct {
		value     any
		tag, want string
	}{
		{"", "required", "is required"},
		{none, "required", "is required"},
		{none, "gt=0", "must be greater than 0"},
		{9, "isdefault", "must be empty"},
		{0, "gt=0", "must be greater than 0"},
		{-1.5, "gte=0.5", "must be at least 0.5"},
		{9, "lt=5", "must be less than 5"},
		{9, "lte=5", "must be at most 5"},
		{9, "min=10", "must be at least 10"},
		{9, "max=5", "must be at most 5"},
		{9, "len=5", "must be 5"},
		{9, "eq=5", "must be 5"},
		{9, "ne=9", "must not be 9"},
		{false, "eq=true", "must be true"},
		{time.Second, "gt=1s", "must be greater than 1s"},
		{"abc", "gt=3", "must have more than 3 characters"},
		{"abc", "lt=1", "must have fewer than 1 character"},
		{"abc", "min=4", "must have at least 4 characters"},
		{"abc", "max=2", "must have at most 2 characters"},
		{"abc", "len=2", "must have exactly 2 characters"},
		{"abc", "eq=red", "must be red"},
		{"abc", "eq=", "must be empty"},
		{"", "ne=", "must not be empty"},
		{"abc", "eq_ignore_case=red", "must be red"},
		{"ABC", "ne_ignore_case=abc", "must not be abc"},
		{[]int{1}, "gt=1", "must have more than 1 item"},
		{[]int{1}, "min=2", "must have at least 2 items"},
		{map[string]int{"a": 1}, "max=0", "must have at most 0 items"},
		{[]int{1}, "eq=2", "must have exactly 2 items"},
		{[]int{1}, "ne=1", "must not have exactly 1 item"},
		{[]int{1}, "len=2", "must have exactly 2 items"},
		{past, "gt", "must be in the future"},
		{past, "gte", "must not be in the past"},
		{future, "lt", "must be in the past"},
		{&future, "lte", "must not be in the future"},
		{"x", "oneof=TRY USD", "must be one of TRY USD"},
		{"x", "oneofci='two words' USD", "must be one of 'two words' USD"},
		{"x", "noneof=x y", "must not be one of x y"},
		{"x", "email", "must be a valid email address"},
		{"x", "e164", "must be a phone number in E.164 form, such as +905551234567"},
		{"x", "url", "must be a valid URL"},
		{"x", "http_url", "must be a valid http or https URL"},
		{"x", "https_url", "must be a valid https URL"},
		{"x", "uri", "must be a valid URI"},
		{"x", "uuid", "must be a valid UUID"},
		{"x", "uuid4", "must be a valid UUID of version 4"},
		{"x", "uuid5_rfc4122", "must be a valid UUID of version 5"},
		{"x", "uuid7", "must be a valid UUID of version 7"},
		{"x", "ulid", "must be a valid ULID"},
		{"x", "iso4217", "must be a valid ISO 4217 currency code"},
		{1, "iso4217_numeric", "must be a valid numeric ISO 4217 currency code"},
		{"x", "iso3166_1_alpha2", "must be a valid two-letter ISO 3166-1 country code"},
		{"x", "iso3166_1_alpha3", "must be a valid three-letter ISO 3166-1 country code"},
		{"x", "country_code", "must be a valid ISO 3166-1 country code"},
		{"x", "eu_country_code", "must be the ISO 3166-1 code of a country of the European Union"},
		{"x", "iso3166_2", "must be a valid ISO 3166-2 subdivision code"},
		{"!", "bcp47_language_tag", "must be a valid BCP 47 language tag"},
		{"1", "alpha", "must hold letters a-z only"},
		{"1", "alphaspace", "must hold letters a-z and blanks only"},
		{"!", "alphanum", "must hold letters a-z and digits only"},
		{"!", "alphanumspace", "must hold letters a-z, digits and blanks only"},
		{"1", "alphaunicode", "must hold letters only"},
		{"!", "alphanumunicode", "must hold letters and digits only"},
		{"x", "numeric", "must be a number"},
		{"-1", "number", "must hold digits only"},
		{"x", "boolean", "must be true or false"},
		{"x", "hexadecimal", "must be hexadecimal"},
		{"X", "lowercase", "must be in lower case"},
		{"x", "uppercase", "must be in upper case"},
		{"ş", "ascii", "must hold ASCII characters only"},
		{"\n", "printascii", "must hold printable ASCII characters only"},
		{"x", "timezone", "must be a time zone name, such as Europe/Istanbul"},
		{"x", "duration", "must be a duration, such as 90s or 1h30m"},
		{"x", "ip", "must be a valid IP address"},
		{"x", "ipv4", "must be a valid IPv4 address"},
		{"x", "ipv6", "must be a valid IPv6 address"},
		{"x", "cidr", "must be a valid network in CIDR form"},
		{"x", "mac", "must be a valid MAC address"},
		{"_", "hostname", "must be a valid host name"},
		{"x", "fqdn", "must be a fully qualified domain name"},
		{"x", "hostname_port", "must be a host name and port, such as example.com:443"},
		{0, "port", "must be a port from 1 to 65535"},
		{"x", "json", "must be valid JSON"},
		{"x", "jwt", "must be a JSON web token"},
		{"!", "base64", "must be base64 encoded"},
		{"!", "base64url", "must be base64 encoded for URLs"},
		{"x", "sha256", "must be a hexadecimal sha256 sum"},
		{"x", "credit_card", "must be a valid card number"},
		{"12", "luhn_checksum", "must have a valid check digit"},
		{"x", "bic", "must be a valid BIC"},
		{"x", "isbn", "must be a valid ISBN"},
		{"x", "semver", "must be a semantic version, such as 1.2.3"},
		{"x", "latitude", "must be a latitude from -90 to 90"},
		{"x", "longitude", "must be a longitude from -180 to 180"},
		{"x", "hexcolor", "must be a valid color"},
		{"x", "iscolor", "must be a valid color"},
		{[]int{1, 1}, "unique", "must not hold anything twice"},
		{"x", "contains=@", `must contain "@"`},
		{"x", "containsany=ab", `must contain one of the characters "ab"`},
		{"x", "containsrune=a", `must contain the character "a"`},
		{"x", "excludes=x", `must not contain "x"`},
		{"x", "excludesall=xy", `must not contain any of the characters "xy"`},
		{"x", "excludesrune=x", `must not contain the character "x"`},
		{"x", "startswith=a", `must start with "a"`},
		{"x", "endswith=a", `must end with "a"`},
		{"x", "startsnotwith=x", `must not start with "x"`},
		{"x", "endsnotwith=x", `must not end with "x"`},
		{"x", "datetime=2006-01-02", "must be a date or time in the form 2006-01-02"},
		{"x", "postcode_iso3166_alpha2=DE", "must be a valid postal code of DE"},
		{"x", "postcode_iso3166_alpha2_field=Kind", "must be a valid postal code of kind"},
		{"", "required_if=Kind card Total 7", "is required when kind is card and total_amount is 7"},
		{"", "skip_unless=Kind card", "is required when kind is card"},
		{"", "required_unless=Kind cash", "is required unless kind is cash"},
		{"", "required_with=Phone Email", "is required together with phone or e_mail"},
		{"", "required_with_all=Kind Email", "is required together with kind and e_mail"},
		{"", "required_without=Phone", "is required when there is no phone"},
		{"", "required_without_all=Phone", "is required when there is no phone"},
		{"x", "excluded_if=Kind card", "must be empty when kind is card"},
		{"x", "excluded_unless=Kind cash", "must be empty unless kind is cash"},
		{"x", "excluded_with=Kind Email", "must be empty together with kind or e_mail"},
		{"x", "excluded_with_all=Kind Email", "must be empty together with kind and e_mail"},
		{"x", "excluded_without=Phone", "must be empty when there is no phone"},
		{"", "required_without_all=Phone Field", "is required when there is neither phone nor field"},
		{"x", "excluded_without_all=Phone", "must be empty when there is no phone"},
		{9, "eqfield=Total", "must be equal to total_amount"},
		{7, "nefield=Total", "must not be equal to total_amount"},
		{7, "gtfield=Total", "must be greater than total_amount"},
		{6, "gtefield=Total", "must be at least total_amount"},
		{7, "ltfield=Total", "must be less than total_amount"},
		{8, "ltefield=Total", "must be at most total_amount"},
		{"x", "fieldcontains=Kind", "must contain kind"},
		{"x card", "fieldexcludes=Kind", "must not contain kind"},
		{"x", "sku", `does not satisfy rule "sku"`},
		{0, "cents", "must be at least 1"},
		{"x", "colour", "must be a valid color"},
		{"x", "startswith=a|email", `must start with "a" or must be a valid email address`},
		{"x", "oneof=a b|email", "must be one of a b or a valid email address"},
	} {
		t.Run(test.tag, func(t *testing.T) {
			t.Parallel()
			got := ask(t, v, test.value, test.tag)
			if len(got) != 1 || got[0].Message != test.want {
				t.Errorf("got %+v, want the message %q", got, test.want)
			}
			rule, _, _ := strings.Cut(test.tag, "=")
			if len(got) == 1 && !strings.HasPrefix(got[0].Rule, rule) || got[0].Path != "field" {
				t.Errorf("got %+v, want the rule %s", got, rule)
			}
		})
	}
}

func TestParametersAreNamedAsCallersKnowThem(t *testing.T) {
	t.Parallel()
	v := validator.New()
	for tag, want := range map[string]string{
		"gt=20":                        "20",
		"required_without=Phone":       "phone",
		"excluded_if=Kind card":        "kind card",
		"required_if=Kind 'no' Nope 1": "",
	} {
		for _, got := range ask(t, v, "x", tag) {
			if got.Param != want {
				t.Errorf("%s: got the parameter %q, want %q", tag, got.Param, want)
			}
		}
	}
}
