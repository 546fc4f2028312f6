// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"crypto/x509"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"container.training/useless/test/internal/prometheus"
)

// metricsMonitor returns the ServiceMonitor for the operator in namespace, and the CA certificates that it names.
// There is a ServiceMonitor for OLM, and another one for all other installations. metricsMonitor selects the
// ServiceMonitor whose Secret exists.
func metricsMonitor(t *testing.T, namespace string) (monitor prometheus.ServiceMonitor, ca []byte) {
	t.Helper()
	for _, folder := range []string{"prometheus", "olm/prometheus"} {
		monitor := renderedMonitor(t, folder)
		verification := &monitor.Spec.Endpoints[0].TLSConfig
		key := verification.CA.Secret
		secrets := get[corev1.SecretList](t, "secrets", "-n", namespace, "--field-selector=metadata.name="+key.Name).Items
		if len(secrets) == 0 {
			continue
		}
		verification.ServerName = strings.Replace(verification.ServerName, "."+system+".", "."+namespace+".", 1)
		if !x509.NewCertPool().AppendCertsFromPEM(secrets[0].Data[key.Key]) {
			t.Fatalf("the Secret %s has no certificate %s", key.Name, key.Key)
		}
		return monitor, secrets[0].Data[key.Key]
	}
	t.Fatal("no ServiceMonitor has an existing Secret")
	return monitor, nil
}

// renderedMonitor returns the ServiceMonitor in a folder of config.
func renderedMonitor(t *testing.T, folder string) prometheus.ServiceMonitor {
	t.Helper()
	manifests := stdout(t, "kubectl", "kustomize", absolute(t, repository, "config", folder))
	for manifest := range strings.SplitSeq(manifests, "\n---\n") {
		if parse(t, manifest).GetKind() == "ServiceMonitor" {
			return prometheus.ReadServiceMonitor(t, []byte(manifest))
		}
	}
	t.Fatalf("config/%s has no ServiceMonitor", folder)
	return prometheus.ServiceMonitor{}
}

// metricsToken returns a token of a new ServiceAccount that may read metrics.
func metricsToken(t *testing.T, namespace string) string {
	t.Helper()
	must(t, "kubectl", "create", "serviceaccount", "-n", namespace, "scraper")
	must(t, "kubectl", "create", "clusterrolebinding", namespace, "--clusterrole=useless-metrics-reader", "--serviceaccount="+namespace+":scraper")
	t.Cleanup(func() { cleanUp(t, "clusterrolebinding", namespace) })
	return strings.TrimSpace(must(t, "kubectl", "create", "token", "-n", namespace, "scraper"))
}

// scraper is a Prometheus in the node's network that scrapes the operator in a namespace.
type scraper struct {
	*prometheus.Server
	namespace string
	pods      int    // the number of the operator's Pods
	port      string // the name of the Service's port
	ca        []byte
}

// startPrometheus starts a Prometheus that scrapes the operator with the options of the ServiceMonitor. It returns
// when Prometheus reads the metrics of all Pods.
func startPrometheus(t *testing.T, namespace string, pods int) *scraper {
	t.Helper()
	if node == "" {
		t.Skip("Prometheus needs the network of the Pods; only make e2e without E2E_KUBECONFIG has it")
	}
	monitor, ca := metricsMonitor(t, namespace)
	server := prometheus.Start(t, monitor, ca, metricsToken(t, newNamespace(t, "prometheus")))
	p := &scraper{server, namespace, pods, monitor.Spec.Endpoints[0].Port, ca}
	p.awaitUp(t)
	return p
}

// awaitUp waits until Prometheus reads the metrics of all Pods, and has no other target.
func (p *scraper) awaitUp(t *testing.T) {
	t.Helper()
	eventually(t, time.Minute, func() string {
		p.discover(t)
		return p.missing(t, fmt.Sprintf("count(up == 1) == %[1]d and count(up) == %[1]d", p.pods))
	})
}

// discover sets Prometheus' targets to the current endpoints of the operator's Services.
func (p *scraper) discover(t *testing.T) {
	t.Helper()
	addresses := map[string]string{}
	for _, slice := range get[discoveryv1.EndpointSliceList](t, "-n", p.namespace, "endpointslices", "-l", "app.kubernetes.io/name=useless-operator").Items {
		for _, port := range slice.Ports {
			if *port.Name != p.port {
				continue
			}
			for _, endpoint := range slice.Endpoints {
				addresses[endpoint.TargetRef.Name] = net.JoinHostPort(endpoint.Addresses[0], fmt.Sprint(*port.Port))
			}
		}
	}
	p.SetTargets(t, p.namespace, addresses)
}

// missing returns "" if a query has a result.
func (p *scraper) missing(t *testing.T, query string) string {
	t.Helper()
	if series, err := p.Query(t, query); series > 0 && err == nil {
		return ""
	} else if err != nil {
		return err.Error()
	}
	failures, err := p.ScrapeErrors(t)
	return fmt.Sprintf("%s has no result; the errors of the last scrapes are %q, %v", query, failures, err)
}

// awaitSeries waits until a query has a result.
func (p *scraper) awaitSeries(t *testing.T, query string) {
	t.Helper()
	eventually(t, time.Minute, func() string { return p.missing(t, query) })
}

// awaitAlert waits until an alert with matching labels fires. The argument labels has PromQL matchers.
func (p *scraper) awaitAlert(t *testing.T, name, labels string) {
	t.Helper()
	eventually(t, time.Minute, func() string { return p.silent(t, name) })
	p.awaitSeries(t, fmt.Sprintf(`ALERTS{alertname=%q, alertstate="firing", %s}`, name, labels))
}

// in returns a PromQL matcher for the label namespace of an alert.
func in(namespace string) string { return fmt.Sprintf("namespace=%q", namespace) }

// silent returns "" if an alert fires.
func (p *scraper) silent(t *testing.T, alert string) string {
	t.Helper()
	if firing, err := p.Firing(t, alert); !firing || err != nil {
		return fmt.Sprintf("the alert %s does not fire, error %v", alert, err)
	}
	return ""
}

// checkPrometheus makes alerts fire, and queries all panels of the dashboard. The panels get their values from provoke,
// which makes the alerts fire, and from the checks that run in parallel. At the end, checkPrometheus replaces the CA
// certificate for a short time, and all scrapes must fail.
func checkPrometheus(t *testing.T, namespace string) {
	t.Helper()
	p := startPrometheus(t, namespace, 2)
	provoked := p.provoke(t)
	for alert, labels := range sharedAlerts(namespace, provoked) {
		p.awaitAlert(t, alert, labels)
	}
	panels := prometheus.DashboardQueries(t)
	for _, title := range slices.Sorted(maps.Keys(panels)) {
		for _, query := range panels[title] {
			if _, err := p.Query(t, query); err != nil {
				t.Errorf("panel %q: %v", title, err)
			}
		}
		if !slices.Contains(withoutValue, title) {
			p.awaitPanels(t, title)
		}
	}

	p.SetCA(t, []byte(get[corev1.ConfigMap](t, "-n", namespace, "configmap", "kube-root-ca.crt").Data["ca.crt"]))
	eventually(t, time.Minute, func() string {
		failures, err := p.ScrapeErrors(t)
		if len(failures) != 2 || slices.ContainsFunc(failures, func(text string) bool { return !strings.Contains(text, "x509: ") }) {
			return fmt.Sprintf("want two scrapes that fail because of the wrong CA, got the errors %q, %v", failures, err)
		}
		return p.missing(t, "count(up == 0) == 2")
	})
	p.SetCA(t, p.ca)
	p.awaitUp(t)
}

// checkPrometheus does not check the values of these panels. optionalPanels show optional controllers, and TestHelm
// checks them. checkMonitoring checks exclusivePanels and busyPanels.
var (
	optionalPanels  = []string{"ingress: annotations", "ingress: changes by others", "podcount: labels"}
	exclusivePanels = []string{"Failed usage requests", "Webhook errors"}
	busyPanels      = []string{"Work queue", "Busy workers"} // the queue is empty first
	withoutValue    = slices.Concat(optionalPanels, exclusivePanels, busyPanels)
)

// awaitPanels waits until each query of the panels has a result above zero.
func (p *scraper) awaitPanels(t *testing.T, titles ...string) {
	t.Helper()
	panels := prometheus.DashboardQueries(t)
	for _, title := range titles {
		if len(panels[title]) == 0 {
			t.Errorf("the dashboard has no panel %q", title)
		}
		for _, query := range panels[title] {
			p.awaitSeries(t, query+" > 0")
		}
	}
}

// checkOptionalPanels makes the optional controllers write, and changes an annotation as another client.
func checkOptionalPanels(t *testing.T) {
	t.Helper()
	p := startPrometheus(t, system, 1)
	namespace := newNamespace(t, "panels")
	mustRead(t, office+"---"+frontDoor, "kubectl", "create", "-n", namespace, "-f", "-")
	must(t, "kubectl", "wait", "-n", namespace, "ingress/front-door", "--for=jsonpath={.metadata.annotations.foo}=bar", "--timeout=1m")
	must(t, "kubectl", "annotate", "-n", namespace, "--overwrite", "ingress/front-door", "foo=theirs")
	p.awaitPanels(t, optionalPanels...)
}
