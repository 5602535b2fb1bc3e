package registry_test

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// tests are what the documents may cite.
type tests struct {
	// functions are the test functions of each folder that has any, by the folder's last name, and by its last two for where that is not enough.
	functions map[string]map[string]bool
	// folders are the folders that share that name: more than one makes a citation mean nothing.
	folders map[string]map[string]bool
	// cases are the names of the cases of package storetest.
	cases []string
	// reported are the ids of field cases in names of tests and in the texts of test files, with a place of each.
	reported map[string]string
}

var (
	fieldCase = regexp.MustCompile(`\bBR-?([0-9]{2})(?:\b|_|[^0-9])|_BR([0-9]{2})|BR([0-9]{2})_`)
	citation  = regexp.MustCompile("`([a-z/]+): ([A-Za-z0-9_]+)`")
	inTicks   = regexp.MustCompile("`[^`]*`")
	nameLike  = regexp.MustCompile(`\b(Test|Fuzz|Example)[A-Z_]`)
)

// note keeps the ids of field cases that a text holds.
func (ts *tests) note(text, where string) {
	for _, id := range fieldCase.FindAllStringSubmatch(text, -1) {
		ts.reported["BR-"+cmp.Or(id[1], id[2], id[3])] = where
	}
}

// add reads one file.
func (ts *tests) add(file string, source any) error {
	parsed, err := parser.ParseFile(token.NewFileSet(), file, source, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	dir := filepath.Dir(file)
	folder := filepath.Base(dir)
	isTest := strings.HasSuffix(file, "_test.go")
	for _, d := range parsed.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || !isTest || f.Recv != nil || !nameLike.MatchString(f.Name.Name+"_") {
			continue
		}
		for _, name := range []string{folder, filepath.Base(filepath.Dir(dir)) + "/" + folder} {
			if ts.functions[name] == nil {
				ts.functions[name], ts.folders[name] = map[string]bool{}, map[string]bool{}
			}
			ts.functions[name][f.Name.Name], ts.folders[name][dir] = true, true
		}
		ts.note(f.Name.Name, file)
	}
	ast.Inspect(parsed, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BasicLit:
			if isTest && n.Kind == token.STRING && !strings.HasSuffix(file, "docs_test.go") {
				ts.note(n.Value, file)
			}
		case *ast.CompositeLit:
			if folder != "storetest" || isTest {
				break
			}
			if list, ok := n.Type.(*ast.ArrayType); ok && isName(list.Elt, "specCase") {
				for _, e := range n.Elts {
					ts.addCase(e, file)
				}
			}
			if isName(n.Type, "specCase") {
				ts.addCase(n, file)
			}
		}
		return true
	})
	return nil
}

func isName(e ast.Expr, name string) bool {
	id, ok := e.(*ast.Ident)
	return ok && id.Name == name
}

// addCase takes the first text of a case for its name.
func (ts *tests) addCase(e ast.Expr, file string) {
	c, ok := e.(*ast.CompositeLit)
	if !ok || len(c.Elts) == 0 {
		return
	}
	if lit, ok := c.Elts[0].(*ast.BasicLit); ok && lit.Kind == token.STRING {
		if name, err := strconv.Unquote(lit.Value); err == nil {
			ts.cases = append(ts.cases, name)
			ts.note(name, file)
		}
	}
}

// problem says what is wrong with a citation, or "". A case of storetest may be cited without the ids behind its sentence.
func (ts *tests) problem(folder, name string) string {
	switch {
	case len(ts.functions[folder]) == 0:
		return "there is no folder " + folder + " with tests"
	case len(ts.folders[folder]) > 1:
		return "several folders are called " + folder
	case ts.functions[folder][name]:
		return ""
	case folder != "storetest":
		return folder + " has no test " + name
	}
	found := 0
	for _, c := range ts.cases {
		if c == name || strings.HasPrefix(c, name+"_") {
			found++
		}
	}
	switch found {
	case 0:
		return "storetest has neither a test nor a case " + name
	case 1:
		return ""
	}
	return fmt.Sprintf("storetest has %d cases that begin with %s", found, name)
}

// problems are those of a document's citations. What looks like the name of a test must be in a citation.
func (ts *tests) problems(document string) (problems []string, cited int) {
	for i, line := range strings.Split(document, "\n") {
		for _, ticks := range inTicks.FindAllString(line, -1) {
			m := citation.FindStringSubmatch(ticks)
			switch {
			case m != nil:
				cited++
				if p := ts.problem(m[1], m[2]); p != "" {
					problems = append(problems, fmt.Sprintf("line %d: %s: %s", i+1, ticks, p))
				}
			case nameLike.MatchString(ticks) && !strings.Contains(document, ": "+strings.Trim(ticks, "`")+"`"):
				problems = append(problems, fmt.Sprintf("line %d: %s names no folder", i+1, ticks))
			}
		}
	}
	return problems, cited
}

// missing are the ids that no line of a table in the document begins with.
func missing(document string, ids []string) []string {
	rows := map[string]bool{}
	for line := range strings.Lines(document) {
		if cells := strings.Split(line, "|"); len(cells) > 2 {
			for id := range strings.SplitSeq(cells[1], ",") {
				rows[strings.TrimSpace(id)] = true
			}
		}
	}
	return slices.DeleteFunc(ids, func(id string) bool { return rows[id] })
}

// series are prefix01, prefix02, … to last.
func series(format string, last int) (ids []string) {
	for i := range last {
		ids = append(ids, fmt.Sprintf(format, i+1))
	}
	return ids
}

func allTests(t *testing.T) *tests {
	t.Helper()
	ts := newTests()
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != ".." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata"):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go"):
			return nil
		}
		if strings.HasSuffix(path, "_test.go") || filepath.Base(filepath.Dir(path)) == "storetest" {
			return ts.add(path, nil)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return ts
}

func newTests() *tests {
	return &tests{functions: map[string]map[string]bool{}, folders: map[string]map[string]bool{}, reported: map[string]string{}}
}

func document(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "docs", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestDocumentsCiteTestsThatExist(t *testing.T) {
	t.Parallel()
	ts := allTests(t)
	if len(ts.functions) < 10 || len(ts.cases) < 30 || len(ts.reported) < 30 {
		t.Fatalf("%d folders with tests, %d cases and %d field cases: the wrong files are read", len(ts.functions), len(ts.cases), len(ts.reported))
	}
	for _, name := range []string{"guarantee.md", "field-cases.md", "fates.md"} {
		problems, cited := ts.problems(document(t, name))
		for _, p := range problems {
			t.Errorf("docs/%s: %s", name, p)
		}
		if cited < 45 {
			t.Errorf("docs/%s cites %d tests; are its citations still written as they are searched for?", name, cited)
		}
	}
}

func TestDocumentsNameEveryRuleAndCase(t *testing.T) {
	t.Parallel()
	rules := slices.Concat(series("pipe-%d", 12), series("rec-%d", 11), series("http-%d", 6),
		series("msg-%d", 4), series("key-%d", 7), series("see-%d", 4),
		series("H%02d", 24), series("S%02d", 12), series("F%02d", 25), series("V%02d", 11), series("R%02d", 26),
		[]string{"X01", "X02", "X06", "X07", "X08", "X09", "X10", "X11", "X12", "X13", "X15", "X16", "X17", "X18", "X20"})
	if ids := missing(document(t, "guarantee.md"), rules); len(ids) > 0 {
		t.Errorf("docs/guarantee.md has no line for %v", ids)
	}

	cases := document(t, "field-cases.md")
	for _, id := range series("BR-%02d", 67) {
		if !strings.Contains(cases, id) {
			t.Errorf("docs/field-cases.md says nothing about %s", id)
		}
	}
	ts := allTests(t)
	for _, id := range missing(cases, slices.Sorted(maps.Keys(ts.reported))) {
		if _, number, _ := strings.Cut(id, "-"); number >= "01" && number <= "67" {
			t.Errorf("%s names %s, and docs/field-cases.md has no line for it", ts.reported[id], id)
		}
	}
}

// What is wrong in a document must be found, or the two tests above prove nothing.
func TestAWrongCitationIsFound(t *testing.T) {
	t.Parallel()
	ts := newTests()
	for file, source := range map[string]string{
		"../shop/a_test.go":      "package shop\nfunc TestOne(t *testing.T) { run(`BR-31 by its text`) }\nfunc (s suite) TestMethod() {}\nfunc helper() {}",
		"../shop/a.go":           "package shop\nfunc TestNotInATestFile() {}\nvar s = `BR-33`",
		"../one/twin/a_test.go":  "package twin\nfunc TestTwin(t *testing.T) {}",
		"../two/twin/a_test.go":  "package twin\nfunc TestTwin(t *testing.T) {}",
		"../storetest/s.go":      "package storetest\nvar f = []specCase{{\"First_R01_BR10\"}, {\"Same_S01\"}, {\"Same_S02\"}}\nfunc g() specCase { return specCase{\"Alone\", \"x\", nil} }\nvar other = []row{{\"NoCase\"}}",
		"../storetest/s_test.go": "package storetest_test\nfunc TestBR07_Suite(t *testing.T) {}\nfunc TestEnd_BR08(t *testing.T) {}\nfunc TestX01BR09_Run(t *testing.T) {}",
	} {
		if err := ts.add(file, source); err != nil {
			t.Fatal(err)
		}
	}
	for text, want := range map[string]string{
		"`shop: TestOne`":             "",
		"`storetest: First_R01_BR10`": "",
		"`storetest: First`":          "",
		"`storetest: Alone`":          "",
		"`storetest: TestBR07_Suite`": "",
		"`json:\"-\"` and `Build`":    "",
		"`shop: TestOn`":              "shop has no test TestOn",
		"`shop: TestTwo`":             "shop has no test TestTwo",
		"`shop: TestMethod`":          "shop has no test TestMethod",
		"`shop: helper`":              "shop has no test helper",
		"`shop: TestNotInATestFile`":  "shop has no test TestNotInATestFile",
		"`bakery: TestOne`":           "there is no folder bakery with tests",
		"`twin: TestTwin`":            "several folders are called twin",
		"`storetest: Fir`":            "storetest has neither a test nor a case Fir",
		"`storetest: Same`":           "storetest has 2 cases that begin with Same",
		"`storetest: NoCase`":         "storetest has neither a test nor a case NoCase",
		"`TestOne`":                   "`TestOne` names no folder",
		"`shop:TestOne`":              "`shop:TestOne` names no folder",
	} {
		problems, _ := ts.problems("a line\n" + text)
		got := strings.Join(problems, "; ")
		if (want == "") != (got == "") || want != "" && !(strings.HasPrefix(got, "line 2: ") && strings.HasSuffix(got, want) && len(problems) == 1) {
			t.Errorf("%s: %q, want %q", text, problems, want)
		}
	}
	if got, want := slices.Sorted(maps.Keys(ts.reported)), []string{"BR-07", "BR-08", "BR-09", "BR-10", "BR-31"}; !slices.Equal(got, want) {
		t.Errorf("the field cases found are %q, want %q", got, want)
	}
	table := "| id | x |\n| --- | --- |\n| H01 | BR-09 |\n| msg-1, msg-2 | x |\n| BR-10 | x |\nBR-31"
	if got, want := missing(table, []string{"BR-09", "BR-10", "BR-31", "H01", "H1", "msg-2"}), []string{"BR-09", "BR-31", "H1"}; !slices.Equal(got, want) {
		t.Errorf("missing are %q, want %q", got, want)
	}
}
