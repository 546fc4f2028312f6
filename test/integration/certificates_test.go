// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/internal/certificates"
)

const webhookService = "useless-webhook-service.useless-system.svc"

// TestSelfManagedCertificates runs the operator with self-managed certificates, as dist/install.yaml does. The
// certificate is valid only for the webhooks' Service. In this test, the API server calls the webhooks at an IP
// address, so all webhook calls fail until the test ends. At first, an admission policy rejects updates of the Secret
// with the certificate. During this time, the operator must report that it is not ready.
func TestSelfManagedCertificates(t *testing.T) {
	useExclusiveCluster(t)
	installed := caBundles(t)
	restoreWebhooks(t)
	allow := forbidUpdates(t, certificateSecret(t), corev1.GroupName, "secrets", "false", `{"metadata":{"labels":{"held":"back"}}}`)
	metrics := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	operator := startOperator(t, nil, "--namespace=useless-system", "--self-managed-certs", "--webhook-cert-dir="+t.TempDir(), "--metrics-bind-address="+metrics)
	eventually(t, defaultTimeout, func() (bool, string) {
		status, body := operator.probe(t, "/readyz")
		return status == http.StatusInternalServerError, fmt.Sprintf("without a certificate, /readyz: %d %s", status, body)
	})
	allow()
	operator.waitUntilReady(t)
	secret := certificateSecret(t)
	for _, key := range []string{"ca.crt", "ca.key", corev1.TLSCertKey, corev1.TLSPrivateKeyKey} {
		if len(secret.Data[key]) == 0 {
			t.Errorf("the Secret has no %s", key)
		}
	}
	served := servedCertificate(t, nil)
	if slices.EqualFunc(caBundles(t), installed, bytes.Equal) {
		t.Error("the operator has not changed the CA bundles")
	}

	for _, tt := range []struct{ reason, patch string }{
		{"a deleted certificate is issued again", `{"data":{"tls.crt":null}}`},
		{"a deleted CA is created again, and written to all CA bundles", `{"data":null}`},
	} {
		start := time.Now()
		mergePatch(t, certificateSecret(t), "%s", tt.patch)
		served = servedCertificate(t, served)
		t.Logf("%s: served after %s", tt.reason, time.Since(start))
	}
	operator.waitUntilReady(t)
	if got, err := certificateOf(metrics, caBundles(t)[0]); err != nil || !got.Equal(served) {
		t.Errorf("the certificate of the metrics differs from the certificate of the webhooks; error %v", err)
	}
}

// certificateOf returns the certificate of a server. It returns an error if the certificate is not valid for the
// webhooks' Service, or if no CA in the PEM bundle ca has signed it.
func certificateOf(address string, ca []byte) (*x509.Certificate, error) {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	connection, err := tls.Dial("tcp", address, &tls.Config{RootCAs: roots, ServerName: webhookService})
	if err != nil {
		return nil, err
	}
	return connection.ConnectionState().PeerCertificates[0], connection.Close()
}

// servedCertificate waits until the webhook server uses a new certificate that every CA bundle verifies, and returns
// it. before is the previous certificate. If before is nil, every certificate is new.
func servedCertificate(t *testing.T, before *x509.Certificate) *x509.Certificate {
	t.Helper()
	var served *x509.Certificate
	eventually(t, defaultTimeout, func() (bool, string) {
		for _, ca := range caBundles(t) {
			var err error
			if served, err = certificateOf(fmt.Sprintf("127.0.0.1:%d", clusterOf(t).webhookPort), ca); err != nil {
				return false, err.Error()
			}
		}
		return before == nil || !served.Equal(before), "the webhook server still uses the previous certificate"
	})
	return served
}

// caBundles returns the CA bundles of the CustomResourceDefinition of Machines and of each validating webhook.
func caBundles(t *testing.T) [][]byte {
	t.Helper()
	crd, configuration := webhookObjects(t)
	encoded, _, err := unstructured.NestedString(crd.Object, "spec", "conversion", "webhook", "clientConfig", "caBundle")
	if err != nil {
		t.Fatal(err)
	}
	ca, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		t.Fatal(err)
	}
	all := [][]byte{ca}
	for _, webhook := range configuration.Webhooks {
		all = append(all, webhook.ClientConfig.CABundle)
	}
	return all
}

func webhookObjects(t *testing.T) (*unstructured.Unstructured, *admissionregistrationv1.ValidatingWebhookConfiguration) {
	t.Helper()
	crd := &unstructured.Unstructured{}
	crd.SetAPIVersion("apiextensions.k8s.io/v1")
	crd.SetKind("CustomResourceDefinition")
	configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{}
	for name, object := range map[string]client.Object{
		"machines.useless.container.training":      crd,
		"useless-validating-webhook-configuration": configuration,
	} {
		if err := admin(t).Get(t.Context(), client.ObjectKey{Name: name}, object); err != nil {
			t.Fatal(err)
		}
	}
	return crd, configuration
}

func certificateSecret(t *testing.T) *corev1.Secret {
	t.Helper()
	secret := &corev1.Secret{}
	if err := admin(t).Get(t.Context(), client.ObjectKey{Namespace: operatorNamespace, Name: certificates.SecretName}, secret); err != nil {
		t.Fatal(err)
	}
	return secret
}

// restoreWebhooks restores the configuration of the webhooks, with the CA bundles, when the test ends. It also empties
// the Secret with the certificates.
func restoreWebhooks(t *testing.T) {
	t.Helper()
	secret := certificateSecret(t)
	crd, configuration := webhookObjects(t)
	conversion, _, err := unstructured.NestedMap(crd.Object, "spec", "conversion")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.Background()
		for _, restored := range []struct {
			object client.Object
			fields map[string]any
		}{
			{crd, map[string]any{"spec": map[string]any{"conversion": conversion}}},
			{configuration, map[string]any{"webhooks": configuration.Webhooks}},
			{secret, map[string]any{"data": nil}},
		} {
			patch, err := json.Marshal(restored.fields)
			if err != nil {
				t.Fatal(err)
			}
			if err := admin(t).Patch(ctx, restored.object.DeepCopyObject().(client.Object), client.RawPatch(types.MergePatchType, patch)); err != nil {
				t.Fatal(err)
			}
		}
		// Wait until the API server calls the webhooks. The test has stopped its operator, so no process listens at
		// their address. A call must therefore fail with "connection refused".
		err := wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, defaultTimeout, true, func(ctx context.Context) (bool, error) {
			return strings.Contains(fmt.Sprint(admin(t).Create(ctx, newMachine("default", "restored"), client.DryRunAll)), "connection refused"), nil
		})
		if err != nil {
			t.Error("the API server does not call the webhooks at their original address")
		}
	})
}
