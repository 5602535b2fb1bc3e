package strictjson_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"regexp"
	"testing"
	"unicode/utf8"

	"github.com/tekil-go/tekil/requestctx/internal/strictjson"
)

// oursXML is how the path of an error looks when all of it comes from the type visit or line.
var oursXML = regexp.MustCompile(`^(\.?(id|tenant|source|paid|amount|small|count|rate|narrow|number|blob|lines|sku|qty|Note|tags|grid|plain|dates|by_name|by_num|by_price|` +
	`by_cur|lists|ptr|opt|pair|at|until|took|price|limit|money|big|quoted|quoted_b|quoted_s|parent|deep)|\[[0-9]+\]|\[\*\])*$`)

// FuzzDecodeXML holds DecodeXML against EncodeXML and Decode: it never panics, and what it accepts is the same value after
// it was written as XML and as JSON and read again.
func FuzzDecodeXML(f *testing.F) {
	for _, seed := range []string{
		``, `<visit/>`, "\ufeff<?xml version=\"1.0\" encoding='UTF-8' standalone=\"no\"?>\n<visit></visit> <!-- --> ", `<visit><id> a&lt;&#13;&#x1F600;<![CDATA[<b>]]></id></visit>`,
		`<visit><tenant>t</tenant><source>s</source><paid> true</paid><amount>-12</amount><small>1</small><count>255</count><rate>1.5e3</rate><narrow>3.4e38</narrow><number>-0.10E+2</number></visit>`,
		`<visit><lines><line><sku>a</sku><qty>1</qty><Note/></line></lines><tags><tag> </tag></tags><grid><row><item>1</item></row></grid><plain><item/></plain><pair><half>1</half><half>2</half></pair></visit>`,
		`<visit><by_name><entry key="&#9;a"><sku>b</sku></entry></by_name><by_num><entry key='-1'>a</entry></by_num><by_price><entry key="1.50">1</entry></by_price><lists><entry key=""><item/></entry></lists></visit>`,
		`<visit><at>2026-01-02T03:04:05.5+03:00</at><until>2026-01-02T03:04:05Z</until><dates><item> 0001-01-01T00:00:00Z </item></dates><took>5</took><price>10.00</price><limit>0</limit><money>5</money></visit>`,
		`<visit><quoted>-1</quoted><quoted_b>true</quoted_b><quoted_s>"a\u0062"</quoted_s><blob>aGVsbG8=</blob><ptr>1</ptr><opt/></visit>`, `<visit><big>1</big></visit>`,
		`<visit><parent><parent><id>a</id></parent></parent><deep><entry key="a"><item><deep><entry key="b"/></deep></item></entry></deep></visit>`,
		`<visit xmlns="urn:a" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:schemaLocation="urn:a a.xsd"><a:id xmlns:a="urn:a" xmlns="">x</a:id></visit>`,
		`<a:visit xmlns:a="urn:a"><a:lines><b:line xmlns:b="urn:a"/></a:lines></a:visit>`, `<!DOCTYPE visit [<!ENTITY x "y">]><visit><id>&x;</id></visit>`, `<visit><?php?></visit>`,
		`<visit><id>&#xD800;</id></visit>`, `<visit><id>a</id><id>b</id></visit>`, `<visit><id a="b"/></visit>`, `<visit>a<id/>b</visit>`, `<visit><amount/></visit>`, "<visit><id>\xff</id></visit>",
		`<?xml version="1.0" encoding="latin1"?><visit/>`, `<visit/><visit/>`, `<visit><id xmlns="urn:b"/></visit>`, `<visit><entry key="a"><sku>b</sku></entry><entry key="b"/></visit>`,
		`<visit><item>a</item><item> b&#10;</item></visit>`, `<visit>-12.50</visit>`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		before := bytes.Clone(body)
		againstXML[visit](t, body)
		againstXML[map[string]line](t, body)
		againstXML[[]string](t, body)
		againstXML[float64](t, body)
		if !bytes.Equal(before, body) {
			t.Error("the body was changed")
		}
	})
}

func againstXML[T any](t *testing.T, body []byte) {
	t.Helper()
	got, err := decodeXML[T](t, string(body), "visit")
	if err != nil {
		var e *strictjson.Error
		if !errors.As(err, &e) || !oursXML.MatchString(e.Path) || !words.MatchString(e.Reason) || e.Offset < 0 || e.Offset > int64(len(body)) {
			t.Errorf("a wrong error: %#v", err)
		}
		return
	}
	if !utf8.Valid(body) {
		t.Error("invalid UTF-8 was accepted")
	}
	text, err := json.Marshal(got)
	if err != nil {
		t.Fatal("there is no JSON for it: ", err)
	}
	var fromJSON T
	if err := strictjson.Decode(text, &fromJSON); err != nil || !alike(fromJSON, got) {
		t.Errorf("as JSON: %v\n%s\ngot  %+v\nwant %+v", err, text, fromJSON, got)
	}
	out, err := strictjson.EncodeXML("visit", "urn:a", got)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := decodeXML[T](t, string(out), "visit"); err != nil || !alike(again, got) {
		t.Errorf("%v\n%s\ngot  %+v\nwant %+v", err, out, again, got)
	}
}

// alike reports whether two values are the same but for how a time zone is held: an offset of zero is UTC once it has been written.
func alike[T any](a, b T) bool {
	if reflect.DeepEqual(a, b) {
		return true
	}
	one, err1 := json.Marshal(a)
	two, err2 := json.Marshal(b)
	return err1 == nil && err2 == nil && bytes.Equal(one, two)
}
