// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"container.training/useless/test/history"
)

var noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

func after(seconds float64) time.Time { return noon.Add(time.Duration(seconds * float64(time.Second))) }

func TestBlame(t *testing.T) {
	w := &world{}
	w.blame(nil)
	if err := w.stop(); err != nil {
		t.Errorf("nothing to blame: %v", err)
	}
	w.blame([]error{errors.New("one too many"), errors.New("another")})
	if err := w.stop(); err == nil || !strings.Contains(err.Error(), "2 things that must not be, the first of them: one too many") {
		t.Errorf("two faults: got error %v, want one that says so", err)
	}
}

func TestAddFaults(t *testing.T) {
	values := map[string]float64{}
	if err := addFaults(values, []flip{{Flip: history.Flip{Machine: "m"}}}); err != nil {
		t.Errorf("a good flip: %v", err)
	}
	if diff := cmp.Diff(map[string]float64{"early": 0, "crowded": 0, "doubled": 0}, values); diff != "" {
		t.Errorf("a good flip (-want +got):\n%s", diff)
	}
	err := addFaults(values, []flip{{Flip: history.Flip{Machine: "good"}}, {Flip: history.Flip{Machine: "bad", Fault: history.Crowded}}})
	if diff := cmp.Diff(map[string]float64{"early": 0, "crowded": 1, "doubled": 0}, values); diff != "" {
		t.Errorf("a bad flip (-want +got):\n%s", diff)
	}
	if err == nil || !strings.Contains(err.Error(), "Machine:bad") {
		t.Errorf("a bad flip: got error %v, want one that names it", err)
	}
}

func TestLateness(t *testing.T) {
	var flips []flip
	for i := range 100 { // from 10 ms to 1 s, and decided half of that after they were due
		late := time.Duration(i+1) * 10 * time.Millisecond
		flips = append(flips, flip{history.Flip{Due: noon, At: noon.Add(late / 2)}, noon.Add(late)})
	}
	values := map[string]float64{}
	addLateness(values, flips)
	want := map[string]float64{
		"lateness_p50_seconds": .5, "lateness_p99_seconds": .99, "lateness_max_seconds": 1,
		"lateness_at_least_p50_seconds": .25, "lateness_at_least_p99_seconds": .495, "lateness_at_least_max_seconds": .5,
	}
	if diff := cmp.Diff(want, values); diff != "" {
		t.Errorf("percentiles (-want +got):\n%s", diff)
	}
	clear(values)
	addHistogram(values, flips)
	for name, want := range map[string]float64{"flips_within_0.005_seconds": 0, "flips_within_0.05_seconds": 5, "flips_within_1_seconds": 100} {
		if got, ok := values[name]; !ok || got != want {
			t.Errorf("%s is %v, want %v: %v", name, got, want, values)
		}
	}
	if len(values) != len(latenessBuckets) {
		t.Errorf("%d buckets, want %d", len(values), len(latenessBuckets))
	}
}

func TestMeasured(t *testing.T) {
	l := load{warmup: 10 * time.Second, length: 30 * time.Second}
	var flips []flip
	for _, due := range []float64{9.9, 10, 39.9, 40} {
		flips = append(flips, flip{history.Flip{Due: after(due)}, after(50)})
	}
	want := flips[1:3]
	if diff := cmp.Diff(want, l.due(flips, noon), cmp.AllowUnexported(flip{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestToFIFO(t *testing.T) {
	flips := []flip{{history.Flip{Due: after(0)}, after(10)}, {history.Flip{Due: after(4)}, after(12)}}
	if got := toFIFO(flips); got != 1 {
		t.Errorf("in order: %v, want 1", got)
	}
	flips[0].heard, flips[1].heard = flips[1].heard, flips[0].heard
	if got := toFIFO(flips); got != 1.2 {
		t.Errorf("the first one comes last: %v, want 12 s to 10 s", got)
	}
}
