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

// A Record is something that was measured once. Records are written as lines of JSON, in the order of their measurement,
// and everything else is computed of them.
type Record struct {
	// Experiment is what was done, such as "convergence".
	Experiment string `json:"experiment"`
	// Case says how large it was, such as "1000x10".
	Case string `json:"case,omitempty"`
	// Contender says who did it, such as "ours".
	Contender string `json:"contender,omitempty"`
	// Round counts the repetitions from 1. What was measured in the same round can be compared.
	Round int `json:"round,omitempty"`
	// Values are what was measured. Their names end in their units, as those of Prometheus do.
	Values map[string]float64 `json:"values"`
	// Text is what is no number, such as the machine's description.
	Text map[string]string `json:"text,omitempty"`
}

// readRecords reads what was written.
func readRecords(from io.Reader) (all []Record, err error) {
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

// An estimate is a figure with its 95 % interval.
type estimate struct {
	value, low, high float64
}

// bootstrap estimates a statistic of rounds, by drawing as many rounds again and again, with replacement. The draws are
// the same every time, so that the same records give the same interval.
func bootstrap[T any](rounds []T, statistic func([]T) float64) estimate {
	const draws = 10_000
	random := rand.New(rand.NewPCG(1, 2))
	drawn := make([]float64, draws)
	sample := make([]T, len(rounds))
	for i := range drawn {
		for j := range sample {
			sample[j] = rounds[random.IntN(len(rounds))]
		}
		drawn[i] = statistic(sample)
	}
	slices.Sort(drawn)
	return estimate{statistic(rounds), drawn[draws*25/1000], drawn[draws*975/1000]}
}

// median is the value in the middle, or the mean of the two there.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// percentile is the smallest value that is not below so many percent of the values.
func percentile(values []float64, percent float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[max(0, int(math.Ceil(float64(len(sorted))*percent/100))-1)]
}
