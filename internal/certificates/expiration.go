// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package certificates

import (
	"crypto/tls"

	"github.com/prometheus/client_golang/prometheus"
)

var expirationDesc = prometheus.NewDesc("useless_webhook_certificate_expiration_timestamp_seconds",
	"Time at which the serving certificate of the webhooks expires, in seconds since 1970.", nil, nil)

// ExposeExpiration registers a metric with the expiration of the certificate that get returns. While get returns an
// error, the metric has no value.
func ExposeExpiration(
	registerer prometheus.Registerer, get func(*tls.ClientHelloInfo) (*tls.Certificate, error),
) error {
	return registerer.Register(prometheus.CollectorFunc(func(collected chan<- prometheus.Metric) {
		if certificate, err := get(nil); err == nil {
			collected <- prometheus.MustNewConstMetric(
				expirationDesc, prometheus.GaugeValue, float64(certificate.Leaf.NotAfter.Unix()))
		}
	}))
}
