package browser_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/tekil-go/tekil/requestctx/browser"
)

func TestBrowserModuleAlone(t *testing.T) {
	t.Parallel()
	node, err := exec.LookPath("node")
	if err != nil {
		t.Fatal("browser: the tests of the module need Node 20 or later as \"node\" in the PATH; install it and run them again")
	}
	out, err := exec.CommandContext(t.Context(), node, "--test", "tekil.test.mjs").CombinedOutput()
	if err != nil {
		t.Fatalf("node --test: %v\n%s", err, out)
	}
	if strings.Contains(string(out), "# pass 0\n") {
		t.Fatalf("node --test ran nothing:\n%s", out)
	}
}

func TestHandlerServesTheModuleAndItsTypesAndNothingElse(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		method, path, match, contentType string
		status                           int
	}{
		{"GET", "/tekil.mjs", "", "text/javascript; charset=utf-8", 200},
		{"HEAD", "/tekil.mjs", "", "text/javascript; charset=utf-8", 200},
		{"GET", "tekil.mjs", "", "text/javascript; charset=utf-8", 200}, // behind http.StripPrefix("/assets/", …)
		{"GET", "/tekil.d.mts", "", "text/plain; charset=utf-8", 200},
		{"GET", "/tekil.mjs", `"other"`, "text/javascript; charset=utf-8", 200},
		{"POST", "/tekil.mjs", "", "text/plain; charset=utf-8", 405},
		{"GET", "/", "", "text/plain; charset=utf-8", 404},
		{"GET", "/tekil.test.mjs", "", "text/plain; charset=utf-8", 404},
		{"GET", "/../browser.go", "", "text/plain; charset=utf-8", 404},
	} {
		r := httptest.NewRequest(tc.method, "/", nil)
		r.URL.Path = tc.path
		if tc.match != "" {
			r.Header.Set("If-None-Match", tc.match)
		}
		w := httptest.NewRecorder()
		browser.Handler().ServeHTTP(w, r)
		h := w.Header()
		if w.Code != tc.status || h.Get("Content-Type") != tc.contentType || h.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s %q: %d %v", tc.method, tc.path, w.Code, h)
		}
		if tc.status == 405 && h.Get("Allow") != "GET, HEAD" {
			t.Errorf("%s %q: Allow is %q", tc.method, tc.path, h.Get("Allow"))
		}
		if tc.status != 200 {
			continue
		}
		if etag := h.Get("ETag"); !strings.HasPrefix(etag, `"`) || len(etag) != 45 || h.Get("Cache-Control") != "no-cache" {
			t.Errorf("%s %q: ETag %s, Cache-Control %q", tc.method, tc.path, etag, h.Get("Cache-Control"))
		}
		if want, err := os.ReadFile(strings.TrimPrefix(tc.path, "/")); err != nil || tc.method == "GET" && w.Body.String() != string(want) || tc.method == "HEAD" && w.Body.Len() > 0 {
			t.Errorf("%s %q: %d bytes, %v", tc.method, tc.path, w.Body.Len(), err)
		}
		r.Header.Set("If-None-Match", h.Get("ETag"))
		w = httptest.NewRecorder()
		browser.Handler().ServeHTTP(w, r)
		if w.Code != http.StatusNotModified || w.Body.Len() > 0 {
			t.Errorf("%s %q with its ETag: %d", tc.method, tc.path, w.Code)
		}
	}
}
