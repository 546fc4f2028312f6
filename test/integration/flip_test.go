// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/watch"

	"container.training/useless/api/useless/v1beta1"
)

// flip is one flip: the operator turned a switch down.
type flip struct {
	name     string
	up       time.Time // just before the test turned the switch up; zero if the time is not known
	seenAt   time.Time // the switch's status.seenAt; zero if it is not set
	at       time.Time // the switch's flipped-at annotation
	received time.Time // when the test's watch received the change
}

// flips returns the operator's flips in the order of the writes. If a switch was up when the recording began, its first
// flip can be missing. ups maps the name of each switch to the time when the test turned it up.
func flips(changes []change[*v1beta1.Switch], ups map[string]time.Time) []flip {
	var found []flip
	last := map[string]*v1beta1.Switch{}
	for _, change := range changes {
		sw, previous := change.object, last[change.object.Name]
		last[sw.Name] = sw
		if change.kind != watch.Modified || previous == nil || previous.Spec.Position != v1beta1.PositionUp {
			continue
		}
		stamp := sw.Annotations[v1beta1.FlippedAtAnnotation]
		if stamp != previous.Annotations[v1beta1.FlippedAtAnnotation] {
			at, err := time.Parse(time.RFC3339Nano, stamp)
			if err != nil {
				panic(err) // only the operator writes the annotation
			}
			f := flip{name: sw.Name, up: ups[sw.Name], at: at, received: change.at}
			if sw.Status.SeenAt != nil {
				f.seenAt = sw.Status.SeenAt.Time
			}
			found = append(found, f)
		}
	}
	return found
}

// turnedDown counts the changes of each switch from up to down. It counts the changes by the operator and by the test.
func turnedDown(changes []change[*v1beta1.Switch]) map[string]int {
	counts, up := map[string]int{}, map[string]bool{}
	for _, change := range changes {
		sw := change.object
		isUp := sw.Spec.Position == v1beta1.PositionUp
		if up[sw.Name] && !isUp {
			counts[sw.Name]++
		}
		up[sw.Name] = isUp && change.kind != watch.Deleted
	}
	return counts
}

// checkFlips fails the test if a switch was turned down early, or if two switches were turned down within one interval.
// It also fails the test if the flips are not in the order of status.seenAt. It checks both the times that the operator
// wrote and the times at which the test received the watch events.
func checkFlips(t *testing.T, found []flip, delay, interval time.Duration) {
	t.Helper()
	for i, f := range found {
		if f.seenAt.IsZero() || f.at.Before(f.seenAt.Add(delay)) {
			t.Errorf("%s was turned down at %s, early: status.seenAt is %s", f.name, f.at, f.seenAt)
		}
		if !f.up.IsZero() && (f.seenAt.Before(f.up) || f.received.Before(f.up.Add(delay))) {
			t.Errorf("%s was down at %s, early: the test turned it up at %s, status.seenAt is %s",
				f.name, f.received, f.up, f.seenAt)
		}
		// The operator rounds its flipped-at time up to the microsecond.
		if f.at.After(f.received.Add(time.Microsecond)) {
			t.Errorf("%s was down at %s, before its flipped-at time %s", f.name, f.received, f.at)
		}
		if i == 0 {
			continue
		}
		previous := found[i-1]
		if f.at.Before(previous.at.Add(interval)) || f.received.Before(previous.at.Add(interval)) {
			t.Errorf("%s was turned down at %s, received at %s: within %s of %s at %s",
				f.name, f.at, f.received, interval, previous.name, previous.at)
		}
		if f.seenAt.Before(previous.seenAt) {
			t.Errorf("%s, seen at %s, was turned down after %s, seen at %s",
				f.name, f.seenAt, previous.name, previous.seenAt)
		}
	}
}

// lateness returns how late each flip was.
func lateness(found []flip, delay, interval time.Duration) []time.Duration {
	late := make([]time.Duration, 0, len(found))
	for i, f := range found {
		due := f.seenAt.Add(delay)
		if i > 0 {
			due = latest(due, found[i-1].at.Add(interval))
		}
		late = append(late, f.at.Sub(due))
	}
	return late
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// reportLateness logs how late the flips were. It fails the test if a flip was later than bound.
func reportLateness(t *testing.T, found []flip, delay, interval, bound time.Duration) {
	t.Helper()
	late := lateness(found, delay, interval)
	if len(late) == 0 {
		t.Fatal("no flips")
	}
	slices.Sort(late)
	t.Logf("%d flips, lateness p50 %s, max %s", len(late), late[len(late)/2], late[len(late)-1])
	if late[len(late)-1] > bound {
		t.Errorf("a flip was %s late, want at most %s", late[len(late)-1], bound)
	}
}

// flippingMachine creates a Machine and waits until all its switches exist. delay and interval are in seconds.
func flippingMachine(t *testing.T, namespace, name string, count, delay, interval int32) *v1beta1.Machine {
	t.Helper()
	createMachine(t, namespace, name, func(spec *v1beta1.MachineSpec) {
		spec.Switches.Count = count
		spec.Flip.DelaySeconds, spec.Flip.IntervalSeconds = new(delay), new(interval)
	})
	return waitForPositions(t, namespace, name, strings.Repeat("d", int(count)), defaultTimeout)
}

// turnUpInOrder turns switches up one after the other, and returns the times. After each switch, it waits until the
// operator has set status.seenAt.
func turnUpInOrder(t *testing.T, switches *recording[*v1beta1.Switch], namespace string, names ...string) map[string]time.Time {
	t.Helper()
	ups := map[string]time.Time{}
	for _, name := range names {
		ups[name] = time.Now()
		turnUp(t, namespace, name)
		switches.untilObject(t, name, "is up and has status.seenAt", noticed)
	}
	return ups
}

func noticed(sw *v1beta1.Switch) bool {
	return sw.Spec.Position == v1beta1.PositionUp && sw.Status.SeenAt != nil &&
		sw.Status.ObservedGeneration == sw.Generation
}

// untilFlips waits for n flips and returns them.
func untilFlips(t *testing.T, switches *recording[*v1beta1.Switch], ups map[string]time.Time, n int) []flip {
	t.Helper()
	return flips(switches.until(t, fmt.Sprintf("%d flips", n), func(changes []change[*v1beta1.Switch]) bool {
		return len(flips(changes, ups)) >= n
	}), ups)
}

func TestFlips(t *testing.T) {
	runShared(t, []namespacedTest{
		{"switches are turned down in the order of status.seenAt, one per interval, never early", testFlipOrder},
		{"with the default delay and interval, three switches take fifteen seconds", testDefaultRule},
		{"if delay and interval are 0, all switches are turned down immediately", testNoDelay},
		{"the delay starts again when a user turns a switch down and up", testNewDelay},
		{"the delay starts again when a user turns a switch down and up quickly", testNewDelayUnseen},
		{"if the switch that was turned down last is deleted, the interval still applies", testFlippedAndDeleted},
		{"changes to the machine during the delay do not prevent the flip", testChangesDuringDelay},
		{"position up turns all switches up once, then returns to down", testPositionUp},
	})
}

func testFlipOrder(t *testing.T, namespace string) {
	const delay, interval = 2 * time.Second, time.Second
	flippingMachine(t, namespace, "m", 5, 2, 1)
	switches := recordSwitches(t, namespace)
	order := []string{"m-3", "m-0", "m-4", "m-2", "m-1"}
	ups := turnUpInOrder(t, switches, namespace, order...)
	found := untilFlips(t, switches, ups, len(order))
	checkFlips(t, found, delay, interval)
	reportLateness(t, found, delay, interval, 10*time.Second)
	var got []string
	for _, f := range found {
		got = append(got, f.name)
	}
	if diff := cmp.Diff(order, got); diff != "" {
		t.Errorf("not in the order in which they were turned up (-want +got):\n%s", diff)
	}
	m := waitForPositions(t, namespace, "m", "ddddd", defaultTimeout)
	if last := found[len(found)-1].at; m.Status.LastFlipTime == nil || m.Status.LastFlipTime.Time.Before(last) || m.Status.SeenAt != nil {
		t.Errorf("the last flip was at %s, but the status is %+v", last, m.Status)
	}
}

func testDefaultRule(t *testing.T, namespace string) {
	const delay, interval = 5 * time.Second, 5 * time.Second
	createMachine(t, namespace, "m", func(spec *v1beta1.MachineSpec) { spec.Switches.Count = 3 })
	waitForPositions(t, namespace, "m", "ddd", defaultTimeout)
	switches := recordSwitches(t, namespace)
	ups := turnUpInOrder(t, switches, namespace, "m-2", "m-0", "m-1")
	found := untilFlips(t, switches, ups, 3)
	checkFlips(t, found, delay, interval)
	reportLateness(t, found, delay, interval, 10*time.Second)
	if took := found[2].received.Sub(ups["m-2"]); took < 15*time.Second {
		t.Errorf("three switches were down after %s, want at least 15s", took)
	}
}

func testNoDelay(t *testing.T, namespace string) {
	const count = 8
	switches := recordSwitches(t, namespace)
	createMachine(t, namespace, "m", func(spec *v1beta1.MachineSpec) {
		spec.Switches.Count, spec.Position = count, v1beta1.PositionUp
		spec.Flip.DelaySeconds, spec.Flip.IntervalSeconds = new(int32(0)), new(int32(0))
	})
	found := untilFlips(t, switches, nil, count)
	if took := found[count-1].at.Sub(found[0].at); took > 10*time.Second {
		t.Errorf("the last switch was turned down %s after the first, want at most 10s", took)
	}
	waitForPositions(t, namespace, "m", strings.Repeat("d", count), defaultTimeout)
	for name, times := range turnedDown(switches.all(t)) {
		if times != 1 {
			t.Errorf("%s was turned down %d times, want once", name, times)
		}
	}
}

func testNewDelay(t *testing.T, namespace string) {
	const delay = 3 * time.Second
	flippingMachine(t, namespace, "m", 1, 3, 0)
	switches := recordSwitches(t, namespace)
	turnUpInOrder(t, switches, namespace, "m-0")
	waitForPositions(t, namespace, "m", "u", defaultTimeout)
	mergePatch(t, newSwitch(namespace, "m-0"), `{"spec":{"position":"down"}}`)
	waitForPositions(t, namespace, "m", "d", defaultTimeout)
	ups := map[string]time.Time{"m-0": time.Now()}
	turnUp(t, namespace, "m-0")
	found := untilFlips(t, switches, ups, 1)
	checkFlips(t, found, delay, 0)
	reportLateness(t, found, delay, 0, 10*time.Second)
	if got := turnedDown(switches.all(t)); got["m-0"] != 2 {
		t.Errorf("m-0 was turned down %d times, want 2: once by the test and once by the operator", got["m-0"])
	}
}

// testNewDelayUnseen changes the switch so quickly that the operator may never see it down.
func testNewDelayUnseen(t *testing.T, namespace string) {
	const delay = 3 * time.Second
	flippingMachine(t, namespace, "m", 1, 3, 0)
	switches := recordSwitches(t, namespace)
	ups := turnUpInOrder(t, switches, namespace, "m-0")
	for range 10 {
		mergePatch(t, newSwitch(namespace, "m-0"), `{"spec":{"position":"down"}}`)
		ups["m-0"] = time.Now()
		turnUp(t, namespace, "m-0")
	}
	found := untilFlips(t, switches, ups, 1)
	checkFlips(t, found, delay, 0)
	reportLateness(t, found, delay, 0, 10*time.Second)
}

func testFlippedAndDeleted(t *testing.T, namespace string) {
	const delay, interval = time.Second, 4 * time.Second
	flippingMachine(t, namespace, "m", 2, 1, 4)
	switches := recordSwitches(t, namespace)
	ups := turnUpInOrder(t, switches, namespace, "m-1", "m-0")
	untilFlips(t, switches, ups, 1)
	mustKubectl(t, "", "delete", "switch", "m-1", "-n", namespace)
	found := untilFlips(t, switches, ups, 2)
	checkFlips(t, found, delay, interval)
	reportLateness(t, found, delay, interval, 10*time.Second)
}

// testChangesDuringDelay changes the Machine ten times a second during most of the delay. Each change triggers a
// reconcile, which must not cancel the alarm for the flip.
func testChangesDuringDelay(t *testing.T, namespace string) {
	const delay = 3 * time.Second
	flippingMachine(t, namespace, "m", 1, 3, 0)
	switches := recordSwitches(t, namespace)
	ups := turnUpInOrder(t, switches, namespace, "m-0")
	edits := 0
	for tick := time.NewTicker(100 * time.Millisecond); time.Since(ups["m-0"]) < delay-500*time.Millisecond; <-tick.C {
		edits++
		mergePatch(t, newMachine(namespace, "m"), `{"metadata":{"labels":{"edit":"%d"}}}`, edits)
	}
	t.Logf("%d edits", edits)
	found := untilFlips(t, switches, ups, 1)
	checkFlips(t, found, delay, 0)
	reportLateness(t, found, delay, 0, 10*time.Second)
}

func testPositionUp(t *testing.T, namespace string) {
	const delay, interval = time.Second, time.Second
	flippingMachine(t, namespace, "m", 4, 1, 1)
	want := getMachine(t, namespace, "m").Spec
	for _, round := range []string{"first", "second"} {
		machines, switches := recordMachines(t, namespace), recordSwitches(t, namespace)
		mergePatch(t, newMachine(namespace, "m"), `{"spec":{"position":"up"}}`)
		changes := machines.untilLast(t, round+" time: position is down again", func(last *v1beta1.Machine) bool {
			return last.Spec.Position == v1beta1.PositionDown && last.Status.Position == v1beta1.PositionDown &&
				last.Status.ObservedGeneration == last.Generation
		})
		// On a busy computer, several flips may happen between two statuses.
		counts := upCounts(changes)
		if len(counts) < 3 || counts[0] != 0 || counts[1] != 4 || counts[len(counts)-1] != 0 ||
			!slices.IsSortedFunc(counts[1:], func(a, b int) int { return b - a }) {
			t.Errorf("%s time: the numbers of switches up in successive statuses are %v, want 0, 4, and then fewer down to 0",
				round, counts)
		}
		once := map[string]int{"m-0": 1, "m-1": 1, "m-2": 1, "m-3": 1}
		if diff := cmp.Diff(once, turnedDown(switches.all(t))); diff != "" {
			t.Errorf("%s time: how often each switch was turned down (-want +got):\n%s", round, diff)
		}
		found := flips(switches.all(t), nil)
		if len(found) != 4 {
			t.Errorf("%s time: %d flips, want 4", round, len(found))
		}
		checkFlips(t, found, delay, interval)
		if diff := cmp.Diff(want, getMachine(t, namespace, "m").Spec); diff != "" {
			t.Errorf("%s time: the spec has changed (-before +after):\n%s", round, diff)
		}
	}
}

// upCounts returns how many switches were up in each successive status, without consecutive repetitions.
func upCounts(changes []change[*v1beta1.Machine]) []int {
	var counts []int
	for _, change := range changes {
		counts = append(counts, strings.Count(change.object.Status.Positions, "u"))
	}
	return slices.Compact(counts)
}
