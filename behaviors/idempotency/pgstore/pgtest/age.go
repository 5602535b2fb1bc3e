package pgtest

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// ageSQL moves all that a record knows of time.
const ageSQL = `UPDATE idempotency_records SET created_at = created_at - $1::interval, completed_at = completed_at - $1::interval,
 expires_at = expires_at - $1::interval, lease_until = lease_until - $1::interval`

// Age gives a function that makes the idempotency records of pgstore older by d, so that a test sees a lease or a retention end without
// waiting for it. It is about all records in the first schema of the pool's search_path, the test's own where the pool is of this
// package. A record that a transaction has locked is waited for, at most 30 seconds. An error fails the test.
func Age(tb TB, pool *pgxpool.Pool) func(d time.Duration) {
	return func(d time.Duration) {
		tb.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
		defer cancel()
		if _, err := pool.Exec(ctx, ageSQL, d); err != nil {
			tb.Fatalf("pgtest: make the records older: %v", err)
		}
	}
}
