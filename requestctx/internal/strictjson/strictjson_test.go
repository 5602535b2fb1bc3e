package strictjson_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tekil-go/tekil/requestctx/internal/strictjson"
)

// code decodes itself from text and quotes what it was given in its error, as most types do.
type code struct{ s string }

func (c *code) UnmarshalText(b []byte) error {
	if len(b) != 3 {
		return fmt.Errorf("bad code %q", b)
	}
	c.s = strings.ToUpper(string(b))
	return nil
}

// point decodes itself from JSON.
type point struct{ x, y int }

func (p *point) UnmarshalJSON(b []byte) error {
	var xy []int
	if err := json.Unmarshal(b, &xy); err != nil || len(xy) != 2 {
		return fmt.Errorf("bad point %s", b)
	}
	p.x, p.y = xy[0], xy[1]
	return nil
}

// level is a byte with a text form, so that a list of levels is no byte string.
type level uint8

func (l *level) UnmarshalText(b []byte) error {
	*l = level(len(b))
	return nil
}

// currency decodes itself from JSON, but as the key of a map it is just text.
type currency string

func (c *currency) UnmarshalJSON(b []byte) error { return json.Unmarshal(b, (*string)(c)) }

// fickle refuses every other value, which no second look can find.
type fickle struct{}

var fickleCalls atomic.Int64

func (*fickle) UnmarshalJSON([]byte) error {
	if fickleCalls.Add(1)%2 == 1 {
		return errors.New("not now")
	}
	return nil
}

type line struct {
	SKU  string `json:"sku"`
	Qty  int    `json:"qty"`
	Note *string
}

type Base struct {
	Tenant string `json:"tenant"`
	Hidden string `json:"id"`
}

type trail struct {
	Source string `json:"source"`
}

type order struct {
	Base
	trail
	ID      string           `json:"id"`
	Paid    bool             `json:"paid"`
	Amount  int64            `json:"amount"`
	Small   int8             `json:"small"`
	Count   uint8            `json:"count"`
	Rate    float64          `json:"rate"`
	Narrow  float32          `json:"narrow"`
	Number  json.Number      `json:"number"`
	Blob    []byte           `json:"blob"`
	Lines   []line           `json:"lines"`
	ByName  map[string]line  `json:"by_name"`
	ByNum   map[int]string   `json:"by_num"`
	ByCode  map[code]int     `json:"by_code"`
	ByCur   map[currency]int `json:"by_cur"`
	Ptr     **int            `json:"ptr"`
	Pair    [2]int           `json:"pair"`
	At      time.Time        `json:"at"`
	Until   *time.Time       `json:"until"`
	Took    time.Duration    `json:"took"`
	Code    code             `json:"code"`
	Point   *point           `json:"point"`
	Levels  []level          `json:"levels"`
	Big     *big.Int         `json:"big"`
	Raw     json.RawMessage  `json:"raw"`
	Any     any              `json:"any"`
	Quoted  int              `json:"quoted,string"`
	QuotedB *bool            `json:"quoted_b,string"`
	QuotedS string           `json:"quoted_s,string"`
	QuotedF float64          `json:"quoted_f,string"`
	QuotedN json.Number      `json:"quoted_n,string"`
	Ignored string           `json:"-"`
	//lint:ignore SA5008 a member named dash is meant
	Dash   string             `json:"-,"`
	Chan   chan int           `json:"chan"`
	Iface  fmt.Stringer       `json:"iface"`
	Cents  map[bool]int       `json:"cents"`
	Parent *order             `json:"parent"`
	Deep   map[string][]order `json:"deep"`
	//lint:ignore U1000 it is here to be not found
	unlisted string
}

func decode[T any](t *testing.T, body string) (T, error) {
	t.Helper()
	var v T
	err := strictjson.Decode([]byte(body), &v)
	if err != nil && !reflect.ValueOf(v).IsZero() {
		t.Errorf("%q: the target is not zero after an error: %+v", body, v)
	}
	return v, err
}

func TestDecode_GivesWhatEncodingJSONGives(t *testing.T) {
	t.Parallel()
	bodies := map[string]string{
		"nothing set":                `{}`,
		"blanks around everything":   " \t\r\n{ \"id\" :\n\"a\" , \"lines\" : [ { \"qty\" : 1 } , { } ] , \"raw\" : [ ] } \n",
		"all numbers":                `{"amount":-9223372036854775808,"small":127,"count":255,"rate":-1.5e-3,"narrow":3.4e38,"number":1e999}`,
		"minus zero":                 `{"amount":-0,"rate":-0.0}`,
		"F04 floats as one":          `{"rate":1}`,
		"F04 floats as one point":    `{"rate":1.0,"narrow":1e0}`,
		"F08 a float loses digits":   `{"rate":9007199254740993,"narrow":0.1}`,
		"a long float":               `{"rate":123456789012345678901234567890123456789012345678901234567890}`,
		"a float too small to hold":  `{"rate":1e-999}`,
		"a number as text is kept":   `{"number":-0.10E+2}`,
		"F11 null is absent":         `{"id":null,"paid":null,"amount":null,"rate":null,"number":null,"blob":null,"lines":null,"by_name":null,"ptr":null,"pair":null,"at":null,"until":null,"code":null,"point":null,"any":null,"parent":null,"big":null,"took":null}`,
		"null in lists":              `{"lines":[null,{"Note":null}],"by_name":{"a":null},"pair":[null,1],"levels":[null],"any":[null]}`,
		"null in a quoted field":     `{"quoted":null,"quoted_b":null,"quoted_s":null,"quoted_f":null,"quoted_n":null}`,
		"F12 empty lists":            `{"lines":[],"by_name":{},"blob":"","deep":{}}`,
		"escapes":                    `{"id":"\"\\\/\b\f\n\r\t\u0041\u00e9\uD83D\uDE00\u2028"}`,
		"BR-36 the character zero":   `{"id":"x\u0000y","any":"\u0000","raw":"\u0000"}`,
		"emoji and a BOM inside":     "{\"id\":\"😀\ufeff\u2028\x7f\"}",
		"the replacement character":  "{\"id\":\"\ufffd\\ufffd\"}",
		"an escaped member name":     `{"\u0069d":"a","line\u0073":[]}`,
		"embedded structs":           `{"tenant":"t","id":"outer","source":"s"}`,
		"base64":                     `{"blob":"aGVsbG8="}`,
		"base64 with escapes":        `{"blob":"\u0061GVsbG\u0038="}`,
		"maps":                       `{"by_name":{"SKU":{"sku":"a"},"sku":{},"":{}},"by_num":{"0":"a","-7":"b"},"by_code":{"abc":1,"abd":2},"by_cur":{"EUR":1,"eur":2}}`,
		"pointers":                   `{"ptr":7,"until":"2026-01-02T03:04:05.5+03:00","parent":{"parent":{"id":"x"}}}`,
		"types that decode":          `{"at":"2026-01-02T03:04:05Z","took":1500,"code":"abc","point":[1,2],"levels":["a","bb"],"big":123456789012345678901234567890}`,
		"free values":                `{"any":{"a":[1,2.5,"x",true,false,null,{"A":{}}],"b":{}},"raw":{"A":1,"a":[1e999,{"x":"y"}]}}`,
		"quoted fields":              `{"quoted":"-12","quoted_b":"true","quoted_s":"\"a\\u0062\\\"\"","quoted_f":"1.5e3","quoted_n":"10.00"}`,
		"a member named dash":        `{"-":"x"}`,
		"names a letter apart":       `{"by_num":{},"by_name":{}}`,
		"same names in two objects":  `{"lines":[{"sku":"a"},{"sku":"b"}],"parent":{"id":"a"},"id":"b","any":[{"x":1},{"x":{"x":2}}]}`,
		"a hundred levels":           `{"any":` + strings.Repeat("[", 99) + strings.Repeat("]", 99) + `}`,
		"many free names":            `{"any":{` + members(100) + `}}`,
		"noncharacters are UTF-8":    "{\"id\":\"\uffff\U0010ffff\"}",
		"a string in a free object":  `{"any":{"\u0061":1,"b":2,"A":3}}`,
		"the longest surrogate pair": `{"id":"\udbff\udfff"}`,
	}
	for name, body := range bodies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := decode[order](t, body)
			if err != nil {
				t.Fatal(err)
			}
			var want order
			if err := json.Unmarshal([]byte(body), &want); err != nil {
				t.Fatal("encoding/json: ", err)
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
		})
	}
}

func members(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `,"m%d":%d`, i, i)
	}
	return b.String()[1:]
}

func TestDecode_RefusesWhatIsNotStrict(t *testing.T) {
	t.Parallel()
	const (
		syntax  = "is not valid JSON"
		end     = "ends too early"
		twice   = "appears twice"
		half    = "has half of a surrogate pair"
		utf8    = "is not valid UTF-8"
		unknown = "has an unknown member"
		letters = "must have its name in exactly these letters, upper and lower case counted"
		whole   = "must be a whole number, written without a fraction or an exponent"
		range_  = "is too large or too small"
		base64  = "must be a string in base64"
		deep    = "is nested more than 100 levels deep"
		refused = "is not a value that its type accepts"
		intText = "must be a whole number, in quotes"
	)
	cases := map[string]struct {
		body   string
		path   string
		offset int64
		reason string
	}{
		"an empty body":                        {"", "", 0, "is empty"},
		"blanks only":                          {" \n", "", 0, "is empty"},
		"BR-34 only a BOM":                     {"\ufeff", "", 3, "is empty"},
		"BR-34 two BOMs":                       {"\ufeff\ufeff{}", "", 3, syntax},
		"BR-34 a BOM after a blank":            {" \ufeff{}", "", 1, syntax},
		"BR-34 offsets count the BOM":          {"\ufeff{\"x\":1}", "", 4, unknown},
		"BR-34 UTF-16":                         {"\xff\xfe{\x00}\x00", "", 0, syntax},
		"null":                                 {`null`, "", 0, "must not be null"},
		"null with blanks":                     {` null `, "", 1, "must not be null"},
		"another type":                         {`[]`, "", 0, "must be an object, not an array"},
		"a string as the body":                 {`"{}"`, "", 0, "must be an object, not a string"},
		"two bodies":                           {`{} {}`, "", 3, "has more data after its end"},
		"a comma after the body":               {`{},`, "", 2, "has more data after its end"},
		"a zero byte after the body":           {"{}\x00", "", 2, "has more data after its end"},
		"an open object":                       {`{`, "", 1, end},
		"an open string":                       {`{"id":"a`, "id", 8, end},
		"an open escape":                       {`{"id":"a\`, "id", 9, end},
		"an open list":                         {`{"lines":[{}`, "lines", 12, end},
		"an open literal":                      {`{"paid":tru`, "paid", 8, syntax},
		"a long literal":                       {`{"paid":truex}`, "", 12, syntax},
		"no colon":                             {`{"id" 1}`, "", 6, syntax},
		"no value":                             {`{"id":}`, "id", 6, syntax},
		"no name":                              {`{1:1}`, "", 1, syntax},
		"single quotes":                        {`{'id':1}`, "", 1, syntax},
		"a comma too many":                     {`{"id":"a",}`, "", 10, syntax},
		"a comma too many in a list":           {`{"pair":[1,2,]}`, "pair[2]", 13, syntax},
		"a comma too few":                      {`{"id":"a" "paid":true}`, "", 10, syntax},
		"the wrong bracket":                    {`{"pair":[1,2}`, "pair", 12, syntax},
		"the wrong bracket in a free object":   {`{"any":{"a":1]}`, "any", 13, syntax},
		"a comment":                            {`{/**/}`, "", 1, syntax},
		"a control character":                  {"{\"id\":\"a\tb\"}", "id", 8, syntax},
		"a control character after an escape":  {"{\"id\":\"\\n\tb\"}", "id", 9, syntax},
		"an unknown escape":                    {`{"id":"\x41"}`, "id", 7, syntax},
		"a short escape":                       {`{"id":"\u12"}`, "id", 7, syntax},
		"an escape that is not hex":            {`{"id":"\u12g4"}`, "id", 7, syntax},
		"a leading zero":                       {`{"amount":01}`, "", 11, syntax},
		"a plus":                               {`{"amount":+1}`, "amount", 10, syntax},
		"only a minus":                         {`{"amount":-}`, "amount", 11, syntax},
		"no digit before the point":            {`{"rate":.5}`, "rate", 8, syntax},
		"no digit after the point":             {`{"rate":1.}`, "rate", 10, syntax},
		"no digit in the exponent":             {`{"rate":1e+}`, "rate", 11, syntax},
		"not a number":                         {`{"rate":NaN}`, "rate", 8, syntax},
		"F05 a fraction in an integer":         {`{"amount":1.0}`, "amount", 10, whole},
		"F05 an exponent in an integer":        {`{"amount":1e0}`, "amount", 10, whole},
		"F05 a fraction in a list":             {`{"lines":[{"qty":1},{"qty":2.50}]}`, "lines[1].qty", 27, whole},
		"F05 a fraction in a pointer":          {`{"ptr":1.0}`, "ptr", 7, whole},
		"F05 a fraction in a duration":         {`{"took":1.5}`, "took", 8, whole},
		"an int8 too large":                    {`{"small":128}`, "small", 9, range_},
		"an int64 too large":                   {`{"amount":9223372036854775808}`, "amount", 10, range_},
		"an int64 too small":                   {`{"amount":-9223372036854775809}`, "amount", 10, range_},
		"a uint8 too large":                    {`{"count":256}`, "count", 9, range_},
		"a negative uint":                      {`{"count":-1}`, "count", 9, "must not be negative"},
		"a uint of minus zero":                 {`{"count":-0}`, "count", 9, "must not be negative"},
		"BR-36 a float too large":              {`{"rate":1e400}`, "rate", 8, range_},
		"BR-36 a float32 too large":            {`{"narrow":3.5e38}`, "narrow", 10, range_},
		"BR-36 a float32 too large in digits":  {`{"narrow":1000000000000000000000000000000000000000}`, "narrow", 10, range_},
		"BR-36 a free number too large":        {`{"any":[1e400]}`, "any[0]", 8, range_},
		"F10 invalid UTF-8":                    {"{\"id\":\"a\xffb\"}", "id", 8, utf8},
		"F10 invalid UTF-8 after an escape":    {"{\"id\":\"\\n\xffb\"}", "id", 9, utf8},
		"F10 invalid UTF-8 in a name":          {"{\"i\xffd\":1}", "", 3, utf8},
		"F10 invalid UTF-8 in raw":             {"{\"raw\":{\"a\":[\"\xc3\"]}}", "raw[*][0]", 14, utf8},
		"F10 invalid UTF-8 in a free name":     {"{\"any\":{\"\xc3\":1}}", "any", 9, utf8},
		"F10 an overlong form":                 {"{\"id\":\"\xc0\xaf\"}", "id", 7, utf8},
		"F10 a surrogate in UTF-8":             {"{\"id\":\"\xed\xa0\x80\"}", "id", 7, utf8},
		"F10 invalid UTF-8 outside of strings": {"{\xff}", "", 1, syntax},
		"F10 a high surrogate":                 {`{"id":"ab\ud800"}`, "id", 9, half},
		"F10 a high surrogate and text":        {`{"id":"\ud800abcdef"}`, "id", 7, half},
		"F10 two high surrogates":              {`{"id":"\ud800\ud800"}`, "id", 7, half},
		"F10 a low surrogate":                  {`{"id":"\udc00"}`, "id", 7, half},
		"F10 the halves swapped":               {`{"id":"\udc00\ud800"}`, "id", 7, half},
		"F10 a pair and a half":                {`{"id":"\ud83d\ude00\ud83d"}`, "id", 19, half},
		"F10 half a pair in a name":            {`{"\ud800":1}`, "", 2, half},
		"F10 half a pair in raw":               {`{"raw":["\ud800"]}`, "raw[0]", 9, half},
		"F10 half a pair in a type's own":      {`{"code":"\ud800"}`, "code", 9, half},
		"F10 half a pair in quotes in quotes":  {`{"quoted_s":"\"\\ud800\""}`, "quoted_s", 12, "must be a string, in quotes"},
		"F13 an unknown member":                {`{"id":"a","idd":1}`, "", 10, unknown},
		"F13 an unknown member below":          {`{"lines":[{},{"x":1}]}`, "lines[1]", 14, unknown},
		"F13 an unknown member in a map":       {`{"by_name":{"k":{"x":1}}}`, "by_name[*]", 17, unknown},
		"F13 an unknown member, empty name":    {`{"":1}`, "", 1, unknown},
		"F13 a field that is not for JSON":     {`{"Ignored":"x"}`, "", 1, unknown},
		"F13 a field that is not exported":     {`{"unlisted":"x"}`, "", 1, unknown},
		"F13 the name of an embedded struct":   {`{"Base":{}}`, "", 1, unknown},
		"F14 two members":                      {`{"id":"a","paid":true,"id":"a"}`, "id", 22, twice},
		"F14 two members, one escaped":         {`{"id":"a","\u0069d":"a"}`, "id", 10, twice},
		"F14 two members below":                {`{"lines":[{"qty":1,"qty":2}]}`, "lines[0].qty", 19, twice},
		"F14 two members, first null":          {`{"id":null,"id":"a"}`, "id", 11, twice},
		"F14 two keys of a map":                {`{"by_name":{"k":{},"k":{}}}`, "by_name[*]", 19, twice},
		"F14 two keys of a map as one":         {`{"by_code":{"abc":1,"ABC":2}}`, "by_code[*]", 20, twice},
		"F14 two members in raw":               {`{"raw":{"k":1,"l":{"k":1,"k":2}}}`, "raw[*][*]", 25, twice},
		"F14 two members in any":               {`{"any":[{"k":1,"\u006b":2}]}`, "any[0][*]", 15, twice},
		"F14 two members in a type's own":      {`{"point":{"k":1,"k":1}}`, "point[*]", 16, twice},
		"F14 two members of many":              {`{"any":{` + members(40) + `,"m0":0}}`, "any[*]", int64(len(`{"any":{` + members(40) + `,`)), twice},
		"F14 two members of just too many":     {`{"any":{` + members(17) + `,"m16":0}}`, "any[*]", int64(len(`{"any":{` + members(17) + `,`)), twice},
		"F14 two members of just not too many": {`{"any":{` + members(16) + `,"m15":0}}`, "any[*]", int64(len(`{"any":{` + members(16) + `,`)), twice},
		"F14 another letter case":              {`{"Id":"a"}`, "id", 1, letters},
		"F14 another letter case below":        {`{"lines":[{"SKU":"a"}]}`, "lines[0].sku", 11, letters},
		"F14 another letter case untagged":     {`{"lines":[{"note":"a"}]}`, "lines[0].Note", 11, letters},
		"F14 another letter case and exact":    {`{"id":"a","ID":"b"}`, "id", 10, letters},
		"F14 another letter case by Unicode":   {`{"ſource":"b"}`, "source", 1, letters},
		"F14 another letter case, embedded":    {`{"Tenant":"b"}`, "tenant", 1, letters},
		"a bool for a string":                  {`{"id":true}`, "id", 6, "must be a string, not true or false"},
		"a number for a string":                {`{"id":1}`, "id", 6, "must be a string, not a number"},
		"an object for a string":               {`{"id":{}}`, "id", 6, "must be a string, not an object"},
		"a string for a bool":                  {`{"paid":"true"}`, "paid", 8, "must be true or false, not a string"},
		"a string for an integer":              {`{"amount":"1"}`, "amount", 10, "must be a whole number, not a string"},
		"a string for a float":                 {`{"rate":"1"}`, "rate", 8, "must be a number, not a string"},
		"a string for a json.Number":           {`{"number":"1"}`, "number", 10, "must be a number, not a string"},
		"an object for a list":                 {`{"lines":{}}`, "lines", 9, "must be an array, not an object"},
		"a list for an object":                 {`{"by_name":[]}`, "by_name", 11, "must be an object, not an array"},
		"a list for a byte string":             {`{"blob":[1,2]}`, "blob", 8, "must be a string in base64, not an array"},
		"a byte string for a list of bytes":    {`{"levels":"AQI="}`, "levels", 10, "must be an array, not a string"},
		"base64 without padding":               {`{"blob":"aGVsbG8"}`, "blob", 8, base64},
		"base64 of the other alphabet":         {`{"blob":"_-__"}`, "blob", 8, base64},
		"base64 with a line break":             {`{"blob":"aGVs\nbG8="}`, "blob", 8, base64},
		"base64 with stray bits":               {`{"blob":"aGVsbG9="}`, "blob", 8, base64},
		"an array too short":                   {`{"pair":[1]}`, "pair", 8, "must be an array of length 2"},
		"an array too long":                    {`{"pair":[1,2,3]}`, "pair", 8, "must be an array of length 2"},
		"an empty array":                       {`{"pair":[]}`, "pair", 8, "must be an array of length 2"},
		"a map key that is no number":          {`{"by_num":{"x":"a"}}`, "by_num[*]", 11, "must have a name that is a whole number"},
		"a map key with a zero":                {`{"by_num":{"01":"a"}}`, "by_num[*]", 11, "must have a name that is a whole number"},
		"a map key with a minus zero":          {`{"by_num":{"-0":"a"}}`, "by_num[*]", 11, "must have a name that is a whole number"},
		"a map key with a blank":               {`{"by_num":{"1 ":"a"}}`, "by_num[*]", 11, "must have a name that is a whole number"},
		"a map key null":                       {`{"by_num":{"null":"a"}}`, "by_num[*]", 11, "must have a name that is a whole number"},
		"a map key that its type refuses":      {`{"by_code":{"abcd":1}}`, "by_code[*]", 12, refused},
		"a map's value":                        {`{"by_num":{"1":2}}`, "by_num[*]", 15, "must be a string, not a number"},
		"a time":                               {`{"at":"2026-02-30T00:00:00Z"}`, "at", 6, "must be a time like 2006-01-02T15:04:05Z"},
		"a time as a number":                   {`{"parent":{"until":1}}`, "parent.until", 19, "must be a time like 2006-01-02T15:04:05Z"},
		"a type's own text":                    {`{"code":"abcd"}`, "code", 8, refused},
		"a number for a type's own text":       {`{"code":1}`, "code", 8, "must be a string, not a number"},
		"a list for a type's own text":         {`{"code":[]}`, "code", 8, "must be a string, not an array"},
		"a type's own JSON":                    {`{"until":null,"point":[1]}`, "point", 22, refused},
		"a type's own JSON after a good one":   {`{"parent":{"point":[1,2]},"point":[1,"2"]}`, "point", 34, refused},
		"a quoted field without quotes":        {`{"quoted":1}`, "quoted", 10, intText},
		"a quoted field with null":             {`{"quoted":"null"}`, "quoted", 10, intText},
		"a quoted field with nothing":          {`{"quoted":""}`, "quoted", 10, intText},
		"a quoted field with a blank":          {`{"quoted":" 1"}`, "quoted", 10, intText},
		"a quoted field with a blank after":    {`{"quoted":"1 "}`, "quoted", 10, intText},
		"a quoted field with a plus":           {`{"quoted":"+1"}`, "quoted", 10, intText},
		"a quoted field with a zero":           {`{"quoted":"01"}`, "quoted", 10, intText},
		"a quoted field with a fraction":       {`{"quoted":"1.0"}`, "quoted", 10, intText},
		"a quoted bool with other letters":     {`{"quoted_b":"True"}`, "quoted_b", 12, "must be true or false, in quotes"},
		"a quoted string with one quote":       {`{"quoted_s":"a"}`, "quoted_s", 12, "must be a string, in quotes"},
		"a quoted float in hex":                {`{"quoted_f":"0x1p-2"}`, "quoted_f", 12, "must be a number, in quotes"},
		"a quoted float too large":             {`{"quoted_f":"1e400"}`, "quoted_f", 12, "must be a number, in quotes"},
		"a quoted json.Number in two quotes":   {`{"quoted_n":"\"1\""}`, "quoted_n", 12, "must be a number, in quotes"},
		"a channel":                            {`{"chan":1}`, "chan", 8, "must be left out, not a number"},
		"a channel null":                       {`{"chan":null}`, "chan", 8, "must be left out, not null"},
		"an interface with methods":            {`{"iface":{}}`, "iface", 9, "must be left out, not an object"},
		"a map with keys that JSON has not":    {`{"cents":{}}`, "cents", 9, "must be left out, not an object"},
		"too deep":                             {`{"any":` + strings.Repeat("[", 100) + strings.Repeat("]", 100) + `}`, "any" + strings.Repeat("[0]", 99), 106, deep},
		"too deep in objects":                  {`{"raw":` + strings.Repeat(`{"":`, 100) + "1" + strings.Repeat("}", 101), "raw" + strings.Repeat("[*]", 99), 403, deep},
		"too deep in fields":                   {strings.Repeat(`{"parent":`, 101) + "{}", strings.TrimSuffix(strings.Repeat("parent.", 100), "."), 1000, deep},
		"far too deep":                         {`{"any":` + strings.Repeat("[", 1000000), "any" + strings.Repeat("[0]", 99), 106, deep},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := decode[order](t, c.body)
			var got *strictjson.Error
			if !errors.As(err, &got) {
				t.Fatalf("got %v, want a *Error", err)
			}
			if want := (strictjson.Error{Path: c.path, Offset: c.offset, Reason: c.reason}); *got != want {
				t.Errorf("got  %+v\nwant %+v", *got, want)
			}
			if got.Code() != "MALFORMED_REQUEST" {
				t.Errorf("code %q", got.Code())
			}
		})
	}
}

func TestBR34_ABodyWithAndWithoutABOMIsTheSame(t *testing.T) {
	t.Parallel()
	const body = `{"id":"a","amount":4990}`
	plain, err := decode[order](t, body)
	if err != nil {
		t.Fatal(err)
	}
	marked, err := decode[order](t, "\ufeff"+body)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(plain, marked) {
		t.Errorf("got %+v, want %+v", marked, plain)
	}
}

func TestF10_TextIsNeverReplaced(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"\xff", `\ud800`, `\udfff`, "\xed\xa0\x80"} {
		for _, body := range []string{`{"id":"` + text + `"}`, `{"any":"` + text + `"}`, `{"raw":"` + text + `"}`, `{"by_name":{"` + text + `":{}}}`} {
			if v, err := decode[order](t, body); err == nil {
				t.Errorf("%q was accepted as %+v", body, v)
			}
		}
	}
}

// Every place of a body that can be wrong is wrong by a card number here, and no error may repeat a part of it.
func TestDecode_ErrorsHoldNoValueAndNoForeignName(t *testing.T) {
	t.Parallel()
	const card = "4111111111111111"
	fields := []string{
		"id", "paid", "amount", "small", "count", "rate", "narrow", "number", "blob", "lines", "by_name", "by_num", "by_code", "by_cur", "ptr", "pair", "at",
		"until", "took", "code", "point", "levels", "big", "raw", "any", "quoted", "quoted_b", "quoted_s", "quoted_f", "quoted_n", "chan", "iface", "cents",
		"parent", "tenant", "source", card, strings.ToUpper("id"), "\\u0034111111111111111",
	}
	values := []string{
		card, card + ".0", "-" + card, card + "e400", `"` + card + `"`, `"` + card, `"` + card + `\ud800"`, `"` + card + "\xff\"", `["` + card + `"]`, `[` + card + `.5]`,
		`{"` + card + `":1}`, `{"` + card + `":1,"` + card + `":1}`, `{"k":"` + card + `"}`, `{"1":` + card + `,"1":2}`, card + card + card, card + "x", `"\"` + card + `\""`,
		`{"lines":"` + card + `"}`, `[{"qty":"` + card + `"}]`, `[{"` + card + `":"` + card + `"}]`, `{"k":{"` + card + `":1}}`, `tru` + card, `"` + card + "\n",
	}
	refused := 0
	for _, field := range fields {
		for _, value := range values {
			for _, body := range []string{`{"` + field + `":` + value + `}`, `{"parent":{"` + field + `":` + value + `}}`, value, `{"` + field + `":` + value, `{} ` + value} {
				_, err := decode[order](t, body)
				if err == nil {
					continue
				}
				refused++
				for e := err; e != nil; e = errors.Unwrap(e) {
					for _, shown := range []string{e.Error(), fmt.Sprintf("%+v", e), fmt.Sprintf("%#v", e)} {
						if strings.Contains(shown, "4111") || strings.Contains(shown, "1111") {
							t.Errorf("%s\nis answered with %s", body, shown)
						}
					}
				}
			}
		}
	}
	if refused < 3000 {
		t.Errorf("only %d bodies were refused; the test is not worth its name", refused)
	}
}

func TestDecode_WhatTheTargetHeldDoesNotCount(t *testing.T) {
	t.Parallel()
	held := 5
	pointer := &held
	v := order{ID: "old", Ptr: &pointer, Any: &line{SKU: "old"}, Lines: []line{{SKU: "old", Qty: 9}}, ByName: map[string]line{"old": {}}}
	if err := strictjson.Decode([]byte(`{"any":{"x":1},"lines":[{"sku":"new"}],"ptr":null}`), &v); err != nil {
		t.Fatal(err)
	}
	want := order{Any: map[string]any{"x": 1.0}, Lines: []line{{SKU: "new"}}}
	if !reflect.DeepEqual(v, want) || held != 5 {
		t.Errorf("got  %+v\nwant %+v", v, want)
	}

	v = order{ID: "old"}
	if err := strictjson.Decode([]byte(`{"id":"new","code":"longer than three"}`), &v); err == nil || !reflect.ValueOf(v).IsZero() {
		t.Errorf("got %v and %+v after an error", err, v)
	}
}

func TestDecode_TakesTargetsOfOtherTypes(t *testing.T) {
	t.Parallel()
	accept := func(target any, body string, want any) {
		t.Helper()
		if err := strictjson.Decode([]byte(body), target); err != nil {
			t.Errorf("%T: %v", target, err)
		} else if got := reflect.ValueOf(target).Elem().Interface(); !reflect.DeepEqual(got, want) {
			t.Errorf("%T: got %#v, want %#v", target, got, want)
		}
	}
	refuse := func(target any, body, reason string) {
		t.Helper()
		var e *strictjson.Error
		if err := strictjson.Decode([]byte(body), target); !errors.As(err, &e) || e.Reason != reason {
			t.Errorf("%T: got %v, want %q", target, err, reason)
		}
	}
	one := 1
	accept(new(any), `{"a":[1]}`, map[string]any{"a": []any{1.0}})
	accept(new([]int), `[1,2]`, []int{1, 2})
	accept(new(map[string]int), `{"a":1}`, map[string]int{"a": 1})
	accept(new(*int), `1`, &one)
	accept(new(string), `"a"`, "a")
	accept(new(point), `[1,2]`, point{1, 2})
	accept(new(code), `"abc"`, code{"ABC"})
	accept(new(struct{}), `{}`, struct{}{})

	for _, target := range []any{new(any), new([]int), new(map[string]int), new(*int), new(string), new(point), new(*code), new(struct{}), new(json.RawMessage)} {
		refuse(target, `null`, "must not be null")
	}
	refuse(new(any), `{"a":1,"a":1}`, "appears twice")
	refuse(new(json.RawMessage), `{"a":1,"a":1}`, "appears twice")
	refuse(new([]int), `[1.0]`, "must be a whole number, written without a fraction or an exponent")
	refuse(new(struct{}), `{"a":1}`, "has an unknown member")
	refuse(new(fickle), ` 1`, "holds a value that its type does not accept")
	refuse(new(point), `[1]`, "is not a value that its type accepts")
}
