// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package sim_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/test/sim"
)

// TestStatusDuringEndlessFlips has Machines whose flips never end, because users turn a switch up again at once. The
// statuses of these Machines, and of a Machine with one flip, must not wait until the flips end.
func TestStatusDuringEndlessFlips(t *testing.T) {
	inWorld(t, func(t *testing.T, w *sim.World) {
		t.Helper()
		const maxLag, length = time.Second, 8 * time.Second
		busy, once := []string{"busy-a", "busy-b", "busy-c", "busy-d"}, "once"
		w.Latency = 10 * time.Millisecond // the requests of the busy Machines need more time than there is
		random := rand.New(rand.NewPCG(1, 2))
		w.Choose = func(calls []sim.Call) (int, sim.Outcome) { return random.IntN(len(calls)), sim.Outcome{} }
		_, err := w.Start("operator", "machine")
		must(t, err)
		for _, name := range append(busy, once) {
			m := machineOf(name, 1)
			if name != once {
				m.Spec.Flip.DelaySeconds, m.Spec.Flip.IntervalSeconds = new(int32(0)), new(int32(0))
			}
			must(t, w.Admin.Create(t.Context(), m))
		}
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
			if l.flips == 0 || l.longest > maxLag {
				t.Errorf("Machine %s: the status was outdated for %s in spite of %d flips, want at most %s",
					name, l.longest, l.flips, maxLag)
			}
		}
	})
}

// lagging observes how long the status of a Machine with one switch describes a position that the switch no longer has.
type lagging struct {
	name     string
	flips    int
	position string    // of the switch
	since    time.Time // of the first change of the position after the last write of the status
	version  string    // of the Machine
	longest  time.Duration
}

// look compares the Machine with its state at the last call.
func (l *lagging) look(t *testing.T, w *sim.World) {
	t.Helper()
	m, sw := machine(l.name), switchOf(l.name+"-0")
	must(t, w.Admin.Get(t.Context(), client.ObjectKeyFromObject(m), m))
	must(t, w.Admin.Get(t.Context(), client.ObjectKeyFromObject(sw), sw))
	if m.ResourceVersion != l.version {
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
