package main

import (
	"encoding/json"
	"fmt"
	"math"
	"runtime"
	"strconv"
	"strings"
)

// row is a line of the table as it is printed. Value is the figure behind Seen, for programs.
type row struct {
	Goal     string   `json:"goal"`
	What     string   `json:"what"`
	Wanted   string   `json:"wanted"`
	Seen     string   `json:"seen"`
	Value    *float64 `json:"value,omitempty"`
	Reached  string   `json:"reached"`
	Baseline string   `json:"baseline"`
}

// rows fills the table. A figure that a goal names and that was not measured is an error.
func rows(goals []goal, seen results, e effort) ([]row, error) {
	var all []row
	for _, g := range goals {
		r := row{Goal: g.id, What: g.what, Wanted: g.wanted(), Seen: "–", Reached: "–", Baseline: "–"}
		switch {
		case g.notBuilt:
			r.Reached = "not built"
		case g.from > e:
			r.Reached = "with -time " + efforts[g.from]
		default:
			v, err := seen.get(g.seen)
			if err != nil {
				return nil, err
			}
			r.Seen, r.Value = show(g.seen.metric, v), &v
			if !g.open {
				r.Reached = "no"
				if g.reached(v) {
					r.Reached = "yes"
				}
			}
			if g.base != (figure{}) {
				base, err := seen.get(g.base)
				if err != nil {
					return nil, err
				}
				r.Baseline = show(g.base.metric, base)
			}
		}
		all = append(all, r)
	}
	return all, nil
}

func (r results) get(f figure) (float64, error) {
	v, ok := r[f.bench][f.metric]
	if !ok {
		return 0, fmt.Errorf("bench: %s in %s has not reported %s", f.name, f.pkg, f.metric)
	}
	return v, nil
}

// show writes a figure with its unit, which the metric's name ends with; what has no unit is a ratio or a number.
func show(metric string, v float64) string {
	switch {
	case strings.HasSuffix(metric, "/s"):
		return thousands(v) + "/s"
	case strings.HasSuffix(metric, "-ns"), strings.HasSuffix(metric, "ns/op"):
		if v < 100 {
			return strconv.FormatFloat(v, 'f', 1, 64) + " ns"
		}
		return thousands(v) + " ns"
	case strings.HasSuffix(metric, "-B"):
		return thousands(v) + " B"
	case strings.Contains(metric, "alloc"):
		return thousands(v)
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}

// thousands writes a number without a fraction, in groups of three digits.
func thousands(v float64) string {
	digits := strconv.FormatInt(int64(math.Round(math.Abs(v))), 10)
	var groups []string
	for len(digits) > 3 {
		groups = append([]string{digits[len(digits)-3:]}, groups...)
		digits = digits[:len(digits)-3]
	}
	s := strings.Join(append([]string{digits}, groups...), ",")
	if math.Round(v) < 0 {
		return "-" + s
	}
	return s
}

// conditions are what the figures were measured under.
type conditions struct {
	Date       string `json:"date"`
	Time       string `json:"time"`
	Go         string `json:"go"`
	System     string `json:"system"`
	CPU        string `json:"cpu"`
	Processors int    `json:"processors"`
}

func (c conditions) String() string {
	return fmt.Sprintf("%s, -time %s, %s, %s, %d processors (%s)", c.Date, c.Time, c.Go, c.System, c.Processors, c.CPU)
}

func conditionsOf(date string, e effort, cpu string) conditions {
	return conditions{date, e.String(), runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH, cpu, runtime.GOMAXPROCS(0)}
}

// markdown is the table.
func markdown(c conditions, all []row) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Made by `go run ./examples/bench`: %s.\n\n", c)
	b.WriteString("| goal | what | wanted | seen | reached | baseline |\n| --- | --- | --- | --- | --- | --- |\n")
	for _, r := range all {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n", r.Goal, r.What, r.Wanted, r.Seen, r.Reached, r.Baseline)
	}
	return b.String()
}

// document is the table and all metrics behind it, for programs.
func document(c conditions, all []row, seen results) ([]byte, error) {
	metrics := map[string]map[string]float64{}
	for b, m := range seen {
		metrics[b.pkg+" "+b.name] = m
	}
	out, err := json.MarshalIndent(struct {
		Conditions conditions                    `json:"conditions"`
		Goals      []row                         `json:"goals"`
		Benchmarks map[string]map[string]float64 `json:"benchmarks"`
	}{c, all, metrics}, "", "  ")
	return append(out, '\n'), err
}
