// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package events emits Kubernetes events about the operator's changes of objects.
package events

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/semaphore"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/recorder"
)

// Reporter is the reporting controller of all events.
const Reporter = "useless-operator"

// Recorder emits events.
type Recorder struct {
	recorder events.EventRecorder
	limit    *limit // nil for no limit
}

// NewRecorder returns a Recorder without a limit.
func NewRecorder(mgr recorder.Provider) *Recorder {
	return &Recorder{recorder: mgr.GetEventRecorder(Reporter)}
}

// WithLimit returns a Recorder with a limit for the Normal events of each namespace. Each namespace can emit burst
// events at once, and perSecond events per second after that. The Recorder drops further Normal events and counts them
// in dropped. Without a limit, thousands of changes at the same time would cause thousands of requests. The status of
// the objects has the same information. Warnings are never dropped.
func (r *Recorder) WithLimit(
	perSecond float32, burst int, clock clock.PassiveClock, dropped prometheus.Counter,
) *Recorder {
	newLimiter := func() flowcontrol.PassiveRateLimiter {
		return flowcontrol.NewTokenBucketPassiveRateLimiterWithClock(perSecond, burst, clock)
	}
	return &Recorder{r.recorder, &limit{dropped: dropped, newLimiter: newLimiter, limiters: lru.New(maxLimiters)}}
}

// Normal emits a Normal event about an object; related may be nil.
func (r *Recorder) Normal(about client.Object, related runtime.Object, reason, action, note string, args ...any) {
	if r.limit != nil && !r.limit.tryAccept(about.GetNamespace()) {
		r.limit.dropped.Inc()
		return
	}
	r.recorder.Eventf(about, related, corev1.EventTypeNormal, reason, action, "%s",
		Truncate(fmt.Sprintf(note, args...)))
}

// Warning emits a Warning event about an object.
func (r *Recorder) Warning(about client.Object, reason, action, note string, args ...any) {
	r.recorder.Eventf(about, nil, corev1.EventTypeWarning, reason, action, "%s", Truncate(fmt.Sprintf(note, args...)))
}

// maxLength is the maximum number of bytes that the API server accepts in an event's note.
const maxLength = 1024

// Truncate shortens a message to the maximum length of an event's note. An event with a longer note would be lost.
func Truncate(message string) string {
	if len(message) <= maxLength {
		return message
	}
	const end = "…"
	return strings.ToValidUTF8(message[:maxLength-len(end)], "") + end
}

// limit has a rate limiter for each namespace. If thousands of objects change in one namespace, the events of the other
// namespaces are not dropped.
type limit struct {
	dropped    prometheus.Counter
	newLimiter func() flowcontrol.PassiveRateLimiter

	mu       sync.Mutex
	limiters *lru.Cache // by namespace
}

// maxLimiters is the maximum number of namespaces with a rate limiter. The least recently used limiter is dropped.
const maxLimiters = 1024

func (l *limit) tryAccept(namespace string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	limiter, ok := l.limiters.Get(namespace)
	if !ok {
		limiter = l.newLimiter()
		l.limiters.Add(namespace, limiter)
	}
	return limiter.(flowcontrol.PassiveRateLimiter).TryAccept()
}

// maxDelay is the maximum time that an event waits for other writes.
const maxDelay = 10 * time.Second

// Defer changes a config so that its clients create or change only one event at a time, and begin only when no other
// write is in flight. An event waits for at most ten seconds. It does not wait at all if other writes have been in
// flight for ten seconds. The event broadcaster starts a goroutine for each event. When thousands of workloads stop at
// the same time, these goroutines would delay the writes to the workloads.
func Defer(config *rest.Config) {
	slot, others := semaphore.NewWeighted(1), newWrites()
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return deferringTransport{next, slot, others} })
}

type deferringTransport struct {
	next   http.RoundTripper
	slot   *semaphore.Weighted // for one event
	others *writes             // all other writes
}

// RoundTrip implements http.RoundTripper.
func (t deferringTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.Method == http.MethodGet {
		return t.next.RoundTrip(request)
	}
	// The URL of an API server can have a path before /apis.
	if !strings.Contains(request.URL.Path, "/apis/events.k8s.io/") {
		t.others.begin()
		defer t.others.done()
		return t.next.RoundTrip(request)
	}
	delay, cancel := context.WithTimeout(request.Context(), maxDelay)
	defer cancel()
	if err := t.slot.Acquire(request.Context(), 1); err != nil {
		if request.Body != nil {
			err = errors.Join(err, request.Body.Close()) // http.RoundTripper requires this
		}
		return nil, err
	}
	defer t.slot.Release(1)
	t.others.wait(delay)
	return t.next.RoundTrip(request)
}

// writes counts the requests in flight.
type writes struct {
	mu    sync.Mutex
	count int
	busy  context.Context // done while count is 0, and also after count was above 0 for maxDelay
	end   context.CancelFunc
}

func newWrites() *writes {
	w := &writes{}
	w.busy, w.end = context.WithCancel(context.Background())
	w.end()
	return w
}

func (w *writes) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.count++; w.count == 1 {
		w.busy, w.end = context.WithTimeout(context.Background(), maxDelay)
	}
}

func (w *writes) done() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.count--; w.count == 0 {
		w.end()
	}
}

// wait waits until no request is in flight, requests have been in flight for maxDelay, or the context ends.
func (w *writes) wait(ctx context.Context) {
	w.mu.Lock()
	busy := w.busy
	w.mu.Unlock()
	select {
	case <-busy.Done():
	case <-ctx.Done():
	}
}
