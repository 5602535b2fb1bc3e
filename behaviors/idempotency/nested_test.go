package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
)

// Commands that a handler sends, and the keys that are derived for them and for the outside world.

// item is a Leased child and entry an Atomic one.
type (
	item struct {
		Name string `json:"name"`
	}
	entry struct {
		Name string `json:"name"`
	}
)

func (item) CommandName() bus.Name[paid] { return "test.item" }
func (item) Idempotency() idempotency.Policy {
	return idempotency.Policy{Mode: idempotency.Leased, Wait: -1}
}
func (entry) CommandName() bus.Name[paid] { return "test.entry" }
func (entry) Idempotent()                 {}

// family is a Leased parent with children, on one engine. Each writes a row.
type family struct {
	*bench
	engine *idempotency.Engine
	parent bus.Handler[charge[hurried], paid]
	items  bus.Handler[item, paid]
	entry  bus.Handler[entry, paid]

	mu   sync.Mutex
	done []string // the children that have run
	// before and within are the parent's: before its business transaction, and when it is open.
	before, within func(ctx context.Context, run int) error
	// child is what a child does.
	child func(ctx context.Context, name string) error
}

func newFamily(t *testing.T) *family {
	f := &family{bench: newBench()}
	f.engine = newEngine(t, f.bench)
	f.items = serveOn(t, f.engine, func(ctx context.Context, c item) (paid, error) { return f.runs1(ctx, c.Name) })
	f.entry = serveOn(t, f.engine, func(ctx context.Context, c entry) (paid, error) { return f.runs1(ctx, c.Name) })
	f.first = func(ctx context.Context, run int) error {
		if f.before == nil {
			return nil
		}
		return f.before(ctx, run)
	}
	f.then = func(ctx context.Context, run int) error {
		if f.within == nil {
			return nil
		}
		return f.within(ctx, run)
	}
	f.parent = chargesOn[hurried](t, f.bench, f.engine)
	return f
}

// runs1 is the handler of a child.
func (f *family) runs1(ctx context.Context, name string) (paid, error) {
	f.mu.Lock()
	f.done = append(f.done, name)
	n := len(f.done)
	f.mu.Unlock()
	if f.child != nil {
		if err := f.child(ctx, name); err != nil {
			return paid{}, err
		}
	}
	return paid{name, n}, f.mem.InTx(ctx, func(ctx context.Context) error { return f.mem.Insert(ctx, name) })
}

// keys gives the keys of the records of a command, sorted.
func (f *family) keys(command string) (keys []string) {
	for _, r := range f.mem.Records() {
		if r.Scope.Operation == "POST /pay "+command {
			keys = append(keys, r.Scope.Key)
		}
	}
	slices.Sort(keys)
	return keys
}

func (f *family) wantDone(t *testing.T, want ...string) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	slices.Sort(f.done)
	if slices.Sort(want); !slices.Equal(f.done, want) {
		t.Errorf("the children that have run are %v, want %v", f.done, want)
	}
}

const (
	childKey      = "sveH7sCS2_oYvGH17AROmVlQwLyNAZ3UUFYt0oWp4hQ" // of test.item under the parent, without a label
	childKeyI1    = "qJLW1FFdk0SOMdgif1IrWbxl5bpcyj3kMM8RjxjPO5A" // with the label i-1
	requestKeyI1  = "A7hKTJZ_aSX2GZDNJvgqZ6ByxQ9ndau887Vr2u_hvxc" // with it, and sent by what is not marked
	downstreamPSP = "EDaRjjUIKuZwsizkiNYitR5td3JdMMYCoXtYPlPvDSc" // under the parent, for the label psp
	downstreamAny = "vM_oYwB3HGH-9PpyvsFi59XWlCYWVQAUF4Le72nB6t4" // without a label
)

func TestN03_ChildOfALeasedParentHasARecordOfItsOwnUnderADerivedKey_N10(t *testing.T) {
	t.Parallel()
	f := newFamily(t)
	f.before = func(ctx context.Context, _ int) error {
		res, err := f.items(ctx, item{"x"})
		if got := requestctx.From(ctx).Outcome(); got.State != requestctx.StateExecuted || res.Cart != "x" {
			t.Errorf("the child's outcome is %+v", got)
		}
		return err
	}
	v := keyed(t, "key-00000001")
	_, out, err := call(t.Context(), f.parent, v, charge[hurried]{Cart: "a"})
	if err != nil {
		t.Fatal(err)
	}
	wantState(t, out, requestctx.StateExecuted)
	if got := f.keys("test.item"); !slices.Equal(got, []string{childKey}) {
		t.Errorf("the child's keys are %v", got)
	}
	if _, err := requestctx.ParseKey(childKey); err != nil {
		t.Error(err)
	}
	f.want(t, 1, 2, 2)
}

func TestN03_ChildIsReplayedWhenItsParentRunsAgain(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]error{"after a failure": errPaper, "after a takeover": idempotency.Unknown(errPaper)} {
		f := newFamily(t)
		var results []paid
		f.before = func(ctx context.Context, run int) error {
			for _, send := range []func() (paid, error){
				func() (paid, error) { return f.items(ctx, item{"x"}) },
				func() (paid, error) { return f.entry(ctx, entry{"y"}) },
				func() (paid, error) { return f.items(idempotency.WithLabel(ctx, "z"), item{"z"}) },
			} {
				res, err := send()
				if err != nil {
					return err
				}
				results = append(results, res)
			}
			if run == 1 {
				return end
			}
			return nil
		}
		v := keyed(t, "key-00000001")
		if _, _, err := call(t.Context(), f.parent, v, charge[hurried]{Cart: "a"}); !errors.Is(err, errPaper) {
			t.Error(err)
		}
		f.mem.Age(idempotency.DefaultLease)
		if _, out, err := call(t.Context(), f.parent, v, charge[hurried]{Cart: "a"}); err != nil || out.Attempt != 2 {
			t.Error(out, err)
		}
		f.wantDone(t, "x", "y", "z")
		if !slices.Equal(results[:3], results[3:]) {
			t.Errorf("%s: the children gave %v", name, results)
		}
		f.want(t, 2, 4, 4)
	}
}

func TestN04_SameChildTwiceWithoutLabelsIsAFaultAndNoWrongReplay(t *testing.T) {
	t.Parallel()
	f := newFamily(t)
	var second error
	f.before = func(ctx context.Context, _ int) error {
		if _, err := f.items(ctx, item{"x"}); err != nil {
			return err
		}
		if _, err := f.entry(ctx, entry{"y"}); err != nil { // another command
			return err
		}
		if _, err := f.items(idempotency.WithLabel(ctx, "z"), item{"z"}); err != nil { // told apart
			return err
		}
		_, second = f.items(idempotency.WithLabel(ctx, ""), item{"x"}) // an empty label is none
		wantState(t, requestctx.From(ctx).Outcome(), requestctx.StateRefused)
		return second
	}
	_, out, err := call(t.Context(), f.parent, keyed(t, "key-00000001"), charge[hurried]{Cart: "a"})
	var fault *idempotency.HandlerError
	if !errors.As(second, &fault) || !errors.Is(second, idempotency.ErrChildLabelRequired) || !strings.Contains(second.Error(), "test.item") || !strings.Contains(second.Error(), "test.charge") {
		t.Errorf("the second one gets %v", second)
	}
	if err != second {
		t.Error(err)
	}
	wantState(t, out, requestctx.StateFreed)
	f.wantDone(t, "x", "y", "z")
}

func TestN04_ParentThatIsMadeAgainMaySendItsChildAgain_L18(t *testing.T) {
	t.Parallel()
	f := newFamily(t)
	f.before = func(ctx context.Context, _ int) error {
		_, err := f.items(ctx, item{"x"})
		return err
	}
	f.within = func(_ context.Context, run int) error {
		if run == 1 {
			return fmt.Errorf("insert: %w", idempotency.ErrSerialization)
		}
		return nil
	}
	if _, _, err := call(t.Context(), f.parent, keyed(t, "key-00000001"), charge[hurried]{Cart: "a"}); err != nil {
		t.Error(err)
	}
	f.wantDone(t, "x")
	f.want(t, 2, 2, 2)
}

func TestN01_N02_ChildrenInTheOpenTransactionOfALeasedParentRunUnderItsRecord_N15(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]error{"it commits": nil, "it fails": errPaper, "it refuses": idempotency.Final(errPaper)} {
		f := newFamily(t)
		f.within = func(ctx context.Context, _ int) error {
			for range 2 { // the same one twice, with the key of the request or another
				if _, err := f.entry(ctx, entry{"x"}); err != nil {
					return err
				}
				wantState(t, requestctx.From(ctx).Outcome(), requestctx.StateNested)
				if _, out, err := call(ctx, f.entry, keyed(t, "another-key-1"), entry{"y"}); err != nil || out.State != requestctx.StateNested {
					return err
				}
			}
			if _, err := f.entry(idempotency.WithLabel(ctx, "label"), entry{"z"}); err != nil {
				return err
			}
			if err := f.mem.InTx(ctx, func(ctx context.Context) error { // in the function as well as behind it
				_, err := f.entry(ctx, entry{"in"})
				return err
			}); err != nil {
				return err
			}
			return end
		}
		_, out, err := call(t.Context(), f.parent, keyed(t, "key-00000001"), charge[hurried]{Cart: "a"})
		if (err == nil) != (end == nil) {
			t.Errorf("%s: %v", name, err)
		}
		f.wantDone(t, "in", "x", "x", "y", "y", "z")
		f.wantCalls(t, map[string]string{"it commits": "lease run complete", "it fails": "lease run release", "it refuses": "lease run refuse"}[name])
		if end == nil {
			f.want(t, 1, 7, 1)
		} else {
			f.want(t, 1, 0, 1)
		}
		if out.State == requestctx.StateNested {
			t.Errorf("%s: the parent's outcome is %+v", name, out)
		}
	}
}

func TestN03_ChildAfterTheBusinessTransactionWasRolledBackHasARecordOfItsOwn(t *testing.T) {
	t.Parallel()
	f := newFamily(t)
	f.before = func(ctx context.Context, _ int) error {
		if err := f.mem.InTx(ctx, func(context.Context) error { return errPaper }); err != errPaper {
			t.Error(err)
		}
		_, err := f.items(ctx, item{"x"})
		return err
	}
	if _, _, err := call(t.Context(), f.parent, keyed(t, "key-00000001"), charge[hurried]{Cart: "a"}); err != nil {
		t.Error(err)
	}
	f.want(t, 1, 2, 2)
}

func TestN18_LeasedChildInsideAnOpenTransactionIsRefusedAndClaimsNothing(t *testing.T) {
	t.Parallel()
	wantRefused := func(ctx context.Context, parent string, err error) {
		var fault *idempotency.HandlerError
		if !errors.As(err, &fault) || !errors.Is(err, idempotency.ErrLeasedInsideAtomic) || !strings.Contains(err.Error(), "test.item") || !strings.Contains(err.Error(), parent) {
			t.Errorf("the child gets %v", err)
		}
		wantState(t, requestctx.From(ctx).Outcome(), requestctx.StateRefused)
	}
	f := newFamily(t)
	f.within = func(ctx context.Context, _ int) error {
		_, err := f.items(ctx, item{"x"})
		wantRefused(ctx, "test.charge", err)
		return err
	}
	_, out, err := call(t.Context(), f.parent, keyed(t, "key-00000001"), charge[hurried]{Cart: "a"})
	if !errors.Is(err, idempotency.ErrLeasedInsideAtomic) {
		t.Error(err)
	}
	wantState(t, out, requestctx.StateFreed)
	f.want(t, 1, 0, 1)

	f = newFamily(t)
	parent := serveOn(t, f.engine, func(ctx context.Context, c pay) (paid, error) {
		if err := f.mem.Insert(ctx, c.Cart); err != nil {
			return paid{}, err
		}
		res, err := f.items(ctx, item{"x"})
		wantRefused(ctx, "test.pay", err)
		return res, err
	})
	_, out, err = call(t.Context(), parent, keyed(t, "key-00000001"), pay{Cart: "a"})
	if !errors.Is(err, idempotency.ErrLeasedInsideAtomic) {
		t.Error(err)
	}
	wantState(t, out, requestctx.StateFreed)
	f.want(t, 0, 0, 0)
	f.wantDone(t)
}

// stroller is a command without the mark that sends marked ones.
func stroller(t *testing.T, walk func(ctx context.Context) error) bus.Handler[stroll, bus.None] {
	t.Helper()
	claimed := bus.Claim(func(ctx context.Context, _ stroll) (bus.None, error) { return bus.None{}, walk(ctx) }, nil)
	inv := bus.Invocation{Name: "test.stroll"}
	b, err := bus.New(bus.Serve(bus.Log(bus.Validate(claimed, inv, nil, nil), inv, nil, nil)))
	if err != nil {
		t.Fatal(err)
	}
	send, err := bus.Bind[stroll](b)
	if err != nil {
		t.Fatal(err)
	}
	return send
}

func TestN17_ChildOfACommandWithoutTheMarkUsesTheRequestsKey_N08(t *testing.T) {
	t.Parallel()
	f := newFamily(t)
	outer := stroller(t, func(ctx context.Context) error {
		if _, err := f.items(ctx, item{"x"}); err != nil {
			return err
		}
		_, err := f.entry(ctx, entry{"y"}) // one key, two commands: independent
		return err
	})
	for range 2 {
		if _, _, err := call(t.Context(), outer, keyed(t, "key-00000001"), stroll{}); err != nil {
			t.Error(err)
		}
	}
	if got := append(f.keys("test.item"), f.keys("test.entry")...); !slices.Equal(got, []string{"key-00000001", "key-00000001"}) {
		t.Errorf("the keys are %v", got)
	}
	f.wantDone(t, "x", "y")
}

func TestN12_ItemsOfABatchHaveKeysOfTheirOwnByTheirLabels_N10(t *testing.T) {
	t.Parallel()
	for name, marked := range map[string]bool{"in a command without the mark": false, "in a Leased command": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFamily(t)
			bad := true
			f.child = func(_ context.Context, name string) error {
				if bad && name == "i-2" {
					return errPaper
				}
				return nil
			}
			items := []string{"i-1", "i-2", "i-3"}
			walk := func(ctx context.Context) (failed error) {
				for _, id := range items {
					if _, err := f.items(idempotency.WithLabel(ctx, id), item{id}); err != nil {
						failed = err
					}
				}
				return failed
			}
			f.before = func(ctx context.Context, _ int) error { return walk(ctx) }
			send := func() error {
				if marked {
					_, _, err := call(t.Context(), f.parent, keyed(t, "key-00000001"), charge[hurried]{Cart: "a"})
					return err
				}
				_, _, err := call(t.Context(), stroller(t, walk), keyed(t, "key-00000001"), stroll{})
				return err
			}
			if err := send(); err != errPaper {
				t.Error(err)
			}
			bad = false
			items = []string{"i-3", "i-2", "i-1"} // the order says nothing
			if err := send(); err != nil {
				t.Error(err)
			}
			f.wantDone(t, "i-1", "i-2", "i-2", "i-3")
			got, want := f.keys("test.item"), requestKeyI1
			if marked {
				want = childKeyI1
			}
			if len(got) != 3 || !slices.Contains(got, want) || len(slices.Compact(slices.Clone(got))) != 3 {
				t.Errorf("the items' keys are %v", got)
			}
			for _, key := range got {
				if _, err := requestctx.ParseKey(key); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

func TestLabelWithoutAKeyMakesNone_pipe7(t *testing.T) {
	t.Parallel()
	f := newFamily(t)
	v := requestctx.Values{Scope: requestctx.Scope{Client: "c"}}
	outer := stroller(t, func(ctx context.Context) error {
		_, err := f.items(idempotency.WithLabel(ctx, "i-1"), item{"x"})
		return err
	})
	_, out, err := call(t.Context(), outer, v, stroll{})
	wantError[*idempotency.KeyMissingError](t, err, out, requestctx.StateRefused)
	f.wantCalls(t, "")
}

func TestLabelIsForTheNextMarkedCommandAlone(t *testing.T) {
	t.Parallel()
	f := newFamily(t)
	var again error
	f.child = func(ctx context.Context, name string) error {
		if name != "child" {
			return nil
		}
		if _, err := f.entry(ctx, entry{"grandchild"}); err != nil {
			return err
		}
		_, again = f.entry(ctx, entry{"another"})
		return nil
	}
	f.before = func(ctx context.Context, _ int) error {
		_, err := f.items(idempotency.WithLabel(ctx, "i-1"), item{"child"})
		return err
	}
	if _, _, err := call(t.Context(), f.parent, keyed(t, "key-00000001"), charge[hurried]{Cart: "a"}); err != nil {
		t.Error(err)
	}
	if !errors.Is(again, idempotency.ErrChildLabelRequired) {
		t.Errorf("the grandchild has inherited the label: %v", again)
	}
	f.wantDone(t, "child", "grandchild")

	// One without the mark passes it on.
	f = newFamily(t)
	between := stroller(t, func(ctx context.Context) error {
		_, err := f.items(ctx, item{"x"})
		return err
	})
	f.before = func(ctx context.Context, _ int) error {
		_, err := between(idempotency.WithLabel(ctx, "i-1"), stroll{})
		return err
	}
	if _, _, err := call(t.Context(), f.parent, keyed(t, "key-00000001"), charge[hurried]{Cart: "a"}); err != nil {
		t.Error(err)
	}
	if got := f.keys("test.item"); !slices.Equal(got, []string{childKeyI1}) {
		t.Errorf("the keys are %v", got)
	}
}

func TestChildrenMayBeSentFromManyGoroutines(t *testing.T) {
	t.Parallel()
	f := newFamily(t)
	var want []string
	for i := range 16 {
		want = append(want, fmt.Sprint("i-", i))
	}
	unlabelled := 0
	f.before = func(ctx context.Context, _ int) error {
		var wg sync.WaitGroup
		var mu sync.Mutex
		for _, id := range want {
			wg.Go(func() {
				if _, err := f.items(idempotency.WithLabel(ctx, id), item{id}); err != nil {
					t.Error(err)
				}
			})
			wg.Go(func() {
				_, err := f.entry(ctx, entry{"e"})
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					unlabelled++
				} else if !errors.Is(err, idempotency.ErrChildLabelRequired) {
					t.Error(err)
				}
			})
			wg.Go(func() {
				if key, err := idempotency.DownstreamKey(ctx, "psp"); err != nil || key != downstreamPSP {
					t.Error(key, err)
				}
			})
		}
		wg.Wait()
		return nil
	}
	if _, _, err := call(t.Context(), f.parent, keyed(t, "key-00000001"), charge[hurried]{Cart: "a"}); err != nil {
		t.Error(err)
	}
	f.wantDone(t, append(want, "e")...)
	if unlabelled != 1 {
		t.Errorf("%d of the children without a label ran", unlabelled)
	}
	f.want(t, 1, 18, 18)
}

func TestChildOfALeasedHandlerThatHasReturnedIsRefused_BR14(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func() error{"value": func() error { return nil }, "error": func() error { return errPaper }, "panic": func() error { panic(errPaper) }} {
		f := newFamily(t)
		var kept context.Context
		f.before = func(ctx context.Context, _ int) error { kept = ctx; return nil }
		f.within = func(context.Context, int) error { return end() }
		func() {
			defer func() { _ = recover() }()
			_, _, _ = call(t.Context(), f.parent, keyed(t, "key-00000001"), charge[hurried]{Cart: "a"})
		}()
		f.stub.calls()
		for what, send := range map[string]func() error{
			"Leased": func() error { _, err := f.items(kept, item{"x"}); return err },
			"Atomic": func() error { _, err := f.entry(kept, entry{"x"}); return err },
		} {
			if err := send(); !errors.As(err, new(*idempotency.HandlerError)) || !strings.Contains(err.Error(), "has returned") {
				t.Errorf("%s, %s: %v", name, what, err)
			}
		}
		if key, err := idempotency.DownstreamKey(kept, "psp"); key != "" || !errors.Is(err, idempotency.ErrNoIntent) {
			t.Errorf("%s: a downstream key %q, %v", name, key, err)
		}
		f.wantDone(t)
		f.wantCalls(t, "")
	}
}

func TestChildIsRefusedWhileTheLastRenewalOfItsReturnedParentIsUnderWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		engine := newEngine(t, b)
		child := serveOn(t, engine, func(context.Context, item) (paid, error) { t.Error("the child runs"); return paid{}, nil })
		var kept context.Context
		beating, release := make(chan struct{}), make(chan struct{})
		b.stub.renew = func(context.Context, int, func() error) error {
			close(beating)
			<-release // a renewal that cannot be cut short
			return errDown
		}
		b.alone = true
		b.first = func(ctx context.Context, _ int) error { kept = ctx; <-beating; return nil }
		owner := background(t.Context(), chargesOn[lasting](t, b, engine), keyed(t, "key-00000001"), charge[lasting]{Cart: "a"})
		<-beating
		synctest.Wait() // the handler has returned, and its end waits for the renewal
		if _, err := child(kept, item{"x"}); !errors.As(err, new(*idempotency.HandlerError)) || !strings.Contains(err.Error(), "has returned") {
			t.Errorf("the child gets %v", err)
		}
		close(release)
		if a := <-owner; a.err != nil {
			t.Error(a.err)
		}
	})
}

// What a child's end does to its parent.

func TestOutcomeOfAChildDecidesOnlyWhatItsParentMakesOfIt(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		child error
		state requestctx.State // the parent's
		rec   idempotency.RecordState
		again bool // the child runs again with the parent
	}{
		"the child fails":         {errPaper, requestctx.StateFreed, idempotency.Failed, true},
		"the child refuses":       {idempotency.Final(errPaper), requestctx.StateFreed, idempotency.Failed, false},
		"the child does not know": {idempotency.Unknown(errPaper), requestctx.StateUnknown, idempotency.InProgress, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFamily(t)
			f.child = func(context.Context, string) error { return tc.child }
			f.before = func(ctx context.Context, _ int) error {
				_, err := f.items(ctx, item{"x"})
				return err
			}
			v := keyed(t, "key-00000001")
			_, out, err := call(t.Context(), f.parent, v, charge[hurried]{Cart: "a"})
			if wantState(t, out, tc.state); err == nil {
				t.Error("the child's error is lost")
			}
			parent, getErr := f.mem.Find(t.Context(), idempotency.Search{Key: "key-00000001"}, 1)
			if getErr != nil || len(parent) != 1 || parent[0].State != tc.rec {
				t.Errorf("the parent's record is %+v, %v", parent, getErr)
			}
			f.mem.Age(idempotency.DefaultLease) // then both may be taken over
			_, _, second := call(t.Context(), f.parent, v, charge[hurried]{Cart: "a"})
			if (second == nil) || bus.CodeOf(second) != bus.CodeOf(err) {
				t.Errorf("the first time %v, the second %v", err, second)
			}
			if tc.again {
				f.wantDone(t, "x", "x")
			} else {
				f.wantDone(t, "x")
			}
		})
	}
}

func TestChildWhosePayloadChangesFromAttemptToAttemptIsAConflict_pipe9(t *testing.T) {
	t.Parallel()
	f := newFamily(t)
	f.before = func(ctx context.Context, run int) error {
		_, err := f.items(ctx, item{fmt.Sprint("drawn by lot: ", run)})
		if run == 1 {
			return errPaper
		}
		return err
	}
	v := keyed(t, "key-00000001")
	_, _, _ = call(t.Context(), f.parent, v, charge[hurried]{Cart: "a"})
	_, out, err := call(t.Context(), f.parent, v, charge[hurried]{Cart: "a"})
	if wantError[*idempotency.ConflictError](t, err, out, requestctx.StateFreed).Command != "test.item" {
		t.Error(err)
	}
	f.wantDone(t, "drawn by lot: 1")
}

func TestChildOfAParentThatHasLostItsLeaseClaimsNothing_L13(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		engine := newEngine(t, b)
		child := serveOn(t, engine, func(context.Context, item) (paid, error) { t.Error("the child runs"); return paid{}, nil })
		b.first = func(ctx context.Context, _ int) error {
			free(t, b)
			<-ctx.Done()
			_, err := child(ctx, item{"x"})
			if !errors.Is(err, idempotency.ErrLeaseLost) {
				t.Errorf("the child gets %v", err)
			}
			return err
		}
		_, out, err := call(t.Context(), chargesOn[lasting](t, b, engine), keyed(t, "key-00000001"), charge[lasting]{Cart: "a"})
		wantError[*idempotency.LeaseLostError](t, err, out, requestctx.StateLost)
		b.want(t, 1, 0, 1)
	})
}

// Keys for the outside world.

func TestGoldenVectorOfDownstreamKeys_rec11(t *testing.T) {
	t.Parallel()
	b := newBench()
	b.first = func(ctx context.Context, _ int) error {
		for label, want := range map[string]string{"psp": downstreamPSP, "": downstreamAny} {
			if got, err := idempotency.DownstreamKey(ctx, label); err != nil || got != want {
				t.Errorf("%q gives %s, %v; want %s", label, got, err, want)
			}
		}
		return nil
	}
	if _, _, err := call(t.Context(), charges[leased](t, b), keyed(t, "key-00000001"), charge[leased]{Cart: "a"}); err != nil {
		t.Error(err)
	}
	if len(downstreamPSP) != 43 || strings.Trim(downstreamPSP, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-") != "" {
		t.Error("a downstream key is not 43 characters of A-Z a-z 0-9 _ -")
	}
}

func TestDownstreamKeyIsThatOfTheIntentAndTheLabelAlone_rec11(t *testing.T) {
	t.Parallel()
	b := newBench()
	engine := newEngine(t, b)
	seen := map[string]string{}
	ask := func(ctx context.Context, what, label string) {
		key, err := idempotency.DownstreamKey(ctx, label)
		if err != nil {
			t.Error(what, err)
		}
		for other, k := range seen {
			if k == key && other != what {
				t.Errorf("%s and %s have the same key", what, other)
			}
		}
		if k, ok := seen[what]; ok && k != key {
			t.Errorf("%s has two keys", what)
		}
		seen[what] = key
	}
	name := ""
	send := serveOn(t, engine, func(ctx context.Context, c charge[leased]) (paid, error) {
		ask(ctx, name+" a", "a")
		ask(ctx, name+" b", "b")
		ask(ctx, name+" a", "a")
		ask(ctx, name+" child", "child")
		return paid{}, errPaper
	})
	other := serveOn(t, engine, func(ctx context.Context, _ item) (paid, error) {
		ask(ctx, "another command a", "a")
		return paid{}, nil
	})
	values := map[string]requestctx.Values{"first": keyed(t, "key-00000001"), "another key": keyed(t, "key-00000002")}
	v := values["first"]
	v.Scope.Tenant = "u"
	values["another tenant"] = v
	v = values["first"]
	v.Scope.Client = "d"
	values["another client"] = v
	v = values["first"]
	v.Source = "POST /other"
	values["another source"] = v
	for range 2 { // the second attempt, and a lost record
		for n, v := range values {
			name = n
			_, _, _ = call(t.Context(), send, v, charge[leased]{Cart: "a"})
		}
		if _, _, err := call(t.Context(), other, values["first"], item{"x"}); err != nil {
			t.Error(err)
		}
	}
	b.mem.Age(1000 * idempotency.DefaultRetention)
	if _, err := b.mem.Purge(t.Context(), idempotency.PurgeBatch{Limit: 100}); err != nil || len(b.mem.Records()) != 0 {
		t.Error(err)
	}
	name = "first"
	_, _, _ = call(t.Context(), send, values["first"], charge[leased]{Cart: "another payload"})
	if len(seen) != 3*len(values)+1 {
		t.Errorf("%d keys", len(seen))
	}
}

func TestDownstreamKeyWithoutAnIntentIsNotMadeUp_pipe7(t *testing.T) {
	t.Parallel()
	wantNone := func(ctx context.Context) {
		if key, err := idempotency.DownstreamKey(ctx, "psp"); key != "" || err != idempotency.ErrNoIntent {
			t.Errorf("%q, %v", key, err)
		}
		if g, ok := idempotency.Attempt(ctx); ok || g != (idempotency.Grant{}) {
			t.Error(g)
		}
	}
	wantNone(t.Context())
	ctx, _ := requestctx.New(t.Context(), keyed(t, "key-00000001"))
	wantNone(ctx)
	_, _, err := call(t.Context(), stroller(t, func(ctx context.Context) error { wantNone(ctx); return nil }), keyed(t, "key-00000001"), stroll{})
	if err != nil {
		t.Error(err)
	}
	b := newBench()
	// A command that runs without a key has no intent, also when it is tried as a Leased one's child is not.
	send := serve(t, idempotency.Config{Store: b.stub}, func(ctx context.Context, _ tip) (paid, error) { wantNone(ctx); return paid{}, nil })
	v := keyed(t, "key-00000001")
	v.Key = requestctx.Key{}
	if _, out, err := call(t.Context(), send, v, tip{}); err != nil || out.State != requestctx.StateUnprotected {
		t.Error(out, err)
	}
}

func TestAtomicHandlersAndNestedOnesHaveAnIntentToo(t *testing.T) {
	t.Parallel()
	b := newBench()
	engine := newEngine(t, b)
	want := func(ctx context.Context) {
		key, err := idempotency.DownstreamKey(ctx, "psp")
		g, ok := idempotency.Attempt(ctx)
		if err != nil || len(key) != 43 || !ok || g != (idempotency.Grant{Attempt: 1}) {
			t.Errorf("%q, %v, %+v", key, err, g)
		}
		b.stub.note(key)
	}
	inner := serveOn(t, engine, func(ctx context.Context, _ entry) (paid, error) { want(ctx); return paid{}, nil })
	outer := serveOn(t, engine, func(ctx context.Context, c pay) (paid, error) {
		want(ctx)
		if _, err := inner(ctx, entry{"x"}); err != nil {
			return paid{}, err
		}
		return paid{}, b.mem.Insert(ctx, c.Cart)
	})
	if _, _, err := call(t.Context(), outer, keyed(t, "key-00000001"), pay{Cart: "a"}); err != nil {
		t.Error(err)
	}
	log := strings.Fields(b.stub.calls())
	if len(log) != 4 || log[1] != log[2] { // one intent, one record, one key
		t.Errorf("the log is %v", log)
	}
}

func TestInnermostCommandIsTheOneThatKeysAreMadeFor_N05(t *testing.T) {
	t.Parallel()
	a, b := newBench(), newBench()
	var keys []string
	ask := func(ctx context.Context) {
		key, err := idempotency.DownstreamKey(ctx, "psp")
		if err != nil {
			t.Error(err)
		}
		keys = append(keys, key)
	}
	there := serveOn(t, newEngine(t, b), func(ctx context.Context, c item) (paid, error) { ask(ctx); return b.charge(ctx, c.Name) })
	a.first = func(ctx context.Context, _ int) error {
		ask(ctx)
		_, err := there(ctx, item{"there"}) // of another bus: its own record under the request's key
		ask(ctx)
		return err
	}
	v := keyed(t, "key-00000001")
	if _, _, err := call(t.Context(), charges[hurried](t, a), v, charge[hurried]{Cart: "a"}); err != nil {
		t.Error(err)
	}
	if len(keys) != 3 || keys[0] != keys[2] || keys[0] == keys[1] {
		t.Errorf("the keys are %v", keys)
	}
	a.want(t, 1, 1, 1)
	b.want(t, 1, 1, 1)
}
