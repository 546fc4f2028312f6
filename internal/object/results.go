// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package object

import "github.com/prometheus/client_golang/prometheus"

// Values of the label result in metrics.
const (
	ResultSuccess = "success"
	ResultError   = "error"
)

// Results counts requests by their result.
type Results struct{ *prometheus.CounterVec }

// NewResults returns a metric without any request. It has both results from the start, so that an alert on the first error
// sees the step from zero.
func NewResults(name, help string) Results {
	r := Results{prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{"result"})}
	for _, result := range []string{ResultSuccess, ResultError} {
		r.WithLabelValues(result)
	}
	return r
}

// Count counts a request that had an error, or none.
func (r Results) Count(err error) {
	result := ResultSuccess
	if err != nil {
		result = ResultError
	}
	r.WithLabelValues(result).Inc()
}
