// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	operatorsv1alpha1 "github.com/operator-framework/api/pkg/operators/v1alpha1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"container.training/useless/test/internal/executable"
)

const packageName = "useless-operator"

// crds are the names of the operator's CustomResourceDefinitions.
var crds = []string{"machines.useless.container.training", "switches.useless.container.training", "virtualmachines.cloudnative.tw"}

// Images that must be in the registry. The tests name them in the arguments of operator-sdk, because operator-sdk's
// default images are on the internet.
const (
	opmImage     = "operator-framework/opm:v1.65.0"
	busyboxImage = "library/busybox:1"
)

// TestBundle installs the bundle with operator-sdk.
func TestBundle(t *testing.T) {
	must(t, "kubectl", "create", "namespace", system)
	t.Cleanup(func() { sweep(t) })
	runDocumented(t, "export SSL_CERT_FILE=", "ca.crt", "$SSL_CERT_FILE") // make e2e has set it for its own node
	checkSucceeded(t, system, currentVersion)

	checkOperator(t, system)
	t.Run("scorecard", checkScorecard)
	t.Run("replica", func(t *testing.T) { checkReplicaGone(t, system) })
	t.Run("reinstall", checkReinstall)
	t.Run("cleanup", checkCleanup)
}

// TestMonitoring installs the bundle with monitoring. The cluster has only the CustomResourceDefinitions of the
// Prometheus operator, not the operator itself.
func TestMonitoring(t *testing.T) {
	crds := folder(t, "PROMETHEUS_CRDS")
	for _, kind := range []string{"servicemonitors", "prometheusrules"} {
		path := filepath.Join(crds, "monitoring.coreos.com_"+kind+".yaml")
		must(t, "kubectl", "apply", "--server-side", "-f", path)
		t.Cleanup(func() { cleanUp(t, "-f", path) })
	}
	bundle, image := filepath.Join(t.TempDir(), "bundle"), bundleImage(currentVersion)+"-monitoring"
	must(t, "make", "-s", "-C", absolute(t, repository), "bundle", "MONITORING=true", "BUNDLE_DIR="+bundle, "IMG="+operatorImage())
	makeImage(t, "bundle", "BUNDLE_DIR="+bundle, "BUNDLE_IMG="+image)

	t.Cleanup(func() { sweep(t) })
	runDocumented(t, "kubectl create namespace ", "registry.example.com/useless-operator-bundle:v"+currentVersion,
		strings.Join(append([]string{image}, sdkFlags()...), " "))
	checkSucceeded(t, system, currentVersion)
	must(t, "kubectl", "get", "-n", system, "servicemonitor,prometheusrule", "useless-controller-manager")
	standalone := stdout(t, "kubectl", "kustomize", absolute(t, repository, "config", "olm", "prometheus"))
	mustRead(t, standalone, "kubectl", "apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", "-")
}

// runBundle installs a bundle with operator-sdk.
func runBundle(t *testing.T, image string) {
	t.Helper()
	must(t, append([]string{"operator-sdk", "run", "bundle", image, "--namespace", system}, sdkFlags()...)...)
}

// sdkFlags are the flags of operator-sdk run bundle for a cluster without the internet.
func sdkFlags() []string {
	return []string{"--timeout", "5m", "--index-image", registry + "/" + opmImage, "--decompression-image", registry + "/" + opmImage}
}

// bundleImage returns the reference of the bundle image of a version.
func bundleImage(version string) string {
	return registry + "/useless-operator-bundle:v" + version
}

// checkSucceeded waits until OLM has installed a version and no longer changes its objects. It checks the phase
// Succeeded twice. The phase can end again when OLM executes an InstallPlan a second time, see awaitInstallPlans.
func checkSucceeded(t *testing.T, namespace, version string) {
	t.Helper()
	csv := "clusterserviceversion/" + packageName + ".v" + version
	must(t, "kubectl", "wait", "-n", namespace, "--for=jsonpath={.status.phase}=Succeeded", csv, "--timeout=4m")
	awaitInstallPlans(t, namespace)
	for _, name := range crds {
		eventually(t, time.Minute, func() string {
			conversion := get[apiextensionsv1.CustomResourceDefinition](t, "crd", name).Spec.Conversion
			if conversion.Webhook != nil && len(conversion.Webhook.ClientConfig.CABundle) == 0 {
				return name + " has no CA certificate for its conversion webhook"
			}
			return ""
		})
	}
	must(t, "kubectl", "wait", "-n", namespace, "--for=jsonpath={.status.phase}=Succeeded", csv, "--timeout=4m")
}

// awaitInstallPlans waits until OLM has executed the approved InstallPlans for the last time. OLM reads an InstallPlan
// from a cache. If the cache does not show the result of an execution yet, OLM executes the InstallPlan again. The
// second execution removes the CA certificates from the CustomResourceDefinitions until OLM adds them again. It also
// creates deleted objects again. OLM never executes an InstallPlan twice at the same time. So if OLM has logged that it
// read the phase Complete, it does not execute this InstallPlan again.
func awaitInstallPlans(t *testing.T, namespace string) {
	t.Helper()
	for _, plan := range get[operatorsv1alpha1.InstallPlanList](t, "-n", namespace, "installplans").Items {
		if !plan.Spec.Approved {
			continue
		}
		complete := regexp.MustCompile(`msg=syncing .*ip=` + plan.Name + ` .*phase=Complete`)
		eventually(t, 2*time.Minute, func() string {
			if complete.MatchString(stdout(t, "kubectl", "logs", "-n", "olm", "deployment/catalog-operator", "--since=15m")) {
				return ""
			}
			return "OLM did not read that the InstallPlan " + plan.Name + " is complete"
		})
	}
}

// checkScorecard runs all scorecard tests of the bundle.
func checkScorecard(t *testing.T) {
	t.Helper()
	namespace := newNamespace(t, "scorecard")
	output := stdout(t, "operator-sdk", "scorecard", absolute(t, repository, "bundle"), "--namespace", namespace, "--wait-time", "3m",
		"--storage-image", registry+"/"+busyboxImage, "--untar-image", registry+"/"+busyboxImage, "--pod-security", "restricted")
	if got := strings.Count(output, "State: pass"); got != 6 {
		t.Errorf("%d of 6 tests passed:\n%s", got, output)
	}
}

// checkReinstall removes the operator while machines exist, which is not the documented order. Then it installs the
// operator again.
func checkReinstall(t *testing.T) {
	t.Helper()
	namespace := newNamespace(t, "reinstall")
	for _, name := range []string{"kept", "deleted"} {
		mustRead(t, named(newMachine, name), "kubectl", "create", "-n", namespace, "-f", "-")
	}
	must(t, "kubectl", "wait", "-n", namespace, "--for=condition=Ready", "machine", "--all", "--timeout=30s")
	must(t, "operator-sdk", "cleanup", packageName, "--namespace", system, "--delete-all=false")
	if output, err := try(t, "", "kubectl", "delete", "-n", namespace, "machine", "deleted", "--timeout=5s"); err == nil {
		t.Errorf("a machine was deleted without an operator:\n%s", output)
	}
	unconverted := get[unstructured.Unstructured](t, "-n", namespace, oldMachines, "kept")
	if _, found, _ := unstructured.NestedMap(unconverted.Object, "spec", "switches"); !found {
		t.Errorf("want an unconverted spec, because OLM sets the conversion to None, as documented; got %v", unconverted.Object["spec"])
	}

	runBundle(t, bundleImage(currentVersion))
	checkSucceeded(t, system, currentVersion)
	must(t, "kubectl", "wait", "-n", namespace, "--for=delete", "machine/deleted", "--timeout=1m")
	got := get[unstructured.Unstructured](t, "-n", namespace, oldMachines, "kept")
	if diff := cmp.Diff(parse(t, named(oldMachine, "kept")).Object["spec"], got.Object["spec"]); diff != "" {
		t.Errorf("after the operator was installed again (-want +got):\n%s", diff)
	}
}

// checkCleanup removes the operator while a machine exists and its switch is up.
func checkCleanup(t *testing.T) {
	t.Helper()
	namespace := newNamespace(t, "cleanup")
	mustRead(t, strings.Replace(newMachine, "delaySeconds: 3", "delaySeconds: 3600", 1), "kubectl", "create", "-n", namespace, "-f", "-")
	must(t, "kubectl", "wait", "-n", namespace, "--for=condition=Ready", "machine/machine", "--timeout=30s")
	must(t, "kubectl", "patch", "-n", namespace, "switch", "machine-0", "--type=merge", "-p", `{"spec":{"position":"up"}}`)
	must(t, "operator-sdk", "cleanup", packageName, "--namespace", system)
	cleanUp(t, "namespace", namespace, "--timeout=1m") // fails if a finalizer remains
	checkNothingLeft(t)
}

// leftByOLM lists the objects that OLM leaves in the cluster, as documented. Each item contains the arguments of a
// kubectl delete command.
var leftByOLM = [][]string{
	{"clusterrole", "useless-editor-role", "useless-ingress-role", "useless-metrics-reader", "useless-podcount-role", "useless-viewer-role"},
	{"rolebinding", "-n", "kube-system", "useless-controller-manager-service-auth-reader"},
	{"namespace", system, "--timeout=2m"},
	operatorObject,
}

// operatorObject is the object with which OLM describes an operator. While OLM's cache shows one of the operator's
// objects, OLM creates the Operator again, as documented.
var operatorObject = []string{"operator.operators.coreos.com", "useless-operator." + system}

// checkNothingLeft deletes the objects in leftByOLM. After that, no object with useless or cloudnative.tw in its name
// may remain.
func checkNothingLeft(t *testing.T) {
	t.Helper()
	for _, args := range leftByOLM {
		cleanUp(t, args...)
	}
	eventually(t, time.Minute, func() string {
		cleanUp(t, operatorObject...)
		if left := leftovers(t); len(left) > 0 {
			return "these objects remain: " + strings.Join(left, ", ")
		}
		return ""
	})
}

func leftovers(t *testing.T) (left []string) {
	t.Helper()
	kinds := slices.DeleteFunc(strings.Fields(stdout(t, "kubectl", "api-resources", "--verbs=list", "-o", "name")), func(kind string) bool {
		return strings.HasPrefix(kind, "events") // events expire
	})
	output, err := executable.Output(exec.Command("kubectl", "get", strings.Join(kinds, ","), "--all-namespaces", "--ignore-not-found", "-o", "name"))
	if err != nil {
		return []string{"unknown: " + err.Error()} // a kind was removed during the request
	}
	for name := range strings.Lines(output) {
		if strings.Contains(name, "useless") || strings.Contains(name, "cloudnative.tw") {
			left = append(left, strings.TrimSpace(name))
		}
	}
	return left
}

// sweep removes all objects of the operator. If the test has failed, it first writes the state of the cluster to a
// file.
func sweep(t *testing.T) {
	t.Helper()
	if t.Failed() {
		writeCluster(t)
	}
	const withoutFinalizers = `{"metadata":{"finalizers":null}}`
	for _, kind := range crds {
		_, _ = quietly("", "kubectl", "delete", kind, "--all", "--all-namespaces", "--wait=false")
		if left, err := exec.Command("kubectl", "get", kind, "--all-namespaces", "-o", "json").Output(); err == nil {
			_, _ = quietly(string(left), "kubectl", "patch", "-f", "-", "--type=merge", "-p", withoutFinalizers)
		}
	}
	_, _ = quietly("", "operator-sdk", "cleanup", packageName, "--namespace", system)
	cleanUp(t, append([]string{"crd", "--timeout=1m"}, crds...)...)
	for _, args := range leftByOLM {
		cleanUp(t, args...)
	}
}

// writeCluster writes the state of the cluster to a file, so that a failed test can be diagnosed. At its end, make e2e
// shows the file.
func writeCluster(t *testing.T) {
	t.Helper()
	var text strings.Builder
	for _, command := range [][]string{
		{"kubectl", "get", "namespaces,pods", "--all-namespaces", "-o", "wide"},
		{"kubectl", "get", "catalogsources,subscriptions.operators.coreos.com,installplans,clusterserviceversions", "--all-namespaces", "-o", "wide"},
		{"kubectl", "get", "clusterserviceversions", "-n", system, "-o", "jsonpath={range .items[*].status.conditions[*]}{.lastTransitionTime} {.phase} {.reason} {.message}{\"\\n\"}{end}"},
		append([]string{"kubectl", "get", "crd", "-o", "jsonpath={range .items[*]}{.metadata.name} {.metadata.deletionTimestamp} {.spec.conversion.strategy} {.status}{\"\\n\"}{end}"}, crds...),
		{"kubectl", "get", strings.Join(crds, ","), "--all-namespaces", "-o", "yaml"},
		{"kubectl", "get", "events", "-n", system, "--sort-by=.lastTimestamp"},
		{"kubectl", "logs", "-n", system, "-l", "app.kubernetes.io/name=useless-operator", "--prefix", "--tail=100"},
		{"kubectl", "logs", "-n", "olm", "-l", "app in (olm-operator,catalog-operator)", "--prefix", "--tail=50"},
	} {
		output, err := quietly("", command...)
		fmt.Fprintf(&text, "%s: $ %s\n%s", t.Name(), strings.Join(command, " "), output)
		if err != nil {
			fmt.Fprintln(&text, err)
		}
	}
	if err := os.WriteFile(filepath.Join(t.ArtifactDir(), "cluster.txt"), []byte(text.String()), 0o644); err != nil {
		t.Error(err)
	}
}
