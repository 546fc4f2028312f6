// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"container.training/useless/api/useless/v1beta1"
	"container.training/useless/internal/schedule"
)

func (o *options) newExplain() *cobra.Command {
	return &cobra.Command{
		Use: "explain KIND/NAME", Short: "Explain the state of a workload, and show its schedule for 7 days",
		Example:           "  kubectl useless schedule explain deployment/web",
		ValidArgsFunction: o.completeWorkload,
		RunE: func(_ *cobra.Command, args []string) error {
			r, err := o.newReader()
			if err != nil {
				return err
			}
			w, err := r.get(args)
			if err != nil {
				return err
			}
			if !w.IsIgnored() && w.state() == "" {
				return noSchedule(w)
			}
			explain(o.Out, w, r.now)
			return nil
		},
	}
}

// noSchedule returns an error about a workload without a schedule.
func noSchedule(w workload) error {
	annotations := w.object.GetAnnotations()
	if annotations[v1beta1.ScheduleAnnotation] == v1beta1.ScheduleNone {
		return fmt.Errorf("%s is excluded from schedules: remove the annotation with\n"+
			"  kubectl annotate -n %s %[1]s %[3]s-", w.id(), w.object.GetNamespace(), v1beta1.ScheduleAnnotation)
	}
	if unknown := w.mistakes(nil); len(unknown) > 0 {
		return fmt.Errorf("%s has no schedule: %s", w.id(), unknown[0])
	}
	if _, problems := w.Parse(); len(problems) > 0 {
		_, note := schedule.Explain(problems)
		return fmt.Errorf("%s has no schedule: %s", w.id(), note)
	}
	if w.defaults.unknown != nil {
		return fmt.Errorf("%s has no schedule of its own, and its Namespace may have a default schedule: "+
			"ask for the permission to get the Namespace %s", w.id(), w.object.GetNamespace())
	}
	return fmt.Errorf("%s has no schedule: add one, for example with\n%s", w.id(), w.kind.addSchedule(w.target()))
}

// mistakes returns the problems of a schedule, and the annotations that look like the operator's and are unknown.
func (w workload) mistakes(problems []schedule.Problem) (mistakes []string) {
	for _, p := range problems {
		mistakes = append(mistakes, p.String())
	}
	for _, key := range slices.Sorted(maps.Keys(w.object.GetAnnotations())) {
		if isMisspelled(key) {
			mistakes = append(mistakes, "the annotation "+unknownKey(key))
		}
	}
	return mistakes
}

// addSchedule returns a kubectl command that adds a schedule to a workload of the kind, and its effect.
func (k kind) addSchedule(target string) string {
	annotations := fmt.Sprintf("%q %q", v1beta1.StartScheduleAnnotation+"=Mon-Fri 07:00",
		v1beta1.StopScheduleAnnotation+"=Mon-Fri 20:00")
	if k.needsReplicas {
		annotations += " " + v1beta1.StopReplicasAnnotation + "=1"
	}
	return "  kubectl annotate " + target + " " + annotations + "\n" +
		"The operator executes the last start or stop of a new schedule at once. With " + v1beta1.DryRunAnnotation +
		"=true, it only emits an event."
}

// id returns KIND/NAME.
func (w workload) id() string { return w.kind.singular + "/" + w.object.GetName() }

// target returns the arguments of kubectl for the workload, for example "-n dev deployment/web".
func (w workload) target() string { return "-n " + w.object.GetNamespace() + " " + w.id() }

// ignoredBecause says why the operator ignores a workload, and what to do.
func (w workload) ignoredBecause() string {
	paused, _ := strconv.ParseBool(w.object.GetAnnotations()[v1beta1.PausedAnnotation])
	switch owner := metav1.GetControllerOfNoCopy(w.object); {
	case paused:
		return fmt.Sprintf("it has the annotation %s: remove the annotation with\n"+
			"  kubectl annotate %[2]s %[1]s-", v1beta1.PausedAnnotation, w.target()) + afterPause
	case !w.object.GetDeletionTimestamp().IsZero():
		return "it is being deleted: choose another workload"
	case owner != nil:
		return fmt.Sprintf("%s %s controls it: change that object", owner.Kind, owner.Name)
	default:
		return "it is paused: resume it with\n  kubectl " + w.ResumeCommand(w.target()) + afterPause
	}
}

const afterPause = "\nThe operator then executes the last start or stop, if it has missed one."

// explain writes the state of a workload, its cause, and a timeline.
func explain(out io.Writer, w workload, now time.Time) {
	field := func(name, format string, args ...any) {
		fmt.Fprintf(out, "%-11s %s\n", name+":", fmt.Sprintf(format, args...))
	}
	field("Workload", "%s in namespace %s", w.id(), w.object.GetNamespace())
	if w.IsIgnored() {
		field("State", "ignored: %s", w.ignoredBecause())
		return
	}
	field("State", "%s", w.state())
	s, problems := w.Parse()
	mistakes := w.mistakes(problems)
	if s == nil {
		for _, m := range mistakes {
			field("Mistake", "%s", m)
		}
		field("Source", "%s", w.invalidSource())
		return
	}
	due := s.Due(w.Record(), w.Running(s), now)
	field("Because", "%s", w.reason(s, due, now))
	field("Source", "%s", w.source())
	for _, m := range mistakes {
		field("Mistake", "%s", m)
	}
	if w.IsDryRun() {
		field("Dry run", "the operator only emits events about starts and stops (%s)", v1beta1.DryRunAnnotation)
	}
	if next := w.nextEvent(s, due, now); !next.At.IsZero() {
		field("Next", "%s", w.describeNext(s, next))
	}
	field("Time zone", "%s", s.Zone)
	saved := w.Saved()
	field("Saves now", "%s cores, %s of memory", saved.Cpu(), saved.Memory())
	field("Saved", "%s", w.describeSavedHours(s, now))
	if s.Start != nil || s.Stop != nil {
		fmt.Fprint(out, "\nThe schedule from 3 days ago to 3 days from now (# runs, . is stopped):\n\n")
		timeline(out, s, now)
	}
}

// describeNext describes the next start or stop. If a start would have no effect, it says so.
func (w workload) describeNext(s *schedule.Schedule, next schedule.Event) string {
	_, name := described(next)
	text := fmt.Sprintf("%s on %s (%s)", name, clockTime(s, next.At), strings.TrimPrefix(next.Cause, prefix))
	if !next.IsStop && !w.Running(s) && !w.IsDryRun() && !w.CanStart() {
		text += ", which will not start it: it did not run before the stop"
	}
	return text
}

// source says which annotations have the schedule.
func (w workload) source() string {
	if _, isDefault := w.Annotations(); isDefault {
		return "Namespace " + w.object.GetNamespace()
	}
	return "its own annotations"
}

// invalidSource is like source. It also says if the annotations replace a default schedule, because a user may have
// wanted to change only a part of the default.
func (w workload) invalidSource() string {
	source := w.source()
	if _, isDefault := w.Annotations(); !isDefault && !schedule.IsUnscheduled(w.defaults.annotations) {
		source += ", which replace the default schedule of Namespace " + w.object.GetNamespace()
	}
	return source
}

// describeSavedHours describes the savings since the last stop.
func (w workload) describeSavedHours(s *schedule.Schedule, now time.Time) string {
	coreHours, gibHours, isKnown := w.savedHours(s, now)
	switch {
	case isKnown:
		return fmt.Sprintf("%.1f core hours, %.1f GiB hours since the last stop was due", coreHours, gibHours)
	case w.Record().Last.IsZero():
		return "not known, because the operator has recorded no stop"
	default:
		return "not known, because the operator has recorded a start after the stop"
	}
}

// reason returns text for users that explains the state of a workload.
func (w workload) reason(s *schedule.Schedule, due schedule.Due, now time.Time) string {
	last, runs := w.describeLast(s, due), "it is stopped"
	if w.Running(s) {
		runs = "it runs"
	}
	switch {
	case due.IsDue && !due.At.IsZero() && w.IsDryRun():
		return last + ", but a dry run does not execute it"
	case s.Suspended && !due.IsUptime:
		return runs + `, and starts and stops are skipped because suspend is "true"`
	case now.Before(s.SuspendUntil) && !due.IsUptime:
		return runs + ", and starts and stops are skipped until " + clockTime(s, s.SuspendUntil) + " (suspend-until)"
	case due.IsDue && !due.At.IsZero():
		return fmt.Sprintf("%s, but the operator has not executed it yet: its events can show the reason\n"+
			"  kubectl events -n %s --for %s", last, w.object.GetNamespace(), w.id())
	}
	return last + w.afterLast(s, due, now)
}

// afterLast explains what has undone the last start or stop, or what follows after an uptime on demand.
func (w workload) afterLast(s *schedule.Schedule, due schedule.Due, now time.Time) string {
	if contradiction := w.contradiction(s, due); contradiction != "" || !due.IsUptime {
		return contradiction
	}
	return w.afterWake(now, due.Expiry)
}

// describeLast describes the last start or stop.
func (w workload) describeLast(s *schedule.Schedule, due schedule.Due) string {
	last := w.lastEvent(due)
	switch {
	case due.IsUptime:
		return "start-until keeps it running until " + clockTime(s, due.Expiry)
	case last.At.IsZero() && !due.Since.IsZero():
		return "stop-after counts from " + clockTime(s, due.Since)
	case last.At.IsZero():
		return "nothing was due yet"
	case last.Cause == "":
		return "stop-after or kubectl useless sleep stopped it on " + clockTime(s, last.At)
	}
	annotations, _ := w.Annotations()
	_, key, _ := strings.Cut(last.Cause, "/")
	return fmt.Sprintf("%s %q was due on %s", key, schedule.Truncate(annotations[last.Cause]), clockTime(s, last.At))
}

// lastEvent returns the last start or stop. It is zero if start-until keeps the workload running, because the operator
// does not record when it started the workload. If a stop was recorded after the last regular event, stop-after or the
// command sleep has stopped the workload. The stop then has no cause.
func (w workload) lastEvent(due schedule.Due) schedule.Event {
	r := w.Record()
	switch {
	case due.IsUptime:
		return schedule.Event{}
	case !due.IsDue && r.State == v1beta1.ScheduleStopped && r.Last.After(due.At):
		return schedule.Event{At: r.Last, IsStop: true}
	default:
		return due.Event
	}
}

// contradiction explains why the workload runs after a stop, or does not run after a start. It is empty if the last
// start or stop has had its effect, or is not recorded.
func (w workload) contradiction(s *schedule.Schedule, due schedule.Due) string {
	r, last := w.Record(), w.lastEvent(due)
	runs, isRecorded := w.Running(s), due.IsUptime || !last.At.IsZero() && r.Last.Equal(last.At)
	switch {
	case !isRecorded || last.IsStop != runs:
		return ""
	case last.IsStop == (r.State == v1beta1.ScheduleStopped) && r.State != "":
		return ", but a user or a tool has undone it"
	case !last.IsStop && r.Original == 0 && s.StartReplicas == 0:
		return ", but the operator had not stopped it, so there was nothing to restore"
	default:
		return ", but a suspension or a dry run has skipped it"
	}
}

func clockTime(s *schedule.Schedule, at time.Time) string {
	return at.In(s.Zone).Format("Mon 2006-01-02 15:04 MST")
}

// timeline writes seven days, from three days before now to three days after it, in the time zone of a schedule. Each
// column is an hour. The mark > at the beginning of a line is for today. The timeline shows the schedule without manual
// changes.
func timeline(out io.Writer, s *schedule.Schedule, now time.Time) {
	local := now.In(s.Zone)
	fmt.Fprintln(out, "                  0     6     12    18")
	for d := -3; d <= 3; d++ {
		noon := time.Date(local.Year(), local.Month(), local.Day()+d, 12, 0, 0, 0, s.Zone)
		mark := " "
		if d == 0 {
			mark = ">"
		}
		line := fmt.Sprintf("%s %s  %s  %s", mark, noon.Format("Mon 2006-01-02"), hours(s, noon),
			strings.Join(notes(s, noon, now), ", "))
		fmt.Fprintln(out, strings.TrimRight(line, " "))
	}
}

// hours returns a character for each wall-clock hour of a day. It is # if the workload runs, . if the workload is
// stopped, and ? if its state is not known. It is - if the clock skips the hour.
func hours(s *schedule.Schedule, day time.Time) string {
	var b strings.Builder
	for hour := range 24 {
		at := time.Date(day.Year(), day.Month(), day.Day(), hour, 30, 0, 0, s.Zone)
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

// startOf returns the first instant of the day of a time. Some zones skip midnight when their clocks go forward.
func startOf(day time.Time) time.Time {
	midnight := time.Date(day.Year(), day.Month(), day.Day(), 0, 0, 0, 0, day.Location())
	if midnight.Day() != day.Day() {
		_, midnight = midnight.ZoneBounds()
	}
	return midnight
}

// notes describes the events, the exclusion and the clock change of a day. The argument noon is a time of this day.
func notes(s *schedule.Schedule, noon, now time.Time) (notes []string) {
	const most = 4
	begin, end := startOf(noon), startOf(noon.AddDate(0, 0, 1))
	shown := 0
	for _, e := range s.EventsAfter(begin.Add(-time.Second), most+1) {
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
	if !now.Before(begin) && now.Before(end) {
		notes = append(notes, "now "+now.In(s.Zone).Format("15:04"))
	}
	if s.IsExcluded(noon) {
		notes = append(notes, "excluded: no start")
	}
	_, before := begin.Add(-time.Second).Zone() // a change at the first instant belongs to this day
	_, after := end.Add(-time.Second).Zone()
	switch {
	case after > before:
		notes = append(notes, "clocks go forward")
	case after < before:
		notes = append(notes, "clocks go back")
	}
	return notes
}
