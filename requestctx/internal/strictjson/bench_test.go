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
