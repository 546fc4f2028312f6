// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package virtualmachine

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"container.training/useless/api/cloudnative/v1alpha1"
)

// uses returns a measurement of a Pod.
func uses(name, cpu, memory string) metricsv1beta1.PodMetrics {
	return metricsv1beta1.PodMetrics{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Timestamp:  metav1.NewTime(now),
		Containers: []metricsv1beta1.ContainerMetrics{
			{Name: "injected", Usage: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100")}},
			{Name: containerName, Usage: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}},
		},
	}
}

func TestMeasure(t *testing.T) {
	early := uses("m-vm", "1", "1G")
	early.Timestamp = metav1.NewTime(now.Add(-2 * time.Hour))
	bare := uses("m-vm", "1", "1G")
	bare.Containers = bare.Containers[:1]
	cases := map[string]struct {
		reason string
		item   metricsv1beta1.PodMetrics
		pod    *corev1.Pod
		want   *v1alpha1.UsageStatus
	}{
		"Percent":    {"usage is in percent of the limits, which are 2 CPUs and 4G", uses("m-vm", "500m", "1G"), aPod(running), &v1alpha1.UsageStatus{CPU: 25, Memory: 25}},
		"Rounded":    {"usage is rounded", uses("m-vm", "10m", "19M"), aPod(running), &v1alpha1.UsageStatus{CPU: 1, Memory: 0}},
		"Idle":       {"zero is a valid usage", uses("m-vm", "0", "0"), aPod(running), &v1alpha1.UsageStatus{}},
		"Throttled":  {"usage can exceed the limit", uses("m-vm", "2100m", "4G"), aPod(running), &v1alpha1.UsageStatus{CPU: 105, Memory: 100}},
		"Nanocores":  {"the metrics server reports billionths of a CPU", uses("m-vm", "123456789n", "1048576Ki"), aPod(running), &v1alpha1.UsageStatus{CPU: 6, Memory: 27}},
		"Negative":   {"negative usage is shown as zero", uses("m-vm", "-1e9", "-1"), aPod(running), &v1alpha1.UsageStatus{}},
		"TooEarly":   {"a measurement before the start belongs to an earlier container", early, aPod(running), nil},
		"NotRunning": {"a container that does not run has no usage", uses("m-vm", "1", "1G"), aPod(), nil},
		"NoServer":   {"other containers are ignored", bare, aPod(running), nil},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, measure(&c.item, c.pod)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.reason, diff)
			}
		})
	}
}

func TestPoller(t *testing.T) {
	store := toolscache.NewStore(toolscache.MetaNamespaceKeyFunc)
	for _, name := range []string{"a", "b"} {
		pod := aPod(running)
		pod.Name, pod.UID = name+podSuffix, types.UID(name)
		if err := store.Add(pod); err != nil {
			t.Fatal(err)
		}
	}
	registry := prometheus.NewRegistry()
	var items []metricsv1beta1.PodMetrics
	var failure error
	rolling, absent := apierrors.NewServiceUnavailable("rolling"), apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, "")
	p := &poller{
		list: func(context.Context, metav1.ListOptions) (*metricsv1beta1.PodMetricsList, error) {
			return &metricsv1beta1.PodMetricsList{Items: items}, failure
		},
		pods: store, interval: time.Minute, clock: clocktesting.NewFakePassiveClock(now), log: testr.New(t),
		metrics: newMetrics(registry, toolscache.NewStore(toolscache.MetaNamespaceKeyFunc)),
		wake:    make(chan event.TypedGenericEvent[*corev1.Pod], 10),
	}
	for _, step := range []struct {
		reason  string
		items   []metricsv1beta1.PodMetrics
		failure error
		woken   []string
		usage   usage // of Pod a
	}{
		{"the first answer wakes all VirtualMachines", []metricsv1beta1.PodMetrics{uses("a-vm", "1", "1G")}, nil, []string{"a", "b"},
			usage{isKnown: true, available: true, sample: &v1alpha1.UsageStatus{CPU: 50, Memory: 25}}},
		{"an answer with the same percentages wakes no VirtualMachine", []metricsv1beta1.PodMetrics{uses("a-vm", "1001m", "1001M")}, nil, nil,
			usage{isKnown: true, available: true, sample: &v1alpha1.UsageStatus{CPU: 50, Memory: 25}}},
		{"a changed usage wakes its VirtualMachine", []metricsv1beta1.PodMetrics{uses("a-vm", "1", "1G"), uses("b-vm", "2", "1G")}, nil, []string{"b"},
			usage{isKnown: true, available: true, sample: &v1alpha1.UsageStatus{CPU: 50, Memory: 25}}},
		{"a missing measurement wakes its VirtualMachine", []metricsv1beta1.PodMetrics{uses("b-vm", "2", "1G"), uses("other", "1", "1G"), uses("c-vm", "1", "1G")}, nil, []string{"a"},
			usage{isKnown: true, available: true}},
		{"the first failure is tolerated", nil, rolling, nil, usage{isKnown: true, available: true}},
		{"the second failure is tolerated", nil, rolling, nil, usage{isKnown: true, available: true}},
		{"the same usage after failures wakes no VirtualMachine", []metricsv1beta1.PodMetrics{uses("b-vm", "2", "1G")}, nil, nil, usage{isKnown: true, available: true}},
		{"after an answer, failures are counted from zero", nil, rolling, nil, usage{isKnown: true, available: true}},
		{"the second failure in a row is tolerated again", nil, rolling, nil, usage{isKnown: true, available: true}},
		{"the third failure in a row wakes all VirtualMachines", nil, rolling, []string{"a", "b"}, usage{isKnown: true}},
		{"further failures wake no VirtualMachine", nil, rolling, nil, usage{isKnown: true}},
		{"an answer after three failures wakes all VirtualMachines", nil, nil, []string{"a", "b"}, usage{isKnown: true, available: true}},
		{"even a first NotFound wakes all VirtualMachines", nil, absent, []string{"a", "b"}, usage{isKnown: true}},
	} {
		items, failure = step.items, step.failure
		want := p.interval
		if !step.usage.available {
			want = 10 * p.interval
		}
		if next := p.poll(t.Context()); next != want {
			t.Errorf("%s: got next request after %s, want %s", step.reason, next, want)
		}
		var woken []string
		for range len(p.wake) {
			woken = append(woken, string((<-p.wake).Object.UID))
		}
		slices.Sort(woken)
		if diff := cmp.Diff(step.woken, woken); diff != "" {
			t.Errorf("%s: woken (-want +got):\n%s", step.reason, diff)
		}
		a := aPod(func(pod *corev1.Pod) { pod.UID = "a" })
		if diff := cmp.Diff(step.usage, p.of(a), cmp.AllowUnexported(usage{})); diff != "" {
			t.Errorf("%s: usage (-want +got):\n%s", step.reason, diff)
		}
		if another := p.of(aPod(func(pod *corev1.Pod) { pod.UID = "another" })); another.sample != nil {
			t.Errorf("%s: another Pod has usage %+v", step.reason, another.sample)
		}
	}
	if diff := cmp.Diff(map[string]float64{"": 7}, gathered(t, registry, "useless_vm_usage_errors_total")); diff != "" {
		t.Errorf("failures (-want +got):\n%s", diff)
	}
}

// TestPollerTimes checks the times at which a poller sends requests. The first Pod is created after the start of the
// poller. Later, the metrics server is replaced, and then removed for a while.
func TestPollerTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rolling, absent := apierrors.NewServiceUnavailable("rolling"), apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, "")
		answers := []error{nil, rolling, nil, rolling, rolling, rolling, rolling, nil, absent, nil}
		ctx, cancel := context.WithCancel(t.Context())
		start, store := clock.RealClock{}.Now(), toolscache.NewStore(toolscache.MetaNamespaceKeyFunc)
		var asked []time.Duration
		p := &poller{
			list: func(context.Context, metav1.ListOptions) (*metricsv1beta1.PodMetricsList, error) {
				asked = append(asked, clock.RealClock{}.Since(start))
				if len(asked) == len(answers) {
					cancel()
				}
				return &metricsv1beta1.PodMetricsList{}, answers[len(asked)-1]
			},
			pods: store, interval: time.Minute, clock: clock.RealClock{}, log: testr.New(t),
			metrics: newMetrics(prometheus.NewRegistry(), toolscache.NewStore(toolscache.MetaNamespaceKeyFunc)),
			wake:    make(chan event.TypedGenericEvent[*corev1.Pod], 100),
		}
		time.AfterFunc(150*time.Second, func() { _ = store.Add(aPod(running)) })
		if err := p.Start(ctx); err != nil {
			t.Fatal(err)
		}
		var want []time.Duration
		for _, minute := range []int{
			3,       // the first Pod exists
			4, 5, 6, // one failure does not change the interval
			7, 8, // two failures do not change the interval
			18, 28, // after three failures, the interval is longer until the next answer
			29, 39, // after NotFound, the interval is longer
		} {
			want = append(want, time.Duration(minute)*time.Minute)
		}
		if diff := cmp.Diff(want, asked); diff != "" {
			t.Errorf("times of requests (-want +got):\n%s", diff)
		}
	})
}

func TestPhasesAreCounted(t *testing.T) {
	store := toolscache.NewStore(toolscache.MetaNamespaceKeyFunc)
	for name, phase := range map[string]v1alpha1.Phase{"a": v1alpha1.PhaseActive, "b": v1alpha1.PhaseActive, "c": v1alpha1.PhaseFailed, "d": ""} {
		err := store.Add(aMachine(func(vm *v1alpha1.VirtualMachine) { vm.Name, vm.Status.Phase = name, phase }))
		if err != nil {
			t.Fatal(err)
		}
	}
	registry := prometheus.NewRegistry()
	newMetrics(registry, store)
	want := map[string]float64{"Creating": 0, "Active": 2, "Failed": 1, "Stopped": 0, "Terminating": 0}
	if diff := cmp.Diff(want, gathered(t, registry, "useless_vm_phase")); diff != "" {
		t.Errorf("phases (-want +got):\n%s", diff)
	}
}

// gathered returns the values of a counter or gauge by the value of its last label, or by "" without labels.
func gathered(t *testing.T, registry *prometheus.Registry, name string) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			label := ""
			for _, pair := range metric.GetLabel() {
				label = pair.GetValue()
			}
			if family.GetName() == name {
				got[label] = metric.GetGauge().GetValue() + metric.GetCounter().GetValue()
			}
		}
	}
	return got
}
