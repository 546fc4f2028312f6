// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
)

// A goal is a figure, and what is asked of it.
type goal struct {
	figure  string
	what    string
	least   bool // the figure is to be at least the limit, otherwise at most
	limit   float64
	write   func(float64) string // writes it and its limit
	measure measurement
}

// A measurement finds a figure in the records of a run. It fails if they say nothing of it.
type measurement func(results) (estimate, bool)

// met reports whether the bad end of the interval reaches the goal.
func (g goal) met(e estimate) bool {
	if g.least {
		return e.low >= g.limit
	}
	return e.high <= g.limit
}

// asked says what the goal is.
func (g goal) asked() string {
	if g.least {
		return "at least " + g.write(g.limit)
	}
	return "at most " + g.write(g.limit)
}

// The benchmarks of reconciles that find nothing to do.
const (
	amongFew  = "NoOpReconcile/machines=100"
	amongMany = "NoOpReconcile/machines=10000"
)

// groups are all goals, under their headings.
var groups = []struct {
	title string
	goals []goal
}{
	{"Convergence", []goal{
		{"P1", "switches per second, ours / bare loop with informer, at 1000x10", true, 0.85, significant, rateRatio("1000x10", "bare+informer")},
		{"P1", "the same at 10000x10", true, 0.85, significant, rateRatio("10000x10", "bare+informer")},
		{"P1", "the same at 100x1000", true, 0.85, significant, rateRatio("100x1000", "bare+informer")},
		{"P1b", "children per second, ours / ReplicaSet controller, at 10000x10", true, 1.5, significant, rateRatio("10000x10", "replicaset")},
		{"P1b", "children per second, ours / the tutorial's controller, at 10000x10", true, 20, significant, rateRatio("10000x10", "tutorial")},
		{"P2", "requests per converged Machine / the least there can be, at 10000x10", false, 1.02, significant, requestRatio("10000x10")},
		{"P2", "conflicts meanwhile", false, 0, significant, conflicts("10000x10")},
	}},
	{"A reconcile that finds nothing to do", []goal{
		{"P3", "time in a cache of 100,000 switches, one Machine after the other", false, 20e-6, duration, typical("noop", amongMany, "ours", "seconds")},
		{"P3", "allocations", false, 40, significant, typical("noop", amongMany, "ours", "allocations")},
		{"P3", "time among 100,000 switches / among 1,000, one Machine after the other", false, 1.2, significant, caseRatio("noop", amongMany, amongFew, "ours", "seconds")},
		{"P3", "the same, of a hundred Machines in both", false, 1.2, significant, typical("noop", "NoOpReconcileSlope/machines=100", "ours", "ratio")},
		{"P3", "the same, of one Machine in both", false, 1.2, significant, typical("noop", "NoOpReconcileSlope/machines=1", "ours", "ratio")},
	}},
}

// rateRatio is how many times as many children the operator makes in the same time as another contender.
func rateRatio(size, other string) measurement {
	return costRatio("convergence", size, other, "ours", "seconds", "children")
}

// costRatio is how many times as much of something a piece of work takes one contender as another.
func costRatio(experiment, kase, contender, reference, cost, work string) measurement {
	return func(r results) (estimate, bool) {
		rounds := r.byRound(experiment, kase, contender, reference)
		if len(rounds) == 0 {
			return estimate{}, false
		}
		return bootstrap(rounds, func(drawn [][]Record) float64 {
			return mean(drawn, 0, cost, work) / mean(drawn, 1, cost, work)
		}), true
	}
}

// mean is what a piece of work has cost the i-th contender of the rounds.
func mean(rounds [][]Record, i int, cost, work string) float64 {
	total, done := 0., 0.
	for _, round := range rounds {
		total += round[i].Values[cost]
		done += round[i].Values[work]
	}
	return total / done
}

// typical is the median of what the rounds of a contender say.
func typical(experiment, kase, contender, key string) measurement {
	return func(r results) (estimate, bool) {
		var values []float64
		for _, round := range r.byRound(experiment, kase, contender) {
			if value, ok := round[0].Values[key]; ok {
				values = append(values, value)
			}
		}
		if len(values) == 0 {
			return estimate{}, false
		}
		return bootstrap(values, median), true
	}
}

// caseRatio is how many times as much something is in one case as in another.
func caseRatio(experiment, kase, reference, contender, key string) measurement {
	return func(r results) (estimate, bool) {
		above, below := r.byRound(experiment, kase, contender), r.byRound(experiment, reference, contender)
		var ratios []float64
		for i := range min(len(above), len(below)) {
			ratios = append(ratios, above[i][0].Values[key]/below[i][0].Values[key])
		}
		if len(ratios) == 0 {
			return estimate{}, false
		}
		return bootstrap(ratios, median), true
	}
}

// requestRatio is how many requests the operator makes, all told, for each that it has to make: one for each switch, one
// for the finalizer and one for the status.
func requestRatio(kase string) measurement {
	return func(r results) (estimate, bool) {
		sum, ok := r.sum("convergence", kase, "ours")
		size := parseSize(kase)
		return exactly(sum.Values["requests"] / float64(size.machines*(size.switches+2))), ok && sum.Values["ended"] == 1
	}
}

// conflicts is how many writes were refused because the object had changed.
func conflicts(kase string) measurement {
	return func(r results) (estimate, bool) {
		sum, ok := r.sum("convergence", kase, "ours")
		count := 0.
		for name, value := range sum.Values {
			if strings.HasSuffix(name, " 409") {
				count += value
			}
		}
		return exactly(count), ok
	}
}

// exactly is an estimate of what was counted.
func exactly(value float64) estimate { return estimate{value, value, value} }

// results are the records of a run.
type results []Record

// byRound returns what some contenders did in each round in which all of them took part.
func (r results) byRound(experiment, kase string, contenders ...string) (rounds [][]Record) {
	found := map[int]map[string]Record{}
	last := 0
	for _, record := range r {
		if record.Experiment != experiment || record.Case != kase || record.Round == 0 {
			continue
		}
		if found[record.Round] == nil {
			found[record.Round] = map[string]Record{}
		}
		found[record.Round][record.Contender] = record
		last = max(last, record.Round)
	}
	for i := 1; i <= last; i++ {
		var round []Record
		for _, contender := range contenders {
			if record, ok := found[i][contender]; ok {
				round = append(round, record)
			}
		}
		if len(round) == len(contenders) {
			rounds = append(rounds, round)
		}
	}
	return rounds
}

// sum returns what was recorded of the whole and not of a round.
func (r results) sum(experiment, kase, contender string) (Record, bool) {
	for _, record := range r {
		if record.Experiment == experiment && record.Case == kase && record.Contender == contender && record.Round == 0 {
			return record, true
		}
	}
	return Record{}, false
}

// parseSize is the opposite of a size's String.
func parseSize(text string) (s size) {
	if _, err := fmt.Sscanf(text, "%dx%d", &s.machines, &s.switches); err != nil {
		panic(fmt.Sprintf("%q is no size: %v", text, err))
	}
	return s
}
