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
	toolscache "k8s.io/client-go/tools/cache"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"container.training/useless/api/cloudnative/v1alpha1"
)

// uses is a measurement of a Pod that has two CPUs and 4G.
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
		"Percent":    {"usage is in percent of the limit", uses("m-vm", "500m", "1G"), aPod(running), &v1alpha1.UsageStatus{CPU: 25, Memory: 25}},
		"Rounded":    {"half a percent is one, less is none", uses("m-vm", "10m", "19M"), aPod(running), &v1alpha1.UsageStatus{CPU: 1, Memory: 0}},
		"Idle":       {"nothing is a usage, too", uses("m-vm", "0", "0"), aPod(running), &v1alpha1.UsageStatus{}},
		"Throttled":  {"a limit is not exact", uses("m-vm", "2100m", "4G"), aPod(running), &v1alpha1.UsageStatus{CPU: 105, Memory: 100}},
		"Nanocores":  {"the metrics server counts billionths", uses("m-vm", "123456789n", "1048576Ki"), aPod(running), &v1alpha1.UsageStatus{CPU: 6, Memory: 27}},
		"Negative":   {"nobody uses less than nothing", uses("m-vm", "-1e9", "-1"), aPod(running), &v1alpha1.UsageStatus{}},
		"TooEarly":   {"a measurement from before the start is of another server", early, aPod(running), nil},
		"NotRunning": {"what does not run uses nothing", uses("m-vm", "1", "1G"), aPod(), nil},
		"NoServer":   {"other containers do not count", bare, aPod(running), nil},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, ok := measure(&c.item, c.pod)
			if ok != (c.want != nil) || ok && got != *c.want {
				t.Errorf("%s: got %+v (%v), want %+v", c.reason, got, ok, c.want)
			}
		})
	}
}

func TestPoller(t *testing.T) {
	store := toolscache.NewStore(toolscache.MetaNamespaceKeyFunc)
	for _, name := range []string{"a", "b"} {
		pod := aPod(running)
		pod.Name = name + podSuffix
		if err := store.Add(pod); err != nil {
			t.Fatal(err)
		}
	}
	registry := prometheus.NewRegistry()
	metrics, err := newMetrics(registry, toolscache.NewStore(toolscache.MetaNamespaceKeyFunc))
	if err != nil {
		t.Fatal(err)
	}
	var items []metricsv1beta1.PodMetrics
	var problem error
	rolling, absent := apierrors.NewServiceUnavailable("rolling"), apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, "")
	p := &poller{
		list: func(context.Context) (*metricsv1beta1.PodMetricsList, error) {
			return &metricsv1beta1.PodMetricsList{Items: items}, problem
		},
		pods: store, interval: time.Minute, clock: clocktesting.NewFakePassiveClock(now), log: testr.New(t), metrics: metrics,
		wake: make(chan event.TypedGenericEvent[client.ObjectKey], 10),
	}
	for _, step := range []struct {
		reason  string
		items   []metricsv1beta1.PodMetrics
		problem error
		woken   []string
		usage   usage // of a
	}{
		{"the first answer is news to all", []metricsv1beta1.PodMetrics{uses("a-vm", "1", "1G")}, nil, []string{"a", "b"},
			usage{asked: true, available: true, sample: &v1alpha1.UsageStatus{CPU: 50, Memory: 25}}},
		{"the same again is news to nobody", []metricsv1beta1.PodMetrics{uses("a-vm", "1001m", "1001M")}, nil, nil,
			usage{asked: true, available: true, sample: &v1alpha1.UsageStatus{CPU: 50, Memory: 25}}},
		{"only what changed is news", []metricsv1beta1.PodMetrics{uses("a-vm", "1", "1G"), uses("b-vm", "2", "1G")}, nil, []string{"b"},
			usage{asked: true, available: true, sample: &v1alpha1.UsageStatus{CPU: 50, Memory: 25}}},
		{"what is not measured any more is news, too", []metricsv1beta1.PodMetrics{uses("b-vm", "2", "1G"), uses("other", "1", "1G"), uses("c-vm", "1", "1G")}, nil, []string{"a"},
			usage{asked: true, available: true}},
		{"an answer that fails to come takes nothing away", nil, rolling, nil, usage{asked: true, available: true}},
		{"nor does the next", nil, rolling, nil, usage{asked: true, available: true}},
		{"what is the same after it is news to nobody", []metricsv1beta1.PodMetrics{uses("b-vm", "2", "1G")}, nil, nil, usage{asked: true, available: true}},
		{"failures count in a row", nil, rolling, nil, usage{asked: true, available: true}},
		{"two of them do not", nil, rolling, nil, usage{asked: true, available: true}},
		{"three are news to all", nil, rolling, []string{"a", "b"}, usage{asked: true}},
		{"once", nil, rolling, nil, usage{asked: true}},
		{"an API that is back is news, too", nil, nil, []string{"a", "b"}, usage{asked: true, available: true}},
		{"one that is not there need not be asked twice", nil, absent, []string{"a", "b"}, usage{asked: true}},
	} {
		items, problem = step.items, step.problem
		want := p.interval
		if !step.usage.available {
			want = 10 * p.interval
		}
		if next := p.poll(t.Context()); next != want {
			t.Errorf("%s: asks again after %s, not %s", step.reason, next, want)
		}
		var woken []string
		for range len(p.wake) {
			woken = append(woken, (<-p.wake).Object.Name)
		}
		slices.Sort(woken)
		if diff := cmp.Diff(step.woken, woken); diff != "" {
			t.Errorf("%s: woken (-want +got):\n%s", step.reason, diff)
		}
		a := aMachine(func(vm *v1alpha1.VirtualMachine) { vm.Name = "a" })
		if diff := cmp.Diff(step.usage, p.of(a, aPod()), cmp.AllowUnexported(usage{})); diff != "" {
			t.Errorf("%s: usage (-want +got):\n%s", step.reason, diff)
		}
		if another := p.of(a, aPod(func(pod *corev1.Pod) { pod.UID = "another" })); another.sample != nil {
			t.Errorf("%s: another server uses %+v", step.reason, another.sample)
		}
	}
	if diff := cmp.Diff(map[string]float64{"": 7}, gathered(t, registry, "useless_vm_usage_errors_total")); diff != "" {
		t.Errorf("failures (-want +got):\n%s", diff)
	}
}

// TestPollerTimes follows a poller through its days, when a metrics server is late, is replaced and is taken away.
func TestPollerTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		metrics, err := newMetrics(prometheus.NewRegistry(), toolscache.NewStore(toolscache.MetaNamespaceKeyFunc))
		if err != nil {
			t.Fatal(err)
		}
		rolling, absent := apierrors.NewServiceUnavailable("rolling"), apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, "")
		answers := []error{nil, rolling, nil, rolling, rolling, rolling, rolling, nil, absent, nil}
		ctx, cancel := context.WithCancel(t.Context())
		start, store := clock.RealClock{}.Now(), toolscache.NewStore(toolscache.MetaNamespaceKeyFunc)
		var asked []time.Duration
		p := &poller{
			list: func(context.Context) (*metricsv1beta1.PodMetricsList, error) {
				asked = append(asked, clock.RealClock{}.Since(start))
				if len(asked) == len(answers) {
					cancel()
				}
				return &metricsv1beta1.PodMetricsList{}, answers[len(asked)-1]
			},
			synced: func(context.Context) bool { return true },
			pods:   store, interval: time.Minute, clock: clock.RealClock{}, log: testr.New(t), metrics: metrics,
			wake: make(chan event.TypedGenericEvent[client.ObjectKey], 100),
		}
		time.AfterFunc(150*time.Second, func() { _ = store.Add(aPod(running)) })
		if err := p.Start(ctx); err != nil {
			t.Fatal(err)
		}
		var want []time.Duration
		for _, minute := range []int{
			3,       // the first time that there is a server
			4, 5, 6, // that one answer fails to come changes nothing
			7, 8, // nor do two
			18, 28, // after three it is asked less often, until it answers
			29, 39, // as where it is not there
		} {
			want = append(want, time.Duration(minute)*time.Minute)
		}
		if diff := cmp.Diff(want, asked); diff != "" {
			t.Errorf("asked at (-want +got):\n%s", diff)
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
	if _, err := newMetrics(registry, store); err != nil {
		t.Fatal(err)
	}
	want := map[string]float64{"Creating": 0, "Active": 2, "Failed": 1, "Stopped": 0, "Terminating": 0}
	if diff := cmp.Diff(want, gathered(t, registry, "useless_vm_phase")); diff != "" {
		t.Errorf("phases (-want +got):\n%s", diff)
	}
}

// gathered returns the values of a counter or gauge by the value of its label, if it has one.
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
