package storetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
)

func engineCases() []specCase {
	cases := []specCase{
		{"FirstRunsAndEveryLaterOneReplays_R01_R02_BR10_BR40",
			"The customer presses pay again after a lost answer and gets the first answer, from whichever process he reaches.",
			func(t *testing.T, f Fixture) {
				s := &shop{f: f}
				here, elsewhere := open[defaults](t, f.Store, s), open[defaults](t, f.Store, s)
				v, cmd := request(t, "fresh-key-1"), order[defaults]{Note: "order", Amount: 4990}
				first := call(within(t), here, v, cmd)
				if got := executed(t, first); got != (placed{"order", 1}) {
					t.Errorf("the first answer is %+v", got)
				}
				for _, send := range []bus.Handler[order[defaults], placed]{here, here, elsewhere, elsewhere, here} {
					if got := replayed(t, call(within(t), send, v, cmd), first); got != first.res {
						t.Errorf("the replay is %+v, want %+v", got, first.res)
					}
				}
				s.wantRuns(t, 1)
				wantDatabase(t, f, 1, "order")
			}},
		{"OtherPayloadUnderTheKeyIsAConflict_pipe9_S07",
			"A corrected order must not be answered with the old one, and must not change it.",
			func(t *testing.T, f Fixture) {
				s := &shop{f: f}
				here, elsewhere := open[defaults](t, f.Store, s), open[defaults](t, f.Store, s)
				v, cmd := request(t, "conflict-key-1"), order[defaults]{Note: "order", Amount: 1}
				first := call(within(t), here, v, cmd)
				executed(t, first)
				for _, send := range []bus.Handler[order[defaults], placed]{here, elsewhere} {
					failed[*idempotency.ConflictError](t, call(within(t), send, v, order[defaults]{Note: "order", Amount: 2}), requestctx.StateConflict)
					other := v
					other.Resource = []string{"42"}
					failed[*idempotency.ConflictError](t, call(within(t), send, other, cmd), requestctx.StateConflict)
				}
				replayed(t, call(within(t), elsewhere, v, cmd), first)
				s.wantRuns(t, 1)
				wantDatabase(t, f, 1, "order")
			}},
		{"OtherKeyIsNewWork_pipe8_F24_R25_H17",
			"The same basket on purpose under a new key is a second order, and the case of a key counts.",
			func(t *testing.T, f Fixture) {
				s := &shop{f: f}
				send := open[defaults](t, f.Store, s)
				keys := []string{"Order-ABCDEF", "order-abcdef", "order-abcdeg", "01920000-0000-7000-8000-000000000001", "01920000-0000-7000-8000-000000000002",
					"01J8ZQ6Y8N0000000000000001", "01J8ZQ6Y8N0000000000000002", "aaaaaaaa", strings.Repeat("k", requestctx.MaxKeyLength), "a.b_c:d-e"}
				notes := make([]string, len(keys))
				for i, key := range keys {
					notes[i] = "the same basket"
					first := call(within(t), send, request(t, key), order[defaults]{Note: notes[i]})
					executed(t, first)
					replayed(t, call(within(t), open[defaults](t, f.Store, s), request(t, key), order[defaults]{Note: notes[i]}), first)
				}
				s.wantRuns(t, len(keys))
				wantDatabase(t, f, len(keys), notes...)
			}},
		{"SameKeyElsewhereIsIndependent_S01_S02_S05_S06_S08_S11_N08_W05",
			"Another tenant, client, route or command with the same key gets its own work, never somebody else's answer.",
			func(t *testing.T, f Fixture) {
				s := &shop{f: f}
				orders := open[defaults](t, f.Store, s)
				gifts := serve(t, f.Store, func(ctx context.Context, g gift) (placed, error) { return s.place(ctx, g.Note) })
				base := request(t, "shared-key-1")
				var notes []string
				for _, change := range []func(v *requestctx.Values){
					func(*requestctx.Values) {},
					func(v *requestctx.Values) { v.Scope.Tenant = "tenant-2" },
					func(v *requestctx.Values) { v.Scope.Tenant = "" },
					func(v *requestctx.Values) { v.Scope.Client = "client-2" },
					func(v *requestctx.Values) { v.Scope.Client = requestctx.Anonymous },
					func(v *requestctx.Values) { v.Scope = requestctx.Scope{Tenant: "a:b", Client: "c"} },
					func(v *requestctx.Values) { v.Scope = requestctx.Scope{Tenant: "a", Client: "b:c"} },
					func(v *requestctx.Values) { v.Scope = requestctx.Scope{Tenant: "a/b", Client: "c"} },
					func(v *requestctx.Values) { v.Source = "PUT /v1/orders" },
					func(v *requestctx.Values) { v.Source = "POST /v2/orders" },
					func(v *requestctx.Values) { v.Source = "consumer:billing" },
					func(v *requestctx.Values) { v.Source = "consumer:shipping" },
					func(v *requestctx.Values) { v.Source = "" },
				} {
					v := base
					change(&v)
					notes = append(notes, "an order", "a gift")
					first := call(within(t), orders, v, order[defaults]{Note: "an order"})
					executed(t, first)
					executed(t, call(within(t), gifts, v, gift{Note: "a gift"}))
					replayed(t, call(within(t), orders, v, order[defaults]{Note: "an order"}), first)
				}
				wantDatabase(t, f, len(notes), notes...)
			}},
		{"FinalRefusalIsStoredAndReplayedAndItsRowsAreUndone_R03_BR22",
			"A deterministic refusal is the intent's outcome; what the handler had written before it refused is not.",
			func(t *testing.T, f Fixture) {
				s := &shop{f: f, then: func(context.Context, int) error {
					return fmt.Errorf("pay: %w", idempotency.Final(declined{"limit"}))
				}}
				here, elsewhere := open[defaults](t, f.Store, s), open[defaults](t, f.Store, s)
				v, cmd := request(t, "refusal-key-1"), order[defaults]{Note: "undone", Amount: 1}
				first := call(within(t), here, v, cmd)
				var refused *idempotency.RefusedError
				if !errors.As(first.err, &refused) || first.out.State != requestctx.StateExecuted || first.res != (placed{}) {
					t.Fatalf("the answer is (%+v, %v) with %+v, want a refusal by this attempt", first.res, first.err, first.out)
				}
				if refused.Code() != "PAYMENT_DECLINED" || refused.Message != "declined: limit" || string(refused.Data) != `{"reason":"limit"}` {
					t.Errorf("the refusal is %+v", *refused)
				}
				for _, send := range []bus.Handler[order[defaults], placed]{here, elsewhere} {
					r := call(within(t), send, v, cmd)
					replayed(t, r, first)
					var again *idempotency.RefusedError
					if !errors.As(r.err, &again) || !reflect.DeepEqual(again, refused) {
						t.Errorf("the replayed refusal is %v, want %+v", r.err, *refused)
					}
					failed[*idempotency.ConflictError](t, call(within(t), send, v, order[defaults]{Note: "undone", Amount: 2}), requestctx.StateConflict)
				}
				s.wantRuns(t, 1)
				wantDatabase(t, f, 1)
			}},
		{"ErrorOfNoClassLeavesNothing_R04_R05_R09_R21_BR05_BR22_BR23_BR41",
			"A passing failure must not be stored: the retry runs, with any payload, because nothing had happened.",
			func(t *testing.T, f Fixture) {
				for name, err := range map[string]error{"plain": errPaper, "canceled": context.Canceled, "deadline": context.DeadlineExceeded, "coded": declined{"not marked"}} {
					s := &shop{f: f, then: func(_ context.Context, run int) error {
						if run <= 2 {
							return err
						}
						return nil
					}}
					send := open[defaults](t, f.Store, s)
					v := request(t, "unclassified-"+name)
					before := f.Records(t)
					for range 2 {
						r := call(within(t), send, v, order[defaults]{Note: "undone " + name, Amount: 1})
						if r.err != err || r.res != (placed{}) || r.out.State != requestctx.StateFreed {
							t.Errorf("%s: the answer is (%+v, %v) with %+v, want the handler's own error", name, r.res, r.err, r.out)
						}
						if n := f.Records(t); n != before {
							t.Errorf("%s: a failure left a record", name)
						}
					}
					corrected := order[defaults]{Note: "order " + name, Amount: 2}
					first := call(within(t), send, v, corrected)
					executed(t, first)
					replayed(t, call(within(t), send, v, corrected), first)
				}
				wantDatabase(t, f, 4, "order plain", "order canceled", "order deadline", "order coded")
			}},
		{"UnknownOutcomeIsAFaultOfAnAtomicHandler_R08",
			"Calls to the outside world do not belong into the transaction; what cannot be known cannot be rolled back.",
			func(t *testing.T, f Fixture) {
				s := &shop{f: f, then: func(_ context.Context, run int) error {
					if run == 1 {
						return idempotency.Unknown(errPaper)
					}
					return nil
				}}
				send := open[defaults](t, f.Store, s)
				v := request(t, "unknown-key-1")
				r := call(within(t), send, v, order[defaults]{Note: "undone"})
				failed[*idempotency.HandlerError](t, r, requestctx.StateFreed)
				if !errors.Is(r.err, errPaper) {
					t.Errorf("the error %v does not lead to its cause", r.err)
				}
				wantDatabase(t, f, 0)
				executed(t, call(within(t), send, v, order[defaults]{Note: "order"}))
				wantDatabase(t, f, 1, "order")
			}},
		{"PanicAndGoexitLeaveNothingAndGoOn_R06_BR14",
			"Every way to leave a handler frees the key; one that bypasses the return must not block it for days.",
			func(t *testing.T, f Fixture) {
				for name, leave := range map[string]func(){"panic": func() { panic(errPaper) }, "goexit": runtime.Goexit} {
					s := &shop{f: f, then: func(_ context.Context, run int) error {
						if run == 1 {
							leave()
						}
						return nil
					}}
					send := open[defaults](t, f.Store, s)
					v := request(t, "leaves-"+name)
					ctx, req := requestctx.New(within(t), v)
					var recovered any
					returned := false
					var wg sync.WaitGroup
					wg.Go(func() {
						defer func() { recovered = recover() }()
						_, _ = send(ctx, order[defaults]{Note: "undone"})
						returned = true
					})
					wg.Wait()
					if returned || name == "panic" && recovered != errPaper {
						t.Errorf("%s did not go on through the stage: returned %v, recovered %v", name, returned, recovered)
					}
					if state := req.Outcome().State; state != requestctx.StateFreed {
						t.Errorf("%s: the outcome is %q, want freed", name, state)
					}
					executed(t, call(within(t), send, v, order[defaults]{Note: "order " + name}))
				}
				wantDatabase(t, f, 2, "order panic", "order goexit")
			}},
		{"EmptyResultsAreResults_R10_R11",
			"Nil, zero, false and the empty string are outcomes. A store that takes one for nothing runs the work again.",
			func(t *testing.T, f Fixture) {
				sameAnswer[*placed](t, f, "nil pointer", nil, `null`)
				sameAnswer(t, f, "pointer", &placed{"p", 7}, `{"note":"p","run":7}`)
				sameAnswer(t, f, "zero", 0, `0`)
				sameAnswer(t, f, "false", false, `false`)
				sameAnswer(t, f, "empty string", "", `""`)
				sameAnswer(t, f, "empty struct", struct{}{}, `{}`)
				sameAnswer(t, f, "none", bus.None{}, `{}`)
				sameAnswer(t, f, "nil slice", []string(nil), `null`)
				sameAnswer(t, f, "empty slice", []string{}, `[]`)
				sameAnswer(t, f, "nil map", map[string]int(nil), `null`)
				sameAnswer(t, f, "empty map", map[string]int{}, `{}`)
				sameAnswer(t, f, "zero time", time.Time{}, `"0001-01-01T00:00:00Z"`)
				sameAnswer(t, f, "zero struct", placed{}, `{"note":"","run":0}`)
				sameAnswer(t, f, "nothing but null", json.RawMessage(`null`), `null`)
			}},
		{"OddResultsAreTheSameOnEveryReplay_R18_BR36",
			"The first caller and every later one get the same value, whatever is in it; never an order without its record.",
			func(t *testing.T, f Fixture) {
				sameAnswer(t, f, "NUL", "x\x00y", `"x\u0000y"`)
				sameAnswer(t, f, "emoji", "😀 ığüşöç", `"😀 ığüşöç"`)
				long := strings.Repeat("0123456789", 26_000) // within the limit of results
				sameAnswer(t, f, "long", long, `"`+long+`"`)
				sameAnswer(t, f, "invalid UTF-8", "\xff\xed\xa0\x80", "")
				sameAnswer(t, f, "time with a monotonic part", time.Now(), "")
				sameAnswer(t, f, "float", math.Nextafter(0.3, 1), `0.30000000000000004`)
				sameAnswer(t, f, "largest", int64(math.MaxInt64), `9223372036854775807`)
				for i, raw := range []string{`"\ud800"`, `12345678901234567890`, `1e400`, `{"b":1,"a":2,"a":3}`, `"x\u0000y"`} {
					sameAnswer(t, f, fmt.Sprint("raw ", i), json.RawMessage(raw), raw)
				}
			}},
		{"ResultThatCannotBeStoredUndoesTheWork_R14",
			"An order whose record cannot be written must not be there: nobody could ever be told about it.",
			func(t *testing.T, f Fixture) {
				runs := 0
				send := serve(t, f.Store, func(ctx context.Context, g give[float64]) (float64, error) {
					if runs++; runs == 1 {
						return math.NaN(), f.Insert(ctx, "undone")
					}
					return 1.5, f.Insert(ctx, "order")
				})
				v := request(t, "unencodable-1")
				r := call(within(t), send, v, give[float64]{})
				if e := failed[*idempotency.ResultError](t, r, requestctx.StateFreed); e.Stored {
					t.Error("the error says that the result is stored")
				}
				wantDatabase(t, f, 0)
				executed(t, call(within(t), send, v, give[float64]{}))
				wantDatabase(t, f, 1, "order")
			}},
		{"ResultThatCannotBeReadIsAnErrorAndNotASecondOrder_R15",
			"After a deploy that cannot read the old answer, the key waits for one that can. The handler does not run.",
			func(t *testing.T, f Fixture) {
				old := serve(t, f.Store, func(ctx context.Context, g give[string]) (string, error) { return "seven", f.Insert(ctx, "order") })
				changed := serve(t, f.Store, func(ctx context.Context, g give[int]) (int, error) { return 7, f.Insert(ctx, "second order") })
				v := request(t, "undecodable-1")
				first := call(within(t), old, v, give[string]{"a"})
				executed(t, first)
				for range 2 {
					r := call(within(t), changed, v, give[int]{"a"})
					if e := failed[*idempotency.ResultError](t, r, requestctx.StateRefused); !e.Stored {
						t.Error("the error does not say that the result is stored")
					}
				}
				if got := replayed(t, call(within(t), old, v, give[string]{"a"}), first); got != "seven" {
					t.Errorf("the old version replays %q", got)
				}
				wantDatabase(t, f, 1, "order")
			}},
		{"HangUpOfTheClientDoesNotStopTheWork_BR03_E50",
			"A client whose patience is shorter than the handler would otherwise never get its order: every try would be undone.",
			func(t *testing.T, f Fixture) {
				ctx, hangUp := context.WithCancel(within(t))
				s := &shop{f: f, then: func(ctx context.Context, run int) error {
					hangUp()
					return ctx.Err()
				}}
				send := open[defaults](t, f.Store, s)
				v, cmd := request(t, "hang-up-key-1"), order[defaults]{Note: "order"}
				first := call(ctx, send, v, cmd)
				executed(t, first)
				replayed(t, call(within(t), send, v, cmd), first)
				s.wantRuns(t, 1)
				wantDatabase(t, f, 1, "order")
			}},
		{"DuplicatesAtOnceRunOnce_L01_D11_see3_BR15",
			"The double click on two machines: one order, and everybody gets it.",
			func(t *testing.T, f Fixture) {
				for name, store := range stores(f) {
					for _, n := range []int{2, 12, 16} {
						s := &shop{f: f}
						v := request(t, fmt.Sprintf("at-once-%s-%d", name, n))
						cmd := order[patient]{Note: v.Key.String()}
						sends := []bus.Handler[order[patient], placed]{open[patient](t, store, s), open[patient](t, store, s)}
						ctx := within(t)
						replies := together(n, func(i int) reply[placed] { return call(ctx, sends[i%2], v, cmd) })
						if got, want := count(t, replies), (census{executed: 1, replayed: n - 1}); got != want {
							t.Errorf("%d at once, %s: %+v, want %+v", n, name, got, want)
						}
						if got := notes(t, f, cmd.Note); got != 1 {
							t.Errorf("%d at once, %s: %d business rows", n, name, got)
						}
					}
				}
			}},
		{"ManyKeysUnderFireHaveOneOrderEach_BR09_BR46_E03",
			"At every isolation level, with and without the hint: as many orders as keys, and no error of the database reaches a caller.",
			func(t *testing.T, f Fixture) {
				for name, store := range stores(f) {
					underFire[defaults](t, f, store, name+"-read-committed")
					if f.Isolations {
						underFire[repeatable](t, f, store, name+"-repeatable-read")
						underFire[serializable](t, f, store, name+"-serializable")
					}
				}
			}},
		{"FailingOwnersAreFollowedByOneThatSucceeds_L05_E04",
			"When the first one fails while others wait, one of them does the work, not all and not none.",
			func(t *testing.T, f Fixture) {
				s := &shop{f: f, then: func(_ context.Context, run int) error {
					if run <= 3 {
						return errPaper
					}
					return nil
				}}
				sends := []bus.Handler[order[patient], placed]{open[patient](t, f.Store, s), open[patient](t, f.Store, s)}
				v := request(t, "failing-owners-1")
				ctx := within(t)
				replies := together(8, func(i int) reply[placed] { return call(ctx, sends[i%2], v, order[patient]{Note: "order"}) })
				var good []reply[placed]
				for _, r := range replies {
					if !errors.Is(r.err, errPaper) {
						good = append(good, r)
					}
				}
				if c := count(t, good); c.executed != 1 || c.executed+c.replayed != len(good) || len(good) < 5 {
					t.Errorf("of 8 callers %d met a failure and the others are %+v; want at most 3, one executed, and replays", 8-len(good), c)
				}
				wantDatabase(t, f, 1, "order")
			}},
		{"DuplicateDuringTheWorkIsInProgress_L02_L04_BR39",
			"While the first one runs the second is told so, at once where the command does not wait; with another payload it becomes a conflict when there is a record.",
			func(t *testing.T, f Fixture) {
				entered, release := make(chan struct{}), make(chan struct{})
				s := &shop{f: f, then: func(ctx context.Context, _ int) error {
					close(entered)
					return waitFor(ctx, release)
				}}
				sends := []bus.Handler[order[impatient], placed]{open[impatient](t, f.Store, s)}
				if f.NoHint != nil { // another process can only ask where its transaction can run beside the first one's
					sends = append(sends, open[impatient](t, f.Store, s))
				}
				v := request(t, "during-key-1")
				mine, other := order[impatient]{Note: "order", Amount: 1}, order[impatient]{Note: "order", Amount: 2}
				done := make(chan reply[placed], 1)
				ctx := within(t)
				go func() { done <- call(ctx, sends[0], v, mine) }()
				await(t, entered, "the first handler's start")
				for _, send := range sends {
					for _, cmd := range []order[impatient]{mine, other} {
						e := failed[*idempotency.InProgressError](t, call(within(t), send, v, cmd), requestctx.StateInProgress)
						if e.RetryAfter != 2*time.Second {
							t.Errorf("RetryAfter is %v, want 2s", e.RetryAfter)
						}
					}
				}
				close(release)
				first := await(t, done, "the first answer")
				executed(t, first)
				for _, send := range sends {
					failed[*idempotency.ConflictError](t, call(within(t), send, v, other), requestctx.StateConflict)
					replayed(t, call(within(t), send, v, mine), first)
				}
				s.wantRuns(t, 1)
				wantDatabase(t, f, 1, "order")
			}},
		{"LoserWithoutTheHintRollsBackAndReplays_E03_BR39",
			"Where the hint does nothing, two handlers run and one order remains. The loser answers with it.",
			func(t *testing.T, f Fixture) {
				if f.NoHint == nil {
					return // attempts of one key cannot run side by side here
				}
				loserOf[defaults](t, f, "loser-read-committed", nil)
				loserOf[defaults](t, f, "loser-other-payload", nil)
				if f.Isolations {
					loserOf[repeatable](t, f, "loser-repeatable-read", nil)
					loserOf[serializable](t, f, "loser-serializable", nil)
				}
			}},
		{"FailureThatIsTheWinnersWorkIsAReplay_E03",
			"A loser may run into the winner's rows before its record (a unique order number): the record is looked at before the error is believed.",
			func(t *testing.T, f Fixture) {
				if f.NoHint == nil {
					return // attempts of one key cannot run side by side here
				}
				loserOf[defaults](t, f, "blind-read-committed", errPaper)
				loserOf[defaults](t, f, "blind-refusal", idempotency.Final(errPaper))
				if f.Isolations {
					loserOf[repeatable](t, f, "blind-repeatable-read", errPaper)
					loserOf[serializable](t, f, "blind-serializable", errPaper)
				}
			}},
		{"ExpiredKeyIsNewWork_T01_T02",
			"After the retention the key is new work, on purpose and counted; an hour before, it is not.",
			func(t *testing.T, f Fixture) {
				s := &shop{f: f}
				here := open[defaults](t, f.Store, s)
				v, cmd := request(t, "expiry-key-1"), order[defaults]{Note: "order", Amount: 1}
				first := call(within(t), here, v, cmd)
				executed(t, first)
				f.Age(t, idempotency.DefaultRetention-time.Hour)
				replayed(t, call(within(t), here, v, cmd), first)
				f.Age(t, 2*time.Hour)
				second := call(within(t), here, v, order[defaults]{Note: "order", Amount: 2})
				executed(t, second)
				if !second.out.ReusedExpired || first.out.ReusedExpired {
					t.Error("the outcome does not say that the key had expired")
				}
				replayed(t, call(within(t), here, v, order[defaults]{Note: "order", Amount: 2}), second)
				failed[*idempotency.ConflictError](t, call(within(t), here, v, cmd), requestctx.StateConflict)
				wantDatabase(t, f, 1, "order", "order")
			}},
		{"ExpiredTombstoneIsRefusedForGood_T03",
			"Where a second payment is worse than none, an old key is refused and never runs again.",
			func(t *testing.T, f Fixture) {
				s := &shop{f: f}
				v, cmd := request(t, "tombstone-key-1"), order[tombstone]{Note: "order", Amount: 1}
				first := call(within(t), open[tombstone](t, f.Store, s), v, cmd)
				executed(t, first)
				replayed(t, call(within(t), open[tombstone](t, f.Store, s), v, cmd), first)
				f.Age(t, older)
				for _, amount := range []int{1, 2} {
					failed[*idempotency.ExpiredError](t, call(within(t), open[tombstone](t, f.Store, s), v, order[tombstone]{Note: "order", Amount: amount}), requestctx.StateExpired)
				}
				// The record decides, not what the policy says today.
				failed[*idempotency.ExpiredError](t, call(within(t), open[defaults](t, f.Store, s), v, order[defaults]{Note: "order", Amount: 1}), requestctx.StateExpired)
				s.wantRuns(t, 1)
				wantDatabase(t, f, 1, "order")
			}},
		{"ManyReusesOfAnExpiredKeyRunOnce_T06_E40",
			"An expired key is as fresh as a new one: sixteen at once make one order.",
			func(t *testing.T, f Fixture) {
				for name, store := range stores(f) {
					s := &shop{f: f}
					v := request(t, "many-reuses-"+name)
					cmd := order[patient]{Note: v.Key.String()}
					sends := []bus.Handler[order[patient], placed]{open[patient](t, store, s), open[patient](t, store, s)}
					executed(t, call(within(t), sends[0], v, cmd))
					f.Age(t, older)
					ctx := within(t)
					replies := together(16, func(i int) reply[placed] { return call(ctx, sends[i%2], v, cmd) })
					if got, want := count(t, replies), (census{executed: 1, replayed: 15}); got != want {
						t.Errorf("%s: %+v, want %+v", name, got, want)
					}
					if got := notes(t, f, cmd.Note); got != 2 {
						t.Errorf("%s: %d business rows, want the old one and a new one", name, got)
					}
				}
			}},
		{"RecordsOfOtherModesAreRespected_T04",
			"The command was Leased before a deploy: what is in progress stays so, what failed may run with its payload, what is a tombstone stays one.",
			func(t *testing.T, f Fixture) {
				foreignStates(t, f)
			}},
		{"RowOfAnotherScopeIsALoudError",
			"A damaged table must be noticed: such a row is no replay, no conflict, and no free key.",
			func(t *testing.T, f Fixture) {
				s := &shop{f: f}
				for i, expired := range []bool{false, true} {
					v, cmd := request(t, fmt.Sprint("damaged-", i)), order[defaults]{Note: "order"}
					c := claimOf(t, f, v, cmd)
					rec := recorded(c, idempotency.Completion{Result: []byte(`{}`), ResultType: "result/0"})
					rec.Scope.Client, rec.Expired = "somebody-else", expired
					f.Plant(t, c.ID, rec)
					failed[*idempotency.RecordError](t, call(within(t), open[defaults](t, f.Store, s), v, cmd), requestctx.StateRefused)
				}
				s.wantRuns(t, 0)
				wantDatabase(t, f, 2)
			}},
		{"NestedCommandsShareTheParentsRecord_N01_N02_BR12",
			"One intent, one record, one transaction: what the inner commands write comes and goes with the outer one.",
			func(t *testing.T, f Fixture) {
				engine, err := idempotency.New(idempotency.Config{Store: f.Store})
				if err != nil {
					t.Fatal(err)
				}
				gifts := serveOn(t, engine, func(ctx context.Context, g gift) (placed, error) { return placed{Note: g.Note}, f.Insert(ctx, g.Note) })
				fail := true
				orders := serveOn(t, engine, func(ctx context.Context, o order[defaults]) (placed, error) {
					for i := range 2 {
						if _, err := gifts(ctx, gift{Note: fmt.Sprint("gift ", i), Amount: i}); err != nil {
							return placed{}, err
						}
					}
					if fail {
						return placed{}, errPaper
					}
					return placed{Note: o.Note}, f.Insert(ctx, o.Note)
				})
				v, cmd := request(t, "nested-key-1"), order[defaults]{Note: "order"}
				if r := call(within(t), orders, v, cmd); r.err != errPaper {
					t.Fatalf("the answer is %v, want the handler's error", r.err)
				}
				wantDatabase(t, f, 0)
				fail = false
				first := call(within(t), orders, v, cmd)
				executed(t, first)
				replayed(t, call(within(t), orders, v, cmd), first)
				wantDatabase(t, f, 1, "order", "gift 0", "gift 1")
			}},
		{"HandlerThatLeavesItsTransactionAloneIsSeen_R24",
			"Its work and its record do not share a commit. That is reported, and refused where the policy is strict.",
			func(t *testing.T, f Fixture) {
				v := request(t, "detached-key-1")
				lax := serve(t, f.Store, func(context.Context, order[defaults]) (placed, error) { return placed{}, nil })
				first := call(within(t), lax, v, order[defaults]{})
				executed(t, first)
				if !first.out.Detached {
					t.Error("the outcome does not say that the handler did not use its transaction")
				}
				if r := call(within(t), lax, v, order[defaults]{}); r.out.Detached {
					t.Error("a replay is reported as detached")
				}
				v = request(t, "detached-key-2")
				failed[*idempotency.HandlerError](t, call(within(t), serve(t, f.Store, func(context.Context, order[strict]) (placed, error) { return placed{}, nil }), v, order[strict]{}), requestctx.StateFreed)
				r := call(within(t), open[strict](t, f.Store, &shop{f: f}), v, order[strict]{Note: "order"})
				executed(t, r)
				if r.out.Detached {
					t.Error("a handler that wrote through its transaction is reported as detached")
				}
				wantDatabase(t, f, 2, "order")
			}},
		{"ReferenceAndOriginAreKeptForSupport_see1",
			"Support finds the order by the authorisation id or its draft, and the attempt that did the work by its request id.",
			func(t *testing.T, f Fixture) {
				watched := &spy{Store: f.Store}
				s := &shop{f: f, then: func(ctx context.Context, _ int) error {
					requestctx.From(ctx).SetExternalRef("auth-4711")
					return nil
				}}
				v := request(t, "reference-key-1")
				v.DraftID = "draft-7"
				const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
				send := open[defaults](t, watched, s)
				first := call(within(t), func(ctx context.Context, cmd order[defaults]) (placed, error) {
					requestctx.From(ctx).SetTrace(trace)
					return send(ctx, cmd)
				}, v, order[defaults]{Note: "order"})
				executed(t, first)
				rec := look(t, f.Store, watched.claim())
				ctx, req := requestctx.New(within(t), request(t, "reference-key-1"))
				if _, err := open[defaults](t, f.Store, s)(ctx, order[defaults]{Note: "order"}); err != nil || req.ExternalRef() != "auth-4711" || req.DraftID() != "draft-7" {
					t.Errorf("a replay's log line has the reference %q and the draft %q (%v)", req.ExternalRef(), req.DraftID(), err)
				}
				if rec == nil || rec.ExternalRef != "auth-4711" || rec.DraftID != "draft-7" || rec.OriginTrace != trace || req.Outcome().OriginalTrace != trace || rec.OriginRequestID != first.id || rec.Scope.Operation != "POST /v1/orders storetest.order" {
					t.Errorf("the record is %+v", rec)
				}
			}},
	}
	return cases
}

// stores are the stores of a fixture that a race is run on.
func stores(f Fixture) map[string]idempotency.Store {
	m := map[string]idempotency.Store{"with-hint": f.Store}
	if f.NoHint != nil {
		m["without-hint"] = f.NoHint
	}
	return m
}

// notes counts the business rows with a note.
func notes(t *testing.T, f Fixture, note string) (n int) {
	t.Helper()
	for _, row := range f.Rows(t) {
		if row == note {
			n++
		}
	}
	return n
}

// waitFor waits in a handler.
func waitFor(ctx context.Context, ch <-chan struct{}) error {
	select {
	case <-ch:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// sameAnswer runs a command whose handler gives value, and demands that every replay gives the same as the first answer. The
// stored form is compared where stored is not "".
func sameAnswer[R any](t *testing.T, f Fixture, name string, value R, stored string) {
	t.Helper()
	watched := &spy{Store: f.Store}
	runs := 0
	handle := func(ctx context.Context, g give[R]) (R, error) {
		runs++
		return value, f.Insert(ctx, name)
	}
	here, elsewhere := serve(t, watched, handle), serve(t, f.Store, handle)
	v, cmd := request(t, "result-"+strings.ReplaceAll(name, " ", "-")), give[R]{Case: name}
	first := call(within(t), here, v, cmd)
	executed(t, first)
	for _, send := range []bus.Handler[give[R], R]{here, elsewhere, elsewhere} {
		if got := replayed(t, call(within(t), send, v, cmd), first); !reflect.DeepEqual(got, first.res) {
			t.Errorf("%s: the replay is %#v and the first answer was %#v", name, got, first.res)
		}
	}
	if rec := look(t, f.Store, watched.claim()); rec == nil || stored != "" && string(rec.Result) != stored {
		t.Errorf("%s: the stored result is not %.100q", name, stored)
	}
	if n := notes(t, f, name); runs != 1 || n != 1 {
		t.Errorf("%s: the handler ran %d times and left %d rows", name, runs, n)
	}
}

// underFire sends twelve duplicates of each of twenty keys from four processes at once.
func underFire[P policies](t *testing.T, f Fixture, store idempotency.Store, name string) {
	t.Helper()
	s := &shop{f: f}
	var sends []bus.Handler[order[P], placed]
	for range 4 {
		sends = append(sends, open[P](t, store, s))
	}
	for key := range 20 {
		v := request(t, fmt.Sprintf("fire-%s-%d", name, key))
		cmd := order[P]{Note: v.Key.String()}
		ctx := within(t)
		c := count(t, together(12, func(i int) reply[placed] {
			r := call(ctx, sends[i%len(sends)], v, cmd)
			var retries *idempotency.RetriesError
			if errors.As(r.err, &retries) { // a bounded number of tries is an answer, like "in progress"
				r.err = &idempotency.InProgressError{}
			}
			return r
		}))
		if c.executed > 1 || c.other > 0 {
			t.Errorf("%s: %+v, want at most one executed and only replays and in progress besides", v.Key, c)
		}
		if r := call(within(t), sends[0], v, cmd); r.err != nil || c.executed == 1 && !r.out.Replayed {
			t.Errorf("%s, sent once more: (%+v, %v)", v.Key, r.out, r.err)
		}
		if n := notes(t, f, cmd.Note); n != 1 {
			t.Errorf("%s: %d business rows", v.Key, n)
		}
	}
}

// loserOf lets two handlers of one key run side by side. The second one commits first; the first one then returns loserErr, and
// its caller must get the second one's outcome.
//
// With a payload of its own the loser meets a conflict instead.
func loserOf[P policies](t *testing.T, f Fixture, key string, loserErr error) {
	t.Helper()
	entered := make(chan int, 2)
	release := []chan struct{}{make(chan struct{}), make(chan struct{})}
	s := &shop{f: f, then: func(ctx context.Context, run int) error {
		if run > 2 {
			return errors.New("the handler ran a third time")
		}
		entered <- run
		if err := waitFor(ctx, release[run-1]); err != nil {
			return err
		}
		if run == 1 {
			return loserErr
		}
		return nil
	}}
	v, cmds := request(t, key), []order[P]{{Note: key}, {Note: key}}
	otherPayload := strings.HasSuffix(key, "other-payload")
	if otherPayload {
		cmds[0].Amount = 1
	}
	ctx := within(t)
	replies := make([]chan reply[placed], 2)
	for i := range replies {
		replies[i] = make(chan reply[placed], 1)
		send := open[P](t, f.NoHint, s)
		go func() { replies[i] <- call(ctx, send, v, cmds[i]) }()
		await(t, entered, fmt.Sprintf("the start of handler %d", i+1))
	}
	close(release[1])
	winner := await(t, replies[1], "the winner's answer")
	executed(t, winner)
	close(release[0])
	loser := await(t, replies[0], "the loser's answer")
	if otherPayload {
		failed[*idempotency.ConflictError](t, loser, requestctx.StateConflict)
	} else if got := replayed(t, loser, winner); got != winner.res {
		t.Errorf("%s: the loser got %+v and the winner %+v", key, got, winner.res)
	}
	s.wantRuns(t, 2)
	if n := notes(t, f, key); n != 1 {
		t.Errorf("%s: %d business rows", key, n)
	}
}

// claimOf finds out under which claim a command is stored, without leaving anything behind.
func claimOf[P policies](t *testing.T, f Fixture, v requestctx.Values, cmd order[P]) idempotency.Claim {
	t.Helper()
	watched := &spy{Store: f.Store}
	send := serve(t, watched, func(context.Context, order[P]) (placed, error) { return placed{}, errPaper })
	if r := call(within(t), send, v, cmd); r.err != errPaper {
		t.Fatalf("a handler's error became %v", r.err)
	}
	return watched.claim()
}

// foreignStates plants records that the Atomic mode does not write, and sends the payload that they were made with and
// another one.
func foreignStates(t *testing.T, f Fixture) {
	const free = "runs"
	for i, row := range []struct {
		rec         idempotency.Record
		same, other string // the code of the error, or free
	}{
		{idempotency.Record{State: idempotency.InProgress}, "IDEMPOTENCY_REQUEST_IN_PROGRESS", "IDEMPOTENCY_KEY_CONFLICT"},
		{idempotency.Record{State: idempotency.InProgress, Expired: true}, "IDEMPOTENCY_REQUEST_IN_PROGRESS", "IDEMPOTENCY_KEY_CONFLICT"},
		{idempotency.Record{State: idempotency.Failed}, free, "IDEMPOTENCY_KEY_CONFLICT"},
		{idempotency.Record{State: idempotency.Failed, Expired: true}, free, free},
		{idempotency.Record{State: idempotency.Failed, Expired: true, AfterExpiry: idempotency.Tombstone}, free, "IDEMPOTENCY_KEY_EXPIRED"},
		{idempotency.Record{State: idempotency.Completed, ResultType: "tombstone", AfterExpiry: idempotency.Tombstone}, "IDEMPOTENCY_KEY_EXPIRED", "IDEMPOTENCY_KEY_EXPIRED"},
		{idempotency.Record{State: idempotency.Completed, ResultType: "tombstone", AfterExpiry: idempotency.Tombstone, Expired: true}, "IDEMPOTENCY_KEY_EXPIRED", "IDEMPOTENCY_KEY_EXPIRED"},
	} {
		for amount, want := range []string{row.same, row.other} {
			v := request(t, fmt.Sprintf("state-%d-%d-key", i, amount))
			note := v.Key.String()
			c := claimOf(t, f, v, order[impatient]{Note: note})
			rec := row.rec
			rec.Scope, rec.Hash, rec.HashVersion, rec.OriginRequestID = c.Scope, c.Hash, c.HashVersion, "the-first-attempt"
			rec.Attempt = again(c).Attempt
			f.Plant(t, c.ID, rec)
			r := call(within(t), open[impatient](t, f.Store, &shop{f: f}), v, order[impatient]{Note: note, Amount: amount})
			got, ran := bus.CodeOf(r.err), notes(t, f, note)
			if r.err == nil {
				got = free
			}
			if got != want || (ran == 1) != (want == free) {
				t.Errorf("a record in the state %s (result %q, expired %v, after expiry %v), other payload %v: %s with %d rows, want %s",
					rec.State, rec.ResultType, rec.Expired, rec.AfterExpiry, amount == 1, got, ran, want)
			}
			if want != free {
				wantRecord(t, f.Store, c, rec)
			}
		}
	}
}
