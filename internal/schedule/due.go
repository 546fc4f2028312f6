// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"errors"
	"slices"
	"strconv"
	"time"

	"container.training/useless/api/useless/v1beta1"
)

// Event is a start or a stop. The zero value means that there is none.
type Event struct {
	At     time.Time
	IsStop bool
	Cause  string // the key of the annotation that requires it
}

// Due describes the start or stop of a workload that its schedule requires at an instant.
type Due struct {
	Event              // the event to execute if IsDue is true; otherwise the last event, or the start for StartUntil
	IsDue    bool      // the event was not handled before, or the schedule was edited since then
	IsEdited bool      // the schedule was edited since the last event that was handled
	IsUptime bool      // StartUntil is in the future: the workload runs until Expiry
	Next     time.Time // the next regular start or stop, or the stop at the end of StartUntil; zero for none
	// Since is the value of RunningSince to record, and Expiry is the value of ExpiresAt to record. If the event starts
	// or stops the workload, other values may be recorded.
	Since, Expiry time.Time
	// ExpiresIntoStop means that the workload stops at Expiry. If it is false, the workload keeps running at Expiry.
	ExpiresIntoStop bool
}

// Due returns the event of the schedule that is due at the instant now, or the last event. The argument r is the record
// of the workload. The argument running is true if the workload is not stopped.
//
// While StartUntil is in the future, no event stops the workload. When the operator executes the start for StartUntil,
// it removes the last event from the record. So the last regular event is due again after StartUntil, even if it was
// handled before. StopAfter counts from the last start, by the operator or by a user.
func (s *Schedule) Due(r Record, running bool, now time.Time) Due {
	if until := s.uptime(now); until.After(now) {
		return s.dueInUptime(r, running, until, now)
	}
	last, next, isStop := s.Events(now)
	handled := r.Handled(now)
	d := Due{
		Event: Event{last.At, isStop, v1beta1.StartScheduleAnnotation}, Next: next, IsEdited: r.Observed != s.Observed,
	}
	if isStop {
		d.Cause = v1beta1.StopScheduleAnnotation
	}
	d.IsDue = d.IsEdited || last.At.After(handled)
	if s.StopAfter == 0 || !running {
		return d
	}
	d.Since, d.ExpiresIntoStop = r.since(now), true
	d.Expiry = d.Since.Add(s.StopAfter)
	if !d.Expiry.After(now) && (!d.IsDue || d.Expiry.After(last.At)) {
		d.Event, d.IsDue = Event{d.Expiry, true, v1beta1.StopAfterAnnotation}, true
	}
	return d
}

// dueInUptime returns the start that is due while StartUntil is in the future. It is due once for each value of
// StartUntil.
func (s *Schedule) dueInUptime(r Record, running bool, until, now time.Time) Due {
	atEnd, next, isStop := s.Events(until)
	d := Due{
		Event:  Event{At: now, Cause: v1beta1.StartUntilAnnotation},
		IsDue:  !r.ExpiresAt.Equal(until),
		Expiry: until, IsUptime: true, Next: next,
	}
	stops := isStop && !atEnd.At.IsZero()
	if s.StopAfter > 0 && running {
		d.Since = r.since(now)
		stops = stops || !d.Since.Add(s.StopAfter).After(until)
	}
	if stops {
		d.Next = until
	}
	d.ExpiresIntoStop = stops && running
	return d
}

// StopsAtExpiry reports whether the workload stops at d.Expiry, and is not stopped earlier by a regular stop. The
// argument r is the record of the workload. StopsAtExpiry tests each regular stop until Expiry, so call it only shortly
// before Expiry.
func (s *Schedule) StopsAtExpiry(r Record, d Due, now time.Time) bool {
	if !d.ExpiresIntoStop || s.Suspended || !d.IsUptime && s.stopsBy(d.Expiry, now) {
		return false
	}
	end := s.Due(r, true, d.Expiry)
	return end.IsDue && end.IsStop && !end.At.Before(s.SuspendUntil)
}

// stopsBy reports whether a regular stop is executed after now, and before or at end.
func (s *Schedule) stopsBy(end, now time.Time) bool {
	for {
		_, stop := s.Stop.around(now, s.Zone)
		if stop.At.IsZero() || stop.At.After(end) {
			return false
		}
		now = stop.At
		if _, _, isStop := s.Events(now); isStop && !now.Before(s.SuspendUntil) {
			return true
		}
	}
}

// uptime returns the instant until which the workload runs on demand; zero for none.
func (s *Schedule) uptime(now time.Time) time.Time {
	if s.StartFor > 0 {
		return now.Add(s.StartFor).Truncate(time.Second)
	}
	return s.StartUntil
}

// since returns the time from which a workload has been running. If the record has no time yet, or a time further in
// the future than MaxClockSkew, since returns now. It truncates now, because the record has no fractions of a second.
func (r Record) since(now time.Time) time.Time {
	if r.RunningSince.IsZero() || r.RunningSince.After(now.Add(v1beta1.MaxClockSkew)) {
		return now.Truncate(time.Second)
	}
	return r.RunningSince
}

// Record is the data that the operator stores in the annotations of a workload. ReadRecord ignores
// invalid values.
type Record struct {
	Original   int32     // the replicas before the stop, or 1 for a workload without replicas; 0 for none
	Least      *int32    // for an autoscaler, minReplicas before the stop (Original is maxReplicas); nil for none
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

// ProblemsOfRecord returns a problem for each invalid value of RunningSince and ExpiresAt. The operator must not ignore
// such a value. Otherwise, StopAfter would count from now again, or the start for StartUntil would be executed again.
// The operator ignores invalid values of the other annotations of the record.
func ProblemsOfRecord(annotations map[string]string) (problems []Problem) {
	for _, key := range []string{v1beta1.RunningSinceAnnotation, v1beta1.ExpiresAtAnnotation} {
		if value, ok := annotations[key]; ok && readTime(value).IsZero() {
			problems = append(problems, Problem{key, value, `"2026-11-23T07:00:00Z", or remove it`,
				errors.New("it is not a time with an offset in the format of RFC 3339")})
		}
	}
	return problems
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

// readTime parses a time, or returns the zero time. The year in UTC must have four digits, so that FormatTime can write
// it. readTime drops fractions of a second, because FormatTime does not write them.
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
