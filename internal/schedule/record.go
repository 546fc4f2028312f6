// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"slices"
	"strconv"
	"time"

	"container.training/useless/api/useless/v1beta1"
)

// maxClockSkew is the largest difference between the clocks of two nodes that is tolerated.
const maxClockSkew = 10 * time.Second

// Record is what the operator records in annotations of a workload. A value that cannot be read counts as absent.
type Record struct {
	Original   int32     // the replicas before the stop; 0 for none
	Last, Next time.Time // the last start or stop that was handled, and the next one; zero for none
	State      string    // v1beta1.ScheduleStarted, v1beta1.ScheduleStopped or empty
	Observed   string    // Schedule.Observed of the schedule that was handled
}

var recordKeys = []string{
	v1beta1.OriginalReplicasAnnotation, v1beta1.LastScheduleTimeAnnotation, v1beta1.NextScheduleTimeAnnotation,
	v1beta1.ScheduleStateAnnotation, v1beta1.ObservedScheduleAnnotation,
}

// HasRecord reports whether the annotations contain a part of a Record.
func HasRecord(annotations map[string]string) bool {
	return slices.ContainsFunc(recordKeys, func(key string) bool { _, ok := annotations[key]; return ok })
}

// ReadRecord reads the Record from annotations.
func ReadRecord(annotations map[string]string) Record {
	r := Record{State: annotations[v1beta1.ScheduleStateAnnotation], Observed: annotations[v1beta1.ObservedScheduleAnnotation]}
	r.Original, _ = parseReplicas(annotations[v1beta1.OriginalReplicasAnnotation], 1)
	r.Last = readTime(annotations[v1beta1.LastScheduleTimeAnnotation])
	r.Next = readTime(annotations[v1beta1.NextScheduleTimeAnnotation])
	return r
}

// readTime reads a time that FormatTime can write again: its year in UTC has four digits.
func readTime(text string) time.Time {
	at, err := time.Parse(time.RFC3339, text)
	if year := at.UTC().Year(); err != nil || year < 0 || year > 9999 {
		return time.Time{}
	}
	return at
}

// Handled returns the time of the last start or stop that was handled, or zero. A time further ahead than maxClockSkew was
// written by a user or by a clock that was wrong. The operator must not wait for it: that could take years.
func (r Record) Handled(now time.Time) time.Time {
	if r.Last.After(now.Add(maxClockSkew)) {
		return time.Time{}
	}
	return r.Last
}

// Write writes the Record into annotations. Zero values are removed.
func (r Record) Write(annotations map[string]string) {
	original := ""
	if r.Original > 0 {
		original = strconv.Itoa(int(r.Original))
	}
	for key, value := range map[string]string{
		v1beta1.OriginalReplicasAnnotation: original,
		v1beta1.LastScheduleTimeAnnotation: FormatTime(r.Last),
		v1beta1.NextScheduleTimeAnnotation: FormatTime(r.Next),
		v1beta1.ScheduleStateAnnotation:    r.State,
		v1beta1.ObservedScheduleAnnotation: r.Observed,
	} {
		if value == "" {
			delete(annotations, key)
		} else {
			annotations[key] = value
		}
	}
}

// FormatTime returns a time in UTC as of RFC 3339. The zero time is empty.
func FormatTime(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return at.UTC().Format(time.RFC3339)
}
