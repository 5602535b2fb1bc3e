package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestTheEnvironmentConfiguresTheProtection(t *testing.T) {
	t.Parallel()
	type got struct {
		enabled, required bool
		lease, retention  time.Duration
	}
	for _, c := range []struct {
		environ []string
		want    got
		says    string
	}{
		{nil, got{true, true, 300 * time.Second, 720 * time.Hour}, ""},
		{[]string{"IDEMPOTENCY_ENABLED=false", "IDEMPOTENCY_REQUIRED=0"}, got{false, false, 300 * time.Second, 720 * time.Hour}, ""},
		{[]string{"IDEMPOTENCY_ENABLED=TRUE", "IDEMPOTENCY_REQUIRED=t"}, got{true, true, 300 * time.Second, 720 * time.Hour}, ""},
		{[]string{"IDEMPOTENCY_PROCESSING_LEASE_SECONDS=30", "IDEMPOTENCY_RETENTION_HOURS=24"}, got{true, true, 30 * time.Second, 24 * time.Hour}, ""},
		{[]string{"IDEMPOTENCY_PROCESSING_LEASE_SECONDS=3600", "IDEMPOTENCY_RETENTION_HOURS=8760"}, got{true, true, time.Hour, 8760 * time.Hour}, ""},
		{[]string{"XIDEMPOTENCY_ENABLED=no", "IDEMPOTENCY_ENABLED_=no", "idempotency_enabled=no"}, got{true, true, 300 * time.Second, 720 * time.Hour}, ""},
		{[]string{"IDEMPOTENCY_ENABLED="}, got{}, `IDEMPOTENCY_ENABLED is ""; it must be true or false`},
		{[]string{"IDEMPOTENCY_ENABLED=off"}, got{}, `IDEMPOTENCY_ENABLED is "off"; it must be true or false`},
		{[]string{"IDEMPOTENCY_ENABLED= true"}, got{}, `IDEMPOTENCY_ENABLED is " true"; it must be true or false`},
		{[]string{"IDEMPOTENCY_REQUIRED=yes"}, got{}, `IDEMPOTENCY_REQUIRED is "yes"; it must be true or false`},
		{[]string{"IDEMPOTENCY_PROCESSING_LEASE_SECONDS="}, got{}, `IDEMPOTENCY_PROCESSING_LEASE_SECONDS is ""; it must be a whole number of seconds between 30 and 3600`},
		{[]string{"IDEMPOTENCY_PROCESSING_LEASE_SECONDS=29"}, got{}, `IDEMPOTENCY_PROCESSING_LEASE_SECONDS is "29"; it must be a whole number of seconds between 30 and 3600`},
		{[]string{"IDEMPOTENCY_PROCESSING_LEASE_SECONDS=3601"}, got{}, `IDEMPOTENCY_PROCESSING_LEASE_SECONDS is "3601"; it must be a whole number of seconds between 30 and 3600`},
		{[]string{"IDEMPOTENCY_PROCESSING_LEASE_SECONDS=5m"}, got{}, `IDEMPOTENCY_PROCESSING_LEASE_SECONDS is "5m"; it must be a whole number of seconds between 30 and 3600`},
		{[]string{"IDEMPOTENCY_PROCESSING_LEASE_SECONDS=3e2"}, got{}, `IDEMPOTENCY_PROCESSING_LEASE_SECONDS is "3e2"; it must be a whole number of seconds between 30 and 3600`},
		{[]string{"IDEMPOTENCY_RETENTION_HOURS="}, got{}, `IDEMPOTENCY_RETENTION_HOURS is ""; it must be a whole number of hours between 24 and 8760`},
		{[]string{"IDEMPOTENCY_RETENTION_HOURS=-720"}, got{}, `IDEMPOTENCY_RETENTION_HOURS is "-720"; it must be a whole number of hours between 24 and 8760`},
		{[]string{"IDEMPOTENCY_RETENTION_HOURS=23"}, got{}, `IDEMPOTENCY_RETENTION_HOURS is "23"; it must be a whole number of hours between 24 and 8760`},
		{[]string{"IDEMPOTENCY_RETENTION_HOURS=8761"}, got{}, `IDEMPOTENCY_RETENTION_HOURS is "8761"; it must be a whole number of hours between 24 and 8760`},
		{[]string{"IDEMPOTENCY_RETENTION_HOURS=99999999999999999999"}, got{},
			`IDEMPOTENCY_RETENTION_HOURS is "99999999999999999999"; it must be a whole number of hours between 24 and 8760`},
		{[]string{"IDEMPOTENCY_RETENTION_HOURS=1", "IDEMPOTENCY_ENABLED=maybe"}, got{},
			"IDEMPOTENCY_ENABLED is \"maybe\"; it must be true or false\nIDEMPOTENCY_RETENTION_HOURS is \"1\"; it must be a whole number of hours between 24 and 8760"},
	} {
		t.Run(strings.Join(c.environ, " "), func(t *testing.T) {
			t.Parallel()
			s, err := parse([]string{"-sqlite", "workorders.db"}, append([]string{"PATH=/bin"}, c.environ...), io.Discard)
			if c.says != "" {
				if err == nil || err.Error() != c.says {
					t.Fatalf("it says %v, want %s", err, c.says)
				}
				return
			}
			if is := (got{s.enabled, s.required, s.lease, s.retention}); err != nil || is != c.want {
				t.Errorf("%+v, %v; want %+v", is, err, c.want)
			}
		})
	}
}

// What the environment says is in force.
func TestTheProtectionIsTuned(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		s := defaults
		s.lease, s.retention = 45*time.Second, 100*time.Hour
		serve(t, d, s).imported(t, "import-0001", sample(t))
		hours := `SELECT round(CAST(extract(epoch FROM expires_at - completed_at) AS numeric) / 3600) FROM idempotency_records`
		if d.postgres == nil {
			hours = `SELECT CAST(round((expires_at - completed_at) / 3600000.0) AS integer) FROM idempotency_records`
		}
		if got := d.text(t, hours); got != "100" {
			t.Errorf("the record is kept for %s hours", got)
		}
		p := Import{}.Idempotency()
		if s.protect(&p); p.Lease != 45*time.Second || p.KeyOptional {
			t.Errorf("%+v", p)
		}
	})
}

const (
	tokenOne = "token-of-the-erp-0001"
	tokenTwo = "token-of-the-erp-0002"
)

func writeTokens(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "clients.txt")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestS09_TwoTokensMayNameOneClient(t *testing.T) {
	t.Parallel()
	s, err := parse([]string{"-sqlite", "x.db", "-tokens", writeTokens(t, "# the ERP\nerp "+tokenOne+"\r\n\nerp "+tokenTwo+"\nother token-of-the-other+/=~\n")}, nil, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	for header, want := range map[string]string{
		"Bearer " + tokenOne: "erp", "Bearer " + tokenTwo: "erp", "bearer " + tokenTwo: "erp", "Bearer token-of-the-other+/=~": "other",
		"Bearer " + tokenOne + " ": "", "Bearer  " + tokenOne: "", "Basic " + tokenOne: "", tokenOne: "", "Bearer": "", "Bearer ": "", "": "",
		"Bearer erp": "", "Bearer " + strings.ToUpper(tokenOne): "", "Bearer " + tokenOne[:20]: "",
	} {
		r := httptest.NewRequest(http.MethodPost, "/", nil)
		if r.Header.Set("Authorization", header); header == "" {
			r.Header.Del("Authorization")
		}
		got, err := s.clients.authenticate(r)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q is %q, %v; want %q", header, got, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "token-") {
			t.Errorf("the error holds the token: %v", err)
		}
		if r.Header.Add("Authorization", "Bearer "+tokenOne); header != "" {
			if got, err := s.clients.authenticate(r); err == nil {
				t.Errorf("two headers are %q", got)
			}
		}
	}
	if strings.Contains(fmt.Sprintf("%+v %q", s, s.clients), "token-of") {
		t.Error("a token is kept as it is")
	}
}

func TestABadLineOfTokensIsNamedAndNotShown(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("t", 513)
	for content, says := range map[string]string{
		"":                                         "there is no token in it, so nobody could come in; leave -tokens out if all callers are meant to be anonymous",
		"# only a note\n\n":                        "there is no token in it, so nobody could come in; leave -tokens out if all callers are meant to be anonymous",
		"erp":                                      "line 1: it is not a principal, one space and a token",
		tokenOne:                                   "line 1: it is not a principal, one space and a token",
		"\n# erp\nerp ":                            "line 3: its token is not 16 to 512 visible ASCII characters",
		"erp " + tokenOne + "\nerp  " + tokenTwo:   "line 2: its token is not 16 to 512 visible ASCII characters",
		"erp " + tokenOne + " more":                "line 1: its token is not 16 to 512 visible ASCII characters",
		"erp " + tokenOne[:15]:                     "line 1: its token is not 16 to 512 visible ASCII characters",
		"erp " + long:                              "line 1: its token is not 16 to 512 visible ASCII characters",
		"erp tökens-are-not-ascii":                 "line 1: its token is not 16 to 512 visible ASCII characters",
		" " + tokenOne:                             "line 1: its principal is not 1 to 64 visible ASCII characters",
		"müşteri " + tokenOne:                      "line 1: its principal is not 1 to 64 visible ASCII characters",
		strings.Repeat("p", 65) + " " + tokenOne:   "line 1: its principal is not 1 to 64 visible ASCII characters",
		"anonymous " + tokenOne:                    "line 1: its principal is the name of those who have none; choose another",
		"a " + tokenOne + "\nb " + tokenOne:        "line 2: its token stands in an earlier line as well",
		"a " + tokenOne + "\na " + tokenOne:        "line 2: its token stands in an earlier line as well",
		"a " + strings.Repeat("t", 70_000) + "\nb": "a line is too long; write a principal, a space and a token",
	} {
		path := writeTokens(t, content)
		_, err := parse([]string{"-sqlite", "x.db", "-tokens", path}, nil, io.Discard)
		if err == nil || err.Error() != "-tokens "+path+": "+says {
			t.Errorf("it says %v, want %s", err, says)
		}
	}
	if _, err := parse([]string{"-sqlite", "x.db", "-tokens", filepath.Join(t.TempDir(), "none")}, nil, io.Discard); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without the file it says %v", err)
	}
}

// A bad configuration never starts, and says what to do.
func TestABadConfigurationNeverStarts(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte(strings.Repeat("this is no database. ", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	fresh := func() string { return filepath.Join(t.TempDir(), "workorders.db") }
	for _, c := range []struct {
		args, environ []string
		says          string // what it begins with
		hint          string // what it ends with
	}{
		{[]string{"-sqlite", "a", "-postgres", "b"}, nil, "-sqlite and -postgres exclude each other; choose one database", ""},
		{[]string{"-sqlite", ""}, nil, "-sqlite is empty; is a variable of the shell not set?", ""},
		{[]string{"-tokens", ""}, nil, "-tokens is empty; is a variable of the shell not set?", ""},
		{[]string{"workorders.db"}, nil, `unexpected argument "workorders.db"; all settings are flags and variables of the environment, see -help`, ""},
		{[]string{"-retention", "1h"}, nil, "flag provided but not defined: -retention", ""},
		{[]string{"-hold-demo", "51s"}, nil, "-hold-demo is 51s; it must be between 0 and 50s", ""},
		{[]string{"-hold-demo", "-1s"}, nil, "-hold-demo is -1s; it must be between 0 and 50s", ""},
		{[]string{"-sqlite", fresh()}, []string{"IDEMPOTENCY_ENABLED=2"}, `IDEMPOTENCY_ENABLED is "2"; it must be true or false`, ""},
		{[]string{"-sqlite", file}, nil, "-sqlite " + file + ": ", sqliteHelp},
		{[]string{"-sqlite", filepath.Join(file, "x.db")}, nil, "-sqlite " + file + "/x.db: ", sqliteHelp},
		{[]string{"-postgres", "postgres://user:secret@127.0.0.1:1/x?sslmode=disable"}, nil, "-postgres: ", postgresHelp},
		{[]string{"-postgres", "postgres://%%%:secret@"}, nil, "-postgres: ", postgresHelp},
		{[]string{"-sqlite", fresh(), "-addr", "127.0.0.1:99999"}, nil, "-addr: ", "or -addr 127.0.0.1:0 for any free port"},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			t.Parallel()
			var out buffer
			err := run(within(t), c.args, c.environ, &out, io.Discard)
			if err == nil || !strings.HasPrefix(err.Error(), c.says) || !strings.HasSuffix(err.Error(), c.hint) || c.hint == "" && err.Error() != c.says {
				t.Errorf("it says %v", err)
			}
			if err != nil && strings.Contains(err.Error(), "secret") || out.String() != "" {
				t.Errorf("%v; on standard output %s", err, out.String())
			}
		})
	}
}

func TestAnotherProgramsTablesAreNotTaken(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		d.exec(t, `CREATE TABLE work_orders (id int)`)
		if err := run(within(t), d.flags(), nil, io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), "\nname a ") {
			t.Errorf("it says %v", err)
		}
	})
}

func TestHelpShowsWhatThereIsToSet(t *testing.T) {
	t.Parallel()
	var out buffer
	if err := run(within(t), []string{"-hold-demo", "5s", "-addr", "x", "-help"}, nil, io.Discard, &out); !errors.Is(err, flag.ErrHelp) {
		t.Fatalf("%v", err)
	}
	for _, want := range []string{
		"-addr", "127.0.0.1:8090", "-sqlite", "-postgres", "-tokens", "IDEMPOTENCY_ENABLED", "IDEMPOTENCY_REQUIRED", "IDEMPOTENCY_PROCESSING_LEASE_SECONDS",
		"30 to 3600 (default 300)", "IDEMPOTENCY_RETENTION_HOURS", "24 to 8760 (default 720)",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("it does not name %s:\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "hold-demo") {
		t.Errorf("it names what is hidden:\n%s", out.String())
	}
}

// The program says where it listens and what to try, serves, and drains when it is told to end.
func TestTheProgramServesAndDrains(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		ctx, stop := context.WithCancel(within(t))
		said, out := io.Pipe()
		ended := make(chan error, 1)
		go func() {
			err := run(ctx, append(d.flags(), "-addr", "127.0.0.1:0", "-tokens", writeTokens(t, "erp "+tokenOne)), []string{"IDEMPOTENCY_REQUIRED=false"}, out, io.Discard)
			ended <- errors.Join(err, out.Close())
		}()
		lines := bufio.NewScanner(said)
		greeting := ""
		for lines.Scan() && !strings.Contains(lines.Text(), "sample.xml") {
			greeting += lines.Text() + "\n"
		}
		_, base, ok := strings.Cut(greeting, "workorders: listening on ")
		if !ok {
			t.Fatalf("it says %s", greeting)
		}
		base, _, _ = strings.Cut(base, "\n")
		for _, want := range []string{"work orders and records are kept in ", "1 tokens are known", "IDEMPOTENCY_REQUIRED is off", "testdata/sample.json", importPath, testPath, "/metrics, for Prometheus"} {
			if !strings.Contains(greeting, want) {
				t.Errorf("it does not say %s:\n%s", want, greeting)
			}
		}
		if strings.Contains(greeting, tokenOne) {
			t.Error("it says a token")
		}
		client := &http.Client{Transport: &http.Transport{}}
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/healthz", nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := client.Do(request)
		if err != nil || answer.StatusCode != http.StatusOK {
			t.Fatalf("%+v, %v", answer, err)
		}
		answer.Body.Close()
		client.CloseIdleConnections()
		stop()
		rest, err := io.ReadAll(said)
		if err != nil || !strings.HasSuffix(string(rest), "workorders: draining\n") {
			t.Errorf("it says %q, %v", rest, err)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
