package idempotency

import (
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
)

// fpOrder is the command of the cases: it comes as JSON and is decoded as an edge would.
type fpOrder struct {
	Cart     string            `json:"cart"`
	Count    int64             `json:"count"`
	Rate     float64           `json:"rate"`
	Price    json.Number       `json:"price"`
	Channel  *string           `json:"channel"`
	Lines    []fpOrderLine     `json:"lines"`
	Labels   map[string]string `json:"labels"`
	Due      time.Time         `json:"due"`
	Extra    json.RawMessage   `json:"extra"`
	PIN      string            `json:"pin" idempotency:"secret"`
	Email    fpOptional        `json:"email"`
	SentAt   time.Time         `json:"sent_at" idempotency:"-"`
	Envelope string            `json:"request_id" idempotency:"-"`
}

type fpOrderLine struct {
	Route []int `json:"route"`
	Gift  bool  `json:"gift"`
}

// fpOptional tells absent from null, as the field of a PATCH does.
type fpOptional struct {
	Set   bool
	Value *string
}

func (o *fpOptional) UnmarshalJSON(in []byte) error {
	o.Set = true
	return json.Unmarshal(in, &o.Value)
}

func decoded[C any](t *testing.T, body string) C {
	t.Helper()
	var v C
	if err := json.Unmarshal([]byte(body), &v); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return v
}

func sumOf[C any](t testing.TB, v C) [32]byte {
	t.Helper()
	sum, err := fingerprintOf(compiled[C](t), fingerprintInput{Tenant: "acme", Command: "orders.place"}, &v, fpSecret)
	if err != nil {
		t.Fatal(err)
	}
	return sum
}

// TestFingerprintCases goes through the table of what counts as the same payload: a replay where the fingerprints are
// equal, a conflict where they are not.
func TestFingerprintCases(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		a, b string
		same bool
	}{
		{"F01 member order and white space", `{"cart":"a","count":1}`, "{ \"count\" : 1,\n\"cart\":\"a\" }", true},
		{"F03 BR34 request id and time of sending", `{"cart":"a","request_id":"1","sent_at":"2026-01-01T00:00:00Z"}`, `{"cart":"a","request_id":"2","sent_at":"2026-01-01T00:00:09Z"}`, true},
		{"F04 BR33 spelling of a float", `{"rate":1}`, `{"rate":1.0}`, true},
		{"F04 BR33 exponent of a float", `{"rate":1}`, `{"rate":1e0}`, true},
		{"F06 decimal text 1 and 1.0", `{"price":1}`, `{"price":1.0}`, false},
		{"F07 minus zero", `{"rate":-0.0}`, `{"rate":0}`, true},
		{"F08 floats beyond 2^53", `{"rate":9007199254740992}`, `{"rate":9007199254740993}`, true},
		{"F08 integers beyond 2^53", `{"count":9007199254740992}`, `{"count":9007199254740993}`, false},
		{"F09 NFC and NFD", `{"cart":"caf\u00e9"}`, `{"cart":"cafe\u0301"}`, false},
		{"F11 null and absent", `{"channel":null,"lines":null,"labels":null}`, `{}`, true},
		{"F11 null and absent where the type tells them apart", `{"email":null}`, `{}`, false},
		{"F11 null and empty where the type tells them apart", `{"email":null}`, `{"email":""}`, false},
		{"F12 empty list and absent", `{"lines":[]}`, `{}`, false},
		{"F12 empty object and absent", `{"labels":{}}`, `{}`, false},
		{"F12 pointer to empty text and absent", `{"channel":""}`, `{}`, false},
		{"F14 another letter case, decoded leniently", `{"Cart":"a"}`, `{"cart":"a"}`, true},
		{"F15 same instant, other offset and fraction", `{"due":"2026-01-01T03:00:00.500+03:00"}`, `{"due":"2026-01-01T00:00:00.5Z"}`, true},
		{"F15 another instant", `{"due":"2026-01-01T00:00:00Z"}`, `{"due":"2026-01-01T00:00:00.000000001Z"}`, false},
		{"F16 order of a map", `{"labels":{"a":"1","b":"2"}}`, `{"labels":{"b":"2","a":"1"}}`, true},
		{"F16 BR33 order of a list", `{"lines":[{"route":[1,2]}]}`, `{"lines":[{"route":[2,1]}]}`, false},
		{"F16 order of structs in a list", `{"lines":[{"gift":true},{}]}`, `{"lines":[{},{"gift":true}]}`, false},
		{"BR33 members of objects in a list", `{"lines":[{"route":[1],"gift":true}]}`, `{"lines":[{"gift":true,"route":[1]}]}`, true},
		{"BR33 zero and absent", `{"count":0,"cart":"","rate":0}`, `{}`, true},
		{"F18 another secret", `{"pin":"1234"}`, `{"pin":"1235"}`, false},
		{"F18 the same secret", `{"pin":"1234"}`, `{"pin":"1\u003234"}`, true},
		{"F18 a secret and none", `{"pin":"1234"}`, `{}`, false},
		{"F25 other bytes, same value", `{"cart":"\u0061\/","count":1}`, ` {"count":1,"cart":"a/"}`, true},
		{"BR33 raw JSON, member order", `{"extra":{"a":1,"b":[1,2]}}`, `{"extra":{"b":[1, 2],"a":1}}`, true},
		{"BR33 raw JSON, list order", `{"extra":{"a":1,"b":[1,2]}}`, `{"extra":{"a":1,"b":[2,1]}}`, false},
		{"F06 raw JSON, 1 and 1.0", `{"extra":1}`, `{"extra":1.0}`, false},
		{"F12 raw JSON, null and absent", `{"extra":null}`, `{}`, false},
		{"BR36 U+0000", `{"cart":"x\u0000y"}`, `{"cart":"xy"}`, false},
		{"BR36 U+0000 and its text", `{"cart":"x\u0000y"}`, `{"cart":"x\\u0000y"}`, false},
		{"BR36 U+0000, written the same", `{"cart":"x\u0000y"}`, `{ "cart" : "x\u0000y" }`, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			a, b := decoded[fpOrder](t, tt.a), decoded[fpOrder](t, tt.b)
			if same := sumOf(t, a) == sumOf(t, b); same != tt.same {
				t.Errorf("same is %t\n%s\n%s", same, canonicalOf(t, a), canonicalOf(t, b))
			}
		})
	}
}

func TestF05_AFractionDoesNotReachAnIntegerField(t *testing.T) {
	t.Parallel()
	var v fpOrder
	if err := json.Unmarshal([]byte(`{"count":1.0}`), &v); err == nil {
		t.Error("decoded")
	}
}

func TestF10_InvalidTextThatADecoderLetsThroughIsRefused(t *testing.T) {
	t.Parallel()
	e := compiled[fpOrder](t)
	for _, v := range []fpOrder{
		{Cart: "a\xff"},
		{Labels: map[string]string{"a\xff": ""}},
		{Extra: json.RawMessage(`"\udead"`)},
		{PIN: "\xc0\x80"},
	} {
		if _, err := fingerprintOf(e, fingerprintInput{}, &v, fpSecret); err == nil {
			t.Errorf("%+v was accepted", v)
		}
	}
}

func TestF14_RawJSONWithAMemberTwiceIsRefused(t *testing.T) {
	t.Parallel()
	v := decoded[fpOrder](t, `{"extra":{"amount":1,"amount":2}}`)
	if _, err := fingerprintOf(compiled[fpOrder](t), fingerprintInput{}, &v, fpSecret); err == nil {
		t.Error("accepted")
	}
}

func TestF15_TheMonotonicReadingDoesNotCount(t *testing.T) {
	t.Parallel()
	now := time.Now()
	if sumOf(t, fpOrder{Due: now}) != sumOf(t, fpOrder{Due: now.Round(0).In(time.FixedZone("", -5*3600))}) {
		t.Error("the same instant has two fingerprints")
	}
}

func TestF20_BR52_AFieldThatADeployAddsDoesNotChangeTheFingerprint(t *testing.T) {
	t.Parallel()
	type line struct {
		SKU string `json:"sku"`
	}
	type before struct {
		Name  string `json:"name"`
		Lines []line `json:"lines"`
	}
	type newLine struct {
		SKU  string   `json:"sku"`
		Gift bool     `json:"gift"`
		Tags []string `json:"tags"`
	}
	type after struct {
		Lines   []newLine       `json:"lines"`
		Channel string          `json:"channel"`
		Ref     *string         `json:"ref"`
		At      time.Time       `json:"at"`
		PIN     string          `json:"pin" idempotency:"secret"`
		Address fpInner         `json:"address"`
		Extra   json.RawMessage `json:"extra"`
		Name    string          `json:"name"`
	}
	const body = `{"name":"a","lines":[{"sku":"x"},{"sku":""}]}`
	if sumOf(t, decoded[before](t, body)) != sumOf(t, decoded[after](t, body)) {
		t.Error("the retry of an older attempt would be a conflict")
	}
	if sumOf(t, decoded[before](t, body)) == sumOf(t, decoded[after](t, `{"name":"a","lines":[{"sku":"x"},{"sku":""}],"channel":"web"}`)) {
		t.Error("a changed body would be a replay")
	}
}

func TestF22_GoNamesOfTypesAndFieldsDoNotCount(t *testing.T) {
	t.Parallel()
	type item struct {
		Number int `json:"n"`
	}
	type base struct {
		Ident string `json:"id"`
	}
	type one struct {
		base
		Name  string          `json:"name"`
		Items map[string]item `json:"items"`
	}
	type thing struct {
		N int `json:"n"`
	}
	type two struct {
		Things map[string]thing `json:"items"`
		Label  string           `json:"name"`
		ID     string           `json:"id"`
	}
	const body = `{"name":"a","items":{"x":{"n":1}},"id":"7"}`
	if a, b := decoded[one](t, body), decoded[two](t, body); sumOf(t, a) != sumOf(t, b) {
		t.Errorf("%s and %s", canonicalOf(t, a), canonicalOf(t, b))
	}
}

func TestBR21_AFieldThatJSONDoesNotCarryCounts(t *testing.T) {
	t.Parallel()
	type note struct {
		Text   string `json:"text"`
		Thread int    `json:"-"`
	}
	if sumOf(t, note{"a", 1}) == sumOf(t, note{"a", 2}) {
		t.Error("two threads have one fingerprint")
	}
}

func TestBR34_OnlyWhatIsLeftOutByItsTagMayDiffer(t *testing.T) {
	t.Parallel()
	a := fpOrder{Cart: "a", Envelope: "1", SentAt: time.Unix(1, 0)}
	b := fpOrder{Cart: "a", Envelope: "2\xff", SentAt: time.Unix(2, 0)}
	if sumOf(t, a) != sumOf(t, b) {
		t.Error("the honest retry would be a conflict")
	}
	b.Cart = "b"
	if sumOf(t, a) == sumOf(t, b) {
		t.Error("a changed body would be a replay")
	}
}

// fpEverything has a field of every sort that a command may have.
type fpEverything struct {
	fpInner
	Bool    bool
	Int     int
	Uint    uint16
	Float   float64
	Text    string
	Pointer *string
	Twice   **int
	List    []string
	Grid    [][]int
	Array   [2]int8
	Bytes   []byte
	Digest  [4]byte
	Map     map[string]int
	Set     map[int]struct{}
	Levels  map[fpLevel][]string
	At      time.Time
	Wait    time.Duration
	Number  json.Number
	Raw     json.RawMessage
	Level   fpLevel
	Point   fpPoint
	Code    *fpCode
	ID      uuid.UUID
	Big     *big.Int
	Node    *fpNode
	Hidden  int    `json:"-"`
	PIN     string `idempotency:"secret"`
}

func everything() fpEverything {
	return fpEverything{
		fpInner: fpInner{Street: "s", City: "c"}, Bool: true, Int: 1, Uint: 1, Float: 1.5, Text: "a", Pointer: ptr("a"), Twice: ptr(ptr(1)),
		List: []string{"a", "b"}, Grid: [][]int{{1}, {}}, Array: [2]int8{1, 2}, Bytes: []byte{1}, Digest: [4]byte{1},
		Map: map[string]int{"a": 1, "b": 2, "c": 3}, Set: map[int]struct{}{1: {}, 10: {}, 2: {}}, Levels: map[fpLevel][]string{1: {"x"}, 2: nil},
		At: time.Unix(1e9, 5), Wait: time.Second, Number: "1", Raw: json.RawMessage(`{"b":1,"a":[2]}`), Level: 1, Point: fpPoint{1, 2},
		Code: &fpCode{"k"}, ID: uuid.UUID{1}, Big: big.NewInt(7), Node: &fpNode{Name: "n", Kids: []fpNode{{Name: "k"}}}, Hidden: 1, PIN: "1234",
	}
}

func TestBR35_TheSameValueHasTheSameFingerprintAThousandTimes(t *testing.T) {
	t.Parallel()
	want := sumOf(t, everything())
	e := compiled[fpEverything](t)
	in := fingerprintInput{Tenant: "acme", Command: "orders.place"}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range 250 {
				v := everything()
				v.At = v.At.In(time.FixedZone("", i*60))
				if got, err := fingerprintOf(e, in, &v, fpSecret); err != nil || got != want {
					t.Errorf("try %d: %x, %v; want %x", i, got, err, want)
					return
				}
				// A value that is not addressable takes other ways and comes to the same.
				if got, err := e.fingerprint(in, reflect.ValueOf(v), fpSecret); err != nil || got != want {
					t.Errorf("try %d, not addressable: %x, %v; want %x", i, got, err, want)
					return
				}
			}
		})
	}
	wg.Wait()
}

func TestBR35_EachSingleChangeGivesAnotherFingerprint(t *testing.T) {
	t.Parallel()
	changes := []struct {
		name   string
		change func(*fpEverything)
	}{
		{"nothing", func(*fpEverything) {}},
		{"embedded street", func(v *fpEverything) { v.Street = "t" }},
		{"embedded city", func(v *fpEverything) { v.City = "" }},
		{"texts swapped", func(v *fpEverything) { v.Street, v.City = v.City, v.Street }},
		{"bool", func(v *fpEverything) { v.Bool = false }},
		{"int", func(v *fpEverything) { v.Int++ }},
		{"int to zero", func(v *fpEverything) { v.Int = 0 }},
		{"int to minus", func(v *fpEverything) { v.Int = -1 }},
		{"uint", func(v *fpEverything) { v.Uint++ }},
		{"float by the smallest step", func(v *fpEverything) { v.Float = math.Nextafter(v.Float, 2) }},
		{"text", func(v *fpEverything) { v.Text = "A" }},
		{"text with a zero byte", func(v *fpEverything) { v.Text = "a\x00" }},
		{"text that looks like more members", func(v *fpEverything) { v.Text = `a","Uint":2` }},
		{"pointer to other text", func(v *fpEverything) { v.Pointer = ptr("b") }},
		{"pointer to empty text", func(v *fpEverything) { v.Pointer = ptr("") }},
		{"pointer to nil", func(v *fpEverything) { v.Pointer = nil }},
		{"outer pointer nil", func(v *fpEverything) { v.Twice = nil }},
		{"inner pointer nil", func(v *fpEverything) { v.Twice = ptr((*int)(nil)) }},
		{"inner value", func(v *fpEverything) { v.Twice = ptr(ptr(0)) }},
		{"list order", func(v *fpEverything) { slices.Reverse(v.List) }},
		{"list joined", func(v *fpEverything) { v.List = []string{`a","b`} }},
		{"list longer", func(v *fpEverything) { v.List = append(v.List, "") }},
		{"list empty", func(v *fpEverything) { v.List = []string{} }},
		{"list of an empty text", func(v *fpEverything) { v.List = []string{""} }},
		{"list nil", func(v *fpEverything) { v.List = nil }},
		{"inner list nil", func(v *fpEverything) { v.Grid[1] = nil }},
		{"inner list moved", func(v *fpEverything) { v.Grid = [][]int{{}, {1}} }},
		{"array", func(v *fpEverything) { v.Array[1] = 0 }},
		{"bytes", func(v *fpEverything) { v.Bytes[0]++ }},
		{"bytes empty", func(v *fpEverything) { v.Bytes = []byte{} }},
		{"bytes nil", func(v *fpEverything) { v.Bytes = nil }},
		{"digest", func(v *fpEverything) { v.Digest[3] = 1 }},
		{"map value", func(v *fpEverything) { v.Map["a"] = 2 }},
		{"map values swapped", func(v *fpEverything) { v.Map["a"], v.Map["b"] = v.Map["b"], v.Map["a"] }},
		{"map key", func(v *fpEverything) { delete(v.Map, "a"); v.Map["A"] = 1 }},
		{"map with a zero more", func(v *fpEverything) { v.Map["z"] = 0 }},
		{"map empty", func(v *fpEverything) { clear(v.Map) }},
		{"map nil", func(v *fpEverything) { v.Map = nil }},
		{"set", func(v *fpEverything) { delete(v.Set, 10) }},
		{"levels", func(v *fpEverything) { v.Levels[2] = []string{} }},
		{"time", func(v *fpEverything) { v.At = v.At.Add(1) }},
		{"time zero", func(v *fpEverything) { v.At = time.Time{} }},
		{"duration", func(v *fpEverything) { v.Wait++ }},
		{"number", func(v *fpEverything) { v.Number = "1.0" }},
		{"raw value", func(v *fpEverything) { v.Raw = json.RawMessage(`{"b":1,"a":[3]}`) }},
		{"raw text for number", func(v *fpEverything) { v.Raw = json.RawMessage(`{"b":"1","a":[2]}`) }},
		{"raw null", func(v *fpEverything) { v.Raw = json.RawMessage(`null`) }},
		{"raw nil", func(v *fpEverything) { v.Raw = nil }},
		{"level", func(v *fpEverything) { v.Level = 2 }},
		{"level zero", func(v *fpEverything) { v.Level = 0 }},
		{"point", func(v *fpEverything) { v.Point.x, v.Point.y = 2, 1 }},
		{"point zero", func(v *fpEverything) { v.Point = fpPoint{} }},
		{"code", func(v *fpEverything) { v.Code.v = "K" }},
		{"code empty", func(v *fpEverything) { v.Code.v = "" }},
		{"code nil", func(v *fpEverything) { v.Code = nil }},
		{"id", func(v *fpEverything) { v.ID[15]++ }},
		{"big", func(v *fpEverything) { v.Big.Neg(v.Big) }},
		{"big zero", func(v *fpEverything) { v.Big = new(big.Int) }},
		{"big nil", func(v *fpEverything) { v.Big = nil }},
		{"node", func(v *fpEverything) { v.Node.Kids[0].Name = "K" }},
		{"node child moved", func(v *fpEverything) { v.Node.Next, v.Node.Kids = &v.Node.Kids[0], nil }},
		{"node empty", func(v *fpEverything) { v.Node = &fpNode{} }},
		{"node nil", func(v *fpEverything) { v.Node = nil }},
		{"not in JSON", func(v *fpEverything) { v.Hidden++ }},
		{"secret", func(v *fpEverything) { v.PIN = "1243" }},
		{"secret empty", func(v *fpEverything) { v.PIN = "" }},
	}
	seen := map[[32]byte]string{}
	touched := map[string]bool{}
	for _, c := range changes {
		v := everything()
		c.change(&v)
		sum := sumOf(t, v)
		if other, ok := seen[sum]; ok {
			t.Errorf("%q and %q have one fingerprint", other, c.name)
		}
		seen[sum] = c.name
		before, after := reflect.ValueOf(everything()), reflect.ValueOf(v)
		for i := range before.NumField() {
			if fmt.Sprintf("%#v", before.Field(i)) != fmt.Sprintf("%#v", after.Field(i)) {
				touched[before.Type().Field(i).Name] = true
			}
		}
	}
	for f := range reflect.TypeFor[fpEverything]().Fields() {
		if !touched[f.Name] {
			t.Errorf("no change touches the field %s", f.Name)
		}
	}
}

func TestF18_NoFormHoldsASecretOrItsPlainHash(t *testing.T) {
	t.Parallel()
	form := canonicalOf(t, everything())
	for _, s := range []string{"1234", fmt.Sprintf("%x", sumOf(t, "1234"))} {
		if strings.Contains(form, s) {
			t.Errorf("%q is in %s", s, form)
		}
	}
}
