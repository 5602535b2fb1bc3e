package registry_test

import (
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The rooms of the house and what each may import besides the standard library. The names are patterns of path.Match; one
// without a dot in its first element is ours. A folder "x/*" stands for each folder in x that has no rule of its own. The
// files are read by the test itself, and not by go list, because then go test knows that its answer depends on them.
//
// What a rule leaves out is its point. Nothing of ours is in the bus. The order is in the registry, which knows no store. An
// edge knows errors and no pipeline. Only pgstore links pgx, and no package links a SQL driver ("pgx/v5/stdlib" is one).
func rooms() map[string][]string {
	pgx := []string{"github.com/jackc/pgx/v5", "github.com/jackc/pgx/v5/pg*"}
	zap := []string{"go.uber.org/zap", "go.uber.org/zap/zapcore"}
	return map[string][]string{
		"bus":                                  {},
		"requestctx":                           {"github.com/google/uuid"},
		"requestctx/internal/*":                {},
		"requestctx/internal/errortable":       {"testing"}, // for tests alone
		"requestctx/httpedge":                  {"bus", "requestctx", "requestctx/internal/*", "behaviors/validation", "behaviors/idempotency", "github.com/rs/cors"},
		"requestctx/client":                    {"requestctx", "requestctx/internal/*", "github.com/google/uuid"},
		"requestctx/browser":                   {},
		"requestctx/browser/browsertest":       {"testing", "github.com/chromedp/chromedp", "github.com/chromedp/cdproto/*"}, // for tests alone
		"requestctx/*":                         {"bus", "requestctx", "requestctx/internal/*", "behaviors/validation", "behaviors/idempotency"},
		"requestctx/msgedge/watermilledge":     {"bus", "requestctx", "requestctx/internal/*", "requestctx/msgedge", "behaviors/idempotency", "github.com/ThreeDotsLabs/watermill", "github.com/ThreeDotsLabs/watermill/message"},
		"behaviors/internal/*":                 {},
		"behaviors/logging":                    append([]string{"bus", "requestctx", "behaviors/internal/*"}, zap...),
		"behaviors/validation":                 {"bus", "requestctx", "github.com/go-playground/validator/v10"},
		"behaviors/telemetry":                  {"bus", "requestctx", "behaviors/internal/*", "go.opentelemetry.io/otel/*", "go.opentelemetry.io/otel/*/*"},
		"behaviors/idempotency":                {"bus", "requestctx", "go.uber.org/zap"}, // for what a person and the purger do, in the log of the dispatches
		"behaviors/idempotency/console":        {"behaviors/idempotency", "requestctx"},
		"behaviors/idempotency/storetest":      {"bus", "requestctx", "behaviors/idempotency", "testing"},
		"behaviors/idempotency/internal/*":     {"bus", "requestctx", "behaviors/idempotency", "testing", "go.uber.org/zap", "github.com/anishathalye/porcupine"}, // for tests alone
		"behaviors/idempotency/memstore":       {"behaviors/idempotency", "testing"},
		"behaviors/idempotency/sqlitestore":    {"behaviors/idempotency"},
		"behaviors/idempotency/pgstore":        append([]string{"behaviors/idempotency"}, pgx...),
		"behaviors/idempotency/pgstore/pgtest": append([]string{"testing", "github.com/fergusstrange/embedded-postgres"}, pgx...),
		"registry":                             append([]string{"bus", "behaviors/*", "github.com/go-playground/validator/v10"}, zap...),
		"registry/registrytest":                {"bus", "requestctx", "registry", "behaviors/idempotency", "behaviors/validation", "testing", "go.uber.org/zap"},
		"registry/vet":                         {"golang.org/x/tools/go/*", "golang.org/x/tools/go/*/*", "golang.org/x/tools/go/*/*/*"},
		"registry/vet/tekilvet":                {"registry/vet", "golang.org/x/tools/go/analysis/unitchecker"},
		"docs":                                 {}, // tests alone: what the documents show is compiled and run
		"examples/internal/*":                  {"behaviors/*", "github.com/prometheus/client_golang/prometheus", "github.com/prometheus/client_golang/prometheus/*", "go.opentelemetry.io/otel/*/*"},
		"examples/*":                           {"*", "*/*", "*/*/*", "*/*/*/*", "*/*/*/*/*", "*/*/*/*/*/*"},
	}
}

// forTests is what test files may import beside what is ours: no assertion library among it.
func forTests() []string {
	return []string{
		"testing", "testing/*", "bus", "requestctx", "requestctx/*", "requestctx/*/*", "behaviors/*", "behaviors/idempotency/*", "behaviors/idempotency/internal/*", "behaviors/idempotency/*/*", "registry", "registry/registrytest",
		"go.uber.org/goleak", "go.uber.org/zap", "go.uber.org/zap/*", "go.uber.org/zap/zaptest/observer", "pgregory.net/rapid",
		"github.com/google/uuid", "github.com/go-playground/validator/v10", "github.com/jackc/pgx/v5", "github.com/jackc/pgx/v5/*",
		"github.com/fergusstrange/embedded-postgres", "modernc.org/sqlite", "modernc.org/sqlite/lib",
		"github.com/go-chi/chi/v5", "github.com/labstack/echo/v4", "github.com/rs/cors", "github.com/anishathalye/porcupine",
		"github.com/ThreeDotsLabs/watermill", "github.com/ThreeDotsLabs/watermill/message", "github.com/ThreeDotsLabs/watermill/message/router/middleware",
		"github.com/ThreeDotsLabs/watermill/pubsub/gochannel", "github.com/ThreeDotsLabs/watermill/components/forwarder",
		"go.opentelemetry.io/otel/*", "go.opentelemetry.io/otel/*/*", "go.opentelemetry.io/otel/*/*/*", "github.com/prometheus/client_golang/prometheus", "github.com/prometheus/client_golang/prometheus/*",
		"registry/vet", "golang.org/x/tools/go/analysis", "golang.org/x/tools/go/analysis/analysistest",
		"github.com/chromedp/chromedp", "github.com/chromedp/chromedp/kb", "github.com/chromedp/cdproto/*",
	}
}

const module = "github.com/tekil-go/tekil/"

// wrongImports says what a file must not import. Its path is relative to the module.
func wrongImports(file string, source any) ([]string, error) {
	parsed, err := parser.ParseFile(token.NewFileSet(), file, source, parser.ImportsOnly)
	if err != nil {
		return nil, err
	}
	rule, allowed := roomOf(path.Dir(file))
	switch isTest := strings.HasSuffix(file, "_test.go"); {
	case rule == "":
		return []string{fmt.Sprintf("%s: its folder has no rule; give it one in registry/imports_test.go", file)}, nil
	case isTest && rule == "bus", isTest && rule == "requestctx": // not even their tests know the rest of the house
		allowed = slices.DeleteFunc(forTests(), func(name string) bool { return ours(name) && name != rule && !strings.HasPrefix(name, "testing") })
	case isTest && rule != "examples/*":
		allowed = forTests()
	}
	var wrong []string
	for _, spec := range parsed.Imports {
		name, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return nil, err
		}
		name, inModule := strings.CutPrefix(name, module)
		if !inModule && standard(name) {
			continue
		}
		if !slices.ContainsFunc(allowed, func(pattern string) bool {
			ok, _ := path.Match(pattern, name)
			return ok && ours(pattern) == ours(name) || ok && rule == "examples/*"
		}) {
			wrong = append(wrong, fmt.Sprintf("%s must not import %s", file, name))
		}
	}
	return wrong, nil
}

// ours reports whether a name without the module's path is a package of the module's.
func ours(name string) bool {
	first, _, _ := strings.Cut(name, "/")
	return !strings.Contains(first, ".")
}

// standard reports whether a package of the standard library may be imported by everybody. Package testing may not, because
// it would bring its flags into programs, and neither may cgo.
func standard(name string) bool {
	return ours(name) && name != "C" && name != "testing" && !strings.HasPrefix(name, "testing/")
}

// roomOf finds the rule of a folder.
func roomOf(folder string) (rule string, allowed []string) {
	all := rooms()
	if allowed, ok := all[folder]; ok {
		return folder, allowed
	}
	rule = path.Dir(folder) + "/*"
	if allowed, ok := all[rule]; ok {
		return rule, allowed
	}
	return "", nil
}

func TestEveryRoomImportsOnlyWhatItMay(t *testing.T) {
	t.Parallel()
	root := os.DirFS("..")
	files, used := 0, map[string]bool{}
	err := fs.WalkDir(root, ".", func(file string, entry fs.DirEntry, err error) error {
		name := entry.Name()
		switch {
		case err != nil:
			return err
		case entry.IsDir() && file != "." && (name == "testdata" || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_")):
			return fs.SkipDir
		case entry.IsDir() || path.Ext(name) != ".go":
			return nil
		}
		source, err := os.ReadFile(filepath.Join("..", filepath.FromSlash(file)))
		if err != nil {
			return err
		}
		wrong, err := wrongImports(file, source)
		if err != nil {
			return err
		}
		for _, w := range wrong {
			t.Error(w)
		}
		rule, _ := roomOf(path.Dir(file))
		used[rule] = true
		files++
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for rule := range rooms() { // a rule that matches nothing says nothing
		if !used[rule] {
			t.Errorf("the rule for %s matches no file", rule)
		}
	}
	if files < 30 {
		t.Errorf("only %d files were read", files)
	}
}

// A wrong import planted in each room.
func TestAWrongImportIsFound(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ file, imported, wrong string }{
		{"bus/x.go", module + "requestctx", "bus/x.go must not import requestctx"},
		{"bus/x.go", "go.uber.org/zap", "bus/x.go must not import go.uber.org/zap"},
		{"bus/x.go", "golang.org/x/sync/errgroup", "bus/x.go must not import golang.org/x/sync/errgroup"},
		{"bus/x.go", "testing", "bus/x.go must not import testing"},
		{"bus/x_test.go", module + "registry", "bus/x_test.go must not import registry"},
		{"bus/x_test.go", "github.com/stretchr/testify/require", "bus/x_test.go must not import github.com/stretchr/testify/require"},
		{"requestctx/x.go", module + "bus", "requestctx/x.go must not import bus"},
		{"requestctx/x.go", "github.com/google/uuid/v2", "requestctx/x.go must not import github.com/google/uuid/v2"},
		{"requestctx/x_test.go", module + "behaviors/logging", "requestctx/x_test.go must not import behaviors/logging"},
		{"requestctx/httpedge/x.go", module + "registry", "requestctx/httpedge/x.go must not import registry"},
		{"requestctx/httpedge/x.go", module + "behaviors/idempotency/memstore", "requestctx/httpedge/x.go must not import behaviors/idempotency/memstore"},
		{"requestctx/httpedge/x.go", "github.com/labstack/echo/v4", "requestctx/httpedge/x.go must not import github.com/labstack/echo/v4"},
		{"requestctx/msgedge/x.go", "github.com/rs/cors", "requestctx/msgedge/x.go must not import github.com/rs/cors"},
		{"requestctx/x.go", "github.com/rs/cors", "requestctx/x.go must not import github.com/rs/cors"},
		{"requestctx/msgedge/x.go", "github.com/ThreeDotsLabs/watermill/message", "requestctx/msgedge/x.go must not import github.com/ThreeDotsLabs/watermill/message"},
		{"requestctx/msgedge/watermilledge/x.go", "github.com/ThreeDotsLabs/watermill/pubsub/gochannel", "requestctx/msgedge/watermilledge/x.go must not import github.com/ThreeDotsLabs/watermill/pubsub/gochannel"},
		{"requestctx/msgedge/watermilledge/x.go", module + "registry", "requestctx/msgedge/watermilledge/x.go must not import registry"},
		{"requestctx/internal/strictjson/x.go", module + "requestctx", "requestctx/internal/strictjson/x.go must not import requestctx"},
		{"behaviors/logging/x.go", module + "behaviors/idempotency", "behaviors/logging/x.go must not import behaviors/idempotency"},
		{"behaviors/validation/x.go", module + "behaviors/idempotency", "behaviors/validation/x.go must not import behaviors/idempotency"},
		{"behaviors/idempotency/x.go", module + "behaviors/validation", "behaviors/idempotency/x.go must not import behaviors/validation"},
		{"behaviors/idempotency/x.go", module + "registry", "behaviors/idempotency/x.go must not import registry"},
		{"behaviors/idempotency/x.go", "github.com/jackc/pgx/v5", "behaviors/idempotency/x.go must not import github.com/jackc/pgx/v5"},
		{"behaviors/idempotency/memstore/x.go", module + "bus", "behaviors/idempotency/memstore/x.go must not import bus"},
		{"behaviors/idempotency/sqlitestore/x.go", "modernc.org/sqlite", "behaviors/idempotency/sqlitestore/x.go must not import modernc.org/sqlite"},
		{"behaviors/idempotency/pgstore/x.go", "github.com/jackc/pgx/v5/stdlib", "behaviors/idempotency/pgstore/x.go must not import github.com/jackc/pgx/v5/stdlib"},
		{"behaviors/idempotency/pgstore/x.go", "github.com/lib/pq", "behaviors/idempotency/pgstore/x.go must not import github.com/lib/pq"},
		{"behaviors/idempotency/pgstore/x.go", module + "behaviors/idempotency/pgstore/pgtest", "behaviors/idempotency/pgstore/x.go must not import behaviors/idempotency/pgstore/pgtest"},
		{"registry/x.go", module + "behaviors/idempotency/pgstore", "registry/x.go must not import behaviors/idempotency/pgstore"},
		{"registry/x.go", module + "behaviors/idempotency/memstore", "registry/x.go must not import behaviors/idempotency/memstore"},
		{"registry/x.go", module + "requestctx/httpedge", "registry/x.go must not import requestctx/httpedge"},
		{"registry/x.go", "C", "registry/x.go must not import C"},
		{"registry/x_test.go", module + "examples/checkout", "registry/x_test.go must not import examples/checkout"},
		{"behaviors/tracing/x.go", "context", "behaviors/tracing/x.go: its folder has no rule; give it one in registry/imports_test.go"},
		{"internal/x.go", "context", "internal/x.go: its folder has no rule; give it one in registry/imports_test.go"},
		{"x.go", "context", "x.go: its folder has no rule; give it one in registry/imports_test.go"},
		// What is right.
		{"bus/x.go", "context", ""},
		{"bus/x_test.go", module + "bus", ""},
		{"bus/x_test.go", "testing", ""},
		{"requestctx/x.go", "github.com/google/uuid", ""},
		{"requestctx/httpedge/x.go", module + "behaviors/validation", ""},
		{"requestctx/httpedge/x.go", "github.com/rs/cors", ""},
		{"requestctx/msgedge/watermilledge/x.go", "github.com/ThreeDotsLabs/watermill/message", ""},
		{"requestctx/httpedge/x_test.go", "github.com/rs/cors", ""},
		{"requestctx/httpedge/x_test.go", module + "registry", ""},
		{"behaviors/idempotency/pgstore/x.go", "github.com/jackc/pgx/v5/pgconn", ""},
		{"behaviors/idempotency/sqlitestore/x_test.go", "modernc.org/sqlite", ""},
		{"registry/x.go", module + "behaviors/idempotency", ""},
		{"registry/x_test.go", module + "behaviors/idempotency/pgstore", ""},
		{"behaviors/idempotency/console/x_test.go", module + "requestctx/browser/browsertest", ""},
		{"examples/checkout/x.go", "modernc.org/sqlite", ""},
		{"examples/checkout/x.go", module + "behaviors/idempotency/sqlitestore", ""},
	} {
		t.Run(c.file+" imports "+c.imported, func(t *testing.T) {
			t.Parallel()
			got, err := wrongImports(c.file, fmt.Sprintf("package x\n\nimport (\n\t\"fmt\"\n\t_ %q\n)\n", c.imported))
			if err != nil {
				t.Fatal(err)
			}
			var want []string
			if c.wrong != "" {
				want = []string{c.wrong}
			}
			equal(t, "wrong imports", got, want)
		})
	}
}

// misplaced gives what must not stand at the top level of the repository.
func misplaced(names []string) []string {
	rooms := []string{"go.mod", "go.sum", "bus", "behaviors", "requestctx", "registry", "examples", "docs", "README.md"}
	return slices.DeleteFunc(names, func(name string) bool { return strings.HasPrefix(name, ".") || slices.Contains(rooms, name) })
}

func TestTheTopLevelHoldsTheRoomsAndNothingElse(t *testing.T) {
	t.Parallel()
	entries, err := os.ReadDir("..")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	equal(t, "misplaced", misplaced(names), nil)
	equal(t, "misplaced", misplaced([]string{"bus", "internal", ".ci", "cmd", "pkg", "Makefile", "go.mod", "tools.go"}), []string{"internal", "cmd", "pkg", "Makefile", "tools.go"})
}
