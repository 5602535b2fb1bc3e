package main

import (
	"fmt"
	"net/http"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"
)

// The public route may be asked by anybody, as often as they like: it reads and never writes (rule pipe-11).
func TestTheTestRouteUnderLoadWritesNothing(t *testing.T) {
	t.Parallel()
	const workers, requests = 16, 640
	both(t, func(t *testing.T, d *database) {
		p := start(t, d, nil)
		p.post(t, "spent-key", "json", asJSON(doc("PRJ-1001", "WO-1"))).is(t, http.StatusOK, "WORK_ORDERS_PROCESSED")
		p.post(t, "refused-key", "json", asJSON(doc("PRJ-1003", "WO-2"))).is(t, http.StatusConflict, "NO_PROJECT_PROCESSED")
		kinds := []step{
			{key: noKey, doc: doc("PRJ-1001", "§N-1", "§N-2"), want: previewed("WORK_ORDERS_WOULD_BE_PROCESSED", "data.created=2", "data.existing=0")},
			{key: keyed("§K"), doc: doc("PRJ-1002", "§N-1", "WO-1"), want: previewed("WORK_ORDERS_WOULD_BE_PROCESSED", "data.created=1", "data.existing=1")},
			{key: keyed("spent-key"), doc: doc("PRJ-1001", "WO-1"), want: previewed("WORK_ORDERS_WOULD_BE_PROCESSED", "data.created=0", "data.existing=1")},
			{key: keyed("spent-key"), doc: doc("PRJ-1002", "§N-1"), want: previewed("WORK_ORDERS_WOULD_BE_PROCESSED", "data.created=1")},
			{key: keyed("refused-key"), doc: doc("PRJ-1003", "WO-2"), want: previewed("NO_PROJECT_WOULD_BE_PROCESSED", "data.created=0", "data.projects.0.code=PROJECT_CLOSED")},
			{key: keyed("/"), doc: partly, want: previewed("WORK_ORDERS_WOULD_BE_PARTLY_PROCESSED", "data.created=1", "data.projects.2.code=PROJECT_NOT_FOUND")},
			{key: noKey, doc: in("IZM-01", doc("PRJ-1001", "§N-1")), want: field("organization_code", "ORGANIZATION_NOT_FOUND").with("Idempotency-Key", "")},
			{key: keyed("§K"), doc: doc("PRJ-1001", "§N-1", "§N-1"), want: field("projects[0].work_orders[1].work_order_number", "unique").with("Idempotency-Key", "")},
			{key: keyed("§K"), body: "no document", want: malformed().with("Idempotency-Key", "")},
			{key: noKey, doc: doc("PRJ-1001", "§N-1"), head: []string{"Accept: text/html"}, want: invalid(http.StatusNotAcceptable, "NOT_ACCEPTABLE").with("Idempotency-Key", "")},
		}
		before := d.contents(t)
		ctx := within(t)
		var next atomic.Int64
		var wait sync.WaitGroup
		for range workers {
			wait.Go(func() {
				for i := int(next.Add(1)) - 1; i < requests; i = int(next.Add(1)) - 1 {
					s := kinds[i/2%len(kinds)]
					s.route, s.format = testRoute, []string{"json", "xml"}[i%2]
					sent, fill := s.request(), filler(fmt.Sprintf("key-%04d", i), fmt.Sprintf("W%04d", i))
					sent.body = fill(sent.body)
					for j := range sent.lines {
						sent.lines[j] = fill(sent.lines[j])
					}
					a, err := exchange(ctx, p.base, sent)
					if err != nil {
						t.Errorf("request %d: %v", i, err)
						return
					}
					for _, problem := range s.want.problems(s, a, nil, filler("", "", "§", a.id())) {
						t.Errorf("request %d: %s: %v", i, problem, a)
					}
				}
			})
		}
		wait.Wait()
		after := d.contents(t)
		if len(before) < 8 || len(before["idempotency_records"]) != 2 || len(before["work_orders"]) != 1 {
			t.Errorf("this has not looked at all that there is: %v", before)
		}
		if !reflect.DeepEqual(before, after) {
			t.Errorf("the database holds %v, before %v", after, before)
		}
	})
}
