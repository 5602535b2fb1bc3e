package main

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore/pgtest"
	"github.com/tekil-go/tekil/behaviors/validation"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
)

func TestAnImportTwiceIsOneImport_R02(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		s := serve(t, d, defaults)
		first := s.imported(t, "import-0001", sample(t))
		if first.Created != 3 || first.Existing != 0 || first.State != requestctx.StateExecuted {
			t.Errorf("%+v", first)
		}
		d.holds(t, "3", "6", "1", "1")
		second := s.imported(t, "import-0001", sample(t))
		second.replayOf(t, first.id)
		if !reflect.DeepEqual(second.Imported, first.Imported) {
			t.Errorf("the replay says %+v, the first attempt %+v", second.Imported, first.Imported)
		}
		d.holds(t, "3", "6", "1", "1")

		// What was written is what was sent.
		if got := d.text(t, `SELECT quantity FROM work_order_lines WHERE item_code = 'INS-50'`); strings.TrimRight(got, "0") != "37.25" {
			t.Errorf("the quantity is %s", got)
		}
		if got := d.text(t, `SELECT description FROM work_orders WHERE work_order_number = 'WO-2026-0001'`); got != sample(t).Projects[0].WorkOrders[0].Description {
			t.Errorf("the description is %s", got)
		}
		// The archive holds the attempt that did the work, as the record does.
		if got := d.text(t, `SELECT request_id || ' ' || format || ' ' || client || ' ' || raw_body_sha256 FROM inbound_archive`); got !=
			first.id+" json erp 5e884898da28047151d0e56f8dc6292773603d0d6aabbdd62a11ef721d1542d8" {
			t.Errorf("the archive holds %s", got)
		}
		if got := d.text(t, `SELECT count(*) FROM inbound_archive a JOIN idempotency_records r ON r.origin_request_id = a.request_id
			JOIN work_orders w ON w.request_id = a.request_id AND w.organization_id = a.organization_id`); got != "3" {
			t.Errorf("%s work orders are joined with their archive and record", got)
		}
	})
}

func TestF01F06_EqualDocumentsAreOneImport(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		s := serve(t, d, defaults)
		body := func(quantity string) string {
			return `{"company_code":"TEKIL-TR","organization_code":"IST-01","projects":[{"project_code":"PRJ-1001","work_orders":[{
				"work_order_number":"WO-1","planned_start":"2026-12-07","planned_end":"2026-12-18","description":"",
				"lines":[{"line_number":1,"item_code":"PIPE","quantity":` + quantity + `,"unit":"m"}]}]}]}`
		}
		first := s.imported(t, "import-0001", decode(t, body("12.5")))
		for _, same := range []string{`12.50`, `"12.5"`, `"12.500000"`, `12.5`} {
			s.imported(t, "import-0001", decode(t, body(same))).replayOf(t, first.id)
		}
		for _, other := range []string{`12.500001`, `125`, `12`, `"12.49"`} {
			a := s.send(within(t), "import-0001", decode(t, body(other)))
			var conflict *idempotency.ConflictError
			if !errors.As(a.err, &conflict) {
				t.Errorf("%s: %v %v, want a conflict", other, a.State, a.err)
			}
		}
		moved := decode(t, body("12.5"))
		moved.Projects[0].WorkOrders[0].PlannedEnd = day("2026-12-19")
		if a := s.send(within(t), "import-0001", moved); a.State != requestctx.StateConflict {
			t.Errorf("another day: %v %v, want a conflict", a.State, a.err)
		}
		d.holds(t, "1", "1", "1", "1")
	})
}

// A work order that is there is found by its number and left as it is, whatever has become of the record of its request (rule rec-11).
func TestTheNaturalKeyHoldsWithoutTheRecord_T02(t *testing.T) {
	t.Parallel()
	for name, forget := range map[string]func(*database, *testing.T){
		"erased":  func(d *database, t *testing.T) { d.exec(t, `DELETE FROM idempotency_records`) },
		"expired": (*database).expireRecords,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			both(t, func(t *testing.T, d *database) {
				s := serve(t, d, defaults)
				first := s.imported(t, "import-0001", sample(t))
				written := d.text(t, `SELECT sum(CAST(quantity AS numeric)) FROM work_order_lines`)
				forget(d, t)
				changed := sample(t)
				changed.Projects[0].WorkOrders[0].Description = "changed"
				changed.Projects[0].WorkOrders[0].Lines[0].Quantity++
				changed.Projects[1].WorkOrders = append(changed.Projects[1].WorkOrders, small("", "WO-2026-0004").Projects[0].WorkOrders...)
				second := s.imported(t, "import-0001", changed)
				if second.Replayed || second.Created != 1 || second.Existing != 3 {
					t.Errorf("%+v", second)
				}
				for i, p := range first.Projects {
					for j, w := range p.WorkOrders {
						if got := second.Projects[i].WorkOrders[j]; got.Status != existing || got.WorkOrderID != w.WorkOrderID {
							t.Errorf("%+v, want the existing %+v", got, w)
						}
					}
				}
				d.exec(t, `DELETE FROM work_order_lines WHERE work_order_id IN (SELECT work_order_id FROM work_orders WHERE work_order_number = 'WO-2026-0004')`)
				if got := d.text(t, `SELECT sum(CAST(quantity AS numeric)) FROM work_order_lines`); got != written {
					t.Errorf("the lines sum up to %s, before to %s", got, written)
				}
				if got := d.text(t, `SELECT count(*) FROM work_orders WHERE description = 'changed'`); got != "0" {
					t.Error("the work order was changed")
				}
				d.holds(t, "4", "6", "2", "1")
			})
		})
	}
}

func TestAWorkOrderUnderAnotherProjectExists(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		s := serve(t, d, defaults)
		first := s.imported(t, "import-0001", small("PRJ-1001", "WO-1"))
		second := s.imported(t, "import-0002", small("PRJ-1002", "WO-2", "WO-1", "wo-1"))
		want := []WorkOrderOutcome{
			{"WO-2", second.Projects[0].WorkOrders[0].WorkOrderID, created}, {"WO-1", first.Projects[0].WorkOrders[0].WorkOrderID, existing},
			{"wo-1", second.Projects[0].WorkOrders[2].WorkOrderID, created}, // codes are compared as they are
		}
		if got := second.Projects[0].WorkOrders; !slices.Equal(got, want) || second.Created != 2 || second.Existing != 1 {
			t.Errorf("got %+v, want %+v", second.Imported, want)
		}
		if got := d.text(t, `SELECT project_code FROM work_orders JOIN projects USING (project_id) WHERE work_order_number = 'WO-1'`); got != "PRJ-1001" {
			t.Errorf("it stands under %s", got)
		}
		d.holds(t, "3", "3", "2", "2")
	})
}

func TestAProjectThatIsUnknownOrClosedIsRefusedAndTheOthersAreProcessed_R02(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		s := serve(t, d, defaults)
		cmd := joined(small("PRJ-1003", "WO-1"), small("PRJ-1001", "WO-2"), small("PRJ-9999", "WO-3"))
		preview, err := s.preview(within(t), cmd)
		if err != nil {
			t.Fatal(err)
		}
		first := s.imported(t, "import-0001", cmd)
		want := []ProjectOutcome{
			{"PRJ-1003", refused, projectClosed, []WorkOrderOutcome{}},
			{"PRJ-1001", processed, "", []WorkOrderOutcome{{"WO-2", first.Projects[1].WorkOrders[0].WorkOrderID, created}}},
			{"PRJ-9999", refused, projectNotFound, []WorkOrderOutcome{}},
		}
		if !reflect.DeepEqual(first.Projects, want) || first.Created != 1 || first.Existing != 0 || want[1].WorkOrders[0].WorkOrderID == 0 {
			t.Errorf("got %+v, want %+v", first.Imported, want)
		}
		d.exec(t, `UPDATE projects SET state = 'open'`)
		second := s.imported(t, "import-0001", cmd)
		second.replayOf(t, first.id) // it is the outcome, and not what would be done today
		if !reflect.DeepEqual(second.Imported, first.Imported) {
			t.Errorf("the replay says %+v", second.Imported)
		}
		d.holds(t, "1", "1", "1", "1")
		// The preview has said the same, without the id.
		if want[1].WorkOrders[0].WorkOrderID = 0; !reflect.DeepEqual(preview.Projects, want) || preview.Created != 1 || preview.Existing != 0 {
			t.Errorf("the preview was %+v", preview)
		}
	})
}

func TestR03_AnImportOfWhichNothingCanBeProcessedIsRefusedForGood(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		s := serve(t, d, defaults)
		cmd := joined(small("PRJ-1003", "WO-1"), small("PRJ-9999", "WO-2"))
		first := s.send(within(t), "import-0001", cmd)
		d.exec(t, `UPDATE projects SET state = 'open'`)
		second := s.send(within(t), "import-0001", cmd)
		second.replayOf(t, first.id)
		for _, a := range []attempt{first, second} {
			var refusal *idempotency.RefusedError
			if !errors.As(a.err, &refusal) {
				t.Fatalf("%v, want a refusal", a.err)
			}
			if refusal.Code() != "NO_PROJECT_PROCESSED" || refusal.Message != "No project of the request could be processed." ||
				string(refusal.Data) != `{"projects":[{"project_code":"PRJ-1003","status":"refused","code":"PROJECT_CLOSED","work_orders":[]},`+
					`{"project_code":"PRJ-9999","status":"refused","code":"PROJECT_NOT_FOUND","work_orders":[]}]}` {
				t.Errorf("%v %s", refusal, refusal.Data)
			}
		}
		d.holds(t, "0", "0", "0", "1")
		if a := s.imported(t, "import-0002", cmd); a.Created != 1 || a.Projects[1].Code != projectNotFound {
			t.Errorf("under a new key: %+v", a.Imported)
		}
	})
}

func TestS01_OrganisationsAreTenants(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		s := serve(t, d, defaults)
		here := small("PRJ-1001", "WO-1")
		there := here
		there.OrganizationCode = "ANK-01"
		a, b := s.imported(t, "import-0001", here), s.imported(t, "import-0001", there)
		if a.Replayed || b.Replayed || a.Created != 1 || b.Created != 1 || a.Projects[0].WorkOrders[0].WorkOrderID == b.Projects[0].WorkOrders[0].WorkOrderID {
			t.Errorf("%+v %+v", a, b)
		}
		d.holds(t, "2", "2", "2", "2")
		// A project of the one is none of the other.
		there.Projects = append(slices.Clone(there.Projects), small("PRJ-1002", "WO-2").Projects...)
		if got := s.imported(t, "import-0002", there); got.Projects[1].Code != projectNotFound || got.Existing != 1 ||
			got.Projects[0].WorkOrders[0].WorkOrderID != b.Projects[0].WorkOrders[0].WorkOrderID {
			t.Errorf("%+v", got.Imported)
		}
		if got := s.imported(t, "import-0003", here); got.Existing != 1 || got.Projects[0].WorkOrders[0].WorkOrderID != a.Projects[0].WorkOrders[0].WorkOrderID {
			t.Errorf("%+v", got.Imported)
		}
		for code, want := range map[string]int{"IST-01": 1, "ANK-01": 1} {
			page, err := bus.Ask(within(t), s.bus, ListWorkOrders{CompanyCode: "TEKIL-TR", OrganizationCode: code, Limit: 10})
			if err != nil || len(page.WorkOrders) != want {
				t.Errorf("%s: %+v, %v", code, page, err)
			}
		}
	})
}

func TestCodesThatNameNothing(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		s := serve(t, d, defaults)
		for _, c := range []struct{ company, organization, code, field string }{
			{"TEKIL-DE", "IST-01", "COMPANY_NOT_FOUND", "company_code"},
			{"tekil-tr", "IST-01", "COMPANY_NOT_FOUND", "company_code"},
			{"TEKIL-TR", "IZM-01", "ORGANIZATION_NOT_FOUND", "organization_code"},
		} {
			cmd := small("PRJ-1001", "WO-1")
			cmd.CompanyCode, cmd.OrganizationCode = c.company, c.organization
			_, _, resolved := s.kept.resolve(within(t), c.company, c.organization)
			_, previewed := s.preview(within(t), cmd)
			_, listed := bus.Ask(within(t), s.bus, ListWorkOrders{CompanyCode: c.company, OrganizationCode: c.organization, Limit: 1})
			_, imported := s.importOrders(within(t), cmd)
			for _, err := range []error{resolved, previewed, listed, imported} {
				var field validation.FieldError
				if bus.CodeOf(err) != c.code || !errors.As(err, &field) || field.Path != c.field || field.Rule != c.code {
					t.Errorf("%v: %v %+v", c, err, field)
				}
			}
		}
		tenant, id, err := s.kept.resolve(within(t), "TEKIL-TR", "ANK-01")
		if want := d.text(t, `SELECT company_id || '/' || organization_id FROM organizations WHERE organization_code = 'ANK-01'`); err != nil || tenant != want ||
			!strings.HasSuffix(tenant, fmt.Sprint("/", id)) {
			t.Errorf("%s, %d, %v; want %s", tenant, id, err, want)
		}
		d.holds(t, "0", "0", "0", "0")
	})
}

func TestAPreviewOnlyReads(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		s := serve(t, d, defaults)
		s.imported(t, "import-0001", small("PRJ-1001", "WO-1"))
		before := d.rows(t)
		cmd := joined(small("PRJ-1002", "WO-2", "WO-1"), small("PRJ-1003", "WO-3"))
		for range 2 {
			got, err := s.preview(within(t), cmd)
			want := Imported{Created: 1, Existing: 1, Projects: []ProjectOutcome{
				{"PRJ-1002", processed, "", []WorkOrderOutcome{{"WO-2", 0, created}, {"WO-1", 0, existing}}},
				{"PRJ-1003", refused, projectClosed, []WorkOrderOutcome{}},
			}}
			if err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("%+v, %v; want %+v", got, err, want)
			}
		}
		got, err := s.preview(within(t), small("PRJ-9999", "WO-9"))
		if err != nil || got.Created != 0 || got.Projects[0].Code != projectNotFound {
			t.Errorf("%+v, %v", got, err)
		}
		if after := d.rows(t); after != before {
			t.Errorf("it has written: %+v, before %+v", after, before)
		}
	})
}

func TestWithIdempotencyOffEveryRequestIsNewAndNoWorkOrderIsMadeTwice(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		off := defaults
		off.enabled = false
		s := serve(t, d, off)
		for i, want := range []Imported{{Created: 3}, {Existing: 3}} {
			a := s.sendAsNew(within(t), "import-0001", sample(t))
			if a.err != nil || a.Created != want.Created || a.Existing != want.Existing || a.Replayed || a.State != requestctx.StateNone {
				t.Errorf("request %d: %+v", i, a)
			}
		}
		d.holds(t, "3", "6", "2", "0")
		a := s.sendAsNew(within(t), "", small("PRJ-1003", "WO-9"))
		var refusal *idempotency.RefusedError
		if !errors.As(a.err, &refusal) || refusal.Code() != "NO_PROJECT_PROCESSED" {
			t.Errorf("%v, want a refusal", a.err)
		}
		d.holds(t, "3", "6", "2", "0")
	})
}

func TestWithoutTheRequirementAnImportRunsWithoutAKey(t *testing.T) {
	t.Parallel()
	d := sqliteDatabase(t)
	if a := serve(t, d, defaults).send(within(t), "", sample(t)); bus.CodeOf(a.err) != "IDEMPOTENCY_KEY_MISSING" {
		t.Errorf("%v", a.err)
	}
	optional := defaults
	optional.required = false
	s := serve(t, d, optional)
	if a := s.imported(t, "", sample(t)); a.State != requestctx.StateUnprotected || a.Created != 3 {
		t.Errorf("%+v", a)
	}
	if a := s.imported(t, "import-0001", sample(t)); a.State != requestctx.StateExecuted || a.Existing != 3 {
		t.Errorf("%+v", a)
	}
	d.holds(t, "3", "6", "2", "1")
}

// large is an import of 20000 lines.
func large() Import {
	cmd := Import{CompanyCode: "TEKIL-TR", OrganizationCode: "IST-01"}
	for _, project := range []string{"PRJ-1001", "PRJ-1002"} {
		p := small(project)
		for i := range 500 {
			w := small("", fmt.Sprintf("%s-%d", project, i)).Projects[0].WorkOrders[0]
			for k := range 19 {
				w.Lines = append(w.Lines, Line{LineNumber: k + 2, ItemCode: "PIPE-DN25", Description: "Çelik boru", Quantity: 1, Unit: "m"})
			}
			p.Projects[0].WorkOrders = append(p.Projects[0].WorkOrders, w)
		}
		cmd.Projects = append(cmd.Projects, p.Projects...)
	}
	return cmd
}

func TestAnImportOf20000Lines(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		s := serve(t, d, defaults)
		began := time.Now()
		first := s.imported(t, "import-0001", large())
		t.Logf("imported in %v", time.Since(began))
		if first.Created != 1000 {
			t.Errorf("%d were created", first.Created)
		}
		d.holds(t, "1000", "20000", "1", "1")
		s.imported(t, "import-0001", large()).replayOf(t, first.id)
		if again := s.imported(t, "import-0002", large()); again.Created != 0 || again.Existing != 1000 {
			t.Errorf("%d were created, %d are there", again.Created, again.Existing)
		}
		d.holds(t, "1000", "20000", "2", "2")
	})
}

// counting counts the runs of handlers that came as far as writing.
type counting struct {
	store
	runs atomic.Int64
}

func (c *counting) insert(ctx context.Context, organizationID int64, requestID string, orders []newOrder) (map[string]int64, error) {
	c.runs.Add(1)
	return c.store.insert(ctx, organizationID, requestID, orders)
}

// Imports of the same work orders at one time, in any order, make each once.
func TestConcurrentImportsOfTheSameWorkOrders(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		s := serve(t, d, defaults)
		var numbers []string
		for i := range 200 {
			numbers = append(numbers, fmt.Sprintf("WO-%03d", i))
		}
		const clients = 6
		attempts := make([]attempt, clients)
		ctx := within(t)
		var wait sync.WaitGroup
		for i := range attempts {
			mine := slices.Clone(numbers)
			if i%2 == 1 {
				slices.Reverse(mine)
			}
			wait.Go(func() { attempts[i] = s.send(ctx, fmt.Sprintf("import-%04d", i), small("PRJ-1001", mine...)) })
		}
		wait.Wait()
		total := 0
		for _, a := range attempts {
			if a.err != nil || a.Created+a.Existing != len(numbers) {
				t.Errorf("%d created, %d existing, %v", a.Created, a.Existing, a.err)
			}
			total += a.Created
		}
		if total != len(numbers) {
			t.Errorf("%d were created in all, want %d", total, len(numbers))
		}
		d.holds(t, "200", "200", "6", "6")
	})
}

// Two imports of the same work orders in opposite orders wait for one another: neither is a deadlock's victim that has to be made again.
// A third transaction holds the number in the middle until both have come as far as they can.
func TestImportsInOppositeOrdersDoNotLockEachOtherOut(t *testing.T) {
	t.Parallel()
	d := &database{postgres: pgtest.Open(t)}
	kept, records := d.open(t)
	counted := &counting{store: kept}
	b, err := newBus(counted, records, zap.NewNop(), defaults)
	if err != nil {
		t.Fatal(err)
	}
	s := &site{d, inbound{kept: counted}, b}
	ctx := within(t)
	middle, err := d.postgres.Pool().Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer middle.Rollback(ctx)
	if _, err := middle.Exec(ctx, `INSERT INTO work_orders (organization_id, project_id, work_order_number, description, planned_start, planned_end, request_id)
		SELECT organization_id, project_id, 'WO-2', '', '2026-12-07', '2026-12-18', '' FROM projects JOIN organizations USING (organization_id)
		WHERE organization_code = 'IST-01' AND project_code = 'PRJ-1001'`); err != nil {
		t.Fatal(err)
	}
	attempts := make([]attempt, 2)
	var wait sync.WaitGroup
	defer wait.Wait()
	for i, numbers := range [][]string{{"WO-1", "WO-2", "WO-3"}, {"WO-3", "WO-2", "WO-1"}} {
		wait.Go(func() { attempts[i] = s.send(ctx, fmt.Sprintf("import-%04d", i), small("PRJ-1001", numbers...)) })
	}
	for waiting := 0; waiting < 2; {
		if err := d.postgres.Pool().QueryRow(ctx, `SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND wait_event_type = 'Lock'`,
			d.postgres.Schema()).Scan(&waiting); err != nil {
			t.Fatal(err) // also when the time is over
		}
	}
	if err := middle.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	wait.Wait()
	if a, b := attempts[0], attempts[1]; a.err != nil || b.err != nil || a.Created+b.Created != 3 || a.Existing+b.Existing != 3 {
		t.Errorf("%+v, %+v", a, b)
	}
	if runs := counted.runs.Load(); runs != 2 {
		t.Errorf("the handler has run %d times for 2 imports", runs)
	}
	d.holds(t, "3", "3", "2", "2")
}

func TestAnImportIsWholeOrNothing(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		s := serve(t, d, defaults)
		d.exec(t, `CREATE TABLE kept AS SELECT * FROM inbound_archive`)
		d.exec(t, `DROP TABLE inbound_archive`) // the last statement of an import fails
		if a := s.send(within(t), "import-0001", sample(t)); a.err == nil || a.State != requestctx.StateFreed {
			t.Fatalf("%v %v", a.State, a.err)
		}
		d.exec(t, `CREATE TABLE inbound_archive (request_id text PRIMARY KEY, raw_body_sha256 text, format text, client text, organization_id bigint, received_at `+
			map[bool]string{true: "timestamptz", false: "bigint"}[d.postgres != nil]+`)`)
		if got := d.text(t, `SELECT count(*) FROM work_orders`); got != "0" {
			t.Errorf("%s work orders are left", got)
		}
		if a := s.imported(t, "import-0001", sample(t)); a.Created != 3 || a.Attempt != 2 {
			t.Errorf("%+v", a)
		}
		d.holds(t, "3", "6", "1", "1")
	})
}

func TestTheListHasPages(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		s := serve(t, d, defaults)
		q := ListWorkOrders{CompanyCode: "TEKIL-TR", OrganizationCode: "IST-01", Limit: 2}
		if page, err := bus.Ask(within(t), s.bus, q); err != nil || page.WorkOrders == nil || len(page.WorkOrders) != 0 || page.Next != 0 {
			t.Errorf("of none: %+v, %v", page, err)
		}
		a := s.imported(t, "import-0001", sample(t))
		page, err := bus.Ask(within(t), s.bus, q)
		if err != nil {
			t.Fatal(err)
		}
		q.Before = page.Next
		last, err := bus.Ask(within(t), s.bus, q)
		if err != nil || len(page.WorkOrders) != 2 || len(last.WorkOrders) != 1 || last.Next != 0 || page.Next == 0 {
			t.Fatalf("%+v, %+v, %v", page, last, err)
		}
		byNumber := map[string]StoredWorkOrder{}
		for _, w := range append(page.WorkOrders, last.WorkOrders...) {
			byNumber[w.WorkOrderNumber] = w
		}
		if page.WorkOrders[0].WorkOrderID <= page.WorkOrders[1].WorkOrderID || len(byNumber) != 3 {
			t.Errorf("%+v", page)
		}
		want := StoredWorkOrder{
			WorkOrderID: a.Projects[0].WorkOrders[0].WorkOrderID, WorkOrderNumber: "WO-2026-0001", ProjectCode: "PRJ-1001",
			Description: sample(t).Projects[0].WorkOrders[0].Description, PlannedStart: day("2026-12-07"), PlannedEnd: day("2026-12-18"), Lines: 3, RequestID: a.id,
		}
		if got := byNumber["WO-2026-0001"]; got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
		for name, bad := range map[string]func(*ListWorkOrders){
			"limit": func(q *ListWorkOrders) { q.Limit = 0 }, "a limit of 101": func(q *ListWorkOrders) { q.Limit = 101 },
			"before": func(q *ListWorkOrders) { q.Before = -1 }, "company": func(q *ListWorkOrders) { q.CompanyCode = "" },
		} {
			q := q
			bad(&q)
			if _, err := bus.Ask(within(t), s.bus, q); bus.CodeOf(err) != "VALIDATION_FAILED" {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// Servers that start at once make the tables and the seeds once, and a later start leaves what is there as it is.
func TestTheSeedsAreMadeOnce(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		ctx := within(t)
		var wait sync.WaitGroup
		errs := make([]error, 4)
		for i := range errs {
			wait.Go(func() {
				_, _, closeStore, _, err := settings{sqlite: d.path, postgres: d.url()}.open(ctx)
				if errs[i] = err; err == nil {
					closeStore()
				}
			})
		}
		wait.Wait()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		seeds := func() string {
			return d.text(t, `SELECT (SELECT count(*) FROM companies) || ' ' || (SELECT count(*) FROM organizations) || ' ' ||
				(SELECT count(*) FROM projects) || ' ' || (SELECT count(*) FROM projects WHERE state = 'open')`)
		}
		if got := seeds(); got != "1 2 4 3" {
			t.Errorf("the seeds are %s", got)
		}
		d.exec(t, `UPDATE projects SET state = 'closed'`)
		d.open(t)
		if got := seeds(); got != "1 2 4 0" {
			t.Errorf("after another start the seeds are %s", got)
		}
	})
}

// One id for two requests, which a proxy that names requests may bring about, is no reason to refuse the second.
func TestARequestIDDecidesNothing(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		s := serve(t, d, defaults)
		for _, number := range []string{"WO-1", "WO-2"} {
			ctx, _ := requestctx.New(within(t), requestctx.Values{ID: "the-same"})
			if got, err := s.importOrders(ctx, small("PRJ-1001", number)); err != nil || got.Created != 1 {
				t.Errorf("%+v, %v", got, err)
			}
		}
		d.holds(t, "2", "2", "1", "0")
	})
}

func TestAnImportIsHeldForADemonstration(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		s := inbound{hold: 20 * time.Second}
		if err := s.wait(t.Context()); err != nil || time.Since(began) != 20*time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		why := errors.New("why")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(why) })
		if _, err := s.importOrders(ctx, Import{}); !errors.Is(err, why) || time.Since(began) != 21*time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}
