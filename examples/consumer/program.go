package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/examples/internal/metrics"
	"github.com/tekil-go/tekil/requestctx"
	"github.com/tekil-go/tekil/requestctx/msgedge"
	"github.com/tekil-go/tekil/requestctx/msgedge/watermilledge"
)

const (
	drainTime  = 5 * time.Second        // what handlers may take at the end
	pollTime   = 20 * time.Millisecond  // between two looks at the outbox
	retryTime  = 200 * time.Millisecond // until what failed at the outbox or the broker is tried again
	stallTime  = time.Minute            // without any movement, after which nothing more is expected
	countsTime = 50 * time.Millisecond  // between two lines of -counts
	tries      = 5                      // of placing an order
)

// line is a consumer of one topic.
type line struct {
	name     string // for the broker and the table
	consumer string // for the keys
	topic    string
	command  string
	handle   func(*msgedge.Consumer) error
}

// lines are the consumers. They know nothing of each other, and could be programs of their own.
var lines = []line{
	{"mailer", "mailer", placedTopic, string(SendMail{}.CommandName()), func(c *msgedge.Consumer) error {
		return msgedge.Handle[SendMail](c, orderPlaced)
	}},
	{"shipping", "shipping", placedTopic, string(Ship{}.CommandName()), func(c *msgedge.Consumer) error {
		return msgedge.Handle[Ship](c, orderPlaced)
	}},
	{"billing", "billing", placedTopic, string(WriteInvoice{}.CommandName()), func(c *msgedge.Consumer) error {
		return msgedge.Handle[WriteInvoice](c, orderPlaced)
	}},
	{"shipping-collected", "shipping", collectedTopic, string(CloseShipment{}.CommandName()), func(c *msgedge.Consumer) error {
		return msgedge.Handle[CloseShipment](c, orderCollected)
	}},
}

// program is all that runs.
type program struct {
	settings
	db     database
	broker broker
	bus    *bus.Bus
	router *message.Router
	out    *rough
	books  *books
	log    *slog.Logger
	stderr io.Writer

	before     rows
	deadBefore int
	killed     int           // of the other processes
	received   time.Time     // since when
	took       time.Duration // until all was quiet
	ended      chan error    // of the router; nil while it does not run
	stopOthers func()        // ends the processes of -replicas; nil while there are none
	endMetrics func()        // nil without -metrics
}

// start opens database and broker and puts everything together. Nothing is received and nothing sent yet.
func start(ctx context.Context, s settings, stderr io.Writer) (*program, error) {
	db, err := s.open(ctx)
	if err != nil {
		return nil, err
	}
	p := &program{settings: s, db: db, books: newBooks(), stderr: stderr}
	if err := p.start(ctx); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

func (p *program) start(ctx context.Context) (err error) {
	if p.broker, err = p.connect(); err != nil {
		return err
	}
	if err := p.wire(); err != nil {
		return err
	}
	if p.consume { // what there is, is for the other program to say
		return nil
	}
	if p.before, err = p.db.count(ctx); err != nil {
		return err
	}
	p.deadBefore, err = p.broker.dead()
	return err
}

// wire makes the bus, the way out and the ways in.
func (p *program) wire() error {
	lg := slog.New(slog.NewTextHandler(p.stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	p.log = lg
	commands := zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), zapcore.Lock(zapcore.AddSync(p.stderr)), zapcore.ErrorLevel)
	commands = zapcore.NewSamplerWithOptions(commands, time.Second, 3, 0) // with -fail-rate there are many
	logger := watermill.NewSlogLogger(lg)
	observers, err := p.count()
	if err != nil {
		return err
	}
	outbox, err := watermilledge.NewOutbox(p.db.write, watermilledge.PublisherOptions{})
	if err != nil {
		return err
	}
	if p.bus, err = newBus(service{p.db, outbox}, p.db.store(), zap.New(zapcore.NewTee(p.books, commands)), p.failRate, observers...); err != nil {
		return err
	}
	if p.router, err = message.NewRouter(message.RouterConfig{CloseTimeout: drainTime}, logger); err != nil {
		return err
	}
	pub, err := p.broker.publisher(logger)
	if err != nil {
		return err
	}
	p.out = &rough{Publisher: pub, copies: p.duplicate, shuffle: p.shuffle}
	if !p.consume {
		rows, err := p.db.outbox(p.shuffle, logger)
		if err != nil {
			return err
		}
		if _, err := forwarder.NewForwarder(rows, p.out, logger, forwarder.Config{ForwarderTopic: outboxTopic, Router: p.router}); err != nil {
			return err
		}
	}
	if p.replicas > 0 { // they receive
		return nil
	}
	for _, l := range lines {
		c, err := msgedge.New(msgedge.Config{Bus: p.bus, Consumer: l.consumer, Log: lg})
		if err != nil {
			return err
		}
		if err := l.handle(c); err != nil {
			return err
		}
		h, err := watermilledge.Handler(c, watermilledge.Options{
			Topic: l.topic, Deliveries: deliveries, DeadLetters: deadLetters{pub, p.books}, DeadLetterTopic: deadTopic,
			MaxHold: p.broker.hold(),
		})
		if err != nil {
			return err
		}
		sub, err := p.broker.subscriber(l, logger)
		if err != nil {
			return err
		}
		p.router.AddConsumerHandler(l.name, l.topic, sub, h).AddMiddleware(p.books.watch(l.name, lg))
	}
	return nil
}

// count serves at the address of -metrics what the observers count that it gives. Without the flag there are none.
func (p *program) count() ([]bus.Observer, error) {
	if p.metrics == "" {
		return nil, nil
	}
	m, err := metrics.New()
	if err != nil {
		return nil, err
	}
	at, end, err := servePage(p.metrics, m.Page)
	if err != nil {
		return nil, fmt.Errorf("-metrics: %w\nchoose another address, for example -metrics 127.0.0.1:0 for any free port", err)
	}
	p.endMetrics = func() {
		end()
		_ = m.Stop(context.Background())
	}
	fmt.Fprintf(p.stderr, "consumer: what this process counts is at http://%s/metrics, for Prometheus\n", at)
	return []bus.Observer{m.Observer}, nil
}

// drain lets what is being handled come to its end, here and in the other processes. Nothing is received any more.
func (p *program) drain() {
	if p.stopOthers != nil {
		p.stopOthers()
		p.stopOthers = nil
	}
	if p.ended == nil {
		return
	}
	select {
	case <-p.router.Running(): // before, a router waits in vain for its handlers
		if err := p.router.Close(); err != nil { // what has not ended by then is delivered again
			p.log.Error("drain", "error", err)
		}
		<-p.ended
	case <-p.ended:
	}
	p.ended = nil
}

func (p *program) close() {
	p.drain()
	if p.broker != nil {
		p.broker.close()
	}
	p.db.close()
	if p.endMetrics != nil {
		p.endMetrics()
	}
}

// receive starts the forwarder and the consumers, or the processes that they are in. They do not end with a context but with close, so
// that they end in order.
func (p *program) receive() {
	p.received = time.Now()
	if p.replicas > 0 {
		p.stopOthers = p.startOthers()
	}
	ended := make(chan error, 1)
	p.ended = ended
	go func() {
		ended <- p.router.Run(context.Background())
		close(ended)
	}()
}

// serve receives until it is stopped. With -counts it says now and then what it has counted.
func (p *program) serve(ctx context.Context, stdout io.Writer) error {
	p.receive()
	running := p.router.Running()
	tick := time.NewTicker(countsTime)
	defer tick.Stop()
	for {
		select {
		case <-running:
			if !p.counts {
				fmt.Fprintln(stdout, "consumer: receiving until it is stopped")
			}
			running = nil
		case <-tick.C:
			if !p.counts {
				continue
			}
			if err := p.books.tell(stdout); err != nil {
				return err
			}
		case <-ctx.Done():
			p.drain()
			return nil
		case err := <-p.ended:
			return errors.Join(errors.New("the consumers have ended"), err)
		}
	}
}

// work places the orders and waits until nothing is left to be done.
func (p *program) work(ctx context.Context) error {
	if !p.shuffle {
		p.receive()
	}
	run := requestctx.NewID()
	for i := range p.messages {
		if err := p.place(ctx, fmt.Sprintf("%s-%d", run, i), i%10 == 0); err != nil {
			return err
		}
	}
	if p.shuffle {
		p.receive()
	}
	if err := p.settle(ctx); err != nil {
		return err
	}
	p.took = time.Since(p.received)
	p.drain() // what is out for a delivery is acknowledged now or with the broker again
	return nil
}

// place places an order under a key, and does it again should it fail.
func (p *program) place(ctx context.Context, id string, collected bool) (err error) {
	key, err := requestctx.ParseKey(id)
	if err != nil {
		return err
	}
	for range tries {
		in, _ := requestctx.New(ctx, requestctx.Values{Key: key, Scope: requestctx.Scope{Client: "shop"}})
		if _, err = bus.Send(in, p.bus, Place{Item: "tea", Amount: 4990, Email: "ada@example.com", Collected: collected}); err == nil || ctx.Err() != nil {
			return err
		}
	}
	return err
}

// settle waits until the outbox is empty and all consumers have acknowledged all there is. A broker that is away for a while is waited
// for.
func (p *program) settle(ctx context.Context) error {
	tick := time.NewTicker(pollTime)
	defer tick.Stop()
	moved, last := time.Now(), ""
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-p.ended:
			return errors.Join(errors.New("the consumers have ended"), err)
		case <-tick.C:
		}
		left, err := p.left(ctx)
		if err == nil && left == 0 {
			return nil
		}
		if now := fmt.Sprint(left, p.books.all()); err == nil && now != last {
			moved, last = time.Now(), now
		}
		if time.Since(moved) > stallTime {
			return errors.Join(fmt.Errorf("nothing has moved for %v, and there are messages left: %s", stallTime, last), err)
		}
	}
}

// left is how many messages are still on their way.
func (p *program) left(ctx context.Context) (int, error) {
	left, err := p.db.unsent(ctx)
	if err != nil || left > 0 {
		return left, err
	}
	if err := p.out.flush(); err != nil {
		return 0, err
	}
	return p.pending()
}

// pending is how many messages are with the broker.
func (p *program) pending() (all int, err error) {
	for _, l := range lines {
		n, err := p.broker.pending(l)
		if err != nil {
			return 0, err
		}
		all += n
	}
	return all, nil
}

// report prints what was counted, of deliveries those of this process and of the processes of -replicas. The error says which counts are wrong; whether all is done is
// for the program that places orders to know.
func (p *program) report(ctx context.Context, stdout io.Writer) error {
	n, err := p.db.count(ctx)
	if err != nil {
		return err
	}
	dead, err := p.broker.dead()
	if err != nil {
		return err
	}
	pending, err := p.pending()
	if err != nil {
		return err
	}
	var wrong []string
	check := func(what string, got, want int) {
		if got != want && !p.consume {
			wrong = append(wrong, fmt.Sprintf("%s: %d instead of %d", what, got, want))
		}
	}
	placed := n.orders - p.before.orders
	check("orders of this run", placed, p.messages)
	check("events", n.events, n.orders+n.collected)
	check("events that were not sent", n.unsent, 0)
	// A row that is sent once more, because the broker's answer was lost, does no harm.
	sent := p.out.published()
	if want := p.duplicate * (n.events - p.before.events + p.before.unsent); sent < want {
		check("published messages", sent, want)
	}
	check("messages that are not acknowledged", pending, 0)
	check("mails", n.mails, n.orders)
	check("shipments", n.shipments, n.orders)
	check("closed shipments", n.closed, n.collected)
	check("invoices", n.invoices, n.orders)
	check("orders that have not one mail, one invoice and one shipment in its state", n.wrong, 0)
	check("dead letters", dead-p.deadBefore, 0)

	var s strings.Builder // written at once
	w := tabwriter.NewWriter(&s, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "placed\t%d\nevents written\t%d\npublished\t%d\n", placed, n.events-p.before.events, sent)
	if p.took > 0 {
		fmt.Fprintf(w, "took\t%v\n", p.took.Round(10*time.Millisecond))
	}
	if p.kill > 0 {
		fmt.Fprintf(w, "killed\t%d\n", p.killed)
	}
	fmt.Fprintln(w)
	fmt.Fprintln(w, "consumer\tdelivered\tdone\tskipped as duplicate\tput back\tdead-lettered\trows in the database")
	in := map[string]string{
		"mailer": strconv.Itoa(n.mails) + " mails", "shipping": strconv.Itoa(n.shipments) + " shipments",
		"billing": strconv.Itoa(n.invoices) + " invoices", "shipping-collected": strconv.Itoa(n.closed) + " of the shipments closed",
	}
	p.books.mu.Lock()
	for _, l := range lines {
		b := p.books
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t%s\n", l.name,
			b.Delivered[l.name], b.Done[l.command], b.Replayed[l.command], b.PutBack[l.name], b.Dead[l.name], in[l.name])
		if p.kill == 0 { // the killed take with them what they counted last
			check("deliveries to "+l.name+" of which it is known what became",
				b.Done[l.command]+b.Replayed[l.command]+b.PutBack[l.name]+b.Dead[l.name], b.Delivered[l.name])
		}
	}
	p.books.mu.Unlock()
	w.Flush()
	if len(wrong) == 0 && !p.consume {
		s.WriteString("\nall counts are right\n")
	}
	if _, err := io.WriteString(stdout, s.String()); err != nil {
		return err
	}
	if len(wrong) > 0 {
		return fmt.Errorf("not all counts are right\n%s", strings.Join(wrong, "\n"))
	}
	return nil
}
