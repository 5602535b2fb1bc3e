package main

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A bad configuration never starts: the exit code is not 0, nothing listens, and the message says what to do. These are the
// messages.
func TestABadConfigurationNeverStarts(t *testing.T) {
	t.Parallel()
	const (
		postgresHint = "\nname a PostgreSQL 14 or newer that is running and takes writes, and a database where this role may create tables, for example -postgres postgres://user:password@127.0.0.1:5432/checkout"
		sqliteHint   = "\nname a file, there already or not, in a folder where this user may write, for example -sqlite checkout.db"
		addrHint     = "\nchoose another address, for example -addr 127.0.0.1:8081, or -addr 127.0.0.1:0 for any free port"
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
	for _, want := range []string{p.base + "/ ", p.base + "/api/v1/orders", "Bestellungen #1?.db\n"} {
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
	for _, flag := range []string{"-addr", "-sqlite", "-postgres", "-drop-answers", "127.0.0.1:8080"} {
		if !strings.Contains(help.stderr.String(), flag) {
			t.Errorf("-help does not name %s:\n%s", flag, help.stderr.String())
		}
	}
}
