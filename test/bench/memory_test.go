// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import "testing"

// TestCacheMemory bounds what a cached switch takes. That depends neither on the machine nor on how many there are.
func TestCacheMemory(t *testing.T) {
	const minRatio = 2 // of what it takes in controller-runtime's default cache
	maxBytes := map[string]float64{"resting": 800, "flipped": 1200}
	for _, fill := range fills {
		t.Run(fill.state, func(t *testing.T) {
			perSwitch := map[string]float64{}
			for _, c := range cacheContenders {
				var err error
				if perSwitch[c.name], err = heapPerSwitch(t.Context(), c, fill, 200, 2_000); err != nil {
					t.Fatal(err)
				}
			}
			ours, theirs := perSwitch["ours"], perSwitch["default"]
			t.Logf("%.0f bytes, %.2f times less than %.0f", ours, theirs/ours, theirs)
			if ours > maxBytes[fill.state] || theirs/ours < minRatio {
				t.Errorf("want at most %.0f bytes, and at least %d times less", maxBytes[fill.state], minRatio)
			}
		})
	}
}
