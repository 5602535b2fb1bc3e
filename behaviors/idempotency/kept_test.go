package idempotency_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/memstore"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
)

// What a record keeps of a result: sizes, secrets, and versions of the contract.

// issue is a command that gives an R, under the policy P.
type issue[P hasPolicy, R any] struct {
	Case string `json:"case"`
}

func (issue[P, R]) CommandName() bus.Name[R] { return "test.issue" }
func (issue[P, R]) Idempotency() idempotency.Policy {
	var p P
	return p.policy()
}

type (
	small         struct{} // results of at most 100 bytes
	smallLeased   struct{}
	boundless     struct{}
	omits         struct{}
	omitsLeased   struct{}
	seals         struct{}
	sealsLeased   struct{}
	sealsSmall    struct{}
	keeps3        struct{} // version 3 of the contract
	seals3        struct{}
	patientOmits  struct{} // duplicates wait for long
	patientLeased struct{}
)

func (small) policy() idempotency.Policy { return idempotency.Policy{ResultLimit: 100} }
func (smallLeased) policy() idempotency.Policy {
	return idempotency.Policy{Mode: idempotency.Leased, ResultLimit: 100}
}
func (boundless) policy() idempotency.Policy { return idempotency.Policy{ResultLimit: -1} }
func (omits) policy() idempotency.Policy     { return idempotency.Policy{Results: idempotency.OmitResult} }
func (omitsLeased) policy() idempotency.Policy {
	return idempotency.Policy{Mode: idempotency.Leased, Results: idempotency.OmitResult}
}
func (seals) policy() idempotency.Policy { return idempotency.Policy{Results: idempotency.SealResult} }
func (sealsLeased) policy() idempotency.Policy {
	return idempotency.Policy{Mode: idempotency.Leased, Results: idempotency.SealResult}
}

func (sealsSmall) policy() idempotency.Policy {
	return idempotency.Policy{Results: idempotency.SealResult, ResultLimit: 100}
}
func (keeps3) policy() idempotency.Policy { return idempotency.Policy{Version: 3} }
func (seals3) policy() idempotency.Policy {
	return idempotency.Policy{Version: 3, Results: idempotency.SealResult}
}

func (patientOmits) policy() idempotency.Policy {
	return idempotency.Policy{Results: idempotency.OmitResult, Wait: 30 * time.Second}
}

func (patientLeased) policy() idempotency.Policy {
	return idempotency.Policy{Mode: idempotency.Leased, Results: idempotency.OmitResult, Wait: 30 * time.Second}
}

// maker is a handler that writes a row, sets a reference and ends as end says, and counts its runs.
type maker[R any] struct {
	b    *bench
	runs int
	end  func(run int) (R, error)
}

func issues[P hasPolicy, R any](t testing.TB, m *maker[R], cfg idempotency.Config) bus.Handler[issue[P, R], R] {
	t.Helper()
	cfg.Store = m.b.stub
	return serve(t, cfg, func(ctx context.Context, c issue[P, R]) (none R, _ error) {
		m.runs++
		requestctx.From(ctx).SetExternalRef("ref-1")
		if err := m.b.mem.InTx(ctx, func(ctx context.Context) error { return m.b.mem.Insert(ctx, c.Case) }); err != nil {
			return none, err
		}
		return m.end(m.runs)
	})
}

// want demands runs of the handler and rows that are committed.
func (m *maker[R]) want(t testing.TB, runs, rows int) {
	t.Helper()
	if n := len(m.b.mem.Rows()); m.runs != runs || n != rows {
		t.Errorf("%d runs and %d rows, want %d and %d", m.runs, n, runs, rows)
	}
}

// wantGone demands that a replay says that there is no result any more.
func wantGone(t *testing.T, out requestctx.Outcome, err error, state requestctx.State) {
	t.Helper()
	e := wantError[*idempotency.ResultUnavailableError](t, err, out, state)
	if e.ExternalRef != "ref-1" || e.Err != nil || e.Code() != "IDEMPOTENCY_RESULT_UNAVAILABLE" {
		t.Errorf("the error is %+v", e)
	}
}

// wantUndecodable demands a stored result that this version cannot read.
func wantUndecodable(t *testing.T, out requestctx.Outcome, err error) error {
	t.Helper()
	e := wantError[*idempotency.ResultError](t, err, out, requestctx.StateRefused)
	if !e.Stored || e.Code() != "IDEMPOTENCY_RESULT_UNDECODABLE" || out.OriginalRequestID == "" {
		t.Errorf("the error is %+v with %+v", e, out)
	}
	return e.Err
}

// sizes runs a command whose result is a text, and whose JSON has size bytes.
func sizes[P hasPolicy](t *testing.T, size int, kept bool) {
	t.Helper()
	m := &maker[string]{b: newBench(), end: func(run int) (string, error) { return strings.Repeat(fmt.Sprint(run), size-2), nil }}
	here, elsewhere := issues[P](t, m, idempotency.Config{}), issues[P](t, m, idempotency.Config{})
	v, cmd := keyed(t, "key-00000001"), issue[P, string]{Case: "a"}
	first, out, err := call(t.Context(), here, v, cmd)
	if err != nil || first != strings.Repeat("1", size-2) {
		t.Fatalf("%d bytes: the first caller gets %d characters and %v", size, len(first), err)
	}
	wantState(t, out, requestctx.StateExecuted)
	for _, send := range []bus.Handler[issue[P, string], string]{here, elsewhere, elsewhere} {
		res, out, err := call(t.Context(), send, v, cmd)
		if !kept {
			wantGone(t, out, err, requestctx.StateReplayed)
			continue
		}
		if wantState(t, out, requestctx.StateReplayed); err != nil || res != first {
			t.Errorf("%d bytes: a replay gives %d characters and %v", size, len(res), err)
		}
	}
	m.want(t, 1, 1)
	rec := m.b.only(t)
	if kept != (rec.ResultType == "result/0") || kept != (len(rec.Result) == size) || !kept && (rec.ResultType != "omitted" || rec.Result != nil) || rec.State != idempotency.Completed {
		t.Errorf("%d bytes: the record is %s and holds %d bytes of %s", size, rec.State, len(rec.Result), rec.ResultType)
	}
	if _, out, err := call(t.Context(), here, v, issue[P, string]{Case: "b"}); true {
		wantError[*idempotency.ConflictError](t, err, out, requestctx.StateConflict)
	}
}

func TestR12_ResultAboveTheLimitIsGivenOnceAndTheWorkIsNotDoneAgain_BR38_D16(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		size int
		kept bool
	}{{1 << 10, true}, {256 << 10, true}, {256<<10 + 1, false}, {300 << 10, false}, {5 << 20, false}} {
		sizes[atomically](t, tc.size, tc.kept)
		sizes[leased](t, tc.size, tc.kept)
		sizes[boundless](t, tc.size, true)
	}
	for size, kept := range map[int]bool{100: true, 101: false} {
		sizes[small](t, size, kept)
		sizes[smallLeased](t, size, kept)
	}
}

// refusedWith is a refusal with details.
type refusedWith struct {
	text string
	data any
}

func (e refusedWith) Error() string    { return e.text }
func (refusedWith) Code() string       { return "NO_STOCK" }
func (e refusedWith) RefusalData() any { return e.data }

// refusals runs a command that ends with a final refusal, and demands what the first caller and what a replay gets.
func refusals[P hasPolicy](t *testing.T, cfg idempotency.Config, refusal refusedWith, text, data string) *bench {
	t.Helper()
	m := &maker[string]{b: newBench(), end: func(int) (string, error) { return "", idempotency.Final(refusal) }}
	here, elsewhere := issues[P](t, m, cfg), issues[P](t, m, cfg)
	v, cmd := keyed(t, "key-00000001"), issue[P, string]{Case: "a"}
	full, err := json.Marshal(refusal.data)
	if err != nil {
		t.Fatal(err)
	}
	for i, send := range []bus.Handler[issue[P, string], string]{here, here, elsewhere} {
		state, wantText, wantData := requestctx.StateReplayed, text, data
		if i == 0 {
			state, wantText, wantData = requestctx.StateExecuted, refusal.text, string(full)
		}
		_, out, err := call(t.Context(), send, v, cmd)
		e := wantError[*idempotency.RefusedError](t, err, out, state)
		if e.RefusalCode != "NO_STOCK" || e.Message != wantText || string(e.Data) != wantData || e.Command != "test.issue" {
			t.Errorf("%T, call %d: got %d characters and the data %.80q, want %d and %.80q", cmd, i+1, len(e.Message), e.Data, len(wantText), wantData)
		}
	}
	m.want(t, 1, 0)
	if rec := m.b.only(t); rec.ResultType != "refusal/1" || rec.Outcome != idempotency.Refusal {
		t.Errorf("the record is %+v", rec)
	}
	return m.b
}

func TestR12_RefusalAboveTheLimitIsKeptWithoutItsDetails_BR38(t *testing.T) {
	t.Parallel()
	details := map[string]string{"item": "x-1"}
	for name, tc := range map[string]struct {
		refusal    refusedWith
		text, data string
	}{
		"fits":               {refusedWith{"sold out", details}, "sold out", `{"item":"x-1"}`},
		"large details":      {refusedWith{"sold out", strings.Repeat("x", 200)}, "sold out", ""},
		"a large message":    {refusedWith{strings.Repeat("é", 100), details}, strings.Repeat("é", 25), ""},
		"a message in runes": {refusedWith{"x" + strings.Repeat("é", 75), nil}, "x" + strings.Repeat("é", 18), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, b := range []*bench{
				refusals[small](t, idempotency.Config{}, tc.refusal, tc.text, tc.data),
				refusals[smallLeased](t, idempotency.Config{}, tc.refusal, tc.text, tc.data),
			} {
				if rec := b.only(t); len(rec.Result) > 100 {
					t.Errorf("the record holds %d bytes: %s", len(rec.Result), rec.Result)
				}
			}
		})
	}
}

// token is a one-time secret.
type token struct {
	ID    int    `json:"id"`
	Token string `json:"token"`
}

const oneTime = "tok_9f31c0ffee"

func givesToken(run int) (token, error) { return token{7, fmt.Sprint(oneTime, "-", run)}, nil }

// wantNoSecret demands that nothing in the store holds the secret.
func wantNoSecret(t *testing.T, b *bench) {
	t.Helper()
	for _, rec := range b.mem.Records() {
		if bytes.Contains(rec.Result, []byte(oneTime)) || strings.Contains(fmt.Sprintf("%+v", rec), oneTime) {
			t.Errorf("a record holds the secret: %s %s", rec.ResultType, rec.Result)
		}
	}
}

// omitted runs a command that keeps nothing of its result.
func omitted[P hasPolicy](t *testing.T) {
	t.Helper()
	m := &maker[token]{b: newBench(), end: givesToken}
	here, elsewhere := issues[P](t, m, idempotency.Config{}), issues[P](t, m, idempotency.Config{})
	v, cmd := keyed(t, "key-00000001"), issue[P, token]{Case: "a"}
	if res, out, err := call(t.Context(), here, v, cmd); err != nil || res != (token{7, oneTime + "-1"}) || out.State != requestctx.StateExecuted {
		t.Fatal(res, out, err)
	}
	for _, send := range []bus.Handler[issue[P, token], token]{here, elsewhere, elsewhere} {
		_, out, err := call(t.Context(), send, v, cmd)
		wantGone(t, out, err, requestctx.StateReplayed)
	}
	m.want(t, 1, 1)
	wantNoSecret(t, m.b)
	if rec := m.b.only(t); rec.ResultType != "omitted" || rec.Result != nil || rec.State != idempotency.Completed || rec.ExternalRef != "ref-1" {
		t.Errorf("the record is %+v", rec)
	}
	op, err := idempotency.FindOperation(asCaller(t, v), m.b.mem, m.b.only(t).ID.Operation())
	if err != nil || op.State != idempotency.OperationGone || op.Result != nil || op.ExternalRef != "ref-1" {
		t.Errorf("the operation is %+v, %v", op, err)
	}
}

func asCaller(t *testing.T, v requestctx.Values) context.Context {
	t.Helper()
	ctx, _ := requestctx.New(t.Context(), v)
	return ctx
}

func TestR13_OneTimeSecretIsGivenOnceAndNotStored_BR57(t *testing.T) {
	t.Parallel()
	omitted[omits](t)
	omitted[omitsLeased](t)
	secret := refusedWith{"sold out", token{1, oneTime}}
	wantNoSecret(t, refusals[omits](t, idempotency.Config{}, secret, "sold out", ""))
	wantNoSecret(t, refusals[omitsLeased](t, idempotency.Config{}, secret, "sold out", ""))
}

// waiting has a second caller wait in the same process for a first one whose result is not kept.
func waiting[P hasPolicy](t *testing.T) {
	t.Helper()
	inside, goOn := make(chan struct{}), make(chan struct{})
	m := &maker[token]{b: newBench(), end: func(run int) (token, error) {
		close(inside)
		<-goOn
		return givesToken(run)
	}}
	send, v := issues[P](t, m, idempotency.Config{}), keyed(t, "key-00000001")
	first := make(chan error, 1)
	go func() {
		_, _, err := call(context.Background(), send, v, issue[P, token]{})
		first <- err
	}()
	<-inside
	second := make(chan error, 1)
	go func() {
		_, _, err := call(context.Background(), send, v, issue[P, token]{})
		second <- err
	}()
	close(goOn)
	if err := <-first; err != nil {
		t.Error(err)
	}
	var gone *idempotency.ResultUnavailableError
	if err := <-second; !errors.As(err, &gone) {
		t.Errorf("the second caller gets %v", err)
	}
	m.want(t, 1, 1)
}

func TestR13_WhoHasWaitedForTheFirstCallerGetsNoneOfItsSecret_BR57(t *testing.T) {
	t.Parallel()
	waiting[patientOmits](t)
	waiting[patientLeased](t)
}

func TestR13_LostAnswerOfTheCommitDoesNotLoseTheSecret_X06(t *testing.T) {
	t.Parallel()
	m := &maker[token]{b: newBench(), end: givesToken}
	m.b.stub.complete = func(_ context.Context, n int, complete func() error) error {
		return errors.Join(idempotency.ErrCommitUnknown, complete()) // it was committed
	}
	send, v := issues[omits](t, m, idempotency.Config{}), keyed(t, "key-00000001")
	if res, out, err := call(t.Context(), send, v, issue[omits, token]{}); err != nil || res.Token != oneTime+"-1" || out.State != requestctx.StateExecuted {
		t.Error(res, out, err)
	}
	m.want(t, 1, 1)
}

func TestR13_SecretOfARunThatWasNotCommittedIsNotGiven_X08(t *testing.T) {
	t.Parallel()
	m := &maker[token]{b: newBench(), end: givesToken}
	m.b.stub.Store = memstore.NewWithConfig(memstore.Config{NoHint: true, Share: m.b.mem})
	var late func() error
	m.b.stub.complete = func(_ context.Context, n int, complete func() error) error {
		if n == 1 {
			late = complete
			return idempotency.ErrCommitUnknown
		}
		if err := late(); err != nil { // it arrives while the second try is at work, whose token is worth nothing
			t.Error(err)
		}
		return complete()
	}
	send, v := issues[omits](t, m, idempotency.Config{}), keyed(t, "key-00000001")
	res, out, err := call(t.Context(), send, v, issue[omits, token]{})
	wantGone(t, out, err, requestctx.StateExecuted)
	if res != (token{}) {
		t.Errorf("the caller gets %v", res)
	}
	m.want(t, 2, 1)
}

// sealerOf makes a sealer of keys that are one byte each, repeated.
func sealerOf(t testing.TB, keys ...byte) idempotency.Sealer {
	t.Helper()
	var all [][]byte
	for _, k := range keys {
		all = append(all, bytes.Repeat([]byte{k}, 32))
	}
	s, err := idempotency.NewSealer(all...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// sealedResults runs a command whose result is stored encrypted.
func sealedResults[P hasPolicy](t *testing.T) {
	t.Helper()
	m := &maker[token]{b: newBench(), end: givesToken}
	cfg := idempotency.Config{Sealer: sealerOf(t, 1)}
	here, elsewhere := issues[P](t, m, cfg), issues[P](t, m, cfg)
	v, cmd := keyed(t, "key-00000001"), issue[P, token]{Case: "a"}
	for i, send := range []bus.Handler[issue[P, token], token]{here, here, elsewhere, elsewhere} {
		res, out, err := call(t.Context(), send, v, cmd)
		if err != nil || res != (token{7, oneTime + "-1"}) || out.Replayed != (i > 0) {
			t.Fatal(i, res, out, err)
		}
	}
	m.want(t, 1, 1)
	wantNoSecret(t, m.b)
	rec := m.b.only(t)
	if rec.ResultType != "sealed/0" || len(rec.Result) == 0 {
		t.Errorf("the record is %+v", rec)
	}
	op, err := idempotency.FindOperation(asCaller(t, v), m.b.mem, rec.ID.Operation())
	if err != nil || op.State != idempotency.OperationCompleted || op.Result != nil || !op.Sealed {
		t.Errorf("the operation is %+v, %v", op, err)
	}
}

func TestR13_SealedResultIsReplayedAndNotReadableInTheStore_BR57(t *testing.T) {
	t.Parallel()
	sealedResults[seals](t)
	sealedResults[sealsLeased](t)
	cfg := idempotency.Config{Sealer: sealerOf(t, 1)}
	secret := refusedWith{"sold out", token{1, oneTime}}
	for _, b := range []*bench{
		refusals[seals](t, cfg, secret, "sold out", `{"id":1,"token":"`+oneTime+`"}`),
		refusals[sealsLeased](t, cfg, secret, "sold out", `{"id":1,"token":"`+oneTime+`"}`),
		refusals[sealsSmall](t, cfg, refusedWith{"sold out", token{1, oneTime + strings.Repeat("x", 100)}}, "sold out", ""),
	} {
		wantNoSecret(t, b)
		rec := b.only(t)
		op, err := idempotency.FindOperation(asCaller(t, keyed(t, "key-00000001")), b.mem, rec.ID.Operation())
		if err != nil || op.State != idempotency.OperationRefused || op.Refusal.RefusalCode != "NO_STOCK" || op.Refusal.Message != "sold out" || op.Refusal.Data != nil {
			t.Errorf("the operation is %+v, %v", op, err)
		}
	}
	m := &maker[token]{b: newBench(), end: func(int) (token, error) { return token{7, oneTime + strings.Repeat("x", 100)}, nil }}
	send, v := issues[sealsSmall](t, m, cfg), keyed(t, "key-00000001")
	if res, _, err := call(t.Context(), send, v, issue[sealsSmall, token]{}); err != nil || len(res.Token) != len(oneTime)+100 {
		t.Error(res, err)
	}
	_, out, err := call(t.Context(), send, v, issue[sealsSmall, token]{})
	wantGone(t, out, err, requestctx.StateReplayed)
}

func TestR13_KeyOfTheSealerIsRotated(t *testing.T) {
	t.Parallel()
	m := &maker[token]{b: newBench(), end: givesToken}
	cmd := issue[seals, token]{}
	with := func(keys ...byte) bus.Handler[issue[seals, token], token] {
		return issues[seals](t, m, idempotency.Config{Sealer: sealerOf(t, keys...)})
	}
	before, first, second, after := with(1), with(1, 2), with(2, 1), with(2)
	old, young := keyed(t, "key-00000001"), keyed(t, "key-00000002")
	if _, _, err := call(t.Context(), before, old, cmd); err != nil {
		t.Fatal(err)
	}
	if _, _, err := call(t.Context(), second, young, cmd); err != nil {
		t.Fatal(err)
	}
	for i, send := range []bus.Handler[issue[seals, token], token]{first, second} {
		for _, v := range []requestctx.Values{old, young} {
			if _, out, err := call(t.Context(), send, v, cmd); err != nil || !out.Replayed {
				t.Error(i, out, err)
			}
		}
	}
	if _, out, err := call(t.Context(), after, young, cmd); err != nil || !out.Replayed {
		t.Error(out, err)
	}
	for send, v := range map[*bus.Handler[issue[seals, token], token]]requestctx.Values{&after: old, &before: young} {
		_, out, err := call(t.Context(), *send, v, cmd)
		wantUndecodable(t, out, err)
	}
	m.want(t, 2, 2)
}

// swap puts what one record holds into another.
func swap(t *testing.T, b *bench, from, to requestctx.Values, change func(rec, other *idempotency.Record)) {
	t.Helper()
	var pair [2]idempotency.Record
	for _, rec := range b.mem.Records() {
		switch rec.Scope.Key {
		case from.Key.String():
			pair[0] = rec
		case to.Key.String():
			pair[1] = rec
		}
	}
	change(&pair[1], &pair[0])
	b.mem.Put(pair[1].Scope.ID(), pair[1])
}

func TestR13_SealedResultOfOneRecordCannotBePassedOffAsAnothers(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(rec, other *idempotency.Record){
		"another key's result":   func(rec, other *idempotency.Record) { rec.Result = other.Result },
		"and its attempt":        func(rec, other *idempotency.Record) { rec.Result, rec.Attempt = other.Result, other.Attempt },
		"another life's result":  func(rec, _ *idempotency.Record) { rec.Attempt[0]++ },
		"another version's":      func(rec, _ *idempotency.Record) { rec.ResultType = "sealed/1" },
		"a bit is changed":       func(rec, _ *idempotency.Record) { rec.Result[len(rec.Result)-1] ^= 1 },
		"a bit of the nonce":     func(rec, _ *idempotency.Record) { rec.Result[8] ^= 1 },
		"cut off":                func(rec, _ *idempotency.Record) { rec.Result = rec.Result[:10] },
		"only the key's name":    func(rec, _ *idempotency.Record) { rec.Result = rec.Result[:8] },
		"nothing":                func(rec, _ *idempotency.Record) { rec.Result = nil },
		"not sealed at all":      func(rec, _ *idempotency.Record) { rec.Result = []byte(`{"id":7}`) },
		"sealed, called a plain": func(rec, _ *idempotency.Record) { rec.ResultType = "result/0" },
		"an unknown form":        func(rec, _ *idempotency.Record) { rec.ResultType = "folded/0" },
		"a form without number":  func(rec, _ *idempotency.Record) { rec.ResultType = "sealed" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := &maker[token]{b: newBench(), end: givesToken}
			send, cmd := issues[seals](t, m, idempotency.Config{Sealer: sealerOf(t, 1)}), issue[seals, token]{}
			a, b := keyed(t, "key-00000001"), keyed(t, "key-00000002")
			for _, v := range []requestctx.Values{a, b} {
				if _, _, err := call(t.Context(), send, v, cmd); err != nil {
					t.Fatal(err)
				}
			}
			swap(t, m.b, a, b, change)
			res, out, err := call(t.Context(), send, b, cmd)
			if wantUndecodable(t, out, err); res != (token{}) {
				t.Errorf("the caller gets %v", res)
			}
			m.want(t, 2, 2)
		})
	}
	// The details of a refusal are bound as well.
	m := &maker[token]{b: newBench(), end: func(int) (token, error) { return token{}, idempotency.Final(refusedWith{"no", token{1, oneTime}}) }}
	send, cmd := issues[seals](t, m, idempotency.Config{Sealer: sealerOf(t, 1)}), issue[seals, token]{}
	a, b := keyed(t, "key-00000001"), keyed(t, "key-00000002")
	for _, v := range []requestctx.Values{a, b} {
		_, out, err := call(t.Context(), send, v, cmd)
		wantError[*idempotency.RefusedError](t, err, out, requestctx.StateExecuted)
	}
	swap(t, m.b, a, b, func(rec, other *idempotency.Record) { rec.Result = other.Result })
	_, out, err := call(t.Context(), send, b, cmd)
	wantUndecodable(t, out, err)
}

func TestR13_CommandThatChangesWhatItKeepsReplaysItsOldRecords_D08(t *testing.T) {
	t.Parallel()
	m := &maker[token]{b: newBench(), end: givesToken}
	cfg := idempotency.Config{Sealer: sealerOf(t, 1)}
	keeping, sealing, omitting := issues[atomically](t, m, cfg), issues[seals](t, m, cfg), issues[omits](t, m, cfg)
	wasKept, wasSealed, wasOmitted := keyed(t, "key-00000001"), keyed(t, "key-00000002"), keyed(t, "key-00000003")
	for _, err := range []error{
		second(call(t.Context(), keeping, wasKept, issue[atomically, token]{})),
		second(call(t.Context(), sealing, wasSealed, issue[seals, token]{})),
		second(call(t.Context(), omitting, wasOmitted, issue[omits, token]{})),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, v := range []requestctx.Values{wasKept, wasSealed} {
		for _, err := range []error{
			second(call(t.Context(), keeping, v, issue[atomically, token]{})),
			second(call(t.Context(), sealing, v, issue[seals, token]{})),
			second(call(t.Context(), omitting, v, issue[omits, token]{})),
		} {
			if err != nil {
				t.Error(err)
			}
		}
	}
	_, out, err := call(t.Context(), keeping, wasOmitted, issue[atomically, token]{})
	wantGone(t, out, err, requestctx.StateReplayed)
	// The sealer has to stay as long as there are records that need it.
	_, out, err = call(t.Context(), issues[atomically](t, m, idempotency.Config{}), wasSealed, issue[atomically, token]{})
	if reason := wantUndecodable(t, out, err); !strings.Contains(reason.Error(), "no sealer is set") {
		t.Errorf("the reason is %v", reason)
	}
	m.want(t, 3, 3)
}

func second[R any](_ R, _ requestctx.Outcome, err error) error { return err }

// moodySealer is a sealer of the application's that does not do what it should.
type moodySealer struct {
	idempotency.Sealer
	seal, open func() error
}

func (s *moodySealer) Seal(plain, binding []byte) ([]byte, error) {
	if s.seal != nil {
		return nil, s.seal()
	}
	return s.Sealer.Seal(plain, binding)
}

func (s *moodySealer) Open(sealed, binding []byte) ([]byte, error) {
	if s.open != nil {
		return nil, s.open()
	}
	return s.Sealer.Open(sealed, binding)
}

func TestR13_SealerThatFailsIsLikeAResultThatCannotBeStored_R14_R15(t *testing.T) {
	t.Parallel()
	for name, fails := range map[string]func() error{
		"says no": func() error { return errPaper },
		"panics":  func() error { panic("sealer") },
	} {
		m := &maker[token]{b: newBench(), end: givesToken}
		s := &moodySealer{Sealer: sealerOf(t, 1), seal: fails}
		send, v, cmd := issues[seals](t, m, idempotency.Config{Sealer: s}), keyed(t, "key-00000001"), issue[seals, token]{}
		_, out, err := call(t.Context(), send, v, cmd)
		if e := wantError[*idempotency.ResultError](t, err, out, requestctx.StateFreed); e.Stored || e.Err == nil {
			t.Errorf("%s: %+v", name, e)
		}
		m.want(t, 1, 0)
		m.end = func(int) (token, error) { return token{}, idempotency.Final(refusedWith{"no", token{1, oneTime}}) }
		_, out, err = call(t.Context(), send, v, cmd)
		wantError[*idempotency.ResultError](t, err, out, requestctx.StateFreed)
		s.seal, m.end = nil, givesToken
		if _, _, err := call(t.Context(), send, v, cmd); err != nil {
			t.Error(name, err)
		}
		s.open = fails
		_, out, err = call(t.Context(), send, v, cmd)
		wantUndecodable(t, out, err)
		s.open = nil
		if _, out, err := call(t.Context(), send, v, cmd); err != nil || !out.Replayed {
			t.Error(name, out, err)
		}
		m.want(t, 3, 1)

		// In Leased, what was done outside stays done.
		b := newBench()
		runs := 0
		leased := serve(t, idempotency.Config{Store: b.stub, Sealer: &moodySealer{Sealer: sealerOf(t, 1), seal: fails}}, func(ctx context.Context, _ issue[sealsLeased, token]) (token, error) {
			runs++
			requestctx.From(ctx).SetExternalRef("ref-1")
			return token{1, oneTime}, goesOutside(ctx, 1)
		})
		_, out, err = call(t.Context(), leased, v, issue[sealsLeased, token]{})
		if e := wantError[*idempotency.ResultUnavailableError](t, err, out, requestctx.StateExecuted); e.Err == nil {
			t.Errorf("%s: %+v", name, e)
		}
		_, out, err = call(t.Context(), leased, v, issue[sealsLeased, token]{})
		wantGone(t, out, err, requestctx.StateReplayed)
		if wantNoSecret(t, b); runs != 1 {
			t.Errorf("%s: %d runs", name, runs)
		}
	}
}

// Results of another version of the contract.

type receiptV1 struct {
	Number int `json:"number"`
}

// receiptV3 has a text for a number, and reads what version 0 has stored.
type receiptV3 struct {
	Number string `json:"number"`
	asked  int
}

func (r *receiptV3) ReadResult(version int, stored []byte) error {
	switch version {
	case 0:
		var old receiptV1
		if err := json.Unmarshal(stored, &old); err != nil {
			return err
		}
		switch old.Number {
		case 400:
			return errPaper
		case 500:
			panic("reader")
		}
		r.Number, r.asked = fmt.Sprint("no. ", old.Number), r.asked+1
		return nil
	case 4:
		return json.Unmarshal(bytes.ReplaceAll(stored, []byte("nr"), []byte("number")), r)
	}
	return fmt.Errorf("version %d is not known", version)
}

// lenient is another shape of the same result that reads nothing but JSON.
type lenient struct {
	Number int    `json:"number"`
	Note   string `json:"note"`
}

func upcasts[P hasPolicy, R any](t *testing.T, b *bench) bus.Handler[issue[P, R], R] {
	t.Helper()
	return issues[P](t, &maker[R]{b: b, end: func(int) (none R, _ error) {
		t.Error("the handler ran")
		return none, nil
	}}, idempotency.Config{Sealer: sealerOf(t, 1)})
}

func TestR15_ResultOfAnOlderVersionIsReadByItsReader_R16_D08(t *testing.T) {
	t.Parallel()
	cfg := idempotency.Config{Sealer: sealerOf(t, 1)}
	for form, old := range map[string]func(b *bench, v requestctx.Values, number int) error{
		"kept": func(b *bench, v requestctx.Values, number int) error {
			m := &maker[receiptV1]{b: b, end: func(int) (receiptV1, error) { return receiptV1{number}, nil }}
			return second(call(t.Context(), issues[atomically](t, m, cfg), v, issue[atomically, receiptV1]{}))
		},
		"sealed": func(b *bench, v requestctx.Values, number int) error {
			m := &maker[receiptV1]{b: b, end: func(int) (receiptV1, error) { return receiptV1{number}, nil }}
			return second(call(t.Context(), issues[seals](t, m, cfg), v, issue[seals, receiptV1]{}))
		},
	} {
		t.Run(form, func(t *testing.T) {
			t.Parallel()
			b := newBench()
			good, bad, worse := keyed(t, "key-00000001"), keyed(t, "key-00000002"), keyed(t, "key-00000003")
			for v, number := range map[*requestctx.Values]int{&good: 7, &bad: 400, &worse: 500} {
				if err := old(b, *v, number); err != nil {
					t.Fatal(err)
				}
			}
			byValue, byPointer, sealing := upcasts[keeps3, receiptV3](t, b), upcasts[keeps3, *receiptV3](t, b), upcasts[seals3, receiptV3](t, b)
			if res, out, err := call(t.Context(), byValue, good, issue[keeps3, receiptV3]{}); err != nil || !out.Replayed || res != (receiptV3{"no. 7", 1}) {
				t.Error(res, out, err)
			}
			if res, out, err := call(t.Context(), byPointer, good, issue[keeps3, *receiptV3]{}); err != nil || !out.Replayed || *res != (receiptV3{"no. 7", 1}) {
				t.Error(res, out, err)
			}
			if res, _, err := call(t.Context(), sealing, good, issue[seals3, receiptV3]{}); err != nil || res != (receiptV3{"no. 7", 1}) {
				t.Error(res, err)
			}
			if res, _, err := call(t.Context(), upcasts[keeps3, lenient](t, b), good, issue[keeps3, lenient]{}); err != nil || res != (lenient{Number: 7}) {
				t.Error(res, err)
			}
			res, out, err := call(t.Context(), byValue, bad, issue[keeps3, receiptV3]{})
			if reason := wantUndecodable(t, out, err); !errors.Is(reason, errPaper) || res != (receiptV3{}) {
				t.Error(res, reason)
			}
			for _, err := range []error{
				second(call(t.Context(), byValue, worse, issue[keeps3, receiptV3]{})),
				second(call(t.Context(), byPointer, worse, issue[keeps3, *receiptV3]{})),
			} {
				if bus.CodeOf(err) != "IDEMPOTENCY_RESULT_UNDECODABLE" {
					t.Error(err)
				}
			}
			// The record is as it was, so a version that can read it gives it to the same key.
			if res, _, err := call(t.Context(), upcasts[keeps3, lenient](t, b), bad, issue[keeps3, lenient]{}); err != nil || res.Number != 400 {
				t.Error(res, err)
			}
		})
	}
}

func TestR15_ReaderIsAskedForOtherVersionsAlone(t *testing.T) {
	t.Parallel()
	b := newBench()
	end := func(int) (receiptV3, error) { return receiptV3{Number: "new"}, nil }
	same := issues[keeps3](t, &maker[receiptV3]{b: b, end: end}, idempotency.Config{})
	v := keyed(t, "key-00000001")
	for range 2 {
		if res, _, err := call(t.Context(), same, v, issue[keeps3, receiptV3]{}); err != nil || res != (receiptV3{Number: "new"}) {
			t.Error(res, err)
		}
	}
	// A deployment was rolled back: the record is of a higher version, which the reader knows or does not.
	rec := b.only(t).Record
	for _, tc := range []struct{ form, stored, want string }{
		{"result/4", `{"nr":"newer"}`, "newer"},
		{"result/5", `{"number":"newest"}`, ""},
		{"folded/3", `{"number":"of another form"}`, ""},
		{"result", `{"number":"of no version"}`, ""},
	} {
		rec.ResultType, rec.Result = tc.form, []byte(tc.stored)
		b.mem.Put(rec.Scope.ID(), rec)
		res, out, err := call(t.Context(), same, v, issue[keeps3, receiptV3]{})
		if tc.want == "" {
			wantUndecodable(t, out, err)
			continue
		}
		if err != nil || res.Number != tc.want {
			t.Error(tc.form, res, err)
		}
	}
}

func TestR15_NullOfAnOlderVersionIsNil_R10(t *testing.T) {
	t.Parallel()
	b := newBench()
	old := issues[atomically](t, &maker[*receiptV3]{b: b, end: func(int) (*receiptV3, error) { return nil, nil }}, idempotency.Config{})
	v := keyed(t, "key-00000001")
	if res, _, err := call(t.Context(), old, v, issue[atomically, *receiptV3]{}); err != nil || res != nil {
		t.Fatal(res, err)
	}
	if res, out, err := call(t.Context(), upcasts[keeps3, *receiptV3](t, b), v, issue[keeps3, *receiptV3]{}); err != nil || !out.Replayed || res != nil {
		t.Error(res, out, err)
	}
}
