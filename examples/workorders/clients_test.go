package main

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
)

// httpClient posts an import as a real HTTP client does by itself. key is the header's value.
type httpClient func(ctx context.Context, address, key, format, body string) (answer, error)

// served demands that a client needs nothing special: its key counts bare and in the quotes of the IETF's draft, and both are one; its
// JSON and its XML are one import.
func (send httpClient) served(t *testing.T) {
	t.Helper()
	const bare, quoted = "8e03978e-40d5-43e8-bc93-6894a57f9324", `"8e03978e-40d5-43e8-bc93-6894a57f9324"`
	type post struct{ key, format string }
	for name, posts := range map[string][]post{
		"a bare key and JSON first":  {{bare, "json"}, {quoted, "json"}, {bare, "xml"}, {quoted, "xml"}},
		"a quoted key and XML first": {{quoted, "xml"}, {bare, "xml"}, {quoted, "json"}, {bare, "json"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			both(t, func(t *testing.T, d *database) {
				p := start(t, d, nil)
				do := func(key, format, body string) answer {
					a, err := send(within(t), p.base+importPath, key, format, body)
					if err != nil {
						t.Fatal(err)
					}
					if a.header.Get("Content-Type") != "application/"+format || a.header.Get("Idempotency-Key") != bare {
						t.Errorf("%s, %s: %v", key, format, a)
					}
					return a
				}
				cmd := doc("PRJ-1001", "WO-1")
				original := ""
				for i, s := range posts {
					a := do(s.key, s.format, written(cmd, s.format))
					if i == 0 {
						original = a.id()
						if n := a.is(t, http.StatusOK, "WORK_ORDERS_PROCESSED"); a.replayed() != "false" || n.at("data.created") != "1" {
							t.Errorf("the first answer is %v", a)
						}
						continue
					}
					a.isReplay(t, original)
				}
				cmd.Projects[0].WorkOrders[0].Lines[0].Quantity++
				for _, s := range posts {
					do(s.key, s.format, written(cmd, s.format)).is(t, http.StatusConflict, "IDEMPOTENCY_KEY_CONFLICT")
				}
				d.holds(t, "1", "1", "1", "1")
				if got := d.text(t, `SELECT description FROM work_orders`); got != cmd.Projects[0].WorkOrders[0].Description {
					t.Errorf("the description has become %s", got)
				}
			})
		})
	}
}

func TestClients_NetHTTP(t *testing.T) {
	t.Parallel()
	httpClient(func(ctx context.Context, address, key, format, body string) (answer, error) {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, address, strings.NewReader(body))
		if err != nil {
			return answer{}, err
		}
		r.Header.Set("Content-Type", "application/"+format)
		r.Header.Set("Idempotency-Key", key)
		c := http.Client{Transport: &http.Transport{}}
		defer c.CloseIdleConnections()
		res, err := c.Do(r)
		if err != nil {
			return answer{}, err
		}
		defer res.Body.Close()
		got, err := io.ReadAll(res.Body)
		return answer{res.StatusCode, res.Header, got}, err
	}).served(t)
}
