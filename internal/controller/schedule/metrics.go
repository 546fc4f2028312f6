// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"context"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/schedule"
)

type metrics struct {
	transitions *prometheus.CounterVec
	lag         prometheus.Histogram
}

// newMetrics registers the controller's metrics. Deployments are counted in the cache for each scrape, so that the
// numbers cannot drift.
func newMetrics(registerer prometheus.Registerer, deployments collector) (*metrics, error) {
	m := &metrics{
		transitions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "useless_schedule_transitions_total",
			Help: "Number of starts, stops and removals of schedules that were dealt with, by their result.",
		}, []string{"direction", "result"}),
		lag: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "useless_schedule_lag_seconds",
			Help:    "Time from when a start or stop was due until the operator executed it.",
			Buckets: []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 3600},
		}),
	}
	for _, collector := range []prometheus.Collector{m.transitions, m.lag, deployments} {
		if err := registerer.Register(collector); err != nil {
			return nil, err
		}
	}
	for _, t := range []transition{start, stop} { // so that an alert sees the step from 0 to 1
		m.transitions.WithLabelValues(string(t), string(failed))
	}
	return m, nil
}

func (m *metrics) count(t transition, o outcome) {
	if o != noted {
		m.transitions.WithLabelValues(string(t), string(o)).Inc()
	}
}

const namespaceLabel = "namespace"

var (
	deploymentsDesc = prometheus.NewDesc("useless_schedule_deployments",
		"Number of Deployments with a schedule, by the state of the schedule.", []string{namespaceLabel, "state"}, nil)
	cpuDesc = prometheus.NewDesc("useless_schedule_saved_cpu_cores",
		"CPU requests of the replicas that schedules have removed.", []string{namespaceLabel}, nil)
	memoryDesc = prometheus.NewDesc("useless_schedule_saved_memory_bytes",
		"Memory requests of the replicas that schedules have removed.", []string{namespaceLabel}, nil)
)

// collector counts the Deployments of a cache.
type collector struct {
	cache client.Reader
	clock clock.PassiveClock
	zone  *time.Location
}

// Describe implements prometheus.Collector.
func (collector) Describe(descs chan<- *prometheus.Desc) {
	descs <- deploymentsDesc
	descs <- cpuDesc
	descs <- memoryDesc
}

// Collect implements prometheus.Collector.
func (c collector) Collect(collected chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	list := &appsv1.DeploymentList{}
	if err := c.cache.List(ctx, list, client.MatchingFields{deploymentsWithAnnotations: "true"},
		client.UnsafeDisableDeepCopy); err != nil {
		return // there is no cache yet
	}
	type key struct{ namespace, state string }
	counts, cpu, memory := map[key]int{}, map[string]float64{}, map[string]float64{}
	for i := range list.Items {
		d := &list.Items[i]
		if leftAlone(d) || schedule.IsUnscheduled(d.Annotations) {
			continue
		}
		counts[key{d.Namespace, c.state(d)}]++
		saved := float64(max(0, schedule.ReadRecord(d.Annotations).Original-replicas(d)))
		cpu[d.Namespace] += saved * requested(d, corev1.ResourceCPU)
		memory[d.Namespace] += saved * requested(d, corev1.ResourceMemory)
	}
	for key, n := range counts {
		collected <- prometheus.MustNewConstMetric(deploymentsDesc, prometheus.GaugeValue, float64(n), key.namespace,
			key.state)
	}
	for namespace := range cpu {
		collected <- prometheus.MustNewConstMetric(cpuDesc, prometheus.GaugeValue, cpu[namespace], namespace)
		collected <- prometheus.MustNewConstMetric(memoryDesc, prometheus.GaugeValue, memory[namespace], namespace)
	}
}

// state returns the value of the label state for a Deployment.
func (c collector) state(d *appsv1.Deployment) string {
	s, problems := schedule.Parse(d.Annotations, c.zone)
	switch {
	case len(problems) > 0:
		return "invalid"
	case s.Suspended || c.clock.Now().Before(s.SuspendUntil):
		return "suspended"
	case schedule.ReadRecord(d.Annotations).State == v1beta1.ScheduleStopped:
		return strings.ToLower(v1beta1.ScheduleStopped)
	default:
		return strings.ToLower(v1beta1.ScheduleStarted)
	}
}

// requested returns how much of a resource a replica requests. A container without a request counts with its limit.
func requested(d *appsv1.Deployment, name corev1.ResourceName) float64 {
	var sum resource.Quantity
	for _, container := range d.Spec.Template.Spec.Containers {
		quantity, ok := container.Resources.Requests[name]
		if !ok {
			quantity = container.Resources.Limits[name]
		}
		sum.Add(quantity)
	}
	return sum.AsApproximateFloat64()
}
