package idempotency_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/memstore"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
)

// authorize reserves money at a payment provider. Its handler calls the outside world, so it is Leased.
type authorize struct {
	Order  string `json:"order"`
	Amount int64  `json:"amount"`
}

func (authorize) CommandName() bus.Name[string] { return "billing.authorize" }
func (authorize) Idempotency() idempotency.Policy {
	return idempotency.Policy{
		Mode:        idempotency.Leased,
		Lease:       time.Minute,                // renewed every 20 seconds while the handler runs
		Deadline:    30 * time.Second,           // of the handler
		Takeover:    idempotency.RunAgain,       // the provider honours our key
		Duplicate:   idempotency.AnswerAccepted, // "accepted, look at the operation"
		Wait:        -1,                         // and that at once
		MaxAttempts: 5,
	}
}

// provider is a payment provider that honours idempotency keys, as they do.
type provider struct{ byKey map[string]string }

func (p *provider) authorize(key string) (id string) {
	if p.byKey == nil {
		p.byKey = make(map[string]string)
	}
	if _, ok := p.byKey[key]; !ok {
		p.byKey[key] = fmt.Sprint("auth-", len(p.byKey)+1)
	}
	return p.byKey[key]
}

// open does for the examples what package registry does for an application.
func open[C bus.Command[R], R any](store idempotency.Store, h bus.Handler[C, R]) (send bus.Handler[C, R], plan idempotency.Plan) {
	engine, err := idempotency.New(idempotency.Config{Store: store})
	if err != nil {
		panic(err)
	}
	return openOn(engine, h)
}

func openOn[C bus.Command[R], R any](engine *idempotency.Engine, h bus.Handler[C, R]) (send bus.Handler[C, R], plan idempotency.Plan) {
	claimed, plan, err := idempotency.Stage(engine, h)
	if err != nil {
		panic(err)
	}
	b, err := bus.New(bus.Serve(bus.Log(bus.Validate(claimed, bus.Invocation{}, nil, nil), bus.Invocation{}, nil, nil)))
	if err != nil {
		panic(err)
	}
	if send, err = bus.Bind[C](b); err != nil {
		panic(err)
	}
	return send, plan
}

// request is what an edge makes of a request.
func request(key string) (context.Context, *requestctx.Request) {
	k, err := requestctx.ParseKey(key)
	if err != nil {
		panic(err)
	}
	return requestctx.New(context.Background(), requestctx.Values{Key: k, Scope: requestctx.Scope{Client: "shop"}})
}

func ExampleLeased() {
	store, psp := memstore.New(), &provider{}
	send, plan := open(store, func(ctx context.Context, a authorize) (string, error) {
		key, err := idempotency.DownstreamKey(ctx, "authorize")
		if err != nil {
			return "", err
		}
		id := psp.authorize(key) // outside, before the business transaction
		return id, store.InTx(ctx, func(ctx context.Context) error { return store.Insert(ctx, a.Order+" "+id) })
	})
	fmt.Println(plan.Policy.Mode, plan.Policy.Lease)
	for range 2 {
		ctx, req := request("order-4711-authorize")
		id, err := send(ctx, authorize{Order: "order-4711", Amount: 4200})
		fmt.Println(id, err, req.Outcome().Replayed, store.Rows())
	}
	// Output:
	// leased 1m0s
	// auth-1 <nil> false [order-4711 auth-1]
	// auth-1 <nil> true [order-4711 auth-1]
}

// A mail is sent once, however often the message that asks for it is delivered.
func ExampleOnce() {
	store := memstore.New()
	for range 3 {
		err := idempotency.Once(context.Background(), store, "mailer", "order-4711-placed", func(ctx context.Context) error {
			fmt.Println("a mail goes into the outbox")
			return store.Insert(ctx, "mail for order 4711")
		})
		fmt.Println(err)
	}
	fmt.Println(len(store.Rows()), "row")
	// Output:
	// a mail goes into the outbox
	// <nil>
	// <nil>
	// <nil>
	// 1 row
}

func ExampleEventID() {
	store := memstore.New()
	send, _ := open(store, func(ctx context.Context, a authorize) (string, error) {
		id, err := idempotency.EventID(ctx)
		if err != nil {
			return "", err
		}
		return "auth-1", store.Insert(ctx, "order.authorized as "+strconv.Itoa(len(id))+" characters") // a row of the outbox, in the handler's transaction
	})
	for range 2 { // the second is a replay, which emits nothing
		ctx, _ := request("order-4711-authorize")
		fmt.Println(send(ctx, authorize{Order: "order-4711", Amount: 4200}))
	}
	fmt.Println(store.Rows())
	// Output:
	// auth-1 <nil>
	// auth-1 <nil>
	// [order.authorized as 43 characters]
}

func ExampleDownstreamKey() {
	store, psp := memstore.New(), &provider{}
	send, _ := open(store, func(ctx context.Context, a authorize) (string, error) {
		key, err := idempotency.DownstreamKey(ctx, "authorize")
		if err != nil {
			return "", err
		}
		fmt.Println(len(key), psp.authorize(key))
		if attempt, _ := idempotency.Attempt(ctx); attempt.Attempt == 1 {
			return "", idempotency.Unknown(errors.New("the provider's answer did not come"))
		}
		return psp.authorize(key), nil
	})
	for range 2 {
		ctx, _ := request("order-4711-authorize")
		id, err := send(ctx, authorize{Order: "order-4711", Amount: 4200})
		fmt.Printf("%q %s\n", id, cmp.Or(bus.CodeOf(err), "OK"))
		store.Age(time.Minute) // the lease is over
	}
	fmt.Println(len(psp.byKey), "authorisation")
	_, err := idempotency.DownstreamKey(context.Background(), "authorize")
	fmt.Println(errors.Is(err, idempotency.ErrNoIntent))
	// Output:
	// 43 auth-1
	// "" IDEMPOTENCY_OUTCOME_UNKNOWN
	// 43 auth-1
	// "auth-1" OK
	// 1 authorisation
	// true
}

func ExampleAttempt() {
	store := memstore.New()
	send, _ := open(store, func(ctx context.Context, _ authorize) (string, error) {
		a, _ := idempotency.Attempt(ctx)
		fmt.Printf("attempt %d, took over: %v\n", a.Attempt, a.TookOver)
		if a.Attempt == 1 {
			return "", idempotency.Unknown(errors.New("no answer"))
		}
		return "done", nil
	})
	for range 2 {
		ctx, _ := request("order-4711-authorize")
		_, _ = send(ctx, authorize{Order: "order-4711"})
		store.Age(time.Minute)
	}
	// Output:
	// attempt 1, took over: false
	// attempt 2, took over: true
}

// capture is one item of a settlement, and settle the settlement.
type (
	capture struct {
		Order string `json:"order"`
	}
	settle struct {
		Orders []string `json:"orders"`
	}
)

func (capture) CommandName() bus.Name[string] { return "billing.capture" }
func (capture) Idempotency() idempotency.Policy {
	return idempotency.Policy{Mode: idempotency.Leased}
}

func (settle) CommandName() bus.Name[int] { return "billing.settle" }
func (settle) Idempotency() idempotency.Policy {
	return idempotency.Policy{Mode: idempotency.Leased}
}

func ExampleWithLabel() {
	store := memstore.New()
	engine, err := idempotency.New(idempotency.Config{Store: store})
	if err != nil {
		panic(err)
	}
	away := true
	captureOne, _ := openOn(engine, func(_ context.Context, c capture) (string, error) {
		fmt.Println("capturing", c.Order)
		if c.Order == "order-2" && away {
			return "", errors.New("the provider is away")
		}
		return "captured", nil
	})
	send, _ := openOn(engine, func(ctx context.Context, s settle) (int, error) {
		for _, order := range s.Orders {
			if _, err := captureOne(idempotency.WithLabel(ctx, order), capture{Order: order}); err != nil { // by its id, not its index
				return 0, err
			}
		}
		return len(s.Orders), nil
	})
	for range 2 {
		ctx, _ := request("settlement-2031-05")
		n, err := send(ctx, settle{Orders: []string{"order-1", "order-2", "order-3"}})
		fmt.Println(n, err)
		away = false
	}
	// Output:
	// capturing order-1
	// capturing order-2
	// 0 the provider is away
	// capturing order-2
	// capturing order-3
	// 3 <nil>
}

func ExampleAdmin_Release() {
	store := memstore.New()
	admin, err := idempotency.NewAdmin(idempotency.AdminConfig{Store: store, Logger: zap.NewNop()}) // use the application's
	if err != nil {
		panic(err)
	}
	dies := true
	send, _ := open(store, func(context.Context, authorize) (string, error) {
		if dies {
			return "", idempotency.Unknown(errors.New("no answer"))
		}
		return "auth-1", nil
	})
	ctx, _ := request("order-4711-authorize")
	_, err = send(ctx, authorize{Order: "order-4711"})
	fmt.Println(bus.CodeOf(err))

	found, err := admin.Find(context.Background(), idempotency.Search{Key: "order-4711-authorize"})
	if err != nil {
		panic(err)
	}
	fmt.Println(len(found), found[0].State, found[0].Attempts)
	why := idempotency.Intervention{By: "ayse", Reason: "ticket 815: the provider knows of nothing"}
	fmt.Println(admin.Release(context.Background(), found[0].ID, why))
	why.LiveLease = true // the attempt is known to be dead
	fmt.Println(admin.Release(context.Background(), found[0].ID, why))

	dies = false
	ctx, _ = request("order-4711-authorize")
	fmt.Println(send(ctx, authorize{Order: "order-4711"}))
	// Output:
	// IDEMPOTENCY_OUTCOME_UNKNOWN
	// 1 in_progress 1
	// idempotency: release: its lease is not over: an attempt is most likely at work; wait, or say that it is meant (Intervention.LiveLease)
	// <nil>
	// auth-1 <nil>
}

func ExampleFindOperation() {
	store := memstore.New()
	var operation string
	var send bus.Handler[authorize, string]
	send, _ = open(store, func(context.Context, authorize) (string, error) {
		ctx, _ := request("order-4711-authorize") // meanwhile the caller asks again
		_, err := send(ctx, authorize{Order: "order-4711"})
		var running *idempotency.InProgressError
		if errors.As(err, &running) {
			operation = running.OperationID
			op, err := idempotency.FindOperation(ctx, store, operation)
			fmt.Println(running.Accepted, op.State, err)
		}
		return "auth-1", nil
	})
	ctx, _ := request("order-4711-authorize")
	if _, err := send(ctx, authorize{Order: "order-4711"}); err != nil {
		panic(err)
	}
	op, err := idempotency.FindOperation(ctx, store, operation)
	if err != nil {
		panic(err)
	}
	fmt.Println(op.Command, op.State, string(op.Result))
	// Output:
	// true in_progress <nil>
	// billing.authorize completed "auth-1"
}

// invite gives a token that is good once, so nothing of its result is stored.
type invite struct {
	Email string `json:"email"`
}

func (invite) CommandName() bus.Name[string] { return "accounts.invite" }
func (invite) Idempotency() idempotency.Policy {
	return idempotency.Policy{Results: idempotency.OmitResult}
}

func ExampleOmitResult() {
	send, _ := open(memstore.New(), func(ctx context.Context, _ invite) (string, error) {
		requestctx.From(ctx).SetExternalRef("invitation-7")
		return "token-4f1d", nil
	})
	for range 2 {
		ctx, _ := request("invite-ada-1")
		token, err := send(ctx, invite{Email: "ada@example.com"})
		fmt.Printf("%q %v\n", token, err)
		var gone *idempotency.ResultUnavailableError
		if errors.As(err, &gone) {
			fmt.Println(gone.ExternalRef)
		}
	}
	// Output:
	// "token-4f1d" <nil>
	// "" idempotency: accounts.invite: the work was done and its result was not stored
	// invitation-7
}

// credentials is a command whose result is stored encrypted.
type credentials struct {
	Terminal string `json:"terminal"`
}

func (credentials) CommandName() bus.Name[string] { return "terminals.credentials" }
func (credentials) Idempotency() idempotency.Policy {
	return idempotency.Policy{Results: idempotency.SealResult}
}

func ExampleNewSealer() {
	current, former := make([]byte, 32), []byte("a key of 32 bytes, used formerly") // from a vault; 32 random bytes each
	sealer, err := idempotency.NewSealer(current, former)
	if err != nil {
		panic(err)
	}
	store := memstore.New()
	engine, err := idempotency.New(idempotency.Config{Store: store, Sealer: sealer})
	if err != nil {
		panic(err)
	}
	send, _ := openOn(engine, func(context.Context, credentials) (string, error) { return "password-1", nil })
	for range 2 {
		ctx, req := request("terminal-7-1")
		password, err := send(ctx, credentials{Terminal: "7"})
		fmt.Println(password, err, req.Outcome().Replayed)
	}
	rec := store.Records()[0]
	fmt.Println(rec.ResultType, strings.Contains(string(rec.Result), "password"))
	// Output:
	// password-1 <nil> false
	// password-1 <nil> true
	// sealed/0 false
}

// price is a result whose version 1 has an amount and a currency; version 0 was a number of kurus.
type price struct {
	Amount   int64  `json:"amount"`
	Currency string `json:"currency"`
}

func (p *price) ReadResult(version int, stored []byte) error {
	if version != 0 {
		return fmt.Errorf("version %d is not known", version)
	}
	p.Currency = "TRY"
	return json.Unmarshal(stored, &p.Amount)
}

type (
	quoteV0 struct {
		Item string `json:"item"`
	}
	quote struct {
		Item string `json:"item"`
	}
)

func (quoteV0) CommandName() bus.Name[int64]  { return "shop.quote" }
func (quoteV0) Idempotent()                   {}
func (quote) CommandName() bus.Name[price]    { return "shop.quote" }
func (quote) Idempotency() idempotency.Policy { return idempotency.Policy{Version: 1} }

// A retry of a request that the program of yesterday has answered.
func ExampleResultReader() {
	store := memstore.New()
	yesterday, _ := open(store, func(context.Context, quoteV0) (int64, error) { return 4990, nil })
	today, _ := open(store, func(context.Context, quote) (price, error) { return price{5990, "TRY"}, nil })
	ctx, _ := request("quote-item-1")
	fmt.Println(yesterday(ctx, quoteV0{Item: "lamp"}))
	ctx, _ = request("quote-item-1")
	fmt.Println(today(ctx, quote{Item: "lamp"}))
	// Output:
	// 4990 <nil>
	// {4990 TRY} <nil>
}

func ExamplePurger() {
	store := memstore.New()
	send, _ := open(store, func(context.Context, authorize) (string, error) { return "auth-1", nil })
	ctx, _ := request("order-4711-authorize")
	if _, err := send(ctx, authorize{Order: "order-4711"}); err != nil {
		panic(err)
	}
	purger, err := idempotency.NewPurger(idempotency.PurgerConfig{Store: store})
	if err != nil {
		panic(err)
	}
	fmt.Println(purger.Once(context.Background())) // or in the background: go purger.Run(ctx)
	store.Age(idempotency.DefaultRetention + time.Hour)
	fmt.Println(purger.Once(context.Background()))
	// Output:
	// {0 0} <nil>
	// {1 0} <nil>
}
