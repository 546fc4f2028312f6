// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
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

// TestDocumentedKustomizations has the API server check what people apply who follow the documentation, in the place of
// what is installed.
func TestDocumentedKustomizations(t *testing.T) {
	t.Parallel()
	clone, err := filepath.Abs(repository)
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range []string{"podcount.md", "ingress.md"} {
		dir := t.TempDir()
		err := errors.Join(
			os.Symlink(clone, filepath.Join(dir, "useless-operator")),
			os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(block(t, page, "resources:")), 0o600),
		)
		if err != nil {
			t.Fatal(err)
		}
		// As the manager that has installed what it is to replace, the URLs of the webhooks among it.
		out := mustKubectl(t, "", "apply", "-k", dir, "--server-side", "--field-manager=useless-cluster", "--dry-run=server", "-o", "name")
		want := "clusterrolebinding.rbac.authorization.k8s.io/useless-" + strings.TrimSuffix(page, ".md") + "-rolebinding"
		if !strings.Contains(out, want+"\n") {
			t.Errorf("docs/%s: no %s among\n%s", page, want, out)
		}
	}
}

// documented is the first manifest on a page of the documentation, which people copy.
func documented(t *testing.T, page string) string {
	t.Helper()
	return block(t, page, "apiVersion:")
}

// block is the first YAML on a page of the documentation that begins with a key.
func block(t *testing.T, page, key string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(repository, "docs", page))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), "\n```yaml\n"+key)
	yaml, _, ended := strings.Cut(rest, "\n```\n")
	if !found || !ended {
		t.Fatalf("no YAML with %s in docs/%s", key, page)
	}
	return key + yaml + "\n"
}
