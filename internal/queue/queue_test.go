// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

func TestAlarms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := priorityqueue.New[reconcile.Request]("alarms")
		defer q.ShutDown()
		clock := clock.RealClock{} // reads the fake time inside synctest.Test
		a := NewAlarms(clock)
		if err := a.Source().Start(t.Context(), q); err != nil {
			t.Fatal(err)
		}
		started, request := clock.Now(), reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "default", Name: "m"}}
		next := func() (waited time.Duration, priority int) {
			got, priority, _ := q.GetWithPriority()
			if got != request {
				t.Fatalf("got %s", got)
			}
			q.Done(got)
			return clock.Since(started), priority
		}

		a.Set(request, started.Add(3*time.Second))
		q.AddWithOpts(priorityqueue.AddOpts{Priority: new(50)}, request)
		if waited, priority := next(); waited != 0 || priority != 50 {
			t.Errorf("the event before the alarm: got the request after %s with priority %d", waited, priority)
		}
		q.AddWithOpts(priorityqueue.AddOpts{After: time.Hour}, request) // a retry after a failed reconcile
		if waited, priority := next(); waited != 3*time.Second || priority != DuePriority {
			t.Errorf("the alarm at 3s: got the request after %s with priority %d", waited, priority)
		}
		a.Set(request, started.Add(4*time.Second))
		a.Set(request, started.Add(5*time.Second))
		if waited, _ := next(); waited != 5*time.Second {
			t.Errorf("the alarm that was moved from 4s to 5s: got the request after %s", waited)
		}
		a.Set(request, started.Add(6*time.Second))
		a.Set(request, time.Time{})
		q.AddWithOpts(priorityqueue.AddOpts{After: time.Minute}, request)
		if waited, priority := next(); waited != 65*time.Second || priority != 0 {
			t.Errorf("without an alarm: got the request after %s with priority %d", waited, priority)
		}
	})
}

// TestAlarmBeforeSource sets an alarm that is due before the controller starts the Source. This can happen, because
// event handlers set alarms as soon as they receive events.
func TestAlarmBeforeSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := priorityqueue.New[reconcile.Request]("early")
		defer q.ShutDown()
		clock := clock.RealClock{}
		a := NewAlarms(clock)
		request := reconcile.Request{NamespacedName: types.NamespacedName{Name: "m"}}
		a.Set(request, clock.Now())
		synctest.Wait()
		if err := a.Source().Start(t.Context(), q); err != nil {
			t.Fatal(err)
		}
		if got, priority, _ := q.GetWithPriority(); got != request || priority != DuePriority {
			t.Errorf("got %s with priority %d, want %s with priority %d", got, priority, request, DuePriority)
		}
	})
}
