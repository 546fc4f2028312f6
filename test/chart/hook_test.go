// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	"container.training/useless/test/internal/executable"
)

// TestHooks checks the objects of helm test. They must have few permissions, and helm must delete them.
func TestHooks(t *testing.T) {
	t.Parallel()
	objects := everything(t, "controllers.podcount.enabled=true", "nodeSelector.disk=ssd", "image.tag=v9")
	var hooks []string
	for name, object := range objects {
		if !isHook(object) {
			continue
		}
		hooks = append(hooks, name)
		for key, want := range map[string]string{
			"helm.sh/hook": "test", "helm.sh/hook-delete-policy": "before-hook-creation,hook-succeeded",
		} {
			if got := object.GetAnnotations()[key]; got != want {
				t.Errorf("%s: annotation %s is %q, want %q", name, key, got, want)
			}
		}
		if weight := object.GetAnnotations()["helm.sh/hook-weight"]; (weight == "-1") != (object.GetKind() != "Pod") {
			t.Errorf("%s has the weight %q, but helm must create the Pod after the permissions", name, weight)
		}
	}
	want := []string{"Pod useless-test", "Role useless-test-role", "RoleBinding useless-test-rolebinding", "ServiceAccount useless-test"}
	if diff := gocmp.Diff(want, slices.Sorted(slices.Values(hooks))); diff != "" {
		t.Fatalf("objects of helm test (-want +got):\n%s", diff)
	}
	role := typed[rbacv1.Role](t, objects["Role useless-test-role"])
	onlyCreate := []rbacv1.PolicyRule{{APIGroups: []string{"useless.container.training"}, Resources: []string{"machines"}, Verbs: []string{"create"}}}
	if diff := gocmp.Diff(onlyCreate, role.Rules); diff != "" {
		t.Errorf("permissions (-want +got):\n%s", diff)
	}
	checkHookPod(t, objects)
}

// checkHookPod checks the Pod of helm test. No Service, NetworkPolicy or PodDisruptionBudget may select it.
func checkHookPod(t *testing.T, objects map[string]*unstructured.Unstructured) {
	t.Helper()
	pod := typed[corev1.Pod](t, objects["Pod useless-test"])
	for name, object := range objects {
		selector, found, _ := unstructured.NestedStringMap(object.Object, "spec", "selector")
		if !found {
			selector, found, _ = unstructured.NestedStringMap(object.Object, "spec", "selector", "matchLabels")
		}
		if !found {
			selector, found, _ = unstructured.NestedStringMap(object.Object, "spec", "podSelector", "matchLabels")
		}
		if found && labels.SelectorFromSet(selector).Matches(labels.Set(pod.Labels)) {
			t.Errorf("%s selects the Pod of helm test", name)
		}
	}
	container, operator := pod.Spec.Containers[0], typed[corev1.PodSpec](t, &unstructured.Unstructured{Object: podSpec(t, objects)})
	for _, field := range []struct {
		name                string
		ofTheTest, operator any
	}{
		{"image", container.Image, operator.Containers[0].Image},
		{"resources", container.Resources, operator.Containers[0].Resources},
		{"securityContext of the container", container.SecurityContext, operator.Containers[0].SecurityContext},
		{"securityContext of the Pod", pod.Spec.SecurityContext, operator.SecurityContext},
		{"nodeSelector", pod.Spec.NodeSelector, operator.NodeSelector},
	} {
		if diff := gocmp.Diff(field.operator, field.ofTheTest); diff != "" {
			t.Errorf("%s (-operator +test):\n%s", field.name, diff)
		}
	}
	manager, err := executable.BuildManager()
	if err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(t.Context(), manager, append(container.Args, "--version")...)
	command.Env = []string{"USELESS_NAMESPACE=" + namespace}
	if _, err := executable.Output(command); err != nil {
		t.Errorf("the operator rejects the flags %s: %v", strings.Join(container.Args, " "), err)
	}
}

// typed converts an object or a part of an object.
func typed[T any](t *testing.T, object *unstructured.Unstructured) (converted T) {
	t.Helper()
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &converted); err != nil {
		t.Fatal(err)
	}
	return converted
}
