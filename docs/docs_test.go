// Package docs_test keeps the documents true: what they show is compiled, run or followed.
//
// A fence names its language, and that decides what is done with it:
//
//	go       compiled, all of them in one go build. A block is a whole file (it begins with "package"), declarations, or statements.
//	         Imports of the names in the table known are added, and a variable that a block of statements makes need not be used.
//	sh       run in a folder of its own by bash -eu, the blocks of a document one after the other. A line that begins with
//	         "go run ./examples/" is built and run; a program that says "NAME: listening on URL" stays until the document's end, and
//	         http://127.0.0.1:8080 and :8090 stand for that URL in the lines below it. "# prints TEXT" at a line's end is expected in the output.
//	sql      run on a real PostgreSQL with the table of records, or on SQLite where the block begins with "-- SQLite". A SELECT must
//	         find a row, and what changes rows must change one: a statement that meets nothing shows nothing.
//	mermaid  read by a small checker.
//	promql   names only metrics that there are.
//	text     neither run nor compiled; so are html, js and json.
//
// What a block takes for granted stands in testdata/preludes and is named by a comment that no reader sees:
//
//	<!-- prelude: NAME -->             from here on the Go blocks are in a new package with NAME.go.txt, and the SQL blocks in a new database
//	                                   with NAME.sql or NAME.sqlite.sql. Without a name: with nothing.
//	<!-- returns: Placed, error -->    the block of statements below it is the body of a function with these results.
package docs_test

import (
	"cmp"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/tekil-go/tekil/behaviors/telemetry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// block is a fenced block of a document.
type block struct {
	page    string // the document's path in the repository
	line    int    // of the block's first line
	lang    string
	text    string
	prelude string // the name of what it takes for granted
	group   int    // blocks with the same number share what a prelude makes
	returns string // the results of the function whose body it is
}

func (b block) at() string { return fmt.Sprintf("%s:%d", b.page, b.line) }

var (
	comment    = regexp.MustCompile(`^<!--\s*(.*?)\s*-->$`)
	directive  = regexp.MustCompile(`^(prelude|returns):\s*(.*)$`)
	languages  = []string{"go", "sh", "sql", "mermaid", "promql", "text", "html", "js", "json"}
	metricName = regexp.MustCompile(`\b(?:idempotency|tekil)_[a-z_]+\b|\b[a-z_]+_created_total\b`)
)

// blocksOf reads the fenced blocks of a document, and says what is wrong with how they are marked.
func blocksOf(page, text string) (blocks []block, problems []string) {
	var open *block
	prelude, returns, group, indent := "", "", 0, ""
	for i, line := range strings.Split(text, "\n") {
		bare := strings.TrimSpace(line)
		switch {
		case open != nil && bare == "```":
			blocks, open = append(blocks, *open), nil
		case open != nil:
			open.text += strings.TrimPrefix(line, indent) + "\n"
		case strings.HasPrefix(bare, "```"): // it may stand in an item of a list
			indent, _, _ = strings.Cut(line, "```")
			open = &block{page: page, line: i + 2, lang: bare[3:], prelude: prelude, group: group, returns: returns}
			if !slices.Contains(languages, open.lang) {
				problems = append(problems, fmt.Sprintf("%s:%d: the fence says %q; want one of %v", page, i+1, open.lang, languages))
			}
			returns = ""
		case comment.MatchString(bare):
			m := directive.FindStringSubmatch(comment.FindStringSubmatch(bare)[1])
			switch {
			case m == nil:
				problems = append(problems, fmt.Sprintf("%s:%d: a comment that is no directive", page, i+1))
			case m[1] == "prelude":
				prelude, group = m[2], group+1
			default:
				returns = m[2]
			}
		case returns != "" && bare != "":
			problems = append(problems, fmt.Sprintf("%s:%d: no block follows the directive returns", page, i+1))
			returns = ""
		}
	}
	if open != nil {
		problems = append(problems, open.at()+": the block has no end")
	}
	return blocks, problems
}

// pages are the documents by their path in the repository: the README and what is in docs.
func pages(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(".", func(file string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && entry.Name() == "testdata":
			return fs.SkipDir
		case path.Ext(file) == ".md":
			text, err := os.ReadFile(file)
			all["docs/"+filepath.ToSlash(file)] = string(text)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	all["README.md"] = string(readme)
	if len(all) < 12 {
		t.Fatalf("only %d documents were found", len(all))
	}
	return all
}

// blocks are those of all documents in docs with one of the languages, in the order in which they stand. The README's are
// compiled in package registry and run by continuous integration.
func blocks(t *testing.T, langs ...string) (found []block) {
	t.Helper()
	for page, text := range pages(t) {
		if page == "README.md" {
			continue
		}
		all, _ := blocksOf(page, text)
		for _, b := range all {
			if slices.Contains(langs, b.lang) {
				found = append(found, b)
			}
		}
	}
	slices.SortFunc(found, func(a, b block) int { return cmp.Or(strings.Compare(a.page, b.page), a.line-b.line) })
	if len(found) == 0 {
		t.Fatalf("no document has a block of %v", langs)
	}
	return found
}

// read gives the text of a prelude, or "" where there is none of that ending.
func read(t *testing.T, prelude, ending string) string {
	t.Helper()
	if prelude == "" {
		return ""
	}
	text, err := os.ReadFile(filepath.Join("testdata", "preludes", prelude+ending))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return string(text)
}

func TestEveryFenceSaysWhatItIs(t *testing.T) {
	t.Parallel()
	used := map[string]bool{}
	for page, text := range pages(t) {
		all, problems := blocksOf(page, text)
		for _, p := range problems {
			t.Error(p)
		}
		for _, b := range all {
			used[b.prelude] = true
		}
	}
	files, err := filepath.Glob("testdata/preludes/*")
	if err != nil || len(files) == 0 {
		t.Fatalf("there are no preludes (%v)", err)
	}
	there := map[string]bool{"": true}
	for _, file := range files {
		name, _, _ := strings.Cut(filepath.Base(file), ".")
		if there[name] = true; !used[name] {
			t.Errorf("%s: no block uses it", file)
		}
	}
	for name := range used {
		if !there[name] {
			t.Errorf("there is no prelude %s", name)
		}
	}

	for text, want := range map[string]string{
		"```go\nx\n```":                             "",
		"<!-- prelude: a -->\n```sql\n```":          "",
		"<!-- returns: error -->\n\n```go\n```":     "",
		"```\nx\n```":                               `x.md:1: the fence says ""`,
		"```golang\nx\n```":                         `x.md:1: the fence says "golang"`,
		"```go\nx":                                  "x.md:2: the block has no end",
		"1. x\n\n   ```rust\n   x\n   ```":          `x.md:3: the fence says "rust"`,
		"<!-- preludes: a -->":                      "x.md:1: a comment that is no directive",
		"<!-- returns: error -->\ntext\n```go\n```": "x.md:2: no block follows the directive returns",
	} {
		_, problems := blocksOf("x.md", text)
		if got := strings.Join(problems, "; "); (want == "") != (got == "") || !strings.HasPrefix(got, want) {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// wrongMetrics gives the names of metrics in a text that there are not.
func wrongMetrics(text string) (wrong []string) {
	for _, name := range metricName.FindAllString(text, -1) {
		known := slices.ContainsFunc(telemetry.Metrics(), func(m telemetry.Metric) bool {
			if suffix, ok := strings.CutPrefix(m.Name, "*"); ok {
				return strings.HasSuffix(name, suffix)
			}
			base := strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(name, "_bucket"), "_count"), "_sum")
			return name == m.Name || base == m.Name && m.Unit == "s"
		})
		if !known {
			wrong = append(wrong, name)
		}
	}
	return wrong
}

func TestTheRunbookKnowsEveryMetricAndNoOther(t *testing.T) {
	t.Parallel()
	for _, b := range blocks(t, "promql") {
		for _, name := range wrongMetrics(b.text) {
			t.Errorf("%s: there is no metric %s", b.at(), name)
		}
	}
	runbook := pages(t)["docs/operations.md"]
	for _, m := range telemetry.Metrics() {
		if !strings.Contains(runbook, "`"+m.Name+"`") {
			t.Errorf("docs/operations.md says nothing about %s", m.Name)
		}
	}
	got := wrongMetrics("rate(idempotency_replay_total[5m]) / tekil_dispatch_duration_seconds_bucket + idempotency_replays_total + tekil_dispatch_in_flight_sum + a_created_total")
	if want := []string{"idempotency_replays_total", "tekil_dispatch_in_flight_sum"}; !slices.Equal(got, want) {
		t.Errorf("wrong metrics are %q, want %q", got, want)
	}
}

var (
	link    = regexp.MustCompile(`!?\[[^\]]*\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#{1,6} +(.*?) *#*$`)
	fenced  = regexp.MustCompile("(?ms)^ *```.*?^ *```$")
	inTicks = regexp.MustCompile("`[^`\n]*`")
)

// anchors are the names by which the headings of a document are linked to, as GitHub makes them.
func anchors(text string) map[string]bool {
	found := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
		name := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-', r == '_', r >= 'a' && r <= 'z', r >= '0' && r <= '9', r > 127 && r != '…' && r != '→':
				return r
			}
			return -1
		}, strings.ToLower(link.ReplaceAllStringFunc(m[1], func(s string) string { return s[1:strings.Index(s, "]")] })))
		for n, first := 1, name; found[name]; n++ {
			name = fmt.Sprintf("%s-%d", first, n)
		}
		found[name] = true
	}
	return found
}

// brokenLinks gives the relative links of a document that lead nowhere. exists says whether a path of the repository is there, and text
// is a document's.
func brokenLinks(page, text string, exists func(file string) bool, document func(file string) (string, bool)) (broken []string) {
	for _, m := range link.FindAllStringSubmatch(inTicks.ReplaceAllString(fenced.ReplaceAllString(text, ""), "`x`"), -1) {
		target := m[1]
		if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
			continue
		}
		file, name, toHeading := strings.Cut(target, "#")
		if file == "" {
			file = page
		} else {
			file = path.Join(path.Dir(page), file)
		}
		if !exists(file) {
			broken = append(broken, target+": there is no "+file)
			continue
		}
		if other, ok := document(file); toHeading && (!ok || !anchors(other)[name]) {
			broken = append(broken, target+": "+file+" has no such heading")
		}
	}
	return broken
}

func TestEveryRelativeLinkLeadsSomewhere(t *testing.T) {
	t.Parallel()
	all, links := pages(t), 0
	exists := func(file string) bool {
		_, err := os.Stat(filepath.Join("..", filepath.FromSlash(file)))
		return err == nil && !strings.HasPrefix(file, "..")
	}
	document := func(file string) (string, bool) { text, ok := all[file]; return text, ok }
	for page, text := range all {
		links += len(link.FindAllString(text, -1))
		for _, b := range brokenLinks(page, text, exists, document) {
			t.Errorf("%s: %s", page, b)
		}
	}
	if links < 60 {
		t.Errorf("only %d links were found", links)
	}

	text := "# A b: `C`, d-e\n## A b: `C`, d-e\n```text\n# no heading\n```\n[1](b.md) [2](b.md#there) [3](#a-b-c-d-e) [4](#a-b-c-d-e-1) [5](https://x/#y) `[6](no.md)` " +
		"[7](c.md) [8](b.md#here) [9](#no-heading) [10](../../out.md)"
	got := brokenLinks("docs/a.md", text, func(file string) bool { return file == "docs/a.md" || file == "docs/b.md" },
		func(file string) (string, bool) {
			return map[string]string{"docs/a.md": text, "docs/b.md": "# There"}[file], true
		})
	want := []string{"c.md: there is no docs/c.md", "b.md#here: docs/b.md has no such heading", "#no-heading: docs/a.md has no such heading", "../../out.md: there is no ../out.md"}
	if !slices.Equal(got, want) {
		t.Errorf("broken are %q, want %q", got, want)
	}
}

var (
	declared  = regexp.MustCompile(`^(?:participant|actor) (\w+)(?: as (.+))?$`)
	sent      = regexp.MustCompile(`^(\w+) ?(?:->|-->|->>|-->>|-x|--x|-\)|--\))[+-]? ?(\w+): (.+)$`)
	noted     = regexp.MustCompile(`^Note (?:over|left of|right of) (\w+)(?:,\s*(\w+))?: (.+)$`)
	activated = regexp.MustCompile(`^(?:activate|deactivate) (\w+)$`)
	branch    = regexp.MustCompile(`^(alt|opt|loop|par|critical|break|rect|else|and|option) (.+)$`)
)

// branchOf says which block a part of it belongs to.
var branchOf = map[string]string{"else": "alt", "and": "par", "option": "critical"}

// wrongMermaid gives what is wrong with a diagram: it knows the forms that the documents use, and every other one is an error.
func wrongMermaid(text string) (wrong []string) {
	bad := func(i int, format string, args ...any) {
		wrong = append(wrong, fmt.Sprintf("line %d: ", i+1)+fmt.Sprintf(format, args...))
	}
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	if strings.TrimSpace(lines[0]) != "sequenceDiagram" {
		bad(0, "want sequenceDiagram")
		return wrong
	}
	known, spoken := map[string]bool{}, map[string]bool{}
	var stack []string
	says := func(i int, text string) {
		if strings.ContainsAny(text, ";#") { // both end a statement
			bad(i, "a text must not hold ; or #")
		}
		if slices.Contains(strings.FieldsFunc(strings.ToLower(text), func(r rune) bool { return r < 'a' || r > 'z' }), "end") {
			bad(i, "a text must not hold the word end")
		}
	}
	takesPart := func(i int, names ...string) {
		for _, name := range names {
			if spoken[name] = true; name != "" && !known[name] {
				bad(i, "%s is not declared", name)
			}
		}
	}
	for i, line := range lines[1:] {
		i, line = i+1, strings.TrimSpace(line)
		if line == "" || line == "autonumber" || strings.HasPrefix(line, "%%") {
			continue
		}
		if m := declared.FindStringSubmatch(line); m != nil {
			if known[m[1]] {
				bad(i, "%s is declared twice", m[1])
			}
			known[m[1]] = true
			says(i, m[2])
		} else if m := sent.FindStringSubmatch(line); m != nil {
			takesPart(i, m[1], m[2])
			says(i, m[3])
		} else if m := noted.FindStringSubmatch(line); m != nil {
			takesPart(i, m[1], m[2])
			says(i, m[3])
		} else if m := activated.FindStringSubmatch(line); m != nil {
			takesPart(i, m[1])
		} else if line == "end" {
			if len(stack) == 0 {
				bad(i, "nothing is open")
				continue
			}
			stack = stack[:len(stack)-1]
		} else if m := branch.FindStringSubmatch(line); m != nil {
			says(i, m[2])
			if of := branchOf[m[1]]; of == "" {
				stack = append(stack, m[1])
			} else if len(stack) == 0 || stack[len(stack)-1] != of {
				bad(i, "%s stands in no %s", m[1], of)
			}
		} else {
			bad(i, "%q is no known statement", line)
		}
	}
	if len(stack) > 0 {
		bad(len(lines)-1, "%v has no end", stack)
	}
	for name := range known {
		if !spoken[name] {
			bad(0, "%s takes no part", name)
		}
	}
	return wrong
}

func TestEveryDiagramCanBeDrawn(t *testing.T) {
	t.Parallel()
	for _, b := range blocks(t, "mermaid") {
		for _, w := range wrongMermaid(b.text) {
			t.Errorf("%s: %s", b.at(), w)
		}
	}
	const head = "sequenceDiagram\n  participant A\n  actor B as the b\n  A->>B: x\n"
	for text, want := range map[string]string{
		head: "",
		head + "alt one\nB--xA: y\nelse two\nNote over A,B: z\nend\nactivate A\n%% c": "",
		"graph TD":                  "line 1: want sequenceDiagram",
		head + "A->>C: x":           "line 5: C is not declared",
		head + "A->B x":             `line 5: "A->B x" is no known statement`,
		head + "A->>B: x; y":        "line 5: a text must not hold ; or #",
		head + "A->>B: to the end":  "line 5: a text must not hold the word end",
		head + "alt x\nA->>B: x":    "line 6: [alt] has no end",
		head + "end":                "line 5: nothing is open",
		head + "opt x\nelse y\nend": "line 6: else stands in no alt",
		head + "participant A":      "line 5: A is declared twice",
		head + "participant C":      "line 1: C takes no part",
	} {
		if got := strings.Join(wrongMermaid(text), "; "); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
