// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"fmt"
	"testing"

	"container.training/useless/api/useless/v1beta1"
)

// addOrphans adds Switches without a controller to the cache. Each has the label of a Machine that does not exist.
func addOrphans(t testing.TB, c *Controller, n int) {
	t.Helper()
	for i := range n {
		sw := newTestSwitch(fmt.Sprintf("orphan-%d", i), orphan)
		sw.Labels = map[string]string{"machine": fmt.Sprintf("deleted-%d", i)}
		if err := c.switches.Add(sw); err != nil {
			t.Fatal(err)
		}
	}
}

// TestUnrelatedOrphans checks that a reconcile neither reads nor copies the orphans of other Machines.
func TestUnrelatedOrphans(t *testing.T) {
	const orphans = 10_000
	allocations := map[int]float64{}
	for _, n := range []int{0, orphans} {
		c := newIdleController(t, 10, 10)
		addOrphans(t, c, n)
		allocations[n] = testing.AllocsPerRun(100, func() { reconcileNoOp(t, c, requestFor(5)) })
		m := &v1beta1.Machine{}
		if err := c.client.Get(t.Context(), requestFor(5).NamespacedName, m); err != nil {
			t.Fatal(err)
		}
		if switches := c.read(m); len(switches) != 10 {
			t.Errorf("with %d orphans in the cache, the Machine reads %d switches, want its own 10", n, len(switches))
		}
	}
	// With the race detector, sync.Pool drops objects at random. This causes one or two more allocations.
	if allocations[orphans] > allocations[0]+5 {
		t.Errorf("a reconcile allocates %.0f times with %d orphans in the cache, and %.0f times without them",
			allocations[orphans], orphans, allocations[0])
	}
}

// BenchmarkUnrelatedOrphans measures a reconcile with and without 10,000 unrelated orphans in the cache.
func BenchmarkUnrelatedOrphans(b *testing.B) {
	for _, n := range []int{0, 10_000} {
		b.Run(fmt.Sprintf("orphans=%d", n), func(b *testing.B) {
			c := newIdleController(b, 10, 10)
			addOrphans(b, c, n)
			b.ReportAllocs()
			for b.Loop() {
				reconcileNoOp(b, c, requestFor(5))
			}
		})
	}
}
