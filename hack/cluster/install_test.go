// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"crypto/tls"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"
)

// testInstall installs the manifests twice and checks that the API server calls the webhook, which runs in this
// process.
func testInstall(t *testing.T, cp *ControlPlane, client kubernetes.Interface) {
	server := serveRefusals(t)
	objects, err := ReadManifests("testdata/install.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := Install(t.Context(), cp.Config, objects, server); err != nil {
			t.Fatal(err)
		}
	}
	out, err := cp.Kubectl(t.Context(), "get", "gadgets", "-n", "installed", "-o", "name").Output()
	if err != nil || strings.Count(string(out), "gadget.test.useless.container.training/gadget-") != 2 {
		t.Errorf("want two gadgets, one from each installation: error %v, got\n%s", err, out)
	}
	if _, err := client.CoreV1().ConfigMaps("default").Get(t.Context(), "without-namespace", metav1.GetOptions{}); err != nil {
		t.Errorf("object without a namespace: %v", err)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "refused"}}
	await(t, "the webhook to be called", func() bool { // the API server starts to call a new webhook with a delay
		_, err := client.CoreV1().Secrets("installed").Create(t.Context(), secret,
			metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err != nil && strings.Contains(err.Error(), "denied the request: called at /refuse")
	})
}

// serveRefusals starts a webhook server that denies every request. Its message contains the URL path.
func serveRefusals(t *testing.T) WebhookServer {
	t.Helper()
	dir := t.TempDir()
	ca, err := ServingCert(dir)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := tls.LoadX509KeyPair(filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"))
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		review.Response = &admissionv1.AdmissionResponse{
			UID:    review.Request.UID,
			Result: &metav1.Status{Message: "called at " + r.URL.Path},
		}
		_ = json.NewEncoder(w).Encode(review)
	}))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
	server.StartTLS()
	t.Cleanup(server.Close)
	return WebhookServer{URL: server.URL, CA: ca}
}

func TestRedirect(t *testing.T) {
	const service = `{"service": {"name": "webhook", "namespace": "installed", "path": "/convert"}}`
	const direct = `{"url": "https://127.0.0.1:9443/convert", "caBundle": "Q0E="}`
	for _, test := range []struct {
		reason       string
		server       WebhookServer
		object, want string
	}{{
		reason: "every webhook of a configuration is redirected",
		server: WebhookServer{URL: "https://127.0.0.1:9443", CA: []byte("CA")},
		object: `{"webhooks": [{"name": "a", "clientConfig": ` + service + `}, {"name": "b", "clientConfig": ` + service + `}]}`,
		want:   `{"webhooks": [{"name": "a", "clientConfig": ` + direct + `}, {"name": "b", "clientConfig": ` + direct + `}]}`,
	}, {
		reason: "a conversion webhook is redirected",
		server: WebhookServer{URL: "https://127.0.0.1:9443", CA: []byte("CA")},
		object: `{"spec": {"conversion": {"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"], "clientConfig": ` + service + `}}}}`,
		want:   `{"spec": {"conversion": {"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"], "clientConfig": ` + direct + `}}}}`,
	}, {
		reason: "a conversion without a webhook stays unchanged",
		server: WebhookServer{URL: "https://127.0.0.1:9443", CA: []byte("CA")},
		object: `{"spec": {"conversion": {"strategy": "None"}}}`,
		want:   `{"spec": {"conversion": {"strategy": "None"}}}`,
	}, {
		reason: "a webhook with a URL stays unchanged",
		server: WebhookServer{URL: "https://127.0.0.1:9443", CA: []byte("CA")},
		object: `{"webhooks": [{"name": "a", "clientConfig": {"url": "https://example.test/"}}]}`,
		want:   `{"webhooks": [{"name": "a", "clientConfig": {"url": "https://example.test/"}}]}`,
	}, {
		reason: "without a server the Services stay unchanged",
		object: `{"webhooks": [{"name": "a", "clientConfig": ` + service + `}]}`,
		want:   `{"webhooks": [{"name": "a", "clientConfig": ` + service + `}]}`,
	}} {
		t.Run(test.reason, func(t *testing.T) {
			object := &unstructured.Unstructured{Object: parse(t, test.object)}
			redirect(object, test.server)
			if diff := cmp.Diff(parse(t, test.want), object.Object); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func parse(t *testing.T, text string) (object map[string]any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &object); err != nil {
		t.Fatal(err)
	}
	return object
}

func TestReadManifests(t *testing.T) {
	dir := t.TempDir()
	writeProgram(t, filepath.Join(dir, "kustomization.yaml"), "resources: [second.yaml, first.yaml]\n")
	writeProgram(t, filepath.Join(dir, "first.yaml"), "{kind: A}\n---\n# nothing\n---\n{kind: B}\n")
	writeProgram(t, filepath.Join(dir, "second.yaml"), "{kind: C}\n")
	objects, err := ReadManifests(dir)
	if err != nil {
		t.Fatal(err)
	}
	var kinds string
	for _, object := range objects {
		kinds += object.GetKind()
	}
	if kinds != "CAB" {
		t.Errorf("got %s, want CAB, the order in kustomization.yaml", kinds)
	}
	if _, err := ReadManifests(filepath.Join(dir, "third.yaml")); err == nil {
		t.Error("no error for a missing file")
	}
}
