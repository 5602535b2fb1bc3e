package main

import (
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
)

// deadTopic is where messages go that are set aside.
const deadTopic = "dead.orders"

// broker is NATS JetStream or RabbitMQ. All that differs between them is here.
type broker interface {
	// publisher sends. When Publish returns, the broker has the message.
	publisher(logger watermill.LoggerAdapter) (message.Publisher, error)
	// subscriber gives what a consumer receives from, with the metadata of deliveries. The broker knows a consumer by its name, in
	// whichever process it is.
	subscriber(l line, logger watermill.LoggerAdapter) (message.Subscriber, error)
	// hold is how long a message that is put back is held here at most, see watermilledge.Options.
	hold() time.Duration
	// pending is how many messages a consumer has not acknowledged.
	pending(l line) (int, error)
	// dead is how many messages have been set aside since the broker was set up.
	dead() (int, error)
	close()
}

// deliveriesMetadata says how often a message has been delivered.
const deliveriesMetadata = "deliveries"

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

	mu   sync.Mutex
	bag  []letter // copies that are still to be sent
	sent int
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
		r.sent++
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
		r.sent++
	}
	return nil
}

// published is how many messages the broker has taken.
func (r *rough) published() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sent
}
