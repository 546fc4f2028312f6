// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"cmp"
	"slices"
	"time"

	"container.training/useless/api/useless/v1beta1"
)

const day = 24 * time.Hour

// wallClock returns the wall-clock time in a zone at an instant, represented in UTC.
func wallClock(at time.Time, zone *time.Location) time.Time {
	return at.UTC().Add(offset(at, zone))
}

func offset(at time.Time, zone *time.Location) time.Duration {
	_, seconds := at.In(zone).Zone()
	return time.Duration(seconds) * time.Second
}

// instant returns the instant of a wall-clock time in a zone. If a time occurs twice, because the clock is set back,
// the result is the first instant. If a time is skipped, because the clock is set forward, the result is the instant of
// the change. So a later wall-clock time never has an earlier instant. This function does not use [time.Date], which
// does not define its result for such times. It does not use [time.Time.ZoneBounds], which is wrong on the last day of
// leap years.
func instant(wall time.Time, zone *time.Location) time.Time {
	// No zone has an offset of a day or more.
	from, to := wall.Add(-day), wall.Add(day)
	before, after := offset(from, zone), offset(to, zone)
	if at := wall.Add(-before); offset(at, zone) == before {
		return at
	}
	if at := wall.Add(-after); offset(at, zone) == after {
		return at
	}
	for to.Sub(from) > time.Second {
		if middle := from.Add(to.Sub(from) / 2).Truncate(time.Second); offset(middle, zone) == before {
			from = middle
		} else {
			to = middle
		}
	}
	return to
}

// Occurrence is one time of a Recurrence. The zero value means that there is none.
type Occurrence struct {
	wall time.Time // the wall-clock time, even if the clock skips it
	At   time.Time // the instant
}

func occurrenceAt(wall time.Time, zone *time.Location) Occurrence {
	if wall.IsZero() {
		return Occurrence{}
	}
	return Occurrence{wall, instant(wall, zone)}
}

// compare orders occurrences by instant, and occurrences of the same instant by wall-clock time.
func (o Occurrence) compare(other Occurrence) int {
	return cmp.Or(o.At.Compare(other.At), o.wall.Compare(other.wall))
}

// around returns the last occurrence up to an instant, and the first one after it. An occurrence is zero if it is more
// than five years away. For a nil Recurrence, both are zero.
func (r *Recurrence) around(now time.Time, zone *time.Location) (last, next Occurrence) {
	if r == nil {
		return Occurrence{}, Occurrence{}
	}
	future := func(wall time.Time) bool { // whether all occurrences after a wall-clock time are in the future
		next := occurrenceAt(r.next(wall), zone)
		return next.At.IsZero() || next.At.After(now)
	}
	wall := wallClock(now, zone).Truncate(time.Minute)
	// The range ends two days after wall, because a clock that was set back has already shown times after wall.
	from, to := wall.Add(-8*day), wall.Add(2*day)
	if future(from) { // the Recurrence is less frequent than weekly
		from = wall.AddDate(-5, 0, 0)
	}
	if future(from) {
		return Occurrence{}, occurrenceAt(r.next(from), zone)
	}
	for to.Sub(from) > time.Minute {
		if middle := from.Add(to.Sub(from) / 2).Truncate(time.Minute); future(middle) {
			to = middle
		} else {
			from = middle
		}
	}
	return occurrenceAt(to, zone), occurrenceAt(r.next(to), zone)
}

// Events returns the last start or stop up to an instant, whether it is a stop, and the instant of the next one. If a
// start and a stop have the same time, the result is the start, because too many replicas do less harm than too few.
func (s *Schedule) Events(now time.Time) (last Occurrence, next time.Time, isStop bool) {
	started, starts := s.Start.around(now, s.Zone)
	stopped, stops := s.Stop.around(now, s.Zone)
	last, next = started, starts.At
	if isStop = stopped.compare(started) > 0; isStop {
		last = stopped
	}
	if next.IsZero() || !stops.At.IsZero() && stops.At.Before(next) {
		next = stops.At
	}
	return last, next, isStop
}

// EventsAfter returns the first n starts and stops after an instant, in order. The result is shorter if no start or
// stop follows within five years of the last one.
func (s *Schedule) EventsAfter(at time.Time, n int) (events []Event) {
	for len(events) < n {
		_, next, _ := s.Events(at)
		if next.IsZero() {
			break
		}
		_, _, isStop := s.Events(next)
		event := Event{next, isStop, v1beta1.StartScheduleAnnotation}
		if isStop {
			event.Cause = v1beta1.StopScheduleAnnotation
		}
		events, at = append(events, event), next
	}
	return events
}

// IsExcluded reports whether exclude-dates excludes starts on the local date of an instant.
func (s *Schedule) IsExcluded(at time.Time) bool {
	wall := wallClock(at, s.Zone)
	return s.Start != nil && slices.ContainsFunc(s.Start.excluded, func(d dates) bool {
		return !wall.Before(d.from) && wall.Before(d.to)
	})
}
