package idempotency_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/tekil-go/tekil/behaviors/idempotency"
)

func TestSealerOpensWhatItHasSealedUnderTheSameContextAlone(t *testing.T) {
	t.Parallel()
	s := sealerOf(t, 1)
	for _, plain := range []string{"", "x", strings.Repeat("a long text ", 100_000)} {
		sealed, err := s.Seal([]byte(plain), []byte("here"))
		if err != nil {
			t.Fatal(err)
		}
		if len(sealed) != len(plain)+36 || len(plain) > 8 && bytes.Contains(sealed, []byte(plain)[:8]) {
			t.Errorf("%d bytes become %d", len(plain), len(sealed))
		}
		if got, err := s.Open(sealed, []byte("here")); err != nil || string(got) != plain {
			t.Errorf("%d bytes come back as %d, %v", len(plain), len(got), err)
		}
		if got, err := s.Open(sealed, []byte("there")); err == nil || got != nil {
			t.Errorf("opened in another place: %.20q", got)
		}
	}
	for i := range 36 {
		sealed, err := s.Seal(nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		sealed[i] ^= 0x80
		if _, err := s.Open(sealed, nil); err == nil {
			t.Errorf("byte %d may be changed", i)
		}
		if _, err := s.Open(sealed[:i], nil); err == nil {
			t.Errorf("%d bytes are enough", i)
		}
	}
	one, _ := s.Seal([]byte("x"), nil)
	two, _ := s.Seal([]byte("x"), nil)
	if bytes.Equal(one, two) {
		t.Error("the same text is sealed to the same bytes, so it can be told that it is the same")
	}
	if bytes.Contains(one, bytes.Repeat([]byte{1}, 4)) {
		t.Error("the key shows")
	}
}

func TestSealerRefusesKeysThatAreNone(t *testing.T) {
	t.Parallel()
	good, other := make([]byte, 32), bytes.Repeat([]byte{1}, 32)
	for name, tc := range map[string]struct {
		keys [][]byte
		want string
	}{
		"no key":       {nil, "no key is given"},
		"an empty key": {[][]byte{{}}, "key 1 has 0 bytes"},
		"16 bytes":     {[][]byte{good, make([]byte, 16)}, "key 2 has 16 bytes"},
		"33 bytes":     {[][]byte{make([]byte, 33)}, "key 1 has 33 bytes"},
		"a key twice":  {[][]byte{good, other, make([]byte, 32)}, "keys 1 and 3 are the same"},
	} {
		s, err := idempotency.NewSealer(tc.keys...)
		if s != nil || err == nil || !strings.HasPrefix(err.Error(), "idempotency: NewSealer: ") || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, %v", name, s, err)
		}
	}
}

func TestSealerIsSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	s := sealerOf(t, 1, 2)
	done := make(chan error)
	for range 8 {
		go func() {
			var err error
			for range 100 {
				var sealed []byte
				if sealed, err = s.Seal([]byte("text"), []byte("here")); err == nil {
					_, err = s.Open(sealed, []byte("here"))
				}
				if err != nil {
					break
				}
			}
			done <- err
		}()
	}
	for range 8 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}
