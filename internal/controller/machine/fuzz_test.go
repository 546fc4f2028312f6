// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/pause"
)

// letters maps each letter of a fuzz input to the changes that make a kind of switch.
var letters = map[rune][]func(*v1beta1.Switch){
	'd': {},
	'u': {up},
	's': {up, seen(0)},
	// down again, but seenAt is still set
	'D': {seen(0), func(sw *v1beta1.Switch) { sw.Spec.Position = v1beta1.PositionDown }},
	'S': {up, seen(0), func(sw *v1beta1.Switch) { sw.Generation++ }}, // its position has changed since seenAt was set
	'o': {orphan},
	'O': {orphan, up},
	'x': {relabelled},
	'X': {relabelled, seen(0)},
	'n': {orphan, relabelled},
	'f': {foreign},
	'F': {foreign, seen(0)},
	't': {terminating},
	'T': {terminating, seen(0)},
	'p': {pausedSwitch},
	'P': {pausedSwitch, seen(0)},
	'g': {func(sw *v1beta1.Switch) {
		metav1.SetMetaDataAnnotation(&sw.ObjectMeta, v1beta1.FlippedAtAnnotation, "garbage")
	}},
}

// spell returns a switch for each known letter, at most 40. Ages are in seconds, and set both seenAt and
// creationTimestamp.
func spell(text string, ages []byte) []*v1beta1.Switch {
	var switches []*v1beta1.Switch
	for i, letter := range text {
		changes, known := letters[letter]
		if !known || len(switches) == 40 {
			continue
		}
		sw := newTestSwitch(fmt.Sprintf("m-%d", i), changes...)
		if len(ages) > 0 {
			age := time.Duration(int8(ages[i%len(ages)])) * time.Second // negative: in the future
			if sw.Status.SeenAt != nil {
				sw.Status.SeenAt = ago(age)
			}
			sw.CreationTimestamp = metav1.NewTime(now.Add(-age))
		}
		switches = append(switches, sw)
	}
	return switches
}

// FuzzDecide calls decide for random Machines and switches, and executes the plan. It repeats both steps without
// advancing the clock, until the plan contains no write.
func FuzzDecide(f *testing.F) {
	f.Add(3, 5, 5, "down", "down", "ddd", []byte{0}, -1)
	f.Add(3, 5, 5, "down", "down", "sss", []byte{9, 8, 7}, 6)
	f.Add(1, 0, 0, "up", "up", "usD", []byte{200}, 0)
	f.Add(2, 5, 0, "up", "down", "ddoxftp", []byte{1}, 3)
	f.Fuzz(func(t *testing.T, count, delay, interval int, wants, has, text string, ages []byte, flippedAgo int) {
		w := &settling{
			T: t, switches: spell(text, ages), now: now,
			machine: newMachine(int32(1+abs(count)%110), flipTimes(int32(abs(delay)%86401), int32(abs(interval)%86401)),
				position(v1beta1.Position(wants), v1beta1.Position(has))),
		}
		if flippedAgo >= 0 {
			lastFlipped(time.Duration(flippedAgo%3600) * time.Second)(w.machine)
		}
		// One pass creates or deletes at most 100 switches. Further passes adopt, release, raise, notice, flip or
		// lower.
		for passes := 0; w.pass(); passes++ {
			if passes > 24 {
				t.Fatalf("the plans do not end: %s", cmp.Diff(summary{}, summarize(w.decide())))
			}
		}
		w.checkRest()
	})
}

// abs returns a number that is at least 0. For a negative n it returns -n-1, because -n can overflow.
func abs(n int) int {
	if n < 0 {
		return -(n + 1)
	}
	return n
}

// A settling executes plans for a Machine and its switches at one instant.
type settling struct {
	*testing.T
	machine  *v1beta1.Machine
	switches []*v1beta1.Switch
	now      time.Time
	made     int
}

// decide returns a plan. It also checks that the call did not change an object.
func (w *settling) decide() plan {
	w.Helper()
	m := w.machine.DeepCopy()
	var switches []*v1beta1.Switch
	for _, sw := range w.switches {
		switches = append(switches, sw.DeepCopy())
	}
	p := decide(w.machine, w.switches, remembered{}, false, w.now)
	if !reflect.DeepEqual(m, w.machine) || !reflect.DeepEqual(switches, w.switches) {
		w.Errorf("decide changed an object:\n%s", cmp.Diff(switches, w.switches))
	}
	return p
}

// pass computes and executes one plan. It reports whether an object changed.
func (w *settling) pass() bool {
	w.Helper()
	p := w.decide()
	w.checkPlan(p)
	staying := without(without(p.mine, p.release), p.surplus)
	w.checkFlips(p, staying)
	w.apply(p)
	if changes(p) {
		return true
	}
	status := newStatus(w.machine, p, outcome{raised: true}, w.now)
	same := reflect.DeepEqual(status, w.machine.Status)
	w.machine.Status = status
	return !same
}

// changes reports whether a plan contains writes other than the write of the status.
func changes(p plan) bool {
	return p.create > 0 || p.lower ||
		len(p.adopt)+len(p.release)+len(p.surplus)+len(p.raise)+len(p.notice)+len(p.flip) > 0
}

// checkPlan checks that a plan creates only missing switches and deletes only surplus switches. The plan may change
// only the Machine's own switches and the orphans that it adopts.
func (w *settling) checkPlan(p plan) {
	w.Helper()
	staying := len(p.mine) - len(p.release)
	missing := int(wanted(w.machine)) - staying - len(p.adopt)
	if p.create > max(missing, 0) || p.create > maxInOnePass {
		w.Errorf("the plan creates %d switches, %d are missing", p.create, missing)
	}
	if len(p.surplus) > max(-missing, 0) || len(p.surplus) > maxInOnePass {
		w.Errorf("the plan deletes %d switches, %d are surplus", len(p.surplus), -missing)
	}
	seen := map[string]string{}
	for what, switches := range map[string][]*v1beta1.Switch{
		"adopt": p.adopt, "release": p.release, "delete": p.surplus, "raise": p.raise, "notice": p.notice,
		"flip": flipsOf(p),
	} {
		for _, sw := range switches {
			if other, ok := seen[sw.Name]; ok {
				w.Errorf("%s is in two lists of the plan: %s and %s", sw.Name, what, other)
			}
			seen[sw.Name] = what
			w.checkMayChange(sw, what == "adopt")
		}
	}
}

func (w *settling) checkMayChange(sw *v1beta1.Switch, adopt bool) {
	w.Helper()
	mine := metav1.IsControlledBy(sw, w.machine)
	if adopt {
		mine = metav1.GetControllerOf(sw) == nil
	}
	if !sw.DeletionTimestamp.IsZero() || pause.IsPaused(sw) || !mine {
		w.Errorf("the plan must not change %s: %v", sw.Name, sw.ObjectMeta)
	}
}

func flipsOf(p plan) []*v1beta1.Switch {
	var switches []*v1beta1.Switch
	for _, f := range p.flip {
		switches = append(switches, f.sw)
	}
	return switches
}

// checkFlips checks that a plan turns switches down only after their delay, the oldest first, and one per interval.
func (w *settling) checkFlips(p plan, staying []*v1beta1.Switch) {
	w.Helper()
	delay, interval := seconds(w.machine.Spec.Flip.DelaySeconds), seconds(w.machine.Spec.Flip.IntervalSeconds)
	if len(p.flip) > 1 && interval > 0 {
		w.Errorf("%d flips in one interval", len(p.flip))
	}
	waiting := slices.DeleteFunc(slices.Clone(without(staying, flipsOf(p))),
		func(sw *v1beta1.Switch) bool { return !isUp(sw) || pause.IsPaused(sw) })
	for _, f := range p.flip {
		since := seenAt(f.sw, w.now)
		if earliest := latest(since.Add(delay), p.lastFlip.Add(interval)); !isUp(f.sw) || w.now.Before(earliest) ||
			f.due.After(w.now) {
			w.Errorf("%s is turned down early: seenAt %s, last flip %s", f.sw.Name, since, p.lastFlip)
		}
		if slices.ContainsFunc(waiting, func(sw *v1beta1.Switch) bool { return seenAt(sw, w.now).Before(since) }) {
			w.Errorf("%s is turned down before an older switch", f.sw.Name)
		}
	}
	if len(waiting) > 0 && !p.raising && !p.next.After(w.now) {
		w.Errorf("a switch is up, but the next reconcile is at %s", p.next)
	}
}

// apply executes a plan, as the operator and the API server do.
func (w *settling) apply(p plan) {
	w.Helper()
	turn := func(sw *v1beta1.Switch, position v1beta1.Position) { sw.Spec.Position = position; sw.Generation++ }
	for _, sw := range p.adopt {
		sw.OwnerReferences = newTestSwitch("").OwnerReferences
	}
	for _, sw := range p.release {
		sw.OwnerReferences = nil
	}
	for _, sw := range p.raise {
		turn(sw, v1beta1.PositionUp)
	}
	for _, sw := range p.notice {
		sw.Status = v1beta1.SwitchStatus{ObservedGeneration: sw.Generation, SeenAt: microTime(w.now)}
	}
	for _, f := range p.flip {
		turn(f.sw, v1beta1.PositionDown)
		metav1.SetMetaDataAnnotation(&f.sw.ObjectMeta, v1beta1.FlippedAtAnnotation,
			microTime(w.now).Format(metav1.RFC3339Micro))
	}
	w.switches = without(w.switches, p.surplus)
	for range p.create {
		w.made++
		w.switches = append(w.switches, newTestSwitch(fmt.Sprintf("new-%d", w.made)))
	}
	if p.lower {
		w.machine.Spec.Position = v1beta1.PositionDown
	}
}

// checkRest checks that the Machine has the desired number of switches. It may have more only if all are paused.
func (w *settling) checkRest() {
	w.Helper()
	paused := func(sw *v1beta1.Switch) bool { return pause.IsPaused(sw) }
	got, want := own(w.machine, w.switches), int(wanted(w.machine))
	if movable := slices.DeleteFunc(slices.Clone(got), paused); len(got) != want &&
		(len(got) < want || len(movable) > 0) {
		w.Errorf("the plan is empty, but there are %d switches, want %d", len(got), want)
	}
}

// FuzzStatus computes the status for random switches and errors. The status must be valid, and must not change with
// time.
func FuzzStatus(f *testing.F) {
	f.Add(3, "ddd", []byte{0}, "", "", 0)
	f.Add(3, "uds", []byte{5}, "quota", "exceeded quota: q", 4)
	f.Add(1, "S", []byte{1}, "conflict", "changed", 2)
	f.Add(2, "", []byte{}, "other", "connection refused: 127.0.0.1:12345", 1)
	f.Add(2, "d", []byte{0}, "other", strings.Repeat("a long message of a webhook ", 2000), 60)
	f.Fuzz(func(t *testing.T, count int, text string, ages []byte, kind, message string, later int) {
		m := newMachine(int32(1 + abs(count)%1000))
		mine := own(m, spell(text, ages))
		p, done := plan{selector: labels.Everything(), mine: mine}, outcome{scaling: errorOf(kind, message)}
		m.Status = newStatus(m, p, done, now)
		again := newStatus(m, p, done, now.Add(time.Duration(abs(later)%86400)*time.Second))
		seen := func(sw *v1beta1.Switch) bool {
			return sw.Status.SeenAt != nil && sw.Status.SeenAt.After(now.Add(v1beta1.MaxClockSkew))
		}
		// A seenAt too far in the future becomes valid later, and then the status changes.
		if !reflect.DeepEqual(m.Status, again) && !slices.ContainsFunc(mine, seen) {
			t.Errorf("the status changed with time:\n%s", cmp.Diff(m.Status, again))
		}
		checkStatus(t, m, done)
	})
}

func errorOf(kind, message string) error {
	switches := schema.GroupResource{Group: v1beta1.GroupVersion.Group, Resource: "switches"}
	switch kind {
	case "":
		return nil
	case "quota":
		return apierrors.NewForbidden(switches, "m-0", errors.New(message))
	case "conflict":
		return apierrors.NewConflict(switches, "m-0", errors.New(message))
	}
	return errors.New(message)
}

func checkStatus(t *testing.T, m *v1beta1.Machine, done outcome) {
	t.Helper()
	status := m.Status
	up, down := strings.Count(status.Positions, "u"), strings.Count(status.Positions, "d")
	if want := (v1beta1.SwitchCounts{Total: int32(len(status.Positions)), Up: int32(up),
		Down: int32(down)}); status.Switches != want || up+down != len(status.Positions) {
		t.Errorf("the counts are %v, the positions %q", status.Switches, status.Positions)
	}
	if errs := validation.ValidateConditions(status.Conditions, field.NewPath("status")); len(errs) > 0 {
		t.Error(errs)
	}
	is := func(condition string) bool { return meta.IsStatusConditionTrue(status.Conditions, condition) }
	if is(v1beta1.ConditionReady) != (is(v1beta1.ConditionScaled) && is(v1beta1.ConditionResting)) {
		t.Errorf("Ready must equal Scaled and Resting: %v", status.Conditions)
	}
	if is(v1beta1.ConditionResting) != (up == 0) {
		t.Errorf("condition Resting is wrong: %d switches are up, conditions %v", up, status.Conditions)
	}
	complete := up+down == int(wanted(m)) && (done.scaling == nil || apierrors.IsConflict(done.scaling))
	if is(v1beta1.ConditionScaled) != complete {
		t.Errorf("condition Scaled is wrong: %d of %d switches exist, scaling error %v, conditions %v", up+down, wanted(m), done.scaling, status.Conditions)
	}
}

// FuzzNames compares random names with byName, and checks that the order is consistent. It also generates new names
// while the random names are taken.
func FuzzNames(f *testing.F) {
	f.Add("m", "m-2", "m-10", "m-010")
	f.Add("m", "m-18446744073709551615", "m-18446744073709551616", "m")
	f.Add("1", "", "7", "07")
	f.Fuzz(func(t *testing.T, machine, a, b, c string) {
		one, two, three := newTestSwitch(a), newTestSwitch(b), newTestSwitch(c)
		if byName(one, two) != -byName(two, one) || (byName(one, two) == 0) != (a == b) {
			t.Errorf("byName of %q and %q is %d, reversed %d", a, b, byName(one, two), byName(two, one))
		}
		if byName(one, two) <= 0 && byName(two, three) <= 0 && byName(one, three) > 0 {
			t.Errorf("byName is not transitive for %q, %q, %q", a, b, c)
		}
		m := newMachine(3)
		m.Name = machine
		taken := map[string]bool{a: true, b: true, c: true}
		next, before := names(m, func(name string) bool { return taken[name] }), ""
		for range 5 {
			name := next()
			if taken[name] || !strings.HasPrefix(name, machine+"-") || before != "" &&
				byName(newTestSwitch(before), newTestSwitch(name)) >= 0 {
				t.Errorf("got name %q after %q, but %v are taken", name, before, taken)
			}
			before = name
		}
	})
}
