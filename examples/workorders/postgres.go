package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore"
)

const postgresSchema = `
CREATE TABLE IF NOT EXISTS companies (
	company_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, company_code text NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS organizations (
	organization_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, company_id bigint NOT NULL REFERENCES companies,
	organization_code text NOT NULL, UNIQUE (company_id, organization_code));
CREATE TABLE IF NOT EXISTS projects (
	project_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, organization_id bigint NOT NULL REFERENCES organizations,
	project_code text NOT NULL, state text NOT NULL CHECK (state IN ('open', 'closed')), UNIQUE (organization_id, project_code));
CREATE TABLE IF NOT EXISTS work_orders (
	work_order_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, organization_id bigint NOT NULL REFERENCES organizations,
	project_id bigint NOT NULL REFERENCES projects, work_order_number text NOT NULL, description text NOT NULL,
	planned_start date NOT NULL, planned_end date NOT NULL, request_id text NOT NULL, UNIQUE (organization_id, work_order_number));
CREATE INDEX IF NOT EXISTS work_orders_of_organization ON work_orders (organization_id, work_order_id);
CREATE TABLE IF NOT EXISTS work_order_lines (
	work_order_id bigint NOT NULL REFERENCES work_orders, line_number integer NOT NULL, item_code text NOT NULL, description text NOT NULL,
	quantity numeric(18,6) NOT NULL, unit text NOT NULL, PRIMARY KEY (work_order_id, line_number));
CREATE TABLE IF NOT EXISTS inbound_archive (
	request_id text PRIMARY KEY, raw_body_sha256 text NOT NULL, format text NOT NULL, client text NOT NULL,
	organization_id bigint NOT NULL REFERENCES organizations, received_at timestamptz NOT NULL);`

// postgres keeps work orders in PostgreSQL.
type postgres struct{ pool *pgxpool.Pool }

// openPostgres connects, makes the tables and gives the store of records on the same pool.
func openPostgres(ctx context.Context, url string) (store, idempotency.Store, func(), error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("-postgres: %w", err)
	}
	pgstore.Configure(cfg)
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("-postgres: %w", err)
	}
	err = pgstore.Migrate(ctx, pool)
	if err == nil {
		// Two servers may start at once, and CREATE TABLE IF NOT EXISTS does not wait for the other: a lock does.
		err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended('workorders schema', 0))`); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, postgresSchema+seeds)
			return err
		})
	}
	if err == nil {
		_, err = postgres{pool}.list(ctx, 0, 0, 0) // a table of that name may be another program's
	}
	if err != nil {
		pool.Close()
		return nil, nil, nil, fmt.Errorf("-postgres: %w", err)
	}
	return postgres{pool}, pgstore.New(pool), pool.Close, nil
}

func (p postgres) inTx(ctx context.Context, fn func(ctx context.Context) error) error {
	return pgstore.InTx(ctx, p.pool, fn)
}

// resolveQuery gives a company with one of its organisations, or without one.
const resolveQuery = `SELECT c.company_id, coalesce(o.organization_id, 0) FROM companies c
	LEFT JOIN organizations o ON o.company_id = c.company_id AND o.organization_code = $2 WHERE c.company_code = $1`

func (p postgres) resolve(ctx context.Context, companyCode, organizationCode string) (tenant string, organizationID int64, err error) {
	var companyID int64
	err = pgstore.DB(ctx, p.pool).QueryRow(ctx, resolveQuery, companyCode, organizationCode).Scan(&companyID, &organizationID)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", 0, errCompany
	}
	return tenantOf(companyID, organizationID, err)
}

// tenantOf ends a resolve whose company was found, unless reading has failed.
func tenantOf(companyID, organizationID int64, err error) (string, int64, error) {
	switch {
	case err != nil:
		return "", 0, err
	case organizationID == 0:
		return "", 0, errOrganization
	}
	return fmt.Sprintf("%d/%d", companyID, organizationID), organizationID, nil
}

func (p postgres) projects(ctx context.Context, organizationID int64, codes []string) (map[string]project, error) {
	rows, err := pgstore.DB(ctx, p.pool).Query(ctx,
		`SELECT project_code, project_id, state = 'open' FROM projects WHERE organization_id = $1 AND project_code = ANY ($2)`, organizationID, codes)
	if err != nil {
		return nil, err
	}
	found := make(map[string]project, len(codes))
	var code string
	var pr project
	_, err = pgx.ForEachRow(rows, []any{&code, &pr.id, &pr.open}, func() error {
		found[code] = pr
		return nil
	})
	return found, err
}

// insert sends two statements, however many rows there are. The numbers are written in one order by everybody, so that two imports of
// the same work orders wait for one another and do not lock each other out.
func (p postgres) insert(ctx context.Context, organizationID int64, requestID string, orders []newOrder) (map[string]int64, error) {
	var (
		projects                             = make([]int64, len(orders))
		numbers, descriptions, starts, until = make([]string, len(orders)), make([]string, len(orders)), make([]string, len(orders)), make([]string, len(orders))
	)
	for i, o := range orders {
		projects[i], numbers[i], descriptions[i] = o.projectID, o.WorkOrderNumber, o.Description
		starts[i], until[i] = o.PlannedStart.String(), o.PlannedEnd.String()
	}
	db := pgstore.DB(ctx, p.pool)
	inserted, err := idsByNumber(db.Query(ctx, `INSERT INTO work_orders
		(organization_id, project_id, work_order_number, description, planned_start, planned_end, request_id)
		SELECT $1, n.project_id, n.work_order_number, n.description, n.planned_start::date, n.planned_end::date, $2
		FROM unnest($3::bigint[], $4::text[], $5::text[], $6::text[], $7::text[])
			AS n (project_id, work_order_number, description, planned_start, planned_end)
		ORDER BY n.work_order_number
		ON CONFLICT (organization_id, work_order_number) DO NOTHING RETURNING work_order_number, work_order_id`,
		organizationID, requestID, projects, numbers, descriptions, starts, until))
	if err != nil || len(inserted) == 0 {
		return inserted, err
	}
	var (
		ids, lines                             []int64
		items, itemDescriptions, amount, units []string
	)
	for _, o := range orders {
		id, ok := inserted[o.WorkOrderNumber]
		if !ok {
			continue
		}
		for _, l := range o.Lines {
			ids, lines, items = append(ids, id), append(lines, int64(l.LineNumber)), append(items, l.ItemCode)
			itemDescriptions, amount, units = append(itemDescriptions, l.Description), append(amount, l.Quantity.String()), append(units, l.Unit)
		}
	}
	_, err = db.Exec(ctx, `INSERT INTO work_order_lines (work_order_id, line_number, item_code, description, quantity, unit)
		SELECT n.work_order_id, n.line_number, n.item_code, n.description, n.quantity::numeric, n.unit
		FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::text[])
			AS n (work_order_id, line_number, item_code, description, quantity, unit)`,
		ids, lines, items, itemDescriptions, amount, units)
	return inserted, err
}

func idsByNumber(rows pgx.Rows, err error) (map[string]int64, error) {
	if err != nil {
		return nil, err
	}
	ids := map[string]int64{}
	var number string
	var id int64
	_, err = pgx.ForEachRow(rows, []any{&number, &id}, func() error {
		ids[number] = id
		return nil
	})
	return ids, err
}

func (p postgres) find(ctx context.Context, organizationID int64, numbers []string) (map[string]int64, error) {
	return idsByNumber(pgstore.DB(ctx, p.pool).Query(ctx,
		`SELECT work_order_number, work_order_id FROM work_orders WHERE organization_id = $1 AND work_order_number = ANY ($2)`, organizationID, numbers))
}

func (p postgres) archive(ctx context.Context, a archived) error {
	_, err := pgstore.DB(ctx, p.pool).Exec(ctx, `INSERT INTO inbound_archive
		(request_id, raw_body_sha256, format, client, organization_id, received_at) VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (request_id) DO NOTHING`,
		a.requestID, a.bodySHA256, a.format, a.client, a.organizationID, a.receivedAt)
	return err
}

func (p postgres) list(ctx context.Context, organizationID int64, limit int, before int64) ([]StoredWorkOrder, error) {
	rows, err := pgstore.DB(ctx, p.pool).Query(ctx, `SELECT w.work_order_id, w.work_order_number, p.project_code, w.description,
		to_char(w.planned_start, 'YYYY-MM-DD'), to_char(w.planned_end, 'YYYY-MM-DD'),
		(SELECT count(*) FROM work_order_lines l WHERE l.work_order_id = w.work_order_id), w.request_id
		FROM work_orders w JOIN projects p USING (project_id)
		WHERE w.organization_id = $1 AND ($2 = 0 OR w.work_order_id < $2) ORDER BY w.work_order_id DESC LIMIT $3`, organizationID, before, limit)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (StoredWorkOrder, error) { return scanWorkOrder(row) })
}

// scanWorkOrder reads a row of either database.
func scanWorkOrder(row interface{ Scan(...any) error }) (w StoredWorkOrder, err error) {
	err = row.Scan(&w.WorkOrderID, &w.WorkOrderNumber, &w.ProjectCode, &w.Description, &w.PlannedStart.text, &w.PlannedEnd.text, &w.Lines, &w.RequestID)
	return w, err
}

func (p postgres) ping(ctx context.Context) error { return p.pool.Ping(ctx) }
