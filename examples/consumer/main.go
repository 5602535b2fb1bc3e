// Command consumer shows an order that becomes three pieces of work by messages: a mail, a shipment and an invoice, each made by a
// consumer of its own and each effectively once, while the outbox and the broker deliver as often and in whatever order they like.
//
//	go run ./examples/consumer                                            # 100 orders, on an SQLite file and a NATS server inside the program
//	go run ./examples/consumer -duplicate 3 -shuffle                      # each event is sent three times, in random order
//	go run ./examples/consumer -duplicate 3 -shuffle -fail-rate 0.1       # and each tenth handler fails behind its work
//	go run ./examples/consumer -postgres postgres://… -nats nats://…      # on servers that run elsewhere
//	go run ./examples/consumer -postgres … -rabbitmq amqp://…             # the same on RabbitMQ
//	go run ./examples/consumer -postgres … -nats … -replicas 4 -kill 2s   # four processes receive, and every two seconds one is killed
//	go run ./examples/consumer -consume -postgres … -nats …               # beside one that runs, as often as you like: more that receive
//	go run ./examples/consumer -messages 10000 -metrics 127.0.0.1:9464    # what is counted, at /metrics for Prometheus while it runs
//
// The command [Place] writes an order and the events that it causes, in one transaction: the events are rows of an outbox. Watermill's
// forwarder brings the rows to NATS JetStream or RabbitMQ, at least once. Three consumers receive them there. When nothing is left to do, the
// program prints what it has counted, and the rows that are in the database; its exit code is 0 only where every count is right.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "consumer:", err)
		os.Exit(1)
	}
}

// What to do about a database or a broker that cannot be used.
const (
	postgresHelp = "name a PostgreSQL 14 or newer that is running and takes writes, and a database where this role may create tables, for example -postgres postgres://user:password@127.0.0.1:5432/consumer"
	natsHelp     = "name a NATS server that is running with JetStream, for example -nats nats://127.0.0.1:4222"
	rabbitHelp   = "name a RabbitMQ 3.8 or newer that is running, for example -rabbitmq amqp://guest:guest@127.0.0.1:5672/"
	sqliteHelp   = "name a file, there already or not, in a folder where this user may write, for example -sqlite consumer.db"
)

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	s, err := parse(args, stderr)
	if err != nil {
		return err
	}
	if s.sqlite == "" && s.postgres == "" {
		folder, err := os.MkdirTemp("", "tekil-consumer-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(folder)
		s.sqlite = filepath.Join(folder, "consumer.db")
	}
	p, err := start(ctx, s, stderr)
	if err != nil {
		return err
	}
	defer p.close()
	if s.consume {
		if s.counts {
			var stop context.CancelFunc
			ctx, stop = context.WithCancel(ctx)
			defer stop()
			go func() {
				_, _ = io.Copy(io.Discard, os.Stdin)
				stop()
			}()
		}
		if err := p.serve(ctx, stdout); err != nil {
			return err
		}
		if p.counts {
			return p.books.tell(stdout)
		}
		return p.report(context.WithoutCancel(ctx), stdout)
	}
	if err := p.work(ctx); err != nil {
		if ctx.Err() != nil {
			return errors.New("stopped before all was done; started again on the same -sqlite, or the same servers, it goes on where it was")
		}
		return err
	}
	return p.report(ctx, stdout)
}

// settings are what the flags say.
type settings struct {
	messages  int
	duplicate int
	shuffle   bool
	failRate  float64
	sqlite    string
	postgres  string
	nats      string
	rabbitmq  string
	consume   bool
	counts    bool
	replicas  int
	kill      time.Duration
	metrics   string // an address, or "" for none
}

func parse(args []string, stderr io.Writer) (s settings, err error) {
	flags := flag.NewFlagSet("consumer", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.IntVar(&s.messages, "messages", 100, "how many orders are placed")
	flags.IntVar(&s.duplicate, "duplicate", 1, "how often each event is sent to the broker")
	flags.BoolVar(&s.shuffle, "shuffle", false, "send the events, and their copies, in random order; all orders are placed first")
	flags.Float64Var(&s.failRate, "fail-rate", 0, "share of runs, 0 to 0.5, in which the handler of a consumer fails behind its work")
	flags.StringVar(&s.sqlite, "sqlite", "", "SQLite file; the messages are kept beside it, with .nats at the end (default: in a folder that is removed)")
	flags.StringVar(&s.postgres, "postgres", "", "connection string of a PostgreSQL database to use instead of SQLite; needs -nats")
	flags.StringVar(&s.nats, "nats", "", "URL of a NATS server to use instead of the one in the program; needs -postgres or -sqlite")
	flags.StringVar(&s.rabbitmq, "rabbitmq", "", "URL of a RabbitMQ to use instead of NATS; needs -postgres or -sqlite")
	flags.BoolVar(&s.consume, "consume", false, "place and send nothing, receive until SIGTERM: a further process beside one that places orders; needs -nats or -rabbitmq")
	flags.BoolVar(&s.counts, "counts", false, "with -consume: print the counts as lines of JSON, and end with the standard input; so does -replicas start its processes")
	flags.IntVar(&s.replicas, "replicas", 0, "receive in so many processes beside this one, which then only places and sends; needs -nats or -rabbitmq")
	flags.DurationVar(&s.kill, "kill", 0, "kill one of the -replicas each time this has passed, and start another; 0 kills none")
	flags.StringVar(&s.metrics, "metrics", "", "address of a page /metrics for Prometheus, such as 127.0.0.1:9464; each process of -replicas has one too, on a port of its own (default: none)")
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	empty := ""
	given := map[string]bool{}
	flags.Visit(func(f *flag.Flag) {
		given[f.Name] = true
		if f.Value.String() == "" {
			empty = f.Name
		}
	})
	elsewhere := s.nats != "" || s.rabbitmq != ""
	_, _, badMetrics := net.SplitHostPort(s.metrics)
	switch {
	case flags.NArg() > 0:
		return s, fmt.Errorf("unexpected argument %q; all settings are flags, see -help", flags.Arg(0))
	case empty != "":
		return s, fmt.Errorf("-%s is empty; is a variable of the shell not set?", empty)
	case s.sqlite != "" && s.postgres != "":
		return s, errors.New("-sqlite and -postgres exclude each other; choose one database")
	case s.nats != "" && s.rabbitmq != "":
		return s, errors.New("-nats and -rabbitmq exclude each other; choose one broker")
	case s.postgres != "" && !elsewhere: // the one in the program forgets at its end what the outbox has sent
		return s, errors.New("-postgres outlives the broker in the program; add -nats URL or -rabbitmq URL")
	case elsewhere && s.postgres == "" && s.sqlite == "": // it may hold messages about orders of an earlier run
		return s, errors.New("the broker outlives a database that is removed; add -postgres URL or -sqlite PATH")
	case s.consume && !elsewhere:
		return s, errors.New("-consume shares a broker with the program that places orders; add -nats URL or -rabbitmq URL")
	case s.consume && (given["messages"] || given["duplicate"] || given["shuffle"] || given["replicas"] || given["kill"]):
		return s, errors.New("-messages, -duplicate, -shuffle, -replicas and -kill are for the program that places orders, and not for -consume")
	case s.counts && !s.consume:
		return s, errors.New("-counts is for -consume alone")
	case s.replicas < 0:
		return s, fmt.Errorf("-replicas is %d; it must not be negative", s.replicas)
	case s.replicas > 0 && !elsewhere:
		return s, errors.New("-replicas are processes, which share a broker; add -nats URL or -rabbitmq URL")
	case s.kill < 0 || s.kill > 0 && s.replicas == 0:
		return s, errors.New("-kill is a time, such as 2s, between two kills among the -replicas; add -replicas N")
	case s.metrics != "" && badMetrics != nil:
		return s, fmt.Errorf("-metrics: %w; give an address with a port, for example -metrics 127.0.0.1:0 for any free one", badMetrics)
	case s.messages < 0:
		return s, fmt.Errorf("-messages is %d; it must not be negative", s.messages)
	case s.duplicate < 1:
		return s, fmt.Errorf("-duplicate is %d; 1 sends each event once, 3 three times", s.duplicate)
	case !(s.failRate >= 0 && s.failRate <= 0.5): // as NaN is neither
		return s, fmt.Errorf("-fail-rate is %v; it is a share, from 0 for never to 0.5 for every other run", s.failRate)
	}
	return s, nil
}

// open opens the database.
func (s settings) open(ctx context.Context) (database, error) {
	if s.postgres != "" {
		db, err := openPostgres(ctx, s.postgres)
		if err != nil {
			return nil, fmt.Errorf("-postgres: %w\n%s", err, postgresHelp)
		}
		return db, nil
	}
	db, err := openSQLite(ctx, s.sqlite)
	if err != nil {
		return nil, fmt.Errorf("-sqlite %s: %w\n%s", s.sqlite, err, sqliteHelp)
	}
	return db, nil
}

// connect connects to the broker, or starts one.
func (s settings) connect() (broker, error) {
	switch {
	case s.rabbitmq != "":
		b, err := connectRabbitMQ(s.rabbitmq)
		if err != nil {
			return nil, fmt.Errorf("-rabbitmq: %w\n%s", err, rabbitHelp)
		}
		return b, nil
	case s.nats != "":
		b, err := connectNATS(s.nats)
		if err != nil {
			return nil, fmt.Errorf("-nats: %w\n%s", err, natsHelp)
		}
		return b, nil
	}
	b, err := embeddedNATS(s.sqlite + ".nats")
	if err != nil {
		return nil, fmt.Errorf("-sqlite %s: %w\n%s", s.sqlite, err, sqliteHelp)
	}
	return b, nil
}
