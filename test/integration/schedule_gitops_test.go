// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"

	"container.training/useless/api/useless/v1beta1"
)

type gitOpsTool struct {
	name, manager string
	flags         []string
	afterRemoval  int32 // the replicas of a stopped Deployment after the field was removed from the manifest
}

// gitOpsTools lists the arguments with which GitOps tools apply manifests. By default, Argo CD uses a client-side
// apply. With the option ServerSideApply=true, it uses a server-side apply. Flux always uses a server-side apply. Both
// tools overwrite the fields of other managers.
var gitOpsTools = []gitOpsTool{
	{"Argo CD", "argocd-controller", nil, 1},
	{"Argo CD with ServerSideApply=true", "argocd-controller", []string{"--server-side", "--force-conflicts"}, 0},
	{"Flux", "kustomize-controller", []string{"--server-side", "--force-conflicts"}, 0},
}

// TestScheduleGitOps applies the manifests of docs/schedule.md as GitOps tools do.
func TestScheduleGitOps(t *testing.T) {
	var tests []namespacedTest
	for _, tool := range gitOpsTools {
		tests = append(tests,
			namespacedTest{tool.name + " restores the replicas of its manifest, and the event names this tool",
				tool.testReplicasInManifest},
			namespacedTest{tool.name + " does not change replicas that its manifest does not have",
				tool.testNoReplicasInManifest},
			namespacedTest{tool.name + " applies a manifest from which the replicas are removed after a stop",
				tool.testReplicasRemovedFromManifest},
			namespacedTest{tool.name + " does not change replicas that it ignores",
				tool.testReplicasIgnored},
		)
	}
	runShared(t, tests)
}

func (tool gitOpsTool) apply(t *testing.T, d *appsv1.Deployment) {
	t.Helper()
	args := append([]string{"apply", "-f", "-", "--field-manager=" + tool.manager}, tool.flags...)
	mustKubectl(t, manifestOf(t, d), args...)
}

func (tool gitOpsTool) testReplicasInManifest(t *testing.T, namespace string) {
	t.Helper()
	manifest := newDeployment(namespace, "d")
	tool.apply(t, manifest)
	d := waitForReplicas(t, manifest, 0)
	tool.apply(t, manifest)
	waitForEvent(t, d, v1beta1.EventScheduleOverridden)
	checkUnchanged(t, d, "whose replicas a tool has restored")
	if got := *getDeployment(t, namespace, "d").Spec.Replicas; got != 3 {
		t.Errorf("the deployment has %d replicas, want 3", got)
	}
	want := "The workload runs, although its schedule has stopped it: " + tool.manager + " changed it at "
	if notes := eventsOn(t, d, v1beta1.EventScheduleOverridden); len(notes) != 1 || !strings.HasPrefix(notes[0].Note, want) {
		t.Errorf("got %d events, the first %q; want one event whose note begins with %q", len(notes), notes[0].Note, want)
	}
}

func (tool gitOpsTool) testNoReplicasInManifest(t *testing.T, namespace string) {
	t.Helper()
	manifest := newDeployment(namespace, "d")
	manifest.Spec.Replicas = nil
	manifest.Annotations[v1beta1.StartReplicasAnnotation] = "3"
	tool.apply(t, manifest)
	d := waitForReplicas(t, manifest, 0)
	tool.apply(t, manifest)
	checkUnchanged(t, d, "that was applied after its stop")

	manifest.Annotations[v1beta1.StartScheduleAnnotation] = timeOfDayIn(-time.Minute)
	tool.apply(t, manifest)
	d = waitForReplicas(t, manifest, 3)
	tool.apply(t, manifest)
	checkUnchanged(t, d, "that was applied after its start")
	if got := *getDeployment(t, namespace, "d").Spec.Replicas; got != 3 {
		t.Errorf("the deployment has %d replicas, want 3", got)
	}
}

// testReplicasRemovedFromManifest removes the replicas from a manifest while a Deployment is stopped. Either the value
// stays, or Kubernetes sets its default.
func (tool gitOpsTool) testReplicasRemovedFromManifest(t *testing.T, namespace string) {
	t.Helper()
	manifest := newDeployment(namespace, "d")
	tool.apply(t, manifest)
	waitForReplicas(t, manifest, 0)
	manifest.Spec.Replicas = nil
	tool.apply(t, manifest)
	if got := *getDeployment(t, namespace, "d").Spec.Replicas; got != tool.afterRemoval {
		t.Errorf("the deployment has %d replicas, want %d", got, tool.afterRemoval)
	}
	manifest.Annotations[v1beta1.StartScheduleAnnotation] = timeOfDayIn(-time.Minute)
	tool.apply(t, manifest)
	waitForReplicas(t, manifest, 3)
}

// testReplicasIgnored applies the current number of replicas, as Argo CD does with ignoreDifferences and
// RespectIgnoreDifferences=true.
func (tool gitOpsTool) testReplicasIgnored(t *testing.T, namespace string) {
	t.Helper()
	manifest := newDeployment(namespace, "d")
	tool.apply(t, manifest)
	d := waitForReplicas(t, manifest, 0)
	manifest.Spec.Replicas = d.Spec.Replicas
	tool.apply(t, manifest)
	checkUnchanged(t, d, "that was applied with its live replicas")
	manifest.Annotations[v1beta1.StartScheduleAnnotation] = timeOfDayIn(-time.Minute)
	tool.apply(t, manifest)
	waitForReplicas(t, manifest, 3)
}
