package memstore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/memstore"
)

// leasedClaim is a claim of the attempt by, whose lease is of one minute.
func leasedClaim(key string, by byte) idempotency.Claim {
	c := claimOf(key)
	c.Attempt[0] = by
	c.Lease, c.MaxAttempts = time.Minute, 10
	return c
}

func lease(t *testing.T, s *memstore.Store, c idempotency.Claim) idempotency.Lease {
	t.Helper()
	l, rec, err := s.Lease(t.Context(), c)
	if err != nil || l == nil {
		t.Fatalf("the key is not given: %+v, %v", rec, err)
	}
	return l
}

func find(t *testing.T, s *memstore.Store, key string) idempotency.Stored {
	t.Helper()
	found, err := s.Find(t.Context(), idempotency.Search{Key: key}, 2)
	if err != nil || len(found) != 1 {
		t.Fatalf("the records of %s are %+v, %v", key, found, err)
	}
	return found[0]
}

func insertInTx(ctx context.Context, s *memstore.Store, note string) error {
	return s.InTx(ctx, func(ctx context.Context) error { return s.Insert(ctx, note) })
}

func TestLeaseRunsByTheClockOfTheBubble_L06(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		first := lease(t, s, leasedClaim("key-1", 1))
		left := func() time.Duration {
			rec, err := s.Look(t.Context(), claimOf("key-1"))
			if err != nil || rec == nil {
				t.Fatal(rec, err)
			}
			return rec.LeaseLeft
		}
		time.Sleep(40 * time.Second)
		if left() != 20*time.Second {
			t.Errorf("%v of the lease are left after 40 seconds of a minute", left())
		}
		if err := first.Renew(t.Context()); err != nil || left() != time.Minute {
			t.Errorf("after a renewal %v of the lease are left: %v", left(), err)
		}
		time.Sleep(time.Minute - time.Nanosecond)
		if l, rec, err := s.Lease(t.Context(), leasedClaim("key-1", 2)); l != nil || rec == nil || err != nil {
			t.Errorf("a lease that lives is taken: %+v, %v", rec, err)
		}
		time.Sleep(time.Nanosecond)
		if g := lease(t, s, leasedClaim("key-1", 2)).Grant(); !g.TookOver || g.Attempt != 2 {
			t.Errorf("the grant is %+v", g)
		}
		if err := first.Renew(t.Context()); !errors.Is(err, idempotency.ErrLeaseLost) {
			t.Error(err)
		}
	})
}

func TestPutPlacesRecordsAsTheyAre(t *testing.T) {
	t.Parallel()
	s := memstore.New()
	for key, want := range map[string]idempotency.Record{
		"live": {State: idempotency.InProgress, LeaseLeft: time.Hour, Attempts: 3, Fence: 7},
		"dead": {State: idempotency.InProgress, Attempts: 1, Fence: 1},
	} {
		rec := want
		rec.Scope = claimOf(key).Scope
		if key == "dead" {
			rec.Attempts, rec.Fence = 0, 0
		}
		s.Put(claimOf(key).ID, rec)
		got := find(t, s, key)
		if got.Attempts != want.Attempts || got.Fence != want.Fence {
			t.Errorf("%s: %d attempts and the fence %d", key, got.Attempts, got.Fence)
		}
		if got.LeaseLeft > want.LeaseLeft || got.LeaseLeft < want.LeaseLeft-time.Minute {
			t.Errorf("%s: %v of the lease are left", key, got.LeaseLeft)
		}
	}
	if g := lease(t, s, leasedClaim("dead", 1)).Grant(); g.Attempt != 2 || g.Fence <= 1 || !g.TookOver {
		t.Errorf("the grant over a record whose lease is over is %+v", g)
	}
	if l, _, err := s.Lease(t.Context(), leasedClaim("live", 1)); l != nil || err != nil {
		t.Errorf("a lease that lives is taken: %v", err)
	}
}

func TestAgeMovesAllTimes(t *testing.T) {
	t.Parallel()
	s := memstore.New()
	if err := lease(t, s, leasedClaim("key-1", 1)).Complete(t.Context(), idempotency.Completion{Result: []byte(`1`)}); err != nil {
		t.Fatal(err)
	}
	complete(t, s, "key-2")
	before := find(t, s, "key-1")
	s.Age(time.Hour)
	after := find(t, s, "key-1")
	for name, d := range map[string]time.Duration{
		"creation": before.CreatedAt.Sub(after.CreatedAt), "completion": before.CompletedAt.Sub(after.CompletedAt),
		"expiry": before.ExpiresAt.Sub(after.ExpiresAt), "lease": before.LeaseUntil.Sub(after.LeaseUntil),
	} {
		if d != time.Hour {
			t.Errorf("the %s has moved by %v", name, d)
		}
	}
	if never := find(t, s, "key-2"); !never.LeaseUntil.IsZero() {
		t.Errorf("a record that never had a lease has one until %v", never.LeaseUntil)
	}
}

func TestBusinessTransactionOfOneProcessHoldsTheRecordForAnother_L11(t *testing.T) {
	t.Parallel()
	here := memstore.New()
	there := memstore.NewWithConfig(memstore.Config{Share: here})
	owner := leasedClaim("key-1", 1)
	owner.Retention = 2 * time.Minute
	l, twin := lease(t, here, owner), lease(t, there, owner)
	here.Age(time.Hour)
	if err := insertInTx(l.Context(t.Context()), there, "of the other process's store"); err != nil { // the database is the same
		t.Fatal(err)
	}
	busy := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, idempotency.ErrBusy) {
			t.Errorf("%s says %v, want ErrBusy", what, err)
		}
	}
	_, _, err := there.Lease(t.Context(), leasedClaim("key-1", 2))
	busy("Lease", err)
	_, err = there.Free(t.Context(), owner.ID, owner.Attempt)
	busy("Free", err)
	busy("InTx of the same attempt elsewhere", insertInTx(twin.Context(t.Context()), there, "late"))
	busy("Renew of the same attempt elsewhere", twin.Renew(t.Context()))
	busy("Complete of the same attempt elsewhere", twin.Complete(t.Context(), idempotency.Completion{}))
	if done, err := there.Purge(t.Context(), idempotency.PurgeBatch{Limit: 10}); err != nil || done.Removed != 0 {
		t.Errorf("a record that is held was purged: %+v, %v", done, err)
	}
	if len(there.Rows()) != 0 {
		t.Errorf("the rows %q are there before the commit", there.Rows())
	}
	if err := l.Complete(t.Context(), idempotency.Completion{Result: []byte(`1`)}); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(there.Rows(), []string{"of the other process's store"}) {
		t.Errorf("the rows are %q", there.Rows())
	}
	if err := twin.Complete(t.Context(), idempotency.Completion{}); !errors.Is(err, idempotency.ErrLost) {
		t.Errorf("the second completion of one attempt says %v", err)
	}
	if done, err := there.Purge(t.Context(), idempotency.PurgeBatch{Limit: 10}); err != nil || done.Removed != 1 {
		t.Errorf("the record is still held: %+v, %v", done, err)
	}
}

func TestOutcomeIsNotWrittenAfterTheRowsAreGone(t *testing.T) {
	t.Parallel()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, end := range map[string]func(l idempotency.Lease) error{
		"Rollback":                          func(l idempotency.Lease) error { l.Rollback(t.Context()); return nil },
		"Release":                           func(l idempotency.Lease) error { return l.Release(t.Context()) },
		"a Complete that could not be sent": func(l idempotency.Lease) error { _ = l.Complete(ended, idempotency.Completion{}); return nil },
	} {
		s := memstore.New()
		l := lease(t, s, leasedClaim("key-1", 1))
		if err := insertInTx(l.Context(t.Context()), s, "gone"); err != nil {
			t.Fatal(err)
		}
		if err := end(l); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if l.Complete(t.Context(), idempotency.Completion{}) == nil || l.Refuse(t.Context(), idempotency.Completion{}) == nil {
			t.Errorf("an outcome was written after %s", name)
		}
		if l.Renew(t.Context()) == nil {
			t.Errorf("a lease was renewed after %s", name)
		}
		if rec := find(t, s, "key-1"); rec.State == idempotency.Completed || len(s.Rows()) != 0 {
			t.Errorf("after %s the record is %s and the rows are %q", name, rec.State, s.Rows())
		}
	}
}

func TestHandleOfATransactionThatWasRolledBackDoesNotWriteBesideIt(t *testing.T) {
	t.Parallel()
	s := memstore.New()
	ctx := lease(t, s, leasedClaim("key-1", 1)).Context(t.Context())
	for name, around := range map[string]context.Context{"a lease": ctx, "no command": t.Context()} {
		var inner context.Context
		if err := s.InTx(around, func(ctx context.Context) error { inner = ctx; return errors.New("undone") }); err == nil {
			t.Fatalf("%s: InTx loses its function's error", name)
		}
		if s.Insert(inner, "late") == nil || insertInTx(inner, s, "late") == nil {
			t.Errorf("%s: a row was written through a transaction that was rolled back", name)
		}
	}
	if len(s.Rows()) != 0 {
		t.Errorf("the rows are %q", s.Rows())
	}
}

func TestAdministrationRefusesWhatIsNoRequest(t *testing.T) {
	t.Parallel()
	s := memstore.New()
	complete(t, s, "key-1")
	if found, err := s.Find(t.Context(), idempotency.Search{}, 10); err == nil || found != nil {
		t.Errorf("a search for nothing gives %+v, %v", found, err)
	}
	if _, err := s.Purge(t.Context(), idempotency.PurgeBatch{}); err == nil {
		t.Error("a purge without a limit is accepted")
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	id := claimOf("key-1").ID
	_, findErr := s.Find(ended, idempotency.Search{ID: id}, 1)
	_, freeErr := s.Free(ended, id, idempotency.AttemptID{})
	_, eraseErr := s.Erase(ended, id, idempotency.AttemptID{})
	_, purgeErr := s.Purge(ended, idempotency.PurgeBatch{Limit: 1})
	for name, err := range map[string]error{"Find": findErr, "Free": freeErr, "Erase": eraseErr, "Purge": purgeErr} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s on an ended context says %v", name, err)
		}
	}
	if rec := find(t, s, "key-1"); string(rec.Result) != `1` {
		t.Errorf("the record was changed: %+v", rec)
	}
}

func ExampleStore_InTx() {
	store := memstore.New()
	ctx := context.Background()
	scope := idempotency.Scope{Client: "shop", Operation: "orders.pay", Key: "draft-4711"}
	lease, _, err := store.Lease(ctx, idempotency.Claim{ID: scope.ID(), Scope: scope, Retention: time.Hour, Lease: time.Minute})
	if err != nil {
		panic(err)
	}
	// What a handler does, after it has called the outside world:
	err = store.InTx(lease.Context(ctx), func(ctx context.Context) error { return store.Insert(ctx, "a payment") })
	if err != nil {
		panic(err)
	}
	fmt.Println(store.Rows())
	if err := lease.Complete(ctx, idempotency.Completion{Result: []byte(`{"id":1}`)}); err != nil {
		panic(err)
	}
	fmt.Println(store.Rows())
	// Output:
	// []
	// [a payment]
}
