package main

import (
	"bytes"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/tekil-go/tekil/requestctx/browser/browsertest"
)

// tab is a tab of the browser on a server.
type tab struct {
	*browsertest.Tab
	t    *testing.T
	d    *database
	base string
}

// visit starts a server on d and opens the page in a browser context of its own.
func visit(t *testing.T, d *database, flags ...string) *tab {
	t.Helper()
	server := start(t, append(d.flags(), flags...)...)
	p := &tab{browsertest.Open(t), t, d, server.base}
	p.open()
	return p
}

// beside is another tab in the same browser context.
func (p *tab) beside() *tab { return &tab{p.Beside(), p.t, p.d, p.base} }

func (p *tab) open() {
	p.t.Helper()
	p.Run(chromedp.Navigate(p.base + "/"))
	p.ready()
}

func (p *tab) reload() {
	p.t.Helper()
	p.Run(chromedp.Reload())
	p.ready()
}

func (p *tab) ready() {
	p.t.Helper()
	p.Wait(`document.querySelector("#pay")?.disabled === false`)
}

// text is the text of an element.
func (p *tab) text(selector string) string {
	p.t.Helper()
	return p.Eval(fmt.Sprintf("document.querySelector(%q).textContent", selector))
}

// click clicks an element that is seen.
func (p *tab) click(selector string) {
	p.t.Helper()
	p.Run(chromedp.Click(selector, chromedp.ByQuery, chromedp.NodeVisible))
}

// says waits for what the person is told at the end.
func (p *tab) says(text string) {
	p.t.Helper()
	p.Wait(fmt.Sprintf(`document.querySelector("#status").textContent.includes(%q) && document.querySelector("#checkout").ariaBusy !== "true"`, text))
}

// pay presses the button and waits for what the person is told.
func (p *tab) pay(says string) {
	p.t.Helper()
	p.Run(chromedp.Evaluate(`document.querySelector("#status").textContent = ""`, nil)) // what it says may be what it has said before
	p.click("#pay")
	p.says(says)
}

func (p *tab) fill(id, value string) {
	p.t.Helper()
	p.Run(chromedp.Evaluate(fmt.Sprintf(`{
		const input = document.getElementById(%q);
		input.value = %q;
		input.dispatchEvent(new Event("input", { bubbles: true }));
	}`, id, value), nil))
}

// counts waits for what the page shows of its cart.
func (p *tab) counts(presses, requests, orders int, verdict string) {
	p.t.Helper()
	p.Wait(fmt.Sprintf(`["presses", "requests", "made", "verdict"].map((id) => document.getElementById(id).textContent).join() === %q`,
		fmt.Sprintf("%d,%d,%d,%s", presses, requests, orders, verdict)))
}

// served is how many payments have come to the server, by its log, of which it shows the last ones.
func (p *tab) served() (n int) {
	p.t.Helper()
	state, _ := holding(p.t, p.base, "")
	for _, line := range state.Log {
		if line["kind"] == "command" {
			n++
		}
	}
	return n
}

// key is the form's key, out of the storage.
func (p *tab) key() string {
	p.t.Helper()
	return p.Eval(`JSON.parse(sessionStorage.getItem('tekil ["checkout",null]') ?? "{}").key ?? ""`)
}

// keys are all keys that the database knows.
func (d *database) keys(t *testing.T) (keys []string) {
	t.Helper()
	for i := range d.count(t, `SELECT count(*) FROM idempotency_records`) {
		query := fmt.Sprintf(`SELECT key FROM idempotency_records ORDER BY created_at LIMIT 1 OFFSET %d`, i)
		var key string
		if d.postgres != nil {
			if err := d.postgres.Pool().QueryRow(within(t), query).Scan(&key); err != nil {
				t.Fatal(err)
			}
		} else {
			d.sqlite(t, func(db *sql.DB) error { return db.QueryRowContext(within(t), query).Scan(&key) })
		}
		keys = append(keys, key)
	}
	return keys
}

// kept checks that the records have this key and no other.
func (d *database) kept(t *testing.T, key string) {
	t.Helper()
	if keys := d.keys(t); !slices.Equal(keys, []string{key}) {
		t.Errorf("the key has changed, or there are %d", len(keys))
	}
}

// sound asserts what holds at any time: no key is anywhere but in storage and in the header, and nothing has broken the
// policy or thrown.
func (p *tab) sound() {
	p.t.Helper()
	seen := p.Eval(`document.documentElement.outerHTML + location.href + JSON.stringify(history.state) + document.cookie +
		[...document.querySelectorAll("input")].map((i) => i.value)`)
	_, state := holding(p.t, p.base, "")
	seen += p.Console()
	for _, key := range append(p.d.keys(p.t), p.key()) {
		if key != "" && (strings.Contains(seen, key) || bytes.Contains(state.body, []byte(key))) {
			p.t.Errorf("the key %s is shown", masked(key))
		}
	}
	p.Sound()
}

const placedBefore = "is placed. An earlier try had placed it already."

func TestPage_LostAnswersAreAskedForAgainAndMakeOneOrder(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		p := visit(t, d)
		p.counts(0, 0, 0, "Press Pay.")
		p.click("#lose")
		p.pay(placedBefore)
		p.counts(1, 5, 1, "5 requests, 1 order: the key did its work.")
		if n := p.served(); n != 5 {
			t.Errorf("%d requests have come", n)
		}
		d.settles(t, 1)
		cart := p.Eval(`document.querySelector("#cart").value`)
		for _, where := range []string{"#orders", "#authorizations"} {
			p.Wait(fmt.Sprintf(`document.querySelector("%s tr.mine")?.textContent.includes(%q)`, where, cart))
		}
		key := d.keys(t)[0]
		p.Wait(fmt.Sprintf(`document.querySelector("#records").textContent.includes(%[1]q) && document.querySelector("#log").textContent.includes("key=" + %[1]q)`, masked(key)))
		p.pay("is placed already. Nothing was sent.")
		p.counts(2, 5, 1, "5 requests, 1 order: the key did its work.")
		p.sound()
	})
}

func TestPage_LostAnswerThenReloadAndPayIsOneOrder(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		p := visit(t, d)
		key, cart := p.key(), p.Eval(`document.querySelector("#cart").value`)
		p.click("#lose-all")
		p.pay("We do not know whether this went through. Press again")
		d.settles(t, 1)
		p.sound()
		p.reload()
		p.says("We do not know whether this went through. Press again")
		p.sound()
		if again := p.Eval(`document.querySelector("#cart").value`); again != cart || p.key() != key {
			t.Errorf("after the reload the cart is %s and was %s", again, cart)
		}
		p.pay(placedBefore)
		p.counts(2, 6, 1, "6 requests, 1 order: the key did its work.")
		d.kept(t, key)
		d.settles(t, 1)
		p.sound()
	})
}

func TestPage_DoubleClickIsOneRequest(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		p := visit(t, d)
		p.click("#double")
		p.click("#slow")
		p.pay("is placed.")
		p.counts(2, 1, 1, "2 presses, 1 request, 1 order: the page sent it once.")
		if n := p.served(); n != 1 {
			t.Errorf("%d requests have come", n)
		}
		d.settles(t, 1)
		p.sound()
	})
}

func TestPage_WrongAmountThenCorrectedKeepsTheKey(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		p := visit(t, d)
		key := p.key()
		p.click("#wrong")
		p.pay("This was not accepted. Correct it and press again.")
		if said := p.text("#amount-error"); !strings.Contains(said, "greater than 0") {
			t.Errorf("beside the field stands %q", said)
		}
		if got := p.Eval(`[document.activeElement.id, document.querySelector("#amount").ariaInvalid, document.querySelector("#email").ariaInvalid]`); got != "amount,true,false" {
			t.Errorf("the fields are %s", got)
		}
		d.holds(t, 0, 0)
		p.sound()
		p.fill("amount", "12,5")
		if p.Eval(`document.querySelector("#wrong").checked`) != "false" {
			t.Error("the amount is still said to be wrong")
		}
		p.fill("email", "nobody")
		p.pay("This was not accepted. Correct it and press again.")
		if got := p.Eval(`[document.activeElement.id, document.querySelector("#amount-error").hidden, document.querySelector("#email-error").hidden]`); got != "email,true,false" {
			t.Errorf("the fields are %s", got)
		}
		p.fill("email", "")
		p.fill("amount", "ten")
		p.click("#pay")
		p.Wait(`document.querySelector("#amount-error").textContent === "Write an amount such as 49.90."`)
		p.fill("amount", "12,5")
		p.pay("is placed.")
		p.counts(3, 3, 1, "3 requests, 1 order: the key did its work.")
		d.kept(t, key)
		if n := d.count(t, `SELECT amount FROM orders`); n != 1250 {
			t.Errorf("the amount is %d", n)
		}
		d.settles(t, 1)
		p.sound()
	})
}

func TestPage_ANewOrderIsANewCartAndANewKey(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		p := visit(t, d)
		cart := p.Eval(`document.querySelector("#cart").value`)
		p.pay("is placed.")
		p.counts(1, 1, 1, "1 request, 1 order.")
		p.click("#new-order")
		p.counts(0, 0, 0, "Press Pay.")
		second := p.Eval(`document.querySelector("#cart").value`)
		if second == cart || second == "" || p.text("#status") != "" || p.Eval(`document.querySelector("#new-order").hidden`) != "true" {
			t.Errorf("the second cart is %s, the first was %s", second, cart)
		}
		p.pay("is placed.")
		p.counts(1, 1, 1, "1 request, 1 order.")
		// To begin something else is a new order as well.
		p.fill("amount", "7")
		p.pay("is placed.")
		p.counts(1, 1, 1, "1 request, 1 order.")
		if keys := d.keys(t); len(slices.Compact(slices.Sorted(slices.Values(keys)))) != 3 {
			t.Errorf("there are %d keys", len(keys))
		}
		if n := d.count(t, `SELECT count(DISTINCT cart_id) FROM orders`); n != 3 {
			t.Errorf("there are %d carts", n)
		}
		d.settles(t, 3)
		p.sound()
	})
}

func TestPage_TwoTabsAreTwoKeysAndARestoredOneIsOne(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		a := visit(t, d)
		b := a.beside()
		b.open()
		a.click("#lose-all")
		a.pay("We do not know")
		b.pay("is placed.")
		d.settles(t, 2)
		// A browser that restores a tab restores its storage.
		c := a.beside()
		c.Run(chromedp.Navigate(a.base + "/healthz"))
		storage := a.Eval("JSON.stringify(Object.entries(sessionStorage))")
		c.Run(chromedp.Evaluate("for (const [k, v] of "+storage+") sessionStorage.setItem(k, v)", nil))
		c.open()
		c.says("We do not know")
		if was := a.Eval(`document.querySelector("#cart").value`); c.Eval(`document.querySelector("#cart").value`) != was || c.key() != a.key() {
			t.Error("the restored tab has another cart or key")
		}
		c.pay(placedBefore)
		c.counts(2, 6, 1, "6 requests, 1 order: the key did its work.")
		d.settles(t, 2)
		if keys := d.keys(t); len(keys) != 2 || keys[0] == keys[1] {
			t.Errorf("there are %d keys", len(keys))
		}
		for _, p := range []*tab{a, b, c} {
			p.sound()
		}
	})
}

func TestPage_BackAfterSuccessIsANewOrder(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		p := visit(t, d)
		cart := p.Eval(`document.querySelector("#cart").value`)
		p.pay("is placed.")
		p.Run(chromedp.Navigate(p.base + "/healthz"))
		p.Run(chromedp.Evaluate("history.back()", nil))
		p.ready()
		p.counts(0, 0, 0, "Press Pay.")
		if again := p.Eval(`document.querySelector("#cart").value`); again == cart || again == "" {
			t.Errorf("the cart is %s and was %s", again, cart)
		}
		p.Run(chromedp.Evaluate(`document.querySelector("#pay").click()`, nil)) // the driver does not find nodes of a page from the cache
		p.says("is placed.")
		p.counts(1, 1, 1, "1 request, 1 order.")
		if keys := d.keys(t); len(keys) != 2 || keys[0] == keys[1] {
			t.Errorf("there are %d keys", len(keys))
		}
		d.settles(t, 2)
		p.sound()
	})
}

func TestPage_OfflineThenOnlineIsOneOrder(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		p := visit(t, d)
		key := p.key()
		p.Run(network.EmulateNetworkConditions(true, 0, -1, -1))
		p.pay("We do not know")
		d.holds(t, 0, 0)
		p.Run(network.EmulateNetworkConditions(false, 0, -1, -1))
		p.pay("is placed.")
		p.counts(2, 6, 1, "6 requests, 1 order: the key did its work.")
		d.kept(t, key)
		d.settles(t, 1)
		p.sound()
	})
}

func TestPage_WithoutAKeyLostAnswersAreFiveOrders(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		p := visit(t, d)
		p.click("#keyed")
		p.click("#lose")
		p.pay("is placed.")
		p.counts(1, 5, 5, "5 requests, 5 orders: without a key nobody could know they were one.")
		if n := p.served(); n != 5 {
			t.Errorf("%d requests have come", n)
		}
		d.holds(t, 5, 0)
		p.click("#new-order")
		p.counts(0, 0, 0, "Press Pay.")
		p.click("#lose")
		p.click("#double")
		p.pay("is placed.")
		p.counts(2, 2, 2, "2 requests, 2 orders: without a key nobody could know they were one.")
		p.click("#new-order")
		p.click("#double")
		p.click("#wrong")
		p.pay("This was not accepted.")
		if said := p.text("#amount-error"); !strings.Contains(said, "greater than 0") {
			t.Errorf("beside the field stands %q", said)
		}
		d.holds(t, 7, 0)
		// With the key again, after an attempt without one.
		p.click("#keyed")
		p.fill("amount", "1")
		p.pay("is placed.")
		d.holds(t, 8, 1)
		p.sound()
	})
}

func TestPage_EditedAfterALostAnswerIsToldAndStartingOverIsANewOrder(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		p := visit(t, d)
		cart := p.Eval(`document.querySelector("#cart").value`)
		p.click("#lose-all")
		p.pay("We do not know")
		p.click("#lose-all")
		p.fill("amount", "1")
		p.pay("The first attempt was received with other details")
		p.sound()
		d.settles(t, 1)
		p.click("#start-over")
		p.counts(0, 0, 0, "Press Pay.")
		if again := p.Eval(`document.querySelector("#cart").value`); again == cart {
			t.Error("the cart is the same")
		}
		p.pay("is placed.")
		p.counts(1, 1, 1, "1 request, 1 order.")
		d.settles(t, 2)
		p.sound()
	})
}

func TestPage_TheKeyboardIsEnough(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		p := visit(t, d)
		p.Run(chromedp.Evaluate(`document.querySelector("#cart").focus()`, nil))
		var order []string
		for range 9 {
			p.Run(chromedp.KeyEvent(kb.Tab))
			order = append(order, p.Eval("document.activeElement.id"))
		}
		if want := "amount email pay lose lose-all slow double wrong keyed"; strings.Join(order, " ") != want {
			t.Errorf("the order is %v", order)
		}
		p.Run(chromedp.KeyEvent(" "))
		if p.Eval(`document.querySelector("#keyed").checked`) != "false" {
			t.Error("the switch did not move")
		}
		p.Run(chromedp.KeyEvent(" "), chromedp.Evaluate(`document.querySelector("#amount").focus()`, nil), chromedp.KeyEvent(kb.Enter))
		p.says("is placed.")
		p.counts(1, 1, 1, "1 request, 1 order.")
		p.Run(chromedp.Evaluate(`document.querySelector("#pay").focus()`, nil), chromedp.KeyEvent(kb.Tab))
		if p.Eval("document.activeElement.id") != "new-order" {
			t.Error("the new order cannot be reached")
		}
		p.Run(chromedp.KeyEvent(kb.Enter))
		p.counts(0, 0, 0, "Press Pay.")
		p.sound()
	})
}

func TestPage_ANarrowWindowDoesNotScrollSideways(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		p := visit(t, d, "-provider", "embedded", "-provider-db", t.TempDir()+"/provider.db")
		p.Run(emulation.SetDeviceMetricsOverride(360, 740, 2, true))
		fits := func() {
			t.Helper()
			if p.Eval("document.documentElement.scrollWidth <= document.documentElement.clientWidth") != "true" {
				t.Errorf("it is %s wide in %s", p.Eval("document.documentElement.scrollWidth"), p.Eval("document.documentElement.clientWidth"))
			}
		}
		fits()
		p.click("#wrong")
		p.pay("This was not accepted.")
		fits()
		p.fill("amount", "1")
		p.pay("is placed.")
		p.Wait(`document.querySelector("#records tbody tr")`)
		fits()
		p.sound()
	})
}

func TestPage_WithoutTheDemoItPays(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		server := start(t, append(d.flags(), "-demo=false")...)
		p := &tab{browsertest.Open(t), t, d, server.base}
		p.open()
		p.pay("is placed.")
		p.Wait(`document.querySelectorAll("#orders tbody tr.mine").length === 1`)
		p.click("#new-order")
		p.pay("is placed.")
		p.Wait(`document.querySelectorAll("#orders tbody tr").length === 2`)
		d.settles(t, 2)
		if v := p.Eval("window.violations"); v != "" {
			t.Errorf("the policy is broken: %s", v)
		}
	})
}
