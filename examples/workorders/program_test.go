package main

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// childEnv makes the test binary the program itself.
const childEnv = "TEKIL_WORKORDERS_CHILD"

// orphaned is the exit code of a child whose test has ended without it.
const orphaned = 97

func init() {
	if _, child := os.LookupEnv(childEnv); !child {
		return
	}
	go func() { // a test that is killed takes its children along: the kernel closes its end of their standard input
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(orphaned)
	}()
	main()
	os.Exit(0)
}

// program is the service in a process of its own.
type program struct {
	*database
	cmd    *exec.Cmd
	base   string        // its address, once it listens
	exited chan struct{} // closed when it has ended
	stdout buffer
	stderr buffer
}

var errExited = errors.New("the program has ended before it listened")

// launch starts the program with variables of the environment and waits until it listens. Where it ends before, the error is errExited.
func launch(d *database, env []string, flags ...string) (*program, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &program{database: d, cmd: exec.Command(self, append(append([]string{"-addr", "127.0.0.1:0"}, d.flags()...), flags...)...), exited: make(chan struct{})}
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, "IDEMPOTENCY_") {
			p.cmd.Env = append(p.cmd.Env, entry)
		}
	}
	p.cmd.Env = append(append(p.cmd.Env, childEnv+"=1"), env...)
	p.cmd.Stderr = &p.stderr
	if _, err := p.cmd.StdinPipe(); err != nil { // open as long as this process lives
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	listening := make(chan string, 1)
	go func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			_, _ = fmt.Fprintln(&p.stdout, lines.Text())
			if base, ok := strings.CutPrefix(lines.Text(), "workorders: listening on "); ok {
				listening <- base
			}
		}
		_ = p.cmd.Wait()
		close(p.exited)
	}()
	select {
	case p.base = <-listening:
		return p, nil
	case <-p.exited:
		return p, errExited
	case <-time.After(patience):
		p.kill()
		return p, fmt.Errorf("the program did not listen in %v", patience)
	}
}

// kill ends it by SIGKILL and waits.
func (p *program) kill() {
	_ = p.cmd.Process.Kill() // it may have ended already
	<-p.exited
}

// start starts the program on a free port and kills it at the end of the test.
func start(t *testing.T, d *database, env []string, flags ...string) *program {
	t.Helper()
	p, err := launch(d, env, flags...)
	if p != nil {
		t.Cleanup(func() {
			p.kill()
			for _, sign := range [...]string{"DATA RACE", "panic:", "fatal error:", "httpedge: panic"} {
				if strings.Contains(p.stderr.String(), sign) {
					t.Errorf("the program says %q:\n%s", sign, p.stderr.String())
				}
			}
			if strings.Contains(p.stderr.String(), secret) {
				t.Errorf("the log holds the body of a request:\n%s", p.stderr.String())
			}
		})
	}
	if err != nil {
		t.Fatalf("%v: %s", err, p.stderr.String())
	}
	return p
}

// secret stands in the descriptions of the work orders that tests send, and must not stand in a log.
const secret = "gizli"

// logged waits for the lines of the log that are about an attempt.
func (p *program) logged(t *testing.T, requestID string) (lines []map[string]any) {
	t.Helper()
	for until := time.Now().Add(patience); len(lines) == 0; {
		if time.Now().After(until) {
			t.Fatalf("there is no line about %s in the log", requestID)
		}
		for text := range strings.Lines(p.stderr.String()) {
			var line map[string]any
			if strings.Contains(text, requestID) && json.Unmarshal([]byte(text), &line) == nil && line["request_id"] == requestID {
				lines = append(lines, line)
			}
		}
	}
	return lines
}

// past is SQL for a moment that is over.
func (d *database) past() string {
	if d.postgres == nil {
		return `1`
	}
	return `clock_timestamp() - interval '1 second'`
}

// expireLeases moves the end of all leases into the past, as time would.
func (d *database) expireLeases(t *testing.T) {
	t.Helper()
	d.exec(t, `UPDATE idempotency_records SET lease_until = `+d.past()+` WHERE state = 'in_progress'`)
}

// awaitText asks until the answer is want.
func (d *database) awaitText(t *testing.T, query, want string) {
	t.Helper()
	got := ""
	for until := time.Now().Add(patience); time.Now().Before(until); {
		if got = d.text(t, query); got == want {
			return
		}
	}
	t.Fatalf("%s is %s and not %s after %v", query, got, want, patience)
}

// awaitUnderWay waits until an import with a key is claimed and at work.
func (d *database) awaitUnderWay(t *testing.T, key string) {
	t.Helper()
	d.awaitText(t, `SELECT count(*) FROM idempotency_records WHERE state = 'in_progress' AND key = '`+key+`'`, "1")
}

// contents are the rows of every table of the database, as texts in no order that means something.
func (d *database) contents(t *testing.T) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	if d.postgres == nil {
		d.sqlite(t, func(db *sql.DB) error {
			names, err := sqliteRows(db, `SELECT name FROM sqlite_schema WHERE type = 'table'`)
			for _, name := range names {
				if name = strings.Trim(name, "[]"); err == nil {
					all[name], err = sqliteRows(db, `SELECT * FROM "`+name+`"`)
				}
			}
			return err
		})
	} else {
		rows := func(query string) []string {
			found, err := d.postgres.Pool().Query(within(t), query)
			if err != nil {
				t.Fatal(err)
			}
			lines, err := pgx.CollectRows(found, func(row pgx.CollectableRow) (string, error) {
				values, err := row.Values()
				return fmt.Sprint(values), err
			})
			if err != nil {
				t.Fatal(err)
			}
			return lines
		}
		for _, name := range rows(`SELECT table_name::text FROM information_schema.tables WHERE table_schema = current_schema()`) {
			name = strings.Trim(name, "[]")
			all[name] = rows(`SELECT * FROM "` + name + `"`)
		}
	}
	for _, lines := range all {
		slices.Sort(lines)
	}
	return all
}

func sqliteRows(db *sql.DB, query string) (lines []string, err error) {
	rows, err := db.Query(query)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	columns, err := rows.Columns()
	for err == nil && rows.Next() {
		values, at := make([]any, len(columns)), make([]any, len(columns))
		for i := range values {
			at[i] = &values[i]
		}
		err = rows.Scan(at...)
		lines = append(lines, fmt.Sprint(values))
	}
	return lines, errors.Join(err, rows.Err())
}

// answer is what came back.
type answer struct {
	status int
	header http.Header
	body   []byte
}

func (a answer) String() string { return fmt.Sprintf("%d %v %s", a.status, a.header, a.body) }

func (a answer) id() string { return a.header.Get("X-Request-ID") }

func (a answer) replayed() string { return a.header.Get("Idempotency-Replayed") }

// node is a value of a body, whichever format it came in.
type node struct {
	name     string
	text     string // of a value without others in it
	children []node
}

func (n node) String() string {
	if len(n.children) == 0 {
		return n.name + "=" + n.text
	}
	return fmt.Sprint(n.name, n.children)
}

// at finds a value by a path such as data.projects.0.status; "" where there is none.
func (n node) at(path string) string {
	for name := range strings.SplitSeq(path, ".") {
		i, err := strconv.Atoi(name)
		if err != nil {
			i = slices.IndexFunc(n.children, func(c node) bool { return c.name == name })
		}
		if i < 0 || i >= len(n.children) {
			return ""
		}
		n = n.children[i]
	}
	return n.text
}

// without is n without one of its children.
func (n node) without(name string) node {
	n.children = slices.DeleteFunc(slices.Clone(n.children), func(c node) bool { return c.name == name })
	return n
}

// tree reads the body. Items of a list have no name, in XML as in JSON.
func (a answer) tree() (node, error) {
	if a.header.Get("Content-Type") == "application/xml" {
		var root struct {
			XMLName xml.Name
			Inner   []xmlNode `xml:",any"`
		}
		err := xml.Unmarshal(a.body, &root)
		if err == nil && root.XMLName.Local != "response" {
			err = fmt.Errorf("the root is %s", root.XMLName.Local)
		}
		return xmlNode{XMLName: root.XMLName, Inner: root.Inner}.node(), err
	}
	if got := a.header.Get("Content-Type"); got != "application/json" {
		return node{}, fmt.Errorf("the answer is %s", got)
	}
	d := json.NewDecoder(bytes.NewReader(a.body))
	d.UseNumber()
	return jsonNode(d, "response")
}

type xmlNode struct {
	XMLName xml.Name
	Text    string    `xml:",chardata"`
	Inner   []xmlNode `xml:",any"`
}

// listItems are the names of the items of lists.
var listItems = []string{"project", "work_order", "error"}

func (x xmlNode) node() node {
	n := node{name: x.XMLName.Local, text: x.Text}
	if slices.Contains(listItems, n.name) {
		n.name = ""
	}
	for _, inner := range x.Inner {
		n.children = append(n.children, inner.node())
	}
	return n
}

// jsonNode reads a value in the order of its members, which encoding/json would lose.
func jsonNode(d *json.Decoder, name string) (node, error) {
	n := node{name: name}
	token, err := d.Token()
	delim, nested := token.(json.Delim)
	if !nested {
		n.text = fmt.Sprint(token)
		return n, err
	}
	for err == nil && d.More() {
		name := ""
		if delim == '{' {
			token, err = d.Token()
			name = fmt.Sprint(token)
		}
		var child node
		if err == nil {
			child, err = jsonNode(d, name)
		}
		n.children = append(n.children, child)
	}
	if err == nil {
		_, err = d.Token()
	}
	return n, err
}

// request is what is sent: the lines of its head as they are to stand on the wire, and the body.
type request struct {
	method, path string
	lines        []string
	body         string
}

// exchange sends a request over a connection of its own, byte by byte as it is said.
func exchange(ctx context.Context, base string, r request) (answer, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", strings.TrimPrefix(base, "http://"))
	if err != nil {
		return answer{}, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	head := []string{r.method + " " + r.path + " HTTP/1.1", "Host: workorders", "Connection: close"}
	head = append(head, r.lines...)
	if r.body != "" || r.method == http.MethodPost {
		head = append(head, "Content-Length: "+strconv.Itoa(len(r.body)))
	}
	if _, err := io.WriteString(conn, strings.Join(head, "\r\n")+"\r\n\r\n"+r.body); err != nil {
		return answer{}, err
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: r.method})
	if err != nil {
		return answer{}, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return answer{res.StatusCode, res.Header, body}, err
}

// post sends an import in a format and has to be answered.
func (p *program) post(t *testing.T, key, format, body string) answer {
	t.Helper()
	a, err := p.send(within(t), key, format, body)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func (p *program) send(ctx context.Context, key, format, body string) (answer, error) {
	return exchange(ctx, p.base, request{http.MethodPost, importPath, []string{"Content-Type: application/" + format, "Idempotency-Key: " + key}, body})
}

// is demands a status and the code of the envelope.
func (a answer) is(t *testing.T, status int, code string) node {
	t.Helper()
	n, err := a.tree()
	if err != nil || a.status != status || n.at("code") != code {
		t.Fatalf("want %d %s: %v (%v)", status, code, a, err)
	}
	return n
}

// asJSON and asXML write an import as an ERP might. They are not the code that the service reads and writes with.
func asJSON(c Import) string {
	text, err := json.Marshal(c)
	if err != nil {
		panic(err)
	}
	return string(text)
}

func asXML(c Import) string {
	var b strings.Builder
	text := func(name, value string) {
		fmt.Fprintf(&b, "<%s>", name)
		_ = xml.EscapeText(&b, []byte(value)) // a builder takes all
		fmt.Fprintf(&b, "</%s>", name)
	}
	b.WriteString(`<?xml version="1.0" encoding="UTF-8"?><work_orders>`)
	text("company_code", c.CompanyCode)
	text("organization_code", c.OrganizationCode)
	b.WriteString("<projects>")
	for _, p := range c.Projects {
		b.WriteString("<project>")
		text("project_code", p.ProjectCode)
		b.WriteString("<work_orders>")
		for _, w := range p.WorkOrders {
			b.WriteString("<work_order>")
			text("work_order_number", w.WorkOrderNumber)
			text("description", w.Description)
			text("planned_start", w.PlannedStart.String())
			text("planned_end", w.PlannedEnd.String())
			b.WriteString("<lines>")
			for _, l := range w.Lines {
				b.WriteString("<line>")
				text("line_number", strconv.Itoa(l.LineNumber))
				text("item_code", l.ItemCode)
				text("description", l.Description)
				text("quantity", l.Quantity.String())
				text("unit", l.Unit)
				b.WriteString("</line>")
			}
			b.WriteString("</lines></work_order>")
		}
		b.WriteString("</work_orders></project>")
	}
	b.WriteString("</projects></work_orders>")
	return b.String()
}

// written is an import in a format.
func written(c Import, format string) string {
	if format == "xml" {
		return asXML(c)
	}
	return asJSON(c)
}
