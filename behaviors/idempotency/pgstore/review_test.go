package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore"
	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore/pgtest"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
)

// What a deferred trigger raises is raised by COMMIT. Codes that mean something in the record's statement mean something else
// there, and the text is the trigger's.
func TestR22_WhatADeferredTriggerRaisesIsNotTakenForAWordAboutTheKey_BR56(t *testing.T) {
	t.Parallel()
	const card = "4111111111111111"
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeSimpleProtocol, pgx.QueryExecModeExec} {
		db := pgtest.Open(t)
		cfg := db.PoolConfig()
		cfg.ConnConfig.DefaultQueryExecMode = mode
		pool := pgtest.NewPool(t, cfg)
		migrated(t, pool)
		exec(t, pool, `CREATE TABLE raised (code text)`)
		exec(t, pool, `CREATE FUNCTION complain() RETURNS trigger LANGUAGE plpgsql AS
			$$ BEGIN EXECUTE format('DO $d$ BEGIN RAISE EXCEPTION %L USING ERRCODE = %L; END $d$', NEW.note, (SELECT code FROM raised)); END $$`)
		exec(t, pool, `CREATE CONSTRAINT TRIGGER complains AFTER INSERT ON notes DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION complain()`)
		for code, want := range map[string]string{
			"22012": "IDEMPOTENCY_HANDLER_FAULT",     // in the record's statement: lost
			"22P02": "IDEMPOTENCY_HANDLER_FAULT",     // there: the transaction is another one
			"23505": "IDEMPOTENCY_HANDLER_FAULT",     //
			"25P02": "IDEMPOTENCY_HANDLER_FAULT",     //
			"P0001": "IDEMPOTENCY_HANDLER_FAULT",     //
			"40001": "IDEMPOTENCY_RETRIES_EXHAUSTED", //
			"55P03": "IDEMPOTENCY_STORE_UNAVAILABLE", // there: another attempt is just committing
			"57014": "IDEMPOTENCY_STORE_UNAVAILABLE", //
			"53100": "IDEMPOTENCY_STORE_UNAVAILABLE", //
		} {
			exec(t, pool, `TRUNCATE raised`)
			exec(t, pool, `INSERT INTO raised VALUES ($1)`, code)
			entered, write := 0, writing(pool)
			b := serve(t, pgstore.New(pool), func(ctx context.Context, c note) (string, error) {
				entered++
				return write(ctx, c)
			})
			ctx, req := asked(t, t.Context(), "deferred-"+code)
			_, err := bus.Send(ctx, b, note{card})
			runs := 1
			if code == "40001" {
				runs = 3
			}
			if bus.CodeOf(err) != want || entered != runs || req.Outcome().State != requestctx.StateFreed {
				t.Errorf("%v: %s: entered %d times, %s, %v", mode, code, entered, req.Outcome().State, err)
			}
			if err == nil || strings.Contains(err.Error(), card) {
				t.Errorf("%v: %s: the error shows the row: %v", mode, code, err)
			}
		}
		if rows, records := count(t, pool, "notes"), count(t, pool, "idempotency_records"); rows != 0 || records != 0 {
			t.Errorf("%v: %d rows and %d records are left", mode, rows, records)
		}
	}
}

// A statement that somebody cancelled, or that took longer than statement_timeout allows, says nothing about who holds the key.
func TestX13_AStatementTimeoutWhileTheRecordIsWrittenIsNotInProgress(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	cfg := db.PoolConfig()
	cfg.ConnConfig.RuntimeParams["statement_timeout"] = "300"
	pool, behind := pgtest.NewPool(t, cfg), db.Pool()
	migrated(t, behind)
	write := writing(pool)
	var blocker pgx.Tx
	b := serve(t, pgstore.New(pool), func(ctx context.Context, c note) (string, error) {
		tx, err := behind.Begin(context.WithoutCancel(ctx))
		if err != nil {
			return "", err
		}
		blocker = tx
		if _, err := tx.Exec(ctx, `LOCK TABLE idempotency_records IN SHARE MODE`); err != nil {
			return "", err
		}
		return write(ctx, c)
	})
	ctx, req := asked(t, t.Context(), "timed-out-1")
	_, err := bus.Send(ctx, b, note{"x"})
	if err := blocker.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	var away *idempotency.StoreError
	if !errors.As(err, &away) || req.Outcome().State != requestctx.StateFreed {
		t.Errorf("%s, %v", req.Outcome().State, err)
	}
	if n := count(t, behind, "notes"); n != 0 {
		t.Errorf("%d rows are left", n)
	}
}

func TestR23_AHandlerThatHasCommittedIsAFaultWhateverItReturns(t *testing.T) {
	t.Parallel()
	final := idempotency.Final(errors.New("sold out"))
	for name, end := range map[string]func(ctx context.Context, db pgstore.DBTX) error{
		"it returns the error of Exec": func(ctx context.Context, db pgstore.DBTX) error {
			_, err := db.Exec(ctx, `COMMIT`)
			return err
		},
		"it returns another error": func(ctx context.Context, db pgstore.DBTX) error {
			rows, _ := db.Query(ctx, `COMMIT`)
			rows.Close()
			return errors.New("out of paper")
		},
		"it refuses": func(ctx context.Context, db pgstore.DBTX) error {
			rows, _ := db.Query(ctx, `COMMIT`)
			rows.Close()
			return final
		},
	} {
		pool := pgtest.Pool(t)
		migrated(t, pool)
		write := writing(pool)
		b := serve(t, pgstore.New(pool), func(ctx context.Context, c note) (string, error) {
			if _, err := write(ctx, c); err != nil {
				return "", err
			}
			return "", end(ctx, pgstore.DB(ctx, pool))
		})
		ctx, req := asked(t, t.Context(), "committed-1")
		_, err := bus.Send(ctx, b, note{"x"})
		var fault *idempotency.HandlerError
		if !errors.As(err, &fault) || req.Outcome().State != requestctx.StateUnknown {
			t.Errorf("%s: %s, %v", name, req.Outcome().State, err)
		}
		if n := count(t, pool, "idempotency_records"); n != 0 {
			t.Errorf("%s: %d records", name, n)
		}
		if n := pool.Stat().AcquiredConns(); n != 0 {
			t.Errorf("%s: %d connections were not given back", name, n)
		}
	}
}

// A handler of one database sends a command of another, whose handler writes to the first one again.
func TestN05_DBFindsTheTransactionOfItsOwnPoolThroughACommandOfAnother(t *testing.T) {
	t.Parallel()
	here, there := pgtest.Pool(t), pgtest.Pool(t)
	migrated(t, here)
	migrated(t, there)
	write := writing(here)
	away := serve(t, pgstore.New(there), write)
	failed := errors.New("after all")
	b := serve(t, pgstore.New(here), func(ctx context.Context, c note) (string, error) {
		inside, _ := asked(t, ctx, "another-key")
		if _, err := bus.Send(inside, away, c); err != nil {
			return "", err
		}
		if n := count(t, here, "notes"); n != 0 {
			t.Errorf("%d rows stand beside the transaction", n)
		}
		return "", failed
	})
	ctx, _ := asked(t, t.Context(), "two-pools-1")
	if _, err := bus.Send(ctx, b, note{"x"}); !errors.Is(err, failed) {
		t.Error(err)
	}
	if n := count(t, here, "notes"); n != 0 {
		t.Errorf("%d rows of a command that was rolled back", n)
	}
}

func TestBR14_AGoroutineThatIsStillWritingWhenItsHandlerReturnsUndoesTheCommand(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	pool, behind := pgtest.NewPool(t, db.PoolConfig()), db.Pool()
	migrated(t, behind)
	const lock = 4711
	holder, err := behind.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Release()
	if _, err := holder.Exec(t.Context(), `SELECT pg_advisory_lock($1, hashtext(current_schema()))`, lock); err != nil {
		t.Fatal(err)
	}
	for name, ret := range map[string]error{"success": nil, "a refusal": idempotency.Final(errors.New("sold out")), "an error": errors.New("out of paper")} {
		left := make(chan error, 1)
		write := writing(pool)
		b := serve(t, pgstore.New(pool), func(ctx context.Context, c note) (string, error) {
			got, err := write(ctx, c)
			if err != nil {
				return "", err
			}
			tx := pgstore.DB(ctx, pool)
			go func() {
				_, err := tx.Exec(context.WithoutCancel(ctx), `SELECT pg_advisory_xact_lock($1, hashtext(current_schema()))`, lock)
				left <- err
			}()
			for waiting := 0; waiting == 0; {
				if err := behind.QueryRow(ctx, `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND classid = $1
					AND objid = hashtext(current_schema())::bigint & 4294967295`, lock).Scan(&waiting); err != nil {
					return "", err
				}
			}
			return got, ret
		})
		ctx, _ := asked(t, t.Context(), "left-behind-1")
		_, err := bus.Send(ctx, b, note{"x"})
		var fault *idempotency.HandlerError
		if name == "an error" && !errors.Is(err, ret) || name != "an error" && !errors.As(err, &fault) {
			t.Fatalf("%s: %v", name, err) // its goroutine may not have been begun, so there may be nothing to wait for
		}
		if err := <-left; err == nil {
			t.Errorf("%s: the goroutine's statement succeeded", name)
		}
		if rows, records := count(t, behind, "notes"), count(t, behind, "idempotency_records"); rows != 0 || records != 0 {
			t.Errorf("%s: %d rows and %d records", name, rows, records)
		}
		if n := pool.Stat().AcquiredConns(); n != 0 {
			t.Errorf("%s: %d connections were not given back", name, n)
		}
	}
}

// The race detector and the one connection are what this test is for: the goroutine of one command never writes into the
// transaction of the next.
func TestBR14_AGoroutineThatOutlivesItsHandlerNeverWritesForAnotherCommand(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	cfg := db.PoolConfig()
	cfg.MaxConns = 1
	pool, behind := pgtest.NewPool(t, cfg), db.Pool()
	migrated(t, behind)
	failed := make(map[string]bool)
	var wg sync.WaitGroup
	for i := range 10 {
		key := fmt.Sprintf("outlived-%d", i)
		b := serve(t, pgstore.New(pool), func(ctx context.Context, c note) (string, error) {
			begun, late := make(chan struct{}), context.WithoutCancel(ctx)
			wg.Go(func() {
				close(begun)
				for err := error(nil); !errors.Is(err, pgstore.ErrRevoked); {
					_, err = pgstore.DB(late, pool).Exec(late, `INSERT INTO notes VALUES ($1)`, c.Text)
				}
			})
			<-begun
			return "", nil
		})
		ctx, _ := asked(t, t.Context(), key)
		_, err := bus.Send(ctx, b, note{key})
		failed[key] = err != nil
	}
	wg.Wait()
	rows, _ := behind.Query(t.Context(), `SELECT DISTINCT note FROM notes`)
	notes, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range notes {
		if failed[key] {
			t.Errorf("%s failed and has left rows", key)
		}
	}
}

func TestBR36_AReferenceThatNoDatabaseTakesDoesNotCostTheOrder(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	migrated(t, pool)
	write := writing(pool)
	_, err := once(t, pool, func(ctx context.Context, c note) (string, error) {
		requestctx.From(ctx).SetExternalRef("auth\x00\xff-1")
		return write(ctx, c)
	})
	var ref string
	if scanErr := pool.QueryRow(t.Context(), `SELECT external_ref FROM idempotency_records`).Scan(&ref); err != nil || scanErr != nil || ref != "auth\uFFFD\uFFFD-1" {
		t.Errorf("%v, %v, %q", err, scanErr, ref)
	}
}

func TestMigrateNeedsNoRightToCreateSchemasWhereTheSchemaIsThere(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	pool := db.Pool()
	cfg := db.PoolConfig()
	cfg.MaxConns = 1
	limited := pgtest.NewPool(t, cfg)
	role := "migrating_" + db.Schema()
	exec(t, pool, `CREATE ROLE `+role)
	t.Cleanup(func() {
		limited.Close()
		exec(t, pool, `DROP OWNED BY `+role)
		exec(t, pool, `DROP ROLE `+role)
	})
	exec(t, pool, `GRANT USAGE, CREATE ON SCHEMA `+db.Schema()+` TO `+role)
	exec(t, limited, `SET ROLE `+role)
	own := pgstore.Config{Schema: db.Schema()}
	if err := pgstore.MigrateWithConfig(t.Context(), limited, own); err != nil {
		t.Fatal(err)
	}
	if _, err := pgstore.NewWithConfig(limited, own).Check(t.Context()); err != nil {
		t.Error(err)
	}
}
