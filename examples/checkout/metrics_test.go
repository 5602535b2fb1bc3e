package main

import (
	"bytes"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/tekil-go/tekil/behaviors/telemetry"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/examples/internal/metrics"
)

// The metrics of rule see-2 as Prometheus reads them, over HTTP.

// What the tests look at.
const (
	created      = "checkout_created_total"
	replays      = "idempotency_replay_total"
	conflicts    = "idempotency_conflict_total"
	inProgress   = "idempotency_in_progress_total"
	takeovers    = "idempotency_takeover_total"
	expiredReuse = "idempotency_expired_reuse_total"
	unknowns     = "idempotency_unknown_total"
	duration     = "tekil_dispatch_duration_seconds"
	inFlight     = "tekil_dispatch_in_flight"
)

// ofPlace is the metric's series of the command.
func ofPlace(metric string) string { return metric + " command=checkout.place" }

// placeCounters are the counters that stand at 0 from the first dispatch of the marked command on, by their series.
func placeCounters() []string {
	var all []string
	for _, m := range telemetry.Metrics() {
		if slices.Equal(m.Labels, []string{"command"}) {
			all = append(all, ofPlace(strings.Replace(m.Name, "*", "checkout", 1)))
		}
	}
	return all
}

// scrape reads /metrics as Prometheus does: by the name and labels of a series, its value, of a histogram the count. It demands that the
// names and labels are those that package telemetry documents, and that nothing of a payment is on the page.
func scrape(t *testing.T, base string, header http.Header) map[string]float64 {
	t.Helper()
	a, err := exchange(within(t), http.MethodGet, base+"/metrics", "", header)
	if err != nil {
		t.Fatal(err)
	}
	if a.status != http.StatusOK || !strings.HasPrefix(a.header.Get("Content-Type"), "text/plain; version=0.0.4") {
		t.Fatalf("%v", a)
	}
	for _, word := range []string{"metrics-key", "cart", "ada@", "draft", "auth_", "request_id"} {
		if bytes.Contains(a.body, []byte(word)) {
			t.Errorf("the page holds %q:\n%s", word, a.body)
		}
	}
	documented := map[string]telemetry.Metric{}
	for _, m := range telemetry.Metrics() {
		documented[strings.Replace(m.Name, "*", "checkout", 1)] = m
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(a.body))
	if err != nil {
		t.Fatalf("%v\n%s", err, a.body)
	}
	found := map[string]float64{}
	for name, f := range families {
		m, ok := documented[name]
		if !ok || f.GetHelp() != m.Help {
			t.Errorf("%s is not documented so: %s", name, f.GetHelp())
		}
		for _, series := range f.GetMetric() {
			var names []string
			id := name
			for _, l := range series.GetLabel() { // which come in order
				names = append(names, l.GetName())
				id += " " + l.GetName() + "=" + l.GetValue()
			}
			if !slices.Equal(names, slices.Sorted(slices.Values(m.Labels))) {
				t.Errorf("%s has the labels %v", name, names)
			}
			switch {
			case series.Counter != nil && strings.HasSuffix(name, "_total"):
				found[id] = series.GetCounter().GetValue()
			case series.Gauge != nil && name == inFlight:
				found[id] = series.GetGauge().GetValue()
			case series.Histogram != nil && name == duration:
				found[id] = float64(series.GetHistogram().GetSampleCount())
			default:
				t.Errorf("%s is of the type %v", name, f.GetType())
			}
		}
	}
	return found
}

// moves demands that work adds one to each of these counters of the command, two where it is named twice, and nothing to the others.
func moves(t *testing.T, base, what string, work func(), names ...string) {
	t.Helper()
	before := scrape(t, base, nil)
	work()
	after := scrape(t, base, nil)
	want := map[string]float64{}
	for _, name := range names {
		want[ofPlace(name)]++
	}
	for _, counter := range placeCounters() {
		value, ok := after[counter]
		if !ok {
			t.Errorf("%s: there is no %s", what, counter)
		}
		if added := value - before[counter]; added != want[counter] {
			t.Errorf("%s: %s went up by %v, want %v", what, counter, added, want[counter])
		}
	}
}

func TestSee2_TheProgramCountsWhatBecomesOfPayments(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		base := start(t, d.flags()...).base
		if got := scrape(t, base, nil); len(got) != 0 {
			t.Errorf("before anything was sent: %v", got)
		}
		key, body := d.key("metrics-key-1"), payment("cart-1", 4990)
		moves(t, base, "a form that is refused", func() {
			post(t, base, key, payment("cart-1", 0)).is(t, http.StatusBadRequest, "VALIDATION_FAILED")
		})
		for _, counter := range placeCounters() {
			if n, ok := scrape(t, base, nil)[counter]; n != 0 || !ok {
				t.Errorf("after the first dispatch %s is %v, %v", counter, n, ok)
			}
		}
		moves(t, base, "corrected, with the same key", func() { post(t, base, key, body).placed(t) }, created)
		moves(t, base, "another payload", func() {
			post(t, base, key, payment("cart-1", 5990)).is(t, http.StatusConflict, "IDEMPOTENCY_KEY_CONFLICT")
		}, conflicts)
		moves(t, base, "no key", func() { post(t, base, "", body).is(t, http.StatusBadRequest, "IDEMPOTENCY_KEY_MISSING") })

		key = d.key("metrics-key-2")
		moves(t, base, "an answer that is lost", func() {
			if a, err := send(within(t), base, key, body, "X-Demo-Drop", "1"); err == nil {
				t.Fatalf("it has come: %v", a)
			}
		}, created)
		moves(t, base, "the retry", func() {
			if a := post(t, base, key, body); a.replayed() != "true" {
				t.Errorf("%v", a)
			}
		}, replays)

		moves(t, base, "a declined payment, twice", func() {
			for range 2 {
				post(t, base, d.key("metrics-key-3"), payment("cart-1-declined", 4990)).is(t, http.StatusPaymentRequired, "PAYMENT_DECLINED")
			}
		}, replays)

		key = d.key("metrics-key-4")
		moves(t, base, "a duplicate while the first one runs", func() {
			slow := []string{"X-Demo-Delay", "3s"}
			first := make(chan answer, 1)
			go func() {
				a, err := send(within(t), base, key, body, slow...)
				if err != nil {
					t.Error(err)
				}
				first <- a
			}()
			running := inFlight + " command=checkout.place kind=command"
			for ctx := within(t); scrape(t, base, nil)[running] != 1; {
				if ctx.Err() != nil {
					t.Fatal("it is not seen in flight")
				}
			}
			second := post(t, base, key, body, slow...) // slow too: it may be the one that comes first to the claim
			a := await(t, first, "the first")
			if a.busy() {
				a, second = second, a
			}
			if a.placed(t); !second.busy() {
				t.Errorf("%v", second)
			}
			if n := scrape(t, base, nil)[running]; n != 0 {
				t.Errorf("%v are in flight still", n)
			}
		}, created, inProgress)

		// How it looks when keys do not arrive: a retry is new work, and no replay is seen.
		moves(t, base, "twice without a key that is read", func() {
			for range 2 {
				asNew(t, base, body).placed(t)
			}
		}, created, created)
		d.holds(t, 5, 4)

		durations := map[string]float64{}
		for series, n := range scrape(t, base, nil) {
			if labels, ok := strings.CutPrefix(series, duration+" command=checkout.place kind=command "); ok {
				durations[labels] = n
			} else if strings.HasPrefix(series, duration) {
				t.Errorf("there is %s", series)
			}
		}
		if want := map[string]float64{
			"outcome=VALIDATION_FAILED state=none":                      1,
			"outcome=OK state=executed":                                 3,
			"outcome=IDEMPOTENCY_KEY_CONFLICT state=conflict":           1,
			"outcome=IDEMPOTENCY_KEY_MISSING state=refused":             1,
			"outcome=OK state=replayed":                                 1,
			"outcome=PAYMENT_DECLINED state=executed":                   1,
			"outcome=PAYMENT_DECLINED state=replayed":                   1,
			"outcome=IDEMPOTENCY_REQUEST_IN_PROGRESS state=in_progress": 1,
			"outcome=OK state=none":                                     2,
		}; !maps.Equal(durations, want) {
			t.Errorf("dispatches: got %v, want %v", durations, want)
		}
	})
}

// A server dies behind the call to its provider. The next one says "in progress" until the lease is over, and takes over then.
func TestSee2_TheProgramCountsATakeover(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		f := provide(t, nil)
		flags := append(d.flags(), "-provider", f.base)
		key, body := d.key("metrics-key-1"), payment("cart-1", 4990)
		dies(t, afterCall, key, body, flags...)
		base := start(t, flags...).base
		moves(t, base, "before the lease is over", func() {
			if a := post(t, base, key, body); !a.busy() {
				t.Errorf("%v", a)
			}
		}, inProgress)
		d.expireLeases(t)
		moves(t, base, "afterwards", func() { post(t, base, key, body).placed(t) }, created, takeovers)
		moves(t, base, "once more", func() { post(t, base, key, body).placed(t) }, replays)
		d.settles(t, 1)
	})
}

func TestSee2_TheProgramCountsAPaymentOfWhichNobodyKnows(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		var answers atomic.Bool
		f := provide(t, func(int64) bool { return answers.Load() })
		base := start(t, append(d.flags(), "-provider", f.base)...).base
		key, body := d.key("metrics-key-1"), payment("cart-1", 4990)
		moves(t, base, "the provider's answers are lost", func() { post(t, base, key, body).unknown(t) }, unknowns)
		answers.Store(true)
		d.expireLeases(t)
		moves(t, base, "after the lease", func() { post(t, base, key, body).placed(t) }, created, takeovers)
	})
}

// In this process, where nobody removes the record that has expired.
func TestSee2_AKeyThatIsUsedAfterItsTimeIsCounted(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, d *database) {
		m, err := metrics.New()
		if err != nil {
			t.Fatal(err)
		}
		kept, store := d.open(t)
		s := serveWith(t, kept, store, options{observers: []bus.Observer{m.Observer}}, nil)
		base := listen(t, m.Beside(s.Handler))
		key, body := d.key("metrics-key-1"), payment("cart-1", 4990)
		moves(t, base, "the first time", func() { post(t, base, key, body).placed(t) }, created)
		d.expireRecords(t)
		moves(t, base, "after its time", func() { post(t, base, key, body).placed(t) }, created, expiredReuse)

		if err := m.Stop(within(t)); err != nil {
			t.Fatal(err)
		}
		if a := post(t, base, key, body); a.replayed() != "true" { // nobody counts, and the work goes on
			t.Errorf("%v", a)
		}
	})
}

func TestMetricsAreReadWhateverTheSwitchesDo(t *testing.T) {
	t.Parallel()
	for _, flags := range [][]string{nil, {"-demo=false"}, {"-demo=false", "-drop-answers"}} {
		base := start(t, append(sqliteDatabase(t).flags(), flags...)...).base
		post(t, base, "metrics-key-1", payment("cart-1", 4990)).placed(t)
		if n := scrape(t, base, headers("", "X-Demo-Drop", "1", "X-Demo-Delay", "soon"))[ofPlace(created)]; n != 1 {
			t.Errorf("%v: %s is %v", flags, created, n)
		}
	}
}
