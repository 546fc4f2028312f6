// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package certificates

import (
	"crypto/tls"
	"crypto/x509"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// TestExposeExpiration reads the metric before and after a Source has loaded a certificate.
func TestExposeExpiration(t *testing.T) {
	registry, source := prometheus.NewRegistry(), &Source{}
	if err := ExposeExpiration(registry, source.GetCertificate); err != nil {
		t.Fatal(err)
	}
	if families, err := registry.Gather(); err != nil || len(families) > 0 {
		t.Errorf("without a certificate: got %v and error %v, want no metric", families, err)
	}
	source.current.Store(&tls.Certificate{Leaf: &x509.Certificate{NotAfter: time.Unix(1_800_000_000, 0)}})
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	if len(families) != 1 || families[0].GetMetric()[0].GetGauge().GetValue() != 1_800_000_000 {
		t.Errorf("got %v, want the time 1800000000", families)
	}
}
