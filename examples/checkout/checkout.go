package main

import (
	"context"
	"errors"
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
func (Place) CommandName() bus.Name[Placed] { return placeName }

// Idempotent marks the command: sent again with the same key, it makes no second order.
func (Place) Idempotent() {}

var _ idempotency.Marker = Place{} // the compiler checks the spelling

// placeName is the name of the command in each of its forms, of which a server serves one. The name is part of a key's scope: with
// the same one, a payment that was made before the provider was switched on, or off, is replayed and not made again. One whose
// outcome is unknown when the provider is switched off stays in progress: Place could not find out.
const placeName bus.Name[Placed] = "checkout.place"

// PlaceWithProvider is [Place] where a payment provider is called, which is why it is Leased: how a command is protected belongs to
// its type. It has the same fields and name, and thus the same fingerprint and keys.
type PlaceWithProvider Place

// CommandName is that of Place.
func (PlaceWithProvider) CommandName() bus.Name[Placed] { return placeName }

// The times of a payment that calls out, each with room in the next: the call, the whole handler, and a drain at SIGTERM, which cuts
// no handler off whose key would then have to wait for the lease.
const (
	providerTimeout  = 45 * time.Second
	providerDeadline = 55 * time.Second
	providerDrain    = 60 * time.Second
)

// Idempotency says how the command is protected.
func (PlaceWithProvider) Idempotency() idempotency.Policy {
	return idempotency.Policy{
		Mode: idempotency.Leased,
		// It is renewed while the handler runs, so it may be shorter than the handler. It is how long a key waits after a crash, or after a
		// call of which nobody knows whether it arrived: until then a retry is told that it is in progress. 30 s is the shortest that is
		// allowed, so that a demonstration has an end.
		Lease:    idempotency.MinLease,
		Deadline: providerDeadline,
		// After that the provider is asked what it knows before it is asked to authorise.
		Takeover: idempotency.Reconcile,
	}
}

var _ idempotency.WithPolicy = PlaceWithProvider{}

// PlaceAsNew is [Place] as a service without idempotency would have it, for the demonstration: it carries no mark, so no key is read
// and every request is new.
type PlaceAsNew Place

// CommandName is that of Place.
func (PlaceAsNew) CommandName() bus.Name[Placed] { return placeName }

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

// ListAuthorizations is the query for what the payment provider holds.
type ListAuthorizations struct{}

// QueryName is the query's stable name.
func (ListAuthorizations) QueryName() bus.Name[Held] { return "checkout.list_authorizations" }

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
	// inTx runs fn in the business transaction of the command in ctx. In a Leased command this is where it is opened.
	inTx(ctx context.Context, fn func(ctx context.Context) error) error
	// insert writes the order and its authorisation. It gives errOtherPayment where the authorisation is another order's.
	insert(ctx context.Context, o Order, email string) error
	// find gives errNoOrder where there is none.
	find(ctx context.Context, id string) (Order, error)
	list(ctx context.Context, limit int, before string) ([]Order, error)
	ping(ctx context.Context) error
	// holds is for the page: how many orders there are, of a cart and in all, and the newest n records.
	holds(ctx context.Context, cart string, n int) (holdings, error)
}

// coded is an error with a code that callers can decide by.
type coded struct{ code, message string }

func (e *coded) Error() string { return e.message }
func (e *coded) Code() string  { return e.code }

var (
	errDeclined     = &coded{"PAYMENT_DECLINED", "The payment was declined."}
	errOtherPayment = &coded{"PAYMENT_MISMATCH", "The payment provider knows another payment under this key. New work needs a new key."}
	errProviderAway = &coded{"PROVIDER_UNAVAILABLE", "The payment provider is not available."}
	errNoOrder      = &coded{"ORDER_NOT_FOUND", "There is no such order."}
)

// checkout handles the commands and queries.
type checkout struct {
	orders   orders
	provider payments // nil where none is called
}

// place authorises the payment and writes order and authorisation. The authorisation is made up here: a provider that has to be called
// over the network does not belong into a transaction, see placeWithProvider.
func (c checkout) place(ctx context.Context, cmd Place) (Placed, error) {
	if strings.HasSuffix(cmd.CartID, "-declined") {
		return Placed{}, idempotency.Final(errDeclined) // an outcome like any other: the same key gets it again
	}
	return c.record(ctx, cmd, "auth_"+uuid.NewString())
}

// record writes order and authorisation.
func (c checkout) record(ctx context.Context, cmd Place, authID string) (Placed, error) {
	id, err := uuid.NewV7() // ordered by time, so the newest order has the greatest id
	if err != nil {
		return Placed{}, err
	}
	o := Order{
		OrderID: id.String(), CartID: cmd.CartID, Amount: cmd.Amount, Currency: cmd.Currency,
		AuthID: authID, Status: "placed", DraftOrderID: cmd.DraftOrderID, CreatedAt: time.Now().UTC().Truncate(time.Millisecond),
	}
	if err := c.orders.insert(ctx, o, cmd.Email); err != nil {
		return Placed{}, err
	}
	requestctx.From(ctx).SetExternalRef(o.AuthID)
	return Placed{o.OrderID, o.CartID, o.Amount, o.Currency, o.AuthID, o.Status}, nil
}

// placeWithProvider has the payment authorised and then writes the order. The call is made between the claim, which is committed, and
// the business transaction, which is not open yet: while the provider takes its time, no connection and no row is held.
func (c checkout) placeWithProvider(ctx context.Context, cmd PlaceWithProvider) (Placed, error) {
	key, err := authorizeKey(ctx)
	if err != nil {
		return Placed{}, err
	}
	auth, err := c.provider.authorize(ctx, key, chargeFor(Place(cmd)))
	if err != nil {
		return Placed{}, err
	}
	return c.recordAuthorized(ctx, Place(cmd), auth)
}

// reconcile is asked before placeWithProvider in every attempt but the first: an earlier one may have died, or lost the provider's
// answer, after the money was authorised. It writes the order that is missing. Where the provider knows of nothing, which it may also
// say because the earlier call is still on its way, placeWithProvider runs, under the same key.
func (c checkout) reconcile(ctx context.Context, cmd PlaceWithProvider) (placed Placed, found bool, err error) {
	key, err := authorizeKey(ctx)
	if err != nil {
		return Placed{}, false, err
	}
	auth, found, err := c.provider.find(ctx, key)
	if err != nil {
		return Placed{}, false, idempotency.Unknown(err) // what the earlier attempt has done is as unknown as before
	}
	if !found {
		return Placed{}, false, nil
	}
	placed, err = c.recordAuthorized(ctx, Place(cmd), auth)
	return placed, true, err
}

// authorizeKey is the key under which a payment is authorised: the same in every attempt, so that the provider can tell a repetition
// from new work.
func authorizeKey(ctx context.Context) (string, error) {
	return idempotency.DownstreamKey(ctx, "authorize")
}

// recordAuthorized writes order and authorisation in the business transaction, which fails if this attempt has lost its key meanwhile.
func (c checkout) recordAuthorized(ctx context.Context, cmd Place, auth Authorization) (placed Placed, err error) {
	// A provider that remembers longer than our record lives may answer with what it did in the key's former life.
	if auth.Charge != chargeFor(cmd) {
		return Placed{}, idempotency.Final(errOtherPayment)
	}
	err = c.orders.inTx(ctx, func(ctx context.Context) error {
		placed, err = c.record(ctx, cmd, auth.ID)
		return err
	})
	if errors.Is(err, errOtherPayment) {
		return Placed{}, idempotency.Final(errOtherPayment)
	}
	return placed, err
}

// placeAsNew is placeWithProvider, or place, without a key. However careful each side is by itself, the two cannot know what was meant
// as one.
func (c checkout) placeAsNew(ctx context.Context, cmd PlaceAsNew) (placed Placed, err error) {
	if c.provider == nil {
		err = c.orders.inTx(ctx, func(ctx context.Context) error {
			placed, err = c.place(ctx, Place(cmd))
			return err
		})
		return placed, err
	}
	auth, err := c.provider.authorize(ctx, "", chargeFor(Place(cmd)))
	if err != nil {
		return Placed{}, err
	}
	return c.recordAuthorized(ctx, Place(cmd), auth)
}

func (c checkout) held(ctx context.Context, _ ListAuthorizations) (Held, error) {
	return c.provider.list(ctx)
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
