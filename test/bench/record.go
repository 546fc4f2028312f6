// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"io"
	"math"
	"math/rand/v2"
	"slices"
)

// resultsFile is the name of the file with the records.
const resultsFile = "results.jsonl"

// A Record is one measurement. Records are lines of JSON in the order of the measurements.
type Record struct {
	// Experiment is the name of the experiment, such as "convergence".
	Experiment string `json:"experiment"`
	// Case is the size or the kind of the load, such as "1000x10".
	Case string `json:"case,omitempty"`
	// Subject is the measured program, such as "ours".
	Subject string `json:"subject,omitempty"`
	// Round is the number of the repetition, from 1. Records of the same round can be compared. Zero means all rounds.
	Round int `json:"round,omitempty"`
	// Values are the measured numbers. A name ends with its unit, as in Prometheus.
	Values map[string]float64 `json:"values"`
	// Text contains all other data, such as the description of the computer.
	Text map[string]string `json:"text,omitempty"`
}

// results are the records of a run.
type results []Record

func readRecords(from io.Reader) (all results, err error) {
	for decoder := json.NewDecoder(from); ; {
		var record Record
		if err := decoder.Decode(&record); err == io.EOF {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		all = append(all, record)
	}
}

// byRound returns the values of the subjects, for each round in which all subjects have a record.
func (r results) byRound(experiment, kase string, subjects ...string) (rounds [][]map[string]float64) {
	last := 0
	for _, record := range r {
		last = max(last, record.Round)
	}
	for n := 1; n <= last; n++ {
		if round := r.round(n, experiment, kase, subjects...); round != nil {
			rounds = append(rounds, round)
		}
	}
	return rounds
}

// round returns the values of the subjects in a round. It returns nil if a subject has no record. Round 0 contains the
// values of all rounds.
func (r results) round(n int, experiment, kase string, subjects ...string) (round []map[string]float64) {
	for _, subject := range subjects {
		i := slices.IndexFunc(r, func(r Record) bool {
			return r.Experiment == experiment && r.Case == kase && r.Subject == subject && r.Round == n
		})
		if i < 0 {
			return nil
		}
		round = append(round, r[i].Values)
	}
	return round
}

// machine returns the description of the computer and of the run.
func (r results) machine() (machine Record) {
	for _, record := range r {
		if record.Experiment == "machine" {
			machine = record
		}
	}
	return machine
}

// An estimate is a number with its 95 % interval.
type estimate struct {
	value, low, high float64
}

// exactly returns an estimate without uncertainty.
func exactly(value float64) estimate { return estimate{value, value, value} }

// bootstrap returns the median of values with its 95 % bootstrap interval from 10,000 resamples. The resamples are
// the same in each call. It returns false if there are no values.
func bootstrap(values []float64) (estimate, bool) {
	const resamples = 10_000
	if len(values) == 0 {
		return estimate{}, false
	}
	random := rand.New(rand.NewPCG(1, 2))
	medians := make([]float64, resamples)
	sample := make([]float64, len(values))
	for i := range medians {
		for j := range sample {
			sample[j] = values[random.IntN(len(values))]
		}
		medians[i] = median(sample)
	}
	slices.Sort(medians)
	return estimate{median(values), medians[resamples*25/1000], medians[resamples*975/1000]}, true
}

// median returns the value in the middle, or the mean of the two values in the middle.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// percentile returns the smallest value that is greater than or equal to percent % of the values. It panics if there
// are no values.
func percentile(values []float64, percent float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[max(0, int(math.Ceil(float64(len(sorted))*percent/100))-1)]
}
