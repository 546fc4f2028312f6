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
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/controller/schedule"
)

// scheduleManager is who the API server says the replicas are from, which the documentation names.
const scheduleManager = "useless-operator-schedule"

func TestSchedule(t *testing.T) {
	tell(t, []story{
		{"a deployment is stopped, and started again once the stop is put off", testStopAndStart},
		{"a deployment that is scaled by hand after a stop stays as it is", testScaledByHand},
		{"a deployment whose manifest is applied again after a stop has what that says", testAppliedAgain},
		{"a deployment whose schedule is removed gets back what a stop has taken", testScheduleRemoved},
		{"a deployment with a schedule that cannot be read is warned of once, and mended", testInvalidSchedule},
		{"a deployment with an autoscaler is not stopped at 1 until the autoscaler goes", testAutoscaler},
		{"a deployment with an autoscaler is stopped at 0", testAutoscalerAtZero},
		{"a deployment that KEDA scales is not stopped", testKEDA},
		{"a deployment that is paused is stopped once it goes on", testPausedDeployment},
		{"a deployment that something controls is left alone until it is let go", testOwnedDeployment},
		{"a deployment that is being deleted is left alone", testDeletedDeployment},
		{"a stop that the API server refuses is warned of once, and tried again", testScaleRefused},
	})
}

// hence is a time of day, so far from now, in UTC.
func hence(d time.Duration) string { return time.Now().UTC().Add(d).Format("15:04") }

// aDeployment has 3 replicas and a schedule whose last event was a stop an hour ago.
func aDeployment(namespace, name string) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: map[string]string{
			schedule.StartScheduleAnnotation: hence(-2 * time.Hour),
			schedule.StopScheduleAnnotation:  hence(-time.Hour),
		}},
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

// createDeployment creates what aDeployment returns, changed.
func createDeployment(t *testing.T, namespace, name string, change func(*appsv1.Deployment)) *appsv1.Deployment {
	t.Helper()
	d := aDeployment(namespace, name)
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

// waitForReplicas waits until a Deployment has so many replicas, and returns it.
func waitForReplicas(t *testing.T, d *appsv1.Deployment, replicas int32) *appsv1.Deployment {
	t.Helper()
	var got *appsv1.Deployment
	eventually(t, patience, func() (bool, string) {
		got = getDeployment(t, d.Namespace, d.Name)
		return *got.Spec.Replicas == replicas, fmt.Sprintf("there are %d replicas, not %d; annotations %v", *got.Spec.Replicas, replicas, got.Annotations)
	})
	return got
}

// annotate sets annotations, at once; an empty value takes one away.
func annotate(t *testing.T, d *appsv1.Deployment, keysAndValues ...string) {
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
	mergePatch(t, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: d.Namespace, Name: d.Name}}, "%s", patch)
}

// schedulerIsThrough returns when the operator has done all that it will do about the Deployments there are: it has
// stopped another one, which it learnt of later.
func schedulerIsThrough(t *testing.T, namespace string) {
	t.Helper()
	fence := aDeployment(namespace, "")
	fence.GenerateName = "fence-"
	if err := admin(t).Create(t.Context(), fence); err != nil {
		t.Fatal(err)
	}
	waitForReplicas(t, fence, 0)
	clusterOf(t).requests.quiet(t, namespace)
}

// checkUntouched fails the test where the operator changes a Deployment.
func checkUntouched(t *testing.T, d *appsv1.Deployment, why string) {
	t.Helper()
	before := getDeployment(t, d.Namespace, d.Name)
	schedulerIsThrough(t, d.Namespace)
	after := getDeployment(t, d.Namespace, d.Name)
	if diff := cmp.Diff(before.Spec, after.Spec) + cmp.Diff(annotationsOf(before), annotationsOf(after), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("the deployment %s was touched (-before +after):\n%s", why, diff)
	}
}

// annotationsOf are those of a Deployment without the one that its own controller writes.
func annotationsOf(d *appsv1.Deployment) map[string]string {
	annotations := maps.Clone(d.Annotations)
	delete(annotations, "deployment.kubernetes.io/revision")
	return annotations
}

// checkEvents compares the notes of all events for a reason.
func checkEvents(t *testing.T, d *appsv1.Deployment, reason string, want ...string) {
	t.Helper()
	waitForEvent(t, d, reason)
	var notes []string
	for _, event := range eventsOn(t, d, reason) {
		notes = append(notes, event.Note)
		if event.Series != nil {
			t.Errorf("%s is told %d times", reason, event.Series.Count)
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
	due, err := time.Parse(time.RFC3339, d.Annotations[schedule.LastScheduleTimeAnnotation])
	if err != nil || due.Format("15:04") != user[schedule.StopScheduleAnnotation] {
		t.Errorf("the stop was due at %s, by its annotation at %s: %v", user[schedule.StopScheduleAnnotation], due, err)
	}
	want := maps.Clone(user)
	maps.Copy(want, map[string]string{
		schedule.OriginalReplicasAnnotation: "3",
		schedule.StateAnnotation:            schedule.StateStopped,
		schedule.LastScheduleTimeAnnotation: due.Format(time.RFC3339),
		schedule.NextScheduleTimeAnnotation: due.Add(23 * time.Hour).Format(time.RFC3339),
		schedule.ObservedScheduleAnnotation: d.Annotations[schedule.ObservedScheduleAnnotation],
	})
	if diff := cmp.Diff(want, annotationsOf(d)); diff != "" {
		t.Errorf("annotations after the stop (-want +got):\n%s", diff)
	}
	if !slices.ContainsFunc(d.ManagedFields, func(f metav1.ManagedFieldsEntry) bool {
		return f.Manager == scheduleManager && strings.Contains(f.FieldsV1.GetRawString(), "f:replicas")
	}) {
		t.Errorf("%s does not own the replicas", scheduleManager)
	}
	checkEvents(t, d, schedule.EventScheduledStop, fmt.Sprintf("Scaled in from 3 to 0 replicas (stop-schedule %q, due %s)",
		user[schedule.StopScheduleAnnotation], due.Format(time.RFC3339)))

	annotate(t, d, schedule.StopScheduleAnnotation, hence(time.Hour))
	d = waitForReplicas(t, d, 3)
	if state, original := d.Annotations[schedule.StateAnnotation], d.Annotations[schedule.OriginalReplicasAnnotation]; state != schedule.StateStarted || original != "" {
		t.Errorf("after the start, the state is %q and %q replicas are remembered", state, original)
	}
	checkEvents(t, d, schedule.EventScheduledStart, fmt.Sprintf("Scaled out from 0 to 3 replicas (start-schedule %q, due %s)",
		user[schedule.StartScheduleAnnotation], due.Add(-time.Hour).Format(time.RFC3339)))
}

func testScaledByHand(t *testing.T, namespace string) {
	d := waitForReplicas(t, createDeployment(t, namespace, "d", nil), 0)
	mustKubectl(t, "", "scale", "deployment", "d", "--replicas=2", "-n", namespace)
	checkUntouched(t, d, "that was scaled by hand")
	if d = getDeployment(t, namespace, "d"); *d.Spec.Replicas != 2 {
		t.Errorf("there are %d replicas", *d.Spec.Replicas)
	}
}

func testAppliedAgain(t *testing.T, namespace string) {
	d := aDeployment(namespace, "d")
	manifest := manifestOf(t, d)
	d.Spec.Replicas = nil
	withoutReplicas := manifestOf(t, d)
	apply := []string{"apply", "--server-side", "-n", namespace, "-f", "-"}
	mustKubectl(t, manifest, apply...)
	d = waitForReplicas(t, d, 0)
	_, stderr, err := kubectl(t, manifest, apply...)
	if want := fmt.Sprintf("conflict with %q", scheduleManager); err == nil || !strings.Contains(stderr, want) {
		t.Errorf("applying the manifest again does not say %s: %v\n%s", want, err, stderr)
	}
	mustKubectl(t, withoutReplicas, apply...)
	checkUntouched(t, d, "that was applied without replicas")
	if d = getDeployment(t, namespace, "d"); *d.Spec.Replicas != 0 {
		t.Errorf("applied without replicas, there are %d of them", *d.Spec.Replicas)
	}
	mustKubectl(t, manifest, append(apply, "--force-conflicts")...)
	checkUntouched(t, d, "that was applied again")
	if d = getDeployment(t, namespace, "d"); *d.Spec.Replicas != 3 || d.Annotations[schedule.OriginalReplicasAnnotation] != "3" {
		t.Errorf("there are %d replicas; annotations %v", *d.Spec.Replicas, d.Annotations)
	}
}

// manifestOf is what people write to have a Deployment.
func manifestOf(t *testing.T, d *appsv1.Deployment) string {
	t.Helper()
	d.TypeMeta = metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"}
	manifest, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	return string(manifest)
}

func testScheduleRemoved(t *testing.T, namespace string) {
	d := waitForReplicas(t, createDeployment(t, namespace, "d", nil), 0)
	mustKubectl(t, "", "annotate", "deployment", "d", "-n", namespace, schedule.StartScheduleAnnotation+"-", schedule.StopScheduleAnnotation+"-")
	d = waitForReplicas(t, d, 3)
	if diff := cmp.Diff(map[string]string{}, annotationsOf(d), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("annotations that are left (-want +got):\n%s", diff)
	}
	checkEvents(t, d, schedule.EventScheduleRemoved, "Scaled out from 0 to 3 replicas: the schedule that had scaled in is gone")
	checkUntouched(t, d, "without a schedule")
}

func testInvalidSchedule(t *testing.T, namespace string) {
	d := createDeployment(t, namespace, "d", func(d *appsv1.Deployment) {
		d.Annotations[schedule.StopScheduleAnnotation] = "25:00"
		d.Annotations[schedule.StopReplicasAnnotation] = "none"
	})
	waitForEvent(t, d, schedule.EventInvalidSchedule)
	for i := range 3 {
		annotate(t, d, "touched", fmt.Sprint(i))
	}
	checkUntouched(t, d, "with an invalid schedule")
	checkEvents(t, d, schedule.EventInvalidSchedule,
		`useless.container.training/stop-schedule "25:00": 25:00 is no time of day from 00:00 to 23:59; use for example "Mon-Fri 20:00", "20:00" or "0 20 * * 1-5". `+
			`useless.container.training/stop-replicas "none": it is no whole number from 0 to 2147483647; use for example "0"`)

	annotate(t, d, schedule.StopScheduleAnnotation, hence(-time.Hour), schedule.TimeZoneAnnotation, "Mars/Olympus", schedule.StopReplicasAnnotation, "0")
	checkEvents(t, d, schedule.EventUnknownTimeZone,
		`useless.container.training/time-zone "Mars/Olympus": the time zone database does not have it; use for example "Europe/Berlin" or "UTC"`)
	annotate(t, d, schedule.TimeZoneAnnotation, "UTC")
	waitForReplicas(t, d, 0)
}

// createAutoscaler makes an autoscaler of a Deployment, with a controller if there is one.
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

// startedAtOne is a Deployment with an autoscaler that has to be stopped at 1, some time.
func startedAtOne(t *testing.T, namespace string, owners ...metav1.OwnerReference) (*appsv1.Deployment, *autoscalingv2.HorizontalPodAutoscaler) {
	t.Helper()
	d := createDeployment(t, namespace, "d", func(d *appsv1.Deployment) {
		d.Annotations[schedule.StopScheduleAnnotation] = hence(time.Hour)
		d.Annotations[schedule.StopReplicasAnnotation] = "1"
	})
	hpa := createAutoscaler(t, d, owners...)
	waitForEvent(t, d, schedule.EventAutoscalerConflict)
	return d, hpa
}

func testAutoscaler(t *testing.T, namespace string) {
	d, hpa := startedAtOne(t, namespace)
	annotate(t, d, schedule.StopScheduleAnnotation, hence(-time.Hour))
	checkUntouched(t, d, "with an autoscaler")
	checkEvents(t, d, schedule.EventAutoscalerConflict,
		`useless.container.training/stop-replicas "1": HorizontalPodAutoscaler d would undo a stop, so there is none; use "0", which turns it off meanwhile`)
	if err := admin(t).Delete(t.Context(), hpa); err != nil {
		t.Fatal(err)
	}
	waitForReplicas(t, d, 1)
}

func testAutoscalerAtZero(t *testing.T, namespace string) {
	d, _ := startedAtOne(t, namespace)
	annotate(t, d, schedule.StopScheduleAnnotation, hence(-time.Hour), schedule.StopReplicasAnnotation, "0")
	waitForReplicas(t, d, 0)
	annotate(t, d, schedule.StopScheduleAnnotation, hence(time.Hour))
	waitForReplicas(t, d, 3)
}

func testKEDA(t *testing.T, namespace string) {
	d, _ := startedAtOne(t, namespace, metav1.OwnerReference{
		APIVersion: "keda.sh/v1alpha1", Kind: "ScaledObject", Name: "events", UID: "not-there", Controller: new(true),
	})
	annotate(t, d, schedule.StopScheduleAnnotation, hence(-time.Hour), schedule.StopReplicasAnnotation, "0")
	checkUntouched(t, d, "that KEDA scales")
	checkEvents(t, d, schedule.EventAutoscalerConflict,
		"ScaledObject events would undo a stop, so there is none: pause it with its annotation autoscaling.keda.sh/paused-replicas instead")
}

func testPausedDeployment(t *testing.T, namespace string) {
	annotated := createDeployment(t, namespace, "annotated", func(d *appsv1.Deployment) { d.Annotations[v1beta1.PausedAnnotation] = "true" })
	rollout := createDeployment(t, namespace, "rollout", func(d *appsv1.Deployment) { d.Spec.Paused = true })
	checkUntouched(t, annotated, "that is paused")
	checkUntouched(t, rollout, "whose rollout is paused")
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
	checkUntouched(t, d, "that something controls")
	mergePatch(t, d, `{"metadata":{"ownerReferences":null}}`)
	waitForReplicas(t, d, 0)
}

func testDeletedDeployment(t *testing.T, namespace string) {
	d := createDeployment(t, namespace, "d", func(d *appsv1.Deployment) {
		d.Finalizers = []string{"example.com/wait"}
		d.Annotations[schedule.SuspendAnnotation] = "true"
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
	annotate(t, d, schedule.SuspendAnnotation, "", schedule.StopReplicasAnnotation, "1")
	checkUntouched(t, d, "that is being deleted")
}

func testScaleRefused(t *testing.T, namespace string) {
	d := createDeployment(t, namespace, "d", func(d *appsv1.Deployment) { d.Annotations[schedule.StopScheduleAnnotation] = hence(time.Hour) })
	allow := forbidUpdates(t, d, appsv1.GroupName, "deployments", "object.spec.replicas > 0", `{"spec":{"replicas":0}}`)
	annotate(t, d, schedule.StopScheduleAnnotation, hence(-time.Hour))
	waitForEvent(t, d, schedule.EventScaleFailed)
	checkUntouched(t, d, "that may not be scaled")
	allow()
	waitForReplicas(t, d, 0)
	waitForEvent(t, d, schedule.EventScheduledStop)
	failures := eventsOn(t, d, schedule.EventScaleFailed)
	if len(failures) != 1 || failures[0].Series != nil || !strings.Contains(failures[0].Note, "Could not scale from 3 to 0 replicas: ") {
		t.Errorf("want one event that says why, got %+v", failures)
	}
}
