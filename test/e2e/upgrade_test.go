// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"container.training/useless/api/useless/v1beta1"
)

// TestUpgrade is for people who have machines from when there was only v1alpha1.
func TestUpgrade(t *testing.T) {
	const count = 200
	publishBundle(t, previousVersion, onlyOldVersion(t))
	must(t, "kubectl", "create", "namespace", system)
	t.Cleanup(func() { sweep(t) })
	runBundle(t, bundleImage(previousVersion))
	checkSucceeded(t, system, previousVersion)

	user := newNamespace(t, "upgrade")
	mustRead(t, manyMachines(count), "kubectl", "create", "-n", user, "-f", "-")
	before := get[unstructured.UnstructuredList](t, "-n", user, oldMachines)

	polls := []*poll{
		startPoll(t, "reads in v1alpha1", listMachines("v1alpha1", user, count)),
		startPoll(t, "reads in v1beta1", onceReadable(t, listMachines("v1beta1", user, count))),
	}
	must(t, "operator-sdk", "run", "bundle-upgrade", bundleImage(currentVersion), "--namespace", system, "--timeout", "3m")
	checkSucceeded(t, system, currentVersion)
	must(t, "kubectl", "wait", "-n", user, "--for=condition=Ready", "machine", "--all", "--timeout=2m")
	for _, crd := range []string{"machines.useless.container.training", "switches.useless.container.training"} {
		eventually(t, 2*time.Minute, func() string {
			stored := get[apiextensionsv1.CustomResourceDefinition](t, "crd", crd).Status.StoredVersions
			return cmp.Diff([]string{"v1beta1"}, stored)
		})
	}
	for _, p := range polls {
		p.mustNotHaveFailed(t)
	}

	after := get[unstructured.UnstructuredList](t, "-n", user, oldMachines)
	if diff := cmp.Diff(summaries(before), summaries(after)); diff != "" {
		t.Errorf("the upgrade has changed what people wrote (-before +after):\n%s", diff)
	}
	for _, machine := range get[v1beta1.MachineList](t, "-n", user, newMachines).Items {
		if want, got := machine.Labels["number"], fmt.Sprint(*machine.Spec.Flip.DelaySeconds); got != want {
			t.Errorf("%s has a delay of %s seconds in v1beta1, want %s", machine.Name, got, want)
		}
	}
	must(t, "kubectl", "wait", "-n", system, "--for=condition=Upgradeable", "operatorcondition/"+packageName+".v"+currentVersion, "--timeout=1m")
}

// manyMachines are machines in v1alpha1 of which no two are the same.
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

// onceReadable takes nothing for a failure before the first success. OLM applies the CustomResourceDefinitions first and
// starts the operator that converts then, so a version that is new is served some time before anybody can read it.
func onceReadable(t *testing.T, ask func(context.Context, dynamic.Interface) error) func(context.Context, dynamic.Interface) error {
	t.Helper()
	var served time.Time
	var first error
	readable := false
	return func(ctx context.Context, client dynamic.Interface) error {
		err := ask(ctx, client)
		if readable {
			return err
		}
		if served.IsZero() && (err == nil || !strings.Contains(err.Error(), "could not find the requested resource")) {
			served, first = time.Now(), err
		}
		if readable = err == nil; readable {
			t.Logf("v1beta1 was served %.1f s before it could be read: %v", time.Since(served).Seconds(), first)
		}
		return nil
	}
}

// summaries has what people wrote of each machine, and its identity.
func summaries(list unstructured.UnstructuredList) map[string]any {
	all := map[string]any{}
	for _, item := range list.Items {
		all[item.GetName()] = []any{item.GetUID(), item.GetCreationTimestamp(), item.GetLabels(), item.GetAnnotations(), item.Object["spec"]}
	}
	return all
}
