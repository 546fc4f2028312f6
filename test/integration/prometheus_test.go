// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"container.training/useless/hack/cluster"
)

// prometheusServer is a Prometheus that scrapes one operator every second.
type prometheusServer struct {
	url    string
	ca     string          // the path of the CA certificates, which Prometheus reads again for each scrape
	alerts map[string]bool // has all alerts in config/prometheus; true if a test has seen that the alert fires
}

// A serviceMonitor has the fields of config/prometheus/service_monitor.yaml. An unknown field is an error, because this
// test would ignore it.
type serviceMonitor struct {
	APIVersion string         `json:"apiVersion"`
	Kind       string         `json:"kind"`
	Metadata   map[string]any `json:"metadata"`
	Spec       struct {
		Selector  map[string]any `json:"selector"`
		Endpoints []struct {
			Port            string `json:"port"`
			Scheme          string `json:"scheme"`
			HonorLabels     bool   `json:"honorLabels"`
			BearerTokenFile string `json:"bearerTokenFile"`
			TLSConfig       struct {
				CA struct {
					Secret corev1.SecretKeySelector `json:"secret"`
				} `json:"ca"`
				ServerName string `json:"serverName"`
			} `json:"tlsConfig"`
		} `json:"endpoints"`
	} `json:"spec"`
}

// startPrometheus starts a Prometheus that scrapes an operator on a port of this machine, with a token. The scrape has
// the options of the ServiceMonitor and the labels that the Prometheus operator adds. The alerts are those of
// config/prometheus.
func startPrometheus(t *testing.T, port int, token string) *prometheusServer {
	t.Helper()
	path, err := cluster.BuildPrometheus(t.Context(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	rules, alerts := shortenedRules(t)
	for name, content := range map[string][]byte{
		"token": []byte(token), "ca.crt": caBundles(t)[0], "rules.yaml": rules, "prometheus.yaml": scrapeConfig(t, port),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	address := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	process, err := cluster.StartProcess(cluster.Command{
		Name: "prometheus", Path: path, Log: filepath.Join(dir, "prometheus.log"), Dir: dir,
		Args: []string{
			"--config.file=prometheus.yaml", "--storage.tsdb.path=data", "--web.listen-address=" + address, "--log.level=warn",
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		process.Stop(10 * time.Second)
		if t.Failed() {
			t.Logf("the end of Prometheus' log:\n%s", process.Log())
		}
	})
	return &prometheusServer{"http://" + address, filepath.Join(dir, "ca.crt"), alerts}
}

// scrapeConfig returns a configuration of Prometheus for the operator on a port of this machine. Prometheus resolves the
// names of files relative to the folder of its configuration.
func scrapeConfig(t *testing.T, port int) []byte {
	t.Helper()
	var monitor serviceMonitor
	var service corev1.Service
	readManifest(t, &monitor, "prometheus", "service_monitor.yaml")
	readManifest(t, &service, "manager", "metrics_service.yaml")
	endpoint := monitor.Spec.Endpoints[0]
	if got := service.Spec.Ports[0].Name; got != endpoint.Port {
		t.Fatalf("the ServiceMonitor selects the port %q, but the Service has the port %q", endpoint.Port, got)
	}
	config, err := yaml.Marshal(map[string]any{
		"global":     map[string]any{"scrape_interval": "1s", "evaluation_interval": "1s"},
		"rule_files": []string{"rules.yaml"},
		"scrape_configs": []any{map[string]any{
			"job_name":      "useless-" + service.Name, // config/default adds the prefix
			"scheme":        endpoint.Scheme,
			"honor_labels":  endpoint.HonorLabels,
			"authorization": map[string]any{"credentials_file": "token"},
			"tls_config":    map[string]any{"ca_file": "ca.crt", "server_name": endpoint.TLSConfig.ServerName},
			"static_configs": []any{map[string]any{
				"targets": []string{fmt.Sprintf("127.0.0.1:%d", port)},
				"labels":  map[string]string{"namespace": operatorNamespace, "pod": "operator"},
			}},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return config
}

// A prometheusRule has the fields of config/prometheus/prometheus_rule.yaml.
type prometheusRule struct {
	APIVersion string         `json:"apiVersion"`
	Kind       string         `json:"kind"`
	Metadata   map[string]any `json:"metadata"`
	Spec       struct {
		Groups []struct {
			Name  string           `json:"name"`
			Rules []map[string]any `json:"rules"`
		} `json:"groups"`
	} `json:"spec"`
}

// alertRules returns the rules of config/prometheus, and each alert by its name.
func alertRules(t *testing.T) (rule prometheusRule, alerts map[string]map[string]any) {
	t.Helper()
	readManifest(t, &rule, "prometheus", "prometheus_rule.yaml")
	alerts = map[string]map[string]any{}
	for _, group := range rule.Spec.Groups {
		for _, r := range group.Rules {
			if name, ok := r["alert"].(string); ok {
				alerts[name] = r
			}
		}
	}
	return rule, alerts
}

// shortenedRules returns the rules of config/prometheus as a file of Prometheus, and the names of the alerts. Each alert
// fires after one second, so that the test does not wait for minutes.
func shortenedRules(t *testing.T) (file []byte, alerts map[string]bool) {
	t.Helper()
	rule, all := alertRules(t)
	alerts = map[string]bool{}
	for name, alert := range all {
		alerts[name] = false
		alert["for"] = "1s"
	}
	file, err := yaml.Marshal(rule.Spec)
	if err != nil {
		t.Fatal(err)
	}
	return file, alerts
}

// readManifest reads a file in config.
func readManifest(t *testing.T, into any, path ...string) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(append([]string{repository, "config"}, path...)...))
	if err == nil {
		err = yaml.UnmarshalStrict(raw, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// query returns the number of series in the result of a query.
func (p *prometheusServer) query(t *testing.T, query string) (series int, err error) {
	t.Helper()
	var result struct {
		Result []any `json:"result"`
	}
	err = p.get(t, "/api/v1/query?"+url.Values{"query": {query}}.Encode(), &result)
	return len(result.Result), err
}

// firing reports whether an alert fires.
func (p *prometheusServer) firing(t *testing.T, name string) (firing bool, err error) {
	t.Helper()
	var result struct {
		Alerts []struct {
			State  string            `json:"state"`
			Labels map[string]string `json:"labels"`
		} `json:"alerts"`
	}
	err = p.get(t, "/api/v1/alerts", &result)
	for _, alert := range result.Alerts {
		firing = firing || alert.State == "firing" && alert.Labels["alertname"] == name
	}
	return firing, err
}

// get reads the field data of a response of Prometheus' API.
func (p *prometheusServer) get(t *testing.T, path string, data any) error {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.url+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	status, body := answer(t, http.DefaultClient, request)
	response := struct {
		Data any `json:"data"`
	}{data}
	if err := json.Unmarshal([]byte(body), &response); err != nil || status != http.StatusOK {
		return fmt.Errorf("%s: status %d: %s", path, status, body)
	}
	return nil
}
