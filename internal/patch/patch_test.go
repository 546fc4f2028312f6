// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package patch

import (
	"errors"
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

func TestCounter(t *testing.T) {
	registry := prometheus.NewRegistry()
	results := NewCounter(registry, "useless_writes_total", "Number of writes.")
	check := func(failures, successes string) {
		t.Helper()
		scraped := httptest.NewRecorder()
		promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(scraped, httptest.NewRequest("GET", "/metrics", nil))
		want := `# HELP useless_writes_total Number of writes.
# TYPE useless_writes_total counter
useless_writes_total{result="error"} ` + failures + `
useless_writes_total{result="success"} ` + successes + "\n"
		if diff := cmp.Diff(want, scraped.Body.String()); diff != "" {
			t.Errorf("metrics (-want +got):\n%s", diff)
		}
	}
	check("0", "0")
	results.Count(errors.New("refused"))
	results.Count(nil)
	results.Count(nil)
	check("1", "2")
}
