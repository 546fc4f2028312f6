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
	least bool // the figure must be at least the value; otherwise at most
	value float64
}

func atLeast(value float64) limit { return limit{true, value} }
func atMost(value float64) limit  { return limit{false, value} }

// A measurement computes a figure from records. It returns false if there are no records of it.
type measurement func(results) (estimate, bool)

// metBy reports whether the whole interval is within the limit.
func (l limit) metBy(e estimate) bool {
	if l.least {
		return e.low >= l.value
	}
	return e.high <= l.value
}

// A group is a part of the page.
type group struct {
	title string
	goals []goal
	why   string // why goals are missed; may be empty
}

// comparisons compare the revision with the one of -base.
func comparisons() []goal {
	return []goal{
		{"Switches per second, ours / base, 1000x10", atLeast(1), number, rate("1000x10", "base")},
		{"Switches per second, ours / base, 100x1000", atLeast(1), number, rate("100x1000", "base")},
		{"p99 of the lateness, ours / base, 1000x10, 50 flips/s", atMost(1), number, latenessRatio("1000x10, 50/s")},
		{"p99 of the lateness, ours / base, 1000x10, 100 flips/s", atMost(1), number, latenessRatio("1000x10, 100/s")},
		{"p99 of the lateness, ours / base, 10000x1, 200 flips/s", atMost(1), number, latenessRatio("10000x1, 200/s")},
	}
}

// groups returns all goals.
func groups() []group {
	return []group{
		{"Creating Switches", convergenceGoals(), `kube-apiserver uses most of the processor. The operator
uses a part that the minimal client does not need. Pods are cheaper for kube-apiserver than custom resources: they use
a binary format and no schema or conversion.`},
		{"Flips", flipGoals(), `The processor is the limit. A flip needs six writes: the change by the
user, two statuses of the Switch, two statuses of the Machine, and the flip. The operator writes due flips before
statuses.`},
		{"Start, memory and rest", largeGoals(), `Four fifths of a start are spent in client-go, which
decodes one kind of objects after the other. At rest, the operator collects garbage every two minutes. Every 5 to 7.5
minutes kube-apiserver compares its caches with etcd, and has all Machines converted.`},
	}
}

func convergenceGoals() []goal {
	const minimal = "Switches per second, operator / minimal client, "
	return []goal{
		{minimal + "1000x10", atLeast(0.85), number, rate("1000x10", "bare+informer")},
		{minimal + "10000x10", atLeast(0.85), number, rate("10000x10", "bare+informer")},
		{minimal + "100x1000", atLeast(0.85), number, rate("100x1000", "bare+informer")},
		{
			"children per second, operator / ReplicaSet controller, 10000x10", atLeast(1.5), number,
			rate("10000x10", "replicaset"),
		},
	}
}

func flipGoals() []goal {
	const p99 = "lateness_p99_seconds"
	const wrong = "wrong flips: early, too close to another flip, or repeated"
	return []goal{
		{"p99 of the lateness, 1000x10, 50 flips/s", atMost(25e-3), duration, whole("lateness", "1000x10, 50/s", p99)},
		{"p99 of the lateness, 1000x10, 100 flips/s", atMost(25e-3), duration, whole("lateness", "1000x10, 100/s", p99)},
		{"p99 of the lateness, 10000x1, 200 flips/s", atMost(100e-3), duration, whole("lateness", "10000x1, 200/s", p99)},
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
	return []goal{
		{"time to start, 10000x10", atMost(10), duration, typical("large", "start", "seconds")},
		{
			"maximum resident memory, 10000x10", atMost(256 << 20), byteSize,
			typical("large", "start", "peak_bytes"),
		},
		{"writes during a start, 10000x10", atMost(0), number, typical("large", "start", "writes")},
		{"writes in 10 minutes at rest, 10000x10", atMost(0), number, typical("idle", "10000x10", "writes")},
		{"share of a core at rest, 10000x10", atMost(0.005), percentage, typical("idle", "10000x10", "cpu_ratio")},
	}
}

// rate compares how many children per second the operator and another subject create. Two turns count as one, because
// the second turn has the opposite order.
func rate(kase, reference string) measurement {
	return ratio("convergence", kase, reference, "ours", 2, "children")
}

// ratio compares the time that two subjects need for a unit of work: the median of the ratios in all groups of rounds.
func ratio(experiment, kase, subject, reference string, group int, work string) measurement {
	return func(r results) (estimate, bool) {
		var ratios []float64
		for rounds := range slices.Chunk(r.byRound(experiment, kase, subject, reference), group) {
			var seconds, units [2]float64
			for _, round := range rounds {
				for i, values := range round {
					seconds[i] += values["seconds"]
					units[i] += values[work]
				}
			}
			if units[0] > 0 && units[1] > 0 {
				ratios = append(ratios, seconds[0]/units[0]/(seconds[1]/units[1]))
			}
		}
		return bootstrapAny(ratios)
	}
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
		return bootstrapAny(values)
	}
}

func bootstrapAny(values []float64) (estimate, bool) {
	if len(values) == 0 {
		return estimate{}, false
	}
	return bootstrap(values), true
}

// whole returns a value of the operator that was recorded for all rounds.
func whole(experiment, kase, key string) measurement {
	return func(r results) (estimate, bool) {
		record, ok := r.sum(experiment, kase, "ours")
		value, measured := record.Values[key]
		return exactly(value), ok && measured
	}
}

// latenessRatio compares the lateness with that of the base.
func latenessRatio(kase string) measurement {
	return func(r results) (estimate, bool) {
		ours, measured := r.sum("lateness", kase, "ours")
		base, compared := r.sum("lateness", kase, "base")
		const p99 = "lateness_p99_seconds"
		return exactly(ours.Values[p99] / base.Values[p99]), measured && compared
	}
}

// wrongFlips returns the number of the operator's wrong flips in an experiment.
func wrongFlips(experiment string) measurement {
	return func(r results) (estimate, bool) {
		found, n := false, 0.
		for _, record := range r {
			if record.Experiment == experiment && record.Subject == "ours" && record.Round == 0 {
				found = true
				n += record.Values[invariants.Early] + record.Values[invariants.Crowded] + record.Values[invariants.Doubled]
			}
		}
		return exactly(n), found
	}
}
