// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"container.training/useless/api/cloudnative/v1alpha1"
	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/hack/cluster/standin"
	"container.training/useless/test/internal/prometheus"
	"container.training/useless/test/internal/slowclient"
)

// series is one line of the operator's metrics.
type series struct {
	name   string
	labels map[string]string
	value  float64
}

var (
	seriesLine  = regexp.MustCompile(`(?m)^(\w+)(?:\{(.*)\})? (\S+)$`)
	seriesLabel = regexp.MustCompile(`(\w+)="((?:[^"\\]|\\.)*)"`)
	selector    = regexp.MustCompile(`\b((?:useless|controller_runtime|leader_election)_\w+)(?:\{([^}]*)\})?`)
	matcher     = regexp.MustCompile(`(\w+)(=~?)"([^"]*)"`)
	limit       = regexp.MustCompile(`> ([\d.]+)$`)
)

// expression returns the expression of an alert.
func expression(t *testing.T, alert string) string {
	t.Helper()
	text, ok := prometheus.Alerts(t)[alert]["expr"].(string)
	if !ok {
		t.Fatalf("there is no alert %s", alert)
	}
	return text
}

// selected returns the series in metrics that the first selector of an alert's expression matches. It ignores the label
// job, because Prometheus adds this label.
func selected(t *testing.T, alert, metrics string) (found []series) {
	t.Helper()
	parts := selector.FindStringSubmatch(expression(t, alert))
	if parts == nil {
		t.Fatalf("the alert %s uses no metric of the operator", alert)
	}
	for _, line := range seriesLine.FindAllStringSubmatch(metrics, -1) {
		s := series{name: line[1], labels: map[string]string{}}
		for _, label := range seriesLabel.FindAllStringSubmatch(line[2], -1) {
			s.labels[label[1]] = label[2]
		}
		matches := s.name == parts[1]
		for _, m := range matcher.FindAllStringSubmatch(parts[2], -1) {
			pattern := m[3]
			if m[2] == "=" {
				pattern = regexp.QuoteMeta(pattern)
			}
			matches = matches && (m[1] == "job" || regexp.MustCompile("^(?:"+pattern+")$").MatchString(s.labels[m[1]]))
		}
		var err error
		if s.value, err = strconv.ParseFloat(line[3], 64); err != nil {
			t.Fatal(err)
		}
		if matches {
			found = append(found, s)
		}
	}
	return found
}

// badness returns the sum of the series that an alert selects. For histograms, it returns the number of observations
// above the limit of the alert.
func badness(t *testing.T, alert, metrics string) (sum float64) {
	t.Helper()
	for _, s := range selected(t, alert, metrics) {
		switch le := s.labels["le"]; le {
		case "", "+Inf":
			sum += s.value
		case limit.FindStringSubmatch(expression(t, alert))[1]:
			sum -= s.value
		}
	}
	return sum
}

// scrape returns the metrics of an operator that serves them without TLS on a port.
func scrape(t *testing.T, port int) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/metrics", port), nil)
	if err != nil {
		t.Fatal(err)
	}
	_, body := answer(t, http.DefaultClient, request)
	return body
}

// waitForBadness waits until an alert selects a value above zero.
func waitForBadness(t *testing.T, alert string, port int) {
	t.Helper()
	eventually(t, defaultTimeout, func() (bool, string) {
		metrics := scrape(t, port)
		return badness(t, alert, metrics) > 0, fmt.Sprintf("%s selects %v", alert, selected(t, alert, metrics))
	})
}

// TestAlertCauses provokes the causes of alerts, and reads the metrics that the expressions of these alerts select.
// test/rules tests the expressions. TestDashboard makes all alerts fire in a real Prometheus, but make test does not
// run TestDashboard.
func TestAlertCauses(t *testing.T) {
	useExclusiveCluster(t)
	port, dir := freePort(t), copyCertificate(t)
	lease := holdLease(t)
	operator := startedOperator(t, "--leader-elect", "--namespace="+operatorNamespace, "--webhook-cert-dir="+dir,
		fmt.Sprintf("--metrics-bind-address=127.0.0.1:%d", port), "--metrics-secure=false")
	checkLeader(t, port, 0)
	if err := admin(t).Delete(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
	checkLeader(t, port, 1)
	namespace := newNamespace(t)
	causes := map[string]func(){
		"UselessOperatorFails":        func() { failFlips(t, namespace) },
		"UselessScheduleInvalid":      func() { createInvalidSchedule(t, namespace) },
		"UselessScheduleOverridden":   func() { testOverridden(t, namespace) },
		"UselessScheduleFails":        func() { testScaleRefused(t, newNamespace(t)) },
		"UselessVirtualMachineFailed": func() { createConflict(t, namespace) },
		"UselessMachinesNotScaled":    func() { exceedQuota(t, newNamespace(t)) },
		"UselessWebhookFails":         func() { blockWebhook(t) },
		"UselessWebhookSlow":          func() {}, // the requests that blocked the webhook are slow
	}
	healthy := scrape(t, port)
	for alert := range causes {
		if n := badness(t, alert, healthy); n > 0 {
			t.Errorf("before its cause, %s selects %v", alert, n)
		}
	}
	for alert, cause := range causes {
		t.Logf("cause of %s", alert)
		cause()
	}
	for alert := range causes {
		t.Run(alert, func(t *testing.T) { waitForBadness(t, alert, port) })
	}
	t.Run("UselessCertificateExpires", func(t *testing.T) { testCertificateExpires(t, port, dir) })
	lintMetrics(t, scrape(t, port))
	operator.Kill()
	if metrics := scrape(t, port); len(selected(t, "UselessNoLeader", metrics)) > 0 {
		t.Errorf("the operator still serves metrics after it was killed:\n%s", metrics)
	}
	// These alerts are not in causes. One of them is UselessFlipsLate, because a rejected flip does not count as late.
	// TestLifecycle reads the metric of UselessFlipsLate.
	known := []string{"UselessFlipsLate", "UselessOperatorDown", "UselessNoLeader", "UselessCertificateExpires", "UselessScheduleLate", "UselessMigrationFails"}
	for alert := range prometheus.Alerts(t) {
		if causes[alert] == nil && !slices.Contains(known, alert) {
			t.Errorf("no test provokes %s", alert)
		}
	}
}

// lintMetrics checks the names, types and help texts of the operator's own metrics, like promtool check metrics.
func lintMetrics(t *testing.T, metrics string) {
	t.Helper()
	problems, err := promlint.New(strings.NewReader(metrics)).Lint()
	if err != nil {
		t.Error(err)
	}
	for _, problem := range problems {
		if strings.HasPrefix(problem.Metric, "useless_") {
			t.Errorf("%s: %s", problem.Metric, problem.Text)
		}
	}
}

// copyCertificate copies the webhooks' certificate to a new folder, so that a test can replace it.
func copyCertificate(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for _, name := range []string{"tls.crt", "tls.key"} {
		content, err := os.ReadFile(filepath.Join(clusterOf(t).webhookDir, name))
		if err != nil {
			t.Fatal(err)
		}
		writeFile(t, filepath.Join(dir, name), content)
	}
	return dir
}

// holdLease makes another process the leader. It replaces the Lease of earlier tests.
func holdLease(t *testing.T) *coordinationv1.Lease {
	t.Helper()
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: operatorNamespace, Name: "leader.useless.container.training"},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: new("another-process"), LeaseDurationSeconds: new(int32(3600)),
			AcquireTime: new(metav1.NowMicro()), RenewTime: new(metav1.NowMicro()),
		},
	}
	if err := client.IgnoreNotFound(admin(t).Delete(t.Context(), lease.DeepCopy())); err != nil {
		t.Fatal(err)
	}
	if err := admin(t).Create(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
	return lease
}

func checkLeader(t *testing.T, port int, want float64) {
	t.Helper()
	eventually(t, defaultTimeout, func() (bool, string) {
		found := selected(t, "UselessNoLeader", scrape(t, port))
		return len(found) == 1 && found[0].value == want, fmt.Sprintf("UselessNoLeader selects %v, want %v", found, want)
	})
}

// failFlips makes the API server reject a flip.
func failFlips(t *testing.T, namespace string) {
	t.Helper()
	flippingMachine(t, namespace, "m", 1, 4, 0)
	switches := recordSwitches(t, namespace)
	turnUp(t, namespace, "m-0")
	allow := forbid(t, namespace, "m-0", v1beta1.PositionDown)
	time.Sleep(6 * time.Second) // the flip is due after 4 s
	allow()
	switches.untilObject(t, "m-0", "is turned down", flipped)
}

func createInvalidSchedule(t *testing.T, namespace string) {
	t.Helper()
	createDeployment(t, namespace, "invalid", func(d *appsv1.Deployment) {
		d.Annotations[v1beta1.StopScheduleAnnotation] = "Mon-Fri 25:00"
	})
}

// createConflict creates a VirtualMachine whose Pod has the name of another Pod.
func createConflict(t *testing.T, namespace string) {
	t.Helper()
	if err := admin(t).Create(t.Context(), newPod(namespace, "vm-vm", nil)); err != nil {
		t.Fatal(err)
	}
	vm := createVirtualMachine(t, namespace, "vm", standin.Fate{})
	waitForReason(t, vm, v1alpha1.PhaseFailed, v1alpha1.ReasonNameConflict)
}

// exceedQuota creates a Machine with more switches than a quota allows.
func exceedQuota(t *testing.T, namespace string) {
	t.Helper()
	createQuota(t, namespace, 3)
	createMachine(t, namespace, "m", func(spec *v1beta1.MachineSpec) { spec.Switches.Count = 5 })
	waitForQuotaExceeded(t, namespace, "m")
}

// blockWebhook sends reviews to the operator's webhook server, but never sends the bodies. It waits for the answers.
// Some answers have status 503.
func blockWebhook(t *testing.T) {
	t.Helper()
	slowclient.Block(t, fmt.Sprintf("127.0.0.1:%d", clusterOf(t).webhookPort))
}

// testCertificateExpires replaces the webhooks' certificate by a certificate that expires in ten hours. The metric must
// show the new time.
func testCertificateExpires(t *testing.T, port int, dir string) {
	left := func() time.Duration {
		found := selected(t, "UselessCertificateExpires", scrape(t, port))
		if len(found) != 1 {
			t.Fatalf("got %v, want the time of one certificate", found)
		}
		return time.Until(time.Unix(int64(found[0].value), 0))
	}
	if left() < 20*time.Hour {
		t.Fatalf("the first certificate expires in %s", left())
	}
	replaceCertificate(t, dir, 10*time.Hour)
	eventually(t, defaultTimeout, func() (bool, string) {
		return (left() - 10*time.Hour).Abs() < time.Hour, fmt.Sprintf("the certificate expires in %s", left())
	})
}

// replaceCertificate replaces the certificate in a folder by a self-signed certificate that expires after a duration.
// It returns the new certificate.
func replaceCertificate(t *testing.T, dir string, expiry time.Duration) (certificate []byte) {
	t.Helper()
	certificate, key := issue(t, time.Now().Add(expiry))
	writeFile(t, filepath.Join(dir, "tls.key"), key)
	writeFile(t, filepath.Join(dir, "tls.crt"), certificate)
	return certificate
}

// issue returns a self-signed certificate of the webhook Service, and its key.
func issue(t *testing.T, notAfter time.Time) (certificate, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: notAfter, DNSNames: []string{webhookService},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	raw, keyErr := x509.MarshalPKCS8PrivateKey(private)
	if err := errors.Join(err, keyErr); err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})
}

func writeFile(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}
