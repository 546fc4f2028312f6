// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// documentedSubscription returns the manifests that docs/installing.md applies. They set a limit on switches.
// documentedSubscription adds a short interval of usage requests, so that checkUsage waits less.
func documentedSubscription(t *testing.T) string {
	t.Helper()
	commands := documented(t, "make catalog ", usageInterval...)
	_, manifests, _ := strings.Cut(commands[len(commands)-1], "<<END\n")
	return strings.TrimSuffix(manifests, "\nEND")
}

// usageInterval is an old and a new text, for the argument replacements of documented. The new text adds an environment
// variable to the Subscription in docs/installing.md.
var usageInterval = []string{`value: "50"}`, `value: "50"}, {name: USELESS_VM_USAGE_INTERVAL, value: 5s}`}

// TestCatalog installs the operator from a catalog, and upgrades it with OLM.
func TestCatalog(t *testing.T) {
	dir := t.TempDir()
	catalog := filepath.Join(dir, "catalog")
	t.Cleanup(func() { sweep(t) })
	t.Cleanup(func() { cleanUp(t, "catalogsource", "-n", "olm", "useless") })
	t.Setenv("PLATFORMS", "linux/"+runtime.GOARCH) // the other platforms take minutes to compile
	runDocumented(t, "make docker-buildx ", "/tmp/useless", dir)
	output := runDocumented(t, "make catalog ", append(usageInterval, "/tmp/useless", dir)...)
	if strings.Contains(output, "Warning:") {
		t.Errorf("the API server warns:\n%s", output)
	}
	awaitVersion(t, currentVersion)
	t.Run("package manifest", checkPackageManifest)
	t.Run("configuration", checkConfiguration)
	t.Run("optional controllers", checkOptional)
	t.Run("pods", func(t *testing.T) { checkPods(t, system) })

	user := newNamespace(t, "channel")
	mustRead(t, newMachine, "kubectl", "create", "-n", user, "-f", "-")
	must(t, "kubectl", "wait", "-n", user, "--for=condition=Ready", "machine/machine", "--timeout=30s")
	t.Run("usage", func(t *testing.T) { checkUsage(t, user) })
	pod := awaitActive(t, user)
	oldLists := startPoll(t, "lists in v1alpha1", listMachines("v1alpha1", user, 1))
	uninterrupted := []*poll{
		startPoll(t, "lists in v1beta1", listMachines("v1beta1", user, 1)),
		startPoll(t, "gets in v1beta1", getMachine("v1beta1", user, "machine")),
	}
	converted := []*poll{
		startPoll(t, "gets in v1alpha1", getMachine("v1alpha1", user, "machine")),
		startPoll(t, "writes in v1alpha1", createMachine("v1alpha1", user)),
		startPoll(t, "writes in v1beta1", createMachine("v1beta1", user)),
	}
	next := nextVersion(t)
	addToCatalog(t, catalog, next, publishBundle(t, next, func(*unstructured.Unstructured) {}))
	makeImage(t, "catalog", "CATALOG_DIR="+catalog, "CATALOG_IMG="+catalogImage(next))
	must(t, "kubectl", "patch", "-n", "olm", "catalogsource", "useless", "--type=merge", "-p", fmt.Sprintf(`{"spec":{"image":%q}}`, catalogImage(next)))
	awaitVersion(t, next)
	for _, p := range uninterrupted {
		p.mustNotHaveFailed(t)
	}
	oldLists.mustHaveWaitedFor(t, converted[0])
	for _, p := range converted {
		p.mustHaveFailedAtMost(t, converterBound)
	}
	must(t, "kubectl", "wait", "-n", user, "vm/test-vm", "--for=condition=UsageAvailable", "--timeout=1m")
	checkSamePod(t, user, pod)
	t.Run("uninstall", checkUninstall)
}

// checkUninstall uninstalls the operator in the documented order.
func checkUninstall(t *testing.T) {
	t.Helper()
	must(t, "kubectl", "delete", strings.Join(crds, ","), "--all", "--all-namespaces", "--timeout=1m")
	must(t, "kubectl", "delete", "subscription.operators.coreos.com", "--all", "-n", system, "--timeout=1m")
	must(t, append([]string{"kubectl", "delete", "crd", "--timeout=1m"}, crds...)...)
	must(t, "kubectl", "delete", "clusterserviceversion", "--all", "-n", system, "--timeout=1m")
	must(t, "kubectl", "delete", "catalogsource", "-n", "olm", "useless")
	runDocumented(t, "kubectl delete clusterrole useless-editor-role ")
	checkNothingLeft(t)
}

// addToCatalog adds a bundle to the catalog in a folder, as a release does.
func addToCatalog(t *testing.T, catalog, version, bundle string) {
	t.Helper()
	must(t, "make", "-s", "-C", absolute(t, repository), "catalog", "catalog-validate",
		"CATALOG_DIR="+catalog, "BUNDLE_DIR="+bundle, "BUNDLE_IMG="+bundleImage(version))
}

func catalogImage(version string) string {
	return registry + "/useless-operator-catalog:v" + version
}

// awaitVersion waits until the Subscription has installed a version.
func awaitVersion(t *testing.T, version string) {
	t.Helper()
	must(t, "kubectl", "wait", "-n", system, "--for=jsonpath={.status.installedCSV}="+packageName+".v"+version, "subscription.operators.coreos.com/useless-operator", "--timeout=4m")
	checkSucceeded(t, system, version)
}

// checkPackageManifest checks the description that a console shows before the installation.
func checkPackageManifest(t *testing.T) {
	t.Helper()
	type description struct{ DisplayName, Description string }
	type channel struct {
		Name           string
		CurrentCSVDesc description
	}
	eventually(t, time.Minute, func() string { // OLM's package server connects to the catalog separately
		output, err := try(t, "", "kubectl", "get", "packagemanifest", "-n", "olm", packageName)
		if err != nil {
			return output
		}
		return ""
	})
	manifest := get[struct{ Status struct{ Channels []channel } }](t, "-n", "olm", "packagemanifest", packageName)
	var names []string
	for _, channel := range manifest.Status.Channels {
		names = append(names, channel.Name)
		if shown := channel.CurrentCSVDesc; shown.DisplayName != "Useless Operator" || !strings.Contains(shown.Description, "useless machine") {
			t.Errorf("channel %s shows %+v", channel.Name, shown)
		}
	}
	if diff := cmp.Diff([]string{"candidate"}, names); diff != "" {
		t.Errorf("channels (-want +got):\n%s", diff)
	}
	icon, err := os.ReadFile(filepath.Join(repository, "config", "manifests", "useless-machine.svg"))
	if err != nil {
		t.Fatal(err)
	}
	shown := stdout(t, "kubectl", "get", "--raw", "/apis/packages.operators.coreos.com/v1/namespaces/olm/packagemanifests/"+packageName+"/icon")
	if diff := cmp.Diff(string(icon), shown); diff != "" {
		t.Errorf("icon (-want +got):\n%s", diff)
	}
}

// checkConfiguration checks that the operator has the limit on switches that the Subscription sets.
func checkConfiguration(t *testing.T) {
	t.Helper()
	awaitConfiguration(t, environmentOf(t, documentedSubscription(t)))
	namespace := newNamespace(t, "configuration")
	output, err := try(t, strings.Replace(newMachine, "count: 2", "count: 51", 1), "kubectl", "create", "-n", namespace, "-f", "-")
	if err == nil || !strings.Contains(output, "must be at most 50") {
		t.Errorf("got error %v, want an error that names the limit of 50:\n%s", err, output)
	}
}
