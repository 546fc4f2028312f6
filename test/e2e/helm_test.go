// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/util/cert"

	"container.training/useless/test/internal/installer"
)

// TestHelm installs, tests, upgrades, rolls back, uninstalls and reinstalls the Helm chart, as documented. During the
// upgrade and the rollback, clients use both versions. The second installation has a certificate of the user.
func TestHelm(t *testing.T) {
	helmInPath(t)
	must(t, "kubectl", "create", "namespace", system)
	defer uninstallChart(t) // not a cleanup: the context of the test ends before cleanups, and helm needs it
	values := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(values, []byte("image:\n  repository: "+registry+"/useless-operator\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const chart = "charts/useless-operator"
	output := runDocumented(t, "kubectl label namespace useless-system", chart, absolute(t, repository, chart), "values.yaml", values)
	mustNotWarn(t, "install", output)
	checkRelease(t)

	user := newNamespace(t, "helm")
	mustRead(t, newMachine+"---"+frontDoor, "kubectl", "create", "-n", user, "-f", "-")
	machine := get[unstructured.Unstructured](t, "-n", user, newMachines, "machine")
	turnUpAndWait(t, user)
	polls := workInBothVersions(t, user)
	helm(t, "upgrade", installer.Chart, "--values="+values, "--wait", "--set=replicas=1,controllers.podcount.enabled=true",
		"--set=controllers.ingress.enabled=true,ingress.annotations.foo=bar")
	must(t, "kubectl", "wait", "-n", system, "replicasets", "--all", "--for=jsonpath={.metadata.labels.pod-count}", "--timeout=1m")
	must(t, "kubectl", "wait", "-n", user, "ingress/front-door", "--for=jsonpath={.metadata.annotations.foo}=bar", "--timeout=1m")
	t.Run("panels", checkOptionalPanels)
	helm(t, "rollback", "1", "--wait")
	must(t, "kubectl", "wait", "--for=delete", "clusterrolebinding/useless-ingress-rolebinding", "clusterrolebinding/useless-podcount-rolebinding", "--timeout=10s")
	operatorPods(t, system) // waits until two Pods remain
	for _, p := range polls {
		p.mustNotHaveFailed(t)
	}
	checkBrokenRelease(t)

	helm(t, "uninstall", "--wait")
	must(t, "kubectl", "get", "crds", crds[0], crds[1], crds[2])
	helm(t, "install", append(ownCertificate(t), installer.Chart, "--values="+values, "--wait")...)
	if again := get[unstructured.Unstructured](t, "-n", user, newMachines, "machine"); again.GetUID() != machine.GetUID() {
		t.Error("the second installation has replaced the Machine")
	}
	turnUpAndWait(t, user)
	checkRelease(t)
}

// helmInPath prepares the environment for commands that run helm. helm must not use the files of the user.
func helmInPath(t *testing.T) {
	t.Helper()
	command := installer.Helm(t, os.Getenv("KUBECONFIG"))
	for _, variable := range command.Env {
		if name, value, _ := strings.Cut(variable, "="); strings.HasPrefix(name, "HELM_") {
			t.Setenv(name, value)
		}
	}
	t.Setenv("PATH", filepath.Dir(command.Path)+string(os.PathListSeparator)+os.Getenv("PATH"))
}

// ownCertificate creates a Secret with a certificate for the webhooks, and returns the flags of helm that use it.
func ownCertificate(t *testing.T) (flags []string) {
	t.Helper()
	certificate, key, err := cert.GenerateSelfSignedCertKey("useless-webhook-service."+system+".svc", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	if err := errors.Join(os.WriteFile(certFile, certificate, 0o600), os.WriteFile(keyFile, key, 0o600)); err != nil {
		t.Fatal(err)
	}
	must(t, "kubectl", "create", "secret", "tls", "-n", system, "mine", "--cert="+certFile, "--key="+keyFile)
	return []string{"--set=certificates.mode=secret,certificates.secretName=mine", "--set-file=certificates.caBundle=" + certFile}
}

// helm runs a helm command for the release useless, and returns its output. A warning of helm or of the API server
// fails the test.
func helm(t *testing.T, command string, args ...string) string {
	t.Helper()
	output, err := tryHelm(t, command, args...)
	if err != nil {
		t.Fatalf("helm %s: %v\n%s", command, err, output)
	}
	mustNotWarn(t, command, output)
	return output
}

func mustNotWarn(t *testing.T, command, output string) {
	t.Helper()
	if strings.Contains(strings.ToLower(output), "warning") {
		t.Errorf("helm %s warns:\n%s", command, output)
	}
}

func tryHelm(t *testing.T, command string, args ...string) (string, error) {
	t.Helper()
	args = append([]string{command, "useless", "--namespace=" + system, "--timeout=2m"}, args...)
	start := time.Now()
	output, err := installer.Helm(t, os.Getenv("KUBECONFIG"), args...).CombinedOutput()
	t.Logf("%6.1f s  $ helm %.160s", time.Since(start).Seconds(), strings.Join(args, " "))
	return string(output), err
}

// checkRelease runs helm test. It must succeed, print the log of its Pod, and delete its objects.
func checkRelease(t *testing.T) {
	t.Helper()
	output := runDocumented(t, "helm test ")
	mustNotWarn(t, "test", output)
	for _, want := range []string{"Phase:          Succeeded", "Machine in v1alpha1: the webhooks accept", "Machine in v1beta1: the webhooks accept"} {
		if !strings.Contains(output, want) {
			t.Errorf("the output of helm test has no %q:\n%s", want, output)
		}
	}
	if left := must(t, "kubectl", "get", "-n", system, testObjects, "-l", "app.kubernetes.io/name=useless-operator-test", "-o", "name"); left != "" {
		t.Errorf("helm test leaves %s", left)
	}
}

// testObjects are the kinds of the objects of helm test.
const testObjects = "pods,serviceaccounts,roles,rolebindings"

// checkBrokenRelease deletes the configuration of the admission webhooks, so that the API server does not call them.
// helm test must fail, print the reason, and keep only its Pod. TestCheckWebhooks in test/integration checks other
// reasons. If no Pod of the operator runs, helm test waits half a minute for the API server, which is too long here.
func checkBrokenRelease(t *testing.T) {
	t.Helper()
	must(t, "kubectl", "delete", "validatingwebhookconfiguration", "useless-validating-webhook-configuration")
	output, err := tryHelm(t, "test")
	if want := "error: create a Machine in v1alpha1: the API server does not call the admission webhook"; err == nil || !strings.Contains(output, want) {
		t.Errorf("helm test without the webhooks: got the error %v and no %q in:\n%s", err, want, output)
	}
	left := must(t, "kubectl", "get", "-n", system, testObjects, "-l", "app.kubernetes.io/name=useless-operator-test", "-o", "name")
	if want := "pod/useless-test\n"; left != want {
		t.Errorf("a failed helm test leaves %q, want %q", left, want)
	}
}

// turnUpAndWait turns a switch of the machine up, and waits until the operator has turned it down.
func turnUpAndWait(t *testing.T, namespace string) {
	t.Helper()
	must(t, "kubectl", "wait", "-n", namespace, "--for=condition=Ready", "machine/machine", "--timeout=30s")
	must(t, "kubectl", "patch", "-n", namespace, "switch", "machine-0", "--type=merge", "-p", `{"spec":{"position":"up"}}`)
	must(t, "kubectl", "wait", "-n", namespace, "--for=jsonpath={.spec.position}=down", "switch/machine-0", "--timeout=30s")
}

// uninstallChart removes the release in the documented order, with the CustomResourceDefinitions.
func uninstallChart(t *testing.T) {
	t.Helper()
	if t.Failed() {
		writeCluster(t)
	}
	for _, kind := range crds {
		cleanUp(t, kind, "--all", "--all-namespaces", "--timeout=1m")
	}
	cleanUp(t, append([]string{"crd", "--timeout=1m"}, crds...)...)
	if output, err := tryHelm(t, "uninstall", "--wait", "--ignore-not-found"); err != nil {
		t.Errorf("helm uninstall: %v\n%s", err, output)
	}
	cleanUp(t, "namespace", system, "--timeout=1m")
}
