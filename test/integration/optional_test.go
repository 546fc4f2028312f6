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
	"container.training/useless/test/internal/docexamples"
)

// grantPermissions gives the operator the permissions of a component in config/components until the test ends. It
// returns when the permissions are in effect.
func grantPermissions(t *testing.T, component string) {
	t.Helper()
	dir := filepath.Join(repository, "config", "components", component, "permissions")
	files := []string{"-f", filepath.Join(dir, "role.yaml"), "-f", filepath.Join(dir, "bindings.yaml")}
	mustKubectl(t, "", append([]string{"apply"}, files...)...)
	t.Cleanup(func() {
		if out, err := clusterOf(t).Kubectl(context.Background(), append([]string{"delete"}, files...)...).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	waitForSetup(t, component, "<nil>")
}

// waitForSetup repeats the setup of a controller until its error begins with problem. The problem "<nil>" means
// success. waitForSetup returns the kubectl command that the error recommends, without the word kubectl.
func waitForSetup(t *testing.T, name, problem string) (command string) {
	t.Helper()
	eventually(t, defaultTimeout, func() (bool, string) {
		_, _, err := clusterOf(t).newOperator(t.Context(), operatorOptions{
			controllers: func(options *controller.Options) { options.Selection = []string{name} },
			noWebhooks:  true,
		})
		_, command, _ = strings.Cut(fmt.Sprint(err), "with kubectl ")
		return strings.HasPrefix(fmt.Sprint(err), problem),
			fmt.Sprintf("set up %s: got error %v, want %s", name, err, problem)
	})
	return command
}

// TestMissingPermissions enables controllers without their permissions. Then it runs the kubectl command that the error
// recommends, and creates the ClusterRole. At first, the ClusterRole lacks the permission to patch.
func TestMissingPermissions(t *testing.T) {
	useExclusiveCluster(t)
	for name, resource := range map[string]string{podcount.Name: "replicasets.apps", ingress.Name: "ingresses.networking.k8s.io"} {
		t.Run(name, func(t *testing.T) {
			role, binding := "clusterrole/useless-"+name+"-role", "clusterrolebinding/useless-"+name
			bind := waitForSetup(t, name, "set up controller "+name+": no permission to list "+resource+": bind the ClusterRole")
			mustKubectl(t, "", strings.Fields(bind)...)
			t.Cleanup(func() {
				if out, err := clusterOf(t).Kubectl(context.Background(), "delete", role, binding).CombinedOutput(); err != nil {
					t.Errorf("%v: %s", err, out)
				}
			})
			mustKubectl(t, "", "create", "clusterrole", path.Base(role), "--verb=list,watch", "--resource="+resource)
			waitForSetup(t, name, "set up controller "+name+": no permission to patch "+resource)
			mustKubectl(t, "", "apply", "-f", filepath.Join(repository, "config", "components", name, "permissions", "role.yaml"))
			waitForSetup(t, name, "<nil>")
		})
	}
}

// TestDocumentedKustomizations applies the kustomizations of the documentation to the installation, in a server-side
// dry run. It has an exclusive control plane, because other tests grant permissions that could conflict.
func TestDocumentedKustomizations(t *testing.T) {
	useExclusiveCluster(t)
	clone, err := filepath.Abs(repository)
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range []string{"podcount.md", "ingress.md"} {
		dir := t.TempDir()
		err := errors.Join(
			os.Symlink(clone, filepath.Join(dir, "useless-operator")),
			os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(docexamples.Block(t, page, "resources:")), 0o600),
		)
		if err != nil {
			t.Fatal(err)
		}
		// The field manager must be the same as for the installation. Another field manager would cause conflicts, for
		// example about the URLs of the webhooks.
		out := mustKubectl(t, "", "apply", "-k", dir, "--server-side", "--field-manager=useless-cluster", "--dry-run=server", "-o", "name")
		want := "clusterrolebinding.rbac.authorization.k8s.io/useless-" + strings.TrimSuffix(page, ".md") + "-rolebinding"
		if !strings.Contains(out, want+"\n") {
			t.Errorf("docs/%s: the applied objects do not include %s:\n%s", page, want, out)
		}
	}
}

// documented returns the first manifest on a page of the documentation.
func documented(t *testing.T, page string) string {
	t.Helper()
	return docexamples.Block(t, page, "apiVersion:")
}
