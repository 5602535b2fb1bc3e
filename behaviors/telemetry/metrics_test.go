package telemetry_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/metric/noop"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/telemetry"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
)

type outcome = requestctx.Outcome

// counter is a series of checkout.place, of the created counter or of one of idempotency.
func counter(name string) string {
	if name == "created" {
		return "checkout_created{command=checkout.place}"
	}
	return "idempotency_" + name + "{command=checkout.place}"
}

// series is one of the durations of checkout.place.
func series(kind, outcome, state string) string {
	return "tekil_dispatch_duration{command=checkout.place,kind=" + kind + ",outcome=" + outcome + ",state=" + state + "}"
}

func TestSee2_EachStateIsCountedWhereItBelongs(t *testing.T) {
	t.Parallel()
	declined := &codedError{"DECLINED"}
	for name, c := range map[string]struct {
		outcome outcome
		err     error
		want    string // what counts, besides the duration
	}{
		"executed":                         {outcome{State: requestctx.StateExecuted}, nil, "created"},
		"executed, a final refusal":        {outcome{State: requestctx.StateExecuted}, declined, ""},
		"a later attempt of a Leased one":  {outcome{State: requestctx.StateExecuted, Attempt: 2}, nil, "created"},
		"replayed":                         {outcome{State: requestctx.StateReplayed, Replayed: true}, nil, "replay"},
		"a replayed refusal":               {outcome{State: requestctx.StateReplayed, Replayed: true}, declined, "replay"},
		"conflict":                         {outcome{State: requestctx.StateConflict}, declined, "conflict"},
		"in progress":                      {outcome{State: requestctx.StateInProgress}, declined, "in_progress"},
		"accepted and in progress":         {outcome{State: requestctx.StateInProgress}, nil, "in_progress"},
		"a tombstone":                      {outcome{State: requestctx.StateExpired}, declined, ""},
		"freed":                            {outcome{State: requestctx.StateFreed}, errAway, ""},
		"a takeover":                       {outcome{State: requestctx.StateExecuted, Attempt: 2, TookOver: true}, nil, "created takeover"},
		"a takeover that failed":           {outcome{State: requestctx.StateFreed, Attempt: 2, TookOver: true}, errAway, "takeover"},
		"lost":                             {outcome{State: requestctx.StateLost, Attempt: 1}, declined, "lost"},
		"lost, with the other's outcome":   {outcome{State: requestctx.StateReplayed, Replayed: true, Attempt: 1}, nil, "lost replay"},
		"lost, while the other is at work": {outcome{State: requestctx.StateInProgress, Attempt: 1}, declined, "in_progress lost"},
		"unknown":                          {outcome{State: requestctx.StateUnknown}, errAway, "unknown"},
		"refused":                          {outcome{State: requestctx.StateRefused}, declined, ""},
		"unprotected":                      {outcome{State: requestctx.StateUnprotected}, nil, "created unprotected"},
		"nested in nobody's":               {outcome{State: requestctx.StateNested}, nil, "created"},
		"an expired key again":             {outcome{State: requestctx.StateExecuted, ReusedExpired: true}, nil, "created expired_reuse"},
		"detached":                         {outcome{State: requestctx.StateExecuted, Detached: true}, nil, "created detached"},
		"no state":                         {outcome{}, nil, ""},
		"a state that is not known":        {outcome{State: "made up"}, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, telemetry.Config{})
			b := steps{claim: reporting(c.outcome, c.err)}.bus(t, r)
			if _, err := bus.Send(request(t, "a1", key1), b, place{}); err != c.err {
				t.Fatal(err)
			}
			code, state := "OK", string(c.outcome.State)
			if c.err != nil {
				code = bus.CodeOf(c.err)
			}
			switch state {
			case "":
				state = "none"
			case "made up":
				state = "other"
			}
			want := map[string]int64{series("command", code, state): 1}
			for name := range strings.FieldsSeq(c.want) {
				want[counter(name)] = 1
			}
			equal(t, "metrics", r.metrics(t), want)
		})
	}
}

func TestSee2_TheCountersStandAtZeroFromTheFirstDispatchOn(t *testing.T) {
	t.Parallel()
	r := newRig(t, telemetry.Config{})
	s := newShop(t, r)
	if _, err := bus.Send(request(t, "a1", key1), s.Bus, place{}); err != nil {
		t.Fatal(err)
	}
	all := r.all(t)
	for _, m := range telemetry.Metrics() {
		if len(m.Labels) != 1 || strings.HasPrefix(m.Name, "*") {
			continue
		}
		if n, ok := all[m.Instrument+"{command=checkout.place}"]; !ok || n != 0 {
			t.Errorf("%s = %d, %t", m.Instrument, n, ok)
		}
	}
}

func TestSee2_CreatedCountsWorkThatWasDoneAndNoReplay(t *testing.T) {
	t.Parallel()
	r := newRig(t, telemetry.Config{})
	s := newShop(t, r)
	for range 3 {
		_, _ = bus.Send(request(t, "", key1), s.Bus, place{Cart: "c1"})
	}
	_, _ = bus.Send(request(t, "", key1), s.Bus, place{Cart: "c2"})
	_, _ = bus.Send(request(t, "", ""), s.Bus, place{Cart: "c1"})
	_, _ = bus.Send(request(t, "", key1), s.Bus, voucher{})
	_, _ = bus.Send(request(t, "", ""), s.Bus, note{})
	s.note = func(context.Context, note) (placed, error) { return placed{}, errAway }
	_, _ = bus.Send(request(t, "", ""), s.Bus, note{})
	_ = bus.Check(request(t, "", key2), s.Bus, place{})
	equal(t, "created", r.counts(t, "checkout_created"),
		map[string]int64{counter("created"): 1, "checkout_created{command=checkout.voucher}": 1})
	equal(t, "created", r.counts(t, "shop_created"), map[string]int64{"shop_created{command=shop.note}": 1})
	equal(t, "counters", r.counts(t, "idempotency_"), map[string]int64{counter("replay"): 2, counter("conflict"): 1})
}

func TestSee2_TheApplicationCanNameWhatIsCreated(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"orders_created": "orders_created", "": "", "9 lives!": "x9_lives_", "ç": "x_", "checkout_created_total": "checkout_created_total",
		strings.Repeat("n", 300): strings.Repeat("n", 255),
	} {
		r := newRig(t, telemetry.Config{Created: func(command string) string {
			if command != "checkout.place" {
				t.Errorf("asked for %q", command)
			}
			return name
		}})
		if _, err := bus.Send(request(t, "a1", key1), newShop(t, r).Bus, place{}); err != nil {
			t.Fatal(err)
		}
		got := r.metrics(t)
		delete(got, series("command", "OK", "executed"))
		expect := map[string]int64{}
		if want != "" {
			expect[want+"{command=checkout.place}"] = 1
		}
		equal(t, fmt.Sprintf("%.20q", name), got, expect)
	}
}

func TestSee2_WorkInsideAnotherCommandCountsWhenTheOuterOneHasSucceeded(t *testing.T) {
	t.Parallel()
	r := newRig(t, telemetry.Config{})
	s := newShop(t, r)
	outer := errAway
	inside := func(ctx context.Context) {
		for range 2 {
			if _, err := bus.Send(ctx, s.Bus, voucher{}); err != nil {
				t.Error(err)
			}
		}
	}
	s.note = func(ctx context.Context, _ note) (placed, error) { inside(ctx); return placed{}, nil }
	s.place = func(ctx context.Context, _ place) (placed, error) {
		inside(ctx)
		_, _ = bus.Send(ctx, s.Bus, note{}) // has no mark and stands between
		return placed{}, outer
	}
	_, _ = bus.Send(request(t, "a1", key1), s.Bus, place{})
	equal(t, "after a failure", r.counts(t, "checkout_created"), map[string]int64{})
	outer = nil
	if _, err := bus.Send(request(t, "a2", key1), s.Bus, place{}); err != nil {
		t.Fatal(err)
	}
	equal(t, "after a success", r.counts(t, "checkout_created"),
		map[string]int64{counter("created"): 1, "checkout_created{command=checkout.voucher}": 4})
	_, _ = bus.Send(request(t, "a3", key1), s.Bus, place{})
	if n := r.counts(t, "checkout_created")["checkout_created{command=checkout.voucher}"]; n != 4 {
		t.Errorf("after a replay: %d", n)
	}
}

func TestBR40_ThreeReplaysCountThreeAndNothingIsCreatedAgain(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err     error
		created map[string]int64
	}{
		"a success":         {nil, map[string]int64{counter("created"): 1}},
		"a refusal is none": {idempotency.Final(&codedError{"PAYMENT_DECLINED"}), map[string]int64{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, telemetry.Config{})
			s := newShop(t, r)
			s.place = func(context.Context, place) (placed, error) { return placed{}, c.err }
			for range 4 {
				_, _ = bus.Send(request(t, "", key1), s.Bus, place{})
			}
			equal(t, "replays", r.counts(t, "idempotency_"), map[string]int64{counter("replay"): 3})
			equal(t, "created", r.counts(t, "checkout_created"), c.created)
		})
	}
}

func TestBR51_AMessageThatComesBackAfterItsRetentionIsCounted(t *testing.T) {
	t.Parallel()
	r := newRig(t, telemetry.Config{})
	s := newShop(t, r)
	for range 2 {
		if _, err := bus.Send(request(t, "", key1), s.Bus, place{}); err != nil {
			t.Fatal(err)
		}
		s.store.Age(idempotency.DefaultRetention + time.Hour)
	}
	equal(t, "counters", r.counts(t, "idempotency_"), map[string]int64{counter("expired_reuse"): 1})
}

func TestBR16_TheSecondMailOfARedeliveryIsCounted(t *testing.T) {
	t.Parallel()
	r := newRig(t, telemetry.Config{})
	s := newShop(t, r)
	mails := 0
	s.place = func(ctx context.Context, _ place) (placed, error) {
		if mails++; mails > 1 {
			telemetry.SecondEffect(ctx, "order_mail")
		}
		if mails < 2 {
			return placed{}, errAway // after the mail, before the commit
		}
		return placed{Order: "o1"}, nil
	}
	for range 3 {
		_, _ = bus.Send(request(t, "", key1), s.Bus, place{})
	}
	equal(t, "counters", r.counts(t, "idempotency_"), map[string]int64{
		"idempotency_second_effect{command=checkout.place,effect=order_mail}": 1, counter("replay"): 1,
	})
	equal(t, "created", r.counts(t, "checkout_created"), map[string]int64{counter("created"): 1})
}

func TestW14_ASecondEffectIsOfTheInnermostDispatchAndOfNoneOutside(t *testing.T) {
	t.Parallel()
	telemetry.SecondEffect(t.Context(), "mail")
	r := newRig(t, telemetry.Config{})
	s := newShop(t, r)
	s.voucher = func(ctx context.Context, _ voucher) (placed, error) {
		telemetry.SecondEffect(ctx, "mail")
		return placed{}, nil
	}
	s.place = func(ctx context.Context, _ place) (placed, error) { return bus.Send(ctx, s.Bus, voucher{}) }
	if _, err := bus.Send(request(t, "", key1), s.Bus, place{}); err != nil {
		t.Fatal(err)
	}
	equal(t, "counters", r.counts(t, "idempotency_"),
		map[string]int64{"idempotency_second_effect{command=checkout.voucher,effect=mail}": 1})
}

func TestH02_ACommandWithoutAKeyThatAllowsItIsCounted(t *testing.T) {
	t.Parallel()
	r := newRig(t, telemetry.Config{})
	if _, err := bus.Send(request(t, "", ""), newShop(t, r).Bus, loose{}); err != nil {
		t.Fatal(err)
	}
	equal(t, "counters", r.counts(t, "idempotency_"), map[string]int64{"idempotency_unprotected{command=loose}": 1})
	equal(t, "created", r.counts(t, "loose"), map[string]int64{"loose_created{command=loose}": 1})
}

func TestW06_AnotherBodyUnderTheSameIDIsCounted(t *testing.T) {
	t.Parallel()
	r := newRig(t, telemetry.Config{})
	s := newShop(t, r)
	for _, cart := range []string{"c1", "c2"} {
		_, _ = bus.Send(request(t, "", key1), s.Bus, place{Cart: cart})
	}
	equal(t, "counters", r.counts(t, "idempotency_"), map[string]int64{counter("conflict"): 1})
}

func TestR24_AHandlerThatDoesNotUseItsTransactionIsCounted(t *testing.T) {
	t.Parallel()
	r := newRig(t, telemetry.Config{})
	s := newShop(t, r)
	s.idle = true
	if _, err := bus.Send(request(t, "", key1), s.Bus, place{}); err != nil {
		t.Fatal(err)
	}
	equal(t, "counters", r.counts(t, "idempotency_"), map[string]int64{counter("detached"): 1})
}

func TestQueriesAndChecksHaveNoStateOfTheirOwn(t *testing.T) {
	t.Parallel()
	r := newRig(t, telemetry.Config{})
	b := steps{}.bus(t, r)
	ctx := request(t, "a1", key1)
	requestctx.From(ctx).Report(outcome{State: requestctx.StateReplayed, Replayed: true, OriginalRequestID: "a0"}) // of a command before
	_, _ = bus.Ask(ctx, b, find{Order: "o1"})
	_, _ = bus.Ask(ctx, b, find{})
	_ = bus.Check(ctx, b, place{})
	equal(t, "metrics", r.metrics(t), map[string]int64{
		"tekil_dispatch_duration{command=checkout.find,kind=query,outcome=OK,state=none}":              1,
		"tekil_dispatch_duration{command=checkout.find,kind=query,outcome=ORDER_NOT_FOUND,state=none}": 1,
		series("check", "OK", "none"): 1,
	})
	for _, s := range r.spans.Ended() {
		got := attributes(s.Attributes())
		if got["tekil.state"] != "" || got["tekil.replayed"] != "" || got["tekil.original_request_id"] != "" {
			t.Errorf("a span says %v", got)
		}
	}
}

func TestADispatchBeginsWithoutTheOutcomeOfAnEarlierOneOnTheSameContext(t *testing.T) {
	t.Parallel()
	r := newRig(t, telemetry.Config{})
	b := steps{validate: func(_ context.Context, c place) (place, error) { return c, &codedError{"VALIDATION_FAILED"} }}.bus(t, r)
	ctx := request(t, "a1", key1)
	requestctx.From(ctx).Report(outcome{State: requestctx.StateReplayed, Replayed: true})
	_, _ = bus.Send(ctx, b, place{})
	equal(t, "counters", r.counts(t, "idempotency_"), map[string]int64{})
}

func TestLabelsAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, telemetry.Config{})
	code := ""
	b := steps{handle: func(ctx context.Context, _ place) (placed, error) {
		telemetry.SecondEffect(ctx, code)
		return placed{}, &codedError{code}
	}, claim: func(ctx context.Context, c place, next bus.Handler[place, placed]) (placed, error) {
		return next(ctx, c)
	}}.bus(t, r)
	for _, c := range []string{strings.Repeat("x", 65), "\xff"} {
		code = c
		_, _ = bus.Send(t.Context(), b, place{})
	}
	for i := range 300 {
		code = fmt.Sprintf("ORDER_%d", i)
		_, _ = bus.Send(t.Context(), b, place{})
	}
	ours := slices.DeleteFunc(allCodes(), func(c string) bool { return c == "PAYMENT_DECLINED" })
	for _, c := range append(ours, "ORDER_7", "PAYMENT_DECLINED") {
		code = c
		_, _ = bus.Send(t.Context(), b, place{})
	}
	got, of := r.counts(t, "tekil_dispatch_duration"), func(code string) string { return series("command", code, "none") }
	if len(got) != 101+len(ours) || got[of("other")] != 203 || got[of("ORDER_7")] != 2 || got[of("ORDER_99")] != 1 ||
		got[of("ORDER_100")] != 0 {
		t.Errorf("%d series: %v", len(got), got)
	}
	for _, c := range ours {
		if got[of(c)] != 1 {
			t.Errorf("%s has been counted %d times", c, got[of(c)])
		}
	}
	effects := r.counts(t, "idempotency_second_effect")
	if len(effects) != 101 || effects["idempotency_second_effect{command=checkout.place,effect=other}"] != int64(203+len(ours)) {
		t.Errorf("%d series: %v", len(effects), effects)
	}
}

func TestNothingOfTheRequestOrTheErrorIsALabel(t *testing.T) {
	t.Parallel()
	r := newRig(t, telemetry.Config{})
	s := newShop(t, r)
	s.place = func(context.Context, place) (placed, error) { return placed{}, errAway }
	_, _ = bus.Send(request(t, "attempt-77", key1), s.Bus, place{Cart: card})
	for name := range r.all(t) {
		for _, secret := range []string{key1, "acme", "attempt-77", card, "away"} {
			if strings.Contains(name, secret) {
				t.Errorf("%s holds %s", name, secret)
			}
		}
	}
}

func TestDurationsAreInSecondsAndDispatchesInFlightGoBackToZero(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, telemetry.Config{})
		seen := map[string]int64{}
		b := steps{handle: func(context.Context, place) (placed, error) {
			time.Sleep(40 * time.Second) // of the bubble's clock
			seen = r.counts(t, "tekil_dispatch_in_flight")
			panic(card)
		}}.bus(t, r)
		send(request(t, "a1", key1), b)
		equal(t, "during", seen, map[string]int64{"tekil_dispatch_in_flight{command=checkout.place,kind=command}": 1})
		equal(t, "after", r.counts(t, "tekil_dispatch_in_flight"), map[string]int64{})
		if sum := r.seconds(t); sum != 40 {
			t.Errorf("it took %v s", sum)
		}
	})
}

func TestADispatchWhoseCallerHasGoneIsCounted(t *testing.T) {
	t.Parallel()
	r := newRig(t, telemetry.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	b := steps{handle: func(ctx context.Context, _ place) (placed, error) {
		cancel()
		return placed{}, ctx.Err()
	}}.bus(t, r)
	_, _ = bus.Send(ctx, b, place{})
	equal(t, "durations", r.counts(t, "tekil_dispatch"),
		map[string]int64{series("command", "CANCELED", "none"): 1})
}

// several observers see a dispatch one after the other, all with the context of the last.
type several []bus.Observer

func (all several) Started(ctx context.Context, inv bus.Invocation) context.Context {
	for _, o := range all {
		ctx = o.Started(ctx, inv)
	}
	return ctx
}

func (all several) Ended(ctx context.Context, inv bus.Invocation, err error, panicked bool) {
	for _, o := range all {
		o.Ended(ctx, inv, err, panicked)
	}
}

func TestTwoObserversOfOneBusCountForThemselves(t *testing.T) {
	t.Parallel()
	one, two := newRig(t, telemetry.Config{}), newRig(t, telemetry.Config{})
	s := newShop(t, several{one, two})
	s.place = func(ctx context.Context, _ place) (placed, error) { return bus.Send(ctx, s.Bus, voucher{}) }
	if _, err := bus.Send(request(t, "a1", key1), s.Bus, place{}); err != nil {
		t.Fatal(err)
	}
	for _, r := range []*rig{one, two} {
		equal(t, "created", r.counts(t, "checkout_created"),
			map[string]int64{counter("created"): 1, "checkout_created{command=checkout.voucher}": 1})
		equal(t, "in flight", r.counts(t, "tekil_dispatch_in_flight"), map[string]int64{})
		if n := len(r.spans.Ended()); n != 2 {
			t.Errorf("%d spans", n)
		}
	}
}

// The race detector is what this test is for, and the counts.
func TestOneObserverServesManyGoroutines(t *testing.T) {
	t.Parallel()
	r := newRig(t, telemetry.Config{})
	b := steps{claim: func(ctx context.Context, c place, next bus.Handler[place, placed]) (placed, error) {
		req := requestctx.From(ctx)
		req.Report(outcome{State: requestctx.StateExecuted, OriginalRequestID: req.ID()})
		return next(ctx, c)
	}, handle: func(ctx context.Context, c place) (placed, error) {
		telemetry.SecondEffect(ctx, c.Cart)
		return placed{}, &codedError{c.Cart}
	}}.bus(t, r)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 50 {
				_, _ = bus.Send(request(t, "", key1), b, place{Cart: fmt.Sprint("CODE_", i)})
			}
		})
	}
	wg.Wait()
	got := r.metrics(t)
	if len(got) != 100 {
		t.Errorf("%d series", len(got))
	}
	for name, n := range got {
		if n != 8 {
			t.Errorf("%s = %d", name, n)
		}
	}
	if n := len(r.spans.Ended()); n != 400 {
		t.Errorf("%d spans", n)
	}
}

// The race detector is what this test is for; the provider has no locks that would hide a race.
func TestLabelsAreTakenByManyGoroutinesAtOnce(t *testing.T) {
	t.Parallel()
	o := newObserver(t, telemetry.Config{MeterProvider: noop.NewMeterProvider()})
	inv := bus.Invocation{Name: "checkout.place"}
	ctx := o.Started(t.Context(), inv)
	var names []string // made before, because package fmt has locks as well
	for i := range 200 {
		names = append(names, fmt.Sprint("NAME_", i))
	}
	var wg sync.WaitGroup
	start := make(chan struct{})
	for range 8 {
		wg.Go(func() {
			<-start
			for _, name := range names {
				telemetry.SecondEffect(ctx, name)
			}
			for _, name := range names {
				o.Ended(ctx, inv, &codedError{name}, false)
			}
		})
	}
	close(start)
	wg.Wait()
}

// Commands inside one that run at once are held by it together.
func TestWorkDoneInsideAtOnceIsAllCounted(t *testing.T) {
	t.Parallel()
	r := newRig(t, telemetry.Config{})
	s := newShop(t, r)
	s.place = func(ctx context.Context, _ place) (placed, error) {
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				own, _ := requestctx.New(ctx, requestctx.Values{})
				_, _ = bus.Send(own, s.Bus, voucher{})
			})
		}
		wg.Wait()
		return placed{}, nil
	}
	if _, err := bus.Send(request(t, "a1", key1), s.Bus, place{}); err != nil {
		t.Fatal(err)
	}
	if n := r.counts(t, "checkout_created")["checkout_created{command=checkout.voucher}"]; n != 8 {
		t.Errorf("%d vouchers", n)
	}
}
