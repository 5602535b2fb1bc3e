package strictjson_test

import (
	"encoding/json"
	"testing"

	"github.com/tekil-go/tekil/requestctx/internal/strictjson"
)

type place struct {
	CartID   string `json:"cart_id"`
	Amount   int64  `json:"amount"`
	Currency string `json:"currency"`
	Email    string `json:"email"`
	Draft    string `json:"draft_order_id"`
}

// BenchmarkDecode shows Decode beside json.Unmarshal, its baseline.
func BenchmarkDecode(b *testing.B) {
	body := []byte(`{"cart_id":"cart-81723","amount":4990,"currency":"EUR","email":"a@example.com","draft_order_id":"d-1"}`)
	b.Run("baseline=json.Unmarshal", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(body)))
		for b.Loop() {
			var p place
			if err := json.Unmarshal(body, &p); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("strict", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(body)))
		for b.Loop() {
			var p place
			if err := strictjson.Decode(body, &p); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkDecodeXML shows DecodeXML beside Decode for the same command, its baseline.
func BenchmarkDecodeXML(b *testing.B) {
	asJSON := []byte(`{"cart_id":"cart-81723","amount":4990,"currency":"EUR","email":"a@example.com","draft_order_id":"d-1"}`)
	var p place
	if err := strictjson.Decode(asJSON, &p); err != nil {
		b.Fatal(err)
	}
	asXML, err := strictjson.EncodeXML("place", "", p)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("baseline=Decode", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(asJSON)))
		for b.Loop() {
			var p place
			if err := strictjson.Decode(asJSON, &p); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("xml", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(asXML)))
		for b.Loop() {
			var p place
			if err := strictjson.DecodeXML(asXML, "place", &p); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkEncodeXML shows EncodeXML beside json.Marshal, its baseline.
func BenchmarkEncodeXML(b *testing.B) {
	p := place{CartID: "cart-81723", Amount: 4990, Currency: "EUR", Email: "a@example.com", Draft: "d-1"}
	b.Run("baseline=json.Marshal", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := json.Marshal(p); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("xml", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := strictjson.EncodeXML("place", "", p); err != nil {
				b.Fatal(err)
			}
		}
	})
}
