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

// A recurrence is the wall-clock times that cron's five fields stand for. A wall-clock time is labelled UTC, whatever
// its zone: the library meets no change of an offset that way, at which it would skip times and repeat others.
type recurrence struct {
	text     string // cron's five fields, or a word such as @daily
	cron     *cron.SpecSchedule
	excluded []dates // in order, and apart from each other
}

// dates are the wall-clock times from one midnight to another.
type dates struct{ from, to time.Time }

// parseRecurrence reads cron's five fields as CronJobs do, HH:MM, or HH:MM after days of the week.
func parseRecurrence(text string) (*recurrence, error) {
	if strings.Contains(text, "TZ=") { // on some of which the library panics
		return nil, errors.New("a time zone goes into the annotation time-zone")
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
		return nil, errors.New("it names no time of day")
	}
	if min(spec.Minute, spec.Hour, spec.Dom, spec.Month, spec.Dow) == 0 {
		return nil, errors.New("a list has nothing in it")
	}
	// Five years is how far the library looks, and these have a 29 February.
	if spec.Next(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)).IsZero() {
		return nil, errors.New("there is no such date")
	}
	return &recurrence{text: expanded, cron: spec}, nil
}

// next returns the first time after a wall-clock time, which is a whole minute, or zero if there is none within five years.
func (r *recurrence) next(wall time.Time) time.Time {
	wall = r.cron.Next(wall.Add(59 * time.Second)) // the library would look at each of them
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

// star is what the library adds to the bits of a field that is *.
const star = 1 << 63

// within reports whether every time of a recurrence is one of another, too.
func (r *recurrence) within(other *recurrence) bool {
	if r.cron.Minute&^(other.cron.Minute|star) != 0 || r.cron.Hour&^(other.cron.Hour|star) != 0 {
		return false
	}
	// All dates there are, each of which falls on every day of the week, some year.
	for date := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC); date.Year() == 2000; date = date.Add(day) {
		for weekday := range weekdays {
			if r.on(date, weekday) && !other.on(date, weekday) {
				return false
			}
		}
	}
	return true
}

// on reports whether a recurrence comes on a date that falls on a day of the week. As cron has it, both fields have to
// allow that, but where neither is *, one is enough.
func (r *recurrence) on(date time.Time, weekday int) bool {
	dom, dow := r.cron.Dom>>date.Day()&1 == 1, r.cron.Dow>>weekday&1 == 1
	both := (r.cron.Dom|r.cron.Dow)&star != 0
	return r.cron.Month>>date.Month()&1 == 1 && (dom && dow || !both && (dom || dow))
}

// expand writes a time of day, with or without days of the week before it, in cron's five fields, and leaves all else.
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
		return "", fmt.Errorf("%s is no time of day from 00:00 to 23:59", clock)
	}
	if len(fields) == 2 {
		if days, err = expandDays(fields[0]); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%d %d * * %s", at.Minute(), at.Hour(), days), nil
}

var weekdays = []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"}

// expandDays writes days of the week and ranges of them as cron's numbers. Unlike cron's, a range may cross the weekend.
func expandDays(text string) (string, error) {
	var numbers []string
	for part := range strings.SplitSeq(strings.ToLower(text), ",") {
		from, to, ranged := strings.Cut(part, "-")
		if !ranged {
			to = from
		}
		day, last := slices.Index(weekdays, from), slices.Index(weekdays, to)
		if day < 0 || last < 0 {
			return "", fmt.Errorf("%s is no day of the week, such as Mon, and no range of them", clip(part, maxValue))
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
