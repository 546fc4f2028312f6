// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package events

import (
	"context"
	"errors"
	"net/http"
	"testing"

	"k8s.io/client-go/rest"
)

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return f(request) }

// TestLimitConcurrency sends requests while a request about an event has no response.
func TestLimitConcurrency(t *testing.T) {
	const events, workloads = "/k8s/clusters/c-1/apis/events.k8s.io/v1/namespaces/n/events", "/apis/apps/v1/namespaces/n/deployments/d"
	received, answer := make(chan string), make(chan struct{})
	config := &rest.Config{}
	LimitConcurrency(config)
	transport := config.WrapTransport(roundTripper(func(request *http.Request) (*http.Response, error) {
		received <- request.Method + " " + request.URL.Path
		<-answer
		return &http.Response{}, nil
	}))
	ended := make(chan error, 3)
	send := func(ctx context.Context, method, path string) {
		request, err := http.NewRequestWithContext(ctx, method, path, nil)
		if err == nil {
			_, err = transport.RoundTrip(request) //nolint:bodyclose // there is no body
		}
		ended <- err
	}
	go send(t.Context(), http.MethodPost, events)
	if got, want := <-received, "POST "+events; got != want {
		t.Fatalf("got %s, want %s", got, want)
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	send(canceled, http.MethodPatch, events)
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("a canceled request about an event has error %v, want %v", err, context.Canceled)
	}
	go send(t.Context(), http.MethodPatch, events)
	go send(t.Context(), http.MethodPatch, workloads)
	if got, want := <-received, "PATCH "+workloads; got != want {
		t.Errorf("got %s, want %s: requests about workloads must not wait", got, want)
	}
	answer <- struct{}{}
	answer <- struct{}{}
	if got, want := <-received, "PATCH "+events; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	answer <- struct{}{}
	for range 3 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}
