// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"cmp"
	"time"
)

const day = 24 * time.Hour

// wallClock returns what a clock in a zone shows at an instant, labelled UTC.
func wallClock(at time.Time, zone *time.Location) time.Time {
	return at.UTC().Add(offset(at, zone))
}

func offset(at time.Time, zone *time.Location) time.Duration {
	_, seconds := at.In(zone).Zone()
	return time.Duration(seconds) * time.Second
}

// instant returns when a clock in a zone shows a wall-clock time. Where it does so twice, because it is put back, that is
// the first time; where it never does, because it is put forward, that is when it skips it. So a later time never comes
// at an earlier instant. [time.Date] does not promise which instant it takes, and [time.Time.ZoneBounds] is wrong on the
// last day of leap years.
func instant(wall time.Time, zone *time.Location) time.Time {
	// No clock on Earth is a day ahead or behind.
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

// An occurrence is one time of a recurrence. The zero occurrence is none.
type occurrence struct {
	wall time.Time // what the clocks show then, or would if they were not put forward
	at   time.Time // the instant
}

func occurrenceAt(wall time.Time, zone *time.Location) occurrence {
	if wall.IsZero() {
		return occurrence{}
	}
	return occurrence{wall, instant(wall, zone)}
}

// compare orders occurrences. Of those that come at once, as clocks are put forward, the last is the one that they would
// have shown last.
func (o occurrence) compare(other occurrence) int {
	return cmp.Or(o.at.Compare(other.at), o.wall.Compare(other.wall))
}

// around returns the last occurrence of a recurrence that has come at an instant, and the first that has not. Either is
// zero where there is none within five years; nil has none.
func (r *recurrence) around(now time.Time, zone *time.Location) (last, next occurrence) {
	if r == nil {
		return occurrence{}, occurrence{}
	}
	future := func(wall time.Time) bool { // whether all that come after a wall-clock time are yet to come
		next := occurrenceAt(r.next(wall), zone)
		return next.at.IsZero() || next.at.After(now)
	}
	wall := wallClock(now, zone).Truncate(time.Minute)
	// Two days, because a clock that was put back has shown later times than it does now.
	from, to := wall.Add(-8*day), wall.Add(2*day)
	if future(from) { // not even a weekly one
		from = wall.AddDate(-5, 0, 0)
	}
	if future(from) {
		return occurrence{}, occurrenceAt(r.next(from), zone)
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
