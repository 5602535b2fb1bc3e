package main

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/tekil-go/tekil/behaviors/validation"
	"github.com/tekil-go/tekil/requestctx"
	"github.com/tekil-go/tekil/requestctx/httpedge"
)

// pageElement is an element of the contract page.
type pageElement struct {
	name     string
	attrs    map[string]string
	text     string // with that of the elements in it
	children []*pageElement
}

// page reads index.html, which is written so that every element is closed but those that never are.
func page(t *testing.T) *pageElement {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(string(contractPage)))
	d.Strict, d.Entity, d.AutoClose = false, xml.HTMLEntity, append(slices.Clone(xml.HTMLAutoClose), "wbr")
	open := []*pageElement{{}}
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		last := open[len(open)-1]
		switch token := token.(type) {
		case xml.StartElement:
			e := &pageElement{name: token.Name.Local, attrs: map[string]string{}}
			for _, a := range token.Attr {
				e.attrs[a.Name.Local] = a.Value
			}
			last.children = append(last.children, e)
			open = append(open, e)
		case xml.EndElement:
			open = open[:len(open)-1]
		case xml.CharData:
			for _, e := range open {
				e.text += string(token)
			}
		}
	}
	return open[0]
}

// all gives the elements of a name, and all of them where it is empty.
func (e *pageElement) all(name string) (found []*pageElement) {
	for _, c := range e.children {
		if name == "" || c.name == name {
			found = append(found, c)
		}
		found = append(found, c.all(name)...)
	}
	return found
}

// rows gives the texts in the body of the table of a class.
func (e *pageElement) rows(t *testing.T, class string) (rows [][]string) {
	t.Helper()
	for _, table := range e.all("table") {
		if table.attrs["class"] != class {
			continue
		}
		for _, row := range table.all("tbody")[0].all("tr") {
			var texts []string
			for _, cell := range row.children {
				texts = append(texts, cell.text)
			}
			rows = append(rows, texts)
		}
	}
	if len(rows) == 0 {
		t.Fatalf("there is no table of the class %s", class)
	}
	return rows
}

func TestTheContractPageLoadsNothingAndItsPolicyAllowsItsStyle(t *testing.T) {
	t.Parallel()
	w := httptest.NewRecorder()
	document("text/html; charset=utf-8", contractPage).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	styles := page(t).all("style")
	if len(styles) != 1 {
		t.Fatalf("there are %d styles", len(styles))
	}
	sum := sha256.Sum256([]byte(styles[0].text))
	want := "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
	if got := w.Header().Get("Content-Security-Policy"); got != want {
		t.Errorf("the policy is %s, want %s", got, want)
	}
	for _, e := range page(t).all("") {
		if slices.Contains([]string{"script", "link", "img", "iframe", "object", "form", "base"}, e.name) {
			t.Errorf("the page has a <%s>", e.name)
		}
		for name, value := range e.attrs {
			if name == "style" || name == "src" || strings.HasPrefix(name, "on") || name == "href" && !strings.HasPrefix(value, "/") && !strings.HasPrefix(value, "#") {
				t.Errorf("<%s> has %s=%q", e.name, name, value)
			}
		}
	}
	if regexp.MustCompile(`url\(|@import|https?:`).Match(contractPage) {
		t.Error("the page names something elsewhere")
	}
	// The description has no style.
	w = httptest.NewRecorder()
	document("application/yaml", openAPI).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/openapi.yaml", nil))
	if got := w.Header().Get("Content-Security-Policy"); strings.Contains(got, "style-src") {
		t.Errorf("the policy is %s", got)
	}
}

func TestTheContractPageCanBeRead(t *testing.T) {
	t.Parallel()
	p, ids, references := page(t), map[string]bool{}, []string{}
	if p.all("html")[0].attrs["lang"] != "en" || len(p.all("title")) != 1 || len(p.all("h1")) != 1 || len(p.all("main")) != 1 {
		t.Error("it lacks a language, a title, one heading or a main part")
	}
	for _, e := range p.all("") {
		if id, ok := e.attrs["id"]; ok {
			if ids[id] {
				t.Errorf("the id %s is there twice", id)
			}
			ids[id] = true
		}
		if target, ok := strings.CutPrefix(e.attrs["href"], "#"); ok {
			references = append(references, target)
		}
		if label, ok := e.attrs["aria-labelledby"]; ok {
			references = append(references, label)
		}
		if scope := e.attrs["scope"]; e.name == "th" && scope != "col" && scope != "row" {
			t.Errorf("the heading %q has no scope", e.text)
		}
		if e.name == "table" && (len(e.children) < 2 || e.children[0].name != "caption" || e.children[0].text == "") {
			t.Error("a table has no caption")
		}
	}
	for _, name := range references {
		if !ids[name] {
			t.Errorf("there is no %s", name)
		}
	}
	for _, want := range []string{`<a href="/openapi.yaml">`, "POST " + importPath + "<", "POST " + testPath + "<", "GET /api/v1/work-orders?"} {
		if !strings.Contains(string(contractPage), want) {
			t.Errorf("it does not say %s", want)
		}
	}
}

// The tables of codes and headers are those of the description, and data.retry is what the answers of the table of openapi_test.go say.
func TestTheContractPageHasTheCodesAndHeadersOfTheDescription(t *testing.T) {
	t.Parallel()
	p, post := page(t), openapiRead(t).Paths.Value(importPath).Post
	described, headers := map[string]bool{}, map[string]bool{"request Content-Type": true, "request Accept": true, "request Authorization": true}
	for status, r := range post.Responses.Map() {
		if status == "405" {
			continue // it stands below the table
		}
		for _, code := range openapiCodes(r) {
			described[status+" "+code] = true
		}
		for name := range r.Value.Headers {
			headers["answer "+name] = true
		}
	}
	for _, parameter := range post.Parameters {
		headers["request "+parameter.Value.Name] = true
	}
	answered := map[string]bool{}
	for _, c := range openapiTable(t, openapiServers{}) {
		if c.path == importPath {
			answered[fmt.Sprint(c.status, " ", c.code, " ", c.retry)] = true
		}
	}
	codes := map[string]bool{}
	for _, row := range p.rows(t, "codes") {
		if at := row[0] + " " + row[1] + " " + strings.Trim(row[2], "–"); !answered[at] {
			t.Errorf("no answer is %s", at)
		}
		codes[row[0]+" "+row[1]] = true
	}
	if got, want := slices.Sorted(maps.Keys(codes)), slices.Sorted(maps.Keys(described)); !slices.Equal(got, want) {
		t.Errorf("the page has the codes\n%q, the description\n%q", got, want)
	}
	named := map[string]bool{}
	for _, row := range p.rows(t, "headers") {
		named[row[0]+" "+row[1]] = true
	}
	if got, want := slices.Sorted(maps.Keys(named)), slices.Sorted(maps.Keys(headers)); !slices.Equal(got, want) {
		t.Errorf("the page has the headers\n%q, the description\n%q", got, want)
	}
}

// pageBound is a bound that a tag of a field gives.
func pageBound(t *testing.T, in any, field, rule string) string {
	t.Helper()
	f, _ := reflect.TypeOf(in).FieldByName(field)
	for r := range strings.SplitSeq(f.Tag.Get("validate"), ",") {
		if bound, ok := strings.CutPrefix(r, rule+"="); ok {
			return bound
		}
	}
	t.Fatalf("%T.%s has no %s", in, field, rule)
	return ""
}

func TestTheContractPageHasTheBoundsAndSwitchesOfTheProgram(t *testing.T) {
	t.Parallel()
	p := page(t)
	between := func(in any, field, least, most string) string {
		return pageBound(t, in, field, least) + " to " + pageBound(t, in, field, most)
	}
	limits := [][]string{
		{"key", fmt.Sprintf("%d to %d characters of A-Z a-z 0-9 . _ : -", requestctx.MinKeyLength, requestctx.MaxKeyLength)},
		{"body", fmt.Sprintf("%d bytes (%d MiB)", bodyLimit, bodyLimit>>20)},
		{"projects of a request", between(Import{}, "Projects", "min", "max")},
		{"work orders of a project", between(Project{}, "WorkOrders", "min", "max")},
		{"lines of a work order", between(WorkOrder{}, "Lines", "min", "max")},
		{"lines of a request", strconv.Itoa(maxLines)},
		{"codes and numbers", "1 to " + pageBound(t, Line{}, "ItemCode", "max") + " visible ASCII characters"},
		{"descriptions", pageBound(t, Line{}, "Description", "max") + " characters"},
		{"unit", "1 to " + pageBound(t, Line{}, "Unit", "max") + " characters"},
		{"line number", between(Line{}, "LineNumber", "gte", "lte")},
		{"quantity", fmt.Sprintf("above %s; %d digits before the point and %d after it", pageBound(t, Line{}, "Quantity", "gt"), wholeDigits, fractionDigits)},
		{"errors in an answer", strconv.Itoa(validation.MaxFields)},
		{"work orders on a page of the list", between(ListWorkOrders{}, "Limit", "gte", "lte")},
	}
	if got := p.rows(t, "limits"); !reflect.DeepEqual(got, limits) {
		t.Errorf("the limits are %q\nwant %q", got, limits)
	}
	var switches [][]string
	for _, row := range p.rows(t, "switches") {
		switches = append(switches, row[:3])
	}
	want := [][]string{
		{envEnabled, "true", "true or false"}, {envRequired, "true", "true or false"},
		{envLease, fmt.Sprint(defaultLease.Seconds()), fmt.Sprintf("%d to %d", minLease, maxLease)},
		{envRetention, fmt.Sprint(defaultRetention.Hours()), fmt.Sprintf("%d to %d", minRetention, maxRetention)},
	}
	if !reflect.DeepEqual(switches, want) {
		t.Errorf("the switches are %q\nwant %q", switches, want)
	}
}

func TestTheSamplesOfTheContractPageAreOneImport_F02(t *testing.T) {
	t.Parallel()
	samples := map[string]Import{}
	for _, e := range page(t).all("code") {
		codec := map[string]httpedge.Codec{"json": httpedge.JSON(), "xml": httpedge.XML()}[e.attrs["class"]]
		if codec.Decode == nil {
			continue
		}
		var cmd Import
		if err := errors.Join(codec.Decode([]byte(e.text), &cmd), cmd.Validate()); err != nil {
			t.Errorf("%s: %v", e.attrs["class"], err)
		}
		samples[e.attrs["class"]] = cmd
	}
	if len(samples) != 2 || !reflect.DeepEqual(samples["json"], samples["xml"]) {
		t.Errorf("they are %+v", samples)
	}
}
