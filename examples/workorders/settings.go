package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// settings are what the flags and the environment say.
type settings struct {
	addr, sqlite, postgres string
	// clients are who may come in; nil where authentication is off, and then all callers are anonymous.
	clients  tokens
	holdDemo time.Duration
	proxies  []netip.Prefix // whose X-Request-ID is believed

	enabled   bool          // IDEMPOTENCY_ENABLED: without it no key is read and nothing is recorded
	required  bool          // IDEMPOTENCY_REQUIRED: without it a request that has no key runs unprotected
	lease     time.Duration // IDEMPOTENCY_PROCESSING_LEASE_SECONDS
	retention time.Duration // IDEMPOTENCY_RETENTION_HOURS
}

// maxHold bounds -hold-demo, so that an import ends before the deadline of its policy.
const maxHold = 50 * time.Second

func parse(args, environ []string, stderr io.Writer) (s settings, err error) {
	flags := flag.NewFlagSet("workorders", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&s.addr, "addr", "127.0.0.1:8090", "address to listen on")
	flags.StringVar(&s.sqlite, "sqlite", "", "SQLite file (default: workorders.db in a folder tekil-workorders under the user's cache directory)")
	flags.StringVar(&s.postgres, "postgres", "", "connection string of a PostgreSQL database to use instead of SQLite")
	flags.Func("trusted-proxies", "addresses, with commas between, of the proxies whose X-Request-ID is the id of the request, such as 10.0.0.0/8", func(list string) error {
		s.proxies = nil
		for name := range strings.SplitSeq(list, ",") {
			prefix, err := netip.ParsePrefix(strings.TrimSpace(name))
			if err != nil {
				return errors.New("give networks, such as 10.0.0.0/8 or 127.0.0.1/32, with commas between")
			}
			s.proxies = append(s.proxies, prefix)
		}
		return nil
	})
	tokensFile := flags.String("tokens", "", "file with a line \"principal token\" for each client that may come in; without it all callers are anonymous")
	flags.DurationVar(&s.holdDemo, holdFlag, 0, "for demonstrations: how long an import is held before it writes")
	flags.Usage = func() { usage(flags, stderr) }
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	empty := ""
	flags.Visit(func(f *flag.Flag) {
		if _, typed := f.Value.(flag.Getter); typed && f.Value.String() == "" { // what a function reads has no text
			empty = f.Name
		}
	})
	switch {
	case flags.NArg() > 0:
		return s, fmt.Errorf("unexpected argument %q; all settings are flags and variables of the environment, see -help", flags.Arg(0))
	case empty != "": // with the default instead, work orders would go where nobody looks for them
		return s, fmt.Errorf("-%s is empty; is a variable of the shell not set?", empty)
	case s.sqlite != "" && s.postgres != "":
		return s, errors.New("-sqlite and -postgres exclude each other; choose one database")
	case s.holdDemo < 0 || s.holdDemo > maxHold:
		return s, fmt.Errorf("-%s is %v; it must be between 0 and %v", holdFlag, s.holdDemo, maxHold)
	}
	if err := s.readEnvironment(environ); err != nil {
		return s, err
	}
	if *tokensFile != "" {
		if s.clients, err = readTokens(*tokensFile); err != nil {
			return s, fmt.Errorf("-tokens %s: %w", *tokensFile, err)
		}
	}
	if s.sqlite == "" && s.postgres == "" {
		s.sqlite, err = defaultFile()
	}
	return s, err
}

// holdFlag is a flag that the list of flags does not show.
const holdFlag = "hold-demo"

func usage(flags *flag.FlagSet, w io.Writer) {
	shown := flag.NewFlagSet("", flag.ContinueOnError)
	shown.SetOutput(w)
	flags.VisitAll(func(f *flag.Flag) {
		if f.Name != holdFlag {
			shown.Var(f.Value, f.Name, f.Usage)
			shown.Lookup(f.Name).DefValue = f.DefValue
		}
	})
	fmt.Fprintln(w, "Usage of workorders:")
	shown.PrintDefaults()
	fmt.Fprintf(w, `Variables of the environment:
  %s  true or false: with false no key is read and nothing is recorded (default true)
  %s  true or false: with false a request without a key runs unprotected (default true)
  %s  seconds until an attempt that gives no sign of life may be taken over, %d to %d (default %d)
  %s  hours for which an outcome is kept and replayed, %d to %d (default %d)
`, envEnabled, envRequired, envLease, minLease, maxLease, defaultLease/time.Second, envRetention, minRetention, maxRetention, defaultRetention/time.Hour)
}

// The variables of the environment (rule http-5) and their bounds.
const (
	envEnabled   = "IDEMPOTENCY_ENABLED"
	envRequired  = "IDEMPOTENCY_REQUIRED"
	envLease     = "IDEMPOTENCY_PROCESSING_LEASE_SECONDS"
	envRetention = "IDEMPOTENCY_RETENTION_HOURS"

	minLease, maxLease         = 30, 3600 // seconds (rule rec-5)
	minRetention, maxRetention = 24, 8760 // hours: a day to a year
)

// readEnvironment reads the switches. A variable that is not there has its default; one that is there and makes no sense, be it empty,
// is an error: a switch that is silently another one is found out when it is too late. All such errors are reported, joined.
func (s *settings) readEnvironment(environ []string) error {
	var problems []error
	lookup := func(name string) (value string, ok bool) {
		for _, entry := range environ {
			if value, ok := strings.CutPrefix(entry, name+"="); ok {
				return value, true
			}
		}
		return "", false
	}
	truth := func(name string) bool {
		value, ok := lookup(name)
		if !ok {
			return true
		}
		on, err := strconv.ParseBool(value)
		if err != nil {
			problems = append(problems, fmt.Errorf("%s is %q; it must be true or false", name, value))
		}
		return on
	}
	span := func(name, units string, unit, fallback time.Duration, least, most int) time.Duration {
		value, ok := lookup(name)
		if !ok {
			return fallback
		}
		n, err := strconv.Atoi(value)
		if err != nil || n < least || n > most {
			problems = append(problems, fmt.Errorf("%s is %q; it must be a whole number of %s between %d and %d", name, value, units, least, most))
			return fallback
		}
		return time.Duration(n) * unit
	}
	s.enabled, s.required = truth(envEnabled), truth(envRequired)
	s.lease = span(envLease, "seconds", time.Second, defaultLease, minLease, maxLease)
	s.retention = span(envRetention, "hours", time.Hour, defaultRetention, minRetention, maxRetention)
	return errors.Join(problems...)
}
