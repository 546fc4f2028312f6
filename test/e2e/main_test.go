// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

// Package e2e installs the operator with operator-sdk, from a catalog, with kubectl and with Helm. It runs on a cluster
// with real nodes and a real Operator Lifecycle Manager. Most steps are commands that a user would run.
//
// The tests use the cluster of the kubeconfig. They need kubectl, operator-sdk and opm in PATH, and the images that
// make e2e pushes to $REGISTRY. The cluster pulls from that registry with HTTPS. Each test needs a cluster without the
// operator. At its end, the test removes the operator.
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
	// registry is the host and port of the registry. The test pushes images there and the cluster pulls them.
	registry = os.Getenv("REGISTRY")
	// node is the command that controls the node of make e2e; empty on another cluster.
	node = os.Getenv("USELESS_NODE")
	// workDir is the working directory of commands.
	workDir string
)

func TestMain(m *testing.M) {
	flag.Parse()
	log.SetLogger(logr.Discard()) // clients also return each error that they log
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
