package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"

	_ "modernc.org/sqlite" // the driver

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/sqlitestore"
)

const sqliteSchema = `
CREATE TABLE IF NOT EXISTS companies (
	company_id INTEGER PRIMARY KEY, company_code TEXT NOT NULL UNIQUE) STRICT;
CREATE TABLE IF NOT EXISTS organizations (
	organization_id INTEGER PRIMARY KEY, company_id INTEGER NOT NULL REFERENCES companies,
	organization_code TEXT NOT NULL, UNIQUE (company_id, organization_code)) STRICT;
CREATE TABLE IF NOT EXISTS projects (
	project_id INTEGER PRIMARY KEY, organization_id INTEGER NOT NULL REFERENCES organizations,
	project_code TEXT NOT NULL, state TEXT NOT NULL CHECK (state IN ('open', 'closed')), UNIQUE (organization_id, project_code)) STRICT;
CREATE TABLE IF NOT EXISTS work_orders (
	work_order_id INTEGER PRIMARY KEY, organization_id INTEGER NOT NULL REFERENCES organizations,
	project_id INTEGER NOT NULL REFERENCES projects, work_order_number TEXT NOT NULL, description TEXT NOT NULL,
	planned_start TEXT NOT NULL, planned_end TEXT NOT NULL, request_id TEXT NOT NULL, UNIQUE (organization_id, work_order_number)) STRICT;
CREATE INDEX IF NOT EXISTS work_orders_of_organization ON work_orders (organization_id, work_order_id);
CREATE TABLE IF NOT EXISTS work_order_lines (
	work_order_id INTEGER NOT NULL REFERENCES work_orders, line_number INTEGER NOT NULL, item_code TEXT NOT NULL, description TEXT NOT NULL,
	quantity TEXT NOT NULL, unit TEXT NOT NULL, PRIMARY KEY (work_order_id, line_number)) STRICT;
CREATE TABLE IF NOT EXISTS inbound_archive (
	request_id TEXT PRIMARY KEY, raw_body_sha256 TEXT NOT NULL, format TEXT NOT NULL, client TEXT NOT NULL,
	organization_id INTEGER NOT NULL REFERENCES organizations, received_at INTEGER NOT NULL) STRICT;`

// sqlite keeps work orders in an SQLite file.
type sqlite struct{ db *sql.DB }

// defaultFile is a file in a folder of this program's under the user's cache directory.
func defaultFile() (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("there is no cache directory for the default database (%w); name a file with -sqlite PATH", err)
	}
	return filepath.Join(dir, "tekil-workorders", "workorders.db"), nil
}

// openSQLite opens or makes the file and its tables and gives the store of records in the same file.
func openSQLite(ctx context.Context, path string) (store, idempotency.Store, func(), error) {
	db, err := openFile(path)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("-sqlite %s: %w", path, err)
	}
	err = sqlitestore.Migrate(ctx, db)
	if err == nil {
		_, err = db.ExecContext(ctx, sqliteSchema+seeds)
	}
	if err == nil {
		_, err = sqlite{db}.list(ctx, 0, 0, 0) // a table of that name may be another program's
	}
	if err != nil {
		db.Close()
		return nil, nil, nil, fmt.Errorf("-sqlite %s: %w", path, err)
	}
	return sqlite{db}, sqlitestore.New(db), func() { db.Close() }, nil
}

func openFile(path string) (*sql.DB, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	dsn := url.URL{Scheme: "file", Opaque: (&url.URL{Path: path}).EscapedPath(), RawQuery: url.Values{
		"_pragma": {"busy_timeout(5000)", "journal_mode(WAL)", "synchronous(FULL)", "foreign_keys(1)"},
	}.Encode()}
	return sql.Open("sqlite", dsn.String())
}

func (s sqlite) inTx(ctx context.Context, fn func(ctx context.Context) error) error {
	return sqlitestore.InTx(ctx, s.db, fn)
}

func (s sqlite) resolve(ctx context.Context, companyCode, organizationCode string) (tenant string, organizationID int64, err error) {
	var companyID int64
	err = sqlitestore.DB(ctx, s.db).QueryRowContext(ctx, resolveQuery, companyCode, organizationCode).Scan(&companyID, &organizationID)
	if errors.Is(err, sql.ErrNoRows) {
		return "", 0, errCompany
	}
	return tenantOf(companyID, organizationID, err)
}

// each runs a prepared query for each of some values, and reads the one row that it may give.
func (s sqlite) each(ctx context.Context, query string, organizationID int64, values []string, read func(value string, row *sql.Row) error) error {
	st, err := sqlitestore.DB(ctx, s.db).PrepareContext(ctx, query)
	if err != nil {
		return err
	}
	defer st.Close()
	for _, value := range values {
		if err := read(value, st.QueryRowContext(ctx, organizationID, value)); err != nil && !errors.Is(err, sql.ErrNoRows) {
			return err
		}
	}
	return nil
}

func (s sqlite) projects(ctx context.Context, organizationID int64, codes []string) (map[string]project, error) {
	found := make(map[string]project, len(codes))
	err := s.each(ctx, `SELECT project_id, state = 'open' FROM projects WHERE organization_id = ? AND project_code = ?`, organizationID, codes,
		func(code string, row *sql.Row) error {
			var p project
			err := row.Scan(&p.id, &p.open)
			if err == nil {
				found[code] = p
			}
			return err
		})
	return found, err
}

func (s sqlite) insert(ctx context.Context, organizationID int64, requestID string, orders []newOrder) (map[string]int64, error) {
	db := sqlitestore.DB(ctx, s.db)
	order, err := db.PrepareContext(ctx, `INSERT INTO work_orders
		(organization_id, project_id, work_order_number, description, planned_start, planned_end, request_id) VALUES (?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (organization_id, work_order_number) DO NOTHING RETURNING work_order_id`)
	if err != nil {
		return nil, err
	}
	defer order.Close()
	line, err := db.PrepareContext(ctx, `INSERT INTO work_order_lines (work_order_id, line_number, item_code, description, quantity, unit) VALUES (?, ?, ?, ?, ?, ?)`)
	if err != nil {
		return nil, err
	}
	defer line.Close()
	inserted := make(map[string]int64, len(orders))
	for _, o := range orders {
		var id int64
		err := order.QueryRowContext(ctx, organizationID, o.projectID, o.WorkOrderNumber, o.Description, o.PlannedStart.String(), o.PlannedEnd.String(), requestID).Scan(&id)
		if errors.Is(err, sql.ErrNoRows) {
			continue
		}
		if err != nil {
			return nil, err
		}
		inserted[o.WorkOrderNumber] = id
		for _, l := range o.Lines {
			if _, err := line.ExecContext(ctx, id, l.LineNumber, l.ItemCode, l.Description, l.Quantity.String(), l.Unit); err != nil {
				return nil, err
			}
		}
	}
	return inserted, nil
}

func (s sqlite) find(ctx context.Context, organizationID int64, numbers []string) (map[string]int64, error) {
	found := map[string]int64{}
	err := s.each(ctx, `SELECT work_order_id FROM work_orders WHERE organization_id = ? AND work_order_number = ?`, organizationID, numbers,
		func(number string, row *sql.Row) error {
			var id int64
			err := row.Scan(&id)
			if err == nil {
				found[number] = id
			}
			return err
		})
	return found, err
}

func (s sqlite) archive(ctx context.Context, a archived) error {
	_, err := sqlitestore.DB(ctx, s.db).ExecContext(ctx, `INSERT INTO inbound_archive
		(request_id, raw_body_sha256, format, client, organization_id, received_at) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (request_id) DO NOTHING`,
		a.requestID, a.bodySHA256, a.format, a.client, a.organizationID, a.receivedAt.UnixMilli())
	return err
}

func (s sqlite) list(ctx context.Context, organizationID int64, limit int, before int64) ([]StoredWorkOrder, error) {
	rows, err := sqlitestore.DB(ctx, s.db).QueryContext(ctx, `SELECT w.work_order_id, w.work_order_number, p.project_code, w.description,
		w.planned_start, w.planned_end, (SELECT count(*) FROM work_order_lines l WHERE l.work_order_id = w.work_order_id), w.request_id
		FROM work_orders w JOIN projects p USING (project_id)
		WHERE w.organization_id = ?1 AND (?2 = 0 OR w.work_order_id < ?2) ORDER BY w.work_order_id DESC LIMIT ?3`, organizationID, before, limit)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var found []StoredWorkOrder
	for rows.Next() {
		w, err := scanWorkOrder(rows)
		if err != nil {
			return nil, err
		}
		found = append(found, w)
	}
	return found, rows.Err()
}

func (s sqlite) ping(ctx context.Context) error { return s.db.PingContext(ctx) }
