// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/utils/clock"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/plugin"
)

func TestPlugin(t *testing.T) {
	runShared(t, []namespacedTest{
		{"a stopped deployment is listed and explained, wakes, and sleeps until its next start", testPluginSchedule},
		{"a workload without a schedule cannot wake", testPluginUnscheduled},
		{"a deployment that sleeps starts at the next start", testPluginNextStart},
		{"an import changes the workload only with --apply", testPluginImport},
		{"flip turns the switches of a machine up", testPluginFlip},
	})
}

// useless runs the plugin as an administrator, in a namespace.
func useless(t *testing.T, namespace string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	streams, _, out, errOut := genericiooptions.NewTestIOStreams()
	command := plugin.New(streams, clock.RealClock{})
	command.SetArgs(append(args, "-n", namespace, "--kubeconfig", clusterOf(t).Kubeconfig, "--cache-dir", t.TempDir()))
	err = command.ExecuteContext(t.Context())
	return out.String(), errOut.String(), err
}

// mustPrint runs the plugin. Its output must contain all texts.
func mustPrint(t *testing.T, namespace string, args []string, texts ...string) {
	t.Helper()
	stdout, stderr, err := useless(t, namespace, args...)
	for _, text := range texts {
		if err != nil || !strings.Contains(stdout, text) {
			t.Fatalf("%v: error %v, want %q in:\n%s%s", args, err, text, stdout, stderr)
		}
	}
}

func testPluginSchedule(t *testing.T, namespace string) {
	d := waitForReplicas(t, createDeployment(t, namespace, "web", nil), 0)
	mustPrint(t, namespace, []string{"schedule", "list"}, "KIND", "Deployment   web    stopped   stop 6", "own")
	mustPrint(t, namespace, []string{"schedule", "list", "-o", "json"}, `"kind": "ScheduleReport"`, `"state": "stopped"`)
	mustPrint(t, namespace, []string{"schedule", "explain", "deploy/web"}, "State:      stopped", "stop-schedule", "> ")

	mustPrint(t, namespace, []string{"wake", "deploy/web", "--for", "2h"}, "deployments.apps/web runs for 2h\n")
	d = waitForReplicas(t, d, 3)
	mustPrint(t, namespace, []string{"schedule", "explain", "deploy", "web"}, "start-until keeps it running until")

	mustPrint(t, namespace, []string{"sleep", "deployment/web"}, "deployments.apps/web stopped\n")
	d = getDeployment(t, namespace, d.Name)
	if *d.Spec.Replicas != 0 || d.Annotations[v1beta1.OriginalReplicasAnnotation] != "3" ||
		d.Annotations[v1beta1.StartUntilAnnotation] != "" {
		t.Errorf("after sleep, the deployment has %d replicas and the annotations %v", *d.Spec.Replicas, d.Annotations)
	}
	checkUnchanged(t, d, "that sleeps")
}

func testPluginUnscheduled(t *testing.T, namespace string) {
	createDeployment(t, namespace, "web", unscheduled)
	for _, args := range [][]string{
		{"wake", "deploy/web", "--for", "1h"}, {"sleep", "deploy/web"}, {"schedule", "explain", "deploy/web"},
	} {
		if _, _, err := useless(t, namespace, args...); err == nil || !strings.Contains(err.Error(), "add one with") {
			t.Errorf("%v: error %v", args, err)
		}
	}
	if _, _, err := useless(t, namespace, "wake", "sts/none", "--for", "1h"); err == nil || !strings.Contains(err.Error(), "not found") {
		t.Errorf("a missing workload: error %v", err)
	}
	if _, _, err := useless(t, namespace, "wake", "so/none", "--for", "1h"); err == nil || !strings.Contains(err.Error(), "no kind ScaledObject") {
		t.Errorf("a missing kind: error %v", err)
	}
	if stdout, stderr, err := useless(t, namespace, "schedule", "list"); err != nil || stdout != "" ||
		!strings.Contains(stderr, "note: scaledobjects are skipped") || !strings.Contains(stderr, "To add one") {
		t.Errorf("an empty list: error %v, stdout %q, stderr %q", err, stdout, stderr)
	}
}

// testPluginNextStart changes the schedule after the sleep, so that a start is due.
func testPluginNextStart(t *testing.T, namespace string) {
	d := createDeployment(t, namespace, "web", func(d *appsv1.Deployment) {
		d.Annotations = map[string]string{v1beta1.StartScheduleAnnotation: timeOfDayIn(-time.Hour)}
	})
	d = waitForWorkload(t, d, "started", func(d *appsv1.Deployment) bool {
		return d.Annotations[v1beta1.ScheduleStateAnnotation] == v1beta1.ScheduleStarted
	})
	mustPrint(t, namespace, []string{"sleep", "deploy/web"}, "stopped")
	d = waitForReplicas(t, d, 0)
	checkUnchanged(t, d, "that sleeps although its last event was a start")
	annotate(t, d, v1beta1.StartScheduleAnnotation, timeOfDayIn(-2*time.Hour))
	waitForReplicas(t, d, 3)
}

func testPluginFlip(t *testing.T, namespace string) {
	createMachine(t, namespace, "m", func(spec *v1beta1.MachineSpec) { spec.Switches.Count = 2 })
	waitForPositions(t, namespace, "m", "dd", defaultTimeout)
	mustPrint(t, namespace, []string{"flip", "m"}, "machines.useless.container.training/m turned up\n")
	waitForPositions(t, namespace, "m", "uu", defaultTimeout)
	if _, _, err := useless(t, namespace, "flip", "none"); err == nil || !strings.Contains(err.Error(), "lists the Machines") {
		t.Errorf("a missing Machine: error %v", err)
	}
}

func testPluginImport(t *testing.T, namespace string) {
	d := createDeployment(t, namespace, "web", func(d *appsv1.Deployment) {
		d.Annotations = map[string]string{"downscaler/downscale-period": "Mon-Sun 19:00-20:00 UTC"}
	})
	const command = "kubectl annotate --overwrite deployment/web -n "
	mustPrint(t, namespace, []string{"schedule", "import"}, command, "stop-schedule=19:00")
	checkUnchanged(t, d, "of an import without --apply")
	mustPrint(t, namespace, []string{"schedule", "import", "--apply"}, command)
	waitForReplicas(t, d, 0)
}
