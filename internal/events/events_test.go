// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package events

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
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

// TestDefer sends requests while other requests have no response. A request about a workload must never wait. A request
// about an event must wait for the previous event. It must also wait for writes to workloads, but not longer than
// maxDelay.
func TestDefer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const event, workload = "/k8s/clusters/c-1/apis/events.k8s.io/v1/namespaces/n/events", "/apis/apps/v1/namespaces/n/deployments/d"
		server := &server{answers: map[string]chan struct{}{}}
		config := &rest.Config{}
		Defer(config)
		transport := config.WrapTransport(server)
		send := func(ctx context.Context, method, path, id string) {
			request, err := http.NewRequestWithContext(ctx, method, path+"?"+id, strings.NewReader(id))
			if err != nil {
				t.Fatal(err)
			}
			server.expect(id)
			go func() {
				if _, err := transport.RoundTrip(request); !errors.Is(err, ctx.Err()) { //nolint:bodyclose // there is no body
					t.Errorf("the request %s has error %v", id, err)
				}
			}()
			synctest.Wait()
		}
		check := func(reason string, want ...string) {
			synctest.Wait()
			if diff := cmp.Diff(want, server.takeReceived()); diff != "" {
				t.Errorf("%s: received requests (-want +got):\n%s", reason, diff)
			}
		}
		send(t.Context(), http.MethodPost, event, "event 1")
		check("there is no other request", "event 1")
		send(t.Context(), http.MethodPatch, workload, "write 1")
		send(t.Context(), http.MethodGet, workload, "read 1")
		check("requests about workloads do not wait for events", "read 1", "write 1")
		canceled, cancel := context.WithCancel(t.Context())
		send(canceled, http.MethodPatch, event, "canceled")
		check("an event waits for the previous event")
		cancel()
		server.answer("event 1")
		check("a canceled event is not sent")
		send(t.Context(), http.MethodPatch, event, "event 2")
		check("an event waits for the write to a workload")
		server.answer("write 1")
		check("an event does not wait for a read", "event 2")
		send(t.Context(), http.MethodPatch, workload, "write 2")
		for _, id := range []string{"event 3", "event 4", "event 5"} {
			send(t.Context(), http.MethodPost, event, id)
		}
		server.answer("event 2")
		check("an event waits for a write that began during the previous event", "write 2")
		<-time.After(maxDelay - 4*time.Second)
		server.answer("write 2")
		check("between two writes, one event is sent", "event 3")
		send(t.Context(), http.MethodPatch, workload, "write 3")
		server.answer("event 3")
		<-time.After(3 * time.Second)
		check("after nine seconds, the next event still waits", "write 3")
		<-time.After(2 * time.Second)
		check("after ten seconds, it is sent", "event 4")
		server.answer("event 4")
		check("all events that have waited for ten seconds are sent", "event 5")
		server.answer("event 5")
		send(t.Context(), http.MethodPost, event, "event 6")
		check("a new event waits for the write")
		<-time.After(6 * time.Second)
		check("a write that takes longer than ten seconds does not delay the event", "event 6")
		for _, id := range []string{"read 1", "write 3", "event 6"} {
			server.answer(id)
		}
		check("there are no further requests")
	})
}

// A server records the IDs of requests, and answers each request when its channel is closed.
type server struct {
	mu       sync.Mutex
	received []string // sorted
	answers  map[string]chan struct{}
}

func (s *server) expect(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers[id] = make(chan struct{})
}

func (s *server) answer(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.answers[id])
}

// takeReceived returns the IDs of the requests since the last call.
func (s *server) takeReceived() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids := s.received
	s.received = nil
	return ids
}

// RoundTrip implements http.RoundTripper.
func (s *server) RoundTrip(request *http.Request) (*http.Response, error) {
	if err := request.Context().Err(); err != nil {
		return nil, err
	}
	id := request.URL.RawQuery
	s.mu.Lock()
	s.received = append(s.received, id)
	slices.Sort(s.received)
	answer := s.answers[id]
	s.mu.Unlock()
	<-answer
	return &http.Response{}, nil
}
