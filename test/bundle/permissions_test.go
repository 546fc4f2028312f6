// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	operatorsv1alpha1 "github.com/operator-framework/api/pkg/operators/v1alpha1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"container.training/useless/hack/cluster"
)

// installed returns the objects of a kind in the installation without OLM.
func installed[T any](t *testing.T, kind string) []T {
	t.Helper()
	objects, err := cluster.ReadManifests("../../dist/install.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var found []T
	for _, object := range objects {
		if object.GetKind() != kind {
			continue
		}
		var typed T
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &typed); err != nil {
			t.Fatal(err)
		}
		found = append(found, typed)
	}
	if len(found) == 0 {
		t.Fatalf("no %s in dist/install.yaml", kind)
	}
	return found
}

const (
	serviceAccount = "useless-controller-manager"
	certificates   = "useless-certificates-role" // needed only without OLM
	leaderLease    = "leader.useless.container.training"
	dryRunLease    = "schedule-dry-run.useless.container.training"
)

// TestPermissions checks that the operator has the same permissions with and without OLM. Only the permissions for
// certificates may differ.
func TestPermissions(t *testing.T) {
	var wantCluster, want []rbacv1.PolicyRule
	for _, role := range installed[rbacv1.ClusterRole](t, "ClusterRole") {
		for _, binding := range installed[rbacv1.ClusterRoleBinding](t, "ClusterRoleBinding") {
			wantCluster = append(wantCluster, granted(role.Name, role.Rules, binding.RoleRef, binding.Subjects)...)
		}
	}
	for _, role := range installed[rbacv1.Role](t, "Role") {
		for _, binding := range installed[rbacv1.RoleBinding](t, "RoleBinding") {
			want = append(want, granted(role.Name, role.Rules, binding.RoleRef, binding.Subjects)...)
		}
	}
	strategy := load(t).CSV.Spec.InstallStrategy.StrategySpec
	for _, c := range []struct {
		scope string
		want  []rbacv1.PolicyRule
		got   []operatorsv1alpha1.StrategyDeploymentPermissions
	}{{"cluster", wantCluster, strategy.ClusterPermissions}, {"namespace", want, strategy.Permissions}} {
		if len(c.got) != 1 || c.got[0].ServiceAccountName != serviceAccount {
			t.Fatalf("permissions in the %s: got %+v, want those of one ServiceAccount", c.scope, c.got)
		}
		if diff := gocmp.Diff(sorted(c.want), sorted(c.got[0].Rules)); diff != "" || len(c.want) == 0 {
			t.Errorf("permissions in the %s (-without OLM +in the bundle):\n%s", c.scope, diff)
		}
	}
}

// granted returns the rules of a role that the binding grants to the operator. It returns nil if the binding does not
// grant the role, or if the role is not needed with OLM.
func granted(role string, rules []rbacv1.PolicyRule, bound rbacv1.RoleRef, to []rbacv1.Subject) []rbacv1.PolicyRule {
	if role != bound.Name || role == certificates || to[0].Name != serviceAccount {
		return nil
	}
	return rules
}

func sorted(rules []rbacv1.PolicyRule) []string {
	var lines []string
	for _, rule := range rules {
		lines = append(lines, fmt.Sprintf("%q %q named %q: %q", rule.APIGroups, rule.Resources, rule.ResourceNames, rule.Verbs))
	}
	slices.Sort(lines)
	return lines
}

// TestLeastPrivilege searches the bundle for permissions that the operator does not need with OLM.
func TestLeastPrivilege(t *testing.T) {
	strategy := load(t).CSV.Spec.InstallStrategy.StrategySpec
	for _, permissions := range slices.Concat(strategy.ClusterPermissions, strategy.Permissions) {
		for _, rule := range permissions.Rules {
			for _, resource := range rule.Resources {
				if problem := excess(resource, rule); problem != "" {
					t.Errorf("%s: %+v", problem, rule)
				}
			}
		}
	}
}

// excess describes the unnecessary permissions that a rule grants for a resource. It returns "" if there are none.
func excess(resource string, rule rbacv1.PolicyRule) string {
	only, limited := map[string][]string{
		"customresourcedefinitions":        {"get"},
		"customresourcedefinitions/status": {"update"},
		"deployments":                      {"list", "patch", "watch"}, // for schedules; OLM creates the operator's Deployment
	}[resource]
	if limited && !slices.Equal(rule.Verbs, only) {
		return fmt.Sprintf("only %q is needed", only)
	}
	switch resource {
	case "secrets", "validatingwebhookconfigurations", "mutatingwebhookconfigurations", "services":
		return "not needed: OLM creates the certificates, the webhook configurations and the Service"
	case "leases": // in install mode AllNamespaces, OLM turns Roles into ClusterRoles
		named := slices.Contains([]string{leaderLease, dryRunLease}, strings.Join(rule.ResourceNames, " "))
		if !named && !slices.Equal(rule.Verbs, []string{"create"}) {
			return "a rule with other verbs than create must name the Lease " + leaderLease + " or " + dryRunLease
		}
	case "customresourcedefinitions", "customresourcedefinitions/status":
		if len(rule.ResourceNames) == 0 {
			return "only the operator's own CustomResourceDefinitions are needed"
		}
	}
	if slices.Contains(rule.Verbs, "*") || slices.Contains(rule.APIGroups, "*") || resource == "*" {
		return "a wildcard"
	}
	return ""
}

// TestOptionalControllers compares the bundle's ClusterRoles of optional controllers with those in config/components.
// The bundle must not bind them: users bind them when they enable a controller.
func TestOptionalControllers(t *testing.T) {
	got := map[string][]rbacv1.PolicyRule{}
	for _, object := range load(t).Objects {
		if object.GetKind() == "ClusterRoleBinding" {
			t.Errorf("the bundle has the ClusterRoleBinding %s", object.GetName())
		}
		if object.GetKind() == "ClusterRole" {
			var role rbacv1.ClusterRole
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &role); err != nil {
				t.Fatal(err)
			}
			got[role.Name] = role.Rules
		}
	}
	for _, name := range []string{"podcount", "ingress"} {
		var want rbacv1.ClusterRole
		read(t, "../../config/components/"+name+"/permissions/role.yaml", &want)
		if diff := gocmp.Diff(want.Rules, got[want.Name]); diff != "" || len(want.Rules) == 0 {
			t.Errorf("%s (-component +bundle):\n%s", want.Name, diff)
		}
	}
}
