// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package sim_test

import (
	"errors"
	"testing"
	"time"

	"container.training/useless/test/history"
	"container.training/useless/test/sim"
)

// TestFlipWithoutAnswer has the answer to a flip be lost, or who waits for it, and then the switch, before the Machine's status
// tells of the flip: nothing else does any more. In some of the rounds the cache comes too late.
func TestFlipWithoutAnswer(t *testing.T) {
	for what, fate := range map[string]sim.Fate{"the answer is lost": {Mute: true}, "another operator sees it": {Mute: true, Crash: true}} {
		t.Run(what, func(t *testing.T) {
			for range 20 {
				inWorld(t, func(t *testing.T, w *sim.World) {
					t.Helper()
					testFlipWithoutAnswer(t, w, fate)
				})
			}
		})
	}
}

func testFlipWithoutAnswer(t *testing.T, w *sim.World, fate sim.Fate) {
	t.Helper()
	must(t, turnTwoUp(t, w))
	lost := loseFlip(t, w, fate)
	must(t, w.Pass(quiet))
	if !*lost {
		t.Error("no answer was lost")
	}
	for _, fault := range history.Check(revisions(t, w)) {
		t.Error(fault)
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
	return errors.Join(w.Admin.Create(ctx, m), w.Pass(quiet),
		patch(switchOf("m-0"), up)(ctx, w.Admin), w.Pass(time.Second), patch(switchOf("m-1"), up)(ctx, w.Admin))
}

func isFlip(call sim.Call) bool {
	return call.Verb == "patch" && call.Kind.Kind == "Switch" && call.Subresource == ""
}

// loseFlip has nothing but the cache tell of the first flip, and then nothing at all. What it returns is true when it has.
func loseFlip(t *testing.T, w *sim.World, fate sim.Fate) *bool {
	t.Helper()
	flipped, lost := false, false
	w.Choose = func(calls []sim.Call) (int, sim.Fate) {
		call := calls[0]
		switch {
		case !flipped && isFlip(call):
			flipped = true
			return 0, fate
		case flipped && !lost && call.Kind.Kind == "Machine" && call.Subresource == "status":
			lost = true
			if err := remove(switchOf("m-0"))(t.Context(), w.Admin); err != nil {
				t.Error(err)
			}
			return 0, sim.Fate{Lose: true}
		default:
			return 0, sim.Fate{}
		}
	}
	return &lost
}
