// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"image/color"
	"image/png"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// raced are the records of a race of two rounds, in which a child takes each contender so many seconds.
func raced(size string, seconds map[string]float64) (records results) {
	for contender, each := range seconds {
		for round := range 2 {
			records = append(records, Record{
				Experiment: "convergence", Case: size, Contender: contender, Round: round + 1,
				Values: map[string]float64{"seconds": 100 * each, "children": 100},
			})
		}
		records = append(records, Record{
			Experiment: "convergence", Case: size, Contender: contender,
			Values: map[string]float64{"children": 200, "ended": 1, "requests": 300, "calls PATCH machines 409": 2},
		})
	}
	return records
}

func TestMeasurements(t *testing.T) {
	records := raced("10000x10", map[string]float64{"ours": 1, "bare+informer": 2})
	records = append(records,
		Record{Experiment: "convergence", Case: "1000x10", Contender: "ours", Values: map[string]float64{"converged": 100, "ended": 0, "requests": 1500}},
		Record{Experiment: "convergence", Case: "10000x10", Contender: "ours", Round: 3, Values: map[string]float64{"seconds": 1e6, "children": 1}},
		Record{Experiment: "flips", Contender: "ours", Round: 1, Values: map[string]float64{"p99_seconds": 1}},
		Record{Experiment: "flips", Contender: "ours", Round: 2, Values: map[string]float64{"p99_seconds": 2}},
		Record{Experiment: "flips", Contender: "ours", Round: 3, Values: map[string]float64{"p99_seconds": 9}},
	)
	for _, test := range []struct {
		reason  string
		measure measurement
		want    estimate
		none    bool
	}{
		{reason: "a round counts where both took part", measure: rateRatio("convergence", "10000x10", "ours", "bare+informer", "children"), want: estimate{2, 2, 2}},
		{reason: "nobody else took part", measure: rateRatio("convergence", "10000x10", "ours", "replicaset", "children"), none: true},
		{reason: "another size", measure: rateRatio("convergence", "1000x10", "ours", "bare+informer", "children"), none: true},
		{reason: "300 of 120,000", measure: requestRatio("10000x10"), want: exactly(0.0025)},
		{reason: "the time was up when 100 of 1,000 had all of theirs", measure: requestRatio("1000x10"), want: exactly(1.25)},
		{reason: "the API server has counted them", measure: conflicts("10000x10"), want: exactly(2)},
		{reason: "the median of all rounds", measure: typical("flips", "", "ours", "p99_seconds"), want: estimate{2, 1, 9}},
		{reason: "no round says so", measure: typical("flips", "", "ours", "p50_seconds"), none: true},
	} {
		got, ok := test.measure(records)
		if ok == test.none || ok && got != test.want {
			t.Errorf("%s: got %+v, %t, want %+v", test.reason, got, ok, test.want)
		}
	}
}

func TestQuickest(t *testing.T) {
	records := raced("500x10", map[string]float64{"ours 1": 0.1, "bare 8": 3, "bare 16": 2, "bare 32": 2.1})
	if got := records.quickest("convergence", "500x10", "bare "); got != "16" {
		t.Errorf("got %q", got)
	}
}

func TestGoals(t *testing.T) {
	for _, test := range []struct {
		least bool
		e     estimate
		want  bool
	}{
		{true, estimate{9, 1, 9}, true},
		{true, estimate{9, 0.9, 9}, false}, // the bad end counts
		{false, estimate{0, 0, 1}, true},
		{false, estimate{0, 0, 1.1}, false},
		{false, estimate{math.NaN(), math.NaN(), math.NaN()}, false},
	} {
		if got := (goal{least: test.least, limit: 1}).met(test.e); got != test.want {
			t.Errorf("%+v meets a goal of 1, being at least that: %t: got %t", test.e, test.least, got)
		}
	}
}

func TestNumbers(t *testing.T) {
	for _, test := range []struct{ got, want string }{
		{withSizes("at 10000x10 and 500x1000"), "at 10,000 × 10 and 500 × 1,000"},
		{significant(0), "0"},
		{significant(0.85), "0.85"},
		{significant(1.0239), "1.02"},
		{significant(0.0012345), "0.00123"},
		{significant(12345.6), "12346"},
		{significant(math.Inf(1)), "+Inf"},
		{duration(0), "0 s"},
		{duration(20e-6), "20 µs"},
		{duration(0.025), "25 ms"},
		{duration(2.5), "2.5 s"},
		{byteSize(100), "100 bytes"},
		{byteSize(1536), "1.5 KiB"},
		{byteSize(256 << 20), "256 MiB"},
		{percentage(0.005), "0.5 %"},
		{estimate{1, 0.5, 2}.write(significant), "1 (0.5 to 2)"},
		{exactly(3).write(significant), "3"},
	} {
		if test.got != test.want {
			t.Errorf("got %q, want %q", test.got, test.want)
		}
	}
}

func TestPublish(t *testing.T) {
	var data bytes.Buffer
	data.WriteString(`{"experiment":"machine","values":{"cores":2,"memory_bytes":1,"fsync_seconds":0.001},"text":{"cpu":"Z80"}}`)
	for _, record := range raced("10000x10", map[string]float64{"ours": 1, "bare+informer": 0.5, "replicaset": 2, "tutorial": 60}) {
		if err := json.NewEncoder(&data).Encode(record); err != nil {
			t.Fatal(err)
		}
	}
	pages, err := publish(data.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	page := string(pages["performance.md"])
	for _, want := range []string{
		"at 10,000 × 10 | at least 0.85 | 0.5 | no |",
		"ours / ReplicaSet controller, at 10,000 × 10 | at least 1.5 | 2 | yes |",
		"at 100 × 1,000 | at least 0.85 | not measured | – |",
		"\n**P1.** ",
		"| tutorial | 0 % | 0.0167 | 60 |",
		"| processor | Z80, 2 cores",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("it does not say %q:\n%s", want, page)
		}
	}
	if strings.Contains(page, "**P1b.**") {
		t.Error("it explains a figure that was reached")
	}
	again, err := publish(data.Bytes())
	if diff := cmp.Diff(pages, again); err != nil || diff != "" {
		t.Errorf("the same records made something else: %v\n%s", err, diff)
	}
}

// What is published has to be what the program makes of the published records.
func TestPublished(t *testing.T) {
	const docs = "../../docs"
	data, err := os.ReadFile(filepath.Join(docs, "performance", resultsFile))
	if err != nil {
		t.Fatal(err)
	}
	pages, err := publish(data)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range pages {
		got, err := os.ReadFile(filepath.Join(docs, name))
		if err != nil {
			t.Fatal(err)
		}
		switch ext := filepath.Ext(name); {
		case ext != ".md" && runtime.GOARCH != "amd64": // other processors round otherwise, where points are placed
		case ext == ".png": // another Go may compress otherwise
			if !slices.Equal(pixels(t, want), pixels(t, got)) {
				t.Errorf("docs/%s is another picture: bin/bench/bench report docs/performance docs", name)
			}
		case !bytes.Equal(want, got):
			t.Errorf("docs/%s was not made of the records: bin/bench/bench report docs/performance docs", name)
		}
	}
}

// pixels are the colors of a picture, row by row.
func pixels(t *testing.T, data []byte) (colors []color.Color) {
	t.Helper()
	picture, err := png.Decode(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	for y := range picture.Bounds().Dy() {
		for x := range picture.Bounds().Dx() {
			colors = append(colors, picture.At(x, y))
		}
	}
	return colors
}

// A contender that is not known to the tables, the plot or the page would be missing there.
func TestEveryContenderIsExplained(t *testing.T) {
	for _, name := range order {
		if !strings.Contains(pageTemplate, fmt.Sprintf("| %s | ", name)) && name != "base" {
			t.Errorf("the page does not say what %q is", name)
		}
	}
}
