// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/cloudnative/v1alpha1"
	"container.training/useless/api/useless/v1beta1"
)

// scheduleManager is the field manager of the operator's stops and starts. The documentation names it.
const scheduleManager = "useless-operator-schedule"

func TestSchedule(t *testing.T) {
	runShared(t, []namespacedTest{
		{"a deployment is stopped, and started when its stop time is moved to the future", testStopAndStart},
		{"a deployment that a user scales after a stop keeps its replicas", testScaledByHand},
		{"applying the manifest again with --force-conflicts after a stop sets its replicas", testAppliedAgain},
		{"removing the schedule of a stopped deployment restores its replicas", testScheduleRemoved},
		{"an invalid schedule causes one warning, and a corrected schedule takes effect", testInvalidSchedule},
		{"a deployment with an autoscaler is not scaled to 1 until the autoscaler is deleted", testAutoscaler},
		{"a deployment with an autoscaler is scaled to 0", testAutoscalerAtZero},
		{"a deployment with a ScaledObject of KEDA is not stopped", testKEDA},
		{"a paused deployment is stopped when it is unpaused", testPausedDeployment},
		{"a deployment with a controller is not stopped until its owner reference is removed", testOwnedDeployment},
		{"a deployment that is being deleted is not changed", testDeletedDeployment},
		{"a stop that the API server rejects causes one warning and is retried", testScaleRefused},
		{"a StatefulSet is stopped and started", testScheduledStatefulSet},
		{"a CronJob is suspended and resumed, and its running Job is not changed", testScheduledCronJob},
		{"a CronJob that a user has suspended before the stop stays suspended", testSuspendedCronJob},
		{"a stop changes the limits of an autoscaler, and a start restores them", testScheduledAutoscaler},
		{"an autoscaler without stop-replicas causes a warning", testAutoscalerWithoutStopReplicas},
		{"a VirtualMachine becomes inactive, and active again", testScheduledVirtualMachine},
		{"a VirtualMachine that a user has made inactive before the stop stays inactive", testInactiveVirtualMachine},
	})
}

// timeOfDayIn returns the time of day in UTC, d from now, such as 15:04. A negative d is in the past.
func timeOfDayIn(d time.Duration) string { return time.Now().UTC().Add(d).Format("15:04") }

// newScheduled returns the metadata of a workload with a schedule. Its last start was due two hours ago, and its last
// stop was due an hour ago.
func newScheduled(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: map[string]string{
		v1beta1.StartScheduleAnnotation: timeOfDayIn(-2 * time.Hour),
		v1beta1.StopScheduleAnnotation:  timeOfDayIn(-time.Hour),
	}}
}

// newDeployment returns a Deployment with 3 replicas and the schedule of newScheduled.
func newDeployment(namespace, name string) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	return &appsv1.Deployment{
		ObjectMeta: newScheduled(namespace, name),
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(3)),
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "registry.k8s.io/pause:3.10.1"}}},
			},
		},
	}
}

// newStatefulSet returns a StatefulSet with 3 replicas and the schedule of newScheduled.
func newStatefulSet(namespace, name string) *appsv1.StatefulSet {
	d := newDeployment(namespace, name)
	return &appsv1.StatefulSet{ObjectMeta: d.ObjectMeta, Spec: appsv1.StatefulSetSpec{
		Replicas: d.Spec.Replicas, Selector: d.Spec.Selector, Template: d.Spec.Template, ServiceName: name,
	}}
}

// newCronJob returns a CronJob with the schedule of newScheduled.
func newCronJob(namespace, name string) *batchv1.CronJob {
	d := newDeployment(namespace, name)
	job := batchv1.JobSpec{Template: d.Spec.Template}
	job.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
	return &batchv1.CronJob{ObjectMeta: d.ObjectMeta, Spec: batchv1.CronJobSpec{
		Schedule: "@yearly", JobTemplate: batchv1.JobTemplateSpec{Spec: job},
	}}
}

// createDeployment creates the Deployment of newDeployment. If change is not nil, it changes the Deployment before the
// creation.
func createDeployment(t *testing.T, namespace, name string, change func(*appsv1.Deployment)) *appsv1.Deployment {
	t.Helper()
	d := newDeployment(namespace, name)
	if change != nil {
		change(d)
	}
	if err := admin(t).Create(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	return d
}

func getDeployment(t *testing.T, namespace, name string) *appsv1.Deployment {
	t.Helper()
	d := &appsv1.Deployment{}
	if err := admin(t).Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, d); err != nil {
		t.Fatal(err)
	}
	return d
}

// waitForReplicas waits until spec.replicas of a Deployment equals replicas, and returns the Deployment.
func waitForReplicas(t *testing.T, d *appsv1.Deployment, replicas int32) *appsv1.Deployment {
	t.Helper()
	var got *appsv1.Deployment
	eventually(t, defaultTimeout, func() (bool, string) {
		got = getDeployment(t, d.Namespace, d.Name)
		return *got.Spec.Replicas == replicas, fmt.Sprintf("the deployment has %d replicas, want %d; annotations %v",
			*got.Spec.Replicas, replicas, got.Annotations)
	})
	return got
}

// waitForWorkload waits until reached returns true for a workload, and returns the workload. state is for the failure
// message.
func waitForWorkload[T any, O interface {
	*T
	client.Object
}](t *testing.T, o O, state string, reached func(O) bool) O {
	t.Helper()
	var got O
	eventually(t, defaultTimeout, func() (bool, string) {
		got = new(T)
		got.GetObjectKind().SetGroupVersionKind(o.GetObjectKind().GroupVersionKind())
		if err := admin(t).Get(t.Context(), client.ObjectKeyFromObject(o), got); err != nil {
			return false, err.Error()
		}
		return reached(got), fmt.Sprintf("%s is not %s; annotations %v", o.GetName(), state, got.GetAnnotations())
	})
	return got
}

// annotate sets annotations in one patch. Each key is followed by its value. An empty value removes the annotation.
func annotate(t *testing.T, o client.Object, keysAndValues ...string) {
	t.Helper()
	annotations := map[string]any{}
	for pair := range slices.Chunk(keysAndValues, 2) {
		if annotations[pair[0]] = pair[1]; pair[1] == "" {
			annotations[pair[0]] = nil
		}
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}})
	if err != nil {
		t.Fatal(err)
	}
	mergePatch(t, o.DeepCopyObject().(client.Object), "%s", patch)
}

// waitUntilScheduleProcessed returns when the operator has processed all earlier changes in a namespace. It creates
// another Deployment and waits until the operator has stopped it.
func waitUntilScheduleProcessed(t *testing.T, namespace string) {
	t.Helper()
	barrier := newDeployment(namespace, "")
	barrier.GenerateName = "barrier-"
	if err := admin(t).Create(t.Context(), barrier); err != nil {
		t.Fatal(err)
	}
	waitForReplicas(t, barrier, 0)
	clusterOf(t).requests.waitUntilIdle(t, namespace)
}

// checkUnchanged waits until the operator has processed all earlier changes. The test fails if the operator changes the
// spec or the annotations of a workload. In the failure message, description follows the kind.
func checkUnchanged(t *testing.T, o client.Object, description string) {
	t.Helper()
	before := getUnstructured(t, o)
	waitUntilScheduleProcessed(t, o.GetNamespace())
	after := getUnstructured(t, o)
	if diff := cmp.Diff(before.Object["spec"], after.Object["spec"]) +
		cmp.Diff(annotationsOf(before), annotationsOf(after), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("the %s %s was changed (-before +after):\n%s", before.GetKind(), description, diff)
	}
}

// getUnstructured reads an object from the API server.
func getUnstructured(t *testing.T, o client.Object) *unstructured.Unstructured {
	t.Helper()
	setKind(t, o)
	got := &unstructured.Unstructured{}
	got.SetGroupVersionKind(o.GetObjectKind().GroupVersionKind())
	if err := admin(t).Get(t.Context(), client.ObjectKeyFromObject(o), got); err != nil {
		t.Fatal(err)
	}
	return got
}

// annotationsOf returns the annotations of an object, without the annotation of Kubernetes' deployment controller.
func annotationsOf(o client.Object) map[string]string {
	annotations := maps.Clone(o.GetAnnotations())
	delete(annotations, "deployment.kubernetes.io/revision")
	return annotations
}

// checkEvents waits for an event with a reason and compares the notes of all such events.
func checkEvents(t *testing.T, o client.Object, reason string, want ...string) {
	t.Helper()
	waitForEvent(t, o, reason)
	var notes []string
	for _, event := range eventsOn(t, o, reason) {
		notes = append(notes, event.Note)
		if event.Series != nil {
			t.Errorf("event %s is a series of %d, want single events", reason, event.Series.Count)
		}
	}
	if diff := cmp.Diff(want, notes); diff != "" {
		t.Errorf("events %s (-want +got):\n%s", reason, diff)
	}
}

func testStopAndStart(t *testing.T, namespace string) {
	d := createDeployment(t, namespace, "d", nil)
	user := maps.Clone(d.Annotations)
	d = waitForReplicas(t, d, 0)
	due, err := time.Parse(time.RFC3339, d.Annotations[v1beta1.LastScheduleTimeAnnotation])
	if err != nil || due.Format("15:04") != user[v1beta1.StopScheduleAnnotation] {
		t.Errorf("the stop was due at %s, but the annotation has %s: %v", user[v1beta1.StopScheduleAnnotation], due, err)
	}
	want := maps.Clone(user)
	maps.Copy(want, map[string]string{
		v1beta1.OriginalReplicasAnnotation: "3",
		v1beta1.ScheduleStateAnnotation:    v1beta1.ScheduleStopped,
		v1beta1.LastScheduleTimeAnnotation: due.Format(time.RFC3339),
		v1beta1.NextScheduleTimeAnnotation: due.Add(23 * time.Hour).Format(time.RFC3339),
		v1beta1.ObservedScheduleAnnotation: d.Annotations[v1beta1.ObservedScheduleAnnotation],
	})
	if diff := cmp.Diff(want, annotationsOf(d)); diff != "" {
		t.Errorf("annotations after the stop (-want +got):\n%s", diff)
	}
	if !slices.ContainsFunc(d.ManagedFields, func(f metav1.ManagedFieldsEntry) bool {
		return f.Manager == scheduleManager && strings.Contains(f.FieldsV1.GetRawString(), "f:replicas")
	}) {
		t.Errorf("field manager %s does not own spec.replicas", scheduleManager)
	}
	checkEvents(t, d, v1beta1.EventScheduledStop, fmt.Sprintf("Scaled in from 3 to 0 replicas (stop-schedule %q, due %s)",
		user[v1beta1.StopScheduleAnnotation], due.Format(time.RFC3339)))

	annotate(t, d, v1beta1.StopScheduleAnnotation, timeOfDayIn(time.Hour))
	d = waitForReplicas(t, d, 3)
	if state, original := d.Annotations[v1beta1.ScheduleStateAnnotation], d.Annotations[v1beta1.OriginalReplicasAnnotation]; state != v1beta1.ScheduleStarted || original != "" {
		t.Errorf("after the start, the annotations have state %q and original replicas %q", state, original)
	}
	checkEvents(t, d, v1beta1.EventScheduledStart, fmt.Sprintf("Scaled out from 0 to 3 replicas (start-schedule %q, due %s)",
		user[v1beta1.StartScheduleAnnotation], due.Add(-time.Hour).Format(time.RFC3339)))
}

func testScaledByHand(t *testing.T, namespace string) {
	d := waitForReplicas(t, createDeployment(t, namespace, "d", nil), 0)
	mustKubectl(t, "", "scale", "deployment", "d", "--replicas=2", "-n", namespace)
	checkUnchanged(t, d, "that a user scaled")
	if d = getDeployment(t, namespace, "d"); *d.Spec.Replicas != 2 {
		t.Errorf("the deployment has %d replicas, want 2", *d.Spec.Replicas)
	}
}

func testAppliedAgain(t *testing.T, namespace string) {
	d := newDeployment(namespace, "d")
	manifest := manifestOf(t, d)
	d.Spec.Replicas = nil
	withoutReplicas := manifestOf(t, d)
	apply := []string{"apply", "--server-side", "-n", namespace, "-f", "-"}
	mustKubectl(t, manifest, apply...)
	d = waitForReplicas(t, d, 0)
	_, stderr, err := kubectl(t, manifest, apply...)
	if want := fmt.Sprintf("conflict with %q", scheduleManager); err == nil || !strings.Contains(stderr, want) {
		t.Errorf("applying the manifest again: got error %v, want %s:\n%s", err, want, stderr)
	}
	mustKubectl(t, withoutReplicas, apply...)
	checkUnchanged(t, d, "that was applied without replicas")
	if d = getDeployment(t, namespace, "d"); *d.Spec.Replicas != 0 {
		t.Errorf("after a manifest without replicas is applied, the deployment has %d replicas, want 0", *d.Spec.Replicas)
	}
	mustKubectl(t, manifest, append(apply, "--force-conflicts")...)
	checkUnchanged(t, d, "that was applied again")
	if d = getDeployment(t, namespace, "d"); *d.Spec.Replicas != 3 || d.Annotations[v1beta1.OriginalReplicasAnnotation] != "3" {
		t.Errorf("the deployment has %d replicas, want 3; annotations %v", *d.Spec.Replicas, d.Annotations)
	}
}

// manifestOf returns an object as a JSON manifest.
func manifestOf(t *testing.T, o client.Object) string {
	t.Helper()
	setKind(t, o)
	manifest, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return string(manifest)
}

// setKind sets apiVersion and kind of an object from its Go type.
func setKind(t *testing.T, o client.Object) {
	t.Helper()
	gvk, err := admin(t).GroupVersionKindFor(o)
	if err != nil {
		t.Fatal(err)
	}
	o.GetObjectKind().SetGroupVersionKind(gvk)
}

func testScheduleRemoved(t *testing.T, namespace string) {
	d := waitForReplicas(t, createDeployment(t, namespace, "d", nil), 0)
	mustKubectl(t, "", "annotate", "deployment", "d", "-n", namespace, v1beta1.StartScheduleAnnotation+"-", v1beta1.StopScheduleAnnotation+"-")
	d = waitForReplicas(t, d, 3)
	if diff := cmp.Diff(map[string]string{}, annotationsOf(d), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("annotations after the schedule is removed (-want +got):\n%s", diff)
	}
	checkEvents(t, d, v1beta1.EventScheduleRemoved, "Scaled out from 0 to 3 replicas: the schedule that stopped the workload is gone")
	checkUnchanged(t, d, "without a schedule")
}

func testInvalidSchedule(t *testing.T, namespace string) {
	d := createDeployment(t, namespace, "d", func(d *appsv1.Deployment) {
		d.Annotations[v1beta1.StopScheduleAnnotation] = "25:00"
		d.Annotations[v1beta1.StopReplicasAnnotation] = "none"
	})
	waitForEvent(t, d, v1beta1.EventInvalidSchedule)
	for i := range 3 {
		annotate(t, d, "touched", fmt.Sprint(i))
	}
	checkUnchanged(t, d, "with an invalid schedule")
	checkEvents(t, d, v1beta1.EventInvalidSchedule,
		`useless.container.training/stop-schedule "25:00": 25:00 is not a time of day from 00:00 to 23:59; use for example "Mon-Fri 20:00", "20:00" or "0 20 * * 1-5". `+
			`useless.container.training/stop-replicas "none": it is not a whole number from 0 to 2147483647; use for example "0"`)

	annotate(t, d, v1beta1.StopScheduleAnnotation, timeOfDayIn(-time.Hour),
		v1beta1.TimeZoneAnnotation, "Mars/Olympus", v1beta1.StopReplicasAnnotation, "0")
	checkEvents(t, d, v1beta1.EventUnknownTimeZone,
		`useless.container.training/time-zone "Mars/Olympus": it is not in the time zone database; use for example "Europe/Berlin" or "UTC"`)
	annotate(t, d, v1beta1.TimeZoneAnnotation, "UTC")
	waitForReplicas(t, d, 0)
}

// createAutoscaler creates a HorizontalPodAutoscaler for a Deployment, with optional owners.
func createAutoscaler(t *testing.T, d *appsv1.Deployment, owners ...metav1.OwnerReference) *autoscalingv2.HorizontalPodAutoscaler {
	t.Helper()
	hpa := &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Namespace: d.Namespace, Name: d.Name, OwnerReferences: owners},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: d.Name},
			MaxReplicas:    5,
		},
	}
	if err := admin(t).Create(t.Context(), hpa); err != nil {
		t.Fatal(err)
	}
	return hpa
}

// createWithAutoscaler creates a Deployment with an autoscaler and a schedule. The schedule scales the Deployment to 1
// in an hour. createWithAutoscaler returns when the operator has warned about the autoscaler.
func createWithAutoscaler(t *testing.T, namespace string, owners ...metav1.OwnerReference) (
	*appsv1.Deployment, *autoscalingv2.HorizontalPodAutoscaler,
) {
	t.Helper()
	d := createDeployment(t, namespace, "d", func(d *appsv1.Deployment) {
		d.Annotations[v1beta1.StopScheduleAnnotation] = timeOfDayIn(time.Hour)
		d.Annotations[v1beta1.StopReplicasAnnotation] = "1"
	})
	hpa := createAutoscaler(t, d, owners...)
	waitForEvent(t, d, v1beta1.EventAutoscalerConflict)
	return d, hpa
}

func testAutoscaler(t *testing.T, namespace string) {
	d, hpa := createWithAutoscaler(t, namespace)
	annotate(t, d, v1beta1.StopScheduleAnnotation, timeOfDayIn(-time.Hour))
	checkUnchanged(t, d, "with an autoscaler")
	checkEvents(t, d, v1beta1.EventAutoscalerConflict,
		`useless.container.training/stop-replicas "1": HorizontalPodAutoscaler d would undo a stop, so the workload is not stopped; use "0", which disables the autoscaler until the start, or move the annotations to the HorizontalPodAutoscaler`)
	if err := admin(t).Delete(t.Context(), hpa); err != nil {
		t.Fatal(err)
	}
	waitForReplicas(t, d, 1)
}

func testAutoscalerAtZero(t *testing.T, namespace string) {
	d, _ := createWithAutoscaler(t, namespace)
	annotate(t, d, v1beta1.StopScheduleAnnotation, timeOfDayIn(-time.Hour), v1beta1.StopReplicasAnnotation, "0")
	waitForReplicas(t, d, 0)
	annotate(t, d, v1beta1.StopScheduleAnnotation, timeOfDayIn(time.Hour))
	waitForReplicas(t, d, 3)
}

func testKEDA(t *testing.T, namespace string) {
	d, _ := createWithAutoscaler(t, namespace, metav1.OwnerReference{
		APIVersion: "keda.sh/v1alpha1", Kind: "ScaledObject", Name: "events", UID: "not-there", Controller: new(true),
	})
	annotate(t, d, v1beta1.StopScheduleAnnotation, timeOfDayIn(-time.Hour), v1beta1.StopReplicasAnnotation, "0")
	checkUnchanged(t, d, "that KEDA scales")
	checkEvents(t, d, v1beta1.EventAutoscalerConflict,
		"ScaledObject events would undo a stop, so the workload is not stopped: move the annotations to the ScaledObject")
}

func testPausedDeployment(t *testing.T, namespace string) {
	annotated := createDeployment(t, namespace, "annotated", func(d *appsv1.Deployment) { d.Annotations[v1beta1.PausedAnnotation] = "true" })
	rollout := createDeployment(t, namespace, "rollout", func(d *appsv1.Deployment) { d.Spec.Paused = true })
	checkUnchanged(t, annotated, "that is paused")
	checkUnchanged(t, rollout, "whose rollout is paused")
	annotate(t, annotated, v1beta1.PausedAnnotation, "")
	mustKubectl(t, "", "rollout", "resume", "deployment", "rollout", "-n", namespace)
	waitForReplicas(t, annotated, 0)
	waitForReplicas(t, rollout, 0)
}

func testOwnedDeployment(t *testing.T, namespace string) {
	owner := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "owner"}}
	if err := admin(t).Create(t.Context(), owner); err != nil {
		t.Fatal(err)
	}
	d := createDeployment(t, namespace, "d", func(d *appsv1.Deployment) {
		d.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(owner, corev1.SchemeGroupVersion.WithKind("ConfigMap"))}
	})
	checkUnchanged(t, d, "that has a controller")
	mergePatch(t, d, `{"metadata":{"ownerReferences":null}}`)
	waitForReplicas(t, d, 0)
}

func testDeletedDeployment(t *testing.T, namespace string) {
	d := createDeployment(t, namespace, "d", func(d *appsv1.Deployment) {
		d.Finalizers = []string{"example.com/wait"}
		d.Annotations[v1beta1.SuspendAnnotation] = "true"
	})
	t.Cleanup(func() {
		patch := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`))
		if err := admin(t).Patch(context.Background(), d, patch); client.IgnoreNotFound(err) != nil {
			t.Error(err)
		}
	})
	if err := admin(t).Delete(t.Context(), d.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	annotate(t, d, v1beta1.SuspendAnnotation, "", v1beta1.StopReplicasAnnotation, "1")
	checkUnchanged(t, d, "that is being deleted")
}

func testScaleRefused(t *testing.T, namespace string) {
	d := createDeployment(t, namespace, "d", func(d *appsv1.Deployment) {
		d.Annotations[v1beta1.StopScheduleAnnotation] = timeOfDayIn(time.Hour)
	})
	allow := forbidUpdates(t, d, appsv1.GroupName, "deployments", "object.spec.replicas > 0", `{"spec":{"replicas":0}}`)
	annotate(t, d, v1beta1.StopScheduleAnnotation, timeOfDayIn(-time.Hour))
	waitForEvent(t, d, v1beta1.EventScaleFailed)
	checkUnchanged(t, d, "whose scaling the API server rejects")
	allow()
	waitForReplicas(t, d, 0)
	waitForEvent(t, d, v1beta1.EventScheduledStop)
	failures := eventsOn(t, d, v1beta1.EventScaleFailed)
	if len(failures) != 1 || failures[0].Series != nil || !strings.Contains(failures[0].Note, `Could not stop (stop-schedule "`) {
		t.Errorf("events about the rejected stop: %+v; want one event with the reason of the failure", failures)
	}
}

// causeOf returns the last part of an event's note, the cause of the last stop or start of a workload. schedule is
// "stop-schedule" or "start-schedule".
func causeOf(o client.Object, schedule string) string {
	annotations := o.GetAnnotations()
	return fmt.Sprintf("(%s %q, due %s)", schedule, annotations["useless.container.training/"+schedule],
		annotations[v1beta1.LastScheduleTimeAnnotation])
}

func testScheduledStatefulSet(t *testing.T, namespace string) {
	s := newStatefulSet(namespace, "s")
	if err := admin(t).Create(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	s = waitForWorkload(t, s, "stopped", func(s *appsv1.StatefulSet) bool { return *s.Spec.Replicas == 0 })
	if got := s.Annotations[v1beta1.OriginalReplicasAnnotation]; got != "3" {
		t.Errorf("after the stop, original-replicas is %q, want 3", got)
	}
	checkEvents(t, s, v1beta1.EventScheduledStop, "Scaled in from 3 to 0 replicas "+causeOf(s, "stop-schedule"))

	annotate(t, s, v1beta1.StopScheduleAnnotation, timeOfDayIn(time.Hour))
	s = waitForWorkload(t, s, "started", func(s *appsv1.StatefulSet) bool { return *s.Spec.Replicas == 3 })
	checkEvents(t, s, v1beta1.EventScheduledStart, "Scaled out from 0 to 3 replicas "+causeOf(s, "start-schedule"))
}

func testScheduledCronJob(t *testing.T, namespace string) {
	c := newCronJob(namespace, "c")
	c.Annotations[v1beta1.StopScheduleAnnotation] = timeOfDayIn(time.Hour)
	if err := admin(t).Create(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	mustKubectl(t, "", "create", "job", "running", "--from=cronjob/c", "-n", namespace)
	running := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "running"}}
	before := waitForWorkload(t, running, "there", func(*batchv1.Job) bool { return true })

	annotate(t, c, v1beta1.StopScheduleAnnotation, timeOfDayIn(-time.Hour))
	c = waitForWorkload(t, c, "suspended", func(c *batchv1.CronJob) bool { return *c.Spec.Suspend })
	if got := c.Annotations[v1beta1.OriginalStateAnnotation]; got != v1beta1.OriginalStateActive {
		t.Errorf("after the stop, original-state is %q, want %s", got, v1beta1.OriginalStateActive)
	}
	checkEvents(t, c, v1beta1.EventScheduledStop, "Suspended "+causeOf(c, "stop-schedule"))
	after := waitForWorkload(t, running, "there", func(*batchv1.Job) bool { return true })
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("the running Job was changed (-before +after):\n%s", diff)
	}

	annotate(t, c, v1beta1.StopScheduleAnnotation, timeOfDayIn(time.Hour))
	c = waitForWorkload(t, c, "resumed", func(c *batchv1.CronJob) bool { return !*c.Spec.Suspend })
	if got, ok := c.Annotations[v1beta1.OriginalStateAnnotation]; ok {
		t.Errorf("after the start, original-state is %q, want no annotation", got)
	}
	checkEvents(t, c, v1beta1.EventScheduledStart, "Resumed "+causeOf(c, "start-schedule"))
}

func testSuspendedCronJob(t *testing.T, namespace string) {
	c := newCronJob(namespace, "c")
	c.Spec.Suspend = new(true)
	if err := admin(t).Create(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	in := func(state string) func(*batchv1.CronJob) bool {
		return func(c *batchv1.CronJob) bool { return c.Annotations[v1beta1.ScheduleStateAnnotation] == state }
	}
	c = waitForWorkload(t, c, "stopped", in(v1beta1.ScheduleStopped))
	annotate(t, c, v1beta1.StopScheduleAnnotation, timeOfDayIn(time.Hour))
	c = waitForWorkload(t, c, "past the start", in(""))
	if !*c.Spec.Suspend {
		t.Error("the start has resumed the CronJob")
	}
}

// newScheduledAutoscaler returns a HorizontalPodAutoscaler from 2 to 9 replicas with the schedule of newScheduled. If
// stopReplicas is empty, it has no annotation stop-replicas.
func newScheduledAutoscaler(namespace, name, stopReplicas string) *autoscalingv2.HorizontalPodAutoscaler {
	hpa := &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: newScheduled(namespace, name)}
	if stopReplicas != "" {
		hpa.Annotations[v1beta1.StopReplicasAnnotation] = stopReplicas
	}
	hpa.Spec.ScaleTargetRef = autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "d"}
	hpa.Spec.MinReplicas, hpa.Spec.MaxReplicas = new(int32(2)), 9
	return hpa
}

// limits returns a function that reports whether an autoscaler has these limits.
func limits(least, most int32) func(*autoscalingv2.HorizontalPodAutoscaler) bool {
	return func(hpa *autoscalingv2.HorizontalPodAutoscaler) bool {
		return *hpa.Spec.MinReplicas == least && hpa.Spec.MaxReplicas == most
	}
}

func testScheduledAutoscaler(t *testing.T, namespace string) {
	hpa := newScheduledAutoscaler(namespace, "hpa", "1")
	if err := admin(t).Create(t.Context(), hpa); err != nil {
		t.Fatal(err)
	}
	hpa = waitForWorkload(t, hpa, "stopped", limits(1, 1))
	saved := hpa.Annotations[v1beta1.OriginalMinReplicasAnnotation] + " to " + hpa.Annotations[v1beta1.OriginalReplicasAnnotation]
	if saved != "2 to 9" {
		t.Errorf("the stop saves %q, want 2 to 9", saved)
	}
	checkEvents(t, hpa, v1beta1.EventScheduledStop, "Changed maxReplicas from 9 to 1 "+causeOf(hpa, "stop-schedule"))

	annotate(t, hpa, v1beta1.StopScheduleAnnotation, timeOfDayIn(time.Hour))
	hpa = waitForWorkload(t, hpa, "started", limits(2, 9))
	checkEvents(t, hpa, v1beta1.EventScheduledStart, "Changed maxReplicas from 1 to 9 "+causeOf(hpa, "start-schedule"))
}

func testAutoscalerWithoutStopReplicas(t *testing.T, namespace string) {
	hpa := newScheduledAutoscaler(namespace, "hpa", "")
	if err := admin(t).Create(t.Context(), hpa); err != nil {
		t.Fatal(err)
	}
	checkEvents(t, hpa, v1beta1.EventInvalidSchedule, `useless.container.training/stop-replicas "": `+
		`it is missing, but a HorizontalPodAutoscaler has at least 1 replica; to stop at 0, annotate its workload; `+
		`use for example "1"`)
	hpa = waitForWorkload(t, hpa, "there", func(*autoscalingv2.HorizontalPodAutoscaler) bool { return true })
	if *hpa.Spec.MinReplicas != 2 || hpa.Spec.MaxReplicas != 9 {
		t.Errorf("its limits are %d and %d, want 2 and 9", *hpa.Spec.MinReplicas, hpa.Spec.MaxReplicas)
	}
}

// createScheduledVirtualMachine creates a VirtualMachine with the schedule of newScheduled and the given action.
func createScheduledVirtualMachine(t *testing.T, namespace string, action v1alpha1.Action) *v1alpha1.VirtualMachine {
	t.Helper()
	vm := newVirtualMachine(namespace, "vm")
	vm.ObjectMeta, vm.Spec.Action = newScheduled(namespace, "vm"), action
	if err := admin(t).Create(t.Context(), vm); err != nil {
		t.Fatal(err)
	}
	return vm
}

func testScheduledVirtualMachine(t *testing.T, namespace string) {
	vm := createScheduledVirtualMachine(t, namespace, v1alpha1.ActionActive)
	has := func(action v1alpha1.Action) func(*v1alpha1.VirtualMachine) bool {
		return func(vm *v1alpha1.VirtualMachine) bool { return vm.Spec.Action == action }
	}
	vm = waitForWorkload(t, vm, "inactive", has(v1alpha1.ActionInactive))
	if got := vm.Annotations[v1beta1.OriginalStateAnnotation]; got != v1beta1.OriginalStateActive {
		t.Errorf("after the stop, original-state is %q, want %s", got, v1beta1.OriginalStateActive)
	}
	checkEvents(t, vm, v1beta1.EventScheduledStop, "Set the action to inactive "+causeOf(vm, "stop-schedule"))

	annotate(t, vm, v1beta1.StopScheduleAnnotation, timeOfDayIn(time.Hour))
	vm = waitForWorkload(t, vm, "active", has(v1alpha1.ActionActive))
	checkEvents(t, vm, v1beta1.EventScheduledStart, "Set the action to active "+causeOf(vm, "start-schedule"))
}

func testInactiveVirtualMachine(t *testing.T, namespace string) {
	vm := createScheduledVirtualMachine(t, namespace, v1alpha1.ActionInactive)
	in := func(state string) func(*v1alpha1.VirtualMachine) bool {
		return func(vm *v1alpha1.VirtualMachine) bool {
			return vm.Annotations[v1beta1.ScheduleStateAnnotation] == state
		}
	}
	vm = waitForWorkload(t, vm, "stopped", in(v1beta1.ScheduleStopped))
	annotate(t, vm, v1beta1.StopScheduleAnnotation, timeOfDayIn(time.Hour))
	vm = waitForWorkload(t, vm, "past the start", in(""))
	if vm.Spec.Action != v1alpha1.ActionInactive {
		t.Errorf("the start has set the action to %s", vm.Spec.Action)
	}
}
