package memstore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/memstore"
	"github.com/tekil-go/tekil/behaviors/idempotency/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestStoreKeepsTheSpecification(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(*testing.T) storetest.Fixture {
		store := memstore.New()
		return storetest.Fixture{
			Store:   store,
			NoHint:  memstore.NewWithConfig(memstore.Config{NoHint: true, Share: store}),
			Insert:  store.Insert,
			InTx:    store.InTx,
			Rows:    func(testing.TB) []string { return store.Rows() },
			Records: func(testing.TB) int { return len(store.Records()) },
			Age:     func(_ testing.TB, d time.Duration) { store.Age(d) },
			Plant:   func(_ testing.TB, id idempotency.ID, rec idempotency.Record) { store.Put(id, rec) },
		}
	})
}

func claimOf(key string) idempotency.Claim {
	s := idempotency.Scope{Client: "client", Operation: "test.order", Key: key}
	return idempotency.Claim{ID: s.ID(), Scope: s, Retention: time.Hour}
}

func complete(t *testing.T, s *memstore.Store, key string) {
	t.Helper()
	a, err := s.Begin(t.Context(), claimOf(key))
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Complete(t.Context(), idempotency.Completion{Result: []byte(`1`)}); err != nil {
		t.Fatal(err)
	}
}

func expired(t *testing.T, s *memstore.Store, key string) bool {
	t.Helper()
	rec, err := s.Look(t.Context(), claimOf(key))
	if err != nil || rec == nil {
		t.Fatal(rec, err)
	}
	return rec.Expired
}

func TestClockIsTheBubbles(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		complete(t, s, "key-1")
		time.Sleep(time.Hour - time.Nanosecond) // the bubble's time
		if expired(t, s, "key-1") {
			t.Error("the record has expired too early")
		}
		time.Sleep(time.Nanosecond)
		if !expired(t, s, "key-1") {
			t.Error("the record has not expired")
		}
	})
}

func TestAgeMovesEveryRecord(t *testing.T) {
	t.Parallel()
	s := memstore.New()
	complete(t, s, "key-1")
	complete(t, s, "key-2")
	s.Age(2 * time.Hour)
	for _, key := range []string{"key-1", "key-2"} {
		if !expired(t, s, key) {
			t.Errorf("%s has not become older", key)
		}
	}
}

func TestRecordsThatAreGivenOutAreCopies(t *testing.T) {
	t.Parallel()
	s := memstore.New()
	complete(t, s, "key-1")
	for range 2 {
		records := s.Records()
		if len(records) != 1 || string(records[0].Result) != `1` {
			t.Fatalf("the records are %+v", records)
		}
		records[0].Result[0] = 'x'
		rec, err := s.Look(t.Context(), claimOf("key-1"))
		if err != nil {
			t.Fatal(err)
		}
		rec.Result[0] = 'y'
	}
	planted := idempotency.Record{Scope: claimOf("key-2").Scope, State: idempotency.Completed, Result: []byte(`2`)}
	s.Put(claimOf("key-2").ID, planted)
	planted.Result[0] = 'z'
	if rec, err := s.Look(t.Context(), claimOf("key-2")); err != nil || string(rec.Result) != `2` {
		t.Errorf("%+v, %v", rec, err)
	}
}

func TestStoresThatShareAreTwoProcessesOnOneDatabase_BR19(t *testing.T) {
	t.Parallel()
	a := memstore.New()
	b := memstore.NewWithConfig(memstore.Config{Share: a})
	complete(t, a, "key-1")
	if rec, err := b.Look(t.Context(), claimOf("key-1")); err != nil || rec == nil {
		t.Errorf("%+v, %v", rec, err)
	}
	at, err := a.Begin(t.Context(), claimOf("key-2"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Begin(t.Context(), claimOf("key-2")); !errors.Is(err, idempotency.ErrBusy) {
		t.Errorf("the other process is told %v", err)
	}
	if err := b.Insert(at.Context(t.Context()), "of a's attempt"); err != nil {
		t.Error(err)
	}
	at.Rollback(t.Context())
	if err := b.Insert(t.Context(), "direct"); err != nil || !slices.Equal(a.Rows(), []string{"direct"}) {
		t.Errorf("%v, %v", a.Rows(), err)
	}
	if other := memstore.New(); len(other.Records()) != 0 {
		t.Error("a store that shares nothing has records")
	}
}

func TestCompletionWhoseContextHasEndedLeavesNothing(t *testing.T) {
	t.Parallel()
	s := memstore.New()
	at, err := s.Begin(t.Context(), claimOf("key-1"))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Insert(at.Context(t.Context()), "row"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := at.Complete(ctx, idempotency.Completion{}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := at.Complete(t.Context(), idempotency.Completion{}); err == nil {
		t.Error("an attempt that has ended is completed")
	}
	if len(s.Rows())+len(s.Records()) != 0 {
		t.Error(s.Rows(), s.Records())
	}
	complete(t, s, "key-1")
}

func ExampleNew() {
	store := memstore.New()
	ctx := context.Background()
	scope := idempotency.Scope{Client: "shop", Operation: "orders.place", Key: "draft-4711"}
	attempt, err := store.Begin(ctx, idempotency.Claim{ID: scope.ID(), Scope: scope, Retention: time.Hour})
	if err != nil {
		panic(err)
	}
	if err := store.Insert(attempt.Context(ctx), "an order"); err != nil { // what a handler does
		panic(err)
	}
	fmt.Println(store.Rows(), len(store.Records()))
	if err := attempt.Complete(ctx, idempotency.Completion{Result: []byte(`{"id":1}`)}); err != nil {
		panic(err)
	}
	fmt.Println(store.Rows(), len(store.Records()))
	// Output:
	// [] 0
	// [an order] 1
}

func ExampleNewWithConfig() {
	here := memstore.New()
	elsewhere := memstore.NewWithConfig(memstore.Config{Share: here}) // a second process on the same database
	if err := here.Insert(context.Background(), "an order"); err != nil {
		panic(err)
	}
	fmt.Println(elsewhere.Rows())
	// Output: [an order]
}
