// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"container.training/useless/api/useless/v1beta1"
)

var seed = flag.Uint64("seed", rand.Uint64(), "seed of the simulated users")

// TestFlipRule simulates many hours in which users turn switches up and down at random. The operator reconciles late,
// crashes between its writes, and restarts. It must not turn a switch down early or in the wrong order. It must not
// turn two switches down within one interval. At the end, all switches must be down.
func TestFlipRule(t *testing.T) {
	t.Logf("to reproduce: -seed=%d", *seed)
	random := rand.New(rand.NewPCG(*seed, 0))
	for round := range 300 {
		w := newWorld(t, random)
		for w.now.Before(now.Add(time.Hour)) {
			w.users()
			w.operator(random.IntN(4) == 0)
			w.sleep()
		}
		for range 10 * len(w.switches) {
			w.operator(false)
			w.now = latest(w.now.Add(time.Millisecond), w.next)
		}
		for _, sw := range w.switches {
			if isUp(sw) {
				t.Fatalf("seed %d, round %d: %s is still up", *seed, round, sw.Name)
			}
		}
	}
}

// A world is a Machine, its switches and a clock.
type world struct {
	*testing.T
	random   *rand.Rand
	now      time.Time
	machine  *v1beta1.Machine
	switches []*v1beta1.Switch
	flipped  time.Time            // the operator's memory of its last flip, until it crashes
	next     time.Time            // the time of the operator's next reconcile
	turned   map[string]time.Time // the last time when each switch was turned
	lastFlip time.Time
}

func newWorld(t *testing.T, random *rand.Rand) *world {
	t.Helper()
	count := 1 + random.IntN(5)
	w := &world{
		T: t, random: random, now: now, turned: map[string]time.Time{},
		machine: newMachine(int32(count), flipTimes(int32(random.IntN(60)), int32(random.IntN(60)))),
	}
	for i := range count {
		w.switches = append(w.switches, newTestSwitch(fmt.Sprintf("m-%d", i)))
	}
	return w
}

func (w *world) users() {
	for _, sw := range w.switches {
		switch w.random.IntN(20) {
		case 0:
			w.turn(sw, v1beta1.PositionUp)
		case 1:
			w.turn(sw, v1beta1.PositionDown)
			if w.random.IntN(2) == 0 { // otherwise the operator may not notice that the switch was down
				w.operator(false)
			}
		}
	}
}

// turn changes a switch's position and generation, as the API server does.
func (w *world) turn(sw *v1beta1.Switch, position v1beta1.Position) {
	if sw.Spec.Position != position {
		sw.Spec.Position = position
		sw.Generation++
		w.turned[sw.Name] = w.now
	}
}

// sleep advances the clock to a time before, at or after the operator's next reconcile.
func (w *world) sleep() {
	w.now = w.now.Add(time.Duration(w.random.Int64N(int64(10 * time.Second))))
	if w.random.IntN(2) == 0 && w.next.After(w.now) {
		w.now = w.next
	}
}

// operator runs one reconcile. If it crashes, it skips some of its writes and loses its memory.
func (w *world) operator(crashes bool) {
	p := decide(w.machine, w.switches, remembered{flipped: w.flipped}, false, w.now)
	w.next = p.next
	writes := []func(){}
	for _, sw := range p.notice {
		writes = append(writes, func() {
			sw.Status = v1beta1.SwitchStatus{ObservedGeneration: sw.Generation, SeenAt: microTime(w.now)}
		})
	}
	for _, f := range p.flip {
		writes = append(writes, func() { w.flip(f) })
	}
	if len(writes) == 0 { // a reconcile writes the status only if it writes nothing else
		writes = append(writes, func() { w.machine.Status = newStatus(w.machine, p, outcome{}, w.now) })
	}
	if crashes {
		writes = writes[:w.random.IntN(len(writes))]
	}
	for _, write := range writes {
		write()
	}
	if crashes {
		w.flipped = time.Time{}
	}
}

func (w *world) flip(f dueSwitch) {
	w.Helper()
	delay, interval := seconds(w.machine.Spec.Flip.DelaySeconds), seconds(w.machine.Spec.Flip.IntervalSeconds)
	switch {
	case f.due.After(w.now):
		w.Fatalf("seed %d: %s was turned down before it was due", *seed, f.sw.Name)
	case w.now.Before(w.turned[f.sw.Name].Add(delay)):
		w.Fatalf("seed %d: %s was turned down %s after it was turned up, want at least %s", *seed, f.sw.Name,
			w.now.Sub(w.turned[f.sw.Name]), delay)
	case w.now.Before(w.lastFlip.Add(interval)):
		w.Fatalf("seed %d: %s was turned down %s after the last flip, want at least %s", *seed, f.sw.Name,
			w.now.Sub(w.lastFlip), interval)
	}
	for _, other := range w.switches {
		if isUp(other) && seenAt(other, w.now).Before(seenAt(f.sw, w.now)) {
			w.Fatalf("seed %d: %s was turned down before %s, although %[3]s was up for longer", *seed, f.sw.Name,
				other.Name)
		}
	}
	w.lastFlip, w.flipped = w.now, w.now
	w.turn(f.sw, v1beta1.PositionDown)
	metav1.SetMetaDataAnnotation(&f.sw.ObjectMeta, v1beta1.FlippedAtAnnotation,
		microTime(w.now).Format(metav1.RFC3339Micro))
}
