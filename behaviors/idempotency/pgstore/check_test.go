package pgstore_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore"
	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore/pgtest"
)

func TestX15X16X17_AStoreThatCouldNotKeepItsPromisesIsRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		spoil  string // SQL after the migration
		params map[string]string
		cfg    pgstore.Config
		want   string // what the message says to do
	}{
		{name: "no table", spoil: `DROP TABLE idempotency_records`, want: "does not exist; run pgstore.Migrate"},
		{name: "another schema", cfg: pgstore.Config{Schema: "no_such_schema"}, want: "does not exist; run pgstore.Migrate"},
		{name: "an unlogged table", spoil: `ALTER TABLE idempotency_records SET UNLOGGED`, want: "SET LOGGED"},
		{name: "no unique key", spoil: `ALTER TABLE idempotency_records DROP CONSTRAINT idempotency_records_pkey`, want: "no unique index on id alone"},
		{name: "a key over more columns", spoil: `ALTER TABLE idempotency_records DROP CONSTRAINT idempotency_records_pkey, ADD PRIMARY KEY (id, expires_at)`, want: "no unique index on id alone"},
		{name: "an older table", spoil: `ALTER TABLE idempotency_records DROP COLUMN external_ref`, want: "has no column external_ref"},
		{name: "a table without the draft", spoil: `ALTER TABLE idempotency_records DROP COLUMN draft_id`, want: "has no column draft_id of type text; run pgstore.Migrate"},
		{name: "a column of another type", spoil: `ALTER TABLE idempotency_records ALTER COLUMN hash_version TYPE bigint`, want: "no column hash_version of type int2"},
		{name: "a collation that merges keys", spoil: `ALTER TABLE idempotency_records ALTER COLUMN key TYPE text COLLATE "default"`, want: `and not "C"`},
		{name: "a view", spoil: `ALTER TABLE idempotency_records RENAME TO hidden; CREATE VIEW idempotency_records AS SELECT * FROM hidden`, want: "not an ordinary table"},
		{name: "a read-only session", params: map[string]string{"default_transaction_read_only": "on"}, want: "read-only"},
		{name: "commits that do not wait for the disk", params: map[string]string{"synchronous_commit": "off"}, want: "synchronous_commit is off"},
		{name: "a negative lock timeout", cfg: pgstore.Config{LockTimeout: -1}, want: "LockTimeout is negative"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.Open(t)
			migrated(t, db.Pool())
			if c.spoil != "" {
				exec(t, db.Pool(), c.spoil)
			}
			cfg := db.PoolConfig()
			for name, value := range c.params {
				cfg.ConnConfig.RuntimeParams[name] = value
			}
			_, err := pgstore.NewWithConfig(pgtest.NewPool(t, cfg), c.cfg).Check(t.Context())
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("the check says %v; want it to say %q", err, c.want)
			}
			t.Log(err)
		})
	}
	if _, err := pgstore.New(nil).Check(t.Context()); err == nil || !strings.Contains(err.Error(), "the pool is nil") {
		t.Errorf("without a pool the check says %v", err)
	}
}

// limited gives a pool of one connection whose role may use the schema and no more.
func limited(t *testing.T, db *pgtest.Database) (pool *pgxpool.Pool, role string) {
	t.Helper()
	cfg := db.PoolConfig()
	cfg.MaxConns = 1
	pool, role = pgtest.NewPool(t, cfg), "limited_"+db.Schema()
	exec(t, db.Pool(), `CREATE ROLE `+role)
	t.Cleanup(func() {
		pool.Close()
		exec(t, db.Pool(), `DROP OWNED BY `+role)
		exec(t, db.Pool(), `DROP ROLE `+role)
	})
	exec(t, db.Pool(), `GRANT USAGE ON SCHEMA `+db.Schema()+` TO `+role)
	exec(t, pool, `SET ROLE `+role)
	return pool, role
}

func TestX16_ARoleWithoutRightsIsRefused(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	migrated(t, db.Pool())
	pool, role := limited(t, db)
	exec(t, db.Pool(), `GRANT SELECT ON idempotency_records TO `+role)
	if _, err := pgstore.New(pool).Check(t.Context()); err == nil || !strings.Contains(err.Error(), "may not SELECT, INSERT and UPDATE") {
		t.Errorf("the check says %v", err)
	}
}

func TestMigrateWantsNoRightToCreateWhereThereIsNothingToDo(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	migrated(t, db.Pool())
	pool, role := limited(t, db)
	exec(t, db.Pool(), `GRANT SELECT ON idempotency_migrations TO `+role)
	if err := pgstore.Migrate(t.Context(), pool); err != nil {
		t.Errorf("with all tables there: %v", err)
	}
	exec(t, db.Pool(), `DROP TABLE idempotency_migrations`)
	if err := pgstore.Migrate(t.Context(), pool); err == nil {
		t.Error("without the right to create, the missing table was passed by")
	}
}

func TestASoundServerIsAcceptedAndOnlyAskedForConfigure(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	migrated(t, db.Pool())
	cfg := db.PoolConfig()
	cfg.ConnConfig.RuntimeParams["idle_in_transaction_session_timeout"] = "0"
	cfg.ConnConfig.RuntimeParams["client_connection_check_interval"] = "0"
	warnings, err := pgstore.New(pgtest.NewPool(t, cfg)).Check(t.Context())
	if err != nil || len(warnings) != 2 || !strings.Contains(warnings[0], "pgstore.Configure") {
		t.Errorf("without Configure: %q, %v; want two warnings", warnings, err)
	}
	cfg = db.PoolConfig()
	pgstore.Configure(cfg)
	warnings, err = pgstore.New(pgtest.NewPool(t, cfg)).Check(t.Context())
	if err != nil || len(warnings) != 0 {
		t.Errorf("with Configure: %q, %v; want none", warnings, err)
	}
	if n := count(t, db.Pool(), "idempotency_records"); n != 0 {
		t.Errorf("the check has left %d records", n)
	}
}

func TestMigrateIsSafeWhenReplicasStartAtOnceAndWhenRunAgain(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	schema := db.Schema() + "_own" // a schema that has to be made
	pool := db.Pool()
	t.Cleanup(func() { exec(t, pool, `DROP SCHEMA `+schema+` CASCADE`) })
	cfg := pgstore.Config{Schema: schema}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := pgstore.MigrateWithConfig(context.Background(), pool, cfg); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if err := pgstore.MigrateWithConfig(t.Context(), pool, cfg); err != nil {
		t.Error(err)
	}
	if _, err := pgstore.NewWithConfig(pool, cfg).Check(t.Context()); err != nil {
		t.Error(err)
	}
	if got, want := count(t, pool, schema+".idempotency_migrations"), len(pgstore.Migrations()); got != want {
		t.Errorf("%d steps are noted, want %d", got, want)
	}
}

func TestTheStoreWorksInAnySchemaAndInEveryQueryModeOfPgx(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"cache_statement", "cache_describe", "describe_exec", "exec", "simple_protocol"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			db := pgtest.Open(t)
			cfg, err := pgxpool.ParseConfig(db.URL())
			if err != nil {
				t.Fatal(err)
			}
			parsed, err := pgxpool.ParseConfig("postgres:///?default_query_exec_mode=" + mode)
			if err != nil {
				t.Fatal(err)
			}
			cfg.ConnConfig.DefaultQueryExecMode = parsed.ConnConfig.DefaultQueryExecMode
			cfg.ConnConfig.StatementCacheCapacity = parsed.ConnConfig.StatementCacheCapacity
			cfg.ConnConfig.DescriptionCacheCapacity = parsed.ConnConfig.DescriptionCacheCapacity
			pool := pgtest.NewPool(t, cfg)
			migrated(t, pool)
			if _, err := pgstore.New(pool).Check(t.Context()); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if got, err := once(t, pool, writing(pool)); err != nil || got != "wrote x" {
					t.Fatalf("%q, %v", got, err)
				}
			}
			if n := count(t, pool, "notes"); n != 1 {
				t.Errorf("%d rows, want 1", n)
			}
		})
	}
}

func TestMigrationsArePrintable(t *testing.T) {
	t.Parallel()
	for i, m := range pgstore.Migrations() {
		if m.Version != i+1 || m.Name == "" || !strings.Contains(m.SQL, "idempotency") {
			t.Errorf("step %d is %d %q", i, m.Version, m.Name)
		}
	}
}

// firstVersion makes the table as the first version had it.
func firstVersion(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	step := pgstore.Migrations()[0]
	exec(t, pool, step.SQL)
	exec(t, pool, `CREATE TABLE idempotency_migrations (version integer PRIMARY KEY, name text NOT NULL, applied_at timestamptz NOT NULL DEFAULT clock_timestamp())`)
	exec(t, pool, `INSERT INTO idempotency_migrations (version, name) VALUES ($1, $2)`, step.Version, step.Name)
}

// Whoever comes while a migration waits for the table has to wait behind it, and what it waits for may take as long as a handler.
func TestMigrateMakesWayWhileATransactionHoldsTheTable(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	firstVersion(t, pool)
	holder, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Rollback(t.Context()) //nolint:errcheck // after the commit it does nothing
	if _, err := holder.Exec(t.Context(), `SELECT count(*) FROM idempotency_records`); err != nil {
		t.Fatal(err)
	}
	migrated := make(chan error, 1)
	go func() { migrated <- pgstore.Migrate(t.Context(), pool) }()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	waits := func() (waiting bool) {
		if err := pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_locks WHERE relation = 'idempotency_records'::regclass AND mode = 'AccessExclusiveLock' AND NOT granted)`).Scan(&waiting); err != nil {
			t.Fatal(err)
		}
		return waiting
	}
	for _, want := range []bool{true, false, true} { // it waits, makes way, and tries again
		for waits() != want {
			select {
			case err := <-migrated:
				t.Fatalf("it has ended with %v", err)
			default:
			}
		}
	}
	if err := holder.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-migrated; err != nil {
		t.Error(err)
	}
	if _, err := pgstore.New(pool).Check(t.Context()); err != nil {
		t.Error(err)
	}
}

// While a deploy is rolling, an older program goes on beside a newer one: on a table that has a column more than it knows.
func TestMigrateAddsTheDraftToWhatIsThereAndLetsAnOlderProgramWrite(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	pool := db.Pool()
	firstVersion(t, pool)
	plant(t, db, "before", 1, "") // as the version before the draft names the columns
	store := pgstore.New(pool)
	if _, err := store.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "has no column draft_id of type text; run pgstore.Migrate") {
		t.Errorf("before the migration the check says %v", err)
	}
	if err := pgstore.Migrate(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Check(t.Context()); err != nil {
		t.Error(err)
	}
	plant(t, db, "after", 1, "")
	for _, key := range []string{"before-1", "after-1"} {
		if found, err := store.Find(t.Context(), idempotency.Search{Key: key}, 10); err != nil || len(found) != 1 || found[0].DraftID != "" {
			t.Errorf("%s: %+v, %v", key, found, err)
		}
	}
}
