//go:build vettool

// The rules read the sources of all that the testdata imports, which takes a minute: go test -tags vettool ./registry/vet/...

package main_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// shop has one fault for each rule, in the lines that say so.
const shop = `package main

import (
	"context"
	"database/sql"
	"net/http"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/sqlitestore"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/registry"
	"github.com/tekil-go/tekil/requestctx"
)

type Place struct {
	CartID string
	At     time.Time
}

func (Place) CommandName() bus.Name[bus.None] { return "orders.place" }
func (Place) Idempotent()                     {}

type Pay struct{ Amount int64 }

func (Pay) CommandName() bus.Name[bus.None]   { return "orders.pay" }
func (Pay) Idempotency() idempotency.Policy { return idempotency.Policy{Mode: idempotency.Leased} }

func wire(reg *registry.Registry, db *sql.DB) {
	registry.Handle(reg, func(ctx context.Context, cmd Place) (bus.None, error) {
		db.ExecContext(ctx, "INSERT INTO orders VALUES (1)")              // poolinatomic
		http.Get("http://127.0.0.1/rates")                                // outsideinatomic
		sqlitestore.DB(ctx, db).ExecContext(ctx, "INSERT")                // swallowederror
		_, err := sqlitestore.DB(ctx, db).ExecContext(ctx, "COMMIT")      // commitinhandler
		return bus.None{}, err
	})
	registry.Handle(reg, func(ctx context.Context, cmd Pay) (bus.None, error) {
		_, err := http.Post("http://127.0.0.1/charges", "text/plain", nil) // lostdownstream
		return bus.None{}, err
	})
}

func serve(b *bus.Bus, logger *zap.Logger) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		key, err := requestctx.ParseKey(uuid.NewString()) // freshkey
		if err != nil {
			return
		}
		ctx, _ := requestctx.New(r.Context(), requestctx.Values{Key: key})
		cmd := Place{CartID: r.FormValue("cart"), At: time.Now()} // unstablefield
		logger.Info("placing", zap.Any("command", cmd))           // payloadinlog
		_, _ = bus.Send(ctx, b, cmd)
	}
}

func main() {}
`

// right is what the guides say.
const right = `package right

import (
	"context"
	"database/sql"

	"github.com/tekil-go/tekil/behaviors/idempotency/sqlitestore"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/registry"
)

type Place struct{ CartID string }

func (Place) CommandName() bus.Name[bus.None] { return "orders.place" }
func (Place) Idempotent()                     {}

func Wire(reg *registry.Registry, db *sql.DB) {
	registry.Handle(reg, func(ctx context.Context, cmd Place) (bus.None, error) {
		_, err := sqlitestore.DB(ctx, db).ExecContext(ctx, "INSERT INTO orders VALUES (?)", cmd.CartID)
		return bus.None{}, err
	})
}
`

func TestTheGoCommandAndTheProgramItselfFindOneFaultForEachRule(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	tool := filepath.Join(dir, "tekilvet")
	if out, err := exec.Command("go", "build", "-buildvcs=false", "-o", tool, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	module(t, dir)

	all := marked(t, "poolinatomic", "outsideinatomic", "swallowederror", "commitinhandler", "lostdownstream", "freshkey", "unstablefield",
		"payloadinlog")
	for _, c := range []struct {
		name string
		args []string
		want []int
		code int
	}{
		{"under go vet", []string{"go", "vet", "-vettool=" + tool, "./..."}, all, 1},
		{"by itself", []string{tool, "./..."}, all, 1},
		{"one rule", []string{tool, "-freshkey", "./..."}, marked(t, "freshkey"), 1},
		{"without a rule", []string{tool, "-payloadinlog=false", "./..."}, slices.DeleteFunc(slices.Clone(all), func(line int) bool {
			return line == marked(t, "payloadinlog")[0]
		}), 1},
		{"right code", []string{tool, "./right"}, nil, 0},
	} {
		var out bytes.Buffer
		cmd := exec.Command(c.args[0], c.args[1:]...)
		cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, &out
		err := cmd.Run()
		if code := cmd.ProcessState.ExitCode(); code != c.code {
			t.Errorf("%s: the exit code is %d (%v), want %d\n%s", c.name, code, err, c.code, out.String())
		}
		if got := lines(t, out.String()); !slices.Equal(got, c.want) {
			t.Errorf("%s: findings in the lines %v, want %v\n%s", c.name, got, c.want, out.String())
		}
	}
	out, err := exec.Command(tool, "help", "freshkey").CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("two orders")) {
		t.Errorf("help says %s, %v", out, err)
	}
}

// module writes a module that requires what this one requires, and this one from where it is.
func module(t *testing.T, dir string) {
	t.Helper()
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	sum, err := os.ReadFile(filepath.Join(root, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	const name = "github.com/tekil-go/tekil"
	text := strings.Replace(string(mod), "module "+name, "module example.com/shop", 1) +
		"\nrequire " + name + " v0.0.0\n\nreplace " + name + " => " + strconv.Quote(root) + "\n"
	for file, content := range map[string]string{"go.mod": text, "go.sum": string(sum), "shop.go": shop, "right/right.go": right} {
		file = filepath.Join(dir, file)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// marked gives the lines of shop that end in the names of the rules.
func marked(t *testing.T, rules ...string) (at []int) {
	t.Helper()
	for _, rule := range rules {
		before, _, ok := strings.Cut(shop, "// "+rule+"\n")
		if !ok {
			t.Fatalf("no line for %s", rule)
		}
		at = append(at, strings.Count(before, "\n")+1)
	}
	slices.Sort(at)
	return at
}

var found = regexp.MustCompile(`(?m)shop\.go:(\d+):\d+: `)

func lines(t *testing.T, out string) (at []int) {
	t.Helper()
	for _, m := range found.FindAllStringSubmatch(out, -1) {
		line, err := strconv.Atoi(m[1])
		if err != nil {
			t.Fatal(err)
		}
		at = append(at, line)
	}
	slices.Sort(at)
	return at
}
