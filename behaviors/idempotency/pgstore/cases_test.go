package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore"
	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore/pgtest"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
)

// levels make one command type for each isolation level, because a command's policy belongs to its type.
type levels interface{ level() idempotency.Isolation }

type (
	committed    struct{}
	repeatable   struct{}
	serializable struct{}
)

func (committed) level() idempotency.Isolation    { return idempotency.ReadCommitted }
func (repeatable) level() idempotency.Isolation   { return idempotency.RepeatableRead }
func (serializable) level() idempotency.Isolation { return idempotency.Serializable }

// cart completes a cart at one isolation level. Its duplicates wait as long as they may.
type cart[L levels] struct {
	Cart string `json:"cart"`
}

func (cart[L]) CommandName() bus.Name[string] { return "test.complete_cart" }
func (cart[L]) Idempotency() idempotency.Policy {
	var l L
	return idempotency.Policy{Isolation: l.level(), Wait: idempotency.MaxWait}
}

// completedCart is the domain's own refusal.
type completedCart struct{}

func (completedCart) Error() string { return "the cart is completed" }
func (completedCart) Code() string  { return "CART_COMPLETED" }

// completing is one process that completes carts: a bus of its own on the pool. The table carts has one row for a cart.
func completing[L levels](t *testing.T, pool *pgxpool.Pool) bus.Handler[cart[L], string] {
	t.Helper()
	engine, err := idempotency.New(idempotency.Config{Store: pgstore.New(pool)})
	if err != nil {
		t.Fatal(err)
	}
	claimed, _, err := idempotency.Stage(engine, func(ctx context.Context, c cart[L]) (string, error) {
		_, err := pgstore.DB(ctx, pool).Exec(ctx, `INSERT INTO carts (cart) VALUES ($1)`, c.Cart)
		var pg *pgconn.PgError
		if errors.As(err, &pg) && pg.Code == "23505" {
			return "", idempotency.Final(completedCart{})
		}
		return "completed " + c.Cart, err
	})
	if err != nil {
		t.Fatal(err)
	}
	inv := bus.Invocation{Name: "test.complete_cart", Idempotent: true}
	b, err := bus.New(bus.Serve[cart[L]](bus.Log(bus.Validate(claimed, inv, nil, nil), inv, nil, nil)))
	if err != nil {
		t.Fatal(err)
	}
	send, err := bus.Bind[cart[L]](b)
	if err != nil {
		t.Fatal(err)
	}
	return send
}

// together calls f n times at the same moment.
func together(n int, f func(i int)) {
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-start
			f(i)
		})
	}
	close(start)
	wg.Wait()
}

// two processes on one database whose sessions have the given default isolation level, "" for the server's.
func twoPools(t *testing.T, defaultLevel string) (db *pgtest.Database, pools [2]*pgxpool.Pool) {
	t.Helper()
	db = pgtest.Open(t)
	migrated(t, db.Pool())
	exec(t, db.Pool(), `CREATE TABLE carts (cart text PRIMARY KEY)`)
	for i := range pools {
		cfg := db.PoolConfig()
		cfg.MaxConns = 4
		if defaultLevel != "" {
			cfg.ConnConfig.RuntimeParams["default_transaction_isolation"] = defaultLevel
		}
		pools[i] = pgtest.NewPool(t, cfg)
	}
	return db, pools
}

// fiftyOfOneKey sends one key from fifty goroutines over two processes, some rounds: one of them makes the order, the others
// replay it, or are told to come again where the tries are used up.
func fiftyOfOneKey[L levels](t *testing.T, defaultLevel string, callers int) {
	t.Helper()
	t.Parallel()
	const rounds = 5
	db, pools := twoPools(t, defaultLevel)
	sends := []bus.Handler[cart[L], string]{completing[L](t, pools[0]), completing[L](t, pools[1])}
	for round := range rounds {
		name := fmt.Sprintf("round-%04d", round)
		var executed, replayed, again atomic.Int64
		together(callers, func(i int) {
			ctx, req := asked(t, t.Context(), name)
			got, err := sends[i%2](ctx, cart[L]{name})
			var retries *idempotency.RetriesError
			switch {
			case err == nil && got == "completed "+name && req.Outcome().Replayed:
				replayed.Add(1)
			case err == nil && got == "completed "+name:
				executed.Add(1)
			case errors.As(err, &retries):
				again.Add(1)
			default:
				t.Errorf("%s: caller %d got %q, %v", name, i, got, err)
			}
		})
		if executed.Load() != 1 || replayed.Load()+again.Load() != int64(callers-1) {
			t.Errorf("%s: %d executed, %d replayed, %d told to come again", name, executed.Load(), replayed.Load(), again.Load())
		}
	}
	if carts, records := count(t, db.Pool(), "carts"), count(t, db.Pool(), "idempotency_records"); carts != rounds || records != rounds {
		t.Errorf("%d carts and %d records, want %d of each", carts, records, rounds)
	}
}

func TestBR09_FiftyCallersOverTwoProcessesMakeOneOrderAtEveryLevel(t *testing.T) {
	t.Parallel()
	t.Run("read committed", func(t *testing.T) { fiftyOfOneKey[committed](t, "", 50) })
	t.Run("repeatable read", func(t *testing.T) { fiftyOfOneKey[repeatable](t, "", 50) })
	t.Run("serializable", func(t *testing.T) { fiftyOfOneKey[serializable](t, "", 50) })
}

// The sessions are serializable by default, as an application may have them.
func TestBR46_ADefaultOfSerializableLeaksNoDatabaseError(t *testing.T) {
	t.Parallel()
	for _, callers := range []int{2, 20} {
		t.Run(fmt.Sprintf("one key, %d callers, default policy", callers), func(t *testing.T) { fiftyOfOneKey[committed](t, "serializable", callers) })
		t.Run(fmt.Sprintf("one key, %d callers, serializable policy", callers), func(t *testing.T) { fiftyOfOneKey[serializable](t, "serializable", callers) })
	}
	t.Run("two keys for one cart, default policy", func(t *testing.T) { naturalConflict[committed](t) })
	t.Run("two keys for one cart, serializable policy", func(t *testing.T) { naturalConflict[serializable](t) })
}

// naturalConflict completes one cart under different keys at once. Nothing of idempotency stands between them, only the cart's
// own identity: one is completed, and the others get the domain's refusal.
func naturalConflict[L levels](t *testing.T) {
	t.Helper()
	t.Parallel()
	db, pools := twoPools(t, "serializable")
	sends := []bus.Handler[cart[L], string]{completing[L](t, pools[0]), completing[L](t, pools[1])}
	for _, n := range []int{2, 20} {
		name := fmt.Sprintf("cart-%d", n)
		var completed atomic.Int64
		try := func(i int) (err error) {
			ctx, req := asked(t, t.Context(), fmt.Sprintf("%s-key-%d", name, i))
			_, err = sends[i%2](ctx, cart[L]{name})
			if err == nil && !req.Outcome().Replayed {
				completed.Add(1)
			}
			return err
		}
		together(n, func(i int) {
			err := try(i)
			var retries *idempotency.RetriesError
			for errors.As(err, &retries) { // told to come again with the same key, which is what it does
				err = try(i)
			}
			if err != nil && bus.CodeOf(err) != "CART_COMPLETED" {
				t.Errorf("%s: caller %d got %v", name, i, err)
			}
		})
		if completed.Load() != 1 {
			t.Errorf("%s was completed %d times", name, completed.Load())
		}
	}
	if n := count(t, db.Pool(), "carts"); n != 2 {
		t.Errorf("%d carts, want 2", n)
	}
}

// The original is slow because the database makes it wait. In the Atomic mode nothing runs out meanwhile: no retry overtakes it.
func TestBR07_AnOriginalThatWaitsForALockIsNotOvertaken(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	migrated(t, db.Pool())
	one, two := pgtest.NewPool(t, db.PoolConfig()), pgtest.NewPool(t, db.PoolConfig())
	first, second := serve(t, pgstore.New(one), writing(one)), serve(t, pgstore.New(two), writing(two))

	lock, err := db.Pool().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lock.Rollback(context.Background()) }()
	if _, err := lock.Exec(t.Context(), `LOCK TABLE notes IN EXCLUSIVE MODE`); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		ctx, _ := asked(t, t.Context(), "held-up-1")
		_, err := bus.Send(ctx, first, note{"x"})
		done <- err
	}()
	within, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for waiting := 0; waiting == 0; {
		if err := db.Pool().QueryRow(within, `SELECT count(*) FROM pg_locks WHERE relation = 'notes'::regclass AND NOT granted`).Scan(&waiting); err != nil {
			t.Fatalf("the original does not wait for the lock: %v", err)
		}
	}
	for range 2 {
		ctx, req := asked(t, t.Context(), "held-up-1")
		_, err := bus.Send(ctx, second, note{"x"})
		var busy *idempotency.InProgressError
		if !errors.As(err, &busy) || req.Outcome().State != requestctx.StateInProgress {
			t.Errorf("the retry got %v, %+v; want in progress", err, req.Outcome())
		}
	}
	if err := lock.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Errorf("the original: %v", err)
	}
	ctx, req := asked(t, t.Context(), "held-up-1")
	if got, err := bus.Send(ctx, second, note{"x"}); err != nil || got != "wrote x" || !req.Outcome().Replayed {
		t.Errorf("the retry afterwards got %q, %v, %+v", got, err, req.Outcome())
	}
	if n := count(t, db.Pool(), "notes"); n != 1 {
		t.Errorf("%d business rows, want 1", n)
	}
}

// The answer to the claim is lost. The request says so and is not its own rival: the key is free for the next one.
func TestBR08_AClaimWhoseAnswerIsLostDoesNotHoldTheKey(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	migrated(t, db.Pool())
	proxy := db.Proxy()
	pool := pgtest.NewPool(t, proxy.PoolConfig())
	b := serve(t, pgstore.New(pool), writing(pool))
	proxy.Arm(pgtest.Fault{Match: pgtest.Contains("pg_try_advisory_xact_lock"), Action: pgtest.DropAnswer})
	ctx, _ := asked(t, t.Context(), "lost-claim")
	_, err := bus.Send(ctx, b, note{"x"})
	var away *idempotency.StoreError
	if !errors.As(err, &away) {
		t.Errorf("the first attempt got %v; want a StoreError", err)
	}
	if rows, records := count(t, db.Pool(), "notes"), count(t, db.Pool(), "idempotency_records"); rows != 0 || records != 0 {
		t.Errorf("it left %d rows and %d records", rows, records)
	}
	ctx, req := asked(t, t.Context(), "lost-claim")
	if got, err := bus.Send(ctx, b, note{"x"}); err != nil || got != "wrote x" || req.Outcome().Replayed {
		t.Errorf("the retry got %q, %v, %+v; want work", got, err, req.Outcome())
	}
	if rows, records := count(t, db.Pool(), "notes"), count(t, db.Pool(), "idempotency_records"); rows != 1 || records != 1 {
		t.Errorf("%d business rows and %d records, want 1 and 1", rows, records)
	}
}

// refusing expects that the store is named as the cause and that no handler has run, and gives the server's code.
func refusing(t *testing.T, err error, entered *atomic.Int64) (code string) {
	t.Helper()
	var away *idempotency.StoreError
	if !errors.As(err, &away) || entered.Load() != 0 {
		t.Errorf("got %v, the handler ran %d times; want a StoreError and no work", err, entered.Load())
	}
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		code = pg.Code
	}
	return code
}

// counting is writing that counts how often it is entered.
func counting(pool *pgxpool.Pool, entered *atomic.Int64) bus.Handler[note, string] {
	write := writing(pool)
	return func(ctx context.Context, c note) (string, error) {
		entered.Add(1)
		return write(ctx, c)
	}
}

func TestX13_AClaimThatGetsNoConnectionInTimeFailsClosed(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	migrated(t, db.Pool())
	cfg := db.PoolConfig()
	cfg.MaxConns = 1
	pool := pgtest.NewPool(t, cfg)
	var entered atomic.Int64
	b := serve(t, pgstore.New(pool), counting(pool, &entered))
	held, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	ctx, _ := asked(t, short, "no-connection")
	_, err = bus.Send(ctx, b, note{"x"})
	refusing(t, err, &entered)
	held.Release()
	ctx, _ = asked(t, t.Context(), "no-connection")
	if got, err := bus.Send(ctx, b, note{"x"}); err != nil || got != "wrote x" {
		t.Errorf("with a connection: %q, %v", got, err)
	}
}

func TestX16_AServerThatTakesNoMoreConnectionsFailsClosed(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	admin := db.Pool()
	migrated(t, admin)
	role := "few_" + db.Schema()
	exec(t, admin, `CREATE ROLE `+role+` LOGIN PASSWORD 'few' CONNECTION LIMIT 0`)
	exec(t, admin, `GRANT USAGE ON SCHEMA `+db.Schema()+` TO `+role)
	exec(t, admin, `GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA `+db.Schema()+` TO `+role)
	cfg := db.PoolConfig()
	cfg.ConnConfig.User, cfg.ConnConfig.Password = role, "few"
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		pool.Close()
		exec(t, admin, `DROP OWNED BY `+role)
		exec(t, admin, `DROP ROLE `+role)
	})
	var entered atomic.Int64
	b := serve(t, pgstore.New(pool), counting(pool, &entered))
	ctx, _ := asked(t, t.Context(), "too-many-connections")
	_, err = bus.Send(ctx, b, note{"x"})
	if code := refusing(t, err, &entered); code != "53300" {
		t.Errorf("the server's code is %q in %v, so this shows nothing", code, err)
	}
	exec(t, admin, `ALTER ROLE `+role+` CONNECTION LIMIT 4`)
	ctx, _ = asked(t, t.Context(), "too-many-connections")
	if got, err := bus.Send(ctx, b, note{"x"}); err != nil || got != "wrote x" {
		t.Errorf("when it takes connections again: %q, %v", got, err)
	}
}

// A server that becomes read-only after the start-up check, as after a failover, does nothing and answers nothing as done.
func TestX16_AServerThatBecomesReadOnlyLeavesNothing(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	migrated(t, db.Pool())
	cfg := db.PoolConfig()
	cfg.MaxConns = 1
	pool := pgtest.NewPool(t, cfg)
	b := serve(t, pgstore.New(pool), writing(pool))
	idle := serve(t, pgstore.New(pool), func(context.Context, note) (string, error) { return "did nothing", nil })
	exec(t, pool, `SET default_transaction_read_only = on`)
	for name, send := range map[string]*bus.Bus{"a handler that writes": b, "a handler that does not": idle} {
		ctx, req := asked(t, t.Context(), "read-only-1")
		got, err := bus.Send(ctx, send, note{"x"})
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || pg.Code != "25006" || req.Outcome().State != requestctx.StateFreed {
			t.Errorf("%s: %q, %v, %+v", name, got, err, req.Outcome())
		}
	}
	exec(t, pool, `SET default_transaction_read_only = off`)
	ctx, req := asked(t, t.Context(), "read-only-1")
	if got, err := bus.Send(ctx, b, note{"x"}); err != nil || got != "wrote x" || req.Outcome().Replayed {
		t.Errorf("when it may write again: %q, %v, %+v", got, err, req.Outcome())
	}
	if rows, records := count(t, db.Pool(), "notes"), count(t, db.Pool(), "idempotency_records"); rows != 1 || records != 1 {
		t.Errorf("%d business rows and %d records, want 1 and 1", rows, records)
	}
}

// The server's clock is set by the test, in a function that stands before the real one; the process's own clock stays as it
// is. Whatever lies between the two, only the server's counts.
func TestBR48_OnlyTheServersClockSaysWhenAKeyExpires(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	migrated(t, db.Pool())
	exec(t, db.Pool(), `CREATE TABLE skew (by interval NOT NULL); INSERT INTO skew VALUES ('0')`)
	exec(t, db.Pool(), `CREATE FUNCTION clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS
		'SELECT pg_catalog.clock_timestamp() + (SELECT by FROM skew)'`)
	cfg := db.PoolConfig()
	cfg.ConnConfig.RuntimeParams["search_path"] = db.Schema() + ", pg_catalog"
	pool := pgtest.NewPool(t, cfg)
	b := serve(t, pgstore.New(pool), writing(pool))
	for i, c := range []struct {
		skew     string
		replayed bool
	}{
		{"-60 seconds", false}, // the first, by a clock that is behind this process's
		{"60 seconds", true},   // a minute ahead: not expired
		{"71 hours", true},
		{"73 hours", false}, // 72 hours after the first: new work
		{"73 hours", true},
		{"-48 hours", true}, // a clock that went back makes nothing expire
	} {
		exec(t, pool, `UPDATE skew SET by = $1::text::interval`, c.skew)
		ctx, req := asked(t, t.Context(), "skewed-clock")
		if _, err := bus.Send(ctx, b, note{"x"}); err != nil || req.Outcome().Replayed != c.replayed {
			t.Errorf("step %d, the server's clock off by %s: %v, %+v; want replayed %t", i, c.skew, err, req.Outcome(), c.replayed)
		}
	}
	if n := count(t, db.Pool(), "notes"); n != 2 {
		t.Errorf("%d business rows, want 2", n)
	}
}

// now() is the start of the transaction. A record written at the end of a long one bears the time of its end.
func TestBR49_TheRecordOfALongTransactionBearsTheTimeOfItsEnd(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	pool := db.Pool()
	migrated(t, pool)
	var started, ended time.Time
	if _, err := once(t, pool, func(ctx context.Context, c note) (string, error) {
		for !ended.After(started) {
			if err := pgstore.DB(ctx, pool).QueryRow(ctx, `SELECT now(), clock_timestamp()`).Scan(&started, &ended); err != nil {
				return "", err
			}
		}
		return "", nil
	}); err != nil {
		t.Fatal(err)
	}
	var created, completed, expires time.Time
	if err := pool.QueryRow(t.Context(), `SELECT created_at, completed_at, expires_at FROM idempotency_records`).Scan(&created, &completed, &expires); err != nil {
		t.Fatal(err)
	}
	if created.Before(ended) || completed.Before(ended) || expires.Before(ended.Add(idempotency.DefaultRetention)) {
		t.Errorf("begun at %v, still working at %v; the record says created %v, completed %v, expires %v", started, ended, created, completed, expires)
	}
}
