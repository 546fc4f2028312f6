// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"
	"testing/synctest"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
)

// TestSentinel has a leader run as it should for a minute, and then not run for a while.
func TestSentinel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := clocktesting.NewFakeClock(time.Now())
		var ends []time.Duration
		s := &sentinel{clock, renewDeadline, func(stopped time.Duration) { ends = append(ends, stopped) }}
		go func() { _ = s.Start(t.Context()) }()
		for range 60 {
			synctest.Wait()
			clock.Step(time.Second)
		}
		synctest.Wait()
		clock.Step(renewDeadline - time.Millisecond)
		synctest.Wait()
		if len(ends) > 0 {
			t.Fatalf("it has ended after %v", ends)
		}
		clock.Step(renewDeadline)
		synctest.Wait()
		if len(ends) != 1 || ends[0] != renewDeadline {
			t.Errorf("it has ended after %v, not once after %s", ends, renewDeadline)
		}
	})
}
