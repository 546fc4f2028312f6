// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"container.training/useless/test/internal/combinations"
)

// TestNetworkPolicy checks that only two kinds of traffic can reach the Pods. These are calls of the webhooks, and
// requests for metrics from labelled namespaces.
func TestNetworkPolicy(t *testing.T) {
	deployment := objects[appsv1.Deployment](t, "Deployment")[0]
	port := func(name string) []networkingv1.NetworkPolicyPort {
		ports := deployment.Spec.Template.Spec.Containers[0].Ports
		i := slices.IndexFunc(ports, func(port corev1.ContainerPort) bool { return port.Name == name })
		if i < 0 {
			t.Fatalf("no port %s", name)
		}
		return []networkingv1.NetworkPolicyPort{{Protocol: new(corev1.ProtocolTCP), Port: new(intstr.FromInt32(ports[i].ContainerPort))}}
	}
	policies := objects[networkingv1.NetworkPolicy](t, "NetworkPolicy")
	if len(policies) != 1 || policies[0].Namespace != deployment.Namespace {
		t.Fatalf("want one NetworkPolicy, in the operator's namespace; got %+v", policies)
	}
	want := networkingv1.NetworkPolicySpec{
		PodSelector: metav1.LabelSelector{MatchLabels: deployment.Spec.Template.Labels},
		PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
		Ingress: []networkingv1.NetworkPolicyIngressRule{
			{Ports: port("webhook")},
			{Ports: port("metrics"), From: []networkingv1.NetworkPolicyPeer{{
				NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"metrics": "enabled"}},
			}}},
		},
	}
	if diff := cmp.Diff(want, policies[0].Spec); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// servedVersions is the admission policy that applies to all users.
const servedVersions = "useless-served-versions"

// TestAdmissionPoliciesMatchOperator checks that all admission policies except servedVersions apply only to the
// operator. It checks the username in the policies, because kustomize does not change it.
func TestAdmissionPoliciesMatchOperator(t *testing.T) {
	deployment := objects[appsv1.Deployment](t, "Deployment")[0]
	operator := []admissionregistrationv1.MatchCondition{{Name: "operator", Expression: "request.userInfo.username == 'system:serviceaccount:" +
		deployment.Namespace + ":" + deployment.Spec.Template.Spec.ServiceAccountName + "'"}}
	var policies, bound []string
	for _, policy := range objects[admissionregistrationv1.ValidatingAdmissionPolicy](t, "ValidatingAdmissionPolicy") {
		policies = append(policies, policy.Name)
		operator := operator
		if policy.Name == servedVersions {
			operator = nil
		}
		if diff := cmp.Diff(operator, policy.Spec.MatchConditions); diff != "" || policy.Namespace != "" || policy.Spec.FailurePolicy != nil {
			t.Errorf("%s/%s: failurePolicy %v, match conditions (-want +got):\n%s", policy.Namespace, policy.Name, policy.Spec.FailurePolicy, diff)
		}
	}
	for _, binding := range objects[admissionregistrationv1.ValidatingAdmissionPolicyBinding](t, "ValidatingAdmissionPolicyBinding") {
		bound = append(bound, binding.Spec.PolicyName)
		want := admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: binding.Spec.PolicyName, ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
			MatchResources: binding.Spec.MatchResources, // checked by TestAdmissionPoliciesCoverPermissions
		}
		if diff := cmp.Diff(want, binding.Spec); diff != "" || binding.Namespace != "" {
			t.Errorf("%s/%s (-want +got):\n%s", binding.Namespace, binding.Name, diff)
		}
	}
	slices.Sort(policies)
	slices.Sort(bound)
	if diff := cmp.Diff(policies, slices.Compact(bound)); diff != "" {
		t.Errorf("policies (-installed +bound):\n%s", diff)
	}
}

// withoutPolicy lists the operator's write permissions that no admission policy covers, with the reason.
var withoutPolicy = map[string]string{
	"coordination.k8s.io leases":                "limited by name to the operator's own objects, except creations",
	"events.k8s.io events":                      "changes no other object",
	" events":                                   "changes no other object",
	"authentication.k8s.io tokenreviews":        "stores nothing",
	"authorization.k8s.io subjectaccessreviews": "stores nothing",
	" secrets":                                  "limited by name to the operator's own object",
	"admissionregistration.k8s.io validatingwebhookconfigurations": "admission policies cannot match it; limited by name to the operator's own object",
	"useless.container.training machines/finalizers":               "the operator sends no such request; ownerReferences with blockOwnerDeletion need the permission",
	"useless.container.training machines/status":                   "the operator owns the whole status",
	"useless.container.training switches":                          "a Switch affects no other object, and a policy would make each creation 10 % slower",
	"useless.container.training switches/status":                   "the operator owns the whole status",
	"cloudnative.tw virtualmachines/finalizers":                    "the operator sends no such request; ownerReferences with blockOwnerDeletion need the permission",
	"cloudnative.tw virtualmachines/status":                        "the operator owns the whole status",
}

// TestAdmissionPoliciesCoverPermissions checks each combination of components. A bound admission policy must cover each
// write permission of the operator, unless withoutPolicy has a reason. Each rule of a bound policy must have a resource
// that the operator may write.
func TestAdmissionPoliciesCoverPermissions(t *testing.T) {
	for _, c := range combinations.All {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			rendered := kustomize(t, c.Kustomization(combinations.SelfManaged))
			covered, writes := boundRules(t, rendered), writesOf(operatorsRules(t, rendered))
			open := slices.Sorted(maps.Keys(uncovered(writes, covered)))
			want := slices.Sorted(maps.Keys(withoutPolicy))
			if c.Name != combinations.Everything.Name {
				want = slices.DeleteFunc(want, func(name string) bool { return !slices.Contains(open, name) })
			}
			if diff := cmp.Diff(want, open); diff != "" {
				t.Errorf("write permissions without an admission policy (-with a reason +granted):\n%s", diff)
			}
			for _, rule := range covered {
				writable := func(resource string) bool { return len(writes[rule.APIGroups[0]+" "+resource]) > 0 }
				if !slices.ContainsFunc(rule.Resources, writable) {
					t.Errorf("a policy is bound for %s %s, which the operator may not write", rule.APIGroups, rule.Resources)
				}
			}
		})
	}
}

// writesOf returns the operations that rules permit, by API group and resource.
func writesOf(rules []rbacv1.PolicyRule) map[string][]admissionregistrationv1.OperationType {
	writes := map[string][]admissionregistrationv1.OperationType{}
	for _, rule := range rules {
		for _, verb := range rule.Verbs {
			operation := map[string]admissionregistrationv1.OperationType{
				"create": admissionregistrationv1.Create, "update": admissionregistrationv1.Update, "patch": admissionregistrationv1.Update,
				"delete": admissionregistrationv1.Delete, "deletecollection": admissionregistrationv1.Delete,
			}[verb]
			for _, resource := range rule.Resources {
				if name := rule.APIGroups[0] + " " + resource; operation != "" {
					writes[name] = append(writes[name], operation)
				}
			}
		}
	}
	return writes
}

// uncovered returns the operations that no rule of a bound policy covers, by API group and resource.
func uncovered(
	writes map[string][]admissionregistrationv1.OperationType, covered []admissionregistrationv1.NamedRuleWithOperations,
) map[string][]admissionregistrationv1.OperationType {
	open := map[string][]admissionregistrationv1.OperationType{}
	for name, operations := range writes {
		group, resource, _ := strings.Cut(name, " ")
		for _, operation := range operations {
			if !slices.ContainsFunc(covered, func(rule admissionregistrationv1.NamedRuleWithOperations) bool {
				return slices.Contains(rule.APIGroups, group) && slices.Contains(rule.Resources, resource) && slices.Contains(rule.Operations, operation)
			}) {
				open[name] = append(open[name], operation)
			}
		}
	}
	return open
}

// boundRules returns the rules of all bound admission policies except servedVersions. If a binding has rules, only
// these rules count, and the policy must contain them.
func boundRules(t *testing.T, manifests []byte) (rules []admissionregistrationv1.NamedRuleWithOperations) {
	t.Helper()
	policies := map[string][]admissionregistrationv1.NamedRuleWithOperations{}
	for _, policy := range decode[admissionregistrationv1.ValidatingAdmissionPolicy](t, manifests, "ValidatingAdmissionPolicy") {
		policies[policy.Name] = policy.Spec.MatchConstraints.ResourceRules
	}
	for _, binding := range decode[admissionregistrationv1.ValidatingAdmissionPolicyBinding](t, manifests, "ValidatingAdmissionPolicyBinding") {
		ofPolicy := policies[binding.Spec.PolicyName]
		if binding.Spec.PolicyName == servedVersions { // it does not restrict the fields that the operator may change
			continue
		}
		if binding.Spec.MatchResources == nil {
			rules = append(rules, ofPolicy...)
			continue
		}
		narrowed := binding.Spec.MatchResources.ResourceRules
		for _, rule := range narrowed {
			for _, resource := range rule.Resources {
				if len(uncovered(map[string][]admissionregistrationv1.OperationType{rule.APIGroups[0] + " " + resource: rule.Operations}, ofPolicy)) > 0 {
					t.Errorf("%s: the policy %s does not match %s", binding.Name, binding.Spec.PolicyName, resource)
				}
			}
		}
		rules = append(rules, narrowed...)
	}
	return rules
}

// operatorsRules returns the rules of all roles that are bound to the operator. Each rule has one API group.
func operatorsRules(t *testing.T, manifests []byte) (rules []rbacv1.PolicyRule) {
	t.Helper()
	for kind, roles := range map[string][]rbacv1.ClusterRole{ // a Role has the same fields
		"ClusterRole": decode[rbacv1.ClusterRole](t, manifests, "ClusterRole"), "Role": decode[rbacv1.ClusterRole](t, manifests, "Role"),
	} {
		for _, binding := range decode[rbacv1.ClusterRoleBinding](t, manifests, kind+"Binding") {
			i := slices.IndexFunc(roles, func(role rbacv1.ClusterRole) bool { return role.Name == binding.RoleRef.Name })
			if i < 0 || binding.Subjects[0].Name != "useless-controller-manager" {
				t.Fatalf("%s binds %+v to %+v", binding.Name, binding.RoleRef, binding.Subjects)
			}
			rules = append(rules, roles[i].Rules...)
		}
	}
	for _, rule := range rules {
		if len(rule.APIGroups) != 1 {
			t.Fatalf("a rule has %d API groups, want 1: %+v", len(rule.APIGroups), rule)
		}
	}
	return rules
}
