// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"

	"container.training/useless/test/internal/invariants"
)

// A goal is a figure with a limit.
type goal struct {
	what    string
	limit   limit
	format  func(float64) string
	measure measurement
}

// A limit is a bound for a figure.
type limit struct {
	least bool // true if the figure must be at least the value; false if it must be at most the value
	value float64
}

func atLeast(value float64) limit { return limit{true, value} }
func atMost(value float64) limit  { return limit{false, value} }

// A measurement computes a figure from records. It returns false if no record has the values that it needs.
type measurement func(results) (estimate, bool)

// metBy reports whether the whole interval is within the limit.
func (l limit) metBy(e estimate) bool {
	if l.least {
		return e.low >= l.value
	}
	return e.high <= l.value
}

// A group is a section of docs/performance.md.
type group struct {
	title string
	goals []goal
	why   string // why goals are missed; may be empty
}

// noWorse is the limit of all comparisons.
var noWorse = atLeast(0.97)

// comparisons returns the figures that compare this revision with the revision of the flag -base. If a figure is above
// 1, this revision is better.
func comparisons() []goal {
	const needs = "base / ours, "
	flips := func(cost string) measurement { return ratio("lateness", "base", 1, cost, "", "1000x10, 50/s") }
	start := func(cost string) measurement { return ratio("large", "base", 1, cost, "", "start") }
	creating := func(group int, cost, work string) measurement {
		return ratio("convergence", "base", group, cost, work, compared[0].String(), compared[1].String())
	}
	return []goal{
		{"ours / base, Switches per second", noWorse, number, creating(2, "seconds", "children")},
		{needs + "CPU time for a Switch", noWorse, number, creating(2, "cpu_subject_seconds", "children")},
		{needs + "requests for a Switch", noWorse, number, creating(0, "requests", "children")},
		{needs + "maximum memory while Switches are created", noWorse, number, creating(0, "peak_subject_bytes", "")},
		{needs + "maximum memory during a start", noWorse, number, start("peak_bytes")},
		{needs + "time to start", noWorse, number, start("seconds")},
		{needs + "p50 of the lateness, 50 flips/s", noWorse, number, flips("lateness_p50_seconds")},
		{needs + "p99 of the lateness, 50 flips/s", noWorse, number, flips("lateness_p99_seconds")},
	}
}

// groups returns all goals.
func groups() []group {
	return []group{
		{"Creating Switches", convergenceGoals(), `kube-apiserver uses most of the processor. The operator
uses processor time for work that the minimal client does not have. Pods are cheaper for kube-apiserver than custom
resources: they use a binary format, and need no schema and no conversion.`},
		{"Flips", flipGoals(), `The processor is too slow for the load. Each flip needs several writes:
the user's change, the flip, and the statuses of the Switch and of the Machine. The operator writes due flips before
statuses.`},
		{"Start, memory and rest", largeGoals(), `client-go needs four fifths of the time of a start. It
decodes the objects of a kind one after the other. At rest, the Go runtime collects garbage every two minutes. Every 5 to 7.5
minutes, kube-apiserver compares its caches with etcd, and calls the conversion webhook for all Machines.`},
	}
}

func convergenceGoals() []goal {
	const minimal = "Switches per second, operator / minimal client, "
	return []goal{
		{minimal + "1000x10", atLeast(0.85), number, rate("1000x10", "minimal client")},
		{minimal + "10000x10", atLeast(0.85), number, rate("10000x10", "minimal client")},
		{minimal + "100x1000", atLeast(0.85), number, rate("100x1000", "minimal client")},
		{
			"children per second, operator / ReplicaSet controller, 10000x10", atLeast(1.5), number,
			rate("10000x10", "replicaset"),
		},
	}
}

func flipGoals() []goal {
	p99 := func(kase string) measurement { return typical("lateness", kase, "lateness_p99_seconds") }
	const wrong = "wrong flips: early, too close to another flip, or repeated"
	return []goal{
		{"p99 of the lateness, 1000x10, 50 flips/s", atMost(25e-3), duration, p99("1000x10, 50/s")},
		{"p99 of the lateness, 1000x10, 100 flips/s", atMost(25e-3), duration, p99("1000x10, 100/s")},
		{"p99 of the lateness, 10000x1, 200 flips/s", atMost(100e-3), duration, p99("10000x1, 200/s")},
		{wrong, atMost(0), number, wrongFlips("lateness")},
		{
			"maximum lateness after the leader receives SIGTERM", atMost(2.5), duration,
			typical("failover", "500x1, SIGTERM", "lateness_max_seconds"),
		},
		{
			"maximum lateness after the leader receives SIGKILL; its lease lasts 15 s", atMost(17), duration,
			typical("failover", "500x1, SIGKILL", "lateness_max_seconds"),
		},
		{wrong + ", when the leader changes", atMost(0), number, wrongFlips("failover")},
	}
}

func largeGoals() []goal {
	start := func(key string) measurement { return typical("large", "start", key) }
	return []goal{
		{"time to start, 10000x10", atMost(6), duration, start("seconds")},
		{"maximum resident memory, 10000x10", atMost(200 << 20), byteSize, start("peak_bytes")},
		{"writes during a start, 10000x10", atMost(0), number, start("writes")},
		{
			"maximum time until the operator notices a change during a start, 10000x10", atMost(6), duration,
			overall("large", "start with users", "notice_max_seconds"),
		},
		{
			"writes at rest in 4 minutes besides the Lease, 10000x10", atMost(0), number,
			typical("large", "rest", "writes"),
		},
	}
}

// rate divides the children per second of the operator by the children per second of another subject. It combines two
// consecutive rounds, because the order of the subjects changes from round to round.
func rate(kase, reference string) measurement {
	return ratio("convergence", reference, 2, "seconds", "children", kase)
}

// ratio divides another subject's cost per unit of work by the operator's cost per unit of work. cost and work are
// names of values in records. group is the number of consecutive rounds that give one ratio. If group is 0, each case
// gives one ratio, from its record of all rounds. The estimate is the median of all ratios.
func ratio(experiment, reference string, group int, cost, work string, kases ...string) measurement {
	return func(r results) (estimate, bool) {
		var ratios []float64
		for _, kase := range kases {
			rounds := r.byRound(experiment, kase, reference, "ours")
			if all := r.round(0, experiment, kase, reference, "ours"); group == 0 && all != nil {
				rounds = [][]map[string]float64{all}
			}
			for some := range slices.Chunk(rounds, max(group, 1)) {
				reference, ours := costOf(some, 0, cost, work), costOf(some, 1, cost, work)
				if reference > 0 && ours > 0 {
					ratios = append(ratios, reference/ours)
				}
			}
		}
		return bootstrap(ratios)
	}
}

// costOf returns a subject's cost per unit of work. If work is empty, the unit is a round. It returns 0 if there was no
// work.
func costOf(rounds [][]map[string]float64, subject int, cost, work string) float64 {
	costs, units := 0., 0.
	for _, round := range rounds {
		costs += round[subject][cost]
		if work == "" {
			units++
		} else {
			units += round[subject][work]
		}
	}
	if units == 0 {
		return 0
	}
	return costs / units
}

// typical returns the median of a value of the operator over all rounds.
func typical(experiment, kase, key string) measurement {
	return func(r results) (estimate, bool) {
		var values []float64
		for _, round := range r.byRound(experiment, kase, "ours") {
			if value, ok := round[0][key]; ok {
				values = append(values, value)
			}
		}
		return bootstrap(values)
	}
}

// overall returns a value of the operator's record of all rounds.
func overall(experiment, kase, key string) measurement {
	return func(r results) (estimate, bool) {
		all := r.round(0, experiment, kase, "ours")
		if all == nil {
			return estimate{}, false
		}
		return exactly(all[0][key]), true
	}
}

// wrongFlips returns the number of the operator's wrong flips in an experiment.
func wrongFlips(experiment string) measurement {
	return func(r results) (estimate, bool) {
		found, n := false, 0.
		for _, record := range r {
			if record.Experiment == experiment && record.Subject == "ours" {
				found = true
				n += record.Values[invariants.Early] + record.Values[invariants.Crowded] + record.Values[invariants.Doubled]
			}
		}
		return exactly(n), found
	}
}
