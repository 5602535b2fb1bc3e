package main

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestTheParserReadsWhatGoTestPrints(t *testing.T) {
	t.Parallel()
	const out = `goos: linux
pkg: github.com/tekil-go/tekil/bus
cpu: Some Processor
BenchmarkDispatch/closures-3/serial-2         	 1000000	        12.5 ns/op	       0 allocs/op
BenchmarkDispatch/closures-3-2  	 10	 1.5e+03 ns/op
BenchmarkNoise-2 	 10	 a ns/op
BenchmarkHalf-2 	 10	 3
BenchmarkName-2
    x_test.go:1: BenchmarkInText-2 10 3 ns/op
PASS
pkg: github.com/tekil-go/tekil/registry
BenchmarkPipeline/ratio-2 	     200	         1.18 whole/parts
`
	o := parse([]byte(out), 2)
	want := results{
		{"bus", "BenchmarkDispatch/closures-3/serial"}: {"ns/op": 12.5, "allocs/op": 0},
		{"bus", "BenchmarkDispatch/closures-3"}:        {"ns/op": 1500},
		{"registry", "BenchmarkPipeline/ratio"}:        {"whole/parts": 1.18},
	}
	if got, want := asJSON(t, o.results), asJSON(t, want); got != want || o.cpu != "Some Processor" {
		t.Errorf("got %s on %q, want %s", got, o.cpu, want)
	}
	// Where there is one processor, a number at the end belongs to the name.
	one := parse([]byte("pkg: github.com/tekil-go/tekil/bus\nBenchmarkDispatch/closures-3 10 12.5 ns/op\n"), 1)
	if one.results[bench{"bus", "BenchmarkDispatch/closures-3"}]["ns/op"] != 12.5 {
		t.Errorf("got %v", one.results)
	}
}

// asJSON writes results with names that sort.
func asJSON(t *testing.T, r results) string {
	t.Helper()
	doc, err := document(conditions{}, nil, r)
	if err != nil {
		t.Fatal(err)
	}
	return string(doc)
}

var update = flag.Bool("update", false, "write testdata/table.md anew")

// recorded is what go test printed in a run of -time quick on two processors.
func recorded(t *testing.T) output {
	t.Helper()
	out, err := os.ReadFile(filepath.Join("testdata", "output.txt"))
	if err != nil {
		t.Fatal(err)
	}
	return parse(out, 2)
}

func TestTheTableOfARecordedRun(t *testing.T) {
	t.Parallel()
	o := recorded(t)
	all, err := rows(goals(), o.results, quick)
	if err != nil {
		t.Fatal(err)
	}
	got := markdown(conditions{"2026-12-02", "quick", "go1.26.8", "linux/amd64", o.cpu, 2}, all)
	file := filepath.Join("testdata", "table.md")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("the table is another one; look at it and say -update:\n%s", got)
	}
}

func TestAGoalIsReachedAtItsBoundAndNotBeyond(t *testing.T) {
	t.Parallel()
	at := fig("bus", "BenchmarkX", "x-bare")
	base := fig("bus", "BenchmarkX", "bare/s")
	for _, c := range []struct {
		goal                    goal
		seen                    float64
		wanted, reached, showed string
	}{
		{goal{atLeast: 0.65}, 0.65, "≥ 0.65", "yes", "0.65"},
		{goal{atLeast: 0.65}, 0.64, "≥ 0.65", "no", "0.64"},
		{goal{atMost: 1.1}, 1.1, "≤ 1.10", "yes", "1.10"},
		{goal{atMost: 1.1}, 1.11, "≤ 1.10", "no", "1.11"},
		{goal{}, 0, "≤ 0.00", "yes", "0.00"}, // nothing at all, such as allocations
		{goal{}, 1, "≤ 0.00", "no", "1.00"},
		{goal{open: true}, 0.5, "–", "–", "0.50"},
		{goal{notBuilt: true}, 0.5, "–", "not built", "–"},
		{goal{from: long, atLeast: 0.65}, 0.5, "≥ 0.65", "with -time long", "–"},
	} {
		g := c.goal
		g.seen, g.base = at, base
		all, err := rows([]goal{g}, results{at.bench: {"x-bare": c.seen, "bare/s": 12345.6}}, normal)
		if err != nil {
			t.Fatal(err)
		}
		if r := all[0]; r.Wanted != c.wanted || r.Reached != c.reached || r.Seen != c.showed || r.Seen != "–" && r.Baseline != "12,346/s" {
			t.Errorf("%+v with %v: %+v", c.goal, c.seen, r)
		}
	}
}

func TestAFigureThatWasNotMeasuredIsAnError(t *testing.T) {
	t.Parallel()
	at, base := fig("bus", "BenchmarkX", "x-bare"), fig("bus", "BenchmarkX", "bare/s")
	for name, seen := range map[string]results{"nothing": {}, "the figure": {at.bench: {"bare/s": 1}}, "the baseline": {at.bench: {"x-bare": 1}}} {
		if _, err := rows([]goal{{seen: at, base: base}}, seen, normal); err == nil || !strings.HasPrefix(err.Error(), "bench: BenchmarkX in bus has not reported ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestFiguresAreWrittenWithTheirUnits(t *testing.T) {
	t.Parallel()
	for want, c := range map[string]struct {
		metric string
		v      float64
	}{
		"1,234,567/s": {"rows/s", 1234567.4}, "11.7 ns": {"closures-ns", 11.71}, "999 ns": {"ns/op", 999.4}, "3,040 ns": {"bare_ns/op", 3040},
		"32 B": {"index-B", 31.8}, "0": {"allocs/call", 0}, "-1": {"more-allocs", -1}, "0.72": {"x-bare", 0.7249}, "1.00": {"runs/storm", 1},
	} {
		if got := show(c.metric, c.v); got != want {
			t.Errorf("%s %v: %q, want %q", c.metric, c.v, got, want)
		}
	}
}

// The recorded run tells whether a name below a benchmark is right, and was once; this tells whether the benchmark is still there.
func TestTheBenchmarkOfEveryGoalStandsBesideTheCode(t *testing.T) {
	t.Parallel()
	there := map[bench]bool{}
	for _, j := range jobs(goals(), long) {
		files, err := filepath.Glob(filepath.Join("..", "..", filepath.FromSlash(j.pkg), "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range parsed.Decls {
				if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil {
					there[bench{j.pkg, f.Name.Name}] = true
				}
			}
		}
		for _, name := range j.names {
			top, _, _ := strings.Cut(name, "/")
			if !there[bench{j.pkg, top}] {
				t.Errorf("%s has no %s", j.pkg, top)
			}
		}
	}
}

func TestEveryGoalOfTheListIsInTheTable(t *testing.T) {
	t.Parallel()
	ids := map[string]bool{}
	for _, g := range goals() {
		ids[g.id] = true
	}
	for _, id := range []string{"D1", "D2", "D3", "P1", "P2", "P3", "P4", "P5", "L1", "L2", "R1", "R2", "S1", "G1", "T1", "Q1"} {
		if !ids[id] {
			t.Errorf("%s is missing", id)
		}
	}
}

func TestAJobAsksForItsBenchmarksAndNoOthers(t *testing.T) {
	t.Parallel()
	all := jobs(slices.DeleteFunc(goals(), func(g goal) bool { return g.id != "P1" && g.id != "R1" && g.id != "P2" }), quick)
	var asked []string
	for _, j := range all {
		asked = append(asked, strings.Join(j.args(quick), " "))
	}
	want := []string{
		"test -run ^$ -timeout 2h -bench ^BenchmarkAtomic$/^workers=1$|^BenchmarkAtomic$/^workers=8$|^BenchmarkAtomic$/^workers=32$|" +
			"^BenchmarkReplay$/^workers=1$|^BenchmarkReplay$/^workers=8$|^BenchmarkReplay$/^workers=32$ -benchtime 3x ./behaviors/idempotency/pgstore",
		"test -run ^$ -timeout 2h -bench ^BenchmarkWritten$/^replay$|^BenchmarkWritten$/^bare$ -benchtime 1x ./behaviors/idempotency/pgstore",
	}
	if !slices.Equal(asked, want) {
		t.Errorf("got  %q\nwant %q", asked, want)
	}
}

// The real thing, small: two benchmarks that are over in a moment, once they are compiled.
func TestD2IsMeasured(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	markdownFile, jsonFile := filepath.Join(dir, "table.md"), filepath.Join(dir, "results.json")
	var stdout, stderr bytes.Buffer
	if err := run(t.Context(), []string{"-time", "quick", "-only", "D2", "-markdown", markdownFile, "-json", jsonFile, "-plots", dir}, &stdout, &stderr); err != nil {
		t.Fatalf("%v\n%s", err, &stderr)
	}
	table, err := os.ReadFile(markdownFile)
	if err != nil || string(table) != stdout.String() {
		t.Errorf("the file holds another table than was printed (%v)", err)
	}
	for _, want := range []string{
		"(?m)^\\| D2 \\| `bus.Send` through empty rungs, serial, to 3 closures \\| ≤ 2.50 \\| \\d+\\.\\d\\d \\| (yes|no) \\| [\\d.,]+ ns \\|$",
		"(?m)^\\| D2 \\| `bus.Send` through empty rungs, parallel, to 3 closures \\| ≤ 2.50 \\| \\d+\\.\\d\\d \\| (yes|no) \\| [\\d.,]+ ns \\|$",
		"(?m)^\\| D2 \\| `bus.Send` through empty rungs, allocations \\| ≤ 0 \\| 0 \\| yes \\| – \\|$",
	} {
		if !regexp.MustCompile(want).Match(table) {
			t.Errorf("no line is like %s:\n%s", want, table)
		}
	}
	if n := strings.Count(string(table), "\n| D"); n != 3 {
		t.Errorf("there are %d lines", n)
	}
	var doc struct {
		Conditions conditions
		Goals      []row
		Benchmarks map[string]map[string]float64
	}
	text, err := os.ReadFile(jsonFile)
	if err == nil {
		err = json.Unmarshal(text, &doc)
	}
	if err != nil || doc.Conditions.Time != "quick" || len(doc.Goals) != 3 || doc.Goals[0].Value == nil ||
		doc.Benchmarks["bus BenchmarkRatio/send/empty/serial"]["x-closures"] != *doc.Goals[0].Value {
		t.Errorf("%v: %s", err, text)
	}
	if svgs, _ := filepath.Glob(filepath.Join(dir, "*.svg")); len(svgs) != 0 {
		t.Errorf("nothing was measured for %v", svgs)
	}
}

func TestTheCurvesOfARecordedRun(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "new")
	if err := plots(dir, recorded(t).results); err != nil {
		t.Fatal(err)
	}
	for file, words := range map[string][]string{
		"throughput.svg": {"Throughput", "operations a second (logarithmic)", "requests at once (logarithmic)", "1", "64", "bare transaction", "Atomic command", "Leased command", "replay"},
		"latency.svg":    {"milliseconds (logarithmic)", "requests at once (logarithmic)", "1", "64", "bare transaction", "Atomic command", "Leased command", "replay"},
		"records.svg":    {"records in the table (logarithmic)", "throughput, to an empty table", "100,000", "UUIDv7 keys", "UUIDv4 keys"},
	} {
		svg, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			t.Fatal(err)
		}
		var texts []string
		d := xml.NewDecoder(bytes.NewReader(svg))
		for {
			token, err := d.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			if text, ok := token.(xml.CharData); ok {
				texts = append(texts, string(text))
			}
		}
		for _, word := range words {
			if !slices.ContainsFunc(texts, func(text string) bool { return strings.TrimSpace(text) == word }) {
				t.Errorf("%s does not say %q", file, word)
			}
		}
	}
}

func TestWrongFlagsAreRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"-time", "forever"}, "bench: the time is one of quick, normal, long"},
		{[]string{"-only", "("}, "bench: -only: "},
		{[]string{"-only", "X9"}, `bench: no goal's id matches "X9"`},
		{[]string{"quick"}, `bench: "quick" is no flag`},
	} {
		if err := run(t.Context(), c.args, io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v", c.args, err)
		}
	}
}

func TestOutsideOfTheSourceItSaysSo(t *testing.T) {
	t.Parallel()
	other := moduleOf(t, "example.com/other", "")
	for name, dir := range map[string]string{"no module": t.TempDir(), "another module": other} {
		if root, err := sourceDir(t.Context(), dir); err == nil || err.Error() != "bench: run it in the source of github.com/tekil-go/tekil, where its benchmarks are" {
			t.Errorf("%s: %q, %v", name, root, err)
		}
	}
	below := moduleOf(t, module, "")
	if root, err := sourceDir(t.Context(), filepath.Join(below, "x")); err != nil || filepath.Base(root) != filepath.Base(below) {
		t.Errorf("below the source: %q, %v", root, err)
	}
}

// moduleOf makes a module with the package x, whose test file holds code.
func moduleOf(t *testing.T, path, code string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "x"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"go.mod": "module " + path + "\n\ngo 1.26\n", "x/x_test.go": "package x\n\nimport \"testing\"\n" + code} {
		if err := os.WriteFile(filepath.Join(dir, filepath.FromSlash(name)), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestABenchmarkThatFailsOrIsGoneFailsTheRun(t *testing.T) {
	t.Parallel()
	dir := moduleOf(t, module, `
func BenchmarkWell(b *testing.B) { for b.Loop() {}; b.ReportMetric(0.5, "x-bare") }
func BenchmarkFails(b *testing.B) { b.Fatal("the disk is full") }
func BenchmarkLater(b *testing.B) { b.Run("ratio", BenchmarkWell); b.Error("the ratio is none of the claim's") }
`)
	once := &kind{times: [3]string{"1x", "1x", "1x"}}
	for _, c := range []struct {
		names []string
		want  string
	}{
		{[]string{"BenchmarkWell"}, ""},
		{[]string{"BenchmarkWell", "BenchmarkFails"}, "the disk is full"},
		{[]string{"BenchmarkLater/ratio"}, "the benchmarks of x have failed: "}, // though its figure is there
		{[]string{"BenchmarkWell", "BenchmarkGone"}, "x has no benchmark BenchmarkGone any more"},
		{[]string{"BenchmarkWell/gone"}, "x has no benchmark BenchmarkWell/gone any more"},
	} {
		var progress bytes.Buffer
		out, err := measure(t.Context(), dir, []*job{{"x", once, c.names}}, quick, &progress)
		switch {
		case c.want == "" && (err != nil || out.results[bench{"x", "BenchmarkWell"}]["x-bare"] != 0.5):
			t.Errorf("%v: %v, %v", c.names, out.results, err)
		case c.want != "" && (err == nil || !strings.HasPrefix(err.Error(), "bench: ") || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%v: %v", c.names, err)
		}
		if !strings.HasPrefix(progress.String(), "1/1: ") {
			t.Errorf("progress: %q", &progress)
		}
	}
}

func TestARunThatIsInterruptedEnds(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("interrupted"))
	_, err := measure(ctx, moduleOf(t, module, ""), []*job{{"x", windows, []string{"BenchmarkX"}}}, quick, io.Discard)
	if err == nil || err.Error() != "bench: interrupted" {
		t.Error(err)
	}
}

func TestWhereTheFilesCannotBeWrittenItSaysSo(t *testing.T) {
	t.Parallel()
	nowhere := filepath.Join(t.TempDir(), "no", "folder.md")
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for want, s := range map[string]settings{
		"bench: write the table: ":   {markdown: nowhere},
		"bench: write the metrics: ": {json: nowhere},
		"bench: draw: ":              {plots: filepath.Join(file, "plots")},
	} {
		s.goals = goals()
		if err := s.report(recorded(t), io.Discard); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}
