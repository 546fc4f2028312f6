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
	why     string // why the goal is missed; may be empty
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

// noWorse is the limit of all comparisons.
var noWorse = atLeast(0.97)

// comparisons returns the figures that compare this revision with the revision of the flag -base. If a figure is above
// 1, this revision is better.
func comparisons() []goal {
	const needs = "base / ours, "
	flips := func(cost, work string) measurement { return ratio("flips", "base", 1, cost, work, "25/s") }
	start := func(cost string) measurement { return ratio("large", "base", 1, cost, "", "start") }
	creating := func(group int, cost, work string) measurement {
		return ratio("convergence", "base", group, cost, work, compared[0].String(), compared[1].String())
	}
	compare := func(what string, m measurement) goal {
		return goal{what: what, limit: noWorse, format: number, measure: m}
	}
	return []goal{
		compare("ours / base, Switches per second", creating(2, "seconds", "children")),
		compare(needs+"CPU time for a Switch", creating(2, "cpu_subject_seconds", "children")),
		compare(needs+"API server CPU time for a Switch", creating(2, "cpu_apiserver_seconds", "children")),
		compare(needs+"requests for a Switch", creating(0, "requests", "children")),
		compare(needs+"maximum memory while Switches are created", creating(0, "peak_subject_bytes", "")),
		compare(needs+"maximum memory during a start", start("peak_bytes")),
		compare(needs+"time to start", start("seconds")),
		compare(needs+"p50 of the lateness, 25 flips/s", flips("lateness_p50_seconds", "")),
		compare(needs+"p99 of the lateness, 25 flips/s", flips("lateness_p99_seconds", "")),
		compare(needs+"kube-apiserver's CPU time for a flip", flips("cpu_apiserver_seconds", "changes")),
	}
}

// goals returns the goals of docs/performance.md, at most 20.
func goals() []goal {
	return slices.Concat(
		convergenceGoals(), flipGoals(), failoverGoals(), scheduleGoals(), largeGoals(), versionsGoals())
}

func convergenceGoals() []goal {
	const (
		speed = "Switches per second, operator / minimal client, "
		why   = "The operator uses processor time for work that the other programs do not have."
	)
	return []goal{
		{
			what: "Switches per second, operator / creator, 1000x10", limit: atLeast(0.65), format: number,
			measure: rate("1000x10", creator),
			why: "The creator does not write Machines. For kube-apiserver, the two writes of a Machine are as expensive " +
				"as several Switches.",
		},
		{what: speed + "10000x10", limit: atLeast(0.9), format: number, measure: rate("10000x10", minimalClient), why: why},
		{
			what:  "kube-apiserver's CPU time for a Switch, ReplicaSet algorithm / operator, 1000x10",
			limit: atLeast(1), format: number,
			measure: ratio("convergence", replicaSetAlgorithm, 2, "cpu_apiserver_seconds", "children", "1000x10"),
			why:     "The ReplicaSet algorithm writes no finalizer. The write of a Machine is expensive for kube-apiserver.",
		},
	}
}

func flipGoals() []goal {
	const (
		fixed = "25/s"
		size  = ", 2000x1"
		why   = "For each flip, the operator also writes the time at which it noticed the Switch."
	)
	return []goal{
		{
			what:  "highest rate of flips before most of them are more than 100 ms late, operator / minimal client" + size,
			limit: atLeast(0.7), format: number, measure: ratio("flips", minimalClient, 1, "seconds", "flips", "ramp"), why: why,
		},
		{
			what:  "kube-apiserver's CPU time for a flip, minimal client / operator" + size,
			limit: atLeast(0.75), format: number,
			measure: ratio("flips", minimalClient, 1, "cpu_apiserver_seconds", "changes", fixed), why: why,
		},
		{ // Four writes, and at most two events per second. Writes at the ends of a round make it inexact.
			what: "writes by the operator for a flip" + size, limit: atMost(4.25), format: number,
			measure: typical("flips", fixed, "writes_per_flip"),
		},
		{
			what: "p99 of the lateness, 25 flips/s" + size, limit: atMost(100e-3), format: duration,
			measure: overall("flips", fixed, "lateness_p99_seconds"),
			why:     "A few pauses of the machine are enough to make one percent of the flips late.",
		},
		{
			what:  "p99 of the time that the status of a Machine is outdated, 25 flips/s" + size,
			limit: atMost(500e-3), format: duration,
			measure: overall("flips", fixed, "staleness_p99_seconds"),
		},
		{
			what:  "wrong flips: early, too close to another flip, or repeated",
			limit: atMost(0), format: number, measure: wrongFlips("flips", "failover"),
		},
	}
}

func failoverGoals() []goal {
	const key, size = "lateness_max_seconds", ", 500x1"
	latest := func(cause string) measurement { return highest("failover", "500x1, "+cause, key) }
	return []goal{
		{
			what:  "maximum lateness after the leader receives SIGTERM" + size,
			limit: atMost(2.5), format: duration, measure: latest("SIGTERM"),
		},
		{
			// The Lease expires 15 s after another process has read its last renewal. This process reads the Lease, and
			// tries to take it, every 1 s to 2.2 s: RetryPeriod in cmd, with the jitter of client-go. So it needs at
			// most 15 s + 2 × 2.2 s.
			what:  "maximum lateness after the leader receives SIGKILL; its Lease lasts 15 s" + size,
			limit: atMost(19.5), format: duration, measure: latest("SIGKILL"),
		},
		{
			what:  "maximum lateness after the process of the only replica is killed and starts again at once" + size,
			limit: atMost(1), format: duration, measure: latest(crash),
		},
	}
}

// scheduleGoals limits the lag to seven seconds. Users do not notice this lag, because the times of schedules are full
// minutes. By design, a start or a stop is one write to the workload.
func scheduleGoals() []goal {
	const kase, due = "2000", "2,000 Deployments due in the same second"
	value := func(key string) measurement { return typical("schedules", kase, key) }
	return []goal{
		{
			what:  "p99 of the time until a scheduled stop or start, " + due,
			limit: atMost(7), format: duration, measure: value("lag_p99_seconds"),
		},
		{
			what: "writes to Deployments, " + due, limit: atMost(2000), format: number, measure: value("writes_deployments"),
		},
	}
}

func largeGoals() []goal {
	start := func(key string) measurement { return typical("large", "start", key) }
	return []goal{
		{
			what: "time to start, 10000x10", limit: atMost(6), format: duration, measure: start("seconds"),
			why: "A start needs more processor time of kube-apiserver than of the operator.",
		},
		{
			what:  "maximum memory in a cgroup of 256 MiB, 10000x10, each Switch was flipped",
			limit: atMost(200 << 20), format: byteSize, measure: start("cgroup_peak_bytes"),
		},
		{
			what:  "maximum time until the operator notices a Switch during a start, 10000x10",
			limit: atMost(6), format: duration, measure: overall("large", withUsers, "notice_max_seconds"),
			why: "The operator notices no Switch before its cache has all Switches.",
		},
		{
			what:  "writes at rest in a minute, without the renewals of the Lease, 10000x10",
			limit: atMost(0), format: number, measure: typical("large", "rest", "writes"),
		},
	}
}

func versionsGoals() []goal {
	const of = ", only v1beta1 / both versions, 2000x10"
	part := func(group int, cost, work string) measurement {
		return between("versions", onlyV1beta1, bothVersions, group, cost, work, "2000x10")
	}
	return []goal{
		{
			what: "kube-apiserver's CPU time for a write of a Machine" + of, limit: atMost(0.6), format: number,
			measure: part(1, "cpu_apiserver_seconds", "writes"),
			why:     "Some work of kube-apiserver for a write does not depend on the number of versions.",
		},
		{ // one value without an interval, because all rounds measure the same two processes
			what: "kube-apiserver's memory" + of, limit: atMost(0.6), format: number,
			measure: part(versionsRounds, "apiserver_memory_bytes", ""),
			why:     "Objects other than Machines and Switches also need memory in kube-apiserver.",
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
	return between(experiment, reference, "ours", group, cost, work, kases...)
}

// between is like ratio, for another subject than the operator.
func between(experiment, reference, subject string, group int, cost, work string, kases ...string) measurement {
	return func(r results) (estimate, bool) {
		var ratios []float64
		for _, kase := range kases {
			rounds := r.byRound(experiment, kase, reference, subject)
			if all := r.round(0, experiment, kase, reference, subject); group == 0 && all != nil {
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
	return func(r results) (estimate, bool) { return bootstrap(r.values(experiment, kase, key)) }
}

// highest returns the highest value of the operator in all rounds.
func highest(experiment, kase, key string) measurement {
	return func(r results) (estimate, bool) {
		values := r.values(experiment, kase, key)
		if len(values) == 0 {
			return estimate{}, false
		}
		return exactly(slices.Max(values)), true
	}
}

// values returns a value of the operator from each round that has it.
func (r results) values(experiment, kase, key string) (values []float64) {
	for _, round := range r.byRound(experiment, kase, "ours") {
		if value, ok := round[0][key]; ok {
			values = append(values, value)
		}
	}
	return values
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

// wrongFlips returns the number of the operator's wrong flips in experiments.
func wrongFlips(experiments ...string) measurement {
	return func(r results) (estimate, bool) {
		found, n := false, 0.
		for _, record := range r {
			if slices.Contains(experiments, record.Experiment) && record.Subject == "ours" {
				found = true
				n += record.Values[invariants.Early] + record.Values[invariants.Crowded] + record.Values[invariants.Doubled]
			}
		}
		return exactly(n), found
	}
}
