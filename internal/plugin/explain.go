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
	annotations, isDefault := w.Annotations()
	s, problems := w.Parse()
	if s == nil {
		for _, p := range problems {
			field("Mistake", "%s", p)
		}
		return
	}
	due := s.Due(w.Record(), w.Running(s), now)
	field("Because", "%s", reason(s, due, w.State(), annotations, now))
	source := "its own annotations"
	if isDefault {
		source = "Namespace " + w.object.GetNamespace()
	}
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
func reason(s *schedule.Schedule, due schedule.Due, state string, annotations map[string]string, now time.Time) string {
	_, key, _ := strings.Cut(due.Cause, "/")
	last := "nothing was due yet"
	switch {
	case due.IsUptime:
		last = "start-until keeps it running until " + clockTime(s, due.Expiry)
	case !due.At.IsZero():
		value := schedule.Truncate(annotations[due.Cause])
		last = fmt.Sprintf("%s %q was due on %s", key, value, clockTime(s, due.At))
	}
	switch {
	case state == "overridden":
		return last + ", but a user or a tool has undone it"
	case s.Suspended:
		return `suspend is "true", so starts and stops are skipped`
	case now.Before(s.SuspendUntil):
		return "starts and stops are skipped until " + clockTime(s, s.SuspendUntil)
	case due.IsDue && !due.At.IsZero():
		return last + ", but the operator has not executed it yet"
	}
	return last
}

func clockTime(s *schedule.Schedule, at time.Time) string {
	return at.In(s.Zone).Format("Mon 2006-01-02 15:04 MST")
}
