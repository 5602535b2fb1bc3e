package main

import (
	"context"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tekil-go/tekil/behaviors/idempotency"
)

// database is SQLite or PostgreSQL, with everything that is kept.
type database interface {
	tables
	// store keeps the records, in the same transactions as the tables.
	store() idempotency.Store
	// write puts a message into the outbox, in the transaction of the command in ctx.
	write(ctx context.Context, topic string, m *message.Message) error
	// outbox gives the forwarder what is in the outbox, in random order where it is asked for that and can.
	outbox(shuffled bool, logger watermill.LoggerAdapter) (message.Subscriber, error)
	// unsent is how many rows of the outbox the broker does not have yet.
	unsent(ctx context.Context) (int, error)
	count(ctx context.Context) (rows, error)
	close()
}

// rows is how many rows there are.
type rows struct {
	orders, collected, events, unsent  int
	mails, shipments, closed, invoices int
	wrong                              int // orders that have not one mail, one shipment and one invoice
}

// outboxTopic is the name of the outbox for Watermill.
const outboxTopic = "outbox"

// outboxBatch is how many rows are read at once. Those of a batch that the program does not live to mark are sent again.
const outboxBatch = 20
