package main

import (
	"bytes"
	"image/color"
	"math"
	"os"
	"path/filepath"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// flows are the curves of the sweep, with the colours of one that tells them apart for eyes that see few colours (Okabe and Ito).
var flows = []struct {
	name, label string
	color       color.Color
}{
	{"bare", "bare transaction", color.RGBA{0, 0, 0, 255}},
	{"atomic", "Atomic command", color.RGBA{0, 114, 178, 255}},
	{"leased", "Leased command", color.RGBA{213, 94, 0, 255}},
	{"replay", "replay", color.RGBA{0, 158, 115, 255}},
}

// plots writes the curves that the results have points for.
func plots(dir string, r results) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	throughput := chart("Throughput", "requests at once", "operations a second")
	latency := chart("Latency: half of the requests (—) and 99 in a hundred (- -) take at most", "requests at once", "milliseconds")
	for _, p := range []*plot.Plot{throughput, latency} {
		p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, decades{}
		p.Y.Label.Text += " (logarithmic)"
	}
	swept := 0
	for _, f := range flows {
		var perSec, p50, p99 plotter.XYs
		for _, n := range sweepWorkers {
			m := r[bench{pgstore, sweepName(n)}]
			if m == nil {
				continue
			}
			x := float64(n)
			perSec = append(perSec, plotter.XY{X: x, Y: m[f.name+"/s"]})
			p50 = append(p50, plotter.XY{X: x, Y: max(m[f.name+"-p50-us"], 1) / 1000})
			p99 = append(p99, plotter.XY{X: x, Y: max(m[f.name+"-p99-us"], 1) / 1000})
		}
		if swept = len(perSec); swept == 0 {
			break
		}
		for _, c := range []struct {
			on     *plot.Plot
			label  string
			points plotter.XYs
			dashed bool
		}{{throughput, f.label, perSec, false}, {latency, f.label, p50, false}, {latency, "", p99, true}} {
			if err := curve(c.on, c.label, c.points, f.color, c.dashed); err != nil {
				return err
			}
		}
	}
	if swept > 0 {
		throughput.X.Tick.Marker, latency.X.Tick.Marker = marks(sweepWorkers), marks(sweepWorkers)
		if err := save(throughput, filepath.Join(dir, "throughput.svg")); err != nil {
			return err
		}
		if err := save(latency, filepath.Join(dir, "latency.svg")); err != nil {
			return err
		}
	}
	return drawSizes(dir, r)
}

// drawSizes writes how the cost of a claim depends on how many records there are.
func drawSizes(dir string, r results) error {
	p := chart("Atomic commands among many records, 8 at once", "records in the table", "throughput, to an empty table")
	points := 0
	for i, keys := range claimKeys {
		var curveOf plotter.XYs
		for _, records := range claimRecords {
			if m := r[bench{pgstore, claimName(records, keys)}]; m != nil {
				curveOf = append(curveOf, plotter.XY{X: float64(records), Y: m["x-bare"]})
			}
		}
		if points = len(curveOf); points == 0 {
			return nil
		}
		if err := curve(p, "UUID"+keys+" keys", curveOf, flows[i+1].color, false); err != nil {
			return err
		}
	}
	one := plotter.NewFunction(func(float64) float64 { return 1 })
	one.Dashes = []vg.Length{vg.Points(2), vg.Points(3)}
	p.Add(one)
	p.X.Tick.Marker = marks(claimRecords)
	p.X.Min, p.X.Max = float64(claimRecords[0]), float64(claimRecords[len(claimRecords)-1]) // also where not all sizes were measured
	p.Y.Min, p.Y.Max = 0, max(p.Y.Max, 1.2)
	return save(p, filepath.Join(dir, "records.svg"))
}

// chart is an empty diagram whose x axis is logarithmic.
func chart(title, x, y string) *plot.Plot {
	p := plot.New()
	sans := font.Font{Typeface: "Liberation", Variant: "Sans"}
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, x+" (logarithmic)", y
	p.Title.TextStyle.Font = font.From(sans, 13)
	for _, f := range []*font.Font{&p.X.Label.TextStyle.Font, &p.Y.Label.TextStyle.Font, &p.X.Tick.Label.Font, &p.Y.Tick.Label.Font, &p.Legend.TextStyle.Font} {
		*f = font.From(sans, 11)
	}
	p.Title.Padding, p.Legend.Padding = vg.Points(8), vg.Points(3)
	p.Legend.Top, p.Legend.Left = true, true
	p.Legend.XOffs = vg.Points(8)
	p.X.Scale = plot.LogScale{}
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = color.Gray{225}, color.Gray{225}
	p.Add(grid)
	return p
}

func curve(p *plot.Plot, label string, points plotter.XYs, c color.Color, dashed bool) error {
	line, dots, err := plotter.NewLinePoints(points)
	if err != nil {
		return err
	}
	line.Color, line.Width = c, vg.Points(1.8)
	dots.Color, dots.Radius, dots.Shape = c, vg.Points(2.5), draw.CircleGlyph{}
	if dashed {
		line.Dashes = []vg.Length{vg.Points(5), vg.Points(4)}
	}
	p.Add(line, dots)
	if label != "" {
		p.Legend.Add(label, line, dots)
	}
	return nil
}

// marks labels an axis at these numbers and nowhere else.
func marks(at []int) plot.ConstantTicks {
	var ticks plot.ConstantTicks
	for _, n := range at {
		ticks = append(ticks, plot.Tick{Value: float64(n), Label: thousands(float64(n))})
	}
	return ticks
}

// decades labels a logarithmic axis at 1, 2 and 5 of each power of ten.
type decades struct{}

func (decades) Ticks(least, most float64) (ticks []plot.Tick) {
	for e := math.Floor(math.Log10(least)); e <= math.Log10(most); e++ {
		for _, m := range []float64{1, 2, 5} {
			if v := m * math.Pow(10, e); v >= least && v <= most {
				ticks = append(ticks, plot.Tick{Value: v, Label: strconv.FormatFloat(v, 'f', -1, 64)})
			}
		}
	}
	return ticks
}

// save writes the diagram on white, with a margin, and with names of fonts of which every system has one.
func save(p *plot.Plot, file string) error {
	c := vgsvg.New(18*vg.Centimeter, 11*vg.Centimeter)
	whole, margin := draw.New(c), vg.Points(9)
	whole.SetColor(color.White)
	whole.Fill(whole.Rectangle.Path())
	p.Draw(draw.Crop(whole, margin, -2*margin, margin, -margin))
	var b bytes.Buffer
	if _, err := c.WriteTo(&b); err != nil {
		return err
	}
	svg := bytes.ReplaceAll(b.Bytes(), []byte("font-family:Liberation Sans"), []byte("font-family:Liberation Sans,Arial,sans-serif"))
	return os.WriteFile(file, svg, 0o644)
}
