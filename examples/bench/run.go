package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

const module = "github.com/tekil-go/tekil"

// sourceDir is the folder of the module's source that dir is in.
func sourceDir(ctx context.Context, dir string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Path}} {{.Dir}}")
	cmd.Dir = dir
	out, err := cmd.Output()
	path, root, ok := strings.Cut(strings.TrimSpace(string(out)), " ")
	if err != nil || !ok || path != module {
		return "", fmt.Errorf("bench: run it in the source of %s, where its benchmarks are", module)
	}
	return root, nil
}

// results are the metrics of the benchmarks that have run.
type results map[bench]map[string]float64

// output is what a run of go test has printed.
type output struct {
	results results
	cpu     string
}

// parse reads what go test prints about benchmarks of this module. procs is GOMAXPROCS, which go test puts behind each name where it is not 1.
// A line that is no whole result is none of ours: the figure that it should have held is then missing.
func parse(out []byte, procs int) output {
	o := output{results: results{}}
	pkg := ""
	for line := range strings.Lines(string(out)) {
		if name, ok := strings.CutPrefix(line, "pkg: "+module+"/"); ok {
			pkg = strings.TrimSpace(name)
		}
		if name, ok := strings.CutPrefix(line, "cpu: "); ok {
			o.cpu = strings.TrimSpace(name)
		}
		words := strings.Fields(line)
		if !strings.HasPrefix(line, "Benchmark") || len(words) < 4 || len(words)%2 != 0 {
			continue
		}
		metrics := map[string]float64{}
		for pair := range slices.Chunk(words[2:], 2) {
			v, err := strconv.ParseFloat(pair[0], 64)
			if err != nil {
				metrics = nil
				break
			}
			metrics[pair[1]] = v
		}
		if metrics == nil {
			continue
		}
		name := words[0]
		if procs > 1 {
			name = strings.TrimSuffix(name, "-"+strconv.Itoa(procs))
		}
		o.results[bench{pkg, name}] = metrics
	}
	return o
}

// job is one run of go test: benchmarks of a package that are run in the same way.
type job struct {
	pkg   string
	kind  *kind
	names []string
}

// jobs are the runs that give the figures of the goals, each benchmark once.
func jobs(goals []goal, e effort) []*job {
	var all []*job
	for _, g := range goals {
		if g.notBuilt || g.from > e {
			continue
		}
		for _, f := range []figure{g.seen, g.base} {
			if f == (figure{}) {
				continue
			}
			i := slices.IndexFunc(all, func(j *job) bool { return j.pkg == f.pkg && j.kind == g.kind })
			if i < 0 {
				i = len(all)
				all = append(all, &job{pkg: f.pkg, kind: g.kind})
			}
			if !slices.Contains(all[i].names, f.name) {
				all[i].names = append(all[i].names, f.name)
			}
		}
	}
	return all
}

func (j *job) args(e effort) []string {
	patterns := make([]string, len(j.names))
	for i, name := range j.names {
		parts := strings.Split(name, "/")
		for k, part := range parts {
			parts[k] = "^" + regexp.QuoteMeta(part) + "$"
		}
		patterns[i] = strings.Join(parts, "/")
	}
	args := []string{"test", "-run", "^$", "-timeout", "2h", "-bench", strings.Join(patterns, "|"), "-benchtime", j.kind.times[e], "./" + j.pkg}
	return append(args, j.kind.flags[e]...)
}

// measure runs the jobs one after another in the module's source, never two at once, and tells progress about them.
func measure(ctx context.Context, root string, all []*job, e effort, progress io.Writer) (output, error) {
	procs := runtime.GOMAXPROCS(0)
	env := append(os.Environ(), "GOMAXPROCS="+strconv.Itoa(procs))
	if os.Getenv("TEKIL_TEST_POSTGRES") == "" {
		env = append(env, "TEKIL_TEST_POSTGRES_FSYNC=on")
	}
	sum := output{results: results{}}
	for i, j := range all {
		fmt.Fprintf(progress, "%d/%d: %d benchmarks of %s, -benchtime %s ", i+1, len(all), len(j.names), j.pkg, j.kind.times[e])
		start := time.Now()
		cmd := exec.CommandContext(ctx, "go", j.args(e)...)
		cmd.Dir, cmd.Env = root, env
		cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
		cmd.WaitDelay = 10 * time.Second
		out, err := cmd.CombinedOutput()
		fmt.Fprintf(progress, "(%s)\n", time.Since(start).Round(time.Second))
		if ctx.Err() != nil {
			return sum, fmt.Errorf("bench: %w", context.Cause(ctx))
		}
		if err != nil {
			return sum, fmt.Errorf("bench: the benchmarks of %s have failed: %w\n%s", j.pkg, err, bytes.TrimSpace(out))
		}
		o := parse(out, procs)
		for _, name := range j.names {
			if o.results[bench{j.pkg, name}] == nil {
				return sum, fmt.Errorf("bench: %s has no benchmark %s any more, or it said nothing\n%s", j.pkg, name, bytes.TrimSpace(out))
			}
		}
		for b, metrics := range o.results {
			sum.results[b] = metrics
		}
		sum.cpu = o.cpu
	}
	return sum, nil
}
