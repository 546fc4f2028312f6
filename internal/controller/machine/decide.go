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

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/object"
)

// maxClockSkew is how far the clocks of two nodes may be apart.
const maxClockSkew = 10 * time.Second

// maxInOnePass bounds how many switches one pass creates or deletes, so that none of a thousand keeps what is due waiting
// until there is a worker for it. The news of them brings the Machine back.
const maxInOnePass = 100

// A plan is what to do about a Machine. The switches in it are those that were read; they must not be changed.
type plan struct {
	mine []*v1beta1.Switch // the Machine's own switches as they are, in the order of their names

	adopt   []*v1beta1.Switch // take as own: they match and have no controller
	release []*v1beta1.Switch // let go: they no longer match
	create  int               // how many to make of those that are missing
	surplus []*v1beta1.Switch // delete
	raise   []*v1beta1.Switch // turn up, as the Machine's position asks
	notice  []*v1beta1.Switch // up, and not yet known to be
	forget  []*v1beta1.Switch // down again, and still noted as up
	flip    []flip            // turn down, now

	lastFlip   time.Time // when one of the switches was last turned down, as far as is known; zero for never
	carriedOut bool      // after this plan, the Machine's position is carried out
	lower      bool      // what the Machine's position asked for has come and gone: set it back to down
	next       time.Time // when to decide again at the latest; zero if nothing will be due
}

// A flip is a switch to turn down.
type flip struct {
	sw  *v1beta1.Switch
	due time.Time
}

// empty reports whether there is nothing to write for the plan, except perhaps the status.
func (p *plan) empty() bool {
	return p.create == 0 && len(p.adopt)+len(p.release)+len(p.surplus)+len(p.raise)+len(p.notice)+
		len(p.forget)+len(p.flip) == 0
}

// decide says what to do about a Machine with these switches: its own, and those of its namespace without controller. Of its
// flips more may be known than the objects tell.
func decide(m *v1beta1.Machine, selector labels.Selector, switches []*v1beta1.Switch, known flipping, now time.Time) plan {
	var p plan
	p.mine = own(m, switches)
	p.lastFlip = lastFlip(m, switches, known.done, now) // also of those that are about to go, or are going
	staying := p.scale(m, p.claim(m, selector, switches, now), now)
	if !p.position(m, staying) {
		p.flips(m, staying, known.attempted, now)
	}
	return p
}

// claim decides on ownership, as the ReplicaSet controller does, and returns the switches that stay the Machine's.
func (p *plan) claim(m *v1beta1.Machine, selector labels.Selector, switches []*v1beta1.Switch, now time.Time) []*v1beta1.Switch {
	for _, sw := range switches {
		orphan := metav1.GetControllerOfNoCopy(sw) == nil
		switch {
		case selector.Matches(labels.Set(sw.Labels)) != orphan || !sw.DeletionTimestamp.IsZero() || object.Paused(sw):
		case orphan:
			p.adopt = append(p.adopt, sw)
		case metav1.IsControlledBy(sw, m) && !remembers(sw, m, now):
			p.release = append(p.release, sw)
		}
	}
	return without(p.mine, p.release)
}

// without returns the switches that are not among others.
func without(switches, others []*v1beta1.Switch) []*v1beta1.Switch {
	if len(others) == 0 {
		return switches
	}
	return slices.DeleteFunc(slices.Clone(switches), func(sw *v1beta1.Switch) bool { return slices.Contains(others, sw) })
}

// own returns the switches that the Machine controls and that are not being deleted, in the order of their names.
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

// scale decides how many switches to create or which ones to delete now, and returns those that stay. Switches to be
// adopted count; none is deleted before they are adopted, because one of them may be the one to go.
func (p *plan) scale(m *v1beta1.Machine, mine []*v1beta1.Switch, now time.Time) []*v1beta1.Switch {
	missing := int(wanted(m)) - len(mine) - len(p.adopt)
	if missing >= 0 {
		p.create = min(missing, maxInOnePass)
		return mine
	}
	if len(p.adopt) > 0 {
		return mine
	}
	candidates := slices.DeleteFunc(slices.Clone(mine), func(sw *v1beta1.Switch) bool { return object.Paused(sw) })
	slices.SortFunc(candidates, dispensableFirst)
	p.surplus = slices.DeleteFunc(candidates[:min(-missing, len(candidates), maxInOnePass)], func(sw *v1beta1.Switch) bool {
		return remembers(sw, m, now)
	})
	return without(mine, p.surplus)
}

// remembers reports whether nothing but a switch tells of the Machine's last flip. It stays the Machine's until the status
// does, which is written in the same pass: whoever is next after a crash has to know.
func remembers(sw *v1beta1.Switch, m *v1beta1.Machine, now time.Time) bool {
	at := flippedAt(sw, now)
	return !at.IsZero() && (m.Status.LastFlipTime == nil || at.After(m.Status.LastFlipTime.Time))
}

// dispensableFirst orders switches that are down before those that are up, and newer ones before older ones.
func dispensableFirst(a, b *v1beta1.Switch) int {
	if isUp(a) != isUp(b) {
		if isUp(b) {
			return -1
		}
		return 1
	}
	return cmp.Or(b.CreationTimestamp.Compare(a.CreationTimestamp.Time), byName(b, a))
}

// position decides about the Machine's own position. It reports whether all switches are being turned up: none is
// turned down in the same pass, so that they are all up once.
func (p *plan) position(m *v1beta1.Machine, mine []*v1beta1.Switch) (rising bool) {
	if m.Spec.Position != v1beta1.PositionUp {
		p.carriedOut = true
		return false
	}
	complete := len(mine) == int(wanted(m)) && len(p.adopt)+len(p.surplus) == 0
	if m.Status.Position == v1beta1.PositionUp {
		p.carriedOut = true
		p.lower = complete && !slices.ContainsFunc(mine, isUp)
		return false
	}
	if !complete {
		return false
	}
	p.carriedOut = true
	for _, sw := range mine {
		if !isUp(sw) && !object.Paused(sw) {
			p.raise = append(p.raise, sw)
		}
	}
	return true
}

// flips decides which switches to turn down now and when the next one will be due: never before it has been up for
// the flip delay, never two in one flip interval, the one that has been up for longest first. A flip that may have been done
// counts, but is nothing to write down.
func (p *plan) flips(m *v1beta1.Machine, mine []*v1beta1.Switch, attempted, now time.Time) {
	delay, interval := seconds(m.Spec.Flip.DelaySeconds), seconds(m.Spec.Flip.IntervalSeconds)
	last := p.lastFlip
	if credible(attempted, now) {
		last = latest(last, attempted)
	}
	var up []*v1beta1.Switch
	for _, sw := range mine {
		switch {
		case object.Paused(sw):
		case isUp(sw):
			up = append(up, sw)
		case sw.Status.SeenAt != nil:
			p.forget = append(p.forget, sw)
		}
	}
	slices.SortStableFunc(up, func(a, b *v1beta1.Switch) int { return seenAt(a, now).Compare(seenAt(b, now)) })

	for _, sw := range up {
		due := latest(seenAt(sw, now).Add(delay), last.Add(interval))
		if due.After(now) {
			p.next = due
			break
		}
		p.flip = append(p.flip, flip{sw, due})
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

// lastFlip is the latest instant at which one of the Machine's switches is known to have been turned down.
func lastFlip(m *v1beta1.Machine, switches []*v1beta1.Switch, flipped, now time.Time) time.Time {
	var last time.Time
	if credible(flipped, now) {
		last = flipped
	}
	if at := m.Status.LastFlipTime; at != nil && credible(at.Time, now) {
		last = latest(last, at.Time)
	}
	for _, sw := range switches {
		if metav1.IsControlledBy(sw, m) {
			last = latest(last, flippedAt(sw, now))
		}
	}
	return last
}

// flippedAt is when the operator last turned a switch down, or zero. What is no instant was not written by the operator, and
// says nothing.
func flippedAt(sw *v1beta1.Switch, now time.Time) time.Time {
	at, err := time.Parse(time.RFC3339Nano, sw.Annotations[v1beta1.FlippedAtAnnotation])
	if err != nil || !credible(at, now) {
		return time.Time{}
	}
	return at
}

// credible reports whether something can have happened at an instant. One that is further ahead than the clocks of
// nodes are apart was written by somebody else, or by a leader whose clock was wrong: waiting for it could take years.
func credible(at, now time.Time) bool {
	return !at.After(now.Add(maxClockSkew))
}

// names yields the names for new switches that are not taken, lowest ordinal first. Names that follow from what is
// there keep an operator with a stale view from ever creating one switch too many.
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

// byName orders switches by name, with the number at the end taken as a number: machine-2 before machine-10.
func byName(a, b *v1beta1.Switch) int {
	aPrefix, aOrdinal := splitOrdinal(a.Name)
	bPrefix, bOrdinal := splitOrdinal(b.Name)
	return cmp.Or(strings.Compare(aPrefix, bPrefix), cmp.Compare(aOrdinal, bOrdinal), strings.Compare(a.Name, b.Name))
}

func splitOrdinal(name string) (prefix string, ordinal uint64) {
	digits := len(name)
	for digits > 0 && '0' <= name[digits-1] && name[digits-1] <= '9' {
		digits--
	}
	ordinal, err := strconv.ParseUint(name[digits:], 10, 64)
	if err != nil { // no digits, or too many
		return name, 0
	}
	return name[:digits], ordinal
}

// seenAt is when a switch that is up was noticed; one that was not is being noticed now.
func seenAt(sw *v1beta1.Switch, now time.Time) time.Time {
	if !noticed(sw, now) {
		return now
	}
	return sw.Status.SeenAt.Time
}

// noticed reports whether a switch was noticed since it was last turned. Only turning it changes its generation.
func noticed(sw *v1beta1.Switch, now time.Time) bool {
	return sw.Status.SeenAt != nil && sw.Status.ObservedGeneration == sw.Generation && credible(sw.Status.SeenAt.Time, now)
}

func isUp(sw *v1beta1.Switch) bool { return sw.Spec.Position == v1beta1.PositionUp }

// wanted is the number of switches that the Machine asks for.
func wanted(m *v1beta1.Machine) int32 {
	return cmp.Or(m.Spec.Switches.Count, v1beta1.DefaultSwitchCount)
}

func seconds(value *int32) time.Duration {
	if value == nil {
		value = new(v1beta1.DefaultFlipSeconds)
	}
	return time.Duration(*value) * time.Second
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
