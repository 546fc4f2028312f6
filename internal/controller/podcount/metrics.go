// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package podcount

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	patches *prometheus.CounterVec
}

// newMetrics registers the controller's metrics.
func newMetrics(registerer prometheus.Registerer) (*metrics, error) {
	m := &metrics{patches: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "useless_podcount_patches_total",
		Help: "Number of writes of a ReplicaSet's label, by result (success or error).",
	}, []string{"result"})}
	for _, result := range []string{success, failure} {
		m.patches.WithLabelValues(result) // both from the start, so that an alert on the first error sees the step from zero
	}
	return m, registerer.Register(m.patches)
}

const success, failure = "success", "error"

// patched counts a write.
func (m *metrics) patched(err error) {
	result := success
	if err != nil {
		result = failure
	}
	m.patches.WithLabelValues(result).Inc()
}
