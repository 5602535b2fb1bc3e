package browser_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/tekil-go/tekil/requestctx/browser"
)

func ExampleHandler() {
	mux := http.NewServeMux()
	mux.Handle("/assets/tekil/", http.StripPrefix("/assets/tekil/", browser.Handler()))

	get := func(etag string) *httptest.ResponseRecorder {
		r := httptest.NewRequest("GET", "/assets/tekil/tekil.mjs", nil)
		r.Header.Set("If-None-Match", etag)
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		return w
	}
	first := get("")
	fmt.Println(first.Code, first.Header().Get("Content-Type"), first.Header().Get("Cache-Control"))
	fmt.Println(get(first.Header().Get("ETag")).Code)
	// Output:
	// 200 text/javascript; charset=utf-8 no-cache
	// 304
}
