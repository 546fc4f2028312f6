// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

func TestAlarms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := priorityqueue.New[reconcile.Request]("alarms")
		defer q.ShutDown()
		clock := clock.RealClock{} // the bubble's
		a := newAlarms(clock)
		if err := a.start(t.Context(), q); err != nil {
			t.Fatal(err)
		}
		started, request := clock.Now(), requestFor(0)
		next := func() (waited time.Duration, priority int) {
			got, priority, _ := q.GetWithPriority()
			if got != request {
				t.Fatalf("got %s", got)
			}
			q.Done(got)
			return clock.Since(started), priority
		}

		a.set(request, started.Add(3*time.Second))
		q.AddWithOpts(priorityqueue.AddOpts{Priority: new(userPriority)}, request)
		if waited, priority := next(); waited != 0 || priority != userPriority {
			t.Errorf("what happens while it waits for a flip came after %s with priority %d", waited, priority)
		}
		q.AddWithOpts(priorityqueue.AddOpts{After: time.Hour}, request) // it failed
		if waited, priority := next(); waited != 3*time.Second || priority != flipPriority {
			t.Errorf("a flip due after 3s came after %s with priority %d", waited, priority)
		}
		a.set(request, started.Add(4*time.Second))
		a.set(request, started.Add(5*time.Second))
		if waited, _ := next(); waited != 5*time.Second {
			t.Errorf("a flip put off from 4s to 5s came after %s", waited)
		}
		a.set(request, started.Add(6*time.Second))
		a.set(request, time.Time{})
		q.AddWithOpts(priorityqueue.AddOpts{After: time.Minute}, request)
		if waited, priority := next(); waited != 65*time.Second || priority != 0 {
			t.Errorf("without a flip it came after %s with priority %d", waited, priority)
		}
	})
}
