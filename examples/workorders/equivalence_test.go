package main

import (
	"encoding/xml"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf16"

	"go.uber.org/zap"
	"pgregory.net/rapid"
)

// A random import is one import in every writing of it, in JSON and in XML, and with any one value changed it is another (rule rec-9).
func TestF02_EveryWritingOfAnImportIsOneAndAnyChangeIsAConflict(t *testing.T) {
	t.Parallel()
	kept, records := sqliteDatabase(t).open(t)
	handler, err := newServer(kept, records, zap.NewNop(), defaults)
	if err != nil {
		t.Fatal(err)
	}
	documents := 0
	rapid.Check(t, func(t *rapid.T) {
		cmd := anImport().Draw(t, "import")
		w := writer{rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "writing"), 0))}
		documents++
		key := fmt.Sprintf("document-%d", documents) // a new one for every run, when a failure is made smaller as well
		post := func(format string, c Import) *httptest.ResponseRecorder {
			body := w.write(format, tree(c))
			r := httptest.NewRequest(http.MethodPost, importPath, strings.NewReader(body))
			r.Header.Set("Content-Type", "application/"+format)
			r.Header.Set("Idempotency-Key", key)
			a := httptest.NewRecorder()
			handler.ServeHTTP(a, r)
			if a.Code != http.StatusOK && a.Code != http.StatusConflict {
				t.Fatalf("the answer is %d %s to\n%s", a.Code, a.Body, body)
			}
			return a
		}
		formats := []string{"json", "xml"}
		w.Shuffle(2, func(i, j int) { formats[i], formats[j] = formats[j], formats[i] })
		first := post(formats[0], cmd)
		if first.Header().Get("Idempotency-Replayed") != "false" || strings.Contains(first.Body.String(), "KEY_CONFLICT") {
			t.Fatalf("the first answer is %v %s", first.Header(), first.Body)
		}
		replayed := func(format string) {
			a := post(format, cmd)
			if a.Code != first.Code || a.Header().Get("Idempotency-Replayed") != "true" ||
				a.Header().Get("Idempotency-Original-Request-ID") != first.Header().Get("X-Request-ID") {
				t.Fatalf("%s, then %s: it is no replay: %v %s", formats[0], format, a.Header(), a.Body)
			}
		}
		for _, format := range []string{formats[1], formats[0], formats[1]} {
			replayed(format)
		}
		changed := copied(cmd)
		all := changes(&changed)
		c := all[rapid.IntRange(0, len(all)-1).Draw(t, "change")]
		c.do()
		for _, format := range formats {
			if a := post(format, changed); a.Code != http.StatusConflict || !strings.Contains(a.Body.String(), "IDEMPOTENCY_KEY_CONFLICT") {
				t.Fatalf("%s, then %s with another %s: it is no conflict: %d %v %s", formats[0], format, c.what, a.Code, a.Header(), a.Body)
			}
		}
		replayed(formats[w.IntN(2)])
	})
	if documents < 100 {
		t.Errorf("these were %d documents; give -rapid.checks 100 or more", documents)
	}
}

// anImport draws an import that is valid, of projects that are open, closed and unknown.
func anImport() *rapid.Generator[Import] {
	code := func(prefix string, most int) *rapid.Generator[string] { // what stands before it makes it unlike the others
		return rapid.Custom(func(t *rapid.T) string {
			return prefix + rapid.StringMatching(fmt.Sprintf(`[!-~]{1,%d}`, most)).Draw(t, "code")
		})
	}
	text := func(least, most int) *rapid.Generator[string] {
		runes := []rune("abc XYZ019 \t\n<>&\"'\\/]]>--{}[],:ığüşöçİĞÜŞÖÇ²°\u0308\u2028\ufffd水🔧")
		return rapid.StringOfN(rapid.SampledFrom(runes), least, most, -1)
	}
	return rapid.Custom(func(t *rapid.T) Import {
		c := Import{CompanyCode: "TEKIL-TR", OrganizationCode: rapid.SampledFrom([]string{"IST-01", "ANK-01"}).Draw(t, "organisation")}
		orders := 0
		codes := rapid.Permutation([]string{"PRJ-1001", "PRJ-1002", "PRJ-1003", "PRJ-9999"}).Draw(t, "projects")
		for _, projectCode := range codes[:rapid.IntRange(1, 3).Draw(t, "number of projects")] {
			p := Project{ProjectCode: projectCode}
			for range rapid.IntRange(1, 3).Draw(t, "number of work orders") {
				start := rapid.IntRange(0, 300_000).Draw(t, "start")
				w := WorkOrder{
					WorkOrderNumber: code(fmt.Sprint(orders), 28).Draw(t, "number"), Description: text(0, 20).Draw(t, "description"),
					PlannedStart: dayAfter(day("1900-01-01"), start), PlannedEnd: dayAfter(day("1900-01-01"), start+rapid.IntRange(0, 1000).Draw(t, "days")),
				}
				orders++
				for k := range rapid.IntRange(1, 3).Draw(t, "number of lines") {
					w.Lines = append(w.Lines, Line{
						LineNumber: 10*rapid.IntRange(1, 99_998).Draw(t, "line number") + k, ItemCode: code("", 32).Draw(t, "item"), Description: text(0, 20).Draw(t, "description"),
						Quantity: Quantity(rapid.Int64Range(1, 999_999_999_999_999_998).Draw(t, "quantity")), Unit: text(1, 15).Draw(t, "unit"),
					})
				}
				p.WorkOrders = append(p.WorkOrders, w)
			}
			c.Projects = append(c.Projects, p)
		}
		return c
	})
}

func dayAfter(d Date, days int) Date {
	at, err := time.Parse(time.DateOnly, d.String())
	if err != nil {
		panic(err)
	}
	return day(at.AddDate(0, 0, days).Format(time.DateOnly))
}

func copied(c Import) Import {
	c.Projects = slices.Clone(c.Projects)
	for i := range c.Projects {
		p := &c.Projects[i]
		p.WorkOrders = slices.Clone(p.WorkOrders)
		for j := range p.WorkOrders {
			p.WorkOrders[j].Lines = slices.Clone(p.WorkOrders[j].Lines)
		}
	}
	return c
}

// change makes one thing of an import another, and leaves it valid.
type change struct {
	what string
	do   func()
}

// changes are all that can be changed.
func changes(c *Import) (all []change) {
	can := func(what string, do func()) { all = append(all, change{what, do}) }
	other := func(s *string) func() { // the last character
		return func() {
			last := byte('x')
			if strings.HasSuffix(*s, "x") {
				last = 'y'
			}
			*s = (*s)[:len(*s)-1] + string(last)
		}
	}
	longer := func(s *string) func() { return func() { *s += " " } }
	for i := range c.Projects {
		p := &c.Projects[i]
		can("project code", func() { p.ProjectCode += "x" })
		if i > 0 {
			can("order of projects", func() { c.Projects[i-1], c.Projects[i] = c.Projects[i], c.Projects[i-1] })
		}
		for j := range p.WorkOrders {
			w := &p.WorkOrders[j]
			can("work order number", other(&w.WorkOrderNumber))
			can("description of a work order", longer(&w.Description))
			can("start", func() { w.PlannedStart = dayAfter(w.PlannedStart, -1) })
			can("end", func() { w.PlannedEnd = dayAfter(w.PlannedEnd, 1) })
			if j > 0 {
				can("order of work orders", func() { p.WorkOrders[j-1], p.WorkOrders[j] = p.WorkOrders[j], p.WorkOrders[j-1] })
			}
			for k := range w.Lines {
				l := &w.Lines[k]
				can("line number", func() { l.LineNumber += 5 })
				can("item code", other(&l.ItemCode))
				can("description of a line", longer(&l.Description))
				can("quantity", func() { l.Quantity++ })
				can("unit", longer(&l.Unit))
				if k > 0 {
					can("order of lines", func() { w.Lines[k-1], w.Lines[k] = w.Lines[k], w.Lines[k-1] })
				}
			}
		}
	}
	return all
}

// value is a document between its two writings: a text, a number, an object of named values or a list of items with one name.
type value struct {
	name      string
	text      string
	number    bool // in JSON without quotes
	quantity  bool // or with them
	mayBeLeft bool // it is nothing, and may be left out
	members   []value
	item      string // the name of a list's items
}

func tree(c Import) value {
	text := func(name, s string) value { return value{name: name, text: s} }
	maybe := func(name, s string) value { return value{name: name, text: s, mayBeLeft: s == ""} }
	projects := value{name: "projects", item: "project"}
	for _, p := range c.Projects {
		orders := value{name: "work_orders", item: "work_order"}
		for _, w := range p.WorkOrders {
			lines := value{name: "lines", item: "line"}
			for _, l := range w.Lines {
				lines.members = append(lines.members, value{members: []value{
					{name: "line_number", text: strconv.Itoa(l.LineNumber), number: true}, text("item_code", l.ItemCode), maybe("description", l.Description),
					{name: "quantity", text: l.Quantity.String(), quantity: true}, text("unit", l.Unit),
				}})
			}
			orders.members = append(orders.members, value{members: []value{
				text("work_order_number", w.WorkOrderNumber), maybe("description", w.Description),
				text("planned_start", w.PlannedStart.String()), text("planned_end", w.PlannedEnd.String()), lines,
			}})
		}
		projects.members = append(projects.members, value{members: []value{text("project_code", p.ProjectCode), orders}})
	}
	return value{members: []value{text("company_code", c.CompanyCode), text("organization_code", c.OrganizationCode), projects}}
}

// writer writes a document in one of its many ways.
type writer struct{ *rand.Rand }

func (w writer) write(format string, v value) string {
	var b strings.Builder
	if format == "json" {
		w.json(&b, v)
		return b.String()
	}
	if w.IntN(2) == 0 {
		b.WriteString(`<?xml version="1.0" encoding="UTF-8"?>`)
	}
	prefix := []string{"", "erp:"}[w.IntN(2)]
	v.name = Import{}.XMLRoot()
	w.xml(&b, prefix, v)
	return strings.Replace(b.String(), "<"+prefix+v.name, "<"+prefix+v.name+[]string{"", ` xmlns:erp="urn:erp"`}[len(prefix)/4], 1)
}

// space is what may stand between two parts of a document.
func (w writer) space() string { return []string{"", "", " ", "\n\t"}[w.IntN(4)] }

// shuffled are the members of an object in any order, without some of those that are nothing.
func (w writer) shuffled(members []value) (out []value) {
	for _, m := range members {
		if !m.mayBeLeft || w.IntN(2) == 0 {
			out = append(out, m)
		}
	}
	w.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}

// quantity is a number with more or fewer noughts behind the point.
func (w writer) quantity(s string) string {
	whole, fraction, _ := strings.Cut(s, ".")
	if fraction += strings.Repeat("0", w.IntN(fractionDigits-len(fraction)+1)); fraction == "" {
		return whole
	}
	return whole + "." + fraction
}

func (w writer) json(b *strings.Builder, v value) {
	b.WriteString(w.space())
	defer func() { b.WriteString(w.space()) }()
	list := func(open, end string, members []value, one func(value)) {
		b.WriteString(open)
		for i, m := range members {
			if i > 0 {
				b.WriteString(",")
			}
			one(m)
		}
		b.WriteString(w.space() + end)
	}
	switch {
	case v.item != "":
		list("[", "]", v.members, func(m value) { w.json(b, m) })
	case v.members != nil:
		list("{", "}", w.shuffled(v.members), func(m value) {
			b.WriteString(w.space())
			w.jsonText(b, m.name)
			b.WriteString(w.space() + ":")
			w.json(b, m)
		})
	case v.quantity && w.IntN(2) == 0:
		b.WriteString(w.quantity(v.text))
	case v.quantity:
		w.jsonText(b, w.quantity(v.text))
	case v.number:
		b.WriteString(v.text)
	case v.mayBeLeft && w.IntN(2) == 0:
		b.WriteString("null")
	default:
		w.jsonText(b, v.text)
	}
}

func (w writer) jsonText(b *strings.Builder, s string) {
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r < ' ' || r == '"' || r == '\\' || w.IntN(5) == 0:
			for _, unit := range utf16.Encode([]rune{r}) {
				fmt.Fprintf(b, `\u%04x`, unit)
			}
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
}

func (w writer) xml(b *strings.Builder, prefix string, v value) {
	name := prefix + v.name
	between := func() {
		b.WriteString(w.space())
		if w.IntN(8) == 0 {
			b.WriteString("<!-- a remark -->")
		}
	}
	members := v.members
	if v.item == "" {
		members = w.shuffled(members)
	}
	fmt.Fprintf(b, "<%s>", name)
	switch {
	case v.members != nil:
		for _, m := range members {
			if v.item != "" {
				m.name = v.item
			}
			between()
			w.xml(b, prefix, m)
		}
		between()
	case v.number:
		b.WriteString(w.space() + v.text + w.space())
	case v.quantity:
		b.WriteString(w.quantity(v.text))
	case w.IntN(3) == 0 && !strings.Contains(v.text, "]]>"):
		b.WriteString("<![CDATA[" + v.text + "]]>")
	default:
		for _, r := range v.text {
			if w.IntN(5) == 0 {
				fmt.Fprintf(b, []string{"&#%d;", "&#x%x;"}[w.IntN(2)], r)
			} else {
				_ = xml.EscapeText(b, []byte(string(r))) // a builder takes all
			}
		}
	}
	fmt.Fprintf(b, "</%s>", name)
}
