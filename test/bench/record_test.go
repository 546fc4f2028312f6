// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestReadRecords(t *testing.T) {
	const lines = `{"experiment":"convergence","case":"10x1","subject":"ours","round":1,"values":{"seconds":1.5}}
{"experiment":"machine","values":{},"text":{"go":"go1.26"}}
`
	got, err := readRecords(strings.NewReader(lines))
	want := results{
		{Experiment: "convergence", Case: "10x1", Subject: "ours", Round: 1, Values: map[string]float64{"seconds": 1.5}},
		{Experiment: "machine", Values: map[string]float64{}, Text: map[string]string{"go": "go1.26"}},
	}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("got error %v; records (-want +got):\n%s", err, diff)
	}
	if _, err := readRecords(strings.NewReader(lines + "{")); err == nil {
		t.Error("got no error for an incomplete line")
	}
}

func TestStatistics(t *testing.T) {
	values := []float64{5, 1, 4, 2, 3}
	if got := median(values); got != 3 {
		t.Errorf("median of %v is %v, want 3", values, got)
	}
	if got := median(values[:4]); got != 3 {
		t.Errorf("median of %v is %v, want 3", values[:4], got)
	}
	for percent, want := range map[float64]float64{0: 1, 20: 1, 21: 2, 99: 5, 100: 5} {
		if got := percentile(values, percent); got != want {
			t.Errorf("percentile %v of %v is %v, want %v", percent, values, got, want)
		}
	}
}

func TestBootstrap(t *testing.T) {
	if got, _ := bootstrap([]float64{2, 2, 2, 2, 2}); got != exactly(2) {
		t.Errorf("interval of equal values is %+v, want %+v", got, exactly(2))
	}
	values := []float64{1, 2, 3, 4, 100}
	got, _ := bootstrap(values)
	if want := (estimate{3, 1, 100}); got != want {
		t.Errorf("interval of %v is %+v, want %+v", values, got, want)
	}
	if again, _ := bootstrap(values); again != got {
		t.Errorf("the same values gave %+v, then %+v", got, again)
	}
}
