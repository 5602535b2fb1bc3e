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
	"github.com/tekil-go/tekil/requestctx"
	"github.com/tekil-go/tekil/requestctx/msgedge"
	"github.com/tekil-go/tekil/requestctx/msgedge/watermilledge"
)

const (
	drainTime = 5 * time.Second        // what handlers may take at the end
	pollTime  = 20 * time.Millisecond  // between two looks at the outbox
	retryTime = 200 * time.Millisecond // until what failed at the outbox or the broker is tried again
	stallTime = time.Minute            // without any movement, after which nothing more is expected
	tries     = 5                      // of placing an order
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
	broker *broker
	bus    *bus.Bus
	router *message.Router
	out    *rough
	books  *books
	log    *slog.Logger

	before     rows
	published  int // before this run
	deadBefore int
	ended      chan error // of the router; nil while it does not run
}

// start opens database and broker and puts everything together. Nothing is received and nothing sent yet.
func start(ctx context.Context, s settings, stderr io.Writer) (*program, error) {
	db, err := s.open(ctx)
	if err != nil {
		return nil, err
	}
	p := &program{settings: s, db: db, books: newBooks()}
	if err := p.start(ctx, stderr); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

func (p *program) start(ctx context.Context, stderr io.Writer) (err error) {
	if p.nats != "" {
		if p.broker, err = connectBroker(p.nats); err != nil {
			return fmt.Errorf("-nats: %w\n%s", err, natsHelp)
		}
	} else if p.broker, err = embeddedBroker(p.sqlite + ".nats"); err != nil {
		return fmt.Errorf("-sqlite %s: %w\n%s", p.sqlite, err, sqliteHelp)
	}
	if err := p.wire(stderr); err != nil {
		return err
	}
	if p.before, err = p.db.count(ctx); err != nil {
		return err
	}
	if p.published, err = p.broker.kept(ordersStream); err != nil {
		return err
	}
	p.deadBefore, err = p.broker.kept(deadStream)
	return err
}

// wire makes the bus, the way out and the ways in.
func (p *program) wire(stderr io.Writer) error {
	lg := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	p.log = lg
	commands := zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), zapcore.Lock(zapcore.AddSync(stderr)), zapcore.ErrorLevel)
	commands = zapcore.NewSamplerWithOptions(commands, time.Second, 3, 0) // with -fail-rate there are many
	logger := watermill.NewSlogLogger(lg)
	outbox, err := watermilledge.NewOutbox(p.db.write, watermilledge.PublisherOptions{})
	if err != nil {
		return err
	}
	if p.bus, err = newBus(service{p.db, outbox}, p.db.store(), zap.New(zapcore.NewTee(p.books, commands)), p.failRate); err != nil {
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
			MaxHold: -1, // the broker waits, see pauses
		})
		if err != nil {
			return err
		}
		sub, err := p.broker.subscriber(l.name, l.topic, logger)
		if err != nil {
			return err
		}
		p.router.AddConsumerHandler(l.name, l.topic, sub, h).AddMiddleware(p.books.watch(l.name, lg))
	}
	return nil
}

// drain lets what is being handled come to its end. Nothing is received any more.
func (p *program) drain() {
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
}

func (p *program) close() {
	p.drain()
	if p.broker != nil {
		p.broker.close()
	}
	p.db.close()
}

// receive starts the forwarder and the consumers. They do not end with a context but with close, so that they end in order.
func (p *program) receive() {
	p.ended = make(chan error, 1)
	go func() {
		p.ended <- p.router.Run(context.Background())
		close(p.ended)
	}()
}

// serve receives until it is stopped.
func (p *program) serve(ctx context.Context, stdout io.Writer) error {
	p.receive()
	running := p.router.Running()
	for {
		select {
		case <-running:
			fmt.Fprintln(stdout, "consumer: receiving until it is stopped")
			running = nil
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
	return p.settle(ctx)
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

// settle waits until the outbox is empty and all consumers have acknowledged all there is.
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
		if err != nil {
			return err
		}
		if left == 0 {
			return nil
		}
		now := fmt.Sprint(left, p.books.all())
		if now != last {
			moved, last = time.Now(), now
		}
		if time.Since(moved) > stallTime {
			return fmt.Errorf("%d messages are left and nothing has moved for %v", left, stallTime)
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
	for _, l := range lines {
		n, err := p.broker.pending(l.name)
		if err != nil {
			return 0, err
		}
		left += n
	}
	return left, nil
}

// report prints what was counted, of deliveries those of this process. The error says which counts are wrong; whether all is done is
// for the program that places orders to know.
func (p *program) report(ctx context.Context, stdout io.Writer) error {
	n, err := p.db.count(ctx)
	if err != nil {
		return err
	}
	published, err := p.broker.kept(ordersStream)
	if err != nil {
		return err
	}
	dead, err := p.broker.kept(deadStream)
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
	if sent, want := published-p.published, p.duplicate*(n.events-p.before.events+p.before.unsent); sent < want {
		check("published messages", sent, want)
	}
	check("mails", n.mails, n.orders)
	check("shipments", n.shipments, n.orders)
	check("closed shipments", n.closed, n.collected)
	check("invoices", n.invoices, n.orders)
	check("orders that have not one mail, one invoice and one shipment in its state", n.wrong, 0)
	check("dead letters", dead-p.deadBefore, 0)

	var s strings.Builder // written at once
	w := tabwriter.NewWriter(&s, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "placed\t%d\nevents written\t%d\npublished\t%d\n\n", placed, n.events-p.before.events, published-p.published)
	fmt.Fprintln(w, "consumer\tdelivered\tdone\tskipped as duplicate\tput back\tdead-lettered\trows in the database")
	in := map[string]string{
		"mailer": strconv.Itoa(n.mails) + " mails", "shipping": strconv.Itoa(n.shipments) + " shipments",
		"billing": strconv.Itoa(n.invoices) + " invoices", "shipping-collected": strconv.Itoa(n.closed) + " of the shipments closed",
	}
	p.books.mu.Lock()
	for _, l := range lines {
		b := p.books
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t%s\n", l.name,
			b.delivered[l.name], b.done[l.command], b.replayed[l.command], b.putBack[l.name], b.dead[l.name], in[l.name])
		check("deliveries to "+l.name+" of which it is known what became",
			b.done[l.command]+b.replayed[l.command]+b.putBack[l.name]+b.dead[l.name], b.delivered[l.name])
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
