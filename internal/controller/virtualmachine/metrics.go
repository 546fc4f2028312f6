// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package virtualmachine

import (
	"github.com/prometheus/client_golang/prometheus"
	toolscache "k8s.io/client-go/tools/cache"

	"container.training/useless/api/cloudnative/v1alpha1"
)

type metrics struct {
	creation    prometheus.Histogram
	pollSeconds prometheus.Histogram
	pollErrors  prometheus.Counter
}

// newMetrics registers the controller's metrics. The number of VirtualMachines is counted in the store at each scrape.
func newMetrics(registerer prometheus.Registerer, machines toolscache.Store) (*metrics, error) {
	m := &metrics{
		creation: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "useless_vm_creation_to_active_seconds",
			Help:    "Time from the creation of a VirtualMachine's Pod until the operator first observed it ready.",
			Buckets: []float64{.5, 1, 2, 3, 5, 10, 20, 30, 60, 120, 300, 600},
		}),
		pollSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "useless_vm_usage_poll_seconds",
			Help:    "Duration of one request for the usage of all VirtualMachines.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}),
		pollErrors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "useless_vm_usage_errors_total",
			Help: "Number of failed requests for the usage of VirtualMachines.",
		}),
	}
	for _, collector := range []prometheus.Collector{m.creation, m.pollSeconds, m.pollErrors, phaseCollector{machines}} {
		if err := registerer.Register(collector); err != nil {
			return nil, err
		}
	}
	return m, nil
}

var phaseDesc = prometheus.NewDesc("useless_vm_phase", "Number of VirtualMachines by phase.", []string{"phase"}, nil)

// phaseCollector counts the VirtualMachines of a store by phase.
type phaseCollector struct {
	machines toolscache.Store
}

// Describe implements prometheus.Collector.
func (phaseCollector) Describe(descs chan<- *prometheus.Desc) { descs <- phaseDesc }

// Collect implements prometheus.Collector.
func (c phaseCollector) Collect(collected chan<- prometheus.Metric) {
	// All phases exist from the start, so that an alert sees the step from 0 to 1.
	counts := map[v1alpha1.Phase]int{
		v1alpha1.PhaseCreating: 0, v1alpha1.PhaseActive: 0, v1alpha1.PhaseFailed: 0, v1alpha1.PhaseStopped: 0,
		v1alpha1.PhaseTerminating: 0,
	}
	for _, object := range c.machines.List() {
		if phase := object.(*v1alpha1.VirtualMachine).Status.Phase; phase != "" {
			counts[phase]++
		}
	}
	for phase, n := range counts {
		collected <- prometheus.MustNewConstMetric(phaseDesc, prometheus.GaugeValue, float64(n), string(phase))
	}
}
