// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package queue configures the number of workers and the delays of retries for the work queues of all controllers. It
// also has alarms, which reconcile an object at a given time.
package queue

import (
	"context"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

const (
	// firstRetry is the delay before the first retry of a failed reconcile. Each further failure doubles the delay.
	firstRetry = 5 * time.Millisecond

	// LastRetry is the maximum delay of a retry. After the cause of a failure is fixed, the operator needs at most this
	// time until its next attempt.
	LastRetry = time.Minute

	// DuePriority is the priority of an object whose alarm has fired. It is the highest priority, because only this
	// work must happen at a certain time. Most objects that already exist when the operator starts have
	// handler.LowPriority (-100). Most other objects have 0.
	DuePriority = 100

	// timeout bounds one reconcile, so that a request without an answer does not block a worker for ever.
	timeout = 30 * time.Second
)

// Options returns the options of a controller with a number of concurrent workers.
func Options(workers int) controller.Options {
	return controller.Options{
		MaxConcurrentReconciles: workers,
		RateLimiter:             NewRateLimiter(firstRetry),
		ReconciliationTimeout:   timeout,
	}
}

// NewRateLimiter returns a rate limiter. The argument first is the delay after the first failure. Each further failure
// doubles the delay, up to LastRetry.
func NewRateLimiter(first time.Duration) workqueue.TypedRateLimiter[reconcile.Request] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](first, LastRetry)
}

// Alarms adds objects to the queue of a controller at a given time, with DuePriority. It replaces Result.RequeueAfter,
// which has two disadvantages:
//
//   - The queue has one entry per object, and the entry keeps its highest priority. An object that waits
//     with DuePriority would therefore overtake other objects on each of its watch events.
//   - An error cancels RequeueAfter. The object then waits for its next retry, even if this is after the given time.
type Alarms struct {
	clock   clock.PassiveClock
	queue   priorityqueue.PriorityQueue[reconcile.Request]
	started chan struct{} // closed when the queue is set

	mu     sync.Mutex
	alarms map[reconcile.Request]alarm
}

type alarm struct {
	at    time.Time
	timer *time.Timer
}

// NewAlarms returns Alarms without any alarm. The caller must add their Source to the controller.
func NewAlarms(clock clock.PassiveClock) *Alarms {
	return &Alarms{clock: clock, started: make(chan struct{}), alarms: map[reconcile.Request]alarm{}}
}

// Source connects the alarms with the queue of the controller.
func (a *Alarms) Source() source.Source {
	return source.Func(func(_ context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		a.queue = q.(priorityqueue.PriorityQueue[reconcile.Request])
		close(a.started)
		return nil
	})
}

// Set replaces the alarm of an object. The zero time removes it. An alarm in the past fires at once. Event handlers may
// set alarms before the Source has started, because a controller starts all its sources in parallel. Such alarms fire
// only after the Source has started.
func (a *Alarms) Set(request reconcile.Request, at time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if old, ok := a.alarms[request]; ok {
		old.timer.Stop()
		delete(a.alarms, request)
	}
	if at.IsZero() {
		return
	}
	a.alarms[request] = alarm{at, time.AfterFunc(at.Sub(a.clock.Now()), func() {
		<-a.started
		a.mu.Lock()
		if a.alarms[request].at.Equal(at) { // Set has not replaced it
			delete(a.alarms, request)
		}
		a.mu.Unlock()
		a.queue.AddWithOpts(priorityqueue.AddOpts{Priority: new(DuePriority)}, request)
	})}
}

// Next returns when the alarm of an object fires, or the zero time if it has no alarm.
func (a *Alarms) Next(request reconcile.Request) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.alarms[request].at
}
