package pgstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tekil-go/tekil/behaviors/idempotency"
)

// Configure puts the settings into cfg that make a dead or frozen process let go of its keys soon, unless cfg sets them:
// idle_in_transaction_session_timeout 60 s (a transaction whose process does not move any more is ended by the server) and
// client_connection_check_interval 2 s (a statement whose client has gone is given up). They travel with the connection's
// start and cost nothing later. Call it between pgxpool.ParseConfig and pgxpool.NewWithConfig. PgBouncer refuses connections with
// start parameters that it does not know; behind it, name the two in its ignore_startup_parameters and set them on the server.
func Configure(cfg *pgxpool.Config) {
	params := cfg.ConnConfig.RuntimeParams
	for name, value := range map[string]string{
		"idle_in_transaction_session_timeout": "60000",
		"client_connection_check_interval":    "2000",
	} {
		if _, ok := params[name]; !ok {
			params[name] = value
		}
	}
}

// minVersion is the oldest server: client_connection_check_interval came with 14.
const minVersion = 140000

// columns are those of the table, with their types.
var columns = map[string]string{
	"id": "uuid", "tenant": "text", "client": "text", "operation": "text", "key": "text", "request_hash": "bytea", "hash_version": "int2",
	"state": "text", "after_expiry": "text", "attempt": "uuid", "attempts": "int4", "fence": "int8", "lease_until": "timestamptz", "outcome": "int2",
	"result": "bytea", "result_type": "text", "origin_request_id": "text", "external_ref": "text", "draft_id": "text", "origin_trace": "text", "created_at": "timestamptz",
	"completed_at": "timestamptz", "expires_at": "timestamptz",
}

// Check refuses a server or a schema with which the promises would not hold: a replica or a read-only session, a commit that
// does not wait for the disk, a table that is missing, unlogged, of another shape, with hidden rows or without its unique key, a
// sequence of fences that is missing, elsewhere or does not rise, missing rights, a pooler that does not keep a transaction on
// one connection, and one that shares sessions where the query mode of the pool needs its own (PgBouncer in transaction mode: use
// default_query_exec_mode=exec). It reports all of them, joined. Settings that only make a dead process hold its keys longer are warnings;
// [Configure] sets them. So is a missing right to remove records: a purge can be run by another role.
func (s *Store) Check(ctx context.Context) (warnings []string, err error) {
	if s.pool == nil {
		return nil, errors.New("pgstore: the pool is nil; give New a *pgxpool.Pool")
	}
	if s.cfg.LockTimeout < 0 {
		return nil, errors.New("pgstore: Config.LockTimeout is negative")
	}
	c := checker{ctx: ctx, s: s}
	c.server()
	if c.fatal == nil {
		c.pooler()
	}
	if c.fatal == nil {
		c.schema()
	}
	if c.fatal == nil && len(c.problems) == 0 {
		c.dryRun()
	}
	return c.warnings, errors.Join(append(c.problems, c.fatal)...)
}

type checker struct {
	ctx      context.Context
	s        *Store
	warnings []string
	problems []error
	fatal    error // the server could not be asked
	pooled   bool  // a pooler stands between this process and the server
}

func (c *checker) bad(format string, args ...any) {
	c.problems = append(c.problems, fmt.Errorf("pgstore: "+format, args...))
}

func (c *checker) server() {
	conn, err := c.s.pool.Acquire(c.ctx)
	if err != nil {
		hint := ""
		if strings.Contains(err.Error(), "unsupported startup parameter") {
			hint = " (a pooler refuses start parameters that it does not know: name them in its ignore_startup_parameters, and set them on the server with ALTER ROLE … SET)"
		}
		c.fatal = fmt.Errorf("pgstore: the server cannot be asked%s: %w", hint, err)
		return
	}
	defer conn.Release()
	var version int
	var session uint32
	var replica bool
	var readOnly, syncCommit, idle, clientCheck string
	if err := conn.QueryRow(c.ctx, `SELECT current_setting('server_version_num')::int, pg_backend_pid(), pg_is_in_recovery(), current_setting('transaction_read_only'),
		current_setting('synchronous_commit'), current_setting('idle_in_transaction_session_timeout'), coalesce(current_setting('client_connection_check_interval', true), '')`, pgx.QueryExecModeSimpleProtocol).
		Scan(&version, &session, &replica, &readOnly, &syncCommit, &idle, &clientCheck); err != nil {
		c.fatal = fmt.Errorf("pgstore: the server cannot be asked: %w", err)
		return
	}
	c.pooled = session != conn.Conn().PgConn().PID() // a pooler tells its clients a number of its own
	if version < minVersion {
		c.bad("the server is version %d; %d or newer is needed", version/10000, minVersion/10000)
	}
	switch {
	case replica:
		c.bad("the server is a replica in recovery and takes no writes; connect to the primary")
	case readOnly == "on":
		c.bad("the session is read-only (transaction_read_only is on); connect with a role and settings that may write")
	}
	if syncCommit == "off" {
		c.bad("synchronous_commit is off: a crash of the server would forget commits that were acknowledged, and their keys with them; set it to on, local or stricter")
	}
	how := "call pgstore.Configure on the pool's configuration"
	if c.pooled {
		how = "behind a pooler set it on the server, for example with ALTER ROLE … SET"
	}
	if idle == "0" {
		c.warnings = append(c.warnings, "idle_in_transaction_session_timeout is off: a frozen process keeps its key until its connection breaks; "+how)
	}
	if clientCheck == "0" {
		c.warnings = append(c.warnings, "client_connection_check_interval is off: the statement of a client that has gone runs on; "+how)
	}
}

// Bounds of the search for a pooler that shares sessions.
const (
	// sharingRounds is how often two connections look at which session they are in. On a pooler where nothing else happens they meet at
	// once, on a busy one the more sessions there are the later.
	sharingRounds = 10
	// sharingTime bounds it: a pooler in session mode that has one session left gives it to one of the two connections alone.
	sharingTime = 3 * time.Second
)

// pooler refuses a query mode that needs a session of its own where a pooler lends the same session to several connections, as
// PgBouncer does in transaction mode. There the mode cache_statement executes statements that another session has prepared. The
// mode describe_exec sends the parameters of a statement in a turn of their own, which may come to a session in which meanwhile
// somebody else has put another statement in that place: that one is executed.
func (c *checker) pooler() {
	mode := c.s.pool.Config().ConnConfig.DefaultQueryExecMode
	if !c.pooled || mode != pgx.QueryExecModeCacheStatement && mode != pgx.QueryExecModeDescribeExec {
		return
	}
	ctx, cancel := context.WithTimeout(c.ctx, sharingTime)
	defer cancel()
	one, err := c.s.pool.Acquire(ctx)
	if err != nil {
		return
	}
	defer one.Release()
	if !c.shared(ctx, one) {
		return
	}
	named, err := handedThrough(ctx, one)
	if err != nil || mode == pgx.QueryExecModeCacheStatement && !named { // an error may mean that there are no transactions, which the dry run says
		return
	}
	// What else is asked would go wrong in the same way.
	c.fatal = fmt.Errorf("pgstore: a pooler lends one session to several connections (PgBouncer in transaction mode), and with default_query_exec_mode=%s statements "+
		"would fail there or be mistaken for others; set default_query_exec_mode=exec in the connection string, or DefaultQueryExecMode in the pool's configuration",
		strings.ReplaceAll(mode.String(), " ", "_"))
}

// shared reports whether two connections that are open at once have been in the same session of the server.
func (c *checker) shared(ctx context.Context, one *pgxpool.Conn) bool {
	if c.s.pool.Config().MaxConns < 2 {
		return false // nobody can tell
	}
	other, err := c.s.pool.Acquire(ctx)
	if err != nil {
		return false
	}
	defer other.Release()
	seen := [2]map[uint32]bool{{}, {}}
	for i := range 2 * sharingRounds {
		conn := [2]*pgxpool.Conn{one, other}[i%2]
		session, err := sessionOf(ctx, conn)
		if err != nil {
			return false
		}
		if seen[(i+1)%2][session] {
			return true
		}
		seen[i%2][session] = true
	}
	return false
}

// sessionOf is the process id of the server's session that conn's next statement meets.
func sessionOf(ctx context.Context, conn *pgxpool.Conn) (id uint32, err error) {
	err = conn.QueryRow(ctx, `SELECT pg_backend_pid()`, pgx.QueryExecModeSimpleProtocol).Scan(&id)
	return id, err
}

// handedThrough reports whether the name of a prepared statement is the same in the server's session. A pooler that keeps count of
// prepared statements itself (PgBouncer from 1.21 with max_prepared_statements) gives them names of its own there.
func handedThrough(ctx context.Context, conn *pgxpool.Conn) (through bool, err error) {
	name := "tekil_check_" + rand.Text()
	tx, err := conn.Begin(ctx)
	if err != nil {
		return false, err
	}
	defer tx.Rollback(ctx) //nolint:errcheck // there is nothing to undo
	if _, err := tx.Prepare(ctx, name, `SELECT 1`); err != nil {
		return false, err
	}
	err = tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_prepared_statements WHERE name = $1)`, pgx.QueryExecModeSimpleProtocol, name).Scan(&through)
	_ = conn.Conn().Deallocate(ctx, name)
	return through, err
}

func (c *checker) schema() {
	table := c.s.table()
	var oid *uint32
	if err := c.s.pool.QueryRow(c.ctx, `SELECT to_regclass($1)::oid`, table).Scan(&oid); err != nil {
		c.fatal = fmt.Errorf("pgstore: the schema cannot be read: %w", err)
		return
	}
	if oid == nil {
		c.bad("the table %s does not exist; run pgstore.Migrate, or the steps of pgstore.Migrations, with the same schema", table)
		return
	}
	var kind, persistence string
	var unique, may, mayDelete, hidden bool
	err := c.s.pool.QueryRow(c.ctx, `SELECT relkind::text, relpersistence::text,
		EXISTS (SELECT FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
			WHERE i.indrelid = c.oid AND i.indisunique AND i.indimmediate AND i.indisvalid AND i.indnkeyatts = 1 AND i.indpred IS NULL AND a.attname = 'id'),
		has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT') AND has_table_privilege(c.oid, 'UPDATE'),
		has_table_privilege(c.oid, 'DELETE'), row_security_active(c.oid)
		FROM pg_class c WHERE c.oid = $1`, *oid).Scan(&kind, &persistence, &unique, &may, &mayDelete, &hidden)
	if err != nil {
		c.fatal = fmt.Errorf("pgstore: the schema cannot be read: %w", err)
		return
	}
	if kind != "r" {
		c.bad("%s is not an ordinary table (kind %q); a view or a partitioned table cannot guard the key", table, kind)
	}
	if persistence != "p" {
		c.bad("%s is unlogged or temporary: it is empty after a crash; ALTER TABLE %s SET LOGGED", table, table)
	}
	if !unique {
		c.bad("%s has no unique index on id alone, so nothing would decide who owns a key; run pgstore.Migrate", table)
	}
	if !may {
		c.bad("this role may not SELECT, INSERT and UPDATE %s; grant it", table)
	}
	if !mayDelete {
		c.warnings = append(c.warnings, fmt.Sprintf("this role may not DELETE from %s, so it cannot purge expired records; grant it, or purge with a role that may", table))
	}
	if hidden {
		c.bad("row-level security hides rows of %s from this role, and a key that is hidden counts as new; use a role that sees all of them", table)
	}
	c.columns(table, *oid)
	c.sequence(*oid)
}

// sequence looks at where the fences of Leased claims come from.
func (c *checker) sequence(table uint32) {
	name := c.s.sequence()
	var beside, may, logged, rises bool
	err := c.s.pool.QueryRow(c.ctx, `SELECT q.relnamespace = t.relnamespace, has_sequence_privilege(q.oid, 'USAGE'), q.relpersistence = 'p',
		s.seqincrement > 0 AND s.seqcache = 1 AND NOT s.seqcycle
		FROM pg_class q JOIN pg_sequence s ON s.seqrelid = q.oid, pg_class t WHERE q.oid = to_regclass($1) AND t.oid = $2`, name, table).
		Scan(&beside, &may, &logged, &rises)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		c.bad("the sequence %s does not exist; run pgstore.Migrate, or the steps of pgstore.Migrations, with the same schema", name)
		return
	case err != nil:
		c.fatal = fmt.Errorf("pgstore: the schema cannot be read: %w", err)
		return
	}
	if !beside {
		c.bad("the sequence %s is found in another schema than the table %s; set Config.Schema", name, c.s.table())
	}
	if !may {
		c.bad("this role has no right of USAGE on the sequence %s; grant it", name)
	}
	if !logged {
		c.bad("the sequence %s is unlogged or temporary: it begins anew after a crash; ALTER SEQUENCE %s SET LOGGED", name, name)
	}
	if !rises {
		c.bad("the sequence %s does not give every caller a larger number than all before; ALTER SEQUENCE %s INCREMENT 1 CACHE 1 NO CYCLE", name, name)
	}
}

func (c *checker) columns(table string, oid uint32) {
	rows, err := c.s.pool.Query(c.ctx, `SELECT a.attname, t.typname, coalesce(l.collname, '') FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
		LEFT JOIN pg_collation l ON l.oid = a.attcollation WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped`, oid)
	if err != nil {
		c.fatal = fmt.Errorf("pgstore: the schema cannot be read: %w", err)
		return
	}
	have := make(map[string]string)
	var name, typ, collation string
	for rows.Next() {
		if err := rows.Scan(&name, &typ, &collation); err != nil {
			break
		}
		have[name] = typ
		switch name {
		case "tenant", "client", "operation", "key":
			if collation != "C" {
				c.bad("%s.%s has the collation %q and not \"C\": keys that differ could count as equal; run pgstore.Migrate on a fresh table", table, name, collation)
			}
		}
	}
	if err := rows.Err(); err != nil {
		c.fatal = fmt.Errorf("pgstore: the schema cannot be read: %w", err)
		return
	}
	for column, typ := range columns {
		if have[column] != typ {
			c.bad("%s has no column %s of type %s; run pgstore.Migrate", table, column, typ)
		}
	}
}

// dryRun goes the way of an attempt and rolls back, which a pooler in statement mode cannot do.
func (c *checker) dryRun() {
	ctx, cancel := context.WithTimeout(c.ctx, 10*time.Second)
	defer cancel()
	scope := idempotency.Scope{Client: "tekil", Operation: "check", Key: "check-" + strconv.FormatInt(time.Now().UnixNano(), 36)}
	at, err := c.s.Begin(ctx, idempotency.Claim{ID: scope.ID(), Scope: scope})
	if err != nil {
		hint := ""
		if strings.Contains(err.Error(), "statement pooling") || strings.Contains(err.Error(), "transaction blocks not allowed") {
			hint = " (a pooler in statement mode cannot be used; transaction mode can)"
		}
		c.bad("an attempt cannot be begun%s: %w", hint, err)
		return
	}
	defer at.Rollback(ctx)
	var inside bool
	if err := DB(at.Context(ctx), c.s.pool).QueryRow(ctx, `SELECT now() = $1`, at.(*attempt).started).Scan(&inside); err != nil {
		c.bad("a statement in the transaction of an attempt failed: %w", err)
	} else if !inside {
		c.bad("the statements of one transaction do not reach the same server session; a pooler in statement mode cannot be used, transaction mode can")
	}
}
