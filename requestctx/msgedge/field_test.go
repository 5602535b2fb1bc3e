package msgedge_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/tekil-go/tekil/behaviors/idempotency/memstore"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/registry"
	"github.com/tekil-go/tekil/requestctx"
	"github.com/tekil-go/tekil/requestctx/msgedge"
)

// atOnce receives messages at the same time, each by its consumer.
func atOnce(ctx context.Context, m msgedge.Message, consumers ...*msgedge.Consumer) []msgedge.Verdict {
	verdicts := make([]msgedge.Verdict, len(consumers))
	var wg sync.WaitGroup
	for i, c := range consumers {
		wg.Go(func() { verdicts[i] = c.Receive(ctx, m) })
	}
	wg.Wait()
	return verdicts
}

func TestBR16_AMessageWhoseHandlerFailedReachesItAgainAndIsDoneOnce(t *testing.T) {
	t.Parallel()
	for _, typ := range []string{"order.placed", "order.charge"} {
		for name, fail := range map[string]func() error{"error": func() error { return errAway }, "panic": func() error { panic(errAway) }} {
			mem := memstore.New()
			work := func(_ context.Context, n int64, _ string) error {
				if n == 1 {
					return fail()
				}
				return nil
			}
			g := newRig(t, setup{mem: mem, work: work})
			other := newRig(t, setup{mem: mem}) // another process
			same(t, name, g.Receive(t.Context(), placed(withType(typ))).Action, msgedge.Retry)
			g.want(1, 0, map[string]int{"order.placed": 0, "order.charge": 1}[typ])

			done := 0
			for _, v := range atOnce(t.Context(), placed(withType(typ), delivered(2)), g.Consumer, g.Consumer, other.Consumer) {
				switch {
				case v.Action == msgedge.Ack && v.Reason == "OK":
					done++
				case v.Action == msgedge.Ack && v.Reason == "REPLAYED", v.Action == msgedge.Retry && v.Reason == "IDEMPOTENCY_REQUEST_IN_PROGRESS":
				default:
					t.Errorf("%s, %s: %v, %s (%v)", typ, name, v.Action, v.Reason, v.Err)
				}
			}
			same(t, "successes", done, 1)
			same(t, "rows", len(mem.Rows()), 1)
			g.receives(placed(withType(typ), delivered(3)), msgedge.Ack, "REPLAYED")
			other.receives(placed(withType(typ), delivered(3)), msgedge.Ack, "REPLAYED")
			same(t, "rows", len(mem.Rows()), 1)
		}
	}
}

func TestW05_BR25_OneMessageIsHandledOnceByEachOfItsConsumers(t *testing.T) {
	t.Parallel()
	mem := memstore.New()
	here, there := newRig(t, setup{mem: mem}), newRig(t, setup{mem: mem}) // two processes on one database
	both := []*msgedge.Consumer{
		here.consumer(msgedge.Config{Consumer: "billing"}), here.consumer(msgedge.Config{Consumer: "shipping"}),
		there.consumer(msgedge.Config{Consumer: "billing"}), there.consumer(msgedge.Config{Consumer: "shipping"}),
	}
	for range 4 {
		for _, v := range atOnce(t.Context(), placed(), both...) {
			if v.Action == msgedge.DeadLetter || v.Action == msgedge.Retry && v.Reason != "IDEMPOTENCY_REQUEST_IN_PROGRESS" {
				t.Errorf("%v, %s (%v)", v.Action, v.Reason, v.Err)
			}
		}
	}
	for _, c := range both {
		here.is(c.Receive(t.Context(), placed()), msgedge.Ack, "REPLAYED")
	}
	same(t, "rows", len(mem.Rows()), 2)
	same(t, "records", len(mem.Records()), 2)
}

func TestBR25_EqualIDsOfTwoTopicsAreTwoMessages(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{})
	g.receives(placed(from("orders")), msgedge.Ack, "OK")
	g.receives(placed(from("returns"), withBody(`{"order_id":"r-1","amount":1}`)), msgedge.Ack, "OK")
	g.receives(placed(from("orders")), msgedge.Ack, "REPLAYED")
	g.receives(placed(from("returns"), withBody(`{"order_id":"r-1","amount":1}`)), msgedge.Ack, "REPLAYED")
	g.receives(placed(), msgedge.Ack, "REPLAYED") // of Config.Source, which is orders
	g.want(2, 2, 2)
}

// A rename is covered by what the documentation says: the new name has seen nothing, and the old one still protects.
func TestBR25_ARenamedConsumerHasSeenNothingAndTheOldNameStillProtects(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{})
	g.receives(placed(), msgedge.Ack, "OK")
	g.is(g.consumer(msgedge.Config{Consumer: "invoicing"}).Receive(t.Context(), placed()), msgedge.Ack, "OK")
	g.receives(placed(), msgedge.Ack, "REPLAYED")
}

func TestBR26_AWorkerWithoutHTTPIsProtectedOrDoesNotStart(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{}) // it has no HTTP part
	g.receives(placed(), msgedge.Ack, "OK")
	g.receives(placed(), msgedge.Ack, "REPLAYED")
	g.want(1, 1, 1)
	protected := 0
	for _, c := range g.reg.Describe().Commands {
		if c.Idempotency != nil {
			protected++
		}
	}
	same(t, "protected commands", protected, 6)
	same(t, "store", g.reg.Describe().Store, g.mem.Describe())

	reg := registry.New(registry.Config{Logger: zap.NewNop()})
	registry.Handle(reg, func(context.Context, invoice) (invoiced, error) { return invoiced{}, nil })
	b, err := reg.Build()
	if err == nil || b != nil {
		t.Fatal("a marked command without a store was built")
	}
	contains(t, err.Error(), "billing.invoice", "no store is set")
	if _, err := msgedge.New(msgedge.Config{Bus: b, Consumer: "billing"}); err == nil { // and should the error be ignored
		t.Error("a consumer without a bus was made")
	}
}

// broker delivers a message until it is dealt with, as its consumer says.
func broker(g *rig, m msgedge.Message, between func(delivery int)) (v msgedge.Verdict) {
	for m.Deliveries = 1; ; m.Deliveries++ {
		v = g.Receive(g.t.Context(), m)
		if v.Action != msgedge.Retry {
			return v
		}
		if between != nil {
			between(m.Deliveries)
		}
		time.Sleep(v.Delay)
	}
}

// minutes makes the time between two tries grow beyond the lease of the key, which is 5 minutes.
func minutes(deliveries int) time.Duration { return time.Minute << deliveries }

func TestBR42_BetweenTheTriesOfAMessageItsIntentIsOnePieceOfWork(t *testing.T) {
	t.Parallel()
	for _, typ := range []string{"order.placed", "order.charge"} {
		synctest.Test(t, func(t *testing.T) {
			entered, goOn := make(chan struct{}, 5), make(chan struct{})
			g := newRig(t, setup{config: msgedge.Config{KeyHeader: "Intent-Key", MaxDeliveries: 5, Delay: minutes}, work: func(_ context.Context, n int64, _ string) error {
				if n <= 2 {
					return errAway
				}
				entered <- struct{}{}
				<-goOn
				return nil
			}})
			intent := keyed("Intent-Key", "intent-00001")
			began := time.Now()
			last := make(chan msgedge.Verdict)
			go func() { last <- broker(g, placed(withType(typ), intent), nil) }()
			<-entered // the third try is at work
			if span := time.Since(began); span < 6*time.Minute-time.Second {
				t.Errorf("the third try is made after %v, which is not beyond the lease", span)
			}
			for _, other := range []string{"m-0000001", "m-0000002"} { // another delivery, and the click that sent another message
				g.receives(placed(withID(other), withType(typ), intent), msgedge.Retry, "IDEMPOTENCY_REQUEST_IN_PROGRESS")
			}
			time.Sleep(20 * time.Second)
			close(goOn)
			g.is(<-last, msgedge.Ack, "OK")
			g.receives(placed(withID("m-0000002"), withType(typ), intent), msgedge.Ack, "REPLAYED")
			g.want(3, 1, 1)
		})
	}
}

func TestBR42_BetweenTwoTriesAnotherMessageOfTheIntentMayDoTheWork(t *testing.T) {
	t.Parallel()
	for _, typ := range []string{"order.placed", "order.charge"} {
		synctest.Test(t, func(t *testing.T) {
			g := newRig(t, setup{config: msgedge.Config{KeyHeader: "Intent-Key", Delay: minutes}, work: func(_ context.Context, n int64, _ string) error {
				if n <= 2 {
					return errAway
				}
				return nil
			}})
			intent := keyed("Intent-Key", "intent-00001")
			v := broker(g, placed(withType(typ), intent), func(delivery int) {
				if delivery == 2 {
					g.receives(placed(withID("m-0000002"), withType(typ), intent), msgedge.Ack, "OK")
				}
			})
			g.is(v, msgedge.Ack, "REPLAYED")
			g.want(3, 1, 1)
		})
	}
}

func TestBR42_AfterTheLastTryTheIntentIsFreeAndTheDeadLetterRunsOnce(t *testing.T) {
	t.Parallel()
	for _, typ := range []string{"order.placed", "order.charge"} {
		for _, newOneFirst := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				var mended atomic.Bool
				g := newRig(t, setup{config: msgedge.Config{KeyHeader: "Intent-Key", MaxDeliveries: 5, Delay: minutes}, work: func(context.Context, int64, string) error {
					if mended.Load() {
						return nil
					}
					return errAway
				}})
				intent := keyed("Intent-Key", "intent-00001")
				dead := placed(withType(typ), intent)
				g.is(broker(g, dead, nil), msgedge.DeadLetter, "DELIVERIES_EXHAUSTED")
				mended.Store(true)
				same(t, "tries", g.handled.Load(), 5)

				first, second := placed(withID("m-0000002"), withType(typ), intent), dead
				if !newOneFirst {
					first, second = second, first
				}
				g.receives(first, msgedge.Ack, "OK")
				g.receives(second, msgedge.Ack, "REPLAYED")
				g.want(6, 1, 1)
			})
		}
	}
}

// A key that comes over HTTP is in another scope than one of a message. So the request does not do the work, but sends the message
// with its own key, and then both are one intent.
func TestBR42_ARequestThatComesAgainBetweenTheTriesSendsNoSecondMessage(t *testing.T) {
	t.Parallel()
	for _, typ := range []string{"order.placed", "order.charge"} {
		synctest.Test(t, func(t *testing.T) {
			g := newRig(t, setup{config: msgedge.Config{KeyHeader: "Intent-Key", Delay: minutes}, work: func(_ context.Context, n int64, _ string) error {
				if n <= 2 {
					return errAway
				}
				return nil
			}})
			post := func() {
				key, err := requestctx.ParseKey("intent-00001")
				if err != nil {
					t.Fatal(err)
				}
				ctx, _ := requestctx.New(t.Context(), requestctx.Values{Key: key, Scope: requestctx.Scope{Client: "acme"}, Source: "POST /v1/orders"})
				if _, err := bus.Send(ctx, g.bus, submit{"o-1"}); err != nil {
					t.Fatal(err)
				}
			}
			post()
			same(t, "outbox", strings.Join(g.mem.Rows(), ";"), "outbox intent-00001")
			relayed := placed(withType(typ), keyed("Intent-Key", strings.TrimPrefix(g.mem.Rows()[0], "outbox ")))
			v := broker(g, relayed, func(int) { post() })
			g.is(v, msgedge.Ack, "OK")
			post()
			g.receives(relayed, msgedge.Ack, "REPLAYED")
			same(t, "rows", strings.Join(g.mem.Rows(), ";"), "outbox intent-00001;o-1")
		})
	}
}

func TestBR43_WhatCannotBeACommandLeavesNoClaim(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		bad    msgedge.Message
		reason string
	}{
		"bad JSON":         {placed(withBody(`{"order_id":"o-1","amount":`)), "MALFORMED_MESSAGE"},
		"no JSON":          {placed(withBody("")), "MALFORMED_MESSAGE"},
		"null":             {placed(withBody("null")), "MALFORMED_MESSAGE"},
		"unknown member":   {placed(withBody(`{"order_id":"o-1","amount":4990,"coupon":"x"}`)), "MALFORMED_MESSAGE"},
		"unknown type":     {placed(withType("order.vanished")), "MESSAGE_TYPE_UNKNOWN"},
		"type renamed":     {placed(withType("order.accepted")), "MESSAGE_TYPE_UNKNOWN"},
		"no type":          {placed(withType("")), "MESSAGE_TYPE_UNKNOWN"},
		"no id":            {placed(withID("")), "MESSAGE_ID_MISSING"},
		"invalid":          {placed(withBody(`{"order_id":"","amount":4990}`)), "VALIDATION_FAILED"},
		"source not UTF-8": {placed(from("a\xff")), "MESSAGE_SOURCE_MISSING"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newRig(t, setup{})
			for range 2 {
				g.receives(tt.bad, msgedge.DeadLetter, tt.reason)
			}
			g.want(0, 0, 0)
			g.receives(placed(), msgedge.Ack, "OK")
			g.receives(placed(), msgedge.Ack, "REPLAYED")
			g.want(1, 1, 1)
			if name == "type renamed" { // the set-aside message runs as soon as its new type is known, and is the same work
				if err := msgedge.Handle[invoice](g.Consumer, "order.accepted"); err != nil {
					t.Fatal(err)
				}
				g.receives(tt.bad, msgedge.Ack, "REPLAYED")
			}
		})
	}
}

func TestBR43_ARowThatIsGoneLeavesNoClaim(t *testing.T) {
	t.Parallel()
	for _, typ := range []string{"order.placed", "order.charge"} {
		var there atomic.Bool
		g := newRig(t, setup{config: msgedge.Config{MaxDeliveries: 2}, work: func(context.Context, int64, string) error {
			if there.Load() {
				return nil
			}
			return coded{"ORDER_NOT_FOUND", "there is no such order"}
		}})
		g.receives(placed(withType(typ)), msgedge.Retry, "ORDER_NOT_FOUND")
		v := g.receives(placed(withType(typ), delivered(2)), msgedge.DeadLetter, "DELIVERIES_EXHAUSTED")
		same(t, "why", bus.CodeOf(v.Err), "ORDER_NOT_FOUND")
		there.Store(true)
		g.receives(placed(withType(typ)), msgedge.Ack, "OK")
		g.want(3, 1, 1)
	}
}

func TestW17_BR44_OfABatchThoseAndOnlyThoseThatWereSeenAreSkipped(t *testing.T) {
	t.Parallel()
	for seen, want := range map[string]string{
		"":    "OK OK OK OK OK",
		"1":   "REPLAYED OK OK OK OK",
		"3":   "OK OK REPLAYED OK OK",
		"5":   "OK OK OK OK REPLAYED",
		"24":  "OK REPLAYED OK REPLAYED OK",
		"135": "REPLAYED OK REPLAYED OK REPLAYED",
	} {
		g := newRig(t, setup{})
		var batch []msgedge.Message
		for n := range 5 {
			m := placed(withID(fmt.Sprintf("m-000000%d", n+1)), withBody(fmt.Sprintf(`{"order_id":"o-%d","amount":1}`, n+1)))
			if strings.Contains(seen, fmt.Sprint(n+1)) {
				g.receives(m, msgedge.Ack, "OK")
			}
			batch = append(batch, m)
		}
		same(t, "seen "+seen, strings.Join(receiveAll(t.Context(), g.Consumer, batch), " "), want)
		g.want(5, 5, 5)
		twice := append(batch[:5:5], placed(withID("m-0000006")), placed(withID("m-0000006")), batch[0])
		same(t, "twice in one batch", strings.Join(receiveAll(t.Context(), g.Consumer, twice), " "), "REPLAYED REPLAYED REPLAYED REPLAYED REPLAYED OK REPLAYED REPLAYED")
		g.want(6, 6, 6)
	}
}

func TestBR44_TwoReplicasThatReceiveTheSameBatchAtOnceLoseNothing(t *testing.T) {
	t.Parallel()
	mem := memstore.New()
	here, there := newRig(t, setup{mem: mem}), newRig(t, setup{mem: mem})
	var batch []msgedge.Message
	for n := range 9 {
		batch = append(batch, placed(withID(fmt.Sprintf("m-000000%d", n)), withBody(fmt.Sprintf(`{"order_id":"o-%d","amount":1}`, n))))
	}
	reasons := make([][]string, 2)
	var wg sync.WaitGroup
	for i, c := range []*msgedge.Consumer{here.Consumer, there.Consumer} {
		wg.Go(func() { reasons[i] = receiveAll(t.Context(), c, batch) })
	}
	wg.Wait()
	for n := range batch {
		switch a, b := reasons[0][n], reasons[1][n]; {
		case a == "OK" && b != "OK", a != "OK" && b == "OK":
		default:
			t.Errorf("message %d: %s here and %s there", n, a, b)
		}
	}
	same(t, "rows", len(mem.Rows()), 9)
	same(t, "records", len(mem.Records()), 9)
}

func TestBR51_ASpanOfRedeliveryBeyondTheRetentionIsRefusedAtTheStart(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{})
	span := func(d time.Duration) *msgedge.Consumer {
		c, err := msgedge.New(msgedge.Config{Bus: g.bus, Consumer: "billing", Redelivery: d, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	const days = 24 * time.Hour
	err := msgedge.Handle[invoice](span(4*days), "order.placed")
	if err == nil {
		t.Fatal("a record of 3 days was accepted for messages that may come again for 4")
	}
	contains(t, err.Error(), "msgedge: consumer billing: \"order.placed\" (msgedge_test.invoice)", "72h0m0s", "96h0m0s", "Redelivery")
	if err := msgedge.Handle[charge](span(4*days), "order.charge"); err == nil {
		t.Error("a policy without a retention of its own was accepted")
	}
	for _, err := range []error{
		msgedge.Handle[invoice](span(3*days), "order.placed"), msgedge.Handle[invoice](span(0), "order.placed"),
		msgedge.Handle[closing](span(400*days), "order.closed"), // never runs again
		msgedge.Handle[stock](span(400*days), "stock.moved"),    // is not recorded
	} {
		if err != nil {
			t.Error(err)
		}
	}
}

func TestBR51_AMessageThatComesBackAfterTheCleanUpIsNewWorkOrTooOld(t *testing.T) {
	t.Parallel()
	const days = 24 * time.Hour
	for maxAge, want := range map[time.Duration]string{0: "OK", 3 * days: "MESSAGE_TOO_OLD"} {
		synctest.Test(t, func(t *testing.T) {
			g := newRig(t, setup{config: msgedge.Config{MaxAge: maxAge}})
			m := placed(sentAt(time.Now()))
			g.receives(m, msgedge.Ack, "OK")
			time.Sleep(3*days - time.Hour)
			g.receives(m, msgedge.Ack, "REPLAYED")
			time.Sleep(days)
			g.purge()
			same(t, "records after the clean-up", len(g.mem.Records()), 0)
			if want == "OK" {
				g.receives(m, msgedge.Ack, "OK")
				g.want(2, 2, 1)
			} else {
				g.receives(m, msgedge.DeadLetter, "MESSAGE_TOO_OLD")
				g.want(1, 1, 0)
				contains(t, g.log.last(), `"code":"MESSAGE_TOO_OLD"`, `"key":"m-0000001"`)
			}
			g.receives(placed(withID("m-0000002")), msgedge.Ack, "OK")                               // nobody says how old it is
			g.receives(placed(withID("m-0000003"), sentAt(time.Now().Add(days))), msgedge.Ack, "OK") // by a clock that is fast
		})
	}
}
