// Command checkout is a small payment service over tekil: the same payment sent twice makes one order, and a form that was
// refused, corrected and sent again with the same key makes one as well.
//
//	go run ./examples/checkout                              # an SQLite file, made on the way
//	go run ./examples/checkout -postgres postgres://…       # PostgreSQL
//
// The page at / pays, makes trouble on the way, and shows what the server holds; -demo=false leaves the form and the list of orders. With
// -console ada:a-password the records can be looked at, and freed, at /ops/records/.
//
// By itself it makes the authorisation of a payment up, and the command is Atomic: all that it does is in one transaction. With a
// payment provider, which it calls over HTTP, the command is Leased: the claim is committed first, the provider is called under a key that
// is the same in every attempt, and the order is written in a transaction that a late attempt cannot commit.
//
//	go run ./examples/checkout -provider http://…                            # a provider that runs somewhere
//	go run ./examples/checkout -provider embedded -provider-delay 3s         # one that the example brings, which takes its time
//	go run ./examples/checkout -provider embedded -provider-delay 3s -no-keys
//
// Pay with a client that gives up after a second and tries again: the provider then holds one authorisation, and with -no-keys one for
// each try. What it holds is shown at /provider/authorizations.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/examples/internal/metrics"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "checkout:", err)
		os.Exit(1)
	}
}

// drainTime is how long requests that are being served may take after SIGTERM.
const drainTime = 20 * time.Second

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	s, err := parse(args, stderr)
	if err != nil {
		return err
	}
	kept, store, closeStore, where, err := s.open(ctx)
	if err != nil {
		return err
	}
	defer closeStore()
	o := options{noKeys: s.noKeys, dropAnswers: s.dropAnswers, demo: s.demo, console: s.console}
	providerKeeps := ""
	drain := drainTime
	if s.provider != "" {
		drain = providerDrain
		if o.providerURL = s.provider; s.provider == embeddedProvider {
			if providerKeeps, err = s.providerFile(); err != nil {
				return err
			}
			far, err := openEmbedded(ctx, providerKeeps, s.providerDelay, s.providerFailRate)
			if err != nil {
				return fmt.Errorf("-provider-db %s: %w\n%s", providerKeeps, err, providerFileHelp)
			}
			base, stop, err := far.serve()
			if err != nil {
				return fmt.Errorf("-provider embedded: %w", err)
			}
			defer stop()
			o.providerURL = base
		}
		p := newProvider(o.providerURL, providerTimeout)
		defer p.close()
		o.provider = p
		if _, err := p.list(ctx); err != nil { // it may come up later
			fmt.Fprintf(stderr, "checkout: warning: -provider: %v; until it answers no payment is made\n", err)
		}
	}

	cfg := zap.NewProductionConfig()
	cfg.Sampling = nil // one line for each dispatch, not a sample of them
	logger, err := cfg.Build()
	if err != nil {
		return err
	}
	defer logger.Sync() //nolint:errcheck // standard error cannot be synced everywhere, and nothing could be done about it
	counted, err := metrics.New()
	if err != nil {
		return err
	}
	defer counted.Stop(context.Background()) //nolint:errcheck // there is nothing to be done about it
	o.observers = []bus.Observer{counted.Observer}
	handler, err := newServer(kept, store, logger, o)
	if err != nil {
		return err
	}
	handler = counted.Beside(handler) // outside of the switches, so that it is read while answers get lost
	purger, err := idempotency.NewPurger(idempotency.PurgerConfig{Store: store, Logger: logger})
	if err != nil {
		return err
	}
	var purging sync.WaitGroup // of what has expired (rule rec-10)
	defer purging.Wait()
	purgeCtx, stopPurging := context.WithCancel(ctx)
	defer stopPurging()
	purging.Go(func() { _ = purger.Run(purgeCtx) })

	listener, err := net.Listen("tcp", s.addr)
	if err != nil {
		return fmt.Errorf("-addr: %w\nchoose another address, for example -addr 127.0.0.1:8081, or -addr 127.0.0.1:0 for any free port", err)
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute}
	greet(stdout, "http://"+listener.Addr().String(), where, o, providerKeeps)

	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	fmt.Fprintln(stdout, "checkout: draining")
	ctx, cancel := context.WithTimeout(context.Background(), drain)
	defer cancel()
	return server.Shutdown(ctx)
}

// What to do about a database that cannot be used.
const (
	postgresHelp = "name a PostgreSQL 14 or newer that is running and takes writes, and a database where this role may create tables, for example -postgres postgres://user:password@127.0.0.1:5432/checkout"
	sqliteHelp   = "name a file, there already or not, in a folder where this user may write, for example -sqlite checkout.db"
	providerHelp = "name where it is, for example -provider http://127.0.0.1:9090, or use the one that the example brings, -provider embedded"

	providerFileHelp = "name a file for what the embedded provider holds, there already or not, in a folder where this user may write, for example -provider-db provider.db"
)

// embeddedProvider is the value of -provider for the one that the example brings.
const embeddedProvider = "embedded"

// settings are what the flags say.
type settings struct {
	addr, sqlite, postgres string
	dropAnswers, demo      bool

	provider         string // "" for none, "embedded", or a URL
	providerDB       string
	providerDelay    time.Duration
	providerFailRate float64
	noKeys           bool
	console          login
}

func parse(args []string, stderr io.Writer) (s settings, err error) {
	flags := flag.NewFlagSet("checkout", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&s.addr, "addr", "127.0.0.1:8080", "address to listen on")
	flags.StringVar(&s.sqlite, "sqlite", "", "SQLite file (default: checkout.db in a folder tekil-checkout under the user's cache directory)")
	flags.StringVar(&s.postgres, "postgres", "", "connection string of a PostgreSQL database to use instead of SQLite")
	flags.BoolVar(&s.dropAnswers, "drop-answers", false, "for demonstrations: a request with the header X-Demo-Drop: 1 is done and gets no answer")
	flags.BoolVar(&s.demo, "demo", true, "the page's switches, and what the server holds, at /demo; -demo=false leaves the form and the list of orders alone")
	flags.StringVar(&s.provider, "provider", "", "URL of a payment provider to call for each payment, or \"embedded\" for one that the example brings; without it none is called")
	flags.StringVar(&s.providerDB, "provider-db", "", "SQLite file of the embedded provider (default: the file of -sqlite with -provider at its end; with -postgres provider.db beside where the default of -sqlite is)")
	flags.DurationVar(&s.providerDelay, "provider-delay", 0, "how long the embedded provider sleeps between recording a payment and answering")
	flags.Float64Var(&s.providerFailRate, "provider-fail-rate", 0, "share of requests, 0 to 1, that the embedded provider answers with an error: half of them before it has recorded the payment, half of them after")
	flags.BoolVar(&s.noKeys, "no-keys", false, "for demonstrations: no key is read and none is sent to the provider, so every request is new")
	flags.Var(&s.console, "console", "name:password of whoever may look at the records, at /ops/records/; without it there is no such page")
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	given := map[string]bool{}
	empty := ""
	flags.Visit(func(f *flag.Flag) {
		given[f.Name] = true
		if f.Value.String() == "" {
			empty = f.Name
		}
	})
	switch {
	case flags.NArg() > 0:
		return s, fmt.Errorf("unexpected argument %q; all settings are flags, see -help", flags.Arg(0))
	case empty != "": // with the default instead, payments would go where nobody looks for them
		return s, fmt.Errorf("-%s is empty; is a variable of the shell not set?", empty)
	case s.sqlite != "" && s.postgres != "":
		return s, errors.New("-sqlite and -postgres exclude each other; choose one database")
	}
	for _, name := range []string{"provider-db", "provider-delay", "provider-fail-rate"} {
		if given[name] && s.provider != embeddedProvider {
			return s, fmt.Errorf("-%s is about the provider that the example brings; add -provider embedded", name)
		}
	}
	switch {
	case s.noKeys && s.provider == "":
		return s, errors.New("-no-keys shows what becomes of a payment provider without keys; add -provider embedded")
	case s.providerDelay < 0:
		return s, fmt.Errorf("-provider-delay is %v; it must not be negative", s.providerDelay)
	case !(s.providerFailRate >= 0 && s.providerFailRate <= 1): // as NaN is neither
		return s, fmt.Errorf("-provider-fail-rate is %v; it is a share, from 0 for never to 1 for always", s.providerFailRate)
	}
	if err := s.console.check(); err != nil {
		return s, err
	}
	if s.provider != "" && s.provider != embeddedProvider {
		if s.provider, err = providerURL(s.provider); err != nil {
			return s, fmt.Errorf("-provider: %w\n%s", err, providerHelp)
		}
	}
	if s.sqlite == "" && s.postgres == "" {
		s.sqlite, err = defaultFile("checkout.db", "-sqlite")
	}
	return s, err
}

// open opens the database. where names it for people.
func (s settings) open(ctx context.Context) (kept orders, store idempotency.Store, closeStore func(), where string, err error) {
	if s.postgres != "" {
		if kept, store, closeStore, err = openPostgres(ctx, s.postgres); err != nil {
			err = fmt.Errorf("%w\n%s", err, postgresHelp)
		}
		return kept, store, closeStore, "PostgreSQL", err
	}
	if kept, store, closeStore, err = openSQLite(ctx, s.sqlite); err != nil {
		err = fmt.Errorf("%w\n%s", err, sqliteHelp)
	}
	return kept, store, closeStore, s.sqlite, err
}

// providerFile is where the embedded provider keeps what it holds: a file that outlives the program, as what a provider knows outlives
// its callers.
func (s settings) providerFile() (string, error) {
	switch {
	case s.providerDB != "":
		return s.providerDB, nil
	case s.sqlite != "":
		return s.sqlite + "-provider", nil
	}
	return defaultFile("provider.db", "-provider-db")
}

// greet says where to look and what to try.
func greet(w io.Writer, base, where string, o options, providerKeeps string) {
	var s strings.Builder // written at once, for whoever reads the first line and goes
	pay := func(title, options, key string, number, amount int) {
		fmt.Fprintf(&s, `%s:
  curl -i%s %s/api/v1/checkouts -H 'Content-Type: application/json' -H 'Idempotency-Key: %s' -d '{"cart_id":"cart-%d","amount":%d,"currency":"TRY","email":"ada@example.com","draft_order_id":"draft-%d"}'
`, title, options, base, key, 76+number, amount, number)
	}
	fmt.Fprintf(&s, "checkout: listening on %s\ncheckout: orders and records are kept in %s\n", base, where)
	held := ""
	if o.provider != nil {
		fmt.Fprintf(&s, "checkout: payments are authorised by the provider at %s\n", o.providerURL)
		held = "  and  " + base + "/provider/authorizations"
	}
	if providerKeeps != "" {
		fmt.Fprintf(&s, "checkout: the provider keeps what it holds in %s\n", providerKeeps)
	}
	if o.console != (login{}) {
		fmt.Fprintf(&s, "checkout: %s may look at the records at %s%s/\n", o.console.name, base, consolePath)
	}
	fmt.Fprintf(&s, "checkout: what is counted is at %s/metrics, for Prometheus\n", base)
	fmt.Fprintf(&s, "\nOpen       %[1]s/  to pay, and look at  %[1]s/api/v1/orders%[2]s\n\n", base, held)
	if !o.noKeys {
		pay("Pay, twice with one key; the second answer is a replay of the first and there is one order", "", "my-first-payment", 1, 4990)
		pay("Forget the amount, correct it, and send it again with the same key; it runs", "", "my-second-payment", 2, 0)
	}
	if o.provider != nil {
		pay("Pay with a client that gives up after a second, a few times, and see what the provider holds. With -provider-delay 3s its answer comes too\n"+
			"late for such a client; there is one authorisation all the same, and with -no-keys one for each try", " -m 1", "my-third-payment", 3, 4990)
		fmt.Fprintf(&s, "  curl %s/provider/authorizations\n", base)
	}
	fmt.Fprintln(w, s.String())
}
