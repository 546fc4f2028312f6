// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/useless/v1alpha1"
	"container.training/useless/api/useless/v1beta1"
)

// The served versions of the API.
const (
	alpha = "v1alpha1"
	beta  = "v1beta1"
)

// fieldPaths maps paths of fields in v1beta1 to their paths in v1alpha1. All other fields have the same path in both
// versions.
var fieldPaths = []struct{ beta, alpha string }{
	{"spec.switches.count", "spec.switches"},
	{"spec.switches.selector", "spec.selector"},
	{"spec.switches.template", "spec.template"},
	{"spec.position", "spec.switchPosition"},
	{"spec.flip.delaySeconds", "spec.flipDelaySeconds"},
	{"spec.flip.intervalSeconds", "spec.flipIntervalSeconds"},
}

// in replaces the v1beta1 field paths in a text with the paths of the given version.
func in(version, text string) string {
	if version == beta {
		return text
	}
	var fromTo []string
	for _, path := range fieldPaths {
		fromTo = append(fromTo, path.beta, path.alpha)
	}
	return strings.NewReplacer(fromTo...).Replace(text)
}

// resource returns the name of a resource in a version for kubectl, such as
// machines.v1beta1.useless.container.training.
func resource(plural, version string) string {
	return plural + "." + version + "." + v1beta1.GroupVersion.Group
}

// object parses an object from JSON.
func object(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	if err := u.UnmarshalJSON([]byte(text)); err != nil {
		t.Fatal(err)
	}
	return u
}

// read returns an object in a version, as kubectl get prints it.
func read(t *testing.T, version, plural, namespace, name string) *unstructured.Unstructured {
	t.Helper()
	return object(t, mustKubectl(t, "", "get", resource(plural, version), name, "-n", namespace, "-o", "json", "--show-managed-fields"))
}

// at returns the value at a dotted path, or nil if there is no value. If the path is invalid, the returned value is an
// error.
func at(u *unstructured.Unstructured, path string) any {
	value, _, err := unstructured.NestedFieldNoCopy(u.Object, strings.Split(path, ".")...)
	if err != nil {
		return err
	}
	return value
}

// machineFields returns the fields of a Machine, by v1beta1 path. The Machine may be of either version.
func machineFields(u *unstructured.Unstructured) map[string]any {
	fields := map[string]any{
		"status":               at(u, "status"),
		"metadata.labels":      at(u, "metadata.labels"),
		"metadata.annotations": at(u, "metadata.annotations"),
		"metadata.finalizers":  at(u, "metadata.finalizers"),
		"metadata.uid":         at(u, "metadata.uid"),
	}
	for _, path := range fieldPaths {
		fields[path.beta] = at(u, in(u.GroupVersionKind().Version, path.beta))
	}
	return fields
}

// everyField maps each version to a manifest of a Machine. Every field has a value other than its default. The Machine
// is paused, so the operator does not change it.
var everyField = map[string]string{
	beta: `
apiVersion: useless.container.training/v1beta1
kind: Machine
metadata:
  name: full
  labels: {team: useless}
  annotations: {useless.container.training/paused: "true", note: keep}
  finalizers: [example.com/kept]
spec:
  switches:
    count: 3
    selector:
      matchLabels: {machine: full}
      matchExpressions:
      - {key: tier, operator: In, values: [front, back]}
      - {key: old, operator: DoesNotExist}
    template:
      metadata:
        labels: {tier: front}
        annotations: {colour: red}
  position: up
  flip: {delaySeconds: 0, intervalSeconds: 86400}
`,
	alpha: `
apiVersion: useless.container.training/v1alpha1
kind: Machine
metadata:
  name: full
  labels: {team: useless}
  annotations: {useless.container.training/paused: "true", note: keep}
  finalizers: [example.com/kept]
spec:
  switches: 3
  selector:
    matchLabels: {machine: full}
    matchExpressions:
    - {key: tier, operator: In, values: [front, back]}
    - {key: old, operator: DoesNotExist}
  template:
    metadata:
      labels: {tier: front}
      annotations: {colour: red}
  switchPosition: up
  flipDelaySeconds: 0
  flipIntervalSeconds: 86400
`,
}

// everyValue returns the values in everyField, by v1beta1 path.
func everyValue() map[string]any {
	return map[string]any{
		"spec.switches.count": int64(3),
		"spec.switches.selector": map[string]any{
			"matchLabels": map[string]any{"machine": "full"},
			"matchExpressions": []any{
				map[string]any{"key": "tier", "operator": "In", "values": []any{"front", "back"}},
				map[string]any{"key": "old", "operator": "DoesNotExist"},
			},
		},
		"spec.switches.template": map[string]any{"metadata": map[string]any{
			"labels": map[string]any{"tier": "front"}, "annotations": map[string]any{"colour": "red"},
		}},
		"spec.position":             "up",
		"spec.flip.delaySeconds":    int64(0),
		"spec.flip.intervalSeconds": int64(86400),
		"metadata.labels":           map[string]any{"team": "useless"},
		"metadata.annotations":      map[string]any{v1beta1.PausedAnnotation: "true", "note": "keep"},
		"metadata.finalizers":       []any{"example.com/kept"},
	}
}

// TestVersionsKeepEveryField creates a Machine with every field in one version and edits it in the other version.
func TestVersionsKeepEveryField(t *testing.T) {
	useSharedCluster(t)

	for _, test := range []struct{ created, edited, patch string }{
		{beta, alpha, `{"spec": {"switches": 7, "flipDelaySeconds": null, "template": {"metadata": {"annotations": {"size": "big"}}}}}`},
		{alpha, beta, `{"spec": {"switches": {"count": 7, "template": {"metadata": {"annotations": {"size": "big"}}}}, "flip": {"delaySeconds": null}}}`},
	} {
		t.Run("a Machine created as "+test.created+" is edited as "+test.edited, func(t *testing.T) {
			t.Parallel()
			namespace := newNamespace(t)
			mustKubectl(t, everyField[test.created], "create", "-n", namespace, "-f", "-")
			t.Cleanup(func() { dropFinalizers(t, namespace, "full") })
			mustKubectl(t, "", "patch", resource("machines", test.created), "full", "-n", namespace,
				"--subresource=status", "--type=merge", "-p", everyStatus)

			want := everyValue()
			want["status"] = object(t, `{"apiVersion": "v1", "kind": "X", `+strings.TrimPrefix(everyStatus, "{")).Object["status"]
			want["metadata.uid"] = at(read(t, beta, "machines", namespace, "full"), "metadata.uid")
			compareBoth(t, namespace, "full", want)

			mustKubectl(t, "", "patch", resource("machines", test.edited), "full", "-n", namespace, "--type=merge", "-p", test.patch)
			want["spec.switches.count"] = int64(7)
			want["spec.flip.delaySeconds"] = int64(5) // its default
			want["spec.switches.template"] = map[string]any{"metadata": map[string]any{
				"labels": map[string]any{"tier": "front"}, "annotations": map[string]any{"colour": "red", "size": "big"},
			}}
			compareBoth(t, namespace, "full", want)
		})
	}
}

// compareBoth reads a Machine in both versions, and compares its fields with want. The keys of want are v1beta1 paths.
func compareBoth(t *testing.T, namespace, name string, want map[string]any) {
	t.Helper()
	for _, version := range []string{alpha, beta} {
		u := read(t, version, "machines", namespace, name)
		got := machineFields(u)
		for path := range got {
			if diff := cmp.Diff(want[path], got[path]); diff != "" {
				t.Errorf("%s in %s (-want +got):\n%s", in(version, path), version, diff)
			}
		}
		if spec := at(u, "spec").(map[string]any); version == alpha && len(spec) != len(fieldPaths) {
			t.Errorf("the v1alpha1 spec has %d fields, want %d: %v", len(spec), len(fieldPaths), spec)
		}
	}
}

// dropFinalizers removes the finalizers of a Machine at the end of a test, so that it can be deleted.
func dropFinalizers(t *testing.T, namespace, name string) {
	t.Helper()
	command := clusterOf(t).Kubectl(context.Background(), "patch", "machine", name, "-n", namespace, "--type=merge", "-p", `{"metadata": {"finalizers": null}}`)
	if out, err := command.CombinedOutput(); err != nil {
		t.Errorf("cannot drop the finalizers of %s: %v\n%s", name, err, out)
	}
}

// everyStatus is a patch that sets every field of a Machine's status.
const everyStatus = `{"status": {
	"observedGeneration": 1, "switches": {"total": 3, "up": 1, "down": 2}, "positions": "udd", "position": "up",
	"selector": "machine=full", "seenAt": "2026-11-20T09:00:00.123456Z", "lastFlipTime": "2026-11-20T08:00:00.000001Z",
	"conditions": [{"type": "Ready", "status": "False", "reason": "SwitchesUp", "message": "One is up", "observedGeneration": 1,
		"lastTransitionTime": "2026-11-20T09:00:00Z"}]}}`

// TestServerSideApplyInTwoVersions lets two field managers apply the same Machine, each in a different version.
func TestServerSideApplyInTwoVersions(t *testing.T) {
	useSharedCluster(t)
	namespace := newNamespace(t)
	apply := func(manager, manifest string, flags ...string) (stderr string, err error) {
		args := append([]string{"apply", "--server-side", "--field-manager=" + manager, "-n", namespace, "-f", "-"}, flags...)
		_, stderr, err = kubectl(t, manifest, args...)
		return stderr, err
	}
	must := func(manager, manifest string, flags ...string) {
		t.Helper()
		if stderr, err := apply(manager, manifest, flags...); err != nil {
			t.Fatalf("%s: %v\n%s", manager, err, stderr)
		}
	}
	check := func(want map[string]any, owned map[string][]string) {
		t.Helper()
		for _, version := range []string{alpha, beta} {
			u := read(t, version, "machines", namespace, "applied")
			got := machineFields(u)
			for path, value := range want {
				if diff := cmp.Diff(value, got[path]); diff != "" {
					t.Errorf("%s in %s (-want +got):\n%s", in(version, path), version, diff)
				}
			}
			if diff := cmp.Diff(owned, ownedFields(t, u, "ann", "bob")); diff != "" {
				t.Errorf("owned fields by manager, read in %s (-want +got):\n%s", version, diff)
			}
		}
	}

	must("ann", `
apiVersion: useless.container.training/v1beta1
kind: Machine
metadata: {name: applied, annotations: {useless.container.training/paused: "true"}}
spec: {switches: {count: 2}, flip: {delaySeconds: 10}}
`)
	must("bob", `
apiVersion: useless.container.training/v1alpha1
kind: Machine
metadata: {name: applied}
spec: {flipIntervalSeconds: 20, template: {metadata: {labels: {colour: red}}}}
`)
	check(map[string]any{
		"spec.switches.count": int64(2), "spec.flip.delaySeconds": int64(10), "spec.flip.intervalSeconds": int64(20),
		"spec.switches.template": map[string]any{"metadata": map[string]any{"labels": map[string]any{"colour": "red"}}},
	}, map[string][]string{
		"ann v1beta1":  {"metadata.annotations." + v1beta1.PausedAnnotation, "spec.flip.delaySeconds", "spec.switches.count"},
		"bob v1alpha1": {"spec.flipIntervalSeconds", "spec.template.metadata.labels.colour"},
	})

	// Each manager changes one of its fields and removes another.
	must("ann", `
apiVersion: useless.container.training/v1beta1
kind: Machine
metadata: {name: applied, annotations: {useless.container.training/paused: "true"}}
spec: {switches: {count: 3}}
`)
	must("bob", `
apiVersion: useless.container.training/v1alpha1
kind: Machine
metadata: {name: applied}
spec: {flipIntervalSeconds: 30}
`)
	agreed := map[string]any{
		"spec.switches.count": int64(3), "spec.flip.delaySeconds": int64(5), "spec.flip.intervalSeconds": int64(30),
		"spec.position": "down",
	}
	owners := map[string][]string{
		"ann v1beta1":  {"metadata.annotations." + v1beta1.PausedAnnotation, "spec.switches.count"},
		"bob v1alpha1": {"spec.flipIntervalSeconds"},
	}
	check(agreed, owners)

	// Each manager applies a field that the other manager owns. The API server rejects this as a conflict. The message
	// names the other manager, and the field in the other manager's version. Nothing changes.
	bobConflict := `
apiVersion: useless.container.training/v1alpha1
kind: Machine
metadata: {name: applied}
spec: {switches: 9, flipIntervalSeconds: 30}
`
	stderr, err := apply("bob", bobConflict)
	if err == nil || !strings.Contains(stderr, `conflict with "ann": .spec.switches.count`) {
		t.Errorf("bob applies ann's field: error %v, standard error\n%s", err, stderr)
	}
	if stderr, err := apply("ann", `
apiVersion: useless.container.training/v1beta1
kind: Machine
metadata: {name: applied, annotations: {useless.container.training/paused: "true"}}
spec: {switches: {count: 3}, flip: {intervalSeconds: 1}}
`); err == nil || !strings.Contains(stderr, `conflict with "bob": .spec.flipIntervalSeconds`) {
		t.Errorf("ann applies bob's field: error %v, standard error\n%s", err, stderr)
	}
	check(agreed, owners)

	must("bob", bobConflict, "--force-conflicts")
	agreed["spec.switches.count"] = int64(9)
	check(agreed, map[string][]string{
		"ann v1beta1":  {"metadata.annotations." + v1beta1.PausedAnnotation},
		"bob v1alpha1": {"spec.flipIntervalSeconds", "spec.switches"},
	})
}

// ownedFields returns the paths of the fields that the managers own. The keys have the format "manager version".
func ownedFields(t *testing.T, u *unstructured.Unstructured, managers ...string) map[string][]string {
	t.Helper()
	owned := map[string][]string{}
	for _, entry := range u.GetManagedFields() {
		for _, manager := range managers {
			if entry.Manager == manager {
				var set map[string]any
				if err := json.Unmarshal(entry.FieldsV1.GetRawBytes(), &set); err != nil {
					t.Fatal(err)
				}
				version := strings.TrimPrefix(entry.APIVersion, v1beta1.GroupVersion.Group+"/")
				owned[manager+" "+version] = fieldLeaves("", set)
			}
		}
	}
	return owned
}

// fieldLeaves returns the sorted paths of the leaves in a FieldsV1 set.
func fieldLeaves(prefix string, set map[string]any) (paths []string) {
	for key, below := range set {
		name, isField := strings.CutPrefix(key, "f:")
		if !isField {
			continue
		}
		if inner := below.(map[string]any); len(inner) > 0 {
			paths = append(paths, fieldLeaves(prefix+name+".", inner)...)
		} else {
			paths = append(paths, prefix+name)
		}
	}
	slices.Sort(paths)
	return paths
}

// TestStatusInBothVersions patches the status of a Machine in each version and reads it in both.
func TestStatusInBothVersions(t *testing.T) {
	useSharedCluster(t)
	namespace := newNamespace(t)
	mustKubectl(t, everyField[beta], "create", "-n", namespace, "-f", "-")
	t.Cleanup(func() { dropFinalizers(t, namespace, "full") })
	want := everyValue()
	want["metadata.uid"] = at(read(t, beta, "machines", namespace, "full"), "metadata.uid")

	for i, version := range []string{alpha, beta, alpha} {
		status := map[string]any{
			"positions": strings.Repeat("u", i+1), "position": "up", "observedGeneration": int64(1),
			"switches": map[string]any{"total": int64(i + 1), "up": int64(i + 1), "down": int64(0)},
			"seenAt":   fmt.Sprintf("2026-11-20T09:00:00.00000%dZ", i),
		}
		// The status subresource ignores the changes to the spec.
		patch, err := json.Marshal(map[string]any{"status": status, "spec": map[string]any{"position": "down", "switchPosition": "down"}})
		if err != nil {
			t.Fatal(err)
		}
		_, stderr, err := kubectl(t, "", "patch", resource("machines", version), "full", "-n", namespace,
			"--subresource=status", "--type=merge", "-p", string(patch))
		if err != nil {
			t.Fatalf("status patch in %s: %v\n%s", version, err, stderr)
		}
		want["status"] = status
		compareBoth(t, namespace, "full", want)
	}
}

// TestListInBothVersions lists hundreds of Machines in both versions. Each list waits for the API server's watch cache.
// For v1alpha1, this cache converts one event after another. Other tests would slow it down, so the test has an
// exclusive control plane.
func TestListInBothVersions(t *testing.T) {
	useExclusiveCluster(t)
	runOperatorFor(t, operatorOptions{})
	namespace := newNamespace(t)
	count := 500
	if testing.Short() {
		count = 200
	}
	start := time.Now()
	var creating errgroup.Group
	creating.SetLimit(20)
	wantAlpha, wantBeta := map[string]v1alpha1.MachineSpec{}, map[string]v1beta1.MachineSpec{}
	for i := range int32(count) {
		m := &v1beta1.Machine{ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: fmt.Sprintf("machine-%d", i), Annotations: map[string]string{v1beta1.PausedAnnotation: "true"},
		}}
		template := v1beta1.SwitchTemplate{Metadata: v1beta1.TemplateMetadata{Labels: map[string]v1beta1.LabelValue{"i": v1beta1.LabelValue(fmt.Sprint(i))}}}
		m.Spec = v1beta1.MachineSpec{
			Switches: v1beta1.SwitchesSpec{Count: i%100 + 1, Template: template},
			Position: []v1beta1.Position{v1beta1.PositionUp, v1beta1.PositionDown}[i%2],
			Flip:     v1beta1.FlipSpec{DelaySeconds: new(i), IntervalSeconds: new(2 * i)},
		}
		wantBeta[m.Name] = *m.Spec.DeepCopy()
		wantAlpha[m.Name] = v1alpha1.MachineSpec{
			Switches: m.Spec.Switches.Count, Template: template, SwitchPosition: m.Spec.Position,
			FlipDelaySeconds: new(i), FlipIntervalSeconds: new(2 * i),
		}
		creating.Go(func() error { return admin(t).Create(t.Context(), m) })
	}
	if err := creating.Wait(); err != nil {
		t.Fatal(err)
	}
	t.Logf("created %d Machines in %s", count, time.Since(start))

	for _, limit := range []int64{0, 120} {
		gotBeta := map[string]v1beta1.MachineSpec{}
		listPages(t, namespace, limit, count, &v1beta1.MachineList{}, func(list *v1beta1.MachineList) int {
			for _, m := range list.Items {
				gotBeta[m.Name] = m.Spec
			}
			return len(list.Items)
		})
		if diff := cmp.Diff(wantBeta, gotBeta); diff != "" {
			t.Errorf("in v1beta1, with limit %d (-want +got):\n%s", limit, diff)
		}
		gotAlpha := map[string]v1alpha1.MachineSpec{}
		listPages(t, namespace, limit, count, &v1alpha1.MachineList{}, func(list *v1alpha1.MachineList) int {
			for _, m := range list.Items {
				gotAlpha[m.Name] = m.Spec
			}
			return len(list.Items)
		})
		if diff := cmp.Diff(wantAlpha, gotAlpha); diff != "" {
			t.Errorf("in v1alpha1, with limit %d (-want +got):\n%s", limit, diff)
		}
	}
}

// listPages lists all objects in a namespace. It passes each page to take, which returns the number of items in the
// page. A limit of 0 means one page. The test fails if the number of objects is not count, or if the number of pages is
// wrong.
func listPages[L client.ObjectList](t *testing.T, namespace string, limit int64, count int, list L, take func(L) int) {
	t.Helper()
	start, pages, total := time.Now(), 0, 0
	for next := ""; pages == 0 || next != ""; pages++ {
		if err := admin(t).List(t.Context(), list, client.InNamespace(namespace), client.Limit(limit), client.Continue(next)); err != nil {
			t.Fatal(err)
		}
		taken := take(list)
		if limit > 0 && int64(taken) > limit {
			t.Errorf("a page of %T has %d items, want at most %d", list, taken, limit)
		}
		total += taken
		next = list.GetContinue()
	}
	t.Logf("listed %T: %d items in %d pages in %s", list, total, pages, time.Since(start))
	wantPages := 1
	if limit > 0 {
		wantPages = (count + int(limit) - 1) / int(limit)
	}
	if total != count || pages != wantPages {
		t.Errorf("%T has %d items in %d pages, want %d in %d", list, total, pages, count, wantPages)
	}
}

// TestDeprecatedVersionWarns checks that kubectl prints a deprecation warning for v1alpha1, and none for v1beta1.
func TestDeprecatedVersionWarns(t *testing.T) {
	useSharedCluster(t)
	namespace := newNamespace(t)
	for _, kind := range []string{"Machine", "Switch"} {
		for _, version := range []string{alpha, beta} {
			plural := map[string]string{"Machine": "machines", "Switch": "switches"}[kind]
			manifest := fmt.Sprintf("{apiVersion: %s/%s, kind: %s, metadata: {name: warn-%s}}", v1beta1.GroupVersion.Group, version, kind, version)
			want := ""
			if version == alpha {
				want = fmt.Sprintf("Warning: %[1]s/v1alpha1 %[2]s is deprecated; use %[1]s/v1beta1 %[2]s\n", v1beta1.GroupVersion.Group, kind)
			}
			for _, args := range [][]string{
				{"create", "-f", "-"},
				{"apply", "-f", "-"},
				{"get", resource(plural, version)},
				{"get", resource(plural, version), "warn-" + version},
				{"delete", "-f", "-"},
			} {
				_, stderr, err := kubectl(t, manifest, append(args, "-n", namespace)...)
				// Ignore the warning of kubectl apply about objects that kubectl create created.
				var lines []string
				for line := range strings.Lines(stderr) {
					if !strings.Contains(line, "last-applied-configuration") {
						lines = append(lines, line)
					}
				}
				if got := strings.Join(lines, ""); err != nil || got != want {
					t.Errorf("kubectl %v with %s %s: error %v, standard error %q, want %q", args, version, kind, err, got, want)
				}
			}
		}
	}
}

// TestColumns checks the columns that kubectl get prints.
func TestColumns(t *testing.T) {
	useSharedCluster(t)
	namespace := newNamespace(t)
	createMachine(t, namespace, "columns", func(spec *v1beta1.MachineSpec) { spec.Switches.Count = 2 })
	waitForPositions(t, namespace, "columns", "dd", defaultTimeout)
	mustKubectl(t, "{apiVersion: useless.container.training/v1beta1, kind: Switch, metadata: {name: lone}, spec: {position: up}}",
		"create", "-n", namespace, "-f", "-")
	mustKubectl(t, "", "patch", "switch", "lone", "-n", namespace, "--subresource=status", "--type=merge",
		"-p", `{"status": {"seenAt": "2020-01-01T00:00:00.000000Z"}}`)

	const age = "*" // matches any age
	machine, theSwitch := []string{"columns", "2", "dd", "True", age}, []string{"columns-1", "columns", "down", age}
	for _, test := range []struct {
		what, name string
		want       [][]string // the heading and one row
	}{
		{"machines", "columns", [][]string{{"NAME", "SWITCHES", "POSITIONS", "READY", "AGE"}, machine}},
		{resource("machines", beta), "columns", [][]string{{"NAME", "SWITCHES", "POSITIONS", "READY", "AGE"}, machine}},
		{resource("machines", alpha), "columns", [][]string{{"NAME", "SWITCHES", "POSITIONS"}, {"columns", "2", "dd"}}},
		{"switches", "columns-1", [][]string{{"NAME", "MACHINE", "POSITION", "SEEN", "AGE"}, theSwitch}},
		{resource("switches", beta), "columns-1", [][]string{{"NAME", "MACHINE", "POSITION", "SEEN", "AGE"}, theSwitch}},
		{resource("switches", beta), "lone", [][]string{{"NAME", "MACHINE", "POSITION", "SEEN", "AGE"}, {"lone", "up", age, age}}},
		{resource("switches", alpha), "columns-1", [][]string{{"NAME", "POSITION", "SEEN"}, {"columns-1", "down"}}},
		{resource("switches", alpha), "lone", [][]string{{"NAME", "POSITION", "SEEN"}, {"lone", "up", age}}},
	} {
		var got [][]string
		for line := range strings.Lines(mustKubectl(t, "", "get", test.what, test.name, "-n", namespace)) {
			got = append(got, strings.Fields(line))
		}
		anyAge := cmp.FilterValues(func(a, b string) bool { return a == age || b == age }, cmp.Ignore())
		if diff := cmp.Diff(test.want, got, anyAge); diff != "" {
			t.Errorf("kubectl get %s %s (-want +got):\n%s", test.what, test.name, diff)
		}
	}
}

// TestDefaultsAreTheSameInBothVersions creates Machines with an empty spec, or with null or empty fields.
func TestDefaultsAreTheSameInBothVersions(t *testing.T) {
	useSharedCluster(t)
	namespace := newNamespace(t)
	want := map[string]any{
		"spec.switches.count": int64(1), "spec.switches.selector": nil, "spec.switches.template": nil,
		"spec.position": "down", "spec.flip.delaySeconds": int64(5), "spec.flip.intervalSeconds": int64(5),
	}
	for i, test := range []struct{ version, spec string }{
		{alpha, ""},
		{alpha, ", spec: {}"},
		{alpha, ", spec: null"},
		{alpha, ", spec: {switches: null, switchPosition: null, flipDelaySeconds: null, flipIntervalSeconds: null}"},
		{beta, ""},
		{beta, ", spec: {}"},
		{beta, ", spec: null"},
		{beta, ", spec: {switches: {}, flip: {}}"},
		{beta, ", spec: {switches: null, position: null, flip: null}"},
	} {
		name := fmt.Sprintf("default-%d", i)
		created := object(t, mustKubectl(t, fmt.Sprintf(
			"{apiVersion: %s/%s, kind: Machine, metadata: {name: %s, annotations: {useless.container.training/paused: 'true'}}%s}",
			v1beta1.GroupVersion.Group, test.version, name, test.spec), "create", "-n", namespace, "-f", "-", "-o", "json"))
		for how, u := range map[string]*unstructured.Unstructured{
			"in the create response": created,
			"as v1alpha1":            read(t, alpha, "machines", namespace, name),
			"as v1beta1":             read(t, beta, "machines", namespace, name),
		} {
			got := machineFields(u)
			for path, value := range want {
				if diff := cmp.Diff(value, got[path]); diff != "" {
					t.Errorf("%s of %s{%s}, read %s (-want +got):\n%s", path, test.version, test.spec, how, diff)
				}
			}
		}
	}
}

// TestScaleSubresource scales a Machine with kubectl scale and reads its scale subresource.
func TestScaleSubresource(t *testing.T) {
	useSharedCluster(t)
	namespace := newNamespace(t)
	m := createMachine(t, namespace, "scaled", nil)
	for _, step := range []struct {
		version  string
		replicas int
	}{{beta, 4}, {alpha, 2}} {
		mustKubectl(t, "", "scale", resource("machines", step.version), "scaled", "-n", namespace, fmt.Sprintf("--replicas=%d", step.replicas))
		waitForPositions(t, namespace, "scaled", strings.Repeat("d", step.replicas), defaultTimeout)
		if got := len(switchesOf(t, m)); got != step.replicas {
			t.Errorf("the Machine has %d switches, want %d", got, step.replicas)
		}
		for _, version := range []string{alpha, beta} {
			scale := object(t, mustKubectl(t, "", "get", resource("machines", version), "scaled", "-n", namespace, "--subresource=scale", "-o", "json"))
			got := []any{at(scale, "kind"), at(scale, "spec.replicas"), at(scale, "status.replicas"), at(scale, "status.selector")}
			want := []any{"Scale", int64(step.replicas), int64(step.replicas), "machine=scaled"}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("the scale in %s (-want +got):\n%s", version, diff)
			}
		}
	}
}

// TestSwitchInBothVersions writes and reads Switches in both versions. The versions have the same fields, so no webhook
// converts Switches.
func TestSwitchInBothVersions(t *testing.T) {
	useSharedCluster(t)
	if got := mustKubectl(t, "", "get", "crd", "switches."+v1beta1.GroupVersion.Group, "-o", "jsonpath={.spec.conversion}"); got != `{"strategy":"None"}` {
		t.Errorf("spec.conversion of the CustomResourceDefinition of Switches is %s, want the strategy None", got)
	}
	for _, test := range []struct{ created, edited string }{{alpha, beta}, {beta, alpha}} {
		t.Run("a Switch created as "+test.created+" is edited as "+test.edited, func(t *testing.T) {
			t.Parallel()
			writeSwitch(t, newNamespace(t), test.created, test.edited)
		})
	}
}

// writeSwitch creates a Switch in one version. In the other version, it turns the Switch up and writes its status.
func writeSwitch(t *testing.T, namespace, created, edited string) {
	t.Helper()
	check := func(position string, status any) {
		t.Helper()
		for _, version := range []string{alpha, beta} {
			u := read(t, version, "switches", namespace, "lone")
			want := []any{map[string]any{"position": position}, status, map[string]string{"colour": "red"}}
			if diff := cmp.Diff(want, []any{at(u, "spec"), at(u, "status"), u.GetLabels()}); diff != "" {
				t.Errorf("in %s (-want +got):\n%s", version, diff)
			}
		}
	}
	mustKubectl(t, fmt.Sprintf("{apiVersion: %s/%s, kind: Switch, metadata: {name: lone, labels: {colour: red}}}", v1beta1.GroupVersion.Group, created),
		"create", "-n", namespace, "-f", "-")
	check("down", nil)
	mustKubectl(t, "", "patch", resource("switches", edited), "lone", "-n", namespace, "--type=merge", "-p", `{"spec": {"position": "up"}}`)
	check("up", nil)
	mustKubectl(t, "", "patch", resource("switches", edited), "lone", "-n", namespace, "--subresource=status", "--type=merge",
		"-p", `{"status": {"seenAt": "2026-11-20T09:00:00.123456Z"}}`)
	check("up", map[string]any{"seenAt": "2026-11-20T09:00:00.123456Z"})
}
