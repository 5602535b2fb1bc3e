package telemetry_test

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	promexporter "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/tekil-go/tekil/behaviors/telemetry"
	"github.com/tekil-go/tekil/bus"
)

// named is a metric's name for the command checkout.place.
func named(m telemetry.Metric) string { return strings.Replace(m.Name, "*", "checkout", 1) }

func TestSee2_PrometheusShowsEachMetricOfTheTableUnderItsNameAndNoOther(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	reader, err := promexporter.New(promexporter.WithRegisterer(registry), promexporter.WithoutTargetInfo(), promexporter.WithoutScopeInfo())
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, telemetry.Config{MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))})
	b := ends()["success"].steps.bus(t, r)
	if f := send(request(t, "a1", key1), b); f.err != nil {
		t.Fatal(f.err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, f := range families {
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, l.GetName())
		}
		got[f.GetName()] = f.GetHelp() + " " + strings.Join(labels, ",")
	}
	want := map[string]string{}
	for _, m := range telemetry.Metrics() {
		want[named(m)] = m.Help + " " + strings.Join(slices.Sorted(slices.Values(m.Labels)), ",")
	}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestSee2_TheDocumentationNamesEachMetricOfTheTableAndNoOther(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	told := map[string]bool{}
	for _, name := range regexp.MustCompile(`(?m)^// ((?:idempotency|checkout|tekil)_\w+)[:,]`).FindAllStringSubmatch(string(doc), -1) {
		told[name[1]] = true
	}
	want := map[string]bool{}
	for _, m := range telemetry.Metrics() {
		want[named(m)] = true
		if m.Instrument == "" || m.Unit == "" || m.Help == "" || m.Labels[0] != "command" {
			t.Errorf("%+v is not described", m)
		}
	}
	if !maps.Equal(told, want) {
		t.Errorf("doc.go tells of %v, want %v", slices.Sorted(maps.Keys(told)), slices.Sorted(maps.Keys(want)))
	}
}

func TestTheDocumentationNamesEachAttributeOfASpan(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	code, err := os.ReadFile("span.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range regexp.MustCompile(`"((?:tekil|error)\.\w+)"`).FindAllStringSubmatch(string(code), -1) {
		if !strings.Contains(string(doc), name[1]) {
			t.Errorf("doc.go does not tell of %s", name[1])
		}
	}
}

var _ bus.Observer = (*telemetry.Observer)(nil)
