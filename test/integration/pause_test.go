// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1beta1"
)

func TestPause(t *testing.T) {
	runShared(t, []namespacedTest{
		{"a machine that is created paused is not changed until it is unpaused", testPausedFromTheStart},
		{"a paused machine turns no switch down until it is unpaused", testPausedMachine},
		{"a paused machine can be deleted", testPausedMachineDeleted},
		{"a paused switch is not turned down until it is unpaused, but other switches are turned down", testPausedSwitchUp},
		{"a paused switch is not deleted until it is unpaused, but other switches are deleted", testPausedSwitchSurplus},
		{"a paused switch is not adopted until it is unpaused", testPausedSwitchNotAdopted},
	})
}

func testPausedFromTheStart(t *testing.T, namespace string) {
	paused := newMachine(namespace, "paused")
	paused.Annotations = map[string]string{v1beta1.PausedAnnotation: "true"}
	paused.Spec.Switches.Count = 2
	if err := admin(t).Create(t.Context(), paused); err != nil {
		t.Fatal(err)
	}
	waitUntilProcessed(t, namespace)
	if diff := cmp.Diff(paused, getMachine(t, namespace, "paused")); diff != "" {
		t.Errorf("the paused machine was changed (-before +after):\n%s", diff)
	}
	if switches := switchesOf(t, paused); len(switches) > 0 {
		t.Errorf("the paused machine has %d switches", len(switches))
	}
	setPaused(t, newMachine(namespace, "paused"), false)
	waitForPositions(t, namespace, "paused", "dd", defaultTimeout)
}

func testPausedMachine(t *testing.T, namespace string) {
	flippingMachine(t, namespace, "m", 2, 0, 0)
	setPaused(t, newMachine(namespace, "m"), true)
	// The operator watches Machines and Switches separately. Wait until it has seen that the Machine is paused.
	waitUntilProcessed(t, namespace)
	before := getMachine(t, namespace, "m")
	switches := recordSwitches(t, namespace)
	turnUp(t, namespace, "m-1")
	createSwitch(t, namespace, "extra", "m", v1beta1.PositionUp, nil)
	waitUntilProcessed(t, namespace)
	if diff := cmp.Diff(before, getMachine(t, namespace, "m")); diff != "" {
		t.Errorf("the paused machine was changed (-before +after):\n%s", diff)
	}
	if sw := getSwitch(t, namespace, "m-1"); sw.Spec.Position != v1beta1.PositionUp || sw.Status.SeenAt != nil {
		t.Errorf("the paused machine's switch was changed: position %s, status %+v", sw.Spec.Position, sw.Status)
	}
	if owner := metav1.GetControllerOf(getSwitch(t, namespace, "extra")); owner != nil {
		t.Errorf("the paused machine adopted a switch: %+v", owner)
	}
	setPaused(t, newMachine(namespace, "m"), false)
	switches.untilObject(t, "m-1", "is turned down", flipped)
	waitForTotal(t, namespace, "m", 2)
}

func testPausedMachineDeleted(t *testing.T, namespace string) {
	slowMachine(t, namespace, "m", 2)
	waitForPositions(t, namespace, "m", "dd", defaultTimeout)
	turnUp(t, namespace, "m-0")
	waitForPositions(t, namespace, "m", "ud", defaultTimeout)
	setPaused(t, newMachine(namespace, "m"), true)
	machines, switches := recordMachines(t, namespace), recordSwitches(t, namespace)
	mustKubectl(t, "", "delete", "machine", "m", "-n", namespace)
	machines.untilDeleted(t, "m")
	if last := switches.untilDeleted(t, "m-0"); last.Spec.Position != v1beta1.PositionUp {
		t.Error("the paused machine's switch was turned down")
	}
	switches.untilDeleted(t, "m-1")
}

func testPausedSwitchUp(t *testing.T, namespace string) {
	flippingMachine(t, namespace, "m", 3, 0, 0)
	setPaused(t, newSwitch(namespace, "m-0"), true)
	switches := recordSwitches(t, namespace)
	turnUp(t, namespace, "m-0")
	up := getSwitch(t, namespace, "m-0")
	turnUp(t, namespace, "m-1")
	switches.untilObject(t, "m-1", "is turned down", flipped)
	// The status counts paused switches, too.
	waitForPositions(t, namespace, "m", "udd", defaultTimeout)
	waitUntilProcessed(t, namespace)
	if diff := cmp.Diff(up, getSwitch(t, namespace, "m-0")); diff != "" {
		t.Errorf("the paused switch was changed (-before +after):\n%s", diff)
	}
	setPaused(t, newSwitch(namespace, "m-0"), false)
	waitForPositions(t, namespace, "m", "ddd", defaultTimeout)
	switches.untilObject(t, "m-0", "is turned down", flipped)
}

func testPausedSwitchSurplus(t *testing.T, namespace string) {
	slowMachine(t, namespace, "m", 4)
	m := waitForPositions(t, namespace, "m", "dddd", defaultTimeout)
	// m-3 is the newest switch, so the operator would delete it first. One patch sets its annotation and its position.
	// If the Machine's status shows the position, the operator has seen the annotation, too.
	mergePatch(t, newSwitch(namespace, "m-3"), `{"metadata":{"annotations":{%q:"true"}},"spec":{"position":"up"}}`, v1beta1.PausedAnnotation)
	waitForPositions(t, namespace, "m", "dddu", defaultTimeout)
	mergePatch(t, newSwitch(namespace, "m-3"), `{"spec":{"position":"down"}}`)
	waitForPositions(t, namespace, "m", "dddd", defaultTimeout)

	scale(t, namespace, "m", 2)
	waitForNames(t, m, "m-0", "m-3")
	waitForTotal(t, namespace, "m", 2)
	setPaused(t, newSwitch(namespace, "m-0"), true)
	scale(t, namespace, "m", 1)
	waitUntilProcessed(t, namespace)
	waitForNames(t, m, "m-0", "m-3")
	setPaused(t, newSwitch(namespace, "m-3"), false)
	waitForNames(t, m, "m-0")
	waitForTotal(t, namespace, "m", 1)
}

func testPausedSwitchNotAdopted(t *testing.T, namespace string) {
	slowMachine(t, namespace, "m", 2)
	m := waitForPositions(t, namespace, "m", "dd", defaultTimeout)
	paused := newSwitch(namespace, "extra")
	paused.Labels = map[string]string{v1beta1.MachineLabel: "m"}
	paused.Annotations = map[string]string{v1beta1.PausedAnnotation: "true"}
	paused.Spec.Position = v1beta1.PositionUp
	if err := admin(t).Create(t.Context(), paused); err != nil {
		t.Fatal(err)
	}
	// The operator adopts the switch "other", because it is not paused. Then the Machine has three switches, and m-1 is
	// surplus.
	switches := recordSwitches(t, namespace)
	createSwitch(t, namespace, "other", "m", v1beta1.PositionUp, nil)
	switches.untilDeleted(t, "m-1")
	waitForNames(t, m, "m-0", "other")
	waitForTotal(t, namespace, "m", 2)
	if diff := cmp.Diff(paused, getSwitch(t, namespace, "extra")); diff != "" {
		t.Errorf("the paused switch was changed (-before +after):\n%s", diff)
	}
	setPaused(t, newSwitch(namespace, "extra"), false)
	eventually(t, defaultTimeout, func() (bool, string) {
		owner := metav1.GetControllerOf(getSwitch(t, namespace, "extra"))
		return owner != nil && owner.UID == m.UID, "extra is not adopted"
	})
	waitForTotal(t, namespace, "m", 2)
}

func setPaused(t *testing.T, object client.Object, paused bool) {
	t.Helper()
	value := "null"
	if paused {
		value = `"true"`
	}
	mergePatch(t, object, `{"metadata":{"annotations":{%q:%s}}}`, v1beta1.PausedAnnotation, value)
}

// waitUntilProcessed returns when the operator has processed all earlier changes in a namespace. It creates another
// Machine, turns up its switch and waits until the operator turns that switch down.
func waitUntilProcessed(t *testing.T, namespace string) {
	t.Helper()
	machine := &v1beta1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "barrier-"}}
	machine.Spec.Flip.DelaySeconds, machine.Spec.Flip.IntervalSeconds = new(int32(0)), new(int32(0))
	switches := recordSwitches(t, namespace)
	if err := admin(t).Create(t.Context(), machine); err != nil {
		t.Fatal(err)
	}
	waitForPositions(t, namespace, machine.Name, "d", defaultTimeout)
	turnUp(t, namespace, machine.Name+"-0")
	switches.untilObject(t, machine.Name+"-0", "is turned down", flipped)
}
