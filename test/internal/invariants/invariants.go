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

// A Revision is a Machine or a switch after one write. If the write deletes the object, it is the object before the
// deletion.
type Revision struct {
	Type   watch.EventType
	Object client.Object
	By     string    // name of the operator process that sent the write; empty for other clients, and if unknown
	User   string    // username in the API server's audit log; empty if unknown; no rule uses it
	At     time.Time // when the watch event arrived; used for leaderLag and for the Checker's lag
}

// Check returns the violations in revisions. The revisions must be in the order of their resourceVersions. Check uses a
// Checker without a lag.
func Check(revisions []Revision) []error {
	c := NewChecker(0)
	for _, r := range revisions {
		c.Add(r)
	}
	return c.Violations()
}

// leaderLag is the time after a write of one leader in which a second leader may not know of the write yet.
const leaderLag = 100 * time.Millisecond

// A Checker takes revisions one by one and collects violations. The operator may act on an outdated spec of a Machine:
// the previous spec, or any spec since the generation in status.observedGeneration. The violations are:
//   - A switch is created, and the Machine then has more switches than its spec asks for. An adoption may exceed the
//     spec. A Machine adopts all matching switches and then deletes the surplus, as a ReplicaSet does with Pods.
//   - The operator deletes a switch that no Machine controls, or that is not surplus. A switch that another client
//     removed still counts until the operator knows of the removal. The operator knows of it when the operator creates
//     a switch, or when the status has the current number of switches. If the Checker has a lag, the operator instead
//     knows of each removal when the lag is over. A switch that another leader removed counts for leaderLag, or for the
//     Checker's lag if that is longer.
//   - The operator creates a switch for a deleted Machine.
//   - A switch is created or adopted with an owner reference that does not match the Machine.
//   - The operator turns down a switch that is already down.
//   - The operator turns down a switch before the delay is over. The delay begins when the operator sets status.seenAt.
//   - The operator turns down a switch without writing the time of the flip.
//   - The operator turns down a switch less than the interval after the Machine's last flip. A flip by another process
//     does not count if no object records it.
//   - The status of a Machine changes while the Machine is being deleted.
//   - The observedGeneration of a status decreases.
//
// A Checker keeps the latest revision of each object, and the UIDs of all deleted Machines.
type Checker struct {
	lag      time.Duration
	machines map[types.UID]*machine
	gone     map[types.UID]time.Time // deletion times of deleted Machines
	switches map[types.UID]*v1beta1.Switch
	extra    map[types.UID]time.Time            // times at which switches were adopted, or created with a reused name
	freed    map[types.NamespacedName]time.Time // deletion times of switches
	faults   []error
}

// NewChecker returns an empty Checker. With a lag, the operator may also act on data that became outdated within the
// lag. For example, the operator may not know yet that a Machine was deleted, or that a switch was adopted.
//
// Tests need a lag if two operator processes can run at the same time. For example, a suspended process resumes with
// its old cache. If a user deletes a switch, perhaps only one of the two processes knows that its name is free. The two
// processes then choose different names, and each creates a switch.
func NewChecker(lag time.Duration) *Checker {
	return &Checker{
		lag: lag, machines: map[types.UID]*machine{}, gone: map[types.UID]time.Time{}, switches: map[types.UID]*v1beta1.Switch{},
		extra: map[types.UID]time.Time{}, freed: map[types.NamespacedName]time.Time{},
	}
}

// Values of Flip.Violation.
const (
	Early   = "early"   // before the operator saw the switch up, or before the delay was over
	Crowded = "crowded" // less than the interval after the Machine's last flip
	Doubled = "doubled" // the switch was already down
)

// A Flip is a write with which the operator turned a switch down.
type Flip struct {
	Machine   string    // name of the Machine
	Due       time.Time // the earliest permitted time; zero if unknown, or if the Machine is being deleted
	At        time.Time // the time in the annotation flipped-at, which the operator sets just before the write
	Violation string    // Early, Crowded or Doubled; empty for a correct flip
}

// machine is the state of one Machine.
type machine struct {
	*v1beta1.Machine

	asked    []generation         // specs that the operator may act on; the last one is the current spec
	switches int32                // number of switches that it controls and that are not being deleted
	lost     []removal            // removals of its switches that a process of the operator may not know of
	lastFlip time.Time            // the last flip by any process
	flips    map[string]time.Time // the last flip by each process
	noted    time.Time            // the last flip among the switches that the operator deleted or released
}

// removal is the removal of a switch.
type removal struct {
	by string // the operator process; empty for another client
	at time.Time
}

// generation is one spec of a Machine.
type generation struct {
	number int64
	spec   v1beta1.MachineSpec
	until  time.Time // when the next spec replaced this one; zero for the current spec
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

// forget drops the specs that the operator may not act on any more. It keeps a spec if its replacement is later than
// the argument since.
func (m *machine) forget(since time.Time) {
	oldest := min(m.Status.ObservedGeneration, m.Generation-1)
	m.asked = slices.DeleteFunc(m.asked, func(g generation) bool { return g.number < oldest && !g.until.After(since) })
}

// knows drops the removals of switches up to the argument until, because the operator knows of them.
func (m *machine) knows(until time.Time) {
	m.lost = slices.DeleteFunc(m.lost, func(r removal) bool { return !r.at.After(until) })
}

// values calls get with each spec that the operator may act on, and returns the results.
func values[T any](m *machine, get func(v1beta1.MachineSpec) T) (all []T) {
	for _, g := range m.asked {
		all = append(all, get(g.spec))
	}
	return all
}

func wanted(spec v1beta1.MachineSpec) int32 {
	return cmp.Or(spec.Switches.Count, v1beta1.DefaultSwitchCount)
}

// Add checks the next revision. If the revision is a flip, Add returns the flip and true.
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
		return Flip{}, false // no existing Machine controls it
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

// machineOf returns the Machine that controls sw. It returns nil if sw is nil, if sw is being deleted, or if no known
// Machine controls sw.
func (c *Checker) machineOf(sw *v1beta1.Switch) *machine {
	if sw == nil || !sw.DeletionTimestamp.IsZero() {
		return nil
	}
	if owner := metav1.GetControllerOfNoCopy(sw); owner != nil {
		return c.machines[owner.UID]
	}
	return nil
}

// lose records that a Machine no longer controls a switch. If another client removed the switch, the operator may not
// know of the removal yet. If the operator removed the switch, it must still remember the flip time in the switch's
// annotation.
func (c *Checker) lose(r Revision, old, sw *v1beta1.Switch) {
	m := c.machineOf(old)
	switch {
	case m == nil || c.machineOf(sw) == m:
	case r.By == "":
		m.lost = append(m.lost, removal{at: r.At})
	default:
		m.lost = append(m.lost, removal{r.By, r.At})
		m.noted = latest(m.noted, flipTime(old))
	}
}

// taken checks a switch that a Machine now controls, because the switch was created or adopted.
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

// free records that the name of sw is free. It forgets names that have been free for the lag or longer.
func (c *Checker) free(sw *v1beta1.Switch, at time.Time) {
	maps.DeleteFunc(c.freed, func(_ types.NamespacedName, freed time.Time) bool { return at.Sub(freed) >= c.lag })
	c.freed[key(sw)] = at
}

func key(sw *v1beta1.Switch) types.NamespacedName {
	return types.NamespacedName{Namespace: sw.Namespace, Name: sw.Name}
}

// uncounted returns how many of the Machine's switches do not count. These switches were adopted, or created with a
// reused name, later than the argument since. It also removes older switches from extra.
func (c *Checker) uncounted(m *machine, since time.Time) (n int32) {
	maps.DeleteFunc(c.extra, func(uid types.UID, at time.Time) bool { return c.switches[uid] == nil || !at.After(since) })
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
	if least := slices.Min(values(m, wanted)); m.switches+c.unknown(m, r) <= least {
		c.fault(sw, "the operator deleted it: the Machine has %d switches and asks for %d", m.switches, least)
	}
}

// unknown returns the number of removals that the writer of a revision may not know of. A process knows of its own
// removals at once. Two processes may lead at the same time. Then each may learn of the other's removals only after
// leaderLag or the Checker's lag, whichever is longer.
func (c *Checker) unknown(m *machine, r Revision) (n int32) {
	for _, removed := range m.lost {
		isRecent := r.At.Sub(removed.at) < max(c.lag, leaderLag)
		if removed.by == "" || removed.by != r.By && isRecent {
			n++
		}
	}
	return n
}

// flip checks a switch that the operator has turned down.
func (c *Checker) flip(old, sw *v1beta1.Switch, m *machine, by string) (Flip, bool) {
	at := flipTime(sw)
	if at.IsZero() || sw.Spec.Position != v1beta1.PositionDown {
		return Flip{}, false // written by another client
	}
	f, last := Flip{Machine: m.Name, At: at}, c.known(m, old, by)
	m.lastFlip, m.flips[by] = at, at
	if !m.DeletionTimestamp.IsZero() {
		return f, true // a Machine that is being deleted turns all switches down immediately
	}
	f.Due, f.Violation = c.due(old, sw, m, at, last)
	return f, true
}

// known returns the time of the Machine's last flip that an operator process must know of when it turns sw down. by is
// the name of this process. A process knows its own flips, and the flips that the status and the switches record.
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
			known = latest(known, flipTime(other))
		}
	}
	if known.After(m.lastFlip) { // another client can set the annotation to a time after the last flip
		return m.lastFlip
	}
	return known
}

// flipTime returns the time of the last flip in the annotation of sw, or zero.
func flipTime(sw *v1beta1.Switch) time.Time {
	at, _ := time.Parse(time.RFC3339Nano, flippedAt(sw))
	return at
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// due checks a flip, and returns Flip.Due and Flip.Violation. The arguments at and last are the times of this flip and
// of the Machine's previous flip.
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
