// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package history judges what became of Machines and their switches, from all revisions of them, wherever these were
// recorded.
package history

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1beta1"
)

// A Revision is what one write has made of a Machine or a switch, as a watch tells of it.
type Revision struct {
	Type   watch.EventType
	Object client.Object
}

// Check returns what must not have happened, in the order of the revisions, which is that of their resourceVersions:
//   - a switch is made for a Machine that then has more than it asks for, or asked for just before; as ReplicaSets do with
//     Pods, it adopts all that match, and deletes those that are too many;
//   - a switch has a controller that is no Machine of its namespace, or no longer is;
//   - a switch is turned down by the operator though it is not up, was not noticed to be, has not been up for the delay, or
//     follows the Machine's last one in less than the interval;
//   - anything but finalizers is written about a Machine that is being deleted;
//   - a status describes an older generation than the one before.
func Check(revisions []Revision) []error {
	c := &checker{machines: map[types.UID]*machine{}, switches: map[types.UID]*v1beta1.Switch{}}
	for _, r := range revisions {
		switch object := r.Object.(type) {
		case *v1beta1.Machine:
			c.seeMachine(r.Type, object)
		case *v1beta1.Switch:
			c.seeSwitch(r.Type, object)
		}
	}
	return c.faults
}

// checker knows what there is at a revision.
type checker struct {
	machines map[types.UID]*machine
	switches map[types.UID]*v1beta1.Switch
	faults   []error
}

// machine is what there is to know of a Machine.
type machine struct {
	*v1beta1.Machine
	before   v1beta1.MachineSpec // of the generation before
	lastFlip time.Time
}

func (c *checker) fault(object client.Object, format string, args ...any) {
	c.faults = append(c.faults, fmt.Errorf("revision %s: %s/%s: %s",
		object.GetResourceVersion(), object.GetNamespace(), object.GetName(), fmt.Sprintf(format, args...)))
}

func (c *checker) seeMachine(event watch.EventType, m *v1beta1.Machine) {
	known := c.machines[m.UID]
	switch {
	case event == watch.Deleted:
		delete(c.machines, m.UID)
		return
	case known == nil:
		c.machines[m.UID] = &machine{Machine: m, before: m.Spec}
		return
	}
	old := known.Machine
	known.Machine = m
	if old.Generation != m.Generation {
		known.before = old.Spec
	}
	if old.Status.ObservedGeneration > m.Status.ObservedGeneration {
		c.fault(m, "its status is of generation %d, and was of %d", m.Status.ObservedGeneration, old.Status.ObservedGeneration)
	}
	if !old.DeletionTimestamp.IsZero() && (old.Generation != m.Generation || old.Status.ObservedGeneration != m.Status.ObservedGeneration) {
		c.fault(m, "it was written about while it is being deleted")
	}
}

func (c *checker) seeSwitch(event watch.EventType, sw *v1beta1.Switch) {
	old := c.switches[sw.UID]
	if event == watch.Deleted {
		delete(c.switches, sw.UID)
		return
	}
	c.switches[sw.UID] = sw
	owner := metav1.GetControllerOfNoCopy(sw)
	if owner == nil {
		return
	}
	m := c.machines[owner.UID]
	if old == nil || metav1.GetControllerOfNoCopy(old) == nil {
		c.taken(sw, old != nil, owner, m)
	}
	if old != nil && m != nil && sw.Annotations[v1beta1.FlippedAtAnnotation] != old.Annotations[v1beta1.FlippedAtAnnotation] {
		c.flip(old, sw, m)
	}
}

// taken judges a switch that a Machine has created or adopted.
func (c *checker) taken(sw *v1beta1.Switch, adopted bool, owner *metav1.OwnerReference, m *machine) {
	if m == nil {
		return // of an owner that is gone: the garbage collector deletes it
	}
	if m.Namespace != sw.Namespace || m.Name != owner.Name {
		c.fault(sw, "its controller is %s/%s", m.Namespace, m.Name)
	}
	if adopted {
		return
	}
	n := int32(0)
	for _, other := range c.switches {
		if metav1.IsControlledBy(other, m) && other.DeletionTimestamp.IsZero() {
			n++
		}
	}
	if most := max(m.Spec.Switches.Count, m.before.Switches.Count); n > most {
		c.fault(sw, "the Machine has %d switches and asks for %d", n, most)
	}
}

// flip judges how the operator has turned a switch down.
func (c *checker) flip(old, sw *v1beta1.Switch, m *machine) {
	at, err := time.Parse(time.RFC3339Nano, sw.Annotations[v1beta1.FlippedAtAnnotation])
	if err != nil || sw.Spec.Position != v1beta1.PositionDown {
		return // somebody else's
	}
	last := m.lastFlip
	m.lastFlip = at
	if !m.DeletionTimestamp.IsZero() {
		return // all that is up is turned down at once
	}
	delay := min(seconds(m.Spec.Flip.DelaySeconds), seconds(m.before.Flip.DelaySeconds))
	interval := min(seconds(m.Spec.Flip.IntervalSeconds), seconds(m.before.Flip.IntervalSeconds))
	switch {
	case old.Spec.Position != v1beta1.PositionUp:
		c.fault(sw, "it is turned down, and was")
	case old.Status.SeenAt == nil || old.Status.ObservedGeneration != old.Generation:
		c.fault(sw, "it is turned down before it was noticed")
	case at.Before(old.Status.SeenAt.Add(delay)):
		c.fault(sw, "it is turned down %s after it was noticed, and the delay is %s", at.Sub(old.Status.SeenAt.Time), delay)
	case !last.IsZero() && at.Before(last.Add(interval)):
		c.fault(sw, "it is turned down %s after another one of the Machine, and the interval is %s", at.Sub(last), interval)
	}
}

func seconds(value *int32) time.Duration {
	if value == nil {
		value = new(v1beta1.DefaultFlipSeconds)
	}
	return time.Duration(*value) * time.Second
}
