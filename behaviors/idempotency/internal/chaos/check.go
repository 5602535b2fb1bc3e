package chaos

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// verdict is what the checks have found in a group.
type verdict struct {
	group                                      string
	dispatches, orders, takeovers, stale, keys int

	twice   []string // lives of keys with two orders or more (the first of E60's invariants)
	differ  []string // records and orders that do not say the same (the second)
	untrue  []string // what callers were told and is not so
	illegal []string // keys whose history no set-once register could have
}

func (v *verdict) guilty() bool { return len(v.twice) > 0 && len(v.illegal) > 0 }

func (v *verdict) String() string {
	return fmt.Sprintf("%-17s %5d dispatches, %3d keys, %4d orders, %4d takeovers, %3d stale attempts refused; "+
		"keys with two orders %d, records that differ %d, untrue answers %d, histories that cannot be %d",
		v.group, v.dispatches, v.keys, v.orders, v.takeovers, v.stale, len(v.twice), len(v.differ), len(v.untrue), len(v.illegal))
}

// examples gives at most so many findings of each kind.
func (v *verdict) examples(most int) (all []string) {
	for _, kind := range [][]string{v.twice, v.differ, v.untrue, v.illegal} {
		all = append(all, kind[:min(len(kind), most)]...)
	}
	return all
}

// verdict reads the database and judges a group. Nothing must be under way.
func (r *run) verdict(g *group) *verdict {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	orders, err := r.site.Orders(ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	records, err := r.site.Records(ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	return judge(g, r.history, orders, records, r.site.Crash != nil)
}

// evidence is what is known of a group.
type evidence struct {
	*verdict
	g       *group
	made    map[int64]*dispatch
	orders  map[string][]Order // of a key
	records map[string]Record  // of a key
	crashed bool
}

func judge(g *group, history []dispatch, orders []Order, records []Record, crashed bool) *verdict {
	e := evidence{verdict: &verdict{group: g.name}, g: g, crashed: crashed,
		made: make(map[int64]*dispatch), orders: make(map[string][]Order), records: make(map[string]Record)}
	ofKey := make(map[string][]*dispatch)
	for i := range history {
		if d := &history[i]; d.Group == g.name {
			e.made[d.ID] = d
			e.dispatches++
			e.takeovers += d.TookOver
			e.stale += d.Stale
			ofKey[d.Key] = append(ofKey[d.Key], d)
		}
	}
	for _, o := range orders {
		if o.Group == g.name {
			e.verdict.orders++
			e.orders[o.Key] = append(e.orders[o.Key], o)
			if _, known := ofKey[o.Key]; !known {
				e.untrue = append(e.untrue, fmt.Sprintf("%v: nobody has asked for it", o))
			}
		}
	}
	for _, rec := range records {
		if rec.Group == g.name {
			e.records[rec.Key] = rec
		}
	}
	e.keys = len(ofKey)
	for _, key := range slices.Sorted(maps.Keys(ofKey)) {
		e.rows(key)
		for _, d := range ofKey[key] {
			e.answer(d)
		}
		if !g.forgets {
			e.linear(key, ofKey[key])
		}
	}
	return e.verdict
}

// rows compares the orders of a key with its record.
func (e *evidence) rows(key string) {
	rec, there := e.records[key]
	lives := make(map[string][]Order)
	for _, o := range e.orders[key] {
		life := ""
		if e.g.forgets {
			life = o.Life
		}
		lives[life] = append(lives[life], o)
		switch {
		case e.g.atomic: // its record is written after it
		case o.Life == "":
			e.differ = append(e.differ, fmt.Sprintf("%v: made where there was no record", o))
		case !e.g.forgets && o.Life != rec.Life:
			e.differ = append(e.differ, fmt.Sprintf("%v: its record is gone, there is %v", o, rec))
		}
		switch d := e.made[maker(o.ID)]; {
		case d == nil || d.Key != key || d.Payload != o.Payload:
			e.untrue = append(e.untrue, fmt.Sprintf("%v: nobody has asked for it", o))
		case !e.mayHave(d, o.ID):
			e.untrue = append(e.untrue, fmt.Sprintf("%v: who made it was told something else: %v", o, *d))
		}
	}
	for _, same := range lives {
		if len(same) > 1 {
			e.twice = append(e.twice, fmt.Sprintf("%v", same))
		}
	}
	present := lives[""]
	if e.g.forgets {
		present = lives[rec.Life]
	}
	switch succeeded := there && rec.Completed && !rec.Refused && !e.g.rowless; {
	case succeeded != (len(present) > 0):
		e.differ = append(e.differ, fmt.Sprintf("%s: the record is %v, the orders are %v", key, rec, present))
	case succeeded && rec.Result != nil && outcomeOf(rec) != present[0].ID:
		e.differ = append(e.differ, fmt.Sprintf("%s: the record is %v, the orders are %v", key, rec, present))
	}
}

// answer compares what a caller was told with what is there.
func (e *evidence) answer(d *dispatch) {
	wrong := func(format string, args ...any) {
		e.untrue = append(e.untrue, fmt.Sprintf(format, args...)+fmt.Sprintf(": %v", *d))
	}
	if d.Kind != toldOrder && d.Kind != toldRefusal {
		return
	}
	at := slices.IndexFunc(e.orders[d.Key], func(o Order) bool { return o.ID == d.Outcome && o.Payload == d.Payload })
	switch {
	case d.Kind == toldOrder && at < 0 && !e.g.rowless:
		wrong("it was told an order that does not exist")
	case d.Kind == toldRefusal && at >= 0:
		wrong("it was told a refusal, and there is an order")
	}
	rec := e.records[d.Key]
	same := rec.Completed && rec.Refused == (d.Kind == toldRefusal) && (rec.Result == nil || outcomeOf(rec) == d.Outcome)
	if !same && !e.g.forgets {
		wrong("the record is %v", rec)
	}
	if d.Replayed != (maker(d.Outcome) != d.ID) {
		wrong("it was told wrongly whose outcome it got")
	}
	if by := e.made[maker(d.Outcome)]; by == nil || !e.mayHave(by, d.Outcome) {
		wrong("who made its outcome was told something else")
	}
}

// mayHave reports whether what the dispatch was told lets it be the maker of an outcome.
func (e *evidence) mayHave(d *dispatch, made string) bool {
	switch {
	case d.Outcome == made, d.Kind == toldUnknown:
		return true
	case !d.Unsure:
		return false
	}
	// It did not hear of its COMMIT and looked at the record, which by then was a tombstone, or had expired and was gone. That
	// takes a retention that is shorter than a look.
	return d.Kind == toldExpired || e.g.forgets
}

// outcomeOf gives the id in a record's result.
func outcomeOf(rec Record) string {
	var result struct {
		Order   string `json:"order"`
		Message string `json:"message"` // of a refusal
	}
	if err := json.Unmarshal(rec.Result, &result); err != nil {
		return err.Error()
	}
	return result.Order + result.Message
}

// The model of a key that does not expire: a register that is bound to a payload, by the first claim, and gets an outcome, once.
// Binding and outcome of one dispatch are two operations, because others may come between them.
type (
	register struct {
		bound   bool
		payload int
		outcome string
	}
	operation struct {
		what    what
		payload int
		outcome string
	}
	what int
)

const (
	binds     what = iota // it held the key
	mayBind               // a claim of it was, or may have been, committed, at any time from its call on
	sets                  // it has made the outcome
	setsFree              // the same where nothing binds but the outcome
	reads                 // it was told the outcome of another
	conflicts             // it was told that the key belongs to the other payload
)

var model = porcupine.Model{
	Init: func() any { return register{} },
	Step: func(state, input, _ any) (bool, any) {
		s, op := state.(register), input.(operation)
		mine := s.bound && s.payload == op.payload
		switch op.what {
		case binds, mayBind:
			if !s.bound {
				return true, register{bound: true, payload: op.payload}
			}
			return mine || op.what == mayBind, s
		case sets, setsFree:
			free := mine || op.what == setsFree && !s.bound
			return free && s.outcome == "", register{true, op.payload, op.outcome}
		case reads:
			return mine && s.outcome == op.outcome, s
		}
		return s.bound && !mine, s
	},
	DescribeOperation: func(input, _ any) string { return fmt.Sprintf("%+v", input) },
}

// forever is the end of an operation that may take effect at any time after its call.
const forever = math.MaxInt64

// operations turns the dispatches of a key into the model's. What nobody has seen, and what says nothing, is left out.
func (e *evidence) operations(key string, of []*dispatch) (ops []porcupine.Operation) {
	seen := make(map[int64]string) // the outcomes that somebody has seen, by their makers
	for _, o := range e.orders[key] {
		seen[maker(o.ID)] = o.ID
	}
	if rec := e.records[key]; rec.Completed && rec.Result != nil {
		seen[maker(outcomeOf(rec))] = outcomeOf(rec)
	}
	for _, d := range of {
		if d.Outcome != "" {
			seen[maker(d.Outcome)] = d.Outcome
		}
	}
	binding := !e.g.atomic && !(e.g.relaxed && e.crashed)
	set := sets
	if !binding {
		set = setsFree
	}
	add := func(d *dispatch, w what, outcome string, until int64) {
		ops = append(ops, porcupine.Operation{Input: operation{w, d.Payload, outcome}, Call: d.Call, Return: until})
	}
	doubts := make(map[int]*dispatch) // the first of each payload that may have bound: what a later one explains, it explains
	for _, d := range of {
		switch {
		case d.Claimed && binding:
			add(d, binds, "", d.Return)
		case d.Doubtful || d.Return == 0:
			if first := doubts[d.Payload]; binding && (first == nil || d.Call < first.Call) {
				doubts[d.Payload] = d
			}
		}
		switch {
		case (d.Kind == toldUnknown || d.Kind == toldExpired) && seen[d.ID] != "":
			add(d, set, seen[d.ID], forever)
		case d.Kind == toldConflict && !(e.g.relaxed && e.crashed):
			add(d, conflicts, "", d.Return)
		case d.Kind != toldOrder && d.Kind != toldRefusal:
		case maker(d.Outcome) == d.ID:
			add(d, set, d.Outcome, d.Return)
		default:
			add(d, reads, d.Outcome, d.Return)
		}
	}
	for _, d := range doubts {
		add(d, mayBind, "", forever)
	}
	return ops
}

// linear asks whether there is an order of the dispatches of a key in which they make sense.
func (e *evidence) linear(key string, of []*dispatch) {
	ops := e.operations(key, of)
	const patience = 20 * time.Second
	result := porcupine.CheckOperationsTimeout(model, ops, patience)
	if result == porcupine.Ok {
		return
	}
	slices.SortFunc(ops, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
	var lines strings.Builder
	for i, op := range ops {
		if i == 40 {
			fmt.Fprintf(&lines, "\n\t\t… and %d more", len(ops)-i)
			break
		}
		end := "…"
		if op.Return != forever {
			end = fmt.Sprintf("%.3f", float64(op.Return-ops[0].Call)/1e6)
		}
		fmt.Fprintf(&lines, "\n\t\t%9.3f to %9s ms: %v", float64(op.Call-ops[0].Call)/1e6, end, op.Input)
	}
	e.illegal = append(e.illegal, fmt.Sprintf("%s: porcupine says %s of%s", key, result, lines.String()))
}

func (o operation) String() string {
	words := [...]string{"binds", "may bind", "sets", "sets", "reads", "conflicts with another than"}
	return fmt.Sprintf("%s %d %s", words[o.what], o.payload, o.outcome)
}

// fences checks that each grant had a larger one than all that were told before it was asked for.
func (r *run) fences() (wrong []string) {
	var of []*dispatch
	for i := range r.history {
		if d := &r.history[i]; len(d.Fences) > 0 {
			of = append(of, d)
		}
	}
	byCall, byReturn := slices.Clone(of), of
	slices.SortFunc(byCall, func(a, b *dispatch) int { return cmp.Compare(a.Call, b.Call) })
	slices.SortFunc(byReturn, func(a, b *dispatch) int { return cmp.Compare(a.Return, b.Return) })
	largest, i := int64(0), 0
	owner := make(map[int64]int64)
	for _, d := range byCall {
		for ; i < len(byReturn) && byReturn[i].Return < d.Call; i++ {
			largest = max(largest, slices.Max(byReturn[i].Fences))
		}
		for _, f := range d.Fences {
			if other, taken := owner[f]; taken && other != d.ID {
				wrong = append(wrong, fmt.Sprintf("the dispatches %d and %d were both given the fence %d", other, d.ID, f))
			}
			owner[f] = d.ID
			if f <= largest {
				wrong = append(wrong, fmt.Sprintf("the dispatch %d was given the fence %d, after %d had been given", d.ID, f, largest))
			}
		}
	}
	return wrong
}
