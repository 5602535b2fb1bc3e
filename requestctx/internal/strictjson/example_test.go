package strictjson_test

import (
	"fmt"
	"reflect"

	"github.com/tekil-go/tekil/requestctx/internal/strictjson"
)

func ExampleDecode() {
	type line struct {
		SKU string `json:"sku"`
		Qty int    `json:"qty"`
	}
	type place struct {
		CartID string `json:"cart_id"`
		Lines  []line `json:"lines"`
	}
	var p place
	fmt.Println(strictjson.Decode([]byte(`{"cart_id":"c-1","lines":[{"sku":"a","qty":2}]}`), &p), p)
	fmt.Println(strictjson.Decode([]byte(`{"cart_id":"c-1","lines":[{"sku":"a","qty":2.0}]}`), &p))
	fmt.Println(strictjson.Decode([]byte(`{"cart_id":"c-1","Cart_ID":"c-2"}`), &p))
	fmt.Println(strictjson.Decode([]byte(`{"cart_id":"c-1","coupon":"SECRET"}`), &p))
	// Output:
	// <nil> {c-1 [{a 2}]}
	// strictjson: lines[0].qty (byte 43): must be a whole number, written without a fraction or an exponent
	// strictjson: cart_id (byte 17): must have its name in exactly these letters, upper and lower case counted
	// strictjson: the body (byte 17): has an unknown member
}

func ExampleCheck() {
	type place struct {
		Extra map[string]string `json:",unknown"`
	}
	fmt.Println(strictjson.Check(reflect.TypeFor[place]()))
	// Output:
	// strictjson: this target cannot be decoded into: the field Extra of strictjson_test.place has an option in its json tag that encoding/json knows under GOEXPERIMENT=jsonv2 only
}
