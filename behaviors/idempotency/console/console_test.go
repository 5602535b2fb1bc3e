package console_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/console"
)

func TestNewRefusesAConsoleThatNobodyGuards(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	admin := d.admin
	for name, cfg := range map[string]console.Config{
		"Config.Who":      {Admin: admin},
		"Config.Admin":    {Who: ayse},
		"Config.Timeout":  {Admin: admin, Who: ayse, Timeout: -1},
		"CountTimeout":    {Admin: admin, Who: ayse, CountTimeout: -1},
		"Config.Pipeline": {Admin: admin, Who: ayse, Pipeline: unwritable{}},
	} {
		if h, err := console.New(cfg); h != nil || err == nil || !strings.HasPrefix(err.Error(), "console: ") || !strings.Contains(err.Error(), name) {
			t.Errorf("without %s: %v", name, err)
		}
	}
}

type unwritable struct{ C chan int }

func (unwritable) String() string { return "" }

// routes are all that a console has, with the method of each.
func routes(id idempotency.ID) map[string]string {
	return map[string]string{"/": "GET", "/console.css": "GET", "/stuck": "GET", "/pipeline": "GET", "/search": "POST", recordPath(id): "GET", recordPath(id) + "/release": "POST"}
}

func TestNobodyGetsInWhomTheApplicationDoesNotKnow(t *testing.T) {
	t.Parallel()
	asked := 0
	d := newDesk(t, func(c *console.Config) { c.Who = func(r *http.Request) (string, error) { asked++; return ayse(r) } })
	id := d.put(kept("key-00000001", inProgress(0)))
	d.store.find = func(context.Context, idempotency.Search) error { t.Error("the store was asked"); return nil }
	d.store.count = func(context.Context) error { t.Error("the store was asked"); return nil }
	all := routes(id)
	all["/nowhere"] = "GET"
	for path := range all {
		for _, method := range []string{"GET", "POST", "HEAD", "DELETE"} {
			asked = 0
			w := d.ask(t, method, path, form("q", "key-00000001"), "nobody")
			wantPage(t, w, 403, "You may not use this console")
			if asked != 1 || strings.Contains(w.Body.String(), "4711") || strings.Contains(w.Body.String(), "mallory") || strings.Contains(w.Body.String(), "<nav") {
				t.Errorf("%s %s: asked %d times: %s", method, path, asked, w.Body)
			}
			wantProblem(t, d.ask(t, method, path, form("q", "key-00000001"), "nobody", "json"), 403, "FORBIDDEN")
		}
	}
	d = newDesk(t, func(c *console.Config) { c.Who = func(*http.Request) (string, error) { return " \t", nil } })
	wantPage(t, d.ask(t, "GET", "/", ""), 403)
}

func TestEveryAnswerIsKeptFromCachesFramesAndSearchEngines(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	id := d.put(kept("key-00000001", inProgress(0)))
	all := routes(id)
	all["/nowhere"] = "GET"
	for path := range all {
		for _, options := range [][]string{nil, {"json"}, {"nobody"}} {
			h := d.ask(t, all[path], path, "", options...).Header()
			for name, want := range map[string]string{
				"Content-Security-Policy": "default-src 'none'; style-src 'self'; img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
				"X-Frame-Options":         "DENY", "X-Content-Type-Options": "nosniff", "Cache-Control": "no-store", "X-Robots-Tag": "noindex, nofollow", "Referrer-Policy": "same-origin",
			} {
				if got := h.Get(name); got != want {
					t.Errorf("%s: %s is %q", path, name, got)
				}
			}
		}
	}
}

func TestRoutesMethodsAndBodiesThatAreNone(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	id := d.put(kept("key-00000001", inProgress(0)))
	for path, method := range routes(id) {
		if method == "POST" { // the address of an answer to a form, opened anew in a browser
			want := "./"
			if path != "/search" {
				want = "../../records/" + id.Operation()
			}
			for _, opened := range []string{"GET", "HEAD"} {
				if w := d.ask(t, opened, path+"?q=x", ""); w.Code != 303 || w.Header().Get("Location") != want {
					t.Errorf("%s %s leads to %d %q", opened, path, w.Code, w.Header().Get("Location"))
				}
			}
		}
		for _, wrong := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"} {
			if wrong == method || method == "GET" && wrong == "HEAD" {
				continue
			}
			w := d.ask(t, wrong, path, "", "json")
			wantProblem(t, w, 405, "METHOD_NOT_ALLOWED")
			want := method
			if method == "GET" {
				want = "GET, HEAD"
			}
			if got := w.Header().Get("Allow"); got != want {
				t.Errorf("%s %s allows %q", wrong, path, got)
			}
		}
		if method == "GET" {
			if w := d.ask(t, "HEAD", path, ""); w.Code != 200 {
				t.Errorf("HEAD %s is %d", path, w.Code)
			}
		}
	}
	for _, path := range []string{"/nowhere", "/record", "/search/", "/stuck/x", "/pipelines", "//"} {
		wantPage(t, d.ask(t, "GET", path, ""), 404, "There is no such page.")
		wantProblem(t, d.ask(t, "GET", path, "", "json"), 404, "NOT_FOUND")
	}
	for _, path := range []string{"/records/", "/records/x", "/records/" + strings.ToUpper(id.Operation()), recordPath(idempotency.ID{1}), recordPath(idempotency.ID{}), recordPath(id) + "/", recordPath(id) + "/x"} {
		wantProblem(t, d.ask(t, "GET", path, "", "json"), 404, "RECORD_NOT_FOUND")
	}
	wantPage(t, newDesk(t, func(c *console.Config) { c.Pipeline = nil }).ask(t, "GET", "/pipeline", ""), 404)
	if w := newDesk(t, func(c *console.Config) { c.Pipeline = nil }).ask(t, "GET", "/", ""); strings.Contains(w.Body.String(), "Pipeline") {
		t.Error("the page leads to a pipeline that is not there")
	}

	const asJSON = "Content-Type: application/json"
	long := strings.Repeat("ğ", 501)
	for name, tc := range map[string]struct {
		body, sent string
		status     int
		code       string
	}{
		"empty":               {"", "", 400, "MALFORMED_REQUEST"},
		"blank":               {form("q", " \t "), "", 400, "MALFORMED_REQUEST"},
		"no JSON":             {`{"q":`, asJSON, 400, "MALFORMED_REQUEST"},
		"another field":       {`{"q":"a","password":"x"}`, asJSON, 400, "MALFORMED_REQUEST"},
		"a number":            {`{"q":4711}`, asJSON, 400, "MALFORMED_REQUEST"},
		"a kind that is none": {form("q", "x", "by", "body"), "", 400, "MALFORMED_REQUEST"},
		"no operation id":     {form("q", "x", "by", "operation_id"), "", 400, "MALFORMED_REQUEST"},
		"no record id":        {form("q", "x", "by", "id"), "", 400, "MALFORMED_REQUEST"},
		"too long":            {form("q", long), "", 400, "MALFORMED_REQUEST"},
		"a NUL":               {form("q", "a\x00b"), "", 400, "MALFORMED_REQUEST"},
		"no UTF-8":            {form("q", "a\xffb"), "", 400, "MALFORMED_REQUEST"},
		"far too long":        {form("q", strings.Repeat("k", 40<<10)), "", 413, "BODY_TOO_LARGE"},
		"a file":              {"x", "Content-Type: multipart/form-data; boundary=x", 415, "UNSUPPORTED_MEDIA_TYPE"},
		"another site's":      {form("q", "key-00000001"), "Sec-Fetch-Site: cross-site", 403, "CROSS_ORIGIN"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			options := []string{"json"}
			if tc.sent != "" {
				options = append(options, tc.sent)
			}
			wantProblem(t, d.ask(t, "POST", "/search", tc.body, options...), tc.status, tc.code)
		})
	}
	for _, fits := range []string{strings.Repeat("ğ", 500), strings.Repeat("\U0001F600", 500)} { // characters, not bytes
		d.search(t, "q", fits, "by", "any", "tenant", fits, "client", fits, "command", fits)
	}
	for by, words := range map[string]string{"operation_id": "operation id", "id": "record id"} {
		if p := decode[problem](t, d.ask(t, "POST", "/search", form("q", "x", "by", by), "json"), 400); p.Error != "What was given does not have the form of this kind: "+words+"." {
			t.Errorf("it says %q", p.Error)
		}
	}
	// A key in the query would be in the log of every proxy, so it is not even read there.
	wantProblem(t, d.ask(t, "POST", "/search?q=key-00000001", "", "json"), 400, "MALFORMED_REQUEST")
}

func TestARecordIsFoundByWhateverSupportHas_see1(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	id := d.put(kept("key-00000001"))
	d.put(kept("key-00000002"))
	for text, kind := range map[string]string{
		"key-00000001": "key", "auth-key-00000001": "external_ref", "draft-key-00000001": "draft_id", "req-key-00000001": "request_id",
		id.Operation(): "operation_id", strings.ToUpper(id.Operation()): "operation_id",
		uuid(id): "id", strings.ToUpper(uuid(id)): "id", strings.ReplaceAll(uuid(id), "-", ""): "id", "  key-00000001\n": "key",
	} {
		for _, by := range []string{"", "any", kind} {
			got := d.search(t, "q", text, "by", by)
			if len(got.Records) != 1 || got.Records[0].OperationID != id.Operation() || got.Records[0].ID != uuid(id) || !slices.Equal(got.Records[0].FoundBy, []string{kind}) || got.Truncated || got.Summary != "1 record: 1 done." {
				t.Errorf("%q by %q: %+v", text, by, got)
			}
		}
		// As JSON as well; and a page leads to the record, whose address holds no key.
		w := d.ask(t, "POST", "/search", fmt.Sprintf(`{"q":%q}`, text), "Content-Type: application/json", "Accept: */*")
		if got := decode[found](t, w, 200); len(got.Records) != 1 {
			t.Errorf("%q as JSON: %+v", text, got)
		}
		w = d.ask(t, "POST", "/search", form("q", text))
		if at := w.Header().Get("Location"); w.Code != 303 || at != "./records/"+id.Operation()+"?by="+kind {
			t.Errorf("%q leads to %d %q", text, w.Code, at)
		}
	}
	for _, none := range []string{uuid(idempotency.ID{}), idempotency.ID{}.Operation(), strings.Repeat("0", 32)} {
		if got := d.search(t, "q", none); len(got.Records) != 0 {
			t.Errorf("%q finds %+v", none, got)
		}
	}
	for _, other := range []string{"draft_id", "external_ref", "request_id"} {
		if got := d.search(t, "q", "key-00000001", "by", other); len(got.Records) != 0 {
			t.Errorf("the key is found by %s", other)
		}
	}
	w := d.ask(t, "GET", recordPath(id)+"?by=draft_id&by=key&by=<b>", "")
	wantPage(t, w, 200, "<dd>key, draft id</dd>")
	wantPage(t, d.ask(t, "POST", "/search", form("q", "key-0000")), 200, "Nothing was found.", "An external reference is in a record only when it is completed; the draft of a Leased command is there from the start.", `value="key-0000"`)
}

func TestOneTextMayBeSeveralThings(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.put(kept("order-4711", func(r *idempotency.Record) { r.DraftID, r.ExternalRef = "order-4711", "order-4711" }))
	d.put(kept("key-00000002", func(r *idempotency.Record) { r.DraftID = "order-4711" }))
	d.put(kept("key-00000003", failed, func(r *idempotency.Record) { r.DraftID = "order-4711" }))
	d.put(kept("key-00000004", func(r *idempotency.Record) {
		r.DraftID, r.Scope.Operation, r.Scope.Tenant, r.Scope.Client = "order-4711", "mail.send", "other", "robot"
	}))
	got := d.search(t, "q", "order-4711")
	by := map[string]int{}
	for _, r := range got.Records {
		by[strings.Join(r.FoundBy, ",")]++
	}
	if !maps.Equal(by, map[string]int{"key,external_ref,draft_id": 1, "draft_id": 3}) {
		t.Errorf("they are found by %v", by)
	}
	if want := "4 records: 3 done, 1 failed. orders.place was done 2 times under this draft id, with different keys, clients, tenants or routes: to the server these were different intents."; got.Summary != want {
		t.Errorf("the summary is %q", got.Summary)
	}
	wantPage(t, d.ask(t, "POST", "/search", form("q", "order-4711")), 200, "orders.place was done 2 times", "<dd>key, external reference, draft id</dd>")
	for name, tc := range map[string]struct {
		pairs []string
		n     int
	}{
		"tenant":             {[]string{"tenant", "other"}, 1},
		"client":             {[]string{"client", "shop-7"}, 3},
		"command":            {[]string{"command", "orders.place"}, 3},
		"operation":          {[]string{"command", "POST /v1/orders orders.place"}, 3},
		"another operation":  {[]string{"command", "POST /v2/orders orders.place"}, 0},
		"command of no path": {[]string{"command", "mail.send"}, 1},
		"all":                {[]string{"tenant", "other", "client", "robot", "command", "mail.send"}, 1},
		"none of them":       {[]string{"tenant", "other", "client", "shop-7"}, 0},
	} {
		if got := d.search(t, append([]string{"q", "order-4711"}, tc.pairs...)...); len(got.Records) != tc.n {
			t.Errorf("narrowed by %s there are %d", name, len(got.Records))
		}
	}
	if !strings.Contains(d.ask(t, "POST", "/search", form("q", "order-4711", "client", "shop-7")).Body.String(), `value="shop-7"`) {
		t.Error("the page forgets what it is narrowed to")
	}
}

func TestAnAnswerIsBounded(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	for i := range 101 {
		d.put(kept(fmt.Sprintf("key-%08d", i), inProgress(0), func(r *idempotency.Record) { r.DraftID = "draft-1" }))
	}
	got := d.search(t, "q", "draft-1")
	if len(got.Records) != 100 || !got.Truncated {
		t.Errorf("there are %d, truncated %t", len(got.Records), got.Truncated)
	}
	wantPage(t, d.ask(t, "POST", "/search", form("q", "draft-1")), 200, "There may be more than these")
	wantPage(t, d.ask(t, "GET", "/stuck", ""), 200, "There may be more than these")
	// What is narrowed afterwards may be among those that were not given.
	d.put(kept("key-mail", inProgress(0), func(r *idempotency.Record) { r.DraftID, r.Scope.Operation = "draft-1", "mail.send" }))
	wantPage(t, d.ask(t, "POST", "/search", form("q", "draft-1", "command", "mail.send")), 200, "There may be more than these")
	if got := d.search(t, "q", "draft-1", "command", "mail.gone"); len(got.Records) != 0 || !got.Truncated {
		t.Errorf("there are %d, truncated %t", len(got.Records), got.Truncated)
	}
}

func TestVerdictsSayInPlainWordsWhatIsKnown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // the clock stands at midnight of the first day of 2000
		expired := func(r *idempotency.Record) { r.Expired = true }
		tombstone := func(r *idempotency.Record) { r.AfterExpiry = idempotency.Tombstone }
		refused := func(r *idempotency.Record) {
			r.Outcome, r.ResultType, r.Result = idempotency.Refusal, "refusal/1", []byte(`{"code":"PAYMENT_DECLINED","message":"m"}`)
		}
		ofType := func(s string) func(*idempotency.Record) { return func(r *idempotency.Record) { r.ResultType = s } }
		noRef := func(r *idempotency.Record) { r.ExternalRef = "" }
		const done, same = "Done once, by request req-key-00000001 at 2000-01-01 00:00:00 UTC, external reference auth-key-00000001.", " Later tries with this key get the same answer and are not done again."
		const newWork, refusedLater = " Its retention is over, so a later try with this key is new work.", " Later tries with this key are refused as expired."
		const stuck = "Nobody knows whether it was done: the last attempt, by request req-key-00000001, began and has not said how it ended. Nothing has been heard since its lease ended: most likely nobody is at work on it, but an attempt may still finish. Ask the other system before it is done again."
		const notHere = "Nothing of it is committed in this database. What earlier attempts asked of other systems may have been done there, so look there as well."
		const elsewhere = " It took at least 3 attempts; another system that an earlier one had called may have been asked more than once, so look there as well."
		thrice := func(r *idempotency.Record) { r.Attempts = 3 }
		for name, tc := range map[string]struct {
			change []func(*idempotency.Record)
			want   string
		}{
			"done":                      {nil, done + same},
			"done without a reference":  {[]func(*idempotency.Record){noRef}, "Done once, by request req-key-00000001 at 2000-01-01 00:00:00 UTC." + same},
			"done, sealed":              {[]func(*idempotency.Record){ofType("sealed/1")}, done + same},
			"done in three attempts":    {[]func(*idempotency.Record){thrice}, done + elsewhere + same},
			"done, left out":            {[]func(*idempotency.Record){ofType("omitted")}, done + " What came of it was not kept. Later tries with this key are not done again; they are told that the result was not kept."},
			"done, expired":             {[]func(*idempotency.Record){expired}, done + newWork},
			"done, a tombstone to be":   {[]func(*idempotency.Record){expired, tombstone}, done + refusedLater},
			"done, erased":              {[]func(*idempotency.Record){ofType("tombstone"), noRef}, "Done once, by request req-key-00000001 at 2000-01-01 00:00:00 UTC. What came of it is no longer kept." + refusedLater},
			"refused":                   {[]func(*idempotency.Record){refused, noRef}, "Refused for good with PAYMENT_DECLINED, by request req-key-00000001 at 2000-01-01 00:00:00 UTC. Nothing of it was kept in this database. Later tries with this key get the same refusal."},
			"refused in three attempts": {[]func(*idempotency.Record){refused, noRef, thrice}, "Refused for good with PAYMENT_DECLINED, by request req-key-00000001 at 2000-01-01 00:00:00 UTC. Nothing of it was kept in this database." + elsewhere + " Later tries with this key get the same refusal."},
			"refused, erased":           {[]func(*idempotency.Record){refused, noRef, ofType("tombstone")}, "Refused for good, by request req-key-00000001 at 2000-01-01 00:00:00 UTC. Nothing of it was kept in this database." + refusedLater},
			"at work":                   {[]func(*idempotency.Record){inProgress(time.Minute), func(r *idempotency.Record) { r.Attempts = 2 }}, "Most likely being done now: an attempt, by request req-key-00000001, holds the key. One that has died would hold it as well, until its lease is over. It is not decided yet; later tries with this key are told to wait."},
			"stuck":                     {[]func(*idempotency.Record){inProgress(0), func(r *idempotency.Record) { r.Attempts = 2 }}, stuck + " The same request with this key goes on as its command says: it runs again, finds out first, or is refused."},
			"stuck and expired":         {[]func(*idempotency.Record){inProgress(0), expired, func(r *idempotency.Record) { r.Attempts = 2 }}, stuck + " Its retention is over, so a request with this key is new work."},
			"failed":                    {[]func(*idempotency.Record){failed}, notHere + " The same request with this key runs again, unless it has had too many attempts: then it waits for a release."},
			"failed too often":          {[]func(*idempotency.Record){failed, thrice}, notHere + " The same request with this key runs again, unless it has had too many attempts: then it waits for a release."},
			"failed and expired":        {[]func(*idempotency.Record){failed, expired}, notHere + " Its retention is over, so a request with this key is new work."},
			"nameless":                  {[]func(*idempotency.Record){noRef, func(r *idempotency.Record) { r.OriginRequestID = "" }}, "Done once, by a request without an id at 2000-01-01 00:00:00 UTC." + same},
		} {
			d := newDesk(t)
			id := d.put(kept("key-00000001", tc.change...))
			if got := decode[record](t, d.ask(t, "GET", recordPath(id), "", "json"), 200).Verdict; got != tc.want {
				t.Errorf("%s:\n%q, want\n%q", name, got, tc.want)
			}
			wantPage(t, d.ask(t, "GET", recordPath(id), ""), 200, tc.want)
		}
	})
}

func TestTheFieldsForScriptsStayAsTheyAre(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t)
		id := d.put(kept("key-00000001"))
		live := d.put(kept("key-00000002", inProgress(90*time.Second)))
		want := `{
  "id": "` + uuid(id) + `",
  "operation_id": "` + id.Operation() + `",
  "verdict": "Done once, by request req-key-00000001 at 2000-01-01 00:00:00 UTC, external reference auth-key-00000001. Later tries with this key get the same answer and are not done again.",
  "tenant": "acme",
  "client": "shop-7",
  "command": "orders.place",
  "operation": "POST /v1/orders orders.place",
  "key_masked": "key-…",
  "state": "completed",
  "stuck": false,
  "expired": false,
  "first_met": "2000-01-01T00:00:00Z",
  "attempts": 1,
  "attempt_id": "07000000000000000000000000000000",
  "completed_at": "2000-01-01T00:00:00Z",
  "expires_at": "2000-01-04T00:00:00Z",
  "after_expiry": "reuse",
  "request_id": "req-key-00000001",
  "external_ref": "auth-key-00000001",
  "draft_id": "draft-key-00000001",
  "outcome": "success",
  "kept": "result",
  "result_type": "result/1",
  "result_bytes": 44
}
`
		if got := d.ask(t, "GET", recordPath(id), "", "json").Body.String(); got != want {
			t.Errorf("the record is %s", got)
		}
		time.Sleep(30 * time.Second) // the bubble's clock
		wantPage(t, d.ask(t, "GET", recordPath(live), ""), 200, "lease until <time datetime=\"2000-01-01T00:01:30Z\">2000-01-01 00:01:30 UTC</time> <span class=\"ago\">(in 60 s)</span>",
			"this life began <time datetime=\"2000-01-01T00:00:00Z\">2000-01-01 00:00:00 UTC</time> <span class=\"ago\">(30 s ago)</span>", "<li>at least 1 attempt</li>")
		time.Sleep(3 * time.Hour)
		wantPage(t, d.ask(t, "GET", recordPath(live), ""), 200, "over since", "(2 h ago)", "(3 h ago)", "(in 2 days)")
		type counts struct {
			Records, Stuck, Failed int64
			Counts                 []map[string]any
		}
		got := decode[counts](t, d.ask(t, "GET", "/", "", "json"), 200)
		if fmt.Sprint(got) != "{2 1 0 [map[command:orders.place expired:false operation:POST /v1/orders orders.place records:1 state:completed stuck:false] map[command:orders.place expired:false operation:POST /v1/orders orders.place records:1 state:in_progress stuck:true]]}" {
			t.Errorf("the counts are %v", got)
		}
		if got := decode[map[string][]string](t, d.ask(t, "GET", "/pipeline", "", "json"), 200); len(got["commands"]) != 1 {
			t.Errorf("the pipeline is %v", got)
		}
		wantPage(t, d.ask(t, "GET", "/pipeline", ""), 200, "command orders.place\n  stages: logging -&gt; &lt;validation&gt;")
	})
}

func TestCountsAreByCommandAndWhatIsStuckStandsOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, countsAreByCommand)
}

func countsAreByCommand(t *testing.T) {
	d := newDesk(t)
	home := func(says ...string) {
		t.Helper()
		time.Sleep(5 * time.Second) // the bubble's clock: nobody counts again before that
		w := d.ask(t, "GET", "/", "")
		for _, row := range regexp.MustCompile(`<tr role="row">.*</tr>`).FindAllString(w.Body.String(), -1) { // as a row of words beside
			w.Body.WriteString(strings.Join(strings.Fields(regexp.MustCompile(`<[^>]*>`).ReplaceAllString(row, " ")), " ") + "\n")
		}
		wantPage(t, w, 200, says...)
	}
	home("Nothing is stuck, and nothing has failed.", "There are none.")
	d.put(kept("key-00000001"))
	d.put(kept("key-00000002", func(r *idempotency.Record) { r.Expired, r.Scope.Operation = true, "orders.place" }))
	d.put(kept("key-00000003", failed))
	d.put(kept("key-00000004", inProgress(time.Minute)))
	home("Nothing is stuck. <b>1 failed.</b> Nothing of it is committed in this database.", `<a href="./stuck">Look at what is stuck or has failed</a>`, "orders.place 2 1 0 1 4 1")
	d.put(kept("key-00000005", inProgress(0)))
	home("<b>1 stuck.</b> Nothing has been heard since its lease ended: most likely nobody is at work on it, but an attempt may still finish. <b>1 failed.</b>")
	d.put(kept("key-00000006", inProgress(0), func(r *idempotency.Record) { r.Scope.Operation, r.Scope.Tenant = "mail.send", "other" }))
	home("<b>2 stuck.</b> Nothing has been heard since their leases ended: most likely nobody is at work on them, but an attempt may still finish.", "mail.send 0 0 1 0 1 0", "orders.place 2 1 1 1 5 1", `data-label="Stuck" class="alarm">1</td>`)
	wantPage(t, d.ask(t, "GET", "/stuck", ""), 200, "3 records: 2 stuck, 1 failed.", "Nothing has been heard since its lease ended: most likely nobody is at work on it, but an attempt may still finish.", "<dt>Last request</dt>")
	got := map[string]bool{}
	for _, r := range decode[found](t, d.ask(t, "GET", "/stuck", "", "json"), 200).Records {
		got[r.RequestID+" "+r.State] = r.Stuck
	}
	if !maps.Equal(got, map[string]bool{"req-key-00000003 failed": false, "req-key-00000005 in_progress": true, "req-key-00000006 in_progress": true}) {
		t.Errorf("listed are %v", got)
	}
	if got := d.search(t, "by", "stuck", "tenant", "other"); len(got.Records) != 1 || got.Records[0].Command != "mail.send" {
		t.Errorf("%+v", got)
	}
	wantPage(t, newDesk(t).ask(t, "GET", "/stuck", ""), 200, "Nothing is stuck, and nothing has failed.")
}

func TestNoAnswerHoldsAKeyAResultARefusalsWordsOrACard_see1(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	const card, message, data, sealed = "4111111111111111", "the limit of grace@example.com is reached", "birthday", "c2VhbGVk"
	keys := []string{"8e03978e-40d5-43e8-bc93-6894a57f9324", "01890a5d-ac96-774b-bcce-b302099a8057", "key-00000003", "no key at all", "key-00000005", "key-00000006"}
	about := func(r *idempotency.Record) {
		r.ExternalRef, r.DraftID, r.OriginRequestID = "auth-1", "draft-1", "req-1"
		r.Hash = [32]byte([]byte("0123456789abcdef0123456789abcdef"))
	}
	d.put(kept(keys[0], about))
	d.put(kept(keys[1], about, func(r *idempotency.Record) {
		r.Outcome, r.ResultType = idempotency.Refusal, "refusal/1"
		r.Result, _ = json.Marshal(map[string]any{"code": "LIMIT", "message": message, "data": map[string]string{data: card}, "sealed": sealed})
	}))
	d.put(kept(keys[2], about, func(r *idempotency.Record) { r.ResultType, r.Result = "sealed/1", []byte(sealed) }))
	d.put(kept(keys[3], about, inProgress(0)))
	d.put(kept(keys[4], about, inProgress(time.Hour)))
	d.put(kept(keys[5], about, failed))
	d.put(kept(keys[0], about, func(r *idempotency.Record) { r.Scope.Tenant = "other" })) // so that a search for the key gives a list

	var said strings.Builder
	hear := func(w *httptest.ResponseRecorder) {
		fmt.Fprint(&said, w.Header(), w.Body.String())
	}
	for _, options := range [][]string{nil, {"json"}} {
		for _, path := range []string{"/", "/stuck", "/pipeline"} {
			hear(d.ask(t, "GET", path, "", options...))
		}
		for _, q := range append([]string{"draft-1", "auth-1", "req-1"}, keys...) {
			w := d.ask(t, "POST", "/search", form("q", q), options...)
			if w.Code >= 400 {
				t.Errorf("%q: %d", q, w.Code)
			}
			hear(w)
		}
		for _, key := range keys {
			id := kept(key, about).Scope.ID()
			hear(d.ask(t, "GET", recordPath(id), "", options...))
			hear(d.ask(t, "POST", recordPath(id)+"/release", form("reason", "ticket 1", "seen", "00"), options...))
			w := d.ask(t, "POST", recordPath(id)+"/release", form("reason", "ticket 1", "seen", seen(kept(key))), options...)
			if hear(w); w.Code == 303 {
				hear(d.follow(t, w, recordPath(id)+"/release"))
			}
		}
	}
	if !strings.Contains(said.String(), "LIMIT") || !strings.Contains(said.String(), "8e03…") || !strings.Contains(said.String(), "Released.") {
		t.Fatalf("little was said: %s", said.String())
	}
	said.WriteString(d.own.String())
	for _, secret := range append(keys, card, "o-1", message, "grace", data, sealed, "30313233", "0123456789abcdef", "MDEyMzQ1") {
		if at := strings.Index(said.String(), secret); at >= 0 {
			t.Errorf("%q is said: …%s", secret, said.String()[max(0, at-200):at])
		}
	}
}

func TestReleaseIsForSomebodyWithAReasonWhoHasSeenTheRecord_L22(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	for _, state := range []func(*idempotency.Record){inProgress(0), failed} {
		rec := kept("key-00000001", state, func(r *idempotency.Record) { r.Attempts = 9 })
		path := recordPath(d.put(rec))
		wantPage(t, d.ask(t, "GET", path, ""), 200, `action="../records/`, `name="seen" value="`+seen(rec)+`"`)
		for name, tc := range map[string]struct {
			body    string
			options []string
			status  int
			code    string
		}{
			"no reason":          {form("seen", seen(rec)), nil, 400, "MALFORMED_REQUEST"},
			"a blank reason":     {form("seen", seen(rec), "reason", "  "), nil, 400, "MALFORMED_REQUEST"},
			"nothing seen":       {form("reason", "ticket 4711"), nil, 400, "MALFORMED_REQUEST"},
			"something else":     {form("reason", "ticket 4711", "seen", "07"), nil, 400, "MALFORMED_REQUEST"},
			"another attempt":    {form("reason", "ticket 4711", "seen", strings.Repeat("08", 16)), nil, 409, "IDEMPOTENCY_ADMIN_REFUSED"},
			"zeros":              {form("reason", "ticket 4711", "seen", strings.Repeat("00", 16)), nil, 400, "MALFORMED_REQUEST"},
			"from another site":  {form("reason", "ticket 4711", "seen", seen(rec)), []string{"Sec-Fetch-Site: cross-site"}, 403, "CROSS_ORIGIN"},
			"from a sister site": {form("reason", "ticket 4711", "seen", seen(rec)), []string{"Sec-Fetch-Site: same-site"}, 403, "CROSS_ORIGIN"},
			"by its origin":      {form("reason", "ticket 4711", "seen", seen(rec)), []string{"Sec-Fetch-Site: ", "Origin: https://evil.example"}, 403, "CROSS_ORIGIN"},
			"JSON from a site":   {`{"reason":"ticket 4711","seen":"` + seen(rec) + `"}`, []string{"Content-Type: application/json", "Sec-Fetch-Site: cross-site"}, 403, "CROSS_ORIGIN"},
			"as plain text":      {`{"reason":"ticket 4711","seen":"` + seen(rec) + `"}`, []string{"Content-Type: text/plain"}, 415, "UNSUPPORTED_MEDIA_TYPE"},
			"in the query":       {"", nil, 400, "MALFORMED_REQUEST"},
		} {
			w := d.ask(t, "POST", path+"/release?reason=x&seen="+seen(rec), tc.body, append(tc.options, "json")...)
			wantProblem(t, w, tc.status, tc.code)
			if lines := d.logs.TakeAll(); len(lines) != 0 || d.store.Records()[0].Attempt != rec.Attempt {
				t.Fatalf("%s: it was released: %+v", name, lines)
			}
		}
		wantPage(t, d.ask(t, "POST", path+"/release", form("reason", "x", "seen", strings.Repeat("08", 16))), 409, "Not released: the record has changed since it was read; look again.", `href="../../console.css"`)

		w := d.ask(t, "POST", path+"/release", form("reason", "ticket 4711: nothing at the provider", "seen", seen(rec)))
		const says = "Released. The next request with this key and the same payload runs."
		wantPage(t, d.follow(t, w, path+"/release"), 200, says, "<li>at least 1 attempt</li>", `action="../records/`)
		released := d.store.Records()[0]
		if got := w.Header().Get("Location"); got != "../.."+path+"?released="+seen(released) {
			t.Errorf("it leads to %q", got)
		}
		lines := d.logs.TakeAll()
		if len(lines) != 1 || lines[0].ContextMap()["by"] != "ayse" || lines[0].ContextMap()["reason"] != "ticket 4711: nothing at the provider" || lines[0].ContextMap()["live_lease"] != false {
			t.Fatalf("the lines are %+v", lines)
		}
		if got := d.store.Records()[0]; got.State != idempotency.Failed || got.Attempt == rec.Attempt || got.Attempts != 1 {
			t.Errorf("the record is %+v", got)
		}
		for name, change := range map[string]func(*idempotency.Record){
			"in another attempt": func(r *idempotency.Record) { r.Attempt = idempotency.AttemptID{9} },
			"in progress again":  func(r *idempotency.Record) { r.State, r.LeaseLeft = idempotency.InProgress, time.Hour },
		} {
			later := released
			change(&later)
			d.put(later)
			if w := d.follow(t, w, path+"/release"); strings.Contains(w.Body.String(), says) {
				t.Errorf("%s it is still said to be released", name)
			}
		}
		d.put(released)
		// The page of before, sent once more by going back: the record is not the one that was seen.
		wantPage(t, d.ask(t, "POST", path+"/release", form("reason", "ticket 4711", "seen", seen(rec))), 409, "has changed")
	}
}

func TestWhoHangsUpHasStillReleased(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	rec := kept("key-00000001", inProgress(0))
	path := recordPath(d.put(rec))
	r := httptest.NewRequest("POST", path+"/release", strings.NewReader(form("reason", "ticket 4711", "seen", seen(rec))))
	r.AddCookie(&http.Cookie{Name: "session", Value: "ayse"})
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w := httptest.NewRecorder()
	d.ServeHTTP(w, r.WithContext(ctx))
	wantPage(t, d.follow(t, w, path+"/release"), 200, "Released.")
	d.own.Reset()
	if got := d.store.Records()[0]; got.State != idempotency.Failed {
		t.Errorf("the record is %+v", got)
	}
	// And who hangs up on a search is no fault of the store's.
	r = httptest.NewRequest("GET", "/stuck", nil).WithContext(ctx)
	r.AddCookie(&http.Cookie{Name: "session", Value: "ayse"})
	d.ServeHTTP(httptest.NewRecorder(), r)
	if d.own.Len() > 0 {
		t.Errorf("it is logged: %s", d.own)
	}
}

func TestALiveLeaseIsTakenOnlyWhereThatIsMeant_L22(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	rec := kept("key-00000001", inProgress(time.Hour))
	path := recordPath(d.put(rec))
	wantPage(t, d.ask(t, "GET", path, ""), 200, `<input type="checkbox" name="live_lease" value="true">`)
	const why = "Not released: an attempt is most likely at work. Wait until its lease is over, or say that a live lease is meant."
	wantPage(t, d.ask(t, "POST", path+"/release", form("reason", "x", "seen", seen(rec))), 409, why, `action="../../records/`)
	if p := decode[problem](t, d.ask(t, "POST", path+"/release", `{"reason":"x","seen":"`+seen(rec)+`","live_lease":false}`, "Content-Type: application/json", "Accept: */*"), 409); p.Error != why || p.Code != "IDEMPOTENCY_ADMIN_REFUSED" {
		t.Errorf("%+v", p)
	}
	got := decode[record](t, d.ask(t, "POST", path+"/release", `{"reason":"x","seen":"`+seen(rec)+`","live_lease":true}`, "Content-Type: application/json"+"", "json", "Sec-Fetch-Site: none"), 200)
	if got.State != "failed" || got.AttemptID == seen(rec) {
		t.Errorf("%+v", got)
	}
	lines := d.logs.TakeAll()
	if len(lines) != 1 || lines[0].ContextMap()["live_lease"] != true {
		t.Errorf("the lines are %+v", lines)
	}

	done := d.put(kept("key-00000002"))
	w := d.ask(t, "GET", recordPath(done), "")
	if strings.Contains(w.Body.String(), "/release") {
		t.Error("a completed record can be released by the page")
	}
	wantPage(t, d.ask(t, "POST", recordPath(done)+"/release", form("reason", "x", "seen", seen(rec), "live_lease", "true")), 409, "Not released: the record is completed")
	wantProblem(t, d.ask(t, "POST", recordPath(idempotency.ID{9})+"/release", form("reason", "x", "seen", seen(rec)), "json"), 404, "RECORD_NOT_FOUND")

	other := kept("key-00000003", inProgress(0))
	busy := d.put(other)
	d.store.free = fmt.Errorf("memstore: %w", idempotency.ErrBusy)
	wantPage(t, d.ask(t, "POST", recordPath(busy)+"/release", form("reason", "x", "seen", seen(other))), 409, "Not released: an attempt holds the record at this moment; look again.")
}

func TestAStoreThatIsAwayIsOnePlainSentence(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	rec := kept("key-00000001", inProgress(0))
	id := d.put(rec)
	d.store.find, d.store.count = away, func(context.Context) error { return errDriver }
	const says = "The store of records does not answer."
	for path, method := range routes(id) {
		if path == "/console.css" || path == "/pipeline" {
			continue
		}
		body := form("q", "key-00000001", "reason", "x", "seen", seen(rec))
		w := d.ask(t, method, path, body)
		sentence := says
		if strings.HasSuffix(path, "/release") {
			sentence = "The store did not say whether the key was released. Look at the record before you try again."
		}
		wantPage(t, w, 503, sentence)
		if path == "/" && !strings.Contains(w.Body.String(), `action="./search"`) {
			t.Error("the first page has lost its form")
		}
		j := d.ask(t, method, path, body, "json")
		wantProblem(t, j, 503, "IDEMPOTENCY_STORE_UNAVAILABLE")
		for _, part := range []string{"10.0.0.7", "hostname", "payments", "driver"} {
			if strings.Contains(w.Body.String()+j.Body.String(), part) {
				t.Errorf("%s shows what the driver said: %s", path, w.Body)
			}
		}
	}
	if n := strings.Count(d.own.String(), "10.0.0.7"); n != 10 {
		t.Errorf("the log has %d of the store's errors: %s", n, d.own)
	}
	d.store.find, d.store.free = nil, errDriver
	wantPage(t, d.ask(t, "POST", recordPath(id)+"/release", form("reason", "x", "seen", seen(rec))), 503, "The store did not say whether the key was released.")
	// It answers the write, and is away afterwards.
	d.store.free = nil
	asked := 0
	d.store.find = func(context.Context, idempotency.Search) error {
		if asked++; asked > 1 {
			return errDriver
		}
		return nil
	}
	wantPage(t, d.ask(t, "POST", recordPath(id)+"/release", form("reason", "x", "seen", seen(rec))), 503, "The key was released. The record cannot be shown just now.")
}

func TestAStoreThatIsTooSlowSaysWhatHelps(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t)
		id := d.put(kept("key-00000001", func(r *idempotency.Record) { r.DraftID = "key-00000001" }))
		started := time.Now()
		took := func(want time.Duration) {
			t.Helper()
			if got := time.Since(started); got != want {
				t.Errorf("it took %v, want %v", got, want)
			}
			started = time.Now()
		}
		d.store.count = slow
		wantPage(t, d.ask(t, "GET", "/", ""), 200, "Counting the records took longer than 2s", `action="./search"`, `href="./stuck"`)
		took(console.DefaultCountTimeout)
		wantProblem(t, d.ask(t, "GET", "/", "", "json"), 503, "DEADLINE_EXCEEDED")
		took(0) // the next one does not find out again, for a while
		time.Sleep(5 * time.Second)
		took(5 * time.Second)
		wantProblem(t, d.ask(t, "GET", "/", "", "json"), 503, "DEADLINE_EXCEEDED")
		took(console.DefaultCountTimeout)

		// The key has an index, and the reference has none.
		d.store.find = func(ctx context.Context, q idempotency.Search) error {
			if q.ExternalRef != "" || q.Stuck {
				return slow(ctx)
			}
			return nil
		}
		got := d.search(t, "q", "key-00000001")
		took(console.DefaultTimeout)
		if len(got.Records) != 1 || !slices.Equal(got.NotSearched, []string{"external_ref", "draft_id", "request_id"}) {
			t.Errorf("%+v", got)
		}
		wantPage(t, d.ask(t, "POST", "/search", form("q", "key-00000001")), 200, "The search took longer than 5s and has not looked for: external reference, draft id, request id. Say which kind it is",
			"There may be more than is shown.", "1 record: 1 done.")
		took(console.DefaultTimeout)
		// It must not say that there is nothing.
		w := d.ask(t, "POST", "/search", form("q", "auth-key-00000001"))
		wantPage(t, w, 503, "has not looked for: external reference, draft id, request id.")
		if strings.Contains(w.Body.String(), "Nothing was found") {
			t.Error("nobody knows that")
		}
		took(console.DefaultTimeout)
		w = d.ask(t, "POST", "/search", form("q", "auth-key-00000001", "by", "external_ref"), "json")
		if p := decode[problem](t, w, 503); p.Code != "DEADLINE_EXCEEDED" || !strings.Contains(p.Error, "external reference. Where one kind alone is too slow the table wants an index") {
			t.Errorf("%+v", p)
		}
		took(console.DefaultTimeout)
		wantPage(t, d.ask(t, "GET", "/stuck", ""), 503, "has not looked for: what is stuck or has failed.")
		took(console.DefaultTimeout)
		d.store.find = func(ctx context.Context, _ idempotency.Search) error { return slow(ctx) }
		wantPage(t, d.ask(t, "GET", recordPath(id), ""), 503, "The store took longer than 5s to give the record.")
		took(console.DefaultTimeout)
		if strings.Contains(d.own.String(), "level=ERROR") {
			t.Errorf("what is slow is logged as an error: %s", d.own)
		}
	})
}

var link = regexp.MustCompile(`(?:href|action)="([^"#][^"]*)"`)

func TestLinksAreRightUnderEveryPrefix(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	id := d.put(kept("key-00000001", inProgress(0)))
	plain := d.Handler
	for prefix, mount := range map[string]http.Handler{
		"/":                   plain,
		"/ops/records/":       http.StripPrefix("/ops/records", plain),
		"/ops/records/slash/": http.StripPrefix("/ops/records/slash/", plain),
		"/ops/with space/":    http.StripPrefix("/ops/with space", plain),
	} {
		mux := http.NewServeMux()
		if strings.Contains(prefix, " ") {
			mux.Handle("/", mount)
		} else {
			mux.Handle(prefix, mount)
		}
		d.Handler = mux
		base := strings.ReplaceAll(prefix, " ", "%20")
		met := map[string]bool{}
		var visit func(method, path string)
		visit = func(method, path string) {
			if met[path] {
				return
			}
			met[path] = true
			w := d.ask(t, method, path, form("q", "draft-key-00000001", "by", "draft_id", "reason", "x", "seen", "07000000000000000000000000000000"))
			if w.Code >= 400 && w.Code != 409 {
				t.Errorf("%s %s is %d", method, path, w.Code)
			}
			at := httptest.NewRequest("GET", path, nil).URL
			targets := []string{w.Header().Get("Location")}
			for _, l := range link.FindAllStringSubmatch(w.Body.String(), -1) {
				targets = append(targets, l[1])
			}
			for _, target := range targets {
				if target == "" || strings.HasPrefix(target, "data:") {
					continue
				}
				to, err := at.Parse(target)
				if err != nil {
					t.Fatal(err)
				}
				method := "GET"
				if strings.HasSuffix(to.Path, "search") || strings.HasSuffix(to.Path, "release") {
					method = "POST"
				}
				visit(method, to.EscapedPath())
			}
		}
		visit("GET", base)
		for _, path := range []string{"", "stuck", "search", "pipeline", "console.css", "records/" + id.Operation(), "records/" + id.Operation() + "/release"} {
			if !met[base+path] {
				t.Errorf("under %s nothing leads to %q: %v", prefix, path, slices.Sorted(maps.Keys(met)))
			}
		}
		if len(met) != 7 {
			t.Errorf("under %s the links lead to %v", prefix, slices.Sorted(maps.Keys(met)))
		}
		d.put(kept("key-00000001", inProgress(0)))
	}
	// A router that keeps the prefix's last slash out sends the browser to where the links are right.
	d.Handler = http.StripPrefix("/ops/a:b", plain)
	if w := d.ask(t, "GET", "/ops/a:b?x=y", ""); w.Code != 303 || w.Header().Get("Location") != "./a:b/" {
		t.Errorf("it leads to %d %v", w.Code, w.Header())
	}
}

const hostile = `"><script>document.title = 'taken'</script><img src=x onerror="document.title='taken'">' &amp; ${7*7} {{.}}`

// hostileRecord has it wherever there is room.
func hostileRecord(key string, change ...func(*idempotency.Record)) idempotency.Record {
	return kept(key, append([]func(*idempotency.Record){func(r *idempotency.Record) {
		r.Scope = idempotency.Scope{Tenant: hostile, Client: hostile, Operation: "POST /" + hostile + " " + strings.ReplaceAll(hostile, " ", ""), Key: key}
		r.ExternalRef, r.DraftID, r.OriginRequestID, r.ResultType = hostile, hostile, hostile, hostile
	}}, change...)...)
}

func TestWhatStrangersWroteIsTextOnThePage(t *testing.T) {
	t.Parallel()
	d := newDesk(t, func(c *console.Config) {
		c.Who = func(*http.Request) (string, error) { return hostile, nil }
		c.Pipeline = pipeline{[]string{hostile}}
	})
	a, b := d.put(hostileRecord(hostile)), d.put(hostileRecord("key-00000002", inProgress(0)))
	for _, w := range []*httptest.ResponseRecorder{
		d.ask(t, "GET", "/", ""), d.ask(t, "GET", "/stuck", ""), d.ask(t, "GET", "/pipeline", ""), d.ask(t, "GET", recordPath(a), ""), d.ask(t, "GET", recordPath(b)+"?by="+hostileQuery, ""),
		d.ask(t, "POST", "/search", form("q", hostile)), d.ask(t, "POST", "/search", form("q", hostile+"?", "tenant", hostile, "client", hostile, "command", hostile)),
		d.ask(t, "POST", "/search", form("q", hostile, "by", hostile)),
	} {
		if body := w.Body.String(); strings.Contains(body, "<script") || strings.Contains(body, "<img") || !strings.Contains(body, "&lt;script&gt;") {
			t.Errorf("%d: %s", w.Code, body)
		}
	}
}

const hostileQuery = "%22%3E%3Cscript%3E"

func TestWhatAnotherSitesPageReadsOfOursIsRefused(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	id := d.put(kept("key-00000001", inProgress(0)))
	d.store.find = func(context.Context, idempotency.Search) error { t.Error("the store was asked"); return nil }
	d.store.count = func(context.Context) error { t.Error("the store was asked"); return nil }
	fetch := func(site, mode, dest string) []string {
		return []string{"Sec-Fetch-Site: " + site, "Sec-Fetch-Mode: " + mode, "Sec-Fetch-Dest: " + dest}
	}
	for path := range routes(id) {
		for _, method := range []string{"GET", "HEAD"} {
			for _, how := range [][]string{fetch("cross-site", "no-cors", "image"), fetch("cross-site", "cors", "empty"), fetch("cross-site", "navigate", "iframe"),
				fetch("cross-site", "navigate", "embed"), fetch("cross-site", "no-cors", "document"), fetch("cross-site", "", "")} {
				wantPage(t, d.ask(t, method, path, "", how...), 403, "This request was sent by a page of another site")
				wantProblem(t, d.ask(t, method, path, "", append(how, "json")...), 403, "CROSS_ORIGIN")
			}
		}
	}
	d.store.find, d.store.count = nil, nil
	for path, method := range routes(id) {
		for _, how := range [][]string{fetch("cross-site", "navigate", "document"), fetch("same-origin", "no-cors", "style"), fetch("none", "navigate", "document"), fetch("same-site", "navigate", "document"), nil} {
			if w := d.ask(t, "GET", path, "", how...); method == "GET" && w.Code != 200 {
				t.Errorf("%s %v: %d", path, how, w.Code)
			}
		}
	}
}

func TestOneCountsForAllWhoLookMeanwhileAndForAWhile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t)
		rec := kept("key-00000001", inProgress(0))
		id := d.put(rec)
		var counted, now atomic.Int32
		takes, fails := time.Second, error(nil)
		d.store.count = func(ctx context.Context) error {
			counted.Add(1)
			if now.Add(1) > 1 {
				t.Error("two count at once")
			}
			defer now.Add(-1)
			select {
			case <-time.After(takes):
				return fails
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		home := func(n int, status int, says string) {
			t.Helper()
			var all sync.WaitGroup
			for range n {
				all.Go(func() { wantPage(t, d.ask(t, "GET", "/", ""), status, says) })
			}
			all.Wait()
		}
		want := func(when string, n int32) {
			t.Helper()
			if got := counted.Swap(0); got != n {
				t.Errorf("%s: counted %d times, want %d", when, got, n)
			}
		}
		home(20, 200, "<b>1 stuck.</b>")
		want("twenty at once", 1)
		time.Sleep(4999 * time.Millisecond)
		home(1, 200, "<b>1 stuck.</b>")
		want("within five seconds", 0)
		time.Sleep(time.Millisecond)
		home(1, 200, "<b>1 stuck.</b>")
		want("after five seconds", 1)
		d.ask(t, "POST", recordPath(id)+"/release", form("reason", "x", "seen", seen(rec)))
		home(1, 200, "Nothing is stuck. <b>1 failed.</b>")
		want("after a release", 1)

		time.Sleep(5 * time.Second)
		takes = time.Hour
		home(20, 200, "Counting the records took longer than 2s")
		want("too slowly", 1)
		time.Sleep(5 * time.Second)
		takes, fails = 0, errDriver
		home(2, 503, "The store of records does not answer.")
		want("of a store that is away", 2)
		fails = nil
		home(1, 200, "Nothing is stuck.")
		want("of one that is back", 1)

		// Who hangs up takes nothing away from the next one.
		time.Sleep(5 * time.Second)
		takes = time.Second
		r := httptest.NewRequest("GET", "/", nil)
		r.AddCookie(&http.Cookie{Name: "session", Value: "ayse"})
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		d.ServeHTTP(httptest.NewRecorder(), r.WithContext(ctx))
		home(1, 200, "Nothing is stuck.")
		want("after somebody who hung up", 2)
	})
}

func TestARecordThatIsNamedByItsIdEndsTheSearch(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	id := d.put(kept("key-00000001"))
	asked := 0
	d.store.find = func(context.Context, idempotency.Search) error { asked++; return nil }
	for text, tries := range map[string]int{id.Operation(): 1, uuid(id): 2, strings.ReplaceAll(uuid(id), "-", ""): 1, "key-00000001": 4} {
		asked = 0
		if got := d.search(t, "q", text); len(got.Records) != 1 || asked != tries {
			t.Errorf("%q: %d records by %d searches, want %d", text, len(got.Records), asked, tries)
		}
	}
	// Not the one that is wanted: what is narrowed away is no hit.
	asked = 0
	if got := d.search(t, "q", id.Operation(), "command", "mail.send"); len(got.Records) != 0 || asked != 6 {
		t.Errorf("%d records by %d searches", len(got.Records), asked)
	}
}

func TestWhatWasDoneTwiceIsCountedAmongThoseFoundByTheSameKind(t *testing.T) {
	t.Parallel()
	draft := func(r *idempotency.Record) { r.DraftID = "text-4711" }
	request := func(r *idempotency.Record) { r.OriginRequestID = "text-4711" }
	const repeated = " orders.place was done 2 times under this %s, with different keys, clients, tenants or routes: to the server these were different intents."
	for name, tc := range map[string]struct {
		records []idempotency.Record
		kinds   []string
	}{
		"found by different kinds":           {[]idempotency.Record{kept("text-4711"), kept("key-00000002", draft)}, nil},
		"found by the same kind":             {[]idempotency.Record{kept("key-00000001", draft), kept("key-00000002", draft)}, []string{"draft id"}},
		"of another tenant":                  {[]idempotency.Record{kept("text-4711"), kept("text-4711", func(r *idempotency.Record) { r.Scope.Tenant = "other" })}, []string{"key"}},
		"by another route":                   {[]idempotency.Record{kept("text-4711"), kept("text-4711", func(r *idempotency.Record) { r.Scope.Operation = "orders.place" })}, []string{"key"}},
		"found by two kinds":                 {[]idempotency.Record{kept("key-00000001", draft, request), kept("key-00000002", draft, request)}, []string{"draft id"}},
		"others by each of two kinds":        {[]idempotency.Record{kept("key-00000001", draft), kept("key-00000002", draft), kept("key-00000003", request), kept("key-00000004", request)}, []string{"draft id", "request id"}},
		"of which one is not done":           {[]idempotency.Record{kept("key-00000001", draft), kept("key-00000002", draft, failed)}, nil},
		"one by a kind, two by another kind": {[]idempotency.Record{kept("text-4711"), kept("key-00000002", draft), kept("key-00000003", draft)}, []string{"draft id"}},
	} {
		d := newDesk(t)
		for _, r := range tc.records {
			d.put(r)
		}
		want := ""
		for _, k := range tc.kinds {
			want += fmt.Sprintf(repeated, k)
		}
		if _, got, _ := strings.Cut(d.search(t, "q", "text-4711").Summary, "."); got != want {
			t.Errorf("%s:\n%q, want\n%q", name, got, want)
		}
	}
}

func TestNoAddressMakesLinksThatLeadOutside(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	id := d.put(kept("key-00000001", inProgress(0)))
	h := http.StripPrefix("/ops/records", d.Handler)
	const base = "/ops/records/"
	d.Handler = h
	for _, path := range []string{"records%2F" + id.Operation(), "records%2F" + id.Operation() + "%2Frelease", "records/" + id.Operation() + "%2Frelease", "a%2Fb%2Fc%2Fd", "%2F%2F", "%2Fevil.example", "records%2F..%2F..%2F.."} {
		w := d.ask(t, "GET", base+path, "")
		at := httptest.NewRequest("GET", base+path, nil).URL
		targets := []string{w.Header().Get("Location")}
		for _, l := range link.FindAllStringSubmatch(w.Body.String(), -1) {
			targets = append(targets, l[1])
		}
		for _, target := range targets {
			if to, err := at.Parse(target); err != nil || !strings.HasPrefix(target, "data:") && !strings.HasPrefix(to.Path, base) {
				t.Errorf("%s (%d) leads to %q, %v", path, w.Code, target, to)
			}
		}
	}
}

func TestTheLogSaysWhoLookedAndNeverForWhat(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	rec := kept("key-00000001", inProgress(0))
	id := d.put(rec)
	d.put(kept("key-00000002", inProgress(0)))
	looked := `level=INFO msg="console: a record was looked at" who=ayse operation_id=` + id.Operation() + "\n"
	searched := func(by string, n int) string {
		return fmt.Sprintf("level=INFO msg=\"console: records were searched for\" who=ayse by=%s records=%d\n", by, n)
	}
	for _, tc := range []struct {
		method, path, body string
		options            []string
		want               string
	}{
		{"POST", "/search", form("q", "key-00000001", "tenant", "acme", "client", "shop-7"), nil, searched("any", 1)},
		{"POST", "/search", form("q", "key-00000001"), []string{"json"}, searched("any", 1)},
		{"POST", "/search", form("q", "key-00000009", "by", "draft_id"), nil, searched("draft_id", 0)},
		{"POST", "/search", form("q", "key-00000009", "by", "key-00000001"), nil, ""},
		{"GET", "/stuck", "", nil, searched("stuck", 2)},
		{"GET", recordPath(id), "", nil, looked},
		{"GET", recordPath(id), "", []string{"json"}, looked},
		{"GET", recordPath(idempotency.ID{9}), "", nil, ""},
		{"POST", recordPath(id) + "/release", form("reason", "x", "seen", strings.Repeat("08", 16)), nil, looked},
		{"POST", recordPath(id) + "/release", form("reason", "x", "seen", strings.Repeat("08", 16)), []string{"json"}, ""},
		{"POST", recordPath(id) + "/release", form("reason", "x", "seen", seen(rec)), []string{"json"}, looked},
		{"GET", "/", "", nil, ""},
		{"GET", "/console.css", "", nil, ""},
		{"POST", "/search?q=key-00000001", form("q", "key-00000001"), []string{"nobody"}, "level=INFO msg=\"console: a request was refused\" path=/search\n"},
	} {
		d.own.Reset()
		d.ask(t, tc.method, tc.path, tc.body, tc.options...)
		got := ""
		for line := range strings.Lines(d.own.String()) {
			_, rest, _ := strings.Cut(line, " ") // the time
			got += rest
		}
		if got != tc.want {
			t.Errorf("%s %s %v is logged as %q, want %q", tc.method, tc.path, tc.options, got, tc.want)
		}
	}
}
