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

// gitOpsTools have the arguments with which GitOps tools apply manifests. Argo CD applies on the client's side by default,
// and on the server's side with the option ServerSideApply=true. Flux always applies on the server's side. Both tools
// overwrite the fields of other managers.
var gitOpsTools = []struct {
	name, manager string
	flags         []string
	afterRemoval  int32 // the replicas of a stopped Deployment after they were removed from the manifest
}{
	{"Argo CD", "argocd-controller", nil, 1},
	{"Argo CD with ServerSideApply=true", "argocd-controller", []string{"--server-side", "--force-conflicts"}, 0},
	{"Flux", "kustomize-controller", []string{"--server-side", "--force-conflicts"}, 0},
}

// TestScheduleGitOps applies the manifests of docs/schedule.md as GitOps tools do.
func TestScheduleGitOps(t *testing.T) {
	var tests []namespacedTest
	for _, tool := range gitOpsTools {
		apply := func(t *testing.T, d *appsv1.Deployment) {
			t.Helper()
			args := append([]string{"apply", "-f", "-", "--field-manager=" + tool.manager}, tool.flags...)
			mustKubectl(t, manifestOf(t, d), args...)
		}
		tests = append(tests,
			namespacedTest{tool.name + " restores the replicas of its manifest, and the event names it",
				func(t *testing.T, namespace string) { testReplicasInManifest(t, namespace, tool.manager, apply) }},
			namespacedTest{tool.name + " does not change replicas that its manifest does not have",
				func(t *testing.T, namespace string) { testNoReplicasInManifest(t, namespace, apply) }},
			namespacedTest{tool.name + " applies a manifest from which the replicas are removed after a stop",
				func(t *testing.T, namespace string) {
					testReplicasRemovedFromManifest(t, namespace, tool.afterRemoval, apply)
				}},
			namespacedTest{tool.name + " does not change replicas that it ignores",
				func(t *testing.T, namespace string) { testReplicasIgnored(t, namespace, apply) }},
		)
	}
	runShared(t, tests)
}

type applyManifest func(*testing.T, *appsv1.Deployment)

func testReplicasInManifest(t *testing.T, namespace, manager string, apply applyManifest) {
	manifest := newDeployment(namespace, "d")
	apply(t, manifest)
	d := waitForReplicas(t, manifest, 0)
	apply(t, manifest)
	waitForEvent(t, d, v1beta1.EventScheduleOverridden)
	checkUnchanged(t, d, "whose replicas a tool has restored")
	if got := *getDeployment(t, namespace, "d").Spec.Replicas; got != 3 {
		t.Errorf("the deployment has %d replicas, want 3", got)
	}
	want := "The workload runs, although its schedule has stopped it: " + manager + " changed it at "
	if notes := eventsOn(t, d, v1beta1.EventScheduleOverridden); len(notes) != 1 || !strings.HasPrefix(notes[0].Note, want) {
		t.Errorf("got %d events, the first %q; want one that begins with %q", len(notes), notes[0].Note, want)
	}
}

func testNoReplicasInManifest(t *testing.T, namespace string, apply applyManifest) {
	manifest := newDeployment(namespace, "d")
	manifest.Spec.Replicas = nil
	manifest.Annotations[v1beta1.StartReplicasAnnotation] = "3"
	apply(t, manifest)
	d := waitForReplicas(t, manifest, 0)
	apply(t, manifest)
	checkUnchanged(t, d, "that was applied after its stop")

	manifest.Annotations[v1beta1.StartScheduleAnnotation] = timeOfDayIn(-time.Minute)
	apply(t, manifest)
	d = waitForReplicas(t, manifest, 3)
	apply(t, manifest)
	checkUnchanged(t, d, "that was applied after its start")
	if got := *getDeployment(t, namespace, "d").Spec.Replicas; got != 3 {
		t.Errorf("the deployment has %d replicas, want 3", got)
	}
}

// testReplicasRemovedFromManifest removes the replicas from a manifest while a Deployment is stopped. Either the value
// stays, or Kubernetes sets its default.
func testReplicasRemovedFromManifest(t *testing.T, namespace string, want int32, apply applyManifest) {
	manifest := newDeployment(namespace, "d")
	apply(t, manifest)
	waitForReplicas(t, manifest, 0)
	manifest.Spec.Replicas = nil
	apply(t, manifest)
	if got := *getDeployment(t, namespace, "d").Spec.Replicas; got != want {
		t.Errorf("the deployment has %d replicas, want %d", got, want)
	}
	manifest.Annotations[v1beta1.StartScheduleAnnotation] = timeOfDayIn(-time.Minute)
	apply(t, manifest)
	waitForReplicas(t, manifest, 3)
}

// testReplicasIgnored applies the live value, as Argo CD does with ignoreDifferences and RespectIgnoreDifferences=true.
func testReplicasIgnored(t *testing.T, namespace string, apply applyManifest) {
	manifest := newDeployment(namespace, "d")
	apply(t, manifest)
	d := waitForReplicas(t, manifest, 0)
	manifest.Spec.Replicas = d.Spec.Replicas
	apply(t, manifest)
	checkUnchanged(t, d, "that was applied with its live replicas")
	manifest.Annotations[v1beta1.StartScheduleAnnotation] = timeOfDayIn(-time.Minute)
	apply(t, manifest)
	waitForReplicas(t, manifest, 3)
}
