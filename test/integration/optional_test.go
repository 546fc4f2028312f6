// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// grant gives the operator the rights that a component of config/components gives it, until the test ends.
func grant(t *testing.T, component string) {
	t.Helper()
	dir := filepath.Join(repository, "config", "components", component)
	files := []string{"-f", filepath.Join(dir, "role", "role.yaml"), "-f", filepath.Join(dir, "role_binding.yaml")}
	mustKubectl(t, "", append([]string{"apply"}, files...)...)
	t.Cleanup(func() {
		if out, err := plane.Kubectl(context.Background(), append([]string{"delete"}, files...)...).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
}

// documented is the first manifest on a page of the documentation, which people copy.
func documented(t *testing.T, page string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(repository, "docs", page))
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?s)\n```yaml\n(apiVersion:.*?)```\n").FindSubmatch(text)
	if block == nil {
		t.Fatalf("no manifest in docs/%s", page)
	}
	return string(block[1])
}
