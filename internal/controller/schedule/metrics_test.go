// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1beta1"
)

// cachedDeployments is a cache of Deployments.
type cachedDeployments []appsv1.Deployment

func (cachedDeployments) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	panic("not implemented")
}

func (d cachedDeployments) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	list.(*appsv1.DeploymentList).Items = d
	return nil
}

func TestCollector(t *testing.T) {
	requests := func(d *appsv1.Deployment) {
		d.Spec.Template.Spec.Containers = []corev1.Container{
			{Resources: corev1.ResourceRequirements{Requests: resources("250m", "64Mi"),
				Limits: resources("1", "1Gi")}},
			{Resources: corev1.ResourceRequirements{Limits: resources("250m", "64Mi")}},
		}
	}
	stopped := observed(v1beta1.ScheduleStopped, "2026-11-20 20:00")
	var cached cachedDeployments
	for _, d := range []*appsv1.Deployment{
		newDeployment(3, requests, observed(v1beta1.ScheduleStarted, "2026-11-20 07:00")),
		newDeployment(3, requests), // not reconciled yet
		newDeployment(0, requests, original(3), stopped),
		newDeployment(1, requests, original(3), stopped), // then scaled out by a user
		newDeployment(5, requests, original(3), stopped), // then scaled out above the original
		newDeployment(3, with(v1beta1.SuspendAnnotation, "true")),
		newDeployment(3, with(v1beta1.SuspendUntilAnnotation, "2026-11-20T12:00:01Z")),
		// the suspension has ended
		newDeployment(3, with(v1beta1.SuspendUntilAnnotation, "2026-11-20T12:00:00Z"),
			observed(v1beta1.ScheduleStarted, "2026-11-20 07:00")),
		newDeployment(3, with(v1beta1.StopScheduleAnnotation, "25:00")),
		newDeployment(3, with(v1beta1.StopScheduleAnnotation, "25:00"), inNamespace("other")),
		newDeployment(0, requests, original(2), stopped, func(d *appsv1.Deployment) { d.Spec.Paused = true }),
		newDeployment(3, with(v1beta1.StartScheduleAnnotation, ""), with(v1beta1.StopScheduleAnnotation, "")),
	} {
		cached = append(cached, *d)
	}
	want := `
# HELP useless_schedule_saved_cpu_cores CPU requests of the replicas and VirtualMachines that schedules have stopped.
# TYPE useless_schedule_saved_cpu_cores gauge
useless_schedule_saved_cpu_cores{kind="deployments",namespace="default"} 2.5
useless_schedule_saved_cpu_cores{kind="deployments",namespace="other"} 0
# HELP useless_schedule_saved_memory_bytes Memory requests of the replicas and VirtualMachines that schedules have stopped.
# TYPE useless_schedule_saved_memory_bytes gauge
useless_schedule_saved_memory_bytes{kind="deployments",namespace="default"} 6.7108864e+08
useless_schedule_saved_memory_bytes{kind="deployments",namespace="other"} 0
# HELP useless_schedule_workloads Number of workloads with a schedule, by the state of the schedule.
# TYPE useless_schedule_workloads gauge
useless_schedule_workloads{kind="deployments",namespace="default",state="invalid"} 1
useless_schedule_workloads{kind="deployments",namespace="default",state="overridden"} 2
useless_schedule_workloads{kind="deployments",namespace="default",state="started"} 3
useless_schedule_workloads{kind="deployments",namespace="default",state="stopped"} 1
useless_schedule_workloads{kind="deployments",namespace="default",state="suspended"} 2
useless_schedule_workloads{kind="deployments",namespace="other",state="invalid"} 1
`
	registry := prometheus.NewRegistry()
	c := &Controller{kind: deployments, clock: clocktesting.NewFakePassiveClock(now), zone: time.UTC, namespaces: &Namespaces{client: &fakeClient{}}}
	workloads := collector{cached, []*Controller{c}}
	registry.MustRegister(prometheus.CollectorFunc(workloads.collect))
	response := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(response,
		httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	if diff := cmp.Diff(strings.TrimPrefix(want, "\n"), response.Body.String()); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
}

func resources(cpu, memory string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu),
		corev1.ResourceMemory: resource.MustParse(memory)}
}

func inNamespace(namespace string) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) { d.Namespace = namespace }
}

func TestTrimDeployment(t *testing.T) {
	d := newDeployment(3, func(d *appsv1.Deployment) {
		d.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}
		d.Annotations[corev1.LastAppliedConfigAnnotation] = "{}"
		d.Spec.Paused = true
		d.Spec.Template.Spec.Containers = []corev1.Container{{Name: "main", Image: "web",
			Resources: corev1.ResourceRequirements{Requests: resources("1", "1Gi")}}}
		d.Status.Replicas = 3
	})
	want := newDeployment(3, func(d *appsv1.Deployment) {
		d.Spec.Paused = true
		d.Spec.Template.Spec.Containers = []corev1.Container{
			{Resources: corev1.ResourceRequirements{Requests: resources("1", "1Gi")}}}
	})
	trimmed, err := deployments.transform(d)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, trimmed); diff != "" {
		t.Errorf("cached Deployment (-want +got):\n%s", diff)
	}
	if other, err := deployments.transform("something else"); err != nil || other != "something else" {
		t.Errorf("an object of another type becomes %v, %v", other, err)
	}
}
