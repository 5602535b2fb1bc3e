package main

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"net/http"
	"strconv"
)

// The contract: for programs, and for people.
var (
	//go:embed openapi.yaml
	openAPI []byte
	//go:embed index.html
	contractPage []byte
)

// document serves a text that is part of the program. A browser may load nothing for it, and apply the one style that stands in it.
func document(contentType string, body []byte) http.Handler {
	policy := "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
	if style := styleOf(body); style != nil {
		sum := sha256.Sum256(style)
		policy += "; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
	}
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		h := w.Header()
		h.Set("Content-Type", contentType)
		h.Set("Content-Length", strconv.Itoa(len(body)))
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		_, _ = w.Write(body)
	})
}

// styleOf gives what stands in the style element of a page, or nil.
func styleOf(page []byte) []byte {
	_, rest, _ := bytes.Cut(page, []byte("<style>"))
	style, _, ok := bytes.Cut(rest, []byte("</style>"))
	if !ok {
		return nil
	}
	return style
}
