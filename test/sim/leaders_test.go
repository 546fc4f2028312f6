// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package sim_test

import (
	"slices"
	"testing"
)

// TestTwoLeaders runs two operators at the same time. In a cluster, this can happen after a leader was suspended for
// longer than its lease. In some runs, both caches are current. In the other runs, the cache of one operator stops at
// some revision for some calls. If the operators disagreed about an object, they would change it back and forth.
//
// Both operators choose the same names for new switches, and skip a name that is taken. So they do not create too many
// switches. There is one exception: a taken name becomes free, and the cache of only one operator shows this. Then the
// two operators can each create a switch, with different names. So the test leaves out the scenario with holdName.
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
