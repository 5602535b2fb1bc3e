package main

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore/pgtest"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
)

func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.DiscardHandler)) // the edge's own lines
	goleak.VerifyTestMain(m)
}

// patience bounds what a test waits for. It is reached only where something is wrong.
const patience = 60 * time.Second

// within gives a context for what must not take longer than patience.
func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// buffer is a bytes.Buffer for several goroutines.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// database is a fresh one for a test, of either kind.
type database struct {
	path     string           // of the SQLite file
	postgres *pgtest.Database // nil for SQLite
}

// both runs a test on both kinds.
func both(t *testing.T, f func(*testing.T, *database)) {
	t.Helper()
	t.Run("SQLite", func(t *testing.T) {
		t.Parallel()
		f(t, sqliteDatabase(t))
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		t.Parallel()
		f(t, &database{postgres: pgtest.Open(t)})
	})
}

func sqliteDatabase(t *testing.T) *database {
	return &database{path: filepath.Join(t.TempDir(), "workorders.db")}
}

// flags are those by which the program uses the database.
func (d *database) flags() []string {
	if d.postgres == nil {
		return []string{"-sqlite", d.path}
	}
	return []string{"-postgres", d.postgres.URL()}
}

// open opens the database as the program does, until the end of the test.
func (d *database) open(t *testing.T) (store, idempotency.Store) {
	t.Helper()
	kept, records, closeStore, _, err := settings{sqlite: d.path, postgres: d.url()}.open(within(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(closeStore)
	return kept, records
}

func (d *database) url() string {
	if d.postgres == nil {
		return ""
	}
	return d.postgres.URL()
}

// sqlite opens the file for a moment.
func (d *database) sqlite(t *testing.T, work func(*sql.DB) error) {
	t.Helper()
	db, err := sql.Open("sqlite", (&url.URL{Scheme: "file", Path: d.path, RawQuery: "_pragma=busy_timeout(20000)"}).String())
	if err == nil {
		err = errors.Join(work(db), db.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// text gives the one value that query asks for, as a text.
func (d *database) text(t *testing.T, query string) (s string) {
	t.Helper()
	query = `SELECT CAST((` + query + `) AS text)`
	if d.postgres == nil {
		d.sqlite(t, func(db *sql.DB) error { return db.QueryRowContext(within(t), query).Scan(&s) })
		return s
	}
	if err := d.postgres.Pool().QueryRow(within(t), query).Scan(&s); err != nil {
		t.Fatal(err)
	}
	return s
}

// exec runs a statement.
func (d *database) exec(t *testing.T, statement string) {
	t.Helper()
	if d.postgres == nil {
		d.sqlite(t, func(db *sql.DB) error {
			_, err := db.ExecContext(within(t), statement)
			return err
		})
		return
	}
	if _, err := d.postgres.Pool().Exec(within(t), statement); err != nil {
		t.Fatal(err)
	}
}

// expireRecords moves the retention of all records into the past, as time would.
func (d *database) expireRecords(t *testing.T) {
	t.Helper()
	past := `clock_timestamp() - interval '1 second'`
	if d.postgres == nil {
		past = `1`
	}
	d.exec(t, `UPDATE idempotency_records SET expires_at = `+past)
}

// rows are how many the tables hold that an import writes.
type rows struct{ orders, lines, archive, records string }

func (d *database) rows(t *testing.T) rows {
	t.Helper()
	count := func(table string) string { return d.text(t, `SELECT count(*) FROM `+table) }
	return rows{count("work_orders"), count("work_order_lines"), count("inbound_archive"), count("idempotency_records")}
}

// holds demands numbers of rows: work orders, lines, rows of the archive, records.
func (d *database) holds(t *testing.T, orders, lines, archive, records string) {
	t.Helper()
	if got, want := d.rows(t), (rows{orders, lines, archive, records}); got != want {
		t.Errorf("there are %+v, want %+v", got, want)
	}
}

// site is the service without its routes, on a database.
type site struct {
	*database
	inbound
	bus *bus.Bus
}

// defaults are the settings of a program that nobody has configured.
var defaults = settings{enabled: true, required: true, lease: defaultLease, retention: defaultRetention}

// serve runs the service on d until the end of the test.
func serve(t *testing.T, d *database, s settings) *site {
	t.Helper()
	kept, records := d.open(t)
	b, err := newBus(kept, records, zap.NewNop(), s)
	if err != nil {
		t.Fatal(err)
	}
	return &site{d, inbound{kept: kept}, b}
}

// attempt is what came of a dispatch.
type attempt struct {
	Imported
	requestctx.Outcome
	id  string
	err error
}

// replayOf demands that a is a replay of the attempt with an id.
func (a attempt) replayOf(t *testing.T, id string) {
	t.Helper()
	if !a.Replayed || a.OriginalRequestID != id {
		t.Errorf("replayed %v, of %q; want a replay of %q (%v)", a.Replayed, a.OriginalRequestID, id, a.err)
	}
}

// send dispatches an import as an edge does that has resolved its tenant. An empty key is none.
func (s *site) send(ctx context.Context, key string, cmd Import) attempt {
	ctx, req, err := s.request(ctx, key, cmd)
	if err != nil {
		return attempt{err: err}
	}
	done, err := bus.Send(ctx, s.bus, cmd)
	return attempt{done, req.Outcome(), req.ID(), err}
}

// sendAsNew is send where idempotency is switched off.
func (s *site) sendAsNew(ctx context.Context, key string, cmd Import) attempt {
	ctx, req, err := s.request(ctx, key, cmd)
	if err != nil {
		return attempt{err: err}
	}
	done, err := bus.Send(ctx, s.bus, ImportAsNew(cmd))
	return attempt{done, req.Outcome(), req.ID(), err}
}

func (s *site) request(ctx context.Context, key string, cmd Import) (context.Context, *requestctx.Request, error) {
	tenant, _, err := s.kept.resolve(ctx, cmd.CompanyCode, cmd.OrganizationCode)
	if err != nil {
		return ctx, nil, err
	}
	v := requestctx.Values{Scope: requestctx.Scope{Client: "erp", Tenant: tenant}, Source: "POST " + importPath}
	if key != "" {
		if v.Key, err = requestctx.ParseKey(key); err != nil {
			return ctx, nil, err
		}
	}
	ctx, req := requestctx.New(ctx, v)
	req.Add(formatAttribute, "json")
	req.SetBodySHA256("5e884898da28047151d0e56f8dc6292773603d0d6aabbdd62a11ef721d1542d8")
	return ctx, req, nil
}

// imported is send for an import that has to be processed.
func (s *site) imported(t *testing.T, key string, cmd Import) attempt {
	t.Helper()
	a := s.send(within(t), key, cmd)
	if a.err != nil {
		t.Fatal(a.err)
	}
	return a
}

// sample is testdata/sample.json, decoded.
func sample(t *testing.T) Import {
	t.Helper()
	data, err := os.ReadFile("testdata/sample.json")
	if err != nil {
		t.Fatal(err)
	}
	return decode(t, string(data))
}

func decode(t *testing.T, body string) (cmd Import) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader([]byte(body)))
	d.DisallowUnknownFields()
	if err := d.Decode(&cmd); err != nil {
		t.Fatal(err)
	}
	return cmd
}

// day is a Date of a text that is one.
func day(s string) (d Date) {
	if err := d.UnmarshalText([]byte(s)); err != nil {
		panic(err)
	}
	return d
}

// small is an import of work orders of one line each for a project.
func small(project string, numbers ...string) Import {
	p := Project{ProjectCode: project}
	for _, number := range numbers {
		p.WorkOrders = append(p.WorkOrders, WorkOrder{
			WorkOrderNumber: number, Description: "Boru döşeme", PlannedStart: day("2026-12-07"), PlannedEnd: day("2026-12-18"),
			Lines: []Line{{LineNumber: 1, ItemCode: "PIPE-DN20", Quantity: 12_500_000, Unit: "m"}},
		})
	}
	return Import{CompanyCode: "TEKIL-TR", OrganizationCode: "IST-01", Projects: []Project{p}}
}

// joined is an import of the projects of several.
func joined(imports ...Import) Import {
	all := imports[0]
	for _, one := range imports[1:] {
		all.Projects = append(slices.Clone(all.Projects), one.Projects...)
	}
	return all
}
