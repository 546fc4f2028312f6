// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package legacy

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/schedule"
)

const minutesOfDay, minutesOfWeek = 24 * 60, 7 * 24 * 60

// span is a time span that repeats on each day from firstDay to lastDay. The days are numbers from 0 (Sunday) to 6.
// begin and end are minutes of the day. If begin is greater than end, the span covers two parts of each day: from
// midnight to end, and from begin to midnight.
type span struct{ firstDay, lastDay, begin, end int }

// spanPattern matches a span such as Mon-Fri 08:00-20:00 Europe/Berlin.
var spanPattern = regexp.MustCompile(`^([A-Za-z]{3})-([A-Za-z]{3}) (\d\d):(\d\d)-(\d\d):(\d\d)(?: ([\w/+-]+))?$`)

// parseSpans reads spans that are separated by commas, and their time zone.
func parseSpans(text string) (spans []span, zone string, err error) {
	for part := range strings.SplitSeq(text, ",") {
		m := spanPattern.FindStringSubmatch(strings.TrimSpace(part))
		if m == nil {
			return nil, "", fmt.Errorf("%q is not a weekly span such as Mon-Fri 08:00-20:00 UTC; for single dates, "+
				"use start-until or exclude-dates", schedule.Truncate(part))
		}
		s := span{weekday(m[1]), weekday(m[2]), minute(m[3], m[4]), minute(m[5], m[6])}
		if s.firstDay < 0 || s.lastDay < 0 {
			return nil, "", fmt.Errorf("%q has a day of the week that does not exist; use for example Mon-Fri", part)
		}
		if s.begin < 0 || s.begin == minutesOfDay || s.end < 0 {
			return nil, "", fmt.Errorf("%q has a time of day that does not exist; use 00:00 to 24:00", part)
		}
		if len(spans) > 0 && m[7] != zone {
			return nil, "", errors.New("its spans have different time zones; convert them to one time zone")
		}
		spans, zone = append(spans, s), m[7]
	}
	return spans, zone, nil
}

var weekdays = []string{"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"}

func weekday(name string) int {
	return slices.IndexFunc(weekdays, func(day string) bool { return strings.EqualFold(day, name) })
}

// minute returns the minute of the day, from 0 for 00:00 to 1440 for 24:00. It returns -1 for an invalid time.
func minute(hours, minutes string) int {
	hour, _ := strconv.Atoi(hours)
	m, _ := strconv.Atoi(minutes)
	if at := hour*60 + m; m < 60 && at <= minutesOfDay {
		return at
	}
	return -1
}

// days returns the days of the span, in its order. The last day may be before the first one: Sat-Mon has three days.
func (s span) days() []int {
	days := []int{s.firstDay}
	for day := s.firstDay; day != s.lastDay; {
		day = (day + 1) % len(weekdays)
		days = append(days, day)
	}
	return days
}

// covers reports whether a minute of one of the days is in the span.
func (s span) covers(minute int) bool {
	if s.begin > s.end {
		return minute < s.end || s.begin <= minute
	}
	return s.begin <= minute && minute < s.end
}

// edges returns the times at which a union of spans begins and ends, in minutes since Sunday 00:00.
func edges(spans []span) (begins, ends []int) {
	var covered [minutesOfWeek]bool
	for _, s := range spans {
		for _, day := range s.days() {
			for m := range minutesOfDay {
				if s.covers(m) {
					covered[day*minutesOfDay+m] = true
				}
			}
		}
	}
	for at, is := range covered {
		switch before := covered[(at+minutesOfWeek-1)%minutesOfWeek]; {
		case is && !before:
			begins = append(begins, at)
		case !is && before:
			ends = append(ends, at)
		}
	}
	return begins, ends
}

// spans translates spans to two schedules: beginKey has the times at which they begin, and endKey has the times at
// which they end. If endKey is empty, the end times are not used.
func (t *Translation) spans(name, value, beginKey, endKey string) {
	spans, zone, err := parseSpans(value)
	if err == nil {
		err = t.conflict(beginKey, endKey, zone)
	}
	if err != nil {
		t.omit(name, err.Error())
		return
	}
	begin, end, note, err := schedulesOf(spans, beginKey, endKey)
	if err != nil {
		t.omit(name, err.Error())
		return
	}
	if note != "" {
		t.Reasons = append(t.Reasons, name+": "+note)
	}
	for key, text := range map[string]string{beginKey: begin, endKey: end, v1beta1.TimeZoneAnnotation: zone} {
		if key != "" && text != "" {
			t.set(key, text)
		}
	}
}

// schedulesOf returns two schedules: one for the times at which spans begin, and one for the times at which they end.
// The note says how the schedules differ from the spans.
func schedulesOf(spans []span, beginKey, endKey string) (begin, end, note string, err error) {
	begins, ends := edges(spans)
	if endKey == "" {
		ends = nil
	}
	begin, end = recurrence(begins), recurrence(ends)
	switch isExact := begin != "" && (end != "" || len(ends) == 0); {
	case len(begins) == 0:
		err = errors.New("it covers the whole week or no time at all, so there is nothing to start or stop")
	case !isExact && len(spans) == 1 && spans[0].begin > spans[0].end:
		begin, end = spans[0].nightly()
		note = "GoKubeDownscaler also changes the workload at midnight before the first day and after the last day"
		if endKey != "" {
			note += "; here, the last span of the week lasts from " + spans[0].overWeekend()
		}
	case !isExact:
		err = errors.New(inexpressible(begins, ends, beginKey, endKey))
	}
	return begin, end, note, err
}

// conflict returns an error if another annotation has set the same schedules, or a schedule in another time zone.
func (t *Translation) conflict(beginKey, endKey, zone string) error {
	switch {
	case t.has(beginKey) || t.has(endKey) || t.has(v1beta1.StopAfterAnnotation):
		return errors.New("another annotation sets the same times; keep only one of them")
	case (t.has(v1beta1.StartScheduleAnnotation) || t.has(v1beta1.StopScheduleAnnotation)) &&
		t.Annotations[v1beta1.TimeZoneAnnotation] != zone:
		return errors.New("another annotation has another time zone; convert them to one time zone")
	}
	return nil
}

func (t *Translation) has(key string) bool {
	_, ok := t.Annotations[key]
	return ok
}

// nightly returns the schedules of a span that crosses midnight, without the changes at midnight.
func (s span) nightly() (begin, end string) {
	names := dayNames(s.days())
	return strings.TrimSpace(names + " " + clock(s.begin)), strings.TrimSpace(names + " " + clock(s.end))
}

// overWeekend describes the span that begins on the last day and ends on the first day, such as Fri 20:00 to Mon 08:00.
func (s span) overWeekend() string {
	return weekdays[s.lastDay] + " " + clock(s.begin) + " to " + weekdays[s.firstDay] + " " + clock(s.end)
}

// inexpressible returns the error message for begin or end times that no schedule can express. It suggests a schedule
// with all the days and only one time. This is the earliest time for a start, and the latest time for a stop.
func inexpressible(begins, ends []int, beginKey, endKey string) string {
	var problems, advice []string
	for _, side := range []struct {
		moments []int
		key     string
	}{{begins, beginKey}, {ends, endKey}} {
		if len(side.moments) == 0 {
			continue
		}
		text := recurrence(side.moments)
		if text == "" {
			problems = append(problems, list(side.moments))
			text = covering(side.moments, side.key == v1beta1.StopScheduleAnnotation)
		}
		_, key, _ := strings.Cut(side.key, "/")
		advice = append(advice, fmt.Sprintf("%s=%q", key, text))
	}
	return fmt.Sprintf("one schedule has the same times on all its days, so it cannot have %s; choose the times, "+
		"for example %s", strings.Join(problems, " or "), strings.Join(advice, " and "))
}

// recurrence returns the schedule with exactly these minutes of the week, or an empty string if there is none. A
// schedule has the same times on all its days, and the same minutes in all its hours.
func recurrence(moments []int) string {
	days := byClock(moments)
	clocks := slices.Sorted(maps.Keys(days))
	if len(clocks) == 0 {
		return ""
	}
	same := days[clocks[0]]
	var hours, minutes []int
	for _, at := range clocks {
		if !slices.Equal(days[at], same) {
			return ""
		}
		hours, minutes = append(hours, at/60), append(minutes, at%60)
	}
	slices.Sort(minutes)
	hours, minutes = slices.Compact(hours), slices.Compact(minutes)
	switch {
	case len(hours)*len(minutes) != len(clocks):
		return ""
	case len(clocks) == 1:
		return strings.TrimSpace(dayNames(same) + " " + clock(clocks[0]))
	}
	return fmt.Sprintf("%s %s * * %s", numbers(minutes), numbers(hours), cronDays(same))
}

// byClock returns the sorted days of the week of each minute of the day.
func byClock(moments []int) map[int][]int {
	days := map[int][]int{}
	for _, at := range moments {
		days[at%minutesOfDay] = append(days[at%minutesOfDay], at/minutesOfDay)
	}
	return days
}

// list returns all minutes of the week as text, such as Mon-Thu 18:00, Fri 16:00.
func list(moments []int) string {
	days := byClock(moments)
	texts := make([]string, 0, len(days))
	for _, at := range slices.Sorted(maps.Keys(days)) {
		texts = append(texts, strings.TrimSpace(dayNames(days[at])+" "+clock(at)))
	}
	return strings.Join(texts, ", ")
}

// covering returns a schedule with all the days and only one time of day. This is the latest time if last is true, and
// the earliest time otherwise.
func covering(moments []int, last bool) string {
	clocks := slices.Sorted(maps.Keys(byClock(moments)))
	at := clocks[0]
	if last {
		at = clocks[len(clocks)-1]
	}
	days := make([]int, 0, len(moments))
	for _, moment := range moments {
		days = append(days, moment/minutesOfDay)
	}
	return strings.TrimSpace(dayNames(slices.Compact(days)) + " " + clock(at))
}

func clock(minute int) string { return fmt.Sprintf("%02d:%02d", minute/60%24, minute%60) }

// runs returns the first and the last day of each sequence of days. A sequence may continue from Saturday to Sunday. If
// the week is complete, there is no first day, and runs returns nil.
func runs(days []int) (runs [][2]int) {
	for _, first := range days {
		if slices.Contains(days, (first+6)%7) {
			continue
		}
		last := first
		for slices.Contains(days, (last+1)%7) {
			last = (last + 1) % 7
		}
		runs = append(runs, [2]int{first, last})
	}
	return runs
}

// dayNames returns days of the week as text, such as Mon-Fri. It is empty for all days.
func dayNames(days []int) string {
	sequences := runs(days)
	names := make([]string, 0, len(sequences))
	for _, run := range sequences {
		name := weekdays[run[0]]
		if run[0] != run[1] {
			name += "-" + weekdays[run[1]]
		}
		names = append(names, name)
	}
	return strings.Join(names, ",")
}

// cronDays returns days of the week in cron's format, in which a range cannot continue from Saturday to Sunday.
func cronDays(days []int) string {
	sequences := runs(days)
	switch {
	case len(sequences) == 0:
		return "*"
	case len(sequences) == 1 && sequences[0][0] < sequences[0][1]:
		return fmt.Sprintf("%d-%d", sequences[0][0], sequences[0][1])
	}
	return numbers(days)
}

func numbers(values []int) string {
	texts := make([]string, 0, len(values))
	for _, value := range values {
		texts = append(texts, strconv.Itoa(value))
	}
	return strings.Join(texts, ",")
}
