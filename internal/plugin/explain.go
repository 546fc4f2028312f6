// Copyright The useless-operator Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

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
			if !w.IsIgnored() && w.State() == "" {
				return noSchedule(w)
			}
			explain(o.Out, w, r.now)
			return nil
		},
	}
}

// noSchedule returns an error about a workload without a schedule.
func noSchedule(w workload) error {
	return fmt.Errorf("%s has no schedule: add one with\n  kubectl annotate -n %s %[1]s %q", w.id(),
		w.object.GetNamespace(), v1beta1.StopScheduleAnnotation+"=Mon-Fri 20:00")
}

// id returns KIND/NAME.
func (w workload) id() string { return w.kind.singular + "/" + w.object.GetName() }

// explain writes the state of a workload, its cause, and a timeline.
func explain(out io.Writer, w workload, now time.Time) {
	field := func(name, format string, args ...any) {
		fmt.Fprintf(out, "%-11s %s\n", name+":", fmt.Sprintf(format, args...))
	}
	field("Workload", "%s in namespace %s", w.id(), w.object.GetNamespace())
	if w.IsIgnored() {
		field("State", "ignored: it is paused or being deleted, or another object controls it")
		return
	}
	field("State", "%s", w.State())
	source := "its own annotations"
	if _, isDefault := w.Annotations(); isDefault {
		source = "Namespace " + w.object.GetNamespace()
	}
	s, problems := w.Parse()
	if s == nil {
		for _, p := range problems {
			field("Mistake", "%s", p)
		}
		field("Source", "%s", source)
		return
	}
	due := s.Due(w.Record(), w.Running(s), now)
	field("Because", "%s", w.reason(s, due, now))
	field("Source", "%s", source)
	if next := nextEvent(s, due, now); !next.At.IsZero() {
		_, name := described(next)
		field("Next", "%s on %s", name, clockTime(s, next.At))
	}
	field("Time zone", "%s", s.Zone)
	saved, coreHours, gibHours := w.saved(now)
	field("Saves now", "%s cores, %s of memory", saved.Cpu(), saved.Memory())
	field("Saved", "%.1f core hours, %.1f GiB hours since the last stop", coreHours, gibHours)
	if s.Start != nil || s.Stop != nil {
		fmt.Fprint(out, "\nThe schedule from 3 days ago to 3 days from now (# runs, . is stopped):\n\n")
		timeline(out, s, now)
	}
}

// reason returns text for users that explains the state of a workload.
func (w workload) reason(s *schedule.Schedule, due schedule.Due, now time.Time) string {
	last := w.describeLast(s, due)
	switch {
	case due.IsDue && !due.At.IsZero() && w.IsDryRun():
		return last + ", but a dry run does not execute it"
	case s.Suspended && !due.IsUptime:
		return `suspend is "true", so starts and stops are skipped`
	case now.Before(s.SuspendUntil) && !due.IsUptime:
		return "starts and stops are skipped until " + clockTime(s, s.SuspendUntil)
	case due.IsDue && !due.At.IsZero():
		return last + ", but the operator has not executed it yet"
	}
	return last + w.contradiction(s, due)
}

// describeLast describes the last start or stop.
func (w workload) describeLast(s *schedule.Schedule, due schedule.Due) string {
	last := w.lastEvent(due)
	switch {
	case due.IsUptime:
		return "start-until keeps it running until " + clockTime(s, due.Expiry)
	case last.At.IsZero():
		return "nothing was due yet"
	case last.Cause == "":
		return "stop-after or kubectl useless sleep stopped it on " + clockTime(s, last.At)
	}
	annotations, _ := w.Annotations()
	_, key, _ := strings.Cut(last.Cause, "/")
	return fmt.Sprintf("%s %q was due on %s", key, schedule.Truncate(annotations[last.Cause]), clockTime(s, last.At))
}

// lastEvent returns the last start or stop. If a stop was recorded after the last regular event, stop-after or the
// command sleep has stopped the workload. The stop then has no cause.
func (w workload) lastEvent(due schedule.Due) schedule.Event {
	r := w.Record()
	if !due.IsDue && !due.IsUptime && r.State == v1beta1.ScheduleStopped && r.Last.After(due.At) {
		return schedule.Event{At: r.Last, IsStop: true}
	}
	return due.Event
}

// contradiction explains why the workload runs after a stop, or does not run after a start. It is empty if the workload
// is as its last start or stop requires.
func (w workload) contradiction(s *schedule.Schedule, due schedule.Due) string {
	r, last := w.Record(), w.lastEvent(due)
	runs, isRecorded := w.Running(s), due.IsUptime || !last.At.IsZero() && r.Last.Equal(last.At)
	switch {
	case !isRecorded || last.IsStop != runs:
		return ""
	case last.IsStop == (r.State == v1beta1.ScheduleStopped) && r.State != "":
		return ", but a user or a tool has undone it"
	case !last.IsStop && r.Original == 0 && s.StartReplicas == 0:
		return ", but no stop has saved the state that it restores"
	default:
		return ", but a suspension or a dry run has skipped it"
	}
}

func clockTime(s *schedule.Schedule, at time.Time) string {
	return at.In(s.Zone).Format("Mon 2006-01-02 15:04 MST")
}
