package idempotency_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/tekil-go/tekil/behaviors/idempotency"
)

func TestZeroPolicyIsAtomicWithTheDefaults(t *testing.T) {
	t.Parallel()
	got, warnings, err := idempotency.CheckPolicy(idempotency.Policy{})
	want := idempotency.Policy{
		Mode: idempotency.Atomic, Retention: 72 * time.Hour, AfterExpiry: idempotency.Reuse, Wait: 250 * time.Millisecond,
		Deadline: time.Minute, Isolation: idempotency.ReadCommitted, Results: idempotency.KeepResult, ResultLimit: 256 << 10,
	}
	if got != want || warnings != nil || err != nil {
		t.Errorf("the zero policy becomes %+v with %v, %v", got, warnings, err)
	}
}

func TestLeasedPolicyHasDefaultsOfItsOwn_rec5(t *testing.T) {
	t.Parallel()
	got, warnings, err := idempotency.CheckPolicy(idempotency.Policy{Mode: idempotency.Leased})
	want := idempotency.Policy{
		Mode: idempotency.Leased, Retention: 72 * time.Hour, Wait: 250 * time.Millisecond, Deadline: time.Minute,
		Lease: 300 * time.Second, Takeover: idempotency.RunAgain, MaxAttempts: 10, Duplicate: idempotency.AnswerInProgress,
		ResultLimit: 256 << 10,
	}
	if got != want || warnings != nil || err != nil {
		t.Errorf("the zero Leased policy becomes %+v with %v, %v", got, warnings, err)
	}
	if got, _, err := idempotency.CheckPolicy(idempotency.Policy{Mode: idempotency.Leased, MaxAttempts: -1}); err != nil || got.MaxAttempts != math.MaxInt32-1 {
		t.Errorf("no bound becomes %d, %v", got.MaxAttempts, err)
	}
}

func TestLeaseIsBoundedWhereAProgramIsBuilt_rec5(t *testing.T) {
	t.Parallel()
	for lease, ok := range map[time.Duration]bool{
		30*time.Second - 1: false, 30 * time.Second: true, 300 * time.Second: true, time.Hour: true, time.Hour + 1: false,
	} {
		if err := (idempotency.Policy{Mode: idempotency.Leased, Lease: lease}).CheckLease(); (err == nil) != ok {
			t.Errorf("a lease of %v: %v", lease, err)
		}
	}
	if err := (idempotency.Policy{}).CheckLease(); err != nil {
		t.Error(err)
	}
}

func TestT11_T12_PolicyOutOfItsBoundsIsRefused(t *testing.T) {
	t.Parallel()
	const hour = time.Hour
	for _, tc := range []struct {
		name    string
		policy  idempotency.Policy
		problem string // "" for none
		warning string
	}{
		{"a day", idempotency.Policy{Retention: 24 * hour}, "", ""},
		{"less than a day", idempotency.Policy{Retention: 24*hour - 1}, "forgets the key", ""},
		{"less than a day on purpose", idempotency.Policy{Retention: 2 * hour, ShortRetention: true}, "", ""},
		{"thirty days", idempotency.Policy{Retention: 720 * hour}, "", ""},
		{"more than thirty days", idempotency.Policy{Retention: 721 * hour}, "", "grows large"},
		{"negative retention", idempotency.Policy{Retention: -1}, "must not be negative", ""},
		{"negative deadline", idempotency.Policy{Deadline: -1}, "must not be negative", ""},
		{"shorter than the handler", idempotency.Policy{Retention: 30 * time.Second, ShortRetention: true}, "shorter than Deadline", ""},
		{"as long as the handler", idempotency.Policy{Retention: hour, Deadline: hour, ShortRetention: true}, "", ""},
		{"no wait", idempotency.Policy{Wait: -1}, "", ""},
		{"longest wait", idempotency.Policy{Wait: 30 * time.Second}, "", ""},
		{"too long a wait", idempotency.Policy{Wait: 30*time.Second + 1}, "Wait is", ""},
		{"longest deadline", idempotency.Policy{Deadline: hour}, "", ""},
		{"too long a deadline", idempotency.Policy{Deadline: hour + 1}, "Deadline is 1h0m0.000000001s; at most 1h0m0s", ""},
		{"highest version", idempotency.Policy{Version: 999}, "", ""},
		{"too high a version", idempotency.Policy{Version: 1000}, "Version is 1000", ""},
		{"negative version", idempotency.Policy{Version: -1}, "Version is -1", ""},
		{"unknown mode", idempotency.Policy{Mode: 2}, "mode(2) does not exist", ""},
		{"negative mode", idempotency.Policy{Mode: -1}, "mode(-1) does not exist", ""},
		{"unknown expiry", idempotency.Policy{AfterExpiry: 2}, "afterexpiry(2) does not exist", ""},
		{"unknown isolation", idempotency.Policy{Isolation: 3}, "isolation(3) does not exist", ""},
		{"negative isolation", idempotency.Policy{Isolation: -1}, "does not exist", ""},
		{"unknown results", idempotency.Policy{Results: 3}, "results(3) does not exist", ""},
		{"negative results", idempotency.Policy{Results: -1}, "results(-1) does not exist", ""},
		{"results without a bound", idempotency.Policy{ResultLimit: -1}, "", ""},
		{"Leased", idempotency.Policy{Mode: idempotency.Leased}, "", ""},
		{"Leased with all that it has", idempotency.Policy{Mode: idempotency.Leased, Lease: hour, Takeover: idempotency.Refuse, MaxAttempts: -1, Duplicate: idempotency.AnswerAccepted, RelaxedClaim: true}, "", ""},
		{"a lease as long as the retention", idempotency.Policy{Mode: idempotency.Leased, Lease: hour, Retention: hour, ShortRetention: true}, "", ""},
		{"a lease longer than the retention", idempotency.Policy{Mode: idempotency.Leased, Lease: hour + 1, Retention: hour, ShortRetention: true}, "shorter than Lease", ""},
		{"a negative lease", idempotency.Policy{Mode: idempotency.Leased, Lease: -1}, "Lease is -1ns", ""},
		{"unknown takeover", idempotency.Policy{Mode: idempotency.Leased, Takeover: 3}, "takeover(3) does not exist", ""},
		{"unknown duplicate", idempotency.Policy{Mode: idempotency.Leased, Duplicate: 2}, "duplicate(2) does not exist", ""},
		{"one attempt, which no release could follow", idempotency.Policy{Mode: idempotency.Leased, MaxAttempts: 1}, "after a person has released it", ""},
		{"two attempts", idempotency.Policy{Mode: idempotency.Leased, MaxAttempts: 2}, "", ""},
		{"too many attempts", idempotency.Policy{Mode: idempotency.Leased, MaxAttempts: math.MaxInt32}, "MaxAttempts is 2147483647", ""},
		{"Leased and strict", idempotency.Policy{Mode: idempotency.Leased, Strict: true}, "Strict is for Mode Atomic", ""},
		{"Atomic with a lease", idempotency.Policy{Lease: hour}, "for Mode Leased", ""},
		{"Atomic with a takeover", idempotency.Policy{Takeover: idempotency.Refuse}, "for Mode Leased", ""},
		{"Atomic with a number of attempts", idempotency.Policy{MaxAttempts: 1}, "for Mode Leased", ""},
		{"Atomic that answers accepted", idempotency.Policy{Duplicate: idempotency.AnswerAccepted}, "for Mode Leased", ""},
		{"Atomic with a relaxed claim", idempotency.Policy{RelaxedClaim: true}, "for Mode Leased", ""},
		{"tombstone, serializable, strict", idempotency.Policy{AfterExpiry: idempotency.Tombstone, Isolation: idempotency.Serializable, Strict: true, KeyOptional: true}, "", ""},
	} {
		_, warnings, err := idempotency.CheckPolicy(tc.policy)
		switch {
		case tc.problem == "" && err != nil:
			t.Errorf("%s: %v", tc.name, err)
		case tc.problem != "" && (err == nil || !strings.Contains(err.Error(), tc.problem)):
			t.Errorf("%s: the problem is %v, want %q", tc.name, err, tc.problem)
		}
		if all := strings.Join(warnings, "\n"); (tc.warning == "") != (all == "") || !strings.Contains(all, tc.warning) {
			t.Errorf("%s: the warnings are %q, want %q", tc.name, warnings, tc.warning)
		}
	}
}

func TestPolicyReportsAllItsProblemsAtOnce(t *testing.T) {
	t.Parallel()
	_, _, err := idempotency.CheckPolicy(idempotency.Policy{Mode: 9, AfterExpiry: 9, Isolation: 9, Retention: time.Minute, Wait: time.Hour, Deadline: 2 * time.Hour, Version: -1})
	if err == nil {
		t.Fatal("no problem is reported")
	}
	if n := len(strings.Split(err.Error(), "\n")); n != 8 {
		t.Errorf("%d problems are reported, want 8:\n%v", n, err)
	}
}

func TestPolicyValuesHaveNames(t *testing.T) {
	t.Parallel()
	for got, want := range map[string]string{
		idempotency.Atomic.String():           "atomic",
		idempotency.Leased.String():           "leased",
		idempotency.RunAgain.String():         "run again",
		idempotency.Reconcile.String():        "reconcile",
		idempotency.Refuse.String():           "refuse",
		idempotency.AnswerInProgress.String(): "in progress",
		idempotency.AnswerAccepted.String():   "accepted",
		idempotency.Reuse.String():            "reuse",
		idempotency.Tombstone.String():        "tombstone",
		idempotency.ReadCommitted.String():    "read committed",
		idempotency.RepeatableRead.String():   "repeatable read",
		idempotency.Serializable.String():     "serializable",
		idempotency.KeepResult.String():       "kept",
		idempotency.OmitResult.String():       "omitted",
		idempotency.SealResult.String():       "sealed",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
