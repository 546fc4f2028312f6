// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"container.training/useless/test/history"
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
	switch {
	case g.least:
		return "at least " + g.write(g.limit)
	case g.limit == 0:
		return "none"
	}
	return "at most " + g.write(g.limit)
}

// The benchmarks of reconciles that find nothing to do.
const (
	amongFew  = "NoOpReconcile/machines=100"
	amongMany = "NoOpReconcile/machines=10000"
)

// comparisons are what is said of another revision.
var comparisons = []goal{
	{"", "switches per second, ours / base, at 1000x10", true, 1, significant, rateRatio("convergence", "1000x10", "ours", "base", "children")},
	{"", "the same at 100x1000", true, 1, significant, rateRatio("convergence", "100x1000", "ours", "base", "children")},
	{"", "time of a reconcile that finds nothing to do among 100,000 switches, ours / base", false, 1, significant, costRatio("noop", amongMany, "ours", "base", "seconds", "")},
	{"", "the same among 1,000", false, 1, significant, costRatio("noop", amongFew, "ours", "base", "seconds", "")},
	{"", "p99 of the lateness, 1,000 Machines of 10 switches, 50 flips/s, ours / base", false, 1, significant, latenessRatio("1000x10, 50/s")},
	{"", "the same, 100 flips/s", false, 1, significant, latenessRatio("1000x10, 100/s")},
	{"", "the same, 10,000 Machines of one switch, 200 flips/s", false, 1, significant, latenessRatio("10000x1, 200/s")},
}

// groups are all goals, under their headings.
var groups = []struct {
	title string
	goals []goal
}{
	{"Convergence", []goal{
		{"P1", "switches per second, ours / bare loop with informer, at 1000x10", true, 0.85, significant, rateRatio("convergence", "1000x10", "ours", "bare+informer", "children")},
		{"P1", "the same at 10000x10", true, 0.85, significant, rateRatio("convergence", "10000x10", "ours", "bare+informer", "children")},
		{"P1", "the same at 100x1000", true, 0.85, significant, rateRatio("convergence", "100x1000", "ours", "bare+informer", "children")},
		{"P1b", "children per second, ours / ReplicaSet controller, at 10000x10", true, 1.5, significant, rateRatio("convergence", "10000x10", "ours", "replicaset", "children")},
		{"P1b", "children per second, ours / the tutorial's controller, at 10000x10", true, 20, significant, rateRatio("convergence", "10000x10", "ours", "tutorial", "children")},
		{"P2", "requests per converged Machine / the least there can be, at 10000x10", false, 1.02, significant, requestRatio("10000x10")},
		{"P2", "conflicts meanwhile", false, 0, significant, conflicts("10000x10")},
	}},
	{"A reconcile that finds nothing to do", []goal{
		{"P3", "time in a cache of 100,000 switches, one Machine after the other", false, 20e-6, duration, typical("noop", amongMany, "ours", "seconds")},
		{"P3", "allocations", false, 40, significant, typical("noop", amongMany, "ours", "allocations")},
		{"P3", "time among 100,000 switches / among 1,000, one Machine after the other", false, 1.2, significant, caseRatio("noop", amongMany, amongFew, "seconds")},
		{"P3", "the same, of a hundred Machines in both", false, 1.2, significant, typical("noop", "NoOpReconcileSlope/machines=100", "ours", "ratio")},
		{"P3", "the same, of one Machine in both", false, 1.2, significant, typical("noop", "NoOpReconcileSlope/machines=1", "ours", "ratio")},
	}},
	{"Flips on time", []goal{
		{"P4", "p99 of the lateness, 1,000 Machines of 10 switches, 50 flips/s", false, 25e-3, duration, whole("lateness", "1000x10, 50/s", "lateness_p99_seconds")},
		{"P4", "the same, 100 flips/s", false, 25e-3, duration, whole("lateness", "1000x10, 100/s", "lateness_p99_seconds")},
		{"P4", "the same, 10,000 Machines of one switch, 200 flips/s", false, 100e-3, duration, whole("lateness", "10000x1, 200/s", "lateness_p99_seconds")},
		{"P4", "flips of these that were early, too close to another or done twice", false, 0, significant, mustNotBe("lateness")},
		{"P4b", "10,000 flips due at once: flips per second, ours / bare loop with informer", true, 0.85, significant, rateRatio("herd", "10000x1", "ours", "bare+informer", "flips")},
		{"P4b", "flips of these that were early, too close to another or done twice", false, 0, significant, mustNotBe("herd")},
		{"P9", "lateness of the latest flip after the leader was stopped", false, 2.5, duration, typical("failover", "500x1, SIGTERM", "ours", "lateness_max_seconds")},
		{"P9", "the same after it was killed; its lease is for 15 s", false, 17, duration, typical("failover", "500x1, SIGKILL", "ours", "lateness_max_seconds")},
		{"P9", "flips that were early, too close to another or done twice", false, 0, significant, mustNotBe("failover")},
	}},
	{"Two versions", []goal{
		{"P5", "conversion of one Machine over TLS, controller-runtime's handler / ours", true, 3, significant, costRatio("conversion", "1", "stock", "ours", "seconds", "objects")},
		{"P5", "the same, 500 Machines in a request", true, 3, significant, costRatio("conversion", "500", "stock", "ours", "seconds", "objects")},
		{"P5", "the same, 10,000 Machines in a request", true, 3, significant, costRatio("conversion", "10000", "stock", "ours", "seconds", "objects")},
		{"P5", "p99 of a request for one Machine", false, 2e-3, duration, whole("conversion", "1", "p99_seconds")},
		{"P5", "p99 of a request for 1,500 Machines", false, 50e-3, duration, whole("conversion", "1500", "p99_seconds")},
		{"P5", "p99 of a request for 10,000 Machines", false, 300e-3, duration, whole("conversion", "10000", "p99_seconds")},
		{"P6", "time of a LIST of 10,000 Machines, v1alpha1 / v1beta1", false, 1.1, significant, costRatio("large", "list-whole", "v1alpha1", "v1beta1", "seconds", "")},
		{"P6", "the same from the API server's cache (resourceVersion=0)", false, 1.1, significant, costRatio("large", "list-whole-cached", "v1alpha1", "v1beta1", "seconds", "")},
		{"P6", "the same in pages of 500", false, 1.1, significant, costRatio("large", "list-pages-of-500", "v1alpha1", "v1beta1", "seconds", "")},
		{"P6b", "time until a cold cache of 10,000 Machines in v1alpha1 is filled", false, 10, duration, typical("large", "cold-cache", "v1alpha1", "seconds")},
	}},
	{"Memory", []goal{
		{"P7", "live heap for each switch in the cache, never flipped", false, 1.5 * (1 << 10), byteSize, typical("memory", "resting", "ours", "heap_per_switch_bytes")},
		{"P7", "the same, flipped", false, 1.5 * (1 << 10), byteSize, typical("memory", "flipped", "ours", "heap_per_switch_bytes")},
		{"P7", "controller-runtime's default cache / ours, never flipped", true, 3, significant, costRatio("memory", "resting", "default", "ours", "heap_per_switch_bytes", "")},
		{"P7", "the same, flipped", true, 3, significant, costRatio("memory", "flipped", "default", "ours", "heap_per_switch_bytes", "")},
		{"P7b", "most memory (VmHWM) with 10,000 Machines and 100,000 switches", false, 256 << 20, byteSize, typical("large", "start", "ours", "peak_bytes")},
	}},
	{"Start, and rest", []goal{
		{"P8", "time from its start until the operator has looked at 10,000 Machines", false, 10, duration, typical("large", "start", "ours", "seconds")},
		{"P8", "writes meanwhile", false, 0, significant, typical("large", "start", "ours", "writes")},
		{"P8", "p99 of what users wait who change a Machine while it works off the backlog", false, 250e-3, duration, typical("large", "start-edited", "ours", "p99_after_loaded_seconds")},
		{"P8", "the same while another replica starts beside the one that leads", false, 250e-3, duration, typical("large", "join-edited", "ours", "p99_meanwhile_seconds")},
		{"P8", "the same while the only one reads what there is", false, 250e-3, duration, typical("large", "start-edited", "ours", "p99_before_loaded_seconds")},
		{"P10", "writes in 10 minutes with 10,000 Machines at rest", false, 0, significant, typical("idle", "10000x10", "ours", "writes")},
		{"P10", "share of a core that it takes meanwhile", false, 0.005, percentage, typical("idle", "10000x10", "ours", "cpu_ratio")},
		{"P11", "losses of the lease in 10 minutes of as many writes as there can be", false, 0, significant, typical("flood", "1000x10", "ours", "lease_losses")},
	}},
}

// rateRatio is how many times as much a contender does in the same time as another. Turns count by twos, of which the
// second is in the opposite order: what comes of the order then concerns both alike.
func rateRatio(experiment, kase, contender, other, work string) measurement {
	return func(r results) (estimate, bool) {
		var ratios []float64
		for pair := range slices.Chunk(r.byRound(experiment, kase, contender, other), 2) {
			each, reference := overall(pair, 0, "seconds", work), overall(pair, 1, "seconds", work)
			if !math.IsInf(each, 0) && !math.IsInf(reference, 0) { // one of them had nothing left to do
				ratios = append(ratios, reference/each)
			}
		}
		if len(ratios) == 0 {
			return estimate{}, false
		}
		return bootstrap(ratios, median), true
	}
}

// costRatio is how many times as much of something a piece of work takes one contender as another, in the same round. A
// round is one piece of work if no other is named.
func costRatio(experiment, kase, contender, reference, cost, work string) measurement {
	return func(r results) (estimate, bool) {
		rounds := r.byRound(experiment, kase, contender, reference)
		ratios := make([]float64, len(rounds))
		for i, round := range rounds {
			ratios[i] = round[0].cost(cost, work) / round[1].cost(cost, work)
		}
		if len(ratios) == 0 {
			return estimate{}, false
		}
		return bootstrap(ratios, median), true
	}
}

// cost is what a piece of work has cost.
func (r Record) cost(cost, work string) float64 {
	if work == "" {
		return r.Values[cost]
	}
	return r.Values[cost] / r.Values[work]
}

// overall is what a piece of work has cost the i-th contender of some rounds.
func overall(rounds [][]Record, i int, cost, work string) float64 {
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

// whole is a value of the operator that was recorded of the whole and not of a round.
func whole(experiment, kase, key string) measurement {
	return func(r results) (estimate, bool) {
		record, ok := r.sum(experiment, kase, "ours")
		return exactly(record.Values[key]), ok
	}
}

// mustNotBe is how many flips of an experiment were as they must not be.
func mustNotBe(experiment string) measurement {
	return func(r results) (estimate, bool) {
		found, faulty := false, 0.
		for _, record := range r {
			if record.Experiment == experiment && record.Contender == "ours" && record.Round == 0 {
				found = true
				faulty += record.Values[history.Early] + record.Values[history.Crowded] + record.Values[history.Doubled]
			}
		}
		return exactly(faulty), found
	}
}

// caseRatio is how many times as much something of the operator is in one case as in another.
func caseRatio(experiment, kase, reference, key string) measurement {
	return func(r results) (estimate, bool) {
		above, below := r.byRound(experiment, kase, "ours"), r.byRound(experiment, reference, "ours")
		ratios := make([]float64, min(len(above), len(below)))
		for i := range ratios {
			ratios[i] = above[i][0].Values[key] / below[i][0].Values[key]
		}
		if len(ratios) == 0 {
			return estimate{}, false
		}
		return bootstrap(ratios, median), true
	}
}

// latenessRatio is how many times as late flips are as those of the base.
func latenessRatio(kase string) measurement {
	return func(r results) (estimate, bool) {
		ours, measured := r.sum("lateness", kase, "ours")
		base, compared := r.sum("lateness", kase, "base")
		return exactly(ours.Values["lateness_p99_seconds"] / base.Values["lateness_p99_seconds"]), measured && compared
	}
}

// requestRatio is how many requests the operator makes, all told, for each that it has to make for a Machine that has all of
// its switches: one for each switch, one for the finalizer and one for the status. Where its time was up before all had
// theirs, those for Machines that have but some are among them.
func requestRatio(kase string) measurement {
	return func(r results) (estimate, bool) {
		sum, ok := r.sum("convergence", kase, "ours")
		size := parseSize(kase)
		converged := sum.Values["converged"]
		if sum.Values["ended"] == 1 {
			converged = float64(size.machines)
		}
		return exactly(sum.Values["requests"] / (converged * float64(size.switches+2))), ok && converged > 0
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
