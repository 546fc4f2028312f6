// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package podcount

import (
	"github.com/prometheus/client_golang/prometheus"

	"container.training/useless/internal/object"
)

type metrics struct {
	patches object.Results
}

// newMetrics registers the controller's metrics.
func newMetrics(registerer prometheus.Registerer) (*metrics, error) {
	m := &metrics{object.NewResults("useless_podcount_patches_total",
		"Number of writes of a ReplicaSet's label, by result (success or error).")}
	return m, registerer.Register(m.patches)
}
