// Command client sends payments to a checkout over a bad line, which drops, delays and doubles requests, and proves that each payment
// has exactly one order: it asks the server for its orders and compares them with the answers, payment by payment.
//
//	go run ./examples/client                                  # 1,000 payments to a checkout that it builds and starts
//	go run ./examples/client -drop 0.5 -double 0.5            # a worse line
//	go run ./examples/client -payments 5000 -kill 2s          # and the checkout is killed (kill -9) whenever it has run for two seconds
//	go run ./examples/client -no-keys                         # a naive loop that sends again without a key: orders are doubled
//	go run ./examples/client -postgres postgres://…           # the checkout keeps its orders in PostgreSQL
//	go run ./examples/client -url http://127.0.0.1:8080       # to a checkout that runs already
//	go run ./examples/client -intents ./intents               # started again after it was killed, it goes on with the same keys
//
// Each payment is an intent of package client, whose key is derived from the id of its draft. The exit code is 0 only where every payment
// has one order and it is the one that was answered, with the amount and the currency that were meant.
//
// With -intents the folder keeps the run and what is under way, and without -url and -postgres the checkout's database too. A start on a
// folder whose run of as many payments has not come to its end goes on with that run: all payments are sent, and those that were made
// before are replays.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/tekil-go/tekil/requestctx/client"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "client:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	s, err := parse(args, stderr)
	if err != nil {
		return err
	}
	_, err = s.run(ctx, stdout)
	return err
}

// settings are what the flags say.
type settings struct {
	payments int
	workers  int
	url      string // without a slash at its end
	postgres string
	intents  string
	drop     float64
	double   float64
	delay    time.Duration
	kill     time.Duration
	noKeys   bool

	program string // the checkout where it has been built already, as tests have it
}

// maxDelay is well below the limit of one try.
const maxDelay = 5 * time.Second

func parse(args []string, stderr io.Writer) (s settings, err error) {
	flags := flag.NewFlagSet("client", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.IntVar(&s.payments, "payments", 1000, "how many payments are sent")
	flags.IntVar(&s.workers, "workers", 16, "how many payments are under way at once")
	flags.StringVar(&s.url, "url", "", "URL of a checkout that runs already (default: one is built and started, and ended at the end)")
	flags.StringVar(&s.postgres, "postgres", "", "connection string of a PostgreSQL database for the checkout that is started (default: an SQLite file that is removed)")
	flags.StringVar(&s.intents, "intents", "", "folder that keeps the run and its intents, so that it can be gone on with (default: they are in memory)")
	flags.Float64Var(&s.drop, "drop", 0.2, "share of requests, 0 to 0.9, that get no answer: half of them do not arrive, of the others the answer is lost")
	flags.Float64Var(&s.double, "double", 0.1, "share of requests, 0 to 1, that arrive twice at once; one of the two answers is given")
	flags.DurationVar(&s.delay, "delay", 50*time.Millisecond, "every other request is late by a random time up to this, at most 5s")
	flags.DurationVar(&s.kill, "kill", 0, "kill the checkout each time it has run for so long, and start it again on the same database; 0 never does")
	flags.BoolVar(&s.noKeys, "no-keys", false, "for demonstrations: send the payments without a key, and again until there is an answer")
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	empty := ""
	flags.Visit(func(f *flag.Flag) {
		if f.Value.String() == "" {
			empty = f.Name
		}
	})
	switch {
	case flags.NArg() > 0:
		return s, fmt.Errorf("unexpected argument %q; all settings are flags, see -help", flags.Arg(0))
	case empty != "":
		return s, fmt.Errorf("-%s is empty; is a variable of the shell not set?", empty)
	case s.payments < 1:
		return s, fmt.Errorf("-payments is %d; it must be 1 or more", s.payments)
	case s.workers < 1 || s.workers > 1000:
		return s, fmt.Errorf("-workers is %d; it must be from 1 to 1000", s.workers)
	case !(s.drop >= 0 && s.drop <= 0.9): // as NaN is neither
		return s, fmt.Errorf("-drop is %v; it is a share, from 0 for never to 0.9 for nine of ten", s.drop)
	case !(s.double >= 0 && s.double <= 1):
		return s, fmt.Errorf("-double is %v; it is a share, from 0 for never to 1 for always", s.double)
	case s.delay < 0 || s.delay > maxDelay:
		return s, fmt.Errorf("-delay is %v; it must be from 0 to %v", s.delay, maxDelay)
	case s.kill < 0:
		return s, fmt.Errorf("-kill is %v; it must not be negative", s.kill)
	case s.kill > 0 && s.url != "":
		return s, errors.New("-kill is for the checkout that is started here, and not for that of -url; leave one of them out")
	case s.postgres != "" && s.url != "":
		return s, errors.New("-postgres is for the checkout that is started here; start that of -url with it")
	case s.noKeys && s.intents != "":
		return s, errors.New("-no-keys makes no intents, so -intents has nothing to keep; leave one of them out")
	}
	if s.url != "" {
		u, err := url.Parse(s.url)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
			return s, errors.New("-url has to be the address of a checkout, for example -url http://127.0.0.1:8080")
		}
		s.url = strings.TrimRight(s.url, "/")
	}
	return s, nil
}

// run does all of it. The report is nil where it did not come to one.
func (s settings) run(ctx context.Context, stdout io.Writer) (*report, error) {
	// The run is an intent itself: with -intents stored in one step, and resumed by a later start. Its key is sent nowhere; the run's id is
	// derived from it.
	var store client.Store
	name := fmt.Sprintf("run of %d payments", s.payments)
	begun, err := client.New(name, client.Options{})
	if s.intents != "" {
		if store, err = client.NewFiles(s.intents); err != nil {
			return nil, fmt.Errorf("-intents: %w\nname a folder, there already or not, where this user may write", err)
		}
		if begun, err = client.Begin(ctx, store, name, client.Options{}); err != nil {
			err = fmt.Errorf("-intents: %w\nname another folder, or remove this one, to begin a new run", err)
		}
	}
	if err != nil {
		return nil, err
	}
	if begun.Resumed() {
		fmt.Fprintln(stdout, "client: going on with the run that", s.intents, "keeps")
	}
	r := runner{settings: s, id: client.Derive("run/1", begun.Key().String())[:22], store: store, tally: &tally{}}
	base := s.url
	var server *checkout
	if base == "" {
		folder, err := os.MkdirTemp("", "tekil-client-")
		if err != nil {
			return nil, err
		}
		defer os.RemoveAll(folder)
		database := []string{"-sqlite", filepath.Join(cmp.Or(s.intents, folder), "checkout.db")}
		if s.postgres != "" {
			database = []string{"-postgres", s.postgres}
		}
		if server, err = startCheckout(ctx, folder, s.program, database); err != nil {
			return nil, s.interrupted(ctx, err)
		}
		defer server.stop()
		base = server.base
	} else if err := healthy(ctx, base); err != nil {
		return nil, fmt.Errorf("-url: no checkout answers there: %w\nstart one, for example by go run ./examples/checkout", err)
	}
	bad, err := openLine(base, s)
	if err != nil {
		return nil, err
	}
	defer bad.close()
	fmt.Fprintf(stdout, "client: %d payments to the checkout at %s, over a line that drops %v, doubles %v and delays by up to %v\n",
		s.payments, base, s.drop, s.double, s.delay)

	sending, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	endWatching := func() {}
	if server != nil {
		endWatching = server.watch(sending, s.kill, stop)
	}
	answers := r.send(sending, stop, bad.base, stdout)
	endWatching()
	if sending.Err() != nil {
		return nil, s.interrupted(ctx, context.Cause(sending))
	}
	bad.drain() // nothing is under way any more when the orders are counted

	listed, err := orders(ctx, base, r.id+"-")
	if err != nil {
		return nil, s.interrupted(ctx, fmt.Errorf("the server's orders: %w", err))
	}
	rep := &report{tally: r.tally, line: &bad.counts, keeping: s.intents != "", findings: r.compare(answers, listed)}
	if server != nil {
		rep.kills = server.kills
	}
	if err := rep.print(stdout); err != nil {
		return nil, err
	}
	if err := begun.Done(context.WithoutCancel(ctx)); err != nil {
		return rep, fmt.Errorf("-intents: %w", err)
	}
	return rep, rep.verdict()
}

// interrupted is err, or what to do after the user has ended the program.
func (s settings) interrupted(ctx context.Context, err error) error {
	switch {
	case ctx.Err() == nil && s.intents == "":
		return err
	case ctx.Err() == nil:
		return fmt.Errorf("%w\nstarted again with the same -intents, it goes on with the same keys", err)
	case s.intents == "":
		return errors.New("stopped before all was done; with -intents DIR it could be gone on with")
	}
	return errors.New("stopped before all was done; started again with the same -intents, it goes on with the same keys")
}
