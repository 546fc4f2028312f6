// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package manifests

import (
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
)

// TestNetworkPolicy checks that only two kinds of traffic can reach the Pods: calls of the webhooks, and requests for
// metrics from labelled namespaces.
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

// TestAdmissionPoliciesMatchOperator checks that the admission policies apply only to the operator. Kustomize does not
// replace the username in them.
func TestAdmissionPoliciesMatchOperator(t *testing.T) {
	deployment := objects[appsv1.Deployment](t, "Deployment")[0]
	operator := []admissionregistrationv1.MatchCondition{{Name: "operator", Expression: "request.userInfo.username == 'system:serviceaccount:" +
		deployment.Namespace + ":" + deployment.Spec.Template.Spec.ServiceAccountName + "'"}}
	var policies, bound []string
	for _, policy := range objects[admissionregistrationv1.ValidatingAdmissionPolicy](t, "ValidatingAdmissionPolicy") {
		policies = append(policies, policy.Name)
		if diff := cmp.Diff(operator, policy.Spec.MatchConditions); diff != "" || policy.Namespace != "" || policy.Spec.FailurePolicy != nil {
			t.Errorf("%s/%s: failurePolicy %v, match conditions (-want +got):\n%s", policy.Namespace, policy.Name, policy.Spec.FailurePolicy, diff)
		}
	}
	for _, binding := range objects[admissionregistrationv1.ValidatingAdmissionPolicyBinding](t, "ValidatingAdmissionPolicyBinding") {
		bound = append(bound, binding.Spec.PolicyName)
		want := admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: binding.Name, ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
		}
		if diff := cmp.Diff(want, binding.Spec); diff != "" || binding.Namespace != "" {
			t.Errorf("%s/%s (-want +got):\n%s", binding.Namespace, binding.Name, diff)
		}
	}
	slices.Sort(policies)
	slices.Sort(bound)
	if diff := cmp.Diff(policies, bound); diff != "" {
		t.Errorf("policies (-installed +bound):\n%s", diff)
	}
}

// withoutPolicy lists the operator's write permissions that no admission policy covers, with the reason.
var withoutPolicy = map[string]string{
	"coordination.k8s.io leases":                "limited by name to the operator's own object",
	"events.k8s.io events":                      "changes no other object",
	" events":                                   "changes no other object",
	"authentication.k8s.io tokenreviews":        "stores nothing",
	"authorization.k8s.io subjectaccessreviews": "stores nothing",
	" secrets":                                  "limited by name to the operator's own object",
	"admissionregistration.k8s.io validatingwebhookconfigurations": "admission policies cannot match it; limited by name to the operator's own object",
	"useless.container.training machines/finalizers":               "the operator sends no such request; ownerReferences with blockOwnerDeletion need the permission",
	"useless.container.training machines/status":                   "the operator owns the whole status",
	"useless.container.training switches":                          "a switch affects nothing; a policy would make each creation 10 % slower",
	"useless.container.training switches/status":                   "the operator owns the whole status",
	"cloudnative.tw virtualmachines/finalizers":                    "the operator sends no such request; ownerReferences with blockOwnerDeletion need the permission",
	"cloudnative.tw virtualmachines/status":                        "the operator owns the whole status",
}

// TestAdmissionPoliciesCoverPermissions checks that an admission policy covers each write permission of the operator. A
// new permission without a policy needs a reason in withoutPolicy.
func TestAdmissionPoliciesCoverPermissions(t *testing.T) {
	var covered []admissionregistrationv1.NamedRuleWithOperations
	for _, policy := range objects[admissionregistrationv1.ValidatingAdmissionPolicy](t, "ValidatingAdmissionPolicy") {
		covered = append(covered, policy.Spec.MatchConstraints.ResourceRules...)
	}
	var open []string
	for _, rule := range operatorsRules(t) {
		for _, verb := range rule.Verbs {
			operation := map[string]admissionregistrationv1.OperationType{
				"create": admissionregistrationv1.Create, "update": admissionregistrationv1.Update, "patch": admissionregistrationv1.Update,
				"delete": admissionregistrationv1.Delete, "deletecollection": admissionregistrationv1.Delete,
			}[verb]
			for _, resource := range rule.Resources {
				watched := slices.ContainsFunc(covered, func(f admissionregistrationv1.NamedRuleWithOperations) bool {
					return slices.Contains(f.APIGroups, rule.APIGroups[0]) && slices.Contains(f.Resources, resource) && slices.Contains(f.Operations, operation)
				})
				if operation != "" && !watched {
					open = append(open, rule.APIGroups[0]+" "+resource)
				}
			}
		}
	}
	slices.Sort(open)
	want := make([]string, 0, len(withoutPolicy))
	for right := range withoutPolicy {
		want = append(want, right)
	}
	slices.Sort(want)
	if diff := cmp.Diff(want, slices.Compact(open)); diff != "" {
		t.Errorf("write permissions without an admission policy (-with a reason +granted):\n%s", diff)
	}
}

// operatorsRules returns the rules of the installation and of the optional controllers. Each rule has one API group.
func operatorsRules(t *testing.T) (rules []rbacv1.PolicyRule) {
	t.Helper()
	for _, role := range objects[rbacv1.Role](t, "Role") {
		rules = append(rules, role.Rules...)
	}
	both := kustomize(t, "resources: [useless-operator/config/default]\ncomponents: [useless-operator/config/components/podcount, useless-operator/config/components/ingress]\n")
	for _, role := range decode[rbacv1.ClusterRole](t, both, "ClusterRole") {
		if !strings.HasSuffix(role.Name, "editor-role") && !strings.HasSuffix(role.Name, "viewer-role") {
			rules = append(rules, role.Rules...)
		}
	}
	for _, rule := range rules {
		if len(rule.APIGroups) > 1 {
			t.Fatalf("more than one API group: %+v", rule)
		}
	}
	return slices.DeleteFunc(rules, func(rule rbacv1.PolicyRule) bool { return len(rule.APIGroups) == 0 })
}
