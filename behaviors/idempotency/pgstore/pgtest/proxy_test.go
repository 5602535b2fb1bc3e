package pgtest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore/pgtest"
)

const insert = "INSERT INTO orders (id) VALUES ($1)"

// bundle is a schema with a table, a pool through a proxy and one past it.
type bundle struct {
	database *pgtest.Database
	proxy    *pgtest.Proxy
	pool     *pgxpool.Pool
	direct   *pgxpool.Pool
}

func setup(t *testing.T) *bundle {
	t.Helper()
	d := pgtest.Open(t)
	b := &bundle{database: d, proxy: d.Proxy(), direct: d.Pool()}
	b.pool = pgtest.NewPool(t, b.proxy.PoolConfig())
	if _, err := b.direct.Exec(t.Context(), "CREATE TABLE orders (id int PRIMARY KEY, note text)"); err != nil {
		t.Fatal(err)
	}
	return b
}

// order begins a transaction through the proxy with one order in it.
func (b *bundle) order(t *testing.T, id int) pgx.Tx {
	t.Helper()
	tx, err := b.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	if _, err := tx.Exec(t.Context(), insert, id); err != nil {
		t.Fatal(err)
	}
	return tx
}

func (b *bundle) orders(t *testing.T) int {
	t.Helper()
	return one[int](t, b.direct, "SELECT count(*) FROM orders")
}

// commit commits in the background.
func commit(ctx context.Context, tx pgx.Tx) <-chan error {
	result := make(chan error, 1)
	go func() { result <- tx.Commit(ctx) }()
	return result
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// lost fails the test unless err is what a client sees that does not know whether its COMMIT was executed.
func lost(t *testing.T, err error) {
	t.Helper()
	if pgErr := (*pgconn.PgError)(nil); err == nil || errors.As(err, &pgErr) || pgconn.SafeToRetry(err) {
		t.Errorf("the client got %v", err)
	}
}

func TestX06_ADroppedCommitNeverReachesTheServer(t *testing.T) {
	t.Parallel()
	b := setup(t)
	tx := b.order(t, 1)
	fault := b.proxy.Arm(pgtest.Fault{Match: pgtest.IsCommit, Action: pgtest.Drop})
	lost(t, tx.Commit(t.Context()))
	<-fault.Fired()
	<-fault.Done()
	// This waits for the end of the cut transaction, and succeeds because it was rolled back.
	if _, err := b.direct.Exec(t.Context(), insert, 1); err != nil {
		t.Errorf("the order was made: %v", err)
	}
}

func TestX07_ACommitWhoseAnswerIsDroppedIsExecuted(t *testing.T) {
	t.Parallel()
	b := setup(t)
	tx := b.order(t, 1)
	fault := b.proxy.Arm(pgtest.Fault{Match: pgtest.IsCommit, Action: pgtest.DropAnswer})
	lost(t, tx.Commit(t.Context()))
	<-fault.Fired()
	<-fault.Done()
	if n := b.orders(t); n != 1 {
		t.Errorf("%d orders, want 1", n)
	}
}

func TestX07_ACommitWhoseAnswerIsHeldIsExecutedBeforeTheClientKnows(t *testing.T) {
	t.Parallel()
	b := setup(t)
	tx := b.order(t, 1)
	release := make(chan struct{})
	fault := b.proxy.Arm(pgtest.Fault{Match: pgtest.IsCommit, Action: pgtest.HoldAnswer, Release: release})
	result := commit(t.Context(), tx)
	<-fault.Fired()
	if n := b.orders(t); n != 1 {
		t.Errorf("%d orders, want 1", n)
	}
	if closed(fault.Done()) {
		t.Error("the answer was not held")
	}
	close(release)
	if err := <-result; err != nil {
		t.Error(err)
	}
	<-fault.Done()
}

func TestX08_ADelayedCommitIsExecutedLongAfterTheClientWasCut(t *testing.T) {
	t.Parallel()
	b := setup(t)
	tx := b.order(t, 1)
	release := make(chan struct{})
	fault := b.proxy.Arm(pgtest.Fault{Match: pgtest.IsCommit, Action: pgtest.Delay, Release: release})
	lost(t, tx.Commit(t.Context()))
	<-fault.Fired()
	if n := b.orders(t); n != 0 {
		t.Errorf("%d orders, want none yet", n)
	}
	// The transaction still stands: its order's key is taken.
	var pgErr *pgconn.PgError
	if _, err := b.direct.Exec(t.Context(), "SET LOCAL lock_timeout = '20ms'; INSERT INTO orders (id) VALUES (1)"); !errors.As(err,
		&pgErr) || pgErr.Code != "55P03" {
		t.Errorf("another order got %v, want a lock timeout", err)
	}
	close(release)
	<-fault.Done()
	if n := b.orders(t); n != 1 {
		t.Errorf("%d orders, want 1", n)
	}
}

func TestX08_AHeldCommitIsExecutedWhenItIsReleased(t *testing.T) {
	t.Parallel()
	b := setup(t)
	tx := b.order(t, 1)
	release := make(chan struct{})
	fault := b.proxy.Arm(pgtest.Fault{Match: pgtest.IsCommit, Action: pgtest.Hold, Release: release})
	result := commit(t.Context(), tx)
	<-fault.Fired()
	if n := b.orders(t); n != 0 {
		t.Errorf("%d orders, want none yet", n)
	}
	release <- struct{}{} // a value does as well as a close
	if err := <-result; err != nil {
		t.Error(err)
	}
	<-fault.Done()
	if n := b.orders(t); n != 1 {
		t.Errorf("%d orders, want 1", n)
	}
}

func TestX10_AHeldCommitArrivesThoughItsClientGaveUp(t *testing.T) {
	t.Parallel()
	b := setup(t)
	tx := b.order(t, 1)
	release := make(chan struct{})
	fault := b.proxy.Arm(pgtest.Fault{Match: pgtest.IsCommit, Action: pgtest.Hold, Release: release})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	result := commit(ctx, tx)
	<-fault.Fired()
	b.proxy.Refuse(true) // pgx's request to cancel is lost too: it could come when the COMMIT has been released
	cancel()
	lost(t, <-result)
	close(release)
	<-fault.Done()
	if n := b.orders(t); n != 1 {
		t.Errorf("%d orders, want 1", n)
	}
}

func TestX10_ACommitIsExecutedThoughItsClientGaveUpBeforeTheAnswer(t *testing.T) {
	t.Parallel()
	b := setup(t)
	tx := b.order(t, 1)
	release := make(chan struct{})
	fault := b.proxy.Arm(pgtest.Fault{Match: pgtest.IsCommit, Action: pgtest.HoldAnswer, Release: release})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	result := commit(ctx, tx)
	<-fault.Fired()
	cancel()
	lost(t, <-result)
	close(release)
	<-fault.Done()
	if n := b.orders(t); n != 1 {
		t.Errorf("%d orders, want 1", n)
	}
}

// Whatever way pgx sends a COMMIT, alone or behind an INSERT, prepared a moment or a minute ago, the proxy knows it.
func TestACommitIsKnownInEveryQueryMode(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe,
		pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		for _, warm := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s warm=%t", mode, warm), func(t *testing.T) {
				t.Parallel()
				b := setup(t)
				config := b.proxy.PoolConfig()
				config.MaxConns = 1
				config.ConnConfig.DefaultQueryExecMode = mode
				pool := pgtest.NewPool(t, config)
				send := func(id int) error {
					conn, err := pool.Acquire(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					defer conn.Release()
					if _, err := conn.Exec(t.Context(), "BEGIN"); err != nil {
						t.Fatal(err)
					}
					batch := &pgx.Batch{}
					batch.Queue(insert, id)
					batch.Queue("COMMIT")
					return conn.SendBatch(t.Context(), batch).Close()
				}
				if warm {
					if err := send(0); err != nil {
						t.Fatal(err)
					}
				}
				before := b.orders(t)

				dropped := b.proxy.Arm(pgtest.Fault{Match: pgtest.IsCommit, Action: pgtest.Drop})
				lost(t, send(1))
				if !closed(dropped.Fired()) {
					t.Fatal("the COMMIT was not seen")
				}
				if _, err := b.direct.Exec(t.Context(), insert, 1); err != nil {
					t.Errorf("the batch was executed: %v", err)
				}

				unheard := b.proxy.Arm(pgtest.Fault{Match: pgtest.IsCommit, Action: pgtest.DropAnswer})
				lost(t, send(2))
				if !closed(unheard.Fired()) {
					t.Fatal("the COMMIT was not seen")
				}
				if n := b.orders(t); n != before+2 {
					t.Errorf("%d orders, want %d", n, before+2)
				}
				if err := send(3); err != nil {
					t.Errorf("a fault happens once: %v", err)
				}
			})
		}
	}
}

func TestAFaultMeetsTheStatementItNamesWhenItIsExecuted(t *testing.T) {
	t.Parallel()
	b := setup(t)
	conn, err := b.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	fault := b.proxy.Arm(pgtest.Fault{Match: pgtest.Contains("pg_try_advisory_xact_lock"), Action: pgtest.Drop})
	if _, err := conn.Conn().Prepare(t.Context(), "claim", "SELECT pg_try_advisory_xact_lock($1)"); err != nil {
		t.Fatalf("to prepare it is not to execute it: %v", err)
	}
	if _, err := conn.Exec(t.Context(), insert, 1); err != nil {
		t.Fatalf("another statement: %v", err)
	}
	if _, err := conn.Exec(t.Context(), "claim", 7); err == nil {
		t.Error("the claim got through")
	}
	if !closed(fault.Fired()) {
		t.Error("the fault has not happened")
	}
}

func TestOfTwoFaultsTheOneArmedFirstHappens(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first := b.proxy.Arm(pgtest.Fault{Match: pgtest.Contains("INSERT"), Action: pgtest.DropAnswer})
	second := b.proxy.Arm(pgtest.Fault{Match: pgtest.Contains("orders"), Action: pgtest.Drop})
	if _, err := b.pool.Exec(t.Context(), insert, 1); err == nil {
		t.Error("the answer came")
	}
	if !closed(first.Fired()) || closed(second.Fired()) {
		t.Error("it was the wrong fault")
	}
	if _, err := b.pool.Exec(t.Context(), insert, 2); err == nil {
		t.Error("the answer came")
	}
	<-second.Done()
	if n := b.orders(t); n != 1 {
		t.Errorf("%d orders, want 1", n)
	}
}

func TestTurnaroundsAreCountedOnTheWire(t *testing.T) {
	t.Parallel()
	b := setup(t)
	config := b.proxy.PoolConfig()
	config.MaxConns = 1
	pool := pgtest.NewPool(t, config)
	id := 0
	for _, c := range []struct {
		name       string
		do         func(context.Context) error
		turns      int
		statements []string
	}{
		{"a transaction with one statement", func(ctx context.Context) error {
			return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				id++
				_, err := tx.Exec(ctx, insert, id)
				return err
			})
		}, 3, []string{"begin", insert, "commit"}},
		{"a batch", func(ctx context.Context) error {
			batch := &pgx.Batch{}
			for range 3 {
				id++
				batch.Queue(insert, id)
			}
			return pool.SendBatch(ctx, batch).Close()
		}, 1, []string{insert, insert, insert}},
		{"a COPY", func(ctx context.Context) error {
			id++
			_, err := pool.CopyFrom(ctx, pgx.Identifier{"orders"}, []string{"id"}, pgx.CopyFromRows([][]any{{id}}))
			return err
		}, 1, []string{`copy "orders" ( "id" ) from stdin binary;`}},
	} {
		if err := c.do(t.Context()); err != nil { // pgx prepares the statements
			t.Fatalf("%s: %v", c.name, err)
		}
		b.proxy.Reset()
		if err := c.do(t.Context()); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if got := b.proxy.Turnarounds(); got != c.turns {
			t.Errorf("%s: %d turnarounds, want %d", c.name, got, c.turns)
		}
		if got := b.proxy.Statements(); !slices.Equal(got, c.statements) {
			t.Errorf("%s: statements %q, want %q", c.name, got, c.statements)
		}
	}
}

func TestLoggingInIsNoTurnaround(t *testing.T) {
	t.Parallel()
	b := setup(t)
	conn, err := pgx.Connect(t.Context(), b.proxy.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	if turns, statements := b.proxy.Turnarounds(), b.proxy.Statements(); turns != 0 || len(statements) != 0 {
		t.Errorf("%d turnarounds, statements %q", turns, statements)
	}
}

func TestAFlushIsATurnaround(t *testing.T) {
	t.Parallel()
	b := setup(t)
	conn, err := b.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	b.proxy.Reset()
	answer := b.proxy.Arm(pgtest.Fault{Match: pgtest.Contains("SELECT 2"), Action: pgtest.HoldAnswer, Release: make(chan struct{})})
	pipeline := conn.Conn().PgConn().StartPipeline(t.Context())
	pipeline.SendQueryParams("SELECT 1", nil, nil, nil, nil)
	pipeline.SendFlushRequest()
	if err := pipeline.Flush(); err != nil {
		t.Fatal(err)
	}
	result, err := pipeline.GetResults()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := result.(*pgconn.ResultReader).Close(); err != nil {
		t.Fatal(err)
	}
	if got := b.proxy.Turnarounds(); got != 1 {
		t.Errorf("%d turnarounds, want 1", got)
	}
	pipeline.SendQueryParams("SELECT 2", nil, nil, nil, nil)
	if err := pipeline.Sync(); err != nil {
		t.Fatal(err)
	}
	<-answer.Fired() // the second half of a batch that a Flush has divided can be met too
	b.proxy.CutAll()
	<-answer.Done()
	if err := pipeline.Close(); err == nil {
		t.Error("the answer came though the connection was cut")
	}
	if got := b.proxy.Turnarounds(); got != 2 {
		t.Errorf("%d turnarounds, want 2", got)
	}
}

func TestX11_AProxyThatCutsAndRefusesIsAServerThatIsAway(t *testing.T) {
	t.Parallel()
	b := setup(t)
	conn, err := b.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	b.proxy.Refuse(true)
	if err := conn.Ping(t.Context()); err != nil {
		t.Errorf("a connection from before: %v", err)
	}
	b.proxy.CutAll()
	if err := conn.Ping(t.Context()); err == nil {
		t.Error("a cut connection answers")
	}
	if err := b.pool.Ping(t.Context()); err == nil {
		t.Error("a new connection was made")
	}
	b.proxy.Refuse(false)
	if err := b.pool.Ping(t.Context()); err != nil {
		t.Errorf("the server is back: %v", err)
	}
}

func TestCutAllCutsWhatIsHeld(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for i, action := range []pgtest.Action{pgtest.Hold, pgtest.Delay, pgtest.HoldAnswer} {
		tx := b.order(t, i)
		fault := b.proxy.Arm(pgtest.Fault{Match: pgtest.IsCommit, Action: action, Release: make(chan struct{})})
		result := commit(t.Context(), tx)
		<-fault.Fired()
		b.proxy.CutAll()
		<-fault.Done()
		lost(t, <-result)
	}
	for id, want := range []string{"", "", "23505"} {
		_, err := b.direct.Exec(t.Context(), insert, id) // waits for the end of the cut transaction
		code := ""
		if pgErr := (*pgconn.PgError)(nil); errors.As(err, &pgErr) {
			code = pgErr.Code
		}
		if code != want {
			t.Errorf("order %d: %v, want code %q", id, err, want)
		}
	}
}

func TestTheEndOfTheTestEndsAFaultThatNeverHappened(t *testing.T) {
	t.Parallel()
	tb := pgtest.NewExample("never")
	fault := pgtest.Open(tb).Proxy().Arm(pgtest.Fault{Match: pgtest.IsCommit, Action: pgtest.Drop})
	tb.End()
	<-fault.Fired()
	<-fault.Done()
}

func TestWhatPassesTheProxyIsUnchanged(t *testing.T) {
	t.Parallel()
	b := setup(t)
	note := strings.Repeat("0123456789", 100_000)
	rows := make([][]any, 100)
	for i := range rows {
		rows[i] = []any{i, note[:i*1000]}
	}
	if _, err := b.pool.CopyFrom(t.Context(), pgx.Identifier{"orders"}, []string{"id", "note"}, pgx.CopyFromRows(rows)); err != nil {
		t.Fatal(err)
	}
	if _, err := b.pool.Exec(t.Context(), "INSERT INTO orders VALUES (1000, $1)", note); err != nil {
		t.Fatal(err)
	}
	got, err := b.pool.Query(t.Context(), "SELECT id, note FROM orders ORDER BY id")
	if err != nil {
		t.Fatal(err)
	}
	type order struct {
		ID   int
		Note string
	}
	all, err := pgx.CollectRows(got, pgx.RowToStructByPos[order])
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 101 || all[99].Note != note[:99_000] || all[100] != (order{1000, note}) {
		t.Errorf("%d orders came back, or not as they were", len(all))
	}
}

func TestTheServersOwnMessagesPassTheProxy(t *testing.T) {
	t.Parallel()
	b := setup(t)
	conn, err := pgx.Connect(t.Context(), b.proxy.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	channel := b.database.Schema()
	if _, err := conn.Exec(t.Context(), "LISTEN "+channel); err != nil {
		t.Fatal(err)
	}
	if _, err := b.direct.Exec(t.Context(), "SELECT pg_notify($1, 'hello')", channel); err != nil {
		t.Fatal(err)
	}
	if n, err := conn.WaitForNotification(t.Context()); err != nil || n.Payload != "hello" {
		t.Errorf("notification %v, %v", n, err)
	}
	if _, err := b.direct.Exec(t.Context(), "SELECT pg_terminate_backend($1)", conn.PgConn().PID()); err != nil {
		t.Fatal(err)
	}
	var pgErr *pgconn.PgError
	if _, err := conn.WaitForNotification(t.Context()); !errors.As(err, &pgErr) || pgErr.Code != "57P01" {
		t.Errorf("a terminated session ends with %v", err)
	}
}

func TestARequestToCancelPassesTheProxy(t *testing.T) {
	t.Parallel()
	b := setup(t)
	conn, err := b.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	const lock = "SELECT pg_advisory_xact_lock(hashtext(current_schema()))"
	holder, err := b.direct.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = holder.Rollback(context.Background()) }()
	if _, err := holder.Exec(t.Context(), lock); err != nil {
		t.Fatal(err)
	}
	result := make(chan error, 1)
	go func() {
		_, err := conn.Exec(t.Context(), lock)
		result <- err
	}()
	// A request that comes before the statement does nothing, so it is sent until it has done something.
	for {
		if err := conn.Conn().PgConn().CancelRequest(t.Context()); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-result:
			var pgErr *pgconn.PgError
			if !errors.As(err, &pgErr) || pgErr.Code != "57014" {
				t.Errorf("a cancelled statement ends with %v", err)
			}
			return
		default:
		}
	}
}

func TestAClientThatWouldLikeTLSIsServedWithout(t *testing.T) {
	t.Parallel()
	b := setup(t)
	conn, err := pgx.Connect(t.Context(), strings.Replace(b.proxy.URL(), "sslmode=disable", "sslmode=prefer", 1))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	if err := conn.Ping(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestAClientThatSendsNonsenseIsCut(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for name, nonsense := range map[string]string{
		"nothing":             "",
		"a short head":        "\x00\x00",
		"a size too small":    "\x00\x00\x00\x01\x00\x03\x00\x00",
		"a size too large":    "\xff\xff\xff\xff\x00\x03\x00\x00",
		"less than announced": "\x00\x00\x00\x20\x00\x03\x00\x00",
		"a frame of no size":  "\x00\x00\x00\x09\x00\x03\x00\x00\x00Q\x00\x00\x00\x00",
		"words":               "GET / HTTP/1.1\r\n\r\n",
	} {
		tcp, err := net.Dial("tcp", b.proxy.Addr())
		if err != nil {
			t.Fatal(err)
		}
		conn := tcp.(*net.TCPConn)
		if _, err := io.WriteString(conn, nonsense); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := conn.CloseWrite(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		_, _ = io.Copy(io.Discard, conn) // until the proxy closes it
		_ = conn.Close()
	}
	if err := b.pool.Ping(t.Context()); err != nil {
		t.Errorf("and now others are not served: %v", err)
	}
}

func TestAFaultThatCouldNotHappenIsRefused(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	for name, fault := range map[string]pgtest.Fault{
		"no Match":            {Action: pgtest.Drop},
		"no Action":           {Match: pgtest.IsCommit},
		"no such Action":      {Match: pgtest.IsCommit, Action: pgtest.Delay + 1, Release: release},
		"HoldAnswer for ever": {Match: pgtest.IsCommit, Action: pgtest.HoldAnswer},
		"Hold for ever":       {Match: pgtest.IsCommit, Action: pgtest.Hold},
		"Delay for ever":      {Match: pgtest.IsCommit, Action: pgtest.Delay},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tb := pgtest.NewExample(name)
			defer tb.End()
			p := pgtest.Open(tb).Proxy()
			defer func() {
				if recover() == nil {
					t.Error("it was armed")
				}
			}()
			p.Arm(fault)
		})
	}
}

func TestIsCommitKnowsACommit(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string]bool{
		"commit": true, "COMMIT": true, " Commit ;": true, "commit work": true, "COMMIT TRANSACTION;": true, "end": true,
		"insert into t values (1); commit": true, "insert into t values (1);\ncommit;": true, "commit; begin": true,
		"": false, "begin": false, "rollback": false, "commit prepared 'x'": false, "select committed from t": false,
		"on commit drop": false, "select case when true then 1 end": false, "insert into commits values (1)": false,
	} {
		if got := pgtest.IsCommit(sql); got != want {
			t.Errorf("IsCommit(%q) is %t", sql, got)
		}
	}
}

func TestEveryActionHasAName(t *testing.T) {
	t.Parallel()
	for action, want := range map[pgtest.Action]string{pgtest.Drop: "Drop", pgtest.DropAnswer: "DropAnswer",
		pgtest.HoldAnswer: "HoldAnswer", pgtest.Hold: "Hold", pgtest.Delay: "Delay", 0: "Action(0)"} {
		if got := action.String(); got != want {
			t.Errorf("%d is %q, want %q", int(action), got, want)
		}
	}
}
