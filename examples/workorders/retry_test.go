package main

import (
	"context"
	"net/http"
	"testing"
)

// inTheBackground sends an import, which the client gives up when cut is called. What became of it comes through lost.
func (p *program) inTheBackground(t *testing.T, key, body string) (cut func(), lost <-chan error) {
	t.Helper()
	ctx, cut := context.WithCancel(within(t))
	gone := make(chan error, 1)
	go func() {
		_, err := p.send(ctx, key, "json", body)
		gone <- err
	}()
	p.awaitUnderWay(t, key)
	return cut, gone
}

// patiently sends an import until it is no longer in progress. The server itself makes each of these wait a little.
func (p *program) patiently(t *testing.T, key, body string) answer {
	t.Helper()
	for {
		a := p.post(t, key, "json", body)
		n, err := a.tree()
		if err != nil {
			t.Fatalf("%v: %v", err, a)
		}
		if n.at("code") != "IDEMPOTENCY_REQUEST_IN_PROGRESS" {
			return a
		}
	}
}

// isBusy demands "in progress", with all that belongs to it.
func (a answer) isBusy(t *testing.T) {
	t.Helper()
	n := a.is(t, http.StatusConflict, "IDEMPOTENCY_REQUEST_IN_PROGRESS")
	if n.at("data.retry") != "same-key" || a.header.Get("Retry-After") != "2" || a.replayed() != "false" {
		t.Errorf("it does not say what to do: %v", a)
	}
}

// isReplay demands the outcome of an attempt, which is known by its id.
func (a answer) isReplay(t *testing.T, original string) {
	t.Helper()
	n := a.is(t, http.StatusOK, "WORK_ORDERS_PROCESSED")
	if a.replayed() != "true" || a.header.Get("Idempotency-Original-Request-ID") != original || a.id() == original || n.at("data.created") != "1" {
		t.Errorf("it is no replay of %s: %v", original, a)
	}
}

// An ERP sends a work order and loses patience. What it does then is what its makers have to write (L03, L21, see-3).
func TestTheFiveStepsOfARetry(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		p := start(t, d, nil, "-hold-demo", "6s")
		const key = "erp-order-4711"
		body := asJSON(doc("PRJ-1001", "WO-4711"))

		// 1. It sends the work order, under a key that it keeps.
		cut, lost := p.inTheBackground(t, key, body)
		original := d.text(t, `SELECT origin_request_id FROM idempotency_records`)

		// 2. No answer comes, and it hangs up. That is no failure: the work goes on.
		cut()
		if err := <-lost; err == nil {
			t.Fatal("the answer came")
		}
		d.holds(t, "0", "0", "0", "1")

		// 3. It sends the same again, and learns that the first one is at work and when to come back.
		p.post(t, key, "json", body).isBusy(t)
		p.post(t, key, "xml", asXML(doc("PRJ-1001", "WO-4711"))).isBusy(t)

		// 4. It waits and asks with the same key: that is the outcome of the first attempt, now and every time.
		p.patiently(t, key, body).isReplay(t, original)
		p.post(t, key, "json", body).isReplay(t, original)
		p.post(t, key, "xml", asXML(doc("PRJ-1001", "WO-4711"))).isReplay(t, original)

		// 5. Another work order under this key is a mistake of the ERP's, and is told so.
		other := p.post(t, key, "json", asJSON(doc("PRJ-1001", "WO-4712")))
		if n := other.is(t, http.StatusConflict, "IDEMPOTENCY_KEY_CONFLICT"); n.at("data.retry") != "none" || other.header.Get("Retry-After") != "" {
			t.Errorf("the conflict says %v", other)
		}
		d.holds(t, "1", "1", "1", "1")
	})
}

// The same, and the service is killed while it works. Its lease outlives it, and then the work is done once (L06, L07, X04).
func TestTheServiceIsKilledDuringAnImport_KillNine(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		const key = "erp-order-4711"
		body := asJSON(doc("PRJ-1001", "WO-4711"))
		doomed := start(t, d, nil, "-hold-demo", "50s")
		cut, lost := doomed.inTheBackground(t, key, body)
		defer cut()
		doomed.kill()
		if err := <-lost; err == nil {
			t.Fatal("the answer came")
		}
		d.holds(t, "0", "0", "0", "1")

		p := start(t, d, nil)
		p.post(t, key, "json", body).isBusy(t)
		p.post(t, key, "json", asJSON(doc("PRJ-1001", "WO-4712"))).is(t, http.StatusConflict, "IDEMPOTENCY_KEY_CONFLICT")
		d.holds(t, "0", "0", "0", "1")

		d.expireLeases(t)
		p.post(t, key, "json", asJSON(doc("PRJ-1001", "WO-4712"))).is(t, http.StatusConflict, "IDEMPOTENCY_KEY_CONFLICT")
		taken := p.post(t, key, "json", body)
		if n := taken.is(t, http.StatusOK, "WORK_ORDERS_PROCESSED"); taken.replayed() != "false" || n.at("data.created") != "1" {
			t.Errorf("the next attempt did not do the work: %v", taken)
		}
		p.post(t, key, "json", body).isReplay(t, taken.header.Get("Idempotency-Original-Request-ID"))
		if got := d.text(t, `SELECT request_id FROM inbound_archive`); got != taken.id() {
			t.Errorf("the archive names %s, and the work was done by %s", got, taken.id())
		}
		d.holds(t, "1", "1", "1", "1")
		if got := d.text(t, `SELECT state || ' ' || attempts FROM idempotency_records`); got != "completed 2" {
			t.Errorf("the record is %s", got)
		}
	})
}

// The service is killed when the work is done and the answer was lost: what it has done is there for the next one (X05, R26).
func TestTheServiceIsKilledAfterAnImport_KillNine(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		const key = "erp-order-4711"
		body := asJSON(doc("PRJ-1001", "WO-4711"))
		doomed := start(t, d, nil, "-hold-demo", "2s")
		cut, lost := doomed.inTheBackground(t, key, body)
		cut()
		<-lost
		d.awaitText(t, `SELECT state FROM idempotency_records`, "completed")
		doomed.kill()
		d.holds(t, "1", "1", "1", "1")
		original := d.text(t, `SELECT origin_request_id FROM idempotency_records`)
		p := start(t, d, nil)
		p.post(t, key, "json", body).isReplay(t, original)
		d.holds(t, "1", "1", "1", "1")
	})
}
