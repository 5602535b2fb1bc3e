package watermilledge_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx/msgedge"
	"github.com/tekil-go/tekil/requestctx/msgedge/watermilledge"
)

var errDown = errors.New("the price list of c-17 is down")

func TestW01_AMessageIsAcknowledgedWhenItsWorkIsCommittedAndNotBefore(t *testing.T) {
	t.Parallel()
	entered, goOn := make(chan struct{}), make(chan struct{})
	g := newRig(t, msgedge.Config{}, func(context.Context, int64) error {
		close(entered)
		<-goOn
		return nil
	})
	pub := broker(t, gochannel.Config{})
	h, answers := outcomes(g.handler())
	run(t, pub, nil, h)
	acked := publishing(pub, placed("message-1", "o-1"))
	receive(t, "the handler", entered)
	select {
	case <-acked:
		t.Error("the message was acknowledged while its handler ran")
	case <-answers:
		t.Error("the handler of the router answered while the work was not committed")
	default:
	}
	g.want(1, 0, 0, 0)
	close(goOn)
	if err := receive(t, "the acknowledgement", acked); err != nil {
		t.Error(err)
	}
	g.want(1, 1, 1, 0)
}

func TestW08_W02_AMessageThatFailedComesAgainAndItsDuplicatesDoNot(t *testing.T) {
	t.Parallel()
	g := newRig(t, msgedge.Config{}, func(_ context.Context, call int64) error {
		switch call {
		case 1:
			return errDown
		case 2:
			panic("a bug")
		}
		return nil
	})
	pub := broker(t, gochannel.Config{})
	h, answers := outcomes(g.handler())
	run(t, pub, nil, h)
	publish(t, pub, placed("message-1", "o-1"))
	g.want(3, 1, 1, 0)
	for range 2 {
		err := receive(t, "the answer", answers)
		if err == nil || strings.Contains(err.Error(), "c-17") || strings.Contains(err.Error(), "bug") {
			t.Errorf("the message that failed was answered with %v", err)
		}
	}
	if err := receive(t, "the answer", answers); err != nil {
		t.Error(err)
	}
	first, second := publishing(pub, placed("message-1", "o-1")), publishing(pub, placed("message-1", "o-1"))
	if err := errors.Join(receive(t, "an acknowledgement", first), receive(t, "an acknowledgement", second)); err != nil {
		t.Error(err)
	}
	g.want(3, 1, 1, 0)
}

// Two instances of one consumer get the message at once. The one that comes second puts it back for as long as the first one works.
func TestW03_ADuplicateOfWorkUnderWayIsPutBackAndNeverAcknowledged(t *testing.T) {
	t.Parallel()
	entered, goOn := make(chan struct{}, 2), make(chan struct{})
	g := newRig(t, msgedge.Config{}, func(context.Context, int64) error {
		entered <- struct{}{}
		<-goOn
		return nil
	})
	pub := broker(t, gochannel.Config{})
	h, answers := outcomes(g.handler())
	run(t, pub, nil, h, h)
	acked := publishing(pub, placed("message-1", "o-1"))
	receive(t, "the handler", entered)
	for range 3 {
		if err := receive(t, "a nack", answers); bus.CodeOf(err) != "IDEMPOTENCY_REQUEST_IN_PROGRESS" {
			t.Errorf("the duplicate was answered with %v", err)
		}
	}
	select {
	case <-acked:
		t.Error("the duplicate was acknowledged while the first was at work")
	default:
	}
	close(goOn)
	if err := receive(t, "the acknowledgements", acked); err != nil {
		t.Error(err)
	}
	g.want(1, 1, 1, 0)
}

// The one at work dies: the duplicate that was put back does the work.
func TestW03_ADuplicateThatWasPutBackDoesTheWorkWhenTheFirstFails(t *testing.T) {
	t.Parallel()
	entered, goOn := make(chan struct{}, 2), make(chan struct{})
	g := newRig(t, msgedge.Config{}, func(_ context.Context, call int64) error {
		if call > 1 {
			return nil
		}
		entered <- struct{}{}
		<-goOn
		return errDown
	})
	pub := broker(t, gochannel.Config{})
	h, answers := outcomes(g.handler())
	run(t, pub, nil, h, h)
	acked := publishing(pub, placed("message-1", "o-1"))
	receive(t, "the handler", entered)
	receive(t, "a nack", answers)
	close(goOn)
	if err := receive(t, "the acknowledgements", acked); err != nil {
		t.Error(err)
	}
	g.want(2, 1, 1, 0)
}

// What is wrong with a message is told by a code. Its key is free, so the mended message of the same id runs.
func TestBR43_W04_W10_WhatCannotBeReadGoesToTheDeadLettersAndLeavesNoClaim(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, reason string
		spoil        func(*message.Message)
		handled      int64
	}{
		{"no JSON", "MALFORMED_MESSAGE", func(m *message.Message) { m.Payload = message.Payload(`{"order":"secret`) }, 0},
		{"a member that nobody knows", "MALFORMED_MESSAGE", func(m *message.Message) { m.Payload = message.Payload(`{"ordre":"secret"}`) }, 0},
		{"an invalid command", "VALIDATION_FAILED", func(m *message.Message) { m.Payload = message.Payload(`{}`) }, 0},
		{"a type that was renamed", "MESSAGE_TYPE_UNKNOWN", func(m *message.Message) { m.Metadata.Set("type", "order.placed.v0") }, 0},
		{"no type", "MESSAGE_TYPE_UNKNOWN", func(m *message.Message) { delete(m.Metadata, "type") }, 0},
		{"no id", "MESSAGE_ID_MISSING", func(m *message.Message) { m.UUID = "" }, 0},
		{"an id that is no key", "IDEMPOTENCY_KEY_INVALID", func(m *message.Message) { m.UUID = "message 1, secret" }, 0},
		{"what it refers to is gone", "DELIVERIES_EXHAUSTED", func(m *message.Message) { m.Payload = message.Payload(`{"order":"gone"}`) }, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			gone := errors.New("no such order")
			g := newRig(t, msgedge.Config{MaxDeliveries: 1}, func(_ context.Context, call int64) error {
				if call <= c.handled {
					return gone
				}
				return nil
			})
			g.options.Deliveries = func(*message.Message) int { return 1 }
			pub := broker(t, gochannel.Config{})
			run(t, pub, nil, g.handler())
			bad := placed("message-1", "o-1")
			bad.Metadata.Set("trace", "t-1")
			c.spoil(bad)
			for range 2 {
				publish(t, pub, bad)
			}
			g.want(c.handled, 0, 0, 2)
			for _, l := range g.dead.kept() {
				want := message.Metadata{
					"trace": "t-1", watermilledge.DeadLetterReason: c.reason, watermilledge.DeadLetterConsumer: "billing",
					watermilledge.DeadLetterTopic: "orders",
				}
				if kind, ok := bad.Metadata["type"]; ok {
					want["type"] = kind
				}
				equal(t, "the topic", l.topic, "orders.dead")
				equal(t, "the id", l.m.UUID, bad.UUID)
				equal(t, "the payload", string(l.m.Payload), string(bad.Payload))
				equal(t, "the metadata", l.m.Metadata, want)
			}
			publish(t, pub, placed("message-1", "o-1"))
			g.want(c.handled+1, 1, 1, 2)
		})
	}
}

func TestW06_AnIdThatIsUsedAgainForAnotherBodyIsADeadLetter(t *testing.T) {
	t.Parallel()
	g := newRig(t, msgedge.Config{}, nil)
	pub := broker(t, gochannel.Config{})
	run(t, pub, nil, g.handler())
	publish(t, pub, placed("message-1", "o-1"), placed("message-1", "o-2"))
	g.want(1, 1, 1, 1)
	equal(t, "the reason", g.dead.kept()[0].m.Metadata[watermilledge.DeadLetterReason], "IDEMPOTENCY_KEY_CONFLICT")
}

func TestW10_ADeadLetterThatIsSentAgainRunsAndOneThatDiesAgainSaysWhyThisTime(t *testing.T) {
	t.Parallel()
	g := newRig(t, msgedge.Config{}, nil)
	pub := broker(t, gochannel.Config{})
	run(t, pub, nil, g.handler())
	bad := placed("message-1", "o-1")
	bad.Metadata.Set("type", "order.placed.v0")
	publish(t, pub, bad)
	again := g.dead.kept()[0].m
	again.Metadata.Set("type", "order.placed")
	again.Payload = message.Payload(`{`)
	publish(t, pub, again)
	again = g.dead.kept()[1].m
	equal(t, "the reason", again.Metadata[watermilledge.DeadLetterReason], "MALFORMED_MESSAGE")
	again.Payload = message.Payload(`{"order":"o-1"}`)
	publish(t, pub, again)
	g.want(1, 1, 1, 2)
}

func TestADeadLetterIsACopyAndNamesTheConsumerThatSetItAsideThisTime(t *testing.T) {
	t.Parallel()
	g := newRig(t, msgedge.Config{}, nil)
	m := placed("", "o-1") // a dead letter of another consumer, delivered outside a router
	m.Metadata.Set(watermilledge.DeadLetterConsumer, "shipping")
	if err := g.handler()(m); err != nil {
		t.Fatal(err)
	}
	equal(t, "the message", m.Metadata, message.Metadata{"type": "order.placed", watermilledge.DeadLetterConsumer: "shipping"})
	equal(t, "the dead letter", g.dead.kept()[0].m.Metadata, message.Metadata{
		"type": "order.placed", watermilledge.DeadLetterReason: "MESSAGE_ID_MISSING", watermilledge.DeadLetterTopic: "orders",
	})
}

func TestNothingIsLostWhenADeadLetterCannotBePublished_W04(t *testing.T) {
	t.Parallel()
	g := newRig(t, msgedge.Config{}, nil)
	g.dead.fail = 2
	pub := broker(t, gochannel.Config{})
	h, answers := outcomes(g.handler())
	run(t, pub, nil, h)
	bad := placed("message-1", "o-1")
	bad.Metadata.Set("type", "order.placed.v0")
	publish(t, pub, bad)
	g.want(0, 0, 0, 1)
	for range 2 {
		err := receive(t, "a nack", answers)
		if !errors.Is(err, errAway) || bus.CodeOf(err) != "MESSAGE_TYPE_UNKNOWN" ||
			err.Error() != "watermilledge: put back: MESSAGE_TYPE_UNKNOWN, and the dead letter could not be published: the broker is away" {
			t.Errorf("it was put back with %v", err)
		}
	}
	if err := receive(t, "the ack", answers); err != nil {
		t.Error(err)
	}
}

func TestW05_TwoConsumersOfOneMessageDealWithItOnceEach(t *testing.T) {
	t.Parallel()
	g := newRig(t, msgedge.Config{}, func(_ context.Context, call int64) error {
		if call == 1 {
			return errDown // a failure of one consumer is none of the other's
		}
		return nil
	})
	pub := broker(t, gochannel.Config{})
	run(t, pub, nil, g.handler(), handlerOf(t, g.another(msgedge.Config{Consumer: "shipping"}), g.options))
	for range 2 {
		publish(t, pub, placed("message-1", "o-1"))
	}
	g.want(3, 2, 2, 0)
}

func TestW19_WhatABrokerAddsToAMessageChangesNothing(t *testing.T) {
	t.Parallel()
	g := newRig(t, msgedge.Config{}, nil)
	pub := broker(t, gochannel.Config{})
	run(t, pub, nil, g.handler())
	for _, receipt := range []string{"r-1", "r-2", ""} {
		m := placed("message-1", "o-1")
		m.Metadata.Set("receipt", receipt)
		m.Metadata.Set("sent_at", "not a time "+receipt)
		publish(t, pub, m)
	}
	g.want(1, 1, 1, 0)
}

func TestW07_ARefusalForGoodIsAcknowledged(t *testing.T) {
	t.Parallel()
	g := newRig(t, msgedge.Config{}, func(context.Context, int64) error { return idempotency.Final(errDown) })
	pub := broker(t, gochannel.Config{})
	run(t, pub, nil, g.handler())
	for range 2 {
		publish(t, pub, placed("message-1", "o-1"))
	}
	g.want(1, 0, 1, 0)
}

// Messages in one go, some of which have been seen, while another instance does the same: each is dealt with by its own history.
func TestBR44_W17_OfABatchOnlyWhatHasBeenSeenIsSkipped(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		seen  []string
		batch []string
	}{
		{"the first was seen", []string{"1"}, []string{"1", "2", "3", "4", "5"}},
		{"the third was seen", []string{"3"}, []string{"1", "2", "3", "4", "5"}},
		{"the last was seen", []string{"5"}, []string{"1", "2", "3", "4", "5"}},
		{"two were seen", []string{"2", "4"}, []string{"1", "2", "3", "4", "5"}},
		{"one comes twice", nil, []string{"1", "2", "2", "3"}},
	} {
		for _, instances := range []int{1, 2} {
			t.Run(fmt.Sprint(c.name, ", instances: ", instances), func(t *testing.T) {
				t.Parallel()
				g := newRig(t, msgedge.Config{}, nil)
				pub := broker(t, gochannel.Config{})
				run(t, pub, nil, slices.Repeat([]message.NoPublishHandlerFunc{g.handler()}, instances)...)
				batch := func(ids []string) (messages []*message.Message) {
					for _, id := range ids {
						messages = append(messages, placed("message-"+id, "o-"+id))
					}
					return messages
				}
				publish(t, pub, batch(c.seen)...)
				g.want(int64(len(c.seen)), len(c.seen), len(c.seen), 0)
				publish(t, pub, batch(c.batch)...)
				all := slices.Compact(slices.Clone(c.batch))
				rows := g.mem.Rows()
				slices.Sort(rows)
				for i := range all {
					all[i] = "o-" + all[i]
				}
				equal(t, "the rows", rows, all)
				g.want(int64(len(all)), len(all), len(all), 0)
			})
		}
	}
}

// loud keeps what a router logs as an error.
type loud struct {
	watermill.NopLogger
	errors *atomic.Int64
}

func (l loud) Error(string, error, watermill.LogFields)         { l.errors.Add(1) }
func (l loud) With(watermill.LogFields) watermill.LoggerAdapter { return l }

func TestClosingTheRouterEndsTheHoldingOfAMessage(t *testing.T) {
	t.Parallel()
	failed := make(chan struct{})
	g := newRig(t, msgedge.Config{Delay: func(int) time.Duration { return time.Hour }}, func(context.Context, int64) error {
		close(failed)
		return errDown
	})
	g.options.MaxHold = time.Hour
	pub := broker(t, gochannel.Config{})
	h, answers := outcomes(g.handler())
	log := loud{errors: new(atomic.Int64)}
	router := run(t, pub, log, h)
	publishing(pub, placed("message-1", "o-1"))
	receive(t, "the failure", failed)
	if err := router.Close(); err != nil { // "router close timeout" after the patience of the test
		t.Error(err)
	}
	if err := receive(t, "the answer", answers); !errors.Is(err, context.Canceled) || err.Error() != "watermilledge: put back: INTERNAL" {
		t.Errorf("the message that was held was answered with %v", err)
	}
	if n := log.errors.Load(); n != 0 {
		t.Errorf("the router logged %d errors", n)
	}
	g.want(1, 0, 0, 0)
}

// The message may come again by another way; what matters is that its work is whole.
func TestClosingTheRouterWaitsForTheWorkAtHand(t *testing.T) {
	t.Parallel()
	entered, goOn := make(chan struct{}), make(chan struct{})
	g := newRig(t, msgedge.Config{}, func(context.Context, int64) error {
		close(entered)
		<-goOn
		return nil
	})
	pub := broker(t, gochannel.Config{})
	h, answers := outcomes(g.handler())
	router := run(t, pub, nil, h)
	publishing(pub, placed("message-1", "o-1"))
	receive(t, "the handler", entered)
	closed := make(chan error, 1)
	go func() { closed <- router.Close() }()
	for end := time.Now().Add(patience); !isClosing(pub); runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatal("the router does not close its broker")
		}
	}
	select {
	case <-closed:
		t.Error("the router closed while a handler ran")
	default:
	}
	close(goOn)
	if err := errors.Join(receive(t, "the closing", closed), receive(t, "the answer", answers)); err != nil {
		t.Error(err)
	}
	g.want(1, 1, 1, 0)
}

// isClosing reports whether a broker is closed, which a router does to it first of all.
func isClosing(pub *gochannel.GoChannel) bool {
	return pub.Publish("elsewhere", placed("message-2", "")) != nil
}

// After Goexit a router says nothing to the broker, and a broker without a time limit would wait for ever.
func TestAHandlerThatEndsItsGoroutinePutsTheMessageBack(t *testing.T) {
	t.Parallel()
	g := newRig(t, msgedge.Config{}, func(_ context.Context, call int64) error {
		if call == 1 {
			runtime.Goexit()
		}
		return nil
	})
	pub := broker(t, gochannel.Config{})
	run(t, pub, nil, g.handler())
	m := placed("message-1", "o-1")
	m.Metadata.Set("type", "order.noted")
	publish(t, pub, m)
	g.want(2, 1, 0, 0)
}

// A broker in memory can hand the consumer the context of the handler that published.
func TestAMessageWithTheContextOfAHandlerIsNeverDispatched(t *testing.T) {
	t.Parallel()
	var h message.NoPublishHandlerFunc
	var answer error
	g := newRig(t, msgedge.Config{}, func(ctx context.Context, call int64) error {
		if call == 1 {
			m := placed("message-2", "o-2")
			m.SetContext(ctx)
			answer = h(m)
		}
		return nil
	})
	h = g.handler()
	if err := h(placed("message-1", "o-1")); err != nil {
		t.Error(err)
	}
	if bus.CodeOf(answer) != "MESSAGE_CONTEXT_OF_A_HANDLER" {
		t.Errorf("it was answered with %v", answer)
	}
	equal(t, "the rows", g.mem.Rows(), []string{"o-1"})
}

func TestAMessageIsHeldForItsDelayUpToTheBound(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name             string
		delay, max, want time.Duration
		dead             bool
		patience         time.Duration // of the message's context
	}{
		{name: "the delay", delay: 5 * time.Second, want: 5 * time.Second},
		{name: "the bound by default", delay: time.Hour, want: 30 * time.Second},
		{name: "the bound", delay: time.Hour, max: time.Minute, want: time.Minute},
		{name: "no holding", delay: time.Hour, max: -1, want: 0},
		{name: "no delay", delay: 0, want: 0},
		{name: "the context ends", delay: 20 * time.Second, patience: 7 * time.Second, want: 7 * time.Second},
		{name: "a dead letter that cannot be published", dead: true, want: time.Second},
		{name: "a dead letter that cannot be published, and no holding", dead: true, max: -1, want: 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t, msgedge.Config{Delay: func(int) time.Duration { return c.delay }}, func(context.Context, int64) error { return errDown })
				g.options.MaxHold, g.dead.fail = c.max, 1
				m := placed("message-1", "o-1")
				if c.dead {
					m.UUID = ""
				}
				if c.patience > 0 {
					ctx, cancel := context.WithTimeout(t.Context(), c.patience)
					defer cancel()
					m.SetContext(ctx)
				}
				begun := time.Now()
				if err := g.handler()(m); err == nil {
					t.Error("the message was acknowledged")
				}
				equal(t, "held", time.Since(begun), c.want)
			})
		})
	}
}

func TestW09_TheNumberOfDeliveriesAndTheTimeOfSendingAreReadFromTheMetadata(t *testing.T) {
	t.Parallel()
	g := newRig(t, msgedge.Config{MaxDeliveries: 3, MaxAge: time.Hour}, func(context.Context, int64) error { return errDown })
	g.options.Type, g.options.SentAt = "kind", "at"
	g.options.Deliveries = func(m *message.Message) int { return len(m.Metadata.Get("tries")) - 1 }
	h := g.handler()
	for _, c := range []struct{ tries, at, reason string }{
		{"", "", ""}, // -1 is not known
		{"IIII", "", "DELIVERIES_EXHAUSTED"},
		{"II", time.Now().Add(-2 * time.Hour).Format(time.RFC3339), "MESSAGE_TOO_OLD"},
		{"II", time.Now().UTC().Format(time.RFC3339Nano), ""},
	} {
		m := placed("message-1", "o-1")
		m.Metadata = message.Metadata{"kind": "order.placed", "tries": c.tries, "at": c.at}
		before := len(g.dead.kept())
		err := h(m)
		if (err == nil) != (c.reason != "") {
			t.Errorf("%v: it was answered with %v", c, err)
		}
		if c.reason != "" {
			equal(t, "the reason", g.dead.kept()[before].m.Metadata[watermilledge.DeadLetterReason], c.reason)
		}
	}
}

// The same topic name is the same space of ids, and another one is another.
func TestMessagesOfTwoTopicsWhoseIdsCollideAreIndependent(t *testing.T) {
	t.Parallel()
	g := newRig(t, msgedge.Config{Source: "everything"}, nil)
	one := g.handler()
	g.options.Topic = "returns"
	other := g.handler()
	var wg sync.WaitGroup
	for _, h := range []message.NoPublishHandlerFunc{one, other} {
		wg.Go(func() {
			if err := h(placed("message-1", "o-1")); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	g.want(2, 2, 2, 0)
}

func TestAHandlerThatCouldLoseMessagesIsRefused(t *testing.T) {
	t.Parallel()
	g := newRig(t, msgedge.Config{}, nil)
	for _, c := range []struct {
		name  string
		wrong func(*watermilledge.Options)
		want  string
	}{
		{"no topic", func(o *watermilledge.Options) { o.Topic = "" }, "Options.Topic is empty"},
		{"a topic that no record can hold", func(o *watermilledge.Options) { o.Topic = "a\x00" }, "Options.Topic is empty or not UTF-8"},
		{"no publisher", func(o *watermilledge.Options) { o.DeadLetters = nil }, "must both be set"},
		{"no topic of dead letters", func(o *watermilledge.Options) { o.DeadLetterTopic = "" }, "must both be set"},
		{"a circle", func(o *watermilledge.Options) { o.DeadLetterTopic = o.Topic }, "is the topic itself"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			o := g.options
			c.wrong(&o)
			if h, err := watermilledge.Handler(g.consumer, o); err == nil || h != nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Handler gave the error %v", err)
			}
		})
	}
	if _, err := watermilledge.Handler(nil, watermilledge.Options{}); err == nil || strings.Count(err.Error(), "watermilledge: ") != 3 {
		t.Errorf("Handler gave %v, want all problems", err)
	}
}
