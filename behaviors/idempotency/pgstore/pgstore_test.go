package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore"
	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore/pgtest"
	"github.com/tekil-go/tekil/behaviors/idempotency/storetest"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func exec(t testing.TB, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := pool.Exec(context.Background(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func count(t testing.TB, pool *pgxpool.Pool, table string) (n int) {
	t.Helper()
	if err := pool.QueryRow(context.Background(), `SELECT count(*) FROM `+table).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// migrated makes the store's table and one for business rows.
func migrated(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	if err := pgstore.Migrate(context.Background(), pool); err != nil {
		t.Fatal(err)
	}
	exec(t, pool, `CREATE TABLE notes (note text NOT NULL)`)
}

func fixture(t *testing.T) storetest.Fixture {
	db := pgtest.Open(t)
	cfg := db.PoolConfig()
	cfg.MaxConns = 24
	pool := pgtest.NewPool(t, cfg)
	behind := db.Pool() // what the suite sees and does behind the store's back does not wait for the store's connections
	migrated(t, behind)
	return storetest.Fixture{
		Store:      pgstore.New(pool),
		NoHint:     pgstore.NewWithConfig(pool, pgstore.Config{NoHint: true}),
		Isolations: true,
		Insert: func(ctx context.Context, note string) error {
			_, err := pgstore.DB(ctx, pool).Exec(ctx, `INSERT INTO notes (note) VALUES ($1)`, note)
			return err
		},
		InTx: func(ctx context.Context, fn func(ctx context.Context) error) error {
			return pgstore.InTx(ctx, pool, fn)
		},
		Rows: func(t testing.TB) []string {
			rows, _ := behind.Query(context.Background(), `SELECT note FROM notes`)
			notes, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if err != nil {
				t.Fatal(err)
			}
			return notes
		},
		Records: func(t testing.TB) int { return count(t, behind, "idempotency_records") },
		Age: func(t testing.TB, d time.Duration) {
			exec(t, behind, `UPDATE idempotency_records SET created_at = created_at - $1::interval, completed_at = completed_at - $1::interval,
				expires_at = expires_at - $1::interval, lease_until = lease_until - $1::interval`, d)
		},
		Plant: func(t testing.TB, id idempotency.ID, r idempotency.Record) {
			expires, outcome := time.Hour, any(int16(r.Outcome))
			if r.Expired {
				expires = -time.Hour
			}
			if r.State != idempotency.Completed {
				outcome = nil
			}
			var lease any
			if r.State == idempotency.InProgress {
				lease = -time.Minute
				if r.LeaseLeft > 0 {
					lease = r.LeaseLeft
				}
			}
			exec(t, behind, `INSERT INTO idempotency_records (id, tenant, client, operation, key, request_hash, hash_version, state, after_expiry, attempt, attempts,
				fence, lease_until, outcome, result, result_type, origin_request_id, external_ref, draft_id, created_at, completed_at, expires_at, origin_trace)
				VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, clock_timestamp() + $13::interval, $14, $15, nullif($16, ''), $17, nullif($18, ''), nullif($20, ''),
				clock_timestamp(), CASE WHEN $14::smallint IS NOT NULL THEN clock_timestamp() END, clock_timestamp() + $19::interval, nullif($21, ''))`,
				[16]byte(id), r.Scope.Tenant, r.Scope.Client, r.Scope.Operation, r.Scope.Key, r.Hash[:], r.HashVersion, string(r.State), r.AfterExpiry.String(),
				[16]byte(r.Attempt), max(r.Attempts, 1), max(r.Fence, 1), lease, outcome, r.Result, r.ResultType, r.OriginRequestID, r.ExternalRef, expires, r.DraftID, r.OriginTrace)
		},
	}
}

func TestStoreKeepsTheSpecification(t *testing.T) { storetest.Run(t, fixture) }

// note is a command that writes one row.
type note struct {
	Text string `json:"text"`
}

func (note) CommandName() bus.Name[string] { return "test.note" }
func (note) Idempotent()                   {}

// serve puts handler behind the idempotency stage.
func serve(t testing.TB, store idempotency.Store, handler bus.Handler[note, string]) *bus.Bus {
	t.Helper()
	engine, err := idempotency.New(idempotency.Config{Store: store})
	if err != nil {
		t.Fatal(err)
	}
	claimed, _, err := idempotency.Stage(engine, handler)
	if err != nil {
		t.Fatal(err)
	}
	inv := bus.Invocation{Name: "test.note", Idempotent: true}
	b, err := bus.New(bus.Serve[note](bus.Log(bus.Validate(claimed, inv, nil, nil), inv, nil, nil)))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// writing is a handler that writes its note through the transaction.
func writing(pool *pgxpool.Pool) bus.Handler[note, string] {
	return func(ctx context.Context, c note) (string, error) {
		_, err := pgstore.DB(ctx, pool).Exec(ctx, `INSERT INTO notes (note) VALUES ($1)`, c.Text)
		return "wrote " + c.Text, err
	}
}

func asked(t testing.TB, ctx context.Context, key string) (context.Context, *requestctx.Request) {
	t.Helper()
	k, err := requestctx.ParseKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return requestctx.New(ctx, requestctx.Values{Key: k, Scope: requestctx.Scope{Client: "tester"}})
}

func TestAtomicTakesAsManyTurnaroundsAsTheBareTransactionAndAReplayOneOrTwo(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	proxy := db.Proxy()
	cfg := proxy.PoolConfig()
	cfg.MaxConns = 1
	pool := pgtest.NewPool(t, cfg)
	migrated(t, pool)
	b, other := serve(t, pgstore.New(pool), writing(pool)), serve(t, pgstore.New(pool), writing(pool))
	send := func(b *bus.Bus, key string) (turns int) {
		t.Helper()
		ctx, _ := asked(t, t.Context(), key)
		proxy.Reset()
		if _, err := bus.Send(ctx, b, note{"x"}); err != nil {
			t.Fatal(err)
		}
		return proxy.Turnarounds()
	}
	bare := func() int {
		t.Helper()
		proxy.Reset()
		if err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), `INSERT INTO notes (note) VALUES ($1)`, "bare")
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return proxy.Turnarounds()
	}
	send(b, "warm-up-1")
	send(b, "warm-up-1")
	send(other, "warm-up-1")
	bare()
	if want, got := bare(), send(b, "fresh-key"); want != 3 || got != want {
		t.Errorf("a fresh command took %d turnarounds and the bare transaction %d; want 3 and 3:\n%s", got, want, strings.Join(proxy.Statements(), "\n"))
	}
	if got := send(b, "fresh-key"); got != 1 {
		t.Errorf("the replay of a key that this process has met took %d turnarounds, want 1:\n%s", got, strings.Join(proxy.Statements(), "\n"))
	}
	if got := send(other, "fresh-key"); got != 2 {
		t.Errorf("the replay of a key that this process has not met took %d turnarounds, want 2:\n%s", got, strings.Join(proxy.Statements(), "\n"))
	}
	if got := send(other, "fresh-key"); got != 1 {
		t.Errorf("the second replay took %d turnarounds, want 1", got)
	}
}

// commitCase is one way in which a COMMIT or its answer gets lost.
type commitCase struct {
	name    string
	action  pgtest.Action
	handled int // how often the handler ran until the first answer
}

func TestX06X07X08BR02_ALostCommitNeverMakesASecondOrderNorAFalseAnswer(t *testing.T) {
	t.Parallel()
	for _, c := range []commitCase{
		{"X06 the COMMIT never arrives: it is made again", pgtest.Drop, 2},
		{"X07 the COMMIT is executed and its answer is lost: it is a success and no replay", pgtest.DropAnswer, 1},
		{"X08 the COMMIT arrives late: it is waited for", pgtest.Delay, 1},
	} {
		for _, hint := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, hint %t", c.name, hint), func(t *testing.T) {
				t.Parallel()
				db := pgtest.Open(t)
				proxy := db.Proxy()
				pool := pgtest.NewPool(t, proxy.PoolConfig())
				migrated(t, db.Pool())
				entered := 0
				write := writing(pool)
				b := serve(t, pgstore.NewWithConfig(pool, pgstore.Config{NoHint: !hint}), func(ctx context.Context, c note) (string, error) {
					entered++
					return write(ctx, c)
				})
				release := make(chan struct{})
				fault := proxy.Arm(pgtest.Fault{Match: pgtest.IsCommit, Action: c.action, Release: release})
				go func() {
					<-fault.Fired()
					if c.action == pgtest.Delay {
						// The client has gone on and asks again; wait until it has met the lock of the transaction on its way, or,
						// without the hint, until it has done its work a second time, and only then let the packet arrive.
						want := "pg_try_advisory_xact_lock"
						if !hint {
							want = "INSERT INTO notes"
						}
						proxy.Reset()
						for !slices.ContainsFunc(proxy.Statements(), pgtest.Contains(want)) && t.Context().Err() == nil {
							time.Sleep(time.Millisecond) // polls a fact; no time is assumed
						}
					}
					close(release)
				}()
				ctx, req := asked(t, t.Context(), "lost-commit")
				got, err := bus.Send(ctx, b, note{"x"})
				if err != nil || got != "wrote x" {
					t.Fatalf("the first attempt got %q and the error %v", got, err)
				}
				<-fault.Done()
				first := req.Outcome()
				if rows := count(t, db.Pool(), "notes"); rows != 1 {
					t.Errorf("there are %d business rows, want 1", rows)
				}
				if c.action != pgtest.Delay {
					if entered != c.handled {
						t.Errorf("the handler ran %d times, want %d", entered, c.handled)
					}
					if first.Replayed || first.OriginalRequestID != req.ID() {
						t.Errorf("the attempt did the work itself and was reported as %+v", first)
					}
				}
				ctx, req = asked(t, t.Context(), "lost-commit")
				if got, err = bus.Send(ctx, b, note{"x"}); err != nil || got != "wrote x" || !req.Outcome().Replayed {
					t.Errorf("the retry got %q, %v, %+v; want a replay", got, err, req.Outcome())
				}
				if rows, records := count(t, db.Pool(), "notes"), count(t, db.Pool(), "idempotency_records"); rows != 1 || records != 1 {
					t.Errorf("there are %d business rows and %d records, want 1 and 1", rows, records)
				}
			})
		}
	}
}

func TestX06X07_ALostCommitOfARefusalIsRefusedAllTheSame(t *testing.T) {
	t.Parallel()
	for _, action := range []pgtest.Action{pgtest.Drop, pgtest.DropAnswer} {
		t.Run(action.String(), func(t *testing.T) {
			t.Parallel()
			db := pgtest.Open(t)
			proxy := db.Proxy()
			pool := pgtest.NewPool(t, proxy.PoolConfig())
			migrated(t, db.Pool())
			write := writing(pool)
			b := serve(t, pgstore.New(pool), func(ctx context.Context, c note) (string, error) {
				if _, err := write(ctx, c); err != nil {
					return "", err
				}
				return "", idempotency.Final(errors.New("no such thing"))
			})
			proxy.Arm(pgtest.Fault{Match: pgtest.IsCommit, Action: action})
			for i, replayed := range []bool{false, true} {
				ctx, req := asked(t, t.Context(), "refused-1")
				_, err := bus.Send(ctx, b, note{"x"})
				var refused *idempotency.RefusedError
				if !errors.As(err, &refused) || req.Outcome().Replayed != replayed {
					t.Errorf("attempt %d got %v, %+v; want the refusal, replayed %t", i, err, req.Outcome(), replayed)
				}
			}
			if rows, records := count(t, db.Pool(), "notes"), count(t, db.Pool(), "idempotency_records"); rows != 0 || records != 1 {
				t.Errorf("there are %d business rows and %d records, want 0 and 1", rows, records)
			}
		})
	}
}

func TestX09_WhenNobodyCanSayTheCallerIsToldSoAndTheSameKeyWorksLater(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	proxy := db.Proxy()
	pool := pgtest.NewPool(t, proxy.PoolConfig())
	migrated(t, db.Pool())
	b := serve(t, pgstore.New(pool), writing(pool))
	fault := proxy.Arm(pgtest.Fault{Match: pgtest.IsCommit, Action: pgtest.DropAnswer})
	go func() {
		<-fault.Fired()
		proxy.Refuse(true) // the store is gone at the worst moment
		proxy.CutAll()
	}()
	ctx, req := asked(t, t.Context(), "nobody-knows")
	_, err := bus.Send(ctx, b, note{"x"})
	var unknown *idempotency.OutcomeUnknownError
	if !errors.As(err, &unknown) || req.Outcome().State != requestctx.StateUnknown {
		// The first look may have slipped in before the proxy closed: then it is the plain success of X07.
		if err != nil || req.Outcome().State != requestctx.StateExecuted {
			t.Fatalf("got %v, %+v", err, req.Outcome())
		}
	}
	proxy.Refuse(false)
	ctx, req = asked(t, t.Context(), "nobody-knows")
	if got, err := bus.Send(ctx, b, note{"x"}); err != nil || got != "wrote x" || !req.Outcome().Replayed {
		t.Errorf("the retry got %q, %v, %+v; want a replay", got, err, req.Outcome())
	}
	if rows := count(t, db.Pool(), "notes"); rows != 1 {
		t.Errorf("there are %d business rows, want 1", rows)
	}
}

func TestX11_AStoreThatIsAwayIsNeverPassedBy(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	proxy := db.Proxy()
	pool := pgtest.NewPool(t, proxy.PoolConfig())
	migrated(t, db.Pool())
	entered := false
	b := serve(t, pgstore.New(pool), func(context.Context, note) (string, error) { entered = true; return "", nil })
	proxy.Refuse(true)
	proxy.CutAll()
	ctx, _ := asked(t, t.Context(), "store-away")
	_, err := bus.Send(ctx, b, note{"x"})
	var away *idempotency.StoreError
	if !errors.As(err, &away) || entered {
		t.Errorf("got %v, handler entered %t; want a StoreError and no work", err, entered)
	}
}

func TestX12_AConnectionLostInTheHandlerLeavesNothing(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	proxy := db.Proxy()
	pool := pgtest.NewPool(t, proxy.PoolConfig())
	migrated(t, db.Pool())
	write := writing(pool)
	cut := true
	b := serve(t, pgstore.New(pool), func(ctx context.Context, c note) (string, error) {
		got, err := write(ctx, c)
		if cut {
			cut = false
			proxy.CutAll()
		}
		return got, err // success, as far as the handler knows
	})
	ctx, _ := asked(t, t.Context(), "cut-in-handler")
	got, err := bus.Send(ctx, b, note{"x"})
	if err != nil {
		ctx, _ = asked(t, t.Context(), "cut-in-handler")
		got, err = bus.Send(ctx, b, note{"x"})
	}
	if err != nil || got != "wrote x" {
		t.Errorf("after the cut: %q, %v", got, err)
	}
	if rows, records := count(t, db.Pool(), "notes"), count(t, db.Pool(), "idempotency_records"); rows != 1 || records != 1 {
		t.Errorf("there are %d business rows and %d records, want 1 and 1", rows, records)
	}
}

func TestX10BR03_AHangUpDuringTheHandlerOrTheCommitDoesNotUndoTheWork(t *testing.T) {
	t.Parallel()
	for _, moment := range []string{"in the handler", "during COMMIT"} {
		t.Run(moment, func(t *testing.T) {
			t.Parallel()
			db := pgtest.Open(t)
			proxy := db.Proxy()
			pool := pgtest.NewPool(t, proxy.PoolConfig())
			migrated(t, db.Pool())
			client, hangUp := context.WithCancel(t.Context())
			defer hangUp()
			write := writing(pool)
			b := serve(t, pgstore.New(pool), func(ctx context.Context, c note) (string, error) {
				if moment == "in the handler" {
					hangUp()
				}
				return write(ctx, c)
			})
			if moment == "during COMMIT" {
				release := make(chan struct{})
				fault := proxy.Arm(pgtest.Fault{Match: pgtest.IsCommit, Action: pgtest.Hold, Release: release})
				go func() {
					<-fault.Fired()
					hangUp()
					close(release)
				}()
			}
			ctx, _ := asked(t, client, "hung-up-1")
			if got, err := bus.Send(ctx, b, note{"x"}); err != nil || got != "wrote x" {
				t.Errorf("got %q, %v; the work must go on to its end", got, err)
			}
			ctx, req := asked(t, t.Context(), "hung-up-1")
			if _, err := bus.Send(ctx, b, note{"x"}); err != nil || !req.Outcome().Replayed {
				t.Errorf("the retry got %v, %+v; want a replay", err, req.Outcome())
			}
		})
	}
}

func TestX08_WhileTheCommitIsOnItsWayADuplicateIsInProgressAndHoldsNoConnection(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	proxy := db.Proxy()
	cfg := proxy.PoolConfig()
	cfg.MaxConns = 2
	pool := pgtest.NewPool(t, cfg)
	migrated(t, db.Pool())
	first, second := serve(t, pgstore.New(pool), writing(pool)), serve(t, pgstore.New(pool), writing(pool)) // two processes
	release := make(chan struct{})
	fault := proxy.Arm(pgtest.Fault{Match: pgtest.IsCommit, Action: pgtest.HoldAnswer, Release: release})
	// HoldAnswer means that the COMMIT is executed: the second process replays. Hold keeps it from the server.
	var wg sync.WaitGroup
	wg.Go(func() {
		ctx, _ := asked(t, t.Context(), "on-its-way")
		if _, err := bus.Send(ctx, first, note{"x"}); err != nil {
			t.Errorf("the first attempt: %v", err)
		}
	})
	<-fault.Fired()
	ctx, req := asked(t, t.Context(), "on-its-way")
	if _, err := bus.Send(ctx, second, note{"x"}); err != nil || !req.Outcome().Replayed {
		t.Errorf("after the server's commit the second process got %v, %+v; want a replay", err, req.Outcome())
	}
	close(release)
	wg.Wait()

	release = make(chan struct{})
	fault = proxy.Arm(pgtest.Fault{Match: pgtest.IsCommit, Action: pgtest.Hold, Release: release})
	wg.Go(func() {
		ctx, _ := asked(t, t.Context(), "not-there-yet")
		if _, err := bus.Send(ctx, first, note{"x"}); err != nil {
			t.Errorf("the first attempt: %v", err)
		}
	})
	<-fault.Fired()
	ctx, _ = asked(t, t.Context(), "not-there-yet")
	_, err := bus.Send(ctx, second, note{"x"})
	var busy *idempotency.InProgressError
	if !errors.As(err, &busy) || busy.RetryAfter != 2*time.Second {
		t.Errorf("before the server's commit the second process got %v; want in progress, 2 s", err)
	}
	if n := pool.Stat().AcquiredConns(); n != 1 {
		t.Errorf("%d connections are held, want the first attempt's alone", n)
	}
	close(release)
	wg.Wait()
}
