// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"
	"slices"
	"testing"
	"time"
)

func TestRate(t *testing.T) {
	l := &load{warmup: 7 * time.Second, length: 5 * time.Second, doubling: 10 * time.Second}
	for since, want := range map[float64]float64{0: 25, 11.9: 25, 12: 35, 32: 140} {
		if got := l.rate(time.Duration(since * float64(time.Second))); math.Abs(got-want) > 1e-9 {
			t.Errorf("rate after %v s is %v, want %v", since, got, want)
		}
	}
}

func TestCapacity(t *testing.T) {
	some := func(n int, late float64) []float64 { return slices.Repeat([]float64{late}, n) }
	for _, test := range []struct {
		reason     string
		late       []float64
		want       time.Duration // length of the window
		overloaded bool
	}{
		{reason: "not enough flips", late: some(rateWindow, 0)},
		{reason: "half of the flips are late", late: append(some(101, 1), some(100, 0)...), want: 2 * time.Second},
		{reason: "most flips are late", late: some(rateWindow+1, 1), overloaded: true},
		{reason: "later flips do not count", late: append(some(201, 0), some(200, 1)...),
			want: 2 * time.Second, overloaded: true},
	} {
		flips := lateFlips(100, test.late...)
		got := time.Duration(0)
		if w := capacity(flips); w != nil {
			got = spanOf(w).Round(time.Millisecond)
		}
		if got != test.want || overloaded(flips) != test.overloaded {
			t.Errorf("%s: got a window of %s, overloaded %t; want %s, %t",
				test.reason, got, overloaded(flips), test.want, test.overloaded)
		}
	}
}
