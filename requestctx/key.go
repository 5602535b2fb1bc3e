package requestctx

import "fmt"

// The grammar of a key (rule http-1).
const (
	// MinKeyLength is the length of the shortest key, in characters.
	MinKeyLength = 8
	// MaxKeyLength is the length of the longest key, in characters.
	MaxKeyLength = 128
)

// Key is an idempotency key that has passed [ParseKey]: the identity of one intent, made by whoever starts it
// (rules pipe-7, pipe-8). The zero Key is no key. Keys are comparable, and their case counts.
type Key struct{ s string }

// ParseKey checks s against the one grammar that every edge and the client use (rule http-1): 8 to 128 characters
// of A-Z a-z 0-9 . _ : and -. Nothing is trimmed or folded. The error is a [*KeyError] and never holds the key.
//
// An empty or blank s is an error as well: a carrier that has no key at all must not call ParseKey.
func ParseKey(s string) (Key, error) {
	if n := len(s); n < MinKeyLength || n > MaxKeyLength {
		return Key{}, &KeyError{Length: n, Reason: fmt.Sprintf("it must have %d to %d characters", MinKeyLength, MaxKeyLength)}
	}
	for i := range len(s) {
		if !keyByte(s[i]) {
			return Key{}, &KeyError{Length: len(s), Reason: fmt.Sprintf("the character at position %d is not one of A-Z a-z 0-9 . _ : -", i+1)}
		}
	}
	return Key{s}, nil
}

func keyByte(c byte) bool {
	switch {
	case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '.', c == '_', c == ':', c == '-':
		return true
	}
	return false
}

// String is the key itself, "" for no key. It is for records, headers and logs; a page shows [Key.Masked] (rule key-4).
func (k Key) String() string { return k.s }

// IsZero reports whether k is no key.
func (k Key) IsZero() bool { return k.s == "" }

// Masked is the key for human eyes: its first four characters and an ellipsis, "" for no key.
func (k Key) Masked() string {
	if k.s == "" {
		return ""
	}
	return k.s[:4] + "…"
}

// KeyError says why a carrier's key was refused. It holds no part of the key, which may be anything that a stranger sent.
type KeyError struct {
	// Length is the length of what was sent, in bytes; 0 where there was nothing or more than one value.
	Length int
	// Reason completes the sentence "the idempotency key was refused: …".
	Reason string
}

func (e *KeyError) Error() string {
	return fmt.Sprintf("requestctx: the idempotency key (%d bytes) was refused: %s", e.Length, e.Reason)
}

// Code is the outcome code of the error, for logs and edges.
func (*KeyError) Code() string { return "IDEMPOTENCY_KEY_INVALID" }
