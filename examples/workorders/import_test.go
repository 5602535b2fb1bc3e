package main

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/tekil-go/tekil/behaviors/validation"
	"github.com/tekil-go/tekil/bus"
)

func TestAnImportIsCheckedBeforeItsKeyIsSpent(t *testing.T) {
	t.Parallel()
	on := serve(t, sqliteDatabase(t), defaults)
	off := defaults
	off.enabled = false
	switchedOff := serve(t, sqliteDatabase(t), off)
	first := func(c *Import) *WorkOrder { return &c.Projects[0].WorkOrders[0] }
	many := func(n int, project func(int) string) (list []Project) {
		for i := range n {
			list = append(list, small(project(i), fmt.Sprintf("WO-%d", i)).Projects[0])
		}
		return list
	}
	numbered := func(prefix string) func(int) string { return func(i int) string { return fmt.Sprint(prefix, i) } }
	lines := func(n int) []Line {
		l := slices.Repeat([]Line{first(new(small("P", "W"))).Lines[0]}, n)
		for i := range l {
			l[i].LineNumber = i + 1
		}
		return l
	}
	for name, c := range map[string]struct {
		change func(*Import)
		want   string // path (rule), "" for valid
	}{
		"as it is":                     {func(*Import) {}, ""},
		"no company":                   {func(c *Import) { c.CompanyCode = "" }, "company_code (required)"},
		"a blank in a code":            {func(c *Import) { c.CompanyCode = "TEKIL TR" }, "company_code (excludes)"},
		"a blank before a code":        {func(c *Import) { c.OrganizationCode = " IST-01" }, "organization_code (excludes)"},
		"a letter of another alphabet": {func(c *Import) { c.OrganizationCode = "İST-01" }, "organization_code (printascii)"},
		"a control character":          {func(c *Import) { c.CompanyCode = "A\x00" }, "company_code (printascii)"},
		"a code of 32":                 {func(c *Import) { c.Projects[0].ProjectCode = strings.Repeat("~", 32) }, ""},
		"a code of 33":                 {func(c *Import) { c.Projects[0].ProjectCode = strings.Repeat("P", 33) }, "projects[0].project_code (max)"},
		"no projects":                  {func(c *Import) { c.Projects = nil }, "projects (min)"},
		"200 projects":                 {func(c *Import) { c.Projects = many(200, numbered("P")) }, ""},
		"201 projects":                 {func(c *Import) { c.Projects = many(201, numbered("P")) }, "projects (max)"},
		"a project twice":              {func(c *Import) { c.Projects = many(2, func(int) string { return "P" }) }, "projects[1].project_code (unique)"},
		"codes that differ in case":    {func(c *Import) { c.Projects = append(many(1, numbered("p")), small("P0", "W").Projects...) }, ""},
		"no work orders":               {func(c *Import) { c.Projects[0].WorkOrders = nil }, "projects[0].work_orders (min)"},
		"501 work orders":              {func(c *Import) { c.Projects[0].WorkOrders = make([]WorkOrder, 501) }, "projects[0].work_orders (max)"},
		"N13: a number twice in a project": {func(c *Import) { *c = small("P", "W", "V", "W") },
			"projects[0].work_orders[2].work_order_number (unique)"},
		"N13: a number in two projects": {func(c *Import) { *c = joined(small("P", "W"), small("Q", "V", "W")) },
			"projects[1].work_orders[1].work_order_number (unique)"},
		"no number":                 {func(c *Import) { first(c).WorkOrderNumber = "" }, "projects[0].work_orders[0].work_order_number (required)"},
		"a description of 500":      {func(c *Import) { first(c).Description = strings.Repeat("ş", 500) }, ""},
		"a description of 501":      {func(c *Import) { first(c).Description = strings.Repeat("s", 501) }, "projects[0].work_orders[0].description (max)"},
		"no description":            {func(c *Import) { first(c).Description = "" }, ""},
		"a description in lines":    {func(c *Import) { first(c).Description = "a\n\tb" }, ""},
		"a NUL in a description":    {func(c *Import) { first(c).Description = "a\x00b" }, "projects[0].work_orders[0].description (text)"},
		"a carriage return":         {func(c *Import) { first(c).Description = "a\r\nb" }, "projects[0].work_orders[0].description (text)"},
		"a C1 control":              {func(c *Import) { first(c).Description = "a\u0085b" }, "projects[0].work_orders[0].description (text)"},
		"what is no character":      {func(c *Import) { first(c).Description = "a\uFFFF" }, "projects[0].work_orders[0].description (text)"},
		"no start":                  {func(c *Import) { first(c).PlannedStart = Date{} }, "projects[0].work_orders[0].planned_start (required)"},
		"no end":                    {func(c *Import) { first(c).PlannedEnd = Date{} }, "projects[0].work_orders[0].planned_end (required)"},
		"an end on the first day":   {func(c *Import) { first(c).PlannedEnd = first(c).PlannedStart }, ""},
		"an end before the start":   {func(c *Import) { first(c).PlannedEnd = day("2026-12-06") }, "projects[0].work_orders[0].planned_end (not_before)"},
		"no lines":                  {func(c *Import) { first(c).Lines = nil }, "projects[0].work_orders[0].lines (min)"},
		"1000 lines":                {func(c *Import) { first(c).Lines = lines(1000) }, ""},
		"1001 lines":                {func(c *Import) { first(c).Lines = lines(1001) }, "projects[0].work_orders[0].lines (max)"},
		"a line number of 0":        {func(c *Import) { first(c).Lines[0].LineNumber = 0 }, "projects[0].work_orders[0].lines[0].line_number (gte)"},
		"a line number of a mill.":  {func(c *Import) { first(c).Lines[0].LineNumber = 1_000_000 }, "projects[0].work_orders[0].lines[0].line_number (lte)"},
		"a line number twice":       {func(c *Import) { first(c).Lines = append(lines(2), lines(1)...) }, "projects[0].work_orders[0].lines[2].line_number (unique)"},
		"a quantity of 0":           {func(c *Import) { first(c).Lines[0].Quantity = 0 }, "projects[0].work_orders[0].lines[0].quantity (gt)"},
		"a negative quantity":       {func(c *Import) { first(c).Lines[0].Quantity = -1 }, "projects[0].work_orders[0].lines[0].quantity (gt)"},
		"the smallest quantity":     {func(c *Import) { first(c).Lines[0].Quantity = 1 }, ""},
		"no unit":                   {func(c *Import) { first(c).Lines[0].Unit = "" }, "projects[0].work_orders[0].lines[0].unit (required)"},
		"a unit of 17":              {func(c *Import) { first(c).Lines[0].Unit = strings.Repeat("m", 17) }, "projects[0].work_orders[0].lines[0].unit (max)"},
		"a NUL in a unit":           {func(c *Import) { first(c).Lines[0].Unit = "\x00" }, "projects[0].work_orders[0].lines[0].unit (text)"},
		"a NUL in a line":           {func(c *Import) { first(c).Lines[0].Description = "\x00" }, "projects[0].work_orders[0].lines[0].description (text)"},
		"a superscript in a unit":   {func(c *Import) { first(c).Lines[0].Unit = "m²" }, ""},
		"a blank in an item's code": {func(c *Import) { first(c).Lines[0].ItemCode = "PIPE DN20" }, "projects[0].work_orders[0].lines[0].item_code (excludes)"},
		"20000 lines": {func(c *Import) {
			c.Projects = many(20, numbered("P"))
			for i := range c.Projects {
				c.Projects[i].WorkOrders[0].Lines = lines(1000)
			}
		}, ""},
		"20001 lines": {func(c *Import) {
			c.Projects = many(21, numbered("P"))
			for i := range 20 {
				c.Projects[i].WorkOrders[0].Lines = lines(1000)
			}
		}, "projects (max_lines)"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := small("PRJ-1001", "WO-1", "WO-2")
			c.change(&cmd)
			for form, err := range map[string]error{
				"Import": bus.Check(within(t), on.bus, cmd), "ImportAsNew": bus.Check(within(t), switchedOff.bus, ImportAsNew(cmd)),
			} {
				var invalid *validation.Error
				switch {
				case c.want == "" && err != nil:
					t.Errorf("%s: %v", form, err)
				case c.want == "":
				case !errors.As(err, &invalid):
					t.Errorf("%s: %v; want %s", form, err, c.want)
				case fmt.Sprintf("%s (%s)", invalid.Fields[0].Path, invalid.Fields[0].Rule) != c.want:
					t.Errorf("%s: %v; want %s", form, invalid, c.want)
				}
			}
		})
	}
}

// A request with mistakes without number is answered with some of them, each with its place.
func TestSeveralMistakesAreToldAtOnce(t *testing.T) {
	t.Parallel()
	cmd := small("P", "W", "W")
	cmd.Projects[0].WorkOrders[1].PlannedEnd = day("2026-01-01")
	cmd.Projects[0].WorkOrders[0].Description = "secret\x00"
	err := cmd.Validate()
	for _, want := range []string{"work_orders[1].work_order_number (unique)", "work_orders[1].planned_end (not_before)", "work_orders[0].description (text)"} {
		if err == nil || !strings.Contains(err.Error(), "projects[0]."+want) {
			t.Errorf("%v does not name %s", err, want)
		}
	}
	if strings.Contains(fmt.Sprintf("%+v", err), "secret") {
		t.Errorf("the error holds a value: %v", err)
	}
}

// The samples are one document in both formats. The two are compared without the code that reads them in the service.
func TestTheSamplesAreTheSameDocument(t *testing.T) {
	t.Parallel()
	jsonText, err := os.ReadFile("testdata/sample.json")
	if err != nil {
		t.Fatal(err)
	}
	xmlText, err := os.ReadFile("testdata/sample.xml")
	if err != nil {
		t.Fatal(err)
	}
	d := json.NewDecoder(strings.NewReader(string(jsonText)))
	d.UseNumber()
	var document any
	var root element
	if err := errors.Join(d.Decode(&document), xml.Unmarshal(xmlText, &root)); err != nil {
		t.Fatal(err)
	}
	if root.XMLName.Local != (Import{}).XMLRoot() {
		t.Errorf("the root is %s", root.XMLName.Local)
	}
	root.is(t, "", document)

	cmd := sample(t)
	if orders, lines := len(cmd.Projects[0].WorkOrders)+len(cmd.Projects[1].WorkOrders), cmd.Projects[0].WorkOrders[0].Lines; len(cmd.Projects) != 2 ||
		orders != 3 || lines[0].Quantity != lines[1].Quantity || lines[0].Quantity.String() != "12.5" {
		t.Errorf("the sample is %+v", cmd)
	}
	for _, want := range []string{`12.50,`, `12.5,`, `"37.250"`, "ş", "ğ", "ı", "İ", "Ç", "ü", "ö"} {
		if !strings.Contains(string(jsonText), want) {
			t.Errorf("there is no %s in it", want)
		}
	}
}

type element struct {
	XMLName  xml.Name
	Text     string    `xml:",chardata"`
	Children []element `xml:",any"`
}

func (e element) is(t *testing.T, path string, want any) {
	t.Helper()
	switch want := want.(type) {
	case map[string]any:
		if len(e.Children) != len(want) {
			t.Errorf("%s has %d members, want %d", path, len(e.Children), len(want))
		}
		for _, child := range e.Children {
			child.is(t, path+"."+child.XMLName.Local, want[child.XMLName.Local])
		}
	case []any:
		if len(e.Children) != len(want) {
			t.Fatalf("%s has %d items, want %d", path, len(e.Children), len(want))
		}
		for i, child := range e.Children {
			if child.XMLName.Local+"s" != e.XMLName.Local {
				t.Errorf("an item of %s is a %s", path, child.XMLName.Local)
			}
			child.is(t, fmt.Sprintf("%s[%d]", path, i), want[i])
		}
	default:
		if e.XMLName.Local == "quantity" {
			a, errA := parseQuantity(e.Text)
			b, errB := parseQuantity(fmt.Sprint(want))
			if a != b || errA != nil || errB != nil {
				t.Errorf("%s is %s, want %v", path, e.Text, want)
			}
		} else if fmt.Sprint(want) != e.Text {
			t.Errorf("%s is %q, want %q", path, e.Text, want)
		}
	}
}
