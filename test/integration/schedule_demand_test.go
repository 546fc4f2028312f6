// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/cloudnative/v1alpha1"
	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/controller"
	"container.training/useless/internal/schedule"
)

func TestScheduleOnDemand(t *testing.T) {
	runShared(t, []namespacedTest{
		{"the annotations of a Namespace are the default for its workloads", testNamespaceDefault},
		{"a workload can replace or suspend the default of its Namespace, or opt out of it", testOwnSchedule},
		{"a changed default costs one write for each workload that it changes", testCostOfDefault},
		{"a CronJob follows the default of its Namespace, but ignores the replicas", testDefaultOfCronJob},
		{"a StatefulSet and a VirtualMachine have the default of their Namespace, but an autoscaler does not", testDefaultOfKinds},
		{"Namespaces of the system cannot have a default", testSystemNamespaces},
		{"an invalid default causes one warning on the Namespace, and nothing is stopped", testInvalidDefault},
		{"a stopped deployment runs on demand, and stops again", testStartUntil},
		{"a deployment stops some time after a user started it", testStopAfter},
		{"a dry run emits an event and changes nothing, and its end does not stop the deployment", testDryRun},
		{"a dry run announces the start that follows the stop", testDryRunOfStart},
		{"a dry run of a Namespace applies to workloads with their own schedule", testDryRunOfNamespace},
		{"a stop that a user undoes causes one warning with the field manager", testOverridden},
		{"for other kinds, the warning about an undone stop also names the field manager", testOverriddenKinds},
	})
}

// unscheduled removes the annotations of newScheduled.
func unscheduled(d *appsv1.Deployment) { d.Annotations = nil }

// annotateNamespace sets annotations of a Namespace.
func annotateNamespace(t *testing.T, name string, keysAndValues ...string) *corev1.Namespace {
	t.Helper()
	namespace := &corev1.Namespace{}
	if err := admin(t).Get(t.Context(), client.ObjectKey{Name: name}, namespace); err != nil {
		t.Fatal(err)
	}
	annotate(t, namespace, keysAndValues...)
	return namespace
}

func testNamespaceDefault(t *testing.T, namespace string) {
	d := createDeployment(t, namespace, "d", unscheduled)
	stop := timeOfDayIn(-time.Hour)
	annotateNamespace(t, namespace, v1beta1.StopScheduleAnnotation, stop)
	d = waitForReplicas(t, d, 0)
	checkEvents(t, d, v1beta1.EventScheduledStop,
		fmt.Sprintf("Scaled in from 3 to 0 replicas (stop-schedule %q of Namespace %s, due %s)",
			stop, namespace, d.Annotations[v1beta1.LastScheduleTimeAnnotation]))
	waitForReplicas(t, createDeployment(t, namespace, "later", unscheduled), 0)

	annotateNamespace(t, namespace, v1beta1.StopScheduleAnnotation, "")
	d = waitForReplicas(t, d, 3)
	if schedule.HasRecord(d.Annotations) {
		t.Errorf("the record remains after the default was removed: %v", d.Annotations)
	}
}

func testOwnSchedule(t *testing.T, namespace string) {
	optedOut := createDeployment(t, namespace, "none", func(d *appsv1.Deployment) {
		d.Annotations = map[string]string{v1beta1.ScheduleAnnotation: v1beta1.ScheduleNone}
	})
	own := createDeployment(t, namespace, "own", func(d *appsv1.Deployment) {
		d.Annotations = map[string]string{v1beta1.StopScheduleAnnotation: timeOfDayIn(-time.Hour), v1beta1.StopReplicasAnnotation: "2"}
	})
	suspended := createDeployment(t, namespace, "suspended", func(d *appsv1.Deployment) {
		d.Annotations = map[string]string{v1beta1.SuspendAnnotation: "true"}
	})
	annotateNamespace(t, namespace, v1beta1.StopScheduleAnnotation, timeOfDayIn(-time.Hour))
	waitForReplicas(t, createDeployment(t, namespace, "d", unscheduled), 0)
	waitForReplicas(t, own, 2)
	checkUnchanged(t, optedOut, "that has opted out")
	if got := *getDeployment(t, namespace, suspended.Name).Spec.Replicas; got != 3 {
		t.Errorf("the suspended deployment has %d replicas, want 3", got)
	}
}

func testCostOfDefault(t *testing.T, namespace string) {
	const n = 5
	requests, workloads := clusterOf(t).requests, make([]*appsv1.Deployment, n)
	for i := range workloads {
		workloads[i] = createDeployment(t, namespace, fmt.Sprintf("d-%d", i), unscheduled)
	}
	createDeployment(t, namespace, "none", func(d *appsv1.Deployment) {
		d.Annotations = map[string]string{v1beta1.ScheduleAnnotation: v1beta1.ScheduleNone}
	})
	for i, change := range []struct {
		key, value string
		replicas   int32
	}{
		{v1beta1.StopScheduleAnnotation, timeOfDayIn(-time.Hour), 0},
		{v1beta1.StartScheduleAnnotation, timeOfDayIn(-time.Minute), 3},
		{v1beta1.StopReplicasAnnotation, "1", 3}, // writes only observed-schedule
	} {
		annotateNamespace(t, namespace, change.key, change.value)
		eventually(t, defaultTimeout, func() (bool, string) {
			got := requests.successes(namespace, "PATCH deployments")
			return got >= n*(i+1), fmt.Sprintf("%d writes to Deployments, want %d", got, n*(i+1))
		})
		requests.waitUntilIdle(t, namespace)
		if got := requests.successes(namespace, "PATCH deployments"); got != n*(i+1) {
			t.Errorf("%d writes to Deployments after %d changes of the default, want %d", got, i+1, n*(i+1))
		}
		for _, d := range workloads {
			waitForReplicas(t, d, change.replicas)
		}
	}
}

func testDefaultOfCronJob(t *testing.T, namespace string) {
	annotateNamespace(t, namespace, v1beta1.StopScheduleAnnotation, timeOfDayIn(-time.Hour), v1beta1.StopReplicasAnnotation, "1")
	job := newCronJob(namespace, "report")
	job.Annotations = nil
	if err := admin(t).Create(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	waitForWorkload(t, job, "suspended", func(job *batchv1.CronJob) bool { return *job.Spec.Suspend })
	waitForReplicas(t, createDeployment(t, namespace, "d", unscheduled), 1)
}

func testDefaultOfKinds(t *testing.T, namespace string) {
	s, vm, hpa := newStatefulSet(namespace, "s"), newVirtualMachine(namespace, "vm"), newScheduledAutoscaler(namespace, "hpa", "")
	for _, o := range []client.Object{s, vm, hpa} {
		o.SetAnnotations(nil)
		createObject(t, o)
	}
	annotateNamespace(t, namespace, v1beta1.StopScheduleAnnotation, timeOfDayIn(-time.Hour))
	waitForWorkload(t, s, "stopped", func(s *appsv1.StatefulSet) bool { return *s.Spec.Replicas == 0 })
	waitForWorkload(t, vm, "inactive", func(vm *v1alpha1.VirtualMachine) bool { return vm.Spec.Action == v1alpha1.ActionInactive })
	waitUntilScheduleProcessed(t, namespace)
	waitForWorkload(t, hpa, "unchanged", func(hpa *autoscalingv2.HorizontalPodAutoscaler) bool {
		return *hpa.Spec.MinReplicas == 2 && hpa.Spec.MaxReplicas == 9 && len(hpa.Annotations) == 0
	})
}

func testSystemNamespaces(t *testing.T, _ string) {
	for _, name := range []string{metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease} {
		system := annotateNamespace(t, name, v1beta1.StopScheduleAnnotation, timeOfDayIn(-time.Hour))
		defer annotate(t, system, v1beta1.StopScheduleAnnotation, "")
		d := createDeployment(t, name, "info", unscheduled)
		defer func() {
			if err := admin(t).Delete(t.Context(), d); err != nil {
				t.Error(err)
			}
		}()
		system.Namespace = metav1.NamespaceDefault // events about a cluster-scoped object are in this namespace
		checkEvents(t, system, v1beta1.EventScheduleIgnored, "Namespace "+name+" cannot have a default schedule: annotate its workloads")
		checkUnchanged(t, d, "in "+name)
	}
}

func testInvalidDefault(t *testing.T, namespace string) {
	d := createDeployment(t, namespace, "d", unscheduled)
	invalid := annotateNamespace(t, namespace, v1beta1.StopScheduleAnnotation, "Mon-Fri 25:00")
	invalid.Namespace = metav1.NamespaceDefault
	checkEvents(t, invalid, v1beta1.EventInvalidSchedule, `useless.container.training/stop-schedule "Mon-Fri 25:00": `+
		`25:00 is not a time of day from 00:00 to 23:59; use for example "Mon-Fri 20:00", "20:00" or "0 20 * * 1-5"`)
	checkUnchanged(t, d, "in a Namespace with an invalid default")
	if events := eventsOn(t, d, v1beta1.EventInvalidSchedule); len(events) > 0 {
		t.Errorf("the deployment has events about the default of its Namespace: %v", events[0].Note)
	}
}

func testStartUntil(t *testing.T, namespace string) {
	d := waitForReplicas(t, createDeployment(t, namespace, "d", nil), 0)
	before := time.Now()
	annotate(t, d, v1beta1.StartUntilAnnotation, "3h")
	d = waitForReplicas(t, d, 3)
	until, err := time.Parse(time.RFC3339, d.Annotations[v1beta1.StartUntilAnnotation])
	if in := until.Sub(before); err != nil || in < 3*time.Hour-time.Second || in > 3*time.Hour+defaultTimeout {
		t.Errorf("the duration was replaced by the time %s, which is %s from now: %v", d.Annotations[v1beta1.StartUntilAnnotation], in, err)
	}
	checkEvents(t, d, v1beta1.EventScheduledStart, fmt.Sprintf(`Scaled out from 0 to 3 replicas (start-until "3h", until %s)`,
		until.Format(time.RFC3339)))
	if got := d.Annotations[v1beta1.ExpiresAtAnnotation]; got != until.Format(time.RFC3339) {
		t.Errorf("expires-at is %s, want %s", got, until.Format(time.RFC3339))
	}
	checkUnchanged(t, d, "that runs on demand")

	annotate(t, d, v1beta1.StartUntilAnnotation, time.Now().Add(10*time.Minute).UTC().Format(time.RFC3339))
	waitForEvent(t, d, v1beta1.EventStopsSoon)
	until = time.Now().Add(2 * time.Second).UTC().Truncate(time.Second)
	annotate(t, d, v1beta1.StartUntilAnnotation, until.Format(time.RFC3339))
	d = waitForReplicas(t, d, 0)
	if now := time.Now(); now.Before(until) {
		t.Errorf("the deployment was stopped at %s, before %s", now, until)
	}
	if got := d.Annotations[v1beta1.ExpiresAtAnnotation]; got != "" {
		t.Errorf("expires-at is still %s", got)
	}
	checkUnchanged(t, d, "that has run on demand")
}

func testStopAfter(t *testing.T, namespace string) {
	d := createDeployment(t, namespace, "d", func(d *appsv1.Deployment) {
		d.Annotations = map[string]string{v1beta1.StopAfterAnnotation: "1h"}
	})
	started := func(d *appsv1.Deployment) bool { return d.Annotations[v1beta1.RunningSinceAnnotation] != "" }
	d = waitForWorkload(t, d, "observed", started)
	checkUnchanged(t, d, "that was just started")

	ago := func(minutes int) string {
		return time.Now().Add(time.Duration(-minutes) * time.Minute).UTC().Format(time.RFC3339)
	}
	annotate(t, d, v1beta1.RunningSinceAnnotation, ago(50)) // as if it ran for 50 minutes
	waitForEvent(t, d, v1beta1.EventStopsSoon)
	annotate(t, d, v1beta1.RunningSinceAnnotation, ago(60))
	d = waitForReplicas(t, d, 0)
	checkEvents(t, d, v1beta1.EventScheduledStop, fmt.Sprintf(`Scaled in from 3 to 0 replicas (stop-after "1h", due %s)`,
		d.Annotations[v1beta1.LastScheduleTimeAnnotation]))
	if started(d) {
		t.Errorf("running-since remains after the stop: %v", d.Annotations)
	}
	mustKubectl(t, "", "scale", "deployment", "d", "--replicas=2", "-n", namespace)
	d = waitForWorkload(t, d, "observed again", started)
	if *d.Spec.Replicas != 2 {
		t.Errorf("the deployment has %d replicas, want 2", *d.Spec.Replicas)
	}
}

// TestStopAfterAcrossRestarts restarts the operator 50 minutes after a workload was started. It restarts the operator
// again when the workload's stop is due.
func TestStopAfterAcrossRestarts(t *testing.T) {
	useExclusiveCluster(t)
	clock, namespace := &adjustedClock{}, newNamespace(t)
	options := operatorOptions{clock: clock}
	annotateNamespace(t, namespace, v1beta1.StopAfterAnnotation, "1h")
	stop := runOperatorFor(t, options)
	d := waitForWorkload(t, createDeployment(t, namespace, "d", unscheduled), "observed", func(d *appsv1.Deployment) bool {
		return d.Annotations[v1beta1.RunningSinceAnnotation] != ""
	})
	stop()
	since, err := time.Parse(time.RFC3339, d.Annotations[v1beta1.RunningSinceAnnotation])
	if err != nil {
		t.Fatal(err)
	}
	clock.set(since.Add(50 * time.Minute))
	stop = runOperatorFor(t, options)
	waitForEvent(t, d, v1beta1.EventStopsSoon)
	if diff := cmp.Diff(annotationsOf(d), annotationsOf(getDeployment(t, namespace, "d"))); diff != "" {
		t.Errorf("annotations after a restart (-want +got):\n%s", diff)
	}
	stop()
	clock.set(since.Add(time.Hour))
	runOperatorFor(t, options)
	d = waitForReplicas(t, d, 0)
	checkEvents(t, d, v1beta1.EventScheduledStop, fmt.Sprintf(`Scaled in from 3 to 0 replicas (stop-after "1h" of Namespace %s, due %s)`,
		namespace, since.Add(time.Hour).UTC().Format(time.RFC3339)))
}

func testDryRun(t *testing.T, namespace string) {
	d := createDeployment(t, namespace, "d", func(d *appsv1.Deployment) { d.Annotations[v1beta1.DryRunAnnotation] = "true" })
	waitForEvent(t, d, v1beta1.EventWouldStop)
	notes := eventsOn(t, d, v1beta1.EventWouldStop)
	if want := `Dry run: Scaled in from 3 to 0 replicas (stop-schedule "`; len(notes) != 1 || !strings.HasPrefix(notes[0].Note, want) {
		t.Errorf("got %d events %s, the first %q; want one event whose note begins with %q", len(notes), v1beta1.EventWouldStop, notes[0].Note, want)
	}
	checkUnchanged(t, d, "of a dry run")
	annotate(t, d, v1beta1.DryRunAnnotation, "")
	d = waitForWorkload(t, d, "recorded", func(d *appsv1.Deployment) bool { return schedule.HasRecord(d.Annotations) })
	if *d.Spec.Replicas != 3 {
		t.Errorf("at the end of the dry run, the deployment was scaled to %d", *d.Spec.Replicas)
	}
	// For two seconds after the end of a dry run, the operator treats an edit as a part of the dry run.
	time.Sleep(3 * time.Second)
	annotate(t, d, v1beta1.StopReplicasAnnotation, "1")
	waitForReplicas(t, d, 1)
}

func testDryRunOfStart(t *testing.T, namespace string) {
	d := createDeployment(t, namespace, "d", func(d *appsv1.Deployment) { d.Annotations[v1beta1.DryRunAnnotation] = "true" })
	waitForEvent(t, d, v1beta1.EventWouldStop)
	annotate(t, d, v1beta1.StopScheduleAnnotation, timeOfDayIn(time.Hour))
	waitForEvent(t, d, v1beta1.EventWouldStart)
	checkUnchanged(t, d, "of a dry run")
}

func testDryRunOfNamespace(t *testing.T, namespace string) {
	annotateNamespace(t, namespace, v1beta1.DryRunAnnotation, "true")
	d := createDeployment(t, namespace, "d", nil)
	waitForEvent(t, d, v1beta1.EventWouldStop)
	if got := getDeployment(t, namespace, "d"); *got.Spec.Replicas != 3 || schedule.HasRecord(got.Annotations) {
		t.Errorf("the dry run has changed the deployment: %d replicas, annotations %v", *got.Spec.Replicas, got.Annotations)
	}
}

func testOverridden(t *testing.T, namespace string) {
	d := waitForReplicas(t, createDeployment(t, namespace, "d", nil), 0)
	mustKubectl(t, "", "scale", "deployment", "d", "--replicas=2", "-n", namespace)
	waitForEvent(t, d, v1beta1.EventScheduleOverridden)
	checkUnchanged(t, d, "that a user scaled")
	events := eventsOn(t, d, v1beta1.EventScheduleOverridden)
	const want = "The workload runs, although its schedule has stopped it: kubectl changed it at "
	if len(events) != 1 || !strings.HasPrefix(events[0].Note, want) {
		t.Errorf("got %d events, the first %q; want one event whose note begins with %q", len(events), events[0].Note, want)
	}
}

func testOverriddenKinds(t *testing.T, namespace string) {
	vm := newVirtualMachine(namespace, "vm")
	vm.Annotations = newDeployment(namespace, "vm").Annotations
	for _, c := range []struct {
		object      client.Object
		name, patch string
	}{
		{newStatefulSet(namespace, "s"), "statefulset/s", `{"spec":{"replicas":2}}`},
		{newCronJob(namespace, "c"), "cronjob/c", `{"spec":{"suspend":false}}`},
		{vm, "virtualmachine/vm", `{"spec":{"action":"active"}}`},
	} {
		createObject(t, c.object)
		waitForEvent(t, c.object, v1beta1.EventScheduledStop)
		mustKubectl(t, "", "patch", "-n", namespace, c.name, "--type=merge", "-p", c.patch)
		waitForEvent(t, c.object, v1beta1.EventScheduleOverridden)
		note := eventsOn(t, c.object, v1beta1.EventScheduleOverridden)[0].Note
		if want := ": kubectl-patch changed it at "; !strings.Contains(note, want) {
			t.Errorf("%s: got the event %q, want %q in it", c.name, note, want)
		}
	}
}

// TestScheduleDryRunByFlag runs an operator with --schedule-dry-run twice, and then an operator without this flag. The
// last operator must not execute the stop that the first operator has announced.
func TestScheduleDryRunByFlag(t *testing.T) {
	useExclusiveCluster(t)
	namespace := newNamespace(t)
	options := operatorOptions{controllers: func(o *controller.Options) {
		o.Namespace, o.Schedule.DryRun = "useless-system", true
	}}
	stop := runOperatorFor(t, options)
	defer deleteDryRunLease(t) // otherwise the next test on this control plane would find it
	d := createDeployment(t, namespace, "d", nil)
	waitForEvent(t, d, v1beta1.EventWouldStop)
	if got := getDeployment(t, namespace, "d"); *got.Spec.Replicas != 3 || schedule.HasRecord(got.Annotations) {
		t.Errorf("the dry run has changed the deployment: %d replicas, annotations %v", *got.Spec.Replicas, got.Annotations)
	}
	before := getDryRunLease(t).Spec.RenewTime
	stop()
	stop = runOperatorFor(t, options) // a restart renews the Lease
	eventually(t, defaultTimeout, func() (bool, string) {
		return before.Before(getDryRunLease(t).Spec.RenewTime), "the Lease is not renewed"
	})
	stop()
	options.controllers = func(o *controller.Options) { o.Namespace = "useless-system" }
	runOperatorFor(t, options)
	d = waitForWorkload(t, d, "recorded", func(d *appsv1.Deployment) bool { return schedule.HasRecord(d.Annotations) })
	if *d.Spec.Replicas != 3 {
		t.Errorf("after the dry run, the deployment was scaled to %d", *d.Spec.Replicas)
	}
	annotate(t, d, v1beta1.StopScheduleAnnotation, "")
	annotate(t, d, v1beta1.StopAfterAnnotation, "1h", v1beta1.RunningSinceAnnotation,
		time.Now().Add(-time.Hour+12*time.Second).UTC().Format(time.RFC3339)) // due after the end of the dry run
	waitForReplicas(t, d, 0)
}

func deleteDryRunLease(t *testing.T) {
	t.Helper()
	if err := admin(t).Delete(t.Context(), getDryRunLease(t)); err != nil {
		t.Error(err)
	}
}

func getDryRunLease(t *testing.T) *coordinationv1.Lease {
	t.Helper()
	lease := &coordinationv1.Lease{}
	key := client.ObjectKey{Namespace: "useless-system", Name: "schedule-dry-run.useless.container.training"}
	if err := admin(t).Get(t.Context(), key, lease); err != nil {
		t.Fatal(err)
	}
	return lease
}
