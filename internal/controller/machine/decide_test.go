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

// newMachine returns a Machine with count switches and the default flip times.
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

// newTestSwitch returns a switch of newMachine's Machine, as the controller creates it.
func newTestSwitch(name string, changes ...func(*v1beta1.Switch)) *v1beta1.Switch {
	sw := &v1beta1.Switch{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, UID: types.UID(name),
			Labels: map[string]string{v1beta1.MachineLabel: "m"},
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
		metav1.SetMetaDataAnnotation(&sw.ObjectMeta, v1beta1.FlippedAtAnnotation,
			now.Add(-d).Format(metav1.RFC3339Micro))
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

// summary is a plan with the names of its switches.
type summary struct {
	Adopt, Release, Surplus, Raise, Notice, Flip []string
	Create                                       int
	Confirm, Raising, Lower                      bool
	Next                                         time.Duration // from now; 0 means never
}

func summarize(p plan) summary {
	due := make([]*v1beta1.Switch, 0, len(p.flip))
	for _, f := range p.flip {
		due = append(due, f.sw)
	}
	s := summary{
		Adopt: namesOf(p.adopt), Release: namesOf(p.release), Surplus: namesOf(p.surplus), Raise: namesOf(p.raise),
		Notice: namesOf(p.notice), Flip: namesOf(due),
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
		known    remembered
		fresh    bool
		want     summary
	}{
		"New": {
			reason:  "a Machine without switches gets all of them",
			machine: newMachine(3),
			want:    summary{Confirm: true, Create: 3},
		},
		"NewAndFresh": {
			reason:  "a Machine that was read from the API server needs no confirmation",
			machine: newMachine(3),
			fresh:   true,
			want:    summary{Create: 3},
		},
		"NewAndLarge": {
			reason:  "one reconcile creates at most 100 switches, so that other Machines do not wait long",
			machine: newMachine(1000),
			want:    summary{Confirm: true, Create: 100},
		},
		"WithoutPosition": {
			reason:   "a switch without a position is down",
			machine:  newMachine(1),
			switches: []*v1beta1.Switch{newTestSwitch("m-0", positionless)},
			want:     summary{},
		},
		"SurplusIsOnlyRecord": {
			reason:   "a switch that is the only record of the last flip is not deleted",
			machine:  newMachine(1, lastFlipped(time.Minute)),
			switches: []*v1beta1.Switch{newTestSwitch("m-0"), newTestSwitch("m-1", flipped(time.Second))},
			want:     summary{},
		},
		"SurplusIsRecorded": {
			reason:   "a surplus switch is deleted after the status records its flip",
			machine:  newMachine(1, lastFlipped(time.Second)),
			switches: []*v1beta1.Switch{newTestSwitch("m-0"), newTestSwitch("m-1", flipped(time.Second))},
			want:     summary{Confirm: true, Surplus: []string{"m-1"}},
		},
		"SurplusFlippedInTheFuture": {
			reason:   "a flip time far in the future does not prevent the deletion of a switch",
			machine:  newMachine(1),
			switches: []*v1beta1.Switch{newTestSwitch("m-0"), newTestSwitch("m-1", flipped(-time.Hour))},
			want:     summary{Confirm: true, Surplus: []string{"m-1"}},
		},
		"ReleaseOnlyRecord": {
			reason:   "a switch that is the only record of the last flip is not released",
			machine:  newMachine(2),
			switches: []*v1beta1.Switch{newTestSwitch("m-0"), newTestSwitch("m-1", flipped(time.Second), relabelled)},
			want:     summary{},
		},
		"NoCount": {
			reason:  "an absent count means the default",
			machine: newMachine(0),
			want:    summary{Confirm: true, Create: 1},
		},
		"Unchanged": {
			reason:   "a Machine that matches its spec needs no change",
			machine:  newMachine(2),
			switches: []*v1beta1.Switch{newTestSwitch("m-0"), newTestSwitch("m-1")},
			want:     summary{},
		},
		"Terminating": {
			reason:   "a switch that is being deleted is not one of the Machine's switches",
			machine:  newMachine(2),
			switches: []*v1beta1.Switch{newTestSwitch("m-0"), newTestSwitch("m-1", terminating, up)},
			want:     summary{Confirm: true, Create: 1},
		},
		"Adopt": {
			reason:   "a matching switch without a controller is adopted and counts",
			machine:  newMachine(2),
			switches: []*v1beta1.Switch{newTestSwitch("m-0"), newTestSwitch("stray", orphan, up)},
			want:     summary{Confirm: true, Adopt: []string{"stray"}},
		},
		"AdoptBeforeDelete": {
			reason:   "a surplus orphan is adopted first, because it may be the switch that is deleted",
			machine:  newMachine(1),
			switches: []*v1beta1.Switch{newTestSwitch("m-0"), newTestSwitch("stray", orphan)},
			want:     summary{Confirm: true, Adopt: []string{"stray"}},
		},
		"OtherOrphan": {
			reason:   "an orphan that does not match is ignored",
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
			reason:   "a switch that no longer matches is released and replaced, and not flipped",
			machine:  newMachine(2),
			switches: []*v1beta1.Switch{newTestSwitch("m-0"), newTestSwitch("m-1", relabelled, seen(time.Hour))},
			want:     summary{Confirm: true, Release: []string{"m-1"}, Create: 1},
		},
		"Foreign": {
			reason:   "a switch with another controller is ignored, even if its labels match",
			machine:  newMachine(1),
			switches: []*v1beta1.Switch{newTestSwitch("m-0"), newTestSwitch("m-1", foreign, seen(time.Hour))},
			want:     summary{},
		},
		"DownBeforeUp": {
			reason:  "a switch that is down is deleted before a newer switch that is up",
			machine: newMachine(1),
			switches: []*v1beta1.Switch{newTestSwitch("m-0", created(time.Hour)),
				newTestSwitch("m-1", created(time.Minute), seen(time.Second))},
			want: summary{Confirm: true, Surplus: []string{"m-0"}, Next: 4 * time.Second},
		},
		"NewestFirst": {
			reason:  "the newest switch is deleted first; if the times are equal, the highest number",
			machine: newMachine(1),
			switches: []*v1beta1.Switch{
				newTestSwitch("m-2", created(time.Hour)), newTestSwitch("m-9", created(time.Minute)),
				newTestSwitch("m-10", created(time.Minute)), newTestSwitch("m-1", created(2*time.Hour)),
			},
			want: summary{Confirm: true, Surplus: []string{"m-10", "m-9", "m-2"}},
		},
		"PausedSurplus": {
			reason:   "a paused switch is not deleted, even if all others are paused, too",
			machine:  newMachine(1),
			switches: []*v1beta1.Switch{newTestSwitch("m-0", pausedSwitch), newTestSwitch("m-1", pausedSwitch)},
			want:     summary{},
		},
		"Notice": {
			reason:   "a switch that is up gets seenAt first, and is due after the delay",
			machine:  newMachine(1),
			switches: []*v1beta1.Switch{newTestSwitch("m-0", up)},
			want:     summary{Notice: []string{"m-0"}, Next: 5 * time.Second},
		},
		"NotYet": {
			reason:   "a switch is not due a microsecond before the end of its delay",
			machine:  newMachine(1),
			switches: []*v1beta1.Switch{newTestSwitch("m-0", seen(5*time.Second-time.Microsecond))},
			want:     summary{Next: time.Microsecond},
		},
		"Due": {
			reason:   "a switch is due at the end of its delay",
			machine:  newMachine(1),
			switches: []*v1beta1.Switch{newTestSwitch("m-0", seen(5*time.Second))},
			want:     summary{Flip: []string{"m-0"}},
		},
		"OldestFirst": {
			reason:  "the switch that has been up longest is turned down first, and the next one an interval later",
			machine: newMachine(3),
			switches: []*v1beta1.Switch{
				newTestSwitch("m-0", seen(6*time.Second)), newTestSwitch("m-1", seen(8*time.Second)),
				newTestSwitch("m-2", seen(7*time.Second)),
			},
			want: summary{Flip: []string{"m-1"}, Next: 5 * time.Second},
		},
		"IntervalByStatus": {
			reason:   "the interval begins at the last flip in the status",
			machine:  newMachine(1, lastFlipped(2*time.Second)),
			switches: []*v1beta1.Switch{newTestSwitch("m-0", seen(time.Minute))},
			want:     summary{Next: 3 * time.Second},
		},
		"IntervalByAnnotation": {
			reason:  "after a crash, the interval begins at a flip that only the annotation records",
			machine: newMachine(2, lastFlipped(time.Hour)),
			switches: []*v1beta1.Switch{newTestSwitch("m-0", seen(time.Minute)),
				newTestSwitch("m-1", flipped(time.Second))},
			want: summary{Next: 4 * time.Second},
		},
		"IntervalByMemory": {
			reason:  "the interval begins when the API server confirmed the last flip, which the process remembers",
			machine: newMachine(2, lastFlipped(time.Hour)),
			switches: []*v1beta1.Switch{newTestSwitch("m-0", seen(time.Minute)),
				newTestSwitch("m-1", flipped(2*time.Second))},
			known: remembered{flipped: now.Add(-time.Second)},
			want:  summary{Next: 4 * time.Second},
		},
		"IntervalByAttempt": {
			reason:   "the interval begins at a flip whose response was lost",
			machine:  newMachine(2, lastFlipped(time.Hour)),
			switches: []*v1beta1.Switch{newTestSwitch("m-0", seen(time.Minute)), newTestSwitch("m-1")},
			known:    remembered{attempted: now.Add(-time.Second)},
			want:     summary{Next: 4 * time.Second},
		},
		"OlderMemory": {
			reason:   "the interval begins at the flip in the status, if the process remembers only an older flip",
			machine:  newMachine(1, lastFlipped(time.Second)),
			switches: []*v1beta1.Switch{newTestSwitch("m-0", seen(time.Minute))},
			known:    remembered{flipped: now.Add(-time.Minute)},
			want:     summary{Next: 4 * time.Second},
		},
		"OlderAttempt": {
			reason:   "the interval begins at the flip in the status, if a flip whose response was lost is older",
			machine:  newMachine(1, lastFlipped(time.Second)),
			switches: []*v1beta1.Switch{newTestSwitch("m-0", seen(time.Minute))},
			known:    remembered{attempted: now.Add(-time.Minute)},
			want:     summary{Next: 4 * time.Second},
		},
		"ClockTurnedBack": {
			reason:   "if the clock was set back, a remembered flip in the future does not delay a flip",
			machine:  newMachine(1),
			switches: []*v1beta1.Switch{newTestSwitch("m-0", seen(time.Minute))},
			known:    remembered{flipped: now.Add(time.Hour), attempted: now.Add(time.Hour)},
			want:     summary{Flip: []string{"m-0"}},
		},
		"IntervalBySurplus": {
			reason:  "the interval begins at the flip of a surplus switch",
			machine: newMachine(1),
			switches: []*v1beta1.Switch{newTestSwitch("m-0", seen(time.Minute)),
				newTestSwitch("m-1", flipped(time.Second))},
			want: summary{Next: 4 * time.Second},
		},
		"IntervalByTerminating": {
			reason:  "the interval begins at the flip of a switch that is being deleted",
			machine: newMachine(1),
			switches: []*v1beta1.Switch{newTestSwitch("m-0", seen(time.Minute)),
				newTestSwitch("m-1", flipped(time.Second), terminating)},
			want: summary{Next: 4 * time.Second},
		},
		"NoIntervalByForeign": {
			reason:  "the operator ignores the flip time of a switch with another controller",
			machine: newMachine(1),
			switches: []*v1beta1.Switch{newTestSwitch("m-0", seen(time.Minute)),
				newTestSwitch("m-1", flipped(time.Second), foreign)},
			want: summary{Flip: []string{"m-0"}},
		},
		"BadAnnotation": {
			reason:  "an invalid flip time is ignored",
			machine: newMachine(1),
			switches: []*v1beta1.Switch{newTestSwitch("m-0", seen(time.Minute), func(sw *v1beta1.Switch) {
				metav1.SetMetaDataAnnotation(&sw.ObjectMeta, v1beta1.FlippedAtAnnotation, "yesterday")
			})},
			want: summary{Flip: []string{"m-0"}},
		},
		"DelayLongerThanInterval": {
			reason:   "both the delay and the interval must pass",
			machine:  newMachine(1, flipTimes(60, 1), lastFlipped(2*time.Second)),
			switches: []*v1beta1.Switch{newTestSwitch("m-0", seen(10*time.Second))},
			want:     summary{Next: 50 * time.Second},
		},
		"NoDelayNoInterval": {
			reason:  "if delay and interval are 0, all switches are turned down at once, and none gets seenAt",
			machine: newMachine(3, flipTimes(0, 0), lastFlipped(0)),
			switches: []*v1beta1.Switch{newTestSwitch("m-0", up), newTestSwitch("m-1", up),
				newTestSwitch("m-2", seen(time.Second))},
			want: summary{Flip: []string{"m-2", "m-0", "m-1"}},
		},
		"NoDelay": {
			reason:   "if the delay is 0, one switch is turned down at once, and the others get seenAt",
			machine:  newMachine(2, flipTimes(0, 5)),
			switches: []*v1beta1.Switch{newTestSwitch("m-1", up), newTestSwitch("m-0", up)},
			want:     summary{Flip: []string{"m-0"}, Notice: []string{"m-1"}, Next: 5 * time.Second},
		},
		"NoInterval": {
			reason:  "if the interval is 0, each switch is turned down at the end of its delay",
			machine: newMachine(2, flipTimes(5, 0), lastFlipped(0)),
			switches: []*v1beta1.Switch{newTestSwitch("m-0", seen(5*time.Second)),
				newTestSwitch("m-1", seen(3*time.Second))},
			want: summary{Flip: []string{"m-0"}, Next: 2 * time.Second},
		},
		"DownAgain": {
			reason:  "the old seenAt of a switch that is down again stays: the new generation makes it invalid",
			machine: newMachine(1),
			switches: []*v1beta1.Switch{newTestSwitch("m-0", seen(time.Second),
				func(sw *v1beta1.Switch) { sw.Spec.Position, sw.Generation = v1beta1.PositionDown, sw.Generation+1 })},
		},
		"TurnedAgain": {
			reason:  "if a switch was turned down and up again between two reconciles, its delay starts again",
			machine: newMachine(1),
			switches: []*v1beta1.Switch{newTestSwitch("m-0", seen(time.Minute),
				func(sw *v1beta1.Switch) { sw.Generation += 2 })},
			want: summary{Notice: []string{"m-0"}, Next: 5 * time.Second},
		},
		"FlippedInTheFuture": {
			reason:  "a recorded flip in the future does not delay a flip: a clock was wrong, or a user wrote the time",
			machine: newMachine(2, lastFlipped(-time.Hour)),
			switches: []*v1beta1.Switch{newTestSwitch("m-0", seen(time.Minute)),
				newTestSwitch("m-1", flipped(-24*time.Hour))},
			want: summary{Flip: []string{"m-0"}},
		},
		"SeenInTheFuture": {
			reason:   "seenAt in the future is replaced by now",
			machine:  newMachine(1),
			switches: []*v1beta1.Switch{newTestSwitch("m-0", seen(-time.Hour))},
			want:     summary{Notice: []string{"m-0"}, Next: 5 * time.Second},
		},
		"SlightlyInTheFuture": {
			reason:   "a flip time slightly in the future is valid, because the clocks of nodes differ",
			machine:  newMachine(1, lastFlipped(-time.Second)),
			switches: []*v1beta1.Switch{newTestSwitch("m-0", seen(time.Minute))},
			want:     summary{Next: 6 * time.Second},
		},
		"PausedSwitch": {
			reason:  "a paused switch gets no seenAt, is not flipped or released, and does not delay others",
			machine: newMachine(3),
			switches: []*v1beta1.Switch{newTestSwitch("m-0", pausedSwitch, seen(time.Hour)),
				newTestSwitch("m-1", pausedSwitch, up, relabelled), newTestSwitch("m-2", seen(time.Minute))},
			want: summary{Flip: []string{"m-2"}},
		},
		"Raise": {
			reason:  "with position up, all switches that are down and not paused are turned up; none is turned down",
			machine: newMachine(3, position(v1beta1.PositionUp, v1beta1.PositionDown)),
			switches: []*v1beta1.Switch{newTestSwitch("m-0"), newTestSwitch("m-1", seen(time.Hour)),
				newTestSwitch("m-2", pausedSwitch)},
			want: summary{Raising: true, Raise: []string{"m-0"}},
		},
		"RaiseWaits": {
			reason:   "a Machine with position up first creates its missing switches",
			machine:  newMachine(2, position(v1beta1.PositionUp, v1beta1.PositionDown)),
			switches: []*v1beta1.Switch{newTestSwitch("m-0")},
			want:     summary{Confirm: true, Create: 1},
		},
		"RaisedOnce": {
			reason:   "after position up was executed, the switches are turned down as usual",
			machine:  newMachine(2, position(v1beta1.PositionUp, v1beta1.PositionUp)),
			switches: []*v1beta1.Switch{newTestSwitch("m-0"), newTestSwitch("m-1", seen(time.Hour))},
			want:     summary{Flip: []string{"m-1"}},
		},
		"Lower": {
			reason:   "when the last switch is down, the Machine's position becomes down",
			machine:  newMachine(2, position(v1beta1.PositionUp, v1beta1.PositionUp)),
			switches: []*v1beta1.Switch{newTestSwitch("m-0"), newTestSwitch("m-1")},
			want:     summary{Lower: true},
		},
		"RaiseAgain": {
			reason:   "after the position was set back to down, position up is a new request",
			machine:  newMachine(2, position(v1beta1.PositionUp, v1beta1.PositionUp)),
			switches: []*v1beta1.Switch{newTestSwitch("m-0"), newTestSwitch("m-1")},
			known:    remembered{lowered: true},
			want:     summary{Raising: true, Raise: []string{"m-0", "m-1"}},
		},
		"RaiseAgainWaits": {
			reason:   "a new request for the position up also waits for missing switches",
			machine:  newMachine(2, position(v1beta1.PositionUp, v1beta1.PositionUp)),
			switches: []*v1beta1.Switch{newTestSwitch("m-0")},
			known:    remembered{lowered: true},
			want:     summary{Confirm: true, Create: 1},
		},
		"SurplusOfFresh": {
			reason:   "the Machine is read again before a deletion, because the switches were read after the Machine",
			machine:  newMachine(1),
			switches: []*v1beta1.Switch{newTestSwitch("m-0"), newTestSwitch("m-1")},
			fresh:    true,
			want:     summary{Confirm: true, Surplus: []string{"m-1"}},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, summarize(decide(c.machine, c.switches, c.known, c.fresh, now))); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.reason, diff)
			}
		})
	}
}

func TestNames(t *testing.T) {
	next := names(newMachine(0), func(name string) bool { return name == "m-0" || name == "m-2" })
	got := []string{next(), next(), next()}
	if diff := cmp.Diff([]string{"m-1", "m-3", "m-4"}, got); diff != "" {
		t.Errorf("names with the lowest free numbers (-want +got):\n%s", diff)
	}
}

func TestByName(t *testing.T) {
	want := []string{"machine", "machine-1", "machine-2", "machine-010", "machine-10",
		"machine-99999999999999999999999", "switch-x7k"}
	got := slices.Clone(want)
	slices.Reverse(got)
	slices.SortFunc(got, func(a, b string) int { return byName(newTestSwitch(a), newTestSwitch(b)) })
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("want numeric order (-want +got):\n%s", diff)
	}
}
