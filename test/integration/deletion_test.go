// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/hack/cluster/standin"
)

func TestDeletion(t *testing.T) {
	runShared(t, []namespacedTest{
		{"switches are turned down before the machine is deleted, and are deleted after the machine", testPoweredDown},
		{"with foreground deletion, switches are deleted before the machine", testForeground},
		{"orphaned switches stay until a new machine of the same name adopts them", testOrphans},
		{"a recreated machine gets new switches while the old ones are terminating", testRecreatedWhileTerminating},
		{"a machine recreated immediately gets new switches", testRecreatedAtOnce},
		{"the operator removes only its own finalizer", testForeignFinalizer},
	})
}

func testPoweredDown(t *testing.T, namespace string) {
	slowMachine(t, namespace, "m", 3)
	m := waitForPositions(t, namespace, "m", "ddd", defaultTimeout)
	turnUp(t, namespace, "m-0")
	turnUp(t, namespace, "m-2")
	waitForPositions(t, namespace, "m", "udu", defaultTimeout)
	machines, switches := recordMachines(t, namespace), recordSwitches(t, namespace)

	mustKubectl(t, "", "delete", "machine", "m", "-n", namespace)
	gone := machines.untilDeleted(t, "m")
	for _, name := range []string{"m-0", "m-2"} {
		down := switches.untilObject(t, name, "is turned down", flipped)
		if !before(t, down, gone) {
			t.Errorf("%s was turned down at revision %s, after the machine was deleted at %s",
				name, down.ResourceVersion, gone.ResourceVersion)
		}
	}
	for _, name := range []string{"m-0", "m-1", "m-2"} {
		if sw := switches.untilDeleted(t, name); !before(t, gone, sw) {
			t.Errorf("%s was deleted at revision %s, before the machine at %s", name, sw.ResourceVersion, gone.ResourceVersion)
		}
	}
	noneAdded(t, switches.all(t))
	waitForEvent(t, m, v1beta1.EventPoweredDown)
}

func testForeground(t *testing.T, namespace string) {
	slowMachine(t, namespace, "m", 3)
	waitForPositions(t, namespace, "m", "ddd", defaultTimeout)
	turnUp(t, namespace, "m-1")
	waitForPositions(t, namespace, "m", "dud", defaultTimeout)
	machines, switches := recordMachines(t, namespace), recordSwitches(t, namespace)

	mustKubectl(t, "", "delete", "machine", "m", "-n", namespace, "--cascade=foreground")
	gone := machines.untilDeleted(t, "m")
	for _, name := range []string{"m-0", "m-1", "m-2"} {
		if sw := switches.untilDeleted(t, name); !before(t, sw, gone) {
			t.Errorf("%s was deleted at revision %s, after the machine at %s", name, sw.ResourceVersion, gone.ResourceVersion)
		}
	}
	noneAdded(t, switches.all(t))
}

func testOrphans(t *testing.T, namespace string) {
	slowMachine(t, namespace, "m", 3)
	m := waitForPositions(t, namespace, "m", "ddd", defaultTimeout)
	_, kept := namesAndUIDs(t, m)
	machines, switches := recordMachines(t, namespace), recordSwitches(t, namespace)

	mustKubectl(t, "", "delete", "machine", "m", "-n", namespace, "--cascade=orphan")
	gone := machines.untilDeleted(t, "m")
	switches.until(t, "the switches have no owner", func(changes []change[*v1beta1.Switch]) bool {
		return len(changes) >= 3
	})
	// Wait until another machine is ready. In this time, a faulty operator would adopt the orphaned switches.
	slowMachine(t, namespace, "other", 1)
	waitForPositions(t, namespace, "other", "d", defaultTimeout)
	for _, change := range switches.all(t) {
		if sw := change.object; slices.Contains(kept, sw.UID) && (change.kind != watch.Modified || len(sw.OwnerReferences) > 0) {
			t.Errorf("%s was %s, and has owners %v", sw.Name, change.kind, sw.OwnerReferences)
		} else if !before(t, sw, gone) && slices.Contains(kept, sw.UID) {
			t.Errorf("%s was changed after its machine was deleted", sw.Name)
		}
	}

	again := slowMachine(t, namespace, "m", 3)
	waitForPositions(t, namespace, "m", "ddd", defaultTimeout)
	if _, adopted := namesAndUIDs(t, again); !slices.Equal(adopted, kept) {
		t.Errorf("the new machine has switches %v, want the orphaned ones %v", adopted, kept)
	}
}

func testForeignFinalizer(t *testing.T, namespace string) {
	const foreignFinalizer = "example.com/hold"
	slowMachine(t, namespace, "m", 1)
	waitForPositions(t, namespace, "m", "d", defaultTimeout)
	machines := recordMachines(t, namespace)
	mergePatch(t, newMachine(namespace, "m"), `{"metadata":{"finalizers":[%q,%q]}}`,
		v1beta1.MachineFinalizer, foreignFinalizer)
	mustKubectl(t, "", "delete", "machine", "m", "-n", namespace, "--wait=false")
	machines.untilObject(t, "m", "has only the foreign finalizer", func(m *v1beta1.Machine) bool {
		return slices.Equal(m.Finalizers, []string{foreignFinalizer})
	})
	mergePatch(t, newMachine(namespace, "m"), `{"metadata":{"finalizers":null}}`)
	machines.untilDeleted(t, "m")
}

// TestNamespaceDeletion deletes a namespace with Machines and VirtualMachines. No finalizer may block the deletion. The
// test has an exclusive control plane, because Kubernetes deletes at most ten namespaces at the same time. On the
// shared control plane, dozens of namespaces wait for their deletion.
func TestNamespaceDeletion(t *testing.T) {
	useExclusiveCluster(t)
	runOperatorFor(t, operatorOptions{})
	namespace := newNamespace(t)
	for _, name := range []string{"a", "b", "c"} {
		slowMachine(t, namespace, name, 3)
		createVirtualMachine(t, namespace, name, standin.Fate{})
	}
	for _, name := range []string{"a", "b", "c"} {
		waitForPositions(t, namespace, name, "ddd", defaultTimeout)
		turnUp(t, namespace, name+"-1")
		waitForPositions(t, namespace, name, "dud", defaultTimeout)
		waitForActive(t, newVirtualMachine(namespace, name))
	}
	setPaused(t, newVirtualMachine(namespace, "b"), true)
	mustKubectl(t, "", "delete", "namespace", namespace, "--wait=false")
	eventually(t, 2*defaultTimeout, func() (bool, string) {
		object := &corev1.Namespace{}
		err := admin(t).Get(t.Context(), client.ObjectKey{Name: namespace}, object)
		return apierrors.IsNotFound(err), fmt.Sprintf("%+v", object.Status) // the conditions describe why the deletion waits
	})
}

// TestDeletionAndLag deletes Machines while the operator's watch of Machines is 2 s late. The operator sees that
// switches are orphaned or deleted before it sees that their Machine is being deleted. The operator must not create or
// adopt switches.
func TestDeletionAndLag(t *testing.T) {
	useExclusiveCluster(t)
	runOperatorFor(t, operatorOptions{transport: func(config *rest.Config) {
		config.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return laggingWatch{next, "/machines", 2 * time.Second}
		})
	}})
	namespace := newNamespace(t)
	slowMachine(t, namespace, "m", 3)
	waitForPositions(t, namespace, "m", "ddd", defaultTimeout)
	machines, switches := recordMachines(t, namespace), recordSwitches(t, namespace)
	mustKubectl(t, "", "delete", "machine", "m", "-n", namespace, "--cascade=orphan", "--wait=false")
	machines.untilDeleted(t, "m")
	changes := switches.until(t, "the switches have no owner", func(changes []change[*v1beta1.Switch]) bool {
		return len(changes) >= 3
	})
	for _, change := range changes {
		if sw := change.object; change.kind != watch.Modified || len(sw.OwnerReferences) > 0 {
			t.Errorf("%s was %s, and has owners %v", sw.Name, change.kind, sw.OwnerReferences)
		}
	}

	slowMachine(t, namespace, "n", 3)
	waitForPositions(t, namespace, "n", "ddd", defaultTimeout)
	machines, switches = recordMachines(t, namespace), recordSwitches(t, namespace)
	mustKubectl(t, "", "delete", "machine", "n", "-n", namespace, "--cascade=foreground", "--wait=false")
	machines.untilDeleted(t, "n")
	noneAdded(t, switches.all(t))
}

func testRecreatedWhileTerminating(t *testing.T, namespace string) {
	const finalizer = "useless.container.training/test"
	slowMachine(t, namespace, "m", 3)
	old := waitForPositions(t, namespace, "m", "ddd", defaultTimeout)
	names, _ := namesAndUIDs(t, old)
	for _, name := range names {
		mergePatch(t, newSwitch(namespace, name), `{"metadata":{"finalizers":[%q]}}`, finalizer)
	}
	machines, switches := recordMachines(t, namespace), recordSwitches(t, namespace)
	mustKubectl(t, "", "delete", "machine", "m", "-n", namespace, "--wait=false")
	machines.untilDeleted(t, "m")
	for _, name := range names {
		switches.untilObject(t, name, "is terminating", func(sw *v1beta1.Switch) bool {
			return !sw.DeletionTimestamp.IsZero()
		})
	}

	m := slowMachine(t, namespace, "m", 3)
	// The terminating switches still use the first three names. The operator must use the next names immediately.
	waitForNames(t, m, "m-3", "m-4", "m-5")
	waitForTotal(t, namespace, "m", 3)
	for _, name := range names {
		mergePatch(t, newSwitch(namespace, name), `{"metadata":{"finalizers":null}}`)
		switches.untilDeleted(t, name)
	}
	waitForNames(t, m, "m-3", "m-4", "m-5")
	waitForTotal(t, namespace, "m", 3)
	neverCountedOthers(t, m.UID, machines.all(t), switches.all(t))
}

func testRecreatedAtOnce(t *testing.T, namespace string) {
	slowMachine(t, namespace, "m", 5)
	waitForPositions(t, namespace, "m", "ddddd", defaultTimeout)
	machines, switches := recordMachines(t, namespace), recordSwitches(t, namespace)
	mustKubectl(t, "", "delete", "machine", "m", "-n", namespace)
	m := slowMachine(t, namespace, "m", 5)
	waitForTotal(t, namespace, "m", 5)
	waitForPositions(t, namespace, "m", "ddddd", defaultTimeout)
	eventually(t, defaultTimeout, func() (bool, string) {
		list := &v1beta1.SwitchList{}
		if err := admin(t).List(t.Context(), list, client.InNamespace(namespace)); err != nil {
			t.Fatal(err)
		}
		return len(list.Items) == 5 && len(switchesOf(t, m)) == 5, fmt.Sprintf("there are %d switches", len(list.Items))
	})
	neverCountedOthers(t, m.UID, machines.all(t), switches.all(t))
}

// noneAdded fails the test if a switch was created.
func noneAdded(t *testing.T, changes []change[*v1beta1.Switch]) {
	t.Helper()
	for _, change := range changes {
		if change.kind == watch.Added {
			t.Errorf("switch %s was created", change.object.Name)
		}
	}
}

// neverCountedOthers checks every recorded status of the Machine with this UID. It fails the test if a status counts
// more switches than the operator had created for the Machine at that time.
func neverCountedOthers(t *testing.T, uid types.UID, machines []change[*v1beta1.Machine], switches []change[*v1beta1.Switch]) {
	t.Helper()
	for _, change := range machines {
		if change.object.UID != uid {
			continue
		}
		var own int32
		for _, sw := range switches {
			if owner := metav1.GetControllerOf(sw.object); sw.kind == watch.Added && owner != nil && owner.UID == uid && before(t, sw.object, change.object) {
				own++
			}
		}
		if total := change.object.Status.Switches.Total; total > own {
			t.Errorf("the machine's status counts %d switches at revision %s, when it had %d",
				total, change.object.ResourceVersion, own)
		}
	}
}
