package panics_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tekil-go/tekil/requestctx/internal/panics"
)

func explode(value any) { panic(value) }

// where gives the place at which f panics.
func where(f func()) (at string) {
	defer func() {
		_ = recover()
		at = panics.At()
	}()
	f()
	return "no panic"
}

func TestAtNamesTheFunctionThatPanicked(t *testing.T) {
	t.Parallel()
	var none map[string]int
	for want, f := range map[string]func(){
		"panics_test.explode (panics_test.go:":     func() { explode("4111111111111111") },
		"panics_test.TestAtNamesTheFunctionThatPa": func() { none["a"] = 1 }, // a panic of the runtime's
	} {
		if at := where(f); !strings.HasPrefix(at, want) || strings.Contains(at, "4111") {
			t.Errorf("got %q, want %s…", at, want)
		}
	}
	if at := panics.At(); at != "" {
		t.Errorf("without a panic: %q", at)
	}
}

func ExampleAt() {
	defer func() {
		_ = recover()
		file, _, _ := strings.Cut(panics.At(), ":")
		fmt.Println(file)
	}()
	explode("a value that nobody sees")
	// Output: panics_test.explode (panics_test.go
}
