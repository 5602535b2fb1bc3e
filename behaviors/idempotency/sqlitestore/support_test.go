package sqlitestore_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/sqlitestore"
)

// expire makes all records older than their retention and their leases by an hour.
func (b *bundle) expire(t testing.TB) {
	t.Helper()
	mustExec(t, b.beside, `UPDATE idempotency_records SET expires_at = ?1 + rowid, lease_until = ?1`, time.Now().Add(-time.Hour).UnixMilli())
}

// atomicOf leaves a completed record.
func (b *bundle) atomicOf(t testing.TB, key string, after idempotency.AfterExpiry) idempotency.Claim {
	t.Helper()
	c := claimOf(key)
	c.AfterExpiry = after
	a, err := b.store.Begin(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Complete(t.Context(), idempotency.Completion{Result: []byte(`1`), ResultType: "result/0", ExternalRef: "auth-" + key}); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestPurge_GoesInBatchesOldestFirst_T10(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.db.SetMaxOpenConns(1)
	for i := range 5 {
		b.atomicOf(t, fmt.Sprint("reused-key-", i), idempotency.Reuse)
		b.atomicOf(t, fmt.Sprint("buried-key-", i), idempotency.Tombstone)
	}
	b.expire(t)
	b.atomicOf(t, "young-key-1", idempotency.Reuse)
	b.lease(t, leasedOf("leased-key-1", "one"))

	batch := idempotency.PurgeBatch{Limit: 2, Remember: 24 * time.Hour}
	var total idempotency.Purged
	for i := 0; ; i++ {
		done, err := b.store.Purge(t.Context(), batch)
		if err != nil || done.Removed > 2 || done.Buried > 2 {
			t.Errorf("step %d: Purge gave %+v and %v", i, done, err)
		}
		total.Removed += done.Removed
		total.Buried += done.Buried
		if i == 0 {
			if total.Removed != 2 {
				t.Errorf("the first step has removed %d records, want 2", total.Removed)
			}
			for _, key := range []string{"reused-key-2", "reused-key-3", "reused-key-4"} { // the younger ones
				b.record(t, key)
			}
		}
		if done.Removed < 2 && done.Buried < 2 { // as a purger does
			break
		}
	}
	if total != (idempotency.Purged{Removed: 5, Buried: 5}) {
		t.Errorf("the purge has done %+v, want five of each", total)
	}
	if n := b.records(t); n != 7 {
		t.Errorf("there are %d records, want the five tombstones, the young one and the leased one", n)
	}
	tomb := b.record(t, "buried-key-0")
	if tomb.Result != nil || tomb.ResultType != "tombstone" || tomb.Expired || tomb.ExternalRef != "" {
		t.Errorf("the tombstone is %+v", tomb)
	}
	batch.Limit = 100
	b.expire(t)
	if done, err := b.store.Purge(t.Context(), batch); err != nil || done != (idempotency.Purged{Removed: 7}) {
		t.Errorf("once all has expired Purge gave %+v and %v", done, err)
	}
	b.wantIdle(t)
}

func TestPurge_KeepsWhatIsWithinItsGraceAndWhoIsAtWork_T04(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.atomicOf(t, "reused-key-1", idempotency.Reuse)
	b.atomicOf(t, "buried-key-1", idempotency.Tombstone)
	b.lease(t, leasedOf("dead-key-1", "one"))
	b.expire(t)
	alive := b.lease(t, leasedOf("alive-key-1", "one"))
	mustExec(t, b.beside, `UPDATE idempotency_records SET expires_at = ? WHERE key = 'alive-key-1'`, time.Now().Add(-time.Hour).UnixMilli())
	if done, err := b.store.Purge(t.Context(), idempotency.PurgeBatch{Limit: 10, Grace: 2 * time.Hour}); err != nil || done != (idempotency.Purged{}) {
		t.Errorf("within the grace Purge gave %+v and %v, want nothing", done, err)
	}
	if done, err := b.store.Purge(t.Context(), idempotency.PurgeBatch{Limit: 10, Grace: time.Minute, Remember: time.Hour * 2}); err != nil || done != (idempotency.Purged{Removed: 2, Buried: 1}) {
		t.Errorf("after the grace Purge gave %+v and %v", done, err)
	}
	if err := b.insertInTx(t, alive, "x"); err != nil {
		t.Error(err)
	}
	if err := alive.Complete(t.Context(), success); err != nil {
		t.Error(err)
	}
	b.want(t, 1, 2)
}

func TestPurge_ReadsTheIndexAndNotTheTable(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, query := range sqlitestore.PurgeSQL {
		rows, err := b.beside.QueryContext(t.Context(), "EXPLAIN QUERY PLAN "+query, 1, 1, 1)
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		var plan []string
		for rows.Next() {
			var id, parent, unused int
			var detail string
			if err := rows.Scan(&id, &parent, &unused, &detail); err != nil {
				t.Fatal(err)
			}
			plan = append(plan, detail)
		}
		if got := strings.Join(plan, "; "); !strings.Contains(got, "USING INDEX idempotency_records_expires") || strings.Contains(got, "TEMP B-TREE") || strings.Contains(got, "SCAN idempotency_records") {
			t.Errorf("the plan is %q", got)
		}
	}
}

func TestSupport_WritesWaitTheirTurnAsLongAsTheirContextAllows(t *testing.T) {
	t.Parallel()
	b := setup(t)
	c := b.atomicOf(t, "waiting-key-1", idempotency.Reuse)
	open := b.begin(t, "open-key-1")
	for name, call := range map[string]func(ctx context.Context) error{
		"Purge": func(ctx context.Context) error {
			_, err := b.store.Purge(ctx, idempotency.PurgeBatch{Limit: 1})
			return err
		},
		"Free":  func(ctx context.Context) error { _, err := b.store.Free(ctx, c.ID, c.Attempt); return err },
		"Erase": func(ctx context.Context) error { _, err := b.store.Erase(ctx, c.ID, c.Attempt); return err },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		if err := call(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s behind another command gave %v, want that its deadline has passed", name, err)
		}
	}
	if found, err := b.store.Find(t.Context(), idempotency.Search{Key: "waiting-key-1"}, 1); err != nil || len(found) != 1 { // readers do not wait
		t.Errorf("Find beside another command gave %d records and %v", len(found), err)
	}
	open.Rollback(t.Context())
	if done, err := b.store.Erase(t.Context(), c.ID, c.Attempt); err != nil || !done {
		t.Errorf("Erase gave %v and %v", done, err)
	}
}

func TestSupport_RefusesWhatMakesNoSense(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, limit := range []int{0, -1} { // to SQLite a negative limit is none
		if _, err := b.store.Purge(t.Context(), idempotency.PurgeBatch{Limit: limit}); err == nil {
			t.Errorf("Purge takes the limit %d", limit)
		}
	}
	tenant := ""
	if _, err := b.store.Find(t.Context(), idempotency.Search{Tenant: &tenant}, 1); err == nil {
		t.Error("Find takes a search for anything")
	}
	b.atomicOf(t, "limit-key-1", idempotency.Reuse)
	if found, err := b.store.Find(t.Context(), idempotency.Search{Key: "limit-key-1"}, -1); err != nil || len(found) != 0 {
		t.Errorf("Find with a negative limit gave %d records and %v", len(found), err)
	}
}

func TestFree_StopsWhoHeldTheKey_L22(t *testing.T) {
	t.Parallel()
	b := setup(t)
	c := leasedOf("freed-key-1", "one")
	l := b.lease(t, c)
	if done, err := b.store.Free(t.Context(), c.ID, idempotency.AttemptID{9}); done || err != nil {
		t.Errorf("Free of an attempt that was not seen gave %v and %v", done, err)
	}
	if done, err := b.store.Free(t.Context(), c.ID, c.Attempt); !done || err != nil {
		t.Errorf("Free gave %v and %v", done, err)
	}
	b.wantState(t, "freed-key-1", idempotency.Failed, "")
	if rec := b.record(t, "freed-key-1"); rec.Attempts != 1 || rec.LeaseUntil.After(time.Now()) {
		t.Errorf("the record has %d attempts and a lease until %v", rec.Attempts, rec.LeaseUntil)
	}
	if err := b.insertInTx(t, l, "late"); !errors.Is(err, idempotency.ErrLeaseLost) {
		t.Errorf("InTx gave %v, want ErrLeaseLost", err)
	}
	if err := l.Renew(t.Context()); !errors.Is(err, idempotency.ErrLeaseLost) {
		t.Errorf("Renew gave %v, want ErrLeaseLost", err)
	}
	if err := l.Complete(t.Context(), success); !errors.Is(err, idempotency.ErrLost) {
		t.Errorf("Complete gave %v, want ErrLost", err)
	}
	b.lease(t, leasedOf("freed-key-1", "two"))
	b.want(t, 0, 1)
}

func TestErase_LeavesATombstone_T15(t *testing.T) {
	t.Parallel()
	b := setup(t)
	c := b.atomicOf(t, "erased-key-1", idempotency.Reuse)
	before := b.record(t, "erased-key-1")
	if done, err := b.store.Erase(t.Context(), c.ID, c.Attempt); !done || err != nil {
		t.Fatalf("Erase gave %v and %v", done, err)
	}
	rec := b.record(t, "erased-key-1")
	if rec.Result != nil || rec.ExternalRef != "" || rec.ResultType != "tombstone" || rec.Hash != before.Hash || !rec.ExpiresAt.Equal(before.ExpiresAt) || rec.State != idempotency.Completed {
		t.Errorf("the record is %+v", rec)
	}
	// The key is not used again before the purge, even when it has expired.
	b.expire(t)
	if l, rec, err := b.store.Lease(t.Context(), leasedOf("erased-key-1", "one")); l != nil || rec == nil || err != nil {
		t.Errorf("Lease gave %v, %+v and %v, want the tombstone", l, rec, err)
	}
	if done, err := b.store.Purge(t.Context(), idempotency.PurgeBatch{Limit: 1}); err != nil || done.Removed != 1 {
		t.Errorf("Purge gave %+v and %v", done, err)
	}
	b.want(t, 0, 0)
}

// Its outcome has gone before its time, and its key must not go before the others'.
func TestErase_OfAKeyThatIsToBeRememberedDoesNotShortenItsMemory_T03_T15(t *testing.T) {
	t.Parallel()
	b := setup(t)
	batch := idempotency.PurgeBatch{Limit: 10, Remember: 24 * time.Hour}
	c := b.atomicOf(t, "remembered-key-1", idempotency.Tombstone)
	erase := func() {
		t.Helper()
		if done, err := b.store.Erase(t.Context(), c.ID, c.Attempt); !done || err != nil {
			t.Fatalf("Erase gave %v and %v", done, err)
		}
		if rec := b.record(t, "remembered-key-1"); rec.Result != nil || rec.ResultType != "tombstone" {
			t.Errorf("the record is %+v", rec)
		}
	}
	purge := func(want idempotency.Purged) {
		t.Helper()
		b.expire(t)
		if done, err := b.store.Purge(t.Context(), batch); err != nil || done != want {
			t.Errorf("Purge gave %+v and %v, want %+v", done, err, want)
		}
	}
	erase()
	erase()
	purge(idempotency.Purged{Buried: 1})
	if rec := b.record(t, "remembered-key-1"); rec.Expired {
		t.Error("the tombstone has expired, want that it is remembered for a day")
	}
	erase()
	purge(idempotency.Purged{Removed: 1})
}

func TestFind_ByAWholeScopeUsesThePrimaryKey(t *testing.T) {
	t.Parallel()
	b := setup(t)
	c := b.atomicOf(t, "scope-key-1", idempotency.Reuse)
	other := b.atomicOf(t, "scope-key-2", idempotency.Reuse)
	mustExec(t, b.beside, `UPDATE idempotency_records SET key = 'scope-key-1' WHERE id = ?`, other.ID[:]) // only its id tells them apart
	q := idempotency.Search{Key: "scope-key-1", Tenant: &c.Scope.Tenant, Client: &c.Scope.Client, Operation: &c.Scope.Operation}
	if found, err := b.store.Find(t.Context(), q, 10); err != nil || len(found) != 1 || found[0].ID != c.ID {
		t.Errorf("Find gave %d records and %v", len(found), err)
	}
}

func TestMigrate_GivesADatabaseOfTheFirstVersionItsSequence(t *testing.T) {
	t.Parallel()
	for name, fence := range map[string]any{"with records under leases": 41, "without": nil} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "old.db")
			db := openFile(t, path, "")
			mustExec(t, db, `PRAGMA journal_mode = WAL`)
			mustExec(t, db, sqlitestore.Migrations()[0].SQL)
			mustExec(t, db, `CREATE TABLE idempotency_migrations (version INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_at INTEGER NOT NULL) STRICT`)
			mustExec(t, db, `INSERT INTO idempotency_migrations VALUES (1, 'records', 0)`)
			mustExec(t, db, `INSERT INTO idempotency_records (id, tenant, client, operation, key, request_hash, hash_version, state, after_expiry, attempt,
				fence, outcome, origin_request_id, created_at, expires_at)
				VALUES (x'01', '', 'c', 'o', 'old-key-1', x'02', 1000, 'completed', 'reuse', x'03', ?, 0, 'r', 0, 0)`, fence)
			store := sqlitestore.New(db)
			if _, err := store.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "has version 1 and 3 is needed; run sqlitestore.Migrate") {
				t.Errorf("before the migration Check gave %v", err)
			}
			if err := sqlitestore.Migrate(t.Context(), db); err != nil {
				t.Fatal(err)
			}
			if warnings, err := store.Check(t.Context()); err != nil || len(warnings) != 0 {
				t.Errorf("Check gave %q and %v", warnings, err)
			}
			l, _, err := store.Lease(t.Context(), leasedOf("new-key-1", "one"))
			if err != nil {
				t.Fatal(err)
			}
			want := int64(1)
			if fence != nil {
				want = 42
			}
			if got := l.Grant().Fence; got != want {
				t.Errorf("the first fence is %d, want %d", got, want)
			}
			if n := number(t, db, `SELECT count(*) FROM idempotency_records`); n != 2 {
				t.Errorf("there are %d records, want 2", n)
			}
		})
	}
}

// While a deploy is rolling, an older program goes on beside a newer one: on a table that has a column more than it knows.
func TestMigrate_AddsTheDraftToWhatIsThereAndLetsAnOlderProgramWrite(t *testing.T) {
	t.Parallel()
	db := openFile(t, filepath.Join(t.TempDir(), "older.db"), "")
	mustExec(t, db, `PRAGMA journal_mode = WAL`)
	mustExec(t, db, `CREATE TABLE idempotency_migrations (version INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_at INTEGER NOT NULL) STRICT`)
	for _, step := range sqlitestore.Migrations()[:2] {
		mustExec(t, db, step.SQL)
		mustExec(t, db, `INSERT INTO idempotency_migrations VALUES (?, ?, 0)`, step.Version, step.Name)
	}
	older := func(c idempotency.Claim) { // as the version before the draft writes a record
		mustExec(t, db, `INSERT INTO idempotency_records AS r (id, tenant, client, operation, key, request_hash, hash_version, state, after_expiry, attempt,
			attempts, outcome, result, result_type, origin_request_id, external_ref, created_at, completed_at, expires_at)
			VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 'completed', 'reuse', ?8, 1, 0, x'31', 'result/0', 'request-1', NULL, ?9, ?9, ?9 + 1000000)`,
			c.ID[:], c.Scope.Tenant, c.Scope.Client, c.Scope.Operation, c.Scope.Key, c.Hash[:], c.HashVersion, c.Attempt[:], time.Now().UnixMilli())
	}
	claims := []idempotency.Claim{claimOf("before-it-1"), claimOf("after-it-1")}
	older(claims[0])
	store := sqlitestore.New(db)
	if _, err := store.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "has version 2 and 3 is needed; run sqlitestore.Migrate") {
		t.Errorf("before the migration Check gave %v", err)
	}
	if err := sqlitestore.Migrate(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	if warnings, err := store.Check(t.Context()); err != nil || len(warnings) != 0 {
		t.Errorf("Check gave %q and %v", warnings, err)
	}
	older(claims[1])
	for _, c := range claims {
		if rec, err := store.Look(t.Context(), c); err != nil || rec == nil || rec.Scope != c.Scope || rec.DraftID != "" || string(rec.Result) != "1" {
			t.Errorf("the record of %s is %+v (%v)", c.Scope.Key, rec, err)
		}
	}
}
