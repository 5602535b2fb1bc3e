package msgedge_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/requestctx"
	"github.com/tekil-go/tekil/requestctx/msgedge"
)

func TestW01_TheFirstDeliveryIsCommittedBeforeItIsAcknowledged(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{})
	g.receives(placed(), msgedge.Ack, "OK")
	g.want(1, 1, 1)
	rec := g.mem.Records()[0]
	same(t, "scope", rec.Scope, idempotency.Scope{Client: "orders", Operation: "consumer:billing billing.invoice", Key: id})
	same(t, "state", rec.State, idempotency.Completed)
}

// A lost acknowledgement, a redelivery and an outbox that sends a row twice look alike.
func TestW02_W13_W15_WhatIsDeliveredAgainIsAcknowledgedWithoutEffect(t *testing.T) {
	t.Parallel()
	for _, typ := range []string{"order.placed", "order.charge"} {
		g := newRig(t, setup{})
		g.receives(placed(withType(typ)), msgedge.Ack, "OK")
		for n := range 3 {
			g.receives(placed(withType(typ), delivered(n)), msgedge.Ack, "REPLAYED")
		}
		g.want(1, 1, 1)
	}
}

func TestW03_ADuplicateOfWorkThatIsUnderWayIsPutBackAndNeverAcknowledged(t *testing.T) {
	t.Parallel()
	for _, typ := range []string{"order.placed", "order.charge"} {
		synctest.Test(t, func(t *testing.T) {
			entered, die := make(chan struct{}), make(chan struct{})
			g := newRig(t, setup{config: msgedge.Config{MaxDeliveries: 2}, work: func(_ context.Context, n int64, _ string) error {
				if n == 1 {
					close(entered)
					<-die
					panic("killed")
				}
				return nil
			}})
			first := make(chan msgedge.Verdict)
			go func() { first <- g.Receive(t.Context(), placed(withType(typ))) }()
			<-entered
			for _, deliveries := range []int{0, 1, 2, 50} { // also where a message that failed would be set aside
				v := g.receives(placed(withType(typ), delivered(deliveries)), msgedge.Retry, "IDEMPOTENCY_REQUEST_IN_PROGRESS")
				if v.Delay < 2*time.Second {
					t.Errorf("it comes again after %v, and was told 2 s", v.Delay)
				}
			}
			close(die)
			g.is(<-first, msgedge.Retry, "PANIC")
			g.receives(placed(withType(typ), delivered(3)), msgedge.Ack, "OK")
			same(t, "runs", g.handled.Load(), 2)
			same(t, "rows", len(g.mem.Rows()), 1)
		})
	}
}

func TestW04_BR13_AMessageWithoutAnIDIsSetAsideAndNoneIsMadeUp(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{})
	for id, reason := range map[string]string{
		"": "MESSAGE_ID_MISSING", "   ": "MESSAGE_ID_MISSING", "          ": "MESSAGE_ID_MISSING", "\t": "MESSAGE_ID_MISSING", "\u00a0": "MESSAGE_ID_MISSING",
		"\x00": "IDEMPOTENCY_KEY_INVALID", "\u200b": "IDEMPOTENCY_KEY_INVALID", "1234567": "IDEMPOTENCY_KEY_INVALID", strings.Repeat("a", 129): "IDEMPOTENCY_KEY_INVALID",
		"m-0000001\x00": "IDEMPOTENCY_KEY_INVALID", "m-00000\xff1": "IDEMPOTENCY_KEY_INVALID", `"m-0000001"`: "IDEMPOTENCY_KEY_INVALID",
		// Two that differ in blanks only are not one, and neither is trimmed to be one.
		" m-0000001": "IDEMPOTENCY_KEY_INVALID", "m-0000001 ": "IDEMPOTENCY_KEY_INVALID", "m-0000001\n": "IDEMPOTENCY_KEY_INVALID",
	} {
		for range 2 {
			for _, typ := range []string{"order.placed", "order.charge", "stock.moved", "unknown"} {
				v := g.receives(placed(withID(id), withType(typ)), msgedge.DeadLetter, reason)
				if id := strings.TrimSpace(id); id != "" && strings.Contains(v.Err.Error(), id) {
					t.Errorf("the error holds the id: %v", v.Err)
				}
			}
			g.purge()
		}
	}
	g.want(0, 0, 0)
	same(t, "questions to the store", g.store.asked.Load(), 0)
	g.receives(placed(), msgedge.Ack, "OK")
}

func TestW06_AnIDThatComesAgainWithAnotherBodyIsSetAside(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{})
	g.receives(placed(), msgedge.Ack, "OK")
	g.receives(placed(withBody(`{"order_id":"o-1","amount":5990}`)), msgedge.DeadLetter, "IDEMPOTENCY_KEY_CONFLICT")
	g.receives(placed(withBody(` {"amount":4990, "order_id":"o-1"} `)), msgedge.Ack, "REPLAYED") // another writing of the same
	g.want(1, 1, 1)
}

func TestW07_ARefusalIsTheOutcomeAndItsMessageIsDone(t *testing.T) {
	t.Parallel()
	for action, cfg := range map[msgedge.Action]msgedge.Config{msgedge.Ack: {}, msgedge.DeadLetter: {Refusals: msgedge.DeadLetter}} {
		for _, typ := range []string{"order.placed", "order.charge"} {
			g := newRig(t, setup{config: cfg, work: func(context.Context, int64, string) error {
				return idempotency.Final(coded{"CUSTOMER_BLOCKED", "The customer is blocked."})
			}})
			g.receives(placed(withType(typ)), action, "CUSTOMER_BLOCKED")
			g.receives(placed(withType(typ), delivered(2)), action, "CUSTOMER_BLOCKED")
			g.want(1, 0, 1)
			same(t, "outcome", g.mem.Records()[0].Outcome, idempotency.Refusal)
		}
	}
}

func TestW08_AfterAFailureTheRedeliveryIsNoDuplicateOfItself(t *testing.T) {
	t.Parallel()
	for typ, records := range map[string]int{"order.placed": 0, "order.charge": 1} {
		g := newRig(t, setup{work: func(_ context.Context, n int64, _ string) error {
			if n < 3 {
				return errAway
			}
			return nil
		}})
		for n := range 2 {
			v := g.receives(placed(withType(typ), delivered(n+1)), msgedge.Retry, "INTERNAL")
			if !errors.Is(v.Err, errAway) || v.Delay == 0 {
				t.Errorf("%v after %v", v.Err, v.Delay)
			}
			g.want(int64(n+1), 0, records)
		}
		g.receives(placed(withType(typ), delivered(3)), msgedge.Ack, "OK")
		g.receives(placed(withType(typ), delivered(4)), msgedge.Ack, "REPLAYED")
		g.want(3, 1, 1)
	}
}

func TestW08_WhileTheStoreIsAwayNoMessageIsSetAside(t *testing.T) {
	t.Parallel()
	for _, typ := range []string{"order.placed", "order.charge"} {
		g := newRig(t, setup{config: msgedge.Config{MaxDeliveries: 2}})
		g.store.away.Store(true)
		for n := range 4 {
			g.receives(placed(withType(typ), delivered(n)), msgedge.Retry, "IDEMPOTENCY_STORE_UNAVAILABLE")
		}
		g.store.away.Store(false)
		g.receives(placed(withType(typ), delivered(5)), msgedge.Ack, "OK")
		g.want(1, 1, 1)
	}
}

func TestW09_W10_APoisonMessageIsSetAsideAndRunsAfterTheFix(t *testing.T) {
	t.Parallel()
	for _, fails := range []func() error{
		func() error { return errAway },
		func() error { panic("poison") },
	} {
		for _, typ := range []string{"order.placed", "order.charge", "stock.moved"} {
			var mended atomic.Bool
			g := newRig(t, setup{config: msgedge.Config{MaxDeliveries: 3}, work: func(context.Context, int64, string) error {
				if mended.Load() {
					return nil
				}
				return fails()
			}})
			m := placed(withType(typ))
			if typ == "stock.moved" {
				m.Payload = []byte(`{"item":"a"}`)
			}
			for _, n := range []int{1, 2} {
				m.Deliveries = n
				same(t, "action", g.Receive(t.Context(), m).Action, msgedge.Retry)
			}
			m.Deliveries = 3
			g.receives(m, msgedge.DeadLetter, "DELIVERIES_EXHAUSTED")
			contains(t, g.log.last(), `"level":"WARN"`, `"msg":"msgedge: dead-letter"`, `"code":"DELIVERIES_EXHAUSTED"`, `"key":"m-0000001"`, `"delivery":3`)
			mended.Store(true)
			m.Deliveries = 1
			g.receives(m, msgedge.Ack, "OK")
		}
	}
}

func TestW09_W10_AKeyThatWasTriedTooOftenRunsWhenAPersonHasReleasedIt(t *testing.T) {
	t.Parallel()
	var mended atomic.Bool
	g := newRig(t, setup{work: func(context.Context, int64, string) error {
		if mended.Load() {
			return nil
		}
		return errAway
	}})
	m := placed(withType("order.charge"))
	for range 7 { // the policy's MaxAttempts, where the broker does not count
		g.receives(m, msgedge.Retry, "INTERNAL")
	}
	g.receives(m, msgedge.DeadLetter, "IDEMPOTENCY_ATTEMPTS_EXHAUSTED")
	g.want(7, 0, 1)
	same(t, "state", g.mem.Records()[0].State, idempotency.Failed)

	mended.Store(true)
	g.receives(m, msgedge.DeadLetter, "IDEMPOTENCY_ATTEMPTS_EXHAUSTED")
	admin, err := idempotency.NewAdmin(idempotency.AdminConfig{Store: g.mem, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	found, err := admin.Find(t.Context(), idempotency.Search{Key: id})
	if err != nil || len(found) != 1 {
		t.Fatalf("%d records, %v", len(found), err)
	}
	if err := admin.Release(t.Context(), found[0].ID, idempotency.Intervention{By: "ada", Reason: "mended"}); err != nil {
		t.Fatal(err)
	}
	g.receives(m, msgedge.Ack, "OK")
	g.want(8, 1, 1)
}

// An invalid message is set aside and has spent nothing: mended by a person, it runs under its id.
func TestW10_AnInvalidMessageRunsUnderItsIDWhenItHasBeenMended(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{})
	g.receives(placed(withBody(`{"order_id":"o-1"}`)), msgedge.DeadLetter, "VALIDATION_FAILED")
	g.want(0, 0, 0)
	g.receives(placed(), msgedge.Ack, "OK")
	g.want(1, 1, 1)
}

// table is data with an identity and a version of its own.
type table struct {
	mu   sync.Mutex
	rows map[string]stock
}

func (s *table) upsert(c stock) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rows == nil {
		s.rows = make(map[string]stock)
	}
	if c.Version >= s.rows[c.Item].Version {
		s.rows[c.Item] = c
	}
}

func TestW11_OrderIsNotKeptHereAndAVersionInTheDataDoesIt(t *testing.T) {
	t.Parallel()
	var s table
	g := newRig(t, setup{take: s.upsert})
	g.receives(placed(withID("m-0000002"), withType("stock.moved"), withBody(`{"item":"a","level":5,"version":2}`)), msgedge.Ack, "OK")
	g.receives(placed(withID("m-0000001"), withType("stock.moved"), withBody(`{"item":"a","level":9,"version":1}`)), msgedge.Ack, "OK")
	g.want(2, 0, 0)
	same(t, "stock", s.rows["a"], stock{"a", 5, 2})
}

func TestW12_WhereTheDataHasAKeyOfItsOwnNoMarkAndNoRecordAreNeeded(t *testing.T) {
	t.Parallel()
	var s table
	g := newRig(t, setup{take: s.upsert})
	for range 3 {
		g.receives(placed(withType("stock.moved"), withBody(`{"item":"a","level":5,"version":2}`)), msgedge.Ack, "OK")
	}
	g.want(3, 0, 0)
	same(t, "rows", len(s.rows), 1)
	same(t, "questions to the store", g.store.asked.Load(), 0)
}

// A mail is beside the transaction, so that a second one is possible; the row is not written twice. Where that is not good enough
// the mail goes out under a downstream key, as money does.
func TestW14_AMailBesideTheTransactionCanGoOutTwiceAndARowCannot(t *testing.T) {
	t.Parallel()
	for typ, mails := range map[string]int{"order.placed": 2, "order.charge": 1} {
		var sent []string
		keys := map[string]bool{}
		g := newRig(t, setup{work: func(ctx context.Context, n int64, order string) error {
			key, err := idempotency.DownstreamKey(ctx, "mail")
			if err != nil {
				return err
			}
			if typ == "order.placed" || !keys[key] { // the one who sends mails for order.charge knows keys
				keys[key] = true
				sent = append(sent, order)
			}
			if n == 1 {
				return errAway // after the mail, before the commit
			}
			return nil
		}})
		g.receives(placed(withType(typ)), msgedge.Retry, "INTERNAL")
		g.receives(placed(withType(typ), delivered(2)), msgedge.Ack, "OK")
		g.receives(placed(withType(typ), delivered(3)), msgedge.Ack, "REPLAYED")
		same(t, "mails for "+typ, len(sent), mails)
		g.want(2, 1, 1)
	}
}

func TestW16_OneIntentInTwoMessagesIsKnownByTheKeyThatTheApplicationSends(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{config: msgedge.Config{KeyHeader: "Intent-Key"}})
	key := keyed("Intent-Key", "intent-00001")
	g.receives(placed(withID("m-0000001"), key), msgedge.Ack, "OK")
	g.receives(placed(withID("m-0000002"), key), msgedge.Ack, "REPLAYED")
	g.receives(placed(withID("m-0000003"), keyed("intent-KEY", "intent-00001")), msgedge.Ack, "REPLAYED")
	g.receives(placed(withID(""), key), msgedge.Ack, "REPLAYED") // it has what it is known by
	g.want(1, 1, 1)
	g.receives(placed(withID("m-0000001")), msgedge.Ack, "OK") // by its id, as it has no key
	g.receives(placed(withID("m-0000001")), msgedge.Ack, "REPLAYED")
	g.want(2, 2, 2)

	// A key that is there and cannot be taken is not replaced by the id, which would be a weaker one.
	for _, wrong := range []func(*msgedge.Message){
		keyed("Intent-Key", ""), keyed("Intent-Key", "  "), keyed("Intent-Key", " intent-00001"), keyed("Intent-Key", "short"),
		keyed("Intent-Key", "intent-00001,intent-00001"),
		func(m *msgedge.Message) {
			keyed("Intent-Key", "intent-00001")(m)
			keyed("intent-key", "intent-00001")(m)
		},
	} {
		v := g.receives(placed(withID("m-0000004"), wrong), msgedge.DeadLetter, "IDEMPOTENCY_KEY_INVALID")
		if strings.Contains(v.Err.Error(), "intent-00001") {
			t.Errorf("the error holds the key: %v", v.Err)
		}
	}
	g.want(2, 2, 2)
	same(t, "lines with a message's id", strings.Count(g.log.String(), "intent-00001"), 0)
}

func TestW16_WithoutKeyHeaderAHeaderIsNoKey(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{})
	g.receives(placed(withID("m-0000001"), keyed("Idempotency-Key", "intent-00001"), keyed("", "intent-00001")), msgedge.Ack, "OK")
	g.receives(placed(withID("m-0000002"), keyed("Idempotency-Key", "intent-00001"), keyed("", "intent-00001")), msgedge.Ack, "OK")
	g.want(2, 2, 2)
}

// receiveAll is how a batch is received.
func receiveAll(ctx context.Context, c *msgedge.Consumer, batch []msgedge.Message) (reasons []string) {
	for _, m := range batch {
		reasons = append(reasons, c.Receive(ctx, m).Reason)
	}
	return reasons
}

func TestW17_InABatchOneFailureUndoesNoOther(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{work: func(_ context.Context, n int64, order string) error {
		if order == "o-3" && n == 2 {
			return errAway
		}
		return nil
	}})
	order := func(n string) msgedge.Message {
		return placed(withID("m-000000"+n), withBody(`{"order_id":"o-`+n+`","amount":1}`))
	}
	batch := []msgedge.Message{order("1"), placed(withID("m-0000002"), withBody(`{`)), order("3"), order("4")}
	same(t, "reasons", strings.Join(receiveAll(t.Context(), g.Consumer, batch), " "), "OK MALFORMED_MESSAGE INTERNAL OK")
	same(t, "rows", strings.Join(g.mem.Rows(), " "), "o-1 o-4")
	same(t, "reasons", strings.Join(receiveAll(t.Context(), g.Consumer, batch), " "), "REPLAYED MALFORMED_MESSAGE OK REPLAYED")
	same(t, "rows", strings.Join(g.mem.Rows(), " "), "o-1 o-4 o-3")
}

func TestW18_AfterTheRetentionAMessageIsNewWorkAndSaysSo(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{})
	g.receives(placed(), msgedge.Ack, "OK")
	g.mem.Age(idempotency.DefaultRetention - time.Minute)
	g.receives(placed(delivered(2)), msgedge.Ack, "REPLAYED")
	g.mem.Age(2 * time.Minute)
	sent := time.Now().Add(-idempotency.DefaultRetention)
	g.receives(placed(delivered(3), sentAt(sent)), msgedge.Ack, "OK")
	g.want(2, 2, 1)
	last := g.lines.All()[g.lines.Len()-1].ContextMap()
	same(t, "reused", last["reused_expired"], any(true))
	attributes, _ := last["attributes"].(map[string]any)
	same(t, "age", attributes["sent_at"], any(sent.UTC().Format(time.RFC3339)))
	same(t, "delivery", attributes["delivery"], any("3"))
}

func TestW18_ATombstoneIsNotReopenedByALateMessage(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{})
	m := placed(withType("order.closed"), withBody(`{"order_id":"o-1"}`))
	g.receives(m, msgedge.Ack, "OK")
	g.mem.Age(idempotency.DefaultRetention + time.Minute)
	g.receives(m, msgedge.Ack, "IDEMPOTENCY_KEY_EXPIRED")
	g.purge()
	g.receives(m, msgedge.Ack, "IDEMPOTENCY_KEY_EXPIRED")
	g.want(1, 1, 1)
}

func TestW19_WhatDiffersFromDeliveryToDeliveryIsNoPartOfTheKeyOrThePayload(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{})
	g.receives(placed(keyed("receipt-handle", "AAA")), msgedge.Ack, "OK")
	g.receives(placed(keyed("receipt-handle", "BBB"), keyed("x-retry", "2"), delivered(7), sentAt(time.Now()), from("orders")), msgedge.Ack, "REPLAYED")
	g.want(1, 1, 1)
}

// What a command that the handler has sent says of its own record is not taken for what was to be done.
func TestMsg4_AMessageIsNotLostOverTheOutcomeOfAnotherCommand(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{})
	order := withBody(`{"order_id":"o-1"}`)
	g.receives(placed(withType("order.relay"), order), msgedge.Retry, "INTERNAL")
	v := g.receives(placed(withType("order.relay"), order), msgedge.DeadLetter, "IDEMPOTENCY_RESULT_UNAVAILABLE")
	if !is[*idempotency.ResultUnavailableError](v.Err) {
		t.Errorf("got %v", v.Err)
	}

	g = newRig(t, setup{})
	g.receives(placed(withType("order.wrap"), order), msgedge.Ack, "OK")
	g.receives(placed(withType("order.wrap"), order), msgedge.Ack, "OK") // and not a replay: that is what it has sent
	g.mem.Age(idempotency.DefaultRetention + time.Minute)
	g.receives(placed(withType("order.wrap"), order), msgedge.DeadLetter, "IDEMPOTENCY_KEY_EXPIRED")
}

func TestADuplicateWhoseResultIsNotKeptIsAcknowledged(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{})
	m := placed(withType("order.ticket"), withBody(`{"order_id":"o-1"}`))
	g.receives(m, msgedge.Ack, "OK")
	g.receives(m, msgedge.Ack, "IDEMPOTENCY_RESULT_UNAVAILABLE")
	g.want(1, 1, 1)
}

func TestTheTenantIsPartOfTheScope(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{config: msgedge.Config{Tenant: func(ctx context.Context, m msgedge.Message) (string, error) {
		if requestctx.From(ctx) == nil {
			return "", errAway
		}
		return m.Headers["tenant"], nil
	}}})
	for _, tenant := range []string{"acme", "umbrella"} {
		g.receives(placed(keyed("tenant", tenant)), msgedge.Ack, "OK")
		g.receives(placed(keyed("tenant", tenant)), msgedge.Ack, "REPLAYED")
	}
	g.want(2, 2, 2)
	g.receives(placed(), msgedge.DeadLetter, "TENANT_UNRESOLVED")
	g.receives(placed(keyed("tenant", "a\x00")), msgedge.DeadLetter, "TENANT_UNRESOLVED")
	g.want(2, 2, 2)
}

func is[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}
