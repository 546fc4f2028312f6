// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package schedule

import (
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
	Event              // the event to execute, if IsDue, or the last event
	IsDue    bool      // the event was not handled before
	IsEdited bool      // the schedule was edited since the last event that was handled
	IsUptime bool      // StartUntil is in the future: the workload runs until Expiry
	Next     time.Time // the next regular start or stop, or the stop at the end of StartUntil; zero for none
	// Since and Expiry are the values of RunningSince and ExpiresAt to record, unless the event starts or stops the
	// workload.
	Since, Expiry time.Time
	// ExpiresIntoStop means that the workload stops at Expiry. If it is false, the workload keeps running at Expiry.
	ExpiresIntoStop bool
}

// Due returns the event of the schedule that is due at the instant now, or the last event. The argument r is the record
// of the workload. The argument running is true if the workload is not stopped.
//
// While StartUntil is in the future, no event stops the workload. The start because of StartUntil removes the last
// event from the record. So the last regular event is due again after StartUntil, even if it was handled before.
// StopAfter counts from the last start, by the operator or by a user.
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

// StopsAtExpiry reports whether the stop at Expiry is executed, and no regular stop stops the workload until then. The
// record is that of the workload. StopsAtExpiry tests each regular stop until Expiry, so call it only shortly before.
func (s *Schedule) StopsAtExpiry(r Record, d Due, now time.Time) bool {
	if !d.ExpiresIntoStop || s.Suspended || !d.IsUptime && s.stopsBy(d.Expiry, now) {
		return false
	}
	end := s.Due(r, true, d.Expiry)
	return end.IsDue && end.IsStop && !end.At.Before(s.SuspendUntil)
}

// stopsBy reports whether a regular stop is executed after now, and not after end.
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

// since returns the time from which a running workload has been running. If the record has no time yet, or a wrong time
// in the future, since returns now. It truncates now, because the record has no fractions of a second.
func (r Record) since(now time.Time) time.Time {
	if r.RunningSince.IsZero() || r.RunningSince.After(now.Add(v1beta1.MaxClockSkew)) {
		return now.Truncate(time.Second)
	}
	return r.RunningSince
}
