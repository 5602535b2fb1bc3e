package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	// emptyFor is how long a queue has to be empty before nothing is taken to be left. RabbitMQ counts the messages that wait, and not
	// those that are out for a delivery; one of these is back in the queue as soon as it is refused or its receiver is gone.
	emptyFor = 2 * time.Second
	// amqpHold is how long a message that is put back is held first. RabbitMQ delivers it again at once.
	amqpHold = 200 * time.Millisecond
	// deliveryCount is the header where a quorum queue says how often it has delivered a message before.
	deliveryCount = "x-delivery-count"
)

// rabbit is the connection to RabbitMQ: for each topic an exchange, and for each consumer a queue that is bound to it. The queues are
// quorum queues, which keep their messages on disk and count the deliveries.
type rabbit struct {
	url    string
	config wmamqp.Config
	subs   []message.Subscriber
	pubs   []message.Publisher

	mu    sync.Mutex
	conn  *amqp.Connection     // for questions
	empty map[string]time.Time // by queue, since when; no entry where it is not
}

// connectRabbitMQ makes exchanges and queues. What is there already stays.
func connectRabbitMQ(url string) (_ *rabbit, err error) {
	r := &rabbit{url: url, empty: map[string]time.Time{}}
	r.config = wmamqp.NewDurablePubSubConfig(url, nil)
	r.config.Marshaler = recounted{}
	r.config.Publish.ConfirmDelivery = true
	r.config.Connection.Reconnect = wmamqp.DefaultReconnectConfig()
	r.config.Connection.Reconnect.BackoffMaxInterval = 2 * time.Second
	defer func() {
		if err != nil {
			r.close()
		}
	}()
	for _, l := range slices.Concat(lines, []line{{name: deadTopic, topic: deadTopic}}) {
		if err := r.declare(l); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// of is the configuration for a consumer.
func (r *rabbit) of(l line) wmamqp.Config {
	c := r.config
	c.Queue.GenerateName = wmamqp.GenerateQueueNameConstant(l.name)
	c.Queue.Arguments = amqp.Table{"x-queue-type": "quorum"}
	return c
}

// declare makes the exchange and the queue, before anything is sent that would have no queue to go to.
func (r *rabbit) declare(l line) error {
	sub, err := wmamqp.NewSubscriber(r.of(l), watermill.NopLogger{})
	if err != nil {
		return err
	}
	return errors.Join(sub.SubscribeInitialize(l.topic), sub.Close())
}

func (r *rabbit) publisher(logger watermill.LoggerAdapter) (message.Publisher, error) {
	pub, err := wmamqp.NewPublisher(r.config, logger)
	if err == nil {
		r.pubs = append(r.pubs, pub)
	}
	return pub, err
}

func (r *rabbit) subscriber(l line, logger watermill.LoggerAdapter) (message.Subscriber, error) {
	sub, err := wmamqp.NewSubscriber(r.of(l), logger)
	if err == nil {
		r.subs = append(r.subs, sub)
	}
	return sub, err
}

func (*rabbit) hold() time.Duration { return amqpHold }

func (r *rabbit) pending(l line) (int, error) {
	waiting, err := r.waiting(l.name)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil || waiting > 0 {
		delete(r.empty, l.name)
		return waiting, err
	}
	since, empty := r.empty[l.name]
	if !empty {
		since = time.Now()
		r.empty[l.name] = since
	}
	if time.Since(since) < emptyFor {
		return 1, nil
	}
	return 0, nil
}

func (r *rabbit) dead() (int, error) { return r.waiting(deadTopic) }

// waiting is how many messages are in a queue.
func (r *rabbit) waiting(queue string) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.conn == nil || r.conn.IsClosed() {
		conn, err := amqp.Dial(r.url)
		if err != nil {
			return 0, err
		}
		r.conn = conn
	}
	channel, err := r.conn.Channel()
	if err != nil {
		return 0, err
	}
	defer channel.Close()
	q, err := channel.QueueDeclarePassive(queue, true, false, false, false, nil)
	return q.Messages, err
}

func (r *rabbit) close() {
	for _, s := range r.subs {
		_ = s.Close()
	}
	for _, p := range r.pubs {
		_ = p.Close()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.conn != nil {
		_ = r.conn.Close()
	}
}

// recounted reads messages as they were sent and adds how often the broker has delivered them. What other programs add to the headers
// need not be text, and is made text.
type recounted struct{ wmamqp.DefaultMarshaler }

func (c recounted) Unmarshal(in amqp.Delivery) (*message.Message, error) {
	before, _ := in.Headers[deliveryCount].(int64) // there is none in a first delivery
	delete(in.Headers, deliveryCount)
	for name, value := range in.Headers {
		if _, ok := value.(string); !ok {
			in.Headers[name] = fmt.Sprint(value)
		}
	}
	m, err := c.DefaultMarshaler.Unmarshal(in)
	if err == nil {
		m.Metadata.Set(deliveriesMetadata, strconv.FormatInt(before+1, 10))
	}
	return m, err
}
