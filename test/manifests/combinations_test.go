// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"container.training/useless/test/internal/combinations"
	"container.training/useless/test/internal/docexamples"
)

// core lists the permissions of an operator with self-managed certificates and without controllers.
var core = []string{
	"create events",
	"create leases.coordination.k8s.io",
	"create subjectaccessreviews.authorization.k8s.io",
	"create tokenreviews.authentication.k8s.io",
	"get customresourcedefinitions.apiextensions.k8s.io " + ownCRDs,
	"get update leases.coordination.k8s.io leader.useless.container.training",
	"list patch switches.useless.container.training",
	"list patch watch machines.useless.container.training",
	"list update watch customresourcedefinitions.apiextensions.k8s.io machines.useless.container.training",
	"list update watch secrets useless-webhook-server-cert",
	"list update watch validatingwebhookconfigurations.admissionregistration.k8s.io useless-validating-webhook-configuration",
	"update customresourcedefinitions/status.apiextensions.k8s.io " + ownCRDs,
}

const (
	ownCRDs     = "machines.useless.container.training switches.useless.container.training virtualmachines.cloudnative.tw"
	writeEvents = "create patch events.events.k8s.io"
	autoscalers = "list watch horizontalpodautoscalers.autoscaling"
)

// permissions maps each component to the permissions that it adds.
var permissions = map[string][]string{
	"machine": {
		writeEvents,
		"create delete list patch watch switches.useless.container.training",
		"get list patch watch machines.useless.container.training",
		"patch machines/status.useless.container.training",
		"patch switches/status.useless.container.training",
		"update machines/finalizers.useless.container.training",
	},
	"virtualmachine": {
		writeEvents,
		"create delete get list watch pods",
		"get list patch watch virtualmachines.cloudnative.tw",
		"list pods.metrics.k8s.io",
		"patch pods/resize",
		"patch virtualmachines/status.cloudnative.tw",
		"update virtualmachines/finalizers.cloudnative.tw",
	},
	"schedule": {
		writeEvents,
		"get update leases.coordination.k8s.io schedule-dry-run.useless.container.training",
		"list watch namespaces",
	},
	"schedule/deployments":              {"list patch watch deployments.apps", autoscalers},
	"schedule/statefulsets":             {"list patch watch statefulsets.apps", autoscalers},
	"schedule/cronjobs":                 {"list patch watch cronjobs.batch"},
	"schedule/virtualmachines":          {"list patch watch virtualmachines.cloudnative.tw"},
	"schedule/horizontalpodautoscalers": {"list patch watch horizontalpodautoscalers.autoscaling"},
	"schedule/scaledobjects":            {"list patch watch scaledobjects.keda.sh"},
	"podcount":                          {"list patch watch replicasets.apps", "list watch pods"},
	"ingress":                           {writeEvents, "get list patch watch ingresses.networking.k8s.io"},
}

// TestCombinations renders each combination of components. The flags must select exactly its controllers and kinds, and
// the bound roles must grant exactly the permissions above.
func TestCombinations(t *testing.T) {
	without := arguments(t, kustomize(t, "resources: [useless-operator/config/core/"+combinations.SelfManaged+"]\n"))
	for _, c := range combinations.All {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			rendered := kustomize(t, c.Kustomization(combinations.SelfManaged))
			if diff := gocmp.Diff(slices.Concat(without, c.Args()), arguments(t, rendered)); diff != "" {
				t.Errorf("arguments (-want +got):\n%s", diff)
			}
			want := slices.Clone(core)
			for _, component := range c.Components() {
				want = append(want, permissions[component]...)
			}
			slices.Sort(want)
			var got []string
			for _, rule := range operatorsRules(t, rendered) {
				got = append(got, describe(rule)...)
			}
			slices.Sort(got)
			if diff := gocmp.Diff(want, got); diff != "" {
				t.Errorf("permissions (-want +granted):\n%s", diff)
			}
		})
	}
}

// describe returns a line for each resource of a rule.
func describe(rule rbacv1.PolicyRule) (lines []string) {
	for _, resource := range rule.Resources {
		line := fmt.Sprintf("%s %s.%s", strings.Join(slices.Sorted(slices.Values(rule.Verbs)), " "), resource, rule.APIGroups[0])
		lines = append(lines, strings.TrimSpace(strings.TrimSuffix(line, ".")+" "+strings.Join(rule.ResourceNames, " ")))
	}
	return lines
}

// TestEveryComponentIsTested fails if this file has no permissions for a controller or a kind of workload.
func TestEveryComponentIsTested(t *testing.T) {
	want := slices.Sorted(slices.Values(combinations.Everything.Components()))
	if diff := gocmp.Diff(want, slices.Sorted(maps.Keys(permissions))); diff != "" {
		t.Errorf("components (-controllers and kinds +in the table permissions):\n%s", diff)
	}
}

// TestDefaultCombination checks that config/default has exactly the components of the combination Default.
func TestDefaultCombination(t *testing.T) {
	compareRendered(t, combinations.Default.Kustomization(combinations.SelfManaged), "resources: [useless-operator/config/default]\n")
}

// TestSchedulesOfDeploymentsOnly renders the example in the documentation.
func TestSchedulesOfDeploymentsOnly(t *testing.T) {
	example := docexamples.Block(t, "installing.md", "resources:")
	compareRendered(t, combinations.Deployments.Kustomization(combinations.SelfManaged), example[:strings.Index(example, "images:")])
	for _, rule := range operatorsRules(t, kustomize(t, example)) {
		for _, resource := range rule.Resources {
			if kind, _, _ := strings.Cut(resource, "/"); slices.Contains([]string{"pods", "virtualmachines", "statefulsets"}, kind) {
				t.Errorf("granted: %+v", rule)
			}
		}
	}
}

// compareRendered checks that two kustomizations have the same result. The order of the objects may differ.
func compareRendered(t *testing.T, want, got string) {
	t.Helper()
	sorted := func(kustomization string) any {
		objects := all(t, kustomize(t, kustomization))
		slices.SortFunc(objects, func(a, b *unstructured.Unstructured) int {
			return cmp.Or(cmp.Compare(a.GetKind(), b.GetKind()), cmp.Compare(a.GetName(), b.GetName()))
		})
		return objects
	}
	if diff := gocmp.Diff(sorted(want), sorted(got)); diff != "" {
		t.Errorf("rendered (-want +got):\n%s", diff)
	}
}
