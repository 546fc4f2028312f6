// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"strconv"
	"testing"

	"k8s.io/client-go/discovery"
)

// olderThan reports whether the API server is older than a minor release of Kubernetes, such as 33 for 1.33. If it is, the
// difference becomes a line of the table that make test-versions writes.
func olderThan(t *testing.T, minor int, difference string) bool {
	t.Helper()
	client, err := discovery.NewDiscoveryClientForConfig(clusterOf(t).Config)
	if err != nil {
		t.Fatal(err)
	}
	version, err := client.ServerVersion()
	if err != nil {
		t.Fatal(err)
	}
	running, err := strconv.Atoi(version.Minor)
	if err != nil {
		t.Fatal(err)
	}
	if running >= minor {
		return false
	}
	t.Attr("different", difference)
	return true
}

// noStreams is the difference of an API server that does not stream lists.
const noStreams = "Before 1.34, the API server does not stream lists. The operator fills its caches with ordinary lists, and logs " +
	"that for each kind of object."

// noResize is the difference of an API server without the subresource resize of Pods.
const noResize = "Before 1.33, a Pod cannot be resized in place. A VirtualMachine whose CPU or memory changes gets the condition Resizing " +
	"with the reason ResizeRefused, and the new size after its next restart."
