// Package watermilledge joins package msgedge to Watermill, for whatever broker Watermill has a subscriber for. [Handler] is the
// handler of a router, and [Publisher] sends messages whose ids keep the intent.
//
//	c, err := msgedge.New(msgedge.Config{Bus: b, Consumer: "billing"})
//	err = msgedge.Handle[billing.Invoice](c, "order.placed")
//	h, err := watermilledge.Handler(c, watermilledge.Options{Topic: "orders", DeadLetters: pub, DeadLetterTopic: "orders.dead"})
//	router.AddConsumerHandler("billing", "orders", subscriber, h)
//
// # The id of a message
//
// The key of the work is message.Message.UUID. It is made on the side that publishes: Watermill asks whoever calls
// message.NewMessage for it, and its cqrs component makes a new one for each message that it sends, so that a message which is sent
// again by a retry of the application is another one; [Publisher] is for that. A message that arrives without a UUID goes to the
// dead letters (rules msg-2 and pipe-7).
//
// So look at what your subscriber does when the broker's message has none. The default marshalers for NATS and JetStream, AMQP,
// Kafka, Google Cloud Pub/Sub, SQS, HTTP and SQL leave the UUID empty, which is right; the one for Redis streams panics. An unmarshaler of
// one's own that says message.NewMessage(watermill.NewUUID(), data), as is often written for messages from programs that do not
// use Watermill, makes one up on the receiving side. Then each delivery is new work and nothing here can see it. Take the
// publisher's id from the header in which that program puts it, or the broker's own id of the message, if it stays when the
// message is delivered again.
//
// With NATS JetStream set nats.ManualAck() on the subscription: without it the client acknowledges what Watermill drops when it shuts
// down, and those messages are lost.
//
// # What must not be around the handler
//
//   - middleware.PoisonQueue takes whatever returns an error out of the queue, also a message that only met another delivery at work.
//     Dead letters are published here, by what [msgedge.Judge] says.
//   - middleware.InstantAck acknowledges before the work is done, and middleware.Deduplicator acknowledges a message because it has
//     been seen, whether or not it has been dealt with. Both lose messages.
//   - middleware.Retry runs the handler again in the process. It does no harm, but holding a message back is done here already.
//   - gochannel's PreserveContext hands the consumer the context of whoever published. Published inside a handler, the consumer's
//     commands would count as that handler's own and run in its transaction. Such a message is put back and never dispatched.
package watermilledge
