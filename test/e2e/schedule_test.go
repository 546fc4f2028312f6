// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
)

// office is a Deployment that a schedule starts and stops.
const office = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: office, annotations: {useless.container.training/time-zone: UTC}}
spec:
  replicas: 2
  selector: {matchLabels: {app: office}}
  template:
    metadata: {labels: {app: office}}
    spec:
      containers: [{name: desk, image: "registry.k8s.io/pause:3.10.1"}]
`

// checkSchedule sets the stop time to a minute ago, and then the start time to a minute ago. The operator acts on the
// last due time, so the test does not wait for a full minute.
func checkSchedule(t *testing.T) {
	t.Helper()
	namespace := newNamespace(t, "schedule")
	mustRead(t, office, "kubectl", "create", "-n", namespace, "-f", "-")
	must(t, "kubectl", "rollout", "status", "-n", namespace, "deployment/office", "--timeout=1m")

	justNow, halfADayOn := clockTime(-time.Minute), clockTime(12*time.Hour)
	annotateSchedule(t, namespace, halfADayOn, justNow)
	must(t, "kubectl", "wait", "-n", namespace, "deployment/office", "--for=jsonpath={.spec.replicas}=0", "--timeout=30s")
	must(t, "kubectl", "wait", "-n", namespace, "--for=delete", "pods", "-l", "app=office", "--timeout=1m")

	annotateSchedule(t, namespace, justNow, halfADayOn)
	must(t, "kubectl", "wait", "-n", namespace, "deployment/office", "--for=jsonpath={.status.readyReplicas}=2", "--timeout=1m")
	checkEvents(t, namespace, "deployment/office", `Normal +ScheduledStop`, `Normal +ScheduledStart`)

	must(t, "kubectl", "scale", "-n", namespace, "deployment/office", "--replicas=1")
	must(t, "kubectl", "wait", "-n", namespace, "deployment/office", "--for=jsonpath={.status.replicas}=1", "--timeout=1m")
	if got := *get[appsv1.Deployment](t, "-n", namespace, "deployment", "office").Spec.Replicas; got != 1 {
		t.Errorf("%d replicas, want 1, as set with kubectl scale", got)
	}
}

// clockTime formats the UTC time at an offset from now.
func clockTime(from time.Duration) string { return time.Now().UTC().Add(from).Format("15:04") }

func annotateSchedule(t *testing.T, namespace, start, stop string) {
	t.Helper()
	must(t, "kubectl", "annotate", "-n", namespace, "--overwrite", "deployment/office",
		"useless.container.training/start-schedule="+start, "useless.container.training/stop-schedule="+stop)
}
