// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package invariants is an invariant checker. It reads all revisions of Machines and switches and reports violations.
// The revisions come from a simulator, from the etcd of a control plane, or from watches of a cluster.
package invariants

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

// A Revision is a Machine or a switch after one write, as in a watch event.
type Revision struct {
	Type   watch.EventType
	Object client.Object
	By     string    // the operator process that wrote it; empty for another client, or if unknown
	User   string    // the username in the API server's audit log, if known; no rule uses it
	At     time.Time // when the watch event arrived; only a Checker with a lag uses it, see NewChecker
}

// Check returns the violations in revisions. It uses a Checker without a lag, see NewChecker. Revisions must be in the order of their
// resourceVersions.
func Check(revisions []Revision) []error {
	c := NewChecker(0)
	for _, r := range revisions {
		c.Add(r)
	}
	return c.Violations()
}

// A Checker takes revisions one by one and collects violations. The operator may act on a Machine's present spec, on
// the spec before it, and on any spec since the status was last written. The violations are:
//   - A switch is created, and its Machine then has more switches than its spec asks for. Adopting too many is
//     permitted: a Machine adopts all switches that match and deletes the surplus, as a ReplicaSet does with Pods.
//   - The operator deletes a switch that belongs to no Machine, or that is not surplus. A switch that another client
//     deletes at the same time still counts, as with ReplicaSets and Pods. It stops counting when the operator creates
//     a switch or writes a status with fewer switches.
//   - The operator creates a switch for a deleted Machine.
//   - A switch is created or adopted with an owner reference that does not match the Machine.
//   - The operator turns down a switch that is not up, that it has not seen up, or that has not been up for the delay.
//   - The operator turns down a switch less than the interval after the Machine's last flip. A flip by another process
//     does not count if no object records it.
//   - The status of a Machine changes while the Machine is being deleted.
//   - A status has an older observedGeneration than the status before it.
//
// A Checker needs as much memory as a cache: the latest revision of each object, and the UIDs of deleted Machines.
type Checker struct {
	lag      time.Duration
	machines map[types.UID]*machine
	gone     map[types.UID]time.Time // when a Machine was deleted
	switches map[types.UID]*v1beta1.Switch
	extra    map[types.UID]time.Time            // switches that do not count yet, kept for at most the lag
	freed    map[types.NamespacedName]time.Time // names of deleted switches, kept for at most the lag
	faults   []error
}

// NewChecker returns a Checker that has seen no revision. With a lag, the operator may also act on state that is older
// by at most the lag. This state can be a deleted Machine, an old spec, or switches before they were adopted or lost.
// The reason is that a suspended process can resume with its old cache while another process runs. One of the two may
// then not know that the name of a deleted switch is free again, and use another name. So both create a switch.
func NewChecker(lag time.Duration) *Checker {
	return &Checker{
		lag: lag, machines: map[types.UID]*machine{}, gone: map[types.UID]time.Time{}, switches: map[types.UID]*v1beta1.Switch{},
		extra: map[types.UID]time.Time{}, freed: map[types.NamespacedName]time.Time{},
	}
}

// Values of Flip.Violation.
const (
	Early   = "early"   // before the delay was over, or before the operator saw the switch up
	Crowded = "crowded" // less than the interval after the Machine's last flip
	Doubled = "doubled" // the switch was already down
)

// A Flip is one switch that the operator has turned down.
type Flip struct {
	Machine   string    // its name
	Due       time.Time // the earliest permitted time; zero if the fault makes it unknown
	At        time.Time // the time in the annotation flipped-at, which the operator sets just before the write
	Violation string    // Early, Crowded or Doubled; empty for a correct flip
}

// machine is the state of one Machine.
type machine struct {
	*v1beta1.Machine

	asked    []generation // generations that the operator may act on; the last one is the present generation
	switches int32        // number of switches that it controls and that are not being deleted
	lost     []time.Time  // when other clients removed switches that the operator may still count
	lastFlip time.Time
	flips    map[string]time.Time // the last flip by each process
	noted    time.Time            // the last flip of the switches that the operator itself deleted or released
}

// generation is one spec of a Machine. The field until contains the time when the next spec replaced this one. It is zero for the present spec.
type generation struct {
	number int64
	spec   v1beta1.MachineSpec
	until  time.Time
}

// see records a revision of the Machine.
func (m *machine) see(r Revision, revision *v1beta1.Machine) {
	if last := len(m.asked) - 1; last < 0 || m.Generation != revision.Generation {
		if last >= 0 {
			m.asked[last].until = r.At
		}
		m.asked = append(m.asked, generation{number: revision.Generation, spec: revision.Spec})
	}
	m.Machine = revision
}

// forget drops generations that were replaced before an instant and that the operator may not act on any more.
func (m *machine) forget(before time.Time) {
	oldest := min(m.Status.ObservedGeneration, m.Generation-1)
	m.asked = slices.DeleteFunc(m.asked, func(g generation) bool { return g.number < oldest && !g.until.After(before) })
}

// knows records that the operator has seen all removals of the Machine's switches up to an instant.
func (m *machine) knows(until time.Time) {
	m.lost = slices.DeleteFunc(m.lost, func(at time.Time) bool { return !at.After(until) })
}

// values returns of(spec) for each spec that the operator may act on.
func values[T any](m *machine, of func(v1beta1.MachineSpec) T) (all []T) {
	for _, g := range m.asked {
		all = append(all, of(g.spec))
	}
	return all
}

func wanted(spec v1beta1.MachineSpec) int32 {
	return cmp.Or(spec.Switches.Count, v1beta1.DefaultSwitchCount)
}

// Add takes the next revision. If the revision is a flip, Add returns the flip and true.
func (c *Checker) Add(r Revision) (Flip, bool) {
	switch object := r.Object.(type) {
	case *v1beta1.Machine:
		c.seeMachine(r, object)
	case *v1beta1.Switch:
		return c.seeSwitch(r, object)
	}
	return Flip{}, false
}

// Violations returns the violations so far.
func (c *Checker) Violations() []error { return slices.Clip(c.faults) }

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
		c.fault(m, "its status has observedGeneration %d after %d", m.Status.ObservedGeneration, old.Status.ObservedGeneration)
	}
	if !old.DeletionTimestamp.IsZero() && !equality.Semantic.DeepEqual(old.Status, m.Status) {
		c.fault(m, "its status changed while it is being deleted")
	}
}

func (c *Checker) seeSwitch(r Revision, sw *v1beta1.Switch) (Flip, bool) {
	old := c.switches[sw.UID]
	if r.By != "" {
		c.operatorDeletes(r, old, sw)
		if old != nil && turnedDown(old, sw) && flippedAt(old) == flippedAt(sw) {
			c.fault(sw, "the operator turned it down without writing the flip time")
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
		return Flip{}, false // its owner was deleted, or is not a Machine; the garbage collector deletes the switch
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

// made reports a violation if the operator creates a switch for a deleted Machine.
func (c *Checker) made(r Revision, old, sw *v1beta1.Switch, owner *metav1.OwnerReference) {
	if owner == nil || old != nil || r.By == "" {
		return
	}
	if at, gone := c.gone[owner.UID]; gone && r.At.Sub(at) >= c.lag {
		c.fault(sw, "the operator created it for a deleted Machine")
	}
}

func turnedDown(old, sw *v1beta1.Switch) bool {
	return old.Spec.Position == v1beta1.PositionUp && sw.Spec.Position == v1beta1.PositionDown
}

func flippedAt(sw *v1beta1.Switch) string { return sw.Annotations[v1beta1.FlippedAtAnnotation] }

// count adds n to the number of switches of the Machine that controls sw.
func (c *Checker) count(sw *v1beta1.Switch, n int32) {
	if m := c.machineOf(sw); m != nil {
		m.switches += n
	}
}

// machineOf returns the Machine that controls sw. It returns nil if sw is nil, is being deleted or has no known
// Machine.
func (c *Checker) machineOf(sw *v1beta1.Switch) *machine {
	if sw == nil || !sw.DeletionTimestamp.IsZero() {
		return nil
	}
	if owner := metav1.GetControllerOfNoCopy(sw); owner != nil {
		return c.machines[owner.UID]
	}
	return nil
}

// lose records that a Machine has lost a switch. If another client removed it, the operator may not know this yet. If
// the operator removed it, the operator must remember the flip that the switch recorded.
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

// taken checks a switch that was created for a Machine or adopted by it.
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
		c.fault(sw, "it was created: the Machine has %d switches and asks for %d", n, most)
	}
}

// free records that the name of sw is free. It drops names that became free longer than the lag ago.
func (c *Checker) free(sw *v1beta1.Switch, at time.Time) {
	maps.DeleteFunc(c.freed, func(_ types.NamespacedName, freed time.Time) bool { return at.Sub(freed) >= c.lag })
	c.freed[key(sw)] = at
}

func key(sw *v1beta1.Switch) types.NamespacedName {
	return types.NamespacedName{Namespace: sw.Namespace, Name: sw.Name}
}

// uncounted returns the number of the Machine's switches that do not count. They were adopted after an instant, or
// created after it with a name that was free again. It drops older switches from extra.
func (c *Checker) uncounted(m *machine, after time.Time) (n int32) {
	maps.DeleteFunc(c.extra, func(uid types.UID, at time.Time) bool { return c.switches[uid] == nil || !at.After(after) })
	for uid := range c.extra {
		if sw := c.switches[uid]; metav1.IsControlledBy(sw, m) && sw.DeletionTimestamp.IsZero() {
			n++
		}
	}
	return n
}

// operatorDeletes checks a revision by the operator that deletes a switch. It ignores other revisions.
func (c *Checker) operatorDeletes(r Revision, old, sw *v1beta1.Switch) {
	if old == nil || !old.DeletionTimestamp.IsZero() || r.Type != watch.Deleted && sw.DeletionTimestamp.IsZero() {
		return
	}
	owner := metav1.GetControllerOfNoCopy(old)
	if owner == nil || c.machines[owner.UID] == nil {
		c.fault(sw, "the operator deleted it, and no Machine controls it")
		return
	}
	m := c.machines[owner.UID]
	if c.lag > 0 {
		m.knows(r.At.Add(-c.lag))
	}
	if least := slices.Min(values(m, wanted)); m.switches+int32(len(m.lost)) <= least {
		c.fault(sw, "the operator deleted it: the Machine has %d switches and asks for %d", m.switches, least)
	}
}

// flip checks a switch that the operator has turned down.
func (c *Checker) flip(old, sw *v1beta1.Switch, m *machine, by string) (Flip, bool) {
	at := instant(sw)
	if at.IsZero() || sw.Spec.Position != v1beta1.PositionDown {
		return Flip{}, false // written by another client
	}
	f, last := Flip{Machine: m.Name, At: at}, c.known(m, old, by)
	m.lastFlip, m.flips[by] = at, at
	if !m.DeletionTimestamp.IsZero() {
		return f, true // a Machine that is being deleted turns all switches down at once
	}
	f.Due, f.Violation = c.due(old, sw, m, at, last)
	return f, true
}

// known returns the Machine's last flip that a process can know when it turns sw down. by is the name of this process.
// A process knows its own flips, and the flips that the status and the switches record.
func (c *Checker) known(m *machine, sw *v1beta1.Switch, by string) time.Time {
	known := latest(m.flips[by], m.noted)
	if recorded := m.Status.LastFlipTime; recorded != nil {
		known = latest(known, recorded.Time)
	}
	for uid, other := range c.switches {
		if uid == sw.UID {
			other = sw // the state before this revision
		}
		if metav1.IsControlledBy(other, m) {
			known = latest(known, instant(other))
		}
	}
	if known.After(m.lastFlip) { // another client can set the annotation to a time after the last flip
		return m.lastFlip
	}
	return known
}

// instant returns the flip time in the annotation of sw, or zero.
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

// due checks a flip at the time at. The Machine's last flip was at the time last. It returns when the flip was due, and
// the value of Flip.Violation.
func (c *Checker) due(old, sw *v1beta1.Switch, m *machine, at, last time.Time) (due time.Time, fault string) {
	delay := slices.Min(values(m, func(spec v1beta1.MachineSpec) time.Duration { return seconds(spec.Flip.DelaySeconds) }))
	interval := slices.Min(values(m, func(spec v1beta1.MachineSpec) time.Duration { return seconds(spec.Flip.IntervalSeconds) }))
	if old.Spec.Position != v1beta1.PositionUp {
		c.fault(sw, "it was turned down when it was already down")
		return due, Doubled
	}
	next := last.Add(interval)
	if delay > 0 { // without a delay the operator does not write seenAt
		if old.Status.SeenAt == nil || old.Status.ObservedGeneration != old.Generation {
			c.fault(sw, "it was turned down before the operator saw it up")
			return due, Early
		}
		due = old.Status.SeenAt.Add(delay)
	}
	switch {
	case at.Before(due):
		c.fault(sw, "it was turned down %s after the operator saw it up, and the delay is %s", delay-due.Sub(at), delay)
		return due, Early
	case interval > 0 && !last.IsZero() && at.Before(next): // without an interval, flips run in parallel
		c.fault(sw, "it was turned down %s after the Machine's last flip, and the interval is %s", at.Sub(last), interval)
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
