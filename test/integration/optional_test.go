// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"container.training/useless/internal/controller"
	"container.training/useless/internal/controller/ingress"
	"container.training/useless/internal/controller/podcount"
	"container.training/useless/test/docs"
)

// grant gives the operator the rights that a component of config/components gives it, until the test ends. They hold when
// it returns.
func grant(t *testing.T, component string) {
	t.Helper()
	dir := filepath.Join(repository, "config", "components", component)
	files := []string{"-f", filepath.Join(dir, "role", "role.yaml"), "-f", filepath.Join(dir, "role_binding.yaml")}
	mustKubectl(t, "", append([]string{"apply"}, files...)...)
	t.Cleanup(func() {
		if out, err := clusterOf(t).Kubectl(context.Background(), append([]string{"delete"}, files...)...).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	waitForSetup(t, component, "<nil>")
}

// waitForSetup waits until a controller can be set up, or fails to be with a problem, and returns what the problem tells
// people to do about it.
func waitForSetup(t *testing.T, name, problem string) (command string) {
	t.Helper()
	eventually(t, patience, func() (bool, string) {
		_, _, err := clusterOf(t).newOperator(t.Context(), operatorOptions{
			controllers: func(options *controller.Options) { options.Selection = []string{name} },
			noWebhooks:  true,
		})
		_, command, _ = strings.Cut(fmt.Sprint(err), "with kubectl ")
		return strings.HasPrefix(fmt.Sprint(err), problem), fmt.Sprintf("got %v, want %s", err, problem)
	})
	return command
}

// TestRightsComeFirst turns controllers on that have yet to be given their rights, and then does what the errors say.
func TestRightsComeFirst(t *testing.T) {
	alone(t)
	for name, resource := range map[string]string{podcount.Name: "replicasets.apps", ingress.Name: "ingresses.networking.k8s.io"} {
		t.Run(name, func(t *testing.T) {
			role, binding := "clusterrole/useless-"+name+"-role", "clusterrolebinding/useless-"+name
			bind := waitForSetup(t, name, "set up controller "+name+": no right to list "+resource+": bind its ClusterRole")
			mustKubectl(t, "", strings.Fields(bind)...)
			t.Cleanup(func() {
				if out, err := clusterOf(t).Kubectl(context.Background(), "delete", role, binding).CombinedOutput(); err != nil {
					t.Errorf("%v: %s", err, out)
				}
			})
			mustKubectl(t, "", "create", "clusterrole", path.Base(role), "--verb=list,watch", "--resource="+resource)
			waitForSetup(t, name, "set up controller "+name+": no right to patch "+resource)
			mustKubectl(t, "", "apply", "-f", filepath.Join(repository, "config", "components", name, "role", "role.yaml"))
			waitForSetup(t, name, "<nil>")
		})
	}
}

// TestDocumentedKustomizations has the API server check what people apply who follow the documentation, in the place of
// what is installed.
func TestDocumentedKustomizations(t *testing.T) {
	shared(t)
	clone, err := filepath.Abs(repository)
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range []string{"podcount.md", "ingress.md"} {
		dir := t.TempDir()
		err := errors.Join(
			os.Symlink(clone, filepath.Join(dir, "useless-operator")),
			os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(docs.Block(t, page, "resources:")), 0o600),
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
	return docs.Block(t, page, "apiVersion:")
}
