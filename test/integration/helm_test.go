// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/hack/cluster"
	"container.training/useless/internal/certificates"
	"container.training/useless/test/internal/installer"
)

// TestHelm installs, upgrades, rolls back, uninstalls and reinstalls the Helm chart on a new control plane. The
// operator runs with the flags and the permissions of the chart, and issues its own certificate. The test needs about
// 20 s of processor time, so make test runs it only if the variable KUBERNETES is set. make e2e installs the chart on a
// node.
func TestHelm(t *testing.T) {
	if testing.Short() && os.Getenv("KUBERNETES") == "" {
		t.Skip("make test-all and make test-versions run this test")
	}
	t.Parallel()
	c := newEmptyCluster(t)
	c.helm(t, "install", installer.Chart, "--create-namespace")
	c.runChart(t)
	before := c.certificate(t)
	if len(before.Secret) == 0 || before.CRD == "" || before.Webhooks[0] == "" {
		t.Fatalf("the operator has issued no certificate: %+v", before)
	}

	c.helm(t, "upgrade", installer.Chart, "--set=controllers.virtualmachine.enabled=false")
	if c.exists(t, &rbacv1.ClusterRoleBinding{}, "useless-virtualmachine-rolebinding") {
		t.Error("after the upgrade, the operator has the permissions of a disabled controller")
	}
	if diff := cmp.Diff(before, c.certificate(t)); diff != "" {
		t.Errorf("certificate (-before +after the upgrade):\n%s", diff)
	}

	c.helm(t, "rollback", "1")
	if !c.exists(t, &rbacv1.ClusterRoleBinding{}, "useless-virtualmachine-rolebinding") {
		t.Error("after the rollback, the operator lacks the permissions of an enabled controller")
	}
	if diff := cmp.Diff(before, c.certificate(t)); diff != "" {
		t.Errorf("certificate (-before +after the rollback):\n%s", diff)
	}

	c.checkServedVersions(t)
	c.reinstall(t)
}

// checkServedVersions upgrades the chart with crds.serveV1alpha1=false. If Machines may be stored in v1alpha1, the
// upgrade must fail. Otherwise, it must succeed. The last upgrade serves v1alpha1 again.
func (c *testCluster) checkServedVersions(t *testing.T) {
	t.Helper()
	const onlyBeta = "--set=crds.serveV1alpha1=false"
	c.setStoredVersions(t, alpha, beta)
	args := []string{"upgrade", "useless", installer.Chart, "--namespace=" + operatorNamespace, onlyBeta}
	out, err := installer.Helm(t, c.Kubeconfig, args...).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "machines may still be stored in v1alpha1") {
		t.Errorf("helm upgrade must fail, because Machines may be stored in v1alpha1; it printed %s", out)
	}
	c.setStoredVersions(t, beta)
	for _, step := range []struct {
		set    string
		served bool
	}{{onlyBeta, false}, {"--set=crds.serveV1alpha1=true", true}} {
		c.helm(t, "upgrade", installer.Chart, step.set)
		if got := c.machines(t).Spec.Versions[0]; got.Name != alpha || got.Served != step.served {
			t.Errorf("%s: %s is served: %t", step.set, got.Name, got.Served)
		}
	}
}

// setStoredVersions sets status.storedVersions of the CustomResourceDefinition of Machines.
func (c *testCluster) setStoredVersions(t *testing.T, versions ...string) {
	t.Helper()
	crd := c.machines(t)
	crd.Status.StoredVersions = versions
	if err := c.admin.Status().Update(context.WithoutCancel(t.Context()), crd); err != nil {
		t.Fatal(err)
	}
}

// machines returns the CustomResourceDefinition of Machines.
func (c *testCluster) machines(t *testing.T) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	crd := &apiextensionsv1.CustomResourceDefinition{}
	ctx := context.WithoutCancel(t.Context()) // cleanups also call this method
	if err := c.admin.Get(ctx, client.ObjectKey{Name: "machines.useless.container.training"}, crd); err != nil {
		t.Fatal(err)
	}
	return crd
}

// reinstall uninstalls the chart and installs it again, in two situations. First, only the CustomResourceDefinitions
// and a Machine remain. Then, all objects of the chart exist, but do not belong to Helm, as after make deploy.
func (c *testCluster) reinstall(t *testing.T) {
	t.Helper()
	c.helm(t, "uninstall")
	if c.exists(t, &rbacv1.ClusterRole{}, "useless-manager-role") {
		t.Error("helm uninstall keeps permissions")
	}
	machine := getMachine(t, metav1.NamespaceDefault, "machine")
	c.helm(t, "install", installer.Chart)
	if again := getMachine(t, metav1.NamespaceDefault, "machine"); again.UID != machine.UID {
		t.Error("the second installation has replaced the Machine")
	}

	c.helm(t, "uninstall")
	manifests, err := cluster.ReadManifests(installation)
	if err != nil {
		t.Fatal(err)
	}
	if err := cluster.Install(t.Context(), c.Config, manifests, cluster.WebhookServer{}); err != nil {
		t.Fatal(err)
	}
	c.helm(t, "install", installer.Chart, "--take-ownership")
}

// newEmptyCluster assigns a new control plane without the operator to a test.
func newEmptyCluster(t *testing.T) *testCluster {
	t.Helper()
	plane, err := cluster.Start(t.Context(), programs, cluster.Options{Disposable: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := plane.Stop(); err != nil {
			t.Error(err)
		}
	})
	c := &testCluster{ControlPlane: plane, webhookPort: freePort(t), webhookDir: t.TempDir()}
	if c.admin, err = client.NewWithWatch(plane.Config, client.Options{Scheme: newScheme()}); err != nil {
		t.Fatal(err)
	}
	assigned.Store(t.Name(), c)
	return c
}

// helm runs a helm command for the release useless.
func (c *testCluster) helm(t *testing.T, command string, args ...string) {
	t.Helper()
	args = append([]string{command, "useless", "--namespace=" + operatorNamespace}, args...)
	if out, err := installer.Helm(t, c.Kubeconfig, args...).CombinedOutput(); err != nil {
		t.Fatalf("helm %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// runChart runs the operator with the flags and the permissions of the chart. It stops the operator when the operator
// has issued its certificate and created the Switches of a Machine. The API server cannot reach the webhooks, because
// no Pod runs. Therefore runChart sets their failure policy to Ignore.
func (c *testCluster) runChart(t *testing.T) {
	t.Helper()
	var err error
	if c.operatorKubeconfig, err = c.ServiceAccountKubeconfig(t.Context(), operatorNamespace, operatorAccount); err != nil {
		t.Fatal(err)
	}
	deployment := &appsv1.Deployment{}
	if err := c.admin.Get(t.Context(), client.ObjectKey{Namespace: operatorNamespace, Name: operatorAccount}, deployment); err != nil {
		t.Fatal(err)
	}
	args := []string{"--namespace=" + operatorNamespace}
	for _, arg := range deployment.Spec.Template.Spec.Containers[0].Args {
		// startedOperator sets other addresses and another folder of certificates.
		if !strings.Contains(arg, "-bind-address=") && !strings.HasPrefix(arg, "--webhook-cert-dir=") {
			args = append(args, arg)
		}
	}
	operator := startedOperator(t, args...)
	configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: certificates.ValidatingWebhook}}
	ignore := client.RawPatch("application/json-patch+json", []byte(`[
		{"op": "replace", "path": "/webhooks/0/failurePolicy", "value": "Ignore"},
		{"op": "replace", "path": "/webhooks/1/failurePolicy", "value": "Ignore"}]`))
	if err := c.admin.Patch(t.Context(), configuration, ignore); err != nil {
		t.Fatal(err)
	}
	eventually(t, defaultTimeout, func() (bool, string) {
		_, stderr, err := kubectl(t, "apiVersion: useless.container.training/v1beta1\nkind: Machine\nmetadata: {name: machine}", "apply", "-f-")
		return err == nil, stderr
	})
	waitForPositions(t, metav1.NamespaceDefault, "machine", "d", defaultTimeout)
	operator.Stop(10 * time.Second)
}

// A helmCertificate has the data of the certificate Secret, and the CA bundles of the CustomResourceDefinition of
// Machines and of the admission webhooks.
type helmCertificate struct {
	Secret   map[string][]byte
	CRD      string
	Webhooks []string
}

// certificate reads the Secret and the CA bundles.
func (c *testCluster) certificate(t *testing.T) (found helmCertificate) {
	t.Helper()
	secret, crd := &corev1.Secret{}, &apiextensionsv1.CustomResourceDefinition{}
	configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{}
	for _, get := range []struct {
		key    client.ObjectKey
		object client.Object
	}{
		{client.ObjectKey{Namespace: operatorNamespace, Name: certificates.SecretName}, secret},
		{client.ObjectKey{Name: certificates.MachineCRD}, crd},
		{client.ObjectKey{Name: certificates.ValidatingWebhook}, configuration},
	} {
		if err := c.admin.Get(t.Context(), get.key, get.object); err != nil {
			t.Fatal(err)
		}
	}
	found.Secret, found.CRD = secret.Data, string(crd.Spec.Conversion.Webhook.ClientConfig.CABundle)
	for _, webhook := range configuration.Webhooks {
		found.Webhooks = append(found.Webhooks, string(webhook.ClientConfig.CABundle))
	}
	return found
}

// exists reports whether a cluster-scoped object exists.
func (c *testCluster) exists(t *testing.T, object client.Object, name string) bool {
	t.Helper()
	err := c.admin.Get(t.Context(), client.ObjectKey{Name: name}, object)
	if client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
	return !apierrors.IsNotFound(err)
}
