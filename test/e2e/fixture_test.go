// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/blang/semver/v4"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// previousVersion is the version of a test bundle that has only v1alpha1.
const previousVersion = "0.0.1"

// currentVersion is the version of this source tree.
var currentVersion = os.Getenv("VERSION")

// nextVersion returns the version of a test bundle that differs from the current bundle only in its version.
func nextVersion(t *testing.T) string {
	t.Helper()
	version, err := semver.Parse(currentVersion)
	if err != nil {
		t.Fatal(err)
	}
	if err := version.IncrementPatch(); err != nil {
		t.Fatal(err)
	}
	return version.String()
}

// publishBundle makes a bundle with another version from a copy of the current bundle. It calls change for each object
// of the copy. Then it builds and pushes the bundle's image. It returns the bundle's folder.
func publishBundle(t *testing.T, version string, change func(*unstructured.Unstructured)) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "bundle")
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(repository, "bundle"))); err != nil {
		t.Fatal(err)
	}
	manifests, err := filepath.Glob(filepath.Join(dir, "manifests", "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range manifests {
		object := parse(t, withImages(t, path))
		if object.GetKind() == "ClusterServiceVersion" {
			object.SetName(packageName + ".v" + version)
			set(t, object, version, "spec", "version")
		}
		change(object)
		manifest, err := yaml.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, manifest, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	makeImage(t, "bundle", "BUNDLE_DIR="+dir, "BUNDLE_IMG="+bundleImage(version))
	return dir
}

// makeImage builds and pushes an image with make.
func makeImage(t *testing.T, name string, variables ...string) {
	t.Helper()
	must(t, append([]string{"make", "-s", "-C", absolute(t, repository), name + "-build", name + "-push"}, variables...)...)
}

func set(t *testing.T, object *unstructured.Unstructured, value any, path ...string) {
	t.Helper()
	if err := unstructured.SetNestedField(object.Object, value, path...); err != nil {
		t.Fatal(err)
	}
}

// onlyOldVersion returns a function that changes an object of a bundle to its state before v1beta1 existed. The
// operator then has no webhooks. It also has no controller of machines, because that needs v1beta1.
func onlyOldVersion(t *testing.T) func(*unstructured.Unstructured) {
	t.Helper()
	return func(object *unstructured.Unstructured) {
		isOld := func(item map[string]any) bool { return strings.HasSuffix(item["version"].(string), "v1alpha1") }
		switch object.GetKind() {
		case "ClusterServiceVersion":
			keep(t, object, isOld, "spec", "customresourcedefinitions", "owned")
			unstructured.RemoveNestedField(object.Object, "spec", "webhookdefinitions")
			unstructured.RemoveNestedField(object.Object, "metadata", "annotations", "alm-examples")
			deployments, _, _ := unstructured.NestedSlice(object.Object, "spec", "install", "spec", "deployments")
			containers, _, _ := unstructured.NestedSlice(deployments[0].(map[string]any), "spec", "template", "spec", "containers")
			containers[0].(map[string]any)["args"] = []any{"--leader-elect", "--webhooks=false", "--controllers=-machine"}
			if err := unstructured.SetNestedSlice(deployments[0].(map[string]any), containers, "spec", "template", "spec", "containers"); err != nil {
				t.Fatal(err)
			}
			set(t, object, deployments, "spec", "install", "spec", "deployments")
		case "CustomResourceDefinition":
			unstructured.RemoveNestedField(object.Object, "spec", "conversion")
			keep(t, object, func(version map[string]any) bool {
				version["storage"] = true
				return version["name"] == "v1alpha1"
			}, "spec", "versions")
		}
	}
}

// keep removes the items of a list that do not satisfy the condition.
func keep(t *testing.T, object *unstructured.Unstructured, condition func(map[string]any) bool, path ...string) {
	t.Helper()
	items, _, err := unstructured.NestedSlice(object.Object, path...)
	if err != nil {
		t.Fatal(err)
	}
	var kept []any
	for _, item := range items {
		if condition(item.(map[string]any)) {
			kept = append(kept, item)
		}
	}
	set(t, object, kept, path...)
}
