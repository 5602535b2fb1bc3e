package storetest

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tekil-go/tekil/behaviors/idempotency"
)

// claim is a claim on a key, with a payload of its own and all fields set.
func claim(key string) idempotency.Claim {
	c := idempotency.Claim{
		Hash: sha256.Sum256([]byte(key)), HashVersion: 1007,
		OriginRequestID: "request-" + key, OriginTrace: "trace-" + key, DraftID: "draft-" + key, Retention: 72 * time.Hour,
	}
	_, _ = rand.Read(c.Attempt[:])
	return at(c, idempotency.Scope{Tenant: "tenant-1", Client: "client-1", Operation: "POST /v1/orders storetest.order", Key: key})
}

// at is the claim c in another scope.
func at(c idempotency.Claim, s idempotency.Scope) idempotency.Claim {
	c.Scope, c.ID = s, s.ID()
	return c
}

// again is another attempt with the payload of c.
func again(c idempotency.Claim) idempotency.Claim {
	_, _ = rand.Read(c.Attempt[:])
	c.OriginRequestID += "-again"
	return c
}

// corrected is another attempt with another payload.
func corrected(c idempotency.Claim) idempotency.Claim {
	c = again(c)
	c.Hash = sha256.Sum256(c.Hash[:])
	return c
}

var success = idempotency.Completion{Result: []byte(`{"id":1}`), ResultType: "result/7", ExternalRef: "auth-42"}

// recorded is the record that an attempt leaves.
func recorded(c idempotency.Claim, done idempotency.Completion) idempotency.Record {
	return idempotency.Record{
		Scope: c.Scope, Hash: c.Hash, HashVersion: c.HashVersion, State: idempotency.Completed, AfterExpiry: c.AfterExpiry, Attempt: c.Attempt,
		Outcome: done.Outcome, Result: done.Result, ResultType: done.ResultType, OriginRequestID: c.OriginRequestID, ExternalRef: done.ExternalRef,
		DraftID: c.DraftID, OriginTrace: c.OriginTrace,
	}
}

// begin starts an attempt that is rolled back at the latest when the case ends.
func begin(t *testing.T, s idempotency.Store, c idempotency.Claim) idempotency.Transaction {
	t.Helper()
	a, err := s.Begin(within(t), c)
	if err != nil {
		t.Fatalf("Begin: %v", err)
	}
	t.Cleanup(func() { a.Rollback(context.WithoutCancel(t.Context())) })
	return a
}

// insert writes a business row within an attempt.
func insert(t *testing.T, f Fixture, a idempotency.Transaction, note string) {
	t.Helper()
	if err := f.Insert(a.Context(within(t)), note); err != nil {
		t.Fatalf("Insert within an attempt: %v", err)
	}
}

// complete makes a whole attempt with one business row and demands that it wins.
func complete(t *testing.T, f Fixture, c idempotency.Claim, note string) {
	t.Helper()
	a := begin(t, f.Store, c)
	insert(t, f, a, note)
	if err := a.Complete(within(t), success); err != nil {
		t.Fatalf("Complete: %v", err)
	}
}

func look(t *testing.T, s idempotency.Store, c idempotency.Claim) *idempotency.Record {
	t.Helper()
	rec, err := s.Look(within(t), c)
	if err != nil {
		t.Fatalf("Look: %v", err)
	}
	return rec
}

// wantRecord compares what is stored for a claim with a record.
func wantRecord(t *testing.T, s idempotency.Store, c idempotency.Claim, want idempotency.Record) {
	t.Helper()
	rec := look(t, s, c)
	if rec == nil {
		t.Fatal("no record; want one")
	}
	if d := difference(*rec, want); d != "" {
		t.Fatalf("the record differs from what was written: %s", d)
	}
}

// difference names the first field in which two records differ.
func difference(got, want idempotency.Record) string {
	for _, f := range []struct {
		name      string
		got, want any
	}{
		{"Scope", got.Scope, want.Scope},
		{"Hash", got.Hash, want.Hash},
		{"HashVersion", got.HashVersion, want.HashVersion},
		{"State", got.State, want.State},
		{"AfterExpiry", got.AfterExpiry, want.AfterExpiry},
		{"Attempt", got.Attempt, want.Attempt},
		{"Outcome", got.Outcome, want.Outcome},
		{"Result", string(got.Result), string(want.Result)},
		{"ResultType", got.ResultType, want.ResultType},
		{"OriginRequestID", got.OriginRequestID, want.OriginRequestID},
		{"ExternalRef", got.ExternalRef, want.ExternalRef},
		{"DraftID", got.DraftID, want.DraftID},
		{"OriginTrace", got.OriginTrace, want.OriginTrace},
		{"Expired", got.Expired, want.Expired},
	} {
		if f.got != f.want {
			return fmt.Sprintf("%s is %.200q, want %.200q", f.name, fmt.Sprint(f.got), fmt.Sprint(f.want))
		}
	}
	return ""
}

// wantDatabase compares what is committed with the notes of business rows and a number of records.
func wantDatabase(t *testing.T, f Fixture, records int, notes ...string) {
	t.Helper()
	got := slices.Sorted(slices.Values(f.Rows(t)))
	slices.Sort(notes)
	if !slices.Equal(got, notes) {
		t.Errorf("the committed business rows are %.500q, want %.500q", got, notes)
	}
	if n := f.Records(t); n != records {
		t.Errorf("there are %d records, want %d", n, records)
	}
}

func storeCases() []specCase {
	cases := []specCase{
		{"Store_PassesItsOwnCheckAndSaysWhatItIs",
			"Build refuses a store that fails its check, so a good database must pass, and Describe is what a person reads in a report.",
			func(t *testing.T, f Fixture) {
				if _, err := f.Store.Check(within(t)); err != nil {
					t.Errorf("Check of a good database: %v", err)
				}
				if strings.TrimSpace(f.Store.Describe()) == "" {
					t.Error("Describe says nothing")
				}
			}},
		{"Store_CompletedAttemptLeavesItsRowsAndItsWholeRecord",
			"The record is all that a replay has: what is written must be read again, field by field, and the business rows come with it.",
			func(t *testing.T, f Fixture) {
				c := claim("whole-record-1")
				if rec := look(t, f.Store, c); rec != nil {
					t.Fatalf("a record is there before anything was done: %+v", *rec)
				}
				a := begin(t, f.Store, c)
				if a.Found() != nil {
					t.Fatal("Found gives a record for a key that has none")
				}
				insert(t, f, a, "order")
				if err := a.Complete(within(t), success); err != nil {
					t.Fatalf("Complete: %v", err)
				}
				wantDatabase(t, f, 1, "order")
				wantRecord(t, f.Store, c, recorded(c, success))
				b := begin(t, f.Store, again(c))
				if b.Found() == nil {
					t.Fatal("Found gives nothing for a key that has a record")
				}
				if d := difference(*b.Found(), recorded(c, success)); d != "" {
					t.Errorf("Found differs from what was written: %s", d)
				}
			}},
		{"Store_NothingIsVisibleBeforeComplete",
			"One transaction: whoever sees the order sees its record as well (rule rec-1).",
			func(t *testing.T, f Fixture) {
				c := claim("invisible-1")
				a := begin(t, f.Store, c)
				insert(t, f, a, "order")
				wantDatabase(t, f, 0)
				if rec := look(t, f.Store, c); rec != nil {
					t.Errorf("Look sees the record of an attempt that is still open: %+v", *rec)
				}
				if err := a.Complete(within(t), success); err != nil {
					t.Fatalf("Complete: %v", err)
				}
				wantDatabase(t, f, 1, "order")
			}},
		{"Store_RollbackLeavesNothing_R04",
			"A failure that left no work behind frees the key (rule rec-6): no row, no record.",
			func(t *testing.T, f Fixture) {
				c := claim("rollback-1")
				a := begin(t, f.Store, c)
				insert(t, f, a, "undone")
				a.Rollback(within(t))
				wantDatabase(t, f, 0)
				complete(t, f, again(c), "order")
				wantDatabase(t, f, 1, "order")
			}},
		{"Store_AttemptThatEndedIsClosed",
			"A goroutine that a handler left behind must not write into what was decided already, nor beside it.",
			func(t *testing.T, f Fixture) {
				for name, end := range map[string]func(a idempotency.Transaction) error{
					"Rollback": func(a idempotency.Transaction) error { a.Rollback(within(t)); return nil },
					"Complete": func(a idempotency.Transaction) error { return a.Complete(within(t), success) },
					"Refuse": func(a idempotency.Transaction) error {
						return a.Refuse(within(t), idempotency.Completion{Outcome: idempotency.Refusal, Result: []byte(`{}`)})
					},
				} {
					c := claim("closed-" + name)
					a := begin(t, f.Store, c)
					ctx := a.Context(within(t))
					insert(t, f, a, "before "+name)
					if err := end(a); err != nil {
						t.Fatalf("%s: %v", name, err)
					}
					before := look(t, f.Store, c)
					if err := f.Insert(ctx, "late after "+name); err == nil {
						t.Errorf("a row was written through an attempt after %s", name)
					}
					a.Rollback(within(t)) // does nothing
					a.Rollback(within(t))
					after := look(t, f.Store, c)
					if (before == nil) != (after == nil) || before != nil && difference(*after, *before) != "" {
						t.Errorf("Rollback after %s changed the record", name)
					}
				}
				wantDatabase(t, f, 2, "before Complete")
			}},
		{"Store_RefusalUndoesTheRowsAndKeepsTheOutcome_R03",
			"A final refusal is an outcome (rule rec-7), and what the handler wrote before it refused is not part of it.",
			func(t *testing.T, f Fixture) {
				c := claim("refuse-1")
				refused := idempotency.Completion{Outcome: idempotency.Refusal, Result: []byte(`{"code":"OUT_OF_STOCK"}`), ResultType: "refusal/1"}
				a := begin(t, f.Store, c)
				insert(t, f, a, "undone")
				if err := a.Refuse(within(t), refused); err != nil {
					t.Fatalf("Refuse: %v", err)
				}
				wantDatabase(t, f, 1)
				wantRecord(t, f.Store, c, recorded(c, refused))
			}},
		{"Store_AttemptOutlivesTheContextOfBegin_BR03",
			"A client that hangs up must not take the transaction with it: its retry would find that nothing ever finishes.",
			func(t *testing.T, f Fixture) {
				ctx, hangUp := context.WithCancel(within(t))
				c := claim("hang-up-1")
				a, err := f.Store.Begin(ctx, c)
				if err != nil {
					t.Fatalf("Begin: %v", err)
				}
				hangUp()
				insert(t, f, a, "order")
				if err := a.Complete(within(t), success); err != nil {
					t.Fatalf("Complete after the context of Begin ended: %v", err)
				}
				wantDatabase(t, f, 1, "order")
			}},
		{"Store_BeginOnAnEndedContextFailsAndHoldsNothing_X13",
			"A claim that was given up is no claim: the next one must not be told that somebody is at work.",
			func(t *testing.T, f Fixture) {
				ctx, cancel := context.WithCancel(within(t))
				cancel()
				c := claim("ended-context-1")
				if a, err := f.Store.Begin(ctx, c); err == nil {
					a.Rollback(within(t))
					t.Error("Begin on an ended context succeeded")
				} else if errors.Is(err, idempotency.ErrBusy) || errors.Is(err, idempotency.ErrSerialization) {
					t.Errorf("Begin on an ended context says %v", err)
				}
				if _, err := f.Store.Look(ctx, c); err == nil {
					t.Error("Look on an ended context succeeded")
				}
				complete(t, f, c, "order")
			}},
		{"Store_UsedTellsWhetherTheHandlerAskedForTheTransaction_R24",
			"Work that went through another connection does not share the record's commit; that has to be noticed.",
			func(t *testing.T, f Fixture) {
				a := begin(t, f.Store, claim("used-1"))
				ctx := a.Context(within(t))
				if a.Used() {
					t.Error("Used is true before anything was written")
				}
				if err := f.Insert(ctx, "order"); err != nil {
					t.Fatal(err)
				}
				if !a.Used() {
					t.Error("Used is false after a row was written through the attempt")
				}
				a.Rollback(within(t))
				if err := f.Insert(within(t), "outside"); err != nil {
					t.Fatalf("Insert outside an attempt: %v", err)
				}
				wantDatabase(t, f, 0, "outside")
			}},
		{"Store_LookWritesNothing",
			"A replay costs a read. One that wrote would leave a dead row for each retry.",
			func(t *testing.T, f Fixture) {
				c := claim("look-1")
				for range 3 {
					if rec := look(t, f.Store, c); rec != nil {
						t.Fatal("Look found a record that nobody wrote")
					}
				}
				wantDatabase(t, f, 0)
				complete(t, f, c, "order")
				for range 3 {
					wantRecord(t, f.Store, c, recorded(c, success))
				}
				wantDatabase(t, f, 1, "order")
			}},
		{"Store_ScopesAreColumnsAndNotAJoinedString_S01_S02_S05_S11_BR23",
			"The key of one tenant, client or command must never answer, or block, the same key of another (rule rec-8).",
			func(t *testing.T, f Fixture) {
				scopes := []idempotency.Scope{
					{Tenant: "", Client: "a", Operation: "op", Key: "key-0001"},
					{Tenant: "a", Client: "", Operation: "op", Key: "key-0001"},
					{Tenant: "a", Client: "b", Operation: "op", Key: "key-0001"},
					{Tenant: "b", Client: "a", Operation: "op", Key: "key-0001"},
					{Tenant: "a", Client: "b", Operation: "op2", Key: "key-0001"},
					{Tenant: "a", Client: "b", Operation: "op", Key: "key-0002"},
					{Tenant: "a:b", Client: "c", Operation: "op", Key: "key-0001"},
					{Tenant: "a", Client: "b:c", Operation: "op", Key: "key-0001"},
					{Tenant: "a/b", Client: "c", Operation: "op", Key: "key-0001"},
					{Tenant: "a", Client: "b/c", Operation: "op", Key: "key-0001"},
					{Tenant: "ab", Client: "c", Operation: "op", Key: "key-0001"},
					{Tenant: "a", Client: "bc", Operation: "op", Key: "key-0001"},
					{Tenant: "a", Client: "b", Operation: "op ", Key: "key-0001"},
					{Tenant: "a", Client: " b", Operation: "op", Key: "key-0001"},
					{Tenant: "a", Client: "b", Operation: "op", Key: "KEY-0001"},
					{Tenant: "A", Client: "b", Operation: "op", Key: "key-0001"},
					{Tenant: "caf\u00e9", Client: "b", Operation: "op", Key: "key-0001"},
					{Tenant: "cafe\u0301", Client: "b", Operation: "op", Key: "key-0001"},
					{Tenant: "İstanbul", Client: "müşteri '\"\\%_;--", Operation: "😀 op", Key: "key-0001"},
				}
				notes := make([]string, len(scopes))
				for i, s := range scopes {
					notes[i] = fmt.Sprint("order ", i)
					complete(t, f, at(claim(fmt.Sprint("scope-", i)), s), notes[i])
				}
				wantDatabase(t, f, len(scopes), notes...)
				for i, s := range scopes {
					if rec := look(t, f.Store, at(claim("x"), s)); rec == nil || rec.OriginRequestID != fmt.Sprint("request-scope-", i) || rec.Scope != s {
						t.Errorf("the scope %+v has the record %+v", s, rec)
					}
				}
			}},
		{"Store_ShowsThatTheRowOfAnIDBelongsToAnotherScope",
			"Equal ids with different scopes mean a damaged table. That is neither a replay nor a conflict nor a free key, so the store must show it and never write over it.",
			func(t *testing.T, f Fixture) {
				for i, rec := range []idempotency.Record{
					recorded(claim("foreign-1"), success),
					{State: idempotency.Failed, Scope: claim("foreign-2").Scope},
					{State: idempotency.Completed, Scope: claim("foreign-3").Scope, Expired: true, Result: []byte(`1`)},
				} {
					c := claim(fmt.Sprint("own-", i))
					rec.Hash = c.Hash
					f.Plant(t, c.ID, rec)
					if got := look(t, f.Store, c); got == nil || got.Scope == c.Scope {
						t.Fatalf("Look gives %+v for a row of another scope", got)
					}
					a := begin(t, f.Store, c)
					if got := a.Found(); got == nil || got.Scope == c.Scope {
						t.Fatalf("Found gives %+v for a row of another scope", got)
					}
					insert(t, f, a, "lost")
					if err := a.Complete(within(t), success); !errors.Is(err, idempotency.ErrLost) {
						t.Errorf("Complete over a row of another scope says %v, want ErrLost", err)
					}
					if got := look(t, f.Store, c); got == nil || got.Scope == c.Scope {
						t.Errorf("a row of another scope was overwritten: %+v", got)
					}
				}
				wantDatabase(t, f, 3)
			}},
		{"Store_ExpiryIsJudgedByTheStore_T01",
			"A key is protected for as long as its command asked for, to the hour, and not longer than promised (rule rec-10).",
			func(t *testing.T, f Fixture) {
				day, month := claim("expiry-day"), claim("expiry-month")
				day.Retention, month.Retention = 24*time.Hour, 720*time.Hour
				complete(t, f, day, "day")
				complete(t, f, month, "month")
				expired := func(c idempotency.Claim) bool {
					rec := look(t, f.Store, c)
					if rec == nil {
						t.Fatalf("the record of %s has gone", c.Scope.Key)
					}
					a := begin(t, f.Store, again(c))
					defer a.Rollback(within(t))
					if a.Found() == nil || a.Found().Expired != rec.Expired {
						t.Errorf("Look and Begin do not agree about %s", c.Scope.Key)
					}
					return rec.Expired
				}
				for _, step := range []struct {
					older      time.Duration
					day, month bool
				}{
					{0, false, false},
					{23 * time.Hour, false, false},
					{2 * time.Hour, true, false},
					{694 * time.Hour, true, false},
					{2 * time.Hour, true, true},
				} {
					f.Age(t, step.older)
					if d, m := expired(day), expired(month); d != step.day || m != step.month {
						t.Errorf("%v later: expired is %v after a day's retention and %v after a month's, want %v and %v", step.older, d, m, step.day, step.month)
					}
				}
			}},
		{"Store_NewLifeOfAnExpiredKeyForgetsTheOldOne_T02",
			"An expired key is new work on purpose: a single record remains, and nothing in it is the old life's.",
			func(t *testing.T, f Fixture) {
				first := claim("new-life-1")
				complete(t, f, first, "first")
				f.Age(t, 73*time.Hour)
				second := corrected(first)
				second.HashVersion, second.AfterExpiry = 1008, idempotency.Tombstone
				done := idempotency.Completion{Result: []byte(`{"id":2}`), ResultType: "result/8"}
				a := begin(t, f.Store, second)
				if a.Found() == nil || !a.Found().Expired {
					t.Fatalf("Found gives %+v, want the expired record", a.Found())
				}
				insert(t, f, a, "second")
				if err := a.Complete(within(t), done); err != nil {
					t.Fatalf("Complete over an expired record: %v", err)
				}
				wantDatabase(t, f, 1, "first", "second")
				wantRecord(t, f.Store, second, recorded(second, done))
				f.Age(t, 71*time.Hour)
				wantRecord(t, f.Store, second, recorded(second, done))
			}},
		{"Store_ResultsComeBackByteForByte_BR36",
			"A store that normalises results (jsonb, text) loses zero bytes, changes numbers, or refuses them when the work is done already.",
			func(t *testing.T, f Fixture) {
				every := make([]byte, 256)
				for i := range every {
					every[i] = byte(i)
				}
				for i, result := range [][]byte{
					[]byte(`null`), []byte(`0`), []byte(`false`), []byte(`""`), []byte(`{}`), []byte(`[]`),
					[]byte(`"x\u0000y"`), []byte("x\x00y"), []byte(`"\ud800"`), []byte("\xed\xa0\x80"), []byte("\xff\xfe"),
					[]byte(`{"b":1,"a":2,"a":3}`), []byte(` { "a" : 1e400 } `), []byte(`12345678901234567890`), []byte("😀"), every,
					[]byte(strings.Repeat("0123456789", 30_000)),
				} {
					c := claim(fmt.Sprint("bytes-", i))
					done := idempotency.Completion{Result: result, ResultType: "result/1"}
					a := begin(t, f.Store, c)
					if err := a.Complete(within(t), done); err != nil {
						t.Errorf("Complete with the result %.40q: %v", result, err)
						continue
					}
					wantRecord(t, f.Store, c, recorded(c, done))
				}
			}},
		{"Store_TakesEveryIsolationLevel",
			"A command asks for a level by its policy; a store without levels is at least as strict as any.",
			func(t *testing.T, f Fixture) {
				for level := idempotency.ReadCommitted; level <= idempotency.Serializable; level++ {
					c := claim(fmt.Sprint("level-", int(level)))
					c.Isolation = level
					complete(t, f, c, level.String())
					wantRecord(t, f.Store, c, recorded(c, success))
				}
				wantDatabase(t, f, 3, "read committed", "repeatable read", "serializable")
			}},
		{"Store_LongPartsFit",
			"A key of 128 characters, a long route and a long principal are legal; cutting one off would merge two keys.",
			func(t *testing.T, f Fixture) {
				long := strings.Repeat("x", 127)
				a := at(claim("long-a"), idempotency.Scope{Tenant: long + long, Client: long + long, Operation: "POST /" + long + long + " " + long, Key: long + "a"})
				b := at(claim("long-b"), idempotency.Scope{Tenant: a.Scope.Tenant, Client: a.Scope.Client, Operation: a.Scope.Operation, Key: long + "b"})
				complete(t, f, a, "a")
				complete(t, f, b, "b")
				wantRecord(t, f.Store, a, recorded(a, success))
				wantRecord(t, f.Store, b, recorded(b, success))
			}},
		{"Store_KeysThatCarryATimeAreNotMixedUp",
			"Ids keep the time of a UUIDv7 or ULID in front; keys of one millisecond must still be told apart, and never block one another.",
			func(t *testing.T, f Fixture) {
				var notes []string
				var open []idempotency.Transaction
				for i := range 40 {
					key := fmt.Sprintf("01920000-0000-7000-8000-%012x", i)
					if i%2 == 1 {
						key = fmt.Sprintf("01J8%022d", i)
					}
					notes = append(notes, key)
					a := begin(t, f.Store, claim(key))
					if a.Found() != nil {
						t.Fatalf("%s has the record of another key", key)
					}
					insert(t, f, a, key)
					if f.NoHint != nil && len(open) < 1 { // side by side, where attempts can be
						open = append(open, a)
						continue
					}
					for _, a := range append(open, a) {
						if err := a.Complete(within(t), success); err != nil {
							t.Fatalf("Complete: %v", err)
						}
					}
					open = nil
				}
				wantDatabase(t, f, 40, notes...)
			}},
		{"Store_TransientKnowsItsOwnErrorsOnly",
			"Only what the database refused because of a concurrent transaction is tried again; a handler's own error is not.",
			func(t *testing.T, f Fixture) {
				a := begin(t, f.Store, claim("transient-1"))
				for _, err := range []error{nil, errors.New("out of paper"), context.DeadlineExceeded, context.Canceled} {
					if a.Transient(err) {
						t.Errorf("Transient(%v) is true", err)
					}
				}
			}},
		{"Store_HintHoldsWhileAnAttemptIsOpenAndNoLonger",
			"A duplicate turns back before it works in vain, and a key is never blocked by an attempt that has ended.",
			func(t *testing.T, f Fixture) {
				if f.NoHint == nil {
					return // attempts of one key cannot run side by side here
				}
				refused := idempotency.Completion{Outcome: idempotency.Refusal, Result: []byte(`{}`)}
				for name, end := range map[string]func(a idempotency.Transaction) error{
					"Rollback": func(a idempotency.Transaction) error { a.Rollback(within(t)); return nil },
					"Complete": func(a idempotency.Transaction) error { return a.Complete(within(t), success) },
					"Refuse":   func(a idempotency.Transaction) error { return a.Refuse(within(t), refused) },
				} {
					c := claim("hint-" + name)
					a := begin(t, f.Store, c)
					if b, err := f.Store.Begin(within(t), again(c)); !errors.Is(err, idempotency.ErrBusy) {
						if err == nil {
							b.Rollback(within(t))
						}
						t.Errorf("Begin beside an open attempt says %v, want ErrBusy", err)
					}
					begin(t, f.Store, claim("hint-other-"+name)).Rollback(within(t))
					if err := end(a); err != nil {
						t.Fatalf("%s: %v", name, err)
					}
					begin(t, f.Store, again(c)).Rollback(within(t))
				}
			}},
		{"Store_UniqueKeyIsTheRefereeWithoutTheHint_rec2",
			"The hint may do nothing at all (two hashes collide, an engine has no such locks): the loser's rows must still roll back.",
			func(t *testing.T, f Fixture) {
				if f.NoHint == nil {
					return // attempts of one key cannot run side by side here
				}
				first, second, third := claim("referee-1"), again(claim("referee-1")), corrected(claim("referee-1"))
				a, b, c := begin(t, f.NoHint, first), begin(t, f.NoHint, second), begin(t, f.NoHint, third)
				insert(t, f, a, "first")
				insert(t, f, b, "second")
				insert(t, f, c, "third")
				if err := b.Complete(within(t), success); err != nil {
					t.Fatalf("Complete of the one who comes first: %v", err)
				}
				if err := a.Complete(within(t), success); !errors.Is(err, idempotency.ErrLost) {
					t.Errorf("Complete of the one who comes late says %v, want ErrLost", err)
				}
				if err := c.Refuse(within(t), idempotency.Completion{Outcome: idempotency.Refusal, Result: []byte(`{}`)}); !errors.Is(err, idempotency.ErrLost) {
					t.Errorf("Refuse of the one who comes late says %v, want ErrLost", err)
				}
				wantDatabase(t, f, 1, "second")
				wantRecord(t, f.Store, first, recorded(second, success))
			}},
		{"Store_ManyCompleteAtOnceAndOneWins_rec2",
			"The winner is the one whose rows are there, and there is one.",
			func(t *testing.T, f Fixture) {
				if f.NoHint == nil {
					return // attempts of one key cannot run side by side here
				}
				for round := range 10 {
					c := claim(fmt.Sprint("at-once-", round))
					const side = 3
					attempts := make([]idempotency.Transaction, side)
					for i := range attempts {
						attempts[i] = begin(t, f.NoHint, again(c))
						insert(t, f, attempts[i], fmt.Sprintf("%d by %d", round, i))
					}
					errs := make([]error, side)
					start := make(chan struct{})
					var wg sync.WaitGroup
					for i, a := range attempts {
						wg.Go(func() {
							<-start
							errs[i] = a.Complete(context.WithoutCancel(t.Context()), success)
						})
					}
					close(start)
					wg.Wait()
					winners := 0
					for i, err := range errs {
						switch {
						case err == nil:
							winners++
							if !slices.Contains(f.Rows(t), fmt.Sprintf("%d by %d", round, i)) {
								t.Errorf("round %d: an attempt was told that it won and its row is not there", round)
							}
						case errors.Is(err, idempotency.ErrLost), errors.Is(err, idempotency.ErrBusy), errors.Is(err, idempotency.ErrSerialization):
						default:
							t.Errorf("round %d: a loser is told %v", round, err)
						}
					}
					if winners != 1 {
						t.Errorf("round %d: %d attempts won", round, winners)
					}
				}
				if n := len(f.Rows(t)); n != 10 {
					t.Errorf("%d business rows for 10 keys", n)
				}
			}},
	}
	return append(cases, guardCase())
}

// guardCase goes through every record that Complete can meet.
func guardCase() specCase {
	const (
		inProgress, completed, failed = idempotency.InProgress, idempotency.Completed, idempotency.Failed
		reuse, tombstone              = idempotency.Reuse, idempotency.Tombstone
	)
	table := []struct {
		state     idempotency.RecordState
		after     idempotency.AfterExpiry
		expired   bool
		otherHash bool
		takes     bool
	}{
		{completed, reuse, false, false, false},
		{completed, reuse, false, true, false},
		{completed, reuse, true, false, true},
		{completed, reuse, true, true, true},
		{completed, tombstone, false, false, false},
		{completed, tombstone, true, false, false},
		{completed, tombstone, true, true, false},
		{failed, reuse, false, false, true},
		{failed, reuse, false, true, false},
		{failed, reuse, true, true, true},
		{failed, tombstone, true, false, true},
		{failed, tombstone, true, true, false},
		{inProgress, reuse, false, false, false},
		{inProgress, reuse, false, true, false},
		{inProgress, reuse, true, false, false},
		{inProgress, tombstone, true, true, false},
	}
	return specCase{"Store_CompleteTakesTheKeyOnlyFromWhatIsFree_BR39",
		"Between the claim and the record another attempt may have written any of these. The last statement looks again, and it is the one that counts.",
		func(t *testing.T, f Fixture) {
			for i, row := range table {
				for _, refuse := range []bool{false, true} {
					name := fmt.Sprintf("%s, after expiry %v, expired %v, other payload %v, refusal %v", row.state, row.after, row.expired, row.otherHash, refuse)
					c := claim(fmt.Sprintf("guard-%d-%v", i, refuse))
					old := recorded(again(c), idempotency.Completion{Result: []byte(`"old"`), ResultType: "result/1"})
					old.State, old.AfterExpiry, old.Expired = row.state, row.after, row.expired
					if row.state != completed {
						old.Result, old.ResultType = nil, ""
					}
					if row.otherHash {
						old.Hash = sha256.Sum256([]byte("other"))
					}
					f.Plant(t, c.ID, old)
					wantRecord(t, f.Store, c, old)

					a := begin(t, f.Store, c)
					insert(t, f, a, name)
					done, end := success, a.Complete
					if refuse {
						done, end = idempotency.Completion{Outcome: idempotency.Refusal, Result: []byte(`{}`), ResultType: "refusal/1"}, a.Refuse
					}
					err := end(within(t), done)
					switch {
					case row.takes && err != nil:
						t.Errorf("%s: the key is free and the end of the attempt says %v", name, err)
						continue
					case !row.takes && !errors.Is(err, idempotency.ErrLost):
						t.Errorf("%s: the key is taken and the end of the attempt says %v, want ErrLost", name, err)
						continue
					}
					want := old
					if row.takes {
						want = recorded(c, done)
					}
					wantRecord(t, f.Store, c, want)
					if there := slices.Contains(f.Rows(t), name); there != (row.takes && !refuse) {
						t.Errorf("%s: the business row is there: %v", name, there)
					}
				}
			}
		}}
}
