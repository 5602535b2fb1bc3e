package registrytest

import (
	"context"
	"database/sql"
	"testing"
	"time"
)

// ageSQLite moves all that a record knows of time. Times are unix milliseconds there.
const ageSQLite = `UPDATE idempotency_records SET created_at = created_at - ?1, completed_at = completed_at - ?1,
 expires_at = expires_at - ?1, lease_until = lease_until - ?1`

// AgeSQLite is [System].Age for sqlitestore: it makes every record in db older, in steps of a millisecond. It takes a connection of db and the write lock for
// a moment, so while a handler's transaction is open it waits for as long as db's busy_timeout says. An error, such as that this time was over, fails
// the test.
//
// In PostgreSQL pgtest.Age does the same, and in memory memstore.Store.Age.
func AgeSQLite(tb testing.TB, db *sql.DB) func(d time.Duration) {
	return func(d time.Duration) {
		tb.Helper()
		if _, err := db.ExecContext(context.Background(), ageSQLite, d.Milliseconds()); err != nil {
			tb.Fatalf("registrytest: make the records older: %v", err)
		}
	}
}
