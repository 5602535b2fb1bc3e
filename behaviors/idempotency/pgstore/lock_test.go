package pgstore_test

import (
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore"
	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore/pgtest"
)

func TestTheRecordsStatementWaitsForAnotherCommitNoLongerThanLockTimeout(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	migrated(t, pool)
	scope := idempotency.Scope{Client: "tester", Operation: "test.note", Key: "held-by-another"}
	claim := idempotency.Claim{ID: scope.ID(), Scope: scope, Retention: time.Hour}
	store := pgstore.NewWithConfig(pool, pgstore.Config{NoHint: true, LockTimeout: 50 * time.Millisecond})

	// Another transaction has written the record and does not commit.
	other, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Rollback(t.Context()) //nolint:errcheck // it is rolled back below
	if _, err := other.Exec(t.Context(), `INSERT INTO idempotency_records (id, tenant, client, operation, key, request_hash, hash_version, state,
		after_expiry, attempt, outcome, result, origin_request_id, created_at, expires_at)
		VALUES ($1, '', $2, $3, $4, '', 1, 'completed', 'reuse', gen_random_uuid(), 0, '', '', now(), now() + interval '1 hour')`,
		pgtype.UUID{Bytes: claim.ID, Valid: true}, scope.Client, scope.Operation, scope.Key); err != nil {
		t.Fatal(err)
	}
	for _, complete := range []bool{true, false} {
		at, err := store.Begin(t.Context(), claim)
		if err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		if complete {
			err = at.Complete(t.Context(), idempotency.Completion{})
		} else {
			err = at.Refuse(t.Context(), idempotency.Completion{Outcome: idempotency.Refusal})
		}
		if took := time.Since(begun); !errors.Is(err, idempotency.ErrBusy) || took < 50*time.Millisecond || took > 10*time.Second {
			t.Errorf("after %v it gave %v; want busy", took, err)
		}
	}
}
