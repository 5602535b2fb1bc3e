// Command checkout is a small payment service over tekil: the same payment sent twice makes one order, and a form that was
// refused, corrected and sent again with the same key makes one as well.
//
//	go run ./examples/checkout                              # an SQLite file, made on the way
//	go run ./examples/checkout -postgres postgres://…       # PostgreSQL
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
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/tekil-go/tekil/behaviors/idempotency"
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
	flags := flag.NewFlagSet("checkout", flag.ContinueOnError)
	flags.SetOutput(stderr)
	addr := flags.String("addr", "127.0.0.1:8080", "address to listen on")
	sqlitePath := flags.String("sqlite", "", "SQLite file (default: checkout.db in a folder tekil-checkout under the user's cache directory)")
	postgresURL := flags.String("postgres", "", "connection string of a PostgreSQL database to use instead of SQLite")
	dropAnswers := flags.Bool("drop-answers", false, "for demonstrations: a request with the header X-Demo-Drop: 1 is done and gets no answer")
	if err := flags.Parse(args); err != nil {
		return err
	}
	empty := ""
	flags.Visit(func(f *flag.Flag) {
		if f.Value.String() == "" {
			empty = f.Name
		}
	})
	switch {
	case flags.NArg() > 0:
		return fmt.Errorf("unexpected argument %q; all settings are flags, see -help", flags.Arg(0))
	case empty != "": // with the default instead, payments would go where nobody looks for them
		return fmt.Errorf("-%s is empty; is a variable of the shell not set?", empty)
	case *sqlitePath != "" && *postgresURL != "":
		return errors.New("-sqlite and -postgres exclude each other; choose one database")
	}

	var kept orders
	var store idempotency.Store
	var closeStore func()
	var where string
	var err error
	if *postgresURL != "" {
		if kept, store, closeStore, err = openPostgres(ctx, *postgresURL); err != nil {
			return fmt.Errorf("%w\n%s", err, postgresHelp)
		}
		where = "PostgreSQL"
	} else {
		if *sqlitePath == "" {
			if *sqlitePath, err = defaultSQLite(); err != nil {
				return err
			}
		}
		if kept, store, closeStore, err = openSQLite(ctx, *sqlitePath); err != nil {
			return fmt.Errorf("%w\n%s", err, sqliteHelp)
		}
		where = *sqlitePath
	}
	defer closeStore()

	cfg := zap.NewProductionConfig()
	cfg.Sampling = nil // one line for each dispatch, not a sample of them
	logger, err := cfg.Build()
	if err != nil {
		return err
	}
	defer logger.Sync() //nolint:errcheck // standard error cannot be synced everywhere, and nothing could be done about it
	handler, err := newServer(kept, store, logger, *dropAnswers)
	if err != nil {
		return err
	}

	listener, err := net.Listen("tcp", *addr)
	if err != nil {
		return fmt.Errorf("-addr: %w\nchoose another address, for example -addr 127.0.0.1:8081, or -addr 127.0.0.1:0 for any free port", err)
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute}
	greet(stdout, "http://"+listener.Addr().String(), where)

	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	fmt.Fprintln(stdout, "checkout: draining")
	drain, cancel := context.WithTimeout(context.Background(), drainTime)
	defer cancel()
	return server.Shutdown(drain)
}

// What to do about a database that cannot be used.
const (
	postgresHelp = "name a PostgreSQL 14 or newer that is running and takes writes, and a database where this role may create tables, for example -postgres postgres://user:password@127.0.0.1:5432/checkout"
	sqliteHelp   = "name a file, there already or not, in a folder where this user may write, for example -sqlite checkout.db"
)

func greet(w io.Writer, base, where string) {
	fmt.Fprintf(w, `checkout: listening on %[1]s
checkout: orders and records are kept in %[2]s

Look at    %[1]s/  and  %[1]s/api/v1/orders

Pay, twice with one key; the second answer is a replay of the first and there is one order:
  curl -i %[1]s/api/v1/checkouts -H 'Content-Type: application/json' -H 'Idempotency-Key: my-first-payment' -d '{"cart_id":"cart-77","amount":4990,"currency":"TRY","email":"ada@example.com","draft_order_id":"draft-1"}'
Forget the amount, correct it, and send it again with the same key; it runs:
  curl -i %[1]s/api/v1/checkouts -H 'Content-Type: application/json' -H 'Idempotency-Key: my-second-payment' -d '{"cart_id":"cart-78","amount":0,"currency":"TRY","email":"ada@example.com","draft_order_id":"draft-2"}'

`, base, where)
}
