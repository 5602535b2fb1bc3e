package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
)

// omittedType is the result type of an outcome whose result is not kept.
const omittedType = "omitted"

type (
	small         struct{} // results of at most 100 bytes
	smallLeased   struct{}
	sealing       struct{}
	sealingLeased struct{}
)

func (small) policy() idempotency.Policy { return idempotency.Policy{ResultLimit: 100} }
func (smallLeased) policy() idempotency.Policy {
	return idempotency.Policy{Mode: idempotency.Leased, ResultLimit: 100}
}

func (sealing) policy() idempotency.Policy {
	return idempotency.Policy{Results: idempotency.SealResult}
}

func (sealingLeased) policy() idempotency.Policy {
	return idempotency.Policy{Mode: idempotency.Leased, Results: idempotency.SealResult}
}

// letter is a command with a secret field whose result is a text.
type letter[P policies] struct {
	Note string `json:"note"`
	Pin  string `json:"pin"  idempotency:"secret"`
}

func (letter[P]) CommandName() bus.Name[string] { return "storetest.letter" }
func (letter[P]) Idempotency() idempotency.Policy {
	var p P
	return p.policy()
}

// letters serves letters by an engine of its own, which has the secrets of some versions. write is called after the business row is
// written, and counted.
func letters[P policies](t testing.TB, f Fixture, runs *int, write func(run int) (string, error), versions ...int) bus.Handler[letter[P], string] {
	t.Helper()
	sealer, err := idempotency.NewSealer(bytes.Repeat([]byte("sealing!"), 4))
	if err != nil {
		t.Fatal(err)
	}
	cfg := idempotency.Config{Store: f.Store, Sealer: sealer}
	for _, v := range versions {
		cfg.Secrets = append(cfg.Secrets, idempotency.Secret{Version: v, Key: bytes.Repeat([]byte{byte(v + 1)}, 32)})
	}
	engine, err := idempotency.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return serveOn(t, engine, func(ctx context.Context, l letter[P]) (string, error) {
		*runs++
		requestctx.From(ctx).SetExternalRef("ref-1")
		if err := f.InTx(ctx, func(ctx context.Context) error { return f.Insert(ctx, l.Note) }); err != nil {
			return "", err
		}
		return write(*runs)
	})
}

func tooLarge[P policies](t *testing.T, f Fixture, name string) {
	t.Helper()
	runs, text := 0, strings.Repeat("x", 200)
	write := func(int) (string, error) { return text, nil }
	here, elsewhere := letters[P](t, f, &runs, write, 0), letters[P](t, f, &runs, write, 0)
	v, cmd := request(t, "too-large-"+name), letter[P]{Note: name}
	if got := executed(t, call(within(t), here, v, cmd)); got != text {
		t.Errorf("%s: the first caller gets %d characters, want all of its result", name, len(got))
	}
	for _, send := range []bus.Handler[letter[P], string]{here, elsewhere, elsewhere} {
		r := call(within(t), send, v, cmd)
		var e *idempotency.ResultUnavailableError
		if !errors.As(r.err, &e) || e.ExternalRef != "ref-1" || r.out.State != requestctx.StateReplayed {
			t.Errorf("%s: a replay gets %v with %+v, want that the result is not there, and the reference", name, r.err, r.out)
		}
	}
	failed[*idempotency.ConflictError](t, call(within(t), elsewhere, v, letter[P]{Note: "other"}), requestctx.StateConflict)
	if runs != 1 {
		t.Errorf("%s: the handler ran %d times, want once", name, runs)
	}
	if n := notes(t, f, name); n != 1 {
		t.Errorf("%s: %d business rows", name, n)
	}
}

func sealedAway[P policies](t *testing.T, f Fixture, name string, refuse bool) {
	t.Helper()
	const secret = "tok_9f31c0ffee"
	runs := 0
	write := func(run int) (string, error) {
		if refuse {
			return "", idempotency.Final(declined{fmt.Sprint(secret, run)})
		}
		return fmt.Sprint(secret, run), nil
	}
	here, elsewhere := letters[P](t, f, &runs, write, 0), letters[P](t, f, &runs, write, 0)
	cmd := letter[P]{Note: name}
	for i := range 8 { // what is sealed is other bytes each time
		v := request(t, fmt.Sprint("sealed-", name, "-", i))
		first := call(within(t), here, v, cmd)
		for _, send := range []bus.Handler[letter[P], string]{here, elsewhere, elsewhere} {
			r := call(within(t), send, v, cmd)
			if !refuse {
				if got := replayed(t, r, first); got != fmt.Sprint(secret, i+1) {
					t.Fatalf("%s: a replay gives %q", name, got)
				}
				continue
			}
			var refused *idempotency.RefusedError
			if want := fmt.Sprintf(`{"reason":"%s%d"}`, secret, i+1); !errors.As(r.err, &refused) || string(refused.Data) != want || r.out.State != requestctx.StateReplayed {
				t.Fatalf("%s: a replay gives %v, %+v with %+v", name, r.err, refused, r.out)
			}
		}
		found, err := f.Store.Find(within(t), idempotency.Search{ID: scopeOf(v, "storetest.letter").ID()}, 1)
		if err != nil || len(found) != 1 {
			t.Fatalf("%s: Find gives %d records and %v", name, len(found), err)
		}
		if rec := found[0]; len(rec.Result) == 0 || !refuse && (rec.ResultType != "sealed/0" || bytes.Contains(rec.Result, []byte(secret))) || refuse && bytes.Contains(rec.Result, []byte(`"reason"`)) {
			t.Errorf("%s: the record holds the %s %q", name, rec.ResultType, rec.Result)
		}
	}
	if runs != 8 {
		t.Errorf("%s: the handler ran %d times, want once for each key", name, runs)
	}
}

func rotates[P policies](t *testing.T, f Fixture, name string, fails bool) {
	t.Helper()
	runs := 0
	write := func(run int) (string, error) {
		if fails && run == 1 {
			return "", errPaper
		}
		return fmt.Sprint("letter ", run), nil
	}
	v, cmd := request(t, "rotates-"+name), letter[P]{Note: name, Pin: "1234"}
	before, between, after, gone := letters[P](t, f, &runs, write, 0, 30), letters[P](t, f, &runs, write, 30, 0), letters[P](t, f, &runs, write, 30), letters[P](t, f, &runs, write, 7)
	first := call(within(t), before, v, cmd)
	if (first.err != nil) != fails {
		t.Fatalf("%s: the first attempt gives %v", name, first.err)
	}
	for _, send := range []bus.Handler[letter[P], string]{between, before, between} {
		if runs > 1 || !fails || isLeased[P]() { // a failed Atomic attempt leaves no record
			failed[*idempotency.ConflictError](t, call(within(t), send, v, letter[P]{Note: name, Pin: "4321"}), requestctx.StateConflict)
		}
		r := call(within(t), send, v, cmd)
		if fails && runs == 2 && r.out.State == requestctx.StateExecuted {
			first = r
			continue
		}
		replayed(t, r, first)
	}
	if e := failed[*idempotency.ConflictError](t, call(within(t), gone, v, cmd), requestctx.StateConflict); !e.VersionChanged {
		t.Errorf("%s: the conflict does not say that the version has changed", name)
	}
	if fails { // the record is of the new secret
		replayed(t, call(within(t), after, v, cmd), first)
	}
	want := 1
	if fails {
		want = 2
	}
	if n := notes(t, f, name); runs != want || n != 1 {
		t.Errorf("%s: the handler ran %d times and left %d rows, want %d and 1", name, runs, n, want)
	}
}

func isLeased[P policies]() bool {
	var p P
	return p.policy().Mode == idempotency.Leased
}

// resultCases are those of what a record keeps besides a plain result.
func resultCases() []specCase {
	return []specCase{
		{"Store_OutcomeWithoutAResultIsAnOutcome_R12_R13",
			"The work was done and its answer is not kept: a store that takes that for nothing has the work done again.",
			func(t *testing.T, f Fixture) {
				done := idempotency.Completion{ResultType: omittedType, ExternalRef: "auth-42"}
				c := claim("omitted-atomic")
				a := begin(t, f.Store, c)
				insert(t, f, a, "atomic")
				if err := a.Complete(within(t), done); err != nil {
					t.Fatalf("Complete without a result: %v", err)
				}
				wantRecord(t, f.Store, c, recorded(c, done))
				late := begin(t, f.Store, again(c))
				if rec := late.Found(); rec == nil || rec.ResultType != omittedType || len(rec.Result) != 0 {
					t.Errorf("another attempt finds %s", show(rec))
				}
				late.Rollback(within(t))
				k := leased("omitted-leased")
				l := take(t, f.Store, k)
				if err := l.Complete(within(t), done); err != nil {
					t.Fatalf("Complete of a lease without a result: %v", err)
				}
				wantRecord(t, f.Store, k, recorded(k, done))
				if rec := refused(t, f.Store, again(k)); rec == nil || rec.ResultType != omittedType || len(rec.Result) != 0 {
					t.Errorf("another claim meets %s", show(rec))
				}
				wantDatabase(t, f, 2, "atomic")
			}},
		{"Store_HashVersionsComeBackAsTheyWere_F19_F21",
			"The version says with which secret and contract a payload is compared; another one makes a conflict of an honest retry.",
			func(t *testing.T, f Fixture) {
				for _, version := range []int16{0, 1, 1000, 1999, 2000, 31000, 31999, math.MaxInt16} {
					c := claim(fmt.Sprint("version-", version))
					c.HashVersion = version
					complete(t, f, c, c.Scope.Key)
					wantRecord(t, f.Store, c, recorded(c, success))
					k := leased(fmt.Sprint("version-leased-", version))
					k.HashVersion = version
					l := take(t, f.Store, k)
					if rec := look(t, f.Store, k); rec == nil || rec.HashVersion != version {
						t.Errorf("the record in progress is %s, want the hash version %d", show(rec), version)
					}
					if err := l.Complete(within(t), success); err != nil {
						t.Fatalf("Complete: %v", err)
					}
					wantRecord(t, f.Store, k, recorded(k, success))
				}
			}},
		{"ResultAboveTheLimitIsGivenOnceAndTheWorkIsNotDoneAgain_R12_BR38_D16",
			"A report of many megabytes would bloat the table, and one that is not recorded at all would be made again with every retry.",
			func(t *testing.T, f Fixture) {
				tooLarge[small](t, f, "atomic")
				tooLarge[smallLeased](t, f, "leased")
				wantDatabase(t, f, 2, "atomic", "leased")
			}},
		{"SealedResultIsReplayedAndCannotBeReadInTheStore_R13_BR57",
			"A token in an answer lies in the table, its backups and its replicas for the whole retention; sealed, nobody can use it there.",
			func(t *testing.T, f Fixture) {
				sealedAway[sealing](t, f, "atomic", false)
				sealedAway[sealingLeased](t, f, "leased", false)
				sealedAway[sealing](t, f, "atomic-refusal", true)
				sealedAway[sealingLeased](t, f, "leased-refusal", true)
			}},
		{"SecretOfTheFingerprintIsRotated_F19",
			"The secret is changed while orders are retried: an honest retry is no conflict on either side of the deployment, and another PIN is one.",
			func(t *testing.T, f Fixture) {
				rotates[defaults](t, f, "atomic", false)
				rotates[defaults](t, f, "atomic-failed", true)
				rotates[hurried](t, f, "leased", false)
				rotates[hurried](t, f, "leased-failed", true)
			}},
	}
}
