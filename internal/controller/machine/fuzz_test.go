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

// A letter stands for a switch. Those that are up were seen so long ago as the fuzz test says of each.
var letters = map[rune][]func(*v1beta1.Switch){
	'd': {},
	'u': {up},
	's': {up, seen(0)},
	'D': {seen(0), func(sw *v1beta1.Switch) { sw.Spec.Position = v1beta1.PositionDown }}, // down again, and still noted as up
	'S': {up, seen(0), func(sw *v1beta1.Switch) { sw.Generation++ }},                     // turned since it was seen
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

// spell makes a switch of each letter that is one. Ages are in seconds: of having been seen up, and of having been flipped.
func spell(text string, ages []byte) []*v1beta1.Switch {
	var switches []*v1beta1.Switch
	for i, letter := range text {
		changes, known := letters[letter]
		if !known || len(switches) == 40 {
			continue
		}
		sw := newTestSwitch(fmt.Sprintf("m-%d", i), changes...)
		if len(ages) > 0 {
			age := time.Duration(int8(ages[i%len(ages)])) * time.Second // less than zero is in the future
			if sw.Status.SeenAt != nil {
				sw.Status.SeenAt = ago(age)
			}
			sw.CreationTimestamp = metav1.NewTime(now.Add(-age))
		}
		switches = append(switches, sw)
	}
	return switches
}

// FuzzDecide decides about all kinds of Machines and switches, does what is decided, and decides again, until there is
// nothing left to do but wait.
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
		// Each pass creates or deletes a hundred at most; the others adopt, delete, raise, notice, flip and lower.
		for passes := 0; w.pass(); passes++ {
			if passes > 24 {
				t.Fatalf("does not come to rest: %s", cmp.Diff(summary{}, summarize(w.decide())))
			}
		}
		w.checkRest()
	})
}

func abs(n int) int {
	if n < 0 {
		return -(n + 1)
	}
	return n
}

// A settling is a Machine with its switches, on which plans are carried out at one instant.
type settling struct {
	*testing.T
	machine  *v1beta1.Machine
	switches []*v1beta1.Switch
	now      time.Time
	made     int
}

// decide decides, which changes nothing.
func (w *settling) decide() plan {
	w.Helper()
	m := w.machine.DeepCopy()
	var switches []*v1beta1.Switch
	for _, sw := range w.switches {
		switches = append(switches, sw.DeepCopy())
	}
	p := decide(w.machine, w.switches, flips{}, w.now)
	if !reflect.DeepEqual(m, w.machine) || !reflect.DeepEqual(switches, w.switches) {
		w.Errorf("to decide has changed an object:\n%s", cmp.Diff(switches, w.switches))
	}
	return p
}

// pass decides and acts, and reports whether there was anything to do.
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

// changes reports whether a plan writes anything but the status.
func changes(p plan) bool {
	return p.create > 0 || p.lower ||
		len(p.adopt)+len(p.release)+len(p.surplus)+len(p.raise)+len(p.notice)+len(p.forget)+len(p.flip) > 0
}

// checkPlan fails unless a plan does no more than it has to, and nothing to switches that are not the Machine's.
func (w *settling) checkPlan(p plan) {
	w.Helper()
	staying := len(p.mine) - len(p.release)
	missing := int(wanted(w.machine)) - staying - len(p.adopt)
	if p.create > max(missing, 0) || p.create > maxInOnePass {
		w.Errorf("creates %d, of which %d are missing", p.create, missing)
	}
	if len(p.surplus) > max(-missing, 0) || len(p.surplus) > maxInOnePass {
		w.Errorf("deletes %d, of which %d are too many", len(p.surplus), -missing)
	}
	seen := map[string]string{}
	for what, switches := range map[string][]*v1beta1.Switch{
		"adopt": p.adopt, "release": p.release, "delete": p.surplus, "raise": p.raise, "notice": p.notice, "forget": p.forget, "flip": flipsOf(p),
	} {
		for _, sw := range switches {
			if other, ok := seen[sw.Name]; ok {
				w.Errorf("%s: %s and %s", sw.Name, what, other)
			}
			seen[sw.Name] = what
			w.checkTouchable(sw, what == "adopt")
		}
	}
}

func (w *settling) checkTouchable(sw *v1beta1.Switch, adopt bool) {
	w.Helper()
	mine := metav1.IsControlledBy(sw, w.machine)
	if adopt {
		mine = metav1.GetControllerOf(sw) == nil
	}
	if !sw.DeletionTimestamp.IsZero() || pause.IsPaused(sw) || !mine {
		w.Errorf("%s is not to be touched: %v", sw.Name, sw.ObjectMeta)
	}
}

func flipsOf(p plan) []*v1beta1.Switch {
	var switches []*v1beta1.Switch
	for _, f := range p.flip {
		switches = append(switches, f.sw)
	}
	return switches
}

// checkFlips fails unless those switches are turned down that have been up for long enough, the oldest first, and one in an
// interval.
func (w *settling) checkFlips(p plan, staying []*v1beta1.Switch) {
	w.Helper()
	delay, interval := seconds(w.machine.Spec.Flip.DelaySeconds), seconds(w.machine.Spec.Flip.IntervalSeconds)
	if len(p.flip) > 1 && interval > 0 {
		w.Errorf("%d flips in one interval", len(p.flip))
	}
	waiting := slices.DeleteFunc(slices.Clone(without(staying, flipsOf(p))), func(sw *v1beta1.Switch) bool { return !isUp(sw) || pause.IsPaused(sw) })
	for _, f := range p.flip {
		since := seenAt(f.sw, w.now)
		if earliest := latest(since.Add(delay), p.lastFlip.Add(interval)); !isUp(f.sw) || w.now.Before(earliest) || f.due.After(w.now) {
			w.Errorf("%s is turned down early: seen at %s, last flip at %s", f.sw.Name, since, p.lastFlip)
		}
		if slices.ContainsFunc(waiting, func(sw *v1beta1.Switch) bool { return seenAt(sw, w.now).Before(since) }) {
			w.Errorf("%s is turned down before its turn", f.sw.Name)
		}
	}
	if len(waiting) > 0 && !w.rises(p) && !p.next.After(w.now) {
		w.Errorf("a switch is up, and the next time to look is %s", p.next)
	}
}

// rises reports whether a plan turns all switches up, of which none may be left to turn.
func (w *settling) rises(p plan) bool {
	return p.raising
}

// apply does what is planned, as the API server would.
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
		sw.Status = v1beta1.SwitchStatus{ObservedGeneration: sw.Generation, SeenAt: instant(w.now)}
	}
	for _, sw := range p.forget {
		sw.Status.SeenAt = nil
	}
	for _, f := range p.flip {
		turn(f.sw, v1beta1.PositionDown)
		metav1.SetMetaDataAnnotation(&f.sw.ObjectMeta, v1beta1.FlippedAtAnnotation, instant(w.now).Format(metav1.RFC3339Micro))
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

// checkRest fails unless the Machine has what it asks for, as far as nobody has paused what is in the way.
func (w *settling) checkRest() {
	w.Helper()
	paused := func(sw *v1beta1.Switch) bool { return pause.IsPaused(sw) }
	got, want := own(w.machine, w.switches), int(wanted(w.machine))
	if movable := slices.DeleteFunc(slices.Clone(got), paused); len(got) != want && (len(got) < want || len(movable) > 0) {
		w.Errorf("at rest with %d switches of %d", len(got), want)
	}
}

// FuzzStatus describes Machines after all kinds of outcomes. What is said once is not said anew as time passes, and the API
// server takes it.
func FuzzStatus(f *testing.F) {
	f.Add(3, "ddd", []byte{0}, "", "", 0)
	f.Add(3, "uds", []byte{5}, "quota", "exceeded quota: q", 4)
	f.Add(1, "S", []byte{1}, "conflict", "changed", 2)
	f.Add(2, "", []byte{}, "other", "connection refused: 127.0.0.1:12345", 1)
	f.Add(2, "d", []byte{0}, "other", strings.Repeat("a webhook that talks too much ", 2000), 60)
	f.Fuzz(func(t *testing.T, count int, text string, ages []byte, kind, message string, later int) {
		m := newMachine(int32(1 + abs(count)%1000))
		mine := own(m, spell(text, ages))
		p, done := plan{selector: labels.Everything(), mine: mine}, outcome{scaling: refusalOf(kind, message)}
		m.Status = newStatus(m, p, done, now)
		again := newStatus(m, p, done, now.Add(time.Duration(abs(later)%86400)*time.Second))
		seen := func(sw *v1beta1.Switch) bool {
			return sw.Status.SeenAt != nil && sw.Status.SeenAt.After(now.Add(maxClockSkew))
		}
		if !reflect.DeepEqual(m.Status, again) && !slices.ContainsFunc(mine, seen) { // those become credible as time passes
			t.Errorf("says something new:\n%s", cmp.Diff(m.Status, again))
		}
		checkStatus(t, m, done)
	})
}

func refusalOf(kind, message string) error {
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
	if want := (v1beta1.SwitchCounts{Total: int32(len(status.Positions)), Up: int32(up), Down: int32(down)}); status.Switches != want || up+down != len(status.Positions) {
		t.Errorf("counts %v in %q", status.Switches, status.Positions)
	}
	if errs := validation.ValidateConditions(status.Conditions, field.NewPath("status")); len(errs) > 0 {
		t.Error(errs)
	}
	is := func(condition string) bool { return meta.IsStatusConditionTrue(status.Conditions, condition) }
	if is(v1beta1.ConditionReady) != (is(v1beta1.ConditionScaled) && is(v1beta1.ConditionResting)) {
		t.Errorf("ready is not to be scaled and resting: %v", status.Conditions)
	}
	if is(v1beta1.ConditionResting) != (up == 0) {
		t.Errorf("%d are up: %v", up, status.Conditions)
	}
	complete := up+down == int(wanted(m)) && (done.scaling == nil || apierrors.IsConflict(done.scaling))
	if is(v1beta1.ConditionScaled) != complete {
		t.Errorf("%d of %d, %v: %v", up+down, wanted(m), done.scaling, status.Conditions)
	}
}

// FuzzNames orders any three names, and finds new ones beside them.
func FuzzNames(f *testing.F) {
	f.Add("m", "m-2", "m-10", "m-010")
	f.Add("m", "m-18446744073709551615", "m-18446744073709551616", "m")
	f.Add("1", "", "7", "07")
	f.Fuzz(func(t *testing.T, machine, a, b, c string) {
		one, two, three := newTestSwitch(a), newTestSwitch(b), newTestSwitch(c)
		if byName(one, two) != -byName(two, one) || (byName(one, two) == 0) != (a == b) {
			t.Errorf("%q and %q: %d, and %d", a, b, byName(one, two), byName(two, one))
		}
		if byName(one, two) <= 0 && byName(two, three) <= 0 && byName(one, three) > 0 {
			t.Errorf("%q, %q, %q: the last comes before the first", a, b, c)
		}
		m := newMachine(3)
		m.Name = machine
		taken := map[string]bool{a: true, b: true, c: true}
		next, before := names(m, func(name string) bool { return taken[name] }), ""
		for range 5 {
			name := next()
			if taken[name] || !strings.HasPrefix(name, machine+"-") || before != "" && byName(newTestSwitch(before), newTestSwitch(name)) >= 0 {
				t.Errorf("%q after %q, where %v are taken", name, before, taken)
			}
			before = name
		}
	})
}
