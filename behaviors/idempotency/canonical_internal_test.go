package idempotency

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/big"
	"net"
	"net/netip"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
)

var fpSecret = []byte("0123456789abcdef0123456789abcdef")

// canonicalOf gives the canonical form of v, of the type C.
func canonicalOf[C any](t testing.TB, v C) string {
	t.Helper()
	form, err := compiled[C](t).appendTo(nil, reflect.ValueOf(&v).Elem(), fpSecret)
	if err != nil {
		t.Fatal(err)
	}
	return string(form)
}

func compiled[C any](t testing.TB) *encoder {
	t.Helper()
	e, err := compileEncoder(reflect.TypeFor[C]())
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func ptr[T any](v T) *T { return &v }

// The types below have marshallers, so they cannot be declared inside a test.

type fpLevel int // TextMarshaler, by value

func (l fpLevel) MarshalText() ([]byte, error) {
	switch l {
	case 1:
		return []byte("low"), nil
	case 2:
		return []byte("high"), nil
	}
	return nil, fmt.Errorf("no level %d", int(l))
}

type fpCurrency string // a string is its own text

func (fpCurrency) MarshalJSON() ([]byte, error) { return []byte(`"***"`), nil }

type fpPoint struct{ x, y int } // json.Marshaler, by pointer

func (p *fpPoint) MarshalJSON() ([]byte, error) {
	return fmt.Appendf(nil, `{"y":%d, "x":%d}`, p.y, p.x), nil
}

type fpCode struct{ v string } // TextMarshaler, by pointer

func (c *fpCode) MarshalText() ([]byte, error) { return []byte(c.v), nil }

type fpBoth struct { // JSON tells null from "", text does not
	s   string
	set bool
}

func (b fpBoth) MarshalText() ([]byte, error) { return []byte(b.s), nil }

func (b fpBoth) MarshalJSON() ([]byte, error) {
	if !b.set {
		return []byte("null"), nil
	}
	return json.Marshal(b.s)
}

type fpAmount struct { // embeds a marshaller, which would hide Currency
	big.Int
	Currency string
}

type fpStamped struct{ time.Time }

type fpHidden struct{ v string } // what a type that redacts itself looks like

func (fpHidden) MarshalJSON() ([]byte, error)     { return []byte(`"[hidden]"`), nil }
func (h *fpHidden) UnmarshalJSON(in []byte) error { return json.Unmarshal(in, &h.v) }

type fpSealed struct{ v string } // the same, made in code only

func (s fpSealed) MarshalText() ([]byte, error) { return []byte(s.v), nil }

type fpPIN int

func (fpPIN) MarshalText() ([]byte, error) { return []byte("****"), nil }

type fpUnsteady struct{ N int }

var fpCount struct {
	sync.Mutex
	n int
}

func (fpUnsteady) MarshalText() ([]byte, error) {
	fpCount.Lock()
	defer fpCount.Unlock()
	fpCount.n++
	return fmt.Append(nil, fpCount.n), nil
}

type fpPanics struct{ v string }

func (p fpPanics) MarshalText() ([]byte, error) { panic("cannot write " + p.v) }

type fpFails struct{ v string }

func (p fpFails) MarshalJSON() ([]byte, error) { return nil, errors.New("cannot write " + p.v) }

type fpWrites string // writes its own text as JSON

type fpWriter struct{ v fpWrites }

func (p fpWriter) MarshalJSON() ([]byte, error) { return []byte(p.v), nil }

type fpNode struct {
	Name string             `json:"name"`
	Next *fpNode            `json:"next"`
	Kids []fpNode           `json:"kids"`
	Tags map[string]*fpNode `json:"tags"`
}

type fpList []fpList

type fpInner struct {
	Street string `json:"street"`
	City   string `json:"city"`
}

type fpinner struct {
	Deep string `json:"deep"`
}

func TestCanonicalFormOfEachKind(t *testing.T) {
	t.Parallel()
	type plain struct {
		B string `json:"b"`
		A int    `json:"a,string"`
	}
	type renamed struct {
		Hidden int `json:"-"`
		Ignore int `idempotency:"-"`
		_      [4]int
	}
	type embeds struct {
		fpInner
		fpinner
		*fpNode
		fpStamped `json:"stamped"`
		Own       string
	}
	type wide struct {
		A string `json:"ﬁ"`
		B string `json:"𐐀"`
		C string `json:"a"`
	}
	at := time.Date(2026, 1, 2, 3, 4, 5, 600, time.FixedZone("", 3*3600))
	tests := []struct {
		name string
		got  string
		want string
	}{
		{"bools", canonicalOf(t, []bool{true, false}), `[true,false]`},
		{"ints", canonicalOf(t, []int8{-128, 0, 127}), `[-128,0,127]`},
		{"uints", canonicalOf(t, []uint64{0, math.MaxUint64}), `[0,18446744073709551615]`},
		{"durations", canonicalOf(t, []time.Duration{time.Second}), `[1000000000]`},
		{"floats", canonicalOf(t, []float64{0, math.Copysign(0, -1), 1, -1.5, 1e20, 1e21, 1e-6, 1e-7, 5e-324, math.MaxFloat64, 1e100, 333333333.33333329}),
			`[0,0,1,-1.5,100000000000000000000,1e+21,0.000001,1e-7,5e-324,1.7976931348623157e+308,1e+100,333333333.3333333]`},
		{"float32s", canonicalOf(t, []float32{0.1, 16777216, 1e-7}), `[0.1,16777216,1e-7]`},
		{"strings", canonicalOf(t, []string{"", "a\"\\/\b\t\n\f\r\x00\x1f\x7f", "é€😀<>&\u2028"}),
			`["","a\"\\/\b\t\n\f\r\u0000\u001f` + "\x7f" + `","é€😀<>&` + "\u2028" + `"]`},
		{"named strings are their own text", canonicalOf(t, []fpCurrency{"EUR"}), `["EUR"]`},
		{"bytes", canonicalOf(t, [][]byte{nil, {}, {0, 255}}), `[null,x"",x"00ff"]`},
		{"byte arrays", canonicalOf(t, map[string][2]byte{"a": {1, 2}}), `{"a":x"0102"}`},
		{"arrays", canonicalOf(t, [2]int{0, 7}), `[0,7]`},
		{"nil slice", canonicalOf(t, []int(nil)), `null`},
		{"empty slice", canonicalOf(t, []int{}), `[]`},
		{"nil map", canonicalOf(t, map[string]int(nil)), `null`},
		{"maps are sorted by UTF-16", canonicalOf(t, map[string]int{"b": 1, "": 0, "a": 2, "\ue000": 3, "😀": 4, "\uffff": 5}), `{"":0,"a":2,"b":1,"😀":4,"` + "\ue000" + `":3,"` + "\uffff" + `":5}`},
		{"integer keys", canonicalOf(t, map[int]string{10: "x", -1: "y", 9: "z"}), `{"-1":"y","10":"x","9":"z"}`},
		{"unsigned keys", canonicalOf(t, map[uint8]struct{}{7: {}}), `{"7":{}}`},
		{"text keys", canonicalOf(t, map[fpLevel]int{1: 1, 2: 2}), `{"high":2,"low":1}`},
		{"text keys with a pointer's method", canonicalOf(t, map[fpCode]int{{v: "k"}: 1}), `{"k":1}`},
		{"time keys", canonicalOf(t, map[time.Time]int{at: 1}), `{"2026-01-02T00:04:05.0000006Z":1}`},
		{"nil pointers", canonicalOf(t, []*int{nil, ptr(0)}), `[null,0]`},
		{"pointers to what can be nil", canonicalOf(t, []*[]int{nil, ptr([]int(nil)), {}}), `[null,[null],[[]]]`},
		{"pointers to pointers", canonicalOf(t, []**int{nil, ptr((*int)(nil)), ptr(ptr(1))}), `[null,[null],[1]]`},
		{"times", canonicalOf(t, []time.Time{at, {}}), `[t"2026-01-02T00:04:05.0000006Z",t"0001-01-01T00:00:00Z"]`},
		{"json.Number", canonicalOf(t, []json.Number{"1", "1.0", ""}), `[n"1",n"1.0",n""]`},
		{"text", canonicalOf(t, []fpLevel{1, 2}), `[t"low",t"high"]`},
		{"text of a pointer's method", canonicalOf(t, map[string]fpCode{"a": {v: "x"}}), `{"a":t"x"}`},
		{"JSON of a pointer's method", canonicalOf(t, map[string]fpPoint{"a": {1, 2}}), `{"a":j{"x":1,"y":2}}`},
		{"JSON before text", canonicalOf(t, []fpBoth{{}, {set: true}}), `[jnull,j""]`},
		{"raw JSON", canonicalOf(t, []json.RawMessage{nil, json.RawMessage("null"), json.RawMessage(" {\"b\" : [1.0, \"\\u0041\\/\"], \"a\":{}}\n")}),
			`[null,jnull,j{"a":{},"b":[1.0,"A/"]}]`},
		{"raw JSON, escapes", canonicalOf(t, json.RawMessage(`"\"\\\/\b\t\n\f\r\u00FC\u001f"`)), `j"\"\\/\b\t\n\f\rü\u001f"`},
		{"UUID", canonicalOf(t, uuid.MustParse("0198C0DE-0000-7000-8000-00000000000a")), `t"0198c0de-0000-7000-8000-00000000000a"`},
		{"big numbers", canonicalOf(t, []*big.Int{nil, new(big.Int).Lsh(big.NewInt(1), 70)}), `[null,j1180591620717411303424]`},
		{"addresses", canonicalOf(t, struct {
			A netip.Addr
			B net.IP
		}{netip.MustParseAddr("::1"), net.IPv4(10, 0, 0, 1)}), `{"A":t"::1","B":t"10.0.0.1"}`},
		{"structs are sorted and options do not count", canonicalOf(t, plain{"x", 1}), `{"a":1,"b":"x"}`},
		{"structs of zeros", canonicalOf(t, plain{}), `{}`},
		{"names", canonicalOf(t, renamed{1, 4, [4]int{}}), `{"Hidden":1}`},
		{"names are sorted by UTF-16", canonicalOf(t, wide{"1", "2", "3"}), `{"a":"3","𐐀":"2","ﬁ":"1"}`},
		{"embedded structs", canonicalOf(t, embeds{fpInner{"s", "c"}, fpinner{"d"}, &fpNode{}, fpStamped{at}, "o"}),
			`{"Own":"o","city":"c","deep":"d","fpNode":{},"stamped":{"Time":t"2026-01-02T00:04:05.0000006Z"},"street":"s"}`},
		{"an embedded marshaller does not hide the other fields", canonicalOf(t, []fpAmount{{Int: *big.NewInt(5), Currency: "EUR"}}), `[{"Currency":"EUR","Int":j5}]`},
		{"a type that holds itself", canonicalOf(t, fpNode{Name: "a", Next: &fpNode{Name: "b"}, Kids: []fpNode{{}, {Name: "c"}}, Tags: map[string]*fpNode{"x": nil}}),
			`{"kids":[{},{"name":"c"}],"name":"a","next":{"name":"b"},"tags":{"x":null}}`},
		{"a list of lists", canonicalOf(t, fpList{{}, nil, {{}}}), `[[],null,[[]]]`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if tt.got != tt.want {
				t.Errorf("got  %s\nwant %s", tt.got, tt.want)
			}
		})
	}
}

type (
	fpE1 struct{ fpE2 }
	fpE2 struct{ fpE3 }
	fpE3 struct {
		fpE4
		X, Y int
	}
	fpE4 struct{ A, B, C int }
)

func TestStructsThatAreEmbeddedDeepKeepTheirFieldsApart(t *testing.T) {
	t.Parallel()
	type top struct{ fpE1 }
	if got, want := canonicalOf(t, top{fpE1{fpE2{fpE3{fpE4{1, 2, 3}, 4, 5}}}}), `{"A":1,"B":2,"C":3,"X":4,"Y":5}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestDepthIsCountedAndNotSize(t *testing.T) {
	t.Parallel()
	v := make([]*map[string][]int, 2*maxDepth)
	for i := range v {
		v[i] = &map[string][]int{"a": {}}
	}
	if got := canonicalOf(t, v); len(got) != len(v)*len(`[{"a":[]}],`)+1 {
		t.Errorf("%d bytes", len(got))
	}
	chain := new(fpNode)
	for range maxDepth {
		chain = &fpNode{Next: chain}
	}
	canonicalOf(t, *chain)
}

func TestMembersHaveTheNamesThatJSONGivesThem(t *testing.T) {
	t.Parallel()
	for _, tag := range []reflect.StructTag{
		`json:"a"`, `json:"-,"`, `json:",omitempty"`, `json:"$ref:a/b"`, `json:"größe,string"`, `json:" "`, `json:""`, ``, `json: "x"`,
	} {
		v := reflect.New(structWithTag(tag)).Elem()
		v.Field(0).SetInt(1)
		e, err := compileEncoder(v.Type())
		if err != nil {
			t.Fatal(err)
		}
		got, err := e.appendTo(nil, v, nil)
		if err != nil {
			t.Fatal(err)
		}
		body, err := json.Marshal(v.Interface())
		if err != nil {
			t.Fatal(err)
		}
		if want := strings.ReplaceAll(string(body), `"1"`, `1`); string(got) != want {
			t.Errorf("%s: got %s, want %s", tag, got, want)
		}
	}
}

func TestAMalformedNameIsTheGoNameWhicheverEncodingJSONIsBuiltIn(t *testing.T) {
	t.Parallel()
	for _, tag := range []reflect.StructTag{`json:"no\"quotes"`, `json:"no\\backslash"`, `json:"'quoted'"`} {
		v := reflect.New(structWithTag(tag)).Elem()
		v.Field(0).SetInt(1)
		e, err := compileEncoder(v.Type())
		if err != nil {
			t.Fatal(err)
		}
		if got, err := e.appendTo(nil, v, nil); err != nil || string(got) != `{"A":1}` {
			t.Errorf("%s: got %s, %v", tag, got, err)
		}
	}
}

func TestZeroMembersAreLeftOutAndOthersAreNot(t *testing.T) {
	t.Parallel()
	type part struct {
		N int
		X int `idempotency:"-"`
	}
	type all struct {
		B  bool
		I  int
		F  float64
		S  string
		P  *int
		L  []int
		M  map[string]int
		T  time.Time
		D  time.Duration
		By []byte
		St part
		A  [2]float64
		AB [2]byte
		N  json.Number
		R  json.RawMessage
		Lv fpLevel
		U  uuid.UUID
		Pt fpPoint
		Se string `idempotency:"secret"`
	}
	zero := all{
		F: math.Copysign(0, -1), A: [2]float64{math.Copysign(0, -1), 0}, T: time.Time{}.In(time.FixedZone("", 3600)),
		St: part{X: 9}, // what is left out does not make a member count
	}
	if got := canonicalOf(t, zero); got != "{}" {
		t.Errorf("zero members: got %s", got)
	}
	for want, v := range map[string]all{
		`{"P":0}`:               {P: ptr(0)},
		`{"L":[]}`:              {L: []int{}},
		`{"M":{}}`:              {M: map[string]int{}},
		`{"By":x""}`:            {By: []byte{}},
		`{"St":{"N":1}}`:        {St: part{N: 1}},
		`{"A":[0,1]}`:           {A: [2]float64{0, 1}},
		`{"R":jnull}`:           {R: json.RawMessage("null")},
		`{"Lv":t"low"}`:         {Lv: 1},
		`{"N":n"0"}`:            {N: "0"},
		`{"Pt":j{"x":0,"y":1}}`: {Pt: fpPoint{0, 1}},
	} {
		if got := canonicalOf(t, v); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestSecretsAreInThroughTheirHMACOnly(t *testing.T) {
	t.Parallel()
	type card struct {
		PIN  string         `json:"pin" idempotency:"secret"`
		Code fpPIN          `json:"code" idempotency:"secret"`
		Exp  map[string]int `json:"exp" idempotency:"secret"`
	}
	type pay struct {
		Card card      `json:"card"`
		Old  []card    `json:"old"`
		ID   uuid.UUID `json:"id" idempotency:"secret"`
	}
	e := compiled[pay](t)
	if !e.hasSecrets() {
		t.Fatal("the secrets were not seen")
	}
	if compiled[fpNode](t).hasSecrets() {
		t.Error("secrets were seen where there are none")
	}
	v := pay{Card: card{PIN: "4711", Code: 1234}, Old: []card{{Exp: map[string]int{"m": 12}}}}
	got := canonicalOf(t, v)
	// HMAC-SHA-256 of "4711" in quotes, of 1234, and of {"m":12}, made with another program.
	want := `{"card":{"code":h"` + fpHMACCode + `","pin":h"` + fpHMACPIN + `"},"old":[{"exp":h"` + fpHMACExp + `"}]}`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	other, err := e.appendTo(nil, reflect.ValueOf(v), []byte("another key of thirty-two bytes."))
	if err != nil || string(other) == got {
		t.Errorf("another key gives %s, %v", other, err)
	}
	if _, err := e.appendTo(nil, reflect.ValueOf(v), nil); err == nil {
		t.Error("secrets without a key were accepted")
	}
	if _, err := e.fingerprint(fingerprintInput{Command: "pay"}, reflect.ValueOf(pay{}), nil); err == nil {
		t.Error("secrets without a key were accepted")
	}
}

const (
	fpHMACPIN  = "39f8963e9ade39d8c8fd4ee8e6f6c7228ef271b3fffcfdd7e3bcd2ab59ccdcf2"
	fpHMACCode = "124ae6422d95f7227c344d01d4c1c00afe0857541a4f11e8a5ec1795426d65c2"
	fpHMACExp  = "2190f7dd075d9b3f45134fb43fe4a3c414df780d2424f3ebd72a1ffc0e4e4917"
)

func TestF23_TypesWithoutASafeFingerprintAreRefusedWhenCompiled(t *testing.T) {
	t.Parallel()
	type clash struct {
		fpInner
		Street string `json:"street"`
	}
	type mutual struct {
		Any  any
		Next *mutual
	}
	tests := []struct {
		name string
		t    reflect.Type
		path string
		says []string
	}{
		{"interface", reflect.TypeFor[struct {
			V any `json:"v"`
		}](), "v", []string{"interface {}", "concrete type", "json.RawMessage"}},
		{"interface in a map", reflect.TypeFor[map[string]any](), "[*]", []string{"interface {}"}},
		{"interface with a marshaller", reflect.TypeFor[[]json.Marshaler](), "[*]", []string{"json.Marshaler"}},
		{"function", reflect.TypeFor[struct{ F func() }](), "F", []string{"func()", `idempotency:"-"`}},
		{"channel", reflect.TypeFor[[]chan int](), "[*]", []string{"chan int"}},
		{"complex number", reflect.TypeFor[complex128](), "", []string{"complex128"}},
		{"address", reflect.TypeFor[struct{ U uintptr }](), "U", []string{"uintptr"}},
		{"BR-21 unexported field", reflect.TypeFor[struct {
			A int
			b int
		}](), "b", []string{"unexported", `idempotency:"-"`}},
		{"unexported field of another package's type", reflect.TypeFor[struct{ N []atomic.Int64 }](), "N[*].v", []string{"atomic.Int64", "unexported"}},
		{"unexported embedded marshaller", reflect.TypeFor[struct{ fpPoint2 }](), "fpPoint2", []string{"unexported"}},
		{"map with float keys", reflect.TypeFor[struct{ M map[float64]int }](), "M", []string{"keys of type float64"}},
		{"map with interface keys", reflect.TypeFor[struct{ M map[any]int }](), "M", []string{"keys of type interface {}"}},
		{"two fields with one name", reflect.TypeFor[clash](), "street", []string{"clash.Street", "fpInner.Street"}},
		{"unknown tag", reflect.TypeFor[struct {
			A int `idempotency:"name=x"`
		}](), "A", []string{`"name=x"`, `"secret"`}},
		{"empty tag", reflect.TypeFor[struct {
			A int `idempotency:""`
		}](), "A", []string{`""`}},
		{"tag with a space", structWithTag(`idempotency: "secret"`), "A", []string{"check the quotes"}},
		{"tag with another name", structWithTag(`json:"a" Idempotent:"secret"`), "A", []string{"looks like"}},
		{"type that holds itself and a bad field", reflect.TypeFor[mutual](), "Any", []string{"interface {}"}},
		{"marshaller that hides the value", reflect.TypeFor[struct{ H fpHidden }](), "H", []string{"MarshalJSON of idempotency.fpHidden", "one form"}},
		{"marshaller that may hide a secret", reflect.TypeFor[struct {
			S []fpSealed `idempotency:"secret"`
		}](), "S[*]", []string{"MarshalText of idempotency.fpSealed", "secret"}},
		{"marshaller that may hide a part of a secret", reflect.TypeFor[struct {
			S struct{ In map[string]fpSealed } `idempotency:"secret"`
		}](), "S.In[*]", []string{"MarshalText of idempotency.fpSealed", "secret"}},
		{"marshaller that changes its mind", reflect.TypeFor[struct{ U fpUnsteady }](), "U", []string{"two forms"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := compileEncoder(tt.t)
			if err == nil {
				t.Fatal("accepted")
			}
			problems := err.(interface{ Unwrap() []error }).Unwrap()
			if len(problems) != 1 {
				t.Fatalf("%d problems: %v", len(problems), err)
			}
			var problem *FingerprintError
			if !errors.As(problems[0], &problem) {
				t.Fatalf("got %T", problems[0])
			}
			if problem.Path != tt.path || problem.Command != tt.t.String() {
				t.Errorf("command %q, path %q; want %q, %q", problem.Command, problem.Path, tt.t, tt.path)
			}
			for _, s := range tt.says {
				if !strings.Contains(problem.Error(), s) {
					t.Errorf("%q is not in the message %q", s, problem)
				}
			}
		})
	}
}

type fpPoint2 struct{ X int }

func (p fpPoint2) MarshalText() ([]byte, error) { return fmt.Append(nil, p.X), nil }

func structWithTag(tag reflect.StructTag) reflect.Type {
	return reflect.StructOf([]reflect.StructField{{Name: "A", Type: reflect.TypeFor[int](), Tag: tag}})
}

func TestEveryProblemOfATypeIsReportedAtOnce(t *testing.T) {
	t.Parallel()
	type bad struct {
		A any                       `json:"a"`
		B func()                    `json:"b"`
		C any                       `json:"c"`
		D []struct{ e, F chan int } `json:"d"`
		G fpHidden                  `json:"g"`
		H *fpHidden                 `json:"h"` // the same type: reported once
	}
	_, err := compileEncoder(reflect.TypeFor[bad]())
	if err == nil {
		t.Fatal("accepted")
	}
	var paths []string
	for _, p := range err.(interface{ Unwrap() []error }).Unwrap() {
		paths = append(paths, p.(*FingerprintError).Path)
	}
	if want := []string{"a", "b", "c", "d[*].e", "d[*].F", "g"}; !reflect.DeepEqual(paths, want) {
		t.Errorf("paths %q, want %q", paths, want)
	}
}

func TestFieldsThatHoldNothingOrAreLeftOutAreNoProblem(t *testing.T) {
	t.Parallel()
	type noCopy struct{}
	type fine struct {
		_      [0]func()
		_      int
		guard  noCopy
		Ctx    context.Context `json:"-" idempotency:"-"`
		cache  map[string]any  `idempotency:"-"`
		Key    string          `json:"idempotency_key"`
		Street string          `json:"street" idempotency:"-"`
		fpInner
	}
	v := fine{guard: noCopy{}, cache: map[string]any{"a": 1}, Ctx: context.Background(), Key: "k", Street: "left out", fpInner: fpInner{Street: "in"}}
	if got, want := canonicalOf(t, v), `{"idempotency_key":"k","street":"in"}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestBR35_ValuesWithoutASafeFingerprintAreTypedErrorsWithoutTheValue(t *testing.T) {
	t.Parallel()
	cycle := &fpNode{Name: "hush"}
	cycle.Next = cycle
	list := fpList{nil, nil}
	list[1] = list
	self := map[string]*fpNode{}
	self["hush"] = &fpNode{Tags: self}
	tests := []struct {
		name string
		err  error
		path string
		says string
	}{
		{"NaN", failing(t, map[string][]float64{"hush": {1, math.NaN()}}), "[*][1]", "NaN"},
		{"infinity", failing(t, struct {
			A struct {
				B float32 `json:"b"`
			} `json:"a"`
		}{A: struct {
			B float32 `json:"b"`
		}{float32(math.Inf(-1))}}), "a.b", "infinite"},
		{"invalid UTF-8", failing(t, struct{ S []string }{[]string{"hush\xff"}}), "S[0]", "UTF-8"},
		{"surrogate half as bytes", failing(t, struct{ S string }{"hush\xed\xa0\x80"}), "S", "UTF-8"},
		{"invalid UTF-8 in a key", failing(t, map[string]int{"hush\xff": 1}), "[*]", "UTF-8"},
		{"invalid UTF-8 in a text", failing(t, fpCode{"hush\xff"}), "", "UTF-8"},
		{"invalid UTF-8 in a number", failing(t, json.Number("hush\xff")), "", "UTF-8"},
		{"invalid UTF-8 in raw JSON", failing(t, json.RawMessage("\"hush\xff\"")), "", "Unicode"},
		{"surrogate half in raw JSON", failing(t, json.RawMessage(`["\ud800"]`)), "", "Unicode"},
		{"wrong pair in raw JSON", failing(t, json.RawMessage(`{"\ud800\u0041":1}`)), "", "Unicode"},
		{"a member twice in raw JSON", failing(t, json.RawMessage(`[{"a":"hush","\u0061":2}]`)), "", "member twice"},
		{"raw JSON that is none", failing(t, json.RawMessage(`{hush}`)), "", "not valid JSON"},
		{"empty raw JSON", failing(t, json.RawMessage{}), "", "not valid JSON"},
		{"deep raw JSON", failing(t, json.RawMessage(strings.Repeat("[", 1002)+strings.Repeat("]", 1002))), "", "too deep"},
		{"marshaller that panics", failing(t, struct{ P *fpPanics }{&fpPanics{"hush"}}), "P", "MarshalText of idempotency.fpPanics panicked"},
		{"marshaller that fails", failing(t, []fpFails{{"hush"}}), "[0]", "MarshalJSON of idempotency.fpFails returned an error"},
		{"marshaller that writes no JSON", failing(t, fpWriter{"hush"}), "", "not valid JSON"},
		{"key whose marshaller fails", failing(t, map[fpLevel]int{77: 1}), "[*]", "MarshalText of idempotency.fpLevel"},
		{"two keys with one text", failing(t, map[fpCollide]int{{1}: 1, {2}: 2}), "[*]", "same text"},
		{"value that holds itself by a pointer", failing(t, *cycle), strings.Repeat("next.", 40) + "…", "holds itself"},
		{"value that holds itself by a slice", failing(t, list), strings.Repeat("[1]", 66) + "[1…", "holds itself"},
		{"value that holds itself by a map", failing(t, fpNode{Tags: self}), strings.Repeat("tags[*].", 25) + "…", "holds itself"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var err *FingerprintError
			if !errors.As(tt.err, &err) {
				t.Fatalf("got %v", tt.err)
			}
			if err.Command != "test.command" || err.Path != tt.path || !strings.Contains(err.Reason, tt.says) {
				t.Errorf("got %#v, want path %q and %q", err, tt.path, tt.says)
			}
			if strings.Contains(err.Error(), "hush") || errors.Unwrap(err) != nil {
				t.Errorf("the value is in the error: %v", err)
			}
			if err.Code() != "IDEMPOTENCY_FINGERPRINT_FAILED" {
				t.Errorf("code %s", err.Code())
			}
		})
	}
}

type fpCollide struct{ n int }

func (fpCollide) MarshalText() ([]byte, error) { return []byte("one"), nil }

func failing[C any](t *testing.T, v C) error {
	t.Helper()
	e := compiled[C](t)
	before := []byte("before")
	after, formErr := e.appendTo(before, reflect.ValueOf(v), fpSecret)
	_, err := e.fingerprint(fingerprintInput{Command: "test.command"}, reflect.ValueOf(v), fpSecret)
	if (formErr == nil) != (err == nil) || string(after) != "before" {
		t.Errorf("appendTo gives %q, %v", after, formErr)
	}
	// The next fingerprint does not see what the failed one left behind.
	var zero C
	first, err1 := fingerprintOf(e, fingerprintInput{}, &zero, fpSecret)
	second, err2 := fingerprintOf(compiled[C](t), fingerprintInput{}, &zero, fpSecret)
	if first != second || (err1 == nil) != (err2 == nil) {
		t.Errorf("the zero value gives %x, %v and %x, %v", first, err1, second, err2)
	}
	return err
}

func TestEveryPartIsInTheFingerprint(t *testing.T) {
	t.Parallel()
	e := compiled[fpInner](t)
	seen := map[[32]byte]string{}
	for _, in := range []fingerprintInput{
		{},
		{Tenant: "a"},
		{Command: "a"},
		{Tenant: "a", Command: "b"},
		{Tenant: "ab"},
		{Command: "ab"},
		{ContractVersion: 1},
		{ContractVersion: -1},
		{Resource: []string{""}},
		{Resource: []string{"", ""}},
		{Resource: []string{"a"}},
		{Resource: []string{"a", "b"}},
		{Resource: []string{"b", "a"}},
		{Resource: []string{"ab"}},
		{Resource: []string{`{}`}},
	} {
		sum, err := fingerprintOf(e, in, &fpInner{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		name := fmt.Sprintf("%+v", in)
		if other, ok := seen[sum]; ok {
			t.Errorf("%s and %s have one fingerprint", other, name)
		}
		seen[sum] = name
	}
}

func TestTheBufferThatIsKeptHoldsNoPayloadAndNoKey(t *testing.T) {
	t.Parallel()
	w := &writer{buf: []byte("payload"), secret: fpSecret}
	compiled[fpInner](t).release(w)
	if string(w.buf) != strings.Repeat("\x00", len("payload")) || w.secret != nil {
		t.Errorf("kept %q, %q", w.buf, w.secret)
	}
	e := compiled[fpInner](t)
	e.release(&writer{buf: make([]byte, maxPooled+1)})
	if w := e.writers.Get(); w != nil {
		t.Error("a large buffer is kept")
	}
}

func TestAFingerprintOfASmallCommandAllocatesNothing(t *testing.T) { // not parallel: AllocsPerRun does not allow it
	type place struct {
		CartID   string    `json:"cart_id"`
		Amount   int64     `json:"amount"`
		Currency string    `json:"currency"`
		Email    string    `json:"email"`
		At       time.Time `json:"at"`
		Lines    []fpInner `json:"lines"`
	}
	e := compiled[place](t)
	cmd := &place{"cart-1", 4990, "EUR", "a@example.com", time.Unix(1, 0), []fpInner{{"a", "b"}}}
	in := fingerprintInput{Tenant: "acme", Command: "checkout.place", Resource: []string{"42"}}
	least := math.Inf(1) // of many, because the race detector makes the pool lose things now and then
	for range 50 {
		least = min(least, testing.AllocsPerRun(1, func() {
			if _, err := fingerprintOf(e, in, cmd, nil); err != nil {
				t.Error(err)
			}
		}))
	}
	if least > 0 {
		t.Errorf("%v allocations, want none", least)
	}
}
