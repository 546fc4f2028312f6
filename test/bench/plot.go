// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"errors"
	"image/color"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// A curve is how long a contender takes for Machines of ten switches each.
type curve struct {
	name   string
	color  color.Color
	shape  draw.GlyphDrawer
	points []point
}

// A point is one size of the experiment.
type point struct {
	plotter.XY      // switches, seconds
	atLeast    bool // the contender did not finish, and would have taken longer than at its rate so far
}

// styles are how curves are drawn: those of a palette that people who do not see all colors can tell apart.
var styles = []curve{
	{name: "tutorial", color: color.RGBA{R: 0xd5, G: 0x5e, A: 0xff}, shape: draw.SquareGlyph{}},
	{name: "sample", color: color.RGBA{R: 0xe6, G: 0x9f, A: 0xff}, shape: draw.PyramidGlyph{}},
	{name: "replicaset", color: color.RGBA{R: 0x56, G: 0xb4, B: 0xe9, A: 0xff}, shape: draw.BoxGlyph{}},
	{name: "bare+informer", color: color.Black, shape: draw.CrossGlyph{}},
	{name: "ours", color: color.RGBA{G: 0x72, B: 0xb2, A: 0xff}, shape: draw.CircleGlyph{}},
}

// plotConvergence draws how long contenders take, both axes being logarithmic.
func plotConvergence(records results, format string) ([]byte, error) {
	p := plot.New()
	for _, text := range []*font.Font{
		&p.Title.TextStyle.Font, &p.X.Label.TextStyle.Font, &p.Y.Label.TextStyle.Font, &p.X.Tick.Label.Font, &p.Y.Tick.Label.Font, &p.Legend.TextStyle.Font,
	} {
		text.Variant = "Sans"
	}
	p.BackgroundColor = color.White
	p.X.Label.Text, p.Y.Label.Text = "Machines × switches, 10 switches each", "seconds until all Machines are ready"
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.X.Tick.Marker, p.Y.Tick.Marker = plot.LogTicks{Prec: -1}, plot.LogTicks{Prec: -1}
	p.X.Padding, p.Y.Padding = vg.Points(6), vg.Points(6)
	p.Legend.Top, p.Legend.Left = true, true
	grid := plotter.NewGrid()
	grid.Horizontal.Color, grid.Vertical.Color = color.Gray{Y: 0xe0}, color.Gray{Y: 0xe0}
	p.Add(grid)
	drawn := false
	for _, c := range styles {
		if c.measure(records); len(c.points) > 0 {
			if err := c.draw(p); err != nil {
				return nil, err
			}
			drawn = true
		}
	}
	if !drawn {
		return nil, errors.New("there are no records of it")
	}
	p.X.Min, p.X.Max = p.X.Min/1.3, p.X.Max*1.3
	p.Y.Min, p.Y.Max = p.Y.Min/1.3, p.Y.Max*2 // an arrow has to fit
	canvas, err := p.WriterTo(18*vg.Centimeter, 12*vg.Centimeter, format)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	if _, err := canvas.WriteTo(&out); err != nil {
		return nil, err
	}
	// Whoever has not the font that the plot is set in has one of these, which are as wide.
	return bytes.ReplaceAll(out.Bytes(), []byte("font-family:Liberation Sans"), []byte("font-family:Liberation Sans,Arial,Helvetica,sans-serif")), nil
}

// measure finds the points of a curve.
func (c *curve) measure(records results) {
	for _, sum := range records {
		if sum.Experiment != "convergence" || sum.Contender != c.name || sum.Round != 0 || parseSize(sum.Case).switches != 10 {
			continue
		}
		rounds := records.byRound("convergence", sum.Case, c.name)
		if total := float64(parseSize(sum.Case).total()); len(rounds) > 0 {
			xy := plotter.XY{X: total, Y: total * overall(rounds, 0, "seconds", "children")}
			c.points = append(c.points, point{xy, sum.Values["ended"] == 0})
		}
	}
	slices.SortFunc(c.points, func(a, b point) int { return cmp.Compare(a.X, b.X) })
}

func (c *curve) draw(p *plot.Plot) error {
	xys := make(plotter.XYs, len(c.points))
	for i := range xys {
		xys[i] = c.points[i].XY
	}
	line, points, err := plotter.NewLinePoints(xys)
	if err != nil {
		return err
	}
	line.Color, line.Width = c.color, vg.Points(1.2)
	points.GlyphStyle = draw.GlyphStyle{Color: c.color, Radius: vg.Points(3.5), Shape: c.shape}
	points.GlyphStyleFunc = func(i int) draw.GlyphStyle {
		style := points.GlyphStyle
		if c.points[i].atLeast {
			style.Shape = upwards{}
		}
		return style
	}
	p.Add(line, points)
	p.Legend.Add(c.name, line, points)
	return nil
}

// upwards is the glyph of a point that is a lower bound: an arrow.
type upwards struct{}

func (upwards) DrawGlyph(c *draw.Canvas, style draw.GlyphStyle, at vg.Point) {
	top, tip := vg.Point{X: at.X, Y: at.Y + 5*style.Radius}, style.Radius
	c.SetLineStyle(draw.LineStyle{Color: style.Color, Width: vg.Points(1.2)})
	for _, from := range []vg.Point{at, {X: top.X - tip, Y: top.Y - tip}, {X: top.X + tip, Y: top.Y - tip}} {
		var path vg.Path
		path.Move(from)
		path.Line(top)
		c.Stroke(path)
	}
}
