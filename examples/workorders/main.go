// Command workorders is an inbound API over tekil by which an ERP sends work orders, as JSON or as XML: the same import sent twice makes
// its work orders once, whichever of the two it is written in.
//
//	go run ./examples/workorders                                  # an SQLite file, made on the way
//	go run ./examples/workorders -postgres postgres://…           # PostgreSQL
//	go run ./examples/workorders -tokens clients.txt              # only clients with a token, one line "principal token" for each
//
// The environment configures how imports are protected (rule http-5):
//
//	IDEMPOTENCY_ENABLED=true                    false: no key is read and nothing is recorded
//	IDEMPOTENCY_REQUIRED=true                   false: a request without a key runs unprotected
//	IDEMPOTENCY_PROCESSING_LEASE_SECONDS=300    30 to 3600
//	IDEMPOTENCY_RETENTION_HOURS=720             24 to 8760
//
// A work order's number is unique in its organisation, so a work order is not made twice even when the record of its request has
// expired, was lost, or was never made: it is then reported as existing.
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
	"github.com/tekil-go/tekil/examples/internal/metrics"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "workorders:", err)
		os.Exit(1)
	}
}

// drainTime is how long requests that are being served may take after SIGTERM, besides the time for which they are held.
const drainTime = 20 * time.Second

func run(ctx context.Context, args, environ []string, stdout, stderr io.Writer) error {
	s, err := parse(args, environ, stderr)
	if err != nil {
		return err
	}
	kept, records, closeStore, where, err := s.open(ctx)
	if err != nil {
		return err
	}
	defer closeStore()

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
	handler, err := newServer(kept, records, logger, s, counted.Observer)
	if err != nil {
		return err
	}
	handler = counted.Beside(handler)
	purger, err := idempotency.NewPurger(idempotency.PurgerConfig{Store: records, Logger: logger})
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
		return fmt.Errorf("-addr: %w\nchoose another address, for example -addr 127.0.0.1:8091, or -addr 127.0.0.1:0 for any free port", err)
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute}
	greet(stdout, "http://"+listener.Addr().String(), where, s)

	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	fmt.Fprintln(stdout, "workorders: draining")
	ctx, cancel := context.WithTimeout(context.Background(), drainTime+s.holdDemo)
	defer cancel()
	return server.Shutdown(ctx)
}

// What to do about a database that cannot be used.
const (
	postgresHelp = "name a PostgreSQL 14 or newer that is running and takes writes, and a database where this role may create tables, for example -postgres postgres://user:password@127.0.0.1:5432/workorders"
	sqliteHelp   = "name a file, there already or not, in a folder where this user may write, for example -sqlite workorders.db"
)

// open opens the database. where names it for people.
func (s settings) open(ctx context.Context) (kept store, records idempotency.Store, closeStore func(), where string, err error) {
	if s.postgres != "" {
		if kept, records, closeStore, err = openPostgres(ctx, s.postgres); err != nil {
			err = fmt.Errorf("%w\n%s", err, postgresHelp)
		}
		return kept, records, closeStore, "PostgreSQL", err
	}
	if kept, records, closeStore, err = openSQLite(ctx, s.sqlite); err != nil {
		err = fmt.Errorf("%w\n%s", err, sqliteHelp)
	}
	return kept, records, closeStore, s.sqlite, err
}

// The routes of an import.
const (
	importPath = "/api/v1/inbound/work-orders"
	testPath   = importPath + "/test"
)

// greet says where to look and what to try.
func greet(w io.Writer, base, where string, s settings) {
	var out strings.Builder // written at once, for whoever reads the first line and goes
	fmt.Fprintf(&out, "workorders: listening on %s\nworkorders: work orders and records are kept in %s\n", base, where)
	authorization := ""
	switch {
	case s.clients != nil:
		authorization = ` -H "Authorization: Bearer $TOKEN"`
		fmt.Fprintf(&out, "workorders: %d tokens are known; put yours into the variable TOKEN for what follows\n", len(s.clients))
	default:
		fmt.Fprintln(&out, "workorders: authentication is off; all callers are anonymous")
	}
	switch {
	case !s.enabled:
		fmt.Fprintf(&out, "workorders: %s is off: no key is read and nothing is recorded\n", envEnabled)
	case !s.required:
		fmt.Fprintf(&out, "workorders: %s is off: a request without a key runs unprotected\n", envRequired)
	}
	fmt.Fprintf(&out, "workorders: what is counted is at %s/metrics, for Prometheus\n", base)
	fmt.Fprintf(&out, "\nLook at    %s/\n\n", base)
	try := func(title, path, key, format string) {
		fmt.Fprintf(&out, "%s:\n  curl -i %s%s%s%s -H 'Content-Type: application/%s' --data-binary @examples/workorders/testdata/sample.%s\n",
			title, base, path, authorization, key, format, format)
	}
	key := " -H 'Idempotency-Key: my-first-import'"
	try("Ask what an import would do; nothing is written", testPath, "", "json")
	try("Import, twice with one key; the second answer is a replay of the first", importPath, key, "json")
	try("Send the same as XML; it is the same import and a replay too", importPath, key, "xml")
	fmt.Fprintln(w, out.String())
}
