// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package queue configures the work queues of all controllers: how many objects are reconciled at the same time, when a
// failed reconcile is retried, and what wakes an object up when something is due.
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
	// FirstRetry is the delay before the first retry of a failed reconcile. It doubles with each failure.
	FirstRetry = 5 * time.Millisecond

	// LastRetry is the longest delay. It bounds how long the operator does not notice that the cause is gone.
	LastRetry = time.Minute

	// DuePriority is the priority of an object whose alarm has gone off. It is the highest: only such work has to happen at
	// a certain time. The objects that exist at the start have handler.LowPriority (-100), most others have 0.
	DuePriority = 100

	// timeout bounds one reconcile, so that a request without an answer does not occupy a worker for ever.
	timeout = 30 * time.Second
)

// Options returns the options of a controller with a number of workers, each of which reconciles one object at a time.
func Options(workers int) controller.Options {
	return controller.Options{
		MaxConcurrentReconciles: workers,
		RateLimiter:             NewRateLimiter(FirstRetry),
		ReconciliationTimeout:   timeout,
	}
}

// NewRateLimiter returns a rate limiter whose delays double from the first one up to LastRetry.
func NewRateLimiter(first time.Duration) workqueue.TypedRateLimiter[reconcile.Request] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](first, LastRetry)
}

// Alarms add objects to the queue of a controller at a given time, with DuePriority. A controller uses them in place of
// Result.RequeueAfter, which has two disadvantages. The queue has one entry for each object, with the highest priority
// that it was given, so an object with something due later would overtake others on each event. And an error cancels it:
// then the object waits for its next retry, however early something else is due.
type Alarms struct {
	clock clock.PassiveClock
	queue priorityqueue.PriorityQueue[reconcile.Request]

	mu     sync.Mutex
	alarms map[reconcile.Request]alarm
}

type alarm struct {
	at    time.Time
	timer *time.Timer
}

// NewAlarms returns Alarms without any alarm. Their Source must be added to the controller.
func NewAlarms(clock clock.PassiveClock) *Alarms {
	return &Alarms{clock: clock, alarms: map[reconcile.Request]alarm{}}
}

// Source connects the alarms with the queue of the controller.
func (a *Alarms) Source() source.Source {
	return source.Func(func(_ context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		a.queue = q.(priorityqueue.PriorityQueue[reconcile.Request])
		return nil
	})
}

// Set replaces the alarm of an object. The zero time removes it. An alarm in the past goes off at once.
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
		a.drop(request, at)
		a.queue.AddWithOpts(priorityqueue.AddOpts{Priority: new(DuePriority)}, request)
	})}
}

// drop forgets an alarm that has gone off, unless another one was set meanwhile.
func (a *Alarms) drop(request reconcile.Request, at time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.alarms[request].at.Equal(at) {
		delete(a.alarms, request)
	}
}

// Next returns when the alarm of an object goes off. It is zero if there is none.
func (a *Alarms) Next(request reconcile.Request) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.alarms[request].at
}
