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

// fight has somebody revert the annotations each time a while after they were set, and returns how long the operator
// waits each time before it sets them again. In the wait after some of the reverts, the rival gives in.
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
			h, _ = h.settled(plan{annotations: setting.annotations}, at)
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
		10 * second, 20 * second, 40 * second, 80 * second, 160 * second, 320 * second, 10 * minute, 10 * minute, 10 * minute,
	}
	for _, c := range []struct {
		reason  string
		held    []time.Duration
		givesIn []int
		want    []time.Duration
	}{
		{"five reverts are put right at once, and then it is a fight", times(len(backOff), time.Millisecond), nil, backOff},
		{"a slow rival fights as well, if it is quick enough to begin with", append(times(6, minute), times(3, 9*minute)...), nil, append(times(5, 0), 10*second, 20*second, 40*second, 80*second)},
		{"five in ten minutes are not more than five", times(20, 121*second), nil, times(20, 0)},
		{"who reverts once a day does not fight", times(20, 24*time.Hour), nil, times(20, 0)},
		{
			"a fight is over once the annotations have held for ten minutes",
			append(times(7, second), 10*minute+second, second), nil,
			append(times(5, 0), 10*second, 20*second, 0, 0),
		},
		{
			"ten minutes are not over before they are",
			append(times(7, second), 10*minute), nil,
			append(times(5, 0), 10*second, 20*second, 40*second),
		},
		{
			"a rival that gives in while the operator waits ends it as well, if that holds",
			append(times(7, second), 10*minute+second, second), []int{6},
			append(times(5, 0), 10*second, 20*second, 0, 0),
		},
		{
			"but one that only seems to give in goes on with it",
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
		{"what was never set cannot be reverted", history{}, setting, false},
		{"what was set can", held, setting, true},
		{"a revert is counted once, however often it is seen", open, setting, false},
		{"another one is counted once the first is put right", open.wrote(setting, now), setting, true},
		{"what is to be removed is nobody's revert", held, removal, false},
		{"what was released cannot be reverted", held.wrote(plan{remove: []string{"foo"}}, now), setting, false},
		{"what the rival has put back itself can be reverted again", settledAfter(open, setting), setting, true},
		{"what the rival has released after an opt-out cannot", settledAfter(open, plan{}), setting, false},
		{"what was kept when something else was removed can", held.wrote(removal, now), setting, true},
	} {
		if _, got := c.history.saw(c.plan, now); got != c.want {
			t.Errorf("%s: reverted is %v", c.reason, got)
		}
	}
}

// settledAfter is a history once nothing of a plan is left to do.
func settledAfter(h history, p plan) history {
	h, _ = h.settled(plan{annotations: p.annotations}, now)
	return h
}

// TestRefusalsAreNews tells of a refusal once, until the API server has changed its mind.
func TestRefusalsAreNews(t *testing.T) {
	quota, policy := errors.New("quota"), errors.New("policy")
	h := history{}
	for i, c := range []struct {
		reason string
		err    error // none for a write that succeeds
		want   bool
	}{
		{"the first is news", quota, true},
		{"its repetition is not", quota, false},
		{"another reason is", policy, true},
		{"a write that succeeds", nil, false},
		{"forgets what was before", policy, true},
	} {
		var news bool
		if c.err == nil {
			h = h.wrote(setting, now)
		} else {
			h, news = h.refused(c.err)
		}
		if news != c.want {
			t.Errorf("%d: %s: news is %v", i, c.reason, news)
		}
	}
	if h, _ = h.settled(setting, now); h.refusal != "" {
		t.Errorf("remembers %q although others have done it", h.refusal)
	}
}

// TestRemovalNeverWaits has an Ingress opt out in the middle of a fight.
func TestRemovalNeverWaits(t *testing.T) {
	fought := history{applied: now, delay: lastDelay, open: true, due: now.Add(lastDelay)}
	if after, _ := fought.saw(plan{remove: []string{"foo"}}, now); !after.due.IsZero() {
		t.Errorf("waits until %s", after.due)
	}
	if after, _ := fought.saw(setting, now); after.due != fought.due {
		t.Errorf("is due at %s, want %s as before", after.due, fought.due)
	}
}

// TestSawIsPure guards the history that others may still hold.
func TestSawIsPure(t *testing.T) {
	reverts := append(make([]time.Time, 0, 8), now.Add(-11*time.Minute), now.Add(-time.Minute))
	before := history{applied: now, reverts: reverts}
	after, _ := before.saw(setting, now)
	if diff := cmp.Diff([]time.Time{now.Add(-time.Minute), now}, after.reverts); diff != "" {
		t.Errorf("reverts within the window (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]time.Time{now.Add(-11 * time.Minute), now.Add(-time.Minute)}, before.reverts); diff != "" {
		t.Errorf("the history of before (-want +got):\n%s", diff)
	}
}
