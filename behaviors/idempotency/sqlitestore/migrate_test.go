package sqlitestore_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tekil-go/tekil/behaviors/idempotency/sqlitestore"
)

func TestMigrate_DoesNothingTheSecondTime(t *testing.T) {
	t.Parallel()
	b := setup(t)
	a := b.begin(t, "kept-key-1")
	if err := a.Complete(t.Context(), success); err != nil {
		t.Fatal(err)
	}
	if err := sqlitestore.Migrate(t.Context(), b.db); err != nil {
		t.Error(err)
	}
	b.want(t, 0, 1)
	if n := number(t, b.beside, `SELECT count(*) FROM idempotency_migrations`); n != len(sqlitestore.Migrations()) {
		t.Errorf("there are %d versions, want %d", n, len(sqlitestore.Migrations()))
	}
}

func TestMigrate_DoesNotWaitForACommandWhenThereIsNothingToDo(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.begin(t, "running-key-1")
	if err := sqlitestore.Migrate(t.Context(), b.db); err != nil {
		t.Error(err)
	}
}

func TestMigrate_ManyAtOnceOnANewFile(t *testing.T) {
	t.Parallel()
	for range 10 { // without the care that Migrate takes, about one in seven fails
		path := filepath.Join(t.TempDir(), "new.db")
		start := make(chan struct{})
		var wg sync.WaitGroup
		for range 4 {
			db := openFile(t, path, "")
			if err := db.PingContext(t.Context()); err != nil {
				t.Fatal(err)
			}
			wg.Go(func() {
				<-start
				if err := sqlitestore.Migrate(t.Context(), db); err != nil {
					t.Errorf("Migrate: %v", err)
				}
				if _, err := sqlitestore.New(db).Check(t.Context()); err != nil {
					t.Errorf("Check: %v", err)
				}
			})
		}
		close(start)
		wg.Wait()
	}
}

func TestMigrate_ProcessesAtOnceOnANewFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "new.db")
	var waits []func()
	for range 4 {
		waits = append(waits, startChild(t, "migrate", path))
	}
	for _, wait := range waits {
		wait()
	}
	if _, err := sqlitestore.New(openFile(t, path, "")).Check(t.Context()); err != nil {
		t.Errorf("Check: %v", err)
	}
}

func TestMigrate_WaitsForTheWriteLock(t *testing.T) {
	t.Parallel()
	b := setup(t)
	mustExec(t, b.beside, `DROP TABLE idempotency_records`)
	mustExec(t, b.beside, `DROP TABLE idempotency_sequence`)
	mustExec(t, b.beside, `DELETE FROM idempotency_migrations`)
	writer := connection(t, b.beside)
	mustExec(t, writer, `BEGIN IMMEDIATE`)
	const patience = 200 * time.Millisecond
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := sqlitestore.Migrate(ctx, b.db); err == nil || ctx.Err() == nil {
		t.Errorf("Migrate gave %v before its context ended, want that it waits", err)
	}
	mustExec(t, writer, `ROLLBACK`)
	if err := sqlitestore.Migrate(t.Context(), b.db); err != nil {
		t.Error(err)
	}
}

func TestMigrate_LeavesANewerSchemaAlone(t *testing.T) {
	t.Parallel()
	b := setup(t)
	mustExec(t, b.beside, `INSERT INTO idempotency_migrations VALUES (99, 'from the future', 0)`)
	if err := sqlitestore.Migrate(t.Context(), b.db); err != nil {
		t.Error(err)
	}
}

func TestMigrate_FailureLeavesNothingAndTheConnectionUsable(t *testing.T) {
	t.Parallel()
	db := openFile(t, filepath.Join(t.TempDir(), "taken.db"), "")
	db.SetMaxOpenConns(1)
	mustExec(t, db, `CREATE TABLE idempotency_records (something_else TEXT)`)
	if err := sqlitestore.Migrate(t.Context(), db); err == nil || !strings.Contains(err.Error(), "sqlitestore: migrate: step 1 (records)") {
		t.Errorf("Migrate gave %v, want the step that failed", err)
	}
	if n := number(t, db, `SELECT count(*) FROM sqlite_master WHERE name LIKE 'idempotency_migrations'`); n != 0 {
		t.Error("a table of versions was left")
	}
	mustExec(t, db, `DROP TABLE idempotency_records`)
	if err := sqlitestore.Migrate(t.Context(), db); err != nil {
		t.Error(err)
	}
}

func TestMigrate_RefusesADatabaseInMemory(t *testing.T) {
	t.Parallel()
	if err := sqlitestore.Migrate(t.Context(), openFile(t, ":memory:", "")); err == nil || !strings.Contains(err.Error(), "in memory") {
		t.Errorf("Migrate gave %v", err)
	}
}

func TestMigrate_EndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := sqlitestore.Migrate(ctx, openFile(t, filepath.Join(t.TempDir(), "x.db"), "")); !errors.Is(err, context.Canceled) {
		t.Errorf("Migrate gave %v, want the context's error", err)
	}
}

func TestMigrations_CanBeRunByHand(t *testing.T) {
	t.Parallel()
	db := openFile(t, filepath.Join(t.TempDir(), "own.db"), "")
	for i, step := range sqlitestore.Migrations() {
		if step.Version != i+1 || step.Name == "" {
			t.Errorf("step %d is %d %q", i, step.Version, step.Name)
		}
		mustExec(t, db, step.SQL)
	}
	warnings, err := sqlitestore.New(db).Check(t.Context())
	if err != nil || len(warnings) != 1 { // the journal mode
		t.Errorf("Check gave %q and %v", warnings, err)
	}
}
