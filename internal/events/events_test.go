// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package events

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	clocktesting "k8s.io/utils/clock/testing"
)

// notes is a recorder that keeps the type and the note of the last event.
type notes struct{ eventType, note string }

func (n *notes) Eventf(_, _ runtime.Object, eventType, _, _, note string, args ...any) {
	n.eventType, n.note = eventType, fmt.Sprintf(note, args...)
}

func (n *notes) WithLogger(klog.Logger) events.EventRecorderLogger { return n }

func TestNoteIsTruncated(t *testing.T) {
	const end = "…"
	for _, c := range []struct {
		reason, text, want string
	}{
		{"a short note is not changed", "50% of é", "50% of é"},
		{"the longest allowed note is not changed", strings.Repeat("a", 1024), strings.Repeat("a", 1024)},
		{"a longer note is truncated", strings.Repeat("a", 1025), strings.Repeat("a", 1021) + end},
		{"a note is not truncated within a character", strings.Repeat("é", 513), strings.Repeat("é", 510) + end},
	} {
		t.Run(c.reason, func(t *testing.T) {
			normal, warned := &notes{}, &notes{}
			(&Recorder{recorder: normal}).Normal(&corev1.Pod{}, nil, "Reason", "Act", "%s", c.text)
			(&Recorder{recorder: warned}).Warning(&corev1.Pod{}, "Reason", "Act", "%s", c.text)
			for want, got := range map[string]*notes{corev1.EventTypeNormal: normal, corev1.EventTypeWarning: warned} {
				if got.note != c.want || got.eventType != want || !utf8.ValidString(got.note) {
					t.Errorf("got %s event with %d bytes %q, want %s event with %d bytes %q", got.eventType, len(got.note), got.note, want, len(c.want), c.want)
				}
			}
		})
	}
}

// counter is a counter with a readable value.
type counter struct {
	prometheus.Counter
	n int
}

func (c *counter) Inc() { c.n++ }

func TestLimit(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Unix(1e9, 0))
	dropped := &counter{}
	recorder := &notes{}
	limited := (&Recorder{recorder: recorder}).WithLimit(1, 2, clock, dropped)
	var got []string
	record := func(emit func()) {
		recorder.note = "nothing"
		emit()
		got = append(got, recorder.note)
	}
	pod, other := &corev1.Pod{}, &corev1.Pod{}
	pod.Namespace, other.Namespace = "busy", "quiet"
	normal := func() { limited.Normal(pod, nil, "Reason", "Act", "done") }
	normalElsewhere := func() { limited.Normal(other, nil, "Reason", "Act", "done elsewhere") }
	warning := func() { limited.Warning(pod, "Reason", "Act", "not done") }
	for _, event := range []func(){normal, warning, normal, normal, normalElsewhere, warning, normal} {
		record(event)
	}
	clock.SetTime(clock.Now().Add(time.Second))
	record(normal)
	want := []string{"done", "not done", "done", "nothing", "done elsewhere", "not done", "nothing", "done"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("events with a limit of 2 at once and 1 per second in each namespace, without a limit for Warnings (-want +got):\n%s", diff)
	}
	if dropped.n != 2 {
		t.Errorf("got %d dropped events, want 2", dropped.n)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return f(request) }

// TestLimitConcurrency sends requests while a request about an event has no response. A second request about an event
// must wait, and a request about a workload must not.
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
