// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"container.training/useless/hack/cluster"
)

const crds = "../config/crd/bases"

// plane is a control plane without the operator. The variable KUBECONFIG names its kubeconfig, so Example uses it.
var plane *cluster.ControlPlane

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
	var manifests []*unstructured.Unstructured
	for _, file := range []string{"cloudnative.tw_virtualmachines.yaml", "useless.container.training_machines.yaml"} {
		objects, err := cluster.ReadManifests(filepath.Join(crds, file))
		if err != nil {
			return 0, err
		}
		manifests = append(manifests, objects...)
	}
	programs, err := cluster.Build(ctx, os.Stderr)
	if err != nil {
		return 0, err
	}
	plane, err = cluster.Start(ctx, programs, cluster.Options{Disposable: true, BeforeControllers: func(ctx context.Context, config *rest.Config) error {
		return cluster.Install(ctx, config, manifests, cluster.WebhookServer{})
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
