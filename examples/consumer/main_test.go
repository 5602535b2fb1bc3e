package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	wmsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/nats-io/nats-server/v2/server"
	"go.uber.org/goleak"

	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore/pgtest"
	"github.com/tekil-go/tekil/requestctx/msgedge/watermilledge"
)

// roleVariable says what a process of this binary is that a test has started: the program with the arguments, unless it is a broker.
const roleVariable = "TEKIL_CONSUMER_TEST"

func TestMain(m *testing.M) {
	switch role := os.Getenv(roleVariable); role {
	case "":
		os.Setenv(roleVariable, "program") // for what is started
		flag.Parse()
		goleak.VerifyTestMain(m)
	case "program":
		main()
	default: // the address of a NATS server, and its folder
		serveNATS(role)
	}
}

// patience bounds what a test waits for. It is reached only where something is wrong.
const patience = 60 * time.Second

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// equal compares what can be printed.
func equal[T any](t *testing.T, what string, got, want T) {
	t.Helper()
	if g, w := fmt.Sprintf("%#v", got), fmt.Sprintf("%#v", want); g != w {
		t.Errorf("%s: got  %s\nwant %s", what, g, w)
	}
}

// running gives a program that receives.
func running(t *testing.T) *program {
	t.Helper()
	p := started(t)
	p.receive()
	return p
}

// started gives a program that does not receive yet.
func started(t *testing.T) *program {
	t.Helper()
	s, err := parse([]string{"-sqlite", filepath.Join(t.TempDir(), "consumer.db")}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	p, err := start(within(t), s, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.close)
	return p
}

// send brings a message to the broker, as another program could.
func (p *program) send(t *testing.T, topic, kind, id string, body any) {
	t.Helper()
	payload, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	m := message.NewMessage(id, payload)
	m.Metadata.Set(watermilledge.TypeMetadata, kind)
	if err := p.out.Publish(topic, m); err != nil {
		t.Fatal(err)
	}
}

// settled waits until all is quiet and gives the rows.
func (p *program) settled(t *testing.T) rows {
	t.Helper()
	if err := p.settle(within(t)); err != nil {
		t.Fatal(err)
	}
	n, err := p.db.count(within(t))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// state is that of the shipment of an order.
func (p *program) state(t *testing.T, orderID string) (state string) {
	t.Helper()
	if err := p.db.(sqlite).db.QueryRowContext(within(t), `SELECT state FROM shipments WHERE order_id = ?`, orderID).Scan(&state); err != nil {
		t.Fatal(err)
	}
	return state
}

// table reads the consumers' part of what the program prints: by the consumer's name, the five counts and how many rows there are.
func table(printed string) map[string][]int {
	found := map[string][]int{}
	for _, l := range regexp.MustCompile(`(?m)^(mailer|shipping|billing|shipping-collected) +(\d+) +(\d+) +(\d+) +(\d+) +(\d+) +(\d+) [a-z ]+$`).FindAllStringSubmatch(printed, -1) {
		for _, n := range l[2:] {
			i, _ := strconv.Atoi(n)
			found[l[1]] = append(found[l[1]], i)
		}
	}
	return found
}

func TestW02_W05_W13_EachEventThreeTimesInRandomOrderIsOneMailOneShipmentAndOneInvoice(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := run(within(t), []string{"-messages", "50", "-duplicate", "3", "-shuffle"}, &out, t.Output()); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	counts := table(out.String())
	for name, rows := range map[string]int{"mailer": 50, "shipping": 50, "billing": 50, "shipping-collected": 5} {
		c := counts[name]
		if len(c) != 6 || c[0] < 3*rows {
			t.Fatalf("%s was not sent each event three times:\n%s", name, out.String())
		}
		equal(t, name+", dead letters and rows", c[4:], []int{0, rows})
		if name != "shipping-collected" { // its command has no mark
			equal(t, name+", done and skipped", c[1:3], []int{rows, c[0] - rows - c[3]})
		}
	}
	head, tail := "placed          50\nevents written  55\npublished       165\n", "\nall counts are right\n"
	if s := out.String(); !strings.HasPrefix(s, head) || !strings.HasSuffix(s, tail) {
		t.Errorf("printed:\n%s", s)
	}
}

// elsewhere gives the flags for a PostgreSQL and a NATS server of the test's own.
func elsewhere(t testing.TB) []string {
	t.Helper()
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(), NoSigs: true, NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(patience) {
		t.Fatal("the NATS server does not start")
	}
	return []string{"-postgres", pgtest.Open(t).URL(), "-nats", s.ClientURL()}
}

// The same on servers of which the program knows the addresses alone.
func TestW02_W05_W08_W13_TheSameOnPostgreSQLAndANATSServerThatRunsElsewhere(t *testing.T) {
	t.Parallel()
	servers := elsewhere(t)
	for i, flags := range []string{"-messages 30 -duplicate 3 -shuffle -fail-rate 0.2", "-messages 5"} { // the second finds what the first has left
		var out bytes.Buffer
		if err := run(within(t), append(strings.Fields(flags), servers...), &out, io.Discard); err != nil {
			t.Fatalf("%v\n%s", err, out.String())
		}
		for name, c := range table(out.String()) {
			if name != "shipping-collected" {
				equal(t, name+", done, dead letters and rows", []int{c[1], c[4], c[5]}, []int{[]int{30, 5}[i], 0, []int{30, 35}[i]})
			}
		}
		if !strings.HasSuffix(out.String(), "\nall counts are right\n") {
			t.Errorf("printed:\n%s", out.String())
		}
	}
}

// heard keeps what is written and tells of the first of it.
type heard struct {
	bytes.Buffer
	first chan struct{}
	once  sync.Once
}

func (h *heard) Write(b []byte) (int, error) {
	defer h.once.Do(func() { close(h.first) })
	return h.Buffer.Write(b)
}

func TestW05_FurtherProcessesShareTheWork(t *testing.T) {
	t.Parallel()
	servers := elsewhere(t)
	ctx, stop := context.WithCancel(within(t))
	defer stop()
	var further [2]heard
	ended := make(chan error, len(further))
	for i := range further {
		further[i].first = make(chan struct{})
		go func() { ended <- run(ctx, append([]string{"-consume"}, servers...), &further[i], io.Discard) }()
		select {
		case <-further[i].first:
		case err := <-ended:
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	err := run(within(t), append([]string{"-messages", "60", "-duplicate", "3"}, servers...), &out, io.Discard)
	stop()
	for range further {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	done, processes := 0, 0
	for _, printed := range []string{out.String(), further[0].String(), further[1].String()} {
		c := table(printed)["mailer"]
		if len(c) != 6 {
			t.Fatalf("printed:\n%s", printed)
		}
		if done += c[1]; c[0] > 0 {
			processes++
		}
		equal(t, "mails", c[5], 60)
	}
	equal(t, "done by all of them", done, 60)
	if processes < 2 {
		t.Error("one process got everything")
	}
}

func TestW08_AHandlerThatFailsNowAndThenLosesNothingAndDoesNothingTwice(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := run(within(t), []string{"-messages", "40", "-duplicate", "2", "-fail-rate", "0.3"}, &out, io.Discard); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	counts := table(out.String())
	equal(t, "consumers", slices.Sorted(maps.Keys(counts)), []string{"billing", "mailer", "shipping", "shipping-collected"})
	back := 0
	for _, name := range []string{"mailer", "shipping", "billing"} {
		c := counts[name]
		back += c[3]
		equal(t, name, c, []int{c[0], 40, c[0] - 40 - c[3], c[3], 0, 40})
	}
	if back == 0 {
		t.Error("no handler has failed")
	}
}

func TestW11_AClosedShipmentIsNotReopenedByALateMessage(t *testing.T) {
	t.Parallel()
	p := running(t)
	order := func(id string) Order { return Order{OrderID: id, Item: "tea", Amount: 1, Email: "ada@example.com"} }
	early, late, other := uuid.NewString(), uuid.NewString(), uuid.NewString()

	p.send(t, placedTopic, orderPlaced, "event-other-1", order(other))
	p.send(t, placedTopic, orderPlaced, "event-late-1", order(late))
	p.send(t, collectedTopic, orderCollected, "event-early-1", CloseShipment{early}) // before its order
	p.settled(t)
	equal(t, "states", []string{p.state(t, other), p.state(t, late), p.state(t, early)}, []string{"open", "open", "closed"})

	p.send(t, collectedTopic, orderCollected, "event-late-2", CloseShipment{late})
	p.settled(t)
	p.send(t, placedTopic, orderPlaced, "event-early-2", order(early))
	p.send(t, placedTopic, orderPlaced, "event-late-3", order(late)) // of another id, so that no record holds it back
	n := p.settled(t)
	equal(t, "states", []string{p.state(t, other), p.state(t, late), p.state(t, early)}, []string{"open", "closed", "closed"})
	equal(t, "shipments", n.shipments, 3)
	p.books.mu.Lock()
	defer p.books.mu.Unlock()
	equal(t, "shipments asked for and made, or found", p.books.Done["shipping.ship"], 4)
}

func TestN15_EventsAreWrittenWithTheOrderAndAReplayEmitsNothing(t *testing.T) {
	t.Parallel()
	p := started(t)
	for range 3 {
		if err := p.place(within(t), "the-one-order", true); err != nil {
			t.Fatal(err)
		}
	}
	n, err := p.db.count(within(t))
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "orders, events, unsent", []int{n.orders, n.events, n.unsent}, []int{1, 2, 2})
	ids := map[string]bool{}
	found, err := p.db.(sqlite).db.QueryContext(within(t), `SELECT payload FROM outbox`)
	if err != nil {
		t.Fatal(err)
	}
	defer found.Close()
	for found.Next() {
		var payload []byte
		var sent struct{ UUID string }
		if err := errors.Join(found.Scan(&payload), json.Unmarshal(payload, &sent)); err != nil {
			t.Fatal(err)
		}
		ids[sent.UUID] = len(sent.UUID) == 43
	}
	equal(t, "ids", slices.Collect(maps.Values(ids)), []bool{true, true})
}

func TestN15_OfAnOrderThatFailsThereAreNoEvents(t *testing.T) {
	t.Parallel()
	p := started(t)
	db := p.db.(sqlite)
	if err := db.exec(within(t), `CREATE TRIGGER full BEFORE INSERT ON outbox WHEN (SELECT count(*) FROM outbox) = 1
		BEGIN SELECT RAISE(ABORT, 'the outbox is full'); END`); err != nil {
		t.Fatal(err)
	}
	written := func() []int {
		n, err := p.db.count(within(t))
		if err != nil {
			t.Fatal(err)
		}
		return []int{n.orders, n.events}
	}
	if err := p.place(within(t), "the-one-order", true); err == nil { // its second event does not go in
		t.Error("placed")
	}
	equal(t, "orders and events", written(), []int{0, 0})
	if err := errors.Join(db.exec(within(t), `DROP TRIGGER full`), p.place(within(t), "the-one-order", true)); err != nil {
		t.Fatal(err)
	}
	equal(t, "orders and events", written(), []int{1, 2})
}

// A batch that ends early, because the broker is away or the program stops, marks what has been sent and nothing else.
func TestW13_OnlyRowsThatWereSentAreMarked(t *testing.T) {
	t.Parallel()
	batch := []wmsql.Row{{Offset: 30}, {Offset: 10}, {Offset: 20}} // as shuffled
	for last, marked := range map[int64]string{30: "[30]", 10: "[30 10]", 20: "[30 10 20]"} {
		q, err := outboxMarks{}.AckMessageQuery(wmsql.AckMessageQueryParams{Rows: batch, LastRow: wmsql.Row{Offset: last}})
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "marked", fmt.Sprint(q.Args), marked)
		equal(t, "places for them", strings.Count(q.Query, "?"), len(q.Args))
	}
}

func TestW04_W06_WhatNobodyCanHandleIsSetAsideAndTheProgramSaysSo(t *testing.T) {
	t.Parallel()
	p := running(t)
	id := uuid.NewString()
	p.send(t, placedTopic, orderPlaced, "event-1111", Order{OrderID: id, Item: "tea", Amount: 1, Email: "ada@example.com"})
	p.settled(t)
	p.send(t, placedTopic, orderPlaced, "event-1111", Order{OrderID: id, Item: "tea", Amount: 2, Email: "ada@example.com"})
	p.send(t, placedTopic, orderPlaced, "", Order{OrderID: id, Item: "tea", Amount: 1, Email: "ada@example.com"})
	p.settled(t)
	err := p.report(within(t), io.Discard)
	if err == nil || !strings.Contains(err.Error(), "\ndead letters: 6 instead of 0") {
		t.Errorf("the report says: %v", err)
	}
}

// The program does not believe its own books.
func TestTheProgramSaysWhichCountIsWrong(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ fault, says string }{
		"a mail too many":      {`INSERT INTO mails (order_id, email) SELECT order_id, email FROM mails LIMIT 1`, "mails: 6 instead of 5\norders that have not one mail, one invoice and one shipment in its state: 1 instead of 0"},
		"an invoice too few":   {`DELETE FROM invoices WHERE invoice_id = 1`, "invoices: 4 instead of 5\norders that have not one mail, one invoice and one shipment in its state: 1 instead of 0"},
		"a shipment reopened":  {`UPDATE shipments SET state = 'open'`, "closed shipments: 1 instead of 2\norders that have not one mail, one invoice and one shipment in its state: 1 instead of 0"},
		"one twice, one never": {`UPDATE mails SET order_id = (SELECT max(order_id) FROM mails) WHERE order_id = (SELECT min(order_id) FROM mails)`, "orders that have not one mail, one invoice and one shipment in its state: 2 instead of 0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "consumer.db")
			if err := run(within(t), []string{"-messages", "3", "-sqlite", file}, io.Discard, t.Output()); err != nil {
				t.Fatal(err)
			}
			db, err := openSQLite(within(t), file)
			if err != nil {
				t.Fatal(err)
			}
			if err := db.exec(within(t), c.fault); err != nil {
				t.Fatal(err)
			}
			if err := db.db.Close(); err != nil {
				t.Fatal(err)
			}
			err = run(within(t), []string{"-messages", "2", "-sqlite", file}, io.Discard, t.Output())
			equal(t, "error", fmt.Sprint(err), "not all counts are right\n"+c.says)
		})
	}
}

// Stopped in the middle, by SIGTERM in the program, it goes on with what is in the file.
func TestW15_AStoppedProgramGoesOnWhereItWas(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "consumer.db")
	db, err := openSQLite(within(t), file)
	if err != nil {
		t.Fatal(err)
	}
	defer db.db.Close()
	ctx, stop := context.WithCancel(within(t))
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, []string{"-messages", "100000", "-duplicate", "2", "-sqlite", file}, io.Discard, io.Discard)
	}()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for n := (rows{}); n.mails < 5; <-tick.C {
		if n, err = db.count(within(t)); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	equal(t, "error", fmt.Sprint(<-ended), "stopped before all was done; started again on the same -sqlite, or the same servers, it goes on where it was")
	stopped, err := db.count(within(t))
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := run(within(t), []string{"-messages", "1", "-sqlite", file}, &out, t.Output()); err != nil {
		t.Fatal(err)
	}
	equal(t, "mails", table(out.String())["mailer"][5], stopped.orders+1)
}

// A bad configuration never starts.
func TestABadConfigurationNeverStarts(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	for _, c := range []struct{ flags, says string }{
		{"-messages -1", "-messages is -1; it must not be negative"},
		{"-duplicate 0", "-duplicate is 0; 1 sends each event once, 3 three times"},
		{"-fail-rate 0.6", "-fail-rate is 0.6; it is a share, from 0 for never to 0.5 for every other run"},
		{"-fail-rate NaN", "-fail-rate is NaN; it is a share, from 0 for never to 0.5 for every other run"},
		{"-sqlite a -postgres b", "-sqlite and -postgres exclude each other; choose one database"},
		{"-postgres postgres://127.0.0.1/consumer", "-postgres outlives the broker in the program; add -nats URL or -rabbitmq URL"},
		{"-nats nats://127.0.0.1", "the broker outlives a database that is removed; add -postgres URL or -sqlite PATH"},
		{"-sqlite " + filepath.Join(folder, "a.db") + " -nats nats://ada:secret@127.0.0.1:1", "-nats: nats: no servers available for connection\nname a NATS server"},
		{"-postgres postgres://ada:secret@127.0.0.1:1/consumer?sslmode=disable -nats nats://127.0.0.1:1", "-postgres: pgstore: migrate: failed to connect to `user=ada database=consumer`"},
		{"-consume", "-consume shares a broker with the program that places orders; add -nats URL or -rabbitmq URL"},
		{"-consume -nats nats://127.0.0.1 -postgres postgres://127.0.0.1 -shuffle", "-messages, -duplicate, -shuffle, -replicas and -kill are for the program that places orders, and not for -consume"},
		{"-nats nats://127.0.0.1 -rabbitmq amqp://127.0.0.1", "-nats and -rabbitmq exclude each other; choose one broker"},
		{"-rabbitmq amqp://127.0.0.1", "the broker outlives a database that is removed; add -postgres URL or -sqlite PATH"},
		{"-counts", "-counts is for -consume alone"},
		{"-replicas -1", "-replicas is -1; it must not be negative"},
		{"-replicas 2", "-replicas are processes, which share a broker; add -nats URL or -rabbitmq URL"},
		{"-metrics 9464", "-metrics: address 9464: missing port in address; give an address with a port, for example -metrics 127.0.0.1:0"},
		{"-metrics 192.0.2.1:1", "-metrics: listen tcp 192.0.2.1:1: bind: "},
		{"-kill 2s", "-kill is a time, such as 2s, between two kills among the -replicas; add -replicas N"},
		{"-sqlite " + filepath.Join(folder, "b.db") + " -rabbitmq amqp://ada:secret@127.0.0.1:1/", "-rabbitmq: "},
		{"-sqlite=", "-sqlite is empty; is a variable of the shell not set?"},
		{"consumer.db", `unexpected argument "consumer.db"; all settings are flags, see -help`},
		{"-messages many", `invalid value "many" for flag -messages: parse error`},
		{"-sqlite " + folder, "-sqlite " + folder + ": sqlitestore: migrate: "},
	} {
		err := run(within(t), strings.Fields(c.flags), io.Discard, io.Discard)
		if err == nil || !strings.HasPrefix(err.Error(), c.says) {
			t.Errorf("%s: %v", c.flags, err)
		}
	}
}
