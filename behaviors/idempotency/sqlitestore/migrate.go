package sqlitestore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"time"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

// Migration is one step of the schema.
type Migration struct {
	// Version counts from 1.
	Version int
	// Name is the file's name without version and ending.
	Name string
	// SQL is the step: one or several statements.
	SQL string
}

// Migrations gives all steps in order, for those who run their own migrations. The store's check at Build looks at the table
// itself, so it does not matter who made it.
func Migrations() []Migration {
	names, _ := fs.Glob(migrationFiles, "migrations/*.sql") // sorted; the pattern is well formed
	steps := make([]Migration, 0, len(names))
	for _, file := range names {
		text, _ := migrationFiles.ReadFile(file)
		number, name, _ := strings.Cut(strings.TrimSuffix(strings.TrimPrefix(file, "migrations/"), ".sql"), "_")
		version, _ := strconv.Atoi(number)
		steps = append(steps, Migration{Version: version, Name: name, SQL: string(text)})
	}
	return steps
}

// latest is the version of the schema that this package works with.
func latest() int {
	steps := Migrations()
	return steps[len(steps)-1].Version
}

// Migrate puts the database into WAL mode and makes or updates the store's tables. It does nothing where all is up to date,
// and processes that start at once, on a file that does not exist yet, do not harm each other: they wait for one another, at
// most 5 seconds at each lock. The version is kept in the table idempotency_migrations. A database that a newer version of
// this package has migrated is left as it is.
//
// It takes one connection, whose busy timeout and level of synchronous stay set when it goes back to the pool.
func Migrate(ctx context.Context, db *sql.DB) error {
	if err := migrate(ctx, db); err != nil {
		return fmt.Errorf("sqlitestore: migrate: %w", err)
	}
	return nil
}

func migrate(ctx context.Context, db *sql.DB) (err error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := arm(ctx, conn, defaultBusyTimeout); err != nil {
		return err
	}
	if _, err := useWAL(ctx, conn, defaultBusyTimeout); err != nil {
		return err
	}
	// Look first: a process that starts while a command is running need not wait for the write lock if there is nothing to do.
	if have, err := schemaVersion(ctx, conn); err != nil || have >= latest() {
		return err
	}
	if _, err := conn.ExecContext(ctx, `BEGIN IMMEDIATE`); err != nil {
		return err
	}
	done := false
	defer func() {
		if done {
			return
		}
		if _, err := conn.ExecContext(context.WithoutCancel(ctx), `ROLLBACK`); err != nil {
			_ = conn.Raw(func(any) error { return driver.ErrBadConn })
		}
	}()
	if _, err := conn.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS idempotency_migrations
		(version INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_at INTEGER NOT NULL) STRICT`); err != nil {
		return err
	}
	have, err := schemaVersion(ctx, conn)
	if err != nil {
		return err
	}
	for _, step := range Migrations() {
		if step.Version <= have {
			continue
		}
		if _, err := conn.ExecContext(ctx, step.SQL); err != nil {
			return fmt.Errorf("step %d (%s): %w", step.Version, step.Name, err)
		}
		if _, err := conn.ExecContext(ctx, `INSERT INTO idempotency_migrations (version, name, applied_at) VALUES (?, ?, ?)`,
			step.Version, step.Name, time.Now().UnixMilli()); err != nil {
			return err
		}
	}
	_, err = conn.ExecContext(context.WithoutCancel(ctx), `COMMIT`)
	done = err == nil
	return err
}

// unversioned is the schema's version where there is no table of versions.
const unversioned = -1

func schemaVersion(ctx context.Context, conn *sql.Conn) (version int, err error) {
	var tables int
	if err := conn.QueryRowContext(ctx, `SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'idempotency_migrations'`).Scan(&tables); err != nil {
		return 0, err
	}
	if tables == 0 {
		return unversioned, nil
	}
	err = conn.QueryRowContext(ctx, `SELECT coalesce(max(version), 0) FROM idempotency_migrations`).Scan(&version)
	return version, err
}

// errNotWAL is what useWAL reports of databases that cannot have a write-ahead log.
var errNotWAL = errors.New("the journal mode cannot be set to WAL")

// useWAL puts the database into WAL mode, which it then keeps, and reports the mode that it found. SQLite does not wait for
// the locks that this takes, so it is tried again for a while.
func useWAL(ctx context.Context, conn *sql.Conn, patience time.Duration) (found string, err error) {
	until := time.Now().Add(patience)
	for {
		// Only reading the file tells a connection that another one has changed the mode.
		if _, err := conn.ExecContext(ctx, `SELECT 1 FROM sqlite_master LIMIT 1`); err != nil {
			return "", err
		}
		if err := conn.QueryRowContext(ctx, `PRAGMA journal_mode`).Scan(&found); err != nil {
			return "", err
		}
		if found == "wal" {
			return found, nil
		}
		var mode string
		err := conn.QueryRowContext(ctx, `PRAGMA journal_mode = WAL`).Scan(&mode)
		if err == nil && mode == "wal" {
			return found, nil
		}
		locked := err != nil && strings.Contains(err.Error(), "locked")
		if locked && time.Now().Before(until) {
			if err := pause(ctx, 10*time.Millisecond); err != nil {
				return found, err
			}
			continue
		}
		if err == nil && mode == "memory" {
			return found, fmt.Errorf("%w: this is a database in memory, whose records end with the process; use a file (or memstore in tests)", errNotWAL)
		}
		if err == nil {
			err = fmt.Errorf("SQLite answered %q", mode)
		}
		return found, fmt.Errorf("%w (it is %q): %w; while no other connection is reading, run PRAGMA journal_mode=WAL once on the file", errNotWAL, found, err)
	}
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
