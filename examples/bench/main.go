// Command bench runs the benchmarks that the goals of the project are about, one after another, and prints one table: what was wanted
// and what was seen, as ratios to a baseline of the same run. The benchmarks stand beside the code that they measure; the method is
// told there and in docs/performance.md.
//
//	go run ./examples/bench                                   # some ten minutes
//	go run ./examples/bench -time quick -only 'D|P1'          # a look; the ratios are rough
//	go run ./examples/bench -time long -markdown docs/performance/table.md -json docs/performance/results.json -plots docs/performance
//
// It needs the module's source, and the machine for itself. PostgreSQL is the server that TEKIL_TEST_POSTGRES names, whose role
// must be a superuser there (for CHECKPOINT and commit_delay), or else a private one that waits for its disk.
//
// A goal that is not reached is said in the table and is no failure, because a busy machine is enough for it. A benchmark that fails or
// is gone is one: nothing is printed then, and the exit code is 1.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// settings are what the flags say.
type settings struct {
	effort                effort
	goals                 []goal
	markdown, json, plots string
}

func parseFlags(args []string, stderr io.Writer) (s settings, err error) {
	s.effort = normal
	only := ""
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Var(&s.effort, "time", "how long is measured: quick (three minutes), normal (twelve) or long")
	flags.StringVar(&only, "only", "", "regular expression for the ids of the goals that are measured (default: all)")
	flags.StringVar(&s.markdown, "markdown", "", "write the table into this file as well")
	flags.StringVar(&s.json, "json", "", "write the table and all metrics into this file, as JSON")
	flags.StringVar(&s.plots, "plots", "", "write the curves into this folder, as SVG")
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	if flags.NArg() > 0 {
		return s, fmt.Errorf("bench: %q is no flag", flags.Arg(0))
	}
	ids, err := regexp.Compile("^(?:" + only + ")")
	if err != nil {
		return s, fmt.Errorf("bench: -only: %w", err)
	}
	s.goals = slices.DeleteFunc(goals(), func(g goal) bool { return !ids.MatchString(g.id) })
	if len(s.goals) == 0 {
		return s, fmt.Errorf("bench: no goal's id matches %q", only)
	}
	return s, nil
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	s, err := parseFlags(args, stderr)
	if err != nil {
		return err
	}
	dir, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	root, err := sourceDir(ctx, dir)
	if err != nil {
		return err
	}
	out, err := measure(ctx, root, jobs(s.goals, s.effort), s.effort, stderr)
	if err != nil {
		return err
	}
	return s.report(out, stdout)
}

// report writes what was measured to all the places that it was asked for.
func (s settings) report(out output, stdout io.Writer) error {
	all, err := rows(s.goals, out.results, s.effort)
	if err != nil {
		return err
	}
	c := conditionsOf(time.Now().Format(time.DateOnly), s.effort, out.cpu)
	table := markdown(c, all)
	if _, err := io.WriteString(stdout, table); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	if s.markdown != "" {
		if err := os.WriteFile(s.markdown, []byte(table), 0o644); err != nil {
			return fmt.Errorf("bench: write the table: %w", err)
		}
	}
	if s.json != "" {
		doc, err := document(c, all, out.results)
		if err == nil {
			err = os.WriteFile(s.json, doc, 0o644)
		}
		if err != nil {
			return fmt.Errorf("bench: write the metrics: %w", err)
		}
	}
	if s.plots != "" {
		if err := plots(s.plots, out.results); err != nil {
			return fmt.Errorf("bench: draw: %w", err)
		}
	}
	return nil
}
