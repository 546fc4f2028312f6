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

// A fault is what goes wrong with a write.
type fault struct {
	name string
	fate sim.Fate
}

var (
	things = schema.GroupResource{Group: v1beta1.GroupVersion.Group, Resource: "things"}
	faults = []fault{
		{"crash before", sim.Fate{Lose: true, Crash: true}},
		{"crash after", sim.Fate{Mute: true, Crash: true}},
		{"reply lost", sim.Fate{Mute: true}},
		{"connection broken", sim.Fate{Lose: true}},
		{"409", sim.Fate{Refuse: apierrors.NewConflict(things, "thing", errors.New("it has changed"))}},
		{"429", sim.Fate{Refuse: apierrors.NewTooManyRequests("too many", 1)}},
		{"500", sim.Fate{Refuse: apierrors.NewInternalError(errors.New("something is wrong"))}},
		{"timeout", sim.Fate{Refuse: apierrors.NewTimeoutError("too slow", 0)}},
	}
)

// most is how many more writes a fault may cost.
const most = 2

// leastRuns is how many lives with crashes there are at least. They take less than a minute on two cores.
const leastRuns = 5_000

// TestCrashes has each write go wrong in each way, and then, in a short life of each controller, each two of them.
func TestCrashes(t *testing.T) {
	start, runs, lived := time.Now(), 0, 0
	for _, l := range lives {
		t.Run(l.name, func(t *testing.T) {
			lived++
			runs += l.crash(t, singles)
		})
	}
	for _, l := range briefLives {
		t.Run(l.name+", in pairs", func(t *testing.T) {
			lived++
			runs += l.crash(t, pairs)
		})
	}
	t.Logf("%d runs in %s", runs, time.Since(start).Round(time.Millisecond))
	least := leastRuns
	if short() {
		least /= stride
	}
	if all := lived == len(lives)+len(briefLives); all && runs < least {
		t.Errorf("there are %d runs, and not %d", runs, least)
	}
}

// crash has some of the writes of a life go wrong in some ways. It returns how many lives there were. Where nothing goes wrong,
// each write changes something.
func (l life) crash(t *testing.T, ways func(writes int) []conditions) int {
	t.Helper()
	want := l.live(t, conditions{})
	judge(t, conditions{}, want)
	if want.effects < want.writes && !l.refused {
		t.Errorf("%d writes have %d effects", want.writes, want.effects)
	}
	return inParallel(t, ways(want.writes), l.survive(want))
}

// singles are each of some writes with each fault.
func singles(writes int) (cases []conditions) {
	for i := range writes {
		for _, f := range faults {
			cases = append(cases, conditions{wrong: map[int]fault{i: f}})
		}
	}
	return cases
}

// unlike are the faults that are most unlike each other, which come first: after one of them nobody knows of the write, after one
// only the API server, and after one only the operator that is no more.
const unlike = 3

// pairs are each two of some writes, with each two of the faults that are unlike each other, and with every fifth of all 64 ways
// in which two can go wrong. For the next two writes these are others, so that each way comes with every fifth two writes. In
// make soak each comes with all.
func pairs(writes int) (cases []conditions) {
	share := 5
	if soaking() {
		share = 1
	}
	way := 0
	for i := range writes {
		for j := range i {
			for a, first := range faults {
				for b, second := range faults {
					if way++; way%share == 0 || a < unlike && b < unlike {
						cases = append(cases, conditions{wrong: map[int]fault{j: first, i: second}})
					}
				}
			}
		}
	}
	return cases
}

// TestYear has every other write of a year go wrong, each time in another way. It takes a year of looking every ten minutes, so that
// only make soak begins it with each of the ways.
func TestYear(t *testing.T) {
	if short() {
		t.Skip("it takes long: make test-all runs it")
	}
	want := year.live(t, conditions{})
	judge(t, conditions{}, want)
	var cases []conditions
	for first := range faults[:min(*seeds/100, uint64(len(faults)))] {
		wrong := map[int]fault{}
		for i := range want.writes {
			wrong[2*i] = faults[(first+i)%len(faults)]
		}
		cases = append(cases, conditions{wrong: wrong})
	}
	inParallel(t, cases, year.survive(want))
}

// survive lives a life with faults: what comes of it is what comes of it without, and it takes hardly more writes.
func (l life) survive(want record) func(*testing.T, conditions) {
	return func(t *testing.T, c conditions) {
		t.Helper()
		got := l.live(t, c)
		judge(t, c, got)
		if diff := cmp.Diff(want.states, got.states); diff != "" {
			t.Errorf("%v: (-without +with)\n%s", c, diff)
		}
		if more := got.effects - want.effects; more > most*len(c.wrong) {
			t.Errorf("%v: %d more writes", c, more)
		}
	}
}

// An outage is one of somebody's webhook, without which no switch is changed.
type outage struct {
	over  bool
	tries int
}

func (o *outage) choose(calls []sim.Call) (int, sim.Fate) {
	if call := calls[0]; !o.over && call.Verb == "patch" && call.Kind.Kind == "Switch" && call.Subresource == "" {
		o.tries++
		return 0, sim.Fate{Refuse: apierrors.NewInternalError(errors.New("failed calling webhook"))}
	}
	return 0, sim.Fate{}
}

// TestNoFlipIsAnswered has every flip fail for ten minutes, of a Machine that may flip at once: it is tried again with growing
// delays, and nothing is said to have been turned down.
func TestNoFlipIsAnswered(t *testing.T) {
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
			t.Errorf("tried %d times in ten minutes, and the last flip is said to have been at %v", o.tries, m.Status.LastFlipTime)
		}
		o.over = true
		must(t, w.Pass(queue.LastRetry))
		must(t, w.Admin.Get(t.Context(), client.ObjectKeyFromObject(m), m))
		if m.Status.Positions != "dd" || m.Status.LastFlipTime == nil {
			t.Errorf("the positions are %s, and the last flip was at %v", m.Status.Positions, m.Status.LastFlipTime)
		}
	})
}
