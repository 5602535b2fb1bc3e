package sqlitestore_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tekil-go/tekil/behaviors/idempotency/sqlitestore"
)

const (
	benchTable  = `CREATE TABLE sales (id INTEGER PRIMARY KEY, customer TEXT NOT NULL, sku TEXT NOT NULL, qty INTEGER NOT NULL, amount INTEGER NOT NULL, currency TEXT NOT NULL, created_at INTEGER NOT NULL)`
	benchInsert = `INSERT INTO sales (customer, sku, qty, amount, currency, created_at) VALUES (?, ?, ?, ?, ?, ?) RETURNING id`
)

// sell is the smallest sensible business transaction: one row of six columns.
func sell(ctx context.Context, db sqlitestore.DBTX) (id int64, err error) {
	err = db.QueryRowContext(ctx, benchInsert, "cus_1044", "SKU-1", 2, 4200, "TRY", time.Now().UnixMilli()).Scan(&id)
	return id, err
}

// BenchmarkQ1_Atomic compares an idempotent command, through the engine, with the transaction that its handler would be without
// one: BEGIN IMMEDIATE, INSERT, COMMIT, on the same settings. They run in turn, on databases of their own. ratio is the bare
// transaction's time over the command's: the throughput that is left. The goal is 0.70.
func BenchmarkQ1_Atomic(b *testing.B) {
	bare := setupWith(b, "?_txlock=immediate&_pragma=synchronous(2)&_pragma=busy_timeout(5000)", sqlitestore.Config{})
	atomic := setup(b)
	mustExec(b, bare.beside, benchTable)
	mustExec(b, atomic.beside, benchTable)
	handle, err := serve(atomic.store, func(ctx context.Context, _ pay) (res paid, err error) {
		res.OrderID, err = sell(ctx, sqlitestore.DB(ctx, atomic.db))
		return res, err
	})
	if err != nil {
		b.Fatal(err)
	}
	ctx := b.Context()
	var bareTime, atomicTime time.Duration
	b.ReportAllocs()
	for b.Loop() {
		start := time.Now()
		sellBare(b, bare)
		bareTime += time.Since(start)

		key := uuid.Must(uuid.NewV7()).String()
		start = time.Now()
		if _, _, err := send(ctx, handle, key, pay{Note: "x"}); err != nil {
			b.Fatal(err)
		}
		atomicTime += time.Since(start)
	}
	report(b, "bare", bareTime, "atomic", atomicTime)
}

// BenchmarkL1_Leased is the same for a Leased command: two commits to the disk where the bare transaction has one, so the goal is
// half of it.
func BenchmarkL1_Leased(b *testing.B) {
	bare := setupWith(b, "?_txlock=immediate&_pragma=synchronous(2)&_pragma=busy_timeout(5000)", sqlitestore.Config{})
	leased := setup(b)
	mustExec(b, bare.beside, benchTable)
	mustExec(b, leased.beside, benchTable)
	handle, err := serve(leased.store, func(ctx context.Context, _ charge) (res paid, err error) {
		err = sqlitestore.InTx(ctx, leased.db, func(ctx context.Context) error {
			res.OrderID, err = sell(ctx, sqlitestore.DB(ctx, leased.db))
			return err
		})
		return res, err
	})
	if err != nil {
		b.Fatal(err)
	}
	ctx := b.Context()
	var bareTime, leasedTime time.Duration
	b.ReportAllocs()
	for b.Loop() {
		start := time.Now()
		sellBare(b, bare)
		bareTime += time.Since(start)

		key := uuid.Must(uuid.NewV7()).String()
		start = time.Now()
		if _, _, err := send(ctx, handle, key, charge{Note: "x"}); err != nil {
			b.Fatal(err)
		}
		leasedTime += time.Since(start)
	}
	report(b, "bare", bareTime, "leased", leasedTime)
}

// sellBare is the transaction without a command.
func sellBare(b *testing.B, s *bundle) {
	tx, err := s.db.BeginTx(b.Context(), nil)
	if err != nil {
		b.Fatal(err)
	}
	if _, err := sell(b.Context(), tx); err != nil {
		b.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkReplay compares the replay of a key that this process has met with a SELECT of five columns by primary key.
func BenchmarkReplay(b *testing.B) {
	s := setup(b)
	mustExec(b, s.beside, benchTable)
	handle, err := serve(s.store, func(ctx context.Context, _ pay) (res paid, err error) {
		res.OrderID, err = sell(ctx, sqlitestore.DB(ctx, s.db))
		return res, err
	})
	if err != nil {
		b.Fatal(err)
	}
	ctx := b.Context()
	const keys = 100
	for i := range keys {
		if _, _, err := send(ctx, handle, fmt.Sprintf("replay-key-%d", i), pay{Note: "x"}); err != nil {
			b.Fatal(err)
		}
	}
	sel, err := s.db.PrepareContext(ctx, `SELECT customer, sku, qty, amount, currency FROM sales WHERE id = ?`)
	if err != nil {
		b.Fatal(err)
	}
	defer sel.Close()
	var selectTime, replayTime time.Duration
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		start := time.Now()
		var customer, sku, currency string
		var qty, amount int64
		if err := sel.QueryRowContext(ctx, i%keys+1).Scan(&customer, &sku, &qty, &amount, &currency); err != nil {
			b.Fatal(err)
		}
		selectTime += time.Since(start)

		key := fmt.Sprintf("replay-key-%d", i%keys)
		start = time.Now()
		if _, outcome, err := send(ctx, handle, key, pay{Note: "x"}); err != nil || !outcome.Replayed {
			b.Fatal(outcome, err)
		}
		replayTime += time.Since(start)
	}
	report(b, "select", selectTime, "replay", replayTime)
}

func report(b *testing.B, base string, baseTime time.Duration, name string, ours time.Duration) {
	b.ReportMetric(float64(baseTime.Nanoseconds())/float64(b.N), base+"_ns/op")
	b.ReportMetric(float64(ours.Nanoseconds())/float64(b.N), name+"_ns/op")
	b.ReportMetric(float64(baseTime)/float64(ours), "ratio")
}
