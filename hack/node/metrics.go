// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"

	"k8s.io/client-go/rest"

	"container.training/useless/hack/cluster"
)

// metricsManifests is the file with the manifests that register metrics-server with the API server.
const metricsManifests = "metrics-server.yaml"

// installMetrics registers metrics-server with the API server. It does not wait for the first metrics, because they
// arrive during the installation of OLM.
func installMetrics(ctx context.Context, n *node, config *rest.Config) error {
	objects, err := cluster.ReadManifests(n.path(metricsManifests))
	if err != nil {
		return err
	}
	return cluster.Install(ctx, config, objects, cluster.WebhookServer{})
}
