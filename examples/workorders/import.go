package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/validation"
	"github.com/tekil-go/tekil/bus"
)

// Import is the command to take work orders over from an ERP. Codes are compared as they are: nothing is trimmed or folded, so a code
// means the same here and in the ERP. In XML the members are elements of the same names, and the tag xml names those of a list's items.
type Import struct {
	CompanyCode      string    `json:"company_code" validate:"required,max=32,printascii,excludes= "`
	OrganizationCode string    `json:"organization_code" validate:"required,max=32,printascii,excludes= "`
	Projects         []Project `json:"projects" xml:"project" validate:"min=1,max=200,dive"`
}

// Project holds the work orders of one project.
type Project struct {
	ProjectCode string      `json:"project_code" validate:"required,max=32,printascii,excludes= "`
	WorkOrders  []WorkOrder `json:"work_orders" xml:"work_order" validate:"min=1,max=500,dive"`
}

// WorkOrder is one work order.
type WorkOrder struct {
	WorkOrderNumber string `json:"work_order_number" validate:"required,max=32,printascii,excludes= "` // unique in the organisation
	Description     string `json:"description" validate:"max=500"`
	PlannedStart    Date   `json:"planned_start" validate:"required"`
	PlannedEnd      Date   `json:"planned_end" validate:"required"`
	Lines           []Line `json:"lines" xml:"line" validate:"min=1,max=1000,dive"`
}

// Line is a line of a work order.
type Line struct {
	LineNumber  int      `json:"line_number" validate:"gte=1,lte=999999"`
	ItemCode    string   `json:"item_code" validate:"required,max=32,printascii,excludes= "`
	Description string   `json:"description" validate:"max=500"`
	Quantity    Quantity `json:"quantity" validate:"gt=0"`
	Unit        string   `json:"unit" validate:"required,max=16"`
}

// maxLines is how many lines a request may hold in all.
const maxLines = 20_000

// CommandName is the command's stable name, and ties it to its result.
func (Import) CommandName() bus.Name[Imported] { return importName }

// importName is the name of the command in both of its forms.
const importName bus.Name[Imported] = "workorders.import"

// XMLRoot is the root element of the command in XML.
func (Import) XMLRoot() string { return "work_orders" }

// The protection of an import where the environment does not say otherwise.
const (
	defaultRetention = 720 * time.Hour // of an inbound ERP API (rule rec-10)
	defaultLease     = 300 * time.Second
	// resultLimit has room for the outcome of as many work orders as a request may hold.
	resultLimit = 4 << 20
)

// Idempotency says how the command is protected. All that it does is in one database transaction, so an attempt that died has left
// nothing behind and is simply made again. It is Leased all the same: an import may take long, and its claim is then seen by all others.
func (Import) Idempotency() idempotency.Policy {
	return idempotency.Policy{
		Mode: idempotency.Leased, Retention: defaultRetention, Lease: defaultLease, Takeover: idempotency.RunAgain, Version: 1,
		ResultLimit: resultLimit,
	}
}

var _ idempotency.WithPolicy = Import{} // the compiler checks the spelling

// Validate checks what tags cannot say.
func (c Import) Validate() error {
	var problems []error
	projects, orders := make(map[string]bool, len(c.Projects)), map[string]bool{}
	total := 0
	for i, p := range c.Projects {
		bad := func(rule, message, field string, at ...any) {
			at = append([]any{i}, at...)
			problems = append(problems, validation.Field("projects["+fmt.Sprintf("%d]."+field, at...), rule, message))
		}
		if projects[p.ProjectCode] {
			bad("unique", "must stand in the request once", "project_code")
		}
		projects[p.ProjectCode] = true
		for j, w := range p.WorkOrders {
			if orders[w.WorkOrderNumber] {
				bad("unique", "must stand in the request once", "work_orders[%d].work_order_number", j)
			}
			orders[w.WorkOrderNumber] = true
			if w.PlannedEnd.before(w.PlannedStart) {
				bad("not_before", "must not be before planned_start", "work_orders[%d].planned_end", j)
			}
			if !plain(w.Description) {
				bad("text", noControls, "work_orders[%d].description", j)
			}
			total += len(w.Lines)
			lines := make(map[int]bool, len(w.Lines))
			for k, l := range w.Lines {
				if lines[l.LineNumber] {
					bad("unique", "must stand in the work order once", "work_orders[%d].lines[%d].line_number", j, k)
				}
				lines[l.LineNumber] = true
				if !plain(l.Description) {
					bad("text", noControls, "work_orders[%d].lines[%d].description", j, k)
				}
				if !plain(l.Unit) {
					bad("text", noControls, "work_orders[%d].lines[%d].unit", j, k)
				}
			}
		}
	}
	if total > maxLines {
		problems = append(problems, validation.Field("projects", "max_lines", fmt.Sprintf("must not hold more than %d lines in all", maxLines)))
	}
	return errors.Join(problems...)
}

const noControls = "must not hold control characters other than tabs and line feeds"

// plain reports whether a text can be stored and written in every format: PostgreSQL takes no NUL, and XML no control characters.
func plain(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool {
		return r < ' ' && r != '\t' && r != '\n' || r >= 0x7F && r < 0xA0 || r == 0xFFFE || r == 0xFFFF
	})
}

// ImportAsNew is [Import] where idempotency is switched off: it carries no mark, so no key is read, nothing is recorded and every
// request is new. The work orders' natural key is still there.
type ImportAsNew Import

// CommandName is that of Import.
func (ImportAsNew) CommandName() bus.Name[Imported] { return importName }

// XMLRoot is that of Import.
func (ImportAsNew) XMLRoot() string { return Import{}.XMLRoot() }

// Validate is that of Import.
func (c ImportAsNew) Validate() error { return Import(c).Validate() }

// Imported is the result of [Import].
type Imported struct {
	Projects []ProjectOutcome `json:"projects" xml:"project"` // in the order of the request
	Created  int              `json:"created"`                // work orders that were written
	Existing int              `json:"existing"`               // work orders that were there, and were left as they are
}

// ProjectOutcome is what became of a project of the request.
type ProjectOutcome struct {
	ProjectCode string             `json:"project_code"`
	Status      string             `json:"status"`         // processed or refused
	Code        string             `json:"code,omitempty"` // why it was refused
	WorkOrders  []WorkOrderOutcome `json:"work_orders" xml:"work_order"`
}

// WorkOrderOutcome is what became of a work order.
type WorkOrderOutcome struct {
	WorkOrderNumber string `json:"work_order_number"`
	WorkOrderID     int64  `json:"work_order_id,omitempty"` // 0 only in a preview
	Status          string `json:"status"`                  // created or existing
}

// The statuses of projects and work orders.
const (
	processed = "processed"
	refused   = "refused"
	created   = "created"
	existing  = "existing"
)

// Why a project is refused.
const (
	projectNotFound = "PROJECT_NOT_FOUND"
	projectClosed   = "PROJECT_CLOSED"
)

// noProjectProcessed is the refusal of an import of which nothing can be processed.
type noProjectProcessed struct{ projects []ProjectOutcome }

func (noProjectProcessed) Error() string { return "No project of the request could be processed." }

// Code is the code of the refusal.
func (noProjectProcessed) Code() string { return "NO_PROJECT_PROCESSED" }

// RefusalData says why, for each project.
func (e noProjectProcessed) RefusalData() any {
	return struct {
		Projects []ProjectOutcome `json:"projects" xml:"project"`
	}{e.projects}
}

// ListWorkOrders is the query for a page of an organisation's work orders, the newest first.
type ListWorkOrders struct {
	CompanyCode      string `json:"company_code" validate:"required,max=32,printascii,excludes= "`
	OrganizationCode string `json:"organization_code" validate:"required,max=32,printascii,excludes= "`
	Limit            int    `json:"limit" validate:"gte=1,lte=100"`
	// Before is the id of the last work order of the page before this one; 0 for the first page.
	Before int64 `json:"before" validate:"gte=0"`
}

// QueryName is the query's stable name.
func (ListWorkOrders) QueryName() bus.Name[WorkOrderPage] { return "workorders.list" }

// WorkOrderPage is a page of work orders.
type WorkOrderPage struct {
	WorkOrders []StoredWorkOrder `json:"work_orders" xml:"work_order"`
	// Next is Before of the next page; 0 on the last one.
	Next int64 `json:"next,omitempty"`
}

// StoredWorkOrder is a work order as it is stored.
type StoredWorkOrder struct {
	WorkOrderID     int64  `json:"work_order_id"`
	WorkOrderNumber string `json:"work_order_number"`
	ProjectCode     string `json:"project_code"`
	Description     string `json:"description"`
	PlannedStart    Date   `json:"planned_start"`
	PlannedEnd      Date   `json:"planned_end"`
	Lines           int    `json:"lines"` // how many it has
	// RequestID is the attempt that created it.
	RequestID string `json:"request_id"`
}
