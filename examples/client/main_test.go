package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tekil-go/tekil/requestctx/client"
)

// roleVariable makes a process of this test binary the program.
const roleVariable = "TEKIL_CLIENT_TEST"

func TestMain(m *testing.M) {
	if os.Getenv(roleVariable) != "" {
		main()
		return
	}
	folder, err := os.MkdirTemp("", "tekil-client-test-")
	if err != nil {
		panic(err)
	}
	built = filepath.Join(folder, "checkout.exe")
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(folder)
		os.Exit(code)
	}))
}

// built is where the checkout is after build.
var (
	built string
	build = sync.OnceValue(func() error {
		out, err := exec.Command("go", "build", "-o", built, checkoutPackage).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		return nil
	})
)

// patience bounds what a test waits for. It is reached only where something is wrong.
const patience = 2 * time.Minute

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// program runs the program with the checkout that all tests share.
func program(ctx context.Context, t *testing.T, stdout io.Writer, args ...string) (*report, error) {
	t.Helper()
	s, err := parse(args, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if s.url == "" {
		if err := build(); err != nil {
			t.Fatal(err)
		}
		s.program = built
	}
	return s.run(ctx, stdout)
}

// right fails the test unless the report says that each of n payments has one order.
func right(t *testing.T, rep *report, err error, n int) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	if want := (findings{payments: n, orders: n, one: n}); rep.findings != want {
		t.Errorf("found %+v, want %+v", rep.findings, want)
	}
	if rep.conflicts.Load() != 0 || rep.refused.Load() != 0 {
		t.Errorf("%d conflicts and %d refused, want none", rep.conflicts.Load(), rep.refused.Load())
	}
}

func TestOverABadLineEachPaymentHasOneOrder(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	rep, err := program(within(t), t, &out, "-payments", "60", "-drop", "0.3", "-double", "0.3", "-delay", "5ms", "-workers", "4")
	right(t, rep, err, 60)
	l := rep.line
	before, after, doubled, delayed := l.before.Load(), l.after.Load(), l.doubled.Load(), l.delayed.Load()
	if before == 0 || after == 0 || doubled == 0 || delayed == 0 {
		t.Errorf("%d dropped before, %d after, %d doubled, %d delayed; want some of each", before, after, doubled, delayed)
	}
	if lost := rep.lost.Load(); lost != before+after+l.away.Load() {
		t.Errorf("%d tries had no answer, and the line has dropped %d and %d", lost, before, after)
	}
	if tries := rep.tries.Load(); tries != 60+rep.lost.Load() {
		t.Errorf("%d tries, want one for each payment and for each of %d lost", tries, rep.lost.Load())
	}
	if n := rep.replays.Load(); n < after/2 || n > 60 {
		t.Errorf("%d replays with %d lost answers of 60 payments", n, after)
	}
	for _, line := range []string{" 10 %  6/60 payments", "100 %  60/60 payments", "payments with exactly one order, as answered        60\n"} {
		if !strings.Contains(out.String(), line) {
			t.Errorf("the output has no %q:\n%s", line, &out)
		}
	}
}

func TestUnderKillsEachPaymentHasOneOrder(t *testing.T) {
	t.Parallel()
	rep, err := program(within(t), t, io.Discard, "-payments", "150", "-kill", "200ms", "-workers", "4", "-delay", "40ms")
	right(t, rep, err, 150)
	if rep.kills == 0 {
		t.Error("nothing was killed, so this has tested nothing")
	}
	t.Logf("%d kills, %d tries, %d of them found no server or one that died", rep.kills, rep.tries.Load(), rep.line.away.Load())
}

func TestWithoutKeysOrdersAreDoubledAndTheProgramFails(t *testing.T) {
	t.Parallel()
	rep, err := program(within(t), t, io.Discard, "-payments", "60", "-drop", "0.3", "-double", "0.3", "-delay", "5ms", "-no-keys")
	if rep == nil {
		t.Fatal(err)
	}
	if rep.orders <= 60 || rep.more == 0 || rep.tooMany != rep.orders-60 || rep.none != 0 {
		t.Errorf("found %+v, want more orders than payments", rep.findings)
	}
	want := fmt.Sprintf("of 60 payments: %d payments with more than one order (%d orders too many)", rep.more, rep.tooMany)
	if err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
}

func TestTheLineDoublesAndDropsWhatItCounts(t *testing.T) {
	t.Parallel()
	var arrived atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if body, err := io.ReadAll(r.Body); err == nil && string(body) == "body" && r.Header.Get("Idempotency-Key") == "key" {
			arrived.Add(1)
		}
		w.WriteHeader(http.StatusCreated)
	}))
	defer server.Close()
	const posts = 200
	for _, c := range []struct{ drop, double float64 }{{0, 0}, {0, 1}, {0.9, 0}, {0.5, 1}} {
		arrived.Store(0)
		l, err := openLine(server.URL, settings{drop: c.drop, double: c.double, delay: time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		transport := &http.Transport{DisableKeepAlives: true}
		answered := 0
		for range posts {
			req, err := http.NewRequestWithContext(within(t), http.MethodPost, l.base, strings.NewReader("body"))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Idempotency-Key", "key")
			if resp, err := transport.RoundTrip(req); err == nil {
				_ = resp.Body.Close()
				answered++
			}
		}
		l.close()
		before, after, doubled := int(l.counts.before.Load()), int(l.counts.after.Load()), int(l.counts.doubled.Load())
		if answered != posts-before-after || int(arrived.Load()) != posts-before+doubled || l.counts.away.Load() != 0 {
			t.Errorf("%+v: %d dropped before, %d after, %d doubled; %d arrived and %d were answered", c, before, after, doubled, arrived.Load(), answered)
		}
		if (c.drop > 0) != (before > 0 && after > 0) || doubled != int(c.double)*(posts-before) {
			t.Errorf("%+v: %d dropped before, %d after, %d doubled", c, before, after, doubled)
		}
	}
}

// wrong is a server with a fault at the third payment.
type wrong struct {
	fault  string
	mu     sync.Mutex
	orders []order
}

func (s *wrong) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch r.Method + " " + r.URL.Path {
	case "GET /healthz":
	case "GET /api/v1/orders":
		if s.fault == "pages in a circle" {
			_, _ = io.WriteString(w, `{"orders":[],"next":"/api/v1/orders?limit=100"}`)
			return
		}
		_ = json.NewEncoder(w).Encode(page{Orders: s.orders})
	case "POST /api/v1/checkouts":
		var p Place
		if json.NewDecoder(r.Body).Decode(&p) != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		answer := Placed{"order-" + p.DraftOrderID, p.CartID, p.Amount, p.Currency}
		stored := []order{{answer, p.DraftOrderID}}
		if strings.HasSuffix(p.DraftOrderID, "-000002") {
			switch s.fault {
			case "two":
				stored = append(stored, order{Placed{"second", p.CartID, p.Amount, p.Currency}, p.DraftOrderID})
			case "lost":
				stored = nil
			case "another":
				answer.OrderID = "another"
			case "amount":
				stored[0].Amount++
			case "answered amount":
				answer.Amount++
			case "currency":
				stored[0].Currency = "XTS"
			case "cart":
				stored[0].CartID = "cart"
			case "stray":
				stored = append(stored, order{answer, p.DraftOrderID[:len(p.DraftOrderID)-6] + "999999"})
			case "conflict":
				w.WriteHeader(http.StatusConflict)
				return
			case "refused":
				w.WriteHeader(http.StatusPaymentRequired)
				return
			}
		}
		s.orders = append(s.orders, stored...)
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(answer)
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

func TestAServerThatIsWrongIsFoundOut(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ fault, err string }{
		{"nothing", ""},
		{"two", "of 20 payments: 1 payments with more than one order (1 orders too many)"},
		{"lost", "of 20 payments: 1 payments with no order"},
		{"another", "of 20 payments: 1 payments with another order than the one that was answered"},
		{"amount", "of 20 payments: 1 payments with another cart, amount or currency than was meant"},
		{"answered amount", "of 20 payments: 1 payments with another cart, amount or currency than was meant"},
		{"currency", "of 20 payments: 1 payments with another cart, amount or currency than was meant"},
		{"cart", "of 20 payments: 1 payments with another cart, amount or currency than was meant"},
		{"stray", "of 20 payments: 1 orders of no payment"},
		{"conflict", "of 20 payments: 1 payments with no order"},
		{"refused", "of 20 payments: 1 payments with no order"},
		{"pages in a circle", "the server's orders: the next page is not one that can be followed"},
	} {
		t.Run(c.fault, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(&wrong{fault: c.fault, orders: []order{{Placed{OrderID: "of-another-run"}, "draft"}}})
			defer server.Close()
			rep, err := program(within(t), t, io.Discard, "-url", server.URL+"/", "-payments", "20", "-drop", "0", "-double", "0", "-delay", "0")
			if got := fmt.Sprint(err); got != c.err && !(c.err == "" && err == nil) {
				t.Errorf("error %q, want %q", got, c.err)
			}
			if rep == nil {
				return
			}
			count := map[string]int64{"conflict": rep.conflicts.Load(), "refused": rep.refused.Load()}
			for fault, n := range count {
				if (n == 1) != (fault == c.fault) {
					t.Errorf("%d answers were counted as %s", n, fault)
				}
			}
		})
	}
}

func TestAnOlderCheckoutHasNoPaymentsWithoutKeys(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(&wrong{})
	defer server.Close()
	_, err := program(within(t), t, io.Discard, "-url", server.URL, "-payments", "1", "-drop", "0", "-no-keys")
	if err == nil || !strings.Contains(err.Error(), "the checkout has no POST /demo/checkouts") {
		t.Errorf("error %v", err)
	}
}

// until is an output that calls then when it has seen a text.
type until struct {
	text string
	then func()
	mu   sync.Mutex
	all  []byte
}

func (u *until) Write(p []byte) (int, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.all = append(u.all, p...)
	if bytes.Contains(u.all, []byte(u.text)) {
		u.then()
	}
	return len(p), nil
}

func TestARunThatWasCutGoesOnWithTheSameKeys(t *testing.T) {
	t.Parallel()
	folder := filepath.Join(t.TempDir(), "intents")
	args := []string{"-payments", "120", "-drop", "0.4", "-workers", "8", "-intents", folder}
	ctx, cut := context.WithCancel(within(t))
	_, err := program(ctx, t, &until{text: " 30 %", then: cut}, args...)
	if err == nil || !strings.Contains(err.Error(), "started again with the same -intents, it goes on with the same keys") {
		t.Fatalf("the run was cut, and the error is %v", err)
	}

	left := stored(t, folder)
	runs := 0
	for _, r := range left {
		switch r.Intent {
		case "run of 120 payments":
			runs++
		case "checkout":
			if want := client.Derive("draft/1", "checkout", r.DraftID, "1"); r.Key != want {
				t.Errorf("the key of %v is not the draft's", r)
			}
		}
	}
	if runs != 1 || len(left) < 2 || len(left) > 1+8 {
		t.Fatalf("%d intents are left, %d of them of the run; want the run's and those of the payments that were under way", len(left), runs)
	}

	var out bytes.Buffer
	rep, err := program(within(t), t, &out, args...)
	right(t, rep, err, 120)
	if n := int(rep.resumed.Load()); n != len(left)-1 {
		t.Errorf("%d intents were resumed, want %d", n, len(left)-1)
	}
	if n := rep.replays.Load(); n < 36 {
		t.Errorf("%d replays, want one at least for each of the 36 payments that were made before", n)
	}
	if !strings.Contains(out.String(), "going on with the run") {
		t.Errorf("the output does not say that the run goes on:\n%s", &out)
	}
	if left := stored(t, folder); len(left) != 0 {
		t.Errorf("%d intents are left after the end of the run", len(left))
	}

	rep, err = program(within(t), t, io.Discard, "-payments", "5", "-intents", folder) // on the same database
	right(t, rep, err, 5)
}

func stored(t *testing.T, folder string) (all []client.Record) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		var r client.Record
		if err := json.Unmarshal(data, &r); err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	return all
}

func TestAnIntentsFolderOfAnExpiredRunIsRefused(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	store, err := client.NewFiles(folder)
	if err != nil {
		t.Fatal(err)
	}
	old := client.Record{Intent: "run of 1000 payments", Key: "0123456789abcdef", CreatedAt: time.Now().Add(-48 * time.Hour), TTLHours: 24}
	if _, _, err := store.Keep(within(t), old); err != nil {
		t.Fatal(err)
	}
	_, err = program(within(t), t, io.Discard, "-intents", folder, "-url", "http://127.0.0.1:1")
	if err == nil || !strings.Contains(err.Error(), "name another folder") {
		t.Errorf("error %v", err)
	}
}

// child starts the program as a process of its own, which builds the checkout, and waits until it sends payments.
func child(t *testing.T) (cmd *exec.Cmd, stderr *bytes.Buffer, temp, address string) {
	t.Helper()
	temp = t.TempDir()
	cmd = exec.Command(os.Args[0], "-payments", "1000000")
	cmd.Env = append(os.Environ(), roleVariable+"=1", "TMPDIR="+temp)
	stderr = &bytes.Buffer{}
	cmd.Stderr = stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	line, _ := bufio.NewReader(out).ReadString('\n')
	_, rest, _ := strings.Cut(line, "checkout at http://")
	address, _, _ = strings.Cut(rest, ",")
	if address == "" {
		_ = cmd.Wait()
		t.Fatalf("the program says %q\n%s", line, stderr)
	}
	return cmd, stderr, temp, address
}

// dead waits until nobody listens at the address.
func dead(t *testing.T, address string) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; {
		c, err := net.Dial("tcp", address)
		if err != nil {
			return
		}
		_ = c.Close()
		if time.Now().After(deadline) {
			t.Fatal("the checkout is still there")
		}
	}
}

func TestSIGTERMLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	for _, signal := range []os.Signal{syscall.SIGTERM, os.Interrupt} {
		t.Run(signal.String(), func(t *testing.T) {
			t.Parallel()
			cmd, stderr, temp, address := child(t)
			if err := cmd.Process.Signal(signal); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			if code := cmd.ProcessState.ExitCode(); code != 1 || stderr.String() != "client: stopped before all was done; with -intents DIR it could be gone on with\n" {
				t.Errorf("exit code %d, error %q", code, stderr)
			}
			dead(t, address)
			if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
				t.Errorf("left behind: %v %v", left, err)
			}
		})
	}
}

func TestWithoutABuildTheErrorNamesTheWayOut(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleVariable+"=1", "PATH="+t.TempDir())
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "client: the checkout cannot be built") || !strings.Contains(string(out), "name it by -url") {
		t.Errorf("%v: %s", err, out)
	}
}

func TestACheckoutThatDoesNotRunEndsTheProgram(t *testing.T) {
	t.Parallel()
	s, err := parse([]string{"-payments", "3", "-postgres", "nonsense"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if err := build(); err != nil {
		t.Fatal(err)
	}
	s.program = built
	if _, err = s.run(within(t), io.Discard); err == nil || !strings.Contains(err.Error(), "the checkout ended at its start") ||
		!strings.Contains(err.Error(), "name a PostgreSQL") {
		t.Errorf("error %v", err)
	}
}

func TestFlagsThatAreWrongAreRefused(t *testing.T) {
	t.Parallel()
	cases := map[string]string{
		"-payments 0":                          "-payments is 0",
		"-payments -1":                         "-payments is -1",
		"-payments x":                          "invalid value",
		"-workers 0":                           "-workers is 0",
		"-workers 1001":                        "-workers is 1001",
		"-drop -0.1":                           "-drop is -0.1",
		"-drop 1":                              "-drop is 1",
		"-drop NaN":                            "-drop is NaN",
		"-double 1.1":                          "-double is 1.1",
		"-double NaN":                          "-double is NaN",
		"-delay -1s":                           "-delay is -1s",
		"-delay 6s":                            "-delay is 6s",
		"-kill -1s":                            "-kill is -1s",
		"-kill 1s -url http://h":               "-kill is for the checkout that is started here",
		"-postgres postgres://h -url http://h": "-postgres is for the checkout that is started here",
		"-no-keys -intents d":                  "-no-keys makes no intents",
		"-url h:80":                            "-url has to be the address",
		"-url ftp://h":                         "-url has to be the address",
		"-url http://":                         "-url has to be the address",
		"-url http://h?x=1":                    "-url has to be the address",
		"-url=":                                "-url is empty",
		"-intents=":                            "-intents is empty",
		"-postgres=":                           "-postgres is empty",
		"more":                                 `unexpected argument "more"`,
		"-nothing":                             "not defined",
	}
	for _, line := range slices.Sorted(maps.Keys(cases)) {
		err := run(within(t), strings.Fields(line), io.Discard, io.Discard)
		if err == nil || !strings.Contains(err.Error(), cases[line]) {
			t.Errorf("%s: error %v, want %s", line, err, cases[line])
		}
	}
	if err := run(within(t), []string{"-url", "http://127.0.0.1:1"}, io.Discard, io.Discard); err == nil ||
		!strings.Contains(err.Error(), "no checkout answers there") {
		t.Errorf("error %v", err)
	}
	s, err := parse(nil, io.Discard)
	if want := (settings{payments: 1000, workers: 16, drop: 0.2, double: 0.1, delay: 50 * time.Millisecond}); err != nil || s != want {
		t.Errorf("without flags: %+v, %v", s, err)
	}
}

func TestOnATerminalTheBarIsOneLine(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	p := newProgress(&out, 3, &tally{})
	p.bar = true
	for range 3 {
		p.step()
	}
	p.end()
	text := out.String()
	if strings.Count(text, "\n") != 1 || !strings.HasPrefix(text, "\r[") || !strings.Contains(text, "["+strings.Repeat("#", 30)+"] 3/3 payments") {
		t.Errorf("the bar is %q", text)
	}
}
