package requestctx_test

import (
	"errors"
	"regexp"
	"strings"
	"testing"

	"github.com/tekil-go/tekil/requestctx"
)

func TestParseKeyKeepsToTheGrammar(t *testing.T) {
	t.Parallel()
	const (
		tooShortOrLong = "it must have 8 to 128 characters"
		foreign        = "is not one of A-Z a-z 0-9 . _ : -"
	)
	for _, c := range []struct {
		name, in string
		reason   string // "" where the key is accepted
	}{
		{"H03: empty", "", tooShortOrLong},
		{"H04: one space", " ", tooShortOrLong},
		{"H04: spaces only", strings.Repeat(" ", 12), foreign},
		{"H04: tabs only", strings.Repeat("\t", 12), foreign},
		{"H05: a space before, on a carrier that does not trim", " abcdefgh", foreign},
		{"H05: a space behind", "abcdefgh ", foreign},
		{"H06: padding on both sides", " abcdefgh ", foreign},
		{"H06: a line feed behind", "abcdefgh\n", foreign},
		{"H07: seven characters", "abcdefg", tooShortOrLong},
		{"H08: eight characters", "abcdefgh", ""},
		{"H09: 128 characters", strings.Repeat("k", 128), ""},
		{"H10: 129 characters", strings.Repeat("k", 129), tooShortOrLong},
		{"H10: 70 kB", strings.Repeat("k", 70_000), tooShortOrLong},
		{"H11: a slash", "abcd/efgh", foreign},
		{"H11: a semicolon", "abcd;efgh", foreign},
		{"H11: a per cent sign", "abcd%20efgh", foreign},
		{"H11: a brace", "abcd{efgh", foreign},
		{"H11: a letter outside ASCII", "abcdçefgh", foreign},
		{"H11: eight letters outside ASCII", "çççççççç", foreign},
		{"H11: full-width letters", "ａｂｃｄｅｆｇｈ", foreign},
		{"H11: a space inside", "abcd efgh", foreign},
		{"H11: a byte that is no UTF-8", "abcd\xffefgh", foreign},
		{"H11: a quotation mark", "abcdefgh\"", foreign},
		{"H13: two keys joined by a comma", "aaaaaaaa, bbbbbbbb", foreign},
		{"H13: joined without a space", "aaaaaaaa,bbbbbbbb", foreign},
		{"H14: the quotes are the edge's to remove", `"abcdefgh"`, foreign},
		{"H17: upper case", "Order-ABCDEF", ""},
		{"H17: lower case", "order-abcdef", ""},
		{"H18: a folded line", "abcd\r\n efgh", foreign},
		{"H23: low entropy", "aaaaaaaa", ""},
		{"a UUID", "8e03978e-40d5-43e8-bc93-6894a57f9324", ""},
		{"every sign that is allowed", "AZaz09._:-", ""},
		{"only signs", "........", ""},
		{"BR-13: NUL", "abcd\x00efgh", foreign},
		{"BR-13: NULs only", strings.Repeat("\x00", 8), foreign},
		{"BR-13: a zero-width space", "abcd\u200befgh", foreign},
		{"BR-13: zero-width spaces only", strings.Repeat("\u200b", 8), foreign},
		{"BR-13: a no-break space", "abcd\u00a0efgh", foreign},
		{"BR-13: a byte order mark before", "\ufeffabcdefgh", foreign},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			key, err := requestctx.ParseKey(c.in)
			if c.reason == "" {
				if err != nil || key.String() != c.in || key.IsZero() {
					t.Fatalf("ParseKey = %q, %v", key, err)
				}
				return
			}
			if !key.IsZero() {
				t.Errorf("a refused key came back as %q", key)
			}
			var refused *requestctx.KeyError
			if !errors.As(err, &refused) {
				t.Fatalf("err = %v, want a KeyError", err)
			}
			if refused.Length != len(c.in) || !strings.Contains(refused.Reason, c.reason) {
				t.Errorf("err = %+v, want length %d and %q", refused, len(c.in), c.reason)
			}
			if refused.Code() != "IDEMPOTENCY_KEY_INVALID" {
				t.Errorf("code = %s", refused.Code())
			}
		})
	}
}

func TestH11_EachByteIsAcceptedOrRefusedByItself(t *testing.T) {
	t.Parallel()
	const allowed = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:-"
	for b := range 256 {
		_, err := requestctx.ParseKey("abcdefgh" + string([]byte{byte(b)}))
		if want := b < 128 && strings.ContainsRune(allowed, rune(b)); (err == nil) != want {
			t.Errorf("byte %#x: %v", b, err)
		}
	}
}

func TestARefusalNamesThePosition(t *testing.T) {
	t.Parallel()
	_, err := requestctx.ParseKey("abcdefg h")
	const want = "requestctx: the idempotency key (9 bytes) was refused: the character at position 8 is not one of A-Z a-z 0-9 . _ : -"
	if err == nil || err.Error() != want {
		t.Errorf("err = %v\nwant  %s", err, want)
	}
}

func TestH17_CaseCounts(t *testing.T) {
	t.Parallel()
	upper, lower := mustKey(t, "Order-ABCDEF"), mustKey(t, "order-abcdef")
	if upper == lower {
		t.Error("keys that differ in case are equal")
	}
	if upper != mustKey(t, "Order-ABCDEF") {
		t.Error("equal keys differ")
	}
}

func TestKey4_MaskedShowsFourCharacters(t *testing.T) {
	t.Parallel()
	if got := mustKey(t, "8e03978e-40d5-43e8-bc93-6894a57f9324").Masked(); got != "8e03…" {
		t.Errorf("Masked = %q", got)
	}
	if got := mustKey(t, "abcdefgh").Masked(); got != "abcd…" {
		t.Errorf("Masked of the shortest key = %q", got)
	}
}

func TestTheZeroKeyIsNoKey(t *testing.T) {
	t.Parallel()
	var none requestctx.Key
	if !none.IsZero() || none.String() != "" || none.Masked() != "" {
		t.Errorf("zero key: %t %q %q", none.IsZero(), none.String(), none.Masked())
	}
}

func mustKey(tb testing.TB, s string) requestctx.Key {
	tb.Helper()
	key, err := requestctx.ParseKey(s)
	if err != nil {
		tb.Fatal(err)
	}
	return key
}

var grammar = regexp.MustCompile(`\A[A-Za-z0-9._:-]{8,128}\z`)

func FuzzParseKey(f *testing.F) {
	for _, s := range []string{"", "abcdefgh", "abcdefg", " abcdefgh ", `"abcdefgh"`, "abcd\x00efgh", "abcd\u200befgh", "aaaaaaaa, bbbbbbbb",
		"4111 1111 1111 1111", "8e03978e-40d5-43e8-bc93-6894a57f9324", strings.Repeat("k", 128), strings.Repeat("k", 129)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		key, err := requestctx.ParseKey(s)
		if (err == nil) != grammar.MatchString(s) {
			t.Fatalf("ParseKey(%q) = %v", s, err)
		}
		if err == nil {
			if key.String() != s || key.IsZero() || len([]rune(key.Masked())) != 5 {
				t.Fatalf("ParseKey(%q) = %q, masked %q", s, key, key.Masked())
			}
			return
		}
		if !key.IsZero() {
			t.Fatalf("ParseKey(%q) = %q beside the error %v", s, key, err)
		}
		// The message holds nothing of the input: it is the same for an input of the same shape with other characters.
		_, other := requestctx.ParseKey(shape(s))
		if other == nil || other.Error() != err.Error() {
			t.Fatalf("the refusal of %q depends on its characters: %v, %v", s, err, other)
		}
	})
}

// shape keeps of s which bytes are allowed, and no byte itself.
func shape(s string) string {
	b := []byte(s)
	for i := range b {
		if grammar.MatchString("abcdefgh" + string(b[i:i+1])) {
			b[i] = 'x'
		} else {
			b[i] = '*'
		}
	}
	return string(b)
}
