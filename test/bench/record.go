// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
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
	Subject string `json:"contender,omitempty"`
	// Round counts repetitions from 1. Records of the same round can be compared. Zero means all rounds.
	Round int `json:"round,omitempty"`
	// Values are the measured numbers. A name ends with its unit, as in Prometheus.
	Values map[string]float64 `json:"values"`
	// Text is everything else, such as the description of the machine.
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

// byRound returns the values of some subjects in each round that has all of them.
func (r results) byRound(experiment, kase string, subjects ...string) (rounds [][]map[string]float64) {
	found := map[string]map[string]float64{}
	key := func(subject string, round int) string { return fmt.Sprint(subject, " ", round) }
	last := 0
	for _, record := range r {
		if record.Experiment == experiment && record.Case == kase {
			found[key(record.Subject, record.Round)] = record.Values
			last = max(last, record.Round)
		}
	}
	for i := 1; i <= last; i++ {
		var round []map[string]float64
		for _, subject := range subjects {
			if values, ok := found[key(subject, i)]; ok {
				round = append(round, values)
			}
		}
		if len(round) == len(subjects) {
			rounds = append(rounds, round)
		}
	}
	return rounds
}

// sum returns the record of all rounds.
func (r results) sum(experiment, kase, subject string) (Record, bool) {
	i := slices.IndexFunc(r, func(r Record) bool {
		return r.Experiment == experiment && r.Case == kase && r.Subject == subject && r.Round == 0
	})
	if i < 0 {
		return Record{}, false
	}
	return r[i], true
}

// An estimate is a number with its 95 % interval.
type estimate struct {
	value, low, high float64
}

// exactly returns an estimate without uncertainty.
func exactly(value float64) estimate { return estimate{value, value, value} }

// bootstrap returns the median of values with its 95 % bootstrap interval from 10,000 resamples. The resamples are
// the same in each call.
func bootstrap(values []float64) estimate {
	const resamples = 10_000
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
	return estimate{median(values), medians[resamples*25/1000], medians[resamples*975/1000]}
}

// median returns the value in the middle, or the mean of the two values in the middle.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// percentile returns the smallest value that is not less than a percentage of the values.
func percentile(values []float64, percent float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[max(0, int(math.Ceil(float64(len(sorted))*percent/100))-1)]
}
