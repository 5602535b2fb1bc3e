package main

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// A bad configuration never starts: the exit code is not 0, nothing listens, and the message says what to do. These are the
// messages.
func TestABadConfigurationNeverStarts(t *testing.T) {
	t.Parallel()
	const (
		postgresHint     = "\nname a PostgreSQL 14 or newer that is running and takes writes, and a database where this role may create tables, for example -postgres postgres://user:password@127.0.0.1:5432/checkout"
		sqliteHint       = "\nname a file, there already or not, in a folder where this user may write, for example -sqlite checkout.db"
		providerHint     = "\nname where it is, for example -provider http://127.0.0.1:9090, or use the one that the example brings, -provider embedded"
		addrHint         = "\nchoose another address, for example -addr 127.0.0.1:8081, or -addr 127.0.0.1:0 for any free port"
		providerFileHint = "\nname a file for what the embedded provider holds, there already or not, in a folder where this user may write, for example -provider-db provider.db"
	)
	file := func(t *testing.T, name, content string) string {
		t.Helper()
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	// On a PostgreSQL of the test's own, after some statements.
	postgres := func(statements ...string) func(*testing.T) []string {
		return func(t *testing.T) []string {
			d := postgresDatabase(t)
			for _, s := range statements {
				d.exec(t, s)
			}
			return d.flags()
		}
	}
	setting := func(name, value string) func(*testing.T) []string {
		return func(t *testing.T) []string {
			return []string{"-postgres", with(t, postgresDatabase(t).postgres.Proxy().URL(), name, value)}
		}
	}
	flags := func(f ...string) func(*testing.T) []string { return func(*testing.T) []string { return f } }

	for _, c := range []struct {
		name  string
		flags func(*testing.T) []string
		says  string
	}{
		{"both databases", flags("-sqlite", "checkout.db", "-postgres", "postgres://127.0.0.1/checkout"),
			"checkout: -sqlite and -postgres exclude each other; choose one database"},
		{"an unknown flag", flags("-retention", "1h"),
			"checkout: flag provided but not defined: -retention"},
		{"a flag without its value", flags("-postgres"),
			"checkout: flag needs an argument: -postgres"},
		{"a stray argument", flags("checkout.db"),
			`checkout: unexpected argument "checkout.db"; all settings are flags, see -help`},
		{"an empty -postgres", flags("-postgres", ""),
			"checkout: -postgres is empty; is a variable of the shell not set?"},
		{"an empty -sqlite", flags("-sqlite", ""),
			"checkout: -sqlite is empty; is a variable of the shell not set?"},
		{"an empty -addr", flags("-addr", ""),
			"checkout: -addr is empty; is a variable of the shell not set?"},

		{"a PostgreSQL that is not there", flags("-postgres", "postgres://ada:secret@127.0.0.1:1/checkout?sslmode=disable"),
			"checkout: -postgres: pgstore: migrate: failed to connect to `user=ada database=checkout`: 127.0.0.1:1 (127.0.0.1): dial error: dial tcp 127.0.0.1:1: connect: connection refused" + postgresHint},
		{"a malformed URL", flags("-postgres", "postgres://ada:secret@[::1/checkout"),
			"checkout: -postgres: cannot parse `postgres://ada:xxxxx@[::1/checkout`: failed to parse as URL (end of string reached when looking for matching \"]\" in IPv6 host address in URI)" + postgresHint},
		{"another database's URL", flags("-postgres", "mysql://ada:secret@127.0.0.1/checkout"),
			"checkout: -postgres: cannot parse `mysql://ada:xxxxxx@127.0.0.1/checkout`: failed to parse as keyword/value (invalid keyword/value)" + postgresHint},
		{"an sslmode that does not exist", flags("-postgres", "postgres://ada:secret@127.0.0.1/checkout?sslmode=maybe"),
			"checkout: -postgres: cannot parse `postgres://ada:xxxxx@127.0.0.1/checkout?sslmode=maybe`: failed to configure TLS (sslmode is invalid)" + postgresHint},
		{"a read-only session", setting("options", "-c default_transaction_read_only=on"),
			"checkout: -postgres: pgstore: migrate: ERROR: cannot execute CREATE TABLE in a read-only transaction (SQLSTATE 25006)" + postgresHint},
		{"commits that do not wait for the disk", setting("options", "-c synchronous_commit=off"),
			"checkout: registry: Build found 1 problem(s):\n  - pgstore: synchronous_commit is off: a crash of the server would forget commits that were acknowledged, and their keys with them; set it to on, local or stricter"},
		{"a schema that does not exist", setting("options", "-c search_path=nowhere"),
			"checkout: -postgres: pgstore: migrate: ERROR: no schema has been selected to create in (SQLSTATE 3F000)" + postgresHint},
		{"a table of records that is somebody else's", postgres(`CREATE TABLE idempotency_records (id int)`),
			`checkout: -postgres: pgstore: migrate: step 1 (records): ERROR: relation "idempotency_records" already exists (SQLSTATE 42P07)` + postgresHint},
		{"a table of records of the wrong shape", func(t *testing.T) []string {
			d := postgresDatabase(t)
			d.open(t)
			d.exec(t, `ALTER TABLE idempotency_records DROP COLUMN request_hash, DROP CONSTRAINT idempotency_records_pkey`)
			return d.flags()
		}, `checkout: registry: Build found 2 problem(s):
  - pgstore: idempotency_records has no unique index on id alone, so nothing would decide who owns a key; run pgstore.Migrate
  - pgstore: idempotency_records has no column request_hash of type bytea; run pgstore.Migrate`},
		{"a table of records that does not survive a crash", func(t *testing.T) []string {
			d := postgresDatabase(t)
			d.open(t)
			d.exec(t, `ALTER TABLE idempotency_records SET UNLOGGED`)
			return d.flags()
		}, `checkout: registry: Build found 1 problem(s):
  - pgstore: idempotency_records is unlogged or temporary: it is empty after a crash; ALTER TABLE idempotency_records SET LOGGED`},
		{"a table of orders that is somebody else's, on PostgreSQL", postgres(`CREATE TABLE orders (order_id text COLLATE "C" PRIMARY KEY, total money)`),
			`checkout: -postgres: ERROR: column o.cart_id does not exist (SQLSTATE 42703)` + postgresHint},

		{"a folder instead of a file", func(t *testing.T) []string { return []string{"-sqlite", t.TempDir()} },
			"checkout: -sqlite FILE: sqlitestore: migrate: unable to open database file (14)" + sqliteHint},
		{"a folder that cannot be made", func(t *testing.T) []string {
			return []string{"-sqlite", filepath.Join(file(t, "a-file", ""), "below", "checkout.db")}
		}, "checkout: -sqlite FILE: mkdir FOLDER: not a directory" + sqliteHint},
		{"a file that is no database", func(t *testing.T) []string {
			return []string{"-sqlite", file(t, "notes.txt", strings.Repeat("These are my notes. ", 300))}
		}, "checkout: -sqlite FILE: sqlitestore: migrate: file is not a database (26)" + sqliteHint},
		{"a database in memory", flags("-sqlite", ":memory:"),
			"checkout: -sqlite FILE: sqlitestore: migrate: the journal mode cannot be set to WAL: this is a database in memory, whose records end with the process; use a file (or memstore in tests)" + sqliteHint},
		{"a table of records of the wrong shape, on SQLite", func(t *testing.T) []string {
			d := sqliteDatabase(t)
			d.exec(t, `CREATE TABLE idempotency_records (id INTEGER)`)
			return d.flags()
		}, "checkout: -sqlite FILE: sqlitestore: migrate: step 1 (records): SQL logic error: table idempotency_records already exists (1)" + sqliteHint},
		{"a table of orders that is somebody else's, on SQLite", func(t *testing.T) []string {
			d := sqliteDatabase(t)
			d.exec(t, `CREATE TABLE orders (order_id TEXT PRIMARY KEY, total REAL)`)
			return d.flags()
		}, "checkout: -sqlite FILE: SQL logic error: no such column: o.cart_id (1)" + sqliteHint},

		{"a -console without a password", flags("-console", "secret"), "checkout: -console is a name and a password of 8 characters or more with a colon in between, for example -console ada:a-long-password"},
		{"a -console with a short password", flags("-console", "ada:secret"), "checkout: -console is a name and a password of 8 characters or more with a colon in between, for example -console ada:a-long-password"},
		{"a -console of nobody", flags("-console", ":secret-secret"), "checkout: -console is a name and a password of 8 characters or more with a colon in between, for example -console ada:a-long-password"},
		{"an empty -console", flags("-console", ""),
			"checkout: -console is empty; is a variable of the shell not set?"},

		{"an empty -provider", flags("-provider", ""),
			"checkout: -provider is empty; is a variable of the shell not set?"},
		{"a provider without a scheme", flags("-provider", "127.0.0.1:9090"),
			"checkout: -provider: first path segment in URL cannot contain colon" + providerHint},
		{"a provider that is a host and a port", flags("-provider", "localhost:9090"),
			"checkout: -provider: it is neither a URL that begins with http:// or https:// nor the word embedded" + providerHint},
		{"a provider that is a word", flags("-provider", "Embedded"),
			"checkout: -provider: it is neither a URL that begins with http:// or https:// nor the word embedded" + providerHint},
		{"a provider without a host", flags("-provider", "http:///authorizations"),
			"checkout: -provider: it is neither a URL that begins with http:// or https:// nor the word embedded" + providerHint},
		{"a malformed URL of a provider", flags("-provider", "http://ada:secret@[::1/"),
			"checkout: -provider: missing ']' in host" + providerHint},
		{"a provider's password", flags("-provider", "https://ada:secret@provider.example"),
			"checkout: -provider: it holds more than the provider's address: no user, query or fragment belongs there" + providerHint},
		{"a provider's query", flags("-provider", "https://provider.example/?token=secret"),
			"checkout: -provider: it holds more than the provider's address: no user, query or fragment belongs there" + providerHint},
		{"-provider-delay without a provider", flags("-provider-delay", "3s"),
			"checkout: -provider-delay is about the provider that the example brings; add -provider embedded"},
		{"-provider-delay of somebody else's", flags("-provider", "http://127.0.0.1:9090", "-provider-delay", "3s"),
			"checkout: -provider-delay is about the provider that the example brings; add -provider embedded"},
		{"-provider-fail-rate without a provider", flags("-provider-fail-rate", "0"),
			"checkout: -provider-fail-rate is about the provider that the example brings; add -provider embedded"},
		{"-provider-db without a provider", flags("-provider-db", "provider.db"),
			"checkout: -provider-db is about the provider that the example brings; add -provider embedded"},
		{"-no-keys without a provider", flags("-no-keys"),
			"checkout: -no-keys shows what becomes of a payment provider without keys; add -provider embedded"},
		{"a delay that is none", flags("-provider", "embedded", "-provider-delay", "soon"),
			`checkout: invalid value "soon" for flag -provider-delay: parse error`},
		{"a delay into the past", flags("-provider", "embedded", "-provider-delay", "-3s"),
			"checkout: -provider-delay is -3s; it must not be negative"},
		{"a rate under 0", flags("-provider", "embedded", "-provider-fail-rate", "-0.1"),
			"checkout: -provider-fail-rate is -0.1; it is a share, from 0 for never to 1 for always"},
		{"a rate over 1", flags("-provider", "embedded", "-provider-fail-rate", "50"),
			"checkout: -provider-fail-rate is 50; it is a share, from 0 for never to 1 for always"},
		{"a rate that is no number", flags("-provider", "embedded", "-provider-fail-rate", "NaN"),
			"checkout: -provider-fail-rate is NaN; it is a share, from 0 for never to 1 for always"},
		{"a folder for what the provider holds", func(t *testing.T) []string {
			return append(sqliteDatabase(t).flags(), "-provider", "embedded", "-provider-db", t.TempDir())
		}, "checkout: -provider-db FILE: unable to open database file (14)" + providerFileHint},
		{"a provider that keeps nothing", func(t *testing.T) []string {
			return append(sqliteDatabase(t).flags(), "-provider", "embedded", "-provider-db", ":memory:")
		}, "checkout: -provider-db FILE: this is a database in memory: what a provider knows outlives its callers" + providerFileHint},
		{"a file of the provider's that is no database", func(t *testing.T) []string {
			return append(sqliteDatabase(t).flags(), "-provider", "embedded", "-provider-db", file(t, "notes.txt", strings.Repeat("These are my notes. ", 300)))
		}, "checkout: -provider-db FILE: file is not a database (26)" + providerFileHint},
		{"a table of the provider's that is somebody else's", func(t *testing.T) []string {
			d := sqliteDatabase(t)
			d.exec(t, `CREATE TABLE provider_authorizations (id TEXT)`)
			return append(sqliteDatabase(t).flags(), "-provider", "embedded", "-provider-db", d.path)
		}, "checkout: -provider-db FILE: SQL logic error: no such column: key (1)" + providerFileHint},

		{"a port that is taken", func(t *testing.T) []string {
			taken, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = taken.Close() })
			return []string{"-sqlite", sqliteDatabase(t).path, "-addr", taken.Addr().String()}
		}, "checkout: -addr: listen tcp 127.0.0.1:PORT: bind: address already in use" + addrHint},
		{"an address without a port", func(t *testing.T) []string {
			return []string{"-sqlite", sqliteDatabase(t).path, "-addr", "localhost"}
		}, "checkout: -addr: listen tcp: address localhost: missing port in address" + addrHint},
		{"a port that cannot be", func(t *testing.T) []string {
			return []string{"-sqlite", sqliteDatabase(t).path, "-addr", "127.0.0.1:99999"}
		}, "checkout: -addr: listen tcp: address 99999: invalid port" + addrHint},
		{"an address of another machine", func(t *testing.T) []string {
			return []string{"-sqlite", sqliteDatabase(t).path, "-addr", "192.0.2.1:8080"}
		}, "checkout: -addr: listen tcp 192.0.2.1:PORT: bind: cannot assign requested address" + addrHint},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			says, code := badStart(t, nil, c.flags(t)...)
			if says != c.says {
				t.Errorf("it says\n%s\nand should say\n%s", says, c.says)
			}
			if code != 1 || strings.Contains(says, "secret") {
				t.Errorf("the exit code is %d, and the message is %s", code, says)
			}
		})
	}

	t.Run("no folder for the default", func(t *testing.T) {
		t.Parallel()
		says, code := badStart(t, []string{"HOME=", "XDG_CACHE_HOME="})
		if want := "checkout: there is no cache directory for the default database (neither $XDG_CACHE_HOME nor $HOME are defined); name a file with -sqlite PATH"; says != want || code != 1 {
			t.Errorf("exit code %d:\n%s", code, says)
		}
	})
	t.Run("no folder for what the provider holds", func(t *testing.T) {
		t.Parallel()
		says, code := badStart(t, []string{"HOME=", "XDG_CACHE_HOME="}, append(postgresDatabase(t).flags(), "-provider", "embedded")...)
		if want := "checkout: there is no cache directory for the default database (neither $XDG_CACHE_HOME nor $HOME are defined); name a file with -provider-db PATH"; says != want || code != 1 {
			t.Errorf("exit code %d:\n%s", code, says)
		}
	})
}

// badStart gives the message and the exit code of a start that has to fail.
func badStart(t *testing.T, env []string, flags ...string) (says string, code int) {
	t.Helper()
	p, err := launch("checkout", env, flags...)
	if p != nil {
		t.Cleanup(p.kill)
	}
	if !errors.Is(err, errExited) {
		t.Fatalf("it started: %v", err)
	}
	p.clean(t)
	if out := p.stdout.String(); out != "" {
		t.Errorf("it has said on standard output: %s", out)
	}
	message := p.stderr.String()
	if i := strings.Index(message, "checkout: "); i >= 0 { // before it stands the list of flags, or a line of the log
		message = message[i:]
	}
	for pattern, name := range map[string]string{
		`-sqlite \S+: `:             "-sqlite FILE: ",
		`-provider-db \S+: `:        "-provider-db FILE: ",
		`mkdir \S+: `:               "mkdir FOLDER: ",
		`:[0-9]{4,5}: bind`:         ":PORT: bind",
		`(\s+127\.0\.0\.1:1 .*)+\n`: " 127.0.0.1:1 (127.0.0.1): dial error: dial tcp 127.0.0.1:1: connect: connection refused\n",
	} {
		message = regexp.MustCompile(pattern).ReplaceAllString(message, name)
	}
	return strings.TrimSpace(message), p.code()
}

func TestTheDefaultIsAFileInTheCacheDirectory(t *testing.T) {
	t.Parallel()
	for name, env := range map[string]func(dir string) []string{
		"XDG_CACHE_HOME": func(dir string) []string { return []string{"XDG_CACHE_HOME=" + dir, "HOME=/nonexistent"} },
		"HOME":           func(dir string) []string { return []string{"XDG_CACHE_HOME=", "HOME=" + filepath.Dir(dir)} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cache := filepath.Join(t.TempDir(), ".cache") // where it is on Linux
			d := &database{path: filepath.Join(cache, "tekil-checkout", "checkout.db")}
			for _, replayed := range []string{"false", "true"} { // the file is there the second time
				p, err := launch("checkout", env(cache), "-addr", "127.0.0.1:0")
				if p != nil {
					t.Cleanup(p.kill)
				}
				if err != nil {
					t.Fatalf("%v: %s", err, p.stderr.String())
				}
				if a := post(t, p.base, "default-database", payment("cart-1", 4990)); a.placed(t).CartID != "cart-1" || a.replayed() != replayed {
					t.Errorf("%v", a)
				}
				p.kill()
				if out := p.stdout.String(); !strings.Contains(out, "kept in "+d.path+"\n") {
					t.Errorf("it does not say where the file is:\n%s", out)
				}
			}
			d.holds(t, 1, 1)
			if info, err := os.Stat(filepath.Dir(d.path)); err != nil || info.Mode().Perm() != 0o700 {
				t.Errorf("the folder: %v %v", info.Mode(), err)
			}
		})
	}
}

func TestTheProgramSaysWhereToClickAndWhatToTry(t *testing.T) {
	t.Parallel()
	p := start(t, "-sqlite", filepath.Join(t.TempDir(), "a folder that is not there yet", "Bestellungen #1?.db"))
	p.kill()
	out := p.stdout.String()
	for _, want := range []string{p.base + "/ ", p.base + "/api/v1/orders", p.base + "/metrics, ", "Bestellungen #1?.db\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("it does not say %q:\n%s", want, out)
		}
	}
	if n := strings.Count(out, "\n  curl -i "+p.base+"/api/v1/checkouts "); n != 2 {
		t.Errorf("there are %d lines to try:\n%s", n, out)
	}

	help, err := launch("checkout", nil, "-help")
	if help != nil {
		t.Cleanup(help.kill)
	}
	if !errors.Is(err, errExited) || help.code() != 0 {
		t.Fatalf("-help: %v", err)
	}
	for _, flag := range []string{
		"-addr", "-sqlite", "-postgres", "-drop-answers", "127.0.0.1:8080", "-provider ", "-provider-db", "-provider-delay", "-provider-fail-rate", "-no-keys", "-demo", "-console", "embedded",
	} {
		if !strings.Contains(help.stderr.String(), flag) {
			t.Errorf("-help does not name %s:\n%s", flag, help.stderr.String())
		}
	}
}

// What the provider holds is beside the orders, or where the flag says, and is there after a restart.
func TestTheEmbeddedProviderKeepsItsOwnFile(t *testing.T) {
	t.Parallel()
	cache := t.TempDir()
	for name, c := range map[string]struct {
		flags func(d *database) []string
		file  func(d *database) string
	}{
		"beside the orders": {
			func(d *database) []string { return d.flags() },
			func(d *database) string {
				if d.postgres != nil { // then there is no file to be beside of
					return filepath.Join(cache, "tekil-checkout", "provider.db")
				}
				return d.path + "-provider"
			},
		},
		"where the flag says": {
			func(d *database) []string {
				return append(d.flags(), "-provider-db", filepath.Join(cache, d.key("far")+".db"))
			},
			func(d *database) string { return filepath.Join(cache, d.key("far")+".db") },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			both(t, func(t *testing.T, d *database) {
				var before Authorization
				for _, replayed := range []string{"false", "true"} {
					p, err := launch("checkout", []string{"XDG_CACHE_HOME=" + cache}, append(c.flags(d), "-addr", "127.0.0.1:0", "-provider", "embedded")...)
					if p != nil {
						t.Cleanup(p.kill)
					}
					if err != nil {
						t.Fatalf("%v: %s", err, p.stderr.String())
					}
					if a := post(t, p.base, d.key("embedded-file"), payment("cart-1", 4990)); a.placed(t).CartID != "cart-1" || a.replayed() != replayed {
						t.Errorf("%v", a)
					}
					h := held(t, p.base)
					if h.Total != 1 || before != (Authorization{}) && h.Authorizations[0] != before {
						t.Errorf("it holds %+v, and held %+v", h, before)
					}
					before = h.Authorizations[0]
					p.kill()
					p.clean(t)
					if out := p.stdout.String(); !strings.Contains(out, "checkout: the provider keeps what it holds in "+c.file(d)+"\n") {
						t.Errorf("it does not say where:\n%s", out)
					}
				}
				if _, err := os.Stat(c.file(d)); err != nil {
					t.Error(err)
				}
				d.settles(t, 1)
				if n := d.count(t, map[bool]string{
					true:  `SELECT count(*) FROM sqlite_schema WHERE name LIKE 'provider%'`,
					false: `SELECT count(*) FROM pg_tables WHERE schemaname = current_schema AND tablename LIKE 'provider%'`,
				}[d.postgres == nil]); n != 0 {
					t.Error("the provider's table is among the orders")
				}
			})
		})
	}
}

// A checkout may use the provider of another one. SIGTERM ends that provider as well, and who uses it says that it is away.
func TestTheProviderOfAnotherCheckout(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		brings := startEmbedded(t, sqliteDatabase(t))
		const line = "\ncheckout: payments are authorised by the provider at "
		url := ""
		for ctx := within(t); url == ""; { // it stands below the line that start has waited for
			if _, after, ok := strings.Cut(brings.stdout.String(), line); ok && strings.Contains(after, "\n") {
				url, _, _ = strings.Cut(after, "\n")
			}
			if ctx.Err() != nil {
				t.Fatal("it does not say where its provider is")
			}
		}
		uses := start(t, append(d.flags(), "-provider", url+"/")...)
		order := post(t, uses.base, d.key("of-another"), payment("cart-1", 4990)).placed(t)
		for _, base := range []string{brings.base, uses.base} {
			if h := held(t, base); h.Total != 1 || h.Authorizations[0].ID != order.AuthID {
				t.Errorf("it holds %+v", h)
			}
		}
		brings.signal(t, syscall.SIGTERM)
		await(t, brings.exited, "its end")
		if brings.code() != 0 {
			t.Errorf("the exit code is %d: %s", brings.code(), brings.stderr.String())
		}
		post(t, uses.base, d.key("of-nobody"), payment("cart-1", 4990)).is(t, 503, "PROVIDER_UNAVAILABLE")

		// One that is not there yet is no reason not to start.
		late := start(t, append(d.flags(), "-provider", url)...)
		if says := late.stderr.String(); !strings.Contains(says, "checkout: warning: -provider: ") || !strings.Contains(says, "connection refused") {
			t.Errorf("it says %s", says)
		}
		if a := post(t, late.base, d.key("of-another"), payment("cart-1", 4990)); a.replayed() != "true" || a.placed(t).Placed != order.Placed {
			t.Errorf("%v", a)
		}
		if says := uses.stderr.String(); strings.Contains(says, "warning: -provider") {
			t.Errorf("it was there: %s", says)
		}
	})
}

func TestTheProgramSaysWhatToTryWithAProvider(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		flags      []string
		curls      int
		says, does []string
	}{
		{nil, 3, []string{"my-first-payment", "my-second-payment", "my-third-payment", "curl -i -m 1 ", "-no-keys"}, nil},
		{[]string{"-no-keys"}, 1, []string{"my-third-payment", "curl -i -m 1 "}, []string{"my-first-payment"}},
	} {
		p := startEmbedded(t, sqliteDatabase(t), c.flags...)
		p.kill()
		out := p.stdout.String()
		for _, want := range append(c.says, "\n  curl "+p.base+"/provider/authorizations\n", p.base+"/provider/authorizations\n\n") {
			if !strings.Contains(out, want) {
				t.Errorf("it does not say %q:\n%s", want, out)
			}
		}
		for _, other := range c.does {
			if strings.Contains(out, other) {
				t.Errorf("it says %q:\n%s", other, out)
			}
		}
		if n := strings.Count(out, p.base+"/api/v1/checkouts "); n != c.curls {
			t.Errorf("there are %d lines to try:\n%s", n, out)
		}
	}
}
