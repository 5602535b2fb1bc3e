package main

import (
	"bytes"
	"io"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
)

// shared is a buffer that several may write to at once.
type shared struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *shared) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

// metricPages gives the addresses that were said.
func (s *shared) metricPages() (all []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range regexp.MustCompile(`(?m)^consumer: what this process counts is at (http://127\.0\.0\.1:\d+/metrics), for Prometheus$`).FindAllStringSubmatch(s.b.String(), -1) {
		all = append(all, m[1])
	}
	return all
}

// scraped gives what is at an address.
func scraped(t *testing.T, address string) (string, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(within(t), http.MethodGet, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return string(body), err
}

func TestSee2_TheProgramCountsWhatIsDoneAndWhatIsADuplicate(t *testing.T) {
	t.Parallel()
	var said shared
	s, err := parse([]string{"-sqlite", filepath.Join(t.TempDir(), "consumer.db"), "-duplicate", "3", "-metrics", "127.0.0.1:0"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	p, err := start(within(t), s, &said)
	if err != nil {
		t.Fatal(err)
	}
	open := true
	t.Cleanup(func() {
		if open {
			p.close()
		}
	})
	p.receive()
	for range 2 {
		if err := p.place(within(t), "the-one-order", true); err != nil {
			t.Fatal(err)
		}
	}
	p.settled(t)
	pages := said.metricPages()
	if len(pages) != 1 {
		t.Fatalf("it says %v", pages)
	}
	page, err := scraped(t, pages[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		`orders_created_total{command="orders.place"} 1`,
		`idempotency_replay_total{command="orders.place"} 1`,
		`mailer_created_total{command="mailer.send"} 1`,
		`shipping_created_total{command="shipping.ship"} 1`,
		`shipping_created_total{command="shipping.close"} 3`, // it has no mark, and does the same each time
		`billing_created_total{command="billing.invoice"} 1`,
		`idempotency_conflict_total{command="mailer.send"} 0`,
	} {
		if !strings.Contains(page, "\n"+line+"\n") {
			t.Errorf("there is no %s", line)
		}
	}
	// A copy that came while the first was being handled was put back and came again: it is a replay in the end.
	for _, command := range []string{"mailer.send", "shipping.ship", "billing.invoice"} {
		if line := `idempotency_replay_total{command="` + command + `"} 2`; !strings.Contains(page, "\n"+line+"\n") {
			t.Errorf("there is no %s", line)
		}
	}
	for _, word := range []string{"the-one-order", "ada@", "tea"} {
		if strings.Contains(page, word) {
			t.Errorf("it holds %q", word)
		}
	}
	if t.Failed() {
		t.Log(page)
	}
	open = false
	p.close()
	if page, err := scraped(t, pages[0]); err == nil {
		t.Errorf("after the end: %s", page)
	}
}

func TestEachProcessHasAPageOfItsOwn(t *testing.T) {
	t.Parallel()
	var said shared
	var out bytes.Buffer
	if err := run(within(t), append([]string{"-messages", "5", "-replicas", "2", "-metrics", "127.0.0.1:0"}, elsewhere(t)...), &out, &said); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	pages := map[string]bool{}
	for _, page := range said.metricPages() {
		pages[page] = true
	}
	if len(pages) != 3 {
		t.Errorf("they say %v", pages)
	}
}
