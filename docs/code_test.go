package docs_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// known are the packages whose names a block may use without importing them.
var known = func() map[string]string {
	names := map[string]string{}
	for _, path := range []string{
		"bytes", "context", "crypto/sha256", "database/sql", "encoding/hex", "encoding/json", "errors", "fmt", "io", "log", "log/slog", "net/http", "os", "strings", "sync", "testing", "time",
		"github.com/google/uuid", "github.com/jackc/pgx/v5/pgxpool", "go.uber.org/zap",
		"github.com/tekil-go/tekil/behaviors/idempotency", "github.com/tekil-go/tekil/behaviors/idempotency/console", "github.com/tekil-go/tekil/behaviors/idempotency/memstore", "github.com/tekil-go/tekil/behaviors/idempotency/pgstore",
		"github.com/tekil-go/tekil/behaviors/idempotency/pgstore/pgtest", "github.com/tekil-go/tekil/behaviors/idempotency/sqlitestore", "github.com/tekil-go/tekil/behaviors/idempotency/storetest",
		"github.com/tekil-go/tekil/behaviors/telemetry", "github.com/tekil-go/tekil/behaviors/validation", "github.com/tekil-go/tekil/bus", "github.com/tekil-go/tekil/registry",
		"github.com/tekil-go/tekil/requestctx", "github.com/tekil-go/tekil/requestctx/browser", "github.com/tekil-go/tekil/requestctx/client", "github.com/tekil-go/tekil/requestctx/httpedge",
		"github.com/tekil-go/tekil/requestctx/msgedge", "github.com/tekil-go/tekil/requestctx/msgedge/watermilledge",
	} {
		names[path[strings.LastIndexByte(path, '/')+1:]] = path
	}
	names["pgx"], names["message"] = "github.com/jackc/pgx/v5", "github.com/ThreeDotsLabs/watermill/message"
	return names
}()

// goFile makes a file of package block from a block that is no whole file.
func goFile(b block) (source string, err error) {
	// The compiler is told where the text stands, so that its errors are those of the document.
	placed := fmt.Sprintf("//line %s:%d\n%s//line made.go:1\n", b.page, b.line, b.text)
	_, declErr := parser.ParseFile(token.NewFileSet(), b.page, "package block\n"+b.text, 0)
	body := ""
	if declErr == nil {
		body = placed
	} else {
		tail := ""
		if b.returns != "" {
			tail = "panic(0)\n"
		}
		head := "func _() (" + b.returns + ") {\n"
		f, err := parser.ParseFile(token.NewFileSet(), b.page, "package block\n"+head+b.text+tail+"}\n", 0)
		if err != nil {
			return "", fmt.Errorf("%s: it is neither declarations (%w) nor statements (%w)", b.at(), declErr, err)
		}
		for _, name := range made(f.Decls[0].(*ast.FuncDecl).Body) {
			tail = "_ = " + name + "\n" + tail
		}
		body = head + placed + tail + "}\n"
	}
	f, err := parser.ParseFile(token.NewFileSet(), b.page, "package block\n"+body, 0)
	if err != nil {
		return "", fmt.Errorf("%s: %w", b.at(), err)
	}
	return "package block\n" + imports(f) + body, nil
}

// made gives the variables that the statements of a body make, without those of inner blocks.
func made(body *ast.BlockStmt) []string {
	names := map[string]bool{}
	for _, s := range body.List {
		var idents []ast.Expr
		switch s := s.(type) {
		case *ast.AssignStmt:
			if s.Tok == token.DEFINE {
				idents = s.Lhs
			}
		case *ast.DeclStmt:
			for _, spec := range s.Decl.(*ast.GenDecl).Specs {
				if v, ok := spec.(*ast.ValueSpec); ok && s.Decl.(*ast.GenDecl).Tok == token.VAR {
					for _, name := range v.Names {
						idents = append(idents, name)
					}
				}
			}
		}
		for _, e := range idents {
			if id, ok := e.(*ast.Ident); ok && id.Name != "_" {
				names[id.Name] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// imports gives the imports of the known packages that a file uses.
func imports(f *ast.File) string {
	unresolved, used := map[*ast.Ident]bool{}, map[string]bool{}
	for _, id := range f.Unresolved {
		unresolved[id] = true
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			if id, ok := s.X.(*ast.Ident); ok && unresolved[id] && known[id.Name] != "" {
				used[known[id.Name]] = true
			}
		}
		return true
	})
	for _, spec := range f.Imports { // those that the block has written itself
		delete(used, strings.Trim(spec.Path.Value, `"`))
	}
	var s strings.Builder
	for _, path := range slices.Sorted(maps.Keys(used)) {
		fmt.Fprintf(&s, "import %q\n", path)
	}
	return s.String()
}

// compile builds blocks as packages that exist in an overlay only. The error holds what the compiler has said.
func compile(t *testing.T, blocks []block) error {
	t.Helper()
	const below = "testdata/blocks" // it exists in the overlay only
	temp := t.TempDir()
	replace, packages, files := map[string]string{}, map[string]bool{}, 0
	put := func(name, file, source string) {
		files++
		real := filepath.Join(temp, strconv.Itoa(files)+".go")
		if err := os.WriteFile(real, []byte(source), 0o600); err != nil {
			t.Fatal(err)
		}
		virtual, err := filepath.Abs(filepath.Join(below, name, file))
		if err != nil {
			t.Fatal(err)
		}
		replace[virtual], packages["./"+below+"/"+name] = real, true
	}
	slug := strings.NewReplacer("/", "_", ".md", "", "-", "_")
	var errs []error
	for _, b := range blocks {
		name := fmt.Sprintf("%s_%d", slug.Replace(b.page), b.group)
		if strings.HasPrefix(b.text, "package ") {
			put(fmt.Sprintf("%s_at_%d", name, b.line), "file.go", fmt.Sprintf("//line %s:%d\n%s", b.page, b.line, b.text))
			continue
		}
		source, err := goFile(b)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		put(name, fmt.Sprintf("line%d.go", b.line), source)
		if prelude := read(t, b.prelude, ".go.txt"); prelude != "" {
			put(name, "prelude.go", prelude)
		}
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	list := filepath.Join(temp, "overlay.json")
	if err := os.WriteFile(list, overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	args := append([]string{"build", "-buildvcs=false", "-overlay", list, "-o", os.DevNull}, slices.Sorted(maps.Keys(packages))...)
	if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
		errs = append(errs, fmt.Errorf("%w\n%s", err, out))
	}
	return errors.Join(errs...)
}

func TestEveryGoBlockCompiles(t *testing.T) {
	t.Parallel()
	all := blocks(t, "go")
	if len(all) < 25 {
		t.Errorf("only %d Go blocks were found", len(all))
	}
	if err := compile(t, all); err != nil {
		t.Error(err)
	}
}

func TestAGoBlockThatDoesNotCompileIsFound(t *testing.T) {
	t.Parallel()
	const page = "docs/x.md"
	right := []block{
		{page: page, line: 10, group: 1, text: "type Pay struct{ Amount int64 }\n\nfunc (Pay) CommandName() bus.Name[bus.None] { return \"pay\" }\n"},
		{page: page, line: 20, group: 1, text: "key, err := requestctx.ParseKey(\"a-key-of-mine\")\n"},
		{page: page, line: 30, group: 1, returns: "Pay, error", text: "p := Pay{Amount: 1}\nif p.Amount > 0 {\n\treturn p, nil\n}\n"},
		{page: page, line: 40, group: 2, text: "type Pay int\n"},
		{page: page, line: 50, group: 2, text: "package main\n\nfunc main() {}\n"},
	}
	if err := compile(t, right); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"key, err := requestctx.Key(\"x\")\nreturn\n": page + ":10",             // of another type
		"x := 1\n\nregistry.Handel(x)\n":              page + ":12",             // misspelt
		"if true {\n\tunused := 1\n}\n":               page + ":11",             // within
		"fmt.Println(\n":                              "nor statements",         // cut off
		"return 1\n":                                  "too many return values", // no results declared
		"nowhere.Call()\n":                            "undefined: nowhere",
	} {
		err := compile(t, []block{{page: page, line: 10, group: 1, text: text}})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want an error with %q", text, err, want)
		}
	}
}
