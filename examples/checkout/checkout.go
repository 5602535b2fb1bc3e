package main

import (
	"context"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
)

// Place is the command to pay for a cart.
type Place struct {
	CartID       string `json:"cart_id" validate:"required,max=64,printascii"`
	Amount       int64  `json:"amount" validate:"gt=0"` // in minor units: 4990 is 49.90
	Currency     string `json:"currency" validate:"required,iso4217"`
	Email        string `json:"email" validate:"omitempty,email,max=254"`
	DraftOrderID string `json:"draft_order_id" validate:"omitempty,max=64,printascii"`
}

// CommandName is the command's stable name, and ties it to its result.
func (Place) CommandName() bus.Name[Placed] { return "checkout.place" }

// Idempotent marks the command: sent again with the same key, it makes no second order.
func (Place) Idempotent() {}

var _ idempotency.Marker = Place{} // the compiler checks the spelling

// Placed is the result of [Place].
type Placed struct {
	OrderID  string `json:"order_id"`
	CartID   string `json:"cart_id"`
	Amount   int64  `json:"amount"`
	Currency string `json:"currency"`
	AuthID   string `json:"auth_id"`
	Status   string `json:"status"`
}

// FindOrder is the query for one order.
type FindOrder struct {
	OrderID string `json:"order_id" validate:"required,uuid"`
}

// QueryName is the query's stable name.
func (FindOrder) QueryName() bus.Name[Order] { return "checkout.find_order" }

// ListOrders is the query for a page of orders, the newest first.
type ListOrders struct {
	Limit int `json:"limit" validate:"gte=1,lte=100"`
	// Before is the last order of the page before this one; empty for the first page.
	Before string `json:"before" validate:"omitempty,uuid"`
}

// QueryName is the query's stable name.
func (ListOrders) QueryName() bus.Name[Page] { return "checkout.list_orders" }

// Order is an order as it is stored.
type Order struct {
	OrderID      string    `json:"order_id"`
	CartID       string    `json:"cart_id"`
	Amount       int64     `json:"amount"`
	Currency     string    `json:"currency"`
	AuthID       string    `json:"auth_id"`
	Status       string    `json:"status"`
	DraftOrderID string    `json:"draft_order_id,omitempty"`
	CreatedAt    time.Time `json:"created_at"`
}

// Page is a page of orders.
type Page struct {
	Orders []Order `json:"orders"`
	// Next is the path of the next page; empty on the last one.
	Next string `json:"next,omitempty"`
}

// orders is where orders are kept. Its methods write through the transaction of the command in ctx, where there is one.
type orders interface {
	// insert writes the order and its authorisation.
	insert(ctx context.Context, o Order, email string) error
	// find gives errNoOrder where there is none.
	find(ctx context.Context, id string) (Order, error)
	list(ctx context.Context, limit int, before string) ([]Order, error)
	ping(ctx context.Context) error
}

// coded is an error with a code that callers can decide by.
type coded struct{ code, message string }

func (e *coded) Error() string { return e.message }
func (e *coded) Code() string  { return e.code }

var (
	errDeclined = &coded{"PAYMENT_DECLINED", "The payment was declined."}
	errNoOrder  = &coded{"ORDER_NOT_FOUND", "There is no such order."}
)

// checkout handles the commands and queries.
type checkout struct{ orders orders }

// place authorises the payment and writes order and authorisation. The authorisation is made up here: the next step, a
// payment provider that has to be called over the network, does not belong into a transaction.
func (c checkout) place(ctx context.Context, cmd Place) (Placed, error) {
	if strings.HasSuffix(cmd.CartID, "-declined") {
		return Placed{}, idempotency.Final(errDeclined) // an outcome like any other: the same key gets it again
	}
	id, err := uuid.NewV7() // ordered by time, so the newest order has the greatest id
	if err != nil {
		return Placed{}, err
	}
	o := Order{
		OrderID: id.String(), CartID: cmd.CartID, Amount: cmd.Amount, Currency: cmd.Currency,
		AuthID: "auth_" + uuid.NewString(), Status: "placed", DraftOrderID: cmd.DraftOrderID, CreatedAt: time.Now().UTC().Truncate(time.Millisecond),
	}
	if err := c.orders.insert(ctx, o, cmd.Email); err != nil {
		return Placed{}, err
	}
	requestctx.From(ctx).SetExternalRef(o.AuthID)
	return Placed{o.OrderID, o.CartID, o.Amount, o.Currency, o.AuthID, o.Status}, nil
}

func (c checkout) find(ctx context.Context, q FindOrder) (Order, error) {
	return c.orders.find(ctx, q.OrderID)
}

func (c checkout) list(ctx context.Context, q ListOrders) (Page, error) {
	found, err := c.orders.list(ctx, q.Limit+1, q.Before)
	if err != nil {
		return Page{}, err
	}
	page := Page{Orders: found}
	if len(found) > q.Limit {
		page.Orders = found[:q.Limit]
		page.Next = nextPage(q.Limit, page.Orders[q.Limit-1].OrderID)
	}
	if page.Orders == nil {
		page.Orders = []Order{}
	}
	return page, nil
}
