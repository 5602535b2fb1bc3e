package main

import (
	"context"
	"errors"
	"math/rand/v2"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/registry"
	"github.com/tekil-go/tekil/requestctx/msgedge/watermilledge"
)

// The events, which are message types, and the topics that they go to.
const (
	orderPlaced    = "order.placed"
	orderCollected = "order.collected"

	placedTopic    = "orders.placed"
	collectedTopic = "orders.collected"
)

// Place is the command to order something.
type Place struct {
	Item   string `json:"item" validate:"required,max=64,printascii"`
	Amount int64  `json:"amount" validate:"gt=0"` // in minor units: 4990 is 49.90
	Email  string `json:"email" validate:"required,email,max=254"`
	// Collected: the customer takes it along at once, so that nothing is left to be shipped.
	Collected bool `json:"collected"`
}

// CommandName is the command's stable name, and ties it to its result.
func (Place) CommandName() bus.Name[Placed] { return "orders.place" }

// Idempotent marks the command. It is Atomic, as every command that does not say otherwise: order, events and record are one
// transaction.
func (Place) Idempotent() {}

// Placed is the result of [Place].
type Placed struct {
	OrderID string `json:"order_id"`
}

// Order is an order as its event tells it.
type Order struct {
	OrderID string `json:"order_id" validate:"required,uuid"`
	Item    string `json:"item" validate:"required,max=64"`
	Amount  int64  `json:"amount" validate:"gt=0"`
	Email   string `json:"email" validate:"required,email"`
}

// SendMail is what the mailer makes of order.placed: a mail in the table that a program for mails would send from.
type SendMail Order

// CommandName is the command's stable name.
func (SendMail) CommandName() bus.Name[bus.None] { return "mailer.send" }

// Idempotent marks the command: the table takes as many mails for an order as it is given.
func (SendMail) Idempotent() {}

// Ship is what shipping makes of order.placed: a shipment.
type Ship Order

// CommandName is the command's stable name.
func (Ship) CommandName() bus.Name[bus.None] { return "shipping.ship" }

// Idempotent marks the command.
func (Ship) Idempotent() {}

// CloseShipment is what shipping makes of order.collected. It carries no mark: the order is the natural key of a shipment, and the
// command is an upsert by it that does the same however often it runs (rule msg-3).
type CloseShipment struct {
	OrderID string `json:"order_id" validate:"required,uuid"`
}

// CommandName is the command's stable name.
func (CloseShipment) CommandName() bus.Name[bus.None] { return "shipping.close" }

// WriteInvoice is what billing makes of order.placed: an invoice.
type WriteInvoice Order

// CommandName is the command's stable name.
func (WriteInvoice) CommandName() bus.Name[bus.None] { return "billing.invoice" }

// Idempotent marks the command.
func (WriteInvoice) Idempotent() {}

// The compiler checks the spelling of the marks.
var _ = []idempotency.Marker{Place{}, SendMail{}, Ship{}, WriteInvoice{}}

// tables is where the four programs, which are one here, keep what they have. Its methods write through the transaction of the
// command in ctx.
type tables interface {
	insertOrder(ctx context.Context, o Order, collected bool) error
	insertMail(ctx context.Context, orderID, email string) error
	// ship opens the shipment of an order. One that is there already stays as it is, above all one that is closed.
	ship(ctx context.Context, orderID, item string) error
	// closeShipment closes the shipment of an order, also one that nobody has opened yet.
	closeShipment(ctx context.Context, orderID string) error
	insertInvoice(ctx context.Context, orderID string, amount int64) error
}

// service handles the commands.
type service struct {
	tables tables
	outbox *watermilledge.Publisher
}

// place writes the order and its events. Of an attempt that fails neither exists, and a replay emits nothing.
func (s service) place(ctx context.Context, cmd Place) (Placed, error) {
	o := Order{OrderID: uuid.NewString(), Item: cmd.Item, Amount: cmd.Amount, Email: cmd.Email}
	if err := s.tables.insertOrder(ctx, o, cmd.Collected); err != nil {
		return Placed{}, err
	}
	if err := s.outbox.Send(ctx, placedTopic, watermilledge.Out{Type: orderPlaced, Body: o}); err != nil {
		return Placed{}, err
	}
	if cmd.Collected {
		out := watermilledge.Out{Type: orderCollected, Body: CloseShipment{o.OrderID}}
		if err := s.outbox.Send(ctx, collectedTopic, out); err != nil {
			return Placed{}, err
		}
	}
	return Placed{o.OrderID}, nil
}

func (s service) mail(ctx context.Context, cmd SendMail) (bus.None, error) {
	return bus.None{}, s.tables.insertMail(ctx, cmd.OrderID, cmd.Email)
}

func (s service) ship(ctx context.Context, cmd Ship) (bus.None, error) {
	return bus.None{}, s.tables.ship(ctx, cmd.OrderID, cmd.Item)
}

func (s service) closeShipment(ctx context.Context, cmd CloseShipment) (bus.None, error) {
	return bus.None{}, s.tables.closeShipment(ctx, cmd.OrderID)
}

func (s service) invoice(ctx context.Context, cmd WriteInvoice) (bus.None, error) {
	return bus.None{}, s.tables.insertInvoice(ctx, cmd.OrderID, cmd.Amount)
}

// newBus is the whole wiring: which function serves which command.
func newBus(s service, store idempotency.Store, logger *zap.Logger, failRate float64, observers ...bus.Observer) (*bus.Bus, error) {
	reg := registry.New(registry.Config{Logger: logger, Store: store, Observers: observers, Around: []registry.Around{failing(failRate)}})
	registry.Handle(reg, s.place)
	registry.Handle(reg, s.mail)
	registry.Handle(reg, s.ship)
	registry.Handle(reg, s.closeShipment)
	registry.Handle(reg, s.invoice)
	return reg.Build()
}

// errDemo is what -fail-rate makes of a handler's success.
var errDemo = errors.New("failed on purpose")

// failing makes the handlers of the consumers fail now and then, behind their work, which is undone with its transaction.
func failing(rate float64) registry.Around {
	placing := string(Place{}.CommandName())
	return func(ctx context.Context, inv bus.Invocation, next func(context.Context) error) error {
		err := next(ctx)
		if err == nil && inv.Name != placing && rand.Float64() < rate {
			return errDemo
		}
		return err
	}
}
