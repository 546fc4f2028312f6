// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package prometheus

import (
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// A ServiceMonitor has the fields of config/prometheus/service_monitor.yaml. An unknown field is an error, because
// Start would ignore it.
type ServiceMonitor struct {
	APIVersion string         `json:"apiVersion"`
	Kind       string         `json:"kind"`
	Metadata   map[string]any `json:"metadata"`
	Spec       struct {
		Selector  map[string]any `json:"selector"`
		Endpoints []Endpoint     `json:"endpoints"`
	} `json:"spec"`
}

// An Endpoint is an endpoint of a ServiceMonitor.
type Endpoint struct {
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
}

// ReadServiceMonitor decodes a ServiceMonitor.
func ReadServiceMonitor(t *testing.T, manifest []byte) (monitor ServiceMonitor) {
	t.Helper()
	if err := yaml.UnmarshalStrict(manifest, &monitor); err != nil {
		t.Fatal(err)
	}
	return monitor
}

// DefaultServiceMonitor returns config/prometheus/service_monitor.yaml.
func DefaultServiceMonitor(t *testing.T) ServiceMonitor {
	t.Helper()
	return ReadServiceMonitor(t, read(t, "prometheus", "service_monitor.yaml"))
}

// scrapeConfig returns a configuration of Prometheus with the options of a ServiceMonitor. Prometheus resolves the
// names of files relative to the folder of its configuration.
func scrapeConfig(t *testing.T, monitor ServiceMonitor) []byte {
	t.Helper()
	var service corev1.Service
	if err := yaml.UnmarshalStrict(read(t, "manager", "metrics_service.yaml"), &service); err != nil {
		t.Fatal(err)
	}
	endpoint := monitor.Spec.Endpoints[0]
	if got := service.Spec.Ports[0].Name; got != endpoint.Port {
		t.Fatalf("the ServiceMonitor selects the port %q, but the Service has the port %q", endpoint.Port, got)
	}
	config, err := yaml.Marshal(map[string]any{
		"global":     map[string]any{"scrape_interval": "1s", "evaluation_interval": "1s"},
		"rule_files": []string{"rules.yaml"},
		"scrape_configs": []any{map[string]any{
			"job_name":        "useless-" + service.Name, // config/core adds the prefix
			"scheme":          endpoint.Scheme,
			"honor_labels":    endpoint.HonorLabels,
			"authorization":   map[string]any{"credentials_file": "token"},
			"tls_config":      map[string]any{"ca_file": "ca.crt", "server_name": endpoint.TLSConfig.ServerName},
			"file_sd_configs": []any{map[string]any{"files": []string{"targets.json"}}},
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

// Alerts returns each alert of config/prometheus by its name.
func Alerts(t *testing.T) map[string]map[string]any {
	t.Helper()
	_, alerts := readRules(t)
	return alerts
}

func readRules(t *testing.T) (rule prometheusRule, alerts map[string]map[string]any) {
	t.Helper()
	if err := yaml.UnmarshalStrict(read(t, "prometheus", "prometheus_rule.yaml"), &rule); err != nil {
		t.Fatal(err)
	}
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

// shortenedRules returns the rules of config/prometheus as a rule file, and the initial value of Server.Alerts. Each
// alert fires after one second.
func shortenedRules(t *testing.T) (file []byte, alerts map[string]bool) {
	t.Helper()
	rule, all := readRules(t)
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

// read reads a file in config.
func read(t *testing.T, path ...string) []byte {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(append([]string{"..", "..", "config"}, path...)...))
	if err != nil {
		t.Fatal(err)
	}
	return raw
}
