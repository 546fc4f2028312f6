// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/pause"
)

// maxInOnePass bounds the Switches that one reconcile creates or deletes. Otherwise a large Machine would occupy a
// worker while flips of other Machines are due. The watch events of these Switches cause the next reconcile.
const maxInOnePass = 100

// plan describes the next steps for a Machine. The Switches in a plan belong to the cache and must not be changed.
type plan struct {
	invalid  error             // the parse error of the selector; if it is set, all other fields are zero
	selector labels.Selector   // of the Machine
	mine     []*v1beta1.Switch // the Machine's own Switches that are not being deleted, in the order of their names

	confirm bool              // read the Machine from the API server before the next steps
	adopt   []*v1beta1.Switch // make the Machine their controller
	release []*v1beta1.Switch // remove the Machine from their owners
	create  int               // how many Switches to create
	surplus []*v1beta1.Switch // delete them
	raise   []*v1beta1.Switch // turn up, because the Machine's position is up
	lower   bool              // set the Machine's position back to down

	notice []*v1beta1.Switch // set seenAt: they are up
	flip   []dueSwitch       // turn down

	lastFlip time.Time // when a Switch of the Machine was last turned down; zero for never
	raising  bool      // this plan executes "spec.position: up"
	next     time.Time // when the next flip is due; zero for never
}

// dueSwitch is a Switch to turn down.
type dueSwitch struct {
	sw  *v1beta1.Switch
	due time.Time
}

// isUrgent reports whether the plan flips Switches, or notices that Switches are up. These steps must not wait for
// other steps, so decide leaves the other steps out of such a plan. A flip is due at a certain time, and its delay
// starts when the operator notices the Switch. Also, other Machines may wait for the same worker.
func (p *plan) isUrgent() bool { return len(p.flip)+len(p.notice) > 0 }

// remembered has what the controller keeps in memory, because the Machine and its Switches do not always record it. A
// zero time means that there was no flip or attempt since the start of the process.
type remembered struct {
	flipped   time.Time // a Switch was turned down
	attempted time.Time // a Switch may have been turned down: the request had no answer, or a server error
	lowered   bool      // the position was set back to down, but the status does not have the position down yet
}

// decide returns the plan for a Machine. The argument switches has the Switches of the Machine, and the Switches
// without a controller that its selector may match. The argument fresh is true if m comes from the API server, and not
// from the cache.
func decide(m *v1beta1.Machine, switches []*v1beta1.Switch, known remembered, fresh bool, now time.Time) plan {
	selector, err := m.SwitchSelector()
	if err != nil {
		return plan{invalid: err}
	}
	p := plan{selector: selector, mine: own(m, switches)}
	p.lastFlip = lastFlip(m, switches, known.flipped, now) // includes Switches that are being deleted
	staying := p.scale(m, p.claim(m, switches, now), now)
	p.confirm = len(p.surplus) > 0 || len(p.adopt)+p.create > 0 && !fresh
	if p.position(m, staying, known.lowered); !p.raising {
		p.findDue(m, staying, known.attempted, now)
	}
	if p.isUrgent() {
		return plan{
			selector: selector, mine: p.mine, notice: p.notice, flip: p.flip, lastFlip: p.lastFlip, next: p.next,
		}
	}
	return p
}

// claim plans adoptions and releases by the rules of the ReplicaSet controller. It returns the Switches that the
// Machine keeps.
func (p *plan) claim(m *v1beta1.Machine, switches []*v1beta1.Switch, now time.Time) []*v1beta1.Switch {
	for _, sw := range switches {
		orphan := metav1.GetControllerOfNoCopy(sw) == nil
		switch {
		case p.selector.Matches(labels.Set(sw.Labels)) != orphan: // nothing to adopt or release
		case !sw.DeletionTimestamp.IsZero() || pause.IsPaused(sw):
		case orphan:
			p.adopt = append(p.adopt, sw)
		case metav1.IsControlledBy(sw, m) && !onlyRecordOfLastFlip(sw, m, now):
			p.release = append(p.release, sw)
		}
	}
	return without(p.mine, p.release)
}

// without returns the Switches that are not in others.
func without(switches, others []*v1beta1.Switch) []*v1beta1.Switch {
	if len(others) == 0 {
		return switches
	}
	return slices.DeleteFunc(slices.Clone(switches), func(sw *v1beta1.Switch) bool {
		return slices.Contains(others, sw)
	})
}

// own returns the Switches that the Machine controls and that are not being deleted, sorted by name.
func own(m *v1beta1.Machine, switches []*v1beta1.Switch) []*v1beta1.Switch {
	mine := make([]*v1beta1.Switch, 0, len(switches))
	for _, sw := range switches {
		if sw.DeletionTimestamp.IsZero() && metav1.IsControlledBy(sw, m) {
			mine = append(mine, sw)
		}
	}
	slices.SortFunc(mine, byName)
	return mine
}

// scale decides how many Switches to create or which Switches to delete, and returns the Switches that stay. It also
// counts the Switches that the plan adopts. While the plan adopts Switches, scale deletes no Switch, because an adopted
// Switch may be the first to delete.
func (p *plan) scale(m *v1beta1.Machine, mine []*v1beta1.Switch, now time.Time) []*v1beta1.Switch {
	missing := int(wanted(m)) - len(mine) - len(p.adopt)
	if missing >= 0 {
		p.create = min(missing, maxInOnePass)
		return mine
	}
	if len(p.adopt) > 0 {
		return mine
	}
	candidates := slices.DeleteFunc(slices.Clone(mine), func(sw *v1beta1.Switch) bool { return pause.IsPaused(sw) })
	slices.SortFunc(candidates, dispensableFirst)
	candidates = candidates[:min(-missing, len(candidates), maxInOnePass)]
	p.surplus = slices.DeleteFunc(candidates, func(sw *v1beta1.Switch) bool { return onlyRecordOfLastFlip(sw, m, now) })
	return without(mine, p.surplus)
}

// onlyRecordOfLastFlip reports whether sw records a flip that is later than the last flip in the Machine's status. The
// Machine keeps this Switch until its status has the time. Otherwise another replica could flip too early after a
// crash.
func onlyRecordOfLastFlip(sw *v1beta1.Switch, m *v1beta1.Machine, now time.Time) bool {
	at := flippedAt(sw, now)
	return !at.IsZero() && (m.Status.LastFlipTime == nil || at.After(m.Status.LastFlipTime.Time))
}

// dispensableFirst sorts Switches that are down before Switches that are up, and newer ones before older ones.
func dispensableFirst(a, b *v1beta1.Switch) int {
	if isUp(a) != isUp(b) {
		if isUp(b) {
			return -1
		}
		return 1
	}
	return cmp.Or(b.CreationTimestamp.Compare(a.CreationTimestamp.Time), byName(b, a))
}

// position plans the steps that spec.position requires. While the operator turns the Switches of a Machine up, it turns
// none of them down. So all of them are up at the same time. The argument lowered is as in remembered.
func (p *plan) position(m *v1beta1.Machine, mine []*v1beta1.Switch, lowered bool) {
	if m.Spec.Position != v1beta1.PositionUp {
		return
	}
	complete := len(mine) == int(wanted(m)) && len(p.adopt)+len(p.surplus) == 0
	if m.Status.Position == v1beta1.PositionUp && !lowered { // the position up was executed
		p.lower = complete && !slices.ContainsFunc(mine, isUp)
		return
	}
	if p.raising = complete; !complete {
		return
	}
	for _, sw := range mine {
		if !isUp(sw) && !pause.IsPaused(sw) {
			p.raise = append(p.raise, sw)
		}
	}
}

// findDue decides which Switches to turn down now, and at which time the next one is due. A Switch is due when it has
// been up for the flip delay. In each flip interval, the operator turns down one Switch: the Switch that has been up
// for the longest time. If the interval is 0, it turns down all Switches that are due. findDue also decides which
// Switches to notice.
//
// An attempted flip also starts an interval, but it does not change lastFlip, which goes into the status. Otherwise
// each failed attempt would change the status, and that change would cause an immediate retry.
func (p *plan) findDue(m *v1beta1.Machine, mine []*v1beta1.Switch, attempted, now time.Time) {
	delay, interval := seconds(m.Spec.Flip.DelaySeconds), seconds(m.Spec.Flip.IntervalSeconds)
	last := latest(p.lastFlip, credible(attempted, now))
	var up []*v1beta1.Switch
	for _, sw := range mine {
		if isUp(sw) && !pause.IsPaused(sw) {
			up = append(up, sw)
		}
	}
	slices.SortStableFunc(up, func(a, b *v1beta1.Switch) int { return seenAt(a, now).Compare(seenAt(b, now)) })

	for _, sw := range up {
		due := latest(seenAt(sw, now).Add(delay), last.Add(interval))
		if due.After(now) {
			p.next = due
			break
		}
		p.flip = append(p.flip, dueSwitch{sw, due})
		if interval > 0 {
			last = now
		}
	}
	for _, sw := range up[len(p.flip):] {
		if !noticed(sw, now) {
			p.notice = append(p.notice, sw)
		}
	}
}

// lastFlip returns the latest time at which one of the Machine's Switches was turned down. It uses the objects, and the
// time that the controller remembers.
func lastFlip(m *v1beta1.Machine, switches []*v1beta1.Switch, remembered, now time.Time) time.Time {
	last := credible(remembered, now)
	if at := m.Status.LastFlipTime; at != nil {
		last = latest(last, credible(at.Time, now))
	}
	for _, sw := range switches {
		if metav1.IsControlledBy(sw, m) {
			last = latest(last, flippedAt(sw, now))
		}
	}
	return last
}

// flippedAt returns the time at which the operator last turned a Switch down. It is zero for never, and for a value
// that the operator cannot have written.
func flippedAt(sw *v1beta1.Switch, now time.Time) time.Time {
	at, _ := time.Parse(time.RFC3339Nano, sw.Annotations[v1beta1.FlippedAtAnnotation]) // zero for an invalid time
	return credible(at, now)
}

// credible returns a recorded time, or zero if the time is further in the future than MaxClockSkew. The operator must
// not wait for such a wrong time, because that could take years.
func credible(at, now time.Time) time.Time {
	if at.After(now.Add(v1beta1.MaxClockSkew)) {
		return time.Time{}
	}
	return at
}

// names returns a function that returns the next free name for a Switch, the lowest ordinal first. If the cache is
// outdated, the operator chooses a name that already exists, and the API server rejects the creation. With random
// names, the operator would create an extra Switch.
func names(m *v1beta1.Machine, taken func(name string) bool) func() string {
	ordinal := -1
	return func() string {
		for {
			ordinal++
			if name := m.Name + "-" + strconv.Itoa(ordinal); !taken(name) {
				return name
			}
		}
	}
}

// byName sorts Switches by name. A number at the end is compared as a number: machine-2 before machine-10.
func byName(a, b *v1beta1.Switch) int {
	aPrefix, aOrdinal := splitOrdinal(a.Name)
	bPrefix, bOrdinal := splitOrdinal(b.Name)
	return cmp.Or(strings.Compare(aPrefix, bPrefix), cmp.Compare(aOrdinal, bOrdinal), strings.Compare(a.Name, b.Name))
}

func splitOrdinal(name string) (prefix string, ordinal uint64) {
	prefix = strings.TrimRight(name, "0123456789")
	ordinal, err := strconv.ParseUint(name[len(prefix):], 10, 64)
	if err != nil { // no digits, or too many
		return name, 0
	}
	return prefix, ordinal
}

// seenAt returns the time at which the operator noticed that a Switch is up. If the operator has not noticed it before,
// seenAt returns now.
func seenAt(sw *v1beta1.Switch, now time.Time) time.Time {
	if !noticed(sw, now) {
		return now
	}
	return sw.Status.SeenAt.Time
}

// noticed reports whether the operator has noticed the Switch after the last change of its position. The generation of
// a Switch changes only with its position.
func noticed(sw *v1beta1.Switch, now time.Time) bool {
	return sw.Status.SeenAt != nil && sw.Status.ObservedGeneration == sw.Generation &&
		!credible(sw.Status.SeenAt.Time, now).IsZero()
}

func isUp(sw *v1beta1.Switch) bool { return sw.Spec.Position == v1beta1.PositionUp }

// wanted returns the number of Switches in the Machine's spec.
func wanted(m *v1beta1.Machine) int32 {
	return cmp.Or(m.Spec.Switches.Count, v1beta1.DefaultSwitchCount)
}

func seconds(value *int32) time.Duration {
	return time.Duration(ptr.Deref(value, v1beta1.DefaultFlipSeconds)) * time.Second
}

func latest(times ...time.Time) time.Time { return slices.MaxFunc(times, time.Time.Compare) }
