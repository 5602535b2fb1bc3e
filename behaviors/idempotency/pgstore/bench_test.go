package pgstore_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore"
	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore/pgtest"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
)

// The benchmarks compare with the bare work in the same run: short windows of one and the other in turn, the order swapped
// each time, and the median of the ratios. One iteration is one pair of windows, so ask for a number of them, on a server
// with fsync on (TEKIL_TEST_POSTGRES names one):
//
//	go test -run xxx -bench . -benchtime 25x ./behaviors/idempotency/pgstore

const window = 300 * time.Millisecond

type buy struct {
	Customer string `json:"customer"`
	SKU      string `json:"sku"`
	Qty      int    `json:"qty"`
	Amount   int64  `json:"amount"`
	Currency string `json:"currency"`
}

func (buy) CommandName() bus.Name[bought] { return "bench.buy" }
func (buy) Idempotent()                   {}

type bought struct {
	ID       int64  `json:"order_id"`
	Status   string `json:"status"`
	Amount   int64  `json:"amount"`
	Currency string `json:"currency"`
}

const (
	benchTable  = `CREATE TABLE bench_orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer text NOT NULL, sku text NOT NULL, qty int NOT NULL, amount bigint NOT NULL, currency text NOT NULL, created_at timestamptz NOT NULL DEFAULT now())`
	benchInsert = `INSERT INTO bench_orders (customer, sku, qty, amount, currency) VALUES ($1, $2, $3, $4, $5) RETURNING id`
	benchSelect = `SELECT customer, sku, qty, amount, currency FROM bench_orders WHERE id = $1`
)

func benchBus(b *testing.B, pool *pgxpool.Pool) *bus.Bus {
	b.Helper()
	engine, err := idempotency.New(idempotency.Config{Store: pgstore.New(pool)})
	if err != nil {
		b.Fatal(err)
	}
	claimed, _, err := idempotency.Stage(engine, func(ctx context.Context, c buy) (bought, error) {
		res := bought{Status: "created", Amount: c.Amount, Currency: c.Currency}
		err := pgstore.DB(ctx, pool).QueryRow(ctx, benchInsert, c.Customer, c.SKU, c.Qty, c.Amount, c.Currency).Scan(&res.ID)
		return res, err
	})
	if err != nil {
		b.Fatal(err)
	}
	inv := bus.Invocation{Name: "bench.buy", Idempotent: true}
	bb, err := bus.New(bus.Serve[buy](bus.Log(bus.Validate(claimed, inv, nil, nil), inv, nil, nil)))
	if err != nil {
		b.Fatal(err)
	}
	return bb
}

// atomicTx is one Atomic command under a new random key.
func atomicTx(place *bus.Bus) operation {
	return func(ctx context.Context, _ int) error {
		_, err := bus.Send(keyed(ctx, uuid.NewString()), place, order)
		return err
	}
}

const replayedKeys = 500

// replayed sends commands under replayedKeys keys, and gives what sends them again.
func replayed(b *testing.B, place *bus.Bus) operation {
	b.Helper()
	again := func(ctx context.Context, i int) error {
		_, err := bus.Send(keyed(ctx, fmt.Sprintf("replayed-%06d", i%replayedKeys)), place, order)
		return err
	}
	for i := range replayedKeys {
		if err := again(context.Background(), i); err != nil {
			b.Fatal(err)
		}
	}
	return again
}

var order = buy{Customer: "cus_1044", SKU: "SKU-1", Qty: 2, Amount: 4200, Currency: "TRY"}

// keyed is a context with a key, as an edge makes it.
func keyed(ctx context.Context, key string) context.Context {
	k, err := requestctx.ParseKey(key)
	if err != nil {
		panic(err)
	}
	ctx, _ = requestctx.New(ctx, requestctx.Values{Key: k, Scope: requestctx.Scope{Client: "bench"}, Source: "POST /orders"})
	return ctx
}

// operation is what a window does again and again; i differs each time.
type operation func(ctx context.Context, i int) error

// load runs op on the workers for d, and gives how often it was done in a second.
func load(b *testing.B, workers int, d time.Duration, op operation) float64 {
	b.Helper()
	var n, done atomic.Int64
	var wg sync.WaitGroup
	start := time.Now()
	for range workers {
		wg.Go(func() {
			for time.Since(start) < d {
				if err := op(context.Background(), int(n.Add(1))); err != nil {
					b.Error(err)
					return
				}
				done.Add(1)
			}
		})
	}
	wg.Wait()
	return float64(done.Load()) / time.Since(start).Seconds()
}

// ratio runs base and other in turn and reports how other's throughput compares.
func ratio(b *testing.B, workers int, base, other operation) {
	b.Helper()
	ratioAfter(b, workers, func() {}, base, other)
}

// ratioAfter is ratio with windows that each begin after a call of before.
func ratioAfter(b *testing.B, workers int, before func(), base, other operation) {
	b.Helper()
	run := func(op operation) float64 {
		before()
		return load(b, workers, window, op)
	}
	load(b, workers, window/3, base)
	load(b, workers, window/3, other)
	var ratios, bases []float64
	b.ResetTimer()
	for i := range b.N {
		var x, y float64
		if i%2 == 0 {
			x = run(base)
			y = run(other)
		} else {
			y = run(other)
			x = run(base)
		}
		ratios, bases = append(ratios, y/x), append(bases, x)
	}
	b.ReportMetric(median(ratios), "x-bare")
	b.ReportMetric(median(bases), "bare/s")
	b.ReportMetric(0, "ns/op")
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

func benchPool(b *testing.B, conns int, changes ...func(*pgxpool.Config)) *pgxpool.Pool {
	b.Helper()
	db := pgtest.Open(b)
	cfg := db.PoolConfig()
	cfg.MaxConns, cfg.MinConns = int32(conns), int32(conns)
	for _, change := range changes {
		change(cfg)
	}
	pool := pgtest.NewPool(b, cfg)
	ctx := context.Background()
	if err := pgstore.Migrate(ctx, pool); err != nil {
		b.Fatal(err)
	}
	if _, err := pool.Exec(ctx, benchTable); err != nil {
		b.Fatal(err)
	}
	return pool
}

// BenchmarkAtomic is goal P1: an Atomic command against Begin, INSERT, Commit as every user of pgx writes it.
func BenchmarkAtomic(b *testing.B) {
	for _, workers := range []int{1, 8, 32} {
		b.Run(fmt.Sprintf("workers=%d", workers), func(b *testing.B) {
			pool := benchPool(b, workers)
			ratio(b, workers, bareTx(pool), atomicTx(benchBus(b, pool)))
		})
	}
}

// BenchmarkReplay is goal R1: a replay of a key that this process has met against a SELECT of five columns by primary key.
func BenchmarkReplay(b *testing.B) {
	for _, workers := range []int{1, 8, 32} {
		b.Run(fmt.Sprintf("workers=%d", workers), func(b *testing.B) {
			pool := benchPool(b, workers)
			replay := replayed(b, benchBus(b, pool))
			ratio(b, workers,
				func(ctx context.Context, i int) error {
					var c, s, cur string
					var q int
					var a int64
					return pool.QueryRow(ctx, benchSelect, 1+i%replayedKeys).Scan(&c, &s, &q, &a, &cur)
				}, replay)
		})
	}
}

// BenchmarkStorm is goal S1: 64 requests with one key at once, whose handler takes 20 ms, on a pool of 16 that four workers use
// for other commands at the same time. It reports how many other commands go through, compared with a calm window, and how
// often the stormed handler ran: once for each storm.
func BenchmarkStorm(b *testing.B) {
	pool := benchPool(b, 16)
	others := benchBus(b, pool)
	var ran atomic.Int64
	stormed := serve(b, pgstore.New(pool), func(ctx context.Context, c note) (string, error) {
		ran.Add(1)
		_, err := pgstore.DB(ctx, pool).Exec(ctx, `SELECT pg_sleep(0.02)`)
		return "", err
	})
	storms := 0
	storm := func() { // one after another, for the length of a window
		until := time.Now().Add(window)
		for time.Now().Before(until) {
			storms++
			key := fmt.Sprintf("storm-%08d", storms)
			var wg sync.WaitGroup
			for range 64 {
				wg.Go(func() {
					if _, err := bus.Send(keyed(context.Background(), key), stormed, note{"x"}); err != nil {
						b.Error(err)
					}
				})
			}
			wg.Wait()
		}
	}
	calm := func(with func()) float64 {
		var done atomic.Int64
		var wg sync.WaitGroup
		start := time.Now()
		for range 4 {
			wg.Go(func() {
				for time.Since(start) < window {
					if _, err := bus.Send(keyed(context.Background(), uuid.NewString()), others, order); err != nil {
						b.Error(err)
						return
					}
					done.Add(1)
				}
			})
		}
		if with != nil {
			with()
		}
		wg.Wait()
		return float64(done.Load())
	}
	calm(storm)
	var ratios, calms []float64
	for i := range b.N {
		var x, y float64
		if i%2 == 0 {
			x, y = calm(nil), calm(storm)
		} else {
			y, x = calm(storm), calm(nil)
		}
		ratios, calms = append(ratios, y/x), append(calms, x/window.Seconds())
	}
	b.ReportMetric(median(ratios), "x-calm")
	b.ReportMetric(median(calms), "calm/s")
	b.ReportMetric(float64(ran.Load())/float64(storms), "runs/storm")
	b.ReportMetric(0, "ns/op")
}
