package telemetry_test

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	promexporter "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/behaviors/idempotency/memstore"
	"github.com/tekil-go/tekil/behaviors/telemetry"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
)

// prometheusMeters gives a provider and what a scrape of it shows, of the lines with one of the prefixes.
func prometheusMeters() (*sdkmetric.MeterProvider, func(prefixes ...string)) {
	registry := prometheus.NewRegistry()
	exporter, err := promexporter.New(promexporter.WithRegisterer(registry), promexporter.WithoutScopeInfo())
	if err != nil {
		panic(err)
	}
	handler := promhttp.HandlerFor(registry, promhttp.HandlerOpts{}) // for GET /metrics
	return sdkmetric.NewMeterProvider(sdkmetric.WithReader(exporter)), func(prefixes ...string) {
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, httptest.NewRequest("GET", "/metrics", nil))
		for line := range strings.Lines(answer.Body.String()) {
			for _, prefix := range prefixes {
				if strings.HasPrefix(line, prefix) {
					fmt.Print(line)
				}
			}
		}
	}
}

// exampleBus serves place with an observer; an application leaves this to package registry.
func exampleBus(obs bus.Observer, store *memstore.Store, h bus.Handler[place, placed]) *bus.Bus {
	engine, err := idempotency.New(idempotency.Config{Store: store})
	if err != nil {
		panic(err)
	}
	rung, _, err := idempotency.Stage(engine, h)
	if err != nil {
		panic(err)
	}
	inv := bus.Invocation{Name: "checkout.place", Idempotent: true}
	b, err := bus.New(bus.Serve[place](bus.Log(bus.Validate(rung, inv, nil, nil), inv, nil, obs)))
	if err != nil {
		panic(err)
	}
	return b
}

func exampleRequest() context.Context {
	key, _ := requestctx.ParseKey("8e03978e-40d5-43e8-bc93-6894a57f9324")
	ctx, _ := requestctx.New(context.Background(), requestctx.Values{Key: key, Scope: requestctx.Scope{Client: "acme-erp"}})
	return ctx
}

// What a scrape shows after an order whose answer was lost twice, and a client that took its key for another cart.
func ExampleNew() {
	meters, scrape := prometheusMeters()
	obs, err := telemetry.New(telemetry.Config{MeterProvider: meters})
	if err != nil {
		fmt.Println(err)
		return
	}
	store := memstore.New()
	b := exampleBus(obs, store, func(ctx context.Context, _ place) (placed, error) {
		return placed{Order: "o1"}, store.InTx(ctx, func(ctx context.Context) error { return store.Insert(ctx, "o1") })
	})
	for range 3 {
		if _, err := bus.Send(exampleRequest(), b, place{Cart: "c1"}); err != nil {
			fmt.Println(err)
		}
	}
	_, err = bus.Send(exampleRequest(), b, place{Cart: "c2"})
	fmt.Println(bus.CodeOf(err))
	scrape("idempotency_", "checkout_")
	// Output:
	// IDEMPOTENCY_KEY_CONFLICT
	// checkout_created_total{command="checkout.place"} 1
	// idempotency_conflict_total{command="checkout.place"} 1
	// idempotency_detached_total{command="checkout.place"} 0
	// idempotency_expired_reuse_total{command="checkout.place"} 0
	// idempotency_in_progress_total{command="checkout.place"} 0
	// idempotency_lost_total{command="checkout.place"} 0
	// idempotency_replay_total{command="checkout.place"} 2
	// idempotency_takeover_total{command="checkout.place"} 0
	// idempotency_unknown_total{command="checkout.place"} 0
	// idempotency_unprotected_total{command="checkout.place"} 0
}

func ExampleObserver_Enabled() {
	obs, err := telemetry.New(telemetry.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(obs.Enabled())
	// Output: false
}

// A handler that keeps book of its mails knows when it sends one again.
func ExampleSecondEffect() {
	meters, scrape := prometheusMeters()
	obs, err := telemetry.New(telemetry.Config{MeterProvider: meters})
	if err != nil {
		fmt.Println(err)
		return
	}
	store, mailed := memstore.New(), map[string]bool{}
	b := exampleBus(obs, store, func(ctx context.Context, cmd place) (placed, error) {
		first := !mailed[cmd.Cart]
		if mailed[cmd.Cart] = true; first {
			return placed{}, errors.New("the database is away") // after the mail, before the commit
		}
		telemetry.SecondEffect(ctx, "order_mail")
		return placed{Order: "o1"}, store.InTx(ctx, func(ctx context.Context) error { return store.Insert(ctx, "o1") })
	})
	for range 2 {
		_, _ = bus.Send(exampleRequest(), b, place{Cart: "c1"})
	}
	scrape("idempotency_second_effect_total")
	// Output: idempotency_second_effect_total{command="checkout.place",effect="order_mail"} 1
}

func ExampleMetrics() {
	for _, m := range telemetry.Metrics()[:2] {
		fmt.Println(m.Name, m.Labels, m.Help)
	}
	// Output:
	// idempotency_replay_total [command] Dispatches that were given the stored outcome of an earlier attempt.
	// idempotency_conflict_total [command] Dispatches refused because their key belongs to another payload.
}
