// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package sim_test

import (
	"slices"
	"testing"
)

// TestTwoLeaders has two operators at work at once, as when one was paused for longer than its lease: their caches know all,
// or one's stop at some revision, for some calls. What they disagree about, each of them would write again and again.
//
// They make no switch too many because they give them the same names. Names that others have are passed over, and while such
// a name becomes free, one that knows of it and one that does not can each make a switch: that life is left out.
func TestTwoLeaders(t *testing.T) {
	for _, l := range lives {
		if slices.ContainsFunc(l.steps, func(s step) bool { return s.what == holdName }) {
			continue
		}
		t.Run(l.name, func(t *testing.T) {
			want := l.live(t, conditions{})
			cases := []conditions{{leaders: 2}}
			for _, revision := range want.revisions {
				for _, kind := range l.caches() {
					cases = append(cases, conditions{leaders: 2, lag: &lag{kind: kind, revision: revision, calls: 20}})
				}
			}
			inParallel(t, cases, l.endAlike(want))
		})
	}
}
