// Package msgedge is the way in for messages: it turns what a broker delivers into the request context that the pipeline reads and
// a command, and what became of the dispatch into what is to be done with the message. It knows no broker.
//
//	c, err := msgedge.New(msgedge.Config{Bus: b, Consumer: "billing", Source: "orders"})
//	err = msgedge.Handle[billing.Invoice](c, "order.placed")
//	…
//	switch v := c.Receive(ctx, m); v.Action {
//	case msgedge.Ack:        // confirm it
//	case msgedge.Retry:      // put it back, to come again after v.Delay
//	case msgedge.DeadLetter: // set it aside, with v.Reason
//	}
//
// # The key
//
// A broker delivers at least once, and an outbox may send a row twice, so the id of a message is the key of the work that it asks
// for (rule msg-1). The publisher makes it and nobody else: a message without one is set aside and never given one (rules msg-2
// and pipe-7). The grammar is that of every key (rule http-1): 8 to 128 of A-Z a-z 0-9 . _ : -. Where one intent can come in two
// messages, because somebody has clicked twice, the application carries the intent's own key in a header, and
// [Config].KeyHeader says which.
//
// # Which messages share a key
//
// The scope of a key is the source (a topic, a stream, a queue) as its client, the tenant, and the consumer's name with the
// command's. So several consumers of one message each handle it once (rule msg-4), and two topics whose ids collide do not
// get into each other's way. A consumer's name and a source are part of its records: under another name it has seen nothing, and
// what comes back from a dead-letter queue has to be received under the source that it had first. A key that has come over HTTP is
// another one as well; where a request and a message can ask for the same work, let the request only send the message.
//
// # What is done with a message
//
// It stands in one function, [Judge]. Nothing is acknowledged before its work is committed, and a duplicate of work that is under
// way is put back and not acknowledged: were it acknowledged, and the one at work died, the message would be lost.
//
// # What it does not do
//
// It does not put messages into order: a late one is for a version in the data, which the handler compares. It does not make an
// effect outside of the database happen once; see the mode Leased and idempotency.DownstreamKey. And a message that comes again
// when its record has expired is new work, unless [Config].MaxAge or the command's policy (Tombstone) says otherwise; with
// [Config].Redelivery the program does not start with a record that is too short-lived.
package msgedge
