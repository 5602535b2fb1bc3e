package storetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
)

// claimOfCharge finds out under which claim a charge is stored, without leaving anything behind.
func claimOfCharge[P policies](t *testing.T, f Fixture, v requestctx.Values, cmd charge[P]) (claim idempotency.Claim) {
	t.Helper()
	watched := tap{Store: f.Store, lease: func(_ context.Context, c idempotency.Claim, _ taking) (idempotency.Lease, *idempotency.Record, error) {
		claim = c
		return nil, nil, errWire
	}}
	failed[*idempotency.StoreError](t, call(within(t), charges[P](t, watched, &till{f: f}), v, cmd), requestctx.StateRefused)
	return claim
}

// lifeCases are those of the retention of Leased keys.
func lifeCases() []specCase {
	return []specCase{
		{"LeasedKeyIsNewWorkWhenItsRetentionIsOver_T01_T02_T05",
			"After the retention the key is new work, on purpose and counted, whatever had become of the old one; an hour before, it is not.",
			func(t *testing.T, f Fixture) {
				for name, end := range map[string]func(t *testing.T, f Fixture, v requestctx.Values, cmd charge[hurried]) reply[placed]{
					"completed": func(t *testing.T, f Fixture, v requestctx.Values, cmd charge[hurried]) reply[placed] {
						r := call(within(t), charges[hurried](t, f.Store, &till{f: f}), v, cmd)
						executed(t, r)
						return r
					}, "failed": fails[hurried], "died": dies[hurried],
				} {
					v := request(t, "leased-expiry-"+name)
					old, other := charge[hurried]{Note: "old " + name, Amount: 1}, charge[hurried]{Note: "new " + name, Amount: 2}
					first := end(t, f, v, old)
					s := &till{f: f}
					here, elsewhere := charges[hurried](t, f.Store, s), charges[hurried](t, f.Store, s)
					f.Age(t, idempotency.DefaultRetention-time.Hour)
					failed[*idempotency.ConflictError](t, call(within(t), here, v, other), requestctx.StateConflict)
					if name == "completed" {
						replayed(t, call(within(t), here, v, old), first)
					}
					before := kept(t, f, v)
					f.Age(t, 2*time.Hour)
					second := call(within(t), charges[hurried](t, f.Store, s), v, other) // in a process that has not met the record
					executed(t, second)
					if !second.out.ReusedExpired || first.out.ReusedExpired || second.out.Attempt != 1 {
						t.Errorf("%s: the outcome of the new life is %+v", name, second.out)
					}
					rec := wantKept(t, f, v, idempotency.Completed, 1)
					if rec.OriginRequestID != second.id || rec.Fence <= before.Fence || rec.CreatedAt.Sub(before.CreatedAt) < idempotency.DefaultRetention-2*time.Hour {
						t.Errorf("%s: the record of the new life was created at %v, after %v, and has the origin %s and the fence %d after %d",
							name, rec.CreatedAt, before.CreatedAt, rec.OriginRequestID, rec.Fence, before.Fence)
					}
					for _, send := range []bus.Handler[charge[hurried], placed]{here, elsewhere} {
						replayed(t, call(within(t), send, v, other), second)
						failed[*idempotency.ConflictError](t, call(within(t), send, v, old), requestctx.StateConflict)
					}
					s.wantRuns(t, 1)
				}
				wantDatabase(t, f, 3, "old completed", "new completed", "new failed", "new died")
			}},
		{"LeasedTombstoneIsRefusedForGood_T03",
			"Where a second payment is worse than none, an old key is refused and never runs again, also when its record has lost its outcome.",
			func(t *testing.T, f Fixture) {
				s := &till{f: f}
				here, elsewhere := charges[remembered](t, f.Store, s), charges[remembered](t, f.Store, s)
				v, cmd := request(t, "leased-tombstone-1"), charge[remembered]{Note: "order", Amount: 1}
				first := call(within(t), here, v, cmd)
				executed(t, first)
				replayed(t, call(within(t), elsewhere, v, cmd), first)
				gone := func() {
					t.Helper()
					for _, send := range []bus.Handler[charge[remembered], placed]{here, elsewhere, charges[remembered](t, f.Store, s)} {
						for _, amount := range []int{1, 2} {
							failed[*idempotency.ExpiredError](t, call(within(t), send, v, charge[remembered]{Note: "order", Amount: amount}), requestctx.StateExpired)
						}
					}
					// The record decides, not what the policy says today.
					failed[*idempotency.ExpiredError](t, call(within(t), charges[hurried](t, f.Store, s), v, charge[hurried]{Note: "order", Amount: 1}), requestctx.StateExpired)
				}
				f.Age(t, older)
				gone()
				purge(t, f, 0)
				if rec := kept(t, f, v); len(rec.Result) != 0 || rec.State != idempotency.Completed {
					t.Errorf("what is left after the purge is %s with the result %q", show(&rec.Record), rec.Result)
				}
				gone()
				purge(t, f, 100*older)
				gone() // a year later
				s.wantRuns(t, 1)

				v, cmd = request(t, "leased-tombstone-2"), charge[remembered]{Note: "not done", Amount: 1}
				dies(t, f, v, cmd)
				f.Age(t, older)
				failed[*idempotency.ExpiredError](t, call(within(t), here, v, charge[remembered]{Note: "not done", Amount: 2}), requestctx.StateExpired)
				executed(t, call(within(t), here, v, cmd)) // what is not known to be done may be done, and only that
				wantDatabase(t, f, 2, "order", "not done")
			}},
		{"KeyWhoseRetentionEndsUnderALiveLeaseStaysInProgress_T04",
			"The work has outlasted the retention and is still being done: the key is not free, and a purge leaves it alone.",
			func(t *testing.T, f Fixture) {
				s := &till{f: f}
				for _, after := range []idempotency.AfterExpiry{idempotency.Reuse, idempotency.Tombstone} {
					v, cmd := request(t, "outlasts-"+after.String()), charge[hurried]{Note: "order", Amount: 1}
					c := claimOfCharge(t, f, v, cmd)
					rec := inProgress(again(c), idempotency.Grant{Attempt: 1, Fence: 7})
					rec.AfterExpiry, rec.Expired, rec.LeaseLeft = after, true, time.Hour
					f.Plant(t, c.ID, rec)
					before := kept(t, f, v)
					purge(t, f, 0)
					for _, send := range processes[hurried](t, 2, f.Store, s) {
						failed[*idempotency.InProgressError](t, call(within(t), send, v, cmd), requestctx.StateInProgress)
						failed[*idempotency.ConflictError](t, call(within(t), send, v, charge[hurried]{Note: "order", Amount: 2}), requestctx.StateConflict)
					}
					purge(t, f, 0)
					if d := change(before, kept(t, f, v)); d != "" {
						t.Errorf("%v: the record was changed: %s", after, d)
					}
				}
				s.wantRuns(t, 0)
				wantDatabase(t, f, 2)
			}},
		{"ManyReusesOfAnExpiredLeasedKeyRunOnce_T06",
			"An expired key is as fresh as a new one: sixteen processes at once make one order.",
			func(t *testing.T, f Fixture) {
				for name, end := range map[string]func(t *testing.T, f Fixture, v requestctx.Values, cmd charge[waiting]) reply[placed]{
					"failed": fails[waiting], "died": dies[waiting],
					"completed": func(t *testing.T, f Fixture, v requestctx.Values, _ charge[waiting]) reply[placed] {
						r := call(within(t), charges[waiting](t, f.Store, &till{f: f}), v, charge[waiting]{Note: "old"})
						executed(t, r)
						return r
					},
				} {
					v := request(t, "leased-reuses-"+name)
					cmd := charge[waiting]{Note: v.Key.String()}
					end(t, f, v, cmd)
					f.Age(t, older)
					s := &till{f: f}
					if got, want := count(t, atOnceTo(t, 16, processes[waiting](t, 16, f.Store, s), v, cmd)), (census{executed: 1, replayed: 15}); got != want {
						t.Errorf("%s: %+v, want %+v", name, got, want)
					}
					s.wantRuns(t, 1)
					wantKept(t, f, v, idempotency.Completed, 1)
					if n := notes(t, f, cmd.Note); n != 1 {
						t.Errorf("%s: %d business rows of the new life", name, n)
					}
				}
			}},
		{"KeyWhoseRecordGoesWhileADuplicateWaitsRuns_T07",
			"The record was purged between two looks of the one that waits. It must neither wait for ever nor take nothing for an answer.",
			func(t *testing.T, f Fixture) {
				v, cmd := request(t, "record-goes-1"), charge[waiting]{Note: "order"}
				dies(t, f, v, cmd)
				s, met := &till{f: f}, false
				send := charges[waiting](t, tap{Store: f.Store, lease: func(_ context.Context, c idempotency.Claim, take taking) (idempotency.Lease, *idempotency.Record, error) {
					l, rec, err := take(c)
					if !met {
						met = rec != nil && rec.LeaseLeft > 0
						purge(t, f, older) // before its engine reads what it has met
					}
					return l, rec, err
				}}, s)
				first := call(within(t), send, v, cmd)
				if !met {
					t.Error("the duplicate has not met the record")
				}
				executed(t, first)
				if first.out.Attempt != 1 || first.out.TookOver || first.out.ReusedExpired {
					t.Errorf("the outcome is %+v, want a first attempt", first.out)
				}
				replayed(t, call(within(t), send, v, cmd), first)
				purge(t, f, older)
				second := call(within(t), send, v, charge[waiting]{Note: "order", Amount: 2}) // its process has met the record
				executed(t, second)
				s.wantRuns(t, 2)
				wantDatabase(t, f, 1, "order", "order")
			}},
		{"LateOwnerOfAKeyInItsNewLifeCompletesNothing_T09_E11",
			"An owner comes back after days. Its key is somebody else's now, or nobody's, and its work counts for nothing.",
			func(t *testing.T, f Fixture) {
				for name, row := range map[string]struct {
					pass   func()
					reused bool
				}{
					"expired and reused": {func() { f.Age(t, older) }, true},
					"purged":             {func() { purge(t, f, older) }, false},
					"purged and reused":  {func() { purge(t, f, older) }, true},
				} {
					for _, alone := range []bool{true, false} {
						v := request(t, fmt.Sprintf("new-life-%s-%v", strings.ReplaceAll(name, " ", "-"), alone))
						g := newGate(t)
						s := &till{f: f, alone: alone, outside: g.first}
						first := background(within(t), charges[hurried](t, f.Store, s), v, charge[hurried]{Note: "late"})
						await(t, g.entered, "the first owner's start")
						row.pass()
						cmd := charge[hurried]{Note: v.Key.String(), Amount: 2}
						var second reply[placed]
						if row.reused {
							second = call(within(t), charges[hurried](t, f.Store, &till{f: f}), v, cmd)
							executed(t, second)
						}
						before := f.Records(t)
						g.open()
						late := await(t, first, "the late owner's answer")
						if row.reused {
							failed[*idempotency.ConflictError](t, late, requestctx.StateConflict)
							replayed(t, call(within(t), charges[hurried](t, f.Store, s), v, cmd), second)
							if n := notes(t, f, cmd.Note); n != 1 {
								t.Errorf("%s: %d business rows of the new life", name, n)
							}
						} else {
							failed[*idempotency.LeaseLostError](t, late, requestctx.StateLost)
						}
						if n := f.Records(t); n != before {
							t.Errorf("%s: the late owner has made %d records of %d", name, n, before)
						}
					}
				}
				if n := notes(t, f, "late"); n != 0 {
					t.Errorf("late owners have left %d rows", n)
				}
			}},
		{"PurgesBesideLeasedCommandsLoseNothing_T10_E19",
			"Keys expire and are purged while they are used. Every caller that was told \"done\" has one order, and there is no order that nobody was told of.",
			func(t *testing.T, f Fixture) {
				const keys, clients, rounds = 3, 6, 12
				p, err := idempotency.NewPurger(idempotency.PurgerConfig{Store: f.Store, Grace: -1, Batch: 2, Pause: -1})
				if err != nil {
					t.Fatal(err)
				}
				ctx := within(t)
				s := &till{f: f, outside: func(_ context.Context, run int) error {
					if run%3 == 0 { // all that there is expires and goes, this attempt's own record with it
						f.Age(t, older)
						if _, err := p.Once(ctx); err != nil {
							t.Errorf("purge: %v", err)
						}
					}
					return nil
				}}
				sends := processes[waiting](t, 3, f.Store, s)
				var done [keys]atomic.Int64
				var working sync.WaitGroup
				for i := range clients {
					working.Go(func() {
						for round := range rounds {
							key := (i + round) % keys
							note := fmt.Sprint("purged-key-", key)
							r := call(ctx, sends[i%len(sends)], request(t, note), charge[waiting]{Note: note})
							var gone *idempotency.LeaseLostError
							var busy *idempotency.InProgressError
							switch {
							case r.err == nil && r.out.State == requestctx.StateExecuted:
								done[key].Add(1)
							case r.err == nil && r.out.Replayed:
							case errors.As(r.err, &gone), errors.As(r.err, &busy): // whose successor is at work
							default:
								t.Errorf("a caller gets %v with %+v", r.err, r.out)
							}
						}
					})
				}
				working.Wait()
				total := 0
				for key := range done {
					told := int(done[key].Load())
					if n := notes(t, f, fmt.Sprint("purged-key-", key)); n != told {
						t.Errorf("key %d: %d callers were told that it is done, and there are %d rows", key, told, n)
					}
					total += told
				}
				// What an owner that has lost its record is told depends on how far its successor is: a replay, or an error.
				if lost := int(s.runs.Load()) - total; total <= keys || lost == 0 {
					t.Errorf("the work was done %d times and %d owners have lost their record: the keys have not been purged meanwhile", total, lost)
				}
				if n := f.Records(t); n > keys {
					t.Errorf("%d records of %d keys", n, keys)
				}
			}},
	}
}

// personCases are those of what a person does to a Leased key, and of what a caller sees who asks later.
func personCases() []specCase {
	return []specCase{
		{"KeyThatAPersonFreedRunsAndItsOwnerCommitsNothing_L22_L09",
			"The support frees a key that hangs. The order can be sent again at once, and if the one that hung wakes up, there is still one order.",
			func(t *testing.T, f Fixture) {
				for _, alone := range []bool{true, false} {
					v := request(t, fmt.Sprint("freed-key-", alone))
					cmd := charge[hurried]{Note: v.Key.String(), Amount: 1}
					hung, alive := newGate(t), newGate(t)
					s := &till{f: f, alone: alone, outside: hung.first}
					first := background(within(t), charges[hurried](t, f.Store, s), v, cmd)
					await(t, hung.entered, "the first owner's start")
					elsewhere := charges[hurried](t, f.Store, s)
					failed[*idempotency.InProgressError](t, call(within(t), elsewhere, v, cmd), requestctx.StateInProgress)
					free(t, f, v)
					failed[*idempotency.ConflictError](t, call(within(t), elsewhere, v, charge[hurried]{Note: cmd.Note, Amount: 2}), requestctx.StateConflict)
					successor := &till{f: f, outside: alive.first}
					second := background(within(t), charges[hurried](t, f.Store, successor), v, cmd)
					await(t, alive.entered, "the second owner's start")
					hung.open()
					failed[*idempotency.InProgressError](t, await(t, first, "the first owner's answer"), requestctx.StateInProgress)
					alive.open()
					answer := await(t, second, "the second owner's answer")
					executed(t, answer)
					if answer.out.TookOver {
						t.Error("what a person has freed is reported as taken over")
					}
					replayed(t, call(within(t), elsewhere, v, cmd), answer)
					s.wantRuns(t, 1)
					successor.wantRuns(t, 1)
					if n := notes(t, f, cmd.Note); n != 1 {
						t.Errorf("%d business rows", n)
					}
				}
			}},
		{"ErasedOutcomeIsNeitherShownNorDoneAgain_T15",
			"A customer has asked to be forgotten. What the record held of him is gone, and the retry of his old order is not a new one.",
			func(t *testing.T, f Fixture) {
				s := &till{f: f, outside: func(ctx context.Context, _ int) error {
					requestctx.From(ctx).SetExternalRef("auth-4711")
					return nil
				}}
				here, elsewhere := charges[hurried](t, f.Store, s), charges[hurried](t, f.Store, s)
				v, cmd := request(t, "erased-1"), charge[hurried]{Note: "order", Amount: 1}
				first := call(within(t), here, v, cmd)
				executed(t, first)
				replayed(t, call(within(t), elsewhere, v, cmd), first)
				found, err := f.Store.Find(within(t), idempotency.Search{ExternalRef: "auth-4711"}, 10)
				if err != nil || len(found) != 1 {
					t.Fatalf("Find by the reference gives %d records and %v", len(found), err)
				}
				if erased, err := f.Store.Erase(within(t), found[0].ID, found[0].Attempt); err != nil || !erased {
					t.Fatalf("Erase gives (%v, %v), want true", erased, err)
				}
				for _, send := range []bus.Handler[charge[hurried], placed]{here, elsewhere, charges[hurried](t, f.Store, s)} {
					for _, amount := range []int{1, 2} {
						failed[*idempotency.ExpiredError](t, call(within(t), send, v, charge[hurried]{Note: "order", Amount: amount}), requestctx.StateExpired)
					}
				}
				if rec := kept(t, f, v); len(rec.Result) != 0 || rec.ExternalRef != "" || rec.Hash != found[0].Hash || rec.Scope != found[0].Scope {
					t.Errorf("what is left is %s with the result %q and the reference %q", show(&rec.Record), rec.Result, rec.ExternalRef)
				}
				s.wantRuns(t, 1)
				wantDatabase(t, f, 1, "order")
			}},
		{"OperationIsFoundHoweverFarItHasCome_rec4_rec8",
			"Who was told \"accepted\" asks later under the id that he got, and nobody else under the same id.",
			func(t *testing.T, f Fixture) {
				v, cmd := request(t, "operation-1"), charge[accepted]{Note: "order", Amount: 1}
				g := newGate(t)
				s := &till{f: f, outside: func(ctx context.Context, run int) error {
					requestctx.From(ctx).SetExternalRef("auth-4711")
					switch run {
					case 1:
						return errPaper
					case 2:
						return idempotency.Unknown(errPaper)
					}
					g.pass()
					return nil
				}}
				send := charges[accepted](t, f.Store, s)
				id := scopeOf(v, "storetest.charge").ID().Operation()
				find := func(v requestctx.Values) *idempotency.Operation {
					t.Helper()
					ctx, _ := requestctx.New(within(t), v)
					op, err := idempotency.FindOperation(ctx, f.Store, id)
					if err != nil {
						t.Fatalf("FindOperation: %v", err)
					}
					return op
				}
				wantState := func(when string, want idempotency.OperationState) *idempotency.Operation {
					t.Helper()
					op := find(v)
					if op == nil || op.State != want || op.ID != id || op.Command != "storetest.charge" {
						t.Fatalf("%s the operation is %+v, want %s", when, op, want)
					}
					return op
				}
				if op := find(v); op != nil {
					t.Errorf("before the first request there is the operation %+v", op)
				}
				if r := call(within(t), send, v, cmd); r.err != errPaper {
					t.Fatalf("the answer is %v, want the handler's own error", r.err)
				}
				wantState("after a failure", idempotency.OperationUnknown)
				failed[*idempotency.OutcomeUnknownError](t, call(within(t), send, v, cmd), requestctx.StateUnknown)
				wantState("under a live lease", idempotency.OperationInProgress)
				f.Age(t, overdue)
				wantState("when the lease is over", idempotency.OperationUnknown)
				answer := background(within(t), send, v, cmd)
				await(t, g.entered, "the handler's start")
				for _, send := range processes[accepted](t, 2, f.Store, s) {
					if e := failed[*idempotency.InProgressError](t, call(within(t), send, v, cmd), requestctx.StateInProgress); !e.Accepted || e.OperationID != id {
						t.Errorf("a duplicate is told %+v, want the operation %s", *e, id)
					}
				}
				wantState("while an attempt is at work", idempotency.OperationInProgress)
				g.open()
				first := await(t, answer, "the answer")
				executed(t, first)
				op := wantState("when it is done", idempotency.OperationCompleted)
				if string(op.Result) != `{"note":"order","run":3}` || op.OriginalRequestID != first.id || op.ExternalRef != "auth-4711" || strings.Contains(id, v.Key.String()) {
					t.Errorf("the operation is %+v with the result %s", op, op.Result)
				}
				for name, change := range map[string]func(v *requestctx.Values){
					"client": func(v *requestctx.Values) { v.Scope.Client = "client-2" },
					"tenant": func(v *requestctx.Values) { v.Scope.Tenant = "tenant-2" },
					"nobody": func(v *requestctx.Values) { v.Scope = requestctx.Scope{} },
				} {
					stranger := v
					change(&stranger)
					if op := find(stranger); op != nil {
						t.Errorf("another %s is shown %+v", name, op)
					}
				}
				rec := kept(t, f, v)
				if erased, err := f.Store.Erase(within(t), rec.ID, rec.Attempt); err != nil || !erased {
					t.Fatalf("Erase gives (%v, %v), want true", erased, err)
				}
				wantState("when its outcome was erased", idempotency.OperationGone)
				f.Age(t, older)
				if op := find(v); op != nil {
					t.Errorf("when it has expired the operation is %+v", op)
				}

				v = request(t, "operation-2")
				id = scopeOf(v, "storetest.charge").ID().Operation()
				refuses := &till{f: f, outside: func(context.Context, int) error { return idempotency.Final(declined{"limit"}) }}
				_ = call(within(t), charges[accepted](t, f.Store, refuses), v, cmd)
				if op := wantState("when it was refused", idempotency.OperationRefused); op.Refusal == nil || op.Refusal.Code() != "PAYMENT_DECLINED" {
					t.Errorf("the refusal is %+v", op.Refusal)
				}
			}},
	}
}
