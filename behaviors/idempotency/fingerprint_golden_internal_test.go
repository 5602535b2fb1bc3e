package idempotency

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"math"
	"math/big"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/google/uuid"
)

// goldenInput is what the golden fingerprints are made under.
var goldenInput = fingerprintInput{Tenant: "acme/istanbul", Command: "orders.place", ContractVersion: 3, Resource: []string{"42", "ü/1"}}

// goldenValues are the typed values of testdata/fingerprint/golden.json.
func goldenValues() map[string]any {
	type address struct {
		Street string `json:"street"`
		City   string `json:"city"`
	}
	type line struct {
		SKU   string      `json:"sku"`
		Count int         `json:"count"`
		Price json.Number `json:"price"`
	}
	type order struct {
		address
		CartID   string            `json:"cart_id"`
		Amount   int64             `json:"amount"`
		Currency string            `json:"currency"`
		Lines    []line            `json:"lines"`
		Labels   map[string]string `json:"labels"`
		Due      time.Time         `json:"due"`
		Channel  *string           `json:"channel"`
		ID       uuid.UUID         `json:"id"`
		Received time.Time         `json:"received" idempotency:"-"`
		Thread   int               `json:"-"`
	}
	type payment struct {
		PAN    string   `json:"pan" idempotency:"secret"`
		Backup []string `json:"backup" idempotency:"secret"`
		Amount float64  `json:"amount"`
	}
	return map[string]any{
		"empty command": order{},
		"whole command": order{
			address: address{"Main Street 1", "İzmir"}, CartID: "cart-1", Amount: 4990, Currency: "TRY",
			Lines: []line{{"a", 1, "19.90"}, {}}, Labels: map[string]string{"b": "2", "a": "1"},
			Due: time.Date(2026, 3, 1, 1, 30, 0, 250e6, time.FixedZone("", 3*3600)), Channel: ptr("web"),
			ID: uuid.MustParse("0198c0de-0000-7000-8000-000000000001"), Received: time.Unix(7, 7), Thread: 5,
		},
		"empty list, empty map, pointer to nothing": order{Lines: []line{}, Labels: map[string]string{}, Channel: ptr("")},
		"secrets":             payment{PAN: "4111111111111111", Backup: []string{"", "x"}, Amount: 49.9},
		"no secrets":          payment{Amount: 1e21},
		"bools":               []bool{true, false},
		"integers":            []int64{math.MinInt64, -1, 0, 1, math.MaxInt64},
		"unsigned integers":   []uint64{0, math.MaxUint64},
		"floats":              []float64{math.Copysign(0, -1), 1, 1.5, 4.35, 1e-6, 1e-7, 123456789012345680000, 1e21, 1e23, 5e-324, math.MaxFloat64, -math.MaxFloat64},
		"short floats":        []float32{0.1, 1.0 / 3, math.MaxFloat32},
		"decimals":            []json.Number{"1", "1.0", "1e0", ""},
		"text":                []string{"", "\x00\x1f\x7f", "\b\t\n\f\r", `"\/`, "\u00e9", "e\u0301", "€", "😀", "<>&", "\u2028", "\ufffd"},
		"bytes":               [][]byte{nil, {}, {0, 1, 254, 255}},
		"digest":              sha256.Sum256([]byte("file")),
		"map, UTF-16 order":   map[string]int{"\u20ac": 1, "\r": 2, "\ufb33": 3, "1": 4, "\U0001f600": 5, "\u0080": 6, "\u00f6": 7},
		"map, integer keys":   map[int]bool{-2: true, 10: false, 9: true},
		"map, text keys":      map[fpLevel]int{1: 1, 2: 2},
		"pointers":            []**int{nil, ptr((*int)(nil)), ptr(ptr(0))},
		"times":               []time.Time{{}, time.Unix(0, 0), time.Date(2026, 12, 31, 23, 59, 59, 1, time.FixedZone("", -12*3600)), time.Date(12026, 1, 1, 0, 0, 0, 0, time.UTC)},
		"durations":           []time.Duration{0, time.Nanosecond, time.Hour},
		"raw JSON":            []json.RawMessage{nil, json.RawMessage(`null`), json.RawMessage(` {"z" : [1, 1.0, -0, 1E2], "é":"\u00e9\ud83d\ude00\u0000", "a":{"b":true, "a":null}} `)},
		"marshallers":         map[string]fpPoint{"a": {1, -2}},
		"big integers":        []*big.Int{nil, big.NewInt(0), new(big.Int).Exp(big.NewInt(10), big.NewInt(30), nil)},
		"recursive":           fpNode{Name: "a", Next: &fpNode{}, Kids: []fpNode{{Name: "b"}, {}}, Tags: map[string]*fpNode{"x": nil, "y": {Name: "c"}}},
		"embedded marshaller": fpAmount{Int: *big.NewInt(-5), Currency: "EUR"},
	}
}

// TestGoldenFingerprints holds the canonical form still, across processes, machines and versions of Go. A fingerprint that
// changes here changes under stored records too, and open retries would become conflicts: a change needs a new version of the
// form beside the old one, never a new golden vector under the old version.
func TestGoldenFingerprints(t *testing.T) {
	t.Parallel()
	type vector struct {
		Name      string `json:"name"`
		Canonical string `json:"canonical"`
		SHA256    string `json:"sha256"`
	}
	in, err := os.ReadFile(filepath.Join("testdata", "fingerprint", "golden.json"))
	if err != nil {
		t.Fatal(err)
	}
	var vectors []vector
	if err := json.Unmarshal(in, &vectors); err != nil {
		t.Fatal(err)
	}
	values := goldenValues()
	if len(vectors) != len(values) {
		t.Errorf("%d vectors and %d values", len(vectors), len(values))
	}
	// The parts before the command, written out: domain, tenant, command, version, number of path values, path values.
	head := "tekil/fingerprint/1" +
		"\x00\x00\x00\x00\x00\x00\x00\x0dacme/istanbul" +
		"\x00\x00\x00\x00\x00\x00\x00\x0corders.place" +
		"\x00\x00\x00\x00\x00\x00\x00\x03" +
		"\x00\x00\x00\x00\x00\x00\x00\x02" +
		"\x00\x00\x00\x00\x00\x00\x00\x0242" +
		"\x00\x00\x00\x00\x00\x00\x00\x04\xc3\xbc/1"
	for _, vec := range vectors {
		t.Run(vec.Name, func(t *testing.T) {
			t.Parallel()
			value, ok := values[vec.Name]
			if !ok {
				t.Fatal("no value has this name")
			}
			v := reflect.ValueOf(value)
			e, err := compileEncoder(v.Type())
			if err != nil {
				t.Fatal(err)
			}
			form, err := e.appendTo(nil, v, fpSecret)
			if err != nil {
				t.Fatal(err)
			}
			if string(form) != vec.Canonical {
				t.Errorf("canonical form\ngot  %s\nwant %s", form, vec.Canonical)
			}
			sum, err := e.fingerprint(goldenInput, v, fpSecret)
			if err != nil {
				t.Fatal(err)
			}
			if got := hex.EncodeToString(sum[:]); got != vec.SHA256 {
				t.Errorf("fingerprint\ngot  %s\nwant %s", got, vec.SHA256)
			}
			if want := sha256.Sum256(append([]byte(head), form...)); !bytes.Equal(sum[:], want[:]) {
				t.Errorf("the fingerprint is %x, its parts hash to %x", sum, want)
			}
		})
	}
}
