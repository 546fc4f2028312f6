// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseBenchmarks(t *testing.T) {
	const out = `goos: linux
pkg: container.training/useless/internal/controller/machine
BenchmarkNoOpReconcile/machines=100-2         	  118353	     10241 ns/op	    1360 B/op	      19 allocs/op
BenchmarkSlope 	      48	  25000000 ns/op	         1.250 ratio
PASS
`
	want := []Record{
		{Case: "NoOpReconcile/machines=100", Values: map[string]float64{"seconds": 10241e-9, "bytes": 1360, "allocations": 19}},
		{Case: "Slope", Values: map[string]float64{"seconds": 25e-3, "ratio": 1.25}},
	}
	if diff := cmp.Diff(want, parseBenchmarks(out)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
