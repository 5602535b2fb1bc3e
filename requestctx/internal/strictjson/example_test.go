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

func ExampleDecodeXML() {
	type line struct {
		SKU string `json:"sku"`
		Qty int    `json:"qty"`
	}
	type place struct {
		CartID string         `json:"cart_id"`
		Lines  []line         `json:"lines" xml:"line"`
		Stock  map[string]int `json:"stock"`
	}
	var p place
	fmt.Println(strictjson.DecodeXML([]byte(`<?xml version="1.0" encoding="UTF-8"?>
<place>
  <cart_id>c-1</cart_id>
  <lines>
    <line><sku>a</sku><qty> 2 </qty></line>
  </lines>
  <stock><entry key="a">7</entry></stock>
</place>`), "place", &p), p)
	fmt.Println(strictjson.DecodeXML([]byte(`<place><cart_id>c-1</cart_id><lines><line><qty>2.0</qty></line></lines></place>`), "place", &p))
	fmt.Println(strictjson.DecodeXML([]byte(`<place><cart_id>c-1</cart_id><coupon>SECRET</coupon></place>`), "place", &p))
	fmt.Println(strictjson.DecodeXML([]byte(`<!DOCTYPE place><place/>`), "place", &p))
	// Output:
	// <nil> {c-1 [{a 2}] map[a:7]}
	// strictjson: lines[0].qty (byte 42): must be a whole number, written without a fraction or an exponent
	// strictjson: the body (byte 29): has an unknown member
	// strictjson: the body (byte 0): must not have a document type declaration
}

func ExampleCheckXML() {
	type place struct {
		Extra any   `json:"extra"`
		Lines []int `json:"lines" xml:"the line"`
	}
	fmt.Println(strictjson.CheckXML(reflect.TypeFor[place]()))
	// Output:
	// strictjson: this target cannot be decoded into: the member extra of strictjson_test.place has no form in XML
	// strictjson: this target cannot be decoded into: the member lines of strictjson_test.place has an xml tag with a name that no XML element can have
}

func ExampleEncodeXML() {
	type project struct {
		Name string `json:"name"`
		Note *string
	}
	type answer struct {
		Projects []project `json:"projects" xml:"project"`
		Total    float64   `json:"total"`
	}
	out, err := strictjson.EncodeXML("answer", "urn:example", answer{Projects: []project{{Name: "R&D"}}, Total: 1.5})
	fmt.Print(string(out), err)
	// Output:
	// <?xml version="1.0" encoding="UTF-8"?><answer xmlns="urn:example"><projects><project><name>R&amp;D</name></project></projects><total>1.5</total></answer>
	// <nil>
}
