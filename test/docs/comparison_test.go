// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"
)

// TestComparison checks the cells of docs/comparison.md that change with this repository.
func TestComparison(t *testing.T) {
	files := os.DirFS(repository)
	page := read(t, files, "docs/comparison.md")
	alerts := strings.Count(read(t, files, "config/prometheus/prometheus_rule.yaml"), "- alert: ")
	dashboard := "no"
	if _, err := fs.Stat(files, "config/grafana/dashboard.json"); err == nil {
		dashboard = "[yes](reference.md#dashboard)"
	}
	for _, row := range []string{
		fmt.Sprintf("\n| alerts | PrometheusRule with %d alerts |", alerts),
		fmt.Sprintf("\n| dashboard for Grafana | %s |", dashboard),
	} {
		if !strings.Contains(page, row) {
			t.Errorf("docs/comparison.md has no row that begins with %s", strings.TrimSpace(row))
		}
	}
}
