// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	_ "time/tzdata" // the operator's image, and a machine that runs tests, may have no time zone database
)

// A schedule is what a Deployment's annotations ask for.
type schedule struct {
	start, stop   *recurrence // nil where there is none
	zone          *time.Location
	stopReplicas  int32
	startReplicas int32 // 0 for as many as before the stop
	suspended     bool
	suspendUntil  time.Time
	observed      string // tells it from another one; suspending changes nothing of it
}

// A problem is a value that cannot be read.
type problem struct {
	key, value, form string
	err              error
}

// maxValue is how much of a value an event repeats, and maxNote how long its note may be.
const maxValue, maxNote = 60, 1024

func (p problem) String() string {
	return fmt.Sprintf("%s %q: %s; use for example %s", p.key, clip(p.value, maxValue), clip(p.err.Error(), 2*maxValue), p.form)
}

// A field is what one annotation says about a schedule.
type field struct {
	key, form string // with examples that are valid
	read      func(s *schedule, value string) error
}

var fields = []field{
	{StartScheduleAnnotation, `"Mon-Fri 07:00", "07:00" or "0 7 * * 1-5"`, func(s *schedule, value string) (err error) {
		s.start, err = parseRecurrence(value)
		return err
	}},
	{StopScheduleAnnotation, `"Mon-Fri 20:00", "20:00" or "0 20 * * 1-5"`, func(s *schedule, value string) (err error) {
		s.stop, err = parseRecurrence(value)
		return err
	}},
	{TimeZoneAnnotation, `"Europe/Berlin" or "UTC"`, func(s *schedule, value string) (err error) {
		s.zone, err = parseZone(value)
		return err
	}},
	{StopReplicasAnnotation, `"0"`, func(s *schedule, value string) (err error) {
		s.stopReplicas, err = parseReplicas(value, 0)
		return err
	}},
	{StartReplicasAnnotation, `"3"`, func(s *schedule, value string) (err error) {
		s.startReplicas, err = parseReplicas(value, 1)
		return err
	}},
	{SuspendAnnotation, `"true" or "false"`, func(s *schedule, value string) (err error) {
		if s.suspended, err = strconv.ParseBool(value); err != nil {
			err = errors.New("it is neither true nor false")
		}
		return err
	}},
	{SuspendUntilAnnotation, `"2026-11-23T07:00:00Z" or "2026-11-23T07:00:00+01:00"`, func(s *schedule, value string) (err error) {
		if s.suspendUntil, err = time.Parse(time.RFC3339, value); err != nil {
			err = errors.New("it is no instant with an offset, as of RFC 3339")
		}
		return err
	}},
	{ExcludeDatesAnnotation, `"2026-12-25" or "2026-12-25,2026-12-28/2027-01-03"`, func(s *schedule, value string) error {
		excluded, err := parseDates(value)
		if s.start != nil {
			s.start.excluded = excluded
		}
		return err
	}},
}

// unscheduled reports whether annotations have neither schedule.
func unscheduled(annotations map[string]string) bool {
	_, start := annotations[StartScheduleAnnotation]
	_, stop := annotations[StopScheduleAnnotation]
	return !start && !stop
}

// parse reads a schedule and returns all problems it has. Only one without problems is to be followed. Times are in the
// default zone where the annotations name none.
func parse(annotations map[string]string, defaultZone *time.Location) (*schedule, []problem) {
	s := &schedule{zone: defaultZone}
	var problems []problem
	for _, f := range fields {
		if value, ok := annotations[f.key]; ok {
			if err := f.read(s, value); err != nil {
				problems = append(problems, problem{f.key, value, f.form, err})
			}
		}
	}
	if len(problems) > 0 {
		return nil, problems
	}
	if problems = s.contradictions(annotations); len(problems) > 0 {
		return nil, problems
	}
	s.observed = s.digest()
	return s, nil
}

// contradictions returns what is wrong with values that can be read, each by itself.
func (s *schedule) contradictions(annotations map[string]string) []problem {
	var problems []problem
	complain := func(key, form, reason string, args ...any) {
		problems = append(problems, problem{key, annotations[key], form, fmt.Errorf(reason, args...)})
	}
	_, excludes := annotations[ExcludeDatesAnnotation]
	switch {
	case s.start == nil && s.stop == nil:
		if i := slices.IndexFunc(fields, func(f field) bool { _, ok := annotations[f.key]; return ok }); i >= 0 {
			complain(fields[i].key, `stop-schedule "Mon-Fri 20:00" beside it`, "there is neither a start-schedule nor a stop-schedule")
		}
	case s.start == nil && excludes:
		complain(ExcludeDatesAnnotation, `start-schedule "Mon-Fri 07:00" beside it`, "it excludes starts, and there is no start-schedule")
	case s.start != nil && s.stop != nil && s.stop.within(s.start):
		complain(StopScheduleAnnotation, s.start.anotherTime(), "a start always comes at the same time, and wins")
	}
	if s.startReplicas > 0 && s.startReplicas <= s.stopReplicas {
		complain(StartReplicasAnnotation, strconv.Quote(strconv.Itoa(int(s.stopReplicas)+1)), "it is no more than the stop-replicas, which are %d", s.stopReplicas)
	}
	return problems
}

// anotherTime is a form of a schedule that does not always come with this one.
func (r *recurrence) anotherTime() string {
	for _, text := range []string{"Mon-Fri 20:00", "Mon-Fri 20:15"} {
		if other, err := parseRecurrence(text); err == nil && !other.within(r) {
			return strconv.Quote(text)
		}
	}
	return `"Mon-Fri 20:00" with start-schedule "Mon-Fri 07:00"`
}

// digest returns a short text that is another one for a schedule that says something else.
func (s *schedule) digest() string {
	hash := fnv.New64a()
	for _, r := range []*recurrence{s.start, s.stop} {
		if r == nil {
			r = &recurrence{}
		}
		fmt.Fprintf(hash, "%q\n", r.text)
		for _, excluded := range r.excluded {
			fmt.Fprintln(hash, excluded.from, excluded.to)
		}
	}
	fmt.Fprintln(hash, s.zone, s.stopReplicas, s.startReplicas)
	return strconv.FormatUint(hash.Sum64(), 36)
}

// explain returns the reason and the note of an event about problems.
func explain(problems []problem) (reason, note string) {
	reason = EventInvalidSchedule
	if len(problems) == 1 && problems[0].key == TimeZoneAnnotation {
		reason = EventUnknownTimeZone
	}
	for i, p := range problems {
		rest := fmt.Sprintf(" (and %d more)", len(problems)-i)
		text := p.String()
		if i > 0 {
			text = ". " + text
		}
		if len(note)+len(text)+len(rest) > maxNote {
			return reason, note + rest
		}
		note += text
	}
	return reason, note
}

// zones has every zone that was asked for, because loading one reads files. There are no more than the time zone
// database has names.
var zones sync.Map

// zoneName is the form of all names of the time zone database. Where a machine has a copy, which Go prefers to its own,
// there are other files beside it, and other ways to spell a path. The operator's image has none.
var zoneName = regexp.MustCompile(`^[A-Z][\w+-]*(/[A-Z][\w+-]*)*$`)

// parseZone returns the zone that the time zone database has by a name.
func parseZone(name string) (*time.Location, error) {
	if zone, ok := zones.Load(name); ok {
		return zone.(*time.Location), nil
	}
	zone, err := time.LoadLocation(name)
	// Local is the machine's own zone, and Factory stands for one that nobody has chosen.
	if err != nil || !zoneName.MatchString(name) || name == "Local" || name == "Factory" {
		return nil, errors.New("the time zone database does not have it")
	}
	zones.Store(name, zone)
	return zone, nil
}

func parseReplicas(value string, least int64) (int32, error) {
	n, err := strconv.ParseInt(value, 10, 32)
	if err != nil || n < least {
		return 0, fmt.Errorf("it is no whole number from %d to %d", least, math.MaxInt32)
	}
	return int32(n), nil
}

// parseDates reads dates and ranges of dates, both of whose ends belong to them.
func parseDates(text string) ([]dates, error) {
	var all []dates
	for part := range strings.SplitSeq(text, ",") {
		first, last, ranged := strings.Cut(strings.TrimSpace(part), "/")
		if !ranged {
			last = first
		}
		from, err := time.Parse(time.DateOnly, first)
		to, lastErr := time.Parse(time.DateOnly, last)
		if err = cmp.Or(err, lastErr); err != nil {
			return nil, fmt.Errorf("%q is neither a date nor a range of dates", clip(strings.TrimSpace(part), maxValue))
		}
		if to.Before(from) {
			return nil, fmt.Errorf("%s ends before it begins", part)
		}
		all = append(all, dates{from, to.Add(day)})
	}
	return merge(all), nil
}

// merge puts ranges of dates in order, and those together between which there is nothing.
func merge(all []dates) []dates {
	slices.SortFunc(all, func(a, b dates) int { return a.from.Compare(b.from) })
	merged := all[:0]
	for _, next := range all {
		if last := len(merged) - 1; last >= 0 && !next.from.After(merged[last].to) {
			if next.to.After(merged[last].to) {
				merged[last].to = next.to
			}
			continue
		}
		merged = append(merged, next)
	}
	return merged
}

// clip shortens a text to so many bytes.
func clip(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}
