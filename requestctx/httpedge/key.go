package httpedge

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/tekil-go/tekil/requestctx"
)

// keyOf reads the key from a request's headers; the zero Key is none. The error is a [*requestctx.KeyError].
func keyOf(h http.Header) (requestctx.Key, error) {
	lines := h.Values(keyHeader)
	switch len(lines) {
	case 0:
		return requestctx.Key{}, nil
	case 1:
		return parseKey(lines[0])
	}
	return requestctx.Key{}, &requestctx.KeyError{Reason: fmt.Sprintf("the header came %d times; send it once", len(lines))}
}

// parseKey takes the bare form and the string of RFC 8941. Of the latter only its plain form can hold a key: an escape stands
// for a character that the grammar refuses, and so does a quote within.
func parseKey(s string) (requestctx.Key, error) {
	if !strings.HasPrefix(s, `"`) {
		return requestctx.ParseKey(s)
	}
	if len(s) < 2 || !strings.HasSuffix(s, `"`) {
		return requestctx.Key{}, &requestctx.KeyError{Length: len(s), Reason: "a key in quotes must end with the closing quote and has no parameters"}
	}
	return requestctx.ParseKey(s[1 : len(s)-1])
}
