// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"

	"container.training/useless/internal/controller/schedule"
	"container.training/useless/test/internal/keda"
)

// template is the template of Pods that do nothing.
const template = `
  template:
    metadata: {labels: {app: office}}
    spec:
      containers: [{name: desk, image: "registry.k8s.io/pause:3.10.1"}]
`

// selector is the selector of these Pods.
const selector = `
  selector: {matchLabels: {app: office}}`

// podTimeout limits the wait for Pods. The Pods of many tests start at the same time, on three nodes with two processors
// in total. The Pods of a StatefulSet start one after the other.
const podTimeout = "--timeout=3m"

// A scheduledKind is a kind of workload that a schedule stops and starts.
type scheduledKind struct {
	resource, manifest string
	// The arguments of kubectl wait for a running and a stopped workload.
	running, stopped []string
	// These functions check more before the stop, after the stop and after the start. They may be nil.
	whileRunning, whileStopped, afterStart func(t *testing.T, namespace string)
}

// office is a Deployment.
const office = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: office}
spec:
  replicas: 2` + selector + template

var scheduledKinds = []scheduledKind{{
	resource: "deployment/office",
	manifest: office,
	running:  []string{"deployment/office", "--for=jsonpath={.status.readyReplicas}=2"},
	stopped:  []string{"--for=delete", "pods", "-l", "app=office"},
	afterStart: func(t *testing.T, namespace string) { // the operator does not undo a user's change
		t.Helper()
		must(t, "kubectl", "scale", "-n", namespace, "deployment/office", "--replicas=1")
		must(t, "kubectl", "wait", "-n", namespace, "deployment/office", "--for=jsonpath={.status.replicas}=1", podTimeout)
		if got := *get[appsv1.Deployment](t, "-n", namespace, "deployment", "office").Spec.Replicas; got != 1 {
			t.Errorf("%d replicas, want 1, as set with kubectl scale", got)
		}
	},
}, {
	resource: "statefulset/office",
	manifest: `
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: office}
spec:
  serviceName: office
  replicas: 2` + selector + template,
	running: []string{"statefulset/office", "--for=jsonpath={.status.readyReplicas}=2"},
	stopped: []string{"--for=delete", "pods", "-l", "app=office"},
}, {
	resource: "cronjob/office",
	manifest: `
apiVersion: batch/v1
kind: CronJob
metadata: {name: office}
spec:
  schedule: "@yearly"
  suspend: false
  jobTemplate:
    spec:
      template:
        metadata: {labels: {app: office}}
        spec:
          restartPolicy: Never
          containers: [{name: desk, image: "registry.k8s.io/pause:3.10.1"}]
`,
	running: []string{"cronjob/office", "--for=jsonpath={.spec.suspend}=false"},
	stopped: []string{"cronjob/office", "--for=jsonpath={.spec.suspend}=true"},
	whileRunning: func(t *testing.T, namespace string) {
		t.Helper()
		must(t, "kubectl", "create", "job", "-n", namespace, "running", "--from=cronjob/office")
		must(t, "kubectl", "wait", "-n", namespace, "job/running", "--for=jsonpath={.status.ready}=1", podTimeout)
	},
	whileStopped: func(t *testing.T, namespace string) { // a running Job continues
		t.Helper()
		must(t, "kubectl", "wait", "-n", namespace, "job/running", "--for=jsonpath={.status.ready}=1", "--timeout=0")
	},
}, {
	resource:     "virtualmachine/test-vm",
	manifest:     virtualMachine,
	running:      []string{"virtualmachine/test-vm", "--for=jsonpath={.status.phase}=Active"},
	stopped:      []string{"virtualmachine/test-vm", "--for=jsonpath={.status.phase}=Stopped"},
	whileStopped: checkNoPods,
}, {
	resource: "horizontalpodautoscaler/office",
	manifest: office + `
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: office, annotations: {useless.container.training/stop-replicas: "1"}}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: office}
  minReplicas: 2
  maxReplicas: 3
`,
	running: []string{"deployment/office", "--for=jsonpath={.status.readyReplicas}=2"},
	stopped: []string{"deployment/office", "--for=jsonpath={.status.replicas}=1"},
}, {
	resource: "scaledobject/office",
	manifest: `
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata: {name: office}
spec:
  scaleTargetRef: {name: office}
  triggers:
  - type: cron
    metadata: {timezone: UTC, start: 0 6 * * *, end: 0 20 * * *, desiredReplicas: "3"}
`,
	running: []string{"scaledobject/office",
		`--for=jsonpath={.metadata.annotations.useless\.container\.training/schedule-state}=Started`},
	stopped: []string{"scaledobject/office", `--for=jsonpath={.metadata.annotations.autoscaling\.keda\.sh/paused-replicas}=0`},
}}

// checkSchedule stops and starts a workload of each kind. It first sets the stop time to a minute ago, and later the
// start time. The operator executes the last due event immediately, so the test does not have to wait.
func checkSchedule(t *testing.T) {
	t.Helper()
	installScaledObjects(t)
	untested := schedule.Kinds()
	for _, k := range scheduledKinds {
		kind, _, _ := strings.Cut(k.resource, "/")
		untested = slices.DeleteFunc(untested, func(name string) bool { return name == kind+"s" })
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			k.check(t, newNamespace(t, "schedule-"+kind)) // tests that run in parallel need different names
		})
	}
	if len(untested) > 0 {
		t.Errorf("scheduledKinds lacks %q", untested)
	}
}

// installScaledObjects installs KEDA's CustomResourceDefinition of ScaledObjects, unless the cluster has it.
func installScaledObjects(t *testing.T) {
	t.Helper()
	if _, err := try(t, "", "kubectl", "get", "crd", "scaledobjects.keda.sh"); err == nil {
		return
	}
	crd := absolute(t, keda.CRD(t, repository))
	must(t, "kubectl", "apply", "--server-side", "-f", crd)
	t.Cleanup(func() { cleanUp(t, "-f", crd, "--wait=false") })
	must(t, "kubectl", "wait", "--for=condition=Established", "crd/scaledobjects.keda.sh", "--timeout=1m")
}

func (k scheduledKind) check(t *testing.T, namespace string) {
	t.Helper()
	wait := func(args []string) {
		t.Helper()
		must(t, append([]string{"kubectl", "wait", "-n", namespace, podTimeout}, args...)...)
	}
	mustRead(t, k.manifest, "kubectl", "create", "-n", namespace, "-f", "-")
	if !strings.HasPrefix(k.resource, "scaledobject/") { // it has the state Started only after a scheduled start
		wait(k.running)
	}
	if k.whileRunning != nil {
		k.whileRunning(t, namespace)
	}
	justNow, halfADayOn := clockTime(-time.Minute), clockTime(12*time.Hour)
	annotateSchedule(t, namespace, k.resource, halfADayOn, justNow)
	wait(k.stopped)
	if k.whileStopped != nil {
		k.whileStopped(t, namespace)
	}
	annotateSchedule(t, namespace, k.resource, justNow, halfADayOn)
	wait(k.running)
	checkEvents(t, namespace, k.resource, `Normal +ScheduledStop`, `Normal +ScheduledStart`)
	if k.afterStart != nil {
		k.afterStart(t, namespace)
	}
}

// clockTime returns the UTC time at an offset from now, such as 07:30.
func clockTime(from time.Duration) string { return time.Now().UTC().Add(from).Format("15:04") }

func annotateSchedule(t *testing.T, namespace, resource, start, stop string) {
	t.Helper()
	must(t, "kubectl", "annotate", "-n", namespace, "--overwrite", resource,
		"useless.container.training/start-schedule="+start, "useless.container.training/stop-schedule="+stop)
}
