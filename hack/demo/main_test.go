// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// TestManifests checks that the demo finds the permissions of the controllers that are disabled by default.
func TestManifests(t *testing.T) {
	manifests, err := (&demo{root: "../.."}).manifests()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"useless-podcount-rolebinding", "useless-ingress-rolebinding"} {
		if !slices.ContainsFunc(manifests, func(o *unstructured.Unstructured) bool { return o.GetName() == name }) {
			t.Errorf("the manifests have no ClusterRoleBinding %s", name)
		}
	}
}
