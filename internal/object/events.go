// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package object

import (
	"fmt"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/recorder"
)

// Reporter is the name under which events are written.
const Reporter = "useless-operator"

// Events tell people what the operator did to their objects.
type Events struct {
	recorder events.EventRecorder
	budget   *Budget // nil for no end of them
	dropped  prometheus.Counter
}

// NewEvents returns Events that are written by a manager, as those of Reporter.
func NewEvents(mgr recorder.Provider) *Events {
	return &Events{recorder: mgr.GetEventRecorder(Reporter)}
}

// Within returns Events that a budget bounds, for what can happen to thousands of objects at once: each event costs a
// request, and nothing else holds the recorder back. Of what was done, what comes beyond the budget is not told but
// counted; it is in the objects' status all the same. Warnings are always told, and cost nothing of the budget.
func (e *Events) Within(budget *Budget, dropped prometheus.Counter) *Events {
	return &Events{recorder: e.recorder, budget: budget, dropped: dropped}
}

// Tell emits an event about something that was done, with the object that it was done to where that is another one.
func (e *Events) Tell(about, related client.Object, reason, action, note string, args ...any) {
	if e.budget != nil && !e.budget.accept(about.GetNamespace()) {
		e.dropped.Inc()
		return
	}
	var object runtime.Object // nil, where related is
	if related != nil {
		object = related
	}
	e.recorder.Eventf(about, object, corev1.EventTypeNormal, reason, action, "%s", write(note, args))
}

// A Budget is how many events may be told about the objects of each namespace: so many at once, and so many more with each
// second. What is done to thousands of objects in one of them leaves nothing untold in the others.
type Budget struct {
	perSecond float32
	burst     int
	clock     clock.PassiveClock

	mu         sync.Mutex
	namespaces *lru.Cache // their rate limiters
}

// maxBudgets is of how many namespaces a Budget remembers what they have spent: of those that were told about last.
const maxBudgets = 1024

// NewBudget returns a Budget of which nothing is spent.
func NewBudget(perSecond float32, burst int, clock clock.PassiveClock) *Budget {
	return &Budget{perSecond: perSecond, burst: burst, clock: clock, namespaces: lru.New(maxBudgets)}
}

// accept reports whether one more event may be told, and spends it.
func (b *Budget) accept(namespace string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	limiter, ok := b.namespaces.Get(namespace)
	if !ok {
		limiter = flowcontrol.NewTokenBucketPassiveRateLimiterWithClock(b.perSecond, b.burst, b.clock)
		b.namespaces.Add(namespace, limiter)
	}
	return limiter.(flowcontrol.PassiveRateLimiter).TryAccept()
}

// Warn emits an event about something that could not be done.
func (e *Events) Warn(about client.Object, reason, action, note string, args ...any) {
	e.recorder.Eventf(about, nil, corev1.EventTypeWarning, reason, action, "%s", write(note, args))
}

// write returns a note, cut off where it would be too long: an event with more of it would be lost.
func write(note string, args []any) string {
	return Brief(fmt.Sprintf(note, args...))
}
