package browser

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"net/http"
	"strings"
	"time"
)

var (
	//go:embed tekil.mjs
	module []byte
	//go:embed tekil.d.mts
	types []byte
)

// file is one of the two that are served.
type file struct {
	content     []byte
	contentType string
	etag        string
}

var files = map[string]file{
	"tekil.mjs":   newFile(module, "text/javascript; charset=utf-8"),
	"tekil.d.mts": newFile(types, "text/plain; charset=utf-8"),
}

func newFile(content []byte, contentType string) file {
	sum := sha256.Sum256(content)
	return file{content, contentType, `"` + base64.RawURLEncoding.EncodeToString(sum[:]) + `"`}
}

// Handler serves the module as tekil.mjs and its types as tekil.d.mts, to GET and HEAD. Mount it under a prefix:
//
//	mux.Handle("/assets/tekil/", http.StripPrefix("/assets/tekil/", browser.Handler()))
//
// A browser keeps the module and asks each time whether it is still the same one (Cache-Control: no-cache, a strong ETag), so an
// update is never mixed with an old module and an unchanged one costs an answer of 304. The handler may be used concurrently.
func Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f, ok := files[strings.TrimPrefix(r.URL.Path, "/")]
		if !ok {
			http.NotFound(w, r)
			return
		}
		h := w.Header()
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			h.Set("Allow", "GET, HEAD")
			http.Error(w, http.StatusText(http.StatusMethodNotAllowed), http.StatusMethodNotAllowed)
			return
		}
		h.Set("Content-Type", f.contentType)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Cache-Control", "no-cache")
		h.Set("ETag", f.etag)
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(f.content))
	})
}
