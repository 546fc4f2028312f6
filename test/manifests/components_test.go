// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/test/internal/docexamples"
	"container.training/useless/test/internal/installer"
)

var kustomize = installer.Kustomize

// arguments returns the arguments of the operator's container.
func arguments(t *testing.T, manifests []byte) []string {
	t.Helper()
	deployments := decode[appsv1.Deployment](t, manifests, "Deployment")
	if len(deployments) != 1 {
		t.Fatalf("got %d Deployments, want 1", len(deployments))
	}
	return deployments[0].Spec.Template.Spec.Containers[0].Args
}

// TestComponents renders the documented kustomizations of podcount and ingress, on config/default and on
// config/certmanager.
func TestComponents(t *testing.T) {
	for _, c := range []struct {
		page       string
		args, adds []string
	}{
		{
			"podcount.md", []string{"--controllers=podcount"},
			[]string{
				"ClusterRole useless-podcount-role", "ClusterRoleBinding useless-podcount-rolebinding",
				"ValidatingAdmissionPolicyBinding useless-operator-changes-podcount",
			},
		},
		{
			"ingress.md", []string{"--controllers=ingress", "--ingress-annotation=foo=bar"},
			[]string{
				"ClusterRole useless-ingress-role", "ClusterRoleBinding useless-ingress-rolebinding",
				"ValidatingAdmissionPolicyBinding useless-operator-changes-ingress",
			},
		},
	} {
		for _, overlay := range []string{"config/default", "config/certmanager"} {
			t.Run(c.page+" on "+overlay, func(t *testing.T) {
				t.Parallel()
				checkComponents(t, overlay, strings.Replace(docexamples.Block(t, c.page, "resources:"), "config/default", overlay, 1), c.args, c.adds)
			})
		}
	}
	t.Run("both", func(t *testing.T) {
		t.Parallel()
		both := strings.Replace(docexamples.Block(t, "ingress.md", "resources:"), "components:\n", "components:\n- useless-operator/config/components/podcount\n", 1)
		checkComponents(t, "config/default", both,
			[]string{"--controllers=podcount", "--controllers=ingress", "--ingress-annotation=foo=bar"},
			[]string{
				"ClusterRole useless-ingress-role", "ClusterRole useless-podcount-role",
				"ClusterRoleBinding useless-ingress-rolebinding", "ClusterRoleBinding useless-podcount-rolebinding",
				"ValidatingAdmissionPolicyBinding useless-operator-changes-ingress", "ValidatingAdmissionPolicyBinding useless-operator-changes-podcount",
			})
	})
}

// TestServeOnlyV1beta1 compares the documented kustomization with config/default. The only difference must
// be that v1alpha1 of Machines and Switches is not served.
func TestServeOnlyV1beta1(t *testing.T) {
	plain := kustomize(t, "resources: [useless-operator/config/default]\n")
	rendered := kustomize(t, docexamples.Block(t, "installing.md", "components:"))
	want := decode[apiextensionsv1.CustomResourceDefinition](t, plain, "CustomResourceDefinition")
	for i := range want {
		if want[i].Spec.Group == v1beta1.GroupVersion.Group {
			want[i].Spec.Versions[0].Served = false
		}
	}
	got := decode[apiextensionsv1.CustomResourceDefinition](t, rendered, "CustomResourceDefinition")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("CustomResourceDefinitions (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(names(t, plain), names(t, rendered)); diff != "" {
		t.Errorf("objects (-config/default +with the component):\n%s", diff)
	}
}

// checkComponents compares a kustomization with the installation that it extends. The kustomization must add exactly
// these arguments and objects. Each added ClusterRoleBinding must bind an added ClusterRole to the operator.
func checkComponents(t *testing.T, overlay, kustomization string, args, adds []string) {
	t.Helper()
	plain, rendered := kustomize(t, "resources: [useless-operator/"+overlay+"]\n"), kustomize(t, kustomization)
	if diff := cmp.Diff(slices.Concat(arguments(t, plain), args), arguments(t, rendered)); diff != "" {
		t.Errorf("arguments (-want +got):\n%s", diff)
	}
	there := names(t, plain)
	added := slices.DeleteFunc(names(t, rendered), func(name string) bool { return slices.Contains(there, name) })
	if diff := cmp.Diff(adds, added); diff != "" {
		t.Errorf("objects (-want +added):\n%s", diff)
	}
	operator := []rbacv1.Subject{{Kind: "ServiceAccount", Name: "useless-controller-manager", Namespace: "useless-system"}}
	for _, binding := range decode[rbacv1.ClusterRoleBinding](t, rendered, "ClusterRoleBinding") {
		if !slices.Contains(added, "ClusterRoleBinding "+binding.Name) {
			continue
		}
		if diff := cmp.Diff(operator, binding.Subjects); diff != "" || !slices.Contains(added, "ClusterRole "+binding.RoleRef.Name) {
			t.Errorf("%s binds %s to (-want +got):\n%s", binding.Name, binding.RoleRef.Name, diff)
		}
	}
}

// names returns the kinds and names of all objects, in the order of the manifests.
func names(t *testing.T, manifests []byte) []string {
	t.Helper()
	var found []string
	for _, object := range all(t, manifests) {
		found = append(found, object.GetKind()+" "+object.GetName())
	}
	return found
}
