// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"container.training/useless/api/useless/v1beta1"
)

var now = time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)

func ago(d time.Duration) *metav1.MicroTime { return new(metav1.NewMicroTime(now.Add(-d))) }

// newMachine is a Machine of count switches with the default flip times.
func newMachine(count int32, changes ...func(*v1beta1.Machine)) *v1beta1.Machine {
	m := &v1beta1.Machine{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "m", UID: "machine", Generation: 1},
		Spec:       v1beta1.MachineSpec{Switches: v1beta1.SwitchesSpec{Count: count}},
	}
	for _, change := range changes {
		change(m)
	}
	return m
}

func flipTimes(delay, interval int32) func(*v1beta1.Machine) {
	return func(m *v1beta1.Machine) {
		m.Spec.Flip = v1beta1.FlipSpec{DelaySeconds: &delay, IntervalSeconds: &interval}
	}
}

func position(spec, status v1beta1.Position) func(*v1beta1.Machine) {
	return func(m *v1beta1.Machine) { m.Spec.Position, m.Status.Position = spec, status }
}

func lastFlipped(d time.Duration) func(*v1beta1.Machine) {
	return func(m *v1beta1.Machine) { m.Status.LastFlipTime = ago(d) }
}

// newTestSwitch is a switch of the Machine that newMachine makes, whatever the controller gives to one.
func newTestSwitch(name string, changes ...func(*v1beta1.Switch)) *v1beta1.Switch {
	sw := &v1beta1.Switch{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, UID: types.UID(name), Labels: map[string]string{v1beta1.MachineLabel: "m"},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "useless.container.training/v1beta1", Kind: "Machine", Name: "m", UID: "machine",
				Controller: new(true), BlockOwnerDeletion: new(true),
			}},
		},
		Spec: v1beta1.SwitchSpec{Position: v1beta1.PositionDown},
	}
	for _, change := range changes {
		change(sw)
	}
	return sw
}

func up(sw *v1beta1.Switch) { sw.Spec.Position = v1beta1.PositionUp }

func seen(d time.Duration) func(*v1beta1.Switch) {
	return func(sw *v1beta1.Switch) { up(sw); sw.Status.SeenAt = ago(d) }
}

func flipped(d time.Duration) func(*v1beta1.Switch) {
	return func(sw *v1beta1.Switch) {
		metav1.SetMetaDataAnnotation(&sw.ObjectMeta, v1beta1.FlippedAtAnnotation, now.Add(-d).Format(metav1.RFC3339Micro))
	}
}

func orphan(sw *v1beta1.Switch)      { sw.OwnerReferences = nil }
func foreign(sw *v1beta1.Switch)     { sw.OwnerReferences[0].UID = "another" }
func relabelled(sw *v1beta1.Switch)  { sw.Labels = map[string]string{v1beta1.MachineLabel: "another"} }
func terminating(sw *v1beta1.Switch) { sw.DeletionTimestamp = new(metav1.NewTime(now)) }
func pausedSwitch(sw *v1beta1.Switch) {
	metav1.SetMetaDataAnnotation(&sw.ObjectMeta, v1beta1.PausedAnnotation, "true")
}

func positionless(sw *v1beta1.Switch) { sw.Spec.Position = "" }

func created(d time.Duration) func(*v1beta1.Switch) {
	return func(sw *v1beta1.Switch) { sw.CreationTimestamp = metav1.NewTime(now.Add(-d)) }
}

// summary is a plan by the names of its switches.
type summary struct {
	Adopt, Release, Surplus, Raise, Notice, Forget, Flip []string
	Create                                               int
	Confirm, Raising, Lower                              bool
	Next                                                 time.Duration // from now; zero for never
}

func summarize(p plan) summary {
	due := make([]*v1beta1.Switch, 0, len(p.flip))
	for _, f := range p.flip {
		due = append(due, f.sw)
	}
	s := summary{
		Adopt: namesOf(p.adopt), Release: namesOf(p.release), Surplus: namesOf(p.surplus), Raise: namesOf(p.raise),
		Notice: namesOf(p.notice), Forget: namesOf(p.forget), Flip: namesOf(due),
		Create: p.create, Confirm: p.confirm, Raising: p.raising, Lower: p.lower,
	}
	if !p.next.IsZero() {
		s.Next = p.next.Sub(now)
	}
	return s
}

func namesOf(switches []*v1beta1.Switch) []string {
	var names []string
	for _, sw := range switches {
		names = append(names, sw.Name)
	}
	return names
}

func TestDecide(t *testing.T) {
	cases := map[string]struct {
		reason   string
		machine  *v1beta1.Machine
		switches []*v1beta1.Switch
		known    flips
		want     summary
	}{
		"New": {
			reason:  "a machine without switches gets all of them",
			machine: newMachine(3),
			want:    summary{Confirm: true, Create: 3},
		},
		"NewAndLarge": {
			reason:  "a machine of a thousand leaves others their turn",
			machine: newMachine(1000),
			want:    summary{Confirm: true, Create: 100},
		},
		"WithoutPosition": {
			reason:   "a switch to which nobody has given a position is down",
			machine:  newMachine(1),
			switches: []*v1beta1.Switch{newTestSwitch("m-0", positionless)},
			want:     summary{},
		},
		"SurplusRemembers": {
			reason:   "a switch that alone tells of the last flip is not deleted before the status does",
			machine:  newMachine(1, lastFlipped(time.Minute)),
			switches: []*v1beta1.Switch{newTestSwitch("m-0"), newTestSwitch("m-1", flipped(time.Second))},
			want:     summary{},
		},
		"SurplusRemembered": {
			reason:   "afterwards it is",
			machine:  newMachine(1, lastFlipped(time.Second)),
			switches: []*v1beta1.Switch{newTestSwitch("m-0"), newTestSwitch("m-1", flipped(time.Second))},
			want:     summary{Surplus: []string{"m-1"}},
		},
		"SurplusIncredible": {
			reason:   "an instant that somebody else made up keeps nothing",
			machine:  newMachine(1),
			switches: []*v1beta1.Switch{newTestSwitch("m-0"), newTestSwitch("m-1", flipped(-time.Hour))},
			want:     summary{Surplus: []string{"m-1"}},
		},
		"ReleaseRemembers": {
			reason:   "nor is it released before that",
			machine:  newMachine(2),
			switches: []*v1beta1.Switch{newTestSwitch("m-0"), newTestSwitch("m-1", flipped(time.Second), relabelled)},
			want:     summary{},
		},
		"NoCount": {
			reason:  "absent and default mean the same",
			machine: newMachine(0),
			want:    summary{Confirm: true, Create: 1},
		},
		"AtRest": {
			reason:   "nothing is done when all is well",
			machine:  newMachine(2),
			switches: []*v1beta1.Switch{newTestSwitch("m-0"), newTestSwitch("m-1")},
			want:     summary{},
		},
		"Terminating": {
			reason:   "a switch that is being deleted is none",
			machine:  newMachine(2),
			switches: []*v1beta1.Switch{newTestSwitch("m-0"), newTestSwitch("m-1", terminating, up)},
			want:     summary{Confirm: true, Create: 1},
		},
		"Adopt": {
			reason:   "a matching switch that nobody controls counts, once it is adopted",
			machine:  newMachine(2),
			switches: []*v1beta1.Switch{newTestSwitch("m-0"), newTestSwitch("stray", orphan, up)},
			want:     summary{Confirm: true, Adopt: []string{"stray"}},
		},
		"AdoptBeforeDelete": {
			reason:   "a stray that is one too many is adopted first, because it may be the one to go",
			machine:  newMachine(1),
			switches: []*v1beta1.Switch{newTestSwitch("m-0"), newTestSwitch("stray", orphan)},
			want:     summary{Confirm: true, Adopt: []string{"stray"}},
		},
		"OtherOrphan": {
			reason:   "an orphan that does not match is nobody's business",
			machine:  newMachine(1),
			switches: []*v1beta1.Switch{newTestSwitch("m-0"), newTestSwitch("stray", orphan, relabelled)},
			want:     summary{},
		},
		"TerminatingOrphan": {
			reason:   "an orphan that is being deleted is not adopted",
			machine:  newMachine(1),
			switches: []*v1beta1.Switch{newTestSwitch("m-0"), newTestSwitch("stray", orphan, terminating)},
			want:     summary{},
		},
		"Release": {
			reason:   "a switch that no longer matches is let go and replaced, and not flipped any more",
			machine:  newMachine(2),
			switches: []*v1beta1.Switch{newTestSwitch("m-0"), newTestSwitch("m-1", relabelled, seen(time.Hour))},
			want:     summary{Confirm: true, Release: []string{"m-1"}, Create: 1},
		},
		"Foreign": {
			reason:   "what another controls is left alone, whatever its labels say",
			machine:  newMachine(1),
			switches: []*v1beta1.Switch{newTestSwitch("m-0"), newTestSwitch("m-1", foreign, seen(time.Hour))},
			want:     summary{},
		},
		"DownBeforeUp": {
			reason:   "a switch that is down goes before one that is up, even if it is older",
			machine:  newMachine(1),
			switches: []*v1beta1.Switch{newTestSwitch("m-0", created(time.Hour)), newTestSwitch("m-1", created(time.Minute), seen(time.Second))},
			want:     summary{Surplus: []string{"m-0"}, Next: 4 * time.Second},
		},
		"NewestFirst": {
			reason:  "among equals the newest goes first, and the highest number among those of one second",
			machine: newMachine(1),
			switches: []*v1beta1.Switch{
				newTestSwitch("m-2", created(time.Hour)), newTestSwitch("m-9", created(time.Minute)),
				newTestSwitch("m-10", created(time.Minute)), newTestSwitch("m-1", created(2*time.Hour)),
			},
			want: summary{Surplus: []string{"m-10", "m-9", "m-2"}},
		},
		"PausedSurplus": {
			reason:   "a paused switch is not deleted, even where it is the only one that could be",
			machine:  newMachine(1),
			switches: []*v1beta1.Switch{newTestSwitch("m-0", pausedSwitch), newTestSwitch("m-1", pausedSwitch)},
			want:     summary{},
		},
		"Notice": {
			reason:   "a switch that is up is noticed first, and due the delay after that",
			machine:  newMachine(1),
			switches: []*v1beta1.Switch{newTestSwitch("m-0", up)},
			want:     summary{Notice: []string{"m-0"}, Next: 5 * time.Second},
		},
		"NotYet": {
			reason:   "a microsecond early is early",
			machine:  newMachine(1),
			switches: []*v1beta1.Switch{newTestSwitch("m-0", seen(5*time.Second-time.Microsecond))},
			want:     summary{Next: time.Microsecond},
		},
		"Due": {
			reason:   "a switch is due the moment its delay is over",
			machine:  newMachine(1),
			switches: []*v1beta1.Switch{newTestSwitch("m-0", seen(5*time.Second))},
			want:     summary{Flip: []string{"m-0"}},
		},
		"OldestFirst": {
			reason:  "of several that are due the oldest is turned down, and the next one an interval later",
			machine: newMachine(3),
			switches: []*v1beta1.Switch{
				newTestSwitch("m-0", seen(6*time.Second)), newTestSwitch("m-1", seen(8*time.Second)), newTestSwitch("m-2", seen(7*time.Second)),
			},
			want: summary{Flip: []string{"m-1"}, Next: 5 * time.Second},
		},
		"IntervalByStatus": {
			reason:   "the interval counts from the machine's last flip",
			machine:  newMachine(1, lastFlipped(2*time.Second)),
			switches: []*v1beta1.Switch{newTestSwitch("m-0", seen(time.Minute))},
			want:     summary{Next: 3 * time.Second},
		},
		"IntervalByAnnotation": {
			reason:   "a flip that the status has not heard of, because of a crash, counts just the same",
			machine:  newMachine(2, lastFlipped(time.Hour)),
			switches: []*v1beta1.Switch{newTestSwitch("m-0", seen(time.Minute)), newTestSwitch("m-1", flipped(time.Second))},
			want:     summary{Next: 4 * time.Second},
		},
		"IntervalByMemory": {
			reason:   "the interval counts from when the last flip was certainly done, which the process knows before the status does",
			machine:  newMachine(2, lastFlipped(time.Hour)),
			switches: []*v1beta1.Switch{newTestSwitch("m-0", seen(time.Minute)), newTestSwitch("m-1", flipped(2*time.Second))},
			known:    flips{done: now.Add(-time.Second)},
			want:     summary{Next: 4 * time.Second},
		},
		"IntervalByAttempt": {
			reason:   "a flip of which nobody has heard whether it was done counts, too",
			machine:  newMachine(2, lastFlipped(time.Hour)),
			switches: []*v1beta1.Switch{newTestSwitch("m-0", seen(time.Minute)), newTestSwitch("m-1")},
			known:    flips{attempted: now.Add(-time.Second)},
			want:     summary{Next: 4 * time.Second},
		},
		"OlderMemory": {
			reason:   "and from the status, if somebody else has flipped one since",
			machine:  newMachine(1, lastFlipped(time.Second)),
			switches: []*v1beta1.Switch{newTestSwitch("m-0", seen(time.Minute))},
			known:    flips{done: now.Add(-time.Minute)},
			want:     summary{Next: 4 * time.Second},
		},
		"ClockTurnedBack": {
			reason:   "what the process remembers of a future holds nobody up",
			machine:  newMachine(1),
			switches: []*v1beta1.Switch{newTestSwitch("m-0", seen(time.Minute))},
			known:    flips{done: now.Add(time.Hour), attempted: now.Add(time.Hour)},
			want:     summary{Flip: []string{"m-0"}},
		},
		"IntervalBySurplus": {
			reason:   "the flip of a switch that is about to go counts just the same",
			machine:  newMachine(1),
			switches: []*v1beta1.Switch{newTestSwitch("m-0", seen(time.Minute)), newTestSwitch("m-1", flipped(time.Second))},
			want:     summary{Next: 4 * time.Second},
		},
		"IntervalByGoing": {
			reason:   "so does that of one that is going, which a finalizer may hold",
			machine:  newMachine(1),
			switches: []*v1beta1.Switch{newTestSwitch("m-0", seen(time.Minute)), newTestSwitch("m-1", flipped(time.Second), terminating)},
			want:     summary{Next: 4 * time.Second},
		},
		"NoIntervalByForeign": {
			reason:   "that of somebody else's does not",
			machine:  newMachine(1),
			switches: []*v1beta1.Switch{newTestSwitch("m-0", seen(time.Minute)), newTestSwitch("m-1", flipped(time.Second), foreign)},
			want:     summary{Flip: []string{"m-0"}},
		},
		"BadAnnotation": {
			reason:  "what is no instant says nothing",
			machine: newMachine(1),
			switches: []*v1beta1.Switch{newTestSwitch("m-0", seen(time.Minute), func(sw *v1beta1.Switch) {
				metav1.SetMetaDataAnnotation(&sw.ObjectMeta, v1beta1.FlippedAtAnnotation, "yesterday")
			})},
			want: summary{Flip: []string{"m-0"}},
		},
		"DelayLongerThanInterval": {
			reason:   "both times have to pass",
			machine:  newMachine(1, flipTimes(60, 1), lastFlipped(2*time.Second)),
			switches: []*v1beta1.Switch{newTestSwitch("m-0", seen(10*time.Second))},
			want:     summary{Next: 50 * time.Second},
		},
		"NoDelayNoInterval": {
			reason:   "with neither delay nor interval all go down at once, unnoticed",
			machine:  newMachine(3, flipTimes(0, 0), lastFlipped(0)),
			switches: []*v1beta1.Switch{newTestSwitch("m-0", up), newTestSwitch("m-1", up), newTestSwitch("m-2", seen(time.Second))},
			want:     summary{Flip: []string{"m-2", "m-0", "m-1"}},
		},
		"NoDelay": {
			reason:   "without delay one goes down at once and the others are noticed, to keep their order",
			machine:  newMachine(2, flipTimes(0, 5)),
			switches: []*v1beta1.Switch{newTestSwitch("m-1", up), newTestSwitch("m-0", up)},
			want:     summary{Flip: []string{"m-0"}, Notice: []string{"m-1"}, Next: 5 * time.Second},
		},
		"NoInterval": {
			reason:   "without interval each goes down when its own delay is over",
			machine:  newMachine(2, flipTimes(5, 0), lastFlipped(0)),
			switches: []*v1beta1.Switch{newTestSwitch("m-0", seen(5*time.Second)), newTestSwitch("m-1", seen(3*time.Second))},
			want:     summary{Flip: []string{"m-0"}, Next: 2 * time.Second},
		},
		"Forget": {
			reason:   "a switch that is down again is not known to be up: the next time it is, its delay starts anew",
			machine:  newMachine(1),
			switches: []*v1beta1.Switch{newTestSwitch("m-0", seen(time.Second), func(sw *v1beta1.Switch) { sw.Spec.Position = v1beta1.PositionDown })},
			want:     summary{Forget: []string{"m-0"}},
		},
		"TurnedAgain": {
			reason:   "a switch that was turned down and up again, both unseen, has its delay start anew",
			machine:  newMachine(1),
			switches: []*v1beta1.Switch{newTestSwitch("m-0", seen(time.Minute), func(sw *v1beta1.Switch) { sw.Generation += 2 })},
			want:     summary{Notice: []string{"m-0"}, Next: 5 * time.Second},
		},
		"FlippedInTheFuture": {
			reason:   "a flip that has yet to happen holds nobody up: a clock was wrong, or somebody wrote it",
			machine:  newMachine(2, lastFlipped(-time.Hour)),
			switches: []*v1beta1.Switch{newTestSwitch("m-0", seen(time.Minute)), newTestSwitch("m-1", flipped(-24*time.Hour))},
			want:     summary{Flip: []string{"m-0"}},
		},
		"SeenInTheFuture": {
			reason:   "nor does a switch that is yet to be seen stay up until then",
			machine:  newMachine(1),
			switches: []*v1beta1.Switch{newTestSwitch("m-0", seen(-time.Hour))},
			want:     summary{Notice: []string{"m-0"}, Next: 5 * time.Second},
		},
		"SlightlyInTheFuture": {
			reason:   "clocks of nodes differ a little, and no interval is cut short by that",
			machine:  newMachine(1, lastFlipped(-time.Second)),
			switches: []*v1beta1.Switch{newTestSwitch("m-0", seen(time.Minute))},
			want:     summary{Next: 6 * time.Second},
		},
		"PausedSwitch": {
			reason:   "a paused switch is neither noticed nor flipped nor released, and keeps nobody else up",
			machine:  newMachine(3),
			switches: []*v1beta1.Switch{newTestSwitch("m-0", pausedSwitch, seen(time.Hour)), newTestSwitch("m-1", pausedSwitch, up, relabelled), newTestSwitch("m-2", seen(time.Minute))},
			want:     summary{Flip: []string{"m-2"}},
		},
		"Raise": {
			reason:   "position up turns up what is down, and nothing down in the same pass",
			machine:  newMachine(3, position(v1beta1.PositionUp, v1beta1.PositionDown)),
			switches: []*v1beta1.Switch{newTestSwitch("m-0"), newTestSwitch("m-1", seen(time.Hour)), newTestSwitch("m-2", pausedSwitch)},
			want:     summary{Raising: true, Raise: []string{"m-0"}},
		},
		"RaiseWaits": {
			reason:   "position up waits until there are as many switches as asked for",
			machine:  newMachine(2, position(v1beta1.PositionUp, v1beta1.PositionDown)),
			switches: []*v1beta1.Switch{newTestSwitch("m-0")},
			want:     summary{Confirm: true, Create: 1},
		},
		"RaisedOnce": {
			reason:   "what position up has turned up is turned down by the ordinary rule",
			machine:  newMachine(2, position(v1beta1.PositionUp, v1beta1.PositionUp)),
			switches: []*v1beta1.Switch{newTestSwitch("m-0"), newTestSwitch("m-1", seen(time.Hour))},
			want:     summary{Flip: []string{"m-1"}},
		},
		"Lower": {
			reason:   "when the last is down, the machine's position follows",
			machine:  newMachine(2, position(v1beta1.PositionUp, v1beta1.PositionUp)),
			switches: []*v1beta1.Switch{newTestSwitch("m-0"), newTestSwitch("m-1")},
			want:     summary{Lower: true},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, summarize(decide(c.machine, c.switches, c.known, now))); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.reason, diff)
			}
		})
	}
}

func TestNames(t *testing.T) {
	next := names(newMachine(0), func(name string) bool { return name == "m-0" || name == "m-2" })
	got := []string{next(), next(), next()}
	if diff := cmp.Diff([]string{"m-1", "m-3", "m-4"}, got); diff != "" {
		t.Errorf("the lowest free ordinals come first (-want +got):\n%s", diff)
	}
}

func TestByName(t *testing.T) {
	want := []string{"machine", "machine-1", "machine-2", "machine-010", "machine-10", "machine-99999999999999999999999", "switch-x7k"}
	got := slices.Clone(want)
	slices.Reverse(got)
	slices.SortFunc(got, func(a, b string) int { return byName(newTestSwitch(a), newTestSwitch(b)) })
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("numbers are ordered as numbers (-want +got):\n%s", diff)
	}
}
