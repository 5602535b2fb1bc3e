package pgstore_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore"
	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore/pgtest"
	"github.com/tekil-go/tekil/bus"
)

// sqlc generates this interface for pgx/v5; the handle must satisfy it.
var _ interface {
	Exec(context.Context, string, ...any) (pgconn.CommandTag, error)
	Query(context.Context, string, ...any) (pgx.Rows, error)
	QueryRow(context.Context, string, ...any) pgx.Row
} = pgstore.DBTX(nil)

func once(t *testing.T, pool *pgxpool.Pool, handler bus.Handler[note, string]) (string, error) {
	t.Helper()
	ctx, _ := asked(t, t.Context(), "just-once")
	return bus.Send(ctx, serve(t, pgstore.New(pool), handler), note{"x"})
}

func TestDBIsTheTransactionInsideACommandAndThePoolElsewhere(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	migrated(t, pool)
	if pgstore.DB(t.Context(), pool) != pgstore.DBTX(pool) {
		t.Error("outside a command DB is not the pool")
	}
	if _, err := pgstore.Tx(t.Context()); !errors.Is(err, pgstore.ErrNoTransaction) {
		t.Errorf("outside a command Tx gives %v", err)
	}
	other := pgtest.Pool(t)
	_, err := once(t, pool, func(ctx context.Context, c note) (string, error) {
		if pgstore.DB(ctx, other) != pgstore.DBTX(other) {
			t.Error("for another pool DB is not that pool")
		}
		db := pgstore.DB(ctx, pool)
		b := &pgx.Batch{}
		b.Queue(`INSERT INTO notes VALUES ('batch')`)
		if err := db.SendBatch(ctx, b).Close(); err != nil {
			t.Error(err)
		}
		if _, err := db.CopyFrom(ctx, pgx.Identifier{"notes"}, []string{"note"}, pgx.CopyFromRows([][]any{{"copied"}})); err != nil {
			t.Error(err)
		}
		if n := count(t, pool, "notes"); n != 0 {
			t.Errorf("another connection sees %d rows before the commit", n)
		}
		return "", nil
	})
	if n := count(t, pool, "notes"); err != nil || n != 2 {
		t.Errorf("%v, %d rows; want 2", err, n)
	}
}

func TestTxGivesSavepointsAndRefusesToBeEnded(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	migrated(t, pool)
	var kept pgx.Tx
	_, err := once(t, pool, func(ctx context.Context, c note) (string, error) {
		tx, err := pgstore.Tx(ctx)
		if err != nil {
			return "", err
		}
		kept = tx
		if err := tx.Commit(ctx); !errors.Is(err, pgstore.ErrNotYours) {
			t.Errorf("Commit gives %v", err)
		}
		if err := tx.Rollback(ctx); !errors.Is(err, pgstore.ErrNotYours) {
			t.Errorf("Rollback gives %v", err)
		}
		undone, err := tx.Begin(ctx)
		if err != nil {
			return "", err
		}
		if _, err := undone.Exec(ctx, `INSERT INTO notes VALUES ('undone')`); err != nil {
			return "", err
		}
		if err := undone.Rollback(ctx); err != nil {
			return "", err
		}
		if err := pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `INSERT INTO notes VALUES ('kept')`)
			return err
		}); err != nil {
			return "", err
		}
		for _, text := range []string{"SAVEPOINT a", "INSERT INTO notes VALUES ('also undone')", "ROLLBACK TO SAVEPOINT a", "RELEASE SAVEPOINT a"} {
			if _, err := tx.Exec(ctx, text); err != nil {
				t.Errorf("%s: %v", text, err)
			}
		}
		return "", nil
	})
	if n := count(t, pool, "notes"); err != nil || n != 1 {
		t.Errorf("%v, %d rows; want 1", err, n)
	}
	if _, err := kept.Exec(t.Context(), `SELECT 1`); !errors.Is(err, pgstore.ErrRevoked) {
		t.Errorf("after the handler a statement gives %v", err)
	}
	if err := kept.QueryRow(t.Context(), `SELECT 1`).Scan(new(int)); !errors.Is(err, pgstore.ErrRevoked) {
		t.Errorf("after the handler a query gives %v", err)
	}
	if err := kept.SendBatch(t.Context(), &pgx.Batch{}).Close(); !errors.Is(err, pgstore.ErrRevoked) {
		t.Errorf("after the handler a batch gives %v", err)
	}
}

func TestR23_AHandlerThatEndsTheTransactionIsCaughtHoweverItDoesIt(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(context.Context, *pgxpool.Pool) error{
		"COMMIT as text":                    text("COMMIT"),
		"commit with a comment":             text("/* done */ commit work"),
		"END as text":                       text("END"),
		"ROLLBACK as text":                  text("ROLLBACK"),
		"ABORT as text":                     text("ABORT"),
		"BEGIN as text":                     text("BEGIN"),
		"COMMIT AND CHAIN as text":          text("COMMIT AND CHAIN"),
		"ROLLBACK AND CHAIN as text":        text("ROLLBACK AND CHAIN"),
		"COMMIT and BEGIN":                  text("COMMIT", "BEGIN"),
		"COMMIT by Query":                   query("COMMIT"),
		"COMMIT AND CHAIN by Query":         query("COMMIT AND CHAIN"),
		"COMMIT in a batch":                 batch("COMMIT"),
		"COMMIT and BEGIN in a batch":       batch("COMMIT", "BEGIN"),
		"ROLLBACK and BEGIN in a batch":     batch("ROLLBACK", "BEGIN"),
		"COMMIT and BEGIN in one text":      simple("COMMIT; BEGIN"),
		"COMMIT on the bare connection":     bare("COMMIT"),
		"COMMIT, BEGIN on the connection":   bare("COMMIT; BEGIN"),
		"COMMIT inside a savepoint's Query": nested("COMMIT AND CHAIN"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t)
			migrated(t, pool)
			write := writing(pool)
			_, err := once(t, pool, func(ctx context.Context, c note) (string, error) {
				got, err := write(ctx, c)
				if err == nil {
					err = end(ctx, pool)
				}
				if err != nil && !errors.Is(err, pgstore.ErrEndedByText) {
					t.Errorf("ending the transaction gives %v", err)
				}
				return got, nil // a handler that does not look at errors
			})
			var fault *idempotency.HandlerError
			if !errors.As(err, &fault) || !errors.Is(err, idempotency.ErrTransactionEnded) || !strings.Contains(err.Error(), "committed or rolled back") {
				t.Errorf("the command gives %v; want a fault of the handler", err)
			}
			if n := count(t, pool, "idempotency_records"); n != 0 {
				t.Errorf("there are %d records, want none", n)
			}
			if n := pool.Stat().AcquiredConns(); n != 0 {
				t.Errorf("%d connections were not given back", n)
			}
		})
	}
}

func text(statements ...string) func(context.Context, *pgxpool.Pool) error {
	return func(ctx context.Context, pool *pgxpool.Pool) (err error) {
		for _, s := range statements {
			if _, e := pgstore.DB(ctx, pool).Exec(ctx, s); err == nil {
				err = e
			}
		}
		return err
	}
}

func query(s string) func(context.Context, *pgxpool.Pool) error {
	return func(ctx context.Context, pool *pgxpool.Pool) error {
		rows, err := pgstore.DB(ctx, pool).Query(ctx, s)
		if err == nil {
			rows.Close()
			err = rows.Err()
		}
		return err
	}
}

func batch(statements ...string) func(context.Context, *pgxpool.Pool) error {
	return func(ctx context.Context, pool *pgxpool.Pool) error {
		b := &pgx.Batch{}
		for _, s := range statements {
			b.Queue(s)
		}
		return pgstore.DB(ctx, pool).SendBatch(ctx, b).Close()
	}
}

func simple(s string) func(context.Context, *pgxpool.Pool) error {
	return func(ctx context.Context, pool *pgxpool.Pool) error {
		_, err := pgstore.DB(ctx, pool).Exec(ctx, s, pgx.QueryExecModeSimpleProtocol)
		return err
	}
}

func bare(s string) func(context.Context, *pgxpool.Pool) error {
	return func(ctx context.Context, _ *pgxpool.Pool) error {
		tx, err := pgstore.Tx(ctx)
		if err == nil {
			_, err = tx.Conn().PgConn().Exec(ctx, s).ReadAll()
		}
		return err
	}
}

func nested(s string) func(context.Context, *pgxpool.Pool) error {
	return func(ctx context.Context, _ *pgxpool.Pool) error {
		tx, err := pgstore.Tx(ctx)
		if err != nil {
			return err
		}
		// A savepoint is an ordinary handle; COMMIT in it ends the whole transaction.
		sp, err := tx.Begin(ctx)
		if err != nil {
			return err
		}
		rows, err := sp.Query(ctx, s)
		if err == nil {
			rows.Close()
			err = rows.Err()
		}
		return err
	}
}

func TestR22_ASwallowedStatementErrorOrOpenRowsUndoEverything(t *testing.T) {
	t.Parallel()
	for name, slip := range map[string]func(context.Context, *pgxpool.Pool){
		"a failed statement": func(ctx context.Context, pool *pgxpool.Pool) {
			_, _ = pgstore.DB(ctx, pool).Exec(ctx, `INSERT INTO no_such_table VALUES (1)`)
		},
		"rows left open": func(ctx context.Context, pool *pgxpool.Pool) {
			_, _ = pgstore.DB(ctx, pool).Query(ctx, `SELECT generate_series(1, 100000)`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t)
			migrated(t, pool)
			write := writing(pool)
			faulty := true
			b := serve(t, pgstore.New(pool), func(ctx context.Context, c note) (string, error) {
				got, err := write(ctx, c)
				if faulty {
					slip(ctx, pool)
				}
				return got, err
			})
			ctx, _ := asked(t, t.Context(), "slipped-1")
			_, err := bus.Send(ctx, b, note{"x"})
			var fault *idempotency.HandlerError
			if !errors.As(err, &fault) {
				t.Errorf("the command gives %v; want a fault of the handler", err)
			}
			if rows, records := count(t, pool, "notes"), count(t, pool, "idempotency_records"); rows != 0 || records != 0 {
				t.Errorf("%d rows and %d records are left", rows, records)
			}
			faulty = false
			ctx, _ = asked(t, t.Context(), "slipped-1")
			if _, err := bus.Send(ctx, b, note{"x"}); err != nil {
				t.Errorf("the key is not free: %v", err)
			}
		})
	}
}

func TestADeferredConstraintThatFailsAtCommitUndoesEverything(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	migrated(t, pool)
	exec(t, pool, `CREATE TABLE twins (n int, CONSTRAINT one UNIQUE (n) DEFERRABLE INITIALLY DEFERRED)`)
	_, err := once(t, pool, func(ctx context.Context, c note) (string, error) {
		_, err := pgstore.DB(ctx, pool).Exec(ctx, `INSERT INTO twins VALUES (1), (1)`)
		return "", err
	})
	var fault *idempotency.HandlerError
	if !errors.As(err, &fault) || !errors.Is(err, idempotency.ErrTransactionAborted) {
		t.Errorf("got %v; want everything rolled back", err)
	}
	if rows, records := count(t, pool, "twins"), count(t, pool, "idempotency_records"); rows != 0 || records != 0 {
		t.Errorf("%d rows and %d records are left", rows, records)
	}
}

func TestBR29_APoolAsLargeAsTheNumberOfCommandsIsEnough(t *testing.T) {
	t.Parallel()
	for _, conns := range []int32{1, 4} {
		db := pgtest.Open(t)
		cfg := db.PoolConfig()
		cfg.MaxConns = conns
		pool := pgtest.NewPool(t, cfg)
		migrated(t, pool)
		b := serve(t, pgstore.New(pool), writing(pool))
		const n = 50
		errs := make(chan error, n)
		for i := range n {
			go func() {
				ctx, _ := asked(t, t.Context(), "distinct-"+string(rune('A'+i%26))+string(rune('a'+i/26)))
				_, err := bus.Send(ctx, b, note{"x"})
				errs <- err
			}()
		}
		for range n {
			if err := <-errs; err != nil {
				t.Errorf("pool of %d: %v", conns, err)
			}
		}
		if rows := count(t, pool, "notes"); rows != n {
			t.Errorf("pool of %d: %d rows, want %d", conns, rows, n)
		}
	}
}

func TestHandlersOwnSerializationFailureAndDeadlockAreRetriedWhole(t *testing.T) {
	t.Parallel()
	for _, code := range []string{"40001", "40P01"} {
		pool := pgtest.Pool(t)
		migrated(t, pool)
		write := writing(pool)
		entered := 0
		got, err := once(t, pool, func(ctx context.Context, c note) (string, error) {
			entered++
			if got, err := write(ctx, c); err != nil || entered == 2 {
				return got, err
			}
			_, err := pgstore.DB(ctx, pool).Exec(ctx, `DO $$ BEGIN RAISE EXCEPTION 'as the database would' USING ERRCODE = '`+code+`'; END $$`)
			return "", err
		})
		if rows := count(t, pool, "notes"); err != nil || got != "wrote x" || entered != 2 || rows != 1 {
			t.Errorf("%s: %q, %v, entered %d times, %d rows; want one success at the second try", code, got, err, entered, rows)
		}
	}
}

func TestStatementsSayWhatTheySay(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	proxy := db.Proxy()
	pool := pgtest.NewPool(t, proxy.PoolConfig())
	migrated(t, pool)
	if _, err := once(t, pool, writing(pool)); err != nil {
		t.Fatal(err)
	}
	proxy.Reset()
	if _, err := once(t, pool, writing(pool)); err != nil {
		t.Fatal(err)
	}
	// A replay writes nothing and takes no row lock, and the level is said, whatever the server's default is.
	statements := proxy.Statements()
	if !slices.ContainsFunc(statements, func(s string) bool { return strings.EqualFold(s, "begin isolation level read committed") }) {
		t.Errorf("the isolation level is not said: %q", statements)
	}
	for _, s := range statements {
		if strings.Contains(s, "INSERT") || strings.Contains(s, "UPDATE") {
			t.Errorf("a replay sent %s", s)
		}
	}
}
