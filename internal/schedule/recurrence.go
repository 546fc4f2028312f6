// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/robfig/cron/v3"

	"container.training/useless/api/useless/v1beta1"
)

// Recurrence is a set of wall-clock times, given by the five fields of cron. A wall-clock time is represented as a time
// in UTC. The cron library skips and repeats times when the offset of a zone changes, but the offset of UTC never
// changes.
type Recurrence struct {
	text     string // the five fields, or a word such as @daily
	cron     *cron.SpecSchedule
	excluded []dates // sorted, without overlaps
}

// dates is a range from one midnight (included) to another (excluded).
type dates struct{ from, to time.Time }

// parseRecurrence parses five fields of cron or a word such as @daily, as in a CronJob. It also parses HH:MM, with or
// without days of the week.
func parseRecurrence(text string) (*Recurrence, error) {
	if strings.Contains(text, "TZ=") { // the cron library accepts a time zone, and panics on TZ=UTC alone
		return nil, errors.New("use the annotation time-zone for a time zone")
	}
	expanded, err := expand(text)
	if err != nil {
		return nil, err
	}
	parsed, err := cron.ParseStandard(expanded)
	if err != nil {
		return nil, err
	}
	spec, ok := parsed.(*cron.SpecSchedule)
	if !ok { // @every
		return nil, errors.New("it has no time of day")
	}
	if min(spec.Minute, spec.Hour, spec.Dom, spec.Month, spec.Dow) == 0 {
		return nil, errors.New("a list is empty")
	}
	// The library searches only five years. The five years from 2000 contain a 29 February.
	if spec.Next(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)).IsZero() {
		return nil, errors.New("the date does not exist")
	}
	return &Recurrence{text: expanded, cron: spec}, nil
}

// next returns the first time after wall that is not excluded, or zero for none. The cron library searches five years.
// If a time is excluded, the search starts again at the end of the excluded range. The seconds of wall must be zero.
func (r *Recurrence) next(wall time.Time) time.Time {
	wall = r.cron.Next(wall.Add(59 * time.Second)) // otherwise the library tests each second of the minute
	for _, excluded := range r.excluded {
		if wall.IsZero() || wall.Before(excluded.from) {
			break
		}
		if wall.Before(excluded.to) {
			wall = r.cron.Next(excluded.to.Add(-time.Second))
		}
	}
	return wall
}

// star is the bit that the library sets if a field is *.
const star = 1 << 63

// within reports whether each time of r is also a time of other. It ignores excluded dates.
func (r *Recurrence) within(other *Recurrence) bool {
	if r.cron.Minute&^(other.cron.Minute|star) != 0 || r.cron.Hour&^(other.cron.Hour|star) != 0 {
		return false
	}
	// A leap year has all dates, and each date falls on each day of the week in some year.
	for date := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC); date.Year() == 2000; date = date.Add(day) {
		for weekday := range weekdays {
			if r.on(date, weekday) && !other.on(date, weekday) {
				return false
			}
		}
	}
	return true
}

// on reports whether a Recurrence has times on a date. It ignores the year of the date, and takes the day of the week
// from the argument weekday (0 is Sunday). Cron has a field for the day of the month and a field for the day of the
// week. If one of them is *, both must match. Otherwise, one match is enough.
func (r *Recurrence) on(date time.Time, weekday int) bool {
	dom, dow := r.cron.Dom>>date.Day()&1 == 1, r.cron.Dow>>weekday&1 == 1
	both := (r.cron.Dom|r.cron.Dow)&star != 0
	return r.cron.Month>>date.Month()&1 == 1 && (dom && dow || !both && (dom || dow))
}

// expand converts a time of day, with or without days of the week, to the five fields of cron. For five fields or a
// word such as @daily, only the spaces change.
func expand(text string) (string, error) {
	fields := strings.Fields(text)
	if len(fields) == 0 {
		return "", errors.New("it is empty")
	}
	days, clock := "*", fields[len(fields)-1]
	switch {
	case len(fields) == 5 || strings.HasPrefix(fields[0], "@"):
		return strings.Join(fields, " "), nil
	case len(fields) > 2 || !strings.Contains(clock, ":"):
		return "", errors.New("it is neither a time of day, nor days and a time of day, nor the five fields of cron")
	}
	at, err := time.Parse("15:04", clock)
	if err != nil {
		return "", fmt.Errorf("%s is not a time of day from 00:00 to 23:59", clock)
	}
	if len(fields) == 2 {
		if days, err = expandDays(fields[0]); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%d %d * * %s", at.Minute(), at.Hour(), days), nil
}

var weekdays = []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"}

// expandDays converts days of the week, and ranges of days, to the numbers of cron. Unlike in cron, a range may
// continue after the end of the week, such as Fri-Mon.
func expandDays(text string) (string, error) {
	var numbers []string
	for part := range strings.SplitSeq(strings.ToLower(text), ",") {
		if part == "" {
			return "", errors.New("a day is missing before or after a comma")
		}
		from, to, ranged := strings.Cut(part, "-")
		if !ranged {
			to = from
		}
		day, last := slices.Index(weekdays, from), slices.Index(weekdays, to)
		if day < 0 || last < 0 {
			return "", fmt.Errorf("%s is neither a day of the week, such as Mon, nor a range of days", Truncate(part))
		}
		for ; day != last; day = (day + 1) % len(weekdays) {
			numbers = append(numbers, strconv.Itoa(day))
		}
		numbers = append(numbers, strconv.Itoa(last))
	}
	slices.Sort(numbers)
	if numbers = slices.Compact(numbers); len(numbers) == len(weekdays) {
		return "*", nil
	}
	return strings.Join(numbers, ","), nil
}

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

// around returns the last occurrence up to an instant, and the first one after it. The last one is zero if it is more
// than five years ago. The next one is zero if Recurrence.next finds none. For a nil Recurrence, both are zero.
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
	if future(from) { // no occurrence in the last eight days
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

// Events returns the last start or stop up to an instant, and the instant of the next start or stop. The result isStop
// reports whether the last one is a stop. If a start and a stop have the same time, Events returns the start. Too many
// replicas do less harm than too few.
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

// EventsAfter returns the first n starts and stops after an instant, in order. The result is shorter if Events finds no
// further start or stop.
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
