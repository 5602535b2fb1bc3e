package httpedge_test

import (
	"encoding/xml"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/tekil-go/tekil/requestctx/httpedge"
)

const usualXML = `<?xml version="1.0"?><request><amount> 4990 </amount><cart_id>c-1</cart_id></request>`

func xmlRig(t *testing.T) *rig {
	t.Helper()
	return newRig(t, setup{config: httpedge.Config{Anonymous: true, Codecs: []httpedge.Codec{httpedge.JSON(), httpedge.XML()}}}).orders()
}

func TestF02_JSONAndXMLOfOneCommandAreOneRequest(t *testing.T) {
	t.Parallel()
	for _, types := range []string{"application/xml", "text/xml; charset=utf-8", "application/vnd.erp+xml"} {
		g := xmlRig(t)
		first := g.post(k1).ok(201, "false")
		second := g.do("POST", "/v1/orders", usualXML, k1, "Content-Type: "+types).ok(201, "true")
		same(t, "type", second.header.Get("Content-Type"), "application/xml")
		var inXML struct {
			XMLName xml.Name `xml:"response"`
			OrderID string   `xml:"order_id"`
			Amount  int64    `xml:"amount"`
		}
		if err := xml.Unmarshal([]byte(second.body), &inXML); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(first.body, `"order_id":"`+inXML.OrderID+`"`) || inXML.OrderID == "" || inXML.Amount != 4990 {
			t.Errorf("JSON %s and XML %s are not the same result", first.body, second.body)
		}
		third := g.do("POST", "/v1/orders", usualXML, k1, "Content-Type: application/xml", "Accept: application/json").ok(201, "true")
		same(t, "body", third.body, first.body)
		g.do("POST", "/v1/orders", strings.Replace(usualXML, "4990", "4991", 1), k1, "Content-Type: application/xml", "Accept: application/json").fails(409, "IDEMPOTENCY_KEY_CONFLICT", httpedge.Never)
		g.want(1, 1, 1)
	}
}

func TestProblemsInXMLAreThoseOfRFC9457(t *testing.T) {
	t.Parallel()
	g := xmlRig(t)
	for body, want := range map[string]struct{ code, path string }{
		`<request><cart_id/><amount>0</amount></request>`:                                   {"VALIDATION_FAILED", "cart_id"},
		`<!DOCTYPE request [<!ENTITY a "b">]><request><cart_id>&a;</cart_id></request>`:     {"MALFORMED_REQUEST", ""},
		`<request><cart_id>c-1</cart_id><cart_id>c-2</cart_id><amount>1</amount></request>`: {"MALFORMED_REQUEST", "cart_id"},
		`<request><cart_id>c-1</cart_id><coupon>x</coupon></request>`:                       {"MALFORMED_REQUEST", ""},
	} {
		res := g.do("POST", "/v1/orders", body, k1, "Content-Type: application/xml")
		same(t, "type", res.header.Get("Content-Type"), "application/problem+xml")
		var p struct {
			XMLName xml.Name `xml:"urn:ietf:rfc:7807 problem"`
			Status  int      `xml:"status"`
			Code    string   `xml:"code"`
			Errors  []struct {
				Path string `xml:"path"`
			} `xml:"errors>error"`
		}
		if err := xml.Unmarshal([]byte(res.body), &p); err != nil {
			t.Fatalf("%s: %v", res.body, err)
		}
		if p.Status != 400 || res.status != 400 || p.Code != want.code || want.path != "" && (len(p.Errors) == 0 || p.Errors[0].Path != want.path) {
			t.Errorf("%s is answered with %d %s", body, res.status, res.body)
		}
		if strings.Contains(res.body, "coupon") || strings.Contains(res.body, "c-2") {
			t.Errorf("the answer holds what was sent: %s", res.body)
		}
	}
	g.want(0, 0, 0)
	g.do("POST", "/v1/orders", usualXML, k1, "Content-Type: application/xml").ok(201, "false") // corrected, under the same key
}

// A booking that is sent as JSON first and as XML then.
func ExampleXML() {
	b, err := hotel()
	if err != nil {
		panic(err)
	}
	e, err := httpedge.New(httpedge.Config{Anonymous: true, Codecs: []httpedge.Codec{httpedge.JSON(), httpedge.XML()}})
	if err != nil {
		panic(err)
	}
	book, err := httpedge.Command(e, b, "POST /bookings", httpedge.Options[Book, Booked]{})
	if err != nil {
		panic(err)
	}
	print := func(w *httptest.ResponseRecorder) {
		fmt.Println(w.Header().Get("Idempotency-Replayed"), strings.TrimSpace(w.Body.String()))
	}
	print(show(book, "POST", "/bookings", `{"room":"7","nights":2}`, "Idempotency-Key", "booking-7"))
	print(show(book, "POST", "/bookings", `<request><nights>2</nights><room>7</room></request>`, "Idempotency-Key", "booking-7", "Content-Type", "application/xml"))
	// Output:
	// false {"booking":"b-1","room":"7"}
	// true <?xml version="1.0" encoding="UTF-8"?><response><booking>b-1</booking><room>7</room></response>
}
