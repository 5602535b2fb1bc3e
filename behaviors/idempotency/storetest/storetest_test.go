package storetest_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/memstore"
	"github.com/tekil-go/tekil/behaviors/idempotency/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fault is a store's fault that the suite must find.
type fault struct {
	// caught are the cases that must fail, by the beginnings of their names. Others may fail as well.
	caught []string
	hooks
}

// hooks change a memstore into one with a fault.
type hooks struct {
	claim    func(c idempotency.Claim) idempotency.Claim                         // what the store makes of a claim
	record   func(r idempotency.Record) *idempotency.Record                      // what it reads; nil for nothing
	anyScope bool                                                                // it takes every record for the claim's own
	look     func(s *brokenStore, c idempotency.Claim)                           // what Look does besides
	hint     func(s *brokenStore, a *brokenAttempt, key string) error            // what Begin does besides, with the hint
	goesPast func(a *brokenAttempt) bool                                         // whether a row goes past the transaction
	used     func() bool                                                         // what Used says
	done     func(d idempotency.Completion) idempotency.Completion               // what it makes of a completion
	ended    func(s *brokenStore, a *brokenAttempt, how string, err error) error // what the end of an attempt does besides
	leaseHooks
}

const (
	byComplete = "Complete"
	byRefuse   = "Refuse"
	byRollback = "Rollback"
)

// keepRows commits the rows of an attempt although it was not to.
func keepRows(s *brokenStore, a *brokenAttempt) {
	for _, note := range a.notes {
		_ = s.mem.Insert(context.Background(), note)
	}
	a.notes = nil
}

func withoutTenant(c idempotency.Claim) idempotency.Claim {
	s := c.Scope
	s.Tenant = ""
	c.ID = s.ID()
	return c
}

var faults = map[string]fault{
	"complete does not look at what stands there": {
		caught: []string{"Store_CompleteTakesTheKey", "Store_UniqueKey", "LoserWithoutTheHint"},
		hooks: hooks{ended: func(s *brokenStore, a *brokenAttempt, how string, err error) error {
			if how == byComplete && errors.Is(err, idempotency.ErrLost) {
				keepRows(s, a)
				return nil
			}
			return err
		}},
	},
	"complete reports a loss and commits the rows": {
		caught: []string{"Store_CompleteTakesTheKey", "Store_UniqueKey", "LoserWithoutTheHint"},
		hooks: hooks{ended: func(s *brokenStore, a *brokenAttempt, how string, err error) error {
			if how == byComplete && errors.Is(err, idempotency.ErrLost) {
				keepRows(s, a)
			}
			return err
		}},
	},
	"a loss is the database's error": { // the engine looks at the record after such an error, so callers are spared it
		caught: []string{"Store_CompleteTakesTheKey", "Store_UniqueKey"},
		hooks: hooks{ended: func(_ *brokenStore, _ *brokenAttempt, _ string, err error) error {
			if errors.Is(err, idempotency.ErrLost) {
				return errors.New("duplicate key value violates unique constraint")
			}
			return err
		}},
	},
	"refuse keeps the rows": {
		caught: []string{"Store_RefusalUndoesTheRows", "FinalRefusal"},
		hooks: hooks{ended: func(s *brokenStore, a *brokenAttempt, how string, err error) error {
			if how == byRefuse {
				keepRows(s, a)
			}
			return err
		}},
	},
	"rollback commits": {
		caught: []string{"Store_RollbackLeavesNothing", "ErrorOfNoClass", "PanicAndGoexit", "ResultThatCannotBeStored", "NestedCommands", "UnknownOutcome"},
		hooks: hooks{ended: func(s *brokenStore, a *brokenAttempt, how string, err error) error {
			if how == byRollback {
				keepRows(s, a)
			}
			return err
		}},
	},
	"rows go past the transaction": {
		caught: []string{"Store_NothingIsVisible", "Store_RollbackLeavesNothing", "ErrorOfNoClass"},
		hooks:  hooks{goesPast: func(*brokenAttempt) bool { return true }},
	},
	"the transaction stays open for late rows": {
		caught: []string{"Store_AttemptThatEnded"},
		hooks:  hooks{goesPast: func(a *brokenAttempt) bool { return a.over }},
	},
	"the tenant is not part of the id": {
		caught: []string{"Store_Scopes", "SameKeyElsewhere"},
		hooks:  hooks{claim: withoutTenant},
	},
	"the scope columns are not compared": {
		caught: []string{"Store_ShowsThatTheRow", "RowOfAnotherScope"},
		hooks:  hooks{anyScope: true},
	},
	"keys are folded to lower case": {
		caught: []string{"Store_Scopes", "OtherKeyIsNewWork"},
		hooks: hooks{claim: func(c idempotency.Claim) idempotency.Claim {
			s := c.Scope
			s.Key = strings.ToLower(s.Key)
			c.ID = s.ID()
			return c
		}},
	},
	"keys are cut off": {
		caught: []string{"Store_LongParts"},
		hooks: hooks{claim: func(c idempotency.Claim) idempotency.Claim {
			s := c.Scope
			s.Key = s.Key[:min(len(s.Key), 100)]
			c.ID = s.ID()
			return c
		}},
	},
	"an expired record is alive": {
		caught: []string{"Store_Expiry", "Store_NewLife", "ExpiredKey", "ExpiredTombstone", "ManyReuses", "LeasedTombstone"},
		hooks: hooks{record: func(r idempotency.Record) *idempotency.Record {
			r.Expired = false
			return &r
		}},
	},
	"a record is expired at once": {
		caught: []string{"Store_Expiry", "FirstRuns", "ExpiredKey"},
		hooks: hooks{record: func(r idempotency.Record) *idempotency.Record {
			r.Expired = true
			return &r
		}},
	},
	"an expired record is gone": {
		caught: []string{"ExpiredTombstone", "ExpiredKey", "Store_NewLife"},
		hooks: hooks{record: func(r idempotency.Record) *idempotency.Record {
			if r.Expired {
				return nil
			}
			return &r
		}},
	},
	"every key is kept for a day": {
		caught: []string{"Store_Expiry", "ExpiredKey", "LeasedKeyIsNewWork"},
		hooks: hooks{claim: func(c idempotency.Claim) idempotency.Claim {
			c.Retention = 24 * time.Hour
			return c
		}},
	},
	"tombstones are forgotten": {
		caught: []string{"Store_NewLife", "ExpiredTombstone", "LeasedTombstone"},
		hooks: hooks{claim: func(c idempotency.Claim) idempotency.Claim {
			c.AfterExpiry = idempotency.Reuse
			return c
		}},
	},
	"a dead lease frees the key": {
		caught: []string{"RecordsOfOtherModes", "Store_CompleteTakesTheKey", "UnknownOutcomeKeeps", "ClaimOfNobody"},
		hooks: hooks{record: func(r idempotency.Record) *idempotency.Record {
			if r.State == idempotency.InProgress {
				return nil
			}
			return &r
		}},
	},
	"what failed may run with any payload": {
		caught: []string{"RecordsOfOtherModes", "Store_CompleteTakesTheKey", "LeasedFailure"},
		hooks: hooks{record: func(r idempotency.Record) *idempotency.Record {
			if r.State == idempotency.Failed {
				return nil
			}
			return &r
		}},
	},
	"the payload's hash is not kept": {
		caught: []string{"Store_CompletedAttempt", "OtherPayload", "FinalRefusal"},
		hooks: hooks{claim: func(c idempotency.Claim) idempotency.Claim {
			c.Hash = [32]byte{}
			return c
		}},
	},
	"results are normalised": {
		caught: []string{"Store_ResultsComeBack", "OddResults"},
		hooks: hooks{done: func(d idempotency.Completion) idempotency.Completion {
			d.Result = bytes.ReplaceAll(bytes.ReplaceAll(d.Result, []byte(`\u0000`), nil), []byte(`"a":2,`), nil)
			return d
		}},
	},
	"results are cut off": {
		caught: []string{"Store_ResultsComeBack", "OddResults"},
		hooks: hooks{done: func(d idempotency.Completion) idempotency.Completion {
			d.Result = d.Result[:min(len(d.Result), 250_000)]
			return d
		}},
	},
	"an outcome without a result is none": {
		caught: []string{"Store_OutcomeWithoutAResult", "ResultAboveTheLimit"},
		hooks: hooks{record: func(r idempotency.Record) *idempotency.Record {
			if r.State == idempotency.Completed && r.ResultType == "omitted" {
				return nil
			}
			return &r
		}},
	},
	"no result is an empty one": {
		caught: []string{"Store_OutcomeWithoutAResult"},
		hooks: hooks{record: func(r idempotency.Record) *idempotency.Record {
			if r.State == idempotency.Completed && r.Result == nil {
				r.Result = []byte("null")
			}
			return &r
		}},
	},
	"every result is of one type": {
		caught: []string{"Store_OutcomeWithoutAResult", "ResultAboveTheLimit", "SealedResult"},
		hooks: hooks{done: func(d idempotency.Completion) idempotency.Completion {
			d.ResultType = "result/0"
			return d
		}},
	},
	"results are text": {
		caught: []string{"Store_ResultsComeBack", "SealedResult"},
		hooks: hooks{done: func(d idempotency.Completion) idempotency.Completion {
			d.Result = bytes.ToValidUTF8(d.Result, []byte("?"))
			return d
		}},
	},
	"the attempt is not kept": {
		caught: []string{"Store_CompletedAttempt", "SealedResult"},
		hooks: hooks{record: func(r idempotency.Record) *idempotency.Record {
			if r.State == idempotency.Completed {
				r.Attempt = idempotency.AttemptID{}
			}
			return &r
		}},
	},
	"the hash version has three digits": {
		caught: []string{"Store_HashVersions", "SecretOfTheFingerprint"},
		hooks: hooks{claim: func(c idempotency.Claim) idempotency.Claim {
			c.HashVersion = 1000 + c.HashVersion%1000
			return c
		}},
	},
	"null is taken for nothing": {
		caught: []string{"EmptyResults"},
		hooks: hooks{record: func(r idempotency.Record) *idempotency.Record {
			if string(r.Result) == "null" {
				return nil
			}
			return &r
		}},
	},
	"a refusal is kept as a success": {
		caught: []string{"Store_RefusalUndoes", "FinalRefusal", "LeasedRefusal"},
		hooks: hooks{done: func(d idempotency.Completion) idempotency.Completion {
			d.Outcome = idempotency.Success
			return d
		}},
	},
	"the reference is dropped": {
		caught: []string{"Store_CompletedAttempt", "ReferenceAndOrigin", "ErasedOutcome", "OperationIsFound"},
		hooks: hooks{done: func(d idempotency.Completion) idempotency.Completion {
			d.ExternalRef = ""
			return d
		}},
	},
	"the draft is not kept": {
		caught: []string{"Store_CompletedAttempt", "Store_DraftIsKept", "ReferenceAndOrigin", "Store_FindGives"},
		hooks: hooks{claim: func(c idempotency.Claim) idempotency.Claim {
			c.DraftID = ""
			return c
		}},
	},
	"the draft is dropped when work is refused": {
		caught: []string{"Store_DraftIsKept", "Store_RefusalUndoes"},
		hooks: hooks{ended: func(s *brokenStore, a *brokenAttempt, how string, err error) error {
			if rec, _ := s.mem.Look(context.Background(), a.claim); how == byRefuse && rec != nil {
				rec.DraftID = ""
				s.mem.Put(a.claim.ID, *rec)
			}
			return err
		}},
	},
	"the origin is the reader's": {
		caught: []string{"Store_CompletedAttempt", "FirstRuns", "LeasedCommandRuns"},
		hooks: hooks{record: func(r idempotency.Record) *idempotency.Record {
			r.OriginRequestID = "somebody"
			return &r
		}},
	},
	"look writes": {
		caught: []string{"Store_LookWritesNothing"},
		hooks: hooks{look: func(s *brokenStore, c idempotency.Claim) {
			s.mem.Put(c.ID, idempotency.Record{Scope: c.Scope, State: idempotency.Failed})
		}},
	},
	"the hint is never given back": {
		caught: []string{"Store_Hint"},
		hooks: hooks{hint: func(s *brokenStore, _ *brokenAttempt, key string) error {
			if _, held := s.held.LoadOrStore(key, true); held {
				return idempotency.ErrBusy
			}
			return nil
		}},
	},
	"the hint is one for all keys": {
		caught: []string{"Store_Hint", "Store_KeysThatCarryATime"},
		hooks: hooks{
			hint: func(s *brokenStore, a *brokenAttempt, _ string) error {
				if _, held := s.held.LoadOrStore("", true); held {
					return idempotency.ErrBusy
				}
				a.holds = true
				return nil
			},
			ended: func(s *brokenStore, a *brokenAttempt, _ string, err error) error {
				if a.holds {
					a.holds = false
					s.held.Delete("")
				}
				return err
			},
		},
	},
	"the transaction ends with the context of begin": {
		caught: []string{"Store_AttemptOutlives"},
		hooks: hooks{ended: func(s *brokenStore, a *brokenAttempt, how string, err error) error {
			if how == byComplete && a.begun.Err() != nil {
				return a.begun.Err()
			}
			return err
		}},
	},
	"used is always true": {
		caught: []string{"Store_Used", "HandlerThatLeaves"},
		hooks:  hooks{used: func() bool { return true }},
	},
	"used is always false": {
		caught: []string{"Store_Used", "HandlerThatLeaves"},
		hooks:  hooks{used: func() bool { return false }},
	},
}

// faultVariable names the fault that a child process plants.
const faultVariable = "TEKIL_STORETEST_FAULT"

// TestSuite runs the suite on a store with the fault that the environment names. Without one it is the control: the same
// store without a fault passes.
func TestSuite(t *testing.T) {
	t.Parallel()
	planted := allFaults()[os.Getenv(faultVariable)].hooks
	storetest.Run(t, func(*testing.T) storetest.Fixture { return fixture(planted) })
}

func TestPlantedFaultsFailTheSuite(t *testing.T) {
	t.Parallel()
	if os.Getenv(faultVariable) != "" {
		t.Fatal("a child process runs this test: it was not told to run TestSuite only")
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name, fault := range allFaults() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), program, "-test.run=^TestSuite$/^("+strings.Join(fault.caught, "|")+")", "-test.timeout=2m")
			cmd.Env = append(os.Environ(), faultVariable+"="+name)
			out, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) {
				t.Fatalf("the suite ended with %v on a store with this fault:\n%s", err, out)
			}
			for _, c := range fault.caught {
				if !strings.Contains(string(out), "--- FAIL: TestSuite/"+c) {
					t.Errorf("the case %s… did not find the fault:\n%s", c, out)
				}
			}
			if !strings.Contains(string(out), "The promise behind this case: ") {
				t.Errorf("the failure does not say why it matters:\n%s", out)
			}
		})
	}
}

// fixture is a memstore with a fault planted in it.
func fixture(h hooks) storetest.Fixture {
	mem := memstore.New()
	store := &brokenStore{Store: mem, mem: mem, hooks: h}
	noHint := &brokenStore{Store: memstore.NewWithConfig(memstore.Config{NoHint: true, Share: mem}), mem: mem, hooks: h}
	noHint.hooks.hint = nil
	return storetest.Fixture{
		Store:  store,
		NoHint: noHint,
		Insert: func(ctx context.Context, note string) error {
			switch held := ctx.Value(brokenKey{}).(type) {
			case *brokenAttempt:
				held.notes = append(held.notes, note)
				if h.goesPast != nil && h.goesPast(held) {
					return mem.Insert(context.Background(), note)
				}
			case *brokenLease:
				if h.workOutside {
					return mem.Insert(context.Background(), note)
				}
				if h.unlocked {
					held.notes = append(held.notes, note)
					return nil
				}
			}
			return mem.Insert(ctx, note)
		},
		InTx: func(ctx context.Context, fn func(ctx context.Context) error) error {
			if h.inTx != nil {
				return h.inTx(ctx, mem, fn)
			}
			return mem.InTx(ctx, fn)
		},
		Rows:    func(testing.TB) []string { return mem.Rows() },
		Records: func(testing.TB) int { return len(mem.Records()) },
		Age:     func(_ testing.TB, d time.Duration) { mem.Age(d) },
		Plant:   func(_ testing.TB, id idempotency.ID, rec idempotency.Record) { mem.Put(id, rec) },
	}
}

type brokenStore struct {
	idempotency.Store
	mem   *memstore.Store
	hooks hooks
	held  sync.Map
	// purging keeps purges apart that would age the records under each other's hands.
	purging sync.Mutex
}

func (s *brokenStore) claimed(c idempotency.Claim) idempotency.Claim {
	if s.hooks.claim != nil {
		return s.hooks.claim(c)
	}
	return c
}

func (s *brokenStore) read(r *idempotency.Record, c idempotency.Claim) *idempotency.Record {
	if r != nil && s.hooks.record != nil {
		r = s.hooks.record(*r)
	}
	if r != nil && s.hooks.anyScope {
		r.Scope = c.Scope
	}
	return r
}

func (s *brokenStore) Look(ctx context.Context, c idempotency.Claim) (*idempotency.Record, error) {
	c = s.claimed(c)
	if s.hooks.look != nil {
		s.hooks.look(s, c)
	}
	rec, err := s.Store.Look(ctx, c)
	return s.read(rec, c), err
}

func (s *brokenStore) Begin(ctx context.Context, c idempotency.Claim) (idempotency.Transaction, error) {
	c = s.claimed(c)
	a := &brokenAttempt{store: s, begun: ctx, claim: c}
	if s.hooks.hint != nil {
		if err := s.hooks.hint(s, a, c.Scope.Key); err != nil {
			return nil, err
		}
	}
	var err error
	a.Transaction, err = s.Store.Begin(ctx, c)
	if err != nil {
		if a.holds {
			s.held.Delete("")
		}
		return nil, err
	}
	return a, nil
}

type brokenKey struct{}

type brokenAttempt struct {
	idempotency.Transaction
	store *brokenStore
	begun context.Context
	claim idempotency.Claim
	notes []string
	over  bool
	holds bool // the hint
}

func (a *brokenAttempt) Found() *idempotency.Record {
	return a.store.read(a.Transaction.Found(), a.claim)
}

func (a *brokenAttempt) Context(ctx context.Context) context.Context {
	return context.WithValue(a.Transaction.Context(ctx), brokenKey{}, a)
}

func (a *brokenAttempt) Used() bool {
	if a.store.hooks.used != nil {
		return a.store.hooks.used()
	}
	return a.Transaction.Used()
}

func (a *brokenAttempt) Complete(ctx context.Context, d idempotency.Completion) error {
	return a.end(byComplete, func() error { return a.Transaction.Complete(ctx, a.done(d)) })
}

func (a *brokenAttempt) Refuse(ctx context.Context, d idempotency.Completion) error {
	return a.end(byRefuse, func() error { return a.Transaction.Refuse(ctx, a.done(d)) })
}

func (a *brokenAttempt) Rollback(ctx context.Context) {
	_ = a.end(byRollback, func() error { a.Transaction.Rollback(ctx); return nil })
}

func (a *brokenAttempt) done(d idempotency.Completion) idempotency.Completion {
	if a.store.hooks.done != nil {
		return a.store.hooks.done(d)
	}
	return d
}

func (a *brokenAttempt) end(how string, end func() error) error {
	err := end()
	if a.over {
		return err
	}
	a.over = true
	if a.store.hooks.ended != nil {
		return a.store.hooks.ended(a.store, a, how, err)
	}
	return err
}
