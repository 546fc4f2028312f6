// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package history judges what became of Machines and their switches, from all revisions of them, wherever these were
// recorded: by a simulator, by the etcd of a control plane, or by watches of a cluster.
package history

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
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
	By     string    // which process of the operator wrote it, if it is known to be one
	User   string    // who wrote it, where an API server's audit log tells; no rule asks for it
	At     time.Time // when it was heard of; only a Checker with a lag asks for it
}

// Check returns what a Checker without a lag finds in revisions, which are in the order of their resourceVersions.
func Check(revisions []Revision) []error {
	c := NewChecker(0)
	for _, r := range revisions {
		c.See(r)
	}
	return c.Faults()
}

// A Checker takes revisions one by one, and remembers what must not have happened. The operator may act on what a Machine asks
// for, on what it asked for just before, and on whatever it asked for since its status was written.
//   - a switch is made for a Machine that then has more than it asks for; as ReplicaSets do with Pods, it adopts all that
//     match, and deletes those that are too many;
//   - a switch is deleted by the operator that is none of a Machine's, or not one too many; as with ReplicaSets and Pods,
//     one that somebody else deletes in the same moment counts as long as the operator has neither made one since nor
//     written a status with fewer;
//   - a switch is made for a Machine that is gone, or is made for or adopted by another one than its reference says;
//   - a switch is turned down by the operator though it is not up, was not noticed to be, has not been up for the delay, or
//     follows the Machine's last one in less than the interval, unless that was another process's, and nothing tells of it;
//   - a status is written of a Machine that is being deleted;
//   - a status describes an older generation than the one before.
//
// It takes the time and the memory that a cache does: the latest revision of each object, and the UIDs of Machines that are gone.
type Checker struct {
	lag      time.Duration
	machines map[types.UID]*machine
	gone     map[types.UID]time.Time // when a Machine was
	switches map[types.UID]*v1beta1.Switch
	extra    map[types.UID]time.Time            // switches that do not count yet, not for longer than the lag
	freed    map[types.NamespacedName]time.Time // names of switches that are gone, not for longer than the lag
	faults   []error
}

// NewChecker returns a Checker that has seen nothing. Where there is a lag, the operator may also act on a Machine that was there,
// and on what one asked for, had adopted, and had not lost, that long ago: a process that is stopped goes on with what it knew,
// beside another one. One of the two may then pass over a name that the other one takes, as it was free again.
func NewChecker(lag time.Duration) *Checker {
	return &Checker{
		lag: lag, machines: map[types.UID]*machine{}, gone: map[types.UID]time.Time{}, switches: map[types.UID]*v1beta1.Switch{},
		extra: map[types.UID]time.Time{}, freed: map[types.NamespacedName]time.Time{},
	}
}

// What can be wrong with a flip.
const (
	Early   = "early"   // before the switch had been up for the delay, or unnoticed
	Crowded = "crowded" // less than the interval after the Machine's flip before
	Doubled = "doubled" // of a switch that was down
)

// A Flip is a switch that the operator has turned down.
type Flip struct {
	Machine string    // its name
	Due     time.Time // not to be turned down before; zero if that depends on what was wrong
	At      time.Time // just before it was written
	Fault   string    // what is wrong with it; empty if nothing is
}

// machine is what there is to know of a Machine.
type machine struct {
	*v1beta1.Machine

	asked    []generation // that the operator may act on; the last one is the present
	switches int32        // that it controls, and that are not being deleted
	lost     []time.Time  // when somebody else took one from it, which the operator has not shown to know of
	lastFlip time.Time
	flips    map[string]time.Time // the last ones of processes
	noted    time.Time            // the last flip of switches that the operator has deleted or let go, of which it has to know
}

// generation is what a Machine asks for, or has asked for until it was changed.
type generation struct {
	number int64
	spec   v1beta1.MachineSpec
	until  time.Time
}

// see takes a revision of the Machine.
func (m *machine) see(r Revision, revision *v1beta1.Machine) {
	if last := len(m.asked) - 1; last < 0 || m.Generation != revision.Generation {
		if last >= 0 {
			m.asked[last].until = r.At
		}
		m.asked = append(m.asked, generation{number: revision.Generation, spec: revision.Spec})
	}
	m.Machine = revision
}

// forget drops what the Machine asked for until before an instant, and the operator has no reason to act on.
func (m *machine) forget(before time.Time) {
	oldest := min(m.Status.ObservedGeneration, m.Generation-1)
	m.asked = slices.DeleteFunc(m.asked, func(g generation) bool { return g.number < oldest && !g.until.After(before) })
}

// knows notes that the operator knows of all switches that were taken from the Machine until an instant.
func (m *machine) knows(until time.Time) {
	m.lost = slices.DeleteFunc(m.lost, func(at time.Time) bool { return !at.After(until) })
}

// values are what a function makes of all that the operator may act on.
func values[T any](m *machine, of func(v1beta1.MachineSpec) T) (all []T) {
	for _, g := range m.asked {
		all = append(all, of(g.spec))
	}
	return all
}

func wanted(spec v1beta1.MachineSpec) int32 {
	return cmp.Or(spec.Switches.Count, v1beta1.DefaultSwitchCount)
}

// See takes the next revision. It returns the flip that it is, or false.
func (c *Checker) See(r Revision) (Flip, bool) {
	switch object := r.Object.(type) {
	case *v1beta1.Machine:
		c.seeMachine(r, object)
	case *v1beta1.Switch:
		return c.seeSwitch(r, object)
	}
	return Flip{}, false
}

// Faults returns what must not have happened so far.
func (c *Checker) Faults() []error { return slices.Clip(c.faults) }

func (c *Checker) fault(object client.Object, format string, args ...any) {
	c.faults = append(c.faults, fmt.Errorf("revision %s: %s/%s: %s",
		object.GetResourceVersion(), object.GetNamespace(), object.GetName(), fmt.Sprintf(format, args...)))
}

func (c *Checker) seeMachine(r Revision, m *v1beta1.Machine) {
	if r.Type == watch.Deleted {
		delete(c.machines, m.UID)
		c.gone[m.UID] = r.At
		return
	}
	known := c.machines[m.UID]
	if known == nil {
		known = &machine{flips: map[string]time.Time{}}
		c.machines[m.UID] = known
	}
	old := known.Machine
	known.see(r, m)
	known.forget(r.At.Add(-c.lag))
	if m.Status.Switches.Total == known.switches {
		known.knows(r.At.Add(-c.lag))
	}
	if old == nil {
		return
	}
	if old.Status.ObservedGeneration > m.Status.ObservedGeneration {
		c.fault(m, "its status is of generation %d, and was of %d", m.Status.ObservedGeneration, old.Status.ObservedGeneration)
	}
	if !old.DeletionTimestamp.IsZero() && !equality.Semantic.DeepEqual(old.Status, m.Status) {
		c.fault(m, "its status was written while it is being deleted")
	}
}

func (c *Checker) seeSwitch(r Revision, sw *v1beta1.Switch) (Flip, bool) {
	old := c.switches[sw.UID]
	if r.By != "" {
		c.operatorDeletes(r, old, sw)
		if old != nil && turnedDown(old, sw) && flippedAt(old) == flippedAt(sw) {
			c.fault(sw, "it is turned down by the operator, and nothing says when")
		}
	}
	c.count(old, -1)
	if r.Type == watch.Deleted {
		c.lose(r, old, nil)
		delete(c.switches, sw.UID)
		c.free(sw, r.At)
		return Flip{}, false
	}
	c.switches[sw.UID] = sw
	c.count(sw, 1)
	c.lose(r, old, sw)
	owner := metav1.GetControllerOfNoCopy(sw)
	if owner == nil || c.machines[owner.UID] == nil {
		c.made(r, old, sw, owner)
		return Flip{}, false // of an owner that is gone, and the garbage collector deletes it, or of something else
	}
	m := c.machines[owner.UID]
	m.forget(r.At.Add(-c.lag))
	if old == nil || metav1.GetControllerOfNoCopy(old) == nil {
		c.taken(r, sw, old != nil, owner, m)
	}
	if old != nil && flippedAt(sw) != flippedAt(old) {
		return c.flip(old, sw, m, r.By)
	}
	return Flip{}, false
}

// made judges a switch that has no Machine.
func (c *Checker) made(r Revision, old, sw *v1beta1.Switch, owner *metav1.OwnerReference) {
	if owner == nil || old != nil || r.By == "" {
		return
	}
	if at, gone := c.gone[owner.UID]; gone && r.At.Sub(at) >= c.lag {
		c.fault(sw, "it is made for a Machine that is gone")
	}
}

func turnedDown(old, sw *v1beta1.Switch) bool {
	return old.Spec.Position == v1beta1.PositionUp && sw.Spec.Position == v1beta1.PositionDown
}

func flippedAt(sw *v1beta1.Switch) string { return sw.Annotations[v1beta1.FlippedAtAnnotation] }

// count adds to the number of switches of the Machine that has this one.
func (c *Checker) count(sw *v1beta1.Switch, n int32) {
	if m := c.machineOf(sw); m != nil {
		m.switches += n
	}
}

// machineOf returns the Machine that has a switch which is not being deleted, or nil.
func (c *Checker) machineOf(sw *v1beta1.Switch) *machine {
	if sw == nil || !sw.DeletionTimestamp.IsZero() {
		return nil
	}
	if owner := metav1.GetControllerOfNoCopy(sw); owner != nil {
		return c.machines[owner.UID]
	}
	return nil
}

// lose counts a switch that somebody else has taken from its Machine. What one told of that the operator takes, it has to know.
func (c *Checker) lose(r Revision, old, sw *v1beta1.Switch) {
	m := c.machineOf(old)
	switch {
	case m == nil || c.machineOf(sw) == m:
	case r.By == "":
		m.lost = append(m.lost, r.At)
	default:
		m.noted = latest(m.noted, instant(old))
	}
}

// taken judges a switch that a Machine has created or adopted.
func (c *Checker) taken(r Revision, sw *v1beta1.Switch, adopted bool, owner *metav1.OwnerReference, m *machine) {
	if group, _, _ := strings.Cut(owner.APIVersion, "/"); owner.Kind != "Machine" || group != v1beta1.GroupVersion.Group {
		c.fault(sw, "its controller is a %s of %s", owner.Kind, owner.APIVersion)
	}
	if m.Namespace != sw.Namespace || m.Name != owner.Name {
		c.fault(sw, "its controller is %s/%s", m.Namespace, m.Name)
	}
	if adopted {
		c.extra[sw.UID] = r.At
		return
	}
	m.knows(r.At.Add(-c.lag))
	if at, again := c.freed[key(sw)]; again && r.At.Sub(at) < c.lag {
		c.extra[sw.UID] = r.At
	}
	if n, most := m.switches-c.uncounted(m, r.At.Add(-c.lag)), slices.Max(values(m, wanted)); n > most {
		c.fault(sw, "the Machine has %d switches and asks for %d", n, most)
	}
}

// free notes that a switch's name is. It forgets those that have been for longer than the lag.
func (c *Checker) free(sw *v1beta1.Switch, at time.Time) {
	maps.DeleteFunc(c.freed, func(_ types.NamespacedName, freed time.Time) bool { return at.Sub(freed) >= c.lag })
	c.freed[key(sw)] = at
}

func key(sw *v1beta1.Switch) types.NamespacedName {
	return types.NamespacedName{Namespace: sw.Namespace, Name: sw.Name}
}

// uncounted is how many of the Machine's switches do not count that were adopted, or got a name that was free again, after an
// instant. It forgets those of before.
func (c *Checker) uncounted(m *machine, after time.Time) (n int32) {
	maps.DeleteFunc(c.extra, func(uid types.UID, at time.Time) bool { return c.switches[uid] == nil || !at.After(after) })
	for uid := range c.extra {
		if sw := c.switches[uid]; metav1.IsControlledBy(sw, m) && sw.DeletionTimestamp.IsZero() {
			n++
		}
	}
	return n
}

// operatorDeletes judges whether the operator may delete a switch, if it does.
func (c *Checker) operatorDeletes(r Revision, old, sw *v1beta1.Switch) {
	if old == nil || !old.DeletionTimestamp.IsZero() || r.Type != watch.Deleted && sw.DeletionTimestamp.IsZero() {
		return
	}
	owner := metav1.GetControllerOfNoCopy(old)
	if owner == nil || c.machines[owner.UID] == nil {
		c.fault(sw, "it is deleted by the operator, and is no Machine's")
		return
	}
	m := c.machines[owner.UID]
	if c.lag > 0 {
		m.knows(r.At.Add(-c.lag))
	}
	if least := slices.Min(values(m, wanted)); m.switches+int32(len(m.lost)) <= least {
		c.fault(sw, "it is deleted by the operator, and the Machine has %d switches and asks for %d", m.switches, least)
	}
}

// flip judges how the operator has turned a switch down.
func (c *Checker) flip(old, sw *v1beta1.Switch, m *machine, by string) (Flip, bool) {
	at := instant(sw)
	if at.IsZero() || sw.Spec.Position != v1beta1.PositionDown {
		return Flip{}, false // somebody else's
	}
	f, last := Flip{Machine: m.Name, At: at}, c.known(m, old, by)
	m.lastFlip, m.flips[by] = at, at
	if !m.DeletionTimestamp.IsZero() {
		return f, true // all that is up is turned down at once
	}
	f.Due, f.Fault = c.due(old, sw, m, at, last)
	return f, true
}

// known is the Machine's last flip that a process can know of which is about to turn a switch down: its own ones, and what the
// status and the switches tell of.
func (c *Checker) known(m *machine, sw *v1beta1.Switch, by string) time.Time {
	known := latest(m.flips[by], m.noted)
	if told := m.Status.LastFlipTime; told != nil {
		known = latest(known, told.Time)
	}
	for uid, other := range c.switches {
		if uid == sw.UID {
			other = sw // as it was until now
		}
		if metav1.IsControlledBy(other, m) {
			known = latest(known, instant(other))
		}
	}
	if known.After(m.lastFlip) { // somebody else writes what they like
		return m.lastFlip
	}
	return known
}

// instant is when a switch was turned down, as it tells, or zero.
func instant(sw *v1beta1.Switch) time.Time {
	at, _ := time.Parse(time.RFC3339Nano, flippedAt(sw))
	return at
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// due says when a switch was due that is turned down at some time, the last one of the Machine being so long ago, and what is
// wrong with it.
func (c *Checker) due(old, sw *v1beta1.Switch, m *machine, at, last time.Time) (due time.Time, fault string) {
	delay := slices.Min(values(m, func(spec v1beta1.MachineSpec) time.Duration { return seconds(spec.Flip.DelaySeconds) }))
	interval := slices.Min(values(m, func(spec v1beta1.MachineSpec) time.Duration { return seconds(spec.Flip.IntervalSeconds) }))
	if old.Spec.Position != v1beta1.PositionUp {
		c.fault(sw, "it is turned down, and was")
		return due, Doubled
	}
	next := last.Add(interval)
	if delay > 0 { // without one there is nothing to notice
		if old.Status.SeenAt == nil || old.Status.ObservedGeneration != old.Generation {
			c.fault(sw, "it is turned down before it was noticed")
			return due, Early
		}
		due = old.Status.SeenAt.Add(delay)
	}
	switch {
	case at.Before(due):
		c.fault(sw, "it is turned down %s after it was noticed, and the delay is %s", delay-due.Sub(at), delay)
		return due, Early
	case interval > 0 && !last.IsZero() && at.Before(next): // without one they are turned down side by side
		c.fault(sw, "it is turned down %s after another one of the Machine, and the interval is %s", at.Sub(last), interval)
		return next, Crowded
	case next.After(due):
		return next, ""
	default:
		return due, ""
	}
}

func seconds(value *int32) time.Duration {
	if value == nil {
		value = new(v1beta1.DefaultFlipSeconds)
	}
	return time.Duration(*value) * time.Second
}
