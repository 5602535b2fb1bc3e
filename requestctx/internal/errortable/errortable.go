// Package errortable is for tests alone: it finds errors of this module that a table has forgotten.
package errortable

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Complete fails the test for every exported error of the module's stages, the bus, the request context and the package under test
// that has no row. The names are read from the sources, so that an error that is added has to get its row. It is for packages that
// stand in a folder of requestctx.
func Complete(t *testing.T, rows map[string]bool) {
	t.Helper()
	dirs, err := filepath.Glob("../../behaviors/*")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, dir := range append(dirs, "../../bus", "..", "../internal/strictjson", ".") {
		for _, name := range exportedErrors(t, dir) {
			found++
			if !rows[name] {
				t.Errorf("%s has no row in the table: say what is done about it", name)
			}
		}
	}
	if found < 25 {
		t.Errorf("only %d errors were found; is the source read at all?", found)
	}
}

// exportedErrors gives the exported types of a package that have a method Error, and its exported variables named Err….
func exportedErrors(t *testing.T, dir string) (names []string) {
	t.Helper()
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".go") || strings.HasSuffix(f.Name(), "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(dir, f.Name()), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		add := func(name string) {
			if ast.IsExported(name) {
				names = append(names, file.Name.Name+"."+name)
			}
		}
		for _, decl := range file.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				if d.Name.Name != "Error" || d.Recv == nil {
					continue
				}
				typ := d.Recv.List[0].Type
				if star, ok := typ.(*ast.StarExpr); ok {
					typ = star.X
				}
				if name, ok := typ.(*ast.Ident); ok {
					add(name.Name)
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if v, ok := spec.(*ast.ValueSpec); ok && d.Tok == token.VAR {
						for _, name := range v.Names {
							if strings.HasPrefix(name.Name, "Err") {
								add(name.Name)
							}
						}
					}
				}
			}
		}
	}
	return names
}
