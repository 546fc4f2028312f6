// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/yaml"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/test/internal/docexamples"
	"container.training/useless/test/internal/executable"
)

type gitOpsTool struct {
	name, manager string
	flags         []string
	ignored       func(*testing.T) []ignoreRule // the documented rules for fields that the tool ignores
	afterRemoval  int32                         // replicas of a stopped Deployment after its manifest omits them
}

const fluxManager = "kustomize-controller"

// gitOpsTools lists GitOps tools, and the flags with which kubectl applies a manifest as the tool does. By default,
// Argo CD uses a client-side apply. With the option ServerSideApply=true, it uses a server-side apply. Flux always uses
// a server-side apply. Both tools overwrite the fields of other managers.
var gitOpsTools = []gitOpsTool{
	{"Argo CD", "argocd-controller", nil, ignoredByArgoCD, 1},
	{"Argo CD with ServerSideApply=true", "argocd-controller", []string{"--server-side", "--force-conflicts"}, ignoredByArgoCD, 0},
	{"Flux", fluxManager, []string{"--server-side", "--force-conflicts"}, ignoredByFlux, 0},
}

// TestScheduleGitOps applies manifests as GitOps tools do. It uses the examples in the section "Argo CD and Flux" of
// docs/schedule.md. Without -short, the tests for Flux use Flux's own library instead of kubectl.
func TestScheduleGitOps(t *testing.T) {
	var tests []namespacedTest
	for _, tool := range gitOpsTools {
		tests = append(tests,
			namespacedTest{tool.name + " restores the replicas of its manifest, and the event names this tool",
				tool.testReplicasInManifest},
			namespacedTest{tool.name + " does not change replicas that its manifest does not have",
				tool.testNoReplicasInManifest},
			namespacedTest{tool.name + " applies a manifest without replicas after a stop, and the next start restores them",
				tool.testReplicasRemovedFromManifest},
			namespacedTest{tool.name + " does not change replicas that it ignores",
				tool.testReplicasIgnored},
		)
		if !tool.usesLibrary() && tool.manager == fluxManager {
			continue // with kubectl, the test for Flux would equal the test for Argo CD
		}
		tests = append(tests, namespacedTest{tool.name + " does not change the ignored limits of an autoscaler",
			tool.testAutoscalerIgnored})
	}
	runShared(t, append(tests, namespacedTest{"Flux does not change an autoscaler with IfNotPresent", testIfNotPresent}))
}

// usesLibrary reports whether the library of kustomize-controller applies the manifests, and not kubectl.
func (tool gitOpsTool) usesLibrary() bool { return tool.manager == fluxManager && !testing.Short() }

func (tool gitOpsTool) apply(t *testing.T, o client.Object) {
	t.Helper()
	if tool.usesLibrary() {
		applyAsFlux(t, "", o)
		return
	}
	args := append([]string{"apply", "-f", "-", "--field-manager=" + tool.manager}, tool.flags...)
	mustKubectl(t, manifestOf(t, o), args...)
}

// applyIgnoring applies the manifest of an existing object. The tool ignores the same fields as in the examples of the
// documentation.
func (tool gitOpsTool) applyIgnoring(t *testing.T, o client.Object) {
	t.Helper()
	if tool.usesLibrary() {
		applyAsFlux(t, gitOpsExample(t, "Kustomization"), o)
		return
	}
	tool.apply(t, withLiveValues(t, o, tool.ignored(t)))
}

// applyAsFlux applies a manifest as kustomize-controller does for a Kustomization, with the same library. kustomization
// is YAML. If it is empty, no field is ignored.
func applyAsFlux(t *testing.T, kustomization string, o client.Object) {
	t.Helper()
	const program, modfile = "test/internal/flux/apply.go", "hack/tools/flux.mod"
	if err := executable.Inputs(filepath.Join(repository, program), filepath.Join(repository, modfile)); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "kustomization.yaml")
	if err := os.WriteFile(file, []byte(kustomization), 0o600); err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(t.Context(), "go", "run", "-modfile="+modfile, program, clusterOf(t).Kubeconfig, file)
	command.Dir, command.Stdin = repository, strings.NewReader(manifestOf(t, o))
	if out, err := executable.Output(command); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// gitOpsExample returns the YAML block of a kind in the section about GitOps tools of docs/schedule.md.
func gitOpsExample(t *testing.T, kind string) string {
	t.Helper()
	blocks := docexamples.Section(t, "schedule.md", "## Argo CD and Flux")
	tested := []string{"Deployment", "Application", "Kustomization", "HorizontalPodAutoscaler"}
	if len(blocks) != len(tested) {
		t.Fatalf("the section has %d YAML blocks, but there are tests for %v", len(blocks), tested)
	}
	block := blocks[slices.Index(tested, kind)]
	if !strings.Contains(block, "\nkind: "+kind+"\n") {
		t.Fatalf("this block is not of the kind %s:\n%s", kind, block)
	}
	return block
}

// readGitOpsExample reads the example of a kind into o. It replaces the times of the example with those of newScheduled.
func readGitOpsExample(t *testing.T, kind string, o client.Object, namespace string) {
	t.Helper()
	if err := yaml.UnmarshalStrict([]byte(gitOpsExample(t, kind)), o); err != nil {
		t.Fatal(err)
	}
	o.SetNamespace(namespace)
	maps.Copy(o.GetAnnotations(), newScheduled("", "").Annotations)
}

// An ignoreRule selects fields that a tool does not change.
type ignoreRule struct {
	Group, Kind           string
	JSONPointers          []string
	ManagedFieldsManagers []string
}

func ignoredByArgoCD(t *testing.T) []ignoreRule {
	t.Helper()
	var application struct {
		APIVersion, Kind string
		Spec             struct {
			IgnoreDifferences []ignoreRule
			SyncPolicy        struct{ SyncOptions []string }
		}
	}
	if err := yaml.UnmarshalStrict([]byte(gitOpsExample(t, "Application")), &application); err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(application.Spec.SyncPolicy.SyncOptions, "RespectIgnoreDifferences=true") {
		return nil // the rules would affect only the status in the user interface
	}
	return application.Spec.IgnoreDifferences
}

func ignoredByFlux(t *testing.T) (rules []ignoreRule) {
	t.Helper()
	var kustomization struct {
		APIVersion, Kind string
		Spec             struct {
			Ignore []struct {
				Target struct{ Group, Kind string }
				Paths  []string
			}
		}
	}
	if err := yaml.UnmarshalStrict([]byte(gitOpsExample(t, "Kustomization")), &kustomization); err != nil {
		t.Fatal(err)
	}
	for _, ignore := range kustomization.Spec.Ignore {
		rules = append(rules, ignoreRule{Group: ignore.Target.Group, Kind: ignore.Target.Kind, JSONPointers: ignore.Paths})
	}
	return rules
}

// withLiveValues returns a manifest whose ignored fields have their live values. It adds no field to the manifest. Argo
// CD applies these values if RespectIgnoreDifferences=true is set. Flux applies them if no other client has applied the
// fields.
func withLiveValues(t *testing.T, o client.Object, rules []ignoreRule) *unstructured.Unstructured {
	t.Helper()
	live, manifest := getUnstructured(t, o), &unstructured.Unstructured{}
	if err := manifest.UnmarshalJSON([]byte(manifestOf(t, o))); err != nil {
		t.Fatal(err)
	}
	for _, path := range ignoredFields(t, live, rules) {
		if _, inManifest, _ := unstructured.NestedFieldNoCopy(manifest.Object, path...); !inManifest {
			continue
		}
		value, _, err := unstructured.NestedFieldCopy(live.Object, path...)
		if err == nil {
			err = unstructured.SetNestedField(manifest.Object, value, path...)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return manifest
}

// ignoredFields returns the paths of all ignored fields. If a rule for field managers selects a field in a list, the
// path is that of the list.
func ignoredFields(t *testing.T, live *unstructured.Unstructured, rules []ignoreRule) (paths [][]string) {
	t.Helper()
	for _, rule := range rules {
		if kind := live.GroupVersionKind(); kind.Group != rule.Group || kind.Kind != rule.Kind {
			continue
		}
		for _, pointer := range rule.JSONPointers {
			paths = append(paths, strings.Split(strings.TrimPrefix(pointer, "/"), "/"))
		}
		for _, entry := range live.GetManagedFields() {
			set := &fieldpath.Set{}
			if !slices.Contains(rule.ManagedFieldsManagers, entry.Manager) {
				continue
			}
			if err := set.FromJSON(bytes.NewReader(entry.FieldsV1.GetRawBytes())); err != nil {
				t.Fatal(err)
			}
			set.Leaves().Iterate(func(path fieldpath.Path) { paths = append(paths, names(path)) })
		}
	}
	return paths
}

// names returns the names of the fields in a path. It ends before the first element of a list.
func names(path fieldpath.Path) (names []string) {
	for _, element := range path {
		if element.FieldName == nil {
			return names
		}
		names = append(names, *element.FieldName)
	}
	return names
}

// overwrite applies the manifest of a stopped object, which undoes the stop. The object is paused for more than a
// second, so the operator notices the change later. The operator must emit one event. This event must name the tool,
// and the time at which the tool changed the object.
func (tool gitOpsTool) overwrite(t *testing.T, o client.Object) {
	t.Helper()
	annotate(t, o, v1beta1.PausedAnnotation, "true")
	tool.apply(t, o)
	live := getUnstructured(t, o)
	entries := live.GetManagedFields()
	i := slices.IndexFunc(entries, func(entry metav1.ManagedFieldsEntry) bool { return entry.Manager == tool.manager })
	if i < 0 {
		t.Fatalf("no field manager %s: %v", tool.manager, entries)
	}
	at := entries[i].Time.UTC()
	eventually(t, defaultTimeout, func() (bool, string) { return time.Since(at) > time.Second, "the time has not passed" })
	annotate(t, o, v1beta1.PausedAnnotation, "")
	checkEvents(t, live, v1beta1.EventScheduleOverridden, fmt.Sprintf("The workload runs, although its schedule has "+
		"stopped it: %s changed it at %s. Nothing happens until the next start or stop", tool.manager, at.Format(time.RFC3339)))
}

func (tool gitOpsTool) testReplicasInManifest(t *testing.T, namespace string) {
	t.Helper()
	manifest := newDeployment(namespace, "d")
	tool.apply(t, manifest)
	d := waitForReplicas(t, manifest, 0)
	tool.overwrite(t, manifest)
	checkUnchanged(t, d, "whose replicas a tool has restored")
	if got := *getDeployment(t, namespace, "d").Spec.Replicas; got != 3 {
		t.Errorf("the deployment has %d replicas, want 3", got)
	}
}

func (tool gitOpsTool) testNoReplicasInManifest(t *testing.T, namespace string) {
	t.Helper()
	example := &appsv1.Deployment{}
	readGitOpsExample(t, "Deployment", example, namespace)
	manifest := newDeployment(namespace, "d")
	manifest.Spec.Replicas, manifest.Annotations = example.Spec.Replicas, example.Annotations
	tool.apply(t, manifest)
	d := waitForReplicas(t, manifest, 0)
	tool.apply(t, manifest)
	checkUnchanged(t, d, "that was applied after its stop")

	manifest.Annotations[v1beta1.StartScheduleAnnotation] = timeOfDayIn(-time.Minute)
	tool.apply(t, manifest)
	d = waitForReplicas(t, manifest, 3)
	tool.apply(t, manifest)
	checkUnchanged(t, d, "that was applied after its start")
	if got := *getDeployment(t, namespace, "d").Spec.Replicas; got != 3 {
		t.Errorf("the deployment has %d replicas, want 3", got)
	}
}

// testReplicasRemovedFromManifest removes the replicas from a manifest while a Deployment is stopped. Depending on the
// tool, the value in the cluster stays 0, or Kubernetes sets its default of 1.
func (tool gitOpsTool) testReplicasRemovedFromManifest(t *testing.T, namespace string) {
	t.Helper()
	manifest := newDeployment(namespace, "d")
	tool.apply(t, manifest)
	waitForReplicas(t, manifest, 0)
	manifest.Spec.Replicas = nil
	tool.apply(t, manifest)
	if got := *getDeployment(t, namespace, "d").Spec.Replicas; got != tool.afterRemoval {
		t.Errorf("the deployment has %d replicas, want %d", got, tool.afterRemoval)
	}
	manifest.Annotations[v1beta1.StartScheduleAnnotation] = timeOfDayIn(-time.Minute)
	tool.apply(t, manifest)
	waitForReplicas(t, manifest, 3)
}

func (tool gitOpsTool) testReplicasIgnored(t *testing.T, namespace string) {
	t.Helper()
	manifest := newDeployment(namespace, "d")
	tool.apply(t, manifest)
	d := waitForReplicas(t, manifest, 0)
	tool.applyIgnoring(t, manifest)
	checkUnchanged(t, d, "whose replicas the tool ignores")
	if got := *getDeployment(t, namespace, "d").Spec.Replicas; got != 0 {
		t.Errorf("the deployment has %d replicas, want 0", got)
	}
	manifest.Annotations[v1beta1.StartScheduleAnnotation] = timeOfDayIn(-time.Minute)
	tool.applyIgnoring(t, manifest)
	waitForReplicas(t, manifest, 3)
}

// testAutoscalerIgnored stops and starts an autoscaler whose limits the tool ignores. After the next stop, the tool no
// longer ignores the limits, and undoes this stop.
func (tool gitOpsTool) testAutoscalerIgnored(t *testing.T, namespace string) {
	t.Helper()
	manifest := newScheduledAutoscaler(namespace, "hpa", "1")
	tool.apply(t, manifest)
	waitForWorkload(t, manifest, "stopped", limits(1, 1))
	tool.applyIgnoring(t, manifest)
	checkUnchanged(t, manifest, "whose limits the tool ignores")
	waitForWorkload(t, manifest, "still stopped", limits(1, 1))

	manifest.Annotations[v1beta1.StartScheduleAnnotation] = timeOfDayIn(-time.Minute)
	tool.applyIgnoring(t, manifest)
	waitForWorkload(t, manifest, "started", limits(2, 9))
	manifest.Spec.MaxReplicas = 8
	manifest.Annotations[v1beta1.StartScheduleAnnotation] = timeOfDayIn(-2 * time.Hour)
	tool.applyIgnoring(t, manifest)
	hpa := waitForWorkload(t, manifest, "stopped again", limits(1, 1))
	if got := hpa.Annotations[v1beta1.OriginalReplicasAnnotation]; got != "9" {
		t.Errorf("before the stop, maxReplicas was %s, want 9, because the tool ignores the manifest's value", got)
	}
	tool.overwrite(t, manifest)
	waitForWorkload(t, manifest, "overwritten", limits(2, 8))
}

// testIfNotPresent applies the manifest of an autoscaler that Flux creates but never updates. A changed manifest must
// have no effect until the autoscaler is deleted.
func testIfNotPresent(t *testing.T, namespace string) {
	if testing.Short() {
		t.Skip("Flux's library takes some seconds to compile")
	}
	manifest := &autoscalingv2.HorizontalPodAutoscaler{}
	readGitOpsExample(t, "HorizontalPodAutoscaler", manifest, namespace)
	applyAsFlux(t, "", manifest)
	waitForWorkload(t, manifest, "stopped", limits(2, 2))
	applyAsFlux(t, "", manifest)
	checkUnchanged(t, manifest, "that was applied after its stop")
	waitForWorkload(t, manifest, "still stopped", limits(2, 2))

	annotate(t, manifest, v1beta1.StartScheduleAnnotation, timeOfDayIn(-time.Minute)) // as if the start were due
	started := waitForWorkload(t, manifest, "started", limits(4, 9))
	stop := started.Annotations[v1beta1.StopScheduleAnnotation]
	manifest.Annotations[v1beta1.StopScheduleAnnotation], manifest.Spec.MaxReplicas = timeOfDayIn(time.Hour), 8
	applyAsFlux(t, "", manifest)
	checkUnchanged(t, manifest, "that was applied after its start")
	live := waitForWorkload(t, manifest, "still started", limits(4, 9))
	if got := live.Annotations[v1beta1.StopScheduleAnnotation]; got != stop {
		t.Errorf("Flux has changed stop-schedule from %s to %s", stop, got)
	}

	if err := admin(t).Delete(t.Context(), live); err != nil {
		t.Fatal(err)
	}
	applyAsFlux(t, "", manifest)
	waitForWorkload(t, manifest, "created again", limits(4, 8))
}
