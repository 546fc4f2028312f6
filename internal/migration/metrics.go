// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// state is a value of the label state.
type state string

const (
	running  state = "running"
	failing  state = "failing"
	complete state = "complete"
)

// gauge is the metric useless_storage_migration. On a replica that is not the leader, all states have the value 0.
type gauge struct{ *prometheus.GaugeVec }

func newGauge(registerer prometheus.Registerer) gauge {
	g := gauge{promauto.With(registerer).NewGaugeVec(prometheus.GaugeOpts{
		Name: "useless_storage_migration",
		Help: "State of the storage version migration. The leader sets the current state to 1.",
	}, []string{"state"})}
	g.set("")
	return g
}

// set sets the current state to 1 and all other states to 0.
func (g gauge) set(current state) {
	for _, s := range []state{running, failing, complete} {
		value := 0.
		if s == current {
			value = 1
		}
		g.WithLabelValues(string(s)).Set(value)
	}
}
