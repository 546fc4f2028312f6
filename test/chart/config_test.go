// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package chart checks the Helm chart without installing it. TestHelm in test/integration installs it.
package chart

import (
	"cmp"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"container.training/useless/internal/controller"
	"container.training/useless/test/internal/combinations"
	"container.training/useless/test/internal/executable"
	"container.training/useless/test/internal/installer"
)

const namespace = "useless-system"

// helmTemplate renders the chart with --set flags.
func helmTemplate(t *testing.T, namespace string, set ...string) (manifests string, err error) {
	t.Helper()
	args := []string{"template", "any-name", installer.Chart, "--namespace=" + namespace, "--kube-version=1.30.0"}
	for _, value := range set {
		args = append(args, "--set="+value)
	}
	return executable.Output(installer.Helm(t, "", args...))
}

// rendered returns the objects of a release with --set flags, by kind and name. It does not return the objects of helm
// test.
func rendered(t *testing.T, set ...string) map[string]*unstructured.Unstructured {
	t.Helper()
	objects := everything(t, set...)
	maps.DeleteFunc(objects, func(_ string, object *unstructured.Unstructured) bool { return isHook(object) })
	return objects
}

// everything is like rendered, but also returns the objects of helm test.
func everything(t *testing.T, set ...string) map[string]*unstructured.Unstructured {
	t.Helper()
	manifests, err := helmTemplate(t, namespace, set...)
	if err != nil {
		t.Fatal(err)
	}
	return byName(installer.Objects(t, []byte(manifests)))
}

func isHook(object *unstructured.Unstructured) bool {
	return object.GetAnnotations()["helm.sh/hook"] != ""
}

func byName(objects []*unstructured.Unstructured) map[string]*unstructured.Unstructured {
	named := map[string]*unstructured.Unstructured{}
	for _, object := range objects {
		named[object.GetKind()+" "+object.GetName()] = object
	}
	return named
}

// valuesOf returns the --set flags that select a combination of controllers and kinds.
func valuesOf(c combinations.Combination) (set []string) {
	for _, name := range controller.Names() {
		enabled := "false"
		if slices.Contains(c.Controllers, name) {
			enabled = "true"
		}
		set = append(set, "controllers."+name+".enabled="+enabled)
	}
	if len(c.Kinds) > 0 {
		set = append(set, "schedule.kinds={"+strings.Join(c.Kinds, ",")+"}")
	}
	return set
}

// TestChartEqualsConfig compares the objects of the chart with the objects of kustomizations.
func TestChartEqualsConfig(t *testing.T) {
	type comparison struct {
		name, kustomization string
		set                 []string
	}
	comparisons := []comparison{
		{"config/default", "resources: [useless-operator/config/default]\n", nil},
		{"config/certmanager", "resources: [useless-operator/config/certmanager]\n", []string{"certificates.mode=certManager"}},
		{
			"config/prometheus", "resources: [useless-operator/config/default, useless-operator/config/prometheus]\n",
			[]string{"metrics.serviceMonitor.enabled=true", "metrics.rules.enabled=true"},
		},
		{
			"config/grafana", "resources: [useless-operator/config/default, useless-operator/config/grafana]\n",
			[]string{"dashboards.enabled=true"},
		},
	}
	for _, c := range combinations.All {
		comparisons = append(comparisons, comparison{c.Name, c.Kustomization(combinations.SelfManaged), valuesOf(c)})
	}
	for _, c := range comparisons {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			want := byName(installer.Objects(t, installer.Kustomize(t, c.kustomization)))
			delete(want, "Namespace useless-system") // helm --create-namespace creates the Namespace
			got := rendered(t, c.set...)
			for _, object := range got {
				removeHelmMetadata(t, object)
			}
			sortArgs(t, want)
			sortArgs(t, got)
			if diff := gocmp.Diff(want, got); diff != "" {
				t.Errorf("objects (-config +chart):\n%s", diff)
			}
		})
	}
}

// removeHelmMetadata removes the labels and annotations that are only in the chart. The labels must exist.
func removeHelmMetadata(t *testing.T, object *unstructured.Unstructured) {
	t.Helper()
	for key, want := range map[string]string{"app.kubernetes.io/managed-by": "Helm", "helm.sh/chart": "useless-operator-"} {
		if got := object.GetLabels()[key]; !strings.HasPrefix(got, want) {
			t.Errorf("%s %s: label %s is %q, want %s", object.GetKind(), object.GetName(), key, got, want)
		}
		unstructured.RemoveNestedField(object.Object, "metadata", "labels", key)
	}
	unstructured.RemoveNestedField(object.Object, "metadata", "annotations", "helm.sh/resource-policy")
}

// sortArgs sorts the flags of the operator. The order of flags with different names has no meaning.
func sortArgs(t *testing.T, objects map[string]*unstructured.Unstructured) {
	t.Helper()
	args := container(t, objects)["args"].([]any)
	slices.SortFunc(args, func(a, b any) int { return cmp.Compare(a.(string), b.(string)) })
}

// container returns the operator's container.
func container(t *testing.T, objects map[string]*unstructured.Unstructured) map[string]any {
	t.Helper()
	return podSpec(t, objects)["containers"].([]any)[0].(map[string]any)
}

// podSpec returns the spec of the operator's Pods.
func podSpec(t *testing.T, objects map[string]*unstructured.Unstructured) map[string]any {
	t.Helper()
	deployment := objects["Deployment useless-controller-manager"]
	if deployment == nil {
		t.Fatal("there is no Deployment")
	}
	spec, _, err := unstructured.NestedFieldNoCopy(deployment.Object, "spec", "template", "spec")
	if err != nil {
		t.Fatal(err)
	}
	return spec.(map[string]any)
}

// TestNamespace renders the chart for a namespace whose name is a number. Compared with the default namespace, only the
// namespace may differ, and it must be a string.
func TestNamespace(t *testing.T) {
	t.Parallel()
	const number = "4711"
	const monitor = "metrics.serviceMonitor.enabled=true"
	want, err := helmTemplate(t, namespace, monitor)
	if err != nil {
		t.Fatal(err)
	}
	got, err := helmTemplate(t, number, monitor)
	if err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff(strings.ReplaceAll(want, namespace, number), got); diff != "" {
		t.Errorf("manifests (-in %s +in another namespace):\n%s", namespace, diff)
	}
	for _, object := range installer.Objects(t, []byte(got)) {
		raw, err := object.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(raw), `":`+number) || strings.Contains(string(raw), "["+number) {
			t.Errorf("%s %s: the namespace is not a string", object.GetKind(), object.GetName())
		}
	}
}

// TestVersion compares the versions in Chart.yaml. TestChartEqualsConfig compares appVersion with config/manager.
func TestVersion(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile(installer.Chart + "/Chart.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var chart struct{ Version, AppVersion string }
	if err := yaml.Unmarshal(raw, &chart); err != nil {
		t.Fatal(err)
	}
	if "v"+chart.Version != chart.AppVersion {
		t.Errorf("version is %s, and appVersion is %s", chart.Version, chart.AppVersion)
	}
}

// TestValuesAreDocumented fails if a row in the README has no description. The description is a comment in values.yaml.
func TestValuesAreDocumented(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile(installer.Chart + "/README.md")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(readme)) {
		if strings.HasSuffix(line, " |  |\n") {
			t.Errorf("a value has no description: %s", line)
		}
	}
}
