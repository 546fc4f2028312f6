// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package sim_test

import (
	"fmt"
	"math"
	"testing"

	"container.training/useless/test/sim"
)

// A lag is what the operator's caches do not see. An operator that starts sees all there is: its watches begin with a list of
// what is certainly the newest.
type lag struct {
	kind     string // of which cache; of all if empty
	revision int64  // it stops at this one, until the end of the step after the one in which that was written
	restart  bool   // another operator starts then, and knows no more after it has read what there is
	calls    int    // if not zero, it goes on after so many calls
}

func (l lag) String() string {
	what := fmt.Sprintf("the cache of %q stops at revision %d", l.kind, l.revision)
	if l.restart {
		what = fmt.Sprintf("at revision %d, another operator starts, whose cache of %q stops when it is filled", l.revision, l.kind)
	}
	return what
}

// TestStale has the caches stop at each revision, one by one and all of them, some of them those of another operator.
func TestStale(t *testing.T) {
	for _, l := range lives {
		t.Run(l.name, func(t *testing.T) {
			want := l.live(t, conditions{})
			var cases []conditions
			for revision := int64(1); revision <= want.revisions; revision++ {
				for _, kind := range append(l.kinds, "") {
					for _, restart := range []bool{false, true} {
						cases = append(cases, conditions{lag: &lag{kind: kind, revision: revision, restart: restart}})
					}
				}
			}
			inParallel(t, cases, l.endAlike(want))
		})
	}
}

// fog is what a lag does to a world.
type fog struct {
	lag       *lag
	world     *sim.World
	restarted bool
	steps     int // that have ended since it came
	calls     int // that were served since it came
	lifted    bool
}

// sees is the view of the operator.
func (f *fog) sees(k *sim.Kind) int64 {
	if f.lag == nil || f.lifted || f.lag.kind != "" && f.lag.kind != k.Kind || f.lag.restart && !f.restarted {
		return math.MaxInt64
	}
	return f.lag.revision
}

// restart reports whether the operator is to start anew, which it does once.
func (f *fog) restart() bool {
	now := f.lag != nil && f.lag.restart && !f.restarted && f.world.Revision() >= f.lag.revision
	f.restarted = f.restarted || now
	return now
}

// call counts a call.
func (f *fog) call() {
	if f.lag == nil || f.world.Revision() < f.lag.revision {
		return
	}
	if f.calls++; f.calls == f.lag.calls {
		f.lift()
	}
}

// end is the end of a step.
func (f *fog) end() {
	if f.lag == nil || f.world.Revision() < f.lag.revision {
		return
	}
	if f.steps++; f.steps > 1 {
		f.lift()
	}
}

// lift has the caches see all there is.
func (f *fog) lift() {
	f.lifted = true
	for _, o := range f.world.Operators {
		o.Look()
	}
}
