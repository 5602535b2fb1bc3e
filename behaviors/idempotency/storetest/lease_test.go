package storetest_test

import (
	"context"
	"errors"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/memstore"
)

// allFaults are those of both modes.
func allFaults() map[string]fault {
	all := maps.Clone(faults)
	maps.Copy(all, leaseFaults)
	maps.Copy(all, engineLeaseFaults)
	return all
}

// leaseHooks are those of the Leased part. Where one is nil, the store does what it should.
type leaseHooks struct {
	lease       func(ctx context.Context, s *brokenStore, c idempotency.Claim, lease leaseFunc) (idempotency.Lease, *idempotency.Record, error)
	before      func(l *brokenLease, how string) error            // what a method does first; an error is all that it does
	after       func(l *brokenLease, how string, err error) error // what it does besides
	grant       func(g idempotency.Grant) idempotency.Grant       // what was given
	workOutside bool                                              // rows go past the business transaction
	unlocked    bool                                              // the business transaction does not hold the record
	inTx        func(ctx context.Context, mem *memstore.Store, fn func(ctx context.Context) error) error
	search      func(q idempotency.Search) idempotency.Search                 // what Find makes of a search
	found       func(r *idempotency.Stored)                                   // what it makes of what it has found
	stuck       func(r *idempotency.Record) bool                              // what it takes for stuck, in place of the store
	count       func(c *idempotency.Count)                                    // what Count makes of each count
	deaf        bool                                                          // Count does not end with its context
	seen        func(now idempotency.AttemptID) idempotency.AttemptID         // what Free takes for seen, from what stands there
	batch       func(b idempotency.PurgeBatch) idempotency.PurgeBatch         // what Purge makes of its batch
	purge       func(s *brokenStore, purge func() error) (err error)          // what it does round it
	freed       func(s *brokenStore, id idempotency.ID, r idempotency.Record) // what Free does besides
	erased      func(s *brokenStore, id idempotency.ID, r idempotency.Record) // what Erase does besides, with what was there before
}

// leaseFunc is the store's own Lease.
type leaseFunc func(c idempotency.Claim) (idempotency.Lease, *idempotency.Record, error)

const (
	byRelease = "Release"
	byRenew   = "Renew"
)

// claims is a hook that changes the claims of leases.
func claims(change func(c *idempotency.Claim)) hooks {
	return hooks{leaseHooks: leaseHooks{lease: func(_ context.Context, _ *brokenStore, c idempotency.Claim, lease leaseFunc) (idempotency.Lease, *idempotency.Record, error) {
		change(&c)
		return lease(c)
	}}}
}

// stands is a hook that does something about the record that stands in the way, and asks again if that reports true.
func stands(about func(s *brokenStore, c *idempotency.Claim, rec idempotency.Record) bool) hooks {
	return hooks{leaseHooks: leaseHooks{lease: func(_ context.Context, s *brokenStore, c idempotency.Claim, lease leaseFunc) (idempotency.Lease, *idempotency.Record, error) {
		l, rec, err := lease(c)
		if rec != nil && about(s, &c, *rec) {
			return lease(c)
		}
		return l, rec, err
	}}}
}

// drafting is a hook on claims that get the key: they leave the draft that it says, from the claim and what stood there.
func drafting(draft func(s *brokenStore, c *idempotency.Claim, rec *idempotency.Record) string) hooks {
	return hooks{leaseHooks: leaseHooks{lease: func(ctx context.Context, s *brokenStore, c idempotency.Claim, lease leaseFunc) (idempotency.Lease, *idempotency.Record, error) {
		before, err := s.mem.Look(ctx, c)
		if err != nil {
			return nil, nil, err
		}
		l, rec, err := lease(c)
		if l != nil {
			(&brokenLease{store: s, claim: c}).put(func(r *idempotency.Record) { r.DraftID, r.LeaseLeft = draft(s, &c, before), c.Lease })
		}
		return l, rec, err
	}}}
}

// searching is a hook that changes searches.
func searching(change func(q *idempotency.Search)) hooks {
	return hooks{leaseHooks: leaseHooks{search: func(q idempotency.Search) idempotency.Search {
		change(&q)
		return q
	}}}
}

// after is a hook on the end of one method of a lease.
func after(how string, do func(l *brokenLease, err error) error) hooks {
	return hooks{leaseHooks: leaseHooks{after: func(l *brokenLease, by string, err error) error {
		if by == how {
			return do(l, err)
		}
		return err
	}}}
}

// before is a hook on the beginning of one method of a lease.
func before(how string, do func(l *brokenLease) error) hooks {
	return hooks{leaseHooks: leaseHooks{before: func(l *brokenLease, by string) error {
		if by == how {
			return do(l)
		}
		return nil
	}}}
}

// holding is a hook that lets a claim keep a lock until its attempt ends: one for each key, or one for all.
func holding(lock func(c idempotency.Claim) any) hooks {
	return hooks{leaseHooks: leaseHooks{
		lease: func(ctx context.Context, s *brokenStore, c idempotency.Claim, lease leaseFunc) (idempotency.Lease, *idempotency.Record, error) {
			held := make(chan struct{})
			for {
				other, locked := s.held.LoadOrStore(lock(c), held)
				if !locked {
					break
				}
				select {
				case <-other.(chan struct{}):
				case <-ctx.Done():
					return nil, nil, ctx.Err()
				}
			}
			l, rec, err := lease(c)
			if l == nil {
				s.held.Delete(lock(c))
				close(held)
			}
			return l, rec, err
		},
		after: func(l *brokenLease, how string, err error) error {
			if how != byRenew {
				if held, ok := l.store.held.LoadAndDelete(lock(l.claim)); ok {
					close(held.(chan struct{}))
				}
			}
			return err
		},
	}}
}

// put writes the record of a lease as change makes it of what stands there.
func (l *brokenLease) put(change func(r *idempotency.Record)) {
	if rec, err := l.store.mem.Look(context.Background(), l.claim); err == nil && rec != nil {
		change(rec)
		l.store.mem.Put(l.claim.ID, *rec)
	}
}

// leaseFaults begin with the seven without which the suite would say nothing about Leased commands.
var leaseFaults = map[string]fault{
	"the token is not looked at when a lease completes": {
		caught: []string{"Store_LateOwner", "Store_OneOwnerCommitsOnce", "Store_ReleaseBurnsTheToken", "Store_FreeLets", "KeyThatAPersonFreed", "LateOwnerOfAKey", "LateOwnersCaller"},
		hooks: after(byComplete, func(l *brokenLease, err error) error {
			if !errors.Is(err, idempotency.ErrLost) {
				return err
			}
			l.store.mem.Put(l.claim.ID, idempotency.Record{
				Scope: l.claim.Scope, Hash: l.claim.Hash, HashVersion: l.claim.HashVersion, State: idempotency.Completed, Attempt: l.claim.Attempt,
				Result: []byte(`"late"`), ResultType: "result/1",
			})
			return nil
		}),
	},
	"the payload is not compared at a takeover": {
		caught: []string{"Store_RecordsChange", "Store_RollbackKeepsTheKey", "Store_OlderContracts", "DeadKeyIsTakenOver"},
		hooks: stands(func(_ *brokenStore, c *idempotency.Claim, rec idempotency.Record) bool {
			c.PriorHash = rec.Hash
			return rec.State == idempotency.InProgress && rec.LeaseLeft == 0
		}),
	},
	"the lease is not looked at at a takeover": {
		caught: []string{"Store_LeaseIsSeen", "Store_DuplicateIsToldAtOnce", "Store_SixteenClaims", "Store_RecordsChange", "Store_RenewExtends", "LeasedDuplicateDuring"},
		hooks: stands(func(s *brokenStore, c *idempotency.Claim, rec idempotency.Record) bool {
			if rec.State != idempotency.InProgress || rec.LeaseLeft == 0 {
				return false
			}
			rec.LeaseLeft = 0
			s.mem.Put(c.ID, rec)
			return true
		}),
	},
	"the claim locks the row until the attempt ends": {
		caught: []string{"Store_DuplicateIsToldAtOnce", "LeasedDuplicateDuring"},
		hooks:  holding(func(c idempotency.Claim) any { return c.ID }),
	},
	"the work of a lease is outside its transaction": {
		caught: []string{"Store_BusinessRows", "Store_LeasedRefusal", "Store_ReleaseUndoes", "Store_RollbackKeepsTheKey", "Store_InTxOfALease", "LeasedFailure", "LeasedRefusal", "LeasedHandlerThatDoesNotReturn", "LeasedResult", "UnknownOutcomeKeeps", "ChildrenInTheBusiness"},
		hooks:  hooks{leaseHooks: leaseHooks{workOutside: true}},
	},
	"anybody may release": {
		caught: []string{"Store_LateOwner", "Store_ReleaseBurnsTheToken", "LateOwnersCaller"},
		hooks: after(byRelease, func(l *brokenLease, err error) error {
			if errors.Is(err, idempotency.ErrLost) {
				l.put(func(r *idempotency.Record) { r.State = idempotency.Failed })
				return nil
			}
			return err
		}),
	},
	"a purge removes what is alive": {
		caught: []string{"Store_PurgeRemoves", "Store_PurgeKeepsRecordsForItsGrace", "Store_PurgeBuries", "Store_SeveralPurges", "Store_RecordsChange", "KeyWhoseRetention"},
		hooks: hooks{leaseHooks: leaseHooks{purge: func(s *brokenStore, purge func() error) error {
			const years = 10 * 365 * 24 * time.Hour
			s.mem.Age(years)
			defer s.mem.Age(-years)
			return purge()
		}}},
	},

	"what failed may be leased with any payload": {
		caught: []string{"Store_RecordsChange", "Store_ReleaseUndoes", "Store_FreeLets", "LeasedFailure", "KeyThatFailedTooOften"},
		hooks: stands(func(_ *brokenStore, c *idempotency.Claim, rec idempotency.Record) bool {
			c.PriorHash = rec.Hash
			return rec.State == idempotency.Failed
		}),
	},
	"what is completed may be leased again": {
		caught: []string{"Store_RecordsChange", "Store_BusinessRows", "Store_OwnClaim", "LeasedCommandRuns", "PanicAfterALeasedCommit"},
		hooks: stands(func(s *brokenStore, c *idempotency.Claim, rec idempotency.Record) bool {
			rec.State = idempotency.Failed
			s.mem.Put(c.ID, rec)
			return true
		}),
	},
	"an expired lease that lives is taken": {
		caught: []string{"Store_RecordsChange", "KeyWhoseRetention"},
		hooks: stands(func(s *brokenStore, c *idempotency.Claim, rec idempotency.Record) bool {
			if !rec.Expired || rec.LeaseLeft == 0 {
				return false
			}
			rec.LeaseLeft = 0
			s.mem.Put(c.ID, rec)
			return true
		}),
	},
	"an own claim is taken for another's": {
		caught: []string{"Store_OwnClaim", "ClaimWhoseAnswer", "AttemptThatTheDatabase"},
		hooks: hooks{leaseHooks: leaseHooks{lease: func(ctx context.Context, s *brokenStore, c idempotency.Claim, lease leaseFunc) (idempotency.Lease, *idempotency.Record, error) {
			if rec, err := s.mem.Look(ctx, c); err == nil && rec != nil && rec.Attempt == c.Attempt {
				return nil, rec, nil
			}
			return lease(c)
		}}},
	},
	"takeovers cannot be refused": {
		caught: []string{"Store_RecordsChange", "KeyOfADeadAttempt"},
		hooks:  claims(func(c *idempotency.Claim) { c.NoTakeover = false }),
	},
	"attempts are not bounded": {
		caught: []string{"Store_RecordsChange", "Store_FreeLets", "KeyThatFailedTooOften"},
		hooks:  claims(func(c *idempotency.Claim) { c.MaxAttempts = math.MaxInt }),
	},
	"attempts are bounded by one less": {
		caught: []string{"Store_RecordsChange", "KeyThatFailedTooOften"},
		hooks:  claims(func(c *idempotency.Claim) { c.MaxAttempts-- }),
	},
	"the hash of an older contract counts for nothing": {
		caught: []string{"Store_OlderContracts"},
		hooks:  claims(func(c *idempotency.Claim) { c.PriorHash = [32]byte{} }),
	},
	"a claim without a prior hash has a zero one": {
		caught: []string{"Store_OlderContracts"},
		hooks: stands(func(s *brokenStore, c *idempotency.Claim, rec idempotency.Record) bool {
			if c.PriorHash == [32]byte{} && rec.Hash == c.PriorHash {
				c.Hash = rec.Hash
				return true
			}
			return false
		}),
	},
	"the scope of a row is not compared by a claim": {
		caught: []string{"Store_LeaseNeverTakes"},
		hooks: stands(func(s *brokenStore, c *idempotency.Claim, rec idempotency.Record) bool {
			rec.Scope = c.Scope
			s.mem.Put(c.ID, rec)
			return true
		}),
	},
	"every grant has the same fence": {
		caught: []string{"Store_FencesRise", "DeadKeyIsTakenOver"},
		hooks: hooks{leaseHooks: leaseHooks{grant: func(g idempotency.Grant) idempotency.Grant {
			g.Fence = 1
			return g
		}}},
	},
	"a grant does not count attempts": {
		caught: []string{"Store_RecordsChange", "Store_TakeoverGoesOn", "DeadKeyIsTakenOver", "LeasedFailure"},
		hooks: hooks{leaseHooks: leaseHooks{grant: func(g idempotency.Grant) idempotency.Grant {
			g.Attempt = 1
			return g
		}}},
	},
	"a grant does not tell a takeover": {
		caught: []string{"Store_RecordsChange", "Store_TakeoverGoesOn", "Store_RollbackKeepsTheKey", "DeadKeyIsTakenOver"},
		hooks: hooks{leaseHooks: leaseHooks{grant: func(g idempotency.Grant) idempotency.Grant {
			g.TookOver = false
			return g
		}}},
	},
	"a lease ends with the context of its claim": {
		caught: []string{"Store_LeaseOutlives"},
		hooks:  before(byComplete, func(l *brokenLease) error { return l.begun.Err() }),
	},
	"a lease that is over takes the key from its owner": {
		caught: []string{"Store_SlowOwner", "Store_OwnClaim", "SlowOwnerWhomNobodyReplacedIs", "ChallengerOfAnOwner"},
		hooks: before(byComplete, func(l *brokenLease) error {
			if rec, err := l.store.mem.Look(context.Background(), l.claim); err == nil && rec != nil && rec.LeaseLeft == 0 {
				return idempotency.ErrLost
			}
			return nil
		}),
	},
	"a completion moves the expiry": {
		caught: []string{"Store_LeaseIsKept"},
		hooks: after(byComplete, func(l *brokenLease, err error) error {
			if err == nil {
				l.put(func(*idempotency.Record) {})
			}
			return err
		}),
	},
	"a renewal makes the lease shorter": {
		caught: []string{"Store_RenewExtends"},
		hooks: after(byRenew, func(l *brokenLease, err error) error {
			l.put(func(r *idempotency.Record) { r.LeaseLeft = min(r.LeaseLeft, l.claim.Lease) })
			return err
		}),
	},
	"a renewal does nothing": {
		caught: []string{"Store_RenewExtends", "RenewedLease", "LostLease"},
		hooks: hooks{leaseHooks: leaseHooks{before: func(_ *brokenLease, how string) error {
			if how == byRenew {
				return errNothing
			}
			return nil
		}}},
	},
	"a renewal does not tell that the lease is lost": {
		caught: []string{"Store_LateOwner", "Store_FreeLets", "LostLease"},
		hooks:  after(byRenew, func(*brokenLease, error) error { return nil }),
	},
	"a renewal that could not be sent counts as lost": {
		caught: []string{"Store_RenewExtends"},
		hooks: after(byRenew, func(_ *brokenLease, err error) error {
			if err != nil {
				return idempotency.ErrLeaseLost
			}
			return nil
		}),
	},
	"a rollback frees the key": {
		caught: []string{"Store_RollbackKeepsTheKey", "UnknownOutcomeKeeps", "LeasedHandlerThatDoesNotReturn", "LeasedHandlerIsStopped"},
		hooks: after(byRollback, func(l *brokenLease, err error) error {
			_ = l.Lease.Release(context.Background())
			return err
		}),
	},
	"a release keeps the token": {
		caught: []string{"Store_ReleaseUndoes"},
		hooks: after(byRelease, func(l *brokenLease, err error) error {
			if err == nil {
				l.put(func(r *idempotency.Record) { r.Attempt = l.claim.Attempt })
			}
			return err
		}),
	},
	"a release leaves the key in progress": {
		caught: []string{"Store_ReleaseUndoes", "Store_ReleaseBurnsTheToken", "Store_SlowOwner", "LeasedFailure", "WhenTheFirstFails", "LostAnswer"},
		hooks: hooks{leaseHooks: leaseHooks{before: func(_ *brokenLease, how string) error {
			if how == byRelease {
				return errNothing
			}
			return nil
		}}},
	},
	"a function runs although the lease is lost": {
		caught: []string{"Store_LateOwner", "Store_OneOwnerCommitsOnce", "Store_ReleaseBurnsTheToken", "LateOwnersCaller", "TwoOwners", "PurgesBeside"},
		hooks: hooks{leaseHooks: leaseHooks{inTx: func(ctx context.Context, mem *memstore.Store, fn func(ctx context.Context) error) error {
			err := mem.InTx(ctx, fn)
			if errors.Is(err, idempotency.ErrLeaseLost) {
				return fn(ctx)
			}
			return err
		}}},
	},
	"a function that failed keeps its rows": {
		caught: []string{"Store_InTxOfALease", "Store_InTxOutside", "Store_InTxThatFailed", "Store_InTxInside", "Store_SuccessWhoseRows"},
		hooks: hooks{leaseHooks: leaseHooks{inTx: func(ctx context.Context, mem *memstore.Store, fn func(ctx context.Context) error) error {
			var failed error
			if err := mem.InTx(ctx, func(ctx context.Context) error { failed = fn(ctx); return nil }); err != nil {
				return err
			}
			return failed
		}}},
	},
	"a transaction that is going on commits by itself": {
		caught: []string{"Store_BusinessRows", "Store_InTxOfAnAtomic", "Store_InTxOfALease", "Store_InTxInside", "UnknownOutcomeKeeps", "ChildrenInTheBusiness"},
		hooks: hooks{leaseHooks: leaseHooks{inTx: func(_ context.Context, mem *memstore.Store, fn func(ctx context.Context) error) error {
			return mem.InTx(context.Background(), fn)
		}}},
	},
	"a late function opens a transaction of its own": {
		caught: []string{"Store_LeaseThatEnded", "Store_InTxOfAnAtomic", "LostLease"},
		hooks: hooks{leaseHooks: leaseHooks{inTx: func(ctx context.Context, mem *memstore.Store, fn func(ctx context.Context) error) error {
			ran := false
			err := mem.InTx(ctx, func(ctx context.Context) error { ran = true; return fn(ctx) })
			if err != nil && !ran && !errors.Is(err, idempotency.ErrLeaseLost) {
				return mem.InTx(context.Background(), fn)
			}
			return err
		}}},
	},
	"a search goes past the tenant": {
		caught: []string{"Store_FindGives"},
		hooks: hooks{leaseHooks: leaseHooks{search: func(q idempotency.Search) idempotency.Search {
			q.Tenant = nil
			return q
		}}},
	},
	"free and erase do not look at what was seen": {
		caught: []string{"Store_RecordsChange", "Store_FreeLets"},
		hooks:  hooks{leaseHooks: leaseHooks{seen: func(now idempotency.AttemptID) idempotency.AttemptID { return now }}},
	},
	"free keeps the count of attempts": {
		caught: []string{"Store_RecordsChange", "Store_FreeLets", "KeyThatFailedTooOften"},
		hooks: hooks{leaseHooks: leaseHooks{freed: func(s *brokenStore, id idempotency.ID, r idempotency.Record) {
			r.Attempts = 3
			s.mem.Put(id, r)
		}}},
	},
	"a purge has no grace": {
		caught: []string{"Store_PurgeKeepsRecordsForItsGrace"},
		hooks: hooks{leaseHooks: leaseHooks{batch: func(b idempotency.PurgeBatch) idempotency.PurgeBatch {
			b.Grace = 0
			return b
		}}},
	},
	"a purge has no limit": {
		caught: []string{"Store_PurgeRemoves", "Store_PurgeBuries", "Store_SeveralPurges"},
		hooks: hooks{leaseHooks: leaseHooks{batch: func(b idempotency.PurgeBatch) idempotency.PurgeBatch {
			b.Limit = 1000
			return b
		}}},
	},
	"a purge does not remember": {
		caught: []string{"Store_PurgeBuries", "Store_RecordsChange", "LeasedTombstone"},
		hooks: hooks{leaseHooks: leaseHooks{batch: func(b idempotency.PurgeBatch) idempotency.PurgeBatch {
			b.Remember = 0
			return b
		}}},
	},
}

// engineLeaseFaults are those that the cases of the engine were written against.
var engineLeaseFaults = map[string]fault{
	"an attempt that is outside holds the only connection": {
		caught: []string{"TwentyDuplicates"},
		hooks:  holding(func(idempotency.Claim) any { return "" }),
	},
	"the business transaction does not hold the record": {
		caught: []string{"Store_OwnerInItsTransaction", "Store_PurgeLeavesAnOwner", "ChallengerOfAnOwner"},
		hooks: hooks{leaseHooks: leaseHooks{
			unlocked: true,
			inTx: func(ctx context.Context, mem *memstore.Store, fn func(ctx context.Context) error) error {
				l, ok := ctx.Value(brokenKey{}).(*brokenLease)
				if !ok {
					return mem.InTx(ctx, fn)
				}
				if rec, err := mem.Look(ctx, l.claim); err != nil || rec == nil || rec.Attempt != l.claim.Attempt {
					return idempotency.ErrLeaseLost
				}
				if err := fn(ctx); err != nil {
					l.notes = nil
					return err
				}
				l.open = true
				return nil
			},
			after: func(l *brokenLease, how string, err error) error {
				if how == byRenew {
					return err
				}
				for _, note := range l.notes {
					if how == byComplete && err == nil {
						_ = l.store.mem.Insert(context.Background(), note)
					}
				}
				l.notes, l.open = nil, false
				return err
			},
		}},
	},
	"an outcome that could not be sent closes the lease": {
		caught: []string{"Store_OutcomeThatCouldNotBeSent", "OutcomeIsWritten"},
		hooks: after(byComplete, func(l *brokenLease, err error) error {
			if err != nil {
				l.Lease.Rollback(context.Background())
			}
			return err
		}),
	},
	"a completion that could not be sent counts as lost": {
		caught: []string{"Store_OutcomeThatCouldNotBeSent", "OutcomeIsWritten", "StoreThatStaysAway"},
		hooks: after(byComplete, func(_ *brokenLease, err error) error {
			if err != nil {
				return idempotency.ErrLost
			}
			return nil
		}),
	},
	"a claim that is turned away changes the record": {
		caught: []string{"Store_LeaseIsSeen", "LeasedDuplicateDuring", "KeyOfADeadAttempt", "DeadKeyIsTakenOver"},
		hooks: stands(func(s *brokenStore, c *idempotency.Claim, rec idempotency.Record) bool {
			rec.Attempts++
			s.mem.Put(c.ID, rec)
			return false
		}),
	},
	"a grant does not tell that the key had expired": {
		caught: []string{"Store_RecordsChange", "LeasedKeyIsNewWork"},
		hooks: hooks{leaseHooks: leaseHooks{grant: func(g idempotency.Grant) idempotency.Grant {
			g.Reused = false
			return g
		}}},
	},
	"find does not tell what is left of a lease": {
		caught: []string{"OperationIsFound", "RenewedLease"},
		hooks:  hooks{leaseHooks: leaseHooks{found: func(r *idempotency.Stored) { r.LeaseLeft = 0 }}},
	},
	"find does not tell what has expired": {
		caught: []string{"OperationIsFound"},
		hooks:  hooks{leaseHooks: leaseHooks{found: func(r *idempotency.Stored) { r.Expired = false }}},
	},
	"erase leaves the reference": {
		caught: []string{"Store_EraseTakes", "Store_RecordsChange", "ErasedOutcome"},
		hooks: hooks{leaseHooks: leaseHooks{erased: func(s *brokenStore, id idempotency.ID, r idempotency.Record) {
			r.Result, r.ResultType = nil, "tombstone"
			s.mem.Put(id, r)
		}}},
	},
	"erase leaves the draft": {
		caught: []string{"Store_EraseTakes"},
		hooks: hooks{leaseHooks: leaseHooks{erased: func(s *brokenStore, id idempotency.ID, r idempotency.Record) {
			if r.State == idempotency.Completed {
				r.ResultType = "tombstone"
			}
			r.Result, r.ExternalRef = nil, ""
			s.mem.Put(id, r)
		}}},
	},
	"a tombstone shows the draft": {
		caught: []string{"Store_PurgeBuries", "Store_EraseTakes"},
		hooks: hooks{record: func(r idempotency.Record) *idempotency.Record {
			if r.ResultType == "tombstone" {
				r.DraftID = "draft-" + r.Scope.Key
			}
			return &r
		}},
	},
	"a lease forgets the draft when it completes": {
		caught: []string{"Store_DraftIsKept", "Store_FindGives", "Store_BusinessRows"},
		hooks: after(byComplete, func(l *brokenLease, err error) error {
			if err == nil {
				l.put(func(r *idempotency.Record) { r.DraftID = "" })
			}
			return err
		}),
	},
	"the trace is not kept": {
		caught: []string{"Store_CompletedAttempt", "Store_RecordsChange", "ReferenceAndOrigin"},
		hooks: hooks{claim: func(c idempotency.Claim) idempotency.Claim {
			c.OriginTrace = ""
			return c
		}},
	},
	"a takeover keeps the trace of the attempt that has died": {
		caught: []string{"Store_RecordsChange"},
		hooks: hooks{leaseHooks: leaseHooks{lease: func(ctx context.Context, s *brokenStore, c idempotency.Claim, lease leaseFunc) (idempotency.Lease, *idempotency.Record, error) {
			if before, err := s.mem.Look(ctx, c); err == nil && before != nil {
				c.OriginTrace = before.OriginTrace
			}
			return lease(c)
		}}},
	},
	"a takeover that names no draft forgets it": {
		caught: []string{"Store_DraftIsKept", "Store_RecordsChange"},
		hooks:  drafting(func(s *brokenStore, c *idempotency.Claim, rec *idempotency.Record) string { return c.DraftID }),
	},
	"a takeover keeps the draft that it finds": {
		caught: []string{"Store_DraftIsKept", "Store_RecordsChange"},
		hooks: drafting(func(_ *brokenStore, c *idempotency.Claim, rec *idempotency.Record) string {
			if rec != nil && !rec.Expired && rec.DraftID != "" {
				return rec.DraftID
			}
			return c.DraftID
		}),
	},
	"a new life keeps the draft of the old one": {
		caught: []string{"Store_DraftIsKept", "Store_RecordsChange"},
		hooks: drafting(func(_ *brokenStore, c *idempotency.Claim, rec *idempotency.Record) string {
			if rec != nil && c.DraftID == "" {
				return rec.DraftID
			}
			return c.DraftID
		}),
	},
	"a search does not look at the draft": {
		caught: []string{"Store_FindGives", "Store_StuckIsFound"},
		hooks:  searching(func(q *idempotency.Search) { q.DraftID = "" }),
	},
	"a search does not look at the request id": {
		caught: []string{"Store_FindGives"},
		hooks:  searching(func(q *idempotency.Search) { q.RequestID = "" }),
	},
	"a search for a draft folds its case": {
		caught: []string{"Store_FindGives"},
		hooks:  searching(func(q *idempotency.Search) { q.DraftID = strings.ToLower(q.DraftID) }),
	},
	"a search for nothing is one for what is stuck": {
		caught: []string{"Store_FindGives"},
		hooks:  searching(func(q *idempotency.Search) { q.Stuck = q.Stuck || q.IsZero() }),
	},
	"a live lease is stuck": {
		caught: []string{"Store_StuckIsFound"},
		hooks:  hooks{leaseHooks: leaseHooks{stuck: func(r *idempotency.Record) bool { return r.State != idempotency.Completed }}},
	},
	"what is done is stuck where its lease is over": {
		caught: []string{"Store_StuckIsFound"},
		hooks:  hooks{leaseHooks: leaseHooks{stuck: func(r *idempotency.Record) bool { return r.LeaseLeft == 0 }}},
	},
	"what has expired is not stuck": {
		caught: []string{"Store_StuckIsFound"},
		hooks: hooks{leaseHooks: leaseHooks{stuck: func(r *idempotency.Record) bool {
			return (r.State == idempotency.Failed || r.State == idempotency.InProgress && r.LeaseLeft == 0) && !r.Expired
		}}},
	},
	"what has failed is not stuck": {
		caught: []string{"Store_StuckIsFound"},
		hooks: hooks{leaseHooks: leaseHooks{stuck: func(r *idempotency.Record) bool {
			return r.State == idempotency.InProgress && r.LeaseLeft == 0
		}}},
	},
	"a count does not tell what is stuck": {
		caught: []string{"Store_CountCounts"},
		hooks:  hooks{leaseHooks: leaseHooks{count: func(c *idempotency.Count) { c.Stuck = false }}},
	},
	"a count takes all that is over for stuck": {
		caught: []string{"Store_CountCounts"},
		hooks:  hooks{leaseHooks: leaseHooks{count: func(c *idempotency.Count) { c.Stuck = c.Stuck || c.State != idempotency.InProgress }}},
	},
	"a count does not tell what has expired": {
		caught: []string{"Store_CountCounts"},
		hooks:  hooks{leaseHooks: leaseHooks{count: func(c *idempotency.Count) { c.Expired = false }}},
	},
	"a count knows no operations": {
		caught: []string{"Store_CountCounts"},
		hooks:  hooks{leaseHooks: leaseHooks{count: func(c *idempotency.Count) { c.Operation = c.Command() }}},
	},
	"a count counts groups": {
		caught: []string{"Store_CountCounts"},
		hooks:  hooks{leaseHooks: leaseHooks{count: func(c *idempotency.Count) { c.Records = 1 }}},
	},
	"a count outlives its context": {
		caught: []string{"Store_CountCounts"},
		hooks:  hooks{leaseHooks: leaseHooks{deaf: true}},
	},
	"what was erased is free": {
		caught: []string{"Store_EraseTakes", "Store_RecordsChange", "ErasedOutcome"},
		hooks: hooks{leaseHooks: leaseHooks{erased: func(s *brokenStore, id idempotency.ID, r idempotency.Record) {
			r.State, r.Result, r.ResultType, r.ExternalRef = idempotency.Failed, nil, "", ""
			s.mem.Put(id, r)
		}}},
	},
}

// errNothing lets a method of a lease do nothing and say nothing.
var errNothing = errors.New("nothing")

func (s *brokenStore) Lease(ctx context.Context, c idempotency.Claim) (idempotency.Lease, *idempotency.Record, error) {
	c = s.claimed(c)
	lease := func(c idempotency.Claim) (idempotency.Lease, *idempotency.Record, error) {
		return s.Store.Lease(ctx, c)
	}
	var l idempotency.Lease
	var rec *idempotency.Record
	var err error
	if s.hooks.lease != nil {
		l, rec, err = s.hooks.lease(ctx, s, c, lease)
	} else {
		l, rec, err = lease(c)
	}
	if l == nil {
		return nil, s.read(rec, c), err
	}
	return &brokenLease{Lease: l, store: s, begun: ctx, claim: c}, nil, nil
}

func (s *brokenStore) Find(ctx context.Context, q idempotency.Search, limit int) ([]idempotency.Stored, error) {
	if s.hooks.search != nil {
		q = s.hooks.search(q)
	}
	find := s.Store.Find
	if q.Stuck && s.hooks.stuck != nil {
		find = s.findStuck
	}
	found, err := find(ctx, q, limit)
	if s.hooks.found != nil {
		for i := range found {
			s.hooks.found(&found[i])
		}
	}
	return found, err
}

// findStuck is Find where the hook says what is stuck.
func (s *brokenStore) findStuck(ctx context.Context, q idempotency.Search, limit int) (found []idempotency.Stored, err error) {
	q.Stuck = false
	for _, rec := range s.mem.Records() {
		if q.ID = rec.Scope.ID(); s.hooks.stuck(&rec) {
			one, err := s.Store.Find(ctx, q, 1)
			if err != nil {
				return nil, err
			}
			found = append(found, one...)
		}
	}
	slices.SortFunc(found, func(a, b idempotency.Stored) int { return b.CreatedAt.Compare(a.CreatedAt) })
	return found[:min(len(found), limit)], nil
}

func (s *brokenStore) Count(ctx context.Context) ([]idempotency.Count, error) {
	if s.hooks.deaf {
		ctx = context.WithoutCancel(ctx)
	}
	counts, err := s.Store.Count(ctx)
	if s.hooks.count == nil {
		return counts, err
	}
	records := map[idempotency.Count]int64{}
	for _, c := range counts {
		s.hooks.count(&c)
		n := c.Records
		c.Records = 0
		records[c] += n
	}
	counts = nil
	for c, n := range records {
		c.Records = n
		counts = append(counts, c)
	}
	return counts, err
}

func (s *brokenStore) Free(ctx context.Context, id idempotency.ID, seen idempotency.AttemptID) (bool, error) {
	done, err := s.Store.Free(ctx, id, s.seen(ctx, id, seen))
	if done && s.hooks.freed != nil {
		if found, err := s.Store.Find(ctx, idempotency.Search{ID: id}, 1); err == nil && len(found) == 1 {
			s.hooks.freed(s, id, found[0].Record)
		}
	}
	return done, err
}

func (s *brokenStore) Erase(ctx context.Context, id idempotency.ID, seen idempotency.AttemptID) (bool, error) {
	before, err := s.Store.Find(ctx, idempotency.Search{ID: id}, 1)
	if err != nil {
		return false, err
	}
	done, err := s.Store.Erase(ctx, id, s.seen(ctx, id, seen))
	if done && s.hooks.erased != nil {
		s.hooks.erased(s, id, before[0].Record)
	}
	return done, err
}

func (s *brokenStore) seen(ctx context.Context, id idempotency.ID, seen idempotency.AttemptID) idempotency.AttemptID {
	if s.hooks.seen == nil {
		return seen
	}
	found, err := s.Store.Find(ctx, idempotency.Search{ID: id}, 1)
	if err != nil || len(found) == 0 {
		return seen
	}
	return s.hooks.seen(found[0].Attempt)
}

func (s *brokenStore) Purge(ctx context.Context, b idempotency.PurgeBatch) (done idempotency.Purged, err error) {
	if s.hooks.batch != nil {
		b = s.hooks.batch(b)
	}
	purge := func() (err error) {
		done, err = s.Store.Purge(ctx, b)
		return err
	}
	if s.hooks.purge != nil {
		s.purging.Lock()
		defer s.purging.Unlock()
		err = s.hooks.purge(s, purge)
		return done, err
	}
	err = purge()
	return done, err
}

type brokenLease struct {
	idempotency.Lease
	store *brokenStore
	begun context.Context
	claim idempotency.Claim
	notes []string // of the business transaction, where the store's own is not used
	open  bool     // that one
}

func (l *brokenLease) Open() bool { return l.open || l.Lease.Open() }

func (l *brokenLease) Grant() idempotency.Grant {
	if l.store.hooks.grant != nil {
		return l.store.hooks.grant(l.Lease.Grant())
	}
	return l.Lease.Grant()
}

func (l *brokenLease) Context(ctx context.Context) context.Context {
	return context.WithValue(l.Lease.Context(ctx), brokenKey{}, l)
}

func (l *brokenLease) Renew(ctx context.Context) error {
	return l.do(byRenew, func() error { return l.Lease.Renew(ctx) })
}

func (l *brokenLease) Complete(ctx context.Context, d idempotency.Completion) error {
	return l.do(byComplete, func() error { return l.Lease.Complete(ctx, l.done(d)) })
}

func (l *brokenLease) Refuse(ctx context.Context, d idempotency.Completion) error {
	return l.do(byRefuse, func() error { return l.Lease.Refuse(ctx, l.done(d)) })
}

func (l *brokenLease) done(d idempotency.Completion) idempotency.Completion {
	if l.store.hooks.done != nil {
		return l.store.hooks.done(d)
	}
	return d
}

func (l *brokenLease) Release(ctx context.Context) error {
	return l.do(byRelease, func() error { return l.Lease.Release(ctx) })
}

func (l *brokenLease) Rollback(ctx context.Context) {
	_ = l.do(byRollback, func() error { l.Lease.Rollback(ctx); return nil })
}

func (l *brokenLease) do(how string, do func() error) error {
	if l.store.hooks.before != nil {
		switch err := l.store.hooks.before(l, how); {
		case err == errNothing:
			return nil
		case err != nil:
			return err
		}
	}
	err := do()
	if l.store.hooks.after != nil {
		return l.store.hooks.after(l, how, err)
	}
	return err
}
