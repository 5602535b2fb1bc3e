package sqlitestore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/sqlitestore"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
)

// charge is a Leased command.
type charge struct {
	Note string `json:"note"`
}

func (charge) CommandName() bus.Name[paid] { return "test.charge" }
func (charge) Idempotency() idempotency.Policy {
	return idempotency.Policy{Mode: idempotency.Leased, Wait: idempotency.MaxWait}
}

// chargeThenWrite is a handler that calls the outside world and then reads and writes.
func chargeThenWrite(db *sql.DB, outside func(ctx context.Context, key string) error) bus.Handler[charge, paid] {
	return func(ctx context.Context, cmd charge) (res paid, err error) {
		key, err := idempotency.DownstreamKey(ctx, "charge")
		if err != nil {
			return res, err
		}
		if err := outside(ctx, key); err != nil {
			return res, err
		}
		err = sqlitestore.InTx(ctx, db, func(ctx context.Context) error {
			res, err = readThenWrite(db)(ctx, pay(cmd))
			return err
		})
		return res, err
	}
}

// chargeAll is payAll for Leased commands. Their handlers are outside, where nothing is held, when the others claim and write.
func chargeAll(ctx context.Context, db *sql.DB, name string) error {
	handle, err := serve(sqlitestore.New(db), chargeThenWrite(db, func(ctx context.Context, _ string) error {
		return sqlitestore.DB(ctx, db).QueryRowContext(ctx, `SELECT count(*) FROM orders`).Scan(new(int))
	}))
	if err != nil {
		return err
	}
	return sendAll(name, func(key string) error {
		_, _, err := send(ctx, handle, key, charge{Note: key})
		return err
	})
}

// die ends the process in the middle of a Leased attempt.
func die(ctx context.Context, db *sql.DB, task string) error {
	handle, err := serve(sqlitestore.New(db), func(ctx context.Context, cmd charge) (res paid, err error) {
		if task == "die outside" {
			os.Exit(0)
		}
		return res, sqlitestore.InTx(ctx, db, func(ctx context.Context) error {
			_, err := sqlitestore.DB(ctx, db).ExecContext(ctx, `INSERT INTO orders (note) VALUES (?)`, cmd.Note)
			if task == "die in the transaction" {
				os.Exit(0)
			}
			return err
		})
	})
	if err != nil {
		return err
	}
	_, _, err = send(ctx, handle, "dying-key-1", charge{Note: "x"})
	if err == nil && task == "die after it" {
		return nil
	}
	return errors.Join(errors.New("it is still alive"), err)
}

func TestProcessesOnOneFileServeLeasedCommandsByWaiting_BR30(t *testing.T) {
	t.Parallel()
	b := setup(t)
	waits := []func(){startChild(t, "leased-second", b.path), startChild(t, "leased-third", b.path)}
	if err := chargeAll(t.Context(), b.db, "leased-first"); err != nil {
		t.Error(err)
	}
	for _, wait := range waits {
		wait()
	}
	b.want(t, 3*ownKeys+sharedKeys, 3*ownKeys+sharedKeys)
	if n := number(t, b.beside, `SELECT count(*) FROM idempotency_records WHERE state = 'completed' AND attempts = 1`); n != 3*ownKeys+sharedKeys {
		t.Errorf("%d records are completed at the first attempt", n)
	}
}

func TestPoolOfOneConnectionServesManyLeasedCommands_BR29(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.db.SetMaxOpenConns(1)
	if err := chargeAll(t.Context(), b.db, "leased-first"); err != nil {
		t.Error(err)
	}
	b.want(t, ownKeys+sharedKeys, ownKeys+sharedKeys)
}

func TestProcessThatDiesInALeasedAttemptLeavesNoRowsAndIsReplaced_X04_X05(t *testing.T) {
	t.Parallel()
	for task, died := range map[string]bool{"die outside": true, "die in the transaction": true, "die after it": false} {
		t.Run(task, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			startChild(t, task, b.path)()
			var keys []string
			handle, err := serve(b.store, func(ctx context.Context, cmd charge) (paid, error) {
				key, err := idempotency.DownstreamKey(ctx, "charge")
				keys = append(keys, key)
				if err != nil {
					return paid{}, err
				}
				return paid{OrderID: 1}, sqlitestore.InTx(ctx, b.db, func(ctx context.Context) error { return b.insert(ctx, cmd.Note) })
			})
			if err != nil {
				t.Fatal(err)
			}
			if died {
				b.want(t, 0, 1)
				ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
				defer cancel()
				if _, outcome, err := send(ctx, handle, "dying-key-1", charge{Note: "x"}); outcome.State != requestctx.StateInProgress {
					t.Errorf("during the lease the command gave (%v, %v), want that it is in progress", outcome.State, err)
				}
				b.leaseOver(t)
			}
			_, outcome, err := send(t.Context(), handle, "dying-key-1", charge{Note: "x"})
			if err != nil || outcome.Replayed == died {
				t.Errorf("the command gave (%+v, %v)", outcome, err)
			}
			b.want(t, 1, 1)
			want := map[bool]int{true: 1, false: 0}[died]
			if len(keys) != want {
				t.Errorf("the handler ran %d times, want %d", len(keys), want)
			}
		})
	}
}

func TestLeasedHandlerThatIsOutsideStopsNobody_BR30(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.db.SetMaxOpenConns(1)
	atomic, err := serve(b.store, readThenWrite(b.db))
	if err != nil {
		t.Fatal(err)
	}
	leased, err := serve(b.store, chargeThenWrite(b.db, func(ctx context.Context, _ string) error {
		for i := range 3 {
			if _, _, err := send(t.Context(), atomic, fmt.Sprint("other-key-", i), pay{Note: "other"}); err != nil {
				return err
			}
		}
		return nil
	}))
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := send(t.Context(), leased, "outside-key-1", charge{Note: "x"}); err != nil {
		t.Error(err)
	}
	b.want(t, 4, 4)
}
