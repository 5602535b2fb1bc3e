//go:build unix

package pgstore_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	osexec "os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore"
	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore/pgtest"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
)

// A process that is frozen, by a debugger, a snapshot of its machine or a host that swaps, does not know it. It goes on in the
// middle of its handler when the world has moved on. Here a child process stops itself (SIGSTOP) and is woken (SIGCONT) when
// the test has done what the world does meanwhile.

// freezing is what a child process does, and when it stops itself.
type freezing struct {
	URL    string
	Mode   freezeMode
	Moment moment
	Key    string
}

// freezeMode is that of the command which the child sends.
type freezeMode string

const (
	inAtomic   freezeMode = "Atomic"
	inHintless freezeMode = "Atomic without the hint" // so that attempts run side by side
	inLeased   freezeMode = "Leased"
	inShort    freezeMode = "Leased with a short lease"
)

// moment is when the child stops itself.
type moment string

const (
	unasked       moment = "when the test stops it"
	beforeTheWork moment = "before it uses its transaction"
	beforeTheBeat moment = "before it waits for a renewal of its lease"
	amidTheWork   moment = "between two business writes"
	afterTheWork  moment = "after its business write"
)

const (
	// frozenEnv makes the test binary such a child. It holds a freezing.
	frozenEnv = "TEKIL_PGSTORE_FROZEN"
	// frozenIdle is when the server ends a transaction whose process does not move. It is longer than what a test does in that
	// time takes on a slow machine.
	frozenIdle = 2 * time.Second
	// frozenLease is the short lease. A third of it passes before it is renewed.
	frozenLease = 2 * time.Second
	// frozenPatience bounds what is waited for. It is reached only where something is wrong.
	frozenPatience = time.Minute
)

// The commands of the modes. None of them waits for another attempt.
type (
	frost struct { // Leased
		Text string `json:"text"`
	}
	rime struct { // Leased, with a short lease
		Text string `json:"text"`
	}
	ice struct { // Atomic
		Text string `json:"text"`
	}
)

func (frost) CommandName() bus.Name[string] { return "test.frost" }
func (frost) Idempotency() idempotency.Policy {
	return idempotency.Policy{Mode: idempotency.Leased, Wait: -1}
}

func (rime) CommandName() bus.Name[string] { return "test.rime" }
func (rime) Idempotency() idempotency.Policy {
	return idempotency.Policy{Mode: idempotency.Leased, Lease: frozenLease, Wait: -1}
}

func (ice) CommandName() bus.Name[string]   { return "test.ice" }
func (ice) Idempotency() idempotency.Policy { return idempotency.Policy{Wait: -1} }

// send sends the command of the mode over an engine of its own, as a process of its own would.
func (m freezeMode) send(ctx context.Context, pool *pgxpool.Pool, handle func(context.Context) (string, error)) (string, error) {
	engine, err := idempotency.New(idempotency.Config{Store: pgstore.NewWithConfig(pool, pgstore.Config{NoHint: m == inHintless})})
	if err != nil {
		return "", err
	}
	switch m {
	case inLeased:
		return sendOver(ctx, engine, frost{"x"}, func(ctx context.Context, _ frost) (string, error) { return handle(ctx) })
	case inShort:
		return sendOver(ctx, engine, rime{"x"}, func(ctx context.Context, _ rime) (string, error) { return handle(ctx) })
	}
	return sendOver(ctx, engine, ice{"x"}, func(ctx context.Context, _ ice) (string, error) { return handle(ctx) })
}

func sendOver[C bus.Command[string]](ctx context.Context, engine *idempotency.Engine, c C, handler bus.Handler[C, string]) (string, error) {
	claimed, _, err := idempotency.Stage(engine, handler)
	if err != nil {
		return "", err
	}
	inv := bus.Invocation{Name: string(c.CommandName()), Idempotent: true}
	b, err := bus.New(bus.Serve[C](bus.Log(bus.Validate(claimed, inv, nil, nil), inv, nil, nil)))
	if err != nil {
		return "", err
	}
	return bus.Send(ctx, b, c)
}

// writes is a function for InTx that writes notes.
func writes(pool *pgxpool.Pool, notes ...string) func(context.Context) error {
	return func(ctx context.Context) error {
		for _, text := range notes {
			if _, err := pgstore.DB(ctx, pool).Exec(ctx, `INSERT INTO notes (note) VALUES ($1)`, text); err != nil {
				return err
			}
		}
		return nil
	}
}

// init is where a test binary that was started as such a child becomes one, before any test.
func init() {
	spec, ok := os.LookupEnv(frozenEnv)
	if !ok {
		return
	}
	go func() { // a test that is killed takes its child along: the kernel closes its end of the standard input
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(97)
	}()
	var f freezing
	err := json.Unmarshal([]byte(spec), &f)
	if err == nil {
		err = f.live()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// awoken is what a child says at its end: what its caller was told, and what its handler met.
type awoken struct {
	Result  string
	Code    string // of the error
	Err     string
	Outcome requestctx.Outcome
	ID      string

	Runs     int
	Lost     bool   // InTx, or the cause with which the handler's context ended, was ErrLeaseLost
	SQLState string // of the first error that the handler met
}

// live is the child's life.
func (f freezing) live() error {
	ctx, cancel := context.WithTimeout(context.Background(), frozenPatience)
	defer cancel()
	cfg, err := pgxpool.ParseConfig(f.URL)
	if err != nil {
		return err
	}
	if f.Mode != inHintless { // that one is not to wake too late
		cfg.ConnConfig.RuntimeParams["idle_in_transaction_session_timeout"] = strconv.FormatInt(frozenIdle.Milliseconds(), 10)
	}
	pgstore.Configure(cfg) // which leaves what is set
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer pool.Close()
	key, err := requestctx.ParseKey(f.Key)
	if err != nil {
		return err
	}
	ctx, req := requestctx.New(ctx, requestctx.Values{Key: key, Scope: requestctx.Scope{Client: "tester"}})
	a := awoken{ID: req.ID()}
	a.Result, err = f.Mode.send(ctx, pool, func(ctx context.Context) (string, error) {
		a.Runs++
		return "by the frozen one", f.handle(ctx, pool, &a)
	})
	a.Outcome = req.Outcome()
	if err != nil {
		a.Err = err.Error()
		var coded interface{ Code() string }
		if errors.As(err, &coded) {
			a.Code = coded.Code()
		}
	}
	return json.NewEncoder(os.Stdout).Encode(a)
}

// handle is the child's handler.
func (f freezing) handle(ctx context.Context, pool *pgxpool.Pool, a *awoken) error {
	switch f.Moment {
	case beforeTheWork:
		freeze()
	case beforeTheBeat:
		freeze()
		<-ctx.Done()
		a.met(context.Cause(ctx))
		return ctx.Err()
	case amidTheWork:
		err := pgstore.InTx(ctx, pool, func(ctx context.Context) error {
			if err := writes(pool, "by the frozen one, undone")(ctx); err != nil {
				return err
			}
			freeze()
			return writes(pool, "by the frozen one, too late")(ctx)
		})
		if a.met(err); err == nil {
			return nil
		}
		// It does not give up, as a handler may.
	}
	err := pgstore.InTx(ctx, pool, func(ctx context.Context) error {
		err := writes(pool, "by the frozen one")(ctx)
		if f.Moment == afterTheWork {
			freeze()
		}
		return err
	})
	a.met(err)
	return err
}

// met notes an error that the handler has met.
func (a *awoken) met(err error) {
	var pg *pgconn.PgError
	if errors.As(err, &pg) && a.SQLState == "" {
		a.SQLState = pg.Code
	}
	a.Lost = a.Lost || errors.Is(err, idempotency.ErrLeaseLost)
}

// freeze stops this process, and returns when it has been woken.
func freeze() { _ = syscall.Kill(os.Getpid(), syscall.SIGSTOP) }

// frozen is a child process in a database, and the test's own way to send the same command.
type frozen struct {
	freezing
	db   *pgtest.Database
	pool *pgxpool.Pool

	cmd            *osexec.Cmd
	stdout, stderr bytes.Buffer
}

// start starts a child on the database.
func (f freezing) start(t *testing.T, db *pgtest.Database) *frozen {
	t.Helper()
	f.Key = "frozen-key-1"
	if f.URL == "" {
		f.URL = db.URL()
	}
	spec, err := json.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := &frozen{freezing: f, db: db, pool: db.Pool(), cmd: osexec.Command(self)}
	c.cmd.Env = append(os.Environ(), frozenEnv+"="+string(spec))
	c.cmd.Stdout, c.cmd.Stderr = &c.stdout, &c.stderr
	// In a group of its own, because the kernel hangs up on a stopped process when its whole group is orphaned: should this
	// process be killed, the child does not stay frozen for ever.
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if _, err := c.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.cmd.Process.Kill() // ends a stopped process as well
		_ = c.cmd.Wait()
	})
	return c
}

// stopped waits until the child stands still.
func (c *frozen) stopped(t *testing.T) {
	t.Helper()
	end := make(chan string, 1)
	go func() {
		var status syscall.WaitStatus
		for {
			_, err := syscall.Wait4(c.cmd.Process.Pid, &status, syscall.WUNTRACED, nil)
			switch {
			case errors.Is(err, syscall.EINTR):
				continue
			case err == nil && status.Stopped():
				close(end)
			default:
				end <- fmt.Sprintf("it has ended: %v, status %d", err, status.ExitStatus())
			}
			return
		}
	}()
	var failed string
	select {
	case failed = <-end:
	case <-time.After(frozenPatience):
		_ = c.cmd.Process.Kill()
		failed = "it runs; " + <-end
	}
	if failed != "" {
		_ = c.cmd.Wait()
		t.Fatalf("the child has not stopped: %s\n%s%s", failed, c.stdout.String(), c.stderr.String())
	}
}

// wake wakes the child and gives what it says at its end.
func (c *frozen) wake(t *testing.T) (a awoken) {
	t.Helper()
	if err := c.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	err := c.cmd.Wait()
	if err == nil {
		err = json.Unmarshal(c.stdout.Bytes(), &a)
	}
	if err != nil {
		t.Fatalf("the child: %v\n%s%s", err, c.stdout.String(), c.stderr.String())
	}
	if a.Runs != 1 {
		t.Errorf("the child's handler ran %d times, want 1", a.Runs)
	}
	return a
}

// send sends the child's command from here.
func (c *frozen) send(t *testing.T) (got string, req *requestctx.Request, err error) {
	t.Helper()
	ctx, req := asked(t, t.Context(), c.Key)
	got, err = c.Mode.send(ctx, c.pool, func(ctx context.Context) (string, error) {
		return "by the other one", pgstore.InTx(ctx, c.pool, writes(c.pool, "by the other one"))
	})
	return got, req, err
}

// holds demands that the key is still the child's.
func (c *frozen) holds(t *testing.T) {
	t.Helper()
	got, req, err := c.send(t)
	var busy *idempotency.InProgressError
	if !errors.As(err, &busy) {
		t.Errorf("while the first one is frozen a duplicate is told %q, %v, %+v; want that it is in progress", got, err, req.Outcome())
	}
}

// overtaken sends the command until the key is free, and demands that it runs then.
func (c *frozen) overtaken(t *testing.T) *requestctx.Request {
	t.Helper()
	for end := time.Now().Add(frozenPatience); ; {
		got, req, err := c.send(t)
		var busy *idempotency.InProgressError
		switch {
		case errors.As(err, &busy) && time.Now().Before(end):
			time.Sleep(5 * time.Millisecond) // asks for a fact again; no time is assumed
			continue
		case err != nil || got != "by the other one" || req.Outcome().State != requestctx.StateExecuted:
			t.Fatalf("the other one: %q, %v, %+v", got, err, req.Outcome())
		}
		return req
	}
}

// lapses makes the child's lease end. Where its business transaction holds the record, this waits until the server has ended that.
func (c *frozen) lapses(t *testing.T) {
	t.Helper()
	exec(t, c.pool, `UPDATE idempotency_records SET lease_until = clock_timestamp() - interval '1 second'`)
}

// given waits until the server has ended the transaction in which the child has written, and demands that nothing of it is there.
func (c *frozen) given(t *testing.T, records int) {
	t.Helper()
	exec(t, c.pool, `BEGIN; LOCK TABLE notes IN ACCESS EXCLUSIVE MODE; COMMIT`)
	c.leaves(t, records)
}

// leaves compares what is in the database.
func (c *frozen) leaves(t *testing.T, records int, notes ...string) {
	t.Helper()
	var got string
	if err := c.pool.QueryRow(t.Context(), `SELECT coalesce(string_agg(note, '; ' ORDER BY note), '') FROM notes`).Scan(&got); err != nil {
		t.Fatal(err)
	}
	if want := strings.Join(notes, "; "); got != want {
		t.Errorf("the business rows are %q, want %q", got, want)
	}
	if n := count(t, c.pool, "idempotency_records"); n != records {
		t.Errorf("there are %d records, want %d", n, records)
	}
}

// told demands that the caller of the woken child, which has gone through f, was given the outcome of another attempt.
func (a awoken) told(t *testing.T, other *requestctx.Request) {
	t.Helper()
	if a.Err != "" || a.Result != "by the other one" || !a.Outcome.Replayed || a.Outcome.OriginalRequestID != other.ID() {
		t.Errorf("the woken one's caller is told %+v; want the outcome of %s", a, other.ID())
	}
}

// nothing demands that the caller was told that nothing is there, because the server has ended the transaction, and to send the same
// key again.
func (a awoken) nothing(t *testing.T) {
	t.Helper()
	if a.Code != "IDEMPOTENCY_STORE_UNAVAILABLE" || !strings.Contains(a.Err, "25P03") || a.Outcome.State != requestctx.StateFreed {
		t.Errorf("the woken one's caller is told %+v; want that nothing is there", a)
	}
}

func TestALeasedProcessThatIsFrozenAndOvertakenIsToldWhatTheRecordSays_L09_L16(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		freezing
		name string
		lost bool   // its handler is told so
		sql  string // what its handler meets
	}{
		{freezing{Mode: inLeased, Moment: beforeTheWork}, "between its claim and InTx", true, ""},
		{freezing{Mode: inShort, Moment: beforeTheBeat}, "while it calls the outside world", true, ""},
		{freezing{Mode: inLeased, Moment: afterTheWork}, "in the business transaction, whose completion is refused", false, ""},
		{freezing{Mode: inLeased, Moment: amidTheWork}, "in the business transaction, whose next statement is refused", true, "25P03"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.Open(t)
			migrated(t, db.Pool())
			child := c.start(t, db)
			child.stopped(t)
			if c.Mode == inLeased {
				child.holds(t)
				child.lapses(t)
			} // and a short lease ends by itself, because a frozen process does not renew it
			other := child.overtaken(t)
			if o := other.Outcome(); !o.TookOver || o.Attempt != 2 {
				t.Errorf("the other one has not taken the key over: %+v", o)
			}
			a := child.wake(t)
			a.told(t, other)
			if a.Lost != c.lost || a.SQLState != c.sql {
				t.Errorf("the woken handler met %+v; want ErrLeaseLost %t and SQLSTATE %q", a, c.lost, c.sql)
			}
			child.leaves(t, 1, "by the other one")
		})
	}
	t.Run("before the answer to its claim", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Open(t)
		migrated(t, db.Pool())
		proxy := db.Proxy()
		release := make(chan struct{})
		claim := proxy.Arm(pgtest.Fault{Match: pgtest.Contains("INSERT INTO idempotency_records"), Action: pgtest.HoldAnswer, Release: release})
		child := freezing{URL: proxy.URL(), Mode: inLeased, Moment: unasked}.start(t, db)
		<-claim.Fired()
		if err := child.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		child.stopped(t)
		child.holds(t)
		child.lapses(t)
		other := child.overtaken(t)
		close(release)
		<-claim.Done() // the answer waits in the child's socket
		a := child.wake(t)
		a.told(t, other)
		if !a.Lost {
			t.Errorf("InTx gave the woken handler no ErrLeaseLost: %+v", a)
		}
		child.leaves(t, 1, "by the other one")
	})
}

func TestAnAtomicProcessThatIsFrozenHoldsItsKeyUntilTheServerEndsItsTransaction_L16_E15(t *testing.T) {
	t.Parallel()
	for _, m := range []moment{beforeTheWork, amidTheWork, afterTheWork} {
		for _, mode := range []freezeMode{inAtomic, inHintless} {
			t.Run(string(mode)+", frozen "+string(m), func(t *testing.T) {
				t.Parallel()
				db := pgtest.Open(t)
				migrated(t, db.Pool())
				child := freezing{Mode: mode, Moment: m}.start(t, db)
				child.stopped(t)
				if mode == inAtomic {
					child.holds(t)
				} // and without the hint nothing is in a duplicate's way, and the unique key decides in the end
				other := child.overtaken(t)
				a := child.wake(t)
				a.told(t, other)
				if want := map[bool]string{true: "25P03"}[mode == inAtomic && m != afterTheWork]; a.SQLState != want {
					t.Errorf("the woken handler met SQLSTATE %q, want %q", a.SQLState, want)
				}
				child.leaves(t, 1, "by the other one")
				if got, req, err := child.send(t); err != nil || got != "by the other one" || !req.Outcome().Replayed {
					t.Errorf("the same key again: %q, %v, %+v", got, err, req.Outcome())
				}
			})
		}
	}
}

func TestAFrozenProcessThatNobodyHasReplacedGoesOnOrLeavesNothing_L10_L16(t *testing.T) {
	t.Parallel()
	goesOn := func(t *testing.T, a awoken) {
		t.Helper()
		if a.Err != "" || a.Result != "by the frozen one" || a.Outcome.State != requestctx.StateExecuted || a.Outcome.OriginalRequestID != a.ID || a.Lost {
			t.Errorf("the woken one's caller is told %+v; want its own success", a)
		}
	}
	t.Run("its lease is over, and it has not opened its transaction", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Open(t)
		migrated(t, db.Pool())
		child := freezing{Mode: inLeased, Moment: beforeTheWork}.start(t, db)
		child.stopped(t)
		child.lapses(t)
		goesOn(t, child.wake(t))
		child.leaves(t, 1, "by the frozen one")
	})
	t.Run("its transaction was ended, and its handler does all of it anew", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Open(t)
		migrated(t, db.Pool())
		child := freezing{Mode: inLeased, Moment: amidTheWork}.start(t, db)
		child.stopped(t)
		child.lapses(t)
		child.given(t, 1)
		a := child.wake(t)
		goesOn(t, a)
		if a.SQLState != "25P03" {
			t.Errorf("its first transaction was not ended: %+v", a)
		}
		child.leaves(t, 1, "by the frozen one")
	})
	for _, mode := range []freezeMode{inLeased, inAtomic} {
		t.Run("its transaction was ended, and its handler has returned, "+string(mode), func(t *testing.T) {
			t.Parallel()
			db := pgtest.Open(t)
			migrated(t, db.Pool())
			child := freezing{Mode: mode, Moment: afterTheWork}.start(t, db)
			child.stopped(t)
			records := map[freezeMode]int{inLeased: 1}[mode]
			child.given(t, records)
			child.wake(t).nothing(t)
			child.leaves(t, records)
			if o := child.overtaken(t).Outcome(); o.TookOver {
				t.Errorf("the key was not free: %+v", o)
			}
			child.leaves(t, 1, "by the other one")
		})
	}
}
