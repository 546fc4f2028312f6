// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"
	"testing/synctest"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
)

// TestSuspendWatchdog runs a leader for a minute, and then suspends it.
func TestSuspendWatchdog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := clocktesting.NewFakeClock(time.Now())
		var exits []time.Duration
		w := &suspendWatchdog{clock, renewDeadline, func(suspended time.Duration) { exits = append(exits, suspended) }}
		go func() { _ = w.Start(t.Context()) }()
		for range 60 {
			synctest.Wait()
			clock.Step(time.Second)
		}
		synctest.Wait()
		clock.Step(renewDeadline - time.Millisecond)
		synctest.Wait()
		if len(exits) > 0 {
			t.Fatalf("exited after a suspension of %v, which is too short", exits)
		}
		clock.Step(renewDeadline)
		synctest.Wait()
		if len(exits) != 1 || exits[0] != renewDeadline {
			t.Errorf("exited after suspensions of %v, want one exit after %s", exits, renewDeadline)
		}
	})
}
