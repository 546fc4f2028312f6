// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"container.training/useless/api/cloudnative/v1alpha1"
	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/schedule"
)

// TestStopAndStart stops a workload of each kind except Deployment, and starts it again. In between, a user may change
// it. TestDecide stops and starts Deployments.
func TestStopAndStart(t *testing.T) {
	for _, c := range []struct {
		reason          string
		kind            *kind
		before          int32 // the level before the stop
		byUser          int32 // the level that a user sets after the stop; -1 for none
		stopped, after  int32
		saved           string // the annotations that the stop writes, as savedIn returns them
		stop, startNote string // the descriptions of the stop and the start in events; empty for none
	}{
		{"a stop scales a StatefulSet in, and a start restores its replicas", statefulSets, 3, -1, 0, 3,
			"original-replicas=3", "Scaled in from 3 to 0 replicas", "Scaled out from 0 to 3 replicas"},
		{"a start does not lower the replicas that a user sets after the stop", statefulSets, 3, 5, 0, 5,
			"original-replicas=3", "Scaled in from 3 to 0 replicas", ""},
		{"a stop suspends a CronJob, and a start resumes it", cronJobs, 1, -1, 0, 1,
			"original-state=Active", "Suspended", "Resumed"},
		{"a start does not resume a CronJob that a user had suspended before the stop", cronJobs, 0, -1, 0, 0,
			"", "", ""},
		{"a CronJob that a user resumes after the stop stays resumed", cronJobs, 1, 1, 0, 1,
			"original-state=Active", "Suspended", ""},
		{"a stop deactivates a VirtualMachine, and a start activates it", virtualMachines, 1, -1, 0, 1,
			"original-state=Active", "Set the action to inactive", "Set the action to active"},
		{"a start does not activate a VirtualMachine that a user had deactivated", virtualMachines, 0, -1, 0, 0,
			"", "", ""},
		{"a stop limits an autoscaler, and a start restores its limits", horizontalPodAutoscalers, 9, -1, 1, 9,
			"original-replicas=9,original-min-replicas=4", "Changed maxReplicas from 9 to 1", "Changed maxReplicas from 1 to 9"},
		{"a start does not change an autoscaler that the stop has not changed", horizontalPodAutoscalers, 1, -1, 1, 1,
			"", "", ""},
		{"if a user raises maxReplicas after the stop, a start restores only minReplicas", horizontalPodAutoscalers,
			9, 12, 1, 12,
			"original-replicas=9,original-min-replicas=4", "Changed maxReplicas from 9 to 1", "Restored minReplicas"},
		{"a stop pauses a ScaledObject, and a start removes the pause", scaledObjects, 1, -1, 0, 1,
			"original-state=Active", "Set the annotation autoscaling.keda.sh/paused-replicas",
			"Removed the annotation autoscaling.keda.sh/paused-replicas"},
		{"a start does not remove the pause of a user", scaledObjects, 0, -1, 0, 0, "", "", ""},
	} {
		t.Run(c.reason, func(t *testing.T) {
			o := newWorkload(c.kind, c.before)
			if note := execute(t, c.kind, o, "2026-11-20 20:00"); note != c.stop {
				t.Errorf("the stop emits %q, want %q", note, c.stop)
			}
			if got := c.kind.level(o); got != c.stopped {
				t.Errorf("after the stop, the level is %d, want %d", got, c.stopped)
			}
			if got := savedIn(o); got != c.saved {
				t.Errorf("the stop saves %q, want %q", got, c.saved)
			}
			if c.byUser >= 0 {
				c.kind.setLevel(o, c.byUser)
			}
			if note := execute(t, c.kind, o, "2026-11-23 07:00"); note != c.startNote {
				t.Errorf("the start emits %q, want %q", note, c.startNote)
			}
			if got := c.kind.level(o); got != c.after || savedIn(o) != "" {
				t.Errorf("after the start, the level is %d, want %d; saved %q", got, c.after, savedIn(o))
			}
		})
	}
}

// TestSecondStopKeepsMinReplicas stops an autoscaler again, after a user has raised only maxReplicas.
func TestSecondStopKeepsMinReplicas(t *testing.T) {
	hpa := newWorkload(horizontalPodAutoscalers, 9)
	before := *horizontalPodAutoscalers.least(hpa)
	execute(t, horizontalPodAutoscalers, hpa, "2026-11-20 20:00")
	horizontalPodAutoscalers.setLevel(hpa, 12)
	execute(t, horizontalPodAutoscalers, hpa, "2026-11-23 20:00")
	if got, want := savedIn(hpa), "original-replicas=12,original-min-replicas=4"; got != want {
		t.Errorf("the second stop saves %q, want %q", got, want)
	}
	execute(t, horizontalPodAutoscalers, hpa, "2026-11-24 07:00")
	if level, least := horizontalPodAutoscalers.level(hpa), *horizontalPodAutoscalers.least(hpa); level != 12 || least != before {
		t.Errorf("after the start, minReplicas is %d and maxReplicas is %d, want %d and 12", least, level, before)
	}
}

// execute executes the last event of a workload, and returns the description of the change, or an empty string.
func execute(t *testing.T, k *kind, o client.Object, now string) string {
	t.Helper()
	p := decideAt(k, o, nil, at(now))
	if p.warning != (warning{}) {
		t.Fatal(p.warning)
	}
	before := k.level(o)
	k.apply(o, p)
	if p.outcome != scaled {
		return ""
	}
	return k.describe(before, p.level)
}

// savedIn returns the annotations in which a stop saves the previous state.
func savedIn(o client.Object) string {
	var saved []string
	for _, key := range []string{
		v1beta1.OriginalReplicasAnnotation, v1beta1.OriginalMinReplicasAnnotation, v1beta1.OriginalStateAnnotation,
	} {
		if value, ok := o.GetAnnotations()[key]; ok {
			saved = append(saved, key[strings.Index(key, "/")+1:]+"="+value)
		}
	}
	return strings.Join(saved, ",")
}

// TestRemovalKeepsLastApplied starts a workload whose schedule was removed. The workload has only the annotations of
// kubectl apply and of the operator. The patch must not remove the annotation of kubectl apply.
func TestRemovalKeepsLastApplied(t *testing.T) {
	annotations := map[string]string{corev1.LastAppliedConfigAnnotation: "{}"}
	schedule.Record{State: v1beta1.ScheduleStopped, Original: 3, Last: now.Add(-time.Hour)}.Write(annotations, false)
	read, err := statefulSets.transform(&appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: "s", ResourceVersion: "7", Annotations: annotations},
		Spec:       appsv1.StatefulSetSpec{Replicas: new(int32(0))},
	})
	if err != nil {
		t.Fatal(err)
	}
	cached := read.(client.Object)
	written := cached.DeepCopyObject().(client.Object)
	statefulSets.apply(written, decideAt(statefulSets, cached, nil, now))
	body, err := client.MergeFrom(cached).Data(written)
	if err != nil {
		t.Fatal(err)
	}
	var patch struct {
		Metadata struct{ Annotations map[string]*string }
		Spec     struct{ Replicas int32 }
	}
	if err := json.Unmarshal(body, &patch); err != nil {
		t.Fatal(err)
	}
	_, removed := patch.Metadata.Annotations[corev1.LastAppliedConfigAnnotation]
	if patch.Spec.Replicas != 3 || patch.Metadata.Annotations == nil || removed {
		t.Errorf("the patch is %s, want 3 replicas, and null for each annotation of the operator only", body)
	}
}

func TestRemovalRestoresEachKind(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			before := int32(1)
			if !k.onOff {
				before = 3
			}
			o := newWorkload(k, before)
			execute(t, k, o, "2026-11-20 20:00")
			set(o, v1beta1.StartScheduleAnnotation, "")
			set(o, v1beta1.StopScheduleAnnotation, "")
			set(o, v1beta1.StopReplicasAnnotation, "")
			k.apply(o, decideAt(k, o, nil, now))
			if got := k.level(o); got != before {
				t.Errorf("the level is %d, want %d", got, before)
			}
			if diff := cmp.Diff(map[string]string{}, o.GetAnnotations()); diff != "" {
				t.Errorf("remaining annotations (-want +got):\n%s", diff)
			}
		})
	}
}

// TestProblemsOfOnOff sets stop-replicas on a CronJob. The operator must report a problem, because a CronJob has no
// replicas.
func TestProblemsOfOnOff(t *testing.T) {
	o := newWorkload(cronJobs, 1)
	set(o, v1beta1.StopReplicasAnnotation, "1")
	_, problems := cronJobs.parse(o.GetAnnotations(), nil, time.UTC)
	_, note := schedule.Explain(problems)
	want := `useless.container.training/stop-replicas "1": this kind of workload has no replicas; remove it`
	if note != want {
		t.Errorf("got %s\nwant %s", note, want)
	}
	if _, problems := statefulSets.parse(o.GetAnnotations(), nil, time.UTC); len(problems) > 0 {
		t.Errorf("a StatefulSet has replicas, but got %v", problems)
	}
}

// TestLimitsOfAutoscaler stops a HorizontalPodAutoscaler and starts it again. In between, a user may change its limits.
func TestLimitsOfAutoscaler(t *testing.T) {
	for _, c := range []struct {
		reason         string
		before         [2]int32 // minReplicas and maxReplicas
		stopReplicas   string
		byUser         [2]int32 // after the stop; zero for no change
		stopped, after [2]int32
	}{
		{"a stop sets both limits to stop-replicas, and a start restores them", [2]int32{4, 9}, "2", [2]int32{},
			[2]int32{2, 2}, [2]int32{4, 9}},
		{"a stop does not raise minReplicas, because that could add replicas", [2]int32{1, 9}, "3", [2]int32{},
			[2]int32{1, 3}, [2]int32{1, 9}},
		{"minReplicas 0 does not change", [2]int32{0, 9}, "1", [2]int32{}, [2]int32{0, 1}, [2]int32{0, 9}},
		{"a start restores minReplicas even if a user has raised maxReplicas", [2]int32{4, 9}, "1", [2]int32{1, 9},
			[2]int32{1, 1}, [2]int32{4, 9}},
		{"a start does not lower the higher maxReplicas of a user", [2]int32{4, 9}, "1", [2]int32{1, 12},
			[2]int32{1, 1}, [2]int32{4, 12}},
		{"a start does not lower the higher limits of a user", [2]int32{4, 9}, "1", [2]int32{6, 12},
			[2]int32{1, 1}, [2]int32{6, 12}},
	} {
		o := newWorkload(horizontalPodAutoscalers, c.before[1]).(*autoscalingv2.HorizontalPodAutoscaler)
		limits := func() [2]int32 { return [2]int32{*o.Spec.MinReplicas, o.Spec.MaxReplicas} }
		horizontalPodAutoscalers.setLeast(o, c.before[0])
		set(o, v1beta1.StopReplicasAnnotation, c.stopReplicas)
		execute(t, horizontalPodAutoscalers, o, "2026-11-20 20:00")
		if got := limits(); got != c.stopped {
			t.Errorf("%s: after the stop, the limits are %d, want %d", c.reason, got, c.stopped)
		}
		if c.byUser != [2]int32{} {
			horizontalPodAutoscalers.setLeast(o, c.byUser[0])
			horizontalPodAutoscalers.setLevel(o, c.byUser[1])
		}
		execute(t, horizontalPodAutoscalers, o, "2026-11-23 07:00")
		if got := limits(); got != c.after || savedIn(o) != "" {
			t.Errorf("%s: after the start, the limits are %d, want %d; saved %q", c.reason, got, c.after, savedIn(o))
		}
	}
}

// TestScaledObject requires that a stop sets the annotation of KEDA to stop-replicas, unless a user has paused the
// ScaledObject.
func TestScaledObject(t *testing.T) {
	for _, c := range []struct{ reason, stopReplicas, want string }{
		{"0 is the default", "", "0"},
		{"KEDA supports any number", "2", "2"},
	} {
		o := newWorkload(scaledObjects, 1)
		set(o, v1beta1.StopReplicasAnnotation, c.stopReplicas)
		execute(t, scaledObjects, o, "2026-11-20 20:00")
		if got := o.GetAnnotations()[pausedReplicas]; got != c.want {
			t.Errorf("%s: got %q, want %q", c.reason, got, c.want)
		}
		execute(t, scaledObjects, o, "2026-11-23 07:00")
		if got, ok := o.GetAnnotations()[pausedReplicas]; ok {
			t.Errorf("%s: after the start, the annotation is %q", c.reason, got)
		}
	}
	for value, paused := range map[string]bool{"true": true, "yes": true, "false": false} {
		o := newWorkload(scaledObjects, 1)
		set(o, pausedAutoscaling, value)
		if got := scaledObjects.leaveAlone(o); got != paused {
			t.Errorf("with %s=%s, the operator leaves the ScaledObject alone: %t", pausedAutoscaling, value, got)
		}
	}
	o := newWorkload(scaledObjects, 1)
	set(o, v1beta1.StartReplicasAnnotation, "3")
	_, problems := scaledObjects.parse(o.GetAnnotations(), nil, time.UTC)
	want := `useless.container.training/start-replicas "3": after a start, KEDA decides about the replicas; remove it`
	if _, note := schedule.Explain(problems); note != want {
		t.Errorf("got %s\nwant %s", note, want)
	}
}

func TestProblemsOfAutoscaler(t *testing.T) {
	for _, c := range []struct{ reason, key, value, want string }{
		{"the default of 0 replicas is impossible", v1beta1.StopReplicasAnnotation, "",
			`useless.container.training/stop-replicas "": it is missing, but a HorizontalPodAutoscaler has at least 1 replica; ` +
				`to stop at 0, annotate its workload; use for example "1"`},
		{"0 replicas are impossible", v1beta1.StopReplicasAnnotation, "0",
			`useless.container.training/stop-replicas "0": a HorizontalPodAutoscaler has at least 1 replica; ` +
				`to stop at 0, annotate its workload; use for example "1"`},
		{"an invalid number is reported once", v1beta1.StopReplicasAnnotation, "few",
			`useless.container.training/stop-replicas "few": it is not a whole number from 0 to 2147483647; use for example "0"`},
		{"start-replicas is invalid, because a start restores two numbers", v1beta1.StartReplicasAnnotation, "5",
			`useless.container.training/start-replicas "5": a start restores minReplicas and maxReplicas from before the stop; ` +
				"remove it"},
	} {
		o := newWorkload(horizontalPodAutoscalers, 9)
		set(o, c.key, c.value)
		_, problems := horizontalPodAutoscalers.parse(o.GetAnnotations(), nil, time.UTC)
		if _, note := schedule.Explain(problems); note != c.want {
			t.Errorf("%s: got %s\nwant %s", c.reason, note, c.want)
		}
		set(o, v1beta1.StopScheduleAnnotation, "")
		set(o, v1beta1.StopAfterAnnotation, "4h")
		_, problems = horizontalPodAutoscalers.parse(o.GetAnnotations(), nil, time.UTC)
		if _, note := schedule.Explain(problems); note != c.want {
			t.Errorf("%s, with stop-after: got %s\nwant %s", c.reason, note, c.want)
		}
	}
}

// TestTrim requires that the cache keeps all fields that the functions of a kind read.
func TestTrim(t *testing.T) {
	pod := corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "web",
		Resources: corev1.ResourceRequirements{Requests: resources("1", "1Gi")}}}}}
	for _, c := range []struct {
		reason string
		kind   *kind
		full   client.Object
	}{
		{"a Deployment", deployments, &appsv1.Deployment{
			Spec: appsv1.DeploymentSpec{Replicas: new(int32(3)), Paused: true, Template: pod}}},
		{"a StatefulSet", statefulSets, &appsv1.StatefulSet{
			Spec: appsv1.StatefulSetSpec{Replicas: new(int32(3)), Template: pod}}},
		{"a suspended CronJob", cronJobs, &batchv1.CronJob{
			Spec: batchv1.CronJobSpec{Schedule: "@daily", Suspend: new(true)}}},
		{"a HorizontalPodAutoscaler", horizontalPodAutoscalers, &autoscalingv2.HorizontalPodAutoscaler{
			Spec: autoscalingv2.HorizontalPodAutoscalerSpec{MinReplicas: new(int32(2)), MaxReplicas: 9}}},
	} {
		t.Run(c.reason, func(t *testing.T) {
			c.full.SetName("w")
			c.full.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: "kubectl"}})
			c.full.SetAnnotations(map[string]string{corev1.LastAppliedConfigAnnotation: "{}", "other": "kept"})
			trimmed, err := c.kind.transform(c.full.DeepCopyObject())
			if err != nil {
				t.Fatal(err)
			}
			o := trimmed.(client.Object)
			want := map[string]string{corev1.LastAppliedConfigAnnotation: "", "other": "kept"}
			if diff := cmp.Diff(want, o.GetAnnotations()); diff != "" {
				t.Errorf("annotations (-want +got):\n%s", diff)
			}
			if o.GetManagedFields() != nil || o.GetName() != "w" {
				t.Errorf("metadata: %v", o)
			}
			if diff := cmp.Diff(readBy(c.kind, c.full), readBy(c.kind, o)); diff != "" {
				t.Errorf("values that the functions return (-full +trimmed):\n%s", diff)
			}
		})
	}
}

// readBy returns the values that the functions of a kind read from a workload.
func readBy(k *kind, o client.Object) (read struct {
	Level    int32
	Least    *int32
	Paused   bool
	Requests corev1.ResourceList
}) {
	read.Level, read.Least, read.Paused = k.level(o), k.leastOf(o), k.leaveAlone(o)
	if k.requests != nil {
		read.Requests = k.requests(o)
	}
	return read
}

func TestSaved(t *testing.T) {
	stopped := func(k *kind) client.Object {
		o := newWorkload(k, 1)
		execute(t, k, o, "2026-11-20 20:00")
		return o
	}
	vm := stopped(virtualMachines).(*v1alpha1.VirtualMachine)
	vm.Spec.Resource.CPU, vm.Spec.Resource.Memory = resource.MustParse("2"), resource.MustParse("4Gi")
	fractional := newDeployment(0, original(3), observed(v1beta1.ScheduleStopped, "2026-11-20 20:00"))
	fractional.Spec.Template.Spec.Resources = new(requirements(resources("2", "1.5Gi"), nil))
	for _, c := range []struct {
		reason string
		kind   *kind
		object client.Object
		want   corev1.ResourceList
	}{
		{"three stopped replicas save three times the requests", deployments, fractional, resources("6", "4.5Gi")},
		{"the first call has not changed the requests in the cache", deployments, fractional, resources("6", "4.5Gi")},
		{"a stopped VirtualMachine saves everything that it requested", virtualMachines, vm, resources("2", "4Gi")},
		{"a running VirtualMachine saves nothing", virtualMachines, newWorkload(virtualMachines, 1),
			corev1.ResourceList{}},
		{"a stopped CronJob does not save requests", cronJobs, stopped(cronJobs), corev1.ResourceList{}},
	} {
		if diff := cmp.Diff(c.want, c.kind.saved(c.object)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.reason, diff)
		}
	}
}

// TestRequestsOf checks the requests of Pods. It also checks that the cache keeps the fields from which the requests
// are computed.
func TestRequestsOf(t *testing.T) {
	const always = corev1.ContainerRestartPolicyAlways
	one, two := resources("1", "1Gi"), resources("2", "2Gi")
	pod := func(ofPod *corev1.ResourceRequirements, ofInit *corev1.ContainerRestartPolicy) *corev1.PodSpec {
		return &corev1.PodSpec{
			Resources:      ofPod,
			InitContainers: []corev1.Container{{Resources: requirements(two, nil), RestartPolicy: ofInit}},
			Containers:     []corev1.Container{{Resources: requirements(one, nil)}, {Resources: requirements(nil, one)}},
		}
	}
	for _, c := range []struct {
		reason string
		pod    *corev1.PodSpec
		want   corev1.ResourceList
	}{
		{"a limit replaces a missing request, and an init container does not count", pod(nil, nil), two},
		{"a sidecar counts, because it runs as long as the Pod", pod(nil, new(always)), resources("4", "4Gi")},
		{"requests of the Pod include all containers", pod(new(requirements(one, nil)), new(always)), one},
		{"limits of the Pod are not requests if a container has requests", pod(new(requirements(nil, one)), nil), two},
		{"limits of the Pod are requests if no container has a request or a limit",
			&corev1.PodSpec{Resources: new(requirements(nil, one)), Containers: []corev1.Container{{}}}, one},
	} {
		for _, pod := range []*corev1.PodSpec{c.pod, new(trimPod(c.pod))} {
			if got := requestsOf(pod); !apiequality.Semantic.DeepEqual(got, c.want) {
				t.Errorf("%s: got %v, want %v", c.reason, got, c.want)
			}
		}
	}
}

func requirements(requests, limits corev1.ResourceList) corev1.ResourceRequirements {
	return corev1.ResourceRequirements{Requests: requests, Limits: limits}
}

// TestKindTypes requires that the name, the Go types and the group, version and kind of each kind match.
func TestKindTypes(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	for _, k := range kinds {
		object, objectErr := apiutil.GVKForObject(k.object, scheme)
		list, listErr := apiutil.GVKForObject(k.list, scheme)
		if object != k.gvk || list != k.gvk.GroupVersion().WithKind(k.gvk.Kind+"List") || objectErr != nil || listErr != nil {
			t.Errorf("%s: object %s (%v), list %s (%v), want %s", k.name, object, objectErr, list, listErr, k.gvk)
		}
		if plural, _ := meta.UnsafeGuessKindToResource(k.gvk); plural.Resource != k.name {
			t.Errorf("%s: the plural of %s is %s", k.name, k.gvk.Kind, plural.Resource)
		}
		if (k.isPaused == nil) != (k.resume == "") {
			t.Errorf("%s: the kind has only one of isPaused and resume", k.name)
		}
	}
}

func TestKindsNamed(t *testing.T) {
	for _, c := range []struct {
		names []string
		want  []string
		err   string
	}{
		{nil, Kinds(), ""},
		{[]string{"cronjobs", "deployments"}, []string{"deployments", "cronjobs"}, ""},
		{[]string{"deployments", "cronjobs", "deployments"}, []string{"deployments", "cronjobs"}, ""},
		{[]string{"Deployment"}, nil, `invalid value "Deployment" for flag --schedule-kinds: choose from ` +
			"deployments, statefulsets, cronjobs, virtualmachines, horizontalpodautoscalers, scaledobjects"},
	} {
		selected, err := kindsNamed(c.names)
		var got []string
		for _, k := range selected {
			got = append(got, k.name)
		}
		if err != nil && err.Error() != c.err || err == nil && c.err != "" {
			t.Errorf("%q: got error %v, want %s", c.names, err, c.err)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", c.names, diff)
		}
	}
}

// TestForgetAbsentKind simulates that the CustomResourceDefinition of a kind is removed, without watch events about its
// workloads. When the alarm of a workload fires, the controller must forget the workload.
func TestForgetAbsentKind(t *testing.T) {
	c, _, _ := newController(scaledObjects, nil, prometheus.NewRegistry())
	o := newDeployment(1)
	request := reconcile.Request{NamespacedName: client.ObjectKeyFromObject(o)}
	c.memory.Update(o, func(r *remembered) { r.failure = "rejected" })
	c.alarms.Set(request, now.Add(time.Hour))
	c.absent.Store(true)
	if _, err := c.Reconcile(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	if left := c.memory.Of(o).failure; left != "" || !c.alarms.Next(request).IsZero() {
		t.Errorf("the controller still remembers %q and an alarm at %s", left, c.alarms.Next(request))
	}
}
