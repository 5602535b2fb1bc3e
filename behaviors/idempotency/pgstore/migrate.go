package pgstore

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

// Migration is one step of the schema.
type Migration struct {
	// Version counts from 1.
	Version int
	// Name is the file's name without version and ending.
	Name string
	// SQL is the step. Its names are not qualified: run it with the schema first in search_path.
	SQL string
}

// Migrations gives all steps in order, for those who run their own migrations. The store's check at Build looks at the
// tables themselves, so it does not matter who made them.
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

// migrateLock is the advisory lock that replicas which start together queue at.
const migrateLock = 0x74656b696c // "tekil"

// Migrate makes or updates the store's tables in the first schema of the connection's search_path. It does nothing where
// they are up to date, and replicas that start at once do not harm each other: they wait for one another.
func Migrate(ctx context.Context, pool *pgxpool.Pool) error {
	return MigrateWithConfig(ctx, pool, Config{})
}

// A step that changes the table needs it for itself for a moment, and whoever comes while it waits for that has to wait as well. So it waits for
// half a second only, makes way, and tries again, for a minute: then the error says that transactions hold the table.
const (
	migrateWait     = "500ms"
	migratePause    = time.Second
	migratePatience = time.Minute
)

// MigrateWithConfig is [Migrate] for a store with settings: it uses Config.Schema and creates that schema if it is missing.
func MigrateWithConfig(ctx context.Context, pool *pgxpool.Pool, cfg Config) error {
	until := time.Now().Add(migratePatience)
	for {
		err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return migrate(ctx, tx, cfg) })
		var refused *pgconn.PgError
		switch {
		case err == nil:
			return nil
		case !errors.As(err, &refused) || refused.Code != lockTimeout:
			return fmt.Errorf("pgstore: migrate: %w", err)
		case !time.Now().Before(until):
			return fmt.Errorf("pgstore: migrate: other transactions have held the table for %v: let them end, or end them, and try again: %w", migratePatience, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("pgstore: migrate: %w", err)
		case <-time.After(migratePause):
		}
	}
}

func migrate(ctx context.Context, tx pgx.Tx, cfg Config) error {
	if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock($1)`, int64(migrateLock)); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, `SET LOCAL lock_timeout = '`+migrateWait+`'`); err != nil {
		return err
	}
	if cfg.Schema != "" {
		name := pgx.Identifier{cfg.Schema}.Sanitize()
		var exists bool // asked first, because IF NOT EXISTS wants the right to create one all the same
		if err := tx.QueryRow(ctx, `SELECT to_regnamespace($1) IS NOT NULL`, name).Scan(&exists); err != nil {
			return err
		}
		if !exists {
			if _, err := tx.Exec(ctx, `CREATE SCHEMA `+name); err != nil {
				return err
			}
		}
		if _, err := tx.Exec(ctx, `SET LOCAL search_path TO `+name); err != nil {
			return err
		}
	}
	var versioned bool // asked first, for the same reason
	if err := tx.QueryRow(ctx, `SELECT to_regclass(quote_ident(current_schema()) || '.idempotency_migrations') IS NOT NULL`).Scan(&versioned); err != nil {
		return err
	}
	if !versioned {
		if _, err := tx.Exec(ctx, `CREATE TABLE idempotency_migrations (
			version integer PRIMARY KEY, name text NOT NULL, applied_at timestamptz NOT NULL DEFAULT clock_timestamp())`); err != nil {
			return err
		}
	}
	var have int
	if err := tx.QueryRow(ctx, `SELECT coalesce(max(version), 0) FROM idempotency_migrations`).Scan(&have); err != nil {
		return err
	}
	for _, step := range Migrations() {
		if step.Version <= have {
			continue
		}
		// Without arguments pgx sends the text as it is, so a step may hold several statements.
		if _, err := tx.Conn().PgConn().Exec(ctx, step.SQL).ReadAll(); err != nil {
			return fmt.Errorf("step %d (%s): %w", step.Version, step.Name, err)
		}
		if _, err := tx.Exec(ctx, `INSERT INTO idempotency_migrations (version, name) VALUES ($1, $2)`, step.Version, step.Name); err != nil {
			return err
		}
	}
	return nil
}
