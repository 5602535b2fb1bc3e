package registry_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The README's code is twice two blocks: declarations, and statements that use them. They are put into one program and compiled,
// with what the second pair takes for granted.
func TestTheCodeInTheReadmeCompiles(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	var blocks []string
	for _, part := range strings.Split(string(readme), "```go\n")[1:] {
		code, _, _ := strings.Cut(part, "```")
		blocks = append(blocks, code)
	}
	if len(blocks) != 4 {
		t.Fatalf("the README has %d Go blocks, want twice the declarations and the statements", len(blocks))
	}
	program := `package main

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/registry"
)

` + blocks[0] + blocks[2] + `
type Pay struct{ Amount int64 }

func (Pay) CommandName() bus.Name[Paid] { return "payments.pay" }

type Paid struct{ AuthID string }

var provider interface {
	Authorize(ctx context.Context, key string, amount int64) (authID string, err error)
}

func main() {}

func use(ctx context.Context, logger *zap.Logger, pool *pgxpool.Pool) (any, error) {
` + strings.Replace(blocks[1], "b, err := reg.Build()", "b, err := reg.Build()\n\tif err != nil {\n\t\treturn nil, err\n\t}\n", 1) + blocks[3] + `
	return placed, err
}

var _ = use
`
	compiles := func(source string) (string, error) {
		file := filepath.Join(t.TempDir(), "main.go")
		if err := os.WriteFile(file, []byte(source), 0o600); err != nil {
			t.Fatal(err)
		}
		dir, err := filepath.Abs("testdata/readme") // it exists in the overlay only
		if err != nil {
			t.Fatal(err)
		}
		overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(dir, "main.go"): file}})
		if err != nil {
			t.Fatal(err)
		}
		list := filepath.Join(t.TempDir(), "overlay.json")
		if err := os.WriteFile(list, overlay, 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command("go", "build", "-overlay", list, "-o", os.DevNull, "./testdata/readme").CombinedOutput()
		return string(out), err
	}
	if out, err := compiles(program); err != nil {
		t.Errorf("the README's code does not compile: %v\n%s", err, out)
	}
	if out, err := compiles(strings.Replace(program, "placed, err := bus.Send", "var placed string; placed, err = bus.Send", 1)); err == nil || !strings.Contains(out, "string") {
		t.Errorf("a wrong result type was let through, so this test proves nothing: %v\n%s", err, out)
	}
}
