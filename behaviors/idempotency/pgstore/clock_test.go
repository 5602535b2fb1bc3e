package pgstore_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore"
	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore/pgtest"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
)

// In these tests a process with a wrong clock is a bubble of testing/synctest: all that runs in it, the store, the engine and pgx
// included, sees the bubble's clock, which is moved to where the test wants it and stands still while the bubble talks to the
// server. (libfaketime does nothing to a Go program, which does not ask libc for the time.)

// wrongly runs f in a process whose clock is off by skew. What f needs from outside must be made before.
func wrongly(t *testing.T, skew time.Duration, f func(t *testing.T)) {
	t.Helper()
	clock := time.Now().Add(skew)
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(clock))
		f(t)
	})
}

// skews are those of BR-48, and one that nobody could miss. (A bubble's clock cannot be before the year 2000.)
var skews = map[string]time.Duration{
	"60 s behind": -time.Minute, "60 s ahead": time.Minute, "20 years behind": -20 * 365 * 24 * time.Hour, "100 years ahead": 100 * 365 * 24 * time.Hour,
}

func TestAProcessWhoseClockIsWrongNeitherTakesALiveLeaseNorWaitsForADeadOne_BR48_L14(t *testing.T) {
	t.Parallel()
	for name, skew := range skews {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.Open(t)
			right := db.Pool()
			migrated(t, right)
			const key = "skewed-key-1"
			begun, goOn, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
			go func() { // the process with the right clock
				defer close(ended)
				b := selling(t, pgstore.New(right), func(ctx context.Context, c sell) (string, error) {
					close(begun)
					<-goOn
					err := pgstore.InTx(ctx, right, inserting(right, "right"))
					if !errors.Is(err, idempotency.ErrLeaseLost) {
						t.Errorf("InTx after the takeover: %v", err)
					}
					return "right", err
				})
				ctx, req := asked(t, context.Background(), key)
				if got, err := bus.Send(ctx, b, sell{"x"}); got != "wrong" || err != nil || !req.Outcome().Replayed {
					t.Errorf("the process that was overtaken is told %q, %v, %+v", got, err, req.Outcome())
				}
			}()
			defer func() { <-ended }()
			defer close(goOn)
			select {
			case <-begun:
			case <-ended:
				t.FailNow()
			}
			cfg := db.PoolConfig()
			wrongly(t, skew, func(t *testing.T) {
				pool := pgtest.NewPool(t, cfg)
				b := selling(t, pgstore.New(pool), func(ctx context.Context, c sell) (string, error) {
					return "wrong", pgstore.InTx(ctx, pool, inserting(pool, "wrong"))
				})
				exec(t, pool, `UPDATE idempotency_records SET lease_until = clock_timestamp() + interval '30 seconds'`)
				for range 3 {
					ctx, req := asked(t, t.Context(), key)
					got, err := bus.Send(ctx, b, sell{"x"})
					var busy *idempotency.InProgressError
					if !errors.As(err, &busy) {
						t.Fatalf("under a live lease: %q, %v, %+v", got, err, req.Outcome())
					}
				}
				exec(t, pool, `UPDATE idempotency_records SET lease_until = clock_timestamp()`)
				ctx, req := asked(t, t.Context(), key)
				if got, err := bus.Send(ctx, b, sell{"x"}); got != "wrong" || err != nil || !req.Outcome().TookOver {
					t.Errorf("after the lease: %q, %v, %+v", got, err, req.Outcome())
				}
			})
		})
	}
}

func TestALeaseOfAProcessWhoseClockIsWrongIsAsLongAsAnyOther_BR48_L14(t *testing.T) {
	t.Parallel()
	for name, skew := range skews {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.Open(t)
			right := pgstore.New(db.Pool())
			migrated(t, db.Pool())
			cfg := db.PoolConfig()
			c := lent("skewed-lease-1")
			// left demands that about d of the lease are left. A slow machine takes some of it.
			left := func(t *testing.T, d time.Duration) {
				t.Helper()
				var got time.Duration
				if err := db.Pool().QueryRow(context.Background(), `SELECT lease_until - clock_timestamp() FROM idempotency_records`).Scan(&got); err != nil {
					t.Fatal(err)
				}
				if got > d || got < d-30*time.Second {
					t.Errorf("%v of the lease are left, want %v", got, d)
				}
			}
			wrongly(t, skew, func(t *testing.T) {
				pool := pgtest.NewPool(t, cfg)
				lease(t, pgstore.New(pool), c)
			})
			left(t, c.Lease)
			met(t, right, rival(c))
			exec(t, db.Pool(), `UPDATE idempotency_records SET lease_until = lease_until - interval '4 minutes'`)
			left(t, time.Minute)
			wrongly(t, skew, func(t *testing.T) {
				pool := pgtest.NewPool(t, cfg)
				if err := lease(t, pgstore.New(pool), c).Renew(t.Context()); err != nil { // the claim finds itself again
					t.Fatal(err)
				}
			})
			left(t, c.Lease)
			met(t, right, rival(c))
		})
	}
}

// A process has died, and another one whose clock is off asks again and again. Nobody moves the end of the lease.
func TestAfterACrashAProcessWhoseClockIsWrongTakesOverWhenTheLeaseEnds_BR48(t *testing.T) {
	t.Parallel()
	for name, skew := range skews {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.Open(t)
			migrated(t, db.Pool())
			c := lent("skewed-crash-1")
			c.Lease = 2 * time.Second
			lease(t, pgstore.New(db.Pool()), c) // which nobody renews
			var end time.Time
			if err := db.Pool().QueryRow(t.Context(), `SELECT lease_until FROM idempotency_records`).Scan(&end); err != nil {
				t.Fatal(err)
			}
			cfg := db.PoolConfig()
			refused := 0
			wrongly(t, skew, func(t *testing.T) {
				pool := pgtest.NewPool(t, cfg)
				store := pgstore.New(pool)
				for c := rival(c); ; refused++ {
					l, rec, err := store.Lease(t.Context(), c)
					switch {
					case err != nil:
						t.Fatal(err)
					case l != nil:
						return
					case rec.LeaseLeft > c.Lease || refused == 3000:
						t.Fatalf("after %d refusals %v are left of a lease of %v", refused, rec.LeaseLeft, c.Lease)
					}
					exec(t, pool, `SELECT pg_sleep(0.01)`) // the server's time: that of the bubble stands still
				}
			})
			var late time.Duration // from the end of the first lease to the beginning of the second one
			if err := db.Pool().QueryRow(t.Context(), `SELECT lease_until - $1::interval - $2::timestamptz FROM idempotency_records`, c.Lease, end).Scan(&late); err != nil {
				t.Fatal(err)
			}
			if late < 0 || late > 10*time.Second { // BR-48 allows 1 s, and a slow machine needs some more
				t.Errorf("the key was taken over %v after the end of its lease", late)
			}
			if refused == 0 {
				t.Error("the lease had ended before the other one asked, so this has tested nothing")
			}
			t.Logf("after %d refusals the key was taken over %v after the end of its lease", refused, late)
		})
	}
}

func TestAProcessWhoseClockIsWrongKeepsRecordsAsLongAsAnyOther_BR48(t *testing.T) {
	t.Parallel()
	for name, skew := range skews {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.Open(t)
			migrated(t, db.Pool())
			b := selling(t, pgstore.New(db.Pool()), noting(db.Pool()))
			for _, key := range []string{"kept-for-72-h-1", "kept-for-72-h-2"} {
				ctx, _ := asked(t, t.Context(), key)
				if _, err := bus.Send(ctx, b, sell{"x"}); err != nil {
					t.Fatal(err)
				}
			}
			cfg := db.PoolConfig()
			age := func(t *testing.T, pool *pgxpool.Pool, to string) {
				t.Helper()
				exec(t, pool, `UPDATE idempotency_records SET expires_at = clock_timestamp() + $1::text::interval`, to)
			}
			wrongly(t, skew, func(t *testing.T) {
				pool := pgtest.NewPool(t, cfg)
				store := pgstore.New(pool)
				b := selling(t, store, noting(pool))
				purge := func(want int) {
					t.Helper()
					if done, err := store.Purge(t.Context(), idempotency.PurgeBatch{Limit: 10, Remember: time.Hour}); err != nil || done.Removed != want {
						t.Errorf("the purge has removed %+v, %v; want %d", done, err, want)
					}
				}
				send := func(replayed bool) {
					t.Helper()
					ctx, req := asked(t, t.Context(), "kept-for-72-h-1")
					if _, err := bus.Send(ctx, b, sell{"x"}); err != nil || req.Outcome().Replayed != replayed {
						t.Errorf("%v, %+v; want replayed %t", err, req.Outcome(), replayed)
					}
				}
				age(t, pool, "10 seconds") // of 72 hours
				send(true)
				purge(0)
				age(t, pool, "-1 microsecond")
				send(false)
				var left time.Duration
				if err := pool.QueryRow(t.Context(), `SELECT max(expires_at) - clock_timestamp() FROM idempotency_records`).Scan(&left); err != nil {
					t.Fatal(err)
				}
				if left > idempotency.DefaultRetention || left < idempotency.DefaultRetention-30*time.Second {
					t.Errorf("the new record is kept for %v, want %v", left, idempotency.DefaultRetention)
				}
				purge(1) // the other one
			})
		})
	}
}

// tap keeps what is sent to the server.
type tap struct {
	net.Conn
	mu  *sync.Mutex
	all *[]byte
}

func (c tap) Write(b []byte) (int, error) {
	c.mu.Lock()
	*c.all = append(*c.all, b...)
	c.mu.Unlock()
	return c.Conn.Write(b)
}

// tapped is all that the connections of a pool have sent, each for itself.
type tapped struct {
	mu    sync.Mutex
	conns []*[]byte
}

func (s *tapped) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	all := new([]byte)
	s.conns = append(s.conns, all)
	return tap{conn, &s.mu, all}, nil
}

// value is a parameter of a statement, or the text of the statement itself.
type value struct {
	sql    string
	nth    int // 0 for the text
	binary bool
	data   []byte
}

// values reads what was sent.
func (s *tapped) values(t *testing.T) (all []value) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, conn := range s.conns {
		sent := *conn
		size := binary.BigEndian.Uint32(sent) // the first message has no letter
		sent = sent[size:]
		prepared := make(map[string]string)
		for len(sent) > 0 {
			size := 1 + binary.BigEndian.Uint32(sent[1:])
			kind, body := sent[0], sent[5:size]
			sent = sent[size:]
			var err error
			switch kind {
			case 'Q':
				var m pgproto3.Query
				err = m.Decode(body)
				all = append(all, value{sql: m.String, data: []byte(m.String)})
			case 'P':
				var m pgproto3.Parse
				err = m.Decode(body)
				prepared[m.Name] = m.Query
				all = append(all, value{sql: m.Query, data: []byte(m.Query)})
			case 'B':
				var m pgproto3.Bind
				err = m.Decode(body)
				for i, p := range m.Parameters {
					format := int16(0)
					switch len(m.ParameterFormatCodes) {
					case 0:
					case 1:
						format = m.ParameterFormatCodes[0]
					default:
						format = m.ParameterFormatCodes[i]
					}
					all = append(all, value{sql: prepared[m.PreparedStatement], nth: i + 1, binary: format == 1, data: append([]byte(nil), p...)})
				}
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	return all
}

var (
	digits  = regexp.MustCompile(`[0-9]+`)
	hexID   = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	numbers = []struct {
		name string
		unit time.Duration
	}{{"seconds", time.Second}, {"milliseconds", time.Millisecond}, {"microseconds", time.Microsecond}, {"nanoseconds", time.Nanosecond}}
)

// postgresEpoch is where the server's binary times begin.
var postgresEpoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// instant says how v holds a time of the process with the clock now, give or take what a retention or a lease adds. "" is none.
func (v value) instant(now time.Time) string {
	from, to := now.Add(-100*time.Hour), now.Add(100*time.Hour)
	within := func(n int64, epoch time.Time, unit time.Duration) bool {
		return n >= int64(from.Sub(epoch)/unit) && n <= int64(to.Sub(epoch)/unit)
	}
	number := func(n int64) string {
		for _, u := range numbers {
			switch {
			case within(n, time.Unix(0, 0), u.unit):
				return u.name + " since 1970"
			case within(n, postgresEpoch, u.unit):
				return u.name + " since 2000"
			}
		}
		return ""
	}
	if !v.binary {
		text := string(v.data)
		for _, s := range hexID.FindAllString(text, -1) {
			if id, err := uuid.Parse(s); err == nil && timed(id, now) {
				return "the time of a UUIDv7"
			}
		}
		text = hexID.ReplaceAllString(text, "") // the rest of an id is random, and some day it would look like a number
		for _, month := range []time.Time{from, now, to} {
			if strings.Contains(text, month.UTC().Format("2006-01-")) {
				return "a date"
			}
		}
		for _, d := range digits.FindAllString(text, -1) {
			if n, err := strconv.ParseInt(d, 10, 64); err == nil && number(n) != "" {
				return number(n)
			}
		}
		return ""
	}
	switch len(v.data) {
	case 4:
		n := binary.BigEndian.Uint32(v.data)
		if day := now.Sub(postgresEpoch) / (24 * time.Hour); n >= uint32(day)-5 && n <= uint32(day)+5 {
			return "a date"
		}
		if s := number(int64(n)); s != "" {
			return s
		}
	case 8:
		n := binary.BigEndian.Uint64(v.data)
		if s := number(int64(n)); s != "" {
			return s
		}
		if f := math.Float64frombits(n); math.Abs(f) < 1e18 && number(int64(f)) != "" {
			return number(int64(f))
		}
	case 16:
		if timed(uuid.UUID(v.data), now) {
			return "the time of a UUIDv7"
		}
	}
	return value{data: v.data}.instant(now) // it may be a text all the same
}

// timed reports whether id begins with a time as a UUIDv7 does, and that of the clock.
func timed(id uuid.UUID, now time.Time) bool {
	ms := int64(binary.BigEndian.Uint64(append([]byte{0, 0}, id[:6]...)))
	return ms >= now.Add(-time.Minute).UnixMilli() && ms <= now.Add(time.Minute).UnixMilli()
}

// All that is sent to the server is read, for the times of a process that believes to be a hundred years ahead. Where none is found,
// there is nothing by which a clock could say who owns a key. What a store sends of time is lengths (a lease, a retention) and, to
// prove that a transaction is still the one that was begun, the server's own word.
//
// A request's id, which is a UUIDv7 with the time of its edge, is given by the test. It is a name: nothing compares it.
func TestNoTimeOfTheProcessIsEverSentToTheServer_BR48_L14(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			db := pgtest.Open(t)
			cfg, untapped := db.PoolConfig(), db.PoolConfig()
			cfg.ConnConfig.DefaultQueryExecMode = mode
			cfg.ConnConfig.TLSConfig, cfg.ConnConfig.Fallbacks = nil, nil // or there would be nothing to read
			var sent, known tapped
			wrongly(t, skews["100 years ahead"], func(t *testing.T) {
				now := time.Now()
				cfg := cfg.Copy()
				cfg.ConnConfig.DialFunc = sent.dial
				everything(t, pgtest.NewPool(t, cfg), pgtest.NewPool(t, untapped))
				found := sent.values(t)
				for _, v := range found {
					if how := v.instant(now); how != "" {
						t.Errorf("parameter %d of this holds %s by the process's clock: %q\n%s", v.nth, how, v.data, v.sql)
					}
				}
				texts := make(map[string]bool)
				for _, v := range found {
					if strings.Contains(v.sql, "idempotency_records") {
						texts[v.sql] = true
					}
				}
				if len(texts) < 10 {
					t.Errorf("only %d statements about records were read, so this has tested next to nothing", len(texts))
				}

				// And what is looked for would be found.
				cfg.ConnConfig.DialFunc = known.dial
				pool := pgtest.NewPool(t, cfg)
				id := uuid.UUID{6: 0x70, 8: 0x80}
				binary.BigEndian.PutUint64(id[:8], uint64(now.UnixMilli())<<16|0x7000)
				for _, c := range []struct {
					sql string
					arg any
				}{
					{`SELECT $1::timestamptz`, now}, {`SELECT $1::timestamptz`, now.Add(5 * time.Minute)}, {`SELECT $1::timestamptz`, now.Add(72 * time.Hour)},
					{`SELECT $1::timestamp`, now.UTC()}, {`SELECT $1::text`, now.Format(time.RFC3339)}, {`SELECT $1::bigint`, now.Unix()},
					{`SELECT $1::bigint`, now.UnixMilli()}, {`SELECT $1::bigint`, now.UnixMicro()}, {`SELECT $1::bigint`, now.UnixNano()},
					{`SELECT $1::float8`, float64(now.UnixMilli()) / 1000}, {`SELECT $1::text`, fmt.Sprint("at ", now.UnixNano())}, {`SELECT $1::uuid`, id.String()},
				} {
					known.mu.Lock()
					known.conns = known.conns[:0]
					known.mu.Unlock()
					pool.Reset()
					exec(t, pool, c.sql, c.arg)
					seen := ""
					for _, v := range known.values(t) {
						seen += v.instant(now)
					}
					if seen == "" {
						t.Errorf("a time that was sent was not found: %s with %v", c.sql, c.arg)
					}
				}
			})
		})
	}
}

// everything does all that a store can be asked for, through pool, and what it needs behind the store's back through behind.
func everything(t *testing.T, pool, behind *pgxpool.Pool) {
	t.Helper()
	migrated(t, pool)
	store := pgstore.New(pool)
	if _, err := store.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	const expire = `UPDATE idempotency_records SET expires_at = clock_timestamp() - interval '1 second'`
	refuse := false
	n := 0
	send := func(key string, want requestctx.State, send func(ctx context.Context) error) {
		t.Helper()
		k, err := requestctx.ParseKey(key)
		if err != nil {
			t.Fatal(err)
		}
		n++
		ctx, req := requestctx.New(t.Context(), requestctx.Values{ID: fmt.Sprint("request-", n), Key: k, Scope: requestctx.Scope{Client: "tester"}})
		if err := send(ctx); req.Outcome().State != want {
			t.Fatalf("%s: %v, %+v; want %s", key, err, req.Outcome(), want)
		}
	}
	errGiven := errors.New("it failed")
	answer := func(text string, err error) (string, error) {
		switch {
		case err != nil:
			return "", err
		case refuse:
			return "", idempotency.Final(errors.New("no such thing"))
		case text == "fails":
			return "", errGiven
		}
		return text, nil
	}
	// Two processes for each mode, so that a replay is also one of a key that is not known.
	for i := range 2 {
		b := serve(t, store, func(ctx context.Context, c note) (string, error) {
			return answer(writing(pool)(ctx, c))
		})
		atomic := func(text string) func(context.Context) error {
			return func(ctx context.Context) error { _, err := bus.Send(ctx, b, note{text}); return err }
		}
		l := selling(t, store, func(ctx context.Context, c sell) (string, error) {
			if c.Text == "outside" {
				return answer(c.Text, nil)
			}
			return answer(c.Text, pgstore.InTx(ctx, pool, inserting(pool, c.Text)))
		})
		leased := func(text string) func(context.Context) error {
			return func(ctx context.Context) error { _, err := bus.Send(ctx, l, sell{text}); return err }
		}
		first := []requestctx.State{requestctx.StateExecuted, requestctx.StateReplayed}[i]
		send("atomic-key-1", first, atomic("x"))
		send("atomic-key-1", requestctx.StateReplayed, atomic("x"))
		send("atomic-key-1", requestctx.StateConflict, atomic("y"))
		send("leased-key-1", first, leased("x"))
		send("leased-key-1", requestctx.StateReplayed, leased("x"))
		send("leased-key-1", requestctx.StateConflict, leased("y"))
		send("leased-key-2", first, leased("outside"))
		send("leased-key-3", requestctx.StateFreed, leased("fails"))
		refuse = true
		send("atomic-key-4", first, atomic("x"))
		send("leased-key-4", first, leased("x"))
		refuse = false
		exec(t, behind, expire)
		send("atomic-key-1", requestctx.StateExecuted, atomic("again"))
		send("leased-key-1", requestctx.StateExecuted, leased("again"))
		exec(t, behind, `DELETE FROM idempotency_records WHERE key LIKE '%-key-1'`)
		send("atomic-key-1", requestctx.StateExecuted, atomic("x"))
		send("leased-key-1", requestctx.StateExecuted, leased("x"))
		exec(t, behind, `UPDATE idempotency_records SET expires_at = clock_timestamp() + interval '1 hour'`)
	}

	// A lease by itself: found again, renewed, taken over, released, freed by a person, erased, buried and purged.
	c := lent("by-itself-1")
	c.AfterExpiry = idempotency.Tombstone
	lease(t, store, c)
	l := lease(t, store, c)
	if err := l.Renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	met(t, store, rival(c))
	lapse(t, behind)
	late := l
	c = rival(c)
	l = lease(t, store, c)
	if err := late.Complete(t.Context(), sold); !errors.Is(err, idempotency.ErrLost) {
		t.Fatal(err)
	}
	if err := l.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	admin, err := idempotency.NewAdmin(idempotency.AdminConfig{Store: store, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	why := idempotency.Intervention{By: "tester", Reason: "a test", LiveLease: true}
	c = rival(c)
	lease(t, store, c)
	if err := admin.Release(t.Context(), c.ID, why); err != nil {
		t.Fatal(err)
	}
	c = rival(c)
	l = lease(t, store, c)
	if err := pgstore.InTx(l.Context(t.Context()), pool, inserting(pool, "by itself")); err != nil {
		t.Fatal(err)
	}
	if err := l.Complete(t.Context(), sold); err != nil {
		t.Fatal(err)
	}
	if found, err := admin.Find(t.Context(), idempotency.Search{Key: c.Scope.Key}); err != nil || len(found) != 1 {
		t.Fatal(found, err)
	}
	if err := admin.Erase(t.Context(), c.ID, why); err != nil {
		t.Fatal(err)
	}
	exec(t, behind, expire)
	purged, err := store.Purge(t.Context(), idempotency.PurgeBatch{Limit: 100, Remember: time.Hour})
	if err != nil || purged.Buried != 1 || purged.Removed == 0 {
		t.Fatalf("%+v, %v", purged, err)
	}
}
