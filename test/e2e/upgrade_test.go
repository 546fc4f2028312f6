// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"container.training/useless/api/useless/v1beta1"
)

// converterBound limits how long conversions may fail during an upgrade with OLM. OLM first applies the
// CustomResourceDefinitions, without the CA bundle of the conversion webhook. Then it starts the new version of the
// operator, which has another CA.
const converterBound = 45 * time.Second

// TestUpgrade upgrades from a version that has only v1alpha1, with existing machines and switches.
func TestUpgrade(t *testing.T) {
	const count = 200
	publishBundle(t, previousVersion, onlyOldVersion(t))
	must(t, "kubectl", "create", "namespace", system)
	t.Cleanup(func() { sweep(t) })
	runBundle(t, bundleImage(previousVersion))
	checkSucceeded(t, system, previousVersion)

	user := newNamespace(t, "upgrade")
	mustRead(t, manyMachines(count), "kubectl", "create", "-n", user, "-f", "-")
	mustRead(t, straySwitches, "kubectl", "create", "-n", user, "-f", "-")
	before := get[unstructured.UnstructuredList](t, "-n", user, oldMachines)
	switchesBefore := get[v1beta1.SwitchList](t, "-n", user, oldSwitches)

	lists := startPoll(t, "lists in v1alpha1", listMachines("v1alpha1", user, count))
	converted := []*poll{
		// As soon as the new version leads, it stores the machines in v1beta1. Then each get needs a conversion. Until
		// the last old Pod has stopped, the API server may call an old Pod, which has no webhooks.
		startPoll(t, "gets in v1alpha1", getMachine("v1alpha1", user, "machine-7")),
		// While the API server fills its cache for v1beta1, a request waits for up to 10 s.
		startPoll(t, "lists in v1beta1", onceServed(listMachines("v1beta1", user, count))),
		startPoll(t, "gets in v1beta1", onceServed(getMachine("v1beta1", user, "machine-7"))),
		startPoll(t, "writes in v1alpha1", createMachine("v1alpha1", user)),
	}
	must(t, "operator-sdk", "run", "bundle-upgrade", bundleImage(currentVersion), "--namespace", system, "--timeout", "5m")
	checkSucceeded(t, system, currentVersion)
	must(t, "kubectl", "wait", "-n", user, "--for=condition=Ready", "machine", "--all", "--timeout=2m")
	awaitMigration(t)
	lists.mustHaveWaitedFor(t, converted[0])
	for _, p := range converted {
		p.mustHaveFailedAtMost(t, converterBound)
	}

	after := get[unstructured.UnstructuredList](t, "-n", user, oldMachines)
	if diff := cmp.Diff(summaries(before), summaries(after)); diff != "" {
		t.Errorf("the upgrade changed user data (-before +after):\n%s", diff)
	}
	for _, machine := range get[v1beta1.MachineList](t, "-n", user, newMachines).Items {
		if want, got := machine.Labels["number"], fmt.Sprint(*machine.Spec.Flip.DelaySeconds); got != want {
			t.Errorf("%s has a delay of %s seconds in v1beta1, want %s", machine.Name, got, want)
		}
	}
	checkAdopted(t, user, switchesBefore)
	checkStored(t, user, count)
}

// straySwitches are switches without an owner. Their machines adopt them after the upgrade.
const straySwitches = `
apiVersion: useless.container.training/v1alpha1
kind: Switch
metadata: {name: machine-1-0, labels: {machine: machine-1}}
spec: {position: up}
---
apiVersion: useless.container.training/v1alpha1
kind: Switch
metadata: {name: by-hand, labels: {machine: machine-4}}
`

// awaitMigration waits until the CustomResourceDefinitions and the OperatorCondition show that v1alpha1 is not stored
// any more.
func awaitMigration(t *testing.T) {
	t.Helper()
	for _, crd := range []string{"machines.useless.container.training", "switches.useless.container.training"} {
		eventually(t, 2*time.Minute, func() string {
			stored := get[apiextensionsv1.CustomResourceDefinition](t, "crd", crd).Status.StoredVersions
			return cmp.Diff([]string{"v1beta1"}, stored)
		})
	}
	must(t, "kubectl", "wait", "-n", system, "--for=condition=Upgradeable", "operatorcondition/"+packageName+".v"+currentVersion, "--timeout=1m")
}

// checkAdopted checks that the switches from before the upgrade still exist, and that their machines control them.
func checkAdopted(t *testing.T, namespace string, before v1beta1.SwitchList) {
	t.Helper()
	if len(before.Items) != 2 {
		t.Fatalf("got %d switches before the upgrade, want 2", len(before.Items))
	}
	for _, old := range before.Items {
		now := get[v1beta1.Switch](t, "-n", namespace, "switches", old.Name)
		if now.UID != old.UID || !now.CreationTimestamp.Equal(&old.CreationTimestamp) {
			t.Errorf("switch %s was recreated", old.Name)
		}
		if owner := metav1.GetControllerOf(&now); owner == nil || owner.Name != old.Labels["machine"] {
			t.Errorf("switch %s is controlled by %v, want %s", old.Name, owner, old.Labels["machine"])
		}
		if now.Spec.Position != v1beta1.PositionDown {
			t.Errorf("switch %s is %s, want down: all machines are at rest", old.Name, now.Spec.Position)
		}
	}
}

// checkStored removes the operator, and then reads all machines in v1beta1. Without a conversion webhook, the API
// server cannot convert them, so it returns the stored objects. This check does not depend on a status that the
// operator writes.
func checkStored(t *testing.T, namespace string, count int) {
	t.Helper()
	must(t, "kubectl", "delete", "clusterserviceversion", "-n", system, packageName+".v"+currentVersion)
	must(t, "kubectl", "wait", "-n", system, "--for=delete", "pod", "-l", "app.kubernetes.io/name=useless-operator", "--timeout=1m")
	for _, machine := range get[v1beta1.MachineList](t, "-n", namespace, newMachines).Items {
		if got := fmt.Sprint(*machine.Spec.Flip.DelaySeconds); got != machine.Labels["number"] || machine.Spec.Switches.Selector == nil {
			t.Errorf("%s is not stored in v1beta1: %+v", machine.Name, machine.Spec)
		}
		count--
	}
	if count != 0 {
		t.Errorf("%d machines are missing", count)
	}
}

// manyMachines returns manifests of different machines in v1alpha1.
func manyMachines(count int) string {
	var all strings.Builder
	for i := range count {
		fmt.Fprintf(&all, `---
apiVersion: useless.container.training/v1alpha1
kind: Machine
metadata: {name: machine-%[1]d, labels: {number: "%[1]d"}, annotations: {example.com/number: "%[1]d"}}
spec:
  switches: %[2]d
  selector: {matchLabels: {machine: machine-%[1]d}}
  template: {metadata: {labels: {room: room-%[1]d}}}
  flipDelaySeconds: %[1]d
  flipIntervalSeconds: %[2]d
`, i, 1+i%3)
	}
	return all.String()
}

// summaries returns the user data and the identity of each machine, by name.
func summaries(list unstructured.UnstructuredList) map[string]any {
	all := map[string]any{}
	for _, item := range list.Items {
		all[item.GetName()] = []any{item.GetUID(), item.GetCreationTimestamp(), item.GetLabels(), item.GetAnnotations(), item.Object["spec"]}
	}
	return all
}
