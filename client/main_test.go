// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"container.training/useless/hack/cluster"
)

// TestMain runs the example on a real API server, as whoever has its kubeconfig.
func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	crds, err := cluster.ReadManifests("../config/crd/bases/cloudnative.tw_virtualmachines.yaml")
	if err != nil {
		return 0, err
	}
	programs, err := cluster.Build(ctx, os.Stderr)
	if err != nil {
		return 0, err
	}
	plane, err := cluster.Start(ctx, programs, cluster.Options{UnsafeNoFsync: true, BeforeControllers: func(ctx context.Context, config *rest.Config) error {
		return cluster.Install(ctx, config, crds, cluster.WebhookServer{})
	}})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, plane.Stop()) }()
	if err := os.Setenv(clientcmd.RecommendedConfigPathEnvVar, plane.Kubeconfig); err != nil {
		return 0, err
	}
	return m.Run(), nil
}
