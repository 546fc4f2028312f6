// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
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

// parseRecurrence parses the five fields of cron like a CronJob, or HH:MM, or days of the week and HH:MM.
func parseRecurrence(text string) (*Recurrence, error) {
	if strings.Contains(text, "TZ=") { // some of these texts make the library panic
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

// within reports whether each time of r is also a time of other.
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

// on reports whether a Recurrence contains the month and the day of a date. The year of the date does not count: the
// argument weekday is its day of the week. Cron has a field for the day of the month and a field for the day of the
// week. If one of them is *, both must match. Otherwise, one match is enough.
func (r *Recurrence) on(date time.Time, weekday int) bool {
	dom, dow := r.cron.Dom>>date.Day()&1 == 1, r.cron.Dow>>weekday&1 == 1
	both := (r.cron.Dom|r.cron.Dow)&star != 0
	return r.cron.Month>>date.Month()&1 == 1 && (dom && dow || !both && (dom || dow))
}

// expand converts a time of day, with or without days of the week, to the five fields of cron. In other text, only the
// spaces change.
func expand(text string) (string, error) {
	fields := strings.Fields(text)
	if len(fields) == 0 {
		return "", errors.New("it is empty")
	}
	days, clock := "*", fields[len(fields)-1]
	if len(fields) > 2 || !strings.Contains(clock, ":") {
		return strings.Join(fields, " "), nil
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
