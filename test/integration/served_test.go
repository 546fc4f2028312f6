// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/yaml"

	"container.training/useless/api/useless/v1alpha1"
	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/test/internal/docexamples"
	"container.training/useless/test/internal/executable"
)

// alphaMetric and alphaManagers find clients that use v1alpha1. Commands in docs/installing.md contain both texts.
const (
	alphaMetric   = `apiserver_requested_deprecated_apis{group="useless.container.training",`
	alphaManagers = `jsonpath={range .items[*]}{.metadata.namespace}/{.metadata.name}: ` +
		`{.metadata.managedFields[?(@.apiVersion=="useless.container.training/v1alpha1")].manager}{"\n"}{end}`
)

// TestServeOnlyV1beta1 turns v1alpha1 off, as the component v1beta1-only does. The API server must reject this change
// while objects are stored in v1alpha1, and accept it after the migration. Then the test serves v1alpha1 again.
func TestServeOnlyV1beta1(t *testing.T) {
	useExclusiveCluster(t)
	namespace := newNamespace(t)
	onlyBeta, both := documentedCRDs(t), []*apiextensionsv1.CustomResourceDefinition{crd(t, "machines"), crd(t, "switches")}
	t.Cleanup(func() {
		if err := serveVersionsOf(t, both); err != nil { // other tests use this cluster
			t.Error(err)
		}
	})
	storeMachineInAlpha(t, namespace)
	err := serveVersionsOf(t, onlyBeta)
	const want = "objects may still be stored in v1alpha1: wait until the operator has migrated them"
	if err == nil || strings.Count(err.Error(), want) != len(plurals) {
		t.Fatalf("objects are stored in v1alpha1: got the error %v, want %q for each kind", err, want)
	}

	operator := startedOperator(t) // migrates the objects to v1beta1
	// The operator must run, because Kubernetes 1.30 calls its conversion webhook for these requests.
	checkAlphaUsers(t, namespace)
	for _, plural := range plurals {
		eventually(t, defaultTimeout, func() (bool, string) {
			stored := crd(t, plural).Status.StoredVersions
			return slices.Equal(stored, []string{beta}), fmt.Sprintf("stored versions of %s: %v", plural, stored)
		})
	}
	if err := serveVersionsOf(t, onlyBeta); err != nil {
		t.Fatalf("all objects are stored in v1beta1: %v", err)
	}
	waitForAlpha(t, namespace, false)
	operator.Kill()
	startedOperator(t) // the operator must work without v1alpha1
	report := "Machine in v1alpha1: the API server does not serve this version\n" +
		"Machine in v1beta1: the webhooks accept a valid Machine and reject an invalid one\n"
	if got, err := executable.Output(checkCommand(t, clusterOf(t).Kubeconfig)); err != nil || got != report {
		t.Errorf("the check of the webhooks: got the error %v and the output %q, want %q", err, got, report)
	}
	mustKubectl(t, "", "patch", "machines", "m", "-n", namespace, "--type=merge", "-p", `{"spec":{"switches":{"count":2}}}`)
	waitForPositions(t, namespace, "m", "dd", defaultTimeout)
	flippingMachine(t, namespace, "new", 1, 0, 0)
	switches := recordSwitches(t, namespace)
	for _, name := range []string{"m-1", "new-0"} {
		turnUp(t, namespace, name)
		switches.untilObject(t, name, "is turned down", flipped)
	}

	if err := serveVersionsOf(t, both); err != nil {
		t.Fatalf("serve v1alpha1 again: %v", err)
	}
	waitForAlpha(t, namespace, true)
}

// documentedCRDs renders the kustomization in docs/installing.md, and returns its CustomResourceDefinitions of Machines
// and Switches.
func documentedCRDs(t *testing.T) (found []*apiextensionsv1.CustomResourceDefinition) {
	t.Helper()
	clone, err := filepath.Abs(repository)
	dir := t.TempDir()
	example := docexamples.Block(t, "installing.md", "components:")
	if err := errors.Join(err, os.Symlink(clone, filepath.Join(dir, "useless-operator")),
		os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(example), 0o600)); err != nil {
		t.Fatal(err)
	}
	for document := range strings.SplitSeq(mustKubectl(t, "", "kustomize", dir), "\n---\n") {
		object := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.Unmarshal([]byte(document), object); err == nil && object.Spec.Group == v1beta1.GroupVersion.Group {
			found = append(found, object)
		}
	}
	if len(found) != len(plurals) {
		t.Fatalf("the kustomization has %d CustomResourceDefinitions, want %d", len(found), len(plurals))
	}
	return found
}

// serveVersionsOf copies the field served of all versions to the CustomResourceDefinitions in the cluster. It changes
// no other field, because the CustomResourceDefinitions in the test cluster have other webhook URLs.
func serveVersionsOf(t *testing.T, wanted []*apiextensionsv1.CustomResourceDefinition) error {
	t.Helper()
	var errs []error
	for _, want := range wanted {
		errs = append(errs, retry.RetryOnConflict(retry.DefaultRetry, func() error {
			changed := crd(t, want.Spec.Names.Plural)
			for i, version := range want.Spec.Versions {
				if changed.Spec.Versions[i].Name != version.Name {
					return fmt.Errorf("version %d of %s is not %s", i, want.Name, version.Name)
				}
				changed.Spec.Versions[i].Served = version.Served
			}
			return admin(t).Update(context.Background(), changed)
		}))
	}
	return errors.Join(errs...)
}

// storeMachineInAlpha creates the Machine m in v1alpha1, and stores it and its Switch in v1alpha1. It runs and stops
// an operator that does not migrate objects.
func storeMachineInAlpha(t *testing.T, namespace string) {
	t.Helper()
	stop := runOperatorFor(t, operatorOptions{})
	storeIn(t, alpha)
	m := &v1alpha1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "m"}}
	m.Spec.Switches = 1
	m.Spec.FlipDelaySeconds, m.Spec.FlipIntervalSeconds = new(int32(0)), new(int32(0))
	if err := admin(t).Create(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	waitForPositions(t, namespace, "m", "d", defaultTimeout)
	storeIn(t, beta)
	stop()
}

// waitForAlpha waits until the API server serves v1alpha1 (served is true), or until the API server answers 404 (served
// is false).
func waitForAlpha(t *testing.T, namespace string, served bool) {
	t.Helper()
	for _, plural := range plurals {
		path := fmt.Sprintf("/apis/useless.container.training/v1alpha1/namespaces/%s/%s", namespace, plural)
		eventually(t, defaultTimeout, func() (bool, string) {
			_, stderr, err := kubectl(t, "", "get", "--raw", path)
			notFound := err != nil && strings.Contains(stderr, "NotFound")
			return served && err == nil || !served && notFound, fmt.Sprintf("get %s: %v %s", path, err, stderr)
		})
	}
}

// checkAlphaUsers checks that each of the documented methods detects the use of v1alpha1 by storeMachineInAlpha.
func checkAlphaUsers(t *testing.T, namespace string) {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(repository, "docs", "installing.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{alphaMetric, alphaManagers} {
		if !strings.Contains(string(page), command) {
			t.Errorf("docs/installing.md does not contain %s", command)
		}
	}
	metrics := mustKubectl(t, "", "get", "--raw", "/metrics")
	if !slices.ContainsFunc(strings.Split(metrics, "\n"), func(line string) bool {
		return strings.HasPrefix(line, alphaMetric) && strings.Contains(line, `resource="machines"`) &&
			strings.Contains(line, `version="v1alpha1"`) && strings.HasSuffix(line, " 1")
	}) {
		t.Errorf("the metrics contain no request for Machines in v1alpha1")
	}
	managers := mustKubectl(t, "", "get", "machines.v1beta1.useless.container.training", "-n", namespace, "-o", alphaManagers)
	if !strings.HasPrefix(managers, namespace+"/m: integration") {
		t.Errorf("the field managers of v1alpha1 are %q, want those of this test", managers)
	}
	if !auditedAlpha(t, namespace) {
		t.Error("the audit log has no annotation k8s.io/deprecated for the creation of the Machine")
	}
}

// auditedAlpha reports whether the audit log marks the creation of the Machine m as a use of a deprecated version.
func auditedAlpha(t *testing.T, namespace string) bool {
	t.Helper()
	log, err := os.Open(clusterOf(t).AuditLog())
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	for lines := bufio.NewReader(log); ; {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return false
		}
		var event auditv1.Event
		if err := errors.Join(err, json.Unmarshal(line, &event)); err != nil {
			t.Fatal(err)
		}
		ref := event.ObjectRef
		if ref != nil && ref.Namespace == namespace && ref.Name == "m" && event.Verb == "create" &&
			ref.APIVersion == alpha && event.Annotations["k8s.io/deprecated"] == "true" && event.User.Username != "" {
			return true
		}
	}
}
