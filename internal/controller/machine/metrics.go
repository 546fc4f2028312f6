// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"github.com/prometheus/client_golang/prometheus"
	toolscache "k8s.io/client-go/tools/cache"

	"container.training/useless/api/useless/v1beta1"
)

type metrics struct {
	flips    prometheus.Counter
	lateness prometheus.Histogram
	dropped  prometheus.Counter
}

// newMetrics registers the controller's metrics. Machines are counted in their store whenever someone asks, so the
// count can never drift.
func newMetrics(registerer prometheus.Registerer, machines toolscache.Store) (*metrics, error) {
	m := &metrics{
		flips: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "useless_flips_total",
			Help: "Number of switches that were turned down.",
		}),
		lateness: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "useless_flip_lateness_seconds",
			Help:    "Time from the instant at which a switch was due until it was turned down.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}),
		dropped: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "useless_events_dropped_total",
			Help: "Number of events about Machines that were left out because there were too many.",
		}),
	}
	for _, collector := range []prometheus.Collector{m.flips, m.lateness, m.dropped, machineCollector{machines}} {
		if err := registerer.Register(collector); err != nil {
			return nil, err
		}
	}
	return m, nil
}

var machinesDesc = prometheus.NewDesc("useless_machines", "Number of Machines by condition and its status.",
	[]string{"condition", "status"}, nil)

// A machineCollector counts the Machines of a store by condition.
type machineCollector struct {
	machines toolscache.Store
}

// Describe implements prometheus.Collector.
func (machineCollector) Describe(descs chan<- *prometheus.Desc) { descs <- machinesDesc }

// Collect implements prometheus.Collector.
func (c machineCollector) Collect(collected chan<- prometheus.Metric) {
	type key struct{ condition, status string }
	counts := map[key]int{}
	for _, condition := range []string{v1beta1.ConditionScaled, v1beta1.ConditionResting, v1beta1.ConditionReady} {
		// Both from the start, so that an alert on the first Machine that is not Ready sees the step from zero.
		counts[key{condition, "True"}], counts[key{condition, "False"}] = 0, 0
	}
	for _, object := range c.machines.List() {
		for _, condition := range object.(*v1beta1.Machine).Status.Conditions {
			counts[key{condition.Type, string(condition.Status)}]++
		}
	}
	for key, n := range counts {
		collected <- prometheus.MustNewConstMetric(machinesDesc, prometheus.GaugeValue, float64(n), key.condition, key.status)
	}
}
