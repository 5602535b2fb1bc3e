package main

import (
	"context"
	"errors"
	"time"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/validation"
	"github.com/tekil-go/tekil/requestctx"
)

// store is where work orders are kept. Its methods read and write through the transaction of the command in ctx, where there is one.
type store interface {
	// inTx runs fn in the business transaction of the command in ctx, which it opens where that is not done.
	inTx(ctx context.Context, fn func(ctx context.Context) error) error
	// resolve gives an organisation's id, and what names it as a tenant. Its error is a *codeError where there is none.
	resolve(ctx context.Context, companyCode, organizationCode string) (tenant string, organizationID int64, err error)
	// projects gives those of an organisation's projects that have one of the codes, by code.
	projects(ctx context.Context, organizationID int64, codes []string) (map[string]project, error)
	// insert writes the work orders whose numbers are new in the organisation, each with its lines, and gives their ids by number.
	insert(ctx context.Context, organizationID int64, requestID string, orders []newOrder) (map[string]int64, error)
	// find gives the ids of the work orders that have one of the numbers, by number.
	find(ctx context.Context, organizationID int64, numbers []string) (map[string]int64, error)
	// archive writes a row about a request, unless there is one with its request id.
	archive(ctx context.Context, a archived) error
	// list gives an organisation's work orders whose id is less than before, the newest first; all of them where before is 0.
	list(ctx context.Context, organizationID int64, limit int, before int64) ([]StoredWorkOrder, error)
	ping(ctx context.Context) error
}

// project is a project as it is stored.
type project struct {
	id   int64
	open bool
}

// newOrder is a work order to be written under a project.
type newOrder struct {
	projectID int64
	WorkOrder
}

// archived is a row of inbound_archive: one for each request that was processed, in the transaction of its work orders.
type archived struct {
	requestID      string // of the attempt that did the work, as in the record of its key
	bodySHA256     string // in hex, of the body as it came; "" where it was not taken
	format         string // json or xml; "" where nobody has said
	client         string // whose key it was; "" outside a request
	organizationID int64
	receivedAt     time.Time
}

// codeError says that a code of the request names nothing. It wraps the validation.FieldError of the code's field, whose rule is its
// code as well.
type codeError struct {
	code  string
	field error
}

func (e *codeError) Error() string { return "workorders: " + e.code }

// Code is the error's code.
func (e *codeError) Code() string { return e.code }

// Unwrap gives the field error.
func (e *codeError) Unwrap() error { return e.field }

func newCodeError(code, field, message string) *codeError {
	return &codeError{code, validation.Field(field, code, message)}
}

var (
	errCompany      = newCodeError("COMPANY_NOT_FOUND", "company_code", "is not the code of a company")
	errOrganization = newCodeError("ORGANIZATION_NOT_FOUND", "organization_code", "is not the code of an organisation of the company")
)

// formatAttribute is the attribute of the request ([requestctx.Request.Add]) by which an edge says in which format it has read the body.
const formatAttribute = "format"

// inbound handles the commands and queries.
type inbound struct {
	kept store
	hold time.Duration // how long an import waits before its transaction, for demonstrations
}

// importOrders processes an import, all of it in the business transaction, which fails if this attempt has lost its key meanwhile.
func (s inbound) importOrders(ctx context.Context, cmd Import) (done Imported, err error) {
	if err := s.wait(ctx); err != nil {
		return Imported{}, err
	}
	err = s.kept.inTx(ctx, func(ctx context.Context) error {
		done, err = s.process(ctx, cmd)
		return err
	})
	if err != nil {
		return Imported{}, err
	}
	return done, nil
}

func (s inbound) importAsNew(ctx context.Context, cmd ImportAsNew) (Imported, error) {
	return s.importOrders(ctx, Import(cmd))
}

func (s inbound) wait(ctx context.Context) error {
	if s.hold <= 0 {
		return nil
	}
	timer := time.NewTimer(s.hold)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// plan is what an import comes to before its work orders are looked at.
type plan struct {
	organizationID int64
	outcome        Imported
	orders         []newOrder // of the projects that are processed
}

func (s inbound) plan(ctx context.Context, cmd Import) (plan, error) {
	_, organizationID, err := s.kept.resolve(ctx, cmd.CompanyCode, cmd.OrganizationCode) // the command holds codes and no ids
	if err != nil {
		return plan{}, err
	}
	codes := make([]string, len(cmd.Projects))
	for i, p := range cmd.Projects {
		codes[i] = p.ProjectCode
	}
	known, err := s.kept.projects(ctx, organizationID, codes)
	if err != nil {
		return plan{}, err
	}
	pl := plan{organizationID: organizationID}
	for _, p := range cmd.Projects {
		o := ProjectOutcome{ProjectCode: p.ProjectCode, Status: processed, WorkOrders: []WorkOrderOutcome{}}
		switch found, ok := known[p.ProjectCode]; {
		case !ok:
			o.Status, o.Code = refused, projectNotFound
		case !found.open:
			o.Status, o.Code = refused, projectClosed
		default:
			for _, w := range p.WorkOrders {
				pl.orders = append(pl.orders, newOrder{found.id, w})
				o.WorkOrders = append(o.WorkOrders, WorkOrderOutcome{WorkOrderNumber: w.WorkOrderNumber})
			}
		}
		pl.outcome.Projects = append(pl.outcome.Projects, o)
	}
	return pl, nil
}

// fill says of each work order what became of it, or in a preview what would. A preview is for everybody and tells no ids.
func (pl *plan) fill(inserted, found map[string]int64, preview bool) error {
	for _, p := range pl.outcome.Projects {
		for i := range p.WorkOrders {
			o := &p.WorkOrders[i]
			id, isNew := inserted[o.WorkOrderNumber]
			if id == 0 {
				id = found[o.WorkOrderNumber]
			}
			switch {
			case isNew || id == 0 && preview:
				o.WorkOrderID, o.Status = id, created
				pl.outcome.Created++
			case id == 0:
				return errors.New("workorders: a work order was neither written nor there")
			default:
				o.WorkOrderID, o.Status = id, existing
				pl.outcome.Existing++
			}
			if preview {
				o.WorkOrderID = 0
			}
		}
	}
	return nil
}

func (pl *plan) numbers(except map[string]int64) []string {
	var numbers []string
	for _, o := range pl.orders {
		if _, ok := except[o.WorkOrderNumber]; !ok {
			numbers = append(numbers, o.WorkOrderNumber)
		}
	}
	return numbers
}

// process writes what an import brings. A work order that is there already is found by its natural key, its number in the organisation,
// and left as it is, under whatever project it stands: that holds even if the record of the request that made it is gone.
func (s inbound) process(ctx context.Context, cmd Import) (Imported, error) {
	pl, err := s.plan(ctx, cmd)
	if err != nil {
		return Imported{}, err
	}
	if len(pl.orders) == 0 {
		return Imported{}, idempotency.Final(noProjectProcessed{pl.outcome.Projects})
	}
	req := requestctx.From(ctx)
	inserted, err := s.kept.insert(ctx, pl.organizationID, req.ID(), pl.orders)
	if err != nil {
		return Imported{}, err
	}
	var found map[string]int64
	if others := pl.numbers(inserted); len(others) > 0 {
		if found, err = s.kept.find(ctx, pl.organizationID, others); err != nil {
			return Imported{}, err
		}
	}
	if err := pl.fill(inserted, found, false); err != nil {
		return Imported{}, err
	}
	return pl.outcome, s.kept.archive(ctx, archived{
		requestID: req.ID(), bodySHA256: req.BodySHA256(), format: attribute(req, formatAttribute), client: req.Scope().Client,
		organizationID: pl.organizationID, receivedAt: time.Now().UTC().Truncate(time.Millisecond),
	})
}

// preview says what an import would do now, and only reads. Where no project would be processed the import itself would be refused.
func (s inbound) preview(ctx context.Context, cmd Import) (Imported, error) {
	pl, err := s.plan(ctx, cmd)
	if err != nil || len(pl.orders) == 0 {
		return pl.outcome, err
	}
	found, err := s.kept.find(ctx, pl.organizationID, pl.numbers(nil))
	if err != nil {
		return Imported{}, err
	}
	return pl.outcome, pl.fill(nil, found, true)
}

func (s inbound) list(ctx context.Context, q ListWorkOrders) (WorkOrderPage, error) {
	_, organizationID, err := s.kept.resolve(ctx, q.CompanyCode, q.OrganizationCode)
	if err != nil {
		return WorkOrderPage{}, err
	}
	found, err := s.kept.list(ctx, organizationID, q.Limit+1, q.Before)
	if err != nil {
		return WorkOrderPage{}, err
	}
	page := WorkOrderPage{WorkOrders: found}
	if len(found) > q.Limit {
		page.WorkOrders = found[:q.Limit]
		page.Next = page.WorkOrders[q.Limit-1].WorkOrderID
	}
	if page.WorkOrders == nil {
		page.WorkOrders = []StoredWorkOrder{}
	}
	return page, nil
}

// attribute gives what was added to the request under a name.
func attribute(req *requestctx.Request, name string) string {
	for _, a := range req.Attributes() {
		if a.Name == name {
			return a.Value
		}
	}
	return ""
}
