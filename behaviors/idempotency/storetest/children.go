package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
)

// parcel is a Leased command that others send.
type parcel struct {
	Note string `json:"note"`
}

func (parcel) CommandName() bus.Name[placed]   { return "storetest.parcel" }
func (parcel) Idempotency() idempotency.Policy { return hurried{}.policy() }

// walk is a command without the mark that sends others.
type walk struct{}

func (walk) CommandName() bus.Name[bus.None] { return "storetest.walk" }

// family is commands that send one another: on one engine, as in one process.
type family struct {
	f       Fixture
	engine  *idempotency.Engine
	gifts   bus.Handler[gift, placed]   // Atomic
	parcels bus.Handler[parcel, placed] // Leased

	mu   sync.Mutex
	done []string                // the children that have run, by their notes
	fail func(note string) error // what a child does besides; nil means success
}

func newFamily(t testing.TB, f Fixture) *family {
	t.Helper()
	engine, err := idempotency.New(idempotency.Config{Store: f.Store})
	if err != nil {
		t.Fatal(err)
	}
	fam := &family{f: f, engine: engine}
	fam.gifts = serveOn(t, engine, func(ctx context.Context, g gift) (placed, error) { return fam.child(ctx, g.Note) })
	fam.parcels = serveOn(t, engine, func(ctx context.Context, p parcel) (placed, error) { return fam.child(ctx, p.Note) })
	return fam
}

// child writes a row in InTx, which every handler may use.
func (fam *family) child(ctx context.Context, note string) (placed, error) {
	fam.mu.Lock()
	fam.done = append(fam.done, note)
	n := len(fam.done)
	fam.mu.Unlock()
	if fam.fail != nil {
		if err := fam.fail(note); err != nil {
			return placed{}, err
		}
	}
	requestctx.From(ctx).SetExternalRef("of " + note)
	return placed{note, n}, fam.f.InTx(ctx, func(ctx context.Context) error { return fam.f.Insert(ctx, note) })
}

// wantDone compares which children have run, in any order.
func (fam *family) wantDone(t *testing.T, want ...string) {
	t.Helper()
	fam.mu.Lock()
	defer fam.mu.Unlock()
	got := slices.Sorted(slices.Values(fam.done))
	if slices.Sort(want); !slices.Equal(got, want) {
		t.Errorf("the children that have run are %q, want %q", got, want)
	}
}

// parent serves a Leased command that sends others.
func (fam *family) parent(t testing.TB, s *till) bus.Handler[charge[hurried], placed] {
	t.Helper()
	return serveOn(t, fam.engine, func(ctx context.Context, c charge[hurried]) (placed, error) { return s.charge(ctx, c.Note) })
}

// walker serves a command without the mark that sends others.
func (fam *family) walker(t testing.TB, walks func(ctx context.Context) error) bus.Handler[walk, bus.None] {
	t.Helper()
	return enter(t, bus.Claim(func(ctx context.Context, _ walk) (bus.None, error) { return bus.None{}, walks(ctx) }, nil), false)
}

// keyOf gives the key of the record that a child has, and demands that it has one and that its key may be one.
func (fam *family) keyOf(t *testing.T, v requestctx.Values, command, note string) string {
	t.Helper()
	operation := scopeOf(v, command).Operation
	found, err := fam.f.Store.Find(within(t), idempotency.Search{ExternalRef: "of " + note, Operation: &operation}, 10)
	if err != nil || len(found) != 1 {
		t.Fatalf("%s has %d records of %q (%v), want one", command, len(found), note, err)
	}
	rec := found[0]
	if rec.State != idempotency.Completed || rec.Scope.Client != v.Scope.Client || rec.Scope.Tenant != v.Scope.Tenant {
		t.Errorf("the record of a child is %s of %+v", show(&rec.Record), rec.Scope)
	}
	if _, err := requestctx.ParseKey(rec.Scope.Key); err != nil {
		t.Errorf("the key of a child is none: %v", err)
	}
	return rec.Scope.Key
}

// childCases are those of commands that are sent by the handlers of others, with a Leased one among them.
func childCases() []specCase {
	return []specCase{
		{"ChildrenInTheBusinessTransactionAreTheParentsWork_N01_N02_N11",
			"One intent, one record, one transaction: what the inner commands write comes and goes with the outer one, and no replay does it again.",
			func(t *testing.T, f Fixture) {
				fam := newFamily(t, f)
				s := &till{f: f, outside: asksOutside, within: func(ctx context.Context, run int) error {
					for i := range 2 { // the same command twice, without labels
						if _, err := fam.gifts(ctx, gift{Note: fmt.Sprint("gift ", i), Amount: run}); err != nil {
							return err
						}
						if state := requestctx.From(ctx).Outcome().State; state != requestctx.StateNested {
							t.Errorf("the outcome of an inner command is %q, want nested", state)
						}
					}
					return map[int]error{1: errPaper, 2: idempotency.Unknown(errPaper)}[run]
				}}
				send, v, cmd := fam.parent(t, s), request(t, "children-within-1"), charge[hurried]{Note: "order"}
				if r := call(within(t), send, v, cmd); r.err != errPaper || r.out.State != requestctx.StateFreed {
					t.Fatalf("the answer is %v with %+v, want the handler's own error", r.err, r.out)
				}
				wantDatabase(t, f, 1)
				failed[*idempotency.OutcomeUnknownError](t, call(within(t), send, v, cmd), requestctx.StateUnknown)
				wantDatabase(t, f, 1)
				f.Age(t, overdue)
				first := call(within(t), send, v, cmd)
				wantAttempt(t, first, 3, true)
				replayed(t, call(within(t), send, v, cmd), first)
				wantDatabase(t, f, 1, "order", "gift 0", "gift 1")
				fam.wantDone(t, "gift 0", "gift 0", "gift 0", "gift 1", "gift 1", "gift 1")
			}},
		{"ChildBeforeTheBusinessTransactionHasARecordOfItsOwn_N03_N10_BR12",
			"What a Leased handler sends before it writes is done once, however often the handler itself runs, and does not stand in its own way.",
			func(t *testing.T, f Fixture) {
				fam := newFamily(t, f)
				var results []placed
				s := &till{f: f, outside: func(ctx context.Context, run int) error {
					a, err := fam.gifts(ctx, gift{Note: "gift"})
					if err != nil {
						return err
					}
					b, err := fam.parcels(ctx, parcel{Note: "parcel"})
					if err != nil {
						return err
					}
					results = append(results, a, b)
					if state, want := requestctx.From(ctx).Outcome().State, map[bool]requestctx.State{true: requestctx.StateExecuted, false: requestctx.StateReplayed}[run == 1]; state != want {
						t.Errorf("run %d: the outcome of a child is %q, want %q", run, state, want)
					}
					return map[int]error{1: errPaper, 2: idempotency.Unknown(errPaper)}[run]
				}}
				send, v, cmd := fam.parent(t, s), request(t, "children-before-1"), charge[hurried]{Note: "order"}
				if r := call(within(t), send, v, cmd); r.err != errPaper || r.out.State != requestctx.StateFreed {
					t.Fatalf("the answer is %v with %+v, want the handler's own error", r.err, r.out)
				}
				wantDatabase(t, f, 3, "gift", "parcel")
				failed[*idempotency.OutcomeUnknownError](t, call(within(t), send, v, cmd), requestctx.StateUnknown)
				f.Age(t, overdue)
				first := call(within(t), send, v, cmd)
				wantAttempt(t, first, 3, true)
				replayed(t, call(within(t), send, v, cmd), first)
				fam.wantDone(t, "gift", "parcel")
				s.wantRuns(t, 3)
				if len(results) != 6 || !slices.Equal(results[:2], results[2:4]) || !slices.Equal(results[:2], results[4:]) {
					t.Errorf("the children gave %+v over three runs", results)
				}
				wantDatabase(t, f, 3, "order", "gift", "parcel")
				keys := []string{v.Key.String(), fam.keyOf(t, v, "storetest.gift", "gift"), fam.keyOf(t, v, "storetest.parcel", "parcel")}
				if slices.Sort(keys); len(slices.Compact(slices.Clone(keys))) != 3 || len(keys[0])+len(keys[1])+len(keys[2]) != len(v.Key.String())+2*43 {
					t.Errorf("the keys of parent and children are %q, want three, and those of the children of 43 characters", keys)
				}
			}},
		{"SameChildTwiceNeedsALabel_N04",
			"Without a label the second one would be answered as the first. That is found at the first try, and not by a customer.",
			func(t *testing.T, f Fixture) {
				fam := newFamily(t, f)
				labels := false
				label := func(ctx context.Context, l string) context.Context {
					if labels {
						return idempotency.WithLabel(ctx, l)
					}
					return ctx
				}
				s := &till{f: f, outside: func(ctx context.Context, _ int) error {
					if _, err := fam.gifts(label(ctx, "one"), gift{Note: "one"}); err != nil {
						return err
					}
					_, err := fam.gifts(label(ctx, "two"), gift{Note: "two"})
					return err
				}}
				send, v := fam.parent(t, s), request(t, "labels-1")
				r := call(within(t), send, v, charge[hurried]{Note: "order"})
				if e := failed[*idempotency.HandlerError](t, r, requestctx.StateFreed); !errors.Is(e, idempotency.ErrChildLabelRequired) {
					t.Errorf("the answer is %v, want ErrChildLabelRequired", e)
				}
				fam.wantDone(t, "one")
				wantDatabase(t, f, 2, "one")
				labels = true
				executed(t, call(within(t), send, request(t, "labels-2"), charge[hurried]{Note: "order"}))
				fam.wantDone(t, "one", "one", "two")
				wantDatabase(t, f, 5, "order", "one", "one", "two")
			}},
		{"ItemsOfABatchFailAlone_N07_N12",
			"The batch is sent again because one item has failed: that one runs, the others are answered as they were, and their order says nothing.",
			func(t *testing.T, f Fixture) {
				fam := newFamily(t, f)
				bad := true
				fam.fail = func(note string) error {
					if bad && strings.HasSuffix(note, "two") {
						return errPaper
					}
					return nil
				}
				items := []string{"one", "two", "three"}
				batch := func(ctx context.Context, prefix string) (first error) {
					for _, id := range items {
						if _, err := fam.parcels(idempotency.WithLabel(ctx, id), parcel{Note: prefix + id}); err != nil && first == nil {
							first = err
						}
					}
					return first
				}
				s := &till{f: f, alone: true, outside: func(ctx context.Context, _ int) error { return batch(ctx, "leased ") }}
				parent := fam.parent(t, s)
				plain := fam.walker(t, func(ctx context.Context) error { return batch(ctx, "plain ") })
				send := func(want error) {
					t.Helper()
					if r := call(within(t), parent, request(t, "batch-leased-1"), charge[hurried]{}); r.err != want {
						t.Errorf("the batch of a Leased command gives %v, want %v", r.err, want)
					}
					if r := call(within(t), plain, request(t, "batch-plain-1"), walk{}); r.err != want {
						t.Errorf("the batch of a command without the mark gives %v, want %v", r.err, want)
					}
				}
				send(errPaper)
				wantDatabase(t, f, 7, "leased one", "leased three", "plain one", "plain three")
				bad = false
				slices.Reverse(items)
				send(nil)
				send(nil)
				wantDatabase(t, f, 7, "leased one", "leased two", "leased three", "plain one", "plain two", "plain three")
				fam.wantDone(t, "leased one", "leased two", "leased two", "leased three", "plain one", "plain two", "plain two", "plain three")

				// Without labels a command without the mark has one key for all that it sends.
				twice := fam.walker(t, func(ctx context.Context) error {
					if _, err := fam.gifts(ctx, gift{Note: "one"}); err != nil {
						return err
					}
					_, err := fam.gifts(ctx, gift{Note: "two"})
					return err
				})
				failed[*idempotency.ConflictError](t, call(within(t), twice, request(t, "no-labels-1"), walk{}), requestctx.StateConflict)
			}},
		{"ChildOfACommandWithoutTheMarkUsesTheRequestsKey_N06_N08_N17",
			"A route that sends two marked commands has two operations under one key: each is done once, and they do not share a commit.",
			func(t *testing.T, f Fixture) {
				fam := newFamily(t, f)
				bad := true
				fam.fail = func(note string) error {
					if bad && note == "parcel" {
						return errPaper
					}
					return nil
				}
				send := fam.walker(t, func(ctx context.Context) error {
					if _, err := fam.gifts(ctx, gift{Note: "gift"}); err != nil {
						return err
					}
					_, err := fam.parcels(ctx, parcel{Note: "parcel"})
					return err
				})
				v := request(t, "walk-key-1")
				if r := call(within(t), send, v, walk{}); r.err != errPaper {
					t.Errorf("the answer is %v, want the child's error", r.err)
				}
				wantDatabase(t, f, 2, "gift")
				bad = false
				for range 2 {
					if r := call(within(t), send, v, walk{}); r.err != nil {
						t.Errorf("the answer is %v", r.err)
					}
				}
				fam.wantDone(t, "gift", "parcel", "parcel")
				wantDatabase(t, f, 2, "gift", "parcel")
				if a, b := fam.keyOf(t, v, "storetest.gift", "gift"), fam.keyOf(t, v, "storetest.parcel", "parcel"); a != v.Key.String() || b != a {
					t.Errorf("the keys of the children are %q and %q, want the request's", a, b)
				}
			}},
		{"LeasedChildInsideAnOpenTransactionIsRefused_N18",
			"Its claim would be committed beside the transaction that it is part of, and would outlive its rollback.",
			func(t *testing.T, f Fixture) {
				fam := newFamily(t, f)
				sends := func(ctx context.Context) error {
					_, err := fam.parcels(ctx, parcel{Note: "parcel"})
					if !errors.Is(err, idempotency.ErrLeasedInsideAtomic) || !strings.Contains(err.Error(), "storetest.parcel") {
						t.Errorf("the child gets %v, want ErrLeasedInsideAtomic", err)
					}
					return err
				}
				refused := func(parent string, r reply[placed]) {
					t.Helper()
					if e := failed[*idempotency.HandlerError](t, r, requestctx.StateFreed); !errors.Is(e, idempotency.ErrLeasedInsideAtomic) || !strings.Contains(e.Error(), parent) {
						t.Errorf("the answer is %v, want ErrLeasedInsideAtomic with the names of both", e)
					}
				}
				atomic := serveOn(t, fam.engine, func(ctx context.Context, o order[defaults]) (placed, error) {
					if err := f.Insert(ctx, o.Note); err != nil {
						return placed{}, err
					}
					return placed{}, sends(ctx)
				})
				refused("storetest.order", call(within(t), atomic, request(t, "inside-atomic-1"), order[defaults]{Note: "undone"}))
				wantDatabase(t, f, 0)
				s := &till{f: f, within: func(ctx context.Context, _ int) error { return sends(ctx) }}
				refused("storetest.charge", call(within(t), fam.parent(t, s), request(t, "inside-leased-1"), charge[hurried]{Note: "undone"}))
				wantDatabase(t, f, 1)
				fam.wantDone(t)
			}},
	}
}
