// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"slices"
	"strconv"
	"time"
)

// maxClockSkew is how far the clocks of two nodes may be apart.
const maxClockSkew = 10 * time.Second

// A record is what the operator remembers of a Deployment, in its annotations. What somebody else has written there, and
// cannot be read, is not remembered.
type record struct {
	original   int32 // 0 for none
	last, next time.Time
	state      string
	observed   string
}

var recordKeys = []string{
	OriginalReplicasAnnotation, LastScheduleTimeAnnotation, NextScheduleTimeAnnotation, StateAnnotation, ObservedScheduleAnnotation,
}

func readRecord(annotations map[string]string) record {
	r := record{state: annotations[StateAnnotation], observed: annotations[ObservedScheduleAnnotation]}
	r.original, _ = parseReplicas(annotations[OriginalReplicasAnnotation], 1)
	r.last, r.next = readTime(annotations[LastScheduleTimeAnnotation]), readTime(annotations[NextScheduleTimeAnnotation])
	return r
}

// readTime reads an instant that can be written again: in UTC it has to be in a year of four digits, too.
func readTime(text string) time.Time {
	at, err := time.Parse(time.RFC3339, text)
	if year := at.UTC().Year(); err != nil || year < 0 || year > 9999 {
		return time.Time{}
	}
	return at
}

// handled returns the instant of the last start or stop that was dealt with, or zero. One that is further ahead than clocks
// are apart is from somebody else, or from a clock that was wrong: waiting for it could take years.
func (r record) handled(now time.Time) time.Time {
	if r.last.After(now.Add(maxClockSkew)) {
		return time.Time{}
	}
	return r.last
}

// remembered reports whether there is a record in annotations.
func remembered(annotations map[string]string) bool {
	return slices.ContainsFunc(recordKeys, func(key string) bool { _, ok := annotations[key]; return ok })
}

// write puts a record into annotations, and takes away those that say nothing.
func (r record) write(annotations map[string]string) {
	original := ""
	if r.original > 0 {
		original = strconv.Itoa(int(r.original))
	}
	for key, value := range map[string]string{
		OriginalReplicasAnnotation: original,
		LastScheduleTimeAnnotation: format(r.last),
		NextScheduleTimeAnnotation: format(r.next),
		StateAnnotation:            r.state,
		ObservedScheduleAnnotation: r.observed,
	} {
		if value == "" {
			delete(annotations, key)
		} else {
			annotations[key] = value
		}
	}
}

func format(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return at.UTC().Format(time.RFC3339)
}
