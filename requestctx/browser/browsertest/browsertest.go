// Package browsertest gives tests tabs of a real Chromium. It is for tests only.
//
// A test process has one browser, without a window, which [Open] starts when the first test asks for a tab. It is "chromium",
// "chromium-browser" or "google-chrome" in the PATH; where there is none the test fails and says so, because a skip looks like a success
// and has tested nothing. [M] ends it:
//
//	func TestMain(m *testing.M) { goleak.VerifyTestMain(browsertest.M{M: m}) } // or os.Exit(browsertest.M{M: m}.Run())
//
//	func TestPage(t *testing.T) {
//		tab := browsertest.Open(t)
//		tab.Run(chromedp.Navigate(server.URL), chromedp.Click("#pay"))
//		tab.Wait(`document.querySelector("#status").textContent === "Done."`)
//		tab.Sound()
//	}
//
// The name [Host] leads to this machine as well. Unlike 127.0.0.1 it is not "potentially trustworthy": over plain HTTP a page there has no
// secure context, and its requests carry no Sec-Fetch-Site.
package browsertest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/cdproto/target"
	"github.com/chromedp/chromedp"
)

// Host is a name that the browser, and nobody else, resolves to 127.0.0.1.
const Host = "shop.test"

const (
	// patience bounds a wait. It is reached only where something is wrong.
	patience = 60 * time.Second
	// lifetime bounds a tab.
	lifetime = 2 * patience
)

// chromium is the one browser of the process.
var chromium = sync.OnceValues(func() (context.Context, error) {
	var path string
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if found, err := exec.LookPath(name); err == nil {
			path = found
			break
		}
	}
	if path == "" {
		return nil, errors.New("browsertest: these tests need Chromium as \"chromium\" in the PATH; install it and run them again")
	}
	options := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]), chromedp.ExecPath(path), chromedp.Flag("headless", "new"),
		chromedp.Flag("host-resolver-rules", "MAP "+Host+" 127.0.0.1"), chromedp.Flag("enable-features", "BackForwardCache"))
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox)
	}
	allocator, end := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, cancel := chromedp.NewContext(allocator, chromedp.WithErrorf(func(string, ...any) {}), chromedp.WithLogf(func(string, ...any) {}))
	endChromium = func() { _ = chromedp.Cancel(ctx); cancel(); end() }
	return ctx, chromedp.Run(ctx)
})

var endChromium = func() {}

// M runs tests and then ends the browser, if one was started.
type M struct{ *testing.M }

// Run runs the tests and gives their exit code.
func (m M) Run() int {
	defer func() { endChromium() }()
	return m.M.Run()
}

// Tab is a tab of the browser. It ends with its test, or after two minutes. Its methods are called by the test's own goroutine.
type Tab struct {
	t   *testing.T
	own cdp.BrowserContextID
	ctx context.Context

	mu      sync.Mutex
	console bytes.Buffer
	thrown  bool
}

// Open gives a tab in a browser context of its own: its storage and cookies are shared with no other test.
func Open(t *testing.T) *Tab {
	t.Helper()
	own, err := target.CreateBrowserContext().WithDisposeOnDetach(true).Do(whole(t))
	if err != nil {
		t.Fatal(err)
	}
	return open(t, own)
}

// Beside gives another tab in the same browser context.
func (p *Tab) Beside() *Tab {
	p.t.Helper()
	return open(p.t, p.own)
}

// whole is a context for orders to the browser and not to a tab.
func whole(t *testing.T) context.Context {
	t.Helper()
	ctx, err := chromium()
	if err != nil {
		t.Fatal(err)
	}
	return cdp.WithExecutor(ctx, chromedp.FromContext(ctx).Browser)
}

func open(t *testing.T, own cdp.BrowserContextID) *Tab {
	t.Helper()
	browser := whole(t)
	id, err := target.CreateTarget("about:blank").WithBrowserContextID(own).WithNewWindow(true).Do(browser) // a context's first tab needs a window
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := chromedp.NewContext(browser, chromedp.WithTargetID(id))
	t.Cleanup(cancel)
	ctx, timeout := context.WithTimeout(ctx, lifetime)
	t.Cleanup(timeout)
	p := &Tab{t: t, own: own, ctx: ctx}
	chromedp.ListenTarget(ctx, func(event any) {
		switch event.(type) {
		case *runtime.EventConsoleAPICalled, *runtime.EventExceptionThrown, *log.EventEntryAdded:
			text, _ := json.Marshal(event)
			_, thrown := event.(*runtime.EventExceptionThrown)
			p.mu.Lock()
			defer p.mu.Unlock()
			p.console.Write(text)
			p.thrown = p.thrown || thrown
		}
	})
	p.Run(network.Enable(), log.Enable(), runtime.Enable(), chromedp.ActionFunc(func(ctx context.Context) error {
		_, err := page.AddScriptToEvaluateOnNewDocument(`window.violations = [];
			addEventListener("securitypolicyviolation", (e) => window.violations.push(e.violatedDirective + " " + e.blockedURI));`).Do(ctx)
		return err
	}))
	return p
}

// Run does what it is told; an error ends the test.
func (p *Tab) Run(actions ...chromedp.Action) {
	p.t.Helper()
	if err := chromedp.Run(p.ctx, actions...); err != nil {
		p.t.Fatal(err)
	}
}

// Eval gives the value of a JavaScript expression, as text.
func (p *Tab) Eval(expression string) string {
	p.t.Helper()
	var out string
	p.Run(chromedp.Evaluate("String("+expression+")", &out))
	return out
}

// Wait waits until a JavaScript expression is true, through reloads as well; a minute at most, which ends the test. It polls, because a page that
// is left takes whatever waits in it along.
func (p *Tab) Wait(expression string) {
	p.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); ; <-tick.C {
		var ok bool
		err := chromedp.Run(p.ctx, chromedp.Evaluate("Boolean("+expression+")", &ok))
		if ok && err == nil {
			return
		}
		if time.Now().After(deadline) || p.ctx.Err() != nil {
			p.t.Fatalf("%s: %v; the page says %q", expression, err, p.Eval("document.body.innerText"))
		}
	}
}

// Console is what the console has said until now, as JSON: what scripts wrote and threw, and what the browser complained of.
func (p *Tab) Console() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.console.String()
}

// Sound fails the test where the page breaks its Content-Security-Policy, or where a script of the tab has ever thrown.
func (p *Tab) Sound() {
	p.t.Helper()
	said := p.Console()
	if v := p.Eval("window.violations"); v != "" || strings.Contains(said, "Content Security Policy") {
		p.t.Errorf("the policy is broken: %s; the console says %s", v, said)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.thrown {
		p.t.Errorf("a script has thrown: %s", said)
	}
}
