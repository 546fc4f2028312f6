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
	flips := func(cost, work string) measurement { return ratio("flips", "base", 1, cost, work, "50/s") }
	start := func(cost string) measurement { return ratio("large", "base", 1, cost, "", "start") }
	creating := func(group int, cost, work string) measurement {
		return ratio("convergence", "base", group, cost, work, compared[0].String(), compared[1].String())
	}
	return []goal{
		{"ours / base, Switches per second", noWorse, number, creating(2, "seconds", "children")},
		{needs + "CPU time for a Switch", noWorse, number, creating(2, "cpu_subject_seconds", "children")},
		{needs + "API server CPU time for a Switch", noWorse, number, creating(2, "cpu_apiserver_seconds", "children")},
		{needs + "requests for a Switch", noWorse, number, creating(0, "requests", "children")},
		{needs + "maximum memory while Switches are created", noWorse, number, creating(0, "peak_subject_bytes", "")},
		{needs + "maximum memory during a start", noWorse, number, start("peak_bytes")},
		{needs + "time to start", noWorse, number, start("seconds")},
		{needs + "p50 of the lateness, 50 flips/s", noWorse, number, flips("lateness_p50_seconds", "")},
		{needs + "p99 of the lateness, 50 flips/s", noWorse, number, flips("lateness_p99_seconds", "")},
		{needs + "kube-apiserver's CPU time for a flip", noWorse, number, flips("cpu_apiserver_seconds", "changes")},
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
		{"Scheduled stops and starts", scheduleGoals(), ""},
		{"Start, memory and rest", largeGoals(), `client-go needs four fifths of the time of a start. It
decodes the objects of a kind one after the other. At rest, the Go runtime collects garbage every two minutes. Every 5 to 7.5
minutes, kube-apiserver compares its caches with etcd, and calls the conversion webhook for all Machines.`},
	}
}

func convergenceGoals() []goal {
	const minimal = "Switches per second, operator / minimal client, "
	return []goal{
		{"Switches per second, operator / creator, 1000x10", atLeast(0.65), number, rate("1000x10", creator)},
		{minimal + "1000x10", atLeast(0.9), number, rate("1000x10", minimalClient)},
		{minimal + "10000x10", atLeast(0.9), number, rate("10000x10", minimalClient)},
		{minimal + "100x1000", atLeast(0.9), number, rate("100x1000", minimalClient)},
		{
			"API server CPU time for a Switch, replicaset algorithm / operator, 1000x10", atLeast(1), number,
			ratio("convergence", replicaSetAlgorithm, 2, "cpu_apiserver_seconds", "children", "1000x10"),
		},
	}
}

func flipGoals() []goal {
	const fixed, ramp = "50/s", "ramp"
	return append([]goal{
		{
			"highest rate of flips with a p99 of at most 100 ms, operator / minimal client", atLeast(0.7), number,
			ratio("flips", minimalClient, 1, "seconds", "flips", ramp),
		},
		{
			"kube-apiserver's CPU time for a flip, minimal client / operator", atLeast(0.75), number,
			ratio("flips", minimalClient, 1, "cpu_apiserver_seconds", "changes", fixed),
		},
		// Four writes, and events: the operator emits at most two per second.
		{"writes by the operator for a flip", atMost(4.1), number, typical("flips", fixed, "writes_per_flip")},
		{
			"p99 of the lateness from the user's request, 50 flips/s", atMost(100e-3), duration,
			overall("flips", fixed, "lateness_p99_seconds"),
		},
		{
			"p99 of the staleness of a Machine's status, 50 flips/s", atMost(1), duration,
			overall("flips", fixed, "staleness_p99_seconds"),
		},
		{wrong, atMost(0), number, wrongFlips("flips")},
	}, failoverGoals()...)
}

const wrong = "wrong flips: early, too close to another flip, or repeated"

func failoverGoals() []goal {
	latest := func(cause string) measurement { return typical("failover", "500x1, "+cause, "lateness_max_seconds") }
	return []goal{
		{"maximum lateness after the leader receives SIGTERM", atMost(2.5), duration, latest("SIGTERM")},
		{
			"maximum lateness after the leader receives SIGKILL; its lease lasts 15 s", atMost(17), duration,
			latest("SIGKILL"),
		},
		{"maximum lateness after the container of the only replica crashes", atMost(3), duration, latest(crash)},
		{wrong + ", when the leader changes", atMost(0), number, wrongFlips("failover")},
	}
}

// scheduleGoals limits the lag to ten seconds. Users do not notice this lag, because the times of schedules are full
// minutes. By design, a start or a stop is one write to the workload and one event.
func scheduleGoals() []goal {
	const kase, due = "2000", "2,000 Deployments are due in the same second"
	value := func(key string) measurement { return typical("schedules", kase, key) }
	return []goal{
		{"p99 of the lag, " + due, atMost(10), duration, value("lag_p99_seconds")},
		{
			"Deployments scaled per second, operator / minimal client", atLeast(0.8), number,
			ratio("schedules", minimalClient, 1, "lag_max_seconds", "", kase),
		},
		{"writes to Deployments, " + due, atMost(2000), number, value("writes_deployments")},
		{"writes with events, " + due, atMost(4000), number, value("writes")},
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
		value, ok := all[0][key]
		return exactly(value), ok
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
