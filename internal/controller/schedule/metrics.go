// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"context"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/informer"
	"container.training/useless/internal/schedule"
)

type metrics struct {
	transitions *prometheus.CounterVec
	lag         prometheus.Histogram
	coreSeconds *prometheus.CounterVec
	byteSeconds *prometheus.CounterVec
}

// newMetrics registers the metrics of the controllers. Each scrape counts the workloads in the cache, so that the
// gauges always match the cache.
func newMetrics(registerer prometheus.Registerer, workloads collector) *metrics {
	factory := promauto.With(registerer)
	m := &metrics{
		transitions: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "useless_schedule_transitions_total",
			Help: "Number of scheduled starts and stops, and of removed schedules, by result.",
		}, []string{kindLabel, "direction", "result"}),
		lag: factory.NewHistogram(prometheus.HistogramOpts{
			Name:    "useless_schedule_lag_seconds",
			Help:    "Time from when a start or stop was due until the operator executed it.",
			Buckets: []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 3600},
		}),
		coreSeconds: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "useless_schedule_saved_cpu_core_seconds_total",
			Help: "CPU requests of stopped replicas and VirtualMachines, in cores, " +
				"multiplied by the seconds for which they were stopped.",
		}, []string{namespaceLabel, kindLabel}),
		byteSeconds: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "useless_schedule_saved_memory_byte_seconds_total",
			Help: "Memory requests of stopped replicas and VirtualMachines, in bytes, " +
				"multiplied by the seconds for which they were stopped.",
		}, []string{namespaceLabel, kindLabel}),
	}
	registerer.MustRegister(prometheus.CollectorFunc(workloads.collect))
	for _, c := range workloads.controllers {
		for _, t := range []transition{start, stop, removal} { // begin at 0, so that Prometheus sees the first increase
			m.transitions.WithLabelValues(c.kind.name, string(t), string(scaled))
			m.transitions.WithLabelValues(c.kind.name, string(t), string(failed))
		}
	}
	return m
}

func (m *metrics) count(k *kind, t transition, o outcome) {
	if o != noted {
		m.transitions.WithLabelValues(k.name, string(t), string(o)).Inc()
	}
}

const (
	namespaceLabel = "namespace"
	kindLabel      = "kind"
)

var (
	workloadsDesc = prometheus.NewDesc("useless_schedule_workloads",
		"Number of workloads with a schedule, by the state of the schedule.",
		[]string{namespaceLabel, kindLabel, "state"}, nil)
	cpuDesc = prometheus.NewDesc("useless_schedule_saved_cpu_cores",
		"CPU requests of the replicas and VirtualMachines that schedules have stopped.",
		[]string{namespaceLabel, kindLabel}, nil)
	memoryDesc = prometheus.NewDesc("useless_schedule_saved_memory_bytes",
		"Memory requests of the replicas and VirtualMachines that schedules have stopped.",
		[]string{namespaceLabel, kindLabel}, nil)
)

// collector counts the workloads of a cache.
type collector struct {
	cache       cache.Informers
	controllers []*Controller
}

func (c collector) collect(collected chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	for _, controller := range c.controllers {
		if controller.absent.Load() {
			continue
		}
		controller.collect(ctx, c.cache, collected)
	}
}

// collect counts the workloads of one kind. It also counts workloads without annotations of the operator: if the
// default schedule of a Namespace is invalid or in a dry run, the operator does not annotate the workloads.
func (c *Controller) collect(ctx context.Context, informers cache.Informers, collected chan<- prometheus.Metric) {
	k := c.kind
	store, err := informer.Store(ctx, informers, k.object, nil)
	if err != nil {
		return // the informer has stopped
	}
	type key struct{ namespace, state string }
	counts, cpu, memory := map[key]int{}, map[string]float64{}, map[string]float64{}
	for _, item := range store.List() {
		o := item.(client.Object)
		if !c.mayHaveSchedule(o) {
			continue
		}
		defaults, err := c.namespaces.defaults(ctx, o.GetNamespace())
		state := k.state(o, defaults, c.zone, c.clock.Now())
		if err != nil || state == "" {
			continue
		}
		counts[key{o.GetNamespace(), state}]++
		saved := k.saved(o)
		cpu[o.GetNamespace()] += saved.Cpu().AsApproximateFloat64()
		memory[o.GetNamespace()] += saved.Memory().AsApproximateFloat64()
	}
	for key, n := range counts {
		collected <- prometheus.MustNewConstMetric(workloadsDesc, prometheus.GaugeValue, float64(n), key.namespace,
			k.name, key.state)
	}
	for namespace := range cpu {
		collected <- prometheus.MustNewConstMetric(cpuDesc, prometheus.GaugeValue, cpu[namespace], namespace, k.name)
		collected <- prometheus.MustNewConstMetric(memoryDesc, prometheus.GaugeValue, memory[namespace], namespace,
			k.name)
	}
}

// state returns the value of the label state. It is empty if a workload has no schedule, or if leaveAlone is true.
func (k *kind) state(o client.Object, defaults map[string]string, zone *time.Location, now time.Time) string {
	annotations, isDefault := k.effective(o.GetAnnotations(), defaults)
	if k.leaveAlone(o) || schedule.IsUnscheduled(annotations) {
		return ""
	}
	s, problems := k.parse(annotations, o.GetAnnotations(), zone)
	switch record := schedule.ReadRecord(o.GetAnnotations()); {
	case len(problems) > 0, isDefault && len(schedule.ProblemsOfNamespace(defaults, zone)) > 0:
		return "invalid"
	case s.Suspended || now.Before(s.SuspendUntil):
		return "suspended"
	case k.isOverridden(s, record, k.level(o)):
		return "overridden"
	case k.level(o) <= k.stopLevel(s):
		return strings.ToLower(v1beta1.ScheduleStopped)
	default:
		return strings.ToLower(v1beta1.ScheduleStarted)
	}
}

// saving has the resource requests of the stopped replicas of a workload: CPU in cores, memory in bytes. They apply
// from the time in the field since, which is the time of the last reconcile.
type saving struct {
	since         time.Time
	cores, memory float64
}

// addSavings adds the savings of a workload since its last reconcile to the counters. A stopped workload with a valid
// schedule is reconciled every longestWait and after each change. Only the leader reconciles. So the sum of the
// counters of all operator replicas is correct. It does not contain the time between two leaders.
func (c *Controller) addSavings(o client.Object) {
	saved, now := c.kind.saved(o), c.clock.Now()
	next := saving{now, saved.Cpu().AsApproximateFloat64(), saved.Memory().AsApproximateFloat64()}
	last := c.memory.Of(o).saving
	if seconds := now.Sub(last.since).Seconds(); !last.since.IsZero() && seconds > 0 {
		c.metrics.coreSeconds.WithLabelValues(o.GetNamespace(), c.kind.name).Add(last.cores * seconds)
		c.metrics.byteSeconds.WithLabelValues(o.GetNamespace(), c.kind.name).Add(last.memory * seconds)
	}
	if next.cores == 0 && next.memory == 0 {
		next = saving{}
	}
	c.memory.Update(o, func(r *remembered) { r.saving = next })
}

// saved returns the resource requests of the replicas that a stop has removed, or of a stopped workload without
// replicas.
func (k *kind) saved(o client.Object) corev1.ResourceList {
	saved := corev1.ResourceList{}
	levels := max(0, schedule.ReadRecord(o.GetAnnotations()).Original-k.level(o))
	if levels == 0 || k.requests == nil {
		return saved
	}
	for name, quantity := range k.requests(o) {
		quantity = quantity.DeepCopy() // a large or fractional quantity shares memory with the cached object
		quantity.Mul(int64(levels))
		saved[name] = quantity
	}
	return saved
}
