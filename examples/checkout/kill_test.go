package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// A server is killed at random moments of 200 posts; then all are sent again with their keys.
func TestKillNine_200PostsMake200Orders(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		const posts, workers, kills = 200, 8, 6
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		random := rand.New(rand.NewPCG(seed, 0))
		ctx := within(t)

		var up sync.RWMutex // held for writing while there is no server to post to
		server := start(t, d.flags()...)
		base := func() string {
			up.RLock()
			defer up.RUnlock()
			return server.base
		}
		key := func(i int) (key, body string) {
			return fmt.Sprintf("kill-nine-%d", i), payment(fmt.Sprintf("cart-%d", i), int64(100+i))
		}

		var first [posts]string // the order ids that were answered
		begun := make(chan struct{}, posts)
		var next atomic.Int64
		var wg sync.WaitGroup
		var cut atomic.Int64
		for range workers {
			wg.Go(func() {
				for i := int(next.Add(1)) - 1; i < posts; i = int(next.Add(1)) - 1 {
					k, body := key(i)
					address := base()
					begun <- struct{}{}
					a, err := send(ctx, address, k, body)
					if err != nil {
						cut.Add(1)
						continue
					}
					order, err := a.order()
					if err != nil {
						t.Errorf("post %d: %v", i, err)
					}
					first[i] = order.OrderID
				}
			})
		}
		for range kills {
			for range 10 + random.IntN(15) {
				<-begun
			}
			<-time.After(time.Duration(random.IntN(10_000)) * time.Microsecond) // the moment is to be any
			up.Lock()
			server.kill()
			server = start(t, d.flags()...)
			up.Unlock()
		}
		wg.Wait()
		answered := 0
		for _, id := range first {
			if id != "" {
				answered++
			}
		}
		found := d.count(t, `SELECT count(*) FROM orders`)
		if found < answered {
			t.Errorf("%d orders were answered and %d are there", answered, found)
		}

		var second [posts]string
		var replayed atomic.Int64
		next.Store(0)
		for range workers {
			wg.Go(func() {
				for i := int(next.Add(1)) - 1; i < posts; i = int(next.Add(1)) - 1 {
					k, body := key(i)
					a, err := settle(ctx, server.base, k, body)
					if err != nil {
						t.Errorf("post %d again: %v", i, err)
						continue
					}
					order, err := a.order()
					if err != nil {
						t.Errorf("post %d again: %v", i, err)
					}
					second[i] = order.OrderID
					if a.replayed() == "true" {
						replayed.Add(1)
					} else if first[i] != "" {
						t.Errorf("post %d was answered and ran again", i)
					}
				}
			})
		}
		wg.Wait()
		for i := range posts {
			if first[i] != "" && first[i] != second[i] {
				t.Errorf("post %d was answered with two orders: %s and %s", i, first[i], second[i])
			}
		}
		t.Logf("%d kills; of %d posts %d were answered and %d cut, %d of those after their commit; sent again, %d were replayed and %d ran",
			kills, posts, answered, cut.Load(), found-answered, replayed.Load(), posts-int(replayed.Load()))
		d.holds(t, posts, posts)
		if n := d.count(t, `SELECT count(DISTINCT cart_id) FROM orders`); n != posts {
			t.Errorf("there are orders of %d carts", n)
		}
		if cut.Load() == 0 {
			t.Error("no kill hit a post, so this has tested nothing")
		}
	})
}

// The four moments of an order, and two of a refusal, which is an outcome like any other.
func TestKillMatrix(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, moment, cart string
		kept               bool // the dead server leaves the outcome
	}{
		{"X01 before BEGIN", beforeBegin, "cart-1", false},
		{"X01 after the read", afterRead, "cart-1", false},
		{"X01 after the business write", afterWrite, "cart-1", false},
		{"X02 after COMMIT, before the answer", afterCommit, "cart-1", true},
		{"X01 a refusal, after the read", afterRead, "cart-1-declined", false},
		{"X02 a refusal, after COMMIT", afterCommit, "cart-1-declined", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			both(t, func(t *testing.T, d *database) {
				status, orders, records := http.StatusCreated, 1, 0
				if strings.HasSuffix(c.cart, "-declined") {
					status, orders = http.StatusPaymentRequired, 0
				}
				if c.kept {
					records = 1
				}
				body := payment(c.cart, 4990)
				dies(t, c.moment, d.key("kill-matrix"), body, d.flags()...)
				d.holds(t, orders*records, records)

				server := start(t, d.flags()...)
				retry, err := settle(within(t), server.base, d.key("kill-matrix"), body)
				if err != nil || retry.status != status {
					t.Fatalf("the retry: %v %v", err, retry)
				}
				if want := fmt.Sprint(c.kept); retry.replayed() != want {
					t.Errorf("the retry is replayed: %s, want %s", retry.replayed(), want)
				}
				if ran := retry.header.Get("Idempotency-Original-Request-ID") == retry.requestID(); ran == c.kept {
					t.Errorf("the retry did the work itself: %v", ran)
				}
				d.holds(t, orders, 1)
				again := post(t, server.base, d.key("kill-matrix"), body)
				if !bytes.Equal(anonymous(again), anonymous(retry)) || again.status != status || again.replayed() != "true" {
					t.Errorf("once more: %v", again)
				}
				d.holds(t, orders, 1)
			})
		})
	}
}

// dies starts a server that kills itself at a moment of the payment, and sends it.
func dies(t *testing.T, moment, key, body string, flags ...string) {
	t.Helper()
	doomed := startAs(t, moment, flags...)
	if a, err := send(within(t), doomed.base, key, body); err == nil {
		t.Fatalf("the server lives: %v", a)
	}
	await(t, doomed.exited, "the server's end")
	if status := doomed.cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signal() != syscall.SIGKILL {
		t.Fatalf("the server ended by %v: %s", status, doomed.stderr.String())
	}
}

// leasedMoments are the seven of a payment that calls the provider. With the four of TestKillMatrix they are eleven.
var leasedMoments = []struct {
	name, moment string
	records      int  // that the dead server leaves
	authorised   bool // the provider has been called
	kept         bool // the dead server leaves the outcome
}{
	{"X03 before the claim", beforeClaim, 0, false, false},
	{"X04 after the claim", afterClaim, 1, false, false},
	{"X04 after the call to the provider", afterCall, 1, true, false},
	{"X04 after the fence lock", afterFence, 1, true, false},
	{"X04 after the business write", afterWrite, 1, true, false},
	{"X04 during a takeover", duringTakeover, 1, true, false},
	{"X05 after COMMIT, before the answer", afterCommit, 1, true, true},
}

// BR-05(1), BR-47: the provider stands beside the server and survives it. Until the lease is over the key is in progress; then the
// next attempt finds what the dead one has done: one order, one record, one authorisation.
func TestKillMatrix_Leased_BR05_BR47(t *testing.T) {
	t.Parallel()
	for _, c := range leasedMoments {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			both(t, func(t *testing.T, d *database) {
				f := provide(t, nil)
				flags := append(d.flags(), "-provider", f.base)
				key, body := d.key("kill-matrix"), payment("cart-1", 4990)
				if c.moment == duringTakeover {
					dies(t, afterCall, key, body, flags...)
					d.expireLeases(t)
				}
				dies(t, c.moment, key, body, flags...)
				orders, authorised := 0, 0
				if c.kept {
					orders = 1
				}
				if c.authorised {
					authorised = 1
				}
				d.holds(t, orders, c.records)
				f.keeps(t, authorised)

				server := start(t, flags...)
				retry := post(t, server.base, key, body)
				if c.records > 0 && !c.kept {
					if !retry.busy() {
						t.Errorf("during the lease: %v", retry)
					}
					post(t, server.base, key, payment("cart-1", 5990)).is(t, http.StatusConflict, "IDEMPOTENCY_KEY_CONFLICT")
					d.expireLeases(t)
					retry = post(t, server.base, key, body)
				}
				if want := fmt.Sprint(c.kept); retry.replayed() != want {
					t.Errorf("the retry is replayed: %s, want %s", retry.replayed(), want)
				}
				if auth := f.keeps(t, 1)[0]; retry.placed(t).AuthID != auth.ID {
					t.Errorf("the order is %v, and the provider holds %+v", retry, auth)
				}
				d.settles(t, 1)
				again := post(t, server.base, key, body)
				if !bytes.Equal(anonymous(again), anonymous(retry)) || again.replayed() != "true" {
					t.Errorf("once more: %v", again)
				}
				f.keeps(t, 1)
				d.settles(t, 1)
			})
		})
	}
}

// BR-47, the control: a handler that keeps the downstream key to itself. There is still one order, and where the dead server had called
// the provider the customer pays twice. This is the limit that the documentation names.
func TestKillMatrix_Leased_WithoutTheDownstreamKeyTheCustomerPaysTwice_BR47(t *testing.T) {
	t.Parallel()
	for _, c := range leasedMoments {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			both(t, func(t *testing.T, d *database) {
				f := provide(t, nil)
				flags := append(d.flags(), "-provider", f.base, "-forgetful")
				key, body := d.key("kill-matrix"), payment("cart-1", 4990)
				if c.moment == duringTakeover {
					dies(t, afterCall, key, body, flags...)
					d.expireLeases(t)
				}
				dies(t, c.moment, key, body, flags...)
				d.expireLeases(t)
				server := startAs(t, never, flags...)
				post(t, server.base, key, body).placed(t)
				d.settles(t, 1)
				want := 1
				if c.authorised && !c.kept {
					want = 2
				}
				if n := len(f.all(t)); n != want {
					t.Errorf("the provider holds %d authorisations, want %d", n, want)
				}
			})
		})
	}
}

// BR-03(5): the request is in the server when SIGTERM comes, and is answered; nobody new is let in.
func TestBR03_SIGTERMDrains(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		server := start(t, d.flags()...)
		body := payment("cart-1", 4990)
		conn, err := net.Dial("tcp", strings.TrimPrefix(server.base, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		// The server says "100 Continue" when the handler begins to read the body: then the request is certainly in.
		if _, err := fmt.Fprintf(conn, "POST /api/v1/checkouts HTTP/1.1\r\nHost: checkout\r\nContent-Type: application/json\r\n"+
			"Idempotency-Key: %s\r\nContent-Length: %d\r\nExpect: 100-continue\r\n\r\n", d.key("slow-payment"), len(body)); err != nil {
			t.Fatal(err)
		}
		in := bufio.NewReader(conn)
		line, err := in.ReadString('\n')
		if err != nil || !strings.HasPrefix(line, "HTTP/1.1 100 ") {
			t.Fatalf("want 100 Continue: %q %v", line, err)
		}
		if _, err := in.ReadString('\n'); err != nil { // the empty line
			t.Fatal(err)
		}

		server.signal(t, syscall.SIGTERM)
		await(t, server.draining, "draining")
		refused(t, server)
		if _, err := io.WriteString(conn, body); err != nil {
			t.Fatal(err)
		}
		res, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		order := answer{res.StatusCode, res.Header, text}.placed(t)
		await(t, server.exited, "the server's end")
		if server.code() != 0 {
			t.Errorf("the exit code is %d: %s", server.code(), server.stderr.String())
		}
		d.holds(t, 1, 1)

		retry := post(t, start(t, d.flags()...).base, d.key("slow-payment"), body)
		if retry.placed(t).Placed != order.Placed || retry.replayed() != "true" {
			t.Errorf("sent again to the next server: %v", retry)
		}
		d.holds(t, 1, 1)
	})
}

// The same with the request in the middle of its transaction.
func TestBR03_SIGTERMDrainsATransaction(t *testing.T) {
	t.Parallel()
	d := postgresDatabase(t)
	server := start(t, d.flags()...)
	ctx := within(t)
	tx, err := d.postgres.Pool().Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())                                                //nolint:errcheck // it has been rolled back, or the test has failed
	if _, err := tx.Exec(ctx, `LOCK TABLE authorizations IN EXCLUSIVE MODE`); err != nil { // the order can be written, and nothing after it
		t.Fatal(err)
	}
	type outcome struct {
		answer
		error
	}
	first := make(chan outcome, 1)
	go func() {
		a, err := send(ctx, server.base, d.key("slow-payment"), payment("cart-1", 4990))
		first <- outcome{a, err}
	}()
	for d.count(t, `SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'authorizations'::regclass`) == 0 {
		if ctx.Err() != nil {
			t.Fatal("the handler does not come to its second statement")
		}
	}
	if busy := post(t, server.base, d.key("slow-payment"), payment("cart-1", 4990)); !busy.busy() {
		t.Errorf("a duplicate meanwhile: %v", busy)
	}

	server.signal(t, syscall.SIGTERM)
	await(t, server.draining, "draining")
	refused(t, server)
	if err := tx.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	got := await(t, first, "the answer")
	if got.error != nil {
		t.Fatal(got.error)
	}
	got.placed(t)
	await(t, server.exited, "the server's end")
	if server.code() != 0 {
		t.Errorf("the exit code is %d: %s", server.code(), server.stderr.String())
	}
	d.holds(t, 1, 1)
}

// refused waits until the server takes no new connection.
func refused(t *testing.T, p *process) {
	t.Helper()
	for ctx := within(t); ; {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", strings.TrimPrefix(p.base, "http://"))
		switch {
		case errors.Is(err, syscall.ECONNREFUSED):
			return
		case err != nil && ctx.Err() != nil:
			t.Fatalf("the server still takes connections: %v", err)
		case err == nil:
			_ = conn.Close()
		}
	}
}
