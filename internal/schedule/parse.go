// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

// Package schedule computes when workloads start and stop, from annotations and the time. It has no client and no
// clock.
//
// Parse reads a Schedule. An event is a start or a stop. Schedule.Events returns the last and the next event, so that a
// controller can catch up on a missed event. A Record contains the last event that a controller has handled.
package schedule

import (
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	_ "time/tzdata" // the operator's image has no time zone database

	"github.com/prometheus/common/model"

	"container.training/useless/api/useless/v1beta1"
)

// Schedule is a schedule in the annotations of a workload.
type Schedule struct {
	Start, Stop   *Recurrence // nil for none
	Zone          *time.Location
	StopReplicas  int32
	StartReplicas int32 // 0 for the number before the stop
	Suspended     bool
	SuspendUntil  time.Time
	StopAfter     time.Duration // 0 for never
	StartUntil    time.Time     // zero for none
	StartFor      time.Duration // the duration in StartUntilAnnotation; 0 for none
	// Observed is a hash of Start, Stop, Zone, StopReplicas and StartReplicas.
	Observed string
}

// Problem is an invalid value of an annotation.
type Problem struct {
	key, value, form string // form has examples of valid values, or is empty if no value is valid
	err              error
}

// maxValue is the size in bytes at which Truncate cuts a value in a message, before it adds "…". maxNote is the maximum
// size of the message.
const maxValue, maxNote = 60, 1024

// String returns the annotation, its value, the error and examples of valid values.
func (p Problem) String() string {
	cause := truncate(p.err.Error(), 2*maxValue)
	advice := "use for example " + p.form
	if p.form == "" {
		advice = "remove it"
	}
	return fmt.Sprintf("%s %q: %s; %s", p.key, Truncate(p.value), cause, advice)
}

// Key returns the annotation that is invalid.
func (p Problem) Key() string { return p.key }

// field is one annotation of a schedule.
type field struct {
	key, form string // form has examples of valid values
	read      func(s *Schedule, value string) error
}

var fields = append(schedules, additions...)

// schedules are the annotations that define a schedule. If a workload has one of them, the default schedule of its
// Namespace does not apply.
var schedules = []field{
	{v1beta1.StartScheduleAnnotation, `"Mon-Fri 07:00", "07:00" or "0 7 * * 1-5"`,
		func(s *Schedule, value string) (err error) {
			s.Start, err = parseRecurrence(value)
			return err
		}},
	{v1beta1.StopScheduleAnnotation, `"Mon-Fri 20:00", "20:00" or "0 20 * * 1-5"`,
		func(s *Schedule, value string) (err error) {
			s.Stop, err = parseRecurrence(value)
			return err
		}},
	{v1beta1.TimeZoneAnnotation, `"Europe/Berlin" or "UTC"`, func(s *Schedule, value string) (err error) {
		s.Zone, err = ParseZone(value)
		return err
	}},
	{v1beta1.StopReplicasAnnotation, `"0"`, func(s *Schedule, value string) (err error) {
		s.StopReplicas, err = parseReplicas(value, 0)
		return err
	}},
	{v1beta1.StartReplicasAnnotation, `"3"`, func(s *Schedule, value string) (err error) {
		s.StartReplicas, err = parseReplicas(value, 1)
		return err
	}},
	{v1beta1.ExcludeDatesAnnotation, `"2026-12-25" or "2026-12-25,2026-12-28/2027-01-03"`,
		func(s *Schedule, value string) error {
			excluded, err := parseDates(value)
			if s.Start != nil {
				s.Start.excluded = excluded
			}
			return err
		}},
	{v1beta1.StopAfterAnnotation, `"4h", "90m" or "7d"`, func(s *Schedule, value string) (err error) {
		s.StopAfter, err = ParseDuration(value)
		return err
	}},
}

// additions are the other annotations. A workload can combine them with the default schedule of its Namespace.
var additions = []field{
	{v1beta1.SuspendAnnotation, `"true" or "false"`, func(s *Schedule, value string) (err error) {
		s.Suspended, err = parseBool(value)
		return err
	}},
	{v1beta1.SuspendUntilAnnotation, `"2026-11-23T07:00:00Z" or "2026-11-23T07:00:00+01:00"`,
		func(s *Schedule, value string) (err error) {
			if s.SuspendUntil, err = time.Parse(time.RFC3339, value); err != nil {
				err = errors.New("it is not a time with an offset in the format of RFC 3339")
			}
			return err
		}},
	{v1beta1.StartUntilAnnotation, `"3h" or "2026-11-23T20:00:00+01:00"`, func(s *Schedule, value string) (err error) {
		if s.StartUntil = readTime(value); s.StartUntil.IsZero() {
			s.StartFor, err = ParseDuration(value)
		}
		if err != nil {
			err = fmt.Errorf("%w, and not a time with an offset", err)
		}
		return err
	}},
	{v1beta1.DryRunAnnotation, `"true" or "false"`, func(_ *Schedule, value string) error {
		_, err := parseBool(value)
		return err
	}},
	{v1beta1.ScheduleAnnotation, strconv.Quote(v1beta1.ScheduleNone), func(_ *Schedule, value string) error {
		if value != v1beta1.ScheduleNone {
			return errors.New("it must be none")
		}
		return nil
	}},
}

// IsUnscheduled reports whether annotations contain no start-schedule, no stop-schedule and no stop-after.
func IsUnscheduled(annotations map[string]string) bool {
	return !slices.ContainsFunc([]string{
		v1beta1.StartScheduleAnnotation, v1beta1.StopScheduleAnnotation, v1beta1.StopAfterAnnotation,
	}, func(key string) bool { _, ok := annotations[key]; return ok })
}

// Keys returns the keys of all annotations of schedules: the annotations that users set, and the annotations of a
// Record.
func Keys() []string {
	keys := slices.Clone(recordKeys)
	for _, f := range fields {
		keys = append(keys, f.key)
	}
	return keys
}

// HasAny reports whether annotations contain a schedule, a part of one, or a Record.
func HasAny(annotations map[string]string) bool {
	return HasRecord(annotations) || hasOne(annotations, fields)
}

func hasOne(annotations map[string]string, fields []field) bool {
	return slices.ContainsFunc(fields, func(f field) bool { _, ok := annotations[f.key]; return ok })
}

// OfNamespace returns the annotations of a Namespace that belong to a schedule. They are the default for its workloads.
func OfNamespace(annotations map[string]string) map[string]string {
	defaults := map[string]string{}
	for _, f := range fields {
		if value, ok := annotations[f.key]; ok {
			defaults[f.key] = value
		}
	}
	return defaults
}

// Effective returns the annotations of the schedule that applies to a workload, and whether they come from its
// Namespace. The result is own itself, or a new map with the defaults of the Namespace and the additions of the
// workload. It is nil if the workload excludes itself with ScheduleNone.
func Effective(own, defaults map[string]string) (annotations map[string]string, isDefault bool) {
	switch {
	case own[v1beta1.ScheduleAnnotation] == v1beta1.ScheduleNone:
		return nil, false
	case IsUnscheduled(defaults) || hasOne(own, schedules):
		return own, false
	}
	annotations = maps.Clone(defaults)
	for _, f := range additions {
		if value, ok := own[f.key]; ok {
			annotations[f.key] = value
		}
	}
	return annotations, true
}

// IsDryRun reports whether annotations require a dry run. For an invalid value, it returns true, because the user
// probably wants a dry run.
func IsDryRun(annotations map[string]string) bool {
	value, ok := annotations[v1beta1.DryRunAnnotation]
	dry, err := strconv.ParseBool(value)
	return ok && (dry || err != nil)
}

// Parse reads the schedule in annotations. It returns either a schedule or problems. It searches for contradictions
// only if each single value is valid. The default zone applies to schedules without a time zone.
func Parse(annotations map[string]string, defaultZone *time.Location) (*Schedule, []Problem) {
	s := &Schedule{Zone: defaultZone}
	var problems []Problem
	for _, f := range fields {
		if value, ok := annotations[f.key]; ok {
			if err := f.read(s, value); err != nil {
				problems = append(problems, Problem{f.key, value, f.form, err})
			}
		}
	}
	if len(problems) > 0 {
		return nil, problems
	}
	if problems = s.contradictions(annotations); len(problems) > 0 {
		return nil, problems
	}
	s.Observed = s.digest()
	return s, nil
}

// forbidden returns a problem if the annotation key exists. The reason says why the annotation is not allowed.
func forbidden(annotations map[string]string, key, reason string) []Problem {
	if value, given := annotations[key]; given {
		return []Problem{{key, value, "", errors.New(reason)}}
	}
	return nil
}

// ProblemsOfOnOff returns a problem for each annotation with a number of replicas. It is for workloads that have no
// replicas, such as CronJobs.
func ProblemsOfOnOff(annotations map[string]string) []Problem {
	const reason = "this kind of workload has no replicas"
	return append(forbidden(annotations, v1beta1.StopReplicasAnnotation, reason),
		forbidden(annotations, v1beta1.StartReplicasAnnotation, reason)...)
}

// ProblemsOfAutoscaler returns the problems of a schedule for a HorizontalPodAutoscaler. It ignores an invalid value of
// stop-replicas, because Parse reports it.
func ProblemsOfAutoscaler(annotations map[string]string) (problems []Problem) {
	const stopKey = v1beta1.StopReplicasAnnotation
	_, stops := annotations[v1beta1.StopScheduleAnnotation]
	_, expires := annotations[v1beta1.StopAfterAnnotation]
	value, given := annotations[stopKey]
	if replicas, err := parseReplicas(value, 0); (stops || expires) && (!given || err == nil && replicas == 0) {
		cause := "a HorizontalPodAutoscaler has at least 1 replica; to stop at 0, annotate its workload"
		if !given {
			cause = "it is missing, but " + cause
		}
		problems = append(problems, Problem{stopKey, value, `"1"`, errors.New(cause)})
	}
	return append(problems, forbidden(annotations, v1beta1.StartReplicasAnnotation,
		"a start restores minReplicas and maxReplicas from before the stop")...)
}

// ProblemsOfScaledObject returns the problems of a schedule for a ScaledObject of KEDA.
func ProblemsOfScaledObject(annotations map[string]string) []Problem {
	return forbidden(annotations, v1beta1.StartReplicasAnnotation, "after a start, KEDA decides about the replicas")
}

// ProblemsOfNamespace returns the problems of the default schedule of a Namespace. The zone is the default time zone.
func ProblemsOfNamespace(annotations map[string]string, zone *time.Location) []Problem {
	if !hasOne(annotations, fields) {
		return nil
	}
	if problems := forbidden(annotations, v1beta1.ScheduleAnnotation, "only a workload can have it"); problems != nil {
		return problems
	}
	s, problems := Parse(annotations, zone)
	if s != nil && s.StartFor > 0 {
		problems = append(problems, Problem{v1beta1.StartUntilAnnotation, annotations[v1beta1.StartUntilAnnotation],
			`"2026-11-23T20:00:00+01:00"`, errors.New("on a Namespace, it must be a time")})
	}
	return problems
}

// Own returns the problems whose annotation is in own, the annotations of a workload. It drops the problems of the
// annotations of its Namespace. It changes the slice problems.
func Own(problems []Problem, own map[string]string) []Problem {
	return slices.DeleteFunc(problems, func(p Problem) bool {
		_, ok := own[p.key]
		return !ok
	})
}

// contradictions returns the problems of values that are valid alone, but not together.
func (s *Schedule) contradictions(annotations map[string]string) []Problem {
	var problems []Problem
	complain := func(key, form, reason string, args ...any) {
		problems = append(problems, Problem{key, annotations[key], form, fmt.Errorf(reason, args...)})
	}
	_, excludes := annotations[v1beta1.ExcludeDatesAnnotation]
	switch {
	case IsUnscheduled(annotations):
		if key := firstKey(annotations); key != "" {
			complain(key, `stop-schedule "Mon-Fri 20:00" in addition`,
				"there is no start-schedule, stop-schedule or stop-after")
		}
	case s.Start == nil && excludes:
		complain(v1beta1.ExcludeDatesAnnotation, `start-schedule "Mon-Fri 07:00" in addition`,
			"it needs a start-schedule")
	case s.Start != nil && s.Stop != nil && s.Stop.within(s.Start):
		complain(v1beta1.StopScheduleAnnotation, s.Start.anotherTime(),
			"every stop has the time of a start, and the start takes precedence")
	}
	if s.StartReplicas > 0 && s.StartReplicas <= s.StopReplicas {
		complain(v1beta1.StartReplicasAnnotation, strconv.Quote(strconv.Itoa(int(s.StopReplicas)+1)),
			"it must be more than stop-replicas, which is %d", s.StopReplicas)
	}
	return problems
}

// firstKey returns the first annotation that needs a schedule, or an empty string.
func firstKey(annotations map[string]string) string {
	for _, f := range fields {
		if _, ok := annotations[f.key]; ok && f.key != v1beta1.DryRunAnnotation {
			return f.key
		}
	}
	return ""
}

// anotherTime returns an example of a stop-schedule that has times other than those of the start-schedule r.
func (r *Recurrence) anotherTime() string {
	for _, text := range []string{"Mon-Fri 20:00", "Mon-Fri 20:15"} {
		if other, err := parseRecurrence(text); err == nil && !other.within(r) {
			return strconv.Quote(text)
		}
	}
	return `"Mon-Fri 20:00" with start-schedule "Mon-Fri 07:00"`
}

// digest returns a hash of the schedule.
func (s *Schedule) digest() string {
	hash := fnv.New64a()
	for _, r := range []*Recurrence{s.Start, s.Stop} {
		if r == nil {
			r = &Recurrence{}
		}
		fmt.Fprintf(hash, "%q\n", r.text)
		for _, excluded := range r.excluded {
			fmt.Fprintln(hash, excluded.from, excluded.to)
		}
	}
	fmt.Fprintln(hash, s.Zone, s.StopReplicas, s.StartReplicas)
	return strconv.FormatUint(hash.Sum64(), 36)
}

// Explain returns the reason and the note of an event about problems. The note contains the first problems, up to
// maxNote bytes, and the number of the others.
func Explain(problems []Problem) (reason, note string) {
	reason = v1beta1.EventInvalidSchedule
	if len(problems) == 1 && problems[0].key == v1beta1.TimeZoneAnnotation {
		reason = v1beta1.EventUnknownTimeZone
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

// zones caches time zones by name, because loading one reads files. The map has only names of the time zone database,
// so its size is limited.
var zones sync.Map

// zoneName matches all names of the time zone database. If the host has a zone directory, Go reads it instead of the
// database in the binary. Such a directory also has other files, and one file can have several paths. The operator's
// image has no such directory. With zoneName, the operator accepts the same names on other hosts as in the image.
var zoneName = regexp.MustCompile(`^[A-Z][\w+-]*(/[A-Z][\w+-]*)*$`)

// ParseZone returns the zone with a name in the time zone database. It returns an error for an unknown name, and for
// Local and Factory.
func ParseZone(name string) (*time.Location, error) {
	if zone, ok := zones.Load(name); ok {
		return zone.(*time.Location), nil
	}
	zone, err := time.LoadLocation(name)
	// Local is the zone of the host. Factory means that no zone is configured.
	if err != nil || !zoneName.MatchString(name) || name == "Local" || name == "Factory" {
		return nil, errors.New("it is not in the time zone database")
	}
	zones.Store(name, zone)
	return zone, nil
}

func parseBool(value string) (bool, error) {
	parsed, err := strconv.ParseBool(value)
	if err != nil {
		return false, errors.New("it is neither true nor false")
	}
	return parsed, nil
}

const shortestDuration, longestDuration = time.Minute, 30 * day

// ParseDuration parses a duration from 1m to 30d, such as 90m, 1h30m or 7d.
func ParseDuration(value string) (time.Duration, error) {
	parsed, err := model.ParseDuration(value)
	if d := time.Duration(parsed); err == nil && d >= shortestDuration && d <= longestDuration {
		return d, nil
	}
	return 0, errors.New("it is not a duration from 1m to 30d")
}

func parseReplicas(value string, least int64) (int32, error) {
	n, err := strconv.ParseInt(value, 10, 32)
	if err != nil || n < least {
		return 0, fmt.Errorf("it is not a whole number from %d to %d", least, math.MaxInt32)
	}
	return int32(n), nil
}

// parseDates parses dates and ranges of dates. A range includes both ends.
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
			return nil, fmt.Errorf("%q is neither a date nor a range of dates", Truncate(strings.TrimSpace(part)))
		}
		if to.Before(from) {
			return nil, fmt.Errorf("%s ends before it begins", part)
		}
		all = append(all, dates{from, to.Add(day)})
	}
	return merge(all), nil
}

// merge sorts ranges of dates, and joins ranges that touch or overlap.
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

// Truncate shortens a value for a message.
func Truncate(value string) string { return truncate(value, maxValue) }

func truncate(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}
