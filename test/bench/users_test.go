// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"iter"
	"slices"
	"testing"
	"time"
)

func take(n int, instants iter.Seq[time.Duration]) (taken []time.Duration) {
	for at := range instants {
		if taken = append(taken, at); len(taken) == n {
			break
		}
	}
	return taken
}

func TestPoisson(t *testing.T) {
	const n, perSecond = 10_000, 100
	instants := take(n+1, poisson(1, perSecond))
	if !slices.Equal(instants, take(n+1, poisson(1, perSecond))) {
		t.Error("the same seed gave other instants")
	}
	if slices.Equal(instants, take(n+1, poisson(2, perSecond))) {
		t.Error("another seed gave the same instants")
	}
	if !slices.IsSorted(instants) {
		t.Error("time goes backwards")
	}
	mean := instants[n].Seconds() / n
	variance := 0.
	for i := range n {
		gap := (instants[i+1] - instants[i]).Seconds() - mean
		variance += gap * gap / n
	}
	// Of gaps that are distributed exponentially, the variance is the square of the mean.
	if ratio := mean * perSecond; ratio < .95 || ratio > 1.05 {
		t.Errorf("the mean gap is %.2f of what it should be", ratio)
	}
	if ratio := variance * perSecond * perSecond; ratio < .9 || ratio > 1.1 {
		t.Errorf("the variance of the gaps is %.2f of what it should be", ratio)
	}
}

func TestEvenly(t *testing.T) {
	want := []time.Duration{0, time.Second, 2 * time.Second}
	if got := take(3, evenly(time.Second)); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
