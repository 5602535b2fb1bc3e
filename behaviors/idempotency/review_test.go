package idempotency_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/memstore"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
)

func TestX07_OwnRecordCountsEvenWhenItHasExpiredBeforeItIsFound(t *testing.T) {
	t.Parallel()
	b := newBench()
	b.stub.complete = func(_ context.Context, _ int, complete func() error) error {
		err := complete()
		b.mem.Age(1000 * time.Hour) // a short retention, and an answer that was long in being found out
		return errors.Join(err, idempotency.ErrCommitUnknown)
	}
	res, out, err := call(t.Context(), b.pays(t), keyed(t, "key-00000001"), pay{Cart: "a"})
	if err != nil || res.Run != 1 || out.ReusedExpired {
		t.Errorf("%+v, %+v, %v", res, out, err)
	}
	wantState(t, out, requestctx.StateExecuted)
	b.want(t, 1, 1, 1)
}

func TestX06_CommitThatIsLostAtEveryTryIsTheStoresFault(t *testing.T) {
	t.Parallel()
	b := newBench()
	b.stub.Store = memstore.NewWithConfig(memstore.Config{NoHint: true, Share: b.mem})
	b.stub.complete = func(context.Context, int, func() error) error { return idempotency.ErrCommitUnknown }
	_, out, err := call(t.Context(), b.pays(t), keyed(t, "key-00000001"), pay{Cart: "a"})
	wantError[*idempotency.StoreError](t, err, out, requestctx.StateFreed)
	b.want(t, idempotency.MaxTries, 0, 0)
}

func TestReplaysOfACompletedKeyDoNotQueue_S1(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench()
		send, v := b.pays(t), keyed(t, "key-00000001")
		if _, _, err := call(t.Context(), send, v, pay{Cart: "a"}); err != nil {
			t.Fatal(err)
		}
		b.stub.look = func(ctx context.Context, c idempotency.Claim) (*idempotency.Record, error) {
			time.Sleep(20 * time.Millisecond) // a database at some distance
			return b.mem.Look(ctx, c)
		}
		start := time.Now()
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				_, out, err := call(t.Context(), send, v, pay{Cart: "a"})
				if err != nil || out.State != requestctx.StateReplayed {
					t.Errorf("%+v, %v", out, err)
				}
			})
		}
		wg.Wait()
		if d := time.Since(start); d != 20*time.Millisecond {
			t.Errorf("they took %v", d)
		}
		b.want(t, 1, 1, 1)
	})
}

func TestR24_RefusalBeforeAnyStatementIsNotDetachedWork(t *testing.T) {
	t.Parallel()
	b := newBench()
	send := serve(t, idempotency.Config{Store: b.stub}, func(context.Context, pay) (paid, error) { return paid{}, idempotency.Final(errPaper) })
	_, out, err := call(t.Context(), send, keyed(t, "key-00000001"), pay{})
	wantError[*idempotency.RefusedError](t, err, out, requestctx.StateExecuted)
	if out.Detached {
		t.Error("a refusal counts as work beside the transaction")
	}
}

func TestBR14_CommandOfAGoroutineThatHasOutlivedItsHandlerIsRefused(t *testing.T) {
	t.Parallel()
	b := newBench()
	engine, err := idempotency.New(idempotency.Config{Store: b.stub})
	if err != nil {
		t.Fatal(err)
	}
	var ran atomic.Int32
	inner := serveOn(t, engine, func(context.Context, hasty) (paid, error) { ran.Add(1); return paid{}, nil })
	ends := map[string]func() error{
		"success": func() error { return nil },
		"failure": func() error { return errPaper },
		"panic":   func() error { panic("jammed") },
	}
	for name, end := range ends {
		var late context.Context
		outer := serveOn(t, engine, func(ctx context.Context, _ pay) (paid, error) {
			late = context.WithoutCancel(ctx)
			return paid{}, end()
		})
		func() {
			defer func() { _ = recover() }()
			_, _, _ = call(t.Context(), outer, keyed(t, "key-"+name+"-1"), pay{})
		}()
		_, err := inner(late, hasty{})
		wantError[*idempotency.HandlerError](t, err, requestctx.From(late).Outcome(), requestctx.StateRefused)
	}
	if ran.Load() != 0 {
		t.Errorf("it ran %d times under a record that does not cover it", ran.Load())
	}
}

// basket is a command that a handler can change although it gets a copy.
type basket struct {
	Items []int `json:"items"`
}

func (basket) CommandName() bus.Name[[]int] { return "test.basket" }
func (basket) Idempotent()                  {}

func TestHandlerThatChangesItsCommandIsNotRunAgainOnAnotherPayload_L18(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(items []int)
		want   []int // nil: a fault
	}{
		"it leaves the command alone": {func([]int) {}, []int{3, 1}},
		"it sorts in place":           {slices.Sort[[]int], nil},
		"it doubles in place":         {func(items []int) { items[0] *= 2 }, nil},
	} {
		b := newBench()
		runs := 0
		send := serve(t, idempotency.Config{Store: b.stub}, func(_ context.Context, c basket) ([]int, error) {
			tc.change(c.Items)
			if runs++; runs == 1 {
				return nil, idempotency.ErrSerialization
			}
			return c.Items, nil
		})
		got, out, err := call(t.Context(), send, keyed(t, "key-00000001"), basket{[]int{3, 1}})
		if tc.want != nil {
			if err != nil || !slices.Equal(got, tc.want) {
				t.Errorf("%s: %v, %v", name, got, err)
			}
			continue
		}
		wantError[*idempotency.HandlerError](t, err, out, requestctx.StateFreed)
		if runs != 1 || len(b.mem.Records()) != 0 {
			t.Errorf("%s: %d runs, %d records", name, runs, len(b.mem.Records()))
		}
	}
}

func TestCallerThatHangsUpBetweenTwoTriesDoesNotEndTheWork_E50(t *testing.T) {
	t.Parallel()
	b := newBench()
	ctx, hangUp := context.WithCancel(t.Context())
	b.then = func(_ context.Context, run int) error {
		if run == 1 {
			hangUp()
			return idempotency.ErrSerialization
		}
		return nil
	}
	_, out, err := call(ctx, b.pays(t), keyed(t, "key-00000001"), pay{Cart: "a"})
	if err != nil {
		t.Error(err)
	}
	wantState(t, out, requestctx.StateExecuted)
	b.want(t, 2, 1, 1)
}

// endedStore is a store whose handler has ended its transaction.
type endedStore struct{ idempotency.Store }

type endedAttempt struct{ idempotency.Transaction }

func (s endedStore) Begin(ctx context.Context, c idempotency.Claim) (idempotency.Transaction, error) {
	a, err := s.Store.Begin(ctx, c)
	return endedAttempt{a}, err
}

func (endedAttempt) Ended() bool { return true }

func TestR23_HandlerThatEndedItsTransactionIsAFaultWhateverItReturns(t *testing.T) {
	t.Parallel()
	for _, err := range []error{errPaper, idempotency.Final(errPaper), idempotency.Unknown(errPaper), idempotency.ErrSerialization} {
		mem, runs := memstore.New(), 0
		send := serve(t, idempotency.Config{Store: endedStore{mem}}, func(context.Context, pay) (paid, error) { runs++; return paid{}, err })
		_, out, got := call(t.Context(), send, keyed(t, "key-00000001"), pay{})
		wantError[*idempotency.HandlerError](t, got, out, requestctx.StateUnknown)
		if !errors.Is(got, err) || runs != 1 || len(mem.Records()) != 0 {
			t.Errorf("%v: %v, %d runs, %d records", err, got, runs, len(mem.Records()))
		}
	}
}

func TestTextsOfARecordAreMadeStorable_BR36(t *testing.T) {
	t.Parallel()
	mem := memstore.New()
	send := serve(t, idempotency.Config{Store: mem}, func(ctx context.Context, _ pay) (paid, error) {
		requestctx.From(ctx).SetExternalRef("auth\x00\xff-1")
		return paid{}, nil
	})
	v := keyed(t, "key-00000001")
	v.ID = "request\x00\xff-1"
	if _, _, err := call(t.Context(), send, v, pay{}); err != nil {
		t.Fatal(err)
	}
	rec := mem.Records()[0]
	if rec.ExternalRef != "auth\uFFFD\uFFFD-1" || rec.OriginRequestID != "request\uFFFD\uFFFD-1" {
		t.Errorf("stored are %q and %q", rec.ExternalRef, rec.OriginRequestID)
	}
}

// money marshals by a method of its pointer.
type money struct{ cents int }

func (m *money) MarshalJSON() ([]byte, error)    { return json.Marshal(m.cents) }
func (m *money) UnmarshalJSON(data []byte) error { return json.Unmarshal(data, &m.cents) }

type (
	base     struct{ ID int }
	embedded struct{ *base }

	sum[R any] struct{}
)

func (sum[R]) CommandName() bus.Name[R] { return "test.sum" }
func (sum[R]) Idempotent()              {}

func replaysAs[R any](t *testing.T, value R) (first, second R) {
	t.Helper()
	send := serve(t, idempotency.Config{Store: memstore.New()}, func(context.Context, sum[R]) (R, error) { return value, nil })
	first, _, err := call(t.Context(), send, keyed(t, "key-00000001"), sum[R]{})
	if err != nil {
		t.Fatal(err)
	}
	second, _, err = call(t.Context(), send, keyed(t, "key-00000001"), sum[R]{})
	if err != nil {
		t.Fatal(err)
	}
	return first, second
}

func TestR18_ResultThatMarshalsByItsPointerIsStoredByItsMethod(t *testing.T) {
	t.Parallel()
	if first, second := replaysAs(t, money{42}); first.cents != 42 || second.cents != 42 {
		t.Errorf("%+v and %+v", first, second)
	}
	if first, second := replaysAs(t, [1]money{{42}}); first[0].cents != 42 || second != first {
		t.Errorf("%+v and %+v", first, second)
	}
	if first, second := replaysAs(t, map[string]*money{"a": {42}}); first["a"].cents != 42 || second["a"].cents != 42 {
		t.Errorf("%+v and %+v", first, second)
	}
}

func TestResultThatDoesNotComeBackAsItWentInIsRefused(t *testing.T) {
	t.Parallel()
	for want, check := range map[string]func() error{
		"marshaller on the pointer": func() error {
			_, err := stage[sum[map[string]money]](t, idempotency.Config{Store: memstore.New()})
			return err
		},
		"marshaller on the pointer, so": func() error { // the same type stands where it can be addressed as well
			_, err := stage[sum[struct {
				A money
				B map[string][1]money
			}]](t, idempotency.Config{Store: memstore.New()})
			return err
		},
		"embedded pointer to an unexported type": func() error {
			_, err := stage[sum[embedded]](t, idempotency.Config{Store: memstore.New()})
			return err
		},
	} {
		if err := check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q in: %v", want, err)
		}
	}
}
