package strictjson_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/tekil-go/tekil/requestctx/internal/strictjson"
)

// ours is how the path of an error looks when all of it comes from the type order.
var ours = regexp.MustCompile(`^(\.?(id|tenant|source|paid|amount|small|count|rate|narrow|number|blob|lines|sku|qty|Note|by_name|by_num|by_code|by_cur|ptr|pair|at|` +
	`until|took|code|point|levels|big|raw|any|quoted|quoted_b|quoted_s|quoted_f|quoted_n|-|chan|iface|cents|parent|deep)|\[[0-9]+\]|\[\*\])*$`)

// words are the only ones an error's reason is made of.
var words = regexp.MustCompile(`^[a-zA-Z0-9 ,:-]{5,100}$`)

// FuzzDecode holds Decode against encoding/json: it never panics, and what it accepts encoding/json accepts too, with
// unknown members forbidden and with the same value.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		``, `{}`, "\ufeff{}", `null`, `[1,{"a":"b"}]`, `{"id":"a","ID":"b"}`, `{"id":"\ud83d\ude00\u0000"}`, `{"amount":-12,"rate":1.5e3,"narrow":3.4e38,"count":255}`,
		`{"lines":[{"sku":"a","qty":1,"Note":null}],"by_name":{"a":{}},"by_num":{"-1":"a"},"by_code":{"abc":1},"by_cur":{"EUR":1}}`,
		`{"quoted":"-1","quoted_b":"true","quoted_s":"\"a\\u0062\"","quoted_f":"1e3","quoted_n":"1.0"}`, `{"blob":"aGVsbG8=","levels":["a"],"pair":[1,2]}`,
		`{"at":"2026-01-02T03:04:05.5+03:00","until":null,"took":5,"code":"abc","point":[1,2],"big":12,"ptr":1}`,
		`{"any":{"a":[1,2,{"b":null}],"c":"d"},"raw":{"a":1e999},"parent":{"tenant":"t","source":"s"},"deep":{"a":[{}]},"-":"x"}`,
		`{"chan":null,"iface":null,"cents":null}`, `{"quoted":null}`, `{"any":1e400}`, `{"id":"` + "\xff" + `"}`, `{"amount":1.0}`, `{"lines":[{"qty":"x"}]} x`,
		`{"number":-0.10E+2,"paid":false}`, `{"any":{"a":1,"\u0061":2}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		before := bytes.Clone(body)
		against[order](t, body)
		against[any](t, body)
		against[map[string]line](t, body)
		if !bytes.Equal(before, body) {
			t.Error("the body was changed")
		}
	})
}

func against[T any](t *testing.T, body []byte) {
	t.Helper()
	var got T
	if err := strictjson.Decode(body, &got); err != nil {
		var e *strictjson.Error
		if !errors.As(err, &e) || !ours.MatchString(e.Path) || !words.MatchString(e.Reason) || e.Offset < 0 || e.Offset > int64(len(body)) {
			t.Errorf("a wrong error: %#v", err)
		}
		if v := reflect.ValueOf(&got).Elem(); !v.IsZero() {
			t.Errorf("%T: not zero after an error", got)
		}
		return
	}
	if !utf8.Valid(body) {
		t.Error("invalid UTF-8 was accepted")
	}
	var want T
	d := json.NewDecoder(bytes.NewReader(bytes.TrimPrefix(body, []byte("\ufeff"))))
	d.DisallowUnknownFields()
	if err := d.Decode(&want); err != nil {
		t.Errorf("encoding/json refuses what was accepted: %v", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		t.Errorf("data after the body: %v", err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if strings.Contains(string(body), "\ufffd") {
		return
	}
	// Nothing was replaced: U+FFFD comes out only when it went in as an escape.
	if out, err := json.Marshal(got); err == nil && bytes.Contains(out, []byte("\ufffd")) && !bytes.Contains(bytes.ToLower(body), []byte("fffd")) {
		t.Errorf("a replaced character in %s", out)
	}
}
