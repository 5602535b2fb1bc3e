package sqlitestore_test

import (
	"testing"
	"time"

	"github.com/tekil-go/tekil/behaviors/idempotency/sqlitestore"
)

// inside asks for a pragma within an attempt.
func (b *bundle) inside(t *testing.T, key, pragma string) (value int) {
	t.Helper()
	a := b.begin(t, key)
	defer a.Rollback(t.Context())
	if err := sqlitestore.DB(a.Context(t.Context()), b.db).QueryRowContext(t.Context(), "PRAGMA "+pragma).Scan(&value); err != nil {
		t.Fatal(err)
	}
	return value
}

func TestBR30_ConnectionOfAnAttemptHasItsSettingsWhateverTheDataSourceNameSays(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, query string
		foreignKeys int
	}{
		{"a plain one", "", 0},
		{"one with other settings", "?_pragma=synchronous(0)&_pragma=busy_timeout(1)&_txlock=deferred", 0},
		{"one with foreign keys", "?_pragma=foreign_keys(1)", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := setupWith(t, c.query, sqlitestore.Config{})
			for pragma, want := range map[string]int{"synchronous": 2, "busy_timeout": 5000, "foreign_keys": c.foreignKeys} {
				if got := b.inside(t, "settings-key-1", pragma); got != want {
					t.Errorf("%s is %d, want %d", pragma, got, want)
				}
			}
		})
	}
}

func TestStore_SettingsAreMadeAgainOnAConnectionThatWasChanged(t *testing.T) {
	t.Parallel()
	b := setupWith(t, "", sqlitestore.Config{BusyTimeout: 1500 * time.Millisecond})
	b.db.SetMaxOpenConns(1)
	for range 2 {
		if got := b.inside(t, "changed-key-1", "synchronous"); got != 2 {
			t.Errorf("synchronous is %d, want 2", got)
		}
		if got := b.inside(t, "changed-key-1", "busy_timeout"); got != 1500 {
			t.Errorf("busy_timeout is %d, want 1500", got)
		}
		mustExec(t, b.db, `PRAGMA synchronous = OFF`)
		mustExec(t, b.db, `PRAGMA busy_timeout = 0`)
	}
}
