// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/cert"
)

// system is the namespace of the operator.
const system = "useless-system"

// TestInstall installs dist/install.yaml, without OLM. The operator issues its own certificates.
func TestInstall(t *testing.T) {
	const manifest = "dist/install.yaml"
	t.Cleanup(func() { uninstall(t, withImages(t, filepath.Join(repository, manifest))) })
	output := runDocumented(t, "sed 's|container.training/", manifest, absolute(t, repository, manifest))
	if strings.Contains(output, "Warning") {
		t.Errorf("the API server warns:\n%s", output)
	}

	checkOperator(t, system)
	t.Run("resources", func(t *testing.T) { checkResources(t, system) })
	t.Run("monitoring", checkMonitoring)
	t.Run("replica", func(t *testing.T) { checkReplicaGone(t, system) })
	t.Run("kills", func(t *testing.T) { checkKills(t, system) })
	t.Run("API server", func(t *testing.T) { checkAPIServerRestart(t, system) })
	t.Run("upgrade", checkRollout)
	t.Run("wrong order", checkWrongOrder)
}

// checkRollout replaces both replicas one after the other, as an upgrade does. Meanwhile, a client uses both versions.
func checkRollout(t *testing.T) {
	t.Helper()
	user := newNamespace(t, "rollout")
	mustRead(t, newMachine, "kubectl", "create", "-n", user, "-f", "-")
	polls := workInBothVersions(t, user)
	must(t, "kubectl", "rollout", "restart", "-n", system, "deployment/useless-controller-manager")
	must(t, "kubectl", "rollout", "status", "-n", system, "deployment/useless-controller-manager", "--timeout=2m")
	operatorPods(t, system) // waits until the old Pods have stopped, because they serve until then
	for _, p := range polls {
		p.mustNotHaveFailed(t)
	}
}

// checkWrongOrder removes the operator while a machine exists. Then it removes the finalizers, as documented.
func checkWrongOrder(t *testing.T) {
	t.Helper()
	// Machines of other tests can only be deleted while the operator runs. The namespace controller may delete them
	// late, because after the restart of the API server it retries its watch with a backoff.
	must(t, "kubectl", "wait", "--for=delete", newMachines, "--all", "--all-namespaces", "--timeout=2m")
	user := newNamespace(t, "wrong-order")
	mustRead(t, newMachine, "kubectl", "create", "-n", user, "-f", "-")
	must(t, "kubectl", "wait", "-n", user, "--for=condition=Ready", "machine/machine", "--timeout=30s")
	must(t, "kubectl", "delete", "namespace", system, "--timeout=2m")
	if output, err := try(t, "", "kubectl", "get", "-n", user, oldMachines, "machine"); err == nil {
		t.Errorf("a machine was converted without an operator:\n%s", output)
	}
	if output, err := try(t, "", "kubectl", "delete", "-n", user, newMachines, "machine", "--timeout=5s"); err == nil {
		t.Errorf("a machine was deleted without an operator:\n%s", output)
	}
	must(t, "kubectl", "patch", "-n", user, newMachines, "machine", "--type=merge", "-p", `{"metadata":{"finalizers":null}}`)
	must(t, "kubectl", "wait", "-n", user, "--for=delete", newMachines+"/machine", "--timeout=30s")
}

// withImages reads manifests and replaces the published image names with names in the test's registry. On the node of
// make e2e, it keeps the published names, because this node pulls every image from the test's registry.
func withImages(t *testing.T, path string) string {
	t.Helper()
	manifests, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(string(manifests), "container.training/useless-operator:v"+currentVersion, operatorImage())
}

// operatorImage returns the name with which the cluster pulls the operator's image from the test's registry. On the
// node of make e2e, it is the published name.
func operatorImage() string {
	if node != "" {
		return "container.training/useless-operator:v" + currentVersion
	}
	return registry + "/useless-operator:v" + currentVersion
}

// folder returns the path of a folder from an environment variable.
func folder(t *testing.T, variable string) string {
	t.Helper()
	path := os.Getenv(variable)
	if path == "" {
		t.Fatal(variable, "is not set: run make e2e")
	}
	return path
}

// uninstall removes the operator in the documented order: first the objects that have its finalizers. If the test has
// failed, it first writes the state of the cluster to a file.
func uninstall(t *testing.T, installation string) {
	t.Helper()
	if t.Failed() {
		writeCluster(t)
	}
	for _, kind := range crds {
		cleanUp(t, kind, "--all", "--all-namespaces", "--timeout=2m")
	}
	if output, err := try(t, installation, "kubectl", "delete", "--ignore-not-found", "--timeout=2m", "-f", "-"); err != nil {
		t.Errorf("uninstall: %v\n%s", err, output)
	}
}

const certificates = "useless-webhook-server-cert"

// checkRotation makes the operator renew a certificate that expires soon. Meanwhile, a client must be able to use both
// versions. If whileExpiring is not nil, the operator cannot write the new certificate until whileExpiring returns.
func checkRotation(t *testing.T, whileExpiring func()) {
	t.Helper()
	namespace := newNamespace(t, "rotation")
	mustRead(t, newMachine, "kubectl", "create", "-n", namespace, "-f", "-")
	must(t, "kubectl", "wait", "-n", namespace, "--for=condition=Ready", "machine/machine", "--timeout=30s")
	secret := get[corev1.Secret](t, "-n", system, "secret", certificates)
	expiring := expiringPair(t, secret.Data)
	patch, err := json.Marshal(map[string]any{"data": expiring})
	if err != nil {
		t.Fatal(err)
	}

	polls := workInBothVersions(t, namespace)
	renew := func() {}
	if whileExpiring != nil {
		allow := rejectOperator(t, system, "", "secrets", certificates)
		renew = func() { whileExpiring(); allow() }
	}
	must(t, "kubectl", "patch", "-n", system, "secret", certificates, "--type=merge", "-p", string(patch))
	renew()
	var renewed []byte
	eventually(t, time.Minute, func() string {
		renewed = get[corev1.Secret](t, "-n", system, "secret", certificates).Data[corev1.TLSCertKey]
		if expires := parseCertificate(t, renewed).NotAfter; time.Until(expires) < 24*time.Hour {
			return fmt.Sprintf("the certificate was not renewed; it expires at %s", expires)
		}
		return ""
	})
	for _, pod := range operatorPods(t, system) {
		address := forward(t, system, "pod/"+pod.Name, 9443)
		eventually(t, time.Minute, func() string {
			connection, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true})
			if err != nil {
				return err.Error()
			}
			defer connection.Close()
			if !connection.ConnectionState().PeerCertificates[0].Equal(parseCertificate(t, renewed)) {
				return pod.Name + " does not serve the new certificate"
			}
			return ""
		})
	}
	// The API server keeps its connections to the Pod. After the deletion of the Pod, it opens new connections and
	// verifies the new certificate.
	must(t, "kubectl", "delete", "pod", "-n", system, leader(t, system))
	must(t, "kubectl", "rollout", "status", "-n", system, "deployment/useless-controller-manager", "--timeout=2m")
	for _, p := range polls {
		p.mustNotHaveFailed(t)
	}
}

// expiringPair returns a certificate and its key. The certificate is like the one in data, but expires in an hour.
func expiringPair(t *testing.T, data map[string][]byte) map[string][]byte {
	t.Helper()
	authority, err := tls.X509KeyPair(data["ca.crt"], data["ca.key"])
	if err != nil {
		t.Fatal(err)
	}
	serving, err := tls.X509KeyPair(data[corev1.TLSCertKey], data[corev1.TLSPrivateKeyKey])
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := *serving.Leaf
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.NotAfter = time.Now().Add(time.Hour)
	template.PublicKey, template.SignatureAlgorithm = nil, x509.UnknownSignatureAlgorithm
	der, err := x509.CreateCertificate(rand.Reader, &template, authority.Leaf, key.Public(), authority.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return map[string][]byte{
		corev1.TLSCertKey:       pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		corev1.TLSPrivateKeyKey: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}),
	}
}

func parseCertificate(t *testing.T, text []byte) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode(text)
	if block == nil {
		t.Fatal("the Secret has no certificate")
	}
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return certificate
}

// TestCertManager installs the overlay for cert-manager. The cluster has only cert-manager's CustomResourceDefinitions.
// So the test issues the certificate and injects its CA, as cert-manager's controllers do.
func TestCertManager(t *testing.T) {
	definitions := folder(t, "CERT_MANAGER_CRDS")
	must(t, "kubectl", "apply", "--server-side", "-f", definitions)
	t.Cleanup(func() { cleanUp(t, "-f", definitions) })
	must(t, "kubectl", "wait", "--for=condition=Established", "-f", definitions, "--timeout=1m")
	overlay := stdout(t, "kubectl", "kustomize", absolute(t, repository, "config", "certmanager"))
	overlay = strings.ReplaceAll(overlay, "container.training/useless-operator:v"+currentVersion, operatorImage())
	t.Cleanup(func() { uninstall(t, overlay) })
	if output := mustRead(t, overlay, "kubectl", "apply", "-f", "-"); strings.Contains(output, "Warning") {
		t.Errorf("the API server warns:\n%s", output)
	}
	must(t, "kubectl", "get", "-n", system, "issuer/useless-selfsigned-issuer")
	const name = "useless-serving-cert"
	injectCA(t, overlay, system+"/"+name, issueCertificate(t, name))
	must(t, "kubectl", "rollout", "status", "-n", system, "deployment/useless-controller-manager", "--timeout=2m")
	user := newNamespace(t, "cert-manager")
	mustRead(t, newMachine, "kubectl", "create", "-n", user, "-f", "-")
	turnUpAndWait(t, user)
	must(t, "kubectl", "get", "-n", user, oldMachines, "machine")
}

// issueCertificate creates the Secret that a Certificate of cert-manager names. It returns the CA certificate of this
// Secret.
func issueCertificate(t *testing.T, name string) (ca []byte) {
	t.Helper()
	certificate := get[struct {
		Spec struct {
			DNSNames   []string `json:"dnsNames"`
			SecretName string   `json:"secretName"`
		} `json:"spec"`
	}](t, "-n", system, "certificate", name)
	names := certificate.Spec.DNSNames
	chain, key, err := cert.GenerateSelfSignedCertKey(names[0], nil, names[1:])
	if err != nil {
		t.Fatal(err)
	}
	secret, err := json.Marshal(corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: certificate.Spec.SecretName},
		Type:       corev1.SecretTypeTLS,
		Data:       map[string][]byte{"ca.crt": chain, corev1.TLSCertKey: chain, corev1.TLSPrivateKeyKey: key},
	})
	if err != nil {
		t.Fatal(err)
	}
	mustRead(t, string(secret), "kubectl", "create", "-f", "-")
	return chain
}

// injectCA writes a CA certificate into each object of manifests that has cert-manager's annotation for a Certificate.
func injectCA(t *testing.T, manifests, certificate string, ca []byte) {
	t.Helper()
	encoded := base64.StdEncoding.EncodeToString(ca)
	injected := 0
	for manifest := range strings.SplitSeq(manifests, "\n---\n") {
		object := parse(t, manifest)
		if object.GetAnnotations()["cert-manager.io/inject-ca-from"] != certificate {
			continue
		}
		paths := []string{"/spec/conversion/webhook"}
		if object.GetKind() == "ValidatingWebhookConfiguration" {
			paths = []string{"/webhooks/0", "/webhooks/1"}
		}
		var patch []string
		for _, path := range paths {
			patch = append(patch, fmt.Sprintf(`{"op":"add","path":"%s/clientConfig/caBundle","value":%q}`, path, encoded))
		}
		must(t, "kubectl", "patch", object.GetKind(), object.GetName(), "--type=json", "-p", "["+strings.Join(patch, ",")+"]")
		injected++
	}
	if injected != 2 {
		t.Errorf("%d objects need the CA certificate, want a webhook configuration and a CustomResourceDefinition", injected)
	}
}

// absolute returns the absolute path of a file, because commands run in another folder.
func absolute(t *testing.T, elements ...string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join(elements...))
	if err != nil {
		t.Fatal(err)
	}
	return path
}
