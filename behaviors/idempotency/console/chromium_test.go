package console_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/requestctx/browser/browsertest"
)

// tab is a tab of the browser on a console, whose person is logged in.
type tab struct {
	*browsertest.Tab
	t    *testing.T
	base string
}

func visit(t *testing.T, d *desk, host string) *tab {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle("/ops/records/", http.StripPrefix("/ops/records", d.Handler))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	p := &tab{browsertest.Open(t), t, strings.Replace(server.URL, "127.0.0.1", host, 1) + "/ops/records/"}
	p.Run(network.SetCookie("session", "ayse").WithURL(p.base), chromedp.Navigate(p.base))
	p.says("Was it done, and how often?")
	return p
}

// says waits for a page that says something.
func (p *tab) says(text string) {
	p.t.Helper()
	p.Wait(fmt.Sprintf(`document.readyState === "complete" && document.body?.innerText.includes(%q)`, text))
}

// press presses keys, as a person without a mouse does.
func (p *tab) press(keys ...string) {
	p.t.Helper()
	for _, k := range keys {
		p.Run(chromedp.KeyEvent(k))
	}
}

// reach presses Tab until something has the focus, which must be seen.
func (p *tab) reach(selector string) {
	p.t.Helper()
	for range 30 {
		if p.Eval(fmt.Sprintf(`document.activeElement.matches(%q)`, selector)) == "true" {
			if got := p.Eval(`getComputedStyle(document.activeElement).outlineStyle`); got != "solid" {
				p.t.Errorf("the focus on %s is not seen: %s", selector, got)
			}
			return
		}
		p.press(kb.Tab)
	}
	p.t.Fatalf("no key leads to %s", selector)
}

// quiet demands that nothing has been complained of.
func (p *tab) quiet() {
	p.t.Helper()
	p.Sound()
	if said := p.Console(); said != "" {
		p.t.Errorf("the console says %s", said)
	}
}

// fits demands that nothing stands out of the window, and that everything that takes an input has a name.
func (p *tab) fits() {
	p.t.Helper()
	if got := p.Eval(`document.documentElement.scrollWidth <= document.documentElement.clientWidth`); got != "true" { // innerWidth grows with the page on a telephone
		p.t.Errorf("the page is wider than the window: %s", p.Eval(`[...document.querySelectorAll("*")].filter((e) => e.getBoundingClientRect().right > document.documentElement.clientWidth + 1).map((e) => e.outerHTML.slice(0, 80)).join("\n")`))
	}
	if got := p.Eval(`[...document.querySelectorAll("input:not([type=hidden]), select")].filter((e) => !e.labels.length).map((e) => e.name)`); got != "" {
		p.t.Errorf("without a label: %s", got)
	}
}

// contrast gives the texts whose contrast is below 4.5.
const contrast = `(() => {
	const rgb = (c) => c.match(/[\d.]+/g).map(Number);
	const light = ([r, g, b]) => [r, g, b].map((v) => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4).reduce((s, v, i) => s + v * [.2126, .7152, .0722][i], 0);
	const ground = (e) => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c.length < 4 || c[3] > 0) return c; } return [255, 255, 255]; };
	const bad = [];
	for (const e of document.querySelectorAll("body *")) {
		if (![...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()) && !e.matches("input, select")) continue;
		const [a, b] = [light(rgb(getComputedStyle(e).color)), light(ground(e))];
		const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
		if (ratio < 4.5) bad.push(e.tagName + "." + e.className + " " + ratio.toFixed(2));
	}
	return bad;
})()`

// shoot keeps a picture for people, where TEKIL_SCREENSHOTS names a folder.
func (p *tab) shoot(name string) {
	p.t.Helper()
	dir := os.Getenv("TEKIL_SCREENSHOTS")
	if dir == "" {
		return
	}
	var png []byte
	p.Run(chromedp.FullScreenshot(&png, 100))
	if err := os.WriteFile(filepath.Join(dir, name+".png"), png, 0o600); err != nil {
		p.t.Fatal(err)
	}
}

// story has some of everything.
func story(t *testing.T) (d *desk, stuck, live idempotency.Record) {
	t.Helper()
	d = newDesk(t)
	order := func(r *idempotency.Record) { r.DraftID = "order-4711" }
	d.put(kept("8e03978e-40d5-43e8-bc93-6894a57f9324", order))
	d.put(kept("01890a5d-ac96-774b-bcce-b302099a8057", order, func(r *idempotency.Record) {
		r.Outcome, r.ResultType, r.Result = idempotency.Refusal, "refusal/1", []byte(`{"code":"PAYMENT_DECLINED","message":"m"}`)
	}))
	d.put(kept("key-00000003", failed, order))
	stuck = kept("key-00000004", inProgress(0), func(r *idempotency.Record) { r.Attempt, r.Attempts = idempotency.AttemptID{4}, 2 })
	live = kept("key-00000005", inProgress(time.Hour), order, func(r *idempotency.Record) { r.Attempt = idempotency.AttemptID{5} })
	d.put(stuck)
	d.put(live)
	return d, stuck, live
}

func TestPage_SupportFindsAStuckPaymentAndReleasesItWithTheKeyboardAlone(t *testing.T) {
	t.Parallel()
	d, _, _ := story(t)
	p := visit(t, d, "127.0.0.1")
	if got := p.Eval("document.activeElement.id"); got != "q" {
		t.Errorf("the focus is on %q", got)
	}
	p.press("draft-key-00000004", kb.Enter)
	p.says("Nobody knows whether it was done")
	if got := p.Eval("location.pathname + location.search"); strings.Contains(got, "key-0") || !strings.HasSuffix(got, "?by=draft_id") {
		t.Errorf("the address is %s", got)
	}
	p.reach("#reason")
	p.press("ticket 4711", kb.Enter)
	p.says("Released. The next request with this key")
	if lines := d.logs.TakeAll(); len(lines) != 1 || lines[0].ContextMap()["reason"] != "ticket 4711" || lines[0].ContextMap()["by"] != "ayse" {
		t.Errorf("the lines are %+v", lines)
	}
	p.reach("nav a")
	p.press(kb.Enter)
	p.says("Nothing is stuck.")
	p.press(kb.Tab, kb.Tab) // past the kind, on the button
	p.reach("button")
	p.press(kb.Enter) // an empty box is not sent
	if got := p.Eval(`document.querySelector("#q").validity.valueMissing`); got != "true" {
		t.Errorf("the box is %s", got)
	}
	p.reach("summary")
	p.press(kb.Enter)
	p.reach("#client")
	p.press("nobody")
	p.reach("#q")
	p.press("order-4711", kb.Enter)
	p.says("Nothing was found.")
	if got := p.Eval(`[document.querySelector("#client").value, document.querySelector("#q").value]`); got != "nobody,order-4711" {
		t.Errorf("the form is %s", got)
	}
	p.quiet()
}

// On a host without TLS a browser sends no Sec-Fetch-Site, so that all hangs on the header Origin.
func TestPage_ALiveLeaseIsReleasedByItsOwnTick(t *testing.T) {
	t.Parallel()
	d, _, live := story(t)
	p := visit(t, d, browsertest.Host)
	p.Run(chromedp.SetValue("#q", "key-00000005"), chromedp.Click("form.search button"))
	p.says("Most likely being done now")
	p.Run(chromedp.Click("form.release button")) // without a reason it is not sent
	if got := p.Eval(`document.querySelector("#reason").validity.valueMissing`); got != "true" {
		t.Errorf("the reason is %s", got)
	}
	p.Run(chromedp.SendKeys("#reason", "ticket 4711"), chromedp.Click("form.release button"))
	p.says("Not released: an attempt is most likely at work.")
	p.Run(chromedp.SendKeys("#reason", "ticket 4711"), chromedp.Click("form.release input[type=checkbox]"), chromedp.Click("form.release button"))
	p.says("Released. The next request with this key")
	if lines := d.logs.TakeAll(); len(lines) != 1 || lines[0].ContextMap()["live_lease"] != true {
		t.Errorf("the lines are %+v", lines)
	}
	// The page that was open before does nothing any more.
	p.Run(chromedp.Evaluate(fmt.Sprintf(`document.querySelector("[name=seen]").value = %q`, seen(live)), nil), chromedp.SendKeys("#reason", "again"), chromedp.Click("form.release button"))
	p.says("Not released: the record has changed since it was read; look again.")
	p.Sound()
	if said := p.Console(); strings.Count(said, `"level":"error"`) != strings.Count(said, "409 (Conflict)") {
		t.Errorf("the console says %s", said)
	}
}

func TestPage_AnotherSitesPageReleasesNothing(t *testing.T) {
	t.Parallel()
	d, stuck, _ := story(t)
	p := visit(t, d, "127.0.0.1")
	evil := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = fmt.Fprintf(w, `<!doctype html><title>evil</title><link rel=icon href="data:,"><form method=post action="%srecords/%s/release"><input name=reason value=x><input name=seen value=%s></form><iframe src="%s"></iframe>`,
			p.base, stuck.Scope.ID().Operation(), seen(stuck), p.base)
	}))
	t.Cleanup(evil.Close)
	p.Run(chromedp.Navigate(evil.URL), chromedp.Evaluate(`document.forms[0].submit()`, nil))
	p.says("This request was sent by a page of another site, so nothing was done.")
	if lines := d.logs.TakeAll(); len(lines) != 0 {
		t.Errorf("it was released: %+v", lines)
	}
	if said := p.Console(); !strings.Contains(said, "frame-ancestors") && !strings.Contains(said, "X-Frame-Options") {
		t.Errorf("the page stood in a frame: %s", said)
	}
}

func TestPage_WhatStrangersWroteStaysText(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.put(hostileRecord(hostile))
	d.put(hostileRecord("key-00000002", inProgress(0)))
	p := visit(t, d, "127.0.0.1")
	p.fits()
	p.Run(chromedp.SetValue("#q", hostile), chromedp.Click("form.search button"))
	p.says("2 records: 1 done, 1 stuck.")
	p.fits()
	p.Run(chromedp.Click("article h2 a"))
	p.Wait(`document.querySelector("h1 .mood")?.textContent === "stuck"`) // the younger one
	p.Run(chromedp.Navigate(p.base + "stuck"))
	p.says("1 record: 1 stuck.")
	p.Run(chromedp.Click("article h2 a"))
	p.says("Release the key")
	p.Run(chromedp.Click("details summary"))
	p.fits()
	if got := p.Eval(`document.title + document.querySelectorAll("script, img").length`); strings.Contains(got, "taken") && !strings.Contains(got, "document.title") || !strings.HasSuffix(got, "0") {
		t.Errorf("the page is %s", got)
	}
	p.quiet()
}

func TestPage_ItIsReadableNarrowWideLightAndDark(t *testing.T) {
	t.Parallel()
	d, stuck, live := story(t)
	p := visit(t, d, "127.0.0.1")
	for _, width := range []int64{320, 1280} {
		for _, scheme := range []string{"light", "dark"} {
			p.Run(emulation.SetDeviceMetricsOverride(width, 900, 1, width < 500), emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}))
			look := func(name string) {
				t.Helper()
				p.fits()
				if bad := p.Eval(contrast); bad != "" {
					t.Errorf("%s, %s, %d wide: contrast of %s", name, scheme, width, bad)
				}
				p.shoot(fmt.Sprintf("%s-%d-%s", name, width, scheme))
			}
			p.Run(chromedp.Navigate(p.base))
			p.says("1 stuck.")
			look("home")
			p.Run(chromedp.SetValue("#q", "order-4711"), chromedp.Click("form.search button"))
			p.says("4 records: 1 done, 1 refused, 1 in progress, 1 failed.")
			look("found")
			for name, rec := range map[string]idempotency.Record{"stuck": stuck, "live": live} {
				p.Run(chromedp.Navigate(p.base + "records/" + rec.Scope.ID().Operation() + "?by=draft_id"))
				p.says("Release the key")
				p.Run(chromedp.Click("details summary"))
				look(name)
			}
			p.Run(chromedp.Navigate(p.base + "pipeline"))
			p.says("stages:")
			look("pipeline")
		}
	}
	p.quiet()
}
