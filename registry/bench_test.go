package registry_test

import (
	"slices"
	"testing"
	"time"

	"github.com/tekil-go/tekil/bus"
)

// The goal D3: the whole pipeline without a store takes at most 1.10 times as long as its parts called one after another,
// which are validator on the command, the handler, and the line with the time that it took. In ratio the two are measured
// in turn, and the median of the rounds is reported; the others show where the time goes.
//
//	go test -run '^$' -bench Pipeline -benchtime 200x ./registry   # ratio
//	go test -run '^$' -bench Pipeline/alone ./registry
func BenchmarkPipeline(b *testing.B) {
	p := newAlone(b)
	pipeline := p.bus(b)
	send, err := bus.Bind[order](pipeline)
	if err != nil {
		b.Fatal(err)
	}
	whole := func() error {
		_, err := send(p.ctx, p.cmd)
		return err
	}
	parts := func() error {
		start := time.Now()
		if err := p.validate(); err != nil {
			return err
		}
		_, err := takeOrder(p.ctx, p.cmd)
		p.line(start)
		return err
	}
	b.Run("ratio", func(b *testing.B) {
		const calls = 2000
		window := func(f func() error) time.Duration {
			start := time.Now()
			for range calls {
				if err := f(); err != nil {
					b.Fatal(err)
				}
			}
			return time.Since(start)
		}
		var ratios, bases []float64
		for round := 0; b.Loop(); round++ {
			var w, p time.Duration
			if round%2 == 0 {
				w, p = window(whole), window(parts)
			} else {
				p, w = window(parts), window(whole)
			}
			ratios, bases = append(ratios, float64(w)/float64(p)), append(bases, float64(p.Nanoseconds())/calls)
		}
		slices.Sort(ratios)
		slices.Sort(bases)
		b.ReportMetric(ratios[len(ratios)/2], "whole/parts")
		b.ReportMetric(bases[len(bases)/2], "parts-ns")
		b.ReportMetric(testing.AllocsPerRun(100, func() { _ = whole() })-testing.AllocsPerRun(100, func() { _ = parts() }), "more-allocs")
		b.ReportMetric(0, "ns/op") // of a round, which says nothing
	})
	for name, f := range map[string]func() error{
		"whole":           whole,
		"parts":           parts,
		"alone/validator": p.validate,
		"alone/line":      func() error { p.line(time.Now()); return nil },
		"alone/send": func() error {
			_, err := bus.Send(p.ctx, pipeline, p.cmd)
			return err
		},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := f(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
