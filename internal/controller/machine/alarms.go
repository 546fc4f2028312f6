// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"sync"
	"time"

	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// alarms wake Machines when something is due, before all that wait for anything else. RequeueAfter could not do that: a
// Machine has one entry in the queue, with the highest priority that it was given, so that one that waits for a flip would
// come before others for whatever happens to it meanwhile. Nor would it if the reconcile fails: then the next try counts.
type alarms struct {
	clock clock.PassiveClock
	queue priorityqueue.PriorityQueue[reconcile.Request]

	mu     sync.Mutex
	timers map[reconcile.Request]*time.Timer
}

func newAlarms(clock clock.PassiveClock) *alarms {
	return &alarms{clock: clock, timers: map[reconcile.Request]*time.Timer{}}
}

// start is a source of the controller.
func (a *alarms) start(_ context.Context, q queue) error {
	a.queue = q.(priorityqueue.PriorityQueue[reconcile.Request])
	return nil
}

// set replaces a Machine's alarm; a zero time is for none.
func (a *alarms) set(request reconcile.Request, at time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if timer := a.timers[request]; timer != nil {
		timer.Stop()
		delete(a.timers, request)
	}
	if !at.IsZero() {
		a.timers[request] = time.AfterFunc(at.Sub(a.clock.Now()), func() {
			a.queue.AddWithOpts(priorityqueue.AddOpts{Priority: new(flipPriority)}, request)
		})
	}
}
