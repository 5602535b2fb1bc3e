package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"text/tabwriter"

	"github.com/tekil-go/tekil/requestctx/client"
)

// order is an order as the checkout lists it.
type order struct {
	Placed
	DraftOrderID string `json:"draft_order_id"`
}

// orders reads all orders of the checkout at base, page by page, and gives those whose draft begins with prefix, by draft. So those of
// other runs do not count.
func orders(ctx context.Context, base, prefix string) (map[string][]order, error) {
	transport := &http.Transport{DisableKeepAlives: true}
	reader := &http.Client{Transport: &client.Client{Transport: transport, PerTry: perTry}}
	byDraft, seen := map[string][]order{}, map[string]bool{}
	for path := "/api/v1/orders?limit=100"; path != ""; {
		if !strings.HasPrefix(path, "/") || seen[path] {
			return nil, errors.New("the next page is not one that can be followed")
		}
		seen[path] = true
		page, err := readPage(ctx, reader, base+path)
		if err != nil {
			return nil, err
		}
		for _, o := range page.Orders {
			if strings.HasPrefix(o.DraftOrderID, prefix) {
				byDraft[o.DraftOrderID] = append(byDraft[o.DraftOrderID], o)
			}
		}
		path = page.Next
	}
	return byDraft, nil
}

type page struct {
	Orders []order `json:"orders"`
	Next   string  `json:"next"`
}

func readPage(ctx context.Context, reader *http.Client, url string) (p page, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return p, err
	}
	resp, err := reader.Do(req)
	if err != nil {
		return p, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return p, fmt.Errorf("a page has the status %d", resp.StatusCode)
	}
	return p, json.NewDecoder(resp.Body).Decode(&p)
}

// findings is what came of comparing payments, answers and orders.
type findings struct {
	payments int
	orders   int // of this run
	one      int // payments with one order, which is the one that was answered and holds what was meant
	none     int // payments with no order
	more     int // payments with more than one
	tooMany  int // orders beyond the first of each payment
	another  int // payments with one order, and the answer named another one or none
	differs  int // payments with one order or an answer that holds another cart, amount or currency
	strays   int // orders of no payment
}

// compare looks at each payment by itself.
func (r runner) compare(answers []Placed, byDraft map[string][]order) findings {
	f := findings{payments: r.payments}
	for _, found := range byDraft {
		f.orders += len(found)
	}
	f.strays = f.orders
	for i, answer := range answers {
		p := r.payment(i)
		found := byDraft[p.DraftOrderID]
		f.strays -= len(found)
		switch {
		case len(found) == 0:
			f.none++
		case len(found) > 1:
			f.more++
			f.tooMany += len(found) - 1
		case answer.OrderID != found[0].OrderID:
			f.another++
		case !p.is(answer) || !p.is(found[0].Placed):
			f.differs++
		default:
			f.one++
		}
	}
	return f
}

func (p Place) is(o Placed) bool {
	return p.CartID == o.CartID && p.Amount == o.Amount && p.Currency == o.Currency
}

// verdict is nil where every payment has exactly one order, the right one.
func (f findings) verdict() error {
	var wrong []string
	for _, w := range []struct {
		n    int
		what string
	}{
		{f.none, "payments with no order"},
		{f.more, fmt.Sprintf("payments with more than one order (%d orders too many)", f.tooMany)},
		{f.another, "payments with another order than the one that was answered"},
		{f.differs, "payments with another cart, amount or currency than was meant"},
		{f.strays, "orders of no payment"},
	} {
		if w.n > 0 {
			wrong = append(wrong, fmt.Sprintf("%d %s", w.n, w.what))
		}
	}
	if len(wrong) > 0 {
		return fmt.Errorf("of %d payments: %s", f.payments, strings.Join(wrong, ", "))
	}
	return nil
}

// report is what is printed at the end.
type report struct {
	*tally
	line    *lineCounts
	kills   int
	keeping bool // with -intents
	findings
}

func (r *report) print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(what string, n int64) { fmt.Fprintf(t, "%s\t%8d\n", what, n) }
	fmt.Fprintln(t)
	row("payments", int64(r.payments))
	row("tries", r.tries.Load())
	row("tries without an answer", r.lost.Load())
	row("replays", r.replays.Load())
	row("conflicts", r.conflicts.Load())
	row("refused", r.refused.Load())
	if r.keeping {
		row("intents resumed", r.resumed.Load())
	}
	row("line: dropped before the work", r.line.before.Load())
	row("line: dropped after the work", r.line.after.Load())
	row("line: delayed", r.line.delayed.Load())
	row("line: doubled", r.line.doubled.Load())
	row("line: server was away", r.line.away.Load())
	row("kills", int64(r.kills))
	row("orders on the server", int64(r.orders))
	row("payments with no order", int64(r.none))
	row("payments with more than one", int64(r.more))
	row("payments with another order than answered", int64(r.another))
	row("payments with other content than meant", int64(r.differs))
	row("payments with exactly one order, as answered", int64(r.one))
	return t.Flush()
}
