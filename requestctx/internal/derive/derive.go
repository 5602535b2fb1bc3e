// Package derive makes keys and message ids of parts.
package derive

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
)

// Key is SHA-256 over each part's length in bytes, a colon and the part, as base64url: 43 characters that are legal in a key. With the
// lengths no two lists of parts give the same.
func Key(parts ...string) string {
	h := sha256.New()
	for _, part := range parts {
		_, _ = fmt.Fprintf(h, "%d:%s", len(part), part)
	}
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil))
}
