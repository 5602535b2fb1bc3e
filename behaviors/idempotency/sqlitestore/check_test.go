package sqlitestore_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/sqlitestore"
)

func TestCheck_GoodDatabasePassesWithoutAWord(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for range 2 {
		warnings, err := b.store.Check(t.Context())
		if err != nil || len(warnings) != 0 {
			t.Errorf("Check gave %q and %v, want nothing", warnings, err)
		}
	}
	b.want(t, 0, 0) // the dry run leaves nothing
	if got := b.store.Describe(); !strings.Contains(got, "sqlitestore") || !strings.Contains(got, filepath.Base(b.path)) {
		t.Errorf("Describe says %q, want the kind and the file", got)
	}
}

func TestCheck_RefusesADatabaseThatCannotKeepThePromisesAndSaysWhatToDo(t *testing.T) {
	t.Parallel()
	// recreate makes the table again with a change to its text.
	recreate := func(old, new string) func(t *testing.T, b *bundle) *sqlitestore.Store {
		return func(t *testing.T, b *bundle) *sqlitestore.Store {
			text := sqlitestore.Migrations()[0].SQL
			changed := strings.Replace(text, old, new, 1)
			if changed == text {
				t.Fatalf("the schema has no %q", old)
			}
			mustExec(t, b.beside, `DROP TABLE idempotency_records`)
			mustExec(t, b.beside, changed)
			mustExec(t, b.beside, sqlitestore.Migrations()[2].SQL) // its draft
			return b.store
		}
	}
	for name, c := range map[string]struct {
		spoil func(t *testing.T, b *bundle) *sqlitestore.Store
		want  []string
	}{
		"no database": {
			func(t *testing.T, b *bundle) *sqlitestore.Store { return sqlitestore.New(nil) },
			[]string{"the database is nil", "give New a *sql.DB"},
		},
		"a negative timeout": {
			func(t *testing.T, b *bundle) *sqlitestore.Store {
				return sqlitestore.NewWithConfig(b.db, sqlitestore.Config{BusyTimeout: -1})
			},
			[]string{"BusyTimeout is negative"},
		},
		"a folder that does not exist": {
			func(t *testing.T, b *bundle) *sqlitestore.Store {
				return sqlitestore.New(openFile(t, filepath.Join(t.TempDir(), "missing", "x.db"), ""))
			},
			[]string{"cannot be opened"},
		},
		"a file that is no database": {
			func(t *testing.T, b *bundle) *sqlitestore.Store {
				path := filepath.Join(t.TempDir(), "text.db")
				if err := os.WriteFile(path, []byte(strings.Repeat("this is a letter to a friend. ", 100)), 0o600); err != nil {
					t.Fatal(err)
				}
				return sqlitestore.New(openFile(t, path, ""))
			},
			[]string{"not a database"},
		},
		"a database in memory": {
			func(t *testing.T, b *bundle) *sqlitestore.Store { return sqlitestore.New(openFile(t, ":memory:", "")) },
			[]string{"in memory", "use a file"},
		},
		"an empty database": {
			func(t *testing.T, b *bundle) *sqlitestore.Store {
				return sqlitestore.New(openFile(t, filepath.Join(t.TempDir(), "empty.db"), ""))
			},
			[]string{"idempotency_records does not exist", "run sqlitestore.Migrate"},
		},
		"an old schema": {
			func(t *testing.T, b *bundle) *sqlitestore.Store {
				mustExec(t, b.beside, `DELETE FROM idempotency_migrations`)
				return b.store
			},
			[]string{"has version 0 and 3 is needed", "run sqlitestore.Migrate"},
		},
		"a column that is missing": {
			recreate("    external_ref      TEXT,\n", ""),
			[]string{"no column external_ref of type TEXT", "is not the one of sqlitestore.Migrate"},
		},
		"a table without the draft": {
			func(t *testing.T, b *bundle) *sqlitestore.Store {
				mustExec(t, b.beside, `ALTER TABLE idempotency_records DROP COLUMN draft_id`)
				return b.store
			},
			[]string{"no column draft_id of type TEXT", "is not the one of sqlitestore.Migrate"},
		},
		"a column of another type": {
			recreate("result            BLOB", "result            TEXT"),
			[]string{"no column result of type BLOB"},
		},
		"a key of two columns": {
			func(t *testing.T, b *bundle) *sqlitestore.Store {
				text := strings.Replace(sqlitestore.Migrations()[0].SQL, "BLOB NOT NULL PRIMARY KEY", "BLOB NOT NULL", 1)
				mustExec(t, b.beside, `DROP TABLE idempotency_records`)
				mustExec(t, b.beside, strings.Replace(text, ") STRICT;", ", PRIMARY KEY (tenant, id)) STRICT;", 1))
				return b.store
			},
			[]string{"primary key is not id alone"},
		},
		"a table without its key": {
			recreate("BLOB NOT NULL PRIMARY KEY", "BLOB NOT NULL"),
			[]string{"primary key is not id alone"},
		},
		"a view": {
			func(t *testing.T, b *bundle) *sqlitestore.Store {
				mustExec(t, b.beside, `ALTER TABLE idempotency_records RENAME TO elsewhere`)
				mustExec(t, b.beside, `CREATE VIEW idempotency_records AS SELECT * FROM elsewhere`)
				return b.store
			},
			[]string{"primary key is not id alone"},
		},
		"a database without the sequence": {
			func(t *testing.T, b *bundle) *sqlitestore.Store {
				mustExec(t, b.beside, `DROP TABLE idempotency_sequence`)
				return b.store
			},
			[]string{"idempotency_sequence does not exist", "run sqlitestore.Migrate"},
		},
		"a sequence without its row": {
			func(t *testing.T, b *bundle) *sqlitestore.Store {
				mustExec(t, b.beside, `DELETE FROM idempotency_sequence`)
				return b.store
			},
			[]string{"idempotency_sequence has 0 rows"},
		},
		"a sequence that cannot be written": {
			func(t *testing.T, b *bundle) *sqlitestore.Store {
				mustExec(t, b.beside, `CREATE TRIGGER frozen BEFORE UPDATE ON idempotency_sequence BEGIN SELECT raise(FAIL, 'frozen'); END`)
				return b.store
			},
			[]string{"a key cannot be claimed", "frozen"},
		},
		"a column that the store does not fill": {
			recreate("    expires_at        INTEGER NOT NULL,\n", "    expires_at        INTEGER NOT NULL,\n    owner TEXT NOT NULL,\n"),
			[]string{"a record cannot be written"},
		},
		"a file opened for reading": {
			func(t *testing.T, b *bundle) *sqlitestore.Store {
				return sqlitestore.New(openFile(t, b.path, "?mode=ro"))
			},
			[]string{"cannot be begun", "is the file writable"},
		},
		"connections that may only read": {
			func(t *testing.T, b *bundle) *sqlitestore.Store {
				return sqlitestore.New(openFile(t, b.path, "?_pragma=query_only(1)"))
			},
			[]string{"cannot be begun", "is the file writable"},
		},
		"a write lock that is held": {
			func(t *testing.T, b *bundle) *sqlitestore.Store {
				mustExec(t, connection(t, b.beside), `BEGIN IMMEDIATE`)
				return sqlitestore.NewWithConfig(b.db, sqlitestore.Config{BusyTimeout: 20 * time.Millisecond})
			},
			[]string{"cannot be begun", "does nobody hold its write lock", "locked"},
		},
		"a rollback journal that is in use": {
			func(t *testing.T, b *bundle) *sqlitestore.Store {
				mustExec(t, b.beside, `PRAGMA journal_mode = DELETE`)
				reader := connection(t, b.beside)
				mustExec(t, reader, `BEGIN`)
				mustExec(t, reader, `SELECT * FROM orders`)
				return sqlitestore.NewWithConfig(b.db, sqlitestore.Config{BusyTimeout: 20 * time.Millisecond})
			},
			[]string{"journal mode cannot be set to WAL", `"delete"`, "PRAGMA journal_mode=WAL"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := c.spoil(t, setup(t)).Check(t.Context())
			if err == nil {
				t.Fatal("Check passed")
			}
			t.Log(err)
			for _, want := range append(c.want, "sqlitestore: ") {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("Check gave %q, want it to say %q", err, want)
				}
			}
		})
	}
}

func TestCheck_SetsTheJournalModeWithAWarning(t *testing.T) {
	t.Parallel()
	b := setup(t)
	mustExec(t, b.beside, `PRAGMA journal_mode = DELETE`)
	warnings, err := b.store.Check(t.Context())
	if err != nil || len(warnings) != 1 || !strings.Contains(warnings[0], `"delete"`) {
		t.Errorf("Check gave %q and %v, want a warning", warnings, err)
	}
	if warnings, err := b.store.Check(t.Context()); err != nil || len(warnings) != 0 {
		t.Errorf("the second time Check gave %q and %v, want nothing", warnings, err)
	}
	b.want(t, 0, 0) // which also makes this connection look at the file
	var mode string
	if err := b.beside.QueryRowContext(t.Context(), `PRAGMA journal_mode`).Scan(&mode); err != nil || mode != "wal" {
		t.Errorf("the journal mode is %q (%v), want wal", mode, err)
	}
}

// SQLite does not wait by itself for this lock, because two who want it could wait for each other.
func TestCheck_WaitsForTheLockThatTheJournalModeNeeds(t *testing.T) {
	t.Parallel()
	b := setupWith(t, "", sqlitestore.Config{BusyTimeout: 200 * time.Millisecond})
	mustExec(t, b.beside, `PRAGMA journal_mode = DELETE`)
	writer := connection(t, b.beside)
	mustExec(t, writer, `BEGIN IMMEDIATE`)
	start := time.Now()
	if _, err := b.store.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "locked") {
		t.Errorf("Check gave %v, want that the database is locked", err)
	}
	if waited := time.Since(start); waited < 150*time.Millisecond {
		t.Errorf("Check gave up after %v, want that it waits as long as the busy timeout says", waited)
	}
	mustExec(t, writer, `ROLLBACK`)
	if _, err := b.store.Check(t.Context()); err != nil {
		t.Errorf("Check, once the lock is free: %v", err)
	}
}

func TestCheck_WarnsOfASchemaThatIsNewer(t *testing.T) {
	t.Parallel()
	b := setup(t)
	mustExec(t, b.beside, `INSERT INTO idempotency_migrations VALUES (99, 'from the future', 0)`)
	warnings, err := b.store.Check(t.Context())
	if err != nil || len(warnings) != 1 || !strings.Contains(warnings[0], "99") {
		t.Errorf("Check gave %q and %v, want a warning", warnings, err)
	}
}

func TestBR04_BrokenReadPathFailsLoudlyAndRunsNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	runs := 0
	handle, err := serve(b.store, func(context.Context, pay) (paid, error) {
		runs++
		return paid{OrderID: 1}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := send(t.Context(), handle, "before-the-break", pay{Note: "x"}); err != nil {
		t.Fatal(err)
	}
	mustExec(t, b.beside, `ALTER TABLE idempotency_records RENAME TO elsewhere`)
	for _, key := range []string{"before-the-break", "after-the-break"} {
		var store *idempotency.StoreError
		if _, _, err := send(t.Context(), handle, key, pay{Note: "x"}); !errors.As(err, &store) {
			t.Errorf("%s: the command gave %v, want a StoreError", key, err)
		}
	}
	if _, err := b.store.Look(t.Context(), claimOf("before-the-break")); err == nil {
		t.Error("Look gave no error")
	}
	if _, err := b.store.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "run sqlitestore.Migrate") {
		t.Errorf("Check gave %v", err)
	}
	mustExec(t, b.beside, `ALTER TABLE elsewhere RENAME TO idempotency_records`)
	if _, outcome, err := send(t.Context(), handle, "before-the-break", pay{Note: "x"}); err != nil || !outcome.Replayed {
		t.Errorf("after the repair the command gave (%+v, %v), want a replay", outcome, err)
	}
	if runs != 1 {
		t.Errorf("the handler ran %d times, want once", runs)
	}
}

func TestBR23_CompletionThatChangesNoRowIsAnError(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first := b.begin(t, "same-key-1")
	if err := first.Complete(t.Context(), success); err != nil {
		t.Fatal(err)
	}
	for name, end := range ends {
		a := b.begin(t, "same-key-1")
		if a.Found() == nil {
			t.Fatal("Begin did not find the record")
		}
		if err := b.insert(a.Context(t.Context()), "x"); err != nil {
			t.Fatal(err)
		}
		if err := end(t.Context(), a); !errors.Is(err, idempotency.ErrLost) {
			t.Errorf("%s gave %v, want ErrLost", name, err)
		}
	}
	b.want(t, 0, 1)
}
