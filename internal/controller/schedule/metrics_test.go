// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strconv"
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
	toolscache "k8s.io/client-go/tools/cache"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/events"
	"container.training/useless/internal/queue"
)

// cachedDeployments is a cache with these Deployments.
type cachedDeployments struct {
	cache.Informers
	deployments []*appsv1.Deployment
}

// GetInformer implements cache.Informers.
func (c cachedDeployments) GetInformer(
	context.Context, client.Object, ...cache.InformerGetOption,
) (cache.Informer, error) {
	shared := toolscache.NewSharedIndexInformer(&toolscache.ListWatch{}, &appsv1.Deployment{}, 0, toolscache.Indexers{})
	for i, d := range c.deployments {
		d.Name += strconv.Itoa(i) // the store has one object for each name
		if err := shared.GetStore().Add(d); err != nil {
			return nil, err
		}
	}
	return shared, nil
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
	cached := cachedDeployments{deployments: []*appsv1.Deployment{
		newDeployment(3, requests, observed(v1beta1.ScheduleStarted, "2026-11-20 07:00")),
		newDeployment(3, requests), // not reconciled yet
		newDeployment(0, requests, original(3), stopped),
		newDeployment(1, requests, original(3), stopped),                        // then scaled out by a user
		newDeployment(5, requests, original(3), stopped),                        // then scaled out above the original
		newDeployment(0, observed(v1beta1.ScheduleStarted, "2026-11-20 07:00")), // then scaled to 0 by a user
		newDeployment(0, observed("", "2026-11-20 07:00")),                      // the replicas before the stop were not known
		newDeployment(3, with(v1beta1.SuspendAnnotation, "true")),
		newDeployment(3, with(v1beta1.SuspendUntilAnnotation, "2026-11-20T12:00:01Z")),
		// the suspension has ended
		newDeployment(3, with(v1beta1.SuspendUntilAnnotation, "2026-11-20T12:00:00Z"),
			observed(v1beta1.ScheduleStarted, "2026-11-20 07:00")),
		newDeployment(3, with(v1beta1.StopScheduleAnnotation, "25:00")),
		newDeployment(3, with(v1beta1.StopScheduleAnnotation, "25:00"), inNamespace("other")),
		newDeployment(0, requests, original(2), stopped, func(d *appsv1.Deployment) { d.Spec.Paused = true }),
		newDeployment(3, with(v1beta1.StartScheduleAnnotation, ""), with(v1beta1.StopScheduleAnnotation, "")),
	}}
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
useless_schedule_workloads{kind="deployments",namespace="default",state="overridden"} 3
useless_schedule_workloads{kind="deployments",namespace="default",state="started"} 3
useless_schedule_workloads{kind="deployments",namespace="default",state="stopped"} 2
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

// TestStateOfInvalidDefault checks the state of a workload with a default schedule. The schedule would be valid on a
// workload, but is not valid on a Namespace.
func TestStateOfInvalidDefault(t *testing.T) {
	defaults := map[string]string{
		v1beta1.StopScheduleAnnotation: "20:00", v1beta1.StartUntilAnnotation: "3h",
	}
	d := newDeployment(3)
	d.Annotations = nil
	if got := deployments.state(d, defaults, time.UTC, now); got != "invalid" {
		t.Errorf("got state %q, want invalid", got)
	}
}

// TestCollectDefaults counts the workloads in a Namespace with a default. Workloads without annotations
// of their own count too. If the default is invalid, or in a dry run, the operator does not write to these workloads.
func TestCollectDefaults(t *testing.T) {
	unannotated := func(d *appsv1.Deployment) { d.Annotations = nil }
	none := func(d *appsv1.Deployment) {
		d.Annotations = map[string]string{v1beta1.ScheduleAnnotation: v1beta1.ScheduleNone}
	}
	cached := cachedDeployments{deployments: []*appsv1.Deployment{
		newDeployment(3, unannotated), newDeployment(0, unannotated), newDeployment(3), newDeployment(3, none),
		newDeployment(3, unannotated, inNamespace("other")),
	}}
	for _, c := range []struct {
		reason   string
		defaults map[string]string
		want     map[string]float64
	}{
		{"there is no default", nil, map[string]float64{"started": 1}},
		{"the default is invalid", map[string]string{v1beta1.StopScheduleAnnotation: "25:00"},
			map[string]float64{"invalid": 2, "started": 1}},
		{"the default is in a dry run", map[string]string{
			v1beta1.StopScheduleAnnotation: "20:00", v1beta1.DryRunAnnotation: "true",
		}, map[string]float64{"started": 2, "stopped": 1}},
		{"the Namespace has a dry run, but no default", map[string]string{v1beta1.DryRunAnnotation: "true"},
			map[string]float64{"started": 1}},
	} {
		t.Run(c.reason, func(t *testing.T) {
			api := &fakeClient{defaults: c.defaults}
			controller := &Controller{kind: deployments, clock: clocktesting.NewFakePassiveClock(now), zone: time.UTC,
				client: api, namespaces: &Namespaces{client: api}}
			namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default", Annotations: c.defaults}}
			controller.workloadsIn(t.Context(), namespace)
			registry := prometheus.NewRegistry()
			registry.MustRegister(prometheus.CollectorFunc(collector{cached, []*Controller{controller}}.collect))
			if diff := cmp.Diff(c.want, workloadsByState(t, registry, "default")); diff != "" {
				t.Errorf("useless_schedule_workloads (-want +got):\n%s", diff)
			}
		})
	}
}

// workloadsByState returns the gauge useless_schedule_workloads of a namespace.
func workloadsByState(t *testing.T, registry *prometheus.Registry, namespace string) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	states := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			labels := map[string]string{}
			for _, label := range metric.GetLabel() {
				labels[label.GetName()] = label.GetValue()
			}
			if family.GetName() == "useless_schedule_workloads" && labels[namespaceLabel] == namespace {
				states[labels["state"]] = metric.GetGauge().GetValue()
			}
		}
	}
	return states
}

// TestSavings reconciles a stopped Deployment of three replicas with 500m CPU and 1 KiB of memory each.
func TestSavings(t *testing.T) {
	requests := func(d *appsv1.Deployment) {
		d.Spec.Template.Spec.Containers = []corev1.Container{{
			Resources: corev1.ResourceRequirements{Requests: resources("500m", "1Ki")},
		}}
	}
	stopped := observed(v1beta1.ScheduleStopped, "2026-11-20 07:30")
	office := with(v1beta1.StopScheduleAnnotation, "07:30")
	deployment := func(replicas int32, changes ...func(*appsv1.Deployment)) *appsv1.Deployment {
		return newDeployment(replicas, append([]func(*appsv1.Deployment){office, requests}, changes...)...)
	}
	api := &fakeClient{}
	clock, registry := clocktesting.NewFakePassiveClock(now), prometheus.NewRegistry()
	c := &Controller{
		kind: deployments, client: api, clock: clock, zone: time.UTC, events: events.NewRecorder(noEvents{}),
		metrics: newMetrics(registry, collector{}), alarms: queue.NewAlarms(clock),
		namespaces: &Namespaces{client: api, api: api}, api: api, dryRunEnd: &dryRunEnd{},
	}
	for _, step := range []struct {
		reason      string
		after       time.Duration
		object      *appsv1.Deployment
		coreSeconds float64 // the sum of all steps up to this one
		byteSeconds float64
	}{
		{"the first reconcile does not know how long the Deployment has been stopped", 0,
			deployment(0, original(3), stopped), 0, 0},
		{"three replicas are stopped for 100 s", 100 * time.Second,
			deployment(0, original(3), stopped), 150, 300 << 10},
		{"a user changes the replicas to 2 after 100 s", 100 * time.Second,
			deployment(2, original(3), stopped), 300, 600 << 10},
		{"one replica is stopped, and then the rollout is paused", 100 * time.Second,
			deployment(2, original(3), stopped, func(d *appsv1.Deployment) { d.Spec.Paused = true }), 350, 700 << 10},
		{"the time of the pause does not count", 100 * time.Second,
			deployment(2, original(3), stopped), 350, 700 << 10},
		{"the Deployment is started", 100 * time.Second,
			deployment(3, observed(v1beta1.ScheduleStarted, "2026-11-20 07:00")), 400, 800 << 10},
		{"a started Deployment saves nothing", 100 * time.Second,
			deployment(0, original(3), stopped), 400, 800 << 10},
		{"another Deployment of the same name does not inherit savings", 100 * time.Second,
			deployment(0, original(3), stopped, func(d *appsv1.Deployment) { d.UID = "2" }), 400, 800 << 10},
		{"a clock that goes back saves nothing", -50 * time.Second,
			deployment(0, original(3), stopped, func(d *appsv1.Deployment) { d.UID = "2" }), 400, 800 << 10},
	} {
		clock.SetTime(clock.Now().Add(step.after))
		api.stored, api.cached = step.object, step.object
		request := reconcile.Request{NamespacedName: client.ObjectKeyFromObject(step.object)}
		if _, err := c.Reconcile(t.Context(), request); err != nil {
			t.Fatalf("%s: %v", step.reason, err)
		}
		cores := counted(t, registry, "useless_schedule_saved_cpu_core_seconds_total")
		bytes := counted(t, registry, "useless_schedule_saved_memory_byte_seconds_total")
		if cores != step.coreSeconds || bytes != step.byteSeconds {
			t.Errorf("%s: got %v core seconds and %v byte seconds, want %v and %v", step.reason, cores, bytes,
				step.coreSeconds, step.byteSeconds)
		}
	}
}

// counted returns the sum of a counter over all labels.
func counted(t *testing.T, registry *prometheus.Registry, name string) (sum float64) {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			if family.GetName() == name {
				sum += metric.GetCounter().GetValue()
			}
		}
	}
	return sum
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
		d.Annotations[corev1.LastAppliedConfigAnnotation] = ""
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
