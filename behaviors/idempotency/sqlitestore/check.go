package sqlitestore

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tekil-go/tekil/behaviors/idempotency"
)

// columns are those of the table, with their types.
var columns = map[string]string{
	"id": "BLOB", "tenant": "TEXT", "client": "TEXT", "operation": "TEXT", "key": "TEXT", "request_hash": "BLOB", "hash_version": "INTEGER",
	"state": "TEXT", "after_expiry": "TEXT", "attempt": "BLOB", "attempts": "INTEGER", "fence": "INTEGER", "lease_until": "INTEGER", "outcome": "INTEGER",
	"result": "BLOB", "result_type": "TEXT", "origin_request_id": "TEXT", "external_ref": "TEXT", "draft_id": "TEXT", "origin_trace": "TEXT", "created_at": "INTEGER",
	"completed_at": "INTEGER", "expires_at": "INTEGER",
}

// Check refuses a database with which the promises would not hold: one in memory or one whose journal mode cannot be WAL, a
// connection that does not take the store's settings, a table that is missing, old, of another shape or without its primary
// key, and one that cannot be written. It makes an attempt with a key of its own and rolls it back, so it may wait for the
// write lock like any attempt. A database in another journal mode is put into WAL mode, which is a warning.
func (s *Store) Check(ctx context.Context) (warnings []string, err error) {
	if s.db == nil {
		return nil, errors.New("sqlitestore: the database is nil; give New a *sql.DB")
	}
	if s.cfg.BusyTimeout < 0 {
		return nil, errors.New("sqlitestore: Config.BusyTimeout is negative")
	}
	warnings, err = s.checkDatabase(ctx)
	if err == nil {
		err = s.dryRun(ctx)
	}
	if err != nil {
		return warnings, fmt.Errorf("sqlitestore: %w", err)
	}
	return warnings, nil
}

// checkDatabase looks at settings and schema. It gives its connection back before the dry run takes one.
func (s *Store) checkDatabase(ctx context.Context) (warnings []string, err error) {
	conn, err := s.conn(ctx)
	if err != nil {
		return nil, fmt.Errorf("the database cannot be opened: %w", err)
	}
	defer conn.Close()

	var file string
	if err := conn.QueryRowContext(ctx, `SELECT file FROM pragma_database_list WHERE name = 'main'`).Scan(&file); err != nil {
		return nil, fmt.Errorf("the database cannot be asked: %w", err)
	}
	if file != "" {
		s.file.Store(&file)
	}
	found, err := useWAL(ctx, conn, s.cfg.BusyTimeout)
	if err != nil {
		return nil, err
	}
	if found != "wal" {
		warnings = append(warnings, fmt.Sprintf("the journal mode was %q and has been set to WAL, for good; sqlitestore.Migrate does that as well", found))
	}
	var synchronous, busy int64
	if err := errors.Join(conn.QueryRowContext(ctx, `PRAGMA synchronous`).Scan(&synchronous), conn.QueryRowContext(ctx, `PRAGMA busy_timeout`).Scan(&busy)); err != nil {
		return warnings, fmt.Errorf("the connection's settings cannot be read: %w", err)
	}
	if synchronous < 2 || busy <= 0 {
		return warnings, fmt.Errorf("the connection does not take the settings synchronous=FULL and busy_timeout (it has %d and %d); look at the driver's options", synchronous, busy)
	}

	version, err := schemaVersion(ctx, conn)
	if err != nil {
		return warnings, fmt.Errorf("the schema cannot be read: %w", err)
	}
	switch {
	case version != unversioned && version < latest():
		return warnings, fmt.Errorf("the schema has version %d and %d is needed; run sqlitestore.Migrate", version, latest())
	case version > latest():
		warnings = append(warnings, fmt.Sprintf("the schema has version %d and this program knows %d: a newer one has migrated the database", version, latest()))
	}
	if err := checkTable(ctx, conn); err != nil {
		return warnings, err
	}
	return warnings, checkSequence(ctx, conn)
}

func checkTable(ctx context.Context, conn *sql.Conn) error {
	rows, err := conn.QueryContext(ctx, `SELECT name, type, pk FROM pragma_table_info('idempotency_records')`)
	if err != nil {
		return fmt.Errorf("the schema cannot be read: %w", err)
	}
	defer rows.Close()
	have := make(map[string]string)
	var key []string
	for rows.Next() {
		var name, typ string
		var pk int
		if err := rows.Scan(&name, &typ, &pk); err != nil {
			return fmt.Errorf("the schema cannot be read: %w", err)
		}
		have[name] = strings.ToUpper(typ)
		if pk > 0 {
			key = append(key, name)
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("the schema cannot be read: %w", err)
	}
	if len(have) == 0 {
		return errors.New("the table idempotency_records does not exist; run sqlitestore.Migrate, or the steps of sqlitestore.Migrations")
	}
	var problems []string
	for name, typ := range columns {
		if have[name] != typ {
			problems = append(problems, fmt.Sprintf("it has no column %s of type %s", name, typ))
		}
	}
	slices.Sort(problems)
	if !slices.Equal(key, []string{"id"}) {
		problems = append(problems, "its primary key is not id alone, so nothing would decide who owns a key")
	}
	if len(problems) > 0 {
		return fmt.Errorf("the table idempotency_records is not the one of sqlitestore.Migrate: %s", strings.Join(problems, "; "))
	}
	return nil
}

// checkSequence demands the one row that the fences come from. What else may be wrong with it, the dry run finds out.
func checkSequence(ctx context.Context, conn *sql.Conn) error {
	var tables, rows int
	if err := conn.QueryRowContext(ctx, `SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'idempotency_sequence'`).Scan(&tables); err != nil {
		return fmt.Errorf("the schema cannot be read: %w", err)
	}
	if tables == 0 {
		return errors.New("the table idempotency_sequence does not exist; run sqlitestore.Migrate, or the steps of sqlitestore.Migrations")
	}
	if err := conn.QueryRowContext(ctx, `SELECT count(*) FROM idempotency_sequence`).Scan(&rows); err != nil {
		return fmt.Errorf("the table idempotency_sequence cannot be read: %w", err)
	}
	if rows != 1 {
		return fmt.Errorf("the table idempotency_sequence has %d rows and must have one, which sqlitestore.Migrate makes", rows)
	}
	return nil
}

// dryRun goes the way of an Atomic attempt and of a Leased one, up to their COMMIT, and rolls back.
func (s *Store) dryRun(ctx context.Context) error {
	scope := idempotency.Scope{Client: "tekil", Operation: "check", Key: "check-" + rand.Text()}
	c := idempotency.Claim{ID: scope.ID(), Scope: scope}
	done := idempotency.Completion{Result: []byte("null"), ResultType: "check"}
	at, err := s.Begin(ctx, c)
	if err != nil {
		return fmt.Errorf("an attempt cannot be begun; is the file writable, and does nobody hold its write lock? %w", err)
	}
	defer at.Rollback(ctx)
	if err := at.(*attempt).put(ctx, &at.(*attempt).session, done); err != nil {
		return fmt.Errorf("a record cannot be written; is the file writable? %w", err)
	}
	at.Rollback(ctx)

	l := &lease{store: s, claim: c}
	if l.st, err = patiently(ctx, s, s.leasing); err != nil {
		return fmt.Errorf("a key cannot be claimed: %w", err)
	}
	in := new(session)
	defer in.close()
	if err = in.open(ctx, s); err == nil {
		_, err = l.take(ctx, in)
	}
	if err == nil {
		err = l.put(ctx, in, done)
	}
	if err != nil {
		return fmt.Errorf("a key cannot be claimed: %w", err)
	}
	return nil
}
