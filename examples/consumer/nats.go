package main

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// The streams.
const (
	ordersStream = "ORDERS"
	deadStream   = "DEAD"
)

const (
	ackWait   = 4 * time.Second  // after which the broker takes a delivery for lost; a handler needs some milliseconds
	inFlight  = 16               // deliveries of a consumer that are not acknowledged; more would wait in memory and be sent again
	workers   = 2                // of each consumer
	brokerFor = 10 * time.Second // what NATS may take to start
)

// jetStream is the connection to NATS, and NATS itself.
type jetStream struct {
	server *server.Server // nil where it runs elsewhere
	url    string
	js     nats.JetStreamContext
	conns  []*nats.Conn
	subs   []message.Subscriber
}

// embeddedNATS starts a NATS server in this process that keeps its streams in folder and listens nowhere.
func embeddedNATS(folder string) (*jetStream, error) {
	s, err := server.NewServer(&server.Options{JetStream: true, StoreDir: folder, DontListen: true, NoSigs: true, NoLog: true})
	if err != nil {
		return nil, err
	}
	s.Start()
	b := &jetStream{server: s}
	if !s.ReadyForConnections(brokerFor) {
		b.close()
		return nil, errors.New("the NATS server does not start")
	}
	return b.setUp()
}

// connectNATS uses a NATS server that runs elsewhere, with JetStream.
func connectNATS(url string) (*jetStream, error) { return (&jetStream{url: url}).setUp() }

// setUp makes the streams, and the consumers, so that it can be asked what they have left. What is there already stays.
func (b *jetStream) setUp() (_ *jetStream, err error) {
	defer func() {
		if err != nil {
			b.close()
		}
	}()
	conn, err := b.connect("setup")
	if err != nil {
		return nil, err
	}
	if b.js, err = conn.JetStream(); err != nil {
		return nil, err
	}
	for _, stream := range []nats.StreamConfig{
		{Name: ordersStream, Subjects: []string{placedTopic, collectedTopic}},
		{Name: deadStream, Subjects: []string{deadTopic}},
	} {
		if _, err = b.js.AddStream(&stream); err != nil && !errors.Is(err, nats.ErrStreamNameAlreadyInUse) {
			return nil, fmt.Errorf("stream %s: %w", stream.Name, err)
		}
	}
	for _, l := range lines {
		_, err = b.js.AddConsumer(ordersStream, &nats.ConsumerConfig{
			Durable: l.name, FilterSubject: l.topic, DeliverSubject: "deliver." + l.name, DeliverGroup: l.name,
			AckPolicy: nats.AckExplicitPolicy, AckWait: ackWait, MaxAckPending: inFlight,
		})
		if err != nil {
			return nil, fmt.Errorf("consumer %s: %w", l.name, err)
		}
	}
	return b, nil
}

func (b *jetStream) connect(name string) (*nats.Conn, error) {
	options := []nats.Option{nats.Name("tekil consumer, " + name), nats.MaxReconnects(-1)}
	if b.server != nil {
		options = append(options, nats.InProcessServer(b.server))
	}
	conn, err := nats.Connect(b.url, options...)
	if err == nil {
		b.conns = append(b.conns, conn)
	}
	return conn, err
}

func (b *jetStream) close() {
	for _, s := range b.subs { // a router does not wait for them
		_ = s.Close()
	}
	for _, c := range b.conns {
		c.Close()
	}
	if b.server != nil {
		b.server.Shutdown()
		b.server.WaitForShutdown()
	}
}

func (b *jetStream) publisher(logger watermill.LoggerAdapter) (message.Publisher, error) {
	conn, err := b.connect("publisher")
	if err != nil {
		return nil, err
	}
	return wmnats.NewPublisherWithNatsConn(conn, wmnats.PublisherPublishConfig{
		Marshaler: &wmnats.NATSMarshaler{}, SubjectCalculator: wmnats.DefaultSubjectCalculator,
	}, logger)
}

// subscriber gives what a consumer receives from. Each has a connection of its own, which it closes.
func (b *jetStream) subscriber(l line, logger watermill.LoggerAdapter) (message.Subscriber, error) {
	conn, err := b.connect(l.name)
	if err != nil {
		return nil, err
	}
	sub, err := wmnats.NewSubscriberWithNatsConn(conn, wmnats.SubscriberSubscriptionConfig{
		Unmarshaler: counted{}, SubscribersCount: workers, QueueGroupPrefix: l.name, AckWaitTimeout: ackWait, NakDelay: pauses{},
		JetStream: wmnats.JetStreamConfig{
			DurablePrefix: l.name,
			// Without it the client acknowledges whatever Watermill lets go of, also what it could not hand on.
			SubscribeOptions: []nats.SubOpt{nats.ManualAck()},
		},
	}, logger)
	if err == nil {
		b.subs = append(b.subs, sub)
	}
	return sub, err
}

func (b *jetStream) pending(l line) (int, error) {
	info, err := b.js.ConsumerInfo(ordersStream, l.name)
	if err != nil {
		return 0, err
	}
	return int(info.NumPending) + info.NumAckPending, nil
}

func (b *jetStream) dead() (int, error) {
	info, err := b.js.StreamInfo(deadStream)
	if err != nil {
		return 0, err
	}
	return int(info.State.LastSeq), nil
}

// hold is none, as the broker waits by itself; see pauses.
func (*jetStream) hold() time.Duration { return -1 }

// pauses is after which time the broker delivers again what was put back: 20 ms, doubled each time up to 5 s.
type pauses struct{}

func (pauses) WaitTime(deliveries uint64) time.Duration {
	return min(20*time.Millisecond<<min(deliveries-1, 10), 5*time.Second)
}

// counted reads messages as they were sent and adds how often the broker has delivered them.
type counted struct{ wmnats.NATSMarshaler }

func (c counted) Unmarshal(in *nats.Msg) (*message.Message, error) {
	m, err := c.NATSMarshaler.Unmarshal(in)
	if err != nil {
		return nil, err
	}
	if about, err := in.Metadata(); err == nil {
		m.Metadata.Set(deliveriesMetadata, strconv.FormatUint(about.NumDelivered, 10))
	}
	return m, nil
}
