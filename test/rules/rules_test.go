// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package rules tests the alerts in config/prometheus with promtool. Tests in test/integration check that the operator
// has the metrics that the alerts use.
package rules

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"container.training/useless/test/internal/executable"
	"container.training/useless/test/internal/installer"
)

const (
	runbooks = "https://container.training/useless/docs/runbooks/alerts.md#"
	tests    = "alerts.yaml" // promtool reads the rules from the file rules.yaml in the same folder
)

// alert is a rule of a PrometheusRule.
type alert struct {
	Alert, Expr string
	Labels      map[string]string
	Annotations map[string]string
}

// install returns the objects of the operator and of its monitoring, by kind.
func install(t *testing.T) map[string][]*unstructured.Unstructured {
	t.Helper()
	kinds := map[string][]*unstructured.Unstructured{}
	rendered := installer.Kustomize(t, "resources: [useless-operator/config/default, useless-operator/config/prometheus]\n")
	for _, object := range installer.Objects(t, rendered) {
		kinds[object.GetKind()] = append(kinds[object.GetKind()], object)
	}
	return kinds
}

// readRules returns the spec of the PrometheusRule as YAML, in the format of Prometheus's rule files. It also returns
// the alerts in it.
func readRules(t *testing.T) (file []byte, alerts []alert) {
	t.Helper()
	rules := install(t)["PrometheusRule"]
	if len(rules) != 1 {
		t.Fatalf("got %d PrometheusRules, want 1", len(rules))
	}
	file, err := yaml.Marshal(rules[0].Object["spec"])
	if err != nil {
		t.Fatal(err)
	}
	spec := struct{ Groups []struct{ Rules []alert } }{}
	if err := yaml.Unmarshal(file, &spec); err != nil {
		t.Fatal(err)
	}
	for _, group := range spec.Groups {
		alerts = append(alerts, group.Rules...)
	}
	if len(alerts) == 0 {
		t.Fatal("there are no alerts")
	}
	return file, alerts
}

// promtool runs promtool in a folder with rules and their tests. promtool reads the rule files of Prometheus, and not
// PrometheusRule objects.
func promtool(t *testing.T, rules string, args ...string) (output string, err error) {
	t.Helper()
	if testing.Short() {
		t.Skip("promtool must be compiled first: make lint and make test-all do this")
	}
	dir := t.TempDir()
	for name, content := range map[string]string{"rules.yaml": rules, tests: read(t, tests)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(t.Context(), path, args...)
	command.Dir = dir
	all, err := command.CombinedOutput()
	return string(all), err
}

// build compiles promtool and returns its path in Go's build cache.
var build = sync.OnceValues(func() (string, error) {
	command := exec.Command("hack/tool", "-n", "prometheus", "github.com/prometheus/prometheus/cmd/promtool")
	command.Dir = "../.."
	path, err := executable.Output(command)
	return strings.TrimSpace(path), err
})

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestRules runs promtool's check of the rules, and the tests in alerts.yaml.
func TestRules(t *testing.T) {
	t.Parallel()
	file, _ := readRules(t)
	for _, args := range [][]string{{"check", "rules", "--lint=all", "--lint-fatal", "rules.yaml"}, {"test", "rules", tests}} {
		if output, err := promtool(t, string(file), args...); err != nil || strings.Contains(output, "WARN") {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, output)
		}
	}
}

// TestMistakes makes each alert fire a minute too late. The tests in alerts.yaml must find this for each alert.
func TestMistakes(t *testing.T) {
	t.Parallel()
	file, alerts := readRules(t)
	late := strings.NewReplacer("for: 5m", "for: 6m", "for: 10m", "for: 11m", "for: 15m", "for: 16m", "for: 2h", "for: 121m").
		Replace(string(file))
	output, err := promtool(t, late, "test", "rules", tests)
	if err == nil {
		t.Fatal("the tests pass although all alerts are late")
	}
	for _, a := range alerts {
		if !strings.Contains(output, "alertname: "+a.Alert+",") {
			t.Errorf("the tests do not find that %s is late:\n%s", a.Alert, output)
		}
	}
}

// TestAlertsAreComplete checks that each alert has texts, a runbook, and tests in which it fires and does not fire.
func TestAlertsAreComplete(t *testing.T) {
	t.Parallel()
	_, alerts := readRules(t)
	fires, silent := testedAlerts(t)
	page := read(t, "../../docs/runbooks/alerts.md")
	for _, a := range alerts {
		if !slices.Contains([]string{"critical", "warning", "info"}, a.Labels["severity"]) {
			t.Errorf("%s has the severity %q", a.Alert, a.Labels["severity"])
		}
		for _, name := range []string{"summary", "description"} {
			if !strings.HasSuffix(a.Annotations[name], ".") {
				t.Errorf("%s: the %s is not a sentence: %q", a.Alert, name, a.Annotations[name])
			}
		}
		if want := runbooks + strings.ToLower(a.Alert); a.Annotations["runbook_url"] != want {
			t.Errorf("%s has the runbook %q, want %q", a.Alert, a.Annotations["runbook_url"], want)
		}
		_, section, _ := strings.Cut(page, "\n## "+a.Alert+"\n")
		section, _, _ = strings.Cut(section, "\n## ")
		for _, part := range []string{"**Meaning.** ", "**How to see it.** ", "**What to do.**"} {
			if !strings.Contains(section, part) {
				t.Errorf("the runbook of %s has no part %s", a.Alert, part)
			}
		}
		// The tests must check that the alert does not fire before and after it fires, below its limits, and during a
		// rollout. This condition checks only the number of these cases.
		if fires[a.Alert] < 1 || silent[a.Alert] < 4 {
			t.Errorf("%s fires in %d tests, and does not fire in %d", a.Alert, fires[a.Alert], silent[a.Alert])
		}
		delete(fires, a.Alert)
	}
	if len(fires) > 0 {
		t.Errorf("tests expect unknown alerts: %v", fires)
	}
}

// testedAlerts counts the evaluations in alerts.yaml in which an alert fires or does not fire.
func testedAlerts(t *testing.T) (fires, silent map[string]int) {
	t.Helper()
	file := struct {
		Tests []struct {
			AlertRuleTest []struct {
				Alertname string
				ExpAlerts []any `json:"exp_alerts"`
			} `json:"alert_rule_test"`
		}
	}{}
	if err := yaml.Unmarshal([]byte(read(t, tests)), &file); err != nil {
		t.Fatal(err)
	}
	fires, silent = map[string]int{}, map[string]int{}
	for _, test := range file.Tests {
		for _, evaluation := range test.AlertRuleTest {
			if len(evaluation.ExpAlerts) > 0 {
				fires[evaluation.Alertname]++
			} else {
				silent[evaluation.Alertname]++
			}
		}
	}
	return fires, silent
}

// TestJob checks that the label job in the rules is the name of the Service with the port metrics.
func TestJob(t *testing.T) {
	t.Parallel()
	want := ""
	for _, service := range install(t)["Service"] {
		ports, _, err := unstructured.NestedSlice(service.Object, "spec", "ports")
		if err != nil {
			t.Fatal(err)
		}
		for _, port := range ports {
			if port.(map[string]any)["name"] == "metrics" {
				want = service.GetName()
			}
		}
	}
	_, alerts := readRules(t)
	found := 0
	for _, a := range alerts {
		for _, job := range regexp.MustCompile(`job="([^"]*)"`).FindAllStringSubmatch(a.Expr, -1) {
			if found++; job[1] != want {
				t.Errorf("%s selects the job %s, want %s", a.Alert, job[1], want)
			}
		}
	}
	if found == 0 {
		t.Error("no alert selects a job")
	}
}
