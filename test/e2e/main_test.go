// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

// Package e2e tells what people do who install the operator: with operator-sdk, from a catalog and with kubectl, on a
// cluster with real nodes and a real Operator Lifecycle Manager. Every step is a command that they would type.
//
// It runs on the cluster of the kubeconfig, and expects kubectl, operator-sdk and opm on the path, and the images
// that make e2e pushes to $REGISTRY, a registry with HTTPS that the cluster pulls from. Each test finds a cluster without
// the operator and leaves one.
package e2e

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

const repository = "../.."

var (
	// registry is the host and port where the test pushes images, and the cluster pulls them.
	registry = os.Getenv("REGISTRY")
	// node is the command that controls the node that the test runs on, empty on anybody else's cluster.
	node = os.Getenv("USELESS_NODE")
	// workDir is where commands run.
	workDir string
)

func TestMain(m *testing.M) {
	flag.Parse()
	log.SetLogger(logr.Discard()) // of clients; what they find is in errors
	os.Exit(testMain(m))
}

func testMain(m *testing.M) int {
	for _, variable := range []string{"KUBECONFIG", "REGISTRY", "VERSION"} {
		if os.Getenv(variable) == "" {
			fmt.Fprintln(os.Stderr, variable, "is not set: run make e2e")
			return 1
		}
	}
	var err error
	if workDir, err = os.MkdirTemp("", "useless-e2e-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(workDir)
	return m.Run()
}
