// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/schedule"
	"container.training/useless/test/internal/keda"
)

const pausedReplicas = "autoscaling.keda.sh/paused-replicas"

// installKEDA installs KEDA's CustomResourceDefinition of ScaledObjects until the test ends, and returns its path.
func installKEDA(t *testing.T) (crd string) {
	t.Helper()
	crd = keda.CRD(t, repository)
	t.Cleanup(func() {
		if out, err := clusterOf(t).Kubectl(context.Background(), "delete", "--ignore-not-found", "-f", crd).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	mustKubectl(t, "", "apply", "--server-side", "-f", crd)
	mustKubectl(t, "", "wait", "--for=condition=Established", "-f", crd, "--timeout=1m")
	return crd
}

// TestScaledObjects installs KEDA's CustomResourceDefinition while the operator runs, and removes it. Without -short,
// the test does this twice. The operator must pause and resume ScaledObjects without a restart.
func TestScaledObjects(t *testing.T) {
	const removed = `"installed":false`
	useExclusiveCluster(t)
	operator := startedOperator(t, "--controllers=schedule", "--schedule-kinds=scaledobjects,deployments")
	namespace := newNamespace(t)
	checkDeploymentStops(t, namespace, "before")
	rounds := 2
	if testing.Short() {
		rounds = 1
	}
	for range rounds {
		crd := installKEDA(t)
		checkScaledObject(t, namespace)
		checkDryRunOfScaledObject(t, newNamespace(t))
		mustKubectl(t, "", "delete", "-f", crd)
		eventually(t, defaultTimeout, func() (bool, string) {
			log := operator.Log()
			return strings.LastIndex(log, removed) > strings.LastIndex(log, `"installed":true`), "the operator has not noticed the removal"
		})
	}
	checkDeploymentStops(t, namespace, "after")
	// After the operator has noticed the removal, client-go must no longer log that it cannot watch ScaledObjects.
	log := operator.Log()
	if after := log[strings.LastIndex(log, removed):]; strings.Contains(after, "Failed to watch") {
		t.Errorf("the operator still watches the kind:\n%s", after)
	}
}

// checkDeploymentStops checks that the operator stops a Deployment while KEDA is not installed.
func checkDeploymentStops(t *testing.T, namespace, name string) {
	t.Helper()
	waitForReplicas(t, createDeployment(t, namespace, name, nil), 0)
}

// checkScaledObject checks that a stop pauses a ScaledObject, and that a start removes the pause. Then a user pauses
// the ScaledObject again, and one event must name the field manager.
func checkScaledObject(t *testing.T, namespace string) {
	t.Helper()
	o := createScaledObject(t, namespace)
	o = waitForWorkload(t, o, "paused", func(o *metav1.PartialObjectMetadata) bool { return o.Annotations[pausedReplicas] == "1" })
	checkEvents(t, o, v1beta1.EventScheduledStop, "Set the annotation "+pausedReplicas+" "+causeOf(o, "stop-schedule"))

	annotate(t, o, v1beta1.StopScheduleAnnotation, timeOfDayIn(time.Hour))
	o = waitForWorkload(t, o, "resumed", func(o *metav1.PartialObjectMetadata) bool {
		return o.Annotations[v1beta1.ScheduleStateAnnotation] == v1beta1.ScheduleStarted
	})
	if got, ok := o.Annotations[pausedReplicas]; ok {
		t.Errorf("after the start, the annotation %s is %q", pausedReplicas, got)
	}
	checkEvents(t, o, v1beta1.EventScheduledStart, "Removed the annotation "+pausedReplicas+" "+causeOf(o, "start-schedule"))

	mustKubectl(t, "", "annotate", "scaledobject", "events", "-n", namespace, pausedReplicas+"=0")
	waitForEvent(t, o, v1beta1.EventScheduleOverridden)
	const want = "The workload is stopped, although its schedule has started it: kubectl-annotate changed it at "
	if events := eventsOn(t, o, v1beta1.EventScheduleOverridden); len(events) != 1 || !strings.HasPrefix(events[0].Note, want) {
		t.Errorf("got %d events, the first %q; want one event whose note begins with %q", len(events), events[0].Note, want)
	}
}

// checkDryRunOfScaledObject ends a Namespace's dry run. The operator must then record the schedule of a ScaledObject,
// but must not execute the stop that it announced in the dry run.
func checkDryRunOfScaledObject(t *testing.T, namespace string) {
	t.Helper()
	annotateNamespace(t, namespace, v1beta1.DryRunAnnotation, "true")
	o := createScaledObject(t, namespace)
	waitForEvent(t, o, v1beta1.EventWouldStop)
	annotateNamespace(t, namespace, v1beta1.DryRunAnnotation, "")
	o = waitForWorkload(t, o, "recorded", func(o *metav1.PartialObjectMetadata) bool { return schedule.HasRecord(o.Annotations) })
	if got, ok := o.Annotations[pausedReplicas]; ok {
		t.Errorf("after the dry run, the annotation %s is %q", pausedReplicas, got)
	}
}

// createScaledObject creates a ScaledObject. Its last start was due two hours ago, and its last stop was due an hour
// ago.
func createScaledObject(t *testing.T, namespace string) *metav1.PartialObjectMetadata {
	t.Helper()
	mustKubectl(t, `
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata:
  name: events
  namespace: `+namespace+`
  annotations:
    useless.container.training/start-schedule: "`+timeOfDayIn(-2*time.Hour)+`"
    useless.container.training/stop-schedule: "`+timeOfDayIn(-time.Hour)+`"
    useless.container.training/stop-replicas: "1"
spec:
  scaleTargetRef: {name: events}
  triggers:
  - type: cron
    metadata: {timezone: UTC, start: 0 6 * * *, end: 0 20 * * *, desiredReplicas: "3"}
`, "apply", "-f", "-")
	o := &metav1.PartialObjectMetadata{}
	o.SetGroupVersionKind(schema.GroupVersionKind{Group: "keda.sh", Version: "v1alpha1", Kind: "ScaledObject"})
	o.SetNamespace(namespace)
	o.SetName("events")
	return waitForWorkload(t, o, "created", func(*metav1.PartialObjectMetadata) bool { return true })
}
