// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"slices"
	"strconv"
	"time"

	"container.training/useless/api/useless/v1beta1"
)

// Record is the data that the operator stores in the annotations of a workload. Invalid values are ignored.
type Record struct {
	Original   int32     // the replicas before the stop, or 1 for a workload without replicas; 0 for none
	Least      *int32    // for an autoscaler, minReplicas before the stop; nil for none
	Last, Next time.Time // the last start or stop that was handled, and the next one; zero for none
	State      string    // v1beta1.ScheduleStarted, v1beta1.ScheduleStopped or empty
	Observed   string    // Schedule.Observed of the schedule that was handled
	// RunningSince is the time from which StopAfter counts. ExpiresAt is the time at which StartUntil or StopAfter
	// ends. Zero means none.
	RunningSince, ExpiresAt time.Time
}

var recordKeys = []string{
	v1beta1.OriginalReplicasAnnotation, v1beta1.OriginalMinReplicasAnnotation, v1beta1.OriginalStateAnnotation,
	v1beta1.LastScheduleTimeAnnotation, v1beta1.NextScheduleTimeAnnotation, v1beta1.ScheduleStateAnnotation,
	v1beta1.ObservedScheduleAnnotation, v1beta1.RunningSinceAnnotation, v1beta1.ExpiresAtAnnotation,
}

// HasRecord reports whether the annotations contain a part of a Record.
func HasRecord(annotations map[string]string) bool {
	return slices.ContainsFunc(recordKeys, func(key string) bool { _, ok := annotations[key]; return ok })
}

// ReadRecord reads the Record from annotations.
func ReadRecord(annotations map[string]string) Record {
	r := Record{
		State:    annotations[v1beta1.ScheduleStateAnnotation],
		Observed: annotations[v1beta1.ObservedScheduleAnnotation],
	}
	r.Original, _ = parseReplicas(annotations[v1beta1.OriginalReplicasAnnotation], 1)
	if least, err := parseReplicas(annotations[v1beta1.OriginalMinReplicasAnnotation], 0); err == nil {
		r.Least = &least
	}
	if annotations[v1beta1.OriginalStateAnnotation] == v1beta1.OriginalStateActive {
		r.Original = 1
	}
	r.Last = readTime(annotations[v1beta1.LastScheduleTimeAnnotation])
	r.Next = readTime(annotations[v1beta1.NextScheduleTimeAnnotation])
	r.RunningSince = readTime(annotations[v1beta1.RunningSinceAnnotation])
	r.ExpiresAt = readTime(annotations[v1beta1.ExpiresAtAnnotation])
	return r
}

// readTime parses a time, or returns the zero time. The year in UTC must have four digits, so that FormatTime can
// write it. FormatTime writes no fractions of a second.
func readTime(text string) time.Time {
	at, err := time.Parse(time.RFC3339, text)
	if year := at.UTC().Year(); err != nil || year < 0 || year > 9999 {
		return time.Time{}
	}
	return at.Truncate(time.Second)
}

// Handled returns Last, or zero if Last is further in the future than MaxClockSkew. The operator must not wait for such
// a wrong time, because that could take years.
func (r Record) Handled(now time.Time) time.Time {
	if r.Last.After(now.Add(v1beta1.MaxClockSkew)) {
		return time.Time{}
	}
	return r.Last
}

// Write writes the Record into annotations, and removes the annotations of zero values. With onOff, the workload has no
// replicas: Write writes OriginalStateAnnotation instead of OriginalReplicasAnnotation.
func (r Record) Write(annotations map[string]string, onOff bool) {
	originalReplicas, originalMinReplicas, originalState := "", "", ""
	switch {
	case r.Original > 0 && onOff:
		originalState = v1beta1.OriginalStateActive
	case r.Original > 0:
		originalReplicas = strconv.Itoa(int(r.Original))
	}
	if r.Least != nil {
		originalMinReplicas = strconv.Itoa(int(*r.Least))
	}
	for key, value := range map[string]string{
		v1beta1.OriginalReplicasAnnotation:    originalReplicas,
		v1beta1.OriginalMinReplicasAnnotation: originalMinReplicas,
		v1beta1.OriginalStateAnnotation:       originalState,
		v1beta1.LastScheduleTimeAnnotation:    FormatTime(r.Last),
		v1beta1.NextScheduleTimeAnnotation:    FormatTime(r.Next),
		v1beta1.ScheduleStateAnnotation:       r.State,
		v1beta1.ObservedScheduleAnnotation:    r.Observed,
		v1beta1.RunningSinceAnnotation:        FormatTime(r.RunningSince),
		v1beta1.ExpiresAtAnnotation:           FormatTime(r.ExpiresAt),
	} {
		if value == "" {
			delete(annotations, key)
		} else {
			annotations[key] = value
		}
	}
}

// FormatTime formats a time in UTC (RFC 3339). For the zero time it returns "".
func FormatTime(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return at.UTC().Format(time.RFC3339)
}
