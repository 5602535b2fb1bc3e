package main

import (
	"context"
	"encoding/json"
	"io"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/tekil-go/tekil/requestctx/msgedge"
	"github.com/tekil-go/tekil/requestctx/msgedge/watermilledge"
)

// benchMessages is how many messages each consumer gets in an iteration.
const benchMessages = 1000

// BenchmarkConsumer compares the mailer with a consumer that only decodes the message and inserts the mail, on the same router, broker
// and database, with the same messages, in turn. It is the throughput of one process with two workers, from the first message to the
// last. Ask for a number of iterations, on a server with fsync on:
//
//	TEKIL_TEST_POSTGRES=… go test -run xxx -bench Consumer -benchtime 9x ./examples/consumer
func BenchmarkConsumer(b *testing.B) {
	servers := elsewhere(b)
	s, err := parse(servers, io.Discard)
	if err != nil {
		b.Fatal(err)
	}
	ctx := context.Background()
	p, err := start(ctx, s, io.Discard)
	if err != nil {
		b.Fatal(err)
	}
	defer p.close()
	db := p.db.(postgres)

	c, err := msgedge.New(msgedge.Config{Bus: p.bus, Consumer: "mailer"})
	if err == nil {
		err = msgedge.Handle[SendMail](c, orderPlaced)
	}
	if err != nil {
		b.Fatal(err)
	}
	ours, err := watermilledge.Handler(c, watermilledge.Options{
		Topic: placedTopic, Deliveries: deliveries, DeadLetters: p.out, DeadLetterTopic: deadTopic, MaxHold: -1,
	})
	if err != nil {
		b.Fatal(err)
	}
	bare := func(m *message.Message) error {
		var o Order
		if err := json.Unmarshal(m.Payload, &o); err != nil {
			return err
		}
		_, err := db.pool.Exec(m.Context(), `INSERT INTO mails (order_id, email) VALUES ($1, $2)`, o.OrderID, o.Email)
		return err
	}
	// Two of the lines are durable consumers of the same topic, so both get each message.
	lineOf := map[string]line{}
	for _, l := range lines {
		lineOf[l.name] = l
	}

	publish := func() {
		for range benchMessages {
			o, err := json.Marshal(Order{OrderID: uuid.NewString(), Item: "tea", Amount: 4990, Email: "ada@example.com"})
			if err != nil {
				b.Fatal(err)
			}
			m := message.NewMessage(uuid.NewString(), o)
			m.Metadata.Set(watermilledge.TypeMetadata, orderPlaced)
			if err := p.out.Publisher.Publish(placedTopic, m); err != nil {
				b.Fatal(err)
			}
		}
	}
	drain := func(l line, h message.NoPublishHandlerFunc) float64 {
		router, err := message.NewRouter(message.RouterConfig{CloseTimeout: drainTime}, watermill.NopLogger{})
		if err != nil {
			b.Fatal(err)
		}
		sub, err := p.broker.subscriber(l, watermill.NopLogger{})
		if err != nil {
			b.Fatal(err)
		}
		var n atomic.Int64
		var first, last time.Time
		all := make(chan struct{})
		router.AddConsumerHandler(l.name, l.topic, sub, func(m *message.Message) error {
			err := h(m)
			if err != nil {
				b.Error(err)
			}
			switch n.Add(1) {
			case 1:
				first = time.Now()
			case benchMessages:
				last = time.Now()
				close(all)
			}
			return err
		})
		ended := make(chan error, 1)
		go func() { ended <- router.Run(ctx) }()
		<-all
		if err := router.Close(); err != nil {
			b.Fatal(err)
		}
		<-ended
		for { // the last acknowledgements are on their way
			left, err := p.broker.pending(l)
			if err != nil {
				b.Fatal(err)
			}
			if left == 0 {
				return (benchMessages - 1) / last.Sub(first).Seconds()
			}
			time.Sleep(pollTime)
		}
	}

	var ratios, bases []float64
	for i := range b.N {
		publish()
		var x, y float64
		if i%2 == 0 {
			x = drain(lineOf["billing"], bare)
			y = drain(lineOf["mailer"], ours)
		} else {
			y = drain(lineOf["mailer"], ours)
			x = drain(lineOf["billing"], bare)
		}
		ratios, bases = append(ratios, y/x), append(bases, x)
	}
	slices.Sort(ratios)
	slices.Sort(bases)
	b.ReportMetric(ratios[len(ratios)/2], "x-bare")
	b.ReportMetric(bases[len(bases)/2], "bare/s")
	b.ReportMetric(0, "ns/op")
	n, err := db.count(ctx)
	if err != nil {
		b.Fatal(err)
	}
	if want := 2 * b.N * benchMessages; n.mails != want {
		b.Errorf("there are %d mails instead of %d", n.mails, want)
	}
}
