package client

import (
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Event is what became of one try.
type Event string

// The events, in the order of [Policy].
const (
	DialFailed   Event = "dial error"          // no connection, so nothing was sent
	TLSRefused   Event = "certificate refused" // nothing was sent
	CutSending   Event = "cut while sending"   // the connection broke before the request was out
	CutAfter     Event = "cut after sending"   // the connection broke before the answer was there
	TryTimeout   Event = "no answer in time"   // the limit of one try
	Success      Event = "2xx"
	Accepted     Event = "202"
	Redirect     Event = "3xx"
	BadRequest   Event = "400"
	Timeout      Event = "408"
	InProgress   Event = "409 in progress"
	Conflict     Event = "409 otherwise"
	Invalid      Event = "422"
	TooEarly     Event = "425"
	TooMany      Event = "429"
	ClientFault  Event = "other 4xx"
	ServerFault  Event = "500, other 5xx"
	BadGateway   Event = "502"
	Unavailable  Event = "503"
	GatewayAfter Event = "504"
)

// Kind is what kind of request it is, as far as sending it again goes.
type Kind int

const (
	// Read: GET, HEAD, OPTIONS and TRACE. A read carries no key.
	Read Kind = iota
	// Keyed: any other method, with a key.
	Keyed
	// Idempotent: PUT and DELETE without a key, which RFC 9110 calls idempotent.
	Idempotent
	// Unkeyed: POST, PATCH and every other method without a key. It is sent once.
	Unkeyed
)

// KindOf gives the kind of a request with this method that carries a key or does not.
func KindOf(method string, key bool) Kind {
	switch method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return Read
	}
	switch {
	case key:
		return Keyed
	case method == http.MethodPut || method == http.MethodDelete:
		return Idempotent
	}
	return Unkeyed
}

// Rule is a row of the policy: whether a request of each kind is sent again after the event. Within the limits, that is, and unless
// the problem in the answer says otherwise.
type Rule struct {
	Event Event
	Again [4]bool // by Kind
}

var (
	all   = [4]bool{true, true, true, false}
	known = [4]bool{true, true, false, false} // the kinds for which a fault of unknown extent is no risk
	wait  = [4]bool{false, true, false, false}
	never = [4]bool{}
)

var policy = []Rule{
	{DialFailed, all}, {TLSRefused, never}, {CutSending, all}, {CutAfter, all}, {TryTimeout, all},
	{Success, never}, {Accepted, never}, {Redirect, never},
	{BadRequest, never}, {Timeout, all}, {InProgress, wait}, {Conflict, never}, {Invalid, never}, {TooEarly, all}, {TooMany, all}, {ClientFault, never},
	{ServerFault, known}, {BadGateway, all}, {Unavailable, all}, {GatewayAfter, all},
}

// Policy gives the rows of the policy, which is the table in the package's documentation (rule key-5).
func Policy() []Rule { return append([]Rule(nil), policy...) }

func again(e Event, k Kind) bool {
	for _, r := range policy {
		if r.Event == e {
			return r.Again[k]
		}
	}
	return false
}

// eventOf gives the event of a status. 409 is [Conflict] until the problem is known.
func eventOf(status int) Event {
	switch {
	case status == http.StatusAccepted:
		return Accepted
	case status < 300:
		return Success
	case status < 400:
		return Redirect
	}
	for _, e := range [...]Event{BadRequest, Timeout, Invalid, TooEarly, TooMany, BadGateway, Unavailable, GatewayAfter} {
		if string(e) == strconv.Itoa(status) {
			return e
		}
	}
	switch {
	case status == http.StatusConflict:
		return Conflict
	case status < 500:
		return ClientFault
	}
	return ServerFault
}

// Stop is why no further try is made.
type Stop string

// The reasons; "" means that there is a further try.
const (
	StopFinal      Stop = "the answer is final"
	StopServer     Stop = "the server says that sending it again does not help"
	StopUnkeyed    Stop = "a write without a key is sent only once"
	StopBody       Stop = "the body cannot be read a second time"
	StopTries      Stop = "the tries are used up"
	StopTotal      Stop = "the total time does not allow another try"
	StopRetryAfter Stop = "the server asks for a wait beyond the total time"
	StopCanceled   Stop = "the caller gave up"
)

// RetryAfter reads the header Retry-After: seconds or an HTTP date, which is taken relative to the answer's Date header where that
// can be read, and otherwise to now. It is 0 for a header that is not there, is in the past or means nothing.
func RetryAfter(h http.Header, now time.Time) time.Duration {
	v := strings.TrimSpace(h.Get("Retry-After"))
	if v != "" && strings.Trim(v, "0123456789") == "" {
		seconds, err := strconv.ParseInt(v, 10, 64)
		if err != nil || seconds > int64(math.MaxInt64/time.Second) { // a number, and out of range
			return math.MaxInt64
		}
		return time.Duration(seconds) * time.Second
	}
	at, err := http.ParseTime(v)
	if err != nil {
		return 0
	}
	if date, err := http.ParseTime(h.Get("Date")); err == nil {
		now = date
	}
	return max(at.Sub(now), 0)
}
