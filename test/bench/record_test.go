// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestReadRecords(t *testing.T) {
	const lines = `{"experiment":"convergence","case":"10x1","contender":"ours","round":1,"values":{"seconds":1.5}}
{"experiment":"machine","values":{},"text":{"go":"go1.26"}}
`
	got, err := readRecords(strings.NewReader(lines))
	want := []Record{
		{Experiment: "convergence", Case: "10x1", Contender: "ours", Round: 1, Values: map[string]float64{"seconds": 1.5}},
		{Experiment: "machine", Values: map[string]float64{}, Text: map[string]string{"go": "go1.26"}},
	}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("got %v, and (-want +got):\n%s", err, diff)
	}
	if _, err := readRecords(strings.NewReader(lines + "{")); err == nil {
		t.Error("half a line was read without an error")
	}
}

func TestStatistics(t *testing.T) {
	values := []float64{5, 1, 4, 2, 3}
	if got := median(values); got != 3 {
		t.Errorf("the median of %v is %v", values, got)
	}
	if got := median(values[:4]); got != 3 {
		t.Errorf("the median of %v is %v", values[:4], got)
	}
	for percent, want := range map[float64]float64{0: 1, 20: 1, 21: 2, 99: 5, 100: 5} {
		if got := percentile(values, percent); got != want {
			t.Errorf("percentile %v of %v is %v, want %v", percent, values, got, want)
		}
	}
}

func TestBootstrap(t *testing.T) {
	same := bootstrap([]float64{2, 2, 2, 2, 2}, median)
	if diff := cmp.Diff(estimate{2, 2, 2}, same, cmp.AllowUnexported(estimate{})); diff != "" {
		t.Errorf("rounds that do not differ (-want +got):\n%s", diff)
	}
	rounds := []float64{1, 2, 3, 4, 100}
	got := bootstrap(rounds, median)
	if got.value != 3 || got.low != 1 || got.high != 100 {
		t.Errorf("the median of %v is %+v, want 3 from 1 to 100: each end is that of a draw in forty", rounds, got)
	}
	if again := bootstrap(rounds, median); again != got {
		t.Errorf("the same rounds gave %+v, then %+v", got, again)
	}
}
