package main

import (
	"net/http"
	"strings"
	"testing"
)

func TestSee2_TheProgramCountsImportsAndReplays(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		p := start(t, d, nil)
		key := "metrics-key"
		for _, format := range []string{"json", "xml"} { // the same import
			if a := p.post(t, key, format, openapiFile(t, "testdata/sample."+format)); a.status != http.StatusOK {
				t.Fatalf("%v", a)
			}
		}
		page, err := exchange(within(t), p.base, request{http.MethodGet, "/metrics", nil, ""})
		if err != nil || page.status != http.StatusOK {
			t.Fatalf("%v %v", page, err)
		}
		for _, line := range []string{
			`workorders_created_total{command="workorders.import"} 1`,
			`idempotency_replay_total{command="workorders.import"} 1`,
			`idempotency_conflict_total{command="workorders.import"} 0`,
			`tekil_dispatch_duration_seconds_count{command="workorders.import",kind="command",outcome="OK",state="executed"} 1`,
			`tekil_dispatch_duration_seconds_count{command="workorders.import",kind="command",outcome="OK",state="replayed"} 1`,
		} {
			if !strings.Contains(string(page.body), "\n"+line+"\n") {
				t.Errorf("there is no %s in\n%s", line, page.body)
			}
		}
		for _, word := range []string{key, "WO-", "TEKIL-TR", "IST-01"} {
			if strings.Contains(string(page.body), word) {
				t.Errorf("it holds %q:\n%s", word, page.body)
			}
		}
	})
}
