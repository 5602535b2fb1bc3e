package httpedge_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tekil-go/tekil/behaviors/validation"
	"github.com/tekil-go/tekil/requestctx"
	"github.com/tekil-go/tekil/requestctx/httpedge"
)

// The formats of these tests beside JSON.

const (
	kvType     = "application/x-kv"
	taggedType = "application/vnd.tagged+json"
	kvBody     = "amount=4990\ncart_id=c-1"
	taggedBody = "tagged:" + usual
	asKV       = "Content-Type: " + kvType
	wantKV     = "Accept: " + kvType
)

// kv is a flat format: a line name=value for each member. A value that is JSON is that, and any other is a text.
func kv() httpedge.Codec {
	return httpedge.Codec{
		MediaType: kvType, Also: []string{"text/x-kv", "+kv"}, ProblemType: "application/problem+kv",
		Decode: func(data []byte, v any) error {
			members := map[string]json.RawMessage{}
			for line := range strings.SplitSeq(string(data), "\n") {
				name, value, ok := strings.Cut(line, "=")
				if _, twice := members[name]; !ok || twice {
					return fmt.Errorf("kv: the line %q is wrong", line)
				}
				members[name] = json.RawMessage(value)
				if !json.Valid(members[name]) {
					members[name], _ = json.Marshal(value)
				}
			}
			return strictly(members, v)
		},
		Encode: func(v any) ([]byte, error) {
			members, err := membersOf(v)
			if err != nil {
				return nil, err
			}
			var lines []string
			for _, name := range slices.Sorted(maps.Keys(members)) {
				value := string(members[name])
				var text string
				if json.Unmarshal(members[name], &text) == nil {
					value = text
				}
				lines = append(lines, name+"="+value)
			}
			return []byte(strings.Join(lines, "\n")), nil
		},
	}
}

// tagged is JSON behind a word. Its name ends as the other names of JSON do.
func tagged() httpedge.Codec {
	return httpedge.Codec{
		MediaType: taggedType,
		Decode: func(data []byte, v any) error {
			plain, ok := bytes.CutPrefix(data, []byte("tagged:"))
			if !ok {
				return errors.New("tagged: the word is not there")
			}
			return strictly(json.RawMessage(plain), v)
		},
		Encode: func(v any) ([]byte, error) {
			plain, err := json.Marshal(v)
			return append([]byte("tagged:"), plain...), err
		},
	}
}

// strictly decodes what encodes to JSON.
func strictly(from, into any) error {
	data, err := json.Marshal(from)
	if err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	return d.Decode(into)
}

func membersOf(v any) (map[string]json.RawMessage, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	var members map[string]json.RawMessage
	return members, json.Unmarshal(data, &members)
}

func formats() []httpedge.Codec { return []httpedge.Codec{httpedge.JSON(), kv(), tagged()} }

// logical reads what an answer says, whatever its format is.
func (r *reply) logical() map[string]any {
	r.t.Helper()
	members := map[string]any{}
	var err error
	switch contentType := r.header.Get("Content-Type"); contentType {
	case kvType, "application/problem+kv":
		err = kv().Decode([]byte(r.body), &members)
	case taggedType:
		err = tagged().Decode([]byte(r.body), &members)
	case "application/json", "application/problem+json":
		err = json.Unmarshal([]byte(r.body), &members)
	default:
		err = fmt.Errorf("content type %q", contentType)
	}
	if err != nil {
		r.t.Fatalf("%v: %s", err, r.body)
	}
	return members
}

func TestF02_ARetryInTheOtherFormatGetsTheSameResultInIt(t *testing.T) {
	t.Parallel()
	type sent struct{ body, contentType, accept, answered string }
	inJSON := sent{usual, "application/json", "application/json", "application/json"}
	inKV := sent{kvBody, kvType, kvType, kvType}
	inTagged := sent{taggedBody, taggedType, taggedType, taggedType}
	for name, tt := range map[string]struct{ first, retry sent }{
		"JSON, then the other":                      {inJSON, inKV},
		"the other, then JSON":                      {inKV, inJSON},
		"JSON, then its relative":                   {inJSON, inTagged},
		"JSON, and the retry accepts the other":     {inJSON, sent{usual, "application/json", kvType, kvType}},
		"the other, and the retry accepts JSON":     {inKV, sent{kvBody, kvType, "application/json", "application/json"}},
		"JSON, then the other that accepts JSON":    {inJSON, sent{kvBody, kvType, "application/json", "application/json"}},
		"the other without Accept, then JSON alone": {sent{kvBody, kvType, "", kvType}, sent{usual, "application/json", "", "application/json"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newRig(t, setup{config: httpedge.Config{Codecs: formats()}}).orders()
			send := func(s sent) *reply {
				headers := []string{k1, "Content-Type: " + s.contentType}
				if s.accept != "" {
					headers = append(headers, "Accept: "+s.accept)
				}
				res := g.do("POST", "/v1/orders", s.body, headers...)
				same(t, "format of the answer", res.header.Get("Content-Type"), s.answered)
				return res
			}
			first := send(tt.first).ok(201, "false")
			retry := send(tt.retry).ok(201, "true")
			same(t, "what the answers say", retry.logical(), first.logical())
			same(t, "the order", first.logical()["order_id"], any("o-c-1"))
			same(t, "Location", retry.header.Get("Location"), first.header.Get("Location"))
			same(t, "the first attempt", retry.header.Get("Idempotency-Original-Request-ID"), first.id())
			g.want(1, 1, 1)
			send(tt.first).ok(201, "true")
			g.want(1, 1, 1)
		})
	}
}

func TestF02_AnotherPayloadInTheOtherFormatIsAConflictInIt(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{config: httpedge.Config{Codecs: formats()}}).orders()
	g.post(k1).ok(201, "false")
	res := g.do("POST", "/v1/orders", "cart_id=c-1\namount=1", k1, asKV)
	same(t, "status", res.status, 409)
	same(t, "format", res.header.Get("Content-Type"), "application/problem+kv")
	same(t, "code", res.logical()["code"], any(conflict))
	same(t, "request id", res.logical()["request_id"], any(res.id()))
	g.want(1, 1, 1)
}

// RFC 9110, 12.5.1. The formats are JSON, kv and tagged, in this order.
func TestAcceptIsNegotiated(t *testing.T) {
	t.Parallel()
	const none = ""
	j, k, tg := "application/json", kvType, taggedType
	many := func(n int, last string) string { return strings.Repeat("text/html, ", n-1) + last }
	for name, tt := range map[string]struct {
		accept []string
		from   string // the request's own format; "" is JSON
		want   string // none is 406
	}{
		"no header":                                     {nil, "", j},
		"no header, own format":                         {nil, k, k},
		"empty":                                         {[]string{""}, k, k},
		"anything":                                      {[]string{"*/*"}, "", j},
		"anything, own format":                          {[]string{"*/*"}, k, k},
		"one of them":                                   {[]string{k}, "", k},
		"in capitals":                                   {[]string{"Application/X-KV"}, "", k},
		"both alike, own format":                        {[]string{j + ", " + k}, k, k},
		"both alike, own format, other order":           {[]string{k + ", " + j}, "", j},
		"both alike with weights, own format":           {[]string{j + ";q=0.5, " + k + ";q=0.5"}, k, k},
		"weights":                                       {[]string{j + ";q=0.4, " + k + ";q=0.6"}, "", k},
		"weights in capitals and spaces":                {[]string{j + " ; Q=0.4 , " + k + " ; Q=0.6"}, "", k},
		"weights a thousandth apart":                    {[]string{j + ";q=0.500, " + k + ";q=0.501"}, "", k},
		"weight without a leading zero":                 {[]string{j + ";q=.2, " + k + ";q=.3"}, "", k},
		"weight 1 with zeros":                           {[]string{j + ";q=0.999, " + k + ";q=1.000"}, "", k},
		"the named before the unnamed":                  {[]string{k + ", */*"}, "", k},
		"the weight of the most exact range counts":     {[]string{"*/*, application/*;q=0.1, " + j + ";q=0.2"}, k, j},
		"a whole name lowers a wildcard":                {[]string{"*/*;q=0.9, " + j + ";q=0.1"}, "", k},
		"half a name lowers a wildcard":                 {[]string{"*/*, application/*;q=0"}, "", none},
		"half a name":                                   {[]string{"text/html, application/*;q=0.1"}, k, k},
		"another half":                                  {[]string{"text/*"}, "", none},
		"q=0 excludes":                                  {[]string{j + ";q=0, */*"}, "", k},
		"q=0 excludes the own format":                   {[]string{k + ";q=0, */*;q=0.1"}, k, j},
		"q=0.000 excludes":                              {[]string{k + ";q=0.000, " + j + ";q=0.001"}, k, j},
		"q=0 of all":                                    {[]string{"*/*;q=0"}, "", none},
		"q=0 of all but one":                            {[]string{"*/*;q=0, " + k}, "", k},
		"a whole name is not excluded by half of it":    {[]string{"application/*;q=0, " + k + ";q=0.3"}, "", k},
		"another name of it":                            {[]string{"text/x-kv"}, "", k},
		"an ending of it":                               {[]string{"application/vnd.shop+kv"}, "", k},
		"a problem's type":                              {[]string{"application/problem+json"}, k, j},
		"a name that is excluded, and another name":     {[]string{k + ";q=0, text/x-kv, " + j + ";q=0.1"}, k, j},
		"a name before another's ending":                {[]string{tg}, "", tg},
		"a name before another's ending, own format":    {[]string{tg}, j, tg},
		"the own format is one that ends like another":  {nil, tg, tg},
		"parameters are passed over":                    {[]string{k + ";version=2;q=0.9, " + j + ";q=0.8"}, "", k},
		"several lines":                                 {[]string{j + ";q=0.1", k + ";q=0.2"}, "", k},
		"several lines, the first says all":             {[]string{"*/*;q=0.1", j}, k, j},
		"an unknown type alone":                         {[]string{"text/html"}, "", none},
		"an unknown type, own format":                   {[]string{"text/html"}, k, none},
		"a browser's":                                   {[]string{"text/html,application/xhtml+xml,*/*;q=0.8"}, k, k},
		"java's":                                        {[]string{"text/html, image/gif, *; q=.2, */*; q=.2"}, k, k},
		"nothing that is a range":                       {[]string{"json"}, k, k},
		"a range that is none beside one that is":       {[]string{"json, ;;, =, " + k}, "", k},
		"empty elements":                                {[]string{", ,," + k + ",,"}, "", k},
		"a weight that is none is no range":             {[]string{k + ";q=high, " + j + ";q=0.1"}, "", j},
		"a weight above 1":                              {[]string{k + ";q=2, " + j + ";q=0.1"}, "", j},
		"a weight below 0":                              {[]string{k + ";q=-1, " + j + ";q=0.1"}, "", j},
		"a weight that is not a number":                 {[]string{k + ";q=NaN, " + j + ";q=0.1"}, "", j},
		"a weight twice":                                {[]string{k + ";q=1;q=0, " + j + ";q=0.1"}, "", j},
		"a comma in quotes":                             {[]string{`text/html;a="x, ` + j + `", ` + k}, "", k},
		"a comma in quotes of a format's own":           {[]string{k + `;a="x, \", y", ` + j + ";q=0.5"}, "", k},
		"a quote that is not closed ends with its list": {[]string{k + `, text/html;a="x, ` + j}, "", k},
		"100 elements, the first is ours":               {[]string{k + ", " + many(99, "text/css")}, "", k},
		"100 elements, the last is ours":                {[]string{many(100, k)}, "", j}, // it is not read, and is no reason to refuse
		"100 lines":                                     {slices.Repeat([]string{k}, 100), "", k},
		"100 elements, ours is excluded":                {[]string{j + ";q=0, " + many(99, "text/css")}, "", k},
		"32 elements that are all others":               {[]string{many(32, "text/css")}, "", none},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newRig(t, setup{config: httpedge.Config{Codecs: formats()}}).orders()
			body, from := usual, tt.from
			switch from {
			case "":
				from = j
			case k:
				body = kvBody
			case tg:
				body = taggedBody
			}
			headers := []string{k1, "Content-Type: " + from}
			for _, line := range tt.accept {
				headers = append(headers, "Accept: "+line)
			}
			res := g.do("POST", "/v1/orders", body, headers...)
			same(t, "Vary", res.header.Values("Vary"), []string{"Accept"})
			if tt.want == none {
				same(t, "status", res.status, 406)
				g.want(0, 0, 0)
				return
			}
			res.ok(201, "false")
			same(t, "format", res.header.Get("Content-Type"), tt.want)
			same(t, "order", res.logical()["order_id"], any("o-c-1"))
		})
	}
}

func TestF02_WhatCannotBeAcceptedIsRefusedBeforeAnythingIsSpent(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{config: httpedge.Config{Codecs: formats()}}).orders()
	p := g.post(k1, "Accept: text/html").fails(406, "NOT_ACCEPTABLE", httpedge.SameKey)
	for _, name := range []string{"application/json", kvType, taggedType} {
		if !strings.Contains(p.Detail, name) {
			t.Errorf("the detail does not name %s: %s", name, p.Detail)
		}
	}
	res := g.do("POST", "/v1/orders", "=", k1, asKV, "Accept: text/html") // in its own format, and before its body is read
	same(t, "status", res.status, 406)
	same(t, "format", res.header.Get("Content-Type"), "application/problem+kv")
	g.want(0, 0, 0)
	same(t, "reads of the store", g.store.reads.Load(), 0)
	same(t, "dispatches", len(g.seen.all()), 0)
	g.post(k1).ok(201, "false")
	g.post(k1, "Accept: text/html").fails(406, "NOT_ACCEPTABLE", httpedge.SameKey)
	g.post(k1, wantKV).ok(201, "true")
	g.want(1, 1, 1)
}

func TestOneFormatAloneDoesNotReadAccept(t *testing.T) {
	t.Parallel()
	for name, codecs := range map[string][]httpedge.Codec{"none named": nil, "JSON": {httpedge.JSON()}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newRig(t, setup{config: httpedge.Config{Codecs: codecs}}).orders()
			for i, accept := range []string{"text/html", "application/json;q=0", "*/*;q=0", ";;"} {
				res := g.post(k1, "Accept: "+accept).ok(201, fmt.Sprint(i > 0))
				same(t, "format", res.header.Get("Content-Type"), "application/json")
				res.without("Vary")
			}
		})
	}
	g := newRig(t, setup{config: httpedge.Config{Codecs: []httpedge.Codec{kv()}}}).orders()
	res := g.do("POST", "/v1/orders", kvBody, k1, asKV, "Accept: application/json").ok(201, "false")
	same(t, "format", res.header.Get("Content-Type"), kvType)
	res = g.post(k1) // JSON is none of the formats here
	same(t, "status and format", fmt.Sprint(res.status, res.header.Get("Content-Type")), "415application/problem+kv")
}

func TestVaryStandsOnEveryAnswerOfAnEdgeWithFormats(t *testing.T) {
	t.Parallel()
	config := authenticated()
	config.Codecs = formats()
	g := newRig(t, setup{config: config}).orders()
	mountFind(g)
	g.mux.Handle("/own", g.edge.Middleware("/own")(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Add("Vary", "Accept-Language")
		g.edge.WriteProblem(w, r, errForbidden)
	})))
	ok := as("ayse.1", "north")
	for name, res := range map[string]*reply{
		"201":    g.post(ok...),
		"replay": g.post(ok...),
		"401":    g.post(k1),
		"403":    g.post(as("ayse.1", "")...),
		"400":    g.do("POST", "/v1/orders", "{", ok...),
		"406":    g.post(append(ok, "Accept: text/html")...),
		"415":    g.post(append(ok, "Content-Type: text/plain")...),
		"200":    g.do("GET", "/v1/orders/1", "", ok...),
	} {
		same(t, "Vary of "+name, res.header.Values("Vary"), []string{"Accept"})
	}
	same(t, "Vary of a handler of its own", g.do("GET", "/own", "", ok...).header.Values("Vary"), []string{"Accept", "Accept-Language"})
}

func TestATypeThatNoFormatHasIsRefused(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{config: httpedge.Config{Codecs: formats()}}).orders()
	for _, contentType := range []string{
		"", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/xml", "text/vnd.shop+kv", "+kv", "+json",
		"image/x+json", "*/*", "application/*", ";", "application/json; charset=utf-16", kvType + "; charset=iso-8859-9", kvType + ";;=", "text/plain; application/json",
	} {
		p := g.do("POST", "/v1/orders", kvBody, k1, "Content-Type: "+contentType, "Accept: application/json").fails(415, "UNSUPPORTED_MEDIA_TYPE", httpedge.SameKey)
		if p.Detail == "" {
			t.Errorf("%q: no detail", contentType)
		}
	}
	for _, encoding := range []string{"gzip", "br", "identity, gzip", "deflate"} {
		g.do("POST", "/v1/orders", kvBody, k1, asKV, "Content-Encoding: "+encoding, "Accept: application/json").fails(415, "UNSUPPORTED_MEDIA_TYPE", httpedge.SameKey)
	}
	same(t, "reads of the store", g.store.reads.Load(), 0)
	g.want(0, 0, 0)
	for i, contentType := range []string{kvType, "text/x-kv", "application/vnd.shop+kv", "Application/X-KV; charset=UTF-8", kvType + `; charset="utf-8"`, kvType + "; v=1"} {
		g.do("POST", "/v1/orders", kvBody, k1, "Content-Type: "+contentType, "Content-Encoding: identity").ok(201, fmt.Sprint(i > 0))
	}
	g.want(1, 1, 1)
}

func TestV01_AFormatThatCannotReadTheBodyIsA400WithoutItsText(t *testing.T) {
	t.Parallel()
	codec := kv()
	plain := codec.Decode
	codec.Decode = func(data []byte, v any) error {
		switch string(data) {
		case "panic":
			panic("card 4111111111111111")
		case "field":
			return errors.Join(validation.Field("cart_id", "text", "must be a text"), errors.New("card 4111111111111111"))
		case "coded":
			return errForbidden
		}
		return plain(data, v)
	}
	g := newRig(t, setup{config: httpedge.Config{Codecs: []httpedge.Codec{httpedge.JSON(), codec}, Statuses: map[string]int{"FORBIDDEN": 403}}}).orders()
	send := func(body string) *reply {
		return g.do("POST", "/v1/orders", body, k1, asKV, "Accept: application/json")
	}
	for _, body := range []string{"4111111111111111", "", "cart_id=4111111111111111\nunknown=1\namount=2", "coded"} {
		p := send(body).fails(400, "MALFORMED_REQUEST", httpedge.SameKey)
		same(t, "detail", p.Detail, "The body cannot be read as "+kvType+".")
	}
	p := send("field").fails(400, "VALIDATION_FAILED", httpedge.SameKey)
	same(t, "errors", p.Errors, []validation.FieldError{{Path: "cart_id", Rule: "text", Message: "must be a text"}})
	send("panic").fails(500, "INTERNAL", httpedge.SameKey)
	if log := g.log.String(); strings.Contains(log, "41111111") || !strings.Contains(log, "httpedge: panic") {
		t.Errorf("log %s", log)
	}
	g.want(0, 0, 0)
	same(t, "reads of the store", g.store.reads.Load(), 0)
	send(kvBody).ok(201, "false")
}

// A format that breaks over results, or over everything.
func TestAFormatThatCannotWriteAnAnswerLosesNoOutcome(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		encode   func(any) ([]byte, error)
		problem  func(httpedge.Problem) ([]byte, error)
		answered string
		loud     int // lines in the log for two requests
	}{
		"an error over results":       {func(any) ([]byte, error) { return nil, errors.New("card 4111111111111111") }, func(httpedge.Problem) ([]byte, error) { return []byte("x=1"), nil }, "application/problem+kv", 2},
		"a panic over results":        {func(any) ([]byte, error) { panic("card 4111111111111111") }, func(httpedge.Problem) ([]byte, error) { return []byte("x=1"), nil }, "application/problem+kv", 2},
		"an error over everything":    {func(any) ([]byte, error) { return nil, errors.New("card 4111111111111111") }, nil, "application/problem+json", 6},
		"a panic over everything":     {func(any) ([]byte, error) { panic("card 4111111111111111") }, nil, "application/problem+json", 6},
		"a panic over problems alone": {nil, func(httpedge.Problem) ([]byte, error) { panic("card 4111111111111111") }, kvType, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			codec := kv()
			if tt.encode != nil {
				codec.Encode = tt.encode
			}
			codec.EncodeProblem = tt.problem
			g := newRig(t, setup{config: httpedge.Config{Codecs: []httpedge.Codec{httpedge.JSON(), codec}}}).orders()
			for i := range 2 {
				res := g.post(k1, wantKV)
				same(t, "format", res.header.Get("Content-Type"), tt.answered)
				same(t, "replayed", res.header.Get("Idempotency-Replayed"), fmt.Sprint(i > 0))
				if tt.encode == nil {
					res.ok(201, fmt.Sprint(i > 0))
					continue
				}
				same(t, "status", res.status, 500)
				res.without("Location")
				if tt.answered == "application/problem+json" {
					res.fails(500, "INTERNAL", httpedge.SameKey)
				}
			}
			log := g.log.String()
			same(t, "lines in the log", strings.Count(log, "\n"), tt.loud)
			if strings.Contains(log, "41111111") || strings.Count(log, `"level":"ERROR"`) != tt.loud {
				t.Errorf("log %s", log)
			}
			g.want(1, 1, 1)
			res := g.post(k1).ok(201, "true") // in the other format it is there
			same(t, "order", res.logical()["order_id"], any("o-c-1"))
			if tt.problem != nil && tt.encode == nil {
				g.do("POST", "/v1/orders", "{", k1, wantKV).fails(400, "MALFORMED_REQUEST", httpedge.SameKey)
				same(t, "that it is in the log", strings.Contains(g.log.String(), "httpedge: panic"), true)
			}
		})
	}
}

func TestAFormatWithoutAProblemTypeSendsProblemsAsItself(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{config: httpedge.Config{Codecs: formats()}}).orders()
	res := g.post(k1, "Accept: "+taggedType, "Content-Type: text/plain")
	same(t, "format", res.header.Get("Content-Type"), taggedType)
	same(t, "code", res.logical()["code"], any("UNSUPPORTED_MEDIA_TYPE"))
}

func TestAFormatThatCannotBeMeantIsRefused(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(*httpedge.Codec)
		want   string
	}{
		"no name":                 {func(c *httpedge.Codec) { c.MediaType = "" }, `its MediaType is ""`},
		"half a name":             {func(c *httpedge.Codec) { c.MediaType = "kv" }, `its MediaType is "kv"`},
		"capitals":                {func(c *httpedge.Codec) { c.MediaType = "application/KV" }, `its MediaType is "application/KV"`},
		"a parameter":             {func(c *httpedge.Codec) { c.MediaType = "application/kv; v=1" }, "its MediaType"},
		"a wildcard":              {func(c *httpedge.Codec) { c.MediaType = "application/*" }, "its MediaType"},
		"two lines":               {func(c *httpedge.Codec) { c.MediaType = "application/kv\r\nX-Evil: 1" }, "its MediaType"},
		"a problem of two lines":  {func(c *httpedge.Codec) { c.ProblemType = "application/kv\r\nX-Evil: 1" }, "its ProblemType"},
		"no Decode":               {func(c *httpedge.Codec) { c.Decode = nil }, "its Decode or Encode is nil"},
		"no Encode":               {func(c *httpedge.Codec) { c.Encode = nil }, "its Decode or Encode is nil"},
		"a name that is none":     {func(c *httpedge.Codec) { c.Also = []string{"xml"} }, `Also holds "xml"`},
		"a name in capitals":      {func(c *httpedge.Codec) { c.Also = []string{"+XML"} }, `Also holds "+XML"`},
		"a name with a parameter": {func(c *httpedge.Codec) { c.Also = []string{"text/kv; charset=utf-8"} }, "Also holds"},
		"an ending of nothing":    {func(c *httpedge.Codec) { c.Also = []string{"+"} }, `Also holds "+"`},
		"a form's name":           {func(c *httpedge.Codec) { c.MediaType = "text/plain" }, "a plain form of any other site can send that"},
		"a form's name besides":   {func(c *httpedge.Codec) { c.Also = []string{"application/x-www-form-urlencoded"} }, "a plain form of any other site can send that"},
		"the name of another":     {func(c *httpedge.Codec) { c.MediaType = "application/json" }, `another one before it is called "application/json"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			codec := kv()
			tt.change(&codec)
			e, err := httpedge.New(httpedge.Config{Anonymous: true, Codecs: []httpedge.Codec{httpedge.JSON(), codec}})
			if e != nil || err == nil {
				t.Fatalf("got %v, %v", e, err)
			}
			if !strings.HasPrefix(err.Error(), "httpedge: Config.Codecs[1]: ") || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("the error %q does not hold %q", err, tt.want)
			}
		})
	}
}

func TestEveryFormatIsAskedWhetherItCanReadACommand(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	codec := kv()
	codec.Check = func(typ reflect.Type) error {
		asked.Add(1)
		if typ == reflect.TypeFor[place]() {
			return errors.New("kv: no places")
		}
		return nil
	}
	g := newRig(t, setup{config: httpedge.Config{Codecs: []httpedge.Codec{httpedge.JSON(), codec}}})
	for _, mount := range []func() (http.Handler, error){
		func() (http.Handler, error) { return httpedge.Command(g.edge, g.bus, "POST /v1/orders", created) },
		func() (http.Handler, error) { return httpedge.Check(g.edge, g.bus, "POST /v1/orders/test", created) },
	} {
		if h, err := mount(); h != nil || err == nil || !strings.Contains(err.Error(), "kv: no places") {
			t.Errorf("got %v, %v", h, err)
		}
	}
	route(g, "POST /v1/touch", httpedge.Options[touch, placed]{})
	same(t, "times asked", asked.Load(), 3)
	if _, err := httpedge.Command(g.edge, g.bus, "POST /v1/orders", httpedge.Options[place, placed]{EmptyBody: true}); err != nil {
		t.Errorf("a route that reads no body: %v", err)
	}
	same(t, "times asked", asked.Load(), 3)
}

func TestTheFormatsAreCopied(t *testing.T) {
	t.Parallel()
	codecs := formats()
	g := newRig(t, setup{config: httpedge.Config{Codecs: codecs}}).orders()
	codecs[0].Encode = nil
	g.post(k1).ok(201, "false")
}

func TestF25_RawBodiesThatDifferReplayAndTheirHashesShowIt(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{config: httpedge.Config{Codecs: formats(), HashBodies: true}}).orders()
	g.post(k1).ok(201, "false")
	g.do("POST", "/v1/orders", kvBody, k1, asKV).ok(201, "true")
	g.do("POST", "/v1/orders", `{"amount": 4990, "cart_id": "c-1"}`, k1).ok(201, "true")
	g.post(k1).ok(201, "true")
	g.want(1, 1, 1)
	var sums []string
	for _, end := range g.seen.all() {
		sum := end.request.BodySHA256()
		same(t, "attributes", end.request.Attributes(), []requestctx.Attribute{{Name: "raw_body_sha256", Value: sum}})
		sums = append(sums, sum)
	}
	same(t, "how many there are", len(sums), 4)
	same(t, "the hash", sums[0], "86a784c05e65807c52e4901e826242e574d52aa56bb43f9eb3f694e35874b9a4") // as sha256sum has it
	same(t, "the same bytes", sums[3], sums[0])
	if sums[0] == sums[1] || sums[0] == sums[2] || sums[1] == sums[2] {
		t.Errorf("bodies that differ have one hash: %v", sums)
	}

	plain := newRig(t, setup{}).orders()
	plain.post(k1).ok(201, "false")
	end := plain.seen.all()[0].request
	same(t, "without HashBodies", fmt.Sprint(end.BodySHA256(), end.Attributes()), "[]")
}
