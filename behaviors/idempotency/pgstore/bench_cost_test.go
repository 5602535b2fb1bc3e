package pgstore_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tekil-go/tekil/bus"
)

// farAway makes the connections of a pool those of a client to whom every answer takes so much longer.
func farAway(by time.Duration) func(*pgxpool.Config) {
	return func(cfg *pgxpool.Config) {
		dial := cfg.ConnConfig.DialFunc
		cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dial(ctx, network, addr)
			return &farConn{Conn: conn, by: by}, err
		}
	}
}

// farConn delays the first bytes that come back for what was sent: one delay for a turn, however many statements are in it.
type farConn struct {
	net.Conn
	by   time.Duration
	sent atomic.Bool
}

func (c *farConn) Write(p []byte) (int, error) {
	c.sent.Store(true)
	return c.Conn.Write(p)
}

func (c *farConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err == nil && c.sent.Swap(false) {
		<-time.After(c.by)
	}
	return n, err
}

// slowDisk makes the server wait for so long before each flush of a commit. It is the server's own setting, which only a superuser
// may change, and it waits on top of what the disk takes.
func slowDisk(by time.Duration) func(*pgxpool.Config) {
	return func(cfg *pgxpool.Config) {
		cfg.ConnConfig.RuntimeParams["commit_delay"] = strconv.FormatInt(by.Microseconds(), 10)
		cfg.ConnConfig.RuntimeParams["commit_siblings"] = "0"
	}
}

// BenchmarkSlow is goal P4, and L2 where the disk is slow: what the ratios of BenchmarkAtomic and BenchmarkLeased become where the
// processor is not what limits: the network takes 1 ms for each turn, or the disk 2 ms for each flush.
func BenchmarkSlow(b *testing.B) {
	for _, slow := range []struct {
		name string
		how  func(*pgxpool.Config)
	}{{"network", farAway(time.Millisecond)}, {"flush", slowDisk(2 * time.Millisecond)}} {
		for _, workers := range []int{1, 8} {
			b.Run(fmt.Sprintf("%s/workers=%d", slow.name, workers), func(b *testing.B) {
				pool := benchPool(b, workers, slow.how)
				var fsync string
				if err := pool.QueryRow(context.Background(), `SHOW fsync`).Scan(&fsync); err != nil || fsync != "on" {
					b.Fatalf("this server has fsync %s (%v), and without it nothing waits for the disk", fsync, err)
				}
				place, relaxed := benchBus(b, pool), relaxedTx(b, pool)
				b.Run("atomic", func(b *testing.B) { ratio(b, workers, bareTx(pool), atomicTx(place)) })
				b.Run("relaxed", func(b *testing.B) { ratio(b, workers, bareTx(pool), relaxed) })
			})
		}
	}
}

// fiveStatements is an idempotent command as teams write it by hand: BEGIN, the claim, the row, the result beside the claim, COMMIT.
func fiveStatements(b *testing.B, pool *pgxpool.Pool) operation {
	b.Helper()
	naiveTable(b, pool)
	hash := make([]byte, 32)
	return func(ctx context.Context, _ int) error {
		key := uuid.NewString()
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			tag, err := tx.Exec(ctx, `INSERT INTO naive_records (key, state, hash) VALUES ($1, 1, $2) ON CONFLICT DO NOTHING`, key, hash)
			if err != nil {
				return err
			}
			if tag.RowsAffected() == 0 {
				return errors.New("a random key has come twice")
			}
			var id int64
			if err := tx.QueryRow(ctx, benchInsert, order.Customer, order.SKU, order.Qty, order.Amount, order.Currency).Scan(&id); err != nil {
				return err
			}
			_, err = tx.Exec(ctx, naiveUpdate, key, naiveResult)
			return err
		})
	}
}

// BenchmarkByHand is the first half of goal P5: an Atomic command against the five statements.
func BenchmarkByHand(b *testing.B) {
	for _, workers := range []int{1, 8, 32} {
		b.Run(fmt.Sprintf("workers=%d", workers), func(b *testing.B) {
			pool := benchPool(b, workers)
			ratio(b, workers, fiveStatements(b, pool), atomicTx(benchBus(b, pool)))
		})
	}
}

// BenchmarkWritten is the second half of goal P5: how many bytes of WAL a command writes and how many dead rows it leaves, beside
// the bare transaction and the five statements; and that a replay (R1) writes nothing. WAL is counted for the whole server, so
// nobody else may use it meanwhile.
func BenchmarkWritten(b *testing.B) {
	const each = 500
	for _, c := range []struct {
		name, table string
		op          func(*testing.B, *pgxpool.Pool) operation
	}{
		{"bare", "bench_orders", func(_ *testing.B, pool *pgxpool.Pool) operation { return bareTx(pool) }},
		{"by-hand", "naive_records", fiveStatements},
		{"atomic", "idempotency_records", func(b *testing.B, pool *pgxpool.Pool) operation { return atomicTx(benchBus(b, pool)) }},
		{"leased", "idempotency_records", leasedTx},
		{"replay", "idempotency_records", func(b *testing.B, pool *pgxpool.Pool) operation { return replayed(b, benchBus(b, pool)) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			pool := benchPool(b, 1)
			ctx := context.Background()
			op := c.op(b, pool)
			position := func() (at int64) {
				if err := pool.QueryRow(ctx, `SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint`).Scan(&at); err != nil {
					b.Fatal(err)
				}
				return at
			}
			var written []float64
			for range b.N + 1 { // the first one is for warmth
				start := position()
				for i := range each {
					if err := op(ctx, i); err != nil {
						b.Fatal(err)
					}
				}
				written = append(written, float64(position()-start)/each)
			}
			b.ReportMetric(median(written[1:]), "wal-B")
			inserted := each * (b.N + 1)
			if c.name == "replay" {
				inserted = replayedKeys
			}
			b.ReportMetric(float64(countsOf(b, pool, c.table, inserted).dead)/float64(each*(b.N+1)), "dead-rows")
			b.ReportMetric(0, "ns/op")
		})
	}
}

type counts struct {
	inserted int
	dead     int // versions of rows that an UPDATE or a DELETE has left, whether they were pruned since or not
	scans    int // readings from end to end
}

// countsOf is what the server's statistics say about a table after at least so many inserts. A session tells them at its end, or now
// and then.
func countsOf(b *testing.B, pool *pgxpool.Pool, table string, inserted int) (c counts) {
	b.Helper()
	pool.Reset()
	for range 200 {
		err := pool.QueryRow(context.Background(), `SELECT n_tup_ins, n_tup_upd + n_tup_del, seq_scan FROM pg_stat_user_tables WHERE relid = $1::text::regclass`, table).
			Scan(&c.inserted, &c.dead, &c.scans)
		if err != nil {
			b.Fatal(err)
		}
		if c.inserted >= inserted {
			return c
		}
		<-time.After(50 * time.Millisecond)
	}
	b.Fatalf("the statistics of %s tell of %d rows instead of %d", table, c.inserted, inserted)
	return c
}

var claimRecords = flag.String("records", "100000,1000000", "how many records BenchmarkClaim has in the table, separated by commas")

// BenchmarkClaim is goal G1: what an Atomic command costs where many records stand already, compared with a table that has only
// those of this run, with keys that begin with a time and with random ones. A window begins after a checkpoint, which is the worst
// case: the first change of each page writes the whole page. It reports as well what a key takes in the index.
//
//	go test -run xxx -bench Claim -benchtime 15x ./behaviors/idempotency/pgstore -records 10000000
func BenchmarkClaim(b *testing.B) {
	const workers = 8
	ctx := context.Background()
	for size := range strings.SplitSeq(*claimRecords, ",") {
		n, err := strconv.Atoi(size)
		if err != nil || n <= 0 {
			b.Fatalf("-records %q: %q is not a number of records", *claimRecords, size)
		}
		for _, keys := range []struct {
			name, id string // the id of the i-th record is made as idempotency.Scope makes it
			key      func() string
		}{
			{"v7", `(lpad(to_hex((extract(epoch FROM now()) * 1000)::bigint - $1 + i), 12, '0') || substr(md5(i::text), 1, 20))::uuid`, func() string { return uuid.Must(uuid.NewV7()).String() }},
			{"v4", `md5(i::text)::uuid`, uuid.NewString},
		} {
			b.Run(fmt.Sprintf("records=%d/keys=%s", n, keys.name), func(b *testing.B) {
				empty, full := benchPool(b, workers), benchPool(b, workers)
				var perKey float64
				for _, sql := range []string{
					`INSERT INTO idempotency_records (id, tenant, client, operation, key, request_hash, hash_version, state, after_expiry, attempt,
						outcome, result, result_type, origin_request_id, created_at, completed_at, expires_at)
						SELECT ` + keys.id + `, '', 'bench', 'POST /orders bench.buy', gen_random_uuid()::text, sha256(i::text::bytea), 1000, 'completed', 'reuse', gen_random_uuid(),
						0, '{"order_id":1,"status":"created","amount":4200,"currency":"TRY"}', 'result/0', 'request-' || i, now(), now(), now() + interval '72 hours'
						FROM generate_series(1, $1::int) i`,
					`VACUUM ANALYZE idempotency_records`,
				} {
					var args []any
					if strings.Contains(sql, "$1") {
						args = []any{n}
					}
					if _, err := full.Exec(ctx, sql, args...); err != nil {
						b.Fatal(err)
					}
				}
				if err := full.QueryRow(ctx, `SELECT pg_relation_size('idempotency_records_pkey')::float8 / $1::int`, n).Scan(&perKey); err != nil {
					b.Fatal(err)
				}
				for _, pool := range []*pgxpool.Pool{empty, full} { // a VACUUM of a tiny table makes plans that read it from end to end
					if _, err := pool.Exec(ctx, `ALTER TABLE idempotency_records SET (autovacuum_enabled = false)`); err != nil {
						b.Fatal(err)
					}
				}
				claim := func(pool *pgxpool.Pool) operation {
					place := benchBus(b, pool)
					return func(ctx context.Context, _ int) error {
						_, err := bus.Send(keyed(ctx, keys.key()), place, order)
						return err
					}
				}
				few, many := claim(empty), claim(full)
				b.Run("ratio", func(b *testing.B) {
					ratioAfter(b, workers, func() {
						if _, err := full.Exec(ctx, `CHECKPOINT`); err != nil {
							b.Error(err)
						}
					}, few, many)
					b.ReportMetric(perKey, "index-B")
				})
				for name, pool := range map[string]*pgxpool.Pool{"few": empty, "many": full} {
					if c := countsOf(b, pool, "idempotency_records", 1); c.scans > 2*workers {
						b.Errorf("the table with %s records was read from end to end %d times, so the ratio is none of the claim's", name, c.scans)
					}
				}
			})
		}
	}
}

// BenchmarkSweep measures the bare transaction, an Atomic and a Leased command and a replay with ever more workers, in turn: how many
// a second, and how long half of them and 99 in a hundred take at most. It is where the curves of docs/performance.md come from.
func BenchmarkSweep(b *testing.B) {
	for _, workers := range []int{1, 2, 4, 8, 16, 32, 64} {
		b.Run(fmt.Sprintf("workers=%d", workers), func(b *testing.B) {
			pool := benchPool(b, workers)
			place := benchBus(b, pool)
			type flow struct {
				name   string
				op     operation
				perSec []float64
				mu     sync.Mutex
				took   []time.Duration
			}
			flows := []*flow{
				{name: "bare", op: bareTx(pool)}, {name: "atomic", op: atomicTx(place)},
				{name: "leased", op: leasedTx(b, pool)}, {name: "replay", op: replayed(b, place)},
			}
			for _, f := range flows {
				load(b, workers, window/3, f.op)
			}
			for i := range b.N {
				for j := range flows {
					f := flows[(i+j)%len(flows)]
					f.perSec = append(f.perSec, load(b, workers, window, func(ctx context.Context, i int) error {
						start := time.Now()
						err := f.op(ctx, i)
						took := time.Since(start)
						f.mu.Lock()
						f.took = append(f.took, took)
						f.mu.Unlock()
						return err
					}))
				}
			}
			for _, f := range flows {
				slices.Sort(f.took)
				b.ReportMetric(median(f.perSec), f.name+"/s")
				b.ReportMetric(float64(f.took[len(f.took)/2].Microseconds()), f.name+"-p50-us")
				b.ReportMetric(float64(f.took[len(f.took)*99/100].Microseconds()), f.name+"-p99-us")
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}
