// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package invariants

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"container.training/useless/api/useless/v1beta1"
)

var noon = time.Date(2026, time.November, 21, 12, 0, 0, 0, time.UTC)

// theMachine returns a revision of a Machine that asks for one switch.
func theMachine(change func(*v1beta1.Machine)) Revision {
	m := &v1beta1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "m", UID: "machine", Generation: 1}}
	m.Spec.Switches.Count = 1
	change(m)
	return Revision{Type: watch.Modified, Object: m}
}

// aSwitch returns a revision of a switch that the Machine controls and that is down.
func aSwitch(name string, change func(*v1beta1.Switch)) Revision {
	sw := &v1beta1.Switch{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: name, UID: types.UID(name), Generation: 1,
		OwnerReferences: []metav1.OwnerReference{{APIVersion: v1beta1.GroupVersion.String(), Kind: "Machine", Name: "m", UID: "machine", Controller: new(true)}},
	}}
	sw.Spec.Position = v1beta1.PositionDown
	change(sw)
	return Revision{Type: watch.Modified, Object: sw}
}

func unchanged[T any](T) {}

func withoutOwner(sw *v1beta1.Switch) { sw.OwnerReferences = nil }

func byOperator(r Revision) Revision {
	r.By = "operator"
	return r
}

func byUser(r Revision) Revision {
	r.By = ""
	return r
}

// deleted returns a revision in which the operator deletes a switch.
func deleted(name string, change func(*v1beta1.Switch)) Revision {
	r := aSwitch(name, change)
	r.Type, r.By = watch.Deleted, "operator"
	return r
}

// up turns a switch up. The operator has set status.seenAt to a number of seconds after noon.
func up(seconds int) func(*v1beta1.Switch) {
	return func(sw *v1beta1.Switch) {
		sw.Generation, sw.Spec.Position = 2, v1beta1.PositionUp
		sw.Status.ObservedGeneration, sw.Status.SeenAt = 2, new(metav1.NewMicroTime(noon.Add(time.Duration(seconds)*time.Second)))
	}
}

// down sets the flip time to a number of seconds after noon, as the operator does when it turns a switch down.
func down(seconds int) func(*v1beta1.Switch) {
	return func(sw *v1beta1.Switch) {
		sw.Generation = 3
		sw.Annotations = map[string]string{v1beta1.FlippedAtAnnotation: noon.Add(time.Duration(seconds) * time.Second).Format(metav1.RFC3339Micro)}
	}
}

func TestCheck(t *testing.T) {
	two := theMachine(func(m *v1beta1.Machine) { m.Spec.Switches.Count = 2 })
	for _, test := range []struct {
		reason    string
		revisions []Revision
		want      string // part of the violation; empty for none
	}{{
		reason: "two switches are created, turned up and turned down correctly",
		revisions: []Revision{
			two, aSwitch("m-0", unchanged), aSwitch("m-1", unchanged), aSwitch("m-0", up(0)), aSwitch("m-1", up(0)), aSwitch("m-0", down(5)), aSwitch("m-1", down(10)),
		},
	}, {
		reason:    "the operator turns a switch down without writing the flip time",
		revisions: []Revision{two, aSwitch("m-0", unchanged), aSwitch("m-0", up(0)), byOperator(aSwitch("m-0", unchanged))},
		want:      "without writing the flip time",
	}, {
		reason:    "a user may turn a switch down without writing the flip time",
		revisions: []Revision{two, aSwitch("m-0", unchanged), aSwitch("m-0", up(0)), aSwitch("m-0", unchanged)},
	}, {
		reason:    "a switch is created that the Machine does not ask for",
		revisions: []Revision{theMachine(unchanged), aSwitch("m-0", unchanged), aSwitch("m-1", unchanged)},
		want:      "has 2 switches and asks for 1",
	}, {
		reason:    "a switch is created that the previous generation asked for",
		revisions: []Revision{two, aSwitch("m-0", unchanged), theMachine(func(m *v1beta1.Machine) { m.Generation = 2 }), aSwitch("m-1", unchanged)},
	}, {
		reason: "a matching switch is adopted although it is surplus",
		revisions: []Revision{
			theMachine(unchanged), aSwitch("m-0", unchanged), aSwitch("other", withoutOwner), aSwitch("other", unchanged),
		},
	}, {
		reason: "a switch is created for a generation after status.observedGeneration",
		revisions: []Revision{
			two, aSwitch("m-0", unchanged), theMachine(func(m *v1beta1.Machine) { m.Generation = 2 }),
			theMachine(func(m *v1beta1.Machine) { m.Generation = 3 }), aSwitch("m-1", unchanged),
		},
	}, {
		reason: "a switch is created for a generation before status.observedGeneration",
		revisions: []Revision{
			two, aSwitch("m-0", unchanged), theMachine(func(m *v1beta1.Machine) { m.Generation = 2 }),
			theMachine(func(m *v1beta1.Machine) { m.Generation, m.Status.ObservedGeneration = 3, 3 }), aSwitch("m-1", unchanged),
		},
		want: "has 2 switches and asks for 1",
	}, {
		reason:    "a surplus switch is deleted",
		revisions: []Revision{two, aSwitch("m-0", unchanged), aSwitch("m-1", unchanged), theMachine(func(m *v1beta1.Machine) { m.Generation = 2 }), deleted("m-1", unchanged)},
	}, {
		reason:    "a switch that the Machine needs is deleted",
		revisions: []Revision{two, aSwitch("m-0", unchanged), aSwitch("m-1", unchanged), deleted("m-1", unchanged)},
		want:      "the Machine has 2 switches and asks for 2",
	}, {
		reason: "a surplus switch is deleted while a user deletes another switch",
		revisions: []Revision{
			two, aSwitch("m-0", unchanged), aSwitch("m-1", unchanged), aSwitch("m-2", withoutOwner), aSwitch("m-2", unchanged),
			byUser(deleted("m-0", unchanged)), deleted("m-2", unchanged),
		},
	}, {
		reason: "a switch is deleted after the status shows that a user deleted another switch",
		revisions: []Revision{
			two, aSwitch("m-0", unchanged), aSwitch("m-1", unchanged), aSwitch("m-2", withoutOwner), aSwitch("m-2", unchanged),
			byUser(deleted("m-0", unchanged)), theMachine(func(m *v1beta1.Machine) { m.Spec.Switches.Count, m.Status.Switches.Total = 2, 2 }),
			deleted("m-2", unchanged),
		},
		want: "the Machine has 2 switches and asks for 2",
	}, {
		reason: "the operator deletes the switch that replaced a switch deleted by a user",
		revisions: []Revision{
			two, aSwitch("m-0", unchanged), aSwitch("m-1", unchanged), byUser(deleted("m-0", unchanged)), aSwitch("m-2", unchanged), deleted("m-2", unchanged),
		},
		want: "the Machine has 2 switches and asks for 2",
	}, {
		reason: "the operator deletes the last switch after the surplus switch",
		revisions: []Revision{
			two, aSwitch("m-0", unchanged), aSwitch("m-1", unchanged), theMachine(func(m *v1beta1.Machine) { m.Generation = 2 }),
			deleted("m-0", unchanged), deleted("m-1", unchanged),
		},
		want: "the Machine has 1 switches and asks for 1",
	}, {
		reason: "each of two leaders deletes a surplus switch before it knows of the other deletion",
		revisions: []Revision{
			two, aSwitch("m-0", unchanged), aSwitch("m-1", unchanged), theMachine(func(m *v1beta1.Machine) { m.Generation = 2 }),
			deleted("m-0", unchanged), byAnother(deleted("m-1", unchanged)),
		},
	}, {
		reason: "a second leader deletes the last switch although it knows of the other deletion",
		revisions: []Revision{
			two, aSwitch("m-0", unchanged), aSwitch("m-1", unchanged), theMachine(func(m *v1beta1.Machine) { m.Generation = 2 }),
			deleted("m-0", unchanged), later(byAnother(deleted("m-1", unchanged))),
		},
		want: "the Machine has 1 switches and asks for 1",
	}, {
		reason:    "a switch without owner is deleted",
		revisions: []Revision{two, aSwitch("other", withoutOwner), deleted("other", withoutOwner)},
		want:      "no Machine controls it",
	}, {
		reason:    "the owner is a Machine in another namespace",
		revisions: []Revision{theMachine(unchanged), aSwitch("m-0", func(sw *v1beta1.Switch) { sw.Namespace = "other" })},
		want:      "its controller is default/m",
	}, {
		reason:    "the owner reference has another kind",
		revisions: []Revision{theMachine(unchanged), aSwitch("m-0", func(sw *v1beta1.Switch) { sw.OwnerReferences[0].Kind = "machine" })},
		want:      "its controller is a machine of",
	}, {
		reason: "a switch is created for a deleted Machine",
		revisions: []Revision{
			theMachine(unchanged), {Type: watch.Deleted, Object: theMachine(unchanged).Object}, byOperator(aSwitch("m-0", unchanged)),
		},
		want: "for a deleted Machine",
	}, {
		reason:    "a switch changes after its Machine was deleted",
		revisions: []Revision{theMachine(unchanged), byOperator(aSwitch("m-0", unchanged)), {Type: watch.Deleted, Object: theMachine(unchanged).Object}, aSwitch("m-0", up(0))},
	}, {
		reason:    "a switch is turned down before the delay is over",
		revisions: []Revision{theMachine(unchanged), aSwitch("m-0", unchanged), aSwitch("m-0", up(0)), aSwitch("m-0", down(4))},
		want:      "4s after the operator saw it up, and the delay is 5s",
	}, {
		reason: "a switch is turned down before the operator saw it up",
		revisions: []Revision{theMachine(unchanged), aSwitch("m-0", unchanged), aSwitch("m-0", func(sw *v1beta1.Switch) {
			up(0)(sw)
			sw.Status.ObservedGeneration = 1
		}), aSwitch("m-0", down(5))},
		want: "before the operator saw it up",
	}, {
		reason: "without a delay, the operator may turn a switch down before it has set status.seenAt",
		revisions: []Revision{
			theMachine(func(m *v1beta1.Machine) { m.Spec.Flip.DelaySeconds = new(int32(0)) }),
			aSwitch("m-0", unchanged), aSwitch("m-0", func(sw *v1beta1.Switch) { sw.Generation, sw.Spec.Position = 2, v1beta1.PositionUp }), aSwitch("m-0", down(0)),
		},
	}, {
		reason:    "a switch that is already down is turned down",
		revisions: []Revision{theMachine(unchanged), aSwitch("m-0", unchanged), aSwitch("m-0", down(5))},
		want:      "when it was already down",
	}, {
		reason: "two switches are turned down within the interval",
		revisions: []Revision{
			two, aSwitch("m-0", unchanged), aSwitch("m-1", unchanged), aSwitch("m-0", up(0)), aSwitch("m-1", up(0)), aSwitch("m-0", down(5)), aSwitch("m-1", down(9)),
		},
		want: "4s after the Machine's last flip",
	}, {
		reason: "without an interval, switches are turned down in parallel",
		revisions: []Revision{
			theMachine(func(m *v1beta1.Machine) { m.Spec.Switches.Count, m.Spec.Flip.IntervalSeconds = 2, new(int32(0)) }),
			aSwitch("m-0", unchanged), aSwitch("m-1", unchanged), aSwitch("m-0", up(0)), aSwitch("m-1", up(0)), aSwitch("m-0", down(6)), aSwitch("m-1", down(5)),
		},
	}, {
		reason: "a Machine that is being deleted turns all switches down immediately",
		revisions: []Revision{
			two, aSwitch("m-0", unchanged), aSwitch("m-1", unchanged), aSwitch("m-0", up(0)), aSwitch("m-1", up(0)),
			theMachine(func(m *v1beta1.Machine) { m.Generation, m.DeletionTimestamp = 2, new(metav1.NewTime(noon)) }),
			aSwitch("m-0", down(1)), aSwitch("m-1", down(1)),
		},
	}, {
		reason: "the status changes while the Machine is being deleted",
		revisions: []Revision{
			theMachine(func(m *v1beta1.Machine) { m.DeletionTimestamp = new(metav1.NewTime(noon)) }),
			theMachine(func(m *v1beta1.Machine) {
				m.DeletionTimestamp, m.Status.ObservedGeneration = new(metav1.NewTime(noon)), 1
			}),
		},
		want: "while it is being deleted",
	}, {
		reason: "a user may change a Machine that is being deleted",
		revisions: []Revision{
			theMachine(func(m *v1beta1.Machine) { m.DeletionTimestamp = new(metav1.NewTime(noon)) }),
			theMachine(func(m *v1beta1.Machine) {
				m.DeletionTimestamp, m.Generation, m.Spec.Switches.Count = new(metav1.NewTime(noon)), 2, 2
			}),
		},
	}, {
		reason: "observedGeneration decreases",
		revisions: []Revision{
			theMachine(func(m *v1beta1.Machine) { m.Status.ObservedGeneration = 2 }), theMachine(func(m *v1beta1.Machine) { m.Status.ObservedGeneration = 1 }),
		},
		want: "its status has observedGeneration 1 after 2",
	}} {
		t.Run(test.reason, func(t *testing.T) {
			faults := Check(test.revisions)
			if test.want == "" {
				for _, fault := range faults {
					t.Error(fault)
				}
				return
			}
			if len(faults) != 1 || !strings.Contains(faults[0].Error(), test.want) {
				t.Errorf("got %v, want %q", faults, test.want)
			}
		})
	}
}

// asking returns a revision of a Machine with a generation and a number of switches. The argument heard is the arrival
// time, in seconds after noon.
func asking(generation int64, count int32, heard int) Revision {
	r := theMachine(func(m *v1beta1.Machine) {
		m.Generation, m.Status.ObservedGeneration, m.Spec.Switches.Count = generation, generation, count
	})
	r.At = noon.Add(time.Duration(heard) * time.Second)
	return r
}

// heard sets when a revision arrives, in seconds after noon.
func heard(seconds int, r Revision) Revision {
	r.At = noon.Add(time.Duration(seconds) * time.Second)
	return r
}

func TestLag(t *testing.T) {
	scaled := []Revision{asking(1, 2, 0), asking(2, 1, 1), asking(3, 1, 2), heard(2, aSwitch("m-0", unchanged))}
	adopted := []Revision{asking(1, 1, 0), heard(0, aSwitch("other", withoutOwner)), heard(1, aSwitch("other", unchanged))}
	freed := []Revision{
		asking(1, 1, 0), heard(0, aSwitch("m-1", withoutOwner)), heard(1, aSwitch("m-0", unchanged)), heard(2, byUser(deleted("m-1", withoutOwner))),
	}
	gone := []Revision{asking(1, 1, 0), heard(1, Revision{Type: watch.Deleted, Object: theMachine(unchanged).Object})}
	for _, test := range []struct {
		reason    string
		lag       time.Duration
		revisions []Revision
		at        int // when the operator creates one more switch, in seconds after noon
		faults    int
	}{
		{reason: "no lag: an old generation is not allowed", revisions: scaled, at: 3, faults: 1},
		{reason: "within the lag: an old generation is allowed", lag: 3 * time.Second, revisions: scaled, at: 3},
		{reason: "after the lag: an old generation is not allowed", lag: 3 * time.Second, revisions: scaled, at: 4, faults: 1},
		{reason: "no lag: an adopted switch counts", revisions: adopted, at: 1, faults: 1},
		{reason: "within the lag: a switch that another process adopted does not count", lag: 3 * time.Second, revisions: adopted, at: 3},
		{reason: "after the lag: an adopted switch counts", lag: 3 * time.Second, revisions: adopted, at: 4, faults: 1},
		{reason: "no lag: a switch with a reused name counts", revisions: freed, at: 3, faults: 1},
		{reason: "within the lag: a switch with a reused name does not count", lag: 3 * time.Second, revisions: freed, at: 4},
		{reason: "after the lag: a switch with a reused name counts", lag: 3 * time.Second, revisions: freed, at: 5, faults: 1},
		{reason: "no lag: a switch must not be created for a deleted Machine", revisions: gone, at: 1, faults: 1},
		{reason: "within the lag: a suspended process may create a switch for a deleted Machine", lag: 3 * time.Second, revisions: gone, at: 3},
		{reason: "after the lag: a switch must not be created for a deleted Machine", lag: 3 * time.Second, revisions: gone, at: 4, faults: 1},
	} {
		c := NewChecker(test.lag)
		for _, r := range append(slices.Clip(test.revisions), heard(test.at, byOperator(aSwitch("m-1", unchanged)))) {
			c.Add(r)
		}
		if faults := c.Violations(); len(faults) != test.faults {
			t.Errorf("%s: got %v, want %d", test.reason, faults, test.faults)
		}
	}
}

// TestLost checks an operator that still counts a switch that a user deleted. The operator then deletes all remaining
// switches.
func TestLost(t *testing.T) {
	for _, test := range []struct {
		reason        string
		lag           time.Duration
		made, deleted int // when one switch is created, and when all switches are deleted, in seconds after noon
		faults        int
	}{
		{reason: "no lag: a creation shows that the operator knows of the user's deletion", made: 2, deleted: 3, faults: 1},
		{reason: "within the lag: the user's deletion may be unknown", lag: 3 * time.Second, made: 2, deleted: 3},
		{reason: "after the lag: the user's deletion is known", lag: 3 * time.Second, made: 2, deleted: 4, faults: 1},
	} {
		c := NewChecker(test.lag)
		for _, r := range []Revision{
			asking(1, 2, 0), aSwitch("m-0", unchanged), aSwitch("m-1", unchanged), heard(1, byUser(deleted("m-0", unchanged))), asking(2, 3, 1),
			heard(test.made, aSwitch("m-2", unchanged)), asking(3, 1, 3), heard(test.deleted, deleted("m-2", unchanged)), heard(test.deleted, deleted("m-1", unchanged)),
		} {
			c.Add(r)
		}
		if faults := c.Violations(); len(faults) != test.faults {
			t.Errorf("%s: got %v, want %d", test.reason, faults, test.faults)
		}
	}
}

// TestUnknownFlip checks a flip within the interval. The flip is a violation if its author must know of the previous
// flip.
func TestUnknownFlip(t *testing.T) {
	two := func(m *v1beta1.Machine) { m.Spec.Switches.Count = 2 }
	flipped := []Revision{
		theMachine(two), aSwitch("m-0", unchanged), aSwitch("m-1", unchanged), aSwitch("m-0", up(0)), aSwitch("m-1", up(0)), byOperator(aSwitch("m-0", down(6))),
	}
	taken := byUser(deleted("m-0", down(6)))
	given := aSwitch("m-0", func(sw *v1beta1.Switch) { down(6)(sw); withoutOwner(sw) })
	recorded := theMachine(func(m *v1beta1.Machine) {
		two(m)
		m.Status.LastFlipTime = new(metav1.NewMicroTime(noon.Add(6 * time.Second)))
	})
	turned := func(by func(Revision) Revision) []Revision {
		return []Revision{taken, by(aSwitch("m-1", down(9))), aSwitch("m-1", up(0))}
	}
	for _, test := range []struct {
		reason string
		then   []Revision
		by     func(Revision) Revision
		faults int
	}{
		{reason: "a process knows its own flip", then: []Revision{taken}, by: byOperator, faults: 1},
		{reason: "all unknown authors count as one process, which knows its own flip", then: turned(byUser), by: byUser, faults: 1},
		{reason: "another process does not know of the flip of a deleted switch", then: []Revision{taken}, by: byAnother},
		{reason: "another process does not know of the flip of a released switch", then: []Revision{given}, by: byAnother},
		{reason: "another process reads the flip from the switch", by: byAnother, faults: 1},
		{reason: "another process reads the flip from the status", then: []Revision{recorded, taken}, by: byAnother, faults: 1},
		{reason: "another process knows its own later flip", then: turned(byAnother), by: byAnother, faults: 1},
		{reason: "a process knows its own earlier flip", then: turned(byAnother), by: byOperator, faults: 1},
		{reason: "the operator knows the flip of a switch that it deleted", then: []Revision{asking(2, 1, 0), byOperator(taken)}, by: byAnother, faults: 1},
		{reason: "the operator knows the flip of a switch that it released", then: []Revision{byOperator(given)}, by: byAnother, faults: 1},
	} {
		c := NewChecker(0)
		for _, r := range slices.Concat(flipped, test.then, []Revision{test.by(aSwitch("m-1", down(10)))}) {
			c.Add(r)
		}
		if faults := c.Violations(); len(faults) != test.faults {
			t.Errorf("%s: got %v, want %d", test.reason, faults, test.faults)
		}
	}
}

// later adds leaderLag to the time of a revision. By then, another leader knows of all earlier revisions.
func later(r Revision) Revision {
	r.At = r.At.Add(leaderLag)
	return r
}

// byAnother sets the author to another process of the operator.
func byAnother(r Revision) Revision {
	r.By = "another"
	return r
}

func TestFlips(t *testing.T) {
	after := func(seconds int) time.Time { return noon.Add(time.Duration(seconds) * time.Second) }
	two := theMachine(func(m *v1beta1.Machine) { m.Spec.Switches.Count = 2 })
	start := []Revision{two, aSwitch("m-0", unchanged), aSwitch("m-1", unchanged)}
	for _, test := range []struct {
		reason    string
		revisions []Revision
		want      []Flip
	}{{
		reason:    "turning a switch up is not a flip",
		revisions: []Revision{aSwitch("m-0", up(0))},
	}, {
		reason:    "a flip time in the first revision of a switch is not a flip",
		revisions: []Revision{aSwitch("m-2", down(6))},
	}, {
		reason:    "a flip is due after the delay",
		revisions: []Revision{aSwitch("m-0", up(0)), aSwitch("m-0", down(6))},
		want:      []Flip{{Machine: "m", Due: after(5), At: after(6)}},
	}, {
		reason:    "a later write with the same flip time is not a second flip",
		revisions: []Revision{aSwitch("m-0", up(0)), aSwitch("m-0", down(6)), aSwitch("m-0", down(6))},
		want:      []Flip{{Machine: "m", Due: after(5), At: after(6)}},
	}, {
		reason: "an annotation that is not a time is not a flip",
		revisions: []Revision{aSwitch("m-0", up(0)), aSwitch("m-0", func(sw *v1beta1.Switch) {
			sw.Annotations = map[string]string{v1beta1.FlippedAtAnnotation: "noon"}
		})},
	}, {
		reason:    "a flip before the delay is over is early",
		revisions: []Revision{aSwitch("m-0", up(0)), aSwitch("m-0", down(4))},
		want:      []Flip{{Machine: "m", Due: after(5), At: after(4), Violation: Early}},
	}, {
		reason:    "the Machine's next flip is due after the interval",
		revisions: []Revision{aSwitch("m-0", up(0)), aSwitch("m-1", up(1)), aSwitch("m-0", down(6)), aSwitch("m-1", down(11))},
		want:      []Flip{{Machine: "m", Due: after(5), At: after(6)}, {Machine: "m", Due: after(11), At: after(11)}},
	}, {
		reason:    "the Machine's next flip within the interval is crowded",
		revisions: []Revision{aSwitch("m-0", up(0)), aSwitch("m-1", up(1)), aSwitch("m-0", down(6)), aSwitch("m-1", down(10))},
		want:      []Flip{{Machine: "m", Due: after(5), At: after(6)}, {Machine: "m", Due: after(11), At: after(10), Violation: Crowded}},
	}, {
		reason:    "a second flip of a switch that is down is doubled",
		revisions: []Revision{aSwitch("m-0", up(0)), aSwitch("m-0", down(6)), aSwitch("m-0", down(12))},
		want:      []Flip{{Machine: "m", Due: after(5), At: after(6)}, {Machine: "m", At: after(12), Violation: Doubled}},
	}} {
		t.Run(test.reason, func(t *testing.T) {
			c := NewChecker(0)
			var got []Flip
			for _, r := range slices.Concat(start, test.revisions) {
				if f, ok := c.Add(r); ok {
					got = append(got, f)
				}
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
