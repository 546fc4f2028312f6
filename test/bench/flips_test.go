// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"iter"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/test/internal/invariants"
)

var noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

func after(seconds float64) time.Time { return noon.Add(time.Duration(seconds * float64(time.Second))) }

func TestAddFaults(t *testing.T) {
	u := &users{checker: invariants.NewChecker(0)}
	values := map[string]float64{}
	if err := u.addFaults(values, []flip{{}}); err != nil {
		t.Errorf("correct flip: %v", err)
	}
	if diff := cmp.Diff(map[string]float64{"early": 0, "crowded": 0, "doubled": 0}, values); diff != "" {
		t.Errorf("correct flip (-want +got):\n%s", diff)
	}
	for generation := range int64(2) { // the second status has an older observedGeneration
		m := &v1beta1.Machine{ObjectMeta: metav1.ObjectMeta{Name: "bad", UID: "1"}}
		m.Status.ObservedGeneration = 2 - generation
		u.checker.Add(invariants.Revision{Type: watch.Modified, Object: m})
	}
	err := u.addFaults(values, []flip{{}, {Flip: invariants.Flip{Violation: invariants.Crowded}}})
	if diff := cmp.Diff(map[string]float64{"early": 0, "crowded": 1, "doubled": 0}, values); diff != "" {
		t.Errorf("crowded flip (-want +got):\n%s", diff)
	}
	if err == nil || !strings.Contains(err.Error(), "1 violations") || !strings.Contains(err.Error(), "/bad: ") {
		t.Errorf("got error %v, want the violation of Machine bad", err)
	}
}

func TestAddLateness(t *testing.T) {
	var flips []flip
	for i := range 100 { // from 10 ms to 1 s
		flips = append(flips, flip{invariants.Flip{Due: noon}, after(float64(i+1) / 100)})
	}
	values := map[string]float64{}
	addLateness(values, flips)
	want := map[string]float64{"lateness_p50_seconds": .5, "lateness_p99_seconds": .99, "lateness_max_seconds": 1}
	if diff := cmp.Diff(want, values); diff != "" {
		t.Errorf("percentiles (-want +got):\n%s", diff)
	}
}

func TestDueUnderLoad(t *testing.T) {
	l := load{warmup: 10 * time.Second, length: 30 * time.Second}
	var flips []flip
	for _, due := range []float64{9.9, 10, 39.9, 40} {
		flips = append(flips, flip{invariants.Flip{Due: after(due)}, after(50)})
	}
	if diff := cmp.Diff(flips[1:3], l.due(flips, noon), cmp.AllowUnexported(flip{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func take(n int, times iter.Seq[time.Duration]) (taken []time.Duration) {
	for at := range times {
		if taken = append(taken, at); len(taken) == n {
			break
		}
	}
	return taken
}

func TestPoisson(t *testing.T) {
	const n, perSecond = 10_000, 100
	times := take(n+1, poisson(1, perSecond))
	if !slices.Equal(times, take(n+1, poisson(1, perSecond))) {
		t.Error("the same seed gave other times")
	}
	if slices.Equal(times, take(n+1, poisson(2, perSecond))) {
		t.Error("another seed gave the same times")
	}
	if !slices.IsSorted(times) {
		t.Error("the times are not sorted")
	}
	mean := times[n].Seconds() / n
	variance := 0.
	for i := range n {
		gap := (times[i+1] - times[i]).Seconds() - mean
		variance += gap * gap / n
	}
	// The variance of an exponential distribution is the square of its mean.
	if ratio := mean * perSecond; ratio < .95 || ratio > 1.05 {
		t.Errorf("mean gap / expected mean is %.2f", ratio)
	}
	if ratio := variance * perSecond * perSecond; ratio < .9 || ratio > 1.1 {
		t.Errorf("variance of the gaps / expected variance is %.2f", ratio)
	}
}
