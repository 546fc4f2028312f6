// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package sim_test

import (
	"errors"
	"testing"
	"time"

	"container.training/useless/test/internal/invariants"
	"container.training/useless/test/sim"
)

// TestFlipResponseLost loses the response to a flip. Then it deletes the switch before the Machine's status records the
// flip, so no object records the flip. Even then, the operator must wait for the interval before the next flip. An
// operator with a bug here would fail only if its cache is stale at that moment. So the test has several rounds.
func TestFlipResponseLost(t *testing.T) {
	for name, outcome := range map[string]sim.Outcome{
		"the response is lost":  {DropResponse: true},
		"the operator restarts": {DropResponse: true, Crash: true},
	} {
		t.Run(name, func(t *testing.T) {
			for range 20 {
				inWorld(t, func(t *testing.T, w *sim.World) {
					t.Helper()
					testFlipResponseLost(t, w, outcome)
				})
			}
		})
	}
}

func testFlipResponseLost(t *testing.T, w *sim.World, outcome sim.Outcome) {
	t.Helper()
	must(t, turnTwoUp(t, w))
	lost := loseFlipResponse(t, w, outcome)
	must(t, w.Pass(settleTime))
	if !*lost {
		t.Error("no response was lost")
	}
	for _, violation := range invariants.Check(revisions(t, w)) {
		t.Error(violation)
	}
}

// turnTwoUp turns both switches of a Machine up, one after the other.
func turnTwoUp(t *testing.T, w *sim.World) error {
	t.Helper()
	if _, err := w.Start("operator", "machine"); err != nil {
		return err
	}
	ctx, m, up := t.Context(), machine("m"), `{"spec":{"position":"up"}}`
	m.Spec.Switches.Count, m.Spec.Flip.IntervalSeconds = 2, new(int32(60))
	return errors.Join(w.Admin.Create(ctx, m), w.Pass(settleTime),
		patch(switchOf("m-0"), up)(ctx, w.Admin), w.Pass(time.Second), patch(switchOf("m-1"), up)(ctx, w.Admin))
}

func isFlip(call sim.Call) bool {
	return call.Verb == "patch" && call.Kind.Kind == "Switch" && call.Subresource == ""
}

// loseFlipResponse sets the outcome of the first flip. When the operator then writes the Machine's status,
// loseFlipResponse deletes the flipped switch, drops the request, and sets the returned variable to true.
func loseFlipResponse(t *testing.T, w *sim.World, outcome sim.Outcome) *bool {
	t.Helper()
	flipped, lost := false, false
	w.Choose = func(calls []sim.Call) (int, sim.Outcome) {
		call := calls[0]
		switch {
		case !flipped && isFlip(call):
			flipped = true
			return 0, outcome
		case flipped && !lost && call.Kind.Kind == "Machine" && call.Subresource == "status":
			lost = true
			if err := remove(switchOf("m-0"))(t.Context(), w.Admin); err != nil {
				t.Error(err)
			}
			return 0, sim.Outcome{DropRequest: true}
		default:
			return 0, sim.Outcome{}
		}
	}
	return &lost
}
