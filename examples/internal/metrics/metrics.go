// Package metrics is how the examples let Prometheus read what they count: the whole of what a program has to do for it.
package metrics

import (
	"context"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	promexporter "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/tekil-go/tekil/behaviors/telemetry"
)

// Metrics are what a program counts (rule see-2).
type Metrics struct {
	Observer *telemetry.Observer // for registry.Config.Observers of every bus
	Page     http.Handler
	Stop     func(context.Context) error // after which nothing is counted; nothing that was is lost, because Prometheus comes and reads
}

// New begins at 0.
func New() (*Metrics, error) {
	counted := prometheus.NewRegistry() // of this program alone: what a library puts into the global one is not shown
	exporter, err := promexporter.New(promexporter.WithRegisterer(counted),
		promexporter.WithoutScopeInfo(), promexporter.WithoutTargetInfo()) // the names and labels of package telemetry, and no others
	if err != nil {
		return nil, err
	}
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(exporter))
	observer, err := telemetry.New(telemetry.Config{MeterProvider: provider})
	if err != nil {
		return nil, err
	}
	return &Metrics{observer, promhttp.HandlerFor(counted, promhttp.HandlerOpts{}), provider.Shutdown}, nil
}

// Beside adds the page to the routes of next, at /metrics. It is for whoever runs the service and not for callers: it tells them how much
// is sold. The examples listen on the loopback address; in operation the page has an inner address of its own.
func (m *Metrics) Beside(next http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", m.Page)
	mux.Handle("/", next)
	return mux
}
