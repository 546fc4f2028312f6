// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package sim_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/queue"
	"container.training/useless/test/sim"
)

// A fault is an error that is injected into a write.
type fault struct {
	name    string
	outcome sim.Outcome
}

var (
	things = schema.GroupResource{Group: v1beta1.GroupVersion.Group, Resource: "things"}
	faults = []fault{
		{"crash before", sim.Outcome{DropRequest: true, Crash: true}},
		{"crash after", sim.Outcome{DropResponse: true, Crash: true}},
		{"response lost", sim.Outcome{DropResponse: true}},
		{"connection broken", sim.Outcome{DropRequest: true}},
		{"409", sim.Outcome{Reject: apierrors.NewConflict(things, "thing", errors.New("the object has changed"))}},
		{"429", sim.Outcome{Reject: apierrors.NewTooManyRequests("too many", 1)}},
		{"500", sim.Outcome{Reject: apierrors.NewInternalError(errors.New("internal error"))}},
		{"timeout", sim.Outcome{Reject: apierrors.NewTimeoutError("too slow", 0)}},
	}
)

// extraWritesPerFault is the maximum number of additional writes per fault.
const extraWritesPerFault = 2

// minRuns is the minimum number of runs with faults. They take less than a minute on two cores.
const minRuns = 5_000

// TestCrashes injects each fault at each write of each scenario. In the short scenarios it also injects faults at each
// pair of writes.
func TestCrashes(t *testing.T) {
	start, runs, executed := time.Now(), 0, 0
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			executed++
			runs += s.injectFaults(t, singleFaults)
		})
	}
	for _, s := range shortScenarios {
		t.Run(s.name+", in pairs", func(t *testing.T) {
			executed++
			runs += s.injectFaults(t, faultPairs)
		})
	}
	t.Logf("%d runs in %s", runs, time.Since(start).Round(time.Millisecond))
	wanted := minRuns
	if short() {
		wanted /= stride
	}
	if all := executed == len(scenarios)+len(shortScenarios); all && runs < wanted {
		t.Errorf("got %d runs, want at least %d", runs, wanted)
	}
}

// injectFaults runs a scenario with each of the cases, and returns the number of runs. First it runs the scenario
// without faults. In this first run, every write must change an object, unless the API server rejects some writes.
func (s scenario) injectFaults(t *testing.T, cases func(writes int) []conditions) int {
	t.Helper()
	want := s.run(t, conditions{})
	reportViolations(t, conditions{}, want)
	if want.effects < want.writes && !s.refused {
		t.Errorf("%d writes made only %d changes", want.writes, want.effects)
	}
	if t.Failed() {
		return 0 // runs with faults would only repeat these failures
	}
	return inParallel(t, cases(want.writes), s.sameResult(want))
}

// singleFaults returns each fault at each of the writes.
func singleFaults(writes int) (cases []conditions) {
	for i := range writes {
		for _, f := range faults {
			cases = append(cases, conditions{faults: map[int]fault{i: f}})
		}
	}
	return cases
}

// distinctFaults is the number of faults that differ most from each other. They are first in the list. After the first
// fault, no process knows of the write. After the second fault, only the API server knows of it. The third fault is
// like the second one, but the operator does not crash.
const distinctFaults = 3

// faultPairs combines each pair of writes with pairs of faults. It uses all pairs of the distinct faults, and a fifth
// of all 64 pairs of faults. The next pair of writes gets another fifth, so each pair of faults occurs at every fifth
// pair of writes. make soak uses all pairs.
func faultPairs(writes int) (cases []conditions) {
	share := 5
	if soaking() {
		share = 1
	}
	n := 0
	for i := range writes {
		for j := range i {
			for a, first := range faults {
				for b, second := range faults {
					if n++; n%share == 0 || a < distinctFaults && b < distinctFaults {
						cases = append(cases, conditions{faults: map[int]fault{j: first, i: second}})
					}
				}
			}
		}
	}
	return cases
}

// TestYear runs a schedule for a year, with a fault at every other write. It uses the faults in turn. A run is slow,
// because the controller checks the clock every ten minutes. So there are only two such runs, with different first
// faults. make soak has a run for each first fault.
func TestYear(t *testing.T) {
	if short() {
		t.Skip("too slow for -short: make test-all runs it")
	}
	want := yearScenario.run(t, conditions{})
	reportViolations(t, conditions{}, want)
	var cases []conditions
	for first := range faults[:min(max(*seeds/100, 1), uint64(len(faults)))] {
		injected := map[int]fault{}
		for i := range want.writes {
			injected[2*i] = faults[(first+i)%len(faults)]
		}
		cases = append(cases, conditions{faults: injected})
	}
	inParallel(t, cases, yearScenario.sameResult(want))
}

// sameResult returns a test that runs the scenario with faults. The states after each step must be the same as without
// faults. There may be extraWritesPerFault additional writes per fault.
func (s scenario) sameResult(want result) func(*testing.T, conditions) {
	return func(t *testing.T, c conditions) {
		t.Helper()
		got := s.run(t, c)
		reportViolations(t, c, got)
		if diff := cmp.Diff(want.states, got.states); diff != "" {
			t.Errorf("%v: (-without +with)\n%s", c, diff)
		}
		if more := got.effects - want.effects; more > extraWritesPerFault*len(c.faults) {
			t.Errorf("%v: %d additional writes", c, more)
		}
	}
}

// An outage simulates an unavailable webhook. It rejects the operator's patches of switches, but not of their status.
type outage struct {
	over  bool
	tries int
}

func (o *outage) choose(calls []sim.Call) (int, sim.Outcome) {
	if call := calls[0]; !o.over && call.Verb == "patch" && call.Kind.Kind == "Switch" && call.Subresource == "" {
		o.tries++
		return 0, sim.Outcome{Reject: apierrors.NewInternalError(errors.New("failed calling webhook"))}
	}
	return 0, sim.Outcome{}
}

// TestRejectedFlips rejects every flip for ten minutes. The Machine has no delay and no interval. The operator must
// retry with growing delays, and must not report a flip.
func TestRejectedFlips(t *testing.T) {
	inWorld(t, func(t *testing.T, w *sim.World) {
		t.Helper()
		o := &outage{}
		w.Choose = o.choose
		_, err := w.Start(operators[0], "machine")
		must(t, err)
		m := machineOf("m", 2)
		m.Spec.Flip = v1beta1.FlipSpec{DelaySeconds: new(int32), IntervalSeconds: new(int32)}
		must(t, create(m)(t.Context(), w.Admin))
		must(t, w.Pass(time.Second))
		must(t, patch(switchOf("m-0"), `{"spec":{"position":"up"}}`)(t.Context(), w.Admin))
		must(t, w.Pass(10*time.Minute))
		must(t, w.Admin.Get(t.Context(), client.ObjectKeyFromObject(m), m))
		if o.tries < 2 || o.tries > 30 || m.Status.LastFlipTime != nil {
			t.Errorf("%d attempts in ten minutes, want 2 to 30; lastFlipTime is %v, want none", o.tries,
				m.Status.LastFlipTime)
		}
		o.over = true
		must(t, w.Pass(queue.LastRetry))
		must(t, w.Admin.Get(t.Context(), client.ObjectKeyFromObject(m), m))
		if m.Status.Positions != "dd" || m.Status.LastFlipTime == nil {
			t.Errorf("positions %s, lastFlipTime %v; want dd and a time", m.Status.Positions, m.Status.LastFlipTime)
		}
	})
}
