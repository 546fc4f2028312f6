// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"container.training/useless/internal/object"
)

type metrics struct {
	applied object.Results
	reverts prometheus.Counter
}

// newMetrics registers the controller's metrics.
func newMetrics(registerer prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		applied: object.NewResults("useless_ingress_annotations_applied_total",
			"Number of writes of an Ingress's annotations, by result (success or error)."),
		reverts: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "useless_ingress_annotations_reverts_total",
			Help: "Number of times that somebody else changed what had been set.",
		}),
	}
	return m, errors.Join(registerer.Register(m.applied), registerer.Register(m.reverts))
}
