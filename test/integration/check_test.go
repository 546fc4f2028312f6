// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"os/exec"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"container.training/useless/internal/certificates"
	"container.training/useless/test/internal/executable"
	"container.training/useless/test/internal/installer"
)

// TestCheckWebhooks runs the command that "helm test" runs in a Pod, with the chart's ServiceAccount and permissions.
// The command must fail if the operator does not run, or if the admission webhooks are not registered.
func TestCheckWebhooks(t *testing.T) {
	useExclusiveCluster(t)
	restoreWebhooks(t)
	hooks, err := executable.Output(installer.Helm(t, "", "template", "useless", installer.Chart,
		"--namespace="+operatorNamespace, "--kube-version=1.30.0", "--show-only=templates/tests/webhooks.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range installer.Objects(t, []byte(hooks)) {
		if object.GetKind() == "Pod" { // this cluster has no node, so the test itself runs the Pod's command
			continue
		}
		if err := admin(t).Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := admin(t).Delete(context.Background(), object); err != nil {
				t.Error(err)
			}
		})
	}
	account, err := clusterOf(t).ServiceAccountKubeconfig(t.Context(), operatorNamespace, "useless-test")
	if err != nil {
		t.Fatal(err)
	}

	checkFails(t, account, "error: create a Machine in v1alpha1: ", "connection refused")
	startedOperator(t)
	want := "Machine in v1alpha1: the webhooks accept a valid Machine and reject an invalid one\n" +
		"Machine in v1beta1: the webhooks accept a valid Machine and reject an invalid one\n"
	if got, err := executable.Output(checkCommand(t, account)); err != nil || got != want {
		t.Errorf("got the error %v and the output %q, want %q", err, got, want)
	}
	if machines := mustKubectl(t, "", "get", "machines", "--namespace", operatorNamespace, "--output=name"); machines != "" {
		t.Errorf("the check has created %s", machines)
	}

	configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: certificates.ValidatingWebhook}}
	mergePatch(t, configuration, `{"webhooks":[]}`)
	eventually(t, defaultTimeout, func() (bool, string) { // the API server reads the configuration from a cache
		_, err := executable.Output(checkCommand(t, account))
		return err != nil && strings.Contains(err.Error(), "does not call the admission webhook"), "the check succeeds without the admission webhooks"
	})
}

// checkFails runs the check, which must fail with an error that contains the texts.
func checkFails(t *testing.T, kubeconfig string, texts ...string) {
	t.Helper()
	output, err := executable.Output(checkCommand(t, kubeconfig))
	if err == nil {
		t.Fatalf("the check succeeds:\n%s", output)
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("got the error %v, want %q", err, text)
		}
	}
}

func checkCommand(t *testing.T, kubeconfig string) *exec.Cmd {
	t.Helper()
	manager, err := executable.BuildManager()
	if err != nil {
		t.Fatal(err)
	}
	return exec.CommandContext(t.Context(), manager, "--check-webhooks", "--kubeconfig="+kubeconfig, "--namespace="+operatorNamespace)
}
