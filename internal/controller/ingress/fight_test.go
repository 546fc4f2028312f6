// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package ingress

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var (
	now     = time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)
	setting = plan{annotations: Annotations{"foo": "bar"}, set: []string{"foo"}}
)

// fight simulates a rival: another writer that reverts the annotations. held has the time before each revert. givesIn
// has the indexes of the reverts that the rival undoes itself, while the operator waits. The result has the time that
// the operator waits after each revert, before it sets the annotations again.
func fight(held []time.Duration, givesIn ...int) []time.Duration {
	var waits []time.Duration
	at := now
	h := history{}.wrote(setting, at)
	for i, held := range held {
		at = at.Add(held)
		var reverted bool
		if h, reverted = h.saw(setting, at); !reverted {
			return nil
		}
		var wait time.Duration
		if !h.due.IsZero() {
			wait = h.due.Sub(at)
		}
		waits = append(waits, wait)
		if slices.Contains(givesIn, i) {
			at = at.Add(wait / 2)
			h, _ = h.saw(plan{annotations: setting.annotations}, at)
			continue
		}
		at = at.Add(wait)
		h = h.wrote(setting, at)
	}
	return waits
}

func times(n int, d time.Duration) []time.Duration {
	all := make([]time.Duration, n)
	for i := range all {
		all[i] = d
	}
	return all
}

func TestFight(t *testing.T) {
	const second, minute = time.Second, time.Minute
	backOff := []time.Duration{
		0, 0, 0, 0, 0,
		10 * second, 20 * second, 40 * second, 80 * second, 160 * second, 320 * second, 10 * minute, 10 * minute,
		10 * minute,
	}
	for _, c := range []struct {
		reason  string
		held    []time.Duration
		givesIn []int
		want    []time.Duration
	}{
		{"five reverts are corrected at once, and then the delay grows", times(len(backOff), time.Millisecond), nil,
			backOff},
		{"slow reverts increase the delay, too, if the first reverts were quick", append(times(6, minute), times(3, 9*minute)...),
			nil, append(times(5, 0), 10*second, 20*second, 40*second, 80*second)},
		{"five reverts in ten minutes do not exceed the limit", times(20, 121*second), nil, times(20, 0)},
		{"one revert a day causes no delay", times(20, 24*time.Hour), nil, times(20, 0)},
		{
			"the delay is reset when the annotations have held for more than ten minutes",
			append(times(7, second), 10*minute+second, second), nil,
			append(times(5, 0), 10*second, 20*second, 0, 0),
		},
		{
			"the delay is not reset at exactly ten minutes",
			append(times(7, second), 10*minute), nil,
			append(times(5, 0), 10*second, 20*second, 40*second),
		},
		{
			"the delay is also reset if the rival restores the annotations and they hold",
			append(times(7, second), 10*minute+second, second), []int{6},
			append(times(5, 0), 10*second, 20*second, 0, 0),
		},
		{
			"the delay is not reset if the rival restores the annotations and reverts them again",
			times(9, second), []int{6, 7},
			append(times(5, 0), 10*second, 20*second, 40*second, 80*second),
		},
	} {
		if diff := cmp.Diff(c.want, fight(c.held, c.givesIn...)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.reason, diff)
		}
	}
}

func TestSaw(t *testing.T) {
	held := history{}.wrote(setting, now)
	open, _ := held.saw(setting, now)
	removal := plan{annotations: Annotations{"foo": "bar"}, remove: []string{"a"}}
	for _, c := range []struct {
		reason  string
		history history
		plan    plan
		want    bool
	}{
		{"an annotation that was never set", history{}, setting, false},
		{"an annotation that was set", held, setting, true},
		{"a revert that was already counted", open, setting, false},
		{"a second revert after the first was corrected", open.wrote(setting, now), setting, true},
		{"a removal", held, removal, false},
		{"an annotation that the operator removed", held.wrote(plan{remove: []string{"foo"}}, now), setting, false},
		{"an annotation that the rival restored", settledAfter(open, setting), setting, true},
		{"an annotation that is not ensured after an opt-out", settledAfter(open, plan{}), setting, false},
		{"an annotation that was kept when another was removed", held.wrote(removal, now), setting, true},
	} {
		if _, got := c.history.saw(c.plan, now); got != c.want {
			t.Errorf("%s: got reverted %t", c.reason, got)
		}
	}
}

// settledAfter returns the history after a reconcile that has nothing to write.
func settledAfter(h history, p plan) history {
	h, _ = h.saw(plan{annotations: p.annotations}, now)
	return h
}

// TestRejectionsAreReportedOnce checks that a rejection is reported only once, unless the API server's answer changes.
func TestRejectionsAreReportedOnce(t *testing.T) {
	quota, policy := errors.New("quota"), errors.New("policy")
	h := history{}
	for i, c := range []struct {
		reason string
		err    error // nil if the write succeeds
		want   bool
	}{
		{"the first rejection is reported", quota, true},
		{"the same rejection is not reported again", quota, false},
		{"a rejection for another reason is reported", policy, true},
		{"a successful write", nil, false},
		{"a rejection after a successful write is reported", policy, true},
	} {
		var reported bool
		if c.err == nil {
			h = h.wrote(setting, now)
		} else {
			h, reported = h.refused(c.err)
		}
		if reported != c.want {
			t.Errorf("%d: %s: got reported %t", i, c.reason, reported)
		}
	}
	if h, _ = h.saw(plan{annotations: setting.annotations}, now); h.refusal != "" {
		t.Errorf("the history still has rejection %q, although the annotations are correct", h.refusal)
	}
}

// TestRemovalNeverWaits checks that the operator removes annotations at once if an Ingress opts out during the delay.
func TestRemovalNeverWaits(t *testing.T) {
	fought := history{applied: now, delay: lastDelay, open: true, due: now.Add(lastDelay)}
	if after, _ := fought.saw(plan{remove: []string{"foo"}}, now); !after.due.IsZero() {
		t.Errorf("the removal waits until %s", after.due)
	}
	if after, _ := fought.saw(setting, now); after.due != fought.due {
		t.Errorf("due at %s, want %s (unchanged)", after.due, fought.due)
	}
}

// TestSawIsPure checks that saw does not change the history that it is called on.
func TestSawIsPure(t *testing.T) {
	reverts := append(make([]time.Time, 0, 8), now.Add(-11*time.Minute), now.Add(-time.Minute))
	before := history{applied: now, reverts: reverts}
	after, _ := before.saw(setting, now)
	if diff := cmp.Diff([]time.Time{now.Add(-time.Minute), now}, after.reverts); diff != "" {
		t.Errorf("reverts within the window (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]time.Time{now.Add(-11 * time.Minute), now.Add(-time.Minute)}, before.reverts); diff != "" {
		t.Errorf("the original history (-want +got):\n%s", diff)
	}
}
