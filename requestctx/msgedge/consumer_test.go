package msgedge_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/validation"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx/msgedge"
)

func TestNewReportsEveryProblem(t *testing.T) {
	t.Parallel()
	_, err := msgedge.New(msgedge.Config{Source: "a\x00", KeyHeader: "Key ", Refusals: msgedge.Retry, MaxDeliveries: -1})
	if err == nil {
		t.Fatal("accepted")
	}
	contains(t, err.Error(), "Bus", "Consumer", "Source", "KeyHeader", "Refusals is retry", "MaxDeliveries (-1)")
	for line := range strings.SplitSeq(err.Error(), "\n") {
		if !strings.HasPrefix(line, "msgedge: Config.") {
			t.Errorf("a line of it is %q", line)
		}
	}
	b := newRig(t, setup{}).bus
	for name, cfg := range map[string]msgedge.Config{
		"zero":               {},
		"no consumer":        {Bus: b},
		"blank consumer":     {Bus: b, Consumer: " "},
		"blank in consumer":  {Bus: b, Consumer: "billing "},
		"consumer no UTF-8":  {Bus: b, Consumer: "billing\xff"},
		"negative age":       {Bus: b, Consumer: "billing", MaxAge: -1},
		"negative span":      {Bus: b, Consumer: "billing", Redelivery: -1},
		"refusals not there": {Bus: b, Consumer: "billing", Refusals: 9},
	} {
		if c, err := msgedge.New(cfg); err == nil || c != nil {
			t.Errorf("%s: %v, %v", name, c, err)
		}
	}
}

// unserved has no handler, and odd cannot be decoded.
type unserved struct{}

func (unserved) CommandName() bus.Name[bus.None] { return "billing.unserved" }

type odd struct {
	Extra map[string]string `json:",unknown"`
}

func (odd) CommandName() bus.Name[bus.None] { return "billing.odd" }

func TestHandleRefuses(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{})
	if err := msgedge.Handle[unserved](g.Consumer, "x"); !is[*bus.UnhandledError](err) {
		t.Errorf("no handler: %v", err)
	}
	if err := msgedge.Handle[*charge](g.Consumer, "x"); !is[*bus.UnhandledError](err) {
		t.Errorf("a pointer: %v", err)
	}
	for name, err := range map[string]error{
		"no type":         msgedge.Handle[invoice](g.Consumer, ""),
		"a type twice":    msgedge.Handle[invoice](g.Consumer, "order.placed"),
		"another command": msgedge.Handle[charge](g.Consumer, "order.placed"),
		"no decoding":     msgedge.Handle[odd](g.Consumer, "x"),
		"nil consumer":    msgedge.Handle[invoice](nil, "x"),
		"zero consumer":   msgedge.Handle[invoice](&msgedge.Consumer{}, "x"),
	} {
		if err == nil || !strings.HasPrefix(err.Error(), "msgedge: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	g.receives(placed(), msgedge.Ack, "OK") // and what was refused has changed nothing
	g.receives(placed(withType("x")), msgedge.DeadLetter, "MESSAGE_TYPE_UNKNOWN")
}

// Without a consumer nothing is known about a message, so nothing may become of it.
func TestANilOrZeroConsumerPutsEverythingBack(t *testing.T) {
	t.Parallel()
	for _, c := range []*msgedge.Consumer{nil, {}} {
		if v := c.Receive(t.Context(), placed()); v.Action != msgedge.Retry || v.Delay <= 0 || v.Reason != "CONSUMER_NOT_MADE" || v.Err == nil {
			t.Errorf("%+v", v)
		}
	}
}

func TestHandleAndReceiveMayBeCalledAtOnce(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{})
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for n := range 20 {
				g.Receive(t.Context(), placed(withID(fmt.Sprintf("m-%d-00000%d", i, n)), withType(fmt.Sprintf("late.%d", n))))
			}
		})
		wg.Go(func() {
			for n := range 5 {
				if err := msgedge.Handle[invoice](g.Consumer, fmt.Sprintf("late.%d", 5*i+n)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	g.receives(placed(withType("late.19")), msgedge.Ack, "OK")
}

func TestTheTenantsErrorsPutBackWhateverTheyAre(t *testing.T) {
	t.Parallel()
	var fail func() error
	g := newRig(t, setup{config: msgedge.Config{MaxDeliveries: 9, Tenant: func(context.Context, msgedge.Message) (string, error) { return "acme", fail() }}})
	for _, err := range []error{errAway, validation.Field("tenant", "known", "is unknown"), idempotency.Final(errAway), &idempotency.ConflictError{}, context.Canceled} {
		fail = func() error { return err }
		v := g.receives(placed(), msgedge.Retry, "TENANT_UNRESOLVED")
		if !errors.Is(v.Err, err) || v.Delay <= 0 {
			t.Errorf("%v after %v", v.Err, v.Delay)
		}
		contains(t, g.log.last(), `"level":"WARN"`, `"msg":"msgedge: retry"`, `"code":"TENANT_UNRESOLVED"`)
	}
	fail = func() error { panic("4111111111111111") }
	g.receives(placed(), msgedge.Retry, "PANIC")
	contains(t, g.log.last(), `"level":"ERROR"`, `"panic_type":"string"`, "TestTheTenantsErrorsPutBack")
	g.receives(placed(delivered(9)), msgedge.DeadLetter, "DELIVERIES_EXHAUSTED")
	g.want(0, 0, 0)
	fail = func() error { return nil }
	g.receives(placed(), msgedge.Ack, "OK")
}

func TestADecoderOfTheApplicationsOwn(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{config: msgedge.Config{Decode: func(payload []byte, command any) error {
		switch {
		case bytes.Equal(payload, []byte("panic 4111")):
			panic(string(payload))
		case bytes.Equal(payload, []byte("error 4111")):
			return fmt.Errorf("cannot read %s", payload)
		}
		return json.Unmarshal(payload, command)
	}}})
	for range 2 { // it would do so again, so a broker must not go on with it
		for _, body := range []string{"panic 4111", "error 4111"} {
			v := g.receives(placed(withBody(body)), msgedge.DeadLetter, "MALFORMED_MESSAGE")
			if strings.Contains(v.Err.Error(), "4111") {
				t.Errorf("the error holds the payload: %v", v.Err)
			}
		}
	}
	if strings.Contains(g.log.String(), "4111") {
		t.Errorf("the payload is logged: %s", g.log)
	}
	contains(t, g.log.String(), `"msg":"msgedge: panic"`, "consumer_test.go:")
	g.want(0, 0, 0)
	g.receives(placed(withBody(`{"order_id":"o-1","amount":4990,"coupon":"x"}`)), msgedge.Ack, "OK")
	g.want(1, 1, 1)
	if err := msgedge.Handle[odd](g.Consumer, "x"); err == nil || strings.Contains(err.Error(), "strictjson") {
		t.Errorf("what strict JSON cannot read is no matter here: %v", err)
	}
}

func TestAMalformedPayloadIsToldByItsPlaceAlone(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{})
	v := g.receives(placed(withBody(`{"order_id":"o-1","amount":"4111"}`)), msgedge.DeadLetter, "MALFORMED_MESSAGE")
	same(t, "error", v.Err.Error(), "msgedge: MALFORMED_MESSAGE: strictjson: amount (byte 27): must be a whole number, not a string")
	v = g.receives(placed(withID("4111")), msgedge.DeadLetter, "IDEMPOTENCY_KEY_INVALID")
	same(t, "error", v.Err.Error(), "msgedge: IDEMPOTENCY_KEY_INVALID: requestctx: the idempotency key (4 bytes) was refused: it must have 8 to 128 characters")
}

func TestTheDelayGrowsAndIsNeverLessThanWhatThePipelineAsksFor(t *testing.T) {
	t.Parallel()
	fails := func(context.Context, int64, string) error { return errAway }
	g := newRig(t, setup{work: fails})
	for deliveries, most := range map[int]time.Duration{
		-5: time.Second, 0: time.Second, 1: time.Second, 2: 2 * time.Second, 5: 16 * time.Second, 9: 256 * time.Second,
		10: 5 * time.Minute, 64: 5 * time.Minute, 1000: 5 * time.Minute, math.MaxInt: 5 * time.Minute,
	} {
		for range 20 {
			if v := g.Receive(t.Context(), placed(delivered(deliveries))); v.Delay < most/2 || v.Delay > most {
				t.Errorf("%d deliveries: %v, want %v to %v", deliveries, v.Delay, most/2, most)
			}
		}
	}
	var asked []int
	g = newRig(t, setup{work: fails, config: msgedge.Config{Delay: func(deliveries int) time.Duration {
		asked = append(asked, deliveries)
		if deliveries == 3 {
			panic("no delay")
		}
		return map[int]time.Duration{1: time.Hour, 2: -time.Hour}[deliveries]
	}}})
	same(t, "own", g.Receive(t.Context(), placed(delivered(0))).Delay, time.Hour)
	same(t, "negative", g.Receive(t.Context(), placed(delivered(2))).Delay, 0)
	same(t, "panic", g.Receive(t.Context(), placed(delivered(3))).Delay, 5*time.Minute)
	same(t, "asked for", fmt.Sprint(asked), "[1 2 3]")
}

func TestAConsumerThatIsEndingPutsItsMessagesBackAtOnce(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errAway)
	for _, typ := range []string{"order.placed", "order.charge"} {
		g := newRig(t, setup{config: msgedge.Config{MaxDeliveries: 1}})
		v := g.Receive(ctx, placed(withType(typ), delivered(9)))
		if v.Action != msgedge.Retry || v.Delay != 0 || v.Err == nil {
			t.Errorf("%s: %+v", typ, v)
		}
		g.want(0, 0, 0)
		g.receives(placed(withType(typ), delivered(9)), msgedge.Ack, "OK")
	}
}

// The end of the consumer comes while a handler works: that of a marked command goes on, and what it has done is acknowledged.
func TestWorkThatHasBegunIsFinishedWhenTheConsumerEnds(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	g := newRig(t, setup{work: func(ctx context.Context, _ int64, _ string) error {
		cancel()
		return ctx.Err()
	}})
	g.is(g.Receive(ctx, placed()), msgedge.Ack, "OK")
	g.want(1, 1, 1)
	v := g.Receive(ctx, placed(withType("stock.moved"), withBody(`{"item":"a"}`))) // without the mark it ends with its caller
	g.is(v, msgedge.Retry, "CANCELED")
	same(t, "delay", v.Delay, 0)
}

// A deadline for one message is no end of the consumer: a message that never makes it would come again at once and for ever.
func TestAMessageThatNeverMakesItsDeadlineIsSetAside(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{config: msgedge.Config{MaxDeliveries: 2}, work: func(ctx context.Context, _ int64, _ string) error {
		<-ctx.Done()
		return ctx.Err()
	}})
	m := placed(withType("stock.moved"), withBody(`{"item":"a"}`))
	ctx, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	v := g.Receive(ctx, m)
	g.is(v, msgedge.Retry, "DEADLINE_EXCEEDED")
	if v.Delay <= 0 {
		t.Error("it comes again at once")
	}
	m.Deliveries = 2
	g.is(g.Receive(ctx, m), msgedge.DeadLetter, "DELIVERIES_EXHAUSTED")
}

func TestBR56_NoLineHoldsPayloadHeadersOrAKeyThatWasRefused(t *testing.T) {
	t.Parallel()
	const card = "4111111111111111"
	g := newRig(t, setup{config: msgedge.Config{KeyHeader: "Intent-Key", MaxDeliveries: 2}, work: func(_ context.Context, _ int64, order string) error {
		if strings.HasPrefix(order, "panic") {
			panic(order)
		}
		return errors.New(order)
	}})
	header := keyed("authorization", card)
	for _, m := range []msgedge.Message{
		placed(header, withBody(`{"order_id":"`+card+`","amount":1}`), delivered(1)),
		placed(header, withBody(`{"order_id":"`+card+`","amount":1}`), delivered(2)),
		placed(header, withBody(`{"order_id":"panic `+card+`","amount":1}`), delivered(1)),
		placed(header, withBody(`{"order_id":"panic `+card+`","amount":1}`), delivered(2)),
		placed(header, withBody(`{"order_id":"a","amount":-`+card+`}`)),
		placed(header, withBody(`{"order_id":`+card+`}`)),
		placed(header, withBody(`{"`+card+`":1}`)),
		placed(header, withID(card+" ")),
		placed(header, withID(card+"\n"), withType("a "+card)),
		placed(header, withType("a "+card)),
		placed(header, withID(""), keyed("Intent-Key", card+" ")),
		placed(header, keyed("Intent-Key", card), keyed("INTENT-KEY", card)),
		placed(header, from(card+"\x00")),
		placed(header, withID(card+" x"), keyed("Intent-Key", "intent-00001")), // the id is not what it is known by, and is no name either
	} {
		v := g.Receive(t.Context(), m)
		if v.Action == msgedge.Ack || strings.Contains(v.Reason, card) {
			t.Errorf("%v, %s", v.Action, v.Reason)
		}
	}
	if strings.Contains(g.log.String(), card) {
		t.Errorf("the consumer has logged it: %s", g.log)
	}
	for _, line := range g.lines.All() {
		if strings.Contains(fmt.Sprint(line.Message, line.ContextMap()), card) {
			t.Errorf("the pipeline has logged it: %v", line.ContextMap())
		}
	}
	contains(t, g.log.String(), `"code":"MESSAGE_TYPE_UNKNOWN"`, `"code":"DELIVERIES_EXHAUSTED","error_code":"INTERNAL"`, `"error_code":"PANIC"`,
		`"source":"consumer:billing"`, `"client":"orders"`, `"type":"order.placed"`)
}

func TestTheLineOfADispatchNamesTheMessageAndItsKey(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{config: msgedge.Config{KeyHeader: "Intent-Key"}})
	g.receives(placed(keyed("Intent-Key", "intent-00001"), delivered(3)), msgedge.Ack, "OK")
	line := g.lines.All()[0].ContextMap()
	same(t, "line", fmt.Sprint(line["key"], line["client"], line["source"], line["attributes"]), "intent-00001ordersconsumer:billingmap[delivery:3 message_id:m-0000001]")
	same(t, "lines of the consumer", g.log.String(), "")
}

// An error that cannot even be asked is a failure like any other.
func TestAnErrorThatPanicsPutsTheMessageBack(t *testing.T) {
	t.Parallel()
	g := newRig(t, setup{work: func(context.Context, int64, string) error { return (*idempotency.OutcomeUnknownError)(nil) }})
	g.receives(placed(withType("stock.moved"), withBody(`{"item":"a"}`)), msgedge.Retry, "PANIC")
}

func TestWithoutALogTheDefaultOneIsUsed(t *testing.T) { //nolint:paralleltest // the default log is the process's
	before := slog.Default()
	defer slog.SetDefault(before)
	var out lines
	slog.SetDefault(slog.New(slog.NewTextHandler(&out, nil)))
	c, err := msgedge.New(msgedge.Config{Bus: newRig(t, setup{}).bus, Consumer: "billing", Source: "orders"})
	if err != nil {
		t.Fatal(err)
	}
	c.Receive(t.Context(), placed())
	contains(t, out.String(), "MESSAGE_TYPE_UNKNOWN")
}
