// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package prometheus runs a real Prometheus for tests. A test that uses it must be in a folder directly below test.
package prometheus

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"container.training/useless/hack/cluster"
)

// A Server is a Prometheus that scrapes the operator every second. It evaluates the alerts of config/prometheus. Each
// alert fires after one second, so that a test does not wait for minutes.
type Server struct {
	// Alerts has the names of all alerts in config/prometheus. The value is true after Firing has returned true, or if
	// a test has set it.
	Alerts map[string]bool

	url string
	dir string // folder of the configuration, and of the files that Prometheus reads again when they change
}

// Start starts a Prometheus with the options of a ServiceMonitor. ca has the CA certificates that the ServiceMonitor
// names, and token is the bearer token. Prometheus has no targets until SetTargets is called. It stops at the end of
// the test.
func Start(t *testing.T, monitor ServiceMonitor, ca []byte, token string) *Server {
	t.Helper()
	path, err := cluster.BuildPrometheus(t.Context(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	port, err := cluster.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	rules, alerts := shortenedRules(t)
	s := &Server{Alerts: alerts, url: fmt.Sprintf("http://127.0.0.1:%d", port), dir: t.TempDir()}
	s.SetCA(t, ca)
	s.SetTargets(t, "", nil)
	s.write(t, "token", []byte(token))
	s.write(t, "rules.yaml", rules)
	s.write(t, "prometheus.yaml", scrapeConfig(t, monitor))
	process, err := cluster.StartProcess(cluster.Command{
		Name: "Prometheus", Path: path, Log: filepath.Join(s.dir, "prometheus.log"), Dir: s.dir,
		Args: []string{
			"--config.file=prometheus.yaml", "--storage.tsdb.path=data", "--web.listen-address=" + s.url[len("http://"):],
			"--log.level=warn", "--scrape.discovery-reload-interval=100ms",
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
	return s
}

// SetCA sets the CA certificates. Prometheus reads them again for each scrape.
func (s *Server) SetCA(t *testing.T, ca []byte) {
	t.Helper()
	s.write(t, "ca.crt", ca)
}

// SetTargets sets the addresses to scrape. The key is the name of the Pod. The targets get the labels namespace and
// pod, as the Prometheus operator sets them.
func (s *Server) SetTargets(t *testing.T, namespace string, addresses map[string]string) {
	t.Helper()
	groups := make([]map[string]any, 0, len(addresses))
	for pod, address := range addresses {
		labels := map[string]string{"namespace": namespace, "pod": pod}
		groups = append(groups, map[string]any{"targets": []string{address}, "labels": labels})
	}
	raw, err := json.Marshal(groups)
	if err != nil {
		t.Fatal(err)
	}
	s.write(t, "targets.json", raw)
}

// write replaces a file in one step. Otherwise, Prometheus could read an incomplete file.
func (s *Server) write(t *testing.T, name string, content []byte) {
	t.Helper()
	path := filepath.Join(s.dir, name)
	if err := errors.Join(os.WriteFile(path+".new", content, 0o600), os.Rename(path+".new", path)); err != nil {
		t.Fatal(err)
	}
}

// Query returns the number of series in the result of a query.
func (s *Server) Query(t *testing.T, query string) (series int, err error) {
	t.Helper()
	var result struct {
		Result []any `json:"result"`
	}
	err = s.get(t, "/api/v1/query?"+url.Values{"query": {query}}.Encode(), &result)
	return len(result.Result), err
}

// Firing reports whether an alert fires.
func (s *Server) Firing(t *testing.T, name string) (firing bool, err error) {
	t.Helper()
	if _, ok := s.Alerts[name]; !ok {
		return false, errors.New("config/prometheus has no such alert")
	}
	var result struct {
		Alerts []struct {
			State  string            `json:"state"`
			Labels map[string]string `json:"labels"`
		} `json:"alerts"`
	}
	err = s.get(t, "/api/v1/alerts", &result)
	for _, alert := range result.Alerts {
		firing = firing || alert.State == "firing" && alert.Labels["alertname"] == name
	}
	s.Alerts[name] = s.Alerts[name] || firing
	return firing, err
}

// ScrapeErrors returns the error of the last scrape of each target. It is "" after a successful scrape.
func (s *Server) ScrapeErrors(t *testing.T) (all []string, err error) {
	t.Helper()
	var result struct {
		ActiveTargets []struct {
			LastError string `json:"lastError"`
		} `json:"activeTargets"`
	}
	err = s.get(t, "/api/v1/targets?state=active", &result)
	for _, target := range result.ActiveTargets {
		all = append(all, target.LastError)
	}
	return all, err
}

// get reads the field data of a response of Prometheus' API.
func (s *Server) get(t *testing.T, path string, data any) error {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	answer := struct {
		Data any `json:"data"`
	}{data}
	if err := json.Unmarshal(body, &answer); err != nil || response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: status %d: %s", path, response.StatusCode, body)
	}
	return nil
}

// DashboardQueries returns the queries of each panel of the dashboard, by the panel's title. Each query returns the
// largest values of the last ten minutes, because some values, such as a rate, return to zero.
func DashboardQueries(t *testing.T) map[string][]string {
	t.Helper()
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := yaml.Unmarshal(read(t, "grafana", "dashboard.json"), &dashboard); err != nil {
		t.Fatal(err)
	}
	variables := strings.NewReplacer("$namespace", ".*", "$__rate_interval", "1m", "$__range", "10m")
	queries := map[string][]string{}
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			queries[panel.Title] = append(queries[panel.Title],
				fmt.Sprintf("max_over_time((%s)[10m:1s])", variables.Replace(target.Expr)))
		}
	}
	return queries
}
