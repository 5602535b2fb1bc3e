package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"sync"
	"testing"

	"github.com/tekil-go/tekil/behaviors/idempotency"
)

// provider is the outside world of a run, in the parent process: it takes a charge under a downstream key, once, and sometimes
// does not say so.
type provider struct {
	url string

	mu      sync.Mutex
	charges map[string]charge // by downstream key
	keys    map[string]string // the downstream key of an intent
	faults  []string
}

type charge struct {
	intent  string
	payload int
}

func newProvider(t *testing.T) *provider {
	p := &provider{charges: make(map[string]charge), keys: make(map[string]string)}
	server := httptest.NewServer(p)
	t.Cleanup(server.Close)
	p.url = server.URL
	return p
}

func (p *provider) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	q := req.URL.Query()
	payload, _ := strconv.Atoi(q.Get("payload"))
	switch {
	case !p.charge(q.Get("key"), charge{q.Get("intent"), payload}, req.Method == http.MethodPost):
		w.WriteHeader(http.StatusNotFound)
	case req.Method == http.MethodPost && roll(5):
		w.WriteHeader(http.StatusBadGateway) // the charge is made all the same
	}
}

// charge makes a charge, if it is to be made, and says whether it is there.
func (p *provider) charge(key string, c charge, make bool) (there bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	made, there := p.charges[key]
	if there && made != c {
		p.faults = append(p.faults, fmt.Sprintf("the outside world was asked for %v and for %v under one key", made, c))
	}
	if !there && make {
		p.charges[key], there = c, true
		if first, again := p.keys[c.intent]; again {
			p.faults = append(p.faults, fmt.Sprintf("%s was charged twice, under the keys %s and %s", c.intent, first, key))
		}
		p.keys[c.intent] = key
	}
	return there
}

// wrong says what the outside world has seen that it should not: an intent that came under two keys, or with two payloads.
func (p *provider) wrong() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.faults
}

var errNoCharge = errors.New("chaos: there is no such charge")

// charge asks the outside world for the charge of a dispatch, or whether there is one.
func (n *node) charge(ctx context.Context, d *dispatch, method string) error {
	key, err := idempotency.DownstreamKey(ctx, "charge")
	if err != nil {
		return err
	}
	q := url.Values{"key": {key}, "intent": {d.Group + " " + d.Key}, "payload": {strconv.Itoa(d.Payload)}}
	req, err := http.NewRequestWithContext(ctx, method, n.outside+"?"+q.Encode(), nil)
	if err != nil {
		return err
	}
	res, err := n.http.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, res.Body)
	switch res.StatusCode {
	case http.StatusOK:
		return nil
	case http.StatusNotFound:
		return errNoCharge
	}
	return errOutside
}
