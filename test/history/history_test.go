// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package history

import (
	"strings"
	"testing"
	"time"

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
	return Revision{watch.Modified, m}
}

// aSwitch is the Machine's, and down.
func aSwitch(name string, change func(*v1beta1.Switch)) Revision {
	sw := &v1beta1.Switch{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: name, UID: types.UID(name), Generation: 1,
		OwnerReferences: []metav1.OwnerReference{{Kind: "Machine", Name: "m", UID: "machine", Controller: new(true)}},
	}}
	sw.Spec.Position = v1beta1.PositionDown
	change(sw)
	return Revision{watch.Modified, sw}
}

func unchanged[T any](T) {}

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
		reason:    "a switch that the Machine does not ask for",
		revisions: []Revision{theMachine(unchanged), aSwitch("m-0", unchanged), aSwitch("m-1", unchanged)},
		want:      "has 2 switches and asks for 1",
	}, {
		reason:    "a switch that it asked for when it was being made",
		revisions: []Revision{two, aSwitch("m-0", unchanged), theMachine(func(m *v1beta1.Machine) { m.Generation = 2 }), aSwitch("m-1", unchanged)},
	}, {
		reason: "one that matched before is adopted, and is one too many",
		revisions: []Revision{
			theMachine(unchanged), aSwitch("m-0", unchanged), aSwitch("other", func(sw *v1beta1.Switch) { sw.OwnerReferences = nil }), aSwitch("other", unchanged),
		},
	}, {
		reason:    "a switch of a Machine in another namespace",
		revisions: []Revision{theMachine(unchanged), aSwitch("m-0", func(sw *v1beta1.Switch) { sw.Namespace = "other" })},
		want:      "its controller is default/m",
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
