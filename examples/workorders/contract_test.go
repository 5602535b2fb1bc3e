package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore/pgtest"
)

// The contract with the ERP: what it sends, what it gets, and what is stored then. Each row has a key, numbers and so records of its own,
// and runs on both databases. A row cites the cases that it covers.
//
// In all texts §K stands for the row's key, which has 8 characters, §N for what the numbers of its work orders begin with, §0, §1 and so on
// for the X-Request-ID of its answers, §S0 for the SHA-256 of the body of the first request, and § for the answer's own X-Request-ID.
type row struct {
	name   string
	on     string // the program that it is sent to: "" is one that nobody has configured
	steps  []step
	stored stored
	facts  []fact // more about what is stored
}

// step is a request and its answer.
type step struct {
	route  string   // "" is the import
	key    []string // the lines of the head that carry the key; nil is one line with §K
	head   []string // more lines
	format string   // what the body is written in, and the Content-Type unless head has one: "" is json
	doc    Import   // the body; without one it is doc("PRJ-1001", "§N-1")
	edit   []string // in the body, by turns what stands there and what shall
	body   string   // the body as it stands, in the place of doc
	before string   // SQL that is run before it is sent; §P stands for a moment that is over
	held   bool     // the next step is sent while this one is at work
	want   want
}

// want is an answer.
type want struct {
	status  int
	success bool
	code    string
	facts   []string          // in the envelope, such as data.created=1
	header  map[string]string // "" is absent; idempotency headers and Retry-After that are not named are absent
	format  string            // "" is that of the body
	as      int               // it is a replay: the body of the answer to the step with this number, from 1, but for the request_id
	foreign bool              // it does not come from the edge, and has no envelope
}

// stored is how many there are of what a row has sent. The work orders have one line each.
type stored struct{ records, orders, archive int }

type fact struct{ query, want string }

func (w want) with(name, value string) want {
	header := map[string]string{name: value}
	for n, v := range w.header {
		if n != name {
			header[n] = v
		}
	}
	w.header = header
	return w
}

// answeredAs is w in another format than that of the request's body.
func (w want) answeredAs(format string) want {
	w.format = format
	return w
}

// The answers.
var (
	executedHeaders = map[string]string{"Idempotency-Key": "§K", "Idempotency-Replayed": "false", "Idempotency-Original-Request-ID": "§"}
	conflict        = want{status: 409, code: "IDEMPOTENCY_KEY_CONFLICT", facts: []string{"data.retry=none",
		"message=The Idempotency-Key has already been used with a different request payload."},
		header: map[string]string{"Idempotency-Key": "§K", "Idempotency-Replayed": "false"}}
	inProgress = want{status: 409, code: "IDEMPOTENCY_REQUEST_IN_PROGRESS", facts: []string{"data.retry=same-key"},
		header: map[string]string{"Idempotency-Key": "§K", "Idempotency-Replayed": "false", "Idempotency-Original-Request-ID": "§0", "Retry-After": "2"}}
	keyMissing = want{status: 400, code: "IDEMPOTENCY_KEY_MISSING", facts: []string{"data.retry=new-key"},
		header: map[string]string{"Link": `</>; rel="describedby"`}}
	keyInvalid   = want{status: 400, code: "IDEMPOTENCY_KEY_INVALID", facts: []string{"data.retry=new-key"}}
	unknownToken = want{status: 401, code: "UNAUTHENTICATED", header: map[string]string{"WWW-Authenticate": "Bearer", "Idempotency-Key": "§K"}}
)

// executed is that of an import that was processed as a whole.
func executed(created, existing int) want {
	return want{status: 200, success: true, code: "WORK_ORDERS_PROCESSED", header: executedHeaders,
		facts: []string{fmt.Sprint("data.created=", created), fmt.Sprint("data.existing=", existing)}}
}

// unprotected is that of an import that runs without a key.
func unprotected(created, existing int) want {
	w := executed(created, existing)
	w.header = nil
	return w
}

// replay is that of an import which has been processed: the outcome of the step with this number.
func replay(step int) want {
	return want{status: 200, success: true, code: "WORK_ORDERS_PROCESSED", as: step, header: map[string]string{
		"Idempotency-Key": "§K", "Idempotency-Replayed": "true", "Idempotency-Original-Request-ID": fmt.Sprint("§", step-1)}}
}

// invalid is that of a request that is refused before its key is looked at.
func invalid(status int, code string, facts ...string) want {
	return want{status: status, code: code, facts: append(facts, "data.retry=same-key"), header: map[string]string{"Idempotency-Key": "§K"}}
}

func malformed() want { return invalid(400, "MALFORMED_REQUEST") }

// field is that of a request with a field that is not valid.
func field(path, rule string) want {
	return invalid(400, "VALIDATION_FAILED", "errors.0.field="+path, "errors.0.code="+rule)
}

// previewed is that of a request which asks what an import would do.
func previewed(code string, facts ...string) want {
	return want{status: 200, success: !strings.HasPrefix(code, "NO_"), code: code, facts: facts}
}

// noKey sends none.
var noKey = []string{}

// keyed sends a line with a key, as it stands.
func keyed(value string) []string { return []string{"Idempotency-Key: " + value} }

// doc is an import of work orders of one line each.
func doc(project string, numbers ...string) Import {
	c := small(project, numbers...)
	for i := range c.Projects[0].WorkOrders {
		w := &c.Projects[0].WorkOrders[i]
		w.Description, w.Lines[0].Description = secret+`: "ölçü" & <DN20>`, secret
	}
	return c
}

// in is an import for another organisation.
func in(organization string, c Import) Import {
	c.OrganizationCode = organization
	return c
}

// of is a step that sends the row's work order with a change.
func of(w want, edit ...string) step { return step{edit: edit, want: w} }

// ofXML is of in XML.
func ofXML(w want, edit ...string) step { return step{format: "xml", edit: edit, want: w} }

// reversed is the row's work order in JSON with its members in another order, and white space.
const reversed = `
{ "projects" : [ { "work_orders" : [ { "lines" : [ { "unit" : "m", "quantity" : 12.5, "description" : "gizli", "item_code" : "PIPE-DN20",
  "line_number" : 1 } ], "planned_end" : "2026-12-18", "planned_start" : "2026-12-07", "description" : "gizli: \"\u00f6l\u00e7\u00fc\" & <DN20>",
  "work_order_number" : "§N-1" } ], "project_code" : "PRJ-1001" } ], "organization_code" : "IST-01", "company_code" : "TEKIL-TR" }
`

// reversedXML is the same in XML, as another program might write it.
const reversedXML = `<!-- from another ERP -->
<e:work_orders xmlns:e="urn:erp">
  <e:projects><e:project><e:work_orders><e:work_order>
    <e:lines><e:line><e:unit>m</e:unit><e:quantity>12.50</e:quantity><e:description><![CDATA[gizli]]></e:description><e:item_code>PIPE-DN20</e:item_code>
      <e:line_number> 1 </e:line_number></e:line></e:lines>
    <e:planned_end>2026-12-18</e:planned_end><e:planned_start>2026-12-07</e:planned_start>
    <e:description>gizli: "&#xF6;l&#231;ü" &amp; <![CDATA[<DN20>]]></e:description>
    <e:work_order_number>§N-1</e:work_order_number>
  </e:work_order></e:work_orders><e:project_code>PRJ-1001</e:project_code></e:project></e:projects>
  <e:organization_code>IST-01</e:organization_code><e:company_code>TEKIL-TR</e:company_code>
</e:work_orders>`

const (
	bearerA, bearerA2, bearerB = "Authorization: Bearer token-of-a-aaaaaaaa", "Authorization: Bearer token-of-a-rotated", "Authorization: bearer token-of-b-bbbbbbbb"

	listPath = "GET /api/v1/work-orders?company_code=TEKIL-TR&organization_code=IST-01"
	quantity = `"quantity":12.5`
)

var (
	partly = joined(doc("PRJ-1003", "§N-1"), doc("PRJ-1001", "§N-2"), doc("PRJ-9999", "§N-3"))
	none   = joined(doc("PRJ-1003", "§N-1"), doc("PRJ-9999", "§N-2"))

	partlyDone = want{status: 200, success: true, code: "WORK_ORDERS_PARTLY_PROCESSED", header: executedHeaders, facts: []string{
		"data.created=1", "data.existing=0", "data.projects.0.status=refused", "data.projects.0.code=PROJECT_CLOSED",
		"data.projects.1.status=processed", "data.projects.1.code=", "data.projects.1.work_orders.0.work_order_number=§N-2",
		"data.projects.1.work_orders.0.status=created", "data.projects.2.status=refused", "data.projects.2.code=PROJECT_NOT_FOUND"}}
	noneDone = want{status: 409, code: "NO_PROJECT_PROCESSED", header: executedHeaders, facts: []string{"data.retry=none",
		"message=No project of the request could be processed.",
		"data.projects.0.code=PROJECT_CLOSED", "data.projects.1.code=PROJECT_NOT_FOUND"}}
)

// again is a replay of the first step in another status or with another code than a success has.
func again(first want) want {
	w := replay(1)
	w.status, w.success, w.code, w.facts = first.status, first.success, first.code, first.facts
	return w
}

var contract = slices.Concat([]row{
	// 2.1 The header and the key.
	{"H01 no key", "", []step{{key: noKey, want: keyMissing}}, stored{}, nil},
	{"H01 no key, in XML", "", []step{{key: noKey, format: "xml", want: keyMissing}, {key: noKey, format: "xml", want: keyMissing}}, stored{}, nil},
	{"H02 http-5 not required: no key", "optional", []step{{key: noKey, want: unprotected(1, 0)}, {key: noKey, want: unprotected(0, 1)}}, stored{0, 1, 2}, nil},
	{"H02 http-5 not required: a key protects", "optional", []step{of(executed(1, 0)), of(replay(1)), of(conflict, quantity, `"quantity":13`)}, stored{1, 1, 1}, nil},
	{"H02 http-5 not required: a bad key is refused", "optional", []step{{key: keyed("short"), want: keyInvalid}}, stored{}, nil},
	{"H05 spaces around a key", "", []step{{key: keyed(" \t §K \t "), want: executed(1, 0)}, of(replay(1))}, stored{1, 1, 1}, nil},
	{"H08 H09 the shortest and the longest key", "", []step{of(executed(1, 0)),
		{key: keyed("§K" + strings.Repeat("x", 120)), want: executed(0, 1).with("Idempotency-Key", "§K"+strings.Repeat("x", 120))}}, stored{2, 1, 2}, nil},
	{"H14 a quoted key is the bare one", "", []step{{key: keyed(`"§K"`), want: executed(1, 0)}, of(replay(1)), {key: keyed(`"§K"`), format: "xml", want: replay(1)}},
		stored{1, 1, 1}, nil},
	{"H16 the header's name in any case", "", []step{{key: []string{"idempotency-KEY: §K"}, want: executed(1, 0)}, {key: []string{"IDEMPOTENCY-key: §K"}, want: replay(1)}},
		stored{1, 1, 1}, nil},
	{"H17 the case of a key counts", "", []step{{key: keyed("Order-§K"), want: executed(1, 0).with("Idempotency-Key", "Order-§K")},
		{key: keyed("order-§K"), want: executed(0, 1).with("Idempotency-Key", "order-§K")}}, stored{2, 1, 2}, nil},
	{"H19 NUL in the head", "", []step{{key: keyed("abc\x00defgh"), want: want{status: 400, foreign: true}}}, stored{}, nil},
	{"H19 a space before the colon", "", []step{{key: []string{"Idempotency-Key : §K"}, want: want{status: 400, foreign: true}}}, stored{}, nil},
	{"H21 a query reads no key", "", []step{
		{route: listPath, key: keyed("§K"), want: want{status: 200, success: true, code: "OK", format: "json"}},
		{route: listPath, key: keyed("/"), want: want{status: 200, success: true, code: "OK", format: "json"}},
		{route: strings.Replace(listPath, "GET", "HEAD", 1), key: keyed("/"), want: want{status: 200, foreign: true}}}, stored{}, nil},
	{"H22 pipe-11 the test route reads no key", "", []step{
		{route: testRoute, want: previewed("WORK_ORDERS_WOULD_BE_PROCESSED", "data.created=1", "data.existing=0", "data.projects.0.work_orders.0.work_order_id=")},
		{route: testRoute, key: noKey, format: "xml", want: previewed("WORK_ORDERS_WOULD_BE_PROCESSED", "data.created=1")},
		{route: testRoute, key: keyed("/"), want: previewed("WORK_ORDERS_WOULD_BE_PROCESSED", "data.created=1")},
		of(executed(1, 0)),
		{route: testRoute, want: previewed("WORK_ORDERS_WOULD_BE_PROCESSED", "data.created=0", "data.existing=1")},
		{route: testRoute, edit: []string{quantity, `"quantity":13`}, want: previewed("WORK_ORDERS_WOULD_BE_PROCESSED", "data.existing=1")}}, stored{1, 1, 1}, nil},
	{"H22 the test route tells of projects", "", []step{
		{route: testRoute, doc: partly, want: previewed("WORK_ORDERS_WOULD_BE_PARTLY_PROCESSED", "data.created=1", "data.projects.0.code=PROJECT_CLOSED")},
		{route: testRoute, doc: none, format: "xml", want: previewed("NO_PROJECT_WOULD_BE_PROCESSED", "data.created=0", "data.projects.1.code=PROJECT_NOT_FOUND")}},
		stored{}, nil},
	{"H22 V02 the test route refuses what is not valid", "", []step{
		{route: testRoute, edit: []string{quantity, `"quantity":0`}, want: field("projects[0].work_orders[0].lines[0].quantity", "gt").with("Idempotency-Key", "")},
		{route: testRoute, body: "{", want: malformed().with("Idempotency-Key", "")}}, stored{}, nil},
	{"H23 a key that is easily guessed", "", []step{{key: keyed("aaaaaaaa"), want: executed(1, 0).with("Idempotency-Key", "aaaaaaaa")}}, stored{0, 1, 1},
		[]fact{{`SELECT count(*) FROM idempotency_records WHERE key = 'aaaaaaaa'`, "1"}}},
}, badKeys(), []row{
	// 2.2 The scope.
	{"S01 two organisations", "", []step{of(executed(1, 0)), {doc: in("ANK-01", doc("PRJ-1001", "§N-1")), want: executed(1, 0)}, of(replay(1)),
		{doc: in("ANK-01", doc("PRJ-1001", "§N-1")), format: "xml", want: replay(2)}}, stored{2, 2, 2},
		[]fact{{`SELECT count(DISTINCT tenant) FROM idempotency_records WHERE key = '§K'`, "2"},
			{`SELECT count(DISTINCT organization_id) FROM work_orders WHERE work_order_number = '§N-1'`, "2"}}},
	{"S02 two clients", "tokens", []step{{head: []string{bearerA}, want: executed(1, 0)}, {head: []string{bearerB}, want: executed(0, 1)},
		{head: []string{bearerA}, want: replay(1)}, {head: []string{bearerB}, want: replay(2)}}, stored{2, 1, 2},
		[]fact{{`SELECT count(DISTINCT client) FROM idempotency_records WHERE key = '§K' AND client IN ('erp-a', 'erp-b')`, "2"},
			{`SELECT client FROM inbound_archive WHERE request_id = '§0'`, "erp-a"}}},
	{"S03 without authentication all are anonymous", "", []step{{head: []string{bearerA}, want: executed(1, 0)}, {head: []string{bearerB}, want: replay(1)}},
		stored{1, 1, 1}, []fact{{`SELECT client FROM idempotency_records WHERE key = '§K'`, "anonymous"}}},
	{"S04 a company that does not exist", "", []step{of(field("company_code", "COMPANY_NOT_FOUND"), "TEKIL-TR", "TEKIL-DE"), of(executed(1, 0))}, stored{1, 1, 1}, nil},
	{"S04 an organisation that does not exist", "", []step{{doc: in("IZM-01", doc("PRJ-1001", "§N-1")), format: "xml",
		want: field("organization_code", "ORGANIZATION_NOT_FOUND")}, of(executed(1, 0))}, stored{1, 1, 1}, nil},
	{"S05 S08 a route that does not exist, and a method that a route does not have", "", []step{
		{route: "POST " + importPath + "/other", want: want{status: 404, code: "ROUTE_NOT_FOUND", facts: []string{"data.retry=none"}}},
		{route: "PUT " + importPath, format: "xml", want: want{status: 405, code: "METHOD_NOT_ALLOWED", facts: []string{"data.retry=none"}}.with("Allow", "POST")},
	}, stored{}, nil},
	{"S09 rec-9 another token of the same client", "tokens", []step{{head: []string{bearerA}, want: executed(1, 0)}, {head: []string{bearerA2}, want: replay(1)}}, stored{1, 1, 1}, nil},
	{"S11 a tenant is one value", "", []step{of(executed(1, 0))}, stored{1, 1, 1}, []fact{{`SELECT r.tenant = o.company_id || '/' || o.organization_id
		FROM idempotency_records r, organizations o WHERE r.key = '§K' AND o.organization_code = 'IST-01'`, "true"}}},
	{"V09 nobody comes in without a token", "tokens", []step{{want: unknownToken}, {head: []string{bearerA + "x"}, want: unknownToken},
		{head: []string{bearerA, bearerB}, want: unknownToken}, {head: []string{"Authorization: Basic token-of-a-aaaaaaaa"}, want: unknownToken},
		{route: listPath, key: noKey, want: unknownToken.with("Idempotency-Key", "").answeredAs("json")},
		{route: testRoute, key: noKey, want: previewed("WORK_ORDERS_WOULD_BE_PROCESSED")},
		{head: []string{bearerA}, want: executed(1, 0)}}, stored{1, 1, 1}, nil},

	// 2.3 The fingerprint.
	{"F01 the order of members and white space", "", []step{of(executed(1, 0)), {body: reversed, want: replay(1)}}, stored{1, 1, 1}, nil},
	{"F02 JSON, then XML", "", []step{of(executed(1, 0)), ofXML(replay(1)), {body: reversedXML, format: "xml", want: replay(1)}}, stored{1, 1, 1}, nil},
	{"F02 XML, then JSON", "", []step{ofXML(executed(1, 0)), of(replay(1)), {body: reversed, want: replay(1)}}, stored{1, 1, 1}, nil},
	{"F02 another Accept is the same import", "", []step{{head: []string{"Accept: application/xml"}, want: executed(1, 0).answeredAs("xml")},
		{head: []string{"Accept: application/json"}, want: replay(1)}, {head: []string{"Accept: text/xml"}, want: replay(1).answeredAs("xml")},
		{head: []string{"Accept: application/json;q=0.5, application/xml;q=0.8"}, want: replay(1).answeredAs("xml")},
		{head: []string{"Accept: application/json"}, format: "xml", want: replay(1).answeredAs("json")},
		{head: []string{"Accept: */*"}, format: "xml", want: replay(1)}}, stored{1, 1, 1}, nil},
	{"F02 a conflict between the formats", "", []step{of(executed(1, 0)), ofXML(conflict, "<quantity>12.5<", "<quantity>13<"),
		{format: "xml", edit: []string{"<unit>m<", "<unit>mm<"}, head: []string{"Accept: application/json"}, want: conflict.answeredAs("json")}}, stored{1, 1, 1}, nil},
	{"F03 another user agent, trace and id", "", []step{of(executed(1, 0)),
		{head: []string{"User-Agent: another/2", "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "X-Request-ID: made-up", "X-Forwarded-For: 192.0.2.1"},
			want: replay(1)}}, stored{1, 1, 1}, []fact{{`SELECT count(*) FROM inbound_archive WHERE request_id = 'made-up'`, "0"}}},
	{"F03 an id of a proxy that is trusted", "proxied", []step{{head: []string{"X-Request-ID: proxy-§K"}, want: executed(1, 0).with("X-Request-ID", "proxy-§K")},
		{head: []string{"X-Request-ID: proxy-2-§K"}, want: replay(1).with("X-Request-ID", "proxy-2-§K")}}, stored{1, 1, 1},
		[]fact{{`SELECT count(*) FROM inbound_archive WHERE request_id = 'proxy-§K'`, "1"}}},
	{"F04 F06 one quantity, written in many ways", "", []step{of(executed(1, 0)), of(replay(1), quantity, `"quantity":12.50`), of(replay(1), quantity, `"quantity":"12.5"`),
		of(replay(1), quantity, `"quantity":"12.500000"`), ofXML(replay(1), "<quantity>12.5<", "<quantity>12.500<")}, stored{1, 1, 1}, nil},
	{"F04 a whole quantity", "", []step{ofXML(executed(1, 0), "<quantity>12.5<", "<quantity>1.0<"), of(replay(1), quantity, `"quantity":1`),
		of(replay(1), quantity, `"quantity":1.000000`), of(conflict, quantity, `"quantity":10`), of(conflict, quantity, `"quantity":0.1`)}, stored{1, 1, 1}, nil},
	{"F04 a quantity has no exponent", "", []step{of(malformed(), quantity, `"quantity":1e0`), ofXML(malformed(), "<quantity>12.5<", "<quantity>1e0<")}, stored{}, nil},
	{"F06 the smallest difference of quantities", "", []step{of(executed(1, 0), quantity, `"quantity":999999999999.999998`),
		of(conflict, quantity, `"quantity":999999999999.999999`), of(replay(1), quantity, `"quantity":"999999999999.999998"`)}, stored{1, 1, 1},
		[]fact{{`SELECT l.quantity FROM work_order_lines l JOIN work_orders USING (work_order_id) WHERE work_order_number = '§N-1'`, "999999999999.999998"}}},
	{"F07 minus zero is zero", "", []step{of(field("projects[0].work_orders[0].lines[0].quantity", "gt"), quantity, `"quantity":-0`),
		ofXML(field("projects[0].work_orders[0].lines[0].quantity", "gt"), "<quantity>12.5<", "<quantity>-0.0<")}, stored{}, nil},
	{"F05 a fraction in a whole number", "", []step{of(malformed(), `"line_number":1`, `"line_number":1.0`), of(malformed(), `"line_number":1`, `"line_number":1e0`),
		of(malformed(), `"line_number":1`, `"line_number":"1"`), ofXML(malformed(), "<line_number>1<", "<line_number>1.0<"),
		ofXML(malformed(), "<line_number>1<", "<line_number>+1<"), of(executed(1, 0))}, stored{1, 1, 1}, nil},
	{"F09 composed and decomposed characters", "", []step{of(executed(1, 0), `"unit":"m"`, "\"unit\":\"\u00f6\""), of(conflict, `"unit":"m"`, "\"unit\":\"o\u0308\""),
		ofXML(conflict, "<unit>m<", "<unit>o&#x308;<"), ofXML(replay(1), "<unit>m<", "<unit>&#246;<")}, stored{1, 1, 1}, nil},
	{"F10 what is no character", "", []step{of(malformed(), `"unit":"m"`, "\"unit\":\"\xff\""), of(malformed(), `"unit":"m"`, `"unit":"\ud800"`),
		ofXML(malformed(), "<unit>m<", "<unit>\xff<"), ofXML(malformed(), "<unit>m<", "<unit>&#xD800;<"), ofXML(malformed(), "<unit>m<", "<unit>&#0;<")}, stored{}, nil},
	{"F11 F12 F20 no text, null and an empty text", "", []step{of(executed(1, 0), `"description":"gizli","quantity"`, `"description":"","quantity"`),
		of(replay(1), `"description":"gizli","quantity"`, `"quantity"`), of(replay(1), `"description":"gizli","quantity"`, `"description":null,"quantity"`),
		ofXML(replay(1), "<description>gizli<", "<description><"), ofXML(replay(1), "<description>gizli</description>", ""),
		ofXML(replay(1), "<description>gizli</description>", "<description/>"), of(conflict, `"description":"gizli","quantity"`, `"description":" ","quantity"`)},
		stored{1, 1, 1}, nil},
	{"F12 a list that is empty or not there", "", []step{
		{body: `{"company_code":"TEKIL-TR","organization_code":"IST-01","projects":[]}`, want: field("projects", "min")},
		{body: `{"company_code":"TEKIL-TR","organization_code":"IST-01","projects":null}`, want: field("projects", "min")},
		{body: `{"company_code":"TEKIL-TR","organization_code":"IST-01"}`, want: field("projects", "min")},
		{format: "xml", body: `<work_orders><company_code>TEKIL-TR</company_code><organization_code>IST-01</organization_code><projects/></work_orders>`, want: field("projects", "min")}},
		stored{}, nil},
	{"F13 what the contract does not know", "", []step{of(malformed(), `"unit":"m"`, `"unit":"m","colour":"red"`), ofXML(malformed(), "<unit>m</unit>", "<unit>m</unit><colour>red</colour>"),
		ofXML(malformed(), "<unit>m</unit>", `<unit kind="si">m</unit>`), ofXML(malformed(), "<unit>m</unit>", `m`), ofXML(malformed(), "<line>", "<item>", "</line>", "</item>"),
		ofXML(malformed(), "<work_orders><company_code>", "<order><company_code>", "</projects></work_orders>", "</projects></order>"),
		ofXML(malformed(), "<work_orders><company_code>", "<!DOCTYPE work_orders [<!ENTITY m 'm'>]><work_orders><company_code>", "<unit>m<", "<unit>&m;<"),
		of(executed(1, 0))}, stored{1, 1, 1}, nil},
	{"F14 a member twice, or in another case", "", []step{of(malformed(), `"unit":"m"`, `"unit":"m","unit":"m"`), of(malformed(), `"unit":"m"`, `"Unit":"m"`),
		ofXML(malformed(), "<unit>m</unit>", "<unit>m</unit><unit>m</unit>"), ofXML(malformed(), "<unit>m</unit>", "<Unit>m</Unit>"), of(executed(1, 0))}, stored{1, 1, 1}, nil},
	{"F15 a date is a day and no instant", "", []step{of(malformed(), `"2026-12-07"`, `"2026-12-07T00:00:00Z"`), ofXML(malformed(), "2026-12-07", "2026-12-07+03:00"),
		of(malformed(), `"2026-12-07"`, `"2026-02-30"`)}, stored{}, nil},
	{"F16 the order of work orders", "", []step{{doc: doc("PRJ-1001", "§N-1", "§N-2"), want: executed(2, 0)}, {doc: doc("PRJ-1001", "§N-2", "§N-1"), want: conflict},
		{doc: doc("PRJ-1001", "§N-2", "§N-1"), format: "xml", want: conflict}, {doc: doc("PRJ-1001", "§N-1", "§N-2"), format: "xml", want: replay(1)}}, stored{1, 2, 1}, nil},
	{"F16 the order of projects", "", []step{{doc: joined(doc("PRJ-1001", "§N-1"), doc("PRJ-1002", "§N-2")), want: executed(2, 0)},
		{doc: joined(doc("PRJ-1002", "§N-2"), doc("PRJ-1001", "§N-1")), want: conflict}}, stored{1, 2, 1}, nil},
	{"F24 equal bodies under two keys", "", []step{of(executed(1, 0)), {key: keyed("§K-2"), want: executed(0, 1).with("Idempotency-Key", "§K-2")}}, stored{2, 1, 2}, nil},
	{"F25 the archive has the SHA-256 of the body as it came", "", []step{{body: reversedXML, format: "xml", want: executed(1, 0)}, of(replay(1))}, stored{1, 1, 1},
		[]fact{{`SELECT raw_body_sha256 || ' ' || format FROM inbound_archive WHERE request_id = '§0'`, "§S0 xml"},
			{`SELECT origin_request_id FROM idempotency_records WHERE key = '§K'`, "§0"},
			{`SELECT request_id FROM work_orders WHERE work_order_number = '§N-1'`, "§0"}}},
	{"F25 the same in JSON", "", []step{of(executed(1, 0)), {body: reversed, want: replay(1)}}, stored{1, 1, 1},
		[]fact{{`SELECT raw_body_sha256 || ' ' || format FROM inbound_archive WHERE request_id = '§0'`, "§S0 json"}}},

	// 2.4 Validation and the order of the stages.
	{"V01 a body that cannot be read", "", []step{{body: `{"company_code":`, want: malformed()}, {body: `[]`, want: malformed()}, {body: `null`, want: malformed()}, {body: " ", want: malformed()},
		of(malformed(), "}]}]}]}", "}]}]}]}{}"), {format: "xml", body: `<work_orders><company_code>`, want: malformed()}, {format: "xml", body: `{}`, want: malformed()}, of(executed(1, 0))},
		stored{1, 1, 1}, nil},
	{"V02 a request that is not valid", "", []step{of(field("projects[0].work_orders[0].planned_end", "not_before"), "2026-12-18", "2026-12-06"),
		of(field("projects[0].work_orders[0].lines[0].unit", "required"), `"unit":"m"`, `"unit":""`),
		ofXML(field("projects[0].work_orders[0].lines[0].item_code", "excludes"), "PIPE-DN20", "PIPE DN20"),
		{doc: joined(doc("PRJ-1001", "§N-1"), doc("PRJ-1002", "§N-1")), want: field("projects[1].work_orders[0].work_order_number", "unique")}}, stored{}, nil},
	{"V03 invalid, corrected, the same key", "", []step{of(field("projects[0].work_orders[0].lines[0].quantity", "gt"), quantity, `"quantity":0`), of(executed(1, 0)), of(replay(2))}, stored{1, 1, 1}, nil},
	{"V04 invalid twice, then corrected in XML", "", []step{of(field("projects[0].work_orders[0].lines[0].quantity", "gt"), quantity, `"quantity":0`),
		of(field("projects[0].work_orders[0].lines[0].unit", "required"), `,"unit":"m"`, ``), ofXML(executed(1, 0))}, stored{1, 1, 1}, nil},
	{"V05 a key that is spent and a body that is not valid", "", []step{of(executed(1, 0)), of(field("projects[0].work_orders[0].lines[0].quantity", "gt"), quantity, `"quantity":0`),
		{body: "{", want: malformed()}, of(replay(1))}, stored{1, 1, 1}, nil},
	{"V09 a body that is too long", "", []step{{body: strings.Repeat(" ", bodyLimit+1), want: invalid(413, "BODY_TOO_LARGE")}, of(executed(1, 0))}, stored{1, 1, 1}, nil},
	{"V09 a body in a format that nobody reads", "", []step{{head: []string{"Content-Type: text/plain"}, want: invalid(415, "UNSUPPORTED_MEDIA_TYPE")},
		{head: []string{"Content-Type: application/json; charset=iso-8859-9"}, want: invalid(415, "UNSUPPORTED_MEDIA_TYPE")},
		{head: []string{"Content-Type: application/json", "Content-Encoding: gzip"}, want: invalid(415, "UNSUPPORTED_MEDIA_TYPE")},
		{head: []string{"Content-Type: application/x-www-form-urlencoded"}, want: invalid(415, "UNSUPPORTED_MEDIA_TYPE")},
		{head: []string{"Content-Type: application/json; charset=UTF-8"}, want: executed(1, 0)}, {head: []string{"Content-Type: text/xml; charset=utf-8"}, format: "xml", want: replay(5)}},
		stored{1, 1, 1}, nil},
	{"V09 an answer in a format that nobody writes", "", []step{{head: []string{"Accept: text/html"}, want: invalid(406, "NOT_ACCEPTABLE")},
		{head: []string{"Accept: application/json;q=0, application/xml;q=0"}, want: invalid(406, "NOT_ACCEPTABLE")},
		{head: []string{"Accept: text/html, */*;q=0.1"}, want: executed(1, 0)}, {head: []string{"Accept: text/html"}, want: invalid(406, "NOT_ACCEPTABLE")}}, stored{1, 1, 1}, nil},
	{"V10 not valid, and no key or a bad one", "", []step{
		{key: noKey, edit: []string{quantity, `"quantity":0`}, want: field("projects[0].work_orders[0].lines[0].quantity", "gt").with("Idempotency-Key", "")},
		{key: keyed("short"), edit: []string{quantity, `"quantity":0`}, want: field("projects[0].work_orders[0].lines[0].quantity", "gt").with("Idempotency-Key", "")},
		{key: noKey, body: "{", want: malformed().with("Idempotency-Key", "")}}, stored{}, nil},

	// 2.5 Results and errors.
	{"R01 R02 R19 http-2 a success, and its replay", "", []step{of(executed(1, 0)), of(replay(1)), of(replay(1))}, stored{1, 1, 1},
		[]fact{{`SELECT state || ' ' || outcome FROM idempotency_records WHERE key = '§K'`, "completed 0"}}},
	{"R02 projects that are processed in part are one outcome", "", []step{{doc: partly, want: partlyDone}, {doc: partly, format: "xml", want: again(partlyDone)},
		{doc: partly, edit: []string{"PRJ-9999", "PRJ-9998"}, want: conflict}, {doc: partly, want: again(partlyDone)}}, stored{1, 1, 1}, nil},
	{"R03 R17 rec-7 no project is processed", "", []step{{doc: none, want: noneDone}, {doc: none, want: again(noneDone)},
		{doc: none, format: "xml", want: again(noneDone)}, {doc: none, edit: []string{"PRJ-9999", "PRJ-1001"}, want: conflict}}, stored{1, 0, 0},
		[]fact{{`SELECT state || ' ' || outcome FROM idempotency_records WHERE key = '§K'`, "completed 1"}}},
	{"R03 a refusal in XML, replayed in JSON", "", []step{{doc: none, format: "xml", want: noneDone}, {doc: none, want: again(noneDone)}}, stored{1, 0, 0}, nil},
	{"R25 a refusal under a new key is looked at anew", "", []step{{doc: none, want: noneDone},
		{doc: none, key: keyed("§K-2"), edit: []string{"PRJ-9999", "PRJ-1002"}, want: want{status: 200, success: true, code: "WORK_ORDERS_PARTLY_PROCESSED",
			header: map[string]string{"Idempotency-Key": "§K-2", "Idempotency-Replayed": "false", "Idempotency-Original-Request-ID": "§"}}}}, stored{2, 1, 1}, nil},

	// 2.6 Requests at one time.
	{"L03 rec-4 http-3 the same request while it is at work", "held", []step{{held: true, want: executed(1, 0)}, of(inProgress), ofXML(inProgress)}, stored{1, 1, 1}, nil},
	{"L04 http-4 another request while it is at work", "held", []step{{held: true, want: executed(1, 0)}, of(conflict, quantity, `"quantity":13`),
		ofXML(conflict, "<unit>m<", "<unit>mm<"), of(inProgress)}, stored{1, 1, 1}, nil},

	// The natural key, where the record is gone (rules rec-10 and rec-11).
	{"T01 the record was erased", "", []step{of(executed(1, 0)), {before: `DELETE FROM idempotency_records WHERE key = '§K'`, edit: []string{quantity, `"quantity":13`, "PIPE-DN20", "OTHER"},
		want: executed(0, 1)}}, stored{1, 1, 2}, []fact{{`SELECT item_code FROM work_order_lines JOIN work_orders USING (work_order_id) WHERE work_order_number = '§N-1'`, "PIPE-DN20"}}},
	{"T01 the record has expired", "", []step{of(executed(1, 0)), {before: `UPDATE idempotency_records SET expires_at = §P WHERE key = '§K'`, format: "xml",
		edit: []string{"2026-12-18", "2026-12-19", "PIPE-DN20", "OTHER"}, want: executed(0, 1)}, of(conflict)}, stored{1, 1, 2},
		[]fact{{`SELECT item_code || ' ' || planned_end FROM work_order_lines JOIN work_orders USING (work_order_id) WHERE work_order_number = '§N-1'`, "PIPE-DN20 2026-12-18"}}},

	// The switches (rule http-5).
	{"http-5 H20 switched off: a key is not read", "off", []step{of(unprotected(1, 0)), of(unprotected(0, 1)), of(unprotected(0, 1), quantity, `"quantity":13`),
		{key: keyed("/"), format: "xml", want: unprotected(0, 1)}, {key: noKey, want: unprotected(0, 1)}, {key: []string{"Idempotency-Key: §K", "Idempotency-Key: §K"}, want: unprotected(0, 1)}},
		stored{0, 1, 6}, []fact{{`SELECT count(*) FROM idempotency_records`, "0"}}},
	{"http-5 switched off: a refusal is not kept", "off", []step{{doc: none, want: want{status: 409, code: "NO_PROJECT_PROCESSED"}},
		{doc: none, want: want{status: 409, code: "NO_PROJECT_PROCESSED"}}}, stored{}, nil},
	{"http-5 switched off: what is not valid is refused", "off", []step{of(field("projects[0].work_orders[0].lines[0].quantity", "gt").with("Idempotency-Key", ""), quantity, `"quantity":0`),
		{route: testRoute, want: previewed("WORK_ORDERS_WOULD_BE_PROCESSED")}}, stored{}, nil},
})

// badKeys are rows with a key that is refused and does not stop a good one.
func badKeys() (rows []row) {
	bad := map[string][]string{
		"H03 an empty key":              {"Idempotency-Key:"},
		"H04 a key of spaces":           {"Idempotency-Key:  \t "},
		"H06 spaces within the quotes":  keyed(`" §K "`),
		"H07 a key of 7":                keyed("abcdefg"),
		"H07 a key of 7 in quotes":      keyed(`"abcdefg"`),
		"H10 a key of 129":              keyed("§K" + strings.Repeat("x", 121)),
		"H10 a key of 70 kB":            keyed(strings.Repeat("x", 70_000)),
		"H12 the same key twice":        {"Idempotency-Key: §K", "Idempotency-Key: §K"},
		"H12 two keys":                  {"Idempotency-Key: §K", "idempotency-key: §K-2"},
		"H12 a key and an empty one":    {"Idempotency-Key: §K", "Idempotency-Key:"},
		"H13 two keys in one line":      keyed("§K, §K"),
		"H15 a quoted key with v=1":     keyed(`"§K";v=1`),
		"H15 a quoted key, escaped":     keyed(`"§K\-a"`),
		"H15 a quote within":            keyed(`"§K"a"`),
		"H15 no closing quote":          keyed(`"§K`),
		"H15 no opening quote":          keyed(`§K"`),
		"H15 a quote alone":             keyed(`"`),
		"H18 a key folded in two lines": {"Idempotency-Key: §K", " §K"},
	}
	for _, c := range []string{"/", ";", "%", "{", "ç", " ", "+", "=", "'", `\`, "\x7f", "\xff"} {
		bad["H11 the character "+fmt.Sprintf("%q", c)] = keyed("§K" + c + "a")
	}
	for name, lines := range bad {
		w := keyInvalid
		if strings.Contains(name, `\x7f`) {
			w = want{status: 400, foreign: true} // of a control character net/http says so itself
		}
		rows = append(rows, row{name, "", []step{{key: lines, want: w}, {key: lines, format: "xml", want: w}, of(executed(1, 0))}, stored{1, 1, 1}, nil})
	}
	slices.SortFunc(rows, func(a, b row) int { return strings.Compare(a.name, b.name) })
	return rows
}

// The table is the contract. Every attempt stands in the log, with its key and without its body (V11, H24).
func TestTheContract(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"SQLite", "PostgreSQL"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			programs := map[string]*program{}
			for name, c := range map[string]struct{ env, flags []string }{
				"":         {nil, nil},
				"tokens":   {nil, []string{"-tokens", writeTokens(t, "erp-a token-of-a-aaaaaaaa\nerp-a token-of-a-rotated\nerp-b token-of-b-bbbbbbbb\n")}},
				"optional": {[]string{"IDEMPOTENCY_REQUIRED=false"}, nil},
				"off":      {[]string{"IDEMPOTENCY_ENABLED=false"}, nil},
				"proxied":  {nil, []string{"-trusted-proxies", "192.0.2.0/24,127.0.0.0/8"}},
				"held":     {nil, []string{"-hold-demo", "6s"}},
			} {
				d := sqliteDatabase(t)
				if kind == "PostgreSQL" {
					d = &database{postgres: pgtest.Open(t)}
				}
				programs[name] = start(t, d, c.env, c.flags...)
			}
			t.Run("row", func(t *testing.T) { // the programs end after all of them
				for i, r := range contract {
					t.Run(r.name, func(t *testing.T) {
						t.Parallel()
						r.run(t, programs[r.on], fmt.Sprintf("key-%04d", i), fmt.Sprintf("W%04d", i))
					})
				}
			})
		})
	}
}

func (r row) run(t *testing.T, p *program, key, number string) {
	t.Helper()
	pairs := []string{"§P", p.past()}
	fill := func(s string) string { return filler(key, number, pairs...)(s) }
	answers := make([]answer, len(r.steps))
	done := make(chan error, len(r.steps))
	for i, s := range r.steps {
		if s.before != "" {
			p.exec(t, fill(s.before))
		}
		sent := s.request()
		sent.body, sent.path = fill(sent.body), fill(sent.path)
		for j := range sent.lines {
			sent.lines[j] = fill(sent.lines[j])
		}
		pairs = append(pairs, fmt.Sprint("§S", i), fmt.Sprintf("%x", sha256.Sum256([]byte(sent.body))))
		ctx := within(t)
		send := func() {
			var err error
			answers[i], err = exchange(ctx, p.base, sent)
			done <- err
		}
		if s.held {
			go send()
			p.awaitUnderWay(t, key)
		} else {
			send()
		}
	}
	for range r.steps {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	ids := map[string]bool{}
	for i, a := range answers {
		pairs = append(pairs, fmt.Sprint("§", i), a.id())
		own := func(s string) string { return strings.ReplaceAll(fill(s), "§", a.id()) }
		for _, problem := range r.steps[i].want.problems(r.steps[i], a, answers, own) {
			t.Errorf("step %d: %s: %v", i+1, problem, a)
		}
		if a.id() == "" {
			continue
		}
		if ids[a.id()] {
			t.Errorf("step %d has the id of another attempt: %s", i+1, a.id())
		}
		ids[a.id()] = true
		line := p.logged(t, a.id())[0] // V11
		if echo := a.header.Get("Idempotency-Key"); echo != "" && line["key"] != echo {
			t.Errorf("step %d: the log says that its key is %v", i+1, line["key"]) // H24
		}
	}
	orders := fmt.Sprintf(`work_orders WHERE work_order_number LIKE '%s-%%'`, number)
	attempts := []string{"''"}
	for id := range ids {
		attempts = append(attempts, "'"+id+"'")
	}
	for _, f := range append([]fact{
		{fmt.Sprintf(`SELECT count(*) FROM idempotency_records WHERE lower(key) LIKE '%%%s%%'`, key), fmt.Sprint(r.stored.records)},
		{`SELECT count(*) FROM ` + orders, fmt.Sprint(r.stored.orders)},
		{`SELECT count(*) FROM work_order_lines WHERE work_order_id IN (SELECT work_order_id FROM ` + orders + `)`, fmt.Sprint(r.stored.orders)},
		{`SELECT count(*) FROM inbound_archive WHERE request_id IN (` + strings.Join(attempts, ", ") + `)`, fmt.Sprint(r.stored.archive)},
	}, r.facts...) {
		got := p.text(t, fill(f.query))
		if p.postgres == nil && f.want == "true" && got == "1" {
			continue
		}
		if got != fill(f.want) {
			t.Errorf("%s: it is %s, want %s", fill(f.query), got, fill(f.want))
		}
	}
}

// filler puts a row's values, and others by turns, in the place of what stands for them.
func filler(key, number string, pairs ...string) func(string) string {
	return strings.NewReplacer(append([]string{"§K", key, "§N", number}, pairs...)...).Replace
}

// request is what the step sends.
func (s step) request() request {
	method, path, _ := strings.Cut(s.route, " ")
	if s.route == "" {
		method, path = http.MethodPost, importPath
	}
	out := request{method: method, path: path, lines: slices.Clone(s.head), body: s.body}
	if s.key == nil {
		s.key = keyed("§K")
	}
	out.lines = append(out.lines, s.key...)
	if method == http.MethodGet || method == http.MethodHead {
		return out
	}
	if s.format == "" {
		s.format = "json"
	}
	if !slices.ContainsFunc(s.head, func(line string) bool { return strings.HasPrefix(line, "Content-Type:") }) {
		out.lines = append(out.lines, "Content-Type: application/"+s.format)
	}
	if out.body == "" {
		if s.doc.Projects == nil {
			s.doc = doc("PRJ-1001", "§N-1")
		}
		out.body = written(s.doc, s.format)
	}
	for i := 0; i < len(s.edit); i += 2 {
		if !strings.Contains(out.body, s.edit[i]) {
			panic("there is no " + s.edit[i] + " in " + out.body)
		}
		out.body = strings.Replace(out.body, s.edit[i], s.edit[i+1], 1)
	}
	return out
}

// problems says where an answer is another one. own fills in what stands for the row's values.
func (w want) problems(s step, a answer, answers []answer, own func(string) string) (problems []string) {
	bad := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	if a.status != w.status {
		bad("want status %d", w.status)
	}
	header := map[string]string{"Idempotency-Key": "", "Idempotency-Replayed": "", "Idempotency-Original-Request-ID": "", "Retry-After": "", "Set-Cookie": ""}
	if !w.foreign {
		format := w.format
		if format == "" {
			format = s.format
		}
		if format == "" {
			format = "json"
		}
		header["Content-Type"], header["Vary"] = "application/"+format, "Accept"
		if !strings.HasPrefix(s.route, "GET ") {
			header["Cache-Control"] = "no-store"
		}
	}
	for name, value := range w.header {
		header[name] = own(value)
	}
	for name, value := range header {
		if got := a.header.Values(name); strings.Join(got, "|") != value || len(got) > 1 {
			bad("want %s %q", name, value)
		}
	}
	if w.foreign {
		return problems
	}
	body, err := a.tree()
	if err != nil {
		bad("%v", err)
		return problems
	}
	for _, f := range append([]string{"request_id=§", "code=" + w.code, fmt.Sprint("success=", w.success)}, w.facts...) {
		path, value, _ := strings.Cut(own(f), "=")
		if body.at(path) != value {
			bad("want %s=%s", path, value)
		}
	}
	if a.id() == "" || body.at("message") == "" || len(body.children) != 6 {
		bad("the envelope is not whole")
	}
	if w.as > 0 {
		first := answers[w.as-1]
		original, err := first.tree()
		if err != nil || original.without("request_id").String() != body.without("request_id").String() {
			bad("want the body of %s (%v)", first, err)
		}
		for name := range first.header { // R19: no header comes or goes
			if a.header.Get(name) == "" {
				bad("%s is missing", name)
			}
		}
		if len(first.header) != len(a.header) {
			bad("want the headers of %s", first)
		}
	}
	return problems
}

// A client whose token is withdrawn gets nothing more, and nothing of what is kept changes. When it comes back, its keys are what they were.
func TestS10_AClientThatIsLetInNoMoreGetsNoReplay(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		const b = "erp-b token-of-b-bbbbbbbb\n"
		with, without := writeTokens(t, "erp-a token-of-a-aaaaaaaa\n"+b), writeTokens(t, b)
		send := func(tokens string) answer {
			p := start(t, d, nil, "-tokens", tokens)
			defer p.kill()
			sent := step{head: []string{bearerA}}.request()
			for i := range sent.lines {
				sent.lines[i] = strings.ReplaceAll(sent.lines[i], "§K", "withdrawn")
			}
			sent.body = asJSON(doc("PRJ-1001", "WO-1"))
			a, err := exchange(within(t), p.base, sent)
			if err != nil {
				t.Fatal(err)
			}
			return a
		}
		first := send(with)
		first.is(t, http.StatusOK, "WORK_ORDERS_PROCESSED")
		before := d.contents(t)
		send(without).is(t, http.StatusUnauthorized, "UNAUTHENTICATED")
		if !reflect.DeepEqual(d.contents(t), before) {
			t.Error("something was written")
		}
		again := send(with)
		again.is(t, http.StatusOK, "WORK_ORDERS_PROCESSED")
		if again.replayed() != "true" || again.header.Get("Idempotency-Original-Request-ID") != first.id() {
			t.Errorf("it is no replay: %v", again)
		}
		d.holds(t, "1", "1", "1", "1")
	})
}

// The bounds of the two numbers are kept, and what stands between them counts (rules rec-5, rec-10, http-5).
func TestTheNumbersOfTheEnvironmentCount(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		env              []string
		lease, retention string // in seconds and hours
	}{
		{nil, "300", "720"},
		{[]string{"IDEMPOTENCY_PROCESSING_LEASE_SECONDS=30", "IDEMPOTENCY_RETENTION_HOURS=24"}, "30", "24"},
		{[]string{"IDEMPOTENCY_PROCESSING_LEASE_SECONDS=3600", "IDEMPOTENCY_RETENTION_HOURS=8760"}, "3600", "8760"},
	} {
		t.Run(strings.Join(c.env, " "), func(t *testing.T) {
			t.Parallel()
			d := sqliteDatabase(t)
			p := start(t, d, c.env, "-hold-demo", "10s")
			ctx, sent := within(t), make(chan error, 1)
			go func() {
				_, err := p.send(ctx, "the-numbers", "json", asJSON(doc("PRJ-1001", "WO-1")))
				sent <- err
			}()
			d.awaitUnderWay(t, "the-numbers")
			got := d.text(t, `SELECT ((lease_until - created_at + 500) / 1000) || ' ' || ((expires_at - created_at + 500) / 3600000) FROM idempotency_records`)
			if want := c.lease + " " + c.retention; got != want {
				t.Errorf("lease and retention are %s, want %s", got, want)
			}
			p.kill()
			if err := <-sent; err == nil {
				t.Error("the import ended before it was looked at")
			}
		})
	}
}

func TestASwitchThatMakesNoSenseIsNamedAndNothingStarts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, value, says string }{
		{"IDEMPOTENCY_PROCESSING_LEASE_SECONDS", "29", "it must be a whole number of seconds between 30 and 3600"},
		{"IDEMPOTENCY_PROCESSING_LEASE_SECONDS", "3601", "it must be a whole number of seconds between 30 and 3600"},
		{"IDEMPOTENCY_PROCESSING_LEASE_SECONDS", "", "it must be a whole number of seconds between 30 and 3600"},
		{"IDEMPOTENCY_PROCESSING_LEASE_SECONDS", "30s", "it must be a whole number of seconds between 30 and 3600"},
		{"IDEMPOTENCY_RETENTION_HOURS", "23", "it must be a whole number of hours between 24 and 8760"},
		{"IDEMPOTENCY_RETENTION_HOURS", "8761", "it must be a whole number of hours between 24 and 8760"},
		{"IDEMPOTENCY_RETENTION_HOURS", "99999999999999999999", "it must be a whole number of hours between 24 and 8760"},
		{"IDEMPOTENCY_ENABLED", "off", "it must be true or false"},
		{"IDEMPOTENCY_REQUIRED", "", "it must be true or false"},
	} {
		t.Run(c.name+"="+c.value, func(t *testing.T) {
			t.Parallel()
			d := sqliteDatabase(t)
			p, err := launch(d, []string{c.name + "=" + c.value})
			if p != nil {
				defer p.kill()
			}
			if !errors.Is(err, errExited) || p.cmd.ProcessState.ExitCode() != 1 {
				t.Fatalf("it has started: %v", err)
			}
			if want := fmt.Sprintf("workorders: %s is %q; %s\n", c.name, c.value, c.says); p.stderr.String() != want {
				t.Errorf("it says %q, want %q", p.stderr.String(), want)
			}
			if _, err := os.Stat(d.path); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("there is a database: %v", err)
			}
		})
	}
}
