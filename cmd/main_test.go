// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"
	"testing/synctest"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	clientscheme "container.training/useless/client/versioned/scheme"
)

// TestSchemeHasAllVersions compares the operator's scheme with the generated scheme of the clients.
func TestSchemeHasAllVersions(t *testing.T) {
	scheme := newScheme()
	for kind := range clientscheme.Scheme.AllKnownTypes() {
		if !scheme.Recognizes(kind) {
			t.Errorf("%s is not registered", kind)
		}
	}
}

// TestWaitForSuspension lets waitForSuspension run for a minute. Then it simulates two suspensions: one shorter than
// renewDeadline, and one of renewDeadline.
func TestWaitForSuspension(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := clocktesting.NewFakeClock(time.Now())
		suspended := make(chan time.Duration, 1)
		go func() { suspended <- waitForSuspension(t.Context(), clock) }()
		for range 60 {
			synctest.Wait()
			clock.Step(time.Second)
		}
		synctest.Wait()
		clock.Step(renewDeadline - time.Millisecond)
		synctest.Wait()
		if len(suspended) > 0 {
			t.Fatalf("the wait ended after a suspension of %s, which is too short", <-suspended)
		}
		clock.Step(renewDeadline)
		synctest.Wait()
		if len(suspended) != 1 || <-suspended != renewDeadline {
			t.Errorf("the wait did not end after a suspension of %s", renewDeadline)
		}
	})
}
