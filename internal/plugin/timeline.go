// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"fmt"
	"io"
	"strings"
	"time"

	"container.training/useless/internal/schedule"
)

// timeline writes seven days, from three days before now to three days after it, in the time zone of a schedule. Each
// column is an hour. The mark > in the first column is today. The timeline shows the schedule without manual changes.
func timeline(out io.Writer, s *schedule.Schedule, now time.Time) {
	local := now.In(s.Zone)
	fmt.Fprintln(out, "                  0     6     12    18")
	for d := -3; d <= 3; d++ {
		midnight := time.Date(local.Year(), local.Month(), local.Day()+d, 0, 0, 0, 0, s.Zone)
		end := time.Date(local.Year(), local.Month(), local.Day()+d+1, 0, 0, 0, 0, s.Zone)
		mark := " "
		if d == 0 {
			mark = ">"
		}
		line := fmt.Sprintf("%s %s  %s  %s", mark, midnight.Format("Mon 2006-01-02"), hours(s, midnight),
			strings.Join(notes(s, midnight, end, now), ", "))
		fmt.Fprintln(out, strings.TrimRight(line, " "))
	}
}

// hours returns a character for each wall-clock hour of a day: # if the workload runs, . if it is stopped, ? if that is
// not known. The character is - if the clock skips the hour.
func hours(s *schedule.Schedule, midnight time.Time) string {
	var b strings.Builder
	for hour := range 24 {
		at := time.Date(midnight.Year(), midnight.Month(), midnight.Day(), hour, 30, 0, 0, s.Zone)
		last, _, isStop := s.Events(at)
		switch {
		case at.Hour() != hour:
			b.WriteByte('-')
		case last.At.IsZero():
			b.WriteByte('?')
		case isStop:
			b.WriteByte('.')
		default:
			b.WriteByte('#')
		}
	}
	return b.String()
}

// notes describes the events, the exclusion and the clock change of a day, from midnight to the next midnight.
func notes(s *schedule.Schedule, midnight, end, now time.Time) (notes []string) {
	const most = 4
	shown := 0
	for _, e := range s.EventsAfter(midnight.Add(-time.Second), most+1) {
		if !e.At.Before(end) {
			break
		}
		if shown++; shown > most {
			notes = append(notes, "...")
			break
		}
		_, name := described(e)
		notes = append(notes, name+" "+e.At.In(s.Zone).Format("15:04"))
	}
	if !now.Before(midnight) && now.Before(end) {
		notes = append(notes, "now "+now.In(s.Zone).Format("15:04"))
	}
	if s.IsExcluded(midnight.Add(12 * time.Hour)) {
		notes = append(notes, "excluded: no start")
	}
	_, before := midnight.Zone()
	_, after := end.Zone()
	switch {
	case after > before:
		notes = append(notes, "clocks go forward")
	case after < before:
		notes = append(notes, "clocks go back")
	}
	return notes
}
