package chaos

import (
	"fmt"
	"strings"
	"testing"
)

// scene is a history, the orders and the records of one key.
type scene struct {
	h []dispatch
	o []Order
	r []Record
}

// honest is a scene that nothing is wrong with: a dispatch that claims and does the work, one that is told its outcome, one with
// another payload, and one that was killed.
func honest() *scene {
	at := func(id int64, payload int, call, end int64, k kind) dispatch {
		return dispatch{ID: id, Key: "key-000001", Payload: payload, Call: call, Return: end, Kind: k}
	}
	s := &scene{
		h: []dispatch{at(1, 0, 10, 50, toldOrder), at(2, 0, 60, 70, toldOrder), at(3, 1, 20, 30, toldConflict), at(4, 0, 5, 0, toldUnknown)},
		o: []Order{{ID: "1.1", Key: "key-000001", Life: "monday"}},
		r: []Record{{Key: "key-000001", Life: "monday", Completed: true, Result: []byte(`{"order":"1.1"}`)}},
	}
	s.h[0].Claimed, s.h[0].Outcome = true, "1.1"
	s.h[1].Outcome, s.h[1].Replayed = "1.1", true
	return s
}

func TestJudgeFindsWhatIsWrongAndNothingElse(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(s *scene)
		in     string // the group; empty for "chaos.plain"

		twice, differ, untrue, cannot bool // what is to be found
	}{
		"nothing": {},
		"a killed dispatch may have made the order": {change: func(s *scene) {
			s.o[0].ID, s.r[0].Result, s.h[1].Outcome = "4.2", []byte(`{"order":"4.2"}`), "4.2"
			s.h[0].Kind, s.h[0].Outcome = toldNothing, ""
		}},
		"a claim that may have been committed late explains a conflict": {change: func(s *scene) {
			s.h = s.h[2:]
			s.h[1].Return, s.h[1].Kind, s.h[1].Doubtful = 15, toldNothing, true
			s.o, s.r = nil, nil
		}},
		"two lives have two orders": {in: "chaos.expiring", change: func(s *scene) {
			s.h[1].Outcome, s.h[1].Replayed = "2.1", false
			s.o = append(s.o, Order{ID: "2.1", Key: s.o[0].Key, Life: "tuesday"})
			s.r[0].Life, s.r[0].Result = "tuesday", []byte(`{"order":"2.1"}`)
		}},
		"one life has two orders": {in: "chaos.expiring", twice: true, change: func(s *scene) {
			s.h[1].Outcome, s.h[1].Replayed = "2.1", false
			s.o = append(s.o, Order{ID: "2.1", Key: s.o[0].Key, Life: "monday"})
		}},
		"a key has two orders": {twice: true, untrue: true, cannot: true, change: func(s *scene) {
			s.h[1].Outcome, s.h[1].Replayed = "2.1", false
			s.o = append(s.o, Order{ID: "2.1", Key: s.o[0].Key, Life: "monday"})
		}},
		"an order without a record": {differ: true, untrue: true, change: func(s *scene) {
			s.r = nil
		}},
		"a record without an order": {differ: true, untrue: true, change: func(s *scene) {
			s.o = nil
		}},
		"an order beside a record in progress": {differ: true, untrue: true, change: func(s *scene) {
			s.r[0].Completed = false
		}},
		"a record that names another order": {differ: true, untrue: true, cannot: true, change: func(s *scene) {
			s.r[0].Result = []byte(`{"order":"4.1"}`)
		}},
		"no rows": {in: "chaos.rowless", change: func(s *scene) {
			s.o = nil
		}},
		"no rows, and two outcomes": {in: "chaos.rowless", untrue: true, cannot: true, change: func(s *scene) {
			s.h[1].Outcome, s.h[1].Replayed = "2.1", false
			s.o = nil
		}},
		"an order of an earlier record": {differ: true, change: func(s *scene) {
			s.r[0].Life = "tuesday"
		}},
		"an order made where there was no record": {in: "chaos.expiring", differ: true, change: func(s *scene) {
			s.o[0].Life = ""
			s.r = nil
		}},
		"its maker was told that nothing was done": {untrue: true, cannot: true, change: func(s *scene) {
			s.h[0].Kind, s.h[0].Outcome = toldNothing, ""
		}},
		"a replay that says it is none": {untrue: true, change: func(s *scene) {
			s.h[1].Replayed = false
		}},
		"an order for another payload": {untrue: true, change: func(s *scene) {
			s.o[0].Payload = 1
		}},
		"an order that nobody has asked for": {untrue: true, change: func(s *scene) {
			s.o = append(s.o, Order{ID: "9.1", Key: "key-000009"})
		}},
		"a refusal, and an order": {untrue: true, cannot: true, change: func(s *scene) {
			s.h[1].Kind, s.h[1].Outcome, s.h[1].Replayed = toldRefusal, "2.1", false
		}},
		"a refusal is an outcome": {change: func(s *scene) {
			s.h[0].Kind, s.h[1].Kind = toldRefusal, toldRefusal
			s.r[0].Refused, s.r[0].Result = true, []byte(`{"code":"REFUSED","message":"1.1"}`)
			s.o = nil
		}},
		"an outcome before anybody was asked for it": {cannot: true, change: func(s *scene) {
			s.h[1].Call, s.h[1].Return = 1, 2
		}},
		"a conflict with nobody": {cannot: true, change: func(s *scene) {
			s.h[2].Call, s.h[2].Return = 1, 2
		}},
		"a claim of the other payload": {cannot: true, change: func(s *scene) {
			s.h[2].Kind, s.h[2].Claimed = toldNothing, true
		}},
		"an attempt of the other payload, in Atomic": {in: "chaos.atomic", change: func(s *scene) {
			s.h[2].Kind = toldNothing
		}},
		"a conflict with what was not yet done, in Atomic": {in: "chaos.atomic", cannot: true, change: func(s *scene) {
			s.h[2].Call, s.h[2].Return = 1, 9
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := honest()
			if c.change != nil {
				c.change(s)
			}
			group := "chaos.plain"
			if c.in != "" {
				group = c.in
			}
			for i := range s.h {
				s.h[i].Group = group
			}
			for i := range s.o {
				s.o[i].Group = group
			}
			for i := range s.r {
				s.r[i].Group = group
			}
			v := judge(groupOf(group), s.h, s.o, s.r, false)
			got := []bool{len(v.twice) > 0, len(v.differ) > 0, len(v.untrue) > 0, len(v.illegal) > 0}
			if want := []bool{c.twice, c.differ, c.untrue, c.cannot}; fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("twice, differ, untrue, illegal are %v, want %v:\n\t%s", got, want, strings.Join(v.examples(9), "\n\t"))
			}
		})
	}
}

func TestFencesMustRise(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		history []dispatch
		wrong   bool
	}{
		"one after the other":    {[]dispatch{{ID: 1, Call: 1, Return: 2, Fences: []int64{1}}, {ID: 2, Call: 3, Return: 4, Fences: []int64{2}}}, false},
		"crossed while together": {[]dispatch{{ID: 1, Call: 1, Return: 4, Fences: []int64{2}}, {ID: 2, Call: 3, Return: 5, Fences: []int64{1}}}, false},
		"given to two":           {[]dispatch{{ID: 1, Call: 1, Return: 4, Fences: []int64{1}}, {ID: 2, Call: 3, Return: 5, Fences: []int64{1}}}, true},
		"gone back":              {[]dispatch{{ID: 1, Call: 1, Return: 2, Fences: []int64{2}}, {ID: 2, Call: 3, Return: 4, Fences: []int64{1}}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := &run{history: c.history}
			if wrong := r.fences(); len(wrong) > 0 != c.wrong {
				t.Errorf("it found %q", wrong)
			}
		})
	}
}
