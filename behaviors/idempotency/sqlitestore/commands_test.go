package sqlitestore_test

import (
	"context"
	"database/sql"
	"time"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/sqlitestore"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
)

// pay is a command that pays once for a note.
type pay struct {
	Note string `json:"note"`
}

// paid is its result.
type paid struct {
	OrderID int64 `json:"order_id"`
}

func (pay) CommandName() bus.Name[paid] { return "test.pay" }
func (pay) Idempotency() idempotency.Policy {
	return idempotency.Policy{Wait: idempotency.MaxWait}
}

// hasty is a command whose handler has little time.
type hasty struct {
	Note string `json:"note"`
}

func (hasty) CommandName() bus.Name[paid] { return "test.hasty" }
func (hasty) Idempotency() idempotency.Policy {
	return idempotency.Policy{Deadline: 50 * time.Millisecond}
}

// serve puts the idempotency stage over store before a handler, as a registry does.
func serve[C bus.Command[R], R any](store idempotency.Store, handle bus.Handler[C, R]) (bus.Handler[C, R], error) {
	engine, err := idempotency.New(idempotency.Config{Store: store})
	if err != nil {
		return nil, err
	}
	claimed, _, err := idempotency.Stage(engine, handle)
	if err != nil {
		return nil, err
	}
	var c C
	inv := bus.Invocation{Name: string(c.CommandName()), Idempotent: true}
	b, err := bus.New(bus.Serve(bus.Log(bus.Validate(claimed, inv, nil, nil), inv, nil, nil)))
	if err != nil {
		return nil, err
	}
	return bus.Bind[C](b)
}

// send sends a command as a request of its own.
func send[C, R any](ctx context.Context, handle bus.Handler[C, R], key string, cmd C) (R, requestctx.Outcome, error) {
	k, err := requestctx.ParseKey(key)
	if err != nil {
		return *new(R), requestctx.Outcome{}, err
	}
	ctx, req := requestctx.New(ctx, requestctx.Values{Key: k, Scope: requestctx.Scope{Client: "client-1"}})
	res, err := handle(ctx, cmd)
	return res, req.Outcome(), err
}

// readThenWrite is a handler that reads before it writes, which in a deferred transaction would fail at once whenever somebody
// else has written in between.
func readThenWrite(db *sql.DB) bus.Handler[pay, paid] {
	return func(ctx context.Context, cmd pay) (res paid, err error) {
		tx := sqlitestore.DB(ctx, db)
		var orders int
		if err := tx.QueryRowContext(ctx, `SELECT count(*) FROM orders`).Scan(&orders); err != nil {
			return res, err
		}
		err = tx.QueryRowContext(ctx, `INSERT INTO orders (note) VALUES (?) RETURNING id`, cmd.Note).Scan(&res.OrderID)
		return res, err
	}
}
