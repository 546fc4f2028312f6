// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package history

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

// theMachine asks for one switch.
func theMachine(change func(*v1beta1.Machine)) Revision {
	m := &v1beta1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "m", UID: "machine", Generation: 1}}
	m.Spec.Switches.Count = 1
	change(m)
	return Revision{Type: watch.Modified, Object: m}
}

// aSwitch is the Machine's, and down.
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

func controlledByNobody(sw *v1beta1.Switch) { sw.OwnerReferences = nil }

func byOperator(r Revision) Revision {
	r.By = "operator"
	return r
}

func byUser(r Revision) Revision {
	r.By = ""
	return r
}

// deleted is the end of a switch, by the operator.
func deleted(name string, change func(*v1beta1.Switch)) Revision {
	r := aSwitch(name, change)
	r.Type, r.By = watch.Deleted, "operator"
	return r
}

// up is turned up and was noticed at noon, and so many seconds later.
func up(seconds int) func(*v1beta1.Switch) {
	return func(sw *v1beta1.Switch) {
		sw.Generation, sw.Spec.Position = 2, v1beta1.PositionUp
		sw.Status.ObservedGeneration, sw.Status.SeenAt = 2, new(metav1.NewMicroTime(noon.Add(time.Duration(seconds)*time.Second)))
	}
}

// down is turned down by the operator so many seconds after noon.
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
		want      string // what is said of it; empty for nothing
	}{{
		reason: "a life as it should be",
		revisions: []Revision{
			two, aSwitch("m-0", unchanged), aSwitch("m-1", unchanged), aSwitch("m-0", up(0)), aSwitch("m-1", up(0)), aSwitch("m-0", down(5)), aSwitch("m-1", down(10)),
		},
	}, {
		reason:    "the operator turns one down without saying when",
		revisions: []Revision{two, aSwitch("m-0", unchanged), aSwitch("m-0", up(0)), byOperator(aSwitch("m-0", unchanged))},
		want:      "nothing says when",
	}, {
		reason:    "its user may do so",
		revisions: []Revision{two, aSwitch("m-0", unchanged), aSwitch("m-0", up(0)), aSwitch("m-0", unchanged)},
	}, {
		reason:    "a switch that the Machine does not ask for",
		revisions: []Revision{theMachine(unchanged), aSwitch("m-0", unchanged), aSwitch("m-1", unchanged)},
		want:      "has 2 switches and asks for 1",
	}, {
		reason:    "a switch that it asked for when it was being made",
		revisions: []Revision{two, aSwitch("m-0", unchanged), theMachine(func(m *v1beta1.Machine) { m.Generation = 2 }), aSwitch("m-1", unchanged)},
	}, {
		reason: "one that matched before is adopted, and is one too many",
		revisions: []Revision{
			theMachine(unchanged), aSwitch("m-0", unchanged), aSwitch("other", controlledByNobody), aSwitch("other", unchanged),
		},
	}, {
		reason: "a switch that it asked for before its status was written",
		revisions: []Revision{
			two, aSwitch("m-0", unchanged), theMachine(func(m *v1beta1.Machine) { m.Generation = 2 }),
			theMachine(func(m *v1beta1.Machine) { m.Generation = 3 }), aSwitch("m-1", unchanged),
		},
	}, {
		reason: "and one that it asked for before that",
		revisions: []Revision{
			two, aSwitch("m-0", unchanged), theMachine(func(m *v1beta1.Machine) { m.Generation = 2 }),
			theMachine(func(m *v1beta1.Machine) { m.Generation, m.Status.ObservedGeneration = 3, 3 }), aSwitch("m-1", unchanged),
		},
		want: "has 2 switches and asks for 1",
	}, {
		reason:    "one too many is deleted",
		revisions: []Revision{two, aSwitch("m-0", unchanged), aSwitch("m-1", unchanged), theMachine(func(m *v1beta1.Machine) { m.Generation = 2 }), deleted("m-1", unchanged)},
	}, {
		reason:    "one that the Machine needs is deleted",
		revisions: []Revision{two, aSwitch("m-0", unchanged), aSwitch("m-1", unchanged), deleted("m-1", unchanged)},
		want:      "the Machine has 2 switches and asks for 2",
	}, {
		reason: "one too many is deleted while its user deletes another",
		revisions: []Revision{
			two, aSwitch("m-0", unchanged), aSwitch("m-1", unchanged), aSwitch("m-2", controlledByNobody), aSwitch("m-2", unchanged),
			byUser(deleted("m-0", unchanged)), deleted("m-2", unchanged),
		},
	}, {
		reason: "one too many is deleted long after its user has deleted another",
		revisions: []Revision{
			two, aSwitch("m-0", unchanged), aSwitch("m-1", unchanged), aSwitch("m-2", controlledByNobody), aSwitch("m-2", unchanged),
			byUser(deleted("m-0", unchanged)), theMachine(func(m *v1beta1.Machine) { m.Spec.Switches.Count, m.Status.Switches.Total = 2, 2 }),
			deleted("m-2", unchanged),
		},
		want: "the Machine has 2 switches and asks for 2",
	}, {
		reason: "one that was made in the place of one that its user had deleted",
		revisions: []Revision{
			two, aSwitch("m-0", unchanged), aSwitch("m-1", unchanged), byUser(deleted("m-0", unchanged)), aSwitch("m-2", unchanged), deleted("m-2", unchanged),
		},
		want: "the Machine has 2 switches and asks for 2",
	}, {
		reason:    "one that is nobody's is deleted",
		revisions: []Revision{two, aSwitch("other", controlledByNobody), deleted("other", controlledByNobody)},
		want:      "is no Machine's",
	}, {
		reason:    "a switch of a Machine in another namespace",
		revisions: []Revision{theMachine(unchanged), aSwitch("m-0", func(sw *v1beta1.Switch) { sw.Namespace = "other" })},
		want:      "its controller is default/m",
	}, {
		reason:    "a switch of something of no such kind",
		revisions: []Revision{theMachine(unchanged), aSwitch("m-0", func(sw *v1beta1.Switch) { sw.OwnerReferences[0].Kind = "machine" })},
		want:      "its controller is a machine of",
	}, {
		reason: "a switch of a Machine that is gone",
		revisions: []Revision{
			theMachine(unchanged), {Type: watch.Deleted, Object: theMachine(unchanged).Object}, byOperator(aSwitch("m-0", unchanged)),
		},
		want: "for a Machine that is gone",
	}, {
		reason:    "one that outlives it",
		revisions: []Revision{theMachine(unchanged), byOperator(aSwitch("m-0", unchanged)), {Type: watch.Deleted, Object: theMachine(unchanged).Object}, aSwitch("m-0", up(0))},
	}, {
		reason:    "a switch that was up for too short a time",
		revisions: []Revision{theMachine(unchanged), aSwitch("m-0", unchanged), aSwitch("m-0", up(0)), aSwitch("m-0", down(4))},
		want:      "4s after it was noticed, and the delay is 5s",
	}, {
		reason: "a switch that nobody has noticed",
		revisions: []Revision{theMachine(unchanged), aSwitch("m-0", unchanged), aSwitch("m-0", func(sw *v1beta1.Switch) {
			up(0)(sw)
			sw.Status.ObservedGeneration = 1
		}), aSwitch("m-0", down(5))},
		want: "before it was noticed",
	}, {
		reason: "without a delay there is nothing to notice",
		revisions: []Revision{
			theMachine(func(m *v1beta1.Machine) { m.Spec.Flip.DelaySeconds = new(int32(0)) }),
			aSwitch("m-0", unchanged), aSwitch("m-0", func(sw *v1beta1.Switch) { sw.Generation, sw.Spec.Position = 2, v1beta1.PositionUp }), aSwitch("m-0", down(0)),
		},
	}, {
		reason:    "a switch that is down",
		revisions: []Revision{theMachine(unchanged), aSwitch("m-0", unchanged), aSwitch("m-0", down(5))},
		want:      "it is turned down, and was",
	}, {
		reason: "two switches in an interval",
		revisions: []Revision{
			two, aSwitch("m-0", unchanged), aSwitch("m-1", unchanged), aSwitch("m-0", up(0)), aSwitch("m-1", up(0)), aSwitch("m-0", down(5)), aSwitch("m-1", down(9)),
		},
		want: "4s after another one of the Machine",
	}, {
		reason: "without an interval they are turned down side by side",
		revisions: []Revision{
			theMachine(func(m *v1beta1.Machine) { m.Spec.Switches.Count, m.Spec.Flip.IntervalSeconds = 2, new(int32(0)) }),
			aSwitch("m-0", unchanged), aSwitch("m-1", unchanged), aSwitch("m-0", up(0)), aSwitch("m-1", up(0)), aSwitch("m-0", down(6)), aSwitch("m-1", down(5)),
		},
	}, {
		reason: "a Machine that goes has all turned down at once",
		revisions: []Revision{
			two, aSwitch("m-0", unchanged), aSwitch("m-1", unchanged), aSwitch("m-0", up(0)), aSwitch("m-1", up(0)),
			theMachine(func(m *v1beta1.Machine) { m.Generation, m.DeletionTimestamp = 2, new(metav1.NewTime(noon)) }),
			aSwitch("m-0", down(1)), aSwitch("m-1", down(1)),
		},
	}, {
		reason: "a status of a Machine that goes",
		revisions: []Revision{
			theMachine(func(m *v1beta1.Machine) { m.DeletionTimestamp = new(metav1.NewTime(noon)) }),
			theMachine(func(m *v1beta1.Machine) {
				m.DeletionTimestamp, m.Status.ObservedGeneration = new(metav1.NewTime(noon)), 1
			}),
		},
		want: "while it is being deleted",
	}, {
		reason: "a Machine that goes may be asked for more",
		revisions: []Revision{
			theMachine(func(m *v1beta1.Machine) { m.DeletionTimestamp = new(metav1.NewTime(noon)) }),
			theMachine(func(m *v1beta1.Machine) {
				m.DeletionTimestamp, m.Generation, m.Spec.Switches.Count = new(metav1.NewTime(noon)), 2, 2
			}),
		},
	}, {
		reason: "a status that goes back",
		revisions: []Revision{
			theMachine(func(m *v1beta1.Machine) { m.Status.ObservedGeneration = 2 }), theMachine(func(m *v1beta1.Machine) { m.Status.ObservedGeneration = 1 }),
		},
		want: "its status is of generation 1, and was of 2",
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

// asking is the Machine's revision of a generation that asks for so many switches, heard of so many seconds after noon.
func asking(generation int64, count int32, heard int) Revision {
	r := theMachine(func(m *v1beta1.Machine) {
		m.Generation, m.Status.ObservedGeneration, m.Spec.Switches.Count = generation, generation, count
	})
	r.At = noon.Add(time.Duration(heard) * time.Second)
	return r
}

// heard is a revision that was heard of so many seconds after noon.
func heard(seconds int, r Revision) Revision {
	r.At = noon.Add(time.Duration(seconds) * time.Second)
	return r
}

func TestLag(t *testing.T) {
	scaled := []Revision{asking(1, 2, 0), asking(2, 1, 1), asking(3, 1, 2), heard(2, aSwitch("m-0", unchanged))}
	adopted := []Revision{asking(1, 1, 0), heard(0, aSwitch("other", controlledByNobody)), heard(1, aSwitch("other", unchanged))}
	freed := []Revision{
		asking(1, 1, 0), heard(0, aSwitch("m-1", controlledByNobody)), heard(1, aSwitch("m-0", unchanged)), heard(2, byUser(deleted("m-1", controlledByNobody))),
	}
	gone := []Revision{asking(1, 1, 0), heard(1, Revision{Type: watch.Deleted, Object: theMachine(unchanged).Object})}
	for _, test := range []struct {
		reason    string
		lag       time.Duration
		revisions []Revision
		at        int // seconds after noon at which the operator makes one more switch
		faults    int
	}{
		{reason: "what was asked for before the last change is forgotten", revisions: scaled, at: 3, faults: 1},
		{reason: "where the operator may have been stopped since, it is not", lag: 3 * time.Second, revisions: scaled, at: 3},
		{reason: "but some time after that it is", lag: 3 * time.Second, revisions: scaled, at: 4, faults: 1},
		{reason: "what was adopted counts", revisions: adopted, at: 1, faults: 1},
		{reason: "where another operator may have done so, it does not", lag: 3 * time.Second, revisions: adopted, at: 3},
		{reason: "but some time after that it does", lag: 3 * time.Second, revisions: adopted, at: 4, faults: 1},
		{reason: "a name that is free again is no excuse", revisions: freed, at: 3, faults: 1},
		{reason: "where another operator may have passed over it, it is", lag: 3 * time.Second, revisions: freed, at: 4},
		{reason: "but some time after that it is not", lag: 3 * time.Second, revisions: freed, at: 5, faults: 1},
		{reason: "a Machine that is gone has nothing made", revisions: gone, at: 1, faults: 1},
		{reason: "where the operator may have been stopped since, it has", lag: 3 * time.Second, revisions: gone, at: 3},
		{reason: "but some time after that it has not", lag: 3 * time.Second, revisions: gone, at: 4, faults: 1},
	} {
		c := NewChecker(test.lag)
		for _, r := range append(slices.Clip(test.revisions), heard(test.at, byOperator(aSwitch("m-1", unchanged)))) {
			c.See(r)
		}
		if faults := c.Faults(); len(faults) != test.faults {
			t.Errorf("%s: got %v, want %d", test.reason, faults, test.faults)
		}
	}
}

// TestLost has the operator delete all switches that are left, as if one were still there that it has not heard to be gone.
func TestLost(t *testing.T) {
	for _, test := range []struct {
		reason        string
		lag           time.Duration
		made, deleted int // seconds after noon at which another one is made, and all are deleted
		faults        int
	}{
		{reason: "who has made one since knows of it", made: 2, deleted: 3, faults: 1},
		{reason: "but not where it may be behind", lag: 3 * time.Second, made: 2, deleted: 3},
		{reason: "for some time", lag: 3 * time.Second, made: 2, deleted: 4, faults: 1},
	} {
		c := NewChecker(test.lag)
		for _, r := range []Revision{
			asking(1, 2, 0), aSwitch("m-0", unchanged), aSwitch("m-1", unchanged), heard(1, byUser(deleted("m-0", unchanged))), asking(2, 3, 1),
			heard(test.made, aSwitch("m-2", unchanged)), asking(3, 1, 3), heard(test.deleted, deleted("m-2", unchanged)), heard(test.deleted, deleted("m-1", unchanged)),
		} {
			c.See(r)
		}
		if faults := c.Faults(); len(faults) != test.faults {
			t.Errorf("%s: got %v, want %d", test.reason, faults, test.faults)
		}
	}
}

// TestTold has a flip be too early for the one before, unless the operator cannot know of that one.
func TestTold(t *testing.T) {
	two := func(m *v1beta1.Machine) { m.Spec.Switches.Count = 2 }
	flipped := []Revision{
		theMachine(two), aSwitch("m-0", unchanged), aSwitch("m-1", unchanged), aSwitch("m-0", up(0)), aSwitch("m-1", up(0)), byOperator(aSwitch("m-0", down(6))),
	}
	taken := byUser(deleted("m-0", down(6)))
	given := aSwitch("m-0", func(sw *v1beta1.Switch) { down(6)(sw); controlledByNobody(sw) })
	told := theMachine(func(m *v1beta1.Machine) {
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
		{reason: "an operator remembers", then: []Revision{taken}, by: byOperator, faults: 1},
		{reason: "where nobody knows who it is, it does", then: turned(byUser), by: byUser, faults: 1},
		{reason: "another one does not know of it", then: []Revision{taken}, by: byAnother},
		{reason: "nor if the switch is no longer the Machine's", then: []Revision{given}, by: byAnother},
		{reason: "the switch tells of it as long as it is there", by: byAnother, faults: 1},
		{reason: "the status does", then: []Revision{told, taken}, by: byAnother, faults: 1},
		{reason: "of what it has done itself since, it knows", then: turned(byAnother), by: byAnother, faults: 1},
		{reason: "and of what it did before another one has", then: turned(byAnother)[:2], by: byOperator, faults: 1},
		{reason: "it has to know of one that it deletes", then: []Revision{asking(2, 1, 0), byOperator(taken)}, by: byAnother, faults: 1},
		{reason: "and of one that it lets go", then: []Revision{byOperator(given)}, by: byAnother, faults: 1},
	} {
		c := NewChecker(0)
		for _, r := range slices.Concat(flipped, test.then, []Revision{test.by(aSwitch("m-1", down(10)))}) {
			c.See(r)
		}
		if faults := c.Faults(); len(faults) != test.faults {
			t.Errorf("%s: got %v, want %d", test.reason, faults, test.faults)
		}
	}
}

// byAnother is what another process of the operator writes.
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
		reason:    "a switch that is only turned up is no flip",
		revisions: []Revision{aSwitch("m-0", up(0))},
	}, {
		reason:    "one that was down when it was first seen was not turned down now",
		revisions: []Revision{aSwitch("m-2", down(6))},
	}, {
		reason:    "a flip is due after the delay",
		revisions: []Revision{aSwitch("m-0", up(0)), aSwitch("m-0", down(6))},
		want:      []Flip{{Machine: "m", Due: after(5), At: after(6)}},
	}, {
		reason:    "what is written of it later is no second one",
		revisions: []Revision{aSwitch("m-0", up(0)), aSwitch("m-0", down(6)), aSwitch("m-0", down(6))},
		want:      []Flip{{Machine: "m", Due: after(5), At: after(6)}},
	}, {
		reason: "what is no instant was not written by the operator",
		revisions: []Revision{aSwitch("m-0", up(0)), aSwitch("m-0", func(sw *v1beta1.Switch) {
			sw.Annotations = map[string]string{v1beta1.FlippedAtAnnotation: "noon"}
		})},
	}, {
		reason:    "one before that is early",
		revisions: []Revision{aSwitch("m-0", up(0)), aSwitch("m-0", down(4))},
		want:      []Flip{{Machine: "m", Due: after(5), At: after(4), Fault: Early}},
	}, {
		reason:    "the next one of the Machine is due after the interval",
		revisions: []Revision{aSwitch("m-0", up(0)), aSwitch("m-1", up(1)), aSwitch("m-0", down(6)), aSwitch("m-1", down(11))},
		want:      []Flip{{Machine: "m", Due: after(5), At: after(6)}, {Machine: "m", Due: after(11), At: after(11)}},
	}, {
		reason:    "and not before",
		revisions: []Revision{aSwitch("m-0", up(0)), aSwitch("m-1", up(1)), aSwitch("m-0", down(6)), aSwitch("m-1", down(10))},
		want:      []Flip{{Machine: "m", Due: after(5), At: after(6)}, {Machine: "m", Due: after(11), At: after(10), Fault: Crowded}},
	}, {
		reason:    "a switch is turned down once",
		revisions: []Revision{aSwitch("m-0", up(0)), aSwitch("m-0", down(6)), aSwitch("m-0", down(12))},
		want:      []Flip{{Machine: "m", Due: after(5), At: after(6)}, {Machine: "m", At: after(12), Fault: Doubled}},
	}} {
		t.Run(test.reason, func(t *testing.T) {
			c := NewChecker(0)
			var got []Flip
			for _, r := range slices.Concat(start, test.revisions) {
				if f, ok := c.See(r); ok {
					got = append(got, f)
				}
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
