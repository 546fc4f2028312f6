// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package events

import (
	"errors"
	"net/http"
	"strings"

	"golang.org/x/sync/semaphore"
	"k8s.io/client-go/rest"
)

// concurrency is the maximum number of concurrent requests about events.
const concurrency = 1

// LimitConcurrency makes the requests of a config that create or change events wait for each other. The event
// broadcaster starts a goroutine for each event. When thousands of workloads stop at the same time, these goroutines
// would delay the writes to the workloads.
func LimitConcurrency(config *rest.Config) {
	slots := semaphore.NewWeighted(concurrency)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return limitedTransport{next, slots} })
}

type limitedTransport struct {
	next  http.RoundTripper
	slots *semaphore.Weighted
}

// RoundTrip implements http.RoundTripper.
func (t limitedTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	// The URL of an API server can have a path before /apis.
	if request.Method == http.MethodGet || !strings.Contains(request.URL.Path, "/apis/events.k8s.io/") {
		return t.next.RoundTrip(request)
	}
	if err := t.slots.Acquire(request.Context(), 1); err != nil {
		if request.Body != nil {
			err = errors.Join(err, request.Body.Close()) // http.RoundTripper requires this
		}
		return nil, err
	}
	defer t.slots.Release(1)
	return t.next.RoundTrip(request)
}
