package pgtest_test

import (
	"strings"
	"testing"
	"time"

	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore"
	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore/pgtest"
)

func TestAgeMovesAllTimesOfARecord(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	if err := pgstore.Migrate(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(t.Context(), `INSERT INTO idempotency_records (id, tenant, client, operation, key, request_hash, hash_version, state, after_expiry,
		attempt, fence, lease_until, outcome, origin_request_id, created_at, completed_at, expires_at)
		SELECT gen_random_uuid(), '', 'c', 'o', state, '', 0, state, 'reuse', gen_random_uuid(), 1, lease, outcome, '', '2026-01-01 10:00Z', completed, '2026-01-04 10:00Z'
		FROM (VALUES ('completed', NULL::timestamptz, 0, '2026-01-01 11:00Z'::timestamptz), ('in_progress', '2026-01-01 10:05Z', NULL, NULL)) AS r(state, lease, outcome, completed)`); err != nil {
		t.Fatal(err)
	}
	pgtest.Age(t, pool)(90 * time.Minute)
	var got string
	if err := pool.QueryRow(t.Context(), `SELECT string_agg(concat_ws(' ', to_char(created_at AT TIME ZONE 'UTC', 'DD HH24:MI'), to_char(expires_at AT TIME ZONE 'UTC', 'DD HH24:MI'),
		to_char(completed_at AT TIME ZONE 'UTC', 'HH24:MI'), to_char(lease_until AT TIME ZONE 'UTC', 'HH24:MI')), ', ' ORDER BY state) FROM idempotency_records`).Scan(&got); err != nil {
		t.Fatal(err)
	}
	if want := "01 08:30 04 08:30 09:30, 01 08:30 04 08:30 08:35"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestAgeWithoutTheTableFailsTheTest(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	defer func() {
		if said, _ := recover().(string); !strings.HasPrefix(said, "pgtest: make the records older: ") {
			t.Errorf("it said %q", said)
		}
	}()
	pgtest.Age(pgtest.NewExample("age"), pool)(time.Hour)
}
