// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1beta1"
)

// TestRefusal checks that a rejected write to one switch does not block the writes to other switches.
func TestRefusal(t *testing.T) {
	runShared(t, []namespacedTest{
		{"a switch that cannot be turned down does not block the others", testFlipRefused},
		{"a switch that cannot be turned up does not block the others", testRaiseRefused},
		{"a switch that cannot be released does not block the deletion of others", testReleaseRefused},
	})
}

func testFlipRefused(t *testing.T, namespace string) {
	flippingMachine(t, namespace, "m", 3, 4, 1)
	switches := recordSwitches(t, namespace)
	turnUpInOrder(t, switches, namespace, "m-0")
	allow := forbid(t, namespace, "m-0", v1beta1.PositionDown)
	turnUp(t, namespace, "m-1")
	turnUp(t, namespace, "m-2")
	switches.untilObject(t, "m-1", "is turned down", flipped)
	switches.untilObject(t, "m-2", "is turned down", flipped)
	if sw := getSwitch(t, namespace, "m-0"); sw.Spec.Position != v1beta1.PositionUp {
		t.Fatal("m-0 was turned down although the policy forbids it")
	}
	allow()
	switches.untilObject(t, "m-0", "is turned down", flipped)
	waitForPositions(t, namespace, "m", "ddd", defaultTimeout)
}

func testRaiseRefused(t *testing.T, namespace string) {
	m := flippingMachine(t, namespace, "m", 3, 1, 0)
	machines := recordMachines(t, namespace)
	forbid(t, namespace, "m-0", v1beta1.PositionUp)
	mergePatch(t, newMachine(namespace, "m"), `{"spec":{"position":"up"}}`)
	machines.untilObject(t, "m", "has turned the other switches up", func(m *v1beta1.Machine) bool {
		return m.Status.Positions == "duu"
	})
	machines.untilLast(t, "m is down again", func(m *v1beta1.Machine) bool {
		return m.Spec.Position == v1beta1.PositionDown && m.Status.Positions == "ddd"
	})
	eventually(t, defaultTimeout, func() (bool, string) {
		for _, event := range eventsOn(t, m, v1beta1.EventRaised) {
			if event.Type == corev1.EventTypeWarning {
				return true, ""
			}
		}
		return false, "there is no Warning event about the switch that stayed down"
	})
}

func testReleaseRefused(t *testing.T, namespace string) {
	m := slowMachine(t, namespace, "m", 3)
	waitForPositions(t, namespace, "m", "ddd", defaultTimeout)
	stays, goes := "m-1", "m-2"
	// The operator deletes the newest Switch first. It creates m-1 and m-2 in parallel, so m-1 can be newer than
	// m-2.
	if getSwitch(t, namespace, stays).CreationTimestamp.After(getSwitch(t, namespace, goes).CreationTimestamp.Time) {
		stays, goes = goes, stays
	}
	switches := recordSwitches(t, namespace)
	allow := forbidUpdates(t, newSwitch(namespace, "m-0"), v1beta1.GroupVersion.Group, "switches",
		"has(object.metadata.ownerReferences)", `{"metadata":{"ownerReferences":null}}`)
	setLabel(t, namespace, "m-0", "other")
	waitUntilProcessed(t, namespace) // otherwise, the operator may still count m-0
	scale(t, namespace, "m", 1)
	switches.untilDeleted(t, goes)
	waitForNames(t, m, "m-0", stays)
	allow()
	waitForNames(t, m, stays)
}

// forbid makes the API server reject updates that change a switch to the given position. Updates are allowed again when
// allow is called or the test ends.
func forbid(t *testing.T, namespace, name string, position v1beta1.Position) (allow func()) {
	t.Helper()
	return forbidUpdates(t, newSwitch(namespace, name), v1beta1.GroupVersion.Group, "switches",
		fmt.Sprintf("object.spec.position != %q || oldObject.spec.position == %[1]q", position),
		fmt.Sprintf(`{"spec":{"position":%q}}`, position))
}

// enforce creates an admission policy and its binding. It deletes them when lift is called or the test ends.
func enforce(t *testing.T, policy, binding client.Object) (lift func()) {
	t.Helper()
	lift = func() {
		for _, object := range []client.Object{binding, policy} {
			if err := admin(t).Delete(context.Background(), object); client.IgnoreNotFound(err) != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(lift)
	for _, object := range []client.Object{policy, binding} {
		if err := admin(t).Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	return lift
}

// forbidUpdates makes the API server reject updates of an object that violate a CEL expression. Updates are allowed
// again when allow is called or the test ends. patch must violate the expression. forbidUpdates returns when the API
// server rejects a dry run of patch.
func forbidUpdates(t *testing.T, object client.Object, group, resource, expression, patch string) (allow func()) {
	t.Helper()
	namespace := object.GetNamespace()
	policy := &admissionregistrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: namespace},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionregistrationv1.MatchResources{
				NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: namespace}},
				ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{
					RuleWithOperations: admissionregistrationv1.RuleWithOperations{
						Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Update},
						Rule:       admissionregistrationv1.Rule{APIGroups: []string{group}, APIVersions: []string{"*"}, Resources: []string{resource}},
					},
				}},
			},
			Validations: []admissionregistrationv1.Validation{{
				Expression: fmt.Sprintf("object.metadata.name != %q || %s", object.GetName(), expression),
			}},
		},
	}
	binding := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: namespace},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName:        namespace,
			ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
		},
	}
	allow = enforce(t, policy, binding)
	try := client.RawPatch("application/merge-patch+json", []byte(patch))
	eventually(t, defaultTimeout, func() (bool, string) {
		err := admin(t).Patch(t.Context(), object.DeepCopyObject().(client.Object), try, client.DryRunAll)
		return err != nil, "the API server does not enforce the policy yet"
	})
	return allow
}
