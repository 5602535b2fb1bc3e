package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore/pgtest"
)

func TestAnOrderIsFoundOrNot(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		s := serve(t, d, nil)
		placed := post(t, s.base, "an-order-to-find", payment("cart-1", 4990))
		p := placed.placed(t)
		// A key is ignored where nothing is changed, a bad one too (rule pipe-10).
		got, err := exchange(within(t), http.MethodGet, s.base+placed.header.Get("Location"), "", http.Header{"Idempotency-Key": {"!", "!"}})
		if err != nil {
			t.Fatal(err)
		}
		var o Order
		if err := json.Unmarshal(got.body, &o); err != nil || got.status != http.StatusOK {
			t.Fatalf("%v %v", err, got)
		}
		if want := (Order{p.OrderID, "cart-1", 4990, "TRY", p.AuthID, "placed", "draft-1", o.CreatedAt}); o != want || o.CreatedAt.IsZero() {
			t.Errorf("%+v, want %+v", o, want)
		}
		if bytes.Contains(got.body, []byte("ada@")) || got.replayed() != "" || got.requestID() == "" {
			t.Errorf("%v", got)
		}

		missing := get(t, s.base+"/api/v1/orders/01890a5d-ac96-774b-bcce-b302099a8057")
		missing.is(t, http.StatusNotFound, "ORDER_NOT_FOUND")
		for _, bad := range []string{"nonsense", "1", "%00", "%27%20OR%201=1", "01890a5d-ac96-774b-bcce-b302099a805", url.PathEscape("../orders")} {
			a := get(t, s.base+"/api/v1/orders/"+bad)
			a.is(t, http.StatusBadRequest, "VALIDATION_FAILED")
			if p := a.problem(t); len(p.Errors) != 1 || p.Errors[0].Path != "order_id" {
				t.Errorf("%s: %v", bad, a)
			}
		}
		d.holds(t, 1, 1)
	})
}

func TestOrdersArePagedNewestFirst(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		s := serve(t, d, nil)
		page := func(path string) (p Page) {
			t.Helper()
			a := get(t, s.base+path)
			if err := json.Unmarshal(a.body, &p); err != nil || a.status != http.StatusOK {
				t.Fatalf("%s: %v %v", path, err, a)
			}
			return p
		}
		if a := get(t, s.base+"/api/v1/orders"); string(a.body) != `{"orders":[]}`+"\n" {
			t.Errorf("without orders: %v", a)
		}

		const orders = 45
		var want []string // newest first
		for i := range orders {
			cart := fmt.Sprintf("cart-%d", i)
			want = slices.Insert(want, 0, post(t, s.base, "order-for-"+cart, payment(cart, int64(i+1))).placed(t).OrderID)
		}
		for _, c := range []struct {
			path  string
			pages []int
		}{
			{"/api/v1/orders", []int{20, 20, 5}},
			{"/api/v1/orders?limit=", []int{20, 20, 5}},
			{"/api/v1/orders?limit=15", []int{15, 15, 15}},
			{"/api/v1/orders?limit=44", []int{44, 1}},
			{"/api/v1/orders?limit=45", []int{45}},
			{"/api/v1/orders?limit=100", []int{45}},
			{"/api/v1/orders?limit=1", slices.Repeat([]int{1}, orders)},
		} {
			var got []string
			var pages []int
			for path := c.path; path != ""; {
				p := page(path)
				pages = append(pages, len(p.Orders))
				for _, o := range p.Orders {
					if n := orders - len(got) - 1; o.CartID != fmt.Sprintf("cart-%d", n) || o.Amount != int64(n+1) || o.AuthID == "" {
						t.Errorf("%s: order %d is %+v", c.path, len(got), o)
					}
					got = append(got, o.OrderID)
				}
				path = p.Next
			}
			if !slices.Equal(pages, c.pages) || !slices.Equal(got, want) {
				t.Errorf("%s: pages of %v, want %v; all the orders in their order: %v", c.path, pages, c.pages, slices.Equal(got, want))
			}
		}
		// An order that comes while somebody turns the pages changes none of those that are to come.
		first := page("/api/v1/orders?limit=10")
		newest := post(t, s.base, "order-in-between", payment("cart-new", 1)).placed(t).OrderID
		if second := page(first.Next); second.Orders[0].OrderID != want[10] {
			t.Errorf("the second page begins with %+v", second.Orders[0])
		}
		if p := page("/api/v1/orders?limit=1"); p.Orders[0].OrderID != newest {
			t.Errorf("the newest order is %+v", p.Orders[0])
		}

		for query, field := range map[string]string{
			"limit=0": "limit", "limit=-1": "limit", "limit=101": "limit", "limit=ten": "limit", "limit=1e1": "limit", "limit=99999999999999999999": "limit",
			"before=nonsense": "before", "before=%00": "before",
		} {
			a := get(t, s.base+"/api/v1/orders?"+query)
			a.is(t, http.StatusBadRequest, "VALIDATION_FAILED")
			if p := a.problem(t); len(p.Errors) != 1 || p.Errors[0].Path != field {
				t.Errorf("%s: %v", query, a)
			}
		}
	})
}

func TestThePageShowsOrdersAndEscapesThem(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		s := serve(t, d, nil)
		look := func() string {
			t.Helper()
			a := get(t, s.base+"/")
			if a.status != http.StatusOK || a.header.Get("Content-Type") != "text/html; charset=utf-8" ||
				a.header.Get("Content-Security-Policy") != pagePolicy {
				t.Fatalf("%v", a)
			}
			return string(a.body)
		}
		if page := look(); !strings.Contains(page, "There are no orders yet") || strings.Contains(page, "<table>") {
			t.Errorf("without orders:\n%s", page)
		}
		id := post(t, s.base, "order-on-the-page", payment("cart-1", 4905)).placed(t).OrderID
		post(t, s.base, "script-on-the-page", payment(`<script>alert("x")</script>`, 1)).placed(t)
		page := look()
		for _, want := range []string{id, "<td>cart-1</td>", "49.05 TRY", "0.01 TRY", "&lt;script&gt;alert(&#34;x&#34;)&lt;/script&gt;"} {
			if !strings.Contains(page, want) {
				t.Errorf("the page does not hold %q:\n%s", want, page)
			}
		}
		if strings.Contains(page, "<script>") || strings.Count(page, "<script") != 1 || strings.Contains(page, "ada@") || strings.Contains(page, "all of them are at") {
			t.Errorf("the page holds what it should not:\n%s", page)
		}
		for i := range 49 {
			post(t, s.base, fmt.Sprintf("more-on-the-page-%d", i), payment("cart-2", 1)).placed(t)
		}
		if page := look(); !strings.Contains(page, "all of them are at <code>/api/v1/orders</code>") || strings.Count(page, "<tr>") != 51 {
			t.Errorf("with 51 orders there are %d lines:\n%s", strings.Count(page, "<tr>"), page)
		}
		if a := get(t, s.base+"/nonsense"); a.status != http.StatusNotFound {
			t.Errorf("another page: %v", a)
		}
	})
}

func TestHealthzSaysWhetherTheDatabaseAnswers(t *testing.T) {
	t.Parallel()
	healthy := func(t *testing.T, base string) {
		t.Helper()
		if a := get(t, base+"/healthz"); a.status != http.StatusOK || string(a.body) != `{"status":"ok"}`+"\n" || a.header.Get("Content-Type") != "application/json" {
			t.Errorf("%v", a)
		}
	}
	ill := func(t *testing.T, base string) {
		t.Helper()
		a := get(t, base+"/healthz")
		if a.status != http.StatusServiceUnavailable || string(a.body) != `{"status":"the database does not answer"}`+"\n" {
			t.Errorf("%v", a)
		}
	}
	t.Run("SQLite", func(t *testing.T) {
		t.Parallel()
		d := sqliteDatabase(t)
		kept, store := d.open(t)
		s := serveOn(t, kept, store, nil)
		healthy(t, s.base)
		if err := kept.(sqlite).db.Close(); err != nil {
			t.Fatal(err)
		}
		ill(t, s.base)
	})
	t.Run("PostgreSQL is away", func(t *testing.T) {
		t.Parallel()
		d := postgresDatabase(t)
		proxy := d.postgres.Proxy()
		kept, store := openAt(t, proxy.URL())
		s := serveOn(t, kept, store, nil)
		healthy(t, s.base)
		proxy.Refuse(true)
		proxy.CutAll()
		ill(t, s.base)
		// Nothing else does harm or tells what is wrong inside.
		down := post(t, s.base, "while-it-is-away", payment("cart-1", 4990))
		down.is(t, http.StatusServiceUnavailable, "IDEMPOTENCY_STORE_UNAVAILABLE")
		discreet(t, down)
		if a := get(t, s.base+"/"); a.status != http.StatusServiceUnavailable || string(a.body) != "The orders cannot be read just now.\n" {
			t.Errorf("the page: %v", a)
		}
		list := get(t, s.base+"/api/v1/orders")
		list.is(t, http.StatusInternalServerError, "INTERNAL")
		discreet(t, list)
		proxy.Refuse(false)
		healthy(t, s.base)
		if retry, _ := settled(t, s.base, "while-it-is-away", payment("cart-1", 4990)); retry.replayed() != "false" {
			t.Errorf("the retry: %v", retry)
		}
		d.holds(t, 1, 1)
	})
	t.Run("PostgreSQL is silent", func(t *testing.T) {
		t.Parallel()
		d := postgresDatabase(t)
		proxy := d.postgres.Proxy()
		kept, store := openAt(t, with(t, proxy.URL(), "pool_max_conns", "1"))
		s := serveOn(t, kept, store, nil)
		healthy(t, s.base)
		release := make(chan struct{})
		proxy.Arm(pgtest.Fault{Match: func(string) bool { return true }, Action: pgtest.HoldAnswer, Release: release})
		ill(t, s.base) // the health check has a time limit of its own
		close(release)
	})
}
