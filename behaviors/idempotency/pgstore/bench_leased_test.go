package pgstore_test

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore"
	"github.com/tekil-go/tekil/bus"
)

// purchase and haste are the buy of the other benchmarks, Leased.
type purchase struct{ buy }

func (purchase) CommandName() bus.Name[bought] { return "bench.purchase" }
func (purchase) Idempotency() idempotency.Policy {
	return idempotency.Policy{Mode: idempotency.Leased}
}

type haste struct{ buy }

func (haste) CommandName() bus.Name[bought] { return "bench.haste" }
func (haste) Idempotency() idempotency.Policy {
	return idempotency.Policy{Mode: idempotency.Leased, RelaxedClaim: true}
}

func benchLeased[C bus.Command[bought]](b *testing.B, pool *pgxpool.Pool, order func(C) buy) func(context.Context, C) (bought, error) {
	b.Helper()
	engine, err := idempotency.New(idempotency.Config{Store: pgstore.New(pool)})
	if err != nil {
		b.Fatal(err)
	}
	claimed, _, err := idempotency.Stage(engine, func(ctx context.Context, cmd C) (bought, error) {
		c := order(cmd)
		res := bought{Status: "created", Amount: c.Amount, Currency: c.Currency}
		err := pgstore.InTx(ctx, pool, func(ctx context.Context) error {
			return pgstore.DB(ctx, pool).QueryRow(ctx, benchInsert, c.Customer, c.SKU, c.Qty, c.Amount, c.Currency).Scan(&res.ID)
		})
		return res, err
	})
	if err != nil {
		b.Fatal(err)
	}
	inv := bus.Invocation{Name: "bench.leased", Idempotent: true}
	bb, err := bus.New(bus.Serve[C](bus.Log(bus.Validate(claimed, inv, nil, nil), inv, nil, nil)))
	if err != nil {
		b.Fatal(err)
	}
	send, err := bus.Bind[C](bb)
	if err != nil {
		b.Fatal(err)
	}
	return send
}

// leasedTx is one Leased command under a new random key.
func leasedTx(b *testing.B, pool *pgxpool.Pool) operation {
	b.Helper()
	send := benchLeased(b, pool, func(p purchase) buy { return p.buy })
	return func(ctx context.Context, _ int) error {
		_, err := send(keyed(ctx, uuid.NewString()), purchase{order})
		return err
	}
}

// relaxedTx is leasedTx with a claim that does not wait for the disk.
func relaxedTx(b *testing.B, pool *pgxpool.Pool) operation {
	b.Helper()
	send := benchLeased(b, pool, func(p haste) buy { return p.buy })
	return func(ctx context.Context, _ int) error {
		_, err := send(keyed(ctx, uuid.NewString()), haste{order})
		return err
	}
}

// bareTx is the business transaction as every user of pgx writes it: Begin, INSERT, Commit.
func bareTx(pool *pgxpool.Pool) operation {
	return func(ctx context.Context, _ int) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			var id int64
			return tx.QueryRow(ctx, benchInsert, order.Customer, order.SKU, order.Qty, order.Amount, order.Currency).Scan(&id)
		})
	}
}

// What is written by hand has one table of keys, with no index but the key's.
func naiveTable(b *testing.B, pool *pgxpool.Pool) {
	b.Helper()
	if _, err := pool.Exec(context.Background(), `CREATE TABLE naive_records (key text PRIMARY KEY, state int NOT NULL, hash bytea NOT NULL, result bytea,
		lease_until timestamptz, created_at timestamptz NOT NULL DEFAULT now())`); err != nil {
		b.Fatal(err)
	}
}

const naiveUpdate = `UPDATE naive_records SET state = 2, result = $2 WHERE key = $1`

var naiveResult = []byte(`{"order_id":1,"status":"created","amount":4200,"currency":"TRY"}`)

// naive is a lease as it is written by hand: the claim in a transaction of its own, and the completion beside the business
// row, each statement in its turn, with no guard.
func naive(b *testing.B, pool *pgxpool.Pool) operation {
	b.Helper()
	naiveTable(b, pool)
	hash := make([]byte, 32)
	return func(ctx context.Context, _ int) error {
		key := uuid.NewString()
		if err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `INSERT INTO naive_records (key, state, hash, lease_until) VALUES ($1, 1, $2, now() + interval '5 min')`, key, hash)
			return err
		}); err != nil {
			return err
		}
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			var id int64
			if err := tx.QueryRow(ctx, benchInsert, order.Customer, order.SKU, order.Qty, order.Amount, order.Currency).Scan(&id); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, naiveUpdate, key, naiveResult)
			return err
		})
	}
}

// BenchmarkLeased is goals L1 and L2: a Leased command against the bare transaction, with a claim that waits for the disk and with a
// relaxed one, and against a lease that is written by hand.
func BenchmarkLeased(b *testing.B) {
	for _, workers := range []int{1, 8, 32} {
		b.Run(fmt.Sprintf("workers=%d", workers), func(b *testing.B) {
			pool := benchPool(b, workers)
			relaxed := relaxedTx(b, pool)
			durable := leasedTx(b, pool)
			byHand := naive(b, pool)
			b.Run("durable", func(b *testing.B) { ratio(b, workers, bareTx(pool), durable) })
			b.Run("relaxed", func(b *testing.B) { ratio(b, workers, bareTx(pool), relaxed) })
			b.Run("against-naive", func(b *testing.B) { ratio(b, workers, byHand, durable) })
		})
	}
}

var purgeRows = flag.Int("purge-rows", 200_000, "how many expired records BenchmarkPurge begins with")

// BenchmarkPurge is goal T1: a purge of expired records under load. It compares windows of commands (eight workers) with the purger
// running and without it, throughput and the 99th percentile, and tells how many rows a second the purger removes meanwhile.
//
//	go test -run xxx -bench Purge -benchtime 1x ./behaviors/idempotency/pgstore -purge-rows 5000000
func BenchmarkPurge(b *testing.B) {
	for range b.N {
		benchPurge(b)
	}
}

func benchPurge(b *testing.B) {
	const workers = 8
	pool := benchPool(b, workers+2)
	place := benchBus(b, pool)
	ctx := context.Background()
	if _, err := pool.Exec(ctx, `INSERT INTO idempotency_records (id, tenant, client, operation, key, request_hash, hash_version, state, after_expiry, attempt,
		outcome, result, result_type, origin_request_id, created_at, completed_at, expires_at)
		SELECT gen_random_uuid(), '', 'bench', 'POST /orders bench.buy', 'expired-' || n, decode(repeat('00', 32), 'hex'), 1000, 'completed', 'reuse', gen_random_uuid(),
		0, '{"order_id":1,"status":"created","amount":4200,"currency":"TRY"}', 'result/0', 'request-' || n, now() - interval '80 hours', now() - interval '80 hours', now() - interval '8 hours'
		FROM generate_series(1, $1::int) n`, *purgeRows); err != nil {
		b.Fatal(err)
	}
	if _, err := pool.Exec(ctx, `VACUUM ANALYZE idempotency_records`); err != nil {
		b.Fatal(err)
	}
	if _, err := pool.Exec(ctx, `CHECKPOINT`); err != nil {
		b.Fatal(err)
	}
	run := func(d time.Duration) (perSecond float64, p99 time.Duration) {
		took := make([][]time.Duration, workers)
		var wg sync.WaitGroup
		start := time.Now()
		for w := range workers {
			wg.Go(func() {
				for time.Since(start) < d {
					begun := time.Now()
					if _, err := bus.Send(keyed(ctx, uuid.NewString()), place, order); err != nil {
						b.Error(err)
						return
					}
					took[w] = append(took[w], time.Since(begun))
				}
			})
		}
		wg.Wait()
		all := slices.Concat(took...)
		slices.Sort(all)
		return float64(len(all)) / d.Seconds(), all[len(all)*99/100]
	}
	purger, err := idempotency.NewPurger(idempotency.PurgerConfig{Store: pgstore.New(pool)})
	if err != nil {
		b.Fatal(err)
	}
	run(window) // warm
	var throughput, slowest, speed []float64
	for done, even := false, true; !done; even = !even {
		var with, without float64
		var withP99, withoutP99 time.Duration
		calm := func() { without, withoutP99 = run(2 * window) }
		busy := func() {
			purging, stop := context.WithCancel(ctx)
			var wg sync.WaitGroup
			start := time.Now()
			var n int
			wg.Go(func() {
				total, err := purger.Once(purging)
				n = total.Removed
				done = err == nil // nothing is left
			})
			with, withP99 = run(2 * window)
			stop()
			wg.Wait()
			if !done {
				speed = append(speed, float64(n)/time.Since(start).Seconds())
			}
		}
		if even {
			calm()
			busy()
		} else {
			busy()
			calm()
		}
		if !done {
			throughput = append(throughput, with/without)
			slowest = append(slowest, float64(withP99)/float64(withoutP99))
		}
	}
	var left int // counted and not summed up: a batch that is given up may have been committed all the same
	if err := pool.QueryRow(ctx, `SELECT count(*) FROM idempotency_records WHERE expires_at < now()`).Scan(&left); err != nil || left != 0 {
		b.Errorf("%d expired records are left (%v)", left, err)
	}
	if len(speed) == 0 {
		b.Fatal("the purge was done within one window; ask for more rows with -purge-rows")
	}
	b.ReportMetric(median(throughput), "x-foreground")
	b.ReportMetric(median(slowest), "x-p99")
	b.ReportMetric(median(speed), "rows/s")
	b.ReportMetric(0, "ns/op")
}
