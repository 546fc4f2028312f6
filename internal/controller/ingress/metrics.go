// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	applied *prometheus.CounterVec
	reverts prometheus.Counter
}

// newMetrics registers the controller's metrics.
func newMetrics(registerer prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		applied: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "useless_ingress_annotations_applied_total",
			Help: "Number of writes of an Ingress's annotations, by result (success or error).",
		}, []string{"result"}),
		reverts: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "useless_ingress_annotations_reverts_total",
			Help: "Number of times that somebody else changed what had been set.",
		}),
	}
	for _, result := range []string{success, failure} {
		m.applied.WithLabelValues(result) // both from the start, so that an alert on the first error sees the step from zero
	}
	return m, errors.Join(registerer.Register(m.applied), registerer.Register(m.reverts))
}

const success, failure = "success", "error"

// appliedWith counts a write.
func (m *metrics) appliedWith(err error) {
	result := success
	if err != nil {
		result = failure
	}
	m.applied.WithLabelValues(result).Inc()
}
