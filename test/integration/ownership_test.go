// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1beta1"
)

// namespacedTest is a subtest with a namespace of its own.
type namespacedTest struct {
	name string
	test func(t *testing.T, namespace string)
}

// runShared runs tests in parallel on the shared control plane, where the shared operator runs.
func runShared(t *testing.T, tests []namespacedTest) {
	t.Helper()
	useSharedCluster(t)
	runParallel(t, tests)
}

// runParallel runs tests in parallel on the control plane that the test already has.
func runParallel(t *testing.T, tests []namespacedTest) {
	t.Helper()
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.test(t, newNamespace(t))
		})
	}
}

func TestOwnership(t *testing.T) {
	runShared(t, []namespacedTest{
		{"a switch whose label is changed is released, and adopted again when the label is restored", testRelabelledAway},
		{"a switch that gets the label of another machine is adopted by that machine", testRelabelledToAnother},
		{"a new switch with the label of a machine is adopted, and a surplus switch is deleted", testAddedByLabel},
		{"surplus switches are deleted in order: switches that are down first, then the newest", testSurplusOrder},
		{"a switch that another object controls is not changed", testForeignController},
		{"a switch that a user deletes is replaced under the lowest free name", testDeletedByHand},
		{"a switch is replaced after a user removes its owner reference and changes its label", testTakenAway},
		{"a name that is already taken is skipped", testTakenNames},
		{"machines of the same name in two namespaces do not change each other's switches", testNamespacesApart},
	})
}

// TestNameTakenBeforeCacheUpdate creates a Switch that takes the first name of a Machine. The operator's cache receives
// that Switch 4 s later. Until then, the API server rejects the name, and the operator retries with growing delays.
func TestNameTakenBeforeCacheUpdate(t *testing.T) {
	useExclusiveCluster(t)
	requests := newRequestCounter()
	runOperatorFor(t, operatorOptions{transport: func(config *rest.Config) {
		config.Wrap(requests.wrap)
		config.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return laggingWatch{next, "/switches", 4 * time.Second}
		})
	}})
	namespace := newNamespace(t)
	createSwitch(t, namespace, "m-0", "", v1beta1.PositionDown, nil)
	m := createMachine(t, namespace, "m", nil)
	waitForNames(t, m, "m-1")
	waitForTotal(t, namespace, "m", 1)
	requests.waitUntilIdle(t)
	// The delay starts at 5 ms and doubles each time: ten delays take 5 s.
	if refused := requests.of(namespace)["POST switches 409"]; refused < 1 || refused > 12 {
		t.Errorf("the API server rejected the name %d times, want 1 to 12", refused)
	}
}

func testRelabelledAway(t *testing.T, namespace string) {
	slowMachine(t, namespace, "m", 3)
	m := waitForPositions(t, namespace, "m", "ddd", defaultTimeout)

	setLabel(t, namespace, "m-1", "other")
	waitForEvent(t, m, v1beta1.EventReleased)
	waitForNames(t, m, "m-0", "m-2", "m-3")
	if owner := metav1.GetControllerOf(getSwitch(t, namespace, "m-1")); owner != nil {
		t.Errorf("m-1 is still controlled by %s", owner.Name)
	}
	waitForTotal(t, namespace, "m", 3)

	setLabel(t, namespace, "m-1", "m")
	waitForEvent(t, m, v1beta1.EventAdopted)
	// m-3 replaced m-1. Now m-3 is the newest switch, so the operator deletes m-3.
	waitForNames(t, m, "m-0", "m-1", "m-2")
	waitForTotal(t, namespace, "m", 3)
}

func testRelabelledToAnother(t *testing.T, namespace string) {
	slowMachine(t, namespace, "a", 2)
	slowMachine(t, namespace, "b", 1)
	a, b := waitForPositions(t, namespace, "a", "dd", defaultTimeout), waitForPositions(t, namespace, "b", "d", defaultTimeout)
	// The operator deletes surplus switches that are down before switches that are up. So it deletes b-0 and keeps a-0.
	turnUp(t, namespace, "a-0")
	waitForPositions(t, namespace, "a", "ud", defaultTimeout)

	setLabel(t, namespace, "a-0", "b")
	waitForNames(t, b, "a-0")
	waitForNames(t, a, "a-1", "a-2")
	waitForPositions(t, namespace, "a", "dd", defaultTimeout)
	waitForPositions(t, namespace, "b", "u", defaultTimeout)
	waitForEvent(t, a, v1beta1.EventReleased)
	waitForEvent(t, b, v1beta1.EventAdopted)
}

func testAddedByLabel(t *testing.T, namespace string) {
	slowMachine(t, namespace, "m", 2)
	m := waitForPositions(t, namespace, "m", "dd", defaultTimeout)
	switches := recordSwitches(t, namespace)

	createSwitch(t, namespace, "extra", "m", v1beta1.PositionUp, nil)
	waitForEvent(t, m, v1beta1.EventAdopted)
	switches.untilDeleted(t, "m-1")
	waitForNames(t, m, "extra", "m-0")
	waitForPositions(t, namespace, "m", "ud", defaultTimeout)
	added := slices.DeleteFunc(slices.Clone(switches.all(t)), func(c change[*v1beta1.Switch]) bool { return c.kind != watch.Added })
	if len(added) != 1 {
		t.Errorf("switches were created, want only the switch of the user:\n%s", describe(added))
	}
}

func testSurplusOrder(t *testing.T, namespace string) {
	slowMachine(t, namespace, "m", 3)
	m := waitForPositions(t, namespace, "m", "ddd", defaultTimeout)
	scale(t, namespace, "m", 10)
	waitForPositions(t, namespace, "m", strings.Repeat("d", 10), defaultTimeout)
	names := make([]string, 10)
	for i := range names {
		names[i] = fmt.Sprintf("m-%d", i)
	}
	waitForNames(t, m, names...)

	turnUp(t, namespace, "m-7")
	waitForPositions(t, namespace, "m", "dddddddudd", defaultTimeout)
	scale(t, namespace, "m", 2)
	waitForNames(t, m, "m-0", "m-7")
	waitForPositions(t, namespace, "m", "du", defaultTimeout)

	scale(t, namespace, "m", 4)
	waitForNames(t, m, "m-0", "m-1", "m-2", "m-7")
	waitForPositions(t, namespace, "m", "dddu", defaultTimeout)
}

func testForeignController(t *testing.T, namespace string) {
	// The owner has to exist: the garbage collector deletes objects whose owner does not exist.
	owner := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "owner"}}
	if err := admin(t).Create(t.Context(), owner); err != nil {
		t.Fatal(err)
	}
	ref := metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID, Controller: new(true)}
	foreign := createSwitch(t, namespace, "foreign", "m", v1beta1.PositionUp, &ref)
	createMachine(t, namespace, "m", func(spec *v1beta1.MachineSpec) {
		spec.Switches.Count = 2
		spec.Flip.DelaySeconds, spec.Flip.IntervalSeconds = new(int32(0)), new(int32(0))
	})
	m := waitForPositions(t, namespace, "m", "dd", defaultTimeout)
	// While the foreign switch is up, the operator turns m-0 down. Then the test scales the Machine and deletes it.
	switches := recordSwitches(t, namespace)
	turnUp(t, namespace, "m-0")
	switches.untilObject(t, "m-0", "is turned down", flipped)
	scale(t, namespace, "m", 1)
	waitForNames(t, m, "m-0")
	waitForTotal(t, namespace, "m", 1)
	machines := recordMachines(t, namespace)
	mustKubectl(t, "", "delete", "machine", "m", "-n", namespace)
	machines.untilDeleted(t, "m")
	switches.untilDeleted(t, "m-0")

	if diff := cmp.Diff(foreign, getSwitch(t, namespace, "foreign")); diff != "" {
		t.Errorf("the foreign switch was changed (-before +after):\n%s", diff)
	}
}

func testDeletedByHand(t *testing.T, namespace string) {
	slowMachine(t, namespace, "m", 4)
	m := waitForPositions(t, namespace, "m", "dddd", defaultTimeout)
	gone := getSwitch(t, namespace, "m-1")
	mustKubectl(t, "", "delete", "switch", "m-1", "-n", namespace)
	eventually(t, defaultTimeout, func() (bool, string) {
		names, uids := namesAndUIDs(t, m)
		return slices.Equal(names, []string{"m-0", "m-1", "m-2", "m-3"}) && !slices.Contains(uids, gone.UID), fmt.Sprint(names)
	})
	waitForTotal(t, namespace, "m", 4)
}

func testTakenAway(t *testing.T, namespace string) {
	// From this name, the operator cannot derive the name of the Machine. From m-0, it could.
	createSwitch(t, namespace, "extra", "m", v1beta1.PositionDown, nil)
	slowMachine(t, namespace, "m", 2)
	m := waitForPositions(t, namespace, "m", "dd", defaultTimeout)
	waitForNames(t, m, "extra", "m-0")
	mergePatch(t, newSwitch(namespace, "extra"), `{"metadata":{"ownerReferences":null,"labels":{%q:"other"}}}`, v1beta1.MachineLabel)
	waitForNames(t, m, "m-0", "m-1")
}

func testTakenNames(t *testing.T, namespace string) {
	owner := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "owner"}}
	if err := admin(t).Create(t.Context(), owner); err != nil {
		t.Fatal(err)
	}
	ref := metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID, Controller: new(true)}
	taken := []*v1beta1.Switch{
		createSwitch(t, namespace, "m-1", "", v1beta1.PositionUp, nil),
		createSwitch(t, namespace, "m-2", "", v1beta1.PositionUp, &ref),
	}
	slowMachine(t, namespace, "m", 3)
	m := waitForPositions(t, namespace, "m", "ddd", defaultTimeout)
	waitForNames(t, m, "m-0", "m-3", "m-4")
	for _, sw := range taken {
		if diff := cmp.Diff(sw, getSwitch(t, namespace, sw.Name)); diff != "" {
			t.Errorf("%s was changed (-before +after):\n%s", sw.Name, diff)
		}
	}
}

func testNamespacesApart(t *testing.T, namespace string) {
	other := newNamespace(t)
	slowMachine(t, namespace, "m", 3)
	slowMachine(t, other, "m", 3)
	m := waitForPositions(t, namespace, "m", "ddd", defaultTimeout)
	waitForPositions(t, other, "m", "ddd", defaultTimeout)
	machines, switches := recordMachines(t, other), recordSwitches(t, other)

	setLabel(t, namespace, "m-2", "other")
	waitForNames(t, m, "m-0", "m-1", "m-3")
	createSwitch(t, namespace, "extra", "m", v1beta1.PositionUp, nil)
	waitForPositions(t, namespace, "m", "udd", defaultTimeout)
	scale(t, namespace, "m", 1)
	waitForNames(t, m, "extra")
	mustKubectl(t, "", "delete", "machine", "m", "-n", namespace)

	if changes := machines.all(t); len(changes) > 0 {
		t.Errorf("the machine in the other namespace was changed:\n%s", describe(changes))
	}
	if changes := switches.all(t); len(changes) > 0 {
		t.Errorf("switches in the other namespace were changed:\n%s", describe(changes))
	}
}

// slowMachine creates a Machine with a flip delay of an hour, so no switch becomes due during a test.
func slowMachine(t *testing.T, namespace, name string, count int32) *v1beta1.Machine {
	t.Helper()
	return createMachine(t, namespace, name, func(spec *v1beta1.MachineSpec) {
		spec.Switches.Count = count
		spec.Flip.DelaySeconds = new(int32(3600))
	})
}

// createSwitch creates a Switch. If machine is empty, it has no machine label. If owner is nil, it has no owner.
func createSwitch(t *testing.T, namespace, name, machine string, position v1beta1.Position, owner *metav1.OwnerReference) *v1beta1.Switch {
	t.Helper()
	sw := &v1beta1.Switch{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       v1beta1.SwitchSpec{Position: position},
	}
	if machine != "" {
		sw.Labels = map[string]string{v1beta1.MachineLabel: machine}
	}
	if owner != nil {
		sw.OwnerReferences = []metav1.OwnerReference{*owner}
	}
	if err := admin(t).Create(t.Context(), sw); err != nil {
		t.Fatal(err)
	}
	return sw
}

// mergePatch applies a JSON merge patch to an object, as kubectl patch --type=merge does.
func mergePatch(t *testing.T, object client.Object, format string, args ...any) {
	t.Helper()
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, format, args...))
	if err := admin(t).Patch(t.Context(), object, patch); err != nil {
		t.Fatal(err)
	}
}

func newMachine(namespace, name string) *v1beta1.Machine {
	return &v1beta1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}

func newSwitch(namespace, name string) *v1beta1.Switch {
	return &v1beta1.Switch{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}

// setLabel sets the machine label of a Switch.
func setLabel(t *testing.T, namespace, name, machine string) {
	t.Helper()
	mergePatch(t, newSwitch(namespace, name), `{"metadata":{"labels":{%q:%q}}}`, v1beta1.MachineLabel, machine)
}

func scale(t *testing.T, namespace, name string, count int) {
	t.Helper()
	mustKubectl(t, "", "scale", "machine", name, "-n", namespace, fmt.Sprintf("--replicas=%d", count))
}

// flipped reports whether the operator has turned a switch down.
func flipped(sw *v1beta1.Switch) bool {
	return sw.Spec.Position == v1beta1.PositionDown && sw.Annotations[v1beta1.FlippedAtAnnotation] != ""
}

// namesAndUIDs returns the names and UIDs of the switches that a Machine controls.
func namesAndUIDs(t *testing.T, m *v1beta1.Machine) (names []string, uids []types.UID) {
	t.Helper()
	for _, sw := range switchesOf(t, m) {
		names, uids = append(names, sw.Name), append(uids, sw.UID)
	}
	return names, uids
}

// waitForNames waits until a Machine controls exactly the switches with these names. The names must be sorted
// alphabetically.
func waitForNames(t *testing.T, m *v1beta1.Machine, want ...string) {
	t.Helper()
	eventually(t, defaultTimeout, func() (bool, string) {
		got, _ := namesAndUIDs(t, m)
		return slices.Equal(got, want), fmt.Sprintf("%s controls %v, want %v", m.Name, got, want)
	})
}

// waitForTotal waits until status.switches.total equals total. The condition Scaled must be True for the current
// generation.
func waitForTotal(t *testing.T, namespace, name string, total int32) {
	t.Helper()
	eventually(t, defaultTimeout, func() (bool, string) {
		m := getMachine(t, namespace, name)
		scaled := slices.ContainsFunc(m.Status.Conditions, func(c metav1.Condition) bool {
			return c.Type == v1beta1.ConditionScaled && c.Status == metav1.ConditionTrue && c.ObservedGeneration == m.Generation
		})
		return m.Status.Switches.Total == total && scaled, fmt.Sprintf("status %+v", m.Status)
	})
}

// eventsOn lists the events on an object with the given reason.
func eventsOn(t *testing.T, object client.Object, reason string) []eventsv1.Event {
	t.Helper()
	list := &eventsv1.EventList{}
	if err := admin(t).List(t.Context(), list, client.InNamespace(object.GetNamespace())); err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(list.Items, func(event eventsv1.Event) bool {
		return event.Regarding.UID != object.GetUID() || event.Reason != reason
	})
}

func waitForEvent(t *testing.T, object client.Object, reason string) {
	t.Helper()
	eventually(t, defaultTimeout, func() (bool, string) {
		return len(eventsOn(t, object, reason)) > 0, "there is no event " + reason + " on " + object.GetName()
	})
}
