// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/go-logr/logr/testr"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// attempts is a server that allows reads from the third attempt on. It records the states at the start of each attempt.
type attempts struct {
	*server
	registry *prometheus.Registry
	states   []map[string]float64
	t        *testing.T
}

func (a *attempts) Get(
	ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption,
) error {
	if key.Name == Resources[0].CRD {
		a.states = append(a.states, states(a.t, a.registry))
		if len(a.states) <= 2 {
			return errors.New("forbidden")
		}
	}
	return a.server.Get(ctx, key, object, options...)
}

// states returns the values of useless_storage_migration by state.
func states(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			found[metric.GetLabel()[0].GetValue()] = metric.GetGauge().GetValue()
		}
	}
	return found
}

// TestStates runs a migration whose first two attempts fail.
func TestStates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		s := &server{crds: map[string]*apiextensionsv1.CustomResourceDefinition{}}
		a := &attempts{server: s, registry: registry, t: t}
		m := &Migrator{
			client: a, clock: passingClock{server: s}, log: testr.New(t), olm: &reporter{}, gauge: newGauge(registry),
		}
		got := []map[string]float64{states(t, registry)}
		if err := m.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		got = append(append(got, a.states...), states(t, registry))
		want := []map[string]float64{
			{"running": 0, "failing": 0, "complete": 0}, // not the leader yet
			{"running": 1, "failing": 0, "complete": 0},
			{"running": 0, "failing": 1, "complete": 0},
			{"running": 0, "failing": 1, "complete": 0},
			{"running": 0, "failing": 0, "complete": 1},
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("states (-want +got):\n%s", diff)
		}
	})
}
