package bus_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// Each folder of testdata is a program. A line that the compiler must refuse ends in the comment want `words of the refusal`;
// a program without one must compile.
func TestPipe1_AnotherOrderDoesNotCompile(t *testing.T) {
	t.Parallel()
	programs, err := filepath.Glob("testdata/*/main.go")
	if err != nil || len(programs) < 15 {
		t.Fatalf("testdata has %d programs, %v", len(programs), err)
	}
	compiling := 0
	for _, program := range programs {
		// Reading the source here also makes go test's cache depend on it.
		source, err := os.ReadFile(program)
		if err != nil {
			t.Fatal(err)
		}
		want := wantedRefusals(string(source))
		if len(want) == 0 {
			compiling++
		}
		t.Run(filepath.Base(filepath.Dir(program)), func(t *testing.T) {
			t.Parallel()
			out, err := exec.CommandContext(t.Context(), "go", "build", "-o", os.DevNull, "./"+filepath.ToSlash(filepath.Dir(program))).CombinedOutput()
			if (err == nil) != (len(want) == 0) {
				t.Fatalf("go build: %v\n%s", err, out)
			}
			got := refusals(string(out))
			for line, words := range want {
				if !strings.Contains(got[line], words) {
					t.Errorf("line %d: the compiler says %q, want %q", line, got[line], words)
				}
			}
			for line, words := range got {
				if _, ok := want[line]; !ok {
					t.Errorf("line %d: the compiler also refuses this: %s", line, words)
				}
			}
		})
	}
	if compiling == 0 {
		t.Error("no program compiles, so nothing shows that the refusals are about the order")
	}
}

var (
	wantComment = regexp.MustCompile("// want `(.+)`$")
	refusalLine = regexp.MustCompile(`^[^:\s]+\.go:(\d+):\d+: (.*)$`)
)

func wantedRefusals(source string) map[int]string {
	want := map[int]string{}
	for i, line := range strings.Split(source, "\n") {
		if m := wantComment.FindStringSubmatch(line); m != nil {
			want[i+1] = m[1]
		}
	}
	return want
}

func refusals(output string) map[int]string {
	got := map[int]string{}
	for line := range strings.Lines(output) {
		if m := refusalLine.FindStringSubmatch(strings.TrimRight(line, "\r\n")); m != nil {
			n, err := strconv.Atoi(m[1])
			if err == nil {
				got[n] += m[2]
			}
		}
	}
	return got
}
