// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package bundle checks the OLM bundle without installing it.
package bundle

import (
	"cmp"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"sigs.k8s.io/yaml"
)

// folder has the bundle.
func folder() string { return cmp.Or(os.Getenv("BUNDLE_DIR"), "../../bundle") }

func read(t *testing.T, path string, into any) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(data, into); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// inspectable lets validators inspect the operator's image before it is published.
func inspectable(t *testing.T) {
	t.Helper()
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	platforms := regexp.MustCompile(`(?m)^PLATFORMS \?= (.*)$`).FindSubmatch(makefile)
	if platforms == nil {
		t.Fatal("no PLATFORMS in the Makefile")
	}
	dir, err := filepath.Abs("inspect")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PLATFORMS", string(platforms[1]))
	t.Setenv("PATH", dir+string(filepath.ListSeparator)+os.Getenv("PATH"))
}
