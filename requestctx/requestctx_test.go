package requestctx_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"sync"
	"testing"

	"github.com/google/uuid"

	"github.com/tekil-go/tekil/requestctx"
)

func TestNewPutsTheRequestIntoTheContext(t *testing.T) {
	t.Parallel()
	v := requestctx.Values{
		ID:          "attempt-1",
		Key:         mustKey(t, "order-abcdef"),
		Scope:       requestctx.Scope{Client: "acme-erp", Tenant: "acme/1"},
		Source:      "POST /v1/orders",
		Resource:    []string{"7"},
		ExternalRef: "auth-1",
	}
	ctx, r := requestctx.New(t.Context(), v)
	if requestctx.From(ctx) != r {
		t.Fatal("From gives another request than New")
	}
	if r.ID() != v.ID || r.Key() != v.Key || r.KeyErr() != nil || r.Scope() != v.Scope || r.Source() != v.Source ||
		!slices.Equal(r.Resource(), v.Resource) || r.ExternalRef() != v.ExternalRef {
		t.Errorf("the request does not give the values back: %+v", v)
	}
	if r.Outcome() != (requestctx.Outcome{}) || r.Attributes() != nil {
		t.Errorf("a new request has an outcome %+v or attributes %v", r.Outcome(), r.Attributes())
	}
}

func TestPipe7_NewMakesAnIDForTheAttemptAndNeverAKey(t *testing.T) {
	t.Parallel()
	_, first := requestctx.New(t.Context(), requestctx.Values{})
	_, second := requestctx.New(t.Context(), requestctx.Values{})
	for _, r := range []*requestctx.Request{first, second} {
		id, err := uuid.Parse(r.ID())
		if err != nil || id.Version() != 7 {
			t.Errorf("id = %q, %v; want a UUIDv7", r.ID(), err)
		}
		if !r.Key().IsZero() {
			t.Errorf("a key appeared from nowhere: %q", r.Key())
		}
	}
	if first.ID() == second.ID() {
		t.Error("two attempts have one id")
	}
}

func TestH20_ARefusedKeyIsKeptAsItsErrorAndHidesTheKey(t *testing.T) {
	t.Parallel()
	_, keyErr := requestctx.ParseKey("short")
	_, r := requestctx.New(t.Context(), requestctx.Values{Key: mustKey(t, "order-abcdef"), KeyErr: keyErr})
	if !errors.Is(r.KeyErr(), keyErr) || !r.Key().IsZero() {
		t.Errorf("key = %q, err = %v", r.Key(), r.KeyErr())
	}
}

func TestFromAnEmptyContextIsNilAndANilRequestKnowsNothing(t *testing.T) {
	t.Parallel()
	r := requestctx.From(t.Context())
	if r != nil {
		t.Fatalf("From = %v", r)
	}
	r.Add("basket_id", "b1")
	r.SetExternalRef("auth-1")
	r.SetDraftID("d1")
	r.Report(requestctx.Outcome{State: requestctx.StateExecuted})
	if r.ID() != "" || !r.Key().IsZero() || r.KeyErr() != nil || r.Scope() != (requestctx.Scope{}) || r.Source() != "" || r.Resource() != nil ||
		r.ExternalRef() != "" || r.DraftID() != "" || r.Attributes() != nil || r.Outcome() != (requestctx.Outcome{}) {
		t.Error("a nil request knows something")
	}
}

func TestNewHidesTheRequestOfTheOuterContextAndDoesNotChangeIt(t *testing.T) {
	t.Parallel()
	outerCtx, outer := requestctx.New(t.Context(), requestctx.Values{ID: "outer", Key: mustKey(t, "order-outer")})
	innerCtx, inner := requestctx.New(outerCtx, requestctx.Values{ID: "inner"})
	inner.Add("step", "2")
	inner.SetExternalRef("auth-2")
	inner.SetDraftID("d-2")
	inner.Report(requestctx.Outcome{State: requestctx.StateReplayed, Replayed: true})
	if requestctx.From(innerCtx) != inner || requestctx.From(outerCtx) != outer {
		t.Fatal("a context gives the other's request")
	}
	if !inner.Key().IsZero() {
		t.Errorf("the inner request took the outer key %q", inner.Key())
	}
	if outer.ExternalRef() != "" || outer.DraftID() != "" || outer.Attributes() != nil || outer.Outcome() != (requestctx.Outcome{}) || outer.ID() != "outer" {
		t.Error("the outer request was changed")
	}
}

func TestTheRequestIsFoundThroughDerivedContexts(t *testing.T) {
	t.Parallel()
	ctx, r := requestctx.New(t.Context(), requestctx.Values{})
	derived, cancel := context.WithCancel(context.WithoutCancel(context.WithValue(ctx, unrelated{}, 1)))
	defer cancel()
	if requestctx.From(derived) != r {
		t.Error("the request was lost on the way")
	}
}

type unrelated struct{}

func TestTheLastReportIsTheOutcome(t *testing.T) {
	t.Parallel()
	_, r := requestctx.New(t.Context(), requestctx.Values{})
	r.Report(requestctx.Outcome{State: requestctx.StateInProgress})
	last := requestctx.Outcome{State: requestctx.StateReplayed, Replayed: true, OriginalRequestID: "attempt-1", ReusedExpired: true, Detached: true, Attempt: 3, TookOver: true}
	r.Report(last)
	if got := r.Outcome(); got != last {
		t.Errorf("Outcome = %+v", got)
	}
	r.Report(requestctx.Outcome{State: requestctx.StateLost, Attempt: 1})
	if got := r.Outcome(); got != (requestctx.Outcome{State: requestctx.StateLost, Attempt: 1}) {
		t.Errorf("something of the report before is left: %+v", got)
	}
}

// They are label values of metrics and words that people search logs for.
func TestTheStatesAreFewAndKeepTheirNames(t *testing.T) {
	t.Parallel()
	want := map[requestctx.State]string{
		requestctx.StateNone: "", requestctx.StateExecuted: "executed", requestctx.StateReplayed: "replayed", requestctx.StateInProgress: "in_progress",
		requestctx.StateConflict: "conflict", requestctx.StateExpired: "expired", requestctx.StateFreed: "freed", requestctx.StateUnknown: "unknown",
		requestctx.StateRefused: "refused", requestctx.StateUnprotected: "unprotected", requestctx.StateLost: "lost", requestctx.StateNested: "nested",
	}
	for state, name := range want {
		if string(state) != name {
			t.Errorf("the state %q was %q", state, name)
		}
	}
	source, err := os.ReadFile("requestctx.go")
	if err != nil {
		t.Fatal(err)
	}
	declared := regexp.MustCompile(`(?m)^	State\w+ +State = "`).FindAll(source, -1)
	if len(declared) != len(want) {
		t.Errorf("%d states are declared and %d known here", len(declared), len(want))
	}
}

func TestAddKeepsTheOrderReplacesAndIsBounded(t *testing.T) {
	t.Parallel()
	_, r := requestctx.New(t.Context(), requestctx.Values{})
	r.Add("", "nameless")
	var want []requestctx.Attribute
	for i := range 20 {
		name := fmt.Sprintf("id_%d", i)
		r.Add(name, "v")
		if i < 16 {
			want = append(want, requestctx.Attribute{Name: name, Value: "v"})
		}
	}
	r.Add("id_3", "replaced")
	want[3].Value = "replaced"
	got := r.Attributes()
	if !slices.Equal(got, want) {
		t.Fatalf("Attributes = %v\nwant %v", got, want)
	}
	got[0].Value = "changed by the caller"
	if !slices.Equal(r.Attributes(), want) {
		t.Error("Attributes gave its own slice away")
	}
}

func TestSetExternalRefReplacesTheEdges(t *testing.T) {
	t.Parallel()
	_, r := requestctx.New(t.Context(), requestctx.Values{ExternalRef: "from-the-edge"})
	r.SetExternalRef("auth-1")
	if got := r.ExternalRef(); got != "auth-1" {
		t.Errorf("ExternalRef = %q", got)
	}
}

func TestSetDraftIDReplacesTheEdges_see1(t *testing.T) {
	t.Parallel()
	_, r := requestctx.New(t.Context(), requestctx.Values{DraftID: "from-the-edge"})
	if got := r.DraftID(); got != "from-the-edge" {
		t.Errorf("DraftID = %q", got)
	}
	r.SetDraftID("d-1")
	if got := r.DraftID(); got != "d-1" {
		t.Errorf("DraftID = %q", got)
	}
	if r.ExternalRef() != "" || r.Attributes() != nil {
		t.Errorf("the draft is a reference %q or an attribute %v as well", r.ExternalRef(), r.Attributes())
	}
}

// The race detector is what this test is for.
func TestARequestIsUsedFromManyGoroutinesAtOnce(t *testing.T) {
	t.Parallel()
	ctx, _ := requestctx.New(t.Context(), requestctx.Values{Key: mustKey(t, "order-abcdef")})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			r := requestctx.From(ctx)
			for j := range 100 {
				r.Add(fmt.Sprintf("id_%d", (i+j)%24), "v")
				r.SetExternalRef("auth-1")
				r.SetDraftID("d-1")
				r.Report(requestctx.Outcome{State: requestctx.StateExecuted, OriginalRequestID: r.ID()})
				if o := r.Outcome(); o.State != requestctx.StateExecuted || o.OriginalRequestID != r.ID() {
					t.Errorf("a torn outcome: %+v", o)
				}
				if n := len(r.Attributes()); n == 0 || n > 16 {
					t.Errorf("%d attributes", n)
				}
				if r.ExternalRef() != "auth-1" || r.DraftID() != "d-1" || r.Key().IsZero() {
					t.Error("a value was lost")
				}
			}
		})
	}
	wg.Wait()
}

// testing.AllocsPerRun looks at the whole process, so this test is not parallel.
func TestReadingARequestAllocatesNothing(t *testing.T) { //nolint:paralleltest // see above
	ctx, _ := requestctx.New(t.Context(), requestctx.Values{Key: mustKey(t, "order-abcdef")})
	if n := testing.AllocsPerRun(100, func() {
		r := requestctx.From(ctx)
		_, _, _, _ = r.Key().String(), r.ID(), r.Scope(), r.Outcome()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if n := testing.AllocsPerRun(100, func() { _, _ = requestctx.ParseKey("order-abcdef") }); n != 0 {
		t.Errorf("ParseKey: %v allocations", n)
	}
}
