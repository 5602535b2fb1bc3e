package sqlitestore_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/sqlitestore"
)

// leasedOf is a Leased claim on a key. by tells attempts of one key apart.
func leasedOf(key, by string) idempotency.Claim {
	c := claimOf(key)
	c.Hash, c.Lease, c.MaxAttempts, c.OriginRequestID = [32]byte{1}, time.Minute, 10, "request-"+by
	c.Attempt = idempotency.AttemptID{}
	copy(c.Attempt[:], by)
	return c
}

// lease claims a key and demands that it is given.
func (b *bundle) lease(t testing.TB, c idempotency.Claim) idempotency.Lease {
	t.Helper()
	l, rec, err := b.store.Lease(t.Context(), c)
	if err != nil || l == nil {
		t.Fatalf("Lease gave %v, %+v and %v, want a lease", l, rec, err)
	}
	t.Cleanup(func() { l.Rollback(context.Background()) })
	return l
}

// insertInTx writes a business row as a Leased handler does.
func (b *bundle) insertInTx(t testing.TB, l idempotency.Lease, note string) error {
	t.Helper()
	return sqlitestore.InTx(l.Context(t.Context()), b.db, func(ctx context.Context) error { return b.insert(ctx, note) })
}

// record finds the only record of a key.
func (b *bundle) record(t testing.TB, key string) idempotency.Stored {
	t.Helper()
	found, err := sqlitestore.New(b.beside).Find(context.WithoutCancel(t.Context()), idempotency.Search{Key: key}, 2)
	if err != nil || len(found) != 1 {
		t.Fatalf("Find gave %d records of %s and %v, want one", len(found), key, err)
	}
	return found[0]
}

// wantState compares the state and the owner of a key's record.
func (b *bundle) wantState(t testing.TB, key string, state idempotency.RecordState, by string) {
	t.Helper()
	var attempt idempotency.AttemptID
	copy(attempt[:], by)
	if rec := b.record(t, key); rec.State != state || (rec.Attempt == attempt) != (by != "") {
		t.Errorf("the record of %s is %s by %q, want %s by %q", key, rec.State, rec.Attempt[:], state, by)
	}
}

// leaseOver ends the leases of all records.
func (b *bundle) leaseOver(t testing.TB) {
	t.Helper()
	mustExec(t, b.beside, `UPDATE idempotency_records SET lease_until = ?`, time.Now().Add(-time.Second).UnixMilli())
}

// second is a store of another process on the same file: another pool, another queue.
func (b *bundle) second(t testing.TB) *bundle {
	t.Helper()
	other := *b
	other.db = openFile(t, b.path, "")
	other.store = sqlitestore.New(other.db)
	return &other
}

// wantIdle demands that no connection is in use and nobody holds the write lock.
func (b *bundle) wantIdle(t testing.TB) {
	t.Helper()
	if n := b.db.Stats().InUse; n != 0 {
		t.Errorf("%d connections are in use, want none", n)
	}
	mustExec(t, openFile(t, b.path, "?_pragma=busy_timeout(0)"), `UPDATE orders SET note = note WHERE 0`)
}

func TestClaimsAtOnceOfTwoStoresOnOneFileHaveOneOwnerEach_L08(t *testing.T) {
	t.Parallel()
	b := setup(t)
	stores := []*bundle{b, b.second(t)}
	const keys, each = 20, 8
	type claimed struct {
		key   string
		by    string
		grant idempotency.Grant
		rec   *idempotency.Record
	}
	results := make([]claimed, keys*each)
	var wg sync.WaitGroup
	for i := range results {
		wg.Go(func() {
			r := &results[i]
			r.key, r.by = fmt.Sprintf("at-once-%d", i%keys), fmt.Sprint("by-", i)
			l, rec, err := stores[i%2].store.Lease(t.Context(), leasedOf(r.key, r.by))
			switch {
			case err != nil:
				t.Errorf("%s: %v", r.by, err)
			case l != nil:
				r.grant = l.Grant()
			default:
				r.rec = rec
			}
		})
	}
	wg.Wait()
	owners, fences := map[string]string{}, map[int64]bool{}
	for _, r := range results {
		if r.rec == nil {
			if owners[r.key] != "" || fences[r.grant.Fence] || r.grant.Attempt != 1 || r.grant.TookOver || r.grant.Reused {
				t.Errorf("%s was given %s with %+v, and so was %q", r.by, r.key, r.grant, owners[r.key])
			}
			owners[r.key], fences[r.grant.Fence] = r.by, true
		}
	}
	for _, r := range results {
		if r.rec != nil && (r.rec.State != idempotency.InProgress || r.rec.LeaseLeft <= 50*time.Second || !strings.HasPrefix(string(r.rec.Attempt[:]), owners[r.key]+"\x00")) {
			t.Errorf("%s met %+v, want the record in progress of %q", r.by, r.rec, owners[r.key])
		}
	}
	if len(owners) != keys || b.records(t) != keys {
		t.Errorf("%d keys were given and there are %d records, want %d", len(owners), b.records(t), keys)
	}
}

func TestNothingIsHeldWhileALeasedHandlerIsOutside_BR29(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.db.SetMaxOpenConns(1)
	l := b.lease(t, leasedOf("outside-key-1", "one"))
	b.wantIdle(t)
	b.wantUsable(t) // an Atomic command of the same store, on the only connection
	if err := b.insertInTx(t, l, "x"); err != nil {
		t.Fatal(err)
	}
	if n := b.db.Stats().InUse; n != 1 {
		t.Errorf("%d connections are in use, want that of the business transaction", n)
	}
	if _, err := openFile(t, b.path, "?_pragma=busy_timeout(0)").ExecContext(t.Context(), `INSERT INTO orders (note) VALUES ('beside')`); err == nil {
		t.Error("somebody else writes beside an open business transaction")
	}
	if err := l.Complete(t.Context(), success); err != nil {
		t.Fatalf("Complete: %v", err)
	}
	b.wantIdle(t)
	b.want(t, 2, 2)
}

func TestLateOwnerCannotCommitAfterATakeover_L09_BR06(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(b *bundle, l idempotency.Lease) error{
		"InTx":     func(b *bundle, l idempotency.Lease) error { return b.insertInTx(t, l, "late") },
		"Complete": func(b *bundle, l idempotency.Lease) error { return l.Complete(t.Context(), success) },
		"Refuse":   func(b *bundle, l idempotency.Lease) error { return l.Refuse(t.Context(), refused) },
		"Release":  func(b *bundle, l idempotency.Lease) error { return l.Release(t.Context()) },
		"Renew":    func(b *bundle, l idempotency.Lease) error { return l.Renew(t.Context()) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			other := b.second(t)
			late := b.lease(t, leasedOf("taken-key-1", "late"))
			b.leaseOver(t)
			winner := other.lease(t, leasedOf("taken-key-1", "winner"))
			if g := winner.Grant(); !g.TookOver || g.Reused || g.Attempt != 2 || g.Fence <= late.Grant().Fence {
				t.Errorf("the winner was given %+v after %+v", g, late.Grant())
			}
			want := idempotency.ErrLost
			if name == "InTx" || name == "Renew" {
				want = idempotency.ErrLeaseLost
			}
			if err := end(b, late); !errors.Is(err, want) {
				t.Errorf("the late owner's %s gave %v, want %v", name, err, want)
			}
			b.wantState(t, "taken-key-1", idempotency.InProgress, "winner")
			if err := other.insertInTx(t, winner, "winner"); err != nil {
				t.Fatal(err)
			}
			if err := winner.Complete(t.Context(), success); err != nil {
				t.Fatal(err)
			}
			b.want(t, 1, 1)
			b.wantIdle(t)
		})
	}
}

// The lock that comes with InTx keeps everybody else from the record, so this one is changed through the transaction itself.
func TestRowsOfAnOwnerWhoseRecordHasGoneAreRolledBack_L09(t *testing.T) {
	t.Parallel()
	b := setup(t)
	l := b.lease(t, leasedOf("gone-key-1", "one"))
	err := sqlitestore.InTx(l.Context(t.Context()), b.db, func(ctx context.Context) error {
		mustExec(t, sqlitestore.DB(ctx, b.db), `UPDATE idempotency_records SET attempt = x'00'`)
		return b.insert(ctx, "late")
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Complete(t.Context(), success); !errors.Is(err, idempotency.ErrLost) {
		t.Errorf("Complete gave %v, want ErrLost", err)
	}
	b.want(t, 0, 1)
	b.wantState(t, "gone-key-1", idempotency.InProgress, "one")
	b.wantIdle(t)
}

func TestSlowOwnerWhomNobodyReplacedCompletes_L10(t *testing.T) {
	t.Parallel()
	b := setup(t)
	l := b.lease(t, leasedOf("slow-key-1", "slow"))
	b.leaseOver(t)
	if err := b.insertInTx(t, l, "slow"); err != nil {
		t.Fatalf("InTx: %v", err)
	}
	if err := l.Complete(t.Context(), success); err != nil {
		t.Errorf("Complete: %v", err)
	}
	b.want(t, 1, 1)
	b.wantState(t, "slow-key-1", idempotency.Completed, "slow")
}

func TestRecordOfAnotherPayloadIsNotTakenOver_L07(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.lease(t, leasedOf("payload-key-1", "one"))
	b.leaseOver(t)
	c := leasedOf("payload-key-1", "two")
	c.Hash = [32]byte{2}
	l, rec, err := b.store.Lease(t.Context(), c)
	if l != nil || err != nil || rec == nil || rec.Hash != [32]byte{1} || rec.LeaseLeft != 0 {
		t.Errorf("Lease gave %v, %+v and %v, want the record that stands in the way", l, rec, err)
	}
	b.wantState(t, "payload-key-1", idempotency.InProgress, "one")
	b.wantIdle(t)
}

func TestFenceGoesOnBehindARecordThatCameFromElsewhere_E08(t *testing.T) {
	t.Parallel()
	b := setup(t)
	c := leasedOf("foreign-key-1", "one")
	b.plant(t, c.ID, idempotency.Record{Scope: c.Scope, Hash: c.Hash, State: idempotency.Failed, Fence: 4711})
	mustExec(t, b.beside, `UPDATE idempotency_records SET fence = 4711`)
	if g := b.lease(t, c).Grant(); g.Fence != 4712 {
		t.Errorf("the fence is %d, want 4712", g.Fence)
	}
	if g := b.lease(t, leasedOf("own-key-1", "one")).Grant(); g.Fence != 4713 {
		t.Errorf("the next fence is %d, want 4713", g.Fence)
	}
}

func TestClaimIsDurableEvenIfItSaysRelaxed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.db.SetMaxOpenConns(1)
	mustExec(t, b.db, `PRAGMA synchronous = OFF`)
	c := leasedOf("durable-key-1", "one")
	c.Relaxed = true
	b.lease(t, c)
	if n := number(t, b.db, `PRAGMA synchronous`); n != 2 {
		t.Errorf("the claim was committed with synchronous = %d, want 2", n)
	}
}

func TestClaimThatWaitsInVainIsNotAnAnswerAboutTheKey(t *testing.T) {
	t.Parallel()
	b := setupWith(t, "", sqlitestore.Config{BusyTimeout: 20 * time.Millisecond})
	wantPlain := func(what string, err error) {
		t.Helper()
		for _, known := range []error{idempotency.ErrLost, idempotency.ErrBusy, idempotency.ErrCommitUnknown, idempotency.ErrSerialization, idempotency.ErrLeaseLost} {
			if err == nil || errors.Is(err, known) {
				t.Errorf("%s gave %v, want a plain error", what, err)
			}
		}
	}
	held := b.lease(t, leasedOf("held-key-1", "held"))
	other := connection(t, b.beside)
	mustExec(t, other, `BEGIN IMMEDIATE`)
	_, _, err := b.store.Lease(t.Context(), leasedOf("locked-key-1", "one"))
	wantPlain("Lease behind another process", err)
	wantPlain("Renew behind another process", held.Renew(t.Context()))
	wantPlain("InTx behind another process", b.insertInTx(t, held, "x"))
	wantPlain("Complete behind another process", held.Complete(t.Context(), success))
	mustExec(t, other, `ROLLBACK`)
	if err := held.Complete(t.Context(), success); err != nil { // an outcome that stands alone may be sent again
		t.Errorf("Complete, later: %v", err)
	}

	open := b.begin(t, "open-key-1")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, _, err = b.store.Lease(ctx, leasedOf("locked-key-1", "one"))
	wantPlain("Lease behind another command", err)
	open.Rollback(t.Context())
	b.lease(t, leasedOf("locked-key-1", "one"))
	b.wantIdle(t)
}

func TestRenewWaitsItsTurnAndSaysNothingAboutTheLeaseInVain_L12(t *testing.T) {
	t.Parallel()
	b := setup(t)
	l := b.lease(t, leasedOf("renewed-key-1", "one"))
	b.leaseOver(t)
	open := b.begin(t, "open-key-1")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := l.Renew(ctx); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, idempotency.ErrLeaseLost) {
		t.Errorf("Renew behind another command gave %v, want that its deadline has passed", err)
	}
	renewed := make(chan error)
	go func() { renewed <- l.Renew(t.Context()) }()
	open.Rollback(t.Context())
	if err := <-renewed; err != nil {
		t.Errorf("Renew: %v", err)
	}
	if left := b.record(t, "renewed-key-1").LeaseLeft; left < 50*time.Second {
		t.Errorf("%v are left of the lease, want about a minute", left)
	}
}

func TestRenewDoesNothingBesideTheAttemptsOwnTransaction_E41(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.db.SetMaxOpenConns(1)
	l := b.lease(t, leasedOf("busy-key-1", "one"))
	err := sqlitestore.InTx(l.Context(t.Context()), b.db, func(ctx context.Context) error {
		if err := l.Renew(ctx); err != nil {
			t.Errorf("Renew within InTx: %v", err)
		}
		return b.insert(ctx, "x")
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Renew(t.Context()); err != nil {
		t.Errorf("Renew after InTx: %v", err)
	}
	if err := l.Complete(t.Context(), success); err != nil {
		t.Error(err)
	}
	if err := l.Renew(t.Context()); err == nil || errors.Is(err, idempotency.ErrLeaseLost) {
		t.Errorf("Renew after the end gave %v, want a plain error", err)
	}
}

func TestRenewWorksAgainAfterAnInTxThatFailed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	l := b.lease(t, leasedOf("again-key-1", "one"))
	if err := sqlitestore.InTx(l.Context(t.Context()), b.db, func(context.Context) error { return errDisk }); err != errDisk {
		t.Fatal(err)
	}
	b.leaseOver(t)
	if err := l.Renew(t.Context()); err != nil {
		t.Errorf("Renew: %v", err)
	}
	if left := b.record(t, "again-key-1").LeaseLeft; left < 50*time.Second {
		t.Errorf("%v are left of the lease, want about a minute", left)
	}
}

// lockFault opens connections on which the statement that takes the write lock can be made to fail.
type lockFault struct {
	*faulty
	next chan func(ctx context.Context) error // what the next such statement does instead
}

func (f *lockFault) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := f.faulty.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return lockFaultConn{conn.(faultyConn), f}, nil
}

type lockFaultConn struct {
	faultyConn
	f *lockFault
}

func (c lockFaultConn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	stmt, err := c.faultyConn.PrepareContext(ctx, query)
	if err != nil || !strings.Contains(query, "WHERE 0") {
		return stmt, err
	}
	return lockFaultStmt{stmt.(sqliteStmt), c.f}, nil
}

type sqliteStmt interface {
	driver.Stmt
	driver.StmtExecContext
	driver.StmtQueryContext
}

type lockFaultStmt struct {
	sqliteStmt
	f *lockFault
}

func (s lockFaultStmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	select {
	case fault := <-s.f.next:
		return nil, fault(ctx)
	default:
		return s.sqliteStmt.ExecContext(ctx, args)
	}
}

// setupLockFault is a bundle whose store works on one connection with such a driver.
func setupLockFault(t *testing.T) (*bundle, *lockFault) {
	t.Helper()
	b := setup(t)
	f := &lockFault{&faulty{under: b.db.Driver(), name: "file:" + b.path}, make(chan func(context.Context) error, 1)}
	b.db = sql.OpenDB(f)
	t.Cleanup(func() { _ = b.db.Close() })
	b.db.SetMaxOpenConns(1)
	b.store = sqlitestore.New(b.db)
	return b, f
}

func TestInTxAndTheEndDoNotWaitBehindARenewalThatHangs_E41(t *testing.T) {
	t.Parallel()
	for name, next := range map[string]func(b *bundle, l idempotency.Lease) error{
		"InTx":     func(b *bundle, l idempotency.Lease) error { return b.insertInTx(t, l, "x") },
		"Complete": func(b *bundle, l idempotency.Lease) error { return l.Complete(t.Context(), success) },
		"Release":  func(b *bundle, l idempotency.Lease) error { return l.Release(t.Context()) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, f := setupLockFault(t)
			l := b.lease(t, leasedOf("hanging-key-1", "one"))
			hangs := make(chan struct{})
			f.next <- func(ctx context.Context) error {
				close(hangs)
				<-ctx.Done()
				return ctx.Err()
			}
			renewed := make(chan error, 1)
			go func() { renewed <- l.Renew(t.Context()) }()
			<-hangs
			if err := next(b, l); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if err := <-renewed; err != nil {
				t.Errorf("the renewal that was called off gave %v, want nothing", err)
			}
		})
	}
}

// A renewal that is called off must neither keep the turn nor shorten a lease nor report one as lost.
func TestRenewalsAndBusinessTransactionsDoNotHurtEachOther(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const rounds = 50
	for i := range rounds {
		key := fmt.Sprint("pulse-key-", i)
		l := b.lease(t, leasedOf(key, "one"))
		done := make(chan struct{})
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				for {
					select {
					case <-done:
						return
					default:
					}
					if err := l.Renew(t.Context()); errors.Is(err, idempotency.ErrLeaseLost) {
						t.Errorf("Renew: %v", err)
					}
				}
			})
		}
		if err := sqlitestore.InTx(l.Context(t.Context()), b.db, func(ctx context.Context) error {
			_ = b.insert(ctx, "undone")
			return errDisk
		}); err != errDisk {
			t.Errorf("InTx: %v", err)
		}
		if i%2 == 0 {
			if err := b.insertInTx(t, l, "kept"); err != nil {
				t.Errorf("InTx: %v", err)
			}
		}
		if err := l.Complete(t.Context(), success); err != nil {
			t.Errorf("Complete: %v", err)
		}
		close(done)
		wg.Wait()
	}
	b.want(t, rounds/2, rounds)
	b.wantIdle(t)
}

func TestClaimWhoseAnswerIsLostIsFoundOutByTheSameClaim_X06_X07(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fault   func(driver.Tx) error
		records int
		fence   int64
	}{
		"it was done":     {func(tx driver.Tx) error { return errors.Join(driver.ErrBadConn, tx.Commit()) }, 1, 1},
		"it was not done": {func(driver.Tx) error { return driver.ErrBadConn }, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, f := setupFaulty(t)
			f.commit.Store(&c.fault)
			l, rec, err := b.store.Lease(t.Context(), leasedOf("lost-claim-1", "one"))
			if l != nil || rec != nil || !errors.Is(err, idempotency.ErrCommitUnknown) {
				t.Errorf("Lease gave %v, %+v and %v, want ErrCommitUnknown", l, rec, err)
			}
			if n := b.records(t); n != c.records {
				t.Errorf("there are %d records, want %d", n, c.records)
			}
			l = b.lease(t, leasedOf("lost-claim-1", "one"))
			if g := l.Grant(); g != (idempotency.Grant{Fence: c.fence, Attempt: 1}) {
				t.Errorf("the same claim was given %+v", g)
			}
			if err := b.insertInTx(t, l, "x"); err != nil {
				t.Fatal(err)
			}
			if err := l.Complete(t.Context(), success); err != nil {
				t.Error(err)
			}
			b.want(t, 1, 1)
		})
	}
}

func TestReleaseFindsOutAboutACommitWhoseAnswerIsLost_X06_X07(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fault  func(driver.Tx) error
		orders int
		want   error
	}{
		"it was done":     {func(tx driver.Tx) error { return errors.Join(driver.ErrBadConn, tx.Commit()) }, 1, idempotency.ErrLost},
		"it was not done": {func(driver.Tx) error { return driver.ErrBadConn }, 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, f := setupFaulty(t)
			l := b.lease(t, leasedOf("lost-answer-1", "one"))
			if err := b.insertInTx(t, l, "x"); err != nil {
				t.Fatal(err)
			}
			f.commit.Store(&c.fault)
			if err := l.Complete(t.Context(), success); !errors.Is(err, idempotency.ErrCommitUnknown) {
				t.Errorf("Complete gave %v, want ErrCommitUnknown", err)
			}
			if err := l.Release(t.Context()); !errors.Is(err, c.want) {
				t.Errorf("Release gave %v, want %v", err, c.want)
			}
			b.want(t, c.orders, 1)
			if c.want == nil {
				b.wantState(t, "lost-answer-1", idempotency.Failed, "")
			} else {
				b.wantState(t, "lost-answer-1", idempotency.Completed, "one")
			}
			b.wantIdle(t)
		})
	}
}

func TestRowsWhoseCommitWasRefusedAreNotFollowedByTheirOutcome(t *testing.T) {
	t.Parallel()
	b, f := setupFaulty(t)
	l := b.lease(t, leasedOf("refused-commit-1", "one"))
	if err := b.insertInTx(t, l, "x"); err != nil {
		t.Fatal(err)
	}
	fault := notDone
	f.commit.Store(&fault)
	if err := l.Complete(t.Context(), success); !errors.Is(err, errDisk) || errors.Is(err, idempotency.ErrCommitUnknown) {
		t.Errorf("Complete gave %v, want the error of the commit", err)
	}
	if err := l.Complete(t.Context(), success); err == nil {
		t.Error("the outcome was written without the rows")
	}
	b.want(t, 0, 1)
	b.wantState(t, "refused-commit-1", idempotency.InProgress, "one")
	if err := l.Release(t.Context()); err != nil {
		t.Errorf("Release: %v", err)
	}
	b.wantState(t, "refused-commit-1", idempotency.Failed, "")
	b.wantIdle(t)
}

func TestReleaseThatFailsMayBeMadeAgain_X19(t *testing.T) {
	t.Parallel()
	b := setupWith(t, "", sqlitestore.Config{BusyTimeout: 20 * time.Millisecond})
	l := b.lease(t, leasedOf("released-key-1", "one"))
	if err := b.insertInTx(t, l, "undone"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.Release(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Release gave %v, want the context's error", err)
	}
	b.want(t, 0, 1) // the rows are undone all the same
	other := connection(t, b.beside)
	mustExec(t, other, `BEGIN IMMEDIATE`)
	if err := l.Release(t.Context()); err == nil || errors.Is(err, idempotency.ErrLost) {
		t.Errorf("Release behind another process gave %v, want a plain error", err)
	}
	mustExec(t, other, `ROLLBACK`)
	b.wantState(t, "released-key-1", idempotency.InProgress, "one")
	if err := l.Release(t.Context()); err != nil {
		t.Errorf("Release: %v", err)
	}
	b.wantState(t, "released-key-1", idempotency.Failed, "")
	if g := b.lease(t, leasedOf("released-key-1", "two")).Grant(); g.Attempt != 2 || g.TookOver {
		t.Errorf("the next attempt was given %+v", g)
	}
}

func TestEveryEndOfALeaseGivesEverythingBack(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx := t.Context()
	ends := map[string]func(l idempotency.Lease) error{
		"Complete": func(l idempotency.Lease) error { return l.Complete(ctx, success) },
		"Refuse":   func(l idempotency.Lease) error { return l.Refuse(ctx, refused) },
		"Release":  func(l idempotency.Lease) error { return l.Release(ctx) },
		"Rollback": func(l idempotency.Lease) error { l.Rollback(ctx); return nil },
	}
	for name, end := range ends {
		for _, rows := range []bool{true, false} {
			l := b.lease(t, leasedOf(fmt.Sprintf("end-key-%s-%v", name, rows), "one"))
			if rows {
				if err := b.insertInTx(t, l, name); err != nil {
					t.Fatal(err)
				}
			}
			if err := end(l); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			b.wantIdle(t)
			if l.Open() {
				t.Errorf("Open is true after %s", name)
			}
			if name == "Release" { // which may be made again
				continue
			}
			for again, end := range ends {
				if err := end(l); err == nil && again != "Rollback" && !(name == "Rollback" && again == "Release") {
					t.Errorf("%s after %s succeeded", again, name)
				}
			}
		}
	}
	b.want(t, 1, 8)
}
