// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package sim_test

import (
	"slices"
	"testing"
)

// TestTwoLeaders runs two operators at the same time, as after a leader was suspended for longer than its lease. Either
// both caches are current, or the cache of one operator stops at some revision for some calls. If the operators
// disagreed about an object, they would write it again and again.
//
// They do not create too many switches, because both choose the same names. They skip a name that another object has.
// When such a name becomes free, an operator with a stale cache and an operator with a current cache can each create a
// switch. So the test leaves out the scenario with such a name.
func TestTwoLeaders(t *testing.T) {
	for _, s := range scenarios {
		if slices.ContainsFunc(s.steps, func(s step) bool { return s.what == holdName }) {
			continue
		}
		t.Run(s.name, func(t *testing.T) {
			want := s.run(t, conditions{})
			cases := []conditions{{leaders: 2}}
			for _, revision := range want.revisions {
				for _, kind := range s.caches() {
					cases = append(cases, conditions{leaders: 2, lag: &lag{kind: kind, revision: revision, calls: 20}})
				}
			}
			inParallel(t, cases, s.sameEndState(want))
		})
	}
}
