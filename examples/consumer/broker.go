package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// The streams, and the subject of what is set aside.
const (
	ordersStream = "ORDERS"
	deadStream   = "DEAD"
	deadTopic    = "dead.orders"
)

const (
	ackWait   = 4 * time.Second  // after which the broker takes a delivery for lost; a handler needs some milliseconds
	inFlight  = 16               // deliveries of a consumer that are not acknowledged; more would wait in memory and be sent again
	workers   = 2                // of each consumer
	brokerFor = 10 * time.Second // what the broker may take to start
)

// broker is the connection to NATS, and NATS itself.
type broker struct {
	server *server.Server // nil where it runs elsewhere
	url    string
	js     nats.JetStreamContext
	conns  []*nats.Conn
	subs   []message.Subscriber
}

// embeddedBroker starts a NATS server in this process that keeps its streams in folder and listens nowhere.
func embeddedBroker(folder string) (*broker, error) {
	s, err := server.NewServer(&server.Options{JetStream: true, StoreDir: folder, DontListen: true, NoSigs: true, NoLog: true})
	if err != nil {
		return nil, err
	}
	s.Start()
	b := &broker{server: s}
	if !s.ReadyForConnections(brokerFor) {
		b.close()
		return nil, errors.New("the NATS server does not start")
	}
	return b.setUp()
}

// connectBroker uses a NATS server that runs elsewhere, with JetStream.
func connectBroker(url string) (*broker, error) { return (&broker{url: url}).setUp() }

// setUp makes the streams. What is there already stays.
func (b *broker) setUp() (_ *broker, err error) {
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
	return b, nil
}

func (b *broker) connect(name string) (*nats.Conn, error) {
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

func (b *broker) close() {
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

func (b *broker) publisher(logger watermill.LoggerAdapter) (message.Publisher, error) {
	conn, err := b.connect("publisher")
	if err != nil {
		return nil, err
	}
	return wmnats.NewPublisherWithNatsConn(conn, wmnats.PublisherPublishConfig{
		Marshaler: &wmnats.NATSMarshaler{}, SubjectCalculator: wmnats.DefaultSubjectCalculator,
	}, logger)
}

// subscriber gives what a consumer receives from. The broker remembers under the name what it has acknowledged. Each has a
// connection of its own, which it closes.
func (b *broker) subscriber(name, topic string, logger watermill.LoggerAdapter) (message.Subscriber, error) {
	_, err := b.js.AddConsumer(ordersStream, &nats.ConsumerConfig{
		Durable: name, FilterSubject: topic, DeliverSubject: "deliver." + name, DeliverGroup: name,
		AckPolicy: nats.AckExplicitPolicy, AckWait: ackWait, MaxAckPending: inFlight,
	})
	if err != nil {
		return nil, fmt.Errorf("consumer %s: %w", name, err)
	}
	conn, err := b.connect(name)
	if err != nil {
		return nil, err
	}
	sub, err := wmnats.NewSubscriberWithNatsConn(conn, wmnats.SubscriberSubscriptionConfig{
		Unmarshaler: counted{}, SubscribersCount: workers, QueueGroupPrefix: name, AckWaitTimeout: ackWait, NakDelay: pauses{},
		JetStream: wmnats.JetStreamConfig{
			DurablePrefix: name,
			// Without it the client acknowledges whatever Watermill lets go of, also what it could not hand on.
			SubscribeOptions: []nats.SubOpt{nats.ManualAck()},
		},
	}, logger)
	if err == nil {
		b.subs = append(b.subs, sub)
	}
	return sub, err
}

// pending is how many messages a consumer has not acknowledged.
func (b *broker) pending(name string) (int, error) {
	info, err := b.js.ConsumerInfo(ordersStream, name)
	if err != nil {
		return 0, err
	}
	return int(info.NumPending) + info.NumAckPending, nil
}

// kept is how many messages a stream has taken.
func (b *broker) kept(stream string) (int, error) {
	info, err := b.js.StreamInfo(stream)
	if err != nil {
		return 0, err
	}
	return int(info.State.LastSeq), nil
}

// pauses is after which time the broker delivers again what was put back: 20 ms, doubled each time up to 5 s.
type pauses struct{}

func (pauses) WaitTime(deliveries uint64) time.Duration {
	return min(20*time.Millisecond<<min(deliveries-1, 10), 5*time.Second)
}

// deliveriesMetadata says how often a message has been delivered.
const deliveriesMetadata = "deliveries"

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

func deliveries(m *message.Message) int {
	n, _ := strconv.Atoi(m.Metadata.Get(deliveriesMetadata))
	return n
}

// rough is a publisher that sends each message several times, as an outbox and a broker may. Shuffled, the copies come at any time
// later, among other messages. The first one is with the broker when Publish returns.
type rough struct {
	message.Publisher
	copies  int
	shuffle bool

	mu  sync.Mutex
	bag []letter // copies that are still to be sent
}

type letter struct {
	topic string
	m     *message.Message
}

func (r *rough) Publish(topic string, messages ...*message.Message) error {
	for _, m := range messages {
		if err := r.Publisher.Publish(topic, m); err != nil {
			return err
		}
		r.mu.Lock()
		for range r.copies - 1 {
			r.bag = append(r.bag, letter{topic, m.Copy()})
		}
		n := len(r.bag)
		if r.shuffle {
			n = min(n, rand.IntN(2*r.copies-1))
		}
		err := r.send(n)
		r.mu.Unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

// flush sends the copies that are left.
func (r *rough) flush() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.send(len(r.bag))
}

// send takes n of the copies, whichever, and sends them.
func (r *rough) send(n int) error {
	for ; n > 0; n-- {
		i, last := rand.IntN(len(r.bag)), len(r.bag)-1
		if err := r.Publisher.Publish(r.bag[i].topic, r.bag[i].m); err != nil {
			return err
		}
		r.bag[i] = r.bag[last]
		r.bag = r.bag[:last]
	}
	return nil
}
