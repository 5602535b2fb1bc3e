package browsertest_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"go.uber.org/goleak"

	"github.com/tekil-go/tekil/requestctx/browser/browsertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(browsertest.M{M: m}) }

func serve(t *testing.T, page string) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Security-Policy", "script-src 'unsafe-inline'")
		w.Header().Set("Content-Type", "text/html")
		_, _ = fmt.Fprint(w, "<!doctype html><title>t</title><link rel=icon href='data:,'>", page)
	}))
	t.Cleanup(s.Close)
	return s
}

func TestATabShowsAPageAndHearsItsConsole(t *testing.T) {
	t.Parallel()
	s := serve(t, `<p id=said>hello</p><script>console.log("a word"); localStorage.kept = Number(localStorage.kept ?? 0) + 1; setTimeout(() => (document.title = "later"), 50)</script>`)
	p := browsertest.Open(t)
	p.Run(chromedp.Navigate(s.URL))
	p.Wait(`document.title === "later"`)
	if got := p.Eval(`document.querySelector("#said").textContent`); got != "hello" {
		t.Errorf("the page says %q", got)
	}
	if !strings.Contains(p.Console(), "a word") {
		t.Errorf("the console says %s", p.Console())
	}
	p.Sound()

	for _, tc := range []struct {
		tab  *browsertest.Tab
		kept string
	}{{p.Beside(), "2"}, {browsertest.Open(t), "1"}} {
		tc.tab.Run(chromedp.Navigate(s.URL))
		tc.tab.Wait(`document.title === "later"`)
		if got := tc.tab.Eval(`localStorage.kept`); got != tc.kept {
			t.Errorf("the storage has counted to %s, want %s", got, tc.kept)
		}
	}
}

func TestHostIsThisMachineAndNoSecureContext(t *testing.T) {
	t.Parallel()
	s := serve(t, "")
	p := browsertest.Open(t)
	p.Run(chromedp.Navigate(strings.Replace(s.URL, "127.0.0.1", browsertest.Host, 1)))
	if got := p.Eval("[location.hostname, isSecureContext]"); got != browsertest.Host+",false" {
		t.Errorf("it is %s", got)
	}
}
