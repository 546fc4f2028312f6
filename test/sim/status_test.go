// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package sim_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/test/sim"
)

// TestStatusDuringEndlessFlips has Machines whose flips never end, because users turn a switch up again at once. The
// statuses of these Machines, and of a Machine with one flip, must not wait until the flips end.
func TestStatusDuringEndlessFlips(t *testing.T) {
	inWorld(t, func(t *testing.T, w *sim.World) {
		t.Helper()
		const maxLag, length = time.Second, 8 * time.Second
		busy, once := []string{"busy-a", "busy-b", "busy-c", "busy-d"}, "once"
		w.Latency = 10 * time.Millisecond // the busy Machines cause more requests than the server can serve
		random := rand.New(rand.NewPCG(1, 2))
		w.Choose = func(calls []sim.Call) (int, sim.Outcome) { return random.IntN(len(calls)), sim.Outcome{} }
		startBusyMachines(t, w, busy)
		must(t, w.Admin.Create(t.Context(), machineOf(once, 1)))
		must(t, w.Pass(settleTime))

		up := `{"spec":{"position":"up"}}`
		must(t, patch(switchOf(once+"-0"), up)(t.Context(), w.Admin))
		start, lags := time.Now(), map[string]*lagging{}
		for time.Since(start) < length {
			for _, name := range busy {
				must(t, patch(switchOf(name+"-0"), up)(t.Context(), w.Admin))
			}
			must(t, w.Serve(1))
			for _, name := range append(busy, once) {
				if lags[name] == nil {
					lags[name] = &lagging{name: name}
				}
				lags[name].look(t, w)
			}
		}
		for name, l := range lags {
			if l.flips == 0 {
				t.Errorf("Machine %s: there was no flip", name)
			}
			if l.longest > maxLag {
				t.Errorf("Machine %s: the status was outdated for %s, want at most %s", name, l.longest, maxLag)
			}
		}
		must(t, w.Pass(settleTime))
		for name, l := range lags {
			if l.look(t, w); l.status != "d" || l.position != "down" {
				t.Errorf("Machine %s: in the end, the status has the positions %q, and the switch is %s",
					name, l.status, l.position)
			}
		}
	})
}

// startBusyMachines starts an operator, and creates Machines with one switch that is turned down without a delay.
func startBusyMachines(t *testing.T, w *sim.World, names []string) {
	t.Helper()
	_, err := w.Start("operator", "machine")
	must(t, err)
	for _, name := range names {
		m := machineOf(name, 1)
		m.Spec.Flip.DelaySeconds, m.Spec.Flip.IntervalSeconds = new(int32(0)), new(int32(0))
		must(t, w.Admin.Create(t.Context(), m))
	}
}

// lagging observes how long the status of a Machine with one switch describes a position that the switch no longer has.
type lagging struct {
	name     string
	flips    int
	position string    // of the switch
	since    time.Time // of the first change of the position after the last write of the status
	version  string    // of the Machine
	status   string    // the positions in the status
	longest  time.Duration
}

// look compares the Machine with its state at the last call.
func (l *lagging) look(t *testing.T, w *sim.World) {
	t.Helper()
	m, sw := machine(l.name), switchOf(l.name+"-0")
	must(t, w.Admin.Get(t.Context(), client.ObjectKeyFromObject(m), m))
	must(t, w.Admin.Get(t.Context(), client.ObjectKeyFromObject(sw), sw))
	if l.status = m.Status.Positions; m.ResourceVersion != l.version {
		l.version, l.since = m.ResourceVersion, time.Time{}
	}
	if position := string(sw.Spec.Position); position != l.position {
		if l.position == "up" {
			l.flips++
		}
		if l.position = position; l.since.IsZero() {
			l.since = time.Now()
		}
	}
	if !l.since.IsZero() {
		l.longest = max(l.longest, time.Since(l.since))
	}
}

// TestFlipWhileWatchStalls stops the watch of switches before as many flips as there are workers. The statuses of these
// Machines wait for the watch. The flip of another Machine must not wait for a worker.
func TestFlipWhileWatchStalls(t *testing.T) {
	inWorld(t, func(t *testing.T, w *sim.World) {
		t.Helper()
		stalled := int64(0)
		o, err := w.StartWithView(func(k *sim.Kind, newest int64) int64 {
			if stalled > 0 && k.Kind == "Switch" {
				return stalled
			}
			return newest
		}, "operator", "machine")
		must(t, err)
		delays := map[string]int32{"a": 1, "b": 1, "c": 4}
		for name, delay := range delays {
			m := machineOf(name, 1)
			m.Spec.Flip.DelaySeconds = &delay
			must(t, w.Admin.Create(t.Context(), m))
		}
		must(t, w.Pass(settleTime))
		for name := range delays {
			must(t, patch(switchOf(name+"-0"), `{"spec":{"position":"up"}}`)(t.Context(), w.Admin))
		}
		must(t, w.Pass(500*time.Millisecond))
		revision := w.Revision()
		w.Locked(func() { stalled = revision })
		must(t, w.Pass(4*time.Second))
		for name := range delays {
			sw := switchOf(name + "-0")
			must(t, w.Admin.Get(t.Context(), client.ObjectKeyFromObject(sw), sw))
			if sw.Spec.Position != v1beta1.PositionDown {
				t.Errorf("Machine %s: its switch is still %s", name, sw.Spec.Position)
			}
		}
		w.Locked(func() { stalled = 0 })
		o.WakeWatches()
		must(t, w.Pass(settleTime))
	})
}
