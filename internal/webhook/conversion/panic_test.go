// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package conversion

import (
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"golang.org/x/sync/semaphore"
	"sigs.k8s.io/controller-runtime/pkg/webhook/conversion/metrics"
)

// TestPanic lets a converter panic. The API server gets a failed review, the metric counts the panic, and the next call
// succeeds.
func TestPanic(t *testing.T) {
	broken := false
	handler := &Handler{large: semaphore.NewWeighted(1), converters: map[versionPair]converter{
		{"a/v1", "a/v2"}: func(spec []byte) ([]byte, error) {
			if broken {
				panic("a bug")
			}
			return spec, nil
		},
	}}
	const request = `{"kind":"ConversionReview","apiVersion":"apiextensions.k8s.io/v1","request":{"uid":"7","desiredAPIVersion":"a/v2",` +
		`"objects":[{"apiVersion":"a/v1","kind":"Machine","spec":{}}]}}`
	before := panics(t)
	for _, want := range []string{
		`{"convertedObjects":[{"kind":"Machine","apiVersion":"a/v2","metadata":{},"spec":{}}],"uid":"7","result":{"status":"Success"}}}`,
		`{"convertedObjects":[],"uid":"7","result":{"status":"Failure","message":"internal error occurred during conversion"}}}`,
		`{"convertedObjects":[{"kind":"Machine","apiVersion":"a/v2","metadata":{},"spec":{}}],"uid":"7","result":{"status":"Success"}}}`,
	} {
		_, answer := ask(handler, []byte(request))
		if got := strings.TrimSpace(answer); !strings.HasSuffix(got, want) {
			t.Errorf("got %s, want %s", got, want)
		}
		broken = !broken
	}
	if got := panics(t) - before; got != 1 {
		t.Errorf("the metric increased by %v, want 1", got)
	}
}

func panics(t *testing.T) float64 {
	t.Helper()
	metric := &dto.Metric{}
	if err := metrics.WebhookPanics.WithLabelValues().Write(metric); err != nil {
		t.Fatal(err)
	}
	return metric.GetCounter().GetValue()
}
