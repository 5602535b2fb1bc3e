package httpedge_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/tekil-go/tekil/requestctx/httpedge"
)

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

// from serves the usual order as if it came from an address.
func (g *rig) from(remote string, headers ...string) *reply {
	g.t.Helper()
	r := request("POST", "/v1/orders", usual, headers...)
	r.RemoteAddr = remote
	w := httptest.NewRecorder()
	g.mux.ServeHTTP(w, r)
	return &reply{g.t, w.Code, w.Header(), w.Body.String()}
}

const theirs = "trace-0001"

func TestTheRequestIDOfATrustedProxyIsBelievedAndNoOther(t *testing.T) {
	t.Parallel()
	trusted := prefixes("10.1.0.0/16", "192.0.2.7/32", "fd00:1::/32", "fe80::/10")
	id := func(values ...string) (headers []string) {
		for _, v := range values {
			headers = append(headers, "X-Request-ID: "+v)
		}
		return headers
	}
	for name, tt := range map[string]struct {
		remote  string
		headers []string
		trusted []netip.Prefix
		taken   string // "" means that the id is made here
	}{
		"a trusted sender":                 {"10.1.2.3:4711", id(theirs), trusted, theirs},
		"a trusted address":                {"192.0.2.7:1", id(theirs), trusted, theirs},
		"its neighbour":                    {"192.0.2.8:1", id(theirs), trusted, ""},
		"another net":                      {"10.2.0.1:4711", id(theirs), trusted, ""},
		"IPv6":                             {"[fd00:1::7]:4711", id(theirs), trusted, theirs},
		"IPv6 of another net":              {"[fd00:2::7]:4711", id(theirs), trusted, ""},
		"IPv6 with a zone":                 {"[fe80::1%eth0]:4711", id(theirs), trusted, theirs},
		"IPv4 written as IPv6":             {"[::ffff:10.1.2.3]:4711", id(theirs), trusted, theirs},
		"IPv4 written as IPv6, other net":  {"[::ffff:10.2.2.3]:4711", id(theirs), trusted, ""},
		"every IPv6 address is no IPv4":    {"10.1.2.3:4711", id(theirs), prefixes("::/0"), ""},
		"every IPv4 address is no IPv6":    {"[fd00:1::7]:4711", id(theirs), prefixes("0.0.0.0/0"), ""},
		"a prefix with bits behind it":     {"10.1.9.9:1", id(theirs), prefixes("10.1.2.3/16"), theirs},
		"nobody is trusted":                {"10.1.2.3:4711", id(theirs), nil, ""},
		"an address without a port":        {"10.1.2.3", id(theirs), trusted, ""}, // another middleware has put it there
		"a socket":                         {"@", id(theirs), trusted, ""},
		"no address":                       {"", id(theirs), trusted, ""},
		"what a header says of the sender": {"203.0.113.5:1", append(id(theirs), "X-Forwarded-For: 10.1.2.3", "Forwarded: for=10.1.2.3", "X-Real-IP: 10.1.2.3"), trusted, ""},
		"no header":                        {"10.1.2.3:4711", nil, trusted, ""},
		"two headers":                      {"10.1.2.3:4711", id(theirs, "trace-0002"), trusted, ""},
		"two equal headers":                {"10.1.2.3:4711", id(theirs, theirs), trusted, ""},
		"two in one":                       {"10.1.2.3:4711", id(theirs + ", trace-0002"), trusted, ""},
		"an empty header":                  {"10.1.2.3:4711", id(""), trusted, ""},
		"one character":                    {"10.1.2.3:4711", id("7"), trusted, "7"},
		"all characters that may be":       {"10.1.2.3:4711", id("azAZ09._:-"), trusted, "azAZ09._:-"},
		"128 characters":                   {"10.1.2.3:4711", id(strings.Repeat("x", 128)), trusted, strings.Repeat("x", 128)},
		"129 characters":                   {"10.1.2.3:4711", id(strings.Repeat("x", 129)), trusted, ""},
		"a space":                          {"10.1.2.3:4711", id("trace 0001"), trusted, ""},
		"a line":                           {"10.1.2.3:4711", id("trace\r\nX-Evil: 1"), trusted, ""},
		"a quote":                          {"10.1.2.3:4711", id(`"trace"`), trusted, ""},
		"a slash":                          {"10.1.2.3:4711", id("trace/1"), trusted, ""},
		"a letter outside ASCII":           {"10.1.2.3:4711", id("iz-ç"), trusted, ""},
		"a letter of full width":           {"10.1.2.3:4711", id("trace-１"), trusted, ""},
		"a zero":                           {"10.1.2.3:4711", id("trace\x00"), trusted, ""},
		"what is no text":                  {"10.1.2.3:4711", id("trace\xff"), trusted, ""},
		"another header's":                 {"10.1.2.3:4711", []string{"X-Correlation-ID: " + theirs, "Idempotency-Original-Request-ID: " + theirs}, trusted, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newRig(t, setup{config: httpedge.Config{TrustedProxies: tt.trusted}}).orders()
			res := g.from(tt.remote, append(tt.headers, k1)...).ok(201, "false")
			same(t, "ids on the answer", len(res.header.Values("X-Request-ID")), 1)
			got := res.id()
			same(t, "the id that the pipeline knows", g.seen.all()[0].request.ID(), got)
			same(t, "the attempt that did the work", res.header.Get("Idempotency-Original-Request-ID"), got)
			if tt.taken != "" {
				same(t, "the id", got, tt.taken)
				return
			}
			if len(got) != 36 || strings.Contains(got, "trace") {
				t.Errorf("the id %q is not made here", got)
			}
			same(t, "the problem's id", g.from(tt.remote, append(tt.headers, "Content-Type: text/plain")...).fails(415, "UNSUPPORTED_MEDIA_TYPE", httpedge.SameKey).RequestID != theirs, true)
		})
	}
}

func TestR02_AReplayBehindATrustedProxyKeepsTheOriginalsID(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{config: httpedge.Config{TrustedProxies: prefixes("10.0.0.0/8"), Envelope: envelope}}).orders()
	g.from("10.0.0.1:1", k1, "X-Request-ID: first-1").ok(201, "false")
	for _, tt := range []struct{ remote, id string }{{"10.0.0.2:1", "second-1"}, {"203.0.113.5:1", "forged-1"}, {"10.0.0.1:1", "first-1"}} {
		res := g.from(tt.remote, k1, "X-Request-ID: "+tt.id).ok(201, "true")
		same(t, "the attempt that did the work", res.header.Get("Idempotency-Original-Request-ID"), "first-1")
		same(t, "the envelope's id", res.within(201)["request_id"], any(res.id()))
		same(t, "that the id is "+tt.id, res.id() == tt.id, tt.id != "forged-1")
	}
	same(t, "the record's id", g.mem.Records()[0].OriginRequestID, "first-1")
	g.want(1, 1, 1)
}

// An id is no key: the same one twice is two requests.
func TestRec8_TheIDOfAProxyIsNeverAKey(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{config: httpedge.Config{TrustedProxies: prefixes("10.0.0.0/8")}}).orders()
	g.from("10.0.0.1:1", "X-Request-ID: order-12345").fails(400, missing, httpedge.NewKey)
	g.from("10.0.0.1:1", "X-Request-ID: order-12345", "Idempotency-Key: order-00001").ok(201, "false")
	g.from("10.0.0.1:1", "X-Request-ID: order-12345", "Idempotency-Key: order-00002").ok(201, "false")
	g.want(2, 2, 2)
}

func TestBR66_TheIDThatAClientSendsThroughARealServerIsNotTaken(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{config: httpedge.Config{TrustedProxies: prefixes("192.0.2.0/24")}}).orders()
	s := server(t, g.mux)
	forged := "X-Request-ID: " + theirs + "\r\nIdempotency-Replayed: true\r\nX-Forwarded-For: 192.0.2.1\r\n"
	res := raw(t, s, "POST", "/v1/orders", forged+k1+"\r\n", usual).ok(201, "false")
	if res.id() == theirs || res.header.Get("Idempotency-Original-Request-ID") != res.id() {
		t.Errorf("headers %v", res.header)
	}
	near := newRig(t, setup{config: httpedge.Config{TrustedProxies: prefixes("127.0.0.0/8", "::1/128")}}).orders()
	same(t, "the id by a real connection", raw(t, server(t, near.mux), "POST", "/v1/orders", forged+k1+"\r\n", usual).ok(201, "false").id(), theirs)
}

func TestProxiesThatCannotMatchAreRefused(t *testing.T) {
	t.Parallel()
	for want, p := range map[string]netip.Prefix{
		"TrustedProxies[1] is not valid":                        {},
		"TrustedProxies[1] is an IPv4 address written as IPv6;": netip.MustParsePrefix("::ffff:10.0.0.0/104"),
	} {
		e, err := httpedge.New(httpedge.Config{Anonymous: true, TrustedProxies: append(prefixes("10.0.0.0/8"), p)})
		if e != nil || err == nil || !strings.HasPrefix(err.Error(), "httpedge: Config."+want) {
			t.Errorf("got %v, %v", e, err)
		}
	}
	list := prefixes("10.0.0.0/8")
	g := newRig(t, setup{config: httpedge.Config{TrustedProxies: list}}).orders()
	list[0] = netip.MustParsePrefix("0.0.0.0/0")
	same(t, "that the list is copied", g.from("203.0.113.5:1", k1, "X-Request-ID: "+theirs).id() == theirs, false)
}

func TestTheHashOfABodyIsTakenWhereOneIsRead(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{config: httpedge.Config{HashBodies: true, BodyLimit: 100}})
	route(g, "POST /v1/orders", created)
	route(g, "POST /v1/orders/{id}/cancel", cancelled)
	check, err := httpedge.Check(g.edge, g.bus, "POST /v1/orders/test", created)
	if err != nil {
		t.Fatal(err)
	}
	g.mux.Handle("POST /v1/orders/test", check)
	const (
		ofUsual   = "86a784c05e65807c52e4901e826242e574d52aa56bb43f9eb3f694e35874b9a4"
		ofNothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	)
	g.post(k1).ok(201, "false")
	g.do("POST", "/v1/orders", `{"cart_id":"","amount":1}`, k1).fails(400, "VALIDATION_FAILED", httpedge.SameKey)
	g.do("POST", "/v1/orders/1/cancel", "", "Idempotency-Key: cancel-0001").ok(204, "false")
	same(t, "status of the check", g.do("POST", "/v1/orders/test", usual).status, 200)
	g.do("POST", "/v1/orders", `{"cart_id":"`+strings.Repeat("x", 100)+`"}`, k1).fails(413, "BODY_TOO_LARGE", httpedge.SameKey)
	ends := g.seen.all()
	same(t, "dispatches", len(ends), 4)
	same(t, "hashes", fmt.Sprint(ends[0].request.BodySHA256() == ofUsual, ends[1].request.BodySHA256() != ofUsual, len(ends[1].request.BodySHA256()),
		ends[2].request.BodySHA256() == ofNothing, ends[3].request.BodySHA256() == ofUsual), "true true 64 true true")

	own := newRig(t, setup{config: httpedge.Config{HashBodies: true}}) // what it reads is the application's own matter
	own.mux.Handle("POST /own", own.edge.Middleware("POST /own")(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(204)
	})))
	same(t, "status", own.do("POST", "/own", usual).status, 204)
}
