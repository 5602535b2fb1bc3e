package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"go.uber.org/zap"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/validation"
	"github.com/tekil-go/tekil/requestctx"
)

// openapiDocument is the description as the validator has read it.
type openapiDocument struct{ *openapi3.T }

// openapiRead reads openapi.yaml, and says how bodies are read: by the functions here, and as texts where they are no envelopes.
func openapiRead(t *testing.T) openapiDocument {
	t.Helper()
	document, err := openapi3.NewLoader().LoadFromData(openAPI)
	if err != nil {
		t.Fatal(err)
	}
	openapi3filter.RegisterBodyDecoder("application/xml", openapiXML)
	openapi3filter.RegisterBodyDecoder("application/json", openapiJSON)
	openapi3filter.RegisterBodyDecoder("application/yaml", openapi3filter.PlainBodyDecoder)
	openapi3filter.RegisterBodyDecoder("text/html", openapi3filter.PlainBodyDecoder)
	return openapiDocument{document}
}

// openapiXML reads a body by what the xml objects of its schema say about it. The validator has no reader of XML.
func openapiXML(body io.Reader, _ http.Header, schema *openapi3.SchemaRef, _ openapi3filter.EncodingFn) (any, error) {
	var root xmlNode
	if err := xml.NewDecoder(body).Decode(&root); err != nil {
		return nil, err
	}
	schemas := openapiFlat(schema)
	if name := openapiXMLName(schemas, ""); root.XMLName.Local != name {
		return nil, fmt.Errorf("the root is %s and not %s", root.XMLName.Local, name)
	}
	return openapiValue(root, schemas)
}

// openapiJSON reads a body and refuses members that its schema does not name. The schemas of answers allow them, and the validator has
// no mode that refuses them nevertheless.
func openapiJSON(body io.Reader, _ http.Header, schema *openapi3.SchemaRef, _ openapi3filter.EncodingFn) (value any, err error) {
	data, err := io.ReadAll(body)
	if err == nil {
		err = json.Unmarshal(data, &value)
	}
	if err == nil {
		err = openapiKnown(value, openapiFlat(schema))
	}
	return value, err
}

func openapiKnown(value any, schemas []*openapi3.Schema) error {
	switch value := value.(type) {
	case map[string]any:
		properties := openapiProperties(schemas)
		for name, member := range value {
			if properties[name] == nil {
				return fmt.Errorf("the member %s is not described", name)
			}
			if err := openapiKnown(member, properties[name]); err != nil {
				return err
			}
		}
	case []any:
		for _, s := range schemas {
			for i := 0; s.Items != nil && i < len(value); i++ {
				if err := openapiKnown(value[i], openapiFlat(s.Items)); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// openapiFlat gives a schema and all that are in its allOf. What one of them says holds.
func openapiFlat(s *openapi3.SchemaRef) []*openapi3.Schema {
	all := []*openapi3.Schema{s.Value}
	for _, part := range s.Value.AllOf {
		all = append(all, openapiFlat(part)...)
	}
	return all
}

// openapiProperties gives what the schemas say about each of their properties.
func openapiProperties(schemas []*openapi3.Schema) map[string][]*openapi3.Schema {
	properties := map[string][]*openapi3.Schema{}
	for _, s := range schemas {
		for name, p := range s.Properties {
			properties[name] = append(properties[name], openapiFlat(p)...)
		}
	}
	return properties
}

// openapiXMLName is the name of the element that the schemas are about.
func openapiXMLName(schemas []*openapi3.Schema, other string) string {
	for _, s := range schemas {
		if s.XML != nil && s.XML.Name != "" {
			return s.XML.Name
		}
	}
	return other
}

// openapiEnum gives the values that the schemas allow.
func openapiEnum(schemas []*openapi3.Schema) (values []string) {
	for _, s := range schemas {
		for _, value := range s.Enum {
			values = append(values, fmt.Sprint(value))
		}
	}
	return values
}

func openapiValue(x xmlNode, schemas []*openapi3.Schema) (any, error) {
	var types []string
	var items *openapi3.SchemaRef
	wrapped := false
	for _, s := range schemas {
		types = append(types, s.Type.Slice()...)
		if s.Items != nil {
			items = s.Items
			wrapped = wrapped || s.XML != nil && s.XML.Wrapped
		}
	}
	switch {
	case slices.Contains(types, "object"):
		object, properties := map[string]any{}, openapiProperties(schemas)
		for _, child := range x.Inner {
			name := child.XMLName.Local
			for property, s := range properties {
				if openapiXMLName(s, property) == child.XMLName.Local {
					name = property
				}
			}
			if _, twice := object[name]; twice || properties[name] == nil {
				return nil, fmt.Errorf("<%s> is there twice or is not described", child.XMLName.Local)
			}
			var err error
			if object[name], err = openapiValue(child, properties[name]); err != nil {
				return nil, err
			}
		}
		return object, nil
	case items != nil:
		list, s := []any{}, openapiFlat(items)
		if !wrapped {
			return nil, fmt.Errorf("the list <%s> is not described as wrapped", x.XMLName.Local)
		}
		for _, child := range x.Inner {
			if name := openapiXMLName(s, ""); child.XMLName.Local != name {
				return nil, fmt.Errorf("in the list <%s> stands <%s> and not <%s>", x.XMLName.Local, child.XMLName.Local, name)
			}
			item, err := openapiValue(child, s)
			if err != nil {
				return nil, err
			}
			list = append(list, item)
		}
		return list, nil
	case len(x.Inner) > 0:
		return nil, fmt.Errorf("<%s> holds elements", x.XMLName.Local)
	case slices.Contains(types, "integer"), slices.Contains(types, "number"), slices.Contains(types, "boolean"):
		var value any
		if err := json.Unmarshal([]byte(x.Text), &value); err == nil {
			return value, nil
		}
	}
	return x.Text, nil
}

// openapiOperation is an operation of the document.
type openapiOperation struct {
	*openapi3.Operation
	method, path string
}

// each gives all operations.
func (d openapiDocument) each(f func(openapiOperation)) {
	for path, item := range d.Paths.Map() {
		for method, operation := range item.Operations() {
			f(openapiOperation{operation, method, path})
		}
	}
}

// openapiCodes gives the codes that an answer may hold: one that is empty where the answer is no envelope.
func openapiCodes(r *openapi3.ResponseRef) []string {
	if media := r.Value.Content["application/json"]; media != nil {
		if codes := openapiEnum(openapiProperties(openapiFlat(media.Schema))["code"]); len(codes) > 0 {
			return codes
		}
	}
	return []string{""}
}

// openapiFaulty is a store that fails where the request names a fault: as the code of a project, or as the limit of a list.
type openapiFaulty struct {
	store
	away bool            // the database does not answer
	hold <-chan struct{} // until it is closed, no business transaction begins
}

// openapiFaults are what a handler may run into. All of them come from the outside: from the database, or from what the pipeline does
// around the handler.
var openapiFaults = map[string]error{
	"INTERNAL":                      errors.New("a fault"),
	"DEADLINE_EXCEEDED":             context.DeadlineExceeded,
	"CANCELED":                      context.Canceled,
	"IDEMPOTENCY_RETRIES_EXHAUSTED": &idempotency.RetriesError{},
	"IDEMPOTENCY_LEASE_LOST":        &idempotency.LeaseLostError{},
	"IDEMPOTENCY_OUTCOME_UNKNOWN":   &idempotency.OutcomeUnknownError{},
}

// openapiLimits say the faults of a list.
var openapiLimits = map[int]string{91: "INTERNAL", 92: "DEADLINE_EXCEEDED", 93: "CANCELED"}

func (s openapiFaulty) projects(ctx context.Context, organizationID int64, codes []string) (map[string]project, error) {
	if err := openapiFaults[codes[0]]; err != nil {
		return nil, err
	}
	return s.store.projects(ctx, organizationID, codes)
}

func (s openapiFaulty) inTx(ctx context.Context, fn func(ctx context.Context) error) error {
	if s.hold != nil {
		<-s.hold
	}
	return s.store.inTx(ctx, fn)
}

func (s openapiFaulty) list(ctx context.Context, organizationID int64, limit int, before int64) ([]StoredWorkOrder, error) {
	if err := openapiFaults[openapiLimits[limit-1]]; err != nil { // a page asks for one more than it shows
		return nil, err
	}
	return s.store.list(ctx, organizationID, limit, before)
}

func (s openapiFaulty) ping(ctx context.Context) error {
	if s.away {
		return errors.New("away")
	}
	return s.store.ping(ctx)
}

// openapiServers are the service with its switches in several positions, on one database, each on a socket of its own.
type openapiServers struct {
	*database
	on, off, optional, closed, away, held string
	release                               func() // lets go what is held
}

const openapiToken = "a-token-of-the-erp"

func openapiServe(t *testing.T) openapiServers {
	t.Helper()
	d := sqliteDatabase(t)
	kept, records := d.open(t)
	serve := func(f openapiFaulty, s settings) string {
		f.store = kept
		handler, err := newServer(f, records, zap.NewNop(), s)
		if err != nil {
			t.Fatal(err)
		}
		server := httptest.NewServer(handler)
		t.Cleanup(server.Close)
		return server.URL
	}
	off, optional, closed := defaults, defaults, defaults
	off.enabled, optional.required = false, false
	closed.clients = tokens{{"erp", sha256.Sum256([]byte(openapiToken))}}
	hold, plain := make(chan struct{}), openapiFaulty{}
	servers := openapiServers{
		database: d, on: serve(plain, defaults), off: serve(plain, off), optional: serve(plain, optional), closed: serve(plain, closed),
		away: serve(openapiFaulty{away: true}, defaults), held: serve(openapiFaulty{hold: hold}, defaults),
		release: sync.OnceFunc(func() { close(hold) }),
	}
	t.Cleanup(servers.release) // before the servers wait for what they serve
	return servers
}

// openapiCase is a request and what it has to be answered with.
type openapiCase struct {
	name, base   string
	method, path string
	lines        []string // of the head
	body         string
	status       int
	code, retry  string
	wrong        bool   // the request is not as the description has it
	prepare      string // SQL
}

const (
	openapiAsJSON  = "Content-Type: application/json"
	openapiAsXML   = "Content-Type: application/xml"
	openapiWantXML = "Accept: application/xml"
	openapiHTML    = "Accept: text/html"
	openapiBearer  = "Authorization: Bearer "
	openapiList    = "/api/v1/work-orders?company_code=TEKIL-TR&organization_code=IST-01"
)

func openapiKey(key string) string { return "Idempotency-Key: " + key }

// openapiTable is a request for every status and code that the document says, and some more.
func openapiTable(t *testing.T, s openapiServers) []openapiCase {
	t.Helper()
	sampleJSON, sampleXML := openapiFile(t, "testdata/sample.json"), openapiFile(t, "testdata/sample.xml")
	of := func(project, number string) string { return asJSON(small(project, number)) }
	partly := asJSON(joined(small("PRJ-1001", "WO-P"), small("PRJ-1003", "WO-Q")))
	tooLarge := `{"company_code":"` + strings.Repeat("A", bodyLimit) + `"}`
	const same, other, none = "same-key", "new-key", "none"
	record := func(set, key string) string {
		return `UPDATE idempotency_records SET ` + set + ` WHERE key = '` + key + `'`
	}
	live := func(base, key, body string, status int, code, retry string, more ...string) openapiCase {
		lines := append([]string{openapiAsJSON}, more...)
		if key != "" {
			lines = append(lines, openapiKey(key))
		}
		return openapiCase{name: code, base: base, method: "POST", path: importPath, lines: lines, body: body, status: status, code: code, retry: retry}
	}
	test := func(body string, status int, code, retry string, lines ...string) openapiCase {
		return openapiCase{name: "test " + code, base: s.on, method: "POST", path: testPath, lines: append([]string{openapiAsJSON}, lines...),
			body: body, status: status, code: code, retry: retry}
	}
	get := func(base, path string, status int, code, retry string, lines ...string) openapiCase {
		return openapiCase{name: path + " " + code, base: base, method: "GET", path: path, lines: lines, status: status, code: code, retry: retry}
	}
	wrong := func(c openapiCase) openapiCase { c.wrong = true; return c }
	asXML := func(c openapiCase) openapiCase { c.lines[0] = openapiAsXML; return c }
	after := func(prepare string, c openapiCase) openapiCase { c.prepare = prepare; return c }
	typed := func(contentType string, c openapiCase) openapiCase { c.lines[0] = contentType; return c }

	cases := []openapiCase{
		live(s.on, "import-0001", sampleJSON, 200, "WORK_ORDERS_PROCESSED", ""),
		live(s.on, "import-0001", sampleJSON, 200, "WORK_ORDERS_PROCESSED", ""),
		asXML(live(s.on, "import-0001", sampleXML, 200, "WORK_ORDERS_PROCESSED", "")),
		live(s.on, "import-0001", sampleJSON, 200, "WORK_ORDERS_PROCESSED", "", openapiWantXML),
		live(s.on, "import-0002", partly, 200, "WORK_ORDERS_PARTLY_PROCESSED", ""),
		asXML(live(s.on, "import-0003", sampleXML, 200, "WORK_ORDERS_PROCESSED", "")),
		wrong(live(s.on, `"import-0001"`, sampleJSON, 200, "WORK_ORDERS_PROCESSED", "")), // it is taken, and not described as a thing to send
		live(s.closed, "import-0001", sampleJSON, 200, "WORK_ORDERS_PROCESSED", "", openapiBearer+openapiToken),
		live(s.off, "import-0001", sampleJSON, 200, "WORK_ORDERS_PROCESSED", ""),
		wrong(live(s.optional, "", sampleJSON, 200, "WORK_ORDERS_PROCESSED", "")),

		wrong(live(s.on, "import-0004", `{}`, 400, "VALIDATION_FAILED", same)),
		wrong(asXML(live(s.on, "import-0004", `<work_orders/>`, 400, "VALIDATION_FAILED", same))),
		live(s.on, "import-0004", strings.Replace(of("PRJ-1001", "WO-1"), "TEKIL-TR", "NOBODY", 1), 400, "VALIDATION_FAILED", same),
		wrong(live(s.on, "import-0004", `{"colour":1}`, 400, "MALFORMED_REQUEST", same)),
		wrong(asXML(live(s.on, "import-0004", `<work_orders`, 400, "MALFORMED_REQUEST", same))),
		wrong(live(s.on, "", sampleJSON, 400, "IDEMPOTENCY_KEY_MISSING", other)),
		wrong(live(s.on, "", sampleJSON, 400, "IDEMPOTENCY_KEY_MISSING", other, openapiWantXML)),
		wrong(live(s.on, "short", sampleJSON, 400, "IDEMPOTENCY_KEY_INVALID", other)),
		wrong(live(s.on, "with/slash", sampleJSON, 400, "IDEMPOTENCY_KEY_INVALID", other)),
		live(s.closed, "import-0001", sampleJSON, 401, "UNAUTHENTICATED", same),
		asXML(live(s.closed, "import-0001", sampleXML, 401, "UNAUTHENTICATED", same, openapiBearer+"another")),
		live(s.on, "import-0001", sampleJSON, 406, "NOT_ACCEPTABLE", same, openapiHTML),
		wrong(live(s.on, "import-0005", tooLarge, 413, "BODY_TOO_LARGE", same)),
		wrong(typed("Content-Type: text/csv", live(s.on, "import-0005", "a;b", 415, "UNSUPPORTED_MEDIA_TYPE", same))),

		live(s.on, "import-wait", of("PRJ-1001", "WO-W"), 409, "IDEMPOTENCY_REQUEST_IN_PROGRESS", same),
		asXML(live(s.on, "import-wait", string(openapiXMLOf(t, of("PRJ-1001", "WO-W"))), 409, "IDEMPOTENCY_REQUEST_IN_PROGRESS", same)),
		live(s.on, "import-0001", of("PRJ-1001", "WO-1"), 409, "IDEMPOTENCY_KEY_CONFLICT", none),
		live(s.on, "import-0006", of("PRJ-1003", "WO-1"), 409, "NO_PROJECT_PROCESSED", none),
		live(s.on, "import-0006", of("PRJ-1003", "WO-1"), 409, "NO_PROJECT_PROCESSED", none, openapiWantXML),
		live(s.off, "import-0006", of("PRJ-1003", "WO-1"), 409, "NO_PROJECT_PROCESSED", none),

		after(record(`result = NULL, result_type = 'omitted'`, "import-0002"), live(s.on, "import-0002", partly, 410, "IDEMPOTENCY_RESULT_UNAVAILABLE", none)),
		after(record(`result = NULL, result_type = 'tombstone'`, "import-0002"), live(s.on, "import-0002", partly, 410, "IDEMPOTENCY_KEY_EXPIRED", other)),
		live(s.on, "import-0007", of("INTERNAL", "WO-1"), 500, "INTERNAL", same),
		after(record(`attempts = 11`, "import-0007"), live(s.on, "import-0007", of("INTERNAL", "WO-1"), 500, "IDEMPOTENCY_ATTEMPTS_EXHAUSTED", none)),
		live(s.off, "import-0008", of("INTERNAL", "WO-1"), 500, "INTERNAL", none),
		live(s.off, "import-0008", of("DEADLINE_EXCEEDED", "WO-1"), 500, "DEADLINE_EXCEEDED", none),
		live(s.off, "import-0008", of("CANCELED", "WO-1"), 500, "CANCELED", none),
		after(record(`result = x'7b'`, "import-0003"), asXML(live(s.on, "import-0003", sampleXML, 500, "IDEMPOTENCY_RESULT_UNDECODABLE", same))),
		after(record(`client = 'another'`, "import-0003"), live(s.on, "import-0003", sampleJSON, 500, "IDEMPOTENCY_RECORD_MISMATCH", none)),
		live(s.on, "import-0009", of("DEADLINE_EXCEEDED", "WO-1"), 503, "DEADLINE_EXCEEDED", same),
		live(s.on, "import-0010", of("CANCELED", "WO-1"), 503, "CANCELED", same),
		live(s.on, "import-0011", of("IDEMPOTENCY_RETRIES_EXHAUSTED", "WO-1"), 503, "IDEMPOTENCY_RETRIES_EXHAUSTED", same),
		live(s.on, "import-0012", of("IDEMPOTENCY_LEASE_LOST", "WO-1"), 503, "IDEMPOTENCY_LEASE_LOST", same),
		live(s.on, "import-0013", of("IDEMPOTENCY_OUTCOME_UNKNOWN", "WO-1"), 503, "IDEMPOTENCY_OUTCOME_UNKNOWN", same),

		test(sampleJSON, 200, "WORK_ORDERS_WOULD_BE_PROCESSED", ""),
		asXML(test(sampleXML, 200, "WORK_ORDERS_WOULD_BE_PROCESSED", "")),
		test(asJSON(small("PRJ-1002", "WO-NEW")), 200, "WORK_ORDERS_WOULD_BE_PROCESSED", ""),
		test(partly, 200, "WORK_ORDERS_WOULD_BE_PARTLY_PROCESSED", ""),
		test(of("PRJ-9999", "WO-1"), 200, "NO_PROJECT_WOULD_BE_PROCESSED", ""),
		wrong(test(`{}`, 400, "VALIDATION_FAILED", same)),
		wrong(test(`[`, 400, "MALFORMED_REQUEST", same, openapiWantXML)),
		test(sampleJSON, 406, "NOT_ACCEPTABLE", same, openapiHTML),
		wrong(test(tooLarge, 413, "BODY_TOO_LARGE", same)),
		wrong(typed("Content-Type: application/json; charset=latin1", test("{}", 415, "UNSUPPORTED_MEDIA_TYPE", same))),
		test(of("INTERNAL", "WO-1"), 500, "INTERNAL", same),
		test(of("DEADLINE_EXCEEDED", "WO-1"), 503, "DEADLINE_EXCEEDED", same),
		test(of("CANCELED", "WO-1"), 503, "CANCELED", same),

		get(s.on, openapiList, 200, "OK", ""),
		get(s.on, openapiList+"&limit=1", 200, "OK", "", openapiWantXML),
		get(s.on, strings.Replace(openapiList, "IST-01", "ANK-01", 1)+"&before=1", 200, "OK", ""),
		get(s.closed, openapiList, 200, "OK", "", openapiBearer+openapiToken),
		wrong(get(s.on, openapiList+"&limit=0", 400, "VALIDATION_FAILED", same)),
		get(s.on, strings.Replace(openapiList, "IST-01", "NIX", 1), 400, "VALIDATION_FAILED", same, openapiWantXML),
		get(s.closed, openapiList, 401, "UNAUTHENTICATED", same),
		get(s.on, openapiList, 406, "NOT_ACCEPTABLE", same, openapiHTML),
		get(s.on, "/healthz", 200, "", ""),
		get(s.away, "/healthz", 503, "", ""),
		get(s.on, "/openapi.yaml", 200, "", ""),
		get(s.on, "/", 200, "", ""),
	}
	for limit, code := range openapiLimits {
		status := 503
		if code == "INTERNAL" {
			status = 500
		}
		cases = append(cases, get(s.on, openapiList+"&limit="+strconv.Itoa(limit), status, code, same))
	}
	for _, path := range []string{importPath, testPath, "/api/v1/work-orders", "/healthz", "/openapi.yaml", "/"} {
		c := openapiCase{name: "DELETE " + path, base: s.on, method: "DELETE", path: path, status: 405, wrong: true}
		if strings.HasPrefix(path, "/api/") {
			c.code, c.retry = "METHOD_NOT_ALLOWED", none
		}
		cases = append(cases, c)
	}
	return append(cases, // the last, because nothing works behind it
		after(`ALTER TABLE idempotency_records RENAME TO gone`, live(s.on, "import-0014", sampleJSON, 503, "IDEMPOTENCY_STORE_UNAVAILABLE", same)))
}

func openapiFile(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// openapiUnheld are headers of HTTP itself, which the document need not say.
var openapiUnheld = []string{"Content-Type", "Content-Length", "Date", "Connection"}

// input makes the request that the validator is to judge.
func (d openapiDocument) input(o openapiOperation, c openapiCase) *openapi3filter.RequestValidationInput {
	r := httptest.NewRequest(c.method, c.base+c.path, strings.NewReader(c.body))
	for _, line := range c.lines {
		name, value, _ := strings.Cut(line, ": ")
		r.Header.Add(name, value)
	}
	return &openapi3filter.RequestValidationInput{
		Request: r,
		Route:   &routers.Route{Spec: d.T, Path: o.path, PathItem: d.Paths.Value(o.path), Method: o.method, Operation: o.Operation},
		Options: &openapi3filter.Options{
			IncludeResponseStatus: true, RejectWhenRequestBodyNotSpecified: true, SkipSettingDefaults: true, AuthenticationFunc: openapiBears,
		},
	}
}

// openapiBears asks for what the document's only security scheme says, where an operation does not do without.
func openapiBears(_ context.Context, in *openapi3filter.AuthenticationInput) error {
	if !strings.HasPrefix(in.RequestValidationInput.Request.Header.Get("Authorization"), "Bearer ") {
		return in.NewError(errors.New("there is no token"))
	}
	return nil
}

// takes says why a request is not as the document has it.
func (d openapiDocument) takes(o openapiOperation, c openapiCase) error {
	if c.method != o.method {
		return fmt.Errorf("%s has no method %s", o.path, c.method)
	}
	return openapi3filter.ValidateRequest(context.Background(), d.input(o, c))
}

// gives says why an answer is not as the document has it. The validator looks at the headers that are described, and at the first
// value of each. It does not judge the statuses of redirections, which the document may not have therefore.
func (d openapiDocument) gives(o openapiOperation, c openapiCase, status int, header http.Header, body string) error {
	described := o.Responses.Value(strconv.Itoa(status))
	if described == nil || status/100 == 3 {
		return fmt.Errorf("the status %d is not described", status)
	}
	for name, values := range header {
		known := slices.Contains(openapiUnheld, name)
		for declared := range described.Value.Headers {
			known = known || strings.EqualFold(name, declared)
		}
		if !known {
			return fmt.Errorf("the header %s is not described", name)
		}
		if len(values) != 1 {
			return fmt.Errorf("the header %s is there %d times", name, len(values))
		}
	}
	in := d.input(o, c)
	return openapi3filter.ValidateResponse(context.Background(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: in, Status: status, Header: header, Body: io.NopCloser(strings.NewReader(body)), Options: in.Options,
	})
}

// Every answer of the table is as the document says, and the table gets every status, code and header that the document says.
func TestTheDescriptionIsWhatTheServerDoes(t *testing.T) {
	t.Parallel()
	doc, servers := openapiRead(t), openapiServe(t)
	ctx := within(t)
	var waiting sync.WaitGroup
	t.Cleanup(func() {
		servers.release()
		waiting.Wait()
	})
	held := request{http.MethodPost, importPath, []string{openapiAsJSON, openapiKey("import-wait")}, asJSON(small("PRJ-1001", "WO-W"))}
	waiting.Go(func() { _, _ = exchange(ctx, servers.held, held) })
	servers.awaitUnderWay(t, "import-wait")

	seen := map[string]bool{}
	for i, c := range openapiTable(t, servers) {
		if c.prepare != "" {
			servers.exec(t, c.prepare)
		}
		a, err := exchange(within(t), c.base, request{c.method, c.path, c.lines, c.body})
		if err != nil {
			t.Fatalf("%d %s: %v", i, c.name, err)
		}
		fault := func(format string, args ...any) {
			t.Errorf("%d %s: %s\n%d %v %.2000s", i, c.name, fmt.Sprintf(format, args...), a.status, a.header, a.body)
		}
		operation, ok := doc.operation(c)
		if !ok {
			fault("the document has no such path")
			continue
		}
		if err := doc.takes(operation, c); (err != nil) != c.wrong {
			fault("the request: %v", err)
		}
		// The answer to a method that the path does not have stands under the one that it has.
		if err := doc.gives(operation, c, a.status, a.header, string(a.body)); err != nil {
			fault("the answer does not fit: %v", err)
			continue
		}
		at := fmt.Sprint(operation.method, " ", operation.path, " ", a.status, " ")
		for name := range a.header {
			seen[at+strings.ToLower(name)] = true
		}
		code, retry := "", ""
		if c.code != "" {
			n, err := a.tree()
			if code, retry = n.at("code"), n.at("data.retry"); err != nil {
				fault("%v", err)
			}
			if openapiPlain(n.at("success")) != (a.status < 300 && code != "NO_PROJECT_WOULD_BE_PROCESSED") || n.at("request_id") != a.id() {
				fault("success or request_id are wrong")
			}
		}
		if a.status != c.status || code != c.code || retry != c.retry {
			fault("want %d %s %s", c.status, c.code, c.retry)
		}
		seen[at+code] = true
	}

	doc.each(func(o openapiOperation) {
		for status, r := range o.Responses.Map() {
			at := o.method + " " + o.path + " " + status + " "
			for _, code := range openapiCodes(r) {
				if !seen[at+code] {
					t.Errorf("the table has not got %s%s", at, code)
				}
			}
			for name := range r.Value.Headers {
				// A key that was read is echoed by the import alone, whose answers share their description with others.
				if !seen[at+strings.ToLower(name)] && (name != "Idempotency-Key" || o.path == importPath) {
					t.Errorf("the table has not got %s%s", at, name)
				}
			}
		}
	})
}

func openapiPlain(s string) bool { return s == "true" }

// operation finds that of a request, or another one of its path.
func (d openapiDocument) operation(c openapiCase) (found openapiOperation, ok bool) {
	path, _, _ := strings.Cut(c.path, "?")
	d.each(func(o openapiOperation) {
		if o.path == path && (!ok || o.method == c.method) {
			found, ok = o, true
		}
	})
	return found, ok
}

// openapiXMLOf writes a body in JSON as XML, by what the document says about that.
func openapiXMLOf(t *testing.T, body string) []byte {
	t.Helper()
	var value any
	d := json.NewDecoder(strings.NewReader(body))
	d.UseNumber()
	if err := d.Decode(&value); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	var write func(name string, v any, s *openapi3.Schema)
	write = func(name string, v any, s *openapi3.Schema) {
		if s.XML != nil && s.XML.Name != "" {
			name = s.XML.Name
		}
		fmt.Fprintf(&out, "<%s>", name)
		switch v := v.(type) {
		case map[string]any:
			for _, member := range slices.Sorted(maps.Keys(v)) {
				write(member, v[member], s.Properties[member].Value)
			}
		case []any:
			for _, item := range v {
				write("", item, s.Items.Value)
			}
		default:
			_ = xml.EscapeText(&out, []byte(fmt.Sprint(v)))
		}
		fmt.Fprintf(&out, "</%s>", name)
	}
	write("", value, openapiRead(t).Components.Schemas["Import"].Value)
	return out.Bytes()
}

// openapiExtensions gives the members that the validator does not know. It lets them be in some objects, and this document has none.
func openapiExtensions(v reflect.Value, seen map[string]bool) (names []string) {
	switch v.Kind() {
	case reflect.Pointer:
		if at := fmt.Sprint(v.Type(), v.Pointer()); !seen[at] {
			seen[at] = true
			names = openapiExtensions(v.Elem(), seen)
		}
	case reflect.Struct:
		for f, value := range v.Fields() {
			if f.Name != "Extensions" {
				names = append(names, openapiExtensions(value, seen)...)
				continue
			}
			for _, key := range value.MapKeys() {
				names = append(names, key.String())
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			names = append(names, openapiExtensions(v.Index(i), seen)...)
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			names = append(names, openapiExtensions(v.MapIndex(key), seen)...)
		}
	}
	return names
}

func TestTheDescriptionIsValidAndServedAsItStands(t *testing.T) {
	t.Parallel()
	// Another test judges the examples: the validator takes those in XML for JSON.
	doc := openapiRead(t)
	if err := doc.Validate(t.Context(), openapi3.DisableExamplesValidation(), openapi3.EnableSchemaFormatValidation()); err != nil {
		t.Error(err)
	}
	if names := openapiExtensions(reflect.ValueOf(doc.T), map[string]bool{}); len(names) > 0 {
		t.Errorf("there is no such member: %q", names)
	}
	a, err := exchange(within(t), openapiServe(t).on, request{method: http.MethodGet, path: "/openapi.yaml"})
	if err != nil || a.status != 200 || string(a.body) != openapiFile(t, "openapi.yaml") {
		t.Errorf("%v: %d, %d bytes", err, a.status, len(a.body))
	}
}

// The validator judges a schema by other means, which know less, where it cannot read it. So what it refuses here shows that it can.
func TestWhatTheDescriptionDoesNotSayIsRefused(t *testing.T) {
	t.Parallel()
	doc := openapiRead(t)
	c := openapiCase{base: "http://localhost", method: http.MethodPost, path: importPath, lines: []string{openapiAsJSON, openapiKey("a-key-of-8")}}
	operation, _ := doc.operation(c)
	const head = "Content-Type: application/json\nX-Request-Id: a\nVary: Accept\nCache-Control: no-store\n"
	answer := func(status int, head, body string) error {
		header := http.Header{}
		for line := range strings.Lines(head) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
			header.Add(name, value)
		}
		return doc.gives(operation, c, status, header, body)
	}
	const success = `{"request_id":"a","success":true,"code":"WORK_ORDERS_PROCESSED","message":"m","data":{"projects":[` +
		`{"project_code":"P","status":"processed","work_orders":[{"work_order_number":"W","work_order_id":1,"status":"created"}]}` +
		`],"created":1,"existing":0},"errors":[]}`
	const failure = `{"request_id":"a","success":false,"code":"VALIDATION_FAILED","message":"m","data":{"retry":"same-key"},` +
		`"errors":[{"field":"f","code":"required","message":"m"}]}`
	const successXML = `<response><request_id>a</request_id><success>true</success><code>WORK_ORDERS_PROCESSED</code><message>m</message>` +
		`<data><projects><project><project_code>P</project_code><status>refused</status><code>PROJECT_CLOSED</code><work_orders/>` +
		`</project></projects><created>0</created><existing>0</existing></data><errors/></response>`
	headXML, order := strings.Replace(head, "json", "xml", 1), asJSON(small("PRJ-1001", "WO-1"))
	lost := strings.Replace(failure, "VALIDATION_FAILED", "IDEMPOTENCY_LEASE_LOST", 1)
	if err := errors.Join(answer(200, head, success), answer(400, head, failure), answer(503, head+"Retry-After: 1\n", lost),
		answer(200, headXML, successXML)); err != nil {
		t.Fatal(err)
	}

	refused := func(what string, err error) {
		if err == nil {
			t.Errorf("%s is let through", what)
		}
	}
	change := func(in, old, with string) string {
		t.Helper()
		if !strings.Contains(in, old) {
			t.Fatalf("there is no %s", old)
		}
		return strings.Replace(in, old, with, 1)
	}
	refused("another status", answer(202, head, success))
	refused("a redirection", answer(304, head, ""))
	refused("another media type", answer(200, change(head, "application/json", "text/plain"), success))
	for _, h := range [][2]string{
		{"Vary: Accept", "Vary: Origin"}, {"no-store", "public"}, {"X-Request-Id: a\n", ""}, {"X-Request-Id: a", "X-Request-Id: /"},
		{"Vary:", "Idempotency-Replayed: no\nVary:"}, {"Vary:", "X-Other: a\nVary:"}, {"Vary:", "Retry-After: 1\nVary:"},
		{"Vary:", "Vary: Accept\nVary:"},
	} {
		refused(h[1], answer(200, change(head, h[0], h[1]), success))
	}
	refused("no time to wait", answer(503, head+"Retry-After: 0\n", lost))
	for _, b := range [][2]string{
		{`"success":true`, `"success":false`}, {"WORK_ORDERS_PROCESSED", "OK"}, {`"message":"m",`, ""}, {`"message":"m"`, `"message":1`},
		{`"errors":[]`, `"errors":[],"other":1`}, {`"created":1`, `"created":1,"other":1`}, {`"created"}`, `"created","other":1}`},
		{`"created":1`, `"created":-1`}, {`"created":1`, `"created":0.5`}, {`_id":1`, `_id":0`}, {`:"created"`, `:"new"`},
		{`"request_id":"a"`, `"request_id":"/"`}, {`"request_id":"a"`, `"request_id":""`}, {`"errors":[]`, `"errors":null`},
	} {
		refused(b[1], answer(200, head, change(success, b[0], b[1])))
	}
	for _, b := range [][2]string{
		{`"success":false`, `"success":true`}, {"VALIDATION_FAILED", "INTERNAL"}, {`"same-key"`, `"soon"`}, {`{"retry":"same-key"}`, "{}"},
		{`"code":"required"`, `"code":"other"`}, {`"field":"f",`, ""}, {`"field":"f"`, `"field":"f","other":1`},
	} {
		refused(b[1], answer(400, head, change(failure, b[0], b[1])))
	}
	for _, b := range [][2]string{
		{"<success>true", "<success>false"}, {"<success>true", "<success>yes"}, {"<errors/>", ""}, {"<errors/>", "<errors/><errors/>"},
		{"<errors/>", "<errors/><other/>"}, {"<created>0", "<created>none"}, {"<status>refused", "<status>new"},
		{"<projects>", "<projects><item/>"}, {"<message>m", "<message><b/>"}, {successXML, "<answer/>"},
	} {
		refused(b[1], answer(200, headXML, change(successXML, b[0], b[1])))
	}

	c.body = order
	if err := doc.takes(operation, c); err != nil {
		t.Fatal(err)
	}
	quantity := regexp.MustCompile(`"quantity":[^,}]+`).FindString(order)
	start := regexp.MustCompile(`"planned_start":"[^"]+"`).FindString(order)
	for _, b := range [][2]string{
		{quantity, `"quantity":0`}, {quantity, `"quantity":"1e3"`}, {quantity, `"quantity":0.1234567`}, {quantity, `"quantity":1000000000000`},
		{quantity, `"quantity":true`}, {quantity, quantity + `,"other":1`}, {"{", `{"other":1,`},
		{start, `"planned_start":"2026-02-30"`}, {start, `"planned_start":"2026-2-3"`},
	} {
		c.body = change(order, b[0], b[1])
		refused(b[1], doc.takes(operation, c))
	}
	c.body, c.lines = order, c.lines[:1]
	refused("no key", doc.takes(operation, c))
	list := openapiCase{base: c.base, method: http.MethodGet, path: openapiList}
	operation, _ = doc.operation(list)
	for _, query := range []string{"&limit=0", "&limit=101", "&limit=a", "&before=-1"} {
		list.path = openapiList + query
		refused(query, doc.takes(operation, list))
	}
	list.path, list.body = openapiList, "{}"
	refused("a body", doc.takes(operation, list))
}

// The examples of requests are taken by the server, and are the sample documents; those of answers are as their schemas say.
func TestTheExamplesOfTheDescriptionAreGood(t *testing.T) {
	t.Parallel()
	doc, servers := openapiRead(t), openapiServe(t)
	var want Import
	if err := json.Unmarshal([]byte(openapiFile(t, "testdata/sample.json")), &want); err != nil {
		t.Fatal(err)
	}
	requests, answers := 0, 0
	examples := func(media *openapi3.MediaType, f func(text string)) {
		for name, example := range media.Examples {
			text, isText := example.Value.Value.(string)
			if !isText {
				data, err := json.Marshal(example.Value.Value)
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				text = string(data)
			}
			f(text)
		}
	}
	doc.each(func(o openapiOperation) {
		for _, p := range o.Parameters {
			if p.Value.Example == nil {
				continue
			}
			if err := p.Value.Schema.Value.VisitJSON(p.Value.Example, openapi3.EnableJSONSchema2020()); err != nil {
				t.Errorf("%s %s: %v", o.path, p.Value.Name, err)
			}
		}
		if o.RequestBody != nil {
			for mediaType, media := range o.RequestBody.Value.Content {
				examples(media, func(text string) {
					requests++
					lines := []string{"Content-Type: " + mediaType, openapiKey("8e03978e-40d5-43e8-bc93-6894a57f9324")}
					c := openapiCase{base: servers.on, method: o.method, path: o.path, lines: lines, body: text}
					if err := doc.takes(o, c); err != nil {
						t.Errorf("%s %s: %v", o.path, mediaType, err)
					}
					a, err := exchange(within(t), c.base, request{c.method, c.path, c.lines, c.body})
					if err != nil || a.status != 200 {
						t.Errorf("%s %s: %v %v", o.path, mediaType, a, err)
					}
					if mediaType == "application/xml" {
						if text != openapiFile(t, "testdata/sample.xml") {
							t.Error("the example in XML is not the sample")
						}
						return
					}
					if got := decode(t, text); !reflect.DeepEqual(got, want) {
						t.Errorf("the example in JSON is %+v", got)
					}
				})
			}
		}
		for status, r := range o.Responses.Map() {
			for mediaType, media := range r.Value.Content {
				examples(media, func(text string) {
					answers++
					number, _ := strconv.Atoi(status)
					h := http.Header{"Content-Type": {mediaType}, "X-Request-Id": {"example"}, "Vary": {"Accept"}, "Cache-Control": {"no-store"}}
					if err := doc.gives(o, openapiCase{base: servers.on, method: o.method, path: o.path}, number, h, text); err != nil {
						t.Errorf("%s %s %s: %v", o.path, status, mediaType, err)
					}
				})
			}
		}
	})
	if requests != 4 || answers < 7 {
		t.Errorf("there are %d examples of requests and %d of answers", requests, answers)
	}
	servers.holds(t, "3", "6", "1", "1")
}

// The routes that server.go mounts are those of the document.
func TestTheDescriptionHasTheServersRoutes(t *testing.T) {
	t.Parallel()
	constants := map[string]ast.Expr{}
	var mounted []ast.Expr
	for _, name := range []string{"main.go", "server.go"} {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.ValueSpec:
				for i, value := range n.Values {
					constants[n.Names[i].Name] = value
				}
			case *ast.CallExpr:
				if f, ok := n.Fun.(*ast.SelectorExpr); ok && (f.Sel.Name == "Handle" || f.Sel.Name == "HandleFunc") {
					mounted = append(mounted, n.Args[0])
				}
			}
			return true
		})
	}
	var text func(ast.Expr) string
	text = func(e ast.Expr) string {
		switch e := e.(type) {
		case *ast.BasicLit:
			s, _ := strconv.Unquote(e.Value)
			return s
		case *ast.BinaryExpr:
			return text(e.X) + text(e.Y)
		case *ast.Ident:
			return text(constants[e.Name])
		}
		t.Fatalf("a route is no constant: %T", e)
		return ""
	}
	var routes, described []string
	for _, e := range mounted {
		routes = append(routes, strings.TrimSuffix(text(e), "{$}"))
	}
	openapiRead(t).each(func(o openapiOperation) { described = append(described, o.method+" "+o.path) })
	slices.Sort(routes)
	slices.Sort(described)
	if len(routes) == 0 || !slices.Equal(routes, described) {
		t.Errorf("the server has %q, the document %q", routes, described)
	}
}

// openapiNever are codes of the edge that this service does not send, and why.
var openapiNever = map[string]string{
	"TENANT_UNRESOLVED":              "an organisation that is found is a tenant, and one that is not is a field that is wrong",
	"ROUTE_NOT_FOUND":                "it is of paths that the document does not have",
	"REQUEST_TIMEOUT":                "the server sets no time for the reading of bodies",
	"OPERATION_NOT_FOUND":            "there is no route for operations",
	"IDEMPOTENCY_SCOPE_MISSING":      "the edge sets the scope of every request that it lets in",
	"IDEMPOTENCY_FINGERPRINT_FAILED": "what was decoded into an Import can be encoded",
	"IDEMPOTENCY_RESULT_UNENCODABLE": "every Imported can be encoded",
	"IDEMPOTENCY_HANDLER_FAULT":      "no handler here ends its own transaction",
	"VALIDATION_PANIC":               "no rule here panics",
	"CROSS_ORIGIN":                   "nothing here refuses pages of other origins: no request is authenticated by a cookie",
	"FILE_TOO_LARGE":                 "no request holds files",
	"UNHANDLED":                      "a command without a handler is found at the start",
}

// The codes of the document are those that this program and the edge can send.
func TestTheDescriptionHasTheServersCodes(t *testing.T) {
	t.Parallel()
	const root = "../../"
	codePattern := regexp.MustCompile(`"([A-Z]{2,}(?:_[A-Z]+)*)"`)
	sent := map[string]bool{"NO_PROJECT_PROCESSED": true}
	collect := func(source string, except ...string) {
		for _, m := range codePattern.FindAllStringSubmatch(source, -1) {
			if !slices.Contains(except, m[1]) {
				sent[m[1]] = true
			}
		}
	}
	collect(openapiFile(t, "server.go"), "POST", "GET")
	edge := ""
	files, err := filepath.Glob(root + "requestctx/httpedge/*.go")
	if err != nil || len(files) == 0 {
		t.Fatal(err)
	}
	for _, name := range files {
		if !strings.HasSuffix(name, "_test.go") {
			edge += openapiFile(t, name)
		}
	}
	edge = regexp.MustCompile(`(?m)//.*$`).ReplaceAllString(edge, "")
	collect(edge)
	// The types of errors that the edge tells apart, each with what its method Code says.
	dirs := map[string]string{
		"idempotency": "behaviors/idempotency", "validation": "behaviors/validation", "bus": "bus",
		"requestctx": "requestctx", "strictjson": "requestctx/internal/strictjson",
	}
	types := regexp.MustCompile(`errors\.AsType\[\*(\w+)\.(\w+)\]`).FindAllStringSubmatch(edge, -1)
	for _, m := range types {
		if dirs[m[1]] == "" {
			continue // of the standard library
		}
		found := false
		files, _ := filepath.Glob(root + dirs[m[1]] + "/*.go")
		for _, name := range files {
			code := regexp.MustCompile(`(?s)\nfunc \((?:e )?\*?` + m[2] + `\) Code\(\) string \{.*?\}\n\n`).FindString(openapiFile(t, name) + "\n")
			found = found || code != ""
			collect(code)
		}
		if !found {
			t.Errorf("%s.%s has no code", m[1], m[2])
		}
	}
	if len(types) < 15 {
		t.Errorf("the edge tells %d types apart", len(types))
	}

	described := map[string]bool{}
	openapiRead(t).each(func(o openapiOperation) {
		for _, r := range o.Responses.Map() {
			for _, code := range openapiCodes(r) {
				described[code] = true
			}
		}
	})
	delete(described, "")
	for code := range openapiNever {
		if described[code] || !sent[code] {
			t.Errorf("%s is said to be never sent; it is described: %v, and it exists: %v", code, described[code], sent[code])
		}
		delete(sent, code)
	}
	if got, want := slices.Sorted(maps.Keys(described)), slices.Sorted(maps.Keys(sent)); !slices.Equal(got, want) {
		t.Errorf("described are %q\nsent can be   %q", got, want)
	}
}

// The bounds of the schemas are those of the tags, and the codes of fields those of all rules.
func TestTheDescriptionHasTheServersBounds(t *testing.T) {
	t.Parallel()
	doc := openapiRead(t)
	rules := map[string]bool{"malformed": true}
	for _, name := range []string{"import.go", "inbound.go"} {
		for _, m := range regexp.MustCompile(`(?:bad\(|Field\("\w+", |newCodeError\()"(\w+)"`).FindAllStringSubmatch(openapiFile(t, name), -1) {
			rules[m[1]] = true
		}
	}
	var compare func(reflect.Type, *openapi3.Schema)
	field := func(f reflect.StructField, s *openapi3.Schema, needed bool) {
		numbers := map[string]float64{}
		for rule := range strings.SplitSeq(f.Tag.Get("validate"), ",") {
			rule, parameter, _ := strings.Cut(rule, "=")
			if rule == "dive" {
				continue
			}
			rules[rule] = true
			numbers[rule], _ = strconv.ParseFloat(parameter, 64)
		}
		want := func(rule string, got uint64, name string) { // 0 is none
			if n := numbers[rule]; float64(got) != n {
				t.Errorf("%s: %s of the schema is %d and not %s=%v", f.Name, name, got, rule, n)
			}
		}
		wantNumber := func(rule string, got *float64, name string) {
			n, ok := numbers[rule]
			if ok && (got == nil || *got != n) {
				t.Errorf("%s: %s of the schema is another than %s=%v", f.Name, name, rule, n)
			}
		}
		_, required := numbers["required"]
		_, atLeast := numbers["min"]
		_, from := numbers["gte"]
		_, above := numbers["gt"]
		if f.Name != "Limit" && f.Name != "Before" && (required || atLeast || from || above) != needed {
			t.Errorf("%s: the schema says that it is required: %v", f.Name, needed)
		}
		switch f.Type.Kind() {
		case reflect.Slice:
			want("min", s.MinItems, "minItems")
			want("max", openapiMost(s.MaxItems), "maxItems")
			compare(f.Type.Elem(), s.Items.Value)
		case reflect.String:
			want("max", openapiMost(s.MaxLength), "maxLength")
			if required != (s.MinLength == 1) {
				t.Errorf("%s: minLength", f.Name)
			}
			if _, ascii := numbers["printascii"]; ascii != (s.Pattern == "^[!-~]+$") {
				t.Errorf("%s: the pattern is %s", f.Name, s.Pattern)
			}
		default:
			wantNumber("gte", s.Min, "minimum")
			wantNumber("lte", s.Max, "maximum")
			if least := s.ExclusiveMin.Value; above && (least == nil || *least != numbers["gt"]) {
				t.Errorf("%s: exclusiveMinimum", f.Name)
			}
		}
	}
	compare = func(typ reflect.Type, s *openapi3.Schema) {
		if others := s.AdditionalProperties.Has; len(s.Properties) != typ.NumField() || others == nil || *others {
			t.Errorf("%v: the schema has %d properties, or allows others", typ, len(s.Properties))
		}
		for f := range typ.Fields() {
			name := f.Tag.Get("json")
			property := s.Properties[name]
			if property == nil {
				t.Fatalf("%s is not described", name)
			}
			field(f, property.Value, slices.Contains(s.Required, name))
			if item := f.Tag.Get("xml"); f.Type.Kind() == reflect.Slice && property.Value.Items.Value.XML.Name != item {
				t.Errorf("%s: the items are %s", name, item)
			}
		}
	}
	schemas := doc.Components.Schemas
	compare(reflect.TypeFor[Import](), schemas["Import"].Value)
	query := reflect.TypeFor[ListWorkOrders]()
	for _, p := range doc.Paths.Value("/api/v1/work-orders").Get.Parameters {
		for f := range query.Fields() {
			if f.Tag.Get("json") == p.Value.Name {
				field(f, p.Value.Schema.Value, p.Value.Required)
			}
		}
	}

	codes := openapiEnum(openapiProperties(openapiFlat(schemas["FieldError"]))["code"])
	if got, want := slices.Sorted(slices.Values(codes)), slices.Sorted(maps.Keys(rules)); !slices.Equal(got, want) {
		t.Errorf("the codes of fields are %q, the rules %q", got, want)
	}
	if key := schemas["Key"].Value; key.MinLength != requestctx.MinKeyLength || openapiMost(key.MaxLength) != requestctx.MaxKeyLength {
		t.Error("the length of the key")
	}
	if errors := openapiProperties(openapiFlat(schemas["Answer"]))["errors"][0]; openapiMost(errors.MaxItems) != validation.MaxFields {
		t.Error("the number of errors")
	}
	for _, text := range openapiBounds() {
		if !strings.Contains(strings.Join(strings.Fields(doc.Info.Description), " "), text) {
			t.Errorf("the introduction does not say %q", text)
		}
	}
}

// openapiMost is an upper bound of a schema, and 0 where there is none.
func openapiMost(n *uint64) uint64 {
	if n == nil {
		return 0
	}
	return *n
}

// openapiBounds are what the texts have to say about the program's constants.
func openapiBounds() []string {
	return []string{
		strconv.Itoa(bodyLimit) + " bytes", strconv.Itoa(maxLines) + " lines", "at most " + strconv.Itoa(validation.MaxFields) + " are listed",
		fmt.Sprintf("`%s` (true)", envEnabled), fmt.Sprintf("`%s` (true)", envRequired),
		fmt.Sprintf("`%s` (%d, from %d to %d)", envLease, int(defaultLease.Seconds()), minLease, maxLease),
		fmt.Sprintf("`%s` (%d, from %d to %d)", envRetention, int(defaultRetention.Hours()), minRetention, maxRetention),
	}
}
