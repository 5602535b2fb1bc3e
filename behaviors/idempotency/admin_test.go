package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/memstore"
	"github.com/tekil-go/tekil/requestctx"
)

// desk is an Admin and what it has logged.
type desk struct {
	*idempotency.Admin
	logs *observer.ObservedLogs
}

func newDesk(t *testing.T, store idempotency.Store) desk {
	t.Helper()
	core, logs := observer.New(zapcore.DebugLevel)
	admin, err := idempotency.NewAdmin(idempotency.AdminConfig{Store: store, Logger: zap.New(core)})
	if err != nil {
		t.Fatal(err)
	}
	return desk{admin, logs}
}

var byAyse = idempotency.Intervention{By: "ayse", Reason: "ticket 4711"}

// wantLine demands one line, and gives its fields.
func (d desk) wantLine(t *testing.T, level zapcore.Level, action string) map[string]any {
	t.Helper()
	all := d.logs.TakeAll()
	if len(all) != 1 || all[0].Level != level {
		t.Fatalf("the lines are %+v", all)
	}
	fields := all[0].ContextMap()
	if fields["action"] != action || fields["by"] != "ayse" || fields["reason"] != "ticket 4711" {
		t.Errorf("the line is %v", fields)
	}
	return fields
}

func (d desk) wantRefused(t *testing.T, err error, action, reason string) {
	t.Helper()
	var e *idempotency.AdminError
	if !errors.As(err, &e) || e.Action != action || !strings.Contains(e.Error(), reason) || e.Code() != "IDEMPOTENCY_ADMIN_REFUSED" {
		t.Errorf("the error is %v, want one that says %q", err, reason)
	}
	if lines := d.logs.TakeAll(); len(lines) != 0 {
		t.Errorf("what was not done is logged: %+v", lines)
	}
}

func TestL22_ReleaseFreesADeadKeyAndLeavesALine(t *testing.T) {
	t.Parallel()
	for _, state := range []idempotency.RecordState{idempotency.InProgress, idempotency.Failed} {
		b := newBench()
		d := newDesk(t, b.stub)
		v := keyed(t, "key-00000001")
		ended[hurried](t, b, v, state)
		b.mem.Age(idempotency.DefaultLease)
		before := b.only(t)
		if err := d.Release(t.Context(), before.ID, byAyse); err != nil {
			t.Fatal(err)
		}
		line := d.wantLine(t, zapcore.WarnLevel, "release")
		for name, want := range map[string]any{
			"tenant": "t", "client": "c", "operation": "POST /pay test.charge", "key": "key-00000001", "state": string(state), "attempts": int64(1), "live_lease": false,
		} {
			if line[name] != want {
				t.Errorf("the line says %s = %v, want %v", name, line[name], want)
			}
		}
		after := b.only(t)
		if after.State != idempotency.Failed || after.Attempts != 1 || after.Attempt == before.Attempt || after.Hash != before.Hash || after.ExpiresAt != before.ExpiresAt {
			t.Errorf("the record was %+v and is %+v", before, after)
		}
		out, err := callOf[hurried](t, b, v, "b") // another payload stays refused
		wantError[*idempotency.ConflictError](t, err, out, requestctx.StateConflict)
		if out, err = callOf[hurried](t, b, v, "a"); err != nil || out.State != requestctx.StateExecuted || out.TookOver {
			t.Error(out, err)
		}
	}
}

func TestReleaseRefusesALiveLeaseUnlessItIsMeant(t *testing.T) {
	t.Parallel()
	b := newBench()
	d := newDesk(t, b.stub)
	v := keyed(t, "key-00000001")
	ended[hurried](t, b, v, idempotency.InProgress)
	id := b.only(t).ID
	d.wantRefused(t, d.Release(t.Context(), id, byAyse), "release", "its lease is not over")
	b.wantRecord(t, idempotency.InProgress, 1)
	meant := byAyse
	meant.LiveLease = true
	if err := d.Release(t.Context(), id, meant); err != nil {
		t.Fatal(err)
	}
	if line := d.wantLine(t, zapcore.WarnLevel, "release"); line["live_lease"] != true {
		t.Errorf("the line is %v", line)
	}
	if out, err := callOf[hurried](t, b, v, "a"); err != nil || out.State != requestctx.StateExecuted {
		t.Error(out, err)
	}
}

func TestReleasedOwnerThatIsAliveCannotComplete_L09(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		open  bool // its business transaction
		alone bool
		give  error
	}{
		"it opens its business transaction": {},
		"it has none":                       {alone: true},
		"it refuses":                        {alone: true, give: idempotency.Final(errPaper)},
		"it fails":                          {alone: true, give: errPaper},
		"it does not know":                  {alone: true, give: idempotency.Unknown(errPaper)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBench()
				v := keyed(t, "key-00000001")
				hold := make(chan struct{})
				b.alone = tc.alone
				b.first = func(context.Context, int) error { <-hold; return tc.give }
				owner := background(t.Context(), charges[hurried](t, b), v, charge[hurried]{Cart: "a"})
				synctest.Wait()
				free(t, b)
				close(hold)
				a := <-owner
				wantError[*idempotency.LeaseLostError](t, a.err, a.out, requestctx.StateLost)
				b.want(t, 1, 0, 1)
				b.wantRecord(t, idempotency.Failed, 1)
				b.first, b.alone = nil, false
				if out, err := callOf[hurried](t, b, v, "a"); err != nil || out.State != requestctx.StateExecuted {
					t.Error(out, err)
				}
				b.want(t, 2, 1, 1)
			})
		})
	}
}

func TestReleaseRefusesWhatItCannotMend(t *testing.T) {
	t.Parallel()
	b := newBench()
	d := newDesk(t, b.stub)
	v := keyed(t, "key-00000001")
	d.wantRefused(t, d.Release(t.Context(), idempotency.ID{1}, byAyse), "release", "no such record")
	ended[hurried](t, b, v, idempotency.Completed)
	id := b.only(t).ID
	for _, i := range []idempotency.Intervention{{}, {By: "ayse"}, {Reason: "x"}, {By: " ", Reason: "x"}, {By: "ayse", Reason: "\t"}} {
		d.wantRefused(t, d.Release(t.Context(), id, i), "release", "must be said")
		d.wantRefused(t, d.Erase(t.Context(), id, i), "erase", "must be said")
	}
	meant := byAyse
	meant.LiveLease = true
	d.wantRefused(t, d.Release(t.Context(), id, meant), "release", "is completed")
	b.wantRecord(t, idempotency.Completed, 1)
}

// racing is a store on which somebody is faster than an administrator.
type racing struct {
	idempotency.Store
	between func()
	err     error
}

func (r racing) Find(ctx context.Context, q idempotency.Search, limit int) ([]idempotency.Stored, error) {
	found, err := r.Store.Find(ctx, q, limit)
	r.between()
	return found, err
}

func (r racing) Free(ctx context.Context, id idempotency.ID, seen idempotency.AttemptID) (bool, error) {
	if r.err != nil {
		return false, r.err
	}
	return r.Store.Free(ctx, id, seen)
}

func TestInterventionThatComesTooLateChangesNothing(t *testing.T) {
	t.Parallel()
	b := newBench()
	v := keyed(t, "key-00000001")
	ended[hurried](t, b, v, idempotency.Failed)
	d := newDesk(t, racing{Store: b.stub, between: func() {
		if out, err := callOf[hurried](t, b, v, "a"); err != nil {
			t.Error(out, err)
		}
		b.mem.Age(idempotency.DefaultRetention) // so that the next one runs as well
	}})
	d.wantRefused(t, d.Release(t.Context(), b.only(t).ID, byAyse), "release", "has changed")
	d.wantRefused(t, d.Erase(t.Context(), b.only(t).ID, byAyse), "erase", "has changed")
	if rec := b.only(t); rec.State != idempotency.Completed || rec.Result == nil {
		t.Errorf("the record is %+v", rec)
	}
}

func TestInterventionThatTheStoreFailsIsLoggedAsAnError(t *testing.T) {
	t.Parallel()
	b := newBench()
	ended[hurried](t, b, keyed(t, "key-00000001"), idempotency.Failed)
	d := newDesk(t, racing{Store: b.stub, between: func() {}, err: errDown})
	if err := d.Release(t.Context(), b.only(t).ID, byAyse); !errors.Is(err, errDown) {
		t.Error(err)
	}
	if line := d.wantLine(t, zapcore.ErrorLevel, "release"); line["error"] != errDown.Error() {
		t.Errorf("the line is %v", line)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := d.Erase(ctx, b.only(t).ID, byAyse); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestT15_EraseForgetsTheResultAndRemembersTheIntent(t *testing.T) {
	t.Parallel()
	b := newBench()
	d := newDesk(t, b.stub)
	v := keyed(t, "key-00000001")
	v.ExternalRef, v.DraftID = "auth-4711", "draft-of-grace"
	ended[hurried](t, b, v, idempotency.Completed)
	before := b.only(t)
	if !strings.Contains(string(before.Result), `"a"`) || before.ExternalRef != "auth-4711" || before.DraftID != "draft-of-grace" {
		t.Fatalf("the record is %+v", before)
	}
	if err := d.Erase(t.Context(), before.ID, byAyse); err != nil {
		t.Fatal(err)
	}
	line := d.wantLine(t, zapcore.WarnLevel, "erase")
	for _, erased := range []string{`cart`, string(before.Result), "auth-4711", "draft-of-grace"} {
		if strings.Contains(fmt.Sprint(line), erased) {
			t.Errorf("the line shows %s, which was erased: %v", erased, line)
		}
	}
	after := b.only(t)
	if after.Result != nil || after.ExternalRef != "" || after.State != idempotency.Completed || after.Hash != before.Hash || after.ExpiresAt != before.ExpiresAt {
		t.Errorf("the record is %+v", after)
	}
	for _, cart := range []string{"a", "b"} {
		out, err := callOf[hurried](t, b, v, cart)
		wantError[*idempotency.ExpiredError](t, err, out, requestctx.StateExpired)
	}
	b.want(t, 1, 1, 1)

	// A second time, on one in progress, on one that has failed.
	if err := d.Erase(t.Context(), after.ID, byAyse); err != nil {
		t.Error(err)
	}
	d.logs.TakeAll()
	for state, reason := range map[idempotency.RecordState]string{idempotency.InProgress: "in progress", idempotency.Failed: ""} {
		b := newBench()
		d := newDesk(t, b.stub)
		v.ExternalRef = "auth-4711"
		ended[hurried](t, b, v, state)
		err := d.Erase(t.Context(), b.only(t).ID, byAyse)
		if reason != "" {
			d.wantRefused(t, err, "erase", reason)
			continue
		}
		if err != nil || b.only(t).ExternalRef != "" {
			t.Error(err, b.only(t))
		}
		if out, err := callOf[hurried](t, b, v, "a"); err != nil || out.State != requestctx.StateExecuted {
			t.Error(out, err)
		}
	}
}

func TestGetAndFindShowRecords_see1(t *testing.T) {
	t.Parallel()
	b := newBench()
	d := newDesk(t, b.stub)
	v := keyed(t, "key-00000001")
	v.ID, v.ExternalRef, v.DraftID = "request-1", "auth-4711", "draft-7"
	ended[hurried](t, b, v, idempotency.Completed)
	scope := idempotency.Scope{Tenant: "t", Client: "c", Operation: "POST /pay test.charge", Key: "key-00000001"}
	got, err := d.Get(t.Context(), scope)
	if err != nil || got == nil || got.ID != scope.ID() || got.Scope != scope || got.State != idempotency.Completed || got.CompletedAt.IsZero() || got.CreatedAt.IsZero() || got.ExpiresAt.Sub(got.CreatedAt) != idempotency.DefaultRetention {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := d.Get(t.Context(), idempotency.Scope{Key: "key-00000001"}); got != nil || err != nil {
		t.Errorf("%+v, %v", got, err)
	}
	for name, q := range map[string]idempotency.Search{"id": {ID: scope.ID()}, "key": {Key: "key-00000001"}, "reference": {ExternalRef: "auth-4711"},
		"draft": {DraftID: "draft-7"}, "request id": {RequestID: "request-1"}, "draft and request id": {DraftID: "draft-7", RequestID: "request-1"},
		"key and client": {Key: "key-00000001", Client: &scope.Client}} {
		if found, err := d.Find(t.Context(), q); err != nil || len(found) != 1 || found[0].ID != scope.ID() {
			t.Errorf("by %s: %+v, %v", name, found, err)
		}
	}
	other := "somebody else"
	if found, err := d.Find(t.Context(), idempotency.Search{Key: "key-00000001", Client: &other}); err != nil || len(found) != 0 {
		t.Errorf("%+v, %v", found, err)
	}
	if found, err := d.Find(t.Context(), idempotency.Search{Stuck: true}); err != nil || len(found) != 0 {
		t.Errorf("stuck: %+v, %v", found, err)
	}
	if _, err := d.Find(t.Context(), idempotency.Search{Client: &scope.Client}); err == nil || err.Error() !=
		"idempotency: a search needs an id, a key, an external reference, a draft, a request id, or what is stuck" {
		t.Errorf("a search for nothing: %v", err)
	}
	rec := b.only(t)
	rec.Record.Scope.Client = other
	b.mem.Put(rec.ID, rec.Record)
	var damaged *idempotency.RecordError
	if _, err := d.Get(t.Context(), scope); !errors.As(err, &damaged) || damaged.Command != "test.charge" {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := d.Get(ctx, scope); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if lines := d.logs.All(); len(lines) != 0 {
		t.Errorf("looking is logged: %+v", lines)
	}
}

// tallied is a store whose records are counted as it says.
type tallied struct {
	idempotency.Store
	counts []idempotency.Count
	err    error
}

func (c tallied) Count(context.Context) ([]idempotency.Count, error) {
	return slices.Clone(c.counts), c.err
}

func TestCountsComeInOneOrderWhateverTheStoresIs(t *testing.T) {
	t.Parallel()
	ordered := []idempotency.Count{
		{Operation: "a", State: idempotency.Completed, Records: 9},
		{Operation: "a", State: idempotency.Completed, Expired: true, Records: 1},
		{Operation: "a", State: idempotency.InProgress, Records: 5},
		{Operation: "a", State: idempotency.InProgress, Expired: true, Records: 7},
		{Operation: "a", State: idempotency.InProgress, Stuck: true, Records: 2},
		{Operation: "a", State: idempotency.InProgress, Stuck: true, Expired: true, Records: 3},
		{Operation: "b", State: idempotency.Completed, Records: 4},
	}
	for i := range ordered {
		counts := slices.Concat(ordered[i:], ordered[:i])
		slices.Reverse(counts)
		got, err := newDesk(t, tallied{counts: counts}).Count(t.Context())
		if err != nil || !slices.Equal(got, ordered) {
			t.Errorf("%+v comes as %+v, %v", counts, got, err)
		}
	}
	away := errors.New("away")
	if got, err := newDesk(t, tallied{err: away}).Count(t.Context()); len(got) != 0 || !errors.Is(err, away) {
		t.Errorf("of a store that is away: %+v, %v", got, err)
	}
}

func TestCountCountsWhatIsThereAndLogsNothing(t *testing.T) {
	t.Parallel()
	b := newBench()
	d := newDesk(t, b.stub)
	if got, err := d.Count(t.Context()); err != nil || len(got) != 0 {
		t.Errorf("of nothing: %+v, %v", got, err)
	}
	for _, key := range []string{"key-00000001", "key-00000002"} {
		s := idempotency.Scope{Client: "c", Operation: "POST /pay test.charge", Key: key}
		b.mem.Put(s.ID(), idempotency.Record{Scope: s, State: idempotency.InProgress})
	}
	got, err := d.Count(t.Context())
	if err != nil || !slices.Equal(got, []idempotency.Count{{Operation: "POST /pay test.charge", State: idempotency.InProgress, Stuck: true, Records: 2}}) {
		t.Errorf("%+v, %v", got, err)
	}
	if got[0].Command() != "test.charge" {
		t.Errorf("the command is %q", got[0].Command())
	}
	if lines := d.logs.All(); len(lines) != 0 {
		t.Errorf("counting is logged: %+v", lines)
	}
}

func TestNewAdminRefusesWhatLeavesNoTrace(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]idempotency.AdminConfig{"no store": {Logger: zap.NewNop()}, "no logger": {Store: memstore.New()}} {
		if a, err := idempotency.NewAdmin(cfg); a != nil || err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

// Operations, as a caller sees them who has to ask later.

func find(t *testing.T, b *bench, v requestctx.Values, id string) (*idempotency.Operation, error) {
	t.Helper()
	ctx, _ := requestctx.New(t.Context(), v)
	return idempotency.FindOperation(ctx, b.stub, id)
}

func TestFindOperationSaysHowFarItHasCome_rec4(t *testing.T) {
	t.Parallel()
	asIs := func(*testing.T, *bench) {}
	for name, tc := range map[string]struct {
		end    error
		later  func(t *testing.T, b *bench)
		state  idempotency.OperationState
		result string
	}{
		"completed":                      {nil, asIs, idempotency.OperationCompleted, `{"cart":"a","run":1}`},
		"refused":                        {idempotency.Final(errPaper), asIs, idempotency.OperationRefused, ""},
		"in progress":                    {idempotency.Unknown(errPaper), asIs, idempotency.OperationInProgress, ""},
		"in progress and expired":        {idempotency.Unknown(errPaper), func(t *testing.T, b *bench) { expire(t, b, time.Minute) }, idempotency.OperationInProgress, ""},
		"dead":                           {idempotency.Unknown(errPaper), func(_ *testing.T, b *bench) { b.mem.Age(idempotency.DefaultLease) }, idempotency.OperationUnknown, ""},
		"failed":                         {errPaper, asIs, idempotency.OperationUnknown, ""},
		"erased":                         {nil, func(t *testing.T, b *bench) { erase(t, b) }, idempotency.OperationGone, ""},
		"completed without its result":   {nil, func(t *testing.T, b *bench) { omit(t, b) }, idempotency.OperationGone, ""},
		"completed and expired":          {nil, func(_ *testing.T, b *bench) { b.mem.Age(idempotency.DefaultRetention) }, "", ""},
		"failed and expired":             {errPaper, func(_ *testing.T, b *bench) { b.mem.Age(idempotency.DefaultRetention) }, "", ""},
		"dead and expired":               {idempotency.Unknown(errPaper), func(_ *testing.T, b *bench) { b.mem.Age(idempotency.DefaultRetention) }, "", ""},
		"erased and expired":             {nil, func(t *testing.T, b *bench) { erase(t, b); b.mem.Age(idempotency.DefaultRetention) }, "", ""},
		"a refusal that cannot be read":  {idempotency.Final(errPaper), func(t *testing.T, b *bench) { scramble(t, b) }, "unreadable", ""},
		"a result that only we can read": {nil, func(t *testing.T, b *bench) { scramble(t, b) }, idempotency.OperationCompleted, "?"},
		"taken from the table altogether": {nil, func(t *testing.T, b *bench) {
			b.mem.Age(1000 * time.Hour)
			_, _ = b.mem.Purge(t.Context(), idempotency.PurgeBatch{Limit: 1})
		}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench()
			v := keyed(t, "key-00000001")
			v.ID, v.ExternalRef = "request-1", "auth-4711"
			b.then = func(context.Context, int) error { return tc.end }
			_, _ = callOf[hurried](t, b, v, "a")
			created := b.only(t).CreatedAt
			tc.later(t, b)
			op, err := find(t, b, v, operationID(v))
			switch tc.state {
			case "":
				if op != nil || err != nil {
					t.Errorf("%+v, %v", op, err)
				}
				return
			case "unreadable":
				if e := (*idempotency.ResultError)(nil); op != nil || !errors.As(err, &e) || !e.Stored || e.Command != "test.charge" {
					t.Errorf("%+v, %v", op, err)
				}
				return
			}
			if err != nil || op == nil {
				t.Fatal(op, err)
			}
			ref := "auth-4711"
			if strings.HasPrefix(name, "erased") || tc.end != nil && !strings.HasPrefix(name, "refused") {
				ref = ""
			}
			if op.State != tc.state || string(op.Result) != tc.result || op.ID != operationID(v) || op.Command != "test.charge" || op.OriginalRequestID != "request-1" || op.ExternalRef != ref {
				t.Errorf("%+v", op)
			}
			if name == "completed" && !op.CreatedAt.Equal(created) {
				t.Errorf("created at %v, want %v", op.CreatedAt, created)
			}
			if (op.Refusal != nil) != (tc.state == idempotency.OperationRefused) || op.Refusal != nil && (op.Refusal.Message != errPaper.Error() || op.Refusal.Command != "test.charge") {
				t.Errorf("the refusal is %+v", op.Refusal)
			}
		})
	}
}

func expire(t *testing.T, b *bench, left time.Duration) {
	rec := b.only(t)
	rec.Record.Expired, rec.Record.LeaseLeft = true, left
	b.mem.Put(rec.ID, rec.Record)
}

func erase(t *testing.T, b *bench) {
	if err := newDesk(t, b.stub).Erase(t.Context(), b.only(t).ID, byAyse); err != nil {
		t.Error(err)
	}
}

func omit(t *testing.T, b *bench) {
	rec := b.only(t)
	rec.Record.Result, rec.Record.ResultType = nil, "omitted"
	b.mem.Put(rec.ID, rec.Record)
}

func scramble(t *testing.T, b *bench) {
	rec := b.only(t)
	rec.Record.Result = []byte("?")
	b.mem.Put(rec.ID, rec.Record)
}

func TestOperationOfSomebodyElseIsAsIfItWereNotThere_rec8(t *testing.T) {
	t.Parallel()
	b := newBench()
	v := keyed(t, "0190c0de-0000-7000-8000-00000000abcd")
	ended[hurried](t, b, v, idempotency.Completed)
	id := operationID(v)
	if op, err := find(t, b, requestctx.Values{Scope: v.Scope}, id); err != nil || op == nil {
		t.Fatal(op, err) // neither key nor source is needed
	}
	for name, s := range map[string]requestctx.Scope{
		"another client": {Tenant: "t", Client: "d"}, "another tenant": {Tenant: "u", Client: "c"}, "no tenant": {Client: "c"},
		"no client": {Tenant: "t"}, "nobody": {}, "anonymous": {Tenant: "t", Client: requestctx.Anonymous},
	} {
		if op, err := find(t, b, requestctx.Values{Scope: s}, id); op != nil || err != nil {
			t.Errorf("%s: %+v, %v", name, op, err)
		}
	}
	if op, err := idempotency.FindOperation(t.Context(), b.stub, id); op != nil || err != nil {
		t.Errorf("without a request: %+v, %v", op, err)
	}
	plain := b.only(t).ID
	for name, bad := range map[string]string{
		"nothing": "", "short": id[:35], "long": id + "0", "upper case": strings.ToUpper(id), "no dashes": strings.ReplaceAll(id, "-", ""),
		"dashes elsewhere": id[:9] + "-" + id[10:], "no digits": "g" + id[1:], "another": flip(id), "the record's own id": fmt.Sprintf("%x-%x-%x-%x-%x", plain[:4], plain[4:6], plain[6:8], plain[8:10], plain[10:]),
		"spaces": " " + id[1:], "NUL": "\x00" + id[1:],
	} {
		if op, err := find(t, b, v, bad); op != nil || err != nil {
			t.Errorf("%s: %+v, %v", name, op, err)
		}
	}
	// A row whose scope is not that of its id is shown to nobody.
	rec := b.only(t)
	rec.Record.Scope.Key = "another-key"
	b.mem.Put(rec.ID, rec.Record)
	if op, err := find(t, b, v, id); op != nil || err != nil {
		t.Errorf("a damaged row: %+v, %v", op, err)
	}
}

// flip changes the last digit.
func flip(id string) string {
	last := "0"
	if strings.HasSuffix(id, "0") {
		last = "1"
	}
	return id[:35] + last
}

func TestFindOperationThatTheStoreFailsIsAStoreError(t *testing.T) {
	t.Parallel()
	b := newBench()
	v := keyed(t, "key-00000001")
	ctx, _ := requestctx.New(t.Context(), v)
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	op, err := idempotency.FindOperation(ctx, b.stub, operationID(v))
	if e := (*idempotency.StoreError)(nil); op != nil || !errors.As(err, &e) || !errors.Is(err, context.Canceled) {
		t.Errorf("%+v, %v", op, err)
	}
}

func TestOperationOfAnAtomicCommandCanBeFoundWhenItIsDone(t *testing.T) {
	t.Parallel()
	b := newBench()
	v := keyed(t, "key-00000001")
	if _, err := callOf[atomically](t, b, v, "a"); err != nil {
		t.Fatal(err)
	}
	if op, err := find(t, b, v, operationID(v)); err != nil || op == nil || op.State != idempotency.OperationCompleted {
		t.Errorf("%+v, %v", op, err)
	}
}

func TestReleaseRefusesARecordThatIsNotAsThePersonSawIt(t *testing.T) {
	t.Parallel()
	b := newBench()
	d := newDesk(t, b.stub)
	v := keyed(t, "key-00000001")
	ended[hurried](t, b, v, idempotency.InProgress)
	b.mem.Age(idempotency.DefaultLease)
	seen := byAyse
	seen.Seen = b.only(t).Attempt
	b.then = func(context.Context, int) error { return idempotency.Unknown(errPaper) }
	if _, err := callOf[hurried](t, b, v, "a"); err == nil { // the same request again takes it over, and it is not known how that ended either
		t.Fatal("it is done")
	}
	b.mem.Age(idempotency.DefaultLease)
	before := b.only(t)
	if before.Attempt == seen.Seen || before.LeaseLeft != 0 {
		t.Fatalf("the record is %+v", before)
	}
	d.wantRefused(t, d.Release(t.Context(), before.ID, seen), "release", "has changed")
	d.wantRefused(t, d.Erase(t.Context(), before.ID, seen), "erase", "has changed")
	if after := b.only(t); after.State != idempotency.InProgress || after.Attempt != before.Attempt {
		t.Errorf("the record is %+v", after)
	}
	seen.Seen = before.Attempt
	if err := d.Release(t.Context(), before.ID, seen); err != nil {
		t.Error(err)
	}
}

func TestARecordSaysWhatItStillHolds_see1(t *testing.T) {
	t.Parallel()
	refusal := []byte(`{"code":"NO_STOCK","message":"there is none","data":{"secret":1}}`)
	for name, tc := range map[string]struct {
		rec  idempotency.Record
		kept idempotency.Kept
		code string
	}{
		"in progress":     {idempotency.Record{State: idempotency.InProgress}, idempotency.KeptNothing, ""},
		"failed":          {idempotency.Record{State: idempotency.Failed, ResultType: "tombstone"}, idempotency.KeptNothing, ""},
		"a result":        {idempotency.Record{State: idempotency.Completed, ResultType: "result/1", Result: refusal}, idempotency.KeptResult, ""},
		"a sealed one":    {idempotency.Record{State: idempotency.Completed, ResultType: "sealed/1", Result: []byte{1}}, idempotency.KeptSealed, ""},
		"one left out":    {idempotency.Record{State: idempotency.Completed, ResultType: "omitted"}, idempotency.KeptOmitted, ""},
		"one erased":      {idempotency.Record{State: idempotency.Completed, ResultType: "tombstone"}, idempotency.KeptErased, ""},
		"a refusal":       {idempotency.Record{State: idempotency.Completed, Outcome: idempotency.Refusal, ResultType: "refusal/1", Result: refusal}, idempotency.KeptRefusal, "NO_STOCK"},
		"an erased one":   {idempotency.Record{State: idempotency.Completed, Outcome: idempotency.Refusal, ResultType: "tombstone", Result: refusal}, idempotency.KeptErased, ""},
		"a damaged one":   {idempotency.Record{State: idempotency.Completed, Outcome: idempotency.Refusal, ResultType: "refusal/1", Result: []byte("?")}, idempotency.KeptRefusal, ""},
		"refused, failed": {idempotency.Record{State: idempotency.Failed, Outcome: idempotency.Refusal, ResultType: "refusal/1", Result: refusal}, idempotency.KeptNothing, ""},
	} {
		if kept, code := tc.rec.Kept(), tc.rec.RefusalCode(); kept != tc.kept || code != tc.code {
			t.Errorf("%s: it holds %q with the code %q", name, kept, code)
		}
	}
}

func TestParseOperationReadsWhatOperationWrites_rec4(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"key-00000001", "01890a5d-ac96-774b-bcce-b302099a8057"} {
		id := idempotency.Scope{Client: "c", Key: key}.ID()
		if got, ok := idempotency.ParseOperation(id.Operation()); !ok || got != id {
			t.Errorf("%x became %x, %t", id, got, ok)
		}
	}
	for _, s := range []string{"", "4711", "8e03978e-40d5-43e8-bc93-6894a57f932", "8E03978E-40D5-43E8-BC93-6894A57F9324", "8e03978e040d5-43e8-bc93-6894a57f9324", "8e03978e-40d5-43e8-bc93-6894a57f932x"} {
		if _, ok := idempotency.ParseOperation(s); ok {
			t.Errorf("%q is read", s)
		}
	}
}
