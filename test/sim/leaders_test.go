// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package sim_test

import "testing"

// TestTwoLeaders has two operators at work at once, as when one was paused for longer than its lease: their caches know all,
// or one's stop at some revision, for some calls. What they disagree about, each of them would write again and again.
func TestTwoLeaders(t *testing.T) {
	for _, l := range lives {
		t.Run(l.name, func(t *testing.T) {
			want := l.live(t, conditions{})
			cases := []conditions{{leaders: 2}}
			for revision := int64(1); revision <= want.revisions; revision++ {
				for _, kind := range append(l.kinds, "") {
					cases = append(cases, conditions{leaders: 2, lag: &lag{kind: kind, revision: revision, calls: 20}})
				}
			}
			inParallel(t, cases, l.endAlike(want))
		})
	}
}
