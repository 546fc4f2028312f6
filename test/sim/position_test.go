// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package sim_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/test/sim"
)

// TestPositionUpAgain sets the position of a Machine to up again immediately after the operator has set it to down. At
// this time, the status still has the position up from the first request. The operator must execute both requests.
func TestPositionUpAgain(t *testing.T) {
	inWorld(t, func(t *testing.T, w *sim.World) {
		t.Helper()
		_, err := w.Start("operator", "machine")
		must(t, err)
		must(t, w.Admin.Create(t.Context(), machineOf("m", 2)))
		must(t, w.Pass(settleTime))
		up := patch(machine("m"), `{"spec":{"position":"up"}}`)
		must(t, up(t.Context(), w.Admin))
		m := machine("m")
		for start := time.Now(); m.Spec.Position != v1beta1.PositionDown; {
			if time.Since(start) > settleTime {
				t.Fatal("the position stays up")
			}
			must(t, w.Serve(1))
			must(t, w.Admin.Get(t.Context(), client.ObjectKeyFromObject(m), m))
			time.Sleep(time.Millisecond)
		}
		if m.Status.Position != v1beta1.PositionUp {
			t.Fatalf("the status already has the position %q, so this test needs another time for its request", m.Status.Position)
		}
		must(t, up(t.Context(), w.Admin))
		must(t, w.Pass(settleTime))

		if diff := cmp.Diff(map[string]int{"m-0": 2, "m-1": 2}, raised(t, w)); diff != "" {
			t.Errorf("how often each switch was turned up (-want +got):\n%s", diff)
		}
		must(t, w.Admin.Get(t.Context(), client.ObjectKeyFromObject(m), m))
		if m.Spec.Position != v1beta1.PositionDown || m.Status.Position != v1beta1.PositionDown {
			t.Errorf("in the end, the position is %s, and %s in the status", m.Spec.Position, m.Status.Position)
		}
	})
}

// raised returns how often each switch was turned up.
func raised(t *testing.T, w *sim.World) map[string]int {
	t.Helper()
	times, position := map[string]int{}, map[string]v1beta1.Position{}
	for _, revision := range revisions(t, w) {
		sw, ok := revision.Object.(*v1beta1.Switch)
		if !ok {
			continue
		}
		if sw.Spec.Position == v1beta1.PositionUp && position[sw.Name] != v1beta1.PositionUp {
			times[sw.Name]++
		}
		position[sw.Name] = sw.Spec.Position
	}
	return times
}
