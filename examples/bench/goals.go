package main

import (
	"fmt"
	"strconv"
	"strings"
)

// effort is what -time says: how long is measured.
type effort int

const (
	quick effort = iota
	normal
	long
)

var efforts = []string{quick: "quick", normal: "normal", long: "long"}

// Set and String make it a flag.
func (e *effort) Set(s string) error {
	for i, name := range efforts {
		if s == name {
			*e = effort(i)
			return nil
		}
	}
	return fmt.Errorf("bench: the time is one of %s", strings.Join(efforts, ", "))
}

func (e *effort) String() string { return efforts[*e] }

// kind is how benchmarks are run: what -benchtime is for each effort, and the flags of their own.
type kind struct {
	times [3]string
	flags [3][]string
}

var (
	windows  = &kind{times: [3]string{"3x", "15x", "25x"}} // pairs of windows of 0.3 s; odd, for their median
	rounds   = &kind{times: [3]string{"31x", "301x", "1001x"}}
	timed    = &kind{times: [3]string{"50ms", "300ms", "1s"}}
	inTurn   = &kind{times: [3]string{"1s", "5s", "15s"}} // one operation and the other
	written  = &kind{times: [3]string{"1x", "5x", "9x"}}
	sweeps   = &kind{times: [3]string{"1x", "5x", "15x"}}
	messages = &kind{times: [3]string{"1x", "5x", "9x"}}
	purges   = &kind{times: [3]string{"1x", "1x", "1x"}, flags: [3][]string{{"-purge-rows", "200000"}, {"-purge-rows", "1000000"}, {"-purge-rows", "5000000"}}}
	sizes    = &kind{times: [3]string{"3x", "9x", "15x"}, flags: [3][]string{{"-records", "100000"}, {"-records", "100000,1000000"}, {"-records", "100000,1000000,10000000"}}}
)

// bench is a benchmark that stands beside the code: its package in the module and its full name.
type bench struct{ pkg, name string }

// figure is one metric of a benchmark.
type figure struct {
	bench
	metric string
}

func fig(pkg, name, metric string) figure { return figure{bench{pkg, name}, metric} }

// goal is a line of the table.
type goal struct {
	id, what string
	atLeast  float64 // or
	atMost   float64 // or
	open     bool    // neither: a figure without a goal
	kind     *kind
	seen     figure
	base     figure // what it is compared with, in absolute terms
	from     effort // the least effort that measures it
	notBuilt bool
}

func (g goal) wanted() string {
	switch {
	case g.notBuilt, g.open:
		return "–"
	case g.atLeast != 0:
		return "≥ " + show(g.seen.metric, g.atLeast)
	}
	return "≤ " + show(g.seen.metric, g.atMost)
}

func (g goal) reached(seen float64) bool {
	if g.atLeast != 0 {
		return seen >= g.atLeast
	}
	return seen <= g.atMost
}

const (
	pgstore     = "behaviors/idempotency/pgstore"
	sqlitestore = "behaviors/idempotency/sqlitestore"
	engine      = "behaviors/idempotency"
	telemetry   = "behaviors/telemetry"
	logs        = "behaviors/logging"
	validation  = "behaviors/validation"
)

// point is a number of workers and the least ratio that is wanted there, or 0.
type point struct {
	n     int
	least float64
}

// goals are the lines of the table, in its order.
func goals() []goal {
	var all []goal
	add := func(g goal) { all = append(all, g) }
	// versus is a goal of a ratio in pgstore, whose baseline is in bare/s.
	versus := func(id, what, name string, atLeast float64) {
		add(goal{id: id, what: what, atLeast: atLeast, open: atLeast == 0, kind: windows, seen: fig(pgstore, name, "x-bare"), base: fig(pgstore, name, "bare/s")})
	}
	workers := func(name string, n int) string { return name + "/workers=" + strconv.Itoa(n) }
	at := func(what string, n int) string { return fmt.Sprintf("%s, %d at once", what, n) }

	closures := func(id, what, name string, atMost float64) {
		for _, how := range []string{"serial", "parallel"} {
			n := "BenchmarkRatio/" + name + "/" + how
			add(goal{id: id, what: what + ", " + how + ", to 3 closures", atMost: atMost, open: atMost == 0, kind: rounds, seen: fig("bus", n, "x-closures"), base: fig("bus", n, "closures-ns")})
		}
		add(goal{id: id, what: what + ", allocations", kind: rounds, seen: fig("bus", "BenchmarkRatio/"+name+"/serial", "allocs/call")})
	}
	closures("D1", "a bound function through empty rungs", "bind/empty", 1.2)
	closures("D1", "a bound function through stages and observer that do nothing", "bind/stages-and-observer", 1.2)
	closures("D1", "the same stages called by hand", "by-hand", 0)
	closures("D2", "`bus.Send` through empty rungs", "send/empty", 2.5)
	pipeline := func(metric string) figure { return fig("registry", "BenchmarkPipeline/ratio", metric) }
	add(goal{id: "D3", what: "the pipeline without a store, to its parts", atMost: 1.10, kind: rounds, seen: pipeline("whole/parts"), base: pipeline("parts-ns")})
	add(goal{id: "D3", what: "allocations beside those of the parts", kind: rounds, seen: pipeline("more-allocs")})

	for _, c := range []point{{1, 0.90}, {8, 0.65}, {32, 0.60}} {
		versus("P1", at("Atomic to the bare transaction", c.n), workers("BenchmarkAtomic", c.n), c.least)
	}
	add(goal{id: "P2", what: "Atomic, claim riding with the first statement", notBuilt: true})
	add(goal{id: "P3", what: "Atomic without a result, riding", notBuilt: true})
	for _, n := range []int{1, 8} {
		versus("P4", at("P1 with a network of 1 ms", n), workers("BenchmarkSlow/network", n)+"/atomic", 0.97)
	}
	for _, n := range []int{1, 8} {
		versus("P4", at("P1 with a flush that takes 2 ms more", n), workers("BenchmarkSlow/flush", n)+"/atomic", 0.95)
	}
	for _, c := range []point{{1, 0}, {8, 0}, {32, 1.25}} {
		versus("P5", at("Atomic to five statements by hand", c.n), workers("BenchmarkByHand", c.n), c.least)
	}
	wal := func(id, what, name string, atMost float64) {
		add(goal{id: id, what: what, atMost: atMost, open: atMost < 0, kind: written, seen: fig(pgstore, "BenchmarkWritten/"+name, "wal-B"), base: fig(pgstore, "BenchmarkWritten/bare", "wal-B")})
	}
	wal("P5", "WAL of an Atomic command", "atomic", 650)
	wal("P5", "WAL of the five statements", "by-hand", -1)
	add(goal{id: "P5", what: "dead rows an Atomic command leaves", kind: written, seen: fig(pgstore, "BenchmarkWritten/atomic", "dead-rows"), base: fig(pgstore, "BenchmarkWritten/by-hand", "dead-rows")})

	for _, n := range []int{1, 8, 32} {
		versus("L1", at("Leased to the bare transaction", n), workers("BenchmarkLeased", n)+"/durable", 0.50)
	}
	for _, n := range []int{1, 8, 32} {
		versus("L1", at("Leased to a lease by hand", n), workers("BenchmarkLeased", n)+"/against-naive", 1.3)
	}
	for _, c := range []point{{1, 0}, {8, 0}, {32, 0.57}} {
		versus("L2", at("Leased with a relaxed claim to the bare transaction", c.n), workers("BenchmarkLeased", c.n)+"/relaxed", c.least)
	}
	for _, n := range []int{1, 8} {
		versus("L2", at("the same with a flush that takes 2 ms more", n), workers("BenchmarkSlow/flush", n)+"/relaxed", 0.92)
	}
	for _, n := range []int{1, 8, 32} {
		versus("R1", at("a replay to a SELECT by primary key", n), workers("BenchmarkReplay", n), 0.95)
	}
	wal("R1", "WAL of a replay", "replay", 0)
	add(goal{id: "R2", what: "a replay from memory", notBuilt: true})

	storm := func(what, metric string, atLeast, atMost float64) {
		g := goal{id: "S1", what: what, atLeast: atLeast, atMost: atMost, kind: windows, seen: fig(pgstore, "BenchmarkStorm", metric)}
		if atLeast != 0 {
			g.base = fig(pgstore, "BenchmarkStorm", "calm/s")
		}
		add(g)
	}
	storm("other commands during a storm of 64 equal keys, to calm", "x-calm", 0.95, 0)
	storm("runs of the handler for each storm", "runs/storm", 0, 1)
	for from, records := range claimRecords {
		for _, keys := range claimKeys {
			name, of := claimName(records, keys), fmt.Sprintf("%s records, UUID%s keys", thousands(float64(records)), keys)
			least := 0.95
			if keys == "v4" {
				least = 0.90
			}
			add(goal{id: "G1", what: "Atomic among " + of + ", to an empty table", atLeast: least, kind: sizes, seen: fig(pgstore, name, "x-bare"), base: fig(pgstore, name, "bare/s"), from: effort(from)})
			add(goal{id: "G1", what: "index for each key, " + of, atMost: 34, kind: sizes, seen: fig(pgstore, name, "index-B"), from: effort(from)})
		}
	}
	purge := func(what, metric string, atLeast, atMost float64) {
		add(goal{id: "T1", what: what, atLeast: atLeast, atMost: atMost, kind: purges, seen: fig(pgstore, "BenchmarkPurge", metric)})
	}
	purge("records purged under load", "rows/s", 80_000, 0)
	purge("commands meanwhile, to calm", "x-foreground", 0.95, 0)
	purge("their 99th percentile, to calm", "x-p99", 0, 1.5)

	lite := func(id, what, name, base string, atLeast float64) {
		add(goal{id: id, what: what, atLeast: atLeast, open: atLeast == 0, kind: inTurn, seen: fig(sqlitestore, name, "ratio"), base: fig(sqlitestore, name, base+"_ns/op")})
	}
	lite("Q1", "SQLite: Atomic to the bare transaction, 1 at once", "BenchmarkQ1_Atomic", "bare", 0.70)
	lite("Q1", "SQLite: Leased to the bare transaction, 1 at once", "BenchmarkL1_Leased", "bare", 0.50)
	lite("Q1", "SQLite: a replay to a SELECT by primary key", "BenchmarkReplay", "select", 0)
	add(goal{id: "Q1", what: "SQLite: group commit", notBuilt: true})

	consumer := func(metric string) figure { return fig("examples/consumer", "BenchmarkConsumer", metric) }
	add(goal{id: "C1", what: "a consumer's messages to those of one that inserts without protection", open: true, kind: messages, seen: consumer("x-bare"), base: consumer("bare/s")})

	observed := func(name, metric string) figure { return fig(telemetry, "BenchmarkRatio/"+name, metric) }
	add(goal{id: "M1", what: "telemetry without a provider, allocations", kind: rounds, seen: observed("off", "more-allocs")})
	add(goal{id: "M1", what: "telemetry without a provider, to an empty command without it", open: true, kind: rounds, seen: observed("off", "x-without"), base: observed("off", "without-ns")})
	add(goal{id: "M1", what: "the same, as time", open: true, kind: rounds, seen: observed("off", "more-ns")})
	add(goal{id: "M1", what: "telemetry with the SDK's meter, to an empty command without it", open: true, kind: rounds, seen: observed("metrics", "x-without"), base: observed("metrics", "without-ns")})
	add(goal{id: "M1", what: "the same, as time", open: true, kind: rounds, seen: observed("metrics", "more-ns")})

	cost := func(what string, seen, base figure) {
		add(goal{id: "E1", what: what, open: true, kind: timed, seen: seen, base: base})
	}
	cost("the log line, beside one of zap's with as many fields", fig(logs, "BenchmarkLogging/observer", "ns/op"), fig(logs, "BenchmarkLogging/plain-zap", "ns/op"))
	cost("the validation stage, beside validator alone", fig(validation, "BenchmarkStage/stage", "ns/op"), fig(validation, "BenchmarkStage/validator_alone", "ns/op"))
	cost("the idempotency stage over a store in memory, first run, beside no mark", fig(engine, "BenchmarkEngine/first", "ns/op"), fig(engine, "BenchmarkEngine/bare", "ns/op"))
	cost("the same, replay", fig(engine, "BenchmarkEngine/replay", "ns/op"), fig(engine, "BenchmarkEngine/bare", "ns/op"))
	for _, n := range sweepWorkers {
		name := sweepName(n)
		add(goal{id: "W1", what: at("Atomic commands", n), open: true, kind: sweeps, seen: fig(pgstore, name, "atomic/s"), base: fig(pgstore, name, "bare/s")})
	}
	return all
}

// sweepWorkers are the points of the curves.
var sweepWorkers = []int{1, 2, 4, 8, 16, 32, 64}

func sweepName(workers int) string { return "BenchmarkSweep/workers=" + strconv.Itoa(workers) }

// claimRecords are the sizes of the table that each effort adds, and claimKeys the keys in it.
var (
	claimRecords = []int{quick: 100_000, normal: 1_000_000, long: 10_000_000}
	claimKeys    = []string{"v7", "v4"}
)

func claimName(records int, keys string) string {
	return fmt.Sprintf("BenchmarkClaim/records=%d/keys=%s/ratio", records, keys)
}
