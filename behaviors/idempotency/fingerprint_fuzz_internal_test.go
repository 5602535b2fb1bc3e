package idempotency

import (
	"bytes"
	"encoding/json"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// fpDrawn is what the properties draw. Its fields have small ranges, so that equal values and near misses come up.
type fpDrawn struct {
	FpDrawnPart
	Text   string
	Int    int8
	Float  float64
	Bool   bool
	Ptr    *string
	Twice  **int
	List   []string
	Grid   [][]int
	Array  [2]bool
	Bytes  []byte
	Map    map[string]*int
	Keys   map[int]string
	At     time.Time
	Number json.Number
	Part   FpDrawnPart
	Parts  []FpDrawnPart
	Self   *fpDrawn
	PIN    string   `idempotency:"secret"`
	PINs   []string `idempotency:"secret"`
	Left   string   `idempotency:"-"`
}

// FpDrawnPart is exported so that reflection may set it where it is embedded.
type FpDrawnPart struct {
	A string `json:"a"`
	B []int  `json:"b"`
}

func drawText(t *rapid.T, label string) string {
	return rapid.SampledFrom([]string{"", "a", "b", `"`, `a","b`, "\x00", `\u0000`, "null", "é", "\ue000", "😀"}).Draw(t, label)
}

func drawInt(t *rapid.T, label string) int {
	return rapid.SampledFrom([]int{0, 1, -1, 10, 2}).Draw(t, label)
}

func drawPtr[T any](t *rapid.T, label string, elem func(*rapid.T, string) T) *T {
	if rapid.Bool().Draw(t, label+" nil") {
		return nil
	}
	return ptr(elem(t, label))
}

func drawList[T any](t *rapid.T, label string, elem func(*rapid.T, string) T) []T {
	n := rapid.IntRange(-1, 2).Draw(t, label+" length")
	if n < 0 {
		return nil
	}
	list := make([]T, n)
	for i := range list {
		list[i] = elem(t, label)
	}
	return list
}

func drawMap[K comparable, V any](t *rapid.T, label string, key func(*rapid.T, string) K, elem func(*rapid.T, string) V) map[K]V {
	n := rapid.IntRange(-1, 2).Draw(t, label+" length")
	if n < 0 {
		return nil
	}
	m := make(map[K]V, n)
	for range n {
		m[key(t, label+" key")] = elem(t, label)
	}
	return m
}

func drawPart(t *rapid.T, label string) FpDrawnPart {
	return FpDrawnPart{A: drawText(t, label+".a"), B: drawList(t, label+".b", drawInt)}
}

// drawField draws the field i of v anew.
func drawField(t *rapid.T, v *fpDrawn, i int, depth int) {
	f := reflect.TypeFor[fpDrawn]().Field(i)
	switch p := reflect.ValueOf(v).Elem().Field(i).Addr().Interface().(type) {
	case *FpDrawnPart:
		*p = drawPart(t, f.Name)
	case *string:
		*p = drawText(t, f.Name)
	case *int8:
		*p = int8(drawInt(t, f.Name))
	case *float64:
		*p = rapid.SampledFrom([]float64{0, math.Copysign(0, -1), 1, -1, 0.1, math.Nextafter(0.1, 1), 1e21, 1e-7}).Draw(t, f.Name)
	case *bool:
		*p = rapid.Bool().Draw(t, f.Name)
	case **string:
		*p = drawPtr(t, f.Name, drawText)
	case ***int:
		*p = drawPtr(t, f.Name, func(t *rapid.T, label string) *int { return drawPtr(t, label, drawInt) })
	case *[]string:
		*p = drawList(t, f.Name, drawText)
	case *[][]int:
		*p = drawList(t, f.Name, func(t *rapid.T, label string) []int { return drawList(t, label, drawInt) })
	case *[2]bool:
		*p = [2]bool{rapid.Bool().Draw(t, f.Name), rapid.Bool().Draw(t, f.Name)}
	case *[]byte:
		*p = drawList(t, f.Name, func(t *rapid.T, label string) byte { return byte(drawInt(t, label)) })
	case *map[string]*int:
		*p = drawMap(t, f.Name, drawText, func(t *rapid.T, label string) *int { return drawPtr(t, label, drawInt) })
	case *map[int]string:
		*p = drawMap(t, f.Name, drawInt, drawText)
	case *time.Time:
		*p = rapid.SampledFrom([]time.Time{{}, time.Unix(0, 0).UTC(), time.Unix(0, 0).In(time.FixedZone("", 3600)), time.Unix(0, 1)}).Draw(t, f.Name)
	case *json.Number:
		*p = rapid.SampledFrom([]json.Number{"", "0", "1", "1.0"}).Draw(t, f.Name)
	case *[]FpDrawnPart:
		*p = drawList(t, f.Name, drawPart)
	case **fpDrawn:
		*p = nil
		if depth < 2 && rapid.Bool().Draw(t, f.Name) {
			*p = new(fpDrawn)
			for j := range reflect.TypeFor[fpDrawn]().NumField() {
				if rapid.Bool().Draw(t, "set") {
					drawField(t, *p, j, depth+1)
				}
			}
		}
	default:
		t.Fatalf("no way to draw %v", f.Type)
	}
}

func drawAll(t *rapid.T) *fpDrawn {
	v := new(fpDrawn)
	for i := range reflect.TypeFor[fpDrawn]().NumField() {
		drawField(t, v, i, 0)
	}
	return v
}

// folded is a copy of v that shares nothing with it and in which everything that is not to count is the same: times in
// UTC, no minus zero, nothing in what is left out. Equal commands are those whose folded copies are deeply equal.
func (v *fpDrawn) folded() *fpDrawn {
	if v == nil {
		return nil
	}
	c := *v
	c.At = c.At.UTC()
	c.Float += 0 // -0 + 0 is 0
	c.Left = ""
	c.Self = v.Self.folded()
	c.List = slices.Clone(v.List)
	c.Parts = slices.Clone(v.Parts)
	if v.Map != nil {
		c.Map = map[string]*int{}
		for k, p := range v.Map {
			c.Map[k] = p
			if p != nil {
				c.Map[k] = ptr(*p)
			}
		}
	}
	return &c
}

func TestPropertyEqualCommandsAndNoOthersHaveOneFingerprint(t *testing.T) {
	t.Parallel()
	e := compiled[fpDrawn](t)
	in := fingerprintInput{Tenant: "acme", Command: "drawn"}
	sum := func(t *rapid.T, v *fpDrawn) [32]byte {
		s, err := fingerprintOf(e, in, v, fpSecret)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	rapid.Check(t, func(t *rapid.T) {
		a := drawAll(t)
		if sum(t, a) != sum(t, a.folded()) {
			t.Fatalf("equal commands have two fingerprints: %+v", a)
		}
		b := a.folded()
		for range rapid.IntRange(1, 2).Draw(t, "changes") {
			drawField(t, b, rapid.IntRange(0, reflect.TypeFor[fpDrawn]().NumField()-1).Draw(t, "field"), 0)
		}
		if equal := reflect.DeepEqual(a.folded(), b.folded()); (sum(t, a) == sum(t, b)) != equal {
			t.Fatalf("equal is %t\n%+v\n%+v", equal, a, b)
		}
	})
}

func FuzzCanonicalString(f *testing.F) {
	f.Add("", "\x00")
	f.Add("a\"\\/\b\t\n\f\r\x1f\x7f", "é€😀<>&\u2028")
	f.Add("\ue000", "😀")
	f.Add("\xff", "\xed\xa0\x80")
	f.Fuzz(func(t *testing.T, a, b string) {
		var forms []string
		for _, s := range []string{a, b} {
			var w writer
			if err := w.string(s); (err == nil) != utf8.ValidString(s) {
				t.Fatalf("%q: %v", s, err)
			} else if err != nil {
				return
			}
			var back string
			if err := json.Unmarshal(w.buf, &back); err != nil || back != s {
				t.Fatalf("%q is written as %q and reads back as %q, %v", s, w.buf, back, err)
			}
			forms = append(forms, string(w.buf))
		}
		if (forms[0] == forms[1]) != (a == b) {
			t.Fatalf("%q and %q are written as %q and %q", a, b, forms[0], forms[1])
		}
		if got, want := compareUTF16(a, b), slices.Compare(utf16.Encode([]rune(a)), utf16.Encode([]rune(b))); got != want {
			t.Fatalf("%q and %q compare as %d, want %d", a, b, got, want)
		}
	})
}

func FuzzCanonicalNumber(f *testing.F) {
	for _, bits := range []float64{0, math.Copysign(0, -1), 1, 1e21, 1e-7, 5e-324, math.MaxFloat64, 333333333.33333329, math.NaN(), math.Inf(1), 1 << 53} {
		f.Add(bits, int64(bits))
	}
	form := regexp.MustCompile(`^(0|-?(0|[1-9]\d{0,20})(\.\d+)?|-?[1-9](\.\d+)?e[+-][1-9]\d{0,2})$`)
	float, short, integer := compiled[float64](f), compiled[float32](f), compiled[int64](f)
	f.Fuzz(func(t *testing.T, n float64, i int64) {
		got, err := float.appendTo(nil, reflect.ValueOf(n), nil)
		if finite := !math.IsNaN(n) && !math.IsInf(n, 0); (err == nil) != finite {
			t.Fatalf("%v: %v", n, err)
		} else if finite {
			back, err := strconv.ParseFloat(string(got), 64)
			if err != nil || back != n || !form.Match(got) {
				t.Fatalf("%v is written as %q and reads back as %v, %v", n, got, back, err)
			}
			if want, err := json.Marshal(n); err != nil || n != 0 && string(want) != string(got) {
				t.Fatalf("%v is written as %q, and by encoding/json as %q, %v", n, got, want, err)
			}
		}
		n32 := float32(n)
		if got, err := short.appendTo(nil, reflect.ValueOf(n32), nil); err == nil {
			if back, err := strconv.ParseFloat(string(got), 32); err != nil || float32(back) != n32 || !form.Match(got) {
				t.Fatalf("%v is written as %q and reads back as %v, %v", n32, got, back, err)
			}
		}
		if got, err := integer.appendTo(nil, reflect.ValueOf(i), nil); err != nil || string(got) != strconv.FormatInt(i, 10) {
			t.Fatalf("%d is written as %q, %v", i, got, err)
		}
	})
}

func FuzzCanonicalJSON(f *testing.F) {
	for _, s := range []string{
		`null`, ` [1, -0, 1.0e+5 , true,false ] `, `{"b":{"":[]},"a":"\u0000\ud83d\ude00\/"}`, `{"a":1,"\u0061":2}`, `"\ud800"`, `"\ud800\ud800"`,
		"\"\xff\"", `[`, ``, `{"a":[{"b":[[{}]]}]}`, `"\\u0041\""`,
	} {
		f.Add([]byte(s))
	}
	read := func(t *testing.T, in []byte) any {
		d := json.NewDecoder(bytes.NewReader(in))
		d.UseNumber()
		var v any
		if err := d.Decode(&v); err != nil {
			t.Fatal(err)
		}
		return v
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		out, reason := appendJSON([]byte("j"), in)
		if reason != "" {
			if valid := json.Valid(in); valid == (reason == "is not valid JSON") {
				t.Fatalf("%q is valid: %t, and it %s", in, valid, reason)
			}
			return
		}
		out = out[1:]
		if again, reason := appendJSON(nil, out); reason != "" || !bytes.Equal(again, out) {
			t.Fatalf("%q has the form %q, and that %q, %s", in, out, again, reason)
		}
		if !reflect.DeepEqual(read(t, in), read(t, out)) {
			t.Fatalf("%q has the form %q, which means something else", in, out)
		}
	})
}

func FuzzFingerprintParts(f *testing.F) {
	f.Add("a", "b", "c", "ab", "", "c")
	f.Add("", "", "", "", "", "\x00")
	f.Fuzz(func(t *testing.T, tenant1, command1, path1, tenant2, command2, path2 string) {
		a := fingerprintInput{Tenant: tenant1, Command: command1, Resource: []string{path1}}
		b := fingerprintInput{Tenant: tenant2, Command: command2, Resource: []string{path2}}
		if same := bytes.Equal(a.appendTo(nil), b.appendTo(nil)); same != reflect.DeepEqual(a, b) {
			t.Fatalf("same is %t for %+v and %+v", same, a, b)
		}
	})
}
